"""Small mistakes, put into a port one at a time: a comparison with PyTorch has to find them.

The list was fixed before the search for arguments was written, so that neither is made for the other.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

METHODS = {"forward", "setup_context", "backward", "vjp"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A port with one mistake.

    Attributes:
        kind: the operation: `sign`, `factor`, `axis`, `literal`, `mask`, `stop more`, `stop fewer`, `swap`, `mark`.
        line: where it is made, from 1.
        text: the whole source.
    """

    kind: str
    line: int
    text: str


def mutants(source: str) -> Iterator[Mutant]:
    """Yield a mutant for each operation and site in the functions of a port and in the methods of its classes.

    - sign: a sum for a difference and the reverse, a minus left out, a returned gradient negated;
    - factor: a product or a quotient doubled;
    - axis: another `axis=`, where that is an integer;
    - literal: a number that something is compared with is one less;
    - mask: `jnp.where(mask, a, b)` is a, a product with a comparison or with something called a mask is its other half;
    - stop more: a saved array, or a returned gradient, is constant to further derivatives;
    - stop fewer: a `jax.lax.stop_gradient` is left out;
    - swap: two neighbouring gradients in each other's place;
    - mark: a `ctx.mark_non_differentiable` is left out.
    """
    starts = list(itertools.accumulate((len(line) for line in source.encode().splitlines(True)), initial=0))
    for function, method in _functions(ast.parse(source)):
        for node in ast.walk(function):
            for kind, at, replacement in _changes(node, source, method):
                begin = starts[at.lineno - 1] + at.col_offset
                end = starts[at.end_lineno - 1] + at.end_col_offset
                text = (source.encode()[:begin] + replacement.encode() + source.encode()[end:]).decode()
                yield Mutant(kind, at.lineno, text)


def _functions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Functions, and methods with their names."""
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            yield statement, ""
        elif isinstance(statement, ast.ClassDef):
            yield from ((s, s.name) for s in statement.body if isinstance(s, ast.FunctionDef) and s.name in METHODS)


def _changes(node: ast.AST, source: str, method: str) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """Yield the kind of each mutation, the replaced text, and its replacement."""

    def code(part: ast.AST) -> str:
        return f"({ast.get_source_segment(source, part)})"

    match node:
        case ast.BinOp(left, ast.Add(), right):
            yield "sign", node, f"({code(left)} - {code(right)})"
        case ast.BinOp(left, ast.Sub(), right):
            yield "sign", node, f"({code(left)} + {code(right)})"
        case ast.UnaryOp(ast.USub(), operand) if not isinstance(operand, ast.Constant):
            yield "sign", node, code(operand)
        case ast.BinOp(_, ast.Mult() | ast.Div(), _):
            yield "factor", node, f"(2 * {code(node)})"
        case ast.keyword("axis", ast.Constant(int(axis)) as value) if not isinstance(axis, bool):
            yield "axis", value, str(axis - 1 if axis > 0 else axis + 1)
        case ast.keyword("axis", ast.UnaryOp(ast.USub(), ast.Constant(int(axis))) as value):
            yield "axis", value, str(-2 if axis == 1 else 1 - axis)
        case ast.Call(ast.Attribute(ast.Name("jnp"), "where"), [_, first, _]):
            yield "mask", node, code(first)
        case ast.Call(func, [argument]) if ast.unparse(func) == "jax.lax.stop_gradient":
            yield "stop fewer", node, code(argument)
        case ast.Expr(ast.Call(ast.Attribute(_, "mark_non_differentiable"))):
            yield "mark", node, "pass"
    for value in (node.left, *node.comparators) if isinstance(node, ast.Compare) else ():
        with contextlib.suppress(ValueError):
            if type(number := ast.literal_eval(value)) in {int, float}:
                yield "literal", value, f"({number - 1})"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for mask, other in ((node.left, node.right), (node.right, node.left)):
            if _is_mask(mask):
                yield "mask", node, code(other)
    if method not in {"backward", "vjp"}:
        return
    if isinstance(node, ast.Assign) and "saved_tensors" in ast.unparse(node.value):
        targets = node.targets[0]
        for name in targets.elts if isinstance(targets, ast.Tuple) else ():
            if isinstance(name, ast.Name):
                stopped = f"{name.id} = __import__('jax').lax.stop_gradient({name.id})"
                yield "stop more", node, f"{ast.get_source_segment(source, node)}; {stopped}"
    if isinstance(node, ast.Return) and node.value is not None:
        given = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        gradients = [g for g in given if not isinstance(g, (ast.Constant, ast.Starred))]
        for gradient in gradients:
            yield "sign", gradient, f"(-{code(gradient)})"
            yield "stop more", gradient, f"__import__('jax').lax.stop_gradient({code(gradient)})"
        for first, second in itertools.pairwise(gradients):
            inside = _between(source.splitlines(True), first, second)
            both = ast.copy_location(ast.Expr(first), first)
            both.end_lineno, both.end_col_offset = second.end_lineno, second.end_col_offset
            yield "swap", both, f"{code(second)}{inside}{code(first)}"


def _between(lines: list[str], first: ast.expr, second: ast.expr) -> str:
    """Return the text from the end of one expression to the start of the next."""
    end, start = first.end_lineno or 1, second.lineno
    if end == start:
        return lines[end - 1].encode()[first.end_col_offset : second.col_offset].decode()
    head = lines[end - 1].encode()[first.end_col_offset :].decode()
    return head + "".join(lines[end : start - 1]) + lines[start - 1].encode()[: second.col_offset].decode()


def _is_mask(node: ast.expr) -> bool:
    """Return whether this is a comparison, one that is cast, or something called a mask."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "astype":
        node = node.func.value
    return isinstance(node, ast.Compare) or (isinstance(node, ast.Name) and "mask" in node.id)
