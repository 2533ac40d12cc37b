"""Custom operators behave in fnjax as in PyTorch: one source, run in both, gives the same values, gradients, errors."""

# Tables of calls are read by the line, and Optional[...] is among what is tried.
# ruff: noqa: E501, UP045

import builtins
from collections.abc import Sequence
from typing import Any, List, Optional, Tuple, Union  # noqa: UP035 - the older spellings are among what is tried

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity


class InTorch:
    """Return the names with which a behaviour is written, in PyTorch."""

    Tensor, dtype, Number, device = torch.Tensor, torch.dtype, torch.types.Number, torch.device
    custom_op, infer_schema, triton_op = (
        torch.library.custom_op,
        torch.library.infer_schema,
        torch.library.triton_op,
    )
    Library, opcheck, ops = torch.library.Library, torch.library.opcheck, torch.ops
    float32, int32 = torch.float32, torch.int32
    sin, cos, zeros_like, empty_like, vmap = torch.sin, torch.cos, torch.zeros_like, torch.empty_like, torch.vmap

    @staticmethod
    def array(*numbers):
        return torch.tensor(numbers)

    @staticmethod
    def numpy(x):
        return x.detach().numpy()

    @staticmethod
    def from_numpy(x):
        return torch.from_numpy(np.asarray(x))

    @staticmethod
    def copy(x):
        return x.clone()

    @staticmethod
    def cast(x, dtype):
        return x.to(dtype, copy=True)

    @staticmethod
    def grad(f, *arrays):
        """The gradients of a function that returns numbers."""
        arrays = [a.clone().requires_grad_() for a in arrays]
        grads = torch.autograd.grad(f(*arrays), arrays, create_graph=True, allow_unused=True)
        return [torch.zeros_like(a) if g is None else g for a, g in zip(arrays, grads, strict=True)]

    @staticmethod
    def trace(f, *arrays):
        """The shapes and dtypes that a function gives without being run."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode() as mode:
            y = f(*map(mode.from_tensor, arrays))
        return list(y.shape), str(y.dtype).rpartition(".")[2]


class InJax:
    """The same in JAX."""

    Tensor, dtype, Number, device = jax.Array, fnjax.dtype, int | float | bool, jax.Device
    custom_op, infer_schema, triton_op = fnjax.custom_op, fnjax.infer_schema, fnjax.triton_op
    Library, opcheck, ops = fnjax.Library, fnjax.opcheck, fnjax.ops
    float32, int32 = jnp.float32, jnp.int32
    sin, cos, zeros_like, empty_like = jnp.sin, jnp.cos, jnp.zeros_like, jnp.empty_like

    @staticmethod
    def vmap(f, in_dims=0):
        return jax.vmap(f, in_dims)

    @staticmethod
    def array(*numbers):
        return jnp.array(numbers)

    @staticmethod
    def numpy(x):
        return np.asarray(x)

    @staticmethod
    def from_numpy(x):
        return jnp.asarray(x)

    @staticmethod
    def copy(x):
        return x.copy()

    @staticmethod
    def cast(x, dtype):
        return x.astype(dtype)

    @staticmethod
    def grad(f, *arrays):
        return list(jax.grad(f, tuple(range(len(arrays))))(*arrays))

    @staticmethod
    def trace(f, *arrays):
        y = jax.eval_shape(f, *arrays)
        return list(y.shape), str(y.dtype)


BEHAVIOURS: dict[str, Any] = {}
WORDS: dict[str, tuple[str, ...]] = {}


def behaviour(*words):
    """A behaviour; where it is an error, words that both messages have."""

    def register(f):
        assert f.__name__ not in BEHAVIOURS
        BEHAVIOURS[f.__name__], WORDS[f.__name__] = f, words
        return f

    return register


def plain(value):
    """A value without the types of its library."""
    if isinstance(value, torch.Tensor | jax.Array):
        return np.asarray(value.detach() if isinstance(value, torch.Tensor) else value)
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return value


def outcome(f, world):
    """Run a behaviour; return its value or its exception."""
    try:
        return plain(f(world))
    except Exception as e:  # noqa: BLE001 - the exception is what is looked at
        return e


def same(one, other):
    if isinstance(one, list | tuple):
        assert type(one) is type(other)
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
    elif isinstance(one, np.ndarray):
        assert isinstance(other, np.ndarray)
        assert one.shape == other.shape
        assert one.dtype.kind == other.dtype.kind
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
    else:
        assert (type(one), one) == (type(other), other)


def kind(e):
    """The first builtin class of an exception."""
    return next(c for c in type(e).__mro__ if getattr(builtins, c.__name__, None) is c)


@pytest.fixture(autouse=True)
def defaults():
    """With JAX's defaults, as users run them."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"), jax.enable_x64(False):
        yield


# ---------------------------------------------------------------------------------------------------------------------
# Schemas


def annotated(w, annotation, returned=None):
    def f(x, y):
        raise AssertionError

    f.__annotations__ = {"x": w.Tensor, "y": annotation, "return": w.Tensor if returned is None else returned}
    return w.infer_schema(f, mutates_args=())


@behaviour()
def schemas_of_numbers(w):
    return [annotated(w, a) for a in (int, float, bool, str, w.Number)]


@behaviour()
def schemas_of_optionals(w):
    kinds = (int, float, bool, str, w.Tensor, w.dtype, w.device, w.Number)
    return [annotated(w, Optional[a]) for a in kinds] + [annotated(w, int | None)]


@behaviour()
def schemas_of_lists(w):
    kinds = (w.Tensor, int, float, bool, w.Number)
    return [annotated(w, form[a]) for form in (list, List, Sequence) for a in kinds]  # noqa: UP006


@behaviour()
def schemas_of_optional_lists(w):
    return [
        annotated(w, Optional[list[int]]),
        annotated(w, Sequence[float] | None),
        annotated(w, list[w.Tensor | None]),
    ]


@behaviour()
def schemas_of_dtypes_and_devices(w):
    return [annotated(w, w.dtype), annotated(w, w.device)]


@behaviour()
def schemas_of_results(w):
    T = w.Tensor
    kinds = (T, list[T], List[T], int, float, bool, w.Number, tuple[T, T], tuple[T], Tuple[T, int], tuple[list[T], T])  # noqa: UP006
    return [annotated(w, int, r) for r in kinds]


@behaviour()
def schema_of_nothing_returned(w):
    def f(x: w.Tensor) -> None:
        pass

    return w.infer_schema(f, mutates_args=())


@behaviour()
def schema_of_defaults(w):
    def f(
        x: w.Tensor, n: int = 3, f: float = 0.5, b: bool = True, s: str = "hi", o: int | None = None, d: w.dtype = w.float32,
        *, k: int = 1, q: float | None = None,
    ) -> w.Tensor:  # fmt: skip
        raise AssertionError

    return w.infer_schema(f, mutates_args=())


@behaviour()
def schema_of_strings(w):
    def f(x: w.Tensor, y: "int", z: list["int"]) -> w.Tensor:
        raise AssertionError

    return w.infer_schema(f, mutates_args=(), op_name="name")


@behaviour()
def schema_of_mutation(w):
    def f(x: w.Tensor, y: list[w.Tensor], z: Optional[w.Tensor], n: int) -> None:
        raise AssertionError

    return [w.infer_schema(f, mutates_args=m) for m in (("x",), ["y", "z"], "unknown", {})]


def refused(name, annotation, *words):
    @behaviour(*words)
    def f(w):
        return annotated(w, annotation(w))

    BEHAVIOURS[name], WORDS[name] = BEHAVIOURS.pop("f"), WORDS.pop("f")


for name, annotation in {
    "dict": lambda w: dict,
    "typed_dict": lambda w: dict[str, int],
    "any": lambda w: Any,
    "ndarray": lambda w: np.ndarray,
    "bare_list": lambda w: list,
    "strings": lambda w: list[str],
    "complex": lambda w: complex,
    "nested": lambda w: list[list[int]],
    "union": lambda w: Union[int, float],  # noqa: UP007
    "tensor_or_number": lambda w: w.Tensor | int,
    "optional_tensors": lambda w: Optional[list[w.Tensor]],
    "object": lambda w: object,
}.items():
    refused(f"annotation_of_{name}", annotation, "Parameter y has unsupported type", "valid types are")
refused(
    "annotation_of_tuple", lambda w: tuple[int, int], "Parameter y has unsupported type", "do not support Tuple inputs"
)
refused("annotation_of_unknown_name", lambda w: "Nope", "Unsupported type annotation Nope. It is not a type.")


@behaviour("Parameter x must have a type annotation")
def annotation_missing(w):
    return w.custom_op("pa::annotation_missing", lambda x: x, mutates_args=())


@behaviour("No return type annotation was provided")
def annotation_of_result_missing(w):
    def f(x: w.Tensor):
        pass

    return w.custom_op("pa::annotation_of_result_missing", f, mutates_args=())


for name, returned in {
    "string": lambda w: str,
    "optional": lambda w: Optional[w.Tensor],
    "sequence": lambda w: Sequence[w.Tensor],
    "dict": lambda w: dict,
    "dtype": lambda w: w.dtype,
    "many": lambda w: tuple[w.Tensor, ...],
}.items():

    @behaviour("Return has unsupported type")
    def result(w, returned=returned):
        return annotated(w, int, returned(w))

    BEHAVIOURS[f"result_of_{name}"], WORDS[f"result_of_{name}"] = BEHAVIOURS.pop("result"), WORDS.pop("result")


@behaviour("We do not support positional-only args, varargs, or varkwargs")
def parameters_variadic(w):
    def f(x: w.Tensor, *more: int) -> w.Tensor:
        raise AssertionError

    return w.infer_schema(f, mutates_args=())


@behaviour("We do not support positional-only args, varargs, or varkwargs")
def parameters_positional_only(w):
    def f(x: w.Tensor, /) -> w.Tensor:
        raise AssertionError

    return w.infer_schema(f, mutates_args=())


@behaviour("Parameter y has an unsupported default value type")
def default_of_list(w):
    def f(x: w.Tensor, y: list[int] = [1]) -> w.Tensor:  # noqa: B006
        raise AssertionError

    return w.infer_schema(f, mutates_args=())


@behaviour("expected None")
def default_of_tensor(w):
    def f(x: w.Tensor, y: w.Tensor = 3) -> w.Tensor:
        raise AssertionError

    return w.custom_op("pa::default_of_tensor", f, mutates_args=())


@behaviour("custom_op with kwarg-only Tensor args", "make your tensors not kwarg-only")
def tensor_keyword_only(w):
    def f(x: w.Tensor, *, y: w.Tensor) -> w.Tensor:
        raise AssertionError

    return w.custom_op("pa::tensor_keyword_only", f, mutates_args=())


def doubled(w, name, **options):
    def f(x: w.Tensor) -> w.Tensor:
        return x * 2

    return w.custom_op(name, f, **{"mutates_args": (), **options})


@behaviour("{'zz'} in mutates_args were not found in the custom op's signature")
def mutates_unknown_name(w):
    return doubled(w, "pa::mutates_unknown_name", mutates_args=("zz",))


@behaviour("mutates_args must either be a sequence of the names", "'unknown'")
def mutates_string(w):
    return doubled(w, "pa::mutates_string", mutates_args="x")


@behaviour("Parameter n is in mutable_args but only Tensors or collections of Tensors can be mutated")
def mutates_number(w):
    def f(x: w.Tensor, n: int) -> None:
        raise AssertionError

    return w.custom_op("pa::mutates_number", f, mutates_args=("n",))


@behaviour("missing 1 required keyword-only argument: 'mutates_args'")
def mutates_args_left_out(w):
    return w.custom_op("pa::mutates_args_left_out")


@behaviour()
def schema_given(w):
    def f(x, n=2):
        return x * n

    op = w.custom_op("pa::schema_given", f, mutates_args=(), schema="(Tensor x, int n=2) -> Tensor")
    return op(w.array(1.0, 2.0)), op(w.array(1.0, 2.0), 3)


@behaviour("`mutates_args=('x',)`", "Please make these consistent")
def schema_given_mutates_less(w):
    return doubled(w, "pa::schema_given_less", mutates_args=("x",), schema="(Tensor x) -> Tensor")


@behaviour("unknown type specifier")
def schema_given_unreadable(w):
    return doubled(w, "pa::schema_given_unreadable", schema="(Tenso x) -> Tensor")


# ---------------------------------------------------------------------------------------------------------------------
# Names


@behaviour("not enough values to unpack (expected 2, got 1)")
def name_without_namespace(w):
    return doubled(w, "nothing")


@behaviour("too many values to unpack (expected 2")
def name_of_three(w):
    return doubled(w, "a::b::c")


@behaviour("expected ident")
def name_empty(w):
    return doubled(w, "a::")


@behaviour("expected ident")
def namespace_of_number(w):
    return doubled(w, "1a::b")


@behaviour("has no attribute 'split'")
def name_of_number(w):
    return doubled(w, 3)


@behaviour()
def look_up(w):
    op = doubled(w, "pa::look_up")
    x = w.array(1.0, 2.0)
    return op(x), w.ops.pa.look_up(x), w.ops.pa.look_up.default(x), repr(op), hasattr(w.ops.pa, "other")


@behaviour("'_OpNamespace' 'pa' object has no attribute 'nothing_of_this_name'")
def look_up_unknown(w):
    return w.ops.pa.nothing_of_this_name


@behaviour("'_OpNamespace' 'no_such_space' object has no attribute 'f'")
def look_up_unknown_namespace(w):
    return w.ops.no_such_space.f


@behaviour("The underlying op of 'pa.overload' has no overload name 'other'")
def look_up_unknown_overload(w):
    doubled(w, "pa::overload")
    return w.ops.pa.overload.other


@behaviour()
def defined_again(w):
    def f(x: w.Tensor) -> w.Tensor:
        return x * 20

    first = doubled(w, "pa::again")
    w.custom_op("pa::again", f, mutates_args=())
    return first(w.array(1.0)), w.ops.pa.again(w.array(1.0))


# ---------------------------------------------------------------------------------------------------------------------
# Calls


def many(w):
    def f(
        x: w.Tensor, n: int, f: float = 1.0, b: bool = False, s: str = "a", o: Optional[w.Tensor] = None, *, k: int = 1
    ) -> w.Tensor:  # fmt: skip
        return x * n * f * (2 if b else 1) * k + (0 if o is None else o) + len(s)

    return w.custom_op("pa::many", f, mutates_args=())


X = (1.0, 2.0)
GOOD = {
    "by_position": lambda w, op, x: op(x, 2, 0.5, True, "abc", x),
    "by_name": lambda w, op, x: op(n=2, x=x, k=3),
    "bool_for_int": lambda w, op, x: op(x, True),
    "int_for_float": lambda w, op, x: op(x, 1, 2),
    "int_for_bool": lambda w, op, x: op(x, 1, 1.0, 1),
    "numpy_numbers": lambda w, op, x: op(x, np.int64(2), np.float32(0.5), np.bool_(True)),
    "array_for_int": lambda w, op, x: op(x, w.array(3)[0]),
    "array_for_float": lambda w, op, x: op(x, 1, w.array(2.5)[0]),
    "none_for_optional": lambda w, op, x: op(x, 1, 1.0, False, "a", None),
}  # fmt: skip
BAD = {
    "missing": (lambda w, op, x: op(x), "pa::many() is missing value for argument 'n'", "Declaration: pa::many("),
    "none_given": (lambda w, op, x: op(), "pa::many() is missing value for argument 'x'"),
    "surplus": (lambda w, op, x: op(x, 1, 1.0, True, "a", None, 3), "pa::many() takes 6 positional argument(s) but 7 was/were given."),
    "far_surplus": (lambda w, op, x: op(*[x] * 9), "expected at most 7 argument(s) but received 9 argument(s)"),
    "unknown": (lambda w, op, x: op(x, 1, zz=3), "Unknown keyword argument 'zz' for operator 'pa::many'"),
    "twice": (lambda w, op, x: op(x, 1, n=2), "Argument 'n' specified both as positional and keyword argument"),
    "str_for_int": (lambda w, op, x: op(x, "a"), "Expected a value of type 'int' for argument 'n' but instead found type 'str'", "Position: 1"),
    "float_for_int": (lambda w, op, x: op(x, 1.0), "Expected a value of type 'int' for argument 'n' but instead found type 'float'"),
    "none_for_int": (lambda w, op, x: op(x, None), "type 'int' for argument 'n' but instead found type 'NoneType'"),
    "huge_int": (lambda w, op, x: op(x, 2**70), "Expected a value of type 'int' for argument 'n'"),
    "vector_for_int": (lambda w, op, x: op(x, x), "Expected a value of type 'int' for argument 'n'"),
    "str_for_float": (lambda w, op, x: op(x, 1, "a"), "Expected a value of type 'float' for argument 'f'"),
    "complex_for_float": (lambda w, op, x: op(x, 1, 1j), "type 'float' for argument 'f' but instead found type 'complex'"),
    "str_for_bool": (lambda w, op, x: op(x, 1, 1.0, "a"), "Expected a value of type 'bool' for argument 'b'"),
    "int_for_str": (lambda w, op, x: op(x, 1, 1.0, True, 3), "Expected a value of type 'str' for argument 's' but instead found type 'int'"),
    "number_for_tensor": (lambda w, op, x: op(1.5, 1), "Expected a value of type 'Tensor' for argument 'x' but instead found type 'float'"),
    "list_for_tensor": (lambda w, op, x: op([1.0], 1), "Expected a value of type 'Tensor' for argument 'x' but instead found type 'list'"),
    "int_for_optional": (lambda w, op, x: op(x, 1, 1.0, False, "a", 3), "Expected a value of type 'Optional[Tensor]' for argument 'o'"),
    "keyword_of_wrong_type": (lambda w, op, x: op(x, 1, k="a"), "Expected a value of type 'int' for argument 'k'", "Position: 6"),
}  # fmt: skip
for name, call in GOOD.items():
    BEHAVIOURS[f"call_{name}"] = lambda w, call=call: call(w, many(w), w.array(*X))
    WORDS[f"call_{name}"] = ()
for name, (call, *words) in BAD.items():
    BEHAVIOURS[f"refused_{name}"] = lambda w, call=call: call(w, many(w), w.array(*X))
    WORDS[f"refused_{name}"] = tuple(words)


def listed(w):
    def f(xs: list[w.Tensor], ks: Sequence[float], ns: Optional[list[int]] = None) -> w.Tensor:
        assert (type(xs), type(ks)) == (list, list)
        assert all(type(k) is float for k in ks)
        return sum(x * k for x, k in zip(xs, ks, strict=True)) + sum(ns or [])

    return w.custom_op("pa::listed", f, mutates_args=())


LISTS = {
    "of_lists": (lambda w, op, x: op([x, x], [1.0, 2.0]),),
    "of_tuples": (lambda w, op, x: op((x, x), (1, 2), (3, 4)),),
    "of_numpy": (lambda w, op, x: op([x], np.array([0.5])),),
    "of_range": (lambda w, op, x: op([x], [1], range(3)),),
    "refused_array": (lambda w, op, x: op(x, [1.0]), "Expected a value of type 'List[Tensor]' for argument 'xs'"),
    "refused_element": (lambda w, op, x: op([x, 3], [1.0, 1.0]), "Expected a value of type 'List[Tensor]' for argument 'xs' but instead found type 'list'"),
    "refused_none": (lambda w, op, x: op([x, None], [1.0, 1.0]), "Expected a value of type 'List[Tensor]' for argument 'xs'"),
    "refused_number": (lambda w, op, x: op([x], 1.0), "Expected a value of type 'List[float]' for argument 'ks'"),
    "refused_string": (lambda w, op, x: op([x], ["a"]), "Expected a value of type 'List[float]' for argument 'ks'"),
    "refused_floats": (lambda w, op, x: op([x], [1.0], [1.5]), "Expected a value of type 'Optional[List[int]]' for argument 'ns'"),
    "refused_int": (lambda w, op, x: op([x], [1.0], 3), "Expected a value of type 'Optional[List[int]]' for argument 'ns'"),
}  # fmt: skip
for name, (call, *words) in LISTS.items():
    BEHAVIOURS[f"list_{name}"] = lambda w, call=call: call(w, listed(w), w.array(*X))
    WORDS[f"list_{name}"] = tuple(words)


def casting(w):
    def f(x: w.Tensor, d: w.dtype) -> w.Tensor:
        return w.cast(x, d)

    return w.custom_op("pa::casting", f, mutates_args=())


@behaviour()
def dtype_argument(w):
    return casting(w)(w.array(1.5, 2.5), w.int32)


for name, value in {"string": "int32", "none": None, "python_type": float}.items():

    @behaviour("for argument 'd' but instead found type")
    def dtype_refused(w, value=value):
        return casting(w)(w.array(1.5), value)

    BEHAVIOURS[f"dtype_{name}"], WORDS[f"dtype_{name}"] = BEHAVIOURS.pop("dtype_refused"), WORDS.pop("dtype_refused")


def scaled(w):
    def f(x: w.Tensor, s: w.Number) -> w.Tensor:
        return x * s

    return w.custom_op("pa::scaled", f, mutates_args=())


@behaviour()
def number_argument(w):
    op = scaled(w)
    return op(w.array(*X), 2), op(w.array(*X), 2.5), op(w.array(*X), True)


@behaviour("Expected a value of type 'number' for argument 's' but instead found type 'str'")
def number_refused(w):
    return scaled(w)(w.array(*X), "a")


@behaviour("division by zero")
def error_of_the_body(w):
    def f(x: w.Tensor) -> w.Tensor:
        return 1 / 0

    return w.custom_op("pa::error_of_the_body", f, mutates_args=())(w.array(*X))


# ---------------------------------------------------------------------------------------------------------------------
# Results


def returning(name, annotation, value, *words):
    def run(w):
        def f(x):
            return value(w, x)

        f.__annotations__ = {"x": w.Tensor, "return": annotation(w)}
        return w.custom_op("pa::returning", f, mutates_args=())(w.array(*X))

    BEHAVIOURS[f"returns_{name}"], WORDS[f"returns_{name}"] = run, words


def one(w):
    return w.Tensor


def pair(w):
    return tuple[w.Tensor, w.Tensor]


ALIAS = ("output of this custom operator (1) must not also be an input", "may not alias any inputs")
returning("array", one, lambda w, x: x + 1)
returning("none_for_array", one, lambda w, x: None)
returning("int_for_array", one, lambda w, x: 3, "Unable to cast", "to Tensor")
returning("tuple_for_array", one, lambda w, x: (x + 1, x + 2), "Unable to cast", "to Tensor")
returning("list_for_array", one, lambda w, x: [x + 1], "Unable to cast", "to Tensor")
returning("pair", pair, lambda w, x: (x + 1, x + 2))
returning("list_for_pair", pair, lambda w, x: [x + 1, x + 2])
returning("array_for_pair", pair, lambda w, x: x + 1, "is not an instance of 'sequence'")
returning("tuple_of_one", lambda w: tuple[w.Tensor], lambda w, x: (x + 1,))
returning("list", lambda w: list[w.Tensor], lambda w, x: [x + 1, x + 2])
returning("tuple_for_list", lambda w: list[w.Tensor], lambda w, x: (x + 1, x + 2))
returning("empty_list", lambda w: list[w.Tensor], lambda w, x: [])
returning("array_for_list", lambda w: list[w.Tensor], lambda w, x: x + 1, "Unable to cast")
returning("list_and_array", lambda w: tuple[list[w.Tensor], w.Tensor], lambda w, x: ([x + 1], x + 2))
returning("int", lambda w: int, lambda w, x: 3)
returning("int_for_float", lambda w: float, lambda w, x: 3)
returning("float_for_int", lambda w: int, lambda w, x: 3.5, "Unable to cast")
returning("array_for_int", lambda w: int, lambda w, x: x.sum())
returning("bool", lambda w: bool, lambda w, x: True)
returning("array_and_int", lambda w: tuple[w.Tensor, int], lambda w, x: (x + 1, 3))
returning("nothing", lambda w: type(None) if w is None else None, lambda w, x: None)
returning("something_for_nothing", lambda w: None, lambda w, x: x + 1, "to return None but it returned something else")
returning("its_argument", one, lambda w, x: x, *ALIAS)
returning("its_argument_in_a_pair", pair, lambda w, x: (x + 1, x), *ALIAS)
returning("its_argument_in_a_list", lambda w: list[w.Tensor], lambda w, x: [x], *ALIAS)
returning("an_array_twice", pair, lambda w, x: (x + 1,) * 2, *ALIAS)


# ---------------------------------------------------------------------------------------------------------------------
# Gradients


def scaling(w, backward, setup_context=None):
    def f(x: w.Tensor, n: int) -> w.Tensor:
        return x * n

    op = w.custom_op("pa::scaling", f, mutates_args=())
    op.register_autograd(backward, setup_context=setup_context)
    return w.grad(lambda x: op(x, 3).sum(), w.array(*X))


@behaviour(
    "Trying to backward through pa.bare.default but no autograd formula was registered", "Please use register_autograd"
)
def gradient_not_registered(w):
    op = doubled(w, "pa::bare")
    return w.grad(lambda x: op(x).sum(), w.array(*X))


@behaviour()
def gradient(w):
    def setup_context(ctx, inputs, output):
        assert type(inputs) is tuple
        ctx.n = inputs[1]
        ctx.save_for_backward(inputs[0], output)

    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        assert tuple(ctx.needs_input_grad) == (True, False)
        return grad * ctx.n + 0 * x * y, None

    return scaling(w, backward, setup_context)


@behaviour()
def gradient_of_none(w):
    return scaling(w, lambda ctx, grad: (None, None))


@behaviour()
def gradient_with_surplus_none(w):
    return scaling(w, lambda ctx, grad: (grad, None, None))


@behaviour("returned an incorrect number of gradients")
def gradients_too_few(w):
    return scaling(w, lambda ctx, grad: grad)


@behaviour("returned a gradient different than None at position 2")
def gradient_for_number(w):
    return scaling(w, lambda ctx, grad: (grad, grad))


@behaviour("expected Variable or None (got float)")
def gradient_is_number(w):
    return scaling(w, lambda ctx, grad: (2.0, None))


@behaviour("returned an invalid gradient at index 0 - got [1] but expected shape compatible with [2]")
def gradient_of_other_shape(w):
    return scaling(w, lambda ctx, grad: (grad[:1], None))


@behaviour("returned an incorrect number of gradients")
def gradients_as_list(w):
    return scaling(w, lambda ctx, grad: [grad, None])


@behaviour("unexpected keyword argument 'ctx'")
def setup_context_is_called_by_names(w):
    return scaling(w, lambda ctx, grad: (grad, None), lambda c, i, o: None)


@behaviour("unexpected keyword argument 'output'")
def setup_context_without_output(w):
    return scaling(w, lambda ctx, grad: (grad, None), lambda ctx, inputs: None)


@behaviour("takes 1 positional argument")
def backward_with_too_few_parameters(w):
    return scaling(w, lambda ctx: None)


def with_keyword(w, setup_context):
    def f(x: w.Tensor, n: int, *, k: int = 3, z: float = 1.5) -> w.Tensor:
        return x * n * k

    op = w.custom_op("pa::with_keyword", f, mutates_args=())
    op.register_autograd(lambda ctx, grad: (grad * ctx.factor, None), setup_context=setup_context)
    return w.grad(lambda x: op(x, 2).sum() + op(x, 2, k=5).sum(), w.array(*X))


@behaviour()
def keyword_only_inputs(w):
    def setup_context(ctx, inputs, keyword_only_inputs, output):
        assert keyword_only_inputs["z"] == 1.5
        ctx.factor = inputs[1] * keyword_only_inputs["k"]

    return with_keyword(w, setup_context)


@behaviour("unexpected keyword argument 'keyword_only_inputs'")
def keyword_only_inputs_not_taken(w):
    return with_keyword(w, lambda ctx, inputs, output: None)


def summing(w, backward):
    def f(xs: list[w.Tensor], bias: Optional[w.Tensor], ks: Sequence[float]) -> w.Tensor:
        return sum(x * k for x, k in zip(xs, ks, strict=True))

    op = w.custom_op("pa::summing", f, mutates_args=())
    needs = []

    def noting(ctx, grad):
        needs.append(tuple(ctx.needs_input_grad))
        return backward(grad)

    op.register_autograd(noting)
    constant = w.array(5.0, 6.0)
    grads = w.grad(lambda a, b: op([a, constant, b], None, [1.0, 2.0, 3.0]).sum(), w.array(*X), w.array(*X))
    return grads, needs[0]


@behaviour()
def gradients_of_a_list(w):
    return summing(w, lambda grad: ([grad, None, grad * 3], None, None))


for name, value in {
    "none": lambda grad: (None, None, None),
    "tuple": lambda grad: ((grad, grad, grad), None, None),
    "short": lambda grad: ([grad], None, None),
}.items():

    @behaviour("Expected the return from backward to be of the same structure as the inputs")
    def structure(w, value=value):
        return summing(w, value)

    BEHAVIOURS[f"gradients_of_a_list_{name}"] = BEHAVIOURS.pop("structure")
    WORDS[f"gradients_of_a_list_{name}"] = WORDS.pop("structure")


@behaviour()
def gradients_for_a_list_of_results(w):
    def f(x: w.Tensor) -> list[w.Tensor]:
        return [x * 2, x * 3]

    def backward(ctx, grads):
        assert type(grads) is list
        return grads[0] * 2 + grads[1] * 3

    op = w.custom_op("pa::results", f, mutates_args=())
    op.register_autograd(backward)
    return w.grad(lambda x: op(x)[0].sum() + (op(x)[1] ** 2).sum(), w.array(*X))


@behaviour()
def gradients_of_a_list_alone(w):
    def f(xs: list[w.Tensor]) -> w.Tensor:
        return xs[0] * 2 + xs[1]

    op = w.custom_op("pa::alone", f, mutates_args=())
    op.register_autograd(lambda ctx, grad: [grad * 2, grad])
    return w.grad(lambda x: op([x, x]).sum(), w.array(*X))


@behaviour()
def gradients_of_an_empty_list(w):
    def f(x: w.Tensor, xs: list[w.Tensor]) -> w.Tensor:
        return x * 2

    op = w.custom_op("pa::empty", f, mutates_args=())
    op.register_autograd(lambda ctx, grad: (grad * 2, []))
    return w.grad(lambda x: op(x, []).sum(), w.array(*X))


@behaviour()
def gradient_of_a_result_that_is_marked(w):
    def f(x: w.Tensor) -> tuple[w.Tensor, w.Tensor]:
        return x * 2, x * 3

    op = w.custom_op("pa::marked", f, mutates_args=())
    op.register_autograd(
        lambda ctx, a, b: a * 2 + b, setup_context=lambda ctx, inputs, output: ctx.mark_non_differentiable(output[1])
    )
    return w.grad(lambda x: op(x)[0].sum() + op(x)[1].sum(), w.array(*X))


@behaviour()
def gradient_without_zeros(w):
    def f(x: w.Tensor) -> tuple[w.Tensor, w.Tensor]:
        return x * 2, x * 3

    def backward(ctx, a, b):
        assert b is None
        return a * 2

    op = w.custom_op("pa::without_zeros", f, mutates_args=())
    op.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.set_materialize_grads(False))
    return w.grad(lambda x: op(x)[0].sum(), w.array(*X))


@behaviour()
def inputs_have_their_defaults(w):
    def f(x: w.Tensor, n: int = 2, y: w.Tensor | None = None) -> w.Tensor:
        return x * n

    seen = []
    op = w.custom_op("pa::defaults", f, mutates_args=())
    op.register_autograd(
        lambda ctx, grad: (grad, None, None), setup_context=lambda ctx, inputs, output: seen.append(inputs[1:])
    )
    return w.grad(lambda x: op(x).sum(), w.array(*X)), seen


@behaviour("mine")
def gradient_that_raises(w):
    def backward(ctx, grad):
        raise KeyError("mine")

    return scaling(w, backward)


@behaviour("takes 2 positional arguments but 3")
def setup_context_by_position(w):
    doubled(w, "pa::by_position").register_autograd(lambda ctx, grad: grad, lambda ctx, inputs, output: None)


@behaviour("argument")
def save_for_backward_of_a_list(w):
    return scaling(w, lambda ctx, grad: (grad, None), lambda ctx, inputs, output: ctx.save_for_backward([inputs[0]]))


@behaviour()
def gradient_of_an_unused_result(w):
    def f(x: w.Tensor) -> tuple[w.Tensor, w.Tensor]:
        return x * 2, x * 3

    op = w.custom_op("pa::unused", f, mutates_args=())
    op.register_autograd(lambda ctx, a, b: a * 2 + b * 3)
    return w.grad(lambda x: op(x)[0].sum(), w.array(*X))


@behaviour()
def gradient_beside_a_number(w):
    def f(x: w.Tensor) -> tuple[w.Tensor, int]:
        return x * 2, 7

    def backward(ctx, a, b):
        assert b is None
        return a * 2

    op = w.custom_op("pa::beside", f, mutates_args=())
    op.register_autograd(backward)
    return w.grad(lambda x: op(x)[0].sum() * op(x)[1], w.array(*X))


@behaviour()
def registered_again(w):
    op = doubled(w, "pa::registered_again")
    op.register_autograd(lambda ctx, grad: grad)
    op.register_autograd(lambda ctx, grad: grad * 5)
    return w.grad(lambda x: op(x).sum(), w.array(*X))


def cubed(w):
    def cube(x: w.Tensor) -> w.Tensor:
        return w.from_numpy(w.numpy(x) ** 3)

    def slope(grad: w.Tensor, x: w.Tensor) -> w.Tensor:
        return w.from_numpy(3 * w.numpy(grad) * w.numpy(x) ** 2)

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def slope_backward(ctx, grad):
        g, x = ctx.saved_tensors
        return grad * 3 * x**2, grad * 6 * g * x

    slope = w.custom_op("pa::slope", slope, mutates_args=())
    slope.register_fake(lambda grad, x: w.empty_like(x))
    slope.register_autograd(slope_backward, setup_context=keep)
    cube = w.custom_op("pa::cube", cube, mutates_args=())
    cube.register_fake(w.empty_like)
    cube.register_autograd(lambda ctx, grad: slope(grad, *ctx.saved_tensors), setup_context=keep)
    return cube


@behaviour()
def second_derivative(w):
    cube = cubed(w)
    return w.grad(lambda x: w.grad(lambda x: cube(x).sum(), x)[0].sum(), w.array(*X))


@behaviour("Trying to backward through pa.once.default but no autograd formula was registered")
def second_derivative_not_registered(w):
    def slope(grad: w.Tensor, x: w.Tensor) -> w.Tensor:
        return w.from_numpy(3 * w.numpy(grad) * w.numpy(x) ** 2)

    cube, once = cubed(w), w.custom_op("pa::once", slope, mutates_args=())
    once.register_fake(lambda grad, x: w.empty_like(x))
    cube.register_autograd(
        lambda ctx, grad: once(grad, *ctx.saved_tensors),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return w.grad(lambda x: w.grad(lambda x: cube(x).sum(), x)[0].sum(), w.array(*X))


@behaviour("Cannot register autograd formula for non-functional operator", "create a functional operator")
def gradient_of_mutation(w):
    def f(x: w.Tensor, out: w.Tensor) -> None:
        raise AssertionError

    w.custom_op("pa::mutating", f, mutates_args=("out",)).register_autograd(lambda ctx: None)


@behaviour()
def composite(w):
    library = w.Library("pacomposite", "FRAGMENT")
    library.define("square(Tensor x, *, float a=2.0) -> Tensor")
    library.impl("square", lambda x, a=2.0: x * x * a, "CompositeImplicitAutograd")
    return w.grad(lambda x: w.ops.pacomposite.square(x, a=3.0).sum(), w.array(*X))


@behaviour("no autograd formula was registered")
def gradient_of_triton_op(w):
    def f(x: w.Tensor) -> w.Tensor:
        return w.sin(x)

    op = w.triton_op("pa::triton", f, mutates_args=())
    return w.grad(lambda x: op(x).sum(), w.array(*X))


# ---------------------------------------------------------------------------------------------------------------------
# Tracing, kernels, vmap, opcheck


def sine(w, fake=None):
    def f(x: w.Tensor) -> w.Tensor:
        return w.from_numpy(np.sin(w.numpy(x)))

    op = w.custom_op("pa::sine", f, mutates_args=())
    if fake is not None:
        assert op.register_fake(fake) is fake
    return op


@behaviour("There was no fake impl registered for <CustomOpDef(pa::sine)>", "Please use `f.register_fake`")
def fake_not_registered(w):
    return w.trace(sine(w), w.array(*X))


@behaviour()
def fake(w):
    return w.trace(sine(w, w.empty_like), w.array(*X))


@behaviour()
def fake_is_believed(w):
    return w.trace(sine(w, lambda x: w.cast(w.empty_like(x)[:1], w.int32)), w.array(*X))


@behaviour()
def kernel(w):
    op = doubled(w, "pa::kernel")
    op.register_kernel("cpu")(lambda x: x * 100)
    return op(w.array(*X))


@behaviour()
def kernel_for_several(w):
    return doubled(w, "pa::kernels", device_types=["cpu", "cuda"])(w.array(*X))


@behaviour()
def kernel_off(w):
    op = doubled(w, "pa::kernel_off")
    op.register_kernel("cpu")(lambda x: x * 100)
    with op.set_kernel_enabled("cpu", enabled=False):
        off = op(w.array(*X))
    return off, op(w.array(*X))


@behaviour(
    "Could not run 'pa::cuda_only' with arguments from the 'CPU' backend", "only available for these backends: [CUDA"
)
def kernel_of_another_platform(w):
    return doubled(w, "pa::cuda_only", device_types="cuda")(w.array(*X))


@behaviour("Expected one of cpu, ", "device type at start of device string: nonsense")
def kernel_of_no_platform(w):
    return doubled(w, "pa::nonsense", device_types="nonsense")


@behaviour("Functions without tensor inputs are required to have a `device: ")
def kernel_without_arrays(w):
    def f(n: int) -> w.Tensor:
        raise AssertionError

    return w.custom_op("pa::no_arrays", f, mutates_args=(), device_types="cpu")


@behaviour()
def vmap_not_registered(w):
    return w.vmap(sine(w, w.empty_like))(w.array(X, X))


def batched(w, vmap):
    def f(x: w.Tensor, y: w.Tensor, n: int, *, k: int = 1) -> w.Tensor:
        return w.from_numpy(w.numpy(x) * w.numpy(y) * n * k)

    op = w.custom_op("pa::batched", f, mutates_args=())
    op.register_fake(lambda x, y, n, k=1: w.empty_like(x))
    op.register_vmap(vmap)
    return w.vmap(lambda x, y: op(x, y, 2, k=3), in_dims=(1, None))(w.array(X, (3.0, 4.0)), w.array(*X))


@behaviour()
def vmap(w):
    def rule(info, in_dims, x, y, n, *, k=1):
        assert (info.batch_size, info.randomness, in_dims) == (2, "error", (1, None, None))
        return x * y[:, None] * n * k, 1

    return batched(w, rule)


@behaviour("Expected the vmap staticmethod to have two returns, an output and out_dims")
def vmap_of_one_result(w):
    return batched(w, lambda info, in_dims, *args, **kwargs: args[0])


@behaviour("returned an incompatible (output, out_dims) tuple")
def vmap_of_wrong_axes(w):
    return batched(w, lambda info, in_dims, *args, **kwargs: (args[0], (0, 0)))


def batched_square(w, out_dims):
    def f(x: w.Tensor) -> w.Tensor:
        return x * x

    op = w.custom_op("pa::batched_square", f, mutates_args=())
    op.register_vmap(lambda info, in_dims, x: (x * x, out_dims))
    return w.vmap(op)(w.array(X, (3.0, 4.0)))


@behaviour()
def vmap_of_a_negative_axis(w):
    return batched_square(w, -2), batched_square(w, -1)


@behaviour()
def vmap_of_a_list(w):
    def f(xs: list[w.Tensor]) -> tuple[w.Tensor, w.Tensor]:
        return xs[0] + xs[1], xs[0] - xs[1]

    def rule(info, in_dims, xs):
        assert in_dims == ([0, None],)
        return (xs[0] + xs[1], xs[0] - xs[1]), (0, 0)

    op = w.custom_op("pa::batched_list", f, mutates_args=())
    op.register_vmap(rule)
    y = w.array(*X)
    return w.vmap(lambda x: op([x, y]))(w.array(X, (3.0, 4.0)))


@behaviour()
def gradient_of_a_batch(w):
    def f(x: w.Tensor) -> w.Tensor:
        return x * x

    op = w.custom_op("pa::batched_gradient", f, mutates_args=())
    op.register_vmap(lambda info, in_dims, x: (x * x, in_dims[0]))
    op.register_autograd(
        lambda ctx, grad: grad * 2 * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    return w.grad(lambda x: w.vmap(op)(x).sum(), w.array(X, (3.0, 4.0)))


@behaviour()
def opcheck_with_keywords(w):
    def f(x: w.Tensor, *, n: int) -> w.Tensor:
        return x * n

    op = w.custom_op("pa::checked", f, mutates_args=())
    op.register_fake(lambda x, n: w.empty_like(x))
    by_name = w.opcheck(
        w.ops.pa.checked.default, (w.array(*X),), {"n": 2}, test_utils=("test_schema", "test_faketensor")
    )
    return sorted(by_name.items())


@behaviour()
def opcheck_of_a_fake_that_differs(w):
    op = sine(w, lambda x: w.empty_like(x)[:1])
    results = w.opcheck(op, (w.array(*X),), test_utils=("test_schema", "test_faketensor"), raise_exception=False)
    return [(name, result == "SUCCESS") for name, result in sorted(results.items())]


@behaviour("Expected a value of type 'Tensor' for argument 'x' but instead found type 'int'")
def opcheck_of_other_arguments(w):
    return w.opcheck(sine(w, w.empty_like), (3,))


@behaviour()
def opcheck(w):
    op = sine(w, w.empty_like)
    first = dict(w.opcheck(op, (w.array(*X),)))
    op.register_autograd(
        lambda ctx, grad: grad * w.cos(ctx.saved_tensors[0]),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    return sorted(first.items()), sorted(w.opcheck(op, (w.array(*X),)).items())


@behaviour()
def opcheck_of_one_test(w):
    return dict(w.opcheck(sine(w), (w.array(*X),), test_utils="test_schema")) == {"test_schema": "SUCCESS"}


@behaviour()
def opcheck_without_fake(w):
    results = w.opcheck(sine(w), (w.array(*X),), raise_exception=False)
    return [(name, result == "SUCCESS") for name, result in sorted(results.items())]


@behaviour("test_foo")
def opcheck_of_unknown_test(w):
    return w.opcheck(sine(w), (w.array(*X),), test_utils="test_foo")


@behaviour("Unsupported kind: NOPE")
def library_of_unknown_kind(w):
    return w.Library("paunknown", "NOPE")


@behaviour("could not parse dispatch key: Nope")
def library_of_unknown_key(w):
    library = w.Library("pakeys", "FRAGMENT")
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x, "Nope")


@behaviour()
def library(w):
    library = w.Library("palibrary", "FRAGMENT")
    library.define("f(Tensor x, int n=2, *, float a=1.0, int[] s=[1,2]) -> (Tensor, Tensor)")
    library.impl("f", lambda x, n=2, *, a=1.0, s=(1, 2): (x * n, x + sum(s)), "CPU")
    return w.ops.palibrary.f(w.array(*X)), w.ops.palibrary.f(w.array(*X), 3, s=[4])


@behaviour()
def library_without_key(w):
    library = w.Library("pawithout", "FRAGMENT")
    library.impl("f", lambda x: x * x)  # before it is defined
    library.define("f(Tensor x) -> Tensor")
    return w.ops.pawithout.f(w.array(*X)), w.grad(lambda x: w.ops.pawithout.f(x).sum(), w.array(*X))


@behaviour()
def library_with_a_key_of_its_own(w):
    library, bodies = w.Library("paown", "FRAGMENT"), w.Library("paown", "IMPL", "CPU")
    library.define("f(Tensor x) -> Tensor")
    bodies.impl("f", lambda x: x * 7)
    return w.ops.paown.f(w.array(*X))


@behaviour()
def library_composite_beside_a_kernel(w):
    library = w.Library("pabeside", "FRAGMENT")
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x * 5, "CPU")
    library.impl("f", lambda x: x * 7, "CompositeImplicitAutograd")
    return w.ops.pabeside.f(w.array(*X))


@behaviour()
def library_autograd_beside_a_kernel(w):
    library = w.Library("paautograd", "FRAGMENT")
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x * 5, "CPU")
    library.impl("f", lambda x: x**3, "Autograd")
    return w.grad(lambda x: w.ops.paautograd.f(x).sum(), w.array(*X))


@behaviour("Input function is required to be a callable but found type")
def library_of_no_function(w):
    library = w.Library("panofunction", "FRAGMENT")
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", 3, "CPU")


# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_behaviour(name):
    """An operator gives what PyTorch's gives: the values and gradients, or an error of its kind with its words."""
    expected, got = (outcome(BEHAVIOURS[name], world) for world in (InTorch, InJax))
    if not isinstance(expected, Exception):
        if isinstance(got, Exception):
            raise got
        assert not WORDS[name]
        same(expected, got)
        return
    assert WORDS[name], expected
    assert isinstance(got, Exception), got
    assert isinstance(got, kind(expected)), repr(got)
    for word in WORDS[name]:
        assert word in str(expected)
        assert word in str(got)


def test_there_are_enough():
    """The behaviours are those of torch.library's documentation, sixty at least."""
    assert len(BEHAVIOURS) >= 60
