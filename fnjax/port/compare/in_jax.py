"""Outputs, gradients and second derivatives of the port, as JAX computes them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import fnjax
from fnjax.port.compare.values import Inputs, Made, Results, Values, flatten


class Port:
    """A port with its static arguments, ready to be called with other values in the same shapes.

    What jit compiles serves the next calls.
    """

    def __init__(self, function: Callable[..., Any], inputs: Inputs, *, plain: bool = False) -> None:
        """Convert the static arguments; a `plain` one gets them as they are, without JAX's dtypes for PyTorch's."""
        self.function, self.kwargs, self.selected = function, dict(inputs.kwargs), inputs.selected
        self.as_is = is_as_is(function)
        self.args = inputs.args if plain else [_convert_static(a, function) for a in inputs.args]
        self.arrays = [i for i, a in enumerate(inputs.args) if isinstance(a, np.ndarray)]
        self.modes: dict[str, Callable[..., Any]] = {
            "eager": self._compute_all,
            "jit": jax.jit(self._compute_all, static_argnums=3),
        }

    def run_port(
        self, args: Sequence[Any], key: Any, cotangents: Sequence[Values], mode: str, theirs: Results
    ) -> Results:
        """Return the port's results for the reference's cotangents, up to the derivative that the reference has."""
        values = {i: jax.numpy.asarray(args[i]) for i in self.arrays}
        count = 1 + bool(theirs.gradients) + bool(theirs.seconds)
        error = None
        while count:  # one program for all steps takes half of the time to compile of three
            try:
                return _make_results(self.modes[mode](values, key, cotangents, count), error)
            except Exception as e:  # noqa: BLE001 - whatever the user's code raises is a result of the comparison
                error = e
                count -= 1
        return _make_results([], error)

    def check_shapes(self, args: Sequence[Any], unknown: tuple[type[Exception], ...]) -> None:
        """Raise at once what shapes and dtypes alone show; `unknown` are errors that concrete values may spare.

        Most calls of a search do not fit, and outside jit every operation on a new shape is compiled.
        """
        values = {i: jax.ShapeDtypeStruct(args[i].shape, jax.numpy.asarray(args[i]).dtype) for i in self.arrays}
        with contextlib.suppress(*unknown):
            jax.eval_shape(lambda v: self._compute_outputs(v, {}, []), values)

    def run_drawing(self, args: Sequence[Any], draw: Callable[[Values], Values]) -> tuple[Results, list[Values]]:
        """Return the results of each step, outside jit, and the cotangents that were drawn for the next one.

        Args:
            args: the arguments.
            draw: returns cotangents for arrays, None where there is none.

        Raises:
            Exception: whatever the function raises when it is called.
        """
        values = {i: jax.numpy.asarray(args[i]) for i in self.arrays}
        cotangents: list[Values] = []
        found = [self._compute_outputs(values, {}, cotangents)]
        cotangents.append(draw([np.asarray(x) for x in found[0]]))
        differentiable = self.selected and any(c is not None for c in cotangents[0])
        try:
            for step in (self._compute_gradients, self._compute_seconds) if differentiable else ():
                found.append(step(values, {}, cotangents))
                cotangents.append(draw([np.asarray(x) for x in found[-1]]))
        except Exception as e:  # noqa: BLE001 - whatever the user's backward raises
            return _make_results(found, e), [*cotangents, []][:2]
        return _make_results(found), [*cotangents, []][:2]

    def _compute_outputs(self, values: Mapping[int, Any], key: Any, cotangents: Sequence[Values]) -> list[Any]:
        full = [values.get(i, a) for i, a in enumerate(self.args)]
        if self.as_is:
            full = [_make_tensors(a) if isinstance(a, (list, tuple)) else a for a in full]
            for i in self.arrays:  # clones, as an in-place Function may not change a leaf, there as in PyTorch
                x = fnjax.torch.torch_view(full[i])
                full[i] = (x.requires_grad_() if i in self.selected else x).clone()
        found = fnjax.torch.jax_view(self.function(*full, **{**self.kwargs, **key}))
        return [o for o in flatten(found) if isinstance(o, jax.Array)]

    def _compute_gradients(self, values: Mapping[int, Any], key: Any, cotangents: Sequence[Values]) -> list[Any]:
        def outputs(selected: Mapping[int, Any]) -> list[Any]:
            return self._compute_outputs({**values, **selected}, key, cotangents)

        (found,) = _pull_back(outputs, cotangents[0], self._choose_values(values))
        return list(found.values())

    def _compute_seconds(self, values: Mapping[int, Any], key: Any, cotangents: Sequence[Values]) -> list[Any]:
        """Return second derivatives, with respect to the arguments and to the cotangents of the outputs."""

        def gradients(selected: Mapping[int, Any], vectors: Values) -> list[Any]:
            return self._compute_gradients({**values, **selected}, key, [vectors, cotangents[1]])

        by_arguments, by_vectors = _pull_back(gradients, cotangents[1], self._choose_values(values), cotangents[0])
        return [*by_arguments.values(), *(v for v in by_vectors if v is not None)]

    def _choose_values(self, values: Mapping[int, Any]) -> dict[int, Any]:
        return {i: values[i] for i in self.selected}

    def _compute_all(self, values: Mapping[int, Any], key: Any, cotangents: Sequence[Values], count: int) -> list[Any]:
        steps = (self._compute_outputs, self._compute_gradients, self._compute_seconds)[:count]
        return [step(values, key, cotangents) for step in steps]


def is_as_is(function: Callable[..., Any]) -> bool:
    """Return whether this is `apply` of a class that fnjax.torch runs as it is."""
    owner = getattr(function, "__self__", None)
    return isinstance(owner, type) and issubclass(owner, fnjax.torch.autograd.Function)


def _pull_back(step: Callable[..., list[Any]], cotangents: Values, *at: Any) -> Any:
    """Return the derivatives of a step's results, weighted with cotangents, in PyTorch's convention."""
    found, pullback = jax.vjp(step, *at)
    return jax.tree.map(jax.numpy.conj, pullback(_convert_cotangents(found, cotangents)))


def _convert_static(value: Any, function: Callable[..., Any]) -> Any:
    """Return JAX's dtype for PyTorch's, or fnjax.torch's for a class that stays as it is; else the value itself."""
    if isinstance(value, Made):
        with fnjax.torch.seed(0):
            value = value.make_value(fnjax.torch, getattr(function, "__self__", None))
    kind = type(value)
    if kind.__name__ != "dtype" or not kind.__module__.startswith(("torch", "fnjax.torch")):
        return value
    name = str(value).removeprefix("torch.")
    return getattr(fnjax.torch, name) if is_as_is(function) else jax.numpy.dtype(name)


def _make_tensors(value: Any) -> Any:
    """Return the tensors of fnjax.torch for the arrays in lists and tuples."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_make_tensors, value))
    return fnjax.torch.torch_view(jax.numpy.asarray(value)) if isinstance(value, np.ndarray) else value


def _make_results(found: Sequence[Any], error: Exception | None = None) -> Results:
    sides = [[np.asarray(x) for x in step] for step in found]
    sides += [[]] * (3 - len(sides))
    return Results(sides[0], sides[1], sides[2], error)


def _convert_cotangents(outputs: Sequence[Any], cotangents: Values) -> list[Any]:
    """Return cotangents in JAX's convention, of the outputs' dtypes."""
    if len(outputs) != len(cotangents):
        raise ValueError(f"the port returns {len(outputs)} arrays, the original {len(cotangents)}")
    vectors: list[Any] = []
    for output, cotangent in zip(outputs, cotangents, strict=True):
        if not jax.numpy.issubdtype(output.dtype, jax.numpy.inexact):
            vectors.append(np.zeros(output.shape, jax.dtypes.float0))
        elif cotangent is None:
            vectors.append(jax.numpy.zeros_like(output))
        else:
            vectors.append(jax.numpy.conj(jax.numpy.asarray(cotangent, output.dtype)))
    return vectors
