"""`fnjax check`: opcheck from the command line."""

from __future__ import annotations

import argparse
import sysconfig
import traceback
from pathlib import Path
from typing import Any

from fnjax._cli.call import UsageError, add_call, arguments, find
from fnjax._cli.pytorch_file import find_in_pytorch_file, is_pytorch_file
from fnjax.errors import ArgumentError, FnjaxError

# The tests of opcheck, repeated here: help is shown without JAX.
TESTS = (
    *("test_gradcheck", "test_gradgradcheck", "test_forward_ad", "test_linearity", "test_determinism"),
    *("test_jit", "test_vmap", "test_scan", "test_remat", "test_leaks"),
)


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "check",
        help="test a Function, or any function: derivatives, jit, vmap, scan, remat",
        description="Run fnjax.opcheck on a Function, or on any function of JAX arrays, and print a table.",
        epilog='example: fnjax check layers.py:Swish --args "randn(3, 8), 2". fnjax.torch runs a PyTorch file, and '
        'its modules are checked, too: fnjax check layers.py:Net --init "8, 4" --args "randn(3, 8)"',
    )
    add_call(parser)
    parser.add_argument(
        "--init", default="", metavar="ARGS", help="the arguments of a module's constructor: '64, bias=False'"
    )
    parser.add_argument(
        "--against-forward",
        action="store_true",
        help="compare backward with JAX's own derivative of forward, gradient by gradient, and do nothing else",
    )
    parser.add_argument("--tests", default="", metavar="NAMES", help=f"a choice, with commas, of {', '.join(TESTS)}")
    parser.add_argument("--argnums", default="", metavar="INDICES", help="the inputs to differentiate, with commas")
    parser.add_argument("--atol", type=float, help="absolute tolerance")
    parser.add_argument("--rtol", type=float, help="relative tolerance")
    parser.add_argument("--eps", type=float, help="step of finite differences (1e-2 for what computes with 32 bits)")
    parser.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    from fnjax._check.inputs import double_precision
    from fnjax._check.opcheck import opcheck
    from fnjax._check.results import join_failures

    if options.against_forward and options.tests:
        raise UsageError("--against-forward is a test of its own: leave --tests out")

    args, kwargs = arguments(options.args, options.kwargs, options.seed)
    if is_pytorch_file(options.target):
        func, parameters = find_in_pytorch_file(options.target, options.init, options.seed)
        args = (*parameters.values(), *args)
        if parameters:
            print(f"inputs: the parameters {', '.join(parameters)}; then --args")
    else:
        func = find(options.target)
    try:
        argnums = [int(i) for i in options.argnums.split(",")] if options.argnums else None
    except ValueError as e:
        raise UsageError(f"--argnums {options.argnums!r} is not a list of integers") from e
    try:
        with double_precision(args):
            func(*args, **kwargs)
    except Exception as e:
        text = f"{options.target} cannot be called with {options.args}: {type(e).__name__}: {e}{_locate(e)}"
        raise UsageError(text) from e
    if options.against_forward:
        return _compare(func, args, kwargs, argnums, options)
    try:
        results = opcheck(
            func,
            args,
            kwargs,
            test_utils=[name.strip() for name in options.tests.split(",")] if options.tests else None,
            raise_exception=False,
            atol=options.atol,
            rtol=options.rtol,
            eps=options.eps,
            argnums=argnums,
            seed=options.seed,
        )
    except ValueError as e:  # unknown tests, or inputs without an array to differentiate
        raise UsageError(str(e)) from e
    print(results)
    if not results.failures:
        return 0
    print(f"\n{join_failures({name: _text(failure) for name, failure in results.failures.items()})}")
    return 1


def _compare(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], argnums: list[int] | None, options: argparse.Namespace
) -> int:
    """Print backward's gradients next to those of JAX's derivative of forward; return the exit status."""
    from fnjax._check.against_forward import compare_with_forward
    from fnjax._check.inputs import double_precision, select_inputs

    how = {name: x for name, x in (("atol", options.atol), ("rtol", options.rtol)) if x is not None}
    try:
        with double_precision(args):
            found = compare_with_forward(
                func, args, kwargs, select_inputs(func, args, argnums), seed=options.seed, **how
            )
    except (ArgumentError, ValueError) as e:
        raise UsageError(str(e)) from e
    except RuntimeError as e:
        print(_text(e))
        return 1
    print(found)
    return 1 if found.wrong else 0


def _text(failure: Exception) -> str:
    """Return the text for a failure: message, location and notes."""
    notes = getattr(failure, "__notes__", ())
    # JAX's note on tracebacks begins with dashes; no traceback is shown here.
    kept = "".join(f"\n  {note}" for note in notes if not note.startswith("---"))
    return f"{type(failure).__name__}: {failure}{_locate(failure)}{kept}"


def _locate(exception: BaseException) -> str:
    """Return a line that names the line of the user's code where an exception was raised, or the empty string."""
    while isinstance(exception, FnjaxError) and exception.__cause__ is not None:
        exception = exception.__cause__
    libraries = [str(Path(__file__).parents[1]), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))]
    for frame in reversed(traceback.extract_tb(exception.__traceback__)):
        file = Path(frame.filename)
        if frame.filename[0] != "<" and not any(map(file.is_relative_to, libraries)):
            return f"\n  raised in {file}, line {frame.lineno}, in {frame.name}: {frame.line}"
    return ""
