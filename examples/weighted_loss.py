"""A loss layer with several inputs: a weighted log-cosh, added to a second loss, with None where no gradient is due.

A loss that picks log-probabilities by label needs no Function in JAX: indexing has a derivative of every order.
"""

import jax
import jax.numpy as jnp
import numpy as np

import fnjax


class LogCosh(fnjax.Function):
    """The weighted mean of log cosh(input - target), which behaves for differences of any size."""

    @staticmethod
    def forward(ctx, input, target, weight):  # noqa: A002 - PyTorch's word
        ctx.save_for_backward(input, target, weight)
        size = jnp.abs(input - target)
        return jnp.mean(weight * (size + jnp.log1p(jnp.exp(-2 * size)) - np.log(2).item()))

    @staticmethod
    def backward(ctx, grad_output):
        input, target, weight = ctx.saved_tensors  # noqa: A001
        return grad_output * weight * jnp.tanh(input - target) / input.size, None, None


def pick_loss(scores, labels):
    """Compute the mean of -log p(label): plain JAX, no Function."""
    log_p = jax.nn.log_softmax(scores)
    return -jnp.mean(log_p[jnp.arange(labels.size), labels])


def total_loss(scores, target, weight, labels):
    return 0.7 * LogCosh.apply(scores, target, weight) + 0.3 * pick_loss(scores, labels)


SCORES = np.array([[0.5, -1.0, 2.0], [50.0, 0.0, -200.0]], np.float32)
TARGET = np.array([[0.0, 1.0, 2.0], [49.0, 0.5, 200.0]], np.float32)
WEIGHT = np.array([[1.0, 0.5, 2.0], [1.0, 0.0, 0.25]], np.float32)
LABELS = np.array([2, 0])


def check(wrap=lambda f: f):
    """Return fnjax's results, and the expected ones; `wrap` may be jax.jit."""
    grads = wrap(jax.grad(total_loss, argnums=(0, 1, 2)))(SCORES, TARGET, WEIGHT, LABELS)
    p = np.exp(SCORES - SCORES.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    grad_scores = 0.7 * WEIGHT * np.tanh(SCORES - TARGET) / 6 + 0.3 * (p - np.eye(3)[LABELS]) / 2
    with np.errstate(over="ignore"):  # the textbook formula, in float64: float32 has no cosh(400)
        log_cosh = np.mean(WEIGHT * np.log(np.cosh(np.float64(SCORES - TARGET))))
    return {
        "log-cosh loss": (wrap(LogCosh.apply)(SCORES, TARGET, WEIGHT), log_cosh),
        "gradient for the scores": (grads[0], grad_scores),
        "gradient for the target": (grads[1], np.zeros((2, 3))),
        "gradient for the weight": (grads[2], np.zeros((2, 3))),
    }


def main():
    print(f"total loss: {total_loss(SCORES, TARGET, WEIGHT, LABELS):.4f}")
    for name, (got, expected) in check().items():
        print(f"{name}: {np.round(np.float64(got), 4).tolist()}, off by {np.abs(got - expected).max():.0e}")


if __name__ == "__main__":
    main()
