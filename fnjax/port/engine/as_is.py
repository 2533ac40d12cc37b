"""The part of a file that stays PyTorch source: a block at the end of the port, which fnjax.torch executes."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fnjax.port.source.top_level import NAMED, collect_bound, iter_top_level_references

OPENING = "if torch.execute_block(globals()):  # PyTorch source as it is; Python itself skips the block"

IMPORT = "import fnjax.torch as torch"


class Block(NamedTuple):
    """PyTorch source in a port.

    Attributes:
        text: the `if` with the source; empty where there is none.
        names: the functions and classes in it that others may use.
        left_out: the names of the file that are neither in the block nor in JAX.
    """

    text: str = ""
    names: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(slots=True)
class _Item:
    """A statement of the top level.

    Attributes:
        node: the statement.
        bound: the names that it binds.
        read: the names of the top level that it reads.
        whole: those of them that it reads otherwise than as `name.apply`.
    """

    node: ast.stmt
    bound: frozenset[str]
    read: frozenset[str]
    whole: frozenset[str]

    @property
    def is_import(self) -> bool:
        return isinstance(self.node, (ast.Import, ast.ImportFrom))

    @property
    def is_future(self) -> bool:
        return isinstance(self.node, ast.ImportFrom) and self.node.module == "__future__"

    @property
    def is_script(self) -> bool:
        return isinstance(self.node, ast.If) and ast.unparse(self.node.test) == "__name__ == '__main__'"

    @property
    def has_effect(self) -> bool:
        """True if it may change something that another statement made."""
        plain = (*NAMED, ast.Import, ast.ImportFrom, *((ast.Assign, ast.AnnAssign) if self.bound else ()))
        return not isinstance(self.node, plain)


def write_block(
    text: str,
    wanted: frozenset[str],
    in_jax: frozenset[str] = frozenset(),
    bound: frozenset[str] = frozenset(),
    shared: frozenset[str] = frozenset(),
    *,
    everything: bool,
) -> Block:
    """Write the block.

    Args:
        text: the source.
        wanted: the names that must be in the block, such as classes that could not be translated.
        in_jax: the names of the Function classes, operators and functions that are JAX source in the port.
        bound: all names of the JAX half.
        shared: those of `in_jax` that the block calls there.
        everything: also keep the modules of the file, and the functions and classes that use Functions or kernels.

    Returns:
        The block. It holds all that its statements need of the file; a Function in JAX of which they only use `apply`
        is not repeated, unless its apply is called otherwise there.
    """
    items = [_read_item(s) for s in ast.parse(text).body]
    roots = set(wanted)
    if everything:
        roots |= _find_offered(items, in_jax | wanted) - in_jax - bound
    kept = _close(items, roots, shared)
    made = {n for i in kept for n in i.bound if not i.is_import}
    named = [i.node.name for i in items if i in kept and isinstance(i.node, NAMED)]
    offered = tuple(n for n in named if n in roots)
    left = tuple(i.node.name for i in items if isinstance(i.node, NAMED) and i.node.name not in made | in_jax | bound)
    read = {n for i in kept for n in i.read}
    imports = [i for i in items if i.is_import and not i.is_future and (i.bound & (read | wanted) or "*" in i.bound)]
    offered += tuple(sorted({n for i in imports for n in i.bound & wanted} - read))
    if not kept and not offered:
        return Block(left_out=left if everything else ())
    selected = [i for i in items if i in kept or i in imports]
    return Block(f"{OPENING}\n{_indent(text, selected)}\n", offered, left if everything else ())


def list_definitions(text: str) -> frozenset[str]:
    """Return the names that the top level of a file binds, without those of imports."""
    items = map(_read_item, ast.parse(text).body)
    return frozenset(n for i in items if not i.is_import and not i.is_script for n in i.bound)


def has_kernels(text: str) -> bool:
    """Return whether a file has Triton kernels at its top level."""
    nodes = (s for s in ast.parse(text).body if isinstance(s, ast.FunctionDef))
    return any("jit" in ast.unparse(d) and "triton" in text for n in nodes for d in n.decorator_list)


def has_operators(text: str) -> bool:
    """Return whether a file of PyTorch's calls what makes custom operators, perhaps in functions of its own."""
    return bool(re.search(r"^ *(import|from) torch\b", text, re.MULTILINE)) and bool(
        re.search(r"(\b|_)(custom_op|triton_op|Library)\(", text)
    )


def _read_item(node: ast.stmt) -> _Item:
    bound = collect_bound(node)
    read, whole = set(), set()
    for found in iter_top_level_references([node]):
        base = found.value if isinstance(found, ast.Attribute) else found
        if isinstance(base, ast.Name):
            read.add(base.id)
            if not (isinstance(found, ast.Attribute) and found.attr == "apply"):
                whole.add(base.id)
    return _Item(node, frozenset(bound), frozenset(read - bound), frozenset(whole - bound))


def _find_offered(items: Iterable[_Item], functions: frozenset[str]) -> set[str]:
    """Return the modules, kernels, and the functions and classes that use Functions, kernels or operators."""
    found = set(functions)
    definitions = [i for i in items if not i.is_import and not i.is_script and i.bound]
    for item in definitions:
        if isinstance(item.node, NAMED) and _is_offered(item.node):
            found |= item.bound
    while added := [i for i in definitions if i.read & found and not i.bound <= found]:
        found |= {n for i in added for n in i.bound}
    return found


def _is_offered(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    decorators = {w for d in node.decorator_list for w in ast.unparse(d).split("(")[0].split(".")}
    inside = (n for n in ast.walk(node) if isinstance(n, ast.ClassDef))
    if any(w in ast.unparse(b) for n in inside for b in n.bases for w in ("Module", "Function")):
        return True
    return bool(decorators & {"triton", "custom_op", "triton_op"}) or "torch.ops." in ast.unparse(node)


def _close(items: list[_Item], roots: set[str], in_jax: frozenset[str]) -> list[_Item]:
    """Return the statements that bind the names, with all that they depend on."""
    kept: list[_Item] = []
    waiting = sorted(roots)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for item in items:
            if item in kept or item.is_import or item.is_script:
                continue
            if name in item.bound or (item.has_effect and name in item.read):
                kept.append(item)
                waiting += sorted(n for n in item.read if n not in in_jax or n in item.whole)
    return kept


def _indent(text: str, items: Iterable[_Item]) -> str:
    """Return the source of statements, with the comments above them, indented; lines within strings stay."""
    lines = text.split("\n")
    inside = set(_iter_lines_in_strings(text))
    made: list[str] = []
    last = 0
    for item in items:
        decorators = getattr(item.node, "decorator_list", ())
        first = min([item.node.lineno, *(d.lineno for d in decorators)])
        while first - 1 > last and lines[first - 2].startswith("#"):
            first -= 1
        end = item.node.end_lineno or first
        if first <= last:  # two statements in one line
            continue
        if made:
            made += [""] * min(2, _count_empty(lines, first))
        made += [s if i in inside or not s.strip() else f"    {s}" for i, s in enumerate(lines[first - 1 : end], first)]
        last = end
    return "\n".join(made)


def _count_empty(lines: list[str], first: int) -> int:
    count = 0
    while first - 2 - count >= 0 and not lines[first - 2 - count].strip():
        count += 1
    return count


def _iter_lines_in_strings(text: str) -> Iterator[int]:
    """Yield the lines that begin within a string."""
    strings = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in strings:
            yield from range(token.start[0] + 1, token.end[0] + 1)


def put_block(code: str, block: str) -> str:
    """Return a port with a block at its end, in the place of the one that it has.

    Args:
        code: the port, or the docstring and the `__future__` imports of a file of which nothing else is JAX.
        block: the block.
    """
    head = code.partition(OPENING)[0].rstrip()
    if IMPORT not in head:
        body = ast.parse(head).body
        imports = [s.lineno for s in body if isinstance(s, ast.Import)]
        line = imports[0] - 1 if imports else body[-1].end_lineno or 0 if body else 0
        lines = head.split("\n")
        head = "\n".join([*lines[:line], *([""] if line and not imports else []), IMPORT, *lines[line:]]).rstrip()
    return f"{head}\n\n\n{block}"


def keep_whole(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a port without JAX source, and the names in it: those of Functions, modules, kernels and their users."""
    wanted = list_definitions(text) if has_operators(text) else frozenset[str]()
    block = write_block(text, wanted, everything=True)
    head = [s for s in ast.parse(text).body[:2] if isinstance(s, ast.Expr) or _read_item(s).is_future]
    if not block.text:
        return "", ()
    lines = text.split("\n")[: (head[-1].end_lineno or 0) if head else 0]
    return put_block("\n".join(lines), block.text), block.names
