"""Grammar of schemas, `(Tensor(a!) x, int[2] dim, *, float? eps=None) -> Tensor`; it does not import JAX."""

from __future__ import annotations

import re

TYPE = re.compile(
    r"(?P<base>Tensor|SymInt|int|float|bool|str|ScalarType|Scalar|Device|Any)"
    r"(?P<alias>\(\w+(?P<write>!)?( -> [\w|]+)?\))?(?P<q1>\?)?(?P<list>\[(?P<size>\d*)\])?(?P<q2>\?)?$"
)
NAMED = re.compile(r"(?P<type>\S.*?) +(?P<name>[A-Za-z_]\w*) *(=(?P<default>.*))?$")


def split_at_commas(text: str) -> list[str]:
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
