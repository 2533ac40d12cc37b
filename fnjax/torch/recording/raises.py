"""Exceptions of traced branches: a branch that raises is not taken, unless a handler of the source would catch it."""

from __future__ import annotations

import ast
import contextlib
import dis
import itertools
import sys
import types
from typing import Any, NamedTuple

from fnjax._torch_ops.syntax.trees import RUNTIME, walk
from fnjax.torch.errors import NotSupported

HANDLERS = "__fnjax_handlers__"  # the name of list_handlers' result in loaded files
_RAISE = dis.opmap["RAISE_VARARGS"]
# Instructions that use the value of an expression, of which the first after a part of it says for what.
_ENDS = ("RAISE", "STORE", "POP", "RETURN", "JUMP", "YIELD", "SEND", "FOR_ITER", "COMPARE", "CONTAINS", "IS_OP")
_JUMPS = (ast.Return, ast.Break, ast.Continue)
# What Python's own protocols catch of these methods; AttributeError and StopIteration are caught of any function.
_PROTOCOLS = {"__getitem__": LookupError, "__missing__": LookupError}


class Handler(NamedTuple):
    """A `try` or `with` statement of a loaded file.

    Attributes:
        first: the first line of its body.
        last: the last line of its body.
        kinds: the types of exceptions that it catches; None for all.
        managers: the expressions of the context managers.
    """

    first: int
    last: int
    kinds: list[ast.expr | None]
    managers: list[ast.expr]


def list_handlers(tree: ast.AST) -> list[Handler]:
    """Return the statements of a file that may catch an exception."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Try, ast.TryStar)):
            kinds: list[ast.expr | None] = [h.type for h in node.handlers]
            if any(isinstance(n, _JUMPS) for n in walk(node.finalbody)):
                kinds.append(None)
            managers = []
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            kinds, managers = [], [item.context_expr for item in node.items]
        else:
            continue
        found.append(Handler(node.body[0].lineno, node.body[-1].end_lineno or 0, kinds, managers))
    return found


def is_message() -> bool:
    """Return whether the loaded function that runs makes the exception of a `raise` or `assert`."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and RUNTIME not in frame.f_globals:
        frame = frame.f_back
    if frame is None:
        return False
    at, steps = frame.f_lasti, dis.get_instructions(frame.f_code)
    return next((i.opname for i in steps if i.offset > at and i.opname.startswith(_ENDS)), "") == "RAISE_VARARGS"


def is_raised(error: Exception) -> bool:
    """Return whether a `raise` or `assert` of a loaded file raised an exception: others are errors, not decisions."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or RUNTIME not in trace.tb_frame.f_globals:
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE


def refuse_caught(error: Exception) -> None:
    """Check that no handler of a loaded file would catch an exception that a traced branch raises.

    Args:
        error: the exception; one that no `raise` of a loaded file has raised is an error, and only its handlers count.

    Raises:
        NotSupported: a handler would catch it; whether it runs is not known while JAX traces.
    """
    frame: types.FrameType | None = sys._getframe(1)
    is_caught = isinstance(error, StopIteration)  # by a loop
    if isinstance(error, AttributeError):  # by hasattr
        is_caught = is_raised(error) or not error.__traceback__
    while frame is not None and not is_caught:
        if RUNTIME in frame.f_globals:
            protocol = _PROTOCOLS.get(frame.f_code.co_name, ())
            is_caught = isinstance(error, protocol) or any(
                _catches(handler, error, frame)
                for handler in frame.f_globals.get(HANDLERS, ())
                if handler.first <= frame.f_lineno <= handler.last
            )
        frame = frame.f_back
    if is_caught:
        raise NotSupported(
            f"a {type(error).__name__} that a traced value decides on, and a handler around it catches",
            "decide with `if`, or outside of jax.jit",
        ) from error


def _catches(handler: Handler, error: BaseException, frame: types.FrameType) -> bool:
    if isinstance(error, BaseExceptionGroup) and any(_catches(handler, e, frame) for e in error.exceptions):
        return True  # by `except*`
    return any(kind is None or _is_instance(error, _evaluate(kind, frame)) for kind in handler.kinds) or any(
        _may_swallow(manager, error, frame) for manager in handler.managers
    )


def _evaluate(node: ast.expr, frame: types.FrameType) -> Any:
    """Return the value of names and their attributes; `object` where it is not known."""
    try:
        return eval(compile(ast.Expression(node), "<handler>", "eval"), frame.f_globals, dict(frame.f_locals))
    except Exception:  # noqa: BLE001 - a name without a value, or any error of a property
        return object


def _is_instance(error: BaseException, kinds: Any) -> bool:
    try:
        return isinstance(error, kinds)
    except TypeError:
        return True


def _may_swallow(node: ast.expr, error: BaseException, frame: types.FrameType) -> bool:
    """Return whether a context manager may catch an exception; True for one that cannot be evaluated."""
    made = node.func if isinstance(node, ast.Call) else node
    if not all(isinstance(n, (ast.Name, ast.Attribute, ast.expr_context)) for n in ast.walk(made)):
        return True
    manager = _evaluate(made, frame)
    kind = manager if isinstance(manager, type) else type(manager)
    if issubclass(kind, contextlib.suppress) and isinstance(node, ast.Call):
        return any(_is_instance(error, _evaluate(given, frame)) for given in node.args)
    unknown = kind is object or issubclass(kind, (contextlib.suppress, contextlib.ExitStack))
    if unknown or getattr(manager, "__name__", "") in {"raises", "assertRaises", "assertRaisesRegex"}:
        return True
    exit_ = getattr(kind, "__exit__", getattr(kind, "__aexit__", None))
    function = getattr(manager, "__wrapped__", exit_)  # of contextlib.contextmanager the generator
    if not isinstance(function, types.FunctionType) or RUNTIME not in function.__globals__:
        return False
    code = function.__code__
    if function is exit_:  # of a loaded class: a true result ends the exception
        steps = [*dis.get_instructions(code)]
        given = [
            before if i.opname == "RETURN_VALUE" else i
            for before, i in itertools.pairwise(steps)
            if "RETURN" in i.opname
        ]
        return not all(i.opname in {"LOAD_CONST", "RETURN_CONST"} and not i.argval for i in given)
    return any(handler.kinds for handler in find_handlers(code, function.__globals__))


def find_handlers(code: types.CodeType, space: dict[str, Any]) -> list[Handler]:
    """Return the statements of a function of a loaded file that may catch an exception, or act at its end."""
    lines = [line for _, _, line in code.co_lines() if line]
    return [h for h in space.get(HANDLERS, ()) if min(lines) <= h.first and h.last <= max(lines)]
