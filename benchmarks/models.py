"""Small models whose Functions have backward passes of their own: with fnjax, and with jax.custom_vjp by hand.

`MODELS` is what the benchmarks share. Each model is a loss over named operations, so that one formula serves both
forms; `torch_models` has the same in PyTorch.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import fnjax


class Swish(fnjax.Function):
    """Keeps its input alone."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * jax.nn.sigmoid(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        s = jax.nn.sigmoid(x)
        return grad_output * (s * (1 + x * (1 - s)))


def swish_forward(x):
    return x * jax.nn.sigmoid(x), x


def swish_backward(x, g):
    s = jax.nn.sigmoid(x)
    return (g * (s * (1 + x * (1 - s))),)


class Norm(fnjax.Function):
    """Mean 0 and variance 1 over an axis, then a scale and a shift: BatchNorm over 0, LayerNorm over 1."""

    @staticmethod
    def forward(ctx, x, weight, bias, axis):
        centred = x - x.mean(axis, keepdims=True)
        rstd = jax.lax.rsqrt((centred**2).mean(axis, keepdims=True) + 1e-5)
        normal = centred * rstd
        ctx.save_for_backward(normal, rstd, weight)
        ctx.axis = axis
        return normal * weight + bias

    @staticmethod
    def backward(ctx, grad_output):
        normal, rstd, weight = ctx.saved_tensors
        g = grad_output * weight
        along = normal * (g * normal).mean(ctx.axis, keepdims=True)
        grad_x = rstd * (g - g.mean(ctx.axis, keepdims=True) - along)
        return grad_x, (grad_output * normal).sum(0), grad_output.sum(0), None


def norm_forward(x, weight, bias, axis):
    centred = x - x.mean(axis, keepdims=True)
    rstd = jax.lax.rsqrt((centred**2).mean(axis, keepdims=True) + 1e-5)
    normal = centred * rstd
    return normal * weight + bias, (normal, rstd, weight)


def norm_backward(axis, saved, grad_output):
    normal, rstd, weight = saved
    g = grad_output * weight
    along = normal * (g * normal).mean(axis, keepdims=True)
    grad_x = rstd * (g - g.mean(axis, keepdims=True) - along)
    return grad_x, (grad_output * normal).sum(0), grad_output.sum(0)


class FakeQuantize(fnjax.Function):
    """Rounds to `levels` steps on each side of zero; the gradient goes straight through inside of [-1, 1]."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(jnp.abs(x) <= 1)
        return jnp.round(jnp.clip(x, -1, 1) * levels) / levels

    @staticmethod
    def backward(ctx, grad_output):
        (inside,) = ctx.saved_tensors
        return grad_output * inside, None


def quantize_forward(x, levels):
    return jnp.round(jnp.clip(x, -1, 1) * levels) / levels, jnp.abs(x) <= 1


class Spike(fnjax.Function):
    """A step whose gradient is that of a smooth surrogate."""

    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).astype(v.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (v,) = ctx.saved_tensors
        return grad_output / (1 + 10 * jnp.abs(v)) ** 2


class Equilibrium(fnjax.Function):
    """z = tanh(z w + x) by iteration; its gradient from the implicit function theorem, by iteration too."""

    @staticmethod
    def forward(ctx, w, x):
        z = jax.lax.fori_loop(0, SOLVER_STEPS, lambda _, z: jnp.tanh(z @ w + x), jnp.zeros_like(x))
        ctx.save_for_backward(w, z)
        return z

    @staticmethod
    def backward(ctx, grad_output):
        return equilibrium_backward(ctx.saved_tensors, grad_output)


SOLVER_STEPS = 30


def equilibrium_forward(w, x):
    z = jax.lax.fori_loop(0, SOLVER_STEPS, lambda _, z: jnp.tanh(z @ w + x), jnp.zeros_like(x))
    return z, (w, z)


def equilibrium_backward(saved, grad_output):
    w, z = saved
    slope = 1 - z**2
    u = jax.lax.fori_loop(0, SOLVER_STEPS, lambda _, u: grad_output + (u * slope) @ w.T, grad_output)
    return z.T @ (u * slope), u * slope


def by_hand(forward, backward, *, nondiff_argnums=(), barrier=True):
    """Build a jax.custom_vjp of these rules, with the optimization barrier on its residuals that fnjax has too."""
    f = jax.custom_vjp(lambda *args: forward(*args)[0], nondiff_argnums=nondiff_argnums)

    def held(*args):
        *static, saved, g = args
        return backward(*static, jax.lax.optimization_barrier(saved) if barrier else saved, g)

    f.defvjp(forward, held)
    return f


def with_fnjax():
    """Return the operations of the models by name, as Functions."""
    return {
        "swish": Swish.apply,
        "norm": Norm.apply,
        "quantize": FakeQuantize.apply,
        "spike": Spike.apply,
        "equilibrium": Equilibrium.apply,
    }


def with_custom_vjp(**options):
    """Return the same operations, hand-written; the options are those of `by_hand`."""
    rules = {
        "swish": (swish_forward, swish_backward, ()),
        "norm": (norm_forward, norm_backward, (3,)),
        "quantize": (quantize_forward, lambda levels, inside, g: (g * inside,), (1,)),
        "spike": (lambda v: ((v > 0).astype(v.dtype), v), lambda v, g: (g / (1 + 10 * jnp.abs(v)) ** 2,), ()),
        "equilibrium": (equilibrium_forward, equilibrium_backward, ()),
    }
    return {
        name: by_hand(forward, backward, nondiff_argnums=static, **options)
        for name, (forward, backward, static) in rules.items()
    }


# ---------------------------------------------------------------------------------------------------------------------
# losses: operations, parameters, data → a number


def mlp(between):
    """Build a multi-layer perceptron with `between(operations, parameters, layer, x)` between its layers."""

    def loss(operations, parameters, x, y):
        weights = parameters["w"]
        for i, w in enumerate(weights[:-1]):
            x = between(operations, parameters, i, x @ w)
        return ((x @ weights[-1] - y) ** 2).mean()

    return loss


def normed(axis):
    return mlp(lambda ops, p, i, x: jnp.maximum(ops["norm"](x, p["scale"][i], p["shift"][i], axis), 0))


def quantized(operations, parameters, x, y):
    weights = [operations["quantize"](w, 7) for w in parameters["w"]]
    for w in weights[:-1]:
        x = operations["quantize"](jnp.maximum(x @ w, 0), 127)
    return ((x @ weights[-1] - y) ** 2).mean()


def spiking(operations, parameters, x, y):
    """Leaky integrate-and-fire neurons over 50 steps of time."""
    into, out = parameters["w"]

    def step(state, now):
        v, rate = state
        v = 0.9 * v + now @ into
        spikes = operations["spike"](v - 1)
        return (v - spikes, rate + spikes), None

    zeros = jnp.zeros((x.shape[1], into.shape[1]), x.dtype)
    (_, rate), _ = jax.lax.scan(step, (zeros, zeros), x)
    return ((rate @ out / x.shape[0] - y) ** 2).mean()


def critic(operations, parameters, real, fake):
    """WGAN-GP: the penalty is on the gradient, so that the step differentiates backward."""

    def score(x):
        for w in parameters["w"][:-1]:
            x = operations["swish"](x @ w)
        return (x @ parameters["w"][-1]).sum()

    slope = jax.grad(score)((real + fake) / 2)
    penalty = ((jnp.sqrt((slope**2).sum(1) + 1e-12) - 1) ** 2).mean()
    return (score(fake) - score(real)) / len(real) + 10 * penalty


def equilibrium(operations, parameters, x, y):
    z = operations["equilibrium"](parameters["w"][1], x @ parameters["w"][0])
    return ((z @ parameters["w"][2] - y) ** 2).mean()


@dataclasses.dataclass(frozen=True)
class Model:
    """A loss and its numbers.

    Attributes:
        title: for tables.
        loss: (operations, parameters, *data) → a number.
        sizes: the widths of its layers.
        data: shapes of the data.
        normed: whether there are a scale and a shift for each layer.
        gain: what the weights are scaled with.
    """

    title: str
    loss: Callable
    sizes: tuple[int, ...]
    data: tuple[tuple[int, ...], ...]
    normed: bool = False
    gain: float = 1.0

    def numbers(self):
        """Parameters and data as NumPy arrays, the same each time."""
        rng = np.random.default_rng(0)

        def draw(*shape):
            return rng.normal(size=shape).astype(np.float32)

        sizes = list(zip(self.sizes, self.sizes[1:], strict=False))
        parameters = {"w": [draw(m, n) * np.float32(self.gain / m**0.5) for m, n in sizes]}
        if self.normed:
            parameters["scale"] = [1 + draw(n) / 10 for _, n in sizes[:-1]]
            parameters["shift"] = [draw(n) / 10 for _, n in sizes[:-1]]
        return parameters, [draw(*shape) for shape in self.data]

    def step(self, operations):
        """One step of gradient descent: (parameters, *data) → (loss, new parameters)."""

        def step(parameters, *data):
            value, grads = jax.value_and_grad(lambda p: self.loss(operations, p, *data))(parameters)
            return value, jax.tree.map(lambda p, g: p - RATE * g, parameters, grads)

        return step


RATE = 0.01
BATCH = 256
WIDE, NARROW = (512,) * 5 + (10,), (256,) * 4 + (10,)

MODELS = {
    "swish": Model(
        "MLP, memory-efficient swish",
        mlp(lambda operations, p, i, x: operations["swish"](x)),
        WIDE,
        ((BATCH, 512), (BATCH, 10)),
    ),
    "batchnorm": Model("MLP, BatchNorm", normed(0), NARROW, ((BATCH, 256), (BATCH, 10)), normed=True),
    "layernorm": Model("MLP, LayerNorm", normed(1), NARROW, ((BATCH, 256), (BATCH, 10)), normed=True),
    "quantized": Model("fake-quantised net", quantized, NARROW, ((BATCH, 256), (BATCH, 10))),
    "spiking": Model("spiking LIF, 50 steps", spiking, (128, 256, 10), ((50, 64, 128), (64, 10)), gain=2.0),
    "critic": Model("WGAN-GP critic", critic, (256, 256, 256, 1), ((BATCH, 256), (BATCH, 256))),
    "equilibrium": Model("DEQ layer", equilibrium, (128, 128, 128, 10), ((BATCH, 128), (BATCH, 10)), gain=0.5),
}

# Where the matrix products are small, the rest of a step counts for more.
SMALL = {
    name: dataclasses.replace(
        MODELS[name], title=f"{MODELS[name].title}, small", sizes=(128,) * 4 + (10,), data=((64, 128), (64, 10))
    )
    for name in ("swish", "batchnorm", "layernorm", "quantized")
}
SMALL["spiking"] = dataclasses.replace(
    MODELS["spiking"], title="spiking LIF, small", sizes=(64, 128, 10), data=((50, 32, 64), (32, 10))
)
