"""Loops and checkpoint: flops and temporary memory of gradients, next to hand-written jax.custom_vjp.

python -m benchmarks.loops

What a rule saves and what does not vary in a loop is kept once, not once for each step: arrays from outside, values of
arguments that do not vary, constants. Policies of jax.checkpoint see the operations of forward. The table has the
compiled gradient of both forms; nothing is timed.
"""

import itertools
import sys

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

import fnjax
from benchmarks import harness
from benchmarks.models import by_hand

STEPS = 50
X, W, SCALE = jnp.ones((2, 64), "float32"), jnp.eye(64, dtype="float32"), jnp.full(64, 0.9, "float32")
POLICIES = jax.checkpoint_policies
NAME = "saved"


def as_function(forward, backward):
    """Return a Function of the rules that `by_hand` takes."""

    class Rules(fnjax.Function):
        checkpoint_name = NAME

        @staticmethod
        def forward(ctx, *args):
            output, saved = forward(*args)
            ctx.save_for_backward(*saved)
            return output

    Rules.backward = staticmethod(lambda ctx, g: backward(ctx.saved_tensors, g))
    return Rules.apply


def dense(x, w):
    y = jnp.tanh(x @ w)
    return y, (x, w, y)


def dense_backward(saved, g):
    x, w, y = saved
    slope = g * (1 - y * y)
    return slope @ w.T, x.T @ slope


def dequantised(x, q, scale):
    y, saved = dense(x, q * scale)
    return y, (*saved, scale)


def dequantised_backward(saved, g):
    x, w, y, scale = saved
    dx, dw = dense_backward((x, w, y), g)
    return dx, dw * scale, (dw * w).sum(0) / scale


def masked(x):
    return dense(x, jnp.tril(jnp.full((64, 64), 0.1)))


def input_only(saved, g):
    return (dense_backward(saved, g)[0],)


# What is saved and does not vary: forward, backward, and the arguments that do not vary.
RULES = {
    "argument": (dense, dense_backward, (W,)),
    "outer array": (lambda x: dense(x, W), input_only, ()),
    "value": (dequantised, dequantised_backward, (W, SCALE)),
    "constant": (masked, input_only, ()),
}


def scan(f, length=STEPS):
    return lambda x, *args: jax.lax.scan(lambda x, _: (f(x, *args), None), x, length=length)[0]


LOOPS = {
    "scan": scan,
    "scan in scan": lambda f: scan(scan(f, 5), STEPS // 5),
    "fori_loop": lambda f: lambda x, *args: jax.lax.fori_loop(0, STEPS, lambda _, x: f(x, *args), x),
    "scan of jit": lambda f: scan(jax.jit(f)),
    "checkpoint in scan": lambda f: scan(jax.checkpoint(f)),
    "scan in checkpoint": lambda f: jax.checkpoint(scan(f)),
}
POLICY = {
    "everything_saveable": POLICIES.everything_saveable,
    "nothing_saveable": POLICIES.nothing_saveable,
    "dots_saveable": POLICIES.dots_saveable,
    "dots_with_no_batch_dims": POLICIES.dots_with_no_batch_dims_saveable,
    "save_only_these_names": POLICIES.save_only_these_names(NAME),
    "names and dots": POLICIES.save_from_both_policies(POLICIES.save_only_these_names(NAME), POLICIES.dots_saveable),
}


def named(forward):
    """Name what a rule saves, as a Function does by itself."""

    def run(*args):
        output, saved = forward(*args)
        return output, tuple(checkpoint_name(x, NAME) for x in saved)

    return run


def two_layers(policy):
    """Return a scan of two calls under `jax.checkpoint`."""
    return lambda f: scan(jax.checkpoint(lambda x, *args: f(f(x, *args), *args), policy=policy), 6)


def two_layers_of_a_stack(policy):
    """Return a scan of two calls under `jax.checkpoint`, whose weights are those of its step."""

    def run(f):
        layer = jax.checkpoint(lambda x, w: f(f(x, w), w), policy=policy)
        return lambda x, ws: jax.lax.scan(lambda x, w: (layer(x, w), None), x, ws)[0]

    return run


def loop_gradients(loops=LOOPS, rules=RULES):
    """Yield a title, and the compiled gradients of a Function and of custom_vjp in loops."""
    for loop, saved in itertools.product(loops, rules):
        forward, backward, args = RULES[saved]
        yield f"{loop}: {saved}", *compiled(LOOPS[loop], forward, forward, backward, args)


def policy_gradients():
    """Yield the same for policies of `jax.checkpoint`."""
    for policy, saveable in POLICY.items():
        hand = named(dense) if "names" in policy else dense
        yield policy, *compiled(two_layers(saveable), dense, hand, dense_backward, (W,), x=W)
        stack = jnp.stack([W] * 6)
        yield f"{policy}, stack", *compiled(two_layers_of_a_stack(saveable), dense, hand, dense_backward, (stack,), x=W)


def compiled(wrap, forward, hand, backward, args, x=X):
    def grad(f):
        grads = jax.grad(lambda *args: wrap(f)(*args).sum(), tuple(range(1 + len(args))))
        return jax.jit(grads).lower(x, *args).compile()

    return grad(as_function(forward, backward)), grad(by_hand(hand, backward))


def cost(program):
    """Flops, and temporary memory in KiB."""
    return program.cost_analysis()["flops"], program.memory_analysis().temp_size_in_bytes / 1024


def measure(report, options):
    ratios = []

    def row(title, ours, theirs):
        (flops, kib), (their_flops, their_kib) = cost(ours), cost(theirs)
        ratios.append((flops / their_flops, kib / their_kib))
        pairs = [(round(a), round(b)) for a, b in ((flops, their_flops), (kib, their_kib))]
        return title, *(f"{a}" if a == b else f"{a} / {b}" for a, b in pairs)

    columns = ("", "flops", "temporary KiB")
    both = "(fnjax / by hand where they differ)"
    report.table(f"Loops: what is saved {both}", columns, (row(*case) for case in loop_gradients()))
    report.table(f"jax.checkpoint in a scan: policy {both}", columns, (row(*case) for case in policy_gradients()))
    report.goal("flops, the largest ratio", max(flops for flops, _ in ratios), 1.05)
    report.goal("temporary memory, the largest ratio", max(kib for _, kib in ratios), 1.15)


if __name__ == "__main__":
    harness.use_two_cores()
    sys.exit(harness.run(measure, __doc__))
