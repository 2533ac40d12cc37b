"""Common code of the subcommands: import of the user's modules, and parsing of arguments."""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from fnjax._check.streams import make_stream

NUMPY = ("full", "eye", "arange", "linspace", "array", "float32", "float64", "complex64", "complex128")


class UsageError(Exception):
    """Error in the command line, or a function that cannot be called as requested."""


def add_call(parser: Any) -> None:
    """Add the options for the function to call and its arguments."""
    parser.add_argument("target", metavar="module:Name", help="a module or a file, and the Function or function in it")
    parser.add_argument(
        "--args",
        default="randn(3, 4)",
        metavar="ARGS",
        help="the arguments, as Python (default: %(default)s); randn, rand, ones, zeros, eye and linspace make NumPy "
        "arrays of float64, full, arange and array of what they are given (2 is an integer, 2.0 is not), randint of "
        "integers; np is NumPy",
    )
    parser.add_argument("--kwargs", default="", metavar="KWARGS", help="keyword arguments: 'k=2, mode=\"same\"'")
    parser.add_argument("--seed", type=int, default=0, help="for all random numbers (default: %(default)s)")


def look_up(found: Any, module: str, name: str) -> Any:
    """Return what a module has under a name with dots.

    Raises:
        UsageError: if there is no such name.
    """
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as e:
            similar = difflib.get_close_matches(part, dir(found), 1)
            hint = f": did you mean {similar[0]!r}?" if similar else ""
            raise UsageError(f"there is no {name!r} in {module!r}{hint}") from e
    return found


class _Loader(importlib.machinery.SourceFileLoader):
    """Loader that compiles the file as it is.

    Python's own takes the bytecode of an earlier import where the file's size and the second of its change are equal.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def load(target: str) -> Any:
    """Import and return a module by its name, or by the path of a Python file.

    A file that imports relatively is imported as a module of the folders that it imports from.
    """
    if target.endswith((".pt", ".pth", ".ckpt")):
        raise ImportError(f"{target} holds weights: give the Python file that defines the class")
    if not target.endswith(".py"):
        if Path(target).is_file():
            raise ImportError(f"{target} is not a Python file")
        if Path(target).is_dir() and not Path(target, "__init__.py").is_file():
            raise ImportError(f"{target} is a folder: give one of its files, such as {target.rstrip('/')}/layers.py")
        if "" not in sys.path:
            sys.path.insert(0, "")  # as `python -m` does
        return importlib.import_module(target)
    path = Path(target).absolute()
    if not path.is_file():
        raise ImportError(f"there is no file {target!r}")
    if level := find_import_level(path.read_bytes()):
        if level >= len(path.parents):
            raise ImportError(f"{target} imports relatively from {level} folders above, and is not below so many")
        return import_below(path, path.parents[level])
    loader = _Loader(path.stem, target)
    spec = importlib.util.spec_from_file_location(path.stem, target, loader=loader)
    assert spec is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def find_import_level(text: str | bytes) -> int:
    """Return from how many folders above a source imports relatively at most: 2 for `from ..layers import Swish`."""
    with contextlib.suppress(SyntaxError, ValueError):  # which the import raises, too
        return max((n.level for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom)), default=0)
    return 0


def read_argnums(text: str | None) -> list[int] | None:
    """Return the indices that `--argnums` names; None without it."""
    try:
        return None if text is None else [int(i) for i in text.split(",") if i]
    except ValueError as e:
        raise UsageError(f"--argnums {text!r} is not a list of integers such as 0,2") from e


def import_below(path: Path, folder: Path) -> Any:
    """Import and return a file as a module of the packages below a folder."""
    sys.path.insert(0, str(folder))
    return importlib.import_module(
        ".".join(p for p in path.relative_to(folder).with_suffix("").parts if p != "__init__")
    )


def _size(shape: tuple[Any, ...]) -> Any:
    return shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape


def arguments(
    args: str, kwargs: str, seed: int, more: Mapping[str, Any] | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the values of `--args`, which may contain keyword arguments too, and of `--kwargs`.

    Args:
        args: the text of `--args`.
        kwargs: the text of `--kwargs`.
        seed: the seed of random arrays.
        more: further names that the texts may use.

    Raises:
        UsageError: if they cannot be evaluated.
    """
    if seed < 0:
        raise UsageError(f"--seed {seed} is negative")
    names = {**make_names(seed), **(more or {})}
    collect = "(lambda *args, **kwargs: (args, kwargs))"
    try:
        # The command runs the user's own module, so eval of the user's arguments adds no risk.
        positional, named = eval(f"{collect}({args})", names)
        unnamed, also = eval(f"{collect}({kwargs})", names)
    except Exception as e:
        known = f" (there are {', '.join(sorted(names.keys() - {'__builtins__'}))})" if isinstance(e, NameError) else ""
        raise UsageError(f"cannot read --args {args!r} --kwargs {kwargs!r}: {type(e).__name__}: {e}{known}") from e
    if unnamed:
        raise UsageError(f"--kwargs {kwargs!r} holds an argument without a name: write k=2, or put it into --args")
    return positional, named | also


def make_names(seed: int) -> dict[str, Any]:
    """Return what the texts of arguments may name."""
    import numpy as np

    rng = make_stream("arguments", seed)

    def sized(make: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        """Return a function that accepts `ones(3, 4)` and `ones((3, 4))`, as PyTorch does."""
        return lambda *shape, dtype=np.float64: make(_size(shape), dtype)

    def randn(shape: Any, dtype: Any) -> Any:
        drawn = rng.normal(size=shape)
        values = drawn + 1j * rng.normal(size=shape) if np.issubdtype(dtype, np.complexfloating) else drawn
        return np.asarray(values, dtype)

    return {
        **{name: getattr(np, name) for name in NUMPY},
        "np": np,
        "abs": np.abs,
        "ones": sized(np.ones),
        "zeros": sized(np.zeros),
        "randn": sized(randn),
        "rand": sized(lambda shape, dtype: np.asarray(rng.uniform(size=shape), dtype)),
        "randint": lambda low, high, shape=(): rng.integers(low, high, shape),
    }
