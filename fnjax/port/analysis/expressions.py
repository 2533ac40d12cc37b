"""Evaluation of expressions, and speculation: what it finds is committed or not."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import libcst as cst

from fnjax.port.analysis.expr import Diagnostics, Expr, Selection, Statements, Stop
from fnjax.port.analysis.regions import Region
from fnjax.port.analysis.registry import find_node_rules, find_rules
from fnjax.port.analysis.variables import Surroundings, Variables
from fnjax.port.known.facts import LOST, UNKNOWN, Value
from fnjax.port.known.state import State
from fnjax.port.result import Finding
from fnjax.port.source.records import list_decorators
from fnjax.port.torch import MISSING, fill, read_literal, unparse
from fnjax.port.torch.expressions import bracket_parts

if TYPE_CHECKING:
    from fnjax.port.analysis.program import Program, Routine

_CALLBACK = (
    "this needs concrete values: under jit the body of the operator runs as a callback, with the shapes registered"
)
LAUNCHING = "write kernel[grid](...) where it runs, with the name of the kernel"


Operands = dict[int, tuple[cst.CSTNode, Expr]]  # expressions by identity, with their translations and values


class KernelStop(Stop):
    """Raised where a kernel goes where no launch of it would be seen."""

    def __init__(self, node: cst.CSTNode, message: str) -> None:
        super().__init__(node, "unknown", message)


class ExpressionEvaluator(Variables):
    """The expressions of a routine, and the findings of their evaluation."""

    def __init__(self, program: Program, routine: Routine, state: State, here: Surroundings) -> None:
        super().__init__(program, routine, state, here)
        self.diagnostics = Diagnostics()
        self.memo: Operands = {}
        self.returns: list[Value] = []
        # the evaluations through statements: what was known next to the state, the state, what was found
        self.traces: dict[Hashable, list[tuple[tuple[object, ...], State, Region]]] = {}
        self.materialised = routine.materialised  # as it was when this evaluation began
        self.masks: dict[str, Selection] = {}  # by the number of the mask

    def report(self, node: cst.CSTNode, kind: str, message: str, severity: str = "error") -> None:
        """Report a finding at the node."""
        self.diagnostics.report(Finding(*self.program.source.locate(node), kind, message, severity))

    def is_traced(self, value: Value) -> bool:
        """Return whether a value may be an array that is traced under jit."""
        return value.traced and not self.routine.concrete

    def note(self, node: cst.CSTNode, kind: str, message: str) -> None:
        """Note a finding that leaves the class ported."""
        self.report(node, kind, message, "note")

    def need_values(self, node: cst.CSTNode, message: str, severity: str = "error") -> None:
        """Report that the code at the node needs concrete values, which the body of a callback has."""
        if self.routine.concrete:
            self.note(node, "callback", _CALLBACK)
        else:
            self.diagnostics.concrete.add(self.program.source.locate(node))
            self.report(node, "untraced", message, severity)

    def report_untraced(self, node: cst.CSTNode, message: str) -> None:
        """Report what needs a value that is unknown while JAX traces: fnjax.torch can run some of it under jit."""
        self.need_values(node, f"{message}; JAX source of this runs outside jit only")

    def may_stand_for_selected(self, number: str) -> bool:
        """Return whether all elements may be computed in place of those that a mask, known by its number, selects."""
        return number != "" and number not in self.materialised and self.routine.role != "module"

    def need_entries(self, *values: Value) -> None:
        """Note masks whose elements must be selected here, so that the routine is evaluated again."""
        for mask in {mask for value in values for mask in value.mask.split(LOST) if mask}:
            if mask in self.materialised:
                message = "the porter knows no way to write these elements that a mask selects; write it with jnp.where"
                raise Stop(self.current, "mask", message)
            self.routine.materialised |= {mask}

    def find_one_mask(self, values: Iterable[Value]) -> str:
        """Return the mask that selects all these values; if they do not share one, note that they must be selected."""
        values = [*values]
        masks = {v.mask for v in values if v.mask}
        if len(masks) > 1 or (masks and any(v.is_tensor and not v.mask and v.rank != 0 for v in values)):
            self.need_entries(*values)
            return ""
        return masks.pop() if masks else ""

    @property
    def derived(self) -> bool:
        """True if JAX may differentiate what is evaluated here: backward, for second derivatives."""
        backward = self.routine.role in {"backward", "vjp", "jvp"}
        once = any("once_differentiable" in d for d in list_decorators(self.routine.node))
        return self.routine.derived or (backward and not once)

    def stop_gradient(self, node: cst.BaseExpression, value: Value) -> cst.BaseExpression:
        """Return an expression without history in PyTorch, as `x.item()`: no gradient goes through it."""
        if not self.derived or value.dtype in {"int", "bool"}:
            return node
        self.diagnostics.imports.add("jax")
        return fill("jax.lax.stop_gradient(A)", A=node)

    @contextlib.contextmanager
    def open_scope(self) -> Iterator[dict[str, Value]]:
        """Evaluate the block in a scope of its own; yield its variables, which are forgotten after it."""
        outer, self.state = self.state, self.state.copy()
        try:
            yield self.state.variables
        finally:
            self.state = outer

    @contextlib.contextmanager
    def speculate(self, start: State | None = None) -> Iterator[Region]:
        """Yield a region that collects what is found, to be committed or not.

        Args:
            start: what holds where it begins, if not what holds now.
        """
        around = self.current, self.state, self.memo, self.diagnostics, self.before
        found = self.returns
        region = Region((start or self.state).copy(), Diagnostics(keys=self.diagnostics.keys))
        self.state, self.diagnostics, self.before, self.memo = region.end, region.diagnostics, region.before, {}
        self.returns = region.returns
        try:
            yield region
        finally:
            region.end, region.before, region.returns = self.state, self.before, self.returns
            self.current, self.state, self.memo, self.diagnostics, self.before = around
            self.returns = found

    def commit(self, region: Region) -> Any:
        """Take over the state and all findings of a speculative evaluation, and return its translation."""
        self.go_on_with(region.end.copy())
        self.add_region(region)
        return region.made

    def add_region(self, region: Region) -> None:
        """Add all that a speculation has found, but for the variables."""
        self.diagnostics.add_diagnostics(region.diagnostics)
        self.before += region.before
        self.returns += region.returns

    def go_on_with(self, state: State) -> None:
        """Continue with another state; forget the translations of expressions in the present one."""
        self.state = state
        self.memo.clear()

    def evaluate_once(self, key: Hashable, evaluated: Callable[[], Statements]) -> Statements:
        """Return the translation of a statement: that of an earlier evaluation with the same state and dependencies."""
        around, start = self.list_dependencies(), self.state.copy()
        earlier = self.traces.setdefault(key, [])
        region = next((r for known, state, r in earlier if known == around and state == start), None)
        if region is None:
            with self.speculate() as region:
                region.made = evaluated()
            earlier.append((around, start, region))
        return [*self.commit(region)]

    def list_dependencies(self) -> tuple[object, ...]:
        """Return the dependencies of a translation, next to the state and the facts of routine and file."""
        return self.here, self.diagnostics.keys, self.routine.draws_often, self.routine.gives

    def port(self, node: cst.BaseExpression) -> Expr:
        """Return the translation and the value of an expression; once for each evaluation through its statement."""
        if id(node) in self.memo:
            return self.memo[id(node)][1]
        callee, files = (self.name_callee(node),) if isinstance(node, cst.Call) else (), self.program.mentions
        for rule in find_rules(*callee, files) if callee else find_node_rules(type(node), files):
            expr: Expr | None = rule(self, node, *callee)
            if expr is not None:
                break
        else:
            found = read_literal(node)
            known = Value("static", "bool" if isinstance(found, bool) else "unknown", literal=found)
            expr = Expr(self.port_parts(node), known if found is not MISSING else UNKNOWN)
        if node not in self.program.kernel_uses and (
            expr.value.kind == "kernel" or self.program.is_kernel(self.find_name(node))
        ):
            raise KernelStop(
                node, f"{unparse(node)} is a Triton kernel, or holds one, which is not launched: {LAUNCHING}"
            )
        if LOST in expr.value.mask:
            self.need_entries(expr.value)
        self.memo[id(node)] = (node, expr)
        return expr

    @contextlib.contextmanager
    def take(self, operands: Operands) -> Iterator[None]:
        """Use other translations of these expressions within the block."""
        before, memo = {key: self.memo.get(key) for key in operands}, self.memo
        memo |= operands
        try:
            yield
        finally:
            for key in before.keys() & memo.keys():
                known = before[key]
                if known is None:
                    del memo[key]
                else:
                    memo[key] = known

    def port_parts(self, node: Any) -> Any:
        """Return the node with its expressions translated."""
        changes: dict[str, Any] = {}
        for f in dataclasses.fields(node):
            value = getattr(node, f.name)
            if f.name in {"attr", "keyword", "lpar", "rpar", "operator", "annotation"}:
                continue
            new = self._port_part(value)
            if new is not value:
                changes[f.name] = new
        return bracket_parts(node.with_changes(**changes)) if changes else node

    def _port_part(self, value: Any) -> Any:
        if isinstance(value, cst.BaseExpression):
            return self.port(value).node
        if isinstance(value, cst.CSTNode):
            return (
                self.port_parts(value)
                if not isinstance(value, (cst.BaseParenthesizableWhitespace, cst.Comma))
                else value
            )
        if isinstance(value, (tuple, list)):
            parts = [self._port_part(v) for v in value]
            return parts if any(a is not b for a, b in zip(parts, value, strict=True)) else value
        return value
