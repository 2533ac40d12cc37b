"""Values of tensors, and the graph of recorded operations (nodes) that autograd replays."""

from __future__ import annotations

import contextlib
import functools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import jax

from fnjax._contexts import AUTOCAST, HOOKS
from fnjax._primitives.jax_internals import find_program, find_trace, is_in_scope, is_transformed
from fnjax.torch.errors import NotSupported
from fnjax.torch.recording.blocks import setting
from fnjax.torch.recording.gradient_mode import Mode, get_mode, set_mode
from fnjax.torch.recording.journal import next_serial
from fnjax.torch.recording.rng import Stream

_watched: ContextVar[list[Value] | None] = ContextVar("_watched", default=None)
# Whether a gradient is computed that can be differentiated again: hooks then run again, on other arrays.
RECORDS_GRADIENTS: ContextVar[bool] = ContextVar("RECORDS_GRADIENTS", default=False)


@contextlib.contextmanager
def watch() -> Iterator[list[Value]]:
    """Collect the values that operations in the block read, if they require grad or are traced."""
    found: list[Value] = []
    token = _watched.set(found)
    try:
        yield found
    finally:
        _watched.reset(token)


def note_read(values: Iterable[Value]) -> None:
    """Add values to those that the enclosing `watch` collects."""
    found = _watched.get()
    if found is not None:
        found += values


SMALL = 256


def is_small(array: Any) -> bool:
    """Return whether an array has concrete values and is so small that it may be a constant of the program."""
    return not isinstance(array, jax.core.Tracer) and array.size <= SMALL


def resume_contexts(contexts: tuple[Any, Any]) -> AbstractContextManager[None]:
    """Return a context manager that restores the blocks of autocast and the saved_tensors_hooks of an earlier run."""
    same = contexts == (AUTOCAST.value, HOOKS.value)
    return contextlib.nullcontext() if same else _resume(*contexts)


@contextlib.contextmanager
def _resume(autocast: Any, hooks: Any) -> Iterator[None]:
    with AUTOCAST(autocast), HOOKS(hooks):
        yield


class Node:
    """An operation that was recorded.

    Attributes:
        function: arrays of the parents → tuple of arrays.
        parents: the values of its arguments.
        label: the name of its `grad_fn`.
        draws: the position of its random numbers in their stream, since a gradient runs it again; or None.
        contexts: the blocks of autocast and the saved_tensors_hooks in which it ran.
        reads: values of further arguments, which only its gradient reads: only second derivatives flow into them.
        kept: its results, the indices of the parents that require grad, and the function of jax.linearize; None if
            its gradient runs it again.
        serial: a number that is larger than those of all earlier nodes.
    """

    __slots__ = ("contexts", "draws", "function", "kept", "label", "parents", "reads", "serial")

    def __init__(
        self,
        function: Callable[..., tuple[Any, ...]],
        parents: Sequence[Value],
        name: str,
        draws: Stream | None = None,
        reads: Sequence[Value] = (),
    ) -> None:
        self.function, self.parents, self.label, self.draws = function, tuple(parents), name, draws
        self.contexts = AUTOCAST.value, HOOKS.value
        self.kept: tuple[Any, list[int], Any] | None = None
        self.reads, self.serial = tuple(reads), next_serial()

    def name(self) -> str:
        """Return PyTorch's name of the node, as far as it follows from that of the operation."""
        last = self.label.rpartition(".")[2]
        return last if last[:1].isupper() else f"{last.strip('_').title().replace('_', '')}Backward0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotSupported(
            f"grad_fn.{name}: the graph has no nodes that can be changed or read",
            "use register_hook or retain_grad of the tensor, and return what backward leaves on ctx",
        )


def list_nodes(roots: Iterable[Value], stop: set[int], *, whole: bool = False) -> list[Node]:
    """Return the nodes that computed values, parents first, up to the values in `stop`.

    Args:
        roots: the values.
        stop: the ids of the values whose nodes are left out.
        whole: whether to follow `Node.reads` as well as the parents.
    """
    order: list[Node] = []
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(v.node, False) for v in roots if v.node is not None and id(v) not in stop]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            before = (*node.parents, *node.reads) if whole else node.parents
            stack += [(p.node, False) for p in before if p.node is not None and id(p) not in stop]
    return order


def note_conditional(values: Iterable[Value], start: float = math.inf) -> None:
    """Mark values, and the values that they were computed from, as used only where a traced test has some result.

    Args:
        values: the values.
        start: the serial number of the first node of a branch: no gradient leaves one that is not taken (Branch).
    """
    waiting = [v for v in values if v.node is None or v.node.serial < start]
    while waiting:
        value = waiting.pop()
        if value.requires_grad and not value.is_conditional:
            value.is_conditional = True
            if value.call is not None:
                value.call.is_conditional = True
            waiting += () if value.node is None else value.node.parents


class Value:
    """Value of a tensor between two writes: an array, and the operation that computed it.

    Attributes:
        array: the array.
        node: the operation that computed it; None for a leaf and for a constant.
        index: which of the node's results it is.
        requires_grad: whether gradients flow into it.
        leaf: the tensor in whose `.grad` its gradient is accumulated, or None.
        hooks: the hooks of `register_hook` (`hooks.TensorHooks`), or None.
        source: for a leaf made by detach(), the array before it, which JAX would differentiate; else None.
        origin: for a traced array, the operation and its arguments, if known: equal origins mean equal arrays.
        call: the call of a Function, or of hooks, whose result it is; or None.
        is_conditional: whether a traced test decides on a use of the value.
    """

    __slots__ = (
        "__weakref__", "array", "call", "hooks", "index", "is_conditional", "leaf", "node", "origin", "requires_grad",
        "source",
    )  # fmt: skip
    call: Any
    hooks: Any
    source: Any
    origin: tuple[Any, ...] | None

    def __init__(
        self, array: Any, node: Node | None = None, index: int = 0, *, requires_grad: bool = False, leaf: Any = None
    ) -> None:
        self.array, self.node, self.index = array, node, index
        self.requires_grad, self.leaf, self.hooks, self.source, self.origin = requires_grad, leaf, None, None, None
        self.call, self.is_conditional = None, False


Kept = Value | weakref.ref[Value]


def keep(value: Value, *older: Any) -> Kept:
    """Return the reference by which a tensor caches its value: weak, unless its trace is one of `older`.

    The tensor may outlive the trace. While the value is used elsewhere it is found again, so that its identity is kept.
    """
    trace = find_trace(value.array)
    return value if any(trace is t for t in older) else weakref.ref(value)


def find_kept(kept: Kept) -> Value | None:
    """Return the value that a tensor has cached; None once its trace has ended."""
    if isinstance(kept, Value):
        return kept
    found = kept()
    return found if found is not None and is_in_scope(found.array) else None


def are_same(a: Any, b: Any, depth: int = 8) -> bool:
    """Return whether two values are known to have equal arrays: the same array, or equal origins."""
    if not isinstance(a, Value) or not isinstance(b, Value):
        return type(a) is type(b) and bool(a == b)
    if a.array is b.array:
        return True
    x, y = a.origin, b.origin
    if x is not None and x[0] == ENTERED:
        return are_same(x[1], b, depth)
    if y is not None and y[0] == ENTERED:
        return are_same(a, y[1], depth)
    if x is None or y is None or len(x) != len(y) or not depth:
        return False
    return all(are_same(p, q, depth - 1) for p, q in zip(x, y, strict=True))


ENTERED = "entered"  # of a value's origin, before that from outside of a branch
BRANCH: ContextVar[Branch | None] = ContextVar("BRANCH", default=None)  # the innermost one that is being traced


class Branch:
    """Context of a branch whose test is traced: no gradient flows out of a branch that is not taken.

    JAX computes the branch in any case, and its derivatives may be infinite or NaN (`if n > 0: x = x / n`), which a
    cotangent of zero does not mask.

    Args:
        test: the test.
        truth: whether the branch is taken where it is true.
    """

    def __init__(self, test: Value, truth: bool) -> None:
        self._test, self._truth = test, truth
        self._known: dict[tuple[int, bool], tuple[Value, Value]] = {}  # by its id a value, and that within
        self._program = find_program()

    @property
    def is_here(self) -> bool:
        """True in the program in which the branch began; False in the body of a JAX loop within it."""
        return find_program() is self._program

    def __enter__(self) -> None:
        outer = BRANCH.get()
        self._outer = outer if outer is not None and outer.is_here else None
        self._token = BRANCH.set(self)

    def __exit__(self, *_: object) -> None:
        BRANCH.reset(self._token)

    def excludes(self, other: Branch | None) -> bool:
        """Return whether this branch is not taken if another one is."""
        while other is not None:
            here: Branch | None = self
            while here is not None:
                if here._truth is not other._truth and are_same(here._test, other._test):
                    return True
                here = here._outer
            other = other._outer
        return False

    def enter(self, value: Value, mode: Mode) -> Value:
        """Return the value that the branch reads instead of a value from outside of it."""
        key = id(value), mode.enabled
        if key not in self._known:
            given = value if self._outer is None else self._outer.enter(value, mode)
            note_conditional([given])
            with setting(BRANCH, None):
                (found,) = compute(self._select, [self._test, given], "BranchBackward")
            found.origin = (ENTERED, value)
            self._known[key] = value, found
        return self._known[key][1]

    def add(self, values: Iterable[Value]) -> None:
        """Record values that were computed within the branch: `enter` returns them unchanged."""
        for value in values:
            self._known[id(value), True] = self._known[id(value), False] = value, value

    def _select(self, test: Any, x: Any) -> tuple[Any, ...]:
        constant = jax.lax.stop_gradient(x)
        return (jax.numpy.where(test != 0, *((x, constant) if self._truth else (constant, x))),)


def compute(
    function: Callable[..., Any],
    parents: Sequence[Value],
    name: str,
    *,
    differentiable: bool = True,
    reads: Sequence[Value] = (),
    runs_once: bool = False,
) -> list[Value]:
    """Run a function on arrays; record it if gradient mode is enabled.

    Args:
        function: arrays → tuple of arrays.
        parents: the values of its arguments.
        name: the name of the node, for `grad_fn`.
        differentiable: whether gradients flow through the function.
        reads: the values of further arguments, which only the function's gradient reads.
        runs_once: whether a first derivative must not run the function again, since it has effects or reads Python's
            state; under a transformation of JAX it does.

    Returns:
        A value for each result; constants of JAX's derivatives under torch.no_grad.
    """
    mode, branch = get_mode(), BRANCH.get()
    if (watched := _watched.get()) is not None:
        watched += [p for p in parents if p.requires_grad or isinstance(p.array, jax.core.Tracer)]
    if branch is not None and not mode.constant and branch.is_here:
        parents = [branch.enter(p, mode) if p.requires_grad else p for p in parents]
    arrays = [p.array for p in (*parents, *reads)]
    recorded = differentiable and mode.enabled and not mode.constant and any(p.requires_grad for p in parents)
    draws = Stream() if recorded else None
    at, linear = [], None
    if runs_once and recorded and not is_transformed():
        at = [i for i, p in enumerate(parents) if p.requires_grad]
        with set_mode(Mode(enabled=False)):
            called = functools.partial(_replace, function, arrays, at)
            results, linear = jax.linearize(called, *(arrays[i] for i in at))
    elif not any(isinstance(a, jax.core.Tracer) for a in arrays) and is_transformed() and all(map(is_small, arrays)):
        with jax.ensure_compile_time_eval():  # lengths, grids, shapes: what nobody traces stays known under jit
            results = function(*arrays)
    else:
        results = function(*arrays)
    if mode.constant or not differentiable:
        return [Value(jax.lax.stop_gradient(x)) for x in results]
    if draws is None:
        return [Value(x) for x in results]
    node = Node(function, parents, name, draws if draws.is_used else None, reads)
    node.kept = None if linear is None else (results, at, linear)
    inexact = jax.numpy.inexact
    found = [
        Value(x, node, i, requires_grad=True) if jax.numpy.issubdtype(x.dtype, inexact) else Value(x)
        for i, x in enumerate(results)
    ]
    if branch is not None and branch.is_here:
        branch.add(found)
    return found


def _replace(function: Callable[..., Any], arrays: Sequence[Any], at: Sequence[int], *new: Any) -> Any:
    """Call a function on arrays of which some are replaced."""
    given = dict(zip(at, new, strict=True))
    return tuple(function(*(given.get(i, a) for i, a in enumerate(arrays))))


def compute_view(function: Callable[..., Any], parents: Sequence[Value], is_recorded: bool = False) -> Value:
    """Return the value of a view, with its history, which does not depend on the gradient mode of its first read.

    Args:
        function: arrays → tuple of one array.
        parents: the values of its arguments.
        is_recorded: whether operations were recorded where the view was made.
    """
    mode = set_mode(Mode(enabled=True)) if is_recorded or get_mode().constant else contextlib.nullcontext()
    with setting(BRANCH, None), mode:  # the view may be older than the branch, and cache its value
        return compute(function, parents, "ViewBackward")[0]
