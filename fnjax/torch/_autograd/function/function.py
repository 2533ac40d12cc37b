"""`torch.autograd.Function`: the class that PyTorch source derives from, and apply, which calls the core on arrays."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnjax._function.apply import call_bound, make_apply
from fnjax._function.arguments import Arguments
from fnjax._function.forward import run_bound
from fnjax._function.spec import METHODS, Options, Spec, read_methods, read_spec
from fnjax._primitives.jax_internals import is_transformed
from fnjax._torch_ops.registry import known
from fnjax.torch._autograd.arrays import Kind, dtype_of, is_array, is_constant, kind_of
from fnjax.torch._autograd.function.call import Call, Constant
from fnjax.torch._autograd.function.captured import PLAIN, Draws, NeedsInputs, is_node, list_enclosed, reach
from fnjax.torch._autograd.function.codec import TensorCodec
from fnjax.torch._autograd.function.ctx import FunctionCtx
from fnjax.torch._autograd.function.kept_memory import guard_memory
from fnjax.torch._autograd.function.writes import share_unmarked, write
from fnjax.torch.deferred.number import Number
from fnjax.torch.memory.tensor import Tensor, make
from fnjax.torch.memory.trees import map_leaves
from fnjax.torch.recording.graph import Value, compute
from fnjax.torch.recording.storage import find_root


class _Apply:
    """Descriptor of `apply`: each class has its own, the same object at each look-up."""

    def __get__(self, instance: object, owner: type[Function]) -> Callable[..., Any]:
        if "_fnjax_apply" not in vars(owner):
            owner._fnjax_apply = make_apply(owner, read_class, functools.partial(_apply, owner))
        found: Callable[..., Any] = owner._fnjax_apply
        return found


@known("torch.autograd.Function", "torch.autograd.function.Function")
class Function:
    """Base of custom autograd Functions, as PyTorch has it; `apply` maps tensors to tensors, and arrays to arrays."""

    generate_vmap_rule = False
    _fnjax_apply: Any
    _ctx: Any
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
        cls._ctx = type(f"{cls.__name__}Backward", (FunctionCtx,), {"__module__": cls.__module__})

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


Function._base_methods = dict(zip(METHODS, read_methods(Function), strict=True))  # type: ignore[attr-defined]


class _Options(Options):
    device_copies = True  # in PyTorch each process has its own


def read_class(cls: Any) -> Spec:
    """Return the specification of a class as it is now, whose methods take tensors.

    Raises:
        RuntimeError: the class defines both backward and vjp.
    """
    spec = read_spec(cls)
    if spec.backward not in {None, cls.vjp} and cls.vjp is not Function.vjp:
        raise RuntimeError(
            f"Implementing both 'backward' and 'vjp' for a custom Function is not allowed ({cls.__name__}). You should "
            "only implement one of them."
        )
    names = ("generate_vmap_rule", "clear_saved_tensors_on_access", "boxed_grads_call")
    return spec._replace(options=type(cls.__name__, (_Options,), {k: getattr(cls, k, False) for k in names}))


def _apply(cls: type[Function], spec: Spec, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    trees = [a for a in (*given, *named.values()) if not isinstance(a, jax.Array)]
    takes_tensors = any(isinstance(leaf, Tensor) for a in trees for leaf in jax.tree.leaves(a, is_leaf=is_node))
    trees = [a for a in trees if not isinstance(a, (Tensor, *PLAIN))]
    args, kwargs = [*given], named
    if named or len(args) not in spec.parameters.direct:
        args, kwargs = spec.parameters.bind(spec.name, given, named)
    sources = [*args, *kwargs.values(), spec.forward, spec.backward, spec.vmap, spec.setup_context]
    reached = [t for t in reach(sources) if not any(t is a for a in args)]
    enclosed = set[int]()
    if trees and spec.vmap is spec.jvp is None:
        found = list_enclosed(trees)
        enclosed = {id(t.memory) for t in found} - {id(t.memory) for t in reached}
        known = {id(t.memory) for t in (*args, *reached) if isinstance(t, Tensor) and t.layout is t.memory.layout}
        reached += [t for t in found if id(t.memory) not in known]
    draws = Draws()
    while True:
        try:
            found = _run(cls, spec, [*args, *reached], kwargs, len(reached), takes_tensors, draws, enclosed)
        except NeedsInputs as e:
            reached += e.tensors or [draws.make_operand()]
            continue
        if draws.block is not None:
            draws.release()
        return found


def _to_array(x: Any) -> Any:
    return x.array if isinstance(x, Tensor) else x


def _run(
    cls: type[Function],
    spec: Spec,
    args: list[Any],
    kwargs: dict[str, Any],
    reached: int,
    takes_tensors: bool,
    draws: Draws,
    enclosed: set[int],
) -> Any:
    """Run a class on its inputs: the arguments, and after them the captured tensors."""
    first = len(args) - reached
    kinds: list[Kind | None] = []
    for i, a in enumerate(args):
        if type(a) is Number:
            kinds.append(Kind(a.dtype, numbers=a.kinds))
        elif isinstance(a, Tensor) and (i >= first or not is_constant(a)):
            kinds.append(kind_of(a))
        else:
            kinds.append(Kind(dtype_of(a)) if is_array(a) and a.dtype != jax.dtypes.float0 else None)
    whole = spec.vmap is spec.jvp is None  # these take containers apart
    args = [
        Constant(a) if kind is None and (isinstance(a, Tensor) or reach([a], whole=whole)) else a
        for a, kind in zip(args, kinds, strict=True)
    ]
    call = Call(kinds, kwargs, args, reached, draws, enclosed)
    at = [i for i, kind in enumerate(kinds) if kind is not None]
    parents = [args[i].value if isinstance(args[i], (Tensor, Number)) else Value(jnp.asarray(args[i])) for i in at]
    others: list[Any] = []
    on_tensors = spec._replace(setup_context=None, codec=TensorCodec(cls, spec, call))

    def on_arrays(*arrays: Any) -> tuple[Any, ...]:
        full = list(args)
        for i, a in zip(at, arrays, strict=True):
            full[i] = a
        found = (call_bound if is_transformed() else run_bound)(on_tensors, Arguments(spec.parameters, {}), full)
        further = call.contained or len(call.changed) > sum(r is not None for r in call.returned)
        members = found if call.is_tuple or further else (found,)
        n = len(call.results)
        others[:] = [None if kind else m for m, kind in zip(members[:n], call.results, strict=True)]
        made = [*itertools.compress(members, call.results), *members[n:]]
        first = len(made) - call.contained
        return (*made[:first], *map(jax.lax.stop_gradient, made[first:]))

    made = compute(on_arrays, parents, f"{cls.__name__}Backward", runs_once=True)
    for value in made:
        value.call = call
    values = iter(made)
    results: list[Any] = []
    for i, kind in enumerate(call.results):
        if kind is None:
            results.append(others[i])
            continue
        value, target = next(values), call.returned[i]
        value = Value(value.array) if i in call.non_differentiable else value
        written = args[target] if target is not None else None
        if isinstance(written, Tensor) and target in call.dirty:
            write(written, value, True)
            results.append(written)
            continue
        results.append(make(value, kind.dtype, strides=kind.strides))
        if isinstance(written, Tensor):
            share_unmarked(written, results[-1])
    for i in call.changed:
        if i not in call.returned:
            value = next(values)
            if isinstance(args[i], Tensor):
                write(args[i], value, i in call.dirty)
    for i in call.nested:
        results[i] = call.fill_container(i, args, values)
    given = (a.value if isinstance(a, Constant) else a for a in args)
    for i, t in (*enumerate(given), *((-1 - i, r) for i, r in enumerate(results))):
        if isinstance(t, Tensor):
            call.memories[i] = guard_memory(t)
    for i, owner in enumerate(call.lenders):
        lender = None if owner in {None, -1 - i} else args[owner] if owner >= 0 else results[-1 - owner]
        if isinstance(lender, Tensor):
            find_root(lender.memory).lend(results[i].memory)
    results = [results[i] for i in call.same]
    if not takes_tensors:
        results = [r.array if isinstance(r, Tensor) else map_leaves(_to_array, r) for r in results]
    return tuple(results) if call.is_tuple else results[0]
