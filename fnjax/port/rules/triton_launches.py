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

from fnjax.port.facts import STATIC, UNKNOWN, Value
from fnjax.port.kernels import LANGUAGE, PROVIDED
from fnjax.port.operations import code, fit, literal
from fnjax.port.rules.own_functions import give_back
from fnjax.port.rules.registry import expression
from fnjax.port.walk import Stop, Term, Walk, parse


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
    return give_back(walk, node, made, stored, given)


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


@expression(cst.Attribute)
def processors(walk: Walk, node: cst.Attribute) -> Term | None:
    """`torch.cuda.get_device_properties(x.device).multi_processor_count`."""
    if node.attr.value != "multi_processor_count" or not walk.program.kernels:
        return None
    walk.sink.imports.add("triton")
    return Term(parse("triton.processor_count()"), Value("static", "int"))
