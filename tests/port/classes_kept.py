"""Functions whose branches on a tensor's value keep things on ctx, or have no gradient."""

_SOLVER = """
class {name}(Function):
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
"""
_ANSWERS = """
class {name}(Function):
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
"""
_RETURNS = """
class {name}(Function):
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
"""
CASES = {
    name: (given, body.format(name=name))
    for name, given, body in (
        ("SolverThatSolves", "array([[4.0, 1.0], [1.0, 3.0]]), randn(2, 1)", _SOLVER),
        ("SolverThatIsRefused", "array([[1.0, 3.0], [3.0, 1.0]]), randn(2, 1)", _SOLVER),
        ("AnswersAbove", "array([1.0, 2.0]), array([1.0, -0.5])", _ANSWERS),
        ("AnswersBelow", "array([-1.0, -2.0]), array([-1.0, 0.5])", _ANSWERS),
        ("ReturnsNothing", "array([1.0, -2.0]), randn(2), 3", _RETURNS),
        ("ReturnsAProduct", "array([1.0, 2.0]), randn(2), 3", _RETURNS),
    )
}
