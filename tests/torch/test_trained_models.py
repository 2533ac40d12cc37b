"""The models of the benchmarks have PyTorch's losses in float64."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parity
@pytest.mark.slow
def test_losses_are_those_of_pytorch():
    """Three steps of two models, by SGD and AdamW; each step is traced once. MODELS.md has all models, thirty steps."""
    pytest.importorskip("torch")
    pytest.importorskip("optax")
    names = ["implicit layer, hook", "VQ-VAE"]
    command = [sys.executable, "-m", "benchmarks.training_losses", "--steps", "3", "--only", *names]
    environment = {**os.environ, "JAX_ENABLE_X64": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["model"] for each in found] == names
    for each in found:
        assert each["traces"] == 1
        for optimiser in ("SGD", "AdamW"):
            np.testing.assert_allclose(each[optimiser]["here"], each[optimiser]["PyTorch"], rtol=0, atol=1e-9)
        np.testing.assert_allclose(each["float32"]["here"], each["AdamW"]["PyTorch"], rtol=1e-5)
