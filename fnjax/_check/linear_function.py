"""Check of a Function that says `linear = True`: forward is linear, and backward its adjoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fnjax._check.arguments import is_differentiable
from fnjax._check.jacobian import Arrays
from fnjax._check.problem import Problem, draw_directions
from fnjax._check.report import failure
from fnjax._check.streams import make_stream
from fnjax._function.spec import Options


def says_linear(func: Any) -> bool:
    """Return whether `func` is the `apply` of a class with `linear = True`."""
    cls = getattr(func, "__self__", None)
    return isinstance(cls, type) and issubclass(cls, Options) and cls.linear


def check_linear_function(
    problem: Problem, args: Sequence[Any], selected: Sequence[int], seed: int, rtol: float
) -> None:
    """Raise unless forward is additive and homogeneous, and its dot products are those of backward.

    Both hold for all differentiable arguments together; where some of them are not selected nothing is checked.
    """
    if any(is_differentiable(x) and i not in selected for i, x in enumerate(args)):
        return
    rng, counted = make_stream("inputs of a linear function", seed), problem.connected
    parts = [p for y, counts in zip(problem.outputs, counted, strict=True) if counts for p in y.parts]
    u, v = (draw_directions(rng, problem.in_shapes) for _ in range(2))
    at_u, at_v, combined = (_run(problem, x) for x in (u, v, [2 * a - 5 * b for a, b in zip(u, v, strict=True)]))
    tolerance = max(problem.precision.resolution**0.5, 1e-3 * rtol)
    for y in problem.outputs:
        for p in [p for p in y.parts if p in parts]:
            expected, size = 2 * at_u[p] - 5 * at_v[p], 2 * np.abs(at_u[p]) + 5 * np.abs(at_v[p])
            if not np.all(np.abs(combined[p] - expected) <= tolerance * np.max(size, initial=1.0)):
                raise failure(
                    "forward is not linear, and the class says linear = True",
                    expected=f"forward(2 u - 5 v) = 2 forward(u) - 5 forward(v) in {y.name}, "
                    f"{np.array2string(expected, threshold=20)}",
                    got=np.array2string(combined[p], threshold=20),
                    fix="remove linear = True if forward adds a constant, or is not linear in all arrays together",
                )
    cotangents, grads = problem.random_vjp(seed, 0)
    terms = [[at_u[p] * cotangents[p] for p in parts], [a * np.asarray(g) for a, g in zip(u, grads, strict=True)]]
    forward, backward = (sum(float(np.sum(term)) for term in side) for side in terms)
    size = sum(float(np.sum(np.abs(term))) for side in terms for term in side)
    if not abs(forward - backward) <= tolerance * max(size, 1.0):
        raise failure(
            "backward is not the transpose of forward, and the class says linear = True",
            expected=f"equal dot products <forward(u), g> = <u, backward(g)>, {forward:.9g}",
            got=f"{backward:.9g}, a difference of {abs(forward - backward):.3g}",
            fix="let backward compute exactly the transpose (of complex arrays the conjugate transpose): for a "
            "projection that is the matched back projection; a filtered or interpolated one is not",
        )


def _run(problem: Problem, parts: Arrays) -> Arrays:
    given = [x.astype(p.dtype) for x, p in zip(parts, problem.parts, strict=True)]
    return [np.asarray(y, np.float64) for y in problem.run(given)]
