"""The machine that PyTorch source and launchers of Triton see: versions, and one GPU."""

from types import SimpleNamespace

TORCH, TRITON, CUDA = "2.13.0", "3.5.1", "12.8"  # versions
CAPABILITY, NAME = (8, 0), "NVIDIA A100"
WARP_SIZE, REGISTERS, SHARED_MEMORY = 32, 65536, 166912
TARGET = SimpleNamespace(backend="cuda", arch=10 * CAPABILITY[0] + CAPABILITY[1], warp_size=WARP_SIZE)  # of Triton


def processor_count() -> int:
    """Return the number of multiprocessors of JAX's first device, 64 where it has none: wrappers size a grid by it."""
    import jax

    return getattr(jax.devices()[0], "core_count", None) or 64
