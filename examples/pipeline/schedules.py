"""Schedules of a pipeline: 1F1B, and one without most of its bubbles."""

from __future__ import annotations

from typing import NamedTuple


class Step(NamedTuple):
    """Work of a stage on a microbatch: forward, gradients for its inputs, for its weights, or for both at once."""

    stage: int
    kind: str  # "F", "B", "W" or "BW"
    microbatch: int
    start: float
    end: float


def plan(work: list[dict[str, float]], microbatches: int, zero_bubble: bool) -> list[Step]:
    """Return the steps of all stages in the order in which they start.

    Each stage runs forward and backward steps in 1F1B's order. With `zero_bubble` the gradients for weights are steps
    of their own, run when a stage would wait, or would hold more microbatches than 1F1B holds on the first stage.

    Args:
        work: for each stage the times of "F", "B" and "W".
        microbatches: the number of microbatches.
        zero_bubble: whether "B" and "W" are separate steps.
    """
    stages = len(work)
    order = [list(_one_forward_one_backward(stages - s, microbatches)) for s in range(stages)]
    clock, done, delayed = [0.0] * stages, {}, [[] for _ in work]
    steps = []

    def take(stage: int, kind: str, microbatch: int, ready: float = 0.0) -> None:
        start = max(clock[stage], ready)
        clock[stage] = start + sum(work[stage][part] for part in kind)
        done[stage, kind[0], microbatch] = clock[stage]
        steps.append(Step(stage, kind, microbatch, start, clock[stage]))

    while any(order):
        # The stage that is free first goes on, of those whose next step waits only for steps that are scheduled.
        able = []
        for s in filter(order.__getitem__, range(stages)):
            kind, microbatch = order[s][0]
            ready = _find_ready(done, stages, s, kind, microbatch)
            if ready is not None:
                able.append((max(clock[s], ready), s, ready))
        start, s, ready = min(able)
        kind, microbatch = order[s][0]
        held = microbatch - sum(t.stage == s and "W" in t.kind for t in steps)
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
    return sorted(steps, key=lambda step: (step.start, step.end))


def _one_forward_one_backward(ahead: int, microbatches: int):
    """Yield `ahead` microbatches forward, then one backward for each one forward, then the rest backward."""
    ahead = min(ahead, microbatches)
    for m in range(ahead):
        yield "F", m
    for m in range(microbatches):
        yield "B", m
        if ahead + m < microbatches:
            yield "F", ahead + m


def _find_ready(done: dict, stages: int, stage: int, kind: str, microbatch: int) -> float | None:
    """Return the time at which the input of a step from another stage is ready; None if it is not scheduled yet."""
    if kind == "F":
        return 0.0 if stage == 0 else done.get((stage - 1, "F", microbatch))
    return done.get((stage, "F", microbatch)) if stage == stages - 1 else done.get((stage + 1, "B", microbatch))


def find_idle(steps: list[Step]) -> float:
    """Return the fraction of the time, from the first step to the last, that stages wait."""
    stages, end = 1 + max(t.stage for t in steps), max(t.end for t in steps)
    return 1 - sum(t.end - t.start for t in steps) / (stages * end)
