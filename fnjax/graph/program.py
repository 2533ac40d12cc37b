"""Program of a function and its derivative: one flat list of operations, jit and loops opened.

The program is that of `jax.jvp`. Every operation in it is either one of the function's own or linear in the tangents;
reverse mode runs the transposes of the linear ones in the opposite order, and saves what these need of the others.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import Literal

from fnjax._function.signature import refuse_torch
from fnjax._primitives.jax_equations import read_branches, read_scan, read_while
from fnjax._primitives.jax_internals import open_jaxpr
from fnjax._primitives.jaxprs import BACKWARD, CALLS, FORWARD, read_body
from fnjax._primitives.tree import is_inexact, is_ref, is_tensor, iter_leaves, named_leaves, split
from fnjax.graph.calls import FunctionCall, read_backward, read_call


class Value:
    """Array of the program.

    Attributes:
        aval: its type.
        times: how often it is computed, if it is in a scan.
        linear: whether it depends on a tangent.
        used: whether a result of the program depends on it.
        varies: whether it depends on an input.
    """

    def __init__(self, aval: Any, times: int = 1) -> None:
        self.aval, self.times = aval, times
        self.linear = self.used = self.varies = False

    @property
    def bytes(self) -> int:
        """Its size in bytes, over all iterations of a scan."""
        return int(self.aval.size * self.aval.dtype.itemsize) * self.times

    @property
    def type(self) -> str:
        """Dtype and shape, after the length of a scan: `3 × float32[32, 8]`."""
        times = f"{self.times} × " if self.times > 1 else ""
        return f"{times}{self.aval.dtype.name}[{', '.join(map(str, self.aval.shape))}]"


@dataclasses.dataclass(eq=False)
class Scope:
    """Scope with a body: a loop, a branch, a checkpoint, an opened Function.

    Attributes:
        label: its text.
        parent: the enclosing scope.
        times: how often its body is run, enclosing scopes included.
        kind: "function" for an opened Function.
    """

    label: str
    parent: Scope | None = None
    times: int = 1
    kind: str = ""


@dataclasses.dataclass(eq=False)
class Operation:
    """Equation of the program.

    Attributes:
        name: of the primitive.
        inputs: its operands.
        outputs: its results.
        scope: the scope that contains it.
        call: the call of which it is the forward or the backward.
        partner: the forward of a backward.
        params: of the equation.
    """

    name: str
    inputs: list[Value]
    outputs: list[Value]
    scope: Scope | None
    call: FunctionCall | None = None
    partner: Operation | None = None
    params: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def linear(self) -> bool:
        """True if it depends on a tangent."""
        return any(x.linear for x in self.inputs)


@dataclasses.dataclass(eq=False)
class TracedDerivative:
    """Operations of a function and of its derivative.

    Attributes:
        inputs: its arrays, by name.
        outputs: its results, by name.
        tangents: for each input its tangent, None if there is none.
        out_tangents: for each output its tangent.
        operations: in the order of the trace; those that no result needs are left out.
    """

    inputs: dict[str, Value]
    outputs: dict[str, Value]
    tangents: list[Value | None]
    out_tangents: list[Value]
    operations: list[Operation]


Opened = Callable[[FunctionCall], bool]


def differentiate(func: Any, args: Sequence[Any], opened: Opened, argnums: Any = None) -> TracedDerivative:
    """Trace `func` and its derivative on arrays (or their types); other arguments are static.

    Args:
        func: a function of arrays, or a Function class, whose `apply` is traced.
        args: its arguments.
        opened: whether the operations inside a call of a Function are listed; otherwise the call is one operation.
        argnums: the arguments to differentiate; by default all.

    Raises:
        TypeError: if `func` is not a function.
        ValueError: if there is nothing to differentiate.
    """
    if isinstance(func, type):
        func = getattr(func, "apply", func)
    if not callable(func) or isinstance(func, type):
        raise TypeError(f"expected a function of JAX arrays, like F.apply of a Function F, got {func!r:.80}")
    for i, arg in enumerate(args):
        refuse_torch(arg, f"argument {i}")
    leaves, rest = split(list(args), lambda x: x is not None)
    where = [i for i, x in enumerate(leaves) if is_array(x)]
    names = [name_inputs(func, args)[i] for i in where]
    avals = [jax.eval_shape(lambda x: x, leaves[i]) for i in where]
    selected = _select_leaves(args, argnums)
    perturbed = [is_inexact(a) and selected[i] for a, i in zip(avals, where, strict=True)]
    if not any(perturbed):
        raise ValueError(
            f"{getattr(func, '__qualname__', func)} was given nothing to differentiate: pass at least one floating "
            "point array, or jax.ShapeDtypeStruct((3, 4), jnp.float32) (a Python number is a static argument; "
            "jnp.asarray(3.0) is an array)"
        )
    out_names: list[str] = []

    def flat(*arrays: Any) -> list[Any]:
        full = list(leaves)
        for i, x in zip(where, arrays, strict=True):
            full[i] = x
        outputs = named_leaves(func(*rest.fill(full)))
        out_names[:] = ["output" + path for path, _ in outputs]
        return [x for _, x in outputs]

    def jvp(arrays: Sequence[Any], tangents: Sequence[Any]) -> Any:
        def of_perturbed(*given: Any) -> list[Any]:
            values = iter(given)
            return flat(*[next(values) if m else x for x, m in zip(arrays, perturbed, strict=True)])

        return jax.jvp(of_perturbed, tuple(x for x, m in zip(arrays, perturbed, strict=True) if m), tuple(tangents))

    jaxpr = jax.make_jaxpr(jvp)(avals, [a for a, m in zip(avals, perturbed, strict=True) if m])
    inputs = [Value(v.aval) for v in open_jaxpr(jaxpr).invars]
    operations: list[Operation] = []
    results = _flatten(jaxpr, inputs, None, operations, opened)
    tangents = iter(inputs[len(where) :])
    traced = TracedDerivative(
        dict(zip(names, inputs[: len(where)], strict=True)),
        dict(zip(out_names, results, strict=False)),
        [next(tangents) if m else None for m in perturbed],
        results[len(out_names) :],
        operations,
    )
    _mark(operations, "varies", inputs)
    _mark(operations, "linear", [t for t in traced.tangents if t is not None])
    _mark_used(operations, results)
    traced.operations = [op for op in operations if any(x.used for x in op.outputs)]
    return traced


def read_operations(jaxpr: Any, inputs: Sequence[Value], scope: Scope | None) -> tuple[list[Operation], list[Value]]:
    """Return the operations of a jaxpr and its results; Functions in it stay closed."""
    operations: list[Operation] = []
    results = _flatten(jaxpr, inputs, scope, operations, lambda _: False)
    _mark(operations, "varies", inputs)
    _mark_used(operations, results)
    return [op for op in operations if any(x.used for x in op.outputs)], results


def is_array(value: Any) -> bool:
    """Return whether a value is an array or a type of one; Refs do not count."""
    return (is_tensor(value) and not is_ref(value)) or isinstance(value, jax.ShapeDtypeStruct)


def name_inputs(func: Callable[..., Any], args: Sequence[Any]) -> list[str]:
    """Return a name for each leaf of the arguments, by the function's signature: `x`, `params.weight`, `layers[0]`."""
    try:
        parameters = list(inspect.signature(func).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for i, arg in enumerate(args):
        variadic = next((p.name for p in parameters[: i + 1] if p.kind is p.VAR_POSITIONAL), None)
        if variadic is not None:
            name = f"{variadic}[{i - [p.name for p in parameters].index(variadic)}]"
        else:
            name = parameters[i].name if i < len(parameters) else f"argument {i}"
        names += [name + path for path, _ in named_leaves(arg)]
    return names


def _select_leaves(args: Sequence[Any], argnums: Any) -> list[bool]:
    """Return for each leaf of the arguments whether its argument is differentiated."""
    numbers = range(len(args)) if argnums is None else [argnums] if isinstance(argnums, int) else list(argnums)
    if any(not -len(args) <= n < len(args) for n in numbers):
        raise ValueError(f"argnums {argnums} names an argument beyond the {len(args)} that are given")
    wanted = {n % len(args) for n in numbers}
    return [i in wanted for i, arg in enumerate(args) for _ in iter_leaves(arg)]


# ---------------------------------------------------------------------------------------------------------------------
# Equations, and those with a body


@dataclasses.dataclass(frozen=True)
class _Body:
    """Jaxpr in an equation.

    Attributes:
        jaxpr: the jaxpr.
        operands: the operands of the equation that it takes.
        label: of its scope; empty for jit.
        times: how often it is run, if known.
        first_mapped: the first of its inputs that are slices.
        carried: (first input, number) of the loop carries.
    """

    jaxpr: Any
    operands: Sequence[int]
    label: str = ""
    times: int = 1
    first_mapped: int | None = None
    carried: tuple[int, int] = (0, 0)

    @property
    def loops(self) -> bool:
        return self.first_mapped is not None or self.carried[1] > 0


def _read_bodies(eqn: Any) -> Iterator[_Body]:
    name, n = eqn.primitive.name, len(eqn.invars)
    if name == "scan":
        body, fixed, carry, options = read_scan(eqn)
        times = options["length"]
        yield _Body(open_jaxpr(body), range(n), f"scan, {times} times", times, fixed + carry, (fixed, carry))
    elif name == "while":
        _, body, skipped, fixed = read_while(eqn)
        yield _Body(body, range(skipped, n), "while", carried=(fixed, n - skipped - fixed))
    elif name == "cond":
        for i, branch in enumerate(read_branches(eqn)):
            yield _Body(branch, range(1, n), f"cond, branch {i}")
    elif (inner := read_body(eqn)) is not None:
        yield _Body(inner, range(n), "" if eqn.primitive in CALLS else name)


def _flatten(
    jaxpr: Any, inputs: Sequence[Value], scope: Scope | None, operations: list[Operation], opened: Opened
) -> list[Value]:
    body, times = open_jaxpr(jaxpr), 1 if scope is None else scope.times
    env: dict[Any, Value] = dict(zip(body.invars, inputs, strict=True))
    env |= {v: Value(v.aval) for v in body.constvars}
    last: Operation | None = None

    def read(atom: Any) -> Value:
        return Value(atom.aval) if isinstance(atom, Literal) else env[atom]

    for eqn in body.eqns:
        given, name = [read(x) for x in eqn.invars], eqn.primitive.name
        if name == "name":
            env[eqn.outvars[0]] = given[0]
            continue
        outputs = [Value(v.aval, times) for v in eqn.outvars]
        env |= dict(zip(eqn.outvars, outputs, strict=True))
        operation = Operation(name, given, outputs, scope, params=eqn.params)
        if name == FORWARD:
            operation.call, last = read_call(eqn), operation
            if opened(operation.call):
                inner = Scope(f"{operation.call.name}.forward", scope, times, "function")
                results = _flatten(operation.call.jaxpr, given, inner, operations, lambda _: False)
                env |= dict(zip(eqn.outvars, results, strict=True))
                operation.outputs = results
                continue
        elif name == BACKWARD and last is not None and last.call is not None:
            operation.call = last.call = read_backward(last.call, eqn)
            operation.partner = last
        elif bodies := list(_read_bodies(eqn)):
            made = [_enter(b, given, scope, operations, opened) for b in bodies]
            if len(bodies) == 1 and not bodies[0].loops:  # the same arrays
                env |= dict(zip(eqn.outvars, made[0], strict=True))
            else:
                pairs = [pair for results in made for pair in zip(results, outputs, strict=True)]
                operations += [Operation("copy", [result], [output], scope) for result, output in pairs]
            continue
        operations.append(operation)
    return [read(v) for v in body.outvars]


def _enter(
    body: _Body,
    given: Sequence[Value],
    scope: Scope | None,
    operations: list[Operation],
    opened: Opened,
) -> list[Value]:
    """Append the operations of a body, and those that pass values into it; return its results."""
    inner = scope
    if body.label:
        inner = Scope(body.label, scope, body.times * (1 if scope is None else scope.times))
    inputs = [given[i] for i in body.operands]
    first, n = body.carried
    for i, v in enumerate(open_jaxpr(body.jaxpr).invars):
        if first <= i < first + n or (body.first_mapped is not None and i >= body.first_mapped):
            outer, inputs[i] = inputs[i], Value(v.aval, 1 if inner is None else inner.times)
            operations.append(Operation("copy", [outer], [inputs[i]], inner))
    results = _flatten(body.jaxpr, inputs, inner, operations, opened)
    operations += [Operation("loop", [results[i]], [inputs[first + i]], inner) for i in range(n)]
    return results


def _mark(operations: Sequence[Operation], what: str, start: Iterable[Value]) -> None:
    """Set a flag on the given values and on all that depend on them, through loops too."""
    for value in start:
        setattr(value, what, True)
    changed = True
    while changed:
        changed = False
        for op in operations:
            if any(getattr(x, what) for x in op.inputs):
                for x in op.outputs:
                    changed |= not getattr(x, what)
                    setattr(x, what, True)


def _mark_used(operations: Sequence[Operation], results: Iterable[Value]) -> None:
    for value in results:
        value.used = True
    changed = True
    while changed:
        changed = False
        for op in reversed(operations):
            if any(x.used for x in op.outputs):
                for x in op.inputs:
                    changed |= not x.used
                    x.used = True
