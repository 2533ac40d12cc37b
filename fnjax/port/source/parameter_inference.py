"""Parameter inference: from the annotation, the default, and the uses of a parameter in the function."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import libcst as cst

from fnjax.port.known.facts import LIST, ROW, STATIC, TENSOR, UNKNOWN, Value
from fnjax.port.source.naming import iter_targets
from fnjax.port.torch import MISSING, Operation, find_operation, read_literal, unparse
from fnjax.port.torch.expressions import find_names
from fnjax.port.tree.located import list_nodes

_STATIC_TYPES = frozenset({"int", "float", "bool", "str", "complex", "bytes", "Callable", "type", "Literal", "slice"})
_STATIC_TORCH = frozenset({"torch.dtype", "torch.device", "torch.Size", "torch.Generator", "torch.memory_format"})
_CONTAINERS = frozenset({"list", "List", "Sequence", "Iterable", "tuple", "Tuple"})
# Methods and attributes that strings, lists, dictionaries and the like have as well.
_NAMES = """
split index count copy format type size values items keys get pop device dtype data name shape solve real imag ndim
replace strip T sum mean max min backward grad to sort
"""
_SHARED = frozenset(_NAMES.split())
_FIRST = frozenset({"input", "A", "tensor", "self", "logits", "x"})  # tensors that operations are applied to
_CONTEXT = frozenset({"save_for_backward", "saved_tensors", "saved_variables", "needs_input_grad"})
_SURELY = frozenset({"size", "sum", "mean", "max", "min", "data", "shape", "dtype", "device", "T", "ndim", "to"})
_GROUP = re.compile(r"(^|_)(group|pg)$")
Resolve = Callable[[cst.BaseExpression], str]


def read_annotation(annotation: cst.BaseExpression, resolve: Resolve) -> Value | None:
    """Return the value that an annotation describes, or None."""
    name = resolve(annotation)
    if isinstance(annotation, cst.SimpleString):
        try:
            return read_annotation(cst.parse_expression(str(annotation.evaluated_value)), resolve)
        except cst.ParserSyntaxError:
            return None
    if name == "torch.Tensor" or (name.endswith("Tensor") and name.startswith("torch.")):
        return TENSOR
    if name == "int":
        return Value("static", "int")
    if name.startswith("scipy.sparse."):
        return Value("object")
    if name in _STATIC_TORCH or name.rpartition(".")[2] in _STATIC_TYPES:
        return STATIC
    if isinstance(annotation, cst.BinaryOperation) and isinstance(annotation.operator, cst.BitOr):
        return _read_alternatives([annotation.left, annotation.right], resolve)
    if isinstance(annotation, cst.Subscript):
        head = unparse(annotation.value).rpartition(".")[2]
        inner = [e.slice.value for e in annotation.slice if isinstance(e.slice, cst.Index)]
        if head in {"Optional", "Union"}:
            return _read_alternatives(inner, resolve)
        if head in _CONTAINERS:
            element = read_annotation(inner[0], resolve) if inner else None
            return Value("static", name=LIST if head in {"list", "List"} else "", element=element)
        if head in _STATIC_TYPES or head in {"Dict", "dict"}:
            return STATIC
    return None


def _read_alternatives(options: list[cst.BaseExpression], resolve: Resolve) -> Value | None:
    found = [read_annotation(o, resolve) for o in options if unparse(o) != "None"]
    kinds = {v.kind if v else "unknown" for v in found}
    return found[0] if len(kinds) == 1 and found else UNKNOWN if "tensor" in kinds else None


class _Uses:
    """Uses of one name in a function's body."""

    def __init__(self, name: str, seen: Iterable[cst.CSTNode], resolve: Resolve) -> None:
        self.name, self.qualified = name, resolve
        self.tensor = self.static = self.tested = False
        self.saved = self.asked = False  # kept by save_for_backward, which takes None too; compared with None
        self.entries = self.computed = False
        self.derived: set[str] = set()  # variables computed from it and numbers alone
        self.own = self.foreign = False  # has what only tensors have, or a method that no tensor and no container has
        self.context = False  # has what only ctx has
        self.called: set[cst.CSTNode] = set()
        self.methods: set[cst.CSTNode] = set()  # of an object that is not a tensor
        for node in seen:
            _LOOKS[type(node)](self, node)

    def _is_name(self, node: cst.CSTNode | None) -> bool:
        return isinstance(node, cst.Name) and node.value == self.name

    def see_assign(self, node: cst.Assign) -> None:
        arithmetic = isinstance(node.value, (cst.BinaryOperation, cst.UnaryOperation))
        if arithmetic and find_names(node.value) == {self.name}:
            self.derived |= {n for t in node.targets for n in iter_targets(t.target)}

    def see_attribute(self, node: cst.Attribute) -> None:
        attr = node.attr.value
        self.context = self.context or (self._is_name(node.value) and attr in _CONTEXT)
        if node in self.methods or not self._is_name(node.value):
            return
        found = find_operation(f"torch.Tensor.{attr}")
        if isinstance(found, Operation) and found.called and node not in self.called:
            return  # `x.dim` without a call is an attribute of something else
        if found and (attr not in _SHARED or attr in _SURELY):
            self.tensor = True
            self.own = self.own or attr not in _SHARED

    def see_call(self, node: cst.Call) -> None:
        self.called.add(node.func)
        name = self.qualified(node.func)
        plain = [a for a in node.args if a.keyword is None and not a.star]
        if name.startswith("torch.") and plain and self._is_name(plain[0].value):
            found = find_operation(name)
            overloads = found.overloads if isinstance(found, Operation) else ()
            firsts = [o.parameters[0] for o in overloads if o.parameters and o.may_take(len(plain))]
            if firsts and all(p.name in _FIRST and not p.variadic for p in firsts):
                self.tensor = True
        if isinstance(node.func, cst.Attribute) and self._is_name(node.func.value):
            attr = node.func.attr.value
            known = find_operation(f"torch.Tensor.{attr}") or any(hasattr(kind, attr) for kind in (str, list, dict))
            grouped = attr == "size" and not node.args and _GROUP.search(self.name)  # how many a group has
            if not known or grouped:
                self.foreign = True
                self.methods.add(node.func)
        if unparse(node.func).endswith(".save_for_backward") and any(self._is_name(a.value) for a in plain):
            self.saved = True
        if unparse(node.func) in {"range", "math.sqrt", "math.exp", "math.log"} and any(
            self._is_name(a.value) for a in plain
        ):
            self.static = True
        if name == "isinstance" or unparse(node.func) == "isinstance":
            self.tested = self.tested or (bool(plain) and self._is_name(plain[0].value))
        for arg in node.args:
            if (
                arg.keyword
                and self._is_name(arg.value)
                and arg.keyword.value in {"dim", "axis", "dtype", "device", "keepdim"}
            ):
                self.static = True

    def see_binary(self, node: cst.BinaryOperation) -> None:
        for operand in (node.left, node.right):  # a tensor's size is a tuple: this is how many a group has
            call = operand if isinstance(operand, cst.Call) and not operand.args else None
            of = call.func if call is not None and isinstance(call.func, cst.Attribute) else None
            tuples = isinstance(node.operator, cst.Add) or of is None or of.attr.value != "size"
            if of is not None and not tuples and self._is_name(of.value):
                self.foreign = True
                self.methods.add(of)
        if not (self._is_name(node.left) or self._is_name(node.right)):
            return
        if isinstance(node.operator, cst.MatrixMultiply):
            self.tensor = True
        repeats = isinstance(node.operator, cst.Multiply) and isinstance(read_literal(node.right), int)
        if isinstance(node.operator, (cst.Subtract, cst.Divide, cst.Power, cst.Multiply)) and not repeats:
            self.computed = True

    def see_subscript(self, node: cst.Subscript) -> None:
        cuts = (e.slice for e in node.slice if isinstance(e.slice, cst.Slice))
        self.static = self.static or any(self._is_name(b) for s in cuts for b in (s.lower, s.upper, s.step))
        if not self._is_name(node.value):
            return
        self.entries = True
        cut = (isinstance(e.slice, cst.Slice) or unparse(e.slice) == "..." for e in node.slice)
        self.tensor = self.tensor or (len(node.slice) > 1 and any(cut))  # no list has x[:, 0]

    def see_comparison(self, node: cst.Comparison) -> None:
        others = [read_literal(t.comparator) for t in node.comparisons]
        self.asked = self.asked or (self._is_name(node.left) and None in others)
        if self._is_name(node.left) and any(isinstance(o, (str, bool)) for o in others):
            self.static = True

    def see_branch(self, node: cst.If | cst.IfExp) -> None:
        self._see_test(node.test)

    def _see_test(self, node: cst.BaseExpression) -> None:
        if self._is_name(node) or (
            isinstance(node, cst.UnaryOperation)
            and isinstance(node.operator, cst.Not)
            and self._is_name(node.expression)
        ):
            self.static = True
        elif isinstance(node, cst.BooleanOperation):
            self._see_test(node.left)
            self._see_test(node.right)


_LOOKS: dict[type[cst.CSTNode], Callable[[_Uses, Any], None]] = {
    cst.Assign: _Uses.see_assign,
    cst.Attribute: _Uses.see_attribute,
    cst.Call: _Uses.see_call,
    cst.BinaryOperation: _Uses.see_binary,
    cst.Subscript: _Uses.see_subscript,
    cst.Comparison: _Uses.see_comparison,
    cst.If: _Uses.see_branch,
    cst.IfExp: _Uses.see_branch,
}


class Inference:
    """Uses of the variables in the functions of a file: each body is read once, and searched once for a name."""

    def __init__(self, resolve: Resolve) -> None:
        self.resolve = resolve
        self._seen: dict[cst.FunctionDef, tuple[cst.CSTNode, ...]] = {}
        self._uses: dict[tuple[cst.FunctionDef, str], _Uses] = {}

    def find_uses(self, name: str, function: cst.FunctionDef) -> _Uses:
        """Return what a function does with one name."""
        if function not in self._seen:
            self._seen[function] = list_nodes(function.body, *_LOOKS)
        key = function, name
        if key not in self._uses:
            self._uses[key] = _Uses(name, self._seen[function], self.resolve)
        return self._uses[key]


def iter_parameters(function: cst.FunctionDef) -> Iterator[cst.Param]:
    """Yield all parameters, in order."""
    params = function.params
    yield from params.posonly_params
    yield from params.params
    if isinstance(params.star_arg, cst.Param):
        yield params.star_arg
    yield from params.kwonly_params
    if params.star_kwarg:
        yield params.star_kwarg


def may_be_left_out(param: cst.Param, function: cst.FunctionDef, inference: Inference, given: bool) -> bool:
    """Return whether a parameter taken for a tensor may be None; `given` if backward always has its gradient."""
    uses = inference.find_uses(param.name.value, function)
    annotation = unparse(param.annotation.annotation) if param.annotation else ""
    default = param.default is not None and read_literal(param.default) is None
    open_ = default or uses.asked or "Optional" in annotation or "None" in annotation
    return open_ or not (uses.tensor or given or "Tensor" in annotation)


def iter_gradients(function: cst.FunctionDef, always: bool = False) -> Iterator[int]:
    """Yield the places at which a backward surely returns something other than None; with `always`, on every path."""
    returned, tensors, nothing = _collect_returned(function.body)
    star = function.params.star_arg.name.value if isinstance(function.params.star_arg, cst.Param) else ""
    for value in returned:
        items = value.elements if isinstance(value, cst.Tuple) else [cst.Element(value)]
        for i, item in enumerate(items):
            if isinstance(item, cst.StarredElement):
                if unparse(item.value) == star:  # the gradients for the outputs, of which there is one at least
                    yield i
                break
            known = isinstance(item.value, cst.Name) and item.value.value not in tensors
            if always and (isinstance(item.value, cst.IfExp) or unparse(item.value) in nothing):
                continue
            if unparse(item.value) != "None" and not known and (len(items) > 1 or not isinstance(item.value, cst.Call)):
                yield i


def _collect_returned(body: cst.BaseSuite) -> tuple[list[cst.BaseExpression], set[str], set[str]]:
    """Return the expressions that a function returns, the variables that hold tensors, and those that may be None."""
    values: list[cst.BaseExpression] = []
    tensors: set[str] = set()
    nothing: set[str] = set()
    for node in list_nodes(body, but=(cst.FunctionDef,)):
        if isinstance(node, cst.Return) and node.value is not None:
            values.append(node.value)
        for target in node.targets if isinstance(node, cst.Assign) else ():
            assert isinstance(node, cst.Assign)
            if "None" in unparse(node.value):
                nothing |= set(iter_targets(target.target))
            if isinstance(node.value, cst.Attribute) and node.value.attr.value == "saved_tensors":
                tensors |= set(iter_targets(target.target))
            known = isinstance(node.value, cst.Name) and node.value.value in tensors
            made = known or isinstance(node.value, (cst.BinaryOperation, cst.Call))
            if isinstance(target.target, cst.Name) and made:
                tensors.add(target.target.value)
    return values, tensors, nothing


def describe_parameter(
    param: cst.Param, function: cst.FunctionDef, inference: Inference, graded: bool = False
) -> Value:
    """Return the value of a parameter; `graded` where backward returns a gradient for it."""
    name = param.name.value
    uses = inference.find_uses(name, function)
    annotated = read_annotation(param.annotation.annotation, inference.resolve) if param.annotation else None
    if uses.tested:
        return UNKNOWN
    if annotated is not None and annotated is not UNKNOWN:
        return annotated
    if uses.context or name == "ctx":
        return Value("object", name="ctx")
    if uses.foreign and not (uses.own or uses.saved or graded or uses.computed):
        return Value("object")
    if uses.tensor or uses.saved:
        return TENSOR
    entries = read_literal(param.default) if isinstance(param.default, (cst.Tuple, cst.List)) else MISSING
    if (
        isinstance(entries, (tuple, list))
        and all(type(e) is int for e in entries)
        and (uses.static or annotated is None)
    ):
        return Value("static", name=ROW, element=Value("static", "int"))
    if uses.static:
        return STATIC
    if any(inference.find_uses(n, function).own for n in uses.derived - {name}):
        return TENSOR
    if graded or (uses.entries and uses.computed):
        return TENSOR
    default = read_literal(param.default) if param.default else MISSING
    if default is not MISSING and default is not None and annotated is None:
        return STATIC
    return UNKNOWN
