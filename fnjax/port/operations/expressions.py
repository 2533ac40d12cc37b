"""Putting expressions into expressions: precedence, parentheses, and the names of a template."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache

import libcst as cst

MISSING = object()  # what `literal` answers for an expression that is none

_BINARY: dict[type[cst.BaseBinaryOp], int] = {
    cst.BitOr: 7,
    cst.BitXor: 8,
    cst.BitAnd: 9,
    cst.LeftShift: 10,
    cst.RightShift: 10,
    cst.Add: 11,
    cst.Subtract: 11,
    cst.Multiply: 12,
    cst.Divide: 12,
    cst.FloorDivide: 12,
    cst.Modulo: 12,
    cst.MatrixMultiply: 12,
    cst.Power: 14,
}
ATOM = 16  # what needs no parentheses anywhere


def level(node: cst.BaseExpression) -> int:
    """How tightly the outermost operation of an expression binds; ATOM for what never needs parentheses."""
    if getattr(node, "lpar", ()):
        return ATOM
    if isinstance(node, cst.BinaryOperation):
        return _BINARY[type(node.operator)]
    if isinstance(node, cst.UnaryOperation):
        return 5 if isinstance(node.operator, cst.Not) else 13
    if isinstance(node, cst.Comparison):
        return 6
    if isinstance(node, cst.BooleanOperation):
        return 4 if isinstance(node.operator, cst.And) else 3
    if isinstance(node, cst.IfExp):
        return 2
    if isinstance(node, cst.Await):
        return 15
    if isinstance(node, (cst.Lambda, cst.Tuple, cst.Yield, cst.NamedExpr, cst.GeneratorExp, cst.ConcatenatedString)):
        return 0 if not isinstance(node, cst.Lambda) else 1
    return ATOM


def fit(node: cst.BaseExpression, least: int = ATOM) -> cst.BaseExpression:
    """The expression, in parentheses where it binds less tightly than its place demands."""
    if level(node) >= least:
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def bare(node: cst.BaseExpression) -> cst.BaseExpression:
    """The expression without the parentheses that an argument does not need."""
    if isinstance(node, (cst.Tuple, cst.GeneratorExp, cst.Yield)) or len(node.lpar) != 1:
        return node
    if not (node.lpar[0].whitespace_after.empty and node.rpar[0].whitespace_before.empty):
        return node
    inner = node.with_changes(lpar=[], rpar=[])
    return inner if level(inner) >= 1 else node


_CONSTANTS = {"None": None, "True": True, "False": False}
_NO_LITERALS = (cst.Attribute, cst.Subscript, cst.Comparison, cst.BooleanOperation, cst.IfExp, cst.Lambda, cst.BaseComp)


def literal(node: cst.BaseExpression) -> object:
    """The value of a literal (numbers, strings, None, tuples and lists of them), else MISSING."""
    if isinstance(node, _NO_LITERALS):
        return MISSING
    if isinstance(node, cst.Name):
        return _CONSTANTS.get(node.value, MISSING)
    try:
        return ast.literal_eval(code(node).strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return MISSING


_WHOLE: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
}


def whole_number(node: cst.BaseExpression) -> int | None:
    """The value of whole numbers that are written out and computed with, as `2**31 - 1`."""

    def value(n: ast.expr) -> int:
        if isinstance(n, ast.Constant) and type(n.value) is int:
            return n.value
        if isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.USub):
            return -value(n.operand)
        if not isinstance(n, ast.BinOp) or type(n.op) not in _WHOLE:
            raise ValueError
        left, right = value(n.left), value(n.right)
        if isinstance(n.op, (ast.Pow, ast.LShift)) and not 0 <= right <= 64:
            raise ValueError
        return _WHOLE[type(n.op)](left, right)

    try:
        return value(ast.parse(code(node).strip(), mode="eval").body)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


@lru_cache(1 << 17)
def code(node: cst.CSTNode) -> str:
    """The source text of a node."""
    return cst.Module(body=()).code_for_node(node)


def as_tuple(node: cst.BaseExpression) -> cst.BaseExpression:
    """A list as the tuple of the same elements, for JAX's static arguments; anything else as it is."""
    if not isinstance(node, cst.List):
        return node
    elements = list(node.elements)
    if len(elements) == 1:
        elements[0] = elements[0].with_changes(comma=cst.Comma())
    return cst.Tuple(elements, lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


_NEW_ARRAYS = ("zeros", "ones", "empty")


def _of_new_array(node: cst.BaseExpression, attr: str) -> cst.BaseExpression | None:
    """The shape or dtype of an array that an expression makes, where it is written there: `jnp.empty((3, 4)).shape`."""
    if attr not in {"shape", "dtype"} or not (isinstance(node, cst.Call) and node.args):
        return None
    name = code(node.func)
    first = node.args[0].value
    like = name in {f"jnp.{n}_like" for n in _NEW_ARRAYS}
    if not like and name not in {f"jnp.{n}" for n in _NEW_ARRAYS}:
        return None
    if attr == "dtype":
        given = next((a.value for a in node.args if a.keyword and a.keyword.value == "dtype"), cst.Name("float"))
        return cst.parse_expression(f"{code(fit(first))}.dtype") if like and len(node.args) == 1 else given
    if like:
        return cst.parse_expression(f"{code(fit(first))}.shape")
    text = code(first)
    if isinstance(first, cst.Integer) or re.search(r"\.shape\[-?\d+\]$", text):
        return cst.parse_expression(f"({text},)")
    return first if isinstance(first, cst.Tuple) or text.endswith(".shape") else None


class Fill(cst.CSTTransformer):
    """Puts expressions in place of a template's names, with parentheses where they are needed.

    A keyword argument whose value is just the name of an omitted parameter goes away: JAX's default is the same there.
    (A template says otherwise with parentheses around the name.)
    """

    def __init__(self, values: Mapping[str, cst.BaseExpression], omitted: frozenset[str]) -> None:
        super().__init__()
        self.values, self.omitted = values, omitted

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        """The attribute's own name is no parameter."""
        value = fit(updated_node.value)
        if isinstance(value, (cst.Integer, cst.Float)) and not value.lpar:  # 1.real is no Python
            value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        known = _of_new_array(value, original_node.attr.value)
        return known or updated_node.with_changes(value=value, attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg | cst.RemovalSentinel:
        """Omitted parameters vanish, and `*names` takes the elements of a tuple."""
        value = original_node.value
        keyword = original_node.keyword
        if keyword and isinstance(value, cst.Name) and not value.lpar and value.value in self.omitted:
            return cst.RemoveFromParent()
        filled = updated_node.value
        if isinstance(value, cst.Name) and filled is not value:
            filled = bare(filled)
        return updated_node.with_changes(keyword=keyword, value=fit(filled, 1))

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Starred tuples open up; the last comma goes."""
        args: list[cst.Arg] = []
        for arg in updated_node.args:
            if arg.star == "*" and isinstance(arg.value, (cst.Tuple, cst.List)):
                args.extend(
                    cst.Arg(e.value, star="*" if isinstance(e, cst.StarredElement) else "") for e in arg.value.elements
                )
            else:
                args.append(arg)
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        args = [a.with_changes(comma=comma) for a in args[:-1]] + [
            a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in args[-1:]
        ]
        return updated_node.with_changes(args=args, func=fit(updated_node.func))

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        """A parameter's name becomes its value."""
        value = self.values.get(original_node.value)
        return updated_node if value is None else value.deep_clone()

    def leave_NamedExpr(self, original_node: cst.NamedExpr, updated_node: cst.NamedExpr) -> cst.BaseExpression:
        """The name that an expression gives is no parameter."""
        return updated_node.with_changes(target=original_node.target)

    def leave_Param(self, original_node: cst.Param, updated_node: cst.Param) -> cst.Param:
        """Nor are those of a lambda."""
        return updated_node.with_changes(name=original_node.name)

    def leave_BinaryOperation(
        self, original_node: cst.BinaryOperation, updated_node: cst.BinaryOperation
    ) -> cst.BaseExpression:
        """Operands bind at least as tightly as their operator."""
        own = _BINARY[type(updated_node.operator)]
        power = isinstance(updated_node.operator, cst.Power)
        left, right = (ATOM if power else own), (own - 1 if power else own + 1)
        return updated_node.with_changes(left=fit(updated_node.left, left), right=fit(updated_node.right, right))

    def leave_UnaryOperation(
        self, original_node: cst.UnaryOperation, updated_node: cst.UnaryOperation
    ) -> cst.BaseExpression:
        """As for two operands."""
        own = 5 if isinstance(updated_node.operator, cst.Not) else 13
        return updated_node.with_changes(expression=fit(updated_node.expression, own))

    def leave_Comparison(self, original_node: cst.Comparison, updated_node: cst.Comparison) -> cst.BaseExpression:
        """Comparisons inside comparisons would chain."""
        targets = [t.with_changes(comparator=fit(t.comparator, 7)) for t in updated_node.comparisons]
        return updated_node.with_changes(left=fit(updated_node.left, 7), comparisons=targets)

    def leave_BooleanOperation(
        self, original_node: cst.BooleanOperation, updated_node: cst.BooleanOperation
    ) -> cst.BaseExpression:
        """`and` and `or`."""
        return updated_node.with_changes(left=fit(updated_node.left, 4), right=fit(updated_node.right, 4))

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.BaseExpression:
        """A conditional expression."""
        return updated_node.with_changes(
            test=fit(updated_node.test, 3), body=fit(updated_node.body, 3), orelse=fit(updated_node.orelse, 2)
        )

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.BaseExpression:
        """What is indexed."""
        return updated_node.with_changes(value=fit(updated_node.value))

    def leave_Index(self, original_node: cst.Index, updated_node: cst.Index) -> cst.Index:
        """An index may be a bare tuple, but no generator."""
        return updated_node.with_changes(value=fit(updated_node.value, 1))

    def leave_Element(self, original_node: cst.Element, updated_node: cst.Element) -> cst.Element:
        """Elements of tuples and lists."""
        return updated_node.with_changes(value=fit(updated_node.value, 1))

    def leave_StarredElement(
        self, original_node: cst.StarredElement, updated_node: cst.StarredElement
    ) -> cst.StarredElement:
        """Starred ones bind like operands of `|`."""
        return updated_node.with_changes(value=fit(updated_node.value, 7))


def names(node: cst.CSTNode) -> set[str]:
    """The names that an expression reads, those after a dot and keywords left out."""
    return {n.id for n in ast.walk(ast.parse(code(node).strip(), mode="eval")) if isinstance(n, ast.Name)}
