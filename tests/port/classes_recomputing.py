"""Functions whose backward differentiates a forward of its own."""

CASES = {
    "RevBlock": (  # a reversible block: backward computes the input again
        "randn(3, 4), randn(2, 2)",
        """
class RevBlock(Function):
    @staticmethod
    def forward(ctx, x, w):
        x1, x2 = torch.chunk(x, 2, dim=1)
        with torch.no_grad():
            y1 = x1 + torch.tanh(x2 @ w)
            y2 = x2 + torch.sigmoid(y1 @ w)
        ctx.save_for_backward(y1.detach(), y2, w)
        return torch.cat([y1, y2], dim=1)

    @staticmethod
    def backward(ctx, dy):
        y1, y2, w = ctx.saved_tensors
        dy1, dy2 = dy.chunk(2, dim=1)
        with torch.enable_grad():
            y1.requires_grad = True
            wd = w.detach().requires_grad_()
            gy1 = torch.sigmoid(y1 @ wd)
            gy1.backward(dy2, retain_graph=True)
        with torch.no_grad():
            x2 = y2 - gy1
            dx1 = dy1 + y1.grad
            gw = wd.grad
        with torch.enable_grad():
            x2.requires_grad = True
            wd2 = w.detach().requires_grad_()
            fx2 = torch.tanh(x2 @ wd2)
            torch.autograd.backward(fx2, dx1)
        dx2 = dy2 + x2.grad
        return torch.cat((dx1, dx2), 1), gw + wd2.grad
""",
    ),
    "TwoStages": (  # two recomputed graphs, one after the other
        "randn(3, 4), randn(2, 2), randn(2, 2)",
        """
class TwoStages(Function):
    @staticmethod
    def forward(ctx, x, wf, wg):
        x1, x2 = torch.chunk(x, 2, dim=1)
        with torch.no_grad():
            y1 = x1 + torch.tanh(x2 @ wf)
            y2 = x2 + torch.tanh(y1 @ wg)
        y = torch.cat([y1, y2], dim=1)
        ctx.save_for_backward(y, wf, wg)
        return y

    @staticmethod
    def backward(ctx, dy):
        y, wf, wg = ctx.saved_tensors
        y1, y2 = torch.chunk(y, 2, dim=1)
        dy1, dy2 = torch.chunk(dy, 2, dim=1)
        wf = wf.detach().requires_grad_()
        wg = wg.detach().requires_grad_()
        with torch.enable_grad():
            y1 = y1.detach()
            y1.requires_grad = True
            gy1 = torch.tanh(y1 @ wg)
            gy1.backward(dy2)
        with torch.no_grad():
            x2 = y2 - gy1
            dx1 = dy1 + y1.grad
            y1.grad = None
        with torch.enable_grad():
            x2.requires_grad = True
            fx2 = torch.tanh(x2 @ wf)
            fx2.backward(dx1)
        with torch.no_grad():
            x1 = y1 - fx2
            dx2 = dy2 + x2.grad
        return torch.cat([dx1, dx2], dim=1), wf.grad, wg.grad
""",
    ),
    "TwoStagesShared": (  # two recomputed graphs that share a helper and a weight
        "randn(3, 4), randn(2, 2)",
        """
def half(x, w):
    return torch.tanh(x @ w)

class TwoStagesShared(Function):
    @staticmethod
    def forward(ctx, x, w):
        x1, x2 = torch.chunk(x, 2, dim=1)
        y1 = x1 + half(x2, w)
        y2 = x2 + half(y1, w)
        ctx.save_for_backward(y1, y2, w)
        return torch.cat([y1, y2], dim=1)

    @staticmethod
    def backward(ctx, dy):
        y1, y2, w = ctx.saved_tensors
        y1, w = y1.detach().requires_grad_(), w.detach().requires_grad_()
        dy1, dy2 = torch.chunk(dy, 2, dim=1)
        with torch.enable_grad():
            gy1 = half(y1, w)
            torch.autograd.backward(gy1, dy2)
        x2 = (y2 - gy1).detach().requires_grad_()
        dx1 = dy1 + y1.grad
        y1.grad = None
        with torch.enable_grad():
            fx2 = half(x2, w)
            fx2.backward(dx1)
            again = y1 * 2
            again.backward(dx1)
        return torch.cat([dx1, dy2 + x2.grad], dim=1) + 0 * y1.grad.sum(), w.grad
""",
    ),
    "Checkpoint": (  # leaves by a list comprehension, autograd.backward, .grad
        "randn(3, 4), randn(4, 4)",
        """
class Checkpoint(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        with torch.no_grad():
            return (x @ w).relu() ** 2

    @staticmethod
    def backward(ctx, *grads):
        x, w = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
        with torch.enable_grad():
            out = (x @ w).relu() ** 2
        torch.autograd.backward((out,), grads)
        return x.grad, w.grad
""",
    ),
    "GradientsInReturnAfterwards": (  # gradients in the return, after a call without effect
        "randn(4, 3), 2",
        """
class GradientsInReturnAfterwards(Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.save_for_backward(x)
        ctx.n = n
        return torch.tanh(x) ** n

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = torch.tanh(x) ** ctx.n
        torch.cuda.nvtx.range_push("gradients")
        return torch.autograd.grad(y, x, g) + (None,)
""",
    ),
    "AdjointSteps": (  # gradients of one step at a time in a loop, lambdas
        "randn(3, 3), randn(3, 3), 3",
        """
class AdjointSteps(Function):
    @staticmethod
    def forward(ctx, y, w, n):
        f = lambda y: torch.tanh(y.mm(w))
        ys = [y]
        for i in range(n):
            k1 = f(y); k2 = f(y + k1 / 2)
            y = y + k2 / n
            ys.append(y)
        ctx.n = n
        ctx.save_for_backward(w, torch.stack(ys))
        return y

    @staticmethod
    def backward(ctx, a):
        w, ys = ctx.saved_tensors
        gw = torch.zeros_like(w)
        with torch.enable_grad():
            w_ = w.detach().requires_grad_(True)
            for y in torch.flip(ys[:-1], [0]):
                y = y.detach().requires_grad_(True)
                f = lambda q: torch.tanh(q.mm(w_))
                k1 = f(y); k2 = f(y + k1 / 2)
                out = y + k2 / ctx.n
                a, dw = torch.autograd.grad(out, (y, w_), a)
                gw += dw
        return a, gw, None
""",
    ),
    "DecoratedBackward": (  # a backward under enable_grad as a decorator
        "randn(3, 3), randn(3, 3), 3",
        """
class DecoratedBackward(Function):
    @staticmethod
    def forward(ctx, x, w, n):
        ctx.save_for_backward(x, w)
        ctx.n = n
        for _ in range(n):
            x = torch.tanh(x @ w)
        return x

    @staticmethod
    @torch.enable_grad()
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        xs = [x]
        for _ in range(ctx.n - 1):
            xs.append(torch.tanh(xs[-1] @ w).detach())
        gw = torch.zeros_like(w)
        w = w.detach().requires_grad_()
        for x in reversed(xs):
            x = x.detach().requires_grad_()
            y = torch.tanh(x @ w)
            g, dw = torch.autograd.grad(y, [x, w], g)
            gw += dw
        return g, gw, None
""",
    ),
    "SlopeSavedByForward": (  # forward differentiates by itself and saves the slope
        "randn(3, 4)",
        """
class SlopeSavedByForward(Function):
    @staticmethod
    def forward(ctx, x):
        asked = x.requires_grad
        with torch.cuda.amp.autocast(enabled=False):
            with torch.enable_grad():
                x = x.detach()
                x.requires_grad = True
                y = torch.logaddexp(torch.zeros_like(x), x - 4.0) - 0.08 * x
                if not asked:
                    return y
                y.backward(gradient=torch.ones_like(y))
                ctx.save_for_backward(x.grad)
                return y

    @staticmethod
    def backward(ctx, g):
        slope, = ctx.saved_tensors
        return g * slope
""",
    ),
    "PenaltyWithMean": (  # a penalty's gradient inside try, enable_grad and autocast
        "randn(6, 4), 0.5",
        """
import logging
import random

class PenaltyWithMean(Function):
    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit, ctx.axis = limit, 1
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        try:
            with torch.enable_grad():
                with torch.amp.autocast("cuda", enabled=False):
                    x = x.detach()
                    x.requires_grad = True
                    axes = [i for i in range(x.ndim) if i != ctx.axis]
                    mean = x.mean(dim=axes)
                    spread = (x**2).mean(dim=axes, keepdim=True) - mean**2
                    loss = (spread - ctx.limit).relu()
                    if random.random() < 0.01:
                        worst = loss.max().item()
                        logging.info(f"loss {worst}")
                    loss.backward(gradient=torch.ones_like(loss))
                    penalty = x.grad * mean.sum() / len(axes)
        except ValueError as error:
            logging.warning(f"no penalty: {error}")
        return g + g.abs() * penalty, None
""",
    ),
    "LossBesideGradient": (  # loss.backward(), where the values are read too
        "randn(4)",
        """
class LossBesideGradient(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            squares = x**3
            loss = squares.sum()
            loss.backward()
        return g * x.grad + squares + loss
""",
    ),
}

CASES["SeveralCalls"] = (  # of one graph, for some of its outputs and inputs, where an input needs them; two graphs
    "randn(3, 3), randn(3, 3)",
    """
class SeveralCalls(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        h = torch.tanh(x @ w)
        return h, h * x

    @staticmethod
    def backward(ctx, g1, g2):
        x, w = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            h = torch.tanh(x @ w)
            y = h * x
        with torch.enable_grad():
            v = w.detach().requires_grad_()
            z = v.cos()
        gx = gw = None
        if ctx.needs_input_grad[0]:
            gx = torch.autograd.grad(h, x, g1, retain_graph=True)[0]
            gx = gx + torch.autograd.grad([y], x, [g2], retain_graph=True)[0]
        if ctx.needs_input_grad[1]:
            gw, = torch.autograd.grad((h, y), (w,), (g1, g2), retain_graph=True)
        again, _ = torch.autograd.grad(h.sum(), (w, x))
        return gx + 0 * again, gw + 0 * torch.autograd.grad(z, v, g1)[0]
""",
)

# Expressions of x through which PyTorch lets no gradient, in a forward that backward computes again.
_CONSTANT = (
    ("x.sum().item()", "float(x.sum())", "x.sum().data", "x.data.clone()", "max(x.tolist())"),
    ("torch.tensor(x.sum())", "x.new_tensor(x)", "torch.Tensor([x[0], 2.0, x[1]])", "torch.Tensor(x)"),
    (
        "torch.autograd.Variable(x.sum())",
        "unrecorded(x)",
        "decorated(x)",
        "torch.as_tensor(x)",
        "torch.round(x) + (x - x * 3).data",
    ),
)
_CUT = """
def unrecorded(x):
    with torch.set_grad_enabled(False):
        s = x.sum()
    return s


@torch.no_grad()
def decorated(x):
    return x.abs().max()


class Cut{i}(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return {text}

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = {text}
        return torch.autograd.grad(y, x, g)[0]
"""
CASES |= {
    f"Cut{i}": ("randn(3)", _CUT.format(i=i, text=" + ".join(f"x * ({t})" for t in texts)))
    for i, texts in enumerate(_CONSTANT)
}
CASES |= {
    "UnpackedInputs": (  # a list of inputs, unpacked inside and outside; tensors that a loop marks
        "randn(3, 4), randn(4, 4)",
        """
class Inside(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x @ w).tanh()

    @staticmethod
    def backward(ctx, g):
        detached = [t.detach().requires_grad_(True) for t in ctx.saved_tensors]
        with torch.enable_grad():
            x, w = detached
            y = torch.tanh(x @ w)
        return torch.autograd.grad(y, detached, g)

class Outside(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return Inside.apply(x, w) * 2

    @staticmethod
    def backward(ctx, g):
        inputs = [t.detach().requires_grad_(True) for t in ctx.saved_tensors]
        x, w = inputs
        with torch.enable_grad():
            y = torch.tanh(x @ w) * 2
        return torch.autograd.grad(y, inputs, g)

class UnpackedInputs(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return Outside.apply(x, w) * x.sum()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        inputs = [x.detach(), w.detach()]
        for t in inputs:
            t.requires_grad = True
        with torch.enable_grad():
            y = torch.tanh(inputs[0] @ inputs[1]) * 2 * inputs[0].sum()
        gx, gw = torch.autograd.grad(y, inputs, g)
        return gx, gw
""",
    ),
    "KeptTuples": (  # containers of what is differentiated
        "randn(3, 4)",
        """
def powers(x):
    return x * 2, x ** 3


class KeptTuples(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        p, m, l = x.chunk(2, 1), x.max(1), [x, x * 2]
        return p[0] * torch.sigmoid(p[1]) + m[0].sum() + l[1].sum()

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            p = x.chunk(2, 1)
            m = x.max(1)
            l = [x, x * 2]
            y = p[0] * torch.sigmoid(p[1]) + m.values.sum() + l[1].sum()
        return torch.autograd.grad(y, x, g)[0]
""",
    ),
    "SeveralResults": (  # under one name
        "randn(3)",
        """
def powers(x):
    return x * 2, x ** 3


class SeveralResults(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return powers(x)

    @staticmethod
    def backward(ctx, *g):
        x, = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            res = powers(x)
        return torch.autograd.grad(res, x, g)[0]
""",
    ),
    "ComplexAgain": (  # PyTorch's gradients are the conjugates of JAX's
        "randn(3) + 1j * randn(3), array([0.0, 1.0, 0.0]), array([0.0, 0.0, -1.0])",
        """
class ComplexAgain(Function):
    @staticmethod
    def forward(ctx, z, x, y):
        ctx.save_for_backward(z, x, y)
        return torch.view_as_real(z.abs() ** 2 * z).sum(-1) + torch.atan2(x, y) + torch.angle(torch.complex(x, y))

    @staticmethod
    def backward(ctx, g):
        z, x, y = ctx.saved_tensors
        with torch.enable_grad():
            z, x, y = (t.detach().requires_grad_() for t in (z, x, y))
            r = torch.view_as_real(z.abs() ** 2 * z).sum(-1) + torch.atan2(x, y) + torch.angle(torch.complex(x, y))
        return torch.autograd.grad(r, (z, x, y), g)
""",
    ),
    "FunctionsInTables": (  # at bounds and zeros, of functions that are known when the port runs
        'array([0.0, 1.0, -1.0, 0.5, -2.0]), "abs", "bound"',
        """
def bound(x):
    return x.clamp(-1, 1)

TABLE = {"abs": lambda x: x.abs() * 2, "bound": bound}
PLAIN = {"abs": torch.abs, "bound": F.hardtanh}


class FunctionsInTables(Function):
    @staticmethod
    def forward(ctx, x, a, b):
        ctx.names = a, b
        ctx.save_for_backward(x)
        return TABLE[a](x) * PLAIN[a](x) + TABLE[b](x) + PLAIN[b](x)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.names
        x, = ctx.saved_tensors
        x = x.detach().requires_grad_(True)
        with torch.enable_grad():
            y = TABLE[a](x) * PLAIN[a](x) + TABLE[b](x) + PLAIN[b](x)
        return torch.autograd.grad(y, x, g)[0], None, None
""",
    ),
    "FunctionOnCtx": (  # one of a table, which an object and a partial stand in; nothing says what it gives
        "array([0.0, 1.0, -1.0, 0.5, -2.0]), 0",
        """
from functools import partial

class Scaled:
    def __init__(self, s):
        self.s = s

    def __call__(self, x):
        return (x * self.s).abs() + x.clamp(min=0)

def bound(x, lo, hi):
    return x.clamp(lo, hi) * 2

TABLE = [partial(bound, lo=-1, hi=1), partial(bound, lo=0, hi=2)]
OBJECTS = [Scaled(1.0), Scaled(2.0)]


class FunctionOnCtx(Function):
    @staticmethod
    def forward(ctx, x, i):
        ctx.fn = TABLE[i]
        ctx.i = i
        ctx.save_for_backward(x)
        return ctx.fn(x) + OBJECTS[i](x)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.fn(x) + OBJECTS[ctx.i](x)
        return torch.autograd.grad(y, x, g)[0], None
""",
    ),
}
