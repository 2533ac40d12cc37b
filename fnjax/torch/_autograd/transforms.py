"""torch.func: grad, vjp, jvp, jacrev, jacfwd, hessian and vmap of functions of tensors, by JAX's transformations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnjax._torch_ops.registry import known
from fnjax.torch._autograd.arrays import Kind, dtype_of, is_array, wrap_array
from fnjax.torch._autograd.engine import list_leaves
from fnjax.torch._autograd.function.captured import is_node
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.dtypes import dtype
from fnjax.torch.memory.tensor import Tensor, make
from fnjax.torch.recording.gradient_mode import Mode, set_mode
from fnjax.torch.recording.graph import Value, compute, note_read, watch
from fnjax.torch.recording.rng import without_draws

Transform = Callable[[Callable[..., Any]], Callable[..., Any]]


def record(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str,
    dtypes: Callable[[], Sequence[dtype]] = tuple,
) -> tuple[Any, list[Value]]:
    """Run a function of arrays on tensors, in any pytrees, as one operation that autograd records.

    Args:
        function: the function.
        args: the positional arguments.
        kwargs: the keyword arguments.
        name: the name of the operation, for `grad_fn`.
        dtypes: returns torch's dtypes of the first arrays of the result, after the function has run: without 64 bits
            an array does not tell them.

    Returns:
        The result, with tensors in place of arrays, and their values.
    """
    leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=is_node)
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    structure: Any = None
    others: list[Any] = []

    def on_arrays(*arrays: Any) -> tuple[Any, ...]:
        nonlocal structure
        full = list(leaves)
        for i, array in zip(at, arrays, strict=False):  # `lift` may have added parents
            full[i] = array
        given, named = jax.tree.unflatten(tree, full)
        results, structure = jax.tree.flatten(function(*given, **named))
        others[:] = [None if is_array(r) else r for r in results]
        return tuple(r for r in results if is_array(r))

    values = compute(on_arrays, [leaves[i].value for i in at], f"{name}Backward")
    tensors = iter([
        make(v, own if own is not None and own.array == v.array.dtype else dtype_of(v.array))
        for v, own in itertools.zip_longest(values, dtypes())
    ])  # fmt: skip
    return jax.tree.unflatten(structure, [next(tensors) if x is None else x for x in others]), values


def lift(transform: Transform, func: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Apply a transformation of functions of arrays to a function of tensors; return a function of tensors.

    JAX differentiates the results also with respect to tensors that `func` closes over. torch.autograd would have to
    run `func` again with other tensors instead, and raises.
    """

    def lifted(*args: Any, **kwargs: Any) -> Any:
        inner: list[Tensor] = []  # they stand for the arguments within func
        outside: dict[int, Value] = {}

        def enter(array: Any) -> Any:
            if not is_array(array):
                return array
            inner.append(wrap_array(jnp.asarray(array), Kind(dtype_of(array), requires_grad=True)))
            return inner[-1]

        def on_arrays(*given: Any, **named: Any) -> Any:
            with set_mode(Mode(enabled=True)), watch() as read:
                found = func(*jax.tree.map(enter, given), **jax.tree.map(enter, named))
            own = {id(t.value) for t in inner}
            outside.update({id(v): v for v in list_leaves(read) if id(v) not in own})
            return jax.tree.map(lambda x: x.array if isinstance(x, Tensor) else x, found, is_leaf=is_node)

        def run(*given: Any, **named: Any) -> Any:
            if outside:
                raise NotSupported(
                    f"torch.autograd through {name} of a function that closes over a tensor which requires grad",
                    "pass the tensor as an argument, or differentiate with jax.grad",
                )
            return transform(on_arrays)(*given, **named)

        found, values = record(run, args, kwargs, name)
        note_read(outside.values())
        for node in {v.node for v in values if v.node is not None}:
            node.parents = (*node.parents, *outside.values())
        return found

    return lifted


def _conjugate(tree: Any) -> Any:
    """Return gradients in PyTorch's convention for complex numbers."""
    return jax.tree.map(lambda x: jnp.conj(x) if jnp.iscomplexobj(x) else x, tree)


@known("torch.func.grad_and_value")
def grad_and_value(func: Callable[..., Any], argnums: Any = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that computes the gradients of a scalar function, and its value."""

    def transform(f: Callable[..., Any]) -> Callable[..., Any]:
        def both(*args: Any, **kwargs: Any) -> Any:
            value, gradient = jax.value_and_grad(f, argnums, has_aux)(*args, **kwargs)
            return _conjugate(gradient), value

        return both

    return lift(transform, func, "torch.func.grad")


@known("torch.func.grad")
def grad(func: Callable[..., Any], argnums: Any = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that computes the gradients of a scalar function, and its auxiliary output with has_aux."""
    both = grad_and_value(func, argnums, has_aux)

    def call(*args: Any, **kwargs: Any) -> Any:
        gradient, value = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return call


@known("torch.func.vjp")
def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Return a function's result, and a function from cotangents of the result to those of the arguments."""

    def pull(*cotangents: Any) -> Any:
        given = cotangents[0] if len(cotangents) == 1 else cotangents

        def transform(f: Callable[..., Any]) -> Callable[..., Any]:
            def pulled(primals: Any, given: Any) -> Any:
                found = (jax.vjp(f, *primals, has_aux=True) if has_aux else jax.vjp(f, *primals))[1](_conjugate(given))
                return _conjugate(found if len(found) > 1 else found[0])

            return pulled

        return lift(transform, func, "torch.func.vjp")(primals, given)

    found = lift(lambda f: f, func, "torch.func.vjp")(*primals)
    return (found[0], pull, found[1]) if has_aux else (found, pull)


@known("torch.func.jvp")
def jvp(func: Callable[..., Any], primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False) -> Any:
    """Return a function's result and its derivative along tangents."""
    transform: Transform = lambda f: lambda p, t: jax.jvp(f, p, t, has_aux=has_aux)  # noqa: E731 - one use
    return lift(transform, func, "torch.func.jvp")(tuple(primals), tuple(tangents))


def _enter_derivative(name: str, derivative: Callable[..., Any]) -> None:
    @known(f"torch.func.{name}")
    def enter(func: Callable[..., Any], argnums: Any = 0, has_aux: bool = False, **options: Any) -> Callable[..., Any]:
        def transform(f: Callable[..., Any]) -> Callable[..., Any]:
            made = derivative(f, argnums, has_aux=has_aux)

            def call(*args: Any, **kwargs: Any) -> Any:
                if any(jnp.iscomplexobj(x) for x in jax.tree.leaves((args, kwargs))):
                    raise NotSupported(f"torch.func.{name} at complex arguments", "use jax.jacrev or jax.jacfwd")
                return made(*args, **kwargs)

            return call

        return lift(transform, func, f"torch.func.{name}")

    enter.__name__ = name


for _name, _derivative in (("jacrev", jax.jacrev), ("jacfwd", jax.jacfwd), ("hessian", jax.hessian)):
    _enter_derivative(_name, _derivative)


def _list_axes(dims: Any, tree: Any) -> list[int | None]:
    """Return an axis for each leaf of arguments, from one for all, or from several."""
    if dims is None or isinstance(dims, int):
        return [dims] * len(jax.tree.leaves(tree))
    pairs = [(dims[k], tree[k]) for k in sorted(tree)] if isinstance(tree, dict) else zip(dims, tree, strict=True)
    return [axis for d, t in pairs for axis in _list_axes(d, t)]


@known("torch.vmap", "torch.func.vmap")
def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return a function that maps `func` over an axis of its arguments.

    Raises:
        NotSupported: `func` draws random numbers, and `randomness="different"` asks for others per element.
    """
    if randomness == "different":
        raise NotSupported("torch.vmap(randomness='different')", "draw the random numbers outside, and map over them")

    def transform(f: Callable[..., Any]) -> Callable[..., Any]:
        def mapped(*args: Any, **kwargs: Any) -> Any:
            leaves, tree = jax.tree.flatten((args, kwargs))
            axes = [*_list_axes(in_dims, args), *_list_axes(0, kwargs)]
            at = [i for i, leaf in enumerate(leaves) if is_array(leaf)]

            def on_entry(*entries: Any) -> Any:
                full = list(leaves)
                for i, entry in zip(at, entries, strict=True):
                    full[i] = entry
                given, named = jax.tree.unflatten(tree, full)
                with without_draws(randomness == "error"):
                    return f(*given, **named)

            return jax.vmap(on_entry, tuple(axes[i] for i in at), out_dims)(*(leaves[i] for i in at))

        return mapped

    return lift(transform, func, "torch.vmap")
