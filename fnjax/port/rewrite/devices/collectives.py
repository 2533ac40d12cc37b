"""Collectives of torch.distributed.

What: they become those of fnjax.collectives, which are jax.lax's; what they write to takes the result. Handles are
None, and what waits for them is dropped, as barriers, streams and events are.
Before: `handle = dist.all_reduce(x, group=group, async_op=True)` and `handle.wait()`
After: `x = collectives.all_reduce(x, group or AXIS_NAME)` and `handle = None`
Safety: the table of collectives is torch's, by qualified name; what is not in it is a finding. Slices of unequal sizes
are an error when the port runs.
Limits: sends and receives, gather and scatter to or from one process, collectives of objects and most of those that
return their result.
"""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from fnjax._torch_ops.collectives import COLLECTIVES, Collective
from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements, Stop
from fnjax.port.analysis.registry import call_of, statement
from fnjax.port.known.facts import Value
from fnjax.port.rewrite.devices.collective_table import HANDED_ON, WITHOUT_RESULT, name_distributed
from fnjax.port.rewrite.devices.groups import port_axis
from fnjax.port.rewrite.devices.outputs import (
    bind_arguments,
    find_memory,
    find_whole,
    port_argument,
    port_reduction,
    write_list,
    write_tensor,
)
from fnjax.port.torch import fill, make_list, read_literal, unparse
from fnjax.port.torch.expressions import find_names, parse_template
from fnjax.port.tree.located import list_nodes

_STREAMS = frozenset(
    f"torch.cuda.{n}" for n in ("Stream", "Event", "current_stream", "default_stream", "ExternalStream")
) | {"torch.Event", "torch.Stream", "torch.accelerator.current_stream"}
_STREAM = "instance:torch.cuda.Stream"
HANDLE = Expr(cst.Name("None"), Value("static", literal=None))


@statement(cst.Expr)
def port_collective_statement(ev: Evaluator, node: cst.Expr) -> Statements | None:
    """Translate `dist.all_reduce(x)`, `handle.wait()`, `dist.barrier()`, `stream.wait_stream(other)`."""
    call = node.value
    if not isinstance(call, cst.Call):
        return None
    if _waits_for_handle(ev, call) or _is_of_stream(ev, call.func):
        return []
    last = name_distributed(ev.find_name(call.func)) if ev.program.collective else ""
    if last in COLLECTIVES or last in WITHOUT_RESULT:
        ev.port(call)
        return []
    return None


def _is_of_stream(ev: Evaluator, method: cst.BaseExpression) -> bool:
    """Return whether this is a method of a stream or an event, or `x.record_stream`."""
    if not isinstance(method, cst.Attribute) or method.attr.value == "record_stream":
        return isinstance(method, cst.Attribute)
    base = method.value
    if isinstance(base, cst.Call):
        return ev.find_name(base.func) in _STREAMS
    if not isinstance(base, (cst.Name, cst.Attribute)) or ev.find_name(base):
        return False
    value = ev.look_up(base.value) if isinstance(base, cst.Name) else ev.port(base).value
    return value.name == _STREAM


def _waits_for_handle(ev: Evaluator, call: cst.Call) -> bool:
    """Return whether a call waits for the handle of a collective."""
    func = call.func
    if not ev.program.collective or not isinstance(func, cst.Attribute) or func.attr.value != "wait" or call.args:
        return False
    value = ev.port(func.value).value
    if value.kind == "static" and value.literal is None:
        return True
    last = unparse(func.value).lower().rpartition(".")[2]
    named = any(word in last for word in ("handle", "work", "req", "fut", "async"))
    return value.kind in {"unknown", "static"} and not value.origin.mixed and named


@call_of(*_STREAMS)
def port_stream(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `torch.cuda.Stream()`: in XLA computations overlap with collectives by themselves."""
    return Expr(cst.Name("None"), Value("static", name=_STREAM))


@call_of("torch.cuda.current_device")
def port_device_argument(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `device=torch.cuda.current_device()`, which torch's own calls drop."""
    given = any(a.value is node and a.keyword and a.keyword.value == "device" for a in list_nodes(ev.current, cst.Arg))
    return Expr(cst.Name("None"), Value("static", name="instance:torch.device")) if given else None


@call_of("torch.distributed.", like=HANDED_ON, only="collective")
def port_collective(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate a collective: what it writes to takes its result, and it returns its handle, None, or its result."""
    last = name_distributed(name)
    if last in WITHOUT_RESULT:
        return HANDLE
    if last not in COLLECTIVES:
        if not last or (name.startswith("torch.") and not last.startswith("nn.")):
            return None
        raise Stop(node, "absent", f"{name} is a collective, or a part of one, that the porter knows no way to write")
    this = COLLECTIVES[last]
    given = bind_arguments(node, this)
    whole = find_whole(ev, given["tensor_list"]) if last == "all_gather" else None
    if whole is not None:
        this = COLLECTIVES["all_gather_into_tensor"]
        given |= {this.output: whole, this.input: given["tensor"]}
    made = _make_call(ev, node, this, given)
    if not this.output:
        one = Value("tensor", memref=ev.make_memref(node))
        return Expr(made, one if last != "nn.all_gather" else Value("static", element=one))
    if this.output.endswith("_list"):
        write_list(ev, node, given[this.output], ev.port(given[this.input]).value, made)
    else:
        write_tensor(ev, node, given[this.output], made)
    return HANDLE


def _make_call(
    ev: Evaluator, node: cst.Call, this: Collective, given: dict[str, cst.BaseExpression]
) -> cst.BaseExpression:
    """Return the call that makes the result."""
    output, read = given.get(this.output), given[this.input]
    ways: dict[str, Callable[[], cst.BaseExpression]] = {
        "AXIS": lambda: port_axis(ev, given.get("group")),
        "LIKE": lambda: port_argument(ev, find_memory(output)),  # type: ignore[arg-type] # it has one
        "X": lambda: port_argument(ev, find_memory(read) if this.input == this.output else read),
        "OP": lambda: port_reduction(ev, given.get("op")),
        "DEVICE": lambda: _port_rank(ev, node, given),
        "SIZES": lambda: _port_sizes(ev, given),
    }
    template = f"collectives.{this.call}"
    named = find_names(parse_template(template))
    return fill(template, **{k: make() for k, make in ways.items() if k in named})


def _port_sizes(ev: Evaluator, given: dict[str, cst.BaseExpression]) -> cst.List:
    sizes = [given.get(n, cst.Name("None")) for n in ("output_split_sizes", "input_split_sizes")]
    made = [port_argument(ev, s) for s in sizes]
    return make_list(made if any(read_literal(m) is not None for m in made) else [])


def _port_rank(ev: Evaluator, node: cst.Call, given: dict[str, cst.BaseExpression]) -> cst.BaseExpression:
    """Return the index along the axis from which a broadcast comes, or to which a reduction goes."""
    for name in ("group_src", "group_dst"):
        if name in given:
            return port_argument(ev, given[name])
    src, group = given.get("src") or given.get("dst") or cst.Integer("0"), given.get("group")
    asked = unparse(src.func) if isinstance(src, cst.Call) else ""
    of_group = "get_global_rank" in asked or asked.endswith("_src_rank")
    if group is not None and read_literal(group) is not None and not of_group:
        message = (
            "a rank of the world, as src and dst are, need not be an index of the axis of a group: pass group_src or "
            "group_dst, or dist.get_global_rank"
        )
        raise Stop(node, "absent", message)
    return port_argument(ev, src)
