"""Recurrent layers and their cells."""

from __future__ import annotations

import warnings
from typing import Any

from fnjax.torch._nn.layers.linear import draw_uniform
from fnjax.torch._nn.layers.lines import FACTORY, Layer, add_parameter, constructor, enter_layer, torch
from fnjax.torch._nn.sequences.packed import PackedSequence

_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


_LAYERS = (
    "input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False, "
    "dropout: float = 0.0, bidirectional: bool = False, "
)


@enter_layer("rnn")
@constructor(
    f"mode: str, {_LAYERS}proj_size: int = 0, {FACTORY}",
    shown=".input_size .hidden_size proj_size? num_layers? bias? batch_first? dropout? bidirectional?",
)
class RNNBase(Layer):
    """Base of LSTM, GRU and RNN: layers in one or two directions.

    Attributes:
        _flat_weights_names: the parameters in the order in which the function takes them.
    """

    def _prepare(self, values: dict[str, Any]) -> None:
        self._check_options(values)
        values["dropout"] = float(values["dropout"])
        if values["mode"] not in _GATES:
            raise ValueError("Unrecognized RNN mode: " + values["mode"])

    def _start(self, given: dict[str, Any]) -> None:
        options = {name: given[name] for name in ("device", "dtype")}
        rows, state = _GATES[self.mode] * self.hidden_size, self.proj_size or self.hidden_size
        self._all_weights: list[list[str]] = []
        for layer in range(self.num_layers):
            width = self.input_size if layer == 0 else state * (2 if self.bidirectional else 1)
            shapes: dict[str, Any] = {"weight_ih": (rows, width), "weight_hh": (rows, state)}
            shapes |= {"bias_ih": rows, "bias_hh": rows} if self.bias else {}
            shapes |= {"weight_hr": (self.proj_size, self.hidden_size)} if self.proj_size else {}
            for suffix in ("", "_reverse")[: 2 if self.bidirectional else 1]:
                for name, shape in shapes.items():
                    add_parameter(self, f"{name}_l{layer}{suffix}", shape, **options)
                self._all_weights.append([f"{name}_l{layer}{suffix}" for name in shapes])
        self._flat_weights_names = [name for names in self._all_weights for name in names]
        self.reset_parameters()

    def _check_options(self, values: dict[str, Any]) -> None:
        dropout, layers, proj_size = values["dropout"], values["num_layers"], values["proj_size"]
        if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout <= 1:
            raise ValueError(
                "dropout should be a number in range [0, 1] representing the probability of an element being zeroed"
            )
        if dropout > 0 and layers == 1:
            warnings.warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects "
                f"num_layers greater than 1, but got dropout={dropout} and num_layers={layers}",
                stacklevel=4,
            )
        for name, kind in (("bias", bool), ("batch_first", bool), ("input_size", int), ("hidden_size", int)):
            if not isinstance(values[name], kind):
                raise TypeError(f"{name} should be of type {kind.__name__}, got: {type(values[name]).__name__}")
        for name in ("input_size", "hidden_size", "num_layers"):
            if values[name] <= 0:
                raise ValueError(f"{name} must be greater than zero")
        if proj_size < 0:
            raise ValueError("proj_size should be a positive integer or zero to disable projections")
        if proj_size >= values["hidden_size"]:
            raise ValueError("proj_size has to be smaller than hidden_size")

    @property
    def _flat_weights(self) -> list[Any]:
        return [getattr(self, name) for name in self._flat_weights_names]

    @property
    def all_weights(self) -> list[list[Any]]:
        """The parameters of each layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    def flatten_parameters(self) -> None:
        """Do nothing: in PyTorch it prepares cuDNN."""

    def reset_parameters(self) -> None:
        """Draw the initial values."""
        draw_uniform(self, self.hidden_size)

    def check_input(self, input: Any, batch_sizes: Any) -> None:
        """Raise PyTorch's errors for an input that does not fit."""
        own, rank = self._flat_weights[0].dtype, 3 if batch_sizes is None else 2
        if input.dtype is not own:
            raise ValueError(
                f"RNN input dtype ({input.dtype}) does not match weight dtype ({own}). "
                f"Convert input: input.to({own}), or convert model: model.to({input.dtype})"
            )
        if input.ndim != rank:
            raise RuntimeError(f"input must have {rank} dimensions, got {input.ndim}")
        if self.input_size != input.shape[-1]:
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {input.shape[-1]}"
            )

    def _list_state_sizes(self, batch: int) -> list[tuple[int, int, int]]:
        """Return the shapes of the state's tensors."""
        layers = self.num_layers * (2 if self.bidirectional else 1)
        shapes = [(layers, batch, self.proj_size or self.hidden_size)]
        return [*shapes, (layers, batch, self.hidden_size)] if self.mode == "LSTM" else shapes

    def get_expected_hidden_size(self, input: Any, batch_sizes: Any) -> tuple[int, int, int]:
        """Return the shape of the state."""
        batch = input.shape[0 if self.batch_first else 1] if batch_sizes is None else int(batch_sizes[0])
        return self._list_state_sizes(batch)[0]

    def get_expected_cell_size(self, input: Any, batch_sizes: Any) -> tuple[int, int, int]:
        """Return the shape of an LSTM's second state."""
        return (*self.get_expected_hidden_size(input, batch_sizes)[:2], self.hidden_size)

    def check_hidden_size(
        self, hx: Any, expected_hidden_size: tuple[int, ...], msg: str = "Expected hidden size {}, got {}"
    ) -> None:
        """Raise PyTorch's error for a state of another shape."""
        if tuple(hx.shape) != tuple(expected_hidden_size):
            raise RuntimeError(msg.format(expected_hidden_size, list(hx.shape)))

    def check_forward_args(self, input: Any, hidden: Any, batch_sizes: Any) -> None:
        """Raise PyTorch's errors for an input, or a state, that does not fit."""
        self.check_input(input, batch_sizes)
        _, batch, _ = self.get_expected_hidden_size(input, batch_sizes)
        self._check_state(hidden if self.mode == "LSTM" else [hidden], batch)

    def _check_state(self, state: Any, batch: int) -> None:
        for i, (s, shape) in enumerate(zip(state, self._list_state_sizes(batch), strict=False)):
            which = f"[{i}]" if self.mode == "LSTM" else ""
            self.check_hidden_size(s, shape, f"Expected hidden{which} size {{}}, got {{}}")

    def permute_hidden(self, hx: Any, permutation: Any) -> Any:
        """Return the states of a batch in another order."""
        if permutation is None:
            return hx
        return (
            tuple(s.index_select(1, permutation) for s in hx)
            if self.mode == "LSTM"
            else hx.index_select(1, permutation)
        )

    def _make_state(self, hx: Any, batch: int, input: Any, single: bool, order: Any) -> list[Any]:
        """Return the state's tensors with a batch axis, checked; zeros by default."""
        if hx is None:
            return [torch.zeros(*shape, dtype=input.dtype) for shape in self._list_state_sizes(batch)]
        state = [*hx] if self.mode == "LSTM" else [hx]
        rank, what = (2, "unbatched 2-D") if single else (3, "batched 3-D")
        if any(s.ndim != rank for s in state):
            if self.mode == "LSTM":
                raise RuntimeError(
                    f"For {what} input, hx and cx should also be {rank}-D but got ({state[0].ndim}-D, "
                    f"{state[1].ndim}-D) tensors"
                )
            raise RuntimeError(f"For {what} input, hx should also be {rank}-D but got {state[0].ndim}-D tensor")
        state = [s.unsqueeze(1) for s in state] if single else state
        self._check_state(state, batch)
        return state if order is None else [s.index_select(1, order) for s in state]

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Return the outputs of the last layer over time, and the last state."""
        function = getattr(torch, self.mode.lower())
        options = (self._flat_weights, self.bias, self.num_layers, self.dropout, self.training, self.bidirectional)
        if isinstance(input, PackedSequence):
            data, sizes, order, back = input
            self.check_input(data, sizes)
            state = self._make_state(hx, int(sizes[0]), data, False, order)
            out, *state = function(data, sizes, tuple(state) if self.mode == "LSTM" else state[0], *options)
            out = PackedSequence(out, sizes, order, back)
            state = state if back is None else [s.index_select(1, back) for s in state]
            return out, tuple(state) if self.mode == "LSTM" else state[0]
        if input.ndim not in (2, 3):
            name = self.mode.partition("_")[0]
            said = "" if name == "LSTM" else " tensor"
            raise ValueError(f"{name}: Expected input to be 2D or 3D, got {input.ndim}D{said} instead")
        single, axis = input.ndim == 2, 0 if self.batch_first else 1
        input = input.unsqueeze(axis) if single else input
        self.check_input(input, None)
        state = self._make_state(hx, input.shape[axis], input, single, None)
        out, *state = function(input, tuple(state) if self.mode == "LSTM" else state[0], *options, self.batch_first)
        if single:
            out, state = out.squeeze(axis), [s.squeeze(1) for s in state]
        return out, tuple(state) if self.mode == "LSTM" else state[0]


@enter_layer("rnn")
class LSTM(RNNBase):
    """torch.nn.LSTM."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("LSTM", *args, **kwargs)


def _refuse_projection(kwargs: dict[str, Any]) -> None:
    if "proj_size" in kwargs:
        raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")


@enter_layer("rnn")
class GRU(RNNBase):
    """torch.nn.GRU."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse_projection(kwargs)
        super().__init__("GRU", *args, **kwargs)


@enter_layer("rnn")
class RNN(RNNBase):
    """torch.nn.RNN, with tanh or relu."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse_projection(kwargs)
        if len(args) > 3:
            chosen, args = args[3], (*args[:3], *args[4:])
        else:
            chosen = kwargs.pop("nonlinearity", "tanh")
        if chosen not in {"tanh", "relu"}:
            raise ValueError(f"Unknown nonlinearity '{chosen}'. Select from 'tanh' or 'relu'.")
        super().__init__(f"RNN_{chosen.upper()}", *args, **kwargs)
        self.nonlinearity = chosen


def _list_shapes(chunks: int | str) -> dict[str, str]:
    """Return the shapes of a cell with this number of gates."""
    rows = f"{chunks} * hidden_size"
    weights = {"weight_ih": f"({rows}, input_size)", "weight_hh": f"({rows}, hidden_size)"}
    return weights | dict.fromkeys(("bias_ih", "bias_hh"), f"{rows} if bias else None")


_SIZES = "input_size: int, hidden_size: int, bias: bool"


@enter_layer("rnn")
@constructor(f"{_SIZES}, num_chunks: int, {FACTORY}", **_list_shapes("num_chunks"))
class RNNCellBase(Layer):
    """Base of the cells: one step."""

    def _prepare(self, values: dict[str, Any]) -> None:
        values.pop("num_chunks", None)

    def reset_parameters(self) -> None:
        """Draw the initial values."""
        draw_uniform(self, self.hidden_size)

    def extra_repr(self) -> str:
        """Return the options."""
        parts = [f"{self.input_size}, {self.hidden_size}", "" if self.bias is True else f"bias={self.bias}"]
        chosen = vars(self).get("nonlinearity", "tanh")
        return ", ".join(filter(None, [*parts, "" if chosen == "tanh" else f"nonlinearity={chosen}"]))

    def _step(self, function: str, input: Any, hx: Any, states: int = 1) -> Any:
        name = type(self).__name__
        state: Any = [] if hx is None else [hx] if states == 1 else [*hx]
        if input.ndim not in (1, 2):
            raise ValueError(f"{name}: Expected input to be 1D or 2D, got {input.ndim}D instead")
        for i, s in enumerate(state):
            if s.ndim not in (1, 2):
                which = "hidden" if states == 1 else f"hx[{i}]"
                raise ValueError(f"{name}: Expected {which} to be 1D or 2D, got {s.ndim}D instead")
        single = input.ndim == 1
        input = input.unsqueeze(0) if single else input
        if hx is None:
            state = [torch.zeros(input.shape[0], self.hidden_size, dtype=input.dtype)] * states
        elif single:
            state = [s.unsqueeze(0) for s in state]
        weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        out = getattr(torch, function)(input, state[0] if states == 1 else tuple(state), *weights)
        if not single:
            return out
        return out.squeeze(0) if states == 1 else tuple(s.squeeze(0) for s in out)


@enter_layer("rnn")
@constructor(f'{_SIZES} = True, nonlinearity: str = "tanh", {FACTORY}', **_list_shapes(1))
class RNNCell(RNNCellBase):
    """torch.nn.RNNCell."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Return the next state."""
        if self.nonlinearity not in {"tanh", "relu"}:
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        return self._step(f"rnn_{self.nonlinearity}_cell", input, hx)


@enter_layer("rnn")
@constructor(f"{_SIZES} = True, {FACTORY}", **_list_shapes(4))
class LSTMCell(RNNCellBase):
    """torch.nn.LSTMCell."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Return the next output and state."""
        return self._step("lstm_cell", input, hx, 2)


@enter_layer("rnn")
@constructor(f"{_SIZES} = True, {FACTORY}", **_list_shapes(3))
class GRUCell(RNNCellBase):
    """torch.nn.GRUCell."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Return the next state."""
        return self._step("gru_cell", input, hx)
