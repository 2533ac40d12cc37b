"""The classes and functions of a file, as records."""

from __future__ import annotations

import functools
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import libcst as cst

from fnjax.port.known.facts import Value, join_values
from fnjax.port.known.state import State
from fnjax.port.source.naming import iter_targets, pair_targets
from fnjax.port.source.parameter_inference import iter_parameters
from fnjax.port.torch import unparse
from fnjax.port.tree.located import list_nodes

T = TypeVar("T")
Dependency = tuple[Any, str, Any]  # a function or class, the name of a fact of its summary, and its value
METHODS = frozenset({"forward", "backward", "vjp", "jvp", "vmap", "setup_context"})


@dataclass(slots=True, eq=False)
class Class:
    """A class of the file.

    Attributes:
        name: its qualified name in the file.
        bases: the qualified names of its bases, `file:Name` for those of the file.
        methods: its functions by name.
        is_function: whether it derives from torch.autograd.Function.
        top: the top-level statement that it is in.
        next_to: of a custom operator the other statements that define it.
        containers: whether forward returns arrays inside objects of the file's own.
        shaped: whether the shapes of a custom operator's results are registered, so that its body may be a callback.
    """

    name: str
    node: cst.ClassDef
    bases: tuple[str, ...]
    methods: dict[str, cst.FunctionDef]
    top: cst.CSTNode
    is_function: bool = False
    next_to: list[cst.CSTNode] = field(default_factory=list)
    shaped: bool = False
    containers: bool = False
    is_defined: bool = True  # False for a custom operator whose schema is not in the file
    left_out: list[tuple[cst.CSTNode, str, str]] = field(default_factory=list)  # why, and how severe that is
    facts: dict[str, Value] = field(default_factory=dict)  # attributes of ctx, and of what forward saves
    kept: dict[str, dict[str, Value]] = field(default_factory=dict)  # the same, by the method that has set them

    def keep_on_ctx(self, method: str, values: dict[str, Value]) -> None:
        """Record the values that a method leaves on ctx; for attributes that several methods set they are joined."""
        self.kept[method] = values
        found = {k: functools.reduce(join_values, [v[k] for v in self.kept.values() if k in v]) for k in values}
        self.facts = {**self.facts, **found}

    def find_current(self, _: str) -> dict[str, Value]:
        """Return the facts as they are now."""
        return self.facts


class SummaryField(Generic[T]):
    """One field of a function's summary, as a descriptor.

    A read records a dependency on the value: where it changes later, the reader is evaluated again.
    """

    def __init__(self, at_first: T) -> None:
        self.at_first = at_first

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, routine: Routine, owner: type) -> T:
        value: T = routine.summary.get(self.name, self.at_first)
        routine.dependencies.append((routine, self.name, value))
        return value

    def __set__(self, routine: Routine, value: T) -> None:
        routine.summary[self.name] = value


@dataclass
class Routine:
    """A function of the file: a method of a class, or a helper.

    Attributes:
        role: the method's name for the methods that PyTorch calls, else `helper`.
        dependencies: the facts that were read so far, of all functions and classes of the file.
        passed_values: the values that call sites pass for its parameters, by the top-level item of the call.
        earlier: the same of all call sites together, before this iteration.
        summary: the facts of its body and its callers, by name.
        result: what it returns.
        views: the parameter that it returns, itself or a view of it, on every path.
        draws: whether it draws random numbers.
        writes: the parameters whose memory it writes to.
        flags: for such a parameter the parameter without which it does not: `if inplace:` is around all its writes.
        gives: those of them that a helper returns in the port, where the source returns nothing, or after its results.
        only_result: True or False, where it returns nothing else.
        hands: whether a caller reads what it writes to next to what it returns.
    """

    node: cst.FunctionDef
    name: str
    role: str
    owner: Class | None = None
    dependencies: list[Dependency] = field(default_factory=list)
    passed_values: dict[cst.CSTNode, dict[str, Value]] = field(default_factory=dict)
    earlier: dict[str, Value] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)
    closure: State | None = None
    reads: dict[str, list[cst.Name]] = field(default_factory=dict)
    inside: dict[int, frozenset[int]] = field(default_factory=dict)
    closed_over: set[int] = field(default_factory=set)  # the names that functions inside it read of its variables
    metadata: set[int] = field(default_factory=set)  # the names in `x.dtype`, which reads no entry of x
    given: dict[str, list[cst.BaseExpression]] = field(default_factory=dict)  # what assignments give its variables
    written_at: set[str] = field(default_factory=set)  # the indices at which it writes

    result = SummaryField[Value | None](None)
    views = SummaryField("")
    draws = SummaryField(False)
    draws_often = SummaryField(False)
    writes = SummaryField[frozenset[str]](frozenset())
    gives = SummaryField[tuple[str, ...]](())
    only_result = SummaryField[bool | None](None)
    hands = SummaryField(False)
    concrete = SummaryField(False)  # the body of an operator that needs concrete values: under jit a callback
    materialised = SummaryField[frozenset[str]](frozenset())  # the masks whose selected entries are needed alone
    derived = SummaryField(False)  # called by code that JAX may differentiate, as a backward

    def __post_init__(self) -> None:
        forgotten = {id(n) for d in list_nodes(self.node.body, cst.Del) for n in list_nodes(d)}
        for node in list_nodes(self.node.body):
            if isinstance(node, cst.Name) and id(node) not in forgotten:
                self.reads.setdefault(node.value, []).append(node)
            elif isinstance(node, cst.Attribute) and node.attr.value in {"dtype", "device"}:
                self.metadata.add(id(node.value))
            elif isinstance(node, (cst.FunctionDef, cst.Lambda)):
                own = {p.name.value for p in list_nodes(node.params, cst.Param)}
                given = (n.target for n in list_nodes(node.body, cst.AssignTarget, cst.For, cst.CompFor))
                own |= {n for target in given for n in iter_targets(target)}
                read = (n for n in list_nodes(node, cst.Name) if n.value not in own)
                self.closed_over |= {id(n) for n in read}
            elif isinstance(node, cst.Assign):
                for target in node.targets:
                    for part, value in pair_targets(target.target, node.value):
                        if isinstance(part, cst.Name):
                            self.given.setdefault(part.value, []).append(value)
            elif isinstance(node, (cst.AssignTarget, cst.AugAssign)) and isinstance(node.target, cst.Subscript):
                self.written_at |= {unparse(e) for e in node.target.slice}

    def find_argument(self, name: str) -> Value | None:
        """Return what call sites pass for a parameter, as it was before this iteration if anything was passed then."""
        value = self.earlier.get(name) if self.earlier else self._join_passed(name)
        self.dependencies.append((self, f"argument {name}", value))
        return value

    def _join_passed(self, name: str) -> Value | None:
        """Return what is known of the values that all call sites pass for a parameter."""
        passed = [values[name] for values in self.passed_values.values() if name in values]
        return functools.reduce(join_values, passed) if passed else None

    def add_argument(self, item: cst.CSTNode, name: str, value: Value) -> None:
        """Add the value that a call in this top-level item passes for a parameter."""
        passed = self.passed_values.setdefault(item, {})
        passed[name] = join_values(passed[name], value) if name in passed else value

    def begin_iteration(self, kept: Container[cst.CSTNode]) -> None:
        """Forget what top-level items pass for its parameters, but for those that are not evaluated again."""
        names = {name for values in self.passed_values.values() for name in values}
        self.earlier = {name: value for name in names if (value := self._join_passed(name)) is not None}
        self.passed_values = {item: values for item, values in self.passed_values.items() if item in kept}

    def add_result(self, value: Value) -> None:
        """Add one more value that it may return."""
        known = self.summary.get("result")
        self.result = value if known is None else join_values(known, value)

    def add_call(self, derived: bool) -> None:
        """Add one more call, perhaps in code that JAX may differentiate."""
        self.derived = self.summary.get("derived", False) or derived

    def add_writes(self, names: frozenset[str] | set[str]) -> None:
        """Add parameters to whose memory it writes."""
        self.writes = self.summary.get("writes", frozenset()) | names

    def find_current(self, name: str) -> Any:
        """Return a fact of the summary as it is now, under the name of the dependency."""
        kind, _, parameter = name.partition(" ")
        return self._join_passed(parameter) if parameter else self.summary.get(kind, vars(Routine)[kind].at_first)

    def list_names_in(self, node: cst.CSTNode) -> frozenset[int]:
        """Return the identities of the names inside a node."""
        key = id(node)
        if key not in self.inside:
            self.inside[key] = frozenset(id(n) for n in list_nodes(node, cst.Name))
        return self.inside[key]

    @functools.cached_property
    def gives_value(self) -> bool:
        """True if it returns a value, or yields; or a function in it may."""
        kinds = (cst.Yield, cst.FunctionDef, cst.Lambda)
        inside = list_nodes(self.node.body)
        return any(isinstance(n, kinds) or (isinstance(n, cst.Return) and n.value is not None) for n in inside)

    @property
    def parameters(self) -> list[cst.Param]:
        """Its parameters."""
        return list(iter_parameters(self.node))

    @property
    def first(self) -> int:
        """The index of the first parameter that is an input of forward: after cls and ctx."""
        bound = self.owner is not None and "classmethod" in list_decorators(self.node)
        with_ctx = self.role != "helper" and not (self.role == "forward" and self.has_setup) and self.role != "vmap"
        return bound + with_ctx

    @property
    def context(self) -> str:
        """Its name for ctx."""
        known = self.role in METHODS and 0 < self.first <= len(self.parameters)
        return self.parameters[self.first - 1].name.value if known else "ctx"

    @property
    def has_setup(self) -> bool:
        """True if the class has setup_context, so that forward sees no ctx."""
        return self.owner is not None and "setup_context" in self.owner.methods


def list_decorators(node: cst.FunctionDef | cst.ClassDef) -> list[str]:
    """Return the texts of its decorators."""
    return [unparse(d.decorator) for d in node.decorators]
