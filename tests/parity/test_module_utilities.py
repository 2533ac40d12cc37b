"""torch.nn.utils and backward hooks of modules next to PyTorch's: values, gradients, new buffers, state dicts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

real = pytest.importorskip("torch")

from fnjax import torch as ours  # noqa: E402 - after the skip

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore:.*is deprecated in favor of:FutureWarning")]


def build_normalized(torch):
    """Return layers whose weights are computed."""
    utils, Linear = torch.nn.utils, torch.nn.Linear
    new = utils.parametrizations
    return torch.nn.ModuleList([
        utils.weight_norm(Linear(4, 3)),
        utils.weight_norm(Linear(4, 3), dim=None),
        utils.spectral_norm(Linear(4, 3), n_power_iterations=2),
        new.weight_norm(Linear(4, 3)),
        new.spectral_norm(Linear(4, 3)),
        new.orthogonal(Linear(4, 4)),
        new.orthogonal(Linear(4, 3)),
        new.orthogonal(Linear(4, 3), orthogonal_map="cayley"),
        new.orthogonal(Linear(4, 5), use_trivialization=False),
        new.weight_norm(utils.spectral_norm(Linear(4, 3)), "bias"),
    ])  # fmt: skip


def build_hooked(torch):
    """Return layers with backward hooks: one that scales, one that reads grad_output, one that comes before."""
    layers = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4)])
    layers[0].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2 + outputs[0].sum(),))
    layers[1].register_full_backward_pre_hook(lambda module, outputs: (outputs[0].clamp(-0.5, 0.5),))
    layers[2].register_full_backward_hook(lambda module, inputs, outputs: None)
    layers[2].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] + outputs[0][:, :4],))
    return layers


@pytest.mark.parametrize("build", [build_normalized, build_hooked])
def test_layers_train_as_in_pytorch(build):
    """State dict and repr are PyTorch's; outputs, gradients and new buffers of a step in training too."""
    theirs = build(real)
    with ours.seed(0):
        own = build(ours)
    state = {k: v.numpy().copy() for k, v in theirs.state_dict().items()}
    assert list(own.state_dict()) == list(state)
    assert repr(own) == repr(theirs)
    own.load_state_dict(state)
    x = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    given = real.tensor(x, requires_grad=True)
    want = [layer(given) for layer in theirs]
    sum((y**2).sum() for y in want).backward()
    trained = {k: p.array for k, p in own.named_parameters()}
    buffers = {k: b.array for k, b in own.named_buffers()}
    own.forward = lambda x: [layer(x) for layer in own]

    @jax.jit
    def step(trained, x):
        def total(trained, x):
            found, new = ours.func.stateful_call(own, {**trained, **buffers}, (x,))
            return sum((y**2).sum() for y in found), (found, new)

        return jax.grad(total, argnums=(0, 1), has_aux=True)(trained, x)

    gradients, (found, new) = step(trained, jnp.asarray(x))
    pairs = {str(i): pair for i, pair in enumerate(zip(want, found, strict=True))}
    pairs |= {"input": (given.grad, gradients[1])}
    pairs |= {k: (p.grad, gradients[0][k]) for k, p in theirs.named_parameters()}
    pairs |= {f"new {k}": (b, new[k]) for k, b in theirs.named_buffers()}
    for name, (a, b) in pairs.items():
        np.testing.assert_allclose(b, a.detach().numpy(), rtol=1e-4, atol=2e-5, err_msg=name)


def test_gradients_are_clipped_as_in_pytorch():
    """clip_grad_norm_ and clip_grad_value_ write to `.grad`; vectors of parameters go there and back."""
    results = []
    for torch in (real, ours):
        with ours.seed(0):
            layer = torch.nn.Linear(3, 2)
        torch.nn.utils.vector_to_parameters(torch.arange(8.0), layer.parameters())
        layer(torch.ones(1, 3)).pow(2).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(layer.parameters(), 10.0)
        torch.nn.utils.clip_grad_value_(layer.weight, 3.0)
        vector = torch.nn.utils.parameters_to_vector(layer.parameters()).detach()
        results.append([norm.item(), layer.weight.grad.tolist(), layer.bias.grad.tolist(), vector.tolist()])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-6), *results)
