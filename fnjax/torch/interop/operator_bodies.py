"""Bodies of operators on arrays, made of those on tensors, and their schemas."""

from __future__ import annotations

import functools
import inspect
import itertools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np

from fnjax._primitives.tree import is_tracer
from fnjax.torch._autograd.arrays import Kind, dtype_of, is_array, wrap_array
from fnjax.torch.errors import NotSupported
from fnjax.torch.host.values import REMEDY
from fnjax.torch.memory.dtypes import as_dtype, dtype
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.names.machine import Device
from fnjax.torch.recording.blocks import setting
from fnjax.torch.recording.gradient_mode import FORWARD, Mode, set_mode
from fnjax.torch.recording.rng import Stream

Method = Callable[..., Any]
_ARRAYS = {Tensor: jax.Array, dtype: np.dtype, Device: jax.Device}


def is_tensor(x: Any) -> bool:
    """Return whether a value is a tensor."""
    return isinstance(x, Tensor)


class OwnDtypes:
    """Torch's dtypes in one call of an operator, which cannot be read from arrays without 64 bits.

    Attributes:
        args: the dtypes of the positional arguments; None for other values than tensors.
        kwargs: the dtypes of the keyword arguments.
        results: the dtypes of the tensors that the body returned, once it has run.
        draws: the position of the body's random numbers in their stream.
    """

    def __init__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = [_read_dtypes(a) for a in args], {k: _read_dtypes(v) for k, v in kwargs.items()}
        self.results: list[dtype] = []
        self.draws = Stream()

    def wrap(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments as tensors."""
        return (
            [enter(a, False, own) for a, own in itertools.zip_longest(args, self.args[: len(args)])],
            {k: enter(v, False, self.kwargs.get(k)) for k, v in kwargs.items()},
        )


own_dtypes: ContextVar[OwnDtypes | None] = ContextVar("_dtypes", default=None)


def _read_dtypes(x: Any) -> Any:
    return [_read_dtypes(v) for v in x] if isinstance(x, (list, tuple)) else x.dtype if isinstance(x, Tensor) else None


def enter(x: Any, needs: Any = False, own: Any = None) -> Any:
    """Return arrays as tensors, NumPy's dtypes as torch's."""
    if isinstance(x, (list, tuple)):
        needs, own = (v if isinstance(v, (list, tuple)) else [v] * len(x) for v in (needs, own))
        return type(x)(map(enter, x, needs, own))
    if is_array(x):
        return wrap_array(x, Kind(own or dtype_of(x), bool(needs)))
    return as_dtype(x) if isinstance(x, np.dtype) else x


def leave(x: Any) -> Any:
    """Return tensors as arrays, torch's dtypes as NumPy's."""
    if isinstance(x, (list, tuple)):
        return type(x)(map(leave, x))
    if isinstance(x, Tensor):
        return x.array
    return x.numpy if isinstance(x, dtype) else str(x) if isinstance(x, Device) else x


def _translate(annotation: Any, space: dict[str, Any]) -> Any:
    """Return an annotation of tensors as one of arrays."""
    if isinstance(annotation, str):
        annotation = eval(annotation, space)
    if isinstance(annotation, type) and annotation in _ARRAYS:
        return _ARRAYS[annotation]
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if not args:
        return annotation
    inner = tuple(_translate(a, space) for a in args)
    if origin in (typing.Union, types.UnionType):
        return functools.reduce(lambda a, b: typing.Union[a, b], inner)  # noqa: UP007 - built, not written
    return origin[inner] if origin is not None else annotation


def translate_signature(function: Method) -> inspect.Signature:
    """Return the signature with arrays in the annotations that name tensors."""
    space = getattr(inspect.unwrap(function), "__globals__", {})
    signature = inspect.signature(function)
    empty = inspect.Parameter.empty
    parameters = [
        p.replace(
            annotation=p.annotation if p.annotation is empty else _translate(p.annotation, space),
            default=leave(p.default),
        )
        for p in signature.parameters.values()
    ]
    returned = signature.return_annotation
    return signature.replace(
        parameters=parameters, return_annotation=returned if returned is empty else _translate(returned, space)
    )


def on_arrays(function: Method, mutated: Sequence[str] = (), mode: Mode = FORWARD) -> Method:
    """Return a body on arrays; after its results it returns the new values of the arguments that it mutates."""
    signature = inspect.signature(function)

    def body(*args: Any, **kwargs: Any) -> Any:
        dtypes = own_dtypes.get() or OwnDtypes((), {})
        given, named = dtypes.wrap(args, kwargs)
        try:
            with setting(own_dtypes, None), set_mode(mode, in_forward=True), dtypes.draws.resume():
                found = function(*given, **named)
        except NotSupported as e:
            cause, traced = e.__cause__, [x for x in jax.tree.leaves((args, kwargs)) if is_tracer(x)]
            if e.remedy == REMEDY and traced:
                cause = jax.errors.TracerArrayConversionError(traced[0])
            if isinstance(cause, jax.errors.TracerArrayConversionError):
                raise cause from e  # the body needs concrete values: it becomes a callback
            raise
        dtypes.results = [t.dtype for t in jax.tree.leaves(found, is_leaf=is_tensor) if isinstance(t, Tensor)]
        if not mutated:
            return leave(found)
        arguments = signature.bind(*given, **named).arguments
        new = tuple(leave(arguments.get(name)) for name in mutated)
        own = () if found is None else found if isinstance(found, tuple) else (found,)
        return (*map(leave, own), *new)

    body.__name__, body.__qualname__ = function.__name__, function.__qualname__
    body.__module__, body.__doc__ = function.__module__, function.__doc__
    return body
