"""Tensors that a Function gets in a list, dict or object, and Python values that change between two runs of forward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch

SOURCE = """
import collections
import torch
from torch.autograd import Function

class Box:
    pass

def box(w):
    made = Box()
    made.w = w
    return made

class Scale(Function):
    @staticmethod
    def forward(ctx, x, h, read):
        ctx.h, ctx.read = h, read
        return x * read(h)
    @staticmethod
    def backward(ctx, g):
        return g * ctx.read(ctx.h), None, None

HOLDERS = {
    "list": (lambda w: [w], lambda h: h[0]),
    "dict": (lambda w: {"a": (w, 3), "b": None}, lambda h: h["a"][0]),
    "view": (lambda w: [w[0]], lambda h: h[0]),
    "object": (box, lambda h: h.w),
    "deque": (lambda w: collections.deque([w]), lambda h: h[0]),
    "closure": (lambda w: lambda: w, lambda h: h()),
}

def written(x, how):  # the memory is written to after forward
    w = x.detach() * 2
    hold, read = HOLDERS[how]
    y = Scale.apply(x, hold(w), read)
    w.mul_(5)
    return y.sum()

def replaced(x, how):  # the item is replaced after forward
    w = x.detach() * 2
    h = [w] if how == "list" else box(w)
    y = Scale.apply(x, h, HOLDERS[how][1])
    if how == "list":
        h[0] = w * 5
    else:
        h.w = w * 5
    return y.sum()

class Save(Function):
    @staticmethod
    def forward(ctx, x, ws):
        ctx.save_for_backward(x, *ws)
        ctx.saved_data["power"] = 2
        return x * x * ws[0]
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * ctx.saved_data["power"] * x * w, None

def saved(x):
    w = x * 2
    return Save.apply(w, [w]).sum() + Save.apply(x, [w]).sum()

def saved_twice(x):  # PyTorch differentiates what backward reads from the list
    return (torch.autograd.grad(saved(x), x, create_graph=True)[0] ** 2).sum()

class Detached(Function):
    @staticmethod
    def forward(ctx, x, ds, how):
        d = x.detach() if ds is None else ds[0]
        ctx.save_for_backward(*((x, d) if how == 0 else (d, x)))
        return x * d
    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * a * b, None, None

def detached(x):  # what detach() made is a constant of second derivatives, in forward and outside
    y = x * 1
    total = sum(Detached.apply(y, ds, how) for how in (0, 1) for ds in (None, [y.detach()])).sum()
    return (torch.autograd.grad(total, x, create_graph=True)[0] ** 2).sum()

class Write(Function):
    @staticmethod
    def forward(ctx, x, ws):
        ws[0].add_(1)
        return x * ws[0]
    @staticmethod
    def backward(ctx, g):
        return g, None

def writes(x):
    w = x.detach() * 2
    return (Write.apply(x, [w]) * w).sum()

class Count(Function):
    @staticmethod
    def forward(ctx, x, state):
        ctx.state = state
        return x * 2
    @staticmethod
    def backward(ctx, g):
        n = ctx.state[0]
        ctx.state[0] = n + 1
        ctx.state[1].add_(1)
        return g * n * ctx.state[1], None

class Tally(Save):
    @staticmethod
    def forward(ctx, x, ws):
        ws.append(len(ws))
        return Save.forward(ctx, x, ws[:1])

def tallies(x):
    return Tally.apply(x, [x.detach()]).sum()

def of_list(x):
    w, ds = x * 3, [x.detach(), x.detach() * 2]
    return Scale.apply(x, lambda: sum(ds) + w, lambda h: h()).sum()

def replaced_twice(x):
    h = box(x * 2)
    y = Scale.apply(x, h, lambda h: h.w)
    h.w = x * 5
    return (torch.autograd.grad(y.sum(), x, create_graph=True)[0] ** 2).sum()

def counts(x):
    state = [torch.tensor(3.0), torch.ones(2)]
    return (Count.apply(x, state) + Count.apply(x, state)).sum()

class Expose(Function):
    @staticmethod
    def forward(ctx, x, out):
        ctx.t = x * 2
        out.append(ctx.t)
        return x * ctx.t
    @staticmethod
    def backward(ctx, g):
        return g * ctx.t, None

def exposes(x):
    out = []
    y = Expose.apply(x, out)
    out[0].mul_(3)
    return y.sum()

factor, shift = 3.0, torch.tensor(2.0)

class Outside(Function):
    @staticmethod
    def forward(ctx, x, name):
        t = x * (factor if name == "factor" else shift)
        ctx.save_for_backward(t)
        return t * t
    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None

def rebinds(x, name):
    global factor, shift
    factor, shift = 3.0, torch.tensor(2.0)
    y = Outside.apply(x, name)
    if name != "nothing":
        factor, shift = 7.0, torch.tensor(9.0)
    return y.sum()

class Asks(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2 if ctx.needs_input_grad[0] else x + x
    @staticmethod
    def backward(ctx, g):
        return g * 2

def asks(x):
    return Asks.apply(x).sum()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "containers.py"
    path.write_text(SOURCE)
    return torch.load(path)


def _differentiate(function, *args):
    w = torch.torch_view(X).detach().clone().requires_grad_()
    return torch.autograd.grad(function(w, *args), w)[0].numpy()


X = jnp.array([0.5, -1.5])
# By PyTorch 2.13.
WRITTEN = {
    "list": [5, -15],
    "dict": [5, -15],
    "view": [5, 5],
    "object": [5, -15],
    "deque": [5, -15],
    "closure": [5, -15],
}


def test_backward_finds_what_was_written_to_a_tensor_in_a_container(source):
    """Memory of a list, dict, object or closure is the caller's; where JAX is done with it: raises."""
    cases = [(source.written, how, expected) for how, expected in WRITTEN.items()]
    cases += [(source.replaced, how, [5, -15]) for how in ("list", "object")]
    total = torch.jax_view(lambda x: torch.stack([f(x, how) for f, how, _ in cases]))
    rows = jax.jit(jax.jacrev(total))(X)
    for i, (function, how, expected) in enumerate(cases):
        np.testing.assert_allclose(_differentiate(function, how), expected)
        np.testing.assert_allclose(rows[i], expected)
        with pytest.raises(torch.NotSupported, match=r"(?s)kept on ctx.*after a write"):
            jax.grad(jax.jit(torch.jax_view(lambda x, f=function, how=how: f(x, how))))(X)


def test_tensors_in_containers_have_second_derivatives_and_no_first(source):
    """As in PyTorch: gradients do not flow into a list, but those of backward do; forward's writes reach the caller."""
    expected = {"saved": [5, 45], "saved_twice": [200, -5400], "writes": [2, -2]}
    for how in (lambda f: f, jax.jit):
        found = how(jax.grad(torch.jax_view(source.saved)))(X)
        np.testing.assert_allclose(found, expected["saved"])
        np.testing.assert_allclose(how(jax.grad(torch.jax_view(source.writes)))(X), expected["writes"])
    np.testing.assert_allclose(_differentiate(source.saved), expected["saved"])
    np.testing.assert_allclose(_differentiate(source.saved_twice), expected["saved_twice"])
    np.testing.assert_allclose(_differentiate(source.writes), expected["writes"])
    for function, values in ((source.detached, [4, -108]), (source.of_list, [3, -9])):
        np.testing.assert_allclose(_differentiate(function), values)
        np.testing.assert_allclose(jax.jit(jax.grad(torch.jax_view(function)))(X), values)
    with pytest.raises(torch.NotSupported, match=r"a second derivative that reads what was put on ctx after forward"):
        _differentiate(source.replaced_twice)


def test_backward_changes_a_list_of_tensors_on_ctx(source):
    """The caller's list is that on ctx, so a second backward finds what the first left; under jit: warns."""
    expected = _differentiate(source.counts)
    np.testing.assert_allclose(expected, [18, 18])  # by PyTorch 2.13
    np.testing.assert_allclose(jax.grad(torch.jax_view(source.counts))(X), expected)
    with pytest.warns(UserWarning, match=r"Count\.backward changed ctx\.state where JAX traces it"):
        jax.jit(jax.grad(torch.jax_view(source.counts)))(X)
    with pytest.warns(UserWarning, match=r"Tally\.forward, which runs again .* a list or dict among its arguments"):
        jax.grad(jax.jit(torch.jax_view(source.tallies)))(X)


def test_a_tensor_that_forward_puts_into_an_argument(source):
    """It is the caller's outside of JAX's traces; a traced one is refused by name and line."""
    np.testing.assert_allclose(_differentiate(source.exposes), [3, -9])
    with pytest.raises(
        torch.NotSupported, match=r"(?s)Expose\.forward.*into an argument.*return the tensor.*containers\.py:"
    ):
        jax.jit(torch.jax_view(source.exposes))(X)


def test_forward_runs_again_on_other_values_from_outside(source):
    """A second run of forward that computes with other globals than the first raises; another branch by ctx is none."""
    for name in ("factor", "shift", "nothing"):
        total = torch.jax_view(lambda x, name=name: source.rebinds(x, name))
        k = 3.0 if name == "factor" else 2.0
        np.testing.assert_allclose(jax.jit(jax.grad(total))(X), k * X)
        if name == "nothing":
            np.testing.assert_allclose(jax.grad(jax.jit(total))(X), k * X)
            continue
        with pytest.raises(
            torch.NotSupported, match=r"(?s)Outside\.forward runs again .*other values.*argument of apply"
        ):
            jax.grad(jax.jit(total))(X)
    np.testing.assert_allclose(jax.grad(jax.jit(torch.jax_view(source.asks)))(X), [2, 2])
