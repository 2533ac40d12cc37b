"""Blocks of a function as closures over its variables, which run if a test or the end of a loop is traced.

Jumps are flags there: variables of the function, which may be traced. The statements after one that may jump are a
closure of their own, guarded by the flags, or called at the end of the branch that does not jump.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from fnjax._torch_ops.syntax.jumps import ends
from fnjax._torch_ops.syntax.trees import (
    LOOPS,
    assign,
    call,
    delay,
    list_blocks,
    list_written,
    load,
    map_parts,
)
from fnjax.torch.control.lowering.calls import Calls
from fnjax.torch.control.lowering.scope import Loop, Scope, has_jumps, has_traceable, is_traceable, may_leave

Block = list[ast.stmt]
GIVEN = "__fnjax_given__"  # the argument of a closure: no variable of the source has this name


class Closures:
    """The closures of a function; each is made at its first use.

    Args:
        scope: the function.

    Attributes:
        functions: their definitions.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope, self.functions = scope, list[ast.FunctionDef]()
        parameters = [*scope.node.args.posonlyargs, *scope.node.args.args]
        self._calls = Calls(
            scope.names,
            lambda node: load(self.operand(node)),
            inline=False,
            receiver=parameters[0].arg if parameters else None,
        )
        self._known: dict[tuple[str, ast.AST], str] = {}
        self._written: dict[str, set[str]] = {}  # by each closure, and those that it calls

    # ------------------------------------------------------------------------------------------ closures

    def branch(self, node: ast.If, rest: Sequence[ast.stmt], loop: Loop | None) -> str:
        """Return the closure of an `if`, and of the following statements if it may jump; its argument is the test."""

        def make() -> Block:
            kinds = (ast.Return,) if loop is None else (ast.Return, ast.Break, ast.Continue)
            after = rest if may_leave(node, loop) else []
            yes_ends, no_ends = ends(node.body, kinds), ends(node.orelse, kinds)
            yes = self._block("yes", node.body, loop, after if no_ends and not yes_ends else ())
            no = self._block("no", node.orelse, loop, after if yes_ends and not no_ends else ())
            return [self._if(load(GIVEN), yes, no), *([] if yes_ends or no_ends else self._guard(after, loop))]

        return self._define("branch", node, make, GIVEN)

    def rest(self, body: Sequence[ast.stmt], loop: Loop | None) -> str:
        """Return the closure of the statements that follow one that may have jumped."""
        return self._define("after", body[0], lambda: self._guard(body, loop))

    def operand(self, node: ast.expr) -> str:
        """Return the closure of an expression that binds variables, as `b` in `a and (b := c)`."""
        return self._define("operand", node, lambda: [ast.Return(self._calls.rewrite(node))])

    def loop(self, node: ast.For | ast.While, outer: Loop | None) -> str:
        """Return the closure of a loop and its `else`.

        Its argument is the remaining items of a for loop; for a while loop the first test, None if not yet evaluated.
        """
        loop = self.scope.enter(node, outer)

        def make_body() -> Block:
            begin: Block = [assign(loop.skipped, ast.Constant(False))] if loop.skipped else []
            if isinstance(node, ast.For):
                begin.insert(0, self._calls.rewrite(ast.Assign([node.target], load(GIVEN))))
            return [*begin, *self.block(node.body, loop)]

        def make() -> Block:
            body = self._define("body", node, make_body, *([GIVEN] if isinstance(node, ast.For) else []))
            ended = delay(load(loop.broken)) if loop.broken else ast.Constant(None)
            if isinstance(node, ast.For):
                run = call("for_", load(GIVEN), load(body), self._state(body), ended)
            else:
                test = self._define("test", node, lambda: [ast.Return(self._calls.rewrite(node.test))])
                run = call("while_", load(GIVEN), load(test), load(body), self._state(test, body), ended)
            return [ast.Expr(run), *self._guard(node.orelse, outer, [loop.broken] if loop.broken else [])]

        return self._define("loop", node, make, GIVEN)

    def _guard(self, body: Sequence[ast.stmt], loop: Loop | None, flags: list[str] | None = None) -> Block:
        """Return the statement that runs a block if no jump was taken: if no flag, by default the loop's, is set."""
        block = self._block("rest", body, loop)
        asked: list[ast.expr] = [load(f) for f in (self.scope.list_flags(loop) if flags is None else flags)]
        if block is None or not asked:
            return self._call(block)
        return [self._if(asked[0] if len(asked) == 1 else call("or_", asked[0], delay(asked[1])), None, block)]

    def _call(self, closure: str | None, *args: ast.expr) -> Block:
        return [ast.Expr(ast.Call(load(closure), [*args], []))] if closure else []

    def _if(self, test: ast.expr, yes: str | None, no: str | None) -> ast.stmt:
        nothing = delay(ast.Constant(None))
        both = [load(f) if f else nothing for f in (yes, no)]
        return ast.Expr(call("if_", test, *both))

    def _state(self, *functions: str) -> ast.expr:
        """Return a function that closes over the variables that closures write; only its cells are read."""
        written = sorted(set[str]().union(*(self._written[f] for f in functions)))
        return delay(ast.Tuple([load(n) for n in written], ast.Load()))

    def _block(
        self, kind: str, body: Sequence[ast.stmt], loop: Loop | None, rest: Sequence[ast.stmt] = ()
    ) -> str | None:
        """Return the closure of a block and of the statements that follow it; None if both are empty."""
        after = self._block("rest", rest, loop) if rest else None
        if not body:
            return after
        leaves = any(may_leave(s, loop) for s in body)

        def make() -> Block:
            return [*self.block(body, loop), *(self._guard(rest, loop) if leaves else self._call(after))]

        return self._define(kind, body[0], make)

    def _define(self, kind: str, node: ast.AST, make: Callable[[], Block], *args: str) -> str:
        """Return the name of a closure; it is made once for each kind and node."""
        key = kind, node
        if key not in self._known:
            name = self._known[key] = self.scope.names.new(kind)
            body = make()
            written = list_written(body) - {*args}
            inner = {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name)} & self._written.keys()
            self._written[name] = written.union(*(self._written[n] for n in inner))
            own = written - self.scope.globals
            outer: Block = [ast.Nonlocal(sorted(own))] if own else []
            outer += [ast.Global(sorted(written - own))] if written - own else []
            made = ast.FunctionDef(
                name,
                ast.arguments([], [ast.arg(a) for a in args], None, [], [], None, []),
                [*outer, *body] or [ast.Pass()],
                [],
            )
            self.functions.append(ast.copy_location(made, node))
        return self._known[key]

    # ---------------------------------------------------------------------------------------- statements

    def block(self, body: Sequence[ast.stmt], loop: Loop | None) -> Block:
        """Return a block in which jumps set flags, and in which traceable statements are calls of the runtime."""
        found: Block = []
        for i, statement in enumerate(body):
            made, ends_here = self._statement(statement, body[i + 1 :], loop)
            found += [ast.copy_location(s, statement) for s in made]
            if ends_here:
                break
        return found

    def _statement(self, node: ast.stmt, rest: Sequence[ast.stmt], loop: Loop | None) -> tuple[Block, bool]:
        """Return the lowered form of a statement, and whether it ends the block (includes what follows, or jumps)."""
        if isinstance(node, ast.Return):
            flags = [self.scope.returned]
            around = loop
            while around is not None:
                flags.append(around.broken)
                around = around.outer
            value = self._calls.rewrite(node.value) if node.value else ast.Constant(None)
            return [assign(self.scope.value, value), *(assign(f, ast.Constant(True)) for f in flags)], True
        if isinstance(node, (ast.Break, ast.Continue)) and loop is not None:
            flag = loop.broken if isinstance(node, ast.Break) else loop.skipped
            return [assign(flag, ast.Constant(True))], True
        leaves = may_leave(node, loop)
        if isinstance(node, ast.If) and is_traceable(node):
            test = self._calls.rewrite(node.test)
            return self._call(self.branch(node, rest, loop), test), leaves
        after = self._guard(rest, loop) if leaves else []
        if isinstance(node, (ast.For, ast.While)) and _needs_closure(node, leaves):
            flag = self.scope.enter(node, loop).broken
            begin: Block = [assign(flag, ast.Constant(False))] if flag else []
            given: ast.expr = ast.Constant(None)
            if isinstance(node, ast.For):
                given = call("iterate", self._calls.rewrite(node.iter))
            return [*begin, *self._call(self.loop(node, loop), given), *after], leaves
        return [*self._plain(node, loop), *after], leaves

    def _plain(self, node: ast.stmt, loop: Loop | None) -> Block:
        if isinstance(node, (ast.Global, ast.Nonlocal, ast.Pass)):
            return []
        if isinstance(node, ast.AnnAssign):  # Python has no annotations of variables of other functions
            if node.value is None:
                return []
            node = ast.copy_location(ast.Assign([node.target], node.value), node)
        if not list_blocks(node):
            return [self._calls.rewrite(node)]
        inner = None if isinstance(node, LOOPS) else loop  # of a loop that is left as it is, so are its jumps
        made = map_parts(node, lambda body: self.block(body, inner), self._calls.rewrite)
        if isinstance(node, (ast.Try, ast.TryStar)) and any(may_leave(s, loop) for s in node.body):
            made.orelse = self._guard(node.orelse, loop)
        return [made]


def _needs_closure(node: ast.For | ast.While, leaves: bool) -> bool:
    return leaves or is_traceable(node) or (has_traceable(node.body) and has_jumps(node))
