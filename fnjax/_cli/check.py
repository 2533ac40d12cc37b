"""`fnjax check`: opcheck from the command line."""

from __future__ import annotations

import argparse
import json
import sysconfig
import traceback
from pathlib import Path
from typing import Any

import fnjax
from fnjax._cli import lint
from fnjax._cli.call import UsageError, add_call, arguments, read_argnums
from fnjax._cli.target import find_target, is_pytorch_file, load_target
from fnjax.errors import ArgumentError, FnjaxError

# The tests of opcheck, repeated here: help is shown without JAX.
TESTS = (
    *("test_gradcheck", "test_gradgradcheck", "test_forward_ad", "test_linearity", "test_determinism"),
    *("test_jit", "test_vmap", "test_scan", "test_remat", "test_leaks"),
)


def add(commands: Any) -> argparse.ArgumentParser:
    """Add the subcommand, and return its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "check",
        help="test a Function, or any function: derivatives, jit, vmap, scan, remat",
        description="Run fnjax.opcheck on a Function, or on any function of JAX arrays, and print a table.",
        epilog='example: fnjax check layers.py:Swish --args "randn(3, 8), 2"; fnjax check layers.py checks each '
        "Function of the file that takes the arguments. fnjax.torch runs a PyTorch file, and "
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
    short = ", ".join(name.removeprefix("test_") for name in TESTS)
    parser.add_argument("--tests", default="", metavar="NAMES", help=f"run these tests only, with commas: {short}")
    parser.add_argument("--skip", default="", metavar="NAMES", help="run all tests but these, with commas")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--argnums", metavar="INDICES", help="the inputs to differentiate, with commas")
    parser.add_argument("--atol", type=float, help="absolute tolerance")
    parser.add_argument("--rtol", type=float, help="relative tolerance")
    parser.add_argument("--eps", type=float, help="step of finite differences (1e-2 for what computes with 32 bits)")
    parser.set_defaults(run=run_check)
    return parser


def run_check(options: argparse.Namespace) -> int:
    if options.against_forward and (options.tests or options.skip or options.json):
        raise UsageError("--against-forward is a test of its own: leave --tests, --skip and --json out")
    tests = _choose_tests(options)
    lint.report(options.target.partition(":")[0])
    import jax

    before = jax.config.values["jax_disable_most_optimizations"]
    # A check compiles some hundred small programs that run a few times: optimizing them costs more than it saves.
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        found = _check_all(options, tests)
    finally:
        jax.config.update("jax_disable_most_optimizations", before)
    if options.json and not options.against_forward:
        print(json.dumps({n: r if isinstance(r, str) else _to_json(r) for n, r in found.items()}, indent=2))
    return int(any(r is None or (not isinstance(r, str) and r.failures) for r in found.values()))


def _check_all(options: argparse.Namespace, tests: list[str] | None) -> dict[str, Any]:
    """Check the target, or all Functions in it; return the results by name."""
    if options.target.rpartition(":")[0] and not options.target.endswith(".py"):
        return {options.target: check_one(options, options.target, tests)}
    return _check_file(options, tests)


def _choose_tests(options: argparse.Namespace) -> list[str] | None:
    """Return the names of the tests to run by `--tests` and `--skip`; None for the default ones."""
    chosen, skipped = (
        [n if n.startswith("test_") else f"test_{n}" for n in map(str.strip, text.split(",")) if n]
        for text in (options.tests, options.skip)
    )
    if unknown := [n for n in skipped if n not in TESTS]:
        raise UsageError(f"--skip: there is no test {unknown[0]!r}; there are {', '.join(TESTS)}")
    return [n for n in chosen or TESTS if n not in skipped] if chosen or skipped else None


def _check_file(options: argparse.Namespace, tests: list[str] | None) -> dict[str, Any]:
    """Check all Functions of a module or a file; of those that do not take the arguments, say so."""
    names = list_functions(options.target)
    if not names:
        raise UsageError(f"{options.target} has no Function; name a function: {options.target}:name")
    found: dict[str, Any] = {}
    for name in names:
        if not options.json:
            print(f"{name}:")
        try:
            found[name] = check_one(options, f"{options.target}:{name}", tests)
        except UsageError as e:
            found[name] = f"not checked: {e}"
            if not options.json:
                print(found[name])
    if all(isinstance(r, str) for r in found.values()):
        raise UsageError(
            f"no Function of {options.target} takes --args {options.args!r}: give others, "
            f"such as --args 'randn(3, 8), 2', or check one by {options.target}:Name"
        )
    return found


def list_functions(target: str) -> list[str]:
    """Return the names of the Function classes that a module, or a file by its path, defines.

    Raises:
        UsageError: if it cannot be imported.
    """
    module = load_target(target)
    base: Any = fnjax.torch.autograd.Function if is_pytorch_file(target) else fnjax.Function
    classes = [(n, c) for n, c in vars(module).items() if isinstance(c, type) and issubclass(c, base)]
    return [n for n, c in classes if c.__module__ == module.__name__]


def _to_json(results: Any) -> dict[str, str]:
    return {name: _text(r) if isinstance(r, Exception) else r for name, r in results.items()}


def check_one(options: argparse.Namespace, target: str, tests: list[str] | None) -> Any:
    """Run the tests on one function and print their table; return the results, None where backward is wrong."""
    from fnjax._check.inputs import double_precision
    from fnjax._check.opcheck import opcheck
    from fnjax._check.results import OpcheckResults

    args, kwargs = arguments(options.args, options.kwargs, options.seed)
    func, parameters = find_target(target, options.init, options.seed)
    args = (*parameters.values(), *args)
    if parameters and not options.json:
        print(f"inputs: the parameters {', '.join(parameters)}; then --args")
    argnums = read_argnums(options.argnums)
    try:
        with double_precision(args):
            func(*args, **kwargs)
    except Exception as e:
        text = f"{target} cannot be called with {options.args}: {type(e).__name__}: {e}{_locate(e)}"
        raise UsageError(text) from e
    if options.against_forward:
        return None if _compare(func, args, kwargs, argnums, options) else OpcheckResults()
    try:
        results = opcheck(
            func,
            args,
            kwargs,
            test_utils=tests,
            raise_exception=False,
            atol=options.atol,
            rtol=options.rtol,
            eps=options.eps,
            argnums=argnums,
            seed=options.seed,
        )
    except ValueError as e:  # unknown tests, or inputs without an array to differentiate
        raise UsageError(str(e)) from e
    if not options.json:
        print(results)
        if results.failures:
            print(f"\n{show_failures(results)}")
    return results


def show_failures(results: Any) -> str:
    """Return the messages of the tests that failed, with the places in the user's code."""
    from fnjax._check.results import join_failures

    return join_failures({name: _text(failure) for name, failure in results.failures.items()})


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
    libraries = [str(Path(__file__).parents[1]), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib", "scripts"))]
    for frame in reversed(traceback.extract_tb(exception.__traceback__)):
        file = Path(frame.filename)
        if frame.filename[0] != "<" and not any(map(file.is_relative_to, libraries)):
            return f"\n  raised in {file}, line {frame.lineno}, in {frame.name}: {frame.line}"
    return ""
