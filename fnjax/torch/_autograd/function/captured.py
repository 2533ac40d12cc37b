"""Tensors that a Function reaches without being passed them: a module's parameters and buffers, a closure's leaves.

A Function of arrays needs them as inputs: JAX differentiates inputs only, and when it runs backward the module holds
its own values again. What backward leaves in their `.grad` is then their gradient.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import types
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Self

import jax

from fnjax.torch._autograd.arrays import dtype_of
from fnjax.torch._autograd.function.ctx import is_written, mark
from fnjax.torch._autograd.function.substitution import substitute, substituting
from fnjax.torch.errors import NotSupported, find_definition
from fnjax.torch.memory.tensor import Tensor, is_known, make
from fnjax.torch.recording.journal import Journal
from fnjax.torch.recording.rng import Stream, seed
from fnjax.torch.recording.storage import LostValue


class Stateful:
    """Base of objects whose tensors a Function may reach: modules."""

    def list_tensors(self) -> list[Tensor]:
        """Return the tensors of the object."""
        raise NotImplementedError

    def list_modules(self) -> list[Any]:
        """Return the module and its submodules."""
        raise NotImplementedError


def is_node(value: Any) -> bool:
    """Return whether a value is a leaf of our pytrees: a tensor, or a module, which is a pytree to JAX's users only."""
    return isinstance(value, (Tensor, Stateful))


class NeedsInputs(Exception):  # noqa: N818 - a signal: the call starts again with these inputs
    """Signal that forward read or wrote tensors that are not among its inputs; without tensors, that it drew numbers.

    The call is repeated with these tensors, or the random key, as inputs.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__("a Function's forward reads other tensors, or draws, when it runs again for a gradient only")
        self.tensors = tensors


class Draws(Stream):
    """Stream of the random numbers of forward. A traced key is an operand: forward may run again after its trace ended.

    Attributes:
        operand: the key data of a traced key, once forward has drawn a number; None before.
    """

    operand: Tensor | None = None

    @contextlib.contextmanager
    def _resume(self, own: seed, key: Any, iteration: Any) -> Iterator[None]:
        if self.operand is not None:
            key = jax.random.wrap_key_data(self.operand.array, impl=self._impl)
        with super()._resume(own, key, iteration):
            yield

    def check(self) -> None:
        """Raise NeedsInputs if forward has drawn from a traced key that is not an operand yet."""
        if self.operand is None and self.has_drawn and isinstance(self.key, jax.core.Tracer):
            raise NeedsInputs([])

    def make_operand(self) -> Tensor:
        """Return the key data as a new operand; called outside of forward, whose trace ends earlier."""
        self.operand, self._impl = make(jax.random.key_data(self.key)), jax.random.key_impl(self.key)
        return self.operand

    def release(self) -> None:
        """Keep no traced key when the call has been made: JAX keeps the call longer than a trace."""
        if self.operand is not None:
            self.block = copy.copy(self.block)
            self.block._key = self.block._root = None  # type: ignore[union-attr] # it was drawn from
            self.operand.memory.value = LostValue()
        elif isinstance(self.key, jax.core.Tracer):
            self.block = None


class Held:
    """Wrapper of what ctx keeps by reference: backward receives the object itself, not a copy."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


@jax.tree_util.register_pytree_node_class
class HeldFunction:
    """Pytree of a function saved on ctx that closes over tensors: `ctx.grid = lambda meta: (q.shape[0],)`.

    Backward gets a function with the same code that closes over backward's tensors (`_rebuild`).

    Args:
        function: the function; the contents of its closure are not read.
        cells: the contents of its closure; modules and parameters are wrapped by `hold`.
    """

    def __init__(self, function: types.FunctionType, cells: Sequence[Any]) -> None:
        self.function, self.cells = function, cells

    def tree_flatten(self) -> tuple[Sequence[Any], types.FunctionType]:
        """Return the contents of the closure, and the function."""
        return self.cells, self.function

    @classmethod
    def tree_unflatten(cls, function: types.FunctionType, cells: Sequence[Any]) -> HeldFunction:
        """Return the pytree with other contents of the closure."""
        return cls(function, cells)


def _rebuild(function: types.FunctionType, contents: Sequence[Any]) -> types.FunctionType:
    """Return a function with the same code and other contents of its closure."""
    cells = tuple(types.CellType(c) for c in contents)
    made = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


class Reachable(NamedTuple):
    """Tensor that backward may read, although it is not passed to it.

    Attributes:
        at: the index of its array among the arrays of the call.
        tensor: the tensor.
        requires_grad: whether backward may return a gradient for it.
        dtype: torch's dtype of the array.
    """

    at: int
    tensor: Tensor
    requires_grad: bool
    dtype: Any


class Reached:
    """Context in which backward runs: the tensors that it reads hold the arrays of the call; their `.grad` is None."""

    def __init__(
        self,
        reachable: Sequence[Reachable],
        arrays: Iterable[Any],
        cls: Any,
        modules: Sequence[Any],
        constant: Sequence[tuple[Tensor, Any]],
        start: int | None,
    ) -> None:
        self._start = start
        self._reachable, self._arrays, self._modules = reachable, arrays, modules
        self._cls, self._name = cls, cls.__qualname__
        objects = {id(k.tensor) for k in reachable}
        self._constant = [(t, memory, mark(t)) for t, memory in constant if id(t) not in objects]

    def __enter__(self) -> Self:
        self._attributes, self._values, self._dtypes = [], list[Any](), list[Any]()
        for module, attributes in self._modules:
            own = vars(module)
            if own.keys() != attributes.keys() or any(own[k] is not v for k, v in attributes.items()):
                self._attributes.append((own, dict(own)))
                own.update(attributes)
        self._blocks = ExitStack()
        if self._reachable or self._start is not None:
            self._journal = self._blocks.enter_context(Journal(is_branch=False))
        if self._reachable:
            self._blocks.enter_context(substituting())
            self._dtypes = [k.tensor.dtype for k in self._reachable]
            for k, array in zip(self._reachable, self._arrays, strict=True):
                substitute(k.tensor, k.tensor.value.array if array is None else array, k.requires_grad, collect=True)
                if array is None:  # the value after a write is not known
                    k.tensor.memory.value = LostValue()
                if k.tensor.dtype is not k.dtype:
                    k.tensor.dtype = k.dtype
            self._values = [k.tensor.memory.value for k in self._reachable]
        return self

    def __exit__(self, *error: object) -> None:
        for own, attributes in self._attributes:
            own.clear()
            own.update(attributes)
        written_to = [(t, memory) for t, memory, before in self._constant if is_written(t, before)]
        if error[0] is None and not all(memory is not None and memory.write(t) for t, memory in written_to):
            warnings.warn(
                f"{self._name}.backward writes to an argument of forward where JAX traces it, or that was an array: "
                "the caller's tensor keeps its values; return the new array from a function of your own",
                UserWarning,
                stacklevel=2,
            )
        written = any(k.tensor.memory.value is not v for k, v in zip(self._reachable, self._values, strict=True))
        for k, before in zip(self._reachable, self._dtypes, strict=True):
            if k.tensor.dtype is not before:
                k.tensor.dtype = before
        self._blocks.close()
        if error[0] is not None:
            return
        if self._start is not None:
            self._refuse_lost(self._start)
        if written:
            warnings.warn(
                f"{self._name}.backward writes to a parameter or buffer that is not its argument: the write is taken "
                "back, since JAX runs backward when the new state has been returned",
                UserWarning,
                stacklevel=2,
            )

    def _refuse_lost(self, start: int) -> None:
        """Raise NotSupported if backward wrote a traced value to memory that is older than the program."""
        lost = [
            (storage, old)
            for storage, old in self._journal.storages.values()
            if storage.serial < start and storage.value is not old
        ]
        lost = [(s, old) for s, old in lost if is_known(old.array) and not is_known(s.value.array)]
        for storage, old in lost:
            storage.value = old
            storage.version += 1
        if lost:
            raise NotSupported(
                f"a write of {self._name}.backward to a tensor of shape {tuple(lost[0][1].array.shape)} from outside "
                "of the function that JAX traces: the new value would be lost",
                "return it as the gradient of an argument",
                find_definition([self._cls.backward]),
            )

    def take_gradients(self, found: list[Any], first: int, count: int) -> list[Any]:
        """Return the gradients of the tensors that are not arguments, which backward accumulated in `.grad`.

        Args:
            found: the gradients that backward returned. The `.grad` of a parameter among the arguments is added to its
                gradient here, in place.
            first: the number of arguments.
            count: the number of captured tensors.
        """
        captured: list[Any] = [None] * count
        for k in self._reachable:
            left = None if k.tensor.grad is None else k.tensor.grad.array
            if k.at >= first:
                captured[k.at - first] = left
            elif left is not None and k.at < len(found) and type(k.tensor) is not Tensor:  # a parameter
                found[k.at] = left if found[k.at] is None else found[k.at] + left
        return captured


def is_leaf(value: Any) -> bool:
    """Return whether a value is a leaf that requires grad: a tensor in whose `.grad` autograd accumulates."""
    if not issubclass(type(value), Tensor):  # or what a mask selects
        return False
    own = value.value
    return own.leaf is not None and own.node is None


def iterate(container: Any) -> list[Any]:
    """Return the members of a list, set or tuple; a subclass of tuple may have no length of its own."""
    return list(tuple.__iter__(container) if isinstance(container, tuple) else container)


PLAIN = (str, bytes, int, float, complex, type(None), type, types.ModuleType)


def reach(values: Iterable[Any], modules: list[Any] | None = None, *, whole: bool = False) -> list[Tensor]:
    """Return the tensors of modules, and the leaves, that are reachable by containers, methods, closures and objects.

    Args:
        values: the objects where the search begins.
        modules: a list to which the modules that are found are added.
        whole: whether to return views and computed tensors as well, and tensors that are attributes of modules.
    """
    found: dict[int, Tensor] = {}
    seen: set[int] = set()
    stack = [*values]
    while stack:
        value = stack.pop()
        if id(value) in seen or isinstance(value, PLAIN):
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            if (whole and issubclass(type(value), Tensor)) or is_leaf(value):  # not what a mask selects
                found[id(value)] = value
        elif isinstance(value, Stateful) and not whole:
            found |= {id(t): t for t in value.list_tensors()}
            if modules is not None:
                modules += value.list_modules()
        elif isinstance(value, dict):
            stack += value.values()
        elif isinstance(value, (list, tuple, set, frozenset, collections.deque)):
            stack += value if type(value) in {list, tuple} else iterate(value)
        elif isinstance(value, types.MethodType):
            stack += [value.__self__, value.__func__]
        elif isinstance(value, functools.partial):
            stack += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, types.FunctionType):
            for cell in value.__closure__ or ():
                try:
                    stack.append(cell.cell_contents)
                except ValueError:  # a variable without a value yet
                    continue
        elif isinstance(value, Stateful) or type(value).__module__.startswith("fnjax_loaded"):
            stack += [*vars(value).values()] if hasattr(value, "__dict__") else ()
    if whole:
        return [*found.values()]
    return [t for t in found.values() if t.layout is t.memory.layout and not t.part]


def list_enclosed(values: Iterable[Any]) -> list[Tensor]:
    """Return tensors that cover the memory of the tensors in containers, objects and closures, if JAX must see them."""
    found = {
        id(t.memory): t
        if t.layout is t.memory.layout and not t.part
        else Tensor.over(t.memory, t.memory.layout, dtype_of(t.memory.value.array))
        for t in reach(values, whole=True)
        if t.memory.roots == [t.memory]
        and not isinstance(value := t.memory.value, LostValue)
        and (value.requires_grad or not is_known(value.array))
    }
    return [*found.values()]


def _is_by_reference(value: Any, wanted: set[int]) -> bool:
    """Return whether a list or dict holds nothing but plain values, modules and tensors whose ids are wanted."""
    if isinstance(value, (list, tuple, dict)):
        return all(_is_by_reference(v, wanted) for v in (value.values() if isinstance(value, dict) else iterate(value)))
    return isinstance(value, (*PLAIN, Stateful)) or (isinstance(value, Tensor) and id(value) in wanted)


def hold(value: Any, wanted: set[int]) -> Any:
    """Return a value of ctx in which modules, tensors whose ids are wanted, and containers of these are `Held`."""
    is_container = type(value) in {list, dict}
    if (is_container or isinstance(value, (Stateful, Tensor))) and _is_by_reference(value, wanted):
        return Held(value)
    if isinstance(value, types.FunctionType) and value.__closure__:
        contents = [cell.cell_contents for cell in value.__closure__ if cell != types.CellType()]
        if len(contents) == len(value.__closure__) and not any(c is value for c in contents):
            cells = hold(contents, wanted)
            if isinstance(cells, Held):
                return Held(value)
            if any(isinstance(leaf, Tensor) for leaf in jax.tree.leaves(cells, is_leaf=is_node)):
                return HeldFunction(_rebuild(value, [None] * len(cells)), cells)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(hold(v, wanted) for v in value)
    if type(value) is dict:
        return {k: hold(v, wanted) for k, v in value.items()}
    return value


def release(value: Any, *, copies: bool = False) -> Any:
    """Return a value of ctx without the wrappers of `hold`; with `copies`, containers are not the caller's own."""
    if isinstance(value, Held):
        return release(value.value, copies=True) if copies and type(value.value) in {list, dict} else value.value
    if isinstance(value, HeldFunction):
        return _rebuild(value.function, release(list(value.cells), copies=copies))
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(release(v, copies=copies) for v in value)
    if type(value) is dict:
        return {k: release(v, copies=copies) for k, v in value.items()}
    return value
