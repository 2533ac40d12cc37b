"""One call of apply, without its arrays: kinds, dtypes, indices."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fnjax._contexts import AUTOCAST, HOOKS
from fnjax._primitives.jax_internals import is_transformed
from fnjax.torch._autograd.arrays import Kind, kind_of
from fnjax.torch._autograd.function.captured import Draws, is_leaf
from fnjax.torch._autograd.function.ctx import FunctionCtx
from fnjax.torch._autograd.function.kept_memory import Memory
from fnjax.torch.memory.tensor import Tensor, make
from fnjax.torch.memory.trees import list_leaves, map_leaves
from fnjax.torch.recording.graph import SMALL, Value
from fnjax.torch.recording.journal import get_journal, next_serial
from fnjax.torch.recording.storage import find_root


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Constant:
    """Static argument: a tensor that is not traced, or a container of modules."""

    value: Any


class Run(NamedTuple):
    """One run of forward, to compare it with others.

    Attributes:
        numbers: the numbers and strings that it left on ctx.
        operations: the operations on traced tensors (`Value.origin`), and those of their arguments that are known.
        contents: the numbers in containers among its arguments, at its end.
    """

    numbers: dict[str, Any]
    operations: list[Any]
    contents: list[Any]


def describe_run(own: FunctionCtx, values: Iterable[Value], containers: Sequence[Any]) -> Run:
    """Return what a run of forward did.

    Args:
        own: the ctx, after forward.
        values: those that forward has read or returned.
        containers: the containers and objects among its arguments, after forward.
    """
    numbers = {k: v for k, v in vars(own).items() if type(v) in {bool, int, float, str}}
    origins = [v.origin for v in values if v.origin is not None and callable(v.origin[0])]  # not those of views
    contents = [x for x in list_leaves(containers) if type(x) in {bool, int, float}] if containers else []
    operations = [[_describe(x.array) if isinstance(x, Value) else x for x in origin] for origin in origins]
    return Run(numbers, operations, contents)


def _describe(array: Any) -> Any:
    """Return the elements of an array, or its shape if they are many; None if it is traced."""
    if isinstance(array, jax.core.Tracer):
        return None
    return array.shape if array.size > SMALL else np.asarray(array).tobytes()


class Call:
    """One call of apply without its arrays, and the structure of forward's result.

    The inputs are the arguments, and after them the captured tensors: those that forward or backward reaches without
    being passed them. Results are numbered -1, -2, ... where an index may also be that of an input.

    Attributes:
        kinds: for each input, the kind of the tensor; None for other values.
        results: for each member of forward's result, the kind of the tensor; None for other values.
        is_tuple: whether forward returned a tuple.
        reached: the number of captured tensors.
        enclosed: the ids of the memory of the inputs that are in containers, objects or closures among the arguments.
        serial: a serial number: memory with a smaller one is older than the call.
        needs: for each input, whether it requires grad; JAX says it of arrays.
        objects: for each input, a reference to the caller's tensor if modules or closures may refer to it, else None.
        changed: the indices of the inputs that forward wrote to; their arrays follow the results.
        dirty: the indices of the inputs that forward marked as dirty.
        returned: for each result, the index of the input that it is, if forward wrote to that input; else None.
        nested: the results that are containers of tensors, by their index: the container, and for each leaf the kind
            of the tensor, the index of the input that it is, or a constant.
        same: for each result that is not an input, the index of the last one that is the same object: only that has a
            gradient; for others their own.
        non_differentiable: the indices of the results that forward marked so.
        contained: the number of tensors in containers that are not inputs: the last results, without gradients.
        is_conditional: whether a traced test decides on a use of a result.
        lenders: for each result, the index of the input or earlier result whose memory it shares; else None.
        owners: by the ids of forward's storages the indices of the inputs and results.
        memories: the memory of the inputs and results that are tensors, by their indices.
        start: a serial number: storages with smaller ones are older than the program in which the call is made.
        runs: the first run of forward, by `needs_input_grad` if forward reads that.
        is_eager: whether the call is made outside of JAX's transformations.
        forward_ctx: the ctx of forward (`saved.ForwardCtx`), if the call is eager and differentiated; else None.
        constants: the indices of the arguments that are tensors and not traced.
        written_gradients: the gradients that backward has written to, by the indices of the results.
        altered: the attributes of ctx that backward changed when it ran last, outside of JAX's traces.
        draws: the stream of forward's random numbers, which are the same each time that forward runs.
        contexts: the blocks of autocast and the saved_tensors_hooks in which the call is made.
    """

    def __init__(
        self,
        kinds: list[Kind | None],
        kwargs: dict[str, Any],
        args: Sequence[Any],
        reached: int,
        draws: Draws,
        enclosed: set[int],
    ) -> None:
        self.kinds, self.kwargs, self.reached, self.draws, self.enclosed = kinds, kwargs, reached, draws, enclosed
        self.contexts = AUTOCAST.value, HOOKS.value
        first = len(args) - reached
        self.objects = [
            weakref.ref(a)  # JAX keeps this call longer than a trace and its values, as of copied modules
            if isinstance(a, Tensor)
            and (i >= first or is_leaf(a) or (id(a.memory) in enclosed and a.memory.layout is a.layout))
            else None
            for i, a in enumerate(args)
        ]
        self.serial = next_serial()
        self.needs = [kind is not None and kind.requires_grad for kind in kinds]
        self.constants = {i for i, a in enumerate(args) if isinstance(a, Constant) and isinstance(a.value, Tensor)}
        self.results: list[Kind | None] = []
        self.is_tuple = False
        self.changed: list[int] = []
        self.dirty: set[int] = set()
        self.returned: list[int | None] = []
        self.nested: dict[int, tuple[Any, list[Any]]] = {}
        self.same: list[int] = []
        self.non_differentiable: set[int] = set()
        self.contained = 0
        self.is_conditional = False
        self.lenders: list[int | None] = []
        self.owners: dict[int, int] = {}
        self.memories: dict[int, Memory] = {}
        journal = get_journal()
        self.start = next_serial() if journal is None else journal.program_start
        self.runs: dict[tuple[bool, ...] | None, Run] = {}
        self.is_eager = not is_transformed()
        self.forward_ctx: Any = None
        self.written_gradients: dict[int, Value] = {}
        self.altered: list[str] = []

    def note_results(
        self, own: FunctionCtx, tensors: Sequence[Any], members: Sequence[Any], written: list[int]
    ) -> dict[int, int]:
        """Record which inputs the results and the contents of ctx are; return the indices of the inputs by their ids.

        Args:
            own: the ctx, after forward.
            tensors: the inputs.
            members: the results.
            written: the indices of the inputs that forward wrote to.
        """
        inputs = {id(t): i for i, t in enumerate(tensors) if isinstance(t, Tensor)}
        self.changed = written
        self.dirty = {inputs[id(t)] for t in own._fnjax_record.dirty if id(t) in inputs}
        self.results = [kind_of(m, False) if isinstance(m, Tensor) else None for m in members]
        last = {id(m): i for i, m in enumerate(members)}
        self.same = [last[id(m)] if isinstance(m, Tensor) and id(m) not in inputs else i for i, m in enumerate(members)]
        constant = [id(x) for x in own._fnjax_record.non_differentiable]
        self.non_differentiable = {i for i, m in enumerate(members) if id(m) in constant}
        self.returned = [inputs[id(m)] if inputs.get(id(m)) in written else None for m in members]
        self.owners = owners = {id(find_root(t.memory)): i for i, t in enumerate(tensors) if isinstance(t, Tensor)}
        self.lenders = [
            owners.setdefault(id(find_root(m.memory)), -1 - i) if isinstance(m, Tensor) and target is None else None
            for i, (m, target) in enumerate(zip(members, self.returned, strict=True))
        ]
        return inputs

    def take_containers(self, members: list[Any], indices: Mapping[int, int]) -> list[Any]:
        """Replace the results that are containers of tensors by None; return the arrays of their tensors.

        Args:
            members: the results.
            indices: the indices of the inputs, by the ids of the tensors.
        """
        arrays: list[Any] = []
        for i, m in enumerate(members):
            leaves = [] if isinstance(m, Tensor) else list_leaves(m)
            if any(isinstance(x, Tensor) for x in leaves):
                parts = [indices.get(id(x), kind_of(x)) if isinstance(x, Tensor) else Constant(x) for x in leaves]
                arrays += [x.array for x, part in zip(leaves, parts, strict=True) if isinstance(part, Kind)]
                self.nested[i], members[i] = (m, parts), None
        self.contained = len(arrays)
        return arrays

    def fill_container(self, i: int, args: Sequence[Any], values: Iterator[Value]) -> Any:
        """Rebuild a result that is a container; its tensors have no gradient, as in PyTorch, unless they are inputs.

        Args:
            i: the index of the result.
            args: the arguments.
            values: the values of the tensors that are not inputs.
        """
        container, parts = self.nested[i]
        leaves = iter(
            [
                make(next(values).array, p.dtype) if isinstance(p, Kind) else args[p] if type(p) is int else p.value
                for p in parts
            ]
        )
        return map_leaves(lambda _: next(leaves), container)
