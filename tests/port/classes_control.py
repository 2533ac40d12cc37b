"""Functions that branch on values and loop until values say so."""

CASES = {
    "EarlyReturn": (  # a return in a branch that a tensor's value chooses
        "randn(5, 3)",
        """
class EarlyReturn(Function):
    @staticmethod
    def forward(ctx, x):
        n = x.norm()
        if n > 1:
            return x / n
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g
""",
    ),
    "ForBreak": (  # a loop that breaks on a tensor's value
        "rand(5) + 1",
        """
class ForBreak(Function):
    @staticmethod
    def forward(ctx, x):
        y = x
        for i in range(30):
            new = 0.5 * (y + x / y)
            if (new - y).abs().max() < 1e-7:
                y = new
                break
            y = new
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        y, = ctx.saved_tensors
        return g / (2 * y)
""",
    ),
    "MaxPy": (  # Python's max of a tensor's value
        "randn(5, 3)",
        """
class MaxPy(Function):
    @staticmethod
    def forward(ctx, x):
        s = max(x.abs().max().item(), 1e-8)
        return x / s

    @staticmethod
    def backward(ctx, g):
        return g
""",
    ),
    "PowerIter": (  # a break before a division by what may be zero
        "randn(4, 4), 50",
        """
class PowerIter(Function):
    @staticmethod
    def forward(ctx, A, n):
        v = torch.ones(4, dtype=A.dtype) / 2
        for i in range(n):
            w = A @ v
            nrm = w.norm()
            if nrm == 0:
                break
            v = w / nrm
        return torch.outer(v, v)

    @staticmethod
    def backward(ctx, g):
        return g, None
""",
    ),
    "HalfCond": (  # a number that only one branch makes an array
        "randn(5, 3)",
        """
class HalfCond(Function):
    @staticmethod
    def forward(ctx, x):
        n = x.norm()
        scale = 1.0
        if n > 1.0:
            inv = 1 / n
            y = x * inv
            scale = inv
        else:
            y = x
        return y * scale

    @staticmethod
    def backward(ctx, g):
        return g
""",
    ),
    "CondInplace": (  # writes in a branch that a tensor's value chooses
        "randn(5, 3)",
        """
class CondInplace(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        if x.sum() > 0:
            y.mul_(2)
            y[0] = 0
        return y

    @staticmethod
    def backward(ctx, g):
        return g
""",
    ),
    "NanSkip": (  # a backward that returns zeros for infinities
        "randn(5, 3)",
        """
class NanSkip(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        if torch.isnan(g).any() or torch.isinf(g).any():
            return torch.zeros_like(g)
        return g.clamp(-1, 1)
""",
    ),
    "NormClip": (  # a value by item() in a condition and in arithmetic
        "randn(5, 3)",
        """
class NormClip(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        norm = g.norm(p=2).item()
        if norm > 1.0:
            g = g * (1.0 / norm)
        return g
""",
    ),
    "RangeOfOneEntry": (  # a scalar takes the place of an array with one entry
        "randn(5, 3), rand(1) * 0, rand(1) + 1",
        """
class RangeOfOneEntry(Function):
    @staticmethod
    def forward(ctx, x, low, high):
        if low is None or (low == 0).all():
            low = x.min()
        if (high == 0).all():
            high = x.max()
        step = (high - low) / 15 if high.numel() == 1 else low
        if step.sum() < 0:
            step, low = x.abs().max(), x.mean()
        ctx.save_for_backward(low, high)
        return torch.round((x - low) / step) * step + low

    @staticmethod
    def backward(ctx, g):
        low, high = ctx.saved_tensors
        top = high if (high > low).all() else g.max()
        return g * top, None, None
""",
    ),
    "PowerOfTwoScale": (  # a helper with a branch on a tensor's value, powers of two exact
        "randn(4, 3), rand(1)",
        """
def rounded(x, scale):
    if scale < 2 ** -10:
        power = 0
    else:
        power = 1 / scale
        power = torch.floor(power.log2())
    scale = 1 / (2 ** power)
    return torch.round(x / scale) * scale


class PowerOfTwoScale(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        return rounded(x, scale)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * (x.abs() < 1), None
""",
    ),
    "SumOverPerhapsNoAxes": (  # an empty list of axes means all axes
        "randn(4, 3), [4, 3]",
        """
class SumOverPerhapsNoAxes(Function):
    @staticmethod
    def forward(ctx, x, shape):
        ones = [i for i, n in enumerate(shape) if n == 1]
        return x.sum(dim=ones) + x.mean(tuple(ones), keepdim=True)

    @staticmethod
    def backward(ctx, g):
        return g.sum().expand(4, 3), None
""",
    ),
    "KeyedByDtype": (  # tables with dtypes as keys
        "randn(4, 3)",
        """
WIDER = {torch.float16: torch.float32, torch.float32: torch.float64}
FACTORS = {torch.float32: 3.0, torch.float64: 3.0}


class KeyedByDtype(Function):
    @staticmethod
    def forward(ctx, x):
        wide = x.to(WIDER.get(torch.float16))
        return wide * FACTORS[x.dtype] if x.dtype in {torch.float32, torch.float64} else wide

    @staticmethod
    def backward(ctx, g):
        return 3 * g
""",
    ),
    "SoftAlignment": (  # nested loops that fill arrays
        "randn(2, 4, 5), 1",
        """
def aligned(D, bandwidth):
    n, m = D.shape[1:]
    R = torch.full((D.shape[0], n + 1, m + 1), 1e4, dtype=D.dtype)
    R[:, 0, 0] = 0
    for b in range(D.shape[0]):
        for j in range(1, m + 1):
            for i in range(1, n + 1):
                if abs(i - j) > bandwidth + 1:
                    continue
                best = torch.stack([-R[b, i - 1, j - 1], -R[b, i - 1, j], -R[b, i, j - 1]])
                R[b, i, j] = D[b, i - 1, j - 1] - torch.logsumexp(best, 0)
    return R

class SoftAlignment(Function):
    @staticmethod
    def forward(ctx, D, bandwidth):
        R = aligned(D, bandwidth)
        ctx.save_for_backward(D, R)
        return R[:, -1, -1]

    @staticmethod
    def backward(ctx, g):
        D, R = ctx.saved_tensors
        n, m = D.shape[1:]
        E, steps = torch.zeros_like(R), torch.zeros_like(D[0])
        E[:, n, m] = 1
        for i in range(n - 1, -1, -1):
            w = 0.5 * i
            for j in range(m - 1, -1, -1):
                E[:, i, j] += w * E[:, i + 1, j + 1] + R[:, i, j].tanh()
                steps[i, j] = i + j
        return g[:, None, None] * (E[:, 1:, 1:] + steps), None
""",
    ),
    "OneLine": (  # branches on one line, numbers of two kinds, helpers that answer
        "randn(3, 4)",
        """
def bad(v):
    if torch.isnan(v).any(): return True
    return False

def factor(t):
    if t.mean() > 0: return 2.0
    return 3

class OneLine(Function):
    @staticmethod
    def forward(ctx, x):
        k = 1
        if x.sum() > 0: x = x * 2
        else: x = x - 1
        if x.mean() > 0:
            k += 0.5
        ctx.ok = not bad(x)
        if x.max() > 2: return x / 2 * k
        return x * factor(x)

    @staticmethod
    def backward(ctx, g):
        if g.norm() > 1: g = g / g.norm()
        if bad(g):
            g = torch.zeros_like(g)
        if ctx.ok:
            g = g * 2
        return g
""",
    ),
    "BestScale": (  # what a search keeps is first bound in the branch that finds it
        "randn(3, 4), 5, 2",
        """
class BestScale(Function):
    @staticmethod
    def forward(ctx, x, n: int, k: int):
        rows = []
        for j in range(k):
            best, at = float("inf"), 0
            for i in range(n):
                q = torch.round(x * (i + 1 + j)) / (i + 1 + j)
                e = (q - x).pow(2).sum()
                if e < best:
                    best, at = e, i
                    out = q
            rows.append(out * at)
        for i in range(n):
            y = x * (i + 1)
            if y.abs().sum() > 1:
                last = y
        return torch.stack(rows).sum(0) + last

    @staticmethod
    def backward(ctx, g):
        return g, None, None
""",
    ),
    "FlaggedHelper": (  # branches that return numbers beside arrays
        "randn(3, 4)",
        """
def scaled(x):
    m = x.abs().max()
    if m == 0:
        return x, 1
    return x / m, m

def flagged(x):
    if x.sum() > 0:
        return x * 2, True
    return -x, False

class FlaggedHelper(Function):
    @staticmethod
    def forward(ctx, x):
        y, m = scaled(x)
        z, ctx.flag = flagged(y * m)
        w, one = scaled(x * 0)
        return z + w * one

    @staticmethod
    def backward(ctx, g):
        if ctx.flag:
            return g * 2
        return -g
""",
    ),
    "BoundsOfChannels": (  # a scalar that may take the place of an array
        "randn(3, 6), randn(6), randn(6), array([1.0]), array([1.0])",
        """
class BoundsOfChannels(Function):
    @staticmethod
    def forward(ctx, x, lo, hi, a, b):
        if (lo == hi).all():
            lo, hi = x.min(), x.max()
        if (a == b).all():
            a, b = x.amin(), x.amax()
        ctx.save_for_backward(x)
        return torch.maximum(x, lo) - hi + a * b

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * x, None, None, None, None
""",
    ),
}
