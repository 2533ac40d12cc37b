"""Modules in people's own stacks: Equinox, optax, Flax NNX, safetensors, orbax, jax.export."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch

equinox = pytest.importorskip("equinox")
optax = pytest.importorskip("optax")
nn = torch.nn


class Normed(nn.Module):
    """A layer whose forward updates a buffer."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.frozen = nn.Parameter(torch.full((n,), 2.0), requires_grad=False)
        self.register_buffer("mean", torch.zeros(n))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x):
        m = x.mean(0)
        if self.training:
            self.mean.mul_(0.5).add_(0.5 * m.detach())
            self.count += 1
        return (x - self.mean) * self.weight * self.frozen


X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
STEPS = 3
SGD = optax.sgd(0.1, momentum=0.9)


def plain_training():
    """Return weight and mean after the steps, in plain JAX."""
    weight, mean = jnp.ones(3), jnp.zeros(3)
    opt = SGD.init(weight)
    for _ in range(STEPS):
        mean = 0.5 * mean + 0.5 * X.mean(0)
        gradient = jax.grad(lambda w, mean=mean: (((X - mean) * w * 2) ** 2).mean())(weight)
        update, opt = SGD.update(gradient, opt, weight)
        weight = weight + update
    return weight, mean


def make():
    return nn.Sequential(Normed(3))


def check(weight, frozen, mean, count):
    wanted = plain_training()
    np.testing.assert_allclose(weight, wanted[0], rtol=1e-5)
    np.testing.assert_allclose(mean, wanted[1], rtol=1e-5)
    np.testing.assert_array_equal(frozen, 2)
    assert int(count) == STEPS


def test_equinox_trains_a_module():
    """filter_jit, filter_grad and apply_updates take a module as it is; what forward writes comes back in it."""
    model = make()

    @equinox.filter_jit
    def step(model, opt):
        def loss(model):
            return (model(jnp.asarray(X)) ** 2).mean(), model

        gradient, model = equinox.filter_grad(loss, has_aux=True)(model)
        update, opt = SGD.update(gradient, opt)
        return equinox.apply_updates(model, update), opt

    opt = SGD.init(equinox.filter(model, equinox.is_inexact_array))
    for _ in range(STEPS):
        model, opt = step(model, opt)
    layer = model[0]
    check(layer.weight.detach(), layer.frozen.detach(), layer.mean, layer.count.item())


def test_optax_trains_functionally():
    """Optax takes `dict(model.named_parameters())`; the state goes from step to step."""
    model = make()
    params, state = dict(model.named_parameters()), dict(model.named_buffers())
    opt = SGD.init(params)

    @jax.jit
    def step(params, state, opt):
        def loss(params):
            y, new = torch.func.stateful_call(model, {**params, **state}, (jnp.asarray(X),))
            return (y**2).mean(), new

        gradient, state = jax.grad(loss, has_aux=True)(params)
        update, opt = SGD.update(gradient, opt)
        return optax.apply_updates(params, update), state, opt

    for _ in range(STEPS):
        params, state, opt = step(params, jax.tree.map(jnp.asarray, torch.jax_view(state)), opt)
    check(params["0.weight"].detach(), params["0.frozen"].detach(), state["0.mean"], state["0.count"])


def test_nnx_trains_a_module():
    """`fnjax.torch.nnx` gives an NNX module: its Params are trained, its BatchStats updated; eval() reaches it."""
    flax_nnx = pytest.importorskip("flax.nnx")
    model = make()
    made = torch.nnx(model)
    opt = flax_nnx.Optimizer(made, SGD, wrt=flax_nnx.Param)

    @flax_nnx.jit
    def step(made, opt):
        gradient = flax_nnx.grad(lambda made: (made(jnp.asarray(X)) ** 2).mean())(made)
        opt.update(made, gradient)

    for _ in range(STEPS):
        step(made, opt)
    made.eval()
    made(jnp.asarray(X))
    check(*(made.variables[f"0.{n}"][...] for n in ("weight", "frozen", "mean", "count")))
    assert model[0].count.item() == 0
    assert model.training


def test_pytree():
    """Leaves are the arrays by name; a copy has PyTorch's names; modes and plain attributes decide equality."""
    model = make()
    leaves, tree = jax.tree.flatten(model)
    assert [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(model)] == [
        ".0.weight",
        ".0.frozen",
        ".0.mean",
        ".0.count",
    ]
    assert jax.tree.structure(make()) == tree
    copy = jax.tree.unflatten(tree, [a + 1 for a in leaves])
    assert list(copy.state_dict()) == list(model.state_dict())
    np.testing.assert_array_equal(copy[0].weight.detach(), 2)
    np.testing.assert_array_equal(model[0].weight.detach(), 1)
    assert jax.tree.structure(copy) == tree
    copy.eval()
    other = jax.tree.structure(copy)
    assert other != tree
    assert not jax.tree.unflatten(other, leaves)[0].training


def test_safetensors(tmp_path):
    """A state dict of PyTorch in safetensors loads without PyTorch, and one is saved under its names."""
    safetensors = pytest.importorskip("safetensors.numpy")
    model = make()
    path = tmp_path / "net.safetensors"
    safetensors.save_file({k: np.asarray(v + 1) for k, v in torch.jax_view(model.state_dict()).items()}, path)
    other = make()
    assert repr(other.load_state_dict(safetensors.load_file(path))) == "<All keys matched successfully>"
    np.testing.assert_array_equal(other[0].weight.detach(), 2)


def test_orbax(tmp_path):
    """Orbax saves and restores parameters by PyTorch's names."""
    orbax = pytest.importorskip("orbax.checkpoint")
    params = torch.jax_view(dict(make().named_parameters()))
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "params", params)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "params", jax.tree.map(jnp.zeros_like, params))
    make().load_state_dict(restored, strict=False)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), params, restored))


def test_export():
    """jax.export writes a model with its parameters; read again, it computes the same."""
    pytest.importorskip("flatbuffers")
    model = make().eval()
    exported = jax.export.export(jax.jit(model))(jax.ShapeDtypeStruct((4, 3), jnp.float32))
    again = jax.export.deserialize(exported.serialize())
    np.testing.assert_allclose(again.call(jnp.asarray(X)), X * 2, rtol=1e-6)


def test_pt_files_say_how_to_convert():
    """A pickled state dict needs PyTorch: torch.load, in a loaded file too, says how to convert it."""
    for options in ({}, {"map_location": "cpu"}):
        with pytest.raises(torch.NotSupported, match=r"safetensors\.numpy\.load_file"):
            torch.load("net.pt", **options)
