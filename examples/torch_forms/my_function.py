"""The PyTorch form in Python, where `saved_data` is any attribute; in C++ it is a dictionary that ctx has."""

import torch


class MyFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, k, b):
        ctx.saved_data = {"k": k}
        ctx.save_for_backward(a, b)
        return a + k * b + a * b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        grad_a = grad_output * (1 + b) if ctx.needs_input_grad[0] else None
        grad_b = grad_output * (ctx.saved_data["k"] + a) if ctx.needs_input_grad[2] else None
        return grad_a, None, grad_b


class AddInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, k, b):
        ctx.saved_data = {"k": k}
        ctx.mark_dirty(a)
        return a.add_(b, alpha=k)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None, grad_output * ctx.saved_data["k"]


def total(a, b):
    return AddInPlace.apply(MyFunction.apply(a, 2, b), 3, b).sum()
