"""Every line of the table of operations, run beside PyTorch: spellings, edge inputs, eager and jit."""

import importlib.util
import re
import types
import warnings

import jax.numpy as jnp
import libcst as cst
import numpy as np
import pytest

import fnjax.torch
from fnjax.port import port_source
from fnjax.port.torch import TABLE, Absent, Operation, Problem, bind_call, find_operation, unparse
from tests.port.operations_cases import CASES
from tests.port.operations_inputs import EDGES, INPUTS
from tests.port.operations_translate import Names, Translated, dotted, respelled

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="runs beside PyTorch")
# Only a machine with such a device can run them.
ELSEWHERE = {f"torch.Tensor.{name}" for name in ("cuda", "xpu", "mtia", "ipu", "pin_memory")}
ELSEWHERE |= {"torch.symeig", "torch.Tensor.symeig"}  # test_symeig
# Keywords and methods that the table takes though this release of PyTorch refuses them.
LENIENT = re.compile(
    r"\(2(\.5)?\)\.pow|where\(x > 0, input=|std(_mean)?\(x, dim=False|swapaxes\(C, dim0|unsafe_split"
    r"|indices_or_sections=|scatter\(x, .*src=[25]|tensorsolve|orgqr|cholesky_solve"
    r"|torch\.max_pool2d|cumsum_|associative_scan\.associative_scan"
)
# Where JAX's numbers are others than PyTorch's, with the reason; all on inputs at the edge of what is defined.
GROWS = r"\bresize_"  # beyond an edge input's size, where PyTorch leaves memory as it was
DEPARTURES = {
    "NaN": {
        "NaN stays NaN in jnp.sign and jnp.heaviside; PyTorch gives 0": r"\.(sign|sgn|heaviside)\(",
        "jnp.angle of NaN is 0": r"\.angle\(",
        # PyTorch's gelu at infinity depends on the processor, its logsumexp there on how the work is shared out.
        "the limit at infinity or at a pole": r"\.(digamma|spherical_bessel_j0|lerp|ihfft)\(|F\.gelu\("
        r"|Categorical\(logits",
        "jnp.var of infinities is inf": r"\.(std_mean|var_mean|native_layer_norm)\(",
        "which of several NaN comes first is not defined": r"\.(mode|kthvalue|topk|quantile)\(",
        # PyTorch's solvers multiply infinities by zero on some processors only.
        "infinite losses, infinities inside a solver": r"triangular|ormqr"
        r"|(multi_margin_loss|binary_cross_entropy_with_logits)\(",
        "NaN and infinity as integers are not defined": r"^(i\.copy_|x\.(int|long|short|char|to|type)\()"
        r"|fake_quantize_per_channel_affine",
    },
    "ties": {
        "which of equal entries is named is not defined": r"\.(topk|kthvalue)\(",
        "jax.scipy's digamma is NaN at its poles": r"digamma\(",
    },
    "int": {
        "which of equal entries is named is not defined": r"\.topk\(",
        "a float bound or value makes floats": r"\.(masked_fill|relu6|hardtanh|threshold)\(",
        "JAX's integers have 32 bits unless told otherwise": r"(view\(|itemsize|element_size|nbytes)",
    },
    "bool": {
        "a value of another kind makes its kind": r"\.(masked_fill|relu6)\(",
        "jax.scipy's digamma is NaN at its poles": r"digamma\(",
    },
    "complex": {"PyTorch's result has the dtype of the matrix, though that is real": r"solve_triangular\("},
    "half": {
        "the other argument's float32 wins, as everywhere in JAX": r"\.(huber|soft_margin)_loss\(",
        "a float16 intermediate is rounded elsewhere": r"\.(trapezoid|cosine_similarity|multilabel_soft_margin_loss"
        r"|native_layer_norm|cross_entropy|binary_cross_entropy_with_logits)\(",
    },
}
KINDS = {"u": "int", "i": "int", "f": "float", "V": "float", "b": "bool", "c": "complex"}


def named(text):
    return [n for n in INPUTS if re.search(rf"(?<![\w.]){n}\b(?!=)", text)]


def in_jax(text):
    return {n: jnp.asarray(INPUTS[n]) for n in named(text)}


def in_torch(text):
    import torch

    names = {n: torch.tensor(INPUTS[n]) for n in named(text)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations and such are PyTorch's word to its own users
        return eval(text, {"torch": torch, "F": torch.nn.functional, **names})


def parts(value):
    """The numbers of a result, in a flat list."""
    if isinstance(value, (tuple, list)):
        return [p for part in value for p in parts(part)]
    if hasattr(value, "resolve_conj"):
        value = value.detach().resolve_conj().numpy()
    return [np.asarray(value)] if hasattr(value, "shape") else [value]


def difference(want, got):
    """Return the first difference in values, shapes or kinds of dtype, or None."""
    left, right = parts(want), parts(got)
    if len(left) != len(right):
        return f"{len(right)} parts, not {len(left)}"
    for a, b in zip(left, right, strict=True):
        kinds = [KINDS.get(np.asarray(v).dtype.kind) for v in (a, b)]
        if kinds[0] is None or kinds[1] is None:
            if a != b:
                return f"{b!r}, not {a!r}"
            continue
        if np.shape(a) != np.shape(b):
            return f"shape {np.shape(b)}, not {np.shape(a)}"
        if kinds[0] != kinds[1]:
            return f"{kinds[1]}, not {kinds[0]}"
        if getattr(a, "dtype", None) == np.float16 and b.dtype != np.float16:
            return f"{b.dtype}, not float16"
        tolerance = 5e-3 if getattr(a, "dtype", None) == np.float16 else 2e-5
        if not np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"{b}, not {a}"
    return None


@pytest.mark.slow
def test_every_name_has_a_case():
    """Each operation of the table, under each of its names, is rendered in some case."""
    used = {name for text in CASES for e in (text, *respelled(text)) for name in Translated(e, named(e)).used}
    lines = {n for n, o in TABLE.items() if isinstance(o, Operation) and not any(v.random for v in o.overloads)}
    assert lines - used - ELSEWHERE == set()


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, len(CASES), 100))
def test_rendered_code_runs(start):
    """The code of each case runs on JAX arrays, without PyTorch at hand."""
    for text in CASES[start : start + 100 : 14]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # 64-bit dtypes that a case names
            Translated(text, named(text)).run(in_jax(text))


@pytest.mark.parametrize("upper", [True, False])
def test_symeig(upper):
    """The port of torch.symeig, which PyTorch has removed, agrees with NumPy's eigh of the same triangle."""
    A = INPUTS["A"]
    expected, columns = np.linalg.eigh(A, UPLO="U" if upper else "L")
    text = f"torch.symeig(A, eigenvectors=True, upper={upper})"
    values, vectors = Translated(text, ["A"]).run(in_jax(text))
    only = f"A.symeig(upper={upper})[0]"
    np.testing.assert_allclose(Translated(only, ["A"]).run(in_jax(only)), expected, rtol=1e-5)
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    np.testing.assert_allclose(np.abs(vectors), np.abs(columns), atol=1e-5)


@pytest.mark.parity
@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("text", CASES)
def test_beside_pytorch(text):
    """A rendering gives PyTorch's values, shapes and kinds of dtype, eager and under jit, however it is spelled."""
    want = in_torch(text)
    translated = Translated(text, named(text))
    assert difference(want, translated.run(in_jax(text))) is None, translated.text
    if translated.traced and any(hasattr(w, "shape") for w in parts(want)):
        assert difference(want, translated.run_jit(in_jax(text))) is None, translated.text
    for other in respelled(text):
        try:
            want = in_torch(other)
        except RuntimeError:  # in place, PyTorch refuses what does not fit into the tensor
            continue
        except (TypeError, AttributeError):
            if LENIENT.search(other):
                continue
            raise
        translated = Translated(other, named(other))
        assert difference(want, translated.run(in_jax(other))) is None, translated.text


@pytest.mark.parity
@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("start", range(0, len(CASES), 50))
def test_at_the_edge(edge, start):
    """On 0-d, empty, NaN, tied, integer, boolean, complex and half inputs JAX gives PyTorch's numbers or raises."""
    wrong = []
    for case in CASES[start : start + 50]:
        text = re.sub(r"(?<![\w.])x\b(?!=)", EDGES[edge], case)
        if text == case or any(re.search(p, case) for p in (GROWS, *DEPARTURES.get(edge, {}).values())):
            continue
        try:
            want = in_torch(text)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, AssertionError):
            continue  # PyTorch does not take it
        try:
            got = Translated(text, named(text)).run(in_jax(text))
        except (TypeError, ValueError, IndexError, AttributeError, NotImplementedError):
            continue  # neither does JAX: a refusal, no wrong number
        if found := difference(want, got):
            wrong.append(f"{text}: {found}")
    assert not wrong


@pytest.mark.parity
@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("edge", DEPARTURES)
def test_departures_are_real(edge):
    """Each departure that the table admits is met by some case: none outlives its reason."""
    for reason, pattern in DEPARTURES[edge].items():
        met = False
        for case in CASES:
            text = re.sub(r"(?<![\w.])x\b(?!=)", EDGES[edge], case)
            if text == case or not re.search(pattern, case):
                continue
            try:
                want, got = in_torch(text), Translated(text, named(text)).run(in_jax(text))
            except Exception:  # noqa: BLE001 - whichever side refuses, this case shows no departure
                continue
            met = met or difference(want, got) is not None
        assert met, reason


@pytest.mark.parity
@needs_torch
@pytest.mark.filterwarnings("ignore")
def test_the_table_knows_all_of_torch():
    """Every public function of torch's modules, and every attribute of a tensor, is in the table or named absent."""
    import torch

    unknown = []
    for module, name in (
        (torch, "torch"),
        (torch.nn.functional, "torch.nn.functional"),
        (torch.linalg, "torch.linalg"),
        (torch.special, "torch.special"),
        (torch.fft, "torch.fft"),
        (torch.Tensor, "torch.Tensor"),
    ):
        for attribute in dir(module):
            value = getattr(module, attribute)
            counts = module is torch.Tensor or (callable(value) and not isinstance(value, (type, types.ModuleType)))
            if counts and not attribute.startswith("_") and not find_operation(f"{name}.{attribute}"):
                unknown.append(f"{name}.{attribute}")
            entry = find_operation(f"{name}.{attribute}")
            if isinstance(entry, Operation) and not isinstance(value, type):
                assert entry.called == callable(value), f"{name}.{attribute}"
    assert unknown == []
    assert find_operation("torch.Tensor.my_own_method") is None


@pytest.mark.parametrize(
    ("name", "text"),
    [("torch.distributed.all_reduce", "psum"), ("torch.Tensor.data_ptr", "strides")],
)
def test_absent_operations_say_what_to_do(name, text):
    """An operation that JAX does not have comes with the reason and a remedy."""
    found = find_operation(name)
    assert isinstance(found, Absent)
    assert text in f"{found.reason}; {found.remedy}"


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("x.sum(1, keepdim=True)", "jnp.sum(x, axis=1, keepdims=True)"),
        ("torch.sum(x, dim=None)", "jnp.sum(x)"),
        ("torch.add(x * y, y, alpha=v + 1)", "x * y + (v + 1) * y"),
        ("torch.mul(x + y, -y)", "(x + y) * -y"),
        ("torch.pow(-x, 2)", "(-x) ** 2"),
        ("(x + y).pow(-y)", "(x + y) ** -y"),
        ("x.std(1)", "jnp.std(x, axis=1, ddof=1)"),
        ("x.std(1, unbiased=False)", "jnp.std(x, axis=1)"),
        ("x.clamp(min=0)", "jnp.clip(x, min=0)"),
        ("x.view(2, -1)", "x.reshape((2, -1))"),
        ("x.zero_()", "jnp.zeros_like(x)"),
        ("x.to(jnp.int64)", "x.astype(int)"),
        ("torch.zeros(3, 4, device=d)", "jnp.zeros((3, 4))"),
        ("F.gelu(x)", "jax.nn.gelu(x, approximate=False)"),
        ("x.gt_(0)", "(x > 0).astype(x.dtype)"),
        ("(x == y).float()", "(x == y).astype(jnp.float32)"),
    ],
)
def test_reads_as_a_person_would_write_it(text, rendered):
    """Defaults that JAX shares are left out, and parentheses stand only where they are needed."""
    call = cst.parse_expression(text)
    name = dotted(call.func)
    args = call.args if name else [cst.Arg(call.func.value), *call.args]
    bound = bind_call(find_operation(name or f"torch.Tensor.{call.func.attr.value}"), args, Names({"x", "y", "v"}))
    assert unparse(bound.render(0).expression) == rendered


def test_one_part_of_a_pair():
    """A read of one field of a pair is the code of that field alone."""
    bound = bind_call(find_operation("torch.max"), cst.parse_expression("f(x, 1)").args, Names({"x"}))
    assert bound.overload.fields == ("values", "indices")
    assert unparse(bound.render(part="indices").expression) == "jnp.argmax(x, axis=1)"
    assert unparse(bound.render().expression) == "_max(x, axis=1)"
    assert bound.render().needs == {"_max"}


@pytest.mark.parametrize(
    ("name", "call", "message"),
    [
        ("torch.sum", "f(x, 1, False, 2)", "takes 3 positional arguments but 4 were given"),
        ("torch.sum", "f(x, size=1)", "got an unexpected keyword argument 'size'"),
        ("torch.sum", "f(x, 1, dim=1)", "got multiple values for argument 'dim'"),
        ("torch.sum", "f()", "missing required argument 'input'"),
        ("torch.sum", "f(*x)", "number is not known"),
        ("torch.max", "f(x, unknown)", "it is not known whether 'other' is a tensor"),
        ("torch.nn.functional.one_hot", "f(x)", "the number of classes depends on the values"),
        ("torch.softmax", "f(x, None)", "without dim"),
        ("torch.nn.functional.batch_norm", "f(x, m, v, training=True)", "running statistics"),
        ("torch.prod", "f(x, 1, False, names=3, extra=1)", "got an unexpected keyword argument"),
    ],
)
def test_calls_that_cannot_be_translated(name, call, message):
    """A call that does not fit, or whose translation would be a guess, is a Problem that says why."""
    bound = bind_call(find_operation(name), cst.parse_expression(call).args, Names({"x"}))
    found = bound if isinstance(bound, Problem) else bound.render()
    assert isinstance(found, Problem), unparse(found.expression)
    assert message in found.message


PRODUCTS = {
    "torch.mm(x, x, out_dtype=torch.float32)": 1,
    "torch.bmm(x[None], x[None], torch.float32)[0]": 1,
    "torch.addmm(0 * x, x, x, out_dtype=torch.float32, alpha=2)": 2,
    "torch.baddbmm(x[None], x[None], x[None], out_dtype=torch.float32, beta=0)[0]": 1,
}


@pytest.mark.parametrize(("text", "scale"), PRODUCTS.items())
def test_products_in_another_dtype(text, scale):
    """With out_dtype the products of 16-bit numbers are 32-bit ones, as NumPy has them; PyTorch has it on GPUs only."""
    head = "import torch\nclass F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
    ours, source = {}, {"torch": fnjax.torch}
    exec(port_source(f"{head}        return {text}\n", strict=True).code, ours)
    exec(f"def f(x):\n    return {text}\n", source)
    x = np.linspace(0.1, 3.7, 9, dtype=np.float16).reshape(3, 3)
    expected = scale * (x.astype(np.float64) @ x.astype(np.float64))
    for found in (ours["F"].apply(jnp.asarray(x)), source["f"](fnjax.torch.tensor(x)).numpy()):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-6)
