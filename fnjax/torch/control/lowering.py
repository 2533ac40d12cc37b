"""Control flow as calls: `if`, `while` and `for` that decide when they run.

Two passes over a function's tree. The first takes the jumps out (return, break, continue, the else of loops): what
follows a statement that may jump is guarded by a flag, or moves into its other branch. The second makes each statement
a call of `if_`, `while_` or `for_` with its blocks as functions of the variables that they write; `and`, `or`, `not`,
conditional expressions and builtins such as `int` become calls as well. The calls go to one object, `RUNTIME`; this
file knows nothing of tensors.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Sequence
from typing import TypeGuard

from fnjax.torch.control.jumps import LoopJumps, Returns, ends, has, has_loop_jump, list_blocks
from fnjax.torch.control.syntax import (
    BUILTINS,
    RUNTIME,
    SCOPES,
    Closure,
    Names,
    assign,
    call,
    list_closures,
    load,
    negate,
    walk,
)

# Methods that change lists, dictionaries and sets.
_CHANGING = frozenset(
    [
        "append",
        "extend",
        "insert",
        "pop",
        "remove",
        "clear",
        "update",
        "setdefault",
        "add",
        "discard",
        "popitem",
        "sort",
        "reverse",
        "appendleft",
        "popleft",
    ]
)


def lower(tree: ast.AST) -> ast.AST:
    """Return the tree with the control flow of all its functions as calls.

    Functions whose decorators speak of Triton stay as they are: their own interpreter reads them.
    """
    return ast.fix_missing_locations(_Functions().visit(tree))


class _Functions(ast.NodeTransformer):
    """Rewriter of function definitions, inner ones first."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if any("triton" in ast.unparse(d) for d in node.decorator_list):
            return node
        self.generic_visit(node)
        if any(isinstance(n, (ast.Yield, ast.YieldFrom, ast.Await)) for n in walk(node.body)):
            return node
        names = Names()
        node.body = _lower_returns(node.body, names)
        outer = {n for s in walk(node.body) if isinstance(s, (ast.Global, ast.Nonlocal)) for n in s.names}
        node.body = _Statements(names, outer, list_closures(node.body)).visit_block(node.body)
        return node


# ------------------------------------------------------------------------------------------- one return


def _lower_returns(body: list[ast.stmt], names: Names) -> list[ast.stmt]:
    """Return a function's body with one return at its end."""
    inner = [s for s in body if not isinstance(s, ast.Return)]
    if not has(inner, ast.Return) or not any(_may_lower(s) for s in body if has([s], ast.Return)):
        return body
    value, flag = names.new("value"), names.new("returned")
    always = ends(body, (ast.Return,)) or _is_endless(body[-1])

    def leave(statement: ast.Return) -> list[ast.stmt]:
        return [assign(value, statement.value or ast.Constant(None)), assign(flag, ast.Constant(True))]

    block = Returns(leave, lambda: load(flag)).lower(body, in_loop=False)
    undefined = ast.Attribute(load(RUNTIME), "UNDEFINED", ast.Load())
    begin = [assign(value, undefined), assign(flag, ast.Constant(False))]
    return [*begin, *block, ast.Return(call("returned", load(value), ast.Constant(True) if always else load(flag)))]


def _is_endless(statement: ast.stmt) -> bool:
    """Return whether a statement is a `while True` that nothing but a return or a raise ends."""
    is_true = (
        isinstance(statement, ast.While) and isinstance(statement.test, ast.Constant) and bool(statement.test.value)
    )
    return is_true and not has_loop_jump(list_blocks(statement)[0], ast.Break)


def _may_lower(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.If, ast.For, ast.While, ast.With, ast.Return))


# ---------------------------------------------------------------------------------- statements as calls


def _is_statement(node: ast.AST) -> TypeGuard[ast.If | ast.While | ast.For]:
    return isinstance(node, (ast.If, ast.While, ast.For))


def _list_written(body: Iterable[ast.AST]) -> list[str]:
    """Return the names that statements bind, in order."""
    found: dict[str, None] = {}
    for node in body:
        for inner in walk([node]):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, (ast.Store, ast.Del)):
                found[inner.id] = None
            elif isinstance(inner, (ast.FunctionDef, ast.ClassDef)):
                found[inner.name] = None
            elif isinstance(inner, (ast.Import, ast.ImportFrom)):
                found |= {(a.asname or a.name).partition(".")[0]: None for a in inner.names}
            elif isinstance(inner, ast.ExceptHandler) and inner.name:
                found[inner.name] = None
    comprehended = {
        n.id
        for node in body
        for inner in walk([node])
        if isinstance(inner, ast.comprehension)
        for n in ast.walk(inner.target)
        if isinstance(n, ast.Name)
    }
    return sorted(n for n in found if n not in comprehended or _is_bound_outside(body, n))


def _is_bound_outside(body: Iterable[ast.AST], name: str) -> bool:
    """Return whether a name is bound by anything but comprehensions."""
    inside = {
        id(n)
        for node in body
        for inner in walk([node])
        if isinstance(inner, ast.comprehension)
        for n in ast.walk(inner.target)
    }
    return any(
        isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) and id(n) not in inside
        for node in body
        for n in walk([node])
    )


class _Statements:
    """Rewriter of `if`, `while` and `for` statements into calls of the runtime.

    Args:
        names: the generator of new names.
        outer: the names that the function declares `global` or `nonlocal`.
        closures: the functions defined in it.
    """

    def __init__(self, names: Names, outer: set[str], closures: Sequence[Closure]) -> None:
        self.names, self.outer, self.closures = names, outer, closures
        self.made: list[set[str]] = []  # for each block around the names of containers that it makes itself

    def visit_block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for statement in body:
            found += self.visit(statement)
        return found

    def visit(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the statements that replace a statement."""
        if isinstance(statement, SCOPES):
            return [statement]
        if _is_statement(statement) and self._may_convert(statement):
            if isinstance(statement, ast.If):
                made = self._convert_if(statement)
            elif isinstance(statement, ast.While):
                made = self._convert_while(statement)
            else:
                made = self._convert_for(statement)
            for each in made:
                ast.copy_location(each, statement)
                for node in ast.walk(each):
                    if not hasattr(node, "lineno") and isinstance(node, (ast.stmt, ast.expr, ast.arg, ast.keyword)):
                        ast.copy_location(node, statement)
            return made
        if isinstance(statement, ast.Delete) and self.made:  # the block's function still returns the variable
            undefined = ast.Attribute(load(RUNTIME), "UNDEFINED", ast.Load())
            names = [t.id for t in statement.targets if isinstance(t, ast.Name)]
            statement.targets = [t for t in statement.targets if not isinstance(t, ast.Name)]
            unset = [ast.copy_location(assign(n, undefined), statement) for n in names]
            return unset + ([statement] if statement.targets else [])
        for name in ("body", "orelse", "finalbody"):
            if getattr(statement, name, None) and isinstance(getattr(statement, name), list):
                setattr(statement, name, self.visit_block(getattr(statement, name)))
        for handler in getattr(statement, "handlers", ()):
            handler.body = self.visit_block(handler.body)
        guards = [ast.copy_location(ast.Expr(call("guard", r)), statement) for r in self._list_changed(statement)]
        return [*guards, _Expressions().visit(statement)]

    def _list_changed(self, statement: ast.stmt) -> list[ast.expr]:
        """Return the objects that a statement changes: `x` of `x.append(1)`, `x[0] = 1` and `x.name = 1`."""
        if not self.made or list_blocks(statement):
            return []
        found: list[ast.expr] = []
        for node in walk([statement]):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
                found.append(node.func.value)
            elif isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
                found.append(node.value)
        plain = [
            f for f in found if all(isinstance(n, (ast.Name, ast.Attribute, ast.expr_context)) for n in ast.walk(f))
        ]
        return [copy.deepcopy(f) for f in plain if not (isinstance(f, ast.Name) and f.id in self.made[-1])]

    def _may_convert(self, statement: ast.stmt) -> bool:
        for node in walk([statement]):
            if isinstance(
                node, (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal, ast.AsyncFor)
            ):
                return False
            if isinstance(node, ast.Name) and node.id in {"super", "locals", "__class__"}:
                return False
        jumps = (ast.Break, ast.Continue)
        if isinstance(statement, ast.While) and any(isinstance(n, ast.NamedExpr) for n in ast.walk(statement.test)):
            return False
        if isinstance(statement, ast.If) and has_loop_jump([statement], jumps):
            return False
        return not self._shares_variables(statement)

    def _shares_variables(self, statement: ast.stmt) -> bool:
        """Return whether a statement writes a variable that a function defined outside of it, and called in it, has.

        As a call, the statement would write a variable of its own.
        """
        inside = {id(n) for n in walk([statement])}
        outside = [c for c in self.closures if id(c.node) not in inside]
        waiting = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        called = list[Closure]()
        while found := [c for c in outside if c.name in waiting and c not in called]:
            called += found
            waiting |= {name for c in found for name in c.captured}
        written = {*_list_written([statement])}
        return any(written & c.captured for c in called)

    def _state(self, body: Iterable[ast.AST]) -> list[str]:
        return [n for n in _list_written(body) if n not in self.outer]

    def _function(self, name: str, args: Sequence[str], body: list[ast.stmt], outer: Sequence[str]) -> ast.stmt:
        scope: list[ast.stmt] = [ast.Global([n]) for n in sorted(self.outer & set(outer))]
        arguments = ast.arguments([], [ast.arg(a) for a in args], None, [], [], None, [])
        return ast.FunctionDef(name, arguments, [*scope, *body], [])

    def _values(self, state: Sequence[str]) -> ast.expr:
        return ast.Tuple([self._read(n) for n in state], ast.Load())

    def _assign(self, state: Sequence[str], call: ast.expr) -> ast.stmt:
        if not state:
            return ast.Expr(call)
        return ast.Assign([ast.Tuple([ast.Name(n, ast.Store()) for n in state], ast.Store())], call)

    def _read(self, name: str) -> ast.expr:
        return call("get", ast.Lambda(ast.arguments([], [], None, [], [], None, []), load(name)))

    def _result(self, state: Sequence[str], body: Sequence[ast.stmt]) -> ast.Return:
        unset = {n.name for n in walk(body) if isinstance(n, ast.ExceptHandler)}  # Python deletes `e` of `except as e`
        return ast.Return(ast.Tuple([self._read(n) if n in unset else load(n) for n in state], ast.Load()))

    def _block(self, name: str, args: Sequence[str], state: Sequence[str], body: Sequence[ast.stmt]) -> ast.stmt:
        written = _list_written(body)
        self.made.append({
            t.id
            for s in body
            if isinstance(s, ast.Assign)
            and isinstance(s.value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.Call))
            for t in s.targets
            if isinstance(t, ast.Name)
        })  # fmt: skip
        result = self._result(state, body)
        made = [*self.visit_block(body), result]
        self.made.pop()
        return self._function(name, args, made, written)

    def _convert_if(self, statement: ast.If) -> list[ast.stmt]:
        state = self._state([*statement.body, *statement.orelse])
        yes, no = self.names.new("if"), self.names.new("else")
        test = _Expressions().visit(statement.test)
        texts = ast.Tuple([ast.Constant(n) for n in state], ast.Load())
        return [
            self._block(yes, state, state, statement.body),
            self._block(no, state, state, statement.orelse or [ast.Pass()]),
            self._assign(state, call("if_", test, load(yes), load(no), self._values(state), texts)),
        ]

    def _loop(self, statement: ast.While | ast.For) -> tuple[list[ast.stmt], list[ast.stmt], str | None]:
        """Return a loop's body without jumps, the statements that initialise its flags, and the flag of break."""
        kinds = {"broken": ast.Break, "skipped": ast.Continue}
        flags = {w: self.names.new(w) if has_loop_jump(statement.body, kind) else "" for w, kind in kinds.items()}
        body = LoopJumps(**flags).lower(statement.body)
        before: list[ast.stmt] = [assign(flag, ast.Constant(False)) for flag in flags.values() if flag]
        if flags["skipped"]:
            body.insert(0, assign(flags["skipped"], ast.Constant(False)))
        return body, before, flags["broken"] or None

    def _finish(self, statement: ast.While | ast.For, flag: str | None) -> list[ast.stmt]:
        """Return the else of a loop, guarded by its flag."""
        if not statement.orelse:
            return []
        if flag is None:
            return self.visit_block(statement.orelse)
        return self.visit(ast.copy_location(ast.If(negate(flag), statement.orelse, []), statement))

    def _convert_while(self, statement: ast.While) -> list[ast.stmt]:
        body, before, flag = self._loop(statement)
        test: ast.expr = statement.test
        if flag is not None:
            test = ast.BoolOp(ast.And(), [negate(flag), test])
        state = self._state([*body, ast.Expr(test)])
        asks, does = self.names.new("test"), self.names.new("while")
        texts = ast.Tuple([ast.Constant(n) for n in state], ast.Load())
        asking = self._function(asks, state, [ast.Return(_Expressions().visit(test))], [])
        return [
            *before,
            asking,
            self._block(does, state, state, body),
            self._assign(state, call("while_", load(asks), load(does), self._values(state), texts)),
            *self._finish(statement, flag),
        ]

    def _convert_for(self, statement: ast.For) -> list[ast.stmt]:
        body, before, flag = self._loop(statement)
        item = self.names.new("item")
        first = ast.Assign([statement.target], load(item))
        state = self._state([first, *body])
        does = self.names.new("for")
        texts = ast.Tuple([ast.Constant(n) for n in state], ast.Load())
        iterable = _Expressions().visit(statement.iter)
        broken = ast.Constant(None) if flag is None else ast.Constant(state.index(flag))
        return [
            *before,
            self._block(does, [item, *state], state, [first, *body]),
            self._assign(state, call("for_", iterable, load(does), self._values(state), texts, broken)),
            *self._finish(statement, flag),
        ]


class _Expressions(ast.NodeTransformer):
    """Rewriter of expressions that need the bool of a value, and of builtins that need numbers, into calls."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node

    def _lazily(self, node: ast.expr) -> ast.Lambda:
        return ast.Lambda(ast.arguments([], [], None, [], [], None, []), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        if any(isinstance(n, (ast.NamedExpr, ast.Await, ast.Yield)) for n in ast.walk(node)):
            return node
        self.generic_visit(node)
        name = "and_" if isinstance(node.op, ast.And) else "or_"
        return ast.copy_location(call(name, *map(self._lazily, node.values)), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        return ast.copy_location(call("not_", node.operand), node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        if any(isinstance(n, (ast.NamedExpr, ast.Await, ast.Yield)) for n in ast.walk(node)):
            return node
        self.generic_visit(node)
        return ast.copy_location(
            call("conditional", node.test, self._lazily(node.body), self._lazily(node.orelse)), node
        )

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) == 1 or any(isinstance(n, ast.NamedExpr) for n in ast.walk(node)):
            return node
        sides = [node.left, *node.comparators]
        parts = [ast.Compare(a, [op], [b]) for a, op, b in zip(sides, node.ops, sides[1:], strict=False)]
        return ast.copy_location(call("and_", *map(self._lazily, parts)), node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load) or not _may_be_traced(node.slice):
            return node
        return ast.copy_location(call("get_entry", node.value, node.slice), node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        target = node.targets[0]
        self.generic_visit(node)
        if len(node.targets) > 1 or not isinstance(target, ast.Subscript) or not _may_be_traced(target.slice):
            return node
        return ast.copy_location(ast.Expr(call("set_entry", target.value, target.slice, node.value)), node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        self.generic_visit(node)
        message = self._lazily(node.msg or ast.Constant(None))
        return ast.copy_location(ast.Expr(call("assert_", node.test, message)), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in BUILTINS:
            return ast.copy_location(
                ast.Call(call("builtin", node.func, ast.Constant(node.func.id)), node.args, node.keywords), node
            )
        return node


def _may_be_traced(index: ast.expr) -> bool:
    """Return whether an index may be a traced integer."""
    if isinstance(index, ast.UnaryOp):
        index = index.operand
    return not isinstance(index, (ast.Constant, ast.Slice, ast.Tuple, ast.List, ast.Starred))
