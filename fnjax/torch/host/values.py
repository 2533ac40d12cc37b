"""HostValues, and the recorded calls of NumPy that compute them when the program runs."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._primitives.nondifferentiable import nondifferentiable
from fnjax.torch.deferred.base import ARITHMETIC, COMPARISONS, UNARY, refuse_others
from fnjax.torch.deferred.number import number
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.dtypes import as_dtype
from fnjax.torch.memory.tensor import Tensor, is_known, make
from fnjax.torch.memory.trees import find_place, list_leaves, map_leaves, share_memory
from fnjax.torch.recording.graph import Value
from fnjax.torch.recording.journal import next_serial

_STATIC_ATTRIBUTES = frozenset({"shape", "dtype", "ndim", "size", "strides", "itemsize", "nbytes", "flags"})
REMEDY = "write it with operations of torch, or call the function outside of jax.jit"


@dataclasses.dataclass(slots=True)
class Step:
    """A recorded call.

    Attributes:
        serial: a number that is larger than those of all earlier calls.
        results: the call's result, with a HostValue for each value.
        writes: whether the call may change its arguments.
    """

    serial: int
    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    results: Any
    writes: bool


class Recording:
    """Calls on HostValues that may share memory.

    Attributes:
        steps: the calls.
        leaves: the HostValues that are copies of JAX arrays, by their ids: the HostValue and the array.
        shared: tensors that share memory with HostValues, and the storage's version when they were last synchronised.
        merged: the recording into which this one was merged, or None.
    """

    def __init__(self) -> None:
        self.steps = list[Step]()
        self.leaves = dict[int, tuple[HostValue, Any]]()
        self.shared = list[tuple[Tensor, HostValue, int]]()
        self.merged: Recording | None = None

    def merge(self, other: Recording) -> None:
        """Take over the calls of another recording."""
        if other is self:
            return
        self.steps = sorted(self.steps + other.steps, key=lambda s: s.serial)
        self.leaves |= other.leaves
        self.shared += other.shared
        other.merged = self

    def refresh(self) -> None:
        """Record the writes of torch to tensors that share memory with HostValues."""
        for i, (tensor, value, version) in enumerate(self.shared):
            if tensor.memory.version != version:
                self.shared[i] = tensor, value, tensor.memory.version
                new: Any
                if self.leaves or not is_known(tensor.array):
                    new = HostValue(self, value.sample)
                    self.leaves[id(new)] = new, tensor.array
                else:
                    new = np.array(tensor.array, value.sample.dtype)
                    np.copyto(value.sample, new)
                self.steps.append(Step(next_serial(), np.copyto, (value, new), {}, None, True))

    def write_back(self, changed: Sequence[HostValue]) -> None:
        """Write to the tensors that share memory with arrays that NumPy changed."""
        for i, (tensor, value, _) in enumerate(self.shared):
            if any(not a.is_placed or share_memory(a.sample, value.sample) for a in changed):
                tensor.assign(Value(value.to_array()))
                self.shared[i] = tensor, value, tensor.memory.version

    def replay(self, wanted: HostValue) -> Any:
        """Return a HostValue as a JAX array, from one jax.pure_callback with the recorded calls that it depends on."""
        needed, steps = {id(wanted)}, list[Step]()
        for step in reversed(self.steps):
            if step.writes or any(id(x) in needed for x in list_values(step.results)):
                steps.insert(0, step)
                needed |= {id(x) for x in list_values((step.args, step.kwargs))}
        leaves = {k: v for k, v in self.leaves.items() if k in needed}
        slots = dict[int, _Slot]()

        def find_slot(value: HostValue) -> _Slot:
            return slots.setdefault(
                id(value), _Slot(len(slots), value.name, np.shape(value.sample), dtype_of(value.sample))
            )

        # Nothing of it refers to this trace.
        given = [(find_slot(value).index, value.sample.dtype) for value, _ in leaves.values()]
        program = [(s.function, *fill((s.args, s.kwargs, s.results), find_slot)) for s in steps]
        own, end = as_dtype(dtype_of(wanted.sample)).array, find_slot(wanted)

        def call(*arrays: Any) -> Any:
            values = {at: np.array(a, dtype, order="C") for (at, dtype), a in zip(given, arrays, strict=True)}

            def enter(x: Any) -> Any:
                return values[x.index] if isinstance(x, _Slot) else np.array(x) if isinstance(x, np.ndarray) else x

            for function, args, kwargs, results in program:
                filled = map_leaves(enter, (args, kwargs))
                _assign(values, results, function(*filled[0], **filled[1]))
            return np.asarray(values[end.index]).astype(own)

        arrays = nondifferentiable([a for _, a in leaves.values()], [], _make_error(end.name)) if leaves else ()
        return jax.pure_callback(call, jax.ShapeDtypeStruct(end.shape, own), *arrays, vmap_method="sequential")


@dataclasses.dataclass(frozen=True, slots=True)
class _Slot:
    """Index of a HostValue in a recorded program, with its name, shape and dtype."""

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: Any


def _make_error(name: str) -> Callable[[], Exception]:
    text = f"the derivative of {name}, which NumPy computes on the host"
    error = NotSupported(text, "write it with operations of torch, or detach() what NumPy gets")
    return lambda: error


class HostValue:
    """Array or number of NumPy that is computed on the host when the program runs.

    Args:
        recording: the calls that compute it.
        sample: an array, or a number, of its type, shape, dtype and position in memory. Its elements are valid only if
            the value does not depend on what JAX traces.
        name: the name of the call, for messages.
        is_placed: whether its position in memory is that of the sample; False if the position depends on values.
    """

    __slots__ = ("__weakref__", "_recording", "is_placed", "name", "sample")
    record: Callable[..., Any]  # calls.record

    def __init__(self, recording: Recording, sample: Any, name: str = "numpy()", *, is_placed: bool = True) -> None:
        self._recording, self.sample, self.name, self.is_placed = recording, sample, name, is_placed

    @property
    def recording(self) -> Recording:
        """The recording that the value belongs to now."""
        while self._recording.merged is not None:
            self._recording = self._recording.merged
        return self._recording

    @property
    def is_known(self) -> bool:
        """True if the value is concrete: it does not depend on what JAX traces."""
        self.recording.refresh()
        return not self.recording.leaves

    def known(self, what: str) -> Any:
        """Return the concrete value.

        Raises:
            NotSupported: the value depends on what JAX traces.
        """
        if not self.is_known:
            raise self.refuse(what)
        return self.sample

    def refuse(self, use: str) -> NotSupported:
        """Return the exception for a use that needs the concrete value."""
        return NotSupported(f"{use} of {self.name}, which is computed when the program runs", REMEDY)

    def to_array(self) -> Any:
        """Return the array of JAX."""
        recording = self.recording
        recording.refresh()
        if self.is_known:
            with jax.ensure_compile_time_eval():
                return jnp.asarray(np.array(self.sample), as_dtype(dtype_of(self.sample)).array)
        return recording.replay(self)

    def to_tensor(self, *, shared: bool = False) -> Tensor:
        """Return the value as a tensor; a Python number as a traced number.

        Args:
            shared: whether the tensor shares memory with the value.
        """
        if shared and not self.is_placed:
            raise NotSupported(f"a tensor that shares memory with {self.name}", "use torch.tensor(a), a copy")
        found = self._find_shared() if shared else None
        if found is not None:
            return found
        array = self.to_array()
        if isinstance(self.sample, (bool, int, float, complex)) and not isinstance(self.sample, np.generic):
            return number(array)
        made = make(array, as_dtype(dtype_of(self.sample)))
        if shared:
            self.recording.shared.append((made, self, made.memory.version))
        return made

    def _find_shared(self) -> Tensor | None:
        """Return a view of a tensor that already shares memory with this array; None where there is none."""
        recording = self.recording
        recording.refresh()
        for tensor, value, _ in recording.shared:
            place = find_place(self.sample, value.sample)
            if place is None:
                continue
            if not tensor.is_contiguous():
                raise NotSupported(f"a tensor of a part of the memory of {self.name}", "use torch.tensor(a), a copy")
            offset, strides = place
            flat = tensor.layout.reshape(-1)[offset:]
            shown = np.lib.stride_tricks.as_strided(flat, self.sample.shape, strides)
            return tensor.show(shown, detached=True)
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self.sample, name)
        if name in _STATIC_ATTRIBUTES:
            return found
        if callable(found):
            own = type(self.sample)
            method, text = getattr(own, name), f"{own.__name__}.{name}"
            return lambda *args, **kwargs: HostValue.record(method, (self, *args), kwargs, text)
        return HostValue.record(getattr, (self, name), {}, name)

    def __len__(self) -> int:
        return len(self.sample)

    def __copy__(self) -> Any:
        return self.copy() if isinstance(self.sample, np.ndarray) else self

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__copy__()

    def __contains__(self, value: Any) -> bool:
        return value in self.known("in")

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        return HostValue.record(operator.getitem, (self, index), {}, "indexing")

    def __setitem__(self, index: Any, new: Any) -> None:
        HostValue.record(operator.setitem, (self, index, new), {}, "an assignment to elements")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return HostValue.record(getattr(ufunc, method), inputs, kwargs, f"np.{ufunc.__name__}")

    def __array_function__(self, func: Any, _: Any, args: Any, kwargs: Any) -> Any:
        return HostValue.record(func, args, kwargs, f"np.{func.__name__}")

    def __hash__(self) -> int:
        return hash(self.known("the hash"))  # numbers are found by their value; arrays have none

    def __str__(self) -> str:
        return str(self.known("the text"))

    def __format__(self, spec: str) -> str:
        return format(self.known("the text"), spec)

    def __array__(self, *args: Any, **_: Any) -> Any:
        return np.array(self.known("the elements"), *args)

    def __jax_array__(self) -> Any:
        return self.to_array()

    def __repr__(self) -> str:
        return f"<{self.name}, which is computed when the program runs>" if not self.is_known else repr(self.sample)


def _install() -> None:
    def binary(name: str, *, reflected: bool) -> Callable[..., Any]:
        function = getattr(operator, f"__{name}__")

        def call(self: HostValue, other: Any) -> Any:
            if isinstance(other, Tensor) and not name.startswith("i"):
                return NotImplemented  # it is a tensor
            return HostValue.record(function, (other, self) if reflected else (self, other), {}, f"a result of {name}")

        return call

    for name in ARITHMETIC:
        for prefix in ("", "r", "i"):
            method = binary(f"i{name}" if prefix == "i" else name, reflected=prefix == "r")
            setattr(HostValue, f"__{prefix}{name}__", method)
    for name in (*COMPARISONS, "lshift", "rshift"):
        setattr(HostValue, f"__{name}__", binary(name, reflected=False))
    for name in UNARY:
        function = getattr(operator, f"__{name}__")
        setattr(HostValue, f"__{name}__", lambda self, f=function: HostValue.record(f, (self,), {}, f.__name__))
    for kind in (bool, int, float, complex, operator.index):
        method = lambda self, kind=kind: kind(self.known(f"{kind.__name__}()"))  # noqa: E731 - one for each
        setattr(HostValue, f"__{kind.__name__}__", method)


_install()
refuse_others(HostValue)
del HostValue.__call__  # it is no function


def dtype_of(value: Any) -> Any:
    """Return the dtype of an array or a number."""
    return np.asarray(value).dtype


def list_values(tree: Any) -> list[HostValue]:
    """Return the HostValues in a tree."""
    return [x for x in list_leaves(tree) if isinstance(x, HostValue)]


def fill(tree: Any, value_of: Callable[[HostValue], Any]) -> Any:
    """Return a tree with other values in place of its HostValues."""
    return map_leaves(lambda x: value_of(x) if isinstance(x, HostValue) else x, tree)


def _assign(values: dict[int, Any], results: Any, found: Any) -> None:
    """Store the parts of a call's result by the indices of their slots."""
    if isinstance(results, _Slot):
        shape, dtype = np.shape(found), dtype_of(found)
        if (shape, dtype) != (results.shape, results.dtype):
            raise ValueError(
                f"{results.name} has the shape {shape} and the dtype {dtype}, and had {results.shape} and "
                f"{results.dtype} when it was traced: {REMEDY}"
            )
        values[results.index] = found
    elif isinstance(results, (list, tuple)):
        for result, part in zip(results, found, strict=True):
            _assign(values, result, part)
