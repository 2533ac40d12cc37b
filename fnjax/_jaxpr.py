"""What differs between the programs (jaxprs) of the JAX versions."""

from __future__ import annotations

from typing import Any


def open_jaxpr(closed: Any) -> Any:
    """The jaxpr in a closed one (one class instead of two since JAX 0.12)."""
    return getattr(closed, "jaxpr", closed)
