"""Functions that select entries or branch on values: masks, checks, scalars."""

CASES = {
    "MaskChain": (  # several masks, a selection that operations change, and its way back
        "randn(5, 6), -0.5, 0.5",
        """
class MaskChain(Function):
    @staticmethod
    def forward(ctx, x, lo, hi):
        out = x.clone()
        small = x < lo
        large = x > hi
        picked = x[large]
        scaled = torch.log1p(picked - hi) + hi
        out[large] = scaled
        out[small] = lo
        ctx.save_for_backward(x, small | large)
        ctx.hi = hi
        return out

    @staticmethod
    def backward(ctx, g):
        x, mask = ctx.saved_tensors
        gi = g.clone()
        gi[mask] *= 0.5
        gi[~mask] += x[~mask] * 0.1
        gi[x.abs() > 2] = 0
        return gi, None, None
""",
    ),
    "Item": (  # a quantizer: item(), clamp, int8, a mask on ctx
        "randn(4, 5), 4",
        """
class Item(Function):
    @staticmethod
    def forward(ctx, x, bits):
        qmax = 2 ** (bits - 1) - 1
        scale = x.abs().max().item() / qmax
        q = torch.clamp(torch.round(x / scale), -qmax - 1, qmax).to(torch.int8)
        ctx.mask = (x.abs() <= scale * qmax)
        return q.float() * scale

    @staticmethod
    def backward(ctx, g):
        return g * ctx.mask.type_as(g), None
""",
    ),
    "Checks": (  # checks of shapes and values that raise, xlogy
        "randn(3, 4), rand(3, 4)+0.1",
        """
class Checks(Function):
    @staticmethod
    def forward(ctx, x, y):
        assert x.shape == y.shape, f"shapes differ: {x.shape} and {y.shape}"
        assert torch.all(y > 0), "y must be positive"
        if not torch.isfinite(x).all():
            raise ValueError("x is not finite")
        if x.dim() not in (1, 2):
            raise ValueError("x has {} dimensions".format(x.dim()))
        ctx.save_for_backward(x, y)
        return torch.xlogy(x.abs(), y)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * x.sign() * y.log(), g * x.abs() / y
""",
    ),
    "Bins": (  # bucketize, indices by arithmetic, div_ on what is new
        "rand(3, 4), linspace(0, 1, 6)",
        """
class Bins(Function):
    @staticmethod
    def forward(ctx, x, edges):
        idx = torch.bucketize(x, edges).clamp_(1, edges.numel() - 1)
        lo, hi = edges[idx - 1], edges[idx]
        ctx.save_for_backward(hi - lo, idx)
        ctx.n = edges.numel()
        return (x - lo).div_(hi - lo)

    @staticmethod
    def backward(ctx, g):
        w, idx = ctx.saved_tensors
        return g / w, None
""",
    ),
    "Proj": (  # a projection: sort, cumsum, gather at a count
        "randn(3, 5), 1.0",
        """
class Proj(Function):
    @staticmethod
    def forward(ctx, v, z=1.0):
        u, _ = v.sort(descending=True, dim=1)
        css = u.cumsum(1) - z
        ind = torch.arange(1, v.size(1) + 1, dtype=v.dtype, device=v.device)
        cond = u - css / ind > 0
        rho = cond.long().sum(1, keepdim=True)
        theta = css.gather(1, rho - 1) / rho.to(v.dtype)
        w = (v - theta).clamp_min_(0)
        ctx.save_for_backward(w)
        return w

    @staticmethod
    def backward(ctx, g):
        w, = ctx.saved_tensors
        s = (w > 0).type(g.dtype)
        n = s.sum(1, keepdim=True)
        d = torch.baddbmm(torch.zeros(1, 1, 1), g.unsqueeze(1), s.unsqueeze(2)).squeeze(2) / n
        return s * (g - d), None
""",
    ),
    "DiceLoss": (  # sums kept on ctx as attributes, optional gradients
        "rand(3, 4), 1.0 * (rand(3, 4) > 0.5)",
        """
class DiceLoss(Function):
    @staticmethod
    def forward(ctx, input, target, eps=1.0):
        ctx.save_for_backward(input, target)
        ctx.inter = torch.dot(input.view(-1), target.view(-1))
        ctx.union = torch.sum(input) + torch.sum(target) + eps
        return (2 * ctx.inter.float() + eps) / ctx.union.float()

    @staticmethod
    def backward(ctx, grad_output):
        input, target = ctx.saved_tensors
        grad_input = grad_target = None
        if ctx.needs_input_grad[0]:
            grad_input = grad_output * 2 * (target * ctx.union - ctx.inter) / (ctx.union * ctx.union)
        if ctx.needs_input_grad[1]:
            grad_target = None
        return grad_input, grad_target, None
""",
    ),
    "Gumbel": (  # the index of a maximum, scatter_, saved_variables
        "randn(3, 5), 0.5, True",
        """
class Gumbel(Function):
    @staticmethod
    def forward(ctx, logits, tau: float = 1.0, hard: bool = False):
        u = torch.zeros_like(logits)
        y = F.softmax((logits + u) / tau, dim=-1)
        ctx.save_for_backward(y)
        ctx.tau = tau
        if hard:
            index = y.max(dim=-1, keepdim=True)[1]
            return torch.zeros_like(logits).scatter_(-1, index, 1.0)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_variables
        return (g * y - (g * y).sum(-1, True) * y) / ctx.tau, None, None
""",
    ),
    "IdxMaskOrInt": (  # an index that is a mask, indices or a number
        "randn(5, 3), array([1, 0, 1, 1, 0]) > 0",
        """
class IdxMaskOrInt(Function):
    @staticmethod
    def forward(ctx, x, sel):
        y = x.clone()
        y[sel] = 0.5
        ctx.sel = sel
        return y
    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        g[ctx.sel] = 0
        return g, None
""",
    ),
    "MaskKVals": (  # a mask made by writes, and as many values as it selects
        "randn(2, 3), randn(3)",
        """
class MaskKVals(Function):
    @staticmethod
    def forward(ctx, x, v):
        m = torch.zeros(2, 3, dtype=torch.bool)
        m[0, :2] = True
        m[1, 2] = True
        y = x.clone()
        y[m] = v
        y[m] = y[m] * v
        picked = y[m]
        picked += v
        y[m] = torch.maximum(picked, v)
        return y

    @staticmethod
    def backward(ctx, g):
        return g, None
""",
    ),
    "MaskUnknownVal": (  # a value of unknown rank at a mask
        "randn(5, 3), array([1,0,1,1,0]) > 0, 2.0",
        """
class MaskUnknownVal(Function):
    @staticmethod
    def forward(ctx, x, m, v):
        y = x.clone()
        y[m > 0] = v
        ctx.m = m
        return y

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        g[ctx.m > 0] = 0
        return g, None, None
""",
    ),
    "MaskOfSelected": (  # masks of selected entries, and a mask of what it changes
        "randn(6)",
        """
class MaskOfSelected(Function):
    @staticmethod
    def forward(ctx, x):
        m = x > -1
        y = x.clone()
        a = x[m]
        a[a > 0.2] = 7
        a *= 2
        y[m] = a
        y[y > 3] *= y[y > 3]
        return y

    @staticmethod
    def backward(ctx, g):
        return g
""",
    ),
    "MasksOnCtx": (  # masks that functions, rows, conditions and ctx hold
        "randn(5, 4), True",
        """
def large(x):
    return x.abs() > 0.5

class MasksOnCtx(Function):
    @staticmethod
    def forward(ctx, x, flag):
        ctx.mask, ctx.rows = x > 0, x.sum(1) > 0
        ctx.save_for_backward(x < -1, x)
        y = x * 1
        m = torch.stack([x > 0, x > 1])
        y[large(x)] *= 2
        y[m[1]] -= 1
        y[ctx.mask if flag else ~ctx.mask] += 1
        return y

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        g[ctx.mask] *= 3
        g[ctx.rows] /= 2
        g[ctx.saved_tensors[0]] -= 1
        g[ctx.mask] = g[ctx.mask] * ctx.saved_tensors[1][ctx.mask]
        return g, None
""",
    ),
    "MaskOfShape": (  # a mask made of a shape, which has not this shape; arrays that take another's
        "randn(2, 2), randn(4)",
        """
class MaskOfShape(Function):
    @staticmethod
    def forward(ctx, x, flat):
        rows = torch.tensor(x.shape) > torch.tensor([1, 2])
        y = x.clone()
        y[rows] = 0
        z = flat.view_as(x) * 1
        z[x > 0] = 2
        w = flat.reshape(x.shape) * 3
        w[x < 0] = 4
        return y + z * w

    @staticmethod
    def backward(ctx, g):
        return g, g.reshape(-1)
""",
    ),
}
