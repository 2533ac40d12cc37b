"""Comparison of a Function in PyTorch with its port."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from fnjax.port.compare.entries import compare_entries, find_differing
from fnjax.port.compare.in_jax import Port, is_as_is
from fnjax.port.compare.record import TOLERANCES, Comparison, Entry
from fnjax.port.compare.reference import FNJAX_TORCH, Reference, describe_reference, make_reference
from fnjax.port.compare.values import Inputs, Results, Values, is_inexact
from fnjax.port.result import KEYS

MODES = ("eager", "jit")


def compare(
    original: Callable[..., Any],
    ported: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    argnums: Sequence[int] | None = None,
    dtype: str = "float32",
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    key: str = "",
    second: bool = True,
    against: str | None = None,
) -> Comparison:
    """Run a Function in PyTorch and its port on the same values, and compare.

    Gradients are those of random cotangents, and second derivatives those of the gradients, with random cotangents
    again. What PyTorch does not differentiate gets a cotangent too: the port must have zero there. Complex
    gradients are compared in PyTorch's convention, the conjugate of JAX's.

    Args:
        original: `Name.apply` of a torch.autograd.Function, or any function of tensors.
        ported: `Name.apply` of a fnjax.Function, or any function of JAX arrays.
        args: the arguments, arrays as NumPy arrays; floats and complex numbers take the precision of dtype.
        kwargs: keyword arguments.
        argnums: which arguments are differentiated; by default all arrays of floating point or complex numbers.
        dtype: "float32" or "float64", which is PyTorch's default dtype for that time, too.
        rtol: relative tolerance, by default 1e-4 for float32 and 1e-7 for float64.
        atol: absolute tolerance, by default 1e-5 and 1e-9.
        seed: for the random cotangents, and for what the port draws.
        key: the name of the port's argument that takes a key of jax.random, if it draws random numbers. What depends on
            them is found by running both sides with several seeds; of that only shapes and dtypes are compared.
        second: whether second derivatives are compared too.
        against: what runs the original: "pytorch" (the default where it is installed) or "fnjax.torch".

    Returns:
        A Comparison; printing it shows the worst element of each array.

    Raises:
        ValueError: for another dtype.
        ImportError: against PyTorch, where that is not installed.
        Exception: whatever the original raises when it is called.
    """
    inputs = Inputs(args, kwargs or {}, argnums, seed)
    return Comparing(original, ported, dtype, rtol, atol, key, second, against)(inputs)


@dataclass
class Comparing:
    """Original and port, compared for several inputs; programs that jit compiles serve the next ones.

    The attributes are the parameters of `compare`.
    """

    original: Callable[..., Any]
    ported: Callable[..., Any]
    dtype: str = "float32"
    rtol: float | None = None
    atol: float | None = None
    key: str = ""
    second: bool = True
    against: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in TOLERANCES:
            raise ValueError(f"dtype must be 'float32' or 'float64', not {self.dtype!r}")
        rtol, atol = TOLERANCES[self.dtype]
        self.tolerances = (rtol if self.rtol is None else self.rtol, atol if self.atol is None else self.atol)
        self.reference: Reference = make_reference(self.against)
        self.is_pytorch = self.reference.name == "PyTorch"
        self.ports: dict[Any, Port] = {}

    def __call__(self, inputs: Inputs, modes: Sequence[str] = MODES) -> Comparison:
        """Compare for these inputs, in the precision of the comparison."""
        inputs = inputs.cast(self.dtype)
        with jax.enable_x64(self.dtype == "float64"):
            return self.judge(*self.run_original(inputs), inputs, modes)

    def run_original(self, inputs: Inputs, fill: int = 0) -> tuple[Results, list[Values]]:
        """Return the original's results, and the cotangents that were drawn; memory that is not set holds `fill`."""
        if is_as_is(self.ported):
            inputs = replace(inputs, dtype="float32")  # torch's default dtype, there as in fnjax.torch
        theirs, cotangents = self.reference.run(self.original, inputs, fill)
        if not self.second:
            theirs = replace(theirs, seconds=[], error=None if theirs.gradients else theirs.error)
        return theirs, cotangents

    def judge(
        self, theirs: Results, cotangents: Sequence[Values], inputs: Inputs, modes: Sequence[str] = MODES
    ) -> Comparison:
        """Compare the port's results with those of the original."""
        port, selected = self._find_port(inputs), inputs.selected
        drawn: set[str] = set()
        key: dict[str, Any] = {}
        if self.key:
            keys = [{self.key: k} for k in jax.random.split(jax.random.key(inputs.seed), 4)]
            key = keys[0]
            again = [port.run_port(inputs.args, k, cotangents, "eager", theirs) for k in keys]
            again_theirs = [self.run_original(inputs)[0] for _ in keys]
            drawn = find_differing(again, selected) | find_differing([theirs, *again_theirs], selected)
        found: list[Entry] = []
        unmeasured: set[str] = set()
        for mode in modes:
            ours = port.run_port(inputs.args, key, cotangents, mode, theirs)
            compared = list(compare_entries(theirs, ours, mode, selected, self.tolerances, drawn, self.reference.name))
            if self.is_pytorch:
                from fnjax.port.compare.known_discrepancies import Original, mark_known_discrepancies

                side = Original(self.original, inputs, cotangents)
                compared = list(mark_known_discrepancies(compared, side, theirs.seconds, ours.seconds, unmeasured))
            found += compared
        notes = [] if self.is_pytorch else [describe_reference(FNJAX_TORCH)]
        notes += _list_notes(found, theirs, inputs.args, unmeasured, drawn, self.reference.name)
        return Comparison(tuple(found), tuple(notes))

    def _find_port(self, inputs: Inputs) -> Port:
        """Return the port for arguments like these; arrays by shape and dtype, anything else as it is."""
        static = [(a.shape, str(a.dtype)) if isinstance(a, np.ndarray) else (type(a), repr(a)) for a in inputs.args]
        layout = (*static, repr(inputs.kwargs), inputs.argnums and tuple(inputs.argnums))
        if layout not in self.ports:
            self.ports[layout] = Port(self.ported, inputs)
        return self.ports[layout]


def find_key(original: Any, ported: Any) -> str:
    """Return the name of the port's last argument if it is a key that the original lacks; else an empty text."""
    theirs, ours = (list(inspect.signature(c.forward).parameters) for c in (original, ported))
    return ours[-1] if len(ours) == len(theirs) + 1 and ours[-1] in KEYS else ""


def _list_notes(
    found: Sequence[Entry], theirs: Results, args: Sequence[Any], unmeasured: set[str], drawn: set[str], name: str
) -> list[str]:
    """Return notes on what could not be compared."""
    notes = []
    if any(e.known for e in found):
        notes.append(
            "PyTorch takes what forward computed and saved for constant when it differentiates backward, and what "
            "torch.autograd gave without create_graph; JAX's second derivatives are right there, as finite differences "
            "of PyTorch's gradient confirm"
        )
    notes += [
        f"which of the second derivatives that differ is right cannot be measured by finite differences: {why}"
        for why in sorted(unmeasured)
    ]
    if drawn:
        notes.append(
            f"of what depends on random numbers only shapes and dtypes are compared: {', '.join(sorted(drawn))}"
        )
    if theirs.constant:
        notes.append(f"PyTorch does not differentiate {', '.join(theirs.constant)}; the port must not either")
    if theirs.error is not None:
        which = "second derivatives" if theirs.gradients else "derivatives"
        notes.append(f"{name} has no {which} here: {type(theirs.error).__name__}: {theirs.error}")
    if not any(is_inexact(a) for a in args):
        notes.append("no argument is an array of floating point or complex numbers: only outputs are compared")
    return notes
