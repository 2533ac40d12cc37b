"""The same Function in PyTorch and in JAX, on the same random data.

Each parity test writes a class twice. Both sides make the same loss of its outputs and take the same gradients of it,
and gradients of those; JAX's are conjugated, since PyTorch's gradient of a complex array is the conjugate. PyTorch is
imported where it is used: the tests skip themselves without it.
"""

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

RTOL = {"float16": 2e-3, "float32": 2e-5, "float64": 1e-10, "complex64": 2e-5, "complex128": 1e-10}


# Sources of random inputs: each takes a generator.
def real(*shape, dtype="float64"):
    """Normally distributed numbers."""
    return lambda rng: rng.normal(size=shape).astype(dtype)


def positive(*shape):
    """Numbers between 1/2 and 2."""
    return lambda rng: rng.uniform(0.5, 2, size=shape)


def cplx(*shape):
    """Complex numbers."""
    return lambda rng: rng.normal(size=shape) + 1j * rng.normal(size=shape)


def ints(*shape, below):
    """Integers from 0 on."""
    return lambda rng: rng.integers(0, below, size=shape)


@dataclasses.dataclass(frozen=True)
class Pair:
    """A function of arrays that calls PyTorch's class, and one that calls fnjax's.

    Attributes:
        name: of the class.
        torch: arrays → output or tuple of outputs.
        jax: the same.
        inputs: the sources of the inputs.
        order: how often to differentiate: once where PyTorch's second derivative is refused or wrong.
        use: which outputs the loss has in it; all without it.
    """

    name: str
    torch: Callable[..., Any]
    jax: Callable[..., Any]
    inputs: tuple[Callable[[np.random.Generator], np.ndarray], ...]
    order: int = 2
    use: tuple[int, ...] | None = None

    def arrays(self):
        """The inputs as NumPy arrays, the same in each run."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        return [source(rng) for source in self.inputs]


def check_pairs(*pairs):
    """A parametrisation of a parity test: each pair, eager, jitted, and as the derivative of a jitted function."""
    table = pytest.mark.parametrize("pair", pairs, ids=lambda pair: pair.name)
    return lambda test: table(pytest.mark.parametrize("mode", ["eager", "jit", "grad-of-jit"])(test))


def compare(pair, mode):
    """Assert that values and derivatives agree."""
    arrays = pair.arrays()
    ours, theirs = _by_jax(pair, arrays, mode), _by_torch(pair, arrays)
    assert len(ours) == len(theirs) == 1 + pair.order
    for order, (got, want) in enumerate(zip(ours, theirs, strict=True)):
        assert len(got) == len(want)
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            where = f"derivative of order {order}, number {i}" if order else f"output {i}"
            if not isinstance(w, np.ndarray):
                assert type(g) is type(w), where
                assert g == w, where
                continue
            assert (g.dtype, g.shape) == (w.dtype, w.shape), where
            rtol = RTOL.get(w.dtype.name, 0)
            np.testing.assert_allclose(g, w, rtol, atol=rtol, err_msg=where)


def _is_tuple(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _is_inexact(dtype):
    return np.issubdtype(dtype, np.inexact)


def _weights(shape_dtypes, salt):
    """Fixed numbers that mix outputs (or gradients) into one loss."""
    rng = np.random.default_rng(salt)
    weights = []
    for shape, dtype in shape_dtypes:
        w = rng.normal(size=shape) + (1j * rng.normal(size=shape) if np.issubdtype(dtype, np.complexfloating) else 0)
        weights.append(np.asarray(w, dtype))
    return weights


def _mix(values, salt, convert):
    """The real part of the weighted sum of `values`, those of no inexact dtype left out."""
    dtypes = [np.dtype(str(v.dtype).removeprefix("torch.")) for v in values]
    kept = [(v, d) for v, d in zip(values, dtypes, strict=True) if _is_inexact(d)]
    weights = _weights([(tuple(v.shape), d) for v, d in kept], salt)
    return sum((convert(w) * v).real.sum() for (v, _), w in zip(kept, weights, strict=True))


def _used(pair, outputs):
    outputs = _is_tuple(outputs)
    return [outputs[i] for i in (range(len(outputs)) if pair.use is None else pair.use) if hasattr(outputs[i], "dtype")]


def _by_torch(pair, arrays):
    import torch

    inputs = [torch.tensor(a, requires_grad=_is_inexact(a.dtype)) for a in arrays]
    wanted = [x for x in inputs if x.requires_grad]
    outputs = _is_tuple(pair.torch(*inputs))
    results, values = [outputs], _used(pair, outputs)
    for order in range(pair.order):
        # The last term is for what does not depend on the inputs: PyTorch has an error there for a zero.
        loss = _mix(values, order, torch.tensor) + 0 * sum(x.real.sum() for x in wanted)
        values = torch.autograd.grad(
            loss, wanted, create_graph=order + 1 < pair.order, allow_unused=True, materialize_grads=True
        )
        results.append(values)
    return [[v.detach().resolve_conj().numpy() if torch.is_tensor(v) else v for v in r] for r in results]


def _by_jax(pair, arrays, mode):
    inputs = [jnp.asarray(a) for a in arrays]
    wanted = tuple(i for i, x in enumerate(inputs) if _is_inexact(x.dtype))
    f = lambda *xs: _used(pair, pair.jax(*xs))
    if mode == "grad-of-jit":
        f = jax.jit(f)
    results = [_is_tuple(pair.jax(*inputs))]
    for order in range(pair.order):
        f = _gradients(f, wanted, order)
        results.append((jax.jit(f) if mode == "jit" else f)(*inputs))
    return [[np.asarray(v) if isinstance(v, jax.Array) else v for v in r] for r in results]


def _gradients(f, wanted, order):
    """The gradients of the mixed values of `f`, as PyTorch gives them."""
    loss = lambda *xs: _mix(f(*xs), order, jnp.asarray)
    return lambda *xs: [jnp.conj(g) for g in jax.grad(loss, wanted)(*xs)]
