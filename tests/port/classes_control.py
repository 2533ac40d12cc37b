"""Functions that branch on values and loop until values say so."""

CASES = {
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
}
