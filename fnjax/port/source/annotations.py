"""Annotations without torch's types."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import libcst as cst

from fnjax.port.torch import ARRAYS, PARAMETERS

_SAME = {
    "torch.Number": "int | float | bool",
    "torch.SymInt": "int",
    "torch.SymFloat": "float",
    "torch.SymBool": "bool",
}
_IN_SCHEMAS = {"torch.dtype": "fnjax.dtype", "torch.device": "jax.Device"}  # what operators' schemas are read from


class AnnotationPorter(cst.CSTTransformer):
    """Replaces torch's types."""

    def __init__(self, program: Any, ev: Any) -> None:
        super().__init__()
        self.program, self.ev = program, ev

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        """Dotted names are taken as a whole."""
        return False

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        """Translate `torch.Tensor`."""
        return self._port_name(original_node, updated_node)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        """Translate `Tensor`."""
        return self._port_name(original_node, updated_node)

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.BaseExpression:
        """Translate `Base[int]` where the port's class has lost the base that took a subscript."""
        name = self.program.resolve_name(original_node.value).removeprefix("file:")
        cls = self.program.classes.get(name)
        if cls is None:
            return updated_node
        family = {c.name: c for c in (cls, *self.program.iter_ancestors(cls))}.values()
        taken = any("__class_getitem__" in c.methods for c in family)
        taken = taken or any(_is_of_python(b) for c in family for b in c.bases)
        return updated_node if taken else updated_node.value

    def _port_name(self, node: cst.BaseExpression, same: cst.BaseExpression) -> cst.BaseExpression:
        name = self.ev.find_name(node) or self.program.resolve_name(node)
        array = name.startswith("torch.") and name.endswith(("Tensor", "torch.tensor"))
        if array or name in ARRAYS | PARAMETERS:
            self.ev.diagnostics.imports.add("jax")
            return cst.parse_expression("jax.Array")
        is_operator = self.ev.routine.node in self.program.by_node
        spelled = _SAME.get(name) or (_IN_SCHEMAS.get(name) if is_operator else None)
        if spelled:
            self.ev.diagnostics.imports.update({spelled.split(".")[0]} & {"fnjax", "jax"})
            return cst.parse_expression(spelled)
        root = name.split(".")[0]
        standard = (
            root in sys.stdlib_module_names
            or root in {"numpy", "jax", "fnjax"}
            or name.startswith("file:")
            or root in {"builtins", "None"}
            or hasattr(builtins, root)
        )
        if not name or name.startswith("?") or not standard:
            raise LookupError(name)
        return same


def _is_of_python(base: str) -> bool:
    """Return whether a base is of Python itself."""
    root = base.split(".", maxsplit=1)[0]
    return root in sys.stdlib_module_names | {"builtins"} or hasattr(builtins, root)
