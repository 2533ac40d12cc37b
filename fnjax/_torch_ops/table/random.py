"""Random draws: each takes a key, which the ported Function gets as its last argument."""

from fnjax._torch_ops.record import Call, Template
from fnjax._torch_ops.registry import add_lines, add_operation
from fnjax._torch_ops.table.creation import PLACE

_NEW = f"generator=None, dtype=None, {PLACE}"
add_lines(f"""
torch.rand | *size, {_NEW} | jax.random.uniform(key, size, dtype=dtype) | float random made
torch.randn | *size, {_NEW} | jax.random.normal(key, size, dtype=dtype) | float random made
torch.randperm | n, *, {_NEW} | jax.random.permutation(key, n) | int random
+bernoulli | input, *, generator=None | jax.random.bernoulli(key, input).astype(input.dtype) | same random each
+bernoulli | input, p, *, generator=None | jax.random.bernoulli(key, p, input.shape).astype(input.dtype) | same random each
.bernoulli_ | input, p=0.5, *, generator=None | jax.random.bernoulli(key, p, input.shape).astype(input.dtype) | same random each
torch.normal | mean, std, size, *, {_NEW} | mean + std * jax.random.normal(key, size) | float random each
torch.normal | mean: tensor, std=1.0, *, generator=None | jax.lax.stop_gradient(mean + std * jax.random.normal(key, jnp.broadcast_shapes(jnp.shape(mean), jnp.shape(std)), mean.dtype)) | float random each
torch.normal | mean: static, std: tensor, *, generator=None | jax.lax.stop_gradient(mean + std * jax.random.normal(key, std.shape, std.dtype)) | float random each
torch.poisson | input, generator=None | jax.random.poisson(key, input).astype(input.dtype) | float random
torch.binomial | count, prob, generator=None | jax.random.binomial(key, count, prob, dtype=count.dtype) | float random
.exponential_ | input, lambd=1, *, generator=None | jax.random.exponential(key, input.shape, input.dtype) / lambd | float random each
.cauchy_ | input, median=0, sigma=1, *, generator=None | median + sigma * jax.random.cauchy(key, input.shape, input.dtype) | float random
.log_normal_ | input, mean=1, std=2, *, generator=None | jnp.exp(mean + std * jax.random.normal(key, input.shape, input.dtype)) | float random
.geometric_ | input, p, *, generator=None | jax.random.geometric(key, p, input.shape).astype(input.dtype) | same random
F.gumbel_softmax | logits, tau=1, hard=False, eps=1e-10, dim=-1 | _gumbel_softmax(key, logits, tau=tau, hard=hard, axis=dim) | float random
""")  # fmt: skip


def _make_draw_like(template: str) -> Template:
    def build(call: Call) -> str:
        return template.replace("DTYPE", "(dtype)" if call.is_given("dtype") else "input.dtype")

    return build


for _name, _draw in {
    "torch.rand_like": "jax.random.uniform(key, input.shape, dtype=DTYPE)",
    "torch.randn_like": "jax.random.normal(key, input.shape, dtype=DTYPE)",
}.items():
    add_operation(_name, f"input, *, {_NEW}", _make_draw_like(_draw), "float", random=True, each=True)
_INTEGERS = "jax.random.randint(key, input.shape, {}, high).astype(DTYPE)"
add_operation("torch.randint_like", f"input, high, *, {_NEW}", _make_draw_like(_INTEGERS.format("0")), random=True)
add_operation(
    "torch.randint_like", f"input, low, high, *, {_NEW}", _make_draw_like(_INTEGERS.format("low")), random=True
)


def _make_randint(low: str) -> Template:
    """Return the rule of randint, for integers of any dtype."""

    def build(call: Call) -> str:
        return f"jax.random.randint(key, size, {low}, high){'.astype(dtype)' if call.is_given('dtype') else ''}"

    return build


add_operation("torch.randint", f"high, size, *, {_NEW}", _make_randint("0"), "int", random=True, made=True)
add_operation("torch.randint", f"low, high, size, *, {_NEW}", _make_randint("low"), "int", random=True)


def _build_normal(call: Call) -> str:
    draw = "jax.random.normal(key, input.shape, input.dtype)"
    scaled = draw if call.read_literal("std") == 1 else f"std * {draw}"
    return scaled if call.read_literal("mean") == 0 else f"mean + {scaled}"


add_operation(".normal_", "input, mean=0, std=1, *, generator=None", _build_normal, "float", random=True, each=True)


def _build_uniform(call: Call) -> str:
    bounds = ", minval=(from_), maxval=(to)" if call.is_passed("from_") or call.is_passed("to") else ""
    return f"jax.random.uniform(key, input.shape, input.dtype{bounds})"


add_operation(".uniform_", "input, from_=0, to=1, *, generator=None", _build_uniform, "float", random=True, each=True)
add_operation(
    ".uniform_",
    "input, *bounds",
    "jax.random.uniform(key, input.shape, input.dtype, *bounds)",
    "float",
    random=True,
    each=True,
)


def _make_dropout(draw: str, flag: str) -> Template:
    def build(call: Call) -> str:
        training = call.read_literal(flag)
        if training is False:
            return "input"
        return draw if training is True else f"{draw} if {flag} else input"

    return build


for _name, _layers, _draw in (
    ("dropout", "F.dropout", "_dropout(key, input, p)"),
    ("feature_dropout", "F.dropout1d F.dropout2d F.dropout3d", "_dropout_channels(key, input, p)"),
):
    _signature = "input, p=0.5, training=True, inplace=False"
    add_operation(_layers, _signature, _make_dropout(_draw, "training"), "float", random=True)
    _names = f"torch.{_name} torch.{_name}_"
    add_operation(_names, "input, p, train", _make_dropout(_draw, "train"), "float", random=True)


for _names, _draw in {
    "F.alpha_dropout": "_alpha_dropout(key, input, p, input.shape)",
    "F.feature_alpha_dropout": "_alpha_dropout(key, input, p, input.shape[:2] + (1,) * (input.ndim - 2))",
}.items():
    _signature = "input, p=0.5, training=False, inplace=False"
    add_operation(_names, _signature, _make_dropout(_draw, "training"), "float", random=True)
    _name = f"torch.{_names[2:]}"
    add_operation(f"{_name} {_name}_", "input, p, train", _make_dropout(_draw, "train"), "float", random=True)


def _build_multinomial(call: Call) -> str:
    replacement = call.read_literal("replacement")
    return f"_multinomial(key, input, num_samples, replacement={replacement if isinstance(replacement, bool) else 'replacement'})"


add_operation(
    "+multinomial", "input, num_samples, replacement=False, *, generator=None", _build_multinomial, "int", random=True
)
