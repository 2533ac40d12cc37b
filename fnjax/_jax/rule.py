"""What a rule is: a function on flat lists of arrays that says how it is run and differentiated.

`_lowering` makes rules out of classes; `_frozen` and `_batched` make rules out of rules; `_primitive` carries them
through JAX.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from fnjax._errors import FnjaxError

Arrays = list[Any]
Needs = tuple[bool, ...]
Batch = Callable[[int, Sequence[Any], Sequence[int | None], Sequence[Any]], tuple[Arrays, list[int | None]]]
LinearMap = Callable[[Sequence[Any], Sequence[Any]], Arrays]

# What can go wrong below the line: a captured array is being differentiated; forward mode on a rule that has none; the
# transpose is due of a rule that is not linear; an intermediate that JAX cannot differentiate; a run that returned
# other outputs than the one before; an intermediate was saved where the user's own batching rule gives outputs only;
# inside shard_map a gradient is made of what is to be summed over the devices and of what is not; or a callback does
# not say that its result varies over the devices.
Trouble = Literal[
    "closure",
    "forward mode",
    "not linear",
    "intermediate",
    "outputs",
    "vmap intermediate",
    "shares and totals",
    "varying callback",
]


class Kept(NamedTuple):
    """Where a residual comes from: the `at`-th operand, output or intermediate of the call."""

    source: Literal["operand", "output", "intermediate"]
    at: int


@dataclasses.dataclass(frozen=True, eq=False)
class Linear:
    """The derivative that one run of forward left behind; it holds no arrays.

    Of `pull` and `push` one may be missing: it is then the transpose of the other.

    Attributes:
        kept: the residuals of `pull` and `push`.
        differentiable: for each output whether it carries a gradient.
        pull: (residuals, cotangents of all outputs or None) → gradients of all operands or None.
        push: (residuals, tangents of all operands or None) → tangents of all outputs or None.
        derive: whether forward mode on the function itself may use the transpose of `pull`.
    """

    kept: tuple[Kept, ...]
    differentiable: tuple[bool, ...]
    pull: LinearMap | None
    push: LinearMap | None = None
    derive: bool = False


class Run(NamedTuple):
    """What one run of forward gives.

    Attributes:
        outputs: its outputs.
        intermediates: what it saved that is neither an operand nor an output.
        linear: its derivative.
        form: what else the rule has to say of its outputs.
    """

    outputs: Arrays
    intermediates: Arrays
    linear: Linear
    form: Any = None


class Traces:
    """What is remembered of a rule that several calls share.

    Attributes:
        calls: how many calls there were.
        runs: by (needs, types of the operands, configuration of JAX) what tracing it gave.
        uses: what else of this kind was called while it was traced; None for a call that nothing is remembered of.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.runs: dict[Hashable, Any] = {}
        self.uses: list[Any] = []


Finish = Callable[[Needs, Sequence[Any], Arrays, Any], Run]


class Rule(Protocol):
    """A function on flat operands that says how it is run when some of them are differentiated."""

    def run(self, needs: Needs, *operands: Any) -> Run:
        """Run forward under the current trace; `needs` says which operands are being differentiated."""

    @property
    def name(self) -> str:
        """The name of the Function."""

    @property
    def residual_name(self) -> str:
        """The name of its residuals for remat policies."""

    @property
    def traces(self) -> Traces | None:
        """What is remembered of it; None for a rule that serves one call."""

    @property
    def batch(self) -> Batch | None:
        """The user's own batching rule: (size, operands, axes, types of outputs) → outputs, axes."""

    @property
    def finish(self) -> Finish | None:
        """What `run` gives, made from (needs, operands, outputs, form); None where forward must run for it."""

    def captures_tracers(self) -> bool:
        """Whether forward or backward use arrays from outside that JAX is tracing."""

    def error(self, what: Trouble) -> FnjaxError:
        """The error to raise, in the user's words."""


def spread(values: Sequence[Any], where: Sequence[bool]) -> Arrays:
    """The values in the places where `where` is set, None in the others."""
    given = iter(values)
    return [next(given) if w else None for w in where]


def chosen(values: Sequence[Any], where: Sequence[bool]) -> Arrays:
    """The values in the places where `where` is set."""
    return [value for value, w in zip(values, where, strict=True) if w]


def without_none(fun: Callable[..., Arrays]) -> tuple[Callable[..., Arrays], list[bool]]:
    """`fun` with None left out of what it returns, and where the others stand (known once it was called)."""
    present: list[bool] = []

    def call(*args: Any) -> Arrays:
        results = fun(*args)
        present[:] = [x is not None for x in results]
        return chosen(results, present)

    return call, present
