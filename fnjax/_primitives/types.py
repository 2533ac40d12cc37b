"""JAX's types, for annotations: those without a public class, or with one that differs between versions, are Any."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

Aval: TypeAlias = Any  # the type of an array; AbstractValue declares neither shape nor dtype
Eqn: TypeAlias = Any  # JaxprEqn, whose variables have an AbstractValue
Jaxpr: TypeAlias = Any  # closed or open: two classes until JAX 0.11


class Axis(Protocol):
    """Axis of a `jax.vmap`, as batching rules receive it.

    Attributes:
        name: a bare `object` if it has none.
        size: the size of the batch.
        spmd_name: the mesh axis over which the batch is sharded, by `spmd_axis_name`.
        explicit_mesh_axis: the Explicit one.
    """

    name: Any
    size: int
    spmd_name: Any
    explicit_mesh_axis: Any
