"""Verification of a port: arguments are searched for, and both sides run on them in a process of their own.

The search needs the original's source and PyTorch, and knows nothing of the porter.
"""

from fnjax.port.verify.record import Job as Job
from fnjax.port.verify.record import Verdict as Verdict
from fnjax.port.verify.verifying import verify as verify

__all__ = ["Job", "Verdict", "verify"]
