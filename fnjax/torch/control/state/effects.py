"""Merging of the state that two traced branches have changed, place by place; other changes are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fnjax.torch._autograd.function.ctx import FunctionCtx, merge_records
from fnjax.torch.control.state.places import ENTRIES, ITEMS, TENSOR, UNBOUND, Content
from fnjax.torch.control.state.state import Place, State
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.tensor import Tensor

Merge = Callable[[Any, Any, str], Any]
_REMEDY = "assign new values to variables instead, do the same in both branches, or decide outside of jax.jit"
_SHOWN = ("memory", "layout", "dtype", "part", "_detached")


def merge_places(state: State, first: Mapping[int, Content], second: Mapping[int, Content], merge: Merge) -> None:
    """Write the merged contents into the places that either of two branches has changed.

    Args:
        state: the state before the branches.
        first: the contents that the first branch has changed.
        second: the contents that the second branch has changed.
        merge: (value, value, name) → the merged value.

    Raises:
        NotSupported: the contents cannot be merged: a list of two lengths, an iterator that has advanced.
    """

    def merge_all(is_tensor: bool) -> None:
        found = {}
        for i in sorted({*first, *second}):
            place = state.places[i]
            if (place.kind is TENSOR) is is_tensor:
                a, b = (side.get(i, place.content) for side in (first, second))
                found[i] = _merge_place(state, place, a, b, merge)
        state.put(found)

    merge_all(True)  # first, since other places may hold these tensors, and are merged by their values
    merge_all(False)


def check_kept(state: State, changed: Mapping[int, Content]) -> None:
    """Check that all places that a branch has changed could be restored, since the branch may not be taken.

    Raises:
        NotSupported: a place could not be restored.
    """
    for i in changed:
        place = state.places[i]
        if place.kind.write is None:
            _refuse(state, place, "is changed in one of two branches")


def describe_place(state: State, place: Place) -> str:
    """Return the name and type of a place's owner, for a message."""
    name, kind = state.name(place.owner), type(place.owner).__name__
    return name if name.endswith(kind) or " " in name else f"{name}, a {kind},"


def _refuse(state: State, place: Place, what: str) -> None:
    raise NotSupported(f"{describe_place(state, place)} {what}, and JAX decides which is taken", _REMEDY)


def _merge_place(state: State, place: Place, a: Content, b: Content, merge: Merge) -> Content:
    kind, owner = place.kind, place.owner
    if kind.write is None or (not kind.is_merged and not a.is_same(b)):
        _refuse(state, place, "is changed in one of two branches")
    if not kind.is_merged:
        return a
    if kind is TENSOR:
        return _merge_tensor(state, place, a, b, merge)
    is_ctx = isinstance(owner, FunctionCtx)
    yes, no = a.to_dict(), b.to_dict()
    keys = dict(zip((*yes, *no), (*a.keys, *b.keys), strict=True))
    if not (kind.is_lenient or is_ctx):
        other = next((keys[k] for k in keys if k not in yes or k not in no), None)
        if other is not None and kind is ITEMS:
            _refuse(state, place, f"has {len(yes)} items after one branch and {len(no)} after the other")
        if other is not None:
            _refuse(state, place, f"has {kind.label(other).lstrip('.')} after one of two branches")
        if kind is ENTRIES and [*yes] != [*no]:
            _refuse(state, place, "has its keys in another order after each of two branches")
    name = state.name(owner)
    values: list[Any] = []
    saves_in_one = False
    for key, plain in keys.items():
        x, y = yes.get(key, UNBOUND), no.get(key, UNBOUND)
        if is_ctx and plain == "_fnjax_record":
            values.append(merge_records(x, y, lambda v, w: merge(v, w, "a saved tensor")))
            saves_in_one = bool(x.to_save) is not bool(y.to_save)
        else:
            label = kind.label(plain)
            values.append(merge(x, y, f"{name}{label}" if name or label[:1] not in ".[" else label))
    if is_ctx:
        sometimes = {k: v for k, v in zip(keys.values(), values, strict=True) if k not in yes or k not in no}
        if saves_in_one:
            sometimes["saved_tensors"] = None
        owner._fnjax_sometimes = getattr(owner, "_fnjax_sometimes", {}) | sometimes
    return Content([*keys.values()], values)


def _merge_tensor(state: State, place: Place, a: Content, b: Content, merge: Merge) -> Content:
    """Return the merged attributes of a tensor that branches changed: by `.data = x`, `t_()`, or in `.grad`."""
    yes, no = a.to_dict(), b.to_dict()
    name = state.name(place.owner)
    merged = dict(yes)
    if any(yes[n] is not no[n] for n in yes if n != "grad"):
        sides = [
            Tensor.over(v["memory"], v["layout"], v["dtype"], v["part"], detached=v["_detached"]) for v in (yes, no)
        ]
        if sides[0].shape != sides[1].shape or sides[0].dtype is not sides[1].dtype:
            shapes = [f"shape {tuple(s.shape)} and {s.dtype}" for s in sides]
            _refuse(state, place, f"has the {shapes[0]} after one branch and the {shapes[1]} after the other")
        both = merge(sides[0], sides[1], name)
        merged |= {n: getattr(both, n) for n in _SHOWN}
    if yes["grad"] is not no["grad"]:
        merged["grad"] = merge(yes["grad"], no["grad"], f"{name}.grad")
    return Content([*merged], [*merged.values()])
