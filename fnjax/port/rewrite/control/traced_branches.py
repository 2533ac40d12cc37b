"""An `if` on a tensor as jax.lax.cond.

What: the branches become lambdas where they only assign, else functions of the variables that they write; checks that
only raise keep their `if` and run where the value is known.
Before: `if x.sum() > 0: x = x * 2`
After: `x = jax.lax.cond(jnp.sum(x) > 0, lambda: x * 2, lambda: x)`
Safety: only where both branches give the same variables tensors of one dtype and shape, as far as they are known.
Limits: see the rules of conditions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import libcst as cst

from fnjax.port.analysis.effects import NOTHING, find_flow
from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements, find_names, list_statements
from fnjax.port.analysis.regions import Region
from fnjax.port.known.facts import Value
from fnjax.port.rewrite.control.branch_values import (
    Ends,
    are_alike,
    describe_choice,
    is_scalar_for,
    join_returned,
    may_be_widened,
    must_select,
    shape_like,
    was_number,
)
from fnjax.port.rewrite.control.checks import only_raises, port_value_check
from fnjax.port.rewrite.control.regions import (
    can_be_carried,
    find_last_return,
    make_call,
    make_function,
    make_line,
    make_names,
    make_predicate,
    make_return,
    make_row,
    set_apart,
)
from fnjax.port.rewrite.values.arithmetic import expand_augmented
from fnjax.port.source.naming import iter_targets, pair_targets
from fnjax.port.torch import bracket, read_literal
from fnjax.port.torch.expressions import TemplateFiller
from fnjax.port.tree.located import list_nodes, list_small_statements

_INLINE = 3  # values that lambdas return; more are easier to read in functions


@dataclass(slots=True)
class Choice:
    """An `if` on a tensor whose blocks have been evaluated.

    Attributes:
        node: the `if`.
        test: its condition.
        branches: the region of each block.
        whole: the region of both.
        start: the variables before it.
        ends: those after each block.
        new: what is known of outputs, where that is more than in the regions.
    """

    node: cst.If
    test: Expr
    branches: list[Region]
    whole: Region
    start: dict[str, Value]
    ends: Ends
    new: dict[str, Value] = field(default_factory=dict)


def port_traced_branch(ev: Evaluator, node: cst.If, test: Expr) -> Statements | None:
    """Return the form of an `if` on a tensor that jit can trace; None if it has none."""
    if only_raises(node):
        return port_value_check(ev, node, test)
    if test.value.null.guard is not None:  # Python's part could not be evaluated first
        return None
    with ev.speculate() as whole:
        branches = ev.evaluate_each_branch([node.body, ev.find_else_block(node)])
        ev.join_branches(branches)
    start = ev.state
    ends: Ends = [(start if branch.leaves else branch.end).variables for branch in branches]
    choice = Choice(node, test, branches, whole, start.variables, ends)
    if whole.untraced or not _are_branches_alike(ev, choice):  # jax.lax.cond traces outside jit, too
        return None
    made = _write_cond(ev, choice)
    if made is None:
        return None
    whole.effects = NOTHING  # but for those of the translation
    ev.commit(whole)
    for name, value in choice.new.items():
        ev.bind_name(name, value, node)
    return made


def _are_branches_alike(ev: Evaluator, choice: Choice) -> bool:
    """Return whether the outputs of both branches have one dtype and shape, as far as is known."""
    first, second = choice.ends
    written = {n for n in ev.program.list_bound(choice.node) if n in first and n in second and ev.is_live(n)}
    given = all(are_alike(a, b) for a in choice.branches[0].returns for b in choice.branches[1].returns)
    return given and all(are_alike(first[n], second[n]) for n in written)


def _write_cond(ev: Evaluator, choice: Choice) -> Statements | None:
    """Return the choice between two regions; None if they do what no function of JAX's does."""
    bodies = [list_statements(b.made) if b.made else [] for b in choice.branches]
    returned = [r for r in map(find_last_return, bodies) if r is not None]
    ending = len(returned) == 2
    draws = choice.whole.diagnostics.keys != ev.diagnostics.keys
    if any(b.effects.acts or b.effects.jumps or (b.effects.returns and not ending) for b in choice.branches):
        return None
    if len(returned) == 1 or (draws and not ending):
        return None
    if ending:
        bodies = [b[:-1] for b in bodies]
    outputs = [] if ending else _list_outputs(ev, choice, bodies)
    if not outputs and not (ending and join_returned(choice.whole.returns)):
        return None
    values = _write_as_values(bodies, returned, outputs)
    pairs = [choice.whole.returns[-2:]] if ending else [[end[n] for end in choice.ends] for n in outputs]
    selects = [must_select(a, b, *sides) for (a, b), sides in zip(pairs, values or (), strict=False)]
    if values and any(selects):  # jnp.where gives a number and an array one dtype, and one shape
        if not all(s or (a.is_tensor and b.is_tensor) for s, (a, b) in zip(selects, pairs, strict=True)):
            return None
        found = [describe_choice(*pair) for pair in pairs]
        choice.new |= zip(outputs, found, strict=False)
        if ending:
            choice.whole.returns[-2:] = [replace(found[0], memref=ev.make_memref(ev.current))]
        named = zip(outputs, values, selects, strict=False)
        shaped = [sides if select else _shape_scalar(ev, choice, n, sides) for n, sides, select in named]
        return _write_line_by_line(ev, choice.test, outputs, shaped or values, selects)
    if not ending and not _can_be_handed_on(choice, outputs, values is None):
        return None
    if values:
        shaped = [_shape_scalar(ev, choice, n, sides) for n, sides in zip(outputs, values, strict=False)]
        made = write_cond(ev, choice.test, *map(make_row, zip(*(shaped or values), strict=True)))
        return [_write_outputs(outputs, made)]
    results = returned if ending else [make_names(outputs)] * 2
    blocks = [[*body, make_return(result)] for body, result in zip(bodies, results, strict=True)]
    # Functions have parameters for what they read before they write it; other variables are closed over.
    written = frozenset().union(*(b.effects.binds for b in choice.branches))
    read = frozenset().union(*(find_flow(cst.IndentedBlock(b))[0] for b in blocks))
    given = sorted(n for n in read & written if n in choice.start or n == ev.program.key_name)
    numbers = [n for n in given if n in choice.start and choice.start[n].kind == "static"]  # not traced inside, either
    given = [n for n in given if n not in numbers]
    parameters = [*given, *(f"{n}={n}" for n in numbers)]
    names = [ev.make_unused_name("positive"), ev.make_unused_name("negative")]
    functions = [make_function(name, parameters, block) for name, block in zip(names, blocks, strict=True)]
    ev.diagnostics.imports.add("jax")
    called = make_call("jax.lax.cond", make_predicate(choice.test), *(cst.Name(n) for n in (*names, *given)))
    return [*functions, set_apart(_write_outputs(outputs, called))]


def _write_line_by_line(
    ev: Evaluator,
    test: Expr,
    outputs: list[str],
    values: list[tuple[cst.BaseExpression, ...]],
    selects: list[bool],
) -> Statements:
    """Return the assignments of an `if`: jnp.where for each output in `selects`, one jax.lax.cond for the others.

    One assignment has all outputs where the test, or the value of another output, reads one of them.

    Args:
        ev: the evaluator.
        test: the test.
        outputs: the variables; none where the branches return.
        values: for each output its expressions in both branches.
        selects: for each output whether jnp.where selects it.
    """
    writers = [write_selection if s else write_cond for s in selects]
    made = [write(ev, test, *sides) for write, sides in zip(writers, values, strict=True)]
    read = [find_names(v) - {n} for n, sides in zip(outputs, values, strict=False) for v in sides]
    if not outputs or find_names(test.node).union(*read) & {*outputs}:
        return [_write_outputs(outputs, make_row(made))]
    lines: Statements = [
        _write_outputs([n], value) for n, value, select in zip(outputs, made, selects, strict=True) if select
    ]
    arrays = [n for n, select in zip(outputs, selects, strict=True) if not select]
    if arrays:
        sides = zip(*(v for v, select in zip(values, selects, strict=True) if not select), strict=True)
        lines.insert(0, _write_outputs(arrays, write_cond(ev, test, *map(make_row, sides))))
    return lines


def _write_outputs(outputs: list[str], value: cst.BaseExpression) -> cst.SimpleStatementLine:
    return make_line(make_names(outputs), value) if outputs else make_return(value)


def _list_outputs(ev: Evaluator, choice: Choice, bodies: list[Statements]) -> list[str]:
    """Return the variables that the branches bind and later code reads, else all; none if one may be unbound."""
    first, second = (branch.effects.binds for branch in choice.branches)
    read = frozenset().union(*(find_flow(cst.IndentedBlock(b))[0] for b in bodies))  # before they are written
    own = {n for n in first | second if n not in read and _is_only_read_in(ev, choice.node, n)}
    outputs = sorted(n for n in (first | second) - own if ev.is_live(n)) or sorted(first | second)
    one_sided = [n for n in outputs if not (n in first and n in second)]
    unknown = any(n not in choice.start or _is_first_bound_here(ev, choice.node, n) for n in one_sided)
    return [] if unknown else outputs


def _can_be_handed_on(choice: Choice, outputs: list[str], as_functions: bool) -> bool:
    """Return whether all outputs are arrays after jax.lax.cond; what is known of them then goes to the choice."""
    (first, second), after = choice.ends, choice.whole.end.variables
    if not all(can_be_carried(after[n]) or was_number(after[n], choice.start.get(n)) for n in outputs):
        return False
    if as_functions and any(may_be_widened(first[n], second[n]) for n in outputs if n in first and n in second):
        return False
    for n in outputs:
        if after[n].memref is None:
            choice.new[n] = Value("tensor", after[n].dtype, 0)
        elif as_functions and not after[n].is_tensor:
            after[n] = Value("tensor", after[n].dtype, after[n].rank, memref=after[n].memref)
    return True


def _write_as_values(
    bodies: list[Statements], returned: list[cst.BaseExpression], outputs: list[str]
) -> list[tuple[cst.BaseExpression, ...]] | None:
    """Return the two values of each output as expressions; None if the branches need statements."""
    if returned:
        return None if any(bodies) else [tuple(returned)]
    sides = [_collect_assigned(body) for body in bodies]
    if len(outputs) > _INLINE or any(side is None for side in sides):
        return None
    known = [side for side in sides if side is not None]
    # All values are of the variables as they were: none may read what another one has just taken.
    if any(n in side for side in known for k in outputs if k in side for n in find_names(side[k]) if n != k):
        return None
    return [tuple(side.get(n, cst.Name(n)) for side in known) for n in outputs]


def write_cond(ev: Evaluator, test: Expr, yes: cst.BaseExpression, no: cst.BaseExpression) -> cst.Call:
    """Return the choice between two expressions, of which one is evaluated."""
    ev.diagnostics.imports.add("jax")
    sides = [cst.Lambda(cst.Parameters(), bracket(side, 1)) for side in (yes, no)]
    return make_call("jax.lax.cond", make_predicate(test), *sides)


def write_selection(ev: Evaluator, test: Expr, yes: cst.BaseExpression, no: cst.BaseExpression) -> cst.BaseExpression:
    """Return the choice between two expressions of which one may be a number; both are evaluated."""
    is_test = read_literal(yes) is True and read_literal(no) is False
    if is_test and test.value.dtype == "bool" and test.value.rank == 0:
        return test.node
    ev.diagnostics.imports.add("jnp")
    return make_call("jnp.where", test.node, yes, no)


def _shape_scalar(
    ev: Evaluator, choice: Choice, name: str, sides: tuple[cst.BaseExpression, ...]
) -> tuple[cst.BaseExpression, ...]:
    """Return the two values of a variable, a scalar in the shape of the array that the other branch leaves."""
    kept = [isinstance(side, cst.Name) and side.value == name for side in sides]
    if any(kept) and is_scalar_for(choice.ends[kept.index(False)][name], choice.start[name]):
        old = cst.Name(name), choice.start[name]
        return tuple(side if k else shape_like(ev, side, *old) for side, k in zip(sides, kept, strict=True))
    return sides


def _collect_assigned(block: Statements) -> dict[str, cst.BaseExpression] | None:
    """Return the plain assignments of which a block consists: `y = 1 / x` and then `y = y.log()` are one."""
    found: dict[str, cst.BaseExpression] = {}
    for small in list_small_statements(block):
        if isinstance(small, cst.Pass) or (isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString)):
            continue
        if isinstance(small, cst.AugAssign):
            pairs: Any = [(small.target, expand_augmented(small))]
        elif isinstance(small, cst.Assign) and len(small.targets) == 1:
            pairs = pair_targets(small.targets[0].target, small.value)
        else:
            return None
        names = [t.value for t, _ in pairs if isinstance(t, cst.Name)]
        if len(names) < len(pairs) or (len(pairs) > 1 and found.keys() & {n for _, v in pairs for n in find_names(v)}):
            return None
        for name, (_, value) in zip(names, pairs, strict=True):
            if name in found and sum(n.value == name for n in list_nodes(value, cst.Name)) != 1:
                return None
            before = {name: found[name]} if name in found else {}
            found[name] = TemplateFiller(before, frozenset()).rewrite(value) if before else value
    return found


def _is_first_bound_here(ev: Evaluator, node: cst.If, name: str) -> bool:
    """Return whether only this branch of a loop binds a variable, which has no value in the first iteration then."""
    if not ev.here.loops or any(p.name.value == name for p in ev.routine.parameters):
        return False
    kinds = (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr)
    here, all_ = (
        sum(name in iter_targets(n.target) for n in list_nodes(part, *kinds)) for part in (node, ev.routine.node)
    )
    return 0 < here == all_


def _is_only_read_in(ev: Evaluator, node: cst.If, name: str) -> bool:
    """Return whether a variable of the source is read in these branches alone."""
    inside, found = ev.routine.list_names_in(node), ev.routine.reads.get(name, ())
    return bool(found) and all(id(n) in inside for n in found)
