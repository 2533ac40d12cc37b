"""KillHead, a classic of the PyTorch forum: all heads pass in forward, one gets no gradient in backward.

Two linear heads on one layer are trained by gradient descent, first with the second head killed, then both.
"""

import jax
import jax.numpy as jnp
import numpy as np

import fnjax


class KillHead(fnjax.Function):
    """`heads` of shape (batch, heads) as they are; the gradient of head `killed` is zero (None kills none)."""

    @staticmethod
    def forward(ctx, heads, killed):
        ctx.killed = killed
        return heads

    @staticmethod
    def backward(ctx, grad_output):
        if ctx.killed is None:
            return grad_output, None
        return grad_output.at[:, ctx.killed].set(0), None  # PyTorch: grad[:, killed] = 0


def loss(params, x, y, killed):
    heads = x @ params["layer"] @ params["heads"]
    return jnp.mean((KillHead.apply(heads, killed) - y) ** 2)


def train(params, x, y, killed, steps=10, rate=0.2, wrap=lambda f: f):
    """Gradient descent; returns the trained parameters and the loss before each step."""
    value_and_grad = wrap(jax.value_and_grad(lambda params: loss(params, x, y, killed)))
    losses = []
    for _ in range(steps):
        value, grads = value_and_grad(params)
        params = jax.tree.map(lambda p, g: p - rate * g, params, grads)
        losses.append(value)
    return params, np.array(losses)


def data(dtype=np.float32):
    rng = np.random.default_rng(0)
    layer, heads, x, y = (rng.normal(size=shape).astype(dtype) for shape in ((3, 4), (4, 2), (8, 3), (8, 2)))
    return {"layer": layer / 2, "heads": heads / 2}, x, y


def check(wrap=lambda f: f):
    """Return the gradient, that of a loss of the first head alone, and the trained weights; `wrap` may be jax.jit."""
    params, x, y = data()

    def one_head(params):
        return jnp.mean((x @ params["layer"] @ params["heads"][:, 0] - y[:, 0]) ** 2) / 2

    grads = wrap(jax.grad(lambda params: loss(params, x, y, killed=1)))(params)
    expected = jax.grad(one_head)(params)
    first, first_losses = train(params, x, y, killed=1, wrap=wrap)
    second, losses = train(first, x, y, killed=None, wrap=wrap)
    return {
        "gradient of the layer": (grads["layer"], expected["layer"]),
        "gradient of the heads": (grads["heads"], expected["heads"]),
        "the killed head stays": (first["heads"][:, 1], params["heads"][:, 1]),
        "then it moves": (second["heads"][:, 1] != params["heads"][:, 1], np.full(4, True)),
        "both stages lower the loss": (first_losses[0] > first_losses[-1] > losses[-1], True),
    }


def main():
    params, x, y = data()
    grads = jax.grad(loss)(params, x, y, 1)
    print(f"gradient of the heads, the second killed: {np.round(np.float64(grads['heads']), 4).tolist()}")
    params, losses = train(params, x, y, killed=1)
    print(f"losses, the second head killed: {np.round(np.float64(losses[::3]), 4).tolist()}")
    params, losses = train(params, x, y, killed=None)
    print(f"losses, both heads trained: {np.round(np.float64(losses[::3]), 4).tolist()}")


if __name__ == "__main__":
    main()
