"""Binding a call in the source to a line of the table, and writing the JAX expression for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import libcst as cst

from fnjax._torch_ops.record import VANISH, WIDE, Operation, Overload, Refuse
from fnjax._torch_ops.signature import MISSING, SIZES, Parameter, bind_arguments, read_literal_text
from fnjax.port.torch.context import Context
from fnjax.port.torch.expressions import (
    ATOM,
    TemplateFiller,
    add_up,
    bracket,
    drop_own_cast,
    fill,
    find_names,
    make_list,
    make_tuple,
    parse_template,
    read_literal,
    unparse,
)
from fnjax.port.torch.new_arrays import NewArray
from fnjax.port.tree.located import list_nodes

_STARRED = "is called with *args or **kwargs, whose number is not known"
ROOTS = frozenset({"jax", "jnp", "np", "math"})
_SIZE = re.compile(r"len\(.*\)|.*\.shape\[[^\]]*\]|.*\.size\([^)]+\)|.*\.(numel\(\)|ndim)")
_SHAPE = re.compile(r"[\w.\[\]]+\.(shape|size\(\))(\[[^\]]*:[^\]]*\])?|torch\.broadcast_shapes\(.*\)")


@dataclass(frozen=True, slots=True)
class Problem:
    """Reason why a call cannot be translated, as a sentence for the finding.

    Attributes:
        doubtful: the call may be right; which of several signatures it is for is not known.
    """

    message: str
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Rendered:
    """A JAX expression, the support functions that it calls, and what it needs imported (jax, jnp, np, math).

    Attributes:
        unchanged: it is the first argument as it is.
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
        """True if the first argument takes the result: an in-place method, or `inplace=True`."""
        return self.operation.inplace is not None or self.read_literal("inplace") is True

    @property
    def known(self) -> object:
        """The value of the result, where the table or the arguments determine it; else MISSING."""
        return self.overload.value(self) if self.overload.value else self.overload.constant

    def is_given(self, name: str) -> bool:
        """Return whether the call passes another value for this parameter than its default."""
        if name not in self.values:
            return False
        default = self._find_parameter(name).default
        value = self.read_literal(name)
        if default is None or value is MISSING:
            return True
        known = read_literal_text(default)
        return type(value) is not type(known) or value != known

    def read_literal(self, name: str) -> Any:
        """Return the literal value of a parameter, its default where it is omitted; MISSING for other expressions."""
        if name in self.values:
            return self.context.know(self.values[name]).literal
        if name == "out":
            return None
        default = next((p.default for p in self.overload.parameters if p.name == name), None)
        return read_literal_text(default) if default is not None else None

    def find_kind(self, name: str) -> str:
        """Return `tensor`, `static` or `unknown`."""
        return self.context.know(self.values[name]).kind if name in self.values else "static"

    def is_passed(self, name: str) -> bool:
        """Return whether the call passes a parameter."""
        return name in self.values

    def may_be_none(self, name: str) -> bool:
        """Return whether an argument may be None."""
        return self.context.know(self.values[name]).optional

    def find_role(self, name: str) -> str:
        """Return `dtype`, `device`, `list`, `tuple`, `size`, `sequence` or `int` for what is surely one of these, else empty."""
        if name not in self.values:
            return ""
        node = self.values[name]
        if isinstance(node, (cst.List, cst.ListComp, cst.Tuple)):
            return "tuple" if isinstance(node, cst.Tuple) else "list"
        found = self.context.find_role(node)
        return found or ("size" if unparse(node).endswith((".shape", ".size()")) else "")

    def find_named_dtype(self, name: str) -> str:
        """Return the dtype of torch's that an argument names, `int64`, or nothing."""
        return self.context.find_named_dtype(self.values[name]) if name in self.values else ""

    def is_variable(self, name: str) -> bool:
        """Return whether the JAX expression of an argument is a name."""
        return isinstance(self.context.rewrite(self.values[name]), cst.Name)

    def have_same_shape(self, name: str, other: str) -> bool:
        """Return whether two tensors surely have the same shape."""
        mark = self.context.know(self.values[name]).like
        return mark != "" and mark == self.context.know(self.values[other]).like

    @property
    def differentiated(self) -> bool:
        """True if JAX may differentiate the call."""
        return self.context.differentiated

    @property
    def rounding(self) -> bool:
        """True if the file makes integers of other numbers."""
        return self.context.rounding

    @property
    def unpacked(self) -> int | None:
        """How many variables take the result, where it is unpacked."""
        return self.context.unpacked

    def list_section_starts(self, name: str) -> list[str]:
        """Return where the sections begin, as sums of sizes that are written out; [] for other sizes."""
        elements = getattr(self.values[name], "elements", ())
        if any(isinstance(e, cst.StarredElement) for e in elements):
            return []
        parts = [self.context.rewrite(e.value) for e in elements]
        starts = [add_up(parts[: i + 1]) for i in range(len(parts) - 1)]
        read = find_names(cst.parse_expression(f"[{', '.join(starts)}]"))
        clash = read & {"input", "dim", name} or any(n.startswith("_") for n in read)  # names of the template
        return [] if clash else starts

    def is_positive(self, name: str) -> bool:
        """Return whether no size in an argument can be the -1 that PyTorch's expand takes for "as it is"."""
        sizes = self.values.get(name)
        if isinstance(sizes, (cst.Tuple, cst.List)):
            return all(_is_positive(e) for e in sizes.elements)
        if sizes is None:
            return False
        value = self.read_literal(name)
        return (isinstance(value, int) and value >= 0) or _SHAPE.fullmatch(unparse(sizes)) is not None

    def is_surely_tensor(self, name: str) -> bool:
        """Return whether it is a tensor, and not None."""
        return self.find_kind(name) == "tensor" and not self.may_be_none(name)

    def find_dtype(self, name: str) -> str:
        """Return the class of the dtype: `float`, `int`, `bool`, `complex` or `unknown`."""
        return self.context.know(self.values[name]).dtype if name in self.values else "unknown"

    def find_rank(self, name: str) -> int | None:
        """Return the number of dimensions, where it is known."""
        return self.context.know(self.values[name]).rank if name in self.values else None

    def render(self, least: int = ATOM, part: str = "", first: cst.BaseExpression | None = None) -> Rendered | Problem:
        """Return the JAX expression.

        Args:
            least: how tightly it has to bind: `ATOM` (the default) puts parentheses around anything that might need
                them, 0 none.
            part: the field of a tuple result that alone is wanted, of those in `overload.parts`.
            first: replaces the first argument's translation.
        """
        template = self.overload.parts[part] if part else self.overload.template
        try:
            text = template if isinstance(template, str) else template(self)
        except Refuse as e:
            return Problem(f"{self.operation.names[0]}: {e}")
        own = self.overload.parameters[0].name if self.overload.parameters else ""
        if self.operation.inplace and self.overload.result == "bool" and self.find_dtype(own) != "bool":
            text = f"({text}).astype({own}.dtype)"  # what is written into a tensor takes its dtype
        if first is None and self._takes_missing_axis(own):
            return self._render_without_axes(own, least, part)
        if text.endswith("other.shape)") and unparse(self.values[own]) == unparse(self.values["other"]):
            text = own  # `x.view_as(x)`
        tree = parse_template(text)
        read = find_names(tree)
        optional = [p.name for p in self.overload.parameters if p.default is not None]
        ignored = [name for name in optional if name not in read | VANISH and self.is_given(name)]
        if ignored and isinstance(template, str):
            return Problem(f"{self.operation.names[0]}: {ignored[0]}= has no counterpart in JAX")
        expression = drop_own_cast(self._fill_template(tree, {} if first is None else {own: first}))
        read = find_names(expression)
        needs = frozenset(n for n in find_names(tree) if n.startswith("_"))
        made = NewArray.read_new_array(tree, expression, self._find_role)
        return Rendered(
            bracket(expression, least), needs, frozenset(read & ROOTS), unchanged=text == own, new_array=made
        )

    def _takes_missing_axis(self, own: str) -> bool:
        """Return whether a call names the first axis of an array without axes."""
        axis = self.read_literal("dim") if "dim" in self.values and self.find_rank(own) == 0 else None
        known = type(axis) is int and axis in (0, -1)
        return known and (self.overload.along or self._find_parameter("dim").default == "None")

    def _render_without_axes(self, own: str, least: int, part: str) -> Rendered | Problem:
        """Render a call that names the first axis of an array without axes, which PyTorch allows."""
        if not self.overload.along:
            return replace(self, values={n: v for n, v in self.values.items() if n != "dim"}).render(least, part)
        made = self.render(ATOM, part, fill("A[None]", A=self.context.rewrite(self.values[own])))
        return made if isinstance(made, Problem) else replace(made, expression=fill("A[0]", A=made.expression))

    def _find_role(self, name: str) -> str:
        """Return whether an argument that is a size is a tuple, or a number."""
        node = self.values.get(name)
        if node is None:
            return ""
        return "tuple" if isinstance(node, cst.Tuple) else self.context.find_role(node)

    def _find_parameter(self, name: str) -> Parameter:
        return next(p for p in self.overload.parameters if p.name == name)

    def _list_all_axes(self, axes: cst.BaseExpression) -> cst.BaseExpression:
        """Return axes, None for no axes at all, which are all of them to PyTorch."""
        if read_literal(axes) in ((), []):
            return cst.Name("None")
        role = self.context.find_role(self.values["dim"])
        if role == "row":  # or one axis, which may be 0
            return fill("None if A in ((), []) else A", A=axes)
        return fill("A or None", A=axes) if role in {"list", "sequence"} else axes

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
                values[p.name] = parse_template(p.default)
        if self.overload.random and any(n.value == "key" for n in list_nodes(tree, cst.Name)):
            values["key"] = self.context.make_key()
        omitted = frozenset(p.name for p in self.overload.parameters if not self.is_given(p.name))
        new = {n: made for n, v in self.values.items() if n not in given and (made := self.context.find_new_array(v))}

        def known(name: str, attribute: str) -> cst.BaseExpression | None:
            return new[name].find_attribute(attribute) if name in new else None

        filled = TemplateFiller(values, omitted, known).rewrite(tree)
        assert isinstance(filled, cst.BaseExpression)
        return filled


def bind_call(operation: Operation, args: Sequence[cst.Arg], context: Context | None = None) -> Bound | Problem:
    """Return the call's arguments by their names.

    Args:
        operation: a line of the table.
        args: the arguments; for a method or an attribute, the object itself is the first of them.
        context: what is known of them.

    Returns:
        The bound call of the first signature that fits, or the Problem with the last of them.
    """
    context = context or Context()
    wrong: list[str] = []
    fitting: list[Bound] = []
    plain = [cst.StarredElement(a.value) if a.star else a.value for a in args if a.keyword is None]
    named = [(a.keyword.value, a.value) for a in args if a.keyword is not None]

    def gather(name: str, values: list[Any]) -> cst.BaseExpression | None:
        return _gather_variadic(name, values, context)

    def find_kind(value: Any) -> str:
        return context.know(value).kind if isinstance(value, cst.BaseExpression) else "unknown"

    for overload in operation.overloads:
        values = bind_arguments(overload.parameters, plain, named, gather, find_kind, make_tuple)
        if isinstance(values, str):
            wrong.append(_STARRED if any(a.star for a in args) else values)
        elif None in values.values():
            wrong.append("has one argument of which it is not known whether it is a tensor or a sequence of them")
        elif any(isinstance(v, cst.StarredElement) for v in values.values()):
            wrong.append(_STARRED)
        else:
            fitting.append(Bound(operation, overload, values, context))
    if not fitting:
        return Problem(f"{operation.names[0]}() {wrong[-1]}")
    first = fitting[0]
    doubtful = [p.name for p in first.overload.parameters if p.kind and first.find_kind(p.name) == "unknown"]
    if doubtful and len(fitting) > 1:
        which = f"{operation.names[0]}: it is not known whether {doubtful[0]!r} is a tensor or a Python value"
        return Problem(which, doubtful=True)
    return first


def _gather_variadic(
    name: str, values: list[cst.BaseExpression | cst.StarredElement], context: Context
) -> cst.BaseExpression | None:
    """Return variadic arguments as one expression: their tuple, or the one sequence (or number) that was given."""
    first = values[0]
    if len(values) == 1 and isinstance(first, cst.StarredElement):
        if name != "data" or context.know(first.value).kind != "static":
            return first.value
    elif len(values) == 1:
        if name in SIZES:
            return make_tuple(first)
        if name == "data" or isinstance(first, (cst.List, cst.Tuple, cst.ListComp)):
            return cst.List(first.elements) if isinstance(first, cst.Tuple) else first
        if context.know(first).kind != "tensor":
            return None
    return make_tuple(make_list(values))


def _is_positive(element: cst.BaseElement) -> bool:
    text = unparse(element.value)
    if isinstance(element, cst.StarredElement):
        return _SHAPE.fullmatch(text) is not None
    value = read_literal(element.value)
    return isinstance(value, int) and value >= 0 if value is not MISSING else _SIZE.fullmatch(text) is not None
