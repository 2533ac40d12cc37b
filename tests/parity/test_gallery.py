"""Each example of the gallery gives PyTorch's numbers: values, gradients and, where PyTorch is right, second ones."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.test_examples import EXAMPLES, MODES, ROOT, load

torch = pytest.importorskip("torch", reason="PyTorch is not installed: `make parity` does that")
pytestmark = pytest.mark.parity

TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}


@pytest.fixture(params=TOLERANCE, ids=lambda dtype: dtype.__name__)
def dtype(request):
    """float32, and float64 with JAX's 64-bit mode on."""
    with jax.enable_x64(request.param is np.float64):
        yield request.param


@pytest.fixture
def normal(dtype):
    """A source of normally distributed arrays of that dtype."""
    rng = np.random.default_rng(0)
    return lambda *shape: rng.normal(size=shape).astype(dtype)


def forms(name):
    """The JAX form and the PyTorch form of an example, as modules."""
    return load(ROOT / "examples" / f"{name}.py"), load(ROOT / "examples" / "torch_forms" / f"{name}.py")


def by_jax(f, arrays, mixes, order, wrap):
    """The value of f, its gradients, and the gradients of the sum of those times `mixes`, and so on."""
    every = tuple(range(len(arrays)))
    results = [wrap(f)(*arrays)]
    for _ in range(order):
        gradient = jax.grad(f, every)
        results += wrap(gradient)(*arrays)
        f = lambda *xs, gradient=gradient: sum(jnp.vdot(g, m) for g, m in zip(gradient(*xs), mixes, strict=True))
    return results


def by_torch(f, arrays, mixes, order):
    """The same by PyTorch, where no gradient is a gradient of zeros."""
    leaves = [torch.tensor(x, requires_grad=True) for x in arrays]
    value = f(*leaves)
    results = [value]
    for _ in range(order):
        grads = torch.autograd.grad(value, leaves, create_graph=True, allow_unused=True, materialize_grads=True)
        results += grads
        value = sum((g * torch.tensor(m)).sum() for g, m in zip(grads, mixes, strict=True))
    return [x.detach().numpy() for x in results]


def compare(jax_form, torch_form, arrays, order=2):
    """Assert that two functions with one number as their result agree, to derivatives of the given order."""
    dtype = arrays[0].dtype.type
    rng = np.random.default_rng(1)
    mixes = [rng.normal(size=x.shape).astype(dtype) for x in arrays]
    expected = by_torch(torch_form, arrays, mixes, order)
    for k in range(order):  # not just zeros against zeros
        start = 1 + k * len(arrays)
        assert any(np.any(x != 0) for x in expected[start : start + len(arrays)])
    for wrap in MODES.values():
        got = by_jax(jax_form, arrays, mixes, order, wrap)
        assert len(got) == len(expected) == 1 + order * len(arrays)
        for g, e in zip(got, expected, strict=True):
            assert (g.shape, g.dtype) == (e.shape, e.dtype)
            np.testing.assert_allclose(g, e, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_weighted_loss(normal):
    """Both losses together, second derivatives included; target and weight get none at first order."""
    here, there = forms("weighted_loss")
    labels = np.array([2, 0, 1, 1])
    scores, target, weight = 3 * normal(4, 3), normal(4, 3), np.abs(normal(4, 3))
    compare(
        lambda *xs: here.total_loss(*xs, labels),
        lambda *xs: there.total_loss(*xs, torch.tensor(labels)),
        [scores, target, weight],
    )


def test_weighted_loss_of_large_differences(dtype):
    """Differences of which cosh overflows."""
    here, there = forms("weighted_loss")
    arrays = [np.array(x, dtype) for x in ([800.0, -900.0, 0.0], [0.0, 1.0, 0.0], [1.0, 2.0, 3.0])]
    compare(here.LogCosh.apply, there.LogCosh.apply, arrays)


def test_implicit_root(dtype):
    """Kepler's equation, to second derivatives."""
    here, there = forms("implicit_root")
    compare(here.anomaly, there.anomaly, [np.array([0.8, 0.3], dtype)])


def test_cholesky(normal):
    """The density of a normal distribution; PyTorch's own decomposition agrees with its custom form too."""
    here, there = forms("cholesky")
    m, y = normal(4, 4), normal(4)
    a = m @ m.T + 4 * np.eye(4, dtype=m.dtype)
    compare(here.log_density, there.log_density, [a, y])
    compare(here.log_density, lambda a, y: there.log_density(a, y, torch.linalg.cholesky), [a, y])


@pytest.mark.parametrize("mode", MODES)
def test_kill_head(mode, dtype):
    """Training gives PyTorch's loss at every step, with a head killed and without, and PyTorch's parameters."""
    here, there = forms("kill_head")
    params, x, y = here.data(dtype)
    theirs = {name: torch.tensor(p, requires_grad=True) for name, p in params.items()}
    for killed in (1, None):
        params, losses = here.train(params, x, y, killed, wrap=MODES[mode])
        theirs, their_losses = there.train(theirs, torch.tensor(x), torch.tensor(y), killed)
        np.testing.assert_allclose(losses, their_losses, rtol=TOLERANCE[dtype])
        for name, p in params.items():
            np.testing.assert_allclose(p, theirs[name].detach().numpy(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("mode", MODES)
def test_main_grad(mode, normal, dtype):
    """The sums in the Refs are those in PyTorch's attributes of the weights."""
    here, there = forms("main_grad")
    weights, x, y = [normal(3, 3) for _ in range(2)], normal(4, 2, 3), normal(4, 2, 3)
    ours = MODES[mode](here.accumulate)(weights, x, y)
    theirs = there.accumulate([torch.tensor(w, requires_grad=True) for w in weights], torch.tensor(x), torch.tensor(y))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.filterwarnings("ignore:'saved_variables' is deprecated:DeprecationWarning")
def test_something(normal):
    """|u v| through `saved_variables`, to second derivatives."""
    here, there = forms("something")
    compare(here.total, there.total, [normal(5), normal(5)])


def test_something_warns_as_in_pytorch(normal):
    """The older name gives the same warning."""
    here, there = forms("something")
    u, v = normal(5), normal(5)
    with pytest.warns(DeprecationWarning, match="saved_variables") as ours:
        jax.grad(here.total)(u, v)
    with pytest.warns(DeprecationWarning, match="saved_variables") as theirs:
        there.total(torch.tensor(u, requires_grad=True), torch.tensor(v)).backward()
    assert [str(w.message) for w in ours] == [str(w.message) for w in theirs]


@pytest.mark.parametrize("name", ["Square", "Exp"])
def test_square_exp(name, normal):
    """Third derivatives through a saved input and a saved output."""
    here, there = (getattr(form, name).apply for form in forms("square_exp"))
    compare(lambda x: here(here(x)).sum(), lambda x: there(there(x)).sum(), [normal(5)], order=3)


def test_sinh(normal):
    """With the intermediates as outputs both are right at second order, also where the loss uses those outputs."""
    here, there = (form.SinhOutputs.apply for form in forms("sinh"))
    compare(lambda x: (here(x)[0] ** 2).sum(), lambda x: (there(x)[0] ** 2).sum(), [normal(5)])
    compare(lambda x: (here(x)[0] * here(x)[1]).sum(), lambda x: (there(x)[0] * there(x)[1]).sum(), [normal(5)])


def test_sinh_where_pytorch_is_wrong(normal):
    """With the intermediates saved, first derivatives agree; at second order PyTorch alone misses a term."""
    here, there = (form.SinhIntermediates.apply for form in forms("sinh"))
    x = normal(5)
    f = lambda x: (here(x) ** 2).sum()
    g = lambda x: (there(x) ** 2).sum()
    compare(f, g, [x], order=1)
    ones = [np.ones_like(x)]
    tolerance = TOLERANCE[x.dtype.type]
    (_, _, theirs) = by_torch(g, [x], ones, order=2)
    np.testing.assert_allclose(theirs, 2 * np.cosh(x) ** 2, rtol=tolerance)
    for wrap in MODES.values():
        (_, _, ours) = by_jax(f, [x], ones, 2, wrap)
        np.testing.assert_allclose(ours, 2 * np.cosh(x) ** 2 + 2 * np.sinh(x) ** 2, rtol=tolerance)


def test_numpy_cube(normal):
    """Third derivatives of what NumPy computes."""
    here, there = (form.Cube.apply for form in forms("numpy_cube"))
    compare(lambda x: here(x).sum(), lambda x: there(x).sum(), [normal(5)], order=3)


def test_my_function(normal):
    """A number among the arguments, and a Function that PyTorch runs in place."""
    here, there = forms("my_function")
    compare(here.total, there.total, [normal(5), normal(5)])


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_linear(bias, normal):
    """A linear layer with ReLU, with its bias and without."""
    here, there = forms("linear")
    compare(here.total, there.total, [normal(6, 3), normal(4, 3), *([normal(4)] if bias else [])])


def test_my_relu_at_zero(dtype):
    """The derivative at 0 is 1, as in the PyTorch form."""
    here, there = (form.MyReLU.apply for form in forms("linear"))
    x = np.array([-1.0, 0.0, 1.0], dtype)
    compare(lambda x: here(x).sum(), lambda x: there(x).sum(), [x], order=1)


@pytest.mark.parametrize("name", ["Render", "RenderLazily"])
@pytest.mark.parametrize("uses", [(1, 0), (0, 1), (1, 1)], ids=["image", "alpha", "both"])
def test_two_outputs(name, uses, normal):
    """A loss of the image, of alpha, or of both; backward gets zeros or None just where PyTorch's gets them."""
    here, there = forms("two_outputs")

    def loss(form):
        def f(color, density):
            outputs = getattr(form, name).apply(color, density)
            return sum((output**2).sum() for output, used in zip(outputs, uses, strict=True) if used)

        return f

    compare(loss(here), loss(there), [normal(5), np.abs(normal(5))])
    here.was_none.clear()
    there.was_none.clear()
    jax.grad(loss(here))(normal(5), normal(5))
    loss(there)(torch.tensor(normal(5), requires_grad=True), torch.tensor(normal(5))).backward()
    assert here.was_none == there.was_none != []


RANK = """
import sys
import numpy as np, torch, torch.distributed as dist
from pathlib import Path
from tests.test_examples import load

form, rank, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
arrays = [torch.tensor(x) for x in np.load(folder / "arrays.npz").values()]
np.savez(folder / f"{rank}.npz", *load(Path(form)).gradients(*arrays))
dist.destroy_process_group()
"""


def by_two_processes(name, arrays, folder):
    """The gradients that two processes of PyTorch find, one list for each process."""
    np.savez(folder / "arrays.npz", *arrays)
    form = ROOT / "examples" / "torch_forms" / f"{name}.py"
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, form, str(rank), folder], cwd=ROOT, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        for process in ranks:
            _, err = process.communicate(timeout=120)
            assert process.returncode == 0, err.decode()
    finally:
        for process in ranks:
            process.kill()
    return [list(np.load(folder / f"{rank}.npz").values()) for rank in range(2)]


@pytest.mark.slow
def test_tensor_parallel(tmp_path, x64):
    """Two processes of PyTorch, each with its part of the weights, and the devices of JAX find the same gradients."""
    here, _ = forms("tensor_parallel")
    arrays = here.data(np.float64)
    first, second = by_two_processes("tensor_parallel", arrays, tmp_path)
    theirs = [first[0], np.concatenate([first[1], second[1]], 1), np.concatenate([first[2], second[2]], 0)]
    np.testing.assert_array_equal(first[0], second[0])
    for check_vma in (True, False):
        _, ours = here.on_devices(check_vma)(*arrays)
        for got, expected in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_sequence_parallel(tmp_path, x64):
    """The same for the parts of a sequence."""
    here, _ = forms("sequence_parallel")
    arrays = here.data(np.float64)
    parts = by_two_processes("sequence_parallel", arrays, tmp_path)
    theirs = [np.concatenate(pair, axis) for pair, axis in zip(zip(*parts, strict=True), (0, 1, 0), strict=True)]
    ours = jax.grad(here.loss(here.on_devices()), (0, 1, 2))(*arrays)
    for got, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


def test_every_example_is_compared():
    """Each example has a test here that is named after it."""
    assert {f"test_{path.stem}" for path in EXAMPLES} <= set(globals())
