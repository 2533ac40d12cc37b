"""Carry of loops: the tensors that values consist of, as arrays or as affine values with a constant step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnjax._primitives.jax_internals import varying
from fnjax.triton.interpreter.interpreter import Undefined
from fnjax.triton.values import types
from fnjax.triton.values.affine import Affine, LoopVariable, Shape, constant, leading
from fnjax.triton.values.arithmetic import as_tensor, cast, of_affine, where
from fnjax.triton.values.tensor import Tensor, aligned, canonical


class Structure(NamedTuple):
    """Structure of a value without its tensors; a loop must not change it.

    Attributes:
        tree: the pytree.
        fixed: for each leaf None, where it is a tensor or a Python number, or the leaf itself in a tuple.
    """

    tree: Any
    fixed: tuple[tuple[Any] | None, ...]

    def fill(self, tensors: Iterator[Tensor]) -> Any:
        """Return a value of this structure, with the next tensors of an iterator."""
        return jax.tree.unflatten(self.tree, [next(tensors) if leaf is None else leaf[0] for leaf in self.fixed])


def flatten(value: object) -> tuple[list[Tensor], Structure]:
    """Return the tensors that a value consists of, Python numbers among them, and its structure without them."""
    leaves, tree = jax.tree.flatten(value)
    fixed = tuple(None if isinstance(leaf, Tensor) or types.is_number(leaf) else (leaf,) for leaf in leaves)
    return [as_tensor(leaf) for leaf, other in zip(leaves, fixed, strict=True) if other is None], Structure(tree, fixed)


@dataclasses.dataclass
class Carried:
    """Type of one carried tensor: an array, or an affine value that grows by `step` in each iteration.

    Attributes:
        dtype: the type.
        shape: the block's shape.
        data: the array's shape.
        step: the growth; None for an array.
        probed: True before the first iteration is traced, which shows the step.
    """

    dtype: types.dtype
    shape: Shape
    data: Shape
    step: int | None = None
    probed: bool = False

    @classmethod
    def array(cls, tensor: Tensor) -> Carried:
        """Return the type of a tensor that is carried as an array."""
        return cls(tensor.dtype, tensor.shape, array_shape(tensor))

    def broadcast(self, tensor: Tensor) -> jax.Array:
        """Return a tensor as an array of this type."""
        return jnp.broadcast_to(aligned(cast(tensor, self.dtype).array(), len(self.shape)), self.data)

    def become_array(self, start: Tensor) -> None:
        """Carry an array from now on, since the value is not affine with a constant step."""
        self.step, self.probed, self.data = None, False, array_shape(start)

    def include(self, tensor: Tensor) -> bool:
        """Widen the type of an array until it includes a tensor; return True where it did before."""
        before = self.shape, self.data, self.dtype
        self.shape = np.broadcast_shapes(self.shape, tensor.shape)
        shapes = (_aligned_shape(shape, len(self.shape)) for shape in (self.data, array_shape(tensor)))
        self.data = np.broadcast_shapes(*shapes)
        self.dtype = self.dtype if tensor.dtype == self.dtype else types.promote(self.dtype, tensor.dtype)
        return (self.shape, self.data, self.dtype) == before


class Carry:
    """Types of what a loop hands from one iteration to the next.

    Attributes:
        names: names that are set before the loop and carried.
        fresh: names that the loop sets first and that are read after it.
        types: by name, how each tensor of its value is carried.
        buffers: indices of the buffers that iterations write, which are carried too.
    """

    def __init__(self, values: Mapping[str, Any], fresh: Sequence[str], with_steps: bool) -> None:
        """Begin with the types before the first iteration.

        Args:
            values: the carried names with their values before the loop.
            fresh: see the class.
            with_steps: affine values are carried with a step; the number of the iteration is known then.
        """
        self.names, self.fresh, self.buffers = list(values), list(fresh), set[int]()
        self.starts: dict[str, list[Tensor]] = {}
        self.structures: dict[str, Structure] = {}
        self.types: dict[str, list[Carried]] = {}
        for name, value in values.items():
            self.starts[name], self.structures[name] = flatten(value)
            self.types[name] = [
                Carried(t.dtype, t.shape, (), probed=True) if with_steps and t.affine is not None else Carried.array(t)
                for t in self.starts[name]
            ]
        self._probes: dict[tuple[str, int], LoopVariable] = {}

    def resume(self, found: Mapping[str, list[Carried]]) -> None:
        """Begin with the types that an earlier trace of the loop found, widened to include the present values."""
        for name, carried in found.items():
            for part, (start, old) in enumerate(zip(self.starts.get(name, ()), carried, strict=False)):
                if old.step is None:
                    shapes = (_aligned_shape(shape, len(old.shape)) for shape in (old.data, array_shape(start)))
                    self.types[name][part] = dataclasses.replace(old, data=np.broadcast_shapes(*shapes))
                elif start.affine is not None and self.types[name][part].probed:
                    self.types[name][part] = dataclasses.replace(old)

    def _each(self) -> Iterator[tuple[str, int, Tensor | None, Carried]]:
        """Yield name, position, tensor before the loop (None for fresh names) and type of all that is carried."""
        for name in (*self.names, *(n for n in self.fresh if n in self.types)):
            starts: Sequence[Tensor | None] = self.starts.get(name, [None] * len(self.types[name]))
            for part, (start, carried) in enumerate(zip(starts, self.types[name], strict=True)):
                yield name, part, start, carried

    def _rebuilt(self, tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Any]:
        parts: dict[str, list[Tensor]] = {name: [] for name in self.types}
        for name, tensor in tensors:
            parts[name].append(tensor)
        return {name: self.structures[name].fill(iter(found)) for name, found in parts.items()}

    @property
    def probing(self) -> bool:
        """Return True where the step of a tensor is not known yet."""
        return any(carried.probed for *_, carried in self._each())

    def first_arrays(self) -> list[jax.Array]:
        """Return the carried arrays before the first iteration."""
        return [
            jnp.zeros(carried.data, canonical(carried.dtype)) if start is None else carried.broadcast(start)
            for _, _, start, carried in self._each()
            if carried.step is None and not carried.probed
        ]

    def arrays_of(self, names: Sequence[str], arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """Return those of the carried arrays that belong to some names."""
        owners = [n for n, _, _, carried in self._each() if carried.step is None and not carried.probed]
        return [array for name, array in zip(owners, arrays, strict=True) if name in names]

    def values_in(self, arrays: Sequence[jax.Array], variable: LoopVariable | None) -> dict[str, Any]:
        """Return the carried names with their values at the start of an iteration.

        A tensor whose step is not known yet holds a new loop variable: its coefficient after the iteration, and what
        is added to it, show the step.
        """
        taken = iter(arrays)

        def value(name: str, part: int, start: Tensor | None, carried: Carried) -> Tensor:
            if start is not None and start.affine is not None and carried.probed:
                probe = self._probes[name, part] = LoopVariable(jnp.zeros((), jnp.int32), 0, 0)
                affine = dataclasses.replace(start.affine, terms=(*start.affine.terms, (probe, 1)))
                return Tensor(None, start.dtype, start.shape, affine=affine)
            if start is not None and carried.step is not None and variable is not None:
                return advanced(start, carried.step, variable)
            return Tensor(next(taken), carried.dtype, carried.shape)

        return self._rebuilt([(each[0], value(*each)) for each in self._each()])

    def arrays_after(
        self, names: Mapping[str, Any], given: Mapping[str, Any], variable: LoopVariable | None, going: Tensor | None
    ) -> list[jax.Array] | None:
        """Return the carried arrays after an iteration; None, with the types widened, where they do not fit.

        Args:
            names: the values of all names after the iteration.
            given: those at its start, which programs keep that do not take it.
            variable: the loop variable that numbers the iterations; None in a `while`.
            going: the mask of programs that take the iteration; None for all.
        """
        arrays, fits = [], True
        for name in (*self.names, *self.fresh):
            value = names.get(name, Undefined(name))
            if isinstance(value, Undefined):
                if name in self.names:
                    raise NameError(f"{name} is set in one branch of a loop only")
                continue
            tensors, structure = flatten(value)
            if name not in self.types:  # only the structure is kept: the tracers of an iteration must not leak
                self.types[name], self.structures[name] = [Carried.array(t) for t in tensors], structure
                fits = False
                continue
            if name in self.starts and structure != self.structures[name]:
                raise TypeError(f"{name} changes its kind between the iterations of a loop")
            for part, (tensor, carried) in enumerate(zip(tensors, self.types[name], strict=True)):
                if carried.step is not None or carried.probed:
                    fits &= self._advances(name, part, tensor, variable)
                    continue
                new = tensor if going is None else where(going, tensor, flatten(given[name])[0][part])
                if carried.include(new):
                    arrays.append(carried.broadcast(new))
                else:
                    fits = False
        return arrays if fits else None

    def _advances(self, name: str, part: int, tensor: Tensor, variable: LoopVariable | None) -> bool:
        """Return True if a tensor has grown by its step; else find the step, or carry an array."""
        start, carried = self.starts[name][part], self.types[name][part]
        before, after = start.affine, tensor.affine
        if before is not None and after is not None and carried.probed:
            terms = dict(after.terms)
            same = tensor.shape == after.shape == before.shape and after.strides == before.strides
            if same and terms.pop(self._probes[name, part], 0) == 1 and terms == dict(before.terms):
                step = after.base - before.base
                if (step == step.flat[0]).all():  # the step is the same for all programs
                    carried.step, carried.probed = int(step.flat[0]), False
                    return False
        elif after is not None and carried.step is not None and variable is not None and tensor.shape == start.shape:
            moved = advanced(start, carried.step, variable).affine
            if moved is not None and equal(after, moved.plus(constant(carried.step))):
                return True
        carried.become_array(start)
        return False

    def values_after(self, arrays: Sequence[jax.Array], iterations: Tensor | None) -> dict[str, Any]:
        """Return the carried names with their values after the loop, from the arrays and the number of iterations."""
        taken = iter(arrays)

        def value(start: Tensor | None, carried: Carried) -> Tensor:
            if start is None or carried.step is None or iterations is None:
                return Tensor(next(taken), carried.dtype, carried.shape)
            grown = of_affine(constant(carried.step), types.int64) * iterations
            return start + cast(grown, start.dtype)

        return self._rebuilt([(name, value(start, carried)) for name, _, start, carried in self._each()])


def of_variable(variable: LoopVariable, factor: int) -> Affine:
    """Return loop variable · factor as an affine expression."""
    return Affine(np.zeros((1,) * leading(), np.int64), terms=((variable, int(factor)),))


def advanced(tensor: Tensor, step: int, variable: LoopVariable) -> Tensor:
    """Return the value in an iteration of an affine tensor with a constant step."""
    assert tensor.affine is not None
    return of_affine(tensor.affine.plus(of_variable(variable, step)) if step else tensor.affine, tensor.dtype)


def equal(a: Affine, b: Affine) -> bool:
    """Return True where two affine expressions are the same."""
    return a.strides == b.strides and dict(a.terms) == dict(b.terms) and bool((a.base == b.base).all())


def array_shape(tensor: Tensor) -> Shape:
    """Return the shape of a tensor's array."""
    return tuple(tensor.data.shape) if tensor.affine is None else tensor.affine.array_shape


def _aligned_shape(shape: Shape, rank: int) -> Shape:
    """Return the shape of an array whose block has `rank` axes."""
    return shape[: leading()] + (1,) * (leading() + rank - len(shape)) + shape[leading() :]


def alike(arrays: Sequence[jax.Array], buffers: Sequence[jax.Array]) -> list[jax.Array]:
    """Return arrays that are device-varying wherever one of them or of the buffers is, as a loop's carry must be.

    This matters inside of shard_map only: the carry must have one type before the loop and after each iteration.
    """
    on = frozenset().union(*(varying(jax.typeof(x)) for x in (*arrays, *buffers)))
    missing = [tuple(on - varying(jax.typeof(x))) for x in arrays]
    return [lax.pcast(x, axes, to="varying") if axes else x for x, axes in zip(arrays, missing, strict=True)]
