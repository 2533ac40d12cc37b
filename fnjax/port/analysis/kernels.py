"""Triton kernels of a file: their text stays, and what they store to is read from it."""

from __future__ import annotations

import ast
import types
from typing import Any

import libcst as cst

from fnjax.port.analysis.program import Program
from fnjax.port.source.naming import MAKING
from fnjax.port.torch import unparse
from fnjax.triton._source import Source


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
        """What a name of the file means: a kernel, a module of the language; nothing else is needed."""
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


def _makes_kernel(program: Program, node: cst.BaseExpression) -> bool:
    """Whether a decorator makes a kernel: `@triton.jit`, `@triton.autotune(configs=..., key=[...])`."""
    while isinstance(node, cst.Call):
        node = node.func
    return program.resolve_name(node) in MAKING


def _find_wrapped_function(program: Program, node: cst.BaseExpression | None) -> str:
    """The function of the file in `triton.jit(f)`, `triton.heuristics({...})(f)` and the like."""
    while isinstance(node, cst.Call) and _makes_kernel(program, node.func):
        plain = [a.value for a in node.args if a.keyword is None]
        if len(plain) == 1 and isinstance(plain[0], cst.Name):
            return plain[0].value
        node = plain[0] if len(plain) == 1 else None
    return ""
