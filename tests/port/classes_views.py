"""Functions that write to views: flat ones, those of splits, and rows of a loop."""

CASES = {
    "GetSubnet": (  # flatten that copies or not, and a write to the result
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
    "ThreeInterp": (  # a gather with expanded indices, a tuple on ctx
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
    "ViewFlat": (  # views of what contiguous() gives
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
    "PieceWrites": (  # pieces along an axis, and one write for a chain of calls
        "randn(5, 6), 2",
        """
class PieceWrites(Function):
    @staticmethod
    def forward(ctx, x, n: int):
        y = x.clone()
        a, b, c = y.chunk(3, dim=-1)
        a.mul_(2)
        b.add_(1).mul_(3).neg_()
        c.sub_(b)
        d, e = y.split([1, 5], dim=1)
        e.add_(x[:, 1:]).sub_(3)
        d.copy_(e[:, :1])
        y.narrow(1, 4, 2).mul_(2)
        y.select(-1, -1).add_(1).mul_(y[0, 0])
        for i, r in enumerate(y.unbind(1)):
            r.add_(i).mul_(2)
        for k, r in enumerate(y.split(n)):
            r.add_(k).div_(2)
        p, q = torch.split(y, (n, 5 - n), 0)
        q.mul_(2)
        for r, s in zip(y.split(4), x.split(4)):
            r.mul_(2.0).add_(s)
        return y.mul_(2).sub_(1)

    @staticmethod
    def backward(ctx, g):
        return g * g, None
""",
    ),
    "EntriesCopied": (  # into other dtypes and larger shapes
        "randn(4, 4), randn(4, 4)",
        """
class EntriesCopied(Function):
    @staticmethod
    def forward(ctx, x, w):
        y = torch.empty_like(x)
        y.copy_(x)
        z = x.new_empty(2, x.shape[0])
        z.copy_(x[:, 0])
        z[0].copy_(w[0])
        k = torch.zeros(3, dtype=torch.long)
        k[0].copy_(3 * x[0, 0])
        for i in range(2):
            y[i].copy_(w[i])
            y[i, 1:].copy_(x[i, 0]).mul_(2)
        y[[0, 1]].copy_(w[:2])
        y.select(0, 1).copy_(x[0])
        v = y[:, 0]
        v.copy_(x[:, 1])
        h = torch.ones_like(y, dtype=torch.float32)
        h[0].copy_(x[0])
        return y + z.sum() + k.sum() + h.to(y.dtype)

    @staticmethod
    def backward(ctx, g):
        gx = torch.zeros_like(g)
        gx[1:].copy_(g[1:])
        return gx, g
""",
    ),
    "UnbindWrite": (  # writes through the parts of unbind
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
    "RowLoop": (  # a loop over rows that writes to them
        "rand(4, 3)",
        """
class RowLoop(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.clone()
        for row in a:
            row /= row.sum()
        ctx.save_for_backward(x, a)
        return a

    @staticmethod
    def backward(ctx, g):
        x, a = ctx.saved_tensors
        return (g - (g * a).sum(1, keepdim=True)) / x.sum(1, keepdim=True)
""",
    ),
    "NumbersApart": (  # a number, a slice and an array of indices; whole numbers beside a scalar
        "randn(3, 4, 5), array([0, 2, 3])",
        """
class NumbersApart(Function):
    @staticmethod
    def forward(ctx, x, idx):
        idx = idx.long()
        a = x[0, :, idx] + x[1, ..., idx]
        b = x[:, idx, 0]
        y = x.clone()
        for i in range(2):
            y[i, :, idx] = x[0, :, idx] * 2
            y[i, :, idx] += 1
        y[0, :, [0, 1]] = 3
        q = x.to(torch.int8) * x.sum() + (x > 0) * x.max()
        return y * a.sum() * b.sum() + x[0, 1, idx].sum() + x[0, idx, :].sum() + q

    @staticmethod
    def backward(ctx, g):
        return g, None
""",
    ),
    "OneEntryOfTwoAxes": (  # views of different axes, which meet, and slices that do not
        "randn(2, 3, 5)",
        """
class OneEntryOfTwoAxes(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.zeros_like(x)
        last = y[..., 0]
        second = y[:, 1]
        last.add_(x[..., 0])
        n = x.size(2) // 2
        left, right = y[..., :n], y[..., n:]
        left += 1
        right.mul_(2)
        left *= 3
        return y * second.sum() + left.sum() * right.sum()

    @staticmethod
    def backward(ctx, g):
        return g
""",
    ),
    "TakingTurns": (  # two arrays that change places in a loop; a view that each iteration takes anew in either branch
        "randn(3, 4), True",
        """
class TakingTurns(Function):
    @staticmethod
    def forward(ctx, x, scaled):
        a, b = x.clone(), x * 2
        sums = torch.zeros(3, dtype=x.dtype)
        for i in range(3):
            a, b = b, a
            a.add_(i)
            row = a[i : i + 1]
            if scaled:
                part = sums[i : i + 1]
                part.add_(row.sum(-1))
            else:
                (part, row) = (row.sum(-1), None)
            sums[i : i + 1] = part
        ctx.scaled = scaled
        return a - 2 * b + sums.unsqueeze(1)

    @staticmethod
    def backward(ctx, g):
        return g.clone().mul_(3), None
""",
    ),
}
