"""Values that JAX decides: what a program asks of them is answered as Python does, or refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch

ANSWERED = """
import torch


def compared(x):
    mode = "sum" if x.sum() > 0 else "mean"
    y = x.sum() if mode == "sum" else x.mean()
    return y + (2 if mode != "mean" else 3) + (5 if mode in ("mean", "max") else 7) + (mode not in "summit")


def set_in_a_loop(x):
    status = "run"
    for i in range(5):
        x = x / 2
        if x.abs().sum() < 1:
            status = "done"
            break
    return x * (2 if status == "done" else 1)


def compared_with_none(x):
    y = None
    if x.sum() > 0:
        y = 2 * x
    z = x
    if y is not None:
        z = z + y
    if y is None or y.sum() > 100:
        return z
    if y is not None and y.sum() > 0:
        z = z - 1
    assert y is not None
    return z * y


def assumed_by_the_same_test(x):
    t = x.sum() > 0
    y = None
    if t:
        y = 2 * x
    if not t:
        return x
    return y + 1


def truth(x):
    y = None
    if x.sum() > 0:
        y = "a"
    if not y:
        return x
    return 3 * x


def last_operand(x):
    mode = (x.sum() > 0) and "big"
    return 2 * x if mode == "big" else 3 * x


def kinds(x):
    y = None
    if x.sum() > 0:
        y = [x]
    n = 1 + isinstance(y, list)
    n = n * 2 + (type(y) is list)
    n = n * 2 + hasattr(y, "append")
    return x * n * getattr(y, "nothing", 3)


def called(x):
    f = torch.exp
    if x.sum() > 0:
        f = torch.tanh
    g = f if x.sum() > 1 else None
    return g(x) if callable(g) else f(x)


def key(x):
    name = "ab"
    if x.sum() > 0:
        name = "cd"
    name += "e"
    return x * {"abe": 2, "cde": 3}[name] * len(name) * name.index("e")


def nested(x):
    y = None
    if x.sum() > 0:
        y = "a"
        if x.sum() > 3:
            y = "b"
    z = x * 2 if y == "b" else x
    if y is not None:
        z = z + 1
        if y == "a":
            z = z * 3
    return z


def dtype_does_not_show(x):
    y = torch.ones(3)
    if x.sum() > 0:
        y = torch.ones(3, dtype=torch.int64)
    return x * y


def identity_of_bools(x):
    t = bool(x.sum() > 0)
    return x * (2 if t is True else 3) * (5 if t is not False else 7)


class Power(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mode = "square" if x.sum() > 0 else "cube"
        ctx.save_for_backward(x, x if x.sum() > 0 else x[:1])
        return x**2 if ctx.mode == "square" else x**3

    @staticmethod
    def backward(ctx, g):
        x, part = ctx.saved_tensors
        if ctx.mode == "square":
            return g * 2 * x
        return g * 3 * x**2


def on_ctx(x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(Power.apply(x).sum(), x)[0]
"""
REFUSED = {
    "format": "len(f'{y}')",
    "str": "len(str(y))",
    "hash": "len({y, 'c'})",
    "dict.get": "{'a': 2}.get(y, 3)",
    "iteration": "len([c for c in y])",
    "int": "int(y)",
    "index": "[1, 2][y]",
    "copy": "len(copy.deepcopy(y))",
    "NumPy": "len(np.asarray(y))",
}
PRELUDE = "import copy\nimport numpy as np\nimport torch\n\n"
VALUES = "def f(x):\n    y = 'a'\n    if x.sum() > 0: y = {}\n    {}\n"
NAMES = [n for n in ANSWERED.replace("(x):", "").split() if f"def {n}(x):" in ANSWERED]


def load(folder, text):
    path = folder / "file.py"
    path.write_text(text)
    return torch.load(path)


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """Return the loaded functions."""
    return load(tmp_path_factory.mktemp("deferred"), ANSWERED)


@pytest.mark.parametrize("name", NAMES)
def test_questions_are_answered_by_the_test(answered, name):
    """A program gives under jit, and under vmap, what it gives on known values."""
    function = torch.jax_view(getattr(answered, name))
    inputs = jnp.array([[1.0, 2.0, 3.0], [-1.0, -2.0, -4.0], [3.0, -1.0, -0.5]])
    expected = jnp.stack([function(x) for x in inputs])
    compiled = jax.jit(function)
    np.testing.assert_allclose(jnp.stack([compiled(x) for x in inputs]), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.vmap(function))(inputs), expected, rtol=1e-6)


@pytest.mark.parametrize("use", [*REFUSED, "match", "return", "attribute", "+= of a list"])
def test_other_uses_are_refused(tmp_path, use):
    """What needs to know which value it is raises with the variable's name and line."""
    statement = {
        "match": "match y:\n        case None: return x\n        case _: return x * 2",
        "return": "return y",
        "attribute": "return x * y.nothing",
        "+= of a list": "y += [x]\n    return y",
    }.get(use) or f"return x * {REFUSED[use]}"
    other = {"match": "None", "return": "torch.ones(2)", "+= of a list": "[x]"}.get(use, "'bc'")
    loaded = load(tmp_path, PRELUDE + VALUES.format(other, statement))
    with pytest.raises(torch.NotSupported, match=r"y is .* in one branch and str 'a' in the other(.|\n)*at: .*:"):
        jax.jit(torch.jax_view(loaded.f))(jnp.ones(3))


def test_identity_of_a_chosen_tensor_is_refused(tmp_path):
    """`y is x` after a traced branch has assigned x or another tensor to y raises."""
    text = "def f(x):\n    y = x * 2\n    if x.sum() > 0: y = x\n    return y * (2 if y is x else 3)\n"
    with pytest.raises(torch.NotSupported, match="`is` of tensors"):
        jax.jit(torch.jax_view(load(tmp_path, text).f))(jnp.ones(3))
