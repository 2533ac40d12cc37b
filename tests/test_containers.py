"""Containers keep their order and their identity wherever a Function takes them, in every mode."""

import collections
import dataclasses
import enum
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax


class Mode(enum.Enum):
    SLOW = 2
    FAST = 1


class Pair(NamedTuple):
    w: object
    b: object


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Params:
    w: object
    b: object


@dataclasses.dataclass
class Opaque:
    """A leaf to JAX."""

    w: object
    b: object


# Functions of two leaves, first and second.
CONTAINERS = {
    "unsorted": lambda w, b: {"w": w, "b": b},
    "sorted": lambda w, b: {"a": w, "b": b},
    "enum": lambda w, b: {Mode.SLOW: w, Mode.FAST: b},
    "none_key": lambda w, b: {"w": w, None: b},
    "mixed": lambda w, b: {"w": w, 1: b},
    "classes": lambda w, b: {int: w, float: b},
    "ordered": lambda w, b: collections.OrderedDict(w=w, b=b),
    "default": lambda w, b: collections.defaultdict(list, w=w, b=b),
    "namedtuple": Pair,
    "dataclass": Params,
    "list": lambda w, b: [w, b],
    "none": lambda w, b: (None, w, b, None),
    "nested": lambda w, b: {"w": [w, {}], "b": Params({"w": None, Mode.FAST: b}, ()), "a": {"z": None}},
}


def values(tree):
    """Return the leaves of a container in Python's order."""
    if isinstance(tree, dict):
        return [leaf for x in tree.values() for leaf in values(x)]
    if isinstance(tree, list | tuple):
        return [leaf for x in tree for leaf in values(x)]
    if dataclasses.is_dataclass(tree):
        return values(vars(tree))
    return [] if tree is None else [tree]


def turned(tree):
    """Return a container with the keys of its dictionaries in the opposite order."""
    if isinstance(tree, dict):
        items = [(key, turned(value)) for key, value in reversed(tree.items())]
        is_default = isinstance(tree, collections.defaultdict)
        return collections.defaultdict(list, items) if is_default else type(tree)(items)
    return tree


# Every function below is 2 w + 21 b; each goes wrong when the two leaves of its container are exchanged.


class OnCtx(fnjax.Function):
    """The slopes in a container on ctx, at one of three places."""

    @staticmethod
    def forward(ctx, place, make, w, b):
        slopes = make(0 * w + 2, 0 * b + 21)
        if place == "saved_data":
            ctx.saved_data["slopes"] = slopes
        else:
            ctx.slopes = slopes if place == "attribute" else ["text", slopes, 3]
        ctx.place = place
        return 2 * w + 21 * b

    @staticmethod
    def backward(ctx, grad_output):
        slopes = ctx.saved_data["slopes"] if ctx.place == "saved_data" else ctx.slopes
        w, b = values(slopes[1] if ctx.place == "list" else slopes)
        return None, None, grad_output * w, grad_output * b


class OnCtxOnce(OnCtx):
    backward = staticmethod(fnjax.once_differentiable(OnCtx.backward))


class Argument(fnjax.Function):
    @staticmethod
    def forward(ctx, slopes, w, b):
        ctx.slopes = slopes
        first, second = values(slopes)
        return first * w + second * b

    @staticmethod
    def backward(ctx, grad_output):
        first, second = values(ctx.slopes)
        return None, grad_output * first, grad_output * second


class CastArgument(Argument):
    forward = staticmethod(fnjax.custom_fwd(Argument.forward, cast_inputs=jnp.float32))


class Tree(fnjax.Function):
    """A container of which gradients are taken; that of a dictionary comes back in another order."""

    pytree = True

    @staticmethod
    def forward(ctx, make, params):
        ctx.make = make
        w, b = values(params)
        return 2 * w + 21 * b

    @staticmethod
    def backward(ctx, grad_output):
        return None, turned(ctx.make(2 * grad_output, 21 * grad_output))


class TreeOnce(Tree):
    backward = staticmethod(fnjax.once_differentiable(Tree.backward))


class Output(fnjax.Function):
    """A container that is returned; backward gets one of the same structure."""

    pytree = True

    @staticmethod
    def forward(ctx, make, w, b):
        ctx.make = make
        return [make(2 * w, 7 * b)]  # in a list: a tuple is several outputs

    @staticmethod
    def backward(ctx, grads):
        w, b = values(grads)
        return None, 2 * w, 7 * b

    @staticmethod
    def jvp(ctx, make, w, b):
        assert make is None
        return [turned(ctx.make(2 * w, 7 * b))]


def tripled(make, w, b):
    w, b = values(Output.apply(make, w, b))
    return w + 3 * b


def cut(w, b):
    """The slopes in arrays that no derivative is taken of."""
    return jax.lax.stop_gradient(0 * w + 2), jax.lax.stop_gradient(0 * b + 21)


PLACES = {
    "argument": lambda make, w, b: Argument.apply(make(*cut(w, b)), w, b),
    "argument_static": lambda make, w, b: Argument.apply(make(2.0, 21.0), w, b),
    "argument_cast": lambda make, w, b: CastArgument.apply(make(*cut(w, b)), w, b),
    "argument_tree": lambda make, w, b: Tree.apply(make, make(w, b)),
    "argument_tree_once": lambda make, w, b: TreeOnce.apply(make, make(w, b)),
    "output": tripled,
}
for _place in ("attribute", "saved_data", "list"):
    PLACES[_place] = functools.partial(OnCtx.apply, _place)
    PLACES[_place + "_once"] = functools.partial(OnCtxOnce.apply, _place)


def scanned(f):
    return lambda w, b: jax.lax.scan(lambda carry, _: (carry, f(*carry)), (w, b), None, length=1)[1][0]


def of_gradients(f):
    """Return 2 w + 21 b from the gradients of f, which is linear; they are those of a sum over all containers."""

    def value(w, b):
        by_w, by_b = jax.grad(lambda w, b: f(w, b).sum(), (0, 1))(w, b)
        return by_w * w + by_b * b

    return value


MODES = {
    "eager": lambda f: f,
    "grad": of_gradients,
    "jit": jax.jit,
    "vmap": lambda f: jax.jit(lambda w, b: jax.vmap(f)(jnp.stack([w, w]), jnp.stack([b, b]))[1]),
    "scan": lambda f: jax.jit(of_gradients(scanned(f))),
    "remat": lambda f: jax.jit(of_gradients(jax.checkpoint(f))),
    "vmap_grad": lambda f: jax.jit(lambda w, b: jax.vmap(of_gradients(f))(w[None], b[None])[0]),
    "jvp": lambda f: jax.jit(lambda w, b: jax.jvp(f, (b, w), (w, b))[1]),
}


# Forward mode is the transpose of backward, which once_differentiable refuses.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "mode"), [(p, m) for p in PLACES for m in MODES if not (p.endswith("_once") and m == "jvp")]
)
def test_order(place, mode):
    """Each container is read in its own order, at every place and in every mode; its keys need not sort."""
    makes = list(CONTAINERS.values())
    f = MODES[mode](lambda w, b: jnp.stack([PLACES[place](make, w[i], b[i]) for i, make in enumerate(makes)]))
    w, b = np.arange(len(makes), dtype=np.float32) + 3, np.arange(len(makes), dtype=np.float32) / 2
    got = dict(zip(CONTAINERS, f(w, b).tolist(), strict=True))
    assert got == dict(zip(CONTAINERS, (2 * w + 21 * b).tolist(), strict=True))


STATIC = {**{name: make(1, "two") for name, make in CONTAINERS.items()}, "opaque": Opaque(1, 2), "empty": {}}


@pytest.mark.parametrize("pytree", [False, True])
@pytest.mark.parametrize("name", STATIC)
def test_identity(name, pytree):
    """A container without arrays is the very object in forward and backward, also inside of one that has arrays."""
    static, seen = STATIC[name], []

    class Watched(fnjax.Function):
        @staticmethod
        @fnjax.custom_fwd(cast_inputs=jnp.float32)
        def forward(ctx, x, alone, inside):
            seen.extend([alone, inside[1]])
            ctx.alone, ctx.inside, ctx.mixed = alone, inside, {"z": x, "static": static}
            return x * 2, static

        @staticmethod
        @fnjax.once_differentiable
        def backward(ctx, grad_output, none):
            assert none is None
            seen.extend([ctx.alone, ctx.inside[1], ctx.mixed["static"]])
            return grad_output * 2, None, None

    Watched.pytree = pytree

    def f(x):
        y, returned = Watched.apply(x, static, [jax.lax.stop_gradient(x), static])
        seen.append(returned)
        return y

    f(jnp.ones(()))
    jax.grad(f)(1.0)
    jax.eval_shape(jax.vmap(jax.grad(jax.checkpoint(f))), jnp.ones(2))
    assert len(seen) >= 12
    assert all(x is static for x in seen)


class Square(fnjax.Function):
    """The squares of two arrays in a container; `backward` returns the argument `make_gradient` of their gradients."""

    pytree = True

    @staticmethod
    def forward(ctx, params, make_gradient):
        ctx.params, ctx.make_gradient = params, make_gradient
        ctx.needs = ctx.needs_input_grad[0]
        return sum(x**2 for x in values(params))

    @staticmethod
    def backward(ctx, grad_output):
        assert type(ctx.needs) is type(ctx.params)
        return ctx.make_gradient(*(2 * grad_output * x for x in values(ctx.params))), None


@pytest.mark.parametrize("name", CONTAINERS)
def test_gradient_of_another_structure(name):
    """Keys that are missing or of another dictionary's type are an error that shows both structures."""
    make = CONTAINERS[name]
    wrong = {"other": lambda w, b: {"other": make(w, b)}, "one": lambda w, b: (make(w, b),)}
    for make_gradient in wrong.values():
        with pytest.raises(fnjax.errors.GradientError, match=r"(?s)another structure.*expected: None, or .*\*.*got: "):
            jax.grad(lambda w: Square.apply(make(w, w), make_gradient))(1.0)  # noqa: B023 - called in the turn


def test_structures_in_messages():
    """Structures are shown as Python writes them, in order, with a star for each leaf."""
    with pytest.raises(fnjax.errors.GradientError, match=r"or \{'w': \*, 'b': \[\*, \*\]\}\n.*got: \{'w': \*\}"):
        jax.grad(lambda w: Square.apply({"w": w, "b": [w, None]}, lambda w, b: {"w": w}))(1.0)


def test_static_parts_of_a_gradient():
    """None, or anything of the same structure, is the gradient of a part without arrays."""
    for part in (None, {"z": None, "a": 3}, {"a": 0, "z": 0}):
        grad = jax.grad(lambda w: Square.apply([w, {}, {"z": 3, "a": 4}], lambda w, *_: [w, None, part]))(3.0)  # noqa: B023
        assert grad == 6.0
    with pytest.raises(fnjax.errors.GradientError, match="another structure"):
        jax.grad(lambda w: Square.apply([w, {"z": 3}], lambda w, *_: [w, {"y": None}]))(3.0)


def test_jax_sorts_the_keys_of_its_own_arguments():
    """A dictionary that is an argument of jax.jit arrives sorted; gradients by jax.grad have the argument's keys."""
    params = {"w": jnp.float32(3), "b": jnp.float32(5)}
    f = lambda p: Square.apply(p, lambda *grads: turned(dict(zip(p, grads, strict=True))))
    assert list(jax.jit(lambda p: p)(params)) == ["b", "w"]
    for grad in (jax.grad(f), jax.jit(jax.grad(f))):
        assert grad(params) == {"w": 6, "b": 10}


class Config(dict):
    """A dictionary of a class that JAX does not know."""


UNKNOWN = {
    "dict": lambda x: Config(y=x),
    "list": lambda x: type("List", (list,), {})([x]),
    "deque": lambda x: collections.deque([x]),
}


@pytest.mark.parametrize("pytree", [False, True])
@pytest.mark.parametrize("name", UNKNOWN)
def test_arrays_in_containers_that_jax_does_not_know(name, pytree):
    """As an output, and on ctx in a trace, they are an error: their derivatives would be zero, or their trace over."""

    class Returned(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return 3 * x, [UNKNOWN[name](2 * x)][0]

        @staticmethod
        def backward(ctx, grad_output, grad_container):
            return 3 * grad_output

    class Kept(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.kept = UNKNOWN[name](2 * x)
            return 3 * x

        @staticmethod
        def backward(ctx, grad_output):
            return 3 * grad_output

    Returned.pytree = Kept.pytree = pytree
    for wrap in (lambda f: f, jax.jit, jax.grad):
        with pytest.raises(
            TypeError, match=r"output 1 of Returned.forward is a .* that holds arrays, where JAX cannot"
        ):
            wrap(lambda x: Returned.apply(x)[0])(jnp.ones(()))
    with pytest.raises(
        fnjax.errors.ContextError, match=r"ctx.kept is a .* that holds an array where JAX cannot see it"
    ):
        jax.jit(jax.grad(Kept.apply))(1.0)
    assert jax.grad(Kept.apply)(1.0) == 3.0


def test_signature_is_found_with_any_keys():
    """A torch.Tensor or an array inside of a container whose keys do not sort is refused by name."""

    class Keyword(fnjax.Function):
        @staticmethod
        def forward(ctx, x, *, config):
            return x

    Keyword.apply(1.0, config={Mode.SLOW: 1, "a": 2})
    with pytest.raises(TypeError, match=r"Keyword.*'config'"):
        Keyword.apply(1.0, config={Mode.SLOW: 1, "a": jnp.ones(())})


def test_checks_and_pictures_take_any_keys():
    """Checks and saved_report name what lies in a container whose keys do not sort."""
    params = {Mode.SLOW: np.float64(2), None: np.float64(3)}
    f = lambda p: Square.apply(p, lambda w, b: {None: b, Mode.SLOW: w})
    with jax.enable_x64(True):
        assert fnjax.gradcheck(f, (params,), argnums=0)
    report = fnjax.saved_report(f, {Mode.SLOW: jnp.ones(2), None: jnp.zeros(2)})
    assert [row.name for row in report.rows] == ["input params.Mode.SLOW", "input params.None"]
