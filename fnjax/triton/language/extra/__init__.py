"""`tl.extra`: functions of floats under the names of each platform."""

from fnjax.triton.language.extra import cuda as cuda
from fnjax.triton.language.extra import libdevice as libdevice

hip = intel = cuda
