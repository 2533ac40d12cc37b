"""Functions whose code is built in other ways: helpers, mixins, factories, decorators, recomputation."""

CASES = {
    "Recompute": (
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
    "Setup": (
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
    "Nested": (
        "randn(4)",
        """
class Inner(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * x.cos()

class Nested(Function):
    @staticmethod
    def forward(ctx, x, act=F.relu):
        ctx.save_for_backward(x)
        return act(Inner.apply(x))

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        y = torch.sin(x)
        return g * (y > 0).to(g.dtype) * torch.cos(x), None
""",
    ),
    "Outlist": (
        "randn(3, 4), randn(4, 5), randn(5, 2)",
        """
class Outlist(Function):
    @staticmethod
    def forward(ctx, x, *weights):
        outs = []
        h = x
        for w in weights:
            h = torch.relu(h @ w)
            outs.append(h)
        ctx.save_for_backward(x, *weights, *outs)
        ctx.n = len(weights)
        return h

    @staticmethod
    def backward(ctx, g):
        saved = ctx.saved_tensors
        x, weights, outs = saved[0], saved[1:1 + ctx.n], saved[1 + ctx.n:]
        grads = [None] * ctx.n
        for i in reversed(range(ctx.n)):
            g = g * (outs[i] > 0)
            inp = outs[i - 1] if i > 0 else x
            grads[i] = inp.t().mm(g)
            g = g.mm(weights[i].t())
        return (g, *grads)
""",
    ),
    "Dtypes": (
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
    "Quant": (
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
    "Mixin": (
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
    "Factory": (
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
    "While": (
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
    "NumpyInside": (
        "rand(4) + 1",
        """
import numpy as np

class NumpyInside(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().cpu().numpy()
        y = np.sqrt(np.abs(a)) + np.pi
        ctx.save_for_backward(x)
        return torch.from_numpy(y).to(x.device)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * x.sign() * 0.5 / x.abs().sqrt()
""",
    ),
    "Swish": (
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
}
