"""Custom operators as the search sees classes: a body, its derivative, and a way to call them."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import fnjax
from fnjax.port.compare.reference import Reference
from fnjax.port.compare.values import add_written
from fnjax.port.verify.names import SHARED

_DEFINING = frozenset({"custom_op", "triton_op"})
_BODIES = _DEFINING | {"impl", SHARED}


@dataclass
class Operator:
    """Stand-in for the class of a Function.

    Attributes:
        apply: calls it; what it mutates comes after its results.
        argnums: which arguments are differentiated; None for all that can be.
        forward: its body, or a function with its parameters where the file has none.
        setup_context: as registered.
        backward: as registered.
        methods: the definitions of these, by name.
    """

    apply: Callable[..., Any]
    argnums: tuple[int, ...] | None
    forward: Callable[..., Any]
    setup_context: Callable[..., Any] | None = None
    backward: Callable[..., Any] | None = None
    methods: Mapping[str, ast.FunctionDef] = field(default_factory=dict)


class Found(NamedTuple):
    """Registered operator, as PyTorch or fnjax.torch knows it.

    Attributes:
        call: calls it.
        parameters: names and types, as the schema writes them.
        written: the indices of the arguments that it mutates.
        is_differentiable: whether it has a derivative.
    """

    call: Callable[..., Any]
    parameters: list[tuple[str, str]]
    written: list[int]
    is_differentiable: bool


def find_operator_of_reference(reference: Reference, path: Path, name: str) -> Found:
    """Return an operator in fnjax.torch, defined and registered by its file.

    Raises:
        Exception: the file cannot be executed, or does not define it.
    """
    reference.load(str(path))
    namespace, _, last = name.partition("::")
    found = getattr(getattr(reference.torch.ops, namespace), last)
    parameters = found.on_arrays._schema_read.parameters
    written = [i for i, p in enumerate(parameters) if p.mutated]
    return Found(found, [(p.name, str(p.type)) for p in parameters], written, found.on_arrays.is_differentiable)


def make_operator(found: Found, path: Path, text: str, name: str) -> Operator:
    """Return a registered operator with its methods, as its file defines them."""
    methods = dict(_iter_methods(ast.parse(text), name))
    functions: dict[str, Callable[..., Any]] = {
        k: _make_function(node, str(path.absolute())) for k, node in methods.items()
    }
    forward = functions.setdefault("forward", lambda: None)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n, _ in found.parameters])  # type: ignore[attr-defined] # of functions
    body = methods.get("forward")
    typed = ast.arguments([], [ast.arg(n, ast.Name(t)) for n, t in found.parameters], None, [], [], None, [])
    typed.defaults = body.args.defaults[-len(found.parameters) :] if body else []
    typed_forward = ast.FunctionDef("forward", typed, body.body if body else [ast.Pass()], [])
    methods["forward"] = ast.fix_missing_locations(typed_forward)
    apply = add_written(found.call, found.written) if found.written else found.call
    argnums = None if found.is_differentiable and not found.written else ()
    return Operator(apply, argnums, **functions, methods=methods)


def make_ported_operator(name: str) -> Operator:
    """Return the operator that a port has defined, by `fnjax.ops`.

    Raises:
        AttributeError: it has not.
    """
    namespace, _, last = name.partition("::")
    found = getattr(getattr(fnjax.ops, namespace), last)
    return Operator(found, None, found)


def _iter_methods(tree: ast.Module, name: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the functions of a file that are an operator's body, and its derivative."""
    nodes = [*ast.walk(tree), *tree.body]  # a function of the top level precedes a method of the same name
    functions = {n.name: n for n in nodes if isinstance(n, ast.FunctionDef)}
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


def _make_function(node: ast.FunctionDef, file: str) -> types.FunctionType:
    """Return a function with the lines and parameters of a definition, of which nothing is executed."""
    args = ast.arguments([], [ast.arg(a.arg) for a in node.args.args], None, [], [], None, [])
    plain = ast.copy_location(ast.FunctionDef(node.name, args, node.body, []), node)
    code = compile(ast.fix_missing_locations(ast.Module([plain], [])), file, "exec", dont_inherit=True)
    return types.FunctionType(next(c for c in code.co_consts if isinstance(c, types.CodeType)), {})
