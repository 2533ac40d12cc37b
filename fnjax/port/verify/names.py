"""The custom operators that a file defines, by name; nothing is executed."""

from __future__ import annotations

import ast


def operator_names(tree: ast.Module) -> list[str]:
    """The qualified names, in the order of the file: of custom_op, triton_op, and what a Library defines.

    Examples:
        >>> operator_names(ast.parse("lib = Library('mine', 'DEF'); lib.define('twice(Tensor x) -> Tensor')"))
        ['mine::twice']
    """
    found: dict[str, None] = {}
    libraries: dict[str, str] = {}
    for node in (n for s in tree.body for n in ast.walk(s)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _last(node.value) == "Library":
            libraries |= {ast.unparse(t): _text(node.value) for t in node.targets}
        if not isinstance(node, ast.Call):
            continue
        if _last(node) in {"custom_op", "triton_op"} and "::" in _text(node):
            found[_text(node)] = None
        elif _last(node) == "define":
            owner = libraries.get(ast.unparse(node.func).rpartition(".")[0], "")
            name = _text(node).partition("(")[0].strip()
            if "::" in name or (owner and name):
                found[name if "::" in name else f"{owner}::{name}"] = None
    return list(found)


def _last(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _text(call: ast.Call) -> str:
    first = call.args[0] if call.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
