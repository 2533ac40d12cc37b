"""NumPy and SciPy on tensors that JAX traces: calls are recorded, and made on the host when the program runs.

`x.numpy()` of a traced tensor is a HostValue. A call with a HostValue is made while JAX traces on a sample, an array of
ones of the same shape and dtype, to find the result's shape and dtype. That is right for the functions of the table,
whose results have shapes and dtypes that depend on those of the arguments alone; all others are refused. HostValues
share memory as NumPy's arrays do. A tensor made from a HostValue is the result of a jax.pure_callback that makes the
recorded calls in their order on the real arrays. As through NumPy in PyTorch, no gradient flows through it.
"""

from __future__ import annotations

import dataclasses
import operator
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.either import Either
from fnjax.torch.deferred.number import Number, is_traced
from fnjax.torch.errors import NotSupported
from fnjax.torch.host.table import Row, find_row, has_known_size
from fnjax.torch.host.values import REMEDY, HostValue, Recording, Step, dtype_of, fill, list_values
from fnjax.torch.memory import layout as layouts
from fnjax.torch.memory.dtypes import as_dtype
from fnjax.torch.memory.tensor import Tensor, is_known, make
from fnjax.torch.memory.trees import list_leaves, map_leaves, share_memory
from fnjax.torch.recording.journal import is_in_branch, next_serial

KEEP = f"keep the size, as np.where(mask, a, b) does; else {REMEDY}"
FRESH = "write into an array of np.zeros, np.ones, np.empty or np.full that is made in the function"


def numpy(tensor: Tensor, *, shared: bool = True) -> HostValue:
    """Return a traced tensor as a HostValue; both share memory."""
    whole = tensor.memory.layout
    if shared and not tensor.is_contiguous() and not tensor.part:  # NumPy's views depend on the strides
        flat = layouts.show_flat(whole)[layouts.offset_of(tensor.layout) :]
        entries = numpy(tensor.show(flat, detached=True))
        strides = [s * tensor.dtype.numpy.itemsize for s in tensor.layout.strides]
        return record(np.lib.stride_tricks.as_strided, (entries, tensor.layout.shape, strides), {}, "numpy()")
    recording = Recording()
    found = HostValue(recording, np.ones(tensor.shape, tensor.dtype.numpy))
    recording.leaves[id(found)] = found, tensor.array
    if shared:
        memory = tensor.show(tensor.layout, detached=True)
        recording.shared.append((memory, found, memory.memory.version))
    return found


def is_host_or_traced(value: Any) -> bool:
    """Return whether a value is a HostValue, a traced number or a traced tensor."""
    return isinstance(value, HostValue) or is_traced(value)


def _enter(value: Any) -> Any:
    """Return an argument in the form that a recorded call takes."""
    if isinstance(value, Tensor):
        if is_known(value.array):
            value = np.asarray(value.array, value.dtype.numpy)
        else:
            return numpy(value)
    if type(value) is Number:
        return numpy(value.to_operand(), shared=False).item()
    return _copy(value)


def _copy(value: Any) -> Any:
    """Return a copy of an array, so that later writes to the array do not change the recorded call."""
    return np.array(value) if isinstance(value, np.ndarray) else value


def record(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str = "", row: Row | None = None
) -> Any:
    """Record a call with HostValues; return its result, which consists of HostValues.

    Args:
        function: the function of NumPy or SciPy.
        args: the positional arguments.
        kwargs: the keyword arguments.
        name: the name of the call, for messages.
        row: the function's row of the table.

    Raises:
        NotSupported: the shape or dtype of the result may depend on values, the call fails for arrays of these shapes
            and dtypes, or it changes an array in place in a traced branch.
    """
    name = name or f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', 'a function')}"
    args, kwargs = map_leaves(_enter, (tuple(args), dict(kwargs)))
    row = row or find_row(function)
    values = list_values((args, kwargs))
    traced = {id(v) for v in values if not v.is_known}
    if row is not None and row.is_real_or_complex and traced and not any(np.iscomplexobj(v.sample) for v in values):
        plain = dataclasses.replace(row, is_real_or_complex=False)
        made = record(lambda *a, **k: map_leaves(_to_complex, function(*a, **k)), args, kwargs, name, plain)
        return map_leaves(RealOrComplex, made)
    if traced:
        found, written, shared, moved = _try_call(function, args, kwargs, name, row, traced)
    else:
        before = [np.array(v.sample) for v in values]
        found, shared, moved = _call(function, args, kwargs, lambda v: v.sample), [], []
        written = [v for v, old in zip(values, before, strict=True) if old.tobytes() != np.asarray(v.sample).tobytes()]
    written = [v for v in written if isinstance(v.sample, np.ndarray)]
    if not all(v.sample.flags.writeable for v in written):
        raise ValueError(f"{name} writes to a read-only array")
    if written and is_in_branch():
        raise NotSupported(
            f"{name} changes an array in a branch or loop that depends on a traced value", "change a copy: a = a.copy()"
        )
    arrays = [x for x in list_leaves(found) if isinstance(x, np.ndarray)]
    aliases = [v for v in values if any(share_memory(v.sample, x) for x in arrays)]
    if not traced and row is None:  # a second call might give something else
        return _note_changes(found, written, aliases, name)
    recording = Recording()
    kept = traced | {id(v) for v in [*written, *shared, *aliases]}
    for value in values:
        if id(value) in kept:
            recording.merge(value.recording)
    recorded = fill((args, kwargs), lambda v: v if id(v) in kept else _copy(v.sample))
    constants = [x for x in list_leaves((args, kwargs)) if isinstance(x, np.ndarray)]
    given = [*constants, *(v.sample for v in values)]

    def wrap(found: Any) -> Any:
        if found is None or not (traced or (isinstance(found, np.ndarray) and _is_numeric(found))):
            return found
        if not _is_numeric(found):
            raise NotSupported(f"{name}, which returns a {type(found).__name__}", REMEDY)
        if traced and not any(share_memory(found, x) for x in given):
            found = _set_to_ones(found)
        if any(share_memory(found, x) for x in constants):
            found.flags.writeable = False  # writes to it would be lost
        return HostValue(recording, found, name, is_placed=not any(share_memory(found, x) for x in moved))

    result = found if row is not None and row.is_fact else map_leaves(wrap, found)
    recording.steps.append(Step(next_serial(), function, recorded[0], recorded[1], result, bool(written)))
    if written:
        if traced:
            for value in written:
                value.sample[...] = 1
        recording.write_back(written)
    return map_leaves(lambda x: x, result)  # a list of the caller's own


def _call(function: Callable[..., Any], args: Any, kwargs: Any, sample_of: Callable[[HostValue], Any]) -> Any:
    filled = fill((args, kwargs), sample_of)
    return function(*filled[0], **filled[1])


def _try_call(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str, row: Row | None, traced: set[int]
) -> tuple[Any, list[HostValue], list[HostValue], list[Any]]:
    """Make a call on samples.

    Returns:
        The result, the HostValues that are written to, those that the result may share memory with, and their samples
        if it depends on values which part it shares.
    """
    if row is None:
        raise _refuse(name)
    samples, named = dict[int, Any](), dict[str, Any]()
    written, shared = list[HostValue](), list[HostValue]()
    moved = [v.sample for v in list_values((args, kwargs)) if not v.is_placed]
    is_moving = is_overwritten = False
    for (parameter, role), given in zip(row.find_roles(args, kwargs), [*args, *kwargs.values()], strict=True):
        values, leaves = list_values(given), list_leaves(given)
        inside = [v for v in values if id(v) in traced]
        if inside and role == "known":
            raise _refuse(name, f"a traced {parameter}")
        if any(isinstance(x, types.FunctionType) for x in leaves):
            raise _refuse(name, f"a Python function as {parameter}")
        if role == "written" and any(isinstance(x, np.ndarray) for x in leaves):
            raise NotSupported(f"{name}, which writes a traced value into an array of NumPy", FRESH)
        if role in {"index", "unit"}:
            samples |= {id(v): _make_sample(v.sample, role) for v in inside}
        written += values if role == "written" else []
        shared += values if role == "shared" else []
        is_moving |= role == "index" and bool(inside)
        is_overwritten |= parameter.startswith("overwrite") and bool(given)
        named[parameter] = fill(given, lambda v: v if id(v) in traced else v.sample)
    if row.condition is not None and not row.condition(named):
        raise _refuse(name)
    if is_overwritten:
        written = list_values((args, kwargs))
    if is_moving:
        moved += [v.sample for v in shared]
    if function is operator.setitem and not has_known_size(named["index"]):
        return None, written, shared, moved  # fails or not as values decide
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _call(function, args, kwargs, lambda v: samples.get(id(v), v.sample)), written, shared, moved
    except Exception as e:
        what = f"{name}, which raises {type(e).__name__} for arrays of these shapes and dtypes: {e}"
        raise NotSupported(what, REMEDY) from e


def _refuse(name: str, what: str = "traced values") -> NotSupported:
    if "random" in name.lower():
        return NotSupported(f"{name} of a traced value", "draw with torch's functions")
    return NotSupported(f"{name} with {what}, which may decide the shape or dtype of its result", KEEP)


def _note_changes(found: Any, written: Sequence[HostValue], aliases: Sequence[HostValue], name: str) -> Any:
    """Record the writes of a call with concrete values; return its result, which is concrete."""
    if aliases:
        raise NotSupported(f"{name}, which returns memory of an array that JAX may trace", REMEDY)
    for value in written:
        step = Step(next_serial(), np.copyto, (value, _copy(value.sample)), {}, None, True)
        value.recording.steps.append(step)
        value.recording.write_back([value])
    return found


class RealOrComplex(Deferred):
    """Array whose dtype, real or complex, depends on values; its real and imaginary parts are available.

    Args:
        value: the array, cast to a complex dtype.
    """

    __slots__ = ("_value",)

    def __init__(self, value: HostValue) -> None:
        self._value = value

    @property
    def real(self) -> HostValue:
        """The real part."""
        return self._value.real

    @property
    def imag(self) -> HostValue:
        """The imaginary part; zeros if the array is real."""
        return self._value.imag

    def refuse(self, use: str = "") -> NotSupported:
        """Return the exception for a use that depends on the dtype."""
        what = f"{use} of {self._value.name}, which is real or complex as its traced values decide"
        return NotSupported(what, f"take its .real or .imag; else {REMEDY}")


def _to_complex(value: Any) -> Any:
    return np.asarray(value, np.result_type(value, np.complex64))


def _is_numeric(value: Any) -> bool:
    dtype = dtype_of(value)
    return dtype.kind in "biufc" or dtype.isbuiltin == 2  # bfloat16 is one that was registered


def _set_to_ones(sample: Any) -> Any:
    """Set a sample that is an array to ones, and return it; for a number return 1."""
    if not isinstance(sample, np.ndarray):
        return type(sample)(1)
    if sample.flags.owndata and sample.flags.writeable:
        sample[...] = 1
    return sample


def _make_sample(sample: Any, role: str) -> Any:
    """Return a sample for an argument by its role: zeros for indices, the unit matrix for a matrix to invert."""
    if not isinstance(sample, np.ndarray):
        return type(sample)(role == "unit")
    made = np.zeros_like(sample)
    if role == "unit" and made.ndim == 1:
        made[:1] = 1
    elif role == "unit":
        made[...] = np.eye(*made.shape[-2:])
    return made


def enter_host(data: Any) -> Any:
    """Return data with tensors in place of HostValues."""
    return map_leaves(lambda x: x.to_tensor() if isinstance(x, HostValue) else x, data)


def choose(test: Any, a: Any, b: Any, name: str) -> Any:
    """Select one of two values, of which at least one is a HostValue, by a traced condition.

    Args:
        test: the condition.
        a: the value if it is true.
        b: the value if it is false.
        name: the name of the variable, for messages.
    """
    sides = map_leaves(_enter, (a, b))
    samples = fill(sides, lambda v: v.sample)
    found = [_pick(test, *samples) for test in (True, False)]
    if len({(isinstance(x, np.ndarray), np.shape(x), dtype_of(x)) for x in found}) > 1:
        return Either(name, test, a, b)
    return record(_pick, (test, *sides), {}, name, _PICK)


def _pick(test: Any, a: Any, b: Any) -> Any:
    found, other = (a, b) if test else (b, a)
    plain = isinstance(found, (int, float, complex)) and not isinstance(found, (bool, np.generic))
    # A Python number takes the dtype of what the other branch has, as in NumPy's arithmetic.
    return np.result_type(other, found).type(found) if plain and isinstance(other, (np.ndarray, np.generic)) else found


_PICK = Row([("test", "index"), ("a", "shared"), ("b", "shared")])


def _flatten(value: HostValue) -> tuple[tuple[Any, ...], Any]:
    return (value.to_array(),), dtype_of(value.sample)


def _unflatten(own: Any, children: Any) -> Any:
    (array,) = children
    if not isinstance(array, jax.Array):  # JAX puts other things there while it looks at structures
        return HostValue(Recording(), array)
    return np.asarray(array, own) if is_known(array) else numpy(make(array, as_dtype(own)))


jax.tree_util.register_pytree_node(HostValue, _flatten, _unflatten)


HostValue.record = Number.record = staticmethod(record)
