"""Megatron's two operators of tensor parallelism in PyTorch: what `fnjax port` is given here."""

import torch
import torch.distributed as dist


class CopyToRegion(torch.autograd.Function):
    """f: the identity; the gradient is summed over the group."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        grad_output = grad_output.contiguous()
        dist.all_reduce(grad_output, group=ctx.group)
        return grad_output, None


class ReduceFromRegion(torch.autograd.Function):
    """g: the sum over the group; the gradient is handed on."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.contiguous()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None
