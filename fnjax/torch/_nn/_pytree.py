"""A module as a pytree of JAX: its leaves are the arrays of parameters and buffers, a shared one once.

A copy that JAX makes of these leaves is a module of its own. Gradients flow to parameters that require grad only.
"""

from __future__ import annotations

import collections
from typing import Any

import jax
import numpy as np

from fnjax.torch._autograd.function import dtype_of
from fnjax.torch._nn._members import Members
from fnjax.torch._nn._parameter import Parameter
from fnjax.torch._tensor import Tensor, make

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SPACES = ("_parameters", "_buffers")
_OURS = {*_SPACES, "_modules", "_form"}


class _Form:
    """A module without its arrays; two are equal where the modules have the same classes, names, modes and attributes.

    Args:
        model: the module; its arrays are not kept where it is a copy.
        values: its parameters and buffers by their names.
    """

    def __init__(self, model: Any, values: dict[str, Any]) -> None:
        origin = vars(model).get("_form")
        self.model: Any = model if origin is None else origin.model
        self.trained = {
            n: v.requires_grad if isinstance(v, Parameter) else origin is not None and origin.trained[n]
            for n, v in values.items()
        }
        self.plain = {
            path: {k: v for k, v in vars(module).items() if isinstance(v, _PLAIN)}
            for path, module in model.named_modules()
        }
        others = tuple(
            (path, type(module), *((k, _sign(v)) for k, v in vars(module).items() if k not in _OURS))
            for path, module in model.named_modules()
        )
        self._facts = (tuple(values), tuple(self.trained.values()), others)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Form) and self._facts == other._facts

    def __hash__(self) -> int:
        return hash(self._facts[0])


def _sign(value: Any) -> Any:
    """Return a key by which two attributes are compared: plain values by value, other objects by identity."""
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, (list, tuple, collections.deque)):
        return (type(value), *map(_sign, value))
    if isinstance(value, dict):
        return (type(value), *((_sign(k), _sign(v)) for k, v in value.items()))
    return type(value) if isinstance(value, (Members, set)) else (type(value), id(value))


def _locate(model: Any) -> dict[str, Any]:
    """Return parameters and buffers by their names, a shared one under its first; of a copy, whatever is there."""
    form = vars(model).get("_form")
    if form is None:
        return {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: _space_of(model, name)[name.rpartition(".")[2]] for name in form.trained}


def _space_of(model: Any, name: str) -> dict[str, Any]:
    path, _, last = name.rpartition(".")
    module = vars(model.get_submodule(path))
    return next(module[space] for space in _SPACES if last in module[space])


def _flatten(model: Any) -> tuple[list[tuple[Any, Any]], _Form]:
    found = _locate(model)
    arrays = [v.array if isinstance(v, Tensor) else v for v in found.values()]
    return [(jax.tree_util.GetAttrKey(n), a) for n, a in zip(found, arrays, strict=True)], _Form(model, found)


def _unflatten(form: _Form, leaves: Any) -> Any:
    located = _locate(form.model)
    new = {
        id(old): _make(old, leaf, trained)
        for old, leaf, trained in zip(located.values(), leaves, form.trained.values(), strict=True)
    }
    made = _copy(form.model, new)
    for path, plain in form.plain.items():
        vars(made.get_submodule(path)).update(plain)
    vars(made)["_form"] = form
    return made


def _make(old: Tensor, leaf: Any, trained: bool) -> Any:
    """Return a leaf as a parameter or buffer like the old one; other objects than arrays as they are."""
    if not isinstance(leaf, (jax.Array, np.ndarray)):
        return leaf
    array = jax.numpy.asarray(leaf)
    if not trained and isinstance(array, jax.core.Tracer):
        array = jax.lax.stop_gradient(array)
    made = make(array, old.dtype if array.dtype == old.dtype.array else dtype_of(array))
    return Parameter(made, requires_grad=trained) if isinstance(old, Parameter) else made


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of a module with copies of the modules and tensors in its attributes; other objects are shared."""
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, Members):
        made: Any = object.__new__(type(value))
        memo[id(value)] = made
        vars(made).update({k: _copy(v, memo) for k, v in vars(value).items()}, _form=None)
        return made
    if isinstance(value, (list, collections.deque, set)):
        made = value.copy()
        made.clear()
        memo[id(value)] = made
        (made.update if isinstance(value, set) else made.extend)(_copy(v, memo) for v in value)
        return made
    if type(value) is tuple:
        return tuple(_copy(v, memo) for v in value)
    if isinstance(value, dict):
        made = memo[id(value)] = value.copy()
        made.update({k: _copy(v, memo) for k, v in value.items()})
        return made
    return value


def register(cls: type) -> None:
    """Register a class of modules as pytrees."""
    jax.tree_util.register_pytree_with_keys(cls, _flatten, _unflatten)
