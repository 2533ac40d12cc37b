"""The names of torch: the lines of the table, and the objects that fnjax.torch has instead or in addition.

A line of `add_lines` has four columns, parted by ` | `:

    ~add | input, other, *, alpha=1 | input + alpha * other | promoted

1. names: `torch.add`, `.add` (the method), `F.relu` (torch.nn.functional), `linalg.`, `special.`, `fft.`, `dtype.`;
   `+sum` is short for `torch.sum .sum`, `~add` for `torch.add .add .add_`, `*exp` for `torch.exp .exp torch.exp_ .exp_`
2. torch's signature
3. the template: a JAX expression over the parameters (see TemplateFiller for what is left out)
4. words: the result, and any of `random`, `untraced`, `view`, `repeat`, `maybe`, `attribute`, `fields=values,indices`, and
   the attributes of Overload: `each`, `total`, `axes`, `large`, `made`, `rows`, `gaps`, `recoded`, `along`, `integers`, `precise`, `casts=float16`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fnjax._torch_ops.record import Absent, Operation, Overload, Template

# By qualified name: torch.add, torch.Tensor.add.
TABLE: dict[str, Operation | Absent] = {}  # what a port writes, and fnjax.torch runs for names that are not in KNOWN
KNOWN: dict[str, Any] = {}  # functions, methods, properties, classes and constants of fnjax.torch
_WITHIN: dict[str, Absent] = {}
_SPACES = {
    "": "torch.Tensor.",
    "F": "torch.nn.functional.",
    "linalg": "torch.linalg.",
    "special": "torch.special.",
    "fft": "torch.fft.",
    "dtype": "torch.dtype.",
    "torch": "torch.",
}


_SHORT: dict[str, Callable[[str], list[str]]] = {
    "+": lambda s: [f"torch.{s[1:]}", f".{s[1:]}"],
    "~": lambda s: [f"torch.{s[1:]}", f".{s[1:]}", f".{s[1:]}_"],
    "*": lambda s: [f"torch.{s[1:]}", f".{s[1:]}", f"torch.{s[1:]}_", f".{s[1:]}_"],
}


def known(*names: str) -> Callable[[Any], Any]:
    """Register an object of fnjax.torch under qualified names."""

    def enter(value: Any) -> Any:
        KNOWN.update(dict.fromkeys(names, value))
        return value

    return enter


def add_known(names: str, value: Any) -> None:
    """Register an object of fnjax.torch under names below torch, separated by spaces."""
    known(*(f"torch.{name}" for name in names.split()))(value)


def _list_itself(name: str) -> list[str]:
    return [name]


def qualify_name(name: str) -> str:
    """Return the full name for one in a line of the table: `.add` is a method, `F.` torch.nn.functional."""
    space, _, last = name.rpartition(".")
    return _SPACES.get(space, f"{space}.") + last


def add_operation(
    names: str,
    signature: str,
    template: str | Template,
    result: str = "same",
    *,
    fields: str = "",
    parts: Mapping[str, str] | None = None,
    random: bool = False,
    traced: bool = True,
    alias: str = "new",
    called: bool = True,
    **columns: Any,
) -> None:
    """Register a line; for a name that is in the table already, one more overload.

    A name that ends in `_` is an in-place method, or function, of the operation; one that ends in `_copy` does not return a view.
    The columns are the other attributes of Overload.
    """
    overload = Overload(
        signature, template, result, tuple(fields.split()), parts or {}, random, traced, alias, **columns
    )
    full = [qualify_name(name) for short in names.split() for name in _SHORT.get(short[0], _list_itself)(short)]
    plain = tuple(name for name in full if not _is_in_place(name))
    found = TABLE.get((plain or full)[0])
    before = found.overloads if isinstance(found, Operation) else ()
    record = Operation(plain or tuple(full), (*before, overload), called)
    copying = replace(record, overloads=tuple(replace(o, alias="new") for o in record.overloads))
    for name in plain:
        TABLE[name] = copying if name.endswith("_copy") else record
    for name in full:
        if _is_in_place(name):
            TABLE[name] = Operation((name,), record.overloads, called, inplace=record)


def add_lines(text: str) -> None:
    """Register operations from text, one a line."""
    for line in text.strip().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        names, signature, template, words = (part.strip() for part in re.split(r" \|(?= )", line))
        result, *rest = words.split()
        said = dict(word.partition("=")[::2] for word in rest)
        add_operation(
            names,
            signature,
            template,
            result,
            fields=said.pop("fields", "").replace(",", " "),
            random=said.pop("random", None) is not None,
            traced=said.pop("untraced", None) is None,
            alias=next((w for w in ("view", "repeat", "maybe") if said.pop(w, None) is not None), "new"),
            called=said.pop("attribute", None) is None,
            **{word: value or True for word, value in said.items()},  # type: ignore[arg-type] # of Overload
        )


def _is_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def add_absent(names: str, reason: str, remedy: str) -> None:
    """Register operations that JAX code cannot replace."""
    for name in names.split():
        TABLE[qualify_name(name)] = Absent(reason, remedy)


def mark_running(names: str) -> None:
    """Mark absent names that fnjax.torch has."""
    for name in map(qualify_name, names.split()):
        found = TABLE[name]
        assert isinstance(found, Absent)
        TABLE[name] = replace(found, runs=True)


def add_absent_modules(modules: str, reason: str, remedy: str) -> None:
    """Register whole modules that JAX code cannot replace, except for the names that are in the table."""
    _WITHIN.update(dict.fromkeys(modules.split(), Absent(reason, remedy)))


def list_dtype_names(*dtypes: str) -> frozenset[str]:
    """Return torch's names of these dtypes of jnp: `torch.int64` and `torch.long`."""
    known = ((name, o.first) for name, o in TABLE.items() if isinstance(o, Operation) and o.inplace is None)
    return frozenset(name for name, first in known if first.dtype in dtypes)


def mark_column(column: str, names: str, mark: object = True) -> None:
    """Set a column of operations in the table in their first signature, by default to True."""
    for name in names.split():
        found = TABLE[qualify_name(name)]
        assert isinstance(found, Operation)
        if not getattr(found.first, column):
            made = replace(found, overloads=(replace(found.first, **{column: mark}), *found.overloads[1:]))  # type: ignore[arg-type] # of Overload
            for other, record in TABLE.items():
                if record is found:
                    TABLE[other] = made
                elif isinstance(record, Operation) and record.inplace is found:
                    TABLE[other] = replace(record, overloads=made.overloads, inplace=made)


def find_operation(name: str) -> Operation | Absent | None:
    """Return the operation of a qualified name, `torch.clamp` or `torch.Tensor.clamp_`; None if it is not torch's."""
    return TABLE.get(name) or _WITHIN.get(name.rpartition(".")[0])
