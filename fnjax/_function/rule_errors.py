"""Errors of rules, which know arrays only, in terms of the user's Function."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fnjax._function.spec import Spec
from fnjax._primitives.rule import OPERATION, ErrorKind
from fnjax._primitives.tree import is_tracer, named_leaves
from fnjax.errors import (
    ArgumentError,
    BatchingError,
    ClosureError,
    ContextError,
    DefinitionError,
    FnjaxError,
    GradientError,
    IntermediateError,
    MissingMethodError,
    describe,
    error,
)


class _Text(NamedTuple):
    """Texts of an error kind, with the places of the Function's name and of an operation that JAX cannot transpose.

    `method` is the name of the method at fault, `method_fix` a remedy for classes only: an operator has no methods.
    """

    kind: type[FnjaxError]
    method: str
    anchor: str
    head: str
    expected: str
    fix: str
    method_fix: str = ""


_REVERSE = "take the derivative in reverse mode (jax.jacrev(f), jax.jacrev(jax.grad(f)) for a Hessian)"
_FORWARD = "take the derivative in forward mode (jax.jvp, jax.jacfwd(f))"
_ADD_JVP = ", or add a static method jvp(ctx, *tangents) to {name}"
_ADD_BACKWARD = ", or add a static method backward(ctx, *grad_outputs) to {name}"
# What to write instead of an operation without a transpose.
_INSTEAD = {
    "while": "write the loop as jax.lax.scan, or as jax.lax.fori_loop with static bounds; ",
    "stop_gradient": "leave out jax.lax.stop_gradient; ",
}

_TEXTS: dict[ErrorKind, _Text] = {
    "closure": _Text(
        ClosureError,
        "forward",
        "closure",
        "{name} uses an array from outside that is being differentiated, or that belongs to a trace which has ended",
        "every array with a gradient among the arguments of apply",
        "pass the array to {name}.apply as an argument; jax.lax.stop_gradient makes it a constant, if it is called "
        "before apply and not inside forward; arrays on ctx must lie in attributes, lists, dicts or registered pytrees",
    ),
    "backward not linear": _Text(
        MissingMethodError,
        "backward",
        "not-linear",
        "{name}.backward is not linear in grad_output, so its transpose, which forward mode needs here, does not exist",
        "sums, products with saved values, indexing: operations that JAX can transpose",
        _REVERSE,
        _ADD_JVP,
    ),
    "jvp not linear": _Text(
        MissingMethodError,
        "jvp",
        "not-linear",
        "{name}.jvp is not linear in its tangents, so its transpose, which reverse mode needs here, does not exist",
        "sums, products with saved values, indexing: operations that JAX can transpose",
        _FORWARD,
        _ADD_BACKWARD,
    ),
    "forward not linear": _Text(
        MissingMethodError,
        "forward",
        "not-linear",
        "{name}.forward is not linear in the arguments in which JAX transposes it here",
        "sums, products with the other arguments, indexing: operations that JAX can transpose",
        "jax.linear_transpose takes linear functions only; if a backward applies {name} to grad_output, " + _REVERSE,
        "; set linear = True on {name} if forward is linear and backward its transpose",
    ),
    "backward without transpose": _Text(
        MissingMethodError,
        "backward",
        "no-transpose",
        "JAX cannot transpose {operation}, in {name}.backward, and forward mode without a jvp needs its transpose",
        "sums, products with saved values, indexing, jax.lax.scan: operations that JAX can transpose",
        _REVERSE,
        _ADD_JVP,
    ),
    "jvp without transpose": _Text(
        MissingMethodError,
        "jvp",
        "no-transpose",
        "JAX cannot transpose {operation}, in {name}.jvp, and reverse mode without a backward needs its transpose",
        "sums, products with saved values, indexing, jax.lax.scan: operations that JAX can transpose",
        _FORWARD,
        _ADD_BACKWARD,
    ),
    "forward without transpose": _Text(
        MissingMethodError,
        "forward",
        "no-transpose",
        "JAX cannot transpose {operation}, in {name}.forward, which is transposed here",
        "a forward made of operations that JAX can transpose",
        "use other operations in {name}.forward",
        "; set linear = True on {name} if forward is linear and backward its transpose: JAX then uses backward",
    ),
    "linear residual": _Text(
        ContextError,
        "backward",
        "linear",
        "{name} says linear = True, and its ctx keeps a value that depends on an argument in which {name} is linear: "
        "JAX transposes it here, where that argument has no value",
        "a ctx that keeps shapes, static values, integers and what is computed from these",
        "compute the value from the shape of the argument, or remove linear = True",
    ),
    "linear parameter": _Text(
        ContextError,
        "backward",
        "linear",
        "{name} says linear = True, and what backward reads of ctx is being differentiated: a parameter of {name}, as "
        "arrays in a container are, or a value that depends on an argument",
        "parameters that are constants of the derivative, and a ctx that keeps nothing of the arguments",
        "apply a parameter that needs a gradient outside of {name}, as in weight * {name}.apply(x); remove "
        "linear = True; jax.lax.stop_gradient if the parameter is to be a constant",
    ),
    "intermediate": _Text(
        IntermediateError,
        "forward",
        "intermediate",
        "{name} saved an intermediate value whose own derivative a second derivative needs, and JAX cannot "
        "differentiate the operations that made it",
        "a forward that JAX can differentiate, or saved values that are inputs or outputs",
        "return the intermediate as an extra output and save that; backward then gets its gradient",
    ),
    "partial and reduced": _Text(
        GradientError,
        "backward",
        "partial-and-reduced",
        "{name}.backward adds, in the gradient of a replicated argument, what comes from a device-varying output and "
        "from a replicated one; only the first is to be summed over the devices",
        "inside shard_map, outputs that vary over the same mesh axes",
        "split {name} into two Functions, or make its outputs vary alike with jax.lax.pcast(y, axis, to='varying') in "
        "forward",
    ),
    "varying callback": _Text(
        GradientError,
        "forward",
        "varying-callback",
        "{name} calls back to Python inside shard_map with what varies over the devices, and JAX takes the result for "
        "one that is the same on all of them: its gradient would be summed over the devices",
        "a result that says over which mesh axes it varies",
        "write jax.lax.pcast(jax.pure_callback(...), axis, to='varying'), or shard_map(..., check_vma=False)",
    ),
    "copies in backward": _Text(
        GradientError,
        "backward",
        "copies-in-backward",
        "{name}.backward sums a gradient over the devices, and what it would sum is the total already: {name} is "
        "applied in a backward, which is being differentiated",
        "first derivatives only, or collectives of jax.lax",
        "call jax.lax.psum in that backward where it applies {name}: JAX knows its derivative",
    ),
    "explicit axes": _Text(
        ClosureError,
        "backward",
        "explicit-axes",
        "{name}.backward (or its jvp) contracts or reshapes over a sharded axis, where JAX cannot tell how the result "
        "is sharded, and it uses an array (or a mesh) from outside whose axes are Explicit",
        "on a mesh with Explicit axes, arrays on it among the arguments of apply or on ctx",
        "pass the array to {name}.apply as an argument, or name the sharding of the result, as in "
        "jnp.dot(x.T, g, out_sharding=jax.P())",
    ),
    "vmap intermediate": _Text(
        BatchingError,
        "vmap",
        "vmap-intermediate",
        "{name}.forward saves an intermediate value, and {name}.vmap does not say how to batch it",
        "saved inputs and outputs only, next to forward(ctx, ...) with a vmap static method",
        "split forward into forward(...) and setup_context(ctx, inputs, output), and save there",
    ),
    "outputs": _Text(
        DefinitionError,
        "forward",
        "outputs-change",
        "{name}.forward returned other outputs (number, shapes or dtypes) when its inputs were differentiated",
        "",
        "let the outputs not depend on ctx.needs_input_grad",
    ),
    "perturbed ref": _Text(
        ArgumentError,
        "forward",
        "ref-perturbed",
        "{name} was called with a Ref that is being differentiated, and a Ref has no gradient",
        "a Ref from outside of the function that is being differentiated",
        "make the Ref outside, or by jax.new_ref(..., kind='no_grad_no_remat'); to differentiate its content, pass "
        "ref[...] to {name}.apply",
    ),
    "checked": _Text(
        GradientError,
        "forward",
        "checked",
        "{name} prints or checks inside of checkify, and what checkify returned is being differentiated",
        "derivatives inside of checkify, where their errors are found too",
        "write checkify.checkify(jax.grad(f)) for jax.grad of a function that calls checkify.checkify(f)",
    ),
    "ordered effect": _Text(
        GradientError,
        "backward",
        "ordered-effect",
        "{name} has an ordered effect in its jvp (or in the backward that forward mode transposes), and it is compiled",
        "under jit, scan, while_loop or cond, forward mode without ordered effects",
        "write jax.debug.print(..., ordered=False) or io_callback(..., ordered=False) there, or take the derivative "
        "outside jit; forward, and backward in reverse mode, may have ordered effects",
    ),
    "transformation": _Text(
        MissingMethodError,
        "forward",
        "transformation",
        "{name} is called under a transformation that has no rule for Functions, such as jax.experimental.jet",
        "jit, grad, jvp, linearize, vmap, checkpoint, shard_map, checkify, and what is made of these",
        "nest jax.jvp or jax.jacfwd for higher derivatives, or let that transformation see the operations of "
        "{name}.forward in a plain function",
    ),
}


def build_error(kind: ErrorKind, spec: Spec, operation: str = OPERATION) -> FnjaxError:
    """Build the exception for an error kind; it names the method at fault and the class."""
    name, text = spec.name, _TEXTS[kind]
    fix = _INSTEAD.get(operation.partition(" ")[0], "") + text.fix
    if "::" not in name:
        fix += text.method_fix
    methods = spec.forward, spec.setup_context, spec.backward, spec.jvp
    return error(
        text.kind,
        text.head.replace("{name}", name).replace("{operation}", operation),
        text.anchor,
        method=getattr(spec, text.method),
        expected=text.expected,
        got=describe_closed_over(methods) if kind == "closure" else "",
        fix=fix.replace("{name}", name),
    )


def describe_closed_over(functions: Sequence[Any]) -> str:
    """Return names, shapes and dtypes of the traced arrays that functions take from closures and globals."""
    arrays = {id(x): f"{name}, an {describe(x)}" for f in functions for name, x in _closed_over_tracers(f)}
    return "; ".join(list(arrays.values())[:3])


def _closed_over_tracers(function: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the traced arrays that a function closes over with their names: `w`, `params.bias`, `model.scale`."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(function, types.FunctionType) or depth == 3:
        return
    code, variables = function.__code__, {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            variables[name] = cell.cell_contents
    variables |= {n: function.__globals__[n] for n in code.co_names if n in function.__globals__}
    for name, value in variables.items():
        if isinstance(value, types.FunctionType):
            yield from _closed_over_tracers(value, depth + 1)
        elif not isinstance(value, types.ModuleType | type):
            leaves = named_leaves(value)
            if len(leaves) == 1 and leaves[0][1] is value:  # not a pytree: an object of the user's
                leaves += [("." + n, x) for n, x in getattr(value, "__dict__", {}).items()]
            yield from ((name + path, leaf) for path, leaf in leaves if is_tracer(leaf))
