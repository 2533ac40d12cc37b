"""Candidates for a parameter, the likeliest first."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from fnjax.port.verify.calls import Array, Passed, SimpleNamespace
from fnjax.port.verify.hints import Hints

# Different sizes in every axis, so that no two axes are confused.
SHAPES = [(3, 4), (4,), (2, 3, 4), (5, 4), (3,), (4, 5), (3, 1), (1, 4), (4, 4), (2, 3, 4, 5), (), (1,), (2, 3), (2, 4)]
SHAPES += [(3, 5), (6, 4), (5,), (2,), (2, 4, 4), (3, 4, 2), (2, 3, 6, 5), (4, 3, 2, 2), (12, 4), (2, 5, 4), (8,), (6,)]
IMAGES = [(2, 3, 6, 5), (3, 6, 5), (2, 4, 6, 8)]
SPATIAL: dict[str, tuple[int, ...]] = {
    "input1": (2, 3, 7),
    "input2": (2, 3, 6, 5),
    "input3": (2, 3, 4, 6, 5),
    "bias": (4,),
}
SPATIAL |= {"weight1": (4, 3, 3), "weight2": (4, 3, 3, 2), "weight3": (4, 3, 2, 3, 2)}
NAMED: list[tuple[str, list[tuple[int, ...]]]] = [
    (r"(^|_)(w|weights?|kernel)($|_)|_(w|weight)$|^w_|^weight", [(5, 4), (4, 5), (4,), (4, 4), (4, 3, 2, 2)]),
    (r"bias|^b$|^beta$|^gamma$|running_|_mean$|_var$", [(4,), (5,), (3,), (1, 4)]),
    (r"image|img|pixel|feature_map", IMAGES),
    (r"^(q|k|v|query|key|value|queries|keys|values)(_|$)", [(2, 3, 4), (2, 2, 3, 4), (3, 4)]),
    (r"adj|^(a|A|L|S|matrix|mat|cov)$|hessian", [(3, 4), (4, 4), (2, 4, 4)]),
    (r"scale|threshold|thresh|alpha|temp|bound|slope|zero_point", [(), (1,), (4,), (3, 4), (3, 1)]),
]
INDICES = re.compile(
    r"(^|_)(idx|idxs|index|indices|inds?|label|labels|targets?|ids|perm|order|assign\w*|batch)($|_)|_idx"
)
MASKS = re.compile(r"mask|(^|_)(is|has|keep|valid)(_|$)|padding")
POSITIVE = re.compile(r"scale|var|std|sigma|temp|eps|norm|prob|weight_sum|denom|length|cov|rate")
FUNCTION = re.compile(r"(^|_)(fn|func|function|fun|callable|activation|act|module|op)$|_fn_|^f$")
FUNCTIONS = ["lambda x, *a: 2 * x", "lambda *a: a[0] * a[0]", "lambda *a: a[0]", "lambda x, *a: (x > 0) * 1.0"]
FLOATS = [0.5, 1.0, 2.0, 0.1, 1.5, -0.5, 3.0, 1e-3, 0.0, 10.0]
WHOLE = [2, 3, 1, 4, 0, -1, 5, 8, 6, 16]
WORDS = ["mean", "sum", "none", "cpu", ""]


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
        kinds = list(dict.fromkeys(_iter_kinds(hints, torch)))
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
    types: dict[str, Any] = {
        "bool": bool,
        "int": int,
        "float": (int, float),
        "text": str,
        "dim": int,
        "size": int,
        "row": (tuple, list),
    }
    known = types.get(kind)
    return known is None or value is None or (isinstance(value, known) and (kind == "bool") == isinstance(value, bool))


def _iter_kinds(hints: Hints, torch: Any) -> Iterator[str]:
    """Yield the kinds of value that it may be, the likeliest first."""
    # Annotations come before uses, and both before what names suggest: annotations are seldom
    # wrong, names often. Each kind may come again; who reads this takes it once.
    said, facts, name = hints.annotation, hints.facts, hints.name
    tensors = {a for a in hints.attributes if hasattr(torch.Tensor, a)}
    foreign = hints.attributes.keys() - tensors - {"data_ptr"}
    if "Callable" in said or ("called" in facts and not tensors):
        yield "function"
    if re.search(r"(Tuple|tuple|List|list|Sequence)\[.*Tensor", said):
        yield "tensors"
    elif re.search(r"Tensor|torch\.FloatTensor", said):
        yield from _iter_tensor_kinds(hints)
    if re.search(r"(Tuple|tuple|List|list|Sequence)\[int|Size|_size", said):
        yield "row"
    for word, kind in (("bool", "bool"), ("int", "int"), ("float", "float"), ("str", "text"), ("dtype", "dtype")):
        if re.search(rf"\b{word}\b", said):
            yield "dim" if kind == "int" and ("dim" in facts or name in {"dim", "axis"}) else kind
    if hints.keys:
        yield "keys"
    if foreign and not (facts & {"graded"}):
        yield "object"
    if "dtype" in facts or "dtype" in name:
        yield "dtype"
    if "device" in facts or name == "device":
        yield "device"
    if hints.default is not None:
        yield _name_kind(hints.default)
    surely = facts & {"tensor", "graded", "mask"} or tensors - {"type", "size", "device", "to"}
    if name in {"dim", "axis"} or ("dim" in facts and not surely):
        yield "dim"
    if FUNCTION.search(name) and not facts & {"tensor", "graded", "computed"}:
        yield "function"
    if any(isinstance(v, str) for v in hints.values):
        yield "text"
    if surely or facts & SPATIAL.keys():
        yield from _iter_tensor_kinds(hints)
    if "size" in facts:
        yield "size"
    if "number" in facts:
        yield "float"
    if "sequence" in facts:
        yield from ("row", "tensors")
    yield from (_name_kind(v) for v in hints.values if v is not None)
    if "index" in facts:
        yield from ("index", "int", "mask")
    if "truth" in facts and "computed" not in facts:
        yield "bool"
    if re.search(
        r"(^|_)(num|n|k|iters?|bits?|size|steps?|groups?|stride|pad|padding|heads|count|len|max_len)(_|$)", name
    ):
        yield "int"
    if re.search(r"^running_|(^|_)(weight|bias|mean|var|tensor)$", name):
        yield "tensor"
    if "computed" in facts:
        yield from ("float", "tensor") if "ungraded" in facts else ("tensor", "float")
    yield from ("tensor", "float", "int", "bool")


def _iter_tensor_kinds(hints: Hints) -> Iterator[str]:
    """Yield kinds of tensor: a mask or an index by its name and its uses, where backward returns no gradient for it."""
    free = "graded" not in hints.facts
    if free and (MASKS.search(hints.name) or "mask" in hints.facts):
        yield from ("mask", "tensor", "index")
    elif free and ("index" in hints.facts or INDICES.search(hints.name)):
        yield from ("index", "tensor")
    yield "tensor"


def _name_kind(value: Any) -> str:
    kinds = {bool: "bool", int: "int", float: "float", str: "text", tuple: "row", list: "row", dict: "keys"}
    return kinds.get(type(value), "tensor")


def _list_values(kind: str, hints: Hints, torch: Any) -> list[Any]:
    if kind == "tensor":
        first = "positive" if POSITIVE.search(hints.name) else "normal"
        named = [s for pattern, shapes in NAMED if re.search(pattern, hints.name) for s in shapes]
        spatial = [SPATIAL[fact] for fact in sorted(hints.facts & SPATIAL.keys())]
        shapes = list(dict.fromkeys([*spatial, *named, *SHAPES]))
        found = [Array(s, first) for s in shapes]
        others = [Array((3, 4), "unit"), Array((3, 4), "index", 3), Array((3,), "index", 4), Array((3, 4), "mask")]
        made = [*found[:6], *others, *found[6:], Array((4, 4), "definite")]
        rarely = [Array(s, "complex") for s in shapes[:3]]
        return [*rarely, *made] if "complex" in hints.facts else [*made, *rarely]
    if kind == "index":
        high = [
            Array(s, "index", h) for s in ((3,), (3, 4), (4,), (2, 3), (3, 1), (2, 3, 4), (5,), ()) for h in (2, 3, 4)
        ]
        return [*high, Array((3, 4), "order"), Array((3,), "order"), Array((2, 3), "order")]
    if kind == "mask":
        return [Array(s, k) for s in ((3, 4), (2, 3), (4,), (3,), (2, 3, 4), (3, 1)) for k in ("mask", "unit", "marks")]
    if kind == "tensors":
        return [kind_of([Array(s)] * n) for kind_of in (tuple, list) for n in (2, 3, 1) for s in SHAPES[:5]]
    if kind == "function":
        return [Passed(text) for text in FUNCTIONS]
    if kind == "keys":
        return [dict.fromkeys(hints.keys, v) for v in (4, 2, 1.0, True)]
    if kind == "object":
        own = [a for a in hints.attributes if not hasattr(torch.Tensor, a)]
        return [SimpleNamespace(**dict.fromkeys(own, v)) for v in (4, 2, 1.0, True)]
    if kind == "row":
        lengths = [hints.length] if hints.length else [2, 1, 3]
        rows = [
            tuple(r[:n]) for n in lengths for r in ((1, 2, 3, 2), (3, 4, 2, 5), (1, 1, 1, 1), (0, 1, 2, 3), (0,) * 4)
        ]
        return [*rows, (3, 4), (4, 3), (12,), (4,), *([list(r) for r in rows])]
    fixed: dict[str, list[Any]] = {
        "bool": [True, False],
        "int": WHOLE,
        "size": [3, 4, 2, 1, 5, 12, 6],
        "float": [*FLOATS[:5], 2, 1, *FLOATS[5:]],
        "text": [v for v in hints.values if isinstance(v, str)] or WORDS,
        "dim": [-1, 1, 0, -2, 2],
        "dtype": [torch.float32, torch.float64, torch.int32, torch.float16],
        "device": ["cpu"],
        "none": [None],
    }
    return fixed[kind]
