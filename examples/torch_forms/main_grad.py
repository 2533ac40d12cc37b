"""The PyTorch form, as Megatron's layers have it: the gradient is added to an attribute of the weight."""

import torch


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        ctx.main_grad = weight.main_grad
        return x @ weight.T

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        ctx.main_grad.add_(grad_output.T @ x)
        return grad_output @ weight, None


def loss(weights, x, y):
    h = torch.tanh(Linear.apply(x, weights[0]))
    return torch.sum((Linear.apply(h, weights[1]) - y) ** 2)


def accumulate(weights, x, y):
    for weight in weights:
        weight.main_grad = torch.zeros_like(weight)
    for batch in zip(x, y, strict=True):
        loss(weights, *batch).backward()
    return [weight.main_grad for weight in weights]
