"""A value of a kernel: an array with the grid's axes first, then the block's.

A value has size 1 along what it does not depend on. Whole numbers that are known stay affine forms (`_forms`) or NumPy
arrays; truths that compare them stay lists of forms that must not be negative, and become arrays where needed only.
"""

import math
import operator

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.triton._forms import LEAD
from fnjax.triton._state import afford

KNOWN_LIMIT = 1 << 16  # numbers that are not affine stay NumPy's up to this many


def canonical(kind):
    """The dtype of arrays that stand for a type: 64 bits where JAX has them."""
    return jax.dtypes.canonicalize_dtype(kind.array)


def is_narrowed(kind):
    """Return True for integers of 64 bits where JAX has 32."""
    return kind.kind in "iu" and canonical(kind).itemsize < kind.array.itemsize


def for_jax(data, kind):
    """An array in a type's own dtype; known values must fit it."""
    own = canonical(kind)
    if isinstance(data, np.ndarray) and own.itemsize < kind.array.itemsize and data.size:
        if data.dtype.kind in "iu":
            _refuse_wide(data.min(), data.max(), kind)
        with np.errstate(all="ignore"):
            lost = np.isfinite(data) & (data != 0) & ~(np.isfinite(short := data.astype(own)) & (short != 0))
        if lost.any():
            raise needs_64_bits(f"the number {data[lost][0]} of {kind}")
    return jnp.asarray(data).astype(own)


def _refuse_wide(low, high, kind):
    limits = np.iinfo(canonical(kind))
    for number in (low, high):
        if not limits.min <= number <= limits.max:
            raise needs_64_bits(f"the number {number} of {kind}")


def needs_64_bits(what):
    """An error: with 32 bits another number would come."""
    return TypeError(f"{what} takes 64 bits, which JAX leaves off: jax.config.update('jax_enable_x64', True)")


class Tensor:
    """A value of a kernel, one for each program. `shape` is the block's."""

    factors = None  # of a matrix product, for loops that sum it

    def __init__(self, data, dtype, shape, form=None, conditions=None, rest=None):
        self._data, self._type, self.shape = data, dtype, tuple(shape)
        self.form, self.conditions, self.rest = form, conditions, rest

    dtype = property(lambda self: self._type)
    type = property(lambda self: self._type)
    ndim = property(lambda self: len(self.shape))

    @property
    def numel(self):
        return int(np.prod(self.shape, dtype=int))

    @property
    def data(self):
        """The array, grid before block; of size 1 where nothing changes."""
        if self._data is not None:
            afford(self._data)
            return self._data
        if self.form is not None:
            xp = np if is_small(self.form) else jnp
            if xp is jnp and not self.form.syms and canonical(self._type).itemsize < self._type.array.itemsize:
                _refuse_wide(*self.form.limits(), self._type)
            found = self.form.array(xp).astype(self._type.array if xp is np else canonical(self._type))
        else:
            found = np.ones((1,) * LEAD, bool) if self.rest is None else self.rest.data
            for form in self.conditions:
                met = form.array(np if is_small(form) else jnp) >= 0
                found = pair(operator.and_, found, met)
        if isinstance(found, np.ndarray):  # what is traced belongs to the loop that is being traced now
            self._data = found
        return found

    @property
    def known(self):
        """Whether the numbers are NumPy's: they depend on programs alone."""
        if self._data is not None:
            return isinstance(self._data, np.ndarray)
        if self.form is not None:
            return is_small(self.form)
        return (self.rest is None or self.rest.known) and all(map(is_small, self.conditions))

    def uniform(self):
        """The one number that all programs see, where it is known; else None."""
        if self.shape == () and self.known:
            data = self.data
            if (data == data.flat[0]).all() or data.size == 1:
                return data.flat[0].item()
        return None

    def array(self):
        """The array in the type's own dtype, for JAX."""
        return for_jax(self.data, self._type)

    def filled(self):
        """The array with the block's axes in their full size."""
        data = self.array()
        return jnp.broadcast_to(data, data.shape[:LEAD] + self.shape)

    def __bool__(self):
        value = self.uniform()
        if value is None:
            raise TypeError(
                "a value that differs between programs, or is traced, is asked for its truth in plain Python"
            )
        return bool(value)

    def __index__(self):
        value = self.uniform()
        if value is None or not self._type.is_int():
            raise TypeError("a number that is known when the kernel is traced is needed here; make it a tl.constexpr")
        return int(value)

    __int__ = __index__

    def __float__(self):
        value = self.uniform()
        if value is None:
            raise TypeError("a number that is known when the kernel is traced is needed here; make it a tl.constexpr")
        return float(value)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self):
        return f"tensor<{'x'.join(map(str, (*self.shape, self._type)))}>"

    def __getitem__(self, index):
        index = index if isinstance(index, tuple) else (index,)
        shape, strides, at = [], [], 0
        axes = [slice(None)] * LEAD
        for item in index:
            if item is None:
                shape.append(1)
                strides.append(0)
                axes.append(None)
            elif item == slice(None) and at < len(self.shape):
                shape.append(self.shape[at])
                strides.append(at)
                axes.append(slice(None))
                at += 1
            else:
                raise TypeError("blocks are indexed with : and None only, each axis once (tl.gather takes elements)")
        if at != len(self.shape):
            raise TypeError(f"a block of shape {self.shape} is indexed with {at} colons")

        def moved(form):
            return form.reshaped(
                shape, [0 if a is None else form.strides[s] for a, s in zip(axes[LEAD:], strides, strict=True)]
            )

        return self.rearranged(shape, moved, lambda data: data[tuple(axes)])

    def rearranged(self, shape, on_form, on_data):
        """The same numbers at other places of a block: by their forms where they have them."""
        if self.form is not None and on_form is not None:
            return Tensor(None, self._type, shape, form=on_form(self.form))
        if self.conditions is not None and on_form is not None:
            wide = [as_block(f, self.shape) for f in self.conditions]
            rest = None if self.rest is None else self.rest.rearranged(shape, on_form, on_data)
            return Tensor(None, self._type, shape, conditions=tuple(on_form(f) for f in wide), rest=rest)
        data = self.data
        missing = LEAD + len(self.shape) - data.ndim
        if missing:
            data = data.reshape(data.shape[:LEAD] + (1,) * missing + data.shape[LEAD:])
        return Tensor(on_data(data), self._type, shape)


def as_block(form, shape):
    """A form with as many axes as a block."""
    missing = len(shape) - len(form.shape)
    return form.reshaped(shape, (0,) * missing + form.strides)


def is_small(form):
    return form.concrete and math.prod(form.spread) <= KNOWN_LIMIT


def aligned(data, rank):
    """An array whose block has `rank` axes."""
    missing = LEAD + rank - data.ndim
    return data.reshape(data.shape[:LEAD] + (1,) * missing + data.shape[LEAD:]) if missing else data


def pair(op, a, b):
    rank = max(a.ndim, b.ndim) - LEAD
    return op(aligned(a, rank), aligned(b, rank))
