"""A PyTorch file's module with custom Functions trains on JAX as it does in PyTorch."""

import runpy
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.parity]  # the second part of the test

SCRIPT = Path(__file__).parents[2] / "examples" / "modules" / "train.py"


def test_training_follows_pytorch():
    """From the same state the losses of the first steps are PyTorch's; a ternary network of spikes learns digits."""
    for package in ("optax", "sklearn", "matplotlib", "tqdm"):
        pytest.importorskip(package)
    script = runpy.run_path(str(SCRIPT))
    batches, held_out = script["read_digits"](30, batch=32)
    model = script["make_model"]()
    start = {name: np.asarray(value.array) for name, value in model.state_dict().items()}
    found = script["train_on_jax"](model, batches, held_out)
    assert found["losses"][0] > 2
    assert np.mean(found["losses"][-5:]) < 1.2
    assert all(np.array_equal(value.array, start[name]) for name, value in model.state_dict().items())
    pytest.importorskip("torch")
    expected = script["train_in_pytorch"](start, batches, held_out)
    np.testing.assert_allclose(found["losses"][:3], expected["losses"][:3], rtol=1e-3)
