"""The one name of what torch, or Python, shows under several."""

from __future__ import annotations

from fnjax.port.torch import Operation, find_operation

# Names under which torch's own code, and Python's, may be met, and the names of the table.
_CANONICAL = (
    ("torch.autograd.function.", "torch.autograd."),
    ("torch.cuda.amp.", "torch.amp."),
    ("torch.cuda.amp.autocast_mode.", "torch.amp."),
    ("torch.functional.", "torch."),
    ("torch._tensor.", "torch."),
    ("torch.types.", "torch."),
    ("torch._C._nn.", "torch.nn.functional."),
    ("torch._C._special.", "torch.special."),
    ("torch._C._linalg.", "torch.linalg."),
    ("torch._C._fft.", "torch.fft."),
    ("torch._C.", "torch."),
    ("torch._VariableFunctions.", "torch."),
    ("torch.ops.aten.", "torch."),
    ("numba.prange", "builtins.range"),
    ("triton.", "fnjax.triton."),
)
# Of torch.ops.aten, in `torch.ops.aten.mul.Tensor`.
_NAMES = """
avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d gelu glu hardsigmoid
hardswish hardtanh leaky_relu linear max_pool1d max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices
mish one_hot pad relu6 scaled_dot_product_attention silu softplus softshrink
"""
_FUNCTIONAL = frozenset(_NAMES.split())  # those that only torch.nn.functional shows, with the same first arguments
_OVERLOADS = frozenset({"default", "Tensor", "Scalar", "self", "dim", "int", "dim_IntList", "Tensor_mode", "other"})


def find_canonical_name(name: str) -> str:
    """Return the one name of something that torch shows under several."""
    if name == "triton":
        return "fnjax.triton"
    if name.startswith("torch.cuda.") and name.endswith("Tensor"):
        return "torch." + name.removeprefix("torch.cuda.")
    own, _, rest = name.removeprefix("torch.ops.aten.").partition(".")
    if name.startswith("torch.ops.aten.") and own in _FUNCTIONAL and rest in {"", "default"}:
        return f"torch.nn.functional.{own}"
    head, _, overload = name.rpartition(".")
    if overload in _OVERLOADS and isinstance(find_operation(head), Operation) and find_operation(name) is None:
        return head
    for prefix, short in _CANONICAL:
        if name.startswith(prefix):
            return find_canonical_name(short + name.removeprefix(prefix))
    return name
