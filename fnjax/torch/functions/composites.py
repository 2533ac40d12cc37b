"""Dtypes and their limits, predicates of tensors, and the operations that are not lines of the table."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fnjax._torch_ops.registry import KNOWN, known
from fnjax.torch.deferred.either import Either, find_choice
from fnjax.torch.deferred.filtered import Filtered
from fnjax.torch.deferred.missing import is_feature_test, is_loading
from fnjax.torch.deferred.selection import Selection, find_indices, holds_selection, select, settle, takes_selections
from fnjax.torch.dispatch.dtype_checks import check_dtypes
from fnjax.torch.dispatch.run import run
from fnjax.torch.errors import NotSupported
from fnjax.torch.functions.creation import TYPES, with_out
from fnjax.torch.memory.dtypes import DTYPES, as_dtype, default_dtype, dtype, promote, result_type, type_of_number
from fnjax.torch.memory.layout import Size
from fnjax.torch.memory.root_settings import RootSettings, find_settings
from fnjax.torch.memory.tensor import Tensor, is_known, make
from fnjax.torch.recording.graph import Value
from fnjax.torch.recording.raises import refuse_caught
from fnjax.torch.views import strided
from fnjax.torch.views.indexing import check_indices, is_traced_mask, write, write_masked
from fnjax.torch.views.sections import unbind

for _name, _own in DTYPES.items():
    KNOWN[f"torch.{_name}"] = _own
KNOWN |= {"torch.dtype": dtype, "torch.Size": Size, "torch.Tensor": Tensor}


class _Info:
    def __init__(self, own: dtype, found: Any) -> None:
        self.dtype, self.bits = own.name, found.bits
        self.min, self.max = (
            (int if own.kind == "int" else float)(found.min),
            (int if own.kind == "int" else float)(found.max),
        )
        if own.kind != "int":
            self.eps, self.tiny, self.resolution = float(found.eps), float(found.tiny), float(found.resolution)
            self.smallest_normal = self.tiny


@known("torch.set_default_dtype", "torch.set_default_tensor_type")
def set_default_dtype(d: Any, /) -> None:
    """Set the default dtype of floats for the files of the root whose file is being loaded.

    Unlike PyTorch, it applies to these files only, and raises after they are loaded: functions that JAX has traced
    would keep the old dtype.
    """
    settings = find_settings()
    if settings is None or not (is_loading() or is_feature_test()):
        raise NotSupported("torch.set_default_dtype outside of the top level of a loaded file", "pass dtype=...")
    own = getattr(d, "own", None) or (TYPES[d.removeprefix("torch.")] if isinstance(d, str) else as_dtype(d))
    if not own.is_floating_point:
        raise TypeError(f"only floating-point types are supported as the default type, got {own}")
    settings.default_dtype, RootSettings.any_is_set = own, True


@known("torch.finfo")
def finfo(type: Any = None) -> _Info:
    """Return the limits of a floating-point dtype, as Python numbers."""
    own = (default_dtype() if type is None else as_dtype(type)).to_real()
    return _Info(own, jnp.finfo(own.numpy))  # type: ignore[no-untyped-call] # of ml_dtypes


@known("torch.iinfo")
def iinfo(type: Any) -> _Info:
    """Return the limits of an integer dtype."""
    own = as_dtype(type)
    return _Info(own, jnp.iinfo(own.numpy))  # type: ignore[no-untyped-call] # as above


@known("torch.is_tensor")
def is_tensor(obj: Any) -> Any:
    """Return whether an object is a tensor; traced where a traced test decides that."""
    found = find_choice(obj)
    if type(found) is Either:
        return found.map(is_tensor, "torch.is_tensor")
    return isinstance(found, Tensor)


KNOWN["torch.numel"] = lambda input: input.numel()
KNOWN["torch.promote_types"] = lambda type1, type2: promote(as_dtype(type1), as_dtype(type2))
KNOWN["torch.get_default_dtype"] = default_dtype
KNOWN["torch.is_floating_point"] = lambda input: input.dtype.is_floating_point
KNOWN["torch.is_complex"] = lambda input: input.dtype.is_complex
KNOWN["torch.clone"] = lambda input, *, memory_format=None: input.clone(memory_format=memory_format)


@known("torch.result_type")
def torch_result_type(tensor1: Any, tensor2: Any) -> dtype:
    """Return the dtype in which an operation on both computes."""
    both = (tensor1, tensor2)
    return result_type(
        [(t.dtype, t.ndim) for t in both if isinstance(t, Tensor)],
        [type_of_number(t) for t in both if not isinstance(t, Tensor)],
    )


@known("torch.masked_select", "torch.Tensor.masked_select")
@with_out
@takes_selections
def masked_select(input: Any, mask: Any) -> Any:
    """Return the elements that a mask selects, along one axis."""
    check_dtypes("masked_select", {"mask": mask})
    if not (type(input) is type(mask) is Selection and mask.ndim == input.ndim):
        input, mask = strided.broadcast_tensors(input, mask)
    return input[mask]


@known("torch.masked_scatter", "torch.Tensor.masked_scatter")
@with_out
def masked_scatter(input: Tensor, mask: Tensor, source: Any) -> Tensor:
    """Return a copy whose elements at a mask come from a source, which may itself be a selection."""
    if type(source) is not Selection or is_known(mask.array):
        found: Tensor = run("torch.masked_scatter", (input, mask, source), {})
        if source.layout.size < found.layout.size:
            is_enough = (mask.expand(found.shape).array != 0).sum() <= source.layout.size
            if is_known(is_enough) and not is_enough:
                raise RuntimeError("Number of elements of source < number of ones in mask")
            found = settle(found, None if is_known(is_enough) else Value(is_enough))
        return found
    input, mask = strided.broadcast_tensors(input, mask)
    made = strided.copy(input)
    write_masked(made, mask, 0, source.reshape(-1), may_be_longer=True)
    return made


@known("torch.Tensor.masked_scatter_")
def masked_scatter_(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Write the elements of a source at a mask."""
    return self.assign(masked_scatter(self, mask.expand(self.shape), source).value)


@known("torch.Tensor.index_put_", "torch.index_put_")
@takes_selections
def index_put_(input: Tensor, indices: Any, values: Any, accumulate: bool = False) -> Tensor:
    """Write values at indices, or add them to the elements there."""
    if not accumulate and (holds_selection((indices, values)) or any(map(is_traced_mask, indices))):
        input[tuple(indices)] = values
        return input
    return write(input, run("torch.index_put", (input, indices, values, accumulate), {}))


@known("torch.index_put", "torch.Tensor.index_put")
@with_out
@takes_selections
def index_put(input: Tensor, indices: Any, values: Any, accumulate: bool = False) -> Tensor:
    """Return a copy with values at indices, or with them added to the elements there."""
    return index_put_(input.clone(), indices, values, accumulate)


@known("torch.nonzero", "torch.Tensor.nonzero")
@with_out
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Return the indices of the elements that are not zero: a tensor for each axis, or a row for each element."""
    if is_known(input.array) or not input.ndim:
        return run("torch.nonzero", (input,), {"as_tuple": as_tuple})
    found = find_indices(input)
    if as_tuple:
        return found
    return found[0].of(run("torch.stack", ([x.whole for x in found], -1), {}))


@known("torch.stack")
@with_out
def stack(tensors: Any, dim: int = 0) -> Any:
    """Return tensors along a new axis; of a list whose items a traced test selects, a selection of all."""
    if type(tensors) is not Filtered or dim != 0:
        return run("torch.stack", (tensors, dim), {})
    refuse_caught(RuntimeError())  # of an empty list
    return select(run("torch.stack", ([item.value for item in tensors.items],), {}), make(tensors.mask))


@known("torch.einsum", "torch.functional.einsum")
def einsum(equation: Any, *operands: Any) -> Any:
    """Return sums of products by Einstein's notation; of one tensor without a sum a view."""
    given: Sequence[Any]
    lists: Sequence[Any]
    if isinstance(equation, str):
        given = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
        lists = [re.findall(r"\.{3}|\S", part) for part in equation.split("->")]
    else:  # einsum(x, [0, 1], [1, 0])
        given, lists = [equation, *operands[1:-1:2]], operands
    if (
        len(given) == 1
        and isinstance(given[0], Tensor)
        and lists
        and all(isinstance(axes, (list, tuple)) for axes in lists)
    ):
        left, result = _name_axes(given[0].ndim, *lists)
        if len(left) == given[0].ndim and set(left) == set(result) and len(result) == len(set(result)):
            return _show_axes(given[0], left, result)
    return run("torch.einsum", (equation, *operands), {})


def _name_axes(rank: int, left: Sequence[Any], result: Sequence[Any] | None = None) -> list[list[Any]]:
    """Return the names of an operand's axes and of the result's, with one for each axis that an ellipsis stands for."""
    dots = (..., "...")
    if result is None:
        result = [*(k for k in left if k in dots), *sorted(k for k in left if k not in dots)]
    rest = [(..., i) for i in range(rank - len(left) + 1)] if any(k in dots for k in left) else []
    return [[axis for k in names for axis in (rest if k in dots else [k])] for names in (left, result)]


def _show_axes(x: Tensor, names: list[Any], result: Sequence[Any]) -> Tensor:
    """Return the view whose axes have these names; axes of one name are replaced by their diagonal."""
    for name in result:
        while names.count(name) > 1:
            first = names.index(name)
            second = names.index(name, first + 1)
            x = strided.diagonal(x, 0, first, second)
            names = [*names[:first], *names[first + 1 : second], *names[second + 1 :], name]
    return strided.permute(x, [names.index(name) for name in result])


@known("torch.rot90", "torch.Tensor.rot90")
@takes_selections
def rot90(input: Tensor, k: int = 1, dims: Any = (0, 1)) -> Tensor:
    """Rotate a tensor by right angles in the plane of two axes."""
    quarters = k % 4
    if quarters % 2 == 0:
        return run("torch.flip", (input, dims), {}) if quarters else strided.copy(input)
    return strided.transpose(run("torch.flip", (input, [dims[quarters == 1]]), {}), *dims)


@known("torch.where")
@with_out
def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """Return elements of one tensor or another."""
    if input is None:
        return nonzero(condition, as_tuple=True)
    return run("torch.where", (condition, input, other), {})


def _make_question(name: str) -> Callable[..., Any]:
    def ask(input: Tensor, other: Tensor, *args: Any, **kwargs: Any) -> Any:
        return run(f"torch.{name}", (input, other, *args), kwargs).item()

    return ask


for _name in ("allclose", "equal"):  # True or False, not a tensor
    KNOWN[f"torch.{_name}"] = KNOWN[f"torch.Tensor.{_name}"] = _make_question(_name)


@known("torch.square", "torch.Tensor.square")
@with_out
@takes_selections
def square(input: Tensor) -> Tensor:
    """Return the second power: of booleans integers."""
    return run("torch.pow", (input, 2), {})


@known("torch.as_strided_copy")
@with_out
def as_strided_copy(input: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """Return a copy of any elements of the storage."""
    return strided.copy(strided.as_strided(input, size, stride, storage_offset))


@known("torch.as_strided_scatter", "torch.Tensor.as_strided_scatter")
@with_out
def as_strided_scatter(input: Tensor, src: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """Return a copy with any elements of its storage replaced."""
    made = strided.copy(input)
    strided.as_strided(made, size, stride, storage_offset).copy_(src)
    return made


@known("torch.kron", "torch.Tensor.kron")
@with_out
def kron(input: Tensor, other: Tensor) -> Tensor:
    """Return the Kronecker product, as PyTorch does it: its strides are those of the products in blocks."""
    rank = max(input.ndim, other.ndim)
    outer, inner = ((1,) * (rank - x.ndim) + x.layout.shape for x in (input, other))
    blocks = strided.reshape(input, [n for m in outer for n in (m, 1)])
    blocks = blocks * strided.reshape(other, [n for m in inner for n in (1, m)])
    return strided.reshape(blocks, [m * n for m, n in zip(outer, inner, strict=True)])


@known("torch.inner", "torch.Tensor.inner")
@with_out
def inner(input: Tensor, other: Tensor) -> Tensor:
    """Return products summed over the last axes, or of a tensor and one without axes."""
    return run("torch.inner", (input, other), {}) if input.ndim and other.ndim else input.mul(other)


@known("torch.linalg.tensorinv")
@with_out
def tensorinv(A: Tensor, ind: int = 2) -> Tensor:  # noqa: N803 - PyTorch's name
    """Return the inverse of a tensor as a matrix whose rows are its first axes."""
    shape = A.layout.shape
    matrix = strided.reshape(A, math.prod(shape[:ind]), -1)
    return strided.reshape(run("torch.linalg.inv", (matrix,), {}), (*shape[ind:], *shape[:ind]))


@known("torch.unravel_index")
def unravel_index(indices: Tensor, shape: Any) -> Any:
    """Return the coordinates of elements that are counted in one."""
    sizes, own = strided._sizes([shape]), dtype("int64")
    counts = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    steps, limits = (make(jnp.asarray(n, own.array), own) for n in (counts, sizes))
    return unbind(indices.unsqueeze(-1) // steps % limits, -1)


@known("torch.cartesian_prod")
def cartesian_prod(*tensors: Any) -> Tensor:
    """Return all tuples of elements, a row each; of one tensor the tensor."""
    return strided.alias(tensors[0]) if len(tensors) == 1 else run("torch.cartesian_prod", tensors, {})


KNOWN["torch.conj_physical"] = with_out(strided.conj_physical)


@known("torch.native_dropout_backward")
def native_dropout_backward(grad_output: Any, mask: Any, scale: float) -> Any:
    """Return the gradient of a dropout."""
    return grad_output * (mask.to(grad_output.dtype) * scale)


@known("torch.is_nonzero")
def is_nonzero(input: Tensor) -> bool:
    """Return whether the one element is not zero."""
    return bool(input)


def _make_dropout(name: str, default: bool) -> Callable[..., Any]:
    def dropout(input: Tensor, p: float = 0.5, training: bool = default, inplace: bool = False, **named: Any) -> Tensor:
        if not named.get("train", training) or p == 0:
            return input
        found = run(name, (input, p, True), {})
        return input.copy_(found) if inplace else found

    return dropout


for _name in ("dropout", "alpha_dropout", "feature_alpha_dropout"):
    KNOWN[f"torch.{_name}"] = _make_dropout(f"torch.{_name}", False)
    KNOWN[f"torch.nn.functional.{_name}"] = _make_dropout(f"torch.nn.functional.{_name}", _name == "dropout")
for _name in ("dropout1d", "dropout2d", "dropout3d"):
    KNOWN[f"torch.nn.functional.{_name}"] = _make_dropout(f"torch.nn.functional.{_name}", True)
KNOWN["torch.feature_dropout"] = _make_dropout("torch.feature_dropout", False)


@known("torch.nn.functional.scaled_dot_product_attention")
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute attention; the dropout of its weights draws random numbers."""
    name, options = "torch.nn.functional.scaled_dot_product_attention", {"scale": scale, "enable_gqa": enable_gqa}
    if not dropout_p:
        return run(name, (query, key, value, attn_mask, 0.0, is_causal), options)
    unit = make(jnp.broadcast_to(jnp.eye(key.shape[-2]), (*key.shape[:-1], key.shape[-2])), query.dtype)
    weights = run(name, (query, key, unit, attn_mask, 0.0, is_causal), options)
    if enable_gqa:
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    return KNOWN["torch.nn.functional.dropout"](weights, dropout_p) @ value


def _make_check(kind: type[Exception]) -> Callable[..., None]:
    def check(condition: Any, message: Any = None) -> None:
        if isinstance(condition, Tensor) and not is_known(condition.array):
            return  # a traced one is taken to hold, as that of an assert is
        if not condition:
            message = "Expected cond to be True, but got False." if message is None else message
            raise kind(message() if callable(message) else message)

    return check


KNOWN |= dict.fromkeys(("torch._assert", "torch._assert_async"), _make_check(AssertionError))
for _name, _kind in {
    "_check": RuntimeError,
    "_check_index": IndexError,
    "_check_value": ValueError,
    "_check_type": TypeError,
    "_check_not_implemented": NotImplementedError,
}.items():
    KNOWN[f"torch.{_name}"] = _make_check(_kind)


@known("torch._check_is_size")
def check_is_size(i: Any, message: Any = None, *, max: Any = None) -> None:
    """Raise if a concrete number is negative, or above a bound."""
    KNOWN["torch._check"](i >= 0, message)
    if max is not None:
        KNOWN["torch._check"](i <= max, message)


@known("torch.nn.functional.one_hot")
def one_hot(input: Tensor, num_classes: int = -1) -> Tensor:
    """Return vectors with a one at these places; outside of jit their length may be left open."""
    if num_classes == -1 and is_known(input.array):
        num_classes = int(np.asarray(input.array).max(initial=-1)) + 1
    text = "Class values must be non-negative and smaller than num_classes, got {index}."
    check_indices(input, num_classes, error=RuntimeError, text=text)
    return run("torch.nn.functional.one_hot", (input, num_classes), {})
