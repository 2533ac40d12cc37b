"""Functions that make an operator of what they are given, before anything else is looked at.

What: a line that calls such a function becomes what it does, as calls of torch.library's; a function of that name and
form that is imported (serving packages share theirs) has the namespace of its package.
Before: `direct_register_custom_op(op_name="f", op_func=f, mutates_args=["out"], fake_impl=f_fake)`
After: `torch.library.custom_op("ns::f", f, mutates_args=["out"])` and `torch.library.register_fake("ns::f", f_fake)`
Safety: only functions that define and implement by a Library what their arguments name; kernels are JAX's on all
platforms, so that the dispatch key goes.
Limits: a name that is no text, or one of several Libraries that the call does not choose, stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import libcst as cst

from fnjax.port.torch import read_literal, unparse
from fnjax.port.tree.located import Located, Positions, find_small_statement, list_nodes

_SHARED = "direct_register_custom_op"


@dataclass(frozen=True)
class _OperatorMaker:
    """A function that makes operators.

    Attributes:
        params: the names of its parameters, in their order.
        name: that of the operator's name.
        body: of the body.
        mutates: of what it mutates, where it has one.
        fake: of what gives the shapes, where it has one.
        namespace: of the Library that it uses, where its call names no other.
    """

    params: tuple[str, ...]
    name: str
    body: str
    mutates: str
    fake: str
    namespace: str


def expand_registering(tree: cst.Module, positions: Positions) -> cst.Module:
    """Return the module with what such functions do in place of their calls."""
    found: dict[str, _OperatorMaker] = {}
    libraries = {name: space for n in list_nodes(tree, but=(cst.FunctionDef,)) for name, space in _read_library(n)}
    for n in list_nodes(tree):
        if isinstance(n, cst.ImportFrom) and not isinstance(n.names, cst.ImportStar) and n.module and not n.relative:
            for alias in n.names:
                if unparse(alias.name) == _SHARED:
                    bound = unparse(alias.asname.name) if alias.asname else _SHARED
                    params = ("op_name", "op_func", "mutates_args", "fake_impl", "target_lib", "dispatch_key", "tags")
                    found[bound] = _OperatorMaker(params, *params[:4], unparse(n.module).partition(".")[0])
        elif isinstance(n, cst.FunctionDef) and (made := _read_operator_maker(n, libraries)) is not None:
            found[n.name.value] = made
    if not found:
        return tree
    made_tree = tree.visit(_RegistrationExpander(positions, found, libraries))
    assert isinstance(made_tree, cst.Module)
    return made_tree


def _read_library(node: cst.CSTNode) -> list[tuple[str, str]]:
    """Return the name and the namespace of `lib = Library("mine", "FRAGMENT")`."""
    if not isinstance(node, cst.Assign) or not isinstance(node.value, cst.Call) or not node.value.args:
        return []
    space = read_literal(node.value.args[0].value)
    is_library = unparse(node.value.func).rpartition(".")[2] == "Library" and isinstance(space, str)
    return [(unparse(t.target), str(space)) for t in node.targets] if is_library else []


def _read_operator_maker(function: cst.FunctionDef, libraries: dict[str, str]) -> _OperatorMaker | None:
    """Return what a function says of its parameters, if it defines an operator and gives it a body."""
    params = tuple(p.name.value for p in (*function.params.params, *function.params.kwonly_params))
    given: dict[str, list[cst.BaseExpression]] = {}
    mutates = ""
    for n in list_nodes(function.body):
        if isinstance(n, cst.Call):
            method = unparse(n.func).rpartition(".")[2]
            given.setdefault(method, [a.value for a in n.args])
            if method == "infer_schema":
                told = [a.value for a in n.args if a.keyword is None or a.keyword.value == "mutates_args"]
                mutates = unparse(told[-1]) if told and unparse(told[-1]) in params else ""
    define, impl, fake = (given.get(m, []) for m in ("define", "impl", "_register_fake"))
    name = define[0] if define else None
    while isinstance(name, cst.BinaryOperation):
        name = name.left
    if (
        name is None
        or len(impl) < 2
        or unparse(name) != unparse(impl[0])
        or not {unparse(a) for a in impl[:2]} <= set(params)
    ):
        return None
    read = {unparse(n) for n in list_nodes(function.body, cst.Name)} & libraries.keys()
    space = libraries[read.pop()] if len(read) == 1 else ""
    shapes = unparse(fake[1]) if len(fake) > 1 and unparse(fake[1]) in params else ""
    return _OperatorMaker(params, unparse(name), unparse(impl[1]), mutates, shapes, space)


class _RegistrationExpander(Located):
    def __init__(self, positions: Positions, found: dict[str, _OperatorMaker], libraries: dict[str, str]) -> None:
        super().__init__(positions)
        self.found, self.libraries = found, libraries

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        """Return what a function calls is made when that runs."""
        return False

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        """Rewrite the top level."""
        return updated_node.with_changes(body=self._expand_block(original_node, updated_node))

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """Rewrite a block of an `if`."""
        return updated_node.with_changes(body=self._expand_block(original_node, updated_node))

    def _expand_block(self, original: Any, updated: Any) -> list[Any]:
        body: list[Any] = []
        for old, new in zip(original.body, updated.body, strict=True):
            small = find_small_statement(new)
            call = small.value if isinstance(small, cst.Expr) else None
            known = self.found.get(unparse(call.func)) if isinstance(call, cst.Call) else None
            texts = self._write_registrations(known, call) if known is not None and isinstance(call, cst.Call) else []
            lines: list[Any] = [cst.parse_statement(text) for text in texts]
            for i, made in enumerate(lines):
                lines[i] = made.with_changes(leading_lines=new.leading_lines) if i == 0 else made
                self._place_inside(lines[i], self.positions[old])
            body += lines or [new]
        return body

    def _write_registrations(self, known: _OperatorMaker, call: cst.Call) -> list[str]:
        given = {p: a.value for p, a in zip(known.params, call.args, strict=False) if a.keyword is None}
        given |= {a.keyword.value: a.value for a in call.args if a.keyword is not None}
        name, body = read_literal(given.get(known.name, call)), given.get(known.body)
        selected = next(
            (self.libraries[unparse(v)] for v in given.values() if unparse(v) in self.libraries), known.namespace
        )
        if not isinstance(name, str) or body is None or not selected or any(a.star for a in call.args):
            return []
        mutates, fake = (given[k] if k in given else cst.Name("None") for k in (known.mutates, known.fake))
        told = "()" if unparse(mutates) == "None" else unparse(mutates)
        made = [f'torch.library.custom_op("{selected}::{name}", {unparse(body)}, mutates_args={told})']
        return [
            *made,
            *(
                [f'torch.library.register_fake("{selected}::{name}", {unparse(fake)})']
                if unparse(fake) != "None"
                else []
            ),
        ]
