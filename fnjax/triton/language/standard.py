"""`tl.standard`: the names of the language, which Triton keeps there."""

from __future__ import annotations

from typing import Any

from fnjax.triton import language as _language


def __getattr__(name: str) -> Any:
    """Return a name of the language."""
    return getattr(_language, name)
