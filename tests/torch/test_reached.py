"""Functions that reach parameters and buffers without their being arguments."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch

SOURCE = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n, n))

    def forward(self, x):
        return torch.tanh(x @ self.weight)

class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, blocks):
        with torch.no_grad():
            for block in blocks:
                x = block(x)
        ctx.y, ctx.blocks = x.detach(), blocks
        return x

    @staticmethod
    def backward(ctx, dy):
        y = ctx.y
        for block in ctx.blocks[::-1]:
            y, dy = block.backward_pass(y, dy)
        return dy, None

class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.f, self.g = Layer(n), Layer(n)

    def forward(self, x):
        x1, x2 = torch.chunk(x, 2, dim=1)
        y1 = x1 + self.f(x2)
        return torch.cat([y1, x2 + self.g(y1)], dim=1)

    def backward_pass(self, y, dy):
        (y1, y2), (dy1, dy2) = torch.chunk(y, 2, dim=1), torch.chunk(dy, 2, dim=1)
        with torch.enable_grad():
            y1.requires_grad = True
            gy1 = self.g(y1)
            torch.autograd.backward(gy1, dy2)
        with torch.no_grad():
            x2 = y2 - gy1
            dx1 = dy1 + y1.grad
            y1.grad = None
        with torch.enable_grad():
            x2.requires_grad = True
            fx2 = self.f(x2)
            torch.autograd.backward(fx2, dx1)
        with torch.no_grad():
            return torch.cat([y1 - fx2, x2], dim=1), torch.cat([dx1, dy2 + x2.grad], dim=1)

class Reversible(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(2), Block(2)])

    def forward(self, x):
        return Reverse.apply(x, self.blocks)

class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x, *weights):
        ctx.function, ctx.x, ctx.weights = function, x, weights
        with torch.no_grad():
            return function(x.detach())

    @staticmethod
    def backward(ctx, dy):
        with torch.enable_grad():
            x = ctx.x.detach().requires_grad_()
            ctx.x.grad = dy  # of an activation, where nobody reads it
            return (None, *torch.autograd.grad(ctx.function(x), (x, *ctx.weights), dy))

class Recomputed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer(4)

    def forward(self, x):
        return Recompute.apply(self.layer.forward, x, self.layer.weight)

class Bank(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))
        self.register_buffer("rows", torch.zeros(2, 4))
        module = self

        class Look(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                module.rows[0] += x.mean(0)
                return x @ module.rows.t()

            @staticmethod
            def backward(ctx, g):
                module.weight.grad = (g.sum(1, keepdim=True) * ctx.saved_tensors[0]).sum(0)
                return g @ module.rows

        self.look = Look

    def forward(self, x):
        return self.look.apply(x)

class Warns(Bank):
    def __init__(self):
        super().__init__()
        module = self

        class Write(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * module.rows[0]

            @staticmethod
            def backward(ctx, g):
                module.rows[1] = g.mean(0)
                return g * module.rows[0]

        self.look = Write

class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        ctx.save_for_backward(x)
        if isinstance(layer, Counts):
            layer.calls.numpy()[0] += 1
        return x * layer.weight

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (x * ctx.layer.weight).backward(g)
        return x.grad, None

class Runs(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), 3.0))

    def forward(self, x):
        return Again.apply(x, self)

class Counts(Runs):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

class Updates(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rows, how: str):
        ctx.rows = rows.clone() if how == "copied" else rows
        if how == "saved":
            ctx.save_for_backward(x, rows)
            del ctx.rows
        return x @ rows.t()

    @staticmethod
    def backward(ctx, g):
        rows = ctx.saved_tensors[1] if ctx.saved_tensors else ctx.rows
        gx = g @ rows
        rows[1] = 2.0
        return gx, None, None
"""


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    path = tmp_path_factory.mktemp("modules") / "reached.py"
    path.write_text(SOURCE)
    return torch.load(path)


def reversible(state, x):
    """Return the two blocks in plain JAX."""
    for i in range(2):
        f, g = state[f"blocks.{i}.f.weight"], state[f"blocks.{i}.g.weight"]
        x1, x2 = jnp.split(x, 2, 1)
        y1 = x1 + jnp.tanh(x2 @ f)
        x = jnp.concatenate([y1, x2 + jnp.tanh(y1 @ g)], 1)
    return x, {}


def bank(state, x):
    """Return the look-up and the new rows; the gradient for the weight is what backward leaves in `.grad`."""
    rows = jax.lax.stop_gradient(state["rows"].at[0].add(x.mean(0)))
    zero = jnp.ones((3, 2)) * (x @ state["weight"])[:, None]
    return x @ rows.T + zero - jax.lax.stop_gradient(zero) - (x - jax.lax.stop_gradient(x)) @ state["weight"][
        :, None
    ], {"rows": rows}


CASES = {
    "Reversible": reversible,
    "Recomputed": lambda state, x: (jnp.tanh(x @ state["layer.weight"]), {}),
    "Bank": bank,
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("how", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_left_in_grad_are_the_parameters_gradients(layers, name, how):
    """Outputs, new buffers and the gradients of input and parameters are those of plain JAX."""
    model = getattr(layers, name)()
    rng = np.random.default_rng(3)
    state = {k: jnp.asarray(rng.normal(size=v.shape), jnp.float32) for k, v in model.state_dict().items()}
    x = jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)

    def run(call):
        def loss(state, x):
            y, new = call(state, x)
            return (y**2).sum(), (y, new)

        return how(jax.value_and_grad(loss, (0, 1), has_aux=True))(state, x)

    found = run(lambda state, x: torch.func.stateful_call(model, state, (x,)))
    wanted = run(CASES[name])
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert all(p.grad is None and not np.asarray(p.detach()).any() for p in model.parameters())


def test_a_write_in_backward_warns(layers):
    """JAX runs backward when the new state has been returned: what it writes to a buffer is taken back, and said."""
    model = layers.Warns()
    with pytest.warns(UserWarning, match=r"Write\.backward writes to a parameter or buffer"):
        jax.grad(lambda x: torch.func.functional_call(model, {"rows": jnp.ones((2, 4))}, (x,)).sum())(jnp.ones((3, 4)))
    assert not model.rows.numpy().any()


@pytest.mark.parametrize("how", ["kept", "saved", "copied"])
def test_a_write_of_backward_to_an_argument(layers, how):
    """A memory bank among the arguments, which backward updates, is the caller's, as in PyTorch; under jit it warns."""

    def step(x):
        rows = torch.ones(2, 4)
        (gradient,) = torch.autograd.grad(layers.Updates.apply(x, rows, how).sum(), x)
        return gradient, rows

    gradient, rows = step(torch.ones(3, 4, requires_grad=True))
    assert gradient.tolist() == [[2.0] * 4] * 3
    np.testing.assert_array_equal(rows.numpy(), [[1.0] * 4, [1.0 if how == "copied" else 2.0] * 4])
    warns = pytest.warns(UserWarning, match=r"Updates\.backward writes to an argument of forward where JAX traces")
    with nullcontext() if how == "copied" else warns:
        _, rows = jax.jit(torch.jax_view(lambda x: step(x.detach().requires_grad_())))(jnp.ones((3, 4), jnp.float32))
    np.testing.assert_array_equal(rows, 1)


def on_tape(model):
    def run(k):
        x = torch.full((2,), k, requires_grad=True)
        y = model(x).sum()
        gradients = torch.autograd.grad(y, [x, model.weight])
        return y.item(), [g.tolist() for g in gradients]

    return run


def by_jax(model):
    def run(k):
        value, gradient = differentiate(jnp.full(2, k))
        return float(value), [gradient.tolist(), [k, k]]

    differentiate = jax.value_and_grad(lambda x: model(x).sum())
    return run


def by_jit(model):
    return by_jax(jax.jit(model))


@pytest.mark.parametrize("way", [on_tape, by_jax, by_jit])
def test_threads_differentiate_one_module(layers, way):
    """Backward gives parameters other values in its own thread only, and their `.grad` too."""
    model, barrier = layers.Runs(), threading.Barrier(8)

    def run(k):
        barrier.wait()
        return [way(model)(float(k)) for _ in range(5)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(run, range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert found == [[(6.0 * k, [[3.0, 3.0], [k, k]])] * 5 for k in range(8)]
    assert model.weight.grad is None
    assert model.weight.tolist() == [3.0, 3.0]


def test_numpy_writes_to_a_buffer_that_forward_reaches(layers):
    """NumPy shares memory with a buffer inside of a Function's forward, as it does outside, before and after a call."""
    model = layers.Counts()
    seen = model.calls.numpy()
    for k in (1.0, 2.0):
        model(torch.ones(2)).sum()
        assert (model.calls.item(), seen.item()) == (k, k)
    seen[0] = 5
    model(torch.ones(2)).sum()
    assert model.calls.item() == 6
