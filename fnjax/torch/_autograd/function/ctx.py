"""The ctx of a torch.autograd.Function's forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from fnjax._function import ctx as core
from fnjax._torch_ops.registry import known
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.recording.graph import Value


def mark(x: Any) -> list[Value]:
    """Return the values of a tensor's storages: a write replaces these objects, and undoing it restores them."""
    is_tensor = issubclass(type(x), Tensor)  # and not what a mask selects
    values = [root.value for root in x.memory.roots] if is_tensor else []
    return [v if v.hooks is None else v.hooks.base for v in values]  # a hook that is registered is no write


def is_written(x: Any, before: list[Value]) -> bool:
    """Return whether a tensor was written to since `mark` returned these values."""
    return any(a is not b for a, b in zip(mark(x), before, strict=False))  # twins may be gone


def read_attributes(own: core.FunctionCtx) -> dict[str, Any]:
    """Return the attributes that were set on ctx, and `saved_data` if there is something in it."""
    return {**vars(own), "saved_data": own.saved_data} if own.saved_data else {**vars(own)}


def list_contents(own: FunctionCtx) -> dict[str, list[Any]]:
    """Return for each attribute of ctx a list: the object, and its members, or the values of a tensor's storages."""
    return {
        k: [v, *(v.keys() if isinstance(v, dict) else ()), *_list_members(v)] for k, v in read_attributes(own).items()
    }


def _list_members(v: Any) -> list[Any]:
    if isinstance(v, (list, dict, set)):
        return [*(v.values() if isinstance(v, dict) else v)]
    return mark(v)


def find_altered(own: FunctionCtx, before: dict[str, list[Any]]) -> list[str]:
    """Return the attributes of ctx that were set or written to since `list_contents`."""
    now = list_contents(own)
    return [k for k in before | now if [*map(id, before.get(k, []))] != [*map(id, now.get(k, []))]]


@known("torch.autograd.function.FunctionCtx", "torch.autograd.function.BackwardCFunction")
class FunctionCtx(core.FunctionCtx):
    """The ctx of forward and backward: the core's, which has tensors here."""

    # Set once `needs_input_grad` was read; and the attributes that only one of two traced branches has set.
    __slots__ = ("_fnjax_has_read_needs", "_fnjax_sometimes")

    @core.FunctionCtx.needs_input_grad.getter  # type: ignore[attr-defined, untyped-decorator] # it is a property
    def needs_input_grad(self) -> core.NeedsInputGrad:
        """For each argument, whether it requires grad."""
        self._fnjax_has_read_needs = True
        return self._fnjax_record.needs

    def save_for_backward(self, *tensors: Any) -> None:
        """Save tensors or None for backward, which gets the values that they have at the end of forward."""
        for i, x in enumerate(tensors):
            if not (x is None or isinstance(x, (Tensor, Deferred))):
                raise core.refuse_saved(self, i, x)
        self._fnjax_record = self._fnjax_record._replace(to_save=tensors)


class SavedInOneBranch(tuple[Any, ...]):
    """The saved tensors where only one of two traced branches has saved: they unpack, but nobody knows how many."""

    __slots__ = ()

    def _refuse(self, *_: object) -> NoReturn:
        raise NotSupported(
            "tensors are saved in one branch alone, JAX decides which, and backward asks how many there are",
            "save as many in both, None in the place of those that one does not need; or test an attribute of ctx",
        )

    __len__ = __bool__ = __eq__ = __ne__ = __hash__ = _refuse


def list_sometimes(own: FunctionCtx) -> list[str]:
    """Return what only one of two traced branches has set: attributes, and `saved_tensors`."""
    return [k for k, v in getattr(own, "_fnjax_sometimes", {}).items() if vars(own).get(k) is v]


def merge_records(a: core.Record, b: core.Record, merge: Callable[[Any, Any], Any]) -> core.Record:
    """Return the record of ctx after a traced `if`, from those after each branch; `merge` merges two tensors."""
    for name, method in MARKS.items():
        if not _is_same(getattr(a, name), getattr(b, name)):
            raise NotSupported(
                f"ctx.{method} is called in one branch alone, or with other arguments in each, and JAX decides which",
                "call it before or after the branches",
            )
    return b._replace(
        to_save=_merge_saved(a.to_save, b.to_save, merge),
        to_save_forward=_merge_saved(a.to_save_forward, b.to_save_forward, merge),
    )


# What a ctx records for both branches alike, and the method that sets it.
MARKS = {
    "dirty": "mark_dirty",
    "non_differentiable": "mark_non_differentiable",
    "materialize": "set_materialize_grads",
    "materialize_non_diff": "_materialize_non_diff_grads",
}


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
    return a is b


def _merge_saved(a: tuple[Any, ...], b: tuple[Any, ...], merge: Callable[[Any, Any], Any]) -> tuple[Any, ...]:
    if a is b or not (a and b):
        return a or b
    if len(a) != len(b):
        raise NotSupported(
            f"{len(a)} tensors are saved in one branch and {len(b)} in the other, and JAX decides which",
            "save as many in both, None in the place of those that one does not need",
        )
    return tuple(merge(x, y) for x, y in zip(a, b, strict=True))
