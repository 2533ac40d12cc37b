"""Names of functions of torch.distributed."""

from __future__ import annotations

from fnjax._torch_ops.collectives import COLLECTIVES

WITHOUT_RESULT = frozenset({"barrier", "monitored_barrier", "destroy_process_group"})
_OTHERS = frozenset(
    {
        *(
            "send",
            "isend",
            "recv",
            "irecv",
            "P2POp",
            "batch_isend_irecv",
            "gather",
            "scatter",
            "all_gather_object",
            "broadcast_object_list",
        ),
        *("get_rank", "get_world_size", "get_global_rank", "get_group_rank", "get_backend", "new_group"),
        *("is_initialized", "is_available"),
    }
)
_KNOWN = COLLECTIVES.keys() | WITHOUT_RESULT | _OTHERS
_MODULES = ("torch.distributed", "torch.distributed.distributed_c10d")
_HANDING_ON = ("comm", "dist", "distributed", "torch_dist", "torch_distributed")
# Functions of torch.distributed that an object of another module hands on.
HANDED_ON = rf"(?!torch\.|file:|\*)(.*\.)?({'|'.join(_HANDING_ON)})\.({'|'.join(sorted(_KNOWN))})"


def name_distributed(name: str) -> str:
    """Return the name of a function of torch.distributed without its module, or nothing."""
    module, _, last = name.rpartition(".")
    if module in {"torch.distributed.nn", "torch.distributed.nn.functional"}:
        return f"nn.{last}"  # it returns its result, and has a gradient
    handed_on = not name.startswith(("torch.", "file:")) and module.rpartition(".")[2] in _HANDING_ON
    return last if module in _MODULES or (handed_on and last in _KNOWN) else ""
