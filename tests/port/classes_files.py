"""Code around a class in its file: registries, changes at import, imports that may fail; and match."""

CASES = {
    "Patched": (  # a method that the file gives the class afterwards
        "randn(4)",
        """
class Patched(Function):
    scale = 2.0
    slope = scale * 3

    @staticmethod
    def forward(ctx, x):
        return x * Patched.scale

    @staticmethod
    def backward(ctx, g):
        return g * 100


def _backward(ctx, g):
    return g * Patched.slope


Patched.backward = staticmethod(_backward)
""",
    ),
    "Older": (  # what stands for imports that every PyTorch of today has
        "randn(4)",
        """
try:
    from torch.cuda.amp import custom_bwd, custom_fwd
except ImportError:
    def custom_fwd(f):
        return f

    def custom_bwd(f):
        return f

try:
    from torch.special import expit
    NEW = True
except ImportError as e:
    NEW = False

    def expit(x):
        return 1 / (1 + torch.exp(-x))

try:
    import no_such_extension
except ImportError as e:
    print("not there", e)
    no_such_extension = None


class Older(Function):
    @staticmethod
    @custom_fwd
    def forward(ctx, x):
        y = expit(x)
        ctx.save_for_backward(y)
        return y if NEW and no_such_extension is None else y * 2

    @staticmethod
    @custom_bwd
    def backward(ctx, g):
        y, = ctx.saved_tensors
        return g * y * (1 - y)
""",
    ),
    "Matched": (  # Python's match, and the else of a loop
        "randn(2, 3), ('power', 3)",
        """
class Matched(Function):
    @staticmethod
    def forward(ctx, x, mode):
        k = 1
        match mode:
            case "tanh":
                return x.tanh()
            case ("power", n) if n > 2:
                y = x.clone()
                y[0] = n
                x = y.pow(n)
            case _:
                k = 2
        while x.dim() < 3:
            x = x.unsqueeze(0)
        else:
            x = x.squeeze(0)
        return x.clone().mul_(k)

    @staticmethod
    def backward(ctx, g):
        return g * 2, None
""",
    ),
    "Chosen": (  # a row of functions by default, another in a call; the largest of several numbers
        "randn(4)",
        """
def piped(x, steps=(torch.tanh, torch.exp)):
    for step in steps:
        x = step(x)
    return x


class Chosen(Function):
    @staticmethod
    def forward(ctx, x):
        norms = [x.abs().max(), x.norm()]
        return piped(x) / max(*norms, 1.0)

    @staticmethod
    def backward(ctx, g):
        count = (g > 0).sum()
        return piped(g, [torch.sin]) * float(count + 1) ** -1
""",
    ),
    "Halves": (  # what helpers give in one memory
        "randn(2, 3)",
        """
def halves(x):
    y = x * 2
    return y, y[0]


class Halves(Function):
    @staticmethod
    def forward(ctx, x):
        whole, first = halves(x)
        first.zero_()
        return whole

    @staticmethod
    def backward(ctx, g):
        return ctx.needs_input_grad[0] * g
""",
    ),
}
