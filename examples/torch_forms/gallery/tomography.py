"""The projections of tomography in PyTorch's form; examples/gallery/tomography.py is its port."""

import torch

SIZE = 32


class Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx, image, matrix):
        ctx.matrix = matrix
        return multiply(matrix, image)

    @staticmethod
    def backward(ctx, grad_output):
        return multiply(ctx.matrix.T, grad_output), None


def multiply(matrix, array):
    return torch.from_numpy(matrix @ array.detach().numpy().ravel()).reshape(-1, SIZE).to(array.dtype)
