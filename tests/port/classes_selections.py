"""Functions that read and write what masks and lists select, alone and among other indices."""

CASES = {
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
