"""Functions in which dtypes of several widths meet."""

CASES = {
    "IntPlusFloatSlot": (  # y += x keeps the dtype of y
        "randn(4)",
        """
class IntPlusFloatSlot(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.to(torch.bfloat16)
        y += x
        return y.float()

    @staticmethod
    def backward(ctx, g):
        return g
""",
    ),
    "Bf16AddF32": (  # add_ keeps the dtype of what it writes to
        "randn(4)",
        """
class Bf16AddF32(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.to(torch.bfloat16)
        y.add_(x)
        return y

    @staticmethod
    def backward(ctx, g):
        return g
""",
    ),
    "ZeroDimWide": (  # a tensor without dimensions widens no dtype
        "randn(4)",
        """
class ZeroDimWide(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.half()
        y += torch.tensor(1.5)
        z = x.half() * torch.tensor(1.5)
        return y, z
    @staticmethod
    def backward(ctx, g, h):
        return g.float() + h.float()
""",
    ),
    "ItemPromote": (  # item() of a float16 tensor, times it
        "randn(4)",
        """
class ItemPromote(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.half()
        s = x.abs().max().item()
        return y * s

    @staticmethod
    def backward(ctx, g):
        return g
""",
    ),
    "LinearQuantized": (  # a quantized layer: a helper with an optional axis, clamp_ and int8
        "randn(4, 6), randn(5, 6), randn(5), 8",
        """
def _absmax_quant(t: torch.Tensor, bits: int = 8, dim: Optional[int] = None):
    qmax = 2 ** (bits - 1) - 1
    if dim is None:
        amax = t.abs().max()
    else:
        amax = t.abs().amax(dim=dim, keepdim=True)
    scale = torch.clamp(amax, min=1e-8) / qmax
    q = torch.round(t / scale).clamp_(-qmax - 1, qmax).to(torch.int8)
    return q, scale

class LinearQuantized(Function):
    @staticmethod
    def forward(ctx, x, w, b=None, bits=8):
        qx, sx = _absmax_quant(x, bits, dim=-1)
        qw, sw = _absmax_quant(w, bits=bits)
        out = torch.matmul(qx.to(torch.int32), qw.to(torch.int32).t()).to(x.dtype) * sx * sw
        if b is not None:
            out += b.unsqueeze(0).expand_as(out)
        ctx.save_for_backward(qx, sx, qw, sw)
        ctx.bias = b is not None
        return out

    @staticmethod
    def backward(ctx, go):
        qx, sx, qw, sw = ctx.saved_tensors
        gx = gw = gb = None
        need_x, need_w, need_b, _ = ctx.needs_input_grad
        if need_x:
            gx = go.matmul(qw.to(go.dtype) * sw)
        if need_w:
            gw = go.reshape(-1, go.shape[-1]).T @ (qx.float() * sx).reshape(-1, qx.shape[-1])
        if ctx.bias and need_b:
            gb = go.sum(0)
        return gx, gw, gb, None
""",
    ),
    "SwiGLU": (  # helpers under torch.compile, casts by type_as
        "randn(4, 6), randn(4, 6)",
        """
def swiglu_fwd(x, y):
    return F.silu(x.float()).mul_(y).to(x.dtype)

@torch.compile
def swiglu_bwd(x, y, g):
    x_sigmoid = 1.0 / (1.0 + torch.exp(-x.float()))
    dx = x_sigmoid * (1 + x.float() * (1.0 - x_sigmoid)) * g * y
    dy = F.silu(x) * g
    return dx.type_as(x), dy

class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return swiglu_fwd(x, y)

    @staticmethod
    def backward(ctx, dout):
        x, y = ctx.saved_tensors
        return swiglu_bwd(x, y, dout)

swiglu = SwiGLU.apply
""",
    ),
    "TypesOfTensors": (  # casts by names of tensor types
        "randn(3, 4)",
        """
class TypesOfTensors(Function):
    @staticmethod
    def forward(ctx, x):
        Tensor = torch.cuda.FloatTensor if x.is_cuda else torch.FloatTensor
        positive = (x > 0).type(Tensor)
        ctx.save_for_backward(positive)
        whole = (x * 3).type(torch.LongTensor)
        size = x.size()
        return positive * x + Tensor(size).fill_(2), whole, x.type('torch.IntTensor')

    @staticmethod
    def backward(ctx, g, *_):
        (positive,) = ctx.saved_tensors
        dtype = torch.FloatTensor
        return g * positive.type(dtype)
""",
    ),
    "TypeAsked": (  # comparisons of type(x)
        "randn(3)",
        """
class TypeAsked(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2 if type(x) == torch.Tensor or type(x) is torch.Tensor else x

    @staticmethod
    def backward(ctx, g):
        return g * 2 if type(g) is not torch.Tensor else g * 3
""",
    ),
    "SmallIntegersAdded": (  # sums of 8-bit integers count in 64 bits
        "randn(400)",
        """
class SmallIntegersAdded(Function):
    @staticmethod
    def forward(ctx, x):
        m = (x > -5).byte()
        k = torch.full((4,), 100, dtype=torch.int8)
        return x * m.sum(), m.cumsum(0), m.sum() - 500, k.sum(), k.prod(), k.cumsum(0), (m.cumsum(0) - 1).long()

    @staticmethod
    def backward(ctx, g, *_):
        return g * g.numel()
""",
    ),
    "ScalarsOfNumPy": (  # NumPy's numbers widen no float16 tensor
        "randn(4, 4)",
        """
import numpy as np


class ScalarsOfNumPy(Function):
    @staticmethod
    def forward(ctx, x):
        h = x.half()
        s = 1.0 / np.sqrt(x.shape[0])
        y = h.clone()
        y *= np.float64(2.0)
        y += torch.ones(4)
        ctx.scale = -np.sqrt(x.size(-1))
        parts = (h / np.sqrt(x.size(-1)), s * h, y, h.mul(ctx.scale), h * (2 * s))
        ctx.half = all(p.dtype == torch.float16 for p in parts)
        return sum(parts).float() * (1 if ctx.half else 1000)

    @staticmethod
    def backward(ctx, g):
        return (g.half() * ctx.scale).float() * (1 if ctx.half else 1000)
""",
    ),
    "ListsAndSizes": (  # a nested helper that calls its outer one, and lists of numbers
        "randn(2, 6, 3, 3)",
        """
def slopes(n):
    def power(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return power(n)
    near = 2 ** math.floor(math.log2(n))
    return power(near) + slopes(2 * near)[0::2][: n - near]


class ListsAndSizes(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.slopes = torch.Tensor(slopes(x.size(1))).view(-1, 1, 1)
        out = torch.zeros(x.shape, dtype=x.dtype, layout=x.layout, device=x.device)
        return out + x * ctx.slopes + torch.FloatTensor(x.shape).fill_(1)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.slopes
""",
    ),
    "LargeNumbers": (  # whole numbers of more than 32 bits beside arrays
        "randn(3, 4) * 1e9, randn(3, 4)",
        """
class LargeNumbers(Function):
    @staticmethod
    def forward(ctx, x, w):
        y = torch.clamp(x, 0, 2**32 - 1) + x.masked_fill(w > 0, -2**33) / (1 << 32)
        y = y + (x > 2**31).float() * 2**31 + x.mul(2**20) % 2**32
        y[w > 0.5] = 2**31
        y[0] = -2**40
        y[1:] += 2**40
        n = 2**33
        m = n // 8 * 4 - 1 if w.dim() > 4 else n * 4 - 1
        y = y + x / n + (x > m).float() - w / (n * 2)
        y -= 2**35
        return torch.floor(y.exp() * 2**31 + 0.5) + y

    @staticmethod
    def backward(ctx, g):
        return g * 2**33, None
""",
    ),
    "NoAxes": (  # axes that a default leaves out
        "randn(3, 4)",
        """
class NoAxes(Function):
    @staticmethod
    def forward(ctx, x, dims=(), last=(0,)):
        return x.mean(dims) + x.sum(last)

    @staticmethod
    def backward(ctx, g):
        return g, None, None
""",
    ),
    "NumbersOfNumPy": (  # scalars of NumPy widen nothing
        "randn(3, 4)",
        """
import numpy as np

class NumbersOfNumPy(Function):
    @staticmethod
    def forward(ctx, x):
        x = x.half()
        y = x.clone()
        y[y > 0] = np.sqrt(4.0)
        return y * np.power(2.0, 3) / np.sqrt(4 * 4.0) * np.ceil(1.5) / np.floor(1 + np.pi)

    @staticmethod
    def backward(ctx, g):
        return g.half() * np.sqrt(4 * math.floor(math.pi + 1))
""",
    ),
}
