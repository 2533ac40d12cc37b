"""`tl.target_info`: the GPU that kernels see, which is the one of the driver."""

from __future__ import annotations

from types import SimpleNamespace

from fnjax._machine import CAPABILITY, TARGET


def current_target() -> SimpleNamespace:
    """Return backend, architecture and warp size."""
    return TARGET


def is_cuda() -> bool:
    """Return True: the GPU is one of NVIDIA's."""
    return True


def cuda_capability_geq(major: int, minor: int = 0) -> bool:
    """Return True where the GPU's capability is at least `major`.`minor`."""
    return (int(major), int(minor)) <= CAPABILITY


def is_hip() -> bool:
    """Return False: the GPU is none of AMD's."""
    return False


is_hip_cdna3 = is_hip_cdna4 = is_hip
