"""Megatron's two operators of tensor parallelism in PyTorch: what `fnjax port` is given here."""

from jax import lax

import fnjax


class CopyToRegion(fnjax.Function):
    """f: the identity; the gradient is summed over the group."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return lax.pcast(x, group, to="varying")

    @staticmethod
    def backward(ctx, grad_output):
        return lax.psum(grad_output, ctx.group), None


class ReduceFromRegion(fnjax.Function):
    """g: the sum over the group; the gradient is handed on."""

    @staticmethod
    def forward(ctx, x, group):
        return lax.psum(x, group)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None
