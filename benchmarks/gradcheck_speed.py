"""gradcheck next to PyTorch's: f(a, b, c, d) = a b + sin(c) d at 10x20 and 64x64, and a layer that mixes its inputs.

python benchmarks/gradcheck_speed.py [--repeats 3]

All in one process, the two libraries in turn; the figures are ratios of times. "First" is a function that is checked
for the first time, "again" the same once more. "New function" is one that this process has not met, made of operations
that it has (XLA compiles each operation once for each shape); "new shapes" are ones that it has not met, so that every
operation is compiled first, which PyTorch need not do. Exits with 1 if a goal is missed: no slower than PyTorch for a
first check of a function at 10x20, and at 64x64; fast mode under 10 ms warm.
"""

import argparse
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import torch

from fnjax._check.gradcheck import gradcheck


def in_jax():
    return lambda a, b, c, d: a * b + jnp.sin(c) * d


def in_torch(a, b, c, d):
    return a * b + torch.sin(c) * d


def layer_in_jax():
    return lambda x, w, b: jnp.tanh(x @ w.T + b)


def layer_in_torch(x, w, b):
    return torch.tanh(x @ w.T + b)


def seconds(check, *args, **kwargs):
    start = time.perf_counter()
    assert check(*args, **kwargs)
    return time.perf_counter() - start


def tensors(inputs):
    return [torch.tensor(x, requires_grad=True) for x in inputs]


def compare(title, make, g, shapes, repeats):
    """Time both, PyTorch first or second in turn; `make` gives a function to check, `shapes` its shapes, by repeat."""
    rng = np.random.default_rng(0)
    first, again, theirs, fast, their_fast = [], [], [], [], []
    for k in range(repeats):
        f, ours = make(), [rng.normal(size=shape) for shape in shapes(k)]
        if k % 2:
            theirs.append(seconds(torch.autograd.gradcheck, g, tensors(ours)))
        first.append(seconds(gradcheck, f, ours))
        again.append(seconds(gradcheck, f, ours))
        if not k % 2:
            theirs.append(seconds(torch.autograd.gradcheck, g, tensors(ours)))
        for _ in range(5):
            fast.append(seconds(gradcheck, f, ours, fast_mode=True))
            their_fast.append(seconds(torch.autograd.gradcheck, g, tensors(ours), fast_mode=True))
    a, b, c = map(statistics.median, (first, again, theirs))
    quick, their_quick = statistics.median(fast), statistics.median(their_fast)
    print(
        f"{title:28}{c / a:>12.1f}{c / b:>12.1f}{c * 1e3:>14.1f}{a * 1e3:>10.1f}{b * 1e3:>10.1f}"
        f"{quick * 1e3:>10.2f}{their_quick * 1e3:>14.2f}",
        flush=True,
    )
    return c / a, c / b, quick


def main():
    parser = argparse.ArgumentParser(description="gradcheck's speed beside PyTorch's.")
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    print(f"JAX {jax.__version__}, PyTorch {torch.__version__}; times in ms, medians; ratio = PyTorch / fnjax")
    warm = [np.ones((3, 5))] * 4
    seconds(gradcheck, in_jax(), warm)
    seconds(gradcheck, lambda a, b, c, d: jnp.sin(a) * b * jnp.cos(c) + d, [np.ones((10, 20))] * 4)
    seconds(gradcheck, jnp.cos, np.ones(7))
    seconds(torch.autograd.gradcheck, in_torch, tensors(warm))
    head = ("ratio first", "ratio again", "PyTorch", "first", "again", "fast", "PyTorch fast")
    print(f"{'':28}" + "".join(f"{h:>{w}}" for h, w in zip(head, (12, 12, 14, 10, 10, 10, 14), strict=True)))
    new = compare("10x20, new function", in_jax, in_torch, lambda k: [(10, 20)] * 4, repeats)
    compare("10x20, new shapes", in_jax, in_torch, lambda k: [(10, 21 + k)] * 4, repeats)
    large = compare("64x64, new shapes", in_jax, in_torch, lambda k: [(64, 64 + k)] * 4, max(1, repeats // 2))
    compare("tanh(x wT + b), 20x10 to 8", layer_in_jax, layer_in_torch, lambda k: [(20, 10), (8, 10), (8,)], repeats)
    missed = [
        text
        for text, met in {
            "first check of a function at 10x20 no slower than PyTorch": new[0] >= 1,
            "first check of a function at 64x64 no slower than PyTorch": large[0] >= 1,
            "fast mode under 10 ms at 10x20": new[2] < 0.010,
            "fast mode under 10 ms at 64x64": large[2] < 0.010,
        }.items()
        if not met
    ]
    print("missed: " + "; ".join(missed) if missed else "all goals met")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
