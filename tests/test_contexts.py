"""Nothing is traced again because a part of fnjax is used for the first time."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fnjax._lazy import import_after
from tests.test_architecture import FILES, nodes

STEPS = {
    "Function": """
class Square(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x
Square.apply(x)
jax.jit(jax.hessian(lambda x: Square.apply(x).sum()))(x)
""",
    "checks": "fnjax.gradcheck(Square.apply, (np.ones(4),))",
    "hooks": """
with fnjax.save_on_cpu():
    jax.grad(lambda x: Square.apply(x).sum())(x)
""",
    "operator": """
@fnjax.custom_op("contexts::twice", mutates_args=())
def twice(x: jax.Array) -> jax.Array:
    return 2 * x
jax.vmap(twice)(x)
""",
    "collective": """
mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
def summed(x):
    return fnjax.collectives.all_reduce(Square.apply(x), "i")
jax.shard_map(jax.grad(lambda x: summed(x).sum()), mesh=mesh, in_specs=P("i"), out_specs=P("i"))(x)
""",
    "kernel": """
def kernel(x_ref, out_ref):
    out_ref[...] = Square.apply(x_ref[...])
pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)
""",
    "split": "fnjax.split_vjp(lambda w, x: Square.apply(w * x), x, x)",
    "graph": "fnjax.saved_report(Square.apply, x)",
    "launch": """
import fnjax.triton as triton, fnjax.triton.language as tl
@triton.jit
def scale(x_ptr, out_ptr, BLOCK: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, BLOCK), 2 * tl.load(x_ptr + tl.arange(0, BLOCK)))
jax.jit(lambda x: scale[(1,)](x, x, BLOCK=4))(x)
triton.backend()
""",
    "load": """
path = pathlib.Path(__file__).with_name("source.py")
path.write_text("import torch\\ndef double(x):\\n    return x.clone().add_(x)\\n")
jax.jit(fnjax.torch.jax_view(fnjax.torch.load(path).double))(x)
""",
    "groups": """
with fnjax.torch.distributed.axis("i"):
    pass
""",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("imports", ["import jax, fnjax", "import fnjax, jax"])
def test_first_uses_trace_nothing_again(imports, tmp_path):
    """A function that was compiled after the imports is not traced again after the first use of any part of fnjax."""
    script = tmp_path / "steps.py"
    script.write_text(
        f"""{imports}
import pathlib
import numpy as np
import fnjax
import jax.experimental.pallas as pl
from jax.sharding import PartitionSpec as P

n_traces = 0

@jax.jit
def early(x):
    global n_traces
    n_traces += 1
    return x + 1

x = jax.numpy.ones(4)
pl.pallas_call(lambda x, y: None, out_shape=x, interpret=True)(x)  # the first makes JAX 0.12 itself trace all again
early(x)
"""
        + "".join(f"{code}\nearly(x)\nprint({name!r}, n_traces)\n" for name, code in STEPS.items())
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, env=env)
    assert not run.returncode, run.stderr
    assert run.stdout.split() == [word for name in STEPS for word in (name, "1")]


def test_contexts_are_made_in_one_module():
    """No module but the one that `import fnjax` runs makes a context."""
    made = {f for f, path in FILES.items() for n in nodes(path) if getattr(n, "attr", "") == "make_user_context"}
    assert made == {"_contexts"}


def test_the_import_that_follows_another_waits_for_it(tmp_path, monkeypatch):
    """A module is imported after the awaited one: not by a search for it, nor where its import fails."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "awaited_module.py").write_text("import followed_by\n")
    (tmp_path / "following_module.py").write_text("import awaited_module\nassert awaited_module.followed_by\n")
    before = list(sys.meta_path)
    import_after("awaited_module", "following_module")
    assert importlib.util.find_spec("awaited_module")
    with pytest.raises(ModuleNotFoundError, match="followed_by"):
        importlib.import_module("awaited_module")
    assert "following_module" not in sys.modules
    (tmp_path / "followed_by.py").write_text("")
    importlib.invalidate_caches()
    importlib.import_module("awaited_module")
    assert "following_module" in sys.modules
    assert sys.meta_path == before
    (tmp_path / "late_module.py").write_text("")
    import_after("awaited_module", "late_module")
    assert "late_module" in sys.modules
