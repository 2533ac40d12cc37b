"""Vectorised loops: all iterations at once along one more leading axis, where they depend on each other by sums only.

The body is interpreted once. A carried value may advance by a constant step (pointers): it is affine in the loop
variable. Or it is a sum that iterations add to: it becomes a sum over the axis, and for a matrix product an additional
axis of contraction. Anything else raises NotVectorizable, and so do memory accesses by which one iteration could depend
on another; the loop is then traced sequentially (`sequential`).
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.triton.interpreter.carry import advanced, equal, flatten, of_variable
from fnjax.triton.interpreter.interpreter import Frame, Undefined, bind, interpret
from fnjax.triton.interpreter.liveness import assigned, carried
from fnjax.triton.values import types
from fnjax.triton.values.affine import Affine, ArrayMap, OneArray, Shape, VectorVariable, constant, leading
from fnjax.triton.values.arithmetic import (
    add,
    as_tensor,
    cast,
    is_all_true,
    logical_and,
    of_affine,
    of_data,
    subtract,
    to_common_type,
    where,
)
from fnjax.triton.values.exceptions import NotVectorizable
from fnjax.triton.values.independence import independent
from fnjax.triton.values.products import product
from fnjax.triton.values.state import Snapshot, VectorizedLoop
from fnjax.triton.values.tensor import Operand, Tensor

Leaf = tuple[str, int]  # a name, and the index of a tensor in its value


class Sum(Tensor):
    """Carried value inside of a vectorised loop, which can only be added to and subtracted from.

    Any other use raises NotVectorizable.

    Attributes:
        origin: the name that carries it, and the index of the leaf in its value.
        terms: pairs of sign and tensor that were added.
    """

    def __init__(self, kind: types.dtype, shape: Shape, origin: Leaf, terms: Sequence[tuple[int, Tensor]] = ()) -> None:
        self._type, self.shape, self.origin, self.terms = kind, shape, origin, terms

    def _asked(self, *_: object) -> Any:
        """Raise NotVectorizable: the sum's value is not known inside of the loop."""
        raise NotVectorizable

    data = affine = conditions = rest = known = _data = property(_asked)
    uniform = array = filled = __getitem__ = rearranged = _asked  # type: ignore[assignment]  # all raise

    def _plus(self, other: Operand, sign: int) -> Sum:
        """Return the sum with one more term, of the given sign.

        Raises:
            NotVectorizable: the type changes, or is a 16-bit float, whose sums are rounded after every iteration.
        """
        if isinstance(other, Sum):
            raise NotVectorizable
        *_, kind = to_common_type(Tensor(np.zeros((1,) * leading()), self._type, self.shape), other)
        exact = kind.kind in "iu" or kind in (types.float32, types.float64)
        if kind != self._type or not exact:
            raise NotVectorizable
        term = other if isinstance(other, Tensor) and other.dtype == kind else cast(as_tensor(other), kind)
        return Sum(kind, np.broadcast_shapes(self.shape, term.shape), self.origin, (*self.terms, (sign, term)))

    def __add__(self, other: Operand) -> Sum:
        return self._plus(other, 1)

    __radd__ = __add__  # type: ignore[assignment]  # Tensor's are installed by arithmetic

    def __sub__(self, other: Operand) -> Sum:
        return self._plus(other, -1)

    def map_leading(self, change: ArrayMap) -> Sum:
        """Return the sum with the leading axes of its terms changed by a function of arrays."""
        return Sum(self._type, self.shape, self.origin, [(sign, term.map_leading(change)) for sign, term in self.terms])

    def select(self, other: Sum, choose: Callable[[Tensor, Tensor], Any]) -> Sum:
        """Return the sum after an if: a term that only one branch added counts where the branch was taken."""
        if self.origin != other.origin:
            raise NotVectorizable
        same = sum(1 for a, b in zip(self.terms, other.terms, strict=False) if a is b)
        mine = [(sign, choose(term, as_tensor(0, term.dtype))) for sign, term in self.terms[same:]]
        yours = [(sign, choose(as_tensor(0, term.dtype), term)) for sign, term in other.terms[same:]]
        shape = np.broadcast_shapes(self.shape, other.shape)
        return Sum(self._type, shape, self.origin, (*self.terms[:same], *mine, *yours))


def vectorize(
    frame: Frame, node: ast.For, start: Tensor, step: Tensor, iterations: int, distance: Tensor | None
) -> bool:
    """Interpret a `for` with its iterations vectorised.

    Args:
        frame: the call that the loop is in.
        node: the statement.
        start: the loop variable in the first iteration.
        step: the increment of the loop variable.
        iterations: the number of iterations, the maximum over all programs.
        distance: by program, the bound minus `start`, which limits its iterations; None if all programs take all.

    Returns:
        True; False, with names and memory restored, where the iterations depend on each other.
    """
    state = frame.state
    tried = ("vectorized", id(node), len(state.vectorized_loops))
    if state.in_sequence or iterations < 1 or not isinstance(node.target, ast.Name) or tried in state.loops:
        return False
    before = Snapshot(frame)
    read = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    try:
        with state.vectorizing(iterations) as side:
            here = {n: v for n, v in before.names.items() if n in read}
            given = [here, before.active, start, step, distance]
            frame.names, state.active, start, step, distance = _map_leading(given, side.with_axis)
            loop = _Vectorization(frame, node, start, step, distance, side)
            loop.run()
            after = _map_leading(loop.results(), side.without_axis)
        frame.names = loop.untouched(before.names) | after
    except NotVectorizable:
        state.loops[tried] = True
        before.restore()
        return False
    state.accesses += side.accesses
    return True


def _map_leading(value: object, change: ArrayMap) -> Any:
    """Return a value of any kind with its leading axes changed by a function of arrays."""
    return jax.tree.map(
        lambda leaf: leaf.map_leading(change) if hasattr(leaf, "map_leading") else leaf,
        value,
        is_leaf=lambda x: hasattr(x, "map_leading"),
    )


class _Vectorization:
    """One vectorised loop.

    Attributes:
        count: the loop variable that numbers the iterations.
        exposed: names that an iteration may read before it sets them.
        later: names that are read after the loop.
        steps: by name and leaf, the step of carried values that advance by a constant.
    """

    def __init__(
        self, frame: Frame, node: ast.For, start: Tensor, step: Tensor, distance: Tensor | None, side: VectorizedLoop
    ) -> None:
        self.frame, self.node, self.distance, self.side = frame, node, distance, side
        self.start, self.step, self.variable = start, step, side.variable
        self.state, self.before = frame.state, dict(frame.names)
        self.exposed, self.later = carried(frame.source.node, node)
        self.steps: dict[Leaf, int] = {}
        self.going: Tensor | None = None

    def run(self) -> None:
        """Interpret the body for all iterations at once; the frame then holds the names' values.

        Raises:
            NotVectorizable: iterations depend on each other.
        """
        if self.start.affine is None:
            raise NotVectorizable
        names = self.untouched(self.before)
        for name in (self.exposed & self.before.keys()) - names.keys():
            names[name] = flatten(self.before[name])[1].fill(self._as_given(name))
        kind = types.promote(self.start.dtype, self.step.dtype)
        advance = of_variable(self.variable, self.step.uniform())
        number = of_affine(self.start.affine.plus(advance), kind)
        alive: Tensor | None = self.state.active
        if self.distance is not None:
            self.going = self.distance > of_affine(of_variable(self.variable, abs(self.step.uniform())), types.int32)
            if is_all_true(self.going):
                self.going = None
            else:
                alive = self.going if alive is None else logical_and(alive, self.going)
        self.frame.names = names
        bind(self.frame, self.node.target, number)
        with self.state.masked(alive):
            interpret(self.frame, self.node.body)
        if not independent(self.side):
            raise NotVectorizable

    def untouched(self, names: dict[str, Any]) -> dict[str, Any]:
        """Return the names, with their values, that the loop does not set."""
        mine = assigned(*self.node.body, self.node.target)
        return {n: v for n, v in names.items() if n not in mine or isinstance(v, Undefined)}

    def _as_given(self, name: str) -> Iterator[Tensor]:
        """Yield the leaves of a carried value as the body reads them: advanced by a step, or as a `Sum`."""
        before, moved = flatten(self.before[name])[0], moved_by(self.frame, self.node, name)
        after = before if isinstance(moved, Undefined) else flatten(moved)[0]
        for part, leaf in enumerate(before):
            step = None if isinstance(moved, Undefined) else step_of(leaf, after[part])
            if step is None:
                yield Sum(leaf.dtype, leaf.shape, (name, part))
            else:
                self.steps[name, part] = step
                yield advanced(leaf, step, self.variable)

    def results(self) -> dict[str, Any]:
        """Return the names that the loop sets and that are read after it, with their values after the last iteration.

        Raises:
            NotVectorizable: a carried value is neither a sum nor advanced by a constant step.
        """
        names: dict[str, Any] = {}
        for name in sorted(self.exposed | self.later):
            if name not in self.frame.names:
                continue
            after = self.frame.names[name]
            before = self.before[name] if name in self.exposed & self.before.keys() else after
            (first, structure), (last, same) = flatten(before), flatten(after)
            if structure != same:
                raise NotVectorizable
            pairs = enumerate(zip(first, last, strict=True))
            names[name] = structure.fill(iter([self._result((name, i), *pair) for i, pair in pairs]))
        return names

    def _result(self, key: Leaf, before: Tensor, after: Tensor) -> Tensor:
        """Return a leaf's value after the loop, from its values before the loop and at the end of the body."""
        if key in self.steps:
            step = constant(self.steps[key])
            moved = advanced(before, self.steps[key], self.variable).affine
            same = moved is not None and after.affine is not None and equal(after.affine, moved.plus(step))
            if not same or after.shape != before.shape:
                raise NotVectorizable
            return before + cast(of_affine(step, types.int64) * self._taken(), before.dtype)
        if isinstance(after, Sum):
            if after.origin != key:
                raise NotVectorizable
            for sign, term in after.terms:
                own = term if self.going is None else where(self.going, term, as_tensor(0, term.dtype))
                before = (add if sign > 0 else subtract)(before, _sum_of_iterations(own, self.variable))
            return before
        if self.going is not None:
            raise NotVectorizable  # the last iteration differs between programs
        return _last(after, self.variable)

    def _taken(self) -> Tensor:
        """Return the number of iterations that each program takes."""
        if self.distance is None:
            return as_tensor(self.variable.high + 1)
        stride = abs(self.step.uniform())
        taken: Tensor = (where(self.distance > 0, self.distance, 0) + (stride - 1)) // stride
        return taken


def moved_by(frame: Frame, node: ast.For, name: str) -> Any:
    """Return a name's value after the statements of a loop that set it, without the rest of the body.

    Returns:
        an `Undefined` where these statements read other names that the loop sets, or are not simple assignments.
    """
    mine = {*assigned(*node.body), *assigned(node.target)} - {name}
    setting = [s for s in node.body if name in assigned(s)]
    simple = all(
        isinstance(s, ast.AugAssign) or (isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name))
        for s in setting
    )
    if not simple or any(isinstance(n, ast.Name) and n.id in mine for s in setting for n in ast.walk(s)):
        return Undefined(name)
    if all(leaf.affine is None for leaf in flatten(frame.names[name])[0]):
        return Undefined(name)
    before = frame.names
    frame.names = dict(before)
    try:
        interpret(frame, setting)
        return frame.names[name]
    finally:
        frame.names = before


def step_of(before: Tensor, after: Tensor) -> int | None:
    """Return the constant by which an affine value has grown, or None where it is not constant."""
    if before.affine is None or after.affine is None or before.shape != after.shape:
        return None
    grown = after.affine.plus(before.affine.negated())
    first = int(grown.base.flat[0])
    return None if grown.terms or any(grown.strides) or (grown.base != first).any() else first


def _sum_of_iterations(term: Tensor, variable: VectorVariable) -> Tensor:
    """Return the sum of a term over all iterations."""
    axis = variable.axis
    if term.factors is not None:
        x, y, kind = term.factors
        found = product(x, y, kind, over=axis)
        iterations = variable.high + 1 if x.shape[axis] == y.shape[axis] == 1 else 1
        return Tensor(found * iterations, term.dtype, term.shape)
    data, xp = (term.data, np) if term.known else (term.array(), jnp)
    if data.shape[axis] == 1:
        total = (data * (variable.high + 1)).astype(data.dtype)
    else:
        total = xp.sum(data, axis, dtype=data.dtype, keepdims=True)
    return of_data(total, term.dtype, term.shape)


def _last(value: Tensor, variable: VectorVariable) -> Tensor:
    """Return a value of the last iteration, without the loop's axis."""

    def of_last(affine: Affine) -> Affine:
        base = _at_end(affine.base, variable.axis) + dict(affine.terms).get(variable, 0) * variable.high
        return dataclasses.replace(affine, base=base, terms=tuple((v, c) for v, c in affine.terms if v is not variable))

    if value.affine is not None:
        return of_affine(of_last(value.affine), value.dtype)
    if value.conditions is not None:
        rest = None if value.rest is None else _last(value.rest, variable)
        return Tensor(None, value.dtype, value.shape, conditions=tuple(map(of_last, value.conditions)), rest=rest)
    return of_data(_at_end(value.data, variable.axis), value.dtype, value.shape)


def _at_end(data: OneArray, axis: int) -> OneArray:
    """Return the last slice of an array along an axis, which keeps size 1."""
    return data[(slice(None),) * axis + (slice(-1, None),)]
