"""Sequential loops, as JAX's loops: the types of carried values are a fixpoint, found by tracing the body repeatedly.

Carried values that advance by a constant step stay affine in the loop variable and are not carried at all.
"""

import ast
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnjax.triton.interpreter.carry import (
    Carried,
    advanced,
    alike,
    assigned,
    counted,
    equal,
    forward_only,
    full_shape,
    leaves,
    of_variable,
    ranked,
    rebuilt,
    skeleton,
    wide,
    widened,
)  # fmt: skip
from fnjax.triton.interpreter.interpreter import Undefined, evaluate, interpret
from fnjax.triton.interpreter.liveness import carried
from fnjax.triton.interpreter.waits import unchanged
from fnjax.triton.values import types, views
from fnjax.triton.values.affine import LEAD, LoopVariable, constant
from fnjax.triton.values.arithmetic import as_mask, broadcast, cast, logical_and, of_affine, where
from fnjax.triton.values.state import current
from fnjax.triton.values.tensor import Tensor, canonical


class Loop:
    """One sequential loop while it is traced.

    Attributes:
        names: names that are set before the loop and carried.
        fresh: names that the loop sets first and that are read after it.
        specs: by name, how each leaf of its value is carried.
        moved: indices of the buffers that iterations write, which are carried too.
        splits: (buffer, layout) of memory that is reshaped before the first iteration.
        remembered: the fixpoint of an earlier trace of the same loop, which this one starts from.
        misfit: True if the iteration traced last did not return the types that it was given; its results are discarded.
    """

    def __init__(self, frame, node, start, step):
        self.frame, self.node, self.start, self.step = frame, node, start, step
        self.state = current()
        self.before = dict(frame.names)
        exposed, later = carried(frame.source.node, node)
        self.own = {*assigned(node.body), *(assigned([node.target]) if isinstance(node, ast.For) else ())}
        names = [n for n in sorted(self.own) if n in exposed | later]
        self.names = [n for n in names if n in self.before and not isinstance(self.before[n], Undefined)]
        self.fresh = [n for n in names if n not in self.names and n in later]
        self.initial = {n: self.before[n] for n in self.names}
        self.buffers, self.written, self.active = list(self.state.buffers), set(self.state.written), self.state.active
        self.noted = len(self.state.vectorized_loops[-1].accesses) if self.state.vectorized_loops else 0
        self.specs: dict[str, list[Carried]] = {}
        for name in self.names:
            self.specs[name] = [self._first_guess(leaf) for leaf in leaves(self.initial[name])]
        self.moved: set[int] = set()  # buffers that iterations write
        # The fixpoint of an earlier trace of this loop, if there is one.
        key = (id(node), tuple((n, *((s.dtype, s.shape) for s in self.specs[n])) for n in self.names))
        self.remembered = self.state.loops.setdefault(key, {})
        for name, specs in self.remembered.get("specs", {}).items():
            if name in self.specs:
                starts = leaves(self.initial[name])
                self.specs[name] = [widened(s, leaf) for s, leaf in zip(specs, starts, strict=True)]
        self.moved |= self.remembered.get("moved", set())
        self.layouts: set = self.remembered.get("cuts", set())
        self.fresh_values: dict[str, Any] = {}  # only their structure: the tracers of an iteration must not leak
        self.misfit = False

    def _untouched(self):
        """Return the names that the loop does not set; names that only one iteration uses are left out."""
        return {n: v for n, v in self.before.items() if n not in self.own or isinstance(v, Undefined)}

    @staticmethod
    def _first_guess(leaf):
        """Return how a leaf is carried at first: with an unknown step if it is affine, else as an array."""
        if leaf.affine is not None:
            return Carried(leaf.dtype, leaf.shape, (), step="unknown")
        return Carried(leaf.dtype, leaf.shape, full_shape(leaf))

    # ------------------------------------------------------------------------------- one iteration

    def _names_of_iteration(self, arrays, count):
        """Return all names with their values at the start of an iteration.

        A leaf whose step is not known yet holds a new loop variable, so that its coefficient and what is added show the
        step.
        """
        names, taken = self._untouched(), iter(arrays)
        self.probes = {}
        for name in self.names:
            parts = []
            for leaf, spec in zip(leaves(self.initial[name]), self.specs[name], strict=True):
                if spec.step is None:
                    parts.append(Tensor(next(taken), spec.dtype, spec.shape))
                elif isinstance(spec.step, str):
                    probe = LoopVariable(jnp.zeros((), jnp.int32), 0, 0)
                    self.probes[name, len(parts)] = probe
                    parts.append(
                        Tensor(
                            None,
                            leaf.dtype,
                            leaf.shape,
                            affine=dataclasses.replace(leaf.affine, terms=(*leaf.affine.terms, (probe, 1))),
                        )
                    )
                else:
                    parts.append(advanced(leaf, spec, count))
            names[name] = rebuilt(self.initial[name], iter(parts))
        for name in self.fresh:
            if name in self.specs:
                parts = [Tensor(next(taken), s.dtype, s.shape) for s in self.specs[name]]
                names[name] = rebuilt(self.fresh_values[name], iter(parts))
        return names

    def _iterate(self, arrays, buffers, count, going):
        """Interpret one iteration.

        Args:
            arrays: the carried arrays.
            buffers: the carried buffers.
            count: the loop variable that numbers the iterations; None in a `while`.
            going: the mask of programs that take this iteration; None for all.

        Returns:
            the arrays and buffers for the next iteration; those that were given, where their types do not fit.
        """
        state, frame = self.state, self.frame
        frame.names = self._names_of_iteration(arrays, count)
        given = dict(frame.names)
        for index, memory in zip(sorted(self.moved), buffers, strict=True):
            state.buffers[index] = memory
        if self.start is not None and isinstance(self.node.target, ast.Name):
            frame.names[self.node.target.id] = self._variable(count)
        alive = self.active if going is None else going if self.active is None else logical_and(self.active, going)
        held = list(state.buffers)
        with state.masked(alive):
            interpret(frame, self.node.body)
        wrote = {i for i, (a, b) in enumerate(zip(held, state.buffers, strict=True)) if a is not b}
        retry = not wrote <= self.moved
        self.moved |= wrote
        out = []
        for name in [*self.names, *self.fresh]:
            value = frame.names.get(name, Undefined(name))
            if isinstance(value, Undefined):
                if name in self.names:
                    raise NameError(f"{name} is set in one branch of a loop only")
                continue
            if name not in self.specs:
                self.specs[name] = [Carried(leaf.dtype, leaf.shape, full_shape(leaf)) for leaf in leaves(value)]
                kinds = iter([Tensor(None, spec.dtype, spec.shape) for spec in self.specs[name]])
                self.fresh_values[name] = rebuilt(value, kinds)
                retry = True
                continue
            after = leaves(value)
            if skeleton(value) != skeleton(self.initial.get(name, value)):
                raise TypeError(f"{name} changes its kind from turn to turn of a loop")
            for part, (leaf, spec) in enumerate(zip(after, self.specs[name], strict=True)):
                new = leaf
                if spec.step is None and going is not None:
                    new = where(going, leaf, leaves(given[name])[part])
                found = self._fits(name, part, new, spec, count)
                retry |= found is False
                if spec.step is None and found is not False:
                    out.append(jnp.broadcast_to(ranked(cast(new, spec.dtype).array(), len(spec.shape)), spec.data))
        self.misfit = retry
        if retry:
            return arrays, buffers
        return self._alike(out), self._alike([state.buffers[i] for i in sorted(self.moved)])

    def _alike(self, arrays):
        return alike(arrays, self.buffers)

    def _variable(self, count):
        """Return the value of the `for` statement's variable in iteration `count`."""
        kind = types.promote(self.start.dtype, self.step.dtype)
        step = self.step.uniform()
        if self.start.affine is not None:
            return of_affine(self.start.affine.plus(of_variable(count, step)), kind)
        return self.start + Tensor(jnp.asarray(count.value * step).reshape((1,) * LEAD), kind, ())

    def _fits(self, name, part, leaf, spec, count):
        """Return True if a leaf is carried as `spec` says after an iteration; else widen `spec` and return False."""
        start = leaves(self.initial[name])[part] if name in self.names else None
        if isinstance(spec.step, str):
            probe, affine = self.probes[name, part], start.affine
            if leaf.affine is not None and leaf.shape == leaf.affine.shape == affine.shape:
                terms = dict(leaf.affine.terms)
                if terms.pop(probe, 0) == 1 and terms == dict(affine.terms) and leaf.affine.strides == affine.strides:
                    step = leaf.affine.base - affine.base
                    if (step == step.flat[0]).all():  # the step is the same for all programs
                        spec.step = constant(step.flat[0])
                        return False
            spec.step, spec.data = None, full_shape(start)
            return False
        if spec.step is not None:
            if leaf.affine is not None and leaf.shape == start.shape:
                moved = advanced(start, spec, count).affine.plus(spec.step)
                if equal(leaf.affine, moved):
                    return True
            spec.step, spec.data = None, full_shape(start)
            return False
        shape = np.broadcast_shapes(spec.shape, leaf.shape)
        data = np.broadcast_shapes(wide(spec.data, len(shape)), wide(full_shape(leaf), len(shape)))
        kind = spec.dtype if leaf.dtype == spec.dtype else types.promote(spec.dtype, leaf.dtype)
        if (shape, data, kind) == (spec.shape, spec.data, spec.dtype):
            return True
        spec.shape, spec.data, spec.dtype = shape, data, kind
        return False

    # ---------------------------------------------------------------------------------- the loop

    def _first_arrays(self):
        """Return the carried arrays before the first iteration, in the order of the names."""
        out = []
        for name in [*self.names, *self.fresh]:
            if name not in self.specs:
                continue
            starts = leaves(self.initial[name]) if name in self.names else [None] * len(self.specs[name])
            for leaf, spec in zip(starts, self.specs[name], strict=True):
                if spec.step is None:
                    if leaf is None:
                        out.append(jnp.zeros(spec.data, canonical(spec.dtype)))
                    else:
                        out.append(jnp.broadcast_to(ranked(cast(leaf, spec.dtype).array(), len(spec.shape)), spec.data))
        return out

    def _restore(self):
        """Restore names, memory and recorded accesses as they were before the loop."""
        if self.state.vectorized_loops:
            del self.state.vectorized_loops[-1].accesses[self.noted :]
        self.state.buffers, self.state.written = list(self.buffers), set(self.written)
        self.state.active, self.frame.names = self.active, dict(self.before)

    def _tried(self, attempt):
        """Call `attempt`, which traces the whole loop, until all types fit, and return its result.

        The first call is abstract, unless an earlier trace is remembered: it leaves no operations in the program.

        Raises:
            TypeError: there is no fixpoint after 24 attempts.
        """
        to_reshape, reshaped = self.state.to_reshape, self.state.reshaped
        for tries in range(24):
            self._restore()
            self.state.traced += 1
            self.state.to_reshape, self.state.reshaped = set(), reshaped | self._reshaped_before()
            trial = not (tries or self.remembered)
            try:  # an abstract attempt leaves no operations in the program
                result = jax.eval_shape(attempt) if trial else attempt()
                fits = not (self._lacks() or self.misfit or trial)
            finally:
                self.state.traced -= 1
                self.state.to_reshape, self.state.reshaped = to_reshape | self.layouts, reshaped
                self._restore_after()
            if not fits:
                continue
            self.remembered["cuts"] = self.layouts
            self.remembered["specs"] = {n: s for n, s in self.specs.items() if n in self.names}
            self.remembered["moved"] = set(self.moved)
            return result
        raise TypeError("what a loop carries changes its type with every turn")

    def _reshaped_before(self):
        """Return memory that the loop does not write, reshaped before its first iteration, by buffer and layout."""
        here = [(buffer, layout) for buffer, layout in sorted(self.layouts) if buffer not in self.moved]
        return {(b, layout): (self.buffers[b], views.as_rows(self.buffers[b], layout)) for b, layout in here}

    def _lacks(self):
        """Return True where an iteration has read memory that was not reshaped before; the next attempt reshapes it."""
        found = {key for key in self.state.to_reshape if key[0] not in self.moved and key not in self.layouts}
        self.layouts = self.layouts | found
        return bool(found)

    def _restore_after(self):
        """Restore names, memory and mask after a trace of the body."""
        self.state.buffers, self.state.active, self.frame.names = list(self.buffers), self.active, dict(self.before)

    def _first_buffers(self):
        return [self.buffers[i] for i in sorted(self.moved)]

    def run(self, iterations, distance=None):
        """Trace a `for`, and set names and memory to their values after it.

        Args:
            iterations: their number; None if it is unknown while tracing (a `while_loop`, without reverse mode).
            distance: by program, the bound minus the first value, which limits its iterations; None if all take all.

        Returns:
            False: no lane returns in a loop.
        """
        stride = None if self.step is None else abs(self.step.uniform())

        def going_of(count):
            if distance is None:
                return None
            return distance > (
                of_affine(of_variable(count, stride), types.int32) if iterations is not None else counted(count, stride)
            )

        def attempt():
            def iteration(k, carry):
                arrays, buffers = carry
                self.state.buffers, self.state.active = list(self.buffers), self.active
                count = LoopVariable(k, 0, (iterations or 2**31) - 1)
                out, memory = self._iterate(arrays, buffers, count, going_of(count))
                self._restore_after()  # tracers of the body must not leak (jax.checking_leaks)
                return out, memory

            carry = (self._alike(self._first_arrays()), self._alike(self._first_buffers()))
            if iterations is not None:
                # In reverse mode, an iteration is recomputed from its carry, so that its intermediates are not saved.
                # Where it writes, its carry is all of memory, and saving the intermediates is cheaper.
                outermost = self.state.traced == 1 and not self.moved
                body = jax.checkpoint(iteration, prevent_cse=False) if outermost else iteration
                return lax.fori_loop(0, iterations, body, carry), iterations

            def more(carried):
                alive = as_mask(distance > counted(LoopVariable(carried[0], 0, 2**31 - 1), stride))
                alive = alive if self.active is None else logical_and(alive, self.active)
                return jnp.any(alive.array())

            k, *carry = lax.while_loop(
                more, lambda c: (c[0] + 1, *iteration(c[0], tuple(c[1:]))), (jnp.int32(0), *carry)
            )
            return forward_only(carry, self.frame.source, self.node), k

        (arrays, buffers), last = self._tried(attempt)
        if distance is None:
            made = constant(last)
            taken_iterations = of_affine(made, types.int32)
        else:
            positive = where(distance > 0, distance, 0)
            taken_iterations = (positive + (stride - 1)) // stride
        self._finish(arrays, buffers, taken_iterations, always=distance is None)
        return False

    def run_while(self, test, waiting=None):
        """Trace a `while`, whose condition is evaluated anew in each iteration.

        Args:
            test: the condition before the first iteration.
            waiting: the names that decide whether a loop that waits for memory goes on, else None. An iteration that
                changes neither these nor memory repeats for ever: the loop then ends, and `waits.Marks` records it.

        Returns:
            False: no lane returns in a loop.
        """
        first_names, first_buffers, first_written = (
            dict(self.frame.names),
            list(self.state.buffers),
            set(self.state.written),
        )
        self.before, self.buffers, self.written = first_names, first_buffers, first_written
        for name, specs in self.specs.items():  # the number of iterations is unknown
            for leaf, spec in zip(leaves(self.initial[name]), specs, strict=True):
                if spec.step is not None:
                    spec.step, spec.data = None, full_shape(leaf)
        going = {"shape": full_shape(broadcast(test, ()))}

        def attempt():
            def iteration(carry):
                arrays, buffers, alive, stuck = carry
                self.state.buffers, self.state.active = list(self.buffers), self.active
                now = Tensor(alive, types.int1, ())
                out, memory = self._iterate(arrays, buffers, None, now)
                if self.misfit:
                    self._restore_after()
                    return carry
                self.frame.names = self._names_of_iteration(out, None)
                held = list(self.state.buffers)
                with self.state.masked(now if self.active is None else logical_and(now, self.active)):
                    again = logical_and(now, as_mask(evaluate(self.frame, self.node.test)))
                wrote = {i for i, (a, b) in enumerate(zip(held, self.state.buffers, strict=True)) if a is not b}
                shape = np.broadcast_shapes(going["shape"], full_shape(again))
                if not wrote <= self.moved or shape != going["shape"]:
                    self.moved |= wrote
                    going["shape"], self.misfit = shape, True
                    self._restore_after()
                    return carry
                memory = self._alike([self.state.buffers[i] for i in sorted(self.moved)])
                (again,) = self._alike([jnp.broadcast_to(again.array(), shape)])
                if waiting is not None:
                    stuck = unchanged(buffers, memory) & unchanged(
                        self._some(arrays, waiting), self._some(out, waiting)
                    )
                    (stuck,) = self._alike([stuck & jnp.any(again)])
                self._restore_after()
                return out, memory, again, stuck

            alive = test if self.active is None else logical_and(test, self.active)
            going["shape"] = np.broadcast_shapes(going["shape"], full_shape(alive))
            alive, stuck = self._alike([jnp.broadcast_to(alive.array(), going["shape"]), jnp.asarray(False)])
            carry = (self._alike(self._first_arrays()), self._alike(self._first_buffers()), alive, stuck)
            carry = lax.while_loop(lambda c: jnp.any(c[2]) & ~c[3], iteration, carry)
            return forward_only(carry, self.frame.source, self.node)

        arrays, buffers, _, stuck = self._tried(attempt)
        self._finish(arrays, buffers, None, always=False)
        if waiting is not None:
            self.state.marks.set(self.state, stuck, self.frame.source, self.node.lineno)
        return False

    def _some(self, arrays, names):
        """Return those carried arrays that belong to the given names."""
        found = [n for n in [*self.names, *self.fresh] if n in self.specs for _ in self.specs[n]]
        return [a for n, a in zip(found, arrays, strict=True) if n in names]

    def _finish(self, arrays, buffers, taken_iterations, always):
        """Set names and memory to their values after the loop."""
        taken, names = iter(arrays), self._untouched()
        for name in [*self.names, *self.fresh]:
            if name not in self.specs:
                continue
            value = self.initial.get(name, self.fresh_values.get(name))
            starts = leaves(self.initial[name]) if name in self.names else [None] * len(self.specs[name])
            parts = []
            for leaf, spec in zip(starts, self.specs[name], strict=True):
                if spec.step is None:
                    parts.append(Tensor(next(taken), spec.dtype, spec.shape))
                else:
                    parts.append(leaf + cast(of_affine(spec.step, types.int64) * taken_iterations, leaf.dtype))
            names[name] = rebuilt(value, iter(parts))
        self.frame.names = names
        for index, memory in zip(sorted(self.moved), buffers, strict=True):
            self.state.buffers[index] = memory
            self.state.written.add(index)
