"""Tomography with SciPy's sparse matrices: an image from noisy projections, and the best weight of its smoothness.

Projection and back projection call SciPy, and `linear = True` says that one is the transpose of the other: so the
conjugate gradient method solves the normal equations, and JAX differentiates the solution in the weight.

    python examples/gallery/tomography.py picture.png
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse.linalg import cg
from matplotlib.figure import Figure
from scipy.sparse import csr_array
from tqdm import trange

import fnjax

SIZE = 32


def rays(angles):
    """Return the matrix that spreads each pixel over the two nearest of SIZE bins of a detector, for each angle."""
    y, x = np.mgrid[:SIZE, :SIZE].reshape(2, -1) - (SIZE - 1) / 2
    rows, weights = [], []
    for i, angle in enumerate(angles):
        place = (x * np.cos(angle) + y * np.sin(angle)) / np.sqrt(2) + (SIZE - 1) / 2
        left = np.floor(place).astype(int)
        rows += [i * SIZE + left, i * SIZE + left + 1]
        weights += [left + 1 - place, place - left]
    columns = np.tile(np.arange(SIZE * SIZE), len(rows))
    shape = (len(angles) * SIZE, SIZE * SIZE)
    return csr_array((np.concatenate(weights), (np.concatenate(rows), columns)), shape, dtype=np.float32)


class Project(fnjax.Function):
    """The projections (angles, SIZE) of an image (SIZE, SIZE) by a matrix of rays."""

    linear = True

    @staticmethod
    def forward(ctx, image, matrix):
        ctx.matrix = matrix
        return multiply(matrix, image)

    @staticmethod
    def backward(ctx, grad_output):
        return multiply(ctx.matrix.T, grad_output), None


def multiply(matrix, array):
    result = jax.ShapeDtypeStruct((matrix.shape[0] // SIZE, SIZE), array.dtype)

    def on_host(x):
        return (matrix @ np.asarray(x).ravel()).reshape(result.shape).astype(x.dtype)

    return jax.pure_callback(on_host, result, array, vmap_method="sequential")


def roughness(image):
    """Return the differences of neighbours."""
    return jnp.diff(image, axis=0), jnp.diff(image, axis=1)


def reconstruct(projections, matrix, weight):
    """Minimise |Project(image) - projections|² + weight |roughness(image)|², by its normal equations."""
    image = jnp.zeros((SIZE, SIZE), projections.dtype)
    project = functools.partial(Project.apply, matrix=matrix)
    back_project, smooth = jax.linear_transpose(project, image), jax.linear_transpose(roughness, image)

    def normal(x):
        return back_project(project(x))[0] + weight * smooth(roughness(x))[0]

    return cg(normal, back_project(projections)[0], tol=1e-5, maxiter=200)[0]


def data(n_angles=30, noise=0.8, seed=0):
    """Return a phantom of ellipses, the rays of measured and of held out angles, and noisy projections of both."""
    y, x = np.mgrid[:SIZE, :SIZE] / (SIZE / 2) - 1
    phantom = np.zeros((SIZE, SIZE), np.float32)
    for cx, cy, a, b, value in ((0, 0, 0.7, 0.9, 1), (-0.25, 0.1, 0.2, 0.4, -0.6), (0.3, -0.2, 0.2, 0.2, 0.8)):
        phantom += value * (((x - cx) / a) ** 2 + ((y - cy) / b) ** 2 < 1)
    angles = np.linspace(0, np.pi, n_angles, endpoint=False)
    matrices = [rays(angles[np.arange(n_angles) % 4 > 0]), rays(angles[::4])]
    rng = np.random.default_rng(seed)
    noisy = [m @ phantom.ravel() + noise * rng.normal(size=m.shape[0]) for m in matrices]
    return phantom, matrices, [np.reshape(p, (-1, SIZE)).astype(np.float32) for p in noisy]


def train(steps=12, show=False):
    """Return the phantom, its reconstructions by first and last weight, and their losses on held out angles."""
    phantom, (measured, held_out), (projections, others) = data()

    @jax.jit
    @jax.value_and_grad
    def loss(log_weight):
        image = reconstruct(projections, measured, jnp.exp(log_weight))
        return jnp.mean((Project.apply(image, held_out) - others) ** 2)

    log_weight, losses, weights = jnp.float32(-1.0), [], []
    for _ in trange(steps, desc="weighing", disable=None if show else True):
        value, slope = loss(log_weight)
        losses.append(float(value))
        weights.append(float(jnp.exp(log_weight)))
        log_weight -= 4 * slope
    images = [np.asarray(reconstruct(projections, measured, w)) for w in (weights[0], weights[-1])]
    return phantom, images, losses, weights


def main(path="tomography.png"):
    phantom, (first, last), losses, weights = train(show=True)
    figure = Figure(figsize=(10, 3), layout="constrained")
    titles = ("phantom", f"weight {weights[0]:.2g}", f"weight {weights[-1]:.2g}, found by its gradient")
    *axes, curve = figure.subplots(1, 4)
    for axis, image, title in zip(axes, (phantom, first, last), titles, strict=True):
        axis.imshow(image, cmap="gray", vmin=-0.2, vmax=2)
        axis.set(title=title, xticks=[], yticks=[])
    curve.plot(losses)
    curve.set(title="error on held out angles", xlabel="step")
    figure.savefig(path, dpi=120)
    errors = [np.linalg.norm(image - phantom) / np.linalg.norm(phantom) for image in (first, last)]
    print(f"relative error: {errors[0]:.3f} with the first weight, {errors[1]:.3f} with that by its gradient")


if __name__ == "__main__":
    main(*sys.argv[1:2])
