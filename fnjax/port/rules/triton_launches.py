"""Triton kernels and their launches.

What: a kernel keeps its text, and its imports become fnjax.triton's. A launch gives back what the kernel stores to,
and the wrapper's variables take it. Strides are those of a row-major array, which all of JAX's are to a kernel.
Before: `scale_kernel[grid](x, out, x.numel(), BLOCK=128)`
After: `out = scale_kernel[grid](x, out, x.size, BLOCK=128)`
Safety: which parameters a kernel may write through is read from its text, helpers included.
Limits: a kernel that is no name of the file, and what is stored to and given by `*` or `**`, are findings.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.facts import STATIC, UNKNOWN, Place, Value
from fnjax.port.kernels import LANGUAGE, PROVIDED
from fnjax.port.operations import code, fit, literal
from fnjax.port.rules.own_functions import give_back
from fnjax.port.rules.registry import expression
from fnjax.port.walk import Statements, Stop, Term, Walk, assign, parse


@expression(cst.Call)
def launched(walk: Walk, node: cst.Call) -> Term | None:
    """`kernel[grid](x, out, n, BLOCK=128)`."""
    if not isinstance(node.func, cst.Subscript):
        return None
    name = walk.name_of(node.func.value)
    kernel = walk.program.kernels.get(name.removeprefix("file:")) if name.startswith("file:") else None
    if kernel is None:
        if name.startswith("file:") or not walk.program.kernels:
            return None
        message = (
            f"{code(node.func.value)} is launched, and is no kernel of the file by that name: launch it by its name"
        )
        raise Stop(node, "unknown", message)
    walk.called.add(name)
    taken: dict[str, cst.Arg] = {}
    known = True
    for i, arg in enumerate(node.args):
        known = known and not arg.star
        if arg.keyword is not None:
            taken[arg.keyword.value] = arg
        elif known and i < len(kernel.parameters):
            taken[kernel.parameters[i]] = arg
    grid = [e.with_changes(slice=_index(walk, e.slice)) for e in node.func.slice]
    args = [a.with_changes(value=walk.expr(a.value).node) for a in node.args]
    made = node.with_changes(func=node.func.with_changes(slice=grid), args=args)
    stored = tuple(kernel.stored)
    if any(n not in taken for n in stored) and any(a.star for a in node.args):
        message = (
            f"the kernel {kernel.name} stores to {', '.join(stored)}, which * or ** may give: name them in the launch"
        )
        raise Stop(node, "alias", message)
    if not stored:
        return Term(made, UNKNOWN)
    given = {n: taken[n] for n in stored if n in taken and literal(taken[n].value) is not None}
    if not given:
        return Term(made, UNKNOWN)
    _apart(walk, node, kernel.name, [a.value for a in node.args], given)
    walk.taking_back, known = _taking_back(walk, given), len(walk.before)
    try:
        term: Term = give_back(walk, node, made, stored, given)
    finally:
        walk.taking_back = set()
    walk.before[known:] = _at_once(walk.before[known:])
    return term


def _taking_back(walk: Walk, given: dict[str, cst.Arg]) -> set[str]:
    """The variables that a launch gives back, each whole: it does not matter whether two of them are one array."""
    terms = {code(a.value): walk.expr(a.value).value.place for a in given.values() if isinstance(a.value, cst.Name)}
    known = {n: p for n, p in terms.items() if p is not None}
    return {n for n, p in known.items() if all(_whole(p, q) for q in known.values() if p.storage & q.storage)}


def _whole(one: Place, other: Place) -> bool:
    """Whether two places, where they share memory, are one array."""
    if one.certain and other.certain:
        return one.same(other)
    return all(p.whole and not p.steps for p in (one, other))


def _apart(walk: Walk, node: cst.Call, name: str, args: list[cst.BaseExpression], given: dict[str, cst.Arg]) -> None:
    """Two arrays in a launch that are views of one memory are two arrays in JAX: a kernel would not see its stores."""
    stored = [(a.value, p) for a in given.values() if (p := walk.expr(a.value).value.place) is not None]
    for arg in args:
        place = walk.expr(arg).value.place
        for target, own in stored:
            if place is None or arg is target or not place.storage & own.storage:
                continue
            if not _whole(place, own) and not place.apart(own) and place.tells_of(own):
                message = f"{name} stores to {code(target)}, and {code(arg)} is another view of that memory: copy one"
                raise Stop(node, "alias", message)


def _at_once(made: Statements) -> Statements:
    """`a, b = launch` for `new_p, new_q = launch`, `a = new_p` and `b = new_q`."""
    first = made[0].body[0] if made and isinstance(made[0], cst.SimpleStatementLine) else None
    if not isinstance(first, cst.Assign) or not isinstance(first.targets[0].target, cst.Tuple):
        return made
    names_ = [code(e.value) for e in first.targets[0].target.elements]
    taking: dict[str, str] = {}
    for statement in made[1:]:
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        target = small.targets[0].target if isinstance(small, cst.Assign) else None
        if not isinstance(target, cst.Name) or code(small.value) not in names_:  # type: ignore[union-attr] # as target says
            return made
        if target.value in taking.values() or code(small.value) in taking:  # type: ignore[union-attr] # as above
            return made
        taking[code(small.value)] = target.value  # type: ignore[union-attr] # as above
    if set(taking) != set(names_) - {"_"}:
        return made
    return [assign(", ".join(taking.get(n, "_") for n in names_), first.value)]


def _index(walk: Walk, node: cst.BaseSlice) -> cst.BaseSlice:
    return node.with_changes(value=walk.expr(node.value).node) if isinstance(node, cst.Index) else node


@expression(cst.Attribute, cst.Call)
def provided(walk: Walk, node: cst.BaseExpression) -> Term | None:
    """`triton.cdiv(n, 128)`, `tl.float32`: fnjax.triton has them; what it has not is a finding."""
    name = walk.name_of(node.func if isinstance(node, cst.Call) else node)
    if not name.startswith("fnjax.triton"):
        return None
    if name not in PROVIDED and not name.startswith(LANGUAGE):
        raise Stop(node, "supply", f"fnjax.triton has no {name.removeprefix('fnjax.triton.')}; leave it out")
    made = node
    if isinstance(node, cst.Call):
        made = node.with_changes(args=[a.with_changes(value=walk.expr(a.value).node) for a in node.args])
    return Term(made, STATIC)


@expression(cst.Call)
def stride(walk: Walk, node: cst.Call) -> Term | None:
    """`x.stride(0)`: of a row-major array."""
    func = node.func
    if not (walk.program.kernels and isinstance(func, cst.Attribute) and func.attr.value == "stride"):
        return None
    if walk.name_of(func.value):
        return None
    owner = code(fit(walk.expr(func.value).node))
    if not node.args:
        walk.sink.needs.add("_strides")
        return Term(parse(f"_strides({owner})"), STATIC)
    if literal(node.args[0].value) == -1:
        return Term(parse("1"), Value("static", "int", literal=1))
    walk.sink.needs.add("_strides")
    return Term(parse(f"_strides({owner})[{code(walk.expr(node.args[0].value).node)}]"), Value("static", "int"))

