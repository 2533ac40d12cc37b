"""The Functions of the examples and of the gallery on a mesh with Explicit axes, their batch over four devices."""

import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from tests.test_explicit_axes import collectives, loss, mesh

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.saved_variables:DeprecationWarning"),  # which one of the examples shows
    pytest.mark.skipif(jax.device_count() < 4, reason="needs four devices (forced host devices in tests/conftest.py)"),
]
EXAMPLES = Path(__file__).parent.parent / "examples"
RNG = np.random.default_rng(0)


def numbers(*shape):
    return RNG.uniform(0.2, 1.0, shape).astype(np.float32)


# Of each: the file, the Function of its module, its arguments, of which the first is sharded along its first axis.
CASES = {
    "linear": ("linear", lambda m: m.LinearFunction.apply, (numbers(8, 3), numbers(2, 3), numbers(2))),
    "relu": ("linear", lambda m: m.MyReLU.apply, (numbers(8, 3),)),
    "root": ("implicit_root", lambda m: jax.vmap(m.anomaly), (numbers(8, 2),)),
    "heads": ("kill_head", lambda m: lambda x: m.KillHead.apply(x, 1), (numbers(8, 3, 2),)),
    "in_place": ("my_function", lambda m: lambda a, b: m.AddInPlace.apply(a, 3, b), (numbers(8), numbers(8))),
    "my_function": ("my_function", lambda m: lambda a, b: m.MyFunction.apply(a, 2, b), (numbers(8), numbers(8))),
    "sinh": ("sinh", lambda m: m.SinhIntermediates.apply, (numbers(8),)),
    "sinh_outputs": ("sinh", lambda m: m.SinhOutputs.apply, (numbers(8),)),
    "something": ("something", lambda m: m.Something.apply, (numbers(8), numbers(8))),
    "square": ("square_exp", lambda m: m.Square.apply, (numbers(8),)),
    "exp": ("square_exp", lambda m: m.Exp.apply, (numbers(8),)),
    "render": ("two_outputs", lambda m: m.Render.apply, (numbers(8), numbers(8))),
    "lazily": ("two_outputs", lambda m: m.RenderLazily.apply, (numbers(8), numbers(8))),
    "log_cosh": ("weighted_loss", lambda m: m.LogCosh.apply, (numbers(8, 3), numbers(8, 3), numbers(8, 3))),
    "cholesky": ("cholesky", lambda m: jax.vmap(m.Cholesky.apply), (np.eye(3, dtype=np.float32) + numbers(4, 1, 1),)),
    "reversal": ("gallery/gradient_reversal", lambda m: lambda x: m.GradientReversal.apply(x, 2.0), (numbers(8, 3),)),
    "quantise": ("gallery/quantisation", lambda m: lambda w, s: m.Quantise.apply(w, s, 2), (numbers(8, 3), numbers())),
    "ranks": ("gallery/soft_rank", lambda m: jax.vmap(m.SoftRank.apply), (numbers(4, 5),)),
    "sparsemax": ("gallery/sparsemax", lambda m: m.Sparsemax.apply, (numbers(8, 4),)),
    "spike": ("gallery/spiking", lambda m: m.Spike.apply, (numbers(8, 3),)),
    "swish": ("gallery/wgan_gp", lambda m: m.Swish.apply, (numbers(8, 3),)),
    "equilibrium": (
        "gallery/equilibrium",
        lambda m: lambda x, w, u, b: m.Equilibrium.apply(w, u, b, x),
        (numbers(8, 2), numbers(3, 3), numbers(3, 2), numbers(3)),
    ),
}
# Where JAX refuses forward itself on such a mesh, and what it says.
REFUSED = {"equilibrium": "while_loop"}


def load(name):
    path = EXAMPLES / f"{name}.py"
    for package in ("flax", "optax", "sklearn", "matplotlib", "tqdm", "scipy"):
        if f"import {package}" in path.read_text() or f"from {package}" in path.read_text():
            pytest.importorskip(package)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("case", CASES)
def test_example(case):
    """Gradients are those of one device, without a collective more than on a mesh with Auto axes."""
    name, take, args = CASES[case]
    f = take(load(name))
    gradients = jax.grad(loss(f), tuple(range(len(args))))
    want, lowered = jax.jit(gradients)(*args), {}
    for kind in (AxisType.Auto, AxisType.Explicit):
        with jax.set_mesh(mesh(kind)):
            placed = [jax.device_put(x, P("d") if x.shape == args[0].shape else P()) for x in args]
            if kind is AxisType.Explicit and case in REFUSED:
                with pytest.raises(Exception, match=REFUSED[case]):
                    jax.jit(f)(*placed)
                return
            lowered[kind] = jax.jit(gradients).lower(*placed)
            got = lowered[kind].compile()(*placed)
        jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5), got, want)
    auto, explicit = (collectives(lowered[kind]) for kind in (AxisType.Auto, AxisType.Explicit))
    assert all(explicit[kind] <= auto[kind] for kind in auto), (explicit, auto)
