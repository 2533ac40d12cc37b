"""torch.autograd.Function as it is written: values, gradients, second derivatives, ctx, and launches of kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from fnjax import torch

SOURCE = """
import torch
import triton
import triton.language as tl


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, beta=1.0):
        ctx.save_for_backward(x)
        ctx.beta = beta
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(ctx.beta * x)
        return g * (s + ctx.beta * x * s * (1 - s)), None


class Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.tanh(x @ w)

    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            x, w = (t.detach().requires_grad_() for t in ctx.saved_tensors)
            y = torch.tanh(x @ w)
        return torch.autograd.grad(y, (x, w), g)


class RecomputedTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.tanh(x @ w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        with torch.enable_grad():
            y = torch.tanh(x @ w)
            (grad,) = torch.autograd.grad(y, w, g, create_graph=True)
        return None, grad


class KeptOnSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        with torch.enable_grad():
            y = torch.tanh(x @ w)
        ctx.save_for_backward(w, y)
        return y.detach()

    @staticmethod
    def backward(ctx, g):
        w, y = ctx.saved_tensors
        return (None, *torch.autograd.grad(y, w, g))


class KeptOnCtx(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.w = w.detach().requires_grad_()
        with torch.enable_grad():
            ctx.parts = [torch.tanh(row @ ctx.w) for row in x]
        ctx.save_for_backward(ctx.w)
        return torch.stack([part.detach() for part in ctx.parts])

    @staticmethod
    def backward(ctx, g):
        torch.autograd.backward(ctx.parts, list(g))
        return None, ctx.w.grad


class Closures(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.size = lambda meta: (x.shape[0] * meta["n"],)
        ctx.parts = [lambda g: g * w]
        return x * w

    @staticmethod
    def backward(ctx, g):
        assert ctx.size({"n": 3}) == (3 * g.shape[0],)
        return ctx.parts[0](g), None


class OnlyWhatIsNeeded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x if scale.requires_grad else None, scale)
        return x * scale

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return g * scale, (g * x).sum() if ctx.needs_input_grad[1] else None


class AddInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        x.add_(y)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g, g


class Stale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * 2
        ctx.save_for_backward(y)
        y.add_(1)
        return y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


@triton.jit
def scale_rows(x, w, out, n, row, column, BLOCK: tl.constexpr):
    i, c = tl.program_id(0), tl.arange(0, BLOCK)
    mask = c < n
    tl.store(out + i * n + c, tl.load(x + i * row + c * column, mask=mask) * tl.load(w + c, mask=mask), mask=mask)


def launch(x, w):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    scale_rows[(x.shape[0],)](x, w, out, x.shape[1], x.stride(0), x.stride(1), BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return launch(x, w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return launch(g, w), (g * x).sum(0)
"""


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "layers.py"
    path.write_text(SOURCE)
    return torch.load(path)


X = jnp.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])


def test_values_and_derivatives_of_every_order(layers):
    """Apply is a JAX function: jit, grad, vmap and the Hessian give what the twin in plain JAX gives."""
    twin = lambda x: x * jax.nn.sigmoid(2.0 * x)
    ours = lambda x: layers.Swish.apply(x, 2.0)
    np.testing.assert_allclose(ours(X), twin(X), rtol=1e-6)
    both = [jax.jit(jax.vmap(jax.grad(lambda row, f=f: f(row).sum())))(X) for f in (ours, twin)]
    np.testing.assert_allclose(*both, rtol=1e-5)
    np.testing.assert_allclose(*[jax.hessian(lambda x, f=f: f(x).sum())(X[0]) for f in (ours, twin)], atol=1e-6)
    assert layers.Swish.apply is layers.Swish.apply


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["Recomputed", "RecomputedTwice", "KeptOnSaved", "KeptOnCtx"])
def test_recomputed_graphs(layers, name):
    """torch.autograd.grad within backward replays what it or forward recorded; without create_graph no second order."""
    w = jnp.arange(6.0).reshape(3, 2) / 5
    loss = lambda f: lambda w: (f(X, w) ** 2).sum()
    twin, ours = (lambda x, w: jnp.tanh(x @ w)), getattr(layers, name).apply
    np.testing.assert_allclose(*[jax.jit(jax.grad(loss(f)))(w) for f in (ours, twin)], rtol=1e-5)
    if name != "RecomputedTwice":
        with pytest.raises(torch.NotSupported, match=r"(?s)create_graph.*layers\.py:\d+"):
            jax.hessian(loss(ours))(w)
    else:
        np.testing.assert_allclose(*[jax.hessian(loss(f))(w) for f in (ours, twin)], rtol=1e-4, atol=1e-5)


def test_functions_on_ctx_close_over_tensors(layers):
    """A function on ctx reads in backward the tensors that it closed over in forward."""
    w = jnp.array([2.0, 3.0, 4.0])
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: layers.Closures.apply(x, w).sum()))(X), w + 0 * X)


def test_requires_grad_is_what_is_differentiated(layers):
    """Only what is differentiated requires grad, so that layers which save only where it does are right."""
    scale = jnp.asarray(3.0)
    f = lambda x, s: layers.OnlyWhatIsNeeded.apply(x, s).sum()
    np.testing.assert_allclose(jax.grad(f)(X, scale), jnp.full(X.shape, 3.0))
    np.testing.assert_allclose(jax.jit(jax.grad(f, 1))(X, scale), X.sum(), rtol=1e-6)


def test_forwards_in_place_change_the_caller_s_tensor(layers):
    """A Function that writes to its input changes the tensor that it was given, and returns it."""
    x, y = torch.torch_view(X), torch.torch_view(X + 1)
    assert layers.AddInPlace.apply(x, y) is x
    np.testing.assert_array_equal(x.array, X + X + 1)
    np.testing.assert_array_equal(jax.grad(lambda x: layers.AddInPlace.apply(x, X).sum())(X), np.ones((2, 3)))


def test_saved_tensors_are_what_they_hold_when_forward_returns(layers):
    """Backward gets a saved tensor as forward left it, as in PyTorch 2.13, which saves after forward."""
    found = jax.grad(lambda x: layers.Stale.apply(x).sum())(X)
    np.testing.assert_allclose(found, 2 * X + 1, rtol=1e-6)


def test_tensors_in_tensors_out(layers):
    """Apply gives tensors for tensors, and autograd of the source differentiates through it."""
    x = torch.torch_view(X).detach().requires_grad_()
    y = layers.Swish.apply(x)
    assert isinstance(y, torch.Tensor)
    y.sum().backward()
    expected = jax.grad(lambda x: (x * jax.nn.sigmoid(x)).sum())(X)
    np.testing.assert_allclose(x.grad.array, expected, rtol=1e-5)


def test_launches_write_into_tensors(layers):
    """A launcher stays as it is: its kernel writes into the tensors, and strides of views are true."""
    w = jnp.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(layers.Scaled.apply(X, w), X * w)
    grads = jax.jit(jax.grad(lambda x, w: layers.Scaled.apply(x, w).sum(), (0, 1)))(X, w)
    np.testing.assert_allclose(grads[0], jnp.broadcast_to(w, X.shape))
    np.testing.assert_allclose(grads[1], X.sum(0), rtol=1e-6)
    turned = torch.jax_view(lambda x, w: layers.launch(x.t(), w))
    np.testing.assert_allclose(jax.jit(turned)(X.T, w), X * w)


def test_gradient_mode():
    """Under no_grad and through detach nothing is differentiated; item is a constant."""

    def loss(x):
        with torch.no_grad():
            a = x * 3
        return (x * a + x * x.detach() + x * x.sum().item()).sum()

    x = jnp.array([1.0, 2.0])
    np.testing.assert_allclose(jax.grad(torch.jax_view(loss))(x), 3 * x + x + x.sum())


def test_random_numbers_need_a_key():
    """Draws without a key are refused; with one they are reproducible, and differ from each other."""
    with pytest.raises(torch.NotSupported, match="need a key"):
        torch.rand(2)
    with torch.seed(0):
        a, b = torch.rand(3), torch.rand(3)
    with torch.seed(jax.random.key(0)):
        np.testing.assert_array_equal(torch.rand(3).array, a.array)
    assert not np.array_equal(a.array, b.array)


def test_types():
    """Promotion is PyTorch's: tensors with axes, then those without, then numbers; dtypes equal NumPy's and JAX's."""
    half, whole = torch.ones(2, dtype=torch.float16), torch.arange(2)
    assert (half * torch.tensor(2.0)).dtype is torch.float16
    assert (whole * 2.5).dtype is torch.float32
    assert (whole / 2).dtype is torch.float32
    assert whole.sum().dtype is torch.int64
    assert torch.result_type(half, torch.ones(2)) is torch.float32
    assert torch.float32 == jnp.float32
    assert np.float16 == torch.half
    assert torch.promote_types(torch.uint8, torch.int8) is torch.int16


def test_wrong_arguments_name_the_class(layers):
    """A call that does not fit says which class, and what it takes."""
    with pytest.raises(
        TypeError,
        match=r"Swish\.forward\(\) missing 1 required positional argument: 'x'\n.*Swish\.apply\(x, beta=\.\.\.\)",
    ):
        layers.Swish.apply()
    with pytest.raises(TypeError, match=r"too many positional arguments\)\n.*Swish\.apply\("):
        layers.Swish.apply(jnp.ones(2), 1.0, 2.0)
    with pytest.raises(TypeError, match=r"call Swish\.apply"):
        layers.Swish(jnp.ones(2))


@pytest.mark.parametrize(("missing", "written"), [("forward", "foward"), ("backward", "backwards")])
def test_a_misspelt_method_is_suggested(missing, written):
    """A missing method names the one that may be meant."""
    methods = {"forward": lambda ctx, x: x * 2, "backward": lambda ctx, g: g}
    methods[written] = methods.pop(missing)
    cls = type("Fn", (torch.autograd.Function,), {n: staticmethod(m) for n, m in methods.items()})
    with pytest.raises(NotImplementedError, match=f"Fn has '{written}': did you mean '{missing}'"):
        jax.grad(cls.apply)(1.0)


def make_function(returned, **methods):
    """Return a class whose backward returns that."""
    body = {"forward": staticmethod(lambda ctx, x, w: x * w), "backward": staticmethod(lambda ctx, g: returned(g))}
    return type("Product", (torch.autograd.Function,), body | methods)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda g: g, r"incorrect number of gradients \(expected 2, got 1\)\n.*\(x, w\)"),
        (lambda g: (g, None, g), r"incorrect number of gradients \(expected 2, got 3\)"),
        (lambda g: (g[:2], None), r"invalid gradient at index 0 - got \[2\] but expected .* \[3\]\n.*shape of .*'x'"),
    ],
)
def test_gradients_that_do_not_fit_are_counted_as_in_pytorch(returned, message):
    """The errors count the arguments of the class, and name them."""
    apply = make_function(returned).apply
    with pytest.raises(fnjax.errors.GradientError, match=f"Product.backward returned an {message}"):
        jax.grad(lambda x: apply(x, jnp.ones(3)).sum())(jnp.ones(3))


def test_a_gradient_of_no_tensor_is_refused():
    """The position is that among the class's arguments; None more than arguments are allowed, as in PyTorch."""
    apply = make_function(lambda g: (g * 2.0, 1.0)).apply
    with pytest.raises(fnjax.errors.GradientError, match=r"None at position 2, .*\n.*None for .*'w'"):
        jax.grad(lambda x: apply(x, 2.0).sum())(jnp.ones(3))
    apply = make_function(lambda g: (g[None].expand(4, 3) / 2, None, None)).apply
    np.testing.assert_allclose(jax.grad(lambda x: apply(x, 2.0).sum())(jnp.ones(3)), 2.0)


def test_backward_counts_named_arguments_and_no_numbers():
    """Up to the last one that is named, as in PyTorch; that of a number which JAX traces is None, too."""
    cls = make_function(lambda g: (g * 2, None), forward=staticmethod(lambda ctx, x, a=1, b=2: x * a * b))
    gradient = jax.grad(lambda x: cls.apply(x, a=3).sum())
    np.testing.assert_allclose(gradient(jnp.ones(3)), 2.0)
    cls.backward = staticmethod(lambda ctx, g: (g * 5, None))
    np.testing.assert_allclose(gradient(jnp.ones(3)), 5.0)
    apply = make_function(lambda g: (g, g.sum())).apply
    loss = torch.jax_view(lambda x: apply(x, x.max().item()).sum())
    with pytest.raises(fnjax.errors.GradientError, match=r"None at position 2, .*\n.*None for .*'w'"):
        jax.jit(jax.grad(loss))(jnp.ones(3))


def test_a_class_may_name_the_jvp_of_its_base():
    """PyTorch's Function has one, which raises; forward mode here comes from backward."""
    apply = make_function(lambda g: (g * 3, None), jvp=torch.autograd.Function.jvp).apply
    np.testing.assert_allclose(jax.grad(lambda x: apply(x, 2.0).sum())(jnp.ones(3)), 3.0)
    with pytest.raises(NotImplementedError, match="You must implement the jvp function"):
        torch.autograd.Function.jvp(None, 1)


DETAILS = """
import torch
from torch import nn
from torch.autograd import Function

class Passed(Function):
    @staticmethod
    def forward(ctx, x, a=1.0, b=None, *, c=False):
        return x * a

    @staticmethod
    def backward(ctx, g):
        assert len(ctx.needs_input_grad) == 2
        return g * 2, None, None

def passed(x):
    return Passed.apply(x, 2.0).sum()

class Dropped(Function):
    @staticmethod
    def forward(ctx, x, n, m):
        return x * n * m

    @staticmethod
    def backward(ctx, g):
        return g * 2, g.sum(), g.sum()

def dropped(x):
    return Dropped.apply(x, torch.tensor([2, 3]), torch.tensor([[2.0], [3.0]])).sum()

class Nested(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, [x.sum(), 3, {"b": x * 4, "a": x}]

    @staticmethod
    def backward(ctx, g, none):
        assert none is None
        return g * 2

def nested(x):
    y, (total, three, named) = Nested.apply(x)
    assert three == 3 and list(named) == ["b", "a"] and not total.requires_grad
    return (y * total + named["b"] * 5 + named["a"] * 7).sum()

class Listed(Function):
    @staticmethod
    def forward(ctx, x):
        return [x * 2]

    @staticmethod
    def backward(ctx, none):
        raise AssertionError("PyTorch does not call it")

def listed(x):
    (y,) = Listed.apply(x)
    return (y * x).sum()

class Named(Listed):
    @staticmethod
    def forward(ctx, x):
        return {"x": x}

def named(x):
    return (Named.apply(x)["x"] * x).sum()

class Defaults(Function):
    @classmethod
    def forward(cls, ctx, x, a=1.0):
        ctx.saved_data["x"] = x
        return x * a

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_data["x"]

def defaults(x):
    return Defaults.apply(x).sum()

class Reversible(Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        y = x + torch.tanh(layer(x))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            z = ctx.saved_tensors[0].detach().requires_grad_()
            y = torch.tanh(ctx.layer(z)).view(-1)[:]
        y.backward(g)
        return g + z.grad, None, None

class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x):
        return x * self.w

def surplus(x):
    return Reversible.apply(x, Scale()).sum()

class Checkpoint(Function):
    @staticmethod
    def forward(ctx, function, x, w):
        ctx.function, ctx.x, ctx.w = function, x, w
        with torch.no_grad():
            return function(x)

    @staticmethod
    def backward(ctx, g):
        x = ctx.x.detach()
        x.requires_grad = ctx.x.requires_grad
        with torch.enable_grad():
            y = ctx.function(x)
        return None, *torch.autograd.grad(y, [x, ctx.w], g)

def closed_over(x):
    w = (x * 3).clone()
    return Checkpoint.apply(lambda y: torch.tanh(y * w), x * 1, w).sum()

def constant(x):
    w = x * 2
    v = (x * 0 + 0.5).detach().requires_grad_()
    y = torch.tanh(v * w)
    with torch.no_grad():
        u = torch.autograd.grad(y, v, torch.ones_like(y), retain_graph=True)[0]
    return torch.autograd.grad(y, v, u, create_graph=True)[0].sum()

class OldNames(Function):
    clear_saved_tensors_on_access = True

    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.dirty_tensors = (x,)
        ctx.to_save, ctx.materialize_grads = (x,), False
        assert (ctx.name(), len(ctx.dirty_tensors), len(ctx.to_save)) == ("OldNamesBackward", 1, 1)
        return x, x * 1

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        try:
            ctx.saved_tensors
        except RuntimeError:
            assert h is None and ctx.name() == "OldNamesBackward"
            return g * x

def old_names(x):
    return OldNames.apply(x * 1)[0].sum()

class PrivateNames(Function):
    @staticmethod
    def forward(ctx, x):
        ctx._inputs, ctx._saved, ctx._needs, ctx._dirty = (x * 1,), x * 2, 3, "dirty"
        ctx.save_for_backward(x)
        assert ctx.saved_tensors == ()
        return x * x

    @staticmethod
    def backward(ctx, g):
        assert ctx._needs == 3 and ctx._dirty == "dirty" and ctx.needs_input_grad == (True,)
        return g * (ctx._inputs[0] + ctx._saved + ctx.saved_tensors[0])

def private_names(x):
    return PrivateNames.apply(x).sum()

class ByVjp(Function):
    boxed_grads_call = True

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 1, x * 2

    @staticmethod
    def vjp(ctx, grads):
        g, h = grads
        grads.clear()
        return (g + h) * ctx.saved_tensors[0]

def by_vjp(x):
    y, z = ByVjp.apply(x)
    return (y * z).sum()

class Unmarked(Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        return x * 3

    @staticmethod
    def backward(ctx, g):
        return g * 7

def unmarked(x):
    a = x * 1
    y = Unmarked.apply(a)
    return (a * a).sum() + y.sum()

class Put(Function):
    @staticmethod
    def forward(ctx, memory, v, i):
        ctx.i = i
        memory.data[i] = v
        return memory

    @staticmethod
    def backward(ctx, g):
        return g, g[ctx.i], None

def returned(x):
    s, t, u = torch.zeros(2), torch.zeros(3), torch.zeros(1)
    total = 0.0
    for i in range(2):
        s = Put.apply(s, x[i] * (i + 1), i)
        total = total + (Put.apply(t[i:], x[i] * 5, 0) ** 2).sum()
    Put.apply(u, x[0], 0)
    return total + (s * s).sum() + (t * x.sum()).sum() + (u * x).sum()

def written_again(x):
    s = torch.zeros(2)
    y = Put.apply(s, x[0], 0)
    s.mul_(2)
    return (y * x).sum()

class OfNet(Function):
    @staticmethod
    def forward(ctx, net, x, w):
        ctx.net = net
        ctx.save_for_backward(x, w)
        return net(x)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return None, g * w, g * x

def of_net(x):
    net = Scale()
    return OfNet.apply(net, x, *net.parameters()).sum()

class SharedOnCtx(Function):
    @staticmethod
    def forward(ctx, x):
        z = x * 3
        ctx.save_for_backward(x, z[:1])
        ctx.a, ctx.z, ctx.views = x, z, [z.view(1, 2).t(), z[1:], torch.ones(3, 2).t() * 2]
        return x * 2

    @staticmethod
    def backward(ctx, g):
        x, first = ctx.saved_tensors
        assert ctx.views[0].stride() == (1, 2) and ctx.views[2].stride() == (1, 2)
        x.abs_()
        first.mul_(5)
        ctx.views[1].neg_()
        return g * ctx.a + ctx.z * ctx.views[0][:, 0]

def shared_on_ctx(x):
    return SharedOnCtx.apply(x * 1).sum()

class Needs(Function):
    @staticmethod
    def forward(ctx, x, y, z):
        return x * y * (1 + 2 * ctx.needs_input_grad[1] + 4 * ctx.needs_input_grad[2])

    @staticmethod
    def backward(ctx, g):
        return g * (2 + ctx.needs_input_grad[1] + 10 * ctx.needs_input_grad[2]), None, None

def needs(x):
    weight = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        scale = Needs.apply(torch.ones(2), weight, torch.ones(2))
    return (Needs.apply(x, weight, weight) * scale).sum() + Needs.apply(x, weight.detach(), 1).sum()
"""


RULES = """
import torch

class Rules(torch.autograd.Function):
    @staticmethod
    def forward(x, k):
        return x * x, x + k

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx, g, h):
        return g * 2 * ctx.saved_tensors[0] + h, None

    @staticmethod
    def jvp(ctx, t, _):
        return t * 7 * ctx.saved_tensors[0], t * 5

    @staticmethod
    def vmap(info, in_dims, x, k):
        assert in_dims == (0, None)
        return (x * x * info.batch_size, x.sum(0) + k), (0, None)

def forward_mode(x):
    return torch.func.jvp(lambda x: Rules.apply(x, 3.0), (x,), (torch.ones_like(x),))

def batched(x):
    return torch.vmap(Rules.apply, in_dims=(0, None))(x, 3.0)

def plain(x):
    return Rules.apply(x, 3.0)
"""


def test_a_class_s_own_jvp_and_vmap(tmp_path):
    """Forward mode and batching call the methods of the class; the numbers are PyTorch's."""
    (tmp_path / "rules.py").write_text(RULES)
    rules, x = torch.load(tmp_path / "rules.py"), jnp.array([0.3, -0.4])
    tangents = [[2.1, -2.8], [5, 5]]
    for how in (lambda f: f, jax.jit):
        np.testing.assert_allclose(how(torch.jax_view(rules.forward_mode))(x)[1], tangents, rtol=1e-6)
        np.testing.assert_allclose(
            how(lambda x: jax.jvp(torch.jax_view(rules.plain), (x,), (x * 0 + 1,)))(x)[1], tangents, rtol=1e-6
        )
        for f in (torch.jax_view(rules.batched), jax.vmap(torch.jax_view(rules.plain))):
            np.testing.assert_allclose(how(f)(x), [[0.18, 0.32], [2.9, 2.9]], rtol=1e-6)
        found = how(jax.grad(lambda x: jax.vmap(torch.jax_view(rules.plain))(x)[0].sum()))(x)
        np.testing.assert_allclose(found, 4 * x, rtol=1e-6)  # the rule is what is differentiated, as in PyTorch


SHARED = """
import torch
from torch.autograd import Function

class Part(Function):
    @staticmethod
    def forward(ctx, x):
        return x[1:]

    @staticmethod
    def backward(ctx, g):
        return torch.cat([g.new_zeros(1), g])

class Pair(Function):
    @staticmethod
    def forward(ctx, x):
        return x, (y := x * 2), y.view(-1)

    @staticmethod
    def backward(ctx, g, h, k):
        return g + h * 2 + k * 2

def result_written(x):
    with torch.no_grad():
        y = Part.apply(x * 1)
        y.add_(1)

def argument_written(x):
    a = x * 1
    y = Part.apply(a)
    a.add_(1)
    return y

def same_written(x):
    Pair.apply(x)[0].mul_(2)

class Saved(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y + x

def saved(x, write, has_gradient=True):
    t = x.detach().clone().requires_grad_() * 1
    t.retain_grad()
    y = Saved.apply(t)
    total = y.sum()
    write(x, t, y)
    if has_gradient:
        total.backward()
    return t.grad if has_gradient else total

def double_if_positive(x, t, y):
    if x[0] > 0:
        t.mul_(2)

def set_data(x, t, y):
    t.data = x.detach() * 3

writes = {"x": lambda x, t, y: t[:1].add_(1), "y": lambda x, t, y: y.mul_(2)}
writes |= {"data": set_data, "if": double_if_positive}

def other_written(x):
    _, y, z = Pair.apply(x)
    z.mul_(2)

def not_read(x):
    w = x.detach().clone().requires_grad_()
    for _ in range(2):
        y, other, _ = Pair.apply(w)
        w.grad = None
        (y * other).sum().backward()
        with torch.no_grad():
            w.sub_(0.1 * w.grad)
    y = Part.apply(w).clone()
    with torch.no_grad():
        w.add_(1)
    return w.detach(), y.mul_(2).detach()
"""


def test_what_shares_memory_with_arguments(tmp_path):
    """A write that PyTorch would show in the other tensor is refused; what nobody reads afterwards is right."""
    (tmp_path / "shared.py").write_text(SHARED)
    shared, x = torch.load(tmp_path / "shared.py"), jnp.array([0.3, -0.4])
    for how in (lambda f: f, jax.jit):
        for name, message in {
            "result_written": "a write to what a Function returned",
            "argument_written": "after a write to that",
            "same_written": "a write to what a Function returned",
            "other_written": "a write to what a Function returned",
        }.items():
            with pytest.raises(torch.NotSupported, match=f"(?s){message}.*x.clone"):
                how(torch.jax_view(getattr(shared, name)))(x)
        for write in shared.writes.values():
            with pytest.raises(RuntimeError, match=r"(?s)modified by an inplace operation.*x\.clone"):
                how(torch.jax_view(lambda x, write=write: shared.saved(x, write)))(x)
            total = how(torch.jax_view(lambda x, write=write: shared.saved(x, write, False)))(x)
            np.testing.assert_allclose(total, jnp.exp(x).sum(), rtol=1e-6)
        w, y = how(torch.jax_view(shared.not_read))(x)
        np.testing.assert_allclose(w, [1.108, 0.856], rtol=1e-6)  # by PyTorch 2.13
        np.testing.assert_allclose(y, [-0.288], rtol=1e-6)


KEEPS = """
import torch
from torch.autograd import Function

keeps = {
    "object": (lambda m: m, lambda h: h),
    "detached": (lambda m: m.detach(), lambda h: h),
    "list": (lambda m: [m], lambda h: h[0]),
    "dict": (lambda m: {"a": (m[1:], 0)}, lambda h: h["a"][0].sum()),
    "view": (lambda m: m.view(1, -1).t(), lambda h: h.sum()),
    "closure": (lambda m: lambda: m, lambda h: h()),
    "clone": (lambda m: m.clone(), lambda h: h),
}

class Keeps(Function):
    @staticmethod
    def forward(ctx, x, m, how, of_result=False):
        y = x * 1
        ctx.h, ctx.how = keeps[how][0](y if of_result else m), how
        return y

    @staticmethod
    def backward(ctx, g):
        return g * keeps[ctx.how][1](ctx.h), None, None, None

def argument(w, how):
    y = Keeps.apply(w, m := torch.ones(3), how)
    m.mul_(5)
    return y, m

def computed(w, how):
    y = Keeps.apply(w, m := w * 1, how)
    with torch.no_grad():
        m.mul_(10)
    return y, m

def result(w, how):
    y = Keeps.apply(w, None, how, True)
    y[:2].mul_(10)
    return y, y

def gradients(x, function):
    w = x.detach().clone().requires_grad_()
    found = []
    for how in keeps:
        y, memory = function(w, how)
        found += torch.autograd.grad(y.sum(), w)
    return torch.stack(found)

factor = 1.0

class Once(Function):
    @staticmethod
    def forward(ctx, x, seen):
        seen.append("forward")
        ctx.factor, ctx.n, ctx.seen = factor, 0, seen
        ctx.z = x * 1
        return x * factor

    @staticmethod
    def backward(ctx, g):
        ctx.n += 1
        ctx.z.add_(1)
        ctx.seen.append("backward")
        return g * ctx.factor * ctx.n * ctx.z, None

def once(x):
    global factor
    w, seen, total = x.detach().clone().requires_grad_(), [], 0
    for factor in (1.0, 10.0, 100.0):
        total = total + Once.apply(w, seen) ** 2
    total.sum().backward(retain_graph=True)
    total.sum().backward()
    return w.grad, seen
"""


@pytest.fixture(scope="module")
def keeps(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "keeps.py"
    path.write_text(KEEPS)
    return torch.load(path)


def test_ctx_keeps_the_object(keeps):
    """Backward finds what was written to the memory of tensors on ctx after forward; where JAX is done with it: raises.

    Values of PyTorch 2.13.
    """
    x = jnp.array([1.0, 2.0, 3.0])
    ones, tens = np.ones(3), np.array([10.0, 10, 1])
    expected = {
        "argument": [5 * ones] * 3 + [10 * ones, 15 * ones, 5 * ones, ones],
        "computed": [10 * x] * 3 + [50 * ones, 60 * ones, 10 * x, x],
        "result": [x * tens**2] * 3 + [23 * tens, 33 * tens, x * tens**2, x * tens],
    }
    for name, values in expected.items():
        function = getattr(keeps, name)
        np.testing.assert_allclose(keeps.gradients(torch.torch_view(x), function).numpy(), values)
        found = jax.jit(torch.jax_view(lambda x, f=function: keeps.gradients(x, f)))(x)
        np.testing.assert_allclose(found, values)
        for how in ("list", "closure", "view"):
            total = torch.jax_view(lambda x, f=function, how=how: f(x, how)[0].sum())
            if name == "argument":
                np.testing.assert_allclose(jax.grad(total)(x), values[[*keeps.keeps].index(how)])
                continue
            with pytest.raises(torch.NotSupported, match=r"(?s)kept on ctx.*after a write.*assign x\.clone\(\)"):
                jax.grad(total)(x)


def test_ctx_keeps_views_of_arguments_that_jax_differentiates(keeps):
    """A view of an argument on ctx, in a list or a closure, is an array of the call."""
    x = jnp.array([1.0, 2.0, 3.0])
    for how, expected in zip(keeps.keeps, (x, x, x, 5, 6, x, x), strict=True):
        gradient = jax.grad(lambda x, how=how: torch.jax_view(keeps.Keeps.apply)(x, x, how).sum())
        np.testing.assert_array_equal(gradient(x), expected * jnp.ones(3))


def test_forward_runs_once_and_backward_finds_its_ctx(keeps):
    """Outside of JAX's transformations first derivatives run forward once; within, other numbers on ctx raise."""
    gradient, seen = keeps.once(torch.torch_view(jnp.array([1.0, 2.0, 3.0])))
    np.testing.assert_array_equal(gradient.numpy(), [161616, 444444, 848484])  # by PyTorch 2.13
    assert seen == ["forward"] * 3 + ["backward"] * 6
    with pytest.raises(
        torch.NotSupported, match=r"(?s)Once.forward runs again .* leaves ctx.factor = 100.0, where it "
    ):
        jax.jit(torch.jax_view(lambda x: keeps.once(x)[0]))(jnp.ones(3))


@pytest.fixture(scope="module")
def details(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "details.py"
    path.write_text(DETAILS)
    return torch.load(path)


# The gradient at [0.3, -0.4], by PyTorch 2.13.
GRADIENTS = {
    "passed": [2.0, 2.0],
    "dropped": [4.0, 4.0],
    "nested": [6.8, 6.8],
    "listed": [0.6, -0.8],
    "named": [0.6, -0.8],
    "defaults": [0.3, -0.4],
    "surplus": [1.26241, 1.00731],
    "closed_over": [1.6749, -1.92208],
    "constant": [0.829314, -0.815334],
    "old_names": [0.6, -0.8],
    "private_names": [1.2, -1.6],
    "by_vjp": [0.27, 0.48],
    "unmarked": [8.2, 5.4],
    "returned": [15.4, -23.4],
    "of_net": [2.0, 3.0],
    "shared_on_ctx": [20.55, 1.84],
    "needs": [41.0, 41.0],
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("how", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_details_of_functions(details, name, how):
    """Backward's results, ctx's names, closures and writes are as in PyTorch, without a warning."""
    found = how(jax.grad(torch.jax_view(getattr(details, name))))(jnp.array([0.3, -0.4]))
    np.testing.assert_allclose(found, GRADIENTS[name], rtol=1e-4)


def test_an_unmarked_argument_that_is_returned_is_not_written_again(details):
    """PyTorch raises where the result is used, fnjax where the argument is written."""
    with pytest.raises(torch.NotSupported, match="a write to what a Function returned, which shares memory"):
        torch.jax_view(details.written_again)(jnp.array([0.3, -0.4]))


def test_backward_and_vjp():
    """They are two names of one method."""
    apply = make_function(lambda g: (g, None), vjp=staticmethod(lambda ctx, g: (g, None))).apply
    with pytest.raises(RuntimeError, match="Implementing both 'backward' and 'vjp'"):
        apply(jnp.ones(3), 2.0)


def test_older_functions():
    """An object of a class is not called: PyTorch's error."""
    Older = type("Older", (torch.autograd.Function,), {"forward": lambda self, x: x * 2})
    with pytest.raises(RuntimeError, match="Legacy autograd function with non-static forward method is deprecated"):
        Older()(torch.ones(2))


@pytest.mark.parametrize("how", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_writes_to_arguments(how):
    """A function of arrays returns what it writes to, or is refused: an array does not change."""
    ones = jnp.ones(2, int)
    returned = how(torch.jax_view(lambda x, y: (x.add_(1).view(2, 1), y[:1].mul_(3))))(ones, ones)
    np.testing.assert_array_equal(jnp.concatenate([x.ravel() for x in returned]), [2, 2, 3])
    with pytest.raises(torch.NotSupported, match=r"(?s)a write of .* to an argument of shape .*2.*return the argument"):
        how(torch.jax_view(lambda x: x.add_(1) * 2))(ones)
    with pytest.raises(torch.NotSupported, match=r"a write of .* to an argument of shape .*2"):
        how(torch.jax_view(lambda x: x.unsqueeze_(0).sum()))(ones)
    assert how(torch.jax_view(lambda x: x.unsqueeze_(0)))(ones).shape == (1, 2)
