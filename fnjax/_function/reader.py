"""Reading a class: its methods and options, looked up again whenever it has changed."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from fnjax._function.signature import parameters_of
from fnjax._function.spec import Definition, Options
from fnjax._messages.definitions import backward_and_vjp, missing_forward, mixed_styles, no_bool_option


class FunctionMeta(type):
    """Metaclass of `Function`, as PyTorch has one; it counts the changes of its classes."""

    changes = 0

    def __setattr__(cls, name: str, value: Any) -> None:
        FunctionMeta.changes += 1
        super().__setattr__(name, value)

    def __delattr__(cls, name: str) -> None:
        FunctionMeta.changes += 1
        super().__delattr__(name)


class Reader:
    """Cached reader of a class and its bases without `base`.

    Its result is valid until a member of the class changes: a lookup in all bases costs more than an eager call.

    Raises:
        FnjaxError: for mistakes that can be found when the class is defined.
    """

    def __init__(self, cls: Any, base: type) -> None:
        self._cls = cls
        self._spaces = [vars(c) for c in cls.__mro__ if c is not base and c is not object]
        self._seen: list[list[Any]] = [[] for _ in self._spaces]
        # Changes of a mixin that is not a Function are not counted.
        self._is_told = all(isinstance(c, FunctionMeta) for c in cls.__mro__ if c not in (Options, object))
        self._changes = -1
        self._definition: Definition | None = None
        self._signature: tuple[Any, ...] = ()
        self._check()

    def find(self, name: str) -> Callable[..., Any] | None:
        """Return a method of the class, or None; those of `base` are skipped, those of a mixin after it are not."""
        for space in self._spaces:
            if name in space:
                method = space[name]
                return method.__get__(None, self._cls) if hasattr(method, "__get__") else method  # type: ignore[no-any-return]  # of a class's dict
        return None

    def read(self) -> Definition:
        """Return the current definition of the class."""
        self._look()
        if self._definition is None or self._signature != _signature(self._definition.forward):
            self._definition = self._define()
            self._signature = _signature(self._definition.forward)
        return self._definition

    def _look(self) -> None:
        """Drop the cached definition if the members of the class have changed."""
        if self._changes == FunctionMeta.changes:
            return
        if self._is_told:  # then nothing needs to be compared until the count changes again
            self._changes = FunctionMeta.changes
        for space, seen in zip(self._spaces, self._seen, strict=True):
            now = [*space.values()]
            if len(now) != len(seen) or not all(map(operator.is_, now, seen)):
                self._seen = [[*space.values()] for space in self._spaces]
                self._definition = None
                return

    def _define(self) -> Definition:
        cls, forward, setup_context = self._cls, self.find("forward"), self.find("setup_context")
        if forward is None:
            raise missing_forward(cls.__name__)
        return Definition(
            name=cls.__name__,
            options=cls,
            ctx=cls._ctx,
            forward=forward,
            parameters=parameters_of(forward, takes_ctx=setup_context is None),
            setup_context=setup_context,
            backward=self.find("backward") or self.find("vjp"),
            jvp=self.find("jvp"),
            vmap=self.find("vmap"),
        )

    def _check(self) -> None:
        cls, name, forward, own = self._cls, self._cls.__name__, self.find("forward"), vars(self._cls)
        if forward is not None and self.find("setup_context") is not None:
            parameters = parameters_of(forward, takes_ctx=False).names
            if parameters[:1] == ("ctx",):
                raise mixed_styles(forward, name, parameters[-1])
        if "backward" in own and "vjp" in own and own["backward"] is not own["vjp"]:
            raise backward_and_vjp(self.find("vjp"), name)
        for option, default in vars(Options).items():
            value = getattr(cls, option)
            if isinstance(default, bool) and not isinstance(value, bool):
                raise no_bool_option(name, option, value)


def _signature(method: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the code and defaults of a function: tools that reload modules replace these in the same object."""
    function = getattr(method, "__func__", method)
    return getattr(function, "__code__", None), getattr(function, "__defaults__", None)
