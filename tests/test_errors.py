"""Each misuse is an error with PyTorch's phrase, the names, the expected and the received value, and the remedy."""

import functools
import os
import traceback
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax

X = jnp.array([1.0, 2.0])
PACKAGE = str(Path(fnjax.__file__).parent) + os.sep


def function(forward=lambda ctx, x: x * 2, backward=lambda ctx, *grads: grads[0], **members):
    """A class `Fn` with these methods."""
    members |= {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Fn", (fnjax.Function,), members)


def gradient(Fn, *args):
    jax.grad(lambda *args: sum(jnp.sum(y) for y in jax.tree.leaves(Fn.apply(*args))))(*args)


def in_forward(use):
    def forward(ctx, x):
        use(ctx, x)
        return x * 2

    return lambda: function(forward).apply(X)


def returns(*grads):
    """Differentiate a Function of (x, k) whose backward returns `grads`."""
    value = grads[0] if len(grads) == 1 else grads
    return lambda: gradient(function(lambda ctx, x, k: x * 2, lambda ctx, g: value), X, 3)


def two_styles():
    function(lambda ctx, x: x, setup_context=staticmethod(lambda ctx, inputs, output: None))


def no_forward():
    type("Fn", (fnjax.Function,), {}).apply(X)


def no_backward():
    gradient(type("Fn", (fnjax.Function,), {"forward": staticmethod(lambda ctx, x: x * 2)}), X)


def no_backward_but(name):
    gradient(type("Fn", (fnjax.Function,), {"forward": staticmethod(lambda ctx, x: x), name: lambda ctx, g: g}), X)


def instance():
    with pytest.warns(DeprecationWarning, match="should not be instantiated"):
        fn = function()()
    fn(X)


def tangent(jvp, forward=lambda ctx, x: x * 2):
    """Run a jvp."""
    jax.jvp(function(forward, jvp=staticmethod(jvp)).apply, (X,), (X,))


def once():
    def forward(ctx, x):
        ctx.x = x
        return x**3

    Fn = function(forward, fnjax.once_differentiable(lambda ctx, g: 3 * ctx.x**2 * g))
    jax.grad(jax.grad(Fn.apply))(1.0)


def intermediate():
    def forward(ctx, x):
        slope = jax.pure_callback(np.cos, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")
        ctx.save_for_backward(slope)
        return jnp.sin(x)

    Fn = function(forward, lambda ctx, g: g * ctx.saved_tensors[0])
    jax.grad(jax.grad(Fn.apply))(jnp.float32(1.0))


def changing_outputs():
    Fn = function(lambda ctx, x: x * 2 if ctx.needs_input_grad[0] else x[:1])
    jax.grad(lambda x: jax.jit(Fn.apply)(x).sum())(X)


class Point(NamedTuple):
    x: jax.Array
    y: jax.Array


class Tensor:
    """Stands for torch.Tensor where PyTorch is not installed."""

    __module__ = "torch"


SELF = (
    "expected: Fn.apply(x)\n  fix: call Fn.apply with the parameters of forward; forward is a static method: "
    "remove self, as in forward({}...), and"
)
RAISES = {
    "missing": (
        lambda: function(lambda ctx, x, k: x).apply(X),
        TypeError,
        "missing 1 required positional argument: 'k'",
    ),
    "unknown": (lambda: function().apply(X, zz=1), TypeError, "got an unexpected keyword argument 'zz'"),
    "surplus": (lambda: function().apply(X, 1), TypeError, "takes 2 positional arguments but 3 were given"),
    "twice": (lambda: function().apply(X, x=X), TypeError, "got multiple values for argument 'x'"),
    "no_ctx": (lambda: function(lambda x: x).apply(X), TypeError, "the first parameter of forward, here 'x', is ctx"),
    "self": (
        lambda: function(lambda self, ctx, x: x).apply(X),
        TypeError,
        SELF.format("ctx, "),
    ),
    "self_without_ctx": (
        lambda: function(lambda self, x: x, setup_context=staticmethod(lambda ctx, inputs, output: None)).apply(X),
        TypeError,
        SELF.format(""),
    ),
    "keyword_only": (lambda: function(lambda ctx, *, x: x).apply(x=X), TypeError, "keyword-only argument 'x'"),
    "two_styles": (two_styles, TypeError, "missing a required argument: 'x'"),
    "setup_context": (
        lambda: function(lambda x: x, setup_context=staticmethod(lambda ctx, inputs: None)),
        TypeError,
        "expected: setup_context(ctx, inputs, output)\n  got: setup_context(ctx, inputs)",
    ),
    "torch": (lambda: function().apply(Tensor()), TypeError, "argument 0 ('x') of Fn.apply is a torch.Tensor"),
    "text": (
        lambda: function().apply(np.array(["a"])),
        TypeError,
        "argument 0 ('x') of Fn.apply is a NumPy array of dtype <U1, which JAX does not have",
    ),
    "objects": (lambda: function(pytree=True).apply(np.array([None])), TypeError, "argument 0 ('x') of Fn.apply is a"),
    "date": (
        jax.jit(lambda: function().apply(np.datetime64("2026-01-01"))),
        TypeError,
        "dtype datetime64[D]",
    ),
    "torch_inside": (
        lambda: function().apply([Tensor()]),
        TypeError,
        "argument 0 ('x') of Fn.apply holds a torch.Tensor",
    ),
    "no_forward": (no_forward, NotImplementedError, "You must implement the forward function"),
    "no_backward": (no_backward, NotImplementedError, "You must implement either the backward or vjp method"),
    "misspelt_forward": (
        lambda: type("Fn", (fnjax.Function,), {"foward": lambda ctx, x: x}).apply(X),
        NotImplementedError,
        "fix: Fn has 'foward': did you mean 'forward'? Or add",
    ),
    "misspelt_backward": (
        lambda: no_backward_but("backwards"),
        NotImplementedError,
        "fix: Fn has 'backwards': did you mean 'backward'? Or add",
    ),
    "other_method": (lambda: no_backward_but("background"), NotImplementedError, "fix: add a static method backward("),
    "both": (
        lambda: function(vjp=staticmethod(lambda ctx, g: g)),
        RuntimeError,
        "Implementing both 'backward' and 'vjp'",
    ),
    "flag": (lambda: function(boxed_grads_call="yes"), RuntimeError, "boxed_grads_call must be a bool, got str"),
    "instance": (instance, RuntimeError, "Legacy autograd function"),
    "list_output": (
        lambda: function(lambda ctx, x: [x]).apply(X),
        TypeError,
        "is a list that holds arrays; return a tuple",
    ),
    "nested_output": (
        lambda: function(lambda ctx, x: (x, {"a": x})).apply(X),
        TypeError,
        "output 1 of Fn.forward is a dict",
    ),
    "changing_outputs": (changing_outputs, RuntimeError, "returned other outputs"),
    "save": (in_forward(lambda ctx, x: ctx.save_for_backward(x, 3)), TypeError, "argument 1 is of type int"),
    "dirty": (in_forward(lambda ctx, x: ctx.mark_dirty(3)), RuntimeError, "mark_dirty can only accept variables"),
    "mark": (
        in_forward(lambda ctx, x: ctx.mark_non_differentiable(3)),
        RuntimeError,
        "only accepts variable arguments",
    ),
    "materialize": (in_forward(lambda ctx, x: ctx.set_materialize_grads(1)), TypeError, "expected (bool)"),
    "to_save": (
        in_forward(lambda ctx, x: setattr(ctx, "to_save", [x])),
        RuntimeError,
        "expected to be a tuple but is list",
    ),
    "too_few": (returns(X), RuntimeError, "returned an incorrect number of gradients (expected 2, got 1)"),
    "too_many": (returns(X, None, X), RuntimeError, "returned an incorrect number of gradients (expected 2, got 3)"),
    "for_static": (returns(X, X), RuntimeError, "returned a gradient different than None at position 2"),
    "shape": (
        returns(jnp.ones(5), None),
        RuntimeError,
        "returned an invalid gradient at index 0 - got [5] but expected shape compatible with [2]",
    ),
    "smaller": (returns(jnp.ones(()), None), RuntimeError, "got [] but expected shape compatible with [2]"),
    "remedy for smaller": (returns(jnp.ones(1), None), RuntimeError, "return jnp.broadcast_to(gradient, (2,))"),
    "remedy for larger": (returns(jnp.ones(5), None), RuntimeError, "sum over the axes that forward broadcast"),
    "remedy for another order": (
        lambda: gradient(function(lambda ctx, x: x * 2, lambda ctx, g: g.T), jnp.ones((2, 3))),
        RuntimeError,
        "its axes are in another order: transpose it",
    ),
    "number": (returns(2.0, None), RuntimeError, "expected Variable or None (got float)"),
    "list": (returns([X], None), RuntimeError, "expected Variable or None (got list)"),
    "list_of_all": (
        lambda: gradient(function(lambda ctx, x, y: x * y, lambda ctx, g: [g, g]), X, X),
        RuntimeError,
        "(expected 2, got 1)",
    ),
    "tuple_in_tuple": (
        lambda: gradient(function(backward=lambda ctx, g: ((g, None),)), X),
        RuntimeError,
        "(got tuple)",
    ),
    "named_tuple": (
        lambda: gradient(function(lambda ctx, p: p.x, lambda ctx, g: Point(g, g), pytree=True), Point(X, X)),
        RuntimeError,
        "fix: put it into a tuple, (gradient,)",
    ),
    "too_many_tangents": (
        lambda: tangent(lambda ctx, t: (t, t)),
        RuntimeError,
        "Fn's jvp returned an invalid number of forward gradients (expected 1 but got 2)",
    ),
    "list_of_tangents": (
        lambda: tangent(lambda ctx, t: [t, t], lambda ctx, x: (x, x)),
        RuntimeError,
        "Fn's jvp returned an invalid number of forward gradients (expected 2 but got 1)",
    ),
    "partial": (
        lambda: jax.jit(functools.partial(function(lambda ctx, x, y: x * y), X))(X),
        RuntimeError,
        "Fn is a class and was called with arrays",
    ),
    "complex": (returns(1j * X, None), RuntimeError, "complex gradient for argument 0 ('x'), which is real"),
    "parameters": (
        lambda: gradient(function(lambda ctx, x: (x, x), lambda ctx, g: g), X),
        TypeError,
        "Fn.backward() takes 2 positional arguments but 3 were given",
    ),
    "once": (once, RuntimeError, "trying to differentiate twice a function that was marked with @once_differentiable"),
    "intermediate": (intermediate, RuntimeError, "Fn saved an intermediate value"),
    "forward_mode": (
        lambda: jax.jvp(function(backward=lambda ctx, g: jnp.clip(g, -1, 1)).apply, (X,), (X,)),
        NotImplementedError,
        "Fn.backward is not linear in grad_output",
    ),
}


@pytest.mark.parametrize("name", RAISES)
def test_message(name):
    """The error has PyTorch's type and phrase, names the class, and says what to do and where to read on."""
    provoke, kind, phrase = RAISES[name]
    with pytest.raises(fnjax.errors.FnjaxError) as info:
        provoke()
    text = str(info.value)
    assert isinstance(info.value, kind)
    assert phrase in text
    assert "Fn" in text
    assert "\n  fix: " in text
    assert "\n  see: fnjax explain " in text


def test_a_list_for_an_array_gets_a_hint():
    """An error of forward says of an argument that is a list that it is no array."""
    with pytest.raises(TypeError, match="can't multiply sequence") as info:
        function(lambda ctx, x: 0.5 * x).apply([1.0, 2.0])
    assert "argument 0 ('x') of Fn.apply is a list" in info.value.__notes__[-1]


def test_checks_refuse_torch_tensors():
    """A torch.Tensor among the inputs of a check is an error, also next to arrays and inside a list."""
    for check in (fnjax.gradcheck, fnjax.gradgradcheck, fnjax.opcheck):
        with pytest.raises(fnjax.errors.ArgumentError, match=r"input 1 holds a torch\.Tensor(?s:.*)numpy\(\)"):
            check(lambda x, y: x, (np.ones(2), [Tensor()]))


@pytest.mark.parametrize(
    "name", ["two_styles", "list_output", "too_few", "shape", "once", "intermediate", "no_backward"]
)
def test_note_says_where_the_method_stands(name):
    """A note on the exception has the file and line of the user's method."""
    with pytest.raises(fnjax.errors.FnjaxError) as info:
        RAISES[name][0]()
    assert any("test_errors.py, line " in note for note in info.value.__notes__)


def test_gradient_error_says_expected_and_got():
    """The argument by name and position, what was expected, and what came."""
    with pytest.raises(fnjax.errors.GradientError) as info:
        returns(jnp.ones((5,)), None)()
    assert "expected: the shape of argument 0 ('x'), (2,)" in str(info.value)
    assert "got: shape (5,)" in str(info.value)


VALUE_DEPENDENT = {
    "if": lambda x, n: x if n > 0 else -x,
    "range": lambda x, n: sum(x for _ in range(n)),
    "slice": lambda x, n: x[:n],
    "shape": lambda x, n: jnp.zeros(n) + x.sum(),
    "numpy": lambda x, n: x * np.asarray(n),
    "mask": lambda x, n: x[x > n],
    "item": lambda x, n: x * n.item(),
}


@pytest.mark.parametrize("name", VALUE_DEPENDENT)
def test_traced_value_gets_a_hint(name):
    """Python that needs a value under jit gets a hint with the Function, the argument and static_argnums."""
    body = VALUE_DEPENDENT[name]
    Fn = function(lambda ctx, x, n: body(x, n), lambda ctx, g: (g, None))
    with pytest.raises((TypeError, IndexError, jax.errors.JAXTypeError)) as info:
        jax.jit(Fn.apply)(X, 1)
    (note,) = [note for note in info.value.__notes__ if "of an array that is being traced (by jit, vmap" in note]
    assert "argument 1 ('n')" in note
    assert "static_argnums" in note
    assert "test_errors.py, line " in note


@pytest.mark.parametrize("name", ["if", "range", "slice", "shape", "numpy"])
def test_remedy_of_the_hint_works(name):
    """With static_argnums or static_argnames the same call runs."""
    body = VALUE_DEPENDENT[name]
    Fn = function(lambda ctx, x, n: body(x, n), lambda ctx, g: (g, None))
    want = Fn.apply(X, 1)
    np.testing.assert_array_equal(jax.jit(Fn.apply, static_argnums=1)(X, 1), want)
    np.testing.assert_array_equal(jax.jit(Fn.apply, static_argnames="n")(X, n=1), want)


def test_other_type_errors_are_left_alone():
    """An operand of the wrong type gets no hint about traced values."""
    Fn = function(lambda ctx, x, w: x * w, lambda ctx, g: (g, None))
    with pytest.raises(TypeError, match="unsupported operand") as info:
        jax.jit(lambda x: Fn.apply(x, None))(X)
    assert not any("static_argnums" in note for note in getattr(info.value, "__notes__", []))


@pytest.mark.parametrize(
    ("method", "error", "note"),
    [
        (lambda x: x.detach(), AttributeError, "write jax.lax.stop_gradient(x) for x.detach"),
        (lambda x: x.exp(), AttributeError, "write jnp.exp(x) for x.exp"),
        (lambda x: x.roll(1), AttributeError, "write jnp.roll(x, ...) for x.roll"),
        (lambda x: x.split(2), AttributeError, "write jnp.split(x, range(n, x.shape[axis], n), axis) for x.split"),
        (lambda x: x.add_(1), AttributeError, "write an assignment, x = ..., since arrays do not change, for x.add_"),
        (lambda x: x.to("cuda"), AttributeError, "or leave .to out where it names a device, for x.to"),
        (lambda x: x.requires_grad, AttributeError, "write ctx.needs_input_grad[i] for x.requires_grad"),
        (lambda x: x.data, AttributeError, "write jax.lax.stop_gradient(x) for x.data"),
        (lambda x: x.numpy(), AttributeError, "write x, or np.asarray(x) outside of jax.jit, for x.numpy"),
        (lambda x: x.is_cuda, AttributeError, 'write jax.default_backend() == "gpu" for x.is_cuda'),
        (lambda x: x.shape.numel(), AttributeError, "write x.size for x.numel"),
        (lambda x: x.retain_grad(), AttributeError, "gets JAX arrays"),
        (lambda x: x.view(3, 1), NotImplementedError, "x.reshape(3, 1) for view"),
        (lambda x: x.flatten(1), ValueError, "x.reshape(3, 1) for view and flatten"),
        (lambda x: x.squeeze(0), ValueError, "only where that axis has size 1"),
    ],
    ids=[
        "detach",
        "exp",
        "roll",
        "split",
        "add_",
        "to",
        "requires_grad",
        "data",
        "numpy",
        "is_cuda",
        "numel",
        "retain_grad",
        "view",
        "flatten",
        "squeeze",
    ],
)
def test_torch_methods_get_a_hint(method, error, note):
    """A method that only torch.Tensor has, or that NumPy has with other arguments: what to write, and the page."""
    with pytest.raises(error) as info:
        function(lambda ctx, x: method(x)).apply(jnp.ones((3, 2)))
    assert any(note in n and "fnjax explain torch-habits" in n for n in info.value.__notes__)


def test_a_decorated_setup_context_takes_what_its_decorator_takes():
    """The parameters of the function inside say nothing about those of the one that is called."""

    def without_output(inner):
        return functools.wraps(inner)(lambda ctx, inputs, output: inner(ctx, inputs))

    setup_context = without_output(lambda ctx, inputs: ctx.save_for_backward(*inputs))
    Fn = function(
        lambda x: x * x, lambda ctx, g: 2 * g * ctx.saved_tensors[0], setup_context=staticmethod(setup_context)
    )
    np.testing.assert_array_equal(jax.grad(lambda x: Fn.apply(x).sum())(X), 2 * X)


def test_a_missing_attribute_of_ctx_says_what_ctx_is():
    """Python's message names the type of ctx; the note says which Function has it."""
    with pytest.raises(AttributeError, match="FnBackward") as info:
        gradient(function(backward=lambda ctx, g: g * ctx.scale), X)
    assert any(n.startswith("FnBackward is the ctx of Fn: ") for n in info.value.__notes__)


def test_names_of_torch_say_what_to_write():
    """Names that a user of PyTorch looks for in fnjax raise with what to write instead."""
    with pytest.raises(AttributeError, match=r"module 'fnjax' has no attribute 'no_grad': write jax.lax.stop_gradient"):
        fnjax.no_grad  # noqa: B018 - the access is the test


def test_exceptions_of_the_user_pass_unchanged():
    """An exception in forward or backward keeps its type and arguments, each time."""

    class MyError(Exception):
        pass

    def backward(ctx, g):
        raise MyError("from backward", 42)

    Fn = function(backward=backward)
    for _ in range(2):
        with pytest.raises(MyError) as info:
            gradient(Fn, X)
        assert info.value.args == ("from backward", 42)


def test_container_that_is_differentiated_warns():
    """A differentiated array in a list gets no gradient, as in PyTorch, but a warning that names the argument."""
    Fn = function(lambda ctx, xs: xs[0] * 2, lambda ctx, g: None)
    for wrap in (lambda f: f, jax.jit):
        with pytest.warns(UserWarning, match=r"Fn.apply: argument 0 \('xs'\) is a container"):
            grad = jax.grad(wrap(lambda x: Fn.apply([x]).sum()))(X)
        np.testing.assert_array_equal(grad, jnp.zeros(2))


def test_warnings_stand_at_the_users_line():
    """The warning about containers points at the call of apply, not into fnjax, outside jit and jitted."""
    Fn = function(lambda ctx, xs: xs[0] * 2, lambda ctx, g: None)
    for wrap in (lambda f: f, jax.jit):
        with pytest.warns(UserWarning, match="is a container") as warned:
            jax.grad(wrap(lambda x: Fn.apply([x]).sum()))(X)
        assert {w.filename for w in warned if "is a container" in str(w.message)} == {__file__}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_forgotten_return_warns(wrap):
    """A backward without a return gives zeros and says so, with its name, the argument and its place."""
    Fn = function(backward=lambda ctx, g: None)
    with pytest.warns(UserWarning, match=r"Fn.backward returned None for every argument, and argument 0 \('x'\)") as w:
        assert not jax.grad(lambda x: wrap(Fn.apply)(x).sum())(X).any()
    assert "test_errors.py, line " in str(w[0].message)
    assert w[0].filename == __file__


def test_none_for_what_needs_nothing_is_silent():
    """None where another argument has a gradient is usual."""
    Fn = function(lambda ctx, x, y: x * y, lambda ctx, g: (None, g))
    jax.grad(lambda y: Fn.apply(X, y).sum())(X)  # warnings are errors here


def test_saved_tensors_out_of_range_get_a_note():
    """Reading more saved tensors than there are says how many forward saved."""

    def forward(ctx, x):
        ctx.save_for_backward(x, x)
        return x

    def backward(ctx, g):
        _, _, third = ctx.saved_tensors
        return third * g

    for fn in (lambda ctx, g: ctx.saved_tensors[2] * g, backward):
        with pytest.raises((IndexError, ValueError)) as info:
            gradient(function(forward, fn), X)
        assert any("it holds 2 values, what Fn.forward last gave" in note for note in info.value.__notes__)


class Repeated(fnjax.Function):
    @staticmethod
    def forward(ctx, x, n):
        return jnp.tile(x, n)

    @staticmethod
    def backward(ctx, g):
        return g, None


class NotUnpacked(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors
        return 2 * x * g


class AsksTooFar(NotUnpacked):
    @staticmethod
    def backward(ctx, g):
        return g if ctx.needs_input_grad[1] else None


@pytest.mark.parametrize(
    ("call", "error", "note"),
    [
        (lambda x: jax.jit(Repeated.apply)(x, 2), TypeError, "static_argnums"),
        (jax.grad(lambda x: NotUnpacked.apply(x).sum()), TypeError, "(x,) = ctx.saved_tensors"),
        (jax.grad(lambda x: AsksTooFar.apply(x).sum()), IndexError, "an entry for each argument of AsksTooFar.apply"),
    ],
    ids=["a traced number of repetitions", "saved_tensors not unpacked", "needs_input_grad out of range"],
)
def test_notes_of_usual_mistakes(call, error, note):
    """A note on the user's own error says what to write instead."""
    with pytest.raises(error) as info:
        call(jnp.arange(3.0))
    assert any(note in n for n in info.value.__notes__)


def test_apply_of_the_base_class():
    """`fnjax.Function.apply(x)` is refused; a look at the attribute is not."""
    assert callable(fnjax.Function.apply)
    with pytest.raises(fnjax.errors.MissingMethodError, match="is the base class"):
        fnjax.Function.apply(jnp.ones(2))


def test_arrays_of_dtypes_that_jax_lacks_are_static_in_containers():
    """Text reaches forward as it is in a tuple, in a class with pytree = True too, and where it is a string itself."""
    texts = np.array(["a", "b"])
    for pytree in (False, True):
        Fn = function(lambda ctx, x, pair, s: (x, pair[1], s), pytree=pytree)
        for wrap in (lambda f: f, jax.jit):
            seen = []
            wrap(lambda x: seen.extend(Fn.apply(x, (1, texts), np.str_("c"))[1:]))(X)  # noqa: B023 - called in the turn
            assert seen[0] is texts
            assert seen[1] == "c"


@pytest.mark.parametrize("pytree", [False, True])
def test_errors_of_jax_name_the_argument(pytree):
    """JAX names the Function's arguments in its errors about traced values."""

    def forward(ctx, params, x):
        return x if (params["w"] if pytree else params) + x > 0 else -x

    Fn = function(forward, pytree=pytree)
    with pytest.raises(jax.errors.TracerBoolConversionError, match=rf"the arguments params{'.w' * pytree} and x\."):
        jax.jit(Fn.apply)({"w": X[0]} if pytree else X[0], X[0])


@pytest.mark.parametrize("how", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("method", ["forward", "backward"])
def test_tracebacks_have_no_frames_of_fnjax(method, how):
    """As JAX leaves out its own; with JAX_TRACEBACK_FILTERING=off all are there."""
    Fn = function(**{method: lambda ctx, *_: undefined})  # noqa: F821 - which is the error
    before = jax.config.values["jax_traceback_filtering"]

    def list_files(filtering):
        jax.config.update("jax_traceback_filtering", filtering)
        try:
            with pytest.raises(NameError, match="undefined") as caught:
                how(jax.grad(lambda x: Fn.apply(x).sum()))(X)
        finally:
            jax.config.update("jax_traceback_filtering", before)
        return [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]

    files = list_files("auto")
    assert files[-1] == __file__
    assert [file for file in files if file.startswith(PACKAGE)] == []
    assert any(file.startswith(PACKAGE) for file in list_files("off"))
