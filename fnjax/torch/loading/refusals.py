"""NotSupported passes the handlers of loaded files: a silent fallback to other code would be a wrong result."""

from __future__ import annotations

import ast
import builtins
import sys
import types
from typing import Any

from fnjax.torch.deferred.missing import decorator
from fnjax.torch.errors import NotSupported

RUNTIME = "__fnjax_loading__"  # the name of RUN in loaded files

_SWALLOWING = {kind.__name__ for kind in NotSupported.__mro__}
# Builtin exceptions of which NotSupported is none.
_OTHERS = {n for n, v in vars(builtins).items() if isinstance(v, type) and issubclass(v, BaseException)} - _SWALLOWING


def let_refusals_pass(tree: ast.AST) -> None:
    """Change the handlers, `finally` blocks and `__exit__` methods of a tree so that NotSupported passes them."""
    _Refusals().visit(tree)
    ast.fix_missing_locations(tree)


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name(RUNTIME, ast.Load()), name, ast.Load()), list(args), [])


def _may_swallow(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return not all(isinstance(kind, ast.Name) and kind.id in _OTHERS for kind in kinds)


class _Refusals(ast.NodeTransformer):
    def __init__(self) -> None:
        self.functions = 0  # around the node

    def visit_Try(self, node: ast.Try) -> ast.AST:
        self.generic_visit(node)
        _Jumps().visit_block(node.finalbody)
        if any(map(_may_swallow, node.handlers)):
            refusal = ast.Attribute(ast.Name(RUNTIME, ast.Load()), "NotSupported", ast.Load())
            node.handlers.insert(
                0, ast.copy_location(ast.ExceptHandler(refusal, None, [ast.Raise()]), node.handlers[0])
            )
        return node

    def visit_TryStar(self, node: ast.TryStar) -> ast.AST:
        self.generic_visit(node)
        _Jumps().visit_block(node.finalbody)
        for handler in node.handlers:
            handler.body.insert(0, ast.copy_location(ast.Expr(_call("raise_refusal")), handler.body[0]))
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        for method in node.body:
            if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) and method.name in {"__exit__", "__aexit__"}:
                method.body = [_Returns(method.args).visit(s) for s in method.body]
        return self._decorate(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.functions += 1
        self.generic_visit(node)
        self.functions -= 1
        return self._decorate(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self.visit_FunctionDef(node)  # type: ignore[arg-type] # it has the same attributes

    def _decorate(self, node: Any) -> Any:
        if not self.functions:
            node.decorator_list = [
                d if isinstance(d, ast.Name) and d.id in vars(builtins) else ast.copy_location(_call("decorator", d), d)
                for d in node.decorator_list
            ]
        return node


class _Scope(ast.NodeTransformer):
    """Visitor of the statements of one scope: not those of inner functions and classes."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node


class _Returns(_Scope):
    """Rewriter of the returns of an `__exit__`, whose true result swallows the exception."""

    def __init__(self, args: ast.arguments) -> None:
        given = [*args.posonlyargs, *args.args][1:]
        self.error = [given[0]] if given else [args.vararg] if args.vararg else []  # its type, or all arguments

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and not node.value.value):
            error = [ast.Name(arg.arg, ast.Load()) for arg in self.error]
            node.value = ast.copy_location(_call("unless_refusal", node.value, *error), node.value)
        return node


class _Jumps(_Scope):
    """Rewriter of the jumps out of a `finally`, which swallow the exception."""

    def __init__(self) -> None:
        self.loops = 0

    def visit_block(self, body: list[ast.stmt]) -> None:
        body[:] = [s for each in body for s in self._list(self.visit(each))]

    @staticmethod
    def _list(found: Any) -> list[ast.stmt]:
        return found if isinstance(found, list) else [found]

    def _visit_loop(self, node: Any) -> Any:
        self.loops += 1
        self.visit_block(node.body)
        self.loops -= 1
        self.visit_block(node.orelse)
        return node

    def visit_For(self, node: ast.For) -> Any:
        return self._visit_loop(node)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> Any:
        return self._visit_loop(node)

    def visit_While(self, node: ast.While) -> Any:
        return self._visit_loop(node)

    def _check(self, node: ast.stmt) -> list[ast.stmt]:
        return [ast.copy_location(ast.Expr(_call("raise_refusal")), node), node]

    def visit_Return(self, node: ast.Return) -> Any:
        return self._check(node)

    def visit_Break(self, node: ast.Break) -> Any:
        return node if self.loops else self._check(node)

    def visit_Continue(self, node: ast.Continue) -> Any:
        return node if self.loops else self._check(node)


def _find_refusal(error: BaseException | None) -> NotSupported | None:
    if isinstance(error, BaseExceptionGroup):
        return next((found for e in error.exceptions if (found := _find_refusal(e)) is not None), None)
    return error if isinstance(error, NotSupported) else None


def _raise_refusal() -> None:
    """Raise the NotSupported that the calling frame's `finally` or `except*` is handling, if any."""
    refusal = _find_refusal(sys.exception())
    traceback = refusal.__traceback__ if refusal is not None else None
    if refusal is not None and traceback is not None and traceback.tb_frame is sys._getframe(1):
        raise refusal


def _unless_refusal(result: Any, error: Any = None) -> Any:
    """Return the result of an `__exit__`, False where it was called for a NotSupported."""
    kind = error[0] if isinstance(error, tuple) and error else error
    return False if isinstance(kind, type) and issubclass(kind, NotSupported) else result


RUN = types.SimpleNamespace(
    NotSupported=NotSupported,
    decorator=decorator,
    raise_refusal=_raise_refusal,
    unless_refusal=_unless_refusal,
)
