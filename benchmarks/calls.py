"""Calls: which functions of fnjax a traced call enters, and the same Function in a file of PyTorch.

python -m benchmarks.calls

Counts the named functions (no lambdas and comprehensions) that jit(grad(F.apply)) enters while it is traced, for a
Function that saves its input, called with one array; their files; and the crossings, the pairs of successive calls that
are in different packages. Then those of fnjax.torch for the same class as a loaded file has it, traced, and called
outside of JAX's transforms. tests/test_calls.py has the limits.
"""

import functools
import itertools
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

import fnjax

PACKAGE = Path(fnjax.__file__).parent


class Square(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x


class Call(NamedTuple):
    """Entry into a function of fnjax: its file in the package, and its name there."""

    file: str
    function: str


def entered(run):
    """Return the named functions of fnjax that `run()` enters, in order."""
    calls = []

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)) and not code.co_name.startswith("<"):
            calls.append(Call(str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname))

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def trace_gradient():
    """Trace the gradient of a call anew."""
    jax.jit(jax.grad(Square.apply)).trace(jnp.float32(3))


@functools.cache
def load_square():
    """Return Square of a file of PyTorch."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "square.py")
        file.write_text(
            "import torch\n"
            "class Square(torch.autograd.Function):\n"
            "    @staticmethod\n"
            "    def forward(ctx, x):\n"
            "        ctx.save_for_backward(x)\n"
            "        return x**2\n"
            "    @staticmethod\n"
            "    def backward(ctx, grad_output):\n"
            "        (x,) = ctx.saved_tensors\n"
            "        return grad_output * 2 * x\n"
        )
        return fnjax.torch.load(file).Square


def trace_torch_gradient():
    """Trace the gradient of a call of PyTorch's class anew."""
    jax.jit(jax.grad(load_square().apply)).trace(jnp.float32(3))


def call_torch():
    """Call PyTorch's class outside of JAX's transforms."""
    load_square().apply(jnp.float32(3))


def crossings(calls):
    """Return the pairs of successive calls that are in different packages."""
    return [(a, b) for a, b in itertools.pairwise(calls) if Path(a.file).parent != Path(b.file).parent]


def main():
    for run in (trace_gradient, trace_torch_gradient, call_torch):
        run()  # what is imported and cached once does not count
        calls = entered(run)
        print(*(f"{call.file}: {call.function}" for call in calls), sep="\n")
        counts = f"{len(calls)} calls of {len(set(calls))} functions in {len({call.file for call in calls})} files"
        print(f"{run.__name__}: {counts}, {len(crossings(calls))} crossings")


if __name__ == "__main__":
    main()
