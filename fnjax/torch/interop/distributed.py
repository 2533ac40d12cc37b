"""`torch.distributed` inside jax.shard_map: fnjax.collectives on tensors; a group is the name of a mesh axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnjax import collectives
from fnjax._torch_ops.registry import KNOWN
from fnjax.torch.errors import NotSupported
from fnjax.torch.interop.point_to_point import (
    P2POp,
    Work,
    batch_isend_irecv,
    find_index,
    irecv,
    isend,
    recv,
    send,
    write,
)
from fnjax.torch.memory.tensor import Tensor, make
from fnjax.torch.names.process_groups import ProcessGroup, default_axis, find_axis, get_default, get_rank
from fnjax.torch.recording.graph import Value, compute


class ReduceOp:
    """Reductions, named as in fnjax.collectives."""

    SUM, AVG, MAX, MIN, PRODUCT = "sum", "avg", "max", "min", "product"
    BAND, BOR, BXOR, PREMUL_SUM = "band", "bor", "bxor", "premul_sum"


class _Groups(type):
    @property
    def WORLD(cls) -> ProcessGroup | None:  # noqa: N802 - PyTorch's name
        axis = get_default()
        return None if axis is None else ProcessGroup(axis)


class GroupMember(metaclass=_Groups):
    """Holder of WORLD, the default group; None if there is none."""

    NON_GROUP_MEMBER = None


def get_world_size(group: Any = None) -> int:
    """Return the number of devices along the axis."""
    return collectives.axis_size(find_axis(group))


def _run(function: Callable[..., Any], *tensors: Tensor, name: str) -> Value:
    def on_arrays(*arrays: Any) -> tuple[Any, ...]:
        if all(a.dtype == bool for a in arrays):
            return (function(*(a.astype(jnp.int32) for a in arrays)) != 0,)
        return (function(*arrays),)

    return compute(on_arrays, [t.value for t in tensors], name)[0]


def _writing(function: Callable[..., None]) -> Callable[..., Work | None]:
    """Return a collective that writes, with async_op and its handle."""

    def call(*args: Any, async_op: bool = False, **kwargs: Any) -> Work | None:
        function(*args, **kwargs)
        return Work() if async_op else None

    call.__name__ = call.__qualname__ = function.__name__
    return call


# ---------------------------------------------------------------------------------- collectives that return


def _reduced(tensor: Tensor, op: str = "sum", group: Any = None, tag: str = "") -> Value:
    axis = find_axis(group)
    return _run(lambda a: collectives.all_reduce(a, axis, op), tensor, name="AllReduceBackward")


def _gathered(tensor: Tensor, group: Any = None) -> list[Value]:
    axis = find_axis(group)
    return compute(lambda a: tuple(collectives.all_gather(a, axis)), [tensor.value], "AllGatherBackward")


def _whole(tensor: Tensor, gather_dim: int = 0, group: Any = None, tag: str = "") -> Value:
    axis = find_axis(group)
    return _run(lambda a: collectives.all_gather_into(a, axis, gather_dim), tensor, name="AllGatherBackward")


def _scattered(tensor: Tensor, op: str = "sum", scatter_dim: int = 0, group: Any = None, tag: str = "") -> Value:
    axis = find_axis(group)
    return _run(lambda a: collectives.reduce_scatter(a, axis, op, scatter_dim), tensor, name="ReduceScatterBackward")


def _exchanged(
    tensor: Tensor, output_split_sizes: Any = None, input_split_sizes: Any = None, group: Any = None, tag: str = ""
) -> Value:
    axis = find_axis(group)
    return _run(
        lambda a: collectives.all_to_all(a, axis, output_split_sizes, input_split_sizes),
        tensor,
        name="AllToAllBackward",
    )


def _copied(tensor: Tensor, src: Any = 0, group: Any = None, tag: str = "") -> Value:
    axis = find_axis(group)
    return _run(lambda a: collectives.broadcast(a, find_index(src, None), axis), tensor, name="BroadcastBackward")


def _list_values(function: Callable[..., Any], tensors: Sequence[Tensor], name: str) -> list[Value]:
    return compute(lambda *arrays: tuple(function(list(arrays))), [t.value for t in tensors], name)


def _as_tensor(function: Callable[..., Value]) -> Callable[..., Tensor]:
    def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        found = function(tensor, *args, **kwargs)
        return make(found.array, tensor.dtype, value=found)

    return call


def _nn_all_gather(tensor: Tensor, group: Any = None) -> tuple[Tensor, ...]:
    return tuple(make(v.array, tensor.dtype, value=v) for v in _gathered(tensor, group))


def _nn_all_to_all(outputs: Sequence[Tensor], inputs: Sequence[Tensor], group: Any = None) -> tuple[Tensor, ...]:
    axis = find_axis(group)
    found = _list_values(lambda arrays: collectives.all_to_all(arrays, axis), inputs, "AllToAllBackward")
    return tuple(make(v.array, t.dtype, value=v) for v, t in zip(found, inputs, strict=True))


def _nn_all_to_all_single(
    output: Tensor, tensor: Tensor, output_split_sizes: Any = None, input_split_sizes: Any = None, group: Any = None
) -> Tensor:
    return _as_tensor(_exchanged)(tensor, output_split_sizes, input_split_sizes, group)


def _nn_reduce_scatter(output: Tensor, inputs: Sequence[Tensor], op: str = "sum", group: Any = None) -> Tensor:
    axis = find_axis(group)
    found = _list_values(lambda a: [collectives.reduce_scatter(a, axis, op)], inputs, "ReduceScatterBackward")[0]
    return make(found.array, output.dtype, value=found)


# ---------------------------------------------------------------------------------- collectives that write


def all_reduce(tensor: Tensor, op: str = "sum", group: Any = None) -> None:
    """Reduce a tensor over the devices."""
    write(tensor, _reduced(tensor, op, group))


def all_gather(tensor_list: Sequence[Tensor], tensor: Tensor, group: Any = None) -> None:
    """Write the tensor of each device into that of the list at the device's index."""
    for target, value in zip(tensor_list, _gathered(tensor, group), strict=True):
        write(target, value)


def all_gather_into_tensor(output_tensor: Tensor, input_tensor: Tensor, group: Any = None) -> None:
    """Write the input tensors of all devices into `output_tensor`, concatenated or stacked by its shape."""
    axis = find_axis(group)
    like = jax.ShapeDtypeStruct(output_tensor.shape, output_tensor.dtype.array)
    write(output_tensor, _run(lambda a: collectives.gather_as(like, a, axis), input_tensor, name="AllGatherBackward"))


def reduce_scatter(output: Tensor, input_list: Sequence[Tensor], op: str = "sum", group: Any = None) -> None:
    """Write this device's element of the sum of the devices' lists."""
    write(output, _nn_reduce_scatter(output, input_list, op, group).value)


def reduce_scatter_tensor(output: Tensor, input: Tensor, op: str = "sum", group: Any = None) -> None:  # noqa: A002 - PyTorch's
    """Write this device's slice of the sum of the devices' tensors."""
    axis = find_axis(group)
    like = jax.ShapeDtypeStruct(output.shape, output.dtype.array)
    write(output, _run(lambda a: collectives.scatter_as(like, a, axis, op), input, name="ReduceScatterBackward"))


def all_to_all(output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor], group: Any = None) -> None:
    """Send element i of each device's list to device i."""
    found = _nn_all_to_all(output_tensor_list, input_tensor_list, group)
    for target, value in zip(output_tensor_list, found, strict=True):
        write(target, value.value)


def all_to_all_single(
    output: Tensor,
    input: Tensor,  # noqa: A002 - PyTorch's name
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
) -> None:
    """Send slice i of each device's tensor to device i."""
    write(output, _exchanged(input, output_split_sizes, input_split_sizes, group))


def broadcast(tensor: Tensor, src: Any = None, group: Any = None, group_src: Any = None) -> None:
    """Write one device's tensor on all."""
    write(tensor, _copied(tensor, find_index(src, group_src), group))


def reduce(tensor: Tensor, dst: Any = None, op: str = "sum", group: Any = None, group_dst: Any = None) -> None:
    """Reduce to one device; on the others the tensor is unchanged."""
    axis, to = find_axis(group), find_index(dst, group_dst)
    found = _run(
        lambda a: jnp.where(collectives.axis_index(axis) == to, collectives.all_reduce(a, axis, op), a),
        tensor,
        name="ReduceBackward",
    )
    write(tensor, found)


def gather(tensor: Tensor, gather_list: Any = None, dst: Any = None, group: Any = None, group_dst: Any = None) -> None:
    """Write the devices' tensors into a list, on all devices."""
    if gather_list is None:
        raise NotSupported("dist.gather without a list", "give each device a list: all devices run one program")
    all_gather(gather_list, tensor, group)


def scatter(
    tensor: Tensor, scatter_list: Any = None, src: Any = None, group: Any = None, group_src: Any = None
) -> None:
    """Write this device's element of one device's list."""
    if scatter_list is None:
        raise NotSupported("dist.scatter without a list", "give each device a list: all devices run one program")
    axis, of = find_axis(group), find_index(src, group_src)

    def take(arrays: Any) -> Any:
        return [collectives.broadcast(jnp.stack(arrays), of, axis)[collectives.axis_index(axis)]]

    write(tensor, _list_values(take, scatter_list, "ScatterBackward")[0])


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Write an object, which is the same on all devices, into a list."""
    if any(isinstance(x, Tensor) for x in jax.tree.leaves(obj, is_leaf=lambda x: isinstance(x, Tensor))):
        raise NotSupported("all_gather_object of tensors or of the rank", "use all_gather")
    object_list[:] = [obj] * get_world_size(group)


# ---------------------------------------------------------------------------------- groups and meshes


def new_group(ranks: Any = None, *args: Any, **kwargs: Any) -> ProcessGroup:
    """Return the default group; one of fewer devices is an axis of the mesh.

    Raises:
        NotSupported: for other ranks.
    """
    if ranks is not None and list(ranks) != list(range(get_world_size())):
        raise NotSupported(
            f"dist.new_group({list(ranks)})", "split the mesh into two axes, and pass the name of one as the group"
        )
    return ProcessGroup(find_axis(None))


class DeviceMesh:
    """A mesh of PyTorch: the names of axes of JAX's mesh."""

    def __init__(self, device_type: str, mesh: Any = None, *, mesh_dim_names: Any = None, **_: Any) -> None:
        self.device_type, self.mesh_dim_names = device_type, None if mesh_dim_names is None else tuple(mesh_dim_names)

    def get_group(self, mesh_dim: Any = None) -> ProcessGroup:
        """Return the group of a dimension."""
        names = self.mesh_dim_names or (find_axis(None),)
        found = mesh_dim if isinstance(mesh_dim, str) else names[mesh_dim or 0]
        return ProcessGroup(found)

    def __getitem__(self, names: Any) -> DeviceMesh:
        return DeviceMesh(self.device_type, mesh_dim_names=(names,) if isinstance(names, str) else names)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.mesh_dim_names or ("",))

    def size(self, mesh_dim: Any = None) -> int:
        """Return the number of devices along a dimension."""
        return self.get_group(mesh_dim).size()

    def get_local_rank(self, mesh_dim: Any = None) -> Any:
        """Return the index of this device along a dimension."""
        return get_rank(self.get_group(mesh_dim))


class DTensor:
    """PyTorch's distributed tensor; it has no instances, and serves `isinstance` only."""


_WRITING: dict[str, Any] = {
    f.__name__: _writing(f)
    for f in (
        all_reduce, all_gather, all_gather_into_tensor, reduce_scatter, reduce_scatter_tensor, all_to_all,
        all_to_all_single, broadcast, reduce, gather, scatter,
    )
}  # fmt: skip
_WRITING |= {
    "_all_gather_base": _WRITING["all_gather_into_tensor"],
    "_reduce_scatter_base": _WRITING["reduce_scatter_tensor"],
    "all_gather_single": _WRITING["all_gather_into_tensor"],
    "reduce_scatter_single": _WRITING["reduce_scatter_tensor"],
}
_OTHERS: dict[str, Any] = {
    "get_rank": get_rank,
    "get_world_size": get_world_size,
    "get_process_group_ranks": lambda group=None: list(range(get_world_size(group))),
    "get_global_rank": lambda group, group_rank: group_rank,
    "get_group_rank": lambda group, global_rank: global_rank,
    "get_backend": lambda group=None: "nccl",
    "is_initialized": lambda: get_default() is not None,
    "is_available": lambda: True,
    "is_nccl_available": lambda: True,
    "init_process_group": lambda *_, **__: None,
    "destroy_process_group": lambda *_, **__: None,
    "barrier": lambda *_, async_op=False, **__: Work() if async_op else None,
    "monitored_barrier": lambda *_, **__: None,
    "all_gather_object": all_gather_object,
    "broadcast_object_list": lambda *_, **__: None,
    "new_group": new_group,
    "isend": isend,
    "send": send,
    "irecv": irecv,
    "recv": recv,
    "P2POp": P2POp,
    "batch_isend_irecv": batch_isend_irecv,
    "ReduceOp": ReduceOp,
    "reduce_op": ReduceOp,
    "ProcessGroup": ProcessGroup,
    "Work": Work,
    "GroupMember": GroupMember,
    "group": GroupMember,
    "_get_default_group": lambda: ProcessGroup(find_axis(None)),
}
for _space in ("torch.distributed", "torch.distributed.distributed_c10d"):
    KNOWN |= {f"{_space}.{name}": value for name, value in (_WRITING | _OTHERS).items()}
KNOWN["torch.distributed.axis"] = default_axis
for _space in ("torch.distributed", "torch.distributed.device_mesh"):
    KNOWN |= {
        f"{_space}.DeviceMesh": DeviceMesh,
        f"{_space}.init_device_mesh": lambda device_type, mesh_shape=None, **named: DeviceMesh(device_type, **named),
    }
KNOWN |= dict.fromkeys(("torch.distributed.tensor.DTensor", "torch.distributed._tensor.DTensor"), DTensor)
_RETURNING = {
    "all_reduce": _as_tensor(_reduced),
    "broadcast": _as_tensor(_copied),
    "all_gather": _nn_all_gather,
    "all_to_all": _nn_all_to_all,
    "all_to_all_single": _nn_all_to_all_single,
    "reduce_scatter": _nn_reduce_scatter,
}
for _space in ("torch.distributed.nn", "torch.distributed.nn.functional"):
    KNOWN |= {f"{_space}.{name}": value for name, value in _RETURNING.items()}
_FUNCTIONAL = {
    "all_reduce": _as_tensor(_reduced),
    "broadcast": _as_tensor(_copied),
    "all_gather_tensor": _as_tensor(_whole),
    "all_gather_single": _as_tensor(_whole),
    "reduce_scatter_tensor": _as_tensor(_scattered),
    "reduce_scatter_single": _as_tensor(_scattered),
    "all_to_all_single": _as_tensor(_exchanged),
}
_FUNCTIONAL |= {f"{name}_autograd": value for name, value in _FUNCTIONAL.items()}
_FUNCTIONAL["wait_tensor"] = lambda tensor: tensor
KNOWN |= {f"torch.distributed._functional_collectives.{name}": value for name, value in _FUNCTIONAL.items()}
