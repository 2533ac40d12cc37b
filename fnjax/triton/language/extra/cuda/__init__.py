"""`tl.extra.cuda`: functions of floats."""

from fnjax.triton.language.extra.cuda import libdevice as libdevice
