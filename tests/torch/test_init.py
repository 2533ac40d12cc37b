"""torch.nn.init: bounds, moments and identities of the matrices."""

import contextvars
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fnjax import torch

init = torch.nn.init


@pytest.fixture(autouse=True)
def seeded():
    """Random numbers for each test."""
    with torch.seed(0):
        yield


def fill(name, *args, shape=(40, 20, 5), **options):
    """Return what a function writes into a tensor of zeros, after checking that it returns that tensor."""
    x = torch.zeros(shape)
    assert getattr(init, name)(x, *args, **options) is x
    return np.asarray(x.array)


GAIN = math.sqrt(2 / (1 + 0.3**2))


@pytest.mark.parametrize(
    ("name", "options", "bound"),
    [
        ("uniform_", {"a": -2.0, "b": 2.0}, 2.0),
        ("xavier_uniform_", {"gain": 2.0}, 2 * math.sqrt(6 / (100 + 200))),
        ("kaiming_uniform_", {"a": 0.3}, GAIN * math.sqrt(3 / 100)),
        ("kaiming_uniform_", {"mode": "fan_out", "nonlinearity": "relu"}, math.sqrt(2) * math.sqrt(3 / 200)),
    ],
)
def test_uniform(name, options, bound):
    """Numbers are uniform within the formula's bound (Kolmogorov-Smirnov)."""
    x = fill(name, **options).ravel()
    assert scipy.stats.kstest(x, scipy.stats.uniform(-bound, 2 * bound).cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    ("name", "options", "deviation"),
    [
        ("normal_", {"std": 3.0}, 3.0),
        ("xavier_normal_", {"gain": 2.0}, 2 * math.sqrt(2 / (100 + 200))),
        ("kaiming_normal_", {"a": 0.3}, GAIN / 10),
        ("kaiming_normal_", {"mode": "fan_out", "nonlinearity": "tanh"}, 5 / 3 / math.sqrt(200)),
    ],
)
def test_normal(name, options, deviation):
    """Numbers are normal with the formula's deviation."""
    x = fill(name, **options).ravel()
    assert scipy.stats.kstest(x, scipy.stats.norm(0, deviation).cdf).pvalue > 1e-3


def test_truncated_normal():
    """Numbers outside of the bounds are drawn again."""
    x = fill("trunc_normal_", 1.0, 2.0, -1.0, 4.0).ravel()
    assert scipy.stats.kstest(x, scipy.stats.truncnorm(-1, 1.5, 1, 2).cdf).pvalue > 1e-3
    with pytest.warns(UserWarning, match="more than 2 std from"):
        fill("trunc_normal_", 10.0)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 2, 3)])
def test_orthogonal(shape):
    """Rows, or columns where there are fewer, are orthogonal and have the gain's length."""
    x = fill("orthogonal_", 2.0, shape=shape).reshape(shape[0], -1)
    product = x @ x.T if x.shape[0] < x.shape[1] else x.T @ x
    np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-5)


def test_dirac_is_the_identity():
    """A convolution with this weight gives its input again, in each group."""
    x = torch.torch_view(jax.random.normal(jax.random.key(0), (1, 4, 6, 6), jnp.float32))
    for groups in (1, 2):
        weight = torch.torch_view(jnp.asarray(fill("dirac_", groups, shape=(4, 4 // groups, 3, 3))))
        out = torch.nn.functional.conv2d(x, weight, padding=1, groups=groups)
        np.testing.assert_allclose(out.array, x.array, rtol=1e-6)


def test_sparse():
    """Each column has its share of zeros, the other numbers are normal."""
    x = fill("sparse_", 0.3, shape=(10, 30))
    assert ((x == 0).sum(0) == 3).all()
    assert len({tuple(column == 0) for column in x.T}) > 1
    assert scipy.stats.kstest(x[x != 0], scipy.stats.norm(0, 0.01).cdf).pvalue > 1e-3


def test_constants():
    """Constants and the identity, into halves too."""
    assert (fill("constant_", 0.5) == 0.5).all()
    assert (fill("ones_") == 1).all()
    assert (fill("zeros_") == 0).all()
    np.testing.assert_array_equal(fill("eye_", shape=(2, 3)), np.eye(2, 3))
    half = init.normal_(torch.zeros(1000, dtype=torch.bfloat16))
    assert half.dtype is torch.bfloat16
    assert 0.9 < float(np.asarray(half.array, np.float32).std()) < 1.1


def test_gains_and_fans():
    """Gains are those of PyTorch's documentation; a convolution's fans count its window."""
    gains = {"linear": 1, "conv2d": 1, "sigmoid": 1, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 0.75}
    assert {name: init.calculate_gain(name) for name in gains} == gains
    assert init.calculate_gain("leaky_relu", 0.3) == GAIN
    assert init._calculate_fan_in_and_fan_out(torch.zeros(6, 4, 3, 3)) == (36, 54)
    assert init._calculate_correct_fan(torch.zeros(6, 4, 3, 3), "FAN_OUT") == 54


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: init.xavier_normal_(torch.zeros(3)), "fewer than 2 dimensions"),
        (lambda: init.eye_(torch.zeros(3)), "Only tensors with 2 dimensions"),
        (lambda: init.dirac_(torch.zeros(3, 3)), "3, 4, or 5 dimensions"),
        (lambda: init.dirac_(torch.zeros(3, 3, 3), 2), "divisible by groups"),
        (lambda: init.calculate_gain("gelu"), "Unsupported nonlinearity gelu"),
        (lambda: init.calculate_gain("leaky_relu", True), "not a valid number"),
        (lambda: init._calculate_correct_fan(torch.zeros(3, 3), "fan"), "Mode fan not supported"),
    ],
)
def test_errors(call, message):
    """Arguments that PyTorch refuses raise its messages."""
    with pytest.raises(ValueError, match=message):
        call()


def test_parameters_are_leaves():
    """A parameter is written to though it requires grad, and stays a leaf; old names warn."""
    p = torch.nn.Parameter(torch.zeros(3, 3))
    with pytest.warns(FutureWarning, match="deprecated in favor of `nn.init.uniform_`"):
        init.uniform(p)
    assert p.requires_grad
    assert p.is_leaf
    assert float(p.array.min()) > 0


def test_needs_a_key():
    """Without a seed the error says what to write."""
    x = torch.zeros(2, 2)
    with pytest.raises(torch.NotSupported, match=r"torch\.seed"):
        contextvars.Context().run(init.normal_, x)


def test_draws_share_compiled_programs(caplog):
    """Numbers are those of jax.random for the shape, eager and traced; layers of other sizes compile nothing anew."""
    for dtype in (torch.float32, torch.bfloat16):
        layer = torch.empty(70, 9, dtype=dtype)
        with torch.seed(0):
            torch.nn.init.normal_(layer, 0.5, 0.1)
        mean, std = (jnp.asarray(v, dtype.array) for v in (0.5, 0.1))
        want = mean + std * jax.random.normal(jax.random.fold_in(jax.random.key(0), 1), (70, 9), dtype.array)
        assert torch.jax_view(layer).tolist() == want.tolist()

    def build(key, n=7):
        with torch.seed(key):
            return torch.jax_view(torch.nn.Linear(n, 3).weight)

    assert jax.jit(build)(jax.random.key(4)).tolist() == build(jax.random.key(4)).tolist()
    with jax.log_compiles():
        build(jax.random.key(4), 23)  # of an array as large as others
    assert "_uniform" not in caplog.text


def test_skip_init_draws_nothing():
    """torch.nn.utils.skip_init needs no key."""
    made = contextvars.Context().run(torch.nn.utils.skip_init, torch.nn.Linear, 3, 2)
    assert made.weight.shape == (2, 3)
