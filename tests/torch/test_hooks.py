"""Hooks on tensors, detach_, writes by `.data` and selections that are changed in place: numbers of PyTorch's rules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch

X = jnp.array([0.1, 1.0, -2.0], jnp.float32)
both = pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])


def gradient(function, wrap=lambda f: f):
    return wrap(jax.grad(torch.jax_view(function)))(X)


@both
def test_a_hook_changes_the_gradient(wrap):
    """The hook gets the gradient of all later uses, and what it returns goes on; removed, it is not called."""

    def clamped(x):
        y = x * 3
        y.register_hook(lambda g: g.clamp(-0.5, 0.5))
        return (y**2).sum()

    def of_the_input(x):
        x.register_hook(lambda g: g * 10)
        return (x**2).sum()

    def removed(x):
        y = x * 3
        y.register_hook(lambda g: g * 100).remove()
        return (y**2).sum()

    np.testing.assert_allclose(gradient(clamped, wrap), [1.5, 1.5, -1.5])
    np.testing.assert_allclose(gradient(of_the_input, wrap), 20 * X, rtol=1e-6)
    np.testing.assert_allclose(gradient(removed, wrap), 18 * X, rtol=1e-6)


def test_a_hook_in_torch_autograd():
    """torch.autograd.grad and backward() call hooks, of leaves and of what is computed."""
    x = torch.tensor([1.0, 2.0]).requires_grad_()
    x.register_hook(lambda g: g + 1)
    y = x * x
    y.register_hook(lambda g: g * 2)
    assert torch.autograd.grad(y.sum(), x, retain_graph=True)[0].tolist() == [5, 9]
    y.sum().backward()
    assert x.grad.tolist() == [5, 9]
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        torch.tensor([1.0]).register_hook(print)


def test_gradients_for_a_tensor_and_for_what_it_is_computed_from():
    """torch.autograd.grad gives each tensor its whole gradient, also what comes through another one of them."""
    x = torch.tensor([1.0, 2.0]).requires_grad_()
    a = x * 2
    b = a * a
    first = torch.autograd.grad((b * a).sum(), [a, b, x], create_graph=True)
    assert [g.tolist() for g in first] == [[12, 48], [2, 4], [24, 96]]  # 3 a^2, a, 6 a^2
    assert torch.autograd.grad(first[2].sum(), x)[0].tolist() == [48, 96]  # 48 x
    assert [g.tolist() for g in torch.autograd.grad(b.sum(), [b, a])] == [[1, 1], [4, 8]]


def test_a_hook_of_a_parameter_is_not_lost():
    """functional_call gives a parameter another value: a hook that was registered before is refused, not forgotten."""
    with torch.seed(0):
        layer = torch.nn.Linear(2, 2)
    params = dict(layer.named_parameters())
    layer.weight.register_hook(lambda g: g * 2)
    with pytest.raises(torch.NotSupported, match="hook"):
        torch.func.functional_call(layer, params, (jnp.ones(2),))


@pytest.mark.parametrize("wrap", [jax.jit, jax.vmap, jax.checkpoint], ids=["jit", "vmap", "checkpoint"])
def test_backward_hooks_of_modules(wrap):
    """A module's hook gets both gradients and gives one; derivatives of another order or mode are refused."""
    layer = torch.nn.Tanh()
    layer.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * outputs[0],))

    def loss(x):
        return (layer(x) * x).sum()

    x = jnp.stack([X, 2 * X])
    wanted = jnp.tanh(x) + (1 - jnp.tanh(x) ** 2) * x**2  # the result's gradient x, twice
    found = wrap(jax.grad(loss))(x) if wrap is not jax.checkpoint else jax.grad(wrap(loss))(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    if wrap is jax.jit:
        for other in (jax.hessian, jax.jacfwd, lambda f: jax.jacrev(jax.grad(f))):
            with pytest.raises(RuntimeError, match=r"once_differentiable|backward hook"):
                other(loss)(x)
        with pytest.raises(torch.NotSupported, match="register_full_backward_hook"):
            layer.register_backward_hook(print)


@both
def test_views_have_the_history_of_where_they_are_made(wrap):
    """Read first under no_grad, a view is no constant; made there, it is one."""

    def read_there(x):
        y, z = x * 2, (x * 1).unsqueeze(0)
        selected = y.view(1, -1)
        y.mul_(x)
        with torch.no_grad():
            total = selected.mean() + z.mean()
        return (selected * z).sum() + 0 * total  # 2 x^3

    def made_there(x):
        with torch.no_grad():
            y = x.unsqueeze(0)
        return (y * y * x).sum()

    np.testing.assert_allclose(gradient(read_there, wrap), 6 * X**2, rtol=1e-6)
    np.testing.assert_allclose(gradient(made_there, wrap), X**2, rtol=1e-6)


@both
def test_detach_in_place(wrap):
    """`y.detach_()` as a statement ends the history of y, as in a loop that truncates backpropagation."""

    def function(x):
        y = x * x
        y.detach_()
        return (y * x).sum()

    np.testing.assert_allclose(gradient(function, wrap), X**2, rtol=1e-6)
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        (torch.ones(3)[1:]).detach_()


def test_the_second_derivative_after_a_write_by_data():
    """Derivatives of any order are taken at the value that `.data` has written."""

    def function(x):
        y = x * 1.0
        y.data.clamp_(-1, 1)
        return (y**3).sum()

    clipped = jnp.clip(X, -1, 1)
    np.testing.assert_allclose(gradient(function), 3 * clipped**2, rtol=1e-6)
    hessian = jax.hessian(torch.jax_view(function))(X)
    np.testing.assert_allclose(hessian, jnp.diag(6 * clipped), rtol=1e-6)


class Limited(torch.autograd.Function):
    """Divides by a limit that it widens by `.data`."""

    @staticmethod
    def forward(ctx, x, limit):
        limit.data.copy_(torch.maximum(limit, x.abs()))
        ctx.save_for_backward(limit)
        return x / limit

    @staticmethod
    def backward(ctx, g):
        (limit,) = ctx.saved_tensors
        return g / limit, None


@both
def test_the_second_derivative_by_an_argument_that_forward_writes_to(wrap):
    """The saved limit is the argument, at the value that was written: g / limit has -g / limit^2."""
    given = jnp.array([0.5, 1.5, 0.2], jnp.float32)
    first = jax.grad(lambda x, limit: (Limited.apply(x, limit) ** 2).sum())
    mixed = wrap(jax.grad(lambda limit: first(X, limit).sum()))(given)
    limit = jnp.maximum(given, jnp.abs(X))
    np.testing.assert_allclose(mixed, -2 * X / limit**3, rtol=1e-5)


@both
def test_selections_are_changed_in_place(wrap):
    """`y[mask] *= 2` and its like with a traced mask; of two sizes it is refused."""

    def function(x):
        y = x.clone()
        m = y > 0
        y[m] *= 10
        y[m] += y[m] * 2
        y[y < 0] /= 4
        return y

    np.testing.assert_allclose(wrap(torch.jax_view(function))(X), [3.0, 30.0, -0.5], rtol=1e-6)

    def refused(x):
        y = x.clone()
        y[0] = y[y > 0]
        return y

    with pytest.raises(torch.NotSupported, match="traced mask"):
        jax.jit(torch.jax_view(refused))(X)


def test_state_that_is_loaded_is_a_copy():
    """NumPy arrays of a state dict may change afterwards."""
    with torch.seed(0):
        layer = torch.nn.Linear(64, 64)
    weight = np.zeros((64, 64), np.float32)
    layer.load_state_dict({"weight": weight, "bias": np.zeros(64, np.float32)})
    weight += 1
    assert not np.asarray(torch.jax_view(layer.weight)).any()


def test_losses_of_selections():
    """A loss of what a traced mask selects has the terms of these entries; the batch's size is refused."""

    def of(x, loss, **options):
        m = x > -1
        return loss(x[m], (x * 3).detach()[m], **options)

    x = np.asarray(X)
    for loss, options, expected in [
        (torch.nn.functional.mse_loss, {}, 2 * (x - 3 * x) / 2),
        (torch.nn.functional.l1_loss, {"reduction": "sum"}, np.sign(x - 3 * x)),
    ]:
        found = gradient(lambda x, loss=loss, options=options: of(x, loss, **options), jax.jit)
        np.testing.assert_allclose(found, np.where(x > -1, expected, 0), rtol=1e-6)
    with pytest.raises(torch.NotSupported, match="reduction='batchmean' of a loss of what a traced mask selects"):
        gradient(lambda x: of(x, torch.nn.functional.kl_div, reduction="batchmean"), jax.jit)
