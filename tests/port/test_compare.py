"""`fnjax compare`, and the function behind it."""

import importlib.util
import sys
import textwrap

import numpy as np
import pytest

from fnjax.__main__ import main
from fnjax.port import compare_command, port_source

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="compares with PyTorch")

ORIGINAL = """
import torch

class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, power):
        ctx.save_for_backward(x)
        ctx.power = power
        return x ** power, (x > 0).sum(0)

    @staticmethod
    def backward(ctx, grad, _):
        x, = ctx.saved_tensors
        return grad * ctx.power * x ** (ctx.power - 1), None

class Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z * z * 1j

    @staticmethod
    def backward(ctx, grad):
        z, = ctx.saved_tensors
        return grad * (2j * z).conj()
"""
PORTED = """
import jax.numpy as jnp
import fnjax

class Cube(fnjax.Function):
    @staticmethod
    def forward(ctx, x, power):
        ctx.save_for_backward(x)
        ctx.power = power
        return x ** power, jnp.sum(x > 0, axis=0)

    @staticmethod
    def backward(ctx, grad, _):
        x, = ctx.saved_tensors
        return grad * ctx.power * x ** (ctx.power - 1), None

class Turn(fnjax.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z * z * 1j

    @staticmethod
    def backward(ctx, grad):
        z, = ctx.saved_tensors
        return grad * jnp.conj(2j * z)
"""


@pytest.fixture
def files(tmp_path):
    def write(ported=PORTED, original=ORIGINAL):
        (tmp_path / "in_torch.py").write_text(textwrap.dedent(original))
        (tmp_path / "in_jax.py").write_text(textwrap.dedent(ported))
        return [str(tmp_path / "in_torch.py"), str(tmp_path / "in_jax.py")]

    return write


def compared(capsys, files, *options):
    status = main(["compare", *files, *options])
    return status, capsys.readouterr()


@pytest.mark.parity
@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_right_port_is_equal(files, capsys, dtype):
    """A right port agrees in outputs, gradients and second derivatives, eager and under jit, and exits 0."""
    status, printed = compared(capsys, files(), "--class", "Cube", "--args", "randn(3, 2), 3", "--dtype", dtype)
    assert status == 0, printed
    lines = printed.out.splitlines()
    assert lines[0] == "Cube: equal"
    assert [line[:10] for line in lines[1:]] == ["ok   eager"] * 4 + ["ok   jit  "] * 4
    assert "second derivative of argument 0: worst at [" in lines[4]


SELF_DUAL = {  # right where grad_output is the argument
    "sin": ("torch.sin(x)", "g * torch.cos(x)", "x * torch.cos(g)"),
    "RMSNorm": (
        "x / (x * x).mean(-1, True).sqrt()",
        "(g - y * (g * y).mean(-1, True)) / (x * x).mean(-1, True).sqrt()",
        "3 * (g - y * (g * y).mean(-1, True)) / (x * x).mean(-1, True).sqrt()",
    ),
}


@pytest.mark.parity
@needs_torch
@pytest.mark.parametrize("name", SELF_DUAL)
def test_cotangents_are_not_the_arguments(files, capsys, name):
    """A gradient that is wrong everywhere but where grad_output is the argument differs, and its port is refused."""
    forward, right, wrong = SELF_DUAL[name]

    def write(backward):
        return f"""
import torch

class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = {forward}
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return {backward}
"""

    for backward, status in ((right, 0), (wrong, 1)):
        ported = port_source(write(backward)).code
        found, printed = compared(capsys, files(ported, write(right)), "--args", "randn(2, 3)")
        assert found == status, printed.out
        assert ("FAIL eager gradient of argument 0" in printed.out) == bool(status)


@pytest.mark.parity
@needs_torch
def test_complex_gradients_are_compared_in_pytorchs_convention(files, capsys):
    """A holomorphic Function's gradient is conjugated once, on both sides alike, in both derivatives."""
    args = "randn(3) + 1j * randn(3)"
    assert compared(capsys, files(), "--class", "Turn", "--args", args)[0] == 0
    wrong = PORTED.replace("jnp.conj(2j * z)", "(2j * z)")
    status, printed = compared(capsys, files(wrong), "--class", "Turn", "--args", args)
    assert status == 1
    assert "FAIL eager gradient of argument 0" in printed.out


@pytest.mark.parity
@needs_torch
@pytest.mark.parametrize(
    ("old", "new", "failing"),
    [
        ("x ** power, jnp", "x ** power + 1e-3, jnp", "FAIL eager output 0: worst at"),
        ("grad * ctx.power * x", "grad * 1.001 * ctx.power * x", "FAIL jit   gradient of argument 0: worst at"),
        ("jnp.sum(x > 0, axis=0)", "jnp.sum(x > 0)", "shape () for PyTorch's (2,)"),
        ("jnp.sum(x > 0, axis=0)", "jnp.sum(x > 0., axis=0) + 0.0", "dtype float32 for PyTorch's int64"),
        (
            "return x ** power, jnp",
            "return x ** power + 0 * float(x[0, 0]), jnp",
            "FAIL jit   outputs: ConcretizationTypeError",
        ),
        ("x, = ctx.saved_tensors", "x = fnjax.nothing", "FAIL eager gradients: AttributeError"),
        (
            "@staticmethod\n    def backward",
            "@staticmethod\n    @fnjax.once_differentiable\n    def backward",
            "FAIL eager second derivatives:",
        ),
        (", jnp.sum(x > 0, axis=0)", "", "FAIL eager outputs: the port returns 1 arrays, the original 2"),
    ],
    ids=["output", "gradient", "shape", "dtype", "jit", "exception", "once-differentiable", "count"],
)
def test_a_wrong_port_differs(files, capsys, old, new, failing):
    """Whatever is wrong with the port is named, and the status is 1."""
    assert old in PORTED
    status, printed = compared(
        capsys, files(PORTED.replace(old, new, 1)), "--class", "Cube", "--args", "randn(3, 2), 3"
    )
    assert status == 1
    assert failing in printed.out


DRAWING = """
import torch

class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale=2.0):
        p = torch.sigmoid(x)
        ctx.save_for_backward(x)
        return (torch.rand_like(x) < p).to(x.dtype), p * scale

    @staticmethod
    def backward(ctx, grad, other):
        x, = ctx.saved_tensors
        p = torch.sigmoid(x)
        return grad + 2 * other * p * (1 - p), None
"""


@pytest.mark.parity
@needs_torch
def test_a_port_that_draws_is_given_a_key(files, capsys):
    """Values that depend on the draw are compared in shape and dtype only, and named; all others by their numbers."""
    from fnjax.port import port_source

    ported = port_source(DRAWING).code
    status, printed = compared(capsys, files(ported, DRAWING), "--args", "randn(4, 8)")
    assert status == 0, printed
    assert "ok   jit   output 0: random, not compared" in printed.out
    assert "ok   jit   output 1: worst at" in printed.out
    assert "ok   jit   gradient of argument 0: worst at" in printed.out
    assert "note: of what depends on random numbers only shapes and dtypes are compared: output 0" in printed.out
    for old, new in (("2 * other", "3 * other"), (".astype(x.dtype)", ".astype(int)"), ("* scale", "* 2.5")):
        assert old in ported
        assert compared(capsys, files(ported.replace(old, new), DRAWING), "--args", "randn(4, 8)")[0] == 1


@pytest.mark.parity
@needs_torch
def test_what_pytorch_cannot_differentiate_twice_is_a_note(files, capsys):
    """Second derivatives are not compared, and a note says so, if PyTorch has none."""
    once = ORIGINAL.replace(
        "@staticmethod\n    def backward",
        "@staticmethod\n    @torch.autograd.function.once_differentiable\n    def backward",
    )
    status, printed = compared(capsys, files(original=once), "--class", "Cube", "--args", "randn(3, 2), 3")
    assert status == 0
    assert "note: PyTorch has no second derivatives here: RuntimeError" in printed.out
    assert "second derivative of" not in printed.out
    ported = PORTED.replace(
        "@staticmethod\n    def backward", "@staticmethod\n    @fnjax.once_differentiable\n    def backward"
    )
    assert compared(capsys, files(ported, once), "--class", "Cube", "--args", "randn(3, 2), 3")[0] == 0


@pytest.mark.parity
@needs_torch
def test_a_gradient_that_pytorch_drops_needs_no_second_derivative(files, capsys):
    """PyTorch's second derivative is zero where a backward marked @once_differentiable returns None; fnjax raises."""
    class_ = (
        "class Weighed({}.Function):\n    @staticmethod\n    def forward(ctx, w, m):\n"
        "        ctx.save_for_backward(w, m)\n        return (w * m).sum()\n"
        "    @staticmethod\n    @{}.once_differentiable\n    def backward(ctx, grad):\n"
        "        w, m = ctx.saved_tensors\n        return grad * m, None\n"
    )
    original = "import torch\n" + class_.format("torch.autograd", "torch.autograd.function")
    given = ("--class", "Weighed", "--args", "randn(3), randn(3)", "--argnums", "1")
    ported = "import fnjax\n" + class_.format("fnjax", "fnjax")
    status, printed = compared(capsys, files(ported, original), *given)
    assert status == 0
    assert "not compared: JAX has none of a gradient that PyTorch drops" in printed.out
    plain = original.replace("    @torch.autograd.function.once_differentiable\n", "").replace(
        ", None", ", 3 * grad * w"
    )
    assert compared(capsys, files(ported, plain), *given)[0] == 1


def _added(original, ported):
    return {"original": textwrap.dedent(ORIGINAL) + original, "ported": textwrap.dedent(PORTED) + ported}


GATE = """
class Gate({}.Function):
    @staticmethod
    def forward(ctx, x, w):
        s = {}(x)
        ctx.save_for_backward(s, w)
        return s * w

    @staticmethod
    def backward(ctx, grad):
        s, w = ctx.saved_tensors
        return grad * w * s * (1 - s), grad * s
"""


@pytest.mark.parity
@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_pytorch_takes_for_constant_is_a_note(files, capsys, dtype):
    """A second derivative that PyTorch loses through what it saves is a note; one that the port has wrong fails."""
    gates = _added(
        GATE.format("torch.autograd", "torch.sigmoid"), GATE.format("fnjax", "(lambda x: 1 / (1 + jnp.exp(-x)))")
    )
    call = ("--class", "Gate", "--args", "randn(3, 2), abs(randn(3, 2, dtype=float32))", "--dtype", dtype)
    status, printed = compared(capsys, files(**gates), *call)
    assert status == 0, printed
    lines = printed.out.splitlines()
    assert lines[0] == "Gate: equal"
    assert lines[4].startswith("note eager second derivative of argument 0: worst at [")
    assert "PyTorch 0, JAX" in lines[4]
    assert "(the derivative of PyTorch's gradient)" in lines[4]
    assert lines[5].startswith("ok   eager second derivative of argument 1")
    assert "saved for constant" in lines[-1]
    held = gates["ported"].replace("return grad * w * s", "return grad * jax.lax.stop_gradient(w) * s")
    wrong = gates | {"ported": f"import jax\n{held}"}
    status, printed = compared(capsys, files(**wrong), *call)
    assert status == 1, printed
    assert "FAIL eager second derivative of argument" in printed.out


ROOT = """
class Root({0}.Function):
    @staticmethod
    def forward(ctx, a):
        L = {1}.linalg.cholesky(a)
        ctx.save_for_backward(L)
        return L * L

    @staticmethod
    def backward(ctx, g):
        (L,) = ctx.saved_tensors
        inverse = {1}.linalg.inv(L)
        P = {1}.tril(L.mT @ (2 * g * L))
        P = P - 0.5 * {1}.diag({1}.diag(P))
        S = inverse.mT @ P @ inverse
        return (S + S.mT) / 2
"""


@pytest.mark.parity
@needs_torch
def test_a_symmetric_matrix_is_moved_symmetrically(files, capsys):
    """Finite differences along other directions would not see what cholesky does not read."""
    roots = _added(ROOT.format("torch.autograd", "torch"), ROOT.format("fnjax", "jnp"))
    matrix = "4 * eye(4) + 0.3 * ones(4, 4) + 0.1 * array([[0, 1, 2, 3], [1, 0, 1, 2], [2, 1, 0, 1], [3, 2, 1, 0]])"
    status, printed = compared(capsys, files(**roots), "--class", "Root", "--args", matrix)
    assert status == 0, printed
    assert "note eager second derivative of argument 0" in printed.out


@pytest.mark.parity
@needs_torch
def test_a_backward_that_raises_is_a_note(files, capsys):
    """Outputs are compared, and a note gives the error, if only the original's backward raises."""
    gates = _added(
        GATE.format("torch.autograd", "torch.sigmoid").replace("= ctx.saved_tensors", "= {}['none']"),
        GATE.format("fnjax", "(lambda x: 1 / (1 + jnp.exp(-x)))"),
    )
    status, printed = compared(capsys, files(**gates), "--class", "Gate", "--args", "randn(3, 2), randn(3, 2)")
    assert status == 0, printed
    assert "note: PyTorch has no derivatives here: KeyError: 'none'" in printed.out


KEEPING = """
import torch

class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, {0}):
        {1}

    @staticmethod
    def backward(ctx, g, *_):
        {2}
"""
ATTENTION = """
        q, k, v, o, lse = ctx.saved_tensors
        p = torch.exp(q @ k.transpose(-1, -2) - lse.unsqueeze(-1))
        ds = p * (g @ v.transpose(-1, -2) - (o * g).sum(-1, keepdim=True))
        return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ g
"""
LSE = """
        s = q @ k.transpose(-1, -2)
        lse = torch.logsumexp(s, -1)
        o = torch.exp(s - lse.unsqueeze(-1)) @ v
        ctx.save_for_backward(q, k, v, o, lse)
"""
MARK = "        ctx.mark_non_differentiable(lse)\n        return o, lse"
SQUARE = "(x,) = ctx.saved_tensors\n        "
CONSTANT = {  # what PyTorch's second derivative takes for constant, by its name
    "marked": ("lse", "q, k, v", LSE + MARK, ATTENTION),
    "saved": ("lse", "q, k, v", LSE + "        return o", ATTENTION),
    "nearly one": (
        "lse",
        "q, k, v",
        LSE.replace("q @", "9 * q @") + "        return o",
        ATTENTION.replace("q @", "9 * q @"),
    ),
    "cast": (
        "w",
        "x",
        "w = x.double()\n        ctx.save_for_backward(w)\n        return w.sin().to(x.dtype)",
        "(w,) = ctx.saved_tensors\n        return (g.double() * w.cos()).to(g.dtype)",
    ),
    "where a gradient is asked for": (
        "y",
        "x",
        "y = x * x if x.requires_grad else None\n        ctx.save_for_backward(x, y)\n        return (x * x).sin()",
        "x, y = ctx.saved_tensors\n        return g * y.cos() * 2 * x",
    ),
    "float32 only": (
        "y",
        "x",
        "assert x.dtype == torch.float\n        y = x * x\n        ctx.save_for_backward(x, y)\n        return y.sin()",
        "x, y = ctx.saved_tensors\n        return g * y.cos() * 2 * x",
    ),
}


@pytest.mark.parity
@needs_torch
@pytest.mark.parametrize("name", CONSTANT)
def test_second_derivatives_that_pytorch_takes_for_constant(files, capsys, name):
    """A right port agrees, as PyTorch's gradient confirms; one with another derivative of what is saved does not."""
    saved, names, forward, backward = CONSTANT[name]
    original = KEEPING.format(names, forward.strip(), backward.strip())
    args = "randn(3, 4), randn(5, 4), randn(5, 2)" if "q" in names else "randn(3, 4)"
    right = port_source(original).code
    twice = f"\n        {saved} = 2 * {saved} - __import__('jax').lax.stop_gradient({saved})"
    for ported, expected in ((right, 0), (right.replace("= ctx.saved_tensors", f"= ctx.saved_tensors{twice}"), 1)):
        status, printed = compared(capsys, files(ported, original), "--args", args)
        assert status == expected, printed.out
        assert ("note eager second derivative of argument 0" in printed.out) == (ported == right)
        assert "FAIL eager gradient" not in printed.out


BY_HAND = "x, = ctx.saved_tensors\n        return x.sin() * g + g"


@pytest.mark.parity
@needs_torch
def test_second_derivatives_without_create_graph(files, capsys):
    """PyTorch lacks that part of them: the port, in JAX or as it is, may have it or say so; all else must agree."""
    again = "with torch.enable_grad():\n            u = x.detach().requires_grad_()\n            y = u.sin()\n        "
    mixed = f"{SQUARE}{again}y.backward(g)\n        return u.grad + g"
    original = KEEPING.format("x", "ctx.save_for_backward(x)\n        return x.sin() + x", mixed)
    right = port_source(KEEPING.format("x", "ctx.save_for_backward(x)\n        return x.sin() + x", BY_HAND)).code
    right = right.replace("import jax.numpy as jnp", "import jax\nimport jax.numpy as jnp")
    right = right.replace("jnp.sin(x) * g", "jax.vjp(jnp.sin, jax.lax.stop_gradient(x))[1](g)[0]")
    wrong = right.replace(
        "def backward(ctx, g, *_):\n", "def backward(ctx, g, *_):\n        g = jax.lax.stop_gradient(g)\n"
    )
    as_is = f"import fnjax.torch as torch\nif torch.execute_block(globals()):{textwrap.indent(original, '    ')}"
    for ported, status, said in (
        (right, 0, "note eager second derivative of the cotangent of output 0"),
        (wrong, 1, "FAIL eager second derivative of the cotangent of output 0"),
        (as_is, 0, "not compared: JAX has none of torch.autograd without create_graph"),
    ):
        found, printed = compared(capsys, files(ported, original), "--args", "randn(3)")
        assert found == status, printed
        assert said in printed.out


@pytest.mark.parity
@needs_torch
def test_second_derivatives_that_cannot_be_measured(files, capsys):
    """A differing second derivative fails, with a note if the original raises for the numbers around it."""
    ones = "(lambda x: [torch.sigmoid(x)][0 if (x == 1).all() else 9])"
    gates = _added(GATE.format("torch.autograd", ones), GATE.format("fnjax", "(lambda x: 1 / (1 + jnp.exp(-x)))"))
    call = ("--class", "Gate", "--args", "ones(3, 2), ones(3, 2)")
    status, printed = compared(capsys, files(**gates), *call)
    assert status == 1
    assert "finite differences: PyTorch's class raises for values close to these (IndexError" in printed.out
    status, printed = compared(capsys, files(**gates), *call, "--no-second")
    assert status == 0, printed
    assert "second derivative" not in printed.out


@pytest.mark.parity
@needs_torch
@pytest.mark.parametrize(("factor", "status"), [("1", 0), ("1.5", 1)])
def test_first_derivatives_where_backward_writes_in_place(files, capsys, factor, status):
    """First derivatives are compared, and a note says so, if only the recording of backward fails."""
    rows = """
class Rows({}.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        """
    original = rows.format("torch.autograd") + (
        "grad = grad.clone()\n        for row in grad:\n            row /= row.norm()\n        return grad\n"
    )
    ported = rows.format("fnjax") + f"return {factor} * grad / jnp.linalg.norm(grad, axis=1, keepdims=True)\n"
    found, printed = compared(capsys, files(**_added(original, ported)), "--class", "Rows", "--args", "randn(3, 2)")
    assert found == status, printed
    assert "eager gradient of argument 0" in printed.out
    assert "second derivative of" not in printed.out
    assert "note: PyTorch has no second derivatives here: RuntimeError" in printed.out


TWO = """
class Two({}.Function):
    @staticmethod
    def forward(ctx, x):
        y, z = 2 * x, 5 * x
        ctx.mark_non_differentiable(z)
        return y, z

    @staticmethod
    def backward(ctx, grad, other):
        return 2 * grad + 5 * other
"""


@pytest.mark.parity
@needs_torch
@pytest.mark.parametrize(("dropped", "status"), [("", 0), ("ctx.mark_non_differentiable(z)", 1)])
def test_what_pytorch_does_not_differentiate_gets_a_cotangent(files, capsys, dropped, status):
    """A gradient through an output that PyTorch has marked as non-differentiable is found."""
    ported = TWO.format("fnjax").replace(dropped, "") if dropped else TWO.format("fnjax")
    call = ("--class", "Two", "--args", "randn(3)")
    found, printed = compared(capsys, files(**_added(TWO.format("torch.autograd"), ported)), *call)
    assert found == status, printed
    assert ("FAIL eager gradient of argument 0" in printed.out) == bool(status)
    assert "note: PyTorch does not differentiate output 1" in printed.out


HELD = """
class Held({0}.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x ** 3

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        {1}
"""


@pytest.mark.parity
@needs_torch
@pytest.mark.parametrize(
    "held",
    [
        "return grad * 3 * x.detach() ** 2",
        "with torch.no_grad():\n            return grad * 3 * x ** 2",
        "return grad * 3 * torch.tensor(x.detach().numpy()) ** 2",
    ],
    ids=["detach", "no_grad", "numpy"],
)
@pytest.mark.parametrize(("port", "status"), [("jax.lax.stop_gradient(x)", 0), ("x", 1)], ids=["right", "wrong"])
def test_what_pytorch_holds_constant_is_differentiated_all_the_same(files, capsys, held, port, status):
    """A second derivative that the original's backward cuts off, and the port does not, is no zero and no note."""
    original = HELD.format("torch.autograd", held)
    call = ("--class", "Held", "--args", "randn(3)")
    ported = "\nimport jax\n" + HELD.format("fnjax", f"return grad * 3 * {port} ** 2")
    found, printed = compared(capsys, files(**_added(original, ported)), *call)
    assert found == status, printed
    assert ("FAIL jit   second derivative of argument 0: worst at" in printed.out) == bool(status)


CHOSEN = """
class Chosen({0}.Function):
    @staticmethod
    def forward(ctx, x):
        values, places = {1}
        ctx.save_for_backward(places)
        ctx.shape = x.shape
        return values, places

    @staticmethod
    def backward(ctx, grad, _):
        places, = ctx.saved_tensors
        {2}
"""


@pytest.mark.parity
@needs_torch
@pytest.mark.parametrize(("wrong", "status"), [("", 0), ("-", 1)])
@pytest.mark.parametrize("args", ["randn(3, 7)", "randint(0, 3, (3, 7)) * 1.0"], ids=["distinct", "ties"])
def test_an_order_that_pytorch_leaves_open(files, capsys, args, wrong, status):
    """topk(sorted=False) promises no order, so that of the port is right, and its numbers are compared all the same."""
    original = CHOSEN.format(
        "torch.autograd",
        "x.topk(4, dim=1, sorted=False)",
        "return torch.zeros(ctx.shape).scatter_(1, places, grad)",
    )
    ported = CHOSEN.format(
        "fnjax",
        f"jax.lax.top_k({wrong}x, 4)",
        "return jnp.put_along_axis(jnp.zeros(ctx.shape), places, grad, 1, inplace=False)",
    )
    call = ("--class", "Chosen", "--args", args)
    found, printed = compared(capsys, files(**_added(original, "\nimport jax\n" + ported)), *call)
    assert found == status, printed


@pytest.mark.parity
@needs_torch
def test_a_class_that_hard_codes_float32_is_measured(files, capsys):
    """`torch.zeros(B, K)` has 64 bits where finite differences of PyTorch's gradient need them."""
    gates = _added(
        GATE.format("torch.autograd", "(lambda x: torch.zeros(3, 2).index_put((torch.arange(3),), torch.sigmoid(x)))"),
        GATE.format("fnjax", "(lambda x: 1 / (1 + jnp.exp(-x)))"),
    )
    status, printed = compared(capsys, files(**gates), "--class", "Gate", "--args", "randn(3, 2), randn(3, 2)")
    assert status == 0, printed
    assert "note eager second derivative of argument 0" in printed.out


@pytest.mark.parity
@needs_torch
def test_which_arguments_are_differentiated():
    """Only the arguments that argnums names have gradients, on both sides."""
    import torch

    from fnjax.port.compare import compare

    found = compare(torch.mul, lambda x, y: x * y, [np.ones(2), np.ones(2)], argnums=[1])
    assert found.equal
    assert [e.what for e in found.entries if e.mode == "jit"] == [
        "output 0",
        "gradient of argument 1",
        "second derivative of argument 1",
    ]


@pytest.mark.parity
@needs_torch
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--args", "randn(3)"], "choose one with --class: Cube, Turn"),
        (["--class", "Sphere"], "there is no Function class 'Sphere'"),
        (["--class", "Cube", "--args", "randn(3)"], "cannot be called with randn(3): TypeError"),
        (["--class", "Cube", "--args", "rand n"], "cannot read --args"),
    ],
    ids=["which", "none", "call", "args"],
)
def test_unusable_input(files, capsys, options, message):
    """Unusable input ends with status 2 and one line that says why."""
    status, printed = compared(capsys, files(), *options)
    assert status == 2
    assert message in printed.err


@pytest.mark.parity
@needs_torch
def test_no_such_file(files, tmp_path, capsys):
    """A file that does not exist is named, and so is a folder, with status 2."""
    original, ported = files()
    assert main(["compare", original + "x.py", ported]) == 2
    assert "cannot import" in capsys.readouterr().err
    assert main(["compare", original, str(tmp_path)]) == 2
    assert "it is a folder: give one of its files" in capsys.readouterr().err


@pytest.mark.parity
@needs_torch
def test_as_an_api():
    """Compare returns a record with every array's worst entry and both numbers there."""
    import torch

    from fnjax.port.compare import compare

    found = compare(torch.sin, lambda x: np.float32(1.5) * x, [np.array([0.0, 2.0])])
    assert not found.equal
    first = found.entries[0]
    assert (first.what, first.mode, first.equal, first.worst) == ("output 0", "eager", False, (1,))
    assert first.original == pytest.approx(np.sin(2.0))
    assert first.ported == pytest.approx(3.0)
    with pytest.raises(ValueError, match="dtype must be"):
        compare(torch.sin, lambda x: x, [np.ones(2)], dtype="float16")


REDUCE = """
import torch
import torch.distributed as dist

class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        out = x.clone()
        dist.all_reduce(out, group=group)
        return out

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g, group=ctx.group)
        return g, None
"""


def test_the_axis_of_devices_is_set(tmp_path, monkeypatch):
    """A file is loaded with its folder to import from, and its AXIS_NAME is that of the comparison's devices."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "helper_of_axis.py").write_text("AXIS_NAME = None\n")
    (tmp_path / "axis.py").write_text("import helper_of_axis\nAXIS_NAME = None\n")
    space = {}
    exec(compare_command._write_loading_text(str(tmp_path / "axis.py")), space)
    assert space["module"].AXIS_NAME == space["module"].helper_of_axis.AXIS_NAME == "devices"


@pytest.mark.slow
@needs_torch
def test_several_devices(files, capsys):
    """A port with collectives is compared in processes: a wrong gradient differs, its output does not."""
    wrong = port_source(REDUCE).code.replace("return g, None", "return 2 * g, None")
    status, printed = compared(capsys, files(wrong, REDUCE), "--devices", "2", "--args", "randn(3), group")
    assert status == 1
    assert "unchecked output 0     equal  " in printed.out
    assert "unchecked gradient 0   DIFFERS" in printed.out


NET = """
import torch
from torch import nn

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 * x

class Act(nn.Module):
    def forward(self, x):
        return Square.apply(x)

class Net(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 3), Act(), nn.ReLU(inplace=True))
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.body(x))
"""
NETS = {
    "equal": ("", "", "all 17 outputs and gradients agree"),
    "backward": ("grad * 2", "grad * 3", "first difference: 'body.0', gradient of output 0 of call 1, before 'body.1'"),
    "forward": ("return x * x", "return x * x + 1", "first difference: 'body.1', output 0 of call 1"),
    "names": ("self.head", "self.tail", "Missing key(s) in state_dict"),
}


@pytest.mark.parametrize("case", NETS)
def test_modules_say_where_they_differ(case, tmp_path, capsys):
    """The first submodule whose output or gradient differs is named; other names are the state dict's error."""
    old, new, said = NETS[case]
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text(NET)
    second.write_text(NET.replace(old, new) if old else NET)
    call = [str(first), str(second), "--modules", "--class", "Net", "--init", "4", "--args", "randn(5, 4)"]
    status = main(["compare", *call])
    shown = capsys.readouterr()
    assert said in shown.out + shown.err
    assert status == {"equal": 0, "names": 2}.get(case, 1)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--init", "4"], "give the arguments of Net's forward with --args, such as --args 'randn(2, 4)'"),
        (["--class", "Nett"], "there is no module Nett in {file}: choose one with --class: Act, Net"),
        (["--args", "2"], "Net cannot be made: TypeError"),
        (["--init", "4, 5"], "Net cannot be made with --init '4, 5': TypeError"),
    ],
)
def test_modules_that_cannot_be_compared(more, said, tmp_path, capsys):
    """The message names the option that is missing or wrong."""
    file = tmp_path / "net.py"
    file.write_text(NET)
    assert (
        main(
            [
                "compare",
                str(file),
                str(file),
                "--modules",
                *(["--class", "Net"] if "--class" not in more else []),
                *more,
            ]
        )
        == 2
    )
    assert said.format(file=file) in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "a.py"), str(file), "--modules"]) == 2
    assert f"there is no file '{tmp_path / 'a.py'}'" in capsys.readouterr().err
