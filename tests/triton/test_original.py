"""On a GPU the original kernel runs: when, and what jax-triton is called with; the tests have modules in its place."""

import functools
import importlib
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
import fnjax.triton.language as tl
from fnjax import triton
from fnjax.triton import original
from fnjax.triton.language import load as read
from fnjax.triton.tools.tensor_descriptor import TensorDescriptor
from tests.triton import stand_in

ROOT = Path(__file__).parents[2]
SHIFT = tl.constexpr(2.5)
TWICE = tl.constexpr(2)


@pytest.fixture
def calls(monkeypatch):
    """Return the calls of a stand-in for jax-triton, which is installed while a test runs."""
    found = []
    for name, module in stand_in.modules(found).items():
        monkeypatch.setitem(sys.modules, name, module)
    for remembered in ("_KERNELS", "_AROUND"):  # made by the modules of another test
        monkeypatch.setattr(original, remembered, {})
    return found


@triton.jit
def plus(x, y):
    return x + y


@triton.jit
def scale_kernel(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, factor * tl.load(x_ptr + offsets, mask=mask), mask=mask)


@triton.jit
def mixed_kernel(a_ptr, BLOCK: tl.constexpr, b_ptr, n, flag, name: tl.constexpr, bias_ptr, scale, KIND: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = read(a_ptr + at, mask=at < n, other=0).to(KIND)
    if bias_ptr is not None:
        x += read(bias_ptr + at, mask=at < n)
    if flag:
        x = plus(x, SHIFT)
    if name == "twice":
        x = TWICE * x
    tl.store(b_ptr + at, scale * x, mask=at < n)


@triton.jit
def in_place_kernel(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, -tl.load(x_ptr + at, mask=at < n), mask=at < n)


class Scale(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        return scale_kernel[(2,)](x, jnp.empty_like(x), x.size, 3.0, BLOCK=8)

    @staticmethod
    def backward(ctx, grad):
        return scale_kernel[(2,)](grad, jnp.empty_like(grad), grad.size, 3.0, BLOCK=8)


X = jnp.arange(10.0)


def scale(x, factor=2.0, **options):
    return scale_kernel[(2,)](x, jnp.empty_like(x), x.size, factor, BLOCK=8, **options)


def lowered(f, *args, platform="cuda"):
    """The program of a function that JAX has not seen before."""
    return jax.jit(functools.partial(f)).trace(*args).lower(lowering_platforms=(platform,)).as_text()


def shown(args):
    """Shapes of arrays, and the rest as it is."""
    return [x.shape if isinstance(x, jax.Array) else x for x in args]


def equation(f, *args):
    """The one launch in a function."""
    jaxpr = jax.make_jaxpr(functools.partial(f))(*args)
    (eqn,) = (e for e in jaxpr.eqns if e.primitive.name == "fnjax_either")
    return eqn.params["switch"]


def test_lowered_for_a_gpu_it_is_the_original(calls):
    """One call with the arrays, then the numbers, constexprs by name; the output is the input that is stored to."""
    text = lowered(functools.partial(scale, num_warps=8), X)
    ((args, call),) = calls
    assert shown(args) == [(10,), (10,), 10, np.float32(2)]
    assert [type(a) for a in args[2:]] == [int, np.float32]
    assert (call["grid"], call["constants"], call["aliases"]) == ((2, 1, 1), {"BLOCK": 8}, {1: 0})
    assert (call["name"], call["num_warps"], call["num_stages"]) == ("scale_kernel", 8, None)
    assert text.count("@triton_kernel_call") == 1
    assert "output_tuple_indices = [], operand_index = 1" in text
    assert "multiply" not in text


def test_the_kernel_is_the_users_function_under_the_real_jit(calls):
    """Its text and lines, and in its globals triton.language in the place of fnjax's."""
    lowered(scale, X)
    around = calls[0][1]["kernel"]
    inner = around.fn.__globals__["scale_kernel_of_the_user"]
    assert type(inner) is type(around) is stand_in.JITFunction
    assert inner.fn.__code__ is scale_kernel.fn.__code__
    assert inner.fn.__globals__["tl"] is sys.modules["triton.language"]
    assert scale_kernel.fn.__globals__["tl"] is tl


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_elsewhere_it_is_the_translation(calls, platform):
    """Lowered for another platform, a launch is JAX's operations."""
    text = lowered(scale, X, platform=platform)
    assert "triton_kernel_call" not in text
    assert "multiply" in text
    assert calls == []


def test_one_program_for_two_platforms(calls):
    """An export for a CPU and a GPU has both, and what runs here is right."""
    exported = jax.export.export(jax.jit(scale), platforms=("cpu", "cuda"), disabled_checks=[
        jax.export.DisabledSafetyCheck.custom_call("triton_kernel_call")])(X)  # fmt: skip
    assert "triton_kernel_call" in exported.mlir_module()
    assert len(calls) == 1
    np.testing.assert_array_equal(exported.call(X), 2 * X)


def test_what_runs_here_is_right(calls):
    """With jax-triton there, on a CPU: eager, under jit, vmap, grad and scan, as without it."""
    np.testing.assert_array_equal(scale(X), 2 * X)
    np.testing.assert_array_equal(jax.jit(scale)(X), 2 * X)
    rows = jnp.stack([X, 1 + X], 1)
    np.testing.assert_array_equal(jax.vmap(scale, 1)(rows), 2 * rows.T)
    np.testing.assert_array_equal(jax.jit(jax.vmap(scale, (None, 0)))(X, jnp.arange(3.0)), jnp.outer(jnp.arange(3), X))
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: scale(x).sum()))(X), jnp.full(10, 2.0))
    np.testing.assert_array_equal(jax.lax.scan(lambda c, _: (scale(c), None), X, None, length=3)[0], 8 * X)
    np.testing.assert_array_equal(jax.jvp(scale, (X,), (X,))[1], 2 * X)
    assert calls == []


def test_inside_shard_map(calls):
    """On devices that have parts of an array, beside one that they share."""
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    P = jax.sharding.PartitionSpec
    f = jax.jit(jax.shard_map(scale, mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i")))
    np.testing.assert_array_equal(f(X, jnp.asarray(3.0)), 3 * X)


def test_gradients_go_through_the_translation(calls):
    """Gradients differentiate the JAX operations; forward and backward of a Function run the original kernels."""
    assert "triton_kernel_call" not in lowered(jax.grad(lambda x: scale(x).sum()), X)
    assert calls == []
    assert lowered(jax.value_and_grad(lambda x: Scale.apply(x).sum()), X).count("custom_call @triton_kernel_call") == 2


def test_batched_the_original_runs_for_each_example(calls):
    """In a loop: one call for an example, whose numbers are those of vmap of the translation."""
    rows = jnp.stack([X, 1 + X, 2 * X])
    batched = jax.vmap(scale, (0, None))
    text = lowered(batched, rows, jnp.asarray(4.0))
    assert "stablehlo.while" in text
    ((args, _),) = calls
    assert [a.shape for a in args[:2]] == [(10,), (10,)]
    launch = equation(batched, rows, jnp.asarray(4.0))
    with jax.disable_jit():
        (found,) = launch.on_gpu(rows, jnp.zeros_like(rows), jnp.asarray(4.0))
    np.testing.assert_array_equal(found, 4 * rows)


def test_every_kind_of_argument(calls):
    """Constexprs among the arrays, None, flags, one, types, names of triton_call's own, globals, helpers."""
    a, b, bias = jnp.arange(5, dtype=jnp.int32), jnp.full(8, -7.0), jnp.arange(5.0)
    for flag, name, offset, factor in ((True, "twice", bias, 1.0), (False, "once", None, 2), (True, "once", bias, 0.5)):
        launched = lambda a, b: mixed_kernel[1](a, 8, b, 5, flag, name, offset, factor, KIND=tl.float32)  # noqa: B023
        launch = equation(launched, a, b)
        arrays = [a, b] if offset is None else [a, b, bias]
        (found,) = launch.on_gpu(*arrays)
        np.testing.assert_array_equal(found, launched(a, b))
        x = np.arange(5) + (0 if offset is None else np.arange(5)) + (2.5 if flag else 0)
        np.testing.assert_array_equal(found, [*(factor * (2 if name == "twice" else 1) * x), -7, -7, -7])
    constants = calls[0][1]["constants"]
    assert constants == {"BLOCK": 8, "constant_name": "twice", "KIND": tl.float32}
    assert 1.0 not in calls[0][0][3:]  # jax-triton would make the integer 1 of it
    assert isinstance(calls[2][0][-1], np.float32)


def test_what_is_stored_to_is_passed_once_in_each_role(calls):
    """A kernel in place; and one array for two parameters, which is one buffer."""
    launch = equation(lambda x: in_place_kernel[1](x, 10, BLOCK=16), X)
    np.testing.assert_array_equal(launch.on_gpu(X)[0], -X)
    assert calls[0][1]["aliases"] == {0: 0}
    launch = equation(lambda x: scale_kernel[(2,)](x, x, 10, 3.0, BLOCK=8), X)
    np.testing.assert_array_equal(launch.on_gpu(X)[0], 3 * X)
    assert shown(calls[1][0]) == [(10,), 10, np.float32(3)]


def test_a_traced_number_is_read_by_the_kernel(calls):
    """It becomes an array of one number, which is no argument that jax-triton takes."""
    lowered(scale, X, jnp.asarray(3.0))
    (args, _) = calls[0]
    assert shown(args) == [(10,), (10,), (), 10]


def test_the_configuration_of_an_autotuner(calls):
    """Its meta-parameters, warps and stages, and those of heuristics."""
    tuned = triton.autotune([triton.Config({"BLOCK": 4}, num_warps=2, num_stages=5)], key=["n"])(scale_kernel)
    lowered(lambda x: tuned[lambda meta: (triton.cdiv(10, meta["BLOCK"]),)](x, jnp.empty_like(x), 10, 2.0), X)
    heuristic = triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})(scale_kernel)
    lowered(lambda x: heuristic[(1,)](x, jnp.empty_like(x), 10, 2.0), X)
    (_, first), (_, second) = calls
    assert (first["constants"], first["grid"]) == ({"BLOCK": 4}, (3, 1, 1))
    assert (first["num_warps"], first["num_stages"], first["num_ctas"]) == (2, 5, 1)
    assert (second["constants"], second["num_warps"]) == ({"BLOCK": 16}, None)


def test_a_kernel_is_made_once(calls):
    """For launches of one form there is one kernel, which Triton compiles once; for another global there is another."""
    for n in (10, 9):
        lowered(lambda x, n=n: scale_kernel[(2,)](x, jnp.empty_like(x), n, 2.0, BLOCK=8), X)
    assert calls[0][1]["kernel"] is calls[1][1]["kernel"]
    here = sys.modules[__name__]
    launch = equation(lambda a, b: mixed_kernel[1](a, 8, b, 8, True, "once", None, 2, KIND=tl.float32), X, X)
    before = launch.on_gpu(X, X)[0]
    try:
        here.SHIFT = tl.constexpr(100.0)
        after = launch.on_gpu(X, X)[0]
    finally:
        here.SHIFT = tl.constexpr(2.5)
    np.testing.assert_array_equal(after[:8] - before[:8], np.full(8, 195.0))


def test_backend_chooses(calls):
    """In a block or from then on; jax.jit traces anew; nothing else is taken."""
    f = jax.jit(scale)
    text = lambda: f.trace(X).lower(lowering_platforms=("cuda",)).as_text()
    assert triton.backend() == "auto"
    assert "triton_kernel_call" in text()
    with triton.backend("jax"):
        assert triton.backend() == "jax"
        assert "triton_kernel_call" not in text()
        with triton.backend("auto"):
            assert "triton_kernel_call" in text()
    assert triton.backend() == "auto"
    try:
        triton.backend("jax")
        assert triton.backend() == "jax"
        assert "triton_kernel_call" not in text()
    finally:
        triton.backend("auto")
    with pytest.raises(ValueError, match="not 'gpu'"):
        triton.backend("gpu")
    assert triton.backend() == "auto"


def test_the_original_that_is_demanded_and_cannot_run_is_an_error(calls):
    """On a CPU, differentiated by JAX; a Function's forward and backward may have it."""
    with triton.backend("triton"):
        assert "triton_kernel_call" in lowered(scale, X)
        assert "triton_kernel_call" in lowered(jax.grad(lambda x: Scale.apply(x).sum()), X)
        for run in (lambda: scale(X), lambda: jax.jit(scale)(X)):
            with pytest.raises(triton.KernelError, match=r"kernel scale_kernel: .*a GPU only"):
                run()
        with pytest.raises(triton.KernelError, match=r"kernel scale_kernel: .*fnjax\.Function that has a backward"):
            jax.grad(lambda x: scale(x).sum())(X)


def test_without_jax_triton(monkeypatch):
    """The translation, with nothing said; demanded, the error says what to install."""
    monkeypatch.setitem(sys.modules, "jax_triton", None)
    assert "triton_kernel_call" not in lowered(scale, X)
    assert not [e for e in jax.make_jaxpr(functools.partial(scale))(X).eqns if e.primitive.name == "fnjax_either"]
    with triton.backend("triton"), pytest.raises(triton.KernelError, match=r"pip install '\.\[triton\]'"):
        scale(X)


def test_where_jax_triton_cannot_be_imported(calls, monkeypatch):
    """It is imported when JAX lowers for a GPU, not before; a warning then says why the translation runs."""
    load = importlib.import_module

    def fails(name):
        if name == "jax_triton":
            raise ImportError("jax-triton requires JAX to be installed with GPU support")
        return load(name)

    monkeypatch.setattr(importlib, "import_module", fails)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "multiply" in lowered(scale, X, platform="cpu")
    with pytest.warns(RuntimeWarning, match=r"more slowly: jax-triton cannot be imported .*GPU support"):
        assert "triton_kernel_call" not in lowered(scale, X)
    with triton.backend("triton"), pytest.raises(triton.KernelError, match="cannot run it: jax-triton cannot be"):
        lowered(scale, X)


def test_another_version_of_jax_triton(calls, monkeypatch):
    """It is not called: its outputs go another way."""
    monkeypatch.setattr(sys.modules["jax_triton"], "__version__", "0.4.1")
    with pytest.warns(RuntimeWarning, match=r"jax-triton 0\.4\.1 is installed, but fnjax calls 0\.3\.1"):
        assert "triton_kernel_call" not in lowered(scale, X)
    assert f'"jax-triton=={original.VERSION}"' in (ROOT / "pyproject.toml").read_text()


def test_an_error_of_the_original_says_what_else_there_is(calls, monkeypatch):
    """An error of Triton itself is raised as it is, with a note."""

    def fails(*args, **named):
        raise RuntimeError("out of registers")

    monkeypatch.setattr(sys.modules["jax_triton"], "triton_call", fails)
    with pytest.raises(RuntimeError, match="out of registers") as caught:
        lowered(scale, X)
    assert "backend('jax') runs it as JAX operations" in "".join(caught.value.__notes__)


def test_launches_that_differ_by_a_type_are_two():
    """1, 1.0 and True are equal to Python; to a kernel they are not. So are 0.0 and -0.0."""
    launches = [equation_of(number) for number in (1, 1.0, True, 0.0, -0.0)]
    assert len(set(launches)) == 5
    assert equation_of(1) == equation_of(1)


def equation_of(number):
    with pytest.MonkeyPatch.context() as patch:
        for name, module in stand_in.modules([]).items():
            patch.setitem(sys.modules, name, module)
        return equation(lambda x: scale_kernel[(2,)](x, x, 10, number, BLOCK=8), X)


def test_an_array_of_a_type_that_triton_has_not():
    """The error names the kernel, the parameter and the type."""
    with pytest.raises(triton.KernelError, match=r"kernel scale_kernel, parameter x_ptr: .*complex64.*astype"):
        scale_kernel[(2,)](X.astype(jnp.complex64), X, 10, 2.0, BLOCK=8)


@triton.jit
def described_kernel(x, out, BLOCK: tl.constexpr):
    out.store([tl.program_id(0) * BLOCK], 2 * x.load([tl.program_id(0) * BLOCK]))


def test_descriptors_of_the_host_take_the_translation(calls):
    """jax-triton takes none: the translation is lowered, with a warning; asked for the original it is an error."""
    x = jnp.arange(20.0)

    def double(x):
        described = (TensorDescriptor.from_tensor(a, [16]) for a in (x, jnp.zeros_like(x)))
        return described_kernel[(2,)](*described, BLOCK=16)

    with pytest.warns(RuntimeWarning, match="descriptors that are made outside of the kernel"):
        jax.jit(double).trace(x).lower(lowering_platforms=("cuda",))
    with triton.backend("triton"), pytest.raises(triton.KernelError, match="descriptors that are made outside"):
        jax.jit(double).trace(x).lower(lowering_platforms=("cuda",))
    assert not calls
