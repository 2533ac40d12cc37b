"""Who does what when in a pipeline: 1F1B, and a schedule without most of its bubbles."""

from __future__ import annotations

from typing import NamedTuple


class Turn(NamedTuple):
    """A stage works on a microbatch: forward, gradients for its inputs or for its weights; or both of them at once."""

    stage: int
    kind: str  # "F", "B", "W" or "BW"
    microbatch: int
    start: float
    end: float


def plan(work: list[dict[str, float]], microbatches: int, zero_bubble: bool) -> list[Turn]:
    """Return the steps of all stages in the order in which they start.

    Each stage takes forward and backward turns in 1F1B's order. With `zero_bubble` the gradients for weights are turns
    of their own, taken when a stage would wait, or would hold more microbatches than 1F1B holds on the first stage.

    Args:
        work: for each stage how long "F", "B" and "W" take.
        microbatches: how many there are.
        zero_bubble: whether "B" and "W" are apart.
    """
    stages = len(work)
    order = [list(_one_forward_one_backward(stages - s, microbatches)) for s in range(stages)]
    clock, done, delayed = [0.0] * stages, {}, [[] for _ in work]
    turns = []

    def take(stage: int, kind: str, microbatch: int, ready: float = 0.0) -> None:
        start = max(clock[stage], ready)
        clock[stage] = start + sum(work[stage][part] for part in kind)
        done[stage, kind[0], microbatch] = clock[stage]
        turns.append(Turn(stage, kind, microbatch, start, clock[stage]))

    while any(order):
        # The stage that is free first goes on, of those whose next turn waits for nothing that is unknown yet.
        able = []
        for s in filter(order.__getitem__, range(stages)):
            kind, microbatch = order[s][0]
            ready = _find_ready(done, stages, s, kind, microbatch)
            if ready is not None:
                able.append((max(clock[s], ready), s, ready))
        start, s, ready = min(able)
        kind, microbatch = order[s][0]
        held = microbatch - sum(t.stage == s and "W" in t.kind for t in turns)
        if delayed[s] and (start > clock[s] or (kind == "F" and held >= stages)):
            take(s, "W", delayed[s].pop(0))
            continue
        order[s].pop(0)
        if kind == "F" or not zero_bubble:
            take(s, kind if kind == "F" else "BW", microbatch, ready)
        else:
            take(s, "B", microbatch, ready)
            delayed[s].append(microbatch)
    for s in range(stages):
        while delayed[s]:
            take(s, "W", delayed[s].pop(0))
    return sorted(turns, key=lambda turn: (turn.start, turn.end))


def _one_forward_one_backward(ahead: int, microbatches: int):
    """`ahead` microbatches forward, then one backward for each one forward, then the rest backward."""
    ahead = min(ahead, microbatches)
    for m in range(ahead):
        yield "F", m
    for m in range(microbatches):
        yield "B", m
        if ahead + m < microbatches:
            yield "F", ahead + m


def _find_ready(done: dict, stages: int, stage: int, kind: str, microbatch: int) -> float | None:
    """When what a turn needs of another stage is there; None if that is not known yet."""
    if kind == "F":
        return 0.0 if stage == 0 else done.get((stage - 1, "F", microbatch))
    return done.get((stage, "F", microbatch)) if stage == stages - 1 else done.get((stage + 1, "B", microbatch))


def find_idle(turns: list[Turn]) -> float:
    """Which part of the time, from the first turn to the last, stages wait."""
    stages, end = 1 + max(t.stage for t in turns), max(t.end for t in turns)
    return 1 - sum(t.end - t.start for t in turns) / (stages * end)
