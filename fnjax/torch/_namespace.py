"""The names of torch: modules, functions of the table, and what stands in no table."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Self

import jax
import jax.numpy as jnp
import numpy as np

import fnjax
from fnjax._jax.jax_internals import is_transformed
from fnjax.torch import _autograd, _views
from fnjax.torch._call import run
from fnjax.torch._dtypes import DEFAULT, DTYPES, as_dtype, dtype, promote, result_type, type_of_number
from fnjax.torch._errors import NotSupported
from fnjax.torch._missing import Missing, is_loading
from fnjax.torch._table import TABLE, Absent, Operation, find_operation
from fnjax.torch._tensor import Size, Tensor, is_known, make
from fnjax.torch._values import SMALL, Value, compute, get_mode, set_mode, switch

KNOWN: dict[str, Any] = {}  # by qualified name: functions, classes and constants that stand in no table


def known(*names: str) -> Callable[[Any], Any]:
    """Enter an object under qualified names."""

    def enter(value: Any) -> Any:
        KNOWN.update(dict.fromkeys(names, value))
        return value

    return enter


class Namespace(types.ModuleType):
    """A module of torch, whose names are looked up when they are used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = find_or_stand_in(f"{self.__name__}.{name}")
        if not isinstance(found, Missing):
            setattr(self, name, found)
        return found


class _Ops:
    """`torch.ops.aten.add.Tensor` and `torch.ops.mine.scale`: PyTorch's operators by the table, others of fnjax.ops."""

    def __init__(self, name: str = "torch.ops") -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Ops(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _, _, space, name, *_ = self._name.split(".")
        if space in {"aten", "prims", "prim"}:
            found = next(
                (f for n in (f"torch.{name}", f"torch.nn.functional.{name}") if (f := find(n)) is not None), None
            )
            if found is not None:
                return found(*args, **kwargs)
            return getattr(Tensor, name)(*args, **kwargs)
        operator = getattr(getattr(fnjax.ops, space), name)
        is_leaf = lambda x: isinstance(x, Tensor)  # noqa: E731 - for pytrees, once more below
        given = jax.tree.map(jax_array, (args, kwargs), is_leaf=is_leaf)
        return jax.tree.map(lambda x: make(x) if isinstance(x, jax.Array) else x, operator(*given[0], **given[1]))


KNOWN["torch.ops"] = _Ops()


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


KNOWN |= {
    "torch.utils._pytree.tree_map": lambda f, *trees: jax.tree.map(f, *trees, is_leaf=_is_tensor),
    "torch.utils._pytree.tree_flatten": lambda tree: jax.tree.flatten(tree, is_leaf=_is_tensor),
    "torch.utils._pytree.tree_unflatten": lambda leaves, spec: spec.unflatten(leaves),
    "torch.utils._pytree.tree_leaves": lambda tree: jax.tree.leaves(tree, is_leaf=_is_tensor),
    "torch.utils._pytree.register_pytree_node": lambda *_, **__: None,
    "torch.utils._pytree._register_pytree_node": lambda *_, **__: None,
    "torch.utils._pytree._namedtuple_flatten": tuple,
    "torch.utils._pytree._namedtuple_unflatten": tuple,
}


@functools.cache
def module(name: str) -> Namespace:
    """Return the module of a qualified name, `torch.nn.functional`."""
    return Namespace(name)


@functools.cache
def _list_modules() -> frozenset[str]:
    names = {name.rpartition(".")[0] for name in (*TABLE, *KNOWN)} - {"torch.Tensor"}
    return frozenset(".".join(n.split(".")[: i + 1]) for n in names for i in range(n.count(".") + 1))


def find(name: str) -> Any:
    """Return what a qualified name stands for, or None."""
    if name in KNOWN:
        return KNOWN[name]
    if name in _views.VIEWS:
        return _views.VIEWS[name]
    operation = TABLE.get(name)
    if operation is None and isinstance(find_operation(name), Absent) and name not in _list_modules():
        operation = find_operation(name)
    if isinstance(operation, Operation) and not operation.called:
        return run(name, (), {})
    if operation is not None:
        return find_function(name)
    return module(name) if name in _list_modules() else None


_IGNORED = {"device", "layout", "pin_memory", "memory_format", "generator", "requires_grad", "names", "dtype", "size"}


def with_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes a tensor, with `out=`; it takes no option that it does not know."""

    @functools.wraps(function)
    def call(*args: Any, out: Any = None, **named: Any) -> Any:
        own = inspect.signature(function).parameters
        unknown = [n for n in named if n not in own and n not in _IGNORED]
        if unknown:
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument '{unknown[0]}'")
        found = function(*args, **named)
        return found if out is None else write_out(out, found)

    return call


def write_out(out: Any, found: Any) -> Any:
    """Write results into the tensors of `out=`."""
    for target, value in zip(out, found, strict=True) if isinstance(out, (tuple, list)) else [(out, found)]:
        if target.shape != value.shape:
            target.resize_(*value.shape)
        target.copy_(value)
    return out


def find_or_stand_in(name: str) -> Any:
    """Return what a qualified name stands for; while a file is loaded, a stand-in for what is not there.

    Raises:
        NotSupported: it is not there.
    """
    found = find(name)
    if found is None and name not in _NONE:
        if not is_loading():
            raise NotSupported(f"{name} is not a name that fnjax.torch has")
        return Missing(name)
    return found


@functools.cache
def find_function(name: str) -> Callable[..., Any]:
    """Return an operation of the table as a function of tensors."""
    if name in KNOWN:
        return KNOWN[name]
    operation = find_operation(name)

    def call(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        found = run(name, args, kwargs)
        if isinstance(operation, Operation) and (operation.inplace is not None or kwargs.get("inplace") is True):
            return args[0].copy_(found)
        if out is None:
            return found
        return write_out(out, found)

    call.__name__ = call.__qualname__ = name.rpartition(".")[2]
    call.__module__ = name.rpartition(".")[0]
    return call


# ---------------------------------------------------------------------------------- dtypes, devices, constants

for _name, _own in DTYPES.items():
    KNOWN[f"torch.{_name}"] = _own
KNOWN |= {"torch.dtype": dtype, "torch.Size": Size, "torch.Tensor": Tensor}
TYPES = {
    f"{name}Tensor": dtype(own)
    for name, own in {
        "Float": "float32",
        "Double": "float64",
        "Half": "float16",
        "BFloat16": "bfloat16",
        "Byte": "uint8",
        "Char": "int8",
        "Short": "int16",
        "Int": "int32",
        "Long": "int64",
        "Bool": "bool",
    }.items()
}


def construct(own: dtype, *data: Any) -> Tensor:
    """Return what `torch.FloatTensor(2, 3)` and `torch.FloatTensor([1., 2.])` give."""
    if len(data) == 1 and isinstance(data[0], Tensor) and data[0].dtype is own:
        return _views.alias(data[0])
    if len(data) == 1 and isinstance(data[0], (list, tuple, Tensor, np.ndarray)) and not isinstance(data[0], Size):
        return tensor(data[0], dtype=own)
    return make(jnp.zeros(_views._sizes(data or (0,)), own.array), own)


class _TypeOfTensors(type):
    """The type of `torch.FloatTensor`, of which the float32 tensors are instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor) and instance.dtype is cls.own  # type: ignore[attr-defined] # set below

    def __call__(cls, *data: Any, **_: Any) -> Tensor:
        return construct(cls.own, *data)  # type: ignore[attr-defined] # set below


for _name, _own in TYPES.items():
    for _space in ("torch", "torch.cuda"):
        KNOWN[f"{_space}.{_name}"] = _TypeOfTensors(_name, (), {"own": _own})


class Device:
    """A device of torch: there is one, the JAX array's own."""

    def __init__(self, type: Any, index: int | None = None) -> None:  # noqa: A002 - PyTorch's name
        if isinstance(type, int):
            type, index = "cuda", type  # noqa: A001 - as above
        self.type: str
        self.type, _, number = str(type).partition(":")
        self.index = int(number) if number else index

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Device, str)):
            return False
        other = Device(other)
        return other.type == self.type and (None in (self.index, other.index) or self.index == other.index)

    def __hash__(self) -> int:
        return hash(self.type)

    def __repr__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


KNOWN["torch.device"] = Device
for _name in ("inf", "nan", "pi", "e"):
    KNOWN[f"torch.{_name}"] = getattr(np, _name)
_NONE = {"torch.newaxis", "torch.version.hip", "torch.version.xpu"}


class _Version(str):
    """A version that compares by its numbers, with strings and tuples too."""

    __slots__ = ()

    @staticmethod
    def _key(version: Any) -> tuple[int, ...]:
        parts = version if isinstance(version, tuple) else str(version).partition("+")[0].split(".")
        return tuple(int(p) for p in parts if str(p).isdigit())

    def __lt__(self, other: Any) -> bool:
        return self._key(self) < self._key(other)

    def __gt__(self, other: Any) -> bool:
        return self._key(self) > self._key(other)

    def __le__(self, other: Any) -> bool:
        return self._key(self) <= self._key(other)

    def __ge__(self, other: Any) -> bool:
        return self._key(self) >= self._key(other)


KNOWN["torch.__version__"] = _Version("2.13.0")
for _name in (
    "strided",
    "contiguous_format",
    "preserve_format",
    "legacy_contiguous_format",
    "channels_last",
    "channels_last_3d",
):
    KNOWN[f"torch.{_name}"] = _name


class _Info:
    def __init__(self, own: dtype, found: Any) -> None:
        self.dtype, self.bits = own.name, found.bits
        self.min, self.max = (
            (int if own.kind == "int" else float)(found.min),
            (int if own.kind == "int" else float)(found.max),
        )
        if own.kind != "int":
            self.eps, self.tiny, self.resolution = float(found.eps), float(found.tiny), float(found.resolution)
            self.smallest_normal = self.tiny


@known("torch.finfo")
def finfo(type: Any = DEFAULT) -> _Info:  # noqa: A002 - PyTorch's name
    """Return the limits of a floating-point dtype, as Python numbers."""
    own = as_dtype(type).to_real()
    return _Info(own, jnp.finfo(own.numpy))  # type: ignore[no-untyped-call] # of ml_dtypes


@known("torch.iinfo")
def iinfo(type: Any) -> _Info:  # noqa: A002 - PyTorch's name
    """Return the limits of an integer dtype."""
    own = as_dtype(type)
    return _Info(own, jnp.iinfo(own.numpy))  # type: ignore[no-untyped-call] # as above


# ---------------------------------------------------------------------------------- making tensors


def _convert(array: Any, own: dtype) -> jax.Array:
    try:
        return jnp.asarray(array, own.array)
    except OverflowError:
        raise NotSupported(
            f"a number of {own} that does not fit into 32 bits", "switch 64-bit numbers on: JAX_ENABLE_X64=1"
        ) from None


def _options(own: Any, requires_grad: bool, array: Any, default: dtype) -> Tensor:
    found = default if own is None else as_dtype(own)
    if is_transformed() and not isinstance(array, jax.Array) and np.size(array) <= SMALL:
        with jax.ensure_compile_time_eval():  # a number that nobody traces
            made = make(_convert(array, found), found)
    else:
        made = make(_convert(array, found), found)
    return made.requires_grad_() if requires_grad else made


@known("torch.tensor")
def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False
) -> Tensor:
    """Return a tensor of data: numbers, nested lists, NumPy and JAX arrays, tensors among them."""
    if isinstance(data, Tensor):
        own = data.dtype if dtype is None else as_dtype(dtype)
        return _options(own, requires_grad, jax.lax.stop_gradient(data.array), own)
    if isinstance(data, (np.ndarray, np.generic, jax.Array)):
        own = as_dtype(data.dtype)
        return _options(dtype, requires_grad, data, own)
    leaves = _list_leaves(data)
    own = _guess(leaves)
    if any(isinstance(x, Tensor) for x in leaves):
        raw = jax.tree.map(
            lambda x: x.array if isinstance(x, Tensor) else x, data, is_leaf=lambda x: isinstance(x, Tensor)
        )
        return _options(dtype, requires_grad, jnp.asarray(raw), own)
    return _options(dtype, requires_grad, np.asarray(data, own.numpy if dtype is None else None), own)


def _list_leaves(data: Any) -> list[Any]:
    if isinstance(data, (list, tuple)):
        return [leaf for part in data for leaf in _list_leaves(part)]
    return [data]


def _guess(leaves: list[Any]) -> dtype:
    tensors = [x for x in leaves if isinstance(x, (Tensor, np.ndarray, np.generic, jax.Array))]
    numbers = [type_of_number(x) for x in leaves if not isinstance(x, (Tensor, np.ndarray, np.generic, jax.Array))]
    if not leaves:
        return DEFAULT
    return result_type([(as_dtype(t.dtype), 1) for t in tensors], numbers)


@known("torch.as_tensor", "torch.asarray", "torch.from_numpy")
def as_tensor(data: Any, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """Return a tensor of data; the same one where nothing changes."""
    if isinstance(data, Tensor):
        return data if dtype is None else data.to(dtype)
    return tensor(data, dtype=dtype)


def _filled(number: Any) -> Callable[..., Tensor]:
    def fill(*size: Any, dtype: Any = None, requires_grad: bool = False, out: Any = None, **named: Any) -> Tensor:
        sizes = _views._sizes(size or [named.get("size", named.get("shape", ()))])
        own = DEFAULT if dtype is None else as_dtype(dtype)
        return _options(own, requires_grad, jnp.full(sizes, number, own.array), own)

    return fill


KNOWN["torch.zeros"] = KNOWN["torch.empty"] = _filled(0)
KNOWN["torch.ones"] = _filled(1)


@known("torch.empty_strided", "torch.empty_permuted")
def empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    """Return a tensor of these sizes and strides."""
    length = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if _views._sizes([size]) else 1
    base = KNOWN["torch.zeros"](length, dtype=dtype)
    return _views.as_strided(base, tuple(size), tuple(stride), 0)


@known("torch.full")
def full(size: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """Return a tensor of one number."""
    own = as_dtype(dtype) if dtype is not None else _guess([fill_value])
    raw = fill_value.array if isinstance(fill_value, Tensor) else fill_value
    return _options(own, requires_grad, jnp.full(_views._sizes([size]), raw, own.array), own)


def _like(number: Any) -> Callable[..., Tensor]:
    def fill(
        input: Tensor,  # noqa: A002 - PyTorch's name
        fill_value: Any = number,
        *,
        dtype: Any = None,
        requires_grad: bool = False,
        **_: Any,
    ) -> Tensor:
        own = input.dtype if dtype is None else as_dtype(dtype)
        raw = fill_value.array if isinstance(fill_value, Tensor) else fill_value
        array = jnp.broadcast_to(jnp.asarray(raw, own.array), input.shape)
        return _options(own, requires_grad, array, own)

    return fill


KNOWN |= {
    "torch.zeros_like": _like(0),
    "torch.empty_like": _like(0),
    "torch.ones_like": _like(1),
    "torch.full_like": _like(0),
}


@known("torch.arange", "torch.range")
def arange(
    *bounds: Any,
    dtype: Any = None,
    requires_grad: bool = False,
    start: Any = 0,
    end: Any = None,
    step: Any = 1,
    **_: Any,
) -> Tensor:
    """Return equally spaced numbers."""
    if len(bounds) == 1:
        end = bounds[0]
    elif bounds:
        start, end, step = (*bounds, step)[:3]
    given = [b.item() if isinstance(b, Tensor) else b for b in (start, end, step)]
    own = (
        as_dtype(dtype)
        if dtype is not None
        else DEFAULT
        if any(isinstance(b, float) for b in given)
        else DTYPES["int64"]
    )
    if any(isinstance(b, Tensor) for b in given):
        raise NotSupported("torch.arange of a traced number: its length is not known", "pass a Python number")
    count = max(int(np.ceil((given[1] - given[0]) / given[2])), 0)
    return _options(own, requires_grad, given[0] + np.arange(count) * given[2], own)


@known("torch.scalar_tensor")
def scalar_tensor(s: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    """Return a tensor without axes."""
    return tensor(s, dtype=DEFAULT if dtype is None else dtype)


for _name in [
    "zeros",
    "ones",
    "empty",
    "full",
    "zeros_like",
    "ones_like",
    "empty_like",
    "full_like",
    "arange",
    "range",
]:
    KNOWN[f"torch.{_name}"] = with_out(KNOWN[f"torch.{_name}"])

# ---------------------------------------------------------------------------------- questions

KNOWN["torch.is_tensor"] = lambda obj: isinstance(obj, Tensor)
KNOWN["torch.numel"] = lambda x: x.layout.size
KNOWN["torch.promote_types"] = lambda a, b: promote(as_dtype(a), as_dtype(b))
KNOWN["torch.get_default_dtype"] = lambda: DEFAULT
KNOWN["torch.is_floating_point"] = lambda x: x.dtype.is_floating_point
KNOWN["torch.is_complex"] = lambda x: x.dtype.is_complex
KNOWN["torch.clone"] = lambda x, *, memory_format=None: x.clone()


@known("torch.result_type")
def torch_result_type(tensor1: Any, tensor2: Any) -> dtype:
    """Return the dtype in which an operation on both computes."""
    both = (tensor1, tensor2)
    return result_type(
        [(t.dtype, t.ndim) for t in both if isinstance(t, Tensor)],
        [type_of_number(t) for t in both if not isinstance(t, Tensor)],
    )


# ---------------------------------------------------------------------------------- gradient mode


class _GradMode:
    """torch.no_grad and its like: a context manager, a decorator, and for set_grad_enabled a statement."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._stack: list[set_mode] = []

    def __enter__(self) -> Self:
        block = set_mode(switch(self._enabled))
        block.__enter__()
        self._stack.append(block)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.pop().__exit__(*error)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        enabled = self._enabled

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with _GradMode(enabled):
                return function(*args, **kwargs)

        return inside


def _mode_of(enabled: bool) -> Callable[..., Any]:
    def make_mode(function: Any = None, **_: Any) -> Any:
        mode = _GradMode(enabled if not isinstance(function, bool) else enabled == function)
        return mode(function) if callable(function) else mode

    return make_mode


for _space in ("torch", "torch.autograd", "torch.autograd.grad_mode"):
    KNOWN |= {
        f"{_space}.no_grad": _mode_of(False),
        f"{_space}.inference_mode": _mode_of(False),
        f"{_space}.enable_grad": _mode_of(True),
    }


class _SetGradEnabled(_GradMode):
    def __init__(self, mode: bool) -> None:
        super().__init__(mode)
        super().__enter__()

    def __enter__(self) -> Self:
        return self


KNOWN["torch.set_grad_enabled"] = KNOWN["torch.autograd.set_grad_enabled"] = _SetGradEnabled
KNOWN["torch.is_grad_enabled"] = lambda: get_mode().enabled
KNOWN["torch.is_inference_mode_enabled"] = lambda: False
KNOWN |= {"torch.autograd.grad": _autograd.grad, "torch.autograd.backward": _autograd.backward}
KNOWN["torch.autograd.Variable"] = lambda x, requires_grad=False: x.detach().requires_grad_(requires_grad)

# ---------------------------------------------------------------------------------- machinery that computes nothing


def _hand_back(*args: Any, **_: Any) -> Any:
    """Return the function that a compiler would be given; called with options, a decorator."""
    return args[0] if args and callable(args[0]) else lambda function: function


for _name in [
    "jit.script",
    "jit.export",
    "jit.ignore",
    "jit.unused",
    "jit.trace",
    "compile",
    "compiler.disable",
    "compiler.allow_in_graph",
    "_dynamo.disable",
    "compiler.assume_constant_result",
    "jit.script_method",
    "_dynamo.allow_in_graph",
    "fx.wrap",
    "compiler.substitute_in_graph",
]:
    KNOWN[f"torch.{_name}"] = _hand_back


@contextlib.contextmanager
def _nothing(*_: Any, **__: Any) -> Iterator[None]:
    yield


for _name in [
    "autocast",
    "amp.autocast",
    "cuda.amp.autocast",
    "cuda.device",
    "cuda.device_of",
    "cuda.stream",
    "cuda.nvtx.range",
    "random.fork_rng",
    "profiler.record_function",
    "autograd.profiler.record_function",
    "autograd.set_detect_anomaly",
    "autograd.detect_anomaly",
    "cpu.amp.autocast",
    "backends.cudnn.flags",
]:
    KNOWN[f"torch.{_name}"] = _nothing
for _name in [
    "cuda.synchronize",
    "cuda.empty_cache",
    "cuda.ipc_collect",
    "cuda.set_device",
    "cuda.nvtx.range_push",
    "cuda.nvtx.range_pop",
    "cuda.reset_peak_memory_stats",
    "cuda.nvtx.mark",
    "_dynamo.graph_break",
    "_dynamo.mark_dynamic",
    "clear_autocast_cache",
]:
    KNOWN[f"torch.{_name}"] = lambda *_, **__: None
for _name in [
    "compiler.is_compiling",
    "jit.is_scripting",
    "jit.is_tracing",
    "_dynamo.is_compiling",
    "onnx.is_in_onnx_export",
    "is_autocast_enabled",
    "is_anomaly_enabled",
    "are_deterministic_algorithms_enabled",
    "is_autocast_cpu_enabled",
    "compiler.is_dynamo_compiling",
    "_C._get_tracing_state",
    "cuda.is_current_stream_capturing",
    "distributed.is_initialized",
    "distributed.is_available",
]:
    KNOWN[f"torch.{_name}"] = lambda *_, **__: False
KNOWN["torch.get_autocast_gpu_dtype"] = lambda: DTYPES["float16"]
KNOWN["torch.get_autocast_dtype"] = lambda device="cuda": DTYPES["float16"]
KNOWN["torch.cuda.is_available"] = lambda: True
KNOWN["torch.cuda.device_count"] = lambda: 1
KNOWN["torch.cuda.current_device"] = lambda: 0
KNOWN["torch.cuda.get_device_capability"] = lambda device=None: (8, 0)
KNOWN["torch.cuda.get_device_name"] = lambda device=None: "NVIDIA A100"
KNOWN["torch.cuda.get_device_properties"] = lambda device=None: types.SimpleNamespace(
    multi_processor_count=108, name="NVIDIA A100", major=8, minor=0, total_memory=80 << 30, warp_size=32,
    max_shared_memory_per_block=49152, max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536,
)  # fmt: skip
KNOWN["torch.cuda.current_stream"] = lambda device=None: types.SimpleNamespace(cuda_stream=0, synchronize=lambda: None)
KNOWN["torch.version.cuda"] = "12.4"
KNOWN["torch.version.__version__"] = KNOWN["torch.__version__"]


@known("torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all")
def manual_seed(seed: int) -> NoReturn:
    """Raise: there is no global random state."""
    raise NotSupported(
        "torch.manual_seed sets a global state, which JAX has not", "call within `with fnjax.torch.seed(key):`"
    )


@known("torch.utils.checkpoint.checkpoint")
def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: Any = None, **kwargs: Any) -> Any:
    """Call a function; what it would recompute, jax.checkpoint recomputes around it."""
    return function(*args, **kwargs)


@known("torch.autograd.function.once_differentiable")
def once_differentiable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a backward that is differentiated once."""
    function.once_differentiable = True  # type: ignore[attr-defined] # read by _function
    return function


def _cast(custom: bool) -> Callable[..., Any]:
    def decorator(function: Any = None, *, device_type: Any = None, cast_inputs: Any = None) -> Any:
        if function is None:
            return functools.partial(decorator, device_type=device_type, cast_inputs=cast_inputs)
        if not custom or cast_inputs is None:
            return function

        @functools.wraps(function)
        def casting(*args: Any, **kwargs: Any) -> Any:
            def narrow(x: Any) -> Any:
                return x.to(cast_inputs) if isinstance(x, Tensor) and x.dtype.is_floating_point else x

            return function(*map(narrow, args), **{k: narrow(v) for k, v in kwargs.items()})

        return casting

    return decorator


for _space in ("torch.cuda.amp", "torch.amp", "torch.cuda.amp.autocast_mode"):
    KNOWN |= {f"{_space}.custom_fwd": _cast(True), f"{_space}.custom_bwd": _cast(False)}


# ---------------------------------------------------------------------------------- functions that the table cannot say


@known("torch.masked_select", "torch.Tensor.masked_select")
def masked_select(input: Tensor, mask: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
    """Return the entries that a mask selects, along one axis."""
    input, mask = _views.broadcast_tensors(input, mask)  # noqa: A001 - as above
    return input[mask]


@known("torch.where")
def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:  # noqa: A002 - PyTorch's name
    """Return entries of one tensor or another."""
    if input is None:
        return tuple(make(jnp.asarray(i), DTYPES["int64"]) for i in np.nonzero(np.asarray(condition.numpy())))
    both = (input, other)
    own = result_type(
        [(t.dtype, t.ndim) for t in both if isinstance(t, Tensor)],
        [type_of_number(t) for t in both if not isinstance(t, Tensor)],
    )
    values = [t.value if isinstance(t, Tensor) else Value(jnp.asarray(t, own.array)) for t in both]

    def choose(c: Any, a: Any, b: Any) -> tuple[Any, ...]:
        return (jnp.where(c, a.astype(own.array), b.astype(own.array)),)

    value = compute(choose, [condition.value, *values], "WhereBackward")[0]
    return make(value.array, own, value=value)


@known("torch.is_nonzero")
def is_nonzero(input: Tensor) -> bool:  # noqa: A002 - PyTorch's name
    """Return whether the one entry is not zero."""
    return bool(input)


def jax_array(x: Any) -> Any:
    """Return the array of a tensor, anything else as it is."""
    return x.array if isinstance(x, Tensor) else x


def is_traced(x: Any) -> bool:
    """Return whether JAX traces a tensor."""
    return isinstance(x, Tensor) and not is_known(x.array)


KNOWN["torch._C._VariableFunctions"] = module("torch")
