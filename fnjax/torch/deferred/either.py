"""A value of which JAX decides which of two it is, and whose two shapes differ: operations run on both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from fnjax.torch.deferred.missing import Missing
from fnjax.torch.loading.errors import NotSupported


class Either(Missing):
    """One of two values, by a traced test, as `low` after `if test: low = x.min()`.

    What an operation makes of the two is merged; it is a plain value where the shapes agree again, and an Either where
    they do not.

    Args:
        name: of the variable.
        cause: the error for a use that needs to know which it is.
        choose: (test, yes, no) → the merged result of two functions.
        values: the test and the two values.
    """

    def __init__(
        self, name: str, cause: NotSupported, choose: Callable[..., Any], values: tuple[Any, Any, Any]
    ) -> None:
        super().__init__(name, cause)
        vars(self).update(_choose=choose, _values=values)

    @property
    def first(self) -> Any:
        """The value where the test is true."""
        return vars(self)["_values"][1]

    def map(self, function: Callable[[Any], Any]) -> Any:
        """Return the merged result of a function of both values."""
        test, a, b = vars(self)["_values"]
        return vars(self)["_choose"](test, lambda: function(a), lambda: function(b))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if callable(getattr(self.first, name)):
            return lambda *args, **kwargs: distribute(
                lambda x, *rest, **named: getattr(x, name)(*rest, **named), (self, *args), kwargs
            )
        return self.map(lambda x: getattr(x, name))

    def __getitem__(self, index: Any) -> Any:
        return self.map(lambda x: x[index])


def distribute(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return `function(*args, **kwargs)`, merged over the values of each Either among the arguments."""
    given: list[tuple[Any, Any]] = [*enumerate(args), *kwargs.items()]
    at, either = next(((k, x) for k, x in given if isinstance(x, Either)), (None, None))
    if either is not None:
        return either.map(
            lambda v: distribute(
                function,
                [v if i == at else x for i, x in enumerate(args)],
                {k: v if k == at else x for k, x in kwargs.items()},
            )
        )
    return function(*args, **kwargs)


def has_either(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether an argument is an Either."""
    return any(isinstance(x, Either) for x in args) or any(isinstance(x, Either) for x in kwargs.values())


def _operator(name: str) -> Callable[..., Any]:
    def call(self: Either, *others: Any) -> Any:
        def on_values(x: Any, *rest: Any) -> Any:
            found = getattr(x, name)(*rest)
            return getattr(rest[0], _reflect(name))(x) if found is NotImplemented else found

        return distribute(on_values, (self, *others), {})

    return call


def _reflect(name: str) -> str:
    bare = name.strip("_")
    return f"__{bare[1:]}__" if bare.startswith("r") and bare != "rshift" else f"__r{bare}__"


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"):
    setattr(Either, f"__{_name}__", _operator(f"__{_name}__"))
    setattr(Either, f"__r{_name}__", _operator(f"__r{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "abs", "invert"):
    setattr(Either, f"__{_name}__", _operator(f"__{_name}__"))
Either.__hash__ = object.__hash__  # type: ignore[method-assign] # by identity, as of tensors

jax.tree_util.register_pytree_node(
    Either,
    lambda x: (vars(x)["_values"], (vars(x)["_name"], vars(x)["_cause"], vars(x)["_choose"])),
    lambda data, values: Either(*data, tuple(values)),
)
