"""A process of its own for each class, within limits of time and memory."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from fnjax._cli.call import find_import_level
from fnjax.port.compare.reference import PYTORCH, choose_reference, describe_reference
from fnjax.port.verify.record import MORE_TIME, NOT_TRIED, REMEDY, VERIFIED, WAITING, Job, Verdict

STARTING = 300.0  # seconds until the reference, JAX and the class are loaded
RESTARTS = 3
_POLL = 0.5  # seconds until a cancellation is noticed
Progress = Callable[[str], None]


def verify(job: Job, *, progress: Progress | None = None, cancelled: threading.Event | None = None) -> Verdict:
    """Search for arguments of a class, run both sides on them in another process, and return the verdict.

    Args:
        job: the class.
        progress: called with a line on the state of the search.
        cancelled: when it is set, the process is ended and the verdict means nothing.

    Raises:
        ImportError: against PyTorch, where that is not installed.
    """
    against = choose_reference(job.against)
    cancelled = cancelled or threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        if not (job.path.endswith(".py") and Path(job.path).is_file()):  # standard input, or a notebook
            job = replace(job, path=str(Path(folder, "source.py")))  # TorchScript needs a file that it can read
            Path(job.path).write_text(job.text, "utf-8")
        file = _mirror_packages(job, Path(folder)) / f"{Path(job.path).stem or 'port'}_jax.py"
        file.write_text(job.port, "utf-8")
        job = replace(job, place=job.place or str(file), against=against)
        for _ in range(RESTARTS):
            begin = time.monotonic()
            run = _Run(job, Path(folder, "errors"), progress, cancelled)
            verdict = run.wait_for_verdict()
            left = job.seconds - (time.monotonic() - begin)
            if verdict is not None or run.doing != "trying" or cancelled.is_set() or left < 1:
                break
            job = replace(job, skipped=[*job.skipped, run.call], seconds=left)
        verdict = verdict or run.describe_end()
        if job.port == job.text:  # the file itself, which messages should name
            verdict = replace(verdict, reason=verdict.reason.replace(str(file), job.path))
    if against == PYTORCH:
        return verdict
    return replace(verdict, against=against, notes=(*verdict.notes, describe_reference(against)))


def _mirror_packages(job: Job, folder: Path) -> Path:
    """Return a folder for a port in which its relative imports find the files that they find next to the source."""
    own = bool(job.place) or Path(job.path).parent == folder  # it has a place, or its source has none
    level = 0 if own else find_import_level(job.port)
    packages = [*reversed(Path(job.path).absolute().parents[:level])]
    for package in packages:
        folder /= package.name or "root"
        folder.mkdir()
    for package, made in zip(reversed(packages), (folder, *folder.parents), strict=False):
        for entry in package.iterdir():
            if entry.name != "__init__.py" and not (made / entry.name).exists():
                (made / entry.name).symlink_to(entry)
    return folder


class _Run:
    """A process, and the events that it reports."""

    def __init__(self, job: Job, errors: Path, progress: Progress | None, cancelled: threading.Event) -> None:
        self.job, self.errors, self.progress, self.cancelled = job, errors, progress, cancelled
        self.reference = "PyTorch" if job.against == PYTORCH else job.against
        self.doing, self.call = "starting", ""
        self.verdict: Verdict | None = None  # what is known so far
        self.killed, self.remedy = "", REMEDY
        self.counts: dict[str, int] = {}
        self.events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        # A class is tried on the CPU, where it disturbs no other process.
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
        environment.setdefault("TRITON_INTERPRET", "1")
        environment["TORCHDYNAMO_DISABLE"] = "1"  # compiling takes longer than any of its calls
        environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        given = errors.with_name("job")
        given.write_text(json.dumps(asdict(job)), "utf-8")
        command = [sys.executable, "-m", "fnjax.port.verify.worker", str(given)]
        with errors.open("wb") as file:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, env=environment)
        assert self.process.stdout is not None
        self.reader = threading.Thread(target=self._read_events, args=(self.process.stdout,), daemon=True)
        self.reader.start()

    def _read_events(self, out: IO[bytes]) -> None:
        with out:
            for line in out:
                self.events.put(json.loads(line))
        self.events.put(None)

    def wait_for_verdict(self) -> Verdict | None:
        """Return its verdict, or None if it ended without one."""
        until = time.monotonic() + STARTING
        try:
            while True:
                try:
                    event = self.events.get(timeout=_POLL)
                except queue.Empty:
                    if self.cancelled.is_set():
                        self.killed = "it was cancelled"
                        return None
                    if time.monotonic() < until:
                        continue
                    self._note_time()
                    return None
                if event is None:
                    with contextlib.suppress(subprocess.TimeoutExpired, AttributeError):  # Windows has no such signal
                        if self.process.wait(5) == -signal.SIGXCPU:
                            self._note_time()
                    return None
                if "verdict" in event:
                    found: Any = {k: tuple(v) if type(v) is list else v for k, v in event["verdict"].items()}
                    self.verdict = Verdict(**found)
                if event["event"] == "verdict":
                    return self.verdict
                if event["event"] == "loaded":  # it limits the time itself, except of what it cannot interrupt
                    until = time.monotonic() + WAITING * self.job.longest
                self._note_event(event)
        finally:
            self.process.kill()
            self.process.wait()
            self.reader.join()

    def _note_event(self, event: dict[str, Any]) -> None:
        self.doing, self.call = event["event"], event.get("call", self.call)
        self.counts |= {k: event[k] for k in ("accepted",) if k in event} | {self.doing: event.get("count", 0)}
        if self.progress is not None:
            tried, accepted, agreed = (self.counts.get(k, 0) for k in ("trying", "accepted", "agreed"))
            compared = f", {agreed} compared, all agree" if agreed else ""
            self.progress(f"{self.job.name}: {tried} candidates, {accepted} accepted by {self.reference}{compared}")

    def _note_time(self) -> None:
        self.killed = f"it did not end in {self.job.seconds:.0f} seconds"
        self.remedy = MORE_TIME

    def describe_end(self) -> Verdict:
        """Return the verdict where the process ended by itself."""
        what = {"trying": f"while {self.reference} ran ", "comparing": "while the port ran "}.get(self.doing, "")
        reason = self.killed or f"it ended the process: {self._describe_status()}"
        reason += f" {what}{self.call:.300}" if what else ""
        if self.verdict is None:
            return Verdict(self.job.name, NOT_TRIED, f"{reason}; {self.remedy}")
        if self.verdict.status == VERIFIED:
            return replace(self.verdict, notes=(*self.verdict.notes, reason))
        return self.verdict

    def _describe_status(self) -> str:
        code = self.process.returncode
        if code < 0:
            with contextlib.suppress(ValueError):
                return signal.Signals(-code).name
            return f"signal {-code}"
        printed = [line for line in self.errors.read_text("utf-8", "replace").splitlines() if line.strip()]
        return f"exit status {code}" + (f": {printed[-1][:200]}" if printed else "")
