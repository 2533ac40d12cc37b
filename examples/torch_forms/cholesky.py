"""The PyTorch form: the same formula with torch.linalg."""

import torch


class Cholesky(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        factor = torch.linalg.cholesky(a)
        ctx.save_for_backward(factor)
        return factor

    @staticmethod
    def backward(ctx, grad_output):
        (factor,) = ctx.saved_tensors
        inner = torch.tril(factor.T @ grad_output)
        inner = inner - 0.5 * torch.diag(torch.diag(inner))
        half = torch.linalg.solve_triangular(factor.T, inner.T, upper=True)
        whole = torch.linalg.solve_triangular(factor.T, half.T, upper=True)
        return 0.5 * (whole + whole.T)


def log_density(a, y, cholesky=Cholesky.apply):
    factor = cholesky(a)
    white = torch.linalg.solve_triangular(factor, y[:, None], upper=False)[:, 0]
    return -0.5 * white @ white - torch.log(torch.diag(factor)).sum()
