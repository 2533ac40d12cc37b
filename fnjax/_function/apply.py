"""`apply`: a call of a Function, from the user's arguments to the user's outputs.

The call is a rule on flat arrays: `forward` on a recording ctx gives outputs; what ctx recorded becomes residuals;
`backward` and `jvp`, on a ctx rebuilt from them, are the derivative.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

from fnjax._contexts import HOOKS
from fnjax._function.annotated_errors import annotate, annotated
from fnjax._function.arguments import Arguments, bind_arguments
from fnjax._function.backward import BackwardSpec, call_backward, in_backward
from fnjax._function.forward import (
    ONE_ARRAY,
    Outputs,
    call_forward,
    refuse_numbers,
    run_alone,
    run_eagerly,
    split_outputs,
)
from fnjax._function.jvp import call_jvp
from fnjax._function.linear import linear_derivative
from fnjax._function.residuals import save
from fnjax._function.rule_errors import build_error
from fnjax._function.signature import parameters_of
from fnjax._function.spec import Spec, advise_method, find_method, read_methods, read_spec
from fnjax._function.vmap import call_vmap
from fnjax._primitives.call import call
from fnjax._primitives.jax_internals import is_transformed
from fnjax._primitives.rule import OPERATION, Arrays, Derivative, ErrorKind, ForwardResult, Needs, Rule
from fnjax._primitives.sharding import manual_axes
from fnjax._primitives.trace import closes_over_tracers
from fnjax._primitives.tracebacks import hide_frames
from fnjax._primitives.tree import is_inexact, to_tensors
from fnjax._primitives.types import Aval
from fnjax.errors import ArgumentError, FnjaxError, MissingMethodError, error, warn


class Apply:
    """Descriptor that returns the `apply` of a class, the same object at each lookup."""

    def __get__(self, instance: object, owner: Any) -> Callable[..., Any]:
        return owner._apply  # type: ignore[no-any-return]  # Function and its attributes are defined above


class _Cached:
    """Cache of a class's specification, with what it was read from. No container, so searches for state skip it."""

    __slots__ = ("found",)
    found: tuple[Any, Any, Any, Spec] | None


def make_apply(
    cls: Any, read: Callable[[Any], Spec] = read_spec, call: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Return the `apply` of a class.

    Args:
        cls: the class.
        read: class → specification.
        call: the specification, arguments and keyword arguments → outputs; by default `call_function`.
    """
    call = call or call_function
    cached = _Cached()
    cached.found = None

    def apply(*args: Any, **kwargs: Any) -> Any:
        # A class may change, and tools that reload modules replace code and defaults in the same function.
        methods, found = read_methods(cls), cached.found
        code, defaults = getattr(methods[0], "__code__", None), getattr(methods[0], "__defaults__", None)
        if found is None or found[0] != methods or found[1] is not code or found[2] is not defaults:
            cached.found = found = methods, code, defaults, read(cls)
        try:
            return call(found[3], args, kwargs)
        except Exception as e:
            hide_frames(e)
            raise

    apply.__name__, apply.__qualname__ = cls.__name__, f"{cls.__qualname__}.apply"
    apply.__module__, apply.__doc__ = cls.__module__, cls.__doc__
    apply.__self__ = cls  # type: ignore[attr-defined]  # as PyTorch's apply, a class method, has it
    forward = find_method(cls, "forward")
    if forward is not None:  # jax.jit(F.apply, static_argnames=...) reads it
        with contextlib.suppress(ValueError):  # a builtin without a signature
            signature = inspect.signature(forward)
            skipped = 0 if find_method(cls, "setup_context") else 1
            apply.__signature__ = signature.replace(  # type: ignore[attr-defined]  # inspect's own protocol
                parameters=list(signature.parameters.values())[skipped:]
            )
    return apply


def call_function(spec: Spec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a Function on its arguments and return its outputs.

    Outside every transformation `forward` is run directly; otherwise the call becomes a rule that JAX traces.
    """
    if not is_transformed():
        return run_eagerly(spec, args, kwargs)
    return call_bound(spec, *bind_arguments(spec, args, kwargs))


def call_bound(spec: Spec, arguments: Arguments, positional: Sequence[Any]) -> Any:
    """Call a Function under a transformation on arguments that are bound, and return its outputs."""
    this = FunctionRule(spec, arguments)
    operands = arguments.split(this.name, positional, pytree=spec.options.pytree)
    static = [a.static for a in arguments.each if a.kind == "static"]
    methods = (spec.forward, spec.setup_context, spec.backward, spec.jvp) if spec.codec is None else ()
    this.functions = [*methods, *static, *arguments.keywords.values()]
    rule: Rule = this
    if spec.options.device_copies and spec.backward and manual_axes():
        from fnjax.collectives.device_copies import DeviceCopies  # other classes need no collectives

        rule = DeviceCopies(this)
    with jax.named_scope(this.name):
        outputs = call(rule, operands)
    return outputs[0] if this.form is ONE_ARRAY else this.form.fill(outputs)


class FunctionRule:
    """Rule (`_primitives.rule`) of one call of a Function: how JAX runs, differentiates and batches it.

    It holds the call's structure and static values; JAX passes the operands.

    Attributes:
        form: the structure of the result of the last run of forward. JAX runs rules when it needs them and passes on
            arrays only, so the structure is held here.
    """

    __slots__ = (
        *("_arguments", "_hooks", "_spec", "finishes", "form", "functions", "has_vmap", "name", "operand_names"),
        "residual_name",
    )
    form: Outputs
    functions: Sequence[Any]

    def __init__(self, spec: Spec, arguments: Arguments) -> None:
        self._spec, self._arguments = spec, arguments
        self._hooks = HOOKS.value  # those of the call: when forward runs again, the block may have ended
        self.name, self.operand_names = spec.name, arguments.operand_names
        self.residual_name = spec.options.checkpoint_name or spec.name
        self.has_vmap = spec.vmap is not None
        # With a user's batching rule, forward returns outputs only, and setup_context is run on these.
        self.finishes = self.has_vmap and spec.setup_context is not None

    @property
    def linear_in(self) -> Needs:
        """For each operand whether the Function is linear in it; empty without `linear = True`."""
        return tuple(self._arguments.differentiable) if self._spec.options.linear else ()

    def forward(self, needs: Needs, operands: Sequence[Any]) -> ForwardResult:
        """Run forward on a new ctx; return the outputs, the residuals and the derivative."""
        spec, arguments = self._spec, self._arguments
        if any(a.kind == "container" for a in arguments.each):
            self._warn_of_containers(needs)
        needs = tuple([n and d for n, d in zip(needs, arguments.differentiable, strict=True)])
        args = arguments.fill(operands)
        if not any(needs):
            returned = run_alone(spec, args, arguments.keywords, arguments.needs(needs), operands)
            originals, self.form = split_outputs(spec, returned)
            return ForwardResult(to_tensors(originals), [], Derivative((), (False,) * len(originals), None))
        if spec.backward is None and spec.jvp is None:
            raise error(
                MissingMethodError,
                "You must implement either the backward or vjp method for your custom autograd.Function to use it with "
                f"backward mode AD. ({spec.name})",
                "no-backward",
                method=spec.forward,
                fix=advise_method(spec.cls, "backward(ctx, *grad_outputs)"),
            )
        ctx = spec.ctx(arguments.needs(needs), operands, spec.options.clear_saved_tensors_on_access)
        try:  # not `annotated`: fewer calls while a program is traced
            with in_backward(False):
                returned = call_forward(spec, ctx, args, arguments.keywords, operands)
        except Exception as e:
            annotate(e, spec, arguments, spec.forward, operands)
            raise
        originals, self.form = split_outputs(spec, returned)
        if not originals:  # float(x.sum()) works on concrete arrays, and would silently train with zero gradients
            refuse_numbers(spec, returned)
        return self._record(ctx, needs, operands, originals)

    def finish(self, needs: Needs, operands: Sequence[Any], outputs: Arrays) -> ForwardResult:
        """Run setup_context on outputs; return what `forward` returns."""
        spec, arguments = self._spec, self._arguments
        needs = tuple([n and d for n, d in zip(needs, arguments.differentiable, strict=True)])
        assert spec.setup_context is not None
        ctx = spec.ctx(arguments.needs(needs), operands, spec.options.clear_saved_tensors_on_access)
        with annotated(spec, arguments, spec.setup_context, operands), in_backward(False):
            spec.setup_context(ctx, tuple(arguments.fill(operands)), self.form.fill(outputs))
        return self._record(ctx, needs, operands, outputs)

    def _record(self, ctx: Any, needs: Needs, operands: Sequence[Any], originals: Arrays) -> ForwardResult:
        """Build the result of a run of forward: its outputs, the residuals, and backward and jvp on these."""
        spec = self._spec
        _check_backward(spec, len(self.form.members))
        outputs = to_tensors(originals)
        # By identity, before conversion: the user marked the very objects that were returned.
        marked = {id(x) for x in ctx._fnjax_record.non_differentiable}
        differentiable = tuple([id(x) not in marked and is_inexact(y) for x, y in zip(originals, outputs, strict=True)])
        with_jvp = spec.jvp is not None
        saved, sources, intermediates = save(ctx, operands, originals, differentiable, self._hooks, with_jvp=with_jvp)
        backward_spec = BackwardSpec(
            spec,
            self._arguments,
            needs,
            [*map(jax.typeof, operands)],
            self.form,
            [*map(jax.typeof, outputs)],
            differentiable,
            saved,
        )
        if spec.options.linear:
            return ForwardResult(outputs, intermediates, linear_derivative(backward_spec, sources, self._run))
        derivative = Derivative(
            sources,
            differentiable,
            None if spec.backward is None else functools.partial(call_backward, backward_spec),
            functools.partial(call_jvp, backward_spec) if with_jvp else None,
        )
        return ForwardResult(outputs, intermediates, derivative)

    def _run(self, operands: Sequence[Any]) -> Arrays:
        """Run forward without derivatives, as a call if there is a batching rule: it applies to calls only."""
        if self.has_vmap and not closes_over_tracers(self.functions):
            return call(self, operands)
        return self.forward((False,) * len(operands), operands).outputs

    def _warn_of_containers(self, needs: Needs) -> None:
        """Warn of arrays in containers that are being differentiated; raise if they are a linear Function's."""
        for i, argument in enumerate(self._arguments.each):
            if argument.kind == "container" and any(needs[argument.start : argument.stop]):
                if self._spec.options.linear:  # backward would count them, and forward not
                    raise self.error("linear parameter")
                warn(
                    f"{self.name}.apply: {self._arguments.name(i)} is a container with arrays that are being "
                    "differentiated. They get no gradient, as in PyTorch, which does not look into containers. Pass "
                    "them as arguments of their own, or set `pytree = True` on the class."
                )

    def __repr__(self) -> str:
        return self.name

    def vmap(
        self, size: int, operands: Sequence[Any], dims: Sequence[int | None], avals: Sequence[Aval]
    ) -> tuple[Arrays, list[int | None]]:
        """Call the user's batching rule."""
        return call_vmap(self._spec, self._arguments, size, operands, dims, avals)

    def error(self, kind: ErrorKind, operation: str = OPERATION) -> FnjaxError:
        """Build the exception for an error kind; `operation` is what JAX cannot transpose."""
        return build_error(kind, self._spec, operation)


def _check_backward(spec: Spec, n_outputs: int) -> None:
    """Raise if backward has the wrong number of parameters, while the user's call of forward is on the stack."""
    backward, name = spec.backward, spec.name
    if backward is None or spec.codec is not None:
        return
    count = 1 if spec.options.boxed_grads_call else n_outputs
    code = getattr(backward, "__code__", None)
    if code is not None and code.co_argcount == count + 1 and not code.co_kwonlyargcount:
        return  # the usual case, without the costs of a signature
    parameters = parameters_of(backward, takes_ctx=True)
    if not parameters.accepts(count):
        spelled = ", ".join([parameters.first, *parameters.names])
        takes = len(parameters.names) + 1
        raise error(
            ArgumentError,
            f"{name}.backward() takes {takes} positional arguments but {count + 1} were given",
            "backward-parameters",
            method=backward,
            expected=f"ctx and one gradient for each of the {n_outputs} output(s) of {name}.forward",
            got=f"backward({spelled})",
            fix="give backward a parameter for each output, or *grad_outputs",
        )
