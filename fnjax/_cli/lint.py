"""`fnjax lint`: in methods of Functions, names of PyTorch that mean something else for JAX arrays."""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fnjax._cli.call import UsageError
from fnjax._cli.target import is_pytorch_file

_PAIRS = {
    "max": "x.max(0), x.argmax(0)",
    "min": "x.min(0), x.argmin(0)",
    "sort": "jnp.sort(x), jnp.argsort(x)",
}


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "lint",
        help="find what means something else in PyTorch: x.transpose(0, 1), x.repeat, x.std, x.max(1)[0]",
        description="Read files, run nothing, and print the lines of fnjax.Function classes and of the functions that "
        "they use where a method of JAX arrays has another meaning than that of PyTorch's tensors with the same name: "
        "the table `Same name, other meaning` of the page Coming from PyTorch. Exit status: 0 without such a line, 1 "
        "with one, 2 if a file cannot be read; the others are.",
        epilog="example: fnjax lint layers.py",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a Python file, or a folder: all that are below it")
    parser.set_defaults(run=_run_lint)


def _run_lint(options: argparse.Namespace) -> int:
    found: dict[str, list[str] | None] = {}
    errors = list[UsageError]()
    for name in [name for given in options.files for name in _list_files(given)]:
        try:
            found[name] = lint(name)
        except UsageError as e:
            errors.append(e)
    lines = [line for of_file in found.values() for line in of_file or ()]
    print("\n".join(lines), end="\n" * bool(lines))
    for name in filter(is_pytorch_file, found):
        remedy = f"fnjax load {name} says what fnjax.torch has of it"
        print(f"note: {name} is a PyTorch file; lint reads Functions of fnjax: {remedy}", file=sys.stderr)
    for error in errors:
        print(f"fnjax: {error}", file=sys.stderr)
    if not lines and (found or not errors):
        read = [name for name, of_file in found.items() if of_file is not None]
        what = read[0] if len(read) == 1 else f"{len(read)} files" if read else "no file"
        absent = "" if found else f" ({', '.join(options.files)}: no Python file)"
        print(f"note: Functions of fnjax read in {what}{absent}: nothing to report", file=sys.stderr)
    return 2 if errors else int(bool(lines))


def _list_files(given: str) -> list[str]:
    """Return a file, or the Python files below a folder but those below hidden ones."""
    if not Path(given).is_dir():
        return [given]
    below = sorted(Path(given).rglob("*.py"))
    return [str(path) for path in below if not any(p.startswith(".") for p in path.relative_to(given).parts)]


def lint(name: str) -> list[str] | None:
    """Return a line for each place in a file of Functions where PyTorch's name means something else.

    Returns:
        The lines; None of a file of PyTorch source, or one that has no Functions of fnjax.

    Raises:
        UsageError: if the file is not Python source.
    """
    if Path(name).suffix not in {"", ".py", ".pyi"}:
        raise UsageError(f"{name!r} is not a Python file")
    try:
        tree = ast.parse(Path(name).read_bytes(), name)
    except (OSError, SyntaxError, ValueError) as e:
        raise UsageError(f"cannot read {name!r}: {getattr(e, 'strerror', None) or e}") from e
    imported = {
        (a.asname or a.name).split(".")[0]
        for n in ast.walk(tree)
        if isinstance(n, (ast.Import, ast.ImportFrom))
        for a in n.names
    }
    if "torch" in imported or not {"fnjax", "Function"} & imported:
        return None
    found = {(n.lineno, n.col_offset, text) for n in _iter_nodes(tree) for text in _describe(n, imported)}
    return [f"{name}:{line}:{column + 1}: {text}" for line, column, text in sorted(found)]


def report(target: str) -> None:
    """Print the lines of a file of JAX source on standard error, for `fnjax check`."""
    if target.endswith(".py") and Path(target).is_file():
        for line in lint(target) or ():
            print(f"note: {line}", file=sys.stderr)


def _iter_nodes(tree: ast.Module) -> Iterator[ast.expr | ast.Assign]:
    """Yield the expressions and assignments of Functions, and of the functions of the file that they use."""
    functions = {s.name: s for s in tree.body if isinstance(s, ast.FunctionDef)}
    bases = {n: [ast.unparse(b) for b in n.bases] for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}
    names = {"fnjax.Function", "Function"}
    waiting: list[ast.AST] = []
    for definition, its_bases in bases.items():  # in the order of the text
        if names.intersection(its_bases):
            names.add(definition.name)
            waiting.append(definition)
    while waiting:
        for node in ast.walk(waiting.pop()):
            if isinstance(node, (ast.expr, ast.Assign)):
                yield node
            if isinstance(node, ast.Name) and node.id in functions:
                waiting.append(functions.pop(node.id))


def _describe(node: ast.expr | ast.Assign, imported: set[str]) -> Iterator[str]:
    """Yield what a call means, and what to write, where PyTorch's means something else."""
    match node:
        case ast.Subscript(ast.Call() as call, ast.Constant(0 | 1)):
            pair = True
        case ast.Assign([ast.Tuple([_, _])], ast.Call() as call):
            pair = True
        case ast.Call() as call:
            pair = False
        case _:
            return
    if not isinstance(call.func, ast.Attribute):
        return
    name, owner = call.func.attr, call.func.value
    given = {k.arg for k in call.keywords}
    if name == "gelu" and not pair and len(call.args) == 1 and not given:
        yield "F.gelu is exact, jax.nn.gelu approximates it: write approximate=False, or True if that is meant"
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    if isinstance(owner, ast.Name) and owner.id in imported:  # jnp.repeat is JAX's
        return
    if pair:
        if name in _PAIRS and "axis" not in given:
            yield f"x.{name} is a pair in PyTorch, an array in JAX: write {_PAIRS[name]}"
        return
    axes = ast.unparse(ast.Tuple(call.args, ast.Load()))
    if name == "transpose" and len(call.args) == 2 and axes != "(1, 0)":
        yield f"x.transpose{axes} swaps two axes in PyTorch, permutes all in JAX: write x.swapaxes{axes}"
    elif name == "repeat" and call.args and not given:
        yield f"x.repeat{axes} tiles in PyTorch, repeats each element in JAX: write jnp.tile, or repeat with axis="
    elif name in {"std", "var"} and not given & {"ddof", "correction"}:
        yield f"x.{name} divides by n - 1 in PyTorch, by n in JAX: write ddof=1, or ddof=0 if n is meant"
