"""Custom operators by name, across files: `torch.ops.mylib.scale` is a name of the file that defines it."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterable, Iterator

OPERATOR = r"torch\.library|custom_op|triton_op"
_DEFINING = ("custom_op", "triton_op")


def iter_defined_operators(tree: ast.Module, constant: Callable[[str], ast.expr | None]) -> Iterator[tuple[str, str]]:
    """Yield the qualified names of the operators that a file defines, each with the file's own name for it.

    Args:
        tree: the file.
        constant: returns the value of a name of its top level.
    """
    for statement in tree.body:
        calls: list[tuple[str, ast.expr]] = []
        if isinstance(statement, ast.FunctionDef):
            calls = [(statement.name, d) for d in statement.decorator_list]
        elif isinstance(statement, ast.Assign):
            calls = [(t.id, statement.value) for t in statement.targets if isinstance(t, ast.Name)]
        for name, given in calls:
            call = given
            while isinstance(call, ast.Call) and isinstance(call.func, ast.Call):  # `custom_op("mylib::f")(body)`
                call = call.func
            if isinstance(call, ast.Call) and call.args and ast.unparse(call.func).split(".")[-1] in _DEFINING:
                qualname = read_beginning(call.args[0], constant)
                if "::" in qualname:
                    yield qualname, name


def read_beginning(node: ast.expr | None, constant: Callable[[str], ast.expr | None], depth: int = 0) -> str:
    """Return the string that an expression is, or that it begins with: `"twice"` of `"twice" + infer_schema(f)`."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.Name) and depth < 3:
        return read_beginning(constant(node.id), constant, depth + 1)
    if isinstance(node, ast.FormattedValue) and node.conversion == -1 and node.format_spec is None:
        return read_beginning(node.value, constant, depth)
    parts: list[ast.expr] = []
    if isinstance(node, ast.JoinedStr):
        parts = node.values
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [node.left, node.right]
    return "".join(itertools.takewhile(bool, (read_beginning(p, constant, depth) for p in parts)))


def iter_named_operators(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.Attribute, str]]:
    """Yield the references to `torch.ops.mylib.scale`, `.default` included, each with the qualified name."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Attribute):
            inner = node.value if node.attr == "default" else node
            parts = ast.unparse(inner).split(".")
            if len(parts) == 4 and parts[:2] == ["torch", "ops"]:
                yield node, "::".join(parts[2:])
                continue
        waiting += ast.iter_child_nodes(node)
