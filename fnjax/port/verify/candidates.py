"""Candidates for a parameter, the likeliest first."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from fnjax.port.compare.values import Made
from fnjax.port.verify.calls import REAL, Array
from fnjax.port.verify.hints import Hints

# Different sizes in every axis, so that no two axes are confused.
SHAPES = [(3, 4), (4,), (2, 3, 4), (5, 4), (3,), (4, 5), (3, 1), (1, 4), (4, 4), (2, 3, 4, 5), (), (1,), (2, 3), (2, 4)]
SHAPES += [
    (3, 5),
    (6, 4),
    (5,),
    (2,),
    (2, 4, 4),
    (3, 4, 2),
    (2, 3, 6, 5),
    (4, 3, 2, 2),
    (12, 4),
    (2, 5, 4),
    (8,),
    (6,),
    (2, 4, 6, 6),
    (2, 4, 3, 2, 3),
]
SPATIAL: dict[str, tuple[int, ...]] = {
    "input1": (2, 3, 7),
    "input2": (2, 3, 6, 5),
    "input3": (2, 3, 4, 6, 5),
    "bias": (4,),
}
SPATIAL |= {"weight1": (4, 3, 3), "weight2": (4, 3, 3, 2), "weight3": (4, 3, 2, 3, 2)}
INDICES = re.compile(
    r"(^|_)(idx|idxs|index|indices|inds?|label|labels|targets?|ids|perm|order|assign\w*|batch)($|_)|_idx"
)
MASKS = re.compile(r"mask|(^|_)(is|has|keep|valid)(_|$)|padding")
POSITIVE = re.compile(r"scale|var|std|sigma|temp|eps|norm|prob|weight_sum|denom|length|cov|rate")
FUNCTION = re.compile(r"(^|_)(fn|func|function|fun|callable|activation|act|module|op)$|_fn_|^f$")
COUNT = re.compile(r"(^|_)(num|n|k|iters?|bits?|size|steps?|groups?|stride|pad|padding|heads|count|len|max_len)(_|$)")
ANNOTATED = {"bool": "bool", "int": "int", "float": "float", "str": "text", "dtype": "dtype"}
KINDS_OF_LITERALS: dict[type, tuple[str, ...]] = dict.fromkeys((tuple, list), ("row",))
KINDS_OF_LITERALS |= {bool: ("bool",), int: ("int", "dim", "size", "float"), float: ("float",), str: ("text",)}
KINDS_OF_LITERALS[dict] = ("keys",)
ARRAYS = {"tensor", "tensors", "mask", "index"}  # with which literals are compared, and which they are not
FUNCTIONS = [
    *("lambda x, *a, **k: 2 * x", "lambda *a, **k: a[0] * a[-1]", "lambda *a, **k: a[0]"),
    *("lambda x, *a, **k: (x > 0) * 1.0", "lambda *a, **k: (a[0], a[-1])"),
]
MODULES = ["torch.nn.Tanh()", "torch.nn.Linear(4, 4)", "torch.nn.Softplus()"]
FLOATS = [0.5, 1.0, 2.0, 0.1, 1.5, -0.5, 3.0, 1e-3, 0.0, 10.0]
INTEGERS = [2, 3, 1, 4, 0, -1, 5, 8, 6, 16]
WORDS = ["mean", "sum", "none", "cpu", ""]


_ROWS = ((3,), (3, 4), (4,), (2, 3), (3, 1), (2, 3, 4), (5,), ())
VALUES: dict[str, list[Any]] = {
    "index": [Array(s, "index", h) for s in _ROWS for h in (2, 3, 4)]
    + [Array(s, "order") for s in ((3, 4), (3,), (2, 3))],
    "mask": [Array(s, k) for s in ((3, 4), (2, 3), (4,), (3,), (2, 3, 4), (3, 1)) for k in ("mask", "unit", "marks")],
    "tensors": [kind([Array(s)] * n) for kind in (tuple, list) for n in (2, 3, 1) for s in SHAPES[:5]],
    "function": [Made(text) for text in [*FUNCTIONS, *MODULES]],
    "module": [Made(text) for text in [*MODULES, *FUNCTIONS]],
    "functions": [kind([Made(text)] * n) for kind in (tuple, list) for n in (2, 1) for text in [*FUNCTIONS, *MODULES]],
    "source": [Made(f"lambda: torch.linspace(-0.7, 0.9, {4 * n}).reshape({n}, 4)") for n in (3, 4, 5)],
    "mapping": [{}],
    "bool": [True, False],
    "int": INTEGERS,
    "size": [3, 4, 2, 1, 5, 12, 6],
    "float": [*FLOATS[:5], 2, 1, *FLOATS[5:]],
    "dim": [-1, 1, 0, -2, 2],
    "device": ["cpu"],
    "none": [None],
}


class Options:
    """The values for one parameter.

    Args:
        hints: those on the parameter.
        torch: PyTorch or fnjax.torch.

    Attributes:
        likely: values of the likeliest kind.
        other: values of other kinds.
    """

    def __init__(self, hints: Hints, torch: Any) -> None:
        self.hints = hints
        kinds = _list_kinds(hints, torch)
        primary = kinds[:1]
        if hints.default is None and (hints.optional or "Optional" in hints.annotation or "None" in hints.annotation):
            primary.append("none")
        if "none" in hints.facts:
            primary.append("none")
        self.likely = [v for kind in dict.fromkeys(primary) for v in _list_values(kind, hints, torch)]
        literal = [v for v in hints.values if _is_of_kind(v, kinds[0])]
        if hints.optional and hints.default is not None and _is_of_kind(hints.default, kinds[0]):
            literal.insert(0, hints.default)
        self.likely = _drop_repeated([*literal, *self.likely])
        rest = [k for k in [*kinds[1:], "tensor", "float", "int", "bool", "none"] if k not in primary]
        self.other = _drop_repeated(
            [*hints.values, *(v for kind in dict.fromkeys(rest) for v in _list_values(kind, hints, torch)[:8])]
        )

    def choose_value(self, draw: random.Random, width: int) -> Any:
        """Return one of the first few; seldom something else."""
        if self.other and draw.random() < (0.05 if width < 6 else 0.15):
            return draw.choice(self.other[: max(4, width)])
        return draw.choice(self.likely[: max(1, width)] or self.other)


def _drop_repeated(values: Sequence[Any]) -> list[Any]:
    return list({repr(v): v for v in values}.values())


def _is_of_kind(value: Any, kind: str) -> bool:
    literal = kind in ARRAYS or any(kind in kinds for kinds in KINDS_OF_LITERALS.values())
    return not literal or value is None or kind in KINDS_OF_LITERALS.get(type(value), ())


def _list_kinds(hints: Hints, torch: Any) -> list[str]:
    """Return the kinds of value that it may be, the likeliest first."""
    annotation, facts, name = hints.annotation, hints.facts, hints.name
    tensors = {a for a in hints.attributes if hasattr(torch.Tensor, a)}
    foreign = {a for a in hints.attributes if not a.endswith("()")} - tensors - {"data_ptr"}
    surely = facts & {"tensor", "graded", "mask"} or tensors - {"type", "size", "device", "to"}
    is_dim = name in {"dim", "axis"} or "dim" in facts
    of_tensors = re.search(r"(Tuple|tuple|List|list|Sequence)\[.*Tensor", annotation)
    tensor = ["tensor"]  # a mask or an index by its name and its uses, where backward returns no gradient for it
    if "graded" not in facts and (MASKS.search(name) or "mask" in facts):
        tensor = ["mask", "tensor", "index"]
    elif "graded" not in facts and (INDICES.search(name) or "index" in facts):
        tensor = ["index", "tensor"]
    # Annotations come before uses, and both before names: annotations are seldom wrong, names often.
    rules: list[tuple[Any, list[str]]] = [
        ("mapping" in facts, ["mapping"]),
        (re.search(r"\bModule\b", annotation), ["module"]),
        ("Callable" in annotation, ["function"]),
        (foreign and foreign <= {*dir(torch.nn.Module)} and "graded" not in facts, ["module"]),
        ("empty" in facts and "called" not in facts and not tensors, ["source", "function"]),
        ("called" in facts and not tensors, ["function"]),
        (of_tensors, ["tensors"]),
        (not of_tensors and re.search(r"Tensor", annotation), tensor),
        (re.search(r"(Tuple|tuple|List|list|Sequence)\[int|Size|_size", annotation), ["row"]),
        (is_dim and re.search(r"\bint\b", annotation), ["dim"]),
        *((re.search(rf"\b{word}\b", annotation), [kind]) for word, kind in ANNOTATED.items()),
        (hints.enumeration and hints.attributes.keys() <= {"name", "value"}, ["member"]),
        (hints.keys, ["keys"]),
        (foreign and "graded" not in facts, ["object"]),
        ("dtype" in facts or "dtype" in name, ["dtype"]),
        ("device" in facts or name == "device", ["device"]),
        (hints.default is not None, [_name_kind(hints.default)]),
        (is_dim and (not surely or name in {"dim", "axis"}), ["dim"]),
        (FUNCTION.search(name) and not facts & {"tensor", "graded", "computed"}, ["function"]),
        (any(isinstance(v, str) for v in hints.values), ["text"]),
        (surely or facts & SPATIAL.keys(), tensor),
        ("size" in facts, ["size"]),
        ("sequence" in facts and hints.member and "called" in hints.member.facts, ["functions"]),
        ("sequence" in facts, ["row", "tensors"]),
        (True, [_name_kind(v) for v in hints.values if v is not None]),
        ("index" in facts, ["index", "int", "mask"]),
        ("condition" in facts and "computed" not in facts, ["bool"]),
        (COUNT.search(name), ["int"]),
        (re.search(r"^running_|(^|_)(weight|bias|mean|var|tensor)$", name), ["tensor"]),
        ("computed" in facts and "ungraded" in facts, ["float"]),
        (True, [*tensor, "float", "int", "bool"]),
    ]
    return list(dict.fromkeys(kind for holds, kinds in rules if holds for kind in kinds))


def _name_kind(value: Any) -> str:
    return KINDS_OF_LITERALS.get(type(value), ("tensor",))[0]


def _list_values(kind: str, hints: Hints, torch: Any) -> list[Any]:
    if kind == "tensor":
        ranks = hints.list_ranks()
        first = "positive" if POSITIVE.search(hints.name) else "normal"
        spatial = [SPATIAL[fact] for fact in sorted(hints.facts & SPATIAL.keys())]
        fitting = [s for rank in ranks for s in SHAPES if len(s) == rank]
        shapes = list(dict.fromkeys([*spatial, *fitting, *SHAPES]))
        found = [Array(s, first) for s in shapes]
        others = [Array((3, 4), "unit"), Array((3, 4), "index", 3), Array((3,), "index", 4), Array((3, 4), "mask")]
        made = [*found[:6], *others, *found[6:], Array((4, 4), "definite")]
        rarely = [Array(s, "complex") for s in shapes[:3]]
        return [*rarely, *made] if "complex" in hints.facts else [*made, *rarely]
    if kind == "keys":
        return [dict.fromkeys(hints.keys, v) for v in (4, 2, 1.0, True)]
    if kind == "object":
        return [Made(text) for text in _write_objects(hints, torch)]
    if kind == "member":
        return [Made(f"[*{hints.enumeration}][{i}]") for i in range(3)]
    if kind == "row":
        starts = ((1, 2, 3, 2), (3, 4, 2, 5), (1, 1, 1, 1), (0, 1, 2, 3), (0,) * 4)
        rows = [tuple(r[:n]) for n in ([hints.length] if hints.length else [2, 1, 3]) for r in starts]
        return [*rows, (3, 4), (4, 3), (12,), (4,), *([list(r) for r in rows])]
    if kind == "text":
        return [v for v in hints.values if isinstance(v, str)] or WORDS
    if kind == "dtype":
        return [torch.float32, torch.float64, torch.int32, torch.float16]
    return VALUES[kind]


def _write_objects(hints: Hints, torch: Any) -> Iterator[str]:
    """Yield texts of objects that have the attributes which are read, each of a likely kind."""
    draw = random.Random(0)
    options = {name: Options(a, torch) for name, a in hints.attributes.items() if not name.endswith("()")}
    for number in range(12):
        chosen = {name: o.choose_value(draw, 1 + number) for name, o in options.items()}
        yield f"SimpleNamespace({', '.join(f'{name}={_write_value(v)}' for name, v in chosen.items())})"


def _write_value(value: Any) -> str:
    """Write a value with the names of its own torch."""
    if isinstance(value, Array):
        whole = "" if value.kind in REAL else ".long()"
        return f"torch.linspace(0.1, 1.9, {math.prod(value.shape)}).reshape({value.shape}){whole}"
    if type(value) in {tuple, list}:
        return f"[{', '.join(map(_write_value, value))}]"
    return repr(value)
