"""On a GPU derivatives agree with the CPU's; donation, shard_map, callbacks, host memory, FFI, Pallas, Triton work.

Where JAX sees no GPU these are skipped. FNJAX_GPU_PLATFORM=cpu takes the last of the forced CPU devices for the GPU.
"""

import importlib.util
import os
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import fnjax
from benchmarks.models import MODELS, with_fnjax
from fnjax import triton
from tests.triton.test_gallery import CASES as GALLERY
from tests.triton.test_gallery import load
from tests.zoo import CASES, NumPyExp, Outer, SavedInput, arrays

PLATFORM = os.environ.get("FNJAX_GPU_PLATFORM", "gpu")


def devices():
    try:
        return jax.devices(PLATFORM)
    except RuntimeError:
        return []


DEVICES = devices()
DEVICE = DEVICES[-1] if DEVICES else None

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not DEVICES, reason="JAX sees no GPU")]

MODES = {"eager": lambda f: f, "jit": jax.jit}
mode = pytest.mark.parametrize("wrap", MODES.values(), ids=MODES)
# 32-bit numbers: a GPU's exp, sin and tanh are off by some units in the last place, and second derivatives cancel.
TOLERANCES = {"float32": {"rtol": 1e-4, "atol": 1e-5}, "float64": {"rtol": 1e-10, "atol": 1e-12}}


@pytest.fixture(autouse=True)
def on_the_device():
    """Uncommitted arrays go to the device, and matrix products keep their 32 bits (no TF32)."""
    with jax.default_device(DEVICE), jax.default_matmul_precision("float32"):
        yield


@pytest.fixture(params=[("eager", "float32"), ("jit", "float32"), ("jit", "float64")], ids="-".join)
def setting(request):
    """A way of calling a function, and the tolerance of its numbers."""
    wrap, dtype = request.param
    if dtype == "float64":
        request.getfixturevalue("x64")
    return MODES[wrap], TOLERANCES[dtype]


def on_cpu(f, *args):
    """Return the result of `f` on the CPU."""
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):
        return f(*jax.device_put(args, cpu))


def agree(got, want, rtol, atol):
    """Every array is on the device and has the other's numbers."""
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert g.devices() == {DEVICE}
        np.testing.assert_allclose(g, w, rtol=rtol, atol=atol)


def derivatives(case, f):
    """A case's value, gradient and second gradient as functions."""
    every = tuple(range(len(arrays(case))))
    first = jax.grad(case.loss(f), every)
    squares = lambda *args: sum(jnp.sum((g * g.conj()).real) for g in first(*args))
    return f, first, jax.grad(squares, every)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_derivatives_are_those_of_the_cpu(case, setting):
    """Value, gradient and second gradient of each Function are those that plain JAX has on the CPU."""
    wrap, tolerance = setting
    args = arrays(case)
    for f, twin in zip(derivatives(case, case.apply), derivatives(case, case.twin), strict=True):
        agree(wrap(f)(*jax.device_put(args, DEVICE)), on_cpu(jax.jit(twin), *args), **tolerance)


def test_donated_parameters_become_the_new_ones():
    """A step that is given its parameters for good writes the new ones into their memory, with the same numbers."""
    model = MODELS["layernorm"]
    parameters, data = model.numbers()
    step = model.step(with_fnjax())
    kept, *args = jax.device_put((parameters, *data), DEVICE)
    want = jax.jit(step)(kept, *args)
    donating = jax.jit(step, donate_argnums=0)
    compiled = donating.lower(kept, *args).compile()
    size = sum(x.nbytes for x in jax.tree.leaves(kept))
    assert compiled.memory_analysis().alias_size_in_bytes >= size
    got = donating(kept, *args)
    assert all(x.is_deleted() for x in jax.tree.leaves(kept))
    agree(got, want, rtol=1e-5, atol=1e-6)


def over_the_devices(f, in_specs, out_specs):
    mesh = jax.make_mesh((len(DEVICES),), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=DEVICES)
    return mesh, jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


@mode
def test_shard_map_sums_what_devices_share(wrap):
    """Over all the devices there are, a shared argument's first and second gradients are those of one CPU."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2 * len(DEVICES), 1)).astype("float32"), rng.normal(size=4).astype("float32")
    _, sharded = over_the_devices(Outer.apply, (P("i"), P()), P("i"))

    def gradients(f):
        loss = lambda x, y: jnp.sum(jnp.sin(f(x, y)))
        first = jax.grad(loss, (0, 1))
        return first, jax.grad(lambda x, y: sum(jnp.sum(g**2) for g in first(x, y)), (0, 1))

    for ours, plain in zip(gradients(sharded), gradients(lambda x, y: x * jnp.sin(y)), strict=True):
        for got, want in zip(wrap(ours)(x, y), on_cpu(plain, x, y), strict=True):
            np.testing.assert_allclose(got, want, **TOLERANCES["float32"])


def test_shardings_stay():
    """Under jit a batch that is spread over the devices stays so through a Function and its gradient."""
    mesh, _ = over_the_devices(SavedInput.apply, P("i"), P("i"))
    sharding = NamedSharding(mesh, P("i"))
    x = jax.device_put(jnp.ones((2 * len(DEVICES), 16)), sharding)
    for f in (SavedInput.apply, jax.grad(lambda x: SavedInput.apply(x).sum())):
        compiled = jax.jit(f).lower(x).compile()
        assert not re.search(r"all-gather|all-to-all|collective-permute", compiled.as_text())
        assert jax.jit(f)(x).sharding.is_equivalent_to(sharding, 2)


def chain(exp):
    """Five calls in a scan, for each row of a batch."""
    step = lambda x, _: (exp(-x), None)
    return jax.vmap(lambda x: jax.lax.scan(step, x, length=5)[0].sum())


def test_callbacks_under_transforms(setting):
    """NumPy in a forward works in a scan under vmap and grad, and gives the CPU's numbers."""
    wrap, tolerance = setting
    x = np.linspace(0.1, 1, 12).reshape(3, 4)
    gradient = lambda exp: jax.grad(lambda x: chain(exp)(x).sum())
    got = wrap(gradient(NumPyExp.apply))(jax.device_put(jnp.asarray(x), DEVICE))
    agree(got, on_cpu(gradient(jnp.exp), jnp.asarray(x)), **tolerance)


@mode
def test_backward_can_be_watched(wrap):
    """jax.debug.callback in backward sees the numbers that arrive there."""
    seen = []

    class Watched(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad_output):
            jax.debug.callback(lambda g: seen.append(np.asarray(g)), grad_output)
            return 2 * grad_output

    gradient = wrap(jax.grad(lambda x: (Watched.apply(x) * jnp.arange(3.0)).sum()))
    agree(gradient(jnp.ones(3)), np.array([0.0, 2.0, 4.0]), rtol=0, atol=0)
    jax.effects_barrier()
    np.testing.assert_array_equal(seen, [[0.0, 1.0, 2.0]])


@mode
def test_saved_in_the_memory_of_the_host(wrap):
    """save_on_cpu keeps what is saved in the host's memory, and the gradient stays the same."""
    x = jax.device_put(jnp.linspace(0.1, 1, 8), DEVICE)

    def pull(x):
        with fnjax.save_on_cpu():
            return jax.vjp(SavedInput.apply, x)[1]

    pullback = wrap(pull)(x)
    assert "pinned_host" in {leaf.sharding.memory_kind for leaf in jax.tree.leaves(pullback)}
    (got,) = pullback(jnp.ones(8))
    agree(got, on_cpu(jax.vmap(jax.grad(lambda x: jnp.sin(x) * x)), x), **TOLERANCES["float32"])


def kernels(name):
    """An example of examples/kernels as a module."""
    path = Path(__file__).parent.parent / "examples" / "kernels" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["softmax_pallas", "bessel_scipy"])
@mode
def test_kernels_compute_what_they_should(name, wrap):
    """The Pallas softmax and SciPy's Bessel function have JAX's or SciPy's value and derivatives."""
    if name == "bessel_scipy":
        pytest.importorskip("scipy")
    for what, (got, expected) in kernels(name).check(wrap).items():
        assert got.devices() == {DEVICE}
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5, err_msg=what)


def test_pallas_is_compiled():
    """On a GPU the softmax and its gradient are kernels of Triton; on a CPU, interpreted, they are not."""
    softmax = kernels("softmax_pallas").Softmax.apply
    for f in (softmax, jax.grad(lambda x: softmax(x)[0, 0])):
        text = jax.jit(f).lower(jnp.ones((13, 32))).as_text()
        assert ("triton" in text) == (PLATFORM == "gpu")


@pytest.mark.parametrize("name", GALLERY)
@mode
def test_triton_functions_of_the_gallery(name, wrap):
    """Values and gradients of the gallery's Triton Functions are those of jax.numpy on the CPU."""
    cls, arrays, more, n = GALLERY[name]
    module = load(name)

    def found(f):
        value, pull = jax.vjp(lambda *xs: f(*xs, *arrays[n:], *more), *arrays[:n])
        return value, pull(jnp.ones_like(value))

    apply = getattr(module, cls).apply
    given = jax.device_put(arrays, DEVICE)

    def both(*xs):
        value, pull = jax.vjp(lambda *moving: apply(*moving, *xs[n:], *more), *xs[:n])
        return value, pull(jnp.ones_like(value))

    agree(wrap(both)(*given), on_cpu(lambda: found(module.plain)), rtol=2e-3, atol=2e-4)


@pytest.mark.skipif(PLATFORM != "gpu", reason="a kernel of Triton runs on a GPU")
def test_triton_kernels_are_the_originals():
    """With jax-triton there, forward and backward are the kernels themselves; the translation gives their numbers."""
    pytest.importorskip("jax_triton")
    module = load("rms_norm")
    _, (x, w), _, _ = GALLERY["rms_norm"]
    loss = lambda x, w: jnp.sum(jnp.sin(module.RMSNorm.apply(x, w)))
    step = jax.value_and_grad(loss, (0, 1))
    with triton.backend("triton"):
        assert jax.jit(step).lower(x, w).as_text().count("@triton_kernel_call") == 2
        originals = jax.jit(step)(x, w)
    with triton.backend("jax"):
        assert "triton_kernel_call" not in jax.jit(step).lower(x, w).as_text()
        agree(originals, jax.jit(step)(x, w), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: roi_align.cc")
@mode
def test_ffi_kernel_of_the_cpu_beside_the_device(wrap):
    """ROIAlign in C++, on the CPU as its kernels are, has the value and gradient of its form in JAX on the device."""
    roi = kernels("roi_align")
    features, rois, rest = roi.detector_input(5, channels=4)

    def both(f):
        g = lambda x, rois: f(x, rois, *rest)
        return g, jax.grad(lambda x, rois: jnp.sum(jnp.sin(g(x, rois))))

    for in_cpp, in_jax in zip(both(roi.ROIAlign.apply), both(roi.in_jax), strict=True):
        want = on_cpu(wrap(in_cpp), features, rois)
        agree(wrap(in_jax)(*jax.device_put((features, rois), DEVICE)), want, rtol=1e-3, atol=1e-4)
