"""Specification of a Function: the methods and options of its class."""

from __future__ import annotations

import difflib
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from fnjax._function.ctx import FunctionCtx
from fnjax._function.signature import Parameters, parameters_of
from fnjax.errors import ArgumentError, DefinitionError, MissingMethodError, error, type_name

Method = Callable[..., Any]


class Options:
    """Options that a class may set besides its methods. A new option is a line here and a line where it is used."""

    pytree: ClassVar[bool] = False
    clear_saved_tensors_on_access: ClassVar[bool] = False
    boxed_grads_call: ClassVar[bool] = False
    generate_vmap_rule: ClassVar[bool] = False
    checkpoint_name: ClassVar[str | None] = None
    device_copies: ClassVar[bool] = False
    linear: ClassVar[bool] = False


class Codec(Protocol):
    """Calls of a class's methods that take and return other values than arrays, as those of fnjax.torch do: tensors."""

    def forward(self, ctx: FunctionCtx, args: Sequence[Any]) -> Any:
        """Run forward and setup_context; return the outputs, with arrays."""

    def backward(self, ctx: FunctionCtx, grad_outputs: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """Run backward; return its result, with arrays, and the gradients of arguments that follow the user's own."""

    def jvp(self, ctx: FunctionCtx, tangents: Sequence[Any]) -> Any:
        """Run jvp; return its result, with arrays."""

    def vmap(self, info: Any, in_dims: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run vmap; return its result, with arrays."""


class Spec(NamedTuple):
    """Methods of a class; those that it does not define are None.

    Attributes:
        name: the name of the class.
        cls: the class itself.
        options: what has its options, the class where it takes arrays.
        ctx: the class of its ctx.
        forward: the method, as looked up on the class.
        parameters: those of forward.
        setup_context: the method; without it forward takes ctx.
        backward: the method, `backward` or `vjp`.
        jvp: the method.
        vmap: the method.
        codec: of a call, what calls these methods where they do not take arrays.
    """

    name: str
    cls: type
    options: type[Options]
    ctx: type[FunctionCtx]
    forward: Method
    parameters: Parameters
    setup_context: Method | None
    backward: Method | None
    jvp: Method | None
    vmap: Method | None
    codec: Codec | None = None


METHODS = ("forward", "setup_context", "backward", "vjp", "jvp", "vmap")
read_methods = operator.attrgetter(*METHODS)


def find_method(cls: Any, name: str) -> Method | None:
    """Return a method of a class as Python looks it up, or None if it is that of `Function`."""
    method: Method = getattr(cls, name)
    return None if method is cls._base_methods[name] else method


def advise_method(cls: type, signature: str) -> str:
    """Return what to do about a method that a class lacks: add it, or rename one whose name is similar."""
    name = signature.partition("(")[0]
    similar = difflib.get_close_matches(name, [n for n in dir(cls) if n != name], 1, 0.8)
    hint = f"{cls.__name__} has {similar[0]!r}: did you mean {name!r}? Or " if similar else ""
    return f"{hint}add a static method {signature} to {cls.__name__}"


def read_spec(cls: Any) -> Spec:
    """Return the specification of a class as it is now.

    Raises:
        MissingMethodError: if the class has no forward.
    """
    forward, setup_context = find_method(cls, "forward"), find_method(cls, "setup_context")
    if forward is None:
        raise error(
            MissingMethodError,
            f"You must implement the forward function for custom autograd.Function. ({cls.__name__})",
            "no-forward",
            fix=advise_method(cls, "forward(ctx, *args)"),
        )
    return Spec(
        name=cls.__name__,
        cls=cls,
        options=cls,
        ctx=cls._ctx,
        forward=forward,
        parameters=parameters_of(forward, takes_ctx=setup_context is None),
        setup_context=setup_context,
        backward=find_method(cls, "backward") or find_method(cls, "vjp"),
        jvp=find_method(cls, "jvp"),
        vmap=find_method(cls, "vmap"),
    )


def check_class(cls: Any) -> None:
    """Check a new class.

    Raises:
        FnjaxError: for mistakes that can be found when the class is defined.
    """
    name, forward, own = cls.__name__, find_method(cls, "forward"), vars(cls)
    setup_context = find_method(cls, "setup_context")
    if forward is not None and setup_context is not None:
        parameters = parameters_of(forward, takes_ctx=False).names
        if parameters[:1] == ("ctx",):
            raise error(
                ArgumentError,
                f"{name}.forward takes ctx, but {name} also has setup_context, so forward gets no ctx "
                f"(missing a required argument: {parameters[-1]!r})",
                "mixed-styles",
                method=forward,
                expected="forward(ctx, ...), or forward(...) with setup_context(ctx, inputs, output)",
                fix="remove ctx from the parameters of forward and set it up in setup_context, or remove setup_context",
            )
    # A decorator's function may take other parameters than the one inside it, whose signature Python shows.
    plain = setup_context if not hasattr(setup_context, "__wrapped__") else None
    if plain is not None and not parameters_of(plain, takes_ctx=True).accepts(2):
        raise error(
            ArgumentError,
            f"{name}.setup_context is called with ctx, inputs and output, and takes other parameters",
            "mixed-styles",
            method=plain,
            expected="setup_context(ctx, inputs, output)",
            got=f"setup_context{inspect.signature(plain)}",
            fix="give it these three parameters; output is what forward returned",
        )
    if "backward" in own and "vjp" in own and own["backward"] is not own["vjp"]:
        raise error(
            DefinitionError,
            f"Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You should only "
            f"implement one of them. ({name})",
            "backward-and-vjp",
            method=find_method(cls, "vjp"),
            fix="remove one of them: vjp is another name for backward",
        )
    if cls.linear is True and forward is not None:
        _check_linear(cls)
    for option, default in vars(Options).items():
        value = getattr(cls, option)
        if isinstance(default, bool) and not isinstance(value, bool):
            raise error(
                DefinitionError,
                f"{option} must be a bool, got {type_name(value)} (class {name})",
                "class-flags",
                fix=f"write {option} = True or False",
            )


def _check_linear(cls: Any) -> None:
    """Raise if a method or an option of a class contradicts its `linear = True`."""
    name, jvp = cls.__name__, find_method(cls, "jvp")
    backward = find_method(cls, "backward") or find_method(cls, "vjp")
    if backward is None:
        wrong, method, fix = "has no backward", cls.forward, "add backward, the transpose of forward"
    elif jvp is not None:
        wrong, method, fix = "has a jvp", jvp, "remove jvp: the tangents are those that forward computes"
    elif hasattr(backward, ONCE):
        wrong, method = "marks backward with @once_differentiable", backward
        fix = "remove @once_differentiable: backward is not differentiated, its derivative is forward"
    elif cls.device_copies:
        wrong, method, fix = "device_copies = True", backward, "remove one of them"
    else:
        return
    raise error(
        DefinitionError,
        f"{name} says linear = True and {wrong}",
        "linear",
        method=method,
        expected="forward, linear in its arrays, and backward, its transpose; everything else is made of these two",
        fix=f"{fix}; or remove linear = True if {name} is not linear",
    )


ONCE = "_once_differentiable"  # an attribute of what the decorator returns
