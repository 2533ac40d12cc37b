"""Tracing: chains of calls and a network of twelve Functions, beside hand-written jax.custom_vjp.

python -m benchmarks.tracing [--rounds 7]

Each measurement makes its classes and functions anew, so that "1 call" is the first of its class. What is timed is
jit(grad(...)).trace(), alone and with lower(), in time of this thread's processor; ratios are medians over the rounds.
Goals: at most 0.45 of custom_vjp per call at 1000, at most 1.1 for a single first call.
"""

import gc
import sys
import time

import jax
import jax.numpy as jnp

import fnjax
from benchmarks import harness
from benchmarks.models import by_hand, swish_backward, swish_forward

X = jnp.ones(8)


def new_function(k=1.0):
    class Swish(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * jax.nn.sigmoid(x) * k

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            s = jax.nn.sigmoid(x)
            return grad_output * (s * (1 + x * (1 - s))) * k

    return Swish.apply


def new_custom_vjp(k=1.0):
    def forward(x):
        y, x = swish_forward(x)
        return y * k, x

    return by_hand(forward, lambda x, g: (swish_backward(x, g)[0] * k,))


def chain(new, calls):
    f = new()

    def loss(x):
        for _ in range(calls):
            x = f(x)
        return x.sum()

    return loss


def network(new):
    """Twelve different ones, each called once."""
    functions = [new(1.0 + k) for k in range(12)]

    def loss(x):
        for f in functions:
            x = f(x) + x
        return x.sum()

    return loss


def traced(loss):
    return jax.jit(jax.grad(loss)).trace(X)


def compare(make, work, rounds):
    """Times of `work` on what `make` gives for either, the making left out."""
    new = {"fnjax": new_function, "custom_vjp": new_custom_vjp}

    def setup(name):
        gc.collect()
        return make(new[name])

    return harness.interleaved(dict.fromkeys(new, work), rounds, clock=time.thread_time, setup=setup)


def measure(report, options):
    works = {"trace": traced, "trace and lower": lambda loss: traced(loss).lower()}
    found = {}

    def rows():
        for calls in (1, 10, 100, 1000):
            yield from row(f"{calls} calls" if calls > 1 else "1 call", lambda new, n=calls: chain(new, n), calls)
        yield from row("12 different ones", network, 12)

    def row(title, make, calls):
        rounds = max(3, options.rounds if calls >= 100 else 10 * options.rounds)
        for what, work in works.items():
            times = compare(make, work, rounds)
            found[title, what] = harness.ratio(times, "fnjax", "custom_vjp")
            per_call = [harness.median_us(times, name) / calls for name in times]
            yield title, what, *(round(x) for x in per_call), found[title, what]

    report.table("Tracing", ("", "what", "fnjax µs/call", "by hand µs/call", "ratio"), rows())
    report.goal("trace, per call at 1000", found["1000 calls", "trace"], 0.45)
    report.goal("trace, a single first call", found["1 call", "trace"], 1.1)
    twelve = found["12 different ones", "trace"]
    report.note(f"trace, 12 first calls of different classes in one program: {twelve:.3f} (beside it, no goal)")


if __name__ == "__main__":
    harness.use_two_cores()
    sys.exit(harness.run(measure, __doc__, rounds=7))
