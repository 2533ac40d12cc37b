# ruff: noqa: E501
"""Classes that the porter leaves as PyTorch: loops and branches on tensor values, NumPy, gradients taken in methods, chosen views."""

from tests.port.classes_conditions import make_class

CASES = {
    "Largest": (
        "randn(4), None",
        """class Largest(Function):
    @staticmethod
    def forward(ctx, x, k):
        squares = [x[i] ** 2 for i in range(4)]
        low, high = min(squares), max(v + 1 for v in squares)
        first = sorted([x.max(), x.min()], reverse=True)[0]
        size = max(x.shape) + max([len(s) for s in ('a', 'bc')], default=0)
        return x * low + high * first * size

    @staticmethod
    def backward(ctx, g):
        return g * 1, None
""",
    ),
    "Skipping": (
        "randn(6), None",
        """class Skipping(Function):
    @staticmethod
    def forward(ctx, x, k):
        s = torch.zeros((), dtype=x.dtype)
        for i in range(6):
            if x[i] < 0:
                continue
            if x[i] > 1:
                s = s + 1
                continue
            s = s + x[i]
        return x * s

    @staticmethod
    def backward(ctx, g):
        return g * 1, None
""",
    ),
    "OverEntries": (
        "randn(6), None",
        """class OverEntries(Function):
    @staticmethod
    def forward(ctx, x, k):
        n = 0
        for v in x * 2:
            if k is not None or v < 0:
                continue
            n += 1
        return x * n

    @staticmethod
    def backward(ctx, g):
        return g * 1, None
""",
    ),
    "AnyOf": (
        "randn(4), None\nrandn(4) + 9, 2",
        """class AnyOf(Function):
    @staticmethod
    def forward(ctx, x, k):
        if any(v < 0 for v in x):
            x = x * 2
        if all([v > 0 for v in (x.min(), x.max())]) and k:
            x = x * k
        if not any(d > 9 for d in x.shape):
            x = x + 1
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g * 1, None
""",
    ),
    "WhileT2": (
        "rand(5) + 1",
        """
class WhileT2(Function):
    @staticmethod
    def forward(ctx, x):
        y = x
        n = 0
        while n < 20 and (y * y - x).abs().max() > 1e-6:
            y = 0.5 * (y + x / y)
            n += 1
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        y, = ctx.saved_tensors
        return g / (2 * y)
""",
    ),
    "Converged": (
        "rand(5) + 1",
        """
class Converged(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        converged = False
        while not converged:
            new = 0.5 * (y + x / y)
            converged = torch.allclose(new, y)
            y.copy_(new)
        return y

    @staticmethod
    def backward(ctx, g):
        return g
""",
    ),
    "BoolOfValues": (
        "randn(3, 4), randn(1)",
        """
class BoolOfValues(Function):
    @staticmethod
    def forward(ctx, x, w):
        large = bool((x > 1).any()) and not bool((x < -3).all())
        y = x * w
        y = y * 2 if large else y - 1
        if bool(w > 0):
            y = y + 1
        while bool(y.abs().max() > 1):
            y = y / 2
        ctx.large = large
        ctx.save_for_backward(w)
        return y

    @staticmethod
    def backward(ctx, g):
        for gradient in (g,):
            if gradient is not None and not bool(torch.isfinite(gradient).all()):
                raise RuntimeError("the gradient is not finite")
        w, = ctx.saved_tensors
        if ctx.large:
            g = g * 3
        return g * w, g.sum().view(1)
""",
    ),
    "CholeskyOrNot": (
        "array([[[4.0, 1.0], [1.0, 3.0]], [[1.0, 3.0], [3.0, 1.0]]]), randn(2, 2, 1)",
        """
class CholeskyOrNot(Function):
    @staticmethod
    def forward(ctx, h, b):
        try:
            factor = torch.linalg.cholesky(h)
        except RuntimeError:
            factor = torch.eye(2, dtype=h.dtype).view(1, 2, 2).repeat(2, 1, 1)
            for i in range(2):
                try:
                    factor[i, :, :] = torch.linalg.cholesky(h[i, :, :])
                except RuntimeError:
                    print("no factor")
        try:
            inverse = torch.linalg.inv(h)
            x = inverse @ b
        except RuntimeError:
            x = b * 0
        ctx.save_for_backward(factor)
        return torch.cholesky_solve(b, factor) + x

    @staticmethod
    def backward(ctx, g):
        factor, = ctx.saved_tensors
        return None, torch.cholesky_solve(g, factor)
""",
    ),
    "GaveUp": (
        "randn(3, 4), randn(3, 4)",
        """
class GaveUp(Function):
    @staticmethod
    def forward(ctx, x, y):
        if torch.any(x > 1):
            ctx.failed = True
            return torch.zeros_like(y)

        z = x * y
        ctx.save_for_backward(z, y)
        ctx.failed = False
        return z

    @staticmethod
    def backward(ctx, g):
        if ctx.failed:
            return None, None
        z, y = ctx.saved_tensors
        return g * z, g * y
""",
    ),
    "EitherSaved": (
        "randn(3, 4), randn(3, 4)",
        """
class EitherSaved(Function):
    @staticmethod
    def forward(ctx, x, y):
        w = x * y
        if x.sum() > 0:
            z = x + y
            ctx.save_for_backward(z, y)
            ctx.k = 2.0
            return z
        else:
            z = x - y
            ctx.save_for_backward(z, y)
            ctx.k = 3.0
            return w

    @staticmethod
    def backward(ctx, g):
        z, y = ctx.saved_tensors
        return g * z * ctx.k, g * y
""",
    ),
    "Balanced": (
        "rand(4, 4) + 0.5, 50, 1e-4",
        """
class Balanced(Function):
    @staticmethod
    def forward(ctx, k, rounds, tol):
        u = torch.ones(k.size(0), dtype=k.dtype)
        for i in range(rounds):
            v = 1 / (k.t() @ u)
            u = 1 / (k @ v)
            if i % 5 == 4:
                with torch.no_grad():
                    err = (v * (k.t() @ u) - 1).abs().sum()
                    if err < tol:
                        break
            elif u.max() > 1e4:
                u = u * 0
                break
        ctx.save_for_backward(u, v)
        return u[:, None] * k * v

    @staticmethod
    def backward(ctx, g):
        u, v = ctx.saved_tensors
        return g * u[:, None] * v, None, None
""",
    ),
    "Halved": (
        "randn(4), 20",
        """
class Halved(Function):
    @staticmethod
    def forward(ctx, x, n):
        y = x
        for i in range(n):
            y = y / 2
            if y.abs().max() < 0.1:
                return y
        return y

    @staticmethod
    def backward(ctx, g):
        return g, None
""",
    ),
    "Bisection": (
        "rand(4), 40, 1e-4",
        """
def root(x, n, tol):
    low, high = torch.zeros_like(x), x + 1
    for _ in range(n):
        middle = (low + high) / 2
        above = middle * middle > x
        low = torch.where(above, low, middle)
        high = torch.where(above, middle, high)
        if (high - low).max() < tol:
            return middle, 1
    return high, 0


class Bisection(Function):
    @staticmethod
    def forward(ctx, x, n, tol):
        y, ended = root(x, n, tol)
        ctx.save_for_backward(y)
        return y * (ended + 1)

    @staticmethod
    def backward(ctx, g):
        y, = ctx.saved_tensors
        return g / (2 * y), None, None
""",
    ),
    "NeverReturned": (
        "randn(3, 4), 3",
        """
class NeverReturned(Function):
    @staticmethod
    def forward(ctx, x, k):
        y = x
        for i in range(k):
            if y.abs().sum() > 30:
                y = y - 1
                break
            else:
                y = y * 1.5
                if k == 1:
                    return y * 2
            y = y + 0.5
        return y

    @staticmethod
    def backward(ctx, g):
        return g, None
""",
    ),
    "ByRow": (
        "randn(3, 4)",
        """
class ByRow(Function):
    @staticmethod
    def forward(ctx, x):
        rows = []
        for row in x:
            if row.sum() > 0:
                v = row / row.abs().max()
                v = v + 1
            else:
                v = row
            u, before, step = row * 1, row * 0, 1
            for k in range(50):
                err = (torch.cos(u) - u).abs().max()
                u = u + step * (torch.cos(u) - u)
                if (u - before).norm() < 1e-3:
                    break
                before = u
                step *= 0.9
            rows.append(v * err + before)
        return torch.stack(rows)

    @staticmethod
    def backward(ctx, g):
        return g * 2
""",
    ),
    "ContinueBreak": (
        "randn(4, 3) + 0.5, 6, True",
        """
class ContinueBreak(Function):
    @staticmethod
    def forward(ctx, x, n, more):
        ctx.save_for_backward(x)
        y = x
        for i in range(n if more else 3):
            y = y * 1.5
            if y.min() < -2.0:
                continue
            y = y + 1
            if y.sum() > 40.0:
                break
            y = y - 0.5
        else:
            y = y - 100.0
        return y
    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * x, None, None
""",
    ),
    "EndlessInFor": (
        "randn(4, 3) + 0.5",
        """
class EndlessInFor(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = x
        for i in range(4):
            while True:
                y = y * 1.25
                if y.sum() > 60.0:
                    return y * 3
                if y.max() > 4.0 + i:
                    break
                y = y + 0.5
            y = y - 1
        return y
    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * x
""",
    ),
    "SolverThatSolves": (
        "array([[4.0, 1.0], [1.0, 3.0]]), randn(2, 1)",
        """
class SolverThatSolves(Function):
    @staticmethod
    def forward(ctx, matrix, right):
        try:
            factor = torch.linalg.cholesky(matrix)
            solution = torch.cholesky_solve(right, factor)
            ctx.save_for_backward(factor, solution)
            ctx.refused = False
        except Exception as error:
            print(error)
            ctx.refused = True
            solution = torch.zeros_like(right)
        return solution

    @staticmethod
    def backward(ctx, g):
        if ctx.refused:
            return None, None
        factor, solution = ctx.saved_tensors
        gr = torch.cholesky_solve(g, factor)
        return -gr @ solution.transpose(-1, -2), gr
""",
    ),
    "SolverThatIsRefused": (
        "array([[1.0, 3.0], [3.0, 1.0]]), randn(2, 1)",
        """
class SolverThatIsRefused(Function):
    @staticmethod
    def forward(ctx, matrix, right):
        try:
            factor = torch.linalg.cholesky(matrix)
            solution = torch.cholesky_solve(right, factor)
            ctx.save_for_backward(factor, solution)
            ctx.refused = False
        except Exception as error:
            print(error)
            ctx.refused = True
            solution = torch.zeros_like(right)
        return solution

    @staticmethod
    def backward(ctx, g):
        if ctx.refused:
            return None, None
        factor, solution = ctx.saved_tensors
        gr = torch.cholesky_solve(g, factor)
        return -gr @ solution.transpose(-1, -2), gr
""",
    ),
    "AnswersAbove": (
        "array([1.0, 2.0]), array([1.0, -0.5])",
        """
class AnswersAbove(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.times = 1.0
        if x.sum() > 0:
            ctx.save_for_backward(x, y)
            ctx.flipped = True
            ctx.scale = 2.0
            z = x * y
        else:
            ctx.flipped = False
            z = -x * y
            ctx.scale = 3.0
            ctx.save_for_backward(x, y)
        if y.sum() > 0:
            ctx.times = x.sum().abs() + 1
        return z

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        w = 2 if ctx.flipped else 3
        s = ctx.scale
        if ctx.flipped:
            s = -ctx.scale
        return w * g * y * s, g * x * ctx.times
""",
    ),
    "AnswersBelow": (
        "array([-1.0, -2.0]), array([-1.0, 0.5])",
        """
class AnswersBelow(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.times = 1.0
        if x.sum() > 0:
            ctx.save_for_backward(x, y)
            ctx.flipped = True
            ctx.scale = 2.0
            z = x * y
        else:
            ctx.flipped = False
            z = -x * y
            ctx.scale = 3.0
            ctx.save_for_backward(x, y)
        if y.sum() > 0:
            ctx.times = x.sum().abs() + 1
        return z

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        w = 2 if ctx.flipped else 3
        s = ctx.scale
        if ctx.flipped:
            s = -ctx.scale
        return w * g * y * s, g * x * ctx.times
""",
    ),
    "ReturnsNothing": (
        "array([1.0, -2.0]), randn(2), 3",
        """
class ReturnsNothing(Function):
    @staticmethod
    def forward(ctx, x, y, k):
        if (x < 0).any():
            ctx.empty = True
            ctx.bound = x.max()
            return torch.zeros_like(x)
        ctx.empty = False
        ctx.bound = x.min()
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        if ctx.empty:
            return None, None, None
        x, y = ctx.saved_tensors
        return g * y * ctx.bound, g * x, None
""",
    ),
    "ReturnsAProduct": (
        "array([1.0, 2.0]), randn(2), 3",
        """
class ReturnsAProduct(Function):
    @staticmethod
    def forward(ctx, x, y, k):
        if (x < 0).any():
            ctx.empty = True
            ctx.bound = x.max()
            return torch.zeros_like(x)
        ctx.empty = False
        ctx.bound = x.min()
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        if ctx.empty:
            return None, None, None
        x, y = ctx.saved_tensors
        return g * y * ctx.bound, g * x, None
""",
    ),
    "WrittenChoice": (
        "randn(3, 4), randn(4), True, 3.0",
        """
class WrittenChoice(Function):
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
""",
    ),
    "ConditionsOfOneEntry": (
        "randn(4, 3)",
        """
class ConditionsOfOneEntry(Function):
    @staticmethod
    def forward(ctx, x):
        y = x if x[:1, 0] > 0 else -x
        if x.max().view(1) > 1: y = y * 3
        while y.abs().max().view(1, 1) > 1: y = y / 2
        return y

    @staticmethod
    def backward(ctx, g):
        return g
""",
    ),
    "TwoStages": (
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
    "TwoStagesShared": (
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
    "GradientsInReturnAfterwards": (
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
    "DecoratedBackward": (
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
    "SlopeSavedByForward": (
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
    "PenaltyWithMean": (
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
    "SeveralCalls": (
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
    ),
    "Cut0": (
        "randn(3)",
        """
def unrecorded(x):
    with torch.set_grad_enabled(False):
        s = x.sum()
    return s


@torch.no_grad()
def decorated(x):
    return x.abs().max()


class Cut0(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (x.sum().item()) + x * (float(x.sum())) + x * (x.sum().data) + x * (x.data.clone()) + x * (max(x.tolist()))

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = x * (x.sum().item()) + x * (float(x.sum())) + x * (x.sum().data) + x * (x.data.clone()) + x * (max(x.tolist()))
        return torch.autograd.grad(y, x, g)[0]
""",
    ),
    "Cut1": (
        "randn(3)",
        """
def unrecorded(x):
    with torch.set_grad_enabled(False):
        s = x.sum()
    return s


@torch.no_grad()
def decorated(x):
    return x.abs().max()


class Cut1(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (torch.tensor(x.sum())) + x * (x.new_tensor(x)) + x * (torch.Tensor([x[0], 2.0, x[1]])) + x * (torch.Tensor(x))

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = x * (torch.tensor(x.sum())) + x * (x.new_tensor(x)) + x * (torch.Tensor([x[0], 2.0, x[1]])) + x * (torch.Tensor(x))
        return torch.autograd.grad(y, x, g)[0]
""",
    ),
    "Cut2": (
        "randn(3)",
        """
def unrecorded(x):
    with torch.set_grad_enabled(False):
        s = x.sum()
    return s


@torch.no_grad()
def decorated(x):
    return x.abs().max()


class Cut2(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (torch.autograd.Variable(x.sum())) + x * (unrecorded(x)) + x * (decorated(x)) + x * (torch.as_tensor(x)) + x * (torch.round(x) + (x - x * 3).data)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = x * (torch.autograd.Variable(x.sum())) + x * (unrecorded(x)) + x * (decorated(x)) + x * (torch.as_tensor(x)) + x * (torch.round(x) + (x - x * 3).data)
        return torch.autograd.grad(y, x, g)[0]
""",
    ),
    "UnpackedInputs": (
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
    "KeptTuples": (
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
    "SeveralResults": (
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
    "ComplexAgain": (
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
    "FunctionsInTables": (
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
    "FunctionOnCtx": (
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
    "RegisteredTree": (
        "randn(3, 4), randn(4)",
        """
import typing
from torch.utils._pytree import _namedtuple_flatten, _namedtuple_unflatten

try:
    from torch.utils._pytree import register_pytree_node
except ImportError:
    from torch.utils._pytree import _register_pytree_node as register_pytree_node

def only(kind):
    def wrap(f):
        return lambda leaf: f(leaf) if isinstance(leaf, (kind, complex)) else leaf
    return wrap

def map_only(kind, f, tree):
    from torch.utils._pytree import tree_map
    return tree_map(only(kind)(f), tree)

class Rates(typing.NamedTuple):
    decay: torch.Tensor = torch.as_tensor(0.5)
    gain: torch.Tensor = torch.tensor(2.0)
    kind: str = "linear"

    def doubled(self):
        return map_only(torch.Tensor, lambda t: t * 2, self)

register_pytree_node(Rates, _namedtuple_flatten, _namedtuple_unflatten)

class RegisteredTree(Function):
    @staticmethod
    def forward(ctx, x, y, rates: Rates = Rates()):
        ctx.rates = rates
        more = rates.doubled()
        ctx.save_for_backward(x)
        return x * more.gain + y * more.decay

    @staticmethod
    def backward(ctx, g):
        more = map_only(f=lambda t: t * 2, kind=Tensor, tree=ctx.rates)
        return g * more.gain, (g * more.decay).sum(0), None
""",
    ),
    "TreeOrder": (
        "randn(3), randn(3)",
        """
import collections
import torch.utils._pytree as pytree
from torch.utils._pytree import tree_flatten, tree_unflatten

class TreeOrder(Function):
    @staticmethod
    def forward(ctx, x, y):
        parts = {"b": x * 2, "a": [y, None, (x, 3.0)], "c": collections.OrderedDict(z=y)}
        leaves, ctx.spec = tree_flatten(parts)
        doubled = pytree.tree_map(lambda t: t if t is None else t * 2, parts)
        first = list(doubled.values())[0]
        kept = pytree.tree_map_only(torch.Tensor, lambda t: t + 1, parts)
        ctx.at = [t is None for t in leaves].index(True)
        ctx.number = len(leaves) + len(pytree.tree_leaves(kept))
        return leaves[0] - leaves[1] * ctx.at, first + kept["a"][2][0] * kept["a"][2][1] + kept["c"]["z"]

    @staticmethod
    def backward(ctx, g, h):
        tree = tree_unflatten([g * 2, h, None, h * 5, h, g], ctx.spec)
        return tree["b"] + tree["a"][2][1] * 4 + tree["a"][2][0] - h * 2, h - g * ctx.at - (12 - ctx.number) * h
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
    "DefaultFunction": (  # a function as default of a parameter
        "randn(3, 4)",
        """
def reduced(x, fn=torch.sum):
    return fn(x, 1, True)

class DefaultFunction(Function):
    @staticmethod
    def forward(ctx, x):
        return x * reduced(x) + reduced(x, torch.mean)

    @staticmethod
    def backward(ctx, g):
        return g * reduced(g, fn=torch.amax)
""",
    ),
    "TableOfFunctions": (  # functions in tables
        "randn(3, 4), 'sum'",
        """
REDUCTIONS = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}
ACTIVATIONS = (torch.relu, F.leaky_relu, torch.sigmoid)

class TableOfFunctions(Function):
    @staticmethod
    def forward(ctx, x, how):
        for activation in ACTIVATIONS:
            x = x + activation(x)
        return x - REDUCTIONS[how](x, dim=1, keepdim=True)

    @staticmethod
    def backward(ctx, g):
        reduction = torch.sum if g.dim() > 2 else torch.mean
        return g + reduction(g, dim=0), None
""",
    ),
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
    "AskedDtypes": (  # checks of dtypes and values that raise
        "randn(4, 3), randint(0, 3, (4,)), 2",
        """
class AskedDtypes(Function):
    @staticmethod
    def forward(ctx, x, index, least):
        if index.dtype != torch.int64:
            raise TypeError(index.dtype)
        if bool(((index < 0) | (index >= x.shape[1])).any()):
            raise IndexError("classes")
        known = index[index != least]
        if known.numel() and (bool((known < 0).any()) or bool((known > 5).any())):
            raise IndexError("classes")
        scale = 2.0 if x.dtype is torch.float16 else 3.0
        wide = index.dtype in (torch.int64, torch.int16)
        large = bool(x.sum() > 0)
        ctx.save_for_backward(x)
        ctx.scale = scale * (1 + wide)
        return x * ctx.scale + large

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        if bool(x.argmax()):
            g = g * 2
        return g * ctx.scale, None, None
""",
    ),
    "LambdaTable": (  # a table of pairs of functions, one of them on ctx
        "randn(3, 4), 'tanh'",
        """
ACT = {
    "relu": (torch.relu, lambda x: (x > 0).float()),
    "tanh": (torch.tanh, lambda x: 1 - torch.tanh(x) ** 2),
    "gelu": (F.gelu, None),
}

class LambdaTable(Function):
    @staticmethod
    def forward(ctx, x, name):
        fn, ctx.dfn = ACT[name]
        ctx.save_for_backward(x)
        return fn(x)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * ctx.dfn(x), None
""",
    ),
    "MaskSoftmax": (  # a softmax of selected entries only
        "randn(7)",
        """
class MaskSoftmax(Function):
    @staticmethod
    def forward(ctx, x):
        m = x > -0.5
        y = torch.zeros_like(x)
        y[m] = torch.softmax(x[m], dim=0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        y, = ctx.saved_tensors
        return y * (g - (g * y).sum())
""",
    ),
    "MaskAlong": (  # operations along selected entries: softmax, cumsum, reductions
        "randn(7)",
        """
class MaskAlong(Function):
    @staticmethod
    def forward(ctx, x):
        m = x > -0.5
        y = torch.zeros_like(x)
        y[m] = F.softmax(x[m], dim=0)
        z = torch.zeros_like(x)
        z[m] = torch.cumsum(x[m], -1)
        w = torch.zeros_like(x)
        w[m] = x[m].log_softmax(0)
        s = x[m].sum(0) + x[m].mean(dim=0) + x[m].max()
        ctx.save_for_backward(y)
        return y, z, w, s

    @staticmethod
    def backward(ctx, g, h, i, j):
        y, = ctx.saved_tensors
        return y * (g - (g * y).sum())
""",
    ),
    "Registered": (  # functions that a decorator enters, a list that is added to, a number that a function sets
        "randn(4)",
        """
TABLE, STEPS, ALPHA = {}, [torch.tanh], 1.0
STEPS.append(torch.exp)
N = 3
N += 1


def register(name):
    def enter(f):
        TABLE[name] = f
        return f
    return enter


@register("square")
def _square(x):
    return x ** 2


def configure(alpha):
    global ALPHA
    ALPHA = alpha


configure(4.0)


class Registered(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        for step in STEPS:
            x = step(x)
        return TABLE["square"](x) * ALPHA * N

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * x * ALPHA
""",
    ),
    "RowsSum": (  # sums and means of selected rows
        "randn(5, 3)",
        """
class RowsSum(Function):
    @staticmethod
    def forward(ctx, x):
        r = x[:, 0] > 0
        k = r.clone()
        k[0] = False
        ctx.save_for_backward(r)
        ctx.n = x.shape[0]
        return x[r].sum(0) + x[~r].mean(dim=0) + x[x.sum(1) > 0].exp().sum(dim=0)

    @staticmethod
    def backward(ctx, g):
        r, = ctx.saved_tensors
        gx = torch.zeros(ctx.n, g.shape[0], dtype=g.dtype)
        gx[r] = g
        return gx
""",
    ),
    "NumpyInside": (  # forward in NumPy
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
    "FunctionsByChoice": (  # functions in variables, chosen by Python
        "randn(3, 4), 3",
        """
import functools


def activated(x, act=None):
    if act is None:
        act = torch.relu
    return act(x)


class FunctionsByChoice(Function):
    @staticmethod
    def forward(ctx, x, n):
        if n > 2:
            act = torch.sigmoid
        else:
            act = torch.tanh
        ctx.n = n
        return act(x) + activated(x) + functools.reduce(torch.max, [x[0], x[1], x[2]])

    @staticmethod
    def backward(ctx, g):
        f = torch.exp
        g = f(g)
        f = torch.sin
        return torch.ops.aten.mul.Tensor(f(g), ctx.n), None
""",
    ),
    "SortedByNumPy": (  # NumPy's argsort and take_along_axis
        "randn(4, 3), 0",
        """
import numpy as np


class SortedByNumPy(Function):
    @staticmethod
    def forward(x, dim):
        array = x.numpy()
        order = np.argsort(array, axis=dim)
        back = np.argsort(order, axis=dim)
        return torch.tensor(np.take_along_axis(array, order, axis=dim)), torch.tensor(order), torch.tensor(back)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.dim = inputs
        _, order, back = output
        ctx.mark_non_differentiable(order, back)
        ctx.save_for_backward(order, back)

    @staticmethod
    def backward(ctx, g, *_):
        order, back = ctx.saved_tensors
        return torch.gather(g, ctx.dim, back), None
""",
    ),
    "MaskedSelectSum": (  # the sum of a masked_select
        "randn(5, 3)",
        """
class MaskedSelectSum(Function):
    @staticmethod
    def forward(ctx, x):
        m = x > 0
        return torch.masked_select(x, m).sum()

    @staticmethod
    def backward(ctx, g):
        return g.expand(5, 3)
""",
    ),
    "MeanOfTheFinite": (  # entries left out that are infinite, then a mean
        "rand(5, 3)",
        """
class MeanOfTheFinite(Function):
    @staticmethod
    def forward(ctx, x):
        ratio = x / (x > 0.2).float().sum(1, keepdim=True)
        ratio[torch.isinf(ratio)] = 0
        ratio = ratio.sum(1) / (x[:, 0] > 0.3).float()
        ratio = ratio[~torch.isinf(ratio)]
        ctx.save_for_backward(x)
        return 1 - torch.mean(ratio)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * x
""",
    ),
    "SeveralEntriesAtOnce": (  # several targets of one value, entries and rows among them
        "randn(3, 3)",
        """
class SeveralEntriesAtOnce(Function):
    @staticmethod
    def forward(ctx, x):
        h = torch.zeros(4, 4)
        h[0, 1:] = h[1:, 0] = 1
        h[1, 1] = h[3, 3] = -1.5
        y = torch.empty_like(x)
        z = y[0] = x[1] * 2
        y[1:] = x[1:].exp()
        v = y[2]
        y[0] = h[:3, 1] = v
        y[1] = h[3, :3] = x[0].cos()
        y[0], y[1] = y[1] * 2, y[0]
        w = x[0].sin()
        for t in range(2):
            y[:, t], w = w * 2, y[:, t + 1] + 1
        ctx.save_for_backward(x)
        return y * z, h

    @staticmethod
    def backward(ctx, g, h):
        x, = ctx.saved_tensors
        gx = torch.zeros_like(x)
        gx[0] = gx[1] = g[0] * x[2]
        return gx
""",
    ),
    "RunningMaximum": (  # a buffer that forward updates in a branch
        "randn(4, 3), rand(3)",
        """
class RunningMaximum(Function):
    @staticmethod
    def forward(ctx, x, limit):
        if x.abs().max() > limit.max():
            limit.data.copy_(torch.maximum(limit, x.abs().amax(0)))
        ctx.save_for_backward(limit)
        return x / limit, (x > limit).sum()

    @staticmethod
    def backward(ctx, g, _):
        limit, = ctx.saved_tensors
        return g / limit, None
""",
    ),
    "NumpyFft": (  # NumPy's Fourier transforms in forward and backward
        "randn(6, 6)",
        """
from numpy.fft import irfft2, rfft2

class NumpyFft(Function):
    @staticmethod
    def forward(ctx, input):
        numpy_input = input.detach().numpy()
        return input.new(abs(rfft2(numpy_input)))

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.new(irfft2(grad_output.numpy()))
""",
    ),
    "ScipyConv": (  # SciPy's convolutions, and a write to a NumPy array
        "randn(8, 8), randn(3, 3), randn(1, 1)",
        """
import numpy as np
from scipy.signal import convolve2d, correlate2d

class ScipyConv(Function):
    @staticmethod
    def forward(ctx, image, kernel, bias):
        image, kernel, bias = image.detach(), kernel.detach(), bias.detach()
        result = correlate2d(image.numpy(), kernel.numpy(), mode="valid")
        result += bias.numpy()
        ctx.save_for_backward(image, kernel, bias)
        return torch.as_tensor(result, dtype=image.dtype)

    @staticmethod
    def backward(ctx, g):
        image, kernel, bias = ctx.saved_tensors
        g = g.detach().numpy()
        grad_bias = np.sum(g, keepdims=True)
        grad_image = convolve2d(g, kernel.numpy(), mode="full")
        grad_kernel = correlate2d(image.numpy(), g, mode="valid")
        return torch.from_numpy(grad_image), torch.from_numpy(grad_kernel).float(), torch.from_numpy(grad_bias)
""",
    ),
    "NumpyMethods": (  # methods and sizes of NumPy arrays
        "randn(3, 5)",
        """
import numpy as np

class NumpyMethods(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().cpu().numpy()
        z = (a - a.mean(axis=1, keepdims=True)) / (a.std(axis=1, keepdims=True) + 1e-3) + a.max(axis=1, keepdims=True)
        ctx.count = a.size
        ctx.save_for_backward(x)
        return torch.from_numpy(z * (2 * a).var())

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        clipped = np.clip(g.numpy(), a_min=-1, a_max=1) * np.sign(x.numpy())
        return torch.tensor(clipped, dtype=g.dtype, device=g.device) / ctx.count
""",
    ),
    "NumpySmoothing": (  # a helper that fills a NumPy array
        "randn(3, 5), 0.7",
        """
import numpy as np

def smooth(a, alpha):
    out = np.zeros(a.shape, dtype=np.float32)
    out[:, 0] = a[:, 0]
    for t in range(1, a.shape[1]):
        out[:, t] = alpha * out[:, t - 1] + (1 - alpha) * a[:, t]
    return out - out.std()

class NumpySmoothing(Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return torch.from_numpy(smooth(x.detach().numpy(), alpha)).to(x.device)

    @staticmethod
    def backward(ctx, g):
        a = g.numpy()
        grad = np.zeros_like(a)
        carry = np.zeros(a.shape[0], dtype=a.dtype)
        for t in range(a.shape[1] - 1, 0, -1):
            carry = ctx.alpha * carry + a[:, t]
            grad[:, t] = (1 - ctx.alpha) * carry
        grad[:, 0] = ctx.alpha * carry + a[:, 0]
        return torch.from_numpy(grad), None
""",
    ),
    "NumpyTable": (  # a constant table of NumPy as a lookup
        "rand(6) * 4 - 1",
        """
import numpy as np

LEVELS = np.array([0.0, 0.5, 2.0, 1.0], dtype=np.float32)

class NumpyTable(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.scale = np.sqrt(np.prod(x.shape))
        steps = np.array([1, 2, 1, 3])
        index = np.clip(np.floor(x.detach().numpy()), 0, 3).astype(np.int64)
        return torch.from_numpy(LEVELS[index] * steps[index]).float()

    @staticmethod
    def backward(ctx, g):
        return g / ctx.scale
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
    "PutBack": (  # entries that are changed in place and put back, whatever the index is
        "randn(6), [0, 2, 5], slice(1, 4), 4",
        """
class PutBack(Function):
    @staticmethod
    def forward(ctx, x, some, others, levels):
        y = x.clone()
        for index in (some, others):
            low, high = y[index].min(), y[index].max()
            scale = max((high - low) / levels, 1e-8)
            y[index] = y[index].sub_(low).div_(scale)
            y[index] = y[index].clamp_(0, levels).round_()
            y[index] = y[index].mul_(scale).add_(low)
        return y

    @staticmethod
    def backward(ctx, g):
        return g, None, None, None
""",
    ),
}

_FORWARDS = {
    "ClipByNorm": (  # Python's condition first, then the tensor's
        ["randn(4), None", "randn(4) * 9, 1.0"],
        """
n = x.norm()
if k is not None and n > k:
    x = x * (k / n)
return x * 1
""",
    ),
    "ClipUnless": (  # a return where Python or the tensor says so
        ["randn(4), None", "randn(4) * 9, 1.0"],
        """
if k is None or x.norm() <= k:
    return x * 1
return x * (k / x.norm())
""",
    ),
    "ClipEarly": (  # a return where both say so, and code after it
        ["randn(4), None", "randn(4) * 9, 1.0"],
        """
if k is not None and x.norm() > k:
    return x * (k / x.norm())
y = x * 2
return y + 1
""",
    ),
    "ClipByOption": (  # a key in a dictionary as Python's condition
        ["randn(4), {}", "randn(4) * 9, {'clip': 1.0}"],
        """
if 'clip' in k and x.norm() > k['clip']:
    x = x / x.norm() * k['clip']
return x * 1
""",
    ),
    "ClipAtShape": (  # a number of dimensions as Python's condition
        ["randn(4), 0", "randn(2, 4), 0"],
        """
if x.dim() == 2 and x.sum() > -99:
    x = x - x[:, :1]
return x * 2
""",
    ),
    "PythonLast": (  # the tensor's condition first, Python's guards a division
        ["randn(4), 2"],
        """
if x.max() > -9 and k:
    x = x * (2 // k)
return x * 1
""",
    ),
    "NumberOrArray": (  # a number that may be an array, in a condition
        ["randn(4), 0", "randn(4), 2"],
        """
if k > 0 and x.max() > -9:
    x = x / k
return x * 1
""",
    ),
    "NotBoth": (  # `not` of Python's and the tensor's condition
        ["randn(4), None", "randn(4), 0.1"],
        """
if not (k is not None and x.max() > k):
    return x * 2
return x * k
""",
    ),
    "WithElse": (  # elif and else after such a condition
        ["randn(4), None", "randn(4), 9.0"],
        """
if k is not None and x.max() > k:
    y = x * k
elif x.min() < -9:
    y = x
else:
    y = x - 1
return y
""",
    ),
    "InAVariable": (  # such a condition in a variable, used twice
        ["randn(4), None", "randn(4), 0.1"],
        """
big = k is not None and x.max() > k
if big:
    x = x * k
y = x + 1 if not big else x - k
return y
""",
    ),
    "InAnExpression": (  # such a condition in an expression
        ["randn(4), None", "randn(4), 9.0"],
        """
return x * k if k is not None and x.max() > k else x - 1
""",
    ),
    "RunningMinimum": (  # None at first, then a minimum of tensors, in a loop
        ["randn(4), None"],
        """
low = None
for v in (x * 2, x * 3):
    m = v.max()
    if low is None or m < low:
        low = m
best = None
for v in (x * 2, x * 3):
    best = v.max() if best is None or v.max() > best else best
return x / low + best
""",
    ),
    "FromADictionary": (  # tensors and numbers in one dictionary, in conditions
        ["randn(4), None"],
        """
stats = {'scale': x.abs().max(), 'n': 4}
stats['low'] = x.min()
if stats['scale'] > 0:
    x = x / stats['scale']
if stats['low'] < 0:
    x = x + stats['n']
if stats['n'] > 3:
    x = x * 2
return x * 1
""",
    ),
    "GivenOrFound": (  # `k or x`, Python's number or a tensor
        ["randn(4), 2.0", "randn(4), 0.0"],
        """
s = k or x.abs().max()
y = x / s if s > 1 else x * 2
return y * max(s, 1e-8)
""",
    ),
}

CASES |= {name: ("\n".join(inputs), make_class(name, body)) for name, (inputs, body) in _FORWARDS.items()}
