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
from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements, find_names, list_statements, parse, parse_line
from fnjax.port.analysis.expr import list_else_blocks
from fnjax.port.analysis.traces import Region
from fnjax.port.known.facts import Value
from fnjax.port.rewrite.control.branch_values import (
    Ends,
    are_alike,
    are_unlike_scalars,
    describe_choice,
    is_number_choice,
    match_results,
    may_be_number_choice,
    may_be_widened,
    put_in_shape,
    was_number,
)
from fnjax.port.rewrite.control.carried_loops import can_be_carried, make_function
from fnjax.port.source.naming import iter_targets, pair_targets
from fnjax.port.torch import bracket, unparse
from fnjax.port.torch.expressions import TemplateFiller
from fnjax.port.tree.located import find_small_statement, list_nodes


@dataclass(slots=True)
class Choice:
    """An `if` on a tensor whose blocks have been evaluated.

    Attributes:
        node: the `if`.
        test: its condition.
        blocks: its blocks in the source; the second is None where there is no `else`.
        ways: what was found in each.
        whole: what was found in both.
        start: the variables before it.
        ends: those after each block.
        new: what the translation gives variables, where that is more than the blocks tell.
    """

    node: cst.If
    test: Expr
    blocks: list[cst.BaseSuite | None]
    branches: list[Region]
    whole: Region
    start: dict[str, Value]
    ends: Ends
    new: dict[str, Value] = field(default_factory=dict)

    @property
    def made(self) -> list[cst.BaseSuite | None]:
        """The translations of the blocks."""
        return [branch.made for branch in self.branches]


def port_traced_branch(ev: Evaluator, node: cst.If, test: Expr) -> Statements | None:
    """Return the form of an `if` on a tensor that jit can trace."""
    if only_raises(node):
        return _port_check(ev, node, test)
    if test.value.null.guard is not None:  # Python's part could not be asked first
        return None
    blocks = [node.body, ev.find_else_block(node)]
    said = [s for block in blocks if block for s in list_statements(block) if _is_message_line(s)]
    if said and not isinstance(node.orelse, cst.If):
        made = port_traced_branch(ev, _drop_messages(node, said), test)
        for statement in said if made is not None else ():
            ev.note(statement, "dropped", DROPPED)
        return made
    with ev.speculate() as whole:
        branches = ev.evaluate_each_branch(blocks)
        ev.join_branches(branches)
    start = ev.state
    ends = [(start if branch.leaves else branch.end).variables for branch in branches]
    choice = Choice(node, test, blocks, branches, whole, start.variables, ends)
    if whole.untraced or not _are_blocks_alike(ev, choice):  # jax.lax.cond traces outside jit, too
        return None
    made = _port_as_cond(ev, choice) or _port_as_functions(ev, choice)
    if made is None:
        return None
    whole.effects = NOTHING  # but for what the translation does
    ev.commit(whole)
    for name, value in choice.new.items():
        ev.bind_name(name, value, node)
    return made


def _are_blocks_alike(ev: Evaluator, choice: Choice) -> bool:
    """Return whether either block gives arrays of one dtype and shape, as far as they are known."""
    first, second = choice.ends
    written = {n for n in ev.program.list_bound(choice.node) if n in first and n in second and ev.is_live(n)}
    given = all(are_alike(a, b) for a in choice.branches[0].returns for b in choice.branches[1].returns)
    return given and all(are_alike(first[n], second[n]) for n in written)


def _is_message_line(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleStatementLine) and all(is_message(small) for small in node.body)


def _drop_messages(node: cst.If, said: list[Any]) -> cst.If:
    """Return the same `if` without these statements."""
    first, *second = (
        cst.IndentedBlock([s for s in list_statements(block) if s not in said] or [parse_line("pass")])
        for block in (node.body, *list_else_blocks(node))
    )
    return node.with_changes(body=first, orelse=cst.Else(second[0]) if second else node.orelse)


def only_raises(node: cst.If) -> bool:
    """Return whether an `if` is a check: its block raises, warns or prints, and does nothing else."""
    return node.orelse is None and all(
        isinstance(s, cst.SimpleStatementLine) and all(_is_harmless(x) for x in s.body) for s in node.body.body
    )


def _is_harmless(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Raise) or is_message(node)


DROPPED = "this message about values is dropped: jax.debug.print shows them, under jit too"
_LEVELS = frozenset({"debug", "info", "warning", "warn", "error", "critical", "exception", "log"})


def is_message(node: cst.CSTNode) -> bool:
    """Return whether a statement prints, warns or logs."""
    if not (isinstance(node, cst.Expr) and isinstance(node.value, cst.Call)):
        return False
    text = unparse(node.value.func)
    owner, _, level = text.rpartition(".")
    return text in {"print", "warnings.warn"} or (level in _LEVELS and "log" in owner.lower())


def _port_check(ev: Evaluator, node: cst.If, test: Expr) -> Statements:
    """Return a check runs where the value is known."""
    ev.diagnostics.imports.add("jax")
    body = ev.evaluate_branches([node.body])[0]
    ev.note(node.test, "check", "this check of a tensor's value runs outside jit only")
    condition = unparse(bracket(test.node, 1))
    if isinstance(test.node, cst.Name):
        new = parse(f"not isinstance({condition}, jax.core.Tracer) and {condition}")
    else:
        name = ev.make_unused_name("check")
        new = parse(f"not isinstance({name} := {condition}, jax.core.Tracer) and {name}")
    return [node.with_changes(test=new, body=body)]


def _collect_assigned(body: cst.BaseSuite | None) -> dict[str, cst.BaseExpression] | None:
    """Return the plain assignments of which a block consists: `y = 1 / x` and then `y = y.log()` are one."""
    found: dict[str, cst.BaseExpression] = {}
    for s in body.body if body else ():
        for small in s.body if isinstance(s, cst.SimpleStatementLine) else [s]:
            if (
                isinstance(small, cst.Assign)
                and len(small.targets) == 1
                and isinstance(small.targets[0].target, cst.Name)
            ):
                name, value = small.targets[0].target.value, small.value
                if name in found:
                    if sum(isinstance(n, cst.Name) and n.value == name for n in list_nodes(value)) != 1:
                        return None
                    value = TemplateFiller({name: found[name]}, frozenset()).rewrite(value)
                found[name] = value
            elif (pairs := _pair_names(small)) and not found.keys() & {n for _, v in pairs for n in find_names(v)}:
                found |= {unparse(t): v for t, v in pairs}
            elif isinstance(small, cst.AugAssign) and isinstance(small.target, cst.Name):
                if small.target.value in found:
                    return None
                symbol = unparse(small.operator).strip().partition("=")[0]
                found[small.target.value] = parse(f"{small.target.value} {symbol} {unparse(bracket(small.value, 13))}")
            elif not isinstance(small, (cst.Pass, cst.Expr)) or (
                isinstance(small, cst.Expr) and not isinstance(small.value, (cst.SimpleString, cst.Ellipsis))
            ):
                return None
    return found


def _pair_names(node: cst.CSTNode) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Return the targets and values of `a, b = x, y`."""
    if not isinstance(node, cst.Assign) or len(node.targets) != 1:
        return []
    target = node.targets[0].target
    pairs = pair_targets(target, node.value)
    return pairs if isinstance(target, cst.Tuple) and all(isinstance(t, cst.Name) for t, _ in pairs) else []


def write_predicate(test: Expr) -> str:
    """Return a condition for jax.lax.cond, which takes no array of one entry."""
    if test.value.rank == 0 or not test.value.is_tensor:
        return unparse(bracket(test.node, 1))
    return f"{unparse(bracket(test.node))}.reshape(())"


def _find_single_return(body: cst.BaseSuite) -> cst.BaseExpression | None:
    small = find_small_statement(body.body[0]) if len(body.body) == 1 else None
    return small.value if isinstance(small, cst.Return) else None


def _port_as_cond(ev: Evaluator, choice: Choice) -> Statements | None:
    """jax.lax.cond of lambdas, or jnp.where where numbers stand next to arrays."""
    start, ends, test = choice.start, choice.ends, choice.test
    plain = [_collect_assigned(block) for block in choice.made]
    first, second = put_in_shape(ev, choice.made, start, ends)
    assert first is not None
    returns = [_find_single_return(first), _find_single_return(second) if second else None]
    if all(r is not None for r in returns):
        return _port_chosen_return(ev, choice, [r for r in returns if r is not None])
    sides = [_collect_assigned(first), _collect_assigned(second)]
    if any(s is None for s in sides):
        return None
    changed = list(dict.fromkeys(n for s in sides if s for n in s))
    if any(n not in start and not all(s and n in s for s in sides) for n in changed):
        return None
    unset = {n for n in changed if _is_first_bound_here(ev, choice.node, n) and sum(n in s for s in sides if s) == 1}
    # What only later rounds know is None before, which no loop of JAX's carries.
    if unset and (
        ev.here.filling or not all(isinstance(loop, cst.For) for loop in ev.here.loops)
    ):  # no loops of Python
        return None
    open_ = {n for n in changed if may_be_number_choice(ends[0][n], ends[1][n], *(s[n] for s in sides if s and n in s))}
    selected = {
        n for n in changed if is_number_choice(ends[0][n], ends[1][n]) or are_unlike_scalars(ends[0][n], ends[1][n])
    }
    selected |= open_
    arrays = {n for n in changed if ends[0][n].is_tensor and ends[1][n].is_tensor}
    if selected and not set(changed) <= arrays | selected:
        return None
    known = [v for n in changed for v in (choice.whole.end.variables[n], start.get(n)) if v is not None]
    if not selected and not all(v.kind in {"tensor", "unknown"} for v in known):
        return None
    # All values of a lambda are of the variables as they were: none may read what another one just took.
    used = {n for s in sides if s for k, v in s.items() for n in find_names(v) if n in s and n != k}
    if used or len(changed) > 3 or not changed or (not selected and unset and len(changed) > 1):
        return None
    ev.unset |= unset
    if selected:  # jnp.where gives both sides one dtype, and one shape
        ev.diagnostics.imports.add("jnp")
        condition, values = unparse(bracket(test.node, 1)), []
        for n in changed:
            texts = [unparse(bracket((side or {}).get(n, cst.Name(n)), 1)) for side in plain]
            values.append(_write_unless_first(n, unset, texts, f"jnp.where({condition}, {texts[0]}, {texts[1]})"))
            choice.new[n] = describe_choice(ends[0][n], ends[1][n])
        return [parse_line(f"{', '.join(changed)} = {', '.join(values)}")]
    ev.diagnostics.imports.add("jax")
    lambdas = []
    for side in sides:
        values = [unparse(bracket((side or {}).get(n, cst.Name(n)), 1)) for n in changed]
        lambdas.append(f"lambda: {values[0]}" if len(changed) == 1 else f"lambda: ({', '.join(values)})")
    made = f"jax.lax.cond({write_predicate(test)}, {lambdas[0]}, {lambdas[1]})"
    made = _write_unless_first(changed[0], unset, [t.removeprefix("lambda: ") for t in lambdas], made)
    return [parse_line(f"{', '.join(changed)} = {made}")]


def _port_chosen_return(ev: Evaluator, choice: Choice, returns: list[cst.BaseExpression]) -> Statements | None:
    """Return what either block returns, in one expression."""
    test, given = choice.test, choice.whole.returns
    first, second = given[-2:]
    agreed = match_results(ev, given, returns, choice.start)
    if agreed is None:
        return None
    yes, no = (unparse(bracket(r, 1)) for r in agreed)
    if is_number_choice(first, second) or may_be_number_choice(first, second, *returns):
        ev.diagnostics.imports.add("jnp")
        given[-2:] = [replace(describe_choice(first, second), memref=ev.make_memref(ev.current))]
        return [parse_line(f"return jnp.where({unparse(bracket(test.node, 1))}, {yes}, {no})")]
    ev.diagnostics.imports.add("jax")
    return [parse_line(f"return jax.lax.cond({write_predicate(test)}, lambda: {yes}, lambda: {no})")]


def _write_unless_first(name: str, unset: set[str], sides: list[str], selected: str) -> str:
    """Return what a variable takes that has no value before the loop: there it is what the branch gives it."""
    new = sides[0] if sides[0] != name else sides[1]
    return f"{new} if {name} is None else {selected}" if name in unset else selected


def _is_first_bound_here(ev: Evaluator, node: cst.If, name: str) -> bool:
    """Return whether only this branch of a loop binds a variable, which the first iteration does not know then."""
    if not ev.here.loops or any(p.name.value == name for p in ev.routine.parameters):
        return False
    kinds = (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr)
    here, all_ = (
        sum(name in iter_targets(n.target) for n in list_nodes(part) if isinstance(n, kinds))
        for part in (node, ev.routine.node)
    )
    return 0 < here == all_


def _port_as_functions(ev: Evaluator, choice: Choice) -> Statements | None:
    """Return the two blocks as functions, of which jax.lax.cond calls one."""
    node, start, ends, after = choice.node, choice.start, choice.ends, choice.whole.end.variables
    blocks = [b for b in choice.blocks if b is not None]
    bodies = [list_statements(b) for b in put_in_shape(ev, choice.made, start, ends) if b is not None]
    returns = [find_last_return(b) for b in bodies]
    if len(bodies) == 2 and all(r is not None for r in returns):
        bodies = [b[:-1] for b in bodies]
    elif any(r is not None for r in returns):
        return None
    ending, effects = all(r is not None for r in returns), [branch.effects for branch in choice.branches]
    draws = choice.whole.diagnostics.keys != ev.diagnostics.keys
    if any(e.acts or e.jumps or (e.returns and not ending) for e in effects) or (draws and not ending):
        return None
    every = effects[0].gives | effects[1].gives
    flows = [find_flow(b) for b in blocks]
    first = frozenset().union(*(reads for reads, _ in flows))  # read before they are given values
    named = {n.value for b in blocks for n in list_nodes(b) if isinstance(n, cst.Name)}
    unnamed = (reads for b in bodies for reads in find_flow(cst.IndentedBlock(b))[0])
    first |= {n for n in unnamed if n in every and n not in named}  # the memory of others that are written to
    own = {n for n in every - first if _is_only_read_in(ev, node, n)}
    both = effects[0].gives & effects[1].gives
    anew = {n for n in both - first if all(n in given for _, given in flows)}  # whatever they were before
    changed = sorted(n for n in every if ev.is_live(n) and n not in own)
    if any(_is_first_bound_here(ev, node, n) and n not in both for n in changed):
        return None
    ours = ev.program.key_name  # of which the source's blocks tell nothing
    # Arguments are what the variables were before: who gives a value before reading needs none, and may have none yet.
    passing = every - first - {ours}  # only made there
    unneeded = own | anew | (passing if ending else passing - set(changed))
    given = sorted(n for n in every - unneeded if n in start or n == ours)
    if ending:
        agreed = match_results(ev, choice.whole.returns, [r for r in returns if r is not None], start)
        if agreed is None:
            return None
        results = [unparse(bracket(r, 1)) for r in agreed]
        taken = "return"
    else:
        new = {n: after[n] for n in changed}
        if not changed or any(n not in start and n not in both for n in changed):
            return None
        if not all(can_be_carried(v) or was_number(v, start.get(n)) for n, v in new.items()):
            return None
        if any(may_be_widened(ends[0][n], ends[1][n]) for n in new if n in ends[0] and n in ends[1]):
            return None
        results = [", ".join(changed)] * 2
        taken = f"{', '.join(changed)} ="
        for n, value in new.items():
            if value.memref is None:
                choice.new[n] = Value("tensor", value.dtype, 0)
            elif not value.is_tensor:
                after[n] = Value("tensor", value.dtype, value.rank, memref=value.memref)
    ev.diagnostics.imports.add("jax")
    own_names = [ev.make_unused_name("positive"), ev.make_unused_name("negative")]
    functions = [
        make_function(name, ", ".join(given), [*block, parse_line(f"return {result}")])
        for name, block, result in zip(own_names, [*bodies, []], results, strict=False)
    ]
    arguments = ", ".join([write_predicate(choice.test), *own_names, *given])
    last = parse_line(f"{taken} jax.lax.cond({arguments})")
    return [*functions, last.with_changes(leading_lines=[cst.EmptyLine(indent=False)])]


def _is_only_read_in(ev: Evaluator, node: cst.If, name: str) -> bool:
    """Return whether a variable of the source is read in these blocks alone."""
    inside, found = ev.routine.list_names_in(node), ev.routine.reads.get(name, ())
    return bool(found) and all(id(n) in inside for n in found)


def find_last_return(block: Statements) -> cst.BaseExpression | None:
    """Return what a block returns at its end."""
    last = block[-1] if block else None
    small = find_small_statement(last)
    return small.value if isinstance(small, cst.Return) else None
