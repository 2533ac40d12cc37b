"""What ctx recorded becomes residuals, and a ctx again."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import jax

from fnjax._call.ctx import FunctionCtx
from fnjax._call.hooks import Hooks
from fnjax._errors import ContextError, describe, error, type_name
from fnjax._jax.rule import Arrays, Kept, Traces
from fnjax._jax.trees import Split, has_leaf, in_order, is_array, is_tracer, split
from fnjax._methods import Methods, captured


class Residuals:
    """Collects the arrays that backward can reach, each once, told apart by identity.

    Attributes:
        kept: where each residual comes from.
        intermediates: those that are neither an operand nor an output.
    """

    def __init__(self, operands: Sequence[Any], outputs: Sequence[Any], differentiable: Sequence[bool]) -> None:
        # An output without gradient has a derivative of its own at second order, as any other value that forward makes.
        self._sources = {id(x): Kept("output", i) for i, x in enumerate(outputs) if differentiable[i]}
        for i, x in enumerate(operands):
            self._sources[id(x)] = Kept("operand", i)
        self._operands = operands
        self._index: dict[int, int] = {}
        self.kept: list[Kept] = []
        self.intermediates: Arrays = []

    def add(self, array: Any) -> int:
        """The index among the residuals of `array`."""
        if id(array) not in self._index:
            source = self._sources.get(id(array))
            if source is None:
                source = Kept("intermediate", len(self.intermediates))
                self.intermediates.append(array)
            self._index[id(array)] = len(self.kept)
            self.kept.append(source)
        return self._index[id(array)]

    def refuse_hidden(self, value: Any, attribute: str, ctx: FunctionCtx) -> None:
        """Raise for an object that hides an array of this run from JAX: backward would find it dead."""
        for leaf in jax.tree.leaves(in_order(value)):
            hidden = list(vars(leaf).values()) if hasattr(leaf, "__dict__") and not isinstance(leaf, type) else []
            if isinstance(leaf, types.FunctionType):
                hidden += captured(leaf)
            if isinstance(leaf, types.ModuleType) or not has_leaf(hidden, self._is_of_this_run):
                continue
            name = type(ctx).__name__
            raise error(
                ContextError,
                f"ctx.{attribute} is a {type_name(leaf)} that holds an array where JAX cannot see it ({name})",
                "hidden-array",
                expected="arrays in attributes of ctx, lists, dicts, or objects that are registered as pytrees",
                got=describe(leaf),
                fix="put the array on ctx itself, or register the class: jax.tree_util.register_dataclass",
            )

    def _is_of_this_run(self, value: Any) -> bool:
        return is_tracer(value) and any(getattr(x, "_trace", None) is value._trace for x in self._operands)


class Saved:
    """What a ctx recorded, its arrays replaced by their places among the residuals."""

    def __init__(
        self, ctx: FunctionCtx, residuals: Residuals, hooks: Hooks | None, traces: Traces | None, *, forward_mode: bool
    ) -> None:
        self._needs, self._traces = ctx.needs_input_grad, traces
        self.materialize, self.materialize_non_diff = ctx.materialize_grads, ctx._materialize_non_diff_grads
        self._hooks = hooks
        self._tensors = [None if x is None else _Stowed(self._pack(x), residuals) for x in ctx.to_save]
        self._for_forward = [_Stowed(x, residuals) for x in ctx._saved_for_forward] if forward_mode else []
        for k, v in (*vars(ctx).items(), *ctx.saved_data.items()):
            residuals.refuse_hidden(v, k, ctx)
        self._attributes = {k: _Stowed(v, residuals) for k, v in vars(ctx).items()}
        self._data = {k: _Stowed(v, residuals) for k, v in ctx.saved_data.items()}

    def _pack(self, tensor: Any) -> Any:
        return tensor if self._hooks is None else self._hooks.pack(tensor)

    def _unpack(self, packed: Any) -> Any:
        return packed if self._hooks is None else self._hooks.unpack(packed)

    def restore(self, methods: Methods, residuals: Sequence[Any], *, forward_mode: bool) -> FunctionCtx:
        """A new ctx with the residuals in place, for backward or for jvp."""
        ctx = methods.ctx(self._needs, single_access=methods.single_access)
        if forward_mode:
            ctx._saved = tuple(x.restore(residuals) for x in self._for_forward)
        else:
            ctx._saved = tuple(None if x is None else self._unpack(x.restore(residuals)) for x in self._tensors)
        ctx._materialize = self.materialize
        shared = self._traces is not None and self._traces.calls > 1
        vars(ctx).update({k: v.restore(residuals, shared) for k, v in self._attributes.items()})
        ctx.saved_data.update({k: v.restore(residuals, shared) for k, v in self._data.items()})
        return ctx


class _Stowed:
    """A value on ctx; without arrays it is kept as the very object, else its arrays become residuals."""

    def __init__(self, value: Any, residuals: Residuals) -> None:
        self._split: Split | None = None
        self._static = value
        tree = in_order(value)
        if has_leaf(tree, is_array):
            arrays, self._split = split(tree, is_array)
            self._static, self._index = None, [residuals.add(x) for x in arrays]

    def restore(self, residuals: Sequence[Any], shared: bool = False) -> Any:
        """The value; with `shared`, lists and dicts are new ones, since the backward of one call may change them."""
        if self._split is not None:
            return self._split.fill(residuals[i] for i in self._index)
        if shared and type(self._static) in (list, dict):
            return jax.tree.map(lambda x: x, self._static)
        return self._static
