"""Binding of variables, attributes and containers, for every rule that binds a name.

What: a target is bound to what is known of a value, by unpacking too; what a container holds of its items' memory.
Safety: what a global or an object keeps for later calls is a finding, or a note.
Limits: what is unpacked of a container of unknown length is known as one of its elements.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator
from fnjax.port.known.facts import UNKNOWN, MemRef, Value, find_any_element, list_memrefs
from fnjax.port.rewrite.values.context import keep_on_ctx, name_ctx_attribute
from fnjax.port.torch import MISSING, unparse
from fnjax.port.tree.located import list_nodes


def iterate_over(ev: Evaluator, node: cst.BaseExpression, value: Value) -> Value:
    """Return the value of an element that iteration yields."""
    ev.need_entries(value)
    found = find_any_element(value)
    return replace(found, literal=MISSING, number="", like="") if value.parts else found


def bind_target(ev: Evaluator, target: Any, value: Value, node: cst.CSTNode) -> None:
    """Bind variables, also by unpacking."""
    if isinstance(target, cst.Name):
        if target.value in ev.program.rebound and ev.routine.role != "module":
            here = (n for n in list_nodes(ev.routine.node) if isinstance(n, cst.Global))
            if any(item.name.value == target.value for n in here for item in n.names):
                if value.is_tensor:
                    report_outliving(ev, node, target.value)
                note_kept_argument(ev, node, target.value, value)
        ev.bind_name(target.value, value, node)
    elif isinstance(target, (cst.Tuple, cst.List)):
        ev.need_entries(value)
        plain = all(isinstance(e, cst.Element) for e in target.elements)
        parts = value.parts if plain and value.parts is not None and len(value.parts) == len(target.elements) else None
        element = value.element or iterate_over(ev, target, value)
        for i, e in enumerate(target.elements):
            one = parts[i] if parts is not None else element
            memref = value.memref or one.memref
            if parts is None and plain and memref is not None and value.kind == "static" and one.is_tensor:
                one = replace(one, memref=memref.take_entry(i))
            bind_target(ev, e.value, one if isinstance(e, cst.Element) else Value("static", element=element), node)
    elif isinstance(target, cst.Attribute):
        bind_attribute(ev, target, value, node)


def bind_attribute(ev: Evaluator, target: cst.Attribute, value: Value, node: cst.CSTNode) -> None:
    """Bind an attribute, as in `ctx.alpha = alpha`."""
    key = name_ctx_attribute(ev, target)
    if key:
        ev.need_entries(value)
        ev.bind_name(key, value, node)
        keep_on_ctx(ev, key, value)
    elif value.traced:
        note_set_once(ev, target)
    else:
        note_kept_argument(ev, target, unparse(target), value)


def report_outliving(ev: Evaluator, node: cst.CSTNode, name: str) -> None:
    """Report a global, or a container of the module, that takes an array."""
    message = f"this keeps an array in {name!r} for later calls, which jit does not allow: make it anew each time"
    ev.need_values(node, message)


def note_kept_argument(ev: Evaluator, node: cst.CSTNode, name: str, value: Value) -> None:
    """Note a global, or an attribute of an object, that takes an argument of forward that may be an array."""
    if value.kind == "unknown" and ev.routine.role in {"forward", "backward"}:
        message = f"{name!r} takes an argument for later calls: a Python value can be, an array cannot under jit"
        ev.note(node, "effect", message)


def note_set_once(ev: Evaluator, target: cst.Attribute | cst.Subscript) -> None:
    """Note an object's attribute that takes a tensor, or a dictionary's item."""
    ev.note(
        target,
        "effect",
        f"{unparse(target)} is set for its effect: under jit that happens once, while tracing, to what has no value "
        "then; jax.debug.callback sets it to values",
    )


def find_held_memref(ev: Evaluator, nodes_: list[cst.BaseExpression]) -> Value | None:
    """Return a value with all the memory of a container, or object, made from these; None if they have none."""
    held = [p for n in nodes_ for p in list_memrefs(ev.port(n).value)]
    return replace(UNKNOWN, memref=MemRef.join_all(*held)) if held else None


def list_entries(ev: Evaluator, pairs: list[tuple[object, cst.BaseExpression]]) -> tuple[tuple[str, Value], ...]:
    """Return what a dictionary with these keys holds; nothing where one of them is not known."""
    if not all(isinstance(key, str) for key, _ in pairs):
        return ()
    values = {str(key): ev.port(value).value for key, value in pairs}
    return tuple((key, _drop_memory(value)) for key, value in values.items())


def _drop_memory(value: Value) -> Value:
    """Return what is known of a tensor in a dictionary, without its memory."""
    if value.kind == "static":
        return value
    return Value(value.kind, value.dtype, value.rank)
