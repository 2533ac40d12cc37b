"""A class with `forward` and `backward` becomes a rule on flat arrays: where PyTorch's words meet JAX's.

apply(*args) → arrays and static values → `forward` on a recording ctx → outputs; what ctx recorded → residuals
residuals, cotangents → `backward` on a ctx rebuilt from them → gradients (in `_gradients`)
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

from fnjax._arguments import Arguments, parameters_of
from fnjax._context import FunctionCtx
from fnjax._errors import ArgumentError, BatchingError, FnjaxError, OutputError, describe, error
from fnjax._gradients import Derivative, inside_derivative, is_inside_derivative
from fnjax._hooks import current_hooks
from fnjax._methods import Methods, captures_tracers, explained, missing_backward, trouble
from fnjax._outputs import Outputs, take_outputs
from fnjax._primitive import call, call_staged
from fnjax._rule import Arrays, Batch, Finish, Linear, Needs, Run, Trouble
from fnjax._saved import Residuals, Saved
from fnjax._tree import is_inexact, is_tracer, to_tensor
from fnjax._vmap import run_vmap


def apply(methods: Methods, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a Function.

    Outside every transformation `forward` runs as it stands, on concrete arrays. Otherwise the call goes through the
    primitives: also where no argument is traced but an output turns out to be, so that JAX never differentiates the
    body of `forward` unseen.
    """
    parameters = parameters_of(methods.forward, takes_ctx=methods.setup_context is None)
    given, keywords = parameters.bind(methods.name, args, kwargs)
    arguments = Arguments(parameters, keywords)
    operands = arguments.take(methods.name, given, pytree=methods.pytree)
    rule = ClassRule(methods, arguments)
    inner = is_inside_derivative()
    if any(map(is_tracer, operands)):
        outputs = call(rule, operands, inner=inner)
    else:
        outputs = rule.run((False,) * len(operands), *operands).outputs
        if any(map(is_tracer, outputs)):
            outputs = call_staged(rule, operands, inner=inner)
    return rule.outputs.fill(outputs)


class ClassRule:
    """One call of a Function as a rule on its operands.

    Attributes:
        outputs: the form of what forward returned when it was run last.
    """

    outputs: Outputs

    def __init__(self, methods: Methods, arguments: Arguments) -> None:
        self.methods, self.arguments = methods, arguments
        self.residual_name = methods.checkpoint_name
        self.hooks = current_hooks()  # of the call: when forward runs again, the block may be over

    # --- forward

    def run(self, needs: Needs, *operands: Any) -> Run:
        """Run forward on a new ctx, and keep what backward can reach."""
        self._warn_of_containers(needs)
        needs = self._differentiable(needs)
        if any(needs) and self.methods.backward is None and self.methods.jvp is None:
            raise missing_backward(self.methods)
        ctx = self.methods.ctx(self.arguments.needs(needs), operands, single_access=self.methods.single_access)
        with explained(self.methods, self.arguments, self.methods.forward, operands), inside_derivative(any(needs)):
            returned = self._forward(ctx, self.arguments.fill(operands))
        originals, self.outputs = take_outputs(self.methods, returned)
        if not any(needs):
            return Run([to_tensor(x) for x in originals], [], Linear((), (False,) * len(originals), None))
        if not originals:
            self._refuse_numbers(returned)
        return self._record(ctx, needs, operands, originals)

    def _refuse_numbers(self, returned: Any) -> None:
        """Raise where forward made Python numbers of what is being differentiated: their gradient would be zero."""
        members = returned if isinstance(returned, tuple) else (returned,)
        numbers = [m for m in members if isinstance(m, float | complex)]
        if numbers:
            raise error(
                OutputError,
                f"{self.methods.name}.forward returned no array but a Python number, and it is being differentiated",
                "number-output",
                method=self.methods.forward,
                expected="an array, or a tuple with an array in it",
                got=describe(numbers[0]),
                fix="leave out float(...) and .item(): return the array of shape ()",
            )

    def _record(self, ctx: FunctionCtx, needs: Needs, operands: Sequence[Any], originals: Arrays) -> Run:
        outputs = [to_tensor(x) for x in originals]
        self._check_backward(len(self.outputs.members))
        unmarked = [not any(x is m for m in ctx.non_differentiable) for x in originals]
        differentiable = tuple(u and is_inexact(x) for u, x in zip(unmarked, outputs, strict=True))
        residuals = Residuals(operands, originals, differentiable)
        saved = Saved(ctx, residuals, self.hooks, forward_mode=self.methods.jvp is not None)
        derivative = Derivative(
            self.methods, self.arguments, needs, operands, self.outputs, outputs, differentiable, saved
        )
        linear = Linear(
            tuple(residuals.kept),
            differentiable,
            None if self.methods.backward is None else derivative.pull,
            None if self.methods.jvp is None else derivative.push,
            self.methods.derive_jvp,
        )
        return Run(outputs, residuals.intermediates, linear)

    def _differentiable(self, needs: Needs) -> Needs:
        return tuple(n and d for n, d in zip(needs, self.arguments.differentiable, strict=True))

    def _forward(self, ctx: FunctionCtx, args: list[Any]) -> Any:
        forward, setup = self.methods.forward, self.methods.setup_context
        if setup is None:
            return forward(ctx, *args, **self.arguments.keywords)
        output = forward(*args, **self.arguments.keywords)
        setup(ctx, tuple(args), output)
        return output

    @property
    def batch(self) -> Batch | None:
        """The class's own batching rule."""
        if self.methods.vmap is None:
            return None
        if self.methods.generate_vmap_rule:
            name = self.methods.name
            raise error(
                BatchingError,
                f"You tried to vmap over {name}, but it has both generate_vmap_rule=True and an overridden vmap "
                "staticmethod. Please set generate_vmap_rule=False or delete the overridden vmap staticmethod to "
                "avoid ambiguity.",
                "vmap-and-generate",
                method=self.methods.vmap,
                fix=f"delete {name}.vmap to have JAX batch forward and backward, or generate_vmap_rule to use it",
            )
        return functools.partial(run_vmap, self.methods, self.arguments)

    @property
    def finish(self) -> Finish | None:
        """With a batching rule of its own, forward gives outputs only, and setup_context is run on these."""
        return self._finish if self.methods.vmap is not None and self.methods.setup_context is not None else None

    def _finish(self, needs: Needs, operands: Sequence[Any], outputs: Arrays) -> Run:
        needs = self._differentiable(needs)
        setup = self.methods.setup_context
        assert setup is not None
        ctx = self.methods.ctx(self.arguments.needs(needs), operands, single_access=self.methods.single_access)
        with explained(self.methods, self.arguments, setup, operands), inside_derivative(True):
            setup(ctx, tuple(self.arguments.fill(operands)), self.outputs.fill(outputs))
        return self._record(ctx, needs, operands, outputs)

    def _check_backward(self, n_outputs: int) -> None:
        """Find a backward with the wrong number of parameters while the user's forward is at hand."""
        backward, name = self.methods.backward, self.methods.name
        if backward is None:
            return
        parameters, count = parameters_of(backward, takes_ctx=True), 1 if self.methods.boxed else n_outputs
        if not parameters.accepts(count):
            raise error(
                ArgumentError,
                f"{name}.backward() takes {len(parameters.names) + 1} positional arguments but {count + 1} were given",
                "backward-parameters",
                method=backward,
                expected=f"ctx and one gradient for each of the {n_outputs} output(s) of {name}.forward",
                got=f"backward({', '.join([parameters.first, *parameters.names])})",
                fix="give backward a parameter for each output, or *grad_outputs",
            )

    def _warn_of_containers(self, needs: Needs) -> None:
        for i, argument in enumerate(self.arguments.each):
            if argument.kind != "container" or argument.split is None:
                continue
            if any(needs[argument.start : argument.start + argument.split.holes]):
                warnings.warn(
                    f"{self.methods.name}.apply: {self.arguments.name(i)} is a container with arrays that are being "
                    "differentiated. They get no gradient, as in PyTorch, which does not look into containers. "
                    "Pass them as arguments of their own, or set `pytree = True` on the class.",
                    UserWarning,
                    stacklevel=2,
                )

    # --- what rules of rules ask for

    def captures_tracers(self) -> bool:
        """Whether a method, or a function among the static arguments, has a tracer in its closure."""
        methods = (self.methods.forward, self.methods.setup_context, self.methods.backward, self.methods.jvp)
        static = [a.static for a in self.arguments.each] + list(self.arguments.keywords.values())
        return any(captures_tracers(f) for f in (*methods, *static))

    def error(self, what: Trouble) -> FnjaxError:
        """The error to raise, in the user's words."""
        return trouble(self.methods, what)
