"""Triton kernels and their launches.

What: a kernel keeps its text, and its imports become fnjax.triton's. A launch returns what the kernel stores to,
and the wrapper's variables take it. Strides are those of a row-major array, which all of JAX's are to a kernel.
Before: `scale_kernel[grid](x, out, x.numel(), BLOCK=128)`
After: `out = scale_kernel[grid](x, out, x.size, BLOCK=128)`
Safety: which parameters a kernel may write through is read from its text, helpers included.
Limits: a kernel that is not a name of the file, what is stored to and given by `*` or `**` of unknown length, two views
of one memory in a launch that stores to one of them, views with gaps whose strides the launch does not ask for, and
host descriptors (`TensorDescriptor`), are findings.
"""

from __future__ import annotations

from typing import Any

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements, Stop, make_assignment, parse
from fnjax.port.analysis.kernels import WRAPPING
from fnjax.port.analysis.registry import ENTRY, call_of, expression
from fnjax.port.known.facts import STATIC, UNKNOWN, MemRef, Step, Value
from fnjax.port.rewrite.calls.arguments import open_options, open_star
from fnjax.port.rewrite.calls.own_functions import give_back
from fnjax.port.rewrite.memory.writing import check_not_owned
from fnjax.port.source.naming import DESCRIBING, is_provided
from fnjax.port.torch import fill, read_literal, unparse
from fnjax.port.tree.located import list_nodes


@call_of(ENTRY)
def port_launch(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `kernel[grid](x, out, n, BLOCK=128)`."""
    if not isinstance(node.func, cst.Subscript):
        return None
    function = _unwrap_kernel(ev, node.func.value)
    kernel = _find_kernel(ev, function)
    if kernel is None:
        if ev.find_name(function).removeprefix("file:") in ev.program.classes or not ev.program.kernels:
            return None
        message = (
            f"{unparse(function)} is launched, and is not a kernel of the file by that name: launch it by its name"
        )
        raise Stop(node, "unknown", message)
    taken = _match_launch_arguments(ev, node, kernel)
    grid = [ev.port_parts(e) for e in node.func.slice]
    args = [a.with_changes(value=ev.port(_read_pointer(a.value)).node) for a in node.args]
    made = node.with_changes(func=node.func.with_changes(value=ev.port(function).node, slice=grid), args=args)
    stored = tuple(kernel.stored)
    hidden = [n for n in stored if n not in taken and n not in kernel.optional]
    if hidden and any(a.star for a in node.args):
        message = f"the kernel {kernel.name} stores to {', '.join(hidden)}, which * or ** may give: name them"
        raise Stop(node, "alias", message)
    _report_gaps(ev, node, kernel.name, taken)
    given = {n: taken[n] for n in stored if n in taken and ev.port(taken[n].value).value.literal is not None}
    if not given:
        return Expr(made, UNKNOWN)
    for arg in given.values():
        check_not_owned(node, ev.port(arg.value))
    _report_shared_memory(ev, node, kernel.name, [a.value for a in taken.values()], given)
    ev.taking_back, known = _list_given_back(ev, given), len(ev.before)
    try:
        expr: Expr = give_back(ev, node, made, stored, given)
    finally:
        ev.taking_back = set()
    ev.before[known:] = _merge_assignments(ev.before[known:])
    return expr


def _unwrap_kernel(ev: Evaluator, node: cst.BaseExpression) -> cst.BaseExpression:
    """Return `k` for `torch.library.wrap_triton(k)`."""
    if isinstance(node, cst.Call) and ev.find_name(node.func) in WRAPPING and len(node.args) == 1:
        return node.args[0].value
    return node


def _find_kernel(ev: Evaluator, node: cst.BaseExpression) -> Any:
    """Return the kernel that an expression is; of several that a branch selects, the first if they store alike."""
    if (name := _name_in_file(ev, node)) is not None:
        ev.called.add(f"file:{name}")
        return ev.program.kernels.get(name)
    given = [node.body, node.orelse] if isinstance(node, cst.IfExp) else []
    if isinstance(node, cst.Name) and all(p.name.value != node.value for p in ev.routine.parameters):
        given = [n for n in ev.routine.given.get(node.value, []) if n is not node]
    found = [_find_kernel(ev, _unwrap_kernel(ev, n)) for n in given]
    if not found or any(k is None for k in found):
        return None
    places = [[k.parameters.index(n) for n in k.stored] for k in found]
    return found[0] if all(p == places[0] for p in places) else None


def _name_in_file(ev: Evaluator, node: cst.BaseExpression) -> str | None:
    """Return the name of the top level that an expression is."""
    name = ev.find_name(node)
    if name.startswith("file:"):
        return name.removeprefix("file:")
    tuned = isinstance(node, cst.Name) and node.value in ev.program.kernels and node.value not in ev.state.variables
    return node.value if tuned else None  # type: ignore[attr-defined] # a name


def _match_launch_arguments(ev: Evaluator, node: cst.Call, kernel: Any) -> dict[str, cst.Arg]:
    """Return the arguments of a launch by the names of the kernel's parameters, as far as they are known."""
    args = [a.with_changes(value=_read_pointer(a.value)) for a in node.args]
    plain = [b for a in args if a.keyword is None and a.star != "**" for b in open_star(ev, a)]
    known = next((i for i, a in enumerate(plain) if a.star), len(plain))
    taken = dict(
        zip(kernel.parameters, (a.with_changes(value=_read_pointer(a.value)) for a in plain[:known]), strict=False)
    )
    entries = [e for a in args if a.star == "**" and ev.port(a.value).value.entries for e in open_options(ev, a)]
    taken |= {a.keyword.value: a for a in (*args, *entries) if a.keyword is not None}
    return {n: a for n, a in taken.items() if n in kernel.parameters}


def _read_pointer(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return `x` for `x.data_ptr()`, which a launch passes as a pointer."""
    called = node.func if isinstance(node, cst.Call) and not node.args else None
    return called.value if isinstance(called, cst.Attribute) and called.attr.value == "data_ptr" else node


def _report_gaps(ev: Evaluator, node: cst.Call, name: str, taken: dict[str, cst.Arg]) -> None:
    """Report a view with gaps whose strides are not its own: in JAX it is an array without gaps."""
    asked = {unparse(n.value) for n in list_nodes(ev.routine.node, cst.Attribute) if n.attr.value == "stride"}
    for arg in taken.values():
        memref, text = ev.port(arg.value).value.memref, unparse(arg.value)
        if memref and memref.certain and text not in asked and any(map(_leaves_gaps, memref.steps)):
            message = f"{text} is a view with gaps, and {name} is not given its strides: pass a copy of it"
            raise Stop(node, "alias", message)


def _leaves_gaps(step: Step) -> bool:
    """Return whether a view surely is not contiguous in PyTorch: `x[:, a:b]`, `x.T`."""
    if step.gaps or not isinstance(step.expression, cst.Subscript):
        return step.gaps
    index = [e.slice for e in step.expression.slice]
    while index and isinstance(index[0], cst.Index) and unparse(index[0]) != "...":
        index = index[1:]
    return any(unparse(i) not in {":", "..."} for i in (index[1:] if index and unparse(index[0]) != "..." else index))


def _list_given_back(ev: Evaluator, given: dict[str, cst.Arg]) -> set[str]:
    """Return the variables that a launch returns whole; two of them may be one array."""
    exprs = {unparse(a.value): ev.port(a.value).value.memref for a in given.values() if isinstance(a.value, cst.Name)}
    known = {n: p for n, p in exprs.items() if p is not None}
    return {n for n, p in known.items() if all(_is_one_array(p, q) for q in known.values() if p.storage & q.storage)}


def _is_one_array(one: MemRef, other: MemRef) -> bool:
    """Return whether two memory references, where they share memory, are one array."""
    if one.certain and other.certain:
        return one.is_same_view_as(other)
    return all(p.whole and not p.steps for p in (one, other))


def _report_shared_memory(
    ev: Evaluator, node: cst.Call, name: str, args: list[cst.BaseExpression], given: dict[str, cst.Arg]
) -> None:
    """Report two views of one memory: in JAX they are two arrays, and a kernel would not see its stores."""
    stored = [(a.value, p) for a in given.values() if (p := ev.port(a.value).value.memref) is not None]
    for arg in args:
        memref = ev.port(arg).value.memref
        for target, own in stored:
            if memref is None or arg is target or not memref.storage & own.storage:
                continue
            if not _is_one_array(memref, own) and not memref.is_disjoint_from(own) and memref.tells_overlap_with(own):
                what = f"{name} stores to {unparse(target)}, and {unparse(arg)} is another view of that memory"
                raise Stop(node, "alias", f"{what}: copy one")


def _merge_assignments(made: Statements) -> Statements:
    """Return `a, b = launch` for `new_p, new_q = launch`, `a = new_p` and `b = new_q`."""
    first, *others = (s.body[0] if isinstance(s, cst.SimpleStatementLine) else None for s in made) if made else [None]
    if not isinstance(first, cst.Assign) or not isinstance(first.targets[0].target, cst.Tuple):
        return made
    names = [unparse(e.value) for e in first.targets[0].target.elements]
    taking: dict[str, str] = {}
    for small in others:
        if isinstance(small, cst.Assign) and isinstance(small.targets[0].target, cst.Name):
            taking[unparse(small.value)] = small.targets[0].target.value
    if set(taking) != set(names) - {"_"} or len({*taking.values()}) < len(others):
        return made
    return [make_assignment(", ".join(taking.get(n, "_") for n in names), first.value)]


@call_of("fnjax.triton.")
@expression(cst.Attribute, only="triton")
def port_triton_name(ev: Evaluator, node: cst.BaseExpression, name: str = "") -> Expr | None:
    """Translate `triton.cdiv(n, 128)`, `tl.float32`: fnjax.triton has them; what it has not is a finding."""
    name = name or ev.find_name(node)
    if not name.startswith("fnjax.triton"):
        return None
    if name.startswith(DESCRIBING) and isinstance(node, cst.Call):
        raise Stop(node, "alias", "a host descriptor describes memory, and JAX arrays show none: launch with the array")
    if not is_provided(name):
        raise Stop(node, "supply", f"fnjax.triton has no {name.removeprefix('fnjax.triton.')}; leave it out")
    made = node
    if isinstance(node, cst.Call):
        made = node.with_changes(args=[a.with_changes(value=ev.port(a.value).node) for a in node.args])
    return Expr(made, STATIC)


@call_of("*.stride", only="kernels")
def port_stride(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `x.stride(0)`: of a row-major array."""
    of = node.func.value  # type: ignore[attr-defined] # a method
    if ev.find_name(of):
        return None
    if node.args and read_literal(node.args[0].value) == -1:
        return Expr(parse("1"), Value("static", "int", literal=1))
    ev.diagnostics.needs.add("_strides")
    if not node.args:
        return Expr(fill("_strides(A)", A=ev.port(of).node), STATIC)
    return Expr(fill("_strides(A)[I]", A=ev.port(of).node, I=ev.port(node.args[0].value).node), Value("static", "int"))
