"""What the code of a function does with a variable: reads it, passes it on, writes to it, or only counts in it.

How often a function runs is nothing that its result depends on: `calls += 1`, `calls["forward"] += 1` and
`calls.append(x)`, also on an attribute, as in `Square.calls += 1`, are counts. Whatever else is done with a name makes
it one that is read.
"""

from __future__ import annotations

import dis
import itertools
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakKeyDictionary

CONTAINERS = (list, dict, set, deque, Counter, OrderedDict, defaultdict)
KINDS = (int, *CONTAINERS)  # of variables that may count
_RETURN_NONE = {"append", "appendleft", "add", "extend", "update", "insert"}
_WRITES = {"pop", "popleft", "popitem", "remove", "discard", "clear", "setdefault", "rotate", "sort", "reverse"}
_STORES = ("STORE_GLOBAL", "STORE_DEREF", "STORE_SUBSCR", "STORE_ATTR", "DELETE_SUBSCR", "DELETE_ATTR")
_LOAD, _LOOK_UP = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"), ("LOAD_ATTR", "LOAD_METHOD")
_INCREMENT = ["LOAD_CONST", "BINARY_OP"]
_ITEM_INCREMENT = ["LOAD", "COPY", "COPY", "BINARY_SUBSCR", *_INCREMENT, "SWAP", "SWAP", "STORE_SUBSCR"]


class _Uses(NamedTuple):
    """What a function loads.

    Attributes:
        counted: by name, of a variable or an attribute, whether it only counts in it.
        from_globals: the names of globals.
        attributes: by name, of a global, a captured variable or a module that it imports, which attributes it reads.
        passed: the names, of variables and attributes, with which it does more than read an attribute.
        written: the names of variables that it writes to.
        relative: whether it imports from a module whose name begins with a dot.
    """

    counted: dict[str, bool]
    from_globals: frozenset[str]
    attributes: dict[str, set[str]]
    passed: frozenset[str]
    written: frozenset[str]
    relative: bool


_found: WeakKeyDictionary[types.CodeType, _Uses] = WeakKeyDictionary()


def is_counter(codes: Iterable[types.CodeType], name: str) -> bool:
    """Whether these functions count in a variable or an attribute of this name, and do nothing else with it."""
    found = [uses.counted[name] for uses in map(_uses, codes) if name in uses.counted]
    return bool(found) and all(found)


def is_read(code: types.CodeType, name: str) -> bool:
    """Whether a function reads a global of this name, and not an attribute only."""
    return name in _uses(code).from_globals


def attributes_read(code: types.CodeType, name: str) -> set[str]:
    """The attributes that a function reads of a global or a captured variable of this name."""
    return _uses(code).attributes.get(name, set())


def is_passed(code: types.CodeType, name: str) -> bool:
    """Whether a function does more with a variable, or with an attribute, of this name than to read an attribute."""
    return name in _uses(code).passed


def is_written(code: types.CodeType, name: str) -> bool:
    """Whether a function writes to a variable of this name, other than to count."""
    uses = _uses(code)
    return name in uses.written and not uses.counted.get(name, False)


def imports_relatively(code: types.CodeType) -> bool:
    """Whether a function imports from a module that only its package tells."""
    return _uses(code).relative


def _uses(code: types.CodeType) -> _Uses:
    if code not in _found:
        counted: dict[str, bool] = {}
        steps = [s for c in all_code(code) for s in dis.get_instructions(c) if s.opname not in ("CACHE", "PRECALL")]
        for i, step in enumerate(steps):
            if step.opname.startswith("LOAD_") and step.opname != "LOAD_CONST" and isinstance(step.argval, str):
                counts = _counts(step.argval, steps[i + 1 : i + 10])
                counted[step.argval] = counted.get(step.argval, True) and counts
        from_globals = frozenset(s.argval for s in steps if s.opname in _LOAD[:2])
        looked_up = {s.argval for s in steps if s.opname in (*_LOOK_UP, "IMPORT_FROM")}
        attributes = {s.argval: looked_up for s in steps if s.opname == "IMPORT_NAME"}  # under whatever local name
        for step, after in itertools.pairwise(steps):
            if step.opname in _LOAD and after.opname in _LOOK_UP:
                attributes[step.argval] = attributes.get(step.argval, set()) | {after.argval}
        passed, written, relative = set(), set(), False
        for before, step in itertools.pairwise(s for s in steps if s.opname != "COPY"):  # of an augmented assignment
            if before.opname in (*_LOAD, *_LOOK_UP) and step.opname not in _LOOK_UP:
                passed.add(before.argval)
            if before.opname in _LOAD and step.opname in _LOOK_UP and step.argval in _WRITES | _RETURN_NONE:
                written.add(before.argval)
        for i, step in enumerate(steps):
            if step.opname in _STORES[:2]:
                written.add(step.argval)
            elif step.opname in _STORES:
                written |= {s.argval for s in steps[max(i - 3, 0) : i] if s.opname in _LOAD}
            elif step.opname == "IMPORT_NAME":
                relative |= any(s.argval in range(1, 10) for s in steps[max(i - 2, 0) : i] if s.opname == "LOAD_CONST")
        _found[code] = _Uses(counted, from_globals, attributes, frozenset(passed), frozenset(written), relative)
    return _found[code]


def _counts(name: str, after: list[dis.Instruction]) -> bool:
    names = [step.opname for step in after]
    if names[0] in _LOOK_UP:
        return after[0].argval in _RETURN_NONE
    if names[:2] == _INCREMENT:
        store = after[3] if names[2] == "SWAP" else after[2]
        return after[1].argrepr == "+=" and store.opname.startswith("STORE_") and store.argval == name
    generic = ["LOAD" if names[0].startswith("LOAD_") else names[0], *names[1:9]]
    return generic == _ITEM_INCREMENT and after[5].argrepr == "+="


def all_code(code: types.CodeType) -> Iterable[types.CodeType]:
    """The code of a function and of those written inside it."""
    inner = (all_code(c) for c in code.co_consts if isinstance(c, types.CodeType))
    return itertools.chain((code,), *inner)
