"""Putting expressions into expressions: precedence, parentheses, and the names of a template."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import libcst as cst

from fnjax._torch_ops.signature import MISSING
from fnjax.port.tree.located import Rewriter, clone, list_children, replace_parts

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
_LEVELS: dict[type[cst.CSTNode], int | dict[Any, int]] = {
    cst.BinaryOperation: _BINARY,
    cst.UnaryOperation: {cst.Not: 5, cst.Minus: 13, cst.Plus: 13, cst.BitInvert: 13},
    cst.BooleanOperation: {cst.Or: 3, cst.And: 4},
    cst.Await: 15,
    cst.Comparison: 6,
    cst.IfExp: 2,
    cst.Lambda: 1,
    cst.ConcatenatedString: 1,
    **dict.fromkeys((cst.Tuple, cst.Yield, cst.NamedExpr, cst.GeneratorExp), 0),
}
# How tightly the parts of other nodes have to bind: an index may be a bare tuple, but no generator.
_LEAST: dict[type[cst.CSTNode], dict[str, int]] = {
    cst.IfExp: {"test": 3, "body": 3, "orelse": 2},
    cst.Attribute: {"value": ATOM},
    cst.Subscript: {"value": ATOM},
    cst.Call: {"func": ATOM},
    cst.StarredElement: {"value": 7},
    cst.Index: {"value": 1},
    cst.Element: {"value": 1},
    cst.Arg: {"value": 1},
}


def find_level(node: cst.BaseExpression) -> int:
    """Return how tightly the outermost operation of an expression binds; ATOM for what never needs parentheses."""
    return ATOM if getattr(node, "lpar", ()) else _find_own_level(node)


def _find_own_level(node: cst.CSTNode) -> int:
    own = _LEVELS.get(type(node), ATOM)
    return own if isinstance(own, int) else own[type(node.operator)]  # type: ignore[attr-defined] # these have one


def bracket(node: cst.BaseExpression, least: int = ATOM) -> cst.BaseExpression:
    """Return the expression, in parentheses where it binds less tightly than `least`."""
    if find_level(node) >= least:
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def bracket_parts(node: Any) -> Any:
    """Return a node with parentheses around the parts that bind less tightly than it."""
    least, own = _LEAST.get(type(node), {}), _find_own_level(node)
    if not least and own == ATOM:
        return node
    match node:
        case cst.BinaryOperation(operator=cst.Power()):
            least = {"left": ATOM, "right": own - 1}
        case cst.BinaryOperation():
            least = {"left": own, "right": own + 1}
        case cst.BooleanOperation():  # operands of `and` and `or` may be grouped either way
            least = {"left": own, "right": own}
        case cst.UnaryOperation():
            least = {"expression": own}
        case cst.Arg(cst.GeneratorExp()):  # alone in a call it needs none
            return node
        case cst.Attribute(cst.Integer(lpar=[]) | cst.Float(lpar=[]) as number):  # 1.real is no Python
            return replace_parts(node, value=replace_parts(number, lpar=[cst.LeftParen()], rpar=[cst.RightParen()]))
        case cst.Comparison():  # a comparison inside would chain
            targets = [replace_parts(t, comparator=bracket(t.comparator, 7)) for t in node.comparisons]
            return replace_parts(node, left=bracket(node.left, 7), comparisons=targets)
    return replace_parts(node, **{part: bracket(getattr(node, part), level) for part, level in least.items()})


def add_up(parts: Sequence[cst.BaseExpression]) -> str:
    """Return the sum of some expressions, their numbers added up."""
    number, texts = 0, list[str]()
    for part in parts:
        value = read_literal(part)
        if type(value) is int:
            number += value
        else:
            texts.append(unparse(bracket(part, 11)))
    return " + ".join([*texts, str(number)] if number or not texts else texts)


def drop_parentheses(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return the expression without the parentheses that an argument does not need."""
    if isinstance(node, (cst.Tuple, cst.GeneratorExp, cst.Yield)) or len(node.lpar) != 1:
        return node
    if "#" in unparse(cst.Tuple([], [node.lpar[0]], [node.rpar[0]])):  # a comment inside
        return node
    inner = node.with_changes(lpar=[], rpar=[])
    return inner if find_level(inner) >= 1 else node


def drop_own_cast(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return x for `x.astype(x.dtype)`, and anything else as it is."""
    match node:
        case cst.Call(
            cst.Attribute(cst.Name(name) as own, cst.Name("astype")),
            [cst.Arg(cst.Attribute(cst.Name(other), cst.Name("dtype")), None)],
        ) if name == other:
            return own
    return node


_CONSTANTS = {"None": None, "True": True, "False": False}
_LITERALS = (
    *(cst.BaseNumber, cst.BaseString, cst.Ellipsis, cst.Tuple, cst.List, cst.Set, cst.Dict),
    *(cst.UnaryOperation, cst.BinaryOperation, cst.Call),  # -1, 1 + 2j, set()
)


def read_literal(node: cst.BaseExpression) -> object:
    """Return the value of a literal (numbers, strings, None, tuples and lists of them), else MISSING."""
    if isinstance(node, cst.Name):
        return _CONSTANTS.get(node.value, MISSING)
    if isinstance(node, cst.Integer) and node.value.isdigit() and len(node.value) < 20:
        return int(node.value)
    first: cst.BaseExpression = node
    while isinstance(first, (cst.UnaryOperation, cst.BinaryOperation, cst.Call)):  # a name in it makes it none
        inside = first.func if isinstance(first, cst.Call) else None
        if inside is not None and (first.args or not isinstance(inside, cst.Name)):  # type: ignore[union-attr] # a call
            return MISSING
        if inside is not None:
            break
        first = first.expression if isinstance(first, cst.UnaryOperation) else first.left  # type: ignore[union-attr] # either
    if not isinstance(first, _LITERALS):
        return MISSING
    try:
        return ast.literal_eval(unparse(node).strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return MISSING


def read_text(
    node: cst.BaseExpression, value: Callable[[cst.BaseExpression], object] = read_literal, hole: str | None = None
) -> str | None:
    """Return the string that an expression is, sums and f-strings among them.

    Args:
        node: the expression.
        value: what is known of its parts.
        hole: replaces a part that is not known; by default all is unknown then.
    """
    found = read_literal(node)
    if isinstance(found, str):
        return found
    parts: Sequence[cst.CSTNode] = ()
    if isinstance(node, cst.FormattedString):
        parts = node.parts
    elif isinstance(node, cst.ConcatenatedString) or (
        isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add)
    ):
        parts = (node.left, node.right)
    if not parts:
        known = "" if isinstance(node, cst.FormattedString) else value(node)
        return known if isinstance(known, str) else hole
    texts = [_read_text_of_part(p, value, hole) for p in parts]
    return None if None in texts else "".join(map(str, texts))


def _read_text_of_part(
    part: cst.CSTNode, value: Callable[[cst.BaseExpression], object], hole: str | None
) -> str | None:
    if isinstance(part, cst.FormattedStringText):
        return part.value
    if not isinstance(part, cst.FormattedStringExpression):
        return read_text(part, value, hole)  # type: ignore[arg-type] # an operand
    if part.format_spec is not None or part.conversion is not None:
        return hole
    number = read_literal(part.expression)
    return str(number) if type(number) is int else read_text(part.expression, value, hole)


def _is_plain_dot(dot: cst.Dot) -> bool:
    """Return whether no blanks are around a dot."""
    before, after = dot.whitespace_before, dot.whitespace_after
    return (
        isinstance(before, cst.SimpleWhitespace)
        and isinstance(after, cst.SimpleWhitespace)
        and not (before.value or after.value)
    )


@lru_cache(1 << 17)
def unparse(node: cst.CSTNode) -> str:
    """Return the source text of a node."""
    if isinstance(node, (cst.Name, cst.Integer)) and not node.lpar:
        return node.value
    if isinstance(node, cst.Attribute) and not node.lpar and _is_plain_dot(node.dot):
        return f"{unparse(node.value)}.{unparse(node.attr)}"
    return cst.Module(body=()).code_for_node(node)


def is_same_text(a: cst.BaseExpression, b: cst.BaseExpression) -> bool:
    """Return whether two expressions have the same text."""
    return a is b or (type(a) is type(b) and unparse(a) == unparse(b))


@lru_cache(1 << 12)
def parse_template(text: str) -> cst.BaseExpression:
    """Return the tree of a template, from a cache: filling it makes a new tree, and this one is never part of another."""
    return cst.parse_expression(text)


def fill(template: str, **values: cst.BaseExpression) -> cst.BaseExpression:
    """Return the expression of a template with others in place of its names, in parentheses where they are needed.

    >>> unparse(fill("jnp.sum(A * B)", A=cst.parse_expression("x + 1"), B=cst.Name("y")))
    'jnp.sum((x + 1) * y)'
    """
    made: cst.BaseExpression = TemplateFiller(values, frozenset()).rewrite(parse_template(template))
    return made


def make_list(nodes: Iterable[cst.BaseExpression | cst.StarredElement]) -> cst.List:
    """Return the list of these elements; `*` before one in a template's call opens it, and leaves out an empty one."""
    return cst.List([n if isinstance(n, cst.StarredElement) else cst.Element(bracket(n, 1)) for n in nodes])


def make_tuple(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return a list as the tuple of the same elements, for JAX's static arguments; anything else as it is."""
    if not isinstance(node, cst.List):
        return node
    elements = list(node.elements)
    if len(elements) == 1:
        elements[0] = elements[0].with_changes(comma=cst.Comma())
    return cst.Tuple(elements, lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


class TemplateFiller(Rewriter):
    """Rewriter that puts expressions in place of a template's names, with parentheses where they are needed.

    A keyword argument whose value is just the name of an omitted parameter goes away: JAX's default is the same there.
    (A template says otherwise with parentheses around the name.)
    """

    def __init__(
        self,
        values: Mapping[str, cst.BaseExpression],
        omitted: frozenset[str],
        known: Callable[[str, str], cst.BaseExpression | None] | None = None,
    ) -> None:
        """Make a filler; `known` returns an attribute of a name where it is known: the template's `input.shape`."""
        self.values, self.omitted, self.known = values, omitted, known

    def rewrite(self, node: cst.CSTNode) -> Any:
        """Return what takes the place of a node."""
        made = super().rewrite(node)
        return bracket_parts(made) if type(made) is type(node) else made

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        """Keep the attribute's own name, which is not a parameter."""
        of, attr = original_node.value, original_node.attr
        if self.known is not None and isinstance(of, cst.Name) and (known := self.known(of.value, attr.value)):
            return clone(known)
        return replace_parts(updated_node, attr=attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg | cst.RemovalSentinel:
        """Drop omitted parameters, and the parentheses that an argument does not need."""
        value = original_node.value
        keyword = original_node.keyword
        if keyword and isinstance(value, cst.Name) and not value.lpar and value.value in self.omitted:
            return cst.RemovalSentinel.REMOVE
        filled = updated_node.value
        if isinstance(value, cst.Name) and filled is not value:
            filled = bracket(drop_parentheses(filled), 1)
        return replace_parts(updated_node, keyword=keyword, value=filled)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Open starred tuples, and drop the last comma."""
        args: list[cst.Arg] = []
        for arg in updated_node.args:
            if arg.star == "*" and isinstance(arg.value, (cst.Tuple, cst.List)):
                args.extend(
                    cst.Arg(e.value, star="*" if isinstance(e, cst.StarredElement) else "") for e in arg.value.elements
                )
            else:
                args.append(arg)
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        args = [replace_parts(a, comma=comma) for a in args[:-1]] + [
            replace_parts(a, comma=cst.MaybeSentinel.DEFAULT) for a in args[-1:]
        ]
        return replace_parts(updated_node, args=args)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        """Replace a parameter's name by its value."""
        value = self.values.get(original_node.value)
        return updated_node if value is None else clone(value)

    def leave_NamedExpr(self, original_node: cst.NamedExpr, updated_node: cst.NamedExpr) -> cst.BaseExpression:
        """Keep the name that an expression binds, which is not a parameter."""
        return replace_parts(updated_node, target=original_node.target)

    def leave_Param(self, original_node: cst.Param, updated_node: cst.Param) -> cst.Param:
        """Keep the name of a parameter of a lambda, which is not one of the template."""
        return replace_parts(updated_node, name=original_node.name)


def find_names(node: cst.CSTNode) -> set[str]:
    """Return the names in an expression, those after a dot, keywords and the parameters of lambdas left out."""
    found: set[str] = set()
    waiting = [node]
    while waiting:
        first = waiting.pop()
        if isinstance(first, cst.Name):
            found.add(first.value)
        elif isinstance(first, (cst.Attribute, cst.Arg)):
            waiting.append(first.value)
        elif isinstance(first, cst.Param):
            waiting += [first.default] if first.default is not None else []
        else:
            waiting += list_children(first)
    return found
