"""torch.distributions: distributions whose methods and attributes are lines of the table."""

from __future__ import annotations

import inspect
from typing import Any

import jax

from fnjax._torch_ops.registry import KNOWN
from fnjax._torch_ops.signature import parse_signature
from fnjax._torch_ops.table.distributions import HOME, METHODS, PARAMETERS
from fnjax.torch.dispatch.run import run


class Distribution:
    """A distribution with its parameters; its methods and attributes are lines of the table."""

    _names: tuple[str, ...] = ()

    def __init__(self, *args: Any, validate_args: Any = None, **named: Any) -> None:
        positional = dict(zip(self._names, args, strict=False))
        vars(self)["_parameters"] = {k: v for k, v in {**positional, **named}.items() if v is not None}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        own = f"{HOME}{type(self).__name__}.{name}"
        parameters = vars(self)["_parameters"]
        if name in METHODS:

            def method(*args: Any, **named: Any) -> Any:
                word = METHODS[name].partition("=")[0]
                given = {**dict(zip([word], args, strict=False)), **named}
                return run(own, (), {**parameters, **given})

            return method
        return run(own, (), parameters)


def _make(name: str, parameters: str) -> type:
    names = tuple(p.name for p in parse_signature(parameters))
    signature = inspect.Signature([inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names])
    made = type(name, (Distribution,), {"_names": names, "__signature__": signature})
    jax.tree_util.register_pytree_node(
        made, _flatten, lambda keys, values: made(**dict(zip(keys, values, strict=True)))
    )
    return made


def _flatten(distribution: Distribution) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    parameters = vars(distribution)["_parameters"]
    return tuple(parameters.values()), tuple(parameters)


KNOWN["torch.distributions.Distribution"] = Distribution
for _name, _parameters in PARAMETERS.items():
    KNOWN[f"{HOME}{_name}"] = KNOWN[f"{HOME}{_name.lower()}.{_name}"] = _make(_name, _parameters)
