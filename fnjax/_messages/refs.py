"""Messages about Refs (`jax.new_ref`): arguments without gradient, which forward and backward may read and write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fnjax._errors import ArgumentError, ContextError, FnjaxError, GradientError, OutputError, describe, error

Method = Callable[..., Any] | None


def ref_output(method: Method, where: str) -> OutputError:
    """Build the error for a Ref among the outputs."""
    return error(
        OutputError,
        f"{where} is a Ref",
        "ref-output",
        method=method,
        expected="an array, or a tuple of arrays and static values",
        fix="return its content, ref[...]; who called apply with the Ref has it already",
    )


def ref_gradient(method: Method, name: str, argument: str, index: int, grad: object) -> GradientError:
    """Build the error for a gradient of a Ref."""
    return error(
        GradientError,
        f"{name}.backward returned a gradient different than None at position {index + 1}, but "
        f"{argument} is a Ref, which has no gradient",
        "ref-gradient",
        method=method,
        expected="None in its place",
        got=describe(grad),
        fix="write to the Ref in backward, as in ctx.ref[...] += gradient, and return None",
    )


def ref_saved(ctx: str) -> ContextError:
    """Build the error for a Ref on ctx that is not an argument."""
    return error(
        ContextError,
        f"ctx keeps a Ref that is not an argument of apply ({ctx})",
        "ref-saved",
        expected="Refs among the arguments of apply",
        fix="pass the Ref to apply; of a Ref that forward made, save the content, ref[...]",
    )


def ref_perturbed(method: Method, name: str) -> FnjaxError:
    """Build the error for a Ref that is being differentiated: the differentiated function created it."""
    return error(
        ArgumentError,
        f"{name} was called with a Ref that is being differentiated, and a Ref has no gradient",
        "ref-perturbed",
        method=method,
        expected="a Ref from outside of the function that is being differentiated",
        fix="make the Ref outside, or by jax.new_ref(..., kind='no_grad_no_remat'); "
        f"to differentiate its content, pass ref[...] to {name}.apply",
    )
