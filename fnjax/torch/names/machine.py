"""Devices and versions, and functions of torch that have no effect here, such as torch.compile."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np

from fnjax._machine import CAPABILITY, CUDA, NAME, REGISTERS, SHARED_MEMORY, TORCH, WARP_SIZE, processor_count
from fnjax._torch_ops.registry import add_known, known
from fnjax.torch.dispatch.autocast import Autocast, custom_bwd, custom_fwd, find_block
from fnjax.torch.errors import NotSupported
from fnjax.torch.recording.journal import next_serial
from fnjax.torch.recording.rng import (
    DEFAULT_SEED,
    State,
    begin_stream,
    find_stream,
    fork,
    get_state,
    initial_seed,
    restart,
    set_state,
)


class Device:
    """A device of torch: there is one, the JAX array's own."""

    def __init__(self, type: Any, index: int | None = None) -> None:  # noqa: A002 - PyTorch's name
        if isinstance(type, int):
            type, index = "cuda", type  # noqa: A001 - as above
        self.type: str
        self.type, _, number = str(type).partition(":")
        self.index = int(number) if number else index

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Device, str)):
            return False
        other = Device(other)
        return other.type == self.type and (None in (self.index, other.index) or self.index == other.index)

    def __hash__(self) -> int:
        return hash(self.type)

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"device(type={self.type!r}" + (")" if self.index is None else f", index={self.index})")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


add_known("device", Device)
add_known("get_default_device", lambda: Device("cuda", 0))  # as tensors have it
add_known("accelerator.current_accelerator", lambda check_available=False: Device("cuda"))
for _name in ("inf", "nan", "pi", "e"):
    add_known(_name, getattr(np, _name))
add_known("newaxis version.hip version.xpu", None)


class _Version(str):
    """Version, compared by its numbers, also with strings and tuples."""

    __slots__ = ()

    @staticmethod
    def _key(version: Any) -> tuple[int, ...]:
        parts = version if isinstance(version, tuple) else str(version).partition("+")[0].split(".")
        return tuple(int(p) for p in parts if str(p).isdigit())

    def __lt__(self, other: Any) -> bool:
        return self._key(self) < self._key(other)

    def __gt__(self, other: Any) -> bool:
        return self._key(self) > self._key(other)

    def __le__(self, other: Any) -> bool:
        return self._key(self) <= self._key(other)

    def __ge__(self, other: Any) -> bool:
        return self._key(self) >= self._key(other)


add_known("__version__ version.__version__", _Version(TORCH))
add_known("version.cuda", CUDA)


class _Strided(str):
    """Name of the layout of all tensors: it is equal to each `x.layout`."""

    __slots__ = ()
    __array_ufunc__ = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, np.ndarray) or str(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


add_known("strided", _Strided("strided"))
for _name in (
    "contiguous_format",
    "preserve_format",
    "legacy_contiguous_format",
    "channels_last",
    "channels_last_3d",
):
    add_known(_name, _name)


def _hand_back(*args: Any, **_: Any) -> Any:
    """Return the function that a compiler is passed, unchanged; with options alone, return such a decorator."""
    return args[0] if args and callable(args[0]) else lambda function: function


add_known(
    "jit.script jit.export jit.ignore jit.unused jit.trace jit.script_method compile compiler.disable "
    "compiler.allow_in_graph compiler.assume_constant_result compiler.substitute_in_graph _dynamo.disable "
    "_dynamo.allow_in_graph fx.wrap",
    _hand_back,
)


def answer(value: Any) -> Callable[..., Any]:
    """Return a function of any arguments that returns a constant."""
    return lambda *_, **__: value


@contextlib.contextmanager
def nothing(*_: Any, **__: Any) -> Iterator[None]:
    """Run a block unchanged: a context manager of any arguments, without effect."""
    yield


add_known(
    "cuda.device cuda.device_of cuda.stream cuda.nvtx.range profiler.record_function autograd.profiler.record_function "
    "autograd.set_detect_anomaly autograd.detect_anomaly backends.cudnn.flags",
    nothing,
)
add_known(
    "cuda.synchronize cuda.empty_cache cuda.ipc_collect cuda.set_device cuda.nvtx.range_push cuda.nvtx.range_pop "
    "cuda.nvtx.mark cuda.reset_peak_memory_stats _dynamo.graph_break _dynamo.mark_dynamic _dynamo.maybe_mark_dynamic "
    "_dynamo.mark_static clear_autocast_cache utils.checkpoint.set_device_states",
    answer(None),
)
add_known(
    "compiler.is_compiling compiler.is_exporting compiler.is_dynamo_compiling jit.is_scripting jit.is_tracing "
    "_dynamo.is_compiling onnx.is_in_onnx_export is_anomaly_enabled are_deterministic_algorithms_enabled "
    "_C._get_tracing_state _C._is_tracing cuda.is_current_stream_capturing xpu.is_current_stream_capturing",
    answer(False),
)
add_known("cuda.is_available cuda.is_initialized cuda.is_bf16_supported accelerator.is_available", answer(True))
add_known("autograd._is_checkpoint_valid", answer(True))
add_known("cuda.device_count accelerator.device_count", answer(1))
add_known("cuda.current_device", answer(0))
add_known("cuda.get_device_capability", answer(CAPABILITY))
add_known("cuda.get_device_name", answer(NAME))
add_known("cuda._initialized", False)


@known("torch.cuda.get_device_properties")
def get_device_properties(device: Any = None) -> types.SimpleNamespace:
    """Return the properties of the one GPU."""
    return types.SimpleNamespace(
        multi_processor_count=processor_count(), name=NAME, major=CAPABILITY[0], minor=CAPABILITY[1],
        total_memory=80 << 30, warp_size=WARP_SIZE, max_shared_memory_per_block=49152,
        max_threads_per_multi_processor=2048, regs_per_multiprocessor=REGISTERS, shared_memory_per_block=49152,
        shared_memory_per_block_optin=SHARED_MEMORY, shared_memory_per_multiprocessor=167936,
        max_threads_per_block=1024, L2_cache_size=40 << 20, gcnArchName=NAME, is_integrated=0, is_multi_gpu_board=0,
        clock_rate=1410000, memory_clock_rate=1215000, memory_bus_width=5120,
    )  # fmt: skip


for _space in ("", "random.", "cuda.", "cuda.random."):
    add_known(f"{_space}get_rng_state", get_state)
    add_known(f"{_space}set_rng_state", set_state)
    add_known(f"{_space}initial_seed", initial_seed)
add_known("random.fork_rng", fork)
add_known("utils.checkpoint.get_device_states", lambda *_: ([], []))


@known("torch.Generator", "torch._C.Generator")
class Generator:
    """A torch.Generator: its numbers depend on its seed and on the key of the `seed` block.

    Attributes:
        start: the seed, and the number of keys drawn before the block begins.
        serial: a number that is larger than those of all earlier generators and storages.
    """

    start = (DEFAULT_SEED, 0)

    def __init__(self, device: Any = "cpu") -> None:
        self.device, self.serial = Device(device), next_serial()

    def manual_seed(self, seed: int) -> Self:
        """Begin the numbers of a seed; return the generator."""
        begin_stream(self, State(None, 0, int(seed) % 2**64))
        return self

    def initial_seed(self) -> int:
        """Return the seed."""
        return find_stream(self).number

    def seed(self) -> int:
        """Raise NotSupported: a program has no seed of its own."""
        raise NotSupported("torch.Generator.seed, which takes a seed from the machine,", "call manual_seed(number)")

    def get_state(self) -> State:
        """Return the state, for `set_state`."""
        return find_stream(self)

    def set_state(self, new_state: State) -> Self:
        """Draw the same numbers again, from a state on; return the generator."""
        begin_stream(self, new_state)
        return self


@known("torch.manual_seed", "torch.random.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all")
def manual_seed(seed: int) -> Generator:
    """Restart the block's random numbers; they depend on the block's key and on the seed.

    Raises:
        NotSupported: the call is not within a `seed` block.
    """
    restart(int(seed))
    return Generator()


def _autocast_of(device_type: str) -> Callable[..., Autocast]:
    return lambda enabled=True, dtype=None, cache_enabled=True: Autocast(device_type, dtype, enabled)


add_known("autocast amp.autocast amp.autocast_mode.autocast autocast_mode.autocast", Autocast)
for _device in ("cpu", "cuda"):
    add_known(f"{_device}.amp.autocast {_device}.amp.autocast_mode.autocast", _autocast_of(_device))
add_known(
    "is_autocast_enabled",
    lambda device_type="cuda": device_type in {"cpu", "cuda"} and find_block(device_type)[1],
)
add_known("is_autocast_cpu_enabled", lambda: find_block("cpu")[1])
add_known("get_autocast_dtype", lambda device_type="cuda": find_block(device_type)[0])
add_known("get_autocast_gpu_dtype", lambda: find_block("cuda")[0])
add_known("get_autocast_cpu_dtype", lambda: find_block("cpu")[0])
add_known(
    "amp.is_autocast_available amp.autocast_mode.is_autocast_available",
    lambda device_type: device_type in {"cpu", "cuda"},
)
for _space in ("cuda.amp", "amp", "cuda.amp.autocast_mode", "amp.autocast_mode"):
    add_known(f"{_space}.custom_fwd", custom_fwd)
    add_known(f"{_space}.custom_bwd", custom_bwd)
