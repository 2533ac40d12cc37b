"""Functions that read and write what masks and lists select, alone and among other indices."""

CASES = {
    "MaskSoftmax": (  # a softmax of selected entries only
        "randn(7)",
        """
class MaskSoftmax(Function):
    @staticmethod
    def forward(ctx, x):
        m = x > -0.5
        y = torch.zeros_like(x)
        y[m] = torch.softmax(x[m], dim=0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        y, = ctx.saved_tensors
        return y * (g - (g * y).sum())
""",
    ),
    "MaskAlong": (  # operations along selected entries: softmax, cumsum, reductions
        "randn(7)",
        """
class MaskAlong(Function):
    @staticmethod
    def forward(ctx, x):
        m = x > -0.5
        y = torch.zeros_like(x)
        y[m] = F.softmax(x[m], dim=0)
        z = torch.zeros_like(x)
        z[m] = torch.cumsum(x[m], -1)
        w = torch.zeros_like(x)
        w[m] = x[m].log_softmax(0)
        s = x[m].sum(0) + x[m].mean(dim=0) + x[m].max()
        ctx.save_for_backward(y)
        return y, z, w, s

    @staticmethod
    def backward(ctx, g, h, i, j):
        y, = ctx.saved_tensors
        return y * (g - (g * y).sum())
""",
    ),
    "RowsSum": (  # sums and means of selected rows
        "randn(5, 3)",
        """
class RowsSum(Function):
    @staticmethod
    def forward(ctx, x):
        r = x[:, 0] > 0
        k = r.clone()
        k[0] = False
        ctx.save_for_backward(r)
        ctx.n = x.shape[0]
        return x[r].sum(0) + x[~r].mean(dim=0) + x[x.sum(1) > 0].exp().sum(dim=0)

    @staticmethod
    def backward(ctx, g):
        r, = ctx.saved_tensors
        gx = torch.zeros(ctx.n, g.shape[0], dtype=g.dtype)
        gx[r] = g
        return gx
""",
    ),
    "ListIndex": (  # a list as index, read and written
        "randn(4, 3), [0, 2]",
        """
class ListIndex(Function):
    @staticmethod
    def forward(ctx, x, idx):
        ctx.idx = idx
        ctx.shape = x.shape
        return x[idx]

    @staticmethod
    def backward(ctx, g):
        gx = torch.zeros(ctx.shape, dtype=g.dtype)
        gx[ctx.idx] = g
        return gx, None
""",
    ),
    "ListChannels": (  # a list as index of the second axis
        "randn(4, 3), [0, 2]",
        """
class ListChannels(Function):
    @staticmethod
    def forward(ctx, x, channels):
        ctx.channels = channels
        out = x.clone()
        out[:, channels] = 0
        return out

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        g[:, ctx.channels] *= 0
        return g, None
""",
    ),
}
