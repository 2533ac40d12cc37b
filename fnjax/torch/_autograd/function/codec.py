"""Codec between the core, which calls a class with arrays, and the class, whose methods take and return tensors."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax.numpy as jnp

from fnjax._contexts import HOOKS
from fnjax._function.backward import gradient_for_static
from fnjax._function.ctx import NeedsInputGrad, Record
from fnjax._function.decorators import once_differentiable
from fnjax._function.spec import Spec
from fnjax.torch._autograd.arrays import Kind, dtype_of, wrap_array
from fnjax.torch._autograd.function.call import Call, Constant, Run, describe_run
from fnjax.torch._autograd.function.captured import PLAIN, NeedsInputs, Reached, reach, release
from fnjax.torch._autograd.function.conditional_gradients import call_checked, resolve
from fnjax.torch._autograd.function.ctx import (
    FunctionCtx,
    SavedInOneBranch,
    find_altered,
    is_written,
    list_contents,
    mark,
)
from fnjax.torch._autograd.function.kept_memory import lose_ended, read_reachable, read_written
from fnjax.torch._autograd.function.saved import OnCtx, Saved, list_tensors, restore_shared_views, save
from fnjax.torch._autograd.function.substitution import substitute, substituting
from fnjax.torch._autograd.kept_graph import link_graph
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.number import make_number
from fnjax.torch.errors import NotSupported, find_definition
from fnjax.torch.memory.tensor import Tensor, is_known
from fnjax.torch.names.process_groups import as_group, default_axis, exchanging
from fnjax.torch.recording.gradient_mode import BACKWARD, FORWARD, set_mode
from fnjax.torch.recording.graph import RECORDS_GRADIENTS, Value, resume_contexts, watch
from fnjax.torch.recording.journal import Journal, next_serial, note_reached
from fnjax.torch.recording.rng import fork


class TensorCodec(NamedTuple):
    """Codec of one call: runs the methods of a class, which take tensors, on arrays.

    Attributes:
        cls: the class.
        spec: the specification of the class, which has its methods.
        call: the call of apply; None for a custom operator, which has a backward only.
    """

    cls: Any
    spec: Spec
    call: Any = None

    def forward(self, ctx: Any, args: Sequence[Any]) -> Any:
        """Run forward and setup_context on the arguments as tensors; save what the class's own ctx keeps."""
        call, spec, n = self.call, self.spec, len(args) - self.call.reached
        recorded: Record = ctx._fnjax_record
        needs = tuple(
            (need or known) and not (kind and kind.numbers)
            for need, known, kind in zip(recorded.needs, call.needs, call.kinds, strict=True)
        )
        references = [None if find is None else find() for find in call.objects]  # somebody may still refer to these
        objects = substituting() if any(t is not None for t in references) else nullcontext()
        with watch() as read, objects, Journal(is_branch=False, is_undone=True) as journal:
            tensors = self._enter(args, needs, references)
            own = copy.copy(ctx) if any(recorded.needs) else ctx  # ctx itself gets arrays
            own._fnjax_record = recorded._replace(needs=NeedsInputGrad(needs[:n]), inputs=tensors)
            marks = [mark(t) for t in tensors]
            given = tensors[:n]
            enclosing = [t for t in given if not isinstance(t, (Tensor, *PLAIN))]
            if enclosing:
                lose_ended(reach(enclosing, whole=True))
            with set_mode(FORWARD, in_forward=True), exchanging(), call.draws.resume(), resume_contexts(call.contexts):
                if spec.setup_context is not None:
                    result = spec.forward(*given, **call.kwargs)
                    spec.setup_context(own, tuple(given), result)
                else:
                    result = spec.forward(own, *given, **call.kwargs)
            own._fnjax_record = own._fnjax_record._replace(inputs=())  # a ctx may outlive the call
            members = list(result) if isinstance(result, tuple) else [result]
            for x in members:
                if isinstance(x, Deferred):
                    raise x.refuse()
            _check_reached(tensors, journal, read, own)
            call.draws.check()
            if enclosing:
                self._check_exposed(enclosing, journal.start)
            values = [*read, *(m.memory.value for m in members if isinstance(m, Tensor))]
            if any(recorded.needs) or not call.is_eager:  # else it runs once
                self._check_again(describe_run(own, values, enclosing), own)
            call.is_tuple = isinstance(result, tuple)
            written = [i for i, t in enumerate(tensors) if is_written(t, marks[i])]
            inputs = call.note_results(own, tensors, members, written)
            if any(recorded.needs):
                made = save(ctx, own, tensors, members, call, journal.has_launched)
                if call.is_eager and HOOKS.value is None and all(is_known(t.array) for t in made.on_ctx):
                    call.forward_ctx = made
            nested = call.take_containers(members, inputs) if None in call.results else []
            # Copies: what ctx keeps of them is no output to a second derivative, as in PyTorch.
            changed = [jnp.copy(tensors[i].array) for i in call.changed if i not in call.returned]
            arrays = [m.array if isinstance(m, Tensor) else m for m in members]
        further = [*changed, *nested]  # of which backward gets no gradient
        return (*arrays, *further) if call.is_tuple or further else arrays[0]

    def _check_again(self, run: Run, own: FunctionCtx) -> None:
        """Check that forward does the same as in its first run, or less, or more: PyTorch runs it once.

        Raises:
            NotSupported: it leaves another number or string on ctx, or computes with other values from outside.
        """
        has_read_needs = getattr(own, "_fnjax_has_read_needs", False)
        first = self.call.runs.setdefault(own._fnjax_record.needs if has_read_needs else None, run)
        if first == run:
            return
        before, numbers = first.numbers, run.numbers
        shorter, longer = sorted((first.operations, run.operations), key=len)
        rest = iter(longer)
        changed = [k for k, v in numbers.items() if before.get(k, v) != v and v == v]  # noqa: PLR0124 - no NaN
        found = [f"leaves ctx.{k} = {numbers[k]!r}, where it left {before[k]!r}" for k in changed]
        if not found and not all(x in rest for x in shorter):  # of an iterator: in this order
            found = ["reads other values from outside than it did"]
        if found:
            raise NotSupported(
                f"{self.cls.__qualname__}.forward runs again for its gradient, and {found[0]} before",
                "pass what changes as an argument of apply",
                find_definition([self.spec.forward]),
            )
        if first.contents != run.contents:
            warnings.warn(
                f"{self.cls.__qualname__}.forward, which runs again for its gradient, finds or leaves other values in "
                "a list or dict among its arguments than before: leave them as they are in forward",
                UserWarning,
                stacklevel=2,
            )

    def _check_exposed(self, arguments: Sequence[Any], start: int) -> None:
        """Raise NotSupported if forward has put traced tensors that it made into a list or object that it was given."""
        found = reach(arguments, whole=True) if arguments else ()
        if any(t.memory.serial >= start and not is_known(t.memory.value.array) for t in found):
            raise NotSupported(
                f"{self.cls.__qualname__}.forward, which JAX traces, puts a tensor that it computes into an argument",
                "return the tensor",
                find_definition([self.spec.forward]),
            )

    def _enter(self, args: Sequence[Any], needs: Sequence[Any], objects: Sequence[Tensor | None]) -> list[Any]:
        """Return the arguments of a method: arrays as tensors, or as numbers.

        Args:
            args: the arguments.
            needs: for each argument, whether it needs a gradient.
            objects: for each argument, the caller's tensor if modules or closures may refer to it, else None.
        """
        found: list[Any] = []
        for a, kind, need, own in zip(args, self.call.kinds, needs, objects, strict=True):
            if kind is None:
                found.append(a.value if isinstance(a, Constant) else as_group(a))
            elif kind.numbers:
                found.append(make_number(Value(jnp.asarray(a)), kind.numbers))
            elif own is None:
                found.append(wrap_array(a, kind._replace(requires_grad=kind.requires_grad or bool(need))))
            else:
                is_leaf = (kind.requires_grad or bool(need)) and kind.dtype.kind in {"float", "complex"}
                substitute(own, jnp.asarray(a), is_leaf)
                found.append(own)
        return found

    def _refuse_reached(self, reached: Any, name: str) -> None:
        if reached:
            what = f"{self.cls.__qualname__}.{name}, where the class reaches tensors that are not its arguments"
            raise NotSupported(what, "pass them as arguments")

    def vmap(self, info: Any, in_dims: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run vmap on the arguments as tensors."""
        assert self.spec.vmap is not None
        self._refuse_reached(self.call.reached, "vmap")
        none = [None] * len(args)  # no objects: these have another shape
        with Journal(is_branch=False, is_undone=True), set_mode(FORWARD, in_forward=True), exchanging():
            tensors = self._enter(args, none, none)
            result, out_dims = self.spec.vmap(info, tuple(in_dims), *tensors, **self.call.kwargs)
        members = result if isinstance(result, tuple) else (result,)
        arrays = tuple(m.array if isinstance(m, Tensor) else m for m in members)
        return arrays if isinstance(result, tuple) else arrays[0], out_dims

    def jvp(self, ctx: Any, tangents: Sequence[Any]) -> Any:
        """Run jvp on the tangents as tensors."""
        assert self.spec.jvp is not None
        facts: Saved = ctx._fnjax_record.facts
        self._refuse_reached(facts.reachable, "jvp")
        own = self._reopen(ctx, True)
        arrays, count = ctx._fnjax_record.saved, len(ctx._fnjax_record.needs)
        saved = (None if k is None else wrap_array(a, k) for a, k in zip(arrays, facts.forward, strict=True))
        own._fnjax_record = own._fnjax_record._replace(saved=tuple(saved))
        given = [None if t is None else wrap_array(t, Kind(dtype_of(t))) for t in tangents[:count]]
        with set_mode(BACKWARD, in_forward=False), exchanging(), default_axis(facts.axis):
            found = self.spec.jvp(own, *given)
        members = found if isinstance(found, tuple) else (found,)
        return tuple(m.array if isinstance(m, Tensor) else m for m in members)

    def _reopen(self, ctx: Any, copies: bool) -> FunctionCtx:
        """Return a ctx of the class with the attributes that forward set, or copies, without the saved tensors."""
        own: FunctionCtx = self.cls._ctx(NeedsInputGrad())
        own._fnjax_record = ctx._fnjax_record
        for name in ctx._fnjax_record.facts.attributes:
            setattr(own, name, release(getattr(ctx, name), copies=copies))
        return own

    def backward(self, ctx: Any, grad_outputs: Sequence[Any]) -> Any:
        """Run backward on the gradients as tensors; return the gradients of the arguments and of captured tensors."""
        method = self.spec.backward
        run = self._run_checked if self.call is not None and self.call.is_conditional else self._run_backward
        if getattr(method, "once_differentiable", False):
            run = once_differentiable(functools.wraps(method)(functools.partial(run)))  # type: ignore[arg-type]
        return run(ctx, *grad_outputs)

    def _run_checked(self, ctx: Any, *grads: Any) -> Any:
        return call_checked(f"{self.cls.__qualname__}.backward", functools.partial(self._run_backward, ctx), grads)

    def _run_backward(self, ctx: Any, *grads: Any) -> Any:
        note_reached(self.cls)
        facts: Saved = ctx._fnjax_record.facts
        began = next_serial()
        call, is_known_call = self.call, self.call is not None and all(map(is_known, grads))
        of_forward = call.forward_ctx if is_known_call and not RECORDS_GRADIENTS.get() else None
        residuals = ctx._fnjax_record.saved
        arrays, captured = iter(residuals), residuals[len(residuals) - len(facts.reachable) :]
        modules = facts.modules
        if of_forward is not None and of_forward.facts is facts:  # as in PyTorch, the ctx of forward itself
            own, on_ctx, modules = of_forward.own, of_forward.on_ctx, []
            saved = [*of_forward.saved]
        else:
            of_forward, own = None, self._reopen(ctx, not is_known_call or RECORDS_GRADIENTS.get())
            saved = [
                wrap_array(next(arrays), k)
                if isinstance(k, Kind)
                else getattr(own, k.name)
                if isinstance(k, OnCtx)
                else release(k)
                for k in facts.kinds
            ]
            for i, at in facts.instead.items():
                kind = Kind(saved[i].dtype, saved[i].requires_grad or saved[at + 1].requires_grad)
                saved[i] = wrap_array(jnp.where(*(saved[k].array for k in (at, at + 1, i))), kind)
            saved = saved[: min(facts.instead.values(), default=len(saved))]
            on_ctx = list_tensors(saved, {k: getattr(ctx, k) for k in facts.attributes})
            if facts.shared_views:
                restore_shared_views(facts.shared_views, on_ctx)
        if call is not None:
            saved = read_written(facts.kept, call.memories, on_ctx, saved, is_sure=not call.is_conditional)
            captured = [
                read_reachable(k.tensor, call.memories.get(k.at), a)
                for k, a in zip(facts.reachable, captured, strict=True)
            ]
        collect = SavedInOneBranch if "saved_tensors" in facts.sometimes else tuple
        own._fnjax_record = own._fnjax_record._replace(saved=collect(saved))
        own._fnjax_sometimes = {k: vars(own).get(k) for k in facts.sometimes}
        given = [
            wrap_array(g, Kind(kind)) if g is not None and kind is not None else g
            for g, kind in zip(grads, facts.results, strict=False)
        ]
        unwritten = [g.memory.value if isinstance(g, Tensor) else None for g in given]
        start = None if call is None or is_known_call else call.start
        constant = [
            (saved[k] if isinstance(k, int) else vars(own).get(k), None if call is None else call.memories.get(i))
            for k, i in facts.constant.items()
        ]
        with (
            Reached(facts.reachable, captured, self.cls, modules, constant, start) as reached,
            fork(),
            set_mode(BACKWARD, in_forward=False),
            exchanging(),
            default_axis(facts.axis),
        ):
            if facts.graph is not None and of_forward is None:
                attributes = {k: getattr(own, k) for k in facts.attributes}
                saved, attributes = link_graph(facts.graph, on_ctx, (saved, attributes), ctx._torch_pullback)
                own._fnjax_record = own._fnjax_record._replace(saved=collect(saved))
                for name, value in attributes.items():
                    setattr(own, name, value)
            if facts.attributes and of_forward is None:
                older = [t for t in reach([vars(own), own.saved_data], whole=True) if t.memory.serial < began]
                lose_ended(older, are_inputs=False)
            is_copy = call is not None and of_forward is None and (is_known_call or len(facts.attributes) > 0)
            before = list_contents(own) if is_copy else {}
            method: Any = self.spec.backward
            returned = method(own, *([given] if self.spec.options.boxed_grads_call else given))
            if call is not None:
                for i, (g, value) in enumerate(zip(given, unwritten, strict=False)):  # boxed ones may be gone
                    if value is not None and g.memory.value is not value:
                        call.written_gradients[i] = g.memory.value
            if is_copy:
                self._warn_of_altered(call, own, find_altered(own, before), is_known_call)
            found = list(returned) if isinstance(returned, tuple) else [returned]
            needs = own._fnjax_record.needs
            found = [self._leave(i, f, needs) for i, f in enumerate(found)]
            captured = reached.take_gradients(found, len(needs), 0 if call is None else call.reached)
        return tuple(found) if isinstance(returned, tuple) else found[0], captured

    def _leave(self, index: int, gradient: Any, needs: Sequence[bool]) -> Any:
        """Return a gradient as an array; None if its argument is a tensor that is not traced."""
        call, need = self.call, index < len(needs) and needs[index]
        if isinstance(gradient, Deferred):
            gradient = resolve(gradient, need)
        if call is not None and gradient is not None and index < len(needs):
            if index in call.constants:
                return None
            kind = call.kinds[index]
            if kind is not None and kind.numbers:
                name = f"argument {index} ('{self.spec.parameters.name(index)}')"
                raise gradient_for_static(self.spec.backward, self.spec.name, name, index, gradient)
        return gradient.array if isinstance(gradient, Tensor) else gradient

    def _warn_of_altered(self, call: Call, own: FunctionCtx, altered: list[str], is_known_call: bool) -> None:
        """Warn if backward changed ctx and, unlike in PyTorch, neither a second run nor the caller sees the change."""
        altered = [k for k in altered if getattr(own, k, None) is not None]  # memory that is given up
        containers = [k for k in altered if isinstance(getattr(own, k, None), (list, dict, set))]
        if call.altered or (containers and not is_known_call):
            name = (call.altered or containers)[0]
            warnings.warn(
                f"{self.cls.__qualname__}.backward changed ctx.{name} "
                + (
                    "when it ran for this call before, and finds what forward left there"
                    if call.altered
                    else "where JAX traces it: the caller, and a run for another call, do not see the change"
                )
                + ", since JAX runs backward on what forward saved; leave ctx as it is in backward",
                UserWarning,
                stacklevel=2,
            )
        call.altered = altered


def _check_reached(tensors: Sequence[Any], journal: Journal, read: Sequence[Value], own: FunctionCtx) -> None:
    """Raise NeedsInputs for tensors that forward read, wrote or left on ctx and that are not arguments."""
    given = [t for t in tensors if isinstance(t, Tensor)]
    if len(given) < len(tensors):  # those in a list, too: JAX takes it apart, and each run has leaves of its own
        given += reach(t for t in tensors if isinstance(t, (list, tuple, dict)))
    known_memory = {id(t.memory) for t in given}
    found = [v.leaf for v in read if v.node is None and v.leaf is not None and v.leaf.value is v]
    for storage, old in journal.storages.values():
        if storage.value is not old and id(storage) not in known_memory:
            found.append(Tensor.over(storage, storage.layout, dtype_of(storage.value.array)))
    recorded = own._fnjax_record
    found += reach([vars(own), own.saved_data, recorded.to_save, recorded.to_save_forward, recorded.dirty])
    new = {id(t.memory): t for t in found if id(t.memory) not in known_memory and t.memory.serial < journal.start}
    if new:
        raise NeedsInputs([*new.values()])
