"""`kernel[grid](*args, **meta)`: binding of arguments, execution on arrays, and return of what was stored."""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnjax._function.signature import is_torch_tensor
from fnjax.triton.backends import run
from fnjax.triton.compiled import Compiled
from fnjax.triton.containers import Container, is_array, iter_members, open_containers, results_of
from fnjax.triton.debug.check import Check, names_of
from fnjax.triton.debug.draw import Draw
from fnjax.triton.host_code import launching, view
from fnjax.triton.interpreter.carry import alike
from fnjax.triton.interpreter.installed import translate
from fnjax.triton.interpreter.interpreter import call, plain
from fnjax.triton.interpreter.source import Source
from fnjax.triton.interpreter.waits import Marks
from fnjax.triton.original import OPTIONS as COMPILED
from fnjax.triton.tools.tensor_descriptor import TensorDescriptor
from fnjax.triton.values import types
from fnjax.triton.values.affine import GRID, Array, Shape, leading
from fnjax.triton.values.arithmetic import as_tensor
from fnjax.triton.values.blocks import make_tensor_descriptor
from fnjax.triton.values.exceptions import KernelError, NeedsGridSplit, NeedsSequence
from fnjax.triton.values.pointers import pointer_to
from fnjax.triton.values.state import Grid, State, entered, instead, is_running
from fnjax.triton.values.tensor import Tensor

Bound = dict[str, tuple[str, Any]]  # the parameters of a `Launch`, see there
Options = tuple[tuple[str, Any], ...]
Memory = Sequence[jax.Array]
# Options of Triton's compiler: they affect speed, not results.
OPTIONS = {
    "num_warps", "num_stages", "num_ctas", "enable_fp_fusion", "waves_per_eu", "matrix_instr_nonkdim", "kpack",
    "maxnreg", "allow_fp8e4nv", "launch_cooperative_grid", "launch_pdl", "warmup", "device", "stream", "debug",
    "instrumentation_mode", "cluster_dims", "extern_libs", "ptx_version", "sanitize_overflow", "device_type",
    "max_num_imprecise_acc_default", "warp_size", "schedule_hint", "grid", "num_buffers_warp_spec",
    "num_consumer_groups", "reg_dec_producer", "reg_inc_consumer",
}  # fmt: skip


class Launcher:
    """Result of `kernel[grid]`: calling it launches the kernel."""

    def __init__(self, kernel: Any, grid: Grid) -> None:
        self.kernel, self.grid = kernel, grid

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Launch the kernel and return what it stores."""
        with launching():
            return self.kernel.run(*args, grid=self.grid, **named)


class KernelInterface:
    """Base class of what is launched as `kernel[grid](...)` by its method `run`, such as a package's own autotuner."""

    def __getitem__(self, grid: Grid) -> Launcher:
        return Launcher(self, grid)


class Kernel(KernelInterface):
    """Base class of kernels, decorated or not."""

    source: Any  # a Source

    def run(self, *args: Any, grid: Grid, warmup: bool = False, **named: Any) -> Any:
        """Launch the kernel and return the arrays that it stores: one array, or a tuple in the order of parameters.

        Arguments with a `__triton_launch__`, such as the tensors of fnjax.torch, launch it in their own way.

        Raises:
            KernelError: arguments are missing or do not fit, or the grid or a configuration is not valid.
        """
        if warmup:
            return Compiled(self)
        for given in (leaf for value in (*args, *named.values()) for leaf in iter_members(value)):
            value = given.base if isinstance(given, TensorDescriptor) else given
            if hasattr(type(value), "__triton_launch__"):
                return type(value).__triton_launch__(self, grid, args, named)
        return self._launch(args, grid, named)

    def _launch(self, args: Sequence[Any], grid: Grid, named: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def warmup(self, *args: object, grid: object = None, **named: object) -> Compiled:
        """Return a stand-in for Triton's compiled kernel, with `n_regs` and the like; nothing is run or compiled.

        `kernel.warmup(..., grid=(1,))[grid](*args, **meta)` launches it.
        """
        return Compiled(self)

    @property
    def stores(self) -> list[str]:
        """The names of the parameters that the kernel may write to, in their order."""
        return list(self.source.stored)

    @property
    def arg_names(self) -> list[str]:
        """The names of the parameters."""
        return list(self.source.parameters)

    @property
    def check(self) -> Check:
        """Execute a launch program by program, and report its faults: `kernel.check[grid](*args, **meta)`."""
        return Check(self)

    @property
    def draw(self) -> Draw:
        """Draw which program reads and writes which element: `kernel.draw[grid](*args, **meta)`."""
        return Draw(self)

    __name__ = property(lambda self: self.source.name)


class JITFunction(Kernel):
    """Function under `@triton.jit`: launched as `kernel[grid](...)`, or called by another kernel."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.__doc__, self.__module__, self.__wrapped__ = fn.__doc__, fn.__module__, fn

    @functools.cached_property
    def source(self) -> Source:
        """The source of the function, parsed on first use."""
        return Source(self.fn)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the function in the body of another kernel.

        Raises:
            KernelError: it is called outside of a kernel.
            TypeError: the arguments do not fit the parameters.
        """
        if not is_running():
            raise KernelError(f"kernel {self.fn.__name__} is launched as {self.fn.__name__}[grid](...), not called")
        try:
            bound = self.source.signature.bind(
                *args, **{k: v for k, v in named.items() if k not in OPTIONS or k in self.source.parameters}
            )
        except TypeError as error:
            raise TypeError(f"{self.fn.__name__}: {error}") from error
        bound.apply_defaults()
        names = {k: plain(v) for k, v in bound.arguments.items()}
        return call(self.source, names)

    def bind(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by the names of the parameters, defaults included; missing ones are left out.

        Raises:
            KernelError: there are too many arguments, or unknown names.
        """
        source = self.source
        named = {k: v for k, v in named.items() if k in source.parameters or k not in OPTIONS}
        try:
            bound = source.signature.bind_partial(*args, **named)
        except TypeError as error:
            text = f"kernel {source.name}: {error} (its parameters are {', '.join(source.parameters)})"
            raise KernelError(text) from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def _launch(self, args: Sequence[Any], grid: Grid, named: Mapping[str, Any]) -> Any:
        given = self.bind(args, named)
        return _launch(self.source, grid, given, tuple((k, named[k]) for k in COMPILED if k in named))


def _launch(source: Source, grid: Grid, given: dict[str, Any], options: Options) -> Any:
    """Launch a kernel with the parameters `given` by name; return the arrays that it stores, by order of parameters.

    An array passed for several parameters is one operand, and so is its result.
    """
    name = source.name
    missing = [p for p in source.parameters if p not in given]
    if missing:
        raise KernelError(f"kernel {name} needs {', '.join(missing)}, which the launch does not give")
    for parameter in source.parameters:
        given[parameter] = _checked(name, parameter, given[parameter], parameter in source.constants)
    sizes = grid_of(name, grid, given)
    members = open_containers(source, given, _checked)
    described = {p: v.facts() for p, v in given.items() if isinstance(v, TensorDescriptor)}
    given |= {p: given[p].base for p in described}
    arrays, traced = list[Array](), list[jax.Array]()
    parameters: Bound = {}
    seen: dict[int, int] = {}
    for parameter in (*source.parameters, *members):
        value, whole = given[parameter], members.get(parameter, parameter)
        if isinstance(value, Container):
            parameters[parameter] = "container", value
        elif parameter in source.constants or value is None or not is_array(value):
            parameters[parameter] = "value", value
        elif np.ndim(value) == 0 and whole not in source.pointed:
            _refuse_dtype(source, parameter, value)
            parameters[parameter] = "traced", len(traced)
            traced.append(jnp.asarray(value))
        else:
            if id(value) not in seen:
                _refuse_dtype(source, parameter, value)
                seen[id(value)] = len(arrays)
                arrays.append(value)
            parameters[parameter] = "array", seen[id(value)]
    changed = [p for p in (*source.stored, *members) if members.get(p, p) in source.stored]
    outs = {p: seen[id(given[p])] for p in changed if is_array(given[p]) and id(given[p]) in seen}
    if 0 in sizes:  # no program runs
        return results_of(source, given, {p: jnp.asarray(arrays[i]) for p, i in outs.items()})
    stored = tuple(sorted({*outs.values()}))
    parameters = {p: (k, v + len(arrays) if k == "traced" else v) for p, (k, v) in parameters.items()}
    parameters |= {p: ("described", (parameters[p][1], *facts)) for p, facts in described.items()}
    launch = Launch(source, sizes, parameters, len(arrays), stored, options)
    how = instead()
    flat = how(launch, arrays, traced) if how else run(launch, [*(jnp.asarray(a).reshape(-1) for a in arrays), *traced])
    return results_of(source, given, {p: flat[stored.index(i)].reshape(np.shape(arrays[i])) for p, i in outs.items()})


class Launch:
    """Launch without its arrays; two are equal if they become the same program.

    Attributes:
        source: the kernel's.
        grid: three sizes.
        parameters: by name ("array", operand), ("described", (operand, shape, strides, block, padding)),
            ("traced", operand), ("container", a `Container` of other parameters) or ("value", the value); operands
            are given by their index.
        arrays: the number of operands that are flat arrays; they come first, then the traced scalars.
        stored: indices of the operands that are stored to.
        options: of Triton's compiler, as pairs.
        marks: where programs that wait for memory record that they would for ever; known once it is translated.
    """

    marks: Marks | None = None

    def __init__(
        self, source: Source, grid: Shape, parameters: Bound, arrays: int, stored: tuple[int, ...], options: Options
    ) -> None:
        self.source, self.grid, self.arrays, self.options = source, grid, arrays, options
        self.parameters: Mapping[str, tuple[str, Any]] = parameters
        self.stored: Sequence[int] = stored
        values = tuple((p, kind, type(v), repr(v) if types.is_number(v) else v) for p, (kind, v) in parameters.items())
        self._key = source, grid, values, arrays, stored, options

    name = property(lambda self: self.source.name)
    described = property(lambda self: any(k in ("described", "container") for k, _ in self.parameters.values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Launch) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key[:2])

    def __repr__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.grid))}]"

    def translated(self, *operands: jax.Array) -> list[jax.Array]:
        """Return the arrays that the kernel stores to, by JAX operations; raise KernelError for an endless wait."""
        return self.refuse(*self.marked(*operands))

    def marked(self, *operands: jax.Array) -> tuple[list[jax.Array], jax.Array | None]:
        """Return the arrays that are stored, and the mark of an endless wait (`Marks`), None where nothing waits.

        All programs are vectorised; where that is not valid (NeedsSequence), they run one after the other in a loop.
        """
        flat, mark = operands[: self.arrays], None
        memory: Memory
        try:
            memory = _at_once(self, operands, flat)
        except NeedsSequence:
            marks = Marks(self.name, len(flat))
            *memory, mark = _in_sequence(self, operands, flat, marks)
            self.marks, mark = (marks, mark) if marks.loops else (None, None)
        return [memory[i] for i in self.stored], mark

    def refuse(self, stored: list[jax.Array], mark: jax.Array | None) -> list[jax.Array]:
        """Return what `marked` returned as stored; raise KernelError where the mark says that a program never ends."""
        return stored if self.marks is None or mark is None else self.marks.refuse(mark, self.grid, stored)

    def interpret(self, state: State, operands: Sequence[Array]) -> Memory:
        """Interpret the kernel and return memory after it; KernelError: it changes an array that is not `stored`."""
        before = list(state.buffers)
        call(self.source, self.named(operands))
        for i, name in names_of(self).items():
            if state.buffers[i] is not before[i] and i not in self.stored:
                text = f"kernel {self.name} stores to {name} by an expression that is not traced back to it"
                raise KernelError(f"{text}: write tl.store({name} + ..., ...)")
        return state.buffers

    def named(self, operands: Sequence[Array]) -> dict[str, Any]:
        """Return the values of the parameters, by name, that the body of the kernel starts with."""
        names: dict[str, Any] = {}
        for parameter, (kind, value) in self.parameters.items():
            if kind == "array":
                names[parameter] = pointer_to(value, types.type_of_array(operands[value].dtype))
            elif kind == "described":
                operand, *facts = value
                base = pointer_to(operand, types.type_of_array(operands[operand].dtype))
                names[parameter] = make_tensor_descriptor(base, *facts)
            elif kind == "container":
                continue
            elif kind == "traced":
                x = operands[value]
                names[parameter] = Tensor(x.reshape((1,) * leading()), types.type_of_array(x.dtype), ())
            else:
                plain_ = parameter in self.source.constants or not types.is_number(value)
                names[parameter] = value if plain_ else as_tensor(value)
        for parameter, (kind, value) in reversed([*self.parameters.items()]):  # members come after what holds them
            if kind == "container":
                names[parameter] = value.filled(names)
        return {parameter: names[parameter] for parameter in self.source.parameters}


def _refuse_dtype(source: Source, parameter: str, array: Any) -> None:
    try:
        types.type_of_array(array.dtype)
    except TypeError as error:
        text = f"kernel {source.name}, parameter {parameter}: {error}: convert the array with .astype(...)"
        raise KernelError(text) from None


def _checked(kernel: str, parameter: str, value: Any, constant: bool) -> Any:
    """Return an argument ready for a launch: constexprs unwrapped, concrete scalars of constexpr parameters as numbers.

    Raises:
        KernelError: it is a tensor of PyTorch, or a traced value for a constexpr.
    """
    value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
    if is_torch_tensor(value):
        raise KernelError(
            f"kernel {kernel} got a torch tensor as {parameter}: pass a JAX array (jnp.asarray(x.numpy()))"
        )
    if constant and isinstance(value, jax.core.Tracer):
        raise KernelError(
            f"kernel {kernel}: {parameter} is a tl.constexpr, but a traced value was given: pass a number of Python's, "
            "or make the argument static (jax.jit(static_argnums=...))"
        )
    if constant and isinstance(value, jax.Array) and np.ndim(value) == 0:
        return value.item()
    return value


def grid_of(kernel: str, grid: Grid, given: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the three sizes of a grid.

    Args:
        kernel: its name, for messages.
        grid: an integer, a tuple of up to three, or a function of the parameters that returns one of these.
        given: the parameters by name.

    Raises:
        KernelError: the grid is not made of one to three integers from 0 on, or the function fails.
    """
    try:
        found: Any = grid(view(given)) if callable(grid) else grid
    except Exception as error:
        if isinstance(error, KernelError):
            raise
        text = f"kernel {kernel}: the function that is to give the grid failed: {type(error).__name__}: {error}"
        raise KernelError(f"{text} (it is called with a dict of {', '.join(given)})") from error
    found = tuple(found) if isinstance(found, tuple | list) else (found,)
    if not 1 <= len(found) <= GRID:
        raise KernelError(f"kernel {kernel}: a grid has one to three sizes, not {len(found)}")
    try:
        sizes = tuple(operator.index(getattr(n, "value", n)) for n in found)
    except (TypeError, jax.errors.JAXTypeError):
        remedy = "take them from shapes, or make the argument static (jax.jit(static_argnums=...))"
        text = f"kernel {kernel}: the grid {found} must be made of Python integers: {remedy}"
        raise KernelError(text) from None
    if min(sizes) < 0:
        raise KernelError(f"kernel {kernel}: the grid {sizes} has a negative size")
    return sizes + (1,) * (GRID - len(sizes))


def _at_once(launch: Launch, operands: Memory, flat: Memory) -> Memory:
    """Interpret a kernel for all programs at once and return memory after it."""
    splits = None
    while True:  # terminates: each pass adds leading axes, of which there are at most `MOST`
        with entered(State(launch.grid, splits=splits)) as state:
            state.buffers = list(flat)
            try:
                return launch.interpret(state, operands)
            except NeedsGridSplit as signal:
                (splits,) = signal.args


def _in_sequence(launch: Launch, operands: Memory, flat: Memory, marks: Marks) -> tuple[jax.Array, ...]:
    """Interpret a kernel in a loop over its programs, the last axis of the grid fastest; return memory and `marks`'."""

    def program(k: jax.Array, memory: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        rest, programs = k, list[jax.Array]()
        for size in reversed(launch.grid):
            programs.insert(0, rest % size)
            rest = rest // size
        with entered(State(launch.grid, True, programs)) as state:
            state.buffers, state.marks = list(memory), marks
            return tuple(alike(launch.interpret(state, operands), memory))

    first = tuple(alike([*flat, jnp.zeros(2, jnp.int32)], flat))
    return tuple(lax.fori_loop(0, math.prod(launch.grid), program, first))


def jit(fn: Any = None, **options: Any) -> Any:
    """Return a kernel made of a function: `@triton.jit` or `@triton.jit(do_not_specialize=[...])`.

    A kernel of an installed Triton becomes one of fnjax.triton by its source, with its heuristics and configurations.

    Raises:
        TypeError: `fn` is neither a function nor a kernel.
    """
    if fn is None:
        return functools.partial(jit, **options)
    fn = translate(fn)
    if isinstance(fn, Kernel):
        return fn
    if not inspect.isfunction(fn):
        raise TypeError(f"triton.jit takes a function, not a {type(fn).__name__}")
    return JITFunction(fn)
