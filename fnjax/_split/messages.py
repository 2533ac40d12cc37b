"""Messages of `split_vjp`."""

from __future__ import annotations

from typing import Any

from fnjax.errors import ArgumentError, describe, error


def leaf(argument: str, path: str, value: Any) -> ArgumentError:
    """Build the error for a leaf of the weights or the inputs that is not an array."""
    return error(
        ArgumentError,
        f"split_vjp got a leaf in {argument}{path} that is no array",
        "split-leaf",
        expected="pytrees of arrays or numbers",
        got=describe(value),
        fix="let f close over what is no array: split_vjp(lambda w, x: f(w, x, option), weights, inputs)",
    )


def ref() -> ArgumentError:
    """Build the error for a Ref that the backward pass of f uses."""
    return error(
        ArgumentError,
        "split_vjp got a function whose backward pass reads or writes a Ref",
        "split-ref",
        expected="a backward pass whose results are its gradients alone: each half computes some of them",
        fix="return the gradient that is written to the Ref, and add it up outside",
    )


def cotangent_structure(expected: Any, got: Any) -> ArgumentError:
    """Build the error for a cotangent that is another pytree than the output."""
    return error(
        ArgumentError,
        "backward_input got a cotangent of another structure than the output of f",
        "split-cotangent",
        expected=str(expected),
        got=str(got),
        fix="give the output's pytree with a cotangent for each of its arrays, None for those of integers",
    )


def cotangent_leaf(path: str, expected: Any, got: Any) -> ArgumentError:
    """Build the error for a cotangent of another shape or dtype than its output."""
    return error(
        ArgumentError,
        f"backward_input got a cotangent that does not fit the output{path} of f",
        "split-cotangent",
        expected=expected if isinstance(expected, str) else describe_type(expected),
        got=describe(got) if not hasattr(got, "aval") else describe_type(got),
        fix="give a cotangent of the shape and dtype of its output",
    )


def pending(expected: str, got: str) -> ArgumentError:
    """Build the error for a `pending` of another function, or of other shapes."""
    return error(
        ArgumentError,
        "backward_weight got what is pending of another function, or of one with other shapes",
        "split-pending",
        expected=expected,
        got=got,
        fix="call the backward_weight that split_vjp returned for the same function, shapes and dtypes",
    )


def describe_type(array: Any) -> str:
    """Return shape and dtype as text, and inside shard_map the mesh axes on which the array varies."""
    on = sorted(map(str, array.aval.mat.varying)) if hasattr(getattr(array, "aval", None), "mat") else []
    return f"shape {array.shape} and dtype {array.dtype}" + (f", varying over {', '.join(on)}" if on else "")
