"""The models of `models` in PyTorch."""

import torch

from benchmarks.models import SOLVER_STEPS


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad_output * (s * (1 + x * (1 - s)))


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, axis):
        centred = x - x.mean(axis, keepdim=True)
        rstd = torch.rsqrt((centred**2).mean(axis, keepdim=True) + 1e-5)
        normal = centred * rstd
        ctx.save_for_backward(normal, rstd, weight)
        ctx.axis = axis
        return normal * weight + bias

    @staticmethod
    def backward(ctx, grad_output):
        normal, rstd, weight = ctx.saved_tensors
        g = grad_output * weight
        along = normal * (g * normal).mean(ctx.axis, keepdim=True)
        grad_x = rstd * (g - g.mean(ctx.axis, keepdim=True) - along)
        return grad_x, (grad_output * normal).sum(0), grad_output.sum(0), None


class FakeQuantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(x.abs() <= 1)
        return torch.round(torch.clamp(x, -1, 1) * levels) / levels

    @staticmethod
    def backward(ctx, grad_output):
        (inside,) = ctx.saved_tensors
        return grad_output * inside, None


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (v,) = ctx.saved_tensors
        return grad_output / (1 + 10 * v.abs()) ** 2


class Equilibrium(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, x):
        z = torch.zeros_like(x)
        for _ in range(SOLVER_STEPS):
            z = torch.tanh(z @ w + x)
        ctx.save_for_backward(w, z)
        return z

    @staticmethod
    def backward(ctx, grad_output):
        w, z = ctx.saved_tensors
        slope, u = 1 - z**2, grad_output
        for _ in range(SOLVER_STEPS):
            u = grad_output + (u * slope) @ w.T
        return z.T @ (u * slope), u * slope


def mlp(between):
    def loss(parameters, x, y):
        weights = parameters["w"]
        for i, w in enumerate(weights[:-1]):
            x = between(parameters, i, x @ w)
        return ((x @ weights[-1] - y) ** 2).mean()

    return loss


def normed(axis):
    return mlp(lambda p, i, x: torch.relu(Norm.apply(x, p["scale"][i], p["shift"][i], axis)))


def quantized(parameters, x, y):
    weights = [FakeQuantize.apply(w, 7) for w in parameters["w"]]
    for w in weights[:-1]:
        x = FakeQuantize.apply(torch.relu(x @ w), 127)
    return ((x @ weights[-1] - y) ** 2).mean()


def spiking(parameters, x, y):
    into, out = parameters["w"]
    v = rate = torch.zeros(x.shape[1], into.shape[1], device=x.device)
    for now in x:
        v = 0.9 * v + now @ into
        spikes = Spike.apply(v - 1)
        v, rate = v - spikes, rate + spikes
    return ((rate @ out / x.shape[0] - y) ** 2).mean()


def critic(parameters, real, fake):
    def score(x):
        for w in parameters["w"][:-1]:
            x = Swish.apply(x @ w)
        return (x @ parameters["w"][-1]).sum()

    between = ((real + fake) / 2).requires_grad_()
    (slope,) = torch.autograd.grad(score(between), between, create_graph=True)
    penalty = ((torch.sqrt((slope**2).sum(1) + 1e-12) - 1) ** 2).mean()
    return (score(fake) - score(real)) / len(real) + 10 * penalty


def equilibrium(parameters, x, y):
    z = Equilibrium.apply(parameters["w"][1], x @ parameters["w"][0])
    return ((z @ parameters["w"][2] - y) ** 2).mean()


LOSSES = {
    "swish": mlp(lambda p, i, x: Swish.apply(x)),
    "batchnorm": normed(0),
    "layernorm": normed(1),
    "quantized": quantized,
    "spiking": spiking,
    "critic": critic,
    "equilibrium": equilibrium,
}
