"""Launches outside of jax.jit: one program each, never stale; and what kernels may read outside of themselves."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.triton.language as tl
from fnjax import triton
from fnjax.triton import eager

FACTOR = tl.constexpr(2)
SETTINGS, OTHERS = types.ModuleType("settings"), types.ModuleType("settings.others")
SETTINGS.factor, SETTINGS.table, SETTINGS.part = 2, np.array([2, 0]), types.ModuleType("settings.part")
SETTINGS.part.factor, OTHERS.factor = 2, 5
TABLE = tl.constexpr(np.array([2, 0]))
LISTED = tl.constexpr(([2],))
NUMBER, PAIR, ARRAY = 2, (2, 3), np.array([2])
SPACE = types.SimpleNamespace(factor=2)


class Items:
    """An object that is indexed."""

    held = 2

    def __getitem__(self, index):
        return self.held


ITEMS, CLASS = tl.constexpr(Items()), tl.constexpr(Items)


def plain(x):
    """A function of plain Python, which kernels may not call."""
    return x * 2


SETTINGS.plain = plain


@triton.jit
def multiplied(x):
    return x * FACTOR


@triton.jit
def five_times(x):
    return x * 5


@triton.jit
def by_attribute(x):
    return x * SETTINGS.factor


@triton.jit
def by_inner_attribute(x):
    return x * SETTINGS.part.factor


@triton.jit
def by_array_of_a_module(x):
    return x * SETTINGS.table[0].item()


@triton.jit
def by_array(x):
    return x * TABLE[0].item()


@triton.jit
def by_list(x):
    return x * LISTED[0][0]


@triton.jit
def by_object(x):
    return x * ITEMS[0]


@triton.jit
def by_class(x):
    return x * CLASS.held


@triton.jit
def by_helper(x):
    return multiplied(x)


@triton.jit
def by_number(x):
    return x * NUMBER


@triton.jit
def by_tuple(x):
    return x * PAIR[0]


@triton.jit
def by_plain_array(x):
    return x * ARRAY[0].item()


@triton.jit
def by_space(x):
    return x * SPACE.factor


@triton.jit
def by_function(x):
    return plain(x)


@triton.jit
def by_function_of_a_module(x):
    return SETTINGS.plain(x)


@triton.jit
def outer_kernel(x_ptr, out_ptr, N: tl.constexpr, READ: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out_ptr + at, READ(tl.load(x_ptr + at)))


@triton.jit
def given_kernel(x_ptr, out_ptr, N: tl.constexpr, READ: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.load(x_ptr + at) * READ[0][0])


def launch(read, kernel=outer_kernel):
    """Return the array that a launch stores for the input 0, 1, 2, 3."""
    return np.asarray(kernel[(1,)](jnp.arange(4), jnp.zeros(4, jnp.int32), N=4, READ=read))


@pytest.mark.parametrize(
    ("read", "owner", "name", "value"),
    [
        pytest.param(multiplied, None, "FACTOR", tl.constexpr(5), id="constexpr"),
        pytest.param(by_helper, None, "FACTOR", tl.constexpr(5), id="constexpr of a helper"),
        pytest.param(by_helper, None, "multiplied", five_times, id="helper"),
        pytest.param(by_attribute, None, "SETTINGS", OTHERS, id="module"),
        pytest.param(by_attribute, SETTINGS, "factor", 5, id="attribute of a module"),
        pytest.param(by_inner_attribute, SETTINGS.part, "factor", 5, id="attribute of a module in a module"),
        pytest.param(by_array_of_a_module, SETTINGS.table, 0, 5, id="array of a module in place"),
        pytest.param(by_array, TABLE.value, 0, 5, id="array in a constexpr in place"),
        pytest.param(by_list, LISTED.value[0], 0, 5, id="list in a tuple"),
        pytest.param(by_object, Items, "held", 5, id="object"),
        pytest.param(by_class, Items, "held", 5, id="class"),
    ],
)
def test_what_a_kernel_reads_outside_counts_as_it_is_at_each_launch(read, owner, name, value, monkeypatch):
    """Bound anew, or changed in place; a program is kept for what cannot change unseen only."""
    np.testing.assert_array_equal(launch(read), np.arange(4) * 2)
    if isinstance(name, int):
        before, owner[name] = owner[name], value
    elif owner is None:
        monkeypatch.setitem(globals(), name, value)
    else:
        monkeypatch.setattr(owner, name, value)
    try:
        np.testing.assert_array_equal(launch(read), np.arange(4) * 5)
    finally:
        if isinstance(name, int):
            owner[name] = before


def test_a_constexpr_that_is_given_may_change_in_place():
    """A list in a tuple, between two launches."""
    given = ([2],)
    np.testing.assert_array_equal(launch(given, given_kernel), np.arange(4) * 2)
    given[0][0] = 5
    np.testing.assert_array_equal(launch(given, given_kernel), np.arange(4) * 5)


@pytest.mark.parametrize("read", [by_number, by_tuple, by_plain_array, by_space], ids=lambda k: k.fn.__name__)
def test_globals_that_are_no_constexprs_are_refused_in_tritons_words(read, monkeypatch):
    """Unless TRITON_ALLOW_NON_CONSTEXPR_GLOBALS is set; then they count as they are at each launch."""
    with pytest.raises(triton.KernelError, match=r"Cannot access global variable \w+ from within @jit'ed function"):
        launch(read)
    monkeypatch.setenv("TRITON_ALLOW_NON_CONSTEXPR_GLOBALS", "1")
    np.testing.assert_array_equal(launch(read), np.arange(4) * 2)
    for name, value in (("NUMBER", 5), ("PAIR", (5,)), ("ARRAY", np.array([5])), ("SPACE", OTHERS)):
        monkeypatch.setitem(globals(), name, value)
    np.testing.assert_array_equal(launch(read), np.arange(4) * 5)
    monkeypatch.delenv("TRITON_ALLOW_NON_CONSTEXPR_GLOBALS")
    if read is not by_space:  # it is a module now
        with pytest.raises(triton.KernelError, match="Cannot access global variable"):
            launch(read)


@pytest.mark.parametrize("read", [by_function, by_function_of_a_module], ids=lambda k: k.fn.__name__)
def test_functions_of_plain_python_are_refused(read):
    """Triton says the same at the launch."""
    with pytest.raises(triton.KernelError, match=r"Unsupported function referenced: <function plain .* the launch"):
        launch(read)


def test_what_a_closure_holds_is_a_global_too():
    """A number is refused, a constexpr counts."""

    def kernel_with(number):
        @triton.jit
        def kernel(x):
            return x * number

        return kernel

    np.testing.assert_array_equal(launch(kernel_with(tl.constexpr(3))), np.arange(4) * 3)
    with pytest.raises(triton.KernelError, match="Cannot access global variable number"):
        launch(kernel_with(3))


def test_a_launch_is_compiled_once(monkeypatch):
    """The second launch of the same kinds of arguments makes no new program; other values of a constexpr do."""
    launch(by_helper)
    made = []
    new = eager._new
    monkeypatch.setattr(eager, "_new", lambda found: made.append(found) or new(found))
    launch(by_helper)
    assert not made
    outer_kernel[(1,)](jnp.arange(8), jnp.zeros(8, jnp.int32), N=8, READ=by_helper)
    assert len(made) == 1
    monkeypatch.setitem(globals(), "FACTOR", tl.constexpr(2))  # an equal one
    launch(by_helper)
    assert len(made) == 1


@triton.jit
def powers_kernel(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.math.exp2(tl.load(x_ptr + at)))


def powers(x):
    return powers_kernel[(1,)](x, jnp.zeros(4), N=4)


@pytest.mark.parametrize(
    ("transformed", "shape"),
    [
        (powers, (4,)),
        (jax.grad(lambda x: powers(x).sum()), (4,)),
        (lambda x: jax.jvp(powers, (x,), (x,)), (4,)),
        (jax.vmap(powers), (3, 4)),
        (jax.vmap(jax.grad(lambda x: powers(x).sum())), (3, 4)),
    ],
    ids=["value", "grad", "jvp", "vmap", "vmap of grad"],
)
def test_what_is_not_compiled_by_the_user_runs_as_one_program(transformed, shape, monkeypatch):
    """Derivatives and batches outside of jit as well: a second call traces nothing."""
    x = jnp.ones(shape)
    first = transformed(x)
    monkeypatch.setattr(powers_kernel.source, "node", None)  # no trace gets far without it
    again = transformed(x)
    jax.tree.map(np.testing.assert_array_equal, first, again)
    with pytest.raises(AttributeError):
        jax.jit(transformed)(x)
