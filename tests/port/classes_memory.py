"""Functions that write to memory: views, chains, saved tensors, `out=`."""

_WRITTEN_CHOICE = """
class NAME(Function):
    @staticmethod
    def forward(ctx, x, m, inplace, k):
        y = x * 2
        if torch.jit.is_scripting() or torch.compiler.is_compiling():
            y = y * 100
        z = (y.sub_(m) if inplace else y - m).exp_().sum(1, keepdim=True).log_()
        w = y.mul_(k) if k is not None else y; v = torch.relu(y.add_(1) if not inplace else y)
        u = torch.exp(torch.sin(x) + (y.add_(1) if inplace else y * 0))
        if not torch.jit.is_tracing() and inplace:
            u = u + 1
        ctx.save_for_backward(x, m)
        return z + y + w + v, u

    @staticmethod
    def backward(ctx, g, h):
        x, m = ctx.saved_tensors
        g = g + h
        before = g
        g = g.mul_(2) if ctx.needs_input_grad[0] else None
        return (before.add_(1) if ctx.needs_input_grad[1] else before), g.sum(0), None, None
"""

CASES = {
    "Tri": (  # Cholesky solves, writes to a diagonal and a triangle
        "randn(4, 4), randn(4, 2)",
        """
class Tri(Function):
    @staticmethod
    def forward(ctx, A, b):
        L = torch.linalg.cholesky(A @ A.mT + 3 * torch.eye(A.size(-1), dtype=A.dtype))
        x = torch.cholesky_solve(b, L)
        ctx.save_for_backward(L, x)
        return x

    @staticmethod
    def backward(ctx, g):
        L, x = ctx.saved_tensors
        Ag = None
        bg = torch.cholesky_solve(g, L)
        S = -bg @ x.mT
        S.tril_().diagonal(dim1=-2, dim2=-1).mul_(0.5)
        return S, bg
""",
    ),
    "InPlace": (  # mark_dirty of an input that is changed and returned
        "randn(4, 3)",
        """
class InPlace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.clamp_(min=0)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        y, = ctx.saved_tensors
        g = g.clone()
        g[y == 0] = 0
        return g
""",
    ),
    "ViewWrite": (  # writes through rows, columns and a transpose
        "randn(4, 5)",
        """
class ViewWrite(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        top = y[0]
        col = y[:, 1:3]
        top.mul_(3)
        col += 1
        y.t()[0].zero_()
        return y, top * 1

    @staticmethod
    def backward(ctx, g, gt):
        gx = g.clone()
        gx[0] += gt
        gx[0] *= 3
        gx[:, 0] = 0
        return gx
""",
    ),
    "OutArg": (  # out= arguments, and a write to .data
        "randn(4, 5), randn(4, 5)",
        """
class OutArg(Function):
    @staticmethod
    def forward(ctx, x, y):
        out = torch.empty_like(x)
        torch.mul(x, y, out=out)
        torch.add(out, 1, alpha=2, out=out)
        buf = out.data
        buf.clamp_(max=3.0)
        ctx.save_for_backward(x, y, out < 3.0)
        return out

    @staticmethod
    def backward(ctx, g):
        x, y, m = ctx.saved_tensors
        g = torch.where(m, g, torch.tensor(0.0))
        return torch.mul(g, y), torch.mul(x, g)
""",
    ),
    "Rank": (  # argsort of argsort, a diagonal that is zeroed
        "randn(2, 5)",
        """
class Rank(Function):
    @staticmethod
    def forward(ctx, s):
        r = torch.argsort(torch.argsort(s, dim=-1), dim=-1).to(s.dtype) + 1
        ctx.save_for_backward(s)
        return r.div_(s.size(-1))

    @staticmethod
    def backward(ctx, g):
        s, = ctx.saved_tensors
        d = s.unsqueeze(-1) - s.unsqueeze(-2)
        k = torch.reciprocal(1 + d.square_()).div(s.numel() // s.shape[0])
        k.diagonal(dim1=-2, dim2=-1).zero_()
        return torch.bmm(k, g.unsqueeze(-1)).squeeze(-1)
""",
    ),
    "Expm": (  # a matrix exponential of blocks that writes fill
        "randn(3, 3)",
        """
class Expm(Function):
    @staticmethod
    def forward(ctx, A):
        E = torch.linalg.matrix_exp(A)
        ctx.save_for_backward(A)
        return E

    @staticmethod
    def backward(ctx, G):
        A, = ctx.saved_tensors
        n = A.size(-1)
        M = A.new_zeros(2 * n, 2 * n)
        M[:n, :n] = A.t()
        M[n:, n:] = A.t()
        M[:n, n:] = G
        return torch.matrix_exp(M)[:n, n:]
""",
    ),
    "Gather3": (  # advanced indices with axes, a tuple on ctx
        "randn(2, 5, 3), randint(0, 5, (2, 4, 2))",
        """
class Gather3(Function):
    @staticmethod
    def forward(ctx, points, idx):
        B, N, C = points.shape
        _, M, K = idx.shape
        batch = torch.arange(B, device=points.device).view(B, 1, 1).expand(-1, M, K)
        out = points[batch, idx]
        ctx.for_backwards = (batch, idx, N)
        return out.permute(0, 3, 1, 2).contiguous()

    @staticmethod
    def backward(ctx, g):
        batch, idx, N = ctx.for_backwards
        B, C, M, K = g.size()
        gp = torch.zeros([B, N, C], dtype=g.dtype)
        gp.index_put_((batch, idx), g.permute(0, 2, 3, 1), accumulate=True)
        return gp, None
""",
    ),
    "NestedWrite3": (  # a nested function that writes to what it is given and returns it
        "randn(4)",
        """
class NestedWrite3(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        def scale(t):
            t[0] = 0
            return t
        z = scale(y)
        return y + z

    @staticmethod
    def backward(ctx, g):
        return g
""",
    ),
    "HelperWrite": (  # a nested function that writes to what it is given
        "randn(4)",
        """
def bump(t, k=1):
    t += k

class HelperWrite(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        bump(y, 2)
        return y
    @staticmethod
    def backward(ctx, g):
        return g
""",
    ),
    "SavedRows": (  # backward that writes to what was saved, row by row
        "randn(6, 3), randn(3, 3), 2",
        """
class SavedRows(Function):
    @staticmethod
    def forward(ctx, x, w, size):
        ctx.save_for_backward(x * 2, w)
        ctx.size = size
        return (x @ w) ** 2

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        total = torch.zeros_like(w)
        for start in range(0, x.shape[0], ctx.size):
            rows = x[start:start + ctx.size]
            inner = g[start:start + ctx.size] * (rows @ w)
            total.add_(rows.t() @ inner)
            x[start:start + ctx.size].copy_(inner @ w.t())
        return x, total / 2, None
""",
    ),
    "SharesInPlaceOrNot": (  # a helper that writes where a flag says so
        "randn(3, 4), randn(3, 4), False",
        """
def stabilized(t, eps=1e-3, inplace=False):
    if inplace:
        return t.add_(eps)
    else:
        return t + eps

def softened(t, index):
    t.sub_(t.amax(-1, keepdim=True)).exp_()
    return t, t.gather(-1, index)

class SharesInPlaceOrNot(Function):
    @staticmethod
    def forward(ctx, x, y, inplace):
        z = x + y
        first = torch.zeros_like(x[:, :1]).long()
        soft = x * 2
        soft, taken = softened(soft, first)
        ctx.save_for_backward(x, y, z)
        ctx.inplace = inplace
        return z + soft * taken

    @staticmethod
    def backward(ctx, *gradients):
        x, y, z = ctx.saved_tensors
        if ctx.inplace:
            share = gradients[0].div_(stabilized(z.mul_(2), inplace=True))
            scaled = share.mul_(y)
        else:
            share = gradients[0] / stabilized(z * 2, inplace=ctx.inplace)
            scaled = share * y
        unused = x * 3
        del unused
        return scaled, share / stabilized(x + 5, inplace=True), None
""",
    ),
    "ShiftedInPlace": (  # a softmax by writes in place to the input
        "randn(3, 4), 1",
        """
class ShiftedInPlace(Function):
    @staticmethod
    def forward(ctx, x, dim):
        largest, _ = x.max(dim=dim, keepdim=True)
        x -= largest
        y = x.exp()
        y /= y.sum(dim, keepdim=True)
        ctx.dim = dim
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        y, = ctx.saved_tensors
        inner = (g * y).sum(ctx.dim, keepdim=True)
        return y * (g - inner), None
""",
    ),
    "WritesOnOneLine": (  # several statements on one line, writes among them
        "randn(4, 3)",
        """
def doubled_(t): t.mul_(2)


class WritesOnOneLine(Function):
    @staticmethod
    def forward(ctx, x):
        y = x * 1; r = y[1]; r.mul_(2)
        z = y; z += 1; doubled_(y[2])
        for i in range(3): z += y.mean()
        f = lambda: y.sum()
        r.add_(1)
        ctx.save_for_backward(x)
        return r.mul_(2) + y + f()

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        g = g.clone(); r = g[0]; r.zero_(); return g * x
""",
    ),
    "ListOfPowers": (  # an entry of a list is written to, and saved afterwards
        "randn(4, 4), 3",
        """
class ListOfPowers(Function):
    @staticmethod
    def forward(ctx, *args):
        x, n = args
        P = [None] * (n + 1)
        P[0] = torch.eye(x.size(0)).to(x)
        for k in range(n):
            P[k + 1] = torch.addmm(0.5, P[k], 0.1, P[k], x)
        P[1].add_(x)
        out = P[n].mul_(2)
        ctx.save_for_backward(*P)
        return out

    @staticmethod
    def backward(ctx, *grads):
        (g,) = grads
        P = ctx.saved_tensors
        return g * P[-1] + P[1], None
""",
    ),
    "ContextByAnotherName": (  # ctx under another name, a buffer kept on it
        "randn(3, 4), randn(3, 4)",
        """
class ContextByAnotherName(Function):
    @staticmethod
    def forward(context, x, t):
        context.buf = torch.zeros_like(x)
        context.buf.copy_(t)
        context.buf[0] = 5.0
        context.buf.mul_(2)
        rows = context.buf.view(-1)
        rows.add_(1)
        return x * context.buf

    @staticmethod
    def backward(context, g):
        context.buf.mul_(3)
        return g * context.buf, None
""",
    ),
    "Leading": (  # rows with an axis more, a vector that is empty at first, memory that one way alone knows
        "randn(3, 4), randn(4, 4), True",
        """
class Leading(Function):
    @staticmethod
    def forward(ctx, x, w, flag):
        out = torch.Tensor([])
        y = torch.zeros_like(x)
        seen = y if flag else None
        for b in range(len(x)):
            y[b] = x[b:b + 1] @ w
            out = torch.cat((out, x[b:b + 1] * 2), 0)
        large = torch.empty_like(x)
        torch.gt(x, 0, out=large)
        z = torch.exp(y, out=y)
        if seen is not None:
            z = z + seen
        ctx.save_for_backward(x, w, large)
        return z + out * large

    @staticmethod
    def backward(ctx, g):
        x, w, large = ctx.saved_tensors
        return g @ w.t() * large, None, None
""",
    ),
    "Halving": (  # a helper that calls itself for views of what it writes to, and may end early
        "randn(2, 7, 3), rand(2, 7, 3)",
        """
class Halving(Function):
    @staticmethod
    def scan_(a, x):
        if a.size(1) == 1:
            return
        n = 2 * (a.size(1) // 2)
        pairs = a[:, :n].view(a.size(0), n // 2, 2, -1)
        values = x[:, :n].view(x.size(0), n // 2, 2, -1)
        values[:, :, 1].add_(pairs[:, :, 1] * values[:, :, 0])
        pairs[:, :, 1].mul_(pairs[:, :, 0])
        Halving.scan_(pairs[:, :, 1], values[:, :, 1])
        values[:, 1:, 0].add_(pairs[:, 1:, 0] * values[:, :-1, 1])
        if n < a.size(1):
            x[:, -1].add_(a[:, -1] * x[:, -2])

    @staticmethod
    def forward(ctx, x, a):
        ctx.a = a
        y = x.clone()
        Halving.scan_(a.clone(), y)
        return y

    @staticmethod
    def backward(ctx, g):
        gx = g.flip(1)
        Halving.scan_(torch.cat([ctx.a[:, :1], ctx.a.flip(1)[:, :-1]], 1), gx)
        return gx.flip(1), None
""",
    ),
    "RunningStatistics": (  # buffers that forward updates
        "randn(4, 3), randn(3), randn(3), randn(3), rand(3), 0.3, 1e-3, True",
        """
class RunningStatistics(Function):
    @staticmethod
    def forward(ctx, x, w, b, running_mean, running_var, momentum, eps, training):
        if training:
            mean = x.mean(0)
            var = x.var(0, unbiased=False)
            running_mean.mul_(1 - momentum).add_(momentum * mean)
            running_var.copy_((1 - momentum) * running_var + momentum * var)
        else:
            mean, var = running_mean, running_var
        inv = torch.rsqrt(var + eps)
        xh = (x - mean) * inv
        ctx.save_for_backward(xh, w, inv)
        return xh * w + b

    @staticmethod
    def backward(ctx, g):
        xh, w, inv = ctx.saved_tensors
        gw = (g * xh).sum(0)
        gb = g.sum(0)
        gx = g * w
        gx = (gx - gx.mean(0) - xh * (gx * xh).mean(0)) * inv
        return gx, gw, gb, None, None, None, None, None
""",
    ),
}
