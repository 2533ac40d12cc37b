"""Messages for the error kinds of rules, in terms of the user's Function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fnjax._errors import (
    BatchingError,
    ClosureError,
    DefinitionError,
    FnjaxError,
    GradientError,
    IntermediateError,
    MissingMethodError,
    error,
)
from fnjax._messages.refs import ref_perturbed
from fnjax._primitives.rule import Trouble

Method = Callable[..., Any] | None


def closure(method: Method, name: str) -> FnjaxError:
    """Build the error for a closed-over array that is being differentiated, or whose trace has ended."""
    return error(
        ClosureError,
        f"{name} uses an array from outside that is being differentiated, or that belongs to a trace which has ended",
        "closure",
        method=method,
        expected="every array with a gradient among the arguments of apply",
        fix=f"pass the array to {name}.apply as an argument; jax.lax.stop_gradient makes it a constant; "
        "arrays on ctx must lie in attributes, lists, dicts or registered pytrees",
    )


def not_linear(method: Method, name: str) -> FnjaxError:
    """Build the error for the transpose of a backward or jvp that is not linear."""
    remedy = "take the derivative in reverse mode (jax.jacrev(f), jax.jacrev(jax.grad(f)) for a Hessian)"
    if "::" not in name:  # an operator has no methods
        remedy += f", or add a static method jvp(ctx, *tangents) to {name}"
    return error(
        MissingMethodError,
        f"{name}.backward (or its jvp) is not linear in what it is given, so its transpose, which forward mode "
        "(or reverse mode) needs here, does not exist",
        "not-linear",
        method=method,
        expected="sums, products with saved values, indexing: operations that JAX can transpose",
        fix=remedy,
    )


def intermediate(method: Method, name: str) -> FnjaxError:
    """Build the error for a saved intermediate that JAX cannot differentiate."""
    return error(
        IntermediateError,
        f"{name} saved an intermediate value whose own derivative a second derivative needs, and JAX cannot "
        "differentiate the operations that made it",
        "intermediate",
        method=method,
        expected="a forward that JAX can differentiate, or saved values that are inputs or outputs",
        fix="return the intermediate as an extra output and save that; backward then gets its gradient",
    )


def shares_and_totals(method: Method, name: str) -> FnjaxError:
    """Build the error for a gradient that adds partial and reduced gradients."""
    return error(
        GradientError,
        f"{name}.backward adds, in the gradient of an argument that devices share, what comes from an output that "
        "varies over the devices and from one that does not; only the first is to be summed over them",
        "shares-and-totals",
        method=method,
        expected="inside shard_map, outputs that vary over the same mesh axes",
        fix=f"split {name} into two Functions, or make its outputs vary alike with jax.lax.pcast(y, axis, "
        "to='varying') in forward",
    )


def varying_callback(method: Method, name: str) -> FnjaxError:
    """Build the error for a callback that hides over which devices its result varies."""
    return error(
        GradientError,
        f"{name} calls back to Python inside shard_map with what varies over the devices, and JAX takes the result "
        "for one that is the same on all of them: its gradient would be summed over the devices",
        "varying-callback",
        method=method,
        expected="a result that says over which mesh axes it varies",
        fix="write jax.lax.pcast(jax.pure_callback(...), axis, to='varying'), or shard_map(..., check_vma=False)",
    )


def copies_in_backward(method: Method, name: str) -> FnjaxError:
    """Build the error for a Function that sums over devices and is applied in a differentiated backward."""
    return error(
        GradientError,
        f"{name}.backward sums a gradient over the devices, and what it would sum is the total already: {name} is "
        "applied in a backward, which is being differentiated",
        "copies-in-backward",
        method=method,
        expected="first derivatives only, or collectives of jax.lax",
        fix=f"call jax.lax.psum in that backward where it applies {name}: JAX knows its derivative",
    )


def explicit_axes(method: Method, name: str) -> FnjaxError:
    """Build the error for a closed-over array with Explicit axes where JAX cannot infer the shardings."""
    return error(
        ClosureError,
        f"{name}.backward (or its jvp) contracts or reshapes over a sharded axis, where JAX cannot tell how the result "
        "is sharded, and it uses an array (or a mesh) from outside whose axes are Explicit",
        "explicit-axes",
        method=method,
        expected="on a mesh with Explicit axes, arrays on it among the arguments of apply or on ctx",
        fix=f"pass the array to {name}.apply as an argument, or name the sharding of the result, as in "
        "jnp.dot(x.T, g, out_sharding=jax.P())",
    )


def vmap_intermediate(method: Method, name: str) -> FnjaxError:
    """Build the error for a saved intermediate in a class with a vmap method."""
    return error(
        BatchingError,
        f"{name}.forward saves an intermediate value, and {name}.vmap does not say how to batch it",
        "vmap-intermediate",
        method=method,
        expected="saved inputs and outputs only, beside forward(ctx, ...) with a vmap static method",
        fix="split forward into forward(...) and setup_context(ctx, inputs, output), and save there",
    )


def outputs_change(method: Method, name: str) -> FnjaxError:
    """Build the error for outputs that differ from those of an earlier run."""
    return error(
        DefinitionError,
        f"{name}.forward returned other outputs (number, shapes or dtypes) when its inputs were differentiated",
        "outputs-change",
        method=method,
        fix="let the outputs not depend on ctx.needs_input_grad",
    )


def checked(method: Method, name: str) -> FnjaxError:
    """Build the error for operations with effects that are differentiated after checkify evaluated them."""
    return error(
        GradientError,
        f"{name} prints or checks inside of checkify, and what checkify returned is being differentiated",
        "checked",
        method=method,
        expected="derivatives inside of checkify, where their errors are found too",
        fix="write checkify.checkify(jax.grad(f)) for jax.grad of a function that calls checkify.checkify(f)",
    )


# For each error kind the method at fault and the builder of the error.
TROUBLES: dict[Trouble, tuple[str, Callable[[Method, str], FnjaxError]]] = {
    "closure": ("forward", closure),
    "not linear": ("backward", not_linear),
    "intermediate": ("forward", intermediate),
    "shares and totals": ("backward", shares_and_totals),
    "varying callback": ("forward", varying_callback),
    "explicit axes": ("backward", explicit_axes),
    "copies in backward": ("backward", copies_in_backward),
    "vmap intermediate": ("vmap", vmap_intermediate),
    "outputs": ("forward", outputs_change),
    "perturbed ref": ("forward", ref_perturbed),
    "checked": ("forward", checked),
}
