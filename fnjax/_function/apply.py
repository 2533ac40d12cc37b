"""`apply`: a call of a Function, from the user's arguments to the user's outputs.

The class becomes a rule on flat arrays: `forward` on a recording ctx gives outputs; what ctx recorded becomes
residuals; `backward` and `jvp`, on a ctx rebuilt from them, are the derivative.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

from fnjax._errors import FnjaxError, warn
from fnjax._function.annotated_errors import explained
from fnjax._function.arguments import Arguments, take_arguments
from fnjax._function.backward import Record, pull
from fnjax._function.closures import captures_tracers
from fnjax._function.forward import call_forward, run_alone, run_eagerly
from fnjax._function.hooks import current_hooks
from fnjax._function.jvp import push
from fnjax._function.outputs import Outputs, refuse_numbers, take_outputs
from fnjax._function.residuals import save
from fnjax._function.signature import parameters_of
from fnjax._function.spec import Definition
from fnjax._function.vmap import run_vmap
from fnjax._messages.arguments import ignored_container
from fnjax._messages.definitions import backward_parameters, missing_backward
from fnjax._messages.outputs import vmap_and_generate
from fnjax._messages.troubles import TROUBLES
from fnjax._primitives.call import call
from fnjax._primitives.device_copies import with_device_copies
from fnjax._primitives.jax_internals import is_transformed
from fnjax._primitives.rule import Arrays, Batch, Derivative, Needs, Rule, Run, Trouble
from fnjax._primitives.sharding import in_backward
from fnjax._primitives.tree import is_inexact, to_tensor


def apply(definition: Definition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a Function on its arguments and return its outputs.

    Outside every transformation `forward` is run directly; otherwise the call becomes a rule that JAX traces.
    """
    if not is_transformed():
        return run_eagerly(definition, args, kwargs)
    arguments, operands = take_arguments(definition, args, kwargs)
    this = Call(definition, arguments)
    outputs = call(this.rule(), operands)
    return this.form.fill(outputs)


class Call:
    """One call of a Function without its arrays.

    Attributes:
        form: the structure of what the last run of forward returned. JAX runs rules when it needs them and passes on
            arrays only, so the structure is held here.
    """

    __slots__ = ("_arguments", "_definition", "_hooks", "form")
    form: Outputs

    def __init__(self, definition: Definition, arguments: Arguments) -> None:
        self._definition, self._arguments = definition, arguments
        self._hooks = current_hooks()  # those of the call: when forward runs again, the block may have ended

    def rule(self) -> Rule:
        """Build the rule that represents this call in JAX."""
        definition = self._definition
        rule = Rule(
            definition.name,
            definition.options.checkpoint_name or definition.name,
            self._run,
            self,
            None if definition.vmap is None else self._batch(),
            # With a user's batching rule, forward returns outputs only, and setup_context is run on these.
            None if definition.vmap is None or definition.setup_context is None else self._finish,
        )
        return with_device_copies(rule) if definition.options.device_copies and definition.backward else rule

    def _run(self, needs: Needs, *operands: Any) -> Run:
        """Run forward on a new ctx; return the outputs, the residuals and the derivative."""
        definition, arguments = self._definition, self._arguments
        self._warn_of_containers(needs)
        needs = self._differentiable(needs)
        args = arguments.fill(operands)
        if not any(needs):
            returned = run_alone(definition, args, arguments.keywords, arguments.needs(needs), operands)
            originals, self.form = take_outputs(definition, returned)
            return Run([*map(to_tensor, originals)], [], Derivative((), (False,) * len(originals), None))
        if definition.backward is None and definition.jvp is None:
            raise missing_backward(definition.forward, definition.name)
        ctx = definition.make_ctx(arguments.needs(needs), operands)
        with (
            explained(definition, arguments, definition.forward, operands),
            in_backward(False),
        ):
            returned = call_forward(definition, ctx, args, arguments.keywords, operands)
        originals, self.form = take_outputs(definition, returned)
        if not originals:  # float(x.sum()) works on concrete arrays, and would silently train with zero gradients
            refuse_numbers(definition, returned)
        return self._record(ctx, needs, operands, originals)

    def _finish(self, needs: Needs, operands: Sequence[Any], outputs: Arrays) -> Run:
        definition, arguments = self._definition, self._arguments
        needs = self._differentiable(needs)
        assert definition.setup_context is not None
        ctx = definition.make_ctx(arguments.needs(needs), operands)
        with (
            explained(definition, arguments, definition.setup_context, operands),
            in_backward(False),
        ):
            definition.setup_context(ctx, tuple(arguments.fill(operands)), self.form.fill(outputs))
        return self._record(ctx, needs, operands, outputs)

    def _differentiable(self, needs: Needs) -> Needs:
        return tuple(n and d for n, d in zip(needs, self._arguments.differentiable, strict=True))

    def _record(self, ctx: Any, needs: Needs, operands: Sequence[Any], originals: Arrays) -> Run:
        """Build the result of a run of forward: its outputs, the residuals, and backward and jvp on these."""
        definition = self._definition
        _check_backward(definition, len(self.form.members))
        outputs = [to_tensor(x) for x in originals]
        # By identity, before conversion: the user marked the very objects that were returned.
        marked = {id(x) for x in ctx.non_differentiable}
        differentiable = tuple(id(x) not in marked and is_inexact(y) for x, y in zip(originals, outputs, strict=True))
        with_jvp = definition.jvp is not None
        saved, kept, intermediates = save(ctx, operands, originals, differentiable, self._hooks, with_jvp=with_jvp)
        record = Record(
            definition,
            self._arguments,
            needs,
            [*map(jax.typeof, operands)],
            self.form,
            [*map(jax.typeof, outputs)],
            differentiable,
            saved,
        )
        derivative = Derivative(
            kept,
            differentiable,
            None if definition.backward is None else functools.partial(pull, record),
            functools.partial(push, record) if with_jvp else None,
        )
        return Run(outputs, intermediates, derivative)

    def _warn_of_containers(self, needs: Needs) -> None:
        for i, argument in enumerate(self._arguments.each):
            if argument.kind != "container" or argument.split is None:
                continue
            if any(needs[argument.start : argument.start + argument.split.holes]):
                warn(ignored_container(self._definition.name, self._arguments.name(i)))

    def _batch(self) -> Batch:
        if self._definition.options.generate_vmap_rule:
            return self._refuse_two_rules
        return functools.partial(run_vmap, self._definition, self._arguments)

    def _refuse_two_rules(self, *_: Any) -> Any:
        raise vmap_and_generate(self._definition.vmap, self._definition.name)

    def captures_tracers(self) -> bool:
        """Return whether a method, or a function among the static arguments, closes over a tracer."""
        definition, arguments = self._definition, self._arguments
        methods = (definition.forward, definition.setup_context, definition.backward, definition.jvp)
        static = [a.static for a in arguments.each] + list(arguments.keywords.values())
        return any(captures_tracers(f) for f in (*methods, *static))

    def error(self, what: Trouble) -> FnjaxError:
        """Build the exception for an error kind; it names the method at fault and the class."""
        method, say = TROUBLES[what]
        return say(getattr(self._definition, method), self._definition.name)

    def operand_names(self) -> tuple[str, ...]:
        """Return for each operand the name of its argument."""
        return self._arguments.operand_names()


def _check_backward(definition: Definition, n_outputs: int) -> None:
    """Raise if backward has the wrong number of parameters, while the user's call of forward is on the stack."""
    backward, name = definition.backward, definition.name
    if backward is None:
        return
    count = 1 if definition.options.boxed_grads_call else n_outputs
    code = getattr(backward, "__code__", None)
    if code is not None and code.co_argcount == count + 1 and not code.co_kwonlyargcount:
        return  # the usual case, without the costs of a signature
    parameters = parameters_of(backward, takes_ctx=True)
    if not parameters.accepts(count):
        spelled = ", ".join([parameters.first, *parameters.names])
        raise backward_parameters(backward, name, len(parameters.names) + 1, n_outputs, spelled, count + 1)
