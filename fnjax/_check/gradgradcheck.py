"""gradgradcheck: second derivatives, as the derivatives of (inputs, grad_outputs) → gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._check.arguments import Selection, is_differentiable, name_arguments, transfer
from fnjax._check.gradcheck import gradcheck
from fnjax._check.inputs import as_tuple, double_precision, refuse_class, refuse_numbers, select_inputs
from fnjax._check.streams import make_stream
from fnjax._primitives.tree import iter_leaves, to_tensor


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
    argnums: int | Sequence[int] | None = None,
    seed: int = 0,
    check_linear_grad: bool = True,
) -> bool:
    """Compare second derivatives with finite differences of first ones, as `torch.autograd.gradgradcheck` does.

    It checks the function (inputs, grad_outputs) → gradients, with respect to all of its arguments.

    Examples:
        >>> import jax.numpy as jnp, numpy as np, fnjax
        >>> gradgradcheck(jnp.tanh, (np.array([0.5, 1.5]),))
        True

    Args:
        func: as in `gradcheck`.
        inputs: as in `gradcheck`.
        grad_outputs: gradients of the outputs, an array or a tuple of arrays and None (for zero), in the outputs'
            dtypes, or cast to them; random ones by default.
        eps: as in `gradcheck`, as are all that are not listed here.
        atol: absolute tolerance.
        rtol: relative tolerance.
        gen_non_contig_grad_outputs: accepted, without effect: JAX arrays have no strides.
        raise_exception: False to get False instead of a `GradcheckError`.
        nondet_tol: by how much two runs may differ.
        check_undefined_grad: as in `gradcheck`.
        check_grad_dtypes: as in `gradcheck`.
        check_batched_grad: check `jax.vmap` over the second derivative.
        check_fwd_over_rev: check forward over reverse (`jax.jvp` of the gradient) too.
        check_rev_over_rev: check reverse over reverse.
        fast_mode: as in `gradcheck`.
        masked: as in `gradcheck`.
        argnums: as in `gradcheck`; the gradients of outputs are always differentiated.
        seed: seeds all random numbers, `grad_outputs` among them.
        check_linear_grad: as in `gradcheck`, of the second derivative.

    Returns:
        True; False if `raise_exception` is False and a check failed.

    Raises:
        GradcheckError: if a check failed.
        OnceDifferentiableError: if backward is marked with `once_differentiable`; unlike PyTorch, which reports a
            mismatch with zero.
    """
    if not (check_fwd_over_rev or check_rev_over_rev):
        raise AssertionError("Expected at least one of check_fwd_over_rev or check_rev_over_rev to be True")
    if check_undefined_grad and not check_rev_over_rev:
        raise AssertionError("Setting check_undefined_grad=True requires check_rev_over_rev to be True")
    if check_batched_grad and not check_rev_over_rev:
        raise AssertionError("Setting check_batched_grad=True requires check_rev_over_rev to be True")
    refuse_class(func, "gradgradcheck")
    refuse_numbers(seed)
    args = as_tuple(inputs)
    selected = select_inputs(func, args, argnums)
    given = None if grad_outputs is None else as_tuple(grad_outputs)
    with double_precision([*args, *(given or ())]):
        outputs = _inexact_outputs(func, transfer(args))
        if given is None:
            rng = make_stream("grad_outputs", seed)
            given = tuple(_uniform(rng, y) for y in outputs)
    given = _fitting(outputs, given)
    gradient = _Gradient(func, len(args), selected)
    gradient.argument_names = [*name_arguments(func, len(args)), *(f"grad_outputs[{i}]" for i in range(len(given)))]
    return gradcheck(
        gradient,
        (*args, *given),
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        nondet_tol=nondet_tol,
        check_undefined_grad=check_undefined_grad,
        check_grad_dtypes=check_grad_dtypes,
        check_batched_grad=check_batched_grad,
        fast_mode=fast_mode,
        check_forward_ad=check_fwd_over_rev,
        check_backward_ad=check_rev_over_rev,
        masked=masked,
        argnums=[*selected, *(i for i, g in enumerate(given, len(args)) if g is not None)],
        seed=seed,
        check_linear_grad=check_linear_grad,
    )


class _Gradient:
    """Function (inputs, gradients of outputs) → gradients of inputs, in PyTorch's convention."""

    every_output_counts = True  # a gradient after `stop_gradient` has a wrong derivative; an output may be meant so

    def __init__(self, func: Callable[..., Any], n_inputs: int, selected: Sequence[int]) -> None:
        self._func, self._n_inputs, self._selected = func, n_inputs, selected
        self.argument_names: list[str | None] = []

    def __call__(self, *args: Any) -> tuple[jax.Array, ...]:
        selection = Selection(args[: self._n_inputs], self._selected)
        given = args[self._n_inputs :]
        outputs, pullback = jax.vjp(
            lambda *arrays: _inexact_outputs(self._func, selection.fill(arrays)), *selection.arrays
        )
        cotangents = [
            jnp.zeros_like(y) if g is None else _conjugate(jnp.asarray(g)).astype(y.dtype)
            for g, y in zip(given, outputs, strict=True)
        ]
        return tuple(map(_conjugate, pullback(cotangents)))


def _conjugate(x: jax.Array) -> jax.Array:
    return jnp.conj(x) if jnp.iscomplexobj(x) else x  # of real numbers it would be a program to compile


def _inexact_outputs(func: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
    return [to_tensor(y) for y in iter_leaves(func(*args)) if is_differentiable(y)]


def _uniform(rng: np.random.Generator, y: Any) -> Any:
    """Return random numbers between -1 and 1 of the shape and dtype of an array."""
    numbers = rng.uniform(-1, 1, y.shape)
    if jnp.issubdtype(y.dtype, jnp.complexfloating):
        numbers = numbers + 1j * rng.uniform(-1, 1, y.shape)
    return numbers.astype(y.dtype)


def _fitting(outputs: Sequence[Any], given: Sequence[Any]) -> tuple[Any, ...]:
    """Return one gradient for each output, in its dtype; extra ones are dropped, as in PyTorch."""
    if len(given) < len(outputs):
        raise RuntimeError(f"got {len(outputs)} tensors and {len(given)} gradients: one grad_output for each output")
    if outputs and all(g is None for g in given[: len(outputs)]):
        raise ValueError("gradgradcheck: grad_outputs are all None, so every gradient is zero: give one an array")
    fitting: list[Any] = []
    for i, (g, y) in enumerate(zip(given, outputs, strict=False)):
        if g is not None and np.shape(g) != y.shape:
            raise RuntimeError(
                f"Mismatch in shape: grad_output[{i}] has a shape of {np.shape(g)} and output[{i}] has a shape of "
                f"{y.shape}."
            )
        if g is not None and np.iscomplexobj(g) != jnp.issubdtype(y.dtype, jnp.complexfloating):
            raise RuntimeError(
                "For complex Tensors, both grad_output and output are required to have the same dtype. Mismatch in "
                f"dtype: grad_output[{i}] has a dtype of {np.asarray(g).dtype} and output[{i}] has a dtype of "
                f"{y.dtype}."
            )
        fitting.append(None if g is None else np.asarray(g).astype(y.dtype))
    return tuple(fitting)
