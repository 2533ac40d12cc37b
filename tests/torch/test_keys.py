"""Results of loaded code under JAX's caches and loops: what changes them is an argument, in JAX's key, or refused."""

import contextvars

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch

JIT = pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "outside jit"])


@JIT
def test_second_derivatives_of_writes_through_data_in_a_scan(jit):
    """A write that autograd does not see has the derivative of what it replaces, twice, in a scan as in calls."""

    def step(x):
        y = torch.sin(x) * x
        y.data.mul_(3)
        return y * y

    step = torch.jax_view(step)

    def in_scan(x):
        return jax.lax.scan(lambda c, _: (step(c), None), x, length=2)[0]

    second = [jit(jax.grad(jax.grad(f)))(0.7) for f in (in_scan, lambda x: step(step(x)))]
    np.testing.assert_allclose(second, -211.62, rtol=1e-4)


SOURCE = """
import torch
import torch.nn.functional as F

class Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        mask = torch.rand(x.shape)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask

@torch.library.custom_op("keys::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(x.shape)

@noisy.register_fake
def _(x):
    return torch.empty_like(x)

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x

def drop(x):
    return F.dropout(x, 0.5, True)

def drawn_after(x):
    return drop(Square.apply(Drop.apply(Square.apply(x)))) * torch.rand(x.shape)

def draw_until(x):
    found = []
    total, last, before = x.sum() * 0, torch.zeros(1), torch.zeros(1)
    while total < 0.0 + x.sum():
        before = last
        last = torch.rand(1)
        total = total + 1
    return before, last, torch.rand(1)

def draw_until_break(x):
    last, before = torch.zeros(1), torch.zeros(1)
    for i in range(10):
        before = last
        last = torch.rand(1)
        if x.sum() < i:
            break
    return before, last, torch.rand(1)

def gradient(x):
    x = x.detach().requires_grad_()
    y = Drop.apply(x)
    (g,) = torch.autograd.grad(y.sum(), x)
    return y.detach(), g, Drop.apply(x).detach()

def gradient_of_func(x):
    x = x.detach().requires_grad_()
    y = torch.func.grad(lambda v: (v ** 2 * torch.rand(3)).sum())(x)
    (g,) = torch.autograd.grad(y.sum(), x)
    return y.detach(), g * x.detach(), torch.rand(3)
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = tmp_path_factory.mktemp("torch") / "keys.py"
    path.write_text(SOURCE)
    return torch.load(path)


ONES = jnp.ones(3)


@pytest.mark.parametrize("name", ["drop", "Drop", "noisy", "draw_until"])
@pytest.mark.parametrize(
    "keep",
    [
        jax.jit,
        jax.checkpoint,
        lambda f: lambda x: jax.lax.scan(lambda c, _: (c, f(c)), x, length=2)[1],
        lambda f: jax.grad(jax.jit(lambda x: jnp.sum(jnp.asarray(jax.tree.leaves(f(x))[0])))),
    ],
    ids=["jit", "checkpoint", "scan", "grad of jit"],
)
def test_a_key_from_outside_is_no_constant_of_a_program(loaded, name, keep):
    """A function that JAX keeps does not draw from a key of a block around it: it would draw the same for each key."""
    function = getattr(loaded, name)
    function = keep(torch.jax_view(getattr(function, "apply", function)))
    for _ in range(2):
        with torch.seed(0), pytest.raises(torch.NotSupported, match="pass the key as an argument"):
            function(ONES)
    with pytest.raises(torch.NotSupported):
        function(ONES)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["drop", "Drop", "noisy"])
@pytest.mark.parametrize("keep", [jax.jit, jax.checkpoint, lambda f: f], ids=["jit", "checkpoint", "outside jit"])
def test_a_key_that_is_an_argument(loaded, name, keep):
    """Each key draws its own numbers, the same in each mode, and derivatives have those of the value."""
    function = getattr(loaded, name)
    function = torch.jax_view(getattr(function, "apply", function))

    @keep
    def f(key, x):
        with torch.seed(key):
            return function(x), function(x)

    keys = [jax.random.key(i) for i in range(2)]
    found = [f(k, jnp.ones(20)) for k in keys]
    with torch.seed(keys[1]):
        np.testing.assert_array_equal(found[1], [function(jnp.ones(20)) for _ in range(2)])
    assert len({np.asarray(x).tobytes() for pair in found for x in pair}) == 4
    batched = jax.vmap(f, (0, None))(jnp.stack(keys), jnp.ones(20))
    np.testing.assert_array_equal(np.stack(batched, 1), found)
    if name != "noisy":  # linear in x, so the gradient at ones is the value
        for g in (jax.grad(lambda x, k: f(k, x)[1].sum()), jax.jit(jax.grad(lambda x, k: f(k, x)[1].sum()))):
            np.testing.assert_array_equal(g(jnp.ones(20), keys[1]), found[1][1])
        gradient = jax.grad(lambda x, k: (jax.grad(lambda v: (f(k, v)[1] ** 2).sum() / 2)(x)).sum())
        np.testing.assert_allclose(gradient(jnp.ones(20), keys[1]), found[1][1] ** 2, rtol=1e-6)


KEPT = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "scan": lambda f: lambda x, k: jax.lax.scan(lambda c, k: (f(c, k), None), x, k[None])[0],
    "cond": lambda f: lambda x, k: jax.lax.cond(x[0] > 0, f, f, x, k),
    "vmap": lambda f: lambda x, k: jax.vmap(f, (None, 0))(x, k[None])[0],
}


@pytest.mark.sampled(3)
@JIT
@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT)
def test_what_is_drawn_after_a_function(loaded, keep, jit):
    """Draws after a Function are not its own: derivatives of what JAX keeps are those of the function itself."""

    def f(x, key):
        with torch.seed(key):
            return torch.jax_view(loaded.drawn_after)(x)

    x, key = jnp.arange(1.0, 6), jax.random.key(3)
    wanted = jax.jvp(lambda v: f(v, key), (x,), (x,)), jax.vjp(lambda v: f(v, key), x)[1](x)
    g = jit(keep(f))
    found = jax.jvp(lambda v: g(v, key), (x,), (x,)), jax.vjp(lambda v: g(v, key), x)[1](x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, wanted)
    np.testing.assert_allclose(wanted[0][1], 4 * wanted[0][0], rtol=1e-6)  # a multiple of x ** 4


@JIT
@pytest.mark.parametrize("name", ["gradient", "gradient_of_func"])
def test_what_is_run_again_for_a_gradient_draws_what_it_drew(loaded, name, jit):
    """The gradient of torch.autograd has the random numbers of the value; the next draw has others."""

    def run(key):
        with torch.seed(key):
            return torch.jax_view(getattr(loaded, name))(ONES)

    y, g, after = jit(run)(jax.random.key(0))
    np.testing.assert_allclose(y, g, rtol=1e-6)
    assert not np.allclose(y, after)


@pytest.mark.parametrize("name", ["draw_until", "draw_until_break"])
def test_iterations_of_a_traced_loop_draw_different_numbers(loaded, name):
    """A loop that ends on a traced value draws other numbers in each iteration, and others after it."""

    @jax.jit
    def run(key, x):
        with torch.seed(key):
            return torch.jax_view(getattr(loaded, name))(x)

    found = [float(r[0]) for key in (0, 1) for r in run(jax.random.key(key), ONES)]
    assert len({*found, 0.0}) == 7


@JIT
@pytest.mark.parametrize("keep", [jax.jit, jax.checkpoint, lambda f: f], ids=["jit", "checkpoint", "as it is"])
@pytest.mark.parametrize("first", [True, False], ids=["no_grad first", "no_grad second"])
def test_no_grad_is_in_the_key(keep, jit, first):
    """A function that JAX keeps is constant under torch.no_grad, and only there, whichever call comes first."""
    array_function = keep(torch.jax_view(lambda x: (x * x).sum()))
    tensor_function = torch.torch_view(array_function)

    def without(call, x):
        with torch.no_grad():
            return call(x)

    def loss(x):
        calls = [lambda: without(tensor_function, x), lambda: tensor_function(x)]
        a, b = calls if first else calls[::-1]
        return a() + b()

    def loss_of_arrays(x):
        calls = [lambda: without(array_function, x), lambda: array_function(x)]
        a, b = calls if first else calls[::-1]
        return a() + b()

    for f in (torch.jax_view(loss), loss_of_arrays):
        value, gradient = jit(jax.value_and_grad(f))(jnp.array([3.0, 6.0]))
        np.testing.assert_array_equal([value, *gradient], [90, 6, 12])


def test_set_grad_enabled_as_a_statement_is_in_the_key():
    """torch.set_grad_enabled holds for what JAX keeps until the next one."""
    function = jax.jit(torch.jax_view(lambda x: x * x))
    slope = jax.grad(function)

    def run():
        found = []
        for enabled in (False, True, False, True):
            torch.set_grad_enabled(enabled)
            found.append(float(slope(3.0)))
        return found

    assert contextvars.copy_context().run(run) == [0, 6, 0, 6]


VIEWS = """
import torch

G = torch.arange(400.0)
V = G.view(20, 20)[:2, :2]
P = torch.nn.Parameter(torch.ones(20, 20))
ROW = P[0]
PAIRS = torch.view_as_real(torch.ones(400, dtype=torch.complex64))
HALF = PAIRS[:2]

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("b", torch.ones(400))
        self.half = self.b[:200]

    def forward(self, x):
        return x + self.half.sum()

net = Net()

def of_a_global(x):
    return x * V + V

def of_a_buffer(x):
    return net(x)

def of_pairs(x):
    return x * HALF

def in_a_loop(x):
    v = x.t()
    s, n = x, 0
    while n < 9 and s.abs().sum() < 40:
        s = s + v.sum()
        n += 1
    return s * v

def in_a_counted_loop(x):
    v = x.t()
    s = x
    for i in range(int(x.sum()) // 3):
        s = s + v.sum()
    return s * v

def in_a_branch(x):
    v, w = x.t(), V.t()
    y = x + v + w if x.sum() > 0 else x
    return y * v * w

def differentiated(x):
    y = (ROW * x.sum()).sum()
    (g,) = torch.autograd.grad(y, ROW)
    return g[:2] * x

def hooked(x):
    row = P[1]
    row.register_hook(lambda g: g * 3)
    (g,) = torch.autograd.grad((row * x.sum()).sum(), row)
    return g[:2] * x
"""
WANTED = {
    "of_a_global": [[0, 2], [40, 42]],
    "of_a_buffer": [[201, 201], [201, 201]],
    "of_pairs": [[1, 0], [1, 0]],
    "in_a_loop": [[13, 13], [13, 13]],
    "in_a_counted_loop": [[5, 5], [5, 5]],
    "in_a_branch": [[0, 440], [3, 483]],
    "differentiated": [[4, 4], [4, 4]],
    "hooked": [[12, 12], [12, 12]],
}


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    path = tmp_path_factory.mktemp("torch") / "views.py"
    path.write_text(VIEWS)
    return torch.load(path)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", WANTED)
def test_values_of_a_trace_do_not_outlive_it(views, name):
    """A view of something older that a trace is the first to read is right there, in the next trace and outside."""
    function, x = torch.jax_view(getattr(views, name)), jnp.ones((2, 2))
    batched = jax.vmap(jax.jit(function))(x[None])[0]
    for found in (batched, jax.checkpoint(function)(x), function(x), jax.jit(function)(x), function(x)):
        np.testing.assert_array_equal(found, WANTED[name])


WRITES = """
import torch

G = torch.ones(4)
SEEN = G.view(2, 2)

class Config:
    total = torch.ones(4)

def to_a_global(x):
    return x + G.add_(1)

def of_what_is_traced(x):
    return x + G.add_(x)

def through_a_view(x):
    SEEN[0].mul_(x[0] + 1)
    return x + G

def to_a_default(x, total=torch.ones(4)):
    total += x
    return total * 1

def to_a_class(x):
    Config.total.add_(x)
    return Config.total * 1

def in_a_branch(x):
    if x.sum() > 0:
        G.add_(1)
    return x + G

def in_a_loop(x):
    n = 0
    while n < x.sum():
        G.add_(1)
        n += 1
    return x + G

def before_an_error(x):
    G.add_(x)
    raise ValueError("after a write")

def to_its_own(x):
    total = torch.ones(4)
    for _ in range(2):
        total.add_(x)
        total[:2].mul_(2)
    return total
"""


@pytest.mark.parametrize(
    "name",
    [
        "to_a_global",
        "of_what_is_traced",
        "through_a_view",
        "to_a_default",
        "to_a_class",
        "in_a_branch",
        "in_a_loop",
        "before_an_error",
    ],
)
def test_writes_to_what_is_outside_of_a_program_are_refused(tmp_path, name):
    """A jitted function does not write to globals, defaults and attributes of classes, which stay as they were."""
    path = tmp_path / "writes.py"
    path.write_text(WRITES)
    loaded = torch.load(path)
    function = torch.jax_view(getattr(loaded, name))
    kept = [loaded.G, loaded.SEEN, loaded.Config.total, *(getattr(loaded, name).__defaults__ or ())]
    for keep in (jax.jit, lambda f: jax.jit(jax.grad(lambda x: f(x).sum()))):
        error = (ValueError, "after a write") if name == "before_an_error" else (torch.NotSupported, "would be lost")
        with pytest.raises(error[0], match=error[1]):
            keep(function)(jnp.ones(4))
        for tensor in kept:
            np.testing.assert_array_equal(np.asarray(torch.jax_view(tensor)).ravel(), np.ones(4))
    if name != "before_an_error":
        first, second = function(jnp.ones(4)), function(jnp.ones(4))  # outside jit it is PyTorch's
        assert not np.array_equal(first, second)


@JIT
def test_a_function_writes_to_its_own_tensors(tmp_path, jit):
    """A function may write to tensors that it makes itself."""
    path = tmp_path / "writes.py"
    path.write_text(WRITES)
    found = jit(torch.jax_view(torch.load(path).to_its_own))(jnp.ones(4))
    np.testing.assert_array_equal(found, [10, 10, 3, 3])
