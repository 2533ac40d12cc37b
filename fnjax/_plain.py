"""Forward run as it stands, where nobody differentiates: the way of a call outside every transformation."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from fnjax._call.ctx import FunctionCtx, NeedsInputGrad
from fnjax._call.signature import Arguments
from fnjax._gradients import inside_derivative, is_inside_derivative
from fnjax._jax.trees import concrete_type
from fnjax._methods import Methods, explain

_NUMBERS = frozenset({bool, int, float, str, type(None)})


def is_plain(methods: Methods, args: Sequence[Any]) -> bool:
    """Whether these arguments are concrete arrays and Python numbers, as many as forward wants."""
    array = concrete_type()
    for arg in args:
        kind = type(arg)
        if kind is not array and kind not in _NUMBERS:
            return False
    return methods.parameters.complete(len(args))


@functools.cache
def no_needs(count: int) -> NeedsInputGrad:
    """`ctx.needs_input_grad` where nobody differentiates."""
    return NeedsInputGrad((False,) * count)


def run_plain(
    methods: Methods,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    needs: NeedsInputGrad,
    operands: Sequence[Any] | None = None,
) -> Any:
    """Run forward for what it returns alone; what it records on ctx is dropped.

    Args:
        methods: the methods of the class.
        args: the positional arguments of forward, all of them.
        keywords: its keyword-only arguments.
        needs: what ctx says is being differentiated: nothing.
        operands: the arrays among the arguments, in containers too; by default the arguments themselves.
    """
    ctx = methods.ctx(needs, args if operands is None else operands, single_access=methods.single_access)
    try:
        if not is_inside_derivative():
            return call_forward(methods, ctx, args, keywords)
        with inside_derivative(False):
            return call_forward(methods, ctx, args, keywords)
    except Exception as e:
        arguments = Arguments(methods.parameters, keywords)
        explain(e, methods, arguments, methods.forward, arguments.take(methods.name, args, pytree=methods.pytree))
        raise


def call_forward(methods: Methods, ctx: FunctionCtx, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Call forward, and setup_context if there is one."""
    if methods.setup_context is None:
        return methods.forward(ctx, *args, **keywords) if keywords else methods.forward(ctx, *args)
    output = methods.forward(*args, **keywords)
    methods.setup_context(ctx, tuple(args), output)
    return output
