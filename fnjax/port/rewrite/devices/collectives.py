"""Collectives of torch.distributed.

What: they become those of fnjax.collectives, which are jax.lax's; what they write to takes the result. Handles are
None, and what waits for them goes, as barriers, streams and events do.
Before: `handle = dist.all_reduce(x, group=group, async_op=True)` and `handle.wait()`
After: `x = collectives.all_reduce(x, group or AXIS_NAME)` and `handle = None`
Safety: the table of calls is torch's, by qualified name; what is not in it is a finding. Parts of unequal sizes are an
error when the port runs.
Limits: gather and scatter to or from one process, collectives of objects, and send and recv that are no pair in lines
one behind the other.
"""

from __future__ import annotations

import re
from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.registry import expression, statement
from fnjax.port.analysis.walk import Statements, Stop, Term, Uncompressed, Walk, assign, parse
from fnjax.port.known.facts import LIST, STATIC, UNKNOWN, Value, places
from fnjax.port.rewrite.devices.groups import axis, distributed
from fnjax.port.rewrite.memory.sharing import holding
from fnjax.port.rewrite.memory.writing import never_owned, write
from fnjax.port.torch import MISSING, code, fit, literal
from fnjax.port.tree.located import nodes

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
_SIGNATURES = {
    "all_reduce": "tensor op group async_op",
    "reduce": "tensor dst op group async_op group_dst",
    "broadcast": "tensor src group async_op group_src",
    "all_gather": "tensor_list tensor group async_op",
    "all_gather_into_tensor": "output_tensor input_tensor group async_op",
    "reduce_scatter": "output input_list op group async_op",
    "reduce_scatter_tensor": "output input op group async_op",
    "all_to_all": "output_tensor_list input_tensor_list group async_op",
    "all_to_all_single": "output input output_split_sizes input_split_sizes group async_op",
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
_RENAMED = {
    "self": "tensor",
    "input": "tensor",
    "reduceOp": "op",
    "input_": "tensor",
    "output_": "output",
    "input_tensor_list": "input_list",
    "output_tensor": "output",
    "input_tensor": "input",
}
_SENDING, _RECEIVING = frozenset({"send", "isend"}), frozenset({"recv", "irecv"})
_GOING = frozenset({"barrier", "monitored_barrier", "destroy_process_group"})
_STREAMS = frozenset(
    f"torch.cuda.{n}" for n in ("Stream", "Event", "current_stream", "default_stream", "ExternalStream")
) | {"torch.Event", "torch.Stream", "torch.accelerator.current_stream"}
STREAM = "instance:torch.cuda.Stream"
_PASSING = frozenset({"contiguous", "detach"})


@statement(cst.Expr)
def alone(walk: Walk, node: cst.Expr) -> Statements | None:
    """`dist.all_reduce(x)`, `handle.wait()`, `dist.barrier()`, `stream.wait_stream(other)`."""
    call = node.value
    if not isinstance(call, cst.Call):
        return None
    if _waits(walk, call) or _streams(walk, call):
        return []
    if not walk.program.collective:
        return None
    last, _ = distributed(walk.program, walk.name_of(call.func))
    if last in _GOING:
        return []
    if last and (_SAME_NAME.get(last, last) in _SIGNATURES or last in _SENDING | _RECEIVING):
        walk.expr(call)
        return []
    return None


def _streams(walk: Walk, call: cst.Call) -> bool:
    """Whether a statement only speaks to streams and events."""
    if not isinstance(call.func, cst.Attribute):
        return False
    if call.func.attr.value == "record_stream":
        return True
    base = call.func.value
    if isinstance(base, cst.Call) and walk.name_of(base.func) in _STREAMS:
        return True
    return (
        isinstance(base, (cst.Name, cst.Attribute))
        and not walk.name_of(base)
        and (
            walk.lookup(base.value).name == STREAM
            if isinstance(base, cst.Name)
            else walk.expr(base).value.name == STREAM
        )
    )


def _waits(walk: Walk, call: cst.Call) -> bool:
    """Whether a call waits for a handle."""
    func = call.func
    if not walk.program.collective or not isinstance(func, cst.Attribute) or func.attr.value != "wait" or call.args:
        return False
    value = walk.expr(func.value).value
    if value.kind == "static" and value.literal is None:
        return True
    return value.kind in {"unknown", "static"} and not value.mixed and _is_handle(func.value)


def _is_handle(node: cst.BaseExpression) -> bool:
    text = code(node).lower().rpartition(".")[2]
    return any(w in text for w in ("handle", "work", "req", "fut", "async"))


@expression(cst.Call)
def streams(walk: Walk, node: cst.Call) -> Term | None:
    """`torch.cuda.Stream()`, and the device as an argument."""
    name = walk.name_of(node.func)
    if name in _STREAMS:
        return Term(parse("None"), Value("static", name=STREAM))
    if name == "torch.cuda.current_device" and _as_device(walk, node):
        return Term(parse("None"), Value("static", name="instance:torch.device"))
    if re.search(r"\bget_global_memory_buffer(__\w+)?\(\)\.get_tensor$", code(node.func)) and len(node.args) >= 2:
        size, dtype = (code(fit(walk.expr(a.value).node, 1)) for a in node.args[:2])
        walk.sink.imports.add("jnp")
        return Term(parse(f"jnp.empty({size}, {dtype})"), Value("tensor", place=walk.fresh(node), rows=2))
    return None


def _as_device(walk: Walk, node: cst.Call) -> bool:
    """Whether a device is only asked for as an argument of that name, or kept under it."""
    for n in nodes(walk.routine.node):
        if isinstance(n, cst.Arg) and n.value is node:
            return n.keyword is not None and n.keyword.value == "device"
        if isinstance(n, cst.Assign) and n.value is node:
            return all("device" in code(t.target) for t in n.targets)
    return False


@expression(cst.Call)
def waited(walk: Walk, node: cst.Call) -> Term | None:
    """`handle.wait()` inside an expression; what a functional collective gives waits for itself."""
    func = node.func
    if walk.program.collective and isinstance(func, cst.Attribute) and func.attr.value == "wait" and not node.args:
        result = walk.expr(func.value)
        if result.value.is_tensor:
            return result
    return Term(parse("None"), Value("static", literal=None)) if _waits(walk, node) else None


@expression(cst.Call)
def collective(walk: Walk, node: cst.Call) -> Term | None:
    """A call of torch.distributed."""
    if not walk.program.collective:
        return None
    name = walk.name_of(node.func)
    last, returning = distributed(walk.program, name)
    last = _SAME_NAME.get(last, last)
    if not last:
        return None
    table = (_RETURNING | (_NN if ".nn." in name else {})) if returning else _SIGNATURES
    if last in _SENDING | _RECEIVING | {"P2POp"} and not returning:
        return _point_to_point(walk, node, last)
    if last == "batch_isend_irecv" and not returning:
        return Term(parse("[]"), Value("static", name=LIST, parts=()))
    if last not in table:
        if last in _GOING:
            return Term(parse("None"), STATIC)
        if name.startswith("torch."):
            return None
        raise Stop(node, "absent", f"{name} is a collective, or a part of one, that the porter knows no way to write")
    given = _bound(node, table[last].split())
    return _returned(walk, node, last, given) if returning else _written(walk, node, last, given)


def _point_to_point(walk: Walk, node: cst.Call, last: str) -> Term:
    """A send is nothing by itself; what is received is what the sender's own call of the pair has sent."""
    handle = Term(parse("None"), Value("static", literal=None))
    own = _exchange(walk, node)
    if own is None:
        raise Stop(node, "absent", f"{last} of what the porter does not know")
    if not own[0]:
        return handle
    block = next((b for b in nodes(walk.routine.node) if isinstance(b, cst.IndentedBlock) and _directly(b, node)), None)
    calls = [c for s in (block.body if block is not None else ()) for c in nodes(s) if isinstance(c, cst.Call)]
    around = [(c, e) for c in calls if _directly(block, c) and (e := _exchange(walk, c)) is not None]
    received, sent = ([x for x in around if x[1][0] is kind] for kind in (True, False))
    inside = [c for c in nodes(walk.routine.node) if isinstance(c, cst.Call) and _exchange(walk, c) is not None]
    if len(received) != len(sent) or len(inside) != len(around) or walk.here.loops:
        message = "send and recv that are no pair in lines one behind the other: write collectives.permute by hand"
        raise Stop(node, "absent", message)
    index = next(i for i, x in enumerate(received) if x[0] is node)
    _, buffer, source, group = own
    other = sent[index][1]
    what = _memory(other[1])
    if not isinstance(what, (cst.Name, cst.Attribute)) or walk.expr(what).value.kind == "static":
        raise Stop(node, "absent", f"what is sent, {code(other[1])}, is to have a name before recv")
    new = f"collectives.permute({_text(walk, what)}, {_text(walk, source)}, {axis(walk, group)})"
    _take(walk, node, buffer, new)
    return handle


_Exchange = tuple[bool, cst.BaseExpression, cst.BaseExpression, cst.BaseExpression | None]


def _exchange(walk: Walk, node: cst.Call) -> _Exchange | None:
    """Of a send or a recv: whether it receives, the tensor, the other side's rank and the group."""
    last, returning = distributed(walk.program, walk.name_of(node.func))
    plain = [a for a in node.args if a.keyword is None]
    named = {a.keyword.value: a.value for a in node.args if a.keyword is not None}
    if last == "P2POp" and plain:
        last, returning = distributed(walk.program, walk.name_of(plain.pop(0).value))
    if returning or last not in _SENDING | _RECEIVING:
        return None
    given = dict(zip(("tensor", "peer", "group"), (a.value for a in plain), strict=False)) | named
    peer = next((given[k] for k in ("peer", "src", "dst", "group_src", "group_dst", "group_peer") if k in given), None)
    if peer is None or "tensor" not in given:
        return None
    return last in _RECEIVING, given["tensor"], peer, given.get("group")


def _directly(block: cst.IndentedBlock | None, node: cst.CSTNode) -> bool:
    """Whether a node stands in a line of a block, and not in a block inside it."""
    lines = [s for s in (block.body if block is not None else ()) if isinstance(s, cst.SimpleStatementLine)]
    return any(n is node for s in lines for n in nodes(s))


def _bound(node: cst.Call, names: list[str]) -> dict[str, cst.BaseExpression]:
    found: dict[str, cst.BaseExpression] = {}
    places_ = [a for a in node.args if a.keyword is None]
    if any(a.star for a in node.args) or len(places_) > len(names):
        raise Stop(node, "operation", f"{code(node.func)}: arguments that do not fit its signature")
    for name, arg in zip(names, places_, strict=False):
        found[name] = arg.value
    for arg in node.args:
        if arg.keyword is not None:
            key = arg.keyword.value
            key = key if key in names else _RENAMED.get(key, key)
            key = {"output": "output_tensor", "input": "input_tensor"}.get(key, key) if key not in names else key
            if key not in names and key not in {"tag", "async_op"}:
                raise Stop(node, "operation", f"{code(node.func)} has no parameter {key}")
            found[key] = arg.value
    return found


def _text(walk: Walk, node: cst.BaseExpression) -> str:
    term = walk.expr(node)
    if term.value.mask:
        raise Uncompressed
    return code(fit(term.node, 1))


def _operation(walk: Walk, given: dict[str, cst.BaseExpression]) -> str:
    """`, 'max'`, or nothing for a sum."""
    node = given.get("op")
    text = _text(walk, node) if node is not None else "'sum'"
    known = literal(parse(text))
    if isinstance(known, str) and known not in {"sum", "max", "min", "avg", "product"}:
        assert node is not None
        raise Stop(node, "absent", f"a reduction with {known}: compute it from all_gather")
    return "" if known == "sum" else f", {text}"


def _source(walk: Walk, node: cst.Call, given: dict[str, cst.BaseExpression]) -> str:
    """The place along the axis from which a broadcast comes."""
    if "group_src" in given:
        return _text(walk, given["group_src"])
    src = given.get("src") or cst.Integer("0")
    group = given.get("group")
    known = isinstance(src, cst.Call) and ("get_global_rank" in code(src.func) or code(src.func).endswith("_src_rank"))
    if group is not None and literal(group) is not None and not known:
        message = (
            "src is a rank of the world, which need not be a place of the axis: pass group_src, or dist.get_global_rank"
        )
        raise Stop(node, "absent", f"broadcast in a group: {message}")
    return _text(walk, src)


def _written(walk: Walk, node: cst.Call, last: str, given: dict[str, cst.BaseExpression]) -> Term:
    """A collective that writes into an argument; it gives its handle, None."""
    g = axis(walk, given.get("group"))
    match last:
        case "all_reduce" | "reduce":
            target = given["tensor"]
            new = f"collectives.all_reduce({_text(walk, _memory(target))}, {g}{_operation(walk, given)})"
        case "broadcast":
            target = given["tensor"]
            new = f"collectives.broadcast({_text(walk, _memory(target))}, {_source(walk, node, given)}, {g})"
        case "all_gather":
            new = f"collectives.all_gather({_text(walk, given['tensor'])}, {g})"
            return _into_list(walk, node, given["tensor_list"], given["tensor"], new, g)
        case "all_to_all":
            new = f"collectives.all_to_all({_text(walk, given['input_tensor_list'])}, {g})"
            return _into_list(walk, node, given["output_tensor_list"], None, new, g)
        case "all_gather_into_tensor":
            target = given["output_tensor"]
            new = f"collectives.gather_as({_text(walk, _memory(target))}, {_text(walk, given['input_tensor'])}, {g})"
        case "reduce_scatter" | "reduce_scatter_tensor":
            target = given["output"]
            source = given["input_list" if last == "reduce_scatter" else "input"]
            op = _operation(walk, given)
            new = f"collectives.scatter_as({_text(walk, _memory(target))}, {_text(walk, source)}, {g}{op})"
        case _:
            target = given["output"]
            new = f"collectives.all_to_all({_text(walk, given['input'])}, {g}{_sizes(walk, given)})"
            new = f"{new}.reshape({_text(walk, _memory(target))}.shape)"
    _take(walk, node, target, new)
    return Term(parse("None"), Value("static", literal=None))


def _sizes(walk: Walk, given: dict[str, cst.BaseExpression]) -> str:
    found = [_text(walk, given[n]) if n in given else "None" for n in ("output_split_sizes", "input_split_sizes")]
    return "" if found == ["None", "None"] else f", {found[0]}, {found[1]}"


def _memory(node: cst.BaseExpression) -> cst.BaseExpression:
    """What is written to: `x` for `x.contiguous()` and `x.data`, which share its memory."""
    while True:
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and not node.args:
            if node.func.attr.value in _PASSING:
                node = node.func.value
                continue
        elif isinstance(node, cst.Attribute) and node.attr.value == "data":
            node = node.value
            continue
        return node


def _take(walk: Walk, node: cst.Call, target: cst.BaseExpression, new: str) -> None:
    inner = _memory(target)
    term = walk.expr(inner)
    if term.value.kind == "static":
        raise Stop(node, "alias", f"{code(target)} is no array that a collective could write to: give it a name first")
    never_owned(node, term)
    known = replace(term.value, kind="tensor", number="", literal=MISSING)
    write(walk, node, term, parse(new), known)


def _into_list(
    walk: Walk, node: cst.Call, target: cst.BaseExpression, source: cst.BaseExpression | None, new: str, g: str
) -> Term:
    """A collective that fills the tensors of a list: the list is made anew."""
    handle = Term(parse("None"), Value("static", literal=None))
    if not isinstance(target, cst.Name) or target.value not in walk.state.variables:
        raise Stop(node, "alias", f"this fills the tensors of {code(target)}: give the list a name first")
    known = walk.state.variables[target.value]
    whole = _whole_of(walk, target.value)
    if whole is not None and source is not None:
        _take(walk, node, whole, f"collectives.gather_as({_text(walk, whole)}, {_text(walk, source)}, {g})")
        return handle
    for place in places(known):
        seen = [n for n in holding(walk, place) if n != target.value and walk.live(n, node)]
        if seen:
            message = f"this writes to {seen[0]!r}, of which the list holds views: read the list instead"
            raise Stop(node, "alias", message)
    if walk.here.conditional:
        raise Stop(node, "alias", "a collective inside an expression that may not be evaluated")
    walk.before.append(assign(target.value, parse(new)))
    of = walk.expr(source).value if source is not None else UNKNOWN
    element = Value("tensor", of.dtype, of.rank, place=replace(walk.fresh(node), certain=False), exact=of.exact)
    walk.bind(target.value, Value("static", name=LIST, element=element), node)
    return handle


def _whole_of(walk: Walk, name: str) -> cst.BaseExpression | None:
    """The tensor of which a list holds parts along its first dimension: `list(torch.split(output, sizes))`."""
    given = walk.routine.given.get(name, ())
    if len(given) != 1:
        return None
    call = given[0]
    if isinstance(call, cst.Call) and code(call.func) in {"list", "tuple"} and len(call.args) == 1:
        call = call.args[0].value
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return None
    if call.func.attr.value not in {"split", "chunk", "unbind", "tensor_split"}:
        return None
    of_torch = bool(walk.name_of(call.func))
    args = list(call.args)
    whole = args.pop(0).value if of_torch and args else call.func.value
    rest = {a.keyword.value: a.value for a in args if a.keyword}
    plain = [a.value for a in args if a.keyword is None]
    dim = rest.get("dim", plain[-1] if len(plain) == (1 if call.func.attr.value == "unbind" else 2) else None)
    if dim is not None and literal(dim) != 0:
        return None
    return whole if isinstance(whole, cst.Name) else None


def _returned(walk: Walk, node: cst.Call, last: str, given: dict[str, cst.BaseExpression]) -> Term:
    """A collective that returns its result."""
    x = _text(walk, given["tensor"])
    of = walk.expr(given["tensor"]).value
    value = Value("tensor", of.dtype, of.rank, place=walk.fresh(node), exact=of.exact)
    if last == "wait_tensor":
        return walk.expr(given["tensor"])
    g = axis(walk, given.get("group"))
    match last:
        case "all_reduce":
            return Term(parse(f"collectives.all_reduce({x}, {g}{_operation(walk, given)})"), value)
        case "all_gather":
            parts = Value("static", element=replace(value, place=replace(value.place, certain=False)))  # type: ignore[type-var] # fresh
            return Term(parse(f"collectives.all_gather({x}, {g})"), parts)
        case "all_gather_tensor":
            return Term(parse(f"collectives.all_gather_into({x}, {g}, {_text(walk, given['gather_dim'])})"), value)
        case "reduce_scatter_tensor":
            op = _operation(walk, given) or ", 'sum'"
            return Term(parse(f"collectives.reduce_scatter({x}, {g}{op}, {_text(walk, given['scatter_dim'])})"), value)
        case "reduce_scatter":
            out = _text(walk, given["output"])
            return Term(parse(f"collectives.scatter_as({out}, {x}, {g}{_operation(walk, given)})"), value)
        case "broadcast":
            return Term(parse(f"collectives.broadcast({x}, {_source(walk, node, given)}, {g})"), value)
        case "all_to_all":
            return Term(parse(f"collectives.all_to_all({x}, {g})"), Value("static", element=value))
    return Term(parse(f"collectives.all_to_all({x}, {g}{_sizes(walk, given)})"), value)
