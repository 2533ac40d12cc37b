"""Functions of kernels that JAX cannot trace are right: C++ through jax.ffi, Pallas, and SciPy in a callback."""

import importlib.util
import runpy
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax

pytestmark = pytest.mark.slow

KERNELS = Path(__file__).parent.parent / "examples" / "kernels"
MODES = {"eager": lambda f: f, "jit": jax.jit}
mode = pytest.mark.parametrize("wrap", MODES.values(), ids=MODES)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: roi_align.cc")


def load(name):
    spec = importlib.util.spec_from_file_location(name, KERNELS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------------------------------------------------------------
# ROIAlign in C++


@pytest.fixture(scope="module")
def roi():
    """The example."""
    return load("roi_align")


def hats(start, stop, bins, size, spatial_scale, sampling_ratio, aligned):
    """(bins, size): how much of each pixel a bin takes along one axis. The weights are hat functions at the samples."""
    start, stop = start * spatial_scale - aligned / 2, stop * spatial_scale - aligned / 2
    length = (stop - start) if aligned else max(stop - start, 1.0)
    n = sampling_ratio if sampling_ratio > 0 else int(np.ceil(length / bins))
    at = (start + (np.arange(bins * n) + 0.5) * length / (bins * n)).reshape(bins, n, 1)
    inside = (at >= -1) & (at <= size)
    weights = np.maximum(0, 1 - np.abs(np.clip(at, 0, size - 1) - np.arange(size)))
    return (inside * weights).sum(1) / max(n, 1)


def by_matrices(features, rois, spatial_scale, height, width, sampling_ratio, aligned):
    """ROIAlign in NumPy: the samples lie on a grid, so each region is two matrix products."""
    rest = spatial_scale, sampling_ratio, aligned
    out = []
    for image, x1, y1, x2, y2 in np.asarray(rois, np.float64):
        down = hats(y1, y2, height, features.shape[2], *rest)
        across = hats(x1, x2, width, features.shape[3], *rest)
        out.append(down @ np.asarray(features)[int(image)] @ across.T)
    return np.stack(out)


SETTINGS = {
    "fixed": (0.5, 3, 2, 2, True),
    "adaptive": (0.5, 2, 3, 0, True),
    "not aligned": (0.25, 2, 2, 3, False),
    "scale 1": (1.0, 7, 7, -1, False),
}
settings = pytest.mark.parametrize("rest", SETTINGS.values(), ids=SETTINGS)
# Inside, over the edges, outside, and of no size.
ROIS = np.array(
    [[0, 1, 2, 9, 8], [1, -4, -3, 30, 25], [1, 0, 0, 3, 3], [0, 60, 60, 70, 75], [0, 5, 5, 5, 5], [1, 11, 9, 12, 17]]
)


def example(dtype):
    return jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 8, 10)), dtype), jnp.asarray(ROIS, dtype)


@needs_compiler
@settings
@mode
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_roi_align_is_that_of_numpy(roi, wrap, rest, dtype, x64):
    """Forward equals two products with matrices of hat functions, in both dtypes, eager and under jit."""
    features, rois = example(dtype)
    got = wrap(lambda x, rois: roi.ROIAlign.apply(x, rois, *rest))(features, rois)
    assert got.dtype == dtype
    tolerance = 1e-12 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(got, by_matrices(features, rois, *rest), rtol=tolerance, atol=tolerance)


@needs_compiler
@settings
def test_roi_align_gradients(roi, rest, x64):
    """Its gradient and its second derivative pass gradcheck and gradgradcheck, also under jit."""
    features, rois = example("float64")
    features = features[:, :1]

    def squared(x):  # linear by itself
        return roi.ROIAlign.apply(x, rois, *rest) ** 2

    assert fnjax.gradcheck(jax.jit(squared), (features,))
    assert fnjax.gradgradcheck(squared, (features,))


@needs_compiler
def test_roi_align_in_jax_is_the_same_algorithm(roi):
    """The form in jax.numpy that the timing compares with gives the same numbers and gradients."""
    features, rois, rest = roi.detector_input(5, channels=4)
    for f in (lambda x, g: g(x, rois, *rest), lambda x, g: jax.grad(lambda x: jnp.sum(jnp.sin(g(x, rois, *rest))))(x)):
        np.testing.assert_allclose(f(features, roi.ROIAlign.apply), f(features, roi.in_jax), rtol=1e-3, atol=1e-4)


@needs_compiler
def test_roi_align_under_vmap(roi, x64):
    """Vmap over feature maps, over regions, and over gradients gives what a loop gives."""
    features, rois = example("float64")
    rest = SETTINGS["fixed"]
    maps, regions = jnp.stack([features, 2 * features, features**2]), jnp.stack([rois, rois[::-1], rois])

    def f(x, rois):
        return roi.ROIAlign.apply(x, rois, *rest)

    def grad(x, rois):
        return jax.grad(lambda x: jnp.sum(f(x, rois) ** 3))(x)

    for g in (f, grad):
        for axes, args in (((0, None), (maps, rois)), ((None, 0), (features, regions)), ((0, 0), (maps, regions))):
            loop = [g(*(a if axis is None else a[i] for a, axis in zip(args, axes, strict=True))) for i in range(3)]
            np.testing.assert_allclose(jax.jit(jax.vmap(g, axes))(*args), jnp.stack(loop), rtol=1e-12, atol=1e-12)


@needs_compiler
def test_roi_align_refuses_what_it_cannot_read(roi):
    """Wrong shapes, and regions of images that are not there, are errors and not reads beyond the array."""
    features, rois = example("float32")
    with pytest.raises(ValueError, match=r"expected shapes \(N, C, H, W\) and \(K, 5\)"):
        roi.ROIAlign.apply(features, rois[:, :4], *SETTINGS["fixed"])
    with pytest.raises(Exception, match="a region names an image that is not in the batch"):
        jax.block_until_ready(roi.ROIAlign.apply(features, rois.at[0, 0].set(2), *SETTINGS["fixed"]))


@needs_compiler
def test_roi_align_is_timed(roi):
    """The comparison of times runs both forms, which agree."""
    best, difference = roi.measure(n_rois=4, rounds=1, channels=8)
    assert set(best) == {"C++", "jax.numpy"}
    assert min(best.values()) > 0
    assert difference < 1e-3


def test_roi_align_without_a_compiler(monkeypatch):
    """Without g++ the error says what is missing."""
    module = load("roi_align")
    monkeypatch.setenv("PATH", "")
    features, rois = example("float32")
    with pytest.raises(RuntimeError, match="no g\\+\\+ on the path"):
        module.ROIAlign.apply(features, rois, *SETTINGS["fixed"])


# ---------------------------------------------------------------------------------------------------------------------
# Pallas and SciPy


@pytest.mark.parametrize("name", ["softmax_pallas", "bessel_scipy"])
@mode
def test_kernel_computes_what_it_should(name, wrap):
    """Value and two derivatives are those of JAX or SciPy, eager and under jit."""
    for what, (got, expected) in load(name).check(wrap).items():
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5, err_msg=what)


@pytest.mark.parametrize(("name", "function"), [("softmax_pallas", "Softmax"), ("bessel_scipy", "BesselJ")])
def test_kernel_notices_a_wrong_backward(name, function):
    """Gradients that are 1 % too large fail the comparison."""
    module = load(name)
    right = getattr(module, function).backward

    def backward(ctx, grad):
        return jax.tree.map(lambda g: 1.01 * g, right(ctx, grad))

    getattr(module, function).backward = staticmethod(backward)
    assert not all(np.allclose(got, expected, rtol=2e-4, atol=2e-5) for got, expected in module.check().values())


def test_pallas_softmax_gradients(x64):
    """The kernels pass gradcheck, gradgradcheck and vmap, with a number of rows that fills no block."""
    softmax = jax.jit(load("softmax_pallas").Softmax.apply)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(3, 3, 4)))
    assert fnjax.gradcheck(softmax, (x[0],))
    assert fnjax.gradgradcheck(softmax, (x[0],))
    np.testing.assert_allclose(jax.vmap(softmax)(x), jax.nn.softmax(x), rtol=1e-12)


def test_bessel_gradients(x64):
    """The callback passes gradcheck, gradgradcheck and vmap."""
    bessel = load("bessel_scipy").BesselJ.apply
    x = jnp.linspace(0.3, 9, 6)
    assert fnjax.gradcheck(lambda x: bessel(3, x), (x,))
    assert fnjax.gradgradcheck(lambda x: bessel(0, x), (x,))
    np.testing.assert_allclose(jax.vmap(lambda x: bessel(1, x))(x), bessel(1, x), rtol=1e-12)


@pytest.mark.parametrize("name", ["softmax_pallas", "bessel_scipy"])
def test_scripts_run(name, capsys):
    """Run as a script, each example prints its error."""
    runpy.run_path(str(KERNELS / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.count("off by") == 3
