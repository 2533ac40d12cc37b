"""Which element of a program's outputs reads which element of its inputs.

An elementwise function of n numbers has n² derivatives of which n are not zero. Whoever knows this from the program
itself, not from its derivative, finds all of them with one step of all inputs at once instead of n. Knowledge here is
conservative: an operation that is not in the tables below reads everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.extend.core as jex
import numpy as np

from fnjax._jax.jax_internals import open_jaxpr

Reads = np.ndarray[Any, np.dtype[np.int64]]  # for each element the one element of an input that it reads, or -1

# What an element of an output does not read at all stands as absent; what it may read in whole, as None.
Dependence = dict[int, Reads | None]


def find_reads(closed: Any) -> list[Dependence]:
    """For each output of a program (without calls: see `inline`) what its elements read of each input."""
    jaxpr = open_jaxpr(closed)
    known: dict[Any, Dependence] = {}
    for i, var in enumerate(jaxpr.invars):
        size = int(np.prod(var.aval.shape))
        known[var] = {i: np.arange(size).reshape(var.aval.shape)}

    def of(atom: Any) -> Dependence:
        return {} if isinstance(atom, jex.Literal) else known.get(atom, {})

    for eqn in jaxpr.eqns:
        operands = [of(atom) for atom in eqn.invars]
        if any(operands):
            known.update(zip(eqn.outvars, _propagate(eqn, operands), strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _propagate(eqn: Any, operands: list[Dependence]) -> list[Dependence]:
    name, out = eqn.primitive.name, getattr(eqn.outvars[0].aval, "shape", ())
    inputs = sorted({i for dependence in operands for i in dependence})
    results: list[Dependence] = [{} for _ in eqn.outvars]
    for i in inputs:
        given = [dependence.get(i, _read_nothing(atom)) for dependence, atom in zip(operands, eqn.invars, strict=True)]
        maps: Sequence[Reads | None] = [None] * len(results)
        if all(g is not None for g in given):
            full = [g for g in given if g is not None]
            if name in ELEMENTWISE:
                maps = [_merge(full, out)]
            elif name == "optimization_barrier":
                maps = full
            elif name in MOVEMENTS:
                maps = MOVEMENTS[name](full, eqn.params)
        for result, reads_of, var in zip(results, maps, eqn.outvars, strict=True):
            result[i] = reads_of if reads_of is not None and reads_of.shape == var.aval.shape else None
    return results


def _read_nothing(atom: Any) -> Reads:
    return np.full(atom.aval.shape, -1)


def _merge(maps: list[Reads], shape: tuple[int, ...]) -> Reads | None:
    """What an elementwise operation reads; None where operands read different elements."""
    merged = np.full(shape, -1)
    for each in maps:
        if each.shape not in (shape, ()):
            return None
        both = (merged >= 0) & (each >= 0)
        if np.any(both & (merged != each)):
            return None
        merged = np.where(merged < 0, each, merged)
    return merged


ELEMENTWISE = frozenset(
    [
        "abs",
        "acos",
        "acosh",
        "add",
        "add_any",
        "and",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "bessel_i0e",
        "bessel_i1e",
        "cbrt",
        "ceil",
        "clamp",
        "complex",
        "conj",
        "convert_element_type",
        "copy",
        "copy_p",
        "cos",
        "cosh",
        "digamma",
        "div",
        "eq",
        "erf",
        "erf_inv",
        "erfc",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "ge",
        "gt",
        "igamma",
        "igamma_grad_a",
        "igammac",
        "imag",
        "integer_pow",
        "is_finite",
        "le",
        "lgamma",
        "log",
        "log1p",
        "logistic",
        "lt",
        "max",
        "min",
        "mul",
        "ne",
        "neg",
        "nextafter",
        "not",
        "or",
        "polygamma",
        "pow",
        "real",
        "reduce_precision",
        "regularized_incomplete_beta",
        "rem",
        "round",
        "rsqrt",
        "select_n",
        "shift_left",
        "shift_right_arithmetic",
        "shift_right_logical",
        "sign",
        "sin",
        "sinh",
        "sqrt",
        "square",
        "sub",
        "tan",
        "tanh",
        "xor",
        "zeta",
    ]
)


def _broadcast(maps: list[Reads], params: dict[str, Any]) -> list[Reads]:
    shape, axes = params["shape"], params["broadcast_dimensions"]
    spread = np.ones(len(shape), np.int64)
    for axis, size in zip(axes, maps[0].shape, strict=True):
        spread[axis] = size
    return [np.broadcast_to(maps[0].reshape(spread), shape)]


def _slice(maps: list[Reads], params: dict[str, Any]) -> list[Reads]:
    start, stop = params["start_indices"], params["limit_indices"]
    step = params["strides"] or (1,) * len(start)
    return [maps[0][tuple(map(slice, start, stop, step))]]


def _pad(maps: list[Reads], params: dict[str, Any]) -> list[Reads | None]:
    operand, value = maps
    if value.shape != () or any(low < 0 or high < 0 or inner for low, high, inner in params["padding_config"]):
        return [None]
    widths = [(low, high) for low, high, _ in params["padding_config"]]
    return [np.pad(operand, widths, constant_values=value)]


MOVEMENTS: dict[str, Callable[[list[Reads], dict[str, Any]], Sequence[Reads | None]]] = {
    "broadcast_in_dim": lambda maps, params: _broadcast(maps, params) if len(maps) == 1 else [None],
    "concatenate": lambda maps, params: [np.concatenate(maps, params["dimension"])],
    "pad": _pad,
    "reshape": lambda maps, params: [
        maps[0].reshape(params["new_sizes"]) if params.get("dimensions") is None and len(maps) == 1 else None
    ],
    "rev": lambda maps, params: [np.flip(maps[0], params["dimensions"])],
    "slice": _slice,
    "split": lambda maps, params: np.split(maps[0], np.cumsum(params["sizes"])[:-1], params["axis"]),
    "squeeze": lambda maps, params: [maps[0].squeeze(tuple(params["dimensions"]))],
    "transpose": lambda maps, params: [maps[0].transpose(params["permutation"])],
}
