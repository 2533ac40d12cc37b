"""The part of `triton.tools` that launches need."""

from __future__ import annotations
