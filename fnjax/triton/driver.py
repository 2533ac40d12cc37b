"""Triton's driver as launchers ask it, which answers as one GPU of capability 8.0, and errors that they catch."""

from __future__ import annotations

from types import SimpleNamespace

from fnjax._machine import CAPABILITY, REGISTERS, SHARED_MEMORY, TARGET, WARP_SIZE, processor_count


class OutOfResources(Exception):  # noqa: N818 - Triton's name
    """Error for a kernel that needs too much of a GPU; it is never raised."""


_PROPERTIES = {"max_shared_mem": SHARED_MEMORY, "warpSize": WARP_SIZE, "max_num_regs": REGISTERS}
active = SimpleNamespace(
    get_current_target=lambda: TARGET,
    get_current_device=lambda: 0,
    get_current_stream=lambda device=None: 0,
    get_active_torch_device=lambda: "cuda",
    get_device_interface=lambda: None,
    get_device_capability=lambda device=None: CAPABILITY,
    utils=SimpleNamespace(
        get_device_properties=lambda device=None: _PROPERTIES | {"multiprocessor_count": processor_count()}
    ),
    is_active=lambda: True,
)


def set_active(driver: object) -> None:
    """Ignore another driver: there is one."""


def set_allocator(allocator: object) -> None:
    """Ignore a function that allocates memory for descriptors: they need none here."""
