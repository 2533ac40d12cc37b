"""One line of the table: an operation of torch, its signatures, and a JAX expression for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from fnjax._torch_ops.signature import MISSING, Parameter, parse_signature, read_literal_text

# Parameters that mean nothing to JAX: an array's device and layout, that gradients are recorded, and which of several
# algorithms computes the same values (jnp's sorts are stable).
VANISH = frozenset(
    {
        "device",
        "layout",
        "pin_memory",
        "requires_grad",
        "memory_format",
        "non_blocking",
        "generator",
        "names",
        "inplace",
    }
    | {"stable", "sorted", "sparse_grad", "check_errors", "driver", "compute_mode", "combine_mode", "_stacklevel"}
    | {"out_int32"}
)
# dtypes that JAX has only when 64-bit numbers are switched on: Python's types are their right names in both cases.
WIDE = {"int64": "int", "float64": "float", "complex128": "complex", "bool_": "bool"}


@dataclass(frozen=True, slots=True)
class Absent:
    """Name of torch that JAX code cannot replace.

    Attributes:
        reason: why, as a sentence without its subject: "launches a collective".
        remedy: what to write by hand.
        runs: True if only a port lacks it: fnjax.torch has the name.
    """

    reason: str
    remedy: str
    runs: bool = False


class Refuse(Exception):  # noqa: N818 - no error: the way out of a template function
    """Signal of a template function that a call cannot be translated; its text becomes the Problem."""


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature and its translation.

    Attributes:
        signature: as torch writes it.
        template: a JAX expression over the parameters' names, or a function from a Bound to one.
        result: `float`, `bool`, `int`, `complex`, `same` (the dtype class of the first tensor), `promoted`, `static`
            (a Python value, also under jit; more precisely `dtype`, `device`, `size`, `rank`, `whole` for an integer,
            `finfo` or `iinfo`), `pair` (a tuple, see fields), `list`, `none` or `unknown`.
        fields: the names of the members of a tuple, such as "values" and "indices".
        parts: templates for single members of that tuple, by field.
        random: the operation draws random numbers: the template reads `key`.
        traced: False if it runs outside jit only: a shape depends on values, or a value becomes a Python number.
        alias: the storage of PyTorch's result: `new`, `view`, `repeat` (a view whose elements overlap), `maybe`, or
            `self` (returns its first argument).
        each: elementwise: shapes are kept, and it may be applied to all elements instead of those that a mask selects.

    The following attributes of an operation's first signature hold for all its signatures (see Operation.first).

    Attributes:
        total: without axes it returns a scalar.
        axes: an empty list of axes means all axes.
        large: returns int64 for integers of any size and booleans.
        made: returns a new tensor, contiguous for inputs of any strides.
        rows: the result is contiguous if the first argument is.
        gaps: returns a view that is not contiguous.
        recoded: returns a view that reads the memory otherwise: components of complex elements, conjugates, the bits as
            another dtype.
        casts: the name of the result's dtype.
        dtype: the dtype of jnp that a dtype of torch is.
        converts: returns the first argument in another dtype.
        quotient: divides the first argument by the other; the result is a float for integers.
        steps: the result is discontinuous at integers.
        blank: makes an array that is to be written to.
        selects: returns the elements that a mask selects.
        copies: makes an array of its data, detached from it.
        of_data: the result has the shape of its data.
        sized: the size of the result depends on all arguments.
        empty: the support function that also takes arguments of shape (0,).
        integers: returns integers for integers; the result counts as a float if the inputs' dtype is not known.
        precise: computes 16-bit tensors in 32 bits, as PyTorch does.
        along: the result has an element for each one along the axis `dim`, in their order.
        note: a text that says what to check where the operation is called.
        strides: the rule for the result's strides (fnjax.torch.memory.strides); "" means `each` for an elementwise
            operation, else contiguous.
        value: computes the result of a call from literal arguments; returns MISSING for others.
    """

    signature: str
    template: str | Template
    result: str = "same"
    fields: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)
    random: bool = False
    traced: bool = True
    alias: str = "new"
    each: bool = False
    total: bool = False
    axes: bool = False
    large: bool = False
    made: bool = False
    rows: bool = False
    gaps: bool = False
    recoded: bool = False
    casts: str = ""
    dtype: str = ""
    converts: bool = False
    quotient: bool = False
    steps: bool = False
    blank: bool = False
    selects: bool = False
    copies: bool = False
    of_data: bool = False
    sized: bool = False
    empty: str = ""
    integers: bool = False
    precise: bool = False
    along: bool = False
    note: str = ""
    strides: str = ""
    value: Callable[[Call], object] | None = None

    @property
    def constant(self) -> object:
        """The value of a template that is a constant; else MISSING."""
        return read_literal_text(self.template) if isinstance(self.template, str) else MISSING

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters of the signature, parsed on first use: a port needs few of them."""
        return parse_signature(self.signature)

    def may_take(self, count: int) -> bool:
        """Return whether a call may have this many positional arguments."""
        places = [p for p in self.parameters if not p.keyword]
        return count <= len(places) or any(p.variadic for p in places)


@dataclass(frozen=True, slots=True)
class Operation:
    """A line of the table: one operation of torch under all its names, as functions and as methods.

    Attributes:
        names: the qualified names.
        overloads: its signatures, in the order in which they are tried.
        called: False for attributes and constants.
        inplace: for methods such as `add_`, the operation that computes the new value (its alias is `self`).
    """

    names: tuple[str, ...]
    overloads: tuple[Overload, ...]
    called: bool = True
    inplace: Operation | None = None

    @property
    def first(self) -> Overload:
        """The first of its signatures."""
        return self.overloads[0]

    @property
    def alias(self) -> str:
        """The memory that PyTorch's result shares with the first argument: `new`, `view`, `repeat`, `maybe` or `self`."""
        return "self" if self.inplace else self.first.alias

    @property
    def each(self) -> bool:
        """True if it is elementwise."""
        return self.first.each

    @property
    def strides(self) -> str:
        """The rule for the strides of its result, "" where that is contiguous."""
        return self.first.strides or ("each" if self.first.each else "")


class Call(Protocol):
    """A call of an operation with its arguments by parameter, for the functions that choose a template.

    The porter has expressions there (fnjax.port.torch.binding), a run has values.
    """

    @property
    def operation(self) -> Operation:
        """The operation of the table that the call is of."""

    @property
    def overload(self) -> Overload:
        """The signature that fits."""

    @property
    def differentiated(self) -> bool:
        """True if JAX may differentiate the call, so that no gradient may pass what PyTorch takes for constant."""

    @property
    def rounding(self) -> bool:
        """True if results are converted to integers, so that the last bit of a float may matter."""

    @property
    def unpacked(self) -> int | None:
        """The number of variables that the result is unpacked into, or None."""

    def is_passed(self, name: str) -> bool:
        """Return whether the call passes a parameter."""

    def is_given(self, name: str) -> bool:
        """Return whether the call passes another value for a parameter than its default."""

    def read_literal(self, name: str) -> Any:
        """Return the value of a parameter, its default where it is not passed; MISSING where it is not known."""

    def find_kind(self, name: str) -> str:
        """Return `tensor`, `static` or `unknown`."""

    def is_surely_tensor(self, name: str) -> bool:
        """Return whether an argument is a tensor, and not None."""

    def may_be_none(self, name: str) -> bool:
        """Return whether an argument may be None."""

    def find_dtype(self, name: str) -> str:
        """Return the class of an argument's dtype: `float`, `int`, `bool`, `complex` or `unknown`."""

    def find_rank(self, name: str) -> int | None:
        """Return the number of dimensions of an argument, where it is known."""

    def find_role(self, name: str) -> str:
        """Return `dtype`, `device`, `list`, `tuple`, `size`, `sequence` or `int` for what is surely one of these, else ""."""

    def find_named_dtype(self, name: str) -> str:
        """Return which of torch's dtypes an argument is, `int64`, or ""."""

    def is_variable(self, name: str) -> bool:
        """Return whether an argument can be read several times at no cost."""

    def have_same_shape(self, name: str, other: str) -> bool:
        """Return whether two tensors surely have the same shape."""

    def list_section_starts(self, name: str) -> list[str]:
        """Return where sections of these sizes begin, as expressions; [] where that is not known."""

    def is_positive(self, name: str) -> bool:
        """Return whether all sizes in an argument are surely positive."""


Template = Callable[[Call], str]  # chooses the expression for one call
