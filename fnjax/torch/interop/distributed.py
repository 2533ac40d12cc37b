"""`torch.distributed` inside jax.shard_map: fnjax.collectives on tensors; a group is the name of a mesh axis."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnjax import collectives
from fnjax._torch_ops.collectives import COLLECTIVES, OTHERS, Collective
from fnjax._torch_ops.registry import KNOWN
from fnjax.torch.deferred.aliases import Merged
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


def _make(name: str, this: Collective) -> Callable[..., Any]:
    """Return a line of the table of collectives as a function of tensors."""
    first, *others = this.parameters.split()
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    optional = [inspect.Parameter(n, kind, default=None) for n in others]
    signature = inspect.Signature([inspect.Parameter(first, kind), *optional])
    expression, node_name = compile(this.call, name, "eval"), f"{name.title().replace('_', '')}Backward"

    def collect(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        for parameter in filter(None, (this.input, this.output)):
            if given.get(parameter) is None:
                what = f"dist.{name} without {parameter}"
                raise NotSupported(what, "give it on each device: all devices run one program")
        read, output = given[this.input], given.get(this.output)
        several = isinstance(read, (list, tuple))
        tensors, axis = read if several else [read], find_axis(given.get("group"))
        is_list = False

        def choose(*names: str) -> Any:
            return next((given[n] for n in names if given.get(n) is not None), None)

        def on_arrays(*arrays: Any) -> tuple[Any, ...]:
            is_mask = all(a.dtype == bool for a in arrays)
            arrays = tuple(a.astype(jnp.int32) for a in arrays) if is_mask else arrays
            space = {
                "X": list(arrays) if several else arrays[0],
                "AXIS": axis,
                "LIKE": jax.ShapeDtypeStruct(output.shape, output.dtype.array) if isinstance(output, Tensor) else None,
                "OP": (choose("op", "reduceOp") or "sum",),
                "DEVICE": find_index(choose("src", "dst"), choose("group_src", "group_dst")),
                "SIZES": (choose("output_split_sizes"), choose("input_split_sizes")),
                "DIM": (choose("gather_dim", "scatter_dim") or 0,),
            }
            found = eval(expression, {**vars(collectives), "stack": jnp.stack}, space)
            nonlocal is_list
            is_list = isinstance(found, list)
            return tuple(a != 0 if is_mask else a for a in (found if is_list else [found]))

        values = compute(on_arrays, [t.value for t in tensors], node_name)
        if output is not None and this.output:
            _write_all(output if isinstance(output, (list, tuple)) else [output], values)
            return Work() if given.get("async_op") else None
        made = tuple(make(v, tensors[0].dtype) for v in values)
        return made if is_list else made[0]

    collect.__name__ = collect.__qualname__ = name
    return collect


def _write_all(targets: Sequence[Tensor], values: Sequence[Value]) -> None:
    """Write a value to each tensor; PyTorch wants tensors whose memory is not the same."""
    merged: list[tuple[Merged, Value]] = []
    for target, value in zip(targets, values, strict=True):
        write(target, value)
        if isinstance(target.memory, Merged):
            merged.append((target.memory, target.memory.value))
    for memory, value in merged:  # `parts[rank] = x`: what was written to x for one of them is not in the others
        memory.hold(value)


for _name, _line in (COLLECTIVES | OTHERS).items():
    _space, _, _last = _name.rpartition(".")
    _spaces = {"": ("", "distributed_c10d"), "nn": ("nn", "nn.functional")}.get(_space, (_space,))
    for _space in _spaces:
        KNOWN[".".join(filter(None, ("torch.distributed", _space, _last)))] = _make(_last, _line)


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
    KNOWN |= {f"{_space}.{name}": value for name, value in _OTHERS.items()}
KNOWN["torch.distributed.axis"] = default_axis
for _space in ("torch.distributed", "torch.distributed.device_mesh"):
    KNOWN |= {
        f"{_space}.DeviceMesh": DeviceMesh,
        f"{_space}.init_device_mesh": lambda device_type, mesh_shape=None, **named: DeviceMesh(device_type, **named),
    }
KNOWN |= dict.fromkeys(("torch.distributed.tensor.DTensor", "torch.distributed._tensor.DTensor"), DTensor)
KNOWN["torch.distributed._functional_collectives.wait_tensor"] = lambda tensor: tensor
