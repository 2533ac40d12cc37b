"""What a rule is: a function on flat lists of arrays that says how it is run and differentiated.

A call of a Function makes one (`_call.apply`); `batched` and `closed` make rules out of rules; the primitives carry
them through JAX.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

Arrays = list[Any]
Needs = tuple[bool, ...]
LinearMap = Callable[[Sequence[Any], Sequence[Any]], Arrays]
# (size, operands, axes, types of outputs) → outputs, axes
Batch = Callable[[int, Sequence[Any], Sequence[int | None], Sequence[Any]], tuple[Arrays, list[int | None]]]

# What can go wrong below the line: a captured array is being differentiated; the transpose is due of a rule that is not
# linear; an intermediate that JAX cannot differentiate; a run that returned other outputs than the one before; an
# intermediate was saved where the user's own batching rule gives outputs only; inside shard_map a gradient is made of
# what is to be summed over the devices and of what is not; a callback does not say that its result varies over the
# devices; a Ref is being differentiated; on a mesh with Explicit axes, a backward whose shardings JAX cannot tell uses
# an array from outside; or what prints or checks is differentiated after checkify opened it.
Trouble = Literal[
    "closure",
    "not linear",
    "intermediate",
    "outputs",
    "vmap intermediate",
    "shares and totals",
    "varying callback",
    "perturbed ref",
    "explicit axes",
    "checked",
    "copies in backward",
]


class Kept(NamedTuple):
    """Where a residual comes from: the `at`-th operand, output or intermediate of the call."""

    source: Literal["operand", "output", "intermediate"]
    at: int


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Derivative:
    """The derivative that one run of forward left behind; it holds no arrays.

    Of `pull` and `push` one may be missing: it is then the transpose of the other.

    Attributes:
        kept: the residuals of `pull` and `push`.
        differentiable: for each output whether it carries a gradient.
        pull: (residuals, cotangents of all outputs or None) → gradients of all operands or None.
        push: (residuals, tangents of all operands or None) → tangents of all outputs or None.
    """

    kept: tuple[Kept, ...]
    differentiable: tuple[bool, ...]
    pull: LinearMap | None
    push: LinearMap | None = None


class Run(NamedTuple):
    """What one run of forward gives: outputs, what it saved that is neither operand nor output, and the derivative."""

    outputs: Arrays
    intermediates: Arrays
    derivative: Derivative


class Owner(Protocol):
    """Whom a rule belongs to: a call of a Function, or what was left of one when it was closed."""

    def error(self, what: Trouble) -> Exception:
        """The exception for a trouble, in the user's words."""

    def captures_tracers(self) -> bool:
        """Whether forward or backward are seen to use arrays from outside that JAX is tracing."""

    def operand_names(self) -> tuple[str, ...]:
        """For each operand the name of its argument, for those who draw."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Rule:
    """A function on flat operands that says how it is run when some of them are differentiated.

    Attributes:
        name: of the Function.
        residual_name: of its residuals, for remat policies.
        run: (needs, *operands) → Run, under the current trace; `needs` says which operands are being differentiated.
        owner: answers for it.
        batch: the user's own batching rule.
        finish: (needs, operands, outputs) → Run, where the derivative can be had from these; None where forward must
            run for it.
    """

    name: str
    residual_name: str
    run: Callable[..., Run]
    owner: Owner
    batch: Batch | None = None
    finish: Callable[[Needs, Sequence[Any], Arrays], Run] | None = None

    def error(self, what: Trouble) -> Exception:
        """The exception for a trouble."""
        return self.owner.error(what)


def spread(values: Sequence[Any], where: Sequence[bool]) -> Arrays:
    """The values in the places where `where` is set, None in the others."""
    given = iter(values)
    return [next(given) if w else None for w in where]


def unique(values: Sequence[Any]) -> tuple[Arrays, list[int]]:
    """Return the distinct objects among some values, and for each value its place among these."""
    distinct = {id(x): x for x in values}
    places = {key: i for i, key in enumerate(distinct)}
    return list(distinct.values()), [places[id(x)] for x in values]


def chosen(values: Sequence[Any], where: Sequence[bool]) -> Arrays:
    """The values in the places where `where` is set."""
    return [value for value, w in zip(values, where, strict=True) if w]
