"""Sequential loops, lowered to loops of JAX.

Carried values that advance by a constant step stay affine in the loop variable and are not carried at all.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnjax._primitives.forward_only import forbid_transpose
from fnjax.triton.interpreter.carry import array_shape, of_variable
from fnjax.triton.interpreter.fixpoint import Arrays, Fixpoint
from fnjax.triton.interpreter.interpreter import Frame, evaluate
from fnjax.triton.interpreter.liveness import Loop
from fnjax.triton.interpreter.waits import unchanged
from fnjax.triton.values import types
from fnjax.triton.values.affine import MANY, LoopVariable, constant, leading
from fnjax.triton.values.arithmetic import as_mask, broadcast, logical_and, of_affine, where
from fnjax.triton.values.exceptions import KernelError
from fnjax.triton.values.tensor import Tensor


def trace_for(
    frame: Frame, node: ast.For, start: Tensor, step: Tensor, iterations: int | None, distance: Tensor | None = None
) -> None:
    """Trace a `for`, and set names and memory to their values after it.

    Args:
        frame: the call that the loop is in.
        node: the statement.
        start: the loop variable in the first iteration.
        step: the increment of the loop variable, which is known.
        iterations: their number; None if it is unknown while tracing (a `while_loop`, without reverse mode).
        distance: by program, the bound minus `start`, which limits its iterations; None if all take all.
    """
    advance = step.uniform()
    stride = abs(advance)

    def target(variable: LoopVariable) -> Tensor:
        kind = types.promote(start.dtype, step.dtype)
        if start.affine is not None:
            return of_affine(start.affine.plus(of_variable(variable, advance)), kind)
        return start + _scalar(variable.value * advance, kind)

    loop = Fixpoint(frame, node, target, iterations)

    def goes_on(variable: LoopVariable) -> Any:
        if distance is None:
            return None
        known = iterations is not None
        done = of_variable(variable, stride) if known else None
        return distance > (_scalar(variable.value * stride) if done is None else of_affine(done, types.int32))

    def attempt() -> Any:
        # The functions are new in each attempt: JAX caches traces by function, and types have been widened since.
        def iterate(k: jax.Array, carry: tuple[Arrays, Arrays], inputs: Arrays) -> tuple[Arrays, Arrays, Arrays]:
            with loop.tracing():
                variable = LoopVariable(k, 0, MANY if iterations is None else iterations - 1)
                return loop.iterate(*carry, variable, goes_on(variable), inputs)

        def more(carried: Any) -> jax.Array:
            return jnp.any(loop.within(as_mask(goes_on(LoopVariable(carried[0], 0, MANY)))).array())

        if iterations is None:
            first = (jnp.int32(0), *loop.first())
            k, *carry = lax.while_loop(more, lambda c: (c[0] + 1, *iterate(c[0], c[1:], [])[:2]), first)
            return (*forward_only(carry, frame, node), []), k
        # In reverse mode, an iteration is recomputed from its carry, so that its intermediates are not saved.
        # Where it writes, its carry is all of memory, and saving the intermediates is cheaper.
        outermost = loop.state.traced == 1 and not loop.carry.buffers
        body = jax.checkpoint(iterate, prevent_cse=False) if outermost else iterate

        def step(carry: Any, given: Any) -> Any:
            arrays, buffers, written = body(given[0], carry, given[1])
            return (arrays, buffers), written

        inputs, reverse = loop.inputs()
        numbers: Any = jnp.arange(iterations, dtype=jnp.int32)
        carry_before: Any = loop.first()
        carry, written = lax.scan(step, carry_before, (numbers[::-1] if reverse else numbers, inputs), reverse=reverse)
        return (*carry, written), iterations

    (arrays, buffers, written), last = loop.solve(attempt)
    if distance is None:
        taken = of_affine(constant(last), types.int32)
    else:
        taken = (where(distance > 0, distance, 0) + (stride - 1)) // stride
    loop.finish(arrays, buffers, taken, written)


def trace_while(frame: Frame, node: ast.While, test: Tensor, waiting: Sequence[str] | None = None) -> None:
    """Trace a `while`, whose condition is evaluated anew in each iteration.

    Args:
        frame: the call that the loop is in.
        node: the statement.
        test: the condition before the first iteration.
        waiting: the names that decide whether a loop that waits for memory goes on, else None. An iteration that
            changes neither these nor memory repeats for ever: the loop then ends, and `waits.Marks` records it.
    """
    loop = Fixpoint(frame, node)
    shape = array_shape(broadcast(test, ()))  # of the array that says which programs go on

    def attempt() -> Any:
        nonlocal shape

        def iterate(carry: Any) -> Any:  # new in each attempt, as in `trace_for`
            nonlocal shape
            arrays, buffers, alive, stuck = carry
            with loop.tracing():
                going = Tensor(alive, types.int1, ())
                out, memory, _ = loop.iterate(arrays, buffers, None, going)
                if loop.misfit:
                    return carry
                loop.start(out, None)
                with loop.writing() as known, loop.state.masked(loop.within(going)):
                    again = logical_and(going, as_mask(evaluate(frame, node.test)))
                wide = np.broadcast_shapes(shape, array_shape(again))
                if not known or wide != shape:
                    shape, loop.misfit = wide, True
                    return carry
                memory = loop.memory()
                (alive,) = loop.alike([jnp.broadcast_to(again.array(), shape)])
                if waiting is not None:
                    names = (loop.carry.arrays_of(waiting, given) for given in (arrays, out))
                    stuck = unchanged(buffers, memory) & unchanged(*names)
                    (stuck,) = loop.alike([stuck & jnp.any(alive)])
            return out, memory, alive, stuck

        alive = loop.within(test)
        shape = np.broadcast_shapes(shape, array_shape(alive))
        flags = loop.alike([jnp.broadcast_to(alive.array(), shape), jnp.asarray(False)])
        first: Any = (*loop.first(), *flags)
        return forward_only(lax.while_loop(lambda c: jnp.any(c[2]) & ~c[3], iterate, first), frame, node)

    arrays, buffers, _, stuck = loop.solve(attempt)
    loop.finish(arrays, buffers, None)
    if waiting is not None:
        loop.state.marks.set(loop.state, stuck, frame.source, node.lineno)


def _scalar(value: jax.Array, kind: types.dtype = types.int32) -> Tensor:
    """Return a traced number as a tensor."""
    return Tensor(jnp.asarray(value).reshape((1,) * leading()), kind, ())


def forward_only(carry: Any, frame: Frame, node: Loop) -> Any:
    """Return the results of a loop with an unknown number of iterations, which only forward mode can differentiate.

    Reverse mode through them raises a KernelError that names the loop.
    """
    word, remedy = "while", ""
    if isinstance(node, ast.For):
        word, remedy = "for", ", or give the bound as a number of Python's (under jax.jit: static_argnums)"
    text = (
        f"kernel {frame.source.name}, line {node.lineno} of {frame.source.file}: Reverse-mode differentiation does not "
        f"work through this `{word}`: its number of iterations is known when it runs only. Launch the kernel in the "
        f"forward of a fnjax.Function that has a backward{remedy}. jax.jvp works."
    )
    arrays, structure = jax.tree.flatten(carry)
    return jax.tree.unflatten(structure, forbid_transpose(arrays, KernelError, text))
