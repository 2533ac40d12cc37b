"""Layers as tables: the columns are the constructor, parameters, extra_repr, and the function that simple layers call.

A class with the base `Layer` has `@constructor`, with the constructor's signature, shapes of parameters, and
extra_repr. A layer that only calls a function of the table is a line: the names, the constructor's signature, the
function, extra_repr. The function gets forward's arguments, and each parameter of the constructor by its name.
Words after the function change that: `p=norm` passes the attribute `norm` as `p`, `training` an attribute that is not a
parameter, `mode="edge"` a constant; `-weight` leaves one out. In extra_repr, `alpha=` is name and value, `.size` the
value alone, `inplace?` only if it is not the constructor's default; a parameter is True, or False if it is None.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fnjax._torch_ops.registry import KNOWN
from fnjax._torch_ops.signature import parse_signature
from fnjax.torch._nn.module.module import Module
from fnjax.torch._nn.module.parameter import Parameter
from fnjax.torch.names.registry import find, module

torch, F, init = module("torch"), module("torch.nn.functional"), module("torch.nn.init")
_LEGACY = {"size_average", "reduce"}  # of losses; `reduction` says the same
_BUFFERS = {"weight", "pos_weight", "_random_samples"}
FACTORY = "device: Any = None, dtype: Any = None"


def signed(signature: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a function a signature; the function gets all its arguments by name."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        space = function.__globals__ | {"function": function}  # names of its annotations
        exec(f"def called({signature}): return function(**locals())", space)
        made: Any = space["called"]
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(made, name, getattr(function, name))
        return made

    return decorate


def enter_layer(file: str) -> Callable[[type], type]:
    """Register a class as `torch.nn.<its name>`, and in the module of PyTorch that defines it."""

    def enter(cls: type) -> type:
        cls.__module__ = "fnjax.torch.nn"
        for space in ("torch.nn", "torch.nn.modules", f"torch.nn.modules.{file}"):
            KNOWN[f"{space}.{cls.__name__}"] = cls
        return cls

    return enter


def add_parameter(layer: Module, name: str, shape: Any, there: bool = True, **options: Any) -> None:
    """Register a parameter, whose initial values are drawn later; or None, if `there` is False."""
    made = None
    if there:  # by an array of NumPy, which needs no compiled program for each shape
        empty = torch.empty(0, **options)
        made = Parameter(empty.new_tensor(np.zeros(shape, empty.dtype.numpy)))
    layer.register_parameter(name, made)


def repeat(value: Any, rank: int) -> tuple[Any, ...]:
    """Return a size for each spatial axis, as PyTorch keeps it."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank


class Layer(Module):
    """A layer whose constructor is made by `constructor`.

    Attributes:
        _shapes: name of a parameter → its shape, an expression over the constructor's arguments; None for no parameter.
        _shown: words of extra_repr → the constructor's default.
    """

    _shapes: ClassVar[dict[str, str]] = {}
    _shown: ClassVar[dict[str, Any]] = {}

    if TYPE_CHECKING:
        reset_parameters: Callable[[], None]

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def _prepare(self, values: dict[str, Any]) -> None:
        """Check the constructor's arguments, and change those that become other attributes."""

    def _start(self, given: dict[str, Any]) -> None:
        """Draw the initial values; a subclass adds members that are made after the parameters."""
        if self._parameters:
            self.reset_parameters()

    def extra_repr(self) -> str:
        """Return the options in PyTorch's form."""
        return ", ".join(filter(None, (_show(self, word, default) for word, default in self._shown.items())))


def _show(layer: Layer, word: str, default: Any) -> str:
    name = word.strip("=.?")
    value = getattr(layer, name)
    value = value is not None if name in layer._shapes else value
    if word.startswith("."):
        return f"{value}"
    return "" if word.endswith("?") and value == default else f"{name}={value!r}"


def constructor(signature: str | None = None, shown: str | None = None, **shapes: str) -> Callable[[Any], Any]:
    """Return a decorator that defines a layer's constructor; without a signature its columns apply to subclasses.

    The arguments become attributes, but for device, dtype and those with the name of a parameter.
    """

    def decorate(cls: Any) -> Any:
        def start(self: Layer, **given: Any) -> None:
            super(Layer, self).__init__()
            options = {name: given.pop(name) for name in ("device", "dtype") if name in given}
            values = dict(given)
            cls._prepare(self, values)
            for name, value in values.items():
                if name in _BUFFERS:
                    self.register_buffer(name, value)
                elif name not in cls._shapes:
                    setattr(self, name, value)
            for name, text in cls._shapes.items():
                shape = eval(text, {}, given | values)
                add_parameter(self, name, shape, shape is not None, **options)
            cls._start(self, given | values | options)

        start.__name__, start.__qualname__ = "__init__", f"{cls.__name__}.__init__"
        if signature is not None:
            cls.__init__ = signed(f"self, {signature}")(start)
        cls._shapes = cls._shapes | shapes
        if shown is not None:
            parameters = inspect.signature(cls.__init__).parameters
            cls._shown = {word: getattr(parameters.get(word[:-1]), "default", None) for word in shown.split()}
        return cls

    return decorate


class TableLayer(Layer):
    """A layer that calls a function of the table with its attributes.

    Attributes:
        _function: the function's qualified name.
        _passed: its keyword → the layer's attribute.
        _constants: its keyword → a value that is always passed.
    """

    _function = ""
    _passed: ClassVar[dict[str, str]] = {}
    _constants: ClassVar[dict[str, str]] = {}

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the function."""
        options = {k: getattr(self, v) for k, v in self._passed.items()}
        return find(self._function)(*inputs, **named, **options, **self._constants)


Prepare = Callable[[Any, dict[str, Any]], None]  # Layer._prepare


def add_layers(
    file: str, text: str, prepare: Prepare | None = None, ranks: tuple[int, ...] = (0,), base: type = TableLayer
) -> None:
    """Register classes from text, one a line; RANK is replaced by each of the ranks, the number of spatial axes."""
    for rank in ranks:
        space = {"_rank": rank, "__module__": __name__} | ({"_prepare": prepare} if prepare else {})
        for line in text.strip().replace("RANK", str(rank)).splitlines():
            names, signature, function, shown = (part.strip() for part in line.split("|"))
            for name in names.split():
                columns = space | {"__doc__": f"torch.nn.{name}."} | _read_function(function, name, signature)
                enter_layer(file)(constructor(signature, shown)(type(name, (base,), columns)))


def _read_function(text: str, name: str, signature: str) -> dict[str, Any]:
    """Return the columns of TableLayer."""
    called, *words = text.replace("F.", "torch.nn.functional.").replace("NAME", name.lower()).split()
    names = [p.name for p in parse_signature(signature)] if signature else []
    passed = {n: n for n in names if n not in _LEGACY and f"-{n}" not in words}
    constants = {}
    for word in words:
        keyword, _, attribute = word.partition("=")
        if attribute.startswith('"'):
            constants[keyword] = attribute.strip('"')
        elif not word.startswith("-"):
            passed[keyword] = attribute or keyword
    return {"_function": called, "_passed": passed, "_constants": constants}
