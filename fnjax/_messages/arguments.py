"""Messages about the arguments of `apply` and of ctx's methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fnjax._errors import ArgumentError, ContextError, describe, error, type_name
from fnjax._primitives.tree import has_leaf


def refuse_torch(value: object, where: str) -> None:
    """Raise for a torch.Tensor, also inside a container: to JAX it would be an opaque object."""
    if has_leaf(value, _is_torch):
        raise error(
            ArgumentError,
            f"{where} is a torch.Tensor" if _is_torch(value) else f"{where} holds a torch.Tensor",
            "torch-tensor",
            expected="a JAX or NumPy array",
            fix="convert it with jnp.asarray(t.detach().cpu().numpy())",
        )


def _is_torch(value: object) -> bool:
    return any(t.__name__ == "Tensor" and t.__module__.partition(".")[0] == "torch" for t in type(value).__mro__)


def wrong_arguments(
    head: str, note: str, owner: str, spelled: Sequence[str], first: str, *, takes_ctx: bool
) -> ArgumentError:
    """Build the error for missing, unknown or extra arguments of apply, in Python's wording."""
    if not takes_ctx:
        style = "setup_context is defined, so forward takes no ctx"
    elif first == "ctx":
        style = "forward(ctx, ...) gets ctx from fnjax"
    else:
        style = (
            f"without a setup_context the first parameter of forward, here '{first}', is ctx: write "
            f"forward(ctx, {first}, ...), or add setup_context(ctx, inputs, output)"
        )
    return error(
        ArgumentError,
        head + (f" ({note})" if note else ""),
        "arguments",
        expected=f"{owner}.apply({', '.join(spelled)})",
        fix=f"call {owner}.apply with the parameters of forward; {style}",
    )


def array_as_keyword(owner: str, name: str) -> ArgumentError:
    """Build the error for an array that is passed to a keyword-only parameter."""
    return error(
        ArgumentError,
        f"{owner}.forward() got an array for its keyword-only argument '{name}'",
        "keyword-only",
        expected="a static value: keyword-only arguments are not differentiated",
        fix=f"make '{name}' a positional parameter of forward",
    )


def ignored_container(owner: str, argument: str) -> str:
    """Return the warning about arrays in containers, which get no gradient."""
    return (
        f"{owner}.apply: {argument} is a container with arrays that are being differentiated. They get no gradient, "
        "as in PyTorch, which does not look into containers. Pass them as arguments of their own, or set "
        "`pytree = True` on the class."
    )


# --- methods of ctx


def unsaveable(ctx: str, at: int, value: object) -> ArgumentError:
    """Build the error for an argument of `save_for_backward` that is neither an array nor None."""
    return error(
        ArgumentError,
        f"save_for_backward can only save variables, but argument {at} is of type {type_name(value)} ({ctx})",
        "save-for-backward",
        expected="arrays and None, each as an argument of its own",
        got=f"argument {at} = {value!r:.80}",
        fix="set it as an attribute (ctx.name = value), which may hold anything; pass a list as *list; a "
        "number that should have a gradient goes into apply as jnp.asarray(number)",
    )


def read_twice(ctx: str) -> ContextError:
    """Build the error for a second read of `saved_tensors` under `clear_saved_tensors_on_access`."""
    return error(
        ContextError,
        "saved_tensors can only be accessed once when clear_saved_tensors_on_access=True is set on the "
        f"autograd.Function ({ctx})",
        "saved-tensors-once",
        fix="Either access saved_tensors only once, or set clear_saved_tensors_on_access=False",
    )


def no_tuple(ctx: str, attribute: str, value: object) -> ContextError:
    """Build the error for an attribute of ctx that must be a tuple and is not."""
    return error(
        ContextError,
        f"autograd internal error: {attribute} attribute is expected to be a tuple but is {type_name(value)} ({ctx})",
        "ctx-attributes",
        fix=f"assign a tuple to ctx.{attribute}, or call the method of ctx that sets it",
    )


def no_dirty_array(ctx: str, at: int, value: object) -> ContextError:
    """Build the error for an argument of `mark_dirty` that is not an array."""
    return error(
        ContextError,
        f"mark_dirty can only accept variables, but argument {at} is of type {type_name(value)} ({ctx})",
        "mark-dirty",
        fix="pass the input arrays that the PyTorch code changed in place",
    )


def unmarkable(ctx: str, at: int, value: object) -> ContextError:
    """Build the error for an argument of `mark_non_differentiable` that is not an array."""
    return error(
        ContextError,
        f"mark_non_differentiable only accepts variable arguments, but got {type_name(value)} ({ctx}, argument {at})",
        "mark-non-differentiable",
        fix="pass the output arrays themselves, before they are returned",
    )


def no_bool(ctx: str, value: object) -> ArgumentError:
    """Build the error for an argument of `set_materialize_grads` that is not a bool."""
    return error(
        ArgumentError,
        "set_materialize_grads received an invalid combination of arguments - got "
        f"({type_name(value)}), but expected (bool) ({ctx})",
        "set-materialize-grads",
        fix="pass True or False",
    )


def hidden_array(ctx: str, attribute: str, holder: object) -> ContextError:
    """Build the error for an object on ctx that hides an array from JAX."""
    return error(
        ContextError,
        f"ctx.{attribute} is a {type_name(holder)} that holds an array where JAX cannot see it ({ctx})",
        "hidden-array",
        expected="arrays in attributes of ctx, lists, dicts, or objects that are registered as pytrees",
        got=describe(holder),
        fix="put the array on ctx itself, or register the class: jax.tree_util.register_dataclass",
    )


def no_hook(name: str, hook: object) -> ArgumentError:
    """Build the error for a saved-tensor hook that is not callable."""
    return error(
        ArgumentError,
        f"saved_tensors_hooks: {name} is not callable",
        "hooks",
        expected="a function of one argument",
        got=type_name(hook),
        fix="pass two functions, saved_tensors_hooks(pack_hook, unpack_hook)",
    )


def unpacked_no_array(kind: str, unpack: Any) -> ArgumentError:
    """Build the error for an unpack hook that did not return an array."""
    return error(
        ArgumentError,
        f"Output of saved tensor unpack_hook expected to be a Tensor but got result of type {kind}",
        "hooks",
        method=unpack,
        expected="the array that backward is to see",
        fix="return an array from unpack_hook; a missing `return` gives None",
    )


def unpacked_other(unpack: Any, saved: Any, returned: Any) -> ArgumentError:
    """Build the error for an unpack hook whose array cannot replace the saved one."""
    return error(
        ArgumentError,
        "saved_tensors_hooks: unpack_hook returned an array that cannot stand for the one that was saved",
        "hooks",
        method=unpack,
        expected=f"{saved.dtype}{list(saved.shape)}, or another floating-point dtype",
        got=f"{returned.dtype}{list(returned.shape)}",
        fix="let unpack_hook undo what pack_hook does",
    )
