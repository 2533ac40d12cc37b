"""A class to verify, and the verdict."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fnjax.port.compare.reference import PYTORCH

VERIFIED, DIFFERS, REFUSED, NOT_TRIED = "verified", "differs", "refused", "not tried"
REMEDY = "give calls that it takes with --args or --cases"
MORE_TIME = "a larger --seconds may be enough"
ENOUGH = 60  # calls that agree
WAITING = 4.0  # seconds that may pass for one of processor time: other processes run as well
_A_VARIANT = 10.0  # seconds


@dataclass(frozen=True)
class Job:
    """Class or operator to verify.

    Attributes:
        path: the original's file, next to which the rest of its package is looked for.
        text: its content.
        name: the class, qualified, or the operator.
        place: the file or module of the port; empty where that is in no file.
        port: the text of the port, where it is in no file.
        seconds: of processor time, to search and compare.
        seed: for all random numbers.
        cases: calls to begin with, as `--args` takes them; without them they are searched for.
        modes: how the port is run: "eager", "jit" or both.
        second: whether second derivatives are compared too.
        enough: how many calls that agree are enough.
        shrinks: whether the smallest call that differs is looked for.
        skipped: calls that ended a process before.
        options: `dtype`, `rtol` and `atol` of `compare`.
        memory: bytes that the class may take.
        against: what runs the original: "pytorch" or "fnjax.torch"; None for PyTorch where it is installed.
        variants: names of `variants.VARIANTS` in which the class is compared, too.
    """

    path: str
    text: str
    name: str
    place: str = ""
    port: str = ""
    seconds: float = 20.0
    seed: int = 0
    cases: Sequence[str] = ()
    modes: Sequence[str] = ("eager", "jit")
    second: bool = True
    enough: int = ENOUGH
    shrinks: bool = True
    skipped: Sequence[str] = ()
    options: dict[str, Any] = field(default_factory=dict)
    memory: int = 6 * 2**30
    against: str | None = None
    variants: Sequence[str] = ()

    def read_port(self) -> str:
        """Return the text of the port; an empty one of a module that is known by its name only."""
        return self.port or (Path(self.place).read_text("utf-8") if self.place.endswith(".py") else "")

    @property
    def longest(self) -> float:
        """The processor time after which the process ends; before that the search limits its time itself."""
        return 2 * self.seconds + 10 + _A_VARIANT * len(self.variants)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on whether a port computes what its original does.

    Attributes:
        name: the class.
        status: `verified`, `differs`, `refused` by fnjax.torch, or `not tried`.
        reason: what differs, or why nothing was tried.
        calls: how many calls agree.
        lines: how many lines the class's methods have.
        unseen: those that ran in none of these calls.
        call: the smallest call that differs, as `--args` takes it.
        argnums: which of its arguments are differentiated; None for all that can be.
        seed: of its cotangents.
        shown: the arrays that differ there.
        notes: what else there is to say.
        against: what ran the original: `pytorch` or `fnjax.torch`.
        partial: whether it is verified by fewer calls than planned, as time was up.
    """

    name: str
    status: str
    reason: str = ""
    calls: int = 0
    lines: int = 0
    unseen: tuple[int, ...] = ()
    call: str = ""
    argnums: tuple[int, ...] | None = None
    seed: int = 0
    shown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    against: str = PYTORCH
    partial: bool = False

    def make_json(self) -> dict[str, Any]:
        """Return the fields that are set."""
        return {k: v for k, v in asdict(self).items() if v or k in {"name", "status", "calls"}}

    def write_command(self, original: str, ported: str) -> str:
        """Return the command that shows the difference: `fnjax compare`, or without two files `fnjax port --verify`."""
        given = ["--class", self.name, "--args", self.call]
        if not (original.endswith(".py") and ported):
            command = ["port", original, "--verify", *given]
        else:
            command = ["compare", original, ported, *given]
            command += [] if self.argnums is None else ["--argnums", ",".join(map(str, self.argnums))]
            command += ["--seed", str(self.seed)] if self.seed else []
        return shlex.join(["fnjax", *command, *([] if self.against == PYTORCH else ["--against", self.against])])

    def describe(self, original: str, ported: str, words: Mapping[str, str] | None = None) -> str:
        """Return a line, and for what differs the call to paste.

        Args:
            original: its file or module.
            ported: that of its port; empty where it is in none.
            words: other words for the status.
        """
        head = f"{self.name}: {(words or {}).get(self.status, self.status)}"
        notes = "".join(f"; {n}" for n in self.notes)
        if self.status in {REFUSED, NOT_TRIED}:
            return f"{head}: {self.reason}{notes}"
        if self.status == VERIFIED:
            calls = f"{self.calls} call{'s' * (self.calls != 1)}"
            if self.partial:
                return (
                    f"{self.name}: agrees on {calls}, fewer than planned ({MORE_TIME}), {self._describe_lines()}{notes}"
                )
            return f"{head}: {calls} agree{'s' * (self.calls == 1)}, {self._describe_lines()}{notes}"
        shown = "".join(f"\n  {s}" for s in self.shown)
        called = f"torch.ops.{self.name.replace('::', '.')}" if "::" in self.name else f"{self.name}.apply"
        call = f"\n  {called}({self.call})\n  {self.write_command(original, ported)}"
        return f"{head}: {self.reason}{notes}{shown}{call if self.call else ''}"

    def _describe_lines(self) -> str:
        if not self.lines:
            return "its lines could not be followed"
        without = f", not {write_ranges(self.unseen)}" if self.unseen else ""
        return f"lines run: {self.lines - len(self.unseen)} of {self.lines}{without}"


def write_ranges(lines: tuple[int, ...]) -> str:
    """Write line numbers as `3, 7-9`."""
    parts: list[list[int]] = []
    for line in lines:
        if parts and line == parts[-1][1] + 1:
            parts[-1][1] = line
        else:
            parts.append([line, line])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
