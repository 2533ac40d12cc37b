"""What an equation of a Function says: the only place that reads the parameters of the primitives."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.tree_util import keystr, tree_leaves_with_path

from fnjax._jax.rule import Kept, Linear, chosen, spread, without_none

FORWARD, BACKWARD, WALL = "fnjax_call", "fnjax_linear", "fnjax_wall"
SOURCES = {"operand": "input", "output": "output", "intermediate": "intermediate"}


@dataclasses.dataclass(eq=False)
class Call:
    """A call of a Function.

    Attributes:
        name: the name of the class.
        arguments: for each operand the name of its argument.
        jaxpr: the operations of forward: operands → outputs and saved intermediates.
        n_outputs: how many of these results are outputs.
        n_captured: how many of its operands are arrays from outside.
        linear: the derivative, once one was taken.
        needs: for each operand behind the captured ones whether it is being differentiated.
        outputs: for each output that has a gradient its type.
        residuals: the types of what is saved; inside shard_map those on one device.
    """

    name: str
    arguments: tuple[str, ...]
    jaxpr: Any
    n_outputs: int
    n_captured: int
    linear: Linear | None = None
    needs: tuple[bool, ...] = ()
    outputs: tuple[Any, ...] = ()
    residuals: tuple[Any, ...] = ()

    @property
    def kept(self) -> tuple[Kept, ...]:
        """Where each residual comes from."""
        return () if self.linear is None else self.linear.kept

    def describe(self, kept: Kept) -> str:
        """A residual in words: `input x`, `output`, `intermediate (exp)`."""
        word = SOURCES[kept.source]
        if kept.source == "operand":
            return f"{word} {self.argument(kept.at)}"
        if kept.source == "output":
            return word if self.n_outputs == 1 else f"{word} {kept.at}"
        maker = self._maker(self.n_outputs + kept.at)
        return f"{word} {kept.at}" + (f" ({maker})" if maker else "")

    def argument(self, operand: int) -> str:
        """The name of the argument that an operand of the rule belongs to."""
        return self.arguments[operand] if operand < len(self.arguments) else f"argument {operand}"

    def _maker(self, result: int) -> str:
        jaxpr = getattr(self.jaxpr, "jaxpr", self.jaxpr)
        made_by: dict[int, str] = {
            id(v): eqn.params.get("name", eqn.primitive.name) for eqn in jaxpr.eqns for v in eqn.outvars
        }
        return made_by.get(id(jaxpr.outvars[result]), "")

    def backward(self) -> tuple[Any, list[bool]] | None:
        """Trace backward by itself.

        Returns:
            Its jaxpr, (residuals, gradients of the outputs that have one) → gradients of the operands that are being
            differentiated, None left out, and which of these are there; or None where there is only a jvp, or where
            backward names an axis of the shard_map or vmap around it.
        """
        linear = self.linear
        if linear is None or linear.pull is None:
            return None
        pull = linear.pull

        def run(residuals: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
            return chosen(pull(residuals, spread(grads, linear.differentiable)), self.needs)

        traced, present = without_none(run)
        types = [[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals] for avals in (self.residuals, self.outputs)]
        try:
            jaxpr = jax.make_jaxpr(traced)(*types)
        except NameError:  # JAX's for an axis that is not bound here
            return None
        return jaxpr, present


def read_call(eqn: Any) -> Call:
    """The call that a `fnjax_call` equation makes."""
    params = eqn.params
    return Call(
        params["rule"].name, _arguments(params["rule"]), params["jaxpr"], params["n_outputs"], params["n_closed"]
    )


def read_backward(call: Call, eqn: Any) -> Call:
    """The same call with what its `fnjax_linear` equation says of the derivative."""
    params = eqn.params
    residuals = tuple(v.aval for v in eqn.invars[: len(params["linear"].kept)])
    return dataclasses.replace(
        call, linear=params["linear"], needs=params["needs"], outputs=params["avals"], residuals=residuals
    )


def _arguments(rule: Any) -> tuple[str, ...]:
    while hasattr(rule, "_rule"):  # a rule under vmap
        rule = rule._rule
    arguments = getattr(rule, "arguments", None)
    if arguments is None:  # traced whole, with the arrays that it captures in front
        return ()
    places = arguments.axes(range(len(arguments.differentiable)))
    names = {
        at: arguments.parameters.name(i) + path for i, tree in enumerate(places) for path, at in named_leaves(tree)
    }
    return tuple(names[at] for at in sorted(names))


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of a pytree with their paths: `.weight`, `[0].bias`; the path of an array by itself is empty."""
    return [
        ("".join(f"[{k.idx}]" if hasattr(k, "idx") else "." + keystr((k,), simple=True) for k in path), leaf)
        for path, leaf in tree_leaves_with_path(tree)
    ]
