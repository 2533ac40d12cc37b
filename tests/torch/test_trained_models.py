"""The models of the benchmarks, and the loop of the guide, have PyTorch's losses in float64."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.test_docs import blocks

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


@pytest.mark.parity
@pytest.mark.slow
def test_the_guide_has_one_loop_twice(x64, monkeypatch):
    """The loops of docs/guides/training-loop.md, in PyTorch and in JAX, have the same losses in float64."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    page = list(blocks((ROOT / "docs" / "guides" / "training-loop.md").read_text()))
    (theirs,) = (block.code for block in page if "no-run" in block.words)
    ours = {}
    for block in page:
        if "no-run" not in block.words:
            code = re.sub(r"0\.1$", "0.0", block.code, flags=re.MULTILINE).replace("float32", "float64")
            exec(code.replace("Net(DROPOUT)", "Net(DROPOUT).double()"), ours)
        if "losses" in ours:
            break
    state = {name: torch.tensor(np.asarray(value.array)) for name, value in ours["net"].state_dict().items()}
    net = runpy.run_path(str(ours["folder"] / "net.py"))["Net"](0.0).double()
    net.load_state_dict(state)
    batches = [(torch.tensor(x), torch.tensor(y, dtype=torch.int64)) for x, y in ours["batches"]]
    given = {"Net": lambda p: net, "batches": batches, "torch": torch, "F": torch.nn.functional}
    given |= {name: ours[name] for name in ("RATE", "EPOCHS", "DROPOUT")}
    given |= {name: torch.tensor(ours[name]) for name in ("held_out", "labels")}
    monkeypatch.chdir(ours["folder"])
    exec(theirs, given)
    np.testing.assert_allclose(ours["losses"], given["losses"], rtol=1e-9)
    assert ours["accuracy"] == given["accuracy"]
    for (name, _), average in zip(net.named_parameters(), given["ema"], strict=True):
        np.testing.assert_allclose(ours["ema"][name], average, rtol=1e-9, atol=1e-9)
