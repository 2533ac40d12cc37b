"""torch.autograd beside PyTorch's values: retain_grad and writes, results returned twice, saved_tensors_hooks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch

SOURCE = """
import torch
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks

def leaf(x):
    return x.detach().clone().requires_grad_()

def retained(x, write, loss=lambda w, y: (y * y).sum()):
    w = leaf(x)
    y = w * 2
    y.retain_grad()
    write(w, y)
    loss(w, y).backward()
    return y.grad, w.grad

def item(w, y):
    y[0] = 5.0

def items(w, y):
    y[0] = w[1]
    y[1] = w[2]

def retained_views(x):
    w = leaf(x)
    y = w * 2
    v = y[:2]
    y.retain_grad()
    v.retain_grad()
    v.mul_(3)
    (v * y[:2]).sum().backward()
    return v.grad, y.grad

def writes(x):
    found = [
        *retained(x, item),
        *retained(x, items),
        retained(x, lambda w, y: y[:2].mul_(3))[0],
        retained(x, lambda w, y: y.view(-1).mul_(2))[0],
        retained(x, lambda w, y: None, used_and_written)[0],
        *retained_views(x),
    ]
    w = leaf(x)
    y = w * 2
    y.retain_grad()
    torch.autograd.grad((y * y).sum(), w)
    return [*found, y.grad]

def used_and_written(w, y):
    z = y * 3
    y[0] = 1
    return (z + y * y).sum()

class Twice(Function):
    @staticmethod
    def forward(ctx, x, of_input):
        y = x if of_input else x * 2
        return y, x * 3, y

    @staticmethod
    def backward(ctx, a, b, c):
        return 2 * a + 20 * b + 200 * c, None

def returned_twice(x):
    found = []
    for of_input in (False, True):
        w = leaf(x)
        a, b, c = Twice.apply(w, of_input)
        (3 * a + b + 5 * c).sum().backward()
        found.append(w.grad)
    return found

class Several(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        y = x * 2
        ctx.mark_non_differentiable(y)
        return x.long(), y, x * 3, x * 4

    @staticmethod
    def backward(ctx, a, b, c, d):
        return c * 3 * (10 if a is None else 1) * (100 if d is None else 1)

def unused(x):
    w = leaf(x)
    a, b, c, d = Several.apply(w)
    c.sum().backward()
    return w.grad, torch.tensor([t.requires_grad for t in (a, b, c, d)])

class Counts(Function):
    @staticmethod
    def forward(ctx, x, counts):
        ctx.counts = counts
        return x * 2

    @staticmethod
    def backward(ctx, g):
        ctx.counts["n"] += 1
        return g * ctx.counts["n"], None

def counted(x):
    counts = {"n": 0}
    return Counts.apply(Counts.apply(x, counts), counts)

class Needs(Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * y + 100 * ctx.needs_input_grad[0] + 10 * ctx.needs_input_grad[1]

    @staticmethod
    def backward(ctx, g):
        return g, g

def needs(x):
    p = (x.detach() * 2).requires_grad_()
    with torch.no_grad():
        views = p[1:], (p * 1).view(3), p.view(3), p.detach()[1:]
        found = [Needs.apply(p, p * 2), Needs.apply(x.detach(), p), Needs.apply(p, p.detach())]
    return [*found, torch.tensor([v.requires_grad for v in views])]

class Doubles(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, g):
        return g.mul_(2)

def written_gradient(x):
    v, w = torch.ones_like(x), leaf(x)
    Doubles.apply(w).backward(v)
    return w.grad, v, *torch.autograd.grad(Doubles.apply(w), w, v), v

class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]

def packed(x):
    w, found = leaf(x), []
    before = Square.apply(w)
    with saved_tensors_hooks(lambda t: [t * 2], lambda t: t[0]):
        with saved_tensors_hooks(lambda t: t * 5, lambda t: t):
            inner = Square.apply(w)
        outer = Square.apply(w)
        found += torch.autograd.grad(before.sum(), w)
    found += [torch.autograd.grad(y.sum(), w, retain_graph=True)[0] for y in (inner, outer)]
    g, = torch.autograd.grad(outer.sum(), w, create_graph=True)
    return [*found, g.detach(), *torch.autograd.grad(g.sum(), w)]

class Box:
    pass

class Accumulates(Function):
    @staticmethod
    def forward(ctx, x, box):
        ctx.box = box
        return x * 2

    @staticmethod
    def backward(ctx, g):
        ctx.box.total.add_(g)
        return g * 2, None

box = Box()
box.total = torch.zeros(3)

def accumulates(x):
    return Accumulates.apply(x, box) + Accumulates.apply(x * 2, box)

def accumulates_inside(x):
    own, w = Box(), leaf(x)
    own.total = torch.zeros(3)
    y = Accumulates.apply(w, own) + Accumulates.apply(w * 2, own)
    y.sum().backward()
    return w.grad, own.total

def returns(x):
    w = leaf(x)
    w.register_post_accumulate_grad_hook(lambda p: p.grad)
    (w * 2).sum().backward()

def hooked_view(x):
    v = (leaf(x) * 2)[:2]
    v.register_hook(lambda g: g * 10)
    v.mul_(3)

def names(x):
    y = Square.apply(leaf(x))
    return y.grad_fn.name(), (y * 2).grad_fn.name(), y.sum().grad_fn.name()

def node(x):
    return (x * 2).grad_fn.register_prehook(lambda g: g)
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "autograd_of.py"
    path.write_text(SOURCE)
    return torch.load(path)


VALUES = {  # by PyTorch 2.13, of [1, 2, 3]
    "writes": [
        [10, 8, 12], [0, 16, 24], [4, 6, 12], [0, 4, 30], [12, 24, 12], [8, 16, 24], [2, 8, 12], [6, 12], [12, 24, 0],
        [4, 8, 12],
    ],
    "returned_twice": [[1620, 1620, 1620], [1026, 1026, 1026]],
    "unused": [[3000, 3000, 3000], [False, False, True, True]],
    "needs": [[108, 132, 172], [12, 18, 28], [104, 116, 136], [True, False, True, False]],
    "written_gradient": [[2, 2, 2], [4, 4, 4], [4, 4, 4], [4, 4, 4]],
    "packed": [[2, 4, 6], [10, 20, 30], [4, 8, 12], [4, 8, 12], [2, 2, 2]],
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_values_of_pytorch(module, name):
    """Outside of jit and within it: `.grad` after writes, the last of equal results, flags, hooks of saved tensors."""
    function, x = torch.jax_view(getattr(module, name)), jnp.array([1.0, 2.0, 3.0])
    for how in (lambda f: f, jax.jit):
        for value, expected in zip(how(function)(x), VALUES[name], strict=True):
            np.testing.assert_allclose(value, expected)


def test_the_graph_names_its_nodes_and_refuses_the_rest(module):
    """The name of a node is PyTorch's; hooks that PyTorch refuses, or moves to another value, raise."""
    x = torch.torch_view(jnp.array([1.0, 2.0, 3.0]))
    assert module.names(x) == ("SquareBackward", "MulBackward0", "SumBackward0")
    with pytest.raises(torch.NotSupported, match=r"(?s)grad_fn.register_prehook.*register_hook"):
        module.node(x.requires_grad_())
    with pytest.raises(torch.NotSupported, match=r"(?s)a write to a view that has hooks.*register them"):
        module.hooked_view(x)
    with pytest.raises(RuntimeError, match="post accumulate grad hooks should return None"):
        module.returns(x)


def test_backward_adds_to_a_tensor_that_is_no_argument(module):
    """Outside of jit the sum is there afterwards; under jit a tensor from outside raises, and keeps its value."""
    x, gradient = jnp.array([1.0, 2.0, 3.0]), jax.grad(lambda x: torch.jax_view(module.accumulates)(x).sum())
    for how in (lambda f: f, jax.jit):
        for value, expected in zip(how(torch.jax_view(module.accumulates_inside))(x), (6, 2), strict=True):
            np.testing.assert_array_equal(value, 3 * [expected])
    np.testing.assert_array_equal(gradient(x), [6, 6, 6])
    with pytest.raises(torch.NotSupported, match=r"(?s)a write of Accumulates.backward .* lost.*autograd_of.py:\d+"):
        jax.jit(gradient)(x)
    np.testing.assert_array_equal(module.box.total.numpy(), [2, 2, 2])


def test_backward_changes_an_object_on_ctx(module):
    """The caller's dict is the one on ctx where gradients have concrete values; under jit a change warns."""
    gradient = jax.grad(lambda x: torch.jax_view(module.counted)(x).sum())
    np.testing.assert_array_equal(gradient(jnp.ones(3)), [2, 2, 2])  # by PyTorch 2.13
    with pytest.warns(UserWarning, match="Counts.backward changed ctx.counts where JAX traces it: the caller"):
        jax.jit(gradient)(jnp.ones(3))


def test_a_gradient_whose_trace_has_ended():
    """`.grad` that `.backward()` left in a traced function raises by name when it is read; zero_grad clears it."""
    with torch.seed(0):
        net = torch.nn.Linear(3, 2)

    @jax.jit
    def step(x):
        net(torch.torch_view(x)).sum().backward()
        return torch.jax_view(net.weight.grad)

    np.testing.assert_array_equal(step(jnp.ones(3, jnp.float32)), np.ones((2, 3)))
    rows = jnp.ones((2, 3), jnp.float32)
    for use in (lambda: net.weight.grad, lambda: step(rows), lambda: net(torch.ones(3)).sum().backward()):
        with pytest.raises(torch.NotSupported, match=r"left in a function that JAX traced.*\n  fix: take the gradient"):
            use()
    net.zero_grad()
    net(torch.ones(3)).sum().backward()
    np.testing.assert_array_equal(torch.jax_view(net.weight.grad), np.ones((2, 3)))
