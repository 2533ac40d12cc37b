"""The command `fnjax`: `fnjax check module:Name --args "randn(3, 8), 2"`.

It ends with 0 when all is well, 1 when something fails, 2 when it cannot use what it was given.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fnjax._check.gradcheck import double_precision
from fnjax._check.opcheck import TESTS, opcheck
from fnjax._function import Function

NUMPY = ("ones", "zeros", "full", "eye", "arange", "linspace", "array", "float32", "complex128")


class UsageError(Exception):
    """What the user gave cannot be used."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: its arguments; those of the process by default.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="fnjax", description="PyTorch's custom autograd Functions for JAX.")
    commands = parser.add_subparsers(metavar="command", required=True)
    _add_check(commands)
    options = parser.parse_args(argv)
    try:
        return int(options.run(options))
    except UsageError as e:
        print(f"fnjax: {e}", file=sys.stderr)
        return 2


def _add_check(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="test a Function, or any function: derivatives, jit, vmap, scan, remat",
        description="Run fnjax.opcheck on a Function, or on any function of JAX arrays, and print a table.",
        epilog='example: fnjax check layers.py:Swish --args "randn(3, 8), 2"',
    )
    parser.add_argument("target", metavar="module:Name", help="a module or a file, and the Function or function in it")
    parser.add_argument(
        "--args",
        default="randn(3, 4)",
        metavar="ARGS",
        help="the arguments, as Python (default: %(default)s); randn, rand, randint, ones, zeros, full, eye, arange, "
        "linspace and array make NumPy arrays of float64, np is NumPy",
    )
    parser.add_argument("--kwargs", default="", metavar="KWARGS", help="keyword arguments: 'k=2, mode=\"same\"'")
    parser.add_argument("--tests", default="", metavar="NAMES", help=f"a choice, with commas, of {', '.join(TESTS)}")
    parser.add_argument("--argnums", default="", metavar="INDICES", help="the inputs to differentiate, with commas")
    parser.add_argument("--atol", type=float, help="absolute tolerance")
    parser.add_argument("--rtol", type=float, help="relative tolerance")
    parser.add_argument("--seed", type=int, default=0, help="for all random numbers (default: %(default)s)")
    parser.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    func = _find(options.target)
    args, kwargs = _arguments(options.args, options.kwargs, options.seed)
    try:
        argnums = [int(i) for i in options.argnums.split(",")] if options.argnums else None
    except ValueError as e:
        raise UsageError(f"--argnums {options.argnums!r} is no list of numbers") from e
    try:
        with double_precision(args):
            func(*args, **kwargs)
    except Exception as e:
        raise UsageError(f"{options.target} cannot be called with {options.args}: {type(e).__name__}: {e}") from e
    try:
        results = opcheck(
            func,
            args,
            kwargs,
            test_utils=[name.strip() for name in options.tests.split(",")] if options.tests else None,
            raise_exception=False,
            atol=options.atol,
            rtol=options.rtol,
            argnums=argnums,
            seed=options.seed,
        )
    except ValueError as e:  # unknown tests, or inputs without an array to differentiate
        raise UsageError(str(e)) from e
    print(results)
    for name, failure in results.failures.items():
        print(f"\n{name}: {type(failure).__name__}: {failure}")
        for note in getattr(failure, "__notes__", ()):
            if not note.startswith("---"):  # JAX's word on tracebacks, of which there is none here
                print(f"  {note}")
    return 1 if results.failures else 0


def _find(target: str) -> Callable[..., Any]:
    """The function that `module:Name` or `file.py:Name` stands for; a Function class stands for its apply."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(f"{target!r} is not of the form module:Name")
    try:
        found: Any = _module(place)
    except Exception as e:
        raise UsageError(f"cannot import {place!r}: {type(e).__name__}: {e}") from e
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as e:
            raise UsageError(f"there is no {name!r} in {place!r}") from e
    if isinstance(found, type) and issubclass(found, Function):
        found = found.apply
    if not callable(found) or isinstance(found, type):
        raise UsageError(f"{target!r} is neither a Function nor a function, but {found!r:.80}")
    function: Callable[..., Any] = found
    return function


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        if "" not in sys.path:
            sys.path.insert(0, "")  # as `python -m` does
        return importlib.import_module(place)
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    if spec is None or spec.loader is None:
        raise ImportError(f"no module can be made of {place}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _arguments(args: str, kwargs: str, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    rng = np.random.default_rng(seed)
    names: dict[str, Any] = {name: getattr(np, name) for name in NUMPY}
    names |= {
        "np": np,
        "randn": lambda *shape: rng.normal(size=shape),
        "rand": lambda *shape: rng.uniform(size=shape),
        "randint": lambda low, high, shape=(): rng.integers(low, high, shape),
    }
    collect = "(lambda *args, **kwargs: (args, kwargs))"
    try:
        # The command runs the user's module; there is nothing to guard against in the user's arguments.
        positional, _ = eval(f"{collect}({args})", names)
        _, named = eval(f"{collect}({kwargs})", names)
    except Exception as e:
        raise UsageError(f"cannot read --args {args!r} --kwargs {kwargs!r}: {type(e).__name__}: {e}") from e
    return positional, named


if __name__ == "__main__":
    sys.exit(main())
