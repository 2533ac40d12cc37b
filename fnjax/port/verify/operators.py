"""Custom operators as the search sees classes: a body, its derivative, and a way to call them."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fnjax
from fnjax.port.verify.names import SHARED

_DEFINING = frozenset({"custom_op", "triton_op"})
_BODIES = _DEFINING | {"impl", SHARED}


@dataclass
class Operator:
    """Stand-in for the class of a Function.

    Attributes:
        name: qualified, as `mylib::scale`.
        apply: calls it; what it mutates comes after its results.
        argnums: which arguments are differentiated; None for all that can be.
        forward: its body, or a function of its parameters where the file has none.
        setup_context: as registered.
        backward: as registered.
    """

    name: str
    apply: Callable[..., Any]
    argnums: tuple[int, ...] | None
    forward: Callable[..., Any]
    setup_context: Callable[..., Any] | None = None
    backward: Callable[..., Any] | None = None
    methods: list[ast.FunctionDef] = field(default_factory=list)

    def add_to_file(self, tree: ast.Module) -> ast.Module:
        """Return the file with a class of the operator's name, for who reads hints from methods."""
        made = ast.ClassDef(self.name, [], [], list(self.methods), [])
        return ast.Module([*tree.body, made], [])


def make_operator(
    path: Path,
    text: str,
    name: str,
    apply: Callable[..., Any],
    parameters: Sequence[tuple[str, str]],
    argnums: tuple[int, ...] | None,
) -> Operator:
    """Return an operator of a file.

    Args:
        path: the file.
        text: what stands in it.
        name: qualified.
        apply: calls it.
        parameters: names and types, as the schema writes them.
        argnums: which arguments are differentiated; None for all that can be.
    """
    typed = [ast.arg(n, ast.Name(t)) for n, t in parameters]
    shown = ast.FunctionDef("forward", _make_parameters(typed), [ast.Pass()], [])
    parts = dict(_iter_parts(ast.parse(text), name))
    body = parts.get("forward", shown)
    methods = [_rename_function(body, "forward")]
    methods[0].args = ast.arguments([], typed, None, [], [], None, body.args.defaults[-len(typed) :])
    methods.append(_rename_function(parts["setup_context"], "setup_context") if "setup_context" in parts else _NOTHING)
    methods += [_rename_function(parts["backward"], "backward")] if "backward" in parts else []
    codes = {k: _make_function(node, str(path.absolute())) for k, node in parts.items()}
    codes.setdefault("forward", _make_function(shown, "<schema>"))
    made = Operator(name, apply, argnums, **codes, methods=[ast.fix_missing_locations(m) for m in methods])
    made.forward.__signature__ = _make_signature([n for n, _ in parameters])  # type: ignore[attr-defined] # of functions
    return made


def make_ported_operator(name: str) -> Operator:
    """Return the operator that a port has defined, by `fnjax.ops`.

    Raises:
        AttributeError: it has not.
    """
    namespace, _, last = name.partition("::")
    found = getattr(getattr(fnjax.ops, namespace), last)
    return Operator(name, found, None, found)


def _iter_parts(tree: ast.Module, name: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the functions of a file that are an operator's body, and its derivative."""
    functions = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    spelled = {name, name.partition("::")[2]}
    known: set[str] = set()  # the names of the file that are the operator
    for call, decorated in _iter_calls(tree):
        last = ast.unparse(call.func).rpartition(".")[2]
        given = [*call.args, *(k.value for k in call.keywords)]
        ours = any(isinstance(a, ast.Constant) and str(a.value).partition("(")[0] in spelled for a in given)
        if last in _DEFINING and ours and decorated is not None:
            known.add(decorated.name)
        named = [functions[a.id] for a in given if isinstance(a, ast.Name) and a.id in functions]
        first = decorated or next(iter(named), None)
        if last in _BODIES and ours and first is not None:
            yield "forward", first
        owner = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in known
        if last == "register_autograd" and (ours or owner):
            found = {k.arg: functions.get(ast.unparse(k.value)) for k in call.keywords} | {"backward": first}
            yield from ((k, f) for k in ("setup_context", "backward") if (f := found.get(k)) is not None)


def _iter_calls(tree: ast.Module) -> Iterator[tuple[ast.Call, ast.FunctionDef | None]]:
    """Yield calls, and those that decorate a function with it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node, None
        elif isinstance(node, ast.FunctionDef):
            yield from ((d if isinstance(d, ast.Call) else ast.Call(d, [], []), node) for d in node.decorator_list)


def _rename_function(node: ast.FunctionDef, name: str) -> ast.FunctionDef:
    return ast.FunctionDef(name, node.args, node.body, [])


def _make_parameters(args: list[ast.arg]) -> ast.arguments:
    return ast.arguments([], args, None, [], [], None, [])


_NOTHING = ast.FunctionDef(
    "setup_context", _make_parameters([ast.arg("ctx"), ast.arg("inputs"), ast.arg("output")]), [ast.Pass()], []
)


def _make_function(node: ast.FunctionDef, file: str) -> types.FunctionType:
    """Return a function with the lines of a definition, of which nothing is executed."""
    plain = ast.FunctionDef(node.name, _make_parameters([ast.arg(a.arg) for a in node.args.args]), node.body, [])
    module = ast.fix_missing_locations(ast.Module([ast.copy_location(plain, node)], []))
    code = compile(module, file, "exec", dont_inherit=True)
    return types.FunctionType(next(c for c in code.co_consts if isinstance(c, types.CodeType)), {})


def _make_signature(names: list[str]) -> inspect.Signature:
    return inspect.Signature([inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names])


__all__ = ["Operator", "make_operator", "make_ported_operator"]
