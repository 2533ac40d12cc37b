"""Functions and methods of NumPy and SciPy that the porter knows, against NumPy and SciPy."""

import functools

import jax
import numpy as np
import pytest
import scipy.fft
import scipy.linalg
import scipy.ndimage
import scipy.signal
import scipy.special
import scipy.stats

from fnjax.port import port_source
from fnjax.port.torch import numpy_functions as table
from tests.port.numpy_cases import CASES
from tests.port.test_classes import module

_rng = np.random.default_rng(3)
_normal = _rng.normal(size=(4, 4))
INPUTS = {
    "a": _rng.normal(size=(3, 4)).astype(np.float32),
    "b": _rng.normal(size=(3, 4)).astype(np.float32),
    "p": _rng.uniform(0.1, 0.9, (3, 4)).astype(np.float32),
    "q": _rng.uniform(1.1, 1.9, (3, 4)).astype(np.float32),
    "v": np.arange(1, 5, dtype=np.float32) ** 1.5,
    "s": (_normal @ _normal.T + 4 * np.eye(4)).astype(np.float32),
    "k": _rng.integers(0, 3, (3, 4)),
    "m": _rng.uniform(size=(3, 4)) > 0.5,
    "z": (_rng.normal(size=(3, 4)) + 1j * _rng.normal(size=(3, 4))).astype(np.complex64),
}
TEXTS = CASES.strip().splitlines()
FILE = """\
import numpy as np
import scipy.fft
import scipy.linalg
import scipy.ndimage
import scipy.signal
import scipy.special
import scipy.stats
import torch


class Called(torch.autograd.Function):
    @staticmethod
    def forward(ctx, {names}):
        {names} = {arrays}
        return {text}

    @staticmethod
    def backward(ctx, *g):
        return g
"""


@functools.cache
def _ported(text):
    names = ", ".join(INPUTS)
    arrays = ", ".join(f"{n}.detach().cpu().numpy()" for n in INPUTS)
    return port_source(FILE.format(names=names, arrays=arrays, text=text), strict=True)


def _flat(value):
    return [np.asarray(e) for v in value for e in (_flat(v) if isinstance(v, tuple) else [v])]


# What runs under jit also runs eagerly, but where the code asks which it is, as that of bincount does.
EAGER = pytest.param(lambda f: f, id="eager", marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [pytest.param(jax.jit, id="jit"), EAGER])
@pytest.mark.parametrize("texts", [TEXTS[i::20] for i in range(20)], ids=range(20))
def test_the_port_gives_the_numbers_of_numpy(texts, wrap, tmp_path):
    """The port has the numbers, the shape and the kind of dtype, eager and under jit."""
    with np.errstate(all="ignore"):
        wanted = [_flat((eval(t, {"np": np, "scipy": scipy}, INPUTS),)) for t in texts]
    ported = _ported(", ".join(texts))
    findings = [f for f in ported.findings if f.code != "output"]  # forward itself is called, whatever it gives
    assert not findings, findings
    forward = module(tmp_path, "called", ported.code).Called.forward
    results = wrap(lambda *arrays: forward(None, *arrays))(*map(jax.numpy.asarray, INPUTS.values()))
    for text, a, b in zip(texts, wanted, results, strict=True):
        for x, y in zip(a, _flat((tuple(b) if isinstance(b, tuple) else b,)), strict=True):
            assert x.shape == y.shape, text
            assert x.dtype.kind == y.dtype.kind, text
            if "empty" not in text:
                np.testing.assert_allclose(y, x, rtol=2e-4, atol=2e-5, err_msg=text)


def test_every_function_has_a_case():
    """Each line of the table is verified."""
    for name in table.JAX:
        assert any(f"{name.replace('numpy.', 'np.', 1)}(" in t for t in TEXTS), name
    for name in table.METHODS:
        assert any(f".{name}(" in t for t in TEXTS if not t.startswith(("np.", "scipy."))), name
