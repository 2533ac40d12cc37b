"""Run the same tasks with fnjax and other libraries, and print the README's table: `python tools/alternatives.py`.

It needs torch, torchax, equinox and jax-triton. A cell says "yes" where the task ran and returned the right numbers,
"no" where it raised or returned others (the reason is below the table), and "-" where the library is not made for it.
A library that does not load has no column.
"""

from __future__ import annotations

import importlib.metadata
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fnjax
import fnjax.torch
import fnjax.triton as ft
import fnjax.triton.language as ftl

SOURCE = """
import torch

class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale=2.0):
        ctx.scale = scale
        ctx.save_for_backward(x)
        return torch.round(x * scale) / scale

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos(), None
"""
X = jnp.array([0.3, 1.2, -0.7], jnp.float32)
# Whether PyTorch's class is used as it is: two load SOURCE, the others are rewritten by hand in this file.
COLUMNS = {
    "fnjax": "yes",
    "jax.custom_vjp": "no",
    "equinox": "no",
    "torchax": "yes, by PyTorch itself",
    "jax-triton": "-",
}


def load_with_fnjax() -> Callable[..., Any]:
    """Return the class of the source as a function of arrays."""
    path = Path(tempfile.mkdtemp(), "rounding.py")
    path.write_text(SOURCE)
    apply: Callable[..., Any] = fnjax.torch.load(path).Round.apply
    return apply


def load_with_torchax() -> Callable[..., Any]:
    """Return the same by torchax, which runs PyTorch."""
    import torchax
    from torchax.interop import jax_view

    torchax.enable_globally()
    space: dict[str, Any] = {}
    exec(SOURCE, space)
    function: Callable[..., Any] = jax_view(space["Round"].apply)
    return function


def write_with_custom_vjp(wrap: Callable[..., Any] = jax.custom_vjp) -> Callable[..., Any]:
    """Return the class rewritten by hand."""

    @wrap
    def rounded(x: Any) -> Any:
        return jnp.round(x * 2) / 2

    rounded.defvjp(lambda x: (jnp.round(x * 2) / 2, x), lambda x, g: (g * jnp.cos(x),))
    return rounded


def write_with_equinox() -> Callable[..., Any]:
    """Return the same by equinox.filter_custom_vjp."""
    import equinox as eqx

    @eqx.filter_custom_vjp
    def rounded(x: Any) -> Any:
        return jnp.round(x * 2) / 2

    @rounded.def_fwd
    def _(perturbed: Any, x: Any) -> Any:
        return jnp.round(x * 2) / 2, x

    @rounded.def_bwd
    def _(residuals: Any, g: Any, perturbed: Any, x: Any) -> Any:
        return g * jnp.cos(residuals)

    function: Callable[..., Any] = rounded
    return function


MAKERS = {
    "fnjax": load_with_fnjax,
    "jax.custom_vjp": write_with_custom_vjp,
    "equinox": write_with_equinox,
    "torchax": load_with_torchax,
}


def check_gradient(function: Callable[..., Any]) -> None:
    """Check that jax.grad under jit returns what backward says."""
    np.testing.assert_allclose(jax.jit(function)(X), np.round(X * 2) / 2)
    np.testing.assert_allclose(jax.jit(jax.grad(lambda x: function(x).sum()))(X), np.cos(X), rtol=1e-5)


def check_second(function: Callable[..., Any]) -> None:
    """Check the second derivative, reverse over reverse."""
    first = jax.grad(lambda x: function(x).sum())
    np.testing.assert_allclose(jax.grad(lambda x: first(x).sum())(X), -np.sin(X), rtol=1e-5)


def check_forward_mode(function: Callable[..., Any]) -> None:
    """Check jax.jvp, and jax.hessian, which is forward over reverse."""
    _, tangent = jax.jvp(function, (X,), (jnp.ones_like(X),))
    np.testing.assert_allclose(tangent, np.cos(X), rtol=1e-5)
    np.testing.assert_allclose(jax.hessian(lambda x: function(x).sum())(X), np.diag(-np.sin(X)), rtol=1e-5, atol=1e-6)


def scale_with_fnjax(x: Any) -> Any:
    """Return twice x by a Triton kernel."""

    @ft.jit
    def scale(x_ptr, out_ptr, n, BLOCK: ftl.constexpr):  # type: ignore[no-untyped-def] # as Triton's are
        at = ftl.program_id(0) * BLOCK + ftl.arange(0, BLOCK)
        ftl.store(out_ptr + at, 2 * ftl.load(x_ptr + at, mask=at < n), mask=at < n)

    return scale[(math.ceil(x.size / 4),)](x, jnp.empty_like(x), x.size, BLOCK=4)


def scale_with_jax_triton(x: Any) -> Any:
    """Return the same by jax-triton."""
    import jax_triton
    import triton
    import triton.language as tl

    @triton.jit
    def scale(x_ptr, out_ptr, n: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # as above
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax_triton.triton_call(x, kernel=scale, out_shape=shape, grid=(math.ceil(x.size / 4),), n=x.size, BLOCK=4)


def check_launch(function: Callable[[Any], Any]) -> None:
    """Check that a kernel runs under jit where there is no GPU."""
    np.testing.assert_allclose(jax.jit(function)(X), 2 * X)


def check_launch_gradient(function: Callable[[Any], Any]) -> None:
    """Check that a launch can be differentiated."""
    np.testing.assert_allclose(jax.grad(lambda x: function(x).sum())(X), 2 * jnp.ones_like(X))


LAUNCHES = {"fnjax": scale_with_fnjax, "jax-triton": scale_with_jax_triton}
ROWS: list[tuple[str, Callable[[Any], None], dict[str, Any]]] = [
    ("`jax.grad` under `jax.jit` returns what the class's `backward` says", check_gradient, MAKERS),
    ("second derivatives through `backward`", check_second, MAKERS),
    ("forward mode: `jax.jvp`, `jax.hessian`", check_forward_mode, MAKERS),
    ("Triton kernels run without a GPU", check_launch, LAUNCHES),
    ("Triton launches can be differentiated", check_launch_gradient, LAUNCHES),
]


def main() -> None:
    """Print the table, and below it the reason of each "no"."""
    said: list[str] = []
    columns = []
    for column in COLUMNS:
        try:
            MAKERS.get(column, lambda: None)()
            columns.append(column)
        except Exception as e:  # noqa: BLE001 - whatever a library raises is its answer
            said.append(f"{column} does not load: {_describe(e)}")
    print(f"| | {' | '.join(columns)} |\n| --- |{' --- |' * len(columns)}")
    print(f"| PyTorch's class is used as it is | {' | '.join(COLUMNS[column] for column in columns)} |")
    for title, check, makers in ROWS:
        cells = []
        for column in columns:
            if column not in makers:
                cells.append("-")
                continue
            try:
                check(makers[column]() if makers is MAKERS else makers[column])
                cells.append("yes")
            except Exception as e:  # noqa: BLE001 - whatever a library raises is its answer
                cells.append("no")
                said.append(f"{column}, {title}: {_describe(e)}")
        print(f"| {title} | {' | '.join(cells)} |")
    installed = {d.name: d.version for d in importlib.metadata.distributions()}
    names = ("jax", "torch", "torchax", "equinox", "jax-triton")
    print("\n" + ", ".join(f"{n} {installed[n]}" for n in names if n in installed) + f", on {jax.default_backend()}")
    print("\n".join(dict.fromkeys(said)))


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


if __name__ == "__main__":
    main()
