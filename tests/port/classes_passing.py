"""Functions of torch that are passed on, dictionaries of keywords, lists as indices, names that the port needs."""

CASES = {
    "OneOfTwo": (  # a function chosen by what the GPU is asked
        "randn(3, 4)",
        """
if torch.cuda.is_available():
    total = torch.mean
else:
    total = torch.sum
if not torch.cuda.is_available():
    average = torch.mean
else:
    average = torch.sum

class OneOfTwo(Function):
    @staticmethod
    def forward(ctx, x):
        return x * total(x) + average(x)

    @staticmethod
    def backward(ctx, g):
        return g
""",
    ),
    "Partials": (  # functools.partial, map and reduce of torch's functions
        "randn(3, 4)",
        """
import functools

clip = functools.partial(torch.clamp, min=-1, max=0.5)
total = functools.partial(torch.sum, dim=-1, keepdim=True)

class Partials(Function):
    @staticmethod
    def forward(ctx, x):
        plus = functools.partial(torch.add, x)
        a, b = map(torch.exp, (x, -x))
        return clip(x) + total(x) + plus(2 * x) + a * functools.reduce(torch.mul, [x, x, b])

    @staticmethod
    def backward(ctx, g):
        return g + total(g)
""",
    ),
    "KeywordDictionary": (  # options that a dictionary holds
        "randn(3, 4)",
        """
class KeywordDictionary(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.options = dict(dtype=x.dtype, device=x.device)
        along = {"dim": 1, "keepdim": True}
        return x * torch.ones(4, **ctx.options) + x.sum(**along)

    @staticmethod
    def backward(ctx, g):
        return g + torch.full((3, 1), 2.0, **ctx.options) + g.mean(**{"dim": 1, "keepdim": True})
""",
    ),
    "ListIndices": (  # ranges, lists of booleans and repeated entries as indices
        "randn(4, 5)",
        """
class ListIndices(Function):
    @staticmethod
    def forward(ctx, x):
        odd = [i for i in range(x.shape[1]) if i % 2]
        y = x.clone()
        y[range(3), 0] = 0
        kept = [True, False, True, True]
        y[kept] *= 2
        twice = [0, 0, 1]
        y[twice] += 1
        rest = list(range(4))[::-1]
        rest.append(0)
        ctx.odd = odd
        return y[:, odd] + x[rest].sum()

    @staticmethod
    def backward(ctx, g):
        gi = torch.zeros(4, 5, dtype=g.dtype)
        gi[:, ctx.odd] = g
        return gi
""",
    ),
    "SpelledNames": (  # getattr with names of torch
        "randn(3, 4)",
        """
class SpelledNames(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.n = getattr(x, "shape")
        return getattr(torch, "exp")(x) + getattr(F, "relu")(x)

    @staticmethod
    def backward(ctx, g):
        return g.expand(getattr(ctx, "n"))
""",
    ),
    "OwnNames": (  # the file's own variables are called jnp, jax, np and fnjax
        "randn(3, 4), 2.0",
        """
def _max(x, k):
    return x * k

class OwnNames(Function):
    @staticmethod
    def forward(ctx, x, key):
        jnp = x * key
        jax = jnp.sigmoid()
        np = x.max(1, keepdim=True)[0]
        fnjax = torch.gather(jax, 1, torch.zeros(3, 1, dtype=torch.long))
        ctx.jax = key
        return _max(jax, k=2) + np + fnjax

    @staticmethod
    def backward(ctx, g):
        np = g * 2
        return torch.relu(np) * ctx.jax, None
""",
    ),
    "Unpacked": (  # *args, **kwargs and starred arguments
        "randn(2, 3, 4)",
        """
class Unpacked(Function):
    @staticmethod
    def forward(ctx, *args, **kwargs):
        ctx.rows = (1,)
        shape = args[0].shape
        return torch.round(*args, **kwargs) + flat(args[0], *ctx.rows).reshape(shape) + flat(args[0]).view(shape)

    @staticmethod
    def backward(ctx, *grads):
        g, = grads
        return g + g.flatten(*ctx.rows)[:, :4].sum() + g.flatten(*(0, 1)).sum(0)

def flat(x, *dims):
    return x.flatten(*dims)
""",
    ),
    "DrawsWithin": (  # random numbers in an inner Function, which takes a key
        "randn(50), 0.5",
        """
class Noisy(Function):
    @staticmethod
    def forward(ctx, x, p=0.1):
        keep = torch.rand_like(x) >= p
        ctx.save_for_backward(keep)
        return x * keep

    @staticmethod
    def backward(ctx, g):
        keep, = ctx.saved_tensors
        return g * keep, None

noisy = Noisy.apply

def drop(x):
    return Noisy().apply(x)

class DrawsWithin(Function):
    @staticmethod
    def forward(ctx, x, p):
        return drop(x) + Noisy.apply(x, p) + noisy(x) + x.sum()

    @staticmethod
    def backward(ctx, g):
        return drop(g) * 0 + g, None
""",
    ),
}
