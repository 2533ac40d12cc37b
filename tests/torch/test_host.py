"""NumPy and SciPy on tensors: the calls are made on the host, with PyTorch's sharing of memory, also under jit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.torch
from fnjax import torch

SOURCE = """
import numpy as np
import torch
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
    low, high = np.unique(np.concatenate([a, a])).min(), a.max().item()
    return torch.tensor(values)[torch.tensor(order)] * high + low

def size(x):
    return torch.from_numpy(x.numpy()[x.numpy() > 0])

def branch(x):
    a = x.clone().numpy()
    if x.sum() > 0:
        a += 1
    return torch.from_numpy(a)

def draws(x):
    return torch.from_numpy(np.random.permutation(x.numpy()))

def distinct(x):
    return x * len(set(x.numpy().tolist()))

def text(x):
    return x * len(str(x.numpy()[0]))

def slope(x):
    return torch.from_numpy(np.sin(x.numpy()))

def fixed(x):
    return torch.from_numpy(np.sin(x.detach().numpy())) * x

def fails(x):
    return torch.from_numpy(np.linalg.cholesky(x.numpy()))
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


@pytest.mark.parametrize("jit", [False, True])
def test_calls_of_numpy_on_tensors(loaded, jit):
    """Under jit NumPy's calls run when the program does; memory is shared both ways, as in PyTorch."""

    def all_of(x):
        return [f(x) for f in (loaded.smooth, loaded.written, loaded.table, loaded.decide)]

    f = torch.jax_view(all_of)
    found = (jax.jit(f) if jit else f)(jnp.asarray(X))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_refused_by_name(loaded):
    """A size that depends on values, a write in a traced branch, random numbers, a derivative: NotSupported."""
    cases = [
        ("size", "the shape of an entry, which depends on traced values"),
        ("branch", "a write changes|add changes|changes an array in a branch"),
        ("draws", "permutation of a traced value"),
        ("distinct", "the hash of tolist"),
        ("text", "the text of an entry"),
    ]
    for name, text in cases:
        with pytest.raises(fnjax.torch.NotSupported, match=text) as error:
            jax.eval_shape(torch.jax_view(getattr(loaded, name)), jnp.asarray(X))
        assert "host.py" in str(error.value), name
        assert "fix:" in str(error.value), name
    with pytest.raises(fnjax.torch.NotSupported, match="the derivative of numpy"):
        jax.jit(jax.grad(lambda x: torch.jax_view(loaded.slope)(x).sum()))(jnp.asarray(X))
    grad = jax.grad(lambda x: torch.jax_view(loaded.fixed)(x).sum())(jnp.asarray(X))
    np.testing.assert_allclose(grad, np.sin(X), rtol=1e-6)
    with pytest.raises(fnjax.torch.NotSupported, match="cholesky, which raises LinAlgError on samples"):
        jax.eval_shape(torch.jax_view(loaded.fails), jnp.ones(3))
    shape = jax.eval_shape(torch.jax_view(loaded.fails), jnp.ones((3, 3))).shape  # the unit matrix has a root
    assert shape == (3, 3)


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
