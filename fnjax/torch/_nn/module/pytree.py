"""A module as a pytree of JAX: its leaves are the arrays of parameters and buffers, a shared one once.

A copy that JAX makes of these leaves is a module of its own. Gradients flow to parameters that require grad only.
"""

from __future__ import annotations

import collections
import functools
from typing import Any

import jax
import numpy as np

from fnjax.torch._nn.module.copies import Rebinding
from fnjax.torch._nn.module.members import Members
from fnjax.torch._nn.module.parameter import Parameter, set_value
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.recording.storage import find_root

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SPACES = ("_parameters", "_buffers")
_OURS = {*_SPACES, "_modules", "_form"}


class _Form:
    """Static part of a module's pytree; equal if classes, names, modes and attributes of the modules are equal.

    Args:
        model: the module; if it is a copy, the module that it was copied from is kept instead.
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
        self._facts = (tuple(values), tuple(self.trained.values()), _list_attributes(model))

    @functools.cached_property
    def storages(self) -> list[Any]:
        """The storages of the module's parameters and buffers."""
        return [find_root(t.memory) for t in _locate(self.model).values()]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Form) and self._facts == other._facts

    def __hash__(self) -> int:
        return hash(self._facts[0])


def _list_attributes(model: Any) -> dict[str, Any]:
    """Return keys by which the classes and attributes of a module and its submodules are compared, by their names."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        start = path and f"{path}."
        found[f"{start}__class__"] = type(module)
        found |= {start + name: _sign(value) for name, value in vars(module).items() if name not in _OURS}
    return found


def find_difference(first: Any, second: Any) -> str:
    """Return the first name of what differs between two modules, with both; "" if only values of tensors differ."""
    facts: list[dict[str, Any]] = []
    for model in (first, second):
        tensors = {name: (str(t.dtype), tuple(t.shape), t.requires_grad) for name, t in _locate(model).items()}
        facts.append(_list_attributes(model) | tensors)
    x, y = facts
    name = next((n for n in x | y if (n in x, x.get(n)) != (n in y, y.get(n))), None)
    return "" if name is None else f"{name} is {_show(x, name)} and {_show(y, name)}"


def _show(facts: dict[str, Any], name: str) -> str:
    if name not in facts:
        return "missing"
    fact = facts[name]
    if isinstance(fact, type):
        return fact.__name__
    if fact[0] in _PLAIN:
        return repr(fact[1])
    if len(fact) == 3 and isinstance(fact[0], str):
        return f"{fact[0]}{list(fact[1])}{' that requires grad' if fact[2] else ''}"
    return f"one {fact[0].__name__}"


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
    """Return parameters and buffers by their names, a shared one under its first name.

    In a copy that JAX has made, they may be any objects.
    """
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
    rebinding = Rebinding([form.model], own_leaves=True)
    made = rebinding.copy(form.model)
    for (name, old), leaf, trained in zip(_locate(form.model).items(), leaves, form.trained.values(), strict=True):
        if isinstance(leaf, (jax.Array, np.ndarray)):
            tensor = rebinding.find(old)
            if isinstance(tensor, Parameter):
                tensor.requires_grad_(trained)
            is_constant = not trained and isinstance(leaf, jax.core.Tracer)
            set_value(tensor, jax.lax.stop_gradient(leaf) if is_constant else leaf)
        else:  # JAX puts other things there while it looks at structures
            _space_of(made, name)[name.rpartition(".")[2]] = leaf
    for path, plain in form.plain.items():
        vars(made.get_submodule(path)).update(plain)
    vars(made)["_form"] = form
    return made


def register(cls: type) -> None:
    """Register a class of modules as pytrees."""
    jax.tree_util.register_pytree_with_keys(cls, _flatten, _unflatten)
