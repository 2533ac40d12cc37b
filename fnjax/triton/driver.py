"""Triton's driver as launchers ask it, which answers as one GPU of capability 8.0, and errors that they catch."""

from __future__ import annotations

from types import SimpleNamespace


class OutOfResources(Exception):  # noqa: N818 - Triton's name
    """Error for a kernel that needs too much of a GPU; it is never raised."""


_TARGET = SimpleNamespace(backend="cuda", arch=80, warp_size=32)
_PROPERTIES = {"max_shared_mem": 166912, "multiprocessor_count": 108, "warpSize": 32, "max_num_regs": 65536}
active = SimpleNamespace(
    get_current_target=lambda: _TARGET,
    get_current_device=lambda: 0,
    get_current_stream=lambda device=None: 0,
    get_active_torch_device=lambda: "cuda",
    get_device_interface=lambda: None,
    get_device_capability=lambda device=None: (8, 0),
    utils=SimpleNamespace(get_device_properties=lambda device=None: dict(_PROPERTIES)),
    is_active=lambda: True,
)


def set_active(driver: object) -> None:
    """Ignore another driver: there is one."""


def set_allocator(allocator: object) -> None:
    """Ignore a function that allocates memory for descriptors: they need none here."""
