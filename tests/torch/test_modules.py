"""torch.nn.Module and its containers: names, state dicts, hooks, copies."""

import copy
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch

nn = torch.nn


class Affine(nn.Module):
    """A layer with two parameters and a buffer that counts calls."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(inputs * outputs).float().reshape(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)

    def forward(self, x):
        self.calls += 1
        return torch.nn.functional.linear(x, self.weight, self.bias)


def make():
    return nn.Sequential(Affine(2, 3), nn.ModuleList([Affine(3, 1)])[0])


def test_names():
    """Parameters, buffers and modules have PyTorch's names, a shared parameter its first."""
    model = make()
    model[1].bias = model[0].bias
    assert [n for n, _ in model.named_parameters()] == ["0.weight", "0.bias", "1.weight"]
    assert [n for n, _ in model.named_buffers()] == ["0.calls", "0.scratch", "1.calls", "1.scratch"]
    assert [n for n, _ in model.named_modules()] == ["", "0", "1"]
    assert list(model.state_dict()) == ["0.weight", "0.bias", "0.calls", "1.weight", "1.bias", "1.calls"]


@pytest.mark.parametrize(("base", "args"), [(nn.Linear, (2, 3)), (nn.Conv1d, (2, 3, 1)), (nn.ReLU, ())])
def test_layers_stand_before_other_bases(base, args):
    """A class of a layer and another module runs the constructors of both, and hands on keywords of its statement."""

    class Other(nn.Module):
        def __init_subclass__(cls, key=None, shown=None, **kwargs):
            super().__init_subclass__(**kwargs)
            cls.said = key, shown

        def __init__(self):
            super().__init__()
            self.other = 1

    class Both(base, Other, key="a", shown="b"):
        pass

    with torch.seed(0):
        both, alone = Both(*args), base(*args)
    assert (both.other, Both.said) == (1, ("a", "b"))
    assert repr(both) == repr(alone).replace(base.__name__, "Both")


def test_a_call_maps_arrays_to_arrays_and_writes_buffers():
    """Arrays give arrays, tensors tensors with gradients in `.grad`; forward's writes stay, outside of transforms."""
    model = make()
    x = np.array([[1.0, 2.0]], np.float32)
    y = model(jnp.asarray(x))
    assert float(y[0, 0]) == 0 * 2 + 1 * 8 + 2 * 14  # [0 1; 2 3; 4 5] [1, 2] = [2, 8, 14]
    model(torch.tensor(x)).sum().backward()
    np.testing.assert_array_equal(model[1].weight.grad.numpy(), [[2, 8, 14]])
    np.testing.assert_array_equal(model[0].bias.grad.numpy(), [0, 1, 2])
    assert model[0].calls.item() == 2


def test_load_state_dict_collects_all_errors():
    """Missing and unexpected keys and mismatched shapes are one RuntimeError in PyTorch's words."""
    with pytest.raises(RuntimeError) as caught:
        make().load_state_dict({"0.weight": np.ones((3, 3)), "0.bias": np.ones(3), "0.calls": 1, "2.x": np.ones(1)})
    text = str(caught.value)
    assert text.startswith("Error(s) in loading state_dict for Sequential:\n\tMissing key(s) in state_dict: ")
    assert '"1.weight", "1.bias", "1.calls". \n\tUnexpected key(s) in state_dict: "2.x". ' in text
    assert (
        "size mismatch for 0.weight: copying a param with shape torch.Size([3, 3]) from checkpoint, the shape in "
        "current model is torch.Size([3, 2])."
    ) in text
    assert 'While copying the parameter named "0.calls", expected torch.Tensor' in text


def test_state_dict_round_trip():
    """A state dict of NumPy or JAX arrays loads; strict=False reports what does not match."""
    model, other = make(), make()
    state = {k: jnp.asarray(v.numpy()) + 1 for k, v in model.state_dict().items()}
    assert repr(other.load_state_dict(state)) == "<All keys matched successfully>"
    np.testing.assert_array_equal(other[0].weight.detach().numpy(), model[0].weight.detach().numpy() + 1)
    assert other[0].weight.requires_grad
    del state["1.bias"]
    assert other.load_state_dict(state | {"y": jnp.ones(1)}, strict=False) == (["1.bias"], ["y"])


def test_hooks_change_what_passes():
    """A pre-hook replaces the arguments, a forward hook the result, until they are removed."""
    layer = Affine(2, 3)
    x = torch.ones(1, 2)
    plain = layer(x)
    before = layer.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    after = layer.register_forward_hook(lambda module, args, result: result + args[0].sum())
    np.testing.assert_array_equal(layer(x).detach().numpy(), plain.detach().numpy() * 2 + 4)
    before.remove()
    after.remove()
    np.testing.assert_array_equal(layer(x).detach().numpy(), plain.detach().numpy())


def test_deepcopy_shares_nothing_but_what_was_shared():
    """A copied module has parameters of its own; a parameter used twice is one in the copy, too."""
    model = make()
    model[1].bias = model[0].bias
    made = copy.deepcopy(model)
    assert made[1].bias is made[0].bias
    assert made[0].bias is not model[0].bias
    made[0].bias.data.fill_(7)
    assert model[0].bias.sum().item() == 0
    assert made[1].bias.sum().item() == 21
    assert made[0].bias.requires_grad


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x * grad_output


class Squares(nn.Module):
    """A module in a list, which calls a Function."""

    def __init__(self, n):
        super().__init__()
        self.layers = nn.ModuleList([nn.Bilinear(n, n, n)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(Square.apply(x), x)
        return x


def test_names_in_programs_and_errors():
    """Operations, also of backward, have their module's and Function's names; an error has a note on its module."""
    with torch.seed(0):
        model = nn.Sequential(Squares(3))
    params = torch.jax_view(dict(model.named_parameters()))
    gradient = jax.jit(jax.value_and_grad(lambda x: torch.func.functional_call(model, params, (x,)).sum()))
    names = set(re.findall(r'op_name="([^"]*)"', gradient.lower(jnp.ones((2, 3), "float32")).compile().as_text()))
    for part in ("/jvp(Sequential)/0/layers.0/", "/transpose(jvp(Sequential))/0/layers.0/"):
        assert any(part in name for name in names), names
    assert any("transpose(jvp(Sequential))/0/Square/" in name for name in names), names
    for x in (torch.ones(2, 4), jnp.ones((2, 4), "float32")):
        with pytest.raises(RuntimeError) as caught:
            model(x)
        (note,) = (n for n in caught.value.__notes__ if n.startswith("  in module"))
        assert re.fullmatch(r"  in module: Bilinear '0.layers.0' of Sequential, .*test_modules.py:\d+", note), note
