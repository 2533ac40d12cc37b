"""Execution of a file's top level, statement by statement: one that fails leaves stand-ins with the reason."""

from __future__ import annotations
import __future__

import ast
import builtins
import logging
import sys
import types
from collections.abc import Sequence
from typing import Any

from fnjax._torch_ops.syntax.trees import ARRAYS, RUNTIME, list_written, walk
from fnjax.torch._autograd.function.ctx import FunctionCtx, list_sometimes
from fnjax.torch.control import runtime
from fnjax.torch.control.lowering.lowering import lower
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.either import Either, find_choice
from fnjax.torch.deferred.missing import Missing, loading
from fnjax.torch.deferred.number import Number
from fnjax.torch.deferred.selection import Selection
from fnjax.torch.errors import NotSupported
from fnjax.torch.loading import array_arguments, refusals, sys_modules
from fnjax.torch.loading.changes import list_changed
from fnjax.torch.loading.imports import make_import
from fnjax.torch.loading.roots import Root
from fnjax.torch.loading.torch_modules import LibraryModule
from fnjax.torch.memory.root_settings import NAME
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.recording.raises import HANDLERS, list_handlers

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_UNCHANGING = (Missing, logging.Logger, str, bytes, int, float, complex, tuple, frozenset, *_FUNCTIONS)
_CATCHING = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


def run(tree: ast.Module, space: dict[str, Any], root: Root) -> None:
    """Run the statements of a file.

    Where one fails, the names that it binds and the objects that it would have changed become stand-ins.

    Args:
        tree: the syntax tree of the file.
        space: the module's global names.
        root: the root of the file.

    Raises:
        SyntaxError: a file that the file imports is not Python source.
        ImportError: the file imports a name from a module that is not executed completely yet.
        NotSupported: the file replaces a method of torch.Tensor.
    """
    handlers = list_handlers(tree)
    sys_modules.rewrite(tree)
    refusals.let_refusals_pass(tree)
    lower(tree)
    arrays = {ARRAYS: array_arguments} if array_arguments.convert_arguments(tree) else {}
    file = space["__file__"]
    statements = [n for n in ast.walk(tree) if isinstance(n, ast.stmt)]
    tries = [(s.lineno, s.end_lineno or 0) for s in statements if _catches_imports(s)]
    own = {"__import__": make_import(root, file, tries), "hasattr": _hasattr, "getattr": _getattr}
    space["__builtins__"] = {**vars(builtins), **own, **arrays}
    space[RUNTIME], space[refusals.RUNTIME] = runtime, refusals.RUN
    space[HANDLERS] = handlers
    space[sys_modules.NAME], space[NAME] = root.sys_modules.of, root.settings
    if sys.version_info < (3, 14) and any(isinstance(n, ast.AnnAssign) for n in walk(tree.body)):
        space.setdefault("__annotations__", {})  # before the first statement, as for a whole module
    top_level = _TopLevel(tree, space, root)
    with loading():
        top_level.run(tree.body)


def _hasattr(*args: Any, **kwargs: Any) -> Any:
    """Return `hasattr(value, name)`; for a module of torch or Triton, whether fnjax has the name."""
    if len(args) == 2 and not kwargs:
        args = find_choice(args[0]), args[1]
    kind = type(args[0]) if len(args) == 2 and not kwargs else object
    if kind is Either:
        return args[0].map(lambda x: _hasattr(x, args[1]), "hasattr()")
    if kind is Number:
        return args[0].ask(lambda k: hasattr(k, args[1]))
    if kind is Selection:
        return hasattr(Tensor, args[1])
    if issubclass(kind, Deferred):
        raise args[0].refuse("hasattr()")
    _check_set(args)
    return args[0].has(args[1]) if issubclass(kind, LibraryModule) else hasattr(*args, **kwargs)


def _getattr(*args: Any, **kwargs: Any) -> Any:
    """Return `getattr(value, name, *default)`; the default for a name of torch or Triton that fnjax does not have."""
    if len(args) == 3 and issubclass(type(args[0]), LibraryModule) and not args[0].has(args[1]):
        return args[2]
    if len(args) > 1 and type(args[1]) is Either:
        return args[1].map(lambda name: _getattr(args[0], name, *args[2:]), "getattr()")
    if len(args) > 1 and type(args[0]) is Either:
        return args[0].map(lambda x: getattr(x, *args[1:]), "getattr()")
    if len(args) == 3:
        _check_set(args)
    return getattr(*args, **kwargs)


def _check_set(args: Sequence[Any]) -> None:
    if args and isinstance(args[0], FunctionCtx) and args[1] in list_sometimes(args[0]):
        raise NotSupported(f"whether ctx.{args[1]} is set, which one of two traced branches does", "set it in both")


def _catches_imports(node: ast.stmt) -> bool:
    """Return whether a statement, a `try` or `with suppress(...)`, catches ImportError."""
    if isinstance(node, ast.Try):
        kinds: list[ast.AST | None] = [h.type for h in node.handlers]
    elif isinstance(node, ast.With):
        calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
        kinds = [a for c in calls if ast.unparse(c.func) in {"suppress", "contextlib.suppress"} for a in c.args]
    else:
        return False
    names = {n.id for kind in kinds if kind is not None for n in ast.walk(kind) if isinstance(n, ast.Name)}
    return None in kinds or bool(names & _CATCHING)


class _TopLevel:
    """Statements of a file's top level."""

    def __init__(self, tree: ast.Module, space: dict[str, Any], root: Root) -> None:
        self.space, self.root = space, root
        self.functions = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        futures = [s for s in tree.body if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
        features = {alias.name for statement in futures for alias in statement.names}
        self.flags = sum(getattr(__future__, name).compiler_flag for name in features)
        self.docstring = tree.body[0] if tree.body else None

    def run(self, statements: Sequence[ast.stmt]) -> None:
        """Run statements one by one, of an `if` those of the branch that is taken."""
        for statement in statements:
            is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if is_constant and statement is not self.docstring:  # compiled alone, a string becomes the docstring
                continue
            try:
                if isinstance(statement, ast.If):
                    taken = statement.body if self._evaluate(statement.test) else statement.orelse
                else:
                    self._execute(statement)
                    continue
            except Exception as e:
                if self.root.is_faulty(e):
                    raise
                self._fail(statement, e)
                continue
            self.run(taken)

    def _compile(self, tree: Any, mode: str) -> types.CodeType:
        return compile(tree, self.space["__file__"], mode, self.flags, dont_inherit=True)

    def _evaluate(self, test: ast.expr) -> bool:
        return bool(eval(self._compile(ast.Expression(test), "eval"), self.space))

    def _execute(self, statement: ast.stmt) -> None:
        code = self._compile(ast.Module([statement], []), "exec")
        if isinstance(statement, ast.Try) and statement.handlers:
            with loading(feature_test=True):
                exec(code, self.space)
        else:
            exec(code, self.space)

    def _fail(self, statement: ast.stmt, error: Exception) -> None:
        """Replace the objects that a failed statement would have bound or changed by stand-ins."""
        for name in list_written([statement]):
            self.space[name] = Missing(name, error)
        for path, bound in list_changed([statement], self.functions, set()):
            self._poison(path, error, bound=bound)

    def _poison(self, path: Sequence[str], error: Exception, *, bound: bool) -> None:
        """Replace an object, which may be partly changed, by a stand-in.

        Args:
            path: the names that lead to the object, `("module", "TABLE", "update")`: it is the first that is not a
                module.
            error: the reason.
            bound: whether the statement assigns to it, or to an attribute or item of it.
        """
        place, last = self.space, len(path) - 1
        for i, name in enumerate(path):
            value = place.get(name)
            if i < last and isinstance(value, types.ModuleType):
                if not isinstance(value, LibraryModule) and not value.__name__.startswith(self.root.name):
                    return
                place = vars(value)
                continue
            if not bound and not self._may_change(value):
                return
            stand_in = Missing(".".join(path[: i + 1]), error)
            place[name] = stand_in
            for module in self.root.list_modules() if self._may_change(value) else ():
                vars(module).update({n: stand_in for n, v in vars(module).items() if v is value})
            if isinstance(value, Tensor):
                value.memory.value = stand_in  # type: ignore[assignment] # views and containers have it, too
            return

    def _may_change(self, value: Any) -> bool:
        if isinstance(value, type):
            return value.__module__.startswith(self.root.name)
        return value is not None and not isinstance(value, (*_UNCHANGING, types.ModuleType))
