"""Buffers that forward writes to, as running statistics: apply returns their new arrays after its results.

What: the names of the buffers follow what forward returns, and backward takes their gradients, which it does not read.
Before: `running_mean.mul_(1 - m).add_(m * mean)` and `return y`; `def backward(ctx, g)`
After: `running_mean = ...` and `return y, running_mean`; `def backward(ctx, g, _running_mean)`
Safety: only where a buffer has no gradient and forward's variable is its new array at each return; a note says so.
Limits: classes with a setup_context, jvp or vmap, those that share methods, and a backward with *args are findings.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, ends_with_jump
from fnjax.port.analysis.expr import list_statements
from fnjax.port.analysis.program import Routine, list_nodes
from fnjax.port.torch import bracket, read_literal, unparse


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
    returned = any(f"arg:{name}" in v.storages for v in ev.returns)
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


def return_also(body: cst.BaseSuite, names: tuple[str, ...], several: bool | None) -> cst.BaseSuite:
    """Return a block that returns variables after its results.

    Args:
        body: the block.
        names: the variables.
        several: whether the results are several; None to keep them one value, whatever it is.
    """
    block = body if isinstance(body, cst.IndentedBlock) else cst.IndentedBlock(list_statements(body))
    made = block.visit(_ReturnAppender(names, several))
    assert isinstance(made, cst.IndentedBlock)
    if ends_with_jump(made):
        return made
    last = _ReturnAppender(names, several).leave_Return(cst.Return(), cst.Return())
    return made.with_changes(body=[*made.body, cst.SimpleStatementLine([last])])


def take_gradients(made: cst.FunctionDef, buffers: tuple[str, ...]) -> cst.FunctionDef:
    """Return a backward with parameters for the gradients of buffers."""
    params = [p.with_changes(comma=cst.MaybeSentinel.DEFAULT) for p in made.params.params]
    further = [cst.Param(cst.Name(f"_{n}")) for n in buffers]
    return made.with_changes(params=made.params.with_changes(params=[*params, *further]))


class _ReturnAppender(cst.CSTTransformer):
    """`return y` with variables after what is returned."""

    def __init__(self, names: tuple[str, ...], several: bool | None) -> None:
        super().__init__()
        self.names, self.several = [cst.Element(cst.Name(n)) for n in names], several

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        """Skip functions inside, which return what they did."""
        return False

    def leave_Return(self, original_node: cst.Return, updated_node: cst.Return) -> cst.Return:
        """Add the variables to a return."""
        value = updated_node.value or cst.Name("None")
        if self.several is None:
            own: list[cst.BaseElement] = [cst.Element(bracket(value, 1))]
        elif isinstance(value, cst.Tuple):
            own = [e.with_changes(comma=cst.MaybeSentinel.DEFAULT) for e in value.elements]
        else:
            element = cst.StarredElement(value) if self.several else cst.Element(bracket(value, 1))
            own = [] if read_literal(value) is None else [element]
        row = [*own, *self.names]
        return cst.Return(row[0].value if len(row) == 1 else cst.Tuple(row, lpar=(), rpar=()))
