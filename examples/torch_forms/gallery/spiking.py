"""A spike with a surrogate gradient in PyTorch's form; examples/gallery/spiking.py is its port."""

import torch


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, potential, steepness=10.0):
        ctx.save_for_backward(potential)
        ctx.steepness = steepness
        return (potential > 0).to(potential.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (potential,) = ctx.saved_tensors
        return grad_output / (1 + ctx.steepness * potential.abs()) ** 2, None
