"""Differentiable ranks in PyTorch's form; examples/gallery/soft_rank.py is its port."""

import torch


def isotonic(s):
    """Project s on decreasing sequences, by pooling increasing neighbours."""
    blocks = []
    for value in s.tolist():
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] <= blocks[-1][0]:
            (a, n), (b, m) = blocks[-2:]
            blocks[-2:] = [((a * n + b * m) / (n + m), n + m)]
    return torch.tensor([value for value, n in blocks for _ in range(n)], dtype=s.dtype)


class SoftRank(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, regularisation=1.0):
        z = values / regularisation
        order = torch.argsort(z, descending=True)
        blocks = isotonic(z[order] - torch.arange(len(z), 0, -1, dtype=z.dtype))
        back = blocks[torch.argsort(order)]
        ctx.save_for_backward(back)
        ctx.regularisation = regularisation
        return z - back

    @staticmethod
    def backward(ctx, grad_output):
        (blocks,) = ctx.saved_tensors
        same = ((blocks[:, None] - blocks[None, :]).abs() < 1e-5).to(grad_output.dtype)
        return (grad_output - same @ grad_output / same.sum(1)) / ctx.regularisation, None
