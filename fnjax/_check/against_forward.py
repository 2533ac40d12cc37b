"""Comparison of backward with JAX's own derivative of forward."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fnjax._check.arguments import Leaf, name_arguments
from fnjax._check.jacobian import Array
from fnjax._check.precision import find_precision
from fnjax._check.problem import Problem, trace_inlined
from fnjax._check.report import PAGE, failure
from fnjax._function.arguments import bind_arguments
from fnjax._function.forward import call_forward, split_outputs
from fnjax._function.function import Function
from fnjax._function.spec import read_spec
from fnjax._primitives.tree import is_tracer, to_tensor
from fnjax.errors import ArgumentError, FnjaxError, message

DRAWS = 2  # of random cotangents
# By the size of the narrowest numbers that are computed with: relative to an entry, and to the largest of its gradient.
TOLERANCES = {8: (1e-7, 1e-9), 4: (1e-4, 1e-5), 2: (5e-2, 1e-2), 1: (2e-1, 1e-1)}


class Gradient(NamedTuple):
    """Gradients of one input, by backward and by JAX.

    Attributes:
        name: the name of the input in messages.
        largest: the largest difference.
        allowed: the tolerance at that element.
        worst: the index of that element.
        got: the value by backward there.
        expected: the value by JAX there.
        wrong: how many elements exceed their tolerance.
        size: the number of elements.
        box: for each axis the range of indices, from and to, of the wrong elements.
        hint: a likely cause.
    """

    name: str
    largest: float
    allowed: float
    worst: tuple[int, ...]
    got: Any
    expected: Any
    wrong: int
    size: int
    box: tuple[tuple[int, int], ...]
    hint: str


class Comparison(NamedTuple):
    """Result of `compare_with_forward`; its string is a table."""

    function: str
    gradients: list[Gradient]
    bits: int

    @property
    def wrong(self) -> list[Gradient]:
        """The gradients that differ."""
        return [g for g in self.gradients if g.wrong]

    def __str__(self) -> str:
        rows = [("gradient for", "largest difference", "allowed", "at", "backward", "derivative of forward", "")]
        for g in self.gradients:
            numbers = (f"{g.largest:.3g}", f"{g.allowed:.3g}", str(list(g.worst)), f"{g.got:.7g}", f"{g.expected:.7g}")
            rows.append((g.name, *numbers, "DIFFERS" if g.wrong else "ok"))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        table = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*table, *(line for g in self.wrong for line in _explain(g))])


def _explain(gradient: Gradient) -> list[str]:
    if gradient.wrong == gradient.size > 1:
        text = f"{gradient.name}: all {gradient.size} elements differ"
    else:
        box = ", ".join(f"{a}:{b}" for a, b in gradient.box)
        text = f"{gradient.name}: {gradient.wrong} of {gradient.size} elements differ, all within [{box}]"
    return [text + (f"; {gradient.hint}" if gradient.hint else "")]


def check_against_forward(
    func: Callable[..., Any], inputs: Sequence[Any], kwargs: Mapping[str, Any], selected: Sequence[int], **how: Any
) -> None:
    """Raise unless backward agrees with JAX's derivative of forward.

    Raises:
        GradcheckError: if they differ, or forward has no derivative.
    """
    found = compare_with_forward(func, inputs, kwargs, selected, **how)
    if found.wrong:
        raise failure(
            f"{found.function}.backward is not the derivative of {found.function}.forward\n{found}",
            expected=f"JAX's own derivative of forward, to the rounding of {found.bits}-bit numbers",
            fix="correct backward where they differ; for one that is another gradient on purpose (straight-through, "
            "clipping) this check can say nothing",
        )


def compare_with_forward(
    func: Callable[..., Any],
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any],
    selected: Sequence[int],
    *,
    atol: float | None = None,
    rtol: float | None = None,
    seed: int = 0,
) -> Comparison:
    """Compare backward with JAX's derivative of forward, for random cotangents.

    Args:
        func: the `apply` of a Function.
        inputs: its positional arguments.
        kwargs: its keyword arguments.
        selected: the positions of the inputs to differentiate.
        atol: absolute tolerance; by default a fraction of the largest element of a gradient.
        rtol: relative tolerance.
        seed: seeds the cotangents.

    Raises:
        ArgumentError: if `func` is not an `apply`.
        GradcheckError: if JAX cannot differentiate forward, or forward returns different values each time.
    """
    owner = getattr(func, "__self__", None)
    if not (isinstance(owner, type) and issubclass(owner, Function)):
        raise ArgumentError(
            message(
                "what is compared with the derivative of forward is the apply of a Function",
                PAGE,
                got=f"{func!r:.80}",
                fix="pass F.apply of the class itself",
            )
        )
    name = owner.__name__
    with_backward, plain = (
        _with_names(functools.partial(f, **kwargs), func, len(inputs)) for f in (func, _without_backward(owner))
    )
    by_hand = Problem(with_backward, inputs, selected)
    try:
        by_jax = Problem(plain, inputs, selected)
        vjps = [by_jax.random_vjp(seed, draw)[1] for draw in range(DRAWS)]
    except FnjaxError:
        raise
    except Exception as e:
        first = str(e).strip().splitlines()[0] if str(e).strip() else ""
        raise failure(
            f"JAX cannot differentiate {name}.forward, so that there is nothing to compare its backward with",
            got=f"{type(e).__name__}: {first}",
            fix="gradcheck compares backward with finite differences, which works for every forward",
        ) from e
    _refuse_chance(by_hand, by_jax, name)
    size = _find_size(by_hand, by_jax)
    gradients = []
    for x in by_hand.inputs:
        pairs = [
            (_join_parts(by_hand.random_vjp(seed, draw)[1], x), _join_parts(vjps[draw], x)) for draw in range(DRAWS)
        ]
        gradients.append(max((_compare(x, *pair, size, atol, rtol) for pair in pairs), key=_how_wrong))
    return Comparison(name, gradients, 8 * size)


def _without_backward(owner: type[Function]) -> Callable[..., Any]:
    """Return forward as a function that JAX differentiates itself; its ctx is that of a differentiated call."""
    spec = read_spec(owner)

    def forward(*args: Any, **kwargs: Any) -> Any:
        arguments, positional = bind_arguments(spec, args, kwargs)
        operands = arguments.split(spec.name, positional, pytree=spec.options.pytree)
        needs = [d and is_tracer(x) for d, x in zip(arguments.differentiable, operands, strict=True)]
        ctx = spec.ctx(arguments.needs(needs), operands)
        returned = call_forward(spec, ctx, arguments.fill(operands), arguments.keywords)
        arrays, form = split_outputs(spec, returned)
        marked = {id(x) for x in ctx.non_differentiable}
        return form.fill([jax.lax.stop_gradient(to_tensor(x)) if id(x) in marked else to_tensor(x) for x in arrays])

    return forward


def _with_names(function: Any, func: Callable[..., Any], count: int) -> Any:
    function.argument_names = name_arguments(func, count)
    return function


def _refuse_chance(by_hand: Problem, by_jax: Problem, name: str) -> None:
    for y in by_hand.outputs:
        for p in y.parts:
            ours, theirs = by_hand.values_differentiated[p], by_jax.values_differentiated[p]
            if not np.allclose(ours, theirs, 1e-3, 1e-5, equal_nan=True):
                raise failure(
                    f"{name}.forward gives other values for {y.name} in another run",
                    expected=np.array2string(ours, threshold=20),
                    got=np.array2string(theirs, threshold=20),
                    fix="let random numbers come of a key or a seed among the arguments",
                )


def _find_size(*problems: Problem) -> int:
    """Return the size in bytes of the narrowest floats in the programs, which limits how closely results can agree."""
    programs = [trace_inlined(p.vjp_traced, p.types_out, p.in_shapes) for p in problems]
    dtypes = [part.dtype for p in problems for part in p.parts]
    return min(find_precision(dtypes, programs).size, *(p.precision.size for p in problems))


def _join_parts(grads: Sequence[Array], x: Leaf) -> Array:
    parts = [np.asarray(grads[p]) for p in x.parts]
    return parts[0] + 1j * parts[1] if x.is_complex else parts[0]


def _compare(x: Leaf, got: Array, expected: Array, size: int, atol: float | None, rtol: float | None) -> Gradient:
    relative, of_largest = TOLERANCES[size]
    finite = np.abs(expected[np.isfinite(expected)])
    least = of_largest * float(finite.max(initial=0)) if atol is None else atol
    allowed = (relative if rtol is None else rtol) * np.abs(expected) + least
    with np.errstate(invalid="ignore"):
        away = np.abs(got - expected)
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        away = np.where(same, 0.0, np.where(np.isnan(away), np.inf, away))
        wrong = ~same & ~(away <= allowed)
    if not away.size:
        return Gradient(x.name, 0.0, 0.0, (), 0.0, 0.0, 0, 0, (), "")
    worst = np.where(wrong, away, -1.0) if wrong.any() else away
    index = tuple(map(int, np.unravel_index(np.argmax(worst), away.shape)))
    where = np.nonzero(wrong)
    box = tuple((int(axis.min()), int(axis.max()) + 1) for axis in where) if wrong.any() else ()
    return Gradient(
        x.name,
        float(away[index]),
        float(np.broadcast_to(allowed, away.shape)[index]),
        index,
        got[index],
        expected[index],
        int(wrong.sum()),
        away.size,
        box,
        _guess(got, expected, wrong),
    )


def _how_wrong(gradient: Gradient) -> tuple[int, float]:
    return gradient.wrong, gradient.largest


def _guess(got: Array, expected: Array, wrong: Any) -> str:
    """Return the one factor that explains all elements that differ, as text; empty if there is none."""
    if not wrong.any():
        return ""
    got, expected = got[wrong], expected[wrong]
    if not np.any(got):
        return "backward gives zeros there"
    if not np.any(expected):
        return "there the derivative is zero"
    if np.isfinite(got).all() and np.isfinite(expected).all() and np.all(expected != 0) and got.size > 1:
        ratio = got / expected
        middle = np.median(ratio.real)
        if np.allclose(ratio, middle, 1e-3):
            return f"there backward gives {middle:.4g} times what is due"
    return ""
