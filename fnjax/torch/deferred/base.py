"""Base of values that are not available while JAX traces: uses that a subclass does not define raise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fnjax.torch.recording.raises import is_message


class Deferred:
    """Value that is not available yet, or not at all.

    All special methods of Python raise what `refuse` returns, and so do attributes; a subclass defines what it can.
    `repr` is left to debuggers.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if vars(cls).get("__hash__", cls) is None:  # Python's, of a class that defines __eq__
            cls.__hash__ = Deferred.__hash__  # type: ignore[method-assign]

    def refuse(self, use: str = "") -> BaseException:
        """Return the exception for a use, such as `==`."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.refuse(f"the attribute {name}")

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            object.__setattr__(self, name, value)
        except AttributeError:
            raise self.refuse(f"a write to the attribute {name}") from None


def is_own(space: Mapping[str, Any]) -> bool:
    """Return whether code with these globals is told the class of a value, and not that of the value it stands for."""
    return str(space.get("__name__")).partition(".")[0] in {"fnjax", "jax", "jaxlib", "numpy", "abc"}


ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
UNARY = ("neg", "pos", "abs", "invert")
_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>", "divmod": "divmod()",
}  # fmt: skip
_METHODS = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "contains": "in", "getitem": "[...]",
    "setitem": "[...] =", "delitem": "del", "delattr": "del", "call": "a call", "iter": "iteration",
    "aiter": "iteration", "bool": "the truth", "str": "the text", "format": "the text", "hash": "the hash",
    "enter": "with", "exit": "with", "aenter": "async with", "aexit": "async with", "reduce_ex": "a copy",
    "neg": "-", "pos": "+", "invert": "~", "array": "NumPy", "array_ufunc": "NumPy", "array_function": "NumPy",
    "jax_array": "an array",
}  # fmt: skip
_CALLS = (
    "abs anext await bytes ceil complex float floor fspath index instancecheck int len next reversed round "
    "subclasscheck trunc"
)
# Of each special method the text of its use.
USES = {f"{prefix}{name}": use for name, use in _OPERATORS.items() for prefix in ("", "r", "i")}
USES |= _METHODS | {name: f"{name}()" for name in _CALLS.split()}


def refuse_others(cls: Any) -> None:
    """Make the special methods of Python that a class does not define raise what its `refuse` returns."""
    defined = {name for base in cls.__mro__[:-1] for name in vars(base)}
    for name, use in USES.items():
        if f"__{name}__" not in defined:
            setattr(cls, f"__{name}__", _make(use))


def _make(use: str) -> Callable[..., Any]:
    def method(self: Deferred, *_: Any, **__: Any) -> Any:
        if use == "the text" and is_message():
            return repr(self)
        raise self.refuse(use)

    return method


refuse_others(Deferred)
