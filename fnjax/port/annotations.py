"""Annotations without torch's types."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import libcst as cst


class Annotation(cst.CSTTransformer):
    """Replaces torch's types."""

    def __init__(self, program: Any, walk: Any) -> None:
        super().__init__()
        self.program, self.walk = program, walk

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        """Dotted names are taken as a whole."""
        return False

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        """`torch.Tensor`."""
        return self._named(original_node, updated_node)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        """`Tensor`."""
        return self._named(original_node, updated_node)

    def _named(self, node: cst.BaseExpression, same: cst.BaseExpression) -> cst.BaseExpression:
        name = self.walk.name_of(node) or self.program.resolve(node)
        if (name.startswith("torch.") and name.endswith("Tensor")) or name in {
            "torch.nn.Parameter",
            "torch.nn.parameter.Parameter",
        }:
            self.walk.sink.imports.add("jax")
            return cst.parse_expression("jax.Array")
        if name == "torch.tensor":
            self.walk.sink.imports.add("jax")
            return cst.parse_expression("jax.Array")
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
