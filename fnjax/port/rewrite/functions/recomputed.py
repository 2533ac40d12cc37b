"""Gradients that backward takes itself of a forward that it computes again.

What: what a block under `torch.enable_grad()` computes, up to a call of torch.autograd.grad, becomes a function of all
variables of which gradients are taken, and its jax.vjp; each call of torch.autograd.grad calls the pullback.
Before: `with torch.enable_grad(): x = x.detach().requires_grad_(); y = f(x)` and `torch.autograd.grad(y, x, g)`
After: `def recomputed(x): return f(x)`, `_, pullback = jax.vjp(recomputed, x)` and `pullback(g)`
Safety: the variables that a call reads are those that the function has computed, and no path from them to what is
differentiated is left out: what one graph has computed under gradients of x is not read by another that asks for x.
Limits: create_graph, graphs kept on ctx, and writes to outer variables are findings. Where PyTorch has no second
derivative, as there is no create_graph, the port has the part that goes through the gradients that backward is given:
what the source detaches is constant.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

import libcst as cst

from fnjax.port.analysis.effects import find_flow
from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements, Stop, find_names, parse, parse_line
from fnjax.port.analysis.registry import block, call_of
from fnjax.port.known.facts import TENSOR, UNKNOWN, Value, list_memrefs
from fnjax.port.rewrite.calls.randomness import make_own_key
from fnjax.port.rewrite.control.regions import make_function, make_return, make_row
from fnjax.port.rewrite.functions.recomputed_steps import (
    find_inputs,
    is_read_by_other_name,
    list_static_steps,
    split_steps,
)
from fnjax.port.torch import fill, make_list, make_tuple, read_literal, unparse
from fnjax.port.tree.located import list_nodes

_GRAD = "torch.autograd.grad"
_NAMES = ("outputs", "inputs", "grad_outputs")


@dataclass(slots=True)
class _Gradients:
    """A call of torch.autograd.grad.

    Attributes:
        node: the call.
        outputs: what is differentiated.
        several: whether the outputs are written as a tuple or list.
        inputs: the variables of which gradients are taken; `*params` for the tensors of a list.
        given: the gradients of the outputs; None for ones.
    """

    node: cst.Call
    outputs: list[cst.BaseExpression]
    several: bool
    inputs: list[str]
    given: cst.BaseExpression | None


@dataclass(slots=True)
class _Graph:
    """A computation that is differentiated.

    Attributes:
        pullback: the variable of its pullback.
        begins: the position of its first statement.
        leaves: the variables of which some call takes gradients.
        held: what is known of the only leaf, if that is a tuple or list.
        outputs: the expressions that some call differentiates, with the names of their values in the port.
        containers: those of them that are tuples or lists.
    """

    pullback: str
    begins: tuple[int, int]
    leaves: list[str]
    held: Value | None
    outputs: dict[str, str] = field(default_factory=dict)
    containers: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The name of the pullback's value."""
        return f"instance:pullback {self.begins}"


@block(cst.BaseStatement)
def port_recomputation(ev: Evaluator, body: Sequence[cst.BaseStatement], index: int) -> tuple[Statements, int] | None:
    """Translate what a block under `torch.enable_grad()` computes before a call of torch.autograd.grad."""
    if not ev.here.grad_enabled:
        return None
    first = body[index]
    steps = [*takewhile(lambda s: not _ends_computation(ev, s), body[index:])]
    if steps and (index == 0 or _ends_computation(ev, body[index - 1])):
        with ev.speculate() as found:
            found.made = _port_graph(ev, steps)
        if found.made is not None:
            return ev.commit(found), len(steps)
    return (_port_recorded(ev, first), 1) if isinstance(first, cst.SimpleStatementLine) else None


def _port_recorded(ev: Evaluator, node: cst.BaseStatement) -> Statements:
    """Translate a statement under `torch.enable_grad()`, and note of what it computes from which variables that is."""
    read = [ev.state.variables[n] for n in find_names(node) if n in ev.state.variables]
    bound = ev.program.list_bound(node)
    others = {r for r in ev.list_reads(node) if r[0] not in bound}  # type: ignore[arg-type] # of its names
    recorded = frozenset(others).union(*(v.origin.recorded for v in read))
    made = ev.port_statement(node)
    for name in bound if not _ends_computation(ev, node) else ():
        value = ev.state.variables.get(name, UNKNOWN)
        if value.kind != "static" or list_memrefs(value):
            ev.state.variables[name] = value.with_origin(recorded=recorded)
    return made


def _ends_computation(ev: Evaluator, node: cst.BaseStatement) -> bool:
    """Return whether a statement takes gradients, or leaves the block."""
    jumps = (cst.Return,) if isinstance(node, (cst.For, cst.While)) else (cst.Return, cst.Break, cst.Continue)
    leaves = list_nodes(node, *jumps, but=(cst.FunctionDef,))
    return bool(leaves) or any(ev.find_name(c.func) == _GRAD for c in list_nodes(node, cst.Call))


def _list_calls(ev: Evaluator, steps: Sequence[cst.BaseStatement]) -> list[_Gradients] | None:
    """Return the calls that differentiate what some statements compute; None where one cannot be followed."""
    found = []
    bound, start = ev.program.list_bound(cst.IndentedBlock(steps)), ev.program.source.locate(steps[0])
    for node in list_nodes(ev.routine.node, cst.Call):
        if ev.find_name(node.func) != _GRAD or ev.program.source.locate(node) < start:
            continue
        given = {a.keyword.value if a.keyword else _NAMES[i]: a.value for i, a in enumerate(node.args) if i < 3}
        given |= {a.keyword.value: a.value for a in node.args if a.keyword}
        outputs, inputs = given.get("outputs"), given.get("inputs")
        if outputs is None or not find_names(outputs) & bound:
            continue
        if inputs is None or any(unparse(given.get(k, cst.Name("False"))) != "False" for k in _SECOND_ORDER):
            return None
        several = isinstance(outputs, (cst.Tuple, cst.List))
        listed = [e.value for e in outputs.elements] if several else [outputs]  # type: ignore[attr-defined] # several
        read = frozenset().union(*(find_names(n) for n in (*steps, outputs)))
        names = find_inputs(ev, inputs, read, steps)
        if names is None:
            return None
        found.append(_Gradients(node, listed, several, names, given.get("grad_outputs")))
    return found


_SECOND_ORDER = ("create_graph", "is_grads_batched")


def _port_graph(ev: Evaluator, steps: list[cst.BaseStatement]) -> Statements | None:
    """Return the function that statements become and its jax.vjp, if calls follow that differentiate what they compute.

    Statements that make the leaves stay outside of the function, and so do those that make Python values, since what
    jax.vjp returns next to the outputs are arrays.
    """
    calls = _list_calls(ev, steps)
    if not calls:
        return None
    leaves = [*dict.fromkeys(name for c in calls for name in c.inputs)]
    names = [leaf.lstrip("*") for leaf in leaves]
    stars = [leaf != name for leaf, name in zip(leaves, names, strict=True)]
    if any(stars) and (any(stars[:-1]) or any(c.inputs != leaves for c in calls)):
        return None  # `def recomputed(*args, x)` would want x by name
    outputs = {unparse(o): o for c in calls for o in c.outputs}
    read = frozenset().union(*(find_names(n) for n in (*steps, *outputs.values())))
    parted = None if is_read_by_other_name(ev, names, read, steps) else split_steps(ev, steps, names)
    if parted is None:
        return None
    opening, computing = parted
    made = [line for s in opening for line in _port_recorded(ev, s)]
    static = list_static_steps(ev, computing)
    made += [line for s in static for line in _port_recorded(ev, s)]
    computing = [s for s in computing if s not in static]
    computed = ev.program.list_rebound(cst.IndentedBlock(computing), cst.AugAssign) - {*names}
    closed_over = find_flow(cst.IndentedBlock(computing))[0] - {*names}
    known = [ev.state.variables[n] for n in names if n in ev.state.variables]
    reached = {*names} & {n for s in (*computing, *outputs.values()) for n in find_names(s)}
    if len(known) < len(names) or not reached or closed_over & computed:
        return None
    if not all(find_names(o) & {*computed, *names} for o in outputs.values()):
        return None  # computed before, out of sight
    taken = frozenset((n, ev.state.find_version(n)) for n in names)
    around = [ev.state.variables[n] for n in closed_over if n in ev.state.variables]
    history = frozenset[tuple[str, int]]().union(*(v.origin.recorded for v in (*known, *around)))
    if history & taken:
        return None  # part of how it was computed is in another graph
    container = len(names) == 1 and known[0].kind == "static" and not stars[0]
    here = ev.program.source.locate(steps[0])
    graph = _Graph(_name_pullback(ev, here), here, leaves, known[0] if container else None)
    before = ev.state.variables.keys()
    with ev.open_scope(), ev.enter(differentiated=True, perhaps=False, grad_enabled=False):
        for name, star in zip(names, stars, strict=True) if not container else ():
            one = replace(TENSOR, memref=ev.make_memref(steps[0]))
            ev.state.variables[name] = Value("static", element=one) if star else one
        block = ev.port_block(computing)
        exprs = [ev.port(o) for o in outputs.values()]
        inside = ev.state.variables
    if _writes_outside(ev, block, computed | {*names}, before):
        return None
    needed = {n for n in computed if _is_read_elsewhere(ev, n, steps, calls)}
    if any(not inside.get(name, UNKNOWN).is_tensor for name in needed):
        return None
    for name in sorted(computed & {*needed, *(n for o in outputs.values() for n in find_names(o))}):
        value = inside.get(name, UNKNOWN)
        value = TENSOR if value.kind == "unknown" else value  # of a function of the caller's, and differentiated
        ev.bind_name(name, value.with_origin(recorded=history | taken), steps[0])
    for i, (text, expr) in enumerate(zip(outputs, exprs, strict=True)):
        shaped = any(c.given is None or text not in map(unparse, c.outputs) for c in calls)  # zeros or ones like it
        own = text if text in computed else ev.make_unused_name(f"recomputed_output{i or ''}")
        graph.outputs[text] = own if shaped or text in needed else "_"
        graph.containers |= {text} if expr.value.kind == "static" else set()
    if graph.containers and any(len(calls) > 1 or c.given is None for c in calls):
        return None  # the pullback would want zeros, or ones, of their structure
    earlier = [ev.substitutes[key][0] for c in calls if (key := ("gradients", c.node)) in ev.substitutes]
    if any(g.begins < here and ev.look_up(g.pullback).name != g.name for g in earlier):
        return None  # in another branch
    ev.bind_name(graph.pullback, Value("static", name=graph.name), steps[0])
    for call in calls:
        ev.substitutes["gradients", call.node] = graph, call, _list_versions(ev, call)
    return [*made, *_write_graph(ev, graph, block, exprs, needed)]


def _name_pullback(ev: Evaluator, here: tuple[int, int]) -> str:
    """Return a variable for the pullback of a graph, other than those of earlier graphs that are still called."""
    known = [v[:2] for k, v in ev.substitutes.items() if isinstance(k, tuple) and k[0] == "gradients"]
    earlier = [(g.pullback, ev.program.source.locate(c.node)) for g, c in known if g.begins < here]
    called = {name for name, at in earlier if at > here or ev.here.loops}
    return next(n for n in ("pullback", *(f"pullback_{i}" for i in range(2, 99))) if n not in called | ev.taken)


def _writes_outside(ev: Evaluator, block: Statements, own: set[str], around: Collection[str]) -> bool:
    """Return whether a function of a block would write to variables around it, to attributes or to lists."""
    body = cst.IndentedBlock(block)
    attributes = any(isinstance(t.target, cst.Attribute) for t in list_nodes(body, cst.AssignTarget))
    calls = [s.value.func for s in list_nodes(body, cst.Expr) if isinstance(s.value, cst.Call)]
    lists = (f.value for f in calls if isinstance(f, cst.Attribute) and f.attr.value in {"append", "extend", "insert"})
    written = ev.program.list_rebound(body, cst.AugAssign) & {*around} - own - {ev.program.key_name}
    return bool(written) or attributes or any(not find_names(n) <= own for n in lists)


def _is_read_elsewhere(ev: Evaluator, name: str, steps: list[cst.BaseStatement], calls: list[_Gradients]) -> bool:
    """Return whether a variable that some statements compute is read outside of them, and not to differentiate it."""
    inside = frozenset().union(*(ev.routine.list_names_in(n) for n in (*steps, *(o for c in calls for o in c.outputs))))
    position = ev.program.source.locate
    reads = [n for n in ev.routine.reads.get(name, ()) if id(n) not in inside]
    return any(ev.here.loops or position(n) > position(steps[0]) for n in reads)


def _list_versions(ev: Evaluator, call: _Gradients) -> frozenset[tuple[str, int]]:
    """Return the variables that a call differentiates, or takes gradients of, with their versions."""
    names = {n for o in call.outputs for n in find_names(o)} | {i.lstrip("*") for i in call.inputs}
    return frozenset((n, ev.state.find_version(n)) for n in names if n in ev.state.variables)


def _write_graph(ev: Evaluator, graph: _Graph, block: Statements, exprs: list[Expr], needed: set[str]) -> Statements:
    """Return the function of a block with outputs, and its jax.vjp."""
    ev.diagnostics.imports.add("jax")
    results = [fill("tuple(A)", A=e.node) if e.value.kind == "static" else e.node for e in exprs]
    targets = [*graph.outputs.values()]
    target = "_" if {*targets} == {"_"} else ", ".join(targets)
    several = len(results) > 1
    others = sorted(needed - {*targets})
    aux = f", ({', '.join(others)}{',' * (len(others) == 1)})" if others else ""
    returned = [make_tuple(make_list(results)) if several else results[0], *([parse(aux[2:])] if others else [])]
    name = ev.make_unused_name("recomputed")
    keyed, keys = make_own_key(ev, block)
    parameters = ", ".join(graph.leaves)
    function = make_function(name, [*graph.leaves, *keys], [*block, make_return(make_row(returned))])
    bound = f"({target})" if several and target != "_" else target
    option = ", has_aux=True" if aux else ""
    line = parse_line(f"{bound}, {graph.pullback}{aux} = jax.vjp({name}, {parameters}{option})")
    return [*keyed, function, line.with_changes(leading_lines=[cst.EmptyLine(indent=False)])]


@call_of(_GRAD)
def port_gradients(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `torch.autograd.grad(y, (x, w), g)`: it calls the pullback of what has computed y."""
    graph, call, pulled = _call_pullback(ev, node)
    if graph.held is not None:  # one argument, whose gradient is a container as well
        parts = graph.held.parts and (TENSOR,) * len(graph.held.parts)
        return Expr(fill("tuple(P[0])", P=pulled), Value("static", parts=parts, element=TENSOR))
    if call.inputs == graph.leaves:
        starred = graph.leaves[-1].startswith("*")
        value = Value("static", element=TENSOR) if starred else Value("static", parts=(TENSOR,) * len(call.inputs))
        return Expr(pulled, value)
    at = [graph.leaves.index(i) for i in call.inputs]
    row = at == [*range(at[0], at[-1] + 1)]
    template = f"P[{at[0] or ''}:{at[-1] + 1}]" if row else f"tuple(map(P.__getitem__, {tuple(at)}))"
    return Expr(fill(template, P=pulled), Value("static", parts=(TENSOR,) * len(at)))


def _call_pullback(ev: Evaluator, node: cst.CSTNode) -> tuple[_Graph, _Gradients, cst.BaseExpression]:
    """Return the graph of a call of torch.autograd.grad, and the call of its pullback.

    Of complex numbers JAX's cotangents are the conjugates of PyTorch's gradients.
    """
    graph, call, versions = ev.substitutes.get(("gradients", node), (None, None, None))
    cotangent = _make_cotangent(ev, graph, call) if call and versions == _list_versions(ev, call) else None
    if cotangent is None:
        message = f"{_GRAD} of what the porter could not follow: write the computation as a function and use jax.vjp"
        raise Stop(node, "autograd", message)
    template = "P(C)"
    if ev.program.complex:
        ev.diagnostics.imports |= {"jax", "jnp"}
        template = "jax.tree.map(jnp.conj, P(jax.tree.map(jnp.conj, C)))"
    return graph, call, fill(template, P=cst.Name(graph.pullback), C=cotangent)


def _make_cotangent(ev: Evaluator, graph: _Graph, call: _Gradients) -> cst.BaseExpression | None:
    """Return what a pullback is given: zeros for outputs of other calls, ones where PyTorch takes ones."""
    own = [unparse(o) for o in call.outputs]
    given: Sequence[cst.BaseExpression | None] = [None] * len(own)
    if isinstance(call.given, (cst.Tuple, cst.List)):
        listed = [ev.port(e.value).node for e in call.given.elements]
        given = [make_tuple(make_list(listed))] if graph.containers else listed
    elif call.given is not None:
        expr = ev.port(call.given)
        several = expr.value.kind == "static" and call.several
        templates = ["tuple(A)"] if graph.containers else [f"A[{i}]" for i in range(len(own))] if several else ["A"]
        given = [fill(text, A=expr.node) for text in templates]
    if len(given) != len(own):
        return None
    known = dict(zip(own, given, strict=True))
    missing = [o for o in graph.outputs if read_literal(known.get(o) or _NONE) is None]
    kinds = {o: "ones" if o in known else "zeros" for o in missing}
    if any(kind == "ones" and graph.outputs[o] == "_" for o, kind in kinds.items()):
        return None
    ev.diagnostics.imports |= {"jnp"} if kinds else set()
    likes = {o: fill(f"jnp.{kind}_like(A)", A=cst.Name(graph.outputs[o])) for o, kind in kinds.items()}
    made = [likes.get(o) or known[o] or _NONE for o in graph.outputs]
    return make_tuple(make_list(made)) if len(made) > 1 else made[0]


_NONE = cst.Name("None")
