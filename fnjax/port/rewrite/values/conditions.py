"""Conditions of Python and of tensors in one `and` or `or`.

What: Python's part is asked first and stays Python's, so that what stands behind it is only traced where it may run;
the tensors' part becomes one array. `not` goes to the parts.
Before: `if limit is not None and n > limit: x = x * (limit / n)`
After: `if limit is not None: x = jax.lax.cond(n > limit, lambda: x * (limit / n), lambda: x)`
Safety: each block stands behind the same answers as in the source.
Limits: a block that several answers lead to is written out for each of them; `and` and `or` of tensors that are no
conditions (`x or y`) run un-jitted only.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.analysis.program import nodes
from fnjax.port.analysis.registry import expression
from fnjax.port.analysis.walk import Statements, Term, Walk, parse, placed
from fnjax.port.known.facts import Value, join_values
from fnjax.port.torch import MISSING, Operation, code, find, fit

Formula = cst.BaseExpression | bool


def blocked(walk: Walk, node: Any) -> Any:
    """An `if` whose blocks stand on lines of their own."""
    if not isinstance(node, (cst.If, cst.Else)):
        return node
    changes: dict[str, Any] = {}
    if isinstance(node.body, cst.SimpleStatementSuite):
        changes["body"] = cst.IndentedBlock([cst.SimpleStatementLine([s]) for s in node.body.body])
    orelse = blocked(walk, node.orelse) if isinstance(node, cst.If) else None
    if isinstance(node, cst.If) and orelse is not node.orelse:
        changes["orelse"] = orelse
    return placed(walk, node.with_changes(**changes), node) if changes else node


def asks(value: Value) -> str:
    """Whose answer a condition is: `python`, `array`, or `either`, which has the form of an array's as well."""
    open_ = value.kind == "unknown" and value.dtype == "bool" and value.place is not None
    return "array" if value.traced else "either" if open_ else "python"


_ONLY_ASKING = frozenset({"builtins.isinstance", "builtins.hasattr", "builtins.len", "builtins.getattr"})


def _acts(walk: Walk, node: cst.BaseExpression) -> bool:
    """Whether a condition may do something beside asking."""
    calls = [n.func for n in nodes(node) if isinstance(n, cst.Call)]
    named = any(isinstance(n, (cst.NamedExpr, cst.Await, cst.Yield)) for n in nodes(node))
    return named or not all(walk.name_of(f) in _ONLY_ASKING or _computes(walk, f) for f in calls)


def _computes(walk: Walk, function: cst.BaseExpression) -> bool:
    """Whether this is a function of torch, or a method of tensors, that changes nothing."""
    name = walk.name_of(function)
    method = function.attr.value if isinstance(function, cst.Attribute) and not name else ""
    found = find(f"torch.Tensor.{method}" if method else name)
    return isinstance(found, Operation) and not found.inplace and not found.first.random


def operands(node: cst.BooleanOperation) -> list[cst.BaseExpression]:
    """The operands of `a and b and c`."""
    found: list[cst.BaseExpression] = []
    for side in (node.left, node.right):
        same = isinstance(side, cst.BooleanOperation) and type(side.operator) is type(node.operator)
        found += operands(side) if same else [side]  # type: ignore[arg-type] # as `same` says
    return found


_OPPOSITES: dict[type[cst.CSTNode], Any] = {
    cst.Is: cst.IsNot,
    cst.IsNot: cst.Is,
    cst.In: cst.NotIn,
    cst.NotIn: cst.In,
    cst.Equal: cst.NotEqual,
    cst.NotEqual: cst.Equal,
}


def negated(node: cst.BaseExpression) -> cst.BaseExpression:
    """`not` of a condition, inside its parts."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
        return node.expression
    if isinstance(node, cst.BooleanOperation):
        operator = cst.Or() if isinstance(node.operator, cst.And) else cst.And()
        return _joined([negated(n) for n in operands(node)], operator)
    if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
        (last,) = node.comparisons
        opposite = _OPPOSITES.get(type(last.operator))
        if opposite is not None:
            return node.with_changes(comparisons=[last.with_changes(operator=opposite())])
    return cst.UnaryOperation(cst.Not(), fit(node))


def _joined(parts: list[cst.BaseExpression], operator: cst.BaseBooleanOp) -> cst.BaseExpression:
    least = 5 if isinstance(operator, cst.And) else 4
    return functools.reduce(lambda a, b: cst.BooleanOperation(fit(a, least - 1), operator, fit(b, least)), parts)


def chain(walk: Walk, node: cst.Comparison) -> cst.BaseExpression | None:
    """`a < b and b < c` for `a < b < c` of tensors."""
    middle = [t.comparator for t in node.comparisons[:-1]]
    if not middle or any(isinstance(n, (cst.NamedExpr, cst.Await, cst.Yield)) for m in middle for n in nodes(m)):
        return None
    if any(isinstance(n, cst.Attribute) and n.attr.value.endswith("_") for m in middle for n in nodes(m)):
        return None  # it writes
    links: list[cst.BaseExpression] = []
    for left, target in zip([node.left, *middle], node.comparisons, strict=True):
        links.append(cst.Comparison(left, [target]))
    return (
        _joined(links, cst.And())
        if any(walk.expr(n).value.traced for n in (node.left, *(t.comparator for t in node.comparisons)))
        else None
    )


def _opened(walk: Walk, node: cst.BaseExpression) -> cst.BaseExpression:
    """The condition with `not` inside, and with Python's part of variables that hold a whole condition."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
        inner = node.expression
        if isinstance(inner, cst.Name):
            opened = _opened(walk, inner)
            return node if opened is inner else negated(opened)
        inner = negated(inner)
        return node if isinstance(inner, cst.UnaryOperation) else _opened(walk, inner)
    if isinstance(node, cst.BooleanOperation):
        return _joined([_opened(walk, n) for n in operands(node)], node.operator)
    if isinstance(node, cst.Comparison) and (links := chain(walk, node)) is not None:
        return links
    guard = walk.lookup(node.value).guard if isinstance(node, cst.Name) else None
    if guard is None:
        return node
    text = f"{code(node)} is True or {code(node)}" if guard else f"{code(node)} is not False and {code(node)}"
    return parse(text)


def _python_part(walk: Walk, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The first condition of Python's in a condition that asks tensors as well."""
    asked = [(n, asks(walk.expr(n).value)) for n in _atoms(node)]
    if all(a != "array" for _, a in asked):
        return None
    return next((n for n, a in asked if a == "python"), None)


def _atoms(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    return [a for n in operands(node) for a in _atoms(n)] if isinstance(node, cst.BooleanOperation) else [node]


def _assumed(node: cst.BaseExpression, part: cst.BaseExpression, answer: bool) -> Formula:
    """What is left of a condition when one of its parts is known."""
    if node is part:
        return answer
    if not isinstance(node, cst.BooleanOperation):
        return node
    deciding = isinstance(node.operator, cst.Or)
    left = [_assumed(n, part, answer) for n in operands(node)]
    if any(n is deciding for n in left):
        return deciding
    rest = [n for n in left if not isinstance(n, bool)]
    return _joined(rest, node.operator) if rest else not deciding


def parted(walk: Walk, test: cst.BaseExpression) -> tuple[cst.BaseExpression, Formula, Formula] | None:
    """Python's part of a condition that asks tensors as well, and what is left to ask after either answer."""
    if not isinstance(test, (cst.BooleanOperation, cst.UnaryOperation, cst.Name, cst.Comparison)):
        return None
    with walk.apart(), walk.perhaps():
        opened = placed(walk, _opened(walk, test), test)
        part = _python_part(walk, opened)
    if part is None or part is test:
        return None
    return part, _assumed(opened, part, True), _assumed(opened, part, False)


def split(walk: Walk, node: cst.If) -> cst.If | None:
    """An `if` with Python's part of its condition outside."""
    found = parted(walk, node.test)
    if found is None:
        return None
    part, yes, no = found
    first, second = _block(node, yes), _block(node, no)
    if first is None:
        part, first, second = negated(part), second, None
    made = node.with_changes(test=fit(part, 1), body=_suite(first), orelse=_otherwise(second))
    return placed(walk, made, node)  # type: ignore[no-any-return] # the same node


def split_expression(walk: Walk, node: cst.IfExp) -> cst.IfExp | None:
    """`a if c else b` with Python's part of its condition outside."""
    found = parted(walk, node.test)
    if found is None:
        return None
    part, yes, no = found

    def value(answer: Formula) -> cst.BaseExpression:
        if isinstance(answer, bool):
            return node.body if answer else node.orelse
        return fit(cst.IfExp(fit(answer, 3), fit(node.body, 3), node.orelse))

    return placed(walk, node.with_changes(test=fit(part, 3), body=fit(value(yes), 3), orelse=value(no)), node)  # type: ignore[no-any-return] # the same node


def split_return(walk: Walk, node: cst.If, rest: list[Any]) -> Statements | None:
    """`if c: return a` and what follows it, with Python's part of the condition outside."""
    found = parted(walk, node.test)
    if found is None:
        return None
    part, *answers = found
    inner: list[list[Any]] = [
        (list(node.body.body) if answer else rest) if isinstance(answer, bool) else [cst.If(answer, node.body), *rest]
        for answer in answers
    ]
    first = node.with_changes(test=fit(part, 1), body=cst.IndentedBlock(inner[0]))
    return [placed(walk, first, node), *(placed(walk, s, node) for s in inner[1])]


def _block(node: cst.If, answer: Formula) -> cst.BaseSuite | cst.If | None:
    if answer is True:
        return node.body
    if answer is False:
        return node.orelse if isinstance(node.orelse, cst.If) else node.orelse.body if node.orelse else None
    return cst.If(fit(answer, 1), node.body, node.orelse)


def _suite(block: cst.BaseSuite | cst.If | None) -> cst.BaseSuite:
    assert block is not None
    return cst.IndentedBlock([block]) if isinstance(block, cst.If) else block


def _otherwise(block: cst.BaseSuite | cst.If | None) -> cst.Else | cst.If | None:
    return block if block is None or isinstance(block, cst.If) else cst.Else(block)


def without_continue(block: Sequence[Any]) -> list[Any] | None:
    """The block of a loop with an `else` in place of `if c: continue`."""
    for i, statement in enumerate(block):
        if not isinstance(statement, cst.If) or statement.orelse is not None or not _continues(statement):
            continue
        rest = without_continue(block[i + 1 :]) or list(block[i + 1 :])
        before: list[Any] = list(statement.body.body)[:-1]
        if not before and not rest:
            return list(block[:i])
        body = cst.IndentedBlock(before or rest)
        test = statement.test if before else negated(statement.test)
        orelse = cst.Else(cst.IndentedBlock(rest)) if before and rest else None
        return [*block[:i], statement.with_changes(test=fit(test, 1), body=body, orelse=orelse)]
    return None


def _continues(node: cst.If) -> bool:
    last = node.body.body[-1]
    return isinstance(last, cst.SimpleStatementLine) and code(last).strip() == "continue"


@expression(cst.BooleanOperation, general=True)
def boolean(walk: Walk, node: cst.BooleanOperation) -> Term:
    """`a and b`."""
    found = operands(node)
    terms = [walk.expr(found[0])]
    with walk.perhaps():
        terms += [walk.expr(n) for n in found[1:]]
    operand_terms = list(zip(found, terms, strict=True))
    terms = _undecided(found, terms, isinstance(node.operator, cst.Or))
    if len(terms) == 1:
        return terms[0]
    asking = [
        n for n, term in operand_terms if any(term is t for t in terms[:-1])
    ]  # a call that is answered does nothing
    decided = terms[-1].answer is isinstance(node.operator, cst.Or) and not any(_acts(walk, n) for n in asking)
    terms = [*map(_question, terms[:-1]), terms[-1]]
    asked = [asks(t.value) for t in terms]
    arrays = [t for t, a in zip(terms, asked, strict=True) if a != "python"]
    if "array" in asked and all(t.value.dtype == "bool" for t in arrays):
        return _condition(walk, node, terms, arrays)
    if "array" in asked[:-1]:
        walk.report(node, "untraced", "`and` and `or` ask a tensor for its Python bool; this runs un-jitted only")
    value = functools.reduce(lambda a, b: b if a.kind == b.kind else join_values(a, b), [t.value for t in terms])
    made = walk.rebuilt(node) if len(terms) == len(found) else _joined([t.node for t in terms], type(node.operator)())
    known = terms[-1].value.literal if decided else MISSING
    return Term(made, replace(value, literal=known), answered=decided)


def _question(term: Term) -> Term:
    """`n != 0` for the whole number n of a tensor, which `and` or `or` asks."""
    value = term.value
    if not (value.is_tensor and value.dtype == "int" and value.rank == 0):
        return term
    return Term(parse(f"{code(fit(term.node, 7))} != 0"), replace(value, dtype="bool", number="", exact=""))


def _undecided(asked: list[cst.BaseExpression], terms: list[Term], either: bool) -> list[Term]:
    """The operands of `and` or `or` without those that the port knows and that decide nothing."""
    if not any(t.value.dtype == "bool" and isinstance(t.value.literal, bool) for t in terms):
        return terms
    left: list[Term] = []
    for i, term in enumerate(terms):
        known = term.answer
        if known is either:  # it decides: what follows is never asked, and what only reads is not missed
            before = [(n, t.value) for n, t in zip(asked, terms, strict=True) if any(t is other for other in left)]
            named = all(isinstance(n, (cst.Name, cst.Attribute)) for n, _ in before)
            flags = named and all(v.kind == "static" and v.dtype == "bool" for _, v in before)
            return [term] if flags else [*left, term]
        if known is None or i == len(terms) - 1:
            left.append(term)
    if len(left) > 1 and left[-1].answer is (not either) and all(t.value.dtype == "bool" for t in left):
        left.pop()
    return left


def _condition(walk: Walk, node: cst.BooleanOperation, terms: list[Term], arrays: list[Term]) -> Term:
    """Python's conditions, then one array of the others."""
    word, sign = ("and", "&") if isinstance(node.operator, cst.And) else ("or", "|")
    python = [t for t in terms if all(t is not a for a in arrays)]
    together = arrays[0].node
    if len(arrays) > 1:
        together = parse(f" {sign} ".join(f"({code(t.node)})" for t in arrays))
        if any(t.value.rank != 0 and t.value.is_tensor for t in arrays):  # of one entry, as it has a Python bool
            walk.sink.imports.add("jnp")
            together = parse(f"jnp.all({code(together)})")
    if not python and all(t.value.is_tensor or t.value.kind == "unknown" for t in arrays):
        return Term(together, Value("tensor", "bool", 0))
    known = all(t.value.dtype == "bool" for t in python)
    guard = isinstance(node.operator, cst.Or) if python and known else None
    texts = [code(fit(t.node, 5)) for t in python]
    made = parse(f" {word} ".join([*texts, code(fit(together, 5))]))
    return Term(made, Value("unknown", "bool", 0, mixed=True, guard=guard, place=walk.fresh(node)))
