"""Arrays that are too small for a kernel: addresses outside of them that a launch would certainly reach."""

import warnings

from fnjax.triton._forms import LEAD, Form
from fnjax.triton._state import current
from fnjax.triton._views import Axis, merged, strides_of


def refuse_outside(does, pointer, truth, length):
    """Raise where some lane that nothing holds back is outside of an array, whatever the numbers in memory are.

    That is said only where it is certain: of addresses that programs and lanes make, not the turns of a loop, and masks
    that bound one of these at a time. All else a launch leaves alone (reads find some number, writes are lost), and
    `kernel.check` finds it. A load without a mask whose last block hangs over the end is a warning: kernels that people
    use do that, and do not use what they find there. If a whole block lies outside, or there is a mask, another array
    must have been meant.
    """
    form = pointer.offset.form
    if form is None or current().depends_on_turns(form):
        return
    if truth is not None and (truth.conditions is None or truth.rest is not None):
        return
    found = reach(form, () if truth is None else truth.conditions)
    if found is None or (found[0] >= 0 and found[1] < length):
        return
    at = found[1] if found[1] >= length else found[0]
    elements = "element" if length == 1 else "elements"
    text = f"{does} {_name_of(pointer.buffer)}[{at}], which has {length} {elements}"
    if does == "reads" and truth is None and not _is_block_outside(form, length):
        frame = current().frames[-1]
        where = f"kernel {frame.source.name}, line {frame.line} of {frame.source.file}"
        warnings.warn(f"{where} {text}, and has no mask: what it finds there is unknown", RuntimeWarning, stacklevel=2)
        return
    held = "it has no mask" if truth is None else "the mask lets it through"
    remedy = "pass a larger array, or mask what is outside" if at >= 0 else "mask what is outside"
    raise IndexError(f"{text} ({held}): {remedy}")


def _is_block_outside(form, length):
    """Whether all lanes of some program are outside."""
    spans = [s * (n - 1) for s, n in zip(form.strides, form.shape, strict=True)]
    first = form.base + sum(s for s in spans if s < 0)
    last = form.base + sum(s for s in spans if s > 0)
    return bool((first >= length).any() or (last < 0).any())


def _name_of(buffer):
    """The parameters that a buffer was passed for."""
    launched = current().frames[0]
    pointers = {name: launched.names.get(name) for name in launched.source.parameters}
    return "/".join(name for name, p in pointers.items() if getattr(p, "buffer", None) == buffer) or "an array"


def reach(form: Form, conditions) -> tuple[int, int] | None:
    """The smallest and the largest address where all conditions hold; None if there is none, or that is not known."""
    rank = max(len(f.shape) for f in (form, *conditions))
    found = [_strides(f, rank) for f in (form, *conditions)]
    if None in found:
        return None
    sizes = {d: size for strides in found for d, (_, size) in strides.items()}
    steps = [{d: stride for d, (stride, _) in strides.items()} for strides in found]
    axes = [Axis(n, steps[0].get(d, 0), [], [s.get(d, 0) for s in steps[1:]]) for d, n in sorted(sizes.items())]
    offset, *constants = (int(f.base.flat[0]) for f in (form, *conditions))
    for axis in axes:
        if axis.stride < 0:  # count from its other end
            offset += axis.stride * (axis.size - 1)
            constants = [c + k * (axis.size - 1) for c, k in zip(constants, axis.coefs, strict=True)]
            axis.stride, axis.coefs = -axis.stride, [-k for k in axis.coefs]
    low = high = offset
    axes = merged(sorted(axes, key=lambda axis: -axis.stride))
    bounds = [[0, axis.size - 1] for axis in axes]
    for i, constant in enumerate(constants):
        moving = [at for at, axis in enumerate(axes) if axis.coefs[i]]
        if len(moving) > 1:
            return None
        if not moving:
            if constant < 0:
                return None
            continue
        coef, bound = axes[moving[0]].coefs[i], bounds[moving[0]]
        if coef > 0:
            bound[0] = max(bound[0], -(constant // coef))
        else:
            bound[1] = min(bound[1], constant // -coef)
    for axis, (first, last) in zip(axes, bounds, strict=True):
        if first > last:
            return None
        low, high = low + axis.stride * first, high + axis.stride * last
    return low, high


def _strides(form, rank):
    """Stride and size along the axes of the grid and of a block of `rank` axes; None where that is not known."""
    found = None if form.syms else strides_of(form)
    missing = rank - len(form.shape)
    return None if found is None else {d + missing * (d >= LEAD): along for d, along in found.items()}
