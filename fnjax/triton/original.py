"""Execution of the user's kernel by Triton itself, through jax-triton.

jax-triton passes a kernel its inputs first, then its outputs. Triton is therefore given a small kernel with these
parameters that calls the user's function with its own parameters in their order; Triton inlines the call. Names in the
user's function that refer to `fnjax.triton` are replaced by their counterparts in `triton`.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import linecache
import operator
import types as python
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fnjax.triton.interpreter.source import Source
from fnjax.triton.values import types
from fnjax.triton.values.exceptions import KernelError

RESERVED = {  # parameters of jax_triton.triton_call, and tl: a kernel's parameters with such names are renamed
    "kernel", "out_shape", "grid", "name", "custom_call_target_name", "num_warps", "num_stages", "num_ctas",
    "compute_capability", "enable_fp_fusion", "input_output_aliases", "zeroed_outputs", "debug", "serialized_metadata",
    "tl",
}  # fmt: skip
OPTIONS = ("num_warps", "num_stages", "num_ctas", "enable_fp_fusion")
OURS = "fnjax.triton"
VERSION = "0.3.1"  # the supported version of jax-triton
_KERNELS: dict[Any, Any] = {}  # by function: the objects that it refers to, and Triton's kernel
_AROUND: dict[Any, Any] = {}  # kernels that jax-triton calls


def why_not() -> str | None:
    """Return the reason why jax-triton cannot run kernels here; None where it can."""
    try:
        importlib.import_module("triton")
        found = importlib.import_module("jax_triton").__version__
    except ImportError as error:
        return f"jax-triton cannot be imported ({type(error).__name__}: {error})"
    if found != VERSION:  # 0.4 passes outputs differently
        return f"jax-triton {found} is installed, but fnjax calls {VERSION}: pip install '.[triton]'"
    return None


def call(launch: Any, operands: Sequence[Any]) -> Any:
    """Return the arrays that the original kernel stores, flat.

    Args:
        launch: a `fnjax.triton.launch.Launch`.
        operands: its arrays, then the traced scalars.

    Raises:
        Exception: whatever jax-triton raises, with a note that names the kernel.
    """
    import jax_triton

    given: list[Any] = list(operands)
    constants: dict[str, Any] = {}
    calls = []
    for parameter, (kind, value) in launch.parameters.items():
        if kind == "array":
            text = f"output_{launch.stored.index(value)}" if value in launch.stored else f"argument_{value}"
        elif kind == "traced":
            text = f"tl.load(argument_{value})"
        elif value is None:
            text = "None"
        elif parameter not in launch.source.constants and types.is_number(value):
            number = _number(value)
            text = f"argument_{len(given)}" if number is None else number
            if number is None:  # an argument: another number then needs no new program
                given.append(int(value) if isinstance(value, int | np.integer) else np.float32(value))
        else:
            text = f"constant_{parameter}" if parameter in RESERVED else parameter
            constants[text] = swapped(value)
        calls.append(f"{parameter}={text}")
    names = [f"argument_{i}" for i in range(len(given))] + [f"output_{i}" for i in range(len(launch.stored))]
    kernel = _around(launch.source, names, tuple(constants), ", ".join(calls))
    try:
        return jax_triton.triton_call(
            *given,
            kernel=kernel,
            out_shape=[jax.ShapeDtypeStruct(operands[i].shape, operands[i].dtype) for i in launch.stored],
            grid=launch.grid,
            name=launch.source.name,
            input_output_aliases={i: at for at, i in enumerate(launch.stored)},
            **{k: v for k, v in launch.options if v is not None},
            **constants,
        )
    except Exception as error:
        error.add_note(
            f"jax-triton was to run kernel {launch.source.name}; fnjax.triton.backend('jax') runs it as JAX operations"
        )
        raise


def _number(value: types.Number) -> str | None:
    """Return Triton source for a number that is a constant of the program; None if it can be an argument.

    jax-triton would turn every argument that equals 1 into the integer 1.
    """
    if isinstance(value, bool | np.bool_):
        return f"tl.full((), {bool(value)}, tl.int1)"
    return "tl.full((), 1.0, tl.float32)" if isinstance(value, float | np.floating) and value == 1 else None


def _around(source: Source, names: Sequence[str], constants: tuple[str, ...], call_text: str) -> Any:
    """Return a kernel for jax-triton that calls the user's; equal calls return the same object, so it is compiled once.

    Args:
        source: the user's kernel.
        names: its parameters.
        constants: the names of the `tl.constexpr` parameters.
        call_text: the arguments of the call, as source.
    """
    import triton
    import triton.language as tl

    kernel = kernel_of(source)
    key = id(kernel), tuple(names), constants, call_text
    if key not in _AROUND:
        parameters = ", ".join([*names, *(f"{name}: tl.constexpr" for name in constants)])
        inner = f"{source.name}_of_the_user"
        text = f"def {source.name}({parameters}):\n    {inner}({call_text})\n"
        file = f"<fnjax.triton: launch {len(_AROUND)} of {source.name}>"
        linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file  # Triton reads the source
        space = {"__name__": source.function.__module__, "tl": tl, inner: kernel}
        exec(compile(text, file, "exec"), space)
        _AROUND[key] = triton.jit(space[source.name])
    return _AROUND[key]


def kernel_of(source: Source) -> Any:
    """Return the user's function under the real `triton.jit`, cached until an object that it refers to is replaced."""
    import triton

    function = source.function
    code, outside = function.__code__, function.__globals__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    inside = {name: cell.cell_contents for name, cell in cells}
    names = {node.id for node in ast.walk(source.node) if isinstance(node, ast.Name)}  # those of annotations too
    found = {name: outside[name] for name in sorted(names & outside.keys())} | inside
    space = {name: swapped(value) for name, value in found.items()}
    seen = [*found.values(), *(value for value in space.values() if isinstance(value, triton.JITFunction))]
    before, kernel = _KERNELS.get(function, ((), None))
    if len(before) == len(seen) and all(map(operator.is_, before, seen)) and kernel is not None:
        return kernel
    real = python.FunctionType(
        code,
        space | {"__name__": function.__module__, "__builtins__": builtins},
        function.__name__,
        None if function.__defaults__ is None else tuple(map(swapped, function.__defaults__)),
        tuple(python.CellType(space[name]) for name in inside),
    )
    real.__kwdefaults__ = {k: swapped(v) for k, v in (function.__kwdefaults__ or {}).items()} or None
    real.__annotations__ = {k: swapped(v) for k, v in function.__annotations__.items()}
    real.__module__, real.__qualname__ = function.__module__, function.__qualname__
    kernel = triton.jit(real)
    _KERNELS[function] = seen, kernel
    return kernel


def swapped(value: Any) -> Any:
    """Return Triton's counterpart of an object of `fnjax.triton`; other objects as they are.

    Raises:
        KernelError: the installed Triton has no counterpart.
    """
    import triton.language as tl

    if isinstance(value, types.dtype):
        return getattr(tl, value.name)
    if isinstance(value, types.pointer_type):
        return tl.pointer_type(swapped(value.element_ty))
    if isinstance(value, types.constexpr):
        return tl.constexpr(swapped(value.value))
    if type(value) is tuple:
        return tuple(map(swapped, value))
    if isinstance(getattr(value, "source", None), Source):
        return kernel_of(value.source)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, python.ModuleType):
        return _module(value)
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return swapped(types.as_type(value))
    if isinstance(getattr(value, "dtype", None), np.dtype) and callable(value):  # jnp.float32
        return swapped(types.as_type(value.dtype))
    try:
        place = _places().get(value)
    except TypeError:  # unhashable
        return value
    return value if place is None else _real(*place)


@functools.cache
def _places() -> dict[Any, tuple[str, str]]:
    """Return, by function or class of `fnjax.triton`, its module and name."""
    found = {}
    for module in ("", ".language.extra.libdevice", ".language.math", ".language"):
        here = importlib.import_module(OURS + module)
        for name in dir(here):
            value = getattr(here, name)
            if name[0] != "_" and getattr(value, "__module__", "").startswith(OURS):
                found[value] = module, name
    return found


def _real(module: str, name: str) -> Any:
    """Return an object of the installed Triton; KernelError where it has none of this name."""
    try:
        return getattr(importlib.import_module("triton" + module), name)
    except (ImportError, AttributeError):
        raise KernelError(f"Triton, as it is installed, has no {('triton' + module)}.{name}") from None


class _Module(python.ModuleType):
    """Proxy for a module of the user's in which kernels are replaced by Triton's."""

    def __init__(self, module: python.ModuleType) -> None:
        super().__init__(module.__name__)
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        return swapped(getattr(self._module, name))


def _module(module: python.ModuleType) -> python.ModuleType:
    """Return Triton's counterpart of a module: a module of Triton, a proxy, or the module itself."""
    if module.__name__ == OURS or module.__name__.startswith(OURS + "."):
        return importlib.import_module("triton" + module.__name__.removeprefix(OURS))
    ours = [v for v in vars(module).values() if isinstance(getattr(v, "source", None), Source)]
    return _Module(module) if ours else module
