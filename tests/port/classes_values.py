"""Functions that branch and count on values, and calls with arguments that are opened."""

CASES = {
    "IntRound": (
        "randn(4, 3), 8",
        """
class IntRound(Function):
    @staticmethod
    def forward(ctx, x, bits):
        mn, mx = x.min().item(), x.max().item()
        qmax = 2 ** bits - 1
        scale = (mx - mn) / qmax
        zp = int(round(-mn / scale))
        zp = max(0, min(qmax, zp))
        q = torch.clamp(torch.round(x / scale) + zp, 0, qmax)
        return (q - zp) * scale

    @staticmethod
    def backward(ctx, g):
        return g, None
""",
    ),
    "TwoBreaks": (
        "rand(5)",
        """
class TwoBreaks(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.ones_like(x)
        for i in range(30):
            new = 0.5 * (y + x / y)
            if not torch.isfinite(new).all():
                break
            diff = (new - y).norm()
            y = new
            if diff < 1e-4:
                break
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        y, = ctx.saved_tensors
        return g / (2 * y)
""",
    ),
    "ToStar": (
        "randn(4, 3)",
        """
class ToStar(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.d = (x.device, x.dtype)
        return x.float() * 2

    @staticmethod
    def backward(ctx, g):
        return (2 * g).to(*ctx.d)
""",
    ),
    "StaticRec": (
        "randn(8)",
        """
def fwht(x, n):
    if n == 1:
        return x
    h = n // 2
    a, b = x[:h], x[h:]
    return torch.cat([fwht(a + b, h), fwht(a - b, h)])

class StaticRec(Function):
    @staticmethod
    def forward(ctx, x):
        return fwht(x, x.shape[0])

    @staticmethod
    def backward(ctx, g):
        return fwht(g, g.shape[0])
""",
    ),
    "BreakThree": (
        "rand(5), 30",
        """
class BreakThree(Function):
    @staticmethod
    def forward(ctx, b, n_iter):
        x = torch.zeros_like(b)
        r = b - 2 * x
        p = r.clone()
        rs = torch.dot(r, r)
        for k in range(n_iter):
            Ap = p * (1 + b)
            pAp = torch.dot(p, Ap)
            if pAp.abs() < 1e-10:
                break
            alpha = rs / pAp
            x = x + alpha * p
            r = r - alpha * Ap
            new = torch.dot(r, r)
            if new.sqrt() < 1e-5:
                break
            p = r + (new / rs) * p
            rs = new
        ctx.save_for_backward(x, b)
        return x

    @staticmethod
    def backward(ctx, g):
        x, b = ctx.saved_tensors
        return g / (1 + b), None
""",
    ),
    "BreakLater": (
        "rand(5)",
        """
class BreakLater(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.ones_like(x)
        for i in range(20):
            if y.sum() > 100:
                y = y * 0
                break
            step = y + x
            y = step * 1.5
            if y.max() > 10:
                y = -y
                break
            y = y + 1
        return y

    @staticmethod
    def backward(ctx, g):
        return g
""",
    ),
    "WhileTrue": (
        "rand(5)",
        """
class WhileTrue(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.ones_like(x)
        k = 0
        while True:
            new = 0.5 * (y + x / y)
            err = (new - y).abs().max()
            y = new
            k += 1
            if err < 1e-5 or k > 100:
                break
        ctx.save_for_backward(y)
        ctx.k = k
        return y

    @staticmethod
    def backward(ctx, g):
        y, = ctx.saved_tensors
        return g / (2 * y)
""",
    ),
    "WhileTruePython": (
        "rand(5), 3",
        """
class WhileTruePython(Function):
    @staticmethod
    def forward(ctx, x, n):
        k = 0
        while True:
            x = x * 2
            k += 1
            if k >= n:
                break
        ctx.k = k
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 2 ** ctx.k, None
""",
    ),
    "ChainedTargets": (
        "randn(3, 3)",
        """
class ChainedTargets(Function):
    @staticmethod
    def forward(ctx, x):
        H = torch.zeros(x.shape[0] + 1, x.shape[0] + 1, dtype=x.dtype, layout=x.layout, device=x.device)
        H[0, 1:] = H[1:, 0] = 1
        H[1:, 1:] = x
        m = (x > 0).type(torch.FloatTensor).type_as(x)
        ctx.save_for_backward(m)
        return H * 2

    @staticmethod
    def backward(ctx, g):
        m, = ctx.saved_tensors
        dtype = torch.LongTensor
        return 2 * g[1:, 1:] * m + m.type(dtype).type_as(g)
""",
    ),
    "WhileAnd": (
        "rand(5)",
        """
class WhileAnd(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.ones_like(x)
        it = 0
        err = float('inf')
        while err > 1e-6 and it < 50:
            new = 0.5 * (y + x / y)
            err = (new - y).abs().max().item()
            y = new
            it += 1
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        y, = ctx.saved_tensors
        return g / (2 * y)
""",
    ),
    "IntScale": (
        "randn(4, 3), 8",
        """
class IntScale(Function):
    @staticmethod
    def forward(ctx, x, bits):
        e = int(math.ceil(math.log2(x.abs().max().item())))
        frac = bits - 1 - e
        scale = 2 ** -frac
        n = int(x.shape[0])
        q = torch.clamp(torch.round(x / scale), -2 ** (bits - 1), 2 ** (bits - 1) - 1)
        k = round(x.mean().item() * 10)
        return q * scale * n + k

    @staticmethod
    def backward(ctx, g):
        return g, None
""",
    ),
    "IntBranch": (
        "randn(4, 3)",
        """
class IntBranch(Function):
    @staticmethod
    def forward(ctx, x):
        k = int((x > 0).sum())
        if k > 5:
            y = x * k
        else:
            y = x - k
        ctx.k = k
        return y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k if ctx.k > 5 else g
""",
    ),
    "Likelihood": (
        "randn(4, 3), rand(3), rand(4, 3)",
        """
from torch.distributions import Laplace
from torch.distributions.normal import Normal
import torch.distributions as D

def score(d, x):
    return d.log_prob(x).sum(), d.mean

class Likelihood(Function):
    @staticmethod
    def forward(ctx, x, mu, sigma):
        prior = Normal(mu, sigma + 1, validate_args=False)
        other = Laplace(loc=mu, scale=sigma + 1)
        ctx.d = prior
        ctx.save_for_backward(x, mu, sigma)
        total, mean = score(prior, x)
        return total * other.loc + other.log_prob(x) + D.Bernoulli(logits=x).probs, mean + Normal(0.0, 1.0).cdf(x)

    @staticmethod
    def backward(ctx, g, h):
        x, mu, sigma = ctx.saved_tensors
        density = Normal(0.0, 1.0).log_prob(x).exp()
        return g * ctx.d.log_prob(x).exp() + h * density, (h * ctx.d.cdf(x)).sum(0), g * ctx.d.variance, None
""",
    ),
    "Levels": (
        "randn(4, 3), 32",
        """
class Levels(Function):
    @staticmethod
    def forward(ctx, x, k: int):
        n = 2 ** k - 1
        ctx.n = (1 << k) - 1
        y = torch.clamp(x.sigmoid() * n, -n, n)
        return torch.round(x * n) / n + y / n + (x.tanh() > -n)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.n, None
""",
    ),
}
