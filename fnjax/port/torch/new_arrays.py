"""Arrays that a template makes: what is known of them where they are made, and how one is filled at once.

`torch.empty(3, 4).shape` is `(3, 4)`, and `x.new_empty(n).zero_()` is `jnp.zeros(n, dtype=x.dtype)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import libcst as cst

from fnjax.port.torch.expressions import bracket, fill, make_list, make_tuple, unparse

_MAKERS = frozenset(f"jnp.{kind}{like}" for kind in ("empty", "zeros", "ones", "full") for like in ("", "_like"))


@dataclass(frozen=True, slots=True)
class NewArray:
    """A new array, as the source makes it.

    Attributes:
        kind: `empty`, `zeros`, `ones` or `full`.
        like: whether it has the shape of another array.
        size: the other array, if `like`; else the size.
        role: `size` or `tuple` for a size that is a tuple, `int` for a number.
        dtype: the argument `dtype`, if it is given.
        value: for `full`, the parameter with the value.
    """

    kind: str
    like: bool
    size: cst.BaseExpression
    role: str
    dtype: cst.BaseExpression | None
    value: str

    @classmethod
    def read_new_array(
        cls, template: cst.BaseExpression, made: cst.BaseExpression, role: Callable[[str], str]
    ) -> NewArray | None:
        """Return the new array that a template makes; None if it computes something.

        Args:
            template: the tree of the template.
            made: the tree with the arguments in it.
            role: returns the role of a parameter.
        """
        if (
            not isinstance(template, cst.Call)
            or not isinstance(made, cst.Call)
            or unparse(template.func) not in _MAKERS
        ):
            return None
        name = unparse(template.func).removeprefix("jnp.")
        kind = name.removesuffix("_like")
        plain = [a for a in template.args if a.keyword is None]
        dtype = next((a.value for a in made.args if a.keyword and a.keyword.value == "dtype"), None)
        value = unparse(plain[1].value) if kind == "full" else ""
        return cls(kind, kind != name, made.args[0].value, role(unparse(plain[0].value)), dtype, value)

    def find_attribute(self, name: str) -> cst.BaseExpression | None:
        """Return its shape or dtype, if that is written there."""
        if name == "dtype" and (self.dtype is not None or not self.like):
            return self.dtype or cst.Name("float")
        if name in {"dtype", "shape"} and self.like:
            return cst.Attribute(bracket(self.size), cst.Name(name))
        if name != "shape" or self.role not in {"size", "tuple", "int"}:
            return None
        return make_tuple(make_list([self.size])) if self.role == "int" else self.size

    def fill_with(self, kind: str, value: cst.BaseExpression | None) -> cst.BaseExpression | None:
        """Return the same array, full of something else; None where no one call makes it."""
        if self.kind == "full":
            return None
        dtype = self.dtype or (cst.Name("float") if kind == "full" and not self.like else None)
        template = f"jnp.{kind}{'_like' if self.like else ''}(SIZE, *VALUE{', dtype=D' if dtype is not None else ''})"
        given = {"D": dtype} if dtype is not None else {}
        return fill(template, SIZE=self.size, VALUE=make_list([value] if value is not None else []), **given)
