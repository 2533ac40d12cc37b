"""The target of a subcommand: Functions and functions of JAX source, and those and modules of PyTorch source."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fnjax
from fnjax._cli.call import UsageError, arguments, load, look_up


def is_pytorch_file(place: str) -> bool:
    """Return whether this is a file of PyTorch source, which does not import JAX or fnjax itself."""
    path = Path(place)
    if path.suffix != ".py" or not path.is_file():
        return False
    try:
        imported = list_imported(ast.parse(path.read_bytes()).body)
    except (SyntaxError, ValueError):  # which loading it raises, too
        return False
    return "torch" in imported and not imported & {"jax", "fnjax"}


def list_imported(statements: Sequence[ast.AST]) -> set[str]:
    """Return the first names of the modules that the imports among statements name.

    Examples:
        >>> sorted(list_imported(ast.parse("import numpy as np, torch.nn; from jax import lax").body))
        ['jax', 'numpy', 'torch']
    """
    imports = [s for s in statements if isinstance(s, ast.Import)]
    modules = [s.module or "" for s in statements if isinstance(s, ast.ImportFrom) and not s.level]
    return {name.partition(".")[0] for name in (*modules, *(a.name for s in imports for a in s.names))}


def load_target(place: str) -> Any:
    """Import a module by its name, or by the path of its file; one of PyTorch source is loaded by fnjax.torch.

    Raises:
        UsageError: if it cannot be imported.
    """
    try:
        return fnjax.torch.load(place) if is_pytorch_file(place) else load(place)
    except (Exception, SystemExit) as e:
        raise UsageError(f"cannot import {place!r}: {type(e).__name__}: {e}") from e


def find_target(target: str, init: str, seed: int) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the function at `module:Name` or `file.py:Name`, and a module's parameters.

    Args:
        target: a Function, of which apply is returned, a function, or a module of a PyTorch file.
        init: the arguments of a module's constructor, as text.
        seed: of the random numbers of the constructor and of each call.

    Returns:
        The function, and a module's parameters that require grad as NumPy arrays of float64 by their names; the
        function takes them, in this order, before the inputs.

    Raises:
        UsageError: if it cannot be imported or made, or is neither.
    """
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(f"{target!r} is not of the form module:Name")
    of_torch = is_pytorch_file(place)
    torch: Any = fnjax.torch if of_torch else None
    found: Any = look_up(load_target(place), place, name)
    is_class = isinstance(found, type)
    if is_class and issubclass(found, torch.autograd.Function if of_torch else fnjax.Function):
        return found.apply, {}
    if callable(found) and not is_class:
        return torch.jax_view(found) if of_torch else found, {}
    if not (of_torch and is_class and issubclass(found, torch.nn.Module)):
        kinds = "a Function, a module" if of_torch else "a Function"
        raise UsageError(f"{target!r} is neither {kinds} nor a function, but {found!r:.80}")
    positional, keywords = arguments(init, "", seed)
    try:
        with torch.seed(seed):
            model = found(*positional, **keywords)
    except Exception as e:
        raise UsageError(f"{name} cannot be made with --init {init!r}: {type(e).__name__}: {e}") from e
    parameters = {n: _widen(p) for n, p in model.named_parameters() if p.requires_grad}
    others = {n: _widen(t) for n, t in (*model.named_parameters(), *model.named_buffers()) if n not in parameters}

    import jax

    key = jax.random.key(seed)  # a key that a call made while JAX traces it would outlive the trace

    def call(*args: Any, **kwargs: Any) -> Any:
        params = dict(zip(parameters, args, strict=False))
        with torch.seed(key):
            return torch.func.functional_call(model, {**others, **params}, args[len(params) :], kwargs)

    call.argument_names = [*parameters, *inspect.signature(model.forward).parameters]  # type: ignore[attr-defined]
    return call, parameters


def _widen(tensor: Any) -> Any:
    """Return a tensor as a NumPy array, of float64 where it is of floating-point numbers."""
    import numpy as np

    array = np.asarray(fnjax.torch.jax_view(tensor))
    return array.astype(np.float64) if array.dtype.kind == "f" else array
