"""`for` and `while` in a kernel: unrolled, vectorised, or as a loop of JAX."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable, Iterator

from fnjax.triton.interpreter.carry import flatten
from fnjax.triton.interpreter.interpreter import LOOPS, Frame, bind, evaluate, interpret, known_condition
from fnjax.triton.interpreter.liveness import Loop, assigned
from fnjax.triton.interpreter.sequential import trace_for, trace_while
from fnjax.triton.interpreter.vectorize import vectorize
from fnjax.triton.interpreter.waits import decisive
from fnjax.triton.values.arithmetic import as_mask, as_tensor, subtract
from fnjax.triton.values.exceptions import NeedsSequence
from fnjax.triton.values.tensor import Operand, Tensor

FEW = 4  # loops of at most so many iterations are unrolled: that is cheaper


class Range:
    """Range of a `for`: `range`, `tl.range` or `tl.static_range` in a kernel.

    Raises:
        TypeError: it is not given one to three bounds.
    """

    def __init__(self, *bounds: Operand, unrolled: bool = False) -> None:
        if not 1 <= len(bounds) <= 3:
            raise TypeError(f"a range has one to three bounds, not {len(bounds)}")
        self.start, self.stop, self.step = {1: (0, *bounds, 1), 2: (*bounds, 1), 3: bounds}[len(bounds)]
        self.unrolled = unrolled


def run_for(frame: Frame, node: ast.For) -> None:
    """Interpret a `for`: unrolled if it is short, vectorised where iterations are independent, else as a loop of JAX.

    Raises:
        ValueError: the step is zero.
        TypeError: the bounds of `tl.static_range`, or the step, are not known while tracing.
        SyntaxError: the body has a return, break or continue, or the loop an else.
    """
    given = evaluate(frame, node.iter)
    check_loop(node)
    if not isinstance(given, Range):
        _unroll(frame, node, given)
        return
    with contextlib.nullcontext() if given.unrolled else keeping_types(frame, node):
        _run_range(frame, node, given)


def _run_range(frame: Frame, node: ast.For, given: Range) -> None:
    """Interpret a `for` over a range (`run_for`)."""
    start, stop, step = (as_tensor(b) for b in (given.start, given.stop, given.step))
    bounds = [b.uniform() for b in (start, stop, step)]
    if step.uniform() == 0:
        raise ValueError("the step of a range is zero")
    if None not in bounds:
        iterations = range(*map(int, bounds))
        if given.unrolled or len(iterations) <= 1:
            _unroll(frame, node, iterations if given.unrolled else map(as_tensor, iterations))
        elif not vectorize(frame, node, start, step, len(iterations), None):
            if len(iterations) <= FEW:
                with frame.state.unrolling():
                    _unroll(frame, node, map(as_tensor, iterations))
            else:
                trace_for(frame, node, start, step, len(iterations))
    elif given.unrolled:
        raise TypeError("the bounds of tl.static_range must be constexprs")
    else:
        _interpret_uneven(frame, node, start, stop, step)


def _unroll(frame: Frame, node: ast.For, items: Iterable[object]) -> None:
    """Interpret the body once for each item."""
    for item in items:
        bind(frame, node.target, item)
        interpret(frame, node.body)


def _interpret_uneven(frame: Frame, node: ast.For, start: Tensor, stop: Tensor, step: Tensor) -> None:
    """Interpret a `for` whose bounds differ between programs or are traced."""
    stride = step.uniform()
    if stride is None:
        raise TypeError("the step of a range must be known when the kernel is traced: make it a tl.constexpr")
    distance = subtract(stop, start) if stride > 0 else subtract(start, stop)
    most = None if distance.affine is None else int(-(-distance.affine.limits()[1] // abs(stride)))
    if most is None or (most > 0 and not vectorize(frame, node, start, step, most, distance)):
        trace_for(frame, node, start, step, most, distance)


def run_while(frame: Frame, node: ast.While) -> None:
    """Interpret a `while`: iterate until its condition holds for no program.

    Raises:
        NeedsSequence: it waits for memory that other programs write.
        TypeError: its condition is a constexpr that holds.
        SyntaxError: the body has a return, break or continue, or the loop an else.
    """
    check_loop(node)
    test = evaluate(frame, node.test)
    if known_condition(test) is False:
        return
    if not isinstance(test, Tensor):
        raise TypeError("a while on constexprs would not end: use tl.static_range")
    names, ends_by_itself = decisive(node)
    if not (ends_by_itself or frame.state.in_sequence):
        raise NeedsSequence  # it waits for memory that earlier programs write
    with keeping_types(frame, node):
        trace_while(frame, node, as_mask(test), None if ends_by_itself else names)


@contextlib.contextmanager
def keeping_types(frame: Frame, node: Loop) -> Iterator[None]:
    """Raise TypeError where a name has another type after a loop than before it: Triton does not compile that."""
    before = {n: frame.names[n] for n in assigned(node) if n in frame.names}
    yield
    for name, old in before.items():
        pairs = zip(flatten(old)[0], flatten(frame.names.get(name, old))[0], strict=False)
        for a, b in pairs:
            if (a.dtype, a.shape) != (b.dtype, b.shape):
                text = f"Loop-carried variable {name} has initial type {a!r} but is re-assigned to {b!r} in loop!"
                raise TypeError(f"{text} Please make sure that the type stays consistent: convert with .to(...)")


def check_loop(node: Loop) -> None:
    """Raise SyntaxError where a loop has a return, break, continue or else, which Triton does not allow either."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Return | ast.Break | ast.Continue):
            raise SyntaxError(f"{type(inner).__name__.lower()} in a loop is not for kernels (Triton has none either)")
    if node.orelse:
        raise SyntaxError("else of a loop is not for kernels")


LOOPS |= {ast.For: run_for, ast.While: run_while}
