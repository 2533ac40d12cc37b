"""Programs whose branches and loops depend on values are right or refused: written ones and random ones."""

import jax
import numpy as np
import pytest

from fnjax import torch
from tests.torch.traced_check import FINE, check_cases, check_seed, read_cases
from tests.torch.traced_programs import Generator, Jumps, Views

pytestmark = [pytest.mark.filterwarnings("ignore")]
SECTIONS = sorted({name.partition("/")[0] for name in read_cases()})


@pytest.mark.parity
@pytest.mark.parametrize("section", SECTIONS)
def test_cases(section, tmp_path):
    """Each case gives what PyTorch gives, eagerly, under jit and as a gradient; those that are marked are refused."""
    pytest.importorskip("torch")
    with jax.enable_x64(True):
        verdicts = list(check_cases(f"{section}/*", tmp_path))
    different = [f"{n}: {verdict}, which should be {kind}" for n, verdict, kind in verdicts if verdict.kind != kind]
    assert not different, "\n".join(different)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed, tmp_path):
    """A random program gives under jit what it gives outside, or is refused."""
    with jax.enable_x64(True):
        program, verdict = check_seed(Generator(seed), seed, tmp_path, ("jit",), pytorch=False)
    assert verdict.kind in FINE, f"{verdict}\n{program.text}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(40))
def test_random_jumps(seed, tmp_path):
    """Jumps out of nested statements that tests of an array decide on are taken as outside of jit."""
    file = tmp_path / "jumps.py"
    file.write_text(Jumps(seed).make())
    f = torch.load(file).f
    points = jax.random.normal(jax.random.key(0), (40, 4))
    np.testing.assert_array_equal(jax.jit(jax.vmap(f))(points), [f(x) for x in points], file.read_text())


@pytest.mark.parity
@pytest.mark.parametrize(
    ("kind", "seeds"),
    [*((Generator, range(i, i + 10)) for i in range(0, 30, 10)), (Views, range(3)), (Views, range(3, 6))],
)
def test_random_programs_next_to_pytorch(kind, seeds, tmp_path):
    """A random program gives what PyTorch gives, eagerly, under jit and as a gradient, or is refused."""
    pytest.importorskip("torch")
    with jax.enable_x64(True):
        found = [(seed, *check_seed(kind(seed), seed, tmp_path)) for seed in seeds]
    different = [f"seed {seed}: {v}\n{program.text}" for seed, program, v in found if v.kind not in FINE]
    assert not different, "\n".join(different)
