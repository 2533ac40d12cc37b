"""Arguments of one call: arrays become operands, everything else is static."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from fnjax._function.ctx import NeedsInputGrad
from fnjax._function.signature import Parameters, refuse_torch
from fnjax._function.spec import Spec
from fnjax._primitives.rule import Arrays
from fnjax._primitives.tree import (
    Split,
    has_leaf,
    is_array,
    is_foreign_array,
    is_inexact,
    is_ref,
    is_tensor,
    is_tracer,
    named_leaves,
    split,
    to_tensor,
)
from fnjax.errors import ArgumentError, describe, error

Kind = Literal["tensor", "tree", "container", "static"]


class Argument(NamedTuple):
    """Positional argument of a call.

    Attributes:
        kind: a tensor; a pytree whose arrays are differentiated; a container whose tracers are not; a static value.
        split: the argument without its arrays.
        start: the index of its first array among the operands.
    """

    kind: Kind
    split: Split | None
    start: int
    static: Any = None

    @property
    def stop(self) -> int:
        """The index after its last array."""
        return self.start + (1 if self.split is None else self.split.n_arrays)


class Arguments:
    """Arguments of one call without their arrays, the operands, which the caller keeps.

    Attributes:
        each: the positional arguments.
        keywords: the keyword-only arguments.
        differentiable: for each operand whether it may have a gradient.
        are_tensors: whether each argument is a tensor, and so an operand: the usual case.
    """

    __slots__ = ("are_tensors", "differentiable", "each", "keywords", "parameters")

    def __init__(self, parameters: Parameters, keywords: Mapping[str, Any]) -> None:
        self.parameters, self.keywords = parameters, keywords
        self.each: list[Argument] = []
        self.differentiable: list[bool] = []

    def split(self, owner: str, args: Sequence[Any], *, pytree: bool) -> Arrays:
        """Split the positional arguments into arrays and static parts; return the arrays, the operands."""
        operands: Arrays = []
        for i, arg in enumerate(args):
            start, rest = len(operands), None
            # In this order: with pytree a single array is still a tensor, and without it a container is searched for
            # tracers and Refs only, since its concrete arrays are static to forward.
            if is_array(arg):  # the usual case
                kind: Kind = "tensor"
                operands.append(arg)
            elif is_tensor(arg):
                kind = "tensor"
                operands.append(to_tensor(arg))
            elif is_foreign_array(arg):
                raise _foreign_array(f"{self.name(i)} of {owner}.apply", arg)
            elif pytree:
                kind = "tree"
                arrays, rest = split(arg, is_tensor)
                operands += map(to_tensor, arrays)
            elif has_leaf(arg, _is_operand):
                kind = "container"
                arrays, rest = split(arg, _is_operand)
                operands += arrays
            else:
                kind = "static"
                refuse_torch(arg, f"argument {i} ('{self.parameters.name(i)}') of {owner}.apply")
            self.each.append(Argument(kind, rest, start, arg if kind == "static" else None))
            self.differentiable += [kind != "container" and is_inexact(x) for x in operands[start:]]
        self.are_tensors = all(a.kind == "tensor" for a in self.each)
        return operands

    def name(self, index: int) -> str:
        """Return the position and name of an argument, for messages."""
        return f"argument {index} ('{self.parameters.name(index)}')"

    def operand_names(self) -> tuple[str, ...]:
        """Return for each operand the name of its argument, with its path in a container: `x`, `params.weight`."""
        names, n = self.parameters.names, len(self.each)
        if n <= len(names) and self.are_tensors:
            return names[:n]
        places = self._each(range(len(self.differentiable)), None, containers=True, fallback=list)
        paths = {
            operand: self.parameters.name(i) + path
            for i, tree in enumerate(places)
            for path, operand in named_leaves(tree)
        }
        return tuple(paths[operand] for operand in sorted(paths))

    def fill(self, operands: Sequence[Any]) -> list[Any]:
        """Return the positional arguments with `operands` in place of the arrays."""
        return [
            (
                a.static
                if a.kind == "static"
                else operands[a.start]
                if a.split is None
                else a.split.fill(operands[a.start :])
            )
            for a in self.each
        ]

    def needs(self, needs: Sequence[bool]) -> NeedsInputGrad:
        """Return `ctx.needs_input_grad`: a bool for each argument, in the structure of a pytree.

        One bool stands for a pytree whose class cannot hold bools.
        """
        return NeedsInputGrad(needs if self.are_tensors else self._each(needs, False, containers=False, fallback=any))

    def needed(self, needs: Sequence[bool]) -> list[int]:
        """Return the positions of the arguments that need a gradient."""
        return [i for i, a in enumerate(self.each) if a.kind != "static" and any(needs[a.start : a.stop])]

    def tangents(self, tangents: Sequence[Any]) -> list[Any]:
        """Return the tangent of each argument, None for static values, in the structure of a pytree."""
        return self._each(tangents, None, containers=False)

    def axes(self, dims: Sequence[int | None]) -> list[Any]:
        """Return `in_dims`: the batch axis of each argument or None, in the structure of any container."""
        return self._each(dims, None, containers=True)

    def _each(
        self, values: Sequence[Any], nothing: Any, *, containers: bool, fallback: Callable[[Any], Any] | None = None
    ) -> list[Any]:
        """Return the values of each argument, in its structure.

        Args:
            values: one for each operand.
            nothing: the value of static arguments, and of leaves that are not arrays.
            containers: whether containers that are not traversed have values, too.
            fallback: what replaces the values of a pytree whose class cannot hold them.

        Raises:
            ArgumentError: for such a pytree without `fallback`.
        """
        filled = []
        for i, a in enumerate(self.each):
            if a.kind == "static" or (a.kind == "container" and not containers):
                filled.append(nothing)
            elif a.split is None:
                filled.append(values[a.start])
            else:
                try:
                    filled.append(a.split.fill(values[a.start :], nothing))
                except Exception as e:
                    if fallback is None:
                        raise _cannot_hold(self.name(i), values[a.start : a.stop], e) from e
                    filled.append(fallback(values[a.start : a.stop]))
        return filled


def _cannot_hold(name: str, leaves: Sequence[Any], e: Exception) -> ArgumentError:
    return error(
        ArgumentError,
        f"{name} is a pytree whose class cannot be made with other leaves than arrays",
        "pytree-class",
        expected=f"an object with the leaves {', '.join(f'{leaf!r:.30}' for leaf in leaves)}",
        got=f"{type(e).__name__}: {e}",
        fix="in tree_unflatten, make the object without the checks of its constructor: object.__new__(cls)",
    )


def _foreign_array(name: str, array: Any) -> ArgumentError:
    return error(
        ArgumentError,
        f"{name} is a NumPy array of dtype {array.dtype}, which JAX does not have",
        "foreign-array",
        expected="numbers or booleans",
        got=describe(array),
        fix="convert it to numbers, or pass it in a tuple, (array,), which reaches forward as it is",
    )


def _is_operand(leaf: Any) -> bool:
    """Return whether JAX must track a leaf of a container that is not traversed: a tracer or a Ref."""
    return is_tracer(leaf) or is_ref(leaf)


def bind_arguments(spec: Spec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Arguments, Sequence[Any]]:
    """Bind the arguments of `apply` to forward's parameters; return those that are keyword-only, and the others."""
    if not kwargs and len(args) in spec.parameters.direct:  # the usual case
        return Arguments(spec.parameters, {}), args
    positional, keywords = spec.parameters.bind(spec.name, args, kwargs)
    return Arguments(spec.parameters, keywords), positional
