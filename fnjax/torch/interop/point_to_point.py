"""Sends and receives of torch.distributed, and the writes of collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from fnjax import collectives
from fnjax.torch.deferred.number import Number
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.names.process_groups import find_axis, get_exchange
from fnjax.torch.recording.gradient_mode import get_mode, set_mode
from fnjax.torch.recording.graph import Value, compute
from fnjax.torch.recording.journal import is_in_branch


class Work:
    """The handle of a collective, which is done: JAX schedules it."""

    def __init__(self, finish: Callable[[], Any] | None = None) -> None:
        self._finish = finish

    def wait(self, timeout: Any = None) -> bool:
        """Return True; the handle of irecv receives its tensor now, all others are done already."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True


def write(target: Tensor, new: Value) -> None:
    """Write a result; collectives write to leaves that require grad as well, outside of PyTorch's autograd."""
    leaf = target.memory.value.requires_grad and target.memory.value.node is None
    with set_mode(get_mode()._replace(enabled=get_mode().enabled and not leaf)):
        own = target.array.dtype
        if new.array.dtype != own or new.array.shape != target.array.shape:
            shape = target.array.shape
            new = compute(lambda a: (a.reshape(shape).astype(own),), [new], "CollectiveBackward")[0]
        target.assign(new)


def find_index(src: Any, group_src: Any) -> Any:
    """Return the index along the axis that `src` or `group_src` gives, 0 for neither."""
    given = group_src if src is None else src
    return 0 if given is None else given.array if isinstance(given, (Tensor, Number)) else given


def _present(what: str) -> Any:
    found = get_exchange()
    if found is None or is_in_branch():
        where = "in a branch that depends on a traced value" if found else "outside of a Function and of jax_view"
        raise NotSupported(f"{what} {where}", "send and receive on every device, within one function")
    return found


def isend(tensor: Tensor, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None) -> Work:
    """Send a tensor to a device."""
    _present("dist.isend").sent.append((tensor.value, find_index(dst, group_dst), find_axis(group)))
    return Work()


def send(tensor: Tensor, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None) -> None:
    """Send a tensor to a device."""
    isend(tensor, dst, group, tag, group_dst)


def irecv(tensor: Tensor, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None) -> Work:
    """Receive a tensor when its handle is waited for."""
    return Work(lambda: recv(tensor, src, group, tag, group_src))


def recv(tensor: Tensor, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None) -> Any:
    """Receive a tensor that was sent before; tensors are received in the order of the sends."""
    state, axis, of = _present("dist.recv"), find_axis(group), find_index(src, group_src)
    sent = [(v, to) for v, to, over in state.sent if over == axis]
    before = [(like, s) for like, s, over in state.received if over == axis]
    if not sent:
        raise NotSupported("dist.recv before a send", "use batch_isend_irecv, or send first")

    def receive(like: Any, *arrays: Any) -> tuple[Any, ...]:
        sends = [(a, to) for a, (_, to) in zip(arrays, sent, strict=True)]
        return (collectives.receive(like, of, sends, axis, before),)

    like = jnp.zeros(tensor.shape, tensor.dtype.array)
    found = compute(receive, [Value(like), *(v for v, _ in sent)], "RecvBackward")[0]
    state.received.append((like, of, axis))
    write(tensor, found)
    return src


class P2POp:
    """A send or a receive of a batch."""

    def __init__(
        self, op: Any, tensor: Tensor, peer: Any = None, group: Any = None, tag: int = 0, group_peer: Any = None
    ) -> None:
        self.op, self.tensor, self.group, self.tag = op, tensor, group, tag
        self.peer = group_peer if peer is None else peer


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work]:
    """Send all, then receive all."""
    receives = []
    for p in p2p_op_list:
        work = p.op(p.tensor, p.peer, p.group)
        if p.op is irecv:
            receives.append(work)
    for work in receives:
        work.wait()
    return [Work() for _ in p2p_op_list]
