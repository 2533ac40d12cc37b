"""A class with `forward` and `backward` becomes a rule on flat arrays: where PyTorch's words meet JAX's.

apply(*args) → arrays and static values → `forward` on a recording ctx → outputs; what ctx recorded → residuals
residuals, cotangents → `backward` on a ctx rebuilt from them → gradients (in `_gradients`)
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import jax

from fnjax._call.ctx import FunctionCtx
from fnjax._call.hooks import current_hooks
from fnjax._call.outputs import Outputs, take_outputs
from fnjax._call.signature import Arguments, parameters_of
from fnjax._call.vmap import run_vmap
from fnjax._errors import ArgumentError, BatchingError, FnjaxError, OutputError, describe, error
from fnjax._facts import NoFactsError, facts
from fnjax._frozen import outermost_trace, record_use
from fnjax._gradients import Derivative, inside_derivative, is_inside_derivative
from fnjax._jax.rule import Arrays, Batch, Finish, Linear, Needs, Run, Traces, Trouble
from fnjax._jax.trees import HOLE, concrete_type, is_inexact, is_tracer, to_tensor
from fnjax._methods import Methods, captures_tracers, explained, missing_backward, trouble
from fnjax._plain import call_forward, is_plain, no_needs, run_plain
from fnjax._primitive import call, call_staged
from fnjax._programs import CapturedTracerError, Programs
from fnjax._saved import Residuals, Saved


def apply(methods: Methods, programs: Programs, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a Function.

    Outside every transformation `forward` runs as it stands, on concrete arrays. Otherwise the call goes through the
    primitives: also where no argument is traced but an output turns out to be, so that JAX never differentiates the
    body of `forward` unseen. Of the calls that JAX makes a program of, those that mean the same share their traces.
    """
    plain = not kwargs and is_plain(methods, args)
    if plain:
        record_use(None)
        returned = run_plain(methods, args, {}, no_needs(len(args)))
        if type(returned) is concrete_type():
            return returned
        outputs, form = _take(methods, returned)
        if not any(map(is_tracer, outputs)):
            return form.fill(outputs)
    given, keywords = methods.parameters.bind(methods.name, args, kwargs)
    arguments = Arguments(methods.parameters, keywords)
    operands = arguments.take(methods.name, given, pytree=methods.pytree)
    inner = is_inside_derivative()
    if not any(map(is_tracer, operands)):
        record_use(None)
        rule = ClassRule(methods, arguments)
        outputs = [] if plain else rule.run((False,) * len(operands), *operands).outputs
        if plain or any(map(is_tracer, outputs)):  # a plain call comes here only if its outputs were traced
            outputs = call_staged(rule, operands, inner=inner)
        return rule.outputs.fill(outputs)
    program, outermost = None, outermost_trace()
    if outermost is not None:
        program = programs.find(
            outermost,
            lambda: (facts(current_hooks()), jax.config.values["jax_default_prng_impl"], *arguments.facts()),
            lambda traces: ClassRule(methods, arguments, traces),
        )
    if program is not None and program.traces.calls > 1:
        try:
            outputs, form = program.call(operands, inner=inner)
        except CapturedTracerError:
            program = None
        else:
            return form.fill(outputs)
    rule = ClassRule(methods, arguments, None if program is None else program.traces)
    outputs = call(rule, operands, inner=inner)
    return rule.outputs.fill(outputs)


def _take(methods: Methods, returned: Any) -> tuple[Arrays, Outputs]:
    originals, form = take_outputs(methods, returned)
    return [to_tensor(x) for x in originals], form


class ClassRule:
    """One call of a Function as a rule on its operands.

    Attributes:
        outputs: the form of what forward returned when it was run last.
        traces: what is remembered of it, if other calls share it.
    """

    outputs: Outputs

    def __init__(self, methods: Methods, arguments: Arguments, traces: Traces | None = None) -> None:
        self.methods, self.arguments, self.traces = methods, arguments, traces
        self.name, self.residual_name = methods.name, methods.checkpoint_name
        self.hooks = current_hooks()  # of the call: when forward runs again, the block may be over

    # --- forward

    def run(self, needs: Needs, *operands: Any) -> Run:
        """Run forward on a new ctx, and keep what backward can reach."""
        self._warn_of_containers(needs)
        needs = self._differentiable(needs)
        if any(needs) and self.methods.backward is None and self.methods.jvp is None:
            raise missing_backward(self.methods)
        if not any(needs):
            args, keywords = self.arguments.fill(operands), self.arguments.keywords
            returned = run_plain(self.methods, args, keywords, self.arguments.needs(needs), operands)
            outputs, self.outputs = _take(self.methods, returned)
            self._look_at_outputs()
            return Run(outputs, [], Linear((), (False,) * len(outputs), None), self.outputs)
        ctx = self._context(needs, operands)
        with explained(self.methods, self.arguments, self.methods.forward, operands), inside_derivative(True):
            returned = call_forward(self.methods, ctx, self.arguments.fill(operands), self.arguments.keywords)
        originals, self.outputs = take_outputs(self.methods, returned)
        self._look_at_outputs()
        if not originals:
            self._refuse_numbers(returned)
        return self._record(ctx, needs, operands, originals, self.outputs)

    def _look_at_outputs(self) -> None:
        """An object among the outputs is the caller's: no other call may get the same."""
        try:
            for member in self.outputs.members:
                for static in member.rest:
                    if static is not HOLE:
                        facts(static)
        except NoFactsError:
            record_use(None)

    def _context(self, needs: Needs, operands: Sequence[Any]) -> FunctionCtx:
        return self.methods.ctx(self.arguments.needs(needs), operands, single_access=self.methods.single_access)

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

    def _record(self, ctx: FunctionCtx, needs: Needs, operands: Sequence[Any], originals: Arrays, form: Outputs) -> Run:
        outputs = [to_tensor(x) for x in originals]
        self._check_backward(len(form.members))
        unmarked = [not any(x is m for m in ctx.non_differentiable) for x in originals]
        differentiable = tuple(u and is_inexact(x) for u, x in zip(unmarked, outputs, strict=True))
        residuals = Residuals(operands, originals, differentiable)
        saved = Saved(ctx, residuals, self.hooks, self.traces, forward_mode=self.methods.jvp is not None)
        derivative = Derivative(self.methods, self.arguments, needs, operands, form, outputs, differentiable, saved)
        linear = Linear(
            tuple(residuals.kept),
            differentiable,
            None if self.methods.backward is None else derivative.pull,
            None if self.methods.jvp is None else derivative.push,
            self.methods.derive_jvp,
        )
        return Run(outputs, residuals.intermediates, linear, form)

    def _differentiable(self, needs: Needs) -> Needs:
        return tuple(n and d for n, d in zip(needs, self.arguments.differentiable, strict=True))

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

    def _finish(self, needs: Needs, operands: Sequence[Any], outputs: Arrays, form: Outputs) -> Run:
        needs = self._differentiable(needs)
        setup = self.methods.setup_context
        assert setup is not None
        ctx = self._context(needs, operands)
        with explained(self.methods, self.arguments, setup, operands), inside_derivative(True):
            setup(ctx, tuple(self.arguments.fill(operands)), form.fill(outputs))
        return self._record(ctx, needs, operands, outputs, form)

    def _check_backward(self, n_outputs: int) -> None:
        """Find a backward with the wrong number of parameters while the user's forward is at hand."""
        backward, name = self.methods.backward, self.methods.name
        if backward is None:
            return
        count = 1 if self.methods.boxed else n_outputs
        code = getattr(backward, "__code__", None)
        if code is not None and code.co_argcount == count + 1 and not code.co_kwonlyargcount:
            return  # the usual case, without the costs of a signature
        parameters = parameters_of(backward, takes_ctx=True)
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
