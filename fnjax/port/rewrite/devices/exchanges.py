"""Sends and receives.

What: what is received is what the sender's own call of the pair has sent.
Before: `dist.send(x, right)` and `dist.recv(y, left)`, also in a list of P2POp
After: `y = collectives.permute(x, left, axis)`; of several sends the port finds the one that goes to this device
Safety: as many sends as receives in lines of one block, in a function without others; variables stay as they are.
Limits: any other is a finding.
"""

from __future__ import annotations

from typing import NamedTuple

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop
from fnjax.port.analysis.registry import call_of
from fnjax.port.known.facts import LIST, Value
from fnjax.port.rewrite.devices.collective_table import EXCHANGES, HANDED_ON, name_distributed
from fnjax.port.rewrite.devices.collectives import HANDLE
from fnjax.port.rewrite.devices.groups import port_axis
from fnjax.port.rewrite.devices.outputs import find_memory, port_argument, write_tensor
from fnjax.port.torch import fill, make_list, unparse
from fnjax.port.torch.expressions import find_names
from fnjax.port.tree.located import list_nodes

_PEERS = ("peer", "src", "dst", "group_src", "group_dst", "group_peer")


class _Exchange(NamedTuple):
    """A send or a receive."""

    call: cst.Call
    receives: bool
    tensor: cst.BaseExpression
    peer: cst.BaseExpression
    group: cst.BaseExpression | None


@call_of("torch.distributed.", like=HANDED_ON, only="collective")
def port_exchange(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `dist.send(x, right)`, `dist.P2POp(dist.irecv, y, left)` and `dist.batch_isend_irecv(ops)`."""
    last = name_distributed(name)
    if last in EXCHANGES | {"P2POp"}:
        return _port_point_to_point(ev, node)
    return Expr(make_list([]), Value("static", name=LIST, parts=())) if last == "batch_isend_irecv" else None


def _port_point_to_point(ev: Evaluator, node: cst.Call) -> Expr:
    """Translate one of a pair: a send becomes nothing; a receive returns what the sender's own call has sent."""
    inside = _list_exchanges(ev, ev.routine.node)
    blocks = (b.body for b in list_nodes(ev.routine.node, cst.IndentedBlock))
    lines = ([s for s in b if isinstance(s, cst.SimpleStatementLine)] for b in blocks)
    found = ([e for s in b for e in _list_exchanges(ev, s)] for b in lines)
    around = next((es for es in found if any(e.call is node for e in es)), [])
    received, sent = ([e for e in around if e.receives is kind] for kind in (True, False))
    if not around or len(received) != len(sent) or len(inside) != len(around) or ev.here.loops:
        message = "send and recv that are no pair in lines one after the other: write collectives.permute by hand"
        raise Stop(node, "absent", message)
    buffers = frozenset().union(*(find_names(e.tensor) for e in received))
    at = next(i for i, e in enumerate(around) if e.call is node)
    _check_unchanged(ev, around, at, buffers)
    own, before = around[at], around[:at]
    if not own.receives:
        return HANDLE
    # What is received before it is sent cannot be sent on, so those sends are not meant.
    meant = [e for e in sent if e in before or not find_names(e.tensor) & buffers]
    unnamed = [e for e in meant if not _has_name(ev, e)]
    if unnamed:
        raise Stop(node, "absent", f"what is sent, {unparse(unnamed[0].tensor)}, is to have a name before recv")
    how = {"PEER": port_argument(ev, own.peer), "AXIS": port_axis(ev, own.group)}
    if len(meant) == 1:
        made = fill("collectives.permute(X, PEER, AXIS)", X=port_argument(ev, find_memory(meant[0].tensor)), **how)
    else:
        earlier = [_make_pairs(ev, [e for e in before if e.receives])] if any(e.receives for e in before) else []
        how |= {"LIKE": port_argument(ev, find_memory(own.tensor)), "SENT": _make_pairs(ev, meant)}
        made = fill("collectives.receive(LIKE, PEER, SENT, AXIS, *EARLIER)", EARLIER=make_list(earlier), **how)
    write_tensor(ev, node, own.tensor, made)
    return HANDLE


def _has_name(ev: Evaluator, sent: _Exchange) -> bool:
    what = find_memory(sent.tensor)
    return isinstance(what, (cst.Name, cst.Attribute)) and ev.port(what).value.kind != "static"


def _make_pairs(ev: Evaluator, exchanges: list[_Exchange]) -> cst.List:
    pairs = ((port_argument(ev, find_memory(e.tensor)), port_argument(ev, e.peer)) for e in exchanges)
    return make_list(fill("(X, PEER)", X=x, PEER=peer) for x, peer in pairs)


def _check_unchanged(ev: Evaluator, around: list[_Exchange], here: int, buffers: frozenset[str]) -> None:
    """Refuse variables that are written between the sends and receives of a block: all is read where they begin.

    Of what was received only that which is sent on is read later, where it is sent.
    """
    for at, e in enumerate(around):
        reads = ev.list_reads(e.peer) if e.receives else ev.list_reads(e.tensor) | ev.list_reads(e.peer)
        begins = at if not e.receives and find_names(e.tensor) & buffers else 0
        if here == begins:
            ev.substitutes["exchange", e.call] = reads
        elif here > begins and ev.substitutes["exchange", e.call] != reads:
            changed = sorted({name for name, _ in reads ^ ev.substitutes["exchange", e.call]})
            message = f"{' and '.join(changed)} changes between send and recv: give what is sent a name of its own"
            raise Stop(around[here].call, "absent", message)


def _list_exchanges(ev: Evaluator, node: cst.CSTNode) -> list[_Exchange]:
    """Return the sends and receives in a node."""
    found = []
    for call in list_nodes(node, cst.Call):
        last = name_distributed(ev.find_name(call.func))
        plain = [a.value for a in call.args if a.keyword is None]
        if last == "P2POp" and plain:
            last = name_distributed(ev.find_name(plain.pop(0)))
        given = dict(zip(("tensor", "peer", "group"), plain, strict=False))
        given |= {a.keyword.value: a.value for a in call.args if a.keyword is not None}
        peer = next((given[k] for k in _PEERS if k in given), None)
        if last in EXCHANGES and peer is not None and "tensor" in given:
            found.append(_Exchange(call, last in {"recv", "irecv"}, given["tensor"], peer, given.get("group")))
    return found
