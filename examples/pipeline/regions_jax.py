"""Megatron's two operators of tensor parallelism in PyTorch: what `fnjax port` is given here."""

import fnjax
from fnjax import collectives


# Of the mesh: set it before the first call. It is read while JAX traces; a change after that has no effect.
AXIS_NAME = None


class CopyToRegion(fnjax.Function):
    """f: the identity; the gradient is summed over the group."""

    device_copies = True

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.reshape(x.shape)

    @staticmethod
    def backward(ctx, grad_output):
        grad_output = collectives.all_reduce(grad_output, ctx.group or AXIS_NAME)
        return grad_output, None


class ReduceFromRegion(fnjax.Function):
    """g: the sum over the group; the gradient is handed on."""

    device_copies = True

    @staticmethod
    def forward(ctx, x, group):
        x = collectives.all_reduce(x, group or AXIS_NAME)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None
