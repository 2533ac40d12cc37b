"""Loops whose turns run side by side, and grids that are cut: the same numbers as program by program, turn by turn."""

import contextlib
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fnjax.triton.language as tl
from benchmarks import triton_launches as launches
from fnjax import triton
from fnjax.triton.debug.execution import Execution
from fnjax.triton.interpreter import loops
from fnjax.triton.values import views
from fnjax.triton.values.affine import MOST, Affine, LoopVariable, along_axis
from fnjax.triton.values.independence import independent
from fnjax.triton.values.state import LoopAccess, State, VectorizedLoop, launching
from tests.triton.test_goldens import FIRST
from tests.triton.test_goldens import launch as launched
from tests.triton.twins import forms_of, gradient_of


class Nobody:
    """Watches a launch and says nothing."""

    def starts(self, number, ids):
        """A program begins."""

    def access(self, access, place):
        """It reads or writes."""


def in_turn(function, *arrays):
    """Return the results of launches on NumPy arrays, with programs and iterations in sequence."""
    with launching(lambda launch, given, traced: Execution(launch, given, traced, Nobody()).run()):
        return function(*arrays)


@contextlib.contextmanager
def noting():
    """The lines of loops that run side by side, as long as launches are traced."""
    lines, plain = set(), loops.vectorize

    def run(frame, node, *args):
        done = plain(frame, node, *args)
        lines.update([node.lineno - frame.source.node.lineno] * done)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "vectorize", run)
        yield lines


def numbers(*shape, seed=0):
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32)


@triton.jit
def in_place_kernel(x_ptr, turns, STEP: tl.constexpr, BACK: tl.constexpr):
    lanes = 32 + tl.arange(0, 16)
    for i in range(turns):
        x = tl.load(x_ptr + i * STEP + lanes)
        tl.store(x_ptr + (i + BACK) * STEP + lanes, x * 2 + i)


@triton.jit
def overwriting_kernel(x_ptr, turns):
    """Two statements write to one address, and one to the same in each turn."""
    lanes = tl.arange(0, 16)
    for i in range(turns):
        tl.store(x_ptr + i * 16 + lanes, i + lanes * 1.0)
        tl.store(x_ptr + (turns - 1 - i) * 16 + lanes, 100.0)
    for i in range(turns):
        tl.store(x_ptr + 64 + lanes, 1.0 * i)


@triton.jit
def masked_kernel(x_ptr, turns, n):
    """A row shorter than its block: what a mask keeps off counts for nothing."""
    lanes = tl.arange(0, 16)
    row = tl.program_id(0) * turns * n
    for i in range(turns):
        x = tl.load(x_ptr + row + i * n + lanes, mask=lanes < n, other=0.0)
        tl.store(x_ptr + row + i * n + lanes, x - tl.sum(x), mask=lanes < n)


@triton.jit
def sums_kernel(x_ptr, out_ptr, turns):
    """Sums under conditions, differences, counts, pointers that move twice; what is left of the last turn."""
    lanes = tl.program_id(0) * 16 + tl.arange(0, 16)
    total, other = tl.zeros((16,), tl.float32), tl.zeros((16,), tl.float32)
    count, place = 0, x_ptr + lanes
    for i in range(turns):
        x = tl.load(place)
        if i > 0:
            total += x
        elif tl.program_id(0) == 1:
            total += 10 * x
            other -= x
        other -= 0.5
        count += 2
        place += 20
        place += 12
        last = x * i
    tl.store(out_ptr + lanes, total + 3 * other + last)
    tl.store(out_ptr + 32 + lanes, count + tl.load(place - 32))


@triton.jit
def rescaled_kernel(x_ptr, out_ptr, turns):
    """A carried value that is not only added to."""
    lanes = tl.arange(0, 16)
    total = tl.zeros((16,), tl.float32)
    for i in range(turns):
        total = total * 0.5 + tl.load(x_ptr + i * 16 + lanes)
    tl.store(out_ptr + lanes, total)


@triton.jit
def uneven_kernel(x_ptr, out_ptr, n):
    """Programs with turns of their own."""
    pid, lanes = tl.program_id(0), tl.arange(0, 16)
    total = tl.zeros((16,), tl.float32)
    for i in range(pid, n):
        total += tl.load(x_ptr + (pid * 2 + i) * 16 + lanes)
    tl.store(out_ptr + pid * 16 + lanes, total)


@triton.jit
def nested_store_kernel(out_ptr, turns):
    """Turns of two loops write one address: the last turn of both is the last."""
    for i in range(turns):
        value = i * 1.0
        for j in range(turns):
            value = value * 0.5 + j
            tl.store(out_ptr + i + j, value)


@triton.jit
def atomic_kernel(x_ptr, out_ptr, turns):
    lanes = tl.arange(0, 16)
    for i in range(turns):
        x = tl.load(x_ptr + tl.program_id(0) * 16 + lanes)
        tl.atomic_add(out_ptr + lanes, x * i)


@triton.jit
def swizzled_kernel(x_ptr, out_ptr, columns, GROUP: tl.constexpr):
    """Blocks in groups, and a matrix of a batch: nothing of it runs evenly along the grid's axes."""
    pid = tl.program_id(0)
    batch, head = tl.program_id(1) // 2, tl.program_id(1) % 2
    group = pid // (GROUP * columns)
    row, column = group * GROUP + pid % GROUP, (pid % (GROUP * columns)) // GROUP
    at = ((batch * 2 + head) * 8 + row) * columns * 4 + column * 4 + tl.arange(0, 4)
    tl.store(out_ptr + at, tl.load(x_ptr + at) + 100 * row + 10 * column + batch)


X = numbers(4 * 32)
CASES = {
    "a turn reads and writes its own": (lambda x: in_place_kernel[(1,)](x, 4, 16, 0), X, {2}),
    "a turn reads what another one wrote": (lambda x: in_place_kernel[(1,)](x, 4, 16, 1), X, set()),
    "a turn reads what a later one writes": (lambda x: in_place_kernel[(1,)](x, 4, 16, -1), X, set()),
    "blocks of turns overlap": (lambda x: in_place_kernel[(1,)](x, 4, 8, 0), X, set()),
    "two stores": (lambda x: overwriting_kernel[(1,)](x, 4), X, {6}),
    "a mask keeps turns apart": (lambda x: masked_kernel[(2,)](x, 4, 13), X, {4}),
    "sums": (lambda x: sums_kernel[(2,)](x, jnp.zeros(64), 3), X, {5}),
    "rescaled": (lambda x: rescaled_kernel[(1,)](x, jnp.zeros(16), 7), X, set()),
    "uneven": (lambda x: uneven_kernel[(3,)](x, jnp.zeros(48), 3), X, {4}),
    "nested stores": (lambda x: nested_store_kernel[(1,)](x, 6), X, set()),
    "atomics": (lambda x: atomic_kernel[(3,)](x, jnp.zeros(16), 5), X, {2}),
    "swizzled": (lambda x: swizzled_kernel[(16, 4)](x, jnp.zeros_like(x), 2, GROUP=4), numbers(512), set()),
}


@pytest.mark.parametrize("name", CASES)
def test_side_by_side_is_one_after_the_other(name):
    """Loops are an axis where their turns need nothing of each other (the lines in the table), and nowhere else."""
    launch, x, wanted = CASES[name]
    with noting() as lines:
        found = jax.jit(launch)(x)
    assert lines == wanted
    np.testing.assert_allclose(found, in_turn(launch, np.asarray(x)), rtol=0, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(FIRST.values()), ids=lambda case: case.name)
def test_turn_by_turn_gives_the_same(case, monkeypatch):
    """Each kernel of the tests, with no loop as an axis."""
    arrays = {name: jnp.asarray(array) for name, array in case.arrays().items()}
    found = jax.jit(lambda arrays: launched(case, arrays))(arrays)
    monkeypatch.setattr(loops, "vectorize", lambda *_: False)
    wanted = jax.jit(lambda arrays: launched(case, arrays))(arrays)
    for name, array in wanted.items():
        largest = np.abs(array, where=np.isfinite(array), out=np.zeros_like(array)).max() if array.size else 0
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-6 * float(largest), err_msg=name)


DEPTH = 4
SEEN: list = []


def note():
    """A function of plain Python, called while tracing."""
    SEEN.append(0)
    return 1.0


NOTE = tl.constexpr(note)


@triton.jit
def deep_kernel(x_ptr):
    total = 0.0
    for a in range(5):
        for b in range(5):
            for c in range(5):
                for d in range(5):
                    total = total * 0.5 + NOTE() + a + b + c + d
    tl.store(x_ptr, total)


def test_nested_loops_are_not_tried_again_and_again():
    """Four loops that carry what cannot be summed: each is refused as an axis once, not once for each try around it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "vectorize", lambda *_: False)
        jax.jit(deep_kernel[(1,)])(jnp.zeros(1))
    turn_by_turn = len(SEEN)
    SEEN.clear()
    jax.clear_caches()
    jax.jit(deep_kernel[(1,)])(jnp.zeros(1))
    assert len(SEEN) <= turn_by_turn + DEPTH * (DEPTH + 1) / 2


@pytest.mark.parametrize("name", ["matmul", "matmul-block-pointers"])
def test_a_blocked_product_is_one_product(name):
    """Swizzled or not: no loop, no gather, and one contraction over blocks and turns together."""
    case = launches.matmul(64, 16) if name == "matmul" else launches.matmul_block_pointers(64, 16)
    forms, inputs = forms_of(name, case)
    text = jax.jit(forms["fnjax"]).lower(*inputs).compile().as_text()
    assert " while(" not in text
    assert " gather(" not in text
    products = [line for line in text.splitlines() if " dot(" in line or "custom-call" in line or "__ynn" in line]
    assert len(products) <= 2  # a fusion is named where it is defined, and where it is called


def test_a_derivative_adds_up_slices_not_memory():
    """Of a loop over slices each turn's cotangent is a slice: nothing in its scan is shaped like memory again."""
    turns, n = 32, 16

    @jax.jit
    def slope(x):
        return jax.grad(lambda x: rescaled_kernel[(1,)](x, jnp.zeros(n), turns).sum())(x)

    x = numbers(turns * n)
    np.testing.assert_allclose(slope(x), np.repeat(0.5 ** np.arange(turns - 1, -1.0, -1), n), rtol=1e-5)
    scans = [e for e in equations(jax.make_jaxpr(slope)(x).jaxpr) if e.primitive.name == "scan"]
    inside = [i for e in scans for i in equations(e.params["jaxpr"].jaxpr)]
    large = {i.primitive.name for i in inside if math.prod(i.outvars[0].aval.shape) >= x.size}
    assert scans
    assert large <= {"broadcast_in_dim", "dynamic_update_slice", "add_any", "remat2", "checkpoint"}


def test_a_derivative_keeps_no_scores():
    """Of flash attention: what backward needs of a turn is made again from what the turn was given."""
    forms, inputs = forms_of("attention-full", launches.attention(False, 2, 256, 16, 16))
    slopes = {form: gradient_of(f, "attention-full", inputs) for form, f in forms.items()}
    bytes_ = {f: jax.jit(g).lower(*inputs).compile().memory_analysis().temp_size_in_bytes for f, g in slopes.items()}
    assert bytes_["fnjax"] < bytes_["twin"]


@triton.jit
def loop_in_axis_kernel(x_ptr, out_ptr, turns):
    """An outer loop that is an axis, around one that is not."""
    lanes = tl.arange(0, 16)
    for i in range(turns):
        value = tl.zeros((16,), tl.float32)
        for j in range(turns):
            value = value * 0.5 + tl.load(x_ptr + (i * turns + j) * 16 + lanes)
        tl.store(out_ptr + i * 16 + lanes, value)


def test_a_loop_inside_of_an_axis():
    """It is a loop of JAX's, all turns of the outer one in each of its own; values and derivative."""
    turns = 6
    x = numbers(turns * turns * 16)

    def launch(x):
        return loop_in_axis_kernel[(1,)](x, jnp.zeros(turns * 16), turns)

    with noting() as lines:
        found, slope = jax.jit(launch)(x), jax.jit(jax.grad(lambda x: launch(x).sum()))(x)
    assert lines == {3}
    np.testing.assert_allclose(found, in_turn(launch, np.asarray(x)), rtol=0, atol=1e-6)
    weights = 0.5 ** np.arange(turns - 1, -1.0, -1)
    np.testing.assert_allclose(slope.reshape(turns, turns, 16), np.tile(weights[:, None], (turns, 1, 16)), rtol=1e-6)


def test_a_loop_has_no_axes_of_size_one():
    """XLA's loops over arrays with such axes are up to four times slower."""
    forms, inputs = forms_of("scan", launches.scan(2, 12, 40, 4, 16))
    (loop,) = [e for e in equations(jax.make_jaxpr(forms["fnjax"])(*inputs).jaxpr) if e.primitive.name == "scan"]
    assert (2, 3, 16, 4) in [v.aval.shape for v in loop.outvars]
    assert not any(1 in v.aval.shape[:-1] for v in loop.outvars)


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(getattr(inner, "jaxpr", inner))


def test_memory_is_not_outgrown():
    """Turns side by side would make blocks a hundred times as large as the arrays: they run one after the other."""

    @triton.jit
    def outer_kernel(x_ptr, out_ptr, turns):
        lanes = tl.arange(0, 256)
        total = tl.zeros((256, 256), tl.float32)
        for i in range(turns):
            x = tl.load(x_ptr + i * 256 + lanes)
            total += tl.exp(x[:, None] * x[None, :])
        tl.store(out_ptr + lanes, tl.sum(total, 0))

    x = numbers(16, 256) / 8
    with noting() as lines:
        found = jax.jit(lambda x: outer_kernel[(1,)](x, jnp.zeros(256), 16))(x)
    assert not lines
    np.testing.assert_allclose(found, np.exp(x[:, :, None] * x[:, None, :]).sum((0, 1)), rtol=1e-5)


# ------------------------------------------------------------------------------- the two questions about whole numbers

STEPS = st.integers(-6, 6)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_turns_called_independent_share_no_address(data):
    """Counted out for small loops: where a store is among the accesses, no two turns meet at an address."""
    turns = VectorizedLoop(LoopVariable.along(1, 3), 0, False, [])
    lanes, programs = 4, 2
    for kind in ("write", data.draw(st.sampled_from(["read", "write"]))):
        base = np.array([data.draw(st.integers(0, 20)) for _ in range(programs)]).reshape(
            (programs, *(1,) * (MOST - 1))
        )
        affine = Affine(base, (lanes,), (data.draw(STEPS),), ((turns.variable, data.draw(STEPS)),))
        conditions = ()
        if data.draw(st.booleans()):
            bound = np.full((1,) * MOST, data.draw(st.integers(0, 3)))
            conditions = (Affine(bound, (lanes,), (data.draw(st.sampled_from([-1, 1])),)),)
        turns.accesses.append(LoopAccess(kind, 0, affine, conditions, 0))
    if not independent(turns):
        return
    for program in range(programs):
        for one, other in ((0, 1), (1, 0), (0, 0), (1, 1)):
            for turn in range(3):
                for later in range(turn + 1, 3):
                    mine, theirs = (_addresses(turns.accesses[a], program, t) for a, t in ((one, turn), (other, later)))
                    assert not mine & theirs


def _addresses(access, program, turn):
    found = set(range(4))
    for condition in access.conditions:
        found = {i for i in found if condition.base.flat[0] + condition.strides[0] * i >= 0}
    step = {s.axis: c for s, c in access.affine.terms}.get(1, 0)
    first = access.affine.base.flat[program] + step * turn
    return {int(first + access.affine.strides[0] * i) for i in found}


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), st.lists(STEPS, min_size=3, max_size=3), st.integers(0, 9)
)
def test_a_cut_grid_has_the_same_numbers(a, b, c, strides, constant):
    """Of addresses that mix quotients and remainders of a program's number."""
    size = a * b * c
    pid = np.arange(size)
    address = constant + pid // (b * c) * strides[0] + pid // c % b * strides[1] + pid % c * strides[2]
    affine = Affine(along_axis(address, 0, MOST))
    radix = views.mixed_radix_of(affine)
    if radix is None:
        assert views.strides_of(affine) is None
        return
    state = State((size, 1, 1))
    splits = state.split_grid(radix)
    if splits is None:
        assert radix == {}
        assert views.strides_of(affine) is not None
        return
    assert math.prod(splits[0]) == size
    number = State((size, 1, 1), splits=splits).program(0).base
    found = views.strides_of(Affine(address[number]))
    assert found is not None
    np.testing.assert_array_equal(number.reshape(-1), pid)


@pytest.mark.parametrize("offset", [-40, 16, 64])
def test_a_block_outside_of_memory_reads_zeros_and_writes_nothing(offset):
    """The tail of a sequence that is shorter than the kernel's block: no slice starts outside of memory."""
    affine = Affine(np.full((1,) * MOST, offset), (4, 2), (4, 1))
    bounds = [affine, Affine(np.full((1,) * MOST, 15)).plus(affine.negated())]
    view = views.find_view(affine, bounds, 16)
    memory = jnp.arange(1.0, 17)
    rows = views.as_rows(memory, view.layout)
    found = jax.jit(lambda rows: views.to_block(views.read(rows, view), view))(rows)  # JAX checks slices in jit
    assert not np.any(found)
    rows = views.write(rows, view, views.from_block(jnp.ones(affine.array(np).shape), view))
    np.testing.assert_array_equal(views.as_flat(rows, view.layout, 16), memory)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_view_holds_what_its_addresses_say(data):
    """Plans beside NumPy's indexing: what is read, and what is there after a write."""
    sizes = [data.draw(st.integers(1, 4)) for _ in range(3)]
    strides, stride = [], 1
    for size in reversed(sizes):
        strides.insert(0, stride)
        stride *= size + data.draw(st.integers(0, 2))
    order = data.draw(st.permutations(range(3)))
    sizes, strides = [sizes[i] for i in order], [strides[i] for i in order]
    length, offset = data.draw(st.integers(1, 80)), data.draw(st.integers(0, 8))
    turns = LoopVariable.along(0, sizes[0])
    affine = Affine(np.full((1,) * MOST, offset), tuple(sizes[1:]), tuple(strides[1:]), ((turns, strides[0]),))
    address = affine.array(np)
    bound = Affine(np.full((1,) * MOST, length - 1)).plus(affine.negated())
    view = views.find_view(affine, [bound] if data.draw(st.booleans()) else [], length)
    if view is None:
        return
    memory = np.arange(1.0, length + 1)
    inside = (address >= 0) & (address < length)
    found = np.broadcast_to(views.to_block(views.read(views.as_rows(memory, view.layout), view), view), address.shape)
    np.testing.assert_array_equal(found, np.where(inside, memory[np.clip(address, 0, length - 1)], 0))
    block = -np.arange(1.0, address.size + 1).reshape(address.shape)
    narrow = views.to_block(jnp.zeros([d.high - d.low for d in view.dimensions]), view).shape
    if narrow != address.shape:
        return
    wanted = memory.copy()
    wanted[address[inside]] = block[inside]
    rows = views.write(views.as_rows(jnp.asarray(memory), view.layout), view, views.from_block(block, view))
    np.testing.assert_array_equal(views.as_flat(rows, view.layout, length), wanted)
