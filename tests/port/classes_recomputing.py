"""Gradients that backward takes itself: these classes stay as they are, and fnjax.torch runs them."""

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
