"""The example of a pipeline: its schedules, and its gradients next to those of one device."""

import collections
import itertools
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

FOLDER = Path(__file__).parent.parent / "examples" / "pipeline"
NAMES = ("pipeline", "regions_jax", "schedules", "transformer")


@pytest.fixture(scope="module")
def example():
    """The modules of the example, by name."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: __import__(name) for name in NAMES}
    finally:
        sys.path.remove(str(FOLDER))
        for name in NAMES:
            sys.modules.pop(name)


times = st.integers(1, 9).map(float)
works = st.lists(st.fixed_dictionaries({"F": times, "B": times, "W": times}), min_size=1, max_size=4)


@settings(deadline=None)
@given(work=works, microbatches=st.integers(1, 7), zero_bubble=st.booleans())
def test_schedules(example, work, microbatches, zero_bubble):
    """Each turn is there once and as long as its work, waits for what it needs, and no stage does two at a time."""
    turns = example["schedules"].plan(work, microbatches, zero_bubble)
    kinds = ("F", "B", "W") if zero_bubble else ("F", "BW")
    expected = itertools.product(range(len(work)), kinds, range(microbatches))
    assert sorted(t[:3] for t in turns) == sorted(expected)
    ends = {(t.stage, kind, t.microbatch): t.end for t in turns for kind in t.kind}
    free, held = collections.Counter(), collections.Counter()
    for t in turns:
        assert t.end - t.start == sum(work[t.stage][kind] for kind in t.kind)
        assert t.start >= free[t.stage]
        free[t.stage] = t.end
        before, after = (t.stage - 1, "F", t.microbatch), (t.stage + 1, "B", t.microbatch)
        needs = {"F": before, "B": after, "W": (t.stage, "B", t.microbatch), "BW": after}[t.kind]
        assert t.start >= ends.get(needs, 0)
        held[t.stage] += (t.kind == "F") - ("W" in t.kind)
        assert held[t.stage] <= len(work)  # as 1F1B holds on the first stage


def test_zero_bubble_waits_less(example):
    """With equal turns 1F1B is idle for (p - 1) / (m + p - 1) of the time, and zero bubble for less than half of it."""
    work = [{"F": 1.0, "B": 1.0, "W": 1.0}] * 4
    one, zero = (example["schedules"].plan(work, 8, zero_bubble) for zero_bubble in (False, True))
    find_idle = example["schedules"].find_idle
    assert find_idle(one) == pytest.approx(3 / 11)
    assert find_idle(zero) < find_idle(one) / 2


@pytest.mark.slow
def test_gradients_are_those_of_one_device(example, monkeypatch, tmp_path, capsys):
    """Both schedules give one device's gradients, and the picture is drawn."""
    pytest.importorskip("matplotlib")
    picture = tmp_path / "pipeline.png"
    monkeypatch.setattr(sys, "argv", ["pipeline.py", str(picture)])
    example["pipeline"].main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["work of a stage", "1F1B", "zero bubble"]
    assert all(float(line.rpartition(" ")[2]) < 5e-6 for line in lines[1:])
    page = Path(__file__).parent.parent / "docs" / "guides" / "pipelines.md"
    if page.exists():  # the documentation is not part of a source distribution
        assert lines[1].partition(",")[0] in page.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_wrong_operator_is_seen(example, monkeypatch, capsys):
    """The comparison can fail: an f whose gradient is 1 % too large."""
    copy = example["regions_jax"].CopyToRegion
    right = copy.backward
    monkeypatch.setattr(copy, "backward", staticmethod(lambda ctx, grad: (1.01 * right(ctx, grad)[0], None)))
    monkeypatch.setattr(sys, "argv", ["pipeline.py"])
    example["pipeline"].main()
    assert all(float(line.rpartition(" ")[2]) > 1e-3 for line in capsys.readouterr().out.splitlines()[1:])
