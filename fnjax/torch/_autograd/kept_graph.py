"""Graphs that forward records and saves on ctx, and that backward differentiates: by the pullback of jax.vjp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.torch._autograd.engine import KEPT, replay
from fnjax.torch._autograd.function.captured import is_node
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.recording.graph import Node, Value


class KeptGraph(NamedTuple):
    """Graph without its arrays.

    Attributes:
        roots: the indices of the tensors on ctx that are results of recorded operations.
        leaves: for each leaf, the indices of the tensors on ctx that have its value, or the parameter that it is.
    """

    roots: tuple[int, ...]
    leaves: tuple[tuple[int, ...] | Tensor | None, ...]


def keep_graph(tensors: Sequence[Tensor], reached: Sequence[Tensor]) -> tuple[KeptGraph, Any]:
    """Return the graph that forward recorded for the tensors on ctx, and its pullback.

    Args:
        tensors: the tensors on ctx.
        reached: the parameters that backward receives by reference.
    """
    roots = [i for i, t in enumerate(tensors) if t.value.node is not None]
    function, leaves = replay([tensors[i].value for i in roots], [])
    _, pullback = jax.vjp(function, *(v.array for v in leaves))
    found: list[tuple[int, ...] | Tensor | None] = []
    for leaf in leaves:
        at = tuple(i for i, t in enumerate(tensors) if t.value is leaf)
        found.append(at or next((t for t in reached if t.value is leaf), None))
    return KeptGraph(tuple(roots), tuple(found)), pullback


@jax.custom_vjp
def _run_graph(leaves: Any, results: Any, pullback: Any) -> Any:
    return results


def _zero(x: Any) -> Any:
    return jnp.zeros_like(x) if jnp.issubdtype(x.dtype, jnp.inexact) else np.zeros(x.shape, jax.dtypes.float0)


_run_graph.defvjp(
    lambda leaves, results, pullback: (results, (results, pullback)),
    lambda kept, cotangents: (tuple(kept[1](cotangents)), *jax.tree.map(_zero, kept)),
)


def link_graph(graph: KeptGraph, tensors: Sequence[Tensor], on_ctx: Any, pullback: Any) -> Any:
    """Return the contents of backward's ctx with tensors that belong to the graph again.

    Args:
        graph: the graph.
        tensors: the tensors on ctx.
        on_ctx: the contents of ctx, `(saved, attributes)`.
        pullback: the graph's pullback.
    """
    parents: list[Value] = []
    same: dict[int, Tensor] = {}
    for leaf in graph.leaves:
        found = [leaf] if isinstance(leaf, Tensor) else [tensors[i] for i in leaf or ()]
        parents.append(found[0].value if found else Value(None))
        same |= {id(t): found[0] for t in found}
    results = [tensors[i].array for i in graph.roots]

    def function(*arrays: Any) -> tuple[Any, ...]:
        return tuple(_run_graph(arrays, results, pullback))

    node = Node(function, parents, KEPT)
    for index, i in enumerate(graph.roots):
        tensor = tensors[i]
        tensor.memory.value, tensor._cached = Value(tensor.array, node, index, requires_grad=True), None
    return jax.tree.map(lambda t: same.get(id(t), t), on_ctx, is_leaf=is_node)
