"""Facts about the expressions in a call that these themselves show; the analysis adds more."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from fnjax._torch_ops.signature import MISSING
from fnjax.port.torch.expressions import read_literal, unparse
from fnjax.port.torch.new_arrays import NewArray

_NAMES = {
    "float": ("float32", "float", "float64", "double", "float16", "half", "bfloat16"),
    "complex": ("complex64", "cfloat", "complex128", "cdouble"),
    "int": ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "short", "int32", "int", "int64", "long"),
    "bool": ("bool", "bool_"),
}


DTYPES = {name: kind for kind, names_ in _NAMES.items() for name in names_}


def find_dtype_class(dtype: str) -> str:
    """Return the class of a dtype: `float` for `float8_e5m2`."""
    return DTYPES.get(dtype.rstrip("_"), "float" if dtype.startswith("float") else "unknown")


@dataclass(frozen=True, slots=True)
class Known:
    """Facts about an expression.

    Attributes:
        kind: `tensor`, `static` (a Python value) or `unknown`.
        dtype: `float`, `int`, `bool`, `complex` or `unknown`; of a tensor's elements, or the type of a Python number.
        rank: the number of dimensions of a tensor, where it is known.
        like: a mark of its shape, which two tensors of one shape share; empty where nothing is known of it.
        literal: the value of a literal, or of a name that surely is one; else MISSING.
        optional: it may be None.
    """

    kind: str
    dtype: str
    rank: int | None = None
    like: str = ""
    literal: object = MISSING
    optional: bool = False


class Context:
    """Knowledge of the expressions in a call; this one has only what the expressions themselves say.

    Attributes:
        differentiated: JAX may differentiate the call.
        rounding: the file makes integers of others, so that the last digit before may matter.
    """

    differentiated = False
    rounding = False

    def know(self, node: cst.BaseExpression) -> Known:
        """Return what is known of an expression."""
        value = read_literal(node)
        kinds: tuple[tuple[type, str], ...] = ((bool, "bool"), (int, "int"), (float, "float"), (complex, "complex"))
        dtype = next((name for kind, name in kinds if isinstance(value, kind)), "unknown")
        return Known("unknown" if value is MISSING else "static", dtype, literal=value)

    def find_role(self, node: cst.BaseExpression) -> str:
        """Return the role of an argument where it is certain, else an empty text.

        It is `dtype`, `device`, `list`, `size` (of a tensor), `sequence`, `int`, or `row`: integers, or one integer.
        """
        text = unparse(node)
        if self.find_named_dtype(node) or text.endswith("dtype"):
            return "dtype"
        is_device = (
            isinstance(self.know(node).literal, str) or text.endswith("device") or text.startswith("torch.device(")
        )
        return "device" if is_device else ""

    def find_named_dtype(self, node: cst.BaseExpression) -> str:
        """Return the dtype of torch's that an expression names, `int64`, or nothing."""
        space, _, last = unparse(node).rpartition(".")
        return last if space in {"torch", "jnp"} and last in DTYPES else ""

    def rewrite(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Return the JAX expression that replaces an argument."""
        return node

    def find_new_array(self, node: cst.BaseExpression) -> NewArray | None:
        """Return the array that an argument makes, if it is a call that makes one."""
        return None

    def make_key(self) -> cst.BaseExpression:
        """Return a fresh random key."""
        return cst.Name("key")

    @property
    def unpacked(self) -> int | None:
        """How many variables take the result, if it is unpacked where it is made."""
        return None
