"""Names at one point of a function: what each is, its memory, and which variables are still read.

An Evaluator goes through a function with what is known here. `Surroundings` is what it depends on next to the
state: it is a value, which is handed down to what is inside, and never changed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import libcst as cst

from fnjax.port.analysis.registry import ENTRY, RESULT, VARIABLE
from fnjax.port.known.facts import MemRef, Value
from fnjax.port.known.state import State
from fnjax.port.source.naming import iter_targets
from fnjax.port.torch import read_literal, unparse
from fnjax.port.torch.expressions import find_names
from fnjax.port.tree.located import list_nodes

if TYPE_CHECKING:
    from fnjax.port.analysis.program import Program, Routine


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Dependencies of a translation, next to the state and the facts of routine and file.

    Attributes:
        grad_enabled: inside `with torch.enable_grad()`.
        stop_gradients: inside `with torch.no_grad()` in backward.
        conditional: inside an expression that may not be evaluated, or more than once.
        repeated: inside one that is evaluated more than once.
        unrolled: which of the copies of an expression is evaluated.
        loops: those around.
        untaken: blocks that do not run where the present one does.
    """

    grad_enabled: bool = False
    stop_gradients: bool = False
    conditional: bool = False
    repeated: bool = False
    unrolled: str = ""
    loops: tuple[cst.CSTNode, ...] = ()
    untaken: tuple[cst.CSTNode, ...] = ()


class Variables:
    """The variables of a routine at the present point of an evaluation."""

    def __init__(self, program: Program, routine: Routine, state: State, here: Surroundings) -> None:
        self.program, self.routine, self.state, self.here = program, routine, state, here
        self.current: cst.CSTNode = routine.node  # the statement that is evaluated
        self.before: list[cst.BaseStatement] = []  # statements in front of it
        self.known: set[str | tuple[str, int]] = set()  # memory and versions that were made so far

    @contextlib.contextmanager
    def enter(self, **changes: Any) -> Iterator[None]:
        """Evaluate the block with other `Surroundings`."""
        around, self.here = self.here, replace(self.here, **changes)
        try:
            yield
        finally:
            self.here = around

    def enter_conditional(self, repeated: bool = False) -> contextlib.AbstractContextManager[None]:
        """Return the context of an expression that may not be evaluated, or (`repeated`) more than once."""
        return self.enter(conditional=True, repeated=self.here.repeated or repeated)

    def find_name(self, node: cst.BaseExpression) -> str:
        """Return the qualified name of a dotted name, or the empty string."""
        if isinstance(node, cst.Name):
            return self.look_up(node.value).name
        if isinstance(node, cst.Attribute):
            base = self.find_name(node.value)
            if not base or base.startswith(("instance:", "ctx")):
                return ""
            return self.program.name_attribute(base, node.attr.value)
        if isinstance(node, cst.Call) and (attribute := read_getattr(node)) is not None:
            name = self.find_name(attribute)
            return name if name.startswith("torch.") else ""
        return ""

    def name_callee(self, node: cst.Call) -> str:
        """Return the qualified name of what is called, `ctx.name`, `*.name` of a method, or its name in `registry`."""
        func = node.func
        if isinstance(func, cst.Attribute):
            return self.name_variable(func) or self.find_name(func) or f"*.{func.attr.value}"
        other = {cst.Name: VARIABLE, cst.Subscript: ENTRY}.get(type(func), RESULT)
        return self.find_name(func) or other

    def look_up(self, name: str) -> Value:
        """Return the value of a name here."""
        found = self.state.variables.get(name)
        return found if found is not None else self.program.look_up(name)

    def number_expression(self, node: cst.BaseExpression) -> str:
        """Return a text that two expressions share only if they have the same value."""
        kept = {f"ctx.{n.attr.value}" for n in list_nodes(node, cst.Attribute)}
        read = sorted(n for n in find_names(node) | kept if n in self.state.variables)
        return unparse(node) + "".join(f"|{n}:{self.state.versions.get(n, 0)}|" for n in read)

    def list_reads(self, node: cst.BaseExpression) -> frozenset[tuple[str, int]]:
        """Return the variables in an expression, with their versions."""
        return frozenset((n, self.state.find_version(n)) for n in find_names(node) if n in self.state.variables)

    def make_memref(self, node: cst.CSTNode, part: str = "") -> MemRef:
        """Return new memory, named after the node that takes it, and the part of its value."""
        line, column = self.program.source.locate(node)
        name = f"{line}:{column}:{type(node).__name__}{part}{self.here.unrolled}"
        if name in self.known:  # in an earlier iteration
            self.state.variables.rename_memory(name, name + "'")
        self.known.add(name)
        return MemRef(frozenset({name}))

    def mark_shape(self, node: cst.CSTNode, part: str = "") -> str:
        """Return the mark of arrays that have the shape of a node's result, or of a part of that."""
        line, column = self.program.source.locate(node)
        return f"@{line}:{column}{part}"

    def name_variable(self, node: cst.BaseExpression) -> str:
        """Return the name under which the state has a variable, or an attribute of ctx; empty for what it has not."""
        if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name):
            return f"ctx.{node.attr.value}" if self.look_up(node.value.value).name == "ctx" else ""
        return node.value if isinstance(node, cst.Name) else ""

    def bind_name(self, name: str, value: Value, node: cst.CSTNode) -> None:
        """Bind a variable to a value."""
        line, column = self.program.source.locate(node)
        if value.memref is None and (value.kind == "tensor" or (value.kind == "unknown" and not value.name)):
            value = replace(value, memref=self.make_memref(node, f" {name}"))
        self.state.variables[name] = value
        self.forget_old_value(name, line * 1000 + column)

    def make_unused_name(self, name: str) -> str:
        """Return this name, or one like it that neither the routine nor a statement in front uses."""
        taken = {n.value for n in list_nodes(self.routine.node, cst.Name)}.union(*map(find_names, self.before))
        numbered = (f"{name}_{i}" for i in itertools.count(2))
        return next(n for n in itertools.chain([name], numbered) if n not in taken)

    def forget_old_value(self, name: str, version: int) -> None:
        """Forget what was derived from the variable's old value."""
        source = name, version
        self.state.versions[name] = version
        if source not in self.known:
            self.known.add(source)
            return
        mark = f"|{name}:{version}|"
        for other, value in self.state.variables.items():
            memref, number = value.memref, "" if mark in value.number else value.number
            if memref is not None and memref.steps and any(source in s.reads for s in memref.steps):
                memref = memref.doubtful
            if memref is not value.memref or number != value.number:
                self.state.variables[other] = replace(value, number=number, memref=memref)

    def is_live(self, name: str, after: cst.CSTNode | None = None, entries: bool = False) -> bool:
        """Return whether the variable may be read after the present statement, or in it after what it writes.

        Args:
            name: the variable.
            after: the expression in the statement that writes.
            entries: whether only reads of its elements matter, not those of its dtype.
        """
        if name.startswith("ctx") or name in self.routine.gives:
            return True
        position = self.program.source.locate
        inside = self.routine.list_names_in(self.current)
        loops = [(loop, self.routine.list_names_in(loop)) for loop in self.here.loops]
        untaken = frozenset().union(*(self.routine.list_names_in(block) for block in self.here.untaken))
        small = isinstance(self.current, (cst.SimpleStatementLine, cst.BaseSmallStatement))
        for n in self.routine.reads.get(name, ()):
            if id(n) in untaken or (entries and id(n) in self.routine.metadata):
                continue
            around = [loop for loop, within in loops if id(n) in within]
            if id(n) in self.routine.closed_over:  # a function in this one may be called at any time
                return True
            if id(n) not in inside:
                again = bool(around) and not self._is_given_anew(around[-1], n, name)
                here = position(self.current)
                if again or (position(n) > here and not self._is_given_anew(self.routine.node, n, name, here)):
                    return True
            elif not small and around and not self._is_given_anew(around[-1], n, name):
                return True
            elif small:
                again = any(name not in self.program.list_rebound(loop) for loop in around)
                within = after is not None and id(n) in self.routine.list_names_in(after)
                later = after is not None and not within and position(n) > position(after)
                if again or later:
                    return True
        return False

    def _is_given_anew(
        self, around: cst.CSTNode, read: cst.CSTNode, name: str, after: tuple[int, int] | tuple[()] = ()
    ) -> bool:
        """Return whether an iteration of a loop, or what is after a position, rebinds a variable before this read."""
        within, position = self.routine.list_names_in, self.program.source.locate
        for block in (n for n in list_nodes(around, cst.IndentedBlock) if id(read) in within(n)):
            for statement in (s for s in block.body if position(s) > after):
                if id(read) not in within(statement):
                    if surely_binds(statement, name):
                        return True
                    continue
                small = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
                given: list[Any] = [t.target for s in small if isinstance(s, cst.Assign) for t in s.targets]
                looped = iter_targets(statement.target) if isinstance(statement, cst.For) else ()
                if name in looped and id(read) not in within(statement.iter):  # type: ignore[attr-defined] # a loop
                    return True
                if any(target is read for t in given for target in iter_elements(t)):
                    return True
                break
        return False


def read_getattr(node: cst.Call) -> cst.Attribute | None:
    """Translate `x.name` for `getattr(x, "name")`."""
    if unparse(node.func) != "getattr" or len(node.args) != 2 or any(a.star or a.keyword for a in node.args):
        return None
    name = read_literal(node.args[1].value)
    return cst.Attribute(node.args[0].value, cst.Name(name)) if isinstance(name, str) and name.isidentifier() else None


def surely_binds(statement: cst.CSTNode | None, name: str) -> bool:
    """Return whether a statement binds a variable anew, or deletes it, in each branch."""
    match statement:
        case cst.SimpleStatementLine():
            bound: list[Any] = [t.target for s in statement.body if isinstance(s, cst.Assign) for t in s.targets]
            bound += [s.target for s in statement.body if isinstance(s, cst.Del)]
            return any(name in iter_targets(target) for target in bound)
        case cst.If():
            return surely_binds(statement.body, name) and surely_binds(statement.orelse, name)
        case cst.Else():
            return surely_binds(statement.body, name)
        case cst.IndentedBlock():
            return any(surely_binds(s, name) for s in statement.body)
    return False


def iter_elements(target: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield what an assignment binds one by one: the items of a tuple, or the target itself."""
    if isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from iter_elements(element.value)
    else:
        yield target
