"""A class with `forward` and `backward` becomes a rule on flat arrays: the one place where PyTorch's words meet JAX's.

apply(*args) → arrays and static values → `forward` on a recording ctx → outputs; what ctx recorded → residuals
residuals, cotangents → `backward` on a ctx rebuilt from them → gradients, checked and brought to their arguments
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnjax._arguments import Arguments, parameters_of
from fnjax._context import FunctionCtx
from fnjax._errors import (
    ArgumentError,
    ClosureError,
    ContextError,
    DefinitionError,
    FnjaxError,
    GradientError,
    IntermediateError,
    MissingMethodError,
    OnceDifferentiableError,
    OutputError,
    describe,
    error,
    location,
    type_name,
)
from fnjax._primitive import Arrays, Kept, Linear, Needs, Run, Trouble, call, call_staged, wall
from fnjax._tree import HOLE, Split, flatten, has_leaf, is_inexact, is_tensor, is_tracer, refuse_torch, split, to_tensor

Method = Callable[..., Any]


class Methods(NamedTuple):
    """The class of a Function as the lowering sees it; `Function` fills it in.

    Attributes:
        name: the name of the class.
        ctx: the class of its ctx.
        forward: the method, as looked up on the class.
        setup_context: the method, or None in the style `forward(ctx, ...)`.
        backward: the method (`backward` or `vjp`), or None.
        once: whether backward must not be differentiated.
        pytree: whether containers are traversed.
        single_access: PyTorch's `clear_saved_tensors_on_access`.
        boxed: PyTorch's `boxed_grads_call`.
    """

    name: str
    ctx: type[FunctionCtx]
    forward: Method
    setup_context: Method | None
    backward: Method | None
    once: bool
    pytree: bool
    single_access: bool
    boxed: bool


def apply(methods: Methods, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a Function.

    Outside every transformation `forward` runs as it stands, on concrete arrays. Otherwise the call goes through the
    primitives: also where no argument is traced but an output turns out to be, so that JAX never differentiates the
    body of `forward` unseen.
    """
    parameters = parameters_of(methods.forward, takes_ctx=methods.setup_context is None)
    given, keywords = parameters.bind(methods.name, args, kwargs)
    arguments = Arguments(parameters, keywords)
    operands = arguments.take(methods.name, given, pytree=methods.pytree)
    rule = ClassRule(methods, arguments)
    inner = _inside_derivative.get()
    if any(map(is_tracer, operands)):
        outputs = call(rule, operands, inner=inner)
    else:
        outputs = rule.run((False,) * len(operands), *operands).outputs
        if any(map(is_tracer, outputs)):
            outputs = call_staged(rule, operands, inner=inner)
    return rule.outputs.fill(outputs)


# Whether a forward or backward is being run for a derivative. Functions that are called there are part of a derivative
# rule: forward mode over it (a Hessian) may transpose their backward; forward mode on the function itself may not.
_inside_derivative = ContextVar("_inside_derivative", default=False)


@contextmanager
def _derivative(is_one: bool) -> Iterator[None]:
    token = _inside_derivative.set(is_one)
    try:
        yield
    finally:
        _inside_derivative.reset(token)


class Outputs(NamedTuple):
    """The form of what `forward` returned.

    Attributes:
        members: the members of the returned tuple (or the one value), without their arrays.
        make: the tuple type that was returned, or None for a single value.
    """

    members: tuple[Split, ...]
    make: Callable[[list[Any]], Any] | None

    def fill(self, arrays: Sequence[Any]) -> Any:
        """The value with `arrays` in place."""
        filled = self.each(arrays)
        return filled[0] if self.make is None else self.make(filled)

    def each(self, arrays: Sequence[Any], *otherwise: Any) -> list[Any]:
        """The members with `arrays` in place; `otherwise` replaces what is no array."""
        values = iter(arrays)
        return [m.fill(values, *otherwise) for m in self.members]


class ClassRule:
    """One call of a Function as a rule on its operands.

    Attributes:
        outputs: the form of what forward returned when it was run last.
    """

    outputs: Outputs

    def __init__(self, methods: Methods, arguments: Arguments) -> None:
        self.methods, self.arguments = methods, arguments

    # --- forward

    def run(self, needs: Needs, *operands: Any) -> Run:
        """Run forward on a new ctx, and keep what backward can reach."""
        self._warn_of_containers(needs)
        needs = tuple(n and d for n, d in zip(needs, self.arguments.differentiable, strict=True))
        if any(needs) and self.methods.backward is None:
            raise self._no_backward()
        ctx = self.methods.ctx(self.arguments.needs(needs), operands, single_access=self.methods.single_access)
        with self._explained(self.methods.forward, operands), _derivative(any(needs)):
            returned = self._forward(ctx, self.arguments.fill(operands))
        originals, self.outputs = self._take_outputs(returned)
        outputs = [to_tensor(x) for x in originals]
        if not any(needs):
            return Run(outputs, [], Linear((), (False,) * len(outputs), _no_pull))
        self._check_backward(len(self.outputs.members))
        unmarked = [not any(x is m for m in ctx.non_differentiable) for x in originals]
        differentiable = tuple(u and is_inexact(x) for u, x in zip(unmarked, outputs, strict=True))
        residuals = Residuals(operands, originals, differentiable)
        saved = Saved(ctx, residuals)
        backward = Backward(self, needs, operands, outputs, differentiable, saved)
        return Run(outputs, residuals.intermediates, Linear(tuple(residuals.kept), differentiable, backward.pull))

    def _forward(self, ctx: FunctionCtx, args: list[Any]) -> Any:
        forward, setup = self.methods.forward, self.methods.setup_context
        if setup is None:
            return forward(ctx, *args, **self.arguments.keywords)
        output = forward(*args, **self.arguments.keywords)
        setup(ctx, tuple(args), output)
        return output

    def _take_outputs(self, returned: Any) -> tuple[Arrays, Outputs]:
        is_tuple = isinstance(returned, tuple)
        arrays: Arrays = []
        members = []
        for i, member in enumerate(returned if is_tuple else (returned,)):
            where = f"output {i} of {self.methods.name}.forward"
            refuse_torch(member, where)
            taken, rest = split(member, is_tensor)
            if taken and not is_tensor(member) and not self.methods.pytree:
                raise error(
                    OutputError,
                    f"{where} is a {type_name(member)} that holds arrays; return a tuple",
                    "container-output",
                    method=self.methods.forward,
                    expected="an array, or a tuple of arrays and static values",
                    got=f"{type_name(member)} with {len(taken)} array(s); PyTorch would cut their gradients in silence",
                    fix="return a tuple, or set `pytree = True` on the class to have containers traversed",
                )
            arrays += taken
            members.append(rest)
        make = getattr(type(returned), "_make", tuple) if is_tuple else None
        return arrays, Outputs(tuple(members), make)

    def _check_backward(self, n_outputs: int) -> None:
        """Find a backward with the wrong number of parameters while the user's forward is at hand."""
        backward, name = self.methods.backward, self.methods.name
        assert backward is not None
        parameters, count = parameters_of(backward, takes_ctx=True), 1 if self.methods.boxed else n_outputs
        if not parameters.accepts(count):
            raise error(
                ArgumentError,
                f"{name}.backward() takes {len(parameters.names) + 1} positional arguments but {count + 1} were given",
                "backward-parameters",
                method=backward,
                expected=f"ctx and one gradient for each of the {n_outputs} output(s) of {name}.forward",
                got=f"backward({', '.join([parameters.first, *parameters.names])})",
                fix="give backward a parameter for each output, or *grad_outputs",
            )

    def _warn_of_containers(self, needs: Needs) -> None:
        for i, argument in enumerate(self.arguments.each):
            if argument.kind != "container" or argument.split is None:
                continue
            if any(needs[argument.start : argument.start + argument.split.holes]):
                warnings.warn(
                    f"{self.methods.name}.apply: {self.arguments.name(i)} is a container with arrays that are being "
                    "differentiated. They get no gradient, as in PyTorch, which does not look into containers. "
                    "Pass them as arguments of their own, or set `pytree = True` on the class.",
                    UserWarning,
                    stacklevel=2,
                )

    # --- errors

    def captures_tracers(self) -> bool:
        """Whether a method, or a function among the static arguments, has a tracer in its closure."""
        methods = (self.methods.forward, self.methods.setup_context, self.methods.backward)
        static = [a.static for a in self.arguments.each] + list(self.arguments.keywords.values())
        return any(_captures_tracers(f, depth=4) for f in (*methods, *static))

    def error(self, what: Trouble) -> FnjaxError:
        """The error to raise, in the user's words."""
        name = self.methods.name
        if what == "closure":
            return error(
                ClosureError,
                f"{name} uses an array from outside that is being differentiated, or that belongs to a trace which "
                "has ended",
                "closure",
                method=self.methods.forward,
                expected="every array with a gradient among the arguments of apply",
                fix=f"pass the array to {name}.apply as an argument; jax.lax.stop_gradient makes it a constant; "
                "arrays on ctx must lie in attributes, lists, dicts or registered pytrees",
            )
        if what == "forward mode":
            return error(
                MissingMethodError,
                f"You must implement the jvp function for custom autograd.Function to use it with forward mode AD. "
                f"({name} has only a backward)",
                "forward-mode",
                method=self.methods.forward,
                got="jax.jvp, jax.jacfwd, jax.linearize or jax.hessian on it",
                fix="use reverse mode: jax.grad, jax.vjp, jax.jacrev (a Hessian is jax.jacrev(jax.grad(f)))",
            )
        if what == "not linear":
            return error(
                MissingMethodError,
                f"{name}.backward (or its jvp) is not linear in what it is given, so its transpose, which forward mode "
                "(or reverse mode) needs here, does not exist",
                "not-linear",
                method=self.methods.backward,
                expected="sums, products with saved values, indexing: operations that JAX can transpose",
                fix=f"write {name}.jvp beside {name}.backward; keep clipping and the like out of what is transposed",
            )
        if what == "intermediate":
            return error(
                IntermediateError,
                f"{name} saved an intermediate value whose own derivative a second derivative needs, and JAX cannot "
                "differentiate the operations that made it",
                "intermediate",
                method=self.methods.forward,
                expected="a forward that JAX can differentiate, or saved values that are inputs or outputs",
                fix="return the intermediate as an extra output and save that; backward then gets its gradient",
            )
        return error(
            DefinitionError,
            f"{name}.forward returned other outputs (number, shapes or dtypes) when its inputs were differentiated",
            "outputs-change",
            method=self.methods.forward,
            fix="let the outputs not depend on ctx.needs_input_grad",
        )

    def _no_backward(self) -> FnjaxError:
        return error(
            MissingMethodError,
            "You must implement either the backward or vjp method for your custom autograd.Function to use it with "
            f"backward mode AD. ({self.methods.name})",
            "no-backward",
            method=self.methods.forward,
            fix=f"add a static method backward(ctx, *grad_outputs) to {self.methods.name}",
        )

    @contextmanager
    def _explained(self, method: Method, operands: Sequence[Any]) -> Iterator[None]:
        """Add to JAX's errors about tracers which Function they come from, and what to write instead."""
        try:
            yield
        except jax.errors.UnexpectedTracerError as e:
            raise self.error("closure") from e
        except FnjaxError:
            raise
        except (*_CONCRETE_ERRORS, TypeError, IndexError, AttributeError) as e:
            text, ctx = str(e), self.methods.ctx.__name__
            if isinstance(e, _CONCRETE_ERRORS) or "concrete" in text or "static" in text:
                e.add_note(self._hint(method, operands))
            elif ctx in text:
                e.add_note(
                    f"A {ctx} is the ctx of {self.methods.name}: the first argument of forward (unless there is a "
                    f"setup_context) and of backward. {location(method)}"
                )
            elif isinstance(e, AttributeError) and hasattr(e.obj, "aval"):
                e.add_note(
                    f"{method.__qualname__} gets JAX arrays, which have NumPy's methods and not PyTorch's; see "
                    f"docs/coming-from-pytorch.md for what to write instead of .{e.name}. {location(method)}"
                )
            raise

    def _hint(self, method: Method, operands: Sequence[Any]) -> str:
        scalars = [
            self.arguments.name(i)
            for i, a in enumerate(self.arguments.each)
            if a.kind == "tensor" and is_tracer(operands[a.start]) and operands[a.start].ndim == 0
        ]
        numbers = (
            f"If {' or '.join(scalars)} was a Python number, a transformation made it an array: keep it static with "
            "jax.jit(..., static_argnums=...), or close over it. "
            if scalars
            else ""
        )
        return (
            f"{method.__qualname__} needs the value of an array that is being traced. {numbers}"
            "Choose between values with jnp.where or jax.lax.cond; call NumPy through jax.pure_callback; or call "
            f"{self.methods.name}.apply outside jax.jit. See docs/errors.md#traced-value.\n{location(method)}"
        )


_CONCRETE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


def _no_pull(residuals: Sequence[Any], cotangents: Sequence[Any]) -> Arrays:
    raise AssertionError("nothing was differentiated")


def _captures_tracers(value: Any, depth: int) -> bool:
    function = getattr(value, "__func__", value)
    if not isinstance(function, types.FunctionType) or not depth:
        return False
    return any(has_leaf(v, is_tracer) or _captures_tracers(v, depth - 1) for v in _captured(function))


def _captured(function: types.FunctionType) -> list[Any]:
    """What a function finds in its closure and defaults."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    return [*cells, *(function.__defaults__ or ()), getattr(function, "__wrapped__", None)]


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - the access is the question
    except ValueError:
        return False
    return True


class Residuals:
    """Collects the arrays that backward can reach, each once, told apart by identity.

    Attributes:
        kept: where each residual comes from.
        intermediates: those that are neither an operand nor an output.
    """

    def __init__(self, operands: Sequence[Any], outputs: Sequence[Any], differentiable: Sequence[bool]) -> None:
        # An output without gradient has a derivative of its own at second order, as any other value that forward makes.
        self._sources = {
            id(x): Kept("output", i) for i, (x, d) in enumerate(zip(outputs, differentiable, strict=True)) if d
        }
        self._sources |= {id(x): Kept("operand", i) for i, x in enumerate(operands)}
        self._traces = {id(trace) for x in operands if (trace := getattr(x, "_trace", None)) is not None}
        self._index: dict[int, int] = {}
        self.kept: list[Kept] = []
        self.intermediates: Arrays = []

    def add(self, array: Any) -> int:
        """The index among the residuals of `array`."""
        if id(array) not in self._index:
            source = self._sources.get(id(array))
            if source is None:
                source = Kept("intermediate", len(self.intermediates))
                self.intermediates.append(array)
            self._index[id(array)] = len(self.kept)
            self.kept.append(source)
        return self._index[id(array)]

    def refuse_hidden(self, value: Any, attribute: str, ctx: FunctionCtx) -> None:
        """Raise for an object that hides an array of this run from JAX: backward would find it dead."""
        for leaf in jax.tree.leaves(value):
            hidden = list(vars(leaf).values()) if hasattr(leaf, "__dict__") and not isinstance(leaf, type) else []
            if isinstance(leaf, types.FunctionType):
                hidden += _captured(leaf)
            if isinstance(leaf, types.ModuleType) or not has_leaf(hidden, self._is_of_this_run):
                continue
            name = type(ctx).__name__
            raise error(
                ContextError,
                f"ctx.{attribute} is a {type_name(leaf)} that holds an array where JAX cannot see it ({name})",
                "hidden-array",
                expected="arrays in attributes of ctx, lists, dicts, or objects that are registered as pytrees",
                got=describe(leaf),
                fix="put the array on ctx itself, or register the class: jax.tree_util.register_dataclass",
            )

    def _is_of_this_run(self, value: Any) -> bool:
        return is_tracer(value) and id(getattr(value, "_trace", None)) in self._traces


class Saved:
    """What a ctx recorded, its arrays replaced by their places among the residuals."""

    def __init__(self, ctx: FunctionCtx, residuals: Residuals) -> None:
        self._needs, self._data = ctx.needs_input_grad, {}
        self.materialize, self.materialize_non_diff = ctx.materialize_grads, ctx._materialize_non_diff_grads
        self._tensors = [None if x is None else residuals.add(x) for x in ctx.to_save]
        for k, v in (*vars(ctx).items(), *ctx.saved_data.items()):
            residuals.refuse_hidden(v, k, ctx)
        self._attributes = {k: _Stowed(v, residuals) for k, v in vars(ctx).items()}
        self._data = {k: _Stowed(v, residuals) for k, v in ctx.saved_data.items()}

    def restore(self, make: type[FunctionCtx], residuals: Sequence[Any], *, single_access: bool) -> FunctionCtx:
        """A new ctx with the residuals in place."""
        ctx = make(self._needs, single_access=single_access)
        ctx._saved = tuple(None if i is None else residuals[i] for i in self._tensors)
        ctx._materialize = self.materialize
        vars(ctx).update({k: v.restore(residuals) for k, v in self._attributes.items()})
        ctx.saved_data.update({k: v.restore(residuals) for k, v in self._data.items()})
        return ctx


class _Stowed:
    """A value on ctx; without arrays it is kept as the very object, else its arrays become residuals."""

    def __init__(self, value: Any, residuals: Residuals) -> None:
        self._split: Split | None = None
        self._static = value
        if has_leaf(value, _is_array):
            arrays, self._split = split(value, _is_array)
            self._static, self._index = None, [residuals.add(x) for x in arrays]

    def restore(self, residuals: Sequence[Any]) -> Any:
        if self._split is None:
            return self._static
        return self._split.fill(residuals[i] for i in self._index)


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array)


class Backward:
    """Backward of one run of forward; holds types and static values, no arrays."""

    def __init__(
        self,
        rule: ClassRule,
        needs: Needs,
        operands: Sequence[Any],
        outputs: Sequence[Any],
        differentiable: tuple[bool, ...],
        saved: Saved,
    ) -> None:
        self._rule, self._needs, self._saved, self._differentiable = rule, needs, saved, differentiable
        self._operands = [jax.typeof(x) for x in operands]
        self._outputs, self._form = [jax.typeof(x) for x in outputs], rule.outputs
        self._methods = rule.methods

    def pull(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> Arrays:
        """Call the user's backward: residuals, cotangents → gradients of the operands; None stands for zero."""
        methods = self._methods
        if not methods.once:
            return self._pull(residuals, cotangents)
        given = [ct for ct in cotangents if ct is not None]
        stopped = iter(jax.lax.stop_gradient(given))
        grads = self._pull(
            jax.lax.stop_gradient(list(residuals)), [None if ct is None else next(stopped) for ct in cotangents]
        )
        walled = iter(wall([g for g in grads if g is not None], [*residuals, *given], self._once_error))
        return [None if g is None else next(walled) for g in grads]

    def _pull(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> Arrays:
        methods, form = self._methods, self._form
        assert methods.backward is not None
        ctx = self._saved.restore(methods.ctx, residuals, single_access=methods.single_access)
        given = [self._cotangent(*c) for c in zip(cotangents, self._outputs, self._differentiable, strict=True)]
        grad_outputs = form.each(given, None)
        with self._rule._explained(methods.backward, []), _derivative(True):
            grads = methods.backward(ctx, *([grad_outputs] if methods.boxed else grad_outputs))
        return self._gradients(grads)

    def _cotangent(self, ct: Any, aval: Any, differentiable: bool) -> Any:
        """What backward gets for an output: PyTorch's gradient is the conjugate of JAX's cotangent."""
        if ct is not None:
            return jnp.conj(ct) if jnp.issubdtype(aval.dtype, jnp.complexfloating) else ct
        if not self._saved.materialize or not (differentiable or self._saved.materialize_non_diff):
            return None
        if jnp.issubdtype(aval.dtype, jax.dtypes.extended):  # a PRNG key has no zero
            return None
        return jnp.zeros(aval.shape, aval.dtype)

    def _gradients(self, returned: Any) -> Arrays:
        arguments, grads = self._rule.arguments, returned if isinstance(returned, tuple) else (returned,)
        n, surplus = len(arguments.each), grads[len(arguments.each) :]
        if len(grads) < n or any(g is not None for g in surplus):
            names = ", ".join(arguments.parameters.name(i) for i in range(n))
            raise self._error(
                f"{self._methods.name}.backward returned an incorrect number of gradients "
                f"(expected {n}, got {len(grads)})",
                "number-of-gradients",
                expected=f"one gradient for each argument of forward ({names}), None where there is none",
                got=describe(returned),
                fix=f"return a tuple of {n}",
            )
        result: Arrays = [None] * len(self._operands)
        for i, argument in enumerate(arguments.each):
            grad = grads[i]
            if argument.kind == "tensor":
                result[argument.start] = self._gradient(grad, argument.start, i, "")
            elif argument.kind == "tree" and argument.split is not None and argument.split.holes:
                self._tree_gradients(grad, argument.split, argument.start, i, result)
            elif grad is not None:
                raise self._error(
                    f"{self._methods.name}.backward returned a gradient different than None at position {i + 1}, but "
                    "the corresponding forward input was not a Variable",
                    "gradient-for-static",
                    expected=f"None for {arguments.name(i)}, which holds no array to differentiate",
                    got=describe(grad),
                    fix="return None there; `pytree = True` on the class gives containers a gradient",
                )
        return result

    def _tree_gradients(self, grad: Any, form: Split, start: int, index: int, result: Arrays) -> None:
        if grad is None:
            return
        leaves, treedef = flatten(grad)
        if treedef != form.treedef:
            raise self._error(
                f"{self._methods.name}.backward returned a gradient of another structure for "
                f"{self._rule.arguments.name(index)}",
                "gradient-structure",
                expected=f"None, or {form.treedef}",
                got=f"{treedef}",
                fix="return a container like the argument, None in place of whatever has no gradient",
            )
        place = start
        for leaf, rest in zip(leaves, form.rest, strict=True):
            if rest is HOLE:
                result[place] = self._gradient(leaf, place, index, f", leaf {place - start}")
                place += 1

    def _gradient(self, grad: Any, operand: int, index: int, leaf: str) -> Any:
        """Bring one gradient to the shape and dtype of its argument, as PyTorch's engine does."""
        if grad is None or not self._needs[operand]:
            return None
        name, aval = f"{self._rule.arguments.name(index)}{leaf}", self._operands[operand]
        if not is_tensor(grad):
            refuse_torch(grad, f"the gradient for {name} of {self._methods.name}")
            raise self._error(
                f"{self._methods.name}.backward: expected Variable or None (got {type_name(grad)}) for {name}",
                "gradient-type",
                expected=f"an array of shape {aval.shape}, or None",
                got=describe(grad),
                fix="return an array; a number times jnp.ones_like(grad_output) is one",
            )
        grad = to_tensor(grad)
        if grad.shape != aval.shape:
            grad = self._sum_to_size(grad, aval.shape, index, name)
        is_complex = jnp.issubdtype(aval.dtype, jnp.complexfloating)
        if jnp.issubdtype(grad.dtype, jnp.complexfloating) and not is_complex:
            raise self._error(
                f"{self._methods.name}.backward returned a complex gradient for {name}, which is real",
                "complex-gradient",
                expected=f"dtype {aval.dtype} (PyTorch: isFloatingType(grad) || (input_is_complex == grad_is_complex))",
                got=f"dtype {grad.dtype}",
                fix="return grad.real",
            )
        grad = grad.astype(aval.dtype)
        return jnp.conj(grad) if is_complex else grad

    def _sum_to_size(self, grad: Any, shape: tuple[int, ...], index: int, name: str) -> Any:
        extra = grad.ndim - len(shape)
        if extra < 0 or any(n not in (1, m) for n, m in zip(shape, grad.shape[extra:], strict=True)):
            raise self._error(
                f"{self._methods.name}.backward returned an invalid gradient at index {index} - got "
                f"{list(grad.shape)} but expected shape compatible with {list(shape)}",
                "gradient-shape",
                expected=f"the shape of {name}, {shape}, or one that it broadcasts to",
                got=f"shape {grad.shape}",
                fix="sum over the axes that forward broadcast; jnp.broadcast_to(grad, shape) where it is smaller",
            )
        grown = [extra + i for i, n in enumerate(shape) if n == 1 and grad.shape[extra + i] != 1]
        return grad.sum((*range(extra), *grown), keepdims=True).reshape(shape)

    def _error(self, head: str, anchor: str, *, expected: str, got: str, fix: str) -> GradientError:
        return error(GradientError, head, anchor, method=self._methods.backward, expected=expected, got=got, fix=fix)

    def _once_error(self) -> FnjaxError:
        return error(
            OnceDifferentiableError,
            "trying to differentiate twice a function that was marked with @once_differentiable "
            f"({self._methods.name}.backward)",
            "once-differentiable",
            method=self._methods.backward,
            fix="remove @once_differentiable if backward is made of operations that JAX can differentiate",
        )
