"""PyTorch's errors for shapes that its operations refuse: JAX would broadcast them, or raise errors of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fnjax.torch.memory.tensor import Tensor

_Values = Mapping[str, Any]
# By operation the rank that a parameter has to have, and PyTorch's message.
_RANKS: dict[str, list[tuple[str, int, str]]] = {
    "mm": [("input", 2, "self must be a matrix"), ("mat2", 2, "mat2 must be a matrix")],
    "bmm": [("input", 3, "batch1 must be a 3D tensor"), ("mat2", 3, "batch2 must be a 3D tensor")],
    "outer": [(n, 1, f"outer: Expected 1-D argument {n}, but got {{0}}-D") for n in ("input", "vec2")],
    "trace": [("input", 2, "trace: expected a matrix, but got tensor with dim {0}")],
    "fill": [("value", 0, "fill_ only supports 0-dimension value tensor but got tensor with {0} dimensions.")],
    "masked_fill": [
        ("value", 0, "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with {0} dimension(s).")
    ],
    "bincount": [("input", 1, "bincount only supports 1-d non-negative integral inputs.")],
}
_RANKS |= {
    name: [(n, 1, "1D tensors expected, but got a tensor with {0}D") for n in ("input", "tensor", "other")]
    for name in ("dot", "vdot")
}
_RANKS["mv"] = [
    (n, rank, "vector + matrix @ vector expected, got a tensor with {0}D") for n, rank in (("input", 2), ("vec", 1))
]


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.layout.shape)


def _check_product(name: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Check the shapes of matrices, or of batches of them."""
    if not a or not b:
        raise RuntimeError(f"both arguments to {name} need to be at least 1D, but they are {len(a)}D and {len(b)}D")
    if a[-1] == (b[0] if len(b) == 1 else b[-2]):
        if name == "bmm" and a[0] != b[0]:
            raise RuntimeError(_describe_batches(a, b))
        return
    if len(a) == len(b) == 1:
        sizes = f"tensor [{a[0]}] and src [{b[0]}] to have the same number of elements, but got {a[0]} and {b[0]}"
        raise RuntimeError(f"inconsistent tensor size, expected {sizes} elements respectively")
    if len(b) == 1:
        rows = math.prod(a[:-1])
        raise RuntimeError(f"size mismatch, got input ({rows}), mat ({rows}x{a[-1]}), vec ({b[0]})")
    if len(b) == 2:
        rows = math.prod(a[:-1])
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({rows}x{a[-1]} and {b[0]}x{b[1]})")
    raise RuntimeError(_describe_batches(a, b))


def _describe_batches(a: Sequence[int], b: Sequence[int]) -> str:
    batch, rows = (math.prod(a[:-2]), math.prod(b[:-2])) if len(a) > 2 else (b[0], b[0])
    return (
        f"Expected size for first two dimensions of batch2 tensor to be: [{batch}, {a[-1]}] but got: [{rows}, {b[-2]}]."
    )


def _check_matmul(name: str, values: _Values) -> None:
    second = next(values[n] for n in ("other", "mat2", "vec", "tensor") if n in values)
    _check_product(name, _shape(values["input"]), _shape(second))


def _check_linear(name: str, values: _Values) -> None:
    weight = _shape(values["weight"])
    _check_product(name, _shape(values["input"]), weight[::-1] if len(weight) == 2 else weight)


def _check_index(name: str, values: _Values) -> None:
    """Check the index of gather and scatter, and the source of scatter."""
    dim, source = values["dim"], values.get("src")
    own, at = _shape(values["input"]), _shape(values["index"])
    if math.prod(at) == 0:
        return
    what = "input" if name == "gather" else "self"
    if max(len(own), 1) != max(len(at), 1):
        raise RuntimeError(f"Index tensor must have the same number of dimensions as {what} tensor")
    given = _shape(source) if isinstance(source, Tensor) else at
    if max(len(given), 1) != max(len(at), 1):
        raise RuntimeError("Index tensor must have the same number of dimensions as src tensor")
    axis = dim % max(len(own), 1)
    if all(a <= o or i == axis for i, (a, o) in enumerate(zip(at, own, strict=False))) and all(
        a <= g for a, g in zip(at, given, strict=False)
    ):
        return
    if name == "gather":
        wrong = next(i for i, (a, o) in enumerate(zip(at, own, strict=True)) if a > o and i != axis)
        raise RuntimeError(
            f"Size does not match at dimension {wrong} expected index {[*at]} to be no larger than self {[*own]} apart"
            f" from dimension {axis}"
        )
    source_text = f" and to be no larger size than src {[*given]}" if isinstance(source, Tensor) else ""
    raise RuntimeError(
        f"Expected index {[*at]} to be no larger than self {[*own]} apart from dimension {axis}{source_text}"
    )


def _check_vector(name: str, values: _Values) -> None:
    """Check the index of index_select, and of index_add, index_copy and index_fill."""
    index, source, dim = values["index"], values.get("source"), values["dim"]
    if index.ndim > 1:
        raise IndexError(f"{name}(): Index is supposed to be a vector")
    if isinstance(source, Tensor) and source.ndim and source.layout.shape[dim % source.ndim] != index.layout.size:
        raise (IndexError if name == "index_copy" else RuntimeError)(
            f"{name}_(): Number of indices ({index.layout.size}) should be equal to source.size(dim):"
            f" ({source.layout.shape[dim % source.ndim]}), for dim: {dim}"
        )


def _check_normalized(name: str, values: _Values) -> None:
    own, sizes = _shape(values["input"]), values["normalized_shape"]
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    if len(own) < len(sizes) or own[len(own) - len(sizes) :] != sizes:
        wanted = ", ".join(map(str, ("*", *sizes)))
        raise RuntimeError(
            f"Given normalized_shape={[*sizes]}, expected input with shape [{wanted}], but got input of size{[*own]}"
        )
    weight = values.get("weight")
    if isinstance(weight, Tensor) and _shape(weight) != sizes:
        what = f"weight of shape {[*_shape(weight)]} and normalized_shape = {[*sizes]}"
        raise RuntimeError(f"Expected weight to be of same shape as normalized_shape, but got {what}")


def _check_count(name: str, values: _Values) -> None:
    """Check k of topk and kthvalue."""
    x, k, dim = values["input"], values["k"], values.get("dim")
    axis = (-1 if dim is None else dim) % max(x.ndim, 1)
    size = x.layout.shape[axis] if x.ndim else 1
    if not isinstance(k, int) or (name == "topk" and 0 <= k <= size) or 1 <= k <= size:
        return
    if name == "topk":
        raise RuntimeError("selected index k out of range")
    raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {axis}")


def _check_convolution(name: str, values: _Values) -> None:
    own, weight, groups = _shape(values["input"]), _shape(values["weight"]), values.get("groups") or 1
    rank = int(name[-2])
    if len(weight) != rank + 2 or len(own) not in {rank + 1, rank + 2}:
        return
    channels, expected = own[-rank - 1], weight[0] if "transpose" in name else weight[1] * groups
    if channels != expected:
        kind = "transposed=1" if "transpose" in name else f"groups={groups}"
        raise RuntimeError(
            f"Given {kind}, weight of size {[*weight]}, expected input{[*own]} to have {expected} channels, but got"
            f" {channels} channels instead"
        )
    if "transpose" in name or isinstance(values.get("padding"), str):
        return
    padded, kernel = _list_windows(values, own[-rank:], weight[2:])
    if any(k > n for k, n in zip(kernel, padded, strict=True)):
        sizes = [" x ".join(map(str, v)) for v in (padded, kernel)]
        raise RuntimeError(
            f"Calculated padded input size per channel: ({sizes[0]}). Kernel size: ({sizes[1]}). Kernel size can't be"
            " greater than actual input size"
        )


def _check_pool(name: str, values: _Values) -> None:
    own, rank = _shape(values["input"]), int(name[-2])
    padded, kernel = _list_windows(values, own[-rank:], values["kernel_size"])
    if any(k > n for k, n in zip(kernel, padded, strict=True)) and not values.get("ceil_mode"):
        raise RuntimeError(f"Given input size: ({'x'.join(map(str, own[-rank - 1 :]))}). Output size is too small")


def _list_windows(values: _Values, sizes: Sequence[int], kernel: Any) -> tuple[list[int], list[int]]:
    """Return the sizes with padding, and the sizes of the dilated window."""
    given = (kernel, values.get("padding") or 0, values.get("dilation") or 1)
    lists = [[*v] if isinstance(v, (tuple, list)) else [v] for v in given]
    windows, padding, dilation = (v * len(sizes) if len(v) == 1 else v for v in lists)
    padded = [n + 2 * p for n, p in zip(sizes, padding, strict=True)]
    return padded, [d * (k - 1) + 1 for k, d in zip(windows, dilation, strict=True)]


def _check_join(name: str, values: _Values) -> None:
    """Check the tensors of cat; one of shape (0,) is left out."""
    tensors, dim = values["tensors"], values.get("dim", 0)
    shapes = [_shape(t) for t in tensors if isinstance(t, Tensor)]
    if name == "stack":
        wrong = next((i for i, s in enumerate(shapes) if s != shapes[0]), None)
        if wrong is not None:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {[*shapes[0]]} at entry 0 and"
                f" {[*shapes[wrong]]} at entry {wrong}"
            )
        return
    shapes = [s for s in shapes if s != (0,)]
    for i, s in enumerate(shapes[1:], 1):
        if len(s) != len(shapes[0]):
            raise RuntimeError(f"Tensors must have same number of dimensions: got {len(shapes[0])} and {len(s)}")
        if not isinstance(dim, int) or not s:
            continue
        for axis, (a, b) in enumerate(zip(shapes[0], s, strict=True)):
            if a != b and axis != dim % len(s):
                raise RuntimeError(
                    f"Sizes of tensors must match except in dimension {dim % len(s)}. Expected size {a} but got size"
                    f" {b} for tensor number {i} in the list."
                )


def _check_square(name: str, values: _Values) -> None:
    own = _shape(values["A"] if "A" in values else values["input"])
    name = "inv" if name == "inverse" else name
    if len(own) < 2:
        raise RuntimeError(f"linalg.{name}: The input tensor A must have at least 2 dimensions.")
    if own[-1] != own[-2]:
        raise RuntimeError(
            f"linalg.{name}: A must be batches of square matrices, but they are {own[-2]} by {own[-1]} matrices"
        )


def _check_loss(name: str, values: _Values) -> None:
    own, target = _shape(values["input"]), _shape(values["target"])
    if name in {"nll_loss", "cross_entropy"}:
        if len(own) > 1 and target and own[0] != target[0]:
            raise ValueError(f"Expected input batch_size ({own[0]}) to match target batch_size ({target[0]}).")
    elif own != target:
        text = f"Target size (torch.Size({[*target]})) must be the same as input size (torch.Size({[*own]}))"
        if name == "binary_cross_entropy":
            text = f"Using a target size (torch.Size({[*target]})) that is different to the input size "
            text += f"(torch.Size({[*own]})) is deprecated. Please ensure they have the same size."
        raise ValueError(text)


def _check_repeats(name: str, values: _Values) -> None:
    sizes = values["repeats"]
    if len(sizes if isinstance(sizes, (tuple, list)) else (sizes,)) < values["input"].ndim:
        raise RuntimeError("Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor")


def _check_padding(name: str, values: _Values) -> None:
    if isinstance(values["pad"], (tuple, list)) and len(values["pad"]) % 2:
        raise RuntimeError("Padding length must be divisible by 2")


_CHECKS: dict[str, Callable[[str, _Values], None]] = {
    **dict.fromkeys(("mm", "matmul", "bmm", "mv", "dot", "vdot"), _check_matmul),
    "linear": _check_linear,
    **dict.fromkeys(("gather", "scatter", "scatter_add", "scatter_reduce"), _check_index),
    **dict.fromkeys(("index_select", "index_add", "index_copy", "index_reduce"), _check_vector),
    **dict.fromkeys(("layer_norm", "rms_norm"), _check_normalized),
    **dict.fromkeys(("topk", "kthvalue"), _check_count),
    **dict.fromkeys((f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)), _check_convolution),
    **dict.fromkeys((f"{kind}_pool{n}d" for kind in ("max", "avg") for n in (1, 2, 3)), _check_pool),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack"), _check_join),
    **dict.fromkeys(("inv", "inverse", "det", "slogdet", "eigh", "eigvalsh", "cholesky"), _check_square),
    **dict.fromkeys(
        ("nll_loss", "cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits"), _check_loss
    ),
    "repeat": _check_repeats,
    "pad": _check_padding,
}


def check_shapes(name: str, values: _Values) -> None:
    """Raise PyTorch's error for shapes that an operation refuses.

    Args:
        name: the operation, without its module.
        values: all parameters, with their defaults.
    """
    for parameter, rank, text in _RANKS.get(name, ()):
        value = values.get(parameter)
        if isinstance(value, Tensor) and value.ndim != rank:
            raise RuntimeError(text.format(value.ndim))
    check = _CHECKS.get(name)
    if check is not None:
        check(name, values)
