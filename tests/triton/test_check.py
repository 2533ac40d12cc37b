"""`kernel.check[grid](...)`: planted faults are found, and correct kernels are left alone."""

import inspect
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.triton.language as tl
from fnjax import triton
from tests.triton import faulty
from tests.triton.test_goldens import CASES, FIRST, assert_as_expected, kernel_of

# What these do wrong is why they are there, or was found by the checker.
FAULTY = {"pointwise-last": "race", "products-split-k": "out of bounds"}
ROOT = Path(__file__).parents[2]
X = np.arange(1.0, 33.0, dtype=np.float32)


def empty(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def zeros(*shape, dtype=jnp.float32):
    return jnp.zeros(shape, dtype)


def line_of(kernel, comment):
    """The line of a kernel that ends with a comment."""
    lines, first = inspect.getsourcelines(kernel.fn)
    found = [first + i for i, line in enumerate(lines) if line.rstrip().endswith(f"# {comment}")]
    return found[-1]


def only(report, kind):
    """The one finding."""
    assert [finding.kind for finding in report.findings] == [kind], report
    return report.findings[0]


# ------------------------------------------------------------------------------------------------ out of bounds


def test_a_mask_that_lets_one_lane_too_many_through():
    """The line, the program, the parameter and the address of a read and of a write outside."""
    report = faulty.wrong_mask_kernel.check[(4,)](X[:25], empty(25), 25, BLOCK=8)
    read, write = report.findings
    assert (read.kind, read.program, read.parameter, read.index) == ("out of bounds", (3,), "x_ptr", 25)
    assert (write.kind, write.program, write.parameter, write.index) == ("out of bounds", (3,), "out_ptr", 25)
    assert read.line == line_of(faulty.wrong_mask_kernel, "reads outside")
    assert write.line == line_of(faulty.wrong_mask_kernel, "writes outside")
    assert (read.elements, read.programs) == (1, 1)
    assert "program 3 reads x_ptr[25], which has 25 elements (1 element in 1 program)" in str(report)
    assert "faulty.py" in str(report)
    assert "x = tl.load(x_ptr + offsets, mask=mask)" in str(report)


def test_an_address_before_the_first():
    """Negative addresses are outside."""
    finding = only(faulty.before_kernel.check[(4,)](X, empty(32), BLOCK=8), "out of bounds")
    assert (finding.program, finding.index) == ((0,), -1)


@pytest.mark.parametrize("checked", [(0,), (1,), (0, 1)])
def test_block_pointers(checked):
    """An axis of a block pointer that is not checked."""
    kernel = faulty.block_pointer_kernel
    report = kernel.check[(2,)](jnp.ones((10, 6)), empty(2), 10, 6, BLOCK=8, CHECK=checked)
    if checked == (0, 1):
        report.assert_clean()
    else:
        assert only(report, "out of bounds").line == line_of(kernel, "reads outside")


# ---------------------------------------------------------------------------------------------------- unwritten


def test_a_buffer_that_nobody_has_initialised():
    """A read, and an atomic, of an empty buffer; the same buffer of zeros is none."""
    finding = only(faulty.average_kernel.check[(1,)](X[:5], empty(5), 5, BLOCK=8), "unwritten")
    assert (finding.parameter, finding.index, finding.elements) == ("out_ptr", 0, 5)
    assert finding.line == line_of(faulty.average_kernel, "reads nothing")
    faulty.average_kernel.check[(1,)](X[:5], zeros(5), 5, BLOCK=8).assert_clean()
    finding = only(faulty.atomic_total_kernel.check[(4,)](X, empty(1), BLOCK=8), "unwritten")
    assert (finding.program, finding.line) == ((0,), line_of(faulty.atomic_total_kernel, "updates"))
    report = faulty.atomic_total_kernel.check[(4,)](X, zeros(1), BLOCK=8)
    report.assert_clean()
    np.testing.assert_array_equal(report.outputs, [X.sum()])


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32])
def test_lanes_that_a_mask_leaves_out_are_undefined(dtype, sign):
    """Without `other` they must not reach what is stored, whatever the values; copies and `where` are right."""
    for operation in ("max", "min", "softmax", "branch", "where", "copy"):
        if operation == "softmax" and dtype == jnp.int32:
            continue
        x = sign * jnp.arange(1, 6).astype(dtype)
        launch = faulty.masked_lanes_kernel.check[(1,)]
        report = launch(x, empty(5, dtype=dtype), 5, OP=operation, BLOCK=8)
        if operation in ("where", "copy"):
            report.assert_clean()
            continue
        finding = only(report, "undefined")
        assert finding.line == line_of(faulty.masked_lanes_kernel, "leaves lanes out")
        assert "out_ptr[0] depends on lanes that the mask leaves out" in finding.message


def test_an_undefined_address_may_be_outside():
    """An address made of lanes that a mask leaves out is a fault, though a launch finds zeros there."""
    kernel, index = faulty.masked_index_kernel, jnp.arange(5)[::-1]
    finding = only(kernel.check[(1,)](index, X[:5], empty(5), 5, MASKED=False, BLOCK=8), "undefined")
    assert (finding.parameter, finding.index, finding.elements) == ("x_ptr", 85, 3)
    assert finding.line == line_of(kernel, "leaves indices out")
    assert "x_ptr[85], an address outside of it, depends on lanes that the mask leaves out" in finding.message
    kernel.check[(1,)](index, X[:5], empty(5), 5, MASKED=True, BLOCK=8).assert_clean()


def test_what_a_program_has_written_itself_may_be_read():
    """An empty buffer that is written before it is read; what is left unwritten is told, and is not clean."""
    report = faulty.reread_kernel.check[(4,)](X, empty(40), BLOCK=8)
    assert report.findings == []
    assert report.untouched == {"out_ptr": 8}
    with pytest.raises(AssertionError, match="left unwritten: 8 elements of out_ptr"):
        report.assert_clean()
    faulty.reread_kernel.check[(4,)](X, empty(32), BLOCK=8).assert_clean()
    np.testing.assert_array_equal(report.outputs[:32].reshape(4, 8), X.reshape(4, 8)[:, ::-1])
    assert np.isnan(report.outputs[32:]).all()


# -------------------------------------------------------------------------------------------------------- races


def test_a_sum_without_an_atomic():
    """Read-write and write-write, each with both programs and both lines."""
    report = faulty.total_kernel.check[(4,)](X, zeros(1), BLOCK=8)
    assert {finding.kind for finding in report.findings} == {"race"}
    line = line_of(faulty.total_kernel, "races")
    assert {finding.line for finding in report.findings} == {line, line - 1}
    assert "program 1 reads total_ptr[0], and program 0 wrote it in line" in str(report)


def test_blocks_that_overlap():
    """Two programs that write different values to one element; the first of them is named."""
    finding = only(faulty.overlap_kernel.check[(3,)](X[:8], empty(22), BLOCK=8), "race")
    assert (finding.program, finding.index, finding.elements, finding.programs) == ((1,), 7, 2, 2)
    assert finding.line == line_of(faulty.overlap_kernel, "races")


def test_a_neighbours_block_in_place():
    """A program reads what another one overwrites."""
    report = faulty.shift_kernel.check[(3,)](jnp.asarray(X), BLOCK=8)
    finding = only(report, "race")
    assert finding.line == line_of(faulty.shift_kernel, "races")
    assert f"program 0 read it in line {line_of(faulty.shift_kernel, 'reads')}" in finding.message


def test_equal_values_race_for_nothing():
    """Programs that write the same."""
    faulty.same_value_kernel.check[(4,)](empty(8, dtype=jnp.int32), BLOCK=8).assert_clean()


# ----------------------------------------------------------------------------------------------- locks and waits


@pytest.mark.parametrize("release", ["late", "acquire and release"])
def test_a_correct_lock(release):
    """No alarm, and the sum of the programs in their order."""
    report = faulty.locked_kernel.check[(5,)](X[:5], zeros(1), zeros(1, dtype=jnp.int32), RELEASE=release)
    report.assert_clean()
    total = 0.0
    for x in X[:5]:
        total = total * 0.5 + x
    np.testing.assert_array_equal(report.outputs[0], [total])


@pytest.mark.parametrize("release", ["early", "relaxed"])
def test_a_lock_that_orders_nothing(release):
    """One that is released before the write, or with sem="relaxed"."""
    report = faulty.locked_kernel.check[(5,)](X[:5], zeros(1), zeros(1, dtype=jnp.int32), RELEASE=release)
    assert {finding.kind for finding in report.findings} == {"race"}
    assert {finding.parameter for finding in report.findings} == {"out_ptr"}


def test_a_lock_that_is_never_released():
    """The loop, in the helper where it stands, and who has the lock; the programs that wait are one finding."""
    report = faulty.locked_kernel.check[(5,)](X[:5], zeros(1), zeros(1, dtype=jnp.int32), RELEASE="never")
    finding = only(report, "endless wait")
    assert (finding.function, finding.line) == ("acquire", line_of(faulty.acquire, "waits"))
    assert (finding.program, finding.parameter, finding.index, finding.programs) == ((1,), "lock_ptr", 0, 4)
    assert "program 1 waits for lock_ptr[0], which program 0 changed last" in finding.message


@pytest.mark.parametrize("way", ["atomic", "volatile", "plain"])
def test_a_chain_of_programs(way):
    """Each waits for the one before: no alarm, unless the flag is read as if nobody else wrote it."""
    flags = zeros(5, dtype=jnp.int32)
    report = faulty.chain_kernel.check[(5,)](X[:5], empty(5), flags, 5, STEP=1, WAY=way)
    np.testing.assert_array_equal(report.outputs[0], np.cumsum(X[:5]))
    if way == "plain":
        assert {finding.kind for finding in report.findings} == {"race"}
    else:
        report.assert_clean()


@pytest.mark.parametrize("way", ["atomic", "volatile"])
def test_a_wait_for_a_later_program(way):
    """It is told from a lock that nobody releases: the later program and its line are named."""
    flags = zeros(5, dtype=jnp.int32)
    report = faulty.chain_kernel.check[(5,)](X[:5], empty(5), flags, 5, STEP=-1, WAY=way)
    later = [finding for finding in report.findings if "later program" in finding.message]
    assert [f.program for f in later] == [(3,)]
    assert later[0].index == 4
    assert "program 3 waits for flag_ptr[4], which the later program 4 changes in line" in later[0].message


def test_a_barrier():
    """Programs that wait for all others, of which each but the last waits for later ones."""
    finding = only(
        faulty.barrier_kernel.check[(4,)](X[:4], empty(4), zeros(1, dtype=jnp.int32), BLOCK=8), "endless wait"
    )
    assert (finding.line, finding.programs) == (line_of(faulty.barrier_kernel, "waits"), 3)
    assert "the later program 3" in finding.message


def test_a_loop_that_changes_nothing():
    """A condition that only names decide."""
    finding = only(faulty.forever_kernel.check[(1,)](empty(1, dtype=jnp.int32)), "endless wait")
    assert "changes nothing" in finding.message


# ------------------------------------------------------------------------------------------------ correct kernels


def check(case):
    arrays = {name: jnp.asarray(array) for name, array in case.arrays().items()}
    positional, named = case.call(arrays, tl)
    report = kernel_of(case).check[case.grid](*positional, **named)
    outputs = report.outputs if isinstance(report.outputs, tuple) else (report.outputs,)
    return report, dict(zip(kernel_of(case).stores, outputs, strict=True))


@pytest.mark.parametrize(
    "case",
    [
        case if case.file == "atomics" or i % 12 == 0 else pytest.param(case, marks=pytest.mark.slow)
        for i, case in enumerate(CASES)
        if case.name in FAULTY or case in FIRST.values() or case.file in ("atomics", "tuning")
    ],
    ids=lambda case: case.name,
)
def test_no_false_alarm(case):
    """Kernels of all kinds, locks and tickets among them: nothing is found, and the numbers are the interpreter's."""
    report, outputs = check(case)
    assert {finding.kind for finding in report.findings} == {FAULTY[case.name]} if case.name in FAULTY else report.ok, (
        report
    )
    assert_as_expected(case, outputs, compiled=False)


# ------------------------------------------------------------------------------------------------------ the report


def test_a_clean_report():
    """It says so, and passes an assertion; one with findings raises them."""
    report = faulty.reread_kernel.check[(4,)](X, empty(32), BLOCK=8)
    assert (report.ok, report.findings, str(report)) == (True, [], "reread_kernel[4]: nothing found")
    with pytest.raises(
        AssertionError, match=r"before_kernel\[4\]: 1 finding\nout of bounds: program 0 reads x_ptr\[-1\]"
    ):
        faulty.before_kernel.check[(4,)](X, empty(32), BLOCK=8).assert_clean()


def test_what_was_passed_twice_is_one_buffer():
    """It has both names; a ShapeDtypeStruct that is passed twice is two buffers."""
    x = jnp.asarray(X)
    report = faulty.before_kernel.check[(4,)](x, x, BLOCK=8)
    assert {finding.parameter for finding in report.findings} == {"x_ptr/out_ptr"}
    buffer = empty(32)
    report = faulty.before_kernel.check[(4,)](buffer, buffer, BLOCK=8)
    assert {(f.kind, f.parameter) for f in report.findings} == {("out of bounds", "x_ptr"), ("unwritten", "x_ptr")}


def test_arrays_must_be_concrete():
    """Under jit there is nothing to look at: an error that says so."""
    with pytest.raises(triton.KernelError, match=r"before_kernel: check and draw look at .* outside of jax\.jit"):
        jax.jit(lambda x: faulty.before_kernel.check[(4,)](x, x, BLOCK=8))(X)


def test_bad_launches_are_errors_as_ever():
    """Missing parameters and grids of negative size raise, as a launch does."""
    with pytest.raises(triton.KernelError, match=r"needs out_ptr, BLOCK"):
        faulty.before_kernel.check[(4,)](X)
    with pytest.raises(triton.KernelError, match=r"has a negative size"):
        faulty.before_kernel.check[(-1,)](X, X, BLOCK=8)


# ------------------------------------------------------------------------------------------- launches, beside checks


def chain(way, step):
    kernel = faulty.chain_kernel
    return lambda x: kernel[(5,)](x, zeros(5), zeros(5, dtype=jnp.int32), 5, STEP=step, WAY=way)[0]


@pytest.mark.parametrize("way", ["atomic", "volatile", "plain"])
def test_a_launch_runs_programs_that_wait_in_sequence(way):
    """A chain in which each program waits for the one before it, under jit."""
    np.testing.assert_array_equal(jax.jit(chain(way, 1))(X[:5]), np.cumsum(X[:5]))


@pytest.mark.parametrize("way", ["atomic", "volatile", "plain"])
def test_a_launch_refuses_to_wait_for_a_later_program(way, caplog):
    """An error instead of a hang, which names kernel, line and program: under jit; outside, the only one."""
    line = line_of(faulty.chain_kernel, "waits")
    if way != "plain":
        lines = inspect.getsource(faulty.chain_kernel.fn).split("\n")
        first = inspect.getsourcelines(faulty.chain_kernel.fn)[1]
        waits = [first + i for i, text in enumerate(lines) if text.endswith("# waits")]
        line = waits[0 if way == "atomic" else 1]
    text = rf"kernel chain_kernel: program 0 would wait for ever in chain_kernel, line {line} of .*faulty\.py"
    for launch in (
        chain(way, -1),
        lambda x: jax.jvp(chain(way, -1), (x,), (x,)),
        lambda x: jax.vmap(chain(way, -1))(x[None]),
    ):
        with pytest.raises(triton.KernelError, match=text):
            launch(X[:5])
    assert not caplog.records
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        jax.block_until_ready(jax.jit(chain(way, -1))(X[:5]))


def test_a_launch_refuses_a_lock_that_is_never_released():
    """The helper in which the program would wait; the grid of a single program finds the lock taken, too."""

    def launch(grid, lock):
        return faulty.locked_kernel[grid](X[:5], zeros(1), jnp.full(1, lock), RELEASE="never")

    text = rf"program \(0, 1\) would wait for ever in acquire, line {line_of(faulty.acquire, 'waits')} of"
    with pytest.raises(triton.KernelError, match=text):
        launch((1, 5), 0)
    with pytest.raises(jax.errors.JaxRuntimeError, match="kernel locked_kernel: program 0 would wait for ever"):
        jax.block_until_ready(jax.jit(launch, static_argnums=0)((1,), 1))
    launch((1,), 0)


def test_programs_that_do_not_talk_may_run_in_any_order():
    """All at once and one after the other give the same: launches, and checks, of kernels without atomics."""
    case = next(case for case in CASES if case.name == "control-branches")
    arrays = {name: jnp.asarray(array) for name, array in case.arrays().items()}
    positional, named = case.call(arrays, tl)
    report, outputs = check(case)
    report.assert_clean()
    np.testing.assert_array_equal(kernel_of(case)[case.grid](*positional, **named), outputs["out_ptr"])


def test_one_statement_that_writes_an_address_twice_keeps_the_last():
    """As a scatter, and where the last programs' block is a view; the checker calls it a race."""
    x = np.arange(12.0, dtype=np.float32)
    launch = jax.jit(lambda x: faulty.wrapped_kernel[(12,)](x, zeros(5), 5))
    np.testing.assert_array_equal(launch(x), [10, 11, 7, 8, 9])
    report = faulty.wrapped_kernel.check[(12,)](x, empty(5), 5)
    np.testing.assert_array_equal(report.outputs, [10, 11, 7, 8, 9])
    assert (only(report, "race").elements, report.findings[0].parameter) == (7, "out_ptr")


def test_the_page_shows_what_its_example_prints(capsys):
    """examples/triton/checking.py, and docs/guides/triton-checking.md."""
    runpy.run_path(str(ROOT / "examples/triton/checking.py"), run_name="example")["main"]()
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert printed in (ROOT / "docs/guides/triton-checking.md").read_text()


# --------------------------------------------------------------------------------------------- what kernels say


@triton.jit
def speaking_kernel(x_ptr, n, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    at = program * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    print("first", at, BLOCK)
    tl.device_print("sum", tl.sum(x))
    tl.device_assert(x < 6, "too large", mask=at < n)  # asserted
    tl.device_assert(program < 5)


def test_a_check_prints_and_holds_assertions(capsys):
    """The line and the program of one that fails, in how many lanes; a launch without a check says nothing."""
    x = jnp.asarray(X[:7])
    report = speaking_kernel.check[(2,)](x, 7, BLOCK=4)
    finding = only(report, "assertion")
    assert finding.line == line_of(speaking_kernel, "asserted")
    assert (finding.message, finding.elements, finding.programs) == ("program 1: too large", 2, 1)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "program (0, 0, 0): first [0 1 2 3] 4"
    assert said[3] == "program (1, 0, 0): sum 18.0"
    speaking_kernel[(2,)](x, 7, BLOCK=4)
    assert capsys.readouterr().out == ""


@triton.jit
def one_each_kernel(pair, out_ptr):
    tl.store(out_ptr + tl.program_id(0), tl.load(pair[0] + tl.program_id(0) % 4))


def test_large_grids_are_sampled():
    """1,024 of 20,000 programs are executed, the last one among them, and the report says so."""
    x = jnp.arange(4.0)
    report = one_each_kernel.check[(20_000,)]((x, 2), empty(19_999))
    assert str(report).startswith("one_each_kernel[20000]: 1 finding in 1024 of 20000 programs, a sample of the grid\n")
    assert (report.findings[0].kind, report.findings[0].program) == ("out of bounds", (19_999,))
    assert report.untouched == {}


def test_a_grid_of_no_program_is_clean():
    """Nothing runs, and nothing is found; outside of a sample the report says nothing of one."""
    x = jnp.arange(4.0)
    assert str(one_each_kernel.check[(0,)]((x, 2), zeros(4))) == "one_each_kernel: nothing found"
    assert str(one_each_kernel.check[(4,)]((x, 2), zeros(4))) == "one_each_kernel[4]: nothing found"
