"""A graph as text for graphviz."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fnjax.graph._graph import Edge, Graph, Node
from fnjax.graph._program import Scope

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
    "parameter": f'shape=plain fontsize=11 fontcolor="{ORANGE}"',
    "wall": f'shape=octagon style=filled fillcolor="#fbe0e0" color="{RED}" fontcolor="{RED}" penwidth=2',
}
SHOWN = 4  # operations of a node that are named; the rest are counted


def to_dot(graph: Graph) -> str:
    """The DOT text of a graph: forward runs down on the left, backward up on the right."""
    ids = {node: f"n{i}" for i, node in enumerate(graph.nodes)}
    lines = [
        "digraph {",
        f'  graph [rankdir=TB nodesep=0.25 ranksep=0.25 bgcolor=white {FONT} fontsize=11 newrank=true tooltip=" "]',
        f"  node [{FONT} fontsize=12 height=0.3]",
        f"  edge [{FONT} fontsize=10 arrowsize=0.7]",
    ]
    lines += _boxes(graph, ids, None, "  ")
    for node in graph.nodes:
        if node.partner is not None and node.partner.scope is node.scope:
            lines.append(f"  {{rank=same; {ids[node.partner]}; {ids[node]}}}")
    lines += [f"  {_edge(edge, ids)}" for edge in graph.edges]
    return "\n".join([*lines, "}", ""])


def _boxes(graph: Graph, ids: dict[Node, str], scope: Scope | None, indent: str) -> Iterator[str]:
    """The nodes that lie in a scope, and the boxes in it."""
    for node in graph.nodes:
        if node.scope is scope:
            yield f"{indent}{ids[node]} [label={_quoted(_label(node))} {STYLES[node.kind]}{_tooltip(node)}]"
    for inner in _inside(graph, scope):
        name = f"cluster_{ids[next(n for n in graph.nodes if inner in _around(n.scope))]}_{len(list(_around(inner)))}"
        colour = "#8a97a8" if inner.kind != "function" else ORANGE if inner.label.endswith("backward") else BLUE
        style = "dashed" if inner.kind != "function" else "solid"
        yield f"{indent}subgraph {name} {{"
        yield f'{indent}  label={_quoted(inner.label)} fontcolor="{colour}" color="{colour}" style="{style},rounded"'
        yield from _boxes(graph, ids, inner, indent + "  ")
        yield f"{indent}}}"


def _inside(graph: Graph, scope: Scope | None) -> Iterable[Scope]:
    """The scopes directly in `scope` that have a node somewhere."""
    return dict.fromkeys(s for n in graph.nodes for s in _around(n.scope) if s.parent is scope)


def _around(scope: Scope | None) -> Iterator[Scope]:
    while scope is not None:
        yield scope
        scope = scope.parent


def _label(node: Node) -> str:
    if node.kind in {"operation", "transposed"} and len(node.lines) > SHOWN:
        return "\n".join([*node.lines[: SHOWN - 1], f"… {len(node.lines) - SHOWN + 1} more"])
    return "\n".join(node.lines)


def _tooltip(node: Node) -> str:
    group = {"forward": " group=f", "operation": " group=f", "backward": " group=b", "transposed": " group=b"}
    style = group.get(node.kind, "") if node.scope is None else ""
    style += f' color="{RED}"' if node.stops and node.kind != "wall" else ""
    return f"{style} tooltip={_quoted(', '.join(node.lines))}"


def _edge(edge: Edge, ids: dict[Node, str]) -> str:
    tip = f"tooltip={_quoted(edge.value.type)}"
    if edge.kind == "gradient":  # the rank of backward mirrors that of forward
        return f'{ids[edge.target]} -> {ids[edge.source]} [dir=back color="{ORANGE}" {tip}]'
    if edge.kind == "value":
        return f'{ids[edge.source]} -> {ids[edge.target]} [color="{BLUE}" {tip}]'
    return f"{ids[edge.source]} -> {ids[edge.target]} [{_saved(edge)} {tip}]"


def _saved(edge: Edge) -> str:
    colour, style = PURPLE, "bold" if edge.label else "solid"
    lines = [edge.label] if edge.label and edge.target.kind != "parameter" else []
    lines.append(f"{edge.value.type}, {size(edge.value.bytes)}")
    if edge.route is not None:
        colour = GREEN if edge.route.goes else RED if edge.route.stops else GRAY
        lines.append("2nd order: " + ("stops, " if edge.route.stops else "") + _short(edge.route.text))
    text = "\n".join(f" {line} " for line in lines)
    return f'style={style} color="{colour}" fontcolor="{colour}" label={_quoted(text)}'


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"


def size(n: int) -> str:
    """Bytes, as one reads them: `512 B`, `4.0 KiB`."""
    if n < 1024:
        return f"{n} B"
    power = min((n.bit_length() - 1) // 10, 4)
    return f"{n / 1024**power:.1f} {'KMGT'[power - 1]}iB"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
