"""Memory: what a compiled program keeps, next to what save_for_backward was given, and what the barrier costs.

python -m benchmarks.memory [--rounds 151]

32 swish layers of 4 MiB each save their inputs, 128 MiB. Any program needs two activations more at its peak, the one
at work and its gradient. XLA merges what backward computes again with what forward computed, and so keeps it too,
unless the residuals stand behind a barrier. The models' steps are timed with that barrier and without; the control is
one program compiled twice, and its error, up to 2 %, is added to the bound.
"""

import sys
from unittest import mock

import jax
import jax.numpy as jnp

import fnjax
from benchmarks import harness
from benchmarks.models import MODELS, Swish, by_hand, swish_backward, swish_forward, with_fnjax
from benchmarks.running import step_times

LAYERS, MEBIBYTE = 32, 2**20
X = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
ACTIVATION = 4.0
SAVED = LAYERS * ACTIVATION


def unrolled(f, layers=LAYERS):
    def loss(x):
        for _ in range(layers):
            x = f(x)
        return x.sum()

    return loss


def scanned(f, layers=LAYERS):
    return lambda x: jax.lax.scan(lambda x, _: (f(x), None), x, length=layers)[0].sum()


def mebibytes(loss):
    """Peak temporary memory of the compiled gradient."""
    return jax.jit(jax.grad(loss)).lower(X).compile().memory_analysis().temp_size_in_bytes / MEBIBYTE


def swish_layers(report):
    """Add the table of the swish layers; return the memory that fnjax needs, unrolled and in scan."""
    found = {}
    forms = {
        "fnjax": Swish.apply,
        "by hand, with a barrier": by_hand(swish_forward, swish_backward),
        "by hand, without": by_hand(swish_forward, swish_backward, barrier=False),
    }

    def rows():
        for name, f in forms.items():
            found[name] = mebibytes(unrolled(f)), mebibytes(scanned(f))
            yield name, *found[name], SAVED, SAVED + 2 * ACTIVATION

    columns = ("", "unrolled MiB", "scan MiB", "saved MiB", "saved + 2 MiB")
    report.table(f"Peak temporary memory of {LAYERS} swish layers", columns, rows())
    return found["fnjax"]


def packed_layers(report):
    """Add the table of dense layers with saved-tensor hooks; return the memory kept, relative to no hooks."""
    count, w = 16, jax.random.normal(jax.random.key(0), (1024, 1024), jnp.float32) / 32
    shares = {}

    def to_int8(x):
        scale = jnp.maximum(jnp.abs(x).max(-1, keepdims=True), 1e-30) / 127
        return jnp.round(x / scale).astype(jnp.int8), scale

    hooks = {
        "none": None,
        "bfloat16": (lambda x: x.astype(jnp.bfloat16), lambda kept: kept.astype(jnp.float32)),
        "int8 and a scale": (to_int8, lambda kept: kept[0].astype(jnp.float32) * kept[1]),
    }

    def hooked(loss, pair):
        def with_hooks(x):
            with fnjax.saved_tensors_hooks(*pair):
                return loss(x)

        return loss if pair is None else with_hooks

    def rows():
        for name, pair in hooks.items():
            layers = (lambda x: Swish.apply(x @ w)), Swish.apply
            found = [mebibytes(hooked(make(f, count), pair)) for f in layers for make in (unrolled, scanned)]
            shares[name] = max(found) / (count * ACTIVATION)
            yield name, *found

    columns = ("", "dense, unrolled MiB", "dense, scan MiB", "chain, unrolled MiB", "chain, scan MiB")
    report.table(f"{count} swish layers of (1024, 1024), saved_tensors_hooks", columns, rows())
    return shares


def measure(report, options):
    unrolled_peak, scan_peak = swish_layers(report)
    ratios = {}

    def barrier_rows():
        for model in MODELS.values():
            parameters, data = model.numbers()
            args = jax.device_put((parameters, *data))
            step = jax.jit(model.step(with_fnjax())).lower(*args).compile()
            jax.clear_caches()  # else JAX remembers the traces with the barrier
            with mock.patch("fnjax._primitives.linearization._add_barrier", lambda residuals: residuals):
                lowered = jax.jit(model.step(with_fnjax())).lower(*args)
            assert "optimization_barrier" not in lowered.as_text()
            without = lowered.compile()
            jax.clear_caches()
            times = step_times({"with": step, "without": without, "control": lowered.compile()}, args, options.rounds)
            ratio, control = (harness.ratio(times, name, "without") for name in ("with", "control"))
            ratios[model.title] = ratio, 1.01 + min(abs(control - 1), 0.02)
            sizes = [c.memory_analysis().temp_size_in_bytes / MEBIBYTE for c in (step, without)]
            yield model.title, *sizes, ratio, control

    columns = ("", "with MiB", "without MiB", "step time ratio", "control")
    report.table("The barrier in training steps", columns, barrier_rows())
    report.goal("unrolled, of what was saved", unrolled_peak / SAVED, 1.05)
    report.goal("in scan, of what was saved and two activations", scan_peak / (SAVED + 2 * ACTIVATION), 1.05)
    report.note(f"in scan, of what was saved alone: {scan_peak / SAVED:.3f}")
    shares = packed_layers(report)
    report.goal("packed as bfloat16, of what was saved", shares["bfloat16"], 0.66)
    report.goal("packed as int8, of what was saved", shares["int8 and a scale"], 0.4)
    for title, (ratio, bound) in ratios.items():
        report.goal(f"a step with the barrier, {title}", ratio, bound)


if __name__ == "__main__":
    harness.use_two_cores()
    sys.exit(harness.run(measure, __doc__, rounds=151))
