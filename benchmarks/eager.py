"""Eager: what a call costs outside jit, and what a jitted call costs, next to hand-written jax.custom_vjp.

python -m benchmarks.eager [--rounds 40]

Time of this thread's processor on eight numbers, so that the numbers themselves cost next to nothing. Goals: a plain
call costs at most 3 µs more than its body; jit(F.apply) at most 1.05 of jitted custom_vjp; outside jit jax.grad of a
Function of a few operations at most 1.0 of custom_vjp's. The bare identity is shown next to it: there nothing but the
library is left.
"""

import functools
import statistics
import sys
import time

import jax
import jax.numpy as jnp

import fnjax
from benchmarks import harness
from benchmarks.models import Swish, by_hand, swish_backward, swish_forward

X = jnp.linspace(0.5, 1.5, 8)


class Identity(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class Power(fnjax.Function):
    """A saved input, and a number."""

    @staticmethod
    def forward(ctx, x, n):
        ctx.save_for_backward(x)
        ctx.n = n
        return x**n

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * ctx.n * x ** (ctx.n - 1), None


class NoContext:
    """A ctx that records nothing: what is left of a call is the body of forward."""

    def save_for_backward(self, *tensors):
        pass


def body_of(cls):
    forward, ctx = cls.forward, NoContext()
    return lambda x, *args: forward(ctx, x, *args)


FORMS = {
    "identity": (Identity.apply, body_of(Identity), by_hand(lambda x: (x, ()), lambda saved, g: (g,), barrier=False)),
    "swish": (Swish.apply, body_of(Swish), by_hand(swish_forward, swish_backward, barrier=False)),
    "a number": (
        lambda x: Power.apply(x, 2),
        functools.partial(lambda body, x: body(x, 2), body_of(Power)),
        by_hand(lambda x: (x**2, x), lambda x, g: (g * 2 * x,), barrier=False),
    ),
}


def pullback(f):
    """Forward and backward, outside jit, with nothing of a sum around it."""
    return lambda: jax.block_until_ready(jax.vjp(f, X)[1](X))


def gradient(f):
    grad = jax.grad(lambda x: f(x)[0])
    return lambda: jax.block_until_ready(grad(X))


def call(f):
    return lambda: f(X)


def measure(report, options):
    found = {}

    def rows():
        for name, (apply, body, hand) in FORMS.items():
            plain = {"fnjax": call(apply), "by hand": call(hand), "body": call(body)}
            jitted = {"fnjax": call(jax.jit(apply)), "by hand": call(jax.jit(hand)), "body": call(jax.jit(body))}
            works = {
                "plain call": (plain, 50),
                "jit(F.apply)": (jitted, 500),
                "jax.vjp, outside jit": ({"fnjax": pullback(apply), "by hand": pullback(hand)}, 5),
                "jax.grad, outside jit": ({"fnjax": gradient(apply), "by hand": gradient(hand)}, 5),
            }
            for what, (cases, calls) in works.items():
                times = harness.interleaved(cases, options.rounds, clock=time.thread_time, calls=calls)
                found[name, what] = harness.ratio(times, "fnjax", "by hand")
                over = "-"
                if "body" in times:
                    pairs = zip(times["fnjax"], times["body"], strict=True)
                    over = found[name, what, "over"] = statistics.median(a - b for a, b in pairs) * 1e6
                medians = [round(harness.median_us(times, form), 2) for form in ("fnjax", "by hand")]
                yield f"{name}: {what}", *medians, over, found[name, what]

    report.table("Calls", ("", "fnjax µs", "by hand µs", "over the body µs", "ratio"), rows())
    for name in FORMS:
        report.goal(f"{name}: a plain call over its body, µs", found[name, "plain call", "over"], 3)
        report.goal(f"{name}: jit(F.apply)", found[name, "jit(F.apply)"], 1.05)
    for what in ("jax.vjp, outside jit", "jax.grad, outside jit"):
        report.goal(f"swish: {what}", found["swish", what], 1.0)
        report.note(f"identity: {what}: {found['identity', what]:.3f} (beside it, no goal: nothing but the library)")


if __name__ == "__main__":
    harness.use_two_cores()
    sys.exit(harness.run(measure, __doc__, rounds=40))
