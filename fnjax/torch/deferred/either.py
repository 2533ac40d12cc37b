"""One of two values, selected by a traced test: equal properties are concrete, others are merged or refused."""

from __future__ import annotations

import collections
import contextlib
import copy
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, ClassVar

import jax

from fnjax._torch_ops.syntax.trees import RUNTIME
from fnjax.torch.deferred.base import ARITHMETIC, COMPARISONS, UNARY, USES, Deferred, is_own
from fnjax.torch.deferred.origins import AND, BRANCH, NOT, OR
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.recording.blocks import setting
from fnjax.torch.recording.graph import Value, are_same

_Test = Value | bool
_assumed: ContextVar[tuple[tuple[_Test, bool], ...]] = ContextVar("_assumed", default=())


@contextlib.contextmanager
def assuming(test: Value, truth: bool) -> Iterator[None]:
    """Assume in a block, the branch of a test, that the test is true, or false."""
    with setting(_assumed, _assumed.get()):
        assume(test, truth)
        yield


def assuming_nothing() -> AbstractContextManager[Any]:
    """Forget in a block what is assumed around it."""
    return setting(_assumed, ())


def assume(test: Value, truth: bool) -> None:
    """Assume that a test is true, or false, until the end of the innermost block in which something is assumed."""
    _assumed.set((*_assumed.get(), *_list_facts(test, truth)))


def _list_facts(test: _Test, truth: bool) -> list[tuple[_Test, bool]]:
    """Return the values that are true or false if a test is: for `a and b` that is true, also those of a and b."""
    kind, *parts = (None,) if isinstance(test, bool) or test.origin is None else test.origin
    if kind == NOT:
        return _list_facts(parts[0], not truth)
    if kind == (AND if truth else OR):
        return [(test, truth), *(fact for part in parts for fact in _list_facts(part, truth))]
    return [(test, truth)]


def find_truth(test: Value) -> bool | None:
    """Return the truth of a test in the branches that are traced; None if they do not decide it."""
    facts = _assumed.get()
    if not facts:
        return None
    found = _derive(test, facts)
    if found is None:
        possible = [truth for truth in (True, False) if _is_possible(_list_facts(test, truth), facts)]
        return possible[0] if len(possible) == 1 else None
    return found


def _derive(test: _Test, facts: Sequence[tuple[_Test, bool]], is_known: bool = False) -> bool | None:
    """Return the truth of a test that follows from facts, or from the values that it is made of.

    Args:
        test: the test.
        facts: values and their truth.
        is_known: whether the test is itself one of the facts, which is passed over.
    """
    for assumed, truth in () if is_known else facts:
        if are_same(assumed, test):
            return truth
    if isinstance(test, bool):
        return test
    kind, *parts = (None,) if test.origin is None else test.origin
    if kind not in {NOT, AND, OR, BRANCH}:
        return None
    first = _derive(parts[0], facts)
    if kind == NOT:
        return None if first is None else not first
    if kind == BRANCH:
        sides = parts[1:] if first is None else parts[1:2] if first else parts[2:]
        found = {_derive(side, facts) for side in sides}
        return found.pop() if len(found) == 1 else None
    second, end = _derive(parts[1], facts), kind == OR
    return end if end in {first, second} else None if None in {first, second} else not end


def _is_possible(new: Sequence[tuple[_Test, bool]], facts: Sequence[tuple[_Test, bool]]) -> bool:
    """Return whether new facts do not contradict known ones."""
    every = (*new, *facts)
    return all(_derive(value, every, is_known=True) in {None, truth} for value, truth in facts)


class Either(Deferred):
    """One of two values, as `mode` after `if test: mode = "sum"`, or `low` after `if test: low = x.min()`.

    Operators, comparisons and calls run on both, and their results are merged: into a plain value where two tensors
    have the same shape and dtype, or two values are equal. In a branch of the same test it is the value of that branch.

    Args:
        name: the name of the variable, for messages.
        test: a traced bool.
        yes: the value where it is true.
        no: the value where it is false.
        fork: returns, for the exception of a use, the signal to run the function for both values of the test, where
            that is possible (paths.Fork).

    Attributes:
        choose: (test, function, function) → the merged result of two functions (branches.if_).
    """

    __slots__ = ("fork", "name", "no", "test", "yes")
    choose: ClassVar[Callable[[Any, Callable[[], Any], Callable[[], Any]], Any]]

    def __init__(
        self, name: str, test: Any, yes: Any, no: Any, fork: Callable[[NotSupported], BaseException] | None = None
    ) -> None:
        self.name, self.test, self.yes, self.no, self.fork = name, test, yes, no, fork

    def list_values(self) -> list[Any]:
        """Return both values, or the one of the branch that is traced."""
        truth = find_truth(self.test.value)
        return [self.yes, self.no] if truth is None else [resolve(self.yes if truth else self.no)]

    def _list_leaves(self) -> list[Any]:
        """Return the values; in place of one that is an Either, its values."""
        return [leaf for x in self.list_values() for leaf in (x._list_leaves() if type(x) is Either else [x])]

    def refuse(self, use: str = "") -> BaseException:
        """Return the exception for a use that needs to know which value it is."""
        error = self._make_error(use)
        return error if self.fork is None else self.fork(error)

    def _make_error(self, use: str) -> NotSupported:
        a, b = self.yes, self.no
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            what = "dtype" if a.dtype is not b.dtype else "shape"
            sides = [x.dtype if a.dtype is not b.dtype else tuple(x.shape) for x in (a, b)]
            text = f"{self.name} has the {what} {sides[0]} in one branch and {sides[1]} in the other"
        else:
            text = f"{self.name} is {describe(a)} in one branch and {describe(b)} in the other"
        remedy = "give it tensors of one shape and dtype, or numbers, in both branches"
        if not any(isinstance(x, (Tensor, int, float, complex, Deferred)) for x in (a, b)):
            remedy = (
                "ask it by ==, is, in, isinstance or `if`, which are evaluated on both, or assign one value in both"
            )
        return NotSupported(
            f"{text}, and JAX decides which{f': {use} needs to know it' if use else ''}",
            f"{remedy}; or decide outside of jax.jit",
        )

    def map(self, function: Callable[[Any], Any], use: str = "") -> Any:
        """Return the merged result of a function of both values; it is mapped over a value that is an Either."""

        def run(value: Any) -> Any:
            if type(value) is Either:
                return value.map(function, use)
            try:
                return function(value)
            except NotSupported:
                raise
            except Exception as e:
                raise self._make_error(use) from e

        values = self.list_values()
        if len(values) == 1:
            return run(values[0]) if type(values[0]) is Either else function(values[0])
        found = Either.choose(self.test, lambda: run(self.yes), lambda: run(self.no))
        if type(found) is Either:
            found.name = f"a result of {self.name}"
        return found

    def ask(self, function: Callable[[Any], Any], use: str) -> Any:
        """Return the result of a function that must be equal for both values.

        Raises:
            NotSupported: the results differ.
        """
        found = [function(x) for x in self.list_values()]
        if any(type(f) is not type(found[0]) or f != found[0] for f in found):
            raise self.refuse(use)
        return found[0]

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute of both values; to fnjax's own code, those of the Either."""
        space = sys._getframe(1).f_globals
        if name in _FACTS and RUNTIME in space:
            return Either.map(self, lambda x: getattr(x, name), f"the attribute {name}")
        if name == "__class__" and not is_own(space):  # functools.singledispatch
            return self.ask(lambda x: x.__class__, "the type")
        is_plain = name.startswith("__") or _is_fnjax(space)
        return object.__getattribute__(self, name) if is_plain else Either.__getattr__(self, name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if all(_is_method(x, name) for x in self._list_leaves()):
            return lambda *args, **kwargs: distribute(
                lambda x, *rest, **named: getattr(x, name)(*rest, **named), (self, *args), kwargs
            )
        return self.map(lambda x: getattr(x, name), f"the attribute {name}")

    def __setattr__(self, name: str, value: Any) -> None:
        if _is_fnjax(sys._getframe(1).f_globals):
            object.__setattr__(self, name, value)
        else:
            self.map(lambda x: setattr(x, name, resolve(value)), f"a write to the attribute {name}")

    def __getitem__(self, index: Any) -> Any:
        return self.map(lambda x: x[index], "[...]")

    def __iter__(self) -> Iterator[Any]:
        values, leaves = self.list_values(), self._list_leaves()
        if len(values) == 1:
            return iter(values[0])
        if not all(isinstance(x, _SIZED) and len(x) == len(leaves[0]) for x in leaves):
            raise self.refuse("iteration")
        columns = (lambda x, i=i: [*x][i] for i in range(len(leaves[0])))
        return iter([self.map(column, "iteration") for column in columns])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call both."""
        return self.map(lambda x: x(*args, **kwargs), "a call")

    def __copy__(self) -> Any:
        return self.map(copy.copy, "a copy")

    def __deepcopy__(self, memo: Any) -> Any:
        return self.map(lambda x: copy.deepcopy(x, memo), "a copy")

    def __bool__(self) -> bool:
        return bool(self.ask(bool, "the truth"))

    def __len__(self) -> int:
        return int(self.ask(len, "len()"))

    def __repr__(self) -> str:
        return f"<{self.name}: {describe(self.yes)} or {describe(self.no)}>"


_SIZED: Any = list, tuple, dict, collections.deque, type({}.keys()), type({}.values()), type({}.items())
_FACTS = frozenset({"__class__", "__dict__", "__doc__", "__module__", "__name__", "__qualname__"})


def _is_fnjax(space: Mapping[str, Any]) -> bool:
    return str(space.get("__name__")).startswith("fnjax.")


def _is_method(value: Any, name: str) -> bool:
    """Return whether an attribute is a method of the class, and not an attribute of the object."""
    kind = value if isinstance(value, type) else type(value)
    return name not in getattr(value, "__dict__", ()) and callable(getattr(kind, name, None))


def note_choice(tensor: Tensor, choice: Either) -> None:
    """Keep with a merged tensor the Either that it came from, of a tensor and a number, for checks of its type."""
    vars(tensor)["choice"] = choice


def find_choice(value: Any) -> Any:
    """Return the Either from which a tensor was merged that may be a number; other values unchanged."""
    return vars(value).get("choice", value) if type(value) is Tensor else value


def resolve(value: Any) -> Any:
    """Return the value of an Either that the traced branch decides; other values unchanged."""
    if type(value) is not Either or not _assumed.get():
        return value
    sides = value.list_values()
    if len(sides) == 1:
        return sides[0]
    if Either not in {*map(type, sides)}:
        return value
    for k, truth in enumerate((True, False)):
        with assuming(value.test.value, truth):
            sides[k] = resolve(sides[k])
    is_one = sides[0] is value.yes and sides[1] is value.no
    return value if is_one else Either.choose(value.test, lambda: sides[0], lambda: sides[1])


_SHOWN = (str, bytes, bool, int, float, complex, type(None), type)


def describe(value: Any) -> str:
    """Return a description of a value for messages."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Deferred):
        return repr(value)
    return type(value).__name__ + (f" {value!r}" if isinstance(value, _SHOWN) else "")


def distribute(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return `function(*args, **kwargs)`, merged over the values of each Either among the arguments."""
    given: list[tuple[Any, Any]] = [*enumerate(args), *kwargs.items()]
    at, either = next(((k, x) for k, x in given if type(x) is Either), (None, None))
    if either is not None:
        return either.map(
            lambda v: distribute(
                function,
                [v if i == at else x for i, x in enumerate(args)],
                {k: v if k == at else x for k, x in kwargs.items()},
            )
        )
    return function(*args, **kwargs)


def _install(name: str, function: Callable[..., Any]) -> None:
    def call(self: Either, *others: Any) -> Any:
        return self.map(lambda x: function(x, *map(resolve, others)), USES[name])

    setattr(Either, f"__{name}__", call)


for _name in ARITHMETIC:
    _function = getattr(operator, f"__{_name}__")
    _install(_name, _function)
    _install(f"r{_name}", lambda x, other, f=_function: f(other, x))
    _install(f"i{_name}", getattr(operator, f"__i{_name}__"))
for _name in (*COMPARISONS, *UNARY, "setitem", "delitem"):
    _install(_name, getattr(operator, f"__{_name}__"))

jax.tree_util.register_pytree_node(
    Either, lambda x: ((x.test, x.yes, x.no), x.name), lambda name, values: Either(name, *values)
)
