"""Displays, comprehensions, lambdas and literals.

What: tuples, lists, dictionaries and comprehensions stay, and what is known of their items is worked out here;
lambdas and constants too.
Before: `parts = [t.exp() for t in xs]`
After: `parts = [jnp.exp(t) for t in xs]`
Safety: a comprehension whose test is a tensor's value is a finding.
Limits: keys that are known are literals.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from operator import is_
from typing import Any

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, parse
from fnjax.port.analysis.registry import expression
from fnjax.port.known.facts import DTYPE, LIST, PASSED, UNKNOWN, MemRef, Value, list_memrefs
from fnjax.port.rewrite.memory.indexing import make_hashable
from fnjax.port.rewrite.values.binding import bind_target, find_held_memref, iterate_over, list_entries
from fnjax.port.torch import MISSING, bracket, read_literal, unparse
from fnjax.port.tree.located import list_nodes, replace_parts


@expression(cst.Tuple, cst.List, general=True)
def port_sequence(ev: Evaluator, node: cst.Tuple | cst.List) -> Expr:
    """Translate `(a, b)` and `[a, b]`."""
    made = ev.port_parts(node)
    values: list[Value] = []
    for element in node.elements:
        value = ev.port(element.value).value
        ev.need_entries(value)
        if isinstance(element, cst.StarredElement):
            if value.parts is None:
                name = LIST if isinstance(node, cst.List) else ""
                return Expr(made, Value("static", name=name, element=value.element or UNKNOWN))
            values += value.parts
        else:
            values.append(value)
    name = LIST if isinstance(node, cst.List) else ""
    return Expr(made, Value("static", name=name, literal=read_literal(node), parts=tuple(values)))


@expression(cst.Dict, cst.Set, general=True)
def port_dictionary(ev: Evaluator, node: cst.Dict | cst.Set) -> Expr:
    """Translate `{"a": x}`."""
    pairs = [
        (read_literal(e.key), e.value) if isinstance(e, cst.DictElement) else (None, e.value) for e in node.elements
    ]
    made = ev.port_parts(node)
    elements = [_hash_key(ev, old, new) for old, new in zip(node.elements, made.elements, strict=True)]
    if any(new is not old for new, old in zip(elements, made.elements, strict=True)):
        made = made.with_changes(elements=elements)
    held = find_held_memref(ev, [v for _, v in pairs])
    return Expr(made, Value("static", element=held or UNKNOWN, entries=list_entries(ev, pairs)))


def _hash_key(ev: Evaluator, old: Any, new: Any) -> Any:
    """Return an item of a dictionary or set; a dtype as its key gets the hash that dtypes of arrays have."""
    place = "key" if isinstance(old, cst.DictElement) else "value" if isinstance(old, cst.Element) else ""
    expr = ev.port(getattr(old, place)) if place else None
    return new if expr is None or expr.value.name != DTYPE else new.with_changes(**{place: make_hashable(ev, expr)})


@contextlib.contextmanager
def _open_scope(ev: Evaluator, node: cst.CSTNode) -> Iterator[dict[str, Value]]:
    """Open the scope of a lambda or a comprehension; lists around it that it changes may hold any memory after it."""
    around, own = ev.state.variables, ev.program.list_bound(node)
    with ev.open_scope() as inside:
        yield inside
    known = ((n, v) for n, v in inside.items() if v.element is not None and n not in own)
    if filled := [n for n, v in known if n in around and around[n] is not v]:
        memrefs = [m for v in around.values() for m in list_memrefs(v)]
        held = replace(UNKNOWN, memref=MemRef.join_all(*memrefs) if memrefs else None)
        for name in filled:
            around[name] = replace(around[name], parts=None, entries=(), literal=MISSING, element=held)


@expression(cst.Lambda, general=True)
def port_lambda(ev: Evaluator, node: cst.Lambda) -> Expr:
    """Translate `lambda x: x.exp()`: its parameters are taken for tensors where they are used as such."""
    with _open_scope(ev, node) as variables, ev.enter_conditional(repeated=True):
        variables.update({p.name.value: replace(UNKNOWN, memref=PASSED) for p in node.params.params})
        body = ev.port(node.body)
    params = [replace_parts(p, default=p.default and bracket(ev.port(p.default).node, 1)) for p in node.params.params]
    same = all(map(is_, params, node.params.params))
    made = replace_parts(
        node, body=body.node, params=node.params if same else replace_parts(node.params, params=params)
    )
    return Expr(made, Value("object", element=body.value))


@expression(cst.ListComp, cst.GeneratorExp, cst.SetComp, cst.DictComp, general=True)
def port_comprehension(ev: Evaluator, node: cst.BaseComp) -> Expr:
    """Translate `[f(x) for x in xs]`."""
    with _open_scope(ev, node), ev.enter_conditional(repeated=True):
        made_for = _port_comp_for(ev, node.for_in)
        if isinstance(node, cst.DictComp):
            key, value = make_hashable(ev, ev.port(node.key)), ev.port(node.value)
            made: cst.BaseExpression = node.with_changes(key=key, value=value.node, for_in=made_for)
            element = value.value
        else:
            assert isinstance(node, cst.BaseSimpleComp)
            expr = ev.port(node.elt)
            elt = make_hashable(ev, expr) if isinstance(node, cst.SetComp) else expr.node
            made = node.with_changes(elt=elt, for_in=made_for)
            element = expr.value
    name = LIST if isinstance(node, cst.ListComp) else ""
    return Expr(made, Value("static", name=name, element=replace(element, literal=MISSING)))


def _port_comp_for(ev: Evaluator, node: cst.CompFor) -> cst.CompFor:
    items = ev.port(node.iter)
    bind_target(ev, node.target, iterate_over(ev, node.iter, items.value), node)
    tests = [ev.port(i.test) for i in node.ifs]
    for test in tests:
        if ev.is_traced(test.value):
            ev.report_untraced(node, "how many items this takes depends on a tensor's value")
    ifs = [i.with_changes(test=t.node) for i, t in zip(node.ifs, tests, strict=True)]
    inner = _port_comp_for(ev, node.inner_for_in) if node.inner_for_in else None
    return node.with_changes(iter=items.node, ifs=ifs, inner_for_in=inner)


@expression(cst.NamedExpr, general=True)
def port_named_expression(ev: Evaluator, node: cst.NamedExpr) -> Expr:
    """Translate `(n := len(x))`."""
    expr = ev.port(node.value)
    if isinstance(node.target, cst.Name):
        ev.bind_name(node.target.value, expr.value, node)
    return Expr(node if expr.node is node.value else node.with_changes(value=expr.node), expr.value)


@expression(cst.Integer, cst.Float, cst.SimpleString, cst.Imaginary, general=True)
def port_literal(ev: Evaluator, node: cst.BaseExpression) -> Expr:
    """Translate numbers and strings."""
    value = read_literal(node)
    kind = type(value).__name__ if isinstance(value, (int, float, complex)) else "unknown"
    return Expr(node, Value("static", kind, literal=value))


@expression(cst.FormattedString, cst.ConcatenatedString, general=True)
def port_formatted_string(ev: Evaluator, node: cst.BaseExpression) -> Expr:
    """Translate strings with values in them."""
    made = ev.port_parts(node)
    shown = (p for p in list_nodes(node, cst.FormattedStringExpression) if p.format_spec)
    if any(ev.port(p.expression).value.is_tensor for p in shown):
        ev.report_untraced(node, "a tensor's value is written as text")
    if isinstance(made, cst.FormattedString):
        made = made.with_changes(parts=[_drop_quotes(part, made.quote) for part in made.parts])
    return Expr(made, Value("static"))


def _drop_quotes(part: cst.BaseFormattedStringContent, quote: str) -> cst.BaseFormattedStringContent:
    """Return a value in a string without the quotes of that string: Python 3.11 takes none."""
    inner = unparse(part.expression) if isinstance(part, cst.FormattedStringExpression) else ""
    if quote not in inner:
        return part
    return part.with_changes(expression=parse(inner.replace(quote, "'" if quote == '"' else '"')))
