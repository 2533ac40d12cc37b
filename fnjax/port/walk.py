"""The walk through one function: what each value is, and the code that takes its place.

Statements are walked in order. The state says what each variable is, where it lies and what it shares; rules (rules/)
give each expression its translation and its value at once. Loops are walked until the state no longer changes, in
rehearsal (nothing is kept), then once more.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import libcst as cst

from fnjax.port.facts import LOST, UNKNOWN, Place, State, Value, merged, places, renamed
from fnjax.port.located import children, nodes
from fnjax.port.operations import MISSING, code, fit, literal
from fnjax.port.operations.expressions import Fill
from fnjax.port.records import decorators
from fnjax.port.result import Finding
from fnjax.port.rules.registry import EXPRESSIONS, STATEMENTS
from fnjax.port.terms import Sink, Statements, Stop, Term, Uncompressed, assign, line, lines_of, names, parse, raising
from fnjax.port.traces import Made, Trace, Traces

if TYPE_CHECKING:
    from fnjax.port.program import Program, Routine

_FIT = Fill({}, frozenset())
_OPERATORS = (cst.BinaryOperation, cst.UnaryOperation, cst.Comparison, cst.Subscript)
_CALLBACK = "this asks for numbers: under jit the body of the operator runs as a callback, with the shapes registered"
_ROUNDS = 8  # of a loop, and two for each variable, until its state must have settled

Narrowed = tuple[str, tuple[Value, Value]] | None  # a variable that a test tells of, and what it is then and otherwise


@dataclass(slots=True)
class Way:
    """One of several blocks, walked: its translation, the state behind it, whether that is reached, what it returns."""

    made: cst.BaseSuite | None
    end: State
    leaves: bool
    returns: list[Value]


class Walk:
    """One walk through one routine."""

    def __init__(self, program: Program, routine: Routine, state: State, compress: bool = True) -> None:
        self.program, self.routine, self.state = program, routine, state
        self.sink = Sink()
        self.compress = compress  # whether a read `x[mask]` may be stood for by all of x
        self.before: Statements = []  # what goes in front of the statement that is being walked
        self.memo: dict[int, tuple[cst.CSTNode, Term]] = {}
        self.unrolled = ""  # which of the copies of an expression is walked
        self.conditional = 0  # inside an expression that may not be evaluated, or more than once
        self.repeated = 0  # inside one that is evaluated more than once
        self.loops: list[cst.CSTNode] = []
        self.large = False  # whether whole numbers of more than 32 bits stand beside arrays
        self.unset: set[str] = set()  # variables that are None before the loops around, which alone bind them
        self.round = self.state  # at the end of the last round of the loop that was walked last
        self.filling: set[cst.CSTNode] = set()  # the loops around that become functions
        self.untaken: list[cst.CSTNode] = []  # blocks that do not run where the present one does
        self.current: cst.CSTNode = routine.node
        self.returns: list[Value] = []
        self.differentiated = routine.differentiated
        self.grad_enabled = False  # inside `with torch.enable_grad()`
        self.stop_gradients = False  # inside `with torch.no_grad()` in backward
        self.saves: list[cst.Call] = []  # the calls of ctx.save_for_backward
        self.kept: dict[str, Value] = {}  # what this routine leaves on ctx
        self.taking_back: set[str] = set()  # variables to which a launch gives back what they hold then
        self.waiting: set[str] = set()  # variables of the porter's own that are still to be read
        self.traces = Traces()
        self.blocks: dict[cst.CSTNode, cst.IndentedBlock] = {}  # of each `elif`
        # what was known before a loop, and the state with which each of its rounds begins
        self.settled: dict[object, list[tuple[State, State]]] = {}
        self.called: set[str] = set()  # the names of the file that it reads
        # the code of each mask by its number, and the variables in it with their versions
        self.masks: dict[str, tuple[cst.BaseExpression, frozenset[tuple[str, int]]]] = {}

    # -------------------------------------------------------------------------------------------- findings

    def report(self, node: cst.CSTNode, kind: str, message: str, severity: str = "error") -> None:
        """A finding at the node."""
        if kind == "untraced" and self.routine.concrete:
            kind, message, severity = "callback", _CALLBACK, "note"
        finding = Finding(*self.program.source.position(node), kind, message, severity)
        self.sink.report(finding)

    def traced(self, value: Value) -> bool:
        """Whether a value may be an array under jit whose entries are not known."""
        return value.traced and not self.routine.concrete

    def note(self, node: cst.CSTNode, kind: str, message: str) -> None:
        """A finding that leaves the class ported."""
        self.report(node, kind, message, "note")

    @contextlib.contextmanager
    def differentiating(self) -> Iterator[None]:
        """What is walked here will be differentiated by jax.vjp."""
        before, self.differentiated = self.differentiated, True
        try:
            yield
        finally:
            self.differentiated = before

    @property
    def derived(self) -> bool:
        """Whether JAX may differentiate what is walked here: backward, for second derivatives."""
        backward = self.routine.role in {"backward", "vjp", "jvp"}
        once = any("once_differentiable" in d for d in decorators(self.routine.node))
        return self.differentiated or self.routine.derived or (backward and not once)

    def constant(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """What has no history in PyTorch, as `x.item()`: where JAX differentiates, no gradient goes through it."""
        if not self.differentiated:
            return node
        self.sink.imports.add("jax")
        return parse(f"jax.lax.stop_gradient({code(fit(node, 1))})")

    @contextlib.contextmanager
    def perhaps(self, repeated: bool = False) -> Iterator[None]:
        """What is walked here may not be evaluated, or (`repeated`) more than once."""
        self.conditional += 1
        self.repeated += repeated
        try:
            yield
        finally:
            self.conditional -= 1
            self.repeated -= repeated

    @contextlib.contextmanager
    def rehearsal(self) -> Iterator[Sink]:
        """Nothing that is walked here leaves a trace, except in the state and in the sink that one gets."""
        sink, self.sink = self.sink, Sink(keys=self.sink.keys)
        before, self.before = self.before, []
        try:
            yield self.sink
        finally:
            self.sink, self.before = sink, before

    def once(self, key: Hashable, walked: Callable[[], Made]) -> Made:
        """What a walk through statements makes; where one has begun with the same knowledge, what that has made."""
        around, start = self.around(), self.state.copy()
        trace = self.traces.find(key, around, start)
        if trace is None:
            sink, returns, saves, unset = self.sink, self.returns, self.saves, self.unset
            self.sink, self.returns, self.saves, self.unset = Sink(keys=sink.keys), [], [*saves], set()
            try:
                made = walked()
                left = self.sink, self.returns, self.saves[len(saves) :], self.unset
            finally:
                self.sink, self.returns, self.saves, self.unset = sink, returns, saves, unset
            trace = Trace(around, start, made, self.state.copy(), *left)
            self.traces.add(key, trace)
        else:
            self.state = trace.end.copy()
        self.sink.add(trace.sink)
        self.returns += trace.returns
        self.saves += trace.saves
        self.unset |= trace.unset
        return trace.made and ([*trace.made[0]], trace.made[1])

    def around(self) -> tuple[object, ...]:
        """What a translation depends on, beside the state and what the routine and the file say."""
        here = (tuple(self.loops), tuple(self.untaken), frozenset(self.waiting), frozenset(self.filling))
        ways = (self.conditional, self.repeated, self.unrolled, self.large, self.compress)
        modes = (self.differentiated, self.grad_enabled, self.stop_gradients)
        return here, ways, modes, self.sink.keys, self.routine.draws_often, self.routine.gives

    # ----------------------------------------------------------------------------------------- expressions

    def expr(self, node: cst.BaseExpression) -> Term:
        """The translation and the value of an expression; once for each walk through its statement."""
        if id(node) in self.memo:
            return self.memo[id(node)][1]
        for rule in EXPRESSIONS.get(type(node), ()):
            term: Term | None = rule(self, node)
            if term is not None:
                break
        else:
            found = literal(node)
            known = Value("static", "bool" if isinstance(found, bool) else "unknown", literal=found)
            term = Term(self.rebuilt(node), known if found is not MISSING else UNKNOWN)
        if term.value.mask == LOST:
            raise Uncompressed
        if isinstance(node, _OPERATORS) and term.value.is_tensor:
            term = replace(term, value=self._of_numpy(node, term.value))
        self.memo[id(node)] = (node, term)
        return term

    def _of_numpy(self, node: cst.BaseExpression, value: Value) -> Value:
        """An operator's result is an array of NumPy if its operands are; a scalar of NumPy is a copy."""
        if isinstance(node, cst.Subscript):
            numpy, place = self.expr(node.value).value.numpy, value.place
            if numpy and value.rank is None and place is not None:
                place = place.doubtful
            return replace(value, numpy=numpy, place=self.fresh(node) if numpy and value.rank == 0 else place)
        operands = [self.expr(n).value for n in reversed(children(node)) if isinstance(n, cst.BaseExpression)]
        if isinstance(node, cst.Comparison):
            operands += [self.expr(c.comparator).value for c in node.comparisons]
        flags = {o.numpy for o in operands if o.is_tensor}
        return replace(value, numpy=flags.pop() if len(flags) == 1 else False)

    def rebuilt(self, node: Any) -> Any:
        """The node with its expressions translated."""
        changes: dict[str, Any] = {}
        for f in dataclasses.fields(node):
            value = getattr(node, f.name)
            if f.name in {"attr", "keyword", "lpar", "rpar", "operator", "annotation"}:
                continue
            new = self._rebuilt_part(value)
            if new is not value:
                changes[f.name] = new
        return self.fitted(node.with_changes(**changes)) if changes else node

    def _rebuilt_part(self, value: Any) -> Any:
        if isinstance(value, cst.BaseExpression):
            return self.expr(value).node
        if isinstance(value, cst.CSTNode):
            return (
                self.rebuilt(value) if not isinstance(value, (cst.BaseParenthesizableWhitespace, cst.Comma)) else value
            )
        if isinstance(value, (tuple, list)):
            parts = [self._rebuilt_part(v) for v in value]
            return parts if any(a is not b for a, b in zip(parts, value, strict=True)) else value
        return value

    @staticmethod
    def fitted(node: Any) -> Any:
        """The node with parentheses around what needs them."""
        if isinstance(node, cst.Call):
            return node.with_changes(func=fit(node.func))
        leave = getattr(_FIT, f"leave_{type(node).__name__}", None)
        return leave(node, node) if leave and not isinstance(node, (cst.Name, cst.NamedExpr, cst.Param)) else node

    def name_of(self, node: cst.BaseExpression) -> str:
        """The qualified name that a dotted name stands for, or the empty string."""
        if isinstance(node, cst.Name):
            return self.lookup(node.value).name
        if isinstance(node, cst.Attribute):
            base = self.name_of(node.value)
            if not base or base.startswith(("instance:", "ctx")):
                return ""
            return self.program.attribute(base, node.attr.value)
        if isinstance(node, cst.Call) and (attribute := spelled_attribute(node)) is not None:
            name = self.name_of(attribute)
            return name if name.startswith("torch.") else ""
        return ""

    def lookup(self, name: str) -> Value:
        """What a name stands for here."""
        found = self.state.variables.get(name)
        return found if found is not None else self.program.lookup(name)

    def number(self, node: cst.BaseExpression) -> str:
        """A text that two expressions share only if they have the same value."""
        kept = {f"ctx.{n.attr.value}" for n in nodes(node) if isinstance(n, cst.Attribute)}
        read = sorted(n for n in names(node) | kept if n in self.state.variables)
        return code(node) + "".join(f"|{n}:{self.state.versions.get(n, 0)}|" for n in read)

    def reads(self, node: cst.BaseExpression) -> frozenset[tuple[str, int]]:
        """The variables in an expression, with their versions."""
        return frozenset((n, self.state.version(n)) for n in names(node) if n in self.state.variables)

    def fresh(self, node: cst.CSTNode, part: str = "") -> Place:
        """New memory, named after the node that takes it, and the part of its value."""
        line, column = self.program.source.position(node)
        name = f"{line}:{column}:{type(node).__name__}{part}{self.unrolled}"
        older = {name: name + "'"}
        for variable, value in self.state.variables.items():
            self.state.variables[variable] = renamed(value, older)
        return Place(frozenset({name}))

    def mark(self, node: cst.CSTNode, part: str = "") -> str:
        """The mark of arrays that have the shape of what a node gives, or of a part of that."""
        line, column = self.program.source.position(node)
        return f"@{line}:{column}{part}"

    # ----------------------------------------------------------------------------------------- variables

    def key(self, node: cst.BaseExpression) -> str:
        """The name under which the state has a variable, or an attribute of ctx; empty for what it has not."""
        if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name):
            return f"ctx.{node.attr.value}" if self.lookup(node.value.value).name == "ctx" else ""
        return node.value if isinstance(node, cst.Name) else ""

    def bind(self, name: str, value: Value, node: cst.CSTNode) -> None:
        """A variable takes a value."""
        line, column = self.program.source.position(node)
        if value.place is None and (value.kind == "tensor" or (value.kind == "unknown" and not value.name)):
            value = replace(value, place=self.fresh(node, f" {name}"))
        self.state.variables[name] = value
        self.bump(name, line * 1000 + column)

    @property
    def taken(self) -> set[str]:
        """The names that the routine uses."""
        return {n.value for n in nodes(self.routine.node) if isinstance(n, cst.Name)}

    def unused(self, name: str) -> str:
        """This name, or one like it that the routine does not use."""
        taken = self.taken
        return next(n for n in (name, f"{name}_", f"{name}__") if n not in taken)

    def bump(self, name: str, version: int) -> None:
        """What was derived from the variable's old value no longer tells of its new one."""
        mark = f"|{name}:{version}|"
        self.state.versions[name] = version
        for other, value in self.state.variables.items():
            if mark in value.number:
                self.state.variables[other] = replace(value, number="")
            place = value.place
            if place and any((name, version) in s.reads for s in place.steps):
                self.state.variables[other] = replace(value, place=place.doubtful)

    def live(self, name: str, behind: cst.CSTNode | None = None) -> bool:
        """Whether the variable may be read after the statement that is being walked, or in it after what it writes.

        Args:
            name: the variable.
            behind: the expression in the statement that writes.
        """
        if name.startswith("ctx") or name in self.routine.gives or name in self.waiting:
            return True
        position = self.program.source.position
        inside = self.routine.nodes_in(self.current)
        loops = [(loop, self.routine.nodes_in(loop)) for loop in self.loops]
        untaken = frozenset().union(*(self.routine.nodes_in(block) for block in self.untaken))
        small = isinstance(self.current, (cst.SimpleStatementLine, cst.BaseSmallStatement))
        for n in self.routine.reads.get(name, ()):
            if id(n) in untaken:
                continue
            around = [loop for loop, within in loops if id(n) in within]
            if id(n) in self.routine.captured:  # a function in this one may be called at any time
                return True
            if id(n) not in inside:
                again = bool(around) and not self._anew(around[-1], n, name)
                here = position(self.current)
                if again or (position(n) > here and not self._anew(self.routine.node, n, name, here)):
                    return True
            elif not small and around and not self._anew(around[-1], n, name):
                return True
            elif small:
                rounds = (loop for loop in around if not _by_rows(loop, behind))
                again = any(name not in self.program.rebound_in(loop) for loop in rounds)
                within = behind is not None and id(n) in self.routine.nodes_in(behind)
                later = behind is not None and not within and position(n) > position(behind)
                if again or later:
                    return True
        return False

    def _anew(
        self, around: cst.CSTNode, read: cst.CSTNode, name: str, behind: tuple[int, int] | tuple[()] = ()
    ) -> bool:
        """Whether a round of a loop, or what stands behind a place, gives a variable a new value before this read."""
        within, position = self.routine.nodes_in, self.program.source.position
        for block in (n for n in nodes(around) if isinstance(n, cst.IndentedBlock) and id(read) in within(n)):
            for statement in (s for s in block.body if position(s) > behind):
                small = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
                given: list[Any] = [t.target for s in small if isinstance(s, cst.Assign) for t in s.targets]
                here = id(read) in within(statement)
                if here and isinstance(statement, cst.For) and id(read) not in within(statement.iter):
                    given += [read] if name in names(statement.target) else []
                if any(target is read if here else code(target) == name for target in given):
                    return True
                if here:
                    break
        return False

    # ------------------------------------------------------------------------------------------ statements

    def body(self, body: cst.BaseSuite) -> cst.BaseSuite:
        """The translation of a block."""
        if isinstance(body, cst.SimpleStatementSuite):
            lines: Statements = self.simple(cst.SimpleStatementLine(body.body), body)
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
        outside, self.before = self.before, []
        self.memo.clear()
        try:
            if isinstance(node, cst.SimpleStatementLine):
                return self.simple(node, node)
            result: Statements = [node]
            for rule in STATEMENTS.get(type(node), ()):
                made: Statements | None = rule(self, node)
                if made is not None:
                    result = made
                    break
            return self.headed(node, [*self.before, *result])
        except Stop as e:
            self.report(e.node, e.kind, e.message)
            self.forget(node)
            return self.headed(node, [raising(e.message)])
        except Uncompressed:
            return self.headed(node, [raising(self._unmasked(node))])
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
            self.before = []
            self.memo.clear()
            try:
                new = self.small(small)
            except Stop as e:
                self.report(e.node, e.kind, e.message)
                self.forget(small)
                new, self.before = [raising(e.message)], []
            except Uncompressed:
                new, self.before = [raising(self._unmasked(small))], []
            new = [*self.before, *new]
            same = (
                same and len(new) == 1 and isinstance(new[0], cst.SimpleStatementLine) and list(new[0].body) == [small]
            )
            made += new
        self.before, self.current = [], outer
        if same:
            return [node]
        if len(made) == 1 and len(node.body) == 1 and isinstance(made[0], cst.SimpleStatementLine):
            only = made[0].body[-1].with_changes(semicolon=node.body[0].semicolon)
            return [node.with_changes(body=[*made[0].body[:-1], only])]
        return self.headed(node, [_parted(s) for s in made])

    def small(self, node: cst.BaseSmallStatement) -> Statements:
        """The translation of a small statement."""
        for rule in STATEMENTS.get(type(node), ()):
            made: Statements | None = rule(self, node)
            if made is not None:
                return made
        return [cst.SimpleStatementLine([node])]

    def headed(self, origin: cst.CSTNode, made: Statements) -> Statements:
        """The statements with the comments of what they were made of."""
        if not made:
            comments = [e for e in getattr(origin, "leading_lines", ()) if e.comment]
            self.program.orphans.extend(comments)
            return made
        leading = getattr(origin, "leading_lines", ())
        if leading and made[0] is not origin and not getattr(made[0], "leading_lines", ()):
            made[0] = made[0].with_changes(leading_lines=leading)
        trailing = getattr(origin, "trailing_whitespace", None)
        last = made[-1]
        if trailing is not None and trailing.comment and isinstance(last, cst.SimpleStatementLine):
            made[-1] = last.with_changes(trailing_whitespace=trailing)
        return made

    def _unmasked(self, node: cst.CSTNode) -> str:
        """The finding for selected entries that neither all entries nor they themselves can stand for."""
        if self.compress:
            raise Uncompressed
        message = "the porter knows no way to write these entries that a mask selects; write it with jnp.where"
        self.report(node, "mask", message)
        self.forget(node)
        return message

    def take(self, inner: Walk) -> None:
        """What the walk of a function or a class inside has found and needs."""
        self.sink.findings += [f for f in inner.sink.findings if f not in self.sink.findings]
        self.sink.imports |= inner.sink.imports
        self.sink.needs |= inner.sink.needs
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

    def ways(self, bodies: Sequence[cst.BaseSuite | None], narrowed: Narrowed = None) -> list[Way]:
        """Walk blocks of which one will run, each from the present state, with a variable that the test narrows."""
        start, found = self.state, []
        for i, body in enumerate(bodies):
            self.state, known = start.copy(), len(self.returns)
            if narrowed is not None:
                self.state.variables[narrowed[0]] = narrowed[1][i]
            with self.taking(body, bodies):
                made = None if body is None else self.body(body)
            found.append(Way(made, self.state, body is not None and leaves(body), self.returns[known:]))
        self.state = start
        return found

    def join(self, ways: Sequence[Way]) -> None:
        """Go on behind all of the ways."""
        ends = [way.end for way in ways if not way.leaves]
        if ends:
            self.state = merged(ends, self.branch(self.current))

    def otherwise(self, node: cst.If) -> cst.BaseSuite | None:
        """The block that runs where the test does not hold; of an `elif` always the same one."""
        orelse = node.orelse
        if not isinstance(orelse, cst.If):
            return orelse.body if orelse else None
        return self.blocks.setdefault(orelse, cst.IndentedBlock([orelse]))

    @contextlib.contextmanager
    def taking(self, body: cst.BaseSuite | None, bodies: Iterable[cst.BaseSuite | None]) -> Iterator[None]:
        """One of several ways is walked; in a loop the next round may take another."""
        before = self.untaken
        self.untaken = [*before, *(b for b in bodies if b is not None and b is not body and not self.loops)]
        try:
            yield
        finally:
            self.untaken = before

    def loop(self, node: cst.CSTNode, enter: Any, body: cst.BaseSuite) -> cst.BaseSuite:
        """Walk the block of a loop; `enter` binds what each round begins with."""
        self.loops.append(node)
        start = self._settled(node, enter, body)
        self.state = start.copy()
        enter()
        made = self.body(body)
        self.loops.pop()
        if not self.loops:
            self.before += [line(f"{name} = None") for name in sorted(self.unset)]
            self.unset.clear()
        self.round = self.state.copy()
        self.state.join(start)
        return made

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
            self.state = start.copy()
            with self.rehearsal():
                enter()
                self.body(body)
            after = start.joined(self.state)
            if after == start:
                break
            rounds += 1
            if rounds > _ROUNDS + 2 * len(after.variables):  # what one round says of the next goes on and on
                self._give_up(node, start, after)
                break
            start = after
        earlier.append((entry, start))
        return start.copy()

    def _give_up(self, node: cst.CSTNode, start: State, after: State) -> None:
        """Nothing is said of what each round of a loop tells something new of; that is a finding."""
        changing = sorted(n for n, v in after.variables.items() if start.variables.get(n) != v)
        message = f"what {', '.join(changing)} may be changes with each round of this loop; write it out"
        self.report(node, "unknown", message)
        for name in changing:
            start.variables[name] = replace(UNKNOWN, place=Place.among(*places(after.variables[name])))


def _parted(node: cst.BaseStatement) -> cst.BaseStatement:
    """A statement that stood on one line with others, on its own."""
    if not isinstance(node, cst.SimpleStatementLine) or not isinstance(node.body[-1].semicolon, cst.Semicolon):
        return node
    return node.with_changes(body=[*node.body[:-1], node.body[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])


def spelled_attribute(node: cst.Call) -> cst.Attribute | None:
    """`x.name` for `getattr(x, "name")`."""
    if code(node.func) != "getattr" or len(node.args) != 2 or any(a.star or a.keyword for a in node.args):
        return None
    name = literal(node.args[1].value)
    return cst.Attribute(node.args[0].value, cst.Name(name)) if isinstance(name, str) and name.isidentifier() else None


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


def _by_rows(loop: cst.CSTNode, node: cst.CSTNode | None) -> bool:
    """Whether each round of a loop reads and writes rows of its own: `y[i].mul_(x[i])`."""
    if node is None or not isinstance(loop, cst.For):
        return False
    rows = {code(n.slice[0].slice) for n in nodes(node) if isinstance(n, cst.Subscript)}
    return rows == {code(loop.target)}


def placed(walk: Walk, new: Any, origin: cst.CSTNode) -> Any:
    """A node that the porter made, at the place of another."""
    here = walk.program.source.position(origin)
    for node in nodes(new):
        walk.program.source.positions.setdefault(node, here)
    return new


__all__ = [
    "Sink",
    "Statements",
    "Stop",
    "Term",
    "Uncompressed",
    "Walk",
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
