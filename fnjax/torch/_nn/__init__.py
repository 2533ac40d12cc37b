"""`torch.nn`: modules, their containers and layers, on JAX arrays."""

from typing import Any


def __getattr__(name: str) -> Any:
    """Return a name of torch.nn."""
    if name.startswith("_"):
        raise AttributeError(name)
    from fnjax.torch._start import find_name

    return getattr(find_name("nn")[0], name)
