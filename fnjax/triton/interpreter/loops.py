"""`for` and `while` in a kernel: unrolled, vectorised, or as a loop of JAX."""

import ast

from fnjax.triton.interpreter.interpreter import LOOPS, bind, evaluate, interpret, known_condition
from fnjax.triton.interpreter.sequential import Loop
from fnjax.triton.interpreter.vectorize import vectorize
from fnjax.triton.interpreter.waits import decisive
from fnjax.triton.values.arithmetic import as_mask, as_tensor, subtract
from fnjax.triton.values.exceptions import NeedsSequence
from fnjax.triton.values.state import current
from fnjax.triton.values.tensor import Tensor

FEW = 4  # loops of at most so many iterations are unrolled: that is cheaper


class Range:
    """Range of a `for`: `range`, `tl.range` or `tl.static_range` in a kernel.

    Raises:
        TypeError: it is not given one to three bounds.
    """

    def __init__(self, *bounds, unrolled=False):
        if not 1 <= len(bounds) <= 3:
            raise TypeError(f"a range has one to three bounds, not {len(bounds)}")
        self.start, self.stop, self.step = {1: (0, *bounds, 1), 2: (*bounds, 1), 3: bounds}[len(bounds)]
        self.unrolled = unrolled


def run_for(frame, node):
    """Interpret a `for`: unrolled if it is short, vectorised where iterations are independent, else as a loop of JAX.

    Returns:
        False: no lane returns in a loop.

    Raises:
        ValueError: the step is zero.
        TypeError: the bounds of `tl.static_range`, or the step, are not known while tracing.
        SyntaxError: the body has a return, break or continue, or the loop an else.
    """
    given = evaluate(frame, node.iter)
    _no_return(node)
    if not isinstance(given, Range):
        return _unrolled(frame, node, list(given))
    start, stop, step = (as_tensor(b) for b in (given.start, given.stop, given.step))
    bounds = [b.uniform() for b in (start, stop, step)]
    if step.uniform() == 0:
        raise ValueError("the step of a range is zero")
    if None not in bounds:
        iterations = range(*map(int, bounds))
        if given.unrolled or len(iterations) <= 1:
            return _unrolled(frame, node, list(iterations) if given.unrolled else [as_tensor(i) for i in iterations])
        if vectorize(frame, node, start, step, len(iterations), None):
            return False
        if len(iterations) <= FEW:
            with current().unrolling():
                return _unrolled(frame, node, [as_tensor(i) for i in iterations])
        return Loop(frame, node, start, step).run(len(iterations))
    if given.unrolled:
        raise TypeError("the bounds of tl.static_range must be constexprs")
    return _uneven(frame, node, start, stop, step)


def _unrolled(frame, node, items):
    """Interpret the body once for each item."""
    for item in items:
        bind(frame, node.target, item)
        interpret(frame, node.body)
    return False


def _uneven(frame, node, start, stop, step):
    """Interpret a `for` whose bounds differ between programs or are traced."""
    stride = step.uniform()
    if stride is None:
        raise TypeError("the step of a range must be known when the kernel is traced: make it a tl.constexpr")
    loop = Loop(frame, node, start, step)
    distance = subtract(stop, start) if stride > 0 else subtract(start, stop)
    if distance.affine is not None:
        most = -(-distance.affine.limits()[1] // abs(stride))
        if most <= 0:
            return False
        if vectorize(frame, node, start, step, int(most), distance):
            return False
        return loop.run(int(most), distance)
    return loop.run(None, distance)


def run_while(frame, node):
    """Interpret a `while`: iterate until its condition holds for no program.

    Returns:
        False: no lane returns in a loop.

    Raises:
        NeedsSequence: it waits for memory that other programs write.
        TypeError: its condition is a constexpr that holds.
        SyntaxError: the body has a return, break or continue, or the loop an else.
    """
    _no_return(node)
    test = evaluate(frame, node.test)
    if known_condition(test) is False:
        return False
    if not isinstance(test, Tensor):
        raise TypeError("a while on constexprs would not end: use tl.static_range")
    names, from_turn_to_turn = decisive(node)
    if from_turn_to_turn:
        return Loop(frame, node, None, None).run_while(as_mask(test))
    if not current().in_sequence:
        raise NeedsSequence  # it waits for memory that earlier programs write
    return Loop(frame, node, None, None).run_while(as_mask(test), names)


def _no_return(node):
    """Raise SyntaxError where a loop has a return, break, continue or else, which Triton does not allow either."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Return | ast.Break | ast.Continue):
            raise SyntaxError(f"{type(inner).__name__.lower()} in a loop is not for kernels (Triton has none either)")
    if node.orelse:
        raise SyntaxError("else of a loop is not for kernels")


LOOPS |= {ast.For: run_for, ast.While: run_while}
