"""`fnjax load`: a report of what fnjax.torch loads of a file, and of what it cannot do."""

from __future__ import annotations

import argparse
import ast
import sys
import types
from pathlib import Path
from typing import Any

import fnjax
from fnjax._cli.call import UsageError
from fnjax._cli.target import list_imported


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "load",
        help="load a PyTorch file and say what of it fnjax.torch has, and what not",
        description="Load a file of PyTorch source by fnjax.torch.load, call nothing of it, and print the Functions, "
        "modules and functions that it defines, the functions whose branches and loops may depend on traced values, "
        "and each line that names something which fnjax.torch does not have. What is wrong only when it is called is "
        "not found; fnjax check calls. Exit status: 0 if all names are there, 1 if not, 2 if it cannot be loaded.",
        epilog="example: fnjax load layers_torch.py",
    )
    parser.add_argument("file", metavar="FILE", help="a PyTorch file")
    parser.set_defaults(run=_run_load)


def _run_load(options: argparse.Namespace) -> int:
    from fnjax.torch.loading.report import list_absent, list_lowered

    if Path(options.file).is_file() and Path(options.file).suffix != ".py":
        raise UsageError(f"{options.file!r} is not a Python file")
    try:
        module = fnjax.torch.load(options.file)
        tree = ast.parse(Path(options.file).read_bytes())
    except Exception as e:
        raise UsageError(f"cannot load {options.file!r}: {type(e).__name__}: {e}") from e
    torch: Any = fnjax.torch
    own = {n: v for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__}
    classes = {n: v for n, v in own.items() if isinstance(v, type)}
    functions = [n for n, v in own.items() if isinstance(v, types.FunctionType)]
    function_bases, module_base = (torch.autograd.Function, fnjax.Function), torch.nn.Module
    kinds = {
        "Functions": [n for n, c in classes.items() if issubclass(c, function_bases)],
        "modules": [n for n, c in classes.items() if issubclass(c, module_base)],
        "other classes": [n for n, c in classes.items() if not issubclass(c, (*function_bases, module_base))],
        "functions": functions,
        "branches and loops that may depend on traced values in": list_lowered(own),
    }
    for kind, names in kinds.items():
        if names:
            print(f"{kind}: {', '.join(names)}")
    if "torch" not in list_imported([*ast.walk(tree)]):
        print(
            f"note: {options.file} does not import torch: a file of JAX source is imported as any other",
            file=sys.stderr,
        )
    if not any(kinds.values()):
        print("no class or function is defined here")
    found = list_absent(tree, vars(module))
    for line, text in found:
        print(f"{options.file}:{line}: {text}")
    return int(bool(found))
