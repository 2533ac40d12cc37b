"""Measures which wrong gradients gradcheck's fast mode finds, next to PyTorch's (where PyTorch is installed).

python benchmarks/gradcheck_power.py [--trials 20] [--right 100] [--size 64]

f(a, b, c, d) = a b + sin(c) d with four inputs of 64x64. A fault is put into the gradient for one of them: one element
1.5 times too large, of the wrong sign, or zero; or the whole gradient zero. Each trial has its own numbers, its own
place for the fault and its own seed. Counted is what fnjax's fast mode doubts, which the slow mode then decides entry
by entry, and what PyTorch's rejects. Exits with 1 if fewer than 19 of 20 faults of a kind are doubted, or if a right
gradient is.
"""

import argparse
import importlib.util
import sys

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._check.fast import check_backward
from fnjax._check.problem import Problem

FAULTS = {"one element 1.5 times": 1.5, "one element of wrong sign": -1.0, "one element zero": 0.0, "all zero": None}


def in_jax(fault, which, place):
    """Return a function with a fault in its gradient; `fault` 1 for none."""

    @jax.custom_vjp
    def f(a, b, c, d):
        return a * b + jnp.sin(c) * d

    def backward(saved, g):
        a, b, c, d = saved
        grads = [g * b, g * a, g * d * jnp.cos(c), g * jnp.sin(c)]
        grads[which] = 0 * g if fault is None else grads[which].at[place].multiply(fault)
        return tuple(grads)

    f.defvjp(lambda *args: (f(*args), args), backward)
    return f


def in_torch(fault, which, place):
    import torch

    class F(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b, c, d):
            ctx.save_for_backward(a, b, c, d)
            return a * b + torch.sin(c) * d

        @staticmethod
        def backward(ctx, g):
            a, b, c, d = ctx.saved_tensors
            grads = [g * b, g * a, g * d * torch.cos(c), g * torch.sin(c)]
            grads[which] = grads[which].clone()
            if fault is None:
                grads[which] *= 0
            else:
                grads[which][place] *= fault
            return tuple(grads)

    return F.apply


def torch_gradcheck(f, inputs):
    import torch

    tensors = [torch.tensor(x, requires_grad=True) for x in inputs]
    # Only the comparison of Jacobians is wanted, so none of the other checks.
    return torch.autograd.gradcheck(f, tensors, fast_mode=True, raise_exception=False, check_undefined_grad=False)


def accepts(f, inputs, seed):
    """Return whether fast mode accepts, with gradcheck's default step and tolerances."""
    with jax.enable_x64(True):
        return check_backward(Problem(f, inputs, range(4)), 1e-6, 1e-3, 1e-5, seed) is None


def rejected(check, make, fault, trials, size, seed):
    rng = np.random.default_rng(seed)
    count = 0
    for trial in range(trials):
        inputs = [rng.normal(size=(size, size)) for _ in range(4)]
        which, place = int(rng.integers(4)), tuple(int(i) for i in rng.integers(size, size=2))
        count += not check(make(fault, which, place), inputs, trial)
    return count


def main():
    parser = argparse.ArgumentParser(description="What gradcheck's fast mode sees of wrong gradients.")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--right", type=int, default=100, help="right gradients, that must be accepted")
    parser.add_argument("--size", type=int, default=64)
    options = parser.parse_args()
    checks = {
        "fnjax": (accepts, in_jax),
    }
    if importlib.util.find_spec("torch"):
        checks["PyTorch"] = (lambda f, x, seed: torch_gradcheck(f, x), in_torch)
    print(f"JAX {jax.__version__}; rejected of {options.trials} at {options.size}x{options.size}")
    print(f"{'':28}" + "".join(f"{name:>10}" for name in checks))
    enough = True
    for title, fault in FAULTS.items():
        counts = [rejected(check, make, fault, options.trials, options.size, 1) for check, make in checks.values()]
        print(f"{title:28}" + "".join(f"{count:>10}" for count in counts), flush=True)
        enough &= counts[0] >= 0.95 * options.trials
    counts = [rejected(check, make, 1.0, options.right, options.size, 2) for check, make in checks.values()]
    print(f"{f'right ones, of {options.right}':28}" + "".join(f"{count:>10}" for count in counts))
    return 0 if enough and counts[0] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
