"""Conversion between arrays and tensors, of values and of functions: torch_view and jax_view."""

from __future__ import annotations

import contextlib
import functools
import gc
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import fnjax
from fnjax._function.signature import is_torch_tensor
from fnjax._primitives.jax_internals import is_staged
from fnjax.torch._autograd.arrays import Kind, dtype_of, is_array, wrap_array
from fnjax.torch._autograd.function.captured import Stateful, is_node
from fnjax.torch._autograd.function.ctx import is_written, mark
from fnjax.torch._autograd.transforms import record
from fnjax.torch.control.paths import run_paths
from fnjax.torch.control.state.places import UNBOUND, Content
from fnjax.torch.control.state.state import State
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.number import Number
from fnjax.torch.errors import NotSupported
from fnjax.torch.host.values import HostValue
from fnjax.torch.memory.tensor import Tensor, is_known
from fnjax.torch.names.process_groups import as_group, exchanging
from fnjax.torch.recording.journal import Journal, is_journaled
from fnjax.torch.recording.storage import Storage

_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)


def torch_view(x: Any) -> Any:
    """Return arrays as tensors, in any pytree; for a function of arrays, return a function of tensors.

    Args:
        x: a JAX or NumPy array, a pytree of them, a function, or a fnjax.Function class, whose apply is meant.

    Returns:
        The pytree with a `fnjax.torch.Tensor` for each array; traced arrays of differentiable dtypes require grad.
    """
    if isinstance(x, type) and issubclass(x, fnjax.Function):
        return types.SimpleNamespace(apply=torch_view(x.apply), __name__=x.__name__)
    if isinstance(x, (types.ModuleType, type)) or (isinstance(x, functools.partial) and hasattr(x, "__self__")):
        return x  # apply of a torch.autograd.Function takes tensors already
    if callable(x) and not is_node(x):
        return functools.wraps(x)(lambda *args, **kwargs: record(x, args, kwargs, x.__name__)[0])

    def wrap(leaf: Any) -> Any:
        if not is_array(leaf):
            if is_torch_tensor(leaf):
                raise TypeError(
                    f"got a tensor of PyTorch, of shape {tuple(leaf.shape)}: fnjax.torch computes with arrays of JAX\n"
                    "  fix: pass jnp.asarray(x.detach().cpu().numpy())"
                )
            return as_group(leaf)
        array = jnp.asarray(leaf)
        return wrap_array(array, Kind(dtype_of(leaf), not is_known(array)))

    return jax.tree.map(wrap, x, is_leaf=lambda y: is_value(y) or _is_kept(y))


def _is_kept(x: Any) -> bool:
    """Return whether a value is a list or dict without arrays, which a function may change."""
    return issubclass(type(x), (list, dict)) and not any(
        is_array(leaf) or is_torch_tensor(leaf) for leaf in jax.tree.leaves(x, is_leaf=is_value)
    )


def jax_view(x: Any) -> Any:
    """Return tensors as arrays, in any pytree; for a function of tensors, return a function of arrays.

    Args:
        x: a `fnjax.torch.Tensor`, a pytree of them, or a function.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> import fnjax.torch as torch
        >>> def loss(x):
        ...     return (torch.sigmoid(x) * x).sum()
        >>> print(jax.grad(torch.jax_view(loss))(jnp.zeros(2)))
        [0.5 0.5]
    """
    if callable(x) and not isinstance(x, (Tensor, Deferred)):
        return _on_arrays(x)
    return jax.tree.map(_leave, x, is_leaf=is_value)


def is_value(x: Any) -> bool:
    """Return whether a value is no array, and no pytree of arrays: a tensor, a module, a traced number or choice."""
    return issubclass(type(x), (Tensor, Stateful, Deferred, HostValue))  # no __class__ that an object defines


def _leave(leaf: Any) -> Any:
    if isinstance(leaf, (HostValue, Number)):
        return leaf.to_array()
    if isinstance(leaf, Deferred):
        raise leaf.refuse()
    return leaf.array if isinstance(leaf, Tensor) else leaf


def _on_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with exchanging(), _without_lost_writes(function, (args, kwargs)) as state:
            given, named = torch_view((args, kwargs))
            own = {id(leaf) for leaf in jax.tree.leaves((args, kwargs), is_leaf=is_node)}
            leaves = jax.tree.leaves((given, named), is_leaf=is_node)
            before = [(t, mark(t), t.layout) for t in leaves if issubclass(type(t), Tensor) and id(t) not in own]
            callers = {id(c) for c in _iter_containers((args, kwargs))}
            made = [(c, _list_items(c)) for c in _iter_containers((given, named)) if id(c) not in callers]
            run = functools.partial(function, *given, **named)
            found = run() if state is None else run_paths(run, state)
            _refuse_lost_arguments(function, before, found)
            _refuse_lost_items(function, made, found)
            return jax_view(found) if isinstance(found, _FUNCTIONS) else jax.tree.map(_leave, found, is_leaf=is_value)

    return call


def _iter_containers(x: Any) -> Iterator[list[Any] | dict[Any, Any]]:
    """Yield the lists and dicts in an argument."""
    if issubclass(type(x), (list, dict)):
        yield x
    if issubclass(type(x), (list, dict, tuple)):
        for item in x.values() if issubclass(type(x), dict) else x:
            yield from _iter_containers(item)


def _list_items(x: list[Any] | dict[Any, Any]) -> list[Any]:
    return [*x, *x.values()] if isinstance(x, dict) else [*x]


def _refuse_lost_items(
    function: Callable[..., Any], before: list[tuple[list[Any] | dict[Any, Any], list[Any]]], found: Any
) -> None:
    """Raise NotSupported if a function changed a list or dict of arrays, which it has as another one of tensors."""
    returned = {id(c) for c in _iter_containers(found)}
    for container, items in before:
        now = _list_items(container)
        if id(container) not in returned and (len(now) != len(items) or any(map(operator.is_not, now, items))):
            name = getattr(function, "__name__", type(function).__name__)
            what = f"a change by {name} of a {type(container).__name__} of arrays among its arguments"
            raise NotSupported(f"{what}, which it does not return", "return it as well")


def _refuse_lost_arguments(
    function: Callable[..., Any], before: list[tuple[Tensor, list[Any], Any]], found: Any
) -> None:
    """Raise NotSupported if a function wrote to an argument that it does not return: the caller's array is unchanged.

    Args:
        function: the function.
        before: the arguments that are tensors, each with its `mark` and its layout before the call.
        found: the result of the function.
    """
    tensors = [x for x in jax.tree.leaves(found, is_leaf=is_node) if issubclass(type(x), Tensor)]
    returned = {id(root) for x in tensors for root in x.memory.roots}
    for t, marked, layout in before:
        is_reshaped = t.layout is not layout and not any(x is t for x in tensors)  # resize_, unsqueeze_
        if is_reshaped or (is_written(t, marked) and not any(id(root) in returned for root in t.memory.roots)):
            name = getattr(function, "__name__", type(function).__name__)
            what = f"an argument of shape {layout.shape}, which it does not return: arrays do not change"
            raise NotSupported(
                f"a write of {name} to {what}",
                "return the argument as well, or write to x.clone()",
            )


@contextlib.contextmanager
def _without_lost_writes(function: Callable[..., Any], args: Any) -> Iterator[State | None]:
    """Refuse side effects of a traced function: it is traced once, and its program runs many times.

    Yields the state that the function reaches, or None within another traced function.

    Args:
        function: the function that is called.
        args: its arguments.

    Raises:
        NotSupported: a global tensor, a default argument or an attribute was written to, or has a traced value now.
    """
    leaves = jax.tree.leaves(args, is_leaf=is_node)
    is_traced = is_staged() or any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
    if is_journaled() or not is_traced:  # a branch, a loop or a Function looks after its writes
        yield None
        return
    state = State([function, *(leaf for leaf in leaves if not is_array(leaf))])
    with Journal(is_branch=False, state=state) as journal:
        try:
            yield state
        finally:
            staged = is_staged()  # else what is left there has a value, unless it is a tracer of a gradient
            written = [
                (s, old)
                for s, old in journal.storages.values()
                if s.value is not old and is_known(old.array) and (staged or not is_known(s.value.array))
            ]
            for storage, old in written:
                storage.value = old
                storage.version += 1
            lost = _take_back(state)
    if written:
        raise NotSupported(
            f"a write to a tensor of shape {tuple(written[0][1].array.shape)} from outside of the function that JAX "
            "traces: the new value would be lost",
            "make it an argument and return its new value, or register it as a buffer of a module",
        )
    if lost:
        raise NotSupported(
            f"{lost} from outside of the function that JAX traces holds a traced value after it: that would be lost",
            "return it, or make it an argument and return its new value",
        )


def _take_back(state: State) -> str:
    """Restore the places that have got traced values; return the name of one of them, or ""."""
    lost = ""
    for i, after in state.list_changes().items():
        owner, kind, content = state.places[i]
        before, now = content.to_dict(), after.to_dict()
        names = {k: x for k, x in zip(now, after.keys, strict=True) if now[k] is not before.get(k, UNBOUND)}
        traced = [k for k in names if state.find_new(now[k], _is_traced)]
        if traced and kind.write is not None:
            lost = f"{state.name(owner)}{kind.label(names[traced[0]])}"
            kept = {k: before[k] if k in traced else v for k, v in now.items() if k in before or k not in traced}
            keys = dict(zip((*before, *now), (*content.keys, *after.keys), strict=True))
            kind.write(owner, Content([keys[k] for k in kept], [*kept.values()]) if kind.is_merged else content)
    for cached in state.list_caches():
        if state.find_new(gc.get_referents(cached), _is_written):
            lost = f"a tensor that {cached.__name__}() keeps, and that is written to,"
            cached.cache_clear()
    return lost


def _is_written(x: Any) -> bool:
    return issubclass(type(x), Tensor) and x.memory.version > 0 and _is_traced(x)


def _is_traced(x: Any) -> bool:
    if issubclass(type(x), (Tensor, Storage)):
        roots = (x.memory if issubclass(type(x), Tensor) else x).roots
        return not all(is_known(root.value.array) for root in roots)
    return isinstance(x, jax.core.Tracer) or (isinstance(x, Number) and not is_known(x.array))
