"""A network of ternary convolutions and spikes, PyTorch source: train.py runs it as it is on JAX.

The weights are rounded with a learned step size (Esser et al., 2019, https://arxiv.org/abs/1902.08153); a spike takes
the derivative of a fast sigmoid (Neftci et al., 2019, https://arxiv.org/abs/1901.09948).
"""

import math

import torch
from torch import nn


class Quantise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, step, levels):
        scaled = x / step
        ctx.save_for_backward(scaled, step)
        ctx.levels = levels
        return torch.clamp(torch.round(scaled), -levels, levels) * step

    @staticmethod
    def backward(ctx, grad_output):
        scaled, step = ctx.saved_tensors
        inside = scaled.abs() <= ctx.levels
        slope = torch.where(inside, torch.round(scaled) - scaled, ctx.levels * torch.sign(scaled))
        grad_step = (grad_output * slope).sum().view_as(step) / math.sqrt(scaled.numel() * ctx.levels)
        return grad_output * inside, grad_step, None


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, potential, steepness):
        ctx.save_for_backward(potential)
        ctx.steepness = steepness
        return (potential > 0).to(potential.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (potential,) = ctx.saved_tensors
        return grad_output / (1 + ctx.steepness * potential.abs()) ** 2, None


class TernaryConv2d(nn.Conv2d):
    def __init__(self, *args, levels=1, **kwargs):
        super().__init__(*args, **kwargs)
        self.levels = levels
        self.step = nn.Parameter(2 * self.weight.detach().abs().mean() / math.sqrt(levels))

    def forward(self, x):
        return self._conv_forward(x, Quantise.apply(self.weight, self.step, self.levels), self.bias)


class Spiking(nn.Module):
    def __init__(self, steepness=2.0):
        super().__init__()
        self.steepness = steepness

    def forward(self, x):
        return Spike.apply(x, self.steepness)


class Net(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        self.body = nn.Sequential(
            TernaryConv2d(1, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            Spiking(),
            TernaryConv2d(channels, channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            Spiking(),
            nn.Flatten(),
        )
        self.head = nn.Linear(channels * 16, 10)

    def forward(self, images):
        return self.head(self.body(images))
