"""NumPy and SciPy on tensors that JAX traces: calls are recorded, and made on the host when the program runs.

`x.numpy()` of a traced tensor is a HostValue. A call with one is made at once on samples, arrays of the same shapes and
dtypes with a few values each: they tell the result's shape and dtype, and they share memory and change in place as
NumPy's arrays do. A tensor that is made of a host value is the result of a jax.pure_callback that makes the recorded
calls in their order on the real arrays. Gradients do not flow through it, as they do not through NumPy in PyTorch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fnjax.torch._dtypes import as_dtype
from fnjax.torch._tensor import Tensor, is_known, make
from fnjax.torch.control.journal import is_in_branch, next_serial
from fnjax.torch.deferred.number import Number
from fnjax.torch.host.recording import REMEDY, HostValue, Recording, Step, fill, list_values
from fnjax.torch.host.samples import SAMPLES, make_samples, map_leaves, try_call
from fnjax.torch.loading.errors import NotSupported

# Results that shapes and dtypes decide.
_STATIC = (type, np.dtype, str, type(None))
_ASKS = frozenset({"shape", "ndim", "size", "iscomplexobj", "isrealobj", "can_cast", "isscalar", "shares_memory"})


def numpy(tensor: Tensor, *, shared: bool = True) -> HostValue:
    """Return a traced tensor on the host; both share memory."""
    recording = Recording()
    found = HostValue(recording, make_samples(tensor.shape, tensor.dtype.numpy))
    recording.leaves[id(found)] = found, tensor.array
    if shared:
        memory = tensor.show(tensor.layout, detached=True)
        recording.shared.append((memory, found, memory.memory.version))
    return found


def is_traced(value: Any) -> bool:
    """Return whether a value is a host value or a tensor that is not known."""
    return isinstance(value, (HostValue, Number)) or (isinstance(value, Tensor) and not is_known(value.array))


def _enter(value: Any) -> Any:
    """Return an argument as the recorded call gets it."""
    if isinstance(value, Tensor):
        if is_known(value.array):
            value = np.asarray(value.array, value.dtype.numpy)
        else:
            return numpy(value)
    if type(value) is Number:
        return numpy(value.to_operand(), shared=False).item()
    if isinstance(value, np.ndarray):  # whoever changes it later does not change the recorded call
        value = value.copy()
        value.flags.writeable = False
    return value


def record(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str = "") -> Any:
    """Record a call with host values; return its result, with host values in it.

    Raises:
        NotSupported: it fails on all samples, draws random numbers, or changes in a traced branch an array in place.
    """
    name = name or f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', 'a function')}"
    if "numpy.random" in name or "RandomState" in name:
        raise NotSupported(f"{name} of a traced value", "draw with torch's functions")
    args, kwargs = map_leaves(_enter, (tuple(args), dict(kwargs)))
    values = list_values((args, kwargs))
    recording = Recording()
    for value in values:
        recording.merge(value.recording)
    recording.refresh()
    found, written, failure = dict[int, Any](), list[int](), None

    def call(samples: Sequence[Any]) -> Any:
        rest = iter(samples)
        given = fill((args, kwargs), lambda _: next(rest))
        return function(*given[0], **given[1])

    for i in sorted(recording.alive):
        try:
            found[i], changed = try_call(call, [v.samples[i] for v in values], written)
            written = sorted({*written, *changed})
        except Exception as e:  # noqa: BLE001 - another sample may do
            failure = e
    # An object of the host may be anything, and change with any call.
    objects = any(not isinstance(v.sample, (np.ndarray, np.generic, bool, int, float, complex)) for v in values)
    if (written or objects) and is_in_branch():
        raise NotSupported(
            f"{name} changes an array in a branch or loop that depends on a traced value", "change a copy: a = a.copy()"
        )
    if not found:
        what = f"{name}, which raises {type(failure).__name__} on samples of what JAX traces: {failure}"
        raise NotSupported(what, REMEDY) from failure
    recording.alive &= found.keys()
    first = found[min(found)]
    asks = getattr(function, "__name__", "") in _ASKS
    if asks or isinstance(first, _STATIC):
        if any(f != first for f in found.values()):
            raise NotSupported(f"{name}, which depends on traced values", REMEDY)
        result = first
    elif not recording.leaves and not isinstance(first, np.ndarray) and not written:
        return first
    else:
        result = _wrap(recording, found, name)
    recording.steps.append(Step(next_serial(), function, args, kwargs, result, bool(written) or objects))
    if written or objects:
        recording.write_back(values if objects else [values[i] for i in written], everything=objects)
    return map_leaves(lambda x: x, result)  # a list of the caller's own


def _wrap(recording: Recording, found: Mapping[int, Any], name: str) -> Any:
    """Return host values for the parts of a result."""
    first = found[min(found)]
    if first is None:
        return None
    same = all(type(f) is type(first) for f in found.values())
    if same and isinstance(first, (list, tuple)) and all(len(f) == len(first) for f in found.values()):
        parts = [_wrap(recording, {i: f[k] for i, f in found.items()}, name) for k in range(len(first))]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    for f in found.values():
        if isinstance(f, np.ndarray) and not f.flags.writeable:
            with contextlib.suppress(ValueError):  # a view of what was read-only during the call
                f.flags.writeable = True
    return HostValue(recording, [found.get(i) for i in range(SAMPLES)], name)


def enter_host(data: Any) -> Any:
    """Return data for a tensor with tensors in place of host values."""
    return map_leaves(lambda x: x.to_tensor() if isinstance(x, HostValue) else x, data)


def choose(test: Any, a: Any, b: Any) -> Any:
    """Return one of two values, at least one of them of the host, by a traced condition."""
    return record(_pick, (test, a, b), {}, "a value of the host")


def _pick(test: Any, a: Any, b: Any) -> Any:
    found, other = (a, b) if test else (b, a)
    plain = isinstance(found, (int, float, complex)) and not isinstance(found, (bool, np.generic))
    # A Python number takes the dtype of what the other branch has, as in NumPy's arithmetic.
    return np.result_type(other, found).type(found) if plain and isinstance(other, (np.ndarray, np.generic)) else found


def _flatten(value: HostValue) -> tuple[tuple[Any, ...], Any]:
    return (value.to_array(),), value.dtype


def _unflatten(own: Any, children: Any) -> Any:
    (array,) = children
    if not isinstance(array, jax.Array):  # JAX puts other things there while it looks at structures
        return HostValue(Recording(), [array])
    return np.asarray(array, own) if is_known(array) else numpy(make(array, as_dtype(own)))


jax.tree_util.register_pytree_node(HostValue, _flatten, _unflatten)


HostValue.record = Number.record = staticmethod(record)
