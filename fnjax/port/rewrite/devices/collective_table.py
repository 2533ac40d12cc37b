"""Functions of torch.distributed: which there are, what they read and write, and the calls that take their place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective.

    Attributes:
        parameters: the names of its parameters, in order.
        output: the parameter that it writes to; empty for one that returns its result.
        input: the parameter that it reads.
        call: the function of fnjax.collectives and its arguments: X is the input, LIKE the output as it was.
    """

    parameters: str
    output: str
    input: str
    call: str


_REDUCED = "all_reduce(X, AXIS, *OP)"
_SCATTERED = "scatter_as(LIKE, X, AXIS, *OP)"
_COPIED = "broadcast(X, SOURCE, AXIS)"
_GATHERED = "all_gather(X, AXIS)"
COLLECTIVES = {
    "all_reduce": Collective("tensor op group async_op", "tensor", "tensor", _REDUCED),
    "reduce": Collective("tensor dst op group async_op group_dst", "tensor", "tensor", _REDUCED),
    "broadcast": Collective("tensor src group async_op group_src", "tensor", "tensor", _COPIED),
    "all_gather": Collective("tensor_list tensor group async_op", "tensor_list", "tensor", _GATHERED),
    "all_gather_into_tensor": Collective(
        "output_tensor input_tensor group async_op", "output_tensor", "input_tensor", "gather_as(LIKE, X, AXIS)"
    ),
    "reduce_scatter": Collective("output input_list op group async_op", "output", "input_list", _SCATTERED),
    "reduce_scatter_tensor": Collective("output input op group async_op", "output", "input", _SCATTERED),
    "all_to_all": Collective(
        "output_tensor_list input_tensor_list group async_op",
        "output_tensor_list",
        "input_tensor_list",
        "all_to_all(X, AXIS)",
    ),
    "all_to_all_single": Collective(
        "output input output_split_sizes input_split_sizes group async_op",
        "output",
        "input",
        "all_to_all(X, AXIS, *SIZES).reshape(LIKE.shape)",
    ),
    "nn.all_reduce": Collective("tensor op group", "", "tensor", _REDUCED),
    "nn.broadcast": Collective("tensor src group", "", "tensor", _COPIED),
    "nn.all_gather": Collective("tensor group", "", "tensor", _GATHERED),
}
for _other, _name in {
    "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "allgather_fn": "all_gather_into_tensor",
    "reduce_scatter_fn": "reduce_scatter_tensor",
    "inference_all_reduce": "all_reduce",
}.items():
    COLLECTIVES[_other] = COLLECTIVES[_name]

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
