"""The key of what draws random numbers, as an argument of the port.

What: forward takes a key as its last argument, a helper one by name, an operator one after its tensors; backward finds
it on ctx.
Before: `def forward(ctx, x, p):` of a Function that draws
After: `def forward(ctx, x, p, key):`
Safety: who calls apply is told by a note.
Limits: no key can follow `*args`; vmap and setup_context split or keep the key by hand.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, list_statements, parse_line
from fnjax.port.analysis.expr import EQUAL
from fnjax.port.analysis.program import Program, Routine


def draws_beside(program: Program, routine: Routine) -> bool:
    """Whether it is registered for an operator whose body draws random numbers, as register_fake's function is."""
    bodies = [program.routines[c.methods["forward"]] for c in program.by_node.values() if routine.node in c.next_to]
    return routine.role == "helper" and any(b.draws for b in bodies)


def _add_key_to_schema(ev: Evaluator, program: Program, routine: Routine, params: cst.Parameters) -> cst.Parameters:
    """Return an operator's parameters and its key, which is an array and so positional, as its schema wants it."""
    operator = program.by_node.get(routine.node)
    if operator is not None and "setup_context" in operator.methods:
        ev.report(
            routine.node.name,
            "random",
            "an operator with a derivative draws random numbers: give it a key by hand, and backward a gradient of it",
        )
    ev.diagnostics.imports.add("jax")
    optional = any(p.default for p in params.params)
    last = cst.Param(cst.Name(program.key_name))
    last = last.with_changes(
        annotation=cst.Annotation(cst.parse_expression("jax.Array | None" if optional else "jax.Array")),
        default=cst.Name("None") if optional else None,
    )
    old = [p.with_changes(comma=cst.MaybeSentinel.DEFAULT) if p is params.params[-1] else p for p in params.params]
    return params.with_changes(params=[*old, last])


def add_key(ev: Evaluator, program: Program, routine: Routine, made: cst.FunctionDef) -> cst.FunctionDef:
    """Return the function with its new argument."""
    key = program.key_name
    # Only forward and helpers are called by who has a key; backward finds one on ctx, JAX calls the others.
    if routine.role in {"backward", "vjp", "jvp"}:
        if routine.draws:
            ctx = routine.parameters[routine.first - 1].name.value
            return insert_at_top(made, f"{key} = {ctx}.{key}")
        return made
    if routine.role == "vmap":
        ev.report(
            routine.node, "random", "a vmap method of a Function that draws random numbers has to split its key by hand"
        )
        return made
    if routine.role == "setup_context":
        backward = program.find_method(routine.owner, "backward") if routine.owner else None
        if backward is not None and backward.draws:
            ev.report(routine.node, "random", "backward draws random numbers: keep the key on ctx by hand")
        return made
    params = made.params
    if routine.role == "helper" and (draws_beside(program, routine) or routine.node in program.by_node):
        return made.with_changes(params=_add_key_to_schema(ev, program, routine, params))
    if routine.role == "helper":
        comma = (
            cst.ParamStar()
            if not params.kwonly_params and not isinstance(params.star_arg, cst.Param)
            else params.star_arg
        )
        new = params.with_changes(kwonly_params=[*params.kwonly_params, cst.Param(cst.Name(key))], star_arg=comma)
        return made.with_changes(params=new)
    if isinstance(params.star_arg, cst.Param):
        ev.report(
            routine.node, "random", "forward draws random numbers, and no key can follow *args: give it a key by hand"
        )
        return made
    default = cst.Name("None") if any(p.default for p in params.params) else None
    last = cst.Param(cst.Name(key), default=default, equal=EQUAL if default else cst.MaybeSentinel.DEFAULT)
    space = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    old = list(params.params)
    if old and isinstance(old[-1].comma, cst.Comma):
        last = last.with_changes(comma=old[-1].comma)
        old[-1] = old[-1].with_changes(comma=old[-2].comma if len(old) > 1 else space)
    made = made.with_changes(params=params.with_changes(params=[*old, last]))
    ev.note(
        routine.node,
        "random-key",
        f"this draws random numbers: apply takes a key of jax.random as its new last argument {key!r}, and "
        "backward returns one more None",
    )
    backward = program.find_method(routine.owner, "backward") if routine.owner else None
    if backward is not None and backward.draws and not routine.has_setup:
        kept = f"{routine.parameters[routine.first - 1].name.value}.{key}"
        split = (
            f"jax.random.split({key})"
            if default is None
            else f"jax.random.split({key}) if {key} is not None else (None, None)"
        )
        made = insert_at_top(made, f"{kept}, {key} = {split}" if routine.draws else f"{kept} = {key}")
    return made


def insert_at_top(node: cst.FunctionDef, text: str) -> cst.FunctionDef:
    """Return a function that begins with this line, after its docstring."""
    body = list_statements(node.body)
    at = 1 if node.get_docstring() is not None else 0
    block = node.body if isinstance(node.body, cst.IndentedBlock) else cst.IndentedBlock([])
    return node.with_changes(body=block.with_changes(body=[*body[:at], parse_line(text), *body[at:]]))
