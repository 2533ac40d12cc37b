"""torch.utils.checkpoint: jax.checkpoint's memory, the values and gradients of a plain call, each effect once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch

checkpoint = torch.utils.checkpoint.checkpoint


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x


def run_twice(block, x, *args, how):
    for _ in range(2):
        x = checkpoint(block, x, *args, use_reentrant=False) if how else block(x, *args)
    return x


def pair(x, scale):
    y = torch.tanh(x * scale)
    return y.t(), None, y.sum()


def arguments(x, w, how):
    y, _none, total = checkpoint(pair, x @ w, 2.0, preserve_rng_state=True) if how else pair(x @ w, 2.0)
    return (y**2).sum() + total


def closure(x, w, how):
    v = w * 2
    return run_twice(lambda x: torch.sin(x @ v) + Square.apply(x), x, how=how).sum()


def dropout(x, w, how):
    y = run_twice(lambda x: torch.nn.functional.dropout(x * w[0, 0], 0.5), x, how=how)
    return (y + torch.rand(3, 3)).pow(2).sum()


def sequence(x, w, how):
    layers = [torch.tanh, torch.sin, torch.exp]
    if how:
        return torch.utils.checkpoint.checkpoint_sequential(layers, 2, x @ w, use_reentrant=False).sum()
    return torch.exp(torch.sin(torch.tanh(x @ w))).sum()


def writes(x, w, how):
    count = torch.zeros(())

    def block(x):
        count.add_(1)
        return x @ w

    return run_twice(block, x, how=how).sum() * count


def recorded(x, w, how):
    leaf = w.detach().requires_grad_()
    closure(x, leaf, how).backward(create_graph=True)
    return (leaf.grad * x).sum()


X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3)), jnp.float32)
W = jnp.asarray(np.random.default_rng(1).normal(size=(3, 3)), jnp.float32)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("f", [arguments, closure, dropout, sequence, writes, recorded], ids=lambda f: f.__name__)
def test_derivatives(f):
    """Values, first and second derivatives are those of the plain call: closures, random numbers and writes, too."""

    def derivatives(how):
        def value(x, w):
            with torch.seed(3):
                return torch.jax_view(lambda x, w: f(x, w, how))(x, w)

        first = jax.value_and_grad(value, (0, 1))
        second = jax.grad(lambda x, w: first(x, w)[1][0].sum())
        return jax.jit(lambda x, w: (first(x, w), second(x, w)))(X, W)

    for found, expected in zip(*map(jax.tree.leaves, map(derivatives, (True, False))), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_memory():
    """The compiled gradient takes the memory of jax.checkpoint by hand."""

    def chain(x, w, tanh):
        for _ in range(6):
            x = tanh(x @ w)
        return x

    def loaded(x, w):
        for _ in range(3):
            x = checkpoint(lambda x: chain(x, w, torch.tanh), x, use_reentrant=False)
        return x.sum()

    def by_hand(x, w):
        for _ in range(3):
            x = jax.checkpoint(lambda x: chain(x, w, jnp.tanh))(x)
        return x.sum()

    x = jnp.ones((64, 64))
    programs = [jax.jit(jax.grad(f, (0, 1))).lower(x, x).compile() for f in (torch.jax_view(loaded), by_hand)]
    sizes = [p.memory_analysis().temp_size_in_bytes for p in programs]
    tanhs = [p.as_text().count(" tanh(") for p in programs]
    assert sizes[0] == sizes[1]
    assert tanhs[0] == tanhs[1] > 0


def test_hooks_of_saved_tensors():
    """saved_tensors_hooks change what Functions of tensors save."""

    def f(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.bfloat16(), lambda t: 2 * t.float()):
            y = Square.apply(x)
        with torch.autograd.graph.save_on_cpu():
            return (y + Square.apply(x)).sum()

    expected = 4 * np.array([1, 2]) + 2 * np.array([1.001, 2])
    for g in (jax.grad(torch.jax_view(f)), jax.jit(jax.grad(torch.jax_view(f)))):
        np.testing.assert_allclose(g(jnp.array([1.001, 2])), expected, rtol=1e-6)


def test_parts_of_checkpoints_of_one_s_own():
    """Tensors lose their history and keep whether they require grad, as in PyTorch, with its warning and its error."""
    x = torch.ones(2, requires_grad=True)
    found = torch.utils.checkpoint.detach_variable((x * 2, x.detach(), 3))
    assert [t.requires_grad for t in found[:2]] == [True, False]
    assert (found[0].grad_fn, found[2], torch.autograd._is_checkpoint_valid()) == (None, 3, True)
    with pytest.raises(RuntimeError, match="Only tuple of tensors is supported"):
        torch.utils.checkpoint.detach_variable([x])
    torch.utils.checkpoint.check_backward_validity([3, x])
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        torch.utils.checkpoint.check_backward_validity([3, x.detach()])
