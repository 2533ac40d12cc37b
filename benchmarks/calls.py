"""Calls: which functions of fnjax a traced call enters.

python -m benchmarks.calls

Counts the named functions (no lambdas and comprehensions) that jit(grad(F.apply)) enters while it is traced, for a
Function that saves its input, called with one array; their files; and the crossings, the pairs of successive calls that
are in different packages. tests/test_calls.py has the limits.
"""

import itertools
import sys
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


def crossings(calls):
    """Return the pairs of successive calls that are in different packages."""
    return [(a, b) for a, b in itertools.pairwise(calls) if Path(a.file).parent != Path(b.file).parent]


def main():
    trace_gradient()  # what is imported and cached once does not count
    calls = entered(trace_gradient)
    print(*(f"{call.file}: {call.function}" for call in calls), sep="\n")
    files = {call.file for call in calls}
    print(f"{len(calls)} calls of {len(set(calls))} functions in {len(files)} files, {len(crossings(calls))} crossings")


if __name__ == "__main__":
    main()
