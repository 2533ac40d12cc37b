"""nn.Module and its containers next to PyTorch's: what each step prints, or the error that it raises."""

import re

import pytest

real = pytest.importorskip("torch")

from fnjax import torch as ours  # noqa: E402 - after the skip

pytestmark = pytest.mark.parity

MAKE = """
class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2, 3))
        self.register_parameter("none", None)
        self.register_buffer("b", torch.zeros(2))
        self.register_buffer("hidden", torch.zeros(1), persistent=False)
    def forward(self, x):
        return x
    def extra_repr(self):
        return "size=2"

class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Inner()
        self.second = nn.Sequential(Inner(), nn.ModuleList([Inner(), Inner()]))
        self.table = nn.ModuleDict({"a": Inner()})
        self.second[0].w = self.first.w
        self.own = nn.ParameterList([torch.ones(1), nn.Parameter(torch.ones(2))])
        self.named = nn.ParameterDict({"p": torch.ones(1)})
    def forward(self, x):
        return x

m = Outer()
i = Inner()
s = nn.Sequential(Inner(), Inner(), Inner())
l = nn.ModuleList([Inner(), Inner()])
class Bad(nn.Module):
    def __init__(self):
        self.w = nn.Parameter(torch.ones(1))
class BadToo(nn.Module):
    def __init__(self):
        self.m = Inner()
def nothing(*args):
    pass
"""
STEPS = [
    "repr(m.second)",
    "repr(m.table)",
    "repr(i)",
    "list(m.state_dict())",
    "list(m.state_dict(prefix='x.'))",
    "m.state_dict()._metadata['second.0']",
    "[n for n, _ in m.named_parameters()]",
    "[n for n, _ in m.named_parameters(remove_duplicate=False)]",
    "[n for n, _ in m.named_buffers()]",
    "[n for n, _ in m.named_modules()]",
    "[n for n, _ in m.second.named_children()]",
    "len(list(m.parameters()))",
    "m.get_submodule('second.1.0')",
    "m.get_submodule('second.x')",
    "m.get_submodule('first.w')",
    "tuple(m.get_parameter('first.w').shape)",
    "m.get_parameter('first.b')",
    "m.get_parameter('first.z')",
    "m.get_buffer('first.w')",
    "m.set_submodule('', i)",
    "m.set_submodule('first', 3)",
    "m.eval().second[1][0].training",
    "m.train(3)",
    "m.nope",
    "setattr(i, 'w', 3)",
    "setattr(i, 'w', torch.ones(1))",
    "setattr(i, 'b', 3)",
    "setattr(m, 'first', 3)",
    "setattr(i, 'none', torch.ones(1))",
    "i.register_parameter('a.b', None)",
    "i.register_parameter('', None)",
    "i.register_parameter(3, None)",
    "i.register_parameter('forward', None)",
    "i.register_buffer('a.b', None)",
    "i.register_buffer('w', None)",
    "i.register_buffer('n', 3)",
    "i.add_module('a.b', Inner())",
    "i.add_module('q', 3)",
    "i.add_module('w', Inner())",
    "Bad()",
    "BadToo()",
    "nn.Module(3)",
    "nn.Module(a=3)",
    "nn.Module()(3)",
    "m.to(torch.int32)",
    "m.half().first.w.dtype, m.first.b.dtype",
    "i.requires_grad_(False).w.requires_grad",
    "s[-1] is s[2], len(s[:2]), type(s[1:]).__name__",
    "s[5]",
    "repr(s)",
    "s.pop(1) is not None, len(s), list(s.state_dict())",
    "s + 3",
    "len(s + s), len(s * 2)",
    "s.append(3)",
    "l(3)",
    "l[2]",
    "l.insert(0, Inner()), len(l)",
    "l.extend(3)",
    "len(l + [Inner()]), list((l + [Inner()]).state_dict())",
    "del_(l, 0)",
    "list(nn.ModuleDict({'b': i, 'a': i}))",
    "nn.ModuleDict({'b': i})['c']",
    "nn.ModuleDict({'b.c': i})",
    "nn.ParameterList([torch.ones(2), 3])[1]",
    "nn.ParameterList(torch.ones(2))",
    "nn.ParameterList([torch.ones(2)])[1]",
    "nn.ParameterDict({'p': torch.ones(1)}).get('q', 5)",
    "nn.ParameterDict({3: torch.ones(1)})",
    "nn.ParameterList()(3)",
    "i.load_state_dict({'w': torch.ones(2, 3), 'b': torch.ones(2)})",
    "i.load_state_dict({'w': torch.ones(2, 3)}, strict=False)",
    "i.load_state_dict({'w': torch.ones(3, 2), 'x': torch.ones(2), 'y.z': torch.ones(2)})",
    "i.load_state_dict({'w': 3, 'b': torch.ones(2)})",
    "i.load_state_dict(3)",
    "i.load_state_dict({'w': torch.ones(2, 3), 'b': torch.ones(2), 'none': torch.ones(2)})",
    "i.load_state_dict({'w': torch.zeros(2, 3), 'b': torch.ones(2)}, assign=True), float(i.w.detach().sum())",
    "i.get_extra_state()",
    "copy.deepcopy(m).second[0].w is m.first.w, list(copy.deepcopy(m).state_dict()) == list(m.state_dict())",
    "i.register_forward_pre_hook(lambda m, a, k: 3, with_kwargs=True) and i(3)",
    "i.register_forward_hook(lambda m, a, y: y + 1) and i(3)",
    "i.register_state_dict_post_hook(lambda *a: 3) and i.state_dict()",
    "sorted(n for n in dir(i) if n in {'w', 'b', 'forward', 'none'})",
    "float(nn.Parameter(torch.ones(2)).detach().sum()), nn.Parameter(torch.ones(2), requires_grad=False).requires_grad",
    "isinstance(nn.Parameter(torch.ones(2)), torch.Tensor), isinstance(torch.ones(2), nn.Parameter)",
    "m.apply(nothing) is m",
]


def run(torch, step):
    """Return what a step prints, or its error."""
    import copy

    def del_(container, index):
        del container[index]
        return list(container.state_dict())

    space = {"torch": torch, "nn": torch.nn, "copy": copy, "del_": del_}
    exec(MAKE, space)
    try:
        text = repr(eval(step, space))
    except Exception as e:  # noqa: BLE001 - whatever PyTorch raises
        text = f"{type(e).__name__}: {e}"
    text = re.sub(r"torch\.cuda\.FloatTensor|torch\.FloatTensor", "FloatTensor", text)
    return re.sub(r"<class '[\w.]*Tensor'>", "<Tensor>", text)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_does_what_pytorch_does(step):
    """The result, or the type and message of the error, is PyTorch's."""
    assert run(ours, step) == run(real, step)


def test_tensors_of_pytorch_itself():
    """A state dict may hold them, of any dtype; as arguments they are refused."""

    def build(torch):
        model = torch.nn.Linear(2, 2)
        model.register_buffer("scale", torch.full((2,), 1.7, dtype=torch.bfloat16))
        model.register_buffer("count", torch.tensor(3))
        return model

    theirs = build(real)
    with ours.seed(0):
        mine = build(ours)
    mine.load_state_dict({n: t + 1 for n, t in theirs.state_dict().items()})
    for name, t in mine.state_dict().items():
        assert str(t.dtype) == str(theirs.state_dict()[name].dtype)
        assert t.tolist() == (theirs.state_dict()[name] + 1).tolist()
    for f in (mine, ours.jax_view(lambda x: x)):
        with pytest.raises(TypeError, match=r"a tensor of PyTorch, of shape \(3, 2\).*\n.*numpy\(\)"):
            f(real.ones(3, 2))
