"""Annotated errors: a note says which Function a user's error comes from and what to write instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from fnjax._errors import AxisError, FnjaxError
from fnjax._function.arguments import Arguments
from fnjax._function.spec import Definition, Method
from fnjax._messages.notes import NOTED, note
from fnjax._messages.troubles import closure
from fnjax._primitives.tree import is_tracer


class explained:  # noqa: N801 - used as a function; a class costs a third of a generator
    """Context manager that annotates what `method` raises in its block.

    Args:
        definition: the class.
        arguments: those of the call.
        method: the user's method.
        operands: those of forward, if available.
        n_saved: how many tensors were saved, if `method` reads them.
    """

    __slots__ = ("_where",)

    def __init__(
        self,
        definition: Definition,
        arguments: Arguments,
        method: Method,
        operands: Sequence[Any] = (),
        n_saved: int | None = None,
    ) -> None:
        self._where = definition, arguments, method, operands, n_saved

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, e: BaseException | None, traceback: object) -> None:
        if isinstance(e, Exception):
            explain(e, *self._where)


def explain(
    e: Exception,
    definition: Definition,
    arguments: Arguments,
    method: Method,
    operands: Sequence[Any] = (),
    n_saved: int | None = None,
) -> None:
    """Add a note to an error, or raise a clearer one in its place.

    Raises:
        FnjaxError: for a tracer that has leaked out of its transformation.
    """
    if isinstance(e, jax.errors.UnexpectedTracerError):
        raise closure(definition.forward, definition.name) from e
    if isinstance(e, AxisError) and not e.method:  # the innermost Function is named
        e.method = f"{definition.name}.{getattr(method, '__name__', 'forward')}"
        e.args = (f"{e.method}: {e}",)
    if isinstance(e, FnjaxError) or not isinstance(e, NOTED):
        return

    def scalars() -> list[str]:
        return [
            arguments.name(i)
            for i, a in enumerate(arguments.each if operands else ())
            if a.kind == "tensor" and is_tracer(operands[a.start]) and operands[a.start].ndim == 0
        ]

    if text := note(e, method, definition.name, definition.ctx.__name__, scalars, n_saved):
        e.add_note(text)
