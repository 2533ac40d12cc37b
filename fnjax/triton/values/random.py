"""Random numbers: Philox 4x32, bit for bit as in Triton, without 64-bit integers."""

from __future__ import annotations

import operator
from typing import SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.triton.values import types
from fnjax.triton.values.affine import leading
from fnjax.triton.values.arithmetic import as_tensor, cast, report_narrowed
from fnjax.triton.values.tensor import Operand, Tensor, aligned, canonical

ROUNDS = 10
KEYS = (0x9E3779B9, 0xBB67AE85)
FACTORS = (0xD2511F53, 0xCD9E8D57)


def _high_word(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the upper 32 bits of the product of two 32-bit integers, computed from halves of 16 bits."""
    a_low, a_high, b_low, b_high = a & 0xFFFF, a >> 16, b & 0xFFFF, b >> 16
    low = a_low * b_low
    middle = a_high * b_low + (low >> 16)
    other = a_low * b_high + (middle & 0xFFFF)
    return a_high * b_high + (middle >> 16) + (other >> 16)


def high_product(x: Tensor, y: Tensor) -> Tensor:
    """Return the upper 32 bits of the product of two 32-bit integers (`tl.umulhi`).

    Raises:
        TypeError: the integers have another width.
    """
    if x.dtype.primitive_bitwidth != 32:
        raise TypeError("tl.umulhi is for 32-bit numbers here")
    data = _high_word(*(aligned(t.array(), builtins_max(x.ndim, y.ndim)).astype(jnp.uint32) for t in (x, y)))
    return Tensor(data.astype(canonical(x.dtype)), x.dtype, np.broadcast_shapes(x.shape, y.shape))


builtins_max = max


def _words(seed: Operand) -> tuple[jax.Array, ...]:
    """Return the lower and the upper 32 bits of a seed."""
    if isinstance(seed, int):
        return tuple(jnp.asarray((seed >> shift) & 0xFFFFFFFF, jnp.uint32) for shift in (0, 32))
    seed = as_tensor(seed)
    report_narrowed(seed)
    if seed.known:
        wide = seed.data.astype(np.int64).view(np.uint64)
        return tuple(jnp.asarray((wide >> np.uint64(s)) & np.uint64(0xFFFFFFFF)).astype(jnp.uint32) for s in (0, 32))
    data = seed.array()
    if data.dtype.itemsize == 8:
        wide = data.astype(jnp.uint64)
        return (wide & 0xFFFFFFFF).astype(jnp.uint32), (wide >> 32).astype(jnp.uint32)
    low = data.astype(jnp.uint32)
    signed = seed.dtype.is_int_signed()
    return low, jnp.where(data < 0, jnp.uint32(0xFFFFFFFF), jnp.uint32(0)) if signed else jnp.zeros_like(low)


def philox(
    seed: Operand, c0: Operand, c1: Operand, c2: Operand, c3: Operand, n_rounds: SupportsIndex = ROUNDS
) -> tuple[Tensor, ...]:
    """Return four blocks of random 32-bit integers for a seed and a counter of four words."""
    counters = [as_tensor(c) for c in (c0, c1, c2, c3)]
    shape = np.broadcast_shapes(*(c.shape for c in counters))
    words = [aligned(c.array(), len(shape)).astype(jnp.uint32) for c in counters]
    k0, k1 = (w.reshape(w.shape + (1,) * (leading() + len(shape) - w.ndim)) if w.ndim else w for w in _words(seed))
    a, b = (jnp.uint32(f) for f in FACTORS)
    for _ in range(operator.index(n_rounds)):
        w0, w2 = words[0], words[2]
        words[0] = _high_word(b, w2) ^ words[1] ^ k0
        words[2] = _high_word(a, w0) ^ words[3] ^ k1
        words[1], words[3] = b * w2, a * w0
        k0, k1 = k0 + jnp.uint32(KEYS[0]), k1 + jnp.uint32(KEYS[1])
    return tuple(Tensor(w, types.uint32, shape) for w in words)


def randint4x(seed: Operand, offset: Operand, n_rounds: SupportsIndex = ROUNDS) -> tuple[Tensor, ...]:
    """Return four blocks of random 32-bit integers."""
    offset = as_tensor(offset)
    zero = cast(offset * 0, types.uint32)
    high = zero
    if offset.dtype.primitive_bitwidth > 32:
        word = _words(offset)[1]
        high = Tensor(word, types.uint32, offset.shape)
    return philox(seed, cast(offset, types.uint32), high, zero, zero, n_rounds)


def randint(seed: Operand, offset: Operand, n_rounds: SupportsIndex = ROUNDS) -> Tensor:
    """Return a block of random 32-bit integers."""
    return randint4x(seed, offset, n_rounds)[0]


def uint_to_uniform_float(x: Tensor) -> Tensor:
    """Return random integers as floats in [0, 1)."""
    data = x.array().astype(jnp.uint32).view(jnp.int32)
    data = jnp.where(data < 0, -data - 1, data)
    return Tensor(data.astype(jnp.float32) * jnp.float32(4.6566127342e-10), types.float32, x.shape)


def rand(seed: Operand, offset: Operand, n_rounds: SupportsIndex = ROUNDS) -> Tensor:
    """Return a block of floats, uniformly distributed in [0, 1)."""
    return uint_to_uniform_float(randint(seed, offset, n_rounds))


def rand4x(seed: Operand, offsets: Operand, n_rounds: SupportsIndex = ROUNDS) -> tuple[Tensor, ...]:
    """Return four blocks of floats, uniformly distributed in [0, 1)."""
    return tuple(uint_to_uniform_float(x) for x in randint4x(seed, offsets, n_rounds))


def pair_uniform_to_normal(u1: Tensor, u2: Tensor) -> tuple[Tensor, ...]:
    """Return two blocks of normally distributed floats from two of uniformly distributed ones (Box and Muller)."""
    x, y = u1.array(), u2.array()
    x = jnp.maximum(jnp.float32(1e-7), x)
    angle, radius = jnp.float32(6.283185307179586) * y, jnp.sqrt(-2.0 * jnp.log(x))
    return tuple(Tensor(radius * f(angle), types.float32, u1.shape) for f in (jnp.cos, jnp.sin))


def randn(seed: Operand, offset: Operand, n_rounds: SupportsIndex = ROUNDS) -> Tensor:
    """Return a block of normally distributed floats."""
    i1, i2, _, _ = randint4x(seed, offset, n_rounds)
    return pair_uniform_to_normal(uint_to_uniform_float(i1), uint_to_uniform_float(i2))[0]


def randn4x(seed: Operand, offset: Operand, n_rounds: SupportsIndex = ROUNDS) -> tuple[Tensor, ...]:
    """Return four blocks of normally distributed floats."""
    u = rand4x(seed, offset, n_rounds)
    return (*pair_uniform_to_normal(u[0], u[1]), *pair_uniform_to_normal(u[2], u[3]))
