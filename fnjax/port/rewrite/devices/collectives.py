"""Collectives of torch.distributed.

What: they become those of fnjax.collectives, which are jax.lax's; what they write to takes the result. Handles are
None, and what waits for them goes, as barriers, streams and events do.
Before: `handle = dist.all_reduce(x, group=group, async_op=True)` and `handle.wait()`
After: `x = collectives.all_reduce(x, group or AXIS_NAME)` and `handle = None`
Safety: the table of calls is torch's, by qualified name; what is not in it is a finding. Parts of unequal sizes are an
error when the port runs.
Limits: gather and scatter to or from one process, collectives of objects, and send and recv that are no pair in lines
one after the other.
"""

from __future__ import annotations

import re
from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements, Stop, parse
from fnjax.port.analysis.registry import call_of, statement
from fnjax.port.known.facts import STATIC, Value
from fnjax.port.rewrite.devices.groups import HANDED_ON, name_distributed, write_axis
from fnjax.port.rewrite.devices.outputs import (
    SIGNATURES,
    bind_collective_arguments,
    fill_list,
    find_memory,
    write_argument,
    write_operation,
    write_result,
)
from fnjax.port.torch import bracket, read_literal, unparse
from fnjax.port.tree.located import list_nodes

_SAME_NAME = {
    "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "_all_gather_into_tensor": "all_gather_into_tensor",
    "allgather_fn": "all_gather_into_tensor",
    "reduce_scatter_fn": "reduce_scatter_tensor",
    "reduce_scatter_tensor_autograd": "reduce_scatter_tensor",
    "all_gather_tensor_autograd": "all_gather_tensor",
    "all_to_all_single_autograd": "all_to_all_single",
    "inference_all_reduce": "all_reduce",
}
_RETURNING = {
    "all_reduce": "tensor op group",
    "all_gather": "tensor group",
    "all_gather_tensor": "tensor gather_dim group",
    "reduce_scatter_tensor": "tensor op scatter_dim group",
    "all_to_all_single": "tensor output_split_sizes input_split_sizes group",
    "broadcast": "tensor src group",
    "wait_tensor": "tensor",
}
_NN = {  # of torch.distributed.nn.functional, where they differ from those above
    "all_to_all_single": "output tensor output_split_sizes input_split_sizes group",
    "all_to_all": "output_tensor_list tensor group",
    "reduce_scatter": "output tensor op group",
}
_GOING = frozenset({"barrier", "monitored_barrier", "destroy_process_group"})
EXCHANGES = frozenset({"send", "isend", "recv", "irecv"})
_STREAMS = frozenset(
    f"torch.cuda.{n}" for n in ("Stream", "Event", "current_stream", "default_stream", "ExternalStream")
) | {"torch.Event", "torch.Stream", "torch.accelerator.current_stream"}
STREAM = "instance:torch.cuda.Stream"


@statement(cst.Expr)
def port_collective_statement(ev: Evaluator, node: cst.Expr) -> Statements | None:
    """Translate `dist.all_reduce(x)`, `handle.wait()`, `dist.barrier()`, `stream.wait_stream(other)`."""
    call = node.value
    if not isinstance(call, cst.Call):
        return None
    if _waits_for_handle(ev, call) or _only_speaks_to_streams(ev, call):
        return []
    if not ev.program.collective:
        return None
    last, _ = name_distributed(ev.program, ev.find_name(call.func))
    if last in _GOING:
        return []
    if last and (_SAME_NAME.get(last, last) in SIGNATURES or last in EXCHANGES):
        ev.port(call)
        return []
    return None


def _only_speaks_to_streams(ev: Evaluator, call: cst.Call) -> bool:
    """Return whether a statement only speaks to streams and events."""
    if not isinstance(call.func, cst.Attribute):
        return False
    if call.func.attr.value == "record_stream":
        return True
    base = call.func.value
    if isinstance(base, cst.Call) and ev.find_name(base.func) in _STREAMS:
        return True
    return (
        isinstance(base, (cst.Name, cst.Attribute))
        and not ev.find_name(base)
        and (
            ev.look_up(base.value).name == STREAM if isinstance(base, cst.Name) else ev.port(base).value.name == STREAM
        )
    )


def _waits_for_handle(ev: Evaluator, call: cst.Call) -> bool:
    """Return whether a call waits for a handle."""
    func = call.func
    if not ev.program.collective or not isinstance(func, cst.Attribute) or func.attr.value != "wait" or call.args:
        return False
    value = ev.port(func.value).value
    if value.kind == "static" and value.literal is None:
        return True
    return value.kind in {"unknown", "static"} and not value.origin.mixed and _is_handle(func.value)


def _is_handle(node: cst.BaseExpression) -> bool:
    text = unparse(node).lower().rpartition(".")[2]
    return any(w in text for w in ("handle", "work", "req", "fut", "async"))


@call_of(*_STREAMS, "torch.cuda.current_device", "*.get_tensor")
def port_stream_call(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """`torch.cuda.Stream()`, and the device as an argument: code that overlaps collectives with computation."""
    if name in _STREAMS:
        return Expr(parse("None"), Value("static", name=STREAM))
    if name == "torch.cuda.current_device" and _is_device_argument(ev, node):
        return Expr(parse("None"), Value("static", name="instance:torch.device"))
    if re.search(r"\bget_global_memory_buffer(__\w+)?\(\)\.get_tensor$", unparse(node.func)) and len(node.args) >= 2:
        size, dtype = (unparse(bracket(ev.port(a.value).node, 1)) for a in node.args[:2])
        ev.diagnostics.imports.add("jnp")
        return Expr(parse(f"jnp.empty({size}, {dtype})"), Value("tensor", memref=ev.make_memref(node), rows=2))
    return None


def _is_device_argument(ev: Evaluator, node: cst.Call) -> bool:
    """Return whether a device is only asked for as an argument of that name, or kept under it."""
    for n in list_nodes(ev.routine.node):
        if isinstance(n, cst.Arg) and n.value is node:
            return n.keyword is not None and n.keyword.value == "device"
        if isinstance(n, cst.Assign) and n.value is node:
            return all("device" in unparse(t.target) for t in n.targets)
    return False


@call_of("*.wait", only="collective")
def port_wait(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """`handle.wait()` inside an expression, as code with `async_op=True` has it; functional collectives need none."""
    if not node.args:
        result = ev.port(node.func.value)  # type: ignore[attr-defined] # of a method
        if result.value.is_tensor:
            return result
    return Expr(parse("None"), Value("static", literal=None)) if _waits_for_handle(ev, node) else None


@call_of("torch.distributed.", like=HANDED_ON, only="collective")
def port_collective(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Return a call of torch.distributed."""
    last, returning = name_distributed(ev.program, name)
    last = _SAME_NAME.get(last, last)
    if not last:
        return None
    table = (_RETURNING | (_NN if ".nn." in name else {})) if returning else SIGNATURES
    if last not in table:
        if last in _GOING:
            return Expr(parse("None"), STATIC)
        if name.startswith("torch."):
            return None
        raise Stop(node, "absent", f"{name} is a collective, or a part of one, that the porter knows no way to write")
    given = bind_collective_arguments(node, table[last].split())
    return (
        _port_returning_collective(ev, node, last, given)
        if returning
        else _port_writing_collective(ev, node, last, given)
    )


def _find_source(ev: Evaluator, node: cst.Call, given: dict[str, cst.BaseExpression]) -> str:
    """Return the place along the axis from which a broadcast comes."""
    if "group_src" in given:
        return write_argument(ev, given["group_src"])
    src = given.get("src") or cst.Integer("0")
    group = given.get("group")
    known = isinstance(src, cst.Call) and (
        "get_global_rank" in unparse(src.func) or unparse(src.func).endswith("_src_rank")
    )
    if group is not None and read_literal(group) is not None and not known:
        message = (
            "src is a rank of the world, which need not be a place of the axis: pass group_src, or dist.get_global_rank"
        )
        raise Stop(node, "absent", f"broadcast in a group: {message}")
    return write_argument(ev, src)


def _port_writing_collective(ev: Evaluator, node: cst.Call, last: str, given: dict[str, cst.BaseExpression]) -> Expr:
    """Return a collective that writes into an argument; it gives its handle, None."""
    g = write_axis(ev, given.get("group"))
    match last:
        case "all_reduce" | "reduce":
            target = given["tensor"]
            x, op = write_argument(ev, find_memory(target)), write_operation(ev, given)
            new = f"collectives.all_reduce({x}, {g}{op})"
        case "broadcast":
            target = given["tensor"]
            x = write_argument(ev, find_memory(target))
            new = f"collectives.broadcast({x}, {_find_source(ev, node, given)}, {g})"
        case "all_gather":
            new = f"collectives.all_gather({write_argument(ev, given['tensor'])}, {g})"
            return fill_list(ev, node, given["tensor_list"], given["tensor"], new, g)
        case "all_to_all":
            new = f"collectives.all_to_all({write_argument(ev, given['input_tensor_list'])}, {g})"
            return fill_list(ev, node, given["output_tensor_list"], None, new, g)
        case "all_gather_into_tensor":
            target = given["output_tensor"]
            like, x = write_argument(ev, find_memory(target)), write_argument(ev, given["input_tensor"])
            new = f"collectives.gather_as({like}, {x}, {g})"
        case "reduce_scatter" | "reduce_scatter_tensor":
            target = given["output"]
            source = given["input_list" if last == "reduce_scatter" else "input"]
            like, x = write_argument(ev, find_memory(target)), write_argument(ev, source)
            new = f"collectives.scatter_as({like}, {x}, {g}{write_operation(ev, given)})"
        case _:
            target = given["output"]
            new = f"collectives.all_to_all({write_argument(ev, given['input'])}, {g}{_write_sizes(ev, given)})"
            new = f"{new}.reshape({write_argument(ev, find_memory(target))}.shape)"
    write_result(ev, node, target, new)
    return Expr(parse("None"), Value("static", literal=None))


def _write_sizes(ev: Evaluator, given: dict[str, cst.BaseExpression]) -> str:
    found = [
        write_argument(ev, given[n]) if n in given else "None" for n in ("output_split_sizes", "input_split_sizes")
    ]
    return "" if found == ["None", "None"] else f", {found[0]}, {found[1]}"


def _port_returning_collective(ev: Evaluator, node: cst.Call, last: str, given: dict[str, cst.BaseExpression]) -> Expr:
    """Return a collective that returns its result."""
    x = write_argument(ev, given["tensor"])
    of = ev.port(given["tensor"]).value
    value = Value("tensor", of.dtype, of.rank, memref=ev.make_memref(node), exact=of.exact)
    if last == "wait_tensor":
        return ev.port(given["tensor"])
    g = write_axis(ev, given.get("group"))
    match last:
        case "all_reduce":
            return Expr(parse(f"collectives.all_reduce({x}, {g}{write_operation(ev, given)})"), value)
        case "all_gather":
            parts = Value("static", element=replace(value, memref=replace(value.memref, certain=False)))  # type: ignore[type-var] # fresh
            return Expr(parse(f"collectives.all_gather({x}, {g})"), parts)
        case "all_gather_tensor":
            return Expr(
                parse(f"collectives.all_gather_into({x}, {g}, {write_argument(ev, given['gather_dim'])})"), value
            )
        case "reduce_scatter_tensor":
            op = write_operation(ev, given) or ", 'sum'"
            return Expr(
                parse(f"collectives.reduce_scatter({x}, {g}{op}, {write_argument(ev, given['scatter_dim'])})"), value
            )
        case "reduce_scatter":
            out = write_argument(ev, given["output"])
            return Expr(parse(f"collectives.scatter_as({out}, {x}, {g}{write_operation(ev, given)})"), value)
        case "broadcast":
            return Expr(parse(f"collectives.broadcast({x}, {_find_source(ev, node, given)}, {g})"), value)
        case "all_to_all":
            return Expr(parse(f"collectives.all_to_all({x}, {g})"), Value("static", element=value))
    return Expr(parse(f"collectives.all_to_all({x}, {g}{_write_sizes(ev, given)})"), value)
