"""torch.distributed of loaded files: next to gloo's processes, closed forms and fnjax.collectives, on four devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from fnjax import collectives, torch
from fnjax.port import port_source
from fnjax.port.compare.devices import MODES, Case, measure_differences, run_devices
from tests.port.collectives.cases import CALLS, HERE, cases
from tests.port.collectives.make_goldens import read

FOUR = pytest.mark.skipif(
    jax.device_count() < 4, reason="needs four devices (forced host devices in tests/conftest.py)"
)
SETUP = f"""
import fnjax.torch
functions = fnjax.torch.load({str(HERE / "functions.py")!r})

def with_default(apply):
    def call(*args):
        with fnjax.torch.distributed.axis("devices"):
            return apply(*args)
    return call
"""
NAMES = [*list(CALLS)[1::3], "Scatter"]  # which gathers into a list that holds the input at the rank


@pytest.fixture(scope="module")
def ours():
    """Return the results of every second Function of the file, loaded as it is."""
    wanted = cases("")
    loaded = [
        Case(wanted[n].original, (f"with_default(functions.{n.partition(' ')[0]}.apply)", SETUP), wanted[n].args)
        for n in NAMES
    ]
    return dict(zip(NAMES, run_devices(loaded), strict=True))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_those_of_four_processes(name, mode, ours):
    """Outputs and gradients are gloo's on each device, whatever JAX checks and whichever inputs devices share."""
    found = measure_differences(read()[name], ours[name])[mode]
    assert found
    assert all(isinstance(d, float) and d <= 1e-6 for d in found.values()), found


def on_devices(function, *args):
    """Run a function of tensors on each of four devices, under jit, with the default group."""
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    def each(*own):
        with torch.distributed.axis("i"):
            return torch.jax_view(function)(*own)

    return jax.jit(jax.shard_map(each, mesh=mesh, in_specs=P("i"), out_specs=P("i")))(*args)


def load(tmp_path, text, name="source"):
    path = tmp_path / f"{name}.py"
    path.write_text(f"import torch\nimport torch.distributed as dist\n\n{text}")
    return torch.load(path)


X = np.arange(8, dtype=np.float32).reshape(4, 2) ** 2


@FOUR
def test_collectives_that_return_are_those_of_fnjax(tmp_path):
    """Values and gradients of torch.distributed.nn and _functional_collectives are fnjax.collectives'."""
    loaded = load(tmp_path, """
import torch.distributed.nn.functional as nn
from torch.distributed import _functional_collectives as funcol

def work(x):
    y = nn.all_reduce(x * 2, op=dist.ReduceOp.MAX) * torch.cat(nn.all_gather(x)).sum()
    z = funcol.all_gather_tensor(x * x, 0, dist.group.WORLD)
    return (y * x + funcol.wait_tensor(funcol.reduce_scatter_tensor(z, "avg", 0, dist.group.WORLD))).sum()[None]
""")  # fmt: skip

    def twin(x):
        y = collectives.all_reduce(x * 2, "i", "max") * jnp.concatenate(collectives.all_gather(x, "i")).sum()
        z = collectives.all_gather_into(x * x, "i", 0)
        return (y * x + collectives.reduce_scatter(z, "i", "avg", 0)).sum()[None]

    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    expected = jax.shard_map(twin, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    np.testing.assert_allclose(on_devices(loaded.work, X), expected(X), rtol=1e-6)

    text = "import torch.distributed.nn as nn\ndef work(x):\n    return nn.all_reduce(x * x) * x\n"
    square = load(tmp_path, text, "square")
    found = jax.grad(lambda x: on_devices(square.work, x).sum())(X)
    np.testing.assert_allclose(found, 2 * X * X.sum(0) + (X * X).sum(0), rtol=1e-6)


REDUCE = """
class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.reduce(x, 2, op=dist.ReduceOp.MAX)
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.reduce(g, dst=1)
        return g
"""


@FOUR
def test_reduce_writes_on_one_device_in_files_and_ports(tmp_path):
    """`reduce` leaves the tensors of other devices as they are; gather and scatter want lists on all devices."""
    loaded = load(tmp_path, REDUCE + """
def lists(x):
    parts = [torch.zeros_like(x) for _ in range(4)]
    assert dist.gather(x, parts, async_op=True).wait()
    out = torch.zeros_like(x)
    dist.scatter(out, [10 * p for p in parts[::-1]], src=0)
    return out

def alone(x):
    dist.gather(x)
""")  # fmt: skip
    np.testing.assert_allclose(on_devices(loaded.lists, X), 10 * X[::-1])
    with pytest.raises(torch.NotSupported, match="without gather_list"):
        on_devices(loaded.alone, X)
    ported = {}
    exec(port_source(f"import torch\nimport torch.distributed as dist\n{REDUCE}").code, ported)
    ported["AXIS_NAME"] = "i"
    largest, total = X.copy(), X.copy()
    largest[2], total[1] = X.max(0), X.sum(0)
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    for apply in (loaded.Reduce.apply, ported["Reduce"].apply):

        def each(x, g, apply=apply):
            with torch.distributed.axis("i"):
                out, pullback = jax.vjp(apply, x)
            return out, pullback(g)[0]

        found = jax.jit(jax.shard_map(each, mesh=mesh, in_specs=P("i"), out_specs=P("i")))(X, X)
        np.testing.assert_allclose(found, (largest, total))


@FOUR
def test_writes_reach_views_and_the_default_group_lasts_to_backward(tmp_path):
    """A collective writes into views; backward, which runs after the block, has the group of its forward."""
    loaded = load(tmp_path, """
class Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.zeros(2, *x.shape)
        out[1] = x
        dist.all_reduce(out[1], op=dist.ReduceOp.AVG)
        return out

    @staticmethod
    def backward(ctx, g):
        g = g[1].clone()
        work = dist.all_reduce(g, async_op=True)
        work.wait()
        return g / dist.get_world_size()
""")  # fmt: skip
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    weight = jnp.arange(1.0, 5, dtype=jnp.float32)

    def each(x, w):
        with torch.distributed.axis("i"):
            out, pullback = jax.vjp(loaded.Mean.apply, x)
        return out[1], pullback(jnp.broadcast_to(w, out.shape))[0]

    out, grad = jax.jit(jax.shard_map(each, mesh=mesh, in_specs=P("i"), out_specs=P("i")))(X, weight)
    np.testing.assert_allclose(out, np.broadcast_to(X.mean(0), X.shape), rtol=1e-6)
    np.testing.assert_allclose(grad, np.full(X.shape, 2.5), rtol=1e-6)


@FOUR
def test_ranks_choose_entries_and_slices(tmp_path):
    """A traced rank chooses entries of lists, which may be written, and slices of a known length."""
    loaded = load(tmp_path, """
def work(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    sizes = [5, 6, 7, 8]
    parts = [torch.zeros_like(x) for _ in range(n)]
    parts[rank] = x.clone()
    parts[rank - 1].add_(1)
    whole = torch.zeros(n + 1, 2)
    whole[rank : rank + 1] = x
    whole[(rank + 1) * 1 : 1 + rank * 1 + 1] += 2
    return torch.cat([*parts, whole])[None] * sizes[rank]
""")  # fmt: skip
    found = on_devices(loaded.work, X)
    for rank in range(4):
        parts, whole = np.zeros((4, 2)), np.zeros((5, 2))
        parts[rank], whole[rank] = X[rank], X[rank]
        parts[rank - 1] += 1
        whole[rank + 1] += 2
        np.testing.assert_allclose(found[rank], np.concatenate([parts, whole]) * (5 + rank), rtol=1e-6)


@FOUR
def test_what_cannot_be_is_refused_by_name(tmp_path):
    """A missing default group has PyTorch's error; fewer ranks, lone receives and unknown lengths are refused."""
    loaded = load(tmp_path, """
def few(x):
    dist.new_group([0, 1])

def alone(x):
    dist.recv(x, 0)

def rest(x):
    return x[dist.get_rank() :]
""")  # fmt: skip
    with pytest.raises(ValueError, match=r"(?s)Default process group has not been initialized.*distributed\.axis"):
        torch.distributed.get_world_size()
    for name, words in [("few", "split the mesh"), ("alone", "send first"), ("rest", "length is not known")]:
        with pytest.raises(torch.NotSupported, match=f"(?s){words}.*source.py"):
            on_devices(getattr(loaded, name), X)
    norm = torch.nn.SyncBatchNorm(2, track_running_stats=False)  # without a process group, too
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(norm, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    with pytest.raises(torch.NotSupported, match=r"SyncBatchNorm in training within jax\.shard_map"):
        jax.eval_shape(mapped, jnp.ones((8, 2)))
