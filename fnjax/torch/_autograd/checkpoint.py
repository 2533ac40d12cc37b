"""torch.utils.checkpoint by jax.checkpoint, and saved_tensors_hooks."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

import fnjax
from fnjax._primitives.jax_internals import is_transformed
from fnjax._torch_ops.registry import KNOWN, known
from fnjax.torch._autograd.function.captured import is_node
from fnjax.torch.memory.tensor import Derived, Tensor, make
from fnjax.torch.recording.gradient_mode import get_mode
from fnjax.torch.recording.graph import Value, watch
from fnjax.torch.recording.journal import Journal, next_serial
from fnjax.torch.recording.rng import Stream

_OPTIONS = {"preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop"}


def _list_made(results: Any, start: int) -> list[Any]:
    """Return the storages of results that are newer than a serial number."""
    tensors = [x for x in jax.tree.leaves(results, is_leaf=is_node) if isinstance(x, Tensor)]
    made = {id(t.memory): t.memory for t in tensors if t.memory.serial > start and not isinstance(t.memory, Derived)}
    return list(made.values())


@known("torch.utils.checkpoint.checkpoint")
def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: Any = None, **kwargs: Any) -> Any:
    """Call a function; JAX's derivatives recompute its intermediates, torch.autograd's keep them.

    As in PyTorch the function runs twice: once under jax.checkpoint, after which its writes are undone and the random
    stream is reset, and once for its effects and its recorded history. jax.jit removes the unused results of the
    second run.
    """
    named = {k: v for k, v in kwargs.items() if k not in _OPTIONS}
    mode = get_mode()
    if not is_transformed() or not mode.enabled:
        return function(*args, **named)
    draws = Stream()
    with Journal(is_branch=False, is_undone=True):
        start = next_serial()

        def run() -> list[Any]:
            with draws.resume(), watch():
                return [s.value.array for s in _list_made(function(*args, **named), start)]

        arrays = jax.checkpoint(run)()
    start = next_serial()
    with draws.resume():
        results = function(*args, **named)
    for storage, array in zip(_list_made(results, start), arrays, strict=True):
        old = storage.value
        storage.value = Value(array, old.node, old.index, requires_grad=old.requires_grad, leaf=old.leaf)
        storage.version += 1
    return results


@known("torch.utils.checkpoint.checkpoint_sequential")
def checkpoint_sequential(functions: Any, segments: int, input: Any, use_reentrant: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - PyTorch's name
    """Call functions one after the other; all segments but the last are checkpointed."""
    layers = list(functions.children() if hasattr(functions, "children") else functions)

    def run(part: Sequence[Any]) -> Callable[[Any], Any]:
        return lambda x: functools.reduce(lambda x, layer: layer(x), part, x)

    size = len(layers) // segments
    for i in range(segments - 1):
        input = checkpoint(run(layers[i * size : (i + 1) * size]), input, **kwargs)  # noqa: A001 - as above
    return run(layers[(segments - 1) * size :])(input)


@known("torch.utils.checkpoint.detach_variable")
def detach_variable(inputs: Any) -> tuple[Any, ...]:
    """Return the tensors of a tuple without their history, each requiring grad as before; others as they are."""
    if not isinstance(inputs, tuple):
        kind = type(inputs).__name__
        raise RuntimeError("Only tuple of tensors is supported. Got Unsupported input type: ", kind)
    return tuple(x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in inputs)


@known("torch.utils.checkpoint.check_backward_validity")
def check_backward_validity(inputs: Iterable[Any]) -> None:
    """Warn if no tensor requires grad."""
    if not any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
        warnings.warn("None of the inputs have requires_grad=True. Gradients will be None", stacklevel=2)


class _SavedTensorsHooks(fnjax.saved_tensors_hooks):
    """fnjax.saved_tensors_hooks of functions of tensors: they apply to what Functions save, not to other operations."""

    def __init__(self, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]) -> None:
        super().__init__(lambda x: pack_hook(make(x)), lambda kept: unpack_hook(kept).array)


KNOWN["torch.autograd.graph.saved_tensors_hooks"] = _SavedTensorsHooks
KNOWN["torch.autograd.graph.save_on_cpu"] = lambda pin_memory=False, device_type="cuda": fnjax.save_on_cpu()
