"""Two modules on the same values, submodule by submodule: the first whose output or gradient differs."""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import fnjax
from fnjax._check.streams import make_stream
from fnjax.port.compare.entries import compare_arrays
from fnjax.port.compare.record import TOLERANCES

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Part:
    """An array of both modules, or of one of them.

    Attributes:
        module: the name of the submodule; empty for the whole.
        what: "output 0 of call 1", "gradient of output 0 of call 1, before 'head'" with the submodule that was called
            next, from which it may come, or "gradient of weight".
        problem: how the second side differs; empty where it does not.
    """

    module: str
    what: str
    problem: str

    def __str__(self) -> str:
        return f"{_show(self.module)}, {self.what}: {self.problem or 'agrees'}"


@dataclass(frozen=True)
class ModulesComparison:
    """All parts: outputs in the order of the calls, then gradients in the order of the backward pass.

    Attributes:
        parts: what was compared.
    """

    parts: tuple[Part, ...]

    @property
    def first(self) -> Part | None:
        """The first part that differs."""
        return next((p for p in self.parts if p.problem), None)

    @property
    def equal(self) -> bool:
        """True if nothing differs."""
        return self.first is None

    def __str__(self) -> str:
        differing = [p for p in self.parts if p.problem]
        if not differing:
            return f"all {len(self.parts)} outputs and gradients agree"
        before = self.parts.index(differing[0])
        agree = {0: "nothing was compared before it", 1: "the one before it agrees"}
        modules = [*dict.fromkeys(p.module for p in differing)][1:6]
        more = f"; differences follow in {', '.join(map(_show, modules))}" if modules else ""
        return f"first difference: {differing[0]}\n{agree.get(before, f'the {before} before it agree')}{more}"


def _show(module: str) -> str:
    return repr(module) if module else "the whole module"


@dataclass(frozen=True)
class _Run:
    outputs: dict[tuple[str, int, int], Array]  # by module, call, and which of its results
    gradients: dict[tuple[str, int, int], Array]
    parameters: dict[str, Array | None]


def compare_modules(
    first: Any,
    second: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    names: Mapping[str, str] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
) -> ModulesComparison:
    """Run two modules with the same parameters and inputs, and compare what each submodule returns and receives.

    Args:
        first: a torch.nn.Module, or one of fnjax.torch; its state dict is loaded into the second.
        second: another of either kind.
        args: the arguments of forward, arrays as NumPy arrays; those of floating point are differentiated.
        kwargs: its keyword arguments.
        names: names of submodules and parameters of the first → those of the second, where they differ; a name is
            also that of all below it.
        seed: of the cotangents, and of what a module of fnjax.torch draws.
        rtol: relative tolerance, by default 1e-4.
        atol: absolute tolerance, by default 1e-5, for arrays whose largest element is below 1; it grows with that.

    Returns:
        A ModulesComparison; printing it shows the first part that differs.

    Raises:
        RuntimeError: the second does not take the state dict of the first.
        TypeError: an object is neither kind of module.

    Examples:
        >>> import numpy as np
        >>> from fnjax import torch
        >>> from fnjax.port.compare import compare_modules
        >>> make = lambda slope: torch.nn.Sequential(torch.nn.Tanh(), torch.nn.LeakyReLU(slope))
        >>> print(compare_modules(make(0.1), make(0.2), [np.array([1.0, -2.0])]))
        first difference: '1', output 0 of call 1: the first has -0.0964, the second -0.1928, at (1,)
        the one before it agrees; differences follow in the whole module, '0'
    """
    rename = _make_renaming(names or {})
    state = {rename(k): np.array(_to_numpy(v)) for k, v in first.state_dict().items()}
    torch = find_torch(second)
    second.load_state_dict({k: torch.tensor(v) for k, v in state.items()})
    theirs, ours = (_run(model, args, dict(kwargs or {}), seed) for model in (first, second))
    usual = TOLERANCES["float32"]
    tolerances = usual[0] if rtol is None else rtol, usual[1] if atol is None else atol
    return ModulesComparison(tuple(_list_parts(theirs, ours, rename, tolerances)))


def find_torch(model: Any) -> Any:
    """Return the module that a model has for `torch`: PyTorch, or fnjax.torch.

    Raises:
        TypeError: it is not a module of either.
    """
    if isinstance(model, fnjax.torch.nn.Module):
        return fnjax.torch
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        return torch
    raise TypeError(f"{type(model).__name__} is neither a torch.nn.Module nor a module of fnjax.torch")


def _make_renaming(names: Mapping[str, str]) -> Any:
    def rename(name: str) -> str:
        head, parts = name, list[str]()
        while head:
            if head in names:
                return ".".join([names[head], *parts])
            head, _, last = head.rpartition(".")
            parts.insert(0, last)
        return name

    return rename


def _to_numpy(tensor: Any) -> Array:
    if isinstance(tensor, fnjax.torch.Tensor):
        return np.asarray(tensor.array)
    return tensor.detach().clone().cpu().numpy()  # type: ignore[no-any-return] # PyTorch's


def _list_tensors(value: Any, kind: type) -> list[Any]:
    if isinstance(value, kind):
        return [value]
    members = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [t for v in members for t in _list_tensors(v, kind)]


def _run(model: Any, args: Sequence[Any], kwargs: dict[str, Any], seed: int) -> _Run:
    torch = find_torch(model)
    outputs: dict[tuple[str, int, int], Array] = {}
    gradients: dict[tuple[str, int, int], Array] = {}
    calls: collections.Counter[str] = collections.Counter()

    def enter(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(enter, value))
        if not isinstance(value, np.ndarray):
            return value
        floating = value.dtype.kind == "f"
        tensor = torch.tensor(value.astype(np.float32) if floating else value)
        return tensor.requires_grad_() if floating else tensor

    def watch(name: str) -> Any:
        def hook(module: Any, inputs: Any, result: Any) -> None:
            calls[name] += 1
            for i, tensor in enumerate(_list_tensors(result, torch.Tensor)):
                at = name, calls[name], i
                outputs[at] = _to_numpy(tensor)
                if tensor.requires_grad:
                    tensor.register_hook(lambda g, at=at: gradients.__setitem__(at, _to_numpy(g)))

        return hook

    given, named = enter(tuple(args)), {k: enter(v) for k, v in kwargs.items()}
    for parameter in model.parameters():
        parameter.grad = None
    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules()]
    draw = make_stream("cotangents", seed)
    try:
        with fnjax.torch.seed(seed), torch.random.fork_rng():
            if torch is not fnjax.torch:
                torch.manual_seed(seed)
            found = model(*given, **named)
        results = [t for t in _list_tensors(found, torch.Tensor) if t.requires_grad]
        weights = [torch.tensor(draw.normal(size=tuple(t.shape)).astype(np.float32)) for t in results]
        if results:
            torch.autograd.backward(results, weights)
    finally:
        for handle in handles:
            handle.remove()
    inputs = {f"input {i}": t for i, t in enumerate(_list_tensors((given, named), torch.Tensor)) if t.requires_grad}
    leaves = {**inputs, **dict(model.named_parameters())}
    return _Run(outputs, gradients, {k: None if t.grad is None else _to_numpy(t.grad) for k, t in leaves.items()})


def _list_parts(theirs: _Run, ours: _Run, rename: Any, tolerances: tuple[float, float]) -> Iterator[Part]:
    for kind in ("", "gradient of "):
        mine, own = (theirs.gradients, ours.gradients) if kind else (theirs.outputs, ours.outputs)
        known = [k for k in theirs.outputs if k in mine]
        for at in reversed(known) if kind else known:
            name, call, i = at
            problem = _describe(mine[at], own.get((rename(name), call, i)), tolerances)
            later = [n for n, *_ in known[known.index(at) + 1 :] if n and not name.startswith(f"{n}.")]
            after = f", before {later[0]!r}" if kind and later else ""  # which may have given it back
            yield Part(name, f"{kind}output {i} of call {call}{after}", problem)
    for name, gradient in theirs.parameters.items():
        module, _, last = name.rpartition(".")
        yield Part(module, f"gradient of {last}", _describe(gradient, ours.parameters.get(rename(name)), tolerances))


def _describe(want: Array | None, got: Array | None, tolerances: tuple[float, float]) -> str:
    """Return how an array differs from what it should be, or an empty text; no gradient is a gradient of zero."""
    if want is None or got is None:
        some = want if got is None else got
        return "" if some is None or not some.any() else "the second has none" if got is None else "the first has none"
    size = float(np.max(np.abs(want), where=np.isfinite(want), initial=1.0))
    entry = compare_arrays("", "", want, got, (tolerances[0], tolerances[1] * size), "the first")
    if entry.equal or entry.original is None:
        return entry.message
    return f"the first has {entry.original:.4g}, the second {entry.ported:.4g}, at {entry.worst}"
