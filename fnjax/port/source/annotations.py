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
        if not name or name.startswith("?") or not standard or not self._is_whole(name):
            raise LookupError(name)
        return same

    def _is_whole(self, name: str) -> bool:
        """Return whether the port has a class with all its bases, if this is a class."""
        cls = self.program.classes.get(name.removeprefix("file:"))
        bases = (b for c in self.program.iter_ancestors(cls) for b in c.bases) if cls is not None else ()
        roots = {b.partition(".")[0] for b in bases if not b.startswith(("file:", "fnjax.", "torch.autograd."))}
        return all(r in sys.stdlib_module_names | {"builtins"} or hasattr(builtins, r) for r in roots)
