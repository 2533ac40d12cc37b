"""torch.nn.CrossMapLRN2d, in the numbers of PyTorch's own loop."""

from __future__ import annotations

from typing import Any

import numpy as np

from fnjax.torch._autograd.function.function import Function
from fnjax.torch._nn.layers.lines import Layer, constructor, enter_layer, torch
from fnjax.torch.memory.tensor import Tensor


def _list_windows(channels: int, size: int) -> np.ndarray[Any, Any]:
    """Return for each channel the weight of each in its sum: PyTorch never removes the first one."""
    reach = int((size - 1) / 2 + 1)
    rows = np.zeros((channels, channels), np.float32)
    rows[0, :reach] = 1
    for c in range(1, channels):
        rows[c] = rows[c - 1]
        if c < channels - reach + 1:
            rows[c, c + reach - 1] += 1
        if c > reach:
            rows[c, c - reach] -= 1
    return rows


def _list_windows_back(channels: int, size: int) -> np.ndarray[Any, Any]:
    first = int(size - (size - 1) / 2)
    at = np.arange(channels)[None] + first - np.arange(channels)[:, None]
    return ((at >= 0) & (at < size)).astype(np.float32)


def _mix(rows: np.ndarray[Any, Any], x: Any) -> Any:
    return torch.einsum("cd,bdhw->bchw", torch.tensor(rows, dtype=x.dtype), x)


class _Normalize(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, size: int, alpha: float, beta: float, k: float) -> Tensor:
        ctx.size, ctx.alpha, ctx.beta = size, alpha, beta
        scale = _mix(_list_windows(x.size(1), size), x * x) * (alpha / size) + k
        output = x * scale ** (-beta)
        ctx.save_for_backward(x, scale, output)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        x, scale, output = ctx.saved_tensors
        ratio = _mix(_list_windows_back(x.size(1), ctx.size), grad_output * output / scale)
        factor = 2 * ctx.alpha * ctx.beta / ctx.size
        return grad_output * scale ** (-ctx.beta) - factor * x * ratio, None, None, None, None


@enter_layer("normalization")
@constructor("size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1", shown=".size alpha= beta= k=")
class CrossMapLRN2d(Layer):
    """torch.nn.CrossMapLRN2d."""

    def forward(self, input: Any) -> Any:
        """Return the input divided by a power of the sums of squares over channels.

        Raises:
            ValueError: the input does not have four axes.
        """
        if input.dim() != 4:
            raise ValueError(f"CrossMapLRN2d: Expected input to be 4D, got {input.dim()}D instead.")
        return _Normalize.apply(input, self.size, self.alpha, self.beta, self.k)
