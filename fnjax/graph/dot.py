"""Conversion of a graph to DOT, graphviz's language."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fnjax.graph.drawing import Edge, Graph, Node
from fnjax.graph.program import Scope

FONT = 'fontname="Helvetica,Arial,sans-serif"'
BLUE, ORANGE, GREEN, RED, PURPLE, GRAY = "#1f5fa8", "#b4540a", "#1a7f37", "#c62828", "#7b3fa0", "#667085"
STYLES = {
    "input": 'shape=box style="rounded,filled" fillcolor="#eef4fb" color="#9db9d9" fontsize=11 margin="0.1,0.04"',
    "output": 'shape=box style="rounded,filled" fillcolor="#eef4fb" color="#9db9d9" fontsize=11 margin="0.1,0.04"',
    "gradient": 'shape=box style="rounded,filled" fillcolor="#fdf3ea" color="#e0b48c" fontsize=11 margin="0.1,0.04"',
    "grad output": 'shape=box style="rounded,filled" fillcolor="#fdf3ea" color="#e0b48c" fontsize=11 margin="0.1,0.04"',
    "forward": f'shape=box style=filled fillcolor="#cfe2f7" color="{BLUE}" penwidth=1.5',
    "backward": f'shape=box style=filled fillcolor="#fbdcc0" color="{ORANGE}" penwidth=1.5',
    "operation": f'shape=box style=rounded fontsize=10 color="#c8ced6" fontcolor="{GRAY}" margin="0.08,0.04"',
    "transposed": f'shape=box style=rounded fontsize=10 color="#e6cdb8" fontcolor="{GRAY}" margin="0.08,0.04"',
    "saved": 'shape=plain fontsize=10 margin="0.04,0.02"',
    "parameter": f'shape=plain fontsize=11 fontcolor="{ORANGE}"',
    "nondifferentiable": f'shape=octagon style=filled fillcolor="#fbe0e0" color="{RED}" fontcolor="{RED}" penwidth=2',
}
MANY = 60  # nodes of a large picture
SHOWN = 4  # operations of a node that are named; the rest are counted


def to_dot(graph: Graph) -> str:
    """Return a graph as DOT text: forward runs down on the left, backward up on the right, saved arrays between."""
    notes = _place_notes(graph)
    nodes = [*graph.nodes, *(note for note in notes if note.kind == "saved")]
    ids = {node: f"n{i}" for i, node in enumerate(nodes)}
    same_rank = [(n.partner, n) for n in nodes if n.partner is not None and n.partner.scope is n.scope]
    if any(node.kind == "parameter" for node in nodes):  # an opened backward has no partner that places it on the right
        same_rank += zip(_find_last(nodes, "output"), _find_last(nodes, "grad output"), strict=False)
    sep = 0.1 if len(nodes) > MANY else 0.2  # a network of six layers fits on a screen
    lines = [
        "digraph {",
        f'  graph [rankdir=TB nodesep=0.2 ranksep={sep} bgcolor=white {FONT} fontsize=11 newrank=true tooltip=" "]',
        f"  node [{FONT} fontsize=12 height=0.25]",
        f"  edge [{FONT} fontsize=10 arrowsize=0.7]",
        *_write_boxes(nodes, notes, ids, None, "  "),
    ]
    lines += [f"  {_write_edge(edge, ids)}" for edge in graph.edges if edge.kind != "saved"]
    for note, edges in notes.items():
        style = f'color="{_select_colour(edges[0])}" style={"bold" if edges[0].label else "solid"}'
        for source in dict.fromkeys(edge.source for edge in edges):
            end = " dir=none" if note.kind == "saved" else ""
            lines.append(f"  {ids[source]} -> {ids[note]} [{style}{end}]")
        if note.kind == "saved":
            target = edges[0].target
            lines.append(f"  {{rank=same; {ids[note]} -> {ids[target]} [{style}]}}")
            same_rank += [(forward, note) for forward, backward in same_rank if backward is target]
    lines += [f"  {{rank=same; {ids[left]} -> {ids[right]} [style=invis]}}" for left, right in same_rank]
    return "\n".join([*lines, "}", ""])


def _find_last(nodes: Sequence[Node], kind: str) -> list[Node]:
    return [node for node in nodes if node.kind == kind][-1:]


# ---------------------------------------------------------------------------------------------------------------------
# Saved arrays: dot leaves no room for labels of edges between neighbours, so the labels are nodes in between.

Notes = dict[Node, list[Edge]]


def _place_notes(graph: Graph) -> Notes:
    """Return the nodes that show saved arrays, with their edges.

    Such a node is the parameter of an opened backward, or a node before a closed one. Arrays with the same destination
    share a node.
    """
    notes: Notes = {}
    made: dict[Any, Node] = {}
    for edge in graph.edges:
        if edge.kind == "saved":
            node = edge.target
            if node.kind != "parameter":
                node = made.setdefault((node, _select_colour(edge)), Node("saved", [], node.scope))
            notes.setdefault(node, []).append(edge)
    return notes


def _describe_saved(edge: Edge) -> list[str]:
    lines = [f"{edge.value.type}, {format_size(edge.value.bytes)}"]
    if edge.label and edge.target.kind != "parameter":
        lines = [f"{edge.label}  {lines[0]}"]
    if edge.route is not None:
        route = "2nd order: " + ("stops, " if edge.route.stops else "") + edge.route.text
        lines += textwrap.wrap(textwrap.shorten(route, 90, placeholder=" …"), 30)
    return lines


def _select_colour(edge: Edge) -> str:
    if edge.route is None:
        return PURPLE
    return GREEN if edge.route.goes else RED if edge.route.stops else GRAY


# ---------------------------------------------------------------------------------------------------------------------
# Nodes and boxes


def _write_boxes(
    nodes: Sequence[Node], notes: Notes, ids: dict[Node, str], scope: Scope | None, indent: str
) -> Iterator[str]:
    """Yield the lines of the nodes and boxes in a scope."""
    for node in nodes:
        if node.scope is scope:
            saved = notes.get(node, [])[: 1 if node.kind == "parameter" else None]  # its edges have the same array
            text = "\n".join([*_shorten(node), *(line for edge in saved for line in _describe_saved(edge))])
            colour = f' fontcolor="{_select_colour(saved[0])}"' if saved else ""
            yield f"{indent}{ids[node]} [label={_quote(text)} {STYLES[node.kind]}{colour}{_write_details(node)}]"
    for inner in _find_inside(nodes, scope):
        name = f"cluster_{ids[next(n for n in nodes if inner in _climb(n.scope))]}_{len(list(_climb(inner)))}"
        colour = "#8a97a8" if inner.kind != "function" else ORANGE if inner.label.endswith("backward") else BLUE
        style = "dashed" if inner.kind != "function" else "solid"
        yield f"{indent}subgraph {name} {{"
        yield f'{indent}  label={_quote(inner.label)} fontcolor="{colour}" color="{colour}" style="{style},rounded"'
        yield from _write_boxes(nodes, notes, ids, inner, indent + "  ")
        yield f"{indent}}}"


def _find_inside(nodes: Sequence[Node], scope: Scope | None) -> Iterable[Scope]:
    """Return the scopes directly in `scope` that contain a node at any depth."""
    return dict.fromkeys(s for n in nodes for s in _climb(n.scope) if s.parent is scope)


def _climb(scope: Scope | None) -> Iterator[Scope]:
    while scope is not None:
        yield scope
        scope = scope.parent


def _shorten(node: Node) -> list[str]:
    if node.kind in {"operation", "transposed"} and len(node.lines) > SHOWN:
        return [*node.lines[: SHOWN - 1], f"… {len(node.lines) - SHOWN + 1} more"]
    return node.lines


def _write_details(node: Node) -> str:
    group = {"forward": " group=f", "operation": " group=f", "backward": " group=b", "transposed": " group=b"}
    style = group.get(node.kind, "") if node.scope is None else ""
    style += f' color="{RED}"' if node.stops and node.kind != "nondifferentiable" else ""
    return f"{style} tooltip={_quote(', '.join(node.lines))}"


def _write_edge(edge: Edge, ids: dict[Node, str]) -> str:
    tip = f"tooltip={_quote(edge.value.type)}"
    if edge.kind == "gradient":  # the rank of backward mirrors that of forward
        return f'{ids[edge.target]} -> {ids[edge.source]} [dir=back color="{ORANGE}" {tip}]'
    return f'{ids[edge.source]} -> {ids[edge.target]} [color="{BLUE}" {tip}]'


def format_size(n: int) -> str:
    """Return a number of bytes as text: `512 B`, `4.0 KiB`."""
    if n < 1024:
        return f"{n} B"
    power = min((n.bit_length() - 1) // 10, 4)
    return f"{n / 1024**power:.1f} {'KMGT'[power - 1]}iB"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
