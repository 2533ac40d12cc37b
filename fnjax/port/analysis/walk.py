"""The walk through one function: what each value is, and the code that takes its place.

Statements are walked in order. The state says what each variable is, where it lies and what it shares; rules (rewrite/)
give each expression its translation and its value at once. What one region of a function would be is walked apart: a
rule looks at what was found (`Region`) and adopts it, or leaves it. Loops are walked so until the state no
longer changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import libcst as cst

from fnjax.port.analysis.effects import effects_of, one_of
from fnjax.port.analysis.evaluation import Evaluation
from fnjax.port.analysis.registry import statement_rules
from fnjax.port.analysis.terms import (
    Ahead,
    Selection,
    Sink,
    Statements,
    Stop,
    Term,
    answered,
    assign,
    line,
    lines_of,
    parse,
    raising,
)
from fnjax.port.analysis.traces import Made, Region
from fnjax.port.analysis.variables import Around, spelled_attribute
from fnjax.port.known.facts import UNKNOWN, Place, State, Value, merged, places
from fnjax.port.torch.expressions import names
from fnjax.port.tree.located import nodes

if TYPE_CHECKING:
    from fnjax.port.analysis.program import Program, Routine

_ROUNDS = 8  # of a loop, and two for each variable, until its state must have settled

Narrowed = tuple[str, tuple[Value, Value]] | None  # a variable that a test tells of, and what it is then and otherwise


class Walk(Evaluation):
    """One walk through one routine."""

    def __init__(self, program: Program, routine: Routine, state: State) -> None:
        known, perhaps = routine.differentiated, routine.passed
        super().__init__(program, routine, state, Around(known or perhaps, perhaps=perhaps and not known))
        self.importing = False  # whether importing the port runs what is walked: a statement of a module or a class
        self.kept: dict[str, Value] = {}  # what this routine leaves on ctx
        self.taking_back: set[str] = set()  # variables to which a launch gives back what they hold then
        self.standing: dict[Hashable, Any] = {}  # what stands for a node of the source
        self.asking: dict[
            cst.CSTNode, bool
        ] = {}  # whether tests of loops, and of their breaks, ask for tensors' values
        self.begins: dict[cst.CSTNode, dict[str, str]] = {}  # as what the variables of a carried loop begin
        # what was known before a loop, and the state with which each of its rounds begins
        self.settled: dict[object, list[tuple[State, State]]] = {}
        self.called: set[str] = set()  # the names of the file that it reads

    def selection(self, value: Value) -> Selection | None:
        """The selected entries that a value stands for, if the variables of their mask have not changed since."""
        found = self.masks.get(value.mask)
        return found if found is not None and self.reads(found.condition) == found.reads else None

    # ------------------------------------------------------------------------------------------ statements

    def body(self, body: cst.BaseSuite) -> cst.BaseSuite:
        """The translation of a block."""
        if isinstance(body, cst.SimpleStatementSuite):
            lines: Statements = self.simple(cst.SimpleStatementLine(body.body), body)
            self.effects = self.effects.then(effects_of(lines))
            small = [s for stmt in lines if isinstance(stmt, cst.SimpleStatementLine) for s in stmt.body]
            if len(lines) == 1 and len(small) == len(body.body):
                return (
                    body
                    if all(a is b for a, b in zip(small, body.body, strict=True))
                    else body.with_changes(body=small)
                )
            return cst.IndentedBlock(lines or [line("pass")])
        statements = self.block(body.body)  # type: ignore[arg-type] # an indented block
        if not statements:
            statements = [line("pass")]
        return body.with_changes(body=statements)

    def block(self, body: Sequence[cst.BaseStatement]) -> Statements:
        """The translation of statements that follow each other."""
        result: Statements = []
        index = 0
        while index < len(body):
            statement = body[index]
            taken = self._pattern(body, index)
            if taken is not None:
                statements, used = taken
                result += statements
                index += used
                continue
            result += self.statement(statement)
            index += 1
            if isinstance(statement, cst.If) and result and _returned(result[-1]):  # its condition is known
                break
        return result

    def _pattern(self, body: Sequence[cst.BaseStatement], index: int) -> Made:
        """What several statements become at once, and how many they are; None for what is walked one by one."""

        def walked() -> Made:
            try:
                found: Made = self.program.patterns(self, body, index)
            except Stop:  # the statement alone meets it again, and reports it
                return None
            return found

        if isinstance(body[index], cst.SimpleStatementLine):
            return walked()
        return self.once((self.current, *body[index:]), walked)

    def statement(self, node: cst.BaseStatement) -> Statements:
        """The translation of one statement."""
        made = self.once(node, lambda: (self._statement(node), 1))
        return made[0] if made else []

    def _statement(self, node: cst.BaseStatement) -> Statements:
        outer, self.current = self.current, node
        outside, self.before = self.before, Ahead()
        self.memo.clear()
        try:
            if isinstance(node, cst.SimpleStatementLine):
                return self.simple(node, node)
            result: Statements = [node]
            for rule in statement_rules(type(node), self.program.speaks_of):
                made: Statements | None = rule(self, node)
                if made is not None:
                    result = made
                    break
            return self.headed(node, [*self.before, *result])
        except Stop as e:
            self.report(e.node, e.kind, e.message)
            self.forget(node)
            return self._left(node, e.message)
        finally:
            self.current, self.before = outer, outside
            self.memo.clear()

    def simple(self, node: cst.SimpleStatementLine, origin: cst.CSTNode) -> Statements:
        """The translation of a line of small statements."""
        made: Statements = []
        same = True
        outer = self.current
        for small in node.body:
            if len(node.body) > 1 or origin is not node:  # what is read behind it on this line comes later
                self.current = small
            self.before = Ahead()
            self.memo.clear()
            try:
                new = self.small(small)
            except Stop as e:
                self.report(e.node, e.kind, e.message)
                self.forget(small)
                new, self.before = self._left(small, e.message), Ahead()
            new = [*self.before, *new]
            same = (
                same and len(new) == 1 and isinstance(new[0], cst.SimpleStatementLine) and list(new[0].body) == [small]
            )
            made += new
        self.before, self.current = Ahead(), outer
        if same:
            return [node]
        if len(made) == 1 and len(node.body) == 1 and isinstance(made[0], cst.SimpleStatementLine):
            only = made[0].body[-1].with_changes(semicolon=node.body[0].semicolon)
            return [node.with_changes(body=[*made[0].body[:-1], only])]
        return self.headed(node, [_parted(s) for s in made])

    def small(self, node: cst.BaseSmallStatement) -> Statements:
        """The translation of a small statement."""
        for rule in statement_rules(type(node), self.program.speaks_of):
            made: Statements | None = rule(self, node)
            if made is not None:
                return made
        return [cst.SimpleStatementLine([node])]

    def _left(self, node: cst.CSTNode, message: str) -> Statements:
        """What stands in the place of what is left for the hand: an error where it runs; None where an import does."""
        self.sink.left = True
        if self.importing:
            return [line(f"{name} = None") for name in sorted(self.program.bound_in(node))]
        return self.headed(node, [raising(message)])

    def headed(self, origin: cst.CSTNode, made: Statements) -> Statements:
        """The statements with the comments of what they were made of."""
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

    def take(self, inner: Walk) -> None:
        """What the walk of a function or a class inside has found and needs."""
        keys = self.sink.keys
        self.sink.add(inner.sink)
        self.sink.keys = keys
        self.called |= inner.called

    def forget(self, node: cst.CSTNode) -> None:
        """After what could not be translated nothing is known of the variables that it binds."""
        for name in self.program.bound_in(node):
            self.bind(name, UNKNOWN, node)

    def branch(self, node: cst.CSTNode) -> str:
        """The name of a statement or expression that takes one of several ways."""
        return "{}:{}".format(*self.program.source.position(node))

    def branches(self, bodies: Iterable[cst.BaseSuite | None]) -> list[cst.BaseSuite | None]:
        """Walk blocks of which one will run; afterwards only what holds after each of them is known."""
        ways = self.ways(list(bodies))
        self.join(ways)
        return [way.made for way in ways]

    def ways(self, bodies: Sequence[cst.BaseSuite | None], narrowed: Narrowed = None) -> list[Region]:
        """Walk blocks of which one will run, each from the present state, with a variable that the test narrows."""
        start, found = self.state.copy(), []
        for i, body in enumerate(bodies):
            if narrowed is not None:
                start.variables[narrowed[0]] = narrowed[1][i]
            with self.taking(body, bodies):
                found.append(self.way(body, start))
        return found

    def way(
        self, body: cst.BaseSuite | None, start: State | None = None, enter: Callable[[], object] = lambda: None
    ) -> Region:
        """Walk one of several blocks; `enter` binds what it begins with. The next draws other random numbers."""
        with self.apart(start) as found:
            enter()
            if body is not None:
                found.made, found.leaves = self.body(body), leaves(body)
        self.sink.keys = found.sink.keys
        return found

    def join(self, ways: Sequence[Region]) -> None:
        """Go on behind all of the ways, with what each has found."""
        effects = self.effects.then(one_of((way.effects, way.leaves) for way in ways))
        for way in ways:
            self.add(way)
        self.effects = effects
        ends = [way.end for way in ways if not way.leaves]
        if ends:
            self.go_on(merged(ends, self.branch(self.current)))

    def otherwise(self, node: cst.If) -> cst.BaseSuite | None:
        """The block that runs where the test does not hold; of an `elif` always the same one."""
        orelse = node.orelse
        if not isinstance(orelse, cst.If):
            return orelse.body if orelse else None
        block: cst.IndentedBlock = self.always(("elif", orelse), lambda: cst.IndentedBlock([orelse]))
        return block

    def always(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What stands for a node of the source: always the same, so that what was found of it is known again."""
        if key not in self.standing:
            self.standing[key] = make()
        return self.standing[key]

    def taking(
        self, body: cst.BaseSuite | None, bodies: Iterable[cst.BaseSuite | None]
    ) -> contextlib.AbstractContextManager[None]:
        """One of several ways is walked; in a loop the next round may take another."""
        others = () if self.here.loops else (b for b in bodies if b is not None and b is not body)
        return self.inside(untaken=(*self.here.untaken, *others))

    def loop(self, node: cst.CSTNode, enter: Any, body: cst.BaseSuite) -> Region:
        """Walk the block of a loop; `enter` binds what each round begins with. What is given back is one round."""
        start = self.state if self.here.probing else self._settled(node, enter, body)
        any_round = self.round(node, enter, body, start)
        self.add(replace(any_round, effects=any_round.effects.repeated))
        if not self.here.loops:
            self.before += [line(f"{name} = None") for name in sorted(self.unset)]
            self.unset.clear()
        self.go_on(any_round.end.joined(start))
        return any_round

    def round(self, node: cst.CSTNode, enter: Any, body: cst.BaseSuite, start: State | None = None) -> Region:
        """What one round of a loop is found to be, from the present state or another."""
        with self.inside(loops=(*self.here.loops, node)), self.apart(start) as found:
            enter()
            found.made = self.body(body)
        return found

    def probe(self, node: cst.For | cst.While, enter: Any) -> Region:
        """What the first round of a loop is found to be, loops inside of it walked for one round as well."""
        nested = any(isinstance(n, (cst.For, cst.While)) for n in nodes(node.body))
        with self.inside(probing=self.here.probing or nested):
            return self.round(node, enter, node.body)

    def _settled(self, node: cst.CSTNode, enter: Any, body: cst.BaseSuite) -> State:
        """The state with which any round of a loop begins.

        Rounds are walked until they tell nothing new. What an earlier walk through this loop has found is where this
        one begins, if all that was known then is known to be possible now.
        """
        entry = self.state.copy()
        earlier = self.settled.setdefault((node, enter.__code__, self.around()), [])
        start = next((s.copy() for e, s in reversed(earlier) if entry.joined(e) == entry), entry).joined(entry)
        rounds = 0
        while True:
            after = start.joined(self.round(node, enter, body, start).end)
            if after == start:
                break
            rounds += 1
            if rounds > _ROUNDS + 2 * len(after.variables):  # what one round says of the next goes on and on
                self._give_up(node, start, after)
                break
            start = _foreseen(start, after)
        earlier.append((entry, start))
        return start.copy()

    def _give_up(self, node: cst.CSTNode, start: State, after: State) -> None:
        """Nothing is said of what each round of a loop tells something new of; that is a finding."""
        changing = sorted(n for n, v in after.variables.items() if start.variables.get(n) != v)
        message = f"what {', '.join(changing)} may be changes with each round of this loop; write it out"
        self.report(node, "unknown", message)
        for name in changing:
            start.variables[name] = replace(UNKNOWN, place=Place.among(*places(after.variables[name])))


def _foreseen(start: State, after: State) -> State:
    """What the next round begins with: what a variable keeps of this one is older memory by then (see `fresh`)."""
    for name, value in after.variables.items():
        place, before = value.place, start.variables.get(name, UNKNOWN).place
        if place is not None and before is not None:
            older = {f"{s}'" for s in place.storage - before.storage if s[0].isdigit() and not s.endswith("'")}
            after.variables[name] = replace(value, place=replace(place, storage=place.storage | older))
    return after


def _parted(node: cst.BaseStatement) -> cst.BaseStatement:
    """A statement that stood on one line with others, on its own."""
    if not isinstance(node, cst.SimpleStatementLine) or not isinstance(node.body[-1].semicolon, cst.Semicolon):
        return node
    return node.with_changes(body=[*node.body[:-1], node.body[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])


def leaves(body: cst.BaseSuite) -> bool:
    """Whether a block surely ends with return, raise, continue or break."""
    last = body.body[-1] if body.body else None
    if isinstance(last, cst.SimpleStatementLine):
        last = last.body[-1]
    if isinstance(last, cst.If):
        orelse = last.orelse
        if isinstance(orelse, cst.Else):
            return leaves(last.body) and leaves(orelse.body)
        return isinstance(orelse, cst.If) and leaves(last.body) and leaves(cst.IndentedBlock([orelse]))
    return isinstance(last, (cst.Return, cst.Raise, cst.Continue, cst.Break))


def _returned(statement: Any) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[-1], cst.Return)


def placed(walk: Walk, new: Any, origin: cst.CSTNode) -> Any:
    """A node that the porter made, at the place of another."""
    here = walk.program.source.position(origin)
    for node in nodes(new):
        walk.program.source.positions.setdefault(node, here)
    return new


__all__ = [
    "Ahead",
    "Sink",
    "Statements",
    "Stop",
    "Term",
    "Walk",
    "answered",
    "assign",
    "leaves",
    "line",
    "lines_of",
    "names",
    "parse",
    "placed",
    "raising",
    "spelled_attribute",
]
