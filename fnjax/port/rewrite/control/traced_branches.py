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

from fnjax.port.analysis.effects import NOTHING, flow
from fnjax.port.analysis.terms import otherwise
from fnjax.port.analysis.traces import Region
from fnjax.port.analysis.walk import Statements, Term, Walk, line, lines_of, names, parse
from fnjax.port.known.facts import Value
from fnjax.port.rewrite.control.branch_values import (
    Ends,
    alike,
    chosen_number,
    chosen_value,
    in_shape,
    matched,
    open_number,
    other_scalars,
    was_number,
    widened,
)
from fnjax.port.rewrite.control.carried_loops import carries, define
from fnjax.port.source.naming import targets
from fnjax.port.torch import code, fit
from fnjax.port.torch.expressions import Fill
from fnjax.port.tree.located import nodes


@dataclass(slots=True)
class Choice:
    """An `if` on a tensor whose blocks have been walked.

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
    test: Term
    blocks: list[cst.BaseSuite | None]
    ways: list[Region]
    whole: Region
    start: dict[str, Value]
    ends: Ends
    new: dict[str, Value] = field(default_factory=dict)

    @property
    def made(self) -> list[cst.BaseSuite | None]:
        """The translations of the blocks."""
        return [way.made for way in self.ways]


def traced_branch(walk: Walk, node: cst.If, test: Term) -> Statements | None:
    """The form of an `if` on a tensor that jit can trace."""
    if only_raises(node):
        return _check(walk, node, test)
    if test.value.guard is not None:  # Python's part could not be asked first
        return None
    blocks = [node.body, walk.otherwise(node)]
    said = [s for block in blocks if block for s in lines_of(block) if _says(s)]
    if said and not isinstance(node.orelse, cst.If):
        made = traced_branch(walk, _without(node, said), test)
        for statement in said if made is not None else ():
            walk.note(statement, "dropped", DROPPED)
        return made
    with walk.apart() as whole:
        ways = walk.ways(blocks)
        walk.join(ways)
    start = walk.state
    ends = [(start if way.leaves else way.end).variables for way in ways]
    choice = Choice(node, test, blocks, ways, whole, start.variables, ends)
    if whole.untraced or not _alike(walk, choice):  # jax.lax.cond traces outside jit, too
        return None
    made = _cond(walk, choice) or _by_functions(walk, choice)
    if made is None:
        return None
    whole.effects = NOTHING  # but for what the translation does
    walk.adopt(whole)
    for name, value in choice.new.items():
        walk.bind(name, value, node)
    return made


def _alike(walk: Walk, choice: Choice) -> bool:
    """Whether either block gives arrays of one dtype and shape, as far as they are known."""
    first, second = choice.ends
    written = {n for n in walk.program.bound_in(choice.node) if n in first and n in second and walk.live(n)}
    given = all(alike(a, b) for a in choice.ways[0].returns for b in choice.ways[1].returns)
    return given and all(alike(first[n], second[n]) for n in written)


def _says(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleStatementLine) and all(is_message(small) for small in node.body)


def _without(node: cst.If, said: list[Any]) -> cst.If:
    """The same `if` without these statements."""
    first, *second = (
        cst.IndentedBlock([s for s in lines_of(block) if s not in said] or [line("pass")])
        for block in (node.body, *otherwise(node))
    )
    return node.with_changes(body=first, orelse=cst.Else(second[0]) if second else node.orelse)


def only_raises(node: cst.If) -> bool:
    """Whether an `if` is a check: its block raises, warns or prints, and does nothing else."""
    return node.orelse is None and all(
        isinstance(s, cst.SimpleStatementLine) and all(_harmless(x) for x in s.body) for s in node.body.body
    )


def _harmless(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Raise) or is_message(node)


DROPPED = "this message about values is dropped: jax.debug.print shows them, under jit too"
_LEVELS = frozenset({"debug", "info", "warning", "warn", "error", "critical", "exception", "log"})


def is_message(node: cst.CSTNode) -> bool:
    """Whether a statement prints, warns or logs."""
    if not (isinstance(node, cst.Expr) and isinstance(node.value, cst.Call)):
        return False
    text = code(node.value.func)
    owner, _, level = text.rpartition(".")
    return text in {"print", "warnings.warn"} or (level in _LEVELS and "log" in owner.lower())


def _check(walk: Walk, node: cst.If, test: Term) -> Statements:
    """A check runs where the value is known."""
    walk.sink.imports.add("jax")
    body = walk.branches([node.body])[0]
    walk.note(node.test, "check", "this check of a tensor's value runs outside jit only")
    condition = code(fit(test.node, 1))
    if isinstance(test.node, cst.Name):
        new = parse(f"not isinstance({condition}, jax.core.Tracer) and {condition}")
    else:
        name = walk.unused("check")
        new = parse(f"not isinstance({name} := {condition}, jax.core.Tracer) and {name}")
    return [node.with_changes(test=new, body=body)]


def _assigned(body: cst.BaseSuite | None) -> dict[str, cst.BaseExpression] | None:
    """The plain assignments of which a block consists: `y = 1 / x` and then `y = y.log()` are one."""
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
                    if sum(isinstance(n, cst.Name) and n.value == name for n in nodes(value)) != 1:
                        return None
                    value = Fill({name: found[name]}, frozenset()).rewrite(value)
                found[name] = value
            elif (pairs := _pairs(small)) and not found.keys() & {n for _, v in pairs for n in names(v)}:
                found |= {code(t): v for t, v in pairs}
            elif isinstance(small, cst.AugAssign) and isinstance(small.target, cst.Name):
                if small.target.value in found:
                    return None
                symbol = code(small.operator).strip().partition("=")[0]
                found[small.target.value] = parse(f"{small.target.value} {symbol} {code(fit(small.value, 13))}")
            elif not isinstance(small, (cst.Pass, cst.Expr)) or (
                isinstance(small, cst.Expr) and not isinstance(small.value, (cst.SimpleString, cst.Ellipsis))
            ):
                return None
    return found


def _pairs(node: cst.CSTNode) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """The targets and values of `a, b = x, y`."""
    if not isinstance(node, cst.Assign) or len(node.targets) != 1:
        return []
    target, value = node.targets[0].target, node.value
    if not (isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple)):
        return []
    pairs = [(t.value, v.value) for t, v in zip(target.elements, value.elements, strict=False)]
    plain = len(target.elements) == len(value.elements) and all(isinstance(t, cst.Name) for t, _ in pairs)
    return pairs if plain and not any(isinstance(v, cst.StarredElement) for v in value.elements) else []


def predicate(test: Term) -> str:
    """A condition for jax.lax.cond, which takes no array of one entry."""
    if test.value.rank == 0 or not test.value.is_tensor:
        return code(fit(test.node, 1))
    return f"{code(fit(test.node))}.reshape(())"


def _single_return(body: cst.BaseSuite) -> cst.BaseExpression | None:
    only = body.body[0] if len(body.body) == 1 else None
    small = only.body[0] if isinstance(only, cst.SimpleStatementLine) and len(only.body) == 1 else None
    return small.value if isinstance(small, cst.Return) else None


def _cond(walk: Walk, choice: Choice) -> Statements | None:
    """jax.lax.cond of lambdas, or jnp.where where numbers stand beside arrays."""
    start, ends, test = choice.start, choice.ends, choice.test
    plain = [_assigned(block) for block in choice.made]
    first, second = in_shape(walk, choice.made, start, ends)
    assert first is not None
    returns = [_single_return(first), _single_return(second) if second else None]
    if all(r is not None for r in returns):
        return _chosen_return(walk, choice, [r for r in returns if r is not None])
    sides = [_assigned(first), _assigned(second)]
    if any(s is None for s in sides):
        return None
    changed = list(dict.fromkeys(n for s in sides if s for n in s))
    if any(n not in start and not all(s and n in s for s in sides) for n in changed):
        return None
    unset = {n for n in changed if _first_here(walk, choice.node, n) and sum(n in s for s in sides if s) == 1}
    # What only later rounds know is None before, which no loop of JAX's carries.
    if unset and (
        walk.here.filling or not all(isinstance(loop, cst.For) for loop in walk.here.loops)
    ):  # no loops of Python
        return None
    open_ = {n for n in changed if open_number(ends[0][n], ends[1][n], *(s[n] for s in sides if s and n in s))}
    chosen = {n for n in changed if chosen_number(ends[0][n], ends[1][n]) or other_scalars(ends[0][n], ends[1][n])}
    chosen |= open_
    arrays = {n for n in changed if ends[0][n].is_tensor and ends[1][n].is_tensor}
    if chosen and not set(changed) <= arrays | chosen:
        return None
    known = [v for n in changed for v in (choice.whole.end.variables[n], start.get(n)) if v is not None]
    if not chosen and not all(v.kind in {"tensor", "unknown"} for v in known):
        return None
    # All values of a lambda are of the variables as they were: none may read what another one just took.
    used = {n for s in sides if s for k, v in s.items() for n in names(v) if n in s and n != k}
    if used or len(changed) > 3 or not changed or (not chosen and unset and len(changed) > 1):
        return None
    walk.unset |= unset
    if chosen:  # jnp.where gives both sides one dtype, and one shape
        walk.sink.imports.add("jnp")
        condition, values = code(fit(test.node, 1)), []
        for n in changed:
            texts = [code(fit((side or {}).get(n, cst.Name(n)), 1)) for side in plain]
            values.append(_unless_first(n, unset, texts, f"jnp.where({condition}, {texts[0]}, {texts[1]})"))
            choice.new[n] = chosen_value(ends[0][n], ends[1][n])
        return [line(f"{', '.join(changed)} = {', '.join(values)}")]
    walk.sink.imports.add("jax")
    lambdas = []
    for side in sides:
        values = [code(fit((side or {}).get(n, cst.Name(n)), 1)) for n in changed]
        lambdas.append(f"lambda: {values[0]}" if len(changed) == 1 else f"lambda: ({', '.join(values)})")
    made = f"jax.lax.cond({predicate(test)}, {lambdas[0]}, {lambdas[1]})"
    made = _unless_first(changed[0], unset, [t.removeprefix("lambda: ") for t in lambdas], made)
    return [line(f"{', '.join(changed)} = {made}")]


def _chosen_return(walk: Walk, choice: Choice, returns: list[cst.BaseExpression]) -> Statements | None:
    """What either block returns, in one expression."""
    test, given = choice.test, choice.whole.returns
    first, second = given[-2:]
    agreed = matched(walk, given, returns, choice.start)
    if agreed is None:
        return None
    yes, no = (code(fit(r, 1)) for r in agreed)
    if chosen_number(first, second) or open_number(first, second, *returns):
        walk.sink.imports.add("jnp")
        given[-2:] = [replace(chosen_value(first, second), place=walk.fresh(walk.current))]
        return [line(f"return jnp.where({code(fit(test.node, 1))}, {yes}, {no})")]
    walk.sink.imports.add("jax")
    return [line(f"return jax.lax.cond({predicate(test)}, lambda: {yes}, lambda: {no})")]


def _unless_first(name: str, unset: set[str], sides: list[str], chosen: str) -> str:
    """What a variable takes that has no value before the loop: there it is what the branch gives it."""
    new = sides[0] if sides[0] != name else sides[1]
    return f"{new} if {name} is None else {chosen}" if name in unset else chosen


def _first_here(walk: Walk, node: cst.If, name: str) -> bool:
    """Whether only this branch of a loop binds a variable, which the first round does not know then."""
    if not walk.here.loops or any(p.name.value == name for p in walk.routine.parameters):
        return False
    kinds = (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr)
    here, all_ = (
        sum(name in targets(n.target) for n in nodes(part) if isinstance(n, kinds))
        for part in (node, walk.routine.node)
    )
    return 0 < here == all_


def _by_functions(walk: Walk, choice: Choice) -> Statements | None:
    """The two blocks as functions, of which jax.lax.cond calls one."""
    node, start, ends, after = choice.node, choice.start, choice.ends, choice.whole.end.variables
    blocks = [b for b in choice.blocks if b is not None]
    bodies = [lines_of(b) for b in in_shape(walk, choice.made, start, ends) if b is not None]
    returns = [last_return(b) for b in bodies]
    if len(bodies) == 2 and all(r is not None for r in returns):
        bodies = [b[:-1] for b in bodies]
    elif any(r is not None for r in returns):
        return None
    ending, effects = all(r is not None for r in returns), [way.effects for way in choice.ways]
    draws = choice.whole.sink.keys != walk.sink.keys
    if any(e.acts or e.jumps or (e.returns and not ending) for e in effects) or (draws and not ending):
        return None
    every = effects[0].gives | effects[1].gives
    flows = [flow(b) for b in blocks]
    first = frozenset().union(*(reads for reads, _ in flows))  # read before they are given values
    named = {n.value for b in blocks for n in nodes(b) if isinstance(n, cst.Name)}
    unnamed = (reads for b in bodies for reads in flow(cst.IndentedBlock(b))[0])
    first |= {n for n in unnamed if n in every and n not in named}  # the memory of others that are written to
    own = {n for n in every - first if _only_in(walk, node, n)}
    both = effects[0].gives & effects[1].gives
    anew = {n for n in both - first if all(n in given for _, given in flows)}  # whatever they were before
    changed = sorted(n for n in every if walk.live(n) and n not in own)
    if any(_first_here(walk, node, n) and n not in both for n in changed):
        return None
    ours = walk.program.key_name  # of which the source's blocks tell nothing
    # Arguments are what the variables were before: who gives a value before reading needs none, and may have none yet.
    passing = every - first - {ours}  # only made there
    unneeded = own | anew | (passing if ending else passing - set(changed))
    given = sorted(n for n in every - unneeded if n in start or n == ours)
    if ending:
        agreed = matched(walk, choice.whole.returns, [r for r in returns if r is not None], start)
        if agreed is None:
            return None
        results = [code(fit(r, 1)) for r in agreed]
        taken = "return"
    else:
        new = {n: after[n] for n in changed}
        if not changed or any(n not in start and n not in both for n in changed):
            return None
        if not all(carries(v) or was_number(v, start.get(n)) for n, v in new.items()):
            return None
        if any(widened(ends[0][n], ends[1][n]) for n in new if n in ends[0] and n in ends[1]):
            return None
        results = [", ".join(changed)] * 2
        taken = f"{', '.join(changed)} ="
        for n, value in new.items():
            if value.place is None:
                choice.new[n] = Value("tensor", value.dtype, 0)
            elif not value.is_tensor:
                after[n] = Value("tensor", value.dtype, value.rank, place=value.place)
    walk.sink.imports.add("jax")
    own_names = [walk.unused("positive"), walk.unused("negative")]
    functions = [
        define(name, ", ".join(given), [*block, line(f"return {result}")])
        for name, block, result in zip(own_names, [*bodies, []], results, strict=False)
    ]
    arguments = ", ".join([predicate(choice.test), *own_names, *given])
    last = line(f"{taken} jax.lax.cond({arguments})")
    return [*functions, last.with_changes(leading_lines=[cst.EmptyLine(indent=False)])]


def _only_in(walk: Walk, node: cst.If, name: str) -> bool:
    """Whether a variable of the source is read in these blocks alone."""
    inside, found = walk.routine.nodes_in(node), walk.routine.reads.get(name, ())
    return bool(found) and all(id(n) in inside for n in found)


def last_return(block: Statements) -> cst.BaseExpression | None:
    """What a block returns at its end."""
    last = block[-1] if block else None
    small = last.body[0] if isinstance(last, cst.SimpleStatementLine) and len(last.body) == 1 else None
    return small.value if isinstance(small, cst.Return) else None
