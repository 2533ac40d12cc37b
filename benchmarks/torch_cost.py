"""Cost of fnjax.torch next to the port of the same file: tracing, and the compiled program.

    python -m benchmarks.torch_cost [--count 60]

Each class is loaded as it is and ported; `jax.grad` of both is traced and compiled under `jax.jit` for the same
arguments. The ratios are loaded / ported: seconds of the process to trace, floating-point operations and bytes of the
compiled program (XLA's own count), as geometric means. A class that one of the two refuses is left out and counted.
"""

import argparse
import functools
import math
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import fnjax.torch
from fnjax.port import port_source
from tests.port.test_classes import CASES, arguments, module, source


def measure(apply, args):
    """Seconds to trace the gradient, and the compiled program's operations and bytes."""
    arrays = [i for i, a in enumerate(args) if isinstance(a, np.ndarray)]
    moving = [i for i in arrays if args[i].dtype.kind == "f"]

    def loss(values):
        full = list(args)
        for i, value in zip(arrays, values, strict=True):
            full[i] = value
        leaves = [x for x in jax.tree.leaves(apply(*full)) if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum((x * x).sum() for x in leaves)

    values = [jnp.asarray(args[i], jnp.float32 if args[i].dtype.kind == "f" else None) for i in arrays]
    places = {i: n for n, i in enumerate(arrays)}

    def gradient(values):
        return jax.grad(
            lambda *given: loss([given[moving.index(i)] if i in moving else values[places[i]] for i in arrays]),
            tuple(range(len(moving))),
        )(*(values[places[i]] for i in moving))

    seconds = []
    for _ in range(3):
        function = jax.jit(functools.partial(gradient))  # a new one: nothing that was traced is found again
        start = time.process_time()
        traced = function.trace(values)
        seconds.append(time.process_time() - start)
    cost = traced.lower().compile().cost_analysis()
    return min(seconds), cost.get("flops", 0.0), cost.get("bytes accessed", 0.0)


def compare(name, folder):
    """Return the ratios of one class, or None if one side refuses it."""
    path = folder / f"{name}.py"
    path.write_text(source(name))
    ported = port_source(path.read_text())
    if {c.name: c.status for c in ported.classes}.get(name) != "ported":
        return None
    try:
        loaded = getattr(fnjax.torch.load(path), name).apply
        theirs = measure(getattr(module(folder, f"port_{name}", ported.code), name).apply, arguments(name))
        ours = measure(loaded, arguments(name))
    except Exception:  # noqa: BLE001 - a class without gradient, or one that a side refuses under jit
        return None
    return [a / b if b else 1.0 for a, b in zip(ours, theirs, strict=True)]


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=60, help="how many of the classes of tests/port")
    count = parser.parse_args().count
    warnings.simplefilter("ignore")
    names = sorted(CASES)[:: max(len(CASES) // count, 1)]
    with tempfile.TemporaryDirectory() as folder:
        found = {name: ratios for name in names if (ratios := compare(name, Path(folder))) is not None}
    print(f"JAX {jax.__version__}, {len(found)} classes of {len(names)} on both sides")
    for title, column in zip(("tracing", "operations", "bytes"), zip(*found.values(), strict=True), strict=True):
        mean = math.exp(statistics.fmean(math.log(max(r, 1e-9)) for r in column))
        worst = max(found, key=lambda n: found[n][("tracing", "operations", "bytes").index(title)])
        print(f"{title:10} mean {mean:.2f}  median {statistics.median(column):.2f}  worst {max(column):.2f} ({worst})")


if __name__ == "__main__":
    main()
