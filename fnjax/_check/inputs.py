"""Inputs of the checks: the function, its arguments, and the selection of those to differentiate."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fnjax._check.arguments import is_differentiable, name_arguments
from fnjax._check.precision import FINITE_DIFFERENCES
from fnjax._check.problem import Problem
from fnjax._check.report import PAGE
from fnjax._function.function import Function
from fnjax._function.signature import refuse_torch
from fnjax._primitives.tree import has_leaf, is_tensor, iter_leaves
from fnjax.errors import ArgumentError, describe, message, type_name


def as_tuple(x: Any) -> tuple[Any, ...]:
    """Return a tuple or list as a tuple, anything else as a tuple of one."""
    return tuple(x) if isinstance(x, tuple | list) else (x,)


def double_precision(args: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """Return a context with 64-bit numbers if an argument has them, else one without effect."""
    wide = any(_is_double(x) for x in iter_leaves(list(args)) if is_differentiable(x))
    return jax.enable_x64(True) if wide else contextlib.nullcontext()


def _is_double(x: Any) -> bool:
    return getattr(x, "dtype", None) in (np.float64, np.complex128)


def refuse_class(func: Any, check: str) -> None:
    """Raise for anything that is not a function: a Function is called through its `apply`.

    Raises:
        ArgumentError: for a class, an instance, or a value that cannot be called.
    """
    cls = func if isinstance(func, type) else type(func)
    if issubclass(cls, Function) or not callable(func):
        fix = f"pass {cls.__name__}.apply" if issubclass(cls, Function) else f"call {check}(func, inputs)"
        got = f"the class {func.__name__}" if isinstance(func, type) else describe(func)
        raise ArgumentError(message(f"{check} takes a function of arrays", PAGE, got=got, fix=fix))


def refuse_numbers(seed: Any, **numbers: Any) -> None:
    """Raise for an invalid step, tolerance or seed.

    Raises:
        ValueError: for a negative value, NaN or a non-number; also for zero or infinity as eps.
    """
    for name, x in numbers.items():
        number = isinstance(x, int | float | np.number)
        if not number or not (0 < x < np.inf if name == "eps" else x >= 0):
            due = "a positive number" if name == "eps" else "greater than or equal to zero"
            raise ValueError(f"{name} must be {due}, but got {x!r}")
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed must be an integer, not negative, but got {seed!r}")


def select_inputs(func: Any, args: Sequence[Any], argnums: int | Sequence[int] | None) -> list[int]:
    """Return the positions of the inputs to differentiate: the inexact arrays, or those in `argnums`.

    Raises:
        ArgumentError: for a torch.Tensor among them.
        ValueError: if there are none.
    """
    for i, x in enumerate(args):
        refuse_torch(x, f"input {i}")
    if argnums is not None:
        selected = _named(args, argnums)
    else:
        owner = getattr(func, "__self__", None)
        owner = owner if isinstance(owner, type) and issubclass(owner, Function) else None
        nested = [i for i, x in enumerate(args) if not is_tensor(x) and has_leaf(x, is_differentiable)]
        selected = [i for i, x in enumerate(args) if is_differentiable(x)]
        if owner is not None and owner.pytree:
            selected = sorted(selected + nested)
        elif selected and nested:
            _warn_of_containers(func, args, nested, owner)
    if not selected:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of them have "
            "requires_grad=True.\n  expected: an input that is an array of floating point or complex numbers, or "
            f"one named by argnums\n  got: {', '.join(map(describe, args)) or 'no input'}\n  fix: pass NumPy arrays of "
            "float64: np.asarray(3.0) for a number; name a container of arrays in argnums"
        )
    return selected


def _named(args: Sequence[Any], argnums: int | Sequence[int]) -> list[int]:
    selected = list(argnums) if isinstance(argnums, Sequence) else [argnums]
    if not all(isinstance(i, int | np.integer) for i in selected):
        raise ArgumentError(f"argnums must be an integer or a sequence of integers, but got {argnums!r}")
    for i in selected:
        if not -len(args) <= i < len(args):
            raise ValueError(f"argnums={argnums} names input {i}, but the number of inputs is {len(args)}")
        x = args[i]
        if not (is_differentiable(x) if is_tensor(x) else has_leaf(x, is_differentiable)):
            raise ValueError(
                f"gradcheck: argnums={argnums} names input {i}, which holds no array of floating point or complex "
                f"numbers but is {type_name(x)}{f' of dtype {x.dtype}' if is_tensor(x) else ''}"
            )
    return sorted({i % len(args) for i in selected})


def _warn_of_containers(func: Any, args: Sequence[Any], nested: Sequence[int], owner: type[Function] | None) -> None:
    names = name_arguments(func, len(args))
    for i in nested:
        name = f"input {i}" + (f" ('{names[i]}')" if names[i] else "")
        remedy = (
            f"name it in argnums={tuple(sorted({*nested, *(j for j, x in enumerate(args) if is_differentiable(x))}))}"
            if owner is None
            else f"pass the arrays as arguments of their own, or set `pytree = True` on {owner.__name__}"
        )
        warnings.warn(
            f"{name} is a {type_name(args[i])} that holds arrays: no gradient for them is checked. To have it checked, "
            f"{remedy}.",
            UserWarning,
            stacklevel=4,
        )


def fit_precision(problem: Problem, eps: float, atol: float, rtol: float) -> tuple[float, float, float]:
    """Return step and tolerances for the precision in which a function computes; warn if they were changed."""
    precision = problem.precision
    step, absolute, relative = FINITE_DIFFERENCES[precision.size]
    if not precision.narrowed or eps >= step:  # a larger step was chosen with this in mind
        return eps, atol, rtol
    absolute, relative = max(atol, absolute), max(rtol, relative)
    warnings.warn(
        f"the function computes in {precision}, which has fewer digits than its inputs: finite differences take "
        f"eps={step:g}, atol={absolute:g}, rtol={relative:g}, and see no fault below that. A function that "
        "computes in the dtype of its input is checked in float64.",
        UserWarning,
        stacklevel=3,
    )
    return step, absolute, relative


def warn_of_precision(args: Sequence[Any], selected: Sequence[int]) -> None:
    """Warn, as PyTorch does, of inputs whose precision is too low for finite differences."""
    for i in selected:
        arrays = [x for x in iter_leaves(args[i]) if is_differentiable(x)]
        if not all(map(_is_double, arrays)):
            warnings.warn(
                f"Input #{i} requires gradient and is not a double precision floating point or complex. This check "
                "will likely fail if all the inputs are not of double precision floating point or complex. Pass NumPy "
                "arrays of float64 (gradcheck then computes with 64 bits, whatever jax_enable_x64 says).",
                UserWarning,
                stacklevel=3,
            )
