"""`fnjax compare`: a Function in PyTorch compared with its port, from the command line."""

from __future__ import annotations

import argparse
import ast
import functools
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fnjax._cli.call import UsageError, arguments, read_argnums
from fnjax.port.compare.reference import PYTORCH
from fnjax.port.verify import Job, verify
from fnjax.port.verify.names import list_operator_names
from fnjax.port.verify.record import DIFFERS, VERIFIED
from fnjax.port.verify_command import DIFFERENT, add_search, check_search, read_cases, run_verifiers

DTYPES = ("float32", "float64")  # those of compare's tolerances, spelled once more: help is shown without JAX


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "compare",
        help="compare a Function in PyTorch with its port: outputs, gradients, second derivatives",
        description="Run a torch.autograd.Function, or a custom operator, and its port on the same numbers, eager "
        "and jit. With --args the worst entry of each output, gradient and second derivative is printed. Without, "
        "arguments are searched for, and standard error gets a line for each class: it is verified, "
        "differs (with the smallest call that shows it) or could not be tried. A port that draws random numbers "
        "is given a key; of what depends on them only shapes and dtypes are compared. The original runs in PyTorch, or "
        "in fnjax.torch where PyTorch is not installed. The port is executed, and of the original what the class "
        "needs. Exit status: 0 if all is equal, 1 if "
        "it differs for --args or a class could not be tried, 2 if the input cannot be used, "
        "3 if the search found something that differs.",
        epilog='example: fnjax compare layers_torch.py layers.py --class Swish --args "randn(3, 8), 2"',
    )
    parser.add_argument("original", metavar="ORIGINAL", help="a file or a module in PyTorch")
    parser.add_argument("ported", metavar="PORTED", help="a file or a module with its port")
    parser.add_argument(
        "--class",
        dest="name",
        default="",
        metavar="NAME",
        help="the class, or the operator as mylib::scale, where there are several",
    )
    parser.add_argument(
        "--args", metavar="ARGS", help="the arguments, as Python, as for fnjax check; by default they are searched for"
    )
    parser.add_argument("--kwargs", default="", metavar="KWARGS", help="keyword arguments: 'k=2, mode=\"same\"'")
    add_search(parser)
    parser.add_argument("--report", metavar="FILE", help="write what the search found as JSON")
    parser.add_argument(
        "--argnums", metavar="INDICES", help="the arguments of --args to differentiate, with commas (default: all)"
    )
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="precision (default: %(default)s)")
    parser.add_argument("--no-second", action="store_true", help="leave second derivatives out")
    parser.add_argument("--seed", type=int, default=0, help="for all random numbers (default: %(default)s)")
    parser.add_argument("--atol", type=float, help="absolute tolerance")
    parser.add_argument("--rtol", type=float, help="relative tolerance")
    parser.add_argument(
        "--devices",
        type=int,
        metavar="N",
        help="for Functions with collectives: PyTorch in N gloo processes next to JAX on N forced devices of the CPU, "
        "each with arguments of its own; 'group' in --args is the process group, and the mesh axis",
    )
    parser.add_argument(
        "--modules",
        action="store_true",
        help="compare torch.nn.Modules with the same state, and name the first submodule whose output or gradient "
        "differs: ORIGINAL in PyTorch, or in fnjax.torch where that is not installed, PORTED in fnjax.torch; both may "
        "be one file",
    )
    parser.add_argument("--init", default="", metavar="ARGS", help="with --modules: the constructor's arguments")
    parser.add_argument("--eval", action="store_true", help="with --modules: after model.eval()")
    parser.set_defaults(run=_run_compare)


def _run_compare(options: argparse.Namespace) -> int:
    check_search(options)
    if options.modules:
        from fnjax.port.modules_command import run_compare_modules

        return run_compare_modules(options)
    searched = options.args is None and not options.kwargs
    if searched and options.devices is not None:
        raise UsageError("--devices needs --args")
    if searched and options.argnums is not None:
        raise UsageError("--argnums needs --args: the search tries all patterns")
    if not searched and (options.cases or options.report):
        raise UsageError("--cases and --report are for the search, which --args and --kwargs leave out")
    if options.devices is not None and options.against != PYTORCH:
        raise UsageError("--devices runs PyTorch's gloo processes, and needs PyTorch")
    original, ported = (_find_file(place) for place in (options.original, options.ported))
    texts = [path.read_text("utf-8") for path in (original, ported)]
    found = [list(iter_functions(text, place)) for text, place in zip(texts, (original, ported), strict=True)]
    for place, classes in zip((options.original, options.ported), found, strict=True):
        if options.name and options.name not in classes:
            known = ", ".join(classes) or "none"
            raise UsageError(f"there is no Function class {options.name!r} in {place}; there is: {known}")
    if "fnjax.Function" in texts[0] and "fnjax.Function" not in texts[1]:
        raise UsageError(f"{options.original} is a port: the original comes first, then the port")
    names = [options.name] if options.name else [name for name in found[0] if name in found[1]]
    if not names:
        raise UsageError(f"{options.original} and {options.ported} have no Function class in common")
    cases = read_cases(options, names, "")
    jobs = [
        Job(
            str(original),
            texts[0],
            name,
            place=str(ported) if options.ported.endswith(".py") else options.ported,
            seconds=options.seconds,
            seed=options.seed,
            cases=cases.get(name, []),
            second=not options.no_second,
            options={"dtype": options.dtype, "rtol": options.rtol, "atol": options.atol},
            against=options.against,
        )
        for name in names
    ]
    if searched:
        return _compare_searched(options, jobs)
    if len(names) > 1:
        raise UsageError(f"choose one with --class: {', '.join(sorted(names))}")
    argnums = read_argnums(options.argnums)
    if options.devices is not None:
        return _compare_on_devices(options, names[0], argnums)
    return _compare_called(options, jobs[0], argnums)


def _compare_called(options: argparse.Namespace, job: Job, argnums: list[int] | None) -> int:
    """Compare a class on the arguments of `--args`, in this process."""
    from fnjax.port.compare.reference import make_reference
    from fnjax.port.compare.values import Inputs
    from fnjax.port.verify.calls import read_arguments
    from fnjax.port.verify.verification import find_original, find_port, make_comparing

    sides = []
    for place, find in ((options.original, find_original), (options.ported, find_port)):
        try:
            sides.append(find(job))
        except (Exception, SystemExit) as e:
            raise UsageError(f"cannot import {place!r}: {type(e).__name__}: {e}") from e
    more = {"torch": make_reference(job.against).torch}
    args, kwargs = read_arguments(options.args or "", options.kwargs, options.seed, more)
    if wrong := {*(argnums or ())} - {*Inputs(args).selected}:
        raise UsageError(f"--argnums: argument {min(wrong)} of {job.name} is not an array of floating point numbers")
    try:
        found = make_comparing(job, *sides)(Inputs(args, kwargs, argnums, job.seed))
    except Exception as e:
        called = f"{job.name} of {options.original} cannot be called with {options.args} {options.kwargs}".rstrip()
        raise UsageError(f"{called}: {type(e).__name__}: {e}") from e
    print(f"{job.name}: {'equal' if found.equal else 'different'}\n{found}")
    return 0 if found.equal else 1


def _compare_searched(options: argparse.Namespace, jobs: list[Job]) -> int:
    """Compare classes on arguments that are searched for."""
    verifiers = [(options.original, options.ported, functools.partial(verify, job)) for job in jobs]
    verdicts = run_verifiers(verifiers, seconds=options.seconds)
    if options.report:
        try:
            Path(options.report).write_text(json.dumps({"classes": [v.make_json() for v in verdicts]}, indent=2) + "\n")
        except OSError as e:
            raise UsageError(f"cannot write {options.report!r}: {e.strerror}") from e
    if any(v.status == DIFFERS for v in verdicts):
        return DIFFERENT
    return int(any(v.status != VERIFIED for v in verdicts))


def _compare_on_devices(options: argparse.Namespace, name: str, selected: list[int] | None) -> int:
    """Compare a Function on several devices."""
    from fnjax.port.compare.devices import GROUP, Case, measure_differences, run_devices, run_gloo
    from fnjax.port.compare.values import cast_arrays
    from fnjax.port.verify.calls import NAMES

    if options.devices < 2:
        raise UsageError("--devices takes 2 or more")
    known = NAMES | {"group": GROUP}
    made = [arguments(options.args or "", options.kwargs, options.seed + i, known) for i in range(options.devices)]
    (_, kwargs), args = made[0], [cast_arrays(list(a), options.dtype) for a, _ in made]
    sides = [(f"module.{name}.apply", _write_loading_text(place)) for place in (options.original, options.ported)]
    case = Case(sides[0], sides[1], args, kwargs, selected)
    try:
        (found,) = map(measure_differences, run_gloo([case]), run_devices([case]))
    except RuntimeError as e:
        raise UsageError(str(e)) from e
    tolerance = options.rtol if options.rtol is not None else 1e-5 if options.dtype == "float32" else 1e-9
    equal = True
    for mode, arrays in found.items():
        for what, distance in arrays.items():
            good = not isinstance(distance, str) and distance <= tolerance
            equal = equal and good
            word = distance if isinstance(distance, str) else f"{distance:.1e} of the largest value"
            print(f"{mode:9} {what:12} {'equal' if good else 'DIFFERS'}  {word}")
    print(f"{name}: {'equal' if equal else 'different'} on {options.devices} devices")
    return 0 if equal else 1


def _write_loading_text(place: str) -> str:
    """Return a text that imports a file or a module, and sets each AXIS_NAME to the axis of the comparison."""
    return (
        f"import sys\nfrom fnjax._cli.call import load\nsys.path.insert(0, {str(Path(place).resolve().parent)!r})\n"
        f"module = load({place!r})\n"
        "for known in [m for m in [*sys.modules.values()] if getattr(m, '__dict__', {}).get('AXIS_NAME', 0) is None]:\n"
        "    known.AXIS_NAME = 'devices'\n"
    )


def _find_file(place: str) -> Path:
    """Return the file, or that of the module."""
    path = Path(place)
    if not place.endswith(".py"):
        try:
            spec = importlib.util.find_spec(place)
        except (ImportError, ValueError):
            spec = None
        path = Path(spec.origin) if spec is not None and spec.origin else path
    if path.is_dir():
        raise UsageError(f"cannot import {place!r}: it is a folder: give one of its files")
    if not path.is_file():
        raise UsageError(f"cannot import {place!r}: there is no such file or module")
    if path.suffix != ".py":
        raise UsageError(f"{place!r} is not a Python file")
    return path


def iter_functions(text: str, place: Path) -> Iterator[str]:
    """Yield the Function classes of a file that have a forward, perhaps by a base in the file, and its operators.

    Nothing is executed.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as e:
        raise UsageError(f"cannot import {str(place)!r}: SyntaxError: {e.msg} (line {e.lineno})") from e
    having: set[str] = set()
    # Those of the block that stays PyTorch source, too.
    inner = [s for block in tree.body if isinstance(block, ast.If) for s in block.body]
    for node in (n for n in [*tree.body, *inner] if isinstance(n, ast.ClassDef)):
        bases = [ast.unparse(b) for b in node.bases]
        own = any(isinstance(s, ast.FunctionDef) and s.name == "forward" for s in node.body)
        if any(b in having or (own and not b.endswith("Module")) for b in bases):
            having.add(node.name)
            yield node.name
    yield from list_operator_names(tree)
