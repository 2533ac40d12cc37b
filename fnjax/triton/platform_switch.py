"""fnjax_either: platform switch, one equation for two programs of the same types, for GPUs and for all else.

JAX chooses when it lowers for a platform. `jax.lax.platform_dependent` traces both at once; here the program for a GPU
is touched only where JAX lowers for a GPU: its imports may be available only there.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fnjax._primitives.jax_internals import varying
from fnjax._primitives.linearization import jvp_of_perturbed
from fnjax._primitives.rule import Arrays
from fnjax._primitives.tree import is_inexact

GPUS = ("cuda", "rocm")  # as JAX lowers for them


class PlatformSwitch(Protocol):
    """Pair of programs for a platform switch; it must be comparable and hashable, as a key of JAX's caches."""

    @property
    def outputs(self) -> Sequence[int]:
        """For each result the index of the operand whose type it has."""

    def on_others(self, *operands: Any) -> Arrays:
        """Run the program for all platforms but GPUs."""

    def on_gpu(self, *operands: Any) -> Arrays:
        """Run the program for GPUs; JAX need not be able to differentiate or batch it."""

    def differentiated(self, *operands: Any) -> Arrays:
        """Run the program that JAX differentiates, on every platform."""


platform_switch_p = Primitive("fnjax_either")
platform_switch_p.multiple_results = True


def run_platform_switch(switch: PlatformSwitch, operands: Sequence[Any]) -> Arrays:
    """Run the program for the platform that JAX lowers for; return its results."""
    # Inside shard_map a result varies over the axes of all operands, so all of them must vary over these.
    on = frozenset().union(*(varying(jax.typeof(x)) for x in operands))
    missing = [tuple(on - varying(jax.typeof(x))) for x in operands]
    same = [jax.lax.pcast(x, axes, to="varying") if axes else x for x, axes in zip(operands, missing, strict=True)]
    results: Arrays = platform_switch_p.bind(*same, switch=switch)
    return results


@functools.partial(jax.jit, static_argnames=("switch",))
def _staged(*operands: Any, switch: PlatformSwitch) -> Any:
    return platform_switch_p.bind(*operands, switch=switch)


def _impl(*operands: Any, switch: PlatformSwitch) -> Any:
    on_gpu = next(iter(operands[0].devices())).platform in ("gpu", *GPUS)
    return _staged(*operands, switch=switch) if on_gpu else switch.on_others(*operands)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, switch: PlatformSwitch) -> tuple[Arrays, Arrays]:
    outputs, dots = jvp_of_perturbed(switch.differentiated, primals, tangents)
    return outputs, [
        t if is_inexact(x) else ad.Zero(jax.typeof(x).to_tangent_aval()) for x, t in zip(outputs, dots, strict=True)
    ]


@dataclasses.dataclass(frozen=True)
class _Batched:
    """Pair of programs for a batch; the operands in `which` have the batch axis first."""

    one: PlatformSwitch
    which: tuple[bool, ...]

    @property
    def outputs(self) -> Sequence[int]:
        return self.one.outputs

    def on_others(self, *operands: Any) -> Arrays:
        return jax.vmap(self.one.on_others, self._axes)(*operands)

    def differentiated(self, *operands: Any) -> Arrays:
        return jax.vmap(self.one.differentiated, self._axes)(*operands)

    def on_gpu(self, *operands: Any) -> Arrays:
        """Run the examples sequentially."""

        def run(examples: Sequence[Any]) -> Arrays:
            given = iter(examples)
            return self.one.on_gpu(*(next(given) if b else x for x, b in zip(operands, self.which, strict=True)))

        batched = [x for x, b in zip(operands, self.which, strict=True) if b]
        return jax.lax.map(run, batched)  # type: ignore[no-any-return]  # what run returns

    @property
    def _axes(self) -> list[int | None]:
        return [0 if b else None for b in self.which]


def _batch(operands: Sequence[Any], dims: Sequence[int | None], *, switch: PlatformSwitch) -> tuple[Any, list[int]]:
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    which = tuple(d is not None or i in switch.outputs for i, d in enumerate(dims))
    moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(operands, dims, strict=True)]
    moved = [
        jnp.broadcast_to(x, (size, *x.shape)) if b and d is None else x
        for x, d, b in zip(moved, dims, which, strict=True)
    ]
    return platform_switch_p.bind(*moved, switch=_Batched(switch, which)), [0] * len(switch.outputs)


def _lower(name: str) -> Any:
    return mlir.lower_fun(lambda *operands, switch: getattr(switch, name)(*operands), multiple_results=True)


platform_switch_p.def_impl(_impl)
platform_switch_p.def_abstract_eval(lambda *operands, switch: [operands[i] for i in switch.outputs])
ad.primitive_jvps[platform_switch_p] = _jvp
batching.primitive_batchers[platform_switch_p] = _batch
mlir.register_lowering(platform_switch_p, _lower("on_others"))
for _platform in GPUS:
    mlir.register_lowering(platform_switch_p, _lower("on_gpu"), platform=_platform)
