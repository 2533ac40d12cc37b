"""Gradients that backward takes itself of a forward that it computes again.

What: a forward that backward computes once more under `torch.enable_grad()` and differentiates with torch.autograd.grad
becomes a function and its jax.vjp, also in each iteration of a loop.
Before: `with torch.enable_grad(): x = x.detach().requires_grad_(); y = f(x)` and `torch.autograd.grad(y, x, g)`
After: `def recomputed(x): return f(x)` and `jax.vjp(recomputed, x)[1](g)`
Safety: only where the block is followed by one call of torch.autograd.grad on what it computed.
Limits: create_graph, graphs kept on ctx, and what an earlier stage has computed and differentiated are findings. Where
PyTorch has no second derivative, as there is no create_graph, the port has the part that goes through the gradients
that backward is given: what the source detaches is constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements, find_names, parse, parse_line
from fnjax.port.known.facts import TENSOR, UNKNOWN, Value
from fnjax.port.rewrite.calls.randomness import make_own_key
from fnjax.port.rewrite.control.carried_loops import make_function
from fnjax.port.rewrite.functions.recomputed_steps import (
    is_read_by_other_name,
    is_read_later,
    list_shape_steps,
    read_container,
    split_steps,
)
from fnjax.port.rewrite.functions.returns import make_return
from fnjax.port.rewrite.values.binding import bind_target
from fnjax.port.torch import bracket, unparse
from fnjax.port.torch.machinery import ENABLING, NO_GRAD, PLAIN
from fnjax.port.tree.located import list_nodes


def port_recomputation(ev: Evaluator, body: Sequence[cst.BaseStatement], index: int) -> tuple[Statements, int] | None:
    """Translate `with torch.enable_grad(): ...` followed by torch.autograd.grad, as a function and its jax.vjp."""
    first = body[index]
    if not isinstance(first, cst.With):
        return _port_in_block(ev, body) if index == 0 and ev.here.grad_enabled else None
    heads, block = _open_nested_with(ev, first)
    if not heads & ENABLING or heads - ENABLING - PLAIN - NO_GRAD:
        return None
    inner: list[Any] = [part for s in block.body for part in _take_gradients_out(ev, s)]
    found = next((j for j, s in enumerate(inner) if _find_grad_call(ev, s)), None)
    between: Sequence[cst.BaseStatement] = ()
    if found is not None:
        early = [s for i, s in enumerate(inner[:found]) if _may_stand_behind(ev, s, inner[i:found])]
        steps, grad, used = [s for s in inner[:found] if s not in early], inner[found], 1
        rest = [*early, *inner[found + 1 :]]
    else:
        after = [_take_gradients_out(ev, s) for s in body[index + 1 : index + 6]]
        follow = next((j for j, parts in enumerate(after) if _find_grad_call(ev, parts[0])), None)
        if follow is None:
            return None
        steps, (grad, *rest), used = inner, after[follow], follow + 2
        between = body[index + 1 : index + 1 + follow]
    call = _find_grad_call(ev, grad)
    assert call is not None
    packed = [
        s for s in between if ev.program.list_bound(s) & _list_outputs(call)
    ]  # `if isinstance(y, Tensor): y = (y,)`
    others = [s for s in between if s not in packed]
    if any(ev.program.list_bound(s) & find_names(p) for s in others for p in packed):
        return None
    steps, between = [*steps, *packed], others
    made = _port_pullback(ev, first, steps, grad, call, between)
    return None if made is None else ([*made, *_port_followers(ev, first, steps, rest, inside=found is not None)], used)


def _port_followers(ev: Evaluator, head: cst.With, steps: list[Any], rest: list[Any], inside: bool) -> Statements:
    """Return what stands after a call of torch.autograd.grad in one block; there may be another one."""
    if not inside or not any(_find_grad_call(ev, part) for s in rest for part in _take_gradients_out(ev, s)):
        made = ev.port_block(rest)
        _record_history(ev, rest if inside else [], _collect_history(ev, rest))
        return made
    block = head.with_changes(body=cst.IndentedBlock(rest), leading_lines=[])
    positions = ev.program.source.positions
    positions[block] = positions[rest[0]]
    return ev.port_block([block])


def _collect_history(
    ev: Evaluator, steps: Sequence[cst.BaseStatement], leaves: Sequence[str] = ()
) -> frozenset[tuple[str, int]]:
    """Return the variables for which gradients were taken before, of what statements read next to these."""
    read = (ev.state.variables.get(n, UNKNOWN).origin.recorded for n in _list_read_first(ev, steps) - {*leaves})
    return frozenset().union(*read)


def _record_history(ev: Evaluator, steps: Sequence[cst.BaseStatement], history: frozenset[tuple[str, int]]) -> None:
    """Record what statements have computed from something recorded."""
    for name in ev.program.list_bound(cst.IndentedBlock(steps)) if history else ():
        if name in ev.state.variables:
            value = ev.state.variables[name]
            ev.state.variables[name] = value.with_origin(recorded=value.origin.recorded | history)


def _list_read_first(ev: Evaluator, steps: Sequence[cst.BaseStatement]) -> set[str]:
    """Return the variables that statements read before they give them a value."""
    bound: set[str] = set()
    found: set[str] = set()
    for step in steps:
        for s in step.body if isinstance(step, cst.SimpleStatementLine) else [step]:
            found |= find_names(s.value if isinstance(s, cst.Assign) else s) - bound
            bound |= ev.program.list_bound(s)
    return found


def _open_nested_with(ev: Evaluator, node: cst.With) -> tuple[set[str], cst.BaseSuite]:
    """Return what a `with`, and those that alone stand in it, enter; and the block of the innermost."""
    calls = [i.item.func if isinstance(i.item, cst.Call) else i.item for i in node.items]
    heads = {ev.find_name(c) or unparse(c) for c in calls}
    if len(node.body.body) == 1 and isinstance(inner := node.body.body[0], cst.With):
        further, block = _open_nested_with(ev, inner)
        return heads | further, block
    return heads, node.body


def _may_stand_behind(ev: Evaluator, node: cst.CSTNode, later: Sequence[cst.BaseStatement]) -> bool:
    """Return whether an `if` that only returns may as well stand after these statements."""
    if not isinstance(node, cst.If) or node.orelse or len(node.body.body) != 1:
        return False
    only = node.body.body[0]
    returns = isinstance(only, cst.SimpleStatementLine) and isinstance(only.body[0], cst.Return)
    return returns and not any(find_names(node) & ev.program.list_bound(s) for s in later)


def _port_in_block(ev: Evaluator, body: Sequence[cst.BaseStatement]) -> tuple[Statements, int] | None:
    """Translate the same in a loop inside `with torch.enable_grad()`, or in a function decorated with it."""
    parts: list[Any] = [part for s in body for part in _take_gradients_out(ev, s)]
    found = next((i for i, s in enumerate(parts) if _find_grad_call(ev, s)), None)
    if found is None:
        return None
    steps, grad, rest = parts[:found], parts[found], parts[found + 1 :]
    # What the function computes is gone after it: nobody may read it outside the block, or in the next iteration.
    inside = frozenset().union(*(ev.routine.list_names_in(s) for s in body))
    computed = {n for s in steps if "requires_grad" not in unparse(s) for n in ev.program.list_bound(s)}
    if any(id(n) not in inside for name in computed for n in ev.routine.reads.get(name, ())):
        return None
    if _list_read_first(ev, steps) & computed:
        return None
    call = _find_grad_call(ev, grad)
    assert call is not None
    made = _port_pullback(ev, body[0], steps, grad, call)
    return None if made is None else ([*made, *ev.port_block(rest)], len(body))


def _find_grad_call(ev: Evaluator, node: cst.CSTNode) -> cst.Call | None:
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return None
    small = node.body[0]
    value = small.value if isinstance(small, (cst.Assign, cst.Return)) else None
    if isinstance(value, cst.Subscript) and isinstance(value.value, cst.Call):
        value = value.value
    if isinstance(value, cst.Call) and ev.find_name(value.func) == "torch.autograd.grad":
        return value
    return None


def _list_outputs(call: cst.Call) -> set[str]:
    """Return the variables of what is differentiated."""
    given = [a.value for i, a in enumerate(call.args) if (a.keyword.value == "outputs" if a.keyword else i == 0)]
    return {name for value in given for name in find_names(value)}


def _take_gradients_out(ev: Evaluator, node: Any) -> list[Any]:
    """Translate `return torch.autograd.grad(y, x, g)[0], None`, with the gradients in a statement of their own."""
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1 or _find_grad_call(ev, node):
        return [node]
    found = [n for n in list_nodes(node) if isinstance(n, cst.Call) and ev.find_name(n.func) == "torch.autograd.grad"]
    if not isinstance(node.body[0], (cst.Assign, cst.AugAssign, cst.Return)) or len(found) != 1:
        return [node]
    name = "gradients" if "gradients" not in ev.routine.reads else "input_gradients"
    first = cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(name))], found[0])], node.leading_lines)
    rest = node.with_changes(leading_lines=[]).deep_replace(found[0], cst.Name(name))
    positions = ev.program.source.positions
    for made in (first, rest, rest.body[0]):  # type: ignore[union-attr] # a statement stays one
        positions[made] = positions[node]
    return [first, rest]


def _port_pullback(
    ev: Evaluator,
    head: cst.CSTNode,
    steps: list[cst.BaseStatement],
    grad: Any,
    call: cst.Call,
    between: Sequence[cst.BaseStatement] = (),
) -> Statements | None:
    arguments = {
        ("outputs", "inputs", "grad_outputs")[i] if a.keyword is None else a.keyword.value: a.value
        for i, a in enumerate(call.args[:3])
    } | {a.keyword.value: a.value for a in call.args if a.keyword}
    if {"create_graph", "is_grads_batched"} & {k for k, v in arguments.items() if unparse(v) != "False"}:
        return None
    outputs, inputs = arguments.get("outputs"), arguments.get("inputs")
    if outputs is None or inputs is None:
        return None
    read = frozenset().union(*(find_names(n) for n in (*steps, outputs)))
    if isinstance(inputs, cst.Name) and (inputs := read_container(ev, inputs, read, head, steps)) is None:
        return None
    made_here = isinstance(inputs, cst.Name) and inputs.value not in ev.state.variables
    if not made_here and isinstance(inputs, (cst.Name, cst.Attribute)) and ev.port(inputs).value.kind == "static":
        whole = _port_container_gradients(ev, steps, grad, inputs, outputs, arguments.get("grad_outputs"))
        if whole is not None or isinstance(inputs, cst.Attribute):
            return whole and [*whole[:-1], *ev.port_block(between), whole[-1]]
    elements = inputs.elements if isinstance(inputs, (cst.Tuple, cst.List)) else [cst.Element(inputs)]
    given_inputs = [e.value for e in elements]
    stars = [isinstance(e, cst.StarredElement) for e in elements]
    if any(stars[:-1]):
        return None  # `def recomputed(*args, x)` would want x by name
    wanted = [n.value for n in given_inputs if isinstance(n, cst.Name)]
    if len(wanted) != len(given_inputs):
        return None
    outs = [e.value for e in outputs.elements] if isinstance(outputs, (cst.Tuple, cst.List)) else [outputs]
    parted = None if is_read_by_other_name(ev, wanted, read, steps) else split_steps(ev, steps, wanted)
    if parted is None:
        return None
    # What makes the leaves stays outside of the function, which is differentiated as a whole; so does what gives
    # Python's values, since what jax.vjp hands back next to the outputs are arrays.
    opening, computing = parted
    inner = ev.program.list_bound(cst.IndentedBlock(computing)) | set(wanted)
    if not all(find_names(o) & inner for o in outs) or not any(
        set(wanted) & find_names(n) for n in (*computing, *outs)
    ):
        return None  # computed before, out of sight
    made = ev.port_block(opening)
    if any(w not in ev.state.variables for w in wanted):
        return None
    taken = frozenset((w, ev.state.find_version(w)) for w in wanted)
    history = _collect_history(ev, computing, wanted)
    if history & taken:
        return None  # part of how it was computed was differentiated before, and is out of sight
    held = ev.state.variables[wanted[0]] if len(wanted) == 1 else UNKNOWN
    container = held.kind == "static" and not stars[-1]
    shapes = list_shape_steps(ev, computing)
    made += ev.port_block(shapes)
    computing = [s for s in computing if s not in shapes]
    with ev.open_scope(), ev.enter_differentiated():
        for w, star in zip(wanted, stars, strict=True) if not container else ():
            one = replace(TENSOR, memref=ev.make_memref(head))
            ev.state.variables[w] = Value("static", element=one) if star else one
        block = ev.port_block(computing)
        exprs = [ev.port(o) for o in outs]
        inside = ev.state.variables
        for name in (unparse(o) for o in outs if isinstance(o, cst.Name)):
            if inside.get(name, UNKNOWN).kind == "unknown":  # of a function of the caller's, and differentiated
                inside[name] = replace(TENSOR, memref=ev.make_memref(head, f" {name}"))
    given = arguments.get("grad_outputs")
    computed = ev.program.list_bound(cst.IndentedBlock(computing)) - set(wanted)
    needed = {
        n for n in computed if is_read_later(ev, n, [*steps, grad]) or (given is not None and n in find_names(given))
    }
    if any(not inside.get(name, UNKNOWN).is_tensor for name in needed):
        return None
    for name in sorted(needed):
        value = inside.get(name, UNKNOWN)
        ev.bind_name(name, value.with_origin(recorded=history | taken), head)
    # What stands in between may read what was computed, which it has after jax.vjp only.
    followed = ev.port_block(between)
    ev.diagnostics.imports |= {"jax"} if given is not None else {"jax", "jnp"}
    texts = [unparse(bracket(t.node, 1)) for t in exprs]
    result = texts[0] if len(exprs) == 1 else f"({', '.join(texts)})"
    first = texts[0] if len(exprs) == 1 and texts[0] in needed else "_" if given is not None else "recomputed_output"
    cotangent = unparse(bracket(ev.port(given).node, 1)) if given is not None else f"jnp.ones_like({first})"
    several = isinstance(outputs, (cst.Tuple, cst.List)) and given is not None
    if several and not isinstance(given, (cst.Tuple, cst.List)) and ev.port(given).value.kind == "static":  # type: ignore[arg-type] # there is one
        result, cotangent = f"({', '.join(texts)},)", f"tuple({cotangent})"
    if len(exprs) == 1 and exprs[0].value.kind == "static":  # `res = f(x)` of several
        if given is None or isinstance(given, (cst.Tuple, cst.List)):
            return None
        result, cotangent, first = f"tuple({result})", f"tuple({cotangent})", "_"
    if isinstance(given, cst.List):
        cotangent = f"({cotangent.strip('[]')},)"
    if len(exprs) == 1 and isinstance(given, (cst.Tuple, cst.List)):
        cotangent = unparse(bracket(ev.port(given.elements[0].value).node, 1))
    others = sorted(needed - {first})
    aux = f", ({', '.join(others)}{',' * (len(others) == 1)})" if others else ""
    again, pullback = ev.make_unused_name("recomputed"), ev.make_unused_name("pullback")
    listed = ["*" * star + w for w, star in zip(wanted, stars, strict=True)]
    made += _make_step_function(ev, again, listed, [*block, parse_line(f"return {result}{aux}")])
    option = ", has_aux=True" if aux else ""
    made.append(parse_line(f"{first}, {pullback}{aux} = jax.vjp({again}, {', '.join(listed)}{option})"))
    made[-1] = made[-1].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    made += followed
    small = grad.body[0]
    assert isinstance(small, (cst.Assign, cst.Return))
    value: cst.BaseExpression = parse(_conjugate_pullback(ev, pullback, cotangent))
    tuple_value = Value("static", element=TENSOR) if stars[-1] else Value("static", parts=(TENSOR,) * len(wanted))
    subscripted = isinstance(small.value, cst.Subscript)
    if container:  # one argument, whose gradient is a container as well
        value = parse(f"{unparse(value)}[0]" if subscripted else f"tuple({unparse(value)}[0])")
        tuple_value = Value("static", parts=held.parts and (TENSOR,) * len(held.parts), element=TENSOR)
    if subscripted:
        assert isinstance(small.value, cst.Subscript)
        value = small.value.with_changes(value=value)
        tuple_value = TENSOR
    return [*made, *_write_taken(ev, grad, small, Expr(value, tuple_value))]


def _make_step_function(ev: Evaluator, name: str, parameters: list[str], block: Statements) -> Statements:
    """Return a function of a block, with a key of its own where the block splits its key."""
    before, keys = make_own_key(ev, block)
    return [*before, make_function(name, ", ".join([*parameters, *keys]), block)]


def _write_taken(ev: Evaluator, grad: Any, small: cst.Assign | cst.Return, expr: Expr) -> Statements:
    """Return the statement that takes the gradients: it returns them, or gives them names."""
    if isinstance(small, cst.Return):
        return ev.keep_comments(grad, make_return(ev, small, expr))
    for target in small.targets:
        bind_target(ev, target.target, expr.value, small)
    return [grad.with_changes(body=[small.with_changes(value=expr.node)])]


def _port_container_gradients(
    ev: Evaluator,
    steps: list[cst.BaseStatement],
    grad: Any,
    inputs: cst.BaseExpression,
    outputs: cst.BaseExpression,
    given: cst.BaseExpression | None,
) -> Statements | None:
    """Gradients for all arrays of one list or tuple, for all outputs."""
    if given is None or ev.port(given).value.kind != "static":
        return None
    statement = grad.body[0]
    if isinstance(statement.value, cst.Subscript):
        return None
    name = inputs.value if isinstance(inputs, cst.Name) else "inputs"
    element = ev.port(inputs).value.element or TENSOR
    cotangent = unparse(bracket(ev.port(given).node, 1))
    renamed = [s.visit(_ExpressionNamer(unparse(inputs), name)) for s in steps]
    with ev.open_scope(), ev.enter_differentiated():
        ev.bind_name(name, Value("static", element=replace(element, memref=ev.make_memref(inputs))), inputs)
        block = ev.port_block([s for s in renamed if isinstance(s, cst.BaseStatement)])
        expr = ev.port(outputs)
    result = unparse(bracket(expr.node, 1))
    if expr.value.is_tensor:
        result = f"({result},)"
    elif expr.value.kind == "static":
        result = f"tuple({result})"
    else:
        result = f"tuple({result}) if isinstance({result}, (list, tuple)) else ({result},)"
    ev.diagnostics.imports.add("jax")
    again, back = ev.make_unused_name("recomputed"), ev.make_unused_name("pullback")
    function = _make_step_function(ev, again, [name], [*block, parse_line(f"return {result}")])
    pullback = parse_line(f"_, {back} = jax.vjp({again}, {unparse(inputs)})")
    whole = _conjugate_pullback(ev, back, f"tuple({cotangent})")
    found = Expr(parse(f"tuple({whole}[0])"), Value("static", element=TENSOR))
    empty = [cst.EmptyLine(indent=False)]
    return [*function, pullback.with_changes(leading_lines=empty), *_write_taken(ev, grad, statement, found)]


class _ExpressionNamer(cst.CSTTransformer):
    """Gives an expression a name."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__()
        self.text, self.name = text, name

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        return cst.Name(self.name) if unparse(original_node) == self.text else updated_node


def _conjugate_pullback(ev: Evaluator, pullback: str, cotangent: str) -> str:
    """Return the call of a pullback; of complex numbers JAX's cotangents are the conjugates of PyTorch's gradients."""
    if not ev.program.complex:
        return f"{pullback}({cotangent})"
    ev.diagnostics.imports |= {"jax", "jnp"}
    return f"jax.tree.map(jnp.conj, {pullback}(jax.tree.map(jnp.conj, {cotangent})))"
