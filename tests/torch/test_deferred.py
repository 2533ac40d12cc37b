"""Values that JAX decides: what a program asks of them is answered as Python does, or refused."""

import re
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch
from fnjax.torch.control import paths

ANSWERED = """
import copy
import torch


def compared(x):
    mode = "sum" if x.sum() > 0 else "mean"
    y = x.sum() if mode == "sum" else x.mean()
    return y + (2 if mode != "mean" else 3) + (5 if mode in ("mean", "max") else 7) + (mode not in "summit")


def named(x):
    mode = "sum" if x.sum() > 0 else "mean"
    return getattr(x, mode)() * 2 + getattr(torch, mode)(x)


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


def number_or_tensor(x):
    y, z = 1.0, 2
    if x.sum() > 0:
        y, z = x, x.sum()
    n = 1 + torch.is_tensor(y) + 2 * isinstance(y, float) + 4 * (type(z) is int) + 8 * hasattr(z, "shape")
    return x * n + copy.copy(y) + z


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
    "pickle": "len(pickle.dumps(y))",
    "NumPy": "len(np.asarray(y))",
}
PRELUDE = "import pickle\nimport numpy as np\nimport torch\n\n"
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


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
def test_questions_are_answered_by_the_test(answered, name):
    """A program gives under jit, and under vmap, what it gives on known values."""
    function = torch.jax_view(getattr(answered, name))
    inputs = jnp.array([[1.0, 2.0, 3.0], [-1.0, -2.0, -4.0], [3.0, -1.0, -0.5]])
    expected = jnp.stack([function(x) for x in inputs])
    compiled = jax.jit(function)
    np.testing.assert_allclose(jnp.stack([compiled(x) for x in inputs]), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.vmap(function))(inputs), expected, rtol=1e-6)


@pytest.mark.parametrize("use", [*REFUSED, "return", "attribute", "+= of a list"])
def test_other_uses_are_refused(tmp_path, monkeypatch, use):
    """Other uses raise with the variable's name and line, in a function that is too large to be run for both values."""
    monkeypatch.setattr(paths, "_MOST", 0)
    statement = {
        "return": "return y",
        "attribute": "return x * y.nothing",
        "+= of a list": "y += [x]\n    return y",
    }.get(use) or f"return x * {REFUSED[use]}"
    other = {"return": "torch.ones(2)", "+= of a list": "[x]"}.get(use, "'bc'")
    loaded = load(tmp_path, PRELUDE + VALUES.format(other, statement))
    with pytest.raises(torch.NotSupported, match=r"y is .* in one branch and str 'a' in the other(.|\n)*at: .*:"):
        jax.jit(torch.jax_view(loaded.f))(jnp.ones(3))


@pytest.mark.parametrize("question", ["id(y) == id(x)", "y in {x: 1}"])
def test_identity_of_a_chosen_tensor_is_refused(tmp_path, question):
    """`id(y)` after a traced branch has assigned x or another tensor to y raises."""
    text = f"def f(x):\n    y = x * 2\n    if x.sum() > 0: y = x\n    return y * (2 if {question} else 3)\n"
    with pytest.raises(torch.NotSupported, match=r"(tensor|tensors) of which JAX decides"):
        jax.jit(torch.jax_view(load(tmp_path, text).f))(jnp.ones(3))


def test_host_values_answer_or_refuse(tmp_path):
    """An array of NumPy under jit has NumPy's type and can be copied; other uses of its values raise."""
    text = """
        import copy
        import numpy as np
        import torch

        def f(x):
            a = x.numpy()
            b = copy.deepcopy(a)
            b[0] = 7
            return torch.tensor(a + b) * (2 if type(a) is np.ndarray and not callable(a) else 3)

        def contains(x):
            return x * (3 in x.numpy())

        def delete(x):
            a = x.numpy()
            del a[0]
    """
    loaded = load(tmp_path, textwrap.dedent(text))
    f = torch.jax_view(loaded.f)
    np.testing.assert_array_equal(jax.jit(f)(jnp.ones(3)), [16, 4, 4])
    for function, use in ((loaded.contains, "in"), (loaded.delete, "del")):
        with pytest.raises(torch.NotSupported, match=rf"^{use} of numpy\(\)"):
            jax.jit(torch.jax_view(function))(jnp.ones(3))


NUMBERS = """
import copy
import functools
import math
import operator
import numpy as np
import torch

T = torch.tensor


def arithmetic(x):
    n, v = int(x[0].item() * 4), x[1].item()
    return T(n**2), T(n / 2), T(n // -3), T(n % -3), T(v // 2), T(v % 2), T(n << 2 & 7 | 8), T(~n), T(-n), T(n**-2)


def bools(x):
    b = bool(x.sum() > 0)
    return x * (b + b), T(b + b), T(-b), T(b), T(b & True), T(b | 2), T(b ^ True), T(b / 2), T(b * 2.5), T(not b)


def builtins(x):
    n, v = int(x.sum()), x[2].item() * 1.26
    q, r = divmod(n, 4)
    last = T(max(n, 2)), T(min(v, 2.0)), T(sum([n, 2])), T(sorted([n, 1])), T(pow(n, 2))
    return T(q), T(r), T(round(v)), T(round(v, 1)), T(round(n, -1)), T(abs(v)), T(int(v)), T(float(n)), *last


def functions_of_math(x):
    v = x[0].item()
    return T([math.floor(v), math.ceil(v)]), T(math.exp(v)), T(math.isnan(v)), T(math.sqrt(abs(v))), T(math.fabs(v))


def made(x):
    n, v = int(x[1].item()), x[0].item()
    return T(v), T([n, v]), torch.full((2,), v), torch.full((2,), n), x.new_tensor([n]), torch.FloatTensor([n, 1])


def operands(x):
    n, v = int(x[0].item()), x[1].item()
    y = x.clone()
    y += v
    y[abs(n) - 1] = n
    z = x.add(x, alpha=n), x.clamp(max=v), y
    return *z, torch.arange(3) * n, torch.arange(3) + v, v / x, n // x, 2.5**x, x > n, n == x


def what_it_is(x):
    n, v = int(x.sum()), x.sum().item()
    k = [torch.is_tensor(v), isinstance(v, float), isinstance(n, (int, str)), type(n) is int, hasattr(v, "dim")]
    k += [n is None, (n > 3) is True, (n > 3) is not False, v == "a", callable(v), n in {6, 7}, v.is_integer()]
    return T(k), T(getattr(v, "shape", 5)), T(copy.deepcopy([v])), type(v).__name__ == "float", 6 in [n, 3]


def loops(x):
    n, s, k = 0, x.abs().sum().item(), 9
    while s > 1:
        s, n = s / 2, n + 1
    while k != 1:
        k = k // 2 if k % 2 == 0 else 3 * k + int(x[0] > -9)
    for i in range(abs(int(x[0]))):
        n = n + i
    return T(n), T(s), x * n, T(k)


def types_do_not_show(x):
    y, p = 1, 2 ** abs(int(x[0]))
    if x.sum() > 0:
        y = 2.5
    return x * y, x + p, y > 2, T(float(y)), int(y)


def entries(x):
    n = abs(int(x[0])) - 1
    return x[n], torch.cat([x, x])[n : n + 2], [x, 2 * x, x][n], x * [1, 2.5, n][n], T([x[n].item(), 2])


def on_numpy(x):
    v = x[0].item()
    return T(np.ones(2) * v), T(np.float64(2) * v), x * float(np.maximum(v, 1))


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.k, ctx.n = k, x.sum().item()
        ctx.is_positive = ctx.n > 0
        return x * k

    @staticmethod
    def backward(ctx, g):
        assert not ctx.needs_input_grad[1]
        return g * ctx.k * ctx.n * (2 if ctx.is_positive is True else 3) * (5 if isinstance(ctx.k, float) else 7), None


def on_ctx(x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(Scale.apply(x, x.sum().item()).sum(), x)[0]
"""
NUMBER_NAMES = [n for n in NUMBERS.replace("(x):", "").split() if f"def {n}(x):" in NUMBERS]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """Return the loaded functions."""
    return load(tmp_path_factory.mktemp("numbers"), NUMBERS)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NUMBER_NAMES)
def test_traced_numbers_are_those_of_python(numbers, name):
    """Values and dtypes are those that a program gives where its numbers are known."""
    function = torch.jax_view(getattr(numbers, name))
    with jax.enable_x64(True):
        compiled = jax.jit(function)
        for values in ([1.0, 2.0, 3.0], [-1.0, -2.0, -4.0], [3.0, -1.0, -0.5]):
            x = jnp.array(values, jnp.float32)
            expected, found = (jax.tree.map(np.asarray, f(x)) for f in (function, compiled))
            for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
                assert a.dtype == b.dtype, (a, b)
                np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("x * len(f'{v:.2f}')", "the text of a traced number (float)"),
        ("x * int(str(n))", "the text of a traced number (int)"),
        ("x * {6: 2.0}.get(n, 1.0)", "the hash of a traced number (int)"),
        ("x * len({n, 1})", "the hash"),
        ("x * n.bit_length()", "bit_length() of"),
        ("x * [1, 2].index(n)", "the truth of"),
        ("torch.zeros(n)", "int() of"),
        ("x.view(n, 3)", "int() of"),
        ("torch.tensor(2 ** n)", "the type of a number that is int or float"),
        ("torch.tensor(y)", "the type of a number that is int or float"),
        ("torch.arange(3) * y", "torch.float32 or torch.int64, by the type"),
        ("x * isinstance(y, int)", "the type of a number that is int or float"),
        ("y", "the type of a number that is int or float"),
        ("x * (2 if n is 6 else 3)", "`is` of"),
        ("n.shape", "'int' object has no attribute 'shape'"),
    ],
)
@pytest.mark.filterwarnings("ignore:.is. with .int. literal:SyntaxWarning")
def test_uses_that_need_the_value_of_a_number_are_refused(tmp_path, expression, message):
    """They raise with the use and the line, where the program would go on with something else."""
    text = f"n, v, y = int(x.sum()), x.sum().item(), 1\n    if x.sum() > 0: y = 2.5\n    return {expression}"
    function = torch.jax_view(load(tmp_path, f"import torch\ndef f(x):\n    {text}\n").f)
    with pytest.raises((torch.NotSupported, AttributeError), match=re.escape(message)):
        jax.jit(function)(jnp.ones(3))
