"""What a class says: its methods, flags and facts, looked up again whenever it has changed."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Hashable
from typing import Any

from fnjax._call.signature import parameters_of
from fnjax._errors import ArgumentError, DefinitionError, MissingMethodError, error, type_name
from fnjax._facts import facts
from fnjax._methods import Methods
from fnjax._uses import KINDS, is_counter

FLAGS = ("pytree", "derive_jvp", "generate_vmap_rule", "clear_saved_tensors_on_access", "boxed_grads_call")


class FunctionMeta(type):
    """The type of `Function`, as in PyTorch; it counts the changes of its classes."""

    changes = 0

    def __setattr__(cls, name: str, value: Any) -> None:
        FunctionMeta.changes += 1
        super().__setattr__(name, value)

    def __delattr__(cls, name: str) -> None:
        FunctionMeta.changes += 1
        super().__delattr__(name)


class Definition:
    """A class as it is written, itself and its bases without `base`; each look-up sees what changed since.

    Raises:
        FnjaxError: for what can be found wrong when the class is defined.
    """

    def __init__(self, cls: Any, base: type) -> None:
        self._cls = cls
        self._own = {name for name in base.__annotations__ if name.startswith("_")}  # what base keeps on cls
        self._spaces = [vars(c) for c in cls.__mro__ if c is not base and c is not object]
        self._seen: list[list[Any]] = [[] for _ in self._spaces]
        # A mixin that is no Function does not say when it changes.
        self._is_told = all(isinstance(c, FunctionMeta) for c in cls.__mro__ if c is not object)
        self._changes = -1
        self._methods: Methods | None = None
        self._signature: tuple[Any, ...] = ()
        self._check()

    def find(self, name: str) -> Callable[..., Any] | None:
        """A method of the class, not counting those of the base (a mixin may stand behind it)."""
        for space in self._spaces:
            if name in space:
                method = space[name]
                return method.__get__(None, self._cls) if hasattr(method, "__get__") else method  # type: ignore[no-any-return]
        return None

    def methods(self) -> Methods:
        """The class as the lowering sees it."""
        self._look()
        if self._methods is None or self._signature != _signature(self._methods.forward):
            self._methods = self._read()
            self._signature = _signature(self._methods.forward)
        return self._methods

    def facts(self) -> Hashable:
        """The key of all that the class says.

        Raises:
            NoFactsError: where some of it can change without notice.
        """
        found: list[Hashable] = []
        for space in self._spaces:
            for name, value in space.items():
                if name in self._own or name[:2] == name[-2:] == "__":
                    continue
                found += name, name if type(value) in KINDS and self._counts_in(name) else facts(value)
        return tuple(found)

    def _counts_in(self, name: str) -> bool:
        """Whether the methods only count in an attribute of this name."""
        functions = (getattr(v, "__func__", v) for space in self._spaces for v in space.values())
        return is_counter([f.__code__ for f in functions if isinstance(f, types.FunctionType)], name)

    def _look(self) -> None:
        """Forget what was found if the class has other members now."""
        if self._changes == FunctionMeta.changes:
            return
        if self._is_told:
            self._changes = FunctionMeta.changes
        for space, seen in zip(self._spaces, self._seen, strict=True):
            now = [*space.values()]
            if len(now) != len(seen) or not all(map(operator.is_, now, seen)):
                self._seen = [[*space.values()] for space in self._spaces]
                self._methods = None
                return

    def _read(self) -> Methods:
        cls, forward, setup_context = self._cls, self.find("forward"), self.find("setup_context")
        if forward is None:
            raise error(
                MissingMethodError,
                f"You must implement the forward function for custom autograd.Function. ({cls.__name__})",
                "no-forward",
                fix=f"add a static method forward(ctx, *args) to {cls.__name__}",
            )
        return Methods(
            name=cls.__name__,
            ctx=cls._ctx,
            forward=forward,
            parameters=parameters_of(forward, takes_ctx=setup_context is None),
            setup_context=setup_context,
            backward=self.find("backward") or self.find("vjp"),
            jvp=self.find("jvp"),
            vmap=self.find("vmap"),
            pytree=cls.pytree,
            single_access=cls.clear_saved_tensors_on_access,
            boxed=cls.boxed_grads_call,
            generate_vmap_rule=cls.generate_vmap_rule,
            checkpoint_name=cls.__name__ if cls.checkpoint_name is None else cls.checkpoint_name,
            derive_jvp=cls.derive_jvp,
        )

    def _check(self) -> None:
        cls, name, forward = self._cls, self._cls.__name__, self.find("forward")
        if forward is not None and self.find("setup_context") is not None:
            parameters = parameters_of(forward, takes_ctx=False).names
            if parameters[:1] == ("ctx",):
                raise error(
                    ArgumentError,
                    f"{name}.forward takes ctx, but {name} also has setup_context, so forward gets no ctx "
                    f"(missing a required argument: {parameters[-1]!r})",
                    "mixed-styles",
                    method=forward,
                    expected="forward(ctx, ...), or forward(...) with setup_context(ctx, inputs, output)",
                    fix="remove ctx from the parameters of forward and set it up in setup_context, or remove "
                    "setup_context",
                )
        if "backward" in vars(cls) and "vjp" in vars(cls) and vars(cls)["backward"] is not vars(cls)["vjp"]:
            raise error(
                DefinitionError,
                f"Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You should only "
                f"implement one of them. ({name})",
                "backward-and-vjp",
                method=self.find("vjp"),
                fix="remove one of them: vjp is another name for backward",
            )
        for flag in FLAGS:
            value = getattr(cls, flag)
            if not isinstance(value, bool):
                raise error(
                    DefinitionError,
                    f"{flag} must be a bool, got {type_name(value)} (class {name})",
                    "class-flags",
                    fix=f"write {flag} = True or False",
                )


def _signature(method: Callable[..., Any]) -> tuple[Any, ...]:
    """What a function may be given anew while it stays the same object."""
    function = getattr(method, "__func__", method)
    return getattr(function, "__code__", None), getattr(function, "__defaults__", None)
