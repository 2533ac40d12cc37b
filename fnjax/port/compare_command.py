"""`fnjax compare`: a Function in PyTorch and its port, side by side, from the command line."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
from typing import Any

from fnjax._class.function import Function
from fnjax._cli.call import UsageError, arguments, load
from fnjax.port.compare import TOLERANCES, compare
from fnjax.port.result import KEYS


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "compare",
        help="compare a Function in PyTorch with its port: outputs, gradients, second derivatives",
        description="Run a torch.autograd.Function and its port on the same numbers, eager and jit, and print the "
        "worst entry of each output, gradient and second derivative. A port that draws random numbers is given a key; "
        "of what depends on them only shapes and dtypes are compared. Needs PyTorch, and executes both files.",
        epilog='example: fnjax compare layers_torch.py layers.py --class Swish --args "randn(3, 8), 2"',
    )
    parser.add_argument("original", metavar="ORIGINAL", help="a file or a module in PyTorch")
    parser.add_argument("ported", metavar="PORTED", help="a file or a module with its port")
    parser.add_argument("--class", dest="name", default="", metavar="NAME", help="the class, where there are several")
    parser.add_argument(
        "--args",
        default="randn(3, 4)",
        metavar="ARGS",
        help="the arguments, as Python (default: %(default)s); as for fnjax check",
    )
    parser.add_argument("--kwargs", default="", metavar="KWARGS", help="keyword arguments: 'k=2, mode=\"same\"'")
    parser.add_argument("--dtype", default="float32", choices=list(TOLERANCES), help="precision (default: %(default)s)")
    parser.add_argument("--no-second", action="store_true", help="leave second derivatives out")
    parser.add_argument("--seed", type=int, default=0, help="for all random numbers (default: %(default)s)")
    parser.add_argument("--atol", type=float, help="absolute tolerance")
    parser.add_argument("--rtol", type=float, help="relative tolerance")
    parser.set_defaults(run=_compare)


def _compare(options: argparse.Namespace) -> int:
    if importlib.util.find_spec("torch") is None:
        raise UsageError("compare needs PyTorch, which is not installed")
    import torch

    originals = _classes(options.original, torch.autograd.Function)
    ports = _classes(options.ported, Function)
    name = options.name or _only(set(originals) & set(ports), options)
    for place, classes in ((options.original, originals), (options.ported, ports)):
        if name not in classes:
            raise UsageError(f"there is no Function class {name!r} in {place}")
    args, kwargs = arguments(options.args, options.kwargs, options.seed)
    try:
        found = compare(
            originals[name].apply,
            ports[name].apply,
            args,
            kwargs,
            dtype=options.dtype,
            rtol=options.rtol,
            atol=options.atol,
            seed=options.seed,
            key=_key(originals[name], ports[name]),
            second=not options.no_second,
        )
    except Exception as e:
        raise UsageError(
            f"{name} of {options.original} cannot be called with {options.args} {options.kwargs}".rstrip()
            + f": {type(e).__name__}: {e}"
        ) from e
    print(f"{name}: {'equal' if found.equal else 'different'}\n{found}")
    return 0 if found.equal else 1


def _key(original: Any, ported: Any) -> str:
    """The last argument of the port's forward, where that is a key that the original has not; else empty."""
    theirs, ours = (list(inspect.signature(c.forward).parameters) for c in (original, ported))
    return ours[-1] if ours[:-1] == theirs and ours[-1] in KEYS else ""


def _classes(place: str, base: type) -> dict[str, Any]:
    """The Function classes that a file or module defines, by name."""
    try:
        module = load(place)
    except Exception as e:
        raise UsageError(f"cannot import {place!r}: {type(e).__name__}: {e}") from e
    found = {k: v for k, v in vars(module).items() if isinstance(v, type) and issubclass(v, base) and v is not base}
    return {k: v for k, v in found.items() if v.__module__ == module.__name__}


def _only(names: set[str], options: argparse.Namespace) -> str:
    if len(names) == 1:
        return names.pop()
    if not names:
        turned = _classes(options.original, Function) and "; the original comes first, then the port"
        raise UsageError(f"no Function class stands in both {options.original} and {options.ported}{turned or ''}")
    raise UsageError(f"choose one with --class: {', '.join(sorted(names))}")
