"""What the table's lines become in code that the port differentiates.

At ties, bounds and zeros JAX's derivatives are others than PyTorch's. Where a short function has PyTorch's, it takes the
place of JAX's; where there is none, a note says at which inputs gradients differ.
"""

from collections.abc import Callable, Mapping

import libcst as cst

from fnjax.port.torch.expressions import parse_template, unparse
from fnjax.port.tree.located import Rewriter

# By the function that a template calls.
_FUNCTIONS = {
    "jnp.abs": "_abs",
    "jnp.angle": "_angle",
    "jnp.arctan2": "_arctan2",
    "jnp.clip": "_clip",
    "jnp.fmax": "_fmax",
    "jnp.fmin": "_fmin",
    "jnp.linalg.vector_norm": "_norm",
    "jnp.std": "_std",
    "jax.nn.leaky_relu": "_leaky_relu",
}
_NORM = {"jnp.linalg.norm": "_norm"}  # of vectors; Frobenius' norm is one
# By the operation, where that says more than the template.
_TEMPLATES = {
    "torch.clamp_min": "_clip(input, min)",
    "torch.clamp_max": "_clip(input, max=(max))",
    "torch.cholesky": "jnp.linalg.cholesky(A, upper=upper)",  # its gradient is symmetric
    "torch.linalg.cholesky": "jnp.linalg.cholesky(A, upper=upper)",
    "torch.linalg.eigh": "jnp.linalg.eigh(A, UPLO=UPLO)",  # so is that
    "torch.copysign": "_abs(input) * jnp.where(jnp.signbit(other), -1, 1)",
    "torch.nn.functional.hardtanh": "_hardtanh(input, min_val, max_val)",
}
_EQUAL = "equal entries share the gradient otherwise than in PyTorch"
_DEPARTURES = {
    "torch.topk": _EQUAL,
    "torch.kthvalue": _EQUAL,
    "torch.median": _EQUAL,
    "torch.nanmedian": _EQUAL,
    "torch.mode": _EQUAL,
    "torch.quantile": _EQUAL,
    "torch.nanquantile": _EQUAL,
    **dict.fromkeys(
        [f"torch.nn.functional.max_unpool{rank}d" for rank in (1, 2, 3)],
        "where several entries have one place, only one of them gets its gradient",
    ),
    "torch.hypot": "where both arguments are zero the gradient is finite; PyTorch's is NaN",
}


def find_departure(name: str) -> str:
    """At which inputs the operation's gradient is JAX's and not PyTorch's; empty where there are none."""
    return _DEPARTURES.get(_drop_in_place(name), "")


def use_derivative(name: str, text: str, literal: Callable[[str], object]) -> cst.BaseExpression:
    """The template of a call in code that is differentiated.

    Args:
        name: the operation.
        text: its template elsewhere.
        literal: the literal values of the call's parameters.
    """
    tree = parse_template(_TEMPLATES.get(_drop_in_place(name), text))
    order = literal("p" if name.endswith(".norm") and "linalg" not in name else "ord")
    vectors = order in (None, "fro") or isinstance(literal("dim"), int)
    made = _CallReplacer(_FUNCTIONS | (_NORM if vectors else {}), order not in (None, "fro")).rewrite(tree)
    assert isinstance(made, cst.BaseExpression)
    return made


def _drop_in_place(name: str) -> str:
    return name.replace("torch.Tensor.", "torch.").rstrip("_")


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
