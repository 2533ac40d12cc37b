"""The abstract interpreter of one function: what each value is, and the code that replaces it.

Statements are evaluated in order. The state says what each variable is, in which memory it is and what shares it;
rules (rewrite/) give each expression its translation and its value at once. A rule may speculate: it evaluates a part
of the function by itself, looks at what was found (`Region`), and commits it or leaves it. Loops are evaluated until
the state no longer changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from operator import is_
from typing import TYPE_CHECKING, Any

import libcst as cst

from fnjax.port.analysis.expr import (
    Diagnostics,
    Expr,
    Selection,
    Statements,
    Stop,
    list_statements,
    make_answer,
    make_assignment,
    make_raise,
    parse,
    parse_line,
)
from fnjax.port.analysis.expressions import ExpressionEvaluator
from fnjax.port.analysis.regions import Region
from fnjax.port.analysis.registry import find_node_rules
from fnjax.port.analysis.variables import Surroundings, read_getattr
from fnjax.port.known.facts import UNKNOWN, MemRef, Value, list_memrefs
from fnjax.port.known.state import State, join_states
from fnjax.port.torch.expressions import find_names
from fnjax.port.tree.located import list_nodes, list_small_statements

if TYPE_CHECKING:
    from fnjax.port.analysis.program import Program, Routine

_ITERATIONS = 8  # of a loop, and two for each variable, until its state must have settled

# A variable that a test narrows, and its value where it holds and where not.
Narrowed = tuple[str, tuple[Value, Value]] | None


class Evaluator(ExpressionEvaluator):
    """Abstract interpreter of one routine, for one evaluation of it."""

    def __init__(self, program: Program, routine: Routine, state: State) -> None:
        super().__init__(program, routine, state, Surroundings())
        self.importing = False  # whether importing the port runs what is evaluated: a statement of a module or a class
        self.kept: dict[str, Value] = {}  # what this routine leaves on ctx
        self.taking_back: set[str] = set()  # variables that a launch restores to their values
        self.substitutes: dict[Hashable, Any] = {}  # nodes that replace one of the source
        self.called: set[str] = set()  # the names of the file that it reads

    def find_selection(self, value: Value) -> Selection | None:
        """Return the selected elements that a value is, if the variables of their mask have not changed since."""
        found = self.masks.get(value.mask)
        known = found is not None and all(self.state.find_version(name) == version for name, version in found.reads)
        return found if known else None

    # ------------------------------------------------------------------------------------------ statements

    def port_body(self, body: cst.BaseSuite) -> cst.BaseSuite:
        """Return the translation of a block."""
        if isinstance(body, cst.SimpleStatementSuite):
            lines: Statements = self.port_line(cst.SimpleStatementLine(body.body), alone=False)
            small = list_small_statements(lines)
            if len(lines) == 1 and len(small) == len(body.body):
                return body if all(map(is_, small, body.body)) else body.with_changes(body=small)
            return cst.IndentedBlock(lines or [parse_line("pass")])
        statements = self.port_block(body.body)  # type: ignore[arg-type] # an indented block
        return body.with_changes(body=statements or [parse_line("pass")])

    def port_block(self, body: Sequence[cst.BaseStatement]) -> Statements:
        """Return the translation of statements that follow each other."""
        result: Statements = []
        for statement in body:
            result += self.port_statement(statement)
            if isinstance(statement, cst.If) and result and _is_return(result[-1]):  # its condition is known
                break
        return result

    def port_statement(self, node: cst.BaseStatement) -> Statements:
        """Return the translation of one statement."""

        def evaluated() -> Statements:
            if isinstance(node, cst.SimpleStatementLine):
                return self.port_line(node)
            return self.keep_comments(node, self._evaluate_statement(node, node))

        return self.evaluate_once(node, evaluated)

    def apply_rules(self, node: cst.BaseStatement | cst.BaseSmallStatement) -> Statements:
        """Return the translation of a statement by the first rule that has one; what none has one for stays."""
        for rule in find_node_rules(type(node), self.program.mentions):
            made: Statements | None = rule(self, node)
            if made is not None:
                return made
        return [cst.SimpleStatementLine([node]) if isinstance(node, cst.BaseSmallStatement) else node]

    def _evaluate_statement(self, node: Any, current: cst.CSTNode) -> Statements:
        """Return the translation of a statement and what it puts in front of itself.

        Args:
            node: the statement.
            current: the statement, or the line on which only it is.
        """
        outer, self.current = self.current, current
        outside, self.before = self.before, []
        self.memo.clear()
        try:
            made = self.apply_rules(node)  # which adds to `before`
            return [*self.before, *made]
        except Stop as e:
            self.report(e.node, e.kind, e.message)
            self.forget_variables(node)
            return self._leave_for_manual_porting(node, e.message)
        finally:
            self.current, self.before = outer, outside
            self.memo.clear()

    def port_line(self, node: cst.SimpleStatementLine, *, alone: bool = True) -> Statements:
        """Return the translation of a line of small statements; with `alone` the line may be kept as it is."""
        made: Statements = []
        for small in node.body:
            # What is read after a statement on this line comes later.
            made += self._evaluate_statement(small, node if alone and len(node.body) == 1 else small)
        parts = list_small_statements(made)
        if len(parts) == len(node.body) and all(map(is_, parts, node.body)):
            return [node]
        if len(made) == 1 and len(node.body) == 1 and isinstance(made[0], cst.SimpleStatementLine):
            only = made[0].body[-1].with_changes(semicolon=node.body[0].semicolon)
            return [node.with_changes(body=[*made[0].body[:-1], only])]
        return self.keep_comments(node, [_drop_semicolon(s) for s in made])

    def _leave_for_manual_porting(self, node: cst.CSTNode, message: str) -> Statements:
        """Return what replaces code that needs manual porting: an error where it runs; None where an import has one."""
        self.diagnostics.left = True
        if self.importing:
            return [parse_line(f"{name} = None") for name in sorted(self.program.list_bound(node))]
        return self.keep_comments(node, [make_raise(message)])

    def keep_comments(self, origin: cst.CSTNode, made: Statements) -> Statements:
        """Return the statements with the comments of what they were made of."""
        if not made:
            return made
        leading = getattr(origin, "leading_lines", ())
        if leading and made[0] is not origin and not getattr(made[0], "leading_lines", ()):
            made[0] = made[0].with_changes(leading_lines=leading)
        trailing = getattr(origin, "trailing_whitespace", None)
        last = made[-1]
        if trailing is not None and trailing.comment and isinstance(last, cst.SimpleStatementLine):
            made[-1] = last.with_changes(trailing_whitespace=trailing)
        return made

    def take_over(self, inner: Evaluator) -> None:
        """Take over what the evaluation of a function or a class inside has found and needs."""
        keys = self.diagnostics.keys
        self.diagnostics.add_diagnostics(inner.diagnostics)
        self.diagnostics.keys = keys
        self.called |= inner.called

    def forget_variables(self, node: cst.CSTNode) -> None:
        """Forget the variables that a node binds which could not be translated."""
        for name in self.program.list_bound(node):
            self.bind_name(name, UNKNOWN, node)

    def name_branch(self, node: cst.CSTNode) -> str:
        """Return the name of a statement or expression that takes one of several branches."""
        return "{}:{}".format(*self.program.source.locate(node))

    def evaluate_branches(
        self, bodies: Sequence[cst.BaseSuite | None], narrowed: Narrowed = None
    ) -> list[cst.BaseSuite | None]:
        """Evaluate blocks of which one will run, each with what its test narrows, and join the states after them."""
        start, branches = self.state.copy(), []
        for i, body in enumerate(bodies):
            if narrowed is not None:
                start.variables[narrowed[0]] = narrowed[1][i]
            with self.enter_branch(body, bodies):
                branches.append(self.evaluate_branch(body, start))
        self.join_branches(branches)
        return [branch.made for branch in branches]

    def evaluate_branch(
        self, body: cst.BaseSuite | None, start: State | None = None, enter: Callable[[], object] = lambda: None
    ) -> Region:
        """Return the speculated evaluation of one of several blocks, which draw from different random keys.

        Args:
            body: the block.
            start: the state before it, if not the present one.
            enter: called first, to bind what the block begins with.
        """
        with self.speculate(start) as found:
            enter()
            if body is not None:
                found.made, found.leaves = self.port_body(body), ends_with_jump(body)
        self.diagnostics.keys = found.diagnostics.keys
        return found

    def join_branches(self, branches: Sequence[Region]) -> None:
        """Continue after all of the branches, with what each has found."""
        for branch in branches:
            self.add_region(branch)
        ends = [branch.end for branch in branches if not branch.leaves]
        if ends:
            self.go_on_with(join_states(ends, self.name_branch(self.current)))

    def find_else_block(self, node: cst.If) -> cst.BaseSuite | None:
        """Return the block that runs where the test does not hold; of an `elif` always the same one."""
        orelse = node.orelse
        if not isinstance(orelse, cst.If):
            return orelse.body if orelse else None
        block: cst.IndentedBlock = self.keep_one(("elif", orelse), lambda: cst.IndentedBlock([orelse]))
        return block

    def keep_one(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return `make()`, called once for each key: so a node made anew in each evaluation is the same node."""
        if key not in self.substitutes:
            self.substitutes[key] = make()
        return self.substitutes[key]

    def enter_branch(
        self, body: cst.BaseSuite | None, bodies: Iterable[cst.BaseSuite | None]
    ) -> contextlib.AbstractContextManager[None]:
        """Enter one of several branches; in a loop the next iteration may take another."""
        others = () if self.here.loops else (b for b in bodies if b is not None and b is not body)
        return self.enter(untaken=(*self.here.untaken, *others))

    def evaluate_loop(self, node: cst.CSTNode, enter: Any, body: cst.BaseSuite) -> Region:
        """Return one iteration of a loop; `enter` binds what each begins with."""
        start = self._settle_loop(node, enter, body)
        any_iteration = self.evaluate_iteration(node, enter, body, start)
        self.add_region(any_iteration)
        self.go_on_with(any_iteration.end.copy_joined(start))
        return any_iteration

    def evaluate_iteration(
        self, node: cst.CSTNode, enter: Any, body: cst.BaseSuite, start: State | None = None
    ) -> Region:
        """Return the speculated evaluation of one iteration of a loop, from the present state or `start`."""
        with self.enter(loops=(*self.here.loops, node)), self.speculate(start) as found:
            enter()
            found.made = self.port_body(body)
        return found

    def _settle_loop(self, node: cst.CSTNode, enter: Any, body: cst.BaseSuite) -> State:
        """Return the state with which any iteration of a loop begins: a fixpoint, reached one by one."""
        start, iterations = self.state.copy(), 0
        while True:
            after = start.copy_joined(self.evaluate_iteration(node, enter, body, start).end)
            if after == start:
                break
            iterations += 1
            if iterations > _ITERATIONS + 2 * len(after.variables):  # the state grows with each iteration
                self._give_up(node, start, after)
                break
            start = _age_memory(start, after)
        return start

    def _give_up(self, node: cst.CSTNode, start: State, after: State) -> None:
        """Report variables of which each iteration of a loop finds something new, and forget what is known."""
        changing = sorted(n for n, v in after.variables.items() if start.variables.get(n) != v)
        message = f"what {', '.join(changing)} may be changes with each iteration of this loop; write it out"
        self.report(node, "unknown", message)
        for name in changing:
            start.variables[name] = replace(UNKNOWN, memref=MemRef.join_all(*list_memrefs(after.variables[name])))


def _age_memory(start: State, after: State) -> State:
    """Return the state that the next iteration begins with: memory of this one is older by then (see `fresh`)."""
    for name, value in after.variables.items():
        memref, before = value.memref, start.variables.get(name, UNKNOWN).memref
        if memref is not None and before is not None:
            older = {f"{s}'" for s in memref.storage - before.storage if s[0].isdigit() and not s.endswith("'")}
            after.variables[name] = replace(value, memref=replace(memref, storage=memref.storage | older))
    return after


def _drop_semicolon(node: cst.BaseStatement) -> cst.BaseStatement:
    """Return a statement that was on one line with others, on its own."""
    if not isinstance(node, cst.SimpleStatementLine) or not isinstance(node.body[-1].semicolon, cst.Semicolon):
        return node
    return node.with_changes(body=[*node.body[:-1], node.body[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])


def ends_with_jump(body: cst.BaseSuite) -> bool:
    """Return whether a block surely ends with return, raise, continue or break."""
    last = body.body[-1] if body.body else None
    if isinstance(last, cst.SimpleStatementLine):
        last = last.body[-1]
    if isinstance(last, cst.If):
        orelse = last.orelse
        if isinstance(orelse, cst.Else):
            return ends_with_jump(last.body) and ends_with_jump(orelse.body)
        return isinstance(orelse, cst.If) and ends_with_jump(last.body) and ends_with_jump(cst.IndentedBlock([orelse]))
    return isinstance(last, (cst.Return, cst.Raise, cst.Continue, cst.Break))


def _is_return(statement: Any) -> bool:
    last = statement.body[-1] if isinstance(statement, cst.SimpleStatementLine) else statement
    return isinstance(last, cst.Return)


def place_at(ev: Evaluator, new: Any, origin: cst.CSTNode) -> Any:
    """Return a node that the porter made, at the location of another."""
    here = ev.program.source.locate(origin)
    for node in list_nodes(new):
        ev.program.source.positions.setdefault(node, here)
    return new


__all__ = [
    "Diagnostics",
    "Evaluator",
    "Expr",
    "Statements",
    "Stop",
    "ends_with_jump",
    "find_names",
    "list_statements",
    "make_answer",
    "make_assignment",
    "make_raise",
    "parse",
    "parse_line",
    "place_at",
    "read_getattr",
]
