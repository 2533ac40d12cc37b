"""Detection of launches that certainly read or write outside of an array, usually because the array is too small."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from fnjax.triton.values.affine import Affine
from fnjax.triton.values.pointers import Pointer
from fnjax.triton.values.state import State
from fnjax.triton.values.tensor import Tensor
from fnjax.triton.values.views import Axis, merged, strides_of


def refuse_outside(state: State, does: str, pointer: Pointer, lanes: Tensor | None) -> bool:
    """Raise where an unmasked lane certainly writes outside of its array, whatever the values in memory; warn of reads.

    Only certain cases are reported: addresses that depend on programs and lanes, not on loops, with masks each of which
    bounds one of them. Everything else is left alone (such reads return arbitrary values, such writes are dropped), and
    `kernel.check` finds it. A load is a warning, since kernels in use read past the end and mask the values afterwards;
    if a whole block is outside, or there is a mask, the array is probably the wrong one, and what is read is NaN.

    Args:
        state: of the launch.
        does: "reads", "writes" or "updates", for the message.
        pointer: the address.
        lanes: the mask, or None.

    Returns:
        True where what is read outside must show: as NaN, or 0 for integers.

    Raises:
        IndexError: an address that is written is certainly outside.
    """
    affine, length = pointer.offset.affine, state.buffers[pointer.buffer].shape[0]
    if affine is None or state.varies_in_loops(affine):
        return False
    if lanes is not None and (lanes.conditions is None or lanes.rest is not None):
        return False
    found = reach(affine, () if lanes is None else lanes.conditions or ())
    if found is None or (found[0] >= 0 and found[1] < length):
        return False
    at = found[1] if found[1] >= length else found[0]
    elements = "element" if length == 1 else "elements"
    text = f"{does} {_name_of(state, pointer.buffer)}[{at}], which has {length} {elements}"
    held = "it has no mask" if lanes is None else "the mask lets it through"
    if does == "reads":
        frame = state.frames[-1]
        where = f"kernel {frame.source.name}, line {frame.line} of {frame.source.file}"
        hangs_over = lanes is None and not _is_block_outside(affine, length)
        found_there = "unknown" if hangs_over else "NaN, or 0 for integers"
        text = f"{where} {text} ({held}): what it finds there is {found_there}, see {frame.source.name}.check"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return not hangs_over
    remedy = "pass a larger array, or mask what is outside" if at >= 0 else "mask what is outside"
    raise IndexError(f"{text} ({held}): {remedy}")


def _is_block_outside(affine: Affine, length: int) -> bool:
    """Return True where all lanes of some program are outside of the array."""
    spans = [s * (n - 1) for s, n in zip(affine.strides, affine.shape, strict=True)]
    first = affine.base + sum(s for s in spans if s < 0)
    last = affine.base + sum(s for s in spans if s > 0)
    return bool((first >= length).any() or (last < 0).any())


def _name_of(state: State, buffer: int) -> str:
    """Return the names of the parameters that a buffer was passed for, for messages."""
    launched = state.frames[0]
    pointers = {name: launched.names.get(name) for name in launched.source.parameters}
    return "/".join(name for name, p in pointers.items() if getattr(p, "buffer", None) == buffer) or "an array"


def reach(affine: Affine, conditions: Sequence[Affine]) -> tuple[int, int] | None:
    """Return the smallest and largest address that satisfies all conditions; None if none does, or it is not known."""
    rank = max(len(f.shape) for f in (affine, *conditions))
    found = [strides for f in (affine, *conditions) if (strides := _strides(f, rank)) is not None]
    if len(found) <= len(conditions):
        return None
    sizes = {d: size for strides in found for d, (_, size) in strides.items()}
    steps = [{d: stride for d, (stride, _) in strides.items()} for strides in found]
    axes = [Axis(n, steps[0].get(d, 0), [], [s.get(d, 0) for s in steps[1:]]) for d, n in sorted(sizes.items())]
    offset, *constants = (int(f.base.flat[0]) for f in (affine, *conditions))
    for axis in axes:
        if axis.stride < 0:  # reverse the axis, so that all strides are positive
            offset += axis.stride * (axis.size - 1)
            constants = [c + k * (axis.size - 1) for c, k in zip(constants, axis.coefficients, strict=True)]
            axis.stride, axis.coefficients = -axis.stride, [-k for k in axis.coefficients]
    low = high = offset
    axes = merged(sorted(axes, key=lambda axis: -axis.stride))
    bounds = [[0, axis.size - 1] for axis in axes]
    for i, constant in enumerate(constants):
        dependent = [at for at, axis in enumerate(axes) if axis.coefficients[i]]
        if len(dependent) > 1:
            return None
        if not dependent:
            if constant < 0:
                return None
            continue
        coefficient, bound = axes[dependent[0]].coefficients[i], bounds[dependent[0]]
        if coefficient > 0:
            bound[0] = max(bound[0], -(constant // coefficient))
        else:
            bound[1] = min(bound[1], constant // -coefficient)
    for axis, (first, last) in zip(axes, bounds, strict=True):
        if first > last:
            return None
        low, high = low + axis.stride * first, high + axis.stride * last
    return low, high


def _strides(affine: Affine, rank: int) -> dict[int, tuple[int, int]] | None:
    """Return stride and size along each leading and block axis of an expression, for a block of `rank` axes.

    None where it depends on loop variables or is not affine in the program numbers.
    """
    found = None if affine.terms else strides_of(affine)
    missing = rank - len(affine.shape)
    return None if found is None else {d + missing * (d >= affine.base.ndim): along for d, along in found.items()}
