"""Classes of PyTorch source as fnjax.torch runs them, next to PyTorch; benchmarks/torch_classes.py runs all of them."""

import pytest

from benchmarks.torch_classes import OTHER, judge
from tests.port.test_classes import LOADED

NAMES = [name for name in sorted(LOADED)[::8] if name not in OTHER]


@pytest.mark.parity
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_classes_are_right_or_refused(name, tmp_path):
    """A class gives PyTorch's values and gradients, outside of jit and under it, or is refused by name."""
    pytest.importorskip("torch")
    verdict, seen = judge(name, tmp_path)
    assert verdict in {"right", "refused"}, seen


# KeptTuples' gradients have no second derivative, without create_graph.
@pytest.mark.parity
@pytest.mark.parametrize(
    ("name", "second"),
    [
        *((name, True) for name in ("Bisection", "ForBreak", "IntScale", "MaskKVals", "Halves")),
        ("KeptTuples", False),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_classes_that_must_not_be_refused(name, second, tmp_path):
    """Control flow, shared memory, recomputed graphs, traced numbers and masks are right."""
    pytest.importorskip("torch")
    assert judge(name, tmp_path, second=second) == ("right", "")
