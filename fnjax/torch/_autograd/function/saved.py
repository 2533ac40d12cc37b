"""Values that forward's ctx saves for backward: arrays, and the static values that are needed to rebuild tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.torch._autograd.arrays import Kind, is_constant, kind_of, wrap_array
from fnjax.torch._autograd.function.call import Call
from fnjax.torch._autograd.function.captured import Held, Reachable, hold, is_node, reach
from fnjax.torch._autograd.function.ctx import FunctionCtx, list_sometimes, read_attributes
from fnjax.torch._autograd.function.kept_memory import Kept, list_kept
from fnjax.torch._autograd.kept_graph import KeptGraph, keep_graph
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.origins import are_one
from fnjax.torch.memory.dtypes import dtype
from fnjax.torch.memory.layout import are_same, make_layout, offset_of, show_flat
from fnjax.torch.memory.strides import strides_of
from fnjax.torch.memory.tensor import Detached, Tensor, is_known, make
from fnjax.torch.names.process_groups import get_default
from fnjax.torch.recording.storage import LostValue, Storage, find_root, substitutes


class OnCtx(NamedTuple):
    """Placeholder among the saved tensors for a value that is saved as an attribute of ctx."""

    name: str


class SharedView(NamedTuple):
    """Tensor on ctx, as a view of memory that other tensors on ctx share.

    Attributes:
        at: the index of the tensor among the tensors on ctx.
        owner: the index of the tensor that covers all of the memory; None if no tensor on ctx does.
        offset: the index of its first element in the memory.
        shape: its shape.
        strides: its strides.
        is_detached: whether it is a constant of derivatives.
    """

    at: int
    owner: int | None
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_detached: bool


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Saved:
    """Contents of forward's ctx other than arrays."""

    kinds: tuple[Kind | Held | Tensor | OnCtx | None, ...]  # a tensor where it is not traced
    forward: tuple[Kind | None, ...]  # of the tensors for jvp
    reachable: tuple[Reachable, ...]
    modules: list[tuple[Any, dict[str, Any]]]  # on ctx, with their attributes after forward
    results: tuple[dtype | None, ...]
    attributes: frozenset[str]
    constant: dict[int | str, int]  # of saved tensors and attributes that are arguments without a gradient: of which
    axis: str | None  # that was the default process group
    graph: KeptGraph | None  # that backward may differentiate
    sometimes: tuple[str, ...]  # the attributes that only one of two traced branches has set
    instead: dict[int, int]  # of a saved tensor the place of a mask, where it is the output that is saved next to that
    shared_views: tuple[SharedView, ...]
    kept: tuple[Kept, ...]


class ForwardCtx(NamedTuple):
    """The ctx of a forward that ran outside of JAX's transformations: first derivatives find the same object.

    Attributes:
        own: the ctx.
        facts: its contents other than arrays.
        on_ctx: the tensors on ctx, after forward.
        saved: what `save_for_backward` saved; results require grad.
    """

    own: FunctionCtx
    facts: Saved
    on_ctx: list[Tensor]
    saved: tuple[Any, ...]


def list_tensors(saved: Sequence[Any], attributes: dict[str, Any]) -> list[Tensor]:
    """Return the tensors on ctx, in an order that forward and backward share."""
    others = jax.tree.leaves(attributes, is_leaf=is_node) if attributes else ()
    return [t for t in (*saved, *others) if issubclass(type(t), Tensor)]  # not what a mask selects


def save(
    ctx: Any,
    own: FunctionCtx,
    tensors: list[Any],
    members: list[Any],
    call: Call | None = None,
    with_storages: bool = False,
) -> ForwardCtx:
    """Save the contents of a torch ctx on the core's ctx, as arrays and static values.

    Args:
        ctx: the core's ctx.
        own: the torch ctx, after forward.
        tensors: the arguments.
        members: the results.
        call: the call of apply; None of an operator.
        with_storages: whether to save the whole storages of saved views, too: a kernel may read next to a view.
    """
    recorded = own._fnjax_record
    needs = recorded.needs
    any_needed = any(map(bool, needs))
    outputs = {id(m) for m in members}
    given = zip(tensors, needs, strict=False)
    constant = {
        id(t): i for i, (t, need) in enumerate(given) if isinstance(t, Tensor) and not need and id(t) not in outputs
    }
    attributes = read_attributes(own)
    elsewhere = {i: f"_saved_{i}" for i, x in enumerate(recorded.to_save) if isinstance(x, Deferred)}  # no arrays
    attributes |= {name: recorded.to_save[i] for i, name in elsewhere.items()}
    saved: Any = tuple(OnCtx(elsewhere[i]) if i in elsewhere else x for i, x in enumerate(recorded.to_save))
    views = [t for t in saved if with_storages and isinstance(t, Tensor) and not t.part]
    wholes = {id(t.memory): t for t in views if t.layout.size < t.memory.layout.size}
    for i, t in enumerate(wholes.values()):
        attributes[f"_storage_{i}"] = Tensor.over(t.memory, t.memory.layout, t.dtype)
    modules: list[Any] = []
    objects = set[int]()
    reachable: list[Reachable] = []
    if call is not None:
        values = attributes.values()
        contents, leaves = (reach(values, whole=True), reach(values, modules)) if attributes else ([], [])
        memories = {id(t.memory) for t in contents}
        inputs = [
            (i, tensors[i], id(tensors[i].memory) in call.enclosed)
            for i, find in enumerate(call.objects)
            if find is not None and find() is tensors[i]
        ]
        if memories & call.enclosed or leaves or any(i >= len(tensors) - call.reached and not c for i, _, c in inputs):
            inputs = [(i, t, c) for i, t, c in inputs if not c or id(t.memory) in memories]
            reachable = [Reachable(i, t, t.requires_grad, t.dtype) for i, t, _ in inputs]
        objects = {id(k.tensor) for k in reachable}
        objects |= {id(t) for t in contents if id(t.memory) in call.enclosed or _is_older(t, call)}
    instead = dict[int, int]()
    for i, t in enumerate(saved):
        is_other = isinstance(t, Tensor) and t.dtype.kind in {"float", "complex"} and not {id(t)} & (outputs | objects)
        for m in members if is_other else ():
            alike = isinstance(m, Tensor) and m.layout.shape == t.layout.shape and m.dtype is t.dtype
            one = alike and are_one(t.value, m.value)
            if one is not False:  # where the branches that were taken made them one, t is an output
                instead[i] = len(saved)
                saved = (*saved, make(jnp.asarray(one)), m)
                break
    kinds = tuple(
        Held(t)
        if id(t) in objects
        else t
        if t is None or isinstance(t, OnCtx) or is_constant(t)
        else kind_of(t, t.value.requires_grad or (id(t) in outputs and any_needed))
        for t in saved
    )
    arrays = [  # what detach() made has the array itself outside of JAX's traces, and is a constant in them
        jax.lax.stop_gradient(jnp.copy(t.array)) if t._detached and is_known(t.array) else t.array
        for t, kind in zip(saved, kinds, strict=True)
        if isinstance(kind, Kind)
    ]
    held = {
        name: {k: hold(v, objects) for k, v in value.items()} if name == "saved_data" else hold(value, objects)
        for name, value in attributes.items()
    }
    for name, value in held.items():
        # A view of a caller's tensor, which has the array of the call only now, as a tensor of its own.
        setattr(ctx, name, jax.tree.map(_copy_replaced, value, is_leaf=is_node) if substitutes.get() else value)
    results = tuple(m.dtype if isinstance(m, Tensor) else None for m in members)
    on_ctx = list_tensors(recorded.to_save, held)
    roots = [find_root(t.memory) for t in on_ctx]
    graph = None
    if any(t.value.node is not None for t in on_ctx):
        graph, ctx._torch_pullback = keep_graph(on_ctx, [k.tensor for k in reachable])
    facts = Saved(
        kinds,
        tuple(None if t is None else kind_of(t) for t in recorded.to_save_forward),
        tuple(reachable),
        [(m, dict(vars(m))) for m in modules],
        results,
        frozenset(attributes),
        {
            **{k: constant[id(t)] for k, t in enumerate(recorded.to_save) if id(t) in constant},
            **{k: constant[id(v)] for k, v in attributes.items() if id(v) in constant},
        },
        get_default(),
        graph,
        tuple(list_sometimes(own) if hasattr(own, "_fnjax_sometimes") else ()),
        instead,
        () if call is None else tuple(find_shared_views(on_ctx, roots, objects, graph is not None)),
        () if call is None else list_kept(on_ctx, roots, call.owners, tensors, members),
    )
    ctx._fnjax_record = recorded._replace(
        to_save=(*arrays, *(k.tensor.array for k in reachable)),
        to_save_forward=tuple(None if t is None else t.array for t in recorded.to_save_forward),
        non_differentiable=tuple(t.array for t in recorded.non_differentiable),
        facts=facts,
    )
    known = recorded.to_save
    if call is not None and call.is_eager:
        known = tuple(
            wrap_array(t.array, k) if isinstance(k, Kind) and k.requires_grad and not t.requires_grad else t
            for t, k in zip(known, kinds, strict=False)
        )
    return ForwardCtx(own, facts, on_ctx, known)


def _is_older(tensor: Tensor, call: Call) -> bool:
    """Return whether a tensor is older than a call and has concrete values: backward can have the object itself."""
    replaced = substitutes.get()
    return all(
        r.serial < call.serial and id(r) not in replaced and (isinstance(r.value, LostValue) or is_known(r.value.array))
        for r in tensor.memory.roots
    )


def _copy_replaced(x: Any) -> Any:
    is_replaced = issubclass(type(x), Tensor) and any(id(root) in substitutes.get() for root in x.memory.roots)
    return wrap_array(x.array, kind_of(x)) if is_replaced else x


def find_shared_views(
    tensors: Sequence[Tensor], roots: Sequence[Storage], objects: set[int], has_graph: bool
) -> Iterator[SharedView]:
    """Yield the views of tensors on ctx that share memory, or are not contiguous; the owner's comes first.

    Args:
        tensors: the tensors on ctx.
        roots: their storages.
        objects: the ids of the tensors that backward receives by reference.
        has_graph: whether some tensors are results of a recorded graph, which has arrays of its own.
    """
    groups: dict[int, list[int]] = {}
    for i, (t, root) in enumerate(zip(tensors, roots, strict=True)):
        if id(t) not in objects and not is_constant(t):
            groups.setdefault(id(root), []).append(i)
    for group in groups.values():
        whole = [i for i in group if (t := tensors[i]).layout is t.memory.layout and not t.memory.is_chosen]
        whole.sort(key=lambda i: tensors[i]._detached is not None)
        for i in sorted(group, key=lambda i: i not in whole):
            t = tensors[i]
            fits = whole and tensors[whole[0]].memory is t.memory and not (t.part or (has_graph and len(group) > 1))
            if len(group) > 1 or (fits and strides_of(t.layout) is not None):
                offset = offset_of(t.layout)
                owner, is_detached = whole[0] if fits else None, t._detached is not None
                yield SharedView(i, owner, offset, t.layout.shape, t.layout.strides, is_detached)


def restore_shared_views(views: Sequence[SharedView], tensors: Sequence[Tensor]) -> None:
    """Make tensors on backward's ctx share memory as they did in forward; refuse writes where that is not possible."""
    for at, owner, offset, shape, strides, is_detached in views:
        t = tensors[at]
        if owner is None:
            t.memory.shared = "a write in backward to one of several tensors on ctx that share memory"
        elif owner == at:
            t.layout = t.memory.layout = make_layout(shape, strides)
        else:
            t.memory, t._detached = tensors[owner].memory, Detached() if is_detached else None
            t.layout = np.lib.stride_tricks.as_strided(show_flat(t.memory.layout)[offset:], shape, strides)
            t.layout = t.memory.layout if are_same(t.layout, t.memory.layout) else t.layout
        t._cached = None
