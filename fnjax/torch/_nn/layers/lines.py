"""Layers without parameters: one line each, which says what is passed to a function of the table.

A line: the names, the constructor's signature, the function, what the layer shows of itself. The function gets
forward's arguments, and each parameter of the constructor by its name. Words after the function change that: `p=norm`
passes the attribute `norm` as `p`, `training` an attribute that is no parameter, `mode="edge"` a constant; `-weight`
leaves one out. What is shown: `alpha=` name and value, `.size` the value alone, `inplace?` only where it is true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from fnjax._torch_ops.signature import parse_signature
from fnjax.torch._nn.module.module import Module
from fnjax.torch._nn.module.parameter import Parameter
from fnjax.torch.names.registry import KNOWN, find, module

torch, F, init = module("torch"), module("torch.nn.functional"), module("torch.nn.init")
_LEGACY = {"size_average", "reduce"}  # of losses; `reduction` says the same
_BUFFERS = {"weight", "pos_weight", "_random_samples"}


def enter_layer(file: str) -> Callable[[type], type]:
    """Enter a class as `torch.nn.<its name>` and below the module of PyTorch that defines it."""

    def enter(cls: type) -> type:
        cls.__module__ = "fnjax.torch.nn"
        for space in ("torch.nn", "torch.nn.modules", f"torch.nn.modules.{file}"):
            KNOWN[f"{space}.{cls.__name__}"] = cls
        return cls

    return enter


def choose_reduction(size_average: Any, reduce: Any) -> str:
    """Return the `reduction` that PyTorch's two older options of losses mean."""
    if reduce is False:
        return "none"
    return "sum" if size_average is False else "mean"


def add_parameter(layer: Module, name: str, shape: Any, there: bool = True, **options: Any) -> None:
    """Register a parameter that waits for its initial values, or the name without one."""
    made = None
    if there:  # by an array of NumPy, which needs no compiled program for each shape
        empty = torch.empty(0, **options)
        made = Parameter(empty.new_tensor(np.zeros(shape, empty.dtype.numpy)))
    layer.register_parameter(name, made)


def repeat(value: Any, rank: int) -> tuple[Any, ...]:
    """Return a size for each spatial axis, as PyTorch keeps it."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank


class TableLayer(Module):
    """A layer that calls a function of the table with its attributes.

    Attributes:
        _function: the function's qualified name.
        _passed: its keyword → the layer's attribute.
        _constants: its keyword → a value that is always passed.
        _shown: words of the fourth column.
    """

    _function = ""
    _passed: ClassVar[dict[str, str]] = {}
    _constants: ClassVar[dict[str, str]] = {}
    _shown: tuple[str, ...] = ()

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the function."""
        options = {k: getattr(self, v) for k, v in self._passed.items()}
        return find(self._function)(*inputs, **named, **options, **self._constants)

    def extra_repr(self) -> str:
        """Return the options in PyTorch's form."""
        return ", ".join(filter(None, (_show(self, word) for word in self._shown)))


def _show(layer: Module, word: str) -> str:
    value = getattr(layer, word.strip("=.?"))
    if word.startswith("."):
        return f"{value}"
    return "" if word.endswith("?") and not value else f"{word.strip('=?')}={value!r}"


Prepare = Callable[[dict[str, Any]], None]  # changes the constructor's values before they become attributes


def add_layers(file: str, text: str, base: type = TableLayer, prepare: Prepare | None = None) -> None:
    """Enter classes from text, one a line."""
    for line in text.strip().splitlines():
        names, signature, function, shown = (part.strip() for part in line.split("|"))
        for name in names.split():
            enter_layer(file)(_make_layer(name, signature, function, shown, base, prepare))


def _make_layer(name: str, signature: str, function: str, shown: str, base: type, prepare: Prepare | None) -> type:
    read = eval(f"lambda self, {signature}: locals()")  # binds arguments, with Python's errors
    read.__name__, read.__qualname__ = "__init__", f"{name}.__init__"
    names = [p.name for p in parse_signature(signature)] if signature else []
    called, *words = function.replace("F.", "torch.nn.functional.").replace("NAME", name.lower()).split()
    passed = {n: n for n in names if n not in _LEGACY and f"-{n}" not in words}
    constants = {}
    for word in words:
        keyword, _, attribute = word.partition("=")
        if attribute.startswith('"'):
            constants[keyword] = attribute.strip('"')
        elif not word.startswith("-"):
            passed[keyword] = attribute or keyword

    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        values = read(self, *args, **kwargs)
        del values["self"]
        Module.__init__(self)
        if values.keys() >= _LEGACY:
            old = values.pop("size_average"), values.pop("reduce")
            values["reduction"] = values["reduction"] if old == (None, None) else choose_reduction(*old)
        if prepare is not None:
            prepare(values)
        for key, value in values.items():
            if key in _BUFFERS:
                self.register_buffer(key, value)
            else:
                setattr(self, key, value)

    space = {"__init__": start, "__doc__": f"torch.nn.{name}.", "_shown": tuple(shown.split())}
    return type(name, (base,), {**space, "_function": called, "_passed": passed, "_constants": constants})
