"""`tl.math`: functions of floats."""

from __future__ import annotations

from fnjax.triton.language._libdevice import __getattr__ as __getattr__
