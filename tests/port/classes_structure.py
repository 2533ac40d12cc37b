"""Functions whose code is built in other ways: helpers, mixins, factories, decorators, recomputation."""

CASES = {
    "Recompute": (  # backward computes forward again under enable_grad
        "randn(3, 4), randn(4, 5)",
        """
class Recompute(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        with torch.no_grad():
            y = torch.tanh(x @ w)
        return y

    @staticmethod
    def backward(ctx, grad_out):
        x, w = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            w = w.detach().requires_grad_(True)
            y = torch.tanh(x @ w)
        gx, gw = torch.autograd.grad(y, (x, w), grad_out)
        return gx, gw
""",
    ),
    "Setup": (  # setup_context, save_for_forward, two outputs
        "randn(4), randn(4), 3.0",
        """
class Setup(Function):
    @staticmethod
    def forward(x, y, scale=2.0):
        return x * y * scale, x.sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, scale = inputs
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y)
        ctx.scale = scale

    @staticmethod
    def backward(ctx, g, gs):
        x, y = ctx.saved_tensors
        return g * y * ctx.scale + gs.expand_as(x), g * x * ctx.scale, None
""",
    ),
    "Dtypes": (  # custom_fwd with a cast, finfo, a check of the dtype
        "randn(4, 5), 1.5",
        """
class Dtypes(Function):
    @staticmethod
    @torch.cuda.amp.custom_fwd(cast_inputs=torch.float32)
    def forward(ctx, x, p: float):
        if not torch.is_floating_point(x):
            raise TypeError(f"got {x.dtype}")
        eps = torch.finfo(x.dtype).eps
        a = x.abs().clamp(min=eps)
        s = torch.sign(x)
        ctx.save_for_backward(a, s)
        ctx.p = p
        return s * a.pow(p)

    @staticmethod
    @torch.cuda.amp.custom_bwd
    def backward(ctx, g):
        a, s = ctx.saved_tensors
        return g * ctx.p * a ** (ctx.p - 1), None
""",
    ),
    "Quant": (  # a straight-through helper, a class method and a class constant
        "randn(4, 3, 2), True",
        """
def round_pass(x):
    y = x.round()
    return (y - x).detach() + x

@torch.no_grad()
def scale_of(w, bits, per_channel):
    if per_channel:
        s = w.reshape(w.shape[0], -1).abs().amax(1)
        s = s.view(-1, *([1] * (w.dim() - 1)))
    else:
        s = w.abs().max()
    return s.clamp(min=1e-8) / (2 ** (bits - 1) - 1)

class Quant(torch.autograd.Function):
    n_bits = 8

    @classmethod
    def limits(cls):
        return -2 ** (cls.n_bits - 1), 2 ** (cls.n_bits - 1) - 1

    @staticmethod
    def forward(ctx, w, per_channel):
        s = scale_of(w, Quant.n_bits, per_channel)
        lo, hi = Quant.limits()
        q = torch.clamp(torch.div(w, s).round(), lo, hi)
        ctx.save_for_backward((w / s).ge(lo) & (w / s).le(hi))
        return q.mul(s)

    @staticmethod
    def backward(ctx, g):
        (inside,) = ctx.saved_tensors
        return g * inside, None
""",
    ),
    "Mixin": (  # methods of a second base, gradients that may be None
        "randn(4), randn(4), 3",
        """
class SaveMixin:
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2])
        ctx.set_materialize_grads(False)

class Mixin(SaveMixin, torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, y, n):
        return torch.hypot(x, y) * n

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return None, None, None
        x, y = ctx.saved_tensors
        r = torch.hypot(x, y)
        return 3 * g * x / r, 3 * g * y / r, None
""",
    ),
    "Factory": (  # a class that a function makes
        "randn(4)",
        """
def make(k):
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.pow(x, k)

        @staticmethod
        def backward(ctx, g):
            x, = ctx.saved_tensors
            return g * k * x ** (k - 1)
    return Inner

class Factory(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return make(3).apply(x)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return 3 * g * x.square()
""",
    ),
    "While": (  # a while on a Python number
        "rand(4) + 1",
        """
class While(Function):
    @staticmethod
    def forward(ctx, x):
        n = 0
        while n < 4:
            x = x - (x ** 2 - 2) / (2 * x)
            n += 1
        ctx.x = x
        return x

    @staticmethod
    def backward(ctx, g):
        return torch.addcdiv(torch.zeros_like(g), g, 2 * ctx.x, value=0.5)
""",
    ),
    "Swish": (  # scripted helpers, symbolic for ONNX
        "randn(4, 5), 1.5",
        """
@torch.jit.script
def swish_fwd(x: Tensor, beta: float) -> Tensor:
    return x.mul(torch.sigmoid(beta * x))

@torch.jit.script
def swish_bwd(x: Tensor, g: Tensor, beta: float) -> Tensor:
    s = torch.sigmoid(beta * x)
    return g * (s * (1 + beta * x * (1 - s)))

class Swish(Function):
    '''Swish with a constant.'''

    @staticmethod
    def symbolic(g, x, beta):
        return g.op("Mul", x, g.op("Sigmoid", x))

    @staticmethod
    def forward(ctx, x, beta=1.0):
        ctx.save_for_backward(x)  # needed for the gradient
        ctx.beta = beta
        return swish_fwd(x, beta)

    @staticmethod
    def backward(ctx, grad_output):
        x = ctx.saved_tensors[0]
        return swish_bwd(x, grad_output, ctx.beta), None
""",
    ),
    "ObjectsOfTheFile": (  # objects of the file's classes, and SimpleNamespace
        "randn(3, 4)",
        """
from types import SimpleNamespace


class Normalizer:
    def __init__(self, mean, std, T):
        self.mean = mean
        self.std = std
        self.T = T
        self.step = 0
        self.shape = mean.shape
        self.data, self.t = mean, std

    def __call__(self, v):
        self.step += 1
        return (v - self.mean) / (self.std * self.T) + self.data * self.step


class ObjectsOfTheFile(Function):
    @staticmethod
    def forward(ctx, x):
        norm = Normalizer(x.mean(1, keepdim=True), x.std(1, keepdim=True), 2.0)
        names = SimpleNamespace(data=x, mean=x.mean(), item=3)
        names.T = 5.0
        return norm(x) + names.data * names.T - names.mean * names.item

    @staticmethod
    def backward(ctx, g):
        return g
""",
    ),
    "CountedCalls": (  # a global that forward counts
        "randn(3)",
        """
CALLS = 0


class CountedCalls(Function):
    @staticmethod
    def forward(ctx, x):
        global CALLS
        CALLS += 1
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2
""",
    ),
    "DevicesAsked": (  # comparisons of devices
        "randn(3)",
        """
class DevicesAsked(Function):
    @staticmethod
    def forward(ctx, x):
        device = torch.device("cuda:0") if x.is_cuda else x.device
        ctx.device = x.device
        if x.device == torch.device("cuda:0") or x.device in (torch.device("cuda", 1),):
            return x
        if x.device == "cpu" or not device or torch.device("cuda:1").type != "cuda":
            return x * 3
        if x.device != device or str(x.device).startswith("cuda"):
            return x * 5
        return x.to(device) * (2 if x.device == torch.device("cpu") else 7)

    @staticmethod
    def backward(ctx, g):
        if ctx.device.type == "cuda":
            return g * 5
        return g.to(ctx.device) * 2
""",
    ),
    "RowsOfTheWeight": (  # embedding with a padding index, recomputed
        "randn(5, 3), array([0, 2, 2, 4])",
        """
class RowsOfTheWeight(Function):
    @staticmethod
    def forward(ctx, weight, indices):
        ctx.save_for_backward(weight, indices)
        return torch.embedding(weight, indices) + F.embedding(indices, weight, padding_idx=2)

    @staticmethod
    def backward(ctx, g):
        weight, indices = ctx.saved_tensors
        with torch.enable_grad():
            w = weight.detach().requires_grad_()
            y = torch.embedding(w, indices, 0) ** 2 + F.embedding(indices, w, 2) + F.embedding(indices, w, None)
        return torch.autograd.grad(y, w, g)[0], None
""",
    ),
    "LayersWithoutState": (  # layers made and called in forward
        "randn(3, 4)",
        """
squash = nn.LeakyReLU(0.2)


class LayersWithoutState(Function):
    @staticmethod
    def forward(ctx, x):
        act = nn.GELU()
        ctx.save_for_backward(x)
        return act(x) + torch.nn.Sigmoid()(x) + nn.Softmax(dim=1)(x) + squash(x) + nn.MSELoss(reduction="sum")(x, x * 2)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * nn.Tanh()(x)
""",
    ),
    "WithoutBias": (  # save_for_backward and F.linear take None too
        "randn(5, 3), randn(2, 3), None",
        """
class WithoutBias(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight, bias)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, g):
        x, weight, bias = ctx.saved_tensors
        dx, dw, db = g @ weight, g.t() @ F.linear(x, weight.t() @ weight, bias), None
        if bias is not None:
            db = g.sum(0)
        return dx, dw, db
""",
    ),
    "WithItsOwnScore": (  # what derived classes alone define is known by their methods
        "randn(5, 3), randint(0, 3, (5,)), 3",
        """
class Score(Function):
    @classmethod
    def forward(cls, ctx, x, target, options):
        p = cls.project(x, **options)
        loss = cls.omega(p)
        p.scatter_add_(1, target.unsqueeze(1), torch.full_like(p, -1))
        loss += torch.einsum("ij,ij->i", p, x)
        ctx.save_for_backward(p)
        return loss

    @classmethod
    def backward(cls, ctx, g):
        (p,) = ctx.saved_tensors
        return (g.unsqueeze(1) * p,) + (None,) * cls.others

class WithASoftmax(Score):
    others = 2

    @classmethod
    def project(cls, x, k):
        return torch.softmax(x, -1)

    @classmethod
    def omega(cls, p):
        return -(p * p.log()).sum(1)

class WithItsOwnScore(Score):
    others = 2

    @classmethod
    def project(cls, x, k):
        return x.clamp(0, k)

    @classmethod
    def omega(cls, p):
        return (p**2).sum(1)

    @classmethod
    def forward(cls, ctx, x, target, k):
        return super().forward(ctx, x, target, dict(k=k))
""",
    ),
    "GivenBack": (  # a helper keeps things on ctx and gives it back; keywords from a dictionary that a helper makes
        "randn(3, 4, 2), 1",
        """
def kind(x):
    return dict(dtype=x.dtype, device=x.device)

def flat(ctx, x):
    x = x.transpose(0, ctx.dim)
    ctx.original_size = x.size()
    x = x.reshape(x.size(0), -1)
    return ctx, x.transpose(0, -1)

def unflat(ctx, x):
    x = x.transpose(0, 1).reshape(ctx.original_size)
    return ctx, x.transpose(0, ctx.dim)

class GivenBack(Function):
    @staticmethod
    def forward(ctx, x, dim=-1):
        ctx.dim = dim
        if x.dim() > 2:
            ctx, x = flat(ctx, x)
        y = x.softmax(-1) * torch.arange(x.size(-1), **kind(x))
        ctx.save_for_backward(y)
        ctx, y = unflat(ctx, y)
        return y

    @staticmethod
    def backward(ctx, g):
        y, *_ = ctx.saved_tensors
        ctx, g = flat(ctx, g)
        g = y * (g - (g * y).sum(-1, keepdim=True))
        ctx, g = unflat(ctx, g)
        return g, None
""",
    ),
    "RowsSaved": (  # so are rows of them
        "randn(2, 3, 6, 6), (2, 3), 2",
        """
class Strided(Function):
    @staticmethod
    def forward(ctx, x, stride):
        ctx.save_for_backward(x, torch.tensor([stride]))
        return x[..., ::stride]

    @staticmethod
    def backward(ctx, g):
        x, stride = ctx.saved_tensors
        stride = stride.item()
        out = torch.zeros_like(x)
        out[..., ::stride] = g
        return out, None

class RowsSaved(Function):
    @staticmethod
    def forward(ctx, x, kernel, k):
        y = F.avg_pool2d(Strided.apply(x, 1), kernel)
        size = torch.tensor(x.shape[2:], device=x.device)
        ctx.save_for_backward(
            y, torch.tensor(x.size(), dtype=torch.long), torch.tensor(kernel), size, torch.tensor([k, 2.5])
        )
        return y

    @staticmethod
    def backward(ctx, g):
        y, shape, kernel, size, factors = ctx.saved_tensors
        kernel = kernel.tolist()
        k, _ = factors
        area = kernel[0] * kernel[1]
        g = F.interpolate(g * y / area, size=shape.tolist()[2:], mode="nearest")
        return g.reshape(torch.Size(shape)) * k + factors[1].item() * len(size), None, None
""",
    ),
    "DimSaved": (  # numbers that are saved as tensors are numbers
        "randn(3, 4), -1",
        """
class Along(Function):
    @staticmethod
    def forward(ctx, x, dim):
        ctx.save_for_backward(x, dim)
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        x, dim = ctx.saved_tensors
        return torch.sum(g * x, dim.item(), keepdim=True) * x, None

class DimSaved(Function):
    @staticmethod
    def forward(ctx, x, dim):
        n = x.size(dim)
        ctx.save_for_backward(x, torch.tensor(dim), torch.tensor(n, device=x.device))
        return Along.apply(x, torch.tensor(dim)).logsumexp(dim)

    @staticmethod
    def backward(ctx, g):
        x, dim, n = ctx.saved_tensors
        rows = torch.ones(n.item(), dtype=x.dtype)
        if dim < 0:
            dim = dim + x.dim()
        g = g.unsqueeze(dim) * x.softmax(dim) * rows / n
        return g, None
""",
    ),
    "Tables": (  # what the module changes after it has made it
        "randn(3, 4)",
        """
TABLE = {}
for k in range(3):
    TABLE[k] = 2.0 ** k
LEVELS = torch.zeros(4)
LEVELS[1:] = 2
for k in range(4):
    LEVELS[k] += k
KINDS = {"square": lambda x: x ** 2}
KINDS["exp"] = lambda x: torch.exp(x)
KEPT = [1]
KEPT.append(3)

class Tables(Function):
    alpha = 1.0

    @staticmethod
    def forward(ctx, x):
        ctx.given = {"b": x * 2, "a": x}
        return x * Tables.alpha * TABLE[2] * LEVELS + KEPT[1] * KINDS["exp"](x)

    @staticmethod
    def backward(ctx, g):
        first, second = ctx.given.values()
        return g * Tables.alpha * first + second.sum()

Tables.alpha = 5.0
""",
    ),
}
