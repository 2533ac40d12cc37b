"""saved_report: a table of the arrays that each Function keeps for backward."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core.primitives import remat_p

from fnjax.graph.calls import SOURCES
from fnjax.graph.dot import format_size
from fnjax.graph.program import Operation, Scope, TracedDerivative, Value, differentiate
from fnjax.graph.second_order import find_routes, is_unknown


@dataclasses.dataclass(frozen=True)
class SavedArray:
    """Array that a call of a Function keeps.

    Attributes:
        function: the name of the class.
        call: the number of the call, in the order of the trace.
        kind: "input", "output" or "intermediate".
        name: its source, with the name of the argument: `input x`.
        shape: its shape; inside vmap with the batch axis.
        dtype: its dtype, as text.
        times: the number of its copies, if the call is in a scan.
        nbytes: the bytes of all of them.
        used_by: the backward methods that use this array.
        second_order: the path of the second derivative in it, or why there is none.
        stops: whether computing that raises.
        recomputed: whether the call is inside `jax.checkpoint`, whose policy may drop the array.
    """

    function: str
    call: int
    kind: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    times: int
    nbytes: int
    used_by: tuple[str, ...]
    second_order: str
    stops: bool
    recomputed: bool

    def cells(self) -> tuple[str, ...]:
        """Return its row of the table, without the Function."""
        times = f"{self.times} × " if self.times > 1 else ""
        array = f"{times}{self.dtype}[{', '.join(map(str, self.shape))}]"
        name = self.name + (" (recomputed)" if self.recomputed else "")
        second = ("stops: " if self.stops else "") + self.second_order
        return name, array, format_size(self.nbytes), ", ".join(self.used_by), second


@dataclasses.dataclass(frozen=True)
class SavedReport:
    """Arrays that are kept between forward and backward; its string is a table.

    Attributes:
        rows: the arrays that Functions keep, call by call. An array that two calls keep has two rows.
        calls: for each call of a Function that is differentiated its name and why double backward stops there ("" if
            it does not).
        nbytes: the bytes of the arrays that Functions keep, each counted once.
        argument_nbytes: the bytes of those that are arguments of the whole function, and so alive anyway.
        other_nbytes: the bytes that JAX's own operations keep in addition.
    """

    rows: tuple[SavedArray, ...]
    calls: tuple[tuple[str, str], ...]
    nbytes: int
    argument_nbytes: int
    other_nbytes: int

    def __str__(self) -> str:
        if not self.calls:
            kept = format_size(self.other_nbytes)
            return f"No Function is differentiated here. JAX's own operations keep {kept}."
        table: list[tuple[str, ...]] = [("Function", "keeps", "array", "bytes", "used by", "second order")]
        for call, (name, _) in enumerate(self.calls):
            rows = [row.cells() for row in self.rows if row.call == call]
            table += [("" if i else name, *cells) for i, cells in enumerate(rows or [("nothing", *[""] * 4)])]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in table]
        rule = "-" * max(map(len, lines))
        lines = [lines[0], rule, *lines[1:], rule]
        lines += [
            f"Functions keep {format_size(self.nbytes)}, of which {format_size(self.argument_nbytes)} are arguments."
        ]
        lines.append(f"JAX's own operations keep {format_size(self.other_nbytes)} more.")
        stops = {name: why for name, why in self.calls if why}
        lines += [
            f"Double backward {'at' if is_unknown(why) else 'stops at'} {name}: {why}." for name, why in stops.items()
        ]
        if not stops:
            lines.append("Double backward goes through every Function.")
        return "\n".join(lines)


SavedArray.__module__ = SavedReport.__module__ = "fnjax.graph"


def saved_report(func: Callable[..., Any], *args: Any, argnums: int | Sequence[int] | None = None) -> SavedReport:
    """Report the arrays that each Function keeps for backward, and their second derivatives.

    The function is traced on types, nothing is computed. The bytes are those of the arrays that the traced program
    keeps: XLA may keep fewer, and a remat policy may drop arrays inside `jax.checkpoint`.

    Args:
        func: the function to differentiate; this and the others are as in `make_dot`.
        *args: its arguments.
        argnums: the arguments to differentiate.

    Returns:
        A report that prints as a table.

    Raises:
        TypeError: if `func` is not a function.
        ValueError: if there is nothing to differentiate.

    Examples:
        >>> import jax, jax.numpy as jnp, fnjax
        >>> class Exp(fnjax.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         y = jnp.exp(x)
        ...         ctx.save_for_backward(y)
        ...         return y
        ...     @staticmethod
        ...     def backward(ctx, grad_output):
        ...         y, = ctx.saved_tensors
        ...         return grad_output * y
        >>> print(fnjax.saved_report(Exp.apply, jax.ShapeDtypeStruct((32, 8), jnp.float32)))
        Function  keeps   array           bytes    used by       second order
        --------------------------------------------------------------------------------------
        Exp       output  float32[32, 8]  1.0 KiB  Exp.backward  through the rule of Exp again
        --------------------------------------------------------------------------------------
        Functions keep 1.0 KiB, of which 0 B are arguments.
        JAX's own operations keep 0 B more.
        Double backward goes through every Function.
    """
    traced = differentiate(func, args, lambda _: False, argnums)
    backwards = [op for op in traced.operations if op.partner is not None]
    users: dict[Value, list[str]] = {}
    for op in backwards:
        for value in dict.fromkeys(_read_residuals(op)):
            users.setdefault(value, []).append(f"{_read_name(op)}.backward")
    rows, calls = [], []
    for number, op in enumerate(backwards):
        made, stop = _read_rows(op, number, users)
        rows += made
        calls.append((_read_name(op), stop))
    arguments = set(traced.inputs.values())
    return SavedReport(
        tuple(rows),
        tuple(calls),
        sum(v.bytes for v in users),
        sum(v.bytes for v in users if v in arguments),
        sum(v.bytes for v in _find_kept_by_jax(traced) - set(users)),
    )


def _read_rows(op: Operation, number: int, users: dict[Value, list[str]]) -> tuple[list[SavedArray], str]:
    assert op.call is not None
    values = _read_residuals(op)
    ways, stop = find_routes(op.call)
    rows = [
        SavedArray(
            function=op.call.name,
            call=number,
            kind=SOURCES[residual.source],
            name=op.call.describe(residual),
            shape=tuple(value.aval.shape),
            dtype=value.aval.dtype.name,
            times=value.times,
            nbytes=value.bytes,
            used_by=tuple(dict.fromkeys(users[value])),
            second_order=way.text,
            stops=way.stops,
            recomputed=_is_in_checkpoint(op.scope),
        )
        for residual, value, way in zip(op.call.residual_sources, values, ways, strict=True)
    ]
    return rows, stop


def _read_name(op: Operation) -> str:
    assert op.call is not None
    return op.call.name


def _read_residuals(op: Operation) -> list[Value]:
    assert op.call is not None
    return op.inputs[: len(op.call.residual_sources)]


def _find_kept_by_jax(traced: TracedDerivative) -> set[Value]:
    """Return the varying values that linear operations other than Functions use."""
    plain = [op for op in traced.operations if op.linear and op.partner is None]
    return {x for op in plain for x in op.inputs if x.varies and not x.linear}


def _is_in_checkpoint(scope: Scope | None) -> bool:
    return scope is not None and (scope.label == remat_p.name or _is_in_checkpoint(scope.parent))
