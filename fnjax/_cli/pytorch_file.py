"""PyTorch files as targets: their Functions and modules as functions of arrays."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fnjax
from fnjax._cli.call import UsageError, arguments, look_up


def is_pytorch_file(target: str) -> bool:
    """Return whether a target is a file of PyTorch source, which does not import JAX or fnjax itself."""
    path = Path(target.rpartition(":")[0])
    if path.suffix != ".py" or not path.is_file():
        return False
    imported = set(re.findall(r"^(?:import|from)\s+(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    return "torch" in imported and not imported & {"jax", "fnjax"}


def find_in_pytorch_file(target: str, init: str, seed: int) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return a Function, function or module of a PyTorch file as a function of arrays, and its parameters.

    Args:
        target: `file.py:Name`.
        init: the arguments of a module's constructor, as text.
        seed: of the random numbers of the constructor and of each call.

    Returns:
        The function, and a module's parameters that require grad as NumPy arrays of float64 by their names; the
        function takes them, in this order, before the inputs.

    Raises:
        UsageError: if it cannot be loaded or made.
    """
    file, _, name = target.rpartition(":")
    torch: Any = fnjax.torch
    try:
        found: Any = look_up(torch.load(file), file, name)
    except UsageError:
        raise
    except Exception as e:
        raise UsageError(f"cannot load {target!r}: {type(e).__name__}: {e}") from e
    is_class = isinstance(found, type)
    if is_class and issubclass(found, torch.autograd.Function):
        return found.apply, {}
    if not is_class and callable(found):
        return torch.jax_view(found), {}
    if not is_class or not issubclass(found, torch.nn.Module):
        raise UsageError(f"{target!r} is neither a Function, a module nor a function, but {found!r:.80}")
    positional, keywords = arguments(init, "", seed)
    try:
        with torch.seed(seed):
            model = found(*positional, **keywords)
    except Exception as e:
        raise UsageError(f"{name} cannot be made with --init {init!r}: {type(e).__name__}: {e}") from e
    parameters = {n: _widen(p) for n, p in model.named_parameters() if p.requires_grad}
    others = {n: _widen(t) for n, t in (*model.named_parameters(), *model.named_buffers()) if n not in parameters}

    def call(*args: Any, **kwargs: Any) -> Any:
        params = dict(zip(parameters, args, strict=False))
        with torch.seed(seed):
            return torch.func.functional_call(model, {**others, **params}, args[len(params) :], kwargs)

    return call, parameters


def _widen(tensor: Any) -> Any:
    """Return a tensor as a NumPy array, of float64 where it is of floating-point numbers."""
    import numpy as np

    array = np.asarray(fnjax.torch.jax_view(tensor))
    return array.astype(np.float64) if array.dtype.kind == "f" else array
