"""opcheck: all checks of a function, in one call."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._check.against_forward import TOLERANCES, check_against_forward
from fnjax._check.arguments import Selection, name_arguments
from fnjax._check.batches import BATCH, make_examples, stack
from fnjax._check.compiled import compile_traced
from fnjax._check.derivative_properties import check_linear
from fnjax._check.gradcheck import gradcheck
from fnjax._check.gradgradcheck import gradgradcheck
from fnjax._check.inputs import as_tuple, double_precision, refuse_class, refuse_numbers, select_inputs
from fnjax._check.jacobian import show_progress
from fnjax._check.operators import OPERATOR_TESTS, OperatorSubject
from fnjax._check.precision import Precision, find_precision
from fnjax._check.problem import Problem
from fnjax._check.results import SKIPPED, SUCCESS, OpcheckError, OpcheckResults, join_failures
from fnjax._check.streams import make_stream
from fnjax._op.operator import CustomOpDef
from fnjax._primitives.tree import is_inexact, is_tensor, iter_leaves, to_tensor
from fnjax.errors import MissingMethodError, OnceDifferentiableError


def opcheck(
    func: Callable[..., Any],
    inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    test_utils: str | Sequence[str] | None = None,
    raise_exception: bool = True,
    atol: float | None = None,
    rtol: float | None = None,
    eps: float | None = None,
    argnums: int | Sequence[int] | None = None,
    seed: int = 0,
) -> OpcheckResults:
    """Run every test of fnjax on a function, as `torch.library.opcheck` does for operators.

    | test | what it compares |
    |---|---|
    | `test_gradcheck` | backward with finite differences, at two points; batches of gradients with loops |
    | `test_gradgradcheck` | second derivatives with finite differences; skipped for `once_differentiable` |
    | `test_forward_ad` | forward mode with finite differences; skipped where there is none |
    | `test_linearity` | backward of a sum with the sum of the gradients: gradient clipping fails |
    | `test_determinism` | runs, one with another between forward and backward: equal but for `atol` or `rtol` |
    | `test_jit` | `jax.jit` with eager |
    | `test_vmap` | `jax.vmap` with a loop: all inputs batched, also along their last axis, and each by itself |
    | `test_scan` | the function as the body of `jax.lax.scan` with a loop |
    | `test_remat` | the gradient under `jax.checkpoint` with the one without |
    | `test_leaks` | nothing; runs under `jax.checking_leaks` |

    All but the first four compare outputs and gradients; `test_vmap` gradients inside of `vmap` and outside.

    One more runs only on request, for the `apply` of a Function:

    | test | what it compares |
    |---|---|
    | `test_against_forward` | backward with JAX's own derivative of forward, for random grad_outputs |

    It needs no finite differences and so no 64 bits, and takes inputs of any size; forward must be made of operations
    that JAX can differentiate, among them Triton kernels under `fnjax.triton`.

    A custom operator (`fnjax.custom_op`) has PyTorch's four tests instead. They do not check the values
    of its gradient, which `gradcheck` does:

    | test | what it compares |
    |---|---|
    | `test_schema` | arguments and results with the schema; arguments before and after |
    | `test_autograd_registration` | the gradients of `register_autograd` with the arguments, if it was called |
    | `test_faketensor` | shapes and dtypes by `register_fake` (or tracing the body) with the results |
    | `test_aot_dispatch_dynamic` | results and gradients under `jax.jit` with those outside |

    Examples:
        >>> import jax.numpy as jnp, numpy as np, fnjax
        >>> print(opcheck(jnp.tanh, np.array([0.5, 1.5]), test_utils=["test_gradcheck", "test_jit"]))
        test_gradcheck  SUCCESS
        test_jit        SUCCESS

    Args:
        func: as in `gradcheck`.
        inputs: its positional arguments: a tuple or list, or one array. float64 NumPy arrays are best.
        kwargs: its keyword arguments.
        test_utils: which tests to run, a name or several; all of the first table by default.
        raise_exception: False to get failures in the result instead of an `OpcheckError`.
        atol: absolute tolerance of all comparisons.
        rtol: relative tolerance of all comparisons.
        eps: the step of finite differences, 1e-6 by default, and 1e-2 for functions that compute in 32 bits inside.
            Arrays of float32 take `eps=1e-2, atol=2e-3, rtol=1e-2`. A custom operator's tests have no steps.
        argnums: as in `gradcheck`.
        seed: seeds all random numbers.

    Returns:
        A dict of test name to `"SUCCESS"`, `"SKIPPED: ..."` or the exception; its string is a table.

    Raises:
        OpcheckError: if a test failed.
        ValueError: for an unknown test, no input to differentiate, a negative tolerance or seed, or an eps that is
            not positive.
    """
    own: Mapping[str, Callable[[Any], str | None]] = OPERATOR_TESTS if isinstance(func, CustomOpDef) else TESTS
    tests = own if isinstance(func, CustomOpDef) else {**TESTS, **ON_REQUEST}
    names = list(own) if test_utils is None else [test_utils] if isinstance(test_utils, str) else list(test_utils)
    unknown = [name for name in names if name not in tests]
    if unknown:
        raise ValueError(f"opcheck has no test {', '.join(unknown)}: it has {', '.join(tests)}")
    tolerances = {name: x for name, x in (("atol", atol), ("rtol", rtol)) if x is not None}
    step = {} if eps is None else {"eps": eps}
    refuse_numbers(seed, **tolerances, **step)
    if isinstance(func, CustomOpDef):
        return _run(tests, names, OperatorSubject(func, as_tuple(inputs), kwargs or {}, tolerances), raise_exception)
    refuse_class(func, "opcheck")
    args = as_tuple(inputs)
    selected = select_inputs(func, args, argnums)
    with double_precision(args):
        subject = _Subject(func, args, dict(kwargs or {}), selected, tolerances, step, seed)
        return _run(tests, names, subject, raise_exception)


def _run(
    tests: Mapping[str, Callable[[Any], str | None]], names: Sequence[str], subject: Any, raise_exception: bool
) -> OpcheckResults:
    """Run the tests of a subject; collect their results, exceptions included."""
    results = OpcheckResults()
    for name in show_progress(names, "opcheck"):
        try:
            results[name] = tests[name](subject) or SUCCESS
        except Exception as e:  # noqa: BLE001 - the table shows any exception
            results[name] = e
    if results.failures and raise_exception:
        first = next(iter(results.failures.values()))
        details = join_failures({name: f"{type(e).__name__}: {e}" for name, e in results.failures.items()})
        raise OpcheckError(f"opcheck failed\n{results}\n\n{details}", results) from first
    return results


class _Subject:
    """Function under test, with its operands and tolerances."""

    def __init__(
        self,
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        selected: Sequence[int],
        tolerances: dict[str, float],
        step: dict[str, float],
        seed: int,
    ) -> None:
        self.func: Any = func
        self.called, self.keywords = func, kwargs
        if kwargs:
            self.func = functools.partial(func, **kwargs)
            self.func.argument_names = name_arguments(func, len(args))
        self.args, self.selected, self.seed = args, selected, seed
        self.tolerances: dict[str, Any] = tolerances
        self.differences: dict[str, Any] = tolerances | step  # how finite differences are taken and compared
        # Every array is an operand, also those that are not differentiated: jit must trace them all.
        operands = [i for i, x in enumerate(args) if i in selected or is_tensor(x)]
        self._all = Selection(args, operands)
        self.arrays = self._all.arrays
        known = name_arguments(self.func, len(args))
        self.names = [
            f"input {i}" + (f" ('{known[i]}')" if known[i] else "") + path for _, i, path in self._all.leaves()
        ]
        self.perturbed = [at for at, (_, i, _) in enumerate(self._all.leaves()) if i in selected]

    def outputs(self, *arrays: Any) -> list[Any]:
        """Return the arrays that the function returns."""
        return [to_tensor(y) for y in iter_leaves(self.func(*self.fill(arrays))) if is_tensor(y)]

    def everything(
        self, *arrays: Any, axes: Sequence[int | None] = (), between: Callable[[], Any] = lambda: None
    ) -> tuple[list[Any], list[Any]]:
        """Return the outputs, and the gradients for random cotangents.

        Args:
            arrays: the operands.
            axes: of the operands, for the function under `jax.vmap`.
            between: a function that is called after forward and before backward.
        """
        run = jax.vmap(self.outputs, tuple(axes)) if axes else self.outputs

        def inexact(*perturbed: Any) -> tuple[list[Any], list[Any]]:
            filled = list(arrays)
            for at, x in zip(self.perturbed, perturbed, strict=True):
                filled[at] = x
            outputs = run(*filled)
            return [y for y in outputs if is_inexact(y)], [y for y in outputs if not is_inexact(y)]

        outputs, pullback, others = jax.vjp(inexact, *(arrays[at] for at in self.perturbed), has_aux=True)
        rng = make_stream("cotangents", self.seed)
        # The same for each example of a batch, as in a loop over the examples.
        random = [rng.normal(size=y.shape[1:] if axes else y.shape) for y in outputs]
        cotangents = [
            jnp.broadcast_to(jnp.asarray(ct, y.dtype), y.shape) for ct, y in zip(random, outputs, strict=True)
        ]
        between()
        return [*outputs, *others], list(pullback(cotangents))

    @property
    def scaled(self) -> list[Any]:
        """The operands at another point: those that are differentiated scaled, as in the second example of a batch."""
        return [make_examples(x)[1] if at in self.perturbed else x for at, x in enumerate(self.arrays)]

    def fill(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the arguments with other operands."""
        return self._all.fill(arrays)

    @functools.cached_property
    def size(self) -> int:
        """The size in bytes of the narrowest floats in which function and backward compute."""
        try:
            program = jax.make_jaxpr(self.everything)(*self.arrays)
        except Exception:  # noqa: BLE001 - what cannot be traced fails where it is
            program = None
        return find_precision([self.arrays[at].dtype for at in self.perturbed], [program]).size

    def same(self, got: Any, expected: Any, what: str, *, exact: bool = False) -> None:
        """Raise unless two results agree."""
        (outputs, grads), (expected_outputs, expected_grads) = got, expected
        pairs = [(f"output {i}", *pair) for i, pair in enumerate(zip(outputs, expected_outputs, strict=True))]
        pairs += [
            (f"the gradient for {self.names[at]}", g, e)
            for at, g, e in zip(self.perturbed, grads, expected_grads, strict=True)
        ]
        for which, g, e in pairs:
            if jnp.issubdtype(e.dtype, jax.dtypes.extended):
                continue
            if (g.shape, g.dtype) != (e.shape, e.dtype):
                raise OpcheckError(
                    f"{what}: {which} has shape {g.shape} and dtype {g.dtype}, expected {e.shape} and {e.dtype}",
                    OpcheckResults(),
                )
            size = min(self.size, Precision(e.dtype).size) if is_inexact(e) else self.size
            rtol, atol = (0.0, 0.0) if exact else TOLERANCES[size]
            tolerances = {"rtol": rtol, "atol": atol} | self.tolerances
            a, b = np.asarray(g), np.asarray(e)
            if not np.allclose(a.astype(np.complex128), b.astype(np.complex128), equal_nan=True, **tolerances):
                raise OpcheckError(
                    f"{what}: {which} differs\n  expected: {np.array2string(b, threshold=20)}\n"
                    f"  got: {np.array2string(a, threshold=20)}",
                    OpcheckResults(),
                )

    def batches(self) -> dict[tuple[int, ...], str]:
        """Return the sets of operands to batch, with names: all, those that are differentiated, and each alone."""
        found = {tuple(range(len(self.arrays))): "all inputs"}
        found.setdefault(tuple(self.perturbed), "all inputs that are differentiated")
        for at, name in enumerate(self.names):
            found.setdefault((at,), name)
        return found


def _gradcheck(subject: _Subject) -> None:
    gradcheck(
        subject.func,
        subject.args,
        argnums=subject.selected,
        seed=subject.seed,
        check_batched_grad=True,
        check_linear_grad=False,
        **subject.differences,
    )
    # A backward that keeps a value of the first call, in a global say, is right at the first point only.
    gradcheck(
        subject.func,
        subject.fill(subject.scaled),
        argnums=subject.selected,
        seed=subject.seed,
        fast_mode=True,
        check_linear_grad=False,
        **subject.differences,
    )


def _linearity(subject: _Subject) -> None:
    problem = Problem(subject.func, subject.args, subject.selected)
    check_linear(problem, subject.seed, subject.tolerances.get("rtol", 1e-3), 0.0)


def _gradgradcheck(subject: _Subject) -> str | None:
    try:
        gradgradcheck(subject.func, subject.args, argnums=subject.selected, seed=subject.seed, **subject.differences)
    except OnceDifferentiableError as e:
        return f"{SKIPPED}: {str(e).splitlines()[0]}"
    return None


def _forward_ad(subject: _Subject) -> str | None:
    problem = Problem(subject.func, subject.args, subject.selected)
    try:
        problem.jvp([np.zeros(p.shape) for p in problem.parts])
    except (MissingMethodError, OnceDifferentiableError, TypeError) as e:
        text = str(e).splitlines()[0]
        if isinstance(e, TypeError) and "custom_vjp" not in text:  # JAX's error for a function with such a rule
            raise
        return f"{SKIPPED}: {text}"
    gradcheck(
        subject.func,
        subject.args,
        argnums=subject.selected,
        seed=subject.seed,
        check_backward_ad=False,
        check_forward_ad=True,
        check_batched_forward_grad=True,
        **subject.differences,
    )
    return None


def _determinism(subject: _Subject) -> None:
    first = subject.everything(*subject.arrays)
    subject.same(subject.everything(*subject.arrays), first, "a second run", exact=True)
    late = subject.everything(*subject.arrays, between=lambda: subject.everything(*subject.scaled))
    subject.same(late, first, "a run with another between its forward and its backward", exact=True)


def _jit(subject: _Subject) -> None:
    expected = subject.outputs(*subject.arrays), subject.everything(*subject.arrays)[1]
    subject.same((jax.jit(subject.outputs)(*subject.arrays), expected[1]), expected, "jax.jit")
    subject.same(jax.jit(subject.everything)(*subject.arrays), expected, "the gradient under jax.jit")


def _stacked(subject: _Subject, which: Sequence[int]) -> list[Any]:
    return [stack(make_examples(x)) if at in which else x for at, x in enumerate(subject.arrays)]


def _axes(subject: _Subject, which: Sequence[int]) -> tuple[int | None, ...]:
    return tuple(0 if at in which else None for at in range(len(subject.arrays)))


def _loop(subject: _Subject, which: Sequence[int], stacked: Sequence[Any]) -> Any:
    each = [
        subject.everything(*(x[k] if at in which else x for at, x in enumerate(stacked))) for k in range(len(BATCH))
    ]
    return jax.tree.map(lambda *ys: stack(ys), *each)


def _vmapped(subject: _Subject, which: Sequence[int], stacked: Sequence[Any]) -> Iterator[Any]:
    """Yield outputs of `jax.vmap`, outputs and gradients in it, outputs for all last axes, gradients outside of it."""
    axes = _axes(subject, which)
    yield jax.vmap(subject.outputs, axes)(*stacked)
    yield jax.vmap(subject.everything, axes)(*stacked)
    if None not in axes:
        last = [jnp.moveaxis(x, 0, -1) for x in stacked]
        yield jax.vmap(subject.outputs, tuple(x.ndim - 1 for x in last))(*last)
    yield subject.everything(*stacked, axes=axes)


def _vmap(subject: _Subject) -> None:
    batches = subject.batches()
    stacked = [_stacked(subject, which) for which in batches]

    def run(stacked: Sequence[Sequence[Any]]) -> Iterator[Iterator[Any]]:
        return (_vmapped(subject, *batch) for batch in zip(batches, stacked, strict=True))

    # One program for all batches; outside jit each operation is compiled for each of them.
    compiled = compile_traced(lambda stacked: [list(results) for results in run(stacked)], stacked)
    results = map(iter, compiled(stacked)) if compiled else run(stacked)
    for (which, batched), inputs, got in zip(batches.items(), stacked, results, strict=True):
        outputs, grads = expected = _loop(subject, which, inputs)
        subject.same((next(got), grads), expected, f"jax.vmap over {batched}")
        subject.same(next(got), expected, f"the gradient in jax.vmap over {batched}")
        if batched == "all inputs":
            subject.same((next(got), grads), expected, "jax.vmap over the last axis of all inputs")
        # An unbatched operand has the sum of the gradients.
        total = [g if at in which else g.sum(0) for at, g in zip(subject.perturbed, grads, strict=True)]
        subject.same(next(got), (outputs, total), f"the gradient of jax.vmap over {batched}")


def _scan(subject: _Subject) -> None:
    stacked = _stacked(subject, subject.perturbed)

    def body(carry: Any, xs: Any) -> Any:
        arrays = list(subject.arrays)
        for at, x in zip(subject.perturbed, xs, strict=True):
            arrays[at] = x
        return carry, subject.everything(*arrays)

    got = jax.lax.scan(body, None, [stacked[at] for at in subject.perturbed])[1]
    subject.same(got, _loop(subject, subject.perturbed, stacked), "jax.lax.scan")


def _remat(subject: _Subject) -> None:
    remat = copy.copy(subject)
    static = tuple(i for i, x in enumerate(subject.args) if not is_tensor(x) and i not in subject.selected)
    remat.func = _rematerialised(subject.func, static)
    run = compile_traced(remat.everything, *subject.arrays) or remat.everything
    subject.same(run(*subject.arrays), subject.everything(*subject.arrays), "jax.checkpoint")


def _rematerialised(func: Callable[..., Any], static: Sequence[int]) -> Callable[..., Any]:
    """Return a function under `jax.checkpoint`, with its static arguments closed over and only arrays returned."""

    def call(*args: Any) -> list[Any]:
        operands = [x for i, x in enumerate(args) if i not in static]

        def inner(*xs: Any) -> list[Any]:
            values = iter(xs)
            filled = [x if i in static else next(values) for i, x in enumerate(args)]
            return [to_tensor(y) for y in iter_leaves(func(*filled)) if is_tensor(y)]

        return jax.checkpoint(inner)(*operands)  # type: ignore[no-any-return]  # what inner returns

    return call


def _leaks(subject: _Subject) -> None:
    batched = jax.vmap(subject.everything, _axes(subject, subject.perturbed))
    stacked = _stacked(subject, subject.perturbed)
    with jax.checking_leaks():
        jax.eval_shape(subject.everything, *subject.arrays)
        jax.eval_shape(batched, *stacked)


def _against_forward(subject: _Subject) -> None:
    how = {"seed": subject.seed, **subject.tolerances}
    check_against_forward(subject.called, subject.args, subject.keywords, subject.selected, **how)


ON_REQUEST: dict[str, Callable[[_Subject], str | None]] = {"test_against_forward": _against_forward}
TESTS: dict[str, Callable[[_Subject], str | None]] = {
    "test_gradcheck": _gradcheck,
    "test_gradgradcheck": _gradgradcheck,
    "test_forward_ad": _forward_ad,
    "test_linearity": _linearity,
    "test_determinism": _determinism,
    "test_jit": _jit,
    "test_vmap": _vmap,
    "test_scan": _scan,
    "test_remat": _remat,
    "test_leaks": _leaks,
}
