"""The key of functions that draw random numbers, as an argument of the port.

What: forward takes a key as its last argument, a helper one by name, an operator one after its tensors; backward finds
it on ctx.
Before: `def forward(ctx, x, p):` of a Function that draws
After: `def forward(ctx, x, p, key):`
Safety: a note says so to callers of apply.
Limits: no key can follow `*args`; vmap and setup_context split or keep the key by hand.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, list_statements, parse_line
from fnjax.port.analysis.expr import EQUAL
from fnjax.port.analysis.program import Program, Routine


def draws_beside(program: Program, routine: Routine) -> bool:
    """Return whether a function is registered (as by register_fake) for an operator whose body draws random numbers."""
    bodies = [program.routines[c.methods["forward"]] for c in program.by_node.values() if routine.node in c.next_to]
    return routine.role == "helper" and any(b.draws for b in bodies)


def add_key(ev: Evaluator, program: Program, routine: Routine, made: cst.FunctionDef) -> cst.FunctionDef:
    """Return the function with its new argument."""
    key, params = program.key_name, made.params
    ctx = routine.parameters[routine.first - 1].name.value if routine.first else ""
    backward = program.find_method(routine.owner, "backward") if routine.owner else None
    later = backward is not None and backward.draws
    # Only forward and helpers are called by who has a key; backward finds one on ctx, JAX calls the others.
    if routine.role in {"backward", "vjp", "jvp"}:
        return insert_at_top(made, f"{key} = {ctx}.{key}") if routine.draws else made
    if routine.role == "vmap":
        message = "a vmap method of a Function that draws random numbers has to split its key: write it by hand"
        ev.report(routine.node, "random", message)
        return made
    if routine.role == "setup_context":
        if later:
            ev.report(routine.node, "random", "backward draws random numbers: keep the key on ctx by hand")
        return made
    operator = program.by_node.get(routine.node)
    optional = any(p.default for p in params.params)
    if routine.role == "helper" and (operator is not None or draws_beside(program, routine)):
        if operator is not None and "setup_context" in operator.methods:
            message = "an operator with a derivative draws random numbers: give it a key, and backward a gradient of it"
            ev.report(routine.node.name, "random", message)
        ev.diagnostics.imports.add("jax")
        annotation = cst.Annotation(cst.parse_expression("jax.Array | None" if optional else "jax.Array"))
        last = cst.Param(cst.Name(key), annotation, default=cst.Name("None") if optional else None)
        return _append_parameter(made, last)  # an array, and so positional, as its schema wants it
    if routine.role == "helper":
        alone = not params.kwonly_params and not isinstance(params.star_arg, cst.Param)
        star = cst.ParamStar() if alone else params.star_arg
        new = params.with_changes(kwonly_params=[*params.kwonly_params, cst.Param(cst.Name(key))], star_arg=star)
        return made.with_changes(params=new)
    if isinstance(params.star_arg, cst.Param):
        message = "forward draws random numbers, and no key can follow *args: give it a key by hand"
        ev.report(routine.node, "random", message)
        return made
    default = cst.Name("None") if optional else None
    made = _append_parameter(
        made, cst.Param(cst.Name(key), default=default, equal=EQUAL if default else cst.MaybeSentinel.DEFAULT)
    )
    message = f"this draws random numbers: apply takes a key of jax.random as its new last argument {key!r}, and "
    ev.note(routine.node, "random-key", message + "backward returns one more None")
    if not later or routine.has_setup:
        return made
    split = f"jax.random.split({key})" + (f" if {key} is not None else (None, None)" if optional else "")
    return insert_at_top(made, f"{ctx}.{key}, {key} = {split}" if routine.draws else f"{ctx}.{key} = {key}")


def _append_parameter(made: cst.FunctionDef, last: cst.Param) -> cst.FunctionDef:
    old = made.params.params
    old = [*old[:-1], *(p.with_changes(comma=cst.MaybeSentinel.DEFAULT) for p in old[-1:])]
    return made.with_changes(params=made.params.with_changes(params=[*old, last]))


def insert_at_top(node: cst.FunctionDef, text: str) -> cst.FunctionDef:
    """Return a function that begins with this line, after its docstring."""
    body = list_statements(node.body)
    at = 1 if node.get_docstring() is not None else 0
    block = node.body if isinstance(node.body, cst.IndentedBlock) else cst.IndentedBlock([])
    return node.with_changes(body=block.with_changes(body=[*body[:at], parse_line(text), *body[at:]]))
