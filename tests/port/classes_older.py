"""Signatures of older PyTorch, memory that a branch has chosen, and other libraries: einops."""

CASES = {
    "ScalesByPosition": (  # old signatures with scales by position
        "randn(3, 3), randn(3, 3)",
        """
class ScalesByPosition(Function):
    @staticmethod
    def forward(ctx, x, w):
        y = torch.addmm(0.5, x, 2, w, w) + torch.addmm(0.5, x, w, w)
        return y.add_(-1, w).addcmul_(0.1, x, w)

    @staticmethod
    def backward(ctx, g):
        return torch.add(g, 2, g), torch.addcdiv(g, 0.5, g, torch.ones_like(g))
""",
    ),
    "PrependedRow": (  # a size as a list that is changed, narrow and copy_
        "randn(3, 4), 0, 0.5",
        """
class PrependedRow(Function):
    @staticmethod
    def forward(ctx, x, dim, value):
        size = list(x.size())
        size[dim] += 1
        y = x.new(*size).fill_(value)
        y.narrow(dim, 1, size[dim] - 1).copy_(x)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx, g):
        return g.narrow(ctx.dim, 1, g.size(ctx.dim) - 1), None, None
""",
    ),
    "OrderedIndices": (  # arange with out=, an index that a write changes
        "randn(3, 4)",
        """
class OrderedIndices(Function):
    @staticmethod
    def forward(ctx, x):
        order = torch.empty((x.size(1),), dtype=torch.long)
        torch.arange(x.size(1), out=order)
        order = order - 1
        order[0] = 0
        ctx.save_for_backward(order)
        return x[:, order] * torch.arange(1.0, 5.0, out=torch.empty(4)).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        order, = ctx.saved_tensors
        g = g * torch.arange(1.0, 5.0).to(g.dtype)
        return torch.zeros_like(g).index_add_(1, order, g)
""",
    ),
    "HalvesInPlace": (  # writes to the halves of an input, or of its copy
        "randn(3, 4), False",
        """
class HalvesInPlace(torch.autograd.function.InplaceFunction):
    @staticmethod
    def forward(ctx, x, inplace=False):
        if inplace:
            ctx.mark_dirty(x)
            y = x
        else:
            y = x.clone()
        positive, negative = y.chunk(2, dim=1)
        positive.clamp_(min=0)
        negative.clamp_(max=0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        y, = ctx.saved_tensors
        return g.masked_fill(y.eq(0), 0), None
""",
    ),
    "Heads": (  # einops
        "randn(2, 3, 8), 4",
        """
from einops import einsum, rearrange, reduce, repeat

class Heads(Function):
    @staticmethod
    def forward(ctx, x, heads):
        ctx.heads = heads
        y = rearrange(x, "b n (h d) -> b h n d", h=heads)
        y = y + repeat(x.mean(-1), "b n -> b h n d", h=heads, d=y.shape[-1])
        y = y + einsum(y, y.abs(), "b head n d, b head m d -> b head n m").sum(-1, keepdim=True)
        return y + reduce(x, "b ... -> b 1 1 1", "max")

    @staticmethod
    def backward(ctx, g):
        return rearrange(g, "b h n d -> b n (h d)"), None
""",
    ),
    "ByVersion": (  # branches on torch's version
        "randn(3, 4), 1.0",
        """
from packaging import version

NEW = version.parse(torch.__version__)
OLD = version.parse(version.parse(torch.__version__).base_version) < version.parse("1.11")

class ByVersion(Function):
    @staticmethod
    def forward(ctx, x, y=torch.Tensor):
        if OLD:
            x = x * 3
        if NEW >= version.parse("1.13"):
            x = x * 2
        else:
            x = torch.old_name(x)
        if torch.__version__ > "2.4" and NEW.major == int(torch.__version__.split(".")[0]):
            x = x + 1
        return x if torch.version.hip is None else x * 0

    @staticmethod
    def backward(ctx, g):
        return g * 2 if version.parse("1.9") < version.parse("1.10.0") else g, None
""",
    ),
    "RememberedOrder": (  # helpers under lru_cache
        "randn(5)",
        """
import functools

@functools.lru_cache(maxsize=None)
def order(n):
    places = torch.empty(n, dtype=torch.long)
    places[torch.arange(n)] = torch.arange(n).flip(0)
    return places

@functools.cache
def twice(n):
    return n * 2

class RememberedOrder(Function):
    @staticmethod
    def forward(ctx, x):
        return x[order(x.shape[0])] * twice(3)

    @staticmethod
    def backward(ctx, g):
        return g[order(g.shape[0])] * twice(3)
""",
    ),
}
