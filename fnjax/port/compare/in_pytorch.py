"""Outputs, gradients and second derivatives of the original, as PyTorch computes them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from fnjax._check.streams import make_stream
from fnjax._cli.call import load
from fnjax.port.compare.values import Inputs, Results, Values, draw_like, flatten


class _StableMode(TorchFunctionMode):
    """Mode in which sort and topk are stable, and uninitialised memory has one value.

    PyTorch leaves their order open, and that of `topk(sorted=False)` altogether: any order is right, so the one that
    JAX has is chosen.
    """

    def __init__(self, fill: int) -> None:
        super().__init__()
        self.fill = fill

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in _SETTLED and "out" not in kwargs:
            return _SETTLED[name](*args, **kwargs)
        found = func(*args, **kwargs)
        return found.fill_(self.fill) if name in _UNSET else found


# The parameters are named as PyTorch's.


def _sort_stably(input: Any, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    return torch.sort(input, stable=True, dim=dim, descending=descending)


def _argsort_stably(input: Any, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    return torch.sort(input, stable=True, dim=dim, descending=descending).indices


def _topk_stably(input: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    found = torch.sort(input, stable=True, dim=dim, descending=largest)
    if k > (input.shape[dim] if input.ndim else 1):
        return torch.topk(input, k, dim)  # which raises
    values, places = (part.narrow(dim, 0, k) if part.ndim else part for part in found)
    return torch.return_types.topk((values, places))


_UNSET = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}
_SETTLED: dict[str, Callable[..., Any]] = {"sort": _sort_stably, "argsort": _argsort_stably, "topk": _topk_stably}


@contextlib.contextmanager
def settle_torch(dtype: str, fill: int = 0) -> Iterator[None]:
    """Make runs reproducible: the dtype of `torch.zeros(3)`, the order of equal elements, uninitialised memory.

    Args:
        dtype: the default dtype.
        fill: the value of uninitialised memory.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with _StableMode(fill), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # create_graph warns of a cycle, which ends with the call
            yield
    finally:
        torch.set_default_dtype(before)


def run_torch(
    function: Callable[..., Any], inputs: Inputs, known: Values | None = None
) -> tuple[Results, list[Values]]:
    """Return PyTorch's results, and the cotangents that it drew; with known ones gradients only.

    Second derivatives are those by the arguments, and those by the cotangents of the outputs, as far as PyTorch has
    these. Cotangents are drawn for all floating point outputs and gradients, also for those that PyTorch does not
    differentiate: they are zero derivatives then, and the port's have to be zero as well.
    """
    draw = make_stream("cotangents", inputs.seed)
    given = [make_tensor(a, i in inputs.selected) for i, a in enumerate(inputs.args)]
    leaves = [given[i] for i in inputs.selected]
    vectors: list[list[Any]] = []  # the cotangents of outputs, then those of gradients, as tensors

    def called() -> list[Any]:
        # An in-place Function may not change a leaf: each call is given copies.
        fresh = [x.clone() if isinstance(x, torch.Tensor) else x for x in given]
        return [o for o in flatten(function(*fresh, **inputs.kwargs)) if isinstance(o, torch.Tensor)]

    def pulled(outputs: Sequence[Any], cotangents: Values, recorded: bool = True) -> list[Any]:
        # The whole graph is traversed, cotangents and all: with the inputs named, autograd.grad would not meet what
        # once_differentiable leaves there to raise, and would return zeros.
        vectors.append([None if c is None else torch.tensor(c, requires_grad=recorded) for c in cotangents])
        pairs = [(o, c.to(o.dtype)) for o, c in zip(outputs, vectors[-1], strict=True) if o.requires_grad]
        by = [v for v in vectors[0] if v is not None] if len(vectors) > 1 else []
        for x in [*leaves, *by]:
            x.grad = None
        if pairs:
            tensors, weights = zip(*pairs, strict=True)
            torch.autograd.backward(tensors, weights, create_graph=recorded)
        return [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves] + [v.grad for v in by]

    outputs = called()
    if known is not None:
        return Results([], [make_array(t) for t in pulled(outputs, known, recorded=False)], []), []
    first: Values = []
    second: Values = []
    gradients: list[Any] = []
    seconds: list[Any] = []
    error = None
    try:
        first = draw_cotangents(outputs, draw)
        if leaves and all(c is None for c in first):  # nothing to differentiate: integers, booleans
            return Results([make_array(o) for o in outputs], [], []), [first, []]
        gradients = pulled(outputs, first)
        second = draw_cotangents(gradients, draw)
        seconds = pulled(gradients, second)
    except Exception as e:  # noqa: BLE001 - once_differentiable, or whatever the user's backward raises
        error = e
        if not gradients:  # it may have first derivatives all the same, if it writes to what it is given
            vectors.clear()
            with contextlib.suppress(Exception):
                gradients = pulled(called(), first, recorded=False)
    sides = [[None if t is None else make_array(t) for t in side] for side in (outputs, gradients, seconds)]
    constant = [
        f"output {i}"
        for i, o in enumerate(outputs)
        if leaves and (o.is_floating_point() or o.is_complex()) and not o.requires_grad
    ]
    return Results(sides[0], sides[1], sides[2], error, tuple(constant)), [first, second]


def draw_cotangents(tensors: Sequence[Any], draw: np.random.Generator) -> Values:
    """Draw random cotangents for tensors of floating-point or complex numbers; None for others."""
    return [draw_like(make_array(t), draw) if t.is_floating_point() or t.is_complex() else None for t in tensors]


def make_tensor(value: Any, requires_grad: bool = False) -> Any:
    """Return a tensor for an array; lists and tuples by their members, anything else as it is."""
    if isinstance(value, (list, tuple)):
        return type(value)(make_tensor(v) for v in value)
    return torch.tensor(value, requires_grad=requires_grad) if isinstance(value, np.ndarray) else value


def make_array(value: Any) -> np.ndarray[Any, Any]:
    """Return the values of a tensor, in its dtype."""
    value = value.detach().resolve_conj().resolve_neg().cpu()
    name = str(value.dtype).removeprefix("torch.")
    if name == "bfloat16" or name.startswith("float8"):  # which NumPy has not by itself
        return np.asarray(value.float().numpy()).astype(getattr(jax.numpy, name))
    return np.asarray(value.numpy())


class PyTorch:
    """PyTorch as the reference."""

    name = "PyTorch"
    torch = torch
    patience = 5.0

    def load(self, place: str) -> Any:
        """Import a module by its name, or by the path of its file."""
        return load(place)

    def list_files(self) -> list[str]:
        """Return no files: `extraction` knows those of PyTorch."""
        return []

    def seed(self, number: int) -> None:
        """Seed PyTorch's generator."""
        torch.default_generator.manual_seed(number)

    def run(self, function: Callable[..., Any], inputs: Inputs, fill: int = 0) -> tuple[Results, list[Values]]:
        """Return PyTorch's results, and the cotangents that were drawn; uninitialised memory holds `fill`."""
        with settle_torch(inputs.dtype, fill):
            # This fills uninitialised memory with NaN, or the largest integer.
            torch.use_deterministic_algorithms(bool(fill), warn_only=True)
            try:
                return run_torch(function, inputs)
            finally:
                torch.use_deterministic_algorithms(False)


REFERENCE = PyTorch()
