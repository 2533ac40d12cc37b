"""NumPy and SciPy on tensors: the calls are made on the host, with PyTorch's sharing of memory, also under jit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.torch
from fnjax import torch

SOURCE = """
import numpy as np
import scipy.linalg
import torch
from scipy import interpolate, ndimage, special
from numpy.fft import rfft
LEVELS = np.array([0.0, 0.5, 2.0], np.float32)

def smooth(x):
    a = x.detach().numpy()
    out = np.zeros(a.shape, dtype=np.float32)
    for t in range(1, len(a)):
        out[t] = 0.5 * out[t - 1] + a[t]
    return torch.from_numpy(out - out.std())

def written(x):
    y = x.clone()
    a = y.numpy()
    a[a < 0] = 0                      # the tensor sees it
    view = a[1:]
    y.add_(1)                         # and NumPy sees this
    view *= 2
    z = torch.from_numpy(a)
    z[0] = 7                          # and a sees this
    return y + 0, torch.tensor(a), torch.as_tensor(view)

def table(x):
    index = np.clip(np.floor(x.numpy()), 0, 2).astype(np.int64)
    return torch.from_numpy(LEVELS[index]) * float(index.max()) + torch.tensor(abs(rfft(x.numpy())).sum())

def decide(x):
    a = x.numpy()
    if a.sum() > 0:
        a = a[::-1]
    values, order = np.sort(a), np.argsort(a)
    low, high = np.sort(np.concatenate([a, a]))[0], a.max().item()
    return torch.tensor(values)[torch.tensor(order)] * high + low

def branch(x):
    a = x.clone().numpy()
    if x.sum() > 0:
        a += 1
    return torch.from_numpy(a)

def roots(x):
    return torch.from_numpy(scipy.linalg.sqrtm(x.numpy()[:4].reshape(2, 2)))

def rows(x):
    b = x.numpy()[1:]
    if x.sum() > 0:
        b = b[1:]
    return torch.from_numpy(b)

def table_write(x):
    np.copyto(LEVELS, x.numpy()[:3])

def spline(x):
    return torch.from_numpy(interpolate.interp1d(x.numpy(), x.numpy())(0.5))

def slope(x):
    return torch.from_numpy(np.sin(x.numpy()))

def fixed(x):
    return torch.from_numpy(np.sin(x.detach().numpy())) * x

def fails(x):
    return torch.from_numpy(np.linalg.cholesky(x.numpy()))

def complex_root(x):
    return torch.tensor(x[0].item() ** 0 + x.numpy()[0].item() ** 0.5)

def at_traced_place(x):
    y = x.clone()
    a = y.numpy()[:4].reshape(2, 2)
    row, other = a[int(x[0]) + 1], torch.from_numpy(a[1])
    row[:] = 9                        # the second one
    return y + 0, other + 0, torch.tensor(row), LEVELS[int(x[0])] * x

def with_strides(x):
    y = x[:4].reshape(2, 2).clone()
    a = y.t().numpy()
    flat = a.reshape(-1)              # a copy
    flat[0] = 5
    a[0, 1] = 7
    return y + 0, torch.from_numpy(flat), torch.from_numpy(a)

def known_arrays(x):
    chosen, out = np.zeros(5, bool), np.zeros(3, np.float32)
    chosen[1], chosen[3], out[0] = True, True, 2
    count = int(out[0])
    shown = torch.from_numpy(out)
    shown += x[:3]
    levels = torch.tensor(np.unique(chosen))
    return torch.from_numpy(x.numpy()[chosen]), torch.from_numpy(out) * count, x[:count], levels

def merged(x):
    a = x.clone().numpy()
    part = a[1:]
    if x.sum() > 0:
        part = a[:-1]
    part += 1
    return torch.from_numpy(a), torch.tensor(part)

def outside_masks(x):
    a = x.clone().numpy()
    n = a.argmax()
    a[:n] = 7
    a[a < 0] = LEVELS[1]
    out = np.empty_like(a)
    np.add(a, 1, out=out)
    first, both = np.broadcast_arrays(out, LEVELS[:1])
    return torch.tensor(first + both), torch.from_numpy(np.sort(a)[::-1].copy())

def facts(x):
    a = x.numpy()
    assert isinstance(a, np.ndarray) and a.flags["C_CONTIGUOUS"] and a.dtype == np.float32
    kept = x * len(a) * a.size * np.sort(a)[1:].shape[0] * a[:, None].ndim
    kept = kept * 2 if a[0] in (0.0, 2.0) and a[1] not in [0.0] else kept
    return kept if a.any() and (a > -1000).all() and not a[2] > 5 else x

def libraries(x):
    a = x.numpy()
    numbers = torch.tensor([v + 1 for v in a.tolist()])
    return torch.tensor(special.erf(a)), torch.tensor(ndimage.gaussian_filter(a, 1.0)), numbers
"""
X = np.array([-0.4, 1.7, 2.5, -3.0, 0.9], np.float32)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = tmp_path_factory.mktemp("host") / "host.py"
    path.write_text(SOURCE)
    return fnjax.torch.load(path)


def expected():
    """Return what NumPy and PyTorch's rules give."""
    out = np.zeros_like(X)
    for t in range(1, len(X)):
        out[t] = np.float32(0.5) * out[t - 1] + X[t]
    a = np.maximum(X, 0) + 1
    a[1:] *= 2
    a[0] = 7
    index = np.clip(np.floor(X), 0, 2).astype(int)
    r = X[::-1]
    rows = np.sort(r)[np.argsort(r)] * r.max() + r.min()
    table = np.array([0, 0.5, 2], np.float32)[index] * index.max() + np.abs(np.fft.rfft(X)).sum()
    return out - out.std(), (a, a, a[1:]), table, rows


MORE = ["at_traced_place", "with_strides", "known_arrays", "merged", "outside_masks", "facts", "libraries"]


@pytest.mark.parametrize("jit", [False, True])
def test_calls_of_numpy_on_tensors(loaded, jit):
    """Under jit NumPy's calls run when the program does; memory is shared both ways, as in PyTorch."""

    def all_of(x):
        return [f(x) for f in (loaded.smooth, loaded.written, loaded.table, loaded.decide)]

    f = torch.jax_view(all_of)
    found = (jax.jit(f) if jit else f)(jnp.asarray(X))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_jit_agrees_with_eager(loaded):
    """Places that values decide, strides, known and merged arrays, masks and bounds of writes: as outside of jit."""

    def all_of(x):
        return [getattr(loaded, name)(x) for name in MORE]

    x = jnp.asarray([0.0, 1.7, -2.5, 3.0, 0.9], jnp.float32)
    expected, found = (jax.tree.leaves(f(x)) for f in (torch.jax_view(all_of), jax.jit(torch.jax_view(all_of))))
    for a, b in zip(expected, found, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(a, b)


SIZES = """
len(np.nonzero(a > 100)[0])
a[a > -100].size
a[:a.argmax()].size
len(np.array2string(a > 1))
len(str(a[0]))
len(f"{a[0]:.2f}")
hash(a[0])
{1.0: 2.0}.get(a[0], 3.0)
len(set(a.tolist()))
len(np.unique(a))
len(np.trim_zeros(a))
np.where(a > 0)[0].size
a.nonzero()[0].shape[0]
len(a.tobytes())
np.delete(a, a.argmax())[0]
np.repeat(a, a.astype(int))[0]
a[:4].reshape(int(a[0]), -1)[0, 0]
np.linspace(0, 1, int(a[0]))[-1]
np.bincount(a.astype(int))[0]
LEVELS[a[:3] > 0][0]
np.histogram(a, bins="auto")[0].size
np.linalg.eigvals(a[:4].reshape(2, 2))[0]
np.polyfit(a, a, 1, full=True)[1]
np.emath.sqrt(a)[0]
np.apply_along_axis(lambda v: v[v > 0], 0, a)[0]
np.random.permutation(a)[0]
np.frompyfunc(abs, 1, 1)(a)[0]
"""


@pytest.mark.parametrize("call", SIZES.strip().splitlines())
def test_what_values_decide_is_refused(call, tmp_path):
    """Sizes, dtypes and texts that depend on traced values raise, with a remedy."""
    path = tmp_path / "sizes.py"
    path.write_text(
        f"import numpy as np\nLEVELS = np.arange(3.0)\ndef f(x):\n    a = x.numpy()\n    return x * ({call})\n"
    )
    f = torch.jax_view(fnjax.torch.load(path).f)
    with pytest.raises(fnjax.torch.NotSupported) as error:
        jax.eval_shape(f, jnp.asarray(X))
    assert "sizes.py:5" in str(error.value)
    assert "fix:" in str(error.value)


def test_refused_by_name(loaded):
    """A write in a traced branch or to an array from elsewhere, objects of SciPy, a derivative: NotSupported."""
    cases = [
        ("branch", "add changes an array in a branch"),
        ("roots", "the attribute kind of scipy.linalg.sqrtm, which is real or complex as its traced values decide"),
        ("rows", "b is HostValue in one branch"),
        ("table_write", "copyto, which writes a traced value into an array of NumPy"),
        ("spline", "the elements of numpy"),
    ]
    for name, text in cases:
        with pytest.raises(fnjax.torch.NotSupported, match=text) as error:
            jax.eval_shape(torch.jax_view(getattr(loaded, name)), jnp.asarray(X))
        assert name == "spline" or "host.py" in str(error.value), name
        assert "fix:" in str(error.value), name
    with pytest.raises(fnjax.torch.NotSupported, match="the derivative of numpy"):
        jax.jit(jax.grad(lambda x: torch.jax_view(loaded.slope)(x).sum()))(jnp.asarray(X))
    grad = jax.grad(lambda x: torch.jax_view(loaded.fixed)(x).sum())(jnp.asarray(X))
    np.testing.assert_allclose(grad, np.sin(X), rtol=1e-6)
    with pytest.raises(fnjax.torch.NotSupported, match="cholesky, which raises LinAlgError for arrays of these shapes"):
        jax.eval_shape(torch.jax_view(loaded.fails), jnp.ones(3))


def test_errors_when_the_program_runs(loaded):
    """A call that fails on the values raises, and so does a dtype that is another one than that of the trace."""
    f = jax.jit(torch.jax_view(loaded.fails))
    np.testing.assert_array_equal(f(4 * jnp.eye(3)), 2 * np.eye(3))
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="not positive definite"):
        jax.block_until_ready(f(-jnp.eye(3)))
    f = jax.jit(torch.jax_view(loaded.complex_root))
    assert f(jnp.asarray([4.0])) == 3
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="the dtype complex128, and had"):
        jax.block_until_ready(f(jnp.asarray([-4.0])))


def test_known_tensors_share_memory_with_numpy():
    """Outside of jit, writes of NumPy reach the tensor and its views, and writes of torch the arrays."""
    x = torch.zeros(2, 3)
    row = x[1]
    a = row.numpy()
    a[1] = 5
    assert x.sum().item() == 5
    x.add_(1)
    np.testing.assert_array_equal(a, [1, 6, 1])
    a[:] = 0
    del a
    assert x.sum().item() == 3
    assert type(x.memory).__name__ == "Storage"  # nobody can write there any more
    b = np.ones(3)
    y = torch.from_numpy(b)
    b[0] = 4
    y[1] = 7
    np.testing.assert_array_equal(y * 1, b)
    np.testing.assert_array_equal(b, [4, 7, 1])
    assert torch.tensor(b).add_(1).sum().item() == 15
    assert b.sum() == 12
