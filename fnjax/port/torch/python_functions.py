"""Functions of Python's: what those of math are for arrays, and builtins that find names by text or give no array."""

from __future__ import annotations

BY_TEXT = frozenset({"eval", "exec", "globals", "locals", "__import__"})
MATH = {
    "sqrt": "jnp.sqrt",
    "exp": "jnp.exp",
    "log": "jnp.log",
    "log2": "jnp.log2",
    "log10": "jnp.log10",
    "sin": "jnp.sin",
    "cos": "jnp.cos",
    "tan": "jnp.tan",
    "tanh": "jnp.tanh",
    "floor": "jnp.floor",
    "ceil": "jnp.ceil",
    "pow": "jnp.float_power",
    "fabs": "jnp.abs",
    "erf": "jax.scipy.special.erf",
    "isnan": "jnp.isnan",
    "isinf": "jnp.isinf",
    "log1p": "jnp.log1p",
}
STATIC_BUILTINS = frozenset(
    [
        "len",
        "range",
        "isinstance",
        "issubclass",
        "hasattr",
        "callable",
        "repr",
        "str",
        "type",
        "id",
        "print",
        "format",
        "hash",
        "ord",
        "chr",
    ]
)
