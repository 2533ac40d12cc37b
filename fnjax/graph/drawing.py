"""Conversion of traced operations to a graph: nodes, edges, and the boxes around them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from fnjax._primitives.jax_internals import open_jaxpr
from fnjax._primitives.jaxprs import NONDIFFERENTIABLE
from fnjax.graph.calls import FunctionCall
from fnjax.graph.program import Operation, Scope, TracedDerivative, Value, differentiate, read_operations
from fnjax.graph.second_order import Route, find_routes, is_unknown

# Operations that only change layout or dtype: the picture is easier to read without them.
QUIET = frozenset({
    "broadcast", "broadcast_in_dim", "convert_element_type", "copy", "copy_p", "device_put", "expand_dims", "loop",
    "optimization_barrier", "pcast", "pvary", "reduce_precision", "reshape", "sharding_constraint", "squeeze",
    "stop_gradient",
})  # fmt: skip
NodeKind = Literal[
    "input",
    "output",
    "gradient",
    "grad output",
    "forward",
    "backward",
    "operation",
    "transposed",
    "parameter",
    "nondifferentiable",
    "saved",
]  # fmt: skip
EdgeKind = Literal["value", "gradient", "saved"]


@dataclasses.dataclass(eq=False)
class Node:
    """Node of the picture.

    Attributes:
        kind: its kind.
        lines: its text; for operations one line each.
        scope: the innermost box that contains it.
        partner: the forward of a backward.
        stops: whether double backward stops here.
    """

    kind: NodeKind
    lines: list[str]
    scope: Scope | None = None
    partner: Node | None = None
    stops: bool = False

    @property
    def text(self) -> str:
        """Its lines joined."""
        return " ".join(self.lines)


@dataclasses.dataclass(eq=False)
class Edge:
    """Edge of the picture.

    Attributes:
        source: where it starts.
        target: where it ends.
        kind: a value of forward, a gradient, or a value that is saved for backward.
        value: the array.
        label: its name, if it has one.
        route: in a picture of order 2, the path of its second derivative.
    """

    source: Node
    target: Node
    kind: EdgeKind
    value: Value
    label: str = ""
    route: Route | None = None


@dataclasses.dataclass(eq=False)
class Graph:
    """Nodes and edges; `order` is the order of the derivative."""

    nodes: list[Node]
    edges: list[Edge]
    order: int = 1

    def named(self, text: str) -> list[Node]:
        """Return the nodes with this text."""
        return [node for node in self.nodes if node.text == text]


def draw(
    func: Callable[..., Any],
    args: Sequence[Any],
    *,
    order: int,
    opened: Callable[[str], bool],
    names: Callable[[list[str]], list[str]],
    argnums: Any = None,
) -> Graph:
    """Return the graph of `func` and its derivative; see `fnjax.make_dot`."""

    def open_forward(call: FunctionCall) -> bool:
        return opened(call.name)

    traced = differentiate(func, args, open_forward, argnums)
    if order == 2:  # the operations that compute a saved intermediate are shown: open the Functions that save any
        saving = {
            op.call.name
            for op in traced.operations
            if op.partner and op.call and any(k.source == "intermediate" for k in op.call.residual_sources)
        }
        traced = differentiate(func, args, lambda call: opened(call.name) or call.name in saving, argnums)
    traced.inputs = dict(zip(names(list(traced.inputs)), traced.inputs.values(), strict=True))
    drawing = _Drawing(traced, order, lambda call: order == 2 or opened(call.name))
    return tidy(Graph(drawing.nodes, drawing.edges, order))


class _Drawing:
    """Builder of the nodes and edges of a graph."""

    def __init__(self, traced: TracedDerivative, order: int, opened: Callable[[FunctionCall], bool]) -> None:
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self._order, self._opened = order, opened
        self._makers: dict[Value, list[Node]] = {}  # of values; for tangents the nodes that receive their gradient
        self._add_inputs(traced)
        for op in traced.operations:
            if any(x.varies for x in op.inputs):
                self._add_operation(op)
        self._add_outputs(traced)

    # --- ends

    def _add_node(self, kind: NodeKind, *lines: str, scope: Scope | None = None) -> Node:
        node = Node(kind, list(lines), scope)
        self.nodes.append(node)
        return node

    def _add_inputs(self, traced: TracedDerivative) -> None:
        for (name, value), tangent in zip(traced.inputs.items(), traced.tangents, strict=True):
            if value.used:
                self._makers[value] = [self._add_node("input", f"{name}  {value.type}")]
            if tangent is not None and tangent.used:
                self._makers[tangent] = [self._add_node("gradient", f"grad {name}")]

    def _add_outputs(self, traced: TracedDerivative) -> None:
        for (name, value), tangent in zip(traced.outputs.items(), traced.out_tangents, strict=True):
            node = self._add_node("output", f"{name}  {value.type}")
            self._add_edges(value, node, "value")
            if tangent.linear:
                grad = self._add_node("grad output", f"grad {name}")
                self._add_edges(tangent, grad, "gradient")

    # --- operations

    def _add_operation(self, op: Operation) -> None:
        if op.partner is not None and op.call is not None:
            self._add_backward(op, op.call)
        elif (
            op.name in QUIET or (op.name == NONDIFFERENTIABLE and not op.linear) or (op.name == "add_any" and op.linear)
        ):
            self._pass_on(op)
        else:
            kind: NodeKind = "forward" if op.call else "transposed" if op.linear else "operation"
            text = op.call.name if op.call else op.name + "ᵀ" * op.linear
            node = self._add_node(kind, text, scope=op.scope)
            for x in op.outputs:
                self._makers[x] = [node]
            self._connect(op, node)

    def _pass_on(self, op: Operation) -> None:
        pairs = zip(op.inputs, op.outputs, strict=False)
        if op.name == "add_any":  # a gradient flows to both operands of a sum
            pairs = zip(op.inputs, op.outputs * 2, strict=True)
        for given, made in pairs:
            makers = [n for n in self._makers.get(given, ()) if n not in self._makers.get(made, ())]
            self._makers.setdefault(made, []).extend(makers)

    def _connect(self, op: Operation, node: Node) -> None:
        for x in dict.fromkeys(op.inputs):
            self._add_edges(x, node, "gradient" if x.linear else "saved" if op.linear else "value")

    def _add_edges(self, value: Value, node: Node, kind: EdgeKind, label: str = "", route: Route | None = None) -> None:
        for maker in self._makers.get(value, ()):
            if kind == "gradient":  # against the direction of the tangent
                self.edges.append(Edge(node, maker, kind, value, label, route))
            else:
                self.edges.append(Edge(maker, node, kind, value, label, route))

    # --- the backward of a Function

    def _add_backward(self, op: Operation, call: FunctionCall) -> None:
        n = len(call.residual_sources)
        residuals, tangents = op.inputs[:n], op.inputs[n:]
        ways, stop = find_routes(call) if self._order == 2 else ([None] * n, "")
        labels = [call.describe(residual) for residual in call.residual_sources]
        traced = call.backward() if self._opened(call) else None
        if traced is None:
            node = self._add_node("backward", f"{call.name}.backward", scope=op.scope)
            node.partner = next((p for x in op.partner.outputs for p in self._makers.get(x, ())), None)  # type: ignore[union-attr]
            node.stops = bool(stop) and not is_unknown(stop)
            for x, label, way in zip(residuals, labels, ways, strict=True):
                self._add_edges(x, node, "saved", label, way)
            for x in op.outputs:
                self._makers[x] = [node]
            for x in tangents:
                self._add_edges(x, node, "gradient")
            return
        scope = Scope(f"{call.name}.backward", op.scope, kind="function")
        jaxpr, present = traced
        values = [Value(v.aval) for v in open_jaxpr(jaxpr).invars]
        made: dict[Value, list[Node]] = {}
        for x, value, label, way in zip(residuals, values, labels, ways, strict=False):
            node = self._add_node("parameter", "saved " + label, scope=scope)
            self._add_edges(x, node, "saved", label, way)
            made[value] = [node]
        for i, (x, value) in enumerate(zip(op.outputs, values[n:], strict=True)):
            name = "grad_output" if len(op.outputs) == 1 else f"grad_output {i}"
            made[value] = self._makers[x] = [self._add_node("parameter", name, scope=scope)]
        operations, grads = read_operations(jaxpr, values, scope)
        self._open_backward(operations, made, stop)
        tangent = [x for x, p in zip(tangents, present, strict=True) if p]
        for grad, x in zip(grads, tangent, strict=True):
            for source in made.get(grad, ()):
                self._add_edges(x, source, "gradient")

    def _open_backward(self, operations: Iterable[Operation], made: dict[Value, list[Node]], stop: str) -> None:
        for op in operations:
            given = op.inputs[: op.params["n_values"]] if op.name == NONDIFFERENTIABLE else op.inputs
            sources = {x: made[x] for x in given if x in made}
            if not sources:
                continue
            if op.name in QUIET:
                for x in op.outputs:
                    made[x] = list(dict.fromkeys(n for nodes in sources.values() for n in nodes))
                continue
            if op.name == NONDIFFERENTIABLE:
                node = self._add_node("nondifferentiable", "once_differentiable", scope=op.scope)
                node.stops = True
            else:
                node = self._add_node("transposed", op.call.name if op.call else op.name, scope=op.scope)
            for x, nodes in sources.items():
                self.edges += [Edge(source, node, "gradient", x) for source in nodes]
            for x in op.outputs:
                made[x] = [node]


# ---------------------------------------------------------------------------------------------------------------------
# Fewer nodes

MANY = 8  # inputs: with more of them, those with the same destination share a node


def tidy(graph: Graph) -> Graph:
    """Merge chains of operations with a single destination into one node, and inputs with the same destination."""
    graph.edges = _drop_doubles(graph.edges)
    if sum(node.kind == "input" for node in graph.nodes) > MANY:
        _bundle(graph, "input", lambda edge: (edge.source, edge.target) if edge.kind == "value" else None)
        _bundle(graph, "gradient", lambda edge: (edge.target, edge.source))
    while True:
        out: dict[Node, list[Edge]] = {}
        for edge in graph.edges:
            out.setdefault(edge.source, []).append(edge)
        for node in graph.nodes:
            target = _find_only_target(node, out.get(node, []))
            if target is not None:
                _merge(graph, node, target)
                break
        else:
            return graph


def _bundle(graph: Graph, kind: NodeKind, ends: Callable[[Edge], tuple[Node, Node] | None]) -> None:
    places: dict[Node, list[Node]] = {node: [] for node in graph.nodes if node.kind == kind}
    for edge in graph.edges:
        if (pair := ends(edge)) is not None and pair[0] in places:
            places[pair[0]].append(pair[1])
    first: dict[Node, Node] = {}
    into: dict[Node, Node] = {}
    for node, others in places.items():
        if len(others) == 1:
            into[node] = first.setdefault(others[0], node)
            if into[node] is not node:
                into[node].lines += node.lines
                graph.nodes.remove(node)
    for edge in graph.edges:
        edge.source, edge.target = into.get(edge.source, edge.source), into.get(edge.target, edge.target)
    graph.edges = _drop_doubles(graph.edges)


def _find_only_target(node: Node, edges: Sequence[Edge]) -> Node | None:
    if node.kind not in {"operation", "transposed"} or not edges:
        return None
    target = edges[0].target
    fits = target.kind == node.kind and target.scope is node.scope and target is not node
    return target if fits and all(e.target is target and e.kind != "saved" for e in edges) else None


def _merge(graph: Graph, node: Node, target: Node) -> None:
    target.lines = [*node.lines, *target.lines]
    graph.nodes.remove(node)
    graph.edges = [e for e in graph.edges if e.source is not node]
    for edge in graph.edges:
        if edge.target is node:
            edge.target = target
    graph.edges = _drop_doubles(graph.edges)


def _drop_doubles(edges: Sequence[Edge]) -> list[Edge]:
    """Return the edges without duplicates: one for an array that leads twice from one node to another."""
    return list({(e.source, e.target, e.kind, e.value if e.kind == "saved" else None): e for e in edges}.values())
