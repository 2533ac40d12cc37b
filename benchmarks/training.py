"""Training whole models: losses next to PyTorch's, and what starting and a step cost.

python -m benchmarks.training [--rounds 5] [--steps 30] --page benchmarks/MODELS.md

The models are those of `trained_models`, with Functions of their own; a step is the loss, its gradients and AdamW, of
optax here and of PyTorch in eager mode. Losses are those of `training_losses`: in float64 the largest difference from
PyTorch (goal: 1e-9), and in float32 the largest distance of either from PyTorch's in float64. Cost is measured in
float32, in seconds of the processor, with one core on both sides: without a cache of compiled programs. Memory is that
of temporary values of XLA's program, and what PyTorch's graph saves for backward. `gpt_by_hand` is the GPT in JAX with
jax.custom_vjp.
"""

import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import time

from benchmarks import harness

MIB = 2**20


def spent(call):
    """Return the processor time of a call, and its result."""
    gc.collect()
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def make_step(gradient, optimiser):
    """Return (parameters, buffers, state, *batch) → the same after a step of AdamW, and the loss."""
    import optax

    def step(params, buffers, state, *batch):
        (value, buffers), grads = gradient(params, buffers, *batch)
        updates, state = optimiser.update(grads, state, params)
        return optax.apply_updates(params, updates), buffers, state, value

    return step


def trace_and_lower(step, args):
    """Return the processor time of tracing and of lowering a step, and what is lowered."""
    import jax

    again = functools.partial(step)  # a new function, which no cache knows
    traced_in, traced = spent(lambda: jax.jit(again).trace(*args))
    lowered_in, lowered = spent(traced.lower)
    return traced_in, lowered_in, lowered


def read_losses(steps):
    """Return the losses in float64, by model, of `training_losses`."""
    command = [sys.executable, "-m", "benchmarks.training_losses", "--steps", str(steps)]
    environment = {**os.environ, "JAX_ENABLE_X64": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {each["model"]: each for each in found}


def far(first, second):
    return max(abs(a - b) for a, b in zip(first, second, strict=True))


class TorchStep:
    """A step of AdamW in PyTorch, and the bytes that it saves for backward."""

    def __init__(self, model, batch, make_optimiser):
        import torch

        self.model, self.batch = model, [*map(torch.tensor, batch)]
        self.optimiser = make_optimiser(model.parameters())

    def __call__(self):
        loss = self.model(*self.batch)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()

    def count_saved(self):
        import torch

        saved, own = {}, {p.untyped_storage().data_ptr() for p in self.model.parameters()}

        def pack(x):
            memory = x.untyped_storage()
            if memory.data_ptr() not in own:
                saved[memory.data_ptr()] = memory.nbytes(), x
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            self.model(*self.batch)
        return sum(size for size, _ in saved.values())


def measure_model(name, source, rounds):
    """Return a model's rows of the tables of starting and of steps."""
    from benchmarks import training_losses as losses

    optimiser, make_optimiser = losses.OPTIMISERS["AdamW"]
    built_in, (model, theirs) = spent(lambda: losses.make_pair(name, source, "float32"))
    batch = losses.draw_batches(name, 1, "float32")[0]
    params, buffers = losses.read_state(model)
    args = (params, buffers, optimiser.init(params), *batch)
    traced_in, lowered_in, lowered = trace_and_lower(make_step(losses.make_gradient(model), optimiser), args)
    compiled_in, compiled = spent(lowered.compile)
    eager = TorchStep(theirs, batch, make_optimiser)
    saved = eager.count_saved()
    kept = [args]

    def run():
        *state, value = compiled(*kept[0])
        value.block_until_ready()
        kept[0] = (*state, *batch)

    times = harness.interleaved({"here": run, "PyTorch": eager}, rounds, clock=time.process_time, calls=3)
    ours, torchs = (statistics.median(times[side]) * 1e3 for side in ("here", "PyTorch"))
    memory = compiled.memory_analysis().temp_size_in_bytes / MIB
    start = (name, built_in, traced_in, lowered_in, compiled_in)
    return start, (name, ours, torchs, ours / torchs, memory, saved / MIB)


def measure_by_hand(layers, source, rounds):
    """Return the ratios to the GPT by hand: trace and lower, compile, step, flops, temporary memory."""
    from benchmarks import gpt_by_hand
    from benchmarks import training_losses as losses

    optimiser, _ = losses.OPTIMISERS["AdamW"]
    with losses.fnjax.torch.seed(0):
        model = source.GPT(layers)
    (params, buffers), batch = losses.read_state(model), losses.draw_batches("GPT", 1, "float32")[0]
    args = (params, buffers, optimiser.init(params), *batch)
    import jax

    def by_hand(params, buffers, *batch):
        return jax.value_and_grad(lambda p: (gpt_by_hand.loss(p, *batch), buffers), has_aux=True)(params)

    steps = {"here": make_step(losses.make_gradient(model), optimiser), "by hand": make_step(by_hand, optimiser)}
    started, compiled = {side: [] for side in steps}, {}
    for _ in range(rounds):
        for side, step in steps.items():
            *seconds, lowered = trace_and_lower(step, args)
            started[side].append(sum(seconds))
            compiled[side] = lowered
    programs = {side: spent(lowered.compile) for side, lowered in compiled.items()}
    runs = {side: (lambda f=f: f(*args)[-1].block_until_ready()) for side, (_, f) in programs.items()}
    times = harness.interleaved(runs, rounds, clock=time.process_time, calls=5)
    (here_in, here), (hand_in, hand) = programs["here"], programs["by hand"]
    return (
        min(started["here"]) / min(started["by hand"]),
        here_in / hand_in,
        harness.ratio(times, "here", "by hand"),
        here.cost_analysis()["flops"] / hand.cost_analysis()["flops"],
        here.memory_analysis().temp_size_in_bytes / hand.memory_analysis().temp_size_in_bytes,
    )


def measure_depth(layers, source):
    """Return the times to trace and lower a step of a GPT: a loop over the blocks, scan_modules, StackedModules."""
    from benchmarks import training_losses as losses

    torch, found = losses.fnjax.torch, []
    optimiser, _ = losses.OPTIMISERS["AdamW"]
    batch = losses.draw_batches("GPT", 1, "float32")[0]
    for kind in ("loop", "scan", "stacked"):
        with torch.seed(0):
            model = source.GPT(layers)
        if kind == "scan":
            model.call_blocks = lambda x, blocks=model.blocks: torch.func.scan_modules(blocks, x)
        elif kind == "stacked":
            model.blocks = torch.nn.ModuleList([torch.nn.StackedModules(model.blocks)])
        params, buffers = losses.read_state(model)
        step, args = make_step(losses.make_gradient(model), optimiser), (params, buffers, optimiser.init(params))
        found.append(min(sum(trace_and_lower(step, (*args, *batch))[:2]) for _ in range(2)))
    return layers, *found


def measure(report, options):
    import torch

    import fnjax.torch
    from benchmarks import training_losses as losses

    torch.set_num_threads(1)
    losses.jax.config.update("jax_enable_compilation_cache", False)
    loaded_in, source = spent(lambda: fnjax.torch.load(losses.SOURCE))
    report.note(f"The file of the models is loaded in {loaded_in:.2f} s.")
    exact, rows = read_losses(options.steps), {}
    for name in losses.trained_models.MODELS:
        rows[name] = measure_model(name, source, options.rounds)
        print(*rows[name][0], flush=True)
    report.table(
        f"Losses of {options.steps} steps: largest distance from PyTorch in float64, and of float32 from float64",
        ("", "SGD", "AdamW", "AdamW, first and last loss", "float32 here", "float32 PyTorch"),
        [
            (
                name,
                *(f"{far(each[o]['here'], each[o]['PyTorch']):.1e}" for o in ("SGD", "AdamW")),
                f"{each['AdamW']['here'][0]:.4f}, {each['AdamW']['here'][-1]:.4f}",
                *(f"{far(each['float32'][side], each['AdamW']['PyTorch']):.1e}" for side in ("here", "PyTorch")),
            )
            for name, each in exact.items()
        ],
    )
    report.table(
        "Starting, s",
        ("", "build, both sides", "trace", "lower", "compile"),
        [start for start, _ in rows.values()],
    )
    report.table(
        "A step",
        ("", "here, ms", "PyTorch eager, ms", "here / PyTorch", "temporary MiB here", "saved MiB PyTorch"),
        [step for _, step in rows.values()],
    )
    by_hand = {n: measure_by_hand(n, source, options.rounds) for n in (2, 4, 12)}
    report.table(
        "GPT next to JAX written by hand (ratios)",
        ("layers", "trace and lower", "compile", "step", "flops", "temporary memory"),
        [(str(n), *found) for n, found in by_hand.items()],
    )
    report.table(
        "Trace and lower of a GPT's step by depth, s",
        ("layers", "loop", "scan_modules", "StackedModules"),
        [measure_depth(n, source) for n in (2, 12, 24, 48)],
    )
    worst = max(far(each[o]["here"], each[o]["PyTorch"]) for each in exact.values() for o in ("SGD", "AdamW"))
    report.goal("losses in float64, largest difference, 1e-9", worst * 1e9, 1)
    report.goal("traces of a step", max(each["traces"] for each in exact.values()), 1)
    report.goal("trace and lower, GPT of 2 layers / by hand", by_hand[2][0], 1.3)


if __name__ == "__main__":
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])  # before JAX is imported
    sys.exit(harness.run(measure, __doc__, rounds=5, steps=30))
