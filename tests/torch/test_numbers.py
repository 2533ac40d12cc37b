"""PyTorch's values, dtypes, gradients and errors at ties, zeros, NaN and for empty tensors (read off PyTorch 2.13)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch

NAN, INF = float("nan"), float("inf")
T, F = torch.tensor, torch.nn.functional
GRID = torch.ones(3, 4)


def of(*values, dtype="int64"):
    return T(list(values), dtype=getattr(torch, dtype))


VALUES = {
    "clamp": (lambda: of(3, -1, 0, 2).clamp(max=1.5), "float32", [1.5, -1, 0, 1.5]),
    "clamp of int8": (lambda: torch.clamp(of(3, -1, dtype="int8"), -1.5), "float32", [3, -1]),
    "clamp of bool": (lambda: torch.clamp(T([True, False]), max=0), "int64", [0, 0]),
    "clamp by integers": (lambda: of(3, -1, dtype="int8").clamp(0, 1), "int8", [1, 0]),
    "clamp by a tensor": (lambda: T([1.0, 2]).clamp(T([1.5, 0.5], dtype=torch.float64)), "float64", [1.5, 2]),
    "clamp of halves": (lambda: T([1.0, 2]).half().clamp(0.3, 1.7), "float16", [1, 1.7]),
    "clip": (lambda: of(3, -1).clip(max=0.5), "float32", [0.5, -1]),
    "clamp by NaN": (lambda: T([1.0, 5]).clamp(NAN, 2), "float32", [NAN, NAN]),
    "sign": (lambda: T([NAN, 1, -2, -0.0]).sign(), "float32", [0, 1, -1, 0]),
    "sgn": (lambda: torch.sgn(T([NAN, 1]).half()), "float16", [0, 1]),
    "heaviside": (lambda: T([NAN, 0, 1, -1]).heaviside(T([3.0] * 4)), "float32", [0, 3, 1, 0]),
    "full of NumPy's": (lambda: torch.full((1,), np.float64(1.5)), "float32", [1.5]),
    "full of NumPy's integer": (lambda: torch.full((1,), np.int32(2)), "int64", [2]),
    "full of a tensor": (lambda: torch.full((1,), T(2.5).double()), "float32", [2.5]),
    "arange of NumPy's": (lambda: torch.arange(np.float32(1.5)), "float32", [0, 1]),
    "clamp by NumPy's": (lambda: of(3, -1).clamp(max=np.float32(1.5)), "float32", [1.5, -1]),
    "where of NumPy's": (lambda: torch.where(T([True]), np.float32(1.5), 0), "float32", [1.5]),
    "any of uint8": (lambda: of(2, 0, dtype="uint8").any(), "uint8", 1),
    "all of uint8": (lambda: torch.all(of(2, 0, dtype="uint8").reshape(2, 1), 1), "uint8", [1, 0]),
    "any of int8": (lambda: of(2, 0, dtype="int8").any(), "bool", True),
    "linspace": (lambda: torch.linspace(-1, 1, 3), "float32", [-1, 0, 1]),
    "linspace of tensors": (lambda: torch.linspace(T(0.0).double(), T(1), 3), "float32", [0, 0.5, 1]),
    "linspace of integers": (lambda: torch.linspace(0, 10, 4, dtype=torch.int64), "int64", [0, 3, 6, 10]),
    "logspace": (lambda: torch.logspace(0, 2, 3, 2.0), "float32", [1, 2, 4]),
    "logspace of integers": (lambda: torch.logspace(0, 7, 5, 2, dtype=torch.int64), "int64", [1, 3, 11, 38, 128]),
    "bincount": (lambda: torch.bincount(of(0, 1, 1)), "int64", [1, 2]),
    "bincount by integers": (lambda: of(0, 1, 1).bincount(of(1, 2, 3), minlength=3), "float64", [1, 5, 0]),
    "bincount by float32": (lambda: of(0, 1, 1).bincount(T([1.0, 2, 3.5])), "float32", [1, 5.5]),
    "median of none": (lambda: T([]).median(), "float32", NAN),
    "flip": (lambda: T(1.0).flip(-1), "float32", 1),
    "mT": (lambda: T(1.0).mT + T(2.0).mH + T(3.0).movedim(0, 0), "float32", 6),
    "quantile": (lambda: torch.quantile(T([1.0, NAN, 3]), T([0, 0.5])), "float32", [NAN, NAN]),
    "nanquantile": (lambda: torch.nanquantile(T([1.0, NAN, 3]), 1, keepdim=True), "float32", [3]),
}


@pytest.mark.parametrize("name", VALUES)
def test_values(name):
    """The dtype and the values are PyTorch's."""
    f, dtype, expected = VALUES[name]
    found = f()
    assert found.dtype is getattr(torch, dtype)
    np.testing.assert_array_equal(found.numpy(), np.asarray(expected, found.numpy().dtype))


def test_logspace_is_exact():
    """Powers are PyTorch's to the last bit, also under jit, where XLA's powers are not."""
    for make in (
        jax.jit(lambda: torch.jax_view(torch.logspace(20, 0, 21, 2.0))),
        lambda: torch.logspace(20, 0, 21, 2.0),
    ):
        np.testing.assert_array_equal(np.asarray(make()), 2.0 ** np.arange(20, -1, -1))


@pytest.mark.parametrize("name", ["clamp", "sign", "any of uint8", "linspace of tensors", "bincount by integers"])
def test_values_under_jit(name):
    """So they are of arguments that JAX traces, and in 64 bits."""
    f, dtype, expected = VALUES[name]
    with jax.enable_x64(True):
        found = jax.jit(torch.jax_view(f))()
    assert found.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(found, np.asarray(expected, dtype))


def test_each_nan_is_unique():
    """Equality decides: no NaN is another's equal."""
    values, inverse, counts = T([1, NAN, 3, NAN, -INF]).unique(return_inverse=True, return_counts=True)
    np.testing.assert_array_equal(values.numpy(), [-INF, 1, 3, NAN, NAN])
    assert (inverse.tolist(), counts.tolist()) == ([1, 3, 2, 4, 0], [1, 1, 1, 1, 1])
    assert tuple(T([[1, NAN], [1, NAN]]).unique(dim=0).shape) == (2, 2)


TIES = [2.0, 1, 2, 1, 2]
GRADIENTS = {
    "median": (torch.median, [TIES], [[1 / 3, 0, 1 / 3, 0, 1 / 3]]),
    "median of NaN": (torch.median, [[2, NAN, 1, NAN]], [[0, 0.5, 0, 0.5]]),
    "median of infinities": (torch.median, [[INF, INF, 0]], [[0.5, 0.5, 0]]),
    "nanmedian": (torch.nanmedian, [[2, NAN, 1, 2, 1, 2]], [[1 / 3, 0, 0, 1 / 3, 0, 1 / 3]]),
    "quantile": (lambda x: torch.quantile(x, 0.3), [TIES], [[0.2, 0, 0, 0.8, 0]]),
    "midpoint": (lambda x: torch.quantile(x, 0.3, interpolation="midpoint"), [TIES], [[0.5, 0, 0, 0.5, 0]]),
    "abs": (torch.abs, [[NAN, 0, -2]], [[0, 0, -1]]),
    "relu": (torch.relu, [[NAN, 0, 2, INF]], [[1, 0, 1, 1]]),
    "relu6": (torch.nn.functional.relu6, [[NAN, 0, 2, INF]], [[1, 0, 1, 0]]),
    "celu": (lambda x: torch.celu(x, 2.0), [[NAN, 0, 2]], [[1, 1, 1]]),
    "huber": (
        lambda x: torch.nn.functional.huber_loss(x, x.detach() * 0, reduction="none"),
        [[NAN, 0.5, -2]],
        [[NAN, 0.5, -1]],
    ),
    "smooth_l1": (lambda x: torch.nn.functional.smooth_l1_loss(x, T(1.0), reduction="sum"), [[INF, -INF]], [[1, -1]]),
    "hypot": (torch.hypot, [[0, 3], [0, 4]], [[NAN, 0.6], [NAN, 0.8]]),
    "xlogy": (torch.xlogy, [[0, 2], [0, 1]], [[0, 0], [NAN, 2]]),
    "clamp": (lambda x: x.clamp(0, 2), [[NAN, 1, 0, 2, 3]], [[0, 1, 1, 1, 0]]),
    "clamp by NaN": (lambda x: x.clamp(min=NAN), [[NAN, 1]], [[0, 0]]),
    "clamp by tensors": (
        torch.clamp,
        [[NAN, 1, 0, 2, 5], [0, NAN, 0, 0, 6], [2, 2, 2, NAN, 3]],
        [[0, 0, 1, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]],
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    """The gradient is PyTorch's, of torch.autograd, of jax.grad and of jax.jit."""
    f, given, expected = GRADIENTS[name]
    leaves = [T(x, dtype=torch.float32, requires_grad=True) for x in given]
    arrays = [jnp.asarray(x, jnp.float32) for x in given]
    places = tuple(range(len(given)))
    by_jax = jax.grad(torch.jax_view(lambda *x: f(*x).sum()), places)
    for found in (torch.autograd.grad(f(*leaves).sum(), leaves), jax.jit(by_jax)(*arrays)):
        for g, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.asarray(g), want, rtol=1e-6)


EMPTY = torch.zeros(0, 2)
ERRORS = {
    "//": (lambda: of(3) // of(0), RuntimeError, "ZeroDivisionError"),
    "some": (lambda: of(3, 4) % of(1, 0), RuntimeError, "ZeroDivisionError"),
    "number": (lambda: of(3) % 0, RuntimeError, "ZeroDivisionError"),
    "reflected": (lambda: 3 // of(0), RuntimeError, "ZeroDivisionError"),
    "fmod": (lambda: torch.fmod(of(3), 0), RuntimeError, "ZeroDivisionError"),
    "div": (lambda: torch.div(of(3), 0, rounding_mode="trunc"), RuntimeError, "ZeroDivisionError"),
    "in place": (lambda: of(3).floor_divide_(0), RuntimeError, "ZeroDivisionError"),
    "clamp_": (lambda: of(3).clamp_(0, 2.5), RuntimeError, "result type Float can't be cast to the desired"),
    "clamp": (lambda: of(3).clamp(), RuntimeError, "At least one of 'min' or 'max' must not be None"),
    "bincount": (lambda: of(-1).bincount(), RuntimeError, "bincount only supports 1-d non-negative"),
    "min": (EMPTY.min, RuntimeError, r"min\(\): Expected reduction dim to be specified for input.numel"),
    "amax": (EMPTY.amax, RuntimeError, r"amax\(\): .* Specify the reduction dim with the 'dim' argument"),
    "argmax": (EMPTY.argmax, IndexError, r"argmax\(\): Expected reduction dim to be specified"),
    "max(0)": (lambda: EMPTY.max(0), IndexError, r"max\(\): Expected reduction dim 0 to have non-zero size"),
    "median(-2)": (lambda: EMPTY.median(-2), IndexError, r"median\(\): Expected reduction dim 0 to have non-zero"),
    "aminmax": (EMPTY.aminmax, RuntimeError, "cannot compute aminmax over an empty dimension"),
    "quantile": (lambda: torch.quantile(T([]), 0.5), RuntimeError, "input tensor must be non-empty"),
    "iteration": (lambda: [*T(1.0)], TypeError, "iteration over a 0-d tensor"),
    "len": (lambda: len(T(1.0)), TypeError, r"len\(\) of a 0-d tensor"),
    "flip": (lambda: T([1.0]).flip(1), IndexError, r"expected to be in range of \[-1, 0\], but got 1"),
    "sum": (lambda: T(1.0).sum(1), IndexError, r"expected to be in range of \[-1, 0\], but got 1"),
    "mT": (lambda: T([1.0]).mT, RuntimeError, "only supported on matrices or batches of matrices. Got 1-D"),
    "class": (lambda: F.cross_entropy(GRID, of(0, 1, 7)), IndexError, "Target 7 is out of bounds"),
    "negative class": (lambda: F.nll_loss(GRID, of(0, -1, 2)), IndexError, "Target -1 is out of bounds"),
    "class of margins": (lambda: F.multi_margin_loss(GRID, of(0, 1, 9)), RuntimeError, "target out of range"),
    "one_hot": (lambda: F.one_hot(of(0, 5), 3), RuntimeError, "smaller than num_classes"),
    "gather": (
        lambda: GRID.gather(1, of(9)[None]),
        RuntimeError,
        "index 9 is out of bounds for dimension 1 with size 4",
    ),
    "scatter": (lambda: GRID.scatter(1, of(-1)[None], 1.0), RuntimeError, "index -1 is out of bounds for dimension 1"),
    "scatter_add": (lambda: GRID.scatter_add(1, of(9)[None], GRID), RuntimeError, "index 9 is out of bounds"),
    "index_add": (lambda: GRID.index_add(0, of(4), GRID[:1]), RuntimeError, "index 4 is out of bounds"),
    "index_copy": (lambda: GRID.index_copy(0, of(-1), GRID[:1]), IndexError, "index -1 is out of bounds"),
    "index_fill": (lambda: GRID.index_fill(0, of(4), 2.0), IndexError, "index 4 is out of bounds"),
    "take": (lambda: GRID.take(of(-13)), IndexError, "tried to access index -13 on a tensor of 12 elements"),
    "masked_fill": (
        lambda: GRID.masked_fill(GRID > 0, GRID),
        RuntimeError,
        "0-dimensional value tensor, but got tensor",
    ),
    "view of a scalar": (
        lambda: T(1.0).view(torch.int16),
        RuntimeError,
        r"self.dim\(\) cannot be 0 to view Float as Sh",
    ),
    "view as halves": (
        lambda: GRID.t().view(torch.int16),
        RuntimeError,
        r"self.stride\(-1\) must be 1 to view Float as",
    ),
    "view of few": (lambda: GRID[:, :3].view(torch.complex64), RuntimeError, r"self.size\(-1\) must be divisible by 2"),
    "view of odd": (lambda: GRID[:, 1:3].view(torch.complex64), RuntimeError, r"storage_offset\(\) must be divisible"),
    "view of rows": (
        lambda: torch.ones(2, 3)[:, :2].view(torch.complex64),
        RuntimeError,
        r"stride\(0\) .* but got 3",
    ),
    "H": (lambda: T([1.0]).H, RuntimeError, r"only supported on matrices \(2-D tensors\). Got 1-D"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    """The exception and its words are PyTorch's."""
    f, kind, words = ERRORS[name]
    with pytest.raises(kind, match=words):
        f()


def test_texts_of_numbers():
    """A tensor without axes is formatted as its number, which has no text where JAX traces it."""
    assert f"{T(1.5):.2f} {T(2)} {T(True)}" == "1.50 2 True"
    with pytest.raises(TypeError, match="unsupported format string"):
        f"{T([1.5]):.2f}"
    with pytest.raises(torch.NotSupported, match="the text of a traced number"):
        jax.jit(torch.jax_view(lambda x: x * len(f"{x}")))(jnp.ones(()))


def test_no_error_without_a_zero():
    """No elements are divided, floats are infinite, and the largest of no elements along another axis are none."""
    assert tuple((of() // 0).shape) == (0,)
    assert (T([3.0, -3]) // 0).tolist() == [INF, -INF]
    assert (T([-0.0, 0.0, 0.5]) // T([1.0, -1.0, 2.0])).signbit().tolist() == [True, True, False]
    assert tuple(EMPTY.max(1)[0].shape) == (0,)


@pytest.mark.parametrize("draw", ["rand", "randn", "linspace(0, 1, 3", "eye(3", "new_zeros", "new_tensor", "asarray"])
def test_made_with_requires_grad(draw):
    """Functions that make a tensor take requires_grad=True: it is a leaf that collects its gradient."""
    with torch.seed(0):
        if draw.startswith("new"):
            x = getattr(torch.ones(1), draw)([3.0, 1], requires_grad=True) if "tensor" in draw else None
            x = torch.ones(1).new_zeros(3, requires_grad=True) if x is None else x
        elif "(" in draw:
            x = eval(f"torch.{draw}, requires_grad=True)")
        else:
            x = getattr(torch, draw)(3 if draw.startswith("rand") else [1.0, 2], requires_grad=True)
    (x * 3).sum().backward()
    assert (x.grad == 3).all()
