"""Triton kernels of a file: their text stays, and what they store to is read from it."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from typing import Any

import libcst as cst

from fnjax.port.analysis.program import Program
from fnjax.port.source.naming import MAKING, pair_targets
from fnjax.port.torch import unparse
from fnjax.port.tree.located import list_nodes
from fnjax.triton.interpreter.source import Source

WRAPPING = frozenset({"torch.library.wrap_triton", "torch._library.triton.wrap_triton"})


class Kernel(Source):
    """A kernel as its file shows it: `stored` names the parameters that it may write through."""

    def __init__(self, program: Program, node: cst.FunctionDef) -> None:
        self.program, self.name, self.file = program, node.name.value, program.source.filename
        function = ast.parse(unparse(node.with_changes(decorators=[], leading_lines=[]))).body[0]
        assert isinstance(function, ast.FunctionDef)
        self.node = function
        given = function.args
        plain = [a.arg for a in (*given.posonlyargs, *given.args)]
        self.parameters = [*plain, *(a.arg for a in given.kwonlyargs)]
        self.optional = {*plain[len(plain) - len(given.defaults) :], *(a.arg for a in given.kwonlyargs)}

    def lookup(self, name: str) -> Any:
        """Return what a name of the file means: a kernel, a module of the language; nothing else is needed."""
        if name in self.program.kernels:
            return types.SimpleNamespace(source=self.program.kernels[name])
        found = self.program.source.find_definition(name)
        if found is not None and found.imported.startswith("fnjax.triton"):
            return types.ModuleType(found.imported)
        raise NameError(name)


def collect_kernels(program: Program) -> None:
    """Enter the kernels of a file, under each name that they are launched by, and the statements that make them."""
    for name, definitions in program.source.definitions.items():
        for definition in definitions:
            function = definition.function
            if function is not None and any(_makes_kernel(program, d.decorator) for d in function.decorators):
                program.kernels[name] = Kernel(program, function)
                program.kernel_nodes.add(function)
    for name, definitions in program.source.definitions.items():
        inner = _find_wrapped_function(program, definitions[-1].value)
        found = program.source.find_definition(inner) if inner else None
        if found is not None and found.function is not None and name not in program.kernels:
            program.kernels[name] = Kernel(program, found.function)
            program.kernel_nodes.update(n for n in (found.function, definitions[-1].value) if n is not None)
    for cls in program.classes.values():
        for name, function in cls.methods.items():
            if any(_makes_kernel(program, d.decorator) for d in function.decorators):
                program.kernels[f"{cls.name}.{name}"] = Kernel(program, function)
                program.kernel_nodes.add(function)
    if program.kernels:
        program.kernel_uses = set(_iter_kernel_uses(program))


def _iter_kernel_uses(program: Program) -> Iterator[cst.CSTNode]:
    """Yield the expressions that may be kernels: launched, given to a variable or a function, or compared by `is`."""
    tree = program.source.tree
    functions = {n.name.value for n in list_nodes(tree, cst.FunctionDef) if n not in program.kernel_nodes}
    lines = (s for n in list_nodes(tree, cst.ClassDef) for s in n.body.body)
    fields = {s for line in lines if isinstance(line, cst.SimpleStatementLine) for s in line.body}
    for node in list_nodes(tree):
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Subscript):
            yield from _iter_alternatives(program, node.func.value)
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in functions:
            for arg in node.args:
                yield from _iter_alternatives(program, arg.value)
        elif isinstance(node, cst.Assign) and node not in fields:
            for target, value in (p for t in node.targets for p in pair_targets(t.target, node.value)):
                if isinstance(target, cst.Name) and target.value not in program.rebound:
                    yield from _iter_alternatives(program, value)
        elif isinstance(node, cst.Comparison) and all(
            isinstance(c.operator, (cst.Is, cst.IsNot)) for c in node.comparisons
        ):
            yield from (node.left, *(c.comparator for c in node.comparisons))


def _iter_alternatives(program: Program, node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield an expression, and those among which it chooses, or which it wraps."""
    yield node
    if isinstance(node, cst.IfExp):
        yield from _iter_alternatives(program, node.body)
        yield from _iter_alternatives(program, node.orelse)
    elif isinstance(node, cst.Call) and program.resolve_name(node.func) in WRAPPING:
        for arg in node.args:
            yield from _iter_alternatives(program, arg.value)


def _makes_kernel(program: Program, node: cst.BaseExpression) -> bool:
    """Return whether a decorator makes a kernel: `@triton.jit`, `@triton.autotune(configs=..., key=[...])`."""
    while isinstance(node, cst.Call):
        node = node.func
    return program.resolve_name(node) in MAKING


def _find_wrapped_function(program: Program, node: cst.BaseExpression | None) -> str:
    """Return the function of the file in `triton.jit(f)`, `triton.heuristics({...})(f)` and the like."""
    while isinstance(node, cst.Call) and _makes_kernel(program, node.func):
        plain = [a.value for a in node.args if a.keyword is None]
        if len(plain) == 1 and isinstance(plain[0], cst.Name):
            return plain[0].value
        node = plain[0] if len(plain) == 1 else None
    return ""
