"""What the table says of an operation, and what binding a call to it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from fnjax.port.torch.context import Context
from fnjax.port.torch.derivatives import use_derivative
from fnjax.port.torch.expressions import (
    ATOM,
    MISSING,
    TemplateFiller,
    bracket,
    find_names,
    parse_template,
    read_literal,
    unparse,
)
from fnjax.port.torch.new_arrays import NewArray
from fnjax.port.torch.signature import Parameter, bind_to_signature, parse_signature

# Parameters that mean nothing to JAX: where an array lies and how it is laid out, that gradients are recorded, and
# which of several ways leads to the same numbers (jnp's sorts are stable).
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


ROOTS = frozenset({"jax", "jnp", "np", "math"})


@dataclass(frozen=True, slots=True)
class Absent:
    """An operation that torch has and that JAX code cannot stand for.

    Attributes:
        reason: why, as a sentence without its subject: "launches a collective".
        remedy: what to write by hand.
    """

    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Why this one call cannot be translated, as a sentence for the finding.

    Attributes:
        doubtful: the call may be right; which of several signatures it is for cannot be told.
    """

    message: str
    doubtful: bool = False


class Refuse(Exception):  # noqa: N818 - no error: the way out of a template function
    """Raised in a template function: its text becomes the Problem."""


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature and its translation.

    Attributes:
        signature: as torch writes it.
        template: a JAX expression over the parameters' names, or a function from a Bound to one.
        result: `float`, `bool`, `int`, `complex`, `same` (the dtype class of the first tensor), `promoted`, `static`
            (a Python value under jit too; of some kinds `dtype`, `device`, `size`, `rank`, `whole` for a whole number,
            `finfo` or `iinfo`), `pair` (a tuple, see fields), `list`, `none` or `unknown`.
        fields: the names of a tuple's parts, of "values" and "indices".
        parts: for single parts of that tuple a template of their own, by field.
        random: draws random numbers: the template reads `key`.
        traced: False where it only runs outside jit: the value decides a shape or becomes a Python number.
        alias: of PyTorch's storage: `new`, `view`, `repeat` (a view of which several entries are one), `maybe`, or
            `self` (returns its first argument).
        each: works on each entry alone: shapes stay, and all entries may stand for those that a mask selects.

    What follows is said of the first signature of an operation, and holds for all (see Operation.first).

    Attributes:
        total: without axes it gives one number.
        axes: an empty list of axes is all of them.
        large: whole numbers of any kind, also booleans, give large ones.
        made: a tensor of its own, contiguous whatever the inputs are.
        rows: as contiguous as its first argument.
        gaps: a view that is not contiguous.
        casts: the dtype that it gives.
        dtype: which of jnp's dtypes it is.
        converts: gives its first argument in another dtype.
        quotient: the first argument divided by the other: a float of whole numbers.
        product: a product, or a power, or a quotient.
        sharp: numbers that differ in the last digit may have results that differ much.
        turns: the same entries, or some of them, along other axes.
        blank: makes an array that waits to be filled.
        selects: gives the entries that a mask selects.
        copies: makes an array of its data, without the history of that.
        of_data: has the shape of its data.
        sized: all arguments decide its size.
        empty: the support function that takes empty vectors among its arguments, too.
        pole: an argument without infinite derivatives or values, for the first parameter or a named one: `other:1`.
        where: what it is of the entries {x} that a mask {m} selects, where it is not `each`.
        along: that has an entry for each of them, in their order, and needs a mask of the shape of {x}.
        note: what is to be checked where it is called.
        value: what the result is, from a Bound whose arguments tell it; MISSING where they do not.
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
    casts: str = ""
    dtype: str = ""
    converts: bool = False
    quotient: bool = False
    product: bool = False
    sharp: bool = False
    turns: bool = False
    blank: bool = False
    selects: bool = False
    copies: bool = False
    of_data: bool = False
    sized: bool = False
    empty: str = ""
    pole: str = ""
    where: str = ""
    along: bool = False
    note: str = ""
    value: Callable[[Bound], object] | None = None

    @property
    def constant(self) -> object:
        """The value of a template that is one; else MISSING."""
        return read_literal(parse_template(self.template)) if isinstance(self.template, str) else MISSING

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What the signature says, read when it is first asked for: a port needs few of them."""
        return parse_signature(self.signature)

    def may_take(self, count: int) -> bool:
        """Whether a call may have this many positional arguments."""
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
        """What PyTorch's result shares with the first argument: `new`, `view`, `repeat`, `maybe` or `self`."""
        return "self" if self.inplace else self.first.alias

    @property
    def each(self) -> bool:
        """Whether it works on each entry alone."""
        return self.first.each

    def bind_arguments(self, args: Sequence[cst.Arg], context: Context | None = None) -> Bound | Problem:
        """The call's arguments by their names.

        Args:
            args: the arguments; for a method or an attribute, the object itself is the first of them.
            context: what is known of them.

        Returns:
            The bound call of the first signature that fits, or the Problem with the last of them.
        """
        context = context or Context()
        wrong: list[str] = []
        fitting: list[Bound] = []
        for overload in self.overloads:
            values = bind_to_signature(overload.parameters, args, context.find_kind)
            if isinstance(values, str):
                wrong.append(values)
            else:
                fitting.append(Bound(self, overload, values, context))
        if not fitting:
            return Problem(f"{self.names[0]} {wrong[-1]}")
        first = fitting[0]
        doubtful = [p.name for p in first.overload.parameters if p.kind and first.find_kind(p.name) == "unknown"]
        if doubtful and len(fitting) > 1:
            which = f"{self.names[0]}: it cannot be told whether {doubtful[0]!r} is a tensor or a Python value"
            return Problem(which, doubtful=True)
        return first


@dataclass(frozen=True, slots=True)
class Rendered:
    """A JAX expression, the support functions that it calls, and what it needs imported (jax, jnp, np, math).

    Attributes:
        unchanged: it is the first argument, as that stands there.
        new_array: the array that it makes, if it only makes one.
    """

    expression: cst.BaseExpression
    needs: frozenset[str]
    imports: frozenset[str]
    unchanged: bool = False
    new_array: NewArray | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """A call whose arguments have found their parameters; also what a template function gets to see."""

    operation: Operation
    overload: Overload
    values: Mapping[str, cst.BaseExpression]
    context: Context

    @property
    def out(self) -> cst.BaseExpression | None:
        """The tensor that `out=` names: it takes the result."""
        return None if self.read_literal("out") is None else self.values.get("out")

    @property
    def overwrites(self) -> bool:
        """Whether the first argument takes the result: an in-place method, or `inplace=True`."""
        return self.operation.inplace is not None or self.read_literal("inplace") is True

    @property
    def known(self) -> object:
        """The value of the result, where the table or the arguments tell it; else MISSING."""
        return self.overload.value(self) if self.overload.value else self.overload.constant

    def is_given(self, name: str) -> bool:
        """Whether the call says something else for this parameter than its default."""
        if name not in self.values:
            return False
        default = self._find_parameter(name).default
        value = self.read_literal(name)
        return (
            default is None
            or value is MISSING
            or type(value) is not type(known := read_literal(default))
            or value != known
        )

    def read_literal(self, name: str) -> Any:
        """The literal value of a parameter, its default where it is omitted; MISSING for other expressions."""
        if name in self.values:
            return self.context.read_literal(self.values[name])
        if name == "out":
            return None
        default = next((p.default for p in self.overload.parameters if p.name == name), None)
        return read_literal(default) if default is not None else None

    def find_kind(self, name: str) -> str:
        """`tensor`, `static` or `unknown`."""
        return self.context.find_kind(self.values[name]) if name in self.values else "static"

    def is_surely_tensor(self, name: str) -> bool:
        """Whether it is a tensor, and not None."""
        return self.find_kind(name) == "tensor" and not self.context.may_be_none(self.values[name])

    def find_dtype(self, name: str) -> str:
        """The class of the dtype: `float`, `int`, `bool`, `complex` or `unknown`."""
        return self.context.find_dtype(self.values[name]) if name in self.values else "unknown"

    def find_rank(self, name: str) -> int | None:
        """The number of dimensions, where it is known."""
        return self.context.find_rank(self.values[name]) if name in self.values else None

    def render(self, least: int = ATOM, part: str = "", first: cst.BaseExpression | None = None) -> Rendered | Problem:
        """The JAX expression.

        Args:
            least: how tightly its place demands that it binds: `ATOM` (the default) puts parentheses around anything
                that might need them, 0 none.
            part: the field of a tuple result that alone is wanted, of those in `overload.parts`.
            first: what stands for the first argument, instead of its translation.
        """
        template = self.overload.parts[part] if part else self.overload.template
        try:
            text = template if isinstance(template, str) else template(self)
        except Refuse as e:
            return Problem(f"{self.operation.names[0]}: {e}")
        own = self.overload.parameters[0].name if self.overload.parameters else ""
        if self.operation.inplace and self.overload.result == "bool" and self.find_dtype(own) != "bool":
            text = f"({text}).astype({own}.dtype)"  # what is written into a tensor takes its dtype
        differentiated = self.context.differentiated
        name = self.operation.names[0]
        tree = use_derivative(name, text, self.read_literal) if differentiated else parse_template(text)
        read = find_names(tree)
        optional = [p.name for p in self.overload.parameters if p.default is not None]
        ignored = [name for name in optional if name not in read | VANISH and self.is_given(name)]
        if ignored and isinstance(template, str):
            return Problem(f"{self.operation.names[0]}: {ignored[0]}= has no counterpart in JAX")
        expression = self._fill_template(tree, {} if first is None else {own: first})
        read = find_names(expression)
        needs = frozenset(n for n in find_names(tree) if n.startswith("_"))
        made = NewArray.read_new_array(tree, expression, self._find_role)
        return Rendered(
            bracket(expression, least), needs, frozenset(read & ROOTS), unchanged=text == own, new_array=made
        )

    def _find_role(self, name: str) -> str:
        """Of an argument that is a size: whether it is a tuple, or a number."""
        node = self.values.get(name)
        if node is None:
            return ""
        return "tuple" if isinstance(node, cst.Tuple) else self.context.find_role(node)

    def _find_parameter(self, name: str) -> Parameter:
        return next(p for p in self.overload.parameters if p.name == name)

    def _list_all_axes(self, axes: cst.BaseExpression) -> cst.BaseExpression:
        """No axes at all are all of them to PyTorch."""
        if read_literal(axes) in ((), []):
            return cst.Name("None")
        role, text = self.context.find_role(self.values["dim"]), unparse(bracket(axes, 2))
        if role == "row":  # or one axis, which may be 0
            return cst.parse_expression(f"None if {text} in ((), []) else {text}")
        return cst.parse_expression(f"{text} or None") if role in {"list", "sequence"} else axes

    def _fill_template(self, tree: cst.BaseExpression, given: Mapping[str, cst.BaseExpression]) -> cst.BaseExpression:
        values: dict[str, cst.BaseExpression] = {}
        for p in self.overload.parameters:
            if p.name in given:
                values[p.name] = given[p.name]
            elif p.name in self.values:
                value = self.context.rewrite(self.values[p.name])
                if p.name == "dtype" and (wide := WIDE.get(self.context.find_named_dtype(self.values[p.name]))):
                    value = cst.Name(wide)
                if p.name == "dim" and self.operation.first.axes:
                    value = self._list_all_axes(value)
                values[p.name] = value
            elif p.variadic:
                values[p.name] = cst.Tuple((), lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            elif p.default is not None:
                values[p.name] = p.default
        if self.overload.random:
            values["key"] = self.context.make_key()
        omitted = frozenset(p.name for p in self.overload.parameters if not self.is_given(p.name))
        new = {n: made for n, v in self.values.items() if n not in given and (made := self.context.find_new_array(v))}

        def known(name: str, attribute: str) -> cst.BaseExpression | None:
            return new[name].find_attribute(attribute) if name in new else None

        filled = TemplateFiller(values, omitted, known).rewrite(tree)
        assert isinstance(filled, cst.BaseExpression)
        return filled


Template = Callable[[Bound], str]  # builds the template for one call
