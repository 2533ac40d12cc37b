"""Calling a module as a function of its parameters and buffers."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._torch_ops.registry import known
from fnjax.torch._autograd.function.captured import is_node
from fnjax.torch._nn.module.copies import Rebinding, call_copy
from fnjax.torch._nn.module.module import Module, functional
from fnjax.torch._nn.module.parameter import set_value
from fnjax.torch.deferred.number import NUMBERS
from fnjax.torch.interop.arrays import jax_view, torch_view
from fnjax.torch.memory.tensor import Tensor, make

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

    Unlike PyTorch, writes of forward to buffers are dropped (`stateful_call` returns the new values), and unknown names
    raise.

    Args:
        module: the module. Parameters and buffers that the dicts do not name keep their values.
        parameter_and_buffer_dicts: arrays or tensors by their qualified names, a shared parameter under any of its
            names; or several such dicts.
        args: the arguments of forward, a tuple. If they are arrays the results are arrays, if tensors, tensors.
        kwargs: the keyword arguments of forward.
        tie_weights: raise if a shared parameter gets two values.
        strict: raise if the dicts lack the name of a parameter or buffer.

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
    return call_with(module, state, args, kwargs, "functional_call", tie=tie_weights, strict=strict)[0]


@known("torch.func.stateful_call")
def stateful_call(
    model: Module, state: State, args: Any = None, kwargs: Mapping[str, Any] | None = None
) -> tuple[Any, dict[str, Any]]:
    """Call a module with these parameters and buffers, and return its result and new state; the module is unchanged.

    Args:
        model: the module. Parameters and buffers that `state` does not name keep their values.
        state: parameters and buffers by their qualified names, as `functional_call` takes them.
        args: the arguments of forward, a tuple. If they are arrays the results are arrays, if tensors, tensors.
        kwargs: the keyword arguments of forward.

    Returns:
        The result of forward, and a dict from qualified names to all buffers and to the parameters that forward wrote.
    """
    return call_with(model, dict(state), args, kwargs, "stateful_call")


@known("torch.func.stack_module_state")
def stack_module_state(models: Sequence[Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the parameters and the buffers of modules of one class, each stacked along a new first axis.

    `torch.func.functional_call(models[0], (params, buffers), args)` of one slice is the module that it came from, so
    `torch.vmap` or `jax.vmap` over the first axis runs an ensemble, and `jax.lax.scan` equal blocks one after another.

    Args:
        models: the modules, all in training mode or none.

    Returns:
        The parameters, leaves that require grad where those of the modules do, and the buffers.

    Raises:
        RuntimeError: there are no modules, or they differ in class, in mode, or in what requires grad.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from fnjax import torch
        >>> with torch.seed(0):
        ...     blocks = [torch.nn.Linear(3, 3) for _ in range(4)]
        >>> params = torch.jax_view(torch.func.stack_module_state(blocks)[0])
        >>> params["weight"].shape
        (4, 3, 3)
        >>> def step(x, params):
        ...     return torch.func.functional_call(blocks[0], params, (x,)), None
        >>> jax.lax.scan(step, jnp.ones(3), params)[0].shape
        (3,)
    """
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if len({m.training for m in models}) > 1:
        raise RuntimeError("stack_module_state: Expected all models to have the same training/eval mode.")
    if len({type(m) for m in models}) > 1:
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")
    parameters, buffers = [dict(m.named_parameters()) for m in models], [dict(m.named_buffers()) for m in models]
    return _stack_each(parameters), _stack_each(buffers)


def _stack_each(named: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: _stack([tensors[name] for tensors in named]) for name in named[0]}


def _stack(tensors: Sequence[Tensor]) -> Tensor:
    if len({t.requires_grad for t in tensors}) > 1:
        raise RuntimeError("Expected parameters from different models to have the same .requires_grad")
    stacked = make(jnp.stack([t.array for t in tensors]), tensors[0].dtype)
    return stacked.requires_grad_() if tensors[0].requires_grad else stacked


def call_with(
    model: Module,
    state: dict[str, Any],
    args: Any,
    kwargs: Any,
    caller: str,
    *,
    tie: bool = True,
    strict: bool = False,
    modes: Sequence[bool] | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Return the result and the new state of a copy of a module with other values.

    Args:
        model: the module.
        state: parameters and buffers by their qualified names.
        args: the positional arguments.
        kwargs: the keyword arguments.
        caller: the function that the warning about changed attributes names.
        tie: raise where a shared parameter gets two values.
        strict: raise where `state` lacks the name of a parameter or buffer.
        modes: for each module, whether it is in training mode; by default its present mode.
    """
    given = (() if args is None else args if isinstance(args, tuple) else (args,), dict(kwargs or {}))
    on_arrays = _has_arrays(given) or (not _has_tensors(given) and _has_arrays(state))
    named = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    unset = {} if strict or state.keys() <= named.keys() else _find_unset(model)
    _check_names(model, named, {name: value for name, value in state.items() if name not in unset}, tie, strict)

    def run(*args: Any, **kwargs: Any) -> Any:
        rebinding = Rebinding([model], own_leaves=on_arrays)
        copy = rebinding.copy(model)
        for module, mode in zip(copy.modules(), modes or (), strict=modes is not None):
            module.training = mode
        for name, value in state.items():
            if name in named:
                set_value(rebinding.find(named[name]), value)
            else:
                path, own = unset[name]
                setattr(copy.get_submodule(path), own, torch_view(value))
        tensors = [rebinding.find(t) for t in named.values()]
        before = {id(t): (t.memory, t.memory.value) for t in tensors}
        positional, keywords = _rebind_arguments(rebinding, (args, kwargs))
        with functional():
            output = call_copy(copy, positional, keywords, type(model).__name__, rebinding.storages.values())
        parameters = {n: p for n, p in copy.named_parameters() if before.get(id(p)) != (p.memory, p.memory.value)}
        after = {**parameters, **dict(copy.named_buffers())}
        changed[:] = _list_changed(rebinding, model)
        rebinding.write_back()
        return output, {n: make(t.value, t.dtype) for n, t in after.items()}

    changed: list[str] = []
    output = (jax_view(run) if on_arrays else run)(*given[0], **given[1])
    if changed:
        warnings.warn(
            f"{type(model).__name__}.forward changed the attribute {' and '.join(map(repr, changed))}, which "
            f"{caller} leaves as it was. What lasts from call to call is a buffer: delete the attribute, enter it with "
            "register_buffer, and use stateful_call.",
            UserWarning,
            stacklevel=3,
        )
    return output


def _find_unset(model: Module) -> dict[str, tuple[str, str]]:
    """Return the buffers that are None, which forward may set: qualified name → (path of the module, own name)."""
    return {
        f"{path}{'.' if path else ''}{name}": (path, name)
        for path, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is None
    }


def _rebind_arguments(rebinding: Rebinding, given: Any) -> Any:
    """Return arguments in which references to the module are references to its copy; tensors are not copied."""
    return jax.tree.map(lambda x: x if isinstance(x, Tensor) else rebinding.copy(x), given, is_leaf=is_node)


def _list_changed(rebinding: Rebinding, model: Module) -> list[str]:
    """Return the names of the attributes that a call has changed in a module's copy; not parameters and buffers."""
    return [
        f"{path}{'.' if path else ''}{name}"
        for path, module in model.named_modules()
        for name, new in vars(rebinding.find(module)).items()
        if type(new) is not dict  # most of a module's attributes, and not compared
        and new is not (old := vars(module).get(name))
        and name != "training"
        and name not in module._recomputed
        and _is_changed(rebinding, old, new)
    ]


def _is_changed(rebinding: Rebinding, old: Any, new: Any) -> bool:
    if new is rebinding.find(old):
        if isinstance(new, Tensor):
            return new.memory.version > 0
        kind = next((k for k in (list, collections.deque) if isinstance(new, k)), None)
        return kind is not None and [*map(id, kind.__iter__(new))] != [
            *map(id, map(rebinding.find, kind.__iter__(old)))
        ]
    if isinstance(old, Tensor) or isinstance(new, Tensor):
        return True
    return isinstance(new, NUMBERS) and isinstance(old, NUMBERS) and (type(old) is not type(new) or old != new)


def _has_arrays(tree: Any) -> bool:
    return any(isinstance(x, (jax.Array, np.ndarray)) for x in _leaves(tree))


def _has_tensors(tree: Any) -> bool:
    return any(isinstance(x, Tensor) for x in _leaves(tree))


def _leaves(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=is_node)


def _check_names(model: Module, named: State, state: State, tie: bool, strict: bool) -> None:
    unknown = [name for name in state if name not in named]
    same_tensor: dict[int, list[str]] = {}
    for name, tensor in named.items():
        same_tensor.setdefault(id(tensor), []).append(name)
    names = [*same_tensor.values()]
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
