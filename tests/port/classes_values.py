"""Functions that branch and count on values, and calls with arguments that are opened."""

CASES = {
    "IntRound": (  # int() and round() of tensors' values in arithmetic
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
    "ToStar": (  # a device and a dtype kept on ctx, given by a star
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
    "StaticRec": (  # a helper that calls itself, by Python numbers
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
    "WhileTruePython": (  # while True that a Python number ends
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
    "IntScale": (  # ceil, log2 and powers of tensors' values as Python numbers
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
    "Likelihood": (  # distributions in a helper and on ctx
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
}
