"""Messages about custom operators, in PyTorch's wording where PyTorch has the message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fnjax.errors import (
    FnjaxError,
    GradientError,
    MissingMethodError,
    OperatorError,
    OutputError,
    SchemaError,
    UnknownOperatorError,
    describe,
    error,
    type_name,
)

Method = Callable[..., Any] | None


def bad_schema(what: str, signature: object, fix: str = "") -> SchemaError:
    """Build the error for a function whose schema cannot be inferred."""
    head = f"infer_schema(func): {what} Got func with signature {signature})"
    return error(SchemaError, head, "operator-schema", fix=fix)


def bad_mutates_args(what: object) -> SchemaError:
    """Build the error for a `mutates_args` that is a string."""
    return error(
        SchemaError,
        "mutates_args must either be a sequence of the names of the arguments that are mutated or the string "
        "'unknown'. ",
        "operator-schema",
        got=repr(what),
        fix="write mutates_args=() where nothing is mutated",
    )


def other_mutates_args(mutates_args: object, schema: str, expected: set[str]) -> SchemaError:
    """Build the error for a schema that disagrees with `mutates_args`."""
    return error(
        SchemaError,
        f"Attempted to create a custom op with `mutates_args={mutates_args}` and `schema={schema}`. The schema "
        f"suggests that the op mutates {expected} which is different from what was provided to us in `mutates_args`. "
        "Please make these consistent.",
        "operator-schema",
    )


def unreadable_schema(text: str, what: str) -> OperatorError:
    """Build the error for a schema that cannot be parsed."""
    return error(
        OperatorError,
        what,
        "operator-schema",
        expected="a schema like (Tensor x, float eps=1e-05) -> Tensor",
        got=text,
    )


def unknown_key(key: str, keys: Iterable[str]) -> OperatorError:
    """Build the error for an unknown dispatch key."""
    what = f"could not parse dispatch key: {key}"
    return error(OperatorError, what, "operator-schema", expected=f"one of {', '.join(keys)}", got=repr(key))


def bad_name(qualname: str, found: str) -> OperatorError:
    """Build the error for an invalid qualified name."""
    return error(
        OperatorError,
        f"expected ident but found {found!r} here: {qualname}",
        "operator-schema",
        expected="{namespace}::{name}, each of letters, digits and underscores",
        got=repr(qualname),
    )


def keyword_only_tensor(declaration: str) -> MissingMethodError:
    """Build the error for a keyword-only array."""
    return error(
        MissingMethodError,
        f"custom_op with kwarg-only Tensor args. Please make your tensors not kwarg-only. Got: {declaration}",
        "operator-schema",
    )


def no_device_argument(qualname: str) -> SchemaError:
    """Build the error for a platform's kernel of an operator without arrays that determine the platform."""
    return error(
        SchemaError,
        f"Functions without tensor inputs are required to have a `device: jax.Device` argument ({qualname})",
        "operator-schema",
        fix="leave device_types out, or add the argument",
    )


def unknown_operator(namespace: str, name: str, known: Sequence[str]) -> UnknownOperatorError:
    """Build the error for the lookup of an undefined operator."""
    return error(
        UnknownOperatorError,
        f"'_OpNamespace' '{namespace}' object has no attribute '{name}'",
        "operator-name",
        expected=", ".join(known) or f"an operator: none of the namespace {namespace} is defined",
        fix="import the module that defines it before you look it up",
    )


def wrong_call(head: str, declaration: str, word: str = "Declaration") -> OperatorError:
    """Build the error for arguments that cannot be bound."""
    return error(OperatorError, f"{head} {word}: {declaration}", "operator-arguments")


def wrong_argument(
    qualname: str, argument: str, position: int, wanted: str, value: object, declaration: str
) -> OperatorError:
    """Build the error for an argument of another type than the schema's."""
    kind = type_name(value)
    fix = ""
    if kind == "Tensor":
        kind = "torch.Tensor"
        fix = "convert it: jnp.asarray(tensor.numpy())"
    elif wanted == "Tensor" and isinstance(value, int | float | complex):
        fix = f"pass jnp.asarray({value!r})"
    elif kind == "array" and wanted in ("int", "float", "bool", "number"):
        fix = "pass a number: an array of one element would do where its value is known"
    return error(
        OperatorError,
        f"{qualname}() Expected a value of type '{wanted}' for argument '{argument}' but instead found type '{kind}'.\n"
        f"Position: {position}\nValue: {value!r:.200}\nDeclaration: {declaration}",
        "operator-arguments",
        fix=fix,
    )


def wrong_result(method: Method, qualname: str, wanted: str, value: object) -> FnjaxError:
    """Build the error for a result of another type than the schema's."""
    head = f"Unable to cast {describe(value)} to {wanted} (a result of {qualname})"
    return error(OperatorError, head, "operator-result", method=method, expected=wanted, got=describe(value))


def no_sequence(method: Method, qualname: str, wanted: str, value: object) -> OutputError:
    """Build the error for a body whose results differ in number from the schema's, or are not a sequence."""
    if isinstance(value, tuple | list):
        head = f"{qualname} returned {len(value)} results; its schema wants {wanted}"
    else:
        head = f"Object of type '{type_name(value)}' is not an instance of 'sequence' (the results of {qualname})"
    return error(OutputError, head, "operator-result", method=method, expected=wanted, got=describe(value))


def not_none(method: Method, qualname: str, value: object) -> OperatorError:
    """Build the error for a result of an operator that returns None."""
    return error(
        OperatorError,
        f"Expected {qualname} to return None but it returned something else instead.",
        "operator-result",
        method=method,
        got=describe(value),
        fix="annotate what it returns",
    )


def no_new_values(
    method: Method, qualname: str, who: str, names: Sequence[str], wanted: str, value: object
) -> FnjaxError:
    """Build the error for a body, or a fake, that did not return the new values of the mutated arguments."""
    return error(
        OperatorError,
        f"{who} of {qualname} did not return the new values of what it mutates ({', '.join(names)})",
        "operator-mutates",
        method=method,
        expected=f"{wanted}: JAX arrays do not change, so their new values come after its own outputs",
        got=describe(value),
        fix=f"return the new {', '.join(names)}, and bind them where {qualname} is called",
    )


def other_new_value(method: Method, qualname: str, name: str, old: object, new: object) -> OperatorError:
    """Build the error for a new value of another shape or dtype."""
    return error(
        OperatorError,
        f"the new value of '{name}' from {qualname} is none of what it mutates",
        "operator-mutates",
        method=method,
        expected=describe(old),
        got=describe(new),
    )


def aliased(method: Method, name: str) -> OperatorError:
    """Build the error for a result that is also an argument or another result."""
    return error(
        OperatorError,
        f"{name}: The output of this custom operator (1) must not also be an input to this custom operator and (2) may "
        "not alias any inputs to this custom operator or other returns. The most common way to trigger this error is "
        "if we have y = custom_op(x) and y and x are the same array.",
        "operator-result",
        method=method,
        fix="return a copy (x.copy()), or do not return it",
    )


def no_fake(operator: object, name: str, method: Method, cause: BaseException | None) -> OperatorError:
    """Build the error for a traced body that needs concrete values and has no register_fake."""
    why = f" Its body asks for the numbers of a traced array ({type(cause).__name__})." if cause is not None else ""
    return error(
        OperatorError,
        f"There was no fake impl registered for {operator}. This is necessary for jax.jit and all tracing to work. "
        f"Please use `{name}.register_fake` to add an fake impl.{why}",
        "operator-fake",
        method=method,
        expected="a function of the same arguments that returns arrays of the shapes and dtypes of the results",
    )


def other_than_fake(method: Method, qualname: str, index: int, fake: str, body: str) -> OperatorError:
    """Build the error for a body whose results differ from those of the fake."""
    return error(
        OperatorError,
        f"register_fake of {qualname} and its body disagree on output {index}: the fake says {fake}, the body gave "
        f"{body}",
        "operator-fake",
        method=method,
        fix="make register_fake return what the body returns",
    )


def empty_fake(method: Method, qualname: str, wanted: str) -> OperatorError:
    """Build the error for a fake that returned no array."""
    return error(
        OperatorError,
        f"register_fake of {qualname} returned no array",
        "operator-fake",
        method=method,
        expected=f"arrays like the results: {wanted}",
        fix="return them (jnp.empty_like(x))",
    )


def fake_needs_numbers(method: Method, qualname: str, names: Sequence[str]) -> OperatorError:
    """Build the error for a fake that needs the concrete value of a traced array."""
    return error(
        OperatorError,
        f"register_fake of {qualname} asks for the numbers of a traced array",
        "operator-fake",
        method=method,
        expected="shapes and dtypes that follow from those of the arguments, and from numbers that are not traced",
        got=f"traced: {', '.join(names)}",
        fix="keep the number static (jax.jit(..., static_argnums=...)), or close over it",
    )


def other_kernel(qualname: str, one: str, first: str, other: str, second: str) -> OperatorError:
    """Build the error for kernels of two platforms whose results differ in shape or dtype."""
    return error(
        OperatorError,
        f"the kernels of {qualname} disagree: {first} for {one.replace('None', 'all others')}, {second} for {other}",
        "operator-kernel",
        fix="let all kernels return the same shapes and dtypes",
    )


def unknown_device(device: object, known: Sequence[str]) -> OperatorError:
    """Build the error for a platform that JAX does not have."""
    return error(
        OperatorError,
        f"Expected one of {', '.join(known)} device type at start of device string: {device}",
        "operator-kernel",
    )


def no_kernel(qualname: str, platform: str, known: Sequence[str]) -> MissingMethodError:
    """Build the error for a call on a platform without a kernel."""
    return error(
        MissingMethodError,
        f"Could not run '{qualname}' with arguments from the '{platform.upper()}' backend. "
        f"'{qualname}' is only available for these backends: [{', '.join(k.upper() for k in known)}].",
        "operator-kernel",
        fix=f'register one with register_kernel("{platform}")',
    )


def no_autograd(qualname: str) -> OperatorError:
    """Build the error for the derivative of an operator that has none."""
    return error(
        OperatorError,
        f"Trying to backward through {qualname.replace('::', '.')}.default but no autograd formula was registered. "
        "Please use register_autograd to add one.",
        "operator-autograd",
    )


def no_functional_schema(operator: object, declaration: str) -> OperatorError:
    """Build the error for register_autograd on an operator that mutates arguments."""
    return error(
        OperatorError,
        f"Cannot register autograd formula for non-functional operator {operator} with schema {declaration}. Please "
        "create a functional operator and register an autograd formula for that.",
        "operator-autograd",
    )


def number_differentiated(method: Method, qualname: str, argument: str, kind: str) -> GradientError:
    """Build the error for a number that is being differentiated: its gradient would silently be zero."""
    return error(
        GradientError,
        f"argument '{argument}' of {qualname} is a {kind}, which has no gradient, and is being differentiated",
        "operator-autograd",
        method=method,
        fix=f"annotate {argument} as jax.Array, or pass jax.lax.stop_gradient({argument})",
    )


def wrong_gradient_count(method: Method, qualname: str, arguments: Sequence[str], came: int) -> GradientError:
    """Build the error for too few or too many gradients."""
    return error(
        GradientError,
        f"{qualname}.backward returned an incorrect number of gradients (expected {len(arguments)}, got {came})",
        "operator-autograd",
        method=method,
        expected=f"one gradient for each positional argument ({', '.join(arguments)}), None where there is none",
    )


def wrong_gradient_structure(method: Method, qualname: str, argument: str, count: int, came: object) -> GradientError:
    """Build the error for a gradient of a list that is not a list of the same length."""
    return error(
        GradientError,
        "Expected the return from backward to be of the same structure as the inputs. "
        f"Got: {describe(came)} (return from backward), list of {count} (inputs), for argument '{argument}' of "
        f"{qualname}",
        "operator-autograd",
        method=method,
        expected=f"a list of {count}, each an array or None",
    )


def gone(operator: object) -> AssertionError:
    """Build the error for a registration on an operator whose name has been defined again."""
    return AssertionError(
        f"Library object has been destroyed: {operator} was defined again; register with the later definition"
    )
