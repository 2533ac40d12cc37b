"""`tl.extra.libdevice`: functions of floats."""

from fnjax.triton.language._libdevice import __getattr__ as __getattr__
