"""Sends and receives.

What: what is received is what the sender's own call of the pair has sent.
Before: `dist.send(x, right)` and `dist.recv(y, left)`, also in a list of P2POp
After: `y = collectives.permute(x, left, axis)`
Safety: a pair is a send and a recv in lines of one block, in a function without other sends.
Limits: any other is a finding.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.registry import call_of
from fnjax.port.analysis.walk import Stop, Term, Walk, parse
from fnjax.port.known.facts import LIST, Value
from fnjax.port.rewrite.devices.collectives import EXCHANGES
from fnjax.port.rewrite.devices.filled import find_memory, write_argument, write_result
from fnjax.port.rewrite.devices.groups import HANDED_ON, name_distributed, write_axis
from fnjax.port.torch import unparse
from fnjax.port.tree.located import list_nodes

_RECEIVING = frozenset({"recv", "irecv"})


@call_of("torch.distributed.", like=HANDED_ON, only="collective")
def port_exchange(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """`dist.send(x, right)`, `dist.P2POp(dist.irecv, y, left)` and `dist.batch_isend_irecv(ops)`."""
    last, returning = name_distributed(walk.program, name)
    if last in EXCHANGES | {"P2POp"} and not returning:
        return _port_point_to_point(walk, node, last)
    if last == "batch_isend_irecv" and not returning:
        return Term(parse("[]"), Value("static", name=LIST, parts=()))
    return None


def _port_point_to_point(walk: Walk, node: cst.Call, last: str) -> Term:
    """A send is nothing by itself; what is received is what the sender's own call of the pair has sent."""
    handle = Term(parse("None"), Value("static", literal=None))
    own = _read_exchange(walk, node)
    if own is None:
        raise Stop(node, "absent", f"{last} of what the porter does not know")
    if not own[0]:
        return handle
    block = next(
        (b for b in list_nodes(walk.routine.node) if isinstance(b, cst.IndentedBlock) and _stands_directly_in(b, node)),
        None,
    )
    calls = [c for s in (block.body if block is not None else ()) for c in list_nodes(s) if isinstance(c, cst.Call)]
    around = [(c, e) for c in calls if _stands_directly_in(block, c) and (e := _read_exchange(walk, c)) is not None]
    received, sent = ([x for x in around if x[1][0] is kind] for kind in (True, False))
    inside = [
        c for c in list_nodes(walk.routine.node) if isinstance(c, cst.Call) and _read_exchange(walk, c) is not None
    ]
    if len(received) != len(sent) or len(inside) != len(around) or walk.here.loops:
        message = "send and recv that are no pair in lines one behind the other: write collectives.permute by hand"
        raise Stop(node, "absent", message)
    index = next(i for i, x in enumerate(received) if x[0] is node)
    _, buffer, source, group = own
    other = sent[index][1]
    what = find_memory(other[1])
    if not isinstance(what, (cst.Name, cst.Attribute)) or walk.port(what).value.kind == "static":
        raise Stop(node, "absent", f"what is sent, {unparse(other[1])}, is to have a name before recv")
    new = (
        f"collectives.permute({write_argument(walk, what)}, {write_argument(walk, source)}, {write_axis(walk, group)})"
    )
    write_result(walk, node, buffer, new)
    return handle


_Exchange = tuple[bool, cst.BaseExpression, cst.BaseExpression, cst.BaseExpression | None]


def _read_exchange(walk: Walk, node: cst.Call) -> _Exchange | None:
    """Of a send or a recv: whether it receives, the tensor, the other side's rank and the group."""
    last, returning = name_distributed(walk.program, walk.find_name(node.func))
    plain = [a for a in node.args if a.keyword is None]
    named = {a.keyword.value: a.value for a in node.args if a.keyword is not None}
    if last == "P2POp" and plain:
        last, returning = name_distributed(walk.program, walk.find_name(plain.pop(0).value))
    if returning or last not in EXCHANGES:
        return None
    given = dict(zip(("tensor", "peer", "group"), (a.value for a in plain), strict=False)) | named
    peer = next((given[k] for k in ("peer", "src", "dst", "group_src", "group_dst", "group_peer") if k in given), None)
    if peer is None or "tensor" not in given:
        return None
    return last in _RECEIVING, given["tensor"], peer, given.get("group")


def _stands_directly_in(block: cst.IndentedBlock | None, node: cst.CSTNode) -> bool:
    """Whether a node stands in a line of a block, and not in a block inside it."""
    lines = [s for s in (block.body if block is not None else ()) if isinstance(s, cst.SimpleStatementLine)]
    return any(n is node for s in lines for n in list_nodes(s))
