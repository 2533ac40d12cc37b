"""Streams, flags and classes of torch's backends and compilers: they change no result here."""

from __future__ import annotations

import enum
from typing import Any, NoReturn, Self

from fnjax._torch_ops.registry import add_known, known
from fnjax.torch.errors import NotSupported
from fnjax.torch.names.machine import Device, answer, nothing
from fnjax.torch.names.registry import module


@known("torch.Stream", "torch.cuda.Stream", "torch.cuda.streams.Stream")
class Stream:
    """Stream of a device, which has no effect: JAX orders computations by their data."""

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
    """Event of a stream, which has no effect."""

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


@known("torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler")
class GradScaler:
    """torch.amp.GradScaler with `enabled=False`, which changes nothing.

    Args:
        device: the device, or the initial scale in the older constructors.
        enabled: False.

    Raises:
        NotSupported: it is enabled.
    """

    def __init__(self, device: Any = "cuda", *_: Any, enabled: bool = True, **__: Any) -> None:
        if enabled:
            what = "scale the loss and divide the gradients, or compute in bfloat16; GradScaler(enabled=False)"
            raise NotSupported("torch.amp.GradScaler that is enabled", what)

    def scale(self, outputs: Any) -> Any:
        """Return the loss."""
        return outputs

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the optimizer's step."""
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        """Do nothing."""

    def unscale_(self, optimizer: Any) -> None:
        """Do nothing."""

    def get_scale(self) -> float:
        """Return 1."""
        return 1.0

    def is_enabled(self) -> bool:
        """Return False."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the state, which is empty."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing."""


add_known("cuda.current_stream cuda.default_stream cpu.current_stream", lambda device=None: Stream())
add_known("cpu.synchronize backends.cudnn.version", answer(None))
add_known("cpu.device_count", answer(1))
add_known("cpu.current_device", answer("cpu"))
add_known("Tensor.get_device get_device", answer(0))  # the index of x.device
add_known("backends.mkldnn.flags", nothing)
add_known("backends.mkldnn.enabled backends.mkldnn.deterministic", False)
add_known("get_device_module", lambda device=None: module("torch.cuda"))


@known("torch.nn.attention.SDPBackend")
class SDPBackend(enum.IntEnum):
    """Implementations of attention, among which JAX's compiler chooses itself."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


add_known("nn.attention.sdpa_kernel backends.cuda.sdp_kernel", nothing)
for _kernel in ("flash", "mem_efficient", "math", "cudnn"):
    add_known(f"backends.cuda.{_kernel}_sdp_enabled", answer(True))
    add_known(f"backends.cuda.enable_{_kernel}_sdp", answer(None))
add_known("get_float32_matmul_precision", answer("highest"))
add_known("get_deterministic_debug_mode", answer(0))
add_known("get_num_threads get_num_interop_threads", answer(1))
add_known("backends.cudnn.is_available backends.cuda.is_built cpu.is_available", answer(True))
add_known(
    "is_deterministic_algorithms_warn_only_enabled backends.mps.is_available backends.mkldnn.is_available "
    "backends.mkl.is_available backends.openmp.is_available xpu.is_available mtia.is_available "
    "overrides.has_torch_function",
    answer(False),
)
add_known(  # what only says how something is computed, or printed
    "set_float32_matmul_precision use_deterministic_algorithms set_deterministic_debug_mode set_num_threads "
    "set_num_interop_threads set_printoptions",
    answer(None),
)
add_known(
    "backends.cuda.matmul.allow_tf32 backends.cuda.matmul.allow_fp16_reduced_precision_reduction "
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction backends.cudnn.allow_tf32",
    False,
)
add_known("backends.cudnn.enabled", True)


class _NoInstances:
    """A class of PyTorch's compilers, of which no object is an instance."""

    def __new__(cls, *_: Any, **__: Any) -> NoReturn:
        raise NotSupported(f"{cls.__module__}.{cls.__name__} is machinery of PyTorch", "use jax.jit")


def _add_classes(names: str) -> None:
    for name in names.split():
        space, _, last = f"torch.{name}".rpartition(".")
        add_known(name, type(last, (_NoInstances,), {"__module__": space}))


_add_classes(
    "fx.Proxy fx.proxy.Proxy fx.Node fx.node.Node fx.GraphModule fx.graph_module.GraphModule jit.ScriptModule "
    "jit.ScriptFunction SymInt SymFloat SymBool _subclasses.FakeTensor _subclasses.fake_tensor.FakeTensor "
    "nn.attention.flex_attention.BlockMask distributed.tensor.DTensor"
)
