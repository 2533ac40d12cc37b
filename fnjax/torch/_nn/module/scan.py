"""Equal modules called one after another by jax.lax.scan, which traces one of them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnjax._torch_ops.registry import known
from fnjax.torch._nn.module.copies import Rebinding
from fnjax.torch._nn.module.functional_call import call_with, stack_module_state
from fnjax.torch._nn.module.module import Module
from fnjax.torch._nn.module.parameter import Parameter, set_value
from fnjax.torch._nn.module.pytree import find_difference
from fnjax.torch.errors import NotSupported
from fnjax.torch.interop.arrays import torch_view
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.recording.graph import watch
from fnjax.torch.recording.journal import next_serial
from fnjax.torch.recording.rng import Stream


@known("torch.func.scan_modules")
def scan_modules(blocks: Iterable[Module], x: Any, *args: Any, checkpoint: bool = False, **kwargs: Any) -> Any:
    """Return `for block in blocks: x = block(x, *args, **kwargs)`, with one block traced, by jax.lax.scan.

    Random numbers are drawn from a key for each block, and what forward writes to buffers is in the blocks' buffers.

    Args:
        blocks: modules that differ in the values of their parameters and buffers only: a ModuleList, or a list.
        x: the input of the first block: an array or tensor, or a pytree of them. Each block returns one like it.
        *args: further arguments, the same for all blocks.
        checkpoint: whether backward computes the intermediates of a block again (jax.checkpoint).
        **kwargs: keyword arguments, likewise.

    Returns:
        The output of the last block.

    Raises:
        ValueError: there are no blocks, or they differ in class, mode, attributes, shapes or dtypes.
        TypeError: a block returns another structure, shape or dtype than it gets.

    Examples:
        >>> import jax.numpy as jnp
        >>> from fnjax import torch
        >>> with torch.seed(0):
        ...     blocks = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(4))
        >>> torch.func.scan_modules(blocks, jnp.ones((2, 3))).shape
        (2, 3)
    """
    blocks = [*blocks]
    return _Scan(blocks, checkpoint)(x, *args, **kwargs)


@known("torch.nn.StackedModules")
class StackedModules(Module):
    """Equal modules whose parameters and buffers are stacked along a first axis; a call is jax.lax.scan over it.

    It is what `scan_modules` computes, as one module: `model.blocks = ModuleList([StackedModules(model.blocks)])`
    leaves `for block in self.blocks` of a model's source as it is. Parameters, optimiser state and shardings are those
    of one block with an axis more, under the names `block.…`.

    Args:
        blocks: as of `scan_modules`. They keep their own parameters.
        checkpoint: whether backward computes the intermediates of a block again (jax.checkpoint).
    """

    __module__ = "torch.nn"

    def __init__(self, blocks: Iterable[Module], checkpoint: bool = False) -> None:
        super().__init__()
        blocks = [*blocks]
        _check_equal(blocks)
        self.length, self.checkpoint = len(blocks), checkpoint
        self.block = copy.deepcopy(blocks[0])
        parameters, buffers = stack_module_state(blocks)
        named = _list_state(self.block)
        for name, value in {**parameters, **buffers}.items():
            set_value(named[name], value.array)

    def __iter__(self) -> Iterator[Module]:
        """Raise: the blocks are one call."""
        raise TypeError(
            "StackedModules is not iterable: one call runs all blocks\n  fix: for a loop over blocks, put it into a "
            "list of one: model.blocks = ModuleList([StackedModules(model.blocks)])"
        )

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the blocks one after another; return the output of the last."""
        state = _list_state(self.block)
        x, new = _scan(self.block, self.length, state, (x, args, kwargs), self.checkpoint)
        for name, value in new.items():
            _write(state[name], value)
        return x


class _Scan(Module):
    """Module of a call of `scan_modules`, whose state is that of the blocks."""

    def __init__(self, blocks: Sequence[Module], checkpoint: bool) -> None:
        super().__init__()
        _check_equal(blocks)
        self.checkpoint = checkpoint
        for i, block in enumerate(blocks):
            self.add_module(str(i), block)

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        blocks = [*self._modules.values()]
        states = [_list_state(block) for block in blocks]
        stacked = {name: _stack([s[name] for s in states]) for name in states[0]}
        x, new = _scan(blocks[0], len(blocks), stacked, (x, args, kwargs), self.checkpoint)
        for name, values in new.items():
            if len({id(s[name].memory) for s in states}) < len(blocks):
                raise NotSupported(
                    f"{name!r}, which {type(blocks[0]).__name__}.forward writes to, in blocks that share it",
                    "call the blocks in a Python loop",
                )
            for state, value in zip(states, values.unbind(), strict=True):
                _write(state[name], value)
        return x


def _list_state(block: Module) -> dict[str, Tensor]:
    return {**dict(block.named_parameters()), **dict(block.named_buffers())}


_stack = torch_view(jnp.stack)


def _write(tensor: Tensor, value: Tensor) -> None:
    if (tensor.shape, tensor.dtype) != (value.shape, value.dtype):
        raise NotSupported(
            f"a buffer of shape {tuple(tensor.shape)} that is {tuple(value.shape)} after forward, in scan_modules",
            "call the blocks in a Python loop",
        )
    (tensor.data if isinstance(tensor, Parameter) else tensor).copy_(value)


def _check_equal(blocks: Sequence[Module]) -> None:
    if not blocks:
        raise ValueError("scan_modules needs at least one module, got none")
    for i, block in enumerate(blocks):
        if difference := find_difference(blocks[0], block):
            raise ValueError(
                f"scan_modules calls one program for all modules, and modules 0 and {i} differ: {difference}\n"
                "  fix: make them equal, or call them in a Python loop"
            )


def _scan(
    block: Module, length: int, stacked: Mapping[str, Tensor], given: tuple[Any, Any, Any], checkpoint: bool
) -> tuple[Any, dict[str, Tensor]]:
    """Return the last output, and the stacked new values of the parameters and buffers that forward writes to.

    Args:
        block: the module that is called, with other parameters and buffers.
        length: how often it is called.
        stacked: its parameters and buffers with a first axis.
        given: the first input, the further arguments, and the keyword arguments.
        checkpoint: whether backward computes the intermediates again.
    """
    draws, start = Stream(), next_serial()
    block = Rebinding([block], own_leaves=True).copy(block)  # torch.autograd runs it again, as it is now

    def run(stacked: dict[str, Any], x: Any, args: Any, kwargs: Any) -> Any:
        def call(x: Any, each: Any) -> tuple[Any, dict[str, Any]]:
            iteration, state = each
            with draws.resume(iteration=iteration), watch() as read:
                y, new = call_with(block, state, (x, *args), kwargs, "scan_modules")
            _check_read(block, read, start)
            _check_carry(block, x, y)
            return y, {name: value for name, value in new.items() if value is not state.get(name)}

        body = jax.checkpoint(call, prevent_cse=False) if checkpoint else call
        return jax.lax.scan(body, x, (jnp.arange(length), stacked))

    found: tuple[Any, dict[str, Tensor]] = torch_view(run)(dict(stacked), *given)
    return found


def _check_carry(block: Module, x: Any, y: Any) -> None:
    before, after = (jax.tree.map(lambda a: f"{a.dtype.name}{list(a.shape)}", tree) for tree in (x, y))
    if before != after:
        raise TypeError(
            f"{type(block).__name__}.forward returns another type than it gets, in scan_modules\n"
            f"  expected: {before}\n  got: {after}\n  fix: convert the result, or call the blocks in a Python loop"
        )


def _check_read(block: Module, read: Sequence[Any], start: int) -> None:
    """Raise NotSupported if a block has read a tensor outside of it that requires grad: it would be a constant."""
    for value in read:
        made = value.node if value.leaf is None else value.leaf.memory
        if value.requires_grad and made is not None and made.serial < start:
            raise NotSupported(
                f"a tensor of shape {tuple(value.array.shape)} that {type(block).__name__}.forward reads from outside "
                "of the module, and that requires grad, in scan_modules",
                "pass it as an argument, or register it",
            )
