"""Sparsemax in PyTorch's form; examples/gallery/sparsemax.py is its port."""

import torch


class Sparsemax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores):
        ranked = scores.sort(dim=-1, descending=True).values
        k = torch.arange(1, scores.shape[-1] + 1)
        sums = ranked.cumsum(-1) - 1
        size = (k * ranked > sums).sum(-1, keepdim=True)
        threshold = sums.gather(-1, size - 1) / size
        output = (scores - threshold).clamp(min=0)
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        (output,) = ctx.saved_tensors
        support = output > 0
        inside = torch.where(support, grad_output, 0)
        return torch.where(support, inside - inside.sum(-1, keepdim=True) / support.sum(-1, keepdim=True), 0)
