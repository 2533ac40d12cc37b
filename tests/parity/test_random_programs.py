"""Random programs of control flow, views and writes next to PyTorch; random_programs.py runs more of them."""

import pytest

from tests.parity.random_programs import judge

CASES = [("control", seed) for seed in (3, 5, 8, 10)] + [("views", seed) for seed in range(6)]


@pytest.mark.parity
@pytest.mark.parametrize(("kind", "seed"), CASES)
@pytest.mark.filterwarnings("ignore")
def test_programs_are_right_or_refused(kind, seed, tmp_path):
    """A program gives PyTorch's values and gradients, outside of jit and under it, or is refused by name."""
    pytest.importorskip("torch")
    verdict, seen = judge(kind, seed, tmp_path)
    assert verdict in {"right", "refused", "impossible"}, seen
