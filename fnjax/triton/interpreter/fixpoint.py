"""The types of what a sequential loop carries: a fixpoint, found by tracing the body repeatedly."""

from __future__ import annotations

import ast
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from fnjax.triton.interpreter.carry import Carry, alike
from fnjax.triton.interpreter.interpreter import Frame, Undefined, interpret
from fnjax.triton.interpreter.liveness import Loop, assigned, carried
from fnjax.triton.values import views
from fnjax.triton.values.addresses import read, rows_of, set_rows, write
from fnjax.triton.values.affine import LoopVariable
from fnjax.triton.values.arithmetic import logical_and
from fnjax.triton.values.state import Snapshot
from fnjax.triton.values.streams import Key, Streams
from fnjax.triton.values.tensor import Tensor
from fnjax.triton.values.views import Layout

Arrays = list[jax.Array]
ATTEMPTS = 24


class Fixpoint:
    """One sequential loop while it is traced.

    Attributes:
        carry: the types of what it carries.
        before: names, memory and the mask of active lanes before it.
        layouts: (buffer, layout) of memory that is reshaped before the first iteration.
        stored: by buffer, the layout in which it is carried: that of the stores in the loop. XLA updates it in place;
            if it were carried flat, XLA would copy all of memory in each iteration.
        streams: what it reads and writes row after row, where its number of iterations is known.
        written_to: the streams that the iteration traced last has written.
        found: the fixpoint of an earlier trace of the same loop, which this one starts from.
        misfit: True if the iteration traced last did not return the types that it was given; its results are discarded.
    """

    def __init__(
        self,
        frame: Frame,
        node: Loop,
        target: Callable[[LoopVariable], Tensor] | None = None,
        iterations: int | None = None,
    ) -> None:
        """Begin with the types before the first iteration.

        Args:
            frame: the call that the loop is in.
            node: the statement.
            target: returns the value of the variable of a `for` in an iteration; None for a `while`.
            iterations: their number, if it is known.
        """
        self.frame, self.node, self.target, self.state = frame, node, target, frame.state
        state = self.state
        self.before = Snapshot(frame)
        exposed, later = carried(frame.source.node, node)
        self.own = {*assigned(*node.body), *(assigned(node.target) if isinstance(node, ast.For) else ())}
        live = [n for n in sorted(self.own) if n in exposed | later]
        names = self.before.names
        values = {n: names[n] for n in live if not isinstance(names.get(n, Undefined(n)), Undefined)}
        self.carry = Carry(values, [n for n in live if n not in values and n in later], target is not None)
        starts = self.carry.starts.items()
        key = id(node), state.lead, tuple((n, *((t.dtype, t.shape) for t in tensors)) for n, tensors in starts)
        self.found: dict[str, Any] = state.loops.setdefault(key, {})
        self.carry.resume(self.found.get("types", {}))
        self.carry.buffers |= self.found.get("buffers", set())
        self.layouts: set[tuple[int, Layout]] = self.found.get("layouts", set())
        self.stored: dict[int, Layout] = dict(self.found.get("stored", {}))
        depth = sum(n > 1 for n in state.lead)
        self.streams = None if iterations is None else Streams(iterations, depth, self.carry.buffers, state.streams)
        if self.streams is not None:
            self.streams.inputs = list(self.found.get("streams", ()))
        self.written_to: list[Key] = []
        self.misfit = False

    def untouched(self) -> dict[str, Any]:
        """Return the names that the loop does not set; names that only one iteration uses are left out."""
        return {n: v for n, v in self.before.names.items() if n not in self.own or isinstance(v, Undefined)}

    def first(self) -> tuple[Arrays, Arrays]:
        """Return the carried arrays and buffers before the first iteration."""
        return self.alike(self.carry.first_arrays()), self.memory()

    def alike(self, arrays: Sequence[jax.Array]) -> Arrays:
        """Return arrays that are device-varying as the loop's carry must be (`carry.alike`)."""
        return alike(arrays, self.before.buffers)

    def within(self, going: Tensor) -> Tensor:
        """Return the mask of the lanes that are active around the loop, of programs that go on."""
        return going if self.before.active is None else logical_and(going, self.before.active)

    def start(self, arrays: Sequence[jax.Array], variable: LoopVariable | None) -> None:
        """Set the names to their values at the start of an iteration."""
        self.frame.names = self.untouched() | self.carry.values_in(arrays, variable)

    def iterate(
        self,
        arrays: Arrays,
        buffers: Arrays,
        variable: LoopVariable | None,
        going: Tensor | None,
        inputs: Sequence[jax.Array] = (),
    ) -> tuple[Arrays, Arrays, Arrays]:
        """Interpret one iteration.

        Args:
            arrays: the carried arrays.
            buffers: the carried buffers.
            variable: the loop variable that numbers the iterations; None in a `while`.
            going: the mask of programs that take this iteration; None for all.
            inputs: the rows of its streams.

        Returns:
            the arrays and buffers for the next iteration, those that were given where their types do not fit, and the
            rows that are written.
        """
        state, frame = self.state, self.frame
        state.streams, state.outputs = self.streams, {}
        if self.streams is not None and variable is not None:
            self.streams.start(variable, inputs)
        self.start(arrays, variable)
        given = dict(frame.names)
        self.set_memory(buffers)
        target = self.node.target if isinstance(self.node, ast.For) else None
        if self.target is not None and variable is not None and isinstance(target, ast.Name):
            frame.names[target.id] = self.target(variable)
        alive = self.before.active if going is None else self.within(going)
        with self.writing() as known, state.masked(alive):
            interpret(frame, self.node.body)
        after = self.carry.arrays_after(frame.names, given, variable, going)
        written = [] if self.streams is None else self.streams.finish(state.accesses, state.outputs)
        self.misfit = not known or after is None or (self.streams is not None and self.streams.misfit)
        if self.misfit or after is None:
            return arrays, buffers, []
        self.written_to = list(state.outputs)
        return self.alike(after), self.memory(), written

    def inputs(self) -> tuple[Arrays, bool]:
        """Return the rows that all iterations read, along their first axis, and True if the last one is read first."""
        assert self.streams is not None
        self.streams.inputs = [key for key in self.streams.inputs if key[0] not in self.carry.buffers]
        rows = [self.streams.first_axis(read(self.state, key[0], key[3]), key) for key in self.streams.join()]
        return rows, self.streams.reverse

    def memory(self) -> Arrays:
        """Return the carried buffers as they are now."""
        state, stored = self.state, self.stored
        return self.alike(
            [rows_of(state, i, stored[i]) if i in stored else state.buffers[i] for i in sorted(self.carry.buffers)]
        )

    def set_memory(self, buffers: Sequence[jax.Array]) -> None:
        """Set memory to carried buffers."""
        for index, memory in zip(sorted(self.carry.buffers), buffers, strict=True):
            if index in self.stored:
                set_rows(self.state, index, self.stored[index], memory)
            else:
                self.state.buffers[index] = memory

    @contextlib.contextmanager
    def writing(self) -> Iterator[list[bool]]:
        """Carry the buffers that are written while the context lasts.

        Yields:
            a list that is empty at the end if one of them was not carried yet.
        """
        before, known = list(self.state.buffers), [True]
        yield known
        wrote = {i for i, (a, b) in enumerate(zip(before, self.state.buffers, strict=True)) if a is not b}
        if not wrote <= self.carry.buffers:
            known.clear()
        self.carry.buffers |= wrote
        for i in wrote - self.stored.keys():
            rows = self.state.rows.get(i)
            if rows is not None and rows.flat is self.state.buffers[i]:
                self.stored[i] = rows.layout
                known.clear()

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace the body; names, memory and mask are those around the loop before and after: no tracer leaks."""
        self.reset()
        yield
        self.reset()

    def reset(self) -> None:
        """Set names, memory and mask to those around the loop."""
        self.before.restore()
        if self.streams is not None:
            self.streams.end()

    def solve(self, attempt: Callable[[], Any]) -> Any:
        """Call `attempt`, which traces the whole loop, until all types fit, and return its result.

        The first call is abstract, unless an earlier trace is known: it leaves no operations in the program. So is the
        second one where the first has found steps of carried tensors, since addresses are other ones then.

        Raises:
            TypeError: there is no fixpoint after 24 attempts.
        """
        state = self.state
        to_reshape, reshaped, probing = state.to_reshape, state.reshaped, False
        for number in range(ATTEMPTS):
            self.reset()
            state.traced += 1
            state.to_reshape, state.reshaped = set(), reshaped | self._reshaped()
            trial = not self.found and (number == 0 or probing)
            probing, carried, stored = self.carry.probing, set(self.carry.buffers), dict(self.stored)
            try:
                with state.recording() as accesses:
                    result = (
                        jax.eval_shape(functools.partial(attempt)) if trial else attempt()
                    )  # JAX caches by function
                fits = not (self._lacks_layouts() or self.misfit or trial)
            finally:
                state.traced -= 1
                state.to_reshape, state.reshaped = to_reshape | self.layouts, reshaped
                self.reset()
            if probing:  # it took addresses for others than they are
                self.carry.buffers.intersection_update(carried)
                self.stored = stored
            if fits:
                state.accesses += accesses
                streams = [] if self.streams is None else self.streams.inputs
                types = {n: self.carry.types[n] for n in self.carry.names}
                self.found |= {
                    "layouts": self.layouts,
                    "types": types,
                    "buffers": set(self.carry.buffers),
                    "stored": self.stored,
                    "streams": [key for key in streams if not key[3].dynamic],  # loops around have other variables
                }
                return result
        raise TypeError("what a loop carries changes its type with every iteration")

    def _reshaped(self) -> dict[tuple[int, Layout], tuple[jax.Array, jax.Array]]:
        """Return the buffers that the loop only reads in the shapes in which it reads them, by (buffer, layout).

        They are reshaped once, before the loop.
        """
        here = [key for key in sorted(self.layouts) if key[0] not in self.carry.buffers]
        memory = self.before.buffers
        return {(i, layout): (memory[i], views.as_rows(memory[i], layout)) for i, layout in here}

    def _lacks_layouts(self) -> bool:
        """Return True where an iteration has read memory that was not reshaped before; the next attempt reshapes it."""
        found = {key for key in self.state.to_reshape if key[0] not in self.carry.buffers and key not in self.layouts}
        self.layouts = self.layouts | found
        return bool(found)

    def finish(
        self, arrays: Arrays, buffers: Arrays, iterations: Tensor | None, written: Sequence[jax.Array] = ()
    ) -> None:
        """Set names and memory to their values after the loop, of which each program takes `iterations`.

        `written` are the rows that the iterations have written, along their first axis.
        """
        self.frame.names = self.untouched() | self.carry.values_after(arrays, iterations)
        self.set_memory(buffers)
        for key, rows in zip(self.written_to, written, strict=True):
            assert self.streams is not None
            write(self.state, key[0], key[3], self.streams.in_place(rows, key))
        self.streams, self.written_to = None, []  # they hold variables of loops around
