"""Triton kernels and their launches.

What: a kernel keeps its text, and its imports become fnjax.triton's. A launch gives back what the kernel stores to,
and the wrapper's variables take it. Strides are those of a row-major array, which all of JAX's are to a kernel.
Before: `scale_kernel[grid](x, out, x.numel(), BLOCK=128)`
After: `out = scale_kernel[grid](x, out, x.size, BLOCK=128)`
Safety: which parameters a kernel may write through is read from its text, helpers included.
Limits: a kernel that is no name of the file, what is stored to and given by `*` or `**` of unknown length, two views of
one memory in a launch that stores to one of them, views with gaps whose strides the launch does not ask for, and
descriptors that a function returns or a branch chooses, are findings.
"""

from __future__ import annotations

from typing import Any

import libcst as cst

from fnjax.port.analysis.registry import ENTRY, call_of, expression
from fnjax.port.analysis.walk import Statements, Stop, Term, Walk, assign, parse
from fnjax.port.known.facts import STATIC, UNKNOWN, Place, Step, Value
from fnjax.port.rewrite.calls.arguments import opened, spelled_out
from fnjax.port.rewrite.calls.own_functions import give_back
from fnjax.port.source.described import is_descriptor
from fnjax.port.source.naming import DESCRIBING, is_provided
from fnjax.port.torch import code, fit, literal
from fnjax.port.tree.located import nodes

_WRAPPING = frozenset({"torch.library.wrap_triton", "torch._library.triton.wrap_triton"})


@call_of(ENTRY)
def launched(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """`kernel[grid](x, out, n, BLOCK=128)`."""
    if not isinstance(node.func, cst.Subscript):
        return None
    function = _unwrapped(walk, node.func.value)
    kernel = _kernel(walk, function)
    if kernel is None:
        if walk.name_of(function).startswith("file:") or not walk.program.kernels:
            return None
        message = f"{code(function)} is launched, and is no kernel of the file by that name: launch it by its name"
        raise Stop(node, "unknown", message)
    taken = _taken(walk, node, kernel)
    grid = [e.with_changes(slice=_index(walk, e.slice)) for e in node.func.slice]
    args = [a.with_changes(value=_argument(walk, a.value)) for a in node.args]
    made = node.with_changes(func=node.func.with_changes(value=walk.expr(function).node, slice=grid), args=args)
    stored = tuple(kernel.stored)
    hidden = [n for n in stored if n not in taken and n not in kernel.optional]
    if hidden and any(a.star for a in node.args):
        message = f"the kernel {kernel.name} stores to {', '.join(hidden)}, which * or ** may give: name them"
        raise Stop(node, "alias", message)
    whole = {_pointer(walk, a.value) for a in node.args if is_descriptor(a.value) and ".from_tensor(" in code(a.value)}
    _strided(walk, node, kernel.name, {n: a for n, a in taken.items() if a.value not in whole})
    given = {n: taken[n] for n in stored if n in taken and walk.expr(taken[n].value).value.literal is not None}
    if not given:
        return Term(made, UNKNOWN)
    _apart(walk, node, kernel.name, [a.value for a in taken.values()], given)
    walk.taking_back, known = _taking_back(walk, given), len(walk.before)
    try:
        term: Term = give_back(walk, node, made, stored, given)
    finally:
        walk.taking_back = set()
    walk.before[known:] = _at_once(walk.before[known:])
    return term


def _unwrapped(walk: Walk, node: cst.BaseExpression) -> cst.BaseExpression:
    """`k` of `torch.library.wrap_triton(k)`."""
    if isinstance(node, cst.Call) and walk.name_of(node.func) in _WRAPPING and len(node.args) == 1:
        return node.args[0].value
    return node


def _kernel(walk: Walk, node: cst.BaseExpression) -> Any:
    """The kernel that an expression is; of several, among which a branch chooses, the first if they store alike."""
    if isinstance(node, cst.IfExp):
        found = [_kernel(walk, n) for n in (node.body, node.orelse)]
    elif (name := _of_file(walk, node)) is not None:
        walk.called.add(f"file:{name}")
        return walk.program.kernels.get(name)
    else:
        given = walk.routine.given.get(node.value, []) if isinstance(node, cst.Name) else []
        if isinstance(node, cst.Name) and node.value in {p.name.value for p in walk.routine.parameters}:
            return None
        found = [_kernel(walk, _unwrapped(walk, n)) for n in given if not isinstance(n, cst.Name) or n is not node]
    if not found or any(k is None for k in found):
        return None
    places = [[k.parameters.index(n) for n in k.stored] for k in found]
    return found[0] if all(p == places[0] for p in places) else None


def _of_file(walk: Walk, node: cst.BaseExpression) -> str | None:
    """The name of the top level that an expression is."""
    name = walk.name_of(node)
    if name.startswith("file:"):
        return name.removeprefix("file:")
    tuned = isinstance(node, cst.Name) and node.value in walk.program.kernels and node.value not in walk.state.variables
    return node.value if tuned else None  # type: ignore[attr-defined] # a name


def _taken(walk: Walk, node: cst.Call, kernel: Any) -> dict[str, cst.Arg]:
    """The arguments of a launch by the names of the kernel's parameters, as far as they can be told."""
    taken: dict[str, cst.Arg] = {}
    plain = [_pointed(walk, a) for a in node.args if a.keyword is None and a.star != "**"]
    plain = [b for a in plain for b in opened(walk, a)]
    known = True
    for i, arg in enumerate(plain):
        known = known and not arg.star and i < len(kernel.parameters)
        if known:
            taken[kernel.parameters[i]] = _pointed(walk, arg)
    for arg in node.args:
        if arg.keyword is not None:
            taken[arg.keyword.value] = _pointed(walk, arg)
        elif arg.star == "**" and walk.expr(arg.value).value.entries:
            for entry in spelled_out(walk, arg):
                assert entry.keyword is not None
                taken[entry.keyword.value] = entry
    return {n: a for n, a in taken.items() if n in kernel.parameters}


def _argument(walk: Walk, node: cst.BaseExpression) -> cst.BaseExpression:
    """An argument of a launch, with the arrays as they are now."""
    if not is_descriptor(node):
        return walk.expr(_pointer(walk, node)).node
    assert isinstance(node, cst.Call)
    walk.called.add(f"file:{code(node.func).split('.')[0]}")
    return node.with_changes(args=[a.with_changes(value=walk.expr(a.value).node) for a in node.args])


def _pointed(walk: Walk, arg: cst.Arg) -> cst.Arg:
    return arg.with_changes(value=_pointer(walk, arg.value))


def _pointer(walk: Walk, node: cst.BaseExpression) -> cst.BaseExpression:
    """`x` of `x.data_ptr()` and of a descriptor, which a launch passes as a pointer."""
    if is_descriptor(node):
        assert isinstance(node, cst.Call)
        named = {a.keyword.value: a.value for a in node.args if a.keyword is not None}
        return named.get("base") or named.get("tensor") or node.args[0].value
    called = node.func if isinstance(node, cst.Call) and not node.args else None
    return called.value if isinstance(called, cst.Attribute) and called.attr.value == "data_ptr" else node


def _strided(walk: Walk, node: cst.Call, name: str, taken: dict[str, cst.Arg]) -> None:
    """A view with gaps is an array without gaps in JAX: its strides must be its own."""
    asked = {
        code(n.value) for n in nodes(walk.routine.node) if isinstance(n, cst.Attribute) and n.attr.value == "stride"
    }
    for arg in taken.values():
        place = walk.expr(arg.value).value.place
        if place is None or code(arg.value) in asked or not any(map(_leaves_gaps, place.steps)):
            continue
        if place.certain:
            message = f"{code(arg.value)} is a view with gaps, and {name} is not given its strides: pass a copy of it"
            raise Stop(node, "alias", message)


def _leaves_gaps(step: Step) -> bool:
    """Whether a view surely is not contiguous in PyTorch: `x[:, a:b]`, `x.T`."""
    if step.gaps or not isinstance(step.expression, cst.Subscript):
        return step.gaps
    index = [e.slice for e in step.expression.slice]
    while index and isinstance(index[0], cst.Index) and code(index[0]) != "...":
        index = index[1:]
    return any(code(i) not in {":", "..."} for i in (index[1:] if index and code(index[0]) != "..." else index))


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


@call_of("fnjax.triton.")
@expression(cst.Attribute)
def provided(walk: Walk, node: cst.BaseExpression, name: str = "") -> Term | None:
    """`triton.cdiv(n, 128)`, `tl.float32`: fnjax.triton has them; what it has not is a finding."""
    name = name or walk.name_of(node)
    if not name.startswith("fnjax.triton"):
        return None
    if name.startswith(DESCRIBING) and isinstance(node, cst.Call):
        message = "a descriptor must be given to a launch, by itself or by a variable that is bound once"
        raise Stop(node, "alias", message)
    if not is_provided(name):
        raise Stop(node, "supply", f"fnjax.triton has no {name.removeprefix('fnjax.triton.')}; leave it out")
    made = node
    if isinstance(node, cst.Call):
        made = node.with_changes(args=[a.with_changes(value=walk.expr(a.value).node) for a in node.args])
    return Term(made, STATIC)


@call_of("*.stride", only="kernels")
def stride(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """`x.stride(0)`: of a row-major array."""
    of = node.func.value  # type: ignore[attr-defined] # a method
    if walk.name_of(of):
        return None
    owner = code(fit(walk.expr(of).node))
    if not node.args:
        walk.sink.needs.add("_strides")
        return Term(parse(f"_strides({owner})"), STATIC)
    if literal(node.args[0].value) == -1:
        return Term(parse("1"), Value("static", "int", literal=1))
    walk.sink.needs.add("_strides")
    return Term(parse(f"_strides({owner})[{code(walk.expr(node.args[0].value).node)}]"), Value("static", "int"))
