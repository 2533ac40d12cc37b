"""gradcheck: PyTorch's check of derivatives, for any JAX function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fnjax._check import derivative_properties as _properties
from fnjax._check import fast as _fast
from fnjax._check import jacobian as _jacobian
from fnjax._check.inputs import (
    as_tuple,
    double_precision,
    fit_precision,
    refuse_class,
    refuse_numbers,
    select_inputs,
    warn_of_precision,
)
from fnjax._check.jacobian import Blocks
from fnjax._check.linear_function import check_linear_function, says_linear
from fnjax._check.problem import Problem, agree
from fnjax._check.report import Block, GradcheckError, failure, mismatch


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
    argnums: int | Sequence[int] | None = None,
    seed: int = 0,
    check_linear_grad: bool = True,
) -> bool:
    """Compare the derivatives of a function with finite differences, as `torch.autograd.gradcheck` does.

    Every entry of the Jacobian must satisfy |analytical - numerical| ≤ atol + rtol |numerical|, where the numerical
    value is (f(x + eps) - f(x - eps)) / (2 eps). This needs double precision: pass NumPy arrays of float64,
    and 64-bit numbers are enabled inside, whatever `jax_enable_x64` says, and only there.

    Complex numbers are checked in PyTorch's convention: the gradient of a real L is ∂L/∂x + i ∂L/∂y, and a complex
    output is treated as two real ones.

    Of a class with `linear = True` it also checks that forward is linear and that backward is its transpose, by dot
    products.

    Examples:
        >>> import numpy as np, fnjax
        >>> class Square(fnjax.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x ** 2
        ...     @staticmethod
        ...     def backward(ctx, grad_output):
        ...         x, = ctx.saved_tensors
        ...         return grad_output * 2 * x
        >>> gradcheck(Square.apply, (np.array([0.5, 1.5]),))
        True

    Args:
        func: any function of arrays (and of static values) that returns an array or a container of arrays;
            `F.apply` is one. Unlike in PyTorch it need not be a custom Function.
        inputs: its positional arguments: a tuple or list, or one array.
        eps: the step of finite differences.
        atol: absolute tolerance.
        rtol: relative tolerance.
        raise_exception: False to get False instead of a `GradcheckError`; other exceptions are raised all the same.
        nondet_tol: by how much two runs of backward may differ.
        check_undefined_grad: check that unused outputs count as zero gradients. Unlike in PyTorch,
            backward is not called if no output is used: JAX knows that the gradient is zero.
        check_grad_dtypes: check that gradients are computed in the dtype of their inputs, and not cast to it
            afterwards.
        check_batched_grad: check that `jax.vmap` over backward agrees with a loop.
        check_batched_forward_grad: the same for forward mode.
        check_forward_ad: check forward mode (`jax.jvp`) too.
        check_backward_ad: check backward; False skips every check that needs it.
        fast_mode: compare two random projections of the Jacobians instead of all entries, see `docs/gradcheck.md`.
            If the projections disagree, the slow mode decides and reports.
        masked: as in PyTorch, where it is about sparse arrays: True also allows tiny gradients for zero gradients.
        argnums: the positions of the inputs to differentiate; containers of arrays can be named. The default is
            all inputs that are arrays of floating point or complex numbers (PyTorch: that require a gradient).
        seed: seeds all random directions.
        check_linear_grad: check that backward is linear in grad_output, as a derivative is; False for one that clips
            gradients on purpose. PyTorch does not check this.

    Returns:
        True; False if `raise_exception` is False and a check failed.

    Raises:
        GradcheckError: if a check failed (a RuntimeError, as in PyTorch).
        ValueError: if no input can be differentiated, eps is not positive, or a tolerance or the seed is negative.
        AssertionError: for contradictory flags, or outputs whose shape depends on values.
    """
    if not (check_forward_ad or check_backward_ad):
        raise AssertionError("Expected at least one of check_forward_ad or check_backward_ad to be True")
    if check_batched_grad and not check_backward_ad:
        raise AssertionError("Setting check_batched_grad=True requires check_backward_ad to be True")
    if check_batched_forward_grad and not check_forward_ad:
        raise AssertionError("Setting check_batched_forward_grad=True requires check_forward_ad to be True")
    refuse_class(func, "gradcheck")
    refuse_numbers(seed, eps=eps, atol=atol, rtol=rtol, nondet_tol=nondet_tol)
    args = as_tuple(inputs)
    selected = select_inputs(func, args, argnums)
    warn_of_precision(args, selected)
    try:
        with double_precision(args):
            problem = Problem(func, args, selected)
            eps, atol, rtol = fit_precision(problem, eps, atol, rtol)
            check = _Check(problem, eps, atol, rtol, seed)
            if check_backward_ad:
                if says_linear(func):  # before the Jacobians: what it finds explains them
                    check_linear_function(problem, args, selected, seed, rtol)
                check.backward(nondet_tol, fast_mode)
                if check_grad_dtypes:
                    _properties.check_grad_dtypes(check.problem)
            if check_forward_ad:
                check.forward(fast_mode)
                if check_undefined_grad:
                    _properties.check_undefined_tangents(check.problem, seed)
            if check_batched_forward_grad:
                _properties.check_batched(check.problem, seed, forward=True)
            if check_backward_ad:
                if check_batched_grad:
                    _properties.check_batched(check.problem, seed, forward=False)
                _properties.check_multiplied(check.problem, masked=bool(masked))
                if check_linear_grad:
                    _properties.check_linear(check.problem, seed, rtol, nondet_tol)
                if check_undefined_grad:
                    _properties.check_undefined_grads(check.problem)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


class _Check:
    """Single run of gradcheck."""

    def __init__(self, problem: Problem, eps: float, atol: float, rtol: float, seed: int) -> None:
        self.problem, self._eps, self._atol, self._rtol, self._seed = problem, eps, atol, rtol, seed

    @functools.cached_property
    def _numerical(self) -> Blocks:
        return _jacobian.compute_jacobian(self.problem.numerical(self._eps), by_rows=False)

    def backward(self, nondet_tol: float, fast_mode: bool) -> None:
        """Compare backward with finite differences; raise if they differ."""
        problem = self.problem
        doubt = None
        if fast_mode:
            again = self._again(nondet_tol)
            doubt = _fast.check_backward(problem, self._eps, self._rtol, self._atol, self._seed)
            if doubt is None and again is None:
                return
        numerical = self._numerical
        if not fast_mode:  # after the numerical side, as in PyTorch, whose error for varying shapes comes first
            again = self._again(nondet_tol)
        self._check_values()
        try:
            analytical = _jacobian.compute_jacobian(problem.backward(), by_rows=True, again=again)
        except _jacobian.NotReentrantError as e:
            raise failure(
                "Backward is not reentrant, i.e., running backward with same input and grad_output multiple times "
                "gives different values, although analytical gradient matches numerical gradient."
                f"The tolerance for nondeterminism was {nondet_tol}.",
                got=f"two runs that differ by {e.args[0]:.3g}",
                fix="pass nondet_tol=<tol> if that is expected",
            ) from None
        self._compare(numerical, analytical, doubt, forward=False)

    def _again(self, nondet_tol: float) -> float | None:
        """Return None if backward is reproducible, else the tolerance for computing each of its rows twice."""
        directions, first = self.problem.random_vjp(self._seed, 0)
        same = all(map(functools.partial(np.array_equal, equal_nan=True), first, self.problem.vjp(directions)))
        return None if same else nondet_tol

    def _check_values(self) -> None:
        for y in self.problem.outputs:
            for p in y.parts:
                plain, other = self.problem.values[p], self.problem.values_differentiated[p]
                if not agree(other, plain):
                    raise failure(
                        f"{y.name} has other values while the function is being differentiated",
                        expected=np.array2string(plain, threshold=20),
                        got=np.array2string(other, threshold=20),
                        fix="let forward give the same result whatever ctx.needs_input_grad is, and whenever it runs",
                    )

    def forward(self, fast_mode: bool) -> None:
        """Compare forward mode with finite differences; raise if they differ."""
        doubt = None
        if fast_mode:
            doubt = _fast.check_forward(self.problem, self._eps, self._rtol, self._atol, self._seed)
            if doubt is None:
                return
        self.problem.jvp([np.zeros(p.shape) for p in self.problem.parts])  # a Function without jvp raises here
        numerical = self._numerical
        analytical = _jacobian.compute_jacobian(self.problem.forward(), by_rows=False)
        self._compare(numerical, analytical, doubt, forward=True)

    def _compare(self, numerical: Blocks, analytical: Blocks, doubt: _fast.Doubt | None, *, forward: bool) -> None:
        found = []
        for block in _iter_blocks(self.problem, forward=forward):
            n, a = (block.select(blocks) for blocks in (numerical, analytical))
            worst = _jacobian.compare(n, a, self._rtol, self._atol)
            if worst is not None and self._counts(block):
                found.append((block, n, a, worst))
        if found:
            doubt_text = "" if doubt is None else str(doubt)
            raise mismatch(found, self._eps, self._rtol, self._atol, doubt_text, self._hint(forward))

    def _hint(self, forward: bool) -> str:
        """Return another fault of backward that explains why the Jacobians differ, or the empty string."""
        try:
            if not forward:
                _properties.check_multiplied(self.problem, masked=True)
                _properties.check_linear(self.problem, self._seed, self._rtol, 0.0)
        except GradcheckError as e:
            return str(e).splitlines()[0]
        return ""

    def _counts(self, block: Block) -> bool:
        """Return whether a mismatch counts; PyTorch ignores outputs without gradient if others have one."""
        connected = self.problem.connected
        if connected[self.problem.outputs.index(block.output)]:
            return True
        if not any(connected):
            raise failure(
                "Numerical gradient for function expected to be zero",
                expected="a function that is constant, since none of its outputs can have a gradient",
                got=f"{block.output.name} changes with {block.input.name}",
                fix="remove stop_gradient, mark_non_differentiable or the conversion to integers",
            )
        return False


def _iter_blocks(problem: Problem, *, forward: bool) -> Iterator[Block]:
    """Yield the blocks to compare, in PyTorch's order: those of imaginary parts first."""
    split = problem.inputs if forward else problem.outputs
    for imaginary in (True, False):
        for y in problem.outputs:
            for x in problem.inputs:
                leaf = x if forward else y
                if leaf in split and (leaf.is_complex or not imaginary):
                    yield Block(x, y, forward, imaginary)
