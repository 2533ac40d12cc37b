"""Function at one point, in real numbers: its values nearby, and its derivatives in both modes."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr

from fnjax._check import running as _running
from fnjax._check.arguments import Leaf, Selection, name_arguments, transfer
from fnjax._check.compiled import Results, compile_traced, compile_vjp
from fnjax._check.jacobian import Array, Arrays, DirectionalDerivative, StepError, Traced
from fnjax._check.precision import Precision, find_precision
from fnjax._check.streams import make_stream
from fnjax._function.signature import refuse_torch
from fnjax._primitives.tree import is_inexact, is_tensor, iter_leaves, leaves_with_path, to_tensor
from fnjax.errors import OutputError, type_name


class NoArrayError(OutputError, AttributeError):
    """Error for a `func` that did not return an array; PyTorch raises an AttributeError there."""


NoArrayError.__name__ = NoArrayError.__qualname__ = "OutputError"
NoArrayError.__module__ = "fnjax"


class Problem:
    """Function of its differentiable inputs, all else fixed, with every complex array as two real parts.

    Attributes:
        inputs: the arrays to be differentiated.
        outputs: the arrays whose derivatives are compared; integer ones only if there are no others.
        parts: the values of the parts of the inputs.
    """

    def __init__(self, func: Callable[..., Any], inputs: Sequence[Any], argnums: Sequence[int]) -> None:
        self._func, self._selection = func, Selection(transfer(inputs), argnums)
        self._vjps: dict[tuple[int, int], tuple[Arrays, Arrays]] = {}
        self.inputs: list[Leaf] = []
        names = name_arguments(func, len(inputs))
        for array, i, suffix in self._selection.leaves():
            name = f"input {i}" + (f" ('{names[i]}')" if names[i] else "") + suffix
            self._add(self.inputs, i, name, array)
        self.parts = [np.asarray(p) for x in self._selection.arrays for p in _split_complex(np.asarray(x))]
        returned = func(*self._selection.args)
        refuse_torch(returned, "the output of func")
        paths = leaves_with_path(returned)
        tensors = [j for j, (_, y) in enumerate(paths) if is_tensor(y)]
        if not tensors:
            raise NoArrayError(
                f"func returned no array: '{type_name(returned)}' object has no attribute 'requires_grad'\n"
                f"  expected: an array, or a container of arrays\n  got: {returned!r:.80}"
            )
        self._picked = [j for j in tensors if is_inexact(paths[j][1])]
        self.constant = not self._picked  # integers only, or booleans
        if self.constant:
            self._picked = [j for j in tensors if not jnp.issubdtype(paths[j][1].dtype, jax.dtypes.extended)]
        self.outputs: list[Leaf] = []
        for position, j in enumerate(tensors):
            path, y = paths[j]
            plain = keystr(path) in ("", f"[{j}]")
            if j in self._picked:
                self._add(self.outputs, position, f"output {position}" + ("" if plain else f" ({keystr(path)})"), y)
        parts = [p for j in self._picked for p in self._out_parts(paths[j][1])]
        self.values = [_fetch(p) for p in parts]
        self._out_types = [jax.ShapeDtypeStruct(p.shape, p.dtype) for p in parts]
        self._zeros = [np.zeros(p.shape, p.dtype) for p in parts]

    @staticmethod
    def _add(leaves: list[Leaf], position: int, name: str, x: Any) -> None:
        start = leaves[-1].parts[-1] + 1 if leaves else 0
        parts = (start, start + 1) if jnp.issubdtype(x.dtype, jnp.complexfloating) else (start,)
        leaves.append(Leaf(position, name, x.shape, x.dtype, parts))

    def _out_parts(self, y: Any) -> list[Any]:
        y = to_tensor(y)
        return [y.astype(float)] if self.constant else _split_complex(y)

    # --- the function

    def real(self, *parts: Any) -> list[Any]:
        """Return the parts of the outputs at the given parts of the inputs."""
        leaves = [*iter_leaves(self._func(*self.arguments(parts)))]
        if self._picked and len(leaves) <= self._picked[-1]:
            raise StepError("number", "", len(self._picked), len(leaves))
        return [p for j in self._picked for p in self._out_parts(leaves[j])]

    def arguments(self, parts: Sequence[Any]) -> list[Any]:
        """Return the arguments of the function with other parts of the inputs."""
        values = [
            jax.lax.complex(parts[x.parts[0]], parts[x.parts[1]]) if x.is_complex else parts[x.parts[0]]
            for x in self.inputs
        ]
        return self._selection.fill(values)

    def run(self, parts: Arrays) -> list[Any]:
        """Return the parts of the outputs, compiled where that makes no difference, else outside jit."""
        if self._compiled is None:
            return self.real(*map(jnp.asarray, parts))
        return self._compiled(parts, self._zeros).values

    @property
    def in_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the parts of the inputs."""
        return [p.shape for p in self.parts]

    @property
    def out_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the parts of the outputs."""
        return [y.shape for y in self.values]

    @property
    def types_in(self) -> list[jax.ShapeDtypeStruct]:
        """The types of the parts of the inputs."""
        return [jax.ShapeDtypeStruct(p.shape, p.dtype) for p in self.parts]

    def shifted(self, directions: Arrays, by: float) -> Arrays:
        """Return the parts of the inputs after a step."""
        return [p + (by * d).astype(p.dtype) for p, d in zip(self.parts, directions, strict=True)]

    def difference(self, directions: Arrays, eps: float) -> Arrays:
        """Return the central difference quotient along a direction.

        Raises:
            StepError: if shapes or dtypes depend on the values.
        """
        plus, minus = self.run(self.shifted(directions, eps)), self.run(self.shifted(directions, -eps))
        for what, of in (("shape", operator.attrgetter("shape")), ("dtype", operator.attrgetter("dtype"))):
            expected = map(of, self._out_types)
            for p, m, e in zip(plus, minus, expected, strict=True):
                if of(p) != of(m):
                    raise StepError(what, eps, of(p), of(m))
                if of(p) != e:
                    raise StepError(what, eps, e, of(p))
        with np.errstate(invalid="ignore", over="ignore"):
            return [(_fetch(p) - _fetch(m)) / (2 * eps) for p, m in zip(plus, minus, strict=True)]

    def numerical(self, eps: float) -> DirectionalDerivative:
        """Return the Jacobian by central differences, by steps of the inputs."""

        def trace() -> Traced:
            closed = trace_inlined(self.real, self.types_in, self.out_shapes)

            def staged(directions: list[Any]) -> list[Any]:
                moves = [(eps * d).astype(p.dtype) for p, d in zip(self.parts, directions, strict=True)]
                plus = _running.evaluate(closed, [p + m for p, m in zip(self.parts, moves, strict=True)])
                minus = _running.evaluate(closed, [p - m for p, m in zip(self.parts, moves, strict=True)])
                return [(p.astype(float) - m.astype(float)) / (2 * eps) for p, m in zip(plus, minus, strict=True)]

            return closed, staged

        return DirectionalDerivative(
            "numerical Jacobian",
            lambda directions: self.difference(directions, eps),
            self.in_shapes,
            self.out_shapes,
            trace,
            self._compiled is not None,
        )

    @functools.cached_property
    def precision(self) -> Precision:
        """The narrowest floats in which the function computes."""
        try:
            program = jax.make_jaxpr(self.real)(*self.types_in)
        except Exception:  # noqa: BLE001 - outside jit the function may work, or raise a clearer error
            program = None
        return find_precision([p.dtype for p in self.parts], [program])

    # --- its derivatives

    @functools.cached_property
    def _compiled(self) -> Callable[[Sequence[Any], Sequence[Any]], Results] | None:
        """The function and its vjp as one program; None where only runs outside jit show what they do.

        That is where the program is not reproducible, or its values are others than those outside jit.
        """
        compiled = compile_vjp(self.real, self.types_in, self._out_types)
        if compiled is None:
            return None
        return compiled if all(map(agree, map(_fetch, compiled(self.parts, self._zeros).values), self.values)) else None

    def compile(self, fun: Callable[..., Any], *types: Any) -> Callable[..., Any] | None:
        """Compile what calls the function; return None where only runs outside jit show what it does."""
        return None if self._compiled is None else compile_traced(fun, *types)

    def _as_outputs(self, xs: Sequence[Any]) -> list[Any]:
        """Return NumPy arrays in the dtypes of the outputs."""
        return [x.astype(t.dtype, copy=False) for x, t in zip(xs, self._out_types, strict=True)]

    @functools.cached_property
    def _vjp(self) -> tuple[list[Any], Callable[[list[Any]], Any]]:
        return jax.vjp(self.real, *map(jnp.asarray, self.parts))

    @property
    def values_differentiated(self) -> Arrays:
        """The parts of the outputs while the function is being differentiated."""
        if self._compiled is not None:
            return [_fetch(y) for y in self._compiled(self.parts, self._zeros).values_differentiated]
        return [_fetch(y) for y in self._vjp[0]]

    @property
    def types_out(self) -> list[jax.ShapeDtypeStruct]:
        """The types of the parts of the outputs while the function is being differentiated."""
        if self._compiled is not None:
            return self._out_types
        return [jax.ShapeDtypeStruct(y.shape, y.dtype) for y in self._vjp[0]]

    def vjp_traced(self, *cotangents: Any) -> Any:
        """Compute the vjp of arrays, which may be tracers, by the rules of the function."""
        pullback = self._vjp[1] if self._compiled is None else jax.vjp(self.real, *map(jnp.asarray, self.parts))[1]
        return pullback([jnp.asarray(ct, t.dtype) for ct, t in zip(cotangents, self.types_out, strict=True)])

    def vjp(self, cotangents: Sequence[Any]) -> list[Any]:
        """Compute the vjp of NumPy arrays: cotangents of the parts of the outputs → gradients of those of the inputs.

        It is compiled where that makes no difference.
        """
        if self._compiled is not None:
            return self._compiled(self.parts, self._as_outputs(cotangents)).gradients
        return list(self._vjp[1]([_cast(y.dtype, ct) for ct, y in zip(cotangents, self._vjp[0], strict=True)]))

    def random_vjp(self, seed: int, draw: int) -> tuple[Arrays, Arrays]:
        """Return random cotangents and their gradients, computed once for each seed and draw."""
        if (seed, draw) not in self._vjps:
            cotangents = draw_directions(make_stream("cotangents", seed, draw), self.out_shapes)
            self._vjps[seed, draw] = cotangents, [_fetch(g) for g in self.vjp(cotangents)]
        return self._vjps[seed, draw]

    def jvp_traced(self, *tangents: Any) -> Any:
        """Compute the jvp of arrays, which may be tracers, by the rules of the function."""
        primals = list(map(jnp.asarray, self.parts))
        return jax.jvp(self.real, primals, [jnp.asarray(t, p.dtype) for t, p in zip(tangents, primals, strict=True)])[1]

    def jvp(self, tangents: Sequence[Any]) -> list[Any]:
        """Compute the jvp of NumPy arrays, compiled where that makes no difference."""
        return list(self._jvp(*(t.astype(p.dtype, copy=False) for t, p in zip(tangents, self.parts, strict=True))))

    @functools.cached_property
    def _jvp(self) -> Callable[..., Any]:
        return self.compile(self.jvp_traced, *self.types_in) or self.jvp_traced

    def backward(self) -> DirectionalDerivative:
        """Return the vjp: cotangents of the outputs → gradients of the inputs."""
        return _make_linear(
            "analytical Jacobian", self.vjp, self.vjp_traced, self.types_out, self.in_shapes, self._compiled
        )

    def forward(self) -> DirectionalDerivative:
        """Return the jvp: tangents of the inputs → tangents of the outputs."""
        compiled = None if self._jvp == self.jvp_traced else self._jvp
        return _make_linear(
            "forward-mode Jacobian", self.jvp, self.jvp_traced, self.types_in, self.out_shapes, compiled
        )

    @functools.cached_property
    def connected(self) -> list[bool]:
        """For each output a bool: can it have a derivative at all (PyTorch: requires_grad)?

        JAX knows once it has linearized the function: `stop_gradient` and `mark_non_differentiable` leave no tangent.
        """
        if self.constant:
            return [False] * len(self.outputs)
        parts = list(map(jnp.asarray, self.parts))
        try:
            linear = jax.linearize(self.real, *parts)[1]
            closed = trace_inlined(linear, parts, self.out_shapes, derivatives=False)
        except Exception:  # noqa: BLE001 - all outputs then count as connected
            closed = None
        if closed is None:
            return [True] * len(self.outputs)
        depends = _running.find_dependent(closed)
        connected = [any(depends[p] for p in y.parts) for y in self.outputs]
        return [c or (any(connected) and getattr(self._func, "every_output_counts", False)) for c in connected]


def draw_directions(rng: np.random.Generator, shapes: Sequence[tuple[int, ...]]) -> Arrays:
    """Return numbers whose size is uniform in [1, 2], with random signs."""
    return [rng.choice([-1.0, 1.0], shape) * rng.uniform(1.0, 2.0, shape) for shape in shapes]


def trace_inlined(
    fun: Callable[..., Any], types: Sequence[Any], outs: Sequence[tuple[int, ...]], *, derivatives: bool = True
) -> Any:
    """Return the program of a function, `running.inline`; None if it cannot be traced, or returns other shapes."""
    try:
        closed = _running.inline(jax.make_jaxpr(fun)(*types), types, derivatives=derivatives)
    except Exception:  # noqa: BLE001 - outside jit the function may work, or raise a clearer error
        return None
    return closed if [aval.shape for aval in closed.out_avals] == list(outs) else None


def _make_linear(
    name: str,
    run: Callable[[Sequence[Any]], list[Any]],
    fun: Callable[..., Any],
    types: Sequence[Any],
    outs: list[tuple[int, ...]],
    compiled: Any = None,
) -> DirectionalDerivative:
    def trace() -> Traced:
        closed = trace_inlined(fun, types, outs)

        def staged(directions: list[Any]) -> list[Any]:
            return _running.evaluate(closed, [d.astype(t.dtype) for d, t in zip(directions, types, strict=True)])

        return closed, staged

    shapes = [t.shape for t in types]
    return DirectionalDerivative(
        name, lambda ds: [_fetch(y) for y in run(ds)], shapes, outs, trace, compiled is not None
    )


def _split_complex(x: Any) -> list[Any]:
    return [x.real, x.imag] if jnp.issubdtype(x.dtype, jnp.complexfloating) else [x]


def _cast(dtype: Any, x: Any) -> jax.Array:
    """Return an array of a dtype; NumPy converts in a tenth of JAX's time."""
    return jnp.asarray(x.astype(dtype, copy=False)) if isinstance(x, np.ndarray) else jnp.asarray(x, dtype)


def _fetch(x: Any) -> Array:
    return np.asarray(x).astype(np.float64)


def measure_resolution(dtype: Any) -> float:
    """Return the distance from 1 to the next number."""
    return float(jnp.finfo(dtype).eps)  # type: ignore[no-untyped-call]  # NumPy's does not know bfloat16


def agree(got: Any, expected: Any, resolution: float = 0.0) -> bool:
    """Return whether two computations of the same value agree, up to the rounding of a sum in another order.

    Args:
        got: the result of one.
        expected: the result of the other.
        resolution: of the computation, if coarser than that of the dtypes.
    """
    got, expected = np.asarray(got), np.asarray(expected)
    finite = np.abs(expected[np.isfinite(expected)])
    unit = max(resolution, measure_resolution(got.dtype)) if is_inexact(got) else 0.0
    rounding = 64 * unit * float(finite.max(initial=0))
    return np.allclose(got, expected, 1e-5, max(1e-8, rounding), equal_nan=True)
