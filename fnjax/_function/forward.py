"""Calls of the user's forward: outside every transformation, without differentiation, and on a ctx that records."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from fnjax._function.annotated_errors import explain
from fnjax._function.arguments import Arguments, take_arguments
from fnjax._function.ctx import FunctionCtx, NeedsInputGrad
from fnjax._function.outputs import take_outputs
from fnjax._function.spec import Definition
from fnjax._primitives.tree import concrete_type, is_array, is_inexact, new_object, split, to_tensor

_NUMBERS = frozenset({bool, int, float, str, type(None)})


def run_eagerly(definition: Definition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run forward on concrete arrays, outside every transformation, and return its outputs; drop what it saves."""
    if not kwargs and _are_plain(definition, args):  # the usual case: nothing to bind, convert or split
        returned = run_alone(definition, args, {}, _no_needs(len(args)), args)
    else:
        arguments, operands = take_arguments(definition, args, kwargs)
        needs = arguments.needs((False,) * len(operands))
        returned = run_alone(definition, arguments.fill(operands), arguments.keywords, needs, operands)
    if type(returned) is concrete_type():
        return returned
    arrays, form = take_outputs(definition, returned)
    return form.fill([to_tensor(x) for x in arrays])


def _are_plain(definition: Definition, args: Sequence[Any]) -> bool:
    """Return whether all arguments are concrete arrays and Python numbers, as many as forward takes."""
    array = concrete_type()
    for arg in args:
        kind = type(arg)
        if kind is not array and kind not in _NUMBERS:
            return False
    return definition.parameters.complete(len(args))


@functools.cache
def _no_needs(count: int) -> NeedsInputGrad:
    return NeedsInputGrad((False,) * count)


def run_alone(
    definition: Definition,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    needs: NeedsInputGrad,
    operands: Sequence[Any],
) -> Any:
    """Run forward and return its outputs; drop what it saves on ctx.

    Args:
        definition: the class.
        args: the positional arguments of forward, all of them.
        keywords: its keyword-only arguments.
        needs: `ctx.needs_input_grad`, all False.
        operands: the arrays among the arguments, in containers too.
    """
    ctx = definition.make_ctx(needs, operands)
    try:
        return call_forward(definition, ctx, args, keywords)
    except Exception as e:
        # The arguments are split only now, for the message: a call without an error does not pay for it.
        arguments = Arguments(definition.parameters, keywords)
        operands = arguments.take(definition.name, args, pytree=definition.options.pytree)
        explain(e, definition, arguments, definition.forward, operands)
        raise


def call_forward(
    definition: Definition,
    ctx: FunctionCtx,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    operands: Sequence[Any] = (),
) -> Any:
    """Call forward, then setup_context if there is one; return what forward returned.

    An operand that forward returns unchanged reaches setup_context as a new array among the outputs, so that a saved
    output can be distinguished from a saved input.
    """
    if definition.setup_context is None:
        return definition.forward(ctx, *args, **keywords) if keywords else definition.forward(ctx, *args)
    output = definition.forward(*args, **keywords)
    returned, form = split(
        output, lambda x: is_array(x) and is_inexact(x) and any(x is operand for operand in operands)
    )
    if returned:
        output = form.fill(map(new_object, returned))
    definition.setup_context(ctx, tuple(args), output)
    return output
