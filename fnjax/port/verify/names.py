"""The custom operators that a file defines, by name; nothing is executed."""

from __future__ import annotations

import ast

from fnjax.port.source.operator_names import read_beginning

SHARED = "direct_register_custom_op"  # the function that serving packages share, which defines and implements


def list_operator_names(tree: ast.Module) -> list[str]:
    """Return the qualified names, in the order of the file: of custom_op, triton_op, and what a Library defines.

    Examples:
        >>> list_operator_names(ast.parse("lib = Library('mine', 'DEF'); lib.define('twice' + infer_schema(f))"))
        ['mine::twice']
    """
    found: dict[str, None] = {}
    libraries: dict[str, str] = {}
    texts = {ast.unparse(t): s.value for s in tree.body if isinstance(s, ast.Assign) for t in s.targets}
    for node in (n for s in tree.body for n in ast.walk(s)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _name_called(node.value) == "Library":
            libraries |= {ast.unparse(t): _read_text(texts, node.value) for t in node.targets}
        if not isinstance(node, ast.Call):
            continue
        if _name_called(node) in {"custom_op", "triton_op"} and "::" in _read_text(texts, node):
            found[_read_text(texts, node)] = None
        elif _name_called(node) == "define":
            first = ast.unparse(node.args[0]) if node.args else ""
            owner = libraries.get(ast.unparse(node.func).rpartition(".")[0], "")
            name = _read_text(texts, node, 1 if first in libraries else 0).partition("(")[0].strip()
            owner = libraries.get(first, owner)
            if "::" in name or (owner and name):
                found[name if "::" in name else f"{owner}::{name}"] = None
        elif _name_called(node) == SHARED:
            by_name = {k.arg: k.value for k in node.keywords}
            name = read_beginning(by_name["op_name"], texts.get) if "op_name" in by_name else _read_text(texts, node)
            given = (ast.unparse(a) for a in (*node.args, *by_name.values()))
            owner = next((libraries[a] for a in given if a in libraries), _find_namespace(tree, libraries))
            found |= {f"{owner}::{name}": None} if owner and name else {}
    return list(found)


def _find_namespace(tree: ast.Module, libraries: dict[str, str]) -> str:
    """Return the namespace of SHARED: that of the file's one Library, or of the package that it is imported from."""
    froms = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and not n.level]
    roots = [(n.module or "").partition(".")[0] for n in froms if any(a.name == SHARED for a in n.names)]
    return next(iter(roots or libraries.values()), "")


def _name_called(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _read_text(texts: dict[str, ast.expr], call: ast.Call, index: int = 0) -> str:
    """Return the text that an argument is, or begins with, by the texts that the file has names for."""
    return read_beginning(call.args[index], texts.get) if len(call.args) > index else ""
