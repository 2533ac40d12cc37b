"""Weight gradients added up in a Ref inside backward, in a scan over microbatches: Megatron's weight.main_grad."""

import jax
import jax.numpy as jnp
import numpy as np

import fnjax


class Linear(fnjax.Function):
    """A linear layer that adds the gradient of its weight to main_grad, a Ref, instead of returning it."""

    @staticmethod
    def forward(ctx, x, weight, main_grad):
        ctx.save_for_backward(x, weight)
        ctx.main_grad = main_grad
        return x @ weight.T

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        ctx.main_grad[...] += grad_output.T @ x
        return grad_output @ weight, None, None


def loss(weights, main_grads, x, y):
    h = jnp.tanh(Linear.apply(x, weights[0], main_grads[0]))
    return jnp.sum((Linear.apply(h, weights[1], main_grads[1]) - y) ** 2)


def accumulate(weights, x, y):
    """Add up the gradients of all microbatches, the first axis of x and y, in one array for each weight."""
    main_grads = [jax.new_ref(jnp.zeros_like(w)) for w in weights]

    def microbatch(carry, batch):
        jax.grad(loss)(weights, main_grads, *batch)  # what it returns is zero: the gradients go to main_grads
        return carry, None

    jax.lax.scan(microbatch, None, (x, y))
    return [main_grad[...] for main_grad in main_grads]


def plain_loss(weights, x, y):
    return jnp.sum((jnp.tanh(x @ weights[0].T) @ weights[1].T - y) ** 2)


def sum_afterwards(weights, x, y):
    """Compute the same in plain JAX: the gradients of all microbatches are stacked, and summed at the end."""
    _, grads = jax.lax.scan(lambda c, batch: (c, jax.grad(plain_loss)(weights, *batch)), None, (x, y))
    return [g.sum(0) for g in grads]


N, BATCH, SIZE = 32, 4, 128
RNG = np.random.default_rng(0)
WEIGHTS = [np.float32(RNG.normal(size=(SIZE, SIZE)) / SIZE) for _ in range(2)]
X, Y = (np.float32(RNG.normal(size=(N, BATCH, SIZE))) for _ in range(2))


def check(wrap=lambda f: f):
    """Return fnjax's results, and the expected ones; `wrap` may be jax.jit."""
    got = wrap(accumulate)(WEIGHTS, X, Y)
    expected = jax.grad(plain_loss)(WEIGHTS, X.reshape(-1, SIZE), Y.reshape(-1, SIZE))
    return {f"gradient of weight {i}": (got[i] / N, np.asarray(expected[i]) / N) for i in range(2)}


def temporary(f):
    """Return the temporary memory of a compiled function, as a multiple of the weight's size."""
    return jax.jit(f).lower(WEIGHTS, X, Y).compile().memory_analysis().temp_size_in_bytes / WEIGHTS[0].nbytes


def main():
    for name, (got, expected) in check().items():
        print(f"{name}: begins with {np.float64(got[0, :3]).round(4)}, off by {np.abs(got - expected).max():.0e}")
    for f in (accumulate, sum_afterwards):
        print(f"{f.__name__} needs memory for {temporary(f):.0f} weights")


if __name__ == "__main__":
    main()
