"""Grammar of schemas, `(Tensor(a!) x, int[2] dim, *, float? eps=None) -> Tensor`; it does not import JAX."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

TYPE = re.compile(
    r"(?P<base>Tensor|SymInt|int|float|bool|str|ScalarType|Scalar|Device|Any)"
    r"(?P<alias>\(\w+(?P<write>!)?( -> [\w|]+)?\))?(?P<q1>\?)?(?P<list>\[(?P<size>\d*)\])?(?P<q2>\?)?$"
)
NAMED = re.compile(r"(?P<type>\S.*?) +(?P<name>[A-Za-z_]\w*) *(=(?P<default>.*))?$")


class Written(NamedTuple):
    """Parameter as written in a schema: name, base type, and flags for a list and for mutation."""

    name: str
    base: str
    listed: bool
    mutated: bool


def read_parameters(text: str) -> Iterator[Written]:
    """Yield the parameters of `scale(Tensor(a!) x, int[] dim) -> Tensor`; unreadable ones are skipped.

    >>> list(read_parameters("scale(Tensor(a!) x, int[] dim) -> Tensor"))[0]
    Written(name='x', base='Tensor', listed=False, mutated=True)
    """
    _, opened, rest = text.partition("(")
    for part in cut(rest) if opened else ():
        named = NAMED.match(part)
        kind = TYPE.match(named["type"].strip()) if named else None
        if named is not None and kind is not None:
            yield Written(named["name"], kind["base"], kind["list"] is not None, kind["write"] is not None)


def cut(text: str) -> list[str]:
    """Split a list at the commas outside brackets, up to an unmatched closing bracket."""
    parts, depth, start, end = [], 0, 0, len(text)
    for i, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if depth < 0:
            end = i
            break
        if c == "," and not depth:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:end].strip()
    return [*parts, last] if last else parts
