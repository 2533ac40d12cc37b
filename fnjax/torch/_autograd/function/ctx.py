"""The ctx of a torch.autograd.Function's forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fnjax._torch_ops.registry import known
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.either import Either
from fnjax.torch.deferred.selection import Selection
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


def list_contents(own: FunctionCtx) -> dict[str, list[Any]]:
    """Return for each attribute of ctx a list: the object, and its members, or the values of a tensor's storages."""
    return {
        k: [v, *(v.keys() if isinstance(v, dict) else ()), *_list_members(v)]
        for k, v in vars(own).items()
        if k != "_own"
    }


def _list_members(v: Any) -> list[Any]:
    if isinstance(v, (list, dict, set)):
        return [*(v.values() if isinstance(v, dict) else v)]
    return mark(v)


def find_altered(own: FunctionCtx, before: dict[str, list[Any]]) -> list[str]:
    """Return the attributes of ctx that were set or written to since `list_contents`."""
    now = list_contents(own)
    return [k for k in before | now if [*map(id, before.get(k, []))] != [*map(id, now.get(k, []))]]


class OnCtx(NamedTuple):
    """Placeholder among the saved tensors for a value that is an attribute of ctx."""

    name: str


@known("torch.autograd.function.FunctionCtx", "torch.autograd.function.BackwardCFunction")
class FunctionCtx:
    """The ctx of forward and backward; any attribute can be set on it."""

    _clears = False  # clear_saved_tensors_on_access

    def __init__(self) -> None:
        self._own: dict[str, Any] = {
            "saved": (), "forward": (), "non_differentiable": (), "materialize": True, "dirty": (), "needs": (),
        }  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        if name != "saved_data":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.saved_data: dict[str, Any] = {}
        return self.saved_data

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """For each argument, whether it requires grad."""
        self._own["is_asked"] = True
        needs: tuple[bool, ...] = self._own["needs"]
        return needs

    def name(self) -> str:
        """Return the name of the node: that of the class, with Backward."""
        return type(self).__name__

    @staticmethod
    def merge(a: dict[str, Any], b: dict[str, Any], merge: Callable[[Any, Any], Any]) -> dict[str, Any]:
        """Return the contents of ctx after a traced `if`, from those after each branch; `merge` merges two tensors."""
        saved = a["saved"] or b["saved"]
        if a["saved"] and b["saved"] and a["saved"] is not b["saved"]:
            if len(a["saved"]) != len(b["saved"]):
                raise NotSupported(
                    f"{len(a['saved'])} tensors are saved in one branch and {len(b['saved'])} in the other, and JAX "
                    "decides which",
                    "save as many in both, None in the place of those that one does not need",
                )
            saved = tuple(merge(x, y) for x, y in zip(a["saved"], b["saved"], strict=True))
        return {**b, **{k: v for k, v in a.items() if v}, "saved": saved}

    def may_have(self, name: str) -> bool:
        """Return whether only one of two traced branches has set an attribute."""
        sometimes = self._own.get("sometimes", {})
        return name in sometimes and vars(self).get(name) is sometimes[name]

    def save_for_backward(self, *tensors: Any) -> None:
        """Save tensors or None for backward, which gets the values that they have at the end of forward."""
        saved = list(tensors)
        for i, x in enumerate(tensors):
            if not (x is None or isinstance(x, (Tensor, Deferred))):
                kind = f"argument {i} is of type {type(x).__name__}"
                raise TypeError(f"save_for_backward can only save variables, but {kind}: set an attribute of ctx")
            if type(x) in {Either, Selection}:  # attributes may hold other things than arrays
                saved[i] = OnCtx(f"_saved_{i}")
                setattr(self, saved[i].name, x)
        self._own = self._own | {"saved": tuple(saved)}

    def save_for_forward(self, *tensors: Any) -> None:
        """Save tensors for a jvp method."""
        self._own = self._own | {"forward": tensors}

    def mark_dirty(self, *tensors: Any) -> None:
        """Declare which arguments forward writes to; the gradient of one that is not declared ignores the write."""
        self._own = self._own | {"dirty": tensors}

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Declare which results have no gradient."""
        self._own = self._own | {"non_differentiable": tensors}

    def set_materialize_grads(self, value: bool) -> None:
        """Set whether backward gets zeros or None for outputs without a gradient."""
        self._own = self._own | {"materialize": value}

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors that forward saved."""
        saved = self._own["saved"]
        if self._clears and "is_read" in self._own:
            if self._own["is_read"]:
                raise RuntimeError(
                    "saved_tensors can only be accessed once when clear_saved_tensors_on_access=True is set on the "
                    "autograd.Function. Either access saved_tensors only once, or set "
                    "clear_saved_tensors_on_access=False."
                )
            self._own["is_read"] = True
        return tuple(vars(self)[x.name] if isinstance(x, OnCtx) else x for x in saved)

    saved_variables = saved_tensors

    to_save = property(
        lambda self: self._own["saved"] or None,
        lambda self, tensors: self.save_for_backward(*tensors),
        doc="What save_for_backward sets.",
    )
    dirty_tensors = property(
        lambda self: self._own["dirty"] or None,
        lambda self, tensors: self.mark_dirty(*tensors),
        doc="What mark_dirty sets.",
    )
    non_differentiable = property(
        lambda self: self._own["non_differentiable"] or None,
        lambda self, tensors: self.mark_non_differentiable(*tensors),
        doc="What mark_non_differentiable sets.",
    )
    materialize_grads = property(
        fset=lambda self, value: self.set_materialize_grads(value), doc="What set_materialize_grads sets."
    )
