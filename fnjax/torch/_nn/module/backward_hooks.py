"""Backward hooks of modules: the identity on a module's arguments and on its results, with the hooks as backward."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from fnjax._primitives.nondifferentiable import nondifferentiable
from fnjax.torch._autograd.arrays import dtype_of
from fnjax.torch._autograd.engine import is_recording
from fnjax.torch._autograd.function.function import Function
from fnjax.torch._autograd.hooks import Reads
from fnjax.torch.errors import NotSupported, find_definition
from fnjax.torch.memory.tensor import Tensor, make

Hook = Callable[..., Any]


class HookedCall:
    """One call of a module that has backward hooks.

    Attributes:
        module: the module.
        hooks: called with the module, the gradients of its arguments and those of its results.
        pre_hooks: called with the module and the gradients of its results.
        needs_inputs: whether an argument requires grad; if none does, hooks run when the results' gradients are known.
        grad_outputs: the gradients of the results, for the hooks that run later in the same backward pass.
    """

    def __init__(self, module: Any, hooks: Sequence[Hook], pre_hooks: Sequence[Hook]) -> None:
        self.module, self.hooks, self.pre_hooks = module, list(hooks), list(pre_hooks)
        self.needs_inputs = False
        self.grad_outputs: tuple[Any, ...] | None = None
        self._sizes = [0, 0]

    def enter(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the positional arguments, their gradients hooked."""
        self._sizes[0] = len(args)
        self.needs_inputs = any(isinstance(a, Tensor) and a.requires_grad for a in args)
        return self._pass(_Arguments, args) if self.hooks and self.needs_inputs else args

    def leave(self, result: Any) -> Any:
        """Return the result, its gradients hooked."""
        if not isinstance(result, (Tensor, tuple)):
            warnings.warn(
                "For backward hooks to be called, module output should be a Tensor or a tuple of Tensors but received "
                f"{type(result)}",
                UserWarning,
                stacklevel=4,
            )
            return result
        members = result if isinstance(result, tuple) else (result,)
        self._sizes[1] = len(members)
        members = self._pass(_Results, members)
        return members if isinstance(result, tuple) else members[0]

    def _pass(self, identity: type[Function], values: tuple[Any, ...]) -> tuple[Any, ...]:
        at = [
            i for i, v in enumerate(values) if isinstance(v, Tensor) and v.dtype.is_floating_point | v.dtype.is_complex
        ]
        if not is_recording() or not any(values[i].requires_grad for i in at):
            return values
        made, reads = [*values], Reads([*self.hooks, *self.pre_hooks, self.module], only_traced=True)
        read = (make(v, dtype_of(v.array)) for v in reads.values)
        found = identity.apply(self, tuple(at), reads, *(values[i] for i in at), *read)
        for i, tensor in zip(at, found, strict=True):
            made[i] = tensor
        return tuple(made)

    def run(self, function: Callable[..., Any], gradients: tuple[Any, ...], ctx: Any) -> tuple[Any, ...]:
        """Call hooks by a function of the gradients; tensors that they read have the arrays of this backward pass."""
        refuse = functools.partial(
            self._refuse, "reads what forward computes, or gradients of results under torch.vmap"
        )
        with ctx.reads.hold([t.array for t in ctx.saved_tensors], refuse):
            found = function(gradients)
        tensors = [t for t in found if t is not None]
        arrays = nondifferentiable(
            [t.array for t in tensors], [], lambda: self._refuse("is differentiated a second time")
        )
        made = iter([make(a, t.dtype) for a, t in zip(arrays, tensors, strict=True)])
        return tuple(None if t is None else next(made) for t in found)

    def _refuse(self, what: str) -> NotSupported:
        return NotSupported(
            f"a backward hook of {type(self.module).__name__} that {what}",
            "register a hook on a tensor: y.register_hook",
            find_definition([*self.hooks, *self.pre_hooks]),
        )

    def place(self, gradients: Sequence[Any], at: Sequence[int], which: int) -> tuple[Any, ...]:
        """Return gradients for all arguments or results, None where there is no gradient."""
        found = [None] * self._sizes[which]
        for i, g in zip(at, gradients, strict=True):
            found[i] = g
        return tuple(found)

    def call_hooks(self, grad_inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the gradients of the arguments after the hooks."""
        grad_outputs, self.grad_outputs = self.grad_outputs, None
        if grad_outputs is None:
            raise NotSupported(
                f"a backward hook of {type(self.module).__name__} whose results have no gradient, and its arguments do",
                "do not keep the arguments of forward where other code reads them",
            )
        for hook in self.hooks:
            grad_inputs = _replace(grad_inputs, hook(self.module, grad_inputs, grad_outputs), "Backward", "input")
        return grad_inputs

    def call_pre_hooks(self, grad_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the gradients of the results after the pre-hooks."""
        for hook in self.pre_hooks:
            grad_outputs = _replace(grad_outputs, hook(self.module, grad_outputs), "Backward pre", "output")
        self.grad_outputs = grad_outputs
        if not self.needs_inputs:
            self.call_hooks((None,) * self._sizes[0])
        return grad_outputs


def _replace(gradients: tuple[Any, ...], changed: Any, kind: str, what: str) -> tuple[Any, ...]:
    if changed is None:
        return gradients
    if len(changed) != len(gradients):
        raise RuntimeError(
            f"{kind} hook returned an invalid number of grad_{what}, got {len(changed)}, but expected {len(gradients)}"
        )
    return tuple(changed)


class _Results(Function):
    @staticmethod
    def forward(ctx: Any, call: HookedCall, at: tuple[int, ...], reads: Reads, *tensors: Tensor) -> Any:
        ctx.call, ctx.at, ctx.reads = call, at, reads
        ctx.save_for_backward(*tensors[len(at) :])
        return tensors[: len(at)]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        found = ctx.call.run(ctx.call.call_pre_hooks, ctx.call.place(gradients, ctx.at, 1), ctx)
        return (None, None, None, *(found[i] for i in ctx.at), *(None for _ in ctx.saved_tensors))


class _Arguments(_Results):
    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        found = ctx.call.run(ctx.call.call_hooks, ctx.call.place(gradients, ctx.at, 0), ctx)
        return (None, None, None, *(found[i] for i in ctx.at), *(None for _ in ctx.saved_tensors))
