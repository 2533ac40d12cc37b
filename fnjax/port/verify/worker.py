"""The process that runs a class: the job is read from a file, and its progress goes to standard output.

Whatever a class does to this process, it does to nothing else.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import importlib.util
import json
import math
import os
import sys
import time
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from fnjax.port.compare.reference import PYTORCH
from fnjax.port.verify.record import Job


def main() -> None:
    """Verify the class of the job, and report the verdict."""
    job = Job(**json.loads(Path(sys.argv[1]).read_text("utf-8")))
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the user's code may print: only events may go to the pipe
        faulthandler.enable()
        from fnjax.port.verify.verification import verify_class

        if job.against == PYTORCH:
            importlib.import_module("torch").set_num_threads(1)
        _limit_memory(job.memory)
        warnings.simplefilter("ignore")
        warm_up(job.against)
        if job.against == PYTORCH and "triton" in job.text and importlib.util.find_spec("triton"):
            from fnjax.port.compare.interpreter import prepare_interpreter

            prepare_interpreter()
            job = replace(job, second=False)  # PyTorch's graph ends at a launch
        _send_event(out, "ready")

        def report(event: str, **more: Any) -> None:
            if event == "loaded":
                _limit_processor_time(job.longest)
            _send_event(out, event, **more)

        verdict = verify_class(job, report)
        _send_event(out, "verdict", verdict=asdict(verdict))
        out.flush()
    os._exit(0)  # threads that the user's code has left running are not waited for


def warm_up(against: str | None) -> None:
    """Let the reference import what it imports at a first call: traced, within a call's time, it would take long."""
    import numpy as np

    from fnjax.port.compare.comparing import Comparing
    from fnjax.port.compare.reference import make_reference
    from fnjax.port.compare.values import Inputs

    sin = make_reference(against).torch.sin
    Comparing(sin, sin, against=against).run_original(Inputs([np.ones(2)]), fill=1)


def _send_event(out: IO[str], event: str, **more: Any) -> None:
    out.write(json.dumps({"event": event, **more}) + "\n")
    out.flush()


def _limit_memory(size: int) -> None:
    """Limit the memory to what the process has now and that size, where the system can."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + size
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_processor_time(seconds: float) -> None:
    """Let the process end after that processor time, where the system can: a call in C is not interrupted before."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        most = math.ceil(time.process_time() + seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


if __name__ == "__main__":
    main()
