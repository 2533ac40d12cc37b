"""Sends and receives.

What: what is received is what the sender's own call of the pair has sent.
Before: `dist.send(x, right)` and `dist.recv(y, left)`, also in a list of P2POp
After: `y = collectives.permute(x, left, axis)`; of several sends the port finds the one that goes to this device
Safety: as many sends as receives in lines of one block, in a function without others; variables stay as they are.
Limits: any other is a finding.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop, parse
from fnjax.port.analysis.registry import call_of
from fnjax.port.known.facts import LIST, Value
from fnjax.port.rewrite.devices.collectives import EXCHANGES
from fnjax.port.rewrite.devices.groups import HANDED_ON, name_distributed, write_axis
from fnjax.port.rewrite.devices.outputs import find_memory, write_argument, write_result
from fnjax.port.torch import unparse
from fnjax.port.torch.expressions import find_names
from fnjax.port.tree.located import list_nodes

_RECEIVING = frozenset({"recv", "irecv"})
_Exchange = tuple[bool, cst.BaseExpression, cst.BaseExpression, cst.BaseExpression | None]


@call_of("torch.distributed.", like=HANDED_ON, only="collective")
def port_exchange(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `dist.send(x, right)`, `dist.P2POp(dist.irecv, y, left)` and `dist.batch_isend_irecv(ops)`."""
    last, returning = name_distributed(ev.program, name)
    if last in EXCHANGES | {"P2POp"} and not returning:
        return _port_point_to_point(ev, node, last)
    if last == "batch_isend_irecv" and not returning:
        return Expr(parse("[]"), Value("static", name=LIST, parts=()))
    return None


def _port_point_to_point(ev: Evaluator, node: cst.Call, last: str) -> Expr:
    """Translate a pair: a send is nothing by itself; a receive returns what the sender's own call has sent."""
    handle = Expr(parse("None"), Value("static", literal=None))
    own = _read_exchange(ev, node)
    if own is None:
        raise Stop(node, "absent", f"{last} of what the porter does not know")
    block = next(
        (b for b in list_nodes(ev.routine.node) if isinstance(b, cst.IndentedBlock) and _stands_directly_in(b, node)),
        None,
    )
    calls = [c for s in (block.body if block is not None else ()) for c in list_nodes(s) if isinstance(c, cst.Call)]
    around = [(c, e) for c in calls if _stands_directly_in(block, c) and (e := _read_exchange(ev, c)) is not None]
    received, sent = ([x for x in around if x[1][0] is kind] for kind in (True, False))
    inside = [c for c in list_nodes(ev.routine.node) if isinstance(c, cst.Call) and _read_exchange(ev, c) is not None]
    if len(received) != len(sent) or len(inside) != len(around) or ev.here.loops:
        message = "send and recv that are no pair in lines one behind the other: write collectives.permute by hand"
        raise Stop(node, "absent", message)
    buffers = frozenset().union(*(find_names(e[1]) for _, e in received))
    _check_unchanged(ev, node, around, buffers)
    if not own[0]:
        return handle
    _, buffer, source, group = own
    # What is received before it is sent cannot be sent on, so those sends are not meant.
    before = [c for c, _ in around[: [c for c, _ in around].index(node)]]
    meant = [e for c, e in sent if c in before or not find_names(e[1]) & buffers]
    sends = []
    for _, tensor, peer, _ in meant:
        what = find_memory(tensor)
        if not isinstance(what, (cst.Name, cst.Attribute)) or ev.port(what).value.kind == "static":
            raise Stop(node, "absent", f"what is sent, {unparse(tensor)}, is to have a name before recv")
        sends.append((write_argument(ev, what), write_argument(ev, peer)))
    memref, axis = write_argument(ev, source), write_axis(ev, group)
    if len(sends) == 1:
        new = f"collectives.permute({sends[0][0]}, {memref}, {axis})"
    else:
        earlier = [_write_receive(ev, e) for c, e in received if c in before]
        taken = [_write_pairs(earlier)] if earlier else []
        like, _ = _write_receive(ev, own)
        new = f"collectives.receive({', '.join([like, memref, _write_pairs(sends), axis, *taken])})"
    write_result(ev, node, buffer, new)
    return handle


def _write_receive(ev: Evaluator, own: _Exchange) -> tuple[str, str]:
    return write_argument(ev, find_memory(own[1])), write_argument(ev, own[2])


def _write_pairs(pairs: list[tuple[str, str]]) -> str:
    return "[{}]".format(", ".join(f"({x}, {memref})" for x, memref in pairs))


def _check_unchanged(
    ev: Evaluator, node: cst.Call, around: list[tuple[cst.Call, _Exchange]], buffers: frozenset[str]
) -> None:
    """Refuse variables that are written between the sends and receives of a block: all is read where they begin.

    Of what was received only that which is sent on is read later, where it is sent.
    """
    here = [c for c, _ in around].index(node)
    for at, (call, (receives, tensor, peer, _)) in enumerate(around):
        reads = ev.list_reads(peer) if receives else ev.list_reads(tensor) | ev.list_reads(peer)
        begins = at if not receives and find_names(tensor) & buffers else 0
        if here == begins:
            ev.substitutes["exchange", call] = reads
        elif here > begins and ev.substitutes["exchange", call] != reads:
            changed = sorted({name for name, _ in reads ^ ev.substitutes["exchange", call]})
            message = f"{' and '.join(changed)} changes between send and recv: give what is sent a name of its own"
            raise Stop(node, "absent", message)


def _read_exchange(ev: Evaluator, node: cst.Call) -> _Exchange | None:
    """Of a send or a recv: whether it receives, the tensor, the other side's rank and the group."""
    last, returning = name_distributed(ev.program, ev.find_name(node.func))
    plain = [a for a in node.args if a.keyword is None]
    named = {a.keyword.value: a.value for a in node.args if a.keyword is not None}
    if last == "P2POp" and plain:
        last, returning = name_distributed(ev.program, ev.find_name(plain.pop(0).value))
    if returning or last not in EXCHANGES:
        return None
    given = dict(zip(("tensor", "peer", "group"), (a.value for a in plain), strict=False)) | named
    peer = next((given[k] for k in ("peer", "src", "dst", "group_src", "group_dst", "group_peer") if k in given), None)
    if peer is None or "tensor" not in given:
        return None
    return last in _RECEIVING, given["tensor"], peer, given.get("group")


def _stands_directly_in(block: cst.IndentedBlock | None, node: cst.CSTNode) -> bool:
    """Return whether a node stands in a line of a block, and not in a block inside it."""
    lines = [s for s in (block.body if block is not None else ()) if isinstance(s, cst.SimpleStatementLine)]
    return any(n is node for s in lines for n in list_nodes(s))
