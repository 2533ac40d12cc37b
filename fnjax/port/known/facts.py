"""Facts about a value and its memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import libcst as cst

from fnjax.port.torch import MISSING, unparse

LIST = "instance:list"  # the name of lists and ranges: as an index they are arrays to PyTorch
SIZE = "instance:torch.Size"
DTYPE = "instance:torch.dtype"
SAVED = "ctx.save_for_backward()"  # what was saved
LOST = "\0"  # separates masks in Value.mask: branches select elements by different masks, or one of them by none
ROW = "instance:row"  # of an argument that is integers by default, or one that the caller gives
NUMBER = "instance:numpy"  # of a NumPy scalar, which JAX takes for an array in promotion and PyTorch does not
HOLE = "_"  # the viewed array in the expression of a Step


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an access path: a view, as an expression over HOLE."""

    expression: cst.BaseExpression = field(compare=False)
    text: str
    reads: frozenset[tuple[str, int]] = frozenset()  # variables in the expression, and their versions
    assumed: bool = field(default=False, compare=False)  # a view only if the inputs are contiguous
    repeats: bool = field(default=False, compare=False)  # several entries may be one in memory
    gaps: bool = field(default=False, compare=False)  # surely not contiguous
    recoded: bool = field(default=False, compare=False)  # its numbers are not those in memory: `z.imag`

    @classmethod
    def make_step(cls, expression: cst.BaseExpression, reads: frozenset[tuple[str, int]]) -> Step:
        """Return the step of an expression over HOLE."""
        return cls(expression, unparse(expression), reads)


@dataclass(frozen=True, slots=True)
class MemRef:
    """Memory reference of a PyTorch tensor: the memory that it is in, and the view of it that the tensor is.

    Attributes:
        storage: the names of the memory; several where it may be in either.
        steps: the views, each of the one before it.
        certain: whether the tensor surely is that view of that memory.
        choice: the branch, or the call that copies if it must, that has chosen among several memories: two references
            with one choice are views of the same memory.
        whole: whether it surely is no view of a part of the memory.
    """

    storage: frozenset[str]
    steps: tuple[Step, ...] = ()
    certain: bool = True
    choice: str = ""
    whole: bool = True

    def is_prefix_of(self, other: MemRef) -> bool:
        """Return whether the other reference is a view of this one (or the same)."""
        head = other.steps[: len(self.steps)]
        return len(head) == len(self.steps) and self.steps == head

    def is_disjoint_from(self, other: MemRef) -> bool:
        """Return whether both are views that have no element in common: `x[0]` and `x[1]`."""
        if not self.tells_overlap_with(other):
            return False
        for a, b in zip(self.steps, other.steps, strict=False):
            if a != b:
                return a.text != b.text and all(re.fullmatch(rf"{HOLE}\[\d+\]", s.text) for s in (a, b))
        return False

    @classmethod
    def join_all(cls, *places: MemRef) -> MemRef:
        """Return the reference of a tensor that may be a view of any of these."""
        whole = all(p.whole and not p.steps for p in places)
        return cls(frozenset().union(*(p.storage for p in places)), certain=False, whole=whole)

    @property
    def doubtful(self) -> MemRef:
        """This reference as one that is possible, not certain."""
        return replace(self, certain=False, choice="")

    def tells_overlap_with(self, other: MemRef) -> bool:
        """Return whether the steps of both decide which elements they have in common."""
        return (self.certain and other.certain) or (self.choice != "" and self.choice == other.choice)

    @property
    def local(self) -> bool:
        """True if the memory is allocated in this function."""
        return all(s[0].isdigit() for s in self.storage)

    def take_entry(self, index: int) -> MemRef:
        """Return the memory reference of the item at an index, of a sequence of views of one tensor."""
        return replace(self, steps=(*self.steps, Step.make_step(cst.parse_expression(f"{HOLE}[{index}]"), frozenset())))

    def is_same_view_as(self, other: MemRef) -> bool:
        """Return whether both have the same elements."""
        return len(self.steps) == len(other.steps) and self.is_prefix_of(other)


@dataclass(frozen=True, slots=True)
class Origin:
    """Facts about what a value is in the source, where it is something else in the port.

    Attributes:
        numpy: a constant of NumPy's.
        python: a Python number, for which the port has a scalar array.
        mixed: a tensor on one path through the function, on another a Python value, or it is not known what.
    """

    numpy: bool = False
    python: bool = False
    mixed: bool = False

    def join(self, other: Origin) -> Origin:
        """Join two origins: return what is known whichever of them it is."""
        if self is other:
            return self
        return Origin(
            self.numpy and other.numpy,
            self.python or other.python,
            self.mixed or other.mixed,
        )


@dataclass(frozen=True, slots=True)
class Nullness:
    """Knowledge of whether a value may be None.

    Attributes:
        optional: None on one path through the function.
        left_out: an argument that may be None, as far as is known.
    """

    optional: bool = False
    left_out: bool = False


SAME = Origin()
NUMPY = Origin(numpy=True)
PYTHON = Origin(python=True)
PRESENT = Nullness()


@dataclass(frozen=True, slots=True)
class Value:
    """Knowledge of a value.

    Attributes:
        kind: `tensor`, `static` (a Python value, under jit too), `object` (something of the user's), `kernel` (perhaps
            a Triton kernel of the file) or `unknown`.
        dtype: the class of a tensor's dtype, of a Python number, or of a dtype: `float`, `int`, `bool`, `complex` or
            `unknown`.
        rank: its number of dimensions.
        name: its qualified name: `torch.nn.functional`, or `file:helper` for one of the file.
        literal: its value, where it is known.
        parts: the elements of a tuple or list of known length.
        element: what is known of each element of other containers.
        fields: the names of the parts, of a named tuple.
        entries: the keys of a dictionary that was written out, and what is known of their values.
        memref: its memory reference, for tensors.
        number: two values with the same number are equal.
        like: tensors with the same mark have the same shape.
        mask: the number of a mask, if the value is the elements that it selects; the port's array has all elements.
            Where branches differ in that, their numbers with `LOST` between them.
        exact: the name of the dtype where the source says it (`float16`); "?..." where it is known at run time only;
            empty where it is that of the inputs. For a dtype, its own name.
        rows: 2 for a tensor that is contiguous, 1 for one that is if the inputs are, 0 where nothing is known.
        origin: what it is in the source, where that is something else.
        null: whether it may be None.
        storages: all memory that it, or a part of it, may be in.
    """

    kind: str = "unknown"
    dtype: str = "unknown"
    rank: int | None = None
    name: str = ""
    literal: object = MISSING
    parts: tuple[Value, ...] | None = None
    element: Value | None = None
    fields: tuple[str, ...] = ()
    entries: tuple[tuple[str, Value], ...] = ()
    memref: MemRef | None = None
    number: str = ""
    like: str = ""
    mask: str = ""
    exact: str = ""
    rows: int = 0
    origin: Origin = SAME
    null: Nullness = PRESENT
    storages: frozenset[str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        held = frozenset[str]() if self.memref is None else self.memref.storage
        if self.parts or self.element or self.entries:
            inner = (*(self.parts or ()), *(v for _, v in self.entries), *([self.element] if self.element else []))
            held = held.union(*(v.storages for v in inner))
        object.__setattr__(self, "storages", held)

    def with_origin(self, **facts: Any) -> Value:
        """Return this value with other facts about its origin."""
        return replace(self, origin=replace(self.origin, **facts))

    def with_null(self, **facts: Any) -> Value:
        """Return this value with other facts about None."""
        return replace(self, null=replace(self.null, **facts))

    @property
    def traced(self) -> bool:
        """True if this may be an array that is traced under jit."""
        return self.kind == "tensor" or self.origin.mixed

    @property
    def is_tensor(self) -> bool:
        """True if this surely is a tensor."""
        return self.kind == "tensor"

    @property
    def is_number(self) -> bool:
        """True if this surely is a single number of Python's or NumPy's."""
        number = self.dtype in {"int", "float", "bool"} or self.name == NUMBER
        return self.kind == "static" and number and not self.parts and self.element is None and self.name != DTYPE


_NARROW = frozenset({"float16", "bfloat16", "int8", "uint8", "int16", "uint16"})
_WIDE = frozenset({"float32", "float"})


def may_widen(target: Value, other: Value) -> bool:
    """Return whether an operation with the other might make an array of the target's dtype wider."""
    if not (other.is_tensor and target.is_tensor) or (other.exact == target.exact and target.exact != "?"):
        return False
    classes = {other.dtype, target.dtype}
    if len(classes) == 2 and "unknown" not in classes:
        return False
    return _rank_width(other, 3) > _rank_width(target, 0)


def _rank_width(value: Value, open_: int) -> int:
    if value.exact.startswith("?") or value.exact.startswith("float8"):
        return open_
    return 0 if value.exact in _NARROW else 2 if value.exact in _WIDE else 1


def find_common_dtype(values: list[Value]) -> str:
    """Return the `exact` of the widest of these tensors; those without dimensions count only among themselves."""
    whole = [v for v in values if v.rank != 0] or values
    kinds = {v.exact for v in whole}
    if len(kinds) == 1:
        return kinds.pop()
    floats = [v for v in whole if v.dtype not in {"int", "bool"}]
    if any(v.exact.startswith("?") for v in whole):
        return "?"
    return max((v.exact for v in floats or whole), key=lambda e: _rank_width(Value(exact=e), 3), default="")


UNKNOWN = Value()
STATIC = Value("static")
TENSOR = Value("tensor")
PASSED = MemRef(frozenset({"passed"}))  # the memory of a lambda's arguments


def join_values(a: Value, b: Value) -> Value:
    """Join two values: return what is known whichever of them it is."""
    if a is b or a == b:
        return a
    if a.literal is None and a.kind == "static":  # None or something: what it is when it is something
        found = replace(b, literal=MISSING).with_null(optional=True)
        return replace(found, number="") if b.kind != "static" else found
    if b.literal is None and b.kind == "static":
        return join_values(b, a)
    parts = None
    if a.parts is not None and b.parts is not None and len(a.parts) == len(b.parts):
        parts = tuple(join_values(x, y) for x, y in zip(a.parts, b.parts, strict=True))
    # Rows of unlike length are known as containers of anything that either holds.
    first, second = (a.element, b.element) if parts is not None else (join_elements(a), join_elements(b))
    element = first if first == second else join_values(first, second) if first and second else None
    if parts is None and () in (a.parts, b.parts):  # an empty list, and what it may be filled with
        element = first or second
    origin = a.origin.join(b.origin)
    return Value(
        kind=a.kind if a.kind == b.kind else "kernel" if "kernel" in {a.kind, b.kind} else "unknown",
        dtype=a.dtype if a.dtype == b.dtype else "unknown",
        rank=a.rank if a.rank == b.rank else None,
        name=a.name if a.name == b.name else "",
        literal=a.literal if type(a.literal) is type(b.literal) and a.literal == b.literal else MISSING,
        parts=parts,
        element=element,
        fields=a.fields if a.fields == b.fields else (),
        entries=a.entries if a.entries == b.entries else (),
        memref=_join_memrefs(a.memref, b.memref),
        number=a.number if a.number == b.number else "",
        like=a.like if a.like == b.like else "",
        mask=a.mask if a.mask == b.mask else LOST.join(sorted({*a.mask.split(LOST), *b.mask.split(LOST)})),
        exact=a.exact if a.exact == b.exact else "?",
        rows=min(a.rows, b.rows),
        origin=replace(origin, mixed=True) if a.kind != b.kind and "tensor" in {a.kind, b.kind} else origin,
        null=Nullness(a.null.optional or b.null.optional, a.null.left_out or b.null.left_out),
    )


def join_elements(container: Value) -> Value | None:
    """Return what is known of each element of a container."""
    found = container.element
    if container.parts:
        found = container.parts[0]
        for part in container.parts[1:]:
            found = join_values(found, part)
    return found


def find_entry(container: Value, key: str) -> Value:
    """Return the value that a dictionary has under a key; its memory may be that of any value in it."""
    found, held = dict(container.entries)[key], container.element and container.element.memref
    return replace(found, memref=held.doubtful) if held and found.kind != "static" else found


def find_any_element(container: Value) -> Value:
    """Return the value of an element that iteration yields."""
    if container.parts:
        found = join_elements(container) or UNKNOWN
        if len(container.parts) > 1 and found.memref:  # `(x, x)`: one iteration sees what another has written
            return replace(found, memref=found.memref.doubtful)
        return found
    if container.element is not None and not container.is_tensor:
        return container.element
    memref = container.memref and container.memref.doubtful
    if container.is_tensor:
        return Value("tensor", container.dtype, container.rank - 1 if container.rank else None, memref=memref)
    return replace(UNKNOWN, memref=memref) if memref else UNKNOWN


def _join_memrefs(a: MemRef | None, b: MemRef | None) -> MemRef | None:
    if a is None or b is None:
        one = a or b
        return one and one.doubtful
    if a.storage == b.storage and a.is_same_view_as(b):
        return a if a.certain == b.certain and a.choice == b.choice else a.doubtful
    return MemRef.join_all(a, b)


def list_memrefs(value: Value) -> list[MemRef]:
    """Return the memory references of a value and its parts."""
    found = [value.memref] if value.memref else []
    for part in (*(value.parts or ()), *(entry for _, entry in value.entries)):
        found += list_memrefs(part)
    if value.element:
        found += list_memrefs(value.element)
    return found


def rename_storages(value: Value, names: Mapping[str, str]) -> Value:
    """Return the value with other names for storages."""
    if value.storages.isdisjoint(names):
        return value
    memref = value.memref
    return replace(
        value,
        memref=memref and replace(memref, storage=frozenset(names.get(s, s) for s in memref.storage)),
        parts=None if value.parts is None else tuple(rename_storages(p, names) for p in value.parts),
        element=value.element and rename_storages(value.element, names),
        entries=tuple((key, rename_storages(v, names)) for key, v in value.entries),
    )
