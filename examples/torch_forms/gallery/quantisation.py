"""Quantisation with a learned step size in PyTorch's form; examples/gallery/quantisation.py is its port."""

import torch


class Quantise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, step, bits):
        ctx.save_for_backward(weight, step)
        ctx.low, ctx.high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        return torch.clamp(torch.round(weight / step), ctx.low, ctx.high) * step

    @staticmethod
    def backward(ctx, grad_output):
        weight, step = ctx.saved_tensors
        ratio = weight / step
        inside = (ratio >= ctx.low) & (ratio <= ctx.high)
        by_step = torch.where(inside, torch.round(ratio) - ratio, torch.clamp(ratio, ctx.low, ctx.high))
        scale = (weight.numel() * ctx.high) ** -0.5
        return torch.where(inside, grad_output, 0), scale * (grad_output * by_step).sum(), None
