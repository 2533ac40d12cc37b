"""torch.nn.init: fill tensors in place, with PyTorch's formulas; random numbers need `fnjax.torch.seed`."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._torch_ops.registry import KNOWN
from fnjax.torch.memory.tensor import Tensor, make
from fnjax.torch.recording.blocks import setting
from fnjax.torch.recording.gradient_mode import set_mode, switch
from fnjax.torch.recording.rng import next_key

_skipped: ContextVar[bool] = ContextVar("_skipped", default=False)


def skip_draws() -> AbstractContextManager[bool]:
    """Skip the drawing of initial values within a block; tensors are left unchanged."""
    return setting(_skipped, True)


def _enter(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function under its name in torch.nn.init."""
    KNOWN[f"torch.nn.init.{function.__name__}"] = function
    return function


def _fill(tensor: Tensor, array: Any) -> Tensor:
    """Write an array into a tensor, also into a parameter; autograd does not record the write."""
    dtype = tensor.dtype.array
    with set_mode(switch(False)):  # NumPy converts without a compiled program for each shape
        return tensor.copy_(make(jnp.asarray(array.astype(dtype), dtype), tensor.dtype))


def _draw(tensor: Tensor, generator: Any, draw: Callable[..., Any], *bounds: float) -> Tensor:
    """Fill a tensor with a function of jax.random, of key, shape and dtype."""
    if _skipped.get():
        return tensor
    return _fill(tensor, draw(next_key(generator), tuple(tensor.shape), tensor.dtype.array, *bounds))


def _draw_flat(draw: Callable[..., Any], key: Any, shape: tuple[int, ...], dtype: Any, *bounds: float) -> Any:
    """Return `draw(key, shape, dtype, *bounds)`; shapes with sizes up to one power of four share a compiled program.

    That draws a whole power of four: under jax_threefry_partitionable a number depends on key and position alone.
    """
    known = not isinstance(key, jax.core.Tracer) and str(jax.random.key_impl(key)) == "threefry2x32"
    if not known or not jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        return draw(key, shape, dtype, *bounds)
    size = math.prod(shape)
    whole = draw(key, (4 ** math.ceil(math.log(max(size, 4096), 4)),), dtype, *bounds)
    return np.asarray(whole)[:size].reshape(shape)


def _scale(found: Any, mean: float, std: float) -> Any:
    """Return numbers with another mean and standard deviation; both are rounded to the dtype, as JAX rounds them."""
    return np.asarray(mean, found.dtype) + np.asarray(std, found.dtype) * found


def _check_rank(tensor: Tensor, ranks: tuple[int, ...], said: str) -> None:
    if tensor.ndim not in ranks:
        raise ValueError(f"Only tensors with {said} dimensions are supported")


def _is_empty(tensor: Tensor) -> bool:
    """Return whether a tensor has no elements, with PyTorch's warning."""
    if tensor.layout.size == 0:
        warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=4)
    return tensor.layout.size == 0


@_enter
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Tensor:
    """Fill with numbers that are uniform between a and b."""
    return _draw(tensor, generator, functools.partial(_draw_flat, jax.random.uniform), a, b)


@_enter
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    """Fill with normal numbers."""
    return _draw(tensor, generator, lambda *how: _scale(_draw_flat(jax.random.normal, *how), mean, std))


@_enter
def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, generator: Any = None
) -> Tensor:
    """Fill with normal numbers of which those outside of [a, b] are drawn again."""
    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn(
            "mean is more than 2 std from [a, b] in nn.init.trunc_normal_. "
            "The distribution of values may be incorrect.",
            stacklevel=2,
        )

    def draw(key: Any, shape: Any, dtype: Any) -> Any:
        wide = jnp.promote_types(dtype, jnp.float32)
        bounds = (a - mean) / std, (b - mean) / std
        found = _draw_flat(lambda key, *how: jax.random.truncated_normal(key, *bounds, *how), key, shape, wide)
        return _scale(found, mean, std).clip(a, b)

    return _draw(tensor, generator, draw)


@_enter
def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with one number."""
    return _fill(tensor, np.full(tuple(tensor.shape), val))


@_enter
def ones_(tensor: Tensor) -> Tensor:
    """Fill with ones."""
    return constant_(tensor, 1.0)


@_enter
def zeros_(tensor: Tensor) -> Tensor:
    """Fill with zeros."""
    return constant_(tensor, 0.0)


@_enter
def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with the identity."""
    _check_rank(tensor, (2,), "2")
    return _fill(tensor, jnp.eye(*tensor.shape))


@_enter
def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fill a convolution's weight so that it hands on as many channels as possible, in each group."""
    _check_rank(tensor, (3, 4, 5), "3, 4, or 5")
    if tensor.shape[0] % groups:
        raise ValueError("dim 0 must be divisible by groups")
    channels = tensor.shape[0] // groups
    found = np.zeros(tuple(tensor.shape), np.float32)
    middle = tuple(n // 2 for n in tensor.shape[2:])
    for group in range(groups):
        for channel in range(min(channels, tensor.shape[1])):
            found[(group * channels + channel, channel, *middle)] = 1
    return _fill(tensor, found)


@_enter
def calculate_gain(nonlinearity: str, param: Any = None) -> float:
    """Return the factor that keeps the variance through a nonlinearity."""
    spatial = {f"{name}{rank}d" for name in ("conv", "conv_transpose") for rank in (1, 2, 3)}
    if nonlinearity in spatial | {"linear", "sigmoid"}:
        return 1
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, (int, float)):
            raise ValueError(f"negative_slope {param} not a valid number")
        return math.sqrt(2.0 / (1 + slope**2))
    gains = {"tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 3.0 / 4}
    if nonlinearity not in gains:
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}")
    return gains[nonlinearity]


@_enter
def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    if tensor.ndim < 2:
        raise ValueError("Fan in and fan out can not be computed for tensor with fewer than 2 dimensions")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


@_enter
def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    modes = ["fan_in", "fan_out"]
    if mode.lower() not in modes:
        raise ValueError(f"Mode {mode.lower()} not supported, please use one of {modes}")
    return _calculate_fan_in_and_fan_out(tensor)[modes.index(mode.lower())]


@_enter
def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Fill with uniform numbers of variance 2 gain² / (fan_in + fan_out) (Glorot and Bengio 2010)."""
    bound = gain * math.sqrt(6.0 / sum(_calculate_fan_in_and_fan_out(tensor)))
    return uniform_(tensor, -bound, bound, generator)


@_enter
def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Fill with normal numbers of variance 2 gain² / (fan_in + fan_out) (Glorot and Bengio 2010)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_calculate_fan_in_and_fan_out(tensor))), generator)


def _find_kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    return calculate_gain(nonlinearity, a) / math.sqrt(_calculate_correct_fan(tensor, mode))


@_enter
def kaiming_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None
) -> Tensor:
    """Fill with uniform numbers of variance gain² / fan (He et al. 2015)."""
    if _is_empty(tensor):
        return tensor
    bound = math.sqrt(3.0) * _find_kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


@_enter
def kaiming_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None
) -> Tensor:
    """Fill with normal numbers of variance gain² / fan (He et al. 2015)."""
    if _is_empty(tensor):
        return tensor
    return normal_(tensor, 0.0, _find_kaiming_std(tensor, a, mode, nonlinearity), generator)


@_enter
def orthogonal_(tensor: Tensor, gain: float = 1, generator: Any = None) -> Tensor:
    """Fill with a matrix of orthogonal rows or columns, uniform among these; further axes are flattened."""
    if tensor.ndim < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    if tensor.layout.size == 0:
        return tensor

    def draw(key: Any, shape: Any, dtype: Any) -> Any:
        rows, columns = shape[0], math.prod(shape[1:])
        wide = jnp.promote_types(dtype, jnp.float32)
        q, r = jnp.linalg.qr(jax.random.normal(key, (max(rows, columns), min(rows, columns)), wide))
        q = q * jnp.sign(jnp.diagonal(r))
        return gain * (q.T if rows < columns else q).reshape(shape)

    return _draw(tensor, generator, draw)


@_enter
def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Any = None) -> Tensor:
    """Fill a matrix with normal numbers of which, in each column, a part is zero."""
    _check_rank(tensor, (2,), "2")

    def draw(key: Any, shape: Any, dtype: Any) -> Any:
        numbers, places = jax.random.split(key)
        order = jnp.argsort(jax.random.uniform(places, shape), axis=0)
        zero = jnp.argsort(order, axis=0) < math.ceil(sparsity * shape[0])
        return jnp.where(zero, 0, std * jax.random.normal(numbers, shape, dtype))

    return _draw(tensor, generator, draw)


_NO_GRAD = {"uniform": uniform_, "normal": normal_, "trunc_normal": trunc_normal_, "fill": constant_, "zero": zeros_}
KNOWN |= {f"torch.nn.init._no_grad_{name}_": function for name, function in _NO_GRAD.items()}


def _deprecate(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function under its old name, without the underscore."""
    new = function.__name__
    old = new.removesuffix("_")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        message = f"`nn.init.{old}` is now deprecated in favor of `nn.init.{new}`."
        warnings.warn(message, FutureWarning, stacklevel=2)
        return function(*args, **kwargs)

    return call


_OLD = (uniform_, normal_, constant_, eye_, dirac_, xavier_uniform_, xavier_normal_)
for _function in (*_OLD, kaiming_uniform_, kaiming_normal_, orthogonal_, sparse_):
    KNOWN[f"torch.nn.init.{_function.__name__[:-1]}"] = _deprecate(_function)
