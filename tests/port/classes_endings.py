"""Functions whose loops end inside blocks, and whose last digits and empty selections matter."""

CASES = {
    "Kernel": (  # in place behind a flag
        "randn(3, 2), randn(4, 2), rand(1) + 0.5, 1.5",
        """
def squares(a, b):
    return (a[:, None] - b).pow(2).sum(-1)


class Kernel(Function):
    @staticmethod
    def forward(ctx, a, b, scale, power):
        needs = any(ctx.needs_input_grad)
        dist = squares(a / scale, b / scale)
        if power == 1.5:
            dist_ = dist.clone() if needs else dist
            k = dist_.div_(-2.0).exp_()
            if needs:
                ctx.save_for_backward(dist.mul_(k).div_(scale))
        else:
            k = dist.neg_().exp_()
        return k

    @staticmethod
    def backward(ctx, g):
        d, = ctx.saved_tensors
        return None, None, (g * d).sum().view(1), None
""",
    ),
    "Membrane": (  # a list holds what each round leaves behind
        "randn(3, 6)",
        """
class Membrane(Function):
    @staticmethod
    def forward(ctx, x):
        v = torch.zeros(x.size(0), dtype=x.dtype)
        states, spikes = [], []
        for t in range(x.size(1)):
            v += x[:, t]
            states.append(v)
            s = (v > 0.5).float()
            v = v * (1 - s)
            spikes.append(s)
        ctx.save_for_backward(torch.stack(states, 1))
        return torch.stack(spikes, 1) + v[:, None]

    @staticmethod
    def backward(ctx, g):
        v, = ctx.saved_tensors
        return g / (1 + v.abs()) ** 2
""",
    ),
    "PartialSort": (  # calls itself for the rows that are left, and writes through what a helper turns
        "randn(4, 9), 1, 2",
        """
def last(x, dim):
    if dim == x.dim() - 1:
        return x
    return x.transpose(dim, -1)


def positive(x, dim, k):
    size = x.size(dim)
    top, _ = x.topk(min(k, size), dim=dim)
    total = top.clamp(min=0).sum(dim, keepdim=True)
    count = (top > 0).sum(dim, keepdim=True)
    if k < size:
        left = (count == k).squeeze(dim)
        if left.any():
            rows = last(x, dim)[left]
            t, c = positive(rows, 1, 2 * k)
            last(total, dim)[left] = t
            last(count, dim)[left] = c
    return total, count


class PartialSort(Function):
    @staticmethod
    def forward(ctx, x, dim, k):
        total, count = positive(x, dim, k)
        ctx.save_for_backward(x, count)
        return total / count.clamp(min=1)

    @staticmethod
    def backward(ctx, g):
        x, count = ctx.saved_tensors
        return g * (x > 0) / count.clamp(min=1), None, None
""",
    ),
    "LargestOnBound": (  # a quotient that is compared is one of a division: the largest element is on the bound
        "array([0.7, -0.3, 0.11])",
        """
class LargestOnBound(Function):
    @staticmethod
    def forward(ctx, w):
        s = w.abs().max().reshape(1) / 31
        ctx.save_for_backward(w, s)
        return torch.round(w / s) * s

    @staticmethod
    def backward(ctx, g):
        w, s = ctx.saved_tensors
        bound = w.abs().max() / s
        q = w / s
        return g * ((q >= -bound) & (q <= bound)) * (torch.ceil(q) <= 31)
""",
    ),
    "WholePowers": (  # logarithms and powers of two exact; a quotient rounded as by a division
        "array([0.25, 8.0, 8192.0, 32768.0, 3.0, 1000.0]), array([13, 15, 3])",
        """
class WholePowers(Function):
    @staticmethod
    def forward(ctx, x, k):
        scale = 2 ** torch.floor(torch.log2(x))
        ctx.save_for_backward(scale)
        y = x.clamp(0, 11 * 0.3)
        z = y.clone()
        z /= 0.3
        y = torch.floor((y - 0) / 0.3) + y.div(0.3).ceil() + z.trunc()  # not times the reciprocal of 0.3
        return torch.round(x / scale) * scale + torch.floor(torch.exp2(k * 1.0)).sum() + x.log10().floor() + 1000 * y

    @staticmethod
    def backward(ctx, g):
        scale, = ctx.saved_tensors
        return g * scale, None
""",
    ),
    "SingularVectors": (  # differences of products of which the same are 0, under jit too
        "randn(4, 4)",
        """
class SingularVectors(Function):
    @staticmethod
    def forward(ctx, x):
        u, s, v = torch.svd(x)
        ctx.save_for_backward(u, s, v)
        return u.abs(), s

    @staticmethod
    def backward(ctx, gu, gs):
        u, s, v = ctx.saved_tensors
        squares = (s ** 2).expand(u.size())
        f = 1 / (squares - squares.t())
        f[f.abs() == math.inf] = 0
        e = s.pow(2)[:, None] - s.pow(2)
        f = f + torch.where(e == 0, torch.zeros_like(e), 1 / e).t()
        inner = (u.t() @ (gu * u.sign())) * f
        return u @ ((inner + inner.t()) @ torch.diag(s) + torch.diag(gs)) @ v.t()
""",
    ),
    "Settings": (  # a row of numbers that was saved as a tensor
        "randn(2, 3, 8, 8), randn(4, 3, 1, 1), (2, 2), 2",
        """
class Settings(Function):
    @staticmethod
    def jvp(ctx, *tangents):
        Function.jvp(ctx, *tangents)

    @staticmethod
    def forward(ctx, *args):
        x, weight, stride, order = args
        h, w = x.shape[-2:]
        row = torch.tensor([weight is not None, order != 1, stride[0],
                            h, w, order])
        ctx.save_for_backward(x, weight, row)
        return F.conv2d(x, weight, stride=stride)

    @staticmethod
    def backward(ctx, *grads):
        x, weight, row = ctx.saved_tensors
        used, _, s,\\
            h, w, order = [int(c) for c in row]
        g, = grads
        up = g.repeat_interleave(s, 2).repeat_interleave(s, 3)[..., :h, :w]
        gw = torch.einsum("bohw,bihw->oi", g, F.avg_pool2d(x, order))[..., None, None] if used else None
        return torch.einsum("bohw,oi->bihw", up, weight[..., 0, 0]) / order, gw, None, None
""",
    ),
    "Saturated": (  # a finite slope where the probability is 0 or 1
        "array([20.0, -3.0, -120.0, 0.3]), array([1.0, 1.0, 0.0, 0.4])",
        """
class Saturated(Function):
    @staticmethod
    def forward(ctx, x, t):
        ctx.save_for_backward(x, t)
        return F.binary_cross_entropy(torch.sigmoid(x), t)

    @staticmethod
    def backward(ctx, g):
        x, t = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            loss = F.binary_cross_entropy(torch.sigmoid(x), t)
        gx, = torch.autograd.grad(loss, x, g)
        return gx, None
""",
    ),
    "OnlyTold": (  # a handler that prints and raises reads what was written to
        "randn(5), 4",
        """
def shrunk(x, bits):
    top = x.abs().max()
    assert top != 0, "nothing there"
    x /= 2. ** torch.round(torch.log2(top))
    return torch.round(x * bits) / bits


class OnlyTold(Function):
    @staticmethod
    def forward(ctx, x, bits):
        ctx.bits = bits
        return x * 2

    @staticmethod
    def backward(ctx, g):
        try:
            out = shrunk(g, ctx.bits)
        except AssertionError as e:
            print(g.max())
            raise e
        return out, None
""",
    ),
    "BesselOfTensor": (  # SciPy's special functions give tensors for tensors
        "rand(3) + 0.5",
        """
from scipy import special


class BesselOfTensor(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return special.k0(x.detach().cpu()).to(x.device)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * (-special.k1(x.detach().cpu())).to(g.device)
""",
    ),
    "Tiled": (  # attention by tiles: what a round fills is what an inner loop has given another name
        "randn(2, 4, 3), randn(2, 6, 3), randn(2, 6, 3), 2",
        """
class Tiled(Function):
    @staticmethod
    def forward(ctx, q, k, v, size):
        out = torch.empty(q.shape)
        logs = torch.empty(q.shape[:-1])
        acc = torch.empty(q.shape[0], size, q.shape[-1])
        total = torch.empty(q.shape[0], size)
        top = torch.empty(q.shape[0], size)
        for i in range(q.shape[1] // size):
            rows = slice(i * size, (i + 1) * size)
            acc.zero_()
            total.zero_()
            top.fill_(float("-inf"))
            for j in range(k.shape[1] // size):
                columns = slice(j * size, (j + 1) * size)
                s = q[:, rows] @ k[:, columns].transpose(-1, -2)
                new = torch.max(top, s.max(dim=-1)[0])
                p = torch.exp(s - new.unsqueeze(-1))
                shrink = torch.exp(top - new)
                total = shrink * total + p.sum(-1)
                acc = shrink.unsqueeze(-1) * acc
                acc += p @ v[:, columns]
                top = new
            out[:, rows] = acc / total.unsqueeze(-1)
            logs[:, rows] = top + total.log()
        ctx.save_for_backward(q, k, v, out, logs)
        return out

    @staticmethod
    def backward(ctx, g):
        q, k, v, out, logs = ctx.saved_tensors
        p = torch.exp(q @ k.transpose(-1, -2) - logs.unsqueeze(-1))
        s = p * (g @ v.transpose(-1, -2) - (out * g).sum(-1, keepdim=True))
        return s @ k, s.transpose(-1, -2) @ q, p.transpose(-1, -2) @ g, None
""",
    ),
    "OwnDecorators": (  # those of torch.amp, made the file's own
        "randn(4)",
        """
def prepared(decorator, older):
    def wrapped(f):
        return decorator(f) if older else decorator(device_type="cpu")(f)
    return wrapped


from torch.amp import custom_bwd, custom_fwd

custom_fwd = prepared(custom_fwd, False)
custom_bwd = prepared(custom_bwd, False)


class OwnDecorators(Function):
    @staticmethod
    @custom_fwd
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch._C._VariableFunctions.sin(x)

    @staticmethod
    @custom_bwd
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * x.cos()
""",
    ),
}
