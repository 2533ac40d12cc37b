"""Functions of torch.distributed: the parameters that they read and write, and the calls that replace them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective.

    Attributes:
        parameters: the names of its parameters, in order.
        output: the parameter that it writes to; empty for one that returns its result.
        input: the parameter that it reads.
        call: the function of fnjax.collectives and its arguments: X is the input, LIKE the old value of the output,
            DEVICE an index along the axis, and OP, SIZES and DIM the reduction, slice sizes and axis, if passed.
    """

    parameters: str
    output: str
    input: str
    call: str


_REDUCED = "all_reduce(X, AXIS, *OP)"
_SCATTERED = "scatter_as(LIKE, X, AXIS, *OP)"
_COPIED = "broadcast(X, DEVICE, AXIS)"
_GATHERED = "all_gather(X, AXIS)"
_EXCHANGED, _SLICES = "all_to_all(X, AXIS)", "all_to_all(X, AXIS, *SIZES)"
COLLECTIVES = {
    "all_reduce": Collective("tensor op group async_op", "tensor", "tensor", _REDUCED),
    "reduce": Collective("tensor dst op group async_op group_dst", "tensor", "tensor", "reduce(X, DEVICE, AXIS, *OP)"),
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
        _EXCHANGED,
    ),
    "all_to_all_single": Collective(
        "output input output_split_sizes input_split_sizes group async_op",
        "output",
        "input",
        f"{_SLICES}.reshape(LIKE.shape)",
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

_SIZES = "output_split_sizes input_split_sizes group"
# Those that no port has.
_FUNCTIONAL = {
    "all_reduce": Collective("self reduceOp group tag", "", "self", _REDUCED),
    "broadcast": Collective("self src group tag", "", "self", _COPIED),
    "all_gather_tensor": Collective("self gather_dim group tag", "", "self", "all_gather_into(X, AXIS, *DIM)"),
    "reduce_scatter_tensor": Collective(
        "self reduceOp scatter_dim group tag", "", "self", "reduce_scatter(X, AXIS, *OP, *DIM)"
    ),
    "all_to_all_single": Collective(f"self {_SIZES} tag", "", "self", _SLICES),
}
_FUNCTIONAL |= {
    "all_gather_single": _FUNCTIONAL["all_gather_tensor"],
    "reduce_scatter_single": _FUNCTIONAL["reduce_scatter_tensor"],
}
OTHERS = {
    "gather": Collective("tensor gather_list dst group async_op group_dst", "gather_list", "tensor", _GATHERED),
    "scatter": Collective(
        "tensor scatter_list src group async_op group_src",
        "tensor",
        "scatter_list",
        "broadcast(stack(X), DEVICE, AXIS)[axis_index(AXIS)]",
    ),
    "all_gather_single": COLLECTIVES["all_gather_into_tensor"],
    "reduce_scatter_single": COLLECTIVES["reduce_scatter_tensor"],
    "nn.all_to_all": Collective("output_tensor_list input_tensor_list group", "", "input_tensor_list", _EXCHANGED),
    "nn.all_to_all_single": Collective(f"output input {_SIZES}", "", "input", _SLICES),
    "nn.reduce_scatter": Collective("output input_list op group", "", "input_list", "reduce_scatter(X, AXIS, *OP)"),
    **{f"_functional_collectives.{name}": line for name, line in _FUNCTIONAL.items()},
    **{f"_functional_collectives.{name}_autograd": line for name, line in _FUNCTIONAL.items()},
}
