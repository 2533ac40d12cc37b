"""Lowering of functions: their control flow checks at run time whether a test is traced.

A test that is known runs Python's own statement, with its jumps, exceptions and variables: `if test:` becomes

    test = run.to_bool(...)
    if test is True: ...
    elif test is False: ...
    else: traced("branch", test)

Where it is traced, what follows runs as closures over the function's variables, up to the end of the function or of the
loop if it may jump (`closures`). This file knows nothing of tensors.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from fnjax._torch_ops.syntax.jumps import has
from fnjax._torch_ops.syntax.match_statements import write_as_if
from fnjax._torch_ops.syntax.trees import LOOPS, Names, assign, bind, call, compare, delay, list_blocks, load, map_parts
from fnjax.torch.control.lowering.calls import Calls, decide, mark_selected
from fnjax.torch.control.lowering.closures import GIVEN, Block, Closures
from fnjax.torch.control.lowering.scope import (
    UNFLAGGED,
    Loop,
    Scope,
    has_jumps,
    has_traceable,
    is_traceable,
    may_leave,
    reads_frame,
)
from fnjax.torch.control.lowering.yields import YieldItem, split

TRACED = "__fnjax_traced__"
_CLOSURE = "__fnjax_closure__"
Leave = Callable[[], Block]


def lower(tree: ast.AST) -> ast.AST:
    """Return the tree with the control flow of its functions lowered.

    Functions whose decorators name Triton are not lowered: Triton's own interpreter reads them. Nor are those that call
    `locals()`.
    """
    return ast.fix_missing_locations(_Functions().visit(tree))


def is_of_triton(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether the decorators of a function name Triton, whose interpreter reads its source."""
    return any("triton" in ast.unparse(d) for d in node.decorator_list)


class _Functions(ast.NodeTransformer):
    """Rewriter of function definitions, inner ones first."""

    def __init__(self) -> None:
        self._names, self._is_lowered = Names(), False

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        if is_of_triton(node):
            return node
        is_lowered = not reads_frame(node.body)
        self._visit_scope(node, is_lowered=is_lowered)
        if is_lowered:
            mark_selected(node.body)
            node.body = _Statements(Scope(node)).run()
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - a name of ast

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Lower the methods of a class, not its statements."""
        self._visit_scope(node, is_lowered=False)
        return node

    def _visit_scope(self, node: ast.AST, *, is_lowered: bool) -> None:
        before, self._is_lowered = self._is_lowered, is_lowered
        self.generic_visit(node)
        self._is_lowered = before

    def visit_Match(self, node: ast.Match) -> ast.AST | Block:
        """Write a match statement as an `if`, where it only compares values."""
        self.generic_visit(node)
        return (write_as_if(node, self._names) if self._is_lowered else None) or node


class _Statements:
    """Rewriter of the statements of a function where they are Python's own."""

    def __init__(self, scope: Scope) -> None:
        self.scope, self.closures = scope, Closures(scope)
        self._calls = Calls(scope.names, lambda node: delay(self._call(self.closures.operand(node))), inline=True)

    def run(self) -> Block:
        """Return the function's new body."""
        scope, body = self.scope, self.scope.node.body
        at = 1 if ast.get_docstring(scope.node, clean=False) is not None else 0
        made = self._block(body[at:], None, self._return)
        if not self.closures.functions:
            return [*body[:at], *made]
        names: list[ast.expr | None] = [ast.Constant(f.name) for f in self.closures.functions]
        chosen = ast.Subscript(
            ast.Dict(names, [load(f.name) for f in self.closures.functions]), load(_CLOSURE), ast.Load()
        )
        call_it = ast.Return(ast.Call(chosen, [ast.Starred(load(GIVEN), ast.Load())], []))
        arguments = ast.arguments([], [ast.arg(_CLOSURE)], ast.arg(GIVEN), [], [], None, [])
        flags = [scope.value, *(f for loop in scope.loops.values() for f in loop.flags)]
        begin: Block = [  # makes them the function's own variables, without values
            ast.AnnAssign(ast.Name(f, ast.Store()), ast.Constant(None), None, 1) for f in flags
        ]
        begin += [
            ast.FunctionDef(TRACED, arguments, [*self.closures.functions, call_it], []),
            assign(scope.returned, ast.Constant(False)),
        ]
        return [*body[:at], *(ast.copy_location(s, body[0]) for s in begin), *made]

    def _return(self) -> Block:
        ended = ast.Constant(True) if self.scope.always_returns else load(self.scope.returned)
        return [ast.Return(call("returned", delay(ast.Tuple([load(self.scope.value)], ast.Load())), ended))]

    def _block(self, body: Sequence[ast.stmt], loop: Loop | None, leave: Leave | None = None) -> Block:
        """Return the statements of a block.

        Args:
            body: the block.
            loop: the loop around it.
            leave: makes the statements that leave the block after closures have run the rest of it. None if the
                statements after the block check the flags instead.
        """
        found: Block = []
        for i, node in enumerate(body):
            rest = body[i + 1 :]
            made, known = self._statement(node, rest, loop, leave)
            found += [ast.copy_location(s, node) for s in made]
            # The rest of a block whose own `if` is traced has run.
            jumped = self._jumped([*node.body, *node.orelse] if isinstance(node, ast.If) else [node], loop)
            if leave is None and rest and (known or jumped):
                following = self._block(rest, loop)
                if jumped is not None:
                    following = [ast.If(jumped, self._run(self.closures.rest(rest, loop)), following)]
                if known is not None:
                    following = [ast.If(known, following, [])]
                return [*found, *(ast.copy_location(s, node) for s in following)]
            if leave is not None and jumped is not None:
                after = self._run(self.closures.rest(rest, loop)) if rest else []
                found.append(ast.copy_location(ast.If(jumped, [*after, *leave()], []), node))
        return found

    def _run(self, closure: str, *args: ast.expr) -> Block:
        return [ast.Expr(self._call(closure, *args))]

    def _call(self, closure: str, *args: ast.expr) -> ast.Call:
        return ast.Call(load(TRACED), [ast.Constant(closure), *args], [])

    def _jumped(self, body: Sequence[ast.stmt], loop: Loop | None) -> ast.expr | None:
        """Return the expression that is true if a jump out of statements was, or may have been, taken in closures.

        None if no jump can be taken there.
        """
        if not any(may_leave(s, loop) for s in body) or not has_traceable(body):
            return None
        asked: list[ast.expr] = [compare(f, ast.IsNot(), False) for f in self.scope.list_flags(loop)]
        return asked[0] if len(asked) == 1 else ast.BoolOp(ast.Or(), asked) if asked else None

    def _statement(
        self, node: ast.stmt, rest: Sequence[ast.stmt], loop: Loop | None, leave: Leave | None
    ) -> tuple[Block, ast.expr | None]:
        """Return the lowered form of a statement, and the condition that no closure has run the rest of the block."""
        if isinstance(node, ast.If):
            return self._if(node, rest, loop, leave)
        if isinstance(node, LOOPS):
            return self._loop(node, loop), None
        if isinstance(node, YieldItem):
            return node.lower(), None
        if not list_blocks(node):
            return [self._calls.rewrite(node)], None
        made = map_parts(node, lambda body: self._block(body, loop), self._calls.rewrite)
        if isinstance(made, (ast.Try, ast.TryStar)) and isinstance(node, (ast.Try, ast.TryStar)) and node.orelse:
            jumped = self._jumped(node.body, loop)
            if jumped is not None:
                made.orelse = [ast.If(jumped, self._run(self.closures.rest(node.orelse, loop)), made.orelse)]
        return [made], None

    def _if(
        self, node: ast.If, rest: Sequence[ast.stmt], loop: Loop | None, leave: Leave | None
    ) -> tuple[Block, ast.expr | None]:
        is_closable = self.scope.is_closable(node, loop)
        if is_traceable(node) and not is_closable and has([node], ast.Yield):
            pieces = split(node, self.scope.names)
            if pieces != [node]:
                return self._block(pieces, loop, leave), None
        yes, no = self._block(node.body, loop), self._block(node.orelse, loop)
        test = self._calls.rewrite(node.test)
        if not is_traceable(node) or not is_closable:
            return [ast.If(test, yes, no)], None
        name = self.scope.names.new("test")
        leaves = may_leave(node, loop)
        traced = self._run(self.closures.branch(node, rest, loop), load(name))
        traced += leave() if leaves and leave is not None else []
        no = [ast.If(compare(name, ast.Is(), False), no or [ast.Pass()], traced)]
        made: Block = [assign(name, decide(test)), ast.If(compare(name, ast.Is(), True), yes, no)]
        if not leaves or leave is not None:
            return made, None
        return made, ast.BoolOp(ast.Or(), [compare(name, ast.Is(), known) for known in (True, False)])

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, outer: Loop | None) -> Block:
        is_closable = self.scope.is_closable(node, outer)
        is_asked = is_closable and is_traceable(node)
        is_flagged = is_closable and has_traceable(node.body) and has_jumps(node)
        if isinstance(node, ast.AsyncFor) or not (is_asked or is_flagged):
            made = map_parts(
                node, lambda body: self._block(body, outer if body is node.orelse else UNFLAGGED), self._calls.rewrite
            )
            return [made]
        loop = self.scope.enter(node, outer)
        name = self.scope.names.new("items" if isinstance(node, ast.For) else "test")

        def go_on(given: ast.expr) -> Block:
            return self._run(self.closures.loop(node, outer), given)

        def leave() -> Block:
            again: Block = [ast.Continue()]
            if not loop.broken:
                return again
            given = load(name) if isinstance(node, ast.For) else ast.Constant(None)
            return [ast.If(compare(loop.broken, ast.Is(), False), again, []), *go_on(given), ast.Break()]

        begin: Block = [assign(loop.broken, ast.Constant(False))] if loop.broken else []
        body: Block = [assign(loop.skipped, ast.Constant(False))] if loop.skipped else []
        body += self._block(node.body, loop if is_flagged else UNFLAGGED, leave)
        ending = self._block(node.orelse, outer)
        if isinstance(node, ast.For):
            items: ast.expr = load(name)
            if is_asked:  # a traced range has no items here
                asked = call("is_traced_iterable", load(name))
                items = ast.IfExp(asked, ast.Tuple([], ast.Load()), items)
                ending = [ast.If(asked, go_on(load(name)), ending)]
            made = ast.For(self._calls.rewrite(node.target), items, body, ending)
            begin.append(assign(name, call("iterate", self._calls.rewrite(node.iter))))
            return [*begin, made, assign(name, ast.Constant(None))]
        test = self._calls.rewrite(node.test)
        if is_asked:
            test = ast.Compare(bind(name, call("to_bool", test)), [ast.Is()], [ast.Constant(True)])
            ending = [ast.If(compare(name, ast.IsNot(), False), go_on(load(name)), ending)]
        return [*begin, ast.While(test, body, ending)]
