"""Calls of the user's forward, outside every transformation and under one; and the structure of its outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from fnjax._function.annotated_errors import annotate
from fnjax._function.arguments import Arguments, bind_arguments
from fnjax._function.ctx import FunctionCtx, NeedsInputGrad
from fnjax._function.signature import refuse_torch
from fnjax._function.spec import Spec
from fnjax._primitives.rule import Arrays
from fnjax._primitives.tree import (
    ARRAY,
    Split,
    concrete_type,
    has_leaf,
    is_array,
    is_inexact,
    is_ref,
    is_tensor,
    items_of_unknown_container,
    iter_leaves,
    new_object,
    split,
    to_tensor,
)
from fnjax.errors import OutputError, describe, error, type_name

_NUMBERS = frozenset({bool, int, float, str, type(None)})


def run_eagerly(spec: Spec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run forward on concrete arrays, outside every transformation, and return its outputs; drop what it saves."""
    if not kwargs and _are_plain(spec, args):  # the usual case: nothing to bind, convert or split
        return _to_arrays(spec, run_alone(spec, args, {}, _no_needs(len(args)), args))
    return run_bound(spec, *bind_arguments(spec, args, kwargs))


def run_bound(spec: Spec, arguments: Arguments, positional: Sequence[Any]) -> Any:
    """Run forward as `run_eagerly` does, on arguments that are bound."""
    operands = arguments.split(spec.name, positional, pytree=spec.options.pytree)
    needs = arguments.needs((False,) * len(operands))
    return _to_arrays(spec, run_alone(spec, arguments.fill(operands), arguments.keywords, needs, operands))


def _to_arrays(spec: Spec, returned: Any) -> Any:
    """Return what forward returned, with JAX arrays."""
    if type(returned) is concrete_type():
        return returned
    arrays, form = split_outputs(spec, returned)
    return form.fill([to_tensor(x) for x in arrays])


def _are_plain(spec: Spec, args: Sequence[Any]) -> bool:
    """Return whether all arguments are concrete arrays and Python numbers, as many as forward takes."""
    array = concrete_type()
    for arg in args:
        kind = type(arg)
        if kind is not array and kind not in _NUMBERS:
            return False
    return len(args) in spec.parameters.direct


@functools.cache
def _no_needs(count: int) -> NeedsInputGrad:
    return NeedsInputGrad((False,) * count)


def run_alone(
    spec: Spec,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    needs: NeedsInputGrad,
    operands: Sequence[Any],
) -> Any:
    """Run forward and return its outputs; drop what it saves on ctx.

    Args:
        spec: of the Function.
        args: the positional arguments of forward, all of them.
        keywords: its keyword-only arguments.
        needs: `ctx.needs_input_grad`, all False.
        operands: the arrays among the arguments, in containers too.
    """
    ctx = spec.ctx(needs, operands, spec.options.clear_saved_tensors_on_access)
    try:
        return call_forward(spec, ctx, args, keywords)
    except Exception as e:
        # The arguments are split only now, for the message: a call without an error does not pay for it.
        arguments = Arguments(spec.parameters, keywords)
        operands = arguments.split(spec.name, args, pytree=spec.options.pytree)
        annotate(e, spec, arguments, spec.forward, operands)
        raise


def call_forward(
    spec: Spec,
    ctx: FunctionCtx,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    operands: Sequence[Any] = (),
) -> Any:
    """Call forward, then setup_context if there is one; return what forward returned.

    An operand that forward returns unchanged reaches setup_context as a new array among the outputs, so that a saved
    output can be distinguished from a saved input.
    """
    if spec.codec is not None:
        return spec.codec.forward(ctx, args)
    if spec.setup_context is None:
        return spec.forward(ctx, *args, **keywords) if keywords else spec.forward(ctx, *args)
    output = spec.forward(*args, **keywords)
    returned, form = split(
        output, lambda x: is_array(x) and is_inexact(x) and any(x is operand for operand in operands)
    )
    if returned:
        output = form.fill(map(new_object, returned))
    spec.setup_context(ctx, tuple(args), output)
    return output


class Outputs(NamedTuple):
    """Structure of what `forward` returned.

    Attributes:
        members: the members of the returned tuple (or the one value), without their arrays.
        make: the tuple type that was returned, or None for a single value.
    """

    members: tuple[Split, ...]
    make: Callable[[list[Any]], Any] | None

    def fill(self, arrays: Sequence[Any]) -> Any:
        """Return the outputs with `arrays` in their places."""
        values = iter(arrays)
        filled = [m.fill(values) for m in self.members]
        return filled[0] if self.make is None else self.make(filled)

    def gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the gradient of each member in its structure, from those of the arrays; None without arrays."""
        if self is ONE_ARRAY:  # the usual case, without a call
            return list(gradients)
        values = iter(gradients)
        return [m.fill(values, None) if m.n_arrays else None for m in self.members]


ONE_ARRAY = Outputs((ARRAY,), None)


def split_outputs(spec: Spec, returned: Any) -> tuple[Arrays, Outputs]:
    """Split what forward returned into its arrays, unconverted, and its structure."""
    if type(returned) is concrete_type() or isinstance(returned, jax.Array):
        return [returned], ONE_ARRAY
    is_tuple = isinstance(returned, tuple)
    arrays: Arrays = []
    members = []
    for i, member in enumerate(returned if is_tuple else (returned,)):
        where = f"output {i} of {spec.name}.forward"
        refuse_torch(member, where)
        leaves, rest = split(member, is_tensor)
        if any(map(is_ref, leaves)):
            raise error(
                OutputError,
                f"{where} is a Ref",
                "ref-output",
                method=spec.forward,
                expected="an array, or a tuple of arrays and static values",
                fix="return its content, ref[...]; who called apply with the Ref has it already",
            )
        if leaves and not is_tensor(member) and not spec.options.pytree:
            raise error(
                OutputError,
                f"{where} is a {type_name(member)} that holds arrays; return a tuple",
                "container-output",
                method=spec.forward,
                expected="an array, or a tuple of arrays and static values",
                got=f"{type_name(member)} with {len(leaves)} array(s); PyTorch would silently cut their gradients",
                fix="return a tuple, or set `pytree = True` on the class to have containers traversed",
            )
        for leaf in () if leaves and rest is ARRAY else iter_leaves(member):
            if has_leaf(items_of_unknown_container(leaf), is_tensor):
                raise error(
                    OutputError,
                    f"{where} is a {type_name(leaf)} that holds arrays, where JAX cannot see them",
                    "container-output",
                    method=spec.forward,
                    expected="arrays, and tuples, lists and dicts themselves",
                    got=describe(leaf),
                    fix="return a tuple; or register the class as a pytree, and set `pytree = True` on the Function",
                )
        arrays += leaves
        members.append(rest)
    # A named tuple takes its members one by one; its `_make` takes them as a tuple does.
    make = getattr(type(returned), "_make", tuple) if is_tuple else None
    return arrays, Outputs(tuple(members), make)


def refuse_numbers(spec: Spec, returned: Any) -> None:
    """Raise if forward returned Python floats or complex numbers instead of arrays that are being differentiated."""
    members = returned if isinstance(returned, tuple) else (returned,)
    for member in members:
        if isinstance(member, float | complex):
            raise error(
                OutputError,
                f"{spec.name}.forward returned no array but a Python number, and it is being differentiated",
                "number-output",
                method=spec.forward,
                expected="an array, or a tuple with an array in it",
                got=describe(member),
                fix="leave out float(...) and .item(): return the array of shape ()",
            )
