"""make_dot: the picture of a function and its derivative."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fnjax._primitives.tree import iter_leaves
from fnjax.graph.dot import to_dot
from fnjax.graph.drawing import Graph, draw
from fnjax.graph.program import is_array


class Picture:
    """Picture that notebooks display; `make_dot` makes it.

    Attributes:
        graph: its nodes and edges.
        source: the text for graphviz.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.source = to_dot(graph)

    def __str__(self) -> str:
        return self.source

    def render(self, path: str | Path) -> str:
        """Write the picture to a file.

        Args:
            path: its suffix selects the format: `.svg`, `.png`, `.pdf`, … or `.dot` for the text only, which does not
                need graphviz.

        Returns:
            The path.

        Raises:
            ImportError: without the package graphviz.
            RuntimeError: without the program dot, or if it fails.
            ValueError: for an unknown suffix.
        """
        path = Path(path)
        kind = path.suffix.lstrip(".")
        if kind in {"dot", "gv"}:
            path.write_text(self.source, encoding="utf-8")
        else:
            path.write_bytes(self._pipe(kind, path))
        return str(path)

    def _repr_svg_(self) -> str:
        return self._pipe("svg").decode()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        try:
            return {"image/svg+xml": self._repr_svg_(), "text/plain": "fnjax picture"}
        except (ImportError, RuntimeError) as e:  # a notebook shows at least the error
            return {"text/plain": f"{e}\n\n{self.source}"}

    def _pipe(self, kind: str, path: Path | None = None) -> bytes:
        try:
            import graphviz
        except ImportError as e:
            raise ImportError(
                "pictures are drawn with the package graphviz: pip install graphviz (a path that ends in .dot "
                "needs no graphviz)"
            ) from e
        if kind not in graphviz.FORMATS:
            raise ValueError(f"{str(path)!r} does not end in a format that graphviz writes: .svg, .png, .pdf, .dot, …")
        try:
            return bytes(graphviz.Source(self.source).pipe(format=kind))
        except graphviz.ExecutableNotFound as e:
            raise RuntimeError(
                "the program dot of graphviz is not installed, or not on the path: apt install graphviz, brew install "
                "graphviz, or https://graphviz.org/download (a path that ends in .dot needs no graphviz)"
            ) from e


def make_dot(
    func: Callable[..., Any],
    *args: Any,
    order: int = 1,
    params: Mapping[str, Any] | None = None,
    opened: bool | Iterable[str] = False,
    argnums: int | Sequence[int] | None = None,
) -> Picture:
    """Draw the reverse mode of a function: its forward operations, its backward ones, and the arrays saved between.

    Forward runs down on the left, backward up on the right. The function is traced on types, nothing is computed. The
    signature and the terms are those of torchviz.

    Args:
        func: any JAX function, or a Function class.
        *args: its arguments: arrays or `jax.ShapeDtypeStruct`s, in pytrees too; other arguments are static.
            For keywords pass `functools.partial(func, k=2)`.
        order: 2 opens every backward and shows for each saved array the path of its second derivative, or why there
            is none.
        params: names for arrays among the arguments, by identity; the others are named by the function's signature.
        opened: True, or names of Functions, to show the operations in them. Every other Function is one box.
        argnums: the arguments to differentiate; by default all with floating point or complex numbers.

    Returns:
        An object with `.source`, `.render(path)` and the methods by which notebooks display it.

    Raises:
        TypeError: if `func` is not a function.
        ValueError: for an `order` that is neither 1 nor 2, an unknown name, or nothing to differentiate.

    Examples:
        >>> import jax, jax.numpy as jnp, fnjax
        >>> picture = fnjax.make_dot(jnp.sin, jnp.ones((32, 8)))
        >>> [(edge.source.text, edge.target.text) for edge in picture.graph.edges if edge.kind == "saved"]
        [('cos', 'mulᵀ')]
        >>> print(picture.source.splitlines()[0])
        digraph {
    """
    if order not in {1, 2}:
        raise ValueError(f"order must be 1 or 2, got {order!r}")
    given = {id(array): name for name, array in (params or {}).items()}
    leaves = [x for x in iter_leaves(list(args)) if is_array(x)]
    missing = set(given.values()) - {given.get(id(x)) for x in leaves}
    if missing:
        raise ValueError(f"params names {', '.join(sorted(map(repr, missing)))}, which is no array among the arguments")
    selected = set() if isinstance(opened, bool) else {opened} if isinstance(opened, str) else set(opened)
    met: set[str] = set()

    def is_opened(name: str) -> bool:
        met.add(name)
        return opened is True or name in selected

    graph = draw(
        func,
        args,
        order=order,
        opened=is_opened,
        names=lambda names: [given.get(id(x), name) for x, name in zip(leaves, names, strict=True)],
        argnums=argnums,
    )
    if selected - met:
        known = ", ".join(sorted(met)) or "none"
        raise ValueError(f"opened names {', '.join(sorted(selected - met))}; the Functions that are called: {known}")
    return Picture(graph)
