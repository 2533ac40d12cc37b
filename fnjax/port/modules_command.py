"""`fnjax compare --modules`: two modules, submodule by submodule, from the command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import fnjax
from fnjax._cli.call import UsageError, arguments, load
from fnjax._cli.target import is_pytorch_file
from fnjax.port.compare.reference import FNJAX_TORCH, make_reference


def run_compare_modules(options: argparse.Namespace) -> int:
    """Compare a module of one file with that of another; 1 if they differ.

    Raises:
        UsageError: a module cannot be made or called.
    """
    from fnjax.port.compare.modules import compare_modules

    first = _make(options.original, options, make_reference(options.against))
    second = _make(options.ported, options, make_reference(FNJAX_TORCH))
    if options.args is None and not options.kwargs:
        raise UsageError(f"give the arguments of {options.name}'s forward with --args, such as --args 'randn(2, 4)'")
    args, kwargs = arguments(options.args or "", options.kwargs, options.seed)
    try:
        found = compare_modules(first, second, args, kwargs, seed=options.seed, rtol=options.rtol, atol=options.atol)
    except Exception as e:
        raise UsageError(
            f"{options.name} cannot be compared with --args {options.args!r}: {type(e).__name__}: {e}"
        ) from e
    print(f"{options.name}: {found}")
    return 0 if found.equal else 1


def _make(place: str, options: argparse.Namespace, reference: Any) -> Any:
    is_torch = not place.endswith(".py") or is_pytorch_file(place)
    if place.endswith(".py") and not Path(place).is_file():
        raise UsageError(f"there is no file {place!r}")
    try:
        space = (reference.load if is_torch else load)(place)
        kinds = (reference.torch.nn.Module, fnjax.torch.nn.Module)
        names = [n for n, v in vars(space).items() if isinstance(v, type) and issubclass(v, kinds) and v not in kinds]
        if not names:
            raise UsageError(f"{place} defines no module")
        options.name = options.name or (names[0] if len(names) == 1 else "")
        if options.name not in names:
            absent = f"there is no module {options.name} in {place}: " if options.name else ""
            raise UsageError(f"{absent}choose one with --class: {', '.join(names)}")
        positional, keywords = arguments(options.init, "", options.seed, {"torch": reference.torch})
        with fnjax.torch.seed(options.seed):
            model = getattr(space, options.name)(*positional, **keywords)
    except UsageError:
        raise
    except Exception as e:
        init = f" with --init {options.init!r}" if options.init else ""
        raise UsageError(f"{options.name or place} cannot be made{init}: {type(e).__name__}: {e}") from e
    return model.eval() if options.eval else model
