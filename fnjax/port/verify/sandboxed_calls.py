"""Sandboxed calls of the original: whether forward and backward run on arguments, and which lines of them."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from fnjax.port.compare.comparing import Comparing
from fnjax.port.compare.values import Inputs, Results, Values
from fnjax.port.verify.calls import Call
from fnjax.port.verify.lines import Lines
from fnjax.port.verify.record import WAITING


class TooLong(BaseException):
    """Interruption of a call that takes too long; no `except Exception` of the user's catches it."""


_BEGIN = time.monotonic()


def measure_time() -> float:
    """Return the processor time of this process; where it has waited long, a part of the time that has passed."""
    return max(time.process_time(), (time.monotonic() - _BEGIN) / WAITING)


@contextmanager
def limit_time(seconds: float) -> Iterator[None]:
    """Raise TooLong after that processor time, again and again until it gets through."""
    if not hasattr(signal, "setitimer"):  # Windows: the process's own time limit has to do
        yield
        return

    def stop(*_: object) -> None:
        raise TooLong

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, 1.0), signal.SIGALRM: (signal.ITIMER_REAL, WAITING)}
    before = {number: signal.signal(number, stop) for number in timers}
    for timer, factor in timers.values():
        signal.setitimer(timer, factor * seconds, 0.2)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """Outcome of a call.

    Attributes:
        call: the call.
        problem: why it is of no use; empty if forward and backward ran.
        score: how far it got, to be compared.
        ran: the lines that ran.
        theirs: its results, and the cotangents for the port.
        weak: whether it shows little: no gradient came of it, or NaN.
    """

    call: Call
    problem: str
    score: tuple[float, ...]
    ran: frozenset[tuple[str, int]]
    theirs: Results | None = None
    cotangents: tuple[Values, ...] = ()
    weak: bool = False


class SandboxedCalls:
    """Calls of the original, and the number of those that were made and accepted.

    Args:
        comparing: both sides.
        lines: of the class.
        skipped: calls that are not made, as they ended a process before.
        report: called with each call before it is made.

    Attributes:
        argnums: which arguments are differentiated in every call; None for those of the call.
    """

    def __init__(self, comparing: Comparing, lines: Lines, skipped: Iterable[str], report: Callable[..., None]) -> None:
        self.comparing, self.lines, self.skipped, self.report = comparing, lines, {*skipped}, report
        self.argnums: tuple[int, ...] | None = None
        self.count = self.accepted = 0
        self.undetermined = False
        self.determined: set[str] = set()  # for what recipes that is known
        self.furthest: Tried | None = None

    def __call__(self, call: Call) -> Tried:
        """Try a call."""
        if self.argnums is not None:
            call = replace(call, argnums=self.argnums)
        name = f"{call.recipe or call.args!r} {call.argnums} {call.seed}"
        if name in self.skipped:
            return Tried(call, "it ended the process", (0.0,), frozenset())
        self.count += 1
        self.report("trying", call=name, count=self.count, accepted=self.accepted)
        inputs = call.make_inputs(self.comparing.dtype)
        self.comparing.reference.seed(call.seed)
        try:
            with limit_time(self.comparing.reference.patience), self.lines.trace_lines():
                theirs, cotangents = self.comparing.run_original(inputs)
            tried = self._judge_results(call, inputs, theirs, cotangents)
        except (Exception, TooLong) as e:  # noqa: BLE001 - whatever torch or the class says to these arguments
            tried = self._describe_failure(call, e)
        self.accepted += not tried.problem
        if self.furthest is None or (tried.problem and tried.score > self.furthest.score):
            self.furthest = tried
        return tried

    def _describe_failure(self, call: Call, error: BaseException) -> Tried:
        ran = frozenset(self.lines.ran)
        if isinstance(error, TooLong):
            return Tried(call, f"it takes longer than {self.comparing.reference.patience:g} seconds", (-1.0,), ran)
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return Tried(call, text.split("\n")[0], (len(ran), self.lines.measure_progress(error)), ran)

    def _judge_results(self, call: Call, inputs: Inputs, theirs: Results, cotangents: list[Values]) -> Tried:
        ran = frozenset(self.lines.ran)
        if theirs.error is not None and not theirs.gradients and "backward" in self.lines.own:
            return self._describe_failure(call, theirs.error)
        if not any(o.size for o in theirs.outputs):
            return Tried(call, "its outputs are empty", (len(ran), 0), ran)
        layout = f"{call.recipe} {call.argnums}"
        if not (
            self.comparing.key or (call.recipe and layout in self.determined) or self._is_determined(inputs, theirs)
        ):
            self.undetermined = True
            return Tried(call, "its results are not determined", (len(ran), 0), ran)
        self.determined.add(layout)
        arrays = [a for a in (*theirs.outputs, *theirs.gradients, *theirs.seconds) if a is not None]
        nans = any(np.isnan(a).any() for a in arrays if a.dtype.kind not in "iub")
        return Tried(call, "", (len(ran) + 1e6, 0), ran, theirs, tuple(cotangents), self.is_silent(ran) or nans)

    def is_unavailable(self) -> bool:
        """Return whether the call that got furthest needs a library or a device that is not there."""
        problem = self.furthest.problem if self.furthest else ""
        return bool(re.match(r"(ModuleNotFound|Import)Error|.*(compiled with|requires) CUDA|.*NVIDIA driver", problem))

    def is_silent(self, ran: AbstractSet[tuple[str, int]]) -> bool:
        """Return whether the class has a backward of which no line ran."""
        back = self.lines.own.get("backward", set()) | self.lines.own.get("vjp", set())
        return bool(back) and not back & self.lines.keep_own(ran)

    def _is_determined(self, inputs: Inputs, theirs: Results) -> bool:
        """Return whether the results stay when torch.empty is filled."""
        self.comparing.reference.seed(inputs.seed + 1)
        with limit_time(self.comparing.reference.patience):
            again, _ = self.comparing.run_original(inputs, fill=1)
        pairs = zip([*theirs.outputs, *theirs.gradients], [*again.outputs, *again.gradients], strict=True)
        return all(
            a.shape == b.shape and np.allclose(a.astype(complex), b.astype(complex), equal_nan=True) for a, b in pairs
        )
