"""The PyTorch form, with the training loop."""

import torch


class KillHead(torch.autograd.Function):
    @staticmethod
    def forward(ctx, heads, killed):
        ctx.killed = killed
        return heads.clone()

    @staticmethod
    def backward(ctx, grad_output):
        grad_heads = grad_output.clone()
        if ctx.killed is not None:
            grad_heads[:, ctx.killed] = 0
        return grad_heads, None


def loss(params, x, y, killed):
    heads = x @ params["layer"] @ params["heads"]
    return torch.mean((KillHead.apply(heads, killed) - y) ** 2)


def train(params, x, y, killed, steps=10, rate=0.2):
    losses = []
    optimizer = torch.optim.SGD(params.values(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(params, x, y, killed)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return params, losses
