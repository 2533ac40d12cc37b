"""Tracing: chains of calls, bare and each under a jit of its own, next to hand-written jax.custom_vjp likewise.

python -m benchmarks.tracing [--rounds 7]

swish saves its input, tanh its output; with a static argument both take a number that is passed along. By hand, forward
and backward are written out. What is timed is jit(grad(...)).trace(), alone and with lower(), in time of this thread's
processor, and the whole way to the first step, XLA's compilation included; ratios are medians over interleaved rounds.
Warm: the Function was traced before, in another program; cleared: after jax.clear_caches(). By hand there is no barrier
on the residuals, which fnjax has (docs/guides/saving-and-memory.md); the column "with barrier" is next to the same with
it.
Goals: of bare custom_vjp at most 1.05 at 100 and 1000 calls, 1.1 at 1 and 10; of the equally jitted 1.05, inline 1.1;
trace and lower together 1.1, and so the first step.
"""

import gc
import sys
import time

import jax
import jax.numpy as jnp

import fnjax
from benchmarks import harness

X = jnp.ones(8)


def swish_slope(x):
    s = jax.nn.sigmoid(x)
    return s * (1 + x * (1 - s))


# Of each: forward, what is saved of (x, y), and the slope as a function of that.
RULES = {
    "swish": (lambda x: x * jax.nn.sigmoid(x), lambda x, y: x, swish_slope),
    "tanh": (jnp.tanh, lambda x, y: y, lambda y: 1 - y * y),
}


def new_function(kind, static):
    compute, saved, slope = RULES[kind]

    class Bare(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            y = compute(x)
            ctx.save_for_backward(saved(x, y))
            return y

        @staticmethod
        def backward(ctx, grad_output):
            (kept,) = ctx.saved_tensors
            return grad_output * slope(kept)

    class Static(fnjax.Function):
        @staticmethod
        def forward(ctx, x, k):
            y = compute(x)
            ctx.save_for_backward(saved(x, y))
            ctx.k = k
            return y

        @staticmethod
        def backward(ctx, grad_output):
            (kept,) = ctx.saved_tensors
            return grad_output * slope(kept), None

    return (Static if static else Bare).apply


def new_custom_vjp(kind, static, barrier=False):
    compute, saved, slope = RULES[kind]
    hold = jax.lax.optimization_barrier if barrier else lambda kept: kept
    if static:

        def f(x, k):
            return compute(x)

        def forward(x, k):
            y = compute(x)
            return y, saved(x, y)

        def backward(k, kept, g):
            return (g * slope(hold(kept)),)

    else:

        def f(x):
            return compute(x)

        def forward(x):
            y = compute(x)
            return y, saved(x, y)

        def backward(kept, g):
            return (g * slope(hold(kept)),)

    f = jax.custom_vjp(f, nondiff_argnums=(1,) if static else ())
    f.defvjp(forward, backward)
    return f


FORMS = {
    "fnjax": new_function,
    "by hand": new_custom_vjp,
    "with barrier": lambda kind, static: new_custom_vjp(kind, static, barrier=True),
}
WAYS = {
    "bare": lambda f, static: f,
    "jit": lambda f, static: jax.jit(f, static_argnums=(1,) if static else ()),
    "inline": lambda f, static: jax.jit(f, static_argnums=(1,) if static else (), inline=True),
}
GOALS = {("bare", 1): 1.1, ("bare", 10): 1.1, ("jit", None): 1.05, ("inline", None): 1.1}


def chain(f, calls, static):
    args = (2,) if static else ()

    def loss(x):
        for _ in range(calls):
            x = f(x, *args)
        return x.sum()

    return loss


def traced(loss):
    return jax.jit(jax.grad(loss)).trace(X)


WORKS = {
    "trace": traced,
    "trace and lower": lambda loss: traced(loss).lower(),
    "first step": lambda loss: jax.block_until_ready(traced(loss).lower().compile()(X)),
}


def compare(kind, static, way, calls, what, *, cleared, rounds):
    """Measure the tracing times of each form; a new program each time."""
    functions = {name: WAYS[way](make(kind, static), static) for name, make in FORMS.items()}

    def setup(name):
        if cleared:
            jax.clear_caches()
        gc.collect()
        return chain(functions[name], calls, static)

    # XLA compiles in threads of its own.
    clock = time.process_time if what == "first step" else time.thread_time
    return harness.interleaved(dict.fromkeys(FORMS, WORKS[what]), rounds, clock=clock, setup=setup)


def measure(report, options):
    worst = {}

    def row(kind, static, way, calls, what):
        rounds = max(3, options.rounds * 100 // (calls + 20))
        title = f"{kind}{', static argument' if static else ''}: {way}, {calls} call{'s' * (calls > 1)}"
        ratios, us = [], []
        for cleared in (False, True):
            times = compare(kind, static, way, calls, what, cleared=cleared, rounds=min(rounds, 5 * options.rounds))
            ratios += [harness.ratio(times, "fnjax", other) for other in ("by hand", "with barrier")]
            us = us or [round(harness.median_us(times, name) / calls) for name in ("fnjax", "by hand")]
        bound = 1.1 if what != "trace" else GOALS.get((way, calls), GOALS.get((way, None), 1.05))
        goal = f"{what}, {way}, {calls} call{'s' * (calls > 1)}"
        worst[goal] = max(worst.get(goal, (0, ""))[0], ratios[0], ratios[2]), bound
        return title, what, *us, *ratios

    def rows():
        for what in WORKS:
            for kind in RULES:
                for static in (False, True) if what != "first step" else (False,):
                    for calls in (1, 10, 100, 1000) if what != "first step" else (10, 100):
                        yield row(kind, static, "bare", calls, what)
                    if what == "trace":
                        for way in ("jit", "inline"):
                            yield row(kind, static, way, 100, what)

    columns = ("", "what", "fnjax µs/call", "by hand µs/call")
    columns += ("warm", "warm, with barrier", "cleared", "cleared, with barrier")
    report.table("Tracing", columns, rows())
    for goal, (ratio, bound) in worst.items():
        report.goal(f"{goal}: the largest ratio", ratio, bound)


if __name__ == "__main__":
    harness.use_two_cores()
    sys.exit(harness.run(measure, __doc__, rounds=7))
