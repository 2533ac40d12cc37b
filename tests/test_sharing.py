"""What calls share: forward and backward are traced once for calls that mean the same, and never for others."""

import collections
import dataclasses
import enum
import functools
import gc
import os
import random
import threading
import time
import types
import weakref
from fractions import Fraction
from time import perf_counter_ns
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from fnjax import _programs
from tests import wrappers


def counting(**members):
    """A new class that counts its runs by what was being differentiated, and the function that calls it."""
    forward, backward = [], []

    class Scaled(fnjax.Function):
        scale = 2.0

        @staticmethod
        def forward(ctx, x, factor=1):
            forward.append(tuple(ctx.needs_input_grad))
            ctx.save_for_backward(x)
            ctx.factor = factor
            return jnp.sin(x) * factor

        @staticmethod
        def backward(ctx, grad_output):
            backward.append(1)
            (x,) = ctx.saved_tensors
            return grad_output * jnp.cos(x) * ctx.factor, None

    return type("Counting", (Scaled,), members), Runs(forward, backward)


class Runs(NamedTuple):
    forward: list[tuple[bool, ...]]
    backward: list[int]


def chain(f, n):
    def wrapped(x):
        for _ in range(n):
            x = f(x)
        return jnp.sum(x)

    return wrapped


X = jnp.arange(3.0)


@pytest.mark.parametrize("n", [2, 3, 50])
def test_a_chain_is_traced_once(n):
    """However many calls: forward runs once for each choice of what is differentiated, backward once."""
    cls, runs = counting()
    f = lambda x: cls.apply(x, 1)
    jax.jit(jax.grad(chain(f, n))).lower(X)
    assert sorted(runs.forward) == [(False, False), (True, False)]
    assert len(runs.backward) == 1
    jax.jit(jax.value_and_grad(chain(lambda x: f(x) + 1, n))).lower(X)
    assert len(runs.forward) == 2
    assert len(runs.backward) == 1
    np.testing.assert_allclose(jax.jit(jax.grad(chain(f, n)))(X), jax.grad(chain(jnp.sin, n))(X), rtol=1e-5)


def test_a_single_call_is_traced_straight_through():
    """The first call of its kind pays for nothing that only further calls would use."""
    cls, runs = counting()
    jax.jit(jax.grad(chain(lambda x: cls.apply(x, 1), 1))).lower(X)
    assert runs == ([(True, False)], [1])


@pytest.mark.parametrize(
    ("context", "same"),
    [
        (lambda: jax.default_matmul_precision("highest"), False),
        (lambda: jax.numpy_dtype_promotion("strict"), False),
        (lambda: jax.named_scope("scope"), True),
    ],
    ids=["precision", "promotion", "scope"],
)
def test_configuration_is_part_of_the_key(context, same):
    """What is traced under one configuration of JAX does not serve another."""
    cls, runs = counting()
    program = lambda: jax.jit(jax.grad(chain(lambda x: cls.apply(x, 1), 3)))
    program().lower(X)
    before = len(runs.forward)
    with context():
        program().lower(X)
    assert (len(runs.forward) == before) == same


class Color(enum.Enum):
    RED = 1
    BLUE = 2


STATIC = [1, True, 1.0, 0.0, -0.0, "a", None, (1, 2), (1, 2.0), Color.RED, Color.BLUE, jnp.float32, np.dtype("int8")]


class Told(fnjax.Function):
    """Returns a number that stands for its static argument."""

    @staticmethod
    def forward(ctx, x, value):
        ctx.told = told(value)
        return x * ctx.told

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.told, None


def told(value):
    return float(next(i for i, v in enumerate(STATIC) if type(v) is type(value) and repr(v) == repr(value)))


def test_static_values_are_told_apart():
    """1, True and 1.0 differ, and so do 0.0 and -0.0: no call is served what was traced for another."""
    for _ in range(3):
        for value in STATIC:
            f = jax.jit(jax.value_and_grad(lambda x, v=value: Told.apply(Told.apply(x, v), v)))
            assert f(2.0) == (2.0 * told(value) ** 2, told(value) ** 2)


class Summed(fnjax.Function):
    @staticmethod
    def forward(ctx, x, values):
        ctx.total = values() if callable(values) else sum(values)
        return x * ctx.total

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.total, None


def thrice(f):
    """`f` called as a program of its own, so often that whatever can be shared is."""
    return jax.jit(jax.grad(lambda x: f(f(f(x)))))(1.0)


def test_mutated_arguments_are_seen():
    """A list that changed, as an argument or in the closure of one, is never served stale."""
    values = [1.0, 1.0]
    factor = 1.0
    in_closure, in_cell = lambda: sum(values), lambda: factor
    for total in (2.0, 3.0):
        assert thrice(lambda x: Summed.apply(x, values)) == total**3
        assert thrice(lambda x: Summed.apply(x, in_closure)) == total**3
        values.append(1.0)
    for factor in (2.0, 3.0):
        assert thrice(lambda x: Summed.apply(x, in_cell)) == factor**3


class Attributes(fnjax.Function):
    scale = 2.0
    table = [1.0]  # noqa: RUF012 - that it can change is under test

    @staticmethod
    def forward(ctx, x):
        return x * Attributes.scale * sum(Attributes.table)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * Attributes.scale * sum(Attributes.table)


def test_changed_attributes_are_seen(monkeypatch):
    """A class attribute that was set, or changed in place, and a method that was replaced, are never served stale."""
    assert thrice(Attributes.apply) == 8.0
    monkeypatch.setattr(Attributes, "scale", 3.0)
    assert thrice(Attributes.apply) == 27.0
    monkeypatch.setattr(Attributes, "table", (1.0,))
    assert thrice(Attributes.apply) == 27.0
    monkeypatch.setattr(Attributes, "scale", 2)
    assert thrice(Attributes.apply) == 8.0
    monkeypatch.setattr(Attributes, "backward", staticmethod(lambda ctx, grad_output: 5 * grad_output))
    assert thrice(Attributes.apply) == 125.0
    assert Attributes.apply(1.0) == 2.0
    monkeypatch.setattr(Attributes, "forward", staticmethod(lambda ctx, x: 7 * x))
    assert Attributes.apply(1.0) == 7.0

    class Heir(Attributes):
        pass

    assert Heir.apply(1.0) == 7.0
    monkeypatch.undo()
    assert Heir.apply(1.0) == 2.0
    assert thrice(Heir.apply) == 8.0
    Heir.backward = staticmethod(lambda ctx, grad_output: 3 * grad_output)
    assert thrice(Heir.apply) == 27.0
    del Heir.backward
    assert thrice(Heir.apply) == 8.0


def test_attributes_of_a_mixin_are_seen():
    """The same of what a class inherits."""

    class Mixin:
        scale = 2.0

    class Mixed(Mixin, fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.scale = Mixed.scale
            return x * ctx.scale

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * ctx.scale

    assert thrice(Mixed.apply) == 8.0
    assert Mixed.apply(1.0) == 2.0
    Mixin.scale = 3.0
    assert thrice(Mixed.apply) == 27.0
    assert Mixed.apply(1.0) == 3.0


class Inner(fnjax.Function):
    factors = (2.0,)

    @staticmethod
    def forward(ctx, x):
        return x * sum(Inner.factors)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * sum(Inner.factors)


class Middle(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        return Inner.apply(x)

    @staticmethod
    def backward(ctx, grad_output):
        return Inner.apply(grad_output)


class Outermost(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad_output):
        return Middle.apply(grad_output)


@pytest.mark.parametrize("function", [Middle, Outermost])
def test_changes_of_a_function_inside_are_seen(function, monkeypatch):
    """What forward or backward calls counts as well, however deep: in place, where it has no facts, too."""
    assert thrice(function.apply) == 8.0
    monkeypatch.setattr(Inner, "factors", (3.0,))
    assert thrice(function.apply) == 27.0
    assert thrice(function.apply) == 27.0
    monkeypatch.setattr(Inner, "factors", factors := [4.0])
    assert thrice(function.apply) == 64.0
    factors.append(1.0)
    assert thrice(function.apply) == 125.0
    monkeypatch.setattr(Inner, "factors", (2.0,))
    assert thrice(function.apply) == 8.0


class Countdown(fnjax.Function):
    """Calls itself."""

    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n
        return x if n == 0 else 2 * Countdown.apply(x, n - 1)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 2.0**ctx.n, None


def test_a_function_that_calls_itself():
    """Recursion ends, and shares."""
    for _ in range(3):
        assert thrice(lambda x: Countdown.apply(x, 3)) == 8.0**3


class Mutable(enum.Enum):
    MEMBER = 1


class Sized(tuple):  # noqa: SLOT001 - that it has attributes is under test
    """A tuple with an attribute."""


class Kind(float):
    """A class that has one."""

    factor = 1.0


def attribute():
    """A function with an attribute."""
    return attribute.factor


def units(x):
    return float(x[0] / np.timedelta64(1, "ms"))


CHANGING = {
    "enum member": (Mutable.MEMBER, lambda m: m.factor, lambda m, v: setattr(m, "factor", v)),
    "tuple with attributes": (Sized(), lambda t: t.factor, lambda t, v: setattr(t, "factor", v)),
    "function attribute": (attribute, lambda f: f(), lambda f, v: setattr(f, "factor", v)),
    "bound builtin": ({}.setdefault, lambda f: f("k"), lambda f, v: f.__self__.update(k=v)),
    "module": (types.ModuleType("settings"), lambda m: m.factor, lambda m, v: setattr(m, "factor", v)),
    "class": (Kind, lambda c: c.factor, lambda c, v: setattr(c, "factor", v)),
}


class Read(fnjax.Function):
    @staticmethod
    def forward(ctx, x, value, read):
        ctx.factor = read(value)
        return x * ctx.factor

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor, None, None


@pytest.mark.parametrize(("value", "read", "change"), CHANGING.values(), ids=CHANGING)
def test_static_arguments_that_can_change_are_seen(value, read, change):
    """What looks immutable and is not has no facts."""
    for factor in (2.0, 3.0):
        change(value, factor)
        assert thrice(lambda x: Read.apply(x, value, read)) == factor**3


def test_scalars_of_numpy_are_told_apart_by_their_dtype():
    """The same bytes in another unit are another value."""
    for unit, factor in (("ms", 1.0), ("s", 1000.0)):
        value = (np.timedelta64(1, unit),)
        assert jax.jit(lambda x, v=value: Read.apply(Read.apply(x, v, units), v, units))(1.0) == factor**2


class Base:
    factor = 1.0


class Heir(Base):
    pass


class WithMethods:
    def __init__(self):
        self.inside = 1.0

    def factor(self):
        return self.inside

    def __call__(self):
        return self.inside

    @property
    def factor_property(self):
        return self.inside

    @classmethod
    def factor_of_class(cls):
        return cls.inside

    inside = 1.0


class Table(dict):
    pass


class Mapping(dict):
    """A config that is read by attributes."""

    def __getattr__(self, name):
        return self[name]


class Meta(type):
    @property
    def factor(cls):
        return number


class WithMeta(metaclass=Meta):
    pass


class Tuple(NamedTuple):
    field: float = 1.0

    def factor(self):
        return number


class Choice(enum.Enum):
    ONE = 1

    @property
    def factor(self):
        return number


class Made:
    def __init__(self):
        self.factor = number


@dataclasses.dataclass
class Options:
    factor: float = 1.0


named, chosen = Tuple(), Choice.ONE
flags = types.SimpleNamespace()
options, table, objects = Options(), Table(factor=1.0), [Options()]

number, container, nested = 1.0, [1.0], {"deep": [1.0]}
settings, module = types.SimpleNamespace(factor=1.0, more=types.SimpleNamespace(factor=1.0)), types.ModuleType("module")
numpy_array, jax_array, model = np.ones(()), jnp.ones(()), WithMethods()


def helper():
    return number


def swapped():
    return 1.0


def outer_helper():
    return swapped()


jitted = jax.jit(swapped)


def factor_of(config):
    return config.factor


def get_settings():
    return settings


class Called:
    factor = 1.0

    def __call__(self):
        return self.factor


fraction = Fraction(1)


def imports():
    import tests.wrappers

    return tests.wrappers.factor


def one(v):
    return lambda: v


def two(v):
    return lambda: 1.0 * v


def setglobal(name):
    return lambda v: globals().__setitem__(name, v)


GLOBALS = {
    "number": (lambda: number, setglobal("number")),
    "helper": (lambda: 1 * swapped(), lambda v: setglobal("swapped")(lambda: v)),
    "helper of a helper": (lambda: 1 * helper(), setglobal("number")),
    "helper of a helper, redefined": (lambda: 1 * outer_helper(), lambda v: setglobal("swapped")(lambda: v)),
    "partial": (functools.partial(helper), setglobal("number")),
    "jitted helper": (lambda: 1 * jitted(), lambda v: setglobal("jitted")(jax.jit(lambda: v))),
    "list": (lambda: container[0], lambda v: container.__setitem__(0, v)),
    "list, another": (lambda: container[0], lambda v: setglobal("container")([v])),
    "nested": (lambda: nested["deep"][0], lambda v: nested["deep"].__setitem__(0, v)),
    "object": (lambda: settings.factor, lambda v: setattr(settings, "factor", v)),
    "object in an object": (lambda: settings.more.factor, lambda v: setattr(settings.more, "factor", v)),
    "object with a method": (lambda: 1 * model.factor(), lambda v: setattr(model, "inside", v)),
    "callable object": (lambda: 1 * model(), lambda v: setattr(model, "inside", v)),
    "property": (lambda: model.factor_property, lambda v: setattr(model, "inside", v)),
    "class method": (lambda: 1 * WithMethods.factor_of_class(), lambda v: setattr(WithMethods, "inside", v)),
    "dataclass": (lambda: options.factor, lambda v: setattr(options, "factor", v)),
    "subclass of dict": (lambda: table["factor"], lambda v: table.update(factor=v)),
    "metaclass": (lambda: WithMeta.factor, setglobal("number")),
    "method of a named tuple": (lambda: 1 * named.factor(), setglobal("number")),
    "property of an enum member": (lambda: chosen.factor, setglobal("number")),
    "constructor": (lambda: Made().factor, setglobal("number")),
    "whether there is one": (
        lambda: next(v for v in (2.0, 3.0, 5.0) if hasattr(flags, f"is_{v:.0f}")),
        lambda v: vars(flags).clear() or setattr(flags, f"is_{v:.0f}", True),
    ),
    "dict of a module": (lambda: module.__dict__["factor"], lambda v: setattr(module, "factor", v)),
    "environment": (lambda: float(os.environ["FACTOR"]), lambda v: os.environ.update(FACTOR=str(v))),
    "environment, by a function": (lambda: float(os.getenv("FACTOR")), lambda v: os.environ.update(FACTOR=str(v))),
    "list of objects": (lambda: objects[0].factor, lambda v: setattr(objects[0], "factor", v)),
    "name made at run time": (lambda: getattr(settings, "fac" + "tor"), lambda v: setattr(settings, "factor", v)),
    "import inside": (imports, lambda v: setattr(wrappers, "factor", v)),
    "class": (lambda: Base.factor, lambda v: setattr(Base, "factor", v)),
    "class attribute of a base": (lambda: Heir.factor, lambda v: setattr(Base, "factor", v)),
    "module": (lambda: module.factor, lambda v: setattr(module, "factor", v)),
    "helper in a module": (lambda: 1 * module.helper(), lambda v: setattr(module, "helper", one(v))),
    "code of a helper": (lambda: 1 * module.helper(), lambda v: setattr(module, "helper", two(v))),
    "array of NumPy, in place": (lambda: numpy_array, lambda v: numpy_array.__setitem__((), v)),
    "array": (lambda: jax_array, lambda v: setglobal("jax_array")(jnp.asarray(v))),
    "object given to a helper": (lambda: 1 * factor_of(settings), lambda v: setattr(settings, "factor", v)),
    "object that a helper returns": (lambda: get_settings().factor, lambda v: setattr(settings, "factor", v)),
    "dataclass as a dict": (lambda: dataclasses.asdict(options)["factor"], lambda v: setattr(options, "factor", v)),
    "dataclass as text": (lambda: float(f"{options}".partition("=")[2][:-1]), lambda v: setattr(options, "factor", v)),
    "object of a class without a constructor": (lambda: 1 * Called()(), lambda v: setattr(Called, "factor", v)),
    "object of Python's own": (lambda: fraction.numerator / 1, lambda v: setglobal("fraction")(Fraction(v))),
    "in a function inside": (lambda: sum([number for _ in range(1)]), setglobal("number")),
}


@pytest.mark.parametrize(("read", "change"), GLOBALS.values(), ids=GLOBALS)
def test_globals_that_change_are_seen(read, change):
    """What forward and backward read from globals, also by way of helpers, is never served stale."""
    global read_globally
    read_globally = read

    class Reader(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return x * read()

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * read()

    class GlobalReader(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return x * read_globally()

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * read_globally()

    for factor in (2.0, 3.0, 2.0, 5.0):
        change(factor)
        for cls in (Reader, GlobalReader):
            assert thrice(cls.apply) == factor**3
            assert cls.apply(1.0) == factor

    def in_one_program(f):
        def whole(x):
            for factor in (2.0, 3.0, 2.0, 5.0):
                change(factor)
                x = f(x)
            return x

        return jax.jit(whole)(1.0)

    assert in_one_program(lambda x: GlobalReader.apply(Reader.apply(x))) == in_one_program(
        lambda x: x * read() * read()
    )


mapping = None  # not the Mapping itself: doctest asks everything in a module for its __wrapped__


def test_a_config_that_answers_every_name(monkeypatch):
    """One whose `__getattr__` raises KeyError is read anew as a global, and goes as an argument."""
    monkeypatch.setitem(globals(), "mapping", Mapping())

    class Scale(fnjax.Function):
        @staticmethod
        def forward(ctx, x, config):
            ctx.factor = mapping.factor * config.factor
            return x * ctx.factor

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * ctx.factor, None

    class GlobalScale(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return x * mapping.factor

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * mapping.factor

    for factor in (2.0, 3.0):
        mapping["factor"] = factor
        assert thrice(lambda x: Scale.apply(x, mapping)) == factor**6
        assert thrice(GlobalScale.apply) == factor**3


generator = np.random.default_rng(0)


python_generator = random.Random(0)


def drawn_from(numbers):
    return numbers.rand()


def draw_from_numpy():
    return np.random.rand()  # noqa: NPY002 - the global generator is under test


def draw_from_import():
    from numpy import random as numbers

    return numbers.rand()  # noqa: NPY002 - as above


DRAWS = {
    "import inside": lambda: 1 * draw_from_import(),
    "numpy.random": lambda: 1 * np.random.rand(),  # noqa: NPY002 - as above
    "helper": lambda: 1 * draw_from_numpy(),
    "generator": lambda: 1 * generator.random(),
    "random": lambda: 1 * random.random(),
    "generator of Python's": lambda: 1 * python_generator.random(),
    "clock": lambda: time.perf_counter_ns() % 1e6,
    "clock, imported by name": lambda: perf_counter_ns() % 1e6,
    "module under another name": lambda: drawn_from(np.random),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_each_call_draws_its_own_numbers(draw):
    """Random numbers of NumPy and Python are drawn for each call, as by hand: no mask is that of another layer."""

    class Noise(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return x * draw()

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output

    drawn = jax.jit(lambda x: [Noise.apply(x) for _ in range(4)])(1.0)
    assert len({float(number) for number in drawn}) == 4


counts, log, total = collections.Counter(), [], 0


def ways_to_count():
    """Classes by how they count their runs, each with a function that tells the number."""
    own_log, own_counts, own_total = [], {"runs": 0}, 0

    class ByGlobalItem(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            counts["runs"] += 1
            return x * 2

    class ByGlobalList(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            log.append(x.shape)
            return x * 2

    class ByGlobalNumber(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            global total
            total += 1
            return x * 2

    class ByList(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            own_log.append("forward")
            return x * 2

    class ByItem(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            own_counts["runs"] += 1
            return x * 2

    class ByNumber(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            nonlocal own_total
            own_total += 1
            return x * 2

    class ByAttribute(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            Holder.runs += 1
            return x * 2

    return {
        ByGlobalItem: lambda: counts["runs"],
        ByGlobalList: lambda: len(log),
        ByGlobalNumber: lambda: total,
        ByList: lambda: len(own_log),
        ByItem: lambda: own_counts["runs"],
        ByNumber: lambda: own_total,
        ByAttribute: lambda: Holder.runs,
        ByOwnAttribute: lambda: ByOwnAttribute.runs,
    }


class Holder:
    runs = 0


class ByOwnAttribute(fnjax.Function):
    runs = 0

    @staticmethod
    def forward(ctx, x):
        ByOwnAttribute.runs += 1
        return x * 2


@pytest.mark.parametrize("way", range(8))
def test_counting_does_not_disturb(way):
    """A class that counts its runs, in whatever variable, shares as one that does not."""
    cls, runs = [*ways_to_count().items()][way]
    cls.backward = staticmethod(lambda ctx, grad_output: 2 * grad_output)
    before = runs()
    jax.jit(jax.grad(chain(cls.apply, 20))).lower(1.0)
    assert runs() - before == 2


def test_a_counter_that_is_read_is_none():
    """What forward makes of the number of its runs is seen."""
    runs = []

    class Growing(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            runs.append(1)
            return x + len(runs)

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output

    f = jax.jit(lambda x: Growing.apply(Growing.apply(Growing.apply(x))))
    assert f(0.0) == sum(range(len(runs) - 2, len(runs) + 1))


def test_a_reloaded_function_is_seen():
    """Tools that reload modules give functions new code, and leave the objects as they are."""

    class Reloaded(fnjax.Function):
        @staticmethod
        def forward(ctx, x, factor=2.0):
            return x * factor

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * 2.0

    f = lambda x: Reloaded.apply(Reloaded.apply(x))
    assert jax.jit(f)(1.0) == 4.0
    Reloaded.forward.__defaults__ = (3.0,)
    assert jax.jit(lambda x: 1 * f(x))(1.0) == f(1.0) == 9.0
    Reloaded.forward.__code__ = (lambda ctx, x, factor=2.0: x - factor).__code__
    assert jax.jit(lambda x: 1 * f(x))(1.0) == f(1.0) == -5.0
    Reloaded.backward.__code__ = (lambda ctx, grad_output: grad_output * 5.0).__code__
    assert thrice(Reloaded.apply) == 125.0


def test_hooks_are_part_of_the_key():
    """A call under saved_tensors_hooks does not share with one outside."""
    cls, _ = counting()
    f = lambda x: cls.apply(x, 1)
    plain = thrice(f)
    with fnjax.saved_tensors_hooks(lambda x: x * 0, lambda kept: kept):
        assert thrice(f) == 1.0
    assert thrice(f) == plain != 1.0


def layer(weight):
    class Layer(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return x * weight

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * weight

    return Layer.apply


def test_captured_arrays_stay_right():
    """Arrays in closures, concrete, of an enclosing jit, or of NumPy and changed in place."""
    for weight in (2.0, 3.0):
        assert thrice(layer(jnp.asarray(weight))) == weight**3
        assert jax.jit(lambda w: thrice(layer(w)))(weight) == weight**3
        f = layer(array := np.asarray(weight))
        assert thrice(f) == weight**3
        array += 1
        assert thrice(f) == (weight + 1) ** 3


STATE = {}


class Global(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        return x * STATE["weight"]

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * STATE["weight"]


def test_a_tracer_in_a_global_is_not_remembered():
    """A traced array that forward finds in a global is no part of what calls share."""

    def f(weight, x):
        STATE["weight"] = weight
        return Global.apply(Global.apply(Global.apply(x)))

    for weight in (2.0, 3.0):
        assert jax.jit(f)(weight, 1.0) == weight**3
        assert jax.jit(jax.grad(f, 1))(weight, 1.0) == weight**3
    assert not any(
        isinstance(x, jax.core.Tracer)
        for programs in (Global._programs._lasting, Global._programs._passing)
        for program in programs.values()
        for traced in program.traces.runs.values()
        for x in traced.captured
    )
    STATE.clear()


def test_programs_die_with_their_class():
    """A class that was defined in a function goes when the function is done, and all that was traced with it."""

    def use():
        cls, _ = counting()
        assert np.isfinite(thrice(lambda x: cls.apply(x, 1)))
        program = next(iter(cls._programs._lasting.values()))
        return weakref.ref(cls), weakref.ref(program)

    dead = use()
    gc.collect()
    assert [ref() for ref in dead] == [None, None]


def test_arrays_of_methods_die_with_their_class():
    """Neither what methods capture nor what they found in globals outlives the class or the program."""
    arrays = []

    def use(rebound):
        weight = jnp.ones(8)
        arrays.append(weakref.ref(weight))
        globals()["weight"] = weight

        class Times(fnjax.Function):
            @staticmethod
            def forward(ctx, x):
                return x * rebound()

            @staticmethod
            def backward(ctx, grad_output):
                return grad_output * rebound()

        return jax.jit(jax.grad(chain(Times.apply, 3)))(jnp.ones(8))

    for _ in range(3):
        captured = jnp.ones(8)
        use(lambda captured=captured: captured)
        use(lambda: weight)  # noqa: F821 - a global, set above
    del captured, globals()["weight"]
    gc.collect()
    assert not [ref for ref in arrays if ref() is not None]


def test_backward_may_change_what_ctx_holds():
    """Each call has lists and dicts of its own on ctx."""

    class Stacked(fnjax.Function):
        @staticmethod
        def forward(ctx, x, *factors):
            ctx.stack = list(factors)
            return x * factors[-1]

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * ctx.stack.pop(), None, None

    def f(x):
        for _ in range(2):
            x = Stacked.apply(x, 3.0, 5.0)
        return x * 1.0

    assert jax.jit(jax.grad(f))(1.0) == 25.0
    assert jax.jit(jax.grad(lambda x: f(f(jnp.float32(x)))))(1.0) == 625.0


def test_a_function_inside_on_a_concrete_array_is_seen(monkeypatch):
    """What it reads counts, though nothing of it is traced."""
    one = jnp.ones(())

    class Inner(fnjax.Function):
        factor = 2.0

        @staticmethod
        def forward(ctx, x):
            return x * Inner.factor

    class Outer(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return x * Inner.apply(one)

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * Inner.apply(one)

    for factor in (2.0, 3.0):
        monkeypatch.setattr(Inner, "factor", factor)
        assert thrice(Outer.apply) == factor**3


@functools.partial(jax.tree_util.register_dataclass, data_fields=["x"], meta_fields=["factor"])
@dataclasses.dataclass
class Scaled:
    x: jax.Array
    factor: float


def test_static_fields_of_a_pytree_are_told_apart():
    """1, True and 1.0 differ there as well."""

    class OfField(fnjax.Function):
        pytree = True

        @staticmethod
        def forward(ctx, scaled):
            ctx.factor = {int: 2.0, bool: 3.0, float: 5.0}[type(scaled.factor)]
            return scaled.x * ctx.factor

        @staticmethod
        def backward(ctx, grad_output):
            return Scaled(grad_output * ctx.factor, None)

    def f(x):
        return [OfField.apply(Scaled(x, factor)) for factor in (1, True, 1.0) for _ in range(2)]

    assert jax.jit(f)(1.0) == [2.0, 2.0, 3.0, 3.0, 5.0, 5.0]


def test_objects_among_the_outputs_are_the_callers():
    """No two calls return the same one."""

    class WithObject(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, types.SimpleNamespace(n=0)

        @staticmethod
        def backward(ctx, grad_output, _):
            return grad_output * 2

    seen = []
    jax.jit(lambda x: seen.extend(WithObject.apply(x)[1] for _ in range(4)))(1.0)
    assert len({id(x) for x in seen}) == 4


def test_an_alias_of_a_function_inside_shares():
    """`inner = Inner.apply` as well as `Inner.apply`."""
    cls, runs = counting()
    inner = cls.apply

    class Outer(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return inner(x, 1)

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * jnp.cos(ctx.saved_tensors[0])

    jax.jit(jax.grad(chain(Outer.apply, 20))).lower(X)
    assert len(runs.forward) <= 4


def test_programs_are_bounded(monkeypatch):
    """Neither static arguments nor shapes without end fill the memory."""
    monkeypatch.setattr(_programs, "MAX_PROGRAMS", 5)
    monkeypatch.setattr(_programs, "MAX_RUNS", 5)
    cls, _ = counting()
    for i in range(20):
        f = lambda x, i=i: cls.apply(x, i)
        np.testing.assert_allclose(jax.jit(jax.grad(chain(f, 1)))(X), jnp.cos(X) * i, rtol=1e-5)
    assert len(cls._programs._lasting) <= 5
    for n in range(20):
        jax.jit(jax.grad(chain(lambda x: cls.apply(x, 3), 2))).lower(jnp.ones(n))
    assert max(len(p.traces.runs) for p in cls._programs._lasting.values()) <= 8


def test_outputs_keep_their_form():
    """Static members of the output are those of each call's own shapes."""

    class WithSize(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, x.size, "static"

        @staticmethod
        def backward(ctx, grad_output, *_):
            return grad_output * 2

    @jax.jit
    def f(*xs):
        results = [WithSize.apply(x) for x in xs]
        assert [r[1:] for r in results] == [(x.size, "static") for x in xs]
        return sum(r[0].sum() for r in results)

    f(*[jnp.ones(n) for n in (1, 2, 1, 2, 3, 3, 1)])


def test_threads_share():
    """Threads that trace the same class at once get their own numbers."""
    cls, _ = counting()
    found = {}

    def work(i):
        found[i] = float(jax.jit(jax.grad(chain(lambda x: cls.apply(x, i % 3), 3)))(jnp.ones(1 + i % 2))[0])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, value in found.items():
        want = jax.grad(chain(lambda x, i=i: jnp.sin(x) * (i % 3), 3))(jnp.ones(1))[0]
        np.testing.assert_allclose(value, want, rtol=1e-5)
    assert len(found) == 12
