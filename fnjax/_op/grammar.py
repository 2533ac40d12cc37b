"""How a schema is written, `(Tensor(a!) x, int[2] dim, *, float? eps=None) -> Tensor`; read without JAX."""

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
    """A parameter as it is written: its name, what its type is based on, whether it is a list, and is mutated."""

    name: str
    base: str
    listed: bool
    mutated: bool


def read_parameters(text: str) -> Iterator[Written]:
    """The parameters of `scale(Tensor(a!) x, int[] dim) -> Tensor`, as far as that can be read.

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
    """The parts of a list, cut at the commas that stand in no bracket, up to a bracket that ends it."""
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
