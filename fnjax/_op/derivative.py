"""Function of an operator: its body is forward, the argument of register_autograd is backward."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from fnjax._function.backward import gradient_for_static
from fnjax._function.function import Function
from fnjax._op.running import Implementation, run_operator
from fnjax._op.schema import Parameter
from fnjax._primitives.tree import iter_leaves
from fnjax.errors import GradientError, OperatorError, describe, error

Method = Callable[..., Any]
# The keyword-only arguments are passed as one dictionary after the others, under a name that no parameter has.
KEYWORDS = "keyword_only_inputs_"


def make_function(
    this: Implementation, backward: Method | None, setup_context: Method | None, vmap: Method | None
) -> type[Function]:
    """Build the Function of an operator; its `apply` takes the positional arguments and a dict of the others."""
    positional, has_keywords = this.schema.positional, bool(this.schema.keyword_only)
    body = next(iter(this.kernels.values()))

    def forward(*args: Any) -> Any:
        return run_operator(this, args[:-1], args[-1])

    def record(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if setup_context is None or not any(iter_leaves(list(ctx.needs_input_grad))):
            return
        needs, ctx.needs_input_grad = ctx.needs_input_grad, _needs(positional, ctx.needs_input_grad)
        more = {"keyword_only_inputs": inputs[-1]} if has_keywords else {}
        setup_context(ctx=ctx, inputs=tuple(inputs[:-1]), **more, output=output)
        ctx.needs_input_grad = needs  # backward needs them all

    def pullback(ctx: Any, *grads: Any) -> Any:
        if backward is None:
            raise error(
                OperatorError,
                f"Trying to backward through {this.qualname.replace('::', '.')}.default but no autograd formula was "
                "registered. Please use register_autograd to add one.",
                "operator-autograd",
            )
        _refuse_numbers(this, body, ctx.needs_input_grad)
        ctx.needs_input_grad = _needs(positional, ctx.needs_input_grad)
        return (*_take_gradients(this, backward, backward(ctx, *grads), ctx.needs_input_grad), None)

    names = [inspect.Parameter(p.name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in positional]
    names.append(inspect.Parameter(KEYWORDS, inspect.Parameter.POSITIONAL_OR_KEYWORD))
    _stand_for(forward, body, inspect.Signature(names))
    _stand_for(record, setup_context)
    _stand_for(pullback, backward)
    members = {"forward": forward, "setup_context": record, "backward": pullback}
    if vmap is not None:
        members["vmap"] = _make_vmap(vmap)
    space = {name: staticmethod(method) for name, method in members.items()}
    return type(this.qualname, (Function,), {"pytree": True, "__module__": body.__module__, **space})


def _stand_for(method: Any, users: Method | None, signature: inspect.Signature | None = None) -> None:
    """Make messages, and the search for closed-over tracers, refer to the user's function instead of ours."""
    if users is not None:
        method.__wrapped__ = users
        method.__qualname__ = getattr(users, "__qualname__", method.__qualname__)
    if signature is not None:
        method.__signature__ = signature


def _needs(positional: Sequence[Parameter], needs: Sequence[Any]) -> list[Any]:
    """Return `needs_input_grad` as operators have it: False for non-arrays, a list for a list of arrays."""
    return [need if p.type.is_tensor else False for p, need in zip(positional, needs, strict=False)]


def _refuse_numbers(this: Implementation, body: Method, needs: Sequence[Any]) -> None:
    entries = [*zip(this.schema.positional, needs, strict=False), *_keyword_needs(this, needs)]
    for p, need in entries:
        if not p.type.is_tensor and any(iter_leaves(need)):
            raise error(
                GradientError,
                f"argument '{p.name}' of {this.qualname} is a {p.type.name}, which has no gradient, and is being "
                "differentiated",
                "operator-autograd",
                method=body,
                fix=f"annotate {p.name} as jax.Array, or pass jax.lax.stop_gradient({p.name})",
            )


def _keyword_needs(this: Implementation, needs: Sequence[Any]) -> list[tuple[Parameter, Any]]:
    found = needs[len(this.schema.positional)] if len(needs) > len(this.schema.positional) else {}
    return [(p, found.get(p.name, False)) for p in this.schema.keyword_only]


def _take_gradients(this: Implementation, backward: Method, returned: Any, needs: Sequence[Any]) -> list[Any]:
    """Check what backward returned; return one gradient for each positional argument.

    Raises:
        GradientError: for a wrong number or structure, in PyTorch's wording.
    """
    positional, qualname = this.schema.positional, this.qualname
    grads = list(returned) if isinstance(returned, tuple) else [returned]
    n = len(positional)
    extra = next((i for i, g in enumerate(grads[n:], n) if g is not None), None)
    if len(grads) < n or extra is not None:
        names = ", ".join(p.name for p in positional)
        raise error(
            GradientError,
            f"{qualname}.backward returned an incorrect number of gradients (expected {n}, got {len(grads)})",
            "operator-autograd",
            method=backward,
            expected=f"one gradient for each positional argument ({names}), None where there is none",
        )
    for i, (p, grad, need) in enumerate(zip(positional, grads, needs, strict=False)):
        if p.type.is_tensor and p.type.listed:
            if not isinstance(grad, list) or len(grad) != len(need):
                raise error(
                    GradientError,
                    "Expected the return from backward to be of the same structure as the inputs. "
                    f"Got: {describe(grad)} (return from backward), list of {len(need)} (inputs), for argument "
                    f"'{p.name}' of {qualname}",
                    "operator-autograd",
                    method=backward,
                    expected=f"a list of {len(need)}, each an array or None",
                )
            grads[i] = grad or None  # a list without arrays has no gradient
        elif not p.type.is_tensor and grad is not None:
            raise gradient_for_static(backward, qualname, f"argument {i} ('{p.name}')", i, grad)
    return grads[:n]


def _make_vmap(vmap: Method) -> Method:
    def batched(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        return vmap(info, tuple(in_dims[:-1]), *args[:-1], **args[-1])

    _stand_for(batched, vmap)
    return batched
