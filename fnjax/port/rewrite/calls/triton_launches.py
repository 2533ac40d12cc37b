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

from fnjax.port.analysis.evaluation import LAUNCHING
from fnjax.port.analysis.kernels import WRAPPING
from fnjax.port.analysis.registry import ENTRY, call_of, expression
from fnjax.port.analysis.walk import Statements, Stop, Term, Walk, make_assignment, parse
from fnjax.port.known.facts import STATIC, UNKNOWN, Place, Step, Value
from fnjax.port.rewrite.calls.arguments import open_options, open_star
from fnjax.port.rewrite.calls.own_functions import give_back
from fnjax.port.rewrite.memory.writing import check_not_owned
from fnjax.port.source.described import is_descriptor
from fnjax.port.source.naming import DESCRIBING, is_provided
from fnjax.port.torch import bracket, read_literal, unparse
from fnjax.port.tree.located import list_nodes


@call_of(ENTRY)
def port_launch(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """Translate `kernel[grid](x, out, n, BLOCK=128)`."""
    if not isinstance(node.func, cst.Subscript):
        return None
    function = _unwrap_kernel(walk, node.func.value)
    kernel = _find_kernel(walk, function)
    if kernel is None:
        if walk.find_name(function).removeprefix("file:") in walk.program.classes or not walk.program.kernels:
            return None
        message = f"{unparse(function)} is launched, and is no kernel of the file by that name: launch it by its name"
        raise Stop(node, "unknown", message)
    taken = _match_launch_arguments(walk, node, kernel)
    grid = [e.with_changes(slice=_port_index(walk, e.slice)) for e in node.func.slice]
    args = [a.with_changes(value=_port_argument(walk, a.value)) for a in node.args]
    made = node.with_changes(func=node.func.with_changes(value=walk.port(function).node, slice=grid), args=args)
    stored = tuple(kernel.stored)
    hidden = [n for n in stored if n not in taken and n not in kernel.optional]
    if hidden and any(a.star for a in node.args):
        message = f"the kernel {kernel.name} stores to {', '.join(hidden)}, which * or ** may give: name them"
        raise Stop(node, "alias", message)
    whole = {
        _read_pointer(walk, a.value)
        for a in node.args
        if is_descriptor(a.value) and ".from_tensor(" in unparse(a.value)
    }
    _report_gaps(walk, node, kernel.name, {n: a for n, a in taken.items() if a.value not in whole})
    given = {n: taken[n] for n in stored if n in taken and walk.port(taken[n].value).value.literal is not None}
    if not given:
        return Term(made, UNKNOWN)
    for arg in given.values():
        check_not_owned(node, walk.port(arg.value))
    _report_shared_memory(walk, node, kernel.name, [a.value for a in taken.values()], given)
    walk.taking_back, known = _list_given_back(walk, given), len(walk.before)
    try:
        term: Term = give_back(walk, node, made, stored, given)
    finally:
        walk.taking_back = set()
    walk.before[known:] = _merge_assignments(walk.before[known:])
    return term


@call_of("file:", only="kernels")
def port_kernel_call(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """Translate `kernel(x)`, which Triton allows in kernels only."""
    if walk.program.is_kernel(name):
        raise Stop(node, "unknown", f"{unparse(node.func)} is a Triton kernel, which is called here: {LAUNCHING}")
    return None


def _unwrap_kernel(walk: Walk, node: cst.BaseExpression) -> cst.BaseExpression:
    """Translate `k` of `torch.library.wrap_triton(k)`."""
    if isinstance(node, cst.Call) and walk.find_name(node.func) in WRAPPING and len(node.args) == 1:
        return node.args[0].value
    return node


def _find_kernel(walk: Walk, node: cst.BaseExpression) -> Any:
    """Return the kernel that an expression is; of several that a branch selects, the first if they store alike."""
    if isinstance(node, cst.IfExp):
        found = [_find_kernel(walk, n) for n in (node.body, node.orelse)]
    elif (name := _name_in_file(walk, node)) is not None:
        walk.called.add(f"file:{name}")
        return walk.program.kernels.get(name)
    else:
        given = walk.routine.given.get(node.value, []) if isinstance(node, cst.Name) else []
        if isinstance(node, cst.Name) and node.value in {p.name.value for p in walk.routine.parameters}:
            return None
        found = [
            _find_kernel(walk, _unwrap_kernel(walk, n)) for n in given if not isinstance(n, cst.Name) or n is not node
        ]
    if not found or any(k is None for k in found):
        return None
    places = [[k.parameters.index(n) for n in k.stored] for k in found]
    return found[0] if all(p == places[0] for p in places) else None


def _name_in_file(walk: Walk, node: cst.BaseExpression) -> str | None:
    """Return the name of the top level that an expression is."""
    name = walk.find_name(node)
    if name.startswith("file:"):
        return name.removeprefix("file:")
    tuned = isinstance(node, cst.Name) and node.value in walk.program.kernels and node.value not in walk.state.variables
    return node.value if tuned else None  # type: ignore[attr-defined] # a name


def _match_launch_arguments(walk: Walk, node: cst.Call, kernel: Any) -> dict[str, cst.Arg]:
    """Return the arguments of a launch by the names of the kernel's parameters, as far as they can be told."""
    taken: dict[str, cst.Arg] = {}
    plain = [_pass_pointer(walk, a) for a in node.args if a.keyword is None and a.star != "**"]
    plain = [b for a in plain for b in open_star(walk, a)]
    known = True
    for i, arg in enumerate(plain):
        known = known and not arg.star and i < len(kernel.parameters)
        if known:
            taken[kernel.parameters[i]] = _pass_pointer(walk, arg)
    for arg in node.args:
        if arg.keyword is not None:
            taken[arg.keyword.value] = _pass_pointer(walk, arg)
        elif arg.star == "**" and walk.port(arg.value).value.entries:
            for entry in open_options(walk, arg):
                assert entry.keyword is not None
                taken[entry.keyword.value] = entry
    return {n: a for n, a in taken.items() if n in kernel.parameters}


def _port_argument(walk: Walk, node: cst.BaseExpression) -> cst.BaseExpression:
    """Return an argument of a launch, with the arrays as they are now."""
    if not is_descriptor(node):
        return walk.port(_read_pointer(walk, node)).node
    assert isinstance(node, cst.Call)
    walk.called.add(f"file:{unparse(node.func).split('.')[0]}")
    return node.with_changes(args=[a.with_changes(value=walk.port(a.value).node) for a in node.args])


def _pass_pointer(walk: Walk, arg: cst.Arg) -> cst.Arg:
    return arg.with_changes(value=_read_pointer(walk, arg.value))


def _read_pointer(walk: Walk, node: cst.BaseExpression) -> cst.BaseExpression:
    """Translate `x` of `x.data_ptr()` and of a descriptor, which a launch passes as a pointer."""
    if is_descriptor(node):
        assert isinstance(node, cst.Call)
        named = {a.keyword.value: a.value for a in node.args if a.keyword is not None}
        return named.get("base") or named.get("tensor") or node.args[0].value
    called = node.func if isinstance(node, cst.Call) and not node.args else None
    return called.value if isinstance(called, cst.Attribute) and called.attr.value == "data_ptr" else node


def _report_gaps(walk: Walk, node: cst.Call, name: str, taken: dict[str, cst.Arg]) -> None:
    """Report a view with gaps whose strides are not its own: in JAX it is an array without gaps."""
    asked = {
        unparse(n.value)
        for n in list_nodes(walk.routine.node)
        if isinstance(n, cst.Attribute) and n.attr.value == "stride"
    }
    for arg in taken.values():
        place = walk.port(arg.value).value.place
        if place is None or unparse(arg.value) in asked or not any(map(_leaves_gaps, place.steps)):
            continue
        if place.certain:
            message = (
                f"{unparse(arg.value)} is a view with gaps, and {name} is not given its strides: pass a copy of it"
            )
            raise Stop(node, "alias", message)


def _leaves_gaps(step: Step) -> bool:
    """Return whether a view surely is not contiguous in PyTorch: `x[:, a:b]`, `x.T`."""
    if step.gaps or not isinstance(step.expression, cst.Subscript):
        return step.gaps
    index = [e.slice for e in step.expression.slice]
    while index and isinstance(index[0], cst.Index) and unparse(index[0]) != "...":
        index = index[1:]
    return any(unparse(i) not in {":", "..."} for i in (index[1:] if index and unparse(index[0]) != "..." else index))


def _list_given_back(walk: Walk, given: dict[str, cst.Arg]) -> set[str]:
    """Return the variables that a launch gives back, each whole; two of them may be one array."""
    terms = {unparse(a.value): walk.port(a.value).value.place for a in given.values() if isinstance(a.value, cst.Name)}
    known = {n: p for n, p in terms.items() if p is not None}
    return {n for n, p in known.items() if all(_is_one_array(p, q) for q in known.values() if p.storage & q.storage)}


def _is_one_array(one: Place, other: Place) -> bool:
    """Return whether two places, where they share memory, are one array."""
    if one.certain and other.certain:
        return one.is_same_view_as(other)
    return all(p.whole and not p.steps for p in (one, other))


def _report_shared_memory(
    walk: Walk, node: cst.Call, name: str, args: list[cst.BaseExpression], given: dict[str, cst.Arg]
) -> None:
    """Two arrays in a launch that are views of one memory are two arrays in JAX: a kernel would not see its stores."""
    stored = [(a.value, p) for a in given.values() if (p := walk.port(a.value).value.place) is not None]
    for arg in args:
        place = walk.port(arg).value.place
        for target, own in stored:
            if place is None or arg is target or not place.storage & own.storage:
                continue
            if not _is_one_array(place, own) and not place.is_apart_from(own) and place.tells_overlap_with(own):
                message = (
                    f"{name} stores to {unparse(target)}, and {unparse(arg)} is another view of that memory: copy one"
                )
                raise Stop(node, "alias", message)


def _merge_assignments(made: Statements) -> Statements:
    """Translate `a, b = launch` for `new_p, new_q = launch`, `a = new_p` and `b = new_q`."""
    first = made[0].body[0] if made and isinstance(made[0], cst.SimpleStatementLine) else None
    if not isinstance(first, cst.Assign) or not isinstance(first.targets[0].target, cst.Tuple):
        return made
    names_ = [unparse(e.value) for e in first.targets[0].target.elements]
    taking: dict[str, str] = {}
    for statement in made[1:]:
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        target = small.targets[0].target if isinstance(small, cst.Assign) else None
        if not isinstance(target, cst.Name) or unparse(small.value) not in names_:  # type: ignore[union-attr] # as target says
            return made
        if target.value in taking.values() or unparse(small.value) in taking:  # type: ignore[union-attr] # as above
            return made
        taking[unparse(small.value)] = target.value  # type: ignore[union-attr] # as above
    if set(taking) != set(names_) - {"_"}:
        return made
    return [make_assignment(", ".join(taking.get(n, "_") for n in names_), first.value)]


def _port_index(walk: Walk, node: cst.BaseSlice) -> cst.BaseSlice:
    return node.with_changes(value=walk.port(node.value).node) if isinstance(node, cst.Index) else node


@call_of("fnjax.triton.")
@expression(cst.Attribute, only="triton")
def port_triton_name(walk: Walk, node: cst.BaseExpression, name: str = "") -> Term | None:
    """Translate `triton.cdiv(n, 128)`, `tl.float32`: fnjax.triton has them; what it has not is a finding."""
    name = name or walk.find_name(node)
    if not name.startswith("fnjax.triton"):
        return None
    if name.startswith(DESCRIBING) and isinstance(node, cst.Call):
        message = "a descriptor must be given to a launch, by itself or by a variable that is bound once"
        raise Stop(node, "alias", message)
    if not is_provided(name):
        raise Stop(node, "supply", f"fnjax.triton has no {name.removeprefix('fnjax.triton.')}; leave it out")
    made = node
    if isinstance(node, cst.Call):
        made = node.with_changes(args=[a.with_changes(value=walk.port(a.value).node) for a in node.args])
    return Term(made, STATIC)


@call_of("*.stride", only="kernels")
def port_stride(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """Translate `x.stride(0)`: of a row-major array."""
    of = node.func.value  # type: ignore[attr-defined] # a method
    if walk.find_name(of):
        return None
    owner = unparse(bracket(walk.port(of).node))
    if not node.args:
        walk.sink.needs.add("_strides")
        return Term(parse(f"_strides({owner})"), STATIC)
    if read_literal(node.args[0].value) == -1:
        return Term(parse("1"), Value("static", "int", literal=1))
    walk.sink.needs.add("_strides")
    return Term(parse(f"_strides({owner})[{unparse(walk.port(node.args[0].value).node)}]"), Value("static", "int"))
