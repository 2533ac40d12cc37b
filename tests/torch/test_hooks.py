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


READS = """
import torch
from torch import nn

def hooked(hook, square=lambda x, y: (y ** 2).sum()):
    def function(x):
        y = x * 2
        for one in (hook if isinstance(hook, tuple) else (hook,)):
            y.register_hook(bind(one, x, y))
        return square(x, y)
    return function

def bind(hook, x, y):
    return lambda g: hook(g, x, y)

ten = hooked(lambda g, x, y: g * 10)
mask = hooked(lambda g, x, y: g * (x > 0))
own = hooked(lambda g, x, y: g * y)
detached = hooked(lambda g, x, y: g * y.detach())
norm = hooked(lambda g, x, y: g / x.norm())
several = hooked((lambda g, x, y: g + 1, lambda g, x, y: g * y))
in_place = hooked(lambda g, x, y: None if g.mul_(2) is g else g)
inner = hooked(lambda g, x, y: g * y, lambda x, y: (y * x).pow(2).sum() + y.sum())

def computed_before(x):
    z, y = torch.sin(x), x * 2
    v = y[:1]
    y.register_hook(lambda g: (g + z) * v)
    return (y ** 2 * z).sum()

def leaf(x):
    x.register_hook(lambda g: g + 1)
    x.register_hook(lambda g: g * x)
    return (x ** 3).sum()

def written_later(x):
    y = x * 2
    y.register_hook(lambda g: g * 10)
    y.mul_(3)
    return (y ** 2).sum()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.handle = nn.Parameter(torch.tensor([2.0, 3.0])), None

    def hook(self, g):
        self.handle.remove()
        return g * self.w * self.kept

    def forward(self, x):
        y = x * self.w
        self.kept = y * 2
        self.handle = y.register_hook(self.hook)
        return y

def module(x):
    return (Net()(x) ** 2).sum()

class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x):
        self.kept = x * 2
        return self.kept * self.w

def backward_hooks(x):
    scale = Scale()
    scale.register_full_backward_pre_hook(lambda module, go: (go[0] * module.kept,))
    scale.register_full_backward_hook(lambda module, gi, go: (gi[0] * module.w.sum() * x + go[0],))
    return (scale(x) ** 2).sum()

def mapped(x):
    scale = Scale()
    scale.register_full_backward_hook(lambda module, gi, go: (gi[0] + go[0],))
    return torch.vmap(scale)(torch.stack([x, x])).sum()

def implicit(x):
    f = lambda z: torch.tanh(0.3 * z + x)
    with torch.no_grad():
        z = torch.zeros_like(x)
        for _ in range(40):
            z = f(z)
    z = f(z)
    z0 = z.clone().detach().requires_grad_()
    f0 = f(z0)

    def hook(grad):
        g = grad
        for _ in range(40):
            (g,) = torch.autograd.grad(f0, z0, g, retain_graph=True)
            g = g + grad
        return g

    z.register_hook(hook)
    return (z * z).sum()

def unknown(x):
    y, kept = x * 2, []
    y.register_hook(lambda g: g * kept[0])
    kept.append(x * 3)
    return (y ** 2).sum()

def by_autograd(x):
    w = x.detach().clone().requires_grad_()
    scale = torch.tensor(3.0).requires_grad_()
    y = w * 2
    y.register_hook(lambda g: g * y * w * scale / 3)
    (g,) = torch.autograd.grad((y ** 2).sum(), w, create_graph=True)
    z = w * 2
    z.register_hook(lambda g: g * 10)
    of_z, of_both = torch.autograd.grad((z ** 2).sum(), z), torch.autograd.grad((z ** 2).sum(), [z, w])
    (g ** 2).sum().backward()
    return g, w.grad, *of_z, *of_both

def moved(x):
    w = x.detach().clone().requires_grad_()
    y = w * 2
    y.register_hook(lambda g: g * y)
    (g,) = torch.autograd.grad((y ** 2).sum(), w, create_graph=True)
    y = w * 3
    (g ** 2).sum().backward()
    return w.grad

def retained(x):
    w = x.detach().clone().requires_grad_()
    y = w * 2
    y.retain_grad()
    y.mul_(3)
    (y * y).sum().backward()
    return y.grad, w.grad

def accumulated(x):
    w, seen = x.detach().clone().requires_grad_(), []
    w.register_hook(lambda g: g * w)

    def after(p):
        seen.append(p.grad * 1)
        with torch.no_grad():
            p.mul_(0.5)

    w.register_post_accumulate_grad_hook(after)
    (w * w).sum().backward()
    kept = w.grad
    (w ** 3).sum().backward()
    return *seen, kept, w.detach()
"""


@pytest.fixture(scope="module")
def reads(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "reads.py"
    path.write_text(READS)
    return torch.load(path)


# The gradient g at [0.3, -0.4] and that of sum(g**2), by PyTorch 2.13; None: raises here.
FIRST_AND_SECOND = {
    "backward_hooks": ([10.08, -42.24], None),
    "ten": ([24.0, -32.0], [38400.0, -51200.0]),
    "mask": ([2.4, -0.0], [38.4, -0.0]),
    "own": ([1.44, 2.56], [16.5888, 52.4288]),
    "detached": ([1.44, 2.56], [8.2944, 26.2144]),
    "norm": ([4.8, -6.4], [153.6, -204.8]),
    "several": ([2.64, 0.96], [44.2848, 11.9168]),
    "in_place": ([4.8, -6.4], [307.2, -409.6]),
    "inner": ([1.5456, -1.7024], [16.5886, 14.9049]),
    "computed_before": ([1.12409, 0.86986], [15.2753, -6.21516]),
    "leaf": ([0.381, -0.592], [0.713766, 0.755584]),
    "written_later": ([216.0, -288.0], [3110400.0, -4147200.0]),
    "module": ([5.76, 51.84], [442.368, -26873.9]),
    "implicit": ([0.893802, -0.967921], None),
}


@pytest.mark.sampled(5)
@both
@pytest.mark.parametrize("name", FIRST_AND_SECOND)
def test_hooks_that_read_tensors(reads, name, wrap):
    """Hooks read tensors of the graph, parameters and other graphs; a second derivative meets them again."""
    x, (first, second) = jnp.array([0.3, -0.4]), FIRST_AND_SECOND[name]
    grad = jax.grad(torch.jax_view(getattr(reads, name)))
    np.testing.assert_allclose(wrap(grad)(x), first, rtol=1e-4, atol=1e-5)
    if wrap is not jax.jit:
        return
    again = jax.jit(jax.grad(lambda x: (grad(x) ** 2).sum()))
    if second is None:
        with pytest.raises(torch.NotSupported, match=r"create_graph|differentiated a second time"):
            again(x)
    else:
        np.testing.assert_allclose(again(x), second, rtol=1e-4, atol=1e-5)


BY_AUTOGRAD = {
    "by_autograd": [[0.432, -1.024], [1.69206, -8.59832], [12.0, -16.0], [1.2, -1.6], [24.0, -32.0]],
    "retained": [[3.6, -4.8], [21.6, -28.8]],
    "accumulated": [[0.18, 0.32], [0.190125, 0.296], [0.190125, 0.296], [0.075, -0.1]],
}


@both
@pytest.mark.parametrize("name", BY_AUTOGRAD)
def test_hooks_within_torch_autograd(reads, name, wrap):
    """Of leaves, of results, after `.grad` has a gradient, and retain_grad before a write: PyTorch's numbers."""
    found = wrap(torch.jax_view(getattr(reads, name)))(jnp.array([0.3, -0.4]))
    np.testing.assert_allclose(jnp.stack(found), BY_AUTOGRAD[name], rtol=1e-4, atol=1e-5)


class Collects(torch.nn.Module):
    """A module that keeps results and gradients, as those that draw saliency maps do."""

    def __init__(self):
        super().__init__()
        self.w, self.seen, self.last = torch.nn.Parameter(torch.ones(3)), [], None

    def forward(self, x):
        self.last = y = x * self.w
        y.register_hook(lambda g: (self.seen.append(g), g * 2)[1])
        return (y * y).sum()


def test_what_a_trace_would_leave_is_refused():
    """A module does not keep tensors of a trace: they are put back, and functional_call drops them."""
    module = Collects()
    for how in (jax.jit, lambda f: f):
        with pytest.raises(torch.NotSupported, match=r"Collects\.last .*holds a traced value after it"):
            how(jax.grad(torch.jax_view(module)))(X)
    assert (module.last, module.seen) == (None, [])
    call = lambda x: torch.func.functional_call(module, {}, (x,))
    with pytest.warns(UserWarning, match="'last'"):
        np.testing.assert_allclose(jax.jit(jax.grad(call))(X), 4 * X, rtol=1e-6)


def test_hooks_that_cannot_be_called(reads):
    """A hook that reads what was computed after it was registered, or one that waits for `.grad` under jax.grad."""
    for how in (lambda f: f, jax.jit, jax.vmap):
        with pytest.raises(torch.NotSupported, match=r"(?s)computed, written to or put.*reads\.py:\d+"):
            how(jax.grad(torch.jax_view(reads.unknown)))(jnp.ones((1, 2)) if how is jax.vmap else jnp.ones(2))
    with pytest.raises(torch.NotSupported, match="computed, written to or put"):
        reads.moved(torch.ones(2))
    with pytest.raises(torch.NotSupported, match=r"(?s)backward hook of Scale that reads what.*reads\.py:\d+"):
        jax.grad(torch.jax_view(reads.mapped))(jnp.ones(2))

    def after(x):
        x.register_post_accumulate_grad_hook(print)
        return (x * x).sum()

    with pytest.raises(torch.NotSupported, match=r"(?s)there is no \.grad.*use register_hook"):
        gradient(after)
    for wrong, error, message in [
        (lambda g: 3, TypeError, "expected Variable, but hook returned 'int'"),
        (lambda g: g[:1], RuntimeError, "hook '<lambda>' has changed the size of value"),
    ]:
        with pytest.raises(error, match=message):
            gradient(lambda x, wrong=wrong: (x.register_hook(wrong), (x * x).sum())[1])
    with pytest.raises(RuntimeError, match="cannot be registered on non-leaf"):
        (torch.ones(2).requires_grad_() * 2).register_post_accumulate_grad_hook(print)


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


def test_state_that_is_loaded_is_a_copy():
    """NumPy arrays of a state dict may change afterwards."""
    with torch.seed(0):
        layer = torch.nn.Linear(64, 64)
    weight = np.zeros((64, 64), np.float32)
    layer.load_state_dict({"weight": weight, "bias": np.zeros(64, np.float32)})
    weight += 1
    assert not np.asarray(torch.jax_view(layer.weight)).any()
