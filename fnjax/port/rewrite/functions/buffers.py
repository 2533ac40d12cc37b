"""Buffers that forward writes to, as running statistics: apply returns their new arrays after its results.

What: the names of the buffers follow what forward returns, and backward takes their gradients, which it does not read.
Before: `running_mean.mul_(1 - m).add_(m * mean)` and `return y`; `def backward(ctx, g)`
After: `running_mean = ...` and `return y, running_mean`; `def backward(ctx, g, _running_mean)`
Safety: only where a buffer has no gradient and forward's variable is its new array at each return; a note says so.
Limits: classes with a setup_context, jvp or vmap, those that share methods, and a backward with *args are findings.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, parse_line
from fnjax.port.analysis.expr import list_statements
from fnjax.port.analysis.program import Routine, list_nodes
from fnjax.port.known.facts import list_memrefs
from fnjax.port.torch import bracket, unparse


def find_buffers(ev: Evaluator, routine: Routine) -> tuple[str, ...]:
    """Return the inputs without gradient that forward writes to and does not return: it may return these too."""
    owner = routine.owner
    found = tuple(p.name.value for p in routine.parameters if p.name.value in routine.writes)
    found = tuple(n for n in found if _is_buffer(ev, routine, n))
    if not found or owner is None or {"setup_context", "jvp", "vmap"} & set(owner.methods):
        return ()
    alone = len(ev.program.list_related(owner)) == 1 and routine.node not in ev.program.mutating
    backward = owner.methods.get("backward")
    if not alone or backward is None or not _can_take_more(backward, found):
        return ()
    ends = [n for n in list_nodes(routine.node.body) if isinstance(n, cst.Return)]
    rebound = ev.program.list_rebound(routine.node.body) & set(found)
    several = all(v.parts is not None for v in ev.returns)
    plain = several or all(v.is_tensor for v in ev.returns)
    last = list_statements(routine.node.body)[-1]
    after = isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], (cst.Return, cst.Raise))
    inner = any(isinstance(n, cst.FunctionDef) for n in list_nodes(routine.node.body))
    return found if ends and ev.returns and plain and after and not rebound and not inner else ()


def _is_buffer(ev: Evaluator, routine: Routine, name: str) -> bool:
    param = next(p for p in routine.parameters if p.name.value == name)
    index = routine.parameters.index(param) - routine.first
    returned = any(f"arg:{name}" in p.storage for v in ev.returns for p in list_memrefs(v))
    value = ev.state.variables.get(name)
    memref = value.memref if value else None
    still = memref is not None and memref.certain and not memref.steps and memref.storage == {f"arg:{name}"}
    backward = routine.owner.methods.get("backward") if routine.owner else None
    return backward is not None and index >= 0 and _has_no_gradient(backward, index) and not returned and still


def _has_no_gradient(backward: cst.FunctionDef, index: int) -> bool:
    """Return whether all that backward returns is a tuple with None at this place."""
    returned = [n.value for n in list_nodes(backward.body, but=(cst.FunctionDef,)) if isinstance(n, cst.Return)]
    listed = [[unparse(e) for e in v.elements] if isinstance(v, cst.Tuple) else [] for v in returned]
    return all(index < len(v) and v[index].rstrip(", ") == "None" and not any(e[0] == "*" for e in v) for v in listed)


def _can_take_more(backward: cst.FunctionDef, buffers: tuple[str, ...]) -> bool:
    params = backward.params
    taken = {n.value for n in list_nodes(backward) if isinstance(n, cst.Name)}
    plain = not isinstance(params.star_arg, cst.Param) and not any(p.default for p in params.params)
    return plain and not taken & {f"_{n}" for n in buffers}


def return_also(ev: Evaluator, made: cst.FunctionDef, names: tuple[str, ...]) -> cst.FunctionDef:
    """Return a function that returns these variables after its results."""
    several = any(v.parts is not None for v in ev.returns)
    changed = made.visit(ReturnAppender(names, several))
    assert isinstance(changed, cst.FunctionDef)
    return changed


def take_gradients(made: cst.FunctionDef, buffers: tuple[str, ...]) -> cst.FunctionDef:
    """Return a backward that takes their gradients."""
    params = [p.with_changes(comma=cst.MaybeSentinel.DEFAULT) for p in made.params.params]
    further = [cst.Param(cst.Name(f"_{n}")) for n in buffers]
    return made.with_changes(params=made.params.with_changes(params=[*params, *further]))


class ReturnAppender(cst.CSTTransformer):
    """`return y` with variables after what is returned."""

    def __init__(self, names: tuple[str, ...], several: bool | None) -> None:
        """Make one for a function; with None for a block, whose result stays one value, whatever it is, before them."""
        super().__init__()
        self.names, self.several, self.depth = names, several, int(several is None)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        """Skip functions inside, which return what they did."""
        self.depth += 1
        return self.depth == 1

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        """Leave a function."""
        self.depth -= 1
        return updated_node

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        """Skip a lambda, which has no return."""
        return False

    def leave_Return(self, original_node: cst.Return, updated_node: cst.Return) -> cst.Return:
        """Return one return."""
        value = updated_node.value
        if self.several is None:
            both = parse_line(f"return {unparse(bracket(value, 1)) if value else None}, {', '.join(self.names)}")
            return cst.ensure_type(both.body[0], cst.Return)
        own = (
            []
            if value is None or unparse(value) == "None"
            else [f"*{unparse(value)}" if self.several else unparse(value)]
        )
        if isinstance(value, cst.Tuple):
            own = [unparse(e) if isinstance(e, cst.StarredElement) else unparse(e.value) for e in value.elements]
        return cst.ensure_type(parse_line(f"return {', '.join([*own, *self.names])}").body[0], cst.Return)
