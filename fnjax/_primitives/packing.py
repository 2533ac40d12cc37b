"""Packed residuals that stay packed: XLA would fuse packing with unpacking and keep the unpacked array.

The result of a conditional is kept. Its predicate is a True after an optimization barrier, and both branches are
the same. This is for the CPU; elsewhere a conditional may cost more than it saves (not measured), and none is added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from fnjax._primitives.jax_internals import PROMOTES_HALF_FLOATS, open_jaxpr
from fnjax._primitives.memory_moves import with_moves
from fnjax._primitives.replace_primal import replace_primal
from fnjax._primitives.rule import Arrays
from fnjax._primitives.trace import trace
from fnjax._primitives.tree import Split, is_array, split

Packed = tuple[Arrays, Arrays]  # arrays, and for each of them the bits that are kept instead, or None


def pack_to_stay(pack: Callable[[Any], Any], array: Any) -> tuple[Packed, Callable[[Packed], Any], bool]:
    """Apply `pack` to a traced array so that the compiled program keeps its result.

    Returns:
        The arrays to keep; a function that rebuilds from them what `pack` returned; and whether `pack` moves the array.
    """
    forms: list[Split] = []

    def run(array: Any) -> Arrays:
        arrays, form = split(pack(array), is_array)
        forms.append(form)
        return arrays

    jaxpr, closed_over, _ = trace("pack", run, array)
    names = {eqn.primitive.name for eqn in open_jaxpr(jaxpr).eqns}
    compute = jaxpr_as_fun(with_moves(jaxpr))
    moves = "device_put" in names
    if not names or moves:  # an unchanged array, or a moved one: a branch cannot move it
        arrays = compute(*closed_over, array)
        return (arrays, [None] * len(arrays)), lambda kept: forms[0].fill(kept[0]), moves

    def packed(*args: Any) -> Packed:
        arrays = list(compute(*args))
        return arrays, [_bits(x) for x in arrays]

    def on_cpu(*args: Any) -> Packed:
        true = jax.lax.optimization_barrier(jnp.bool_(True))
        kept: Packed = jax.lax.cond(true, packed, packed, *args)
        return kept

    def fill(kept: Packed) -> Any:
        return forms[0].fill(
            [
                a if b is None else replace_primal(a, jax.lax.bitcast_convert_type(b, a.dtype))
                for a, b in zip(*kept, strict=True)
            ]
        )

    return jax.lax.platform_dependent(*closed_over, array, cpu=on_cpu, default=packed), fill, moves


def _bits(array: Any) -> Any:
    """Return the bits of a 16-bit float if XLA would keep it in 32 bits in a loop; None otherwise."""
    if PROMOTES_HALF_FLOATS and array.dtype in (jnp.bfloat16, jnp.float16):
        return jax.lax.bitcast_convert_type(array, jnp.uint16)
    return None
