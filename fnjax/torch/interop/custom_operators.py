"""`torch.library`: operators on tensors, each a fnjax.custom_op on arrays."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import jax

import fnjax
from fnjax._op import registry
from fnjax._op import schema as schemas
from fnjax._op.running import PLATFORMS
from fnjax._torch_ops.registry import KNOWN, known
from fnjax.torch._autograd.arrays import is_array
from fnjax.torch._autograd.function.codec import TensorCodec
from fnjax.torch._autograd.function.function import Function, read_class
from fnjax.torch._autograd.function.saved import save
from fnjax.torch._autograd.transforms import record
from fnjax.torch.errors import NoSuchNameError, NotSupported
from fnjax.torch.interop.operator_bodies import (
    Method,
    OwnDtypes,
    enter,
    is_tensor,
    leave,
    on_arrays,
    own_dtypes,
    translate_signature,
)
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.names.registry import find
from fnjax.torch.recording.blocks import setting
from fnjax.torch.recording.gradient_mode import FORWARD, Mode, set_mode

OPERATORS: dict[str, CustomOpDef] = {}  # by `namespace::name`
_IGNORED = {"MPS", "XPU", "HPU", "HIP", "PrivateUse1", "AutocastCPU", "AutocastCUDA", "BackendSelect", "Functionalize"}
_KEYS = {"default": "CompositeExplicitAutograd", "cpu": "CPU", "cuda": "CUDA", "mps": "MPS", "xpu": "XPU", "hpu": "HPU"}


class CustomOpDef:
    """An operator on tensors; given arrays, it returns arrays.

    Attributes:
        on_arrays: the operator of fnjax.
    """

    def __init__(self, operator: Any) -> None:
        self.on_arrays = operator
        self.__name__ = self._name = operator.__name__
        self._qualname = operator.__qualname__
        OPERATORS[self._qualname] = self

    @property
    def default(self) -> CustomOpDef:
        """The operator itself."""
        return self

    _opoverload = default

    def __repr__(self) -> str:
        return f"<CustomOpDef({self._qualname})>"

    @property
    def _mutated(self) -> list[str]:
        return [p.name for p in self.on_arrays._schema_read.mutated]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operator; new values of the arguments that it mutates are written into these tensors."""
        schema = self.on_arrays._schema_read
        bound = schema.signature.bind(*args, **kwargs)
        dtypes = OwnDtypes(bound.args, bound.kwargs)

        def run(*args: Any, **kwargs: Any) -> Any:
            given, named = jax.tree.map(leave, (args, kwargs))
            with setting(own_dtypes, dtypes):
                return self.on_arrays(*given, **named)

        if not any(map(is_tensor, jax.tree.leaves((args, kwargs), is_leaf=is_tensor))):
            return run(*args, **kwargs)
        found, _ = record(run, args, kwargs, self.__name__, lambda: dtypes.results)
        if not schema.mutated:
            return found
        members = list(found) if isinstance(found, tuple) else [found]
        arguments = bound.arguments
        own, new = members[: len(schema.returns)], members[len(schema.returns) :]
        for p, value in zip(schema.mutated, new, strict=True):
            targets, sources = (
                jax.tree.flatten(arguments.get(p.name), is_leaf=is_tensor)[0],
                jax.tree.leaves(value, is_leaf=is_tensor),
            )
            for target, source in zip(targets, sources, strict=True):
                target.assign(source.value)
        return tuple(own) if schema.is_tuple else own[0] if own else None

    def register_fake(self, fn: Method, /, **_: Any) -> Method:
        """Register the shapes and dtypes of the results."""
        body: Any = on_arrays(fn, self._mutated)
        body.unchecked = True  # outside of torch.compile PyTorch does not call it, right or wrong
        self.on_arrays.register_fake(body)
        return fn

    def register_kernel(self, device_types: Any, func: Method | None = None, /) -> Any:
        """Register a body for a platform; that for CUDA runs on all platforms without a body of their own.

        Loaded code sees a GPU as its device. Platforms that JAX does not have are ignored.
        """
        if func is None:
            return functools.partial(self.register_kernel, device_types)
        given = [device_types] if isinstance(device_types, str) or device_types is None else device_types
        body = on_arrays(func, self._mutated)
        for platform in given:
            if platform is None or platform in PLATFORMS:
                self.on_arrays.register_kernel(platform, body)
            if platform == "cuda" and None not in self.on_arrays._kernels:
                self.on_arrays.register_kernel(None, body)
        return func

    def register_autograd(self, backward: Method, /, *, setup_context: Method | None = None, **_: Any) -> None:
        """Register the derivative."""
        space = {"forward": staticmethod(lambda *_: None), "backward": staticmethod(backward)}
        cls: Any = type(self.__name__, (Function,), space)
        codec = TensorCodec(cls, read_class(cls))

        def setup(ctx: Any, inputs: tuple[Any, ...], output: Any, keyword_only_inputs: Any = None) -> None:
            dtypes = own_dtypes.get() or OwnDtypes((), {})
            tensors = tuple(map(enter, inputs, ctx.needs_input_grad, [*dtypes.args, *[None] * len(inputs)]))
            own = cls._ctx(ctx.needs_input_grad, tensors)
            of_results = iter(dtypes.results)
            results = jax.tree.map(lambda x: enter(x, False, next(of_results, None)) if is_array(x) else x, output)
            more = {} if keyword_only_inputs is None else {"keyword_only_inputs": enter(keyword_only_inputs)}
            if setup_context is not None:
                with set_mode(FORWARD):
                    setup_context(ctx=own, inputs=tensors, output=results, **more)
            members = list(results) if isinstance(results, (tuple, list)) else [results]
            save(ctx, own, list(tensors), members)

        def run_backward(ctx: Any, *grads: Any) -> Any:
            found, _ = codec.backward(ctx, grads)
            return leave(found)

        self.on_arrays.register_autograd(run_backward, setup_context=setup)

    def register_vmap(self, func: Method | None = None) -> Any:
        """Register a batching rule."""
        if func is None:
            return self.register_vmap

        def batched(info: Any, in_dims: Any, *args: Any, **kwargs: Any) -> Any:
            found, out_dims = func(info, in_dims, *map(enter, args), **{k: enter(v) for k, v in kwargs.items()})
            return leave(found), out_dims

        self.on_arrays.register_vmap(batched)
        return func

    def register_torch_dispatch(self, *args: Any, **_: Any) -> Any:
        """Accept a rule for a tensor subclass, of which there are none."""
        return args[1] if len(args) > 1 else lambda function: function

    def set_kernel_enabled(self, device_type: str, enabled: bool = True) -> Any:
        """Use, or do not use, the kernel of a platform in a block."""
        return self.on_arrays.set_kernel_enabled(device_type, enabled)


@known(
    "torch.library.custom_op", "torch.library.triton_op", "torch._library.custom_op", "torch._library.triton.triton_op"
)
def custom_op(
    name: str,
    fn: Method | None = None,
    /,
    *,
    mutates_args: str | Iterable[str],
    device_types: Any = None,
    schema: str | None = None,
    tags: Any = None,
) -> Any:
    """Make a function of tensors an operator (torch.library.custom_op)."""
    if fn is None:
        return lambda fn: custom_op(name, fn, mutates_args=mutates_args, device_types=device_types, schema=schema)
    text = schema if schema is not None else infer_schema(fn, mutates_args=mutates_args)
    read = schemas.read_schema(text)
    names = [p.name for p in read.mutated]
    devices = None if device_types is None else ()  # these are registered below
    operator = CustomOpDef(
        fnjax.custom_op(name, on_arrays(fn, names), mutates_args=tuple(names), device_types=devices, schema=text)
    )
    if device_types is not None:
        operator.register_kernel(device_types, fn)
    return operator


@known("torch.library.infer_schema", "torch._library.infer_schema.infer_schema", "torch._custom_op.impl.infer_schema")
def infer_schema(
    prototype_function: Method, /, mutates_args: str | Iterable[str] = (), op_name: str | None = None
) -> str:
    """Return the schema of a function by its annotations."""

    def stand_in(*_: Any, **__: Any) -> None: ...

    stand_in.__signature__ = translate_signature(prototype_function)  # type: ignore[attr-defined] # read by inspect
    stand_in.__name__ = prototype_function.__name__
    return fnjax.infer_schema(stand_in, mutates_args=mutates_args, op_name=op_name)


@known("torch.library.Library")
class Library:
    """A namespace to define operators in by their schema."""

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        self.ns, self.kind = ns, kind
        self._on_arrays = fnjax.Library(ns, kind, dispatch_key)
        self._key = dispatch_key

    def define(self, schema: str, alias_analysis: str = "", *, tags: Any = ()) -> str:
        """Define an operator without a body."""
        name = self._on_arrays.define(schema)
        CustomOpDef(registry.OPERATORS[f"{self.ns}::{name}"])
        return name

    def impl(self, op_name: Any, fn: Method, dispatch_key: str = "", **_: Any) -> None:
        """Register the body of an operator."""
        name = op_name if isinstance(op_name, str) else op_name._qualname
        operator = OPERATORS.get(f"{self.ns}::{name.rpartition('::')[2]}")
        key = dispatch_key or self._key or "CompositeImplicitAutograd"
        mutated = operator._mutated if operator is not None else ()
        mode = Mode() if key.startswith(("CompositeImplicit", "Autograd")) else FORWARD
        body: Any = on_arrays(fn, mutated, mode)
        if key == "Meta":  # as in register_fake
            body.unchecked = True
        if key not in _IGNORED:
            self._on_arrays.impl(name, body, key)
        if key == "CUDA" and (operator is None or None not in operator.on_arrays._kernels):  # as in register_kernel
            self._on_arrays.impl(name, body, "CompositeExplicitAutograd")

    def _register_fake(self, op_name: str, fn: Method, **_: Any) -> None:
        _find(f"{self.ns}::{op_name.rpartition('::')[2]}").register_fake(fn)


def _find(op: Any) -> CustomOpDef:
    name = op if isinstance(op, str) else op._qualname
    name = name.removesuffix(".default")
    if name not in OPERATORS and name in registry.OPERATORS:
        return CustomOpDef(registry.OPERATORS[name])
    if name not in OPERATORS:
        raise NoSuchNameError(f"the operator {name} is not defined", "load the file that defines it first")
    return OPERATORS[name]


def _registration(method: str) -> Method:
    """Return a function such as `torch.library.register_fake(op, func)`; without `func` that returns a decorator."""

    def register(op: Any, *args: Any, lib: Any = None, **named: Any) -> Any:
        called = getattr(_find(op), method)
        wanted = 2 if method == "register_kernel" else 1
        args = tuple(a for a in args if a is not None)
        return called(*args, **named) if len(args) >= wanted else functools.partial(called, *args, **named)

    return register


for _method in ("register_fake", "register_autograd", "register_kernel", "register_vmap"):
    KNOWN[f"torch.library.{_method}"] = _registration(_method)
KNOWN["torch.library.impl_abstract"] = KNOWN["torch.library.register_fake"]
KNOWN["torch.library.register_torch_dispatch"] = lambda op, cls, func=None, **_: func or (lambda function: function)
KNOWN["torch.library.wrap_triton"] = KNOWN["torch._library.capture_triton"] = lambda kernel: kernel
KNOWN["torch.library.fallthrough_kernel"] = None


@known("torch.library.define")
def define(qualname: str, schema: str, *, lib: Any = None, tags: Any = ()) -> None:
    """Define an operator by its schema."""
    namespace, _, name = qualname.partition("::")
    Library(namespace, "FRAGMENT").define(name + schema)


@known("torch.library.impl")
def impl(qualname: Any, types: Any, func: Any = None, *, lib: Any = None) -> Any:
    """Register the body of an operator; the old signature is `impl(library, name, key)`."""
    if isinstance(qualname, Library):

        def give_body(function: Method) -> Method:
            qualname.impl(types, function, func or "")
            return function

        return give_body
    if func is None:
        return functools.partial(impl, qualname, types)
    for each in [types] if isinstance(types, str) else types:
        Library(qualname.partition("::")[0], "FRAGMENT").impl(qualname, func, _KEYS.get(each, each))
    return func


@known("torch.library.get_ctx")
def get_ctx() -> Any:
    """Raise: sizes that depend on values do not exist under jax.jit."""
    raise NotSupported("torch.library.get_ctx: a size that depends on values", "return a fixed size and a mask")


class _Tag:
    def __getattr__(self, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


KNOWN["torch.Tag"] = KNOWN["torch._C.Tag"] = _Tag()


class _Ops:
    """Namespace of operators, `torch.ops`: PyTorch's (`aten.add.Tensor`) and torch.library's (`mine.scale`)."""

    def __init__(self, name: str = "torch.ops") -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = f"{self._name}.{name}"
        _, _, space, *rest = made.split(".")
        if space in _BUILTIN or not rest:
            return _Ops(made)
        return _find(f"{space}::{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self._name.split(".")[3]
        found = next((f for n in (f"torch.{name}", f"torch.nn.functional.{name}") if (f := find(n)) is not None), None)
        found = getattr(Tensor, name, None) if found is None else found
        if found is None:
            raise NotSupported(f"torch.ops.aten.{name} is not an operation that fnjax.torch has")
        return found(*args, **kwargs)


_BUILTIN = {"aten", "prims", "prim"}
KNOWN["torch.ops"] = _Ops()
