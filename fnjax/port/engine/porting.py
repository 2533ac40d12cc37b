"""`port_source`: from the text of a file to the text of its port, and what was found."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.analysis import registry
from fnjax.port.analysis.expr import TopItem
from fnjax.port.analysis.kernels import collect_kernels
from fnjax.port.analysis.operators import collect_operators
from fnjax.port.analysis.program import Class, Program, Routine, list_nodes
from fnjax.port.engine.as_is import has_kernels, has_operators, keep_whole, write_block
from fnjax.port.engine.assembly import assemble, list_mesh_axes
from fnjax.port.engine.fixpoint import find_parts, solve_part
from fnjax.port.engine.halves import close, divide, list_providers
from fnjax.port.engine.imported import guard_import, list_run
from fnjax.port.engine.tidying import tidy
from fnjax.port.engine.top_items import evaluate_at_top_level
from fnjax.port.result import KEYS, Finding, Ported, PortedClass
from fnjax.port.rewrite.calls.pytorch_calls import stays_pytorch
from fnjax.port.source.naming import Source, collect_bound_names, collect_read_names, iter_bindings
from fnjax.port.torch import support, unparse
from fnjax.port.tree.depth import is_too_deep
from fnjax.port.tree.located import forget_nodes

registry.import_rules()
_MENTION = re.compile(r"Function|torch\.library|custom_op|triton_op")  # each file with something to port has one


def port_source(
    text: str, filename: str = "<string>", classes: Sequence[str] | None = None, *, strict: bool = False
) -> Ported:
    """Port a file with torch.autograd.Function classes to JAX. The file is read, never run.

    A class that cannot be translated whole stays PyTorch source, in a block that fnjax.torch executes; so do modules
    and functions that use the file's Functions, kernels or operators.

    Args:
        text: its text.
        filename: its name, for messages.
        classes: the Function classes to port, by name; all by default.
        strict: leave a `raise` in the place of what cannot be translated, and nothing as it is.

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
    text, newline = normalize_line_ends(text)
    deep = Ported(problem=f"{filename} is nested too deeply for the porter", readable=False)
    if is_too_deep(text):
        return deep
    try:
        if not _MENTION.search(text):  # most files of a folder
            cst.parse_module(text)
            none = _report_no_classes(filename, classes)
            return none if strict or classes else _keep_offered(text, none)
        source = Source.parse(text, filename)
    except (cst.ParserSyntaxError, SyntaxError, ValueError, UnicodeError) as e:
        return Ported(
            problem=f"{filename} is no Python that the porter can read{_describe_syntax_error(text, e)}", readable=False
        )
    except (RecursionError, KeyError):  # libcst loses its place where the stack ends
        return deep
    try:
        write = write_strictly if strict else _write_halves(text, classes is None)
        ported: Ported = port_parsed(source, text, classes, write, by_function=not strict)
        if ported.problem and ported.readable and not strict and not classes:
            ported = _keep_offered(text, ported)
        return replace(ported, code=ported.code.replace("\n", newline))
    except RecursionError:
        return deep
    except Exception as e:  # noqa: BLE001 - user code never makes the porter raise
        return _report_failure(source, e) if strict else _keep_all(text, _report_failure(source, e))
    finally:
        forget_nodes()
        unparse.cache_clear()


def normalize_line_ends(text: str) -> tuple[str, str]:
    """Return a text with lines that end in a line feed, and how the first of them ended."""
    return re.sub(r"\r\n?", "\n", text), re.search(r"\r\n?|\n|$", text)[0] or "\n"  # type: ignore[index] # it always matches


def _report_no_classes(filename: str, wanted: Sequence[str] | None, elsewhere: Sequence[str] = ()) -> Ported:
    what = f"Function class {wanted[0]!r}" if wanted else "torch.autograd.Function class and no custom operator"
    why = f"; it does not define {', '.join(elsewhere)}, for which it registers" if elsewhere else ""
    return Ported(problem=f"{filename} has no {what}{why}")


def _describe_syntax_error(text: str, error: Exception) -> str:
    """Return where and why a text is no Python: in Python's own words, where it refuses the text too."""
    try:
        compile(text, "text", "exec", dont_inherit=True)
    except SyntaxError as e:
        return f" (line {e.lineno}: {e.msg})"
    except (ValueError, RecursionError, MemoryError):
        pass
    return f" (line {error.raw_line})" if isinstance(error, cst.ParserSyntaxError) else ""


def _keep_offered(text: str, none: Ported) -> Ported:
    """Return the port of a file without Functions: all PyTorch source if it has kernels or operators, else `none`."""
    return _keep_all(text, none) if has_kernels(text) or has_operators(text) else none


def _keep_all(text: str, found: Ported) -> Ported:
    code, names = keep_whole(text)
    classes = tuple(replace(c, status="as_is") for c in found.classes if c.name in names)
    return Ported(code, classes, as_is=names) if code else found


def _report_failure(source: Source, error: Exception) -> Ported:
    """Return the result for an exception in the porter itself."""
    message = f"the porter failed ({type(error).__name__}: {str(error)[:200]}); please report this file"
    found = list_nodes(source.tree, cst.ClassDef)
    classes = [PortedClass(n.name.value, "failed", (Finding(*source.locate(n), "internal", message),)) for n in found]
    return Ported(
        classes=tuple(classes), problem="" if classes else f"{source.filename}: {message}", readable=bool(classes)
    )


def port_parsed(
    source: Source,
    text: str,
    wanted: Sequence[str] | None,
    write: Callable[[Program, list[Class], dict[cst.CSTNode, TopItem]], Any],
    renamed: frozenset[str] | None = None,
    *,
    by_function: bool = False,
    as_pytorch: frozenset[str] = frozenset(),
) -> Any:
    """Port a file that was parsed.

    Args:
        source: the file, or files that are linked.
        text: its text.
        wanted: the classes to port, by name; None for all.
        write: makes the result from the translated statements.
        renamed: the names of the file that have an underscore after them, for the port's own.
        by_function: whether functions that cannot be translated stay PyTorch, and the classes that call them do not.
        as_pytorch: such functions of the file.
    """
    program = Program(source)
    program.renamed = renamed or frozenset()
    program.by_function, program.as_pytorch = by_function, as_pytorch
    program.evaluate = lambda node: evaluate_at_top_level(program, node)
    collect_kernels(program)
    collect_operators(program)
    _drop_dead_branches(program)
    functions = [c for c in program.classes.values() if c.is_function]
    if wanted is not None:
        missing = [w for w in wanted if not any(c.name == w or c.name.endswith(f".{w}") for c in functions)]
        if missing:
            other = program.classes.get(missing[0])
            others = f", which is a {other.bases[0].removeprefix('file:')}" if other and other.bases else ""
            others += f"; it has {', '.join(c.name for c in functions)}" if functions else ""
            return Ported(problem=f"{source.filename} has no Function class {missing[0]!r}{others}")
        functions = [c for c in functions if any(c.name == w or c.name.endswith(f".{w}") for w in wanted)]
    if not functions:
        return _report_no_classes(source.filename, None, sorted(program.elsewhere))
    if not any(_derives_from_torch(program, c) for c in functions) and not _reads_torch(source):
        return Ported(text, tuple(PortedClass(c.name, "ported") for c in functions))
    program.key_name = _choose_key_name(source)
    top_items: dict[cst.CSTNode, TopItem] = {}
    for part in find_parts(program, functions):
        top_items |= solve_part(program, [c for c in functions if c.top in part], part)
        forget_nodes()  # what a part has had made is of no use to the next
        unparse.cache_clear()
    helpers, modules = support({n for u in top_items.values() for n in u.diagnostics.needs})
    ours = {*helpers, *modules, *(n for u in top_items.values() for n in u.diagnostics.imports)}
    if renamed is None and (taken := source.bound & ours):
        again = Source.parse(source.rename_names(taken), source.filename)
        return port_parsed(again, text, wanted, write, frozenset(taken), by_function=by_function, as_pytorch=as_pytorch)
    if by_function and (staying := _find_staying(program, functions, top_items) - as_pytorch):
        return port_parsed(source, text, wanted, write, renamed, by_function=True, as_pytorch=as_pytorch | staying)
    inherited = {unparse(b.value).rpartition(".")[2] for c in list_nodes(source.tree, cst.ClassDef) for b in c.bases}
    for top_item in top_items.values():
        top_item.made = [tidy(s, top_item.origin, inherited) for s in top_item.made]
    return write(program, functions, top_items)


def _find_staying(program: Program, classes: list[Class], top_items: dict[cst.CSTNode, TopItem]) -> frozenset[str]:
    """Return functions that, left in PyTorch, let classes that call them become JAX; the functions cannot."""
    failed = {s for s, u in top_items.items() if any(f.severity == "error" for f in u.diagnostics.findings)}
    failed -= {c.top for c in program.classes.values()}
    needed = {s for c in classes if failed for s in _list_needed(program, c, top_items)} & failed
    routines = {r.node.name.value: r for s in needed if (r := program.routines.get(s)) is not None}
    run = {n for u in top_items.values() for s in u.made for n in list_run(s)} if routines else set[str]()
    return frozenset(n for n, r in routines.items() if n not in run and _may_stay(program, r, top_items[r.node]))


_OF_MEMORY = frozenset({"alias", "in-place", "effect", "autograd"})


def _may_stay(program: Program, routine: Routine, top_item: TopItem) -> bool:
    """Return whether a function has no effects, as far as is known, so that it may stay PyTorch."""
    changed = program.changed_in_functions
    return not (
        routine.writes
        or program.draws_random_numbers(routine)
        or _OF_MEMORY & {f.code for f in top_item.diagnostics.findings}
        or list_nodes(routine.node, cst.Yield, cst.Global)
        or (changed and changed & collect_read_names([routine.node]))
        or any(not program.resolve_name(d.decorator).startswith("torch.") for d in routine.node.decorators)
    )


def write_whole(program: Program, functions: list[Class], top_items: dict[cst.CSTNode, TopItem]) -> Ported:
    """Return the text of the port, and what became of the classes."""
    source = program.source
    made = assemble(program, list(top_items.values()))
    try:
        compile(made, source.filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as e:
        failed = [_describe_class(program, c, top_items) for c in functions]
        finding = Finding(1, 1, "internal", f"the port is no valid Python ({e}); please report this file")
        return Ported(code="", classes=tuple(PortedClass(c.name, "failed", (*c.findings, finding)) for c in failed))
    _report_undefined(program, top_items, made)
    return Ported(
        made, tuple(_describe_class(program, c, top_items) for c in functions), axes=list_mesh_axes(top_items.values())
    )


def write_strictly(program: Program, functions: list[Class], top_items: dict[cst.CSTNode, TopItem]) -> Ported:
    """Return the port with a `raise` where a translation is missing; an import tries what reads such code."""
    guard_import(program, top_items)
    return write_whole(program, functions, top_items)


def _write_halves(text: str, everything: bool) -> Callable[[Program, list[Class], dict[cst.CSTNode, TopItem]], Ported]:
    """Return what writes a port whose classes are JAX where they can be, and else as they are."""

    def write(program: Program, functions: list[Class], top_items: dict[cst.CSTNode, TopItem]) -> Ported:
        whole = write_whole(program, functions, top_items)
        halves = divide(program, functions, whole.classes, top_items)
        block = write_block(text, halves.kept, halves.in_jax, halves.bound, halves.shared, everything=everything)
        if not block.text:
            return replace(whole, left_out=block.left_out)
        code = assemble(program, list(halves.top_items.values()), block=block.text)
        axes = list_mesh_axes(halves.top_items.values())
        return Ported(code, halves.classes, "", True, axes, block.names, halves.in_jax, block.left_out)

    return write


_OF_MODULES = frozenset(n for n in globals() if n.startswith("__"))  # __name__, __file__ ...


def _report_undefined(program: Program, top_items: dict[cst.CSTNode, TopItem], code: str) -> None:
    """Report each name that a statement reads and the port does not have, unless another finding says why."""
    bound = {*dir(builtins), *_OF_MODULES, *collect_bound_names(code)}
    for top_item in top_items.values():
        run = {n for s in top_item.made for n in list_run(s)}  # before the block is
        read = top_item.list_names_read() - bound - top_item.diagnostics.needs
        missing = {n for n in read if n in run or not stays_pytorch(program, n)}
        if missing and not any(f.severity == "error" for f in top_item.diagnostics.findings):
            message = f"the port has no {', '.join(sorted(missing))}, which this reads"
            top_item.diagnostics.findings.append(Finding(*program.source.locate(top_item.origin), "unknown", message))


def _drop_dead_branches(program: Program) -> None:
    """Drop what the top level binds where a known condition does not hold, as for older versions."""
    for statement in program.source.tree.body:
        branch: cst.CSTNode | None = statement
        while isinstance(branch, cst.If):
            holds = evaluate_at_top_level(program, branch.test).literal
            dead = [branch.orelse] if holds is True and branch.orelse else branch.body.body if holds is False else []
            for name, definition in (b for part in dead for b in iter_bindings(part)):
                known = program.source.definitions.get(name, [])
                if definition in known and len(known) > 1:
                    known.remove(definition)
            branch = branch.orelse
    program.values.clear()


def _derives_from_torch(program: Program, cls: Class) -> bool:
    return any(b.startswith("torch.") for c in program.iter_ancestors(cls) for b in c.bases)


def _reads_torch(source: Source) -> bool:
    """Return whether a file imports torch; only then may a part of it stay PyTorch source."""
    return any(d.imported.split(".")[0] == "torch" for found in source.definitions.values() for d in found)


def _choose_key_name(source: Source) -> str:
    names = {n.value for n in list_nodes(source.tree, cst.Name)}
    return next(n for n in KEYS if n == KEYS[-1] or not {n, f"sub{n}"} & names)


def _describe_class(program: Program, cls: Class, top_items: dict[cst.CSTNode, TopItem]) -> PortedClass:
    """Return the findings of a class: its own, and those of what it needs of the file."""
    top = top_items[cls.top]
    inside = _find_span(program, cls)
    next_to = [
        _find_span(program, c)
        for c in program.classes.values()
        if c.top is cls.top and not c.name.startswith(cls.name) and not cls.name.startswith(c.name)
    ]
    codes = {"note": "dropped", "error": "supply"}
    found = [Finding(*program.source.locate(n), codes[s], message, s) for n, message, s in cls.left_out]
    found += [
        f for f in top.diagnostics.findings if _lies_within(f, inside) or not any(_lies_within(f, o) for o in next_to)
    ]
    found += [f for u in _list_needed(program, cls, top_items).values() for f in u.diagnostics.findings]
    if program.ported.get(cls.name) is None or _is_in_method(program, cls):
        message = f"the porter does not reach the class {cls.node.name.value} where it is: move it to the top level"
        found.append(Finding(*program.source.locate(cls.node), "unknown", message))
    findings = tuple(sorted(set(found)))
    status = "partial" if any(f.severity == "error" for f in findings) else "ported"
    return PortedClass(cls.name, status, findings)


def _list_needed(program: Program, cls: Class, top_items: dict[cst.CSTNode, TopItem]) -> dict[cst.CSTNode, TopItem]:
    """Return the statements that a class needs of the file."""
    top, ported = top_items[cls.top], program.ported.get(cls.name)
    alone = ported is None or cls.top is not cls.node or len(top.made) == 1
    names = top.list_names_read() if alone else collect_read_names([ported])
    return close(program, [*cls.next_to, *list_providers(program, names, top)], top_items, but=cls.top)


def _is_in_method(program: Program, cls: Class) -> bool:
    """Return whether a class is made in a method of an nn.Module, or of another class of PyTorch's but a Function."""
    outer = program.by_node.get(cls.top)
    if outer is None or outer is cls or outer.is_function or cls.name.rpartition(".")[0] in program.classes:
        return False
    return _derives_from_torch(program, outer)


def _find_span(program: Program, cls: Class) -> tuple[int, int]:
    lines = [program.source.locate(n)[0] for n in list_nodes(cls.node)]
    first = program.source.locate(cls.node)[0]
    return first, max([x for x in lines if x >= first], default=first)


def _lies_within(finding: Finding, span: tuple[int, int]) -> bool:
    return span[0] <= finding.line <= span[1]
