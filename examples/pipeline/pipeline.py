"""Two transformer blocks on four devices: a pipeline of two stages, each tensor parallel over two devices.

    XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/pipeline/pipeline.py [PICTURE.png]

Backward is split in two by `fnjax.split_vjp`: a stage hands the gradients of its inputs on at once, and computes those
of its weights when it would wait. The gradients are compared with those of one device. The picture shows the schedule
next to 1F1B's, each step as long as XLA counts its work.
"""

from __future__ import annotations

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from schedules import find_idle, plan
from transformer import SPECS, TOKENS, WIDTH, block, loss, make_weights, plain_block

import fnjax

STAGES, MICROBATCHES = 2, 6


class Stage:
    """A block on its devices, and the three programs that they run."""

    def __init__(self, devices, weights):
        auto = (jax.sharding.AxisType.Auto,)
        self.mesh = jax.make_mesh((len(devices),), ("model",), axis_types=auto, devices=devices)
        self.weights = {name: jax.device_put(w, self.place(SPECS[name])) for name, w in weights.items()}
        on_devices = jax.shard_map(block, mesh=self.mesh, in_specs=(SPECS, jax.P()), out_specs=jax.P())
        self.forward = jax.jit(partial(fnjax.split_vjp, on_devices))
        self.backward_input = jax.jit(lambda half, grad_output: half(grad_output))
        self.backward_weight = jax.jit(lambda half, pending, total: jax.tree.map(jnp.add, total, half(pending)))

    def place(self, spec):
        """Return the sharding of an array of this stage."""
        return jax.sharding.NamedSharding(self.mesh, spec)

    def count_work(self, x):
        """Return the floating-point operations of the three programs, by XLA's count."""
        out, half, half_weight = jax.eval_shape(self.forward, self.weights, x)
        _, pending = jax.eval_shape(self.backward_input, half, out)
        programs = {
            "F": (self.forward, self.weights, x),
            "B": (self.backward_input, half, out),
            "W": (self.backward_weight, half_weight, pending, self.weights),
        }
        return {k: f.lower(*args).compile().cost_analysis()["flops"] for k, (f, *args) in programs.items()}


def run(stages, steps, inputs, targets):
    """Compute the weight gradients of each stage, summed over the microbatches, in the order of a schedule."""
    grad_loss = jax.jit(jax.grad(loss))
    values = {(0, "F", m): x for m, x in enumerate(inputs)}  # inputs and cotangents of the steps
    totals = [jax.tree.map(jnp.zeros_like, stage.weights) for stage in stages]
    halves, pending = {}, {}
    for step in steps:
        at, m, stage = step.stage, step.microbatch, stages[step.stage]
        for kind in step.kind:
            if kind == "F":
                given = jax.device_put(values.pop((at, "F", m)), stage.place(jax.P()))
                out, *halves[at, m] = stage.forward(stage.weights, given)
                if at + 1 < len(stages):
                    values[at + 1, "F", m] = out
                else:
                    values[at, "B", m] = grad_loss(out, targets[m])
            elif kind == "B":
                given = jax.device_put(values.pop((at, "B", m)), stage.place(jax.P()))
                grad_input, pending[at, m] = stage.backward_input(halves[at, m][0], given)
                if at > 0:
                    values[at - 1, "B", m] = grad_input
            else:
                totals[at] = stage.backward_weight(halves.pop((at, m))[1], pending.pop((at, m)), totals[at])
    return totals


def draw(schedules, path):
    """Draw schedules: a row for each stage, a bar for each step, bubbles left white."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    colours = {"F": "#4c78a8", "B": "#f58518", "W": "#54a24b"}
    figure, axes = plt.subplots(len(schedules), sharex=True, figsize=(11, 1.9 * len(schedules)), squeeze=False)
    for axis, (title, (steps, work)) in zip(axes[:, 0], schedules.items(), strict=True):
        for step in steps:
            start = step.start
            for kind in step.kind:
                length = work[step.stage][kind] / 1e6
                axis.barh(step.stage, length, left=start / 1e6, color=colours[kind], edgecolor="white", height=0.8)
                middle, label = start / 1e6 + length / 2, f"{kind}{step.microbatch}"
                axis.text(middle, step.stage, label, ha="center", va="center", color="white")
                start += work[step.stage][kind]
        axis.set_yticks(range(len(work)), [f"stage {s}" for s in range(len(work))])
        axis.invert_yaxis()
        axis.set_title(f"{title}: idle {find_idle(steps):.1%}", loc="left", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("million floating-point operations on a device")
    bars = [plt.Rectangle((0, 0), 1, 1, color=c) for c in colours.values()]
    names = ["forward", "gradients for inputs", "gradients for weights"]
    figure.legend(bars, names, loc="upper right", ncols=3, frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(2, MICROBATCHES, TOKENS, WIDTH)).astype(np.float32)
    weights = [make_weights(seed) for seed in range(STAGES)]
    stages = [Stage(jax.devices()[2 * s : 2 * s + 2], w) for s, w in enumerate(weights)]
    work = [stage.count_work(inputs[0]) for stage in stages]
    schedules = {
        "1F1B": plan(work, MICROBATCHES, zero_bubble=False),
        "zero bubble": plan(work, MICROBATCHES, zero_bubble=True),
    }

    def whole(weights):
        outs = jax.vmap(lambda x: plain_block(weights[1], plain_block(weights[0], x)))(inputs)
        return jnp.sum(jax.vmap(loss)(outs, targets))

    expected = jax.jit(jax.grad(whole))(weights)
    print("work of a stage:", ", ".join(f"{k} {v / 1e6:.2f}" for k, v in work[0].items()), "million operations")
    for name, steps in schedules.items():
        grads = run(stages, steps, inputs, targets)
        off = jax.tree.map(lambda g, e: float(np.abs(np.asarray(g) - e).max() / np.abs(e).max()), grads, expected)
        print(f"{name}: idle {find_idle(steps):.4f}, gradients off by {max(jax.tree.leaves(off)):.0e}")
    if len(sys.argv) > 1:
        draw({name: (steps, work) for name, steps in schedules.items()}, sys.argv[1])


if __name__ == "__main__":
    main()
