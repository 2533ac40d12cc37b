"""gradcheck and gradgradcheck: PyTorch's checks of derivatives, for any JAX function."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._check import fast as _fast
from fnjax._check import jacobian as _jacobian
from fnjax._check import modes as _modes
from fnjax._check.jacobian import Matrix
from fnjax._check.problem import Problem, Selection, argument_names, pick
from fnjax._check.report import GradcheckError, Place, failure, mismatch
from fnjax._errors import describe
from fnjax._tree import is_inexact, is_tensor, to_tensor

Blocks = list[list[Matrix]]


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
) -> bool:
    """Compare the derivatives of a function with finite differences, as `torch.autograd.gradcheck` does.

    Every entry of the Jacobian must satisfy |analytical - numerical| ≤ atol + rtol |numerical|, where the numerical
    value is (f(x + eps) - f(x - eps)) / (2 eps). Double precision is needed for that: give NumPy arrays of float64,
    and 64-bit numbers are switched on inside, whatever `jax_enable_x64` says, and only there.

    Complex numbers are checked in PyTorch's convention: the gradient of a real L is ∂L/∂x + i ∂L/∂y, and a complex
    output is treated as two real ones.

    Example:
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
        func: any function of arrays (and whatever else it takes) that returns an array or a container of arrays;
            `F.apply` is one. Unlike in PyTorch it need not be a custom Function.
        inputs: its positional arguments: a tuple or list, or one array.
        eps: the step of finite differences.
        atol: absolute tolerance.
        rtol: relative tolerance.
        raise_exception: False to get False instead of a `GradcheckError`; other exceptions are raised all the same.
        nondet_tol: by how much two runs of backward may differ.
        check_undefined_grad: check that outputs which nobody uses count as zero gradients. Unlike in PyTorch,
            backward is not called where no output is used: JAX knows that the gradient is zero.
        check_grad_dtypes: check that gradients were computed in the dtype of their inputs, before the cast that
            brings them there.
        check_batched_grad: check that `jax.vmap` over backward gives what a loop gives.
        check_batched_forward_grad: the same for forward mode.
        check_forward_ad: check forward mode (`jax.jvp`) too.
        check_backward_ad: check backward; False leaves all out that needs it.
        fast_mode: compare two random projections of the Jacobians instead of all entries, see `docs/gradcheck.md`.
            What the projections doubt is decided, and shown, by the slow mode.
        masked: as in PyTorch, where it is about sparse arrays: True also allows tiny gradients for zero gradients.
        argnums: the positions of the inputs to differentiate; containers of arrays can be named. The default is
            all inputs that are arrays of floating point or complex numbers (PyTorch: that require a gradient).
        seed: seeds all random directions.

    Returns:
        True; False if `raise_exception` is False and a check failed.

    Raises:
        GradcheckError: a check failed (a RuntimeError, as in PyTorch).
        ValueError: no input can be differentiated.
        AssertionError: flags that exclude each other, or outputs whose shape depends on values.
    """
    if not (check_forward_ad or check_backward_ad):
        raise AssertionError("Expected at least one of check_forward_ad or check_backward_ad to be True")
    if check_batched_grad and not check_backward_ad:
        raise AssertionError("Setting check_batched_grad=True requires check_backward_ad to be True")
    if check_batched_forward_grad and not check_forward_ad:
        raise AssertionError("Setting check_batched_forward_grad=True requires check_forward_ad to be True")
    args = as_tuple(inputs)
    chosen = choose(args, argnums)
    _warn_of_precision(args, chosen)
    try:
        with double_precision(args):
            check = _Check(Problem(func, args, chosen), eps, atol, rtol, seed)
            if check_backward_ad:
                check.backward(nondet_tol, fast_mode)
                if check_grad_dtypes:
                    _modes.check_grad_dtypes(check.problem)
            if check_forward_ad:
                check.forward(fast_mode)
                if check_undefined_grad:
                    _modes.check_undefined_tangents(check.problem, seed)
            if check_batched_forward_grad:
                _modes.check_batched(check.problem, seed, forward=True)
            if check_backward_ad:
                if check_batched_grad:
                    _modes.check_batched(check.problem, seed, forward=False)
                _modes.check_multiplied(check.problem, masked=bool(masked))
                if check_undefined_grad:
                    _modes.check_undefined_grads(check.problem)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


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
) -> bool:
    """Compare second derivatives with finite differences of first ones, as `torch.autograd.gradgradcheck` does.

    What is checked is the function (inputs, grad_outputs) → gradients, with respect to all of them.

    Example:
        >>> import jax.numpy as jnp, numpy as np, fnjax
        >>> gradgradcheck(jnp.tanh, (np.array([0.5, 1.5]),))
        True

    Args:
        func: as in `gradcheck`.
        inputs: as in `gradcheck`.
        grad_outputs: gradients of the outputs, an array or a tuple of arrays and None; random ones by default.
        eps: as in `gradcheck`, as are all that are not listed here.
        atol: absolute tolerance.
        rtol: relative tolerance.
        gen_non_contig_grad_outputs: accepted; arrays of JAX have no strides.
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

    Returns:
        True; False if `raise_exception` is False and a check failed.

    Raises:
        GradcheckError: a check failed.
        OnceDifferentiableError: backward is marked with `once_differentiable`. Unlike PyTorch, which reports a
            mismatch with zero.
    """
    if not (check_fwd_over_rev or check_rev_over_rev):
        raise AssertionError("Expected at least one of check_fwd_over_rev or check_rev_over_rev to be True")
    if check_undefined_grad and not check_rev_over_rev:
        raise AssertionError("Setting check_undefined_grad=True requires check_rev_over_rev to be True")
    if check_batched_grad and not check_rev_over_rev:
        raise AssertionError("Setting check_batched_grad=True requires check_rev_over_rev to be True")
    args = as_tuple(inputs)
    chosen = choose(args, argnums)
    given = None if grad_outputs is None else as_tuple(grad_outputs)
    with double_precision([*args, *(given or ())]):
        outputs = _inexact_outputs(func, args)
        if given is None:
            rng = np.random.default_rng(seed)
            given = tuple(_uniform(rng, y) for y in outputs)
    _check_grad_outputs(outputs, given)
    gradient = _Gradient(func, len(args), chosen, len(outputs))
    gradient.argument_names = [*argument_names(func, len(args)), *(f"grad_outputs[{i}]" for i in range(len(given)))]
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
        argnums=[*chosen, *(i for i, g in enumerate(given, len(args)) if g is not None)],
        seed=seed,
    )


def as_tuple(x: Any) -> tuple[Any, ...]:
    """A tuple or list as a tuple, anything else as a tuple of one."""
    return tuple(x) if isinstance(x, tuple | list) else (x,)


def double_precision(args: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """64-bit numbers inside of it, if an argument has them."""
    wide = any(np.dtype(x.dtype).itemsize >= 8 for x in jax.tree.leaves(list(args)) if _has_inexact_dtype(x))
    return jax.enable_x64(True) if wide else contextlib.nullcontext()


def _has_inexact_dtype(x: Any) -> bool:
    return is_tensor(x) and hasattr(x, "dtype") and is_inexact(x)


def choose(args: Sequence[Any], argnums: int | Sequence[int] | None) -> list[int]:
    """The positions of the inputs to differentiate.

    Raises:
        ValueError: there are none.
    """
    chosen = pick(args, argnums)
    if not chosen:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of them have "
            "requires_grad=True.\n  expected: an input that is an array of floating point or complex numbers, or "
            f"one named by argnums\n  got: {', '.join(map(describe, args)) or 'no input'}"
        )
    return chosen


def _warn_of_precision(args: Sequence[Any], chosen: Sequence[int]) -> None:
    for i in chosen:
        arrays = [x for x in jax.tree.leaves(args[i]) if _has_inexact_dtype(x)]
        if any(x.dtype not in (np.float64, np.complex128) for x in arrays):
            warnings.warn(
                f"Input #{i} requires gradient and is not a double precision floating point or complex. This check "
                "will likely fail if all the inputs are not of double precision floating point or complex. Pass NumPy "
                "arrays of float64 (gradcheck then computes with 64 bits, whatever jax_enable_x64 says).",
                UserWarning,
                stacklevel=3,
            )


class _Check:
    """One run of gradcheck."""

    def __init__(self, problem: Problem, eps: float, atol: float, rtol: float, seed: int) -> None:
        self.problem, self._eps, self._atol, self._rtol, self._seed = problem, eps, atol, rtol, seed

    @functools.cached_property
    def _numerical(self) -> Blocks:
        return _jacobian.jacobian(self.problem.numerical(self._eps), by_rows=False)

    def backward(self, nondet_tol: float, fast_mode: bool) -> None:
        """Compare backward with finite differences."""
        problem = self.problem
        doubt = None
        if fast_mode:
            again = self._again(nondet_tol)
            doubt = _fast.backward(problem, self._eps, self._seed)
            if doubt is None and again is None:
                return
        numerical = self._numerical
        if not fast_mode:  # after the numerical side, as PyTorch: where shapes depend on values, that is the message
            again = self._again(nondet_tol)
        self._check_values()
        try:
            analytical = _jacobian.jacobian(problem.backward(), by_rows=True, again=again)
        except _jacobian.NotReentrantError as e:
            raise failure(
                "Backward is not reentrant, i.e., running backward with same input and grad_output multiple times "
                "gives different values, although analytical gradient matches numerical gradient."
                f"The tolerance for nondeterminism was {nondet_tol}.",
                got=f"two runs that differ by {e.args[0]:.3g}",
                fix="pass nondet_tol=<tol> if that is expected",
            ) from None
        self._compare(numerical, analytical, doubt, forward=False)
        if doubt is not None and not _fast.is_linear(problem, analytical, doubt):
            raise failure(
                "Fast gradcheck failed but element-wise differences are small. This means that the test might've "
                "passed in slow_mode!",
                expected="a backward that is linear in grad_output: what it gives for a random grad_output is the "
                "combination of what it gives for the unit vectors",
                got=str(doubt),
                fix="pass fast_mode=False if backward is meant to be nonlinear in grad_output (clipping is)",
            )

    def _again(self, nondet_tol: float) -> float | None:
        """None where backward gives the same again; else the tolerance with which each of its rows is due twice."""
        rng = np.random.default_rng(self._seed)
        directions = [rng.normal(size=y.shape) for y in self.problem.values]
        first, second = (self.problem.pull(directions) for _ in range(2))
        same = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second, strict=True))
        return None if same else nondet_tol

    def _check_values(self) -> None:
        for y in self.problem.outputs:
            for p in y.parts:
                plain, other = self.problem.values[p], self.problem.values_differentiated[p]
                if not np.allclose(other, plain, 1e-5, 1e-8, equal_nan=True):
                    raise failure(
                        f"{y.name} has other values while the function is being differentiated",
                        expected=np.array2string(plain, threshold=20),
                        got=np.array2string(other, threshold=20),
                        fix="let forward give the same result whatever ctx.needs_input_grad is, and whenever it runs",
                    )

    def forward(self, fast_mode: bool) -> None:
        """Compare forward mode with finite differences."""
        doubt = None
        if fast_mode:
            doubt = _fast.forward(self.problem, self._eps, self._seed)
            if doubt is None:
                return
        self.problem.push([np.zeros(p.shape) for p in self.problem.parts])  # a Function without jvp says so here
        numerical = self._numerical
        analytical = _jacobian.jacobian(self.problem.forward(), by_rows=False)
        self._compare(numerical, analytical, doubt, forward=True)

    def _compare(self, numerical: Blocks, analytical: Blocks, doubt: _fast.Doubt | None, *, forward: bool) -> None:
        found = []
        for place in _places(self.problem, forward=forward):
            n, a = (place.block(blocks) for blocks in (numerical, analytical))
            worst = _jacobian.compare(n, a, self._rtol, self._atol)
            if worst is not None and self._counts(place):
                found.append((place, n, a, worst))
        if found:
            raise mismatch(found, self._rtol, self._atol, "" if doubt is None else str(doubt))

    def _counts(self, place: Place) -> bool:
        """Whether a mismatch there is one: PyTorch does not look at outputs that require no gradient beside others."""
        connected = self.problem.connected
        if connected[self.problem.outputs.index(place.output)]:
            return True
        if not any(connected):
            raise failure(
                "Numerical gradient for function expected to be zero",
                expected="a function that is constant, since none of its outputs can have a gradient",
                got=f"{place.output.name} changes with {place.input.name}",
                fix="remove stop_gradient, mark_non_differentiable or the conversion to integers",
            )
        return False


def _places(problem: Problem, *, forward: bool) -> Iterator[Place]:
    """The blocks to compare, in PyTorch's order: those of imaginary parts first."""
    split = problem.inputs if forward else problem.outputs
    for imaginary in (True, False):
        for y in problem.outputs:
            for x in problem.inputs:
                whole = x if forward else y
                if whole in split and (whole.is_complex or not imaginary):
                    yield Place(x, y, forward, imaginary)


class _Gradient:
    """The function (inputs, gradients of outputs) → gradients of inputs, in PyTorch's convention."""

    def __init__(self, func: Callable[..., Any], n_inputs: int, chosen: Sequence[int], n_outputs: int) -> None:
        self._func, self._n_inputs, self._chosen, self._n_outputs = func, n_inputs, chosen, n_outputs
        self.argument_names: list[str | None] = []

    def __call__(self, *args: Any) -> tuple[jax.Array, ...]:
        selection = Selection(args[: self._n_inputs], self._chosen)
        given = args[self._n_inputs :][: self._n_outputs]
        outputs, pull = jax.vjp(lambda *arrays: _inexact_outputs(self._func, selection.fill(arrays)), *selection.arrays)
        cotangents = [
            jnp.zeros_like(y) if g is None else jnp.conj(jnp.asarray(g)).astype(y.dtype)
            for g, y in zip(given, outputs, strict=True)
        ]
        return tuple(map(jnp.conj, pull(cotangents)))


def _inexact_outputs(func: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
    return [to_tensor(y) for y in jax.tree.leaves(func(*args)) if _has_inexact_dtype(y)]


def _uniform(rng: np.random.Generator, y: Any) -> Any:
    """Random numbers like an array, between -1 and 1."""
    numbers = rng.uniform(-1, 1, y.shape)
    if jnp.issubdtype(y.dtype, jnp.complexfloating):
        numbers = numbers + 1j * rng.uniform(-1, 1, y.shape)
    return numbers.astype(y.dtype)


def _check_grad_outputs(outputs: Sequence[Any], given: Sequence[Any]) -> None:
    if len(given) < len(outputs):
        raise RuntimeError(f"got {len(outputs)} tensors and {len(given)} gradients: one grad_output for each output")
    for i, (g, y) in enumerate(zip(given, outputs, strict=False)):
        if g is not None and np.shape(g) != y.shape:
            raise RuntimeError(
                f"Mismatch in shape: grad_output[{i}] has a shape of {np.shape(g)} and output[{i}] has a shape of "
                f"{y.shape}."
            )
