"""`y.backward(g)` and reads of `x.grad`, before anything else is looked at.

What: inside a function, a call of backward on what was computed from tensors that ask for gradients.
Before: `y.backward(g)` and `return x.grad`
After: `x_grad = torch.autograd.grad(y, x, g)[0]` and `return x_grad`
Several calls, one after the other, add up what reaches a tensor: `x_grad + x_grad_2`; `x.grad = None` begins anew.
Safety: only where each tensor whose `.grad` is read asks for gradients in the function, and the calls of backward that
compute it precede the read, in no loop.
Limits: gradients in containers stay as they are, and are findings.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fnjax.port.torch import unparse
from fnjax.port.torch.expressions import find_names
from fnjax.port.tree.located import EarlyRewrite, Located, Positions, list_nodes


class _FunctionRewriter(Located):
    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> bool:
        """Skip lines, which contain no function."""
        return False

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        calls = {n: found for n in list_nodes(original_node.body) if (found := _read_backward_call(n)) is not None}
        cleared = {n: name for n in list_nodes(original_node.body) if (name := _find_cleared(n))}
        ignored = {id(t) for n in cleared for t in list_nodes(n)}
        reads = [n for n in list_nodes(original_node.body) if _is_grad(n) and id(n) not in ignored]
        if not calls or not reads:
            return updated_node
        giving = self._find_giving_calls(original_node, calls, reads, cleared)
        if giving is None:
            return updated_node
        made = original_node.visit(
            _GradRewriter(self.positions, calls, giving, frozenset(cleared), _collect_names(original_node))
        )
        assert isinstance(made, cst.FunctionDef)
        return made

    def _find_giving_calls(
        self,
        function: cst.FunctionDef,
        calls: dict[cst.CSTNode, tuple[str, str]],
        reads: list[cst.CSTNode],
        cleared: dict[cst.CSTNode, str],
    ) -> dict[cst.CSTNode, list[cst.CSTNode]] | None:
        """Return the calls whose gradients each read of `.grad` sees; None if that is unknown."""
        at = self.positions
        asked: dict[str, tuple[int, int]] = {}
        for node in list_nodes(function.body):
            for name in _iter_asking_variables(node):
                asked.setdefault(name, at[node])
        leaves = {unparse(r.value): asked.get(unparse(r.value)) for r in reads}  # type: ignore[attr-defined] # attributes
        blocks = list_nodes(function.body, *_PERHAPS)
        found: dict[cst.CSTNode, list[cst.CSTNode]] = {}
        for read in reads:
            name = unparse(read.value)  # type: ignore[attr-defined] # an attribute
            begins = leaves[name]
            if begins is None:
                return None
            begins = max([begins, *(at[n] for n, x in cleared.items() if x == name and at[n] < at[read])])
            before = [c for c in calls if begins < at[c] < at[read]]
            if len(before) > 1:
                before = [c for c in before if name in self._find_reached(function, c, calls[c][0], leaves)]
                if any(
                    at[n] > begins and _stands_within(c, n) and not _stands_within(read, n)
                    for n in blocks
                    for c in before
                ):
                    return None  # nobody knows whether it is called
            loops = (n for n in blocks if isinstance(n, (cst.For, cst.While)) and at[n] > asked[name])
            if not before or any(_stands_within(c, n) for n in loops for c in before):  # iterations add up
                return None
            found[read] = before
        return found if {c for given in found.values() for c in given} == set(calls) else None

    def _find_reached(
        self,
        function: cst.FunctionDef,
        call: cst.CSTNode,
        output: str,
        leaves: dict[str, tuple[int, int] | None],
    ) -> set[str]:
        """Return the variables that an output may be computed from; a leaf is computed from nothing."""
        at = self.positions
        steps = [(at[n], *_read_step(n)) for n in list_nodes(function.body) if n in at and at[n] < at[call]]
        reached: set[str] = set()
        waiting = find_names(cst.parse_expression(output))
        while waiting:
            name = waiting.pop()
            reached.add(name)
            begins = leaves.get(name)
            if begins is None or any(name in given for place, given, _ in steps if place > begins):
                waiting |= {n for _, given, read in steps if name in given for n in read} - reached
        return reached


_PERHAPS = (cst.If, cst.For, cst.While, cst.Try, cst.Match)


def _stands_within(node: cst.CSTNode, block: cst.CSTNode) -> bool:
    return any(n is node for n in list_nodes(block))


def _collect_names(function: cst.FunctionDef) -> set[str]:
    return {n.value for n in list_nodes(function, cst.Name)}


def _read_step(node: cst.CSTNode) -> tuple[set[str], set[str]]:
    """Return the variables that a statement may change, and those that it reads."""
    match node:
        case cst.Assign():
            targets = [t.target for t in node.targets if not _marks_gradient(t.target)]
            return {n for t in targets for n in find_names(t)}, find_names(node)
        case cst.AugAssign() | cst.AnnAssign():
            return find_names(node.target), find_names(node)
        case cst.For():
            return find_names(node.target), find_names(node.iter)
        case cst.WithItem() | cst.NamedExpr() | cst.Expr():  # a call may write to any of its arguments
            return find_names(node), find_names(node)
    return set(), set()


def _marks_gradient(target: cst.BaseExpression) -> bool:
    return isinstance(target, cst.Attribute) and target.attr.value in {"grad", "requires_grad"}


class _GradRewriter(Located):
    def __init__(
        self,
        positions: Positions,
        calls: dict[cst.CSTNode, tuple[str, str]],
        giving: dict[cst.CSTNode, list[cst.CSTNode]],
        cleared: frozenset[cst.CSTNode],
        taken: set[str],
    ) -> None:
        super().__init__(positions)
        self.calls, self.cleared = calls, cleared
        self.wanted: dict[cst.CSTNode, list[str]] = {}  # the tensors whose gradients each call computes
        self.sums: dict[cst.CSTNode, list[str]] = {}  # what takes the place of each read
        self.names: dict[tuple[cst.CSTNode, str], str] = {}
        for read, given in giving.items():
            name = unparse(read.value)  # type: ignore[attr-defined] # an attribute of a variable
            for call in given:
                if name not in self.wanted.setdefault(call, []):
                    self.wanted[call].append(name)
                    earlier = sum(n == name for _, n in self.names)
                    plain = f"{name}_grad" if f"{name}_grad" not in taken else f"gradient_of_{name}"
                    self.names[call, name] = f"{plain}_{earlier + 1}" if earlier else plain
            self.sums[read] = [self.names[call, name] for call in given]

    def leave_Expr(self, original_node: cst.Expr, updated_node: cst.Expr) -> cst.BaseSmallStatement:
        if original_node not in self.calls:
            return updated_node
        output, cotangent = self.calls[original_node]
        inputs = self.wanted[original_node]
        rest = f", {cotangent}" if cotangent else ""
        targets = ", ".join(self.names[original_node, x] for x in inputs)
        several = f"({', '.join(inputs)})" if len(inputs) > 1 else inputs[0]
        first = "" if len(inputs) > 1 else "[0]"
        statement = cst.parse_statement(f"{targets} = torch.autograd.grad({output}, {several}{rest}){first}")
        assert isinstance(statement, cst.SimpleStatementLine)
        return statement.body[0].with_changes(semicolon=updated_node.semicolon)

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.BaseSmallStatement:
        return cst.Pass(semicolon=updated_node.semicolon) if original_node in self.cleared else updated_node

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        pairs = zip(original_node.body, updated_node.body, strict=True)
        kept = [new for old, new in pairs if not isinstance(old, cst.SimpleStatementLine) or {*old.body} - self.cleared]
        return updated_node.with_changes(body=kept or [cst.SimpleStatementLine([cst.Pass()])])

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        given = self.sums.get(original_node)
        if given is None:
            return updated_node
        if len(given) == 1:
            return cst.Name(given[0], lpar=updated_node.lpar, rpar=updated_node.rpar)
        return cst.parse_expression(f"({' + '.join(given)})")


def _find_cleared(node: cst.CSTNode) -> str:
    """Return the variable whose gradient `x.grad = None` clears."""
    if not isinstance(node, cst.Assign) or len(node.targets) != 1 or unparse(node.value) != "None":
        return ""
    target = node.targets[0].target
    return unparse(target.value) if isinstance(target, cst.Attribute) and _is_grad(target) else ""


def _is_grad(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Attribute) and node.attr.value == "grad" and isinstance(node.value, cst.Name)


def _read_backward_call(node: cst.CSTNode) -> tuple[str, str] | None:
    """Return what `y.backward(g)` and `torch.autograd.backward` differentiate, and the gradient they begin with."""
    if not isinstance(node, cst.Expr) or not isinstance(node.value, cst.Call):
        return None
    call = node.value
    given = [a for a in call.args if a.keyword is None or a.keyword.value in {"tensors", "gradient", "grad_tensors"}]
    texts = [unparse(a.value) for a in given]
    if any(a.star for a in call.args):
        return None
    if unparse(call.func) == "torch.autograd.backward":
        return (texts[0], texts[1] if len(texts) > 1 else "") if texts else None
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "backward":
        return unparse(call.func.value), texts[0] if texts else ""
    return None


def _iter_asking_variables(node: cst.CSTNode) -> Iterator[str]:
    """Yield the variables that a node marks as asking for gradients."""
    if isinstance(node, cst.Assign):
        if "requires_grad" in unparse(node.value):
            for target in node.targets:
                elements = target.target.elements if isinstance(target.target, (cst.Tuple, cst.List)) else ()
                yield from (unparse(e.value) for e in elements)
                yield unparse(target.target)
        yield from (
            unparse(t.target.value)
            for t in node.targets
            if isinstance(t.target, cst.Attribute) and t.target.attr.value == "requires_grad"
        )
    elif (
        isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "requires_grad_"
    ):
        yield unparse(node.func.value)


BACKWARD_CALLS = EarlyRewrite(
    frozenset({cst.Expr}),
    lambda node: _read_backward_call(node) is not None,
    lambda made, at: made.visit(_FunctionRewriter(at)),
)
