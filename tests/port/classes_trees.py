"""Trees of tensors, named tuples, and types that are passed on."""

CASES = {
    "RegisteredTree": (  # pytrees: classes that the file registers
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
    "TreeOrder": (  # the order of leaves, None among them
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
}
