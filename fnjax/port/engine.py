"""`port_source`: from the text of a file to the text of its port, and what was found."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.assembly import assembled
from fnjax.port.depth import too_deep
from fnjax.port.facts import UNKNOWN, Place, State, Value
from fnjax.port.imported import only_compiles, run_on_import, without_left
from fnjax.port.located import children
from fnjax.port.naming import Source, bindings, bound_names, changed, read_names
from fnjax.port.operations import code, support
from fnjax.port.operators import collect
from fnjax.port.program import Class, Program, Routine, nodes
from fnjax.port.result import KEYS, Finding, Ported, PortedClass
from fnjax.port.rules import (  # noqa: F401 - each file enters its rules when it is imported
    attempts,
    augmented,
    called,
    choices,
    class_definitions,
    conditions,
    constants,
    containers,
    control,
    custom_operators,
    definitions,
    distributions,
    einops_calls,
    filling,
    foreign,
    indexing,
    layers,
    loops,
    matches,
    messages,
    numbers,
    numpy_calls,
    operators,
    others,
    own_functions,
    passed_functions,
    returns,
    statements,
    trees,
    versions,
)
from fnjax.port.rules.places import places_of_mask
from fnjax.port.rules.recomputed import recomputation
from fnjax.port.rules.returning_loops import returning_loop
from fnjax.port.rules.written_choices import written_choice
from fnjax.port.terms import Unit
from fnjax.port.walk import Sink, Stop, Uncompressed, Walk, line

_MENTION = re.compile(r"Function|torch\.library|custom_op|triton_op")  # what no file is without that is ported
_ROUNDS = 3  # beside one for each function, until what functions say of each other must have settled


def port_source(text: str, filename: str = "<string>", classes: Sequence[str] | None = None) -> Ported:
    """Port a file with torch.autograd.Function classes to JAX. The file is read, never run.

    Args:
        text: its text.
        filename: its name, for messages.
        classes: the Function classes to port, by name; all by default.

    Returns:
        The record of the port. For input that cannot be used `code` is empty and `problem` says why; nothing is raised.

    Examples:
        >>> from fnjax.port import port_source
        >>> ported = port_source('''
        ... import torch
        ...
        ... class Exp(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         y = x.exp()
        ...         ctx.save_for_backward(y)
        ...         return y
        ...
        ...     @staticmethod
        ...     def backward(ctx, grad_output):
        ...         y, = ctx.saved_tensors
        ...         return grad_output * y
        ... ''')
        >>> print(ported.code)
        import fnjax
        import jax.numpy as jnp
        <BLANKLINE>
        <BLANKLINE>
        class Exp(fnjax.Function):
            @staticmethod
            def forward(ctx, x):
                y = jnp.exp(x)
                ctx.save_for_backward(y)
                return y
        <BLANKLINE>
            @staticmethod
            def backward(ctx, grad_output):
                y, = ctx.saved_tensors
                return grad_output * y
        <BLANKLINE>
        >>> ported.classes
        (PortedClass(name='Exp', status='ported', findings=()),)
    """
    text, newline = with_plain_ends(text)
    deep = Ported(problem=f"{filename} is nested too deeply for the porter", readable=False)
    if too_deep(text):
        return deep
    try:
        if not _MENTION.search(text):  # most files of a folder
            cst.parse_module(text)
            return _without_classes(filename, classes)
        source = Source.parse(text, filename)
    except (cst.ParserSyntaxError, SyntaxError, ValueError, UnicodeError) as e:
        return Ported(problem=f"{filename} is no Python that the porter can read{_where(text, e)}", readable=False)
    except (RecursionError, KeyError):  # libcst loses its place where the stack ends
        return deep
    try:
        ported: Ported = port_parsed(source, text, classes)
        return replace(ported, code=ported.code.replace("\n", newline))
    except RecursionError:
        return deep
    except Exception as e:  # noqa: BLE001 - user code never makes the porter raise
        return _failed(source, e)
    finally:
        children.cache_clear()
        code.cache_clear()


def with_plain_ends(text: str) -> tuple[str, str]:
    """A text with lines that end in a line feed, and how the first of them ended."""
    return re.sub(r"\r\n?", "\n", text), re.search(r"\r\n?|\n|$", text)[0] or "\n"  # type: ignore[index] # it always matches


def _without_classes(filename: str, wanted: Sequence[str] | None) -> Ported:
    what = f"Function class {wanted[0]!r}" if wanted else "torch.autograd.Function class and no custom operator"
    return Ported(problem=f"{filename} has no {what}")


def _where(text: str, error: Exception) -> str:
    """Where and why a text is no Python: in Python's own words, where it refuses the text too."""
    try:
        compile(text, "text", "exec", dont_inherit=True)
    except SyntaxError as e:
        return f" (line {e.lineno}: {e.msg})"
    except (ValueError, RecursionError, MemoryError):
        pass
    return f" (line {error.raw_line})" if isinstance(error, cst.ParserSyntaxError) else ""


def _failed(source: Source, error: Exception) -> Ported:
    """The result where the porter itself is at fault."""
    message = f"the porter failed ({type(error).__name__}: {error}); please report this file"
    found = [n for n in nodes(source.tree) if isinstance(n, cst.ClassDef)]
    classes = [PortedClass(n.name.value, "failed", (Finding(*source.position(n), "internal", message),)) for n in found]
    return Ported(
        classes=tuple(classes), problem="" if classes else f"{source.filename}: {message}", readable=bool(classes)
    )


def port_parsed(
    source: Source,
    text: str,
    wanted: Sequence[str] | None,
    renamed: frozenset[str] | None = None,
    write: Callable[[Program, list[Class], dict[cst.CSTNode, Unit]], Any] | None = None,
) -> Any:
    """Port what was read.

    Args:
        source: the file, or files that are linked.
        text: its text.
        wanted: the classes to port, by name; None for all.
        renamed: the names of the file that have an underscore behind them, for the port's own.
        write: what makes the result of the translated statements; by default a Ported.
    """
    write = write or write_whole
    program = Program(source, _patterns)
    program.renamed = renamed or frozenset()
    program.evaluate = lambda node: _evaluated(program, node)
    collect(program)
    _without_dead_branches(program)
    functions = [c for c in program.classes.values() if c.is_function]
    if wanted is not None:
        missing = [w for w in wanted if not any(c.name == w or c.name.endswith(f".{w}") for c in functions)]
        if missing:
            others = f"; it has {', '.join(c.name for c in functions)}" if functions else ""
            return Ported(problem=f"{source.filename} has no Function class {missing[0]!r}{others}")
        functions = [c for c in functions if any(c.name == w or c.name.endswith(f".{w}") for w in wanted)]
    if not functions:
        return _without_classes(source.filename, None)
    if not any(_from_torch(program, c) for c in functions) and not _reads_torch(source):
        return Ported(text, tuple(PortedClass(c.name, "ported") for c in functions))
    program.key_name = _key_name(source)
    units: dict[cst.CSTNode, Unit] = {}
    for part in _parts(program, functions):
        units |= _settled(program, [c for c in functions if c.top in part], part)
        children.cache_clear()  # what a part has had made is of no use to the next
        code.cache_clear()
    helpers, modules = support({n for u in units.values() for n in u.sink.needs})
    ours = {*helpers, *modules, *(n for u in units.values() for n in u.sink.imports)}
    if renamed is None and (taken := source.bound & ours):
        again = Source.parse(source.renamed(taken), source.filename)
        return port_parsed(again, text, wanted, frozenset(taken), write)
    return write(program, functions, units)


def write_whole(program: Program, functions: list[Class], units: dict[cst.CSTNode, Unit]) -> Ported:
    """The text of the port, and what became of the classes."""
    source = program.source
    made = assembled(program, list(units.values()))
    try:
        compile(made, source.filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as e:
        failed = [_class(program, c, units) for c in functions]
        finding = Finding(1, 1, "internal", f"the port is no valid Python ({e}); please report this file")
        return Ported(code="", classes=tuple(PortedClass(c.name, "failed", (*c.findings, finding)) for c in failed))
    _undefined(program, units, made)
    return Ported(made, tuple(_class(program, c, units) for c in functions))


def _parts(program: Program, functions: list[Class]) -> list[frozenset[cst.CSTNode]]:
    """The statements of the top level that have to do with each other: what one tells may be news to the others."""
    source = program.source
    found: list[frozenset[cst.CSTNode]] = []
    by_name: dict[str, list[cst.CSTNode]] = {}
    linked: dict[cst.CSTNode, set[cst.CSTNode]] = {s: set() for s in source.tree.body}
    for statement in source.tree.body:
        for name in {n.value for n in nodes(statement) if isinstance(n, cst.Name)} & source.providers.keys():
            by_name.setdefault(name, []).append(statement)
    for name, users in by_name.items():
        for provider in source.providers[name]:
            if not _is_import(provider):
                linked[provider].update(users)
                for user in users:
                    linked[user].add(provider)
    for cls in functions:
        for other in (*cls.beside, *_readers(source, cls.name)):
            linked[cls.top].add(other)
            linked[other].add(cls.top)
    for cls in functions:
        if not any(cls.top in part for part in found):
            part, waiting = set(), [cls.top]
            while waiting:
                if (first := waiting.pop()) not in part:
                    part.add(first)
                    waiting += linked[first]
            found.append(frozenset(part))
    return found


def _readers(source: Source, qualname: str) -> list[cst.CSTNode]:
    """The statements that look an operator up, as `torch.ops.mylib.scale`."""
    spelled = f"ops.{qualname.replace('::', '.')}"
    return [s for s in source.tree.body if spelled in code(s)] if "::" in qualname else []


def _settled(program: Program, functions: list[Class], part: frozenset[cst.CSTNode]) -> dict[cst.CSTNode, Unit]:
    """The units of a part, when its functions say nothing new of each other; what they still do is a finding."""
    number = 0
    inside = [n for s in part for n in nodes(s) if isinstance(n, (cst.FunctionDef, cst.ClassDef))]
    while True:
        before = _known(program, inside)
        routines = [program.routines[n] for n in inside if n in program.routines]
        for known in routines:
            known.said = dict(known.arguments)
            if number < _ROUNDS + len(routines):  # in later rounds they are joined, to settle
                known.arguments.clear()
        units = _units(program, functions, part)
        for name in sorted({n for u in units.values() for n in u.called}):
            routine = program.called(name)  # where its call could not be translated yet, no statement reads it
            if routine is not None and routine.result is None and routine.node not in units:
                definitions.port_routine(program, routine)
        after = _known(program, inside)
        if after == before:
            return units
        if number > 2 * (_ROUNDS + len(routines)):
            _unsettled(program, units, before, after)
            return units
        number += 1
        program.values.clear()


def _unsettled(program: Program, units: dict[cst.CSTNode, Unit], before: Any, after: Any) -> None:
    """A finding for each function, or class, of which the last round has still told something new."""
    changing = {name for old, new in zip(before, after, strict=True) for name in new if new[name] != old.get(name)}
    message = "what this gives and is given depends on itself in a way that the porter cannot follow; write it out"
    for unit in units.values():
        for n in nodes(unit.origin):
            named = isinstance(n, (cst.FunctionDef, cst.ClassDef)) and n.name.value
            if named and any(name == named or name.endswith(f".{named}") for name in changing):
                unit.sink.findings.append(Finding(*program.source.position(n), "unknown", message))


_OF_MODULES = frozenset(n for n in globals() if n.startswith("__"))  # __name__, __file__ ...


def _undefined(program: Program, units: dict[cst.CSTNode, Unit], code: str) -> None:
    """A name that a statement reads and the port does not have is a finding, unless another says why."""
    bound = {*dir(builtins), *_OF_MODULES, *bound_names(code)}
    for unit in units.values():
        missing = read_names(unit.made) - bound
        if missing and not any(f.severity == "error" for f in unit.sink.findings):
            message = f"the port has no {', '.join(sorted(missing))}, which this reads"
            unit.sink.findings.append(Finding(*program.source.position(unit.origin), "unknown", message))


def _patterns(walk: Walk, body: Sequence[Any], index: int) -> tuple[list[Any], int] | None:
    """Rewrites of several statements at once: what they become, and how many they are."""
    first = recomputation(walk, body, index) or control.early_return(walk, body, index)
    second = first or control.early_continue(walk, body, index) or written_choice(walk, body, index)
    return second or places_of_mask(walk, body, index) or returning_loop(walk, body, index)


def _without_dead_branches(program: Program) -> None:
    """What the top level binds where a known condition does not hold, as for older versions, means nothing."""
    for statement in program.source.tree.body:
        branch: cst.CSTNode | None = statement
        while isinstance(branch, cst.If):
            holds = _evaluated(program, branch.test).literal
            dead = [branch.orelse] if holds is True and branch.orelse else branch.body.body if holds is False else []
            for name, definition in (b for part in dead for b in bindings(part)):
                known = program.source.definitions.get(name, [])
                if definition in known and len(known) > 1:
                    known.remove(definition)
            branch = branch.orelse
    program.values.clear()


def _from_torch(program: Program, cls: Class) -> bool:
    return any(b.startswith("torch.") for c in program.ancestors(cls) for b in c.bases)


def _reads_torch(source: Source) -> bool:
    """Whether a file imports torch, as one does that is ported by half."""
    return any(d.imported.split(".")[0] == "torch" for found in source.definitions.values() for d in found)


def _key_name(source: Source) -> str:
    names = {n.value for n in nodes(source.tree) if isinstance(n, cst.Name)}
    return next(n for n in KEYS if n == KEYS[-1] or not {n, f"sub{n}"} & names)


def _known(program: Program, inside: list[Any]) -> Any:
    routines = [r for n in inside if (r := program.routines.get(n)) is not None]
    return {
        r.name: (dict(r.arguments), r.result, r.draws, r.draws_often, r.writes, r.differentiated, r.derived)
        for r in routines
    }, {c.name: dict(c.facts) for n in inside if (c := program.by_node.get(n)) is not None}


def _module(statement: cst.CSTNode) -> Routine:
    body = cst.IndentedBlock([statement])  # type: ignore[list-item] # a statement of the top level
    return Routine(cst.FunctionDef(cst.Name("module"), cst.Parameters(), body), "module", "module")


def _evaluated(program: Program, node: cst.BaseExpression) -> Value:
    """What is known of the value of an expression at the top level."""
    walk = Walk(program, _module(cst.SimpleStatementLine([cst.Expr(node)])), State())
    try:
        return walk.expr(node).value
    except (Stop, Uncompressed):
        return UNKNOWN


def _units(program: Program, functions: list[Class], part: frozenset[cst.CSTNode]) -> dict[cst.CSTNode, Unit]:
    """The statements of a part of the top level that its classes need, each translated."""
    units: dict[cst.CSTNode, Unit] = {}
    waiting: list[cst.CSTNode] = []
    for cls in functions:
        for statement in (cls.top, *cls.beside, *program.source.providers.get(cls.name, ())):
            if statement not in waiting and (statement is cls.top or not isinstance(statement, cst.ClassDef)):
                waiting.append(statement)
    names = {f"{c.name}.apply" for c in functions}
    body = sorted(part, key=program.source.position)
    waiting += [s for s in body if isinstance(s, cst.SimpleStatementLine) and code(_applies(s)) in names]
    while waiting:
        first = waiting.pop(0)
        if first in units:
            continue
        units[first] = _unit(program, first)
        _left_over(program, units[first])
        for name in sorted(read_names(units[first].made)):
            providers = program.source.providers.get(name, ())
            waiting.extend(p for p in providers if p not in units and not _is_import(p))
    for wrapper in body:
        applied = _applies(wrapper)
        if isinstance(applied, cst.Call) and code(applied.func) in names and wrapper not in units:
            _add_wrapper(program, units, wrapper)
    for unit in units.values():
        _without_raising(program, unit, units)
    without_left(program, units)
    return units


def _applies(statement: cst.CSTNode) -> cst.CSTNode:
    """What `f = C.apply` assigns, or the one thing that `def f(x): return C.apply(x, 2)` or such a lambda returns."""
    body: Sequence[Any] = ()
    if isinstance(statement, cst.FunctionDef) and not statement.decorators:
        body = statement.body.body[statement.get_docstring() is not None :]
    elif isinstance(statement, cst.SimpleStatementLine):
        body = statement.body
    while len(body) == 1 and isinstance(body[0], cst.SimpleStatementLine):
        body = body[0].body
    value = body[0].value if len(body) == 1 and isinstance(body[0], (cst.Return, cst.Assign)) else None
    return value.body if isinstance(value, cst.Lambda) else value or cst.Pass()


def _add_wrapper(program: Program, units: dict[cst.CSTNode, Unit], wrapper: cst.CSTNode) -> None:
    """Take a wrapper along, if it is ported whole and needs nothing else."""
    unit = _unit(program, wrapper)
    _left_over(program, unit)
    needed = {p for n in read_names(unit.made) for p in program.source.providers.get(n, ())} - {wrapper}
    if not any(f.severity == "error" for f in unit.sink.findings) and all(p in units or _is_import(p) for p in needed):
        units[wrapper] = unit


def _without_raising(program: Program, unit: Unit, units: dict[cst.CSTNode, Unit]) -> None:
    """What the top level makes by a function that is left for the hand is None there: importing the port runs it."""
    waiting, seen = [] if isinstance(unit.origin, (cst.FunctionDef, cst.ClassDef)) else [unit], {unit.origin}
    while waiting:
        part = waiting.pop()
        inside = run_on_import if part is unit else nodes
        calls = {code(n.func) for s in part.made for n in inside(s) if isinstance(n, cst.Call)}
        for provider in (p for name in sorted(calls) for p in program.source.providers.get(name, ()) if p not in seen):
            seen.add(provider)
            if not isinstance(provider, cst.FunctionDef) or provider not in units:
                continue
            part = units[provider]
            waiting.append(part)
            left = any(f.severity == "error" for f in part.sink.findings)
            if left and "raise NotImplementedError(" in code(part.made[0]):
                message = f"{provider.name.value} is left for the hand, and this calls it while the file is imported"
                unit.sink.findings.append(Finding(*program.source.position(unit.origin), "unknown", message))
                unit.made = [line(f"{n} = None") for n in sorted(program.bound_in(unit.origin))]
                return


def _left_over(program: Program, unit: Unit) -> None:
    """A name of torch's that no rule has translated is a finding: the output does not import it."""
    tree = ast.parse("".join(cst.Module([]).code_for_node(s) for s in unit.made))
    own = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    own |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    for name in sorted(read_names(unit.made) - own):
        found = program.source.last(name)
        if found is not None and found.imported.split(".")[0] == "torch":
            message = f"{name!r} is of torch, and the porter knows no translation for it here"
            unit.sink.findings.append(Finding(*program.source.position(unit.origin), "unknown", message))


def _is_import(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], (cst.Import, cst.ImportFrom))


def _unit(program: Program, statement: cst.CSTNode) -> Unit:
    if only_compiles(program, statement):
        return Unit(statement, [], Sink(), set())
    walk = Walk(program, _module(statement), _changing(program, statement))
    try:
        if isinstance(statement, cst.FunctionDef):
            routine = program.routine(statement, statement.name.value)
            made, inner = definitions.port_routine(program, routine)
            for cls in program.classes.values():
                if cls.methods.get("forward") is statement and cls.beside:
                    program.ported[cls.name] = made  # type: ignore[assignment] # the body of an operator
            behind = program.following.get(statement)
            inner.sink.imports |= {"fnjax"} if behind else set()
            return Unit(statement, [made, *([line(behind)] if behind else [])], inner.sink, inner.called)
        result: list[Any] = walk.statement(statement)  # type: ignore[arg-type] # a statement of the top level
    except Uncompressed:
        walk = Walk(program, _module(statement), _changing(program, statement), compress=False)
        result = walk.statement(statement)  # type: ignore[arg-type] # as above
    if isinstance(statement, (cst.For, cst.While)) and any(f.severity == "error" for f in walk.sink.findings):
        result = []  # at the top level nothing may raise
    result = [s for r in result for s in _importable(r, statement, program)]
    return Unit(statement, result, walk.sink, walk.called)


def _changing(program: Program, statement: cst.CSTNode) -> State:
    """The arrays of the top level that a statement writes to, as its variables."""
    state = State()
    for name in changed(statement):
        value = _evaluated(program, cst.Name(name))
        if value.is_tensor:
            state.variables[name] = replace(value, place=Place(frozenset({f"arg:{name}"})), number="")
    return state


def _importable(node: Any, origin: cst.CSTNode, program: Program) -> list[Any]:
    """At the top level nothing may raise: what cannot be translated is None there."""
    if not (isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], cst.Raise)) or node is origin:
        return [node]
    return [line(f"{name} = None") for name in sorted(program.bound_in(origin))]


def _class(program: Program, cls: Class, units: dict[cst.CSTNode, Unit]) -> PortedClass:
    """The findings of a class: its own, and those of what it needs of the file."""
    seen: set[cst.CSTNode] = {cls.top}
    top = units[cls.top]
    inside = _span(program, cls)
    beside = [
        _span(program, c)
        for c in program.classes.values()
        if c.top is cls.top and not c.name.startswith(cls.name) and not cls.name.startswith(c.name)
    ]
    found = [f for s in cls.beside if s in units and s is not cls.top for f in units[s].sink.findings]
    found += [Finding(*program.source.position(n), "dropped", m, "note") for n, m in cls.left_out]
    found += [f for f in top.sink.findings if _within(f, inside) or not any(_within(f, o) for o in beside)]
    ported = program.ported.get(cls.name)
    seen.update(cls.beside)
    waiting = sorted({n for s in cls.beside if s in units for n in read_names(units[s].made)})
    waiting += sorted(read_names([ported] if ported is not None and cls.top is cls.node else top.made))
    done: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in done:
            continue
        done.add(name)
        for provider in program.source.providers.get(name, ()):
            if provider in seen or provider not in units:
                continue
            seen.add(provider)
            found += units[provider].sink.findings
            waiting += sorted(read_names(units[provider].made))
    if ported is None:
        message = f"the porter does not reach the class {cls.node.name.value} where it stands: move it to the top level"
        found.append(Finding(*program.source.position(cls.node), "unknown", message))
    findings = tuple(sorted(set(found)))
    status = "partial" if any(f.severity == "error" for f in findings) else "ported"
    return PortedClass(cls.name, status, findings)


def _span(program: Program, cls: Class) -> tuple[int, int]:
    lines = [program.source.position(n)[0] for n in nodes(cls.node)]
    first = program.source.position(cls.node)[0]
    return first, max([x for x in lines if x >= first], default=first)


def _within(finding: Finding, span: tuple[int, int]) -> bool:
    return span[0] <= finding.line <= span[1]
