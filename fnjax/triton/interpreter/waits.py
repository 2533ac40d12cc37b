"""Detection of `while` loops that wait for memory, from their source; and of programs that would wait for ever."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

import jax
import jax.numpy as jnp

from fnjax.triton.interpreter.host_report import report
from fnjax.triton.interpreter.liveness import read_in
from fnjax.triton.interpreter.source import Source
from fnjax.triton.values.exceptions import KernelError
from fnjax.triton.values.state import State


@functools.cache
def decisive(node: ast.While) -> tuple[tuple[str, ...], bool]:
    """Return the names that decide whether a `while` goes on, and whether one of them depends on its own earlier value.

    An iteration that changes neither these names nor memory repeats for ever. Where no name depends on itself, as in
    `while tl.load(flag) == 0: count += 1`, only memory can end the loop: it waits for what other programs write.
    """
    sources: dict[str, set[str]] = {}
    _read(node.body, set(), sources)
    found = _origins(read_in(node.test), sources) & sources.keys()
    return tuple(sorted(found)), any(name in _origins(sources[name], sources) for name in found)


def _origins(names: Iterable[str], sources: dict[str, set[str]]) -> set[str]:
    """Return some names with all that they depend on."""
    found, todo = set[str](), set(names)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo |= sources.get(name, set())
    return found


def _read(statements: Sequence[ast.stmt], around: AbstractSet[str], sources: dict[str, set[str]]) -> None:
    """Add to `sources`, for each name that statements set, the names that its value depends on.

    Args:
        statements: in their order.
        around: names that decide whether the statements run.
        sources: is filled: by name, a set of names.
    """
    for node in statements:
        if isinstance(node, ast.If | ast.While):
            inner = around | read_in(node.test)
        elif isinstance(node, ast.For):
            inner = around | read_in(node.iter)
            _set(node.target, inner, sources)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            own = read_in(node.value) | around
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                _set(target, own | (_named(target) if isinstance(node, ast.AugAssign) else set()), sources)
            continue
        else:
            continue
        for part in (node.body, node.orelse):
            _read(part, inner, sources)


def _set(target: ast.AST, made_of: AbstractSet[str], sources: dict[str, set[str]]) -> None:
    """Add to `sources` that the names of an assignment's target depend on the names `made_of`."""
    for name in _named(target):
        sources.setdefault(name, set()).update(made_of)


def _named(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def unchanged(before: Sequence[jax.Array], after: Sequence[jax.Array]) -> jax.Array:
    """Return a traced boolean: True where two lists of arrays are equal; NaN equals NaN."""
    same = [
        jnp.array_equal(a, b, equal_nan=jnp.issubdtype(a.dtype, jnp.inexact))
        for a, b in zip(before, after, strict=True)
    ]
    return jnp.all(jnp.stack(same)) if same else jnp.asarray(True)


class Marks:
    """Record of the first endless wait in a launch, kept in a buffer of its own.

    The buffer holds the loop's number, from 1 on, and the program's number; 0 is no wait.
    """

    def __init__(self, kernel: str, buffer: int) -> None:
        self.kernel, self.buffer = kernel, buffer
        self.loops: list[tuple[Source, int]] = []  # (source, line) by number

    def set(self, state: State, stuck: jax.Array, source: Source, line: int) -> None:
        """Record that a loop of the current program would not end, where `stuck` holds."""
        if (source, line) not in self.loops:
            self.loops.append((source, line))
        mark, program = state.buffers[self.buffer], 0
        for number, size in zip(state.programs, state.grid, strict=True):
            program = program * size + number
        new = jnp.stack([jnp.int32(self.loops.index((source, line)) + 1), jnp.asarray(program, jnp.int32)])
        state.buffers[self.buffer] = jnp.where(stuck & (mark[0] == 0), new, mark)

    def refuse(self, mark: jax.Array, grid: Sequence[int], arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """Return the arrays; raise KernelError if a program waited for ever, under jit when the compiled program runs.

        On platforms that cannot call the host, the arrays are filled with NaN, or the largest integer, instead
        (`interpreter.host_report`).
        """

        def look(mark: jax.Array) -> None:
            number, program = map(int, mark)
            if number:
                source, line = self.loops[number - 1]
                raise KernelError(self._message(source, line, program, grid))

        return report(look, mark, arrays)

    def _message(self, source: Source, line: int, program: int, grid: Sequence[int]) -> str:
        ids: list[int] = []
        for size in reversed(grid):
            ids.insert(0, program % size)
            program //= size
        while len(ids) > 1 and grid[len(ids) - 1] == 1:
            ids.pop()
        where = f"{source.name}, line {line} of {source.file}"
        return (
            f"kernel {self.kernel}: program {ids[0] if len(ids) == 1 else tuple(ids)} would wait for ever in {where}: "
            "programs run one after the other, and none before it changes what it waits for (a lock that is not "
            f"released, or a wait for a later program); {self.kernel}.check[grid](...) tells which"
        )
