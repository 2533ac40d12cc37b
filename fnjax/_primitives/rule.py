"""Rules: functions on flat lists of arrays, with how to run and differentiate them.

A call of a Function is one (`_function.apply`); `batching` and `closure_convert` derive rules from rules; the
primitives take them through JAX's transformations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from jax.extend.core import ClosedJaxpr

from fnjax._primitives.types import Aval

Arrays = list[Any]
Needs = tuple[bool, ...]
LinearMap = Callable[[Sequence[Any], Sequence[Any]], Arrays]

Method = Literal["forward", "backward", "jvp"]
OPERATION = "an operation"  # what an error says of an operation without a transpose whose place is not known

# Error kinds, in this order: a closed-over array is being differentiated; a method to transpose is not linear; JAX
# cannot transpose an operation in it; a residual of a linear rule depends on what it is linear in; one is being
# differentiated; JAX cannot differentiate an intermediate; a run returned other outputs than an earlier one; an
# intermediate was saved, and the user's batching rule returns outputs only; inside shard_map a gradient adds partial
# and reduced gradients; a callback hides that its result varies over the devices; a Ref is being differentiated; on a
# mesh with Explicit axes, a backward whose shardings JAX cannot infer closes over an array; operations with effects are
# differentiated after checkify evaluated them; a Function that sums over devices is applied in a backward that is
# differentiated; forward mode under jit has an ordered effect; a transformation has no rule for Functions.
ErrorKind = Literal[
    "closure",
    "forward not linear",
    "backward not linear",
    "jvp not linear",
    "forward without transpose",
    "backward without transpose",
    "jvp without transpose",
    "linear residual",
    "linear parameter",
    "intermediate",
    "outputs",
    "vmap intermediate",
    "partial and reduced",
    "varying callback",
    "perturbed ref",
    "explicit axes",
    "checked",
    "copies in backward",
    "ordered effect",
    "transformation",
]


class ResidualSource(NamedTuple):
    """Source of a residual: the `at`-th operand, output or intermediate of the call."""

    source: Literal["operand", "output", "intermediate"]
    at: int


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Derivative:
    """Derivative of one run of forward; it holds no arrays.

    If one of `vjp` and `jvp` is missing, it is the transpose of the other.

    Attributes:
        sources: the sources of the residuals of `vjp` and `jvp`.
        differentiable: for each output whether it carries a gradient.
        vjp: (residuals, cotangents of all outputs or None) → gradients of all operands or None.
        jvp: (residuals, tangents of all operands or None) → tangents of all outputs or None.
        is_linear: whether the Function is linear: `jvp` is forward itself, `vjp` its transpose, and no residual depends
            on an operand that can be differentiated.
    """

    sources: tuple[ResidualSource, ...]
    differentiable: tuple[bool, ...]
    vjp: LinearMap | None = dataclasses.field(repr=False)
    jvp: LinearMap | None = dataclasses.field(default=None, repr=False)
    is_linear: bool = False


class ForwardResult(NamedTuple):
    """Result of one run of forward: outputs, saved arrays that are neither operand nor output, and the derivative."""

    outputs: Arrays
    intermediates: Arrays
    derivative: Derivative


@dataclasses.dataclass(frozen=True)
class Body:
    """Operations of forward.

    Attributes:
        jaxpr: (closed-over arrays, operands) → outputs, and inside a derivative the intermediates that were saved.
            The equation has it as a parameter of its own, too, where JAX's calls have theirs.
        n_closed_over: how many of the equation's operands are closed-over arrays; they come first.
        n_outputs: how many of its results are outputs.
    """

    jaxpr: ClosedJaxpr = dataclasses.field(repr=False)
    n_closed_over: int
    n_outputs: int


class Rule(Protocol):
    """Function on flat operands, with how it is run when some of them are differentiated.

    Attributes:
        name: of the Function.
        residual_name: of its residuals, for remat policies.
        functions: the user's methods and static arguments, which may close over tracers.
        has_vmap: whether `vmap` is the user's own batching rule; without it JAX batches `forward`.
        finishes: whether `finish` computes the derivative from the outputs; if not, `forward` must run for it.
    """

    name: str
    residual_name: str
    functions: Sequence[Any]
    has_vmap: bool
    finishes: bool

    @property
    def linear_in(self) -> Needs:
        """For each operand whether it is one of those in which, all together, the rule is linear.

        It is empty if the derivative says nothing of that.
        """

    def forward(self, needs: Needs, operands: Sequence[Any]) -> ForwardResult:
        """Run forward under the current trace; `needs` says which operands are being differentiated."""

    def finish(self, needs: Needs, operands: Sequence[Any], outputs: Arrays) -> ForwardResult:
        """Return what `forward` returns, from outputs that were computed without derivatives."""

    def vmap(
        self, size: int, operands: Sequence[Any], dims: Sequence[int | None], avals: Sequence[Aval]
    ) -> tuple[Arrays, list[int | None]]:
        """Return batched outputs and their batch axes; `avals` are the types of the outputs for one example."""

    def error(self, kind: ErrorKind, operation: str = OPERATION) -> Exception:
        """Build the exception for an error kind, for the user's Function; `operation` is what JAX cannot transpose."""

    def operand_names(self) -> tuple[str, ...]:
        """Return for each operand the name of its argument, for pictures."""


class DerivedRule:
    """Rule made of another, with its names and errors; JAX batches its `forward`, which derived classes define."""

    has_vmap = finishes = False
    functions: Sequence[Any] = ()

    def __init__(self, rule: Rule) -> None:
        self.rule, self.name, self.residual_name, self.functions = rule, rule.name, rule.residual_name, rule.functions
        self.linear_in = rule.linear_in

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    def forward(self, needs: Needs, operands: Sequence[Any]) -> ForwardResult:
        raise NotImplementedError

    def finish(self, needs: Needs, operands: Sequence[Any], outputs: Arrays) -> ForwardResult:
        return self.rule.finish(needs, operands, outputs)

    def vmap(
        self, size: int, operands: Sequence[Any], dims: Sequence[int | None], avals: Sequence[Aval]
    ) -> tuple[Arrays, list[int | None]]:
        return self.rule.vmap(size, operands, dims, avals)

    def error(self, kind: ErrorKind, operation: str = OPERATION) -> Exception:
        return self.rule.error(kind, operation)

    def operand_names(self) -> tuple[str, ...]:
        return self.rule.operand_names()


def behind(n: int, derivative: Derivative) -> Derivative:
    """Return the derivative of a rule with `n` more operands in front, which have no gradient."""
    vjp, jvp = derivative.vjp, derivative.jvp
    return dataclasses.replace(
        derivative,
        sources=tuple(ResidualSource(k.source, k.at + n * (k.source == "operand")) for k in derivative.sources),
        vjp=vjp and (lambda residuals, cotangents: [None] * n + vjp(residuals, cotangents)),
        jvp=jvp and (lambda residuals, tangents: jvp(residuals, tangents[n:])),
    )


def merge(values: Sequence[Any], where: Sequence[bool]) -> Arrays:
    """Return the values at the positions where `where` is set, None at the others."""
    iterator = iter(values)
    return [next(iterator) if w else None for w in where]


def unique(values: Sequence[Any]) -> tuple[Arrays, list[int]]:
    """Return the distinct objects among some values, and for each value its index among these."""
    distinct = {id(x): x for x in values}
    places = {key: i for i, key in enumerate(distinct)}
    return list(distinct.values()), [places[id(x)] for x in values]


def select(values: Sequence[Any], where: Sequence[bool]) -> Arrays:
    """Return the values at the positions where `where` is set."""
    return [value for value, w in zip(values, where, strict=True) if w]
