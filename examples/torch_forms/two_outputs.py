"""The PyTorch form."""

import torch

was_none = []  # for each run of backward: whether the gradient of alpha was None


class Render(torch.autograd.Function):
    @staticmethod
    def forward(ctx, color, density):
        alpha = 1 - torch.exp(-density)
        ctx.save_for_backward(color, alpha)
        return alpha * color, alpha

    @staticmethod
    def backward(ctx, grad_image, grad_alpha):
        was_none.append(grad_alpha is None)
        color, alpha = ctx.saved_tensors
        return grad_image * alpha, (grad_image * color + grad_alpha) * (1 - alpha)


class RenderLazily(Render):
    @staticmethod
    def forward(ctx, color, density):
        ctx.set_materialize_grads(False)
        return Render.forward(ctx, color, density)

    @staticmethod
    def backward(ctx, grad_image, grad_alpha):
        was_none.append(grad_alpha is None)
        color, alpha = ctx.saved_tensors
        grad_color, through = None, 0 if grad_alpha is None else grad_alpha
        if grad_image is not None:
            grad_color, through = grad_image * alpha, through + grad_image * color
        return grad_color, through * (1 - alpha)
