"""Loops over views: the rows of a tensor, the parts of a split, and these zipped and enumerated.

What: a loop that writes to what it iterates over counts its iterations, and the whole takes what the round has written.
Before: `for part in y.split(2): part.mul_(2)`
After: `for i, part in enumerate(_split(y, 2)): part = part * 2; y = y.at[2 * i:2 * (i + 1)].set(part)`
Safety: only where nothing else in the loop names the memory, and its views have no entries in common.
Limits: windows, and several views of one tensor in a zip.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, parse
from fnjax.port.analysis.program import list_nodes
from fnjax.port.known.facts import HOLE, MemRef, Step, Value, may_touch
from fnjax.port.rewrite.values.binding import iterate_over
from fnjax.port.source.naming import iter_targets
from fnjax.port.torch import unparse


@dataclass(frozen=True, slots=True)
class Views:
    """What a loop over views binds.

    Attributes:
        value: the value of each iteration.
        counter: the variable that counts the iterations.
        counts: whether the loop of the source counts them already.
    """

    value: Value
    counter: str
    counts: bool


def find_views(ev: Evaluator, node: cst.For) -> Views | None:
    """Return the views that a loop may write to; None where there are none, or it cannot be told which they are."""
    call = _spell_out(ev, node.iter)
    counts = isinstance(call, cst.Call) and ev.find_name(call.func) == "builtins.enumerate" and len(call.args) == 1
    pair = node.target.elements if isinstance(node.target, cst.Tuple) else ()
    counts = counts and len(pair) == 2 and isinstance(pair[0].value, cst.Name)
    taken = ev.taken | ev.state.variables.keys() | ev.here.waiting
    counter = next((n for n in ("i", "j", "k", "i_", "j_", "k_") if n not in taken), "")
    if counts:
        assert isinstance(call, cst.Call)
        assert isinstance(pair[0].value, cst.Name)
        call, counter = _spell_out(ev, call.args[0].value), pair[0].value.value
        counter = "" if counter in ev.program.list_bound(node.body) else counter
    if not counter:
        return None
    zipped = isinstance(call, cst.Call) and ev.find_name(call.func) == "builtins.zip"
    parts = [a.value for a in call.args if not a.keyword] if isinstance(call, cst.Call) and zipped else [call]
    values = [_describe_view(ev, p, counter) or iterate_over(ev, p, ev.port(p).value) for p in parts]
    found = [v.memref for v in values if v.memref is not None and v.memref.steps and v.memref.steps[-1].reads]
    if not found or len({s for p in found for s in p.storage}) < sum(len(p.storage) for p in found):
        return None
    storage = frozenset(s for p in found for s in p.storage)
    inside = {n.value for n in list_nodes(node.body) if isinstance(n, cst.Name)}
    others = {n for n, v in ev.state.variables.items() if may_touch(v, storage)}
    if (others - set(iter_targets(node.target))) & inside:
        return None
    value = Value("static", parts=tuple(values)) if zipped else values[0]
    return Views(Value("static", parts=(Value("static", "int"), value)) if counts else value, counter, counts)


def _spell_out(ev: Evaluator, node: cst.BaseExpression) -> cst.BaseExpression:
    """Return the call that a variable holds the result of, if it would give the same now."""
    number = ev.look_up(node.value).number if isinstance(node, cst.Name) else ""
    given = ev.routine.given.get(unparse(node), ()) if number else ()
    return next((v for v in given if ev.number_expression(v) == number), node)


def _describe_view(ev: Evaluator, node: cst.BaseExpression, counter: str) -> Value | None:
    """Return the view that a round sees of what is iterated over."""
    expr = ev.port(node)
    memref = expr.value.memref
    one = iterate_over(ev, node, expr.value)
    if memref is None or not one.is_tensor or not memref.local or any(s.repeats for s in memref.steps):
        return None
    if expr.value.is_tensor and not memref.certain:
        return None
    if expr.value.kind == "static" and not (isinstance(node, cst.Call) and memref.steps):
        return None  # no list of views that is made here
    taken = Step.make_step(parse(f"{HOLE}[{counter}]"), frozenset({(counter, _VERSION)}))
    return replace(one, memref=MemRef(memref.storage, (*memref.steps, taken)), number="", like="")


_VERSION = -1  # of the counter: nothing in the loop writes to it


def forget_iteration(ev: Evaluator, views: Views) -> None:
    """Forget what an earlier iteration has seen, which the counter of this one does not say."""
    for name, value in ev.state.variables.items():
        if value.memref and any((views.counter, _VERSION) in s.reads for s in value.memref.steps):
            ev.state.variables[name] = replace(value, memref=value.memref.doubtful)


def add_counter(views: Views, made: cst.For) -> cst.For:
    """Return the loop, with a counter where its block reads one that it had not."""
    if views.counts or not any(isinstance(n, cst.Name) and n.value == views.counter for n in list_nodes(made.body)):
        return made
    inner = made.target
    if isinstance(inner, cst.Tuple) and not inner.lpar:
        inner = inner.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    target = cst.Tuple([cst.Element(cst.Name(views.counter), comma), cst.Element(inner)], lpar=[], rpar=[])
    return made.with_changes(target=target, iter=parse(f"enumerate({unparse(made.iter)})"))
