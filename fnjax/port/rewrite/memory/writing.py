"""Writes to memory become new values of the variables that see it.

What: in-place methods, alone, in chains and inside expressions; `out=`, `inplace=True`; every variable that shares the
memory (a view, another name, a saved tensor) takes its new value too.
Before: `d = A.diagonal(); d.mul_(2).add_(1)` with A read afterwards
After: `d = d * 2 + 1` and `A = _write(A, lambda a: jnp.diagonal(a), d)`
Safety: PyTorch's views are known from the table of operations; flatten and reshape of a tensor that the function makes
are views if it is contiguous, and a note says where that depends on the inputs. Where it cannot be told
whether two variables share memory, and the answer matters, that is a finding.
Limits: writes inside conditional expressions, lambdas and comprehensions; views taken with an index that has changed
since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop, find_names, make_assignment, parse
from fnjax.port.known.facts import HOLE, SAVED, MemRef, Step, Value, list_memrefs, may_widen
from fnjax.port.rewrite.memory.indexing import update_at
from fnjax.port.rewrite.memory.indices import list_indices
from fnjax.port.rewrite.memory.sharing import check_reads_before, find_holders, list_containers
from fnjax.port.source.naming import iter_targets
from fnjax.port.torch import Operation, fill, find_operation, unparse
from fnjax.port.torch.expressions import TemplateFiller
from fnjax.port.tree.located import list_nodes

_OWNED = " of an object"
_DOUBT = "whether this write changes {!r} cannot be told (the one may be a view of the other); take .clone() first"


def write_memory(ev: Evaluator, node: cst.CSTNode, target: Expr, new: cst.BaseExpression, value: Value) -> Expr:
    """Write `new` to the memory of `target`, in statements in front of the present one.

    Returns:
        The written tensor, as a typed expression.
    """
    memref = target.value.memref
    _check_not_repeated(node, memref)
    value = replace(value, memref=memref, number="")
    holders = find_holders(ev, memref) if memref else {}
    _check_not_elsewhere(ev, node, target, memref)
    if not holders or memref is None:
        return _write_unnamed(ev, node, new, value)
    if (memref.certain or memref.choice) and _is_written_again(ev, node, target, holders):
        return Expr(new, value)
    check_reads_before(ev, node, holders)
    _check_not_saved(ev, node, holders)
    if ev.here.conditional:
        raise Stop(
            node,
            "alias",
            "this writes to a tensor inside an expression that may not be evaluated; give it a statement of its own",
        )
    # One variable is written to, the one whose view is nearest to what the source writes to; all others that see the
    # memory are then made of that one anew (`write_holders`), so that the write is computed once.
    own = ev.name_variable(target.node) or unparse(target.node)
    if not (memref.certain or memref.choice) and own not in holders:
        live = [n for n in holders if ev.is_live(n, node)]
        if live:
            raise Stop(node, "alias", _DOUBT.format(live[0]))
        return Expr(new, value)
    holders = {n: p for n, p in holders.items() if n == own or not p.is_disjoint_from(memref)}
    inner = [n for n, p in holders.items() if p.is_prefix_of(memref) and ev.state.variables[n].kind != "static"]
    if memref.certain or memref.choice:
        inner = [n for n in inner if n == own or holders[n].tells_overlap_with(memref)]
    if not inner:
        raise Stop(node, "alias", "which variable this writes to is not known; write `x = x.at[...].set(...)` instead")
    named = find_names(target.node)
    bound = [n for n in inner if n in named or ev.is_live(n, node)]  # the others perhaps in other branches alone
    first = own if own in inner else max(bound or inner, key=lambda n: (len(holders[n].steps), n in named))
    held = holders[first]
    _check_certain(ev, node, memref, holders, first)
    if any(s.assumed for p in [memref, *holders.values()] for s in p.steps):
        ev.note(
            node,
            "alias",
            f"{own} is written to as the view that PyTorch makes it for contiguous inputs; for others it is a copy",
        )
    rest = memref.steps[len(held.steps) :]
    _give_variable(ev, node, first, write_view(ev, first, rest, new), replace(value, memref=held) if not rest else None)
    write_holders(ev, node, first, holders)
    return Expr(take_view(parse(first), rest), value)


def _check_not_elsewhere(ev: Evaluator, node: cst.CSTNode, target: Expr, memref: MemRef | None) -> None:
    """Check that no other function holds this memory, in which it would see the write."""
    text = unparse(target.node)
    remedy = ""
    if memref is None and isinstance(target.node, (cst.Name, cst.Attribute, cst.Subscript)):
        remedy = f"{text}, which outlives the call; let the function return the new array"
    elif memref and any(s.startswith("outer ") for s in memref.storage):
        remedy = f"{text} of the enclosing function; let this one return the new array"
    elif memref and memref.certain and any(s.startswith("global ") for s in memref.storage):
        remedy = f"the global {text}; let the function return the new array"
    if remedy:
        raise Stop(node, "alias", f"this writes to {remedy}")


def _is_written_again(ev: Evaluator, node: cst.CSTNode, target: Expr, holders: dict[str, MemRef]) -> bool:
    """Return whether this is the `x.add_(1)` of `x.add_(1).mul_(2)`, of which nobody sees what it has written."""
    for outer in list_nodes(ev.current):
        if not isinstance(outer, cst.Call) or not isinstance(outer.func, cst.Attribute) or outer.func.value is not node:
            continue
        operation = find_operation(f"torch.Tensor.{outer.func.attr.value}")
        if not isinstance(operation, Operation) or operation.inplace is None or not operation.each:
            return False
        seen = holders.keys() | {ev.routine.context for name in holders if name.startswith("ctx.")}
        given = [a.value for a in outer.args]
        return not any(seen & find_names(v) or may_widen(target.value, ev.port(v).value) for v in given)
    return False


def _check_not_repeated(node: cst.CSTNode, memref: MemRef | None) -> None:
    """Refuse a write to rows of an expanded tensor, and to windows, which may share their memory."""
    if memref and (memref.certain or memref.choice) and any(s.repeats for s in memref.steps):
        message = "rows of this view share their memory, so that a write to one changes others: take .clone() first"
        raise Stop(node, "alias", message)


def _write_unnamed(ev: Evaluator, node: cst.CSTNode, new: cst.BaseExpression, value: Value) -> Expr:
    """Write to a tensor that no variable holds: nobody sees the write, or it is refused."""
    containers = list_containers(ev, node, value.memref) if value.memref else []
    if value.memref:
        note_write(ev, value.memref)
    if containers:
        message = f"this writes to a tensor that {containers[0]!r} holds; take a copy with .clone() first, or put the "
        raise Stop(node, "alias", f"{message}new array there")
    _check_copy(ev, node)
    return Expr(new, value)


def _check_copy(ev: Evaluator, node: cst.CSTNode) -> None:
    """Check that `y[k]` is a copy in `y[k].add_(x)`, of which nobody takes the result, and in `y[k][i] = x`."""
    line = ev.current.body[0] if isinstance(ev.current, cst.SimpleStatementLine) else ev.current
    match node:
        case cst.Call(cst.Attribute(cst.Subscript() as written)) if isinstance(line, cst.Expr) and line.value is node:
            pass
        case cst.Assign([cst.AssignTarget(cst.Subscript(cst.Subscript() as written))]):
            pass
        case cst.AugAssign(cst.Subscript(cst.Subscript() as written)):
            pass
        case _:
            return
    indices = [ev.port(i).value for i in list_indices(written) if i is not None]
    if any(v.is_tensor and v.dtype != "bool" and not v.rank for v in indices):  # without axes it is a view
        message = f"whether {unparse(written)} is a view depends on the axes of its index; write to an element of it"
        raise Stop(node, "alias", message)


def _give_variable(ev: Evaluator, node: cst.CSTNode, name: str, new: cst.BaseExpression, value: Value | None) -> None:
    if not (isinstance(new, cst.Name) and new.value == name):
        ev.before.append(make_assignment(name, new))
    old = ev.state.variables[name]
    mask = old.mask if value is None else value.mask
    ev.bind_name(name, replace(value or old, memref=old.memref, number="", mask=mask), node)
    if old.memref:
        note_write(ev, old.memref)
    if ev.routine.role == "backward":
        _note_lost(ev, node, name, old)


def note_write(ev: Evaluator, memref: MemRef) -> None:
    """Note that the present statement writes to the memory of parameters, perhaps only if a flag is set."""
    routine, current = ev.routine, ev.current
    names_ = {s.removeprefix("arg:").split(".")[0] for s in memref.storage if s.startswith("arg:")}
    if not names_:
        return
    given = {p.name.value for p in routine.parameters} - ev.program.list_bound(routine.node.body)
    asked = (n for n in list_nodes(routine.node) if isinstance(n, cst.If) and unparse(n.test) in given)
    flag = next((unparse(n.test) for n in asked if any(inner is current for inner in list_nodes(n.body))), "")
    for name in names_:
        routine.flags[name] = flag if routine.flags.get(name, flag) == flag else ""
    routine.add_writes(names_)


def _note_lost(ev: Evaluator, node: cst.CSTNode, name: str, value: Value) -> None:
    """Note what backward writes to a buffer that was given to forward, which is meant for the caller."""
    program, owner = ev.program, ev.routine.owner
    index = program.find_saved_input(owner, value.memref and replace(value.memref, steps=()))
    forward = program.find_method(owner, "forward") if owner and index is not None else None
    if forward is not None and index not in program.find_differentiated_inputs(forward):
        ev.report(
            node,
            "in-place",
            f"backward writes to {name!r}, an input of forward, which the caller would see: return the new array, "
            "or write the class with a jax.new_ref",
        )


def find_owned(ev: Evaluator, node: cst.BaseExpression) -> Value:
    """Return the value of an attribute of the user's object, which keeps it."""
    return Value(memref=ev.make_memref(node, _OWNED))


def check_not_owned(node: cst.CSTNode, target: Expr) -> None:
    """Check that an object does not keep what is written to: it would keep the old array."""
    memref = target.value.memref
    if memref and any(s.endswith(_OWNED) for s in memref.storage):
        message = f"this writes to {unparse(target.node)}, which is an object's; write the new array to its attribute"
        raise Stop(node, "alias", message)


def _check_certain(ev: Evaluator, node: cst.CSTNode, memref: MemRef, holders: dict[str, MemRef], first: str) -> None:
    """Check that it is known whether the write is seen through another variable."""
    read = (n for n in holders if n != first and n not in ev.taking_back and ev.is_live(n, node, entries=True))
    doubtful = [n for n in read if not holders[n].tells_overlap_with(memref)]
    if doubtful:
        raise Stop(node, "alias", _DOUBT.format(doubtful[0]))
    containers = [n for n in list_containers(ev, node, memref) if n not in {*holders, SAVED}]
    if containers:
        raise Stop(
            node,
            "alias",
            f"this writes to a tensor that {containers[0]!r} holds as well; take a copy with .clone() first",
        )


def _check_not_saved(ev: Evaluator, node: cst.CSTNode, holders: dict[str, MemRef]) -> None:
    """Check that nothing of the memory was saved before: PyTorch saves the tensor, not its values at that time."""
    storages = {s for p in holders.values() for s in p.storage}
    saved = list_memrefs(ev.state.variables.get(SAVED, Value()))
    if any(p.storage & storages for p in saved):
        raise Stop(node, "alias", "this changes what ctx.save_for_backward was given before; save it after the write")


def write_view(ev: Evaluator, name: str, steps: tuple[Step, ...], new: cst.BaseExpression) -> cst.BaseExpression:
    """Return the new value of a variable of which a view takes new elements."""
    if not steps:
        return new
    _check_view_remains(ev, steps)
    match [s.expression for s in steps], new:
        case [cst.Call(cst.Attribute(cst.Name(), cst.Name("reshape")))], cst.Name():
            return fill("V.reshape(X.shape)", V=new, X=parse(name))
        case [cst.Subscript(cst.Name(of))], _ if of == HOLE:
            return update_at(cst.ensure_type(take_view(parse(name), steps), cst.Subscript), new)
    if any(step.recoded for step in steps):
        raise Stop(
            ev.current, "alias", f"this writes to {name!r} through a view that holds other numbers than {name!r} does"
        )
    ev.diagnostics.needs.add("_write")
    return fill("_write(N, lambda a: V, X)", N=parse(name), V=take_view(cst.Name("a"), steps), X=new)


def _check_view_remains(ev: Evaluator, steps: Sequence[Step]) -> None:
    """Check that the index of a view has the same value still: else the view cannot be taken again."""
    counters = {n for loop in ev.here.loops if isinstance(loop, cst.For) for n in iter_targets(loop.target)}
    for name, version in (read for step in steps for read in step.reads):
        value = ev.state.variables.get(name)
        changed = value is not None and value.kind == "static" and ev.state.find_version(name) != version
        if changed and name not in counters:
            message = f"this writes through a view that was taken with {name!r}, which has changed since"
            raise Stop(ev.current, "alias", message)


def take_view(node: cst.BaseExpression, steps: Sequence[Step]) -> cst.BaseExpression:
    """Return the view that steps take of an expression."""
    for step in steps:
        made = TemplateFiller({HOLE: node}, frozenset()).rewrite(step.expression)
        assert isinstance(made, cst.BaseExpression)
        node = made
    return node


def write_holders(ev: Evaluator, node: cst.CSTNode, first: str, holders: dict[str, MemRef]) -> None:
    """Give the other variables that see the memory its new elements."""
    source = holders[first]
    done = {first: source}
    read = [n for n in holders if ev.is_live(n, node) and n not in ev.taking_back]
    read = [
        n for n in read if holders[n].tells_overlap_with(source) or ev.is_live(n, node, entries=True)
    ]  # else its dtype stays
    others = {n: p for n, p in holders.items() if n != first and n in read}
    kinds = {n: ev.state.variables[n].kind for n in others}
    # The largest views first: the smaller ones are read from those, and need no write of their own.
    wholes = sorted(
        (n for n, p in others.items() if p.is_prefix_of(source) and kinds[n] != "static"),
        key=lambda n: -len(others[n].steps),
    )
    for name in wholes:
        memref = others.pop(name)
        rest = source.steps[len(memref.steps) :]
        optional = ev.state.variables[name].null.optional
        made = write_view(ev, name, rest, parse(first))
        _give_variable(
            ev, node, name, _write_if_any(ev, name, made), None if rest or optional else ev.state.variables[first]
        )
        done[name] = memref
    for name, memref in others.items():
        roots = [d for d in done if done[d].is_prefix_of(memref)]
        if not roots:
            message = f"{name!r} views the memory that this writes to; the whole of it has no name here"
            raise Stop(node, "alias", message)
        root = max(roots, key=lambda d: len(done[d].steps))
        more = memref.steps[len(done[root].steps) :]
        _check_view_remains(ev, more)
        _give_variable(ev, node, name, _write_if_any(ev, name, take_view(parse(root), more)), None)


def _write_if_any(ev: Evaluator, name: str, new: cst.BaseExpression) -> cst.BaseExpression:
    """Return the value for a variable that may be None, and then stays so."""
    return fill("None if N is None else X", N=parse(name), X=new) if ev.state.variables[name].null.optional else new
