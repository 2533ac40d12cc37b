"""The PyTorch form: torch.func.grad gives the partial derivatives, in forward and in backward."""

import torch


class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx, f, a, start):
        x, step = start, torch.full_like(start, torch.inf)
        while step.abs() > 1e-6:
            step = f(x, a) / torch.func.grad(f)(x, a)
            x = x - step
        ctx.f = f
        ctx.save_for_backward(x, a)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        x, a = ctx.saved_tensors
        f_x, f_a = torch.func.grad(ctx.f, argnums=(0, 1))(x, a)
        return None, -grad_output * f_a / f_x, None


def kepler(x, a):
    return x - a[1] * torch.sin(x) - a[0]


def anomaly(a):
    return Root.apply(kepler, a, torch.full_like(a[0], 1.0))
