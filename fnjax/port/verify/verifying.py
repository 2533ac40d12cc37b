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
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from fnjax.port.compare.reference import PYTORCH, choose_reference, describe_reference
from fnjax.port.verify.record import NOT_TRIED, REMEDY, VERIFIED, Verdict

MEMORY = 6 * 2**30  # bytes that a class may take
STARTING = 120.0  # seconds until the reference and JAX are loaded
RESTARTS = 3
_POLL = 0.5  # seconds until a cancellation is noticed
_QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"  # programs run a few times only
Progress = Callable[[str], None]


def verify(
    path: str,
    text: str,
    name: str,
    port: str,
    *,
    place: str = "",
    seconds: float = 20.0,
    seed: int = 0,
    cases: list[str] | None = None,
    modes: tuple[str, ...] = ("eager", "jit"),
    second: bool = True,
    enough: int = 60,
    shrinks: bool = True,
    options: dict[str, Any] | None = None,
    memory: int = MEMORY,
    against: str | None = None,
    progress: Progress | None = None,
    cancelled: threading.Event | None = None,
) -> Verdict:
    """Find arguments for a class, run both sides on them in another process, and say what came of it.

    Args:
        path: the original's file, next to which the rest of its package is looked for.
        text: what stands in it.
        name: the class, qualified.
        port: the text of the port.
        place: the file or module that holds the port, if it lies in one.
        seconds: how long to search and compare.
        seed: for all random numbers.
        cases: calls to begin with, as `--args` takes them; without them they are searched for.
        modes: how the port is run: "eager", "jit" or both.
        second: whether second derivatives are compared too.
        enough: how many calls that agree are enough.
        shrinks: whether the smallest call that differs is looked for.
        options: `dtype`, `rtol` and `atol` of `compare`.
        memory: bytes that the class may take.
        against: what runs the original: "pytorch" (the default where it is installed) or "fnjax.torch".
        progress: is called with a line that says what is being done.
        cancelled: where it is set, the process is ended and the verdict means nothing.

    Returns:
        The verdict.

    Raises:
        ImportError: against PyTorch, where that is not installed.
    """
    against = choose_reference(against)
    with tempfile.TemporaryDirectory() as folder:
        if not Path(path).is_file():  # standard input: what is scripted needs a file to be read from
            path = str(Path(folder) / "source.py")
            Path(path).write_text(text, "utf-8")
        file = Path(folder) / f"{Path(path).stem or 'port'}_jax.py"
        file.write_text(port, "utf-8")
        job: dict[str, Any] = {"path": path, "text": text, "name": name, "port": place or str(file), "seed": seed}
        job |= {"cases": cases or [], "modes": modes, "second": second, "options": options or {}, "memory": memory}
        job |= {"enough": enough, "shrinks": shrinks, "against": against}
        skipped: list[str] = []
        left = seconds
        for _ in range(RESTARTS):
            begin = time.monotonic()
            run = _Run({**job, "seconds": left, "skipped": skipped}, Path(folder) / "errors", progress)
            run.cancelled = cancelled
            verdict = run.wait_for_verdict(left)
            if verdict is not None:
                return _note_reference(verdict, against)
            if run.doing != "trying" or (cancelled is not None and cancelled.is_set()):
                break
            skipped.append(run.call)
            left -= time.monotonic() - begin
            if left < 1:
                break
        return _note_reference(run.describe_end(), against)


def _note_reference(verdict: Verdict, against: str) -> Verdict:
    """Return the verdict, with what it was compared with where that is not PyTorch."""
    if against == PYTORCH:
        return verdict
    return replace(verdict, against=against, notes=(*verdict.notes, describe_reference(against)))


class _Run:
    """A process, and what it says."""

    def __init__(self, job: dict[str, Any], errors: Path, progress: Progress | None) -> None:
        self.name, self.against, self.progress = job["name"], job["against"], progress
        self.errors = errors
        self.doing, self.call = "starting", ""
        self.verdict: dict[str, Any] | None = None  # what is known so far
        self.killed, self.remedy = "", REMEDY
        self.cancelled: threading.Event | None = None
        self.counts: dict[str, int] = {}
        self.events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        # A class is tried on the CPU, where it ends nobody else's work.
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
        environment.setdefault("TRITON_INTERPRET", "1")
        environment["TORCHDYNAMO_DISABLE"] = "1"  # compiling takes longer than any of its calls
        environment["XLA_FLAGS"] = " ".join([_QUICK, os.environ.get("XLA_FLAGS", "")])
        environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        command = [sys.executable, "-m", "fnjax.port.verify.worker"]
        with errors.open("wb") as file:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, env=environment
            )
        threading.Thread(target=self._feed_job, args=(json.dumps(job).encode(),), daemon=True).start()
        assert self.process.stdout is not None
        self.reader = threading.Thread(target=self._read_events, args=(self.process.stdout,), daemon=True)
        self.reader.start()

    def _feed_job(self, job: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:  # else it has ended, as its status says
            pipe.write(job)

    def _read_events(self, out: IO[bytes]) -> None:
        with out:
            for line in out:
                self.events.put(json.loads(line))
        self.events.put(None)

    def wait_for_verdict(self, seconds: float) -> Verdict | None:
        """Return its verdict, or None if it ended without one."""
        until = time.monotonic() + STARTING
        try:
            while True:
                try:
                    event = self.events.get(timeout=max(0.0, min(_POLL, until - time.monotonic())))
                except queue.Empty:
                    if self.cancelled is not None and self.cancelled.is_set():
                        self.killed = "it was cancelled"
                        return None
                    if time.monotonic() < until:
                        continue
                    self.killed = f"it did not end in {seconds:.0f} seconds"
                    self.remedy = "--seconds gives it more time"
                    return None
                if event is None:
                    return None
                if event["event"] == "verdict":
                    return _read_verdict(event["verdict"])
                if event["event"] == "ready":  # it minds the time itself, but for what it cannot interrupt
                    until = time.monotonic() + 2 * seconds + 10
                self._note_event(event)
        finally:
            if not self.killed:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(5)
            self.process.kill()
            self.process.wait()
            self.reader.join()

    def _note_event(self, event: dict[str, Any]) -> None:
        self.doing, self.call = event["event"], event.get("call", self.call)
        self.verdict = event.get("verdict", self.verdict)
        self.counts |= {k: event[k] for k in ("accepted",) if k in event} | {self.doing: event.get("count", 0)}
        if self.progress is not None:
            tried, accepted, agreed = (self.counts.get(k, 0) for k in ("trying", "accepted", "agreed"))
            reference = "PyTorch" if self.against == PYTORCH else self.against
            compared = f", {agreed} compared, all agree" if agreed else ""
            self.progress(f"{self.name}: {tried} candidates, {accepted} accepted by {reference}{compared}")

    def describe_end(self) -> Verdict:
        """Return what there is to say of a process that ended by itself."""
        why = self.killed or _describe_status(self.process.returncode, self.errors)
        reference = "PyTorch" if self.against == PYTORCH else self.against
        what = {"trying": f"while {reference} ran ", "comparing": "while the port ran "}.get(self.doing, "")
        reason = f"it ended the process: {why}" + (f" {what}{self.call:.300}" if what else "")
        if self.verdict is None:
            return Verdict(self.name, NOT_TRIED, f"{reason}; {self.remedy}")
        found = _read_verdict(self.verdict)
        if found.status == VERIFIED:
            return replace(found, notes=(*found.notes, reason))
        return found


def _read_verdict(found: dict[str, Any]) -> Verdict:
    """Return a verdict from JSON, which has lists for tuples."""
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
    return Verdict(**fields)


def _describe_status(code: int, errors: Path) -> str:
    said = [line for line in errors.read_text("utf-8", "replace").splitlines() if line.strip()]
    if code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    last = f": {said[-1][:200]}" if said else ""
    return f"exit status {code}{last}"
