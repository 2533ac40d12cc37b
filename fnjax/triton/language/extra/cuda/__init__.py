"""`tl.extra.cuda`: functions of floats, and launches that depend on one another, which run one after the other here."""

from fnjax.triton.language import debug_barrier
from fnjax.triton.language.extra.cuda import libdevice as libdevice

gdc_wait = gdc_launch_dependents = debug_barrier
