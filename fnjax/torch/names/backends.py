"""Streams, flags and classes of torch's backends and compilers: they change no result here."""

from __future__ import annotations

import enum
from typing import Any, NoReturn, Self

from fnjax._torch_ops.registry import KNOWN, known
from fnjax.torch.errors import NotSupported
from fnjax.torch.names.machine import Device, nothing
from fnjax.torch.names.registry import module


@known("torch.Stream", "torch.cuda.Stream", "torch.cuda.streams.Stream")
class Stream:
    """A queue of work on a device; what JAX runs is in the order of its data."""

    cuda_stream = stream_id = 0

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device, self.priority = Device("cuda", 0), priority

    def synchronize(self) -> None:
        """Do nothing."""

    def wait_stream(self, stream: Any) -> None:
        """Do nothing."""

    def wait_event(self, event: Any) -> None:
        """Do nothing."""

    def query(self) -> bool:
        """Return True: nothing is left to do."""
        return True

    def record_event(self, event: Any = None) -> Any:
        """Return the event."""
        return Event() if event is None else event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@known("torch.Event", "torch.cuda.Event", "torch.cuda.streams.Event")
class Event:
    """A mark in a stream."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Do nothing."""

    def wait(self, stream: Any = None) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""

    def query(self) -> bool:
        """Return True: nothing is left to do."""
        return True

    def elapsed_time(self, end_event: Any) -> NoReturn:
        """Raise: nothing is measured.

        Raises:
            NotSupported: always.
        """
        raise NotSupported("the time between two events", "measure the jitted function with jax.block_until_ready")


KNOWN |= dict.fromkeys(("torch.cuda.current_stream", "torch.cuda.default_stream"), lambda device=None: Stream())
KNOWN["torch.get_device_module"] = lambda device=None: module("torch.cuda")


@known("torch.nn.attention.SDPBackend")
class SDPBackend(enum.IntEnum):
    """Implementations of attention, among which JAX's compiler chooses itself."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


for _name in ("nn.attention.sdpa_kernel", "backends.cuda.sdp_kernel"):
    KNOWN[f"torch.{_name}"] = nothing
for _names, _answer in {
    "get_float32_matmul_precision": "highest",
    "get_deterministic_debug_mode": 0,
    "is_deterministic_algorithms_warn_only_enabled": False,
    "backends.cudnn.is_available": True,
    "backends.cuda.is_built": True,
    "backends.mps.is_available": False,
    "xpu.is_available": False,
    "mtia.is_available": False,
    "get_num_threads": 1,
    "get_num_interop_threads": 1,
    "overrides.has_torch_function": False,
    **dict.fromkeys((f"backends.cuda.{k}_sdp_enabled" for k in ("flash", "mem_efficient", "math", "cudnn")), True),
    # What only says how something is computed, or printed.
    "set_float32_matmul_precision": None,
    "use_deterministic_algorithms": None,
    "set_deterministic_debug_mode": None,
    "set_num_threads": None,
    "set_num_interop_threads": None,
    "set_printoptions": None,
    **dict.fromkeys((f"backends.cuda.enable_{k}_sdp" for k in ("flash", "mem_efficient", "math", "cudnn")), None),
}.items():
    KNOWN[f"torch.{_names}"] = lambda *_, answer=_answer, **__: answer
KNOWN |= {
    "torch.backends.cuda.matmul.allow_tf32": False,
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": False,
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": False,
    "torch.backends.cudnn.allow_tf32": False,
    "torch.backends.cudnn.enabled": True,
}


class _NoInstances:
    """A class of PyTorch's compilers, of which no object is an instance."""

    def __new__(cls, *_: Any, **__: Any) -> NoReturn:
        raise NotSupported(f"{cls.__module__}.{cls.__name__} is machinery of PyTorch", "use jax.jit")


for _name in (
    "fx.Proxy",
    "fx.proxy.Proxy",
    "fx.Node",
    "fx.node.Node",
    "fx.GraphModule",
    "fx.graph_module.GraphModule",
    "jit.ScriptModule",
    "jit.ScriptFunction",
    "SymInt",
    "SymFloat",
    "SymBool",
    "_subclasses.FakeTensor",
    "_subclasses.fake_tensor.FakeTensor",
):
    _space, _, _last = f"torch.{_name}".rpartition(".")
    KNOWN[f"torch.{_name}"] = type(_last, (_NoInstances,), {"__module__": _space})
