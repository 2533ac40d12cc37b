"""Execution of an operator's body: directly, traced, or as a callback if it needs concrete values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._function.annotated_errors import CONCRETE_ERRORS
from fnjax._op.binding import take_results
from fnjax._op.schema import Schema
from fnjax._primitives.jax_internals import varying
from fnjax._primitives.rule import Arrays
from fnjax._primitives.trace import trace
from fnjax._primitives.tree import Split, has_leaf, is_array, is_tensor, is_tracer, map_leaves, split, to_tensor
from fnjax.errors import FnjaxError, MissingMethodError, OperatorError, error

Method = Callable[..., Any]
# The platforms for which a kernel may be registered, with JAX's names of the lowering platforms.
PLATFORMS = {"cpu": ("cpu",), "gpu": ("cuda", "rocm"), "cuda": ("cuda",), "rocm": ("rocm",), "tpu": ("tpu",)}


@dataclasses.dataclass(frozen=True)
class Implementation:
    """Bodies of an operator, with its schema, its fake and its name.

    Attributes:
        operator: the operator, for messages.
        qualname: `namespace::name`.
        schema: its parameters and results.
        kernels: a body for each platform; that of None is for all others.
        fake: returns arrays of the shapes and dtypes of the results, or None; with an attribute `unchecked`, a traced
            body need not agree with it.
        name: that of the function from which the operator was made, for messages.
    """

    operator: object
    qualname: str
    schema: Schema
    kernels: Mapping[str | None, Method]
    fake: Method | None
    name: str


class _OperatorCall(NamedTuple):
    """Call of an operator without its arrays; a traced number counts as an array."""

    this: Implementation
    rest: Split

    def arguments(self, arrays: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return positional and keyword arguments with `arrays` in their places.

        A number that was traced and is concrete in this run becomes a Python number again.
        """
        args, keywords = self.rest.fill(arrays)
        schema = self.this.schema
        args = [p.type.take(a) if a is not p.default else a for p, a in zip(schema.positional, args, strict=True)]
        return args, {
            p.name: p.type.take(keywords[p.name]) if keywords[p.name] is not p.default else p.default
            for p in schema.keyword_only
        }

    def run(self, method: Method, arrays: Sequence[Any], who: str = "the body") -> Any:
        """Call a body, or the fake, and return its checked results."""
        args, keywords = self.arguments(arrays)
        returned = method(*args, **keywords)
        if who != "the body":  # a type is accepted for an array
            returned = map_leaves(_as_array, returned)
        return take_results(self.this.schema, self.this.qualname, method, args, returned, who=who)


def _as_array(leaf: Any) -> Any:
    return jnp.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf


class _Staged(NamedTuple):
    """Traceable body.

    Attributes:
        run: arrays → arrays.
        types: those of the results.
        structure: the results without their arrays.
    """

    run: Callable[..., Arrays]
    types: list[jax.ShapeDtypeStruct]
    structure: Split


def run_operator(this: Implementation, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Return the results of an operator: run a body on concrete arrays, stage it on traced ones."""
    arrays, rest = split((list(args), dict(keywords)), is_array)
    call = _OperatorCall(this, rest)
    if not any(map(is_tracer, arrays)):
        chosen = _choose(this, arrays, args)
        try:
            return call.run(chosen, arrays)
        except NotImplementedError as e:
            other = this.kernels.get(None, chosen)
            if type(e) is not NotImplementedError or other is chosen:
                raise
        return call.run(other, arrays)  # the platform's own body says that it is none
    default = this.kernels.get(None)
    staged = dict[str | None, _Staged]()
    for platform, kernel in this.kernels.items():
        try:
            staged[platform] = _stage(call, kernel, arrays)
        except NotImplementedError as e:
            if type(e) is not NotImplementedError or default is None or kernel is default:
                raise
    if list(staged) == [None] and default is not None:
        first = staged[None]
        return first.structure.fill(first.run(*arrays))
    _compare(this, staged)
    branches = {str(platform): s.run for platform, s in staged.items() if platform is not None}
    types, structure = next(iter(staged.values()))[1:]
    branches["default"] = staged[None].run if default is not None else _absent(this, types)
    return structure.fill(jax.lax.platform_dependent(*arrays, **branches))


def _choose(this: Implementation, arrays: Sequence[Any], args: Sequence[Any]) -> Method:
    """Return the body for the platform of these concrete arrays."""
    if list(this.kernels) == [None]:
        return this.kernels[None]
    platforms = _platforms_of(this, arrays, args)
    for platform in (*platforms, None):
        if platform in this.kernels:
            return this.kernels[platform]
    raise no_kernel(this.qualname, platforms[0], [str(k) for k in this.kernels])


def _platforms_of(this: Implementation, arrays: Sequence[Any], args: Sequence[Any]) -> tuple[str, ...]:
    for array in arrays:
        return PLATFORMS.get(next(iter(array.devices())).platform, ("cpu",))
    for p, arg in zip(this.schema.positional, args, strict=True):
        if p.type.base == "Device" and arg is not None:
            name = arg if isinstance(arg, str) else arg.platform
            return PLATFORMS.get(name.partition(":")[0], (name,))
    return PLATFORMS.get(jax.default_backend(), (jax.default_backend(),))


def no_kernel(qualname: str, platform: str, known: Sequence[str]) -> MissingMethodError:
    """Build the error for a call on a platform without a kernel."""
    return error(
        MissingMethodError,
        f"Could not run '{qualname}' with arguments from the '{platform.upper()}' backend. "
        f"'{qualname}' is only available for these backends: [{', '.join(k.upper() for k in known)}].",
        "operator-kernel",
        fix=f'register one with register_kernel("{platform}")',
    )


def _absent(this: Implementation, types: Sequence[jax.ShapeDtypeStruct]) -> Callable[..., Arrays]:
    """Return a callback that raises, for platforms without a kernel.

    It raises when it runs, since the program may be lowered for several platforms.
    """

    def refuse(*arrays: Any) -> Arrays:
        raise no_kernel(this.qualname, jax.default_backend(), [str(k) for k in this.kernels])

    return lambda *arrays: list(jax.pure_callback(refuse, types, *arrays, vmap_method="sequential"))


def _compare(this: Implementation, staged: Mapping[str | None, _Staged]) -> None:
    (first, one), *others = staged.items()
    for platform, other in others:
        if (one.types, one.structure) != (other.types, other.structure):
            raise error(
                OperatorError,
                f"the kernels of {this.qualname} disagree: {_describe(one.types)} for {first or 'all others'}, "
                f"{_describe(other.types)} for {platform or 'all others'}",
                "operator-kernel",
                fix="let all kernels return the same shapes and dtypes",
            )


def _describe(types: Sequence[jax.ShapeDtypeStruct]) -> str:
    return ", ".join(f"{t.dtype}{list(t.shape)}" for t in types)


def _stage(call: _OperatorCall, kernel: Method, arrays: Sequence[Any]) -> _Staged:
    """Trace a body; if it needs concrete values, make it a callback."""
    structures: list[Split] = []

    def flat(*arrays: Any) -> Arrays:
        found, structure = split(call.run(kernel, arrays), is_tensor)
        structures.append(structure)
        return [*map(to_tensor, found)]

    try:
        traced = trace(call.this.qualname, flat, *arrays)
    except CONCRETE_ERRORS as e:  # only these make a body a callback
        return _stage_callback(call, kernel, arrays, e)
    types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in traced.jaxpr.out_avals]
    if call.this.fake is not None and not hasattr(call.this.fake, "unchecked"):
        _check_fake(call, kernel, arrays, types)
    return _Staged(lambda *xs: list(traced(traced.closed_over, *xs)), types, structures[-1])


def _check_fake(
    call: _OperatorCall, kernel: Method, arrays: Sequence[Any], types: Sequence[jax.ShapeDtypeStruct]
) -> None:
    promised, _ = _fake_types(call, arrays, numbers=False)
    for i in range(max(len(promised), len(types))):
        fake, body = (_describe(ts[i : i + 1]) or "nothing" for ts in (promised, types))
        if fake != body:
            raise _other_than_fake(kernel, call.this.qualname, i, fake, body)


def _other_than_fake(method: Method, qualname: str, index: int, fake: str, body: str) -> OperatorError:
    """Build the error for a body whose results differ from those of the fake."""
    return error(
        OperatorError,
        f"register_fake of {qualname} and its body disagree on output {index}: the fake says {fake}, the body gave "
        f"{body}",
        "operator-fake",
        method=method,
        fix="make register_fake return what the body returns",
    )


def _is_result(leaf: Any) -> bool:
    """Return whether a callback returns a leaf as an array: arrays, and numbers read from arrays."""
    return is_tensor(leaf) or isinstance(leaf, bool | int | float | complex)


def _fake_types(
    call: _OperatorCall, arrays: Sequence[Any], *, numbers: bool
) -> tuple[list[jax.ShapeDtypeStruct], Split]:
    """Return the types of the results and their structure, by register_fake."""
    this = call.this
    fake = this.fake
    assert fake is not None
    structures: list[Split] = []

    def flat(*arrays: Any) -> Arrays:
        found, structure = split(call.run(fake, arrays, "register_fake"), _is_result if numbers else is_tensor)
        structures.append(structure)
        return [*map(jnp.asarray, found)]

    try:
        traced = trace(f"{this.qualname}.register_fake", flat, *arrays)
    except Exception as e:
        args, keywords = call.rest.fill(arrays)
        given = [
            *zip(this.schema.positional, args, strict=True),
            *((p, keywords[p.name]) for p in this.schema.keyword_only),
        ]
        numbers_traced = [p.name for p, a in given if not p.type.is_tensor and has_leaf(a, is_tracer)]
        if isinstance(e, CONCRETE_ERRORS) or (numbers_traced and not isinstance(e, FnjaxError)):
            named = numbers_traced or [p.name for p, _ in given]
            raise error(
                OperatorError,
                f"register_fake of {this.qualname} asks for the numbers of a traced array",
                "operator-fake",
                method=fake,
                expected="shapes and dtypes that follow from those of the arguments, and from numbers that are not "
                "traced",
                got=f"traced: {', '.join(named)}",
                fix="keep the number static (jax.jit(..., static_argnums=...)), or close over it",
            ) from e
        raise
    return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in traced.jaxpr.out_avals], structures[-1]


def _stage_callback(call: _OperatorCall, kernel: Method, arrays: Sequence[Any], cause: Exception) -> _Staged:
    """Make a body a `jax.pure_callback`, with the shapes and dtypes of register_fake."""
    this = call.this
    if this.fake is None:
        raise error(
            OperatorError,
            f"There was no fake impl registered for {this.operator}. This is necessary for jax.jit and all tracing to "
            f"work. Please use `{this.name}.register_fake` to add an fake impl. Its body asks for the numbers of a "
            f"traced array ({type(cause).__name__}).",
            "operator-fake",
            method=kernel,
            expected="a function of the same arguments that returns arrays of the shapes and dtypes of the results",
        ) from cause
    types, structure = _fake_types(call, arrays, numbers=True)
    if this.schema.returns and not types:  # the body would never be called
        wanted = this.schema.text.rpartition(" -> ")[2]
        raise error(
            OperatorError,
            f"register_fake of {this.qualname} returned no array",
            "operator-fake",
            method=this.fake,
            expected=f"arrays like the results: {wanted}",
            fix="return them (jnp.empty_like(x))",
        )

    def host(*arrays: Any) -> Arrays:
        found, got = split(call.run(kernel, [*map(to_tensor, arrays)]), _is_result)
        if got != structure:
            raise _other_than_fake(kernel, this.qualname, 0, f"{structure.n_arrays} arrays", f"{got.n_arrays} arrays")
        return [
            _take(kernel, this.qualname, i, t, value) for i, (t, value) in enumerate(zip(types, found, strict=True))
        ]

    def run(*arrays: Any) -> Arrays:
        results = jax.pure_callback(host, types, *arrays, vmap_method="sequential")
        # JAX takes the results of a callback to be replicated over a mesh.
        on = tuple(frozenset().union(*(varying(jax.typeof(x)) for x in arrays)))
        return [jax.lax.pcast(y, on, to="varying") if on else y for y in results]

    return _Staged(run, types, structure)


def _take(kernel: Method, qualname: str, index: int, wanted: jax.ShapeDtypeStruct, value: Any) -> Any:
    """Return a result of a body on the host; raise if its shape or dtype differs from the fake's."""
    if not is_tensor(value):
        return np.asarray(value, wanted.dtype)
    array = np.asarray(value)
    kind = jax.dtypes.canonicalize_dtype(array.dtype)
    if (array.shape, kind) != (wanted.shape, wanted.dtype):
        got = jax.ShapeDtypeStruct(array.shape, kind)
        raise _other_than_fake(kernel, qualname, index, _describe([wanted]), _describe([got]))
    return array.astype(kind)
