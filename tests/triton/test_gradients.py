"""JAX's own derivatives through translated kernels, beside their twins' and beside backward kernels."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.triton.language as tl
from benchmarks import triton_launches as launches
from fnjax import Function, triton
from tests.triton.kernels import activations, attention, norms
from tests.triton.test_streams import previous_kernel
from tests.triton.twins import DIFFERENTIATED, TWINS, WITHOUT_GRADIENT, forms_of, gradient_of
from tests.triton.zoo import rows
from tests.wrappers import on_two_devices

SMALL = {
    "add": lambda: launches.add(64),
    "swiglu": lambda: launches.swiglu(64, rows=5, block=64),
    "swiglu-uneven": lambda: launches.swiglu(50, rows=5, block=64),
    "rms-forward": lambda: launches.rms_forward(5, 64),
    "rms-backward": lambda: launches.rms_backward(10, 64, 4),
    "softmax": lambda: launches.softmax(5, 64),
    "cross-entropy": lambda: launches.cross_entropy(64, 5, 16),
    "cross-entropy-uneven": lambda: launches.cross_entropy(50, 5, 16),
    "matmul": lambda: launches.matmul(64, 16),
    "matmul-block-pointers": lambda: launches.matmul_block_pointers(48, 16),
    "attention-causal": lambda: launches.attention(True, 2, 64, 16, 16),
    "attention-full": lambda: launches.attention(False, 2, 64, 16, 16),
    "embedding": lambda: launches.embedding(20, 40, 12),
    "scan": lambda: launches.scan(2, 12, 40, 4, 16),
    "experts": lambda: launches.experts(64, 32, 64, 3, 16),
    "eight-bits": lambda: launches.eight_bits(32, 32, 64, 16),
    "embedding-backward": lambda: launches.embedding_backward(20, 40, 8192),
    "histogram": lambda: launches.histogram(200, 256, 64),
    "adam": lambda: launches.adam(200, 64),
}


def assert_near(found, wanted, tolerance=2e-6):
    """Within `tolerance` of the largest value, leaf by leaf."""
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * float(jnp.abs(theirs).max()))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_kernel_is_its_twin(name):
    """Values and JAX's gradients, under jit; the same kernels are timed at their real size by the benchmark."""
    forms, inputs = forms_of(name, SMALL[name]())
    assert_near(jax.jit(forms["fnjax"])(*inputs), jax.jit(forms["twin"])(*inputs))
    if name in WITHOUT_GRADIENT:
        return
    found, wanted = (jax.jit(gradient_of(forms[form], name, inputs))(*inputs) for form in ("fnjax", "twin"))
    assert_near(found, wanted, 5e-6)


def test_every_twin_is_compared():
    """Every launch that is timed is tried here at a small size."""
    assert SMALL.keys() == TWINS.keys() == launches.LAUNCHES.keys()
    assert DIFFERENTIATED.keys() <= TWINS.keys()


def numbers(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32)


def empty(*shape):
    return jnp.empty(shape, jnp.float32)


def test_derivative_of_rms_norm_is_its_backward_kernel():
    """The kernel that people write by hand, beside jax.vjp of the forward kernel."""
    x, w, dy = numbers(0, 10, 50), numbers(1, 50), numbers(2, 10, 50)

    def forward(x, w):
        return norms.rms_forward_kernel[(10,)](x, w, jnp.empty_like(x), empty(10), 50, 50, 1e-6, BLOCK=64)

    @jax.jit
    def both(x, w, dy):
        (_, rstd), pullback = jax.vjp(forward, x, w)
        own = pullback((dy, jnp.zeros_like(rstd)))
        dx, dw = norms.rms_backward_kernel[(4,)](dy, x, w, rstd, jnp.empty_like(x), empty(4, 50), 10, 50, 3, BLOCK=64)
        return own, (dx, dw.sum(0))

    assert_near(*both(x, w, dy))


def test_derivative_of_swiglu_is_its_backward_kernel():
    """The backward kernel, which writes the gradients over its inputs, returns what vjp of the forward kernel does."""
    gate, up, dy = numbers(3, 5, 50), numbers(4, 5, 50), numbers(5, 5, 50)

    def forward(gate, up):
        return activations.swiglu_forward_kernel[(5,)](gate, up, jnp.empty_like(gate), 50, 50, BLOCK=64)

    @jax.jit
    def both(gate, up, dy):
        own = jax.vjp(forward, gate, up)[1](dy)
        return own, activations.swiglu_backward_kernel[(5,)](dy, gate, up, 50, 50, BLOCK=64)

    assert_near(*both(gate, up, dy))


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_derivative_of_attention_is_its_backward_kernel(causal):
    """Flash attention: the backward kernel counts the probabilities again, JAX differentiates the loop."""
    heads, length, d = 2, 40, 16
    q, k, v, do = (numbers(6 + i, heads, length, d) for i in range(4))
    last = length, 0.25

    def forward(q, k, v):
        outs = jnp.empty_like(q), empty(heads, length)
        options = {"CAUSAL": causal, "BLOCK_M": 16, "BLOCK_N": 16, "D": d}
        return attention.forward_kernel[(3, heads)](q, k, v, *outs, *last, **options)

    @jax.jit
    def both(q, k, v, do):
        (out, lse), pullback = jax.vjp(forward, q, k, v)
        own = pullback((do, jnp.zeros_like(lse)))
        rows = heads * length
        delta = attention.delta_kernel[(-(-rows // 16),)](out, do, empty(heads, length), rows, BLOCK_M=16, D=d)
        outs = [jnp.empty_like(q) for _ in range(3)]  # one array thrice would be one buffer
        options = {"CAUSAL": causal, "BLOCK_M": 16, "BLOCK_N": 16, "D": d}
        by_hand = attention.backward_kernel[(3, heads)](q, k, v, do, lse, delta, *outs, *last, **options)
        return own, by_hand

    assert_near(*both(q, k, v, do), 5e-6)


@triton.jit
def decay_kernel(x_ptr, n_ptr, out_ptr, n, LOADED: tl.constexpr):
    row, total = tl.program_id(0), 0.0
    for i in range(tl.load(n_ptr) if LOADED else n):
        total = total / 2 + tl.load(x_ptr + row * n + i)
    tl.store(out_ptr + row, total)


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices (forced host devices in tests/conftest.py)")
def test_loops_inside_of_shard_map():
    """Loop carries are device-varying if memory is: vectorised, in sequence, with no known number of iterations."""
    x = numbers(9, 4, 9)
    sums, decays = lambda x: (x**2).sum(1, keepdims=True) * x, lambda x: x @ 2.0 ** jnp.arange(-8, 1)
    decay = lambda loaded: lambda x: decay_kernel[(x.shape[0],)](x, jnp.array([9]), empty(x.shape[0]), 9, LOADED=loaded)
    both = lambda f: jax.jit(jax.value_and_grad(lambda x: (f(x) ** 2).sum()))(x)
    assert_near(both(on_two_devices(rows)), both(sums), 1e-5)
    assert_near(both(on_two_devices(decay(False))), both(decays), 1e-5)
    assert_near(jax.jit(on_two_devices(decay(True)))(x), decays(x), 1e-5)


def test_a_gradient_computes_only_the_lanes_of_rows():
    """Rows of 50 elements in blocks of 64 are not padded: the arrays of a gradient are those of its twin."""
    forms, inputs = forms_of("swiglu-uneven", SMALL["swiglu-uneven"]())
    text = jax.jit(gradient_of(forms["fnjax"], "swiglu-uneven", inputs)).lower(*inputs).as_text()
    assert not re.search(r"tensor<[^>]*64x", text)


def test_programs_share_an_array_of_a_product():
    """The keys of a causal loop are multiplied once for all programs of a head, not once for each; as in memory."""
    forms, inputs = forms_of("attention-causal", SMALL["attention-causal"]())
    text = jax.jit(forms["fnjax"]).lower(*inputs).as_text()
    assert text.count("dot_general") == 2
    assert len(re.findall(r"dot_general.*\(tensor<2x4x16x16xf32>, tensor<2x16x16xf32>\)", text)) == 2


def test_memory_that_a_loop_stores_to_is_carried_as_it_is_stored():
    """XLA then updates it in place; of a flat array it would copy all in each iteration."""
    x = jnp.ones((2, 12, 8), jnp.float32)
    launch = jax.jit(lambda x, out: previous_kernel[(2,)](x, out, 12, C=8))
    for bits in (False, True):
        with jax.enable_x64(bits):
            text = launch.lower(x, x).as_text()
        carried = re.search(r"stablehlo.while.*: (.*)", text).group(1)
        assert "tensor<2x12x8xf32>" in carried
        assert "tensor<192xf32>" not in carried


@triton.jit
def ratio_kernel(x_ptr, scale_ptr, out_ptr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out_ptr + lanes, tl.load(x_ptr + lanes) / tl.load(scale_ptr))


@triton.jit
def ratio_backward_kernel(dy_ptr, x_ptr, scale_ptr, dx_ptr, dscale_ptr, KIND: tl.constexpr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    dy, x, scale = tl.load(dy_ptr + lanes), tl.load(x_ptr + lanes), tl.load(scale_ptr)
    tl.store(dx_ptr + lanes, (dy / scale).to(KIND).to(tl.float32))
    tl.store(dscale_ptr, -tl.sum(dy * x, 0) / scale / scale)


class Ratio(Function):
    @staticmethod
    def forward(ctx, x, scale, kind):
        ctx.save_for_backward(x, scale)
        ctx.kind = kind
        return ratio_kernel[(1,)](x, scale, jnp.empty_like(x), N=8)

    @staticmethod
    def backward(ctx, dy):
        x, scale = ctx.saved_tensors
        outs = jnp.empty_like(x), jnp.empty_like(scale)
        return *ratio_backward_kernel[(1,)](dy, x, scale, *outs, KIND=ctx.kind, N=8), None


@pytest.mark.parametrize(("kind", "tolerance"), [(tl.float32, 2e-6), (tl.float16, 1e-3), (tl.bfloat16, 1e-2)], ids=str)
def test_a_backward_kernel_that_divides_has_forward_mode(kind, tolerance):
    """Divisions and conversions are linear: a Function whose backward launches them has a jvp and a Hessian."""
    x, scale = numbers(10, 8), jnp.array([3.0])

    def of(f):
        loss = lambda x, scale: (f(x, scale) ** 2).sum()
        return jax.jvp(f, (x, scale), (x**2, scale)), jax.hessian(loss, (0, 1))(x, scale)

    ratio = lambda x, scale: Ratio.apply(x, scale, kind)
    found, wanted = (jax.jit(lambda f=f: of(f))() for f in (ratio, lambda x, scale: x / scale))
    assert_near(found, wanted, tolerance)


@pytest.mark.parametrize("name", ["softmax", "cross-entropy", "attention-causal"])
def test_second_derivative_through_extremes(name):
    """A product with the Hessian, through `tl.max` in loops too: the maximum's derivative holds to any order."""
    forms, inputs = forms_of(name, SMALL[name]())
    floats = [i for i, x in enumerate(inputs) if jnp.issubdtype(x.dtype, jnp.floating)]

    def product(f):
        gradient = lambda *given: gradient_of(f, name, inputs)(
            *(dict(enumerate(inputs)) | dict(zip(floats, given, strict=True))).values()
        )
        given = tuple(inputs[i] for i in floats)
        return jax.jvp(gradient, given, tuple(map(jnp.cos, given)))[1]

    found, wanted = (jax.jit(lambda f=f: product(f))() for f in (forms["fnjax"], forms["twin"]))
    assert_near(found, wanted, 2e-5)
