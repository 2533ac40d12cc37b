"""Conversion of what ctx recorded into residuals, and of residuals into a ctx."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from fnjax._function.ctx import FunctionCtx
from fnjax._function.hooks import Hooks
from fnjax._function.spec import Spec
from fnjax._primitives.jax_internals import same_trace
from fnjax._primitives.packing import pack_to_stay
from fnjax._primitives.replace_primal import replace_primal
from fnjax._primitives.rule import Arrays, ResidualSource
from fnjax._primitives.trace import closed_over_values
from fnjax._primitives.tree import (
    concrete_type,
    has_leaf,
    is_array,
    is_inexact,
    is_ref,
    is_tensor,
    is_tracer,
    items_of_unknown_container,
    iter_leaves,
    split,
    to_tensor,
)
from fnjax.errors import ArgumentError, ContextError, describe, error, type_name

_NOTHING: Mapping[Any, Any] = {}
Restore = Callable[[Sequence[Any]], Any]  # residuals → a value that ctx held


class Saved(NamedTuple):
    """Contents of a ctx without its arrays.

    Attributes:
        needs: its needs_input_grad.
        materialize: whether backward gets zeros for missing gradients.
        materialize_non_diff: also for outputs that have none.
        tensors: of `save_for_backward`.
        for_forward: of `save_for_forward`.
        attributes: by name.
        data: `saved_data`.
        facts: those of a codec.
    """

    needs: Any
    materialize: bool
    materialize_non_diff: bool
    tensors: Sequence[Restore]
    for_forward: Sequence[Restore]
    attributes: Mapping[str, Restore]
    data: Mapping[Any, Restore]
    facts: Any

    def restore(self, spec: Spec, residuals: Sequence[Any], *, for_jvp: bool = False) -> FunctionCtx:
        """Return a new ctx of a Function with the residuals in place, for backward or for jvp."""
        ctx = spec.ctx(self.needs, (), spec.options.clear_saved_tensors_on_access)
        saved = tuple([x(residuals) for x in (self.for_forward if for_jvp else self.tensors)])
        ctx._fnjax_record = ctx._fnjax_record._replace(saved=saved, materialize=self.materialize, facts=self.facts)
        if self.attributes:
            vars(ctx).update({k: v(residuals) for k, v in self.attributes.items()})
        if self.data:
            ctx.saved_data.update({k: v(residuals) for k, v in self.data.items()})
        return ctx


class _Residuals:
    """Collection of the arrays that backward can reach, each once, by identity."""

    def __init__(
        self, ctx: str, operands: Sequence[Any], outputs: Sequence[Any], differentiable: Sequence[bool]
    ) -> None:
        self._ctx = ctx
        # An output without gradient has a derivative of its own at second order, as any other value that forward makes.
        self._source_of = {id(x): ResidualSource("output", i) for i, x in enumerate(outputs) if differentiable[i]}
        for i, x in enumerate(operands):
            self._source_of[id(x)] = ResidualSource("operand", i)
        self._index: dict[int, int] = {}
        self.sources: list[ResidualSource] = []
        self.intermediates: Arrays = []

    def add(self, array: Any) -> int:
        """Return the index of `array` among the residuals; add it if it is new."""
        key = id(array)  # of arrays that the caller holds, so no id comes twice
        if key not in self._index:
            source = self._source_of.get(key)
            if source is None:
                source = ResidualSource("intermediate", len(self.intermediates))
                self.intermediates.append(array)
            self._index[key] = len(self.sources)
            self.sources.append(source)
        return self._index[key]

    def _is_residual(self, leaf: Any) -> bool:
        """Return whether JAX carries a leaf to backward: it is an array, or a Ref among the operands."""
        if is_ref(leaf) and id(leaf) not in self._source_of:
            if is_tracer(leaf):
                raise error(
                    ContextError,
                    f"ctx keeps a Ref that is not an argument of apply ({self._ctx})",
                    "ref-saved",
                    expected="Refs among the arguments of apply",
                    fix="pass the Ref to apply; of a Ref that forward made, save the content, ref[...]",
                )
            return False  # a closed-over Ref is the same object wherever it is used
        return is_array(leaf) or is_ref(leaf)

    def record(self, value: Any) -> Restore:
        """Add the arrays in a value to the residuals; return a function that restores the value from these."""
        if type(value) is concrete_type() or isinstance(value, jax.Array):
            index = self.add(value)
            return lambda residuals: residuals[index]
        arrays, form = split(value, self._is_residual)
        if not arrays:
            return lambda _: value
        places = [self.add(x) for x in arrays]
        return lambda residuals: form.fill(residuals[i] for i in places)


def save(
    ctx: FunctionCtx,
    operands: Sequence[Any],
    outputs: Sequence[Any],
    differentiable: Sequence[bool],
    hooks: Hooks | None,
    *,
    with_jvp: bool,
) -> tuple[Saved, tuple[ResidualSource, ...], Arrays]:
    """Split what a ctx recorded into residuals and static values.

    Args:
        ctx: after forward.
        operands: the arrays that forward got.
        outputs: the arrays that it returned.
        differentiable: which of these carry a gradient.
        hooks: the saved_tensors_hooks in force.
        with_jvp: whether to keep the arrays of `save_for_forward`.

    Returns:
        The ctx without its arrays; the source of each residual; and those that are neither operands nor outputs.
    """
    residuals = _Residuals(type(ctx).__name__, operands, outputs, differentiable)
    for k, v in (*vars(ctx).items(), *ctx.saved_data.items()):
        _refuse_hidden(v, k, ctx, operands)
    record = residuals.record if hooks is None else functools.partial(_record_packed, residuals, hooks)
    recorded = ctx._fnjax_record
    tensors = [record(x) for x in recorded.to_save]
    saved = Saved(
        recorded.needs,
        recorded.materialize,
        recorded.materialize_non_diff,
        tensors,
        [residuals.record(x) for x in recorded.to_save_forward] if with_jvp else (),
        {k: residuals.record(v) for k, v in vars(ctx).items()} if vars(ctx) else _NOTHING,
        {k: residuals.record(v) for k, v in ctx.saved_data.items()} if ctx.saved_data else _NOTHING,
        recorded.facts,
    )
    return saved, tuple(residuals.sources), residuals.intermediates


def _record_packed(residuals: _Residuals, hooks: Hooks, tensor: Any) -> Restore:
    if tensor is None or is_ref(tensor):
        return residuals.record(tensor)

    def unpack(packed: Any) -> Any:
        array = hooks.unpack(packed)
        if not is_tensor(array):
            raise error(
                ArgumentError,
                f"Output of saved tensor unpack_hook expected to be a Tensor but got result of type {type_name(array)}",
                "hooks",
                method=hooks.unpack,
                expected="the array that backward is to see",
                fix="return an array from unpack_hook; a missing `return` gives None",
            )
        return array

    if not is_tracer(tensor):
        packed = residuals.record(hooks.pack(tensor))
        return lambda values: unpack(packed(values))
    arrays, fill, moves = pack_to_stay(hooks.pack, tensor)
    packed = residuals.record(arrays)
    # A move is differentiated as it is: the array that was saved would else stay on the device, next to its copy.
    if moves or not is_inexact(tensor):
        return lambda values: unpack(fill(packed(values)))
    saved, saved_type = residuals.add(tensor), jax.typeof(tensor)

    def restore(values: Sequence[Any]) -> Any:
        # As in PyTorch what comes back counts as the array that was saved, whatever the hooks compute.
        array = to_tensor(unpack(fill(packed(values))))
        if array.shape != saved_type.shape or not is_inexact(array):
            raise error(
                ArgumentError,
                "saved_tensors_hooks: unpack_hook returned an array that cannot stand for the one that was saved",
                "hooks",
                method=hooks.unpack,
                expected=f"{saved_type.dtype}{list(saved_type.shape)}, or another floating-point dtype",
                got=f"{array.dtype}{list(array.shape)}",
                fix="let unpack_hook undo what pack_hook does",
            )
        return replace_primal(values[saved].astype(array.dtype), array)

    return restore


def _refuse_hidden(value: Any, attribute: str, ctx: FunctionCtx, operands: Sequence[Any]) -> None:
    """Raise if an object hides an array of this run from JAX: backward would find a leaked tracer in it."""
    if is_array(value) or is_ref(value):
        return

    def is_of_this_run(value: Any) -> bool:
        return is_tracer(value) and any(same_trace(value, x) for x in operands)

    for leaf in iter_leaves(value):
        hidden = items_of_unknown_container(leaf)
        if hasattr(leaf, "__dict__") and not isinstance(leaf, type):
            hidden += vars(leaf).values()
        if isinstance(leaf, types.FunctionType):
            hidden += closed_over_values(leaf)
        if not isinstance(leaf, types.ModuleType) and has_leaf(hidden, is_of_this_run):
            raise error(
                ContextError,
                f"ctx.{attribute} is a {type_name(leaf)} that holds an array where JAX cannot see it "
                f"({type(ctx).__name__})",
                "hidden-array",
                expected="arrays in attributes of ctx, lists, dicts, or objects that are registered as pytrees",
                got=describe(leaf),
                fix="put the array on ctx itself, or register the class: jax.tree_util.register_dataclass",
            )
