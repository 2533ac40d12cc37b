"""torch.autocast: the operations that compute in 16 bits, and those that compute in float32, by PyTorch's lists.

The lists are those of aten/src/ATen/autocast_mode.h and .cpp for CUDA and for CPUs. All tensors are on one device here:
the innermost block decides, with the list of its device.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fnjax._contexts import AUTOCAST
from fnjax._torch_ops import Operation, find_operation
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.dtypes import FLOAT32, as_dtype, dtype
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.recording.blocks import Block

_MATMULS = {"matmul", "mm", "bmm", "addmm", "addbmm", "baddbmm", "linear", "einsum", "tensordot", "inner"}
_MATMULS |= {"multi_dot", "chain_matmul", "matrix_power", "vecdot", "prelu", "scaled_dot_product_attention", "lstm"}
_MATMULS |= {f"conv{transposed}{n}d" for transposed in ("", "_transpose") for n in (1, 2, 3)} | {"conv_tbc"}
_CELLS = {"rnn_tanh_cell", "rnn_relu_cell"}
_RECURRENT = {"gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell"}
_LOSSES = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "nll_loss", "cross_entropy", "kl_div"}
_LOSSES |= {"binary_cross_entropy_with_logits", "cosine_embedding_loss", "hinge_embedding_loss", "poisson_nll_loss"}
_LOSSES |= {"margin_ranking_loss", "soft_margin_loss", "multilabel_soft_margin_loss", "triplet_margin_loss"}
_LOSSES |= {"multi_margin_loss", "multilabel_margin_loss"}
_NARROW = {
    "cpu": _MATMULS | _CELLS,
    "cuda": _MATMULS | _CELLS | _RECURRENT | {"mv", "addmv", "addr"},
}
_WIDE = {
    "cpu": _LOSSES
    | {"avg_pool3d", "binary_cross_entropy", "grid_sample", "polar", "prod", "quantile", "nanquantile", "stft", "cdist"}
    | {"trace", "view_as_complex", "cholesky", "cholesky_inverse", "cholesky_solve", "inverse", "lu_solve", "orgqr"}
    | {"ormqr", "pinverse", "max_pool3d", "max_unpool2d", "max_unpool3d", "adaptive_avg_pool3d", "ctc_loss", "cond"}
    | {"matrix_rank", "solve", "svdvals", "eigvals", "eigvalsh", "inv", "householder_product", "tensorinv", "qr"}
    | {"tensorsolve", "geqrf", "lstsq", "svd", "triangular_solve", "adaptive_max_pool3d", "eig", "eigh", "cholesky_ex"}
    | {"inv_ex"},
    "cuda": _LOSSES
    | {"acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh"}
    | {"tan", "pow", "softplus", "layer_norm", "group_norm", "frobenius_norm", "nuclear_norm", "cosine_similarity"}
    | {"dist", "pdist", "cdist", "renorm", "logsumexp", "interpolate", "upsample", "prod", "softmax", "log_softmax"}
    | {"softmin", "cumprod", "cumsum", "vector_norm", "matrix_norm", "norm", "sum", "normalize"},
}
_PROMOTING = {"addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sample", "index_put"}
_PROMOTING |= {"scatter_add"}
_DEFAULTS = {"cpu": dtype("bfloat16"), "cuda": dtype("float16")}


def _check_device(device_type: str) -> None:
    if device_type not in _DEFAULTS:
        raise NotSupported(f"torch.autocast of {device_type!r}", "use 'cuda' or 'cpu'")


def find_block(device_type: str) -> tuple[dtype, bool]:
    """Return the dtype of the innermost block for a device, and whether autocast is enabled in it."""
    _check_device(device_type)
    blocks = (block for block in AUTOCAST.value if block[0] == device_type)
    _, name, enabled = next(blocks, (device_type, _DEFAULTS[device_type].name, False))
    return dtype(name), enabled


class Autocast(Block):
    """torch.autocast: a block, or a decorator.

    Args:
        device_type: `cpu` or `cuda`, whose list of operations applies.
        dtype: float16 or bfloat16; other dtypes disable autocast, as in PyTorch.
        enabled: False disables autocast in the block.
    """

    def __init__(
        self,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        self.device = str(device_type).partition(":")[0]
        _check_device(self.device)
        self.fast_dtype = _DEFAULTS[self.device] if dtype is None else as_dtype(dtype)
        self._enabled = bool(enabled) and self.fast_dtype.name in {"float16", "bfloat16"}

    def open(self) -> AbstractContextManager[Any]:
        """Return the context manager of the block; the block is a part of the key of jax.jit's cache."""
        block: AbstractContextManager[Any] = AUTOCAST(
            ((self.device, self.fast_dtype.name, self._enabled), *AUTOCAST.value)
        )
        return block


def cast_arguments(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the arguments of an operation, cast by the rules of autocast.

    Raises:
        NotSupported: PyTorch computes the operation in two dtypes.
        RuntimeError: PyTorch refuses the operation under autocast.
    """
    device, narrow, enabled = AUTOCAST.value[0]
    operation = find_operation(name)
    if not enabled or not isinstance(operation, Operation):
        return args, kwargs
    last = operation.names[0].rpartition(".")[2]
    to: dtype | None = None
    if last in _NARROW[device]:
        to = None if last == "inner" and args[0].ndim < 2 else dtype(narrow)
    elif last in _WIDE[device] or (device == "cpu" and operation.names[0].startswith("torch.fft.")):
        to = None if kwargs.get("dtype") is not None else FLOAT32
    elif device == "cuda" and last in {"div", "true_divide"} and not isinstance(args[0], Tensor):
        to = FLOAT32  # 1 / x is a reciprocal
    elif device == "cuda" and last in _PROMOTING:
        to = FLOAT32 if FLOAT32 in {x.dtype for x in _list_floats([*args, *kwargs.values()])} else dtype(narrow)
    elif device == "cuda" and last == "binary_cross_entropy":
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
            "  fix: use torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss"
        )
    elif device == "cpu" and last in _RECURRENT:
        raise NotSupported(
            f"torch.{last} in torch.autocast('cpu')", "call it within torch.autocast('cpu', enabled=False)"
        )
    if to is None:
        return args, kwargs
    return cast(args, to), {k: cast(v, to) for k, v in kwargs.items()}


def _list_floats(values: Any) -> list[Tensor]:
    """Return the tensors that autocast casts, among arguments and in their lists: floats other than float64."""
    if isinstance(values, (list, tuple)):
        return [x for v in values for x in _list_floats(v)]
    is_float = isinstance(values, Tensor) and values.dtype.is_floating_point
    return [values] if is_float and values.dtype.name != "float64" else []


def cast(value: Any, own: dtype) -> Any:
    """Return a value with float tensors cast to a dtype, except float64, also in lists, tuples and dicts."""
    if isinstance(value, dict):
        return {k: cast(v, own) for k, v in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(cast(v, own) for v in value)
    return value.to(own) if _list_floats(value) and isinstance(value, Tensor) else value


def custom_fwd(fwd: Any = None, *, device_type: str = "cuda", cast_inputs: Any = None) -> Any:
    """Return a forward for autocast; with `cast_inputs`, its floats are cast, and it runs with autocast disabled."""
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def forward(*args: Any, **kwargs: Any) -> Any:
        own, enabled = find_block(device_type)
        if not isinstance(args[0], Tensor):  # ctx; that of setup_context is not there yet
            args[0]._dtype, args[0]._fwd_used_autocast = own, enabled and cast_inputs is None
        if cast_inputs is None or not enabled:
            return fwd(*args, **kwargs)
        with Autocast(device_type, enabled=False):
            return fwd(*cast(args, as_dtype(cast_inputs)), **cast(kwargs, as_dtype(cast_inputs)))

    return forward


def custom_bwd(bwd: Any = None, *, device_type: str = "cuda") -> Any:
    """Return a backward that runs under the autocast of its forward."""
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def backward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        with Autocast(device_type, getattr(ctx, "_dtype", None), getattr(ctx, "_fwd_used_autocast", False)):
            return bwd(ctx, *args, **kwargs)

    return backward
