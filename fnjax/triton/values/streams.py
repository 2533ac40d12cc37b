"""Streams: rows of memory that the iterations of a loop read and write one after the other.

A `jax.lax.scan` takes them as inputs and outputs. As a part of the carry, all of memory would be saved in every
iteration for reverse mode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.triton.values.affine import LoopVariable
from fnjax.triton.values.independence import are_disjoint
from fnjax.triton.values.state import LoopAccess
from fnjax.triton.values.views import Dimension, View

Key = tuple[int, int, int, View]  # buffer, the dimension along which rows advance, by 1 or -1, view of all iterations


class Streams:
    """Streams of one sequential loop with a known number of iterations.

    Attributes:
        iterations: their number.
        depth: the number of leading axes of the grid and of vectorised loops around it.
        carried: indices of the buffers that the loop carries, which have no streams.
        inputs: the rows that iterations read; those that are found missing are added for the next attempt.
        joined: the inputs that are columns of the same rows, by the view that holds them, which the scan takes.
        misfit: True where an iteration was traced with other streams than it needs.
        around: the variables of sequential loops around it.
        variable: the loop variable in the iteration that is traced.
    """

    def __init__(self, iterations: int, depth: int, carried: set[int], outer: Streams | None) -> None:
        self.iterations, self.depth, self.carried = iterations, depth, carried
        self.around: list[LoopVariable] = [] if outer is None else [*outer.around, outer.variable.range]
        self.inputs: list[Key] = []
        self.joined: dict[Key, list[Key]] = {}
        self.misfit = False
        self.end()

    def join(self) -> list[Key]:
        """Return the views that the scan takes, which hold several inputs each.

        Inputs that are columns of the same rows would be copies of these columns; all of memory by rows is none.
        """
        alike: dict[Any, list[Key]] = {}
        for key in self.inputs:
            fixed = [d.layout if _may_join(i, d, key) else d for i, d in enumerate(key[3].dimensions)]
            alike.setdefault((*key[:3], *fixed), []).append(key)
        self.joined = {_hull(keys): keys for keys in alike.values()}
        return list(self.joined)

    def start(self, variable: LoopVariable, rows: Sequence[jax.Array]) -> None:
        """Begin an iteration with the rows of `joined`."""
        self.variable, self.misfit = variable, False
        self.rows = {
            key: every[_columns(key, whole)]
            for (whole, keys), every in zip(self.joined.items(), rows, strict=True)
            for key in keys
        }

    def end(self) -> None:
        """Forget the tracers of an iteration."""
        self.variable, self.rows = LoopVariable(None, 0, 0), dict[Key, jax.Array]()

    def key(self, buffer: int, view: View) -> Key | None:
        """Return the stream that a view belongs to; None where its rows do not advance by one, or leave memory."""
        along = [i for i, d in enumerate(view.dimensions) if self.variable in dict(d.terms)]
        if len(along) != 1 or buffer in self.carried:
            return None
        (axis,) = along
        own = view.dimensions[axis]
        step = dict(own.terms)[self.variable]
        terms = tuple((v, c) for v, c in own.terms if v is not self.variable)
        first = own.start + min(0, step * (self.iterations - 1))
        inside = -own.before <= first and first + self.iterations <= own.count + own.after
        if abs(step) != 1 or own.size != 1 or not inside or (terms and (own.before or own.after)):
            return None
        every = dataclasses.replace(own, start=first, terms=terms, high=self.iterations, size=self.iterations)
        dimensions = (*view.dimensions[:axis], every, *view.dimensions[axis + 1 :])
        return buffer, axis, step, View(dimensions, (), (), 0, 0)

    def read(self, buffer: int, view: View, outputs: dict[Key, jax.Array], dtype: np.dtype[Any]) -> jax.Array | None:
        """Return the rows of a view in this iteration; None where they are not in a stream.

        Args:
            buffer: the index of the array.
            view: of memory.
            outputs: what the iteration has written.
            dtype: the array's.
        """
        key = self.key(buffer, view)
        if key is not None and key in outputs:
            return outputs[key]
        if any(buffer == other for other, *_ in outputs):
            self.carried.add(buffer)
            self.misfit = True
        elif key is not None and key in self.rows:
            return jnp.expand_dims(self.rows[key], key[1])
        elif key is not None:
            self.inputs.append(key)
            self.rows[key] = jnp.zeros([d.high - d.low for i, d in enumerate(view.dimensions) if i != key[1]], dtype)
            self.misfit = True
            return jnp.expand_dims(self.rows[key], key[1])
        return None

    def finish(self, accesses: Sequence[LoopAccess], outputs: dict[Key, jax.Array]) -> list[jax.Array]:
        """Return the rows that an iteration has written, in the order of `outputs`.

        Buffers that it cannot write so, since iterations depend on each other, are carried in the next attempt.
        """
        for buffer in {buffer for buffer, *_ in outputs}:
            here = [access for access in accesses if access.buffer == buffer]
            place = self.iterations, self.depth, self.around
            if buffer in self.carried or not are_disjoint(here, self.variable, *place):
                self.carried.add(buffer)
                self.misfit = True
        return [jnp.squeeze(rows, axis) for (_, axis, _, _), rows in outputs.items()]

    @property
    def reverse(self) -> bool:
        """Return True where the scan goes through the rows from the last one to the first."""
        return sum(step for _, _, step, _ in self.inputs) < 0

    def first_axis(self, rows: jax.Array, key: Key) -> jax.Array:
        """Return the rows of all iterations along the first axis, as the scan takes them."""
        _, axis, step, _ = key
        return jnp.moveaxis(jnp.flip(rows, axis) if (step < 0) != self.reverse else rows, axis, 0)

    def in_place(self, rows: jax.Array, key: Key) -> jax.Array:
        """Return what the scan returns as the rows of the view of all iterations: the inverse of `first_axis`."""
        _, axis, step, _ = key
        rows = jnp.moveaxis(rows, 0, axis)
        return jnp.flip(rows, axis) if (step < 0) != self.reverse else rows


def _may_join(position: int, dimension: Dimension, key: Key) -> bool:
    """Return True where a dimension of a view is a known range of columns."""
    return position != key[1] and not dimension.terms and dimension.low < dimension.high


def _hull(keys: Sequence[Key]) -> Key:
    """Return the smallest view that holds several, which differ in known ranges of columns."""
    dimensions = []
    for i, every in enumerate(zip(*(key[3].dimensions for key in keys), strict=True)):
        if _may_join(i, every[0], keys[0]):
            first, size = min(d.start + d.low for d in every), max(d.start + d.high for d in every)
            size -= first
            dimensions.append(dataclasses.replace(every[0], start=first, low=0, high=size, size=size))
        else:
            dimensions.append(every[0])
    return *keys[0][:3], View(tuple(dimensions), (), (), 0, 0)


def _columns(key: Key, whole: Key) -> tuple[slice, ...]:
    """Return where the columns of a view are in the rows of one that holds it."""
    pairs = zip(key[3].dimensions, whole[3].dimensions, strict=True)
    starts = [(a.start + a.low - b.start - b.low, a.high - a.low) for a, b in pairs]
    return tuple(slice(first, first + size) for i, (first, size) in enumerate(starts) if i != key[1])
