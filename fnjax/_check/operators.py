"""Tests of `opcheck` for custom operators: PyTorch's four tests, in their JAX meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._check.streams import make_stream
from fnjax._op.operator import CustomOpDef
from fnjax._primitives.tree import is_inexact, is_tensor, iter_leaves, split, to_tensor
from fnjax.errors import OperatorError


class OperatorSubject:
    """Operator under test and its arguments.

    Attributes:
        arrays: the arrays among the arguments.
    """

    def __init__(
        self, operator: CustomOpDef, args: Sequence[Any], kwargs: Mapping[str, Any], tolerances: Mapping[str, float]
    ) -> None:
        self.operator, self._tolerances = operator, tolerances
        arrays, self._rest = split((list(args), dict(kwargs)), is_tensor)
        self.arrays = [*map(to_tensor, arrays)]

    def results(self, *arrays: Any) -> list[Any]:
        """Return the arrays, and numbers, that the operator returns."""
        args, kwargs = self._rest.fill(arrays)
        return [*iter_leaves(self.operator(*args, **kwargs))]

    def gradients(self, *arrays: Any) -> list[Any]:
        """Return the gradients of a weighted sum of all results.

        The weights are random: the gradient of the plain sum of a softmax is zero.
        """

        def total(*arrays: Any) -> Any:
            found = [y for y in self.results(*arrays) if is_tensor(y) and is_inexact(y)]
            draw = make_stream("cotangents", 0)
            return sum(((jnp.real(y).astype(float) * draw.normal(size=y.shape)).sum() for y in found), jnp.zeros(()))

        where = tuple(i for i, x in enumerate(arrays) if is_inexact(x))
        return list(jax.grad(total, where)(*arrays)) if where else []

    def same(self, got: Sequence[Any], expected: Sequence[Any], what: str) -> None:
        """Raise unless two lists of results agree."""
        for i, (a, b) in enumerate(zip(map(to_tensor, got), map(to_tensor, expected), strict=True)):
            self.same_type(a, b, f"{what}: result {i}")
            wide = np.dtype(b.dtype).itemsize >= (16 if jnp.issubdtype(b.dtype, jnp.complexfloating) else 8)
            tolerances = {"rtol": 1e-7, "atol": 1e-9} if wide else {"rtol": 1e-4, "atol": 1e-5}
            tolerances |= self._tolerances
            one, other = (np.asarray(x).astype(np.complex128) for x in (a, b))
            if not np.allclose(one, other, equal_nan=True, **tolerances):
                raise OperatorError(f"{what}: result {i} differs\n  expected: {b}\n  got: {a}")

    def same_type(self, got: Any, expected: Any, what: str) -> None:
        """Raise unless two arrays, or their types, have one shape and dtype."""
        if got.shape != expected.shape:
            raise OperatorError(f"{what}: Shapes {got.shape} and {expected.shape} are not equal!")
        if got.dtype != expected.dtype:
            raise OperatorError(f"{what}: Dtypes {got.dtype} and {expected.dtype} are not equal!")


def _schema(subject: OperatorSubject) -> None:
    """Raise unless the operator accepts its arguments, returns what its schema says, and mutates nothing."""
    before = [np.array(x) for x in subject.arrays]
    subject.results(*subject.arrays)
    for i, (x, old) in enumerate(zip(subject.arrays, before, strict=True)):
        if not np.array_equal(np.asarray(x), old, equal_nan=is_inexact(x)):
            raise OperatorError(f"array {i} among the arguments was mutated; JAX arrays do not change")


def _autograd(subject: OperatorSubject) -> None:
    """Raise unless the backward of register_autograd returns a gradient for each argument."""
    if subject.operator.is_differentiable:
        subject.gradients(*subject.arrays)


def _fake(subject: OperatorSubject) -> None:
    """Raise unless tracing, by register_fake or the body, returns the shapes and dtypes of the results."""
    promised = jax.eval_shape(subject.results, *subject.arrays)
    for i, (p, y) in enumerate(zip(promised, map(to_tensor, subject.results(*subject.arrays)), strict=True)):
        subject.same_type(p, y, f"tracing and the body differ in result {i}")


def _traced(subject: OperatorSubject) -> None:
    """Raise unless results and gradients under jax.jit agree with those outside."""
    subject.same(jax.jit(subject.results)(*subject.arrays), subject.results(*subject.arrays), "jax.jit")
    if subject.operator.is_differentiable:
        expected = subject.gradients(*subject.arrays)
        subject.same(jax.jit(subject.gradients)(*subject.arrays), expected, "the gradient under jax.jit")


OPERATOR_TESTS: dict[str, Callable[[OperatorSubject], None]] = {
    "test_schema": _schema,
    "test_autograd_registration": _autograd,
    "test_faketensor": _fake,
    "test_aot_dispatch_dynamic": _traced,
}
