"""`torch.autograd.Function`: the class as it is written, carried by a fnjax.Function on arrays."""

from __future__ import annotations

import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import fnjax
from fnjax._function.ctx import NeedsInputGrad
from fnjax.torch._autograd.arrays import Kind, dtype_of, is_array, is_constant, kind_of, wrap_array
from fnjax.torch._autograd.function.call import Call, Constant
from fnjax.torch._autograd.function.captured import (
    Draws,
    NeedsInputs,
    Reached,
    is_node,
    reach,
    release,
)
from fnjax.torch._autograd.function.contents import find_root
from fnjax.torch._autograd.function.ctx import FunctionCtx, find_altered, is_written, list_contents, mark
from fnjax.torch._autograd.function.gradient_checks import call_backward, check_gradients, resolve
from fnjax.torch._autograd.function.saved import Saved, restore_places, save
from fnjax.torch._autograd.function.substitution import substitute, substituting
from fnjax.torch._autograd.function.writes import share_unmarked, write
from fnjax.torch._autograd.kept_graph import link_graph, list_tensors
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.number import Number, make_number
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.tensor import Tensor, is_known, make
from fnjax.torch.memory.trees import map_leaves
from fnjax.torch.names.process_groups import as_group, default_axis, exchanging
from fnjax.torch.names.registry import known
from fnjax.torch.recording.gradient_mode import BACKWARD, FORWARD, set_mode
from fnjax.torch.recording.graph import LostValue, Storage, Value, compute, resume_autocast, watch
from fnjax.torch.recording.journal import Journal, note_reached
from fnjax.torch.recording.rng import fork


def _enter(array: Any, kind: Kind, object_: Tensor | None) -> Any:
    """Return an argument as a tensor: the caller's own one if modules or closures may refer to it; or as a number."""
    if kind.numbers:
        return make_number(Value(jnp.asarray(array)), kind.numbers)
    if object_ is None:
        return wrap_array(array, kind)
    substitute(object_, jnp.asarray(array), kind.requires_grad and kind.dtype.kind in {"float", "complex"})
    return object_


def _check_reached(tensors: Sequence[Any], journal: Journal, read: Sequence[Value], own: FunctionCtx) -> None:
    """Raise NeedsInputs for tensors that forward read, wrote or left on ctx and that are not arguments."""
    given = [t for t in tensors if isinstance(t, Tensor)]
    known_memory = {id(t.memory) for t in given}
    found = [v.leaf for v in read if v.node is None and v.leaf is not None and v.leaf.value is v]
    for storage, old in journal.storages.values():
        if storage.value is not old and id(storage) not in known_memory:
            found.append(Tensor.over(storage, storage.layout, dtype_of(storage.value.array)))
    found += reach(vars(own).values())
    new = {id(t.memory): t for t in found if id(t.memory) not in known_memory and t.memory.serial < journal.start}
    if new:
        raise NeedsInputs([*new.values()])


def _warn_of_altered(cls: type[Function], call: Call | None, altered: list[str]) -> None:
    """Warn where backward has changed ctx, and runs once more for the same call; that sees ctx as forward left it."""
    if call is not None and call.altered:
        warnings.warn(
            f"{cls.__qualname__}.backward changed ctx.{call.altered[0]} when it ran for this call before, and finds "
            "what forward left there, since JAX runs backward on what forward saved; leave ctx as it is in backward",
            UserWarning,
            stacklevel=2,
        )
    if call is not None:
        call.altered = altered


def _carry(cls: type[Function]) -> type[fnjax.Function]:
    """Return the fnjax.Function that runs a class on arrays."""
    separate = getattr(cls, "setup_context", None) is not Function.setup_context
    method = cls.vjp if cls.backward is Function.backward else cls.backward
    if method is not cls.vjp is not Function.vjp:
        raise RuntimeError(
            f"Implementing both 'backward' and 'vjp' for a custom Function is not allowed ({cls.__name__}). You should "
            "only implement one of them."
        )
    once = getattr(method, "once_differentiable", False)
    boxed = getattr(cls, "boxed_grads_call", False)

    def forward(ctx: Any, call: Call, *args: Any) -> Any:
        with Journal(is_branch=False) as journal, watch() as read, substituting():
            try:
                return run_forward(ctx, call, args, journal, read)
            finally:
                journal.take_back()

    def enter(call: Call, args: Sequence[Any], needs: Sequence[Any], objects: Sequence[Any]) -> list[Any]:
        return [
            (a.value if isinstance(a, Constant) else as_group(a))
            if kind is None
            else _enter(a, kind._replace(requires_grad=kind.requires_grad or bool(n)), of)
            for a, kind, n, of in zip(args, call.kinds, needs, objects, strict=True)
        ]

    def refuse_reached(reached: Any, name: str) -> None:
        if reached:
            what = f"{cls.__qualname__}.{name}, where the class reaches tensors that are not its arguments"
            raise NotSupported(what, "pass them as arguments")

    def vmap(info: Any, in_dims: tuple[Any, ...], call: Call, *args: Any) -> Any:
        refuse_reached(call.reached, "vmap")
        with Journal(is_branch=False) as journal, set_mode(FORWARD, in_forward=True), exchanging():
            try:
                none = [None] * len(args)  # no objects: these have another shape
                tensors = enter(call, args, none, none)[: len(args) - call.reached]
                result, out_dims = cls.vmap(info, in_dims[1 : 1 + len(tensors)], *tensors, **call.kwargs)
            finally:
                journal.take_back()
        members = result if isinstance(result, tuple) else (result,)
        arrays = tuple(m.array if isinstance(m, Tensor) else m for m in members)
        return arrays if isinstance(result, tuple) else arrays[0], out_dims

    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        facts: Saved = ctx._torch
        refuse_reached(facts.reachable, "jvp")
        own = reopen(ctx)
        saved = [None if k is None else wrap_array(a, k) for a, k in zip(ctx.saved_tensors, facts.forward, strict=True)]
        vars(own)["_own"] |= {"saved": tuple(saved)}
        given = [None if t is None else wrap_array(t, Kind(dtype_of(t))) for t in tangents[: len(facts.needs)]]
        with set_mode(BACKWARD, in_forward=False), exchanging(), default_axis(facts.axis):
            found = cls.jvp(own, *given)
        members = found if isinstance(found, tuple) else (found,)
        return tuple(m.array if isinstance(m, Tensor) else m for m in members)

    def reopen(ctx: Any) -> FunctionCtx:
        own: FunctionCtx = cls._context()
        own.needs_input_grad = NeedsInputGrad(ctx._torch.needs)
        vars(own).update({k: release(getattr(ctx, k)) for k in ctx._torch.attributes})
        return own

    def run_forward(ctx: Any, call: Call, args: Sequence[Any], journal: Journal, read: list[Value]) -> Any:
        needs = tuple(
            (n or known) and not (kind and kind.numbers)
            for n, known, kind in zip(ctx.needs_input_grad[1:], call.needs, call.kinds, strict=True)
        )
        own = cls._context()
        own.needs_input_grad = NeedsInputGrad(needs[: len(args) - call.reached])
        tensors = enter(call, args, needs, call.objects)
        marks = [mark(t) for t in tensors]
        given = tensors[: len(args) - call.reached]
        with set_mode(FORWARD, in_forward=True), exchanging(), call.draws.resume(), resume_autocast(call.autocast):
            if separate:
                result = cls.forward(*given, **call.kwargs)
                cls.setup_context(own, tuple(given), result)
            else:
                result = cls.forward(own, *given, **call.kwargs)
        for x in result if isinstance(result, tuple) else (result,):
            if isinstance(x, Deferred):
                raise x.refuse()
        _check_reached(tensors, journal, read, own)
        call.draws.check()
        call.is_tuple = isinstance(result, tuple)
        members = list(result) if isinstance(result, tuple) else [result]
        inputs = {id(t): i for i, t in enumerate(tensors) if isinstance(t, Tensor)}
        call.changed = [i for i, t in enumerate(tensors) if is_written(t, marks[i])]
        call.dirty = {inputs[id(t)] for t in vars(own)["_own"]["dirty"] if id(t) in inputs}
        call.results = [kind_of(m) if isinstance(m, Tensor) else None for m in members]
        call.returned = [inputs[id(m)] if inputs.get(id(m)) in call.changed else None for m in members]
        own_tensors = {id(m): -1 - i for i, m in enumerate(members) if isinstance(m, Tensor)} | inputs
        call.attributes = {k: i for k, v in vars(own).items() if (i := own_tensors.get(id(v))) is not None}
        owners = {id(find_root(t.memory)): i for i, t in enumerate(tensors) if isinstance(t, Tensor)}
        call.lenders = [
            owners.setdefault(id(find_root(m.memory)), -1 - i) if isinstance(m, Tensor) and target is None else None
            for i, (m, target) in enumerate(zip(members, call.returned, strict=True))
        ]
        save(ctx, own, tensors, members, call, journal.has_launched)
        nested = call.take_containers(members, inputs)
        # Copies: what ctx keeps of them is no output to a second derivative, as in PyTorch.
        changed = [jnp.copy(tensors[i].array) for i in call.changed if i not in call.returned]
        arrays = [m.array if isinstance(m, Tensor) else m for m in members]
        further = [*changed, *nested]  # of which backward gets no gradient
        return (*arrays, *further) if call.is_tuple or further else arrays[0]

    def backward(ctx: Any, *grads: Any) -> Any:
        run = functools.partial(run_backward, ctx)
        return call_backward(f"{cls.__qualname__}.backward", ctx._torch.call, run, grads)

    def run_backward(ctx: Any, *grads: Any) -> Any:
        note_reached(cls)
        facts: Saved = ctx._torch
        own = reopen(ctx)
        arrays = iter(ctx.saved_tensors)
        saved = [wrap_array(next(arrays), k) if isinstance(k, Kind) else release(k) for k in facts.kinds]
        for i, at in facts.instead.items():
            kind = Kind(saved[i].dtype, saved[i].requires_grad or saved[at + 1].requires_grad)
            saved[i] = wrap_array(jnp.where(*(saved[k].array for k in (at, at + 1, i))), kind)
        saved = saved[: min(facts.instead.values(), default=len(saved))]
        attributes = {k: vars(own)[k] for k in facts.attributes}
        restore_places(facts.places, list_tensors(saved, attributes))
        for name, guard in facts.call.guards.items() if facts.call is not None else ():
            if isinstance(guard.value, LostValue):
                attributes[name].memory.value = guard.value
        own_saved = {"saved": tuple(saved), "is_read": False}
        vars(own)["_own"] |= own_saved | {"sometimes": {k: vars(own)[k] for k in facts.sometimes}}
        given = [
            wrap_array(g, Kind(kind)) if g is not None and kind is not None else g
            for g, kind in zip(grads, facts.results, strict=False)
        ]
        constant = [saved[k] if isinstance(k, int) else vars(own)[k] for k in facts.constant]
        with (
            Reached(facts.reachable, arrays, cls.__qualname__, facts.modules, constant) as reached,
            fork(),
            set_mode(BACKWARD, in_forward=False),
            exchanging(),
            default_axis(facts.axis),
        ):
            if facts.graph is not None:
                saved, attributes = link_graph(facts.graph, (saved, attributes), ctx._torch_pullback)
                vars(own).update(attributes, _own=vars(own)["_own"] | {"saved": tuple(saved)})
            before = list_contents(own)
            found = method(own, given) if boxed else method(own, *given)
            if all(map(is_known, grads)):
                _warn_of_altered(cls, facts.call, find_altered(own, before))
            found = found if isinstance(found, tuple) else (found,)
            found = [
                resolve(f, need) if isinstance(f, Deferred) else f
                for f, need in itertools.zip_longest(found, facts.needs[: len(found)])
            ]
            if facts.shapes is not None:
                check_gradients(cls, found, facts.shapes, facts.needs, separate)
                found = [f if need else None for f, need in zip(found, facts.needs, strict=False)]
            gradients = [f.array if isinstance(f, Tensor) else f for f in found]
            return (None, *reached.add_gradients(gradients, len(facts.needs)))

    names = {"forward": staticmethod(forward), "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    names["device_copies"] = True  # in PyTorch each process has its own
    if method is not Function.backward:
        names["backward"] = staticmethod(fnjax.once_differentiable(backward) if once else backward)
    if cls.jvp is not Function.jvp:
        names["jvp"] = staticmethod(jvp)
    if cls.vmap is not Function.vmap:
        names |= {"vmap": staticmethod(vmap), "generate_vmap_rule": cls.generate_vmap_rule}
    return type(cls.__name__, (fnjax.Function,), names)


class _Apply:
    """Descriptor of `apply`: each class has its own, the same object at each look-up."""

    def __get__(self, instance: object, owner: type[Function]) -> Callable[..., Any]:
        if "_fnjax_apply" not in vars(owner):
            owner._fnjax_apply = functools.partial(_apply, owner)
            functools.update_wrapper(owner._fnjax_apply, owner.forward)
            owner._fnjax_apply.__self__ = owner
        return owner._fnjax_apply


@known("torch.autograd.Function", "torch.autograd.function.Function")
class Function:
    """Base of custom autograd Functions, as PyTorch has it; `apply` maps tensors to tensors, and arrays to arrays."""

    generate_vmap_rule = False
    _fnjax_apply: Any
    _fnjax_carried: Any
    _context: Any
    apply = _Apply()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args or kwargs:
            name = type(self).__name__
            raise TypeError(f"{name} is not called; methods on autograd functions are static: call {name}.apply(...)")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise: this is how Functions were called before their methods were static."""
        raise RuntimeError(
            "Legacy autograd function with non-static forward method is deprecated. "
            "Please use new-style autograd function with static forward method."
        )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        clears = {"_clears": getattr(cls, "clear_saved_tensors_on_access", False)}
        cls._context = type(f"{cls.__name__}Backward", (FunctionCtx,), clears)

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the results."""
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        """Save the values that backward needs."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Compute the gradients."""
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom autograd.Function to use it with "
            "backward mode AD."
        )

    vjp = backward

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """Compute a batch; without it JAX batches forward and backward."""
        raise NotImplementedError(
            "To use autograd.Function with vmap, you must either override the vmap staticmethod or set "
            "generate_vmap_rule=True."
        )

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Any:
        """Compute the tangents of the results."""
        raise NotImplementedError(
            "You must implement the jvp function for custom autograd.Function to use it with forward mode AD."
        )


@known("torch.autograd.function.InplaceFunction")
class InplaceFunction(Function):
    """A Function with a flag of its own, as older code has it."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace


def _apply(cls: type[Function], *given: Any, **named: Any) -> Any:
    leaves = jax.tree.leaves([*given, *named.values()], is_leaf=is_node)
    takes_tensors = any(isinstance(leaf, Tensor) for leaf in leaves)
    args, kwargs = _bind(cls, given, named)
    if "_fnjax_carried" not in vars(cls):
        cls._fnjax_carried = _carry(cls)
    sources = [*args, *kwargs.values(), cls.forward, cls.backward, cls.vjp, cls.setup_context]
    reached = [t for t in reach(sources) if not any(t is a for a in args)]
    draws = Draws()
    while True:
        try:
            return _run(cls, [*args, *reached], kwargs, len(reached), takes_tensors, draws)
        except NeedsInputs as e:
            reached += e.tensors or [draws.make_operand()]


def _run(
    cls: type[Function], args: list[Any], kwargs: dict[str, Any], reached: int, takes_tensors: bool, draws: Draws
) -> Any:
    """Run a class on arguments, the last of which are those that it reaches without being given them."""
    first = len(args) - reached
    kinds: list[Kind | None] = []
    for i, a in enumerate(args):
        if type(a) is Number:
            kinds.append(Kind(a.dtype, numbers=a.kinds))
        elif isinstance(a, Tensor) and (i >= first or not is_constant(a)):
            kinds.append(kind_of(a))
        else:
            kinds.append(Kind(dtype_of(a)) if is_array(a) and a.dtype != jax.dtypes.float0 else None)
    args = [
        Constant(a) if kind is None and (isinstance(a, Tensor) or reach([a])) else a
        for a, kind in zip(args, kinds, strict=True)
    ]
    call = Call(kinds, kwargs, args, reached, draws)
    at = [i for i, kind in enumerate(kinds) if kind is not None]
    parents = [args[i].value if isinstance(args[i], (Tensor, Number)) else Value(jnp.asarray(args[i])) for i in at]
    others: list[Any] = []

    def on_arrays(*arrays: Any) -> tuple[Any, ...]:
        full = list(args)
        for i, a in zip(at, arrays, strict=True):
            full[i] = a
        found = cls._fnjax_carried.apply(call, *full)
        further = call.nested or len(call.changed) > sum(r is not None for r in call.returned)
        members = found if call.is_tuple or further else (found,)
        others[:] = [None if is_array(m) else m for m in members]
        made = [m for m in members if is_array(m)]
        first = len(made) - call.contained
        return (*made[:first], *map(jax.lax.stop_gradient, made[first:]))

    made = compute(on_arrays, parents, f"{cls.__name__}Backward")
    for value in made:
        value.call = call
    values = iter(made)
    results: list[Any] = []
    for i, kind in enumerate(call.results):
        if kind is None:
            results.append(others[i])
            continue
        value, target = next(values), call.returned[i]
        written = args[target] if target is not None else None
        if isinstance(written, Tensor) and target in call.dirty:
            write(written, value, True)
            results.append(written)
            continue
        results.append(make(value.array, kind.dtype, value=value, strides=kind.strides))
        if isinstance(written, Tensor):
            share_unmarked(written, results[-1])
    for i in call.changed:
        if i not in call.returned:
            value = next(values)
            if isinstance(args[i], Tensor):
                write(args[i], value, i in call.dirty)
    for i in call.nested:
        results[i] = call.fill_container(i, args, values)
    for name, i in call.attributes.items():
        t = args[i] if i >= 0 else results[-1 - i]
        if isinstance(t, Tensor) and (i < 0 or call.objects[i] is None):
            call.guards[name] = Storage(Value(None), None)
            find_root(t.memory).lend(call.guards[name])
    for i, owner in enumerate(call.lenders):
        lender = None if owner in {None, -1 - i} else args[owner] if owner >= 0 else results[-1 - owner]
        if isinstance(lender, Tensor):
            find_root(lender.memory).lend(results[i].memory)
    if not takes_tensors:
        results = map_leaves(lambda r: r.array if isinstance(r, Tensor) else r, results)
    return tuple(results) if call.is_tuple else results[0]


def _bind(cls: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return positional arguments and keyword-only ones.

    Defaults are filled in where PyTorch does it, with setup_context: else backward counts what was passed.
    """
    signature = inspect.signature(cls.forward)
    separate = cls.setup_context is not Function.setup_context
    try:
        bound = signature.bind(*args, **kwargs) if separate else signature.bind(None, *args, **kwargs)
    except TypeError as e:
        names = [str(p) for p in signature.parameters.values()][0 if separate else 1 :]
        name = cls.__name__
        raise TypeError(f"{name}.apply: {e}\n  expected: {name}.apply({', '.join(names)})") from None
    keyword_only = {p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
    if separate or kwargs.keys() - keyword_only:
        bound.apply_defaults()
    return list(bound.args if separate else bound.args[1:]), bound.kwargs
