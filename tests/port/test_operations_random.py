"""The random lines of the table: shapes, dtypes and moments, which are all that two generators share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax.port.torch import TABLE, Operation
from tests.port.operations_translate import Translated

ARRAYS = {
    "x": jnp.zeros((200, 300), jnp.float32),
    "h": jnp.zeros((200, 300), jnp.float16),
    "p": jnp.full((200, 300), 0.3, jnp.float32),
    "m": jnp.full((200, 300), 2.0, jnp.float32),
    "n": jnp.full((200, 300), 20.0, jnp.float32),
    "w": jnp.broadcast_to(jnp.array([1.0, 0.0, 3.0], jnp.float32), (20000, 3)),
}
# call, mean, standard deviation, dtype (float and int: JAX's default): closed forms of the distributions that PyTorch
# documents
CASES = [
    ("torch.rand(200, 300)", 0.5, 12**-0.5, float),
    ("torch.rand((200, 300), dtype=torch.float16)", 0.5, 12**-0.5, "float16"),
    ("torch.randn(200, 300, device='cpu')", 0.0, 1.0, float),
    ("torch.rand_like(x)", 0.5, 12**-0.5, "float32"),
    ("torch.rand_like(h)", 0.5, 12**-0.5, "float16"),
    ("torch.randn_like(x)", 0.0, 1.0, "float32"),
    ("torch.randn_like(x, dtype=torch.float16)", 0.0, 1.0, "float16"),
    ("torch.randint(5, (200, 300))", 2.0, 2**0.5, int),
    ("torch.randint(-2, 3, (200, 300))", 0.0, 2**0.5, int),
    ("torch.randint(high=5, size=(200, 300))", 2.0, 2**0.5, int),
    ("torch.randint(5, (200, 300), dtype=torch.int32)", 2.0, 2**0.5, "int32"),
    ("torch.randint(5, (200, 300), dtype=torch.float32)", 2.0, 2**0.5, "float32"),
    ("torch.randint_like(x, 5)", 2.0, 2**0.5, "float32"),
    ("torch.randint_like(x, -2, 3)", 0.0, 2**0.5, "float32"),
    ("torch.bernoulli(p)", 0.3, 0.21**0.5, "float32"),
    ("p.bernoulli()", 0.3, 0.21**0.5, "float32"),
    ("h.bernoulli(0.3)", 0.3, 0.21**0.5, "float16"),
    ("x.bernoulli_()", 0.5, 0.5, "float32"),
    ("x.bernoulli_(0.3)", 0.3, 0.21**0.5, "float32"),
    ("torch.normal(2.0, 3.0, (200, 300))", 2.0, 3.0, float),
    ("torch.normal(m, 3.0)", 2.0, 3.0, "float32"),
    ("torch.normal(m, m)", 2.0, 2.0, "float32"),
    ("torch.normal(1.0, m)", 1.0, 2.0, "float32"),
    ("torch.poisson(m)", 2.0, 2**0.5, "float32"),
    ("torch.binomial(n, p)", 6.0, 4.2**0.5, "float32"),
    ("x.normal_()", 0.0, 1.0, "float32"),
    ("h.normal_(1, 2)", 1.0, 2.0, "float16"),
    ("x.uniform_()", 0.5, 12**-0.5, "float32"),
    ("x.uniform_(-1, 3)", 1.0, 4 * 12**-0.5, "float32"),
    ("x.uniform_(-3)", -1.0, 4 * 12**-0.5, "float32"),
    ("x.uniform_(*(-1, 3))", 1.0, 4 * 12**-0.5, "float32"),
    ("x.uniform_(to=2)", 1.0, 2 * 12**-0.5, "float32"),
    ("x.exponential_()", 1.0, 1.0, "float32"),
    ("x.exponential_(2.0)", 0.5, 0.5, "float32"),
    ("x.log_normal_(0.0, 0.25)", np.exp(1 / 32), np.exp(1 / 32) * np.expm1(1 / 16) ** 0.5, "float32"),
    ("x.geometric_(0.5)", 2.0, 2**0.5, "float32"),
    ("F.dropout(m, 0.25)", 2.0, (8 / 3 * 2 - 4) ** 0.5, "float32"),
    ("F.dropout(m, training=True)", 2.0, 2.0, "float32"),
    ("F.dropout(m, training=False)", 2.0, 0.0, "float32"),
    ("torch.dropout(m, 0.5, True)", 2.0, 2.0, "float32"),
    ("torch.dropout(m, 0.5, train=True)", 2.0, 2.0, "float32"),
    ("torch.bernoulli(m, 0.25)", 0.25, (3 / 16) ** 0.5, "float32"),
    ("torch.multinomial(w, 1)", 1.5, 0.75**0.5, "int32"),
    ("w.multinomial(4, True)", 1.5, 0.75**0.5, int),
    ("torch.multinomial(w, 2)", 1.0, 1.0, "int32"),
    ("F.gumbel_softmax(w, hard=True)", 1 / 3, (2 / 9) ** 0.5, "float32"),
    ("F.gumbel_softmax(w, tau=0.5, dim=-1)", 1 / 3, None, "float32"),
    ("x.cauchy_()", None, None, "float32"),
    ("torch.randperm(1000)", 499.5, (1000**2 / 12) ** 0.5, int),
    ("F.dropout1d(m, 0.5)", 2.0, 2.0, "float32"),
    ("F.dropout2d(m, 0.5)", 2.0, 2.0, "float32"),
    ("F.dropout3d(m, 0.5)", 2.0, 2.0, "float32"),
    ("torch.feature_dropout(m, 0.5, True)", 2.0, 2.0, "float32"),
    ("torch.distributions.Normal(m, 3.0).sample()", 2.0, 3.0, "float32"),
    ("torch.distributions.Normal(m, m).rsample()", 2.0, 2.0, "float32"),
    ("torch.distributions.Normal(0.0, 2.0).rsample((200, 300))", 0.0, 2.0, float),
    (
        "torch.distributions.LogNormal(x, 0.25 * p / p).sample()",
        np.exp(1 / 32),
        np.exp(1 / 32) * np.expm1(1 / 16) ** 0.5,
        "float32",
    ),
    (
        "torch.distributions.LogNormal(x, 0.25).rsample()",
        np.exp(1 / 32),
        np.exp(1 / 32) * np.expm1(1 / 16) ** 0.5,
        "float32",
    ),
    ("torch.distributions.HalfNormal(m).sample()", 2 * (2 / np.pi) ** 0.5, 2 * (1 - 2 / np.pi) ** 0.5, "float32"),
    ("torch.distributions.HalfNormal(m).rsample()", 2 * (2 / np.pi) ** 0.5, 2 * (1 - 2 / np.pi) ** 0.5, "float32"),
    ("torch.distributions.Laplace(m, 1.0).sample()", 2.0, 2**0.5, "float32"),
    ("torch.distributions.Laplace(m, p).rsample()", 2.0, 0.3 * 2**0.5, "float32"),
    ("torch.distributions.Cauchy(x, m).sample()", None, None, "float32"),
    ("torch.distributions.Cauchy(x, m).rsample()", None, None, "float32"),
    ("torch.distributions.Gumbel(x, m).sample()", 2 * np.euler_gamma, 2 * np.pi / 6**0.5, "float32"),
    ("torch.distributions.Gumbel(x, m).rsample()", 2 * np.euler_gamma, 2 * np.pi / 6**0.5, "float32"),
    ("torch.alpha_dropout(x, 0.5, True)", 0.0, 0.779194, "float32"),  # of zeros: 1.7581 / (2 * 1.27273**0.5)
    ("F.alpha_dropout(x, 0.5, True)", 0.0, 0.779194, "float32"),
    ("torch.feature_alpha_dropout(x, 0.5, True)", None, None, "float32"),
    ("F.feature_alpha_dropout(x, 0.5, True)", None, None, "float32"),
    ("torch.rrelu(-m, 0.1, 0.3, True)", -0.4, 0.4 * 12**-0.5, "float32"),
    ("F.rrelu(-m, 0.1, 0.3, True)", -0.4, 0.4 * 12**-0.5, "float32"),
    ("torch.distributions.Uniform(-m, m).sample()", 0.0, 4 * 12**-0.5, "float32"),
    ("torch.distributions.Uniform(p, 2.0).rsample()", 1.15, 1.7 * 12**-0.5, "float32"),
    ("torch.distributions.Exponential(m).sample()", 0.5, 0.5, "float32"),
    ("torch.distributions.Exponential(2.0).rsample([200, 300])", 0.5, 0.5, float),
    ("torch.distributions.Gamma(m, m).sample()", 1.0, 0.5**0.5, "float32"),
    ("torch.distributions.Gamma(m, 4.0).rsample()", 0.5, 2**0.5 / 4, "float32"),
    ("torch.distributions.Beta(m, m).sample()", 0.5, 0.05**0.5, "float32"),
    ("torch.distributions.Beta(2.0, m).rsample()", 0.5, 0.05**0.5, "float32"),
    ("torch.distributions.StudentT(n).sample()", 0.0, (20 / 18) ** 0.5, "float32"),
    ("torch.distributions.StudentT(20.0, m, 2.0).rsample()", 2.0, 2 * (20 / 18) ** 0.5, "float32"),
    ("torch.distributions.Poisson(m).sample()", 2.0, 2**0.5, "float32"),
    ("torch.distributions.Bernoulli(p).sample()", 0.3, 0.21**0.5, "float32"),
    ("torch.distributions.Bernoulli(logits=x).sample()", 0.5, 0.5, "float32"),
    ("torch.distributions.Bernoulli(0.3).sample((200, 300))", 0.3, 0.21**0.5, float),
    ("torch.distributions.Categorical(w).sample()", 1.5, 0.75**0.5, int),
    ("torch.distributions.Categorical(logits=w[:3]).sample((20000,))", None, None, int),
]
# Of the operations of the same name.
IN_PLACE = {f"torch.{n}_" for n in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "rrelu")}
IN_PLACE |= {"torch.nn.functional.rrelu_"}
# Compared with PyTorch as layers (tests/parity/test_modules.py): dropout between layers, and places of windows.
LAYERS = {f"torch.{n}" for n in ("lstm", "gru", "rnn_tanh", "rnn_relu")}
LAYERS |= {f"torch.nn.functional.fractional_max_pool{n}d" for n in (2, 3)}


translated = functools.cache(lambda text: Translated(text, set(ARRAYS)))


def drawing(text):
    """The code of a call, as a function of the key."""
    names = {**translated(text).names, **ARRAYS}
    return lambda key: eval(translated(text).text, {**names, "key": key})


def drawn(text, seed=0):
    return np.asarray(drawing(text)(jax.random.key(seed)))


@pytest.mark.slow
@pytest.mark.parametrize(("text", "mean", "deviation", "dtype"), CASES, ids=[c[0] for c in CASES])
def test_moments(text, mean, deviation, dtype):
    """A draw has the distribution's mean and standard deviation, its dtype, also under jit, and differs by its key."""
    draw = drawn(text)
    assert draw.dtype == jnp.result_type(dtype)
    # Run one operation at a time, since the cases share nearly all of them; a jit of each would compile them again.
    traced = jax.eval_shape(drawing(text), jax.random.key(0))
    assert (traced.shape, traced.dtype) == (draw.shape, draw.dtype)
    values = np.asarray(draw, np.float64)
    error = 5 * (deviation or 1) / 150  # five standard errors of means over 20000 entries or more
    if mean is not None:
        assert values.mean() == pytest.approx(mean, abs=error + 1e-6)
    if deviation is not None:
        assert values.std() == pytest.approx(deviation, abs=0.05 * deviation + 1e-3)
    if deviation != 0.0:
        assert not np.array_equal(draw, drawn(text, 1))


def test_cauchy_quartiles():
    """A Cauchy draw has no moments, but its quartiles are median plus and minus sigma."""
    assert np.quantile(drawn("x.cauchy_(1, 2)"), [0.25, 0.5, 0.75]) == pytest.approx([-1.0, 1.0, 3.0], abs=0.1)


def test_draws_without_replacement_are_distinct():
    """Without replacement no index comes twice in a row, and none of weight zero at all; a permutation is one."""
    assert (np.sort(drawn("torch.multinomial(w, 2)"), axis=-1) == [0, 2]).all()
    assert sorted(drawn("torch.randperm(50)").tolist()) == list(range(50))


def test_every_random_name_has_a_case():
    """Each random operation of the table is drawn from in some case."""
    used = {name for case in CASES for name in translated(case[0]).used} | IN_PLACE
    lines = {n for n, o in TABLE.items() if isinstance(o, Operation) and any(v.random for v in o.overloads)}
    assert lines - used - LAYERS == set()
