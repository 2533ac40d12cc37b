"""torch.distributions: the methods and attributes of each distribution, by its parameters.

The methods are in the table as `torch.distributions.Normal.log_prob`, over the parameters of the distribution and
then their own.
"""

from __future__ import annotations

import re

from fnjax._torch_ops.record import Call, Refuse, Template
from fnjax._torch_ops.registry import add_operation
from fnjax._torch_ops.signature import parse_signature

HOME = "torch.distributions."
METHODS = {
    "log_prob": "value",
    "cdf": "value",
    "icdf": "value",
    "entropy": "",
    "sample": "sample_shape=()",
    "rsample": "sample_shape=()",
}
# Each distribution with its parameters, then what is asked of it, over them and the method's own; SHAPE and DTYPE are
# those of a draw, and a draw that has a gradient is `rsample` too.
_TEXT = """
Normal | loc, scale
log_prob | jax.scipy.stats.norm.logpdf(value, loc, scale)
cdf | jax.scipy.stats.norm.cdf(value, loc, scale)
icdf | jax.scipy.stats.norm.ppf(value, loc, scale)
entropy | jnp.log(scale) + 0.5 * math.log(2 * math.pi * math.e)
mean mode | loc
stddev | scale
variance | scale ** 2
rsample | loc + scale * jax.random.normal(key, SHAPE, DTYPE)

LogNormal | loc, scale
log_prob | jax.scipy.stats.norm.logpdf(jnp.log(value), loc, scale) - jnp.log(value)
cdf | jax.scipy.stats.norm.cdf(jnp.log(value), loc, scale)
icdf | jnp.exp(jax.scipy.stats.norm.ppf(value, loc, scale))
entropy | loc + jnp.log(scale) + 0.5 * math.log(2 * math.pi * math.e)
mean | jnp.exp(loc + scale ** 2 / 2)
mode | jnp.exp(loc - scale ** 2)
variance | jnp.expm1(scale ** 2) * jnp.exp(2 * loc + scale ** 2)
rsample | jnp.exp(loc + scale * jax.random.normal(key, SHAPE, DTYPE))

HalfNormal | scale
log_prob | jnp.where(value >= 0, math.log(2) + jax.scipy.stats.norm.logpdf(value, 0, scale), -jnp.inf)
cdf | jax.scipy.special.erf(value / scale / math.sqrt(2))
icdf | jax.scipy.stats.norm.ppf((value + 1) / 2, 0, scale)
entropy | jnp.log(scale) + 0.5 * math.log(math.pi * math.e / 2)
mean | scale * math.sqrt(2 / math.pi)
mode | jnp.zeros_like(scale)
variance | scale ** 2 * (1 - 2 / math.pi)
rsample | scale * jnp.abs(jax.random.normal(key, SHAPE, DTYPE))

Laplace | loc, scale
log_prob | jax.scipy.stats.laplace.logpdf(value, loc, scale)
cdf | jax.scipy.stats.laplace.cdf(value, loc, scale)
icdf | loc - scale * jnp.sign(value - 0.5) * jnp.log1p(-2 * jnp.abs(value - 0.5))
entropy | 1 + jnp.log(2 * scale)
mean mode | loc
stddev | math.sqrt(2) * scale
variance | 2 * scale ** 2
rsample | loc + scale * jax.random.laplace(key, SHAPE, DTYPE)

Cauchy | loc, scale
log_prob | jax.scipy.stats.cauchy.logpdf(value, loc, scale)
cdf | jax.scipy.stats.cauchy.cdf(value, loc, scale)
icdf | jax.scipy.stats.cauchy.ppf(value, loc, scale)
entropy | math.log(4 * math.pi) + jnp.log(scale)
mode | loc
rsample | loc + scale * jax.random.cauchy(key, SHAPE, DTYPE)

Gumbel | loc, scale
log_prob | (loc - value) / scale - jnp.exp((loc - value) / scale) - jnp.log(scale)
cdf | jnp.exp(-jnp.exp((loc - value) / scale))
icdf | loc - scale * jnp.log(-jnp.log(value))
entropy | jnp.log(scale) + 1 + jnp.euler_gamma
mean | loc + scale * jnp.euler_gamma
mode | loc
stddev | math.pi / math.sqrt(6) * scale
variance | math.pi ** 2 / 6 * scale ** 2
rsample | loc + scale * jax.random.gumbel(key, SHAPE, DTYPE)

Uniform | low, high
log_prob | jnp.where((low <= value) & (value < high), -jnp.log(high - low), -jnp.inf)
cdf | jnp.clip((value - low) / (high - low), 0, 1)
icdf | low + value * (high - low)
entropy | jnp.log(high - low)
mean | (low + high) / 2
stddev | (high - low) / math.sqrt(12)
variance | (high - low) ** 2 / 12
rsample | low + (high - low) * jax.random.uniform(key, SHAPE, DTYPE)

Exponential | rate
log_prob | jnp.log(rate) - rate * value
cdf | 1 - jnp.exp(-rate * value)
icdf | -jnp.log1p(-value) / rate
entropy | 1 - jnp.log(rate)
mean stddev | 1 / rate
mode | jnp.zeros_like(rate)
variance | 1 / rate ** 2
rsample | jax.random.exponential(key, SHAPE, DTYPE) / rate

Gamma | concentration, rate
log_prob | jax.scipy.stats.gamma.logpdf(value, concentration, scale=1 / rate)
cdf | jax.scipy.special.gammainc(concentration, rate * value)
entropy | concentration - jnp.log(rate) + jax.scipy.special.gammaln(concentration) + (1 - concentration) * jax.scipy.special.digamma(concentration)
mean | concentration / rate
mode | jnp.maximum((concentration - 1) / rate, 0)
variance | concentration / rate ** 2
rsample | jax.random.gamma(key, concentration, SHAPE, DTYPE) / rate

Beta | concentration1, concentration0
log_prob | jax.scipy.stats.beta.logpdf(value, concentration1, concentration0)
mean | concentration1 / (concentration1 + concentration0)
variance | concentration1 * concentration0 / ((concentration1 + concentration0) ** 2 * (concentration1 + concentration0 + 1))
rsample | jax.random.beta(key, concentration1, concentration0, SHAPE, DTYPE)

StudentT | df, loc=0.0, scale=1.0
log_prob | jax.scipy.stats.t.logpdf(value, df, loc, scale)
mode | loc
rsample | loc + scale * jax.random.t(key, df, SHAPE, DTYPE)

Poisson | rate
log_prob | jax.scipy.special.xlogy(value, rate) - rate - jax.scipy.special.gammaln(value + 1)
mean variance | rate
mode | jnp.floor(rate)
sample | jax.random.poisson(key, rate, SHAPE).astype(DTYPE)

Bernoulli | probs=None, logits=None
log_prob | value * LOGITS - jax.nn.softplus(LOGITS)
entropy | jax.nn.softplus(LOGITS) - PROBS * LOGITS
probs mean | PROBS
logits | LOGITS
variance | PROBS * (1 - PROBS)
sample | jax.random.bernoulli(key, PROBS, SHAPE).astype(DTYPE)

Categorical | probs=None, logits=None
log_prob | _categorical_log_prob(LOGITS, value)
entropy | _categorical_entropy(LOGITS)
probs | PROBS
logits | LOGITS
sample | jax.random.categorical(key, LOGITS, shape=SHAPE)
"""
# Of a probability, and of its logit, in PyTorch's words: probabilities are kept off 0 and 1 where their logits are asked.
_OF_PROBS = {
    "Bernoulli": {"PROBS": "probs", "LOGITS": "_logits(probs)"},
    "Categorical": {"PROBS": "(probs / jnp.sum(probs, axis=-1, keepdims=True))", "LOGITS": "_log_probs(probs)"},
}
_OF_LOGITS = {
    "Bernoulli": {"PROBS": "jax.nn.sigmoid(logits)", "LOGITS": "logits"},
    "Categorical": {"PROBS": "jax.nn.softmax(logits)", "LOGITS": "jax.nn.log_softmax(logits)"},
}
PARAMETERS: dict[str, str] = {}


def _make_method(distribution: str, method: str, text: str) -> Template:
    names = [p.name for p in parse_signature(PARAMETERS[distribution])]

    def build(call: Call) -> str:
        given = [n for n in names if call.is_passed(n) and call.read_literal(n) is not None]
        if {"probs", "logits"} <= set(given):
            raise Refuse("it cannot be told which of probs and logits is None")
        made = text
        for word, meaning in (_OF_LOGITS if "logits" in given else _OF_PROBS).get(distribution, {}).items():
            made = made.replace(word, meaning)
        arrays = [n for n in given if call.find_kind(n) != "static"]
        shapes = [f"{n}.shape" if call.find_kind(n) == "tensor" else f"jnp.shape({n})" for n in arrays]
        shape = f"jnp.broadcast_shapes({', '.join(shapes)})" if len(shapes) > 1 else (shapes or ["()"])[0]
        dtype = f"jnp.result_type({', '.join(arrays)})" if arrays else "float"
        if len(arrays) == 1 and call.find_kind(arrays[0]) == "tensor":
            dtype = f"{arrays[0]}.dtype"
        if method == "entropy" or method not in METHODS:  # of the shape of all parameters together
            used = [n for n in arrays if re.search(rf"\b{n}\b", made)]
            if used == arrays or distribution == "Categorical":
                return made
            return f"jnp.broadcast_to({made}, {shape})" if used else f"jnp.full({shape}, {made}, {dtype})"
        shape = f"{shape}[:-1]" if distribution == "Categorical" else shape
        if call.is_passed("sample_shape"):
            shape = f"(*(sample_shape), *{shape})" if shapes else "sample_shape"
        made = made.replace("SHAPE", shape).replace("DTYPE", dtype)
        return f"jax.lax.stop_gradient({made})" if method == "sample" and call.differentiated else made

    return build


for _block in _TEXT.strip().split("\n\n"):
    _head, *_rows = _block.splitlines()
    _name, PARAMETERS[_name] = _head.split(" | ")
    for _row in _rows:
        _methods, _text = _row.split(" | ")
        for _method in [*_methods.split(), *(["sample"] if _methods == "rsample" else [])]:
            _own = METHODS.get(_method, "")
            add_operation(
                f"{HOME}{_name}.{_method}",
                ", ".join(p for p in (PARAMETERS[_name], f"*, {_own}" if _own else "") if p),
                _make_method(_name, _method, _text),
                "int" if _name == "Categorical" and _method == "sample" else "float",
                random=_method in {"sample", "rsample"},
                called=_method in METHODS,
            )
    for _parameter in parse_signature(PARAMETERS[_name]):
        if _parameter.name not in {"probs", "logits"}:
            add_operation(
                f"{HOME}{_name}.{_parameter.name}",
                PARAMETERS[_name],
                _make_method(_name, _parameter.name, _parameter.name),
                "float",
                called=False,
            )
