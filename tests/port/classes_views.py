"""Functions that write to views: flat ones, those of splits, and rows of a loop."""

CASES = {
    "GetSubnet": (
        "randn(4, 6), 0.4",
        """
class GetSubnet(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, k):
        # Get the supermask by sorting the scores and using the top k%
        out = scores.clone()
        _, idx = scores.flatten().sort()
        j = int((1 - k) * scores.numel())

        # flat_out and out access the same memory.
        flat_out = out.flatten()
        flat_out[idx[:j]] = 0
        flat_out[idx[j:]] = 1

        return out

    @staticmethod
    def backward(ctx, g):
        # send the gradient g straight-through on the backward pass.
        return g, None
""",
    ),
    "SubnetView": (
        "randn(4, 6), 0.4",
        """
class SubnetView(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, k):
        out = torch.zeros_like(scores)
        _, idx = scores.abs().reshape(-1).sort(descending=True)
        j = int(k * scores.numel())
        flat = out.reshape(-1)
        flat[idx[:j]] = 1.0
        return out

    @staticmethod
    def backward(ctx, g):
        return g, None
""",
    ),
    "ThreeInterp": (
        "randn(2, 3, 5), randint(0, 5, (2, 4, 3)), rand(2, 4, 3)",
        """
class ThreeInterp(Function):
    @staticmethod
    def forward(ctx, features, idx, weight):
        B, c, m = features.size()
        n = idx.size(1)
        ctx.three_interpolate_for_backward = (idx, weight, m)
        flat = idx.reshape(B, 1, -1).expand(-1, c, -1)
        g = torch.gather(features, 2, flat).view(B, c, n, 3)
        return (g * weight.unsqueeze(1)).sum(-1)

    @staticmethod
    def backward(ctx, grad_out):
        idx, weight, m = ctx.three_interpolate_for_backward
        B, c, n = grad_out.size()
        grad_features = torch.zeros(B, c, m).to(grad_out)
        for b in range(B):
            src = (grad_out[b].unsqueeze(-1) * weight[b].unsqueeze(0)).reshape(c, -1)
            grad_features[b].index_add_(1, idx[b].reshape(-1), src)
        return grad_features, None, None
""",
    ),
    "ViewFlat": (
        "randn(4, 3)",
        """
class ViewFlat(Function):
    @staticmethod
    def forward(ctx, x):
        b = x.contiguous()
        flat = b.view(-1)
        mask = torch.zeros_like(flat)
        mask[flat.abs().argmax()] = 1
        ctx.save_for_backward(mask)
        return (flat * mask).view_as(x)

    @staticmethod
    def backward(ctx, g):
        mask, = ctx.saved_tensors
        g = g.contiguous()
        return (g.view(-1) * mask).view(g.shape)
""",
    ),
    "ChunkWrite": (
        "randn(4, 6)",
        """
class ChunkWrite(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        a, b = y.chunk(2, dim=-1)
        a.mul_(2)
        b.add_(a)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        gx = torch.empty_like(x)
        g1, g2 = g.chunk(2, dim=-1)
        o1, o2 = gx.chunk(2, dim=-1)
        o1.copy_(2 * g1 + 2 * g2)
        o2.copy_(g2)
        return gx
""",
    ),
    "UnbindWrite": (
        "randn(2, 5)",
        """
class UnbindWrite(Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        re, im = out.unbind(0)
        re.copy_(x[0] * 2)
        im.copy_(x[1] - x[0])
        return out

    @staticmethod
    def backward(ctx, g):
        return torch.stack([2 * g[0] - g[1], g[1]])
""",
    ),
}
