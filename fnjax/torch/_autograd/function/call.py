"""One call of apply: its structure beside its arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fnjax._contexts import AUTOCAST
from fnjax.torch._autograd.arrays import Kind, kind_of
from fnjax.torch._autograd.function.captured import CALLABLE, Draws, is_leaf, reach
from fnjax.torch._autograd.function.contents import find_root
from fnjax.torch._autograd.function.ctx import FunctionCtx
from fnjax.torch.memory.tensor import Tensor, is_known, make
from fnjax.torch.memory.trees import list_leaves, map_leaves
from fnjax.torch.recording.graph import Guard, Value


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Constant:
    """Static argument: a tensor that is not traced, or a container of modules."""

    value: Any


class Call:
    """One call of apply without its arrays, and the structure of forward's result.

    Attributes:
        kinds: for each argument that is a tensor its kind, else None.
        results: for each member of forward's result its kind, None where it is not a tensor.
        is_tuple: whether forward returned a tuple.
        reached: how many tensors follow the arguments, which forward or backward reaches without being given them.
        needs: for each of both whether it is a tensor with values that requires grad; of a traced one JAX knows.
        objects: for each of both the tensor itself, where modules may reach it, or a closure that is an argument.
        changed: those that forward wrote to; their arrays follow the results.
        dirty: those that it marked as such.
        returned: for each result the argument that it is, after forward wrote to that.
        nested: each result that is a container of tensors, by its index, with its leaves: kinds of tensors, indices of
            arguments, and constants.
        contained: the number of tensors in these that are no arguments: the last results, without gradients.
        is_conditional: whether a traced test decides on a use of a result.
        lenders: for each result the argument with whose memory it shares, or an earlier result as -1, -2, ...
        kept: the names of attributes of ctx that are arguments, with their indices, or results as -1, -2, ..., and so
            the indices of the tensors that forward saved.
        guards: these with notes of a write to the memory of the argument or result.
        constants: the indices of the arguments that are tensors which are not traced.
        altered: the attributes of ctx that backward changed when it ran last, outside of JAX's traces.
        draws: the random numbers of forward, which it draws each time that it runs.
        autocast: the blocks of autocast in which it runs.
    """

    def __init__(
        self, kinds: list[Kind | None], kwargs: dict[str, Any], args: Sequence[Any], reached: int, draws: Draws
    ) -> None:
        self.kinds, self.kwargs, self.reached, self.draws = kinds, kwargs, reached, draws
        self.autocast = AUTOCAST.value
        first = len(args) - reached
        functions = [f for a in args if isinstance(f := a.value if isinstance(a, Constant) else a, CALLABLE)]
        closed_over = {id(t) for t in reach(functions, whole=True)} if functions else ()
        self.objects = [
            a
            if isinstance(a, Tensor)
            and (i >= first or is_leaf(a) or (id(a) in closed_over and a.memory.layout is a.layout))
            else None
            for i, a in enumerate(args)
        ]
        self.needs = [isinstance(a, Tensor) and a.requires_grad and is_known(a.array) for a in args]
        self.constants = {i for i, a in enumerate(args) if isinstance(a, Constant) and isinstance(a.value, Tensor)}
        self.results: list[Kind | None] = []
        self.is_tuple = False
        self.changed: list[int] = []
        self.dirty: set[int] = set()
        self.returned: list[int | None] = []
        self.nested: dict[int, tuple[Any, list[Any]]] = {}
        self.contained = 0
        self.is_conditional = False
        self.lenders: list[int | None] = []
        self.kept: dict[str | int, int] = {}
        self.guards: list[tuple[str | int, Guard]] = []
        self.altered: list[str] = []

    def note_results(
        self, own: FunctionCtx, tensors: Sequence[Any], members: Sequence[Any], written: list[int]
    ) -> dict[int, int]:
        """Note what the results and the attributes of ctx are; return the indices of the arguments by their ids.

        Args:
            own: the ctx, after forward.
            tensors: the arguments.
            members: the results.
            written: the indices of the arguments that forward wrote to.
        """
        inputs = {id(t): i for i, t in enumerate(tensors) if isinstance(t, Tensor)}
        self.changed = written
        self.dirty = {inputs[id(t)] for t in own._own["dirty"] if id(t) in inputs}
        self.results = [kind_of(m, False) if isinstance(m, Tensor) else None for m in members]
        self.returned = [inputs[id(m)] if inputs.get(id(m)) in written else None for m in members]
        own_tensors = {id(m): -1 - i for i, m in enumerate(members) if isinstance(m, Tensor)} | inputs
        kept: dict[Any, Any] = {**vars(own), **dict(enumerate(own._own["saved"]))}
        self.kept = {k: i for k, v in kept.items() if (i := own_tensors.get(id(v))) is not None}
        owners = {id(find_root(t.memory)): i for i, t in enumerate(tensors) if isinstance(t, Tensor)}
        self.lenders = [
            owners.setdefault(id(find_root(m.memory)), -1 - i) if isinstance(m, Tensor) and target is None else None
            for i, (m, target) in enumerate(zip(members, self.returned, strict=True))
        ]
        return inputs

    def take_containers(self, members: list[Any], indices: Mapping[int, int]) -> list[Any]:
        """Replace the results that are containers of tensors by None; return the arrays of those tensors.

        Args:
            members: the results.
            indices: of the arguments, by the ids of the tensors that these are.
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
        """Return a result that is a container; its tensors have no gradient, as in PyTorch, unless they are arguments.

        Args:
            i: the index of the result.
            args: the arguments.
            values: those of the tensors that are not arguments.
        """
        container, parts = self.nested[i]
        leaves = iter(
            [
                make(next(values).array, p.dtype) if isinstance(p, Kind) else args[p] if type(p) is int else p.value
                for p in parts
            ]
        )
        return map_leaves(lambda _: next(leaves), container)
