"""Models with custom Functions, in PyTorch source: `python -m benchmarks.training` trains them here and in PyTorch.

Each function of `MODELS` returns a module whose forward is the loss of a batch; `draw_batch` draws one.
"""

import itertools
import math

import torch
from torch import nn
from torch.nn import functional as F


class RMSNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        rstd = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, rstd)
        return x * rstd * weight

    @staticmethod
    def backward(ctx, grad_output):
        x, weight, rstd = ctx.saved_tensors
        normal = x * rstd
        g = grad_output * weight
        grad_x = rstd * (g - normal * (g * normal).mean(-1, keepdim=True))
        grad_weight = (grad_output * normal).reshape(-1, x.shape[-1]).sum(0)
        return grad_x, grad_weight, None


class SwiGLUFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return gate * torch.sigmoid(gate) * up

    @staticmethod
    def backward(ctx, grad_output):
        gate, up = ctx.saved_tensors
        s = torch.sigmoid(gate)
        return grad_output * up * s * (1 + gate * (1 - s)), grad_output * gate * s


class CrossEntropyFunction(torch.autograd.Function):
    """Computes the gradient of the logits in forward, as fused kernels do."""

    @staticmethod
    def forward(ctx, logits, targets):
        probabilities = torch.softmax(logits, -1)
        picked = probabilities.gather(1, targets.unsqueeze(1)).squeeze(1)
        gradient = probabilities.clone()
        gradient[torch.arange(targets.shape[0]), targets] -= 1
        ctx.save_for_backward(gradient / targets.shape[0])
        return -picked.log().mean()

    @staticmethod
    def backward(ctx, grad_output):
        (gradient,) = ctx.saved_tensors
        return gradient * grad_output, None


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return RMSNormFunction.apply(x, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(x).split(c, dim=2))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        mask = torch.tril(torch.ones(t, t, dtype=torch.bool))
        weights = torch.softmax(scores.masked_fill(~mask, -1e9), -1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.attention = RMSNorm(width), Attention(width, heads)
        self.norm2 = RMSNorm(width)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(SwiGLUFunction.apply(self.gate(y), self.up(y)))


class GPT(nn.Module):
    def __init__(self, layers, width=64, heads=4, tokens=64, length=32):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)

    def forward(self, tokens, targets):
        x = self.call_blocks(self.embedding(tokens) + self.position[: tokens.shape[1]])
        logits = self.head(self.norm(x))
        return CrossEntropyFunction.apply(logits.view(-1, logits.shape[-1]), targets.reshape(-1))

    def call_blocks(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class MishFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.tanh(F.softplus(x))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        t = torch.tanh(F.softplus(x))
        return grad_output * (t + x * torch.sigmoid(x) * (1 - t * t))


class Mish(nn.Module):
    def forward(self, x):
        return MishFunction.apply(x)


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.act = Mish()
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.act(self.bn1(self.conv1(x)))
        return self.act(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self, width=8, classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), Mish())
        layers, inputs = [], width
        for i, outputs in enumerate((width, 2 * width, 4 * width, 8 * width)):
            layers += [BasicBlock(inputs, outputs, 1 if i == 0 else 2), BasicBlock(outputs, outputs, 1)]
            inputs = outputs
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images, labels):
        features = self.layers(self.stem(images)).mean((2, 3))
        return F.cross_entropy(self.head(features), labels)


class SpikeFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, potential):
        ctx.save_for_backward(potential)
        return (potential > 0).to(potential.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (potential,) = ctx.saved_tensors
        return grad_output / (1 + 10 * potential.abs()) ** 2


class SpikingNet(nn.Module):
    """Two layers of leaky integrate-and-fire neurons over time, the first axis of the inputs."""

    def __init__(self, inputs=32, width=64, classes=10):
        super().__init__()
        self.first, self.second = nn.Linear(inputs, width), nn.Linear(width, width)
        self.head = nn.Linear(width, classes)
        self.decay = nn.Parameter(torch.full((width,), 2.0))

    def forward(self, inputs, labels):
        v1 = v2 = rate = torch.zeros(inputs.shape[1], self.decay.shape[0], dtype=inputs.dtype)
        decay = torch.sigmoid(self.decay)
        for now in inputs:
            v1 = decay * v1 + self.first(now)
            s1 = SpikeFunction.apply(v1 - 1)
            v1 = v1 - s1
            v2 = decay * v2 + self.second(s1)
            s2 = SpikeFunction.apply(v2 - 1)
            v2, rate = v2 - s2, rate + s2
        return F.cross_entropy(self.head(rate / inputs.shape[0]), labels)


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, quantised):
        return quantised.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


class VQVAE(nn.Module):
    def __init__(self, width=16, codes=32):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 4, 2, 1)
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(width, width, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1)
        )
        self.codes = nn.Parameter(torch.randn(codes, width))
        self.register_buffer("usage", torch.zeros(codes))

    def forward(self, images):
        z = self.encoder(images)
        flat = z.permute(0, 2, 3, 1).reshape(-1, z.shape[1])
        distances = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.codes.t() + self.codes.pow(2).sum(1)
        nearest = distances.argmin(1)
        self.usage.mul_(0.99).add_(0.01 * torch.bincount(nearest, minlength=self.codes.shape[0]))
        quantised = self.codes[nearest]
        commitment = F.mse_loss(flat, quantised.detach()) + F.mse_loss(quantised, flat.detach())
        passed = StraightThrough.apply(flat, quantised.detach())
        b, c, h, w = z.shape
        decoded = self.decoder(passed.view(b, h, w, c).permute(0, 3, 1, 2))
        return F.mse_loss(decoded, images) + 0.25 * commitment


def solve(step, start, most=60):
    z = start
    for _ in range(most):
        z = step(z)
    return z


class EquilibriumFunction(torch.autograd.Function):
    """z = tanh(z w + x), with its gradient by the implicit function theorem; both by iteration."""

    @staticmethod
    def forward(ctx, weight, x):
        z = solve(lambda z: torch.tanh(z @ weight + x), torch.zeros_like(x))
        ctx.save_for_backward(weight, z)
        return z

    @staticmethod
    def backward(ctx, grad_output):
        weight, z = ctx.saved_tensors
        slope = 1 - z * z
        u = solve(lambda u: grad_output + (u * slope) @ weight.t(), grad_output)
        return z.t() @ (u * slope), u * slope


class Equilibrium(nn.Module):
    def __init__(self, inputs=16, width=32, classes=10, by_hook=False):
        super().__init__()
        self.inputs, self.head = nn.Linear(inputs, width), nn.Linear(width, classes)
        self.weight = nn.Parameter(0.3 * torch.randn(width, width) / width**0.5)
        self.by_hook = by_hook

    def find(self, x):
        if not self.by_hook:
            return EquilibriumFunction.apply(self.weight, x)
        with torch.no_grad():
            z = solve(lambda z: torch.tanh(z @ self.weight + x), torch.zeros_like(x))
        z = torch.tanh(z @ self.weight + x)
        if torch.is_grad_enabled():
            start = z.detach().requires_grad_()
            again = torch.tanh(start @ self.weight + x)

            def hook(gradient):
                def step(u):
                    return torch.autograd.grad(again, start, u, retain_graph=True)[0] + gradient

                return solve(step, gradient)

            z.register_hook(hook)
        return z

    def forward(self, inputs, labels):
        return F.cross_entropy(self.head(self.find(self.inputs(inputs))), labels)


class Convolutions(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), Mish())


class UNet(nn.Module):
    def __init__(self, width=8, depth=2):
        super().__init__()
        sizes = [width * 2**i for i in range(depth + 1)]
        self.first = Convolutions(3, width)
        self.down = nn.ModuleList([Convolutions(a, b) for a, b in itertools.pairwise(sizes)])
        self.up = nn.ModuleList([Convolutions(a + b, b) for a, b in itertools.pairwise(sizes[::-1])])
        self.last = nn.Conv2d(width, 3, 1)

    def forward(self, images, targets):
        kept = [self.first(images)]
        for down in self.down:
            kept.append(down(F.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for up in self.up:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = up(torch.cat([x, kept.pop()], 1))
        return F.mse_loss(self.last(x), targets)


MODELS = {
    "GPT, 4 layers": lambda: GPT(4),
    "GPT, 12 layers": lambda: GPT(12),
    "ResNet-18": ResNet18,
    "spiking net, 50 steps": SpikingNet,
    "VQ-VAE": VQVAE,
    "implicit layer, Function": Equilibrium,
    "implicit layer, hook": lambda: Equilibrium(by_hook=True),
    "U-Net": UNet,
}


def draw_batch(name, rng):
    """Return the arguments of a model's forward as NumPy arrays."""

    def draw(*shape):
        return rng.normal(size=shape)

    if name.startswith("GPT"):
        tokens = rng.integers(0, 64, (4, 33))
        return tokens[:, :-1], tokens[:, 1:]
    if name == "ResNet-18":
        return draw(16, 3, 16, 16), rng.integers(0, 10, 16)
    if name == "spiking net, 50 steps":
        return 2 * draw(50, 16, 32), rng.integers(0, 10, 16)
    if name == "VQ-VAE":
        return (draw(8, 3, 16, 16),)
    if name == "U-Net":
        return draw(4, 3, 16, 16), draw(4, 3, 16, 16)
    return draw(32, 16), rng.integers(0, 10, 32)
