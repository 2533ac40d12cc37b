"""Running: the compiled program of every Function of the zoo and of the models, next to hand-written jax.custom_vjp.

python -m benchmarks.running [--rounds 151]

Counts of operations, flops and bytes accessed must be equal; the time of a step is compared for the models. The control
is the hand-written program compiled once more. On an accelerator the count of operations of the optimised program is
that of its kernels.
"""

import collections
import re
import sys
import time

import jax

from benchmarks import harness
from benchmarks.models import MODELS, with_custom_vjp, with_fnjax
from tests.by_hand import PAIRS, arguments, loss

# Its backward is differentiated again, and linearized by other paths on either side: held to the cost, not the text.
SECOND_ORDER = MODELS["critic"].title
NOISE = 0.02  # and what the control is off by, the same program compiled once more, up to 3 %


def costs(compiled):
    """Operations by name, flops, bytes."""
    operations = collections.Counter(re.findall(r" = \S+ ([a-z][a-z0-9-]*)\(", compiled.as_text()))
    analysis = compiled.cost_analysis()
    return operations, analysis.get("flops", 0.0), analysis.get("bytes accessed", 0.0)


def zoo():
    """Each Function of the zoo: its name, and the compiled gradient of both forms."""
    for name, (apply, by_hand, _) in PAIRS.items():
        args = arguments(name)
        grads = [jax.value_and_grad(loss(f, 3), tuple(range(len(args)))) for f in (apply, by_hand)]
        yield name, *(jax.jit(grad).lower(*args).compile() for grad in grads)


def steps(model):
    """Return the compiled training steps of a model, and their arguments."""
    parameters, data = model.numbers()
    args = jax.device_put((parameters, *data))
    forms = {"fnjax": with_fnjax(), "custom_vjp": with_custom_vjp(), "control": with_custom_vjp()}
    return {name: jax.jit(model.step(form)).lower(*args).compile() for name, form in forms.items()}, args


def step_times(compiled, args, rounds):
    """Measure the times of each compiled step, interleaved, some 5 ms for a measurement."""
    cases = {name: lambda f=f: jax.block_until_ready(f(*args)) for name, f in compiled.items()}
    first = next(iter(cases.values()))
    first()
    start = time.perf_counter()
    first()
    calls = max(1, int(0.005 / (time.perf_counter() - start)))
    return harness.interleaved(cases, rounds, calls=calls)


def measure(report, options):
    different, cheaper, ratios = [], [], {}

    def row(name, ours, theirs, *more):
        (a, flops, accessed), (b, their_flops, their_accessed) = costs(ours), costs(theirs)
        if name == SECOND_ORDER:
            cheaper.extend([flops / their_flops, accessed / their_accessed])
        elif (a, flops, accessed) != (b, their_flops, their_accessed):
            different.append(name)
        pairs = [(a.total(), b.total()), (flops, their_flops), (accessed, their_accessed)]
        return name, *(f"{x:.0f}" if x == y else f"{x:.0f} / {y:.0f}" for x, y in pairs), *more

    report.table(
        "Programs of the zoo (fnjax / by hand where they differ)",
        ("", "operations", "flops", "bytes accessed"),
        (row(*case) for case in zoo()),
    )

    def rows():
        for model in MODELS.values():
            compiled, args = steps(model)
            times = step_times(compiled, args, options.rounds)
            ratio, control = (harness.ratio(times, name, "custom_vjp") for name in ("fnjax", "control"))
            ratios[model.title] = ratio, 1 + NOISE + min(abs(control - 1), 0.03)
            us = round(harness.median_us(times, "fnjax"))
            yield row(model.title, compiled["fnjax"], compiled["custom_vjp"], us, ratio, control)

    columns = ("", "operations", "flops", "bytes accessed", "step µs", "ratio", "control")
    report.table("Training steps", columns, rows())
    report.goal(f"programs that differ{f' {different}' if different else ''}", len(different), 0)
    report.goal(f"{SECOND_ORDER}: flops or bytes, the larger ratio", max(cheaper), 1.0)
    for title, (ratio, bound) in ratios.items():
        report.goal(f"step time, {title}", ratio, bound)


if __name__ == "__main__":
    harness.use_two_cores()
    sys.exit(harness.run(measure, __doc__, rounds=151))
