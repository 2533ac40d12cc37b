"""Returns.

What: `return` stays; backward of a Function that draws random numbers returns one more None, for the key, and what it
returns under no_grad is constant to further derivatives.
Before: `return grad_output * mask`
After: `return grad_output * mask, None`
Safety: a tuple literal takes the None as its last element; any other result is opened into one.
Limits: selected elements, for which all elements were computed, are selected again where they are returned.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements, ends_with_jump, list_statements
from fnjax.port.analysis.registry import statement
from fnjax.port.known.facts import TENSOR, Value, list_memrefs
from fnjax.port.torch import bracket, fill, read_literal, unparse


@statement(cst.Return, general=True)
def port_return(ev: Evaluator, node: cst.Return) -> Statements | None:
    """Translate `return y`."""
    if node.value is None:
        ev.returns.append(Value("static", literal=None))
        return [cst.SimpleStatementLine([node])]
    expr = ev.port(node.value)
    if ev.routine.role == "forward" and ev.routine.owner is not None and _holds_objects(ev, node.value):
        ev.routine.owner.containers = True
    return make_return(ev, node, expr)


def _holds_objects(ev: Evaluator, node: cst.BaseExpression) -> bool:
    """Return whether outputs hold arrays in tuples or objects of the file's classes, none an input that has a gradient.

    To PyTorch such arrays are no outputs: they have no gradient. With `pytree = True` they have one, which backward
    gets in the place of its object, as None in PyTorch, and so does not read.
    """
    if isinstance(node, cst.Tuple):
        outputs = [e.value for e in node.elements]
    elif isinstance(node, cst.Call) and _makes_own_object(ev, node):
        outputs = [a.value for a in node.args]
    else:
        return False
    names = [p.name.value for p in ev.routine.parameters[ev.routine.first :]]
    inputs = {f"arg:{names[i]}" for i in ev.program.find_differentiated_inputs(ev.routine) if i < len(names)}
    objects = [n for n in outputs if isinstance(n, cst.Tuple) or (isinstance(n, cst.Call) and _makes_own_object(ev, n))]
    held = [p for n in objects for p in list_memrefs(ev.port(n).value)]
    return bool(held) and not any(inputs & p.storage and not p.steps for p in held)


def _makes_own_object(ev: Evaluator, node: cst.Call) -> bool:
    name = ev.find_name(node.func)
    return name.startswith("file:") and name.removeprefix("file:") in ev.program.classes


def make_return(ev: Evaluator, node: cst.Return, expr: Expr) -> Statements:
    """Return the statement that returns a typed expression where the source returns."""
    ev.need_entries(expr.value)
    ev.returns.append(expr.value)
    made = expr.node
    if ev.here.stop_gradients and expr.value.kind != "object":
        ev.diagnostics.imports.add("jax")
        made = _stop_gradients(ev, made, expr.value)
    if ev.routine.role in {"backward", "vjp"} and ev.program.draws_random_numbers(ev.routine):
        made = _add_none(made, expr.value, _count_inputs(ev))
    if made is node.value:
        return [cst.SimpleStatementLine([node])]
    space = cst.SimpleWhitespace(" ")
    return [cst.SimpleStatementLine([node.with_changes(value=bracket(made, 0), whitespace_after_return=space)])]


def _count_inputs(ev: Evaluator) -> int:
    """Return how many inputs forward has, without the key."""
    owner = ev.routine.owner
    forward = ev.program.find_method(owner, "forward") if owner else None
    return len(forward.parameters[forward.first :]) if forward else 0


def _add_none(node: cst.BaseExpression, value: Value, inputs: int) -> cst.BaseExpression:
    """Return what backward returns with one more None, for the key, and one for each input that it leaves out."""
    known = len(value.parts) if value.parts is not None else inputs
    nothing = [cst.Element(cst.Name("None"))] * (max(inputs - known, 0) + 1)
    if isinstance(node, cst.Tuple):
        elements = [e.with_changes(comma=cst.MaybeSentinel.DEFAULT) for e in node.elements]
        return node.with_changes(elements=[*elements, *nothing])
    if value.parts is not None or value.element is not None or value.kind == "static":
        return cst.Tuple([cst.StarredElement(bracket(node, 7)), *nothing])
    return cst.Tuple([cst.Element(bracket(node, 1)), *nothing * max(inputs, 1)], lpar=(), rpar=())


def _stop_gradients(ev: Evaluator, node: cst.BaseExpression, value: Value) -> cst.BaseExpression:
    """Return what is computed without gradients; an argument that is handed back keeps its history."""
    if isinstance(node, cst.Tuple):
        known = value.parts if value.parts and len(value.parts) == len(node.elements) else [TENSOR] * len(node.elements)
        stopped = [_stop_gradients(ev, e.value, part) for e, part in zip(node.elements, known, strict=True)]
        return node.with_changes(
            elements=[e.with_changes(value=s) for e, s in zip(node.elements, stopped, strict=True)]
        )
    given = isinstance(node, cst.Name) and any(node.value == p.name.value for p in ev.routine.parameters)
    if value.literal is None or (given and unparse(node) not in ev.program.list_rebound(ev.routine.node.body)):
        return node
    return fill("jax.lax.stop_gradient(A)", A=node)


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
