"""Types of an evaluation: typed expressions, the way out of a statement, diagnostics; and code made of text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import is_not
from typing import Any

import libcst as cst

from fnjax.port.known.facts import UNKNOWN, Value
from fnjax.port.result import Finding
from fnjax.port.source.naming import collect_read_names
from fnjax.port.source.records import Dependency
from fnjax.port.torch import bracket
from fnjax.port.torch.new_arrays import NewArray

Statements = list[cst.BaseStatement]


@dataclass(frozen=True, slots=True)
class Expr:
    """An expression's translation, and what is known of its value.

    Attributes:
        node: the translation.
        value: what is known.
        answered: the expression is a question that the port answers with the literal of the value.
        new_array: the array that the expression makes, if it only makes one.
    """

    node: cst.BaseExpression
    value: Value = UNKNOWN
    answered: bool = False
    new_array: NewArray | None = None

    @property
    def answer(self) -> bool | None:
        """The truth value of a condition that the port decides, so that it is dropped; None for other expressions."""
        known = self.value.literal
        return known if self.answered and isinstance(known, bool) else None


@dataclass(frozen=True, slots=True)
class Selection:
    """Elements that a mask selects, where all elements are computed for them.

    Attributes:
        mask: the mask, as it was given.
        base: the array that it selects from, where the mask may have fewer axes.
        reads: the variables in both, with their versions.
    """

    mask: cst.BaseExpression
    base: cst.BaseExpression | None
    reads: frozenset[tuple[str, int]]


def make_answer(known: bool) -> Expr:
    """Return True or False as the translation of a condition that the port decides."""
    return Expr(cst.Name(str(known)), Value("static", "bool", literal=known), answered=True)


class Stop(Exception):  # noqa: N818 - no error: the way out of a statement that cannot be translated
    """Raised where a statement cannot be translated: it becomes a finding, and a `raise` in the output."""

    def __init__(self, node: cst.CSTNode, kind: str, message: str) -> None:
        super().__init__(message)
        self.node, self.kind, self.message = node, kind, message


_ONCE = frozenset({"float64"})


@dataclass(slots=True)
class Diagnostics:
    """Findings and needs of the code that an evaluation makes.

    Attributes:
        findings: the findings.
        concrete: the locations of what needs concrete values, so that it runs outside jit only.
        imports: the names of the port's modules, and of the mesh axes that its caller sets, that the code may read.
        needs: the support functions that it may call.
        keys: the random numbers drawn so far.
        left: whether something needs manual porting.
    """

    findings: list[Finding] = field(default_factory=list)
    concrete: set[tuple[int, int]] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)
    needs: set[str] = field(default_factory=set)
    keys: int = 0
    left: bool = False

    def report(self, finding: Finding) -> None:
        """Add a finding; of some kinds only the first."""
        if finding not in self.findings and not any(f.code == finding.code in _ONCE for f in self.findings):
            self.findings.append(finding)

    def add_diagnostics(self, other: Diagnostics) -> None:
        """Add the diagnostics of an evaluation that went on from here."""
        for finding in other.findings:
            self.report(finding)
        self.concrete |= other.concrete
        self.imports |= other.imports
        self.needs |= other.needs
        self.keys = other.keys
        self.left |= other.left


@dataclass(slots=True)
class TopItem:
    """A statement of the top level, translated, with the summaries of functions and classes that it depends on."""

    origin: cst.CSTNode
    made: list[Any]
    diagnostics: Diagnostics
    called: set[str] = field(default_factory=set)
    # functions and classes, and their summaries
    dependencies: dict[tuple[int, str], tuple[Any, list[Any]]] = field(default_factory=dict)
    known: tuple[list[Any], set[str]] | None = None  # what was translated, and the names that it reads

    def add_dependencies(self, dependencies: Iterable[Dependency]) -> None:
        """Add facts that it depends on, each different value once."""
        for of, name, value in dependencies:
            known = self.dependencies.setdefault((id(of), name), (of, []))[1]
            if not any(v is value or v == value for v in known):
                known.append(value)

    def list_changed(self) -> set[str]:
        """Return the functions and classes whose summaries have changed since."""
        facts = ((of, of.find_current(name), values) for (_, name), (of, values) in self.dependencies.items())
        return {of.name for of, now, values in facts if any(v != now for v in values)}

    def list_names_read(self) -> set[str]:
        """Return the names of the top level that it reads."""
        if self.known is None or len(self.made) != len(self.known[0]) or any(map(is_not, self.made, self.known[0])):
            self.known = [*self.made], collect_read_names(self.made)
        return self.known[1]

    def list_operators(self) -> list[str]:
        """Return the custom operators that it looks up, by their qualified names."""
        return sorted(name for name in self.called if "::" in name)


# The sign in `f(key=None)`, without the blanks that libcst puts around it.
EQUAL = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def list_statements(body: cst.BaseSuite) -> Statements:
    """Return the statements of a block."""
    if isinstance(body, cst.IndentedBlock):
        return list(body.body)
    return [cst.SimpleStatementLine(body.body)]  # type: ignore[arg-type] # one line


def parse(text: str) -> cst.BaseExpression:
    """Return an expression from its text."""
    return cst.Name(text) if text.isidentifier() else cst.parse_expression(text)


def parse_line(text: str) -> cst.SimpleStatementLine:
    """Return a statement from its text."""
    statement = cst.parse_statement(text)
    assert isinstance(statement, cst.SimpleStatementLine)
    return statement


def make_assignment(target: str, value: cst.BaseExpression) -> cst.SimpleStatementLine:
    """Translate `target = value`."""
    node = cst.Assign([cst.AssignTarget(parse(target))], bracket(value, 0))  # type: ignore[arg-type] # a name or attribute
    return cst.SimpleStatementLine([node])


def make_raise(message: str) -> cst.SimpleStatementLine:
    """Return the statement for a missing translation."""
    text = cst.SimpleString(repr(message).replace("\n", " "))
    return cst.SimpleStatementLine([cst.Raise(cst.Call(cst.Name("NotImplementedError"), [cst.Arg(text)]))])
