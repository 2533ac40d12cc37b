"""Calling a module as a function of its parameters and buffers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.torch import _layout
from fnjax.torch._autograd.captured import is_node
from fnjax.torch._autograd.function import dtype_of
from fnjax.torch._autograd.graph import Storage, Value
from fnjax.torch._between import jax_view, torch_view
from fnjax.torch._namespace import known
from fnjax.torch._nn._module import Module, functional
from fnjax.torch._nn._parameter import Parameter
from fnjax.torch._nn._snapshot import Snapshot
from fnjax.torch._tensor import Tensor, make
from fnjax.torch.control.journal import Journal, note_storage
from fnjax.torch.loading.errors import NotSupported

State = Mapping[str, Any]


@known("torch.func.functional_call", "torch.nn.utils.stateless.functional_call")
def functional_call(
    module: Module,
    parameter_and_buffer_dicts: State | Sequence[State],
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """Return the output of a module with these parameters and buffers; the module is left unchanged.

    Unlike PyTorch, what forward writes to buffers is dropped, too (`stateful_call` returns it), and names that the
    module does not have raise.

    Args:
        module: the module; what is not named keeps its value.
        parameter_and_buffer_dicts: arrays or tensors by their qualified names, a shared parameter under any of its
            names; or several such dicts.
        args: the arguments of forward, a tuple; with arrays, arrays are returned, with tensors tensors.
        kwargs: its keyword arguments.
        tie_weights: raise where a shared parameter gets two values.
        strict: all names must be there.

    Raises:
        RuntimeError: names are missing, or unknown.
        ValueError: a shared parameter gets two values.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from fnjax import torch
        >>> class Scale(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.by = torch.nn.Parameter(torch.ones(2))
        ...     def forward(self, x):
        ...         return x * self.by
        >>> model = Scale()
        >>> loss = lambda params, x: torch.func.functional_call(model, params, (x,)).sum()
        >>> print(jax.grad(loss)({"by": jnp.ones(2)}, jnp.arange(2.0)))
        {'by': Array([0., 1.], dtype=float32)}
    """
    given = parameter_and_buffer_dicts
    state = {name: value for each in ([given] if isinstance(given, Mapping) else given) for name, value in each.items()}
    return _call(module, state, args, kwargs, tie_weights, strict, "functional_call")[0]


@known("torch.func.stateful_call")
def stateful_call(
    model: Module, state: State, args: Any = None, kwargs: Mapping[str, Any] | None = None
) -> tuple[Any, dict[str, Any]]:
    """Return the result of a module with these parameters and buffers, and its new state; the module is unchanged.

    Args:
        model: the module; what is not named keeps its value.
        state: parameters and buffers by their qualified names, as `functional_call` takes them.
        args: the arguments of forward, a tuple; with arrays, arrays are returned, with tensors tensors.
        kwargs: its keyword arguments.

    Returns:
        The result, and by their names all buffers and those parameters that forward wrote to.
    """
    return _call(model, dict(state), args, kwargs, True, False, "stateful_call")


def _call(
    model: Module, state: dict[str, Any], args: Any, kwargs: Any, tie: bool, strict: bool, caller: str
) -> tuple[Any, dict[str, Any]]:
    given = (() if args is None else args if isinstance(args, tuple) else (args,), dict(kwargs or {}))
    on_arrays = _has_arrays(given) or (not _has_tensors(given) and _has_arrays(state))
    named = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    _check_names(model, named, state, tie, strict)
    snapshot = Snapshot(model)
    with Journal(is_branch=False) as journal, functional():
        for name, value in state.items():
            _set_in(named[name], value)
        before = {id(t): (t.memory, t.memory.value) for t in named.values()}
        set_in = {id(s): s.value for s, _ in journal.storages.values()}
        try:
            positional, keywords = torch_view(given) if on_arrays else given
            output = model(*positional, **keywords)
            parameters = {n: p for n, p in model.named_parameters() if before.get(id(p)) != (p.memory, p.memory.value)}
            after = {**parameters, **dict(model.named_buffers())}
            new = {n: make(t.array, t.dtype, value=t.value) for n, t in after.items()}
            written = {id(s) for s, _ in journal.storages.values() if set_in.get(id(s)) is not s.value}
            changed = snapshot.list_changed(written)
        finally:
            snapshot.restore()
            journal.take_back()
    if changed:
        warnings.warn(
            f"{type(model).__name__}.forward changed the attribute {' and '.join(map(repr, changed))}, which "
            f"{caller} leaves as it was. What lasts from call to call is a buffer: delete the attribute, enter it with "
            "register_buffer, and use stateful_call.",
            UserWarning,
            stacklevel=3,
        )
    return (jax_view(output), jax_view(new)) if on_arrays else (output, new)


def _has_arrays(tree: Any) -> bool:
    return any(isinstance(x, (jax.Array, np.ndarray)) for x in _leaves(tree))


def _has_tensors(tree: Any) -> bool:
    return any(isinstance(x, Tensor) for x in _leaves(tree))


def _leaves(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=is_node)


def _check_names(model: Module, named: State, state: State, tie: bool, strict: bool) -> None:
    unknown = [name for name in state if name not in named]
    names = [[n for n, t in named.items() if t is tensor] for tensor in {id(t): t for t in named.values()}.values()]
    missing = [same[0] for same in names if strict and not any(n in state for n in same)]
    if unknown or missing:
        lines = [f"Error(s) in reparametrizing for {type(model).__name__}:"]
        for kind, keys in (("Unexpected", unknown), ("Missing", missing)):
            lines += [f"{kind} key(s): {', '.join(map(repr, keys))}."] if keys else []
        raise RuntimeError("\n\t".join(lines))
    for same in names:
        both = [n for n in same if n in state]
        if tie and any(state[n] is not state[both[0]] for n in both[1:]):
            raise ValueError(
                f"functional_call got values for both {both}, which are tied. Consider using tie_weights=False"
            )


def _set_in(tensor: Tensor, given: Any) -> None:
    """Set the value of a parameter or buffer; views of its memory change with it."""
    flag = tensor.requires_grad
    if tensor.value.hooks:
        raise NotSupported(
            "a hook that was registered on a parameter before the call, which gives the parameter another value",
            "register it in forward",
        )
    if isinstance(given, Tensor) and not isinstance(given, Parameter):
        value, own = given.value, given.dtype
    else:
        array = given.array if isinstance(given, Tensor) else jnp.asarray(given)
        own = tensor.dtype if array.dtype == tensor.dtype.array else dtype_of(array)
        if isinstance(tensor, Parameter) and not flag:
            array = jax.lax.stop_gradient(array)
        value = Value(array, requires_grad=flag, leaf=tensor if flag else None)
    storage = tensor.memory
    if tensor.layout is storage.layout and storage.layout.shape == value.array.shape:
        note_storage(storage)
        storage.value = value
        storage.version += 1
    else:
        layout = _layout.make_layout(value.array.shape)
        tensor.memory, tensor.layout = Storage(value, layout), layout
    tensor.dtype, tensor._cached = own, None
