"""Templates of the table's lines in code that the port differentiates."""

from collections.abc import Callable, Mapping

import libcst as cst

from fnjax._torch_ops.derivatives import TEMPLATES, drop_in_place, find_functions
from fnjax.port.torch.expressions import parse_template, unparse
from fnjax.port.tree.located import Rewriter


def use_derivative(name: str, text: str, literal: Callable[[str], object]) -> cst.BaseExpression:
    """Return the template of a call in code that is differentiated.

    Args:
        name: the operation.
        text: its template elsewhere.
        literal: the literal values of the call's parameters.
    """
    tree = parse_template(TEMPLATES.get(drop_in_place(name), text))
    made = _CallReplacer(*find_functions(name, literal)).rewrite(tree)
    assert isinstance(made, cst.BaseExpression)
    return made


class _CallReplacer(Rewriter):
    def __init__(self, functions: Mapping[str, str], order: bool) -> None:
        self.functions, self.order = functions, order

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        own = self.functions.get(unparse(original_node.func))
        if own is None:
            return updated_node
        plain = unparse(original_node.func) == "jnp.linalg.norm" and not self.order
        args = [a for a in updated_node.args if not (plain and a.keyword and a.keyword.value == "ord")]
        return updated_node.with_changes(func=cst.Name(own), args=args)
