"""ROIAlign in C++, with the seven arguments of torchvision's, its gradient in C++ as well, and any order of derivative.

ROIAlign cuts regions out of a feature map and brings each to the same size, by bilinear samples. The kernels are in
roi_align.cc; g++ compiles them against the headers that jaxlib ships. Each kernel is the derivative of the other, so
two Functions that call one another give all orders.

    python examples/kernels/roi_align.py     compares with a form in JAX, on an input of the size that detectors have
"""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import fnjax

SOURCE = Path(__file__).with_name("roi_align.cc")


@functools.cache
def register():
    """Compile the kernels, once for each version of the source and of JAX, and tell XLA of them."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise RuntimeError("roi_align.cc has to be compiled, and there is no g++ on the path")
    key = hashlib.sha256(SOURCE.read_bytes() + jax.__version__.encode()).hexdigest()[:16]
    library = SOURCE.parent / "__pycache__" / f"roi_align_{key}.so"
    if not library.exists():
        library.parent.mkdir(exist_ok=True)
        unfinished = library.with_suffix(f".{os.getpid()}")  # another process may be compiling too
        flags = ["-std=c++17", "-O3", "-shared", "-fPIC", "-isystem", jax.ffi.include_dir()]
        subprocess.run([compiler, *flags, str(SOURCE), "-o", str(unfinished)], check=True)
        unfinished.replace(library)
    kernels = ctypes.CDLL(str(library))
    for name in ("roi_align_float32", "roi_align_float64", "roi_align_grad_float32", "roi_align_grad_float64"):
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(kernels, name)), platform="cpu")


def kernel(name, x, rois, shape, data):
    """Call a kernel; a batch of calls runs one after the other."""
    register()
    call = jax.ffi.ffi_call(f"{name}_{x.dtype}", jax.ShapeDtypeStruct(shape, x.dtype), vmap_method="sequential")
    return call(
        x,
        rois.astype(x.dtype),
        spatial_scale=np.float64(data["spatial_scale"]),
        sampling_ratio=np.int64(data["sampling_ratio"]),
        aligned=np.bool_(data["aligned"]),
    )


class ROIAlign(fnjax.Function):
    """Regions (K, 5), each (image, x1, y1, x2, y2), of a feature map (N, C, H, W), as (K, C, height, width)."""

    @staticmethod
    def forward(ctx, input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
        if input.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 5:
            raise ValueError(f"expected shapes (N, C, H, W) and (K, 5), got {input.shape} and {rois.shape}")
        ctx.saved_data["spatial_scale"] = spatial_scale
        ctx.saved_data["pooled_height"] = pooled_height
        ctx.saved_data["pooled_width"] = pooled_width
        ctx.saved_data["sampling_ratio"] = sampling_ratio
        ctx.saved_data["aligned"] = aligned
        ctx.saved_data["input_shape"] = input.shape
        ctx.save_for_backward(rois)
        shape = (rois.shape[0], input.shape[1], pooled_height, pooled_width)
        return kernel("roi_align", input, rois, shape, ctx.saved_data)

    @staticmethod
    def backward(ctx, grad_output):
        (rois,) = ctx.saved_tensors
        data = ctx.saved_data
        grad_input = ROIAlignGrad.apply(
            grad_output, rois, data["spatial_scale"], data["sampling_ratio"], data["aligned"], data["input_shape"]
        )
        return grad_input, None, None, None, None, None, None


class ROIAlignGrad(fnjax.Function):
    """The gradient of ROIAlign for its feature map; the gradient of this is ROIAlign again."""

    @staticmethod
    def forward(ctx, grad_output, rois, spatial_scale, sampling_ratio, aligned, input_shape):
        ctx.saved_data.update(spatial_scale=spatial_scale, sampling_ratio=sampling_ratio, aligned=aligned)
        ctx.saved_data["pooled"] = grad_output.shape[2:]
        ctx.save_for_backward(rois)
        return kernel("roi_align_grad", grad_output, rois, input_shape, ctx.saved_data)

    @staticmethod
    def backward(ctx, grad_grad_input):
        (rois,) = ctx.saved_tensors
        data = ctx.saved_data
        grad = ROIAlign.apply(
            grad_grad_input, rois, data["spatial_scale"], *data["pooled"], data["sampling_ratio"], data["aligned"]
        )
        return grad, None, None, None, None, None


def in_jax(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
    """Run the same algorithm in jax.numpy, for a sampling_ratio above zero: every sample reads four pixels."""

    def along(start, stop, bins, size):
        start, stop = start * spatial_scale - 0.5 * aligned, stop * spatial_scale - 0.5 * aligned
        length = stop - start if aligned else jnp.maximum(stop - start, 1.0)
        n = bins * sampling_ratio
        at = start + (jnp.arange(n) + 0.5) * length / n
        inside = (at >= -1) & (at <= size)
        at = jnp.maximum(at, 0.0)
        low = jnp.minimum(at.astype(int), size - 1)
        high = jnp.minimum(low + 1, size - 1)
        part = jnp.where(high == low, 0.0, at - low)
        return low, high, inside * (1 - part), inside * part

    def one(roi):
        image = input[roi[0].astype(int)]
        y_low, y_high, wy_low, wy_high = along(roi[2], roi[4], pooled_height, image.shape[1])
        x_low, x_high, wx_low, wx_high = along(roi[1], roi[3], pooled_width, image.shape[2])

        def read(y, x, wy, wx):
            return image[:, y[:, None], x[None, :]] * (wy[:, None] * wx[None, :])

        samples = read(y_low, x_low, wy_low, wx_low) + read(y_low, x_high, wy_low, wx_high)
        samples += read(y_high, x_low, wy_high, wx_low) + read(y_high, x_high, wy_high, wx_high)
        s = sampling_ratio
        return samples.reshape(-1, pooled_height, s, pooled_width, s).mean((2, 4))

    return jax.vmap(one)(rois)


def detector_input(n_rois, channels=256, height=50, width=68, stride=16, seed=0):
    """Return a feature map of an image of 800 by 1088 pixels, and boxes on it."""
    rng = np.random.default_rng(seed)
    corners = rng.uniform(0, 0.8, (n_rois, 2)) * [width * stride, height * stride]
    sizes = rng.uniform(16, 256, (n_rois, 2))
    rois = np.concatenate([np.zeros((n_rois, 1)), corners, corners + sizes], axis=1)
    features = rng.normal(size=(1, channels, height, width))
    return jnp.asarray(features, jnp.float32), jnp.asarray(rois, jnp.float32), (1 / stride, 7, 7, 2, True)


def measure(n_rois=256, rounds=5, channels=256):
    """Return the best time for value and gradient, in C++ and in JAX, timed alternately, and the largest difference."""
    features, rois, settings = detector_input(n_rois, channels)
    forms = {"C++": ROIAlign.apply, "jax.numpy": in_jax}
    steps = {
        name: jax.jit(jax.value_and_grad(lambda x, f=f: jnp.sum(jnp.sin(f(x, rois, *settings)))))
        for name, f in forms.items()
    }
    results = {name: jax.block_until_ready(step(features)) for name, step in steps.items()}
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            jax.block_until_ready(step(features))
            best[name] = min(best[name], time.perf_counter() - start)
    difference = float(jnp.abs(results["C++"][1] - results["jax.numpy"][1]).max())
    return best, difference


def main():
    best, difference = measure()
    print(f"JAX {jax.__version__} on {jax.default_backend()}; 256 regions of 7 by 7 from 256 channels of 50 by 68")
    print(f"value and gradient, jax.numpy over C++: {best['jax.numpy'] / best['C++']:.1f} times the time")
    print(f"gradients differ by at most {difference:.0e}")


if __name__ == "__main__":
    main()
