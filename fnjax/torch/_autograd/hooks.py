"""Hooks of tensors: an identity whose backward calls them, with the call's arrays in the tensors that they read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

import fnjax
from fnjax._primitives.jax_internals import is_in_scope
from fnjax.torch._autograd.function.captured import reach
from fnjax.torch._autograd.function.conditional_gradients import call_checked
from fnjax.torch._autograd.handles import RemovableHandle, add_hook
from fnjax.torch.errors import NotSupported, find_definition
from fnjax.torch.memory.tensor import Derived, Tensor, is_known, make
from fnjax.torch.recording.gradient_mode import BACKWARD, set_mode
from fnjax.torch.recording.graph import RECORDS_GRADIENTS, Value, compute, list_nodes, note_read, watch
from fnjax.torch.recording.journal import next_serial, note_reached, refuse_in_branch
from fnjax.torch.recording.storage import LostValue, find_root

Hook = Callable[..., Any]


class Reads:
    """Tensors that hooks may read, as operands: JAX runs a hook after the trace in which it was registered has ended.

    Args:
        functions: the hooks.
        only_traced: whether tensors with concrete values are left out, as constants of a second derivative.

    Attributes:
        values: the values of the tensors and of the leaves of their graphs, and those that leaves were detached from.
        own: the value that has the hooks.
    """

    def __init__(self, functions: Sequence[Any], *, only_traced: bool = False) -> None:
        # What an earlier trace has left in a list or a module is no operand of this one.
        self._tensors = [t for t in reach(functions, whole=True) if _is_alive(find_root(t.memory).value)]
        # A view that was never read is computed when a hook reads it.
        values = [t.memory.value for t in self._tensors if not isinstance(t.memory, Derived)]
        values += [t.value for t in self._tensors if t._cached is not None or isinstance(t.memory, Derived)]
        before = [p for node in list_nodes(values, set(), whole=True) for p in (*node.parents, *node.reads)]
        values += [p for p in before if p.node is None and _is_alive(p)]
        values = [*{id(v): v for v in values}.values()]
        self._known = {id(x): x for v in (*values, *before) for x in (v, v.node) if x is not None}
        self._values = [v for v in values if (v.requires_grad and not only_traced) or not is_known(v.array)]
        self._detached = [v for v in values if v.source is not None and not is_known(v.source)]
        self.values = [*self._values, *(Value(v.source) for v in self._detached)]
        self.own: Value | None = None

    def _are_known(self, read: Sequence[Value], start: int) -> bool:
        """Return whether each value that a hook read is one of `values`, or newer than `start`: made in the hook."""
        others = [v for v in read if v.requires_grad and v is not self.own]
        others = [v for v in others if not {id(v), id(v.node)} & self._known.keys()]
        return all((v.leaf.memory if v.node is None else v.node).serial >= start for v in others)

    @contextlib.contextmanager
    def hold(self, arrays: Sequence[Any], refuse: Callable[[], Exception]) -> Iterator[None]:
        """Replace the arrays of the tensors within a block.

        Args:
            arrays: the arrays for `values`; empty to leave the tensors unchanged.
            refuse: returns the exception to raise.

        Raises:
            Exception: the one that `refuse` returns: the block reads a tracer of a trace that has ended, or another
                tensor with a gradient, for which a second derivative would be wrong.
        """
        own = [] if self.own is None else [self.own]
        places = [(v, "array") for v in (*own, *self._values)] + [(v, "source") for v in self._detached]
        before = [getattr(value, name) for value, name in places]
        cached = [t._cached for t in self._tensors]
        start = next_serial()
        try:
            for (value, name), array in zip(places if arrays else [], arrays, strict=True):
                setattr(value, name, array)
            with watch() as read:
                yield
            # A second derivative would treat other tensors as constants.
            is_lost = not all(is_in_scope(v.array) for v in read)
            if is_lost or (RECORDS_GRADIENTS.get() and not self._are_known(read, start)):
                raise refuse()
            note_read(read)
        except jax.errors.UnexpectedTracerError as e:
            raise refuse() from e
        finally:
            for (value, name), array in zip(places, before, strict=True):
                setattr(value, name, array)
            for tensor, kept in zip(self._tensors, cached, strict=True):
                tensor._cached = kept


def _is_alive(value: Value) -> bool:
    return not isinstance(value, LostValue) and is_in_scope(value.array)


class Call:
    """Call of a function on gradients, which JAX makes when it runs backward.

    Attributes:
        function: the gradients, as tensors → tensors or None.
        reads: the tensors that the function may read.
        is_conditional: whether a traced test decides on a use of the differentiated value.
    """

    is_conditional = False
    written_gradients: ClassVar[dict[int, Value]] = {}

    def __init__(self, function: Callable[..., Any], reads: Reads, where: str) -> None:
        self.function, self.reads, self._where = function, reads, where

    def run(self, gradients: Sequence[Any], dtypes: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
        """Return the gradients that the function returns, as arrays.

        Raises:
            NotSupported: the function reads a tensor that it did not refer to when the hook was registered.
        """
        tensors = [None if g is None else make(g, d) for g, d in zip(gradients, dtypes, strict=True)]
        with self.reads.hold(arrays, self._refuse), set_mode(BACKWARD, in_forward=False):
            changed = [None if t is None else t.array for t in self.function(*tensors)]
        if not all(map(is_in_scope, changed)):
            raise self._refuse()
        return changed

    def _refuse(self) -> NotSupported:
        return NotSupported(
            "a hook that reads a tensor which was computed, written to or put into its place after the hook was "
            "registered",
            "register the hook after that, and let nothing else be put into the variables that it reads",
            self._where,
        )


class TensorHooks:
    """The hooks of one tensor.

    Attributes:
        base: the tensor's value without hooks.
        hooks: a dict for each hook of `register_hook`; it is empty after the hook was removed.
        after: the hooks of `register_post_accumulate_grad_hook`, which are called with the tensor.
    """

    def __init__(self, base: Value, hooks: list[dict[int, Hook]], after: dict[int, Hook], own: Any) -> None:
        self.base, self.hooks, self.after, self.dtype = base, hooks, after, own

    def __call__(self, gradient: Tensor) -> Tensor:
        """Return the gradient that the last hook returns.

        Raises:
            TypeError: with PyTorch's message, a hook returns something else than a tensor.
        """
        for hook in self._list():
            note_reached(hook)
            changed = hook(gradient)
            if changed is None:
                continue
            if not isinstance(changed, Tensor):
                raise TypeError(f"expected Variable, but hook returned '{type(changed).__name__}'")
            if changed.layout.shape != gradient.layout.shape:
                name = getattr(hook, "__name__", type(hook).__name__)
                raise RuntimeError(f"hook '{name}' has changed the size of value")
            gradient = changed
        return gradient

    def _list(self) -> list[Hook]:
        return [hook for hooks in self.hooks for hook in hooks.values()]

    def move(self, base: Value) -> Value:
        """Attach the hooks to another value of the tensor, and return that."""
        return TensorHooks(base, self.hooks, self.after, self.dtype).attach()

    def attach(self) -> Value:
        """Return the base value with the hooks."""
        base, hooks = self.base, self._list()
        reads = Reads(hooks)
        call = Call(self._call, reads, find_definition(hooks))

        def function(x: Any, *arrays: Any) -> tuple[Any, ...]:
            return (_Hooked.apply(x, self.dtype, call, *arrays),)

        if base.node is None:  # torch.autograd ends at this leaf, and JAX goes on
            array = function(base.array, *(v.array for v in reads.values))[0]
            made = Value(array, requires_grad=True, leaf=base.leaf)
            made.source = base.source
        else:
            made = compute(function, [base], "HookBackward", reads=reads.values)[0]
            made.leaf, base.leaf = base.leaf, None
        reads.own, made.hooks, made.call = made, self, call
        return made

    def _call(self, gradient: Tensor) -> tuple[Tensor]:
        """Return the gradient after the hooks, for JAX's backward pass.

        Raises:
            NotSupported: a hook waits for `.grad`, which JAX does not have.
        """
        if self.after:
            raise NotSupported(
                "a hook of register_post_accumulate_grad_hook on a tensor that JAX differentiates: there is no .grad",
                "use register_hook, or torch.autograd.backward",
                find_definition([*self.after.values()]),
            )
        return (self(gradient),)


class _Hooked(fnjax.Function):
    """Identity whose backward calls the hooks of a tensor."""

    @staticmethod
    def forward(ctx: Any, x: Any, own: Any, call: Call, *arrays: Any) -> Any:
        ctx.own, ctx.call = own, call
        if not arrays:
            return x
        result = jnp.copy(x)  # saved as an output: a second derivative by what the hook reads meets the hook again
        ctx.save_for_backward(result, *arrays)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        call, own, arrays = ctx.call, ctx.own, ctx.saved_tensors

        def run(g: Any) -> list[Any]:
            return call.run([g], [own], arrays)

        found = call_checked("a hook", run, [gradient]) if call.is_conditional else run(gradient)
        return (*found, None, None, *(None for _ in arrays[1:]))


def register_hook(tensor: Tensor, hook: Hook) -> RemovableHandle:
    """Call a function with the gradient of a tensor; the tensor it returns replaces the gradient.

    As in PyTorch, uses of the tensor before the registration are not seen.

    Raises:
        RuntimeError: the tensor does not require grad.
    """
    hooks, entry = _hooks_of(tensor), dict[int, Hook]()
    handle = add_hook(entry, hook)
    value = tensor.value
    if value is not hooks.base and value.node is not None:
        hooks.base.leaf, value.leaf = value.leaf, None
    tensor.replace_value(hooks.base)
    tensor.replace_value(TensorHooks(hooks.base, [*hooks.hooks, entry], hooks.after, tensor.dtype).attach())
    return handle


def register_post_accumulate_grad_hook(tensor: Tensor, hook: Hook) -> RemovableHandle:
    """Call a function with a leaf each time that torch.autograd.backward has added to its `.grad`.

    Raises:
        RuntimeError: the tensor does not require grad, or is not a leaf.
    """
    hooks = _hooks_of(tensor)
    if not tensor.is_leaf:
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
    if tensor.value.hooks is None:
        tensor.replace_value(hooks.attach())
    return add_hook(hooks.after, hook)


def _hooks_of(tensor: Tensor) -> TensorHooks:
    if not tensor.requires_grad:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    refuse_in_branch(tensor.memory.serial, "a hook that is registered")
    found: TensorHooks | None = tensor.value.hooks
    return TensorHooks(tensor.value, [], {}, tensor.dtype) if found is None else found
