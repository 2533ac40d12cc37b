"""Functions of layers and transforms: normalisation, attention, convolution, losses."""

CASES = {
    "LayerNorm": (  # optional weights, rsqrt_ on what is new, once_differentiable
        "randn(2, 3, 6), randn(6), randn(6)",
        """
class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float = 1e-5) -> Tensor:
        mu = x.mean(-1, keepdim=True)
        var = (x - mu).pow(2).mean(-1, keepdim=True)
        rstd = (var + eps).rsqrt_()
        xhat = (x - mu) * rstd
        ctx.save_for_backward(xhat, rstd, weight)
        y = xhat
        if weight is not None:
            y = y * weight
        if bias is not None:
            y = y + bias
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor) -> Tuple[Optional[Tensor], ...]:
        xhat, rstd, weight = ctx.saved_tensors
        dw = db = None
        if ctx.needs_input_grad[1]:
            dw = (dy * xhat).flatten(0, -2).sum(0)
        if ctx.needs_input_grad[2]:
            db = dy.reshape(-1, dy.shape[-1]).sum(dim=0)
        wdy = dy * weight if weight is not None else dy
        c1 = (xhat * wdy).mean(dim=-1, keepdim=True)
        c2 = wdy.mean(dim=-1, keepdim=True)
        dx = (wdy - (xhat * c1 + c2)) * rstd
        return dx, dw, db, None
""",
    ),
    "Conv": (  # torch.nn.grad's convolutions
        "randn(2, 3, 6, 6), randn(4, 3, 3, 3), 1, 1",
        """
class Conv(Function):
    @staticmethod
    def forward(ctx, input, weight, stride=1, padding=0):
        ctx.save_for_backward(input, weight)
        ctx.stride, ctx.padding = stride, padding
        return F.conv2d(input, weight, stride=stride, padding=padding)

    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        grad_input = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_input = torch.nn.grad.conv2d_input(input.shape, weight, grad_output, ctx.stride, ctx.padding)
        if ctx.needs_input_grad[1]:
            grad_weight = torch.nn.grad.conv2d_weight(input, weight.shape, grad_output, ctx.stride, ctx.padding)
        return grad_input, grad_weight, None, None
""",
    ),
    "Softmin": (  # a helper with keepdim, an attribute of ctx that is a tensor
        "randn(3, 5), 0.7",
        """
def _lse(x, dim):
    m, _ = torch.max(x, dim=dim, keepdim=True)
    return (x - m).exp().sum(dim=dim, keepdim=True).log() + m

class Softmin(Function):
    @staticmethod
    def forward(ctx, cost, gamma):
        p = -cost / gamma
        z = _lse(p, -1)
        ctx.gamma = gamma
        ctx.p = torch.exp(p - z)
        return (-gamma * z).squeeze(-1)

    @staticmethod
    def backward(ctx, g):
        return g.unsqueeze(-1) * ctx.p, None
""",
    ),
    "Chunked": (  # chunk, split and cat along the last axis, an in-place tanh_
        "randn(2, 9)",
        """
class Chunked(Function):
    @staticmethod
    def forward(ctx, x):
        a, b, c = x.chunk(3, dim=-1)
        i = torch.sigmoid(a)
        o = F.gelu(b, approximate="tanh")
        u = torch.tanh_(c.clone())
        ctx.save_for_backward(i, o, u, b)
        return torch.cat([i * u, o], dim=-1)

    @staticmethod
    def backward(ctx, g):
        i, o, u, b = ctx.saved_tensors
        g1, g2 = g.split([i.size(-1), o.size(-1)], dim=-1)
        s = torch.sigmoid(1.702 * b)
        da = g1 * u * i * (1 - i)
        db = g2 * s
        dc = g1 * i * (1 - u ** 2)
        return torch.stack((da, db, dc), dim=-2).flatten(start_dim=-2)
""",
    ),
    "Nll": (  # gather of classes, label smoothing
        "randn(5, 7), randint(0, 7, (5, ))",
        """
class Nll(Function):
    @staticmethod
    def forward(ctx, logits, target, weight=None, smoothing=0.1):
        logp = F.log_softmax(logits, dim=-1)
        nll = -logp.gather(dim=-1, index=target[:, None]).squeeze(1)
        smooth = -logp.mean(dim=-1)
        loss = (1.0 - smoothing) * nll + smoothing * smooth
        ctx.smoothing = smoothing
        ctx.save_for_backward(logp, target)
        return loss.mean()

    @staticmethod
    def backward(ctx, g):
        logp, target = ctx.saved_tensors
        N, C = logp.shape
        onehot = F.one_hot(target, C).to(logp)
        t = onehot.mul_(1 - ctx.smoothing).add_(ctx.smoothing / C)
        grad = logp.exp().sub_(t).div_(N)
        return grad.mul_(g), None, None, None
""",
    ),
    "Fft": (  # real Fourier transforms with a length
        "randn(3, 8), randn(8)",
        """
class Fft(Function):
    @staticmethod
    def forward(ctx, x, h):
        n = x.shape[-1]
        X = torch.fft.rfft(x, n=n)
        H = torch.fft.rfft(h, n=n)
        ctx.save_for_backward(X, H)
        ctx.n = n
        return torch.fft.irfft(X * H, n=n)

    @staticmethod
    def backward(ctx, g):
        X, H = ctx.saved_tensors
        G = torch.fft.rfft(g, n=ctx.n)
        gx = torch.fft.irfft(G * H.conj(), n=ctx.n)
        gh = torch.fft.irfft(G * X.conj(), n=ctx.n).sum(0)
        return gx, gh
""",
    ),
    "EinPerm": (  # einsum, a mask by triu_, masked_fill_, permute
        "randn(2, 2, 4, 3), randn(2, 2, 4, 3), randn(2, 2, 4, 3)",
        """
class EinPerm(Function):
    @staticmethod
    def forward(ctx, q, k, v):
        scale = 1.0 / math.sqrt(q.size(-1))
        s = torch.einsum("bhid,bhjd->bhij", q, k).mul_(scale)
        mask = torch.ones(s.shape[-2:], dtype=torch.bool, device=q.device).triu_(1)
        s.masked_fill_(mask, float("-inf"))
        p = s.softmax(dim=-1)
        ctx.save_for_backward(q, k, v, p)
        ctx.scale = scale
        return torch.matmul(p, v).permute(0, 2, 1, 3).contiguous()

    @staticmethod
    def backward(ctx, go):
        q, k, v, p = ctx.saved_tensors
        go = go.permute(0, 2, 1, 3)
        gv = p.transpose(-1, -2) @ go
        gp = go @ v.transpose(-1, -2)
        gs = p * (gp - (gp * p).sum(-1, keepdim=True))
        gs = gs * ctx.scale
        return gs @ k, gs.transpose(-1, -2) @ q, gv
""",
    ),
    "Logdet": (  # determinants and inverses of batches
        "randn(3, 4, 4)",
        """
class Logdet(Function):
    @staticmethod
    def forward(ctx, A):
        sign, logabs = torch.linalg.slogdet(A)
        inv = torch.linalg.inv(A)
        ctx.save_for_backward(inv)
        return logabs

    @staticmethod
    def backward(ctx, g):
        inv, = ctx.saved_tensors
        return g.view(-1, 1, 1) * inv.transpose(-2, -1)
""",
    ),
    "Warp": (  # meshgrid and grid_sample
        "randn(2, 3, 4, 4), randn(2, 2, 4, 4)*0.1",
        """
class Warp(Function):
    @staticmethod
    def forward(ctx, img, flow):
        B, C, H, W = img.size()
        ys, xs = torch.meshgrid(torch.arange(H), torch.arange(W), indexing="ij")
        grid = torch.stack((xs, ys), 0).float().unsqueeze(0)
        g = grid + flow
        gx = 2.0 * g[:, 0] / max(W - 1, 1) - 1.0
        gy = 2.0 * g[:, 1] / max(H - 1, 1) - 1.0
        out = F.grid_sample(img, torch.stack([gx, gy], dim=-1), align_corners=True)
        ctx.save_for_backward(img)
        return out

    @staticmethod
    def backward(ctx, go):
        img, = ctx.saved_tensors
        return go * 1.0, F.interpolate(go, scale_factor=1).sum(1, keepdim=True).repeat(1, 2, 1, 1)
""",
    ),
    "Circ": (  # unfold, pad and roll
        "randn(2, 6)",
        """
class Circ(Function):
    @staticmethod
    def forward(ctx, x):
        p = torch.cat([x[..., -1:], x, x[..., :1]], dim=-1)
        y = p.unfold(-1, 3, 1).mean(-1)
        z = F.pad(y, (1, 1, 0, 0), mode="constant", value=0.0)
        ctx.size = x.size()
        return torch.roll(z, shifts=(1,), dims=(-1,))

    @staticmethod
    def backward(ctx, g):
        g = torch.roll(g, -1, -1)[..., 1:-1]
        return (g + g.roll(1, -1) + g.roll(-1, -1)) / 3
""",
    ),
    "Contig": (  # an optional bias, views of what is contiguous
        "randn(2, 3, 4), randn(5, 4), randn(5)",
        """
class Contig(Function):
    @staticmethod
    def forward(ctx, x, w, b=None):
        x2 = x.contiguous().view(-1, x.shape[-1])
        y = torch.addmm(b, x2, w.t()) if b is not None else x2.mm(w.t())
        ctx.save_for_backward(x2, w)
        ctx.has_bias = b is not None
        return y.view(*x.shape[:-1], w.shape[0])

    @staticmethod
    def backward(ctx, g):
        x2, w = ctx.saved_tensors
        g2 = g.contiguous().view(-1, w.size(0))
        gx = g2.matmul(w).view(*g.shape[:-1], -1)
        gw = g2.t().matmul(x2)
        gb = g2.sum(0) if ctx.has_bias else None
        return gx, gw, gb
""",
    ),
    "SoftmaxOfADtypeOrNone": (  # a softmax whose dtype is None or a tensor's
        "randn(3, 4), 1",
        """
class SoftmaxOfADtypeOrNone(Function):
    @staticmethod
    def forward(ctx, x, dim, dtype=None):
        y = F.softmax(x, dim=dim, dtype=dtype) + F.log_softmax(x, dim, dtype=x.dtype)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * torch.softmax(x, 1, dtype=x.dtype), None, None
""",
    ),
    "Adjoint": (  # complex matrices: svd, solve, mH, adjoint
        "randn(3, 3) + 1j * randn(3, 3), randn(3, 3) * 1j",
        """
class Adjoint(Function):
    @staticmethod
    def forward(ctx, a, b):
        u, s, vh = torch.linalg.svd(a)
        y = torch.linalg.solve(a, b)
        ctx.save_for_backward(u, s.to(u.dtype), y)
        return y + y.mH + torch.exp(b).conj()

    @staticmethod
    def backward(ctx, g):
        u, s, y = ctx.saved_tensors
        f = s[..., None] * (y @ g)
        return f + f.mH, y.adjoint() @ g
""",
    ),
}
