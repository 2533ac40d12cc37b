"""Messages about classes that are defined or used incorrectly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fnjax._errors import ArgumentError, DefinitionError, FnjaxError, MissingMethodError, error, type_name

Method = Callable[..., Any] | None


def missing_forward(name: str) -> FnjaxError:
    """Build the error for a class without forward."""
    return error(
        MissingMethodError,
        f"You must implement the forward function for custom autograd.Function. ({name})",
        "no-forward",
        fix=f"add a static method forward(ctx, *args) to {name}",
    )


def missing_backward(forward: Method, name: str) -> FnjaxError:
    """Build the error for a class that is being differentiated and has neither backward nor jvp."""
    return error(
        MissingMethodError,
        "You must implement either the backward or vjp method for your custom autograd.Function to use it with "
        f"backward mode AD. ({name})",
        "no-backward",
        method=forward,
        fix=f"add a static method backward(ctx, *grad_outputs) to {name}",
    )


def mixed_styles(forward: Method, name: str, last: str) -> FnjaxError:
    """Build the error for a class with both a setup_context and a forward that takes ctx."""
    return error(
        ArgumentError,
        f"{name}.forward takes ctx, but {name} also has setup_context, so forward gets no ctx "
        f"(missing a required argument: {last!r})",
        "mixed-styles",
        method=forward,
        expected="forward(ctx, ...), or forward(...) with setup_context(ctx, inputs, output)",
        fix="remove ctx from the parameters of forward and set it up in setup_context, or remove setup_context",
    )


def backward_and_vjp(vjp: Method, name: str) -> FnjaxError:
    """Build the error for a class that defines both backward and vjp, two names of one method."""
    return error(
        DefinitionError,
        f"Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You should only "
        f"implement one of them. ({name})",
        "backward-and-vjp",
        method=vjp,
        fix="remove one of them: vjp is another name for backward",
    )


def no_bool_option(name: str, option: str, value: object) -> FnjaxError:
    """Build the error for an option of the class that is not a bool."""
    return error(
        DefinitionError,
        f"{option} must be a bool, got {type_name(value)} (class {name})",
        "class-flags",
        fix=f"write {option} = True or False",
    )


def backward_parameters(backward: Method, name: str, takes: int, outputs: int, spelled: str, given: int) -> FnjaxError:
    """Build the error for a backward that cannot be called with one gradient for each output."""
    return error(
        ArgumentError,
        f"{name}.backward() takes {takes} positional arguments but {given} were given",
        "backward-parameters",
        method=backward,
        expected=f"ctx and one gradient for each of the {outputs} output(s) of {name}.forward",
        got=f"backward({spelled})",
        fix="give backward a parameter for each output, or *grad_outputs",
    )


def called_instance(name: str) -> FnjaxError:
    """Build the error for a call of an instance, PyTorch's legacy style."""
    return error(
        DefinitionError,
        "Legacy autograd function with non-static forward method is deprecated. Please use new-style autograd "
        f"function with static forward method. ({name})",
        "instances",
        fix=f"call {name}.apply(...)",
    )


def called_class(name: str) -> FnjaxError:
    """Build the error for a class that is called with arrays instead of its apply."""
    return error(
        DefinitionError,
        f"{name} is a class and was called with arrays; methods on autograd functions are all static",
        "instances",
        fix=f"call {name}.apply(...); also functools.partial({name}.apply, ...), jax.vmap({name}.apply)",
    )
