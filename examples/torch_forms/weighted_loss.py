"""The PyTorch form: here picking by label is often written as a Function too."""

import torch


class LogCosh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, target, weight):  # noqa: A002 - PyTorch's word
        ctx.save_for_backward(input, target, weight)
        size = torch.abs(input - target)
        return torch.mean(weight * (size + torch.log1p(torch.exp(-2 * size)) - torch.log(size.new_tensor(2.0))))

    @staticmethod
    def backward(ctx, grad_output):
        input, target, weight = ctx.saved_tensors  # noqa: A001
        return grad_output * weight * torch.tanh(input - target) / input.numel(), None, None


class PickLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, log_p, labels):
        ctx.save_for_backward(log_p, labels)
        return -log_p.gather(1, labels[:, None]).mean()

    @staticmethod
    def backward(ctx, grad_output):
        log_p, labels = ctx.saved_tensors
        grad_log_p = torch.zeros_like(log_p)
        grad_log_p.scatter_(1, labels[:, None], -1.0 / len(labels))
        return grad_output * grad_log_p, None


def total_loss(scores, target, weight, labels):
    picked = PickLoss.apply(torch.log_softmax(scores, 1), labels)
    return 0.7 * LogCosh.apply(scores, target, weight) + 0.3 * picked
