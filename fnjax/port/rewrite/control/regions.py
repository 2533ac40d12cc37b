"""The functions and calls of JAX's control flow, built from the statements of a region and the variables it writes."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from fnjax.port.analysis.evaluator import Expr, Statements, parse
from fnjax.port.known.facts import Value
from fnjax.port.torch import bracket, fill
from fnjax.port.tree.located import find_small_statement

_BLANK = (cst.EmptyLine(indent=False),)
_NUMBERS = frozenset({"int", "float", "bool"})


def make_call(function: str, *args: cst.BaseExpression) -> cst.Call:
    """Return a call with positional arguments."""
    return cst.Call(parse(function), [cst.Arg(bracket(a, 1)) for a in args])


def make_names(names: Sequence[str]) -> cst.BaseExpression:
    """Return `a`, or `a, b` without parentheses."""
    return make_row([cst.Name(n) for n in names])


def make_row(values: Sequence[cst.BaseExpression]) -> cst.BaseExpression:
    """Return one value as it is, and several as a tuple without parentheses."""
    if len(values) == 1:
        return values[0]
    return cst.Tuple([cst.Element(bracket(v, 1)) for v in values], lpar=(), rpar=())


def make_line(target: cst.BaseExpression, value: cst.BaseExpression) -> cst.SimpleStatementLine:
    """Return `target = value`."""
    return cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(target)], value)])  # type: ignore[arg-type] # names


def make_return(value: cst.BaseExpression) -> cst.SimpleStatementLine:
    """Return `return value`."""
    return cst.SimpleStatementLine([cst.Return(value)])


def make_function(name: str, parameters: Sequence[str], block: Statements) -> cst.FunctionDef:
    """Return a function inside a function."""
    if isinstance(block[0], cst.FunctionDef):
        block = [block[0].with_changes(leading_lines=()), *block[1:]]
    if all(p.isidentifier() for p in parameters):
        params = cst.Parameters([cst.Param(cst.Name(p)) for p in parameters])
    else:  # `*xs`, `key=subkey`
        params = cst.ensure_type(parse(f"lambda {', '.join(parameters)}: 0"), cst.Lambda).params
    return cst.FunctionDef(cst.Name(name), params, cst.IndentedBlock(block), leading_lines=_BLANK)


def set_apart(line: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
    """Return a line with a blank one before it, as it follows a function."""
    return line.with_changes(leading_lines=_BLANK)


def make_predicate(test: Expr) -> cst.BaseExpression:
    """Return a condition as JAX's control flow takes it: an array of one element has no axes there."""
    return test.node if test.value.rank == 0 or not test.value.is_tensor else fill("A.reshape(())", A=test.node)


def can_be_carried(value: Value) -> bool:
    """Return whether a variable can be an output of a region: an array or a number."""
    if value.kind == "static":
        return value.dtype in _NUMBERS and value.parts is None and value.element is None
    return value.is_tensor or (value.kind == "unknown" and value.memref is not None)


def find_last_return(block: Sequence[cst.CSTNode]) -> cst.BaseExpression | None:
    """Return what a block returns at its end."""
    small = find_small_statement(block[-1] if block else None)
    return small.value if isinstance(small, cst.Return) else None
