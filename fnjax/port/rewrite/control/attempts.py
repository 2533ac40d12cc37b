"""`try` around what PyTorch or Python refuses, and JAX does not.

What: a `try` stays; of one that imports what the port does without, its handler does.
Before: `try: import fast` and `except ImportError: fast = None`
After: `fast = None`
Safety: handlers that only print and raise stay as they are, though JAX may not reach them.
Limits: another handler, around tensors, for what values may raise (a matrix without inverse, a division by zero) is a
finding.
"""

from __future__ import annotations

import functools
import sys

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Statements, find_names, list_statements
from fnjax.port.analysis.registry import statement
from fnjax.port.known.facts import Value
from fnjax.port.rewrite.control.checks import is_message
from fnjax.port.rewrite.values.binding import bind_target
from fnjax.port.source.naming import is_import_that_succeeds, is_provided, iter_imported
from fnjax.port.torch import unparse
from fnjax.port.tree.located import find_small_statement, list_nodes, list_small_statements, replace_parts

_IMPORTING = frozenset({"ImportError", "ModuleNotFoundError"})
# What code raises whatever the values of tensors are.
_OF_NO_VALUES = _IMPORTING | {"AttributeError", "NameError", "KeyError", "TypeError", "NotImplementedError"}
_WITHOUT = _IMPORTING | {"", "Exception"}  # what a handler for a missing module catches


def _report_unraised(ev: Evaluator, node: cst.Try) -> None:
    """Report a handler for what PyTorch raises at some values: JAX computes on, with NaN or with another number."""
    caught = [h.type for h in node.handlers if not _only_prints_and_raises(h.body)]
    some = any(kind is None or not find_names(kind) <= _OF_NO_VALUES for kind in caught)
    read = (ev.state.variables.get(name) for name in find_names(node.body))
    if some and any(value is not None and value.traced for value in read):
        ev.report_untraced(node, "this except is for what values raise, and JAX raises nothing")


def _port_missing_module(ev: Evaluator, node: cst.Try) -> Statements | None:
    """Translate `try: import other`, where the port imports no such module, as its handler."""
    opening = node.body.body[0]
    first = opening.body[0] if isinstance(opening, cst.SimpleStatementLine) else opening
    if not isinstance(first, (cst.Import, cst.ImportFrom)):
        return None
    taken = next((h for h in node.handlers if (unparse(h.type) if h.type else "") in _WITHOUT), None)
    full = {name for _, name in iter_imported(first)}
    missing = {name.split(".")[0] for name in full} - _PRESENT - sys.stdlib_module_names | full & _GONE
    missing |= {name for name in full if name.startswith("fnjax.triton") and not is_provided(name)}
    if not missing or taken is None or node.finalbody is not None:
        return None
    left = [
        s
        for s in list_statements(taken.body)
        if not is_message(s.body[0] if isinstance(s, cst.SimpleStatementLine) else s)
    ]
    if taken.name is not None and any(unparse(taken.name.name) in find_names(s) for s in left):
        return None
    what = min(missing).removeprefix("fnjax.")
    ev.note(node, "dropped", f"the port does without {what}: it takes what stands for the lack of it")
    return ev.port_block(left)


_GONE = frozenset({"torch.rfft", "torch.irfft", "torch.ifft", "torch._six"})  # of torch, which has them no more
_PRESENT = frozenset({"torch", "numpy", "scipy", "jax", "fnjax", "einops"})


def _only_prints_and_raises(block: cst.BaseSuite) -> bool:
    """Return whether a handler prints and raises, and does nothing else."""
    small = list_small_statements(list_statements(block))
    return isinstance(small[-1], cst.Raise) and all(is_message(x) for x in small[:-1])


def _only_answers(ev: Evaluator, node: cst.Try) -> bool:
    """Return whether the block returns True or False, as the port knows, and so raises nothing (queries of GPUs)."""
    if node.finalbody is not None or not list_nodes(node.body, cst.Return):
        return False
    with ev.speculate() as found:
        made = list_statements(ev.port_body(node.body))
    known = [isinstance(value.literal, bool) for value in found.returns]
    return known == [True] and len(made) == 1 and isinstance(find_small_statement(made[0]), cst.Return)


def _bind_caught(ev: Evaluator, handler: cst.ExceptHandler) -> None:
    if handler.name is not None:
        bind_target(ev, handler.name.name, Value("object"), handler)


@statement(cst.Try, general=True)
def port_try(ev: Evaluator, node: cst.Try) -> Statements | None:
    """Translate `try: ... except ...:`."""
    if is_import_that_succeeds(node):
        return ev.port_block([*list_statements(node.body), *(list_statements(node.orelse.body) if node.orelse else ())])
    if (without := _port_missing_module(ev, node)) is not None:
        return without
    if _only_answers(ev, node):
        return ev.port_block(list_statements(node.body))
    _report_unraised(ev, node)
    raising = [h.body for h in node.handlers if _only_prints_and_raises(h.body)]
    with ev.enter_branch(node.body, raising):
        tried = ev.evaluate_branch(node.body)
    somewhere = ev.state.copy_joined(tried.end)
    handled = [ev.evaluate_branch(h.body, somewhere, functools.partial(_bind_caught, ev, h)) for h in node.handlers]
    ev.join_branches([tried, *handled])
    pairs = zip(node.handlers, handled, strict=True)
    handlers = [replace_parts(h, body=branch.made) for h, branch in pairs]
    orelse, finalbody = (b and b.with_changes(body=ev.port_body(b.body)) for b in (node.orelse, node.finalbody))
    return [node.with_changes(body=tried.made, handlers=handlers, orelse=orelse, finalbody=finalbody)]
