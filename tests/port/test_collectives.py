"""Ported collectives on four forced devices, beside what four gloo processes gave."""

import importlib.util
import pathlib

import jax
import numpy as np
import pytest

import fnjax
from fnjax.port import port_source
from fnjax.port.compare.devices import MODES, measure_differences, run_devices, run_gloo
from tests.port.collectives.cases import CALLS, HERE, cases
from tests.port.collectives.make_goldens import read

TEXT = (HERE / "functions.py").read_text("utf-8")


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """The port of the file."""
    path = tmp_path_factory.mktemp("collectives") / "ports.py"
    path.write_text(port_source(TEXT).code)
    return path


@pytest.fixture(scope="module")
def ours(port):
    """Return the results of the ports."""
    wanted = cases(str(port))
    return dict(zip(wanted, run_devices(list(wanted.values())), strict=True))


def test_which_stay_pytorch_source():
    """Sends, receives, collectives in a loop over tensors, branches by rank stay; all others are translated."""
    result = port_source(TEXT)
    left = {c.name for c in result.classes if c.status != "ported"}
    assert left == {"CompReduce", "Halo", "LoopOver", "RingScores", "Neighbours", "PassTwo"}
    assert len(result.classes) == len({name.partition(" ")[0] for name in CALLS})


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CALLS)
def test_numbers_are_those_of_four_processes(name, mode, ours):
    """Outputs and gradients are gloo's on each device, whatever JAX checks and whichever inputs devices share."""
    found = measure_differences(read()[name], ours[name])[mode]
    assert found
    assert all(isinstance(d, float) and d <= 1e-6 for d in found.values()), found


@pytest.mark.slow
def test_a_wrong_port_is_found(port, tmp_path):
    """The comparison refuses a gradient that is not summed, and one that is summed twice."""
    text = port.read_text()
    broken = tmp_path / "broken.py"
    broken.write_text(text.replace("device_copies = True", "device_copies = False"))
    wanted = {n: c for n, c in cases(str(broken)).items() if n == "Copy"}
    (result,) = run_devices(list(wanted.values()))
    found = measure_differences(read()["Copy"], result)
    assert max(found["unchecked"].values()) <= 1e-6
    assert found["shared"]["gradient 0"] > 0.1


LICENCE = """\
# Software distributed under the License is distributed on an "AS IS" BASIS
import torch

class Scale(torch.autograd.Function):
    '''Scale what is distributed.'''

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad
"""


def test_a_licence_is_no_collective():
    """Only names in code say that a file uses torch.distributed, not "distributed under the License"."""
    assert "device_copies" not in port_source(LICENCE).code
    assert (
        "device_copies"
        in port_source(LICENCE.replace("import torch\n", "import torch\nimport torch.distributed\n")).code
    )


SLICED = """\
import torch
import torch.distributed as dist

class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rank, world_size):
        parts = [torch.empty_like(x) for _ in range(world_size)]
        dist.all_gather(parts, x)
        ctx.rank, ctx.size = rank, x.shape[0]
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, g):
        return g[ctx.size * ctx.rank : ctx.size * (ctx.rank + 1)], None, None
"""


def test_a_rank_that_the_caller_passes_cuts_a_part_of_one_size():
    """The caller's rank is traced, and the size of its part is not."""
    ported = port_source(SLICED)
    assert not [f for f in ported.findings if f.severity == "error"]
    assert "return collectives.varying.window(g, ctx.size * ctx.rank, ctx.size), None, None" in ported.code


RETURNED = """\
import torch
import torch.distributed.nn.functional as nn

class Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        largest = torch.distributed.nn.all_reduce(x, op=torch.distributed.ReduceOp.MAX, group=group)
        return largest - nn.broadcast(x, 1) + torch.cat(nn.all_gather(x, group)).sum()

    @staticmethod
    def backward(ctx, g):
        return nn.all_reduce(g, group=ctx.group), None
"""


def test_collectives_that_return_their_result():
    """Those of torch.distributed.nn are JAX's, by closed forms of their values and of the sum that backward takes."""
    names = {}
    exec(port_source(RETURNED, strict=True).code, names)
    names["AXIS_NAME"], x = "i", np.arange(8.0, dtype=np.float32).reshape(4, 2) ** 2
    found, pull = jax.vjp(jax.vmap(lambda x: names["Spread"].apply(x, None), axis_name="i"), x)
    np.testing.assert_allclose(found, np.broadcast_to(x.max(0) - x[1] + x.sum(), x.shape), rtol=1e-6)
    np.testing.assert_allclose(pull(x)[0], np.broadcast_to(x.sum(0), x.shape), rtol=1e-6)


@pytest.mark.parity
@pytest.mark.slow
def test_the_goldens_are_pytorchs():
    """Four gloo processes still give what is kept."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs PyTorch")
    wanted = cases("")
    for (name, golden), now in zip(read().items(), run_gloo(list(wanted.values())), strict=True):
        assert name in wanted
        for before, rank in zip(golden, now, strict=True):
            for a, b in zip(before["own"]["outputs"], rank["own"]["outputs"], strict=True):
                assert abs(a - b).max() <= 1e-6 * abs(a).max()


def test_goldens_are_small():
    """The data in the repository stay below 1 MB."""
    assert pathlib.Path(HERE, "goldens.npz").stat().st_size < 1 << 20


def test_ports_of_earlier_versions_find_their_functions():
    """The names that moved to modules of fnjax.collectives are found under their former ones; others are not."""
    assert fnjax.collectives.window is fnjax.collectives.varying.window
    assert fnjax.collectives.join is fnjax.collectives.modules.join
    with pytest.raises(AttributeError, match="nothing"):
        fnjax.collectives.nothing  # noqa: B018 - the access is the test
