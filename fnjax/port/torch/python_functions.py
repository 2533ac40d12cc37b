"""Functions of Python's: those of math for arrays, and builtins that find names by text or return no array."""

from __future__ import annotations

BY_TEXT = frozenset({"eval", "exec", "globals", "locals", "__import__"})
_SAME = "sqrt exp log log2 log10 sin cos tan tanh floor ceil isnan isinf log1p"  # as jax.numpy has them
MATH = {name: f"jnp.{name}" for name in _SAME.split()}
MATH |= {"pow": "jnp.float_power", "fabs": "jnp.abs", "erf": "jax.scipy.special.erf"}
_STATIC = "len range isinstance issubclass hasattr callable repr str type id print format hash ord chr"
STATIC_BUILTINS = frozenset(_STATIC.split())
