"""Bodies of custom operators that compute with NumPy.

What: a body that has no translation and speaks to torch only where arrays come and go keeps its NumPy, SciPy or any
other library: it runs on NumPy arrays, under jit as a callback with the shapes that register_fake gives.
Before: `ndimage.label(x.cpu().numpy())` and `torch.from_numpy(y).to(x.device)`
After: `x = np.array(x)`, `ndimage.label(x)` and `jnp.asarray(y)`
Safety: every use of an argument that is a tensor is one of `.numpy()`, or of its shape or dtype; the array is a copy.
Limits: only operators whose shapes are registered; functions of the file that are given tensors leave it a finding.
"""

from __future__ import annotations

import re
from typing import Any

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator
from fnjax.port.analysis.expr import list_statements, parse
from fnjax.port.source.records import Class
from fnjax.port.torch import read_literal, unparse
from fnjax.port.torch.expressions import find_names
from fnjax.port.tree.located import list_nodes

_COMING = frozenset({"detach", "cpu", "contiguous", "clone"})  # before `.numpy()`
_GOING = frozenset({"cuda", "cpu", "contiguous", "clone", "to", "type"})  # after `torch.from_numpy(a)`
_MAKING = frozenset({"torch.from_numpy", "torch.tensor", "torch.as_tensor"})
_SEEN = frozenset({"shape", "dtype", "ndim", "device"})
_MESSAGE = "this computes with NumPy: under jit the body of the operator runs as a callback, with the shapes registered"


class _NotOnHost(Exception):  # noqa: N818 - caught right here
    """Something is of torch, and no conversion."""


def port_callback_body(ev: Evaluator, operator: Class | None, body: cst.BaseSuite) -> cst.BaseSuite:
    """Return the body of an operator: one that asks for numbers, or that stays NumPy's, will be a callback."""
    node = ev.routine.node
    nothing = node.returns is not None and unparse(node.returns.annotation) == "None" and node in ev.program.mutating
    if operator is None or not (operator.shaped or nothing) or operator.methods.get("forward") is not node:
        return body
    if any(f.code == "untraced" for f in ev.diagnostics.findings):
        ev.routine.concrete = True
    # The host is the second choice: only a body that has no translation goes there, and its findings go then.
    wrong = [f for f in ev.diagnostics.findings if f.severity == "error" and f.code != "untraced"]
    tensors = [
        p.name.value for p in node.params.params if p.annotation and "Tensor" in unparse(p.annotation.annotation)
    ]
    files = {n for n in find_names(node.body) if ev.find_name(cst.Name(n)).startswith("file:")}
    if not wrong or not tensors or files:
        return body
    host = _HostRewriter(ev, tensors)
    try:
        made: Any = node.body.visit(host)
        read = {ev.program.resolve_name(cst.Name(n)) for n in find_names(made)} | {
            unparse(n) for n in list_nodes(made) if isinstance(n, (cst.Import, cst.ImportFrom))
        }
        if any(full.startswith(".") or re.search(r"\btorch\b", full) for full in read):
            raise _NotOnHost
        if any(isinstance(n, cst.Attribute) and n.attr.value == "device" for n in list_nodes(made)):
            raise _NotOnHost
    except _NotOnHost:
        return body
    ev.diagnostics.findings[:] = [f for f in ev.diagnostics.findings if f.severity != "error"]
    ev.note(node.name, "callback", _MESSAGE)
    imported = {
        d.imported for n in find_names(made) if (d := ev.program.source.find_definition(n)) is not None and d.imported
    }
    ev.program.used |= {full.split(".")[0] for full in imported}
    ev.diagnostics.imports |= {"np", "jnp"}
    ev.diagnostics.needs.clear()
    optional = {p.name.value for p in node.params.params if p.annotation and _may_be_none(p.annotation.annotation)}
    copies = [
        f"{x} = None if {x} is None else np.array({x})" if x in optional else f"{x} = np.array({x})" for x in tensors
    ]
    block = made if isinstance(made, cst.IndentedBlock) else cst.IndentedBlock(list_statements(made))
    start = int(node.get_docstring() is not None)
    first = [cst.parse_statement(text) for text in copies if text.partition(" ")[0] in host.used]
    return block.with_changes(body=[*block.body[:start], *first, *block.body[start:]])


def _may_be_none(annotation: cst.BaseExpression) -> bool:
    return "Optional" in unparse(annotation) or "None" in unparse(annotation)


class _HostRewriter(cst.CSTTransformer):
    """The body on NumPy arrays.

    Raises:
        _Torch: a tensor is used otherwise than by its numbers.
    """

    def __init__(self, ev: Evaluator, tensors: list[str]) -> None:
        super().__init__()
        self.ev, self.tensors, self.used = ev, frozenset(tensors), set[str]()
        self.expected: set[cst.CSTNode] = set()  # names of tensors, and conversions, where they are right
        self.arrays: set[cst.CSTNode] = set()  # what conversions to arrays have become

    def visit_Call(self, node: cst.Call) -> bool:
        """Translate `x.detach().cpu().numpy()`, and what `torch.from_numpy` gets."""
        inner: cst.BaseExpression = node
        while isinstance(inner, cst.Call) and isinstance(inner.func, cst.Attribute):
            inner = inner.func.value
        if isinstance(inner, cst.Name) and inner.value in self.tensors:
            methods = _list_methods(node)
            if methods[-1] != "numpy" or not set(methods[:-1]) <= _COMING:
                raise _NotOnHost
            self.expected.add(node)
            self.used.add(inner.value)
            return False
        return True

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Return the conversion."""
        if original_node in self.expected:
            inner: cst.BaseExpression = original_node
            while isinstance(inner, cst.Call) and isinstance(inner.func, cst.Attribute):
                inner = inner.func.value
            return inner
        if self.ev.program.resolve_name(original_node.func) in _MAKING:
            return self._note_array(_port_made_tensor(self.ev, original_node, updated_node))
        func = updated_node.func
        if isinstance(func, cst.Attribute) and func.attr.value in _GOING and func.value in self.arrays:
            return self._note_array(_port_moved_tensor(self.ev, original_node, func.value))
        return updated_node

    def _note_array(self, made: cst.BaseExpression) -> cst.BaseExpression:
        self.arrays.add(made)
        return made

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        """Translate `x.shape`; what follows a dot is no variable."""
        if isinstance(node.value, cst.Name) and node.value.value in self.tensors:
            if node.attr.value not in _SEEN:
                raise _NotOnHost
            return False
        node.value.visit(self) if isinstance(node.value, cst.Name) else None
        return not isinstance(node.value, cst.Name)

    def visit_Arg(self, node: cst.Arg) -> bool:
        """Return a device, or a dtype, of a conversion goes."""
        return not (node.keyword is not None and node.keyword.value == "device")

    def visit_Comparison(self, node: cst.Comparison) -> bool:
        """Translate `x is None`."""
        return not isinstance(node.left, cst.Name) or [unparse(t.comparator) for t in node.comparisons] != ["None"]

    def visit_Name(self, node: cst.Name) -> None:
        """Visit a tensor by itself."""
        if node.value in self.tensors:
            raise _NotOnHost


def _list_methods(call: cst.BaseExpression) -> list[str]:
    found: list[str] = []
    while isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute):
        found.insert(0, call.func.attr.value)
        call = call.func.value
    return found


def _port_made_tensor(ev: Evaluator, node: cst.Call, made: cst.Call) -> cst.BaseExpression:
    """Translate `torch.tensor(a, dtype=torch.int32, device=x.device)`."""
    given = {a.keyword.value: a.value for a in node.args if a.keyword is not None}
    if not node.args or node.args[0].keyword is not None or given.keys() - {"dtype", "device"}:
        raise _NotOnHost
    dtype = f", dtype={_name_dtype(ev, given['dtype'])}" if "dtype" in given else ""
    return parse(f"jnp.asarray({unparse(made.args[0].value)}{dtype})")


def _port_moved_tensor(ev: Evaluator, node: cst.Call, array: cst.BaseExpression) -> cst.BaseExpression:
    """Translate `.to(x.device)`, `.to("cuda")`, `.to(torch.int32)`, `.to(dtype=x.dtype)` of an array."""
    for arg in node.args:
        is_device = arg.keyword is not None and arg.keyword.value == "device"
        if is_device or isinstance(read_literal(arg.value), str) or unparse(arg.value).endswith("device"):
            continue
        array = parse(f"{unparse(array)}.astype({_name_dtype(ev, arg.value)})")
    return array


def _name_dtype(ev: Evaluator, node: cst.BaseExpression) -> str:
    if unparse(node).endswith(".dtype"):
        return unparse(node)
    try:
        return unparse(ev.port(node).node)
    except Exception as e:
        raise _NotOnHost from e
