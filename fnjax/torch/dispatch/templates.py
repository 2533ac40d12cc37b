"""Templates of the table as functions of arrays."""

from __future__ import annotations

import ast
import copy
import itertools
import math
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._torch_ops import Refuse
from fnjax._torch_ops.derivatives import NORM
from fnjax._torch_ops.record import VANISH
from fnjax._torch_ops.signature import PARSING
from fnjax.torch.dispatch.binding import BoundCall, spell
from fnjax.torch.errors import NotSupported

_SUPPORT = (
    "general",
    "derivatives",
    "memory",
    "indexing",
    "layers",
    "images",
    "linear",
    "losses",
    "random",
    "recurrent",
    "rounding",
    "special",
    "trees",
)


@cache
def _names() -> dict[str, Any]:
    """Return the names that templates may use: JAX, NumPy, math and the support functions."""
    found: dict[str, Any] = {"jax": jax, "jnp": jnp, "np": np, "math": math, "itertools": itertools}
    for name in _SUPPORT:
        module = import_module(f"fnjax._torch_ops.jax_functions.{name}")
        found |= {k: v for k, v in vars(module).items() if k.startswith("_")}
    return found


# By JAX's function, or the operator, the function that rounds as PyTorch does.
_ROUNDED = {"Div": "_quotient", "Pow": "_power", "jnp.mean": "_mean", "jax.lax.rsqrt": "_rsqrt"}


@lru_cache(4096)
def compile_template(
    text: str,
    parameters: tuple[str, ...],
    omitted: frozenset[str],
    replaced: tuple[tuple[str, str], ...],
    dropped: frozenset[str],
) -> Callable[..., Any]:
    """Return a template as a function of its parameters, which rounds as PyTorch does.

    Args:
        text: the template.
        parameters: the parameters.
        omitted: those that the call omits: a keyword argument that only passes one of them is left out.
        replaced: pairs of a function that the template calls, and the one that is called in its place.
        dropped: the keywords that `jnp.linalg.norm` has, and the function in its place has not.
    """
    names, tree = _names(), _parse(text)
    source_of, functions = text.encode(), _ROUNDED | dict(replaced)

    class Adapt(ast.NodeTransformer):
        def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
            self.generic_visit(node)
            name = _ROUNDED.get(type(node.op).__name__)
            return ast.Call(ast.Name(name, ast.Load()), [node.left, node.right], []) if name else node

        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            name = ast.unparse(node.func)
            node.func = ast.Name(functions[name], ast.Load()) if name in functions else node.func
            node.keywords = [
                k
                for k in node.keywords
                if not (isinstance(k.value, ast.Name) and k.value.id in omitted and not _in_parentheses(source_of, k))
                and not (name in NORM and k.arg in dropped)
            ]
            return node

    body = ast.unparse(Adapt().visit(copy.deepcopy(tree)))
    function: Callable[..., Any] = eval(f"lambda {', '.join(parameters)}: {body}", names)
    return function


def _in_parentheses(source: bytes, keyword: ast.keyword) -> bool:
    value = keyword.value
    return (
        source[value.col_offset - 1 : value.col_offset] == b"("
        and source[value.end_col_offset : (value.end_col_offset or 0) + 1] == b")"
    )


def find_template(call: BoundCall) -> str:
    """Return the template for a call.

    Raises:
        NotSupported: the call has no template.
    """
    overload = call.overload
    if isinstance(overload.template, str):
        return overload.template
    try:
        return overload.template(call)
    except Refuse as e:
        raise NotSupported(f"torch's {spell(call.operation.names[0])}: {e}") from None


def check_read(call: BoundCall) -> None:
    """Check that the template reads all arguments that are passed.

    Raises:
        NotSupported: the template does not read an argument.
    """
    text = call.overload.template
    if not isinstance(text, str):  # a function, which reads the parameters that it needs
        return
    read = {node.id for node in ast.walk(_parse(text)) if isinstance(node, ast.Name)}
    for name in call.values if read else ():  # else it is a constant
        if name not in read and name not in VANISH and name not in {"dtype", "out"} and call.is_given(name):
            raise NotSupported(f"torch.{spell(call.operation.names[0])} with {name}=, which has no counterpart in JAX")


@cache
def _parse(text: str) -> ast.Expression:
    with PARSING:
        return ast.parse(text, mode="eval")
