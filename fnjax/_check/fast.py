"""Fast mode: the Jacobians are compared along random directions.

The mathematics. Let N be the true Jacobian, A the one by backward, E = A - N. Draw u for the outputs and v for
the inputs, all entries independent, each a random sign times a number uniform in [1, 2]. Backward computes uᵀA; the
function yields N v from two difference quotients, with steps eps and 2 eps, whose combination (4 D(eps) - D(2 eps)) / 3
is free of the error in eps². The test is d = |uᵀA v - uᵀN v| = |uᵀE v| ≤ τ.

- The bound τ. It does not depend on the user's tolerances: τ is ten times the rounding error of uᵀN v, estimated
  from the size of the outputs and from the median of |D(eps) - D(2 eps)| over them, which single kinks do not change.
  For n outputs of about 1 it is some 6e-8 √n: 4e-6 at 64x64, where entries are wrong by 1e-2 or more.
- False acceptance. Let e be the largest entry of |E|, in row o of E say. Each entry of u and v has a density of
  at most 1/2. For all of v fixed but the entry that multiplies e, P(|(E v)_o| ≤ t) ≤ t / e; for all of u fixed but u_o,
  P(d ≤ τ) ≤ τ / |(E v)_o|. Together P(d ≤ τ) ≤ r (1 + ln(1 / r)) with r = τ / e. Two independent draws are made, so a
  gradient of which any entry is wrong by e passes with probability at most (r (1 + ln(1 / r)))²: 2e-8 for e = 1e5 τ.
  PyTorch's fast mode allows atol Σu Σv, 42 at 64x64, for positive u and v: it sees nothing that is wrong in one place.
- No decision. If ten times the rounding error is more than the tolerance of an entry of usual size, as with
  float32 and a step of 1e-6, u and v decide nothing: that is a doubt as well.
- False rejection. None: a doubt is passed to the slow mode, whose verdict on the entries holds. So a
  function whose finite differences are rough costs time, not a wrong verdict.

For forward mode A v is known in full, and each of its entries is compared: P ≤ (τ / e)².
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from fnjax._check.jacobian import Array, Arrays
from fnjax._check.problem import Problem, draw_directions, measure_resolution
from fnjax._check.streams import make_stream

DRAWS = 2


@dataclasses.dataclass(frozen=True)
class Doubt:
    """Result of random directions that disagree; its text names the seed."""

    seed: int
    draw: int
    numerical: float
    analytical: float
    tolerance: float

    def __str__(self) -> str:
        return (
            f"seed {self.seed}, random direction {self.draw + 1} of {DRAWS}: numerical {self.numerical:.10g}, "
            f"analytical {self.analytical:.10g}, rounding explains {self.tolerance:.3g} (repeat with fast_mode=True, "
            f"seed={self.seed})"
        )


def _dot(xs: Sequence[Array], ys: Sequence[Array]) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        return float(sum(np.vdot(x, y) for x, y in zip(xs, ys, strict=True)))


def _take_differences(problem: Problem, v: Arrays, eps: float) -> tuple[Arrays, list[Array]]:
    """Return the derivative along v, and for each output a bound of its rounding error."""
    one, two = problem.difference(v, eps), problem.difference(v, 2 * eps)
    scatter = np.concatenate([np.abs(a - b).ravel() for a, b in zip(one, two, strict=True)] or [np.zeros(0)])
    median = float(np.median(scatter)) if scatter.size else 0.0
    unit = 16 * max(problem.precision.resolution, *(measure_resolution(p.dtype) for p in problem.parts)) / eps
    with np.errstate(invalid="ignore", over="ignore"):
        best = [(4 * a - b) / 3 for a, b in zip(one, two, strict=True)]
        return best, [2 * median + unit * np.abs(y) for y in problem.values]


def _find_tolerance(derivative: Arrays, rtol: float, atol: float) -> float:
    """Return slow mode's tolerance for an entry of median size, the smallest over the outputs."""
    return min((atol + rtol * float(np.median(np.abs(d))) for d in derivative if d.size), default=np.inf)


def check_backward(problem: Problem, eps: float, rtol: float, atol: float, seed: int) -> Doubt | None:
    """Compare uᵀA v with uᵀN v; return a doubt if they disagree, else None."""
    doubt = _find_doubt(problem, eps, rtol, atol, seed, None)
    if doubt is not None and not all(problem.connected) and any(problem.connected):
        counts = [c for y, c in zip(problem.outputs, problem.connected, strict=True) for _ in y.parts]
        doubt = _find_doubt(problem, eps, rtol, atol, seed, counts)
    return doubt


def _find_doubt(
    problem: Problem, eps: float, rtol: float, atol: float, seed: int, counts: Sequence[bool] | None
) -> Doubt | None:
    rng = make_stream("tangents", seed)
    for draw in range(DRAWS):
        v = draw_directions(rng, problem.in_shapes)
        u, gradients = problem.random_vjp(seed, draw)
        if counts is not None:
            u = [x * c for x, c in zip(u, counts, strict=True)]
            gradients = [np.asarray(g, np.float64) for g in problem.vjp(u)]
        derivative, rounding = _take_differences(problem, v, eps)
        numerical, analytical = _dot(u, derivative), _dot(gradients, v)
        deviation = np.sqrt(sum(np.sum((x * e) ** 2) for x, e in zip(u, rounding, strict=True)))
        tolerance = 5 * float(deviation) + 1e-12 * sum(
            float(np.sum(np.abs(g * x))) for g, x in zip(gradients, v, strict=True)
        )
        if not (abs(analytical - numerical) <= tolerance and 5 * deviation <= _find_tolerance(derivative, rtol, atol)):
            return Doubt(seed, draw, numerical, analytical, tolerance)
    return None


def check_forward(problem: Problem, eps: float, rtol: float, atol: float, seed: int) -> Doubt | None:
    """Compare A v with N v; return a doubt if they disagree, else None."""
    rng = make_stream("tangents", seed)
    for draw in range(DRAWS):
        v = draw_directions(rng, problem.in_shapes)
        derivative, rounding = _take_differences(problem, v, eps)
        for d, t, e in zip(derivative, problem.jvp(v), rounding, strict=True):
            analytical = np.asarray(t, np.float64)
            with np.errstate(invalid="ignore"):
                excess = np.abs(analytical - d) - np.minimum(10 * e + 1e-12 * np.abs(d), atol + rtol * np.abs(d))
            excess = np.where(np.isnan(excess), np.inf, excess)
            if np.any(excess > 0):
                at = np.unravel_index(np.argmax(excess), excess.shape)
                return Doubt(seed, draw, float(d[at]), float(analytical[at]), float(10 * e[at]))
    return None
