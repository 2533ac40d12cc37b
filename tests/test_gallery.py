"""Each script of the gallery, shortened, reaches its claimed result, and a broken gradient does not."""

import importlib.util
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import csr_array

import fnjax

pytestmark = pytest.mark.slow

GALLERY = Path(__file__).parent.parent / "examples" / "gallery"
FORMS = GALLERY.parent / "torch_forms" / "gallery"
NAMES = sorted(path.stem for path in GALLERY.glob("*.py"))


@pytest.fixture
def load(monkeypatch):
    """Loads a script; one that needs Flax or Equinox is skipped by that name where it is not installed."""

    def load(name, folder=GALLERY):
        path = folder / f"{name}.py"
        for package in ("flax", "equinox"):
            if f"import {package}" in path.read_text() or f"from {package}" in path.read_text():
                pytest.importorskip(package)
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(autouse=True)
def defaults():
    """The scripts run with JAX's defaults, as users run them."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"), jax.enable_x64(False):
        yield


def broken(function, backward):
    """The same Function with another backward."""
    return type(function.__name__, (function,), {"backward": staticmethod(backward)})


def test_gradient_reversal(load):
    """Reversal hides the domain, which stays plain without it, and the unlabelled digits are read better."""
    module = load("gradient_reversal")
    without, reversed_ = module.train(0.0, steps=800), module.train(module.STRENGTH, steps=800)
    assert without["domain recognised"] > 0.9
    assert reversed_["domain recognised"] < 0.85
    assert reversed_["digits"] > 0.95
    assert reversed_["shifted digits"] > without["shifted digits"] + 0.1
    module.GradientReversal = broken(module.GradientReversal, lambda ctx, g: (ctx.strength * g, None))
    assert module.train(module.STRENGTH, steps=800)["domain recognised"] > 0.9


def test_quantisation(load):
    """Training with rounded weights regains what rounding lost, on four values; with zero gradients it cannot."""
    module = load("quantisation")
    accuracy, kernel, _ = module.train(steps=300, before=300)
    assert len(np.unique(kernel)) <= 2**module.BITS
    assert accuracy["trained rounded"] > 0.95
    assert accuracy["trained rounded"] > accuracy["rounded afterwards"] + 0.01
    from_scratch, _, _ = module.train(steps=300, before=0)
    assert from_scratch["trained rounded"] > 0.93
    module.Quantise = broken(module.Quantise, lambda ctx, g: (0 * g, None, None))
    from_scratch, _, _ = module.train(steps=300, before=0)
    assert from_scratch["trained rounded"] < 0.85


def test_spiking(load):
    """The surrogate gradient teaches the neurons digits; the true one, zero, teaches the hidden layer nothing."""
    module = load("spiking")
    result = module.train(steps=150)
    assert result["accuracy"] > 0.93
    assert set(np.unique(result["spikes"])) == {0, 1}
    assert result["slope"] > 0
    module.Spike = broken(module.Spike, lambda ctx, g: (0 * g, None))
    assert module.train(steps=2)["slope"] == 0


def test_sparsemax(load):
    """Sparsemax learns as well as softmax, and nearly all weights but two are exactly zero."""
    module = load("sparsemax")
    result = module.train(module.Sparsemax.apply, steps=400)
    assert result["error"] < 0.02
    assert result["zeros"] > 0.75
    assert module.train(jax.nn.softmax, steps=2)["zeros"] == 0
    wrong = broken(module.Sparsemax, lambda ctx, g: -g)
    assert module.train(wrong.apply, steps=100)["error"] > 0.1


def test_wgan_gp(load):
    """The critic finds the distance of the closed form; the gradient of its penalty needs Swish's second derivative."""
    module = load("wgan_gp")
    history, _ = module.train(steps=600)
    assert history[-100:, 0].mean() == pytest.approx(module.RIGHT, rel=0.03)
    assert history[-100:, 1].mean() == pytest.approx(1 + 5 / (2 * module.PENALTY), rel=0.03)

    _, params = module.train(steps=2)
    points = np.random.default_rng(0).normal(size=(3, 16, 2)).astype(np.float32)

    def slopes(swish):
        module.Swish = swish
        return jax.tree.leaves(jax.grad(module.loss, has_aux=True)(params, *points)[0])

    swish = module.Swish
    constant = broken(swish, lambda ctx, g: jax.lax.stop_gradient(swish.backward(ctx, jnp.ones_like(g))) * g)
    plain = slopes(types.SimpleNamespace(apply=jax.nn.silu))
    assert all(np.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(slopes(swish), plain, strict=True))
    assert not all(np.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(slopes(constant), plain, strict=True))


def test_equilibrium(load):
    """The layer separates the moons, and its gradient is that of the unrolled iteration."""
    module = load("equilibrium")
    assert module.train(steps=150)["accuracy"] > 0.97
    params = module.initial()
    x = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)

    def unrolled(w, u, b, x):
        z = jnp.zeros((len(x), len(w)))
        for _ in range(150):
            z = module.layer(w, u, b, x, z)
        return z

    def loss(params, equilibrium):
        return jnp.sum(module.predict(params, x, equilibrium) ** 2)

    got = jax.grad(loss)(params, module.Equilibrium.apply)
    for name, expected in jax.grad(loss)(params, unrolled).items():
        np.testing.assert_allclose(got[name], expected, rtol=1e-3, atol=1e-4, err_msg=name)


def test_soft_rank(load):
    """Fitting ranks beats least squares where there are outliers; the ranks and their gradient are right."""
    module = load("soft_rank")
    correlations, _ = module.train(steps=150)
    assert correlations["soft ranks"] > 0.95
    assert correlations["soft ranks"] > correlations["least squares"] + 0.05
    values = np.random.default_rng(0).normal(size=9).astype(np.float32)
    np.testing.assert_allclose(module.SoftRank.apply(values, 1e-3), np.argsort(np.argsort(values)) + 1, rtol=1e-3)


def test_soft_rank_is_isotonic_regression(load):
    """The projection is that of scikit-learn's isotonic regression, and its gradient passes gradcheck."""
    from sklearn.isotonic import isotonic_regression

    module = load("soft_rank")
    s = np.random.default_rng(0).normal(size=12).cumsum().astype(np.float32)
    np.testing.assert_allclose(module.isotonic(jnp.asarray(s)), isotonic_regression(s, increasing=False), atol=1e-5)
    with jax.enable_x64(True):
        values = np.random.default_rng(1).normal(size=8)
        assert fnjax.gradcheck(lambda x: module.SoftRank.apply(x, 0.5), (values,))


def test_tomography(load):
    """The gradient through the solver finds a better weight; gradcheck tells the adjoint from a nearly right one."""
    module = load("tomography")
    phantom, (first, last), losses, weights = module.train(steps=3)
    assert losses[2] < losses[1] < losses[0]
    assert np.linalg.norm(last - phantom) < np.linalg.norm(first - phantom) < 0.3 * np.linalg.norm(phantom)
    assert weights[2] > weights[0]
    matrix, image = csr_array(np.random.default_rng(0).normal(size=(64, 1024))), np.ones((32, 32))
    assert fnjax.gradcheck(module.Project.apply, (image, matrix), fast_mode=True)
    right = module.Project
    scaled = broken(right, lambda ctx, g: (1.0001 * right.backward(ctx, g)[0], None))
    with pytest.raises(fnjax.GradcheckError, match="backward is not the transpose of forward"):
        fnjax.gradcheck(scaled.apply, (image, matrix), fast_mode=True)


@pytest.mark.skipif(jax.device_count() < 4, reason="needs four devices (forced host devices in tests/conftest.py)")
@pytest.mark.parametrize("operator", ["CopyToRegion", "ReduceFromRegion"])
def test_tensor_parallelism(load, monkeypatch, operator):
    """Training on four devices has the losses of one; with a wrong gradient in an operator it has not."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # which the script adds to
    module = load("tensor_parallelism")
    alone, _ = module.train(module.on_one, steps=30)
    together, params = module.train(module.on_all, steps=30)
    np.testing.assert_allclose(together, alone, rtol=1e-4)
    assert {shard.data.shape for shard in params["first"].addressable_shards} == {(32, 128 // jax.device_count())}
    right = getattr(module, operator)
    monkeypatch.setattr(module, operator, broken(right, lambda ctx, g: -right.backward(ctx, g)))
    assert np.abs(module.train(module.on_all, steps=30)[0] - alone).max() > 1e-3


@pytest.mark.parametrize("name", ["sparsemax", "quantisation", "equilibrium"])
def test_functions_of_the_gallery_pass_gradcheck(load, name):
    """Functions with the true gradient pass gradcheck; the straight-through one has the gradient of its paper."""
    module = load(name)
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        if name == "sparsemax":
            assert fnjax.gradcheck(module.Sparsemax.apply, (rng.normal(size=(3, 5)),))
        elif name == "equilibrium":
            shapes = ((3, 3), (3, 2), (3,), (4, 2))
            args = tuple(rng.normal(size=s) for s in shapes)
            assert fnjax.gradcheck(module.Equilibrium.apply, args, atol=1e-4)
        else:  # straight through: as if rounding were the identity within the range
            weight, step = jnp.asarray([-0.9, -0.2, 0.3, 0.4, 2.0]), jnp.asarray(0.5)
            grads = jax.grad(lambda w, s: module.Quantise.apply(w, s, 2).sum(), argnums=(0, 1))(weight, step)
            np.testing.assert_allclose(grads[0], [1, 1, 1, 1, 0])
            # Rounded ratios minus ratios within, the largest value beyond: -2+1.8, 0+0.4, 1-0.6, 1-0.8, 1; over √5.
            np.testing.assert_allclose(grads[1], (-0.2 + 0.4 + 0.4 + 0.2 + 1) / np.sqrt(5))


# ---------------------------------------------------------------------------------------------------------------------
# PyTorch's forms

ARGUMENTS = {
    "gradient_reversal": ("GradientReversal", lambda rng: (rng.normal(size=(2, 3)), 0.7)),
    "quantisation": ("Quantise", lambda rng: (rng.normal(size=(4, 5)), np.array(0.4), 3)),
    "spiking": ("Spike", lambda rng: (rng.normal(size=7), 5.0)),
    "sparsemax": ("Sparsemax", lambda rng: (rng.normal(size=(3, 6)),)),
    "wgan_gp": ("Swish", lambda rng: (rng.normal(size=7),)),
    "equilibrium": ("Equilibrium", lambda rng: tuple(rng.normal(size=s) for s in ((3, 3), (3, 2), (3,), (4, 2)))),
    "soft_rank": ("SoftRank", lambda rng: (rng.normal(size=8), 0.5)),
    "tomography": ("Project", lambda rng: (rng.normal(size=(32, 32)), csr_array(rng.normal(size=(64, 1024))))),
}


def test_every_script_has_its_form():
    """Each script has the PyTorch form of its Function next to it; those of f and g run in tests/parity."""
    assert sorted(path.stem for path in FORMS.glob("*.py")) == sorted(ARGUMENTS)
    assert {*ARGUMENTS, "tensor_parallelism"} == set(NAMES)


def test_every_script_has_its_place_in_the_gallery():
    """docs/gallery.md shows each script, its form in PyTorch where it has one of its own, and its picture."""
    page = (GALLERY.parent.parent / "docs" / "gallery.md").read_text()
    for name in NAMES:
        assert f'"examples/gallery/{name}.py"' in page
        assert (f'"examples/torch_forms/gallery/{name}.py"' in page) == (name in ARGUMENTS)
        assert f"(pictures/gallery/{name}.png)" in page


@pytest.mark.parity
@pytest.mark.parametrize("name", ARGUMENTS)
def test_torch_form(load, name):
    """PyTorch's form gives the same values and gradients on the same data."""
    torch = pytest.importorskip("torch")
    function, make = ARGUMENTS[name]
    args = make(np.random.default_rng(0))
    arrays = [i for i, x in enumerate(args) if isinstance(x, np.ndarray)]
    tensors = [torch.tensor(x, requires_grad=True) if i in arrays else x for i, x in enumerate(args)]
    out = getattr(load(name, FORMS), function).apply(*tensors)
    cotangent = np.random.default_rng(1).normal(size=tuple(out.shape))
    grads = torch.autograd.grad(out, [tensors[i] for i in arrays], torch.tensor(cotangent))
    with jax.enable_x64(True):
        apply = getattr(load(name), function).apply
        given = dict(zip(arrays, (jnp.asarray(args[i]) for i in arrays), strict=True))
        mine, pull = jax.vjp(
            lambda *xs: apply(*(dict(zip(arrays, xs, strict=True)).get(i, x) for i, x in enumerate(args))),
            *given.values(),
        )
        np.testing.assert_allclose(mine, out.detach().numpy(), rtol=1e-5, atol=1e-5)
        for got, expected in zip(pull(jnp.asarray(cotangent)), grads, strict=True):
            np.testing.assert_allclose(got, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_pictures(load, name, monkeypatch, tmp_path, capsys):
    """Each script draws its picture where it is asked to, and prints what it found."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    module = load(name)
    train = module.train
    monkeypatch.setattr(module, "train", lambda *args, show: train(*args, steps=2))
    module.main(str(tmp_path / "picture.png"))
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.strip()
