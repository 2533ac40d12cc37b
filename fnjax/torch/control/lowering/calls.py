"""Expressions as calls of the runtime: `and`, `or`, `not`, conditional expressions, comparisons, builtins, elements.

If an operand is a concrete bool, the expression is Python's own. If it is traced, the operands after it are functions,
which the runtime calls. Expressions that cannot be moved into functions, such as `yield`, are not lowered, and a traced
operand raises there.
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Callable
from typing import Any

from fnjax._torch_ops.syntax.trees import Names, bind, call, compare, delay, load, walk

BUILTINS = frozenset({
    "int", "float", "bool", "range", "isinstance", "max", "min", "any", "all", "sorted", "type", "id", "callable",
    "len", "sum", "list", "next", "iter",
})  # fmt: skip
_LOWERED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_QUESTIONS = {ast.Is: "is_", ast.IsNot: "is_not", ast.In: "in_", ast.NotIn: "not_in"}
_IN_PLACE = {
    ast.Add: "iadd", ast.Sub: "isub", ast.Mult: "imul", ast.Div: "itruediv", ast.FloorDiv: "ifloordiv", ast.Mod: "imod",
    ast.Pow: "ipow", ast.MatMult: "imatmul", ast.BitAnd: "iand", ast.BitOr: "ior", ast.BitXor: "ixor",
    ast.LShift: "ilshift", ast.RShift: "irshift",
}  # fmt: skip
# Builtins that return bools of Python.
_DECIDED = frozenset({"issubclass"})
# Functions that read the frame that calls them.
FRAMES = frozenset({"super", "locals", "vars", "dir", "eval", "exec"})


def may_be_traced(test: ast.expr) -> bool:
    """Return whether a test may be a traced value: not an expression that is always a bool of Python."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return may_be_traced(test.operand)
    if isinstance(test, ast.BoolOp):
        return any(map(may_be_traced, test.values))
    if isinstance(test, ast.Call) and isinstance(test.func, ast.Name):
        return test.func.id not in _DECIDED
    return not isinstance(test, ast.Constant)


def is_range(node: ast.expr) -> bool:
    """Return whether an expression is a range whose bounds may be traced."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "range"
        and not all(isinstance(a, ast.Constant) for a in node.args)
    )


class SelectedName(ast.Name):
    """Name of a list of which a traced condition may select the items."""


def mark_selected(body: list[ast.stmt]) -> None:
    """Mark the names of lists that a comprehension with a condition makes where loops go over them."""
    nodes = [*walk(body)]
    made = [n for n in nodes if isinstance(n, ast.Assign) and may_select(n.value) and not isinstance(n.value, ast.Name)]
    names = {t.id for n in made for t in n.targets if isinstance(t, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Name) and node.iter.id in names:
            node.iter = ast.copy_location(SelectedName(node.iter.id, ast.Load()), node.iter)


def may_select(node: ast.expr) -> bool:
    """Return whether traced conditions may select the items of an iterable, as in a comprehension or a generator."""
    if isinstance(node, ast.ListComp):
        return any(map(may_be_traced, node.generators[-1].ifs))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        is_generator = not hasattr(builtins, name) and not name[0].isupper()  # which is a class
        return is_generator or name == "iter" or (name == "list" and any(map(may_select, node.args)))
    return isinstance(node, SelectedName)


def decide(test: ast.expr) -> ast.expr:
    """Return a call of `to_bool` for a lowered test; the test itself if it is a call that returns a truth."""
    function = test.func if isinstance(test, ast.Call) else None
    is_bool = isinstance(function, ast.Attribute) and function.attr in _QUESTIONS.values()
    return test if is_bool else call("to_bool", test)


class Calls(ast.NodeTransformer):
    """Rewriter of expressions; the originals are not changed.

    Args:
        names: the generator of new names.
        inline: whether concrete operands are evaluated by Python's own expressions, with variables for their values.
        close: returns a closure for an expression that binds variables of the function.
        receiver: the function's first parameter, for `super()` in closures; None to leave `super()` unchanged.
    """

    def __init__(
        self, names: Names, close: Callable[[ast.expr], ast.expr], *, inline: bool, receiver: str | None = None
    ) -> None:
        self.names, self.inline, self.receiver = names, inline, receiver
        self._close: Callable[[ast.expr], ast.expr] | None = close  # None in inner scopes

    def rewrite(self, node: Any) -> Any:
        """Return a copy of a node of the function's own scope."""
        if not self.inline:
            return self.visit(_copy_without_columns(node))
        return node if isinstance(node, _LOWERED) else self.visit(copy.deepcopy(node))

    def visit(self, node: ast.AST) -> Any:
        """Lower a node; inner functions, and methods of classes, are lowered already."""
        return node if isinstance(node, _LOWERED) else super().visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Lower all but the annotation."""
        node.target = self.visit(node.target)
        node.value = self.visit(node.value) if node.value else None
        return node

    def visit_Lambda(self, node: ast.expr) -> ast.expr:
        """Lower a lambda or comprehension, in which no variables of the function can be bound."""
        before = self.inline, self._close
        self.inline, self._close = False, None
        self.generic_visit(node)
        self.inline, self._close = before
        return node

    visit_GeneratorExp = visit_Lambda  # noqa: N815 - a name of ast

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        """Lower a list comprehension, whose condition may be traced."""
        return self._filter(node) or self.visit_Lambda(node)

    def visit_DictComp(self, node: ast.DictComp) -> ast.expr:
        """Lower `{k: v for ... if c}`, whose condition may be traced, to `collect({}, [(k, v) for ... if c])`."""
        pairs = ast.ListComp(ast.Tuple([node.key, node.value], ast.Load()), node.generators)
        return self._collect(node, pairs, ast.Dict([], []))

    def visit_SetComp(self, node: ast.SetComp) -> ast.expr:
        """Lower a set comprehension likewise."""
        empty = ast.Set([ast.Starred(ast.Tuple([], ast.Load()), ast.Load())])
        return self._collect(node, ast.ListComp(node.elt, node.generators), empty)

    def _collect(self, node: ast.expr, items: ast.ListComp, empty: ast.expr) -> ast.expr:
        found = self._filter(ast.copy_location(items, node))
        return self.visit_Lambda(node) if found is None else ast.copy_location(call("collect", empty, found), node)

    def _filter(self, node: ast.ListComp | ast.GeneratorExp, *function: ast.expr) -> ast.expr | None:
        """Lower `[e for v in x if c]` to `filtered([e if t is True else select_item(t, lambda: e) ... for t in (c,)])`.

        Args:
            node: the comprehension.
            function: the builtin that is called with it, if it is a generator.

        Returns:
            The expression; None if its condition cannot be traced, or its item not be moved into a function.
        """
        last = node.generators[-1]
        if (
            last.is_async
            or not any(map(may_be_traced, last.ifs))
            or any(map(_is_bound_to_frame, [node.elt, *last.ifs]))
        ):
            return None
        test = self.names.new("test")
        item = delay(_copy_without_columns(node.elt))
        last.ifs = last.ifs if len(last.ifs) == 1 else [ast.copy_location(ast.BoolOp(ast.And(), last.ifs), node)]
        self.visit_Lambda(node)
        traced = call("select_item", load(test), self.visit_Lambda(item))
        node.elt = ast.IfExp(compare(test, ast.Is(), True), node.elt, traced)
        condition = ast.Tuple([decide(last.ifs.pop())], ast.Load())
        node.generators.append(
            ast.comprehension(ast.Name(test, ast.Store()), condition, [compare(test, ast.IsNot(), False)], 0)
        )
        return ast.copy_location(call("filtered", node, *function), node)

    def _may_delay(self, *nodes: ast.expr) -> bool:
        return not any(_is_bound_to_frame(n, binds=self._close is None) for n in nodes)

    def _delayed(self, node: ast.expr) -> ast.expr:
        """Return a lambda, or a closure, that evaluates an expression; the expression is not lowered yet."""
        if self._close is not None and _is_bound_to_frame(node):
            return self._close(node)
        before, self.inline = self.inline, False
        made = delay(self.visit(_copy_without_columns(node)))
        self.inline = before
        return made

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Lower `a and b`, `a or b`."""
        first, *others = node.values
        if not any(map(may_be_traced, node.values[:-1])) or not self._may_delay(*others):
            return self.generic_visit(node)
        rest = others[0] if len(others) == 1 else ast.copy_location(ast.BoolOp(node.op, others), node)
        is_and = isinstance(node.op, ast.And)
        name = "and_" if is_and else "or_"
        if not may_be_traced(first):
            return ast.copy_location(ast.BoolOp(node.op, [self.visit(first), self.visit(rest)]), node)
        if not self.inline:
            return ast.copy_location(call(name, self.visit(first), self._delayed(rest)), node)
        test, value = self.names.new("test"), self.names.new("value")
        delayed = self._delayed(rest)
        decided = ast.Compare(
            bind(test, call("to_bool", bind(value, self.visit(first)))), [ast.Is()], [ast.Constant(is_and)]
        )
        # The variable does not keep the operand alive: it is None when the rest runs, and after the operand is taken.
        forget = ast.Compare(bind(value, ast.Constant(None)), [ast.Is()], [ast.Constant(None)])
        taken = ast.Subscript(
            ast.Tuple([load(value), bind(value, ast.Constant(None))], ast.Load()), ast.Constant(0), ast.Load()
        )
        made = ast.IfExp(
            ast.BoolOp(ast.And(), [decided, forget]),
            self.visit(rest),
            ast.IfExp(compare(test, ast.Is(), not is_and), taken, call(name, load(value), delayed)),
        )
        return ast.copy_location(made, node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """Lower `a if test else b`."""
        if not may_be_traced(node.test) or not self._may_delay(node.body, node.orelse):
            return self.generic_visit(node)
        yes, no = self._delayed(node.body), self._delayed(node.orelse)
        if not self.inline:
            return ast.copy_location(call("if_", self.visit(node.test), yes, no), node)
        test = self.names.new("test")
        decided = ast.Compare(bind(test, decide(self.visit(node.test))), [ast.Is()], [ast.Constant(True)])
        traced = call("if_", load(test), yes, no)
        made = ast.IfExp(
            decided,
            self.visit(node.body),
            ast.IfExp(compare(test, ast.Is(), False), self.visit(node.orelse), traced),
        )
        return ast.copy_location(made, node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """Lower `not a`."""
        is_lowered = isinstance(node.op, ast.Not) and may_be_traced(node.operand)
        self.generic_visit(node)
        return ast.copy_location(call("not_", node.operand), node) if is_lowered else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Lower `a < b < c` to `a < (x := b) and x < c`, or to `(lambda x, y: and_(x < y, lambda: y < c))(a, b)`."""
        is_bound = not self.inline and any(map(_is_bound_to_frame, node.comparators[1:]))
        if len(node.ops) == 1 or not may_be_traced(node) or is_bound:
            name = _QUESTIONS.get(type(node.ops[0])) if len(node.ops) == 1 else None
            self.generic_visit(node)
            return node if name is None else ast.copy_location(call(name, node.left, node.comparators[0]), node)
        first, second, *rest = [node.left, *node.comparators]
        left, middle = self.names.new("left"), self.names.new("middle")
        end = ast.copy_location(ast.Compare(load(middle), node.ops[1:], rest), node)
        if self.inline:
            begin = ast.copy_location(ast.Compare(first, [node.ops[0]], [bind(middle, second)]), node)
            return self.visit(ast.copy_location(ast.BoolOp(ast.And(), [begin, end]), node))
        begin = ast.Compare(load(left), [node.ops[0]], [load(middle)])
        both = delay(call("and_", begin, self._delayed(end)), left, middle)
        return ast.copy_location(ast.Call(both, [self.visit(first), self.visit(second)], []), node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Lower `a[i]`."""
        is_lowered = isinstance(node.ctx, ast.Load) and _may_be_index(node.slice)
        self.generic_visit(node)
        return ast.copy_location(call("get_entry", node.value, node.slice), node) if is_lowered else node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Lower `a[i] = b`."""
        target = node.targets[0]
        is_lowered = len(node.targets) == 1 and isinstance(target, ast.Subscript) and _may_be_index(target.slice)
        self.generic_visit(node)
        if not is_lowered:
            return node
        assert isinstance(target, ast.Subscript)
        # Python evaluates the value first.
        return ast.copy_location(ast.Expr(call("set_entry", node.value, target.value, target.slice)), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """Lower `a[i] += b`."""
        target = node.target
        if not isinstance(target, ast.Subscript) or not _may_be_index(target.slice) or not self._may_delay(node.value):
            return self.generic_visit(node)
        value = self._delayed(node.value)
        operation = ast.Constant(_IN_PLACE[type(node.op)])
        made = call("update_entry", self.visit(target.value), self.visit(target.slice), operation, value)
        return ast.copy_location(ast.Expr(made), node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """Lower the test of an assertion."""
        if may_be_traced(node.test):
            node.test = ast.copy_location(call("assume", self.visit(node.test)), node.test)
        node.msg = self.visit(node.msg) if node.msg else None
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Lower calls of builtins and of `super`."""
        function, items = node.func, node.args[0] if node.args else None
        is_builtin = isinstance(function, ast.Name) and function.id in BUILTINS
        selected = self._filter(items, function) if is_builtin and isinstance(items, ast.GeneratorExp) else None
        if selected is not None:
            node.args[0] = ast.Constant(None)
        self.generic_visit(node)
        if selected is not None:
            node.args[0] = selected
        if isinstance(function, ast.Name):
            makes_class = function.id == "type" and (len(node.args) != 1 or isinstance(node.args[0], ast.Starred))
            if function.id in BUILTINS and not makes_class:  # `type` reads the caller's module
                node.func = ast.copy_location(call("builtin", function), function)
            elif function.id == "super" and self.receiver and not node.args:
                node.args = [ast.copy_location(load(n), node) for n in ("__class__", self.receiver)]
        elif isinstance(function, ast.Attribute) and function.attr == "sort":
            node.func = ast.copy_location(call("sort", function.value), function)
        return node


def _copy_without_columns(node: Any) -> Any:
    """Return a copy of a syntax tree without column numbers: its code objects then differ from those of the original.

    Of two code objects that are equal, positions included, Python keeps the first, with its qualified name.
    """
    made = copy.deepcopy(node)
    for inner in ast.walk(made):
        if isinstance(inner, (ast.stmt, ast.expr)):
            inner.col_offset = inner.end_col_offset = -1
    return made


def _is_bound_to_frame(node: ast.AST, *, binds: bool = True) -> bool:
    """Return whether an expression cannot be moved into a function: it yields, reads the frame, or binds a name."""
    kinds = (ast.Await, ast.Yield, ast.YieldFrom, *([ast.NamedExpr] if binds else []))
    return any(
        isinstance(n, kinds) or getattr(n, "is_async", False) or (isinstance(n, ast.Name) and n.id in FRAMES)
        for n in ast.walk(node)
    )


def _may_be_index(index: ast.expr) -> bool:
    """Return whether an index may be a traced integer."""
    if isinstance(index, ast.UnaryOp):
        index = index.operand
    return not isinstance(index, (ast.Constant, ast.Slice, ast.Tuple, ast.List, ast.Starred))
