"""Checks of gradcheck other than the comparison of Jacobians."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._check.arguments import Leaf
from fnjax._check.jacobian import Array
from fnjax._check.problem import Problem, agree, measure_resolution, trace_inlined
from fnjax._check.report import failure
from fnjax._check.streams import make_stream
from fnjax._primitives.jax_internals import open_jaxpr
from fnjax._primitives.jaxprs import iter_equations

LARGE = -512.0
PASSED_THROUGH = (  # operations through which the search for a final cast continues
    *("broadcast_in_dim", "concatenate", "pad", "reshape", "rev", "slice", "split", "squeeze", "transpose"),
    *("add", "add_any", "neg", "copy", "real", "imag", "conj", "mul"),
)
UNDEFINED = 'Please look at "Notes about undefined output gradients" in "tools/autograd/derivatives.yaml"'


def check_multiplied(problem: Problem, *, masked: bool) -> None:
    """Raise unless backward returns zeros for cotangents of zero."""
    grads = problem.vjp([np.zeros(shape) for shape in problem.out_shapes])
    for x in problem.inputs:
        for p in x.parts:
            g = np.asarray(grads[p], np.float64)
            if not (np.allclose(g, 0.0) if masked else np.all(g == 0)):
                raise failure(
                    "backward not multiplied by grad_output",
                    expected=f"zeros for {x.name} where grad_output is zero",
                    got=np.array2string(g, threshold=20),
                    fix="multiply what backward returns by grad_output: it is the gradient of the loss, not of f",
                )


def check_linear(problem: Problem, seed: int, rtol: float, nondet_tol: float) -> None:
    """Raise unless backward is linear: a combination of cotangents gives the same combination of gradients.

    The combination is large, to exceed the usual bounds of gradient clipping: for entries of u and v of size in [1, 2],
    with any signs, |u + 4 v| is at least 2.
    """
    (some, for_some), (others, for_others) = (problem.random_vjp(seed, draw) for draw in range(2))
    combined = problem.vjp([LARGE * (a + 4 * b) for a, b in zip(some, others, strict=True)])
    for x in problem.inputs:
        for p in x.parts:
            a, b, got = (np.asarray(grads[p], np.float64) for grads in (for_some, for_others, combined))
            expected, size = LARGE * (a + 4 * b), abs(LARGE) * (np.abs(a) + 4 * np.abs(b))
            rounding = max(measure_resolution(problem.parts[p].dtype), problem.precision.resolution) ** 0.5
            # Terms that cancel in backward are about as large as grad_output.
            most = np.max(size, initial=abs(LARGE), where=np.isfinite(size))
            slack = rtol * size + rounding * most + nondet_tol * (1 + 5 * abs(LARGE))
            with np.errstate(invalid="ignore"):
                wrong = ~(np.abs(got - expected) <= slack)
            if np.any(wrong & np.isfinite(expected)):
                raise failure(
                    "backward is not linear in grad_output: what it returns is not a derivative of the function",
                    expected=f"for {x.name} and grad_output = {LARGE:g} (u + 4 v): {LARGE:g} times the sum of the "
                    f"gradient for u and four times that for v, {np.array2string(expected, threshold=20)}",
                    got=np.array2string(got, threshold=20),
                    fix="let backward multiply grad_output by what does not depend on it; where it is meant to clip "
                    "gradients, pass check_linear_grad=False to gradcheck, or leave test_linearity out of opcheck",
                )


def check_undefined_grads(problem: Problem) -> None:
    """Raise unless unused outputs count as zero gradients, for one unused output and for all but one."""
    n = len(problem.outputs)
    if n < 2:  # if no output is used JAX does not call backward
        return
    cases = [[j for j in range(n) if j != i] for i in range(n)] + [[i] for i in range(n)]
    cases = cases if n > 2 else cases[:n]
    rng = make_stream("cotangents of used outputs", 0)
    given = [
        {p: rng.normal(size=problem.out_shapes[p]) for j in used for p in problem.outputs[j].parts} for used in cases
    ]
    zeros = [{p: np.zeros_like(ct) for p, ct in some.items()} for some in given]
    run = problem.compile(lambda args, cts: [_vjp_of_some(problem, args, some) for some in cts], problem.parts, given)
    compiled = None if run is None else [run(problem.parts, cts) for cts in (zeros, given)]
    for i, (used, some) in enumerate(zip(cases, given, strict=True)):
        unused = ", ".join(y.name for j, y in enumerate(problem.outputs) if j not in used)
        try:
            for_zeros, for_random = (
                [grads[i] for grads in compiled]
                if compiled
                else [_vjp_of_some(problem, problem.parts, cts) for cts in (zeros[i], some)]
            )
        except RuntimeError as e:
            raise failure(
                f"Expected backward function to handle undefined output grads. {UNDEFINED}",
                expected=f"a backward that works when {unused} is not used",
                got=f"{type(e).__name__}: {e}",
                fix="treat a grad_output of None as zero, or leave ctx.set_materialize_grads(True)",
            ) from e
        except Exception as e:
            e.add_note(
                f"gradcheck called backward for a loss that does not use {unused}: after set_materialize_grads(False) "
                "its grad_output is None. check_undefined_grad=False leaves this out."
            )
            raise
        explicit = problem.vjp([some.get(p, np.zeros(shape)) for p, shape in enumerate(problem.out_shapes)])
        for x in problem.inputs:
            for p in x.parts:
                zero, symbolic, full = (np.asarray(g[p]) for g in (for_zeros, for_random, explicit))
                if np.any(zero != 0) or not agree(symbolic, full, problem.precision.resolution):
                    raise failure(
                        "Expected all input grads to be undefined or zero when all output grads are undefined or "
                        f"zero. {UNDEFINED}",
                        expected=f"for {x.name} the same as with a grad_output of zeros for {unused}",
                        got=np.array2string(zero if np.any(zero != 0) else symbolic, threshold=20),
                        fix="treat a grad_output of None as zero",
                    )


def _vjp_of_some(problem: Problem, args: Sequence[Any], cotangents: dict[int, Any]) -> list[Any]:
    """Return the gradients from those parts of the outputs for which there are cotangents."""
    primals = map(jnp.asarray, args)
    some, pullback = jax.vjp(lambda *xs: [y for p, y in enumerate(problem.real(*xs)) if p in cotangents], *primals)
    return list(pullback([jnp.asarray(cotangents[p], y.dtype) for p, y in zip(sorted(cotangents), some, strict=True)]))


def check_undefined_tangents(problem: Problem, seed: int) -> None:
    """Raise unless a zero tangent has the same effect as a missing one."""
    if len(problem.inputs) < 2:
        return
    rng = make_stream("tangents beside undefined ones", seed)
    given = [
        {p: rng.normal(size=shape) for p, shape in enumerate(problem.in_shapes) if p not in x.parts}
        for x in problem.inputs
    ]
    run = problem.compile(lambda args, ts: [_jvp_of_some(problem, args, some) for some in ts], problem.parts, given)
    every = run(problem.parts, given) if run else (_jvp_of_some(problem, problem.parts, some) for some in given)
    for x, some, absent in zip(problem.inputs, given, every, strict=True):
        complete = problem.jvp([some.get(p, np.zeros(shape)) for p, shape in enumerate(problem.in_shapes)])
        for y in problem.outputs:
            for p in y.parts:
                full, symbolic = np.asarray(complete[p]), np.asarray(absent[p])
                if not agree(full, symbolic, problem.precision.resolution):
                    raise failure(
                        f"Mismatch in tangent values for output with index: {y.position} when input: "
                        f"{x.position} has an undefined tangent value.",
                        expected=np.array2string(symbolic, threshold=20),
                        got=np.array2string(full, threshold=20),
                        fix=f"let the jvp return the same for a tangent of zeros and for none ({x.name})",
                    )


def _jvp_of_some(problem: Problem, args: Sequence[Any], tangents: dict[int, Any]) -> list[Any]:
    """Return the tangents of the outputs for those parts of the inputs that have one."""
    primals = list(map(jnp.asarray, args))

    def some(values: dict[int, Any]) -> list[Any]:
        return problem.real(*(values.get(p, x) for p, x in enumerate(primals)))

    values = {p: primals[p] for p in tangents}
    return list(jax.jvp(some, [values], [{p: jnp.asarray(t, primals[p].dtype) for p, t in tangents.items()}])[1])


def check_batched(problem: Problem, seed: int, *, forward: bool) -> None:
    """Raise unless `jax.vmap` over a derivative agrees with a loop."""
    rng = make_stream("batched directions", seed)
    run: Callable[[Sequence[Any]], list[Any]] = problem.jvp if forward else problem.vjp
    traced: Callable[..., list[Any]] = problem.jvp_traced if forward else problem.vjp_traced
    batched, results = (problem.inputs, problem.outputs) if forward else (problem.outputs, problem.inputs)
    shapes = problem.in_shapes if forward else problem.out_shapes
    batches = [
        [rng.normal(size=(2, *s)) if p in leaf.parts else np.zeros((2, *s)) for p, s in enumerate(shapes)]
        for leaf in batched
    ]
    compiled = problem.compile(lambda batches: [jax.vmap(traced)(*batch) for batch in batches], batches)
    every = compiled(batches) if compiled else None
    for i, (leaf, batch) in enumerate(zip(batched, batches, strict=True)):
        loop = [run([b[k] for b in batch]) for k in range(2)]
        expected = [np.stack([np.asarray(one[p]) for one in loop]) for p in range(len(loop[0]))]
        try:
            got = every[i] if every else jax.vmap(traced)(*map(jnp.asarray, batch))
        except Exception as e:
            raise failure(
                f"While computing batched gradients, got: {e}\n\n"
                "gradcheck or gradgradcheck failed while testing batched gradient computation"
                f"{' with forward-mode AD' if forward else ''}.",
                got=f"{type(e).__name__} from jax.vmap over the derivative of {batched[0].name}",
                fix="use operations that jax.vmap knows (jax.pure_callback takes vmap_method), or pass "
                f"check_batched_{'forward_' if forward else ''}grad=False",
            ) from e
        for other in results:
            for p in other.parts:
                if not agree(got[p], expected[p], problem.precision.resolution):
                    raise _batched_failure(leaf, other, np.asarray(got[p]), expected[p], forward=forward)


def _batched_failure(batched: Leaf, other: Leaf, got: Array, expected: Array, *, forward: bool) -> Exception:
    output, taken = (other, batched) if forward else (batched, other)
    return failure(
        f"For output {output.position} and input {taken.position}:\n\n"
        "gradcheck or gradgradcheck failed while testing batched gradient computation"
        f"{' with forward-mode AD' if forward else ''}.\n\nGot:\n{np.array2string(got, threshold=40)}\n\n"
        f"Expected:\n{np.array2string(expected, threshold=40)}\n",
        expected=f"that jax.vmap over the derivative of {output.name} with respect to {taken.name} agrees with a loop",
        fix="correct the batching rule that the function or its derivative uses",
    )


def check_grad_dtypes(problem: Problem) -> None:
    """Raise unless gradients are computed in the dtype of their inputs.

    JAX, or fnjax, casts what backward returns. So the program of backward is inspected: a gradient that is cast from a
    narrower dtype, in which the function itself computes nothing, was computed with too little precision.
    """
    grads = problem.vjp([np.zeros(shape) for shape in problem.out_shapes])
    program = trace_inlined(problem.vjp_traced, problem.types_out, problem.in_shapes)
    function = trace_inlined(problem.real, problem.types_in, problem.out_shapes)
    own = set() if function is None else {v.aval.dtype for e in iter_equations(function) for v in e.outvars}
    for x in problem.inputs:
        for p in x.parts:
            came = grads[p].dtype
            if program is not None:
                narrow = _find_casts(program, p) - own
                came = min(narrow, key=lambda d: d.itemsize) if narrow else came
            if came != problem.parts[p].dtype:
                raise failure(
                    "Gradient has dtype mismatch",
                    expected=f"dtype {x.dtype} for {x.name}",
                    got=f"{came}, cast afterwards",
                    fix="compute the gradient in the dtype of the input",
                )


def _find_casts(program: Any, output: int) -> set[Any]:
    """Return the narrower dtypes from which an output is cast last."""
    jaxpr = open_jaxpr(program)
    made = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    found, todo = set(), [jaxpr.outvars[output]]
    while todo:
        var = todo.pop()
        eqn = None if hasattr(var, "val") else made.get(var)
        if eqn is None:
            continue
        name = eqn.primitive.name
        if name in PASSED_THROUGH:
            todo += eqn.invars
        elif name == "convert_element_type":
            source = eqn.invars[0].aval.dtype
            if jnp.issubdtype(source, jnp.inexact) and source.itemsize < eqn.outvars[0].aval.dtype.itemsize:
                found.add(source)
    return found
