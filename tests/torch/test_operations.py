"""Operations of fnjax.torch that PyTorch's operator tests showed: state, dtypes, views, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch

F = torch.nn.functional


def test_running_statistics_follow_the_batch():
    """batch_norm in training moves the running statistics in place, with the unbiased variance."""
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    mean, var = torch.zeros(3), torch.ones(3)
    y = F.batch_norm(torch.tensor(x), mean, var, training=True, momentum=0.2)
    np.testing.assert_allclose(mean.numpy(), 0.2 * x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(var.numpy(), 0.8 + 0.2 * x.var(0, ddof=1), rtol=1e-5)
    np.testing.assert_allclose(y.numpy(), (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5), rtol=1e-4, atol=1e-5)


def test_running_statistics_take_no_gradient():
    """The gradient of batch_norm is that of the batch's own statistics."""

    def loss(x):
        return (F.batch_norm(x, torch.zeros(2), torch.ones(2), training=True) ** 3).sum()

    def plain(x):
        return jnp.sum(((x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5)) ** 3)

    x = jnp.asarray(np.random.default_rng(1).normal(size=(4, 2)), jnp.float32)
    np.testing.assert_allclose(
        jax.grad(torch.jax_view(loss))(x), jax.grad(plain)(x), rtol=2e-4, atol=2e-4 * float(jnp.abs(x).max())
    )


def test_one_value_per_channel():
    """One value per channel has no variance: PyTorch's error."""
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        F.batch_norm(torch.ones(1, 3), None, None, training=True)


@pytest.mark.parametrize("name", ["gcd", "minimum"])
def test_integers_keep_their_size(name):
    """Operations of int32 tensors return int32, those of int64 ones int64, also without 64-bit numbers."""
    for own in (torch.int32, torch.int64):
        x = torch.tensor([4, 6], dtype=own)
        assert getattr(torch, name)(x, x).dtype is own
        assert x.sort()[0].dtype is own
        assert (x * 0.5).type(torch.LongTensor).dtype is torch.int64
        assert x.topk(1)[0].dtype is own
        assert x.topk(1)[1].dtype is torch.int64


def test_a_plan_is_used_by_calls_of_its_signature_only():
    """Types and signs of equal numbers, a tensor given twice, strides and elements decide on results."""
    x, y, i = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([1, 2])
    for _ in range(2):  # the second time by the plans of the first
        assert [(x * x).tolist(), (x * y).tolist(), (y * x).tolist()] == [[1, 4], [3, 8], [3, 8]]
        assert [torch.copysign(x, n).tolist() for n in (0.0, -0.0)] == [[1, 2], [-1, -2]]
        assert [(i * n).dtype for n in (True, 1, 1.0, 1j)] == [i.dtype, i.dtype, x.dtype, torch.complex64]
        assert [torch.cat(p).tolist() for p in ([x, y], [x, x], [y, x])] == [[1, 2, 3, 4], [1, 2, 1, 2], [3, 4, 1, 2]]
        assert [(a + a).stride() for m in [torch.zeros(2, 3)] for a in (m, m.t())] == [(3, 1), (1, 3)]
        assert (i // i).tolist() == [1, 1]
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            i // (i - 1)


def test_views_of_tensors_without_axes():
    """Meshgrid and unfold take tensors without axes, and index_select."""
    one = torch.tensor(2.0)
    assert [tuple(x.shape) for x in torch.meshgrid(one, torch.ones(3), indexing="ij")] == [(1, 3), (1, 3)]
    assert tuple(one.unfold(0, 1, 1).shape) == (1,)
    assert one.index_select(0, torch.tensor([0])).item() == 2


def test_conjugates_share_memory():
    """A write into conjugates, or a conjugate transpose, writes the conjugate into the tensor."""
    z = torch.tensor([[1 + 2j, 3j]])
    z.conj()[0, 0] = 5 + 1j
    z.mH[1, 0] = 7j
    np.testing.assert_array_equal(z.numpy(), np.array([[5 - 1j, -7j]], np.complex64))


def test_what_is_not_read_is_refused():
    """An argument that the JAX expression does not read is an error, and no silent default."""
    with pytest.raises(torch.NotSupported, match="pivot"):
        torch.linalg.lu_factor(torch.eye(2), pivot=False)


def test_methods_that_are_not_there():
    """A method that the table refuses says so, also to `hasattr`, since PyTorch has it; other names are not there."""
    x = torch.ones(2)
    for ask in (lambda name: getattr(x, name)(), lambda name: hasattr(x, name), lambda name: getattr(x, name, None)):
        with pytest.raises(torch.NotSupported, match="sparse"):
            ask("to_sparse")
    assert not hasattr(x, "no_such_method")


def test_masked_sums():
    """torch.masked leaves out what the mask does not select."""
    x = torch.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(torch.masked.sum(x, 1, mask=x > 1).numpy(), [2, 12])
    np.testing.assert_array_equal(torch.masked.amax(x, 0, mask=x < 4).numpy(), [3, 1, 2])
    np.testing.assert_allclose(torch.masked.mean(x, mask=x > 1).item(), 3.5)


def test_comparisons_that_return_a_bool():
    """The methods equal and allclose return Python's booleans."""
    x = torch.arange(3.0)
    assert x.equal(x + 0) is True is torch.equal(x, x)
    assert x.allclose(x + 1) is False
    np.testing.assert_array_equal(x.as_strided_scatter(torch.ones(2), (2,), (2,)).numpy(), [1, 1, 1])


def test_small_integers_wrap_around():
    """A float beyond the range of a small integer wraps around, as in NumPy's conversion by way of int64."""
    x = np.array([300.0, -5.0, 3.7, -300.0, 40000.0], np.float32)
    for name in ("uint8", "int8", "int16"):
        expected = x.astype(np.int64).astype(name)
        own, written = torch.tensor(x).to(getattr(torch, name)), torch.zeros(5, dtype=getattr(torch, name))
        written[:] = torch.tensor(x)
        np.testing.assert_array_equal(own.numpy(), expected)
        np.testing.assert_array_equal(written.numpy(), expected)


@pytest.mark.parametrize(
    ("args", "options", "name"),
    [
        (("cpu", torch.float16), {}, "float16"),
        ((torch.float32, False, True), {}, "copy"),
        (("cpu", torch.float32, False, True), {}, "copy"),
        ((torch.zeros(1, dtype=torch.int32),), {"non_blocking": True}, "int32"),
        ((), {"other": torch.zeros(1).half()}, "float16"),
        ((np.dtype("float16"),), {}, "float16"),
        ((jnp.bfloat16,), {}, "bfloat16"),
        ((object(),), {}, r"combination of arguments - got \(object\)"),
        ((torch.float16, "cpu", 1, 1), {}, "combination of arguments"),
        (("cpu",), {"device": "cpu"}, "combination of arguments"),
        ((), {"dtypes": torch.float16}, r"got \(dtypes=dtype\)"),
    ],
)
def test_to_in_each_form(args, options, name):
    """`to` takes a device, a dtype or a tensor, and `copy` by position; what fits no form is an error."""
    x, module = torch.ones(2), torch.nn.ReLU()
    if " " in name:
        with pytest.raises(TypeError, match=name):
            x.to(*args, **options)
        with pytest.raises(TypeError, match=name):
            module.to(*args, **options)
        return
    y = x.to(*args, **options)
    assert str(y.dtype) == f"torch.{'float32' if name == 'copy' else name}"
    y.zero_()
    assert x.tolist() == [1, 1]


def test_shapes_that_do_not_fit():
    """The message is PyTorch's, and names the operation, the shapes and the line."""
    with pytest.raises(RuntimeError, match=r"The size of tensor a \(4\) must match the size of tensor b \(5\) at") as e:
        torch.ones(3, 4) + torch.ones(5)
    assert all(part in str(e.value) for part in ("torch.add of shapes (3, 4), (5,)", "test_operations.py:"))
    with pytest.raises(RuntimeError, match=r"cannot be multiplied \(3x4 and 5x6\)"):
        torch.ones(3, 4) @ torch.ones(5, 6)


@pytest.mark.parametrize("by", [0.3, "tensor"])
def test_quotients_are_those_of_a_division(by):
    """XLA multiplies by 1 / b where b is one number, which floor shows; at NaN the gradient is 1 / b."""
    number = np.float32(0.3 if by == "tensor" else by)
    x = np.append(np.arange(1, 20001, dtype=np.float32) * number, np.float32("nan"))
    run = torch.jax_view(lambda x, number: torch.floor(x / number))
    f = (lambda x: run(x, jnp.asarray(number))) if by == "tensor" else lambda x: run(x, by)
    for g in (f, jax.jit(f)):
        np.testing.assert_array_equal(g(jnp.asarray(x)), np.floor(x / number))
    slope = jax.grad(torch.jax_view(lambda x: (x / 0.3)[0]))(jnp.full(1, jnp.nan))
    np.testing.assert_allclose(slope, 1 / 0.3, rtol=1e-6)


_ROWS = np.random.default_rng(0).integers(1, 50, (500, 7))
QUOTIENTS = {  # NumPy divides; where both count the rows' sums are exact
    "one number": (lambda x: x / 7, lambda x: x / 7),
    "shape (1,)": (lambda x: x / (x[:1, 0] + 0.3), lambda x: x / (x[:1, 0] + x.dtype.type(0.3))),
    "rows": (lambda x: x / x.amax(1, keepdim=True), lambda x: x / x.max(1, keepdims=True)),
    "columns": (lambda x: x / x[0], lambda x: x / x[0]),
    "expanded": (lambda x: x / x[:, :1].expand_as(x), lambda x: x / x[:, :1]),
    "a constant": (lambda x: x / torch.full_like(x, 7), lambda x: x / 7),
    "in place": (lambda x: x.clone().div_(x[0]), lambda x: x / x[0]),
    "trunc": (lambda x: x.div(x[0], rounding_mode="trunc"), lambda x: np.trunc(x / x[0])),
    "addcdiv": (lambda x: torch.addcdiv(0 * x, x, x[0]), lambda x: x / x[0]),
    "mean": (lambda x: x.mean(1), lambda x: x.sum(1) / x.dtype.type(7)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x[:, None], 7)[:, 0, 0], lambda x: x.sum(1) / x.dtype.type(7)),
    "normalize": (lambda x: F.normalize(x, p=1.0), lambda x: x / x.sum(1, keepdims=True)),
    "rsqrt": (lambda x: x.rsqrt(), lambda x: 1 / np.sqrt(x)),
    "its reciprocal": (lambda x: x * (1 / x[:, :1]), lambda x: x * (1 / x[:, :1])),
    "a number by it": (lambda x: 127 / x, lambda x: 127 * (1 / x)),  # PyTorch makes this of it
    "roots": (lambda x: x**0.5 + x**-0.5, lambda x: np.sqrt(x) + 1 / np.sqrt(x)),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", QUOTIENTS)
def test_divisors_that_broadcast_divide(name, dtype):
    """XLA makes a product with the reciprocal of it, which is another number for a quarter of the quotients."""
    ours, theirs = QUOTIENTS[name]
    x = _ROWS.astype(dtype)
    run = torch.jax_view(ours)
    if dtype is not np.float32:  # halves: NumPy would round sums
        np.testing.assert_array_equal(jax.jit(run)(x), run(x))
        return
    for f in (run, jax.jit(run), jax.vmap(run) if name == "one number" else run):
        np.testing.assert_array_equal(f(jnp.asarray(x)), theirs(x))


def test_quotients_of_quotients_divide():
    """XLA makes one division of two, `rsqrt` of 1 / sqrt(x), and x * exp(-y) of x / exp(y)."""

    def run(x, sqrt, exp):
        s, t = x[0], x[:, :1]
        return x / s / 3, x / t / t, x / 7 / 3, x / (s / 7), 1 / (1 / x), 1 / sqrt(x + s), x / sqrt(x), x / exp(t / 9)

    x = _ROWS.astype(np.float32)
    ours = torch.jax_view(lambda x: run(x, torch.sqrt, torch.exp))
    exp = torch.jax_view(torch.exp)
    for f in (ours, jax.jit(ours)):
        for found, expected in zip(f(jnp.asarray(x)), run(x, np.sqrt, lambda y: np.asarray(exp(y))), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_operations_of_halves_round_once(dtype):
    """These are computed in float32, as PyTorch does; add, sub and remainder round a number to the dtype before."""
    own, array = getattr(torch, dtype), np.random.default_rng(0).normal(size=(8, 8)).astype(dtype)
    number = torch.tensor(1.1, dtype=own).item()

    def run(x, number):
        y, a = x.flip(0), x.abs()
        yield from (x.std(1), x.var(1), x.nanmean(1), x.expm1(), a.log2(), a.log10(), x.asinh(), a.rsqrt())
        yield from (torch.hypot(x, y), torch.logaddexp(x, y), torch.lerp(x, y, y), x * 3.3, x / 3.3)
        yield from (x + number, number - x, x % number, torch.add(x, y, alpha=number), torch.sub(x, y, alpha=number))

    x = torch.torch_view(jnp.asarray(array))
    for found, expected in zip(run(x, 1.1), run(x.float(), number), strict=True):
        np.testing.assert_array_equal(found.array, expected.to(own).array)


def test_gradients_of_quotients_divide():
    """The gradient of the dividend is a quotient, too."""
    x, s, g = (jnp.asarray(_ROWS[i : i + n] + 0.3, jnp.float32) for i, n in ((0, 400), (0, 1), (50, 400)))
    pull = lambda x, s, g: jax.vjp(torch.jax_view(lambda x, s: x / s), x, s)[1](g)
    for f in (pull, jax.jit(pull)):
        over, under = f(x, s, g)
        np.testing.assert_array_equal(over, np.asarray(g) / np.asarray(s))
        np.testing.assert_allclose(under, -(g * x).sum(0, keepdims=True) / s**2, rtol=1e-5)


def test_a_quantiser_keeps_the_gradient_of_its_largest_element():
    """The largest element stands on the bound: the values are PyTorch's."""

    class Quantise(torch.autograd.Function):
        @staticmethod
        def forward(ctx, w):
            s = w.abs().max().reshape(1) / 31
            ctx.save_for_backward(w, s)
            return torch.round(w / s) * s

        @staticmethod
        def backward(ctx, g):
            w, s = ctx.saved_tensors
            bound = w.abs().max() / s
            q = w / s
            return g * ((q >= -bound) & (q <= bound))

    w, g = jnp.array([0.7, -0.3, 0.11]), jnp.array([1.0, 2.0, 3.0])
    loss = lambda w: (torch.jax_view(Quantise.apply)(w) * g).sum()
    for f in (jax.grad(loss), jax.jit(jax.grad(loss))):
        np.testing.assert_array_equal(f(w), g)


def test_a_difference_of_one_array_is_zero_where_both_are_the_same():
    """XLA may join a product and a difference into one operation, which rounds the product otherwise."""
    s = jnp.asarray(np.random.default_rng(0).normal(size=64), jnp.float32)

    @torch.jax_view
    def gaps(s):
        squares = (s**2).expand(64, 64)
        return (squares - squares.t()).diagonal(), (s.pow(2)[:, None] - s.pow(2)).diagonal()

    for found in (*gaps(s), *jax.jit(gaps)(s)):
        np.testing.assert_array_equal(found, 0)


def test_attention_sees_what_a_mask_says():
    """A mask of booleans chooses, one of floats is added, and a row that sees nothing is zero, with no gradient."""
    q, k, v = np.random.default_rng(3).normal(size=(3, 2, 4, 5))
    seen = np.tril(np.ones((4, 4), bool), -1)
    weights = np.where(seen, np.exp(q @ k.swapaxes(1, 2) * 0.5), 0)
    wanted = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300) @ v
    for mask in (seen, np.where(seen, 0, -np.inf)):

        def attend(q, k, v, mask=mask):
            given = torch.tensor(mask, dtype=torch.bool if mask.dtype == bool else q.dtype)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, given, scale=0.5)

        attend = jax.jit(torch.jax_view(attend))
        np.testing.assert_allclose(attend(q, k, v), wanted, rtol=1e-5, atol=1e-6)
        gradients = jax.grad(lambda *a, f=attend: f(*a).sum(), (0, 1, 2))(*map(jnp.asarray, (q, k, v)))
        assert all(np.isfinite(g).all() for g in gradients)
        np.testing.assert_array_equal(gradients[0][:, 0], 0)


REFUSED = """
x.long().mean() | mean(): could not infer output dtype
x.long().std() | std and var only support floating point and complex dtypes
x.long().softmax(0) | "softmax_kernel_impl" not implemented for 'Long'
torch.exp_(x.long()) | result type Float can't be cast to the desired output type Long
x & 1 | "bitwise_and_cpu" not implemented for 'Float'
x - (x > 0) | Subtraction, the `-` operator, with a bool tensor is not supported.
x.bool() @ x.bool() | "addmm_impl_cpu_" not implemented for 'Bool'
x.masked_fill(x.long(), 1) | masked_fill_ only supports boolean masks, but got mask with dtype
x.masked_select(x.long()) | masked_select: expected BoolTensor for mask
torch.where(x, x, x) | where expected condition to be a boolean tensor, but got a tensor with dtype Float
x @ x.bfloat16() | expected m1 and m2 to have the same dtype, but got: float != c10::BFloat16
F.linear(x, x.bfloat16()) | expected m1 and m2 to have the same dtype
x[None].bmm(x[None].half()) | expected scalar type Float but found Half
torch.einsum("ij,jk", x, x.half()) | expected scalar type Float but found Half
x.scatter_add(0, i, x.half()) | scatter(): Expected self.dtype to be equal to src.dtype
x.index_add(0, i[0], x.half()) | index_add_(): self (Float) and source (Half) must have the same scalar type
write(x, i[0], x.half()) | Index put requires the source and destination dtypes match, got Float for the destination
torch.meshgrid(x[0], x[0].half()) | meshgrid expects all tensors to have the same dtype
x @ x[:1] | mat1 and mat2 shapes cannot be multiplied (2x2 and 1x2)
x.dot(x[0]) | 1D tensors expected
x.fill_(x[0]) | fill_ only supports 0-dimension value tensor but got tensor with 1 dimensions
torch.fill(x, x[0]) | fill_ only supports 0-dimension value tensor but got tensor with 1 dimensions
x[0].dot(x.flatten()) | inconsistent tensor size, expected tensor [2] and src [4]
x[None].bmm(x[None, :1]) | Expected size for first two dimensions of batch2 tensor to be: [1, 2] but got: [1, 1].
x.gather(0, i[0]) | Index tensor must have the same number of dimensions as input tensor
x.gather(1, i.repeat(2, 1)) | Size does not match at dimension 0 expected index [4, 2]
x.scatter(0, i, x[:1]) | Expected index [2, 2] to be no larger than self [2, 2]
x.index_add(0, i[0], x[:1]) | index_add_(): Number of indices (2) should be equal to source.size(dim)
x.topk(3) | selected index k out of range
x.expand(3, 2) | The expanded size of the tensor (3) must match the existing size (2)
x.permute(0, 0) | permute(): duplicate dims are not allowed.
x.clone().add_(torch.ones(1, 2, 2)) | output with shape [2, 2] doesn't match the broadcast shape [1, 2, 2]
torch.cat([x, x[:, :1]]) | Sizes of tensors must match except in dimension 0. Expected size 2 but got size 1
torch.stack([x, x[0]]) | stack expects each tensor to be equal size
F.conv1d(x[None], x[None].repeat(1, 1, 2)) | Kernel size can't be greater than actual input size
F.conv1d(x[None], x[:, :1, None]) | expected input[1, 2, 2] to have 1 channels, but got 2 channels
F.layer_norm(x, (3,)) | Given normalized_shape=[3]
F.avg_pool1d(x, 3) | Output size is too small
F.binary_cross_entropy_with_logits(x, x.long()) | result type Float can't be cast to the desired output type Long
F.cross_entropy(x, i[0, :1]) | Expected input batch_size (2) to match target batch_size (1).
"""


def test_dtypes_and_shapes_that_pytorch_refuses():
    """Arguments that PyTorch refuses raise its error, with its words, eagerly and under jit."""

    def write(x, index, new):
        x[index] = new

    def attempt(array):
        x = torch.torch_view(array)
        names = {"x": x, "i": torch.zeros(2, 2, dtype=torch.int64), "torch": torch, "F": F, "write": write}
        for line in REFUSED.strip().splitlines():
            text, _, message = line.rpartition(" | ")
            with pytest.raises((RuntimeError, IndexError, ValueError)) as e:
                eval(text, names)
            assert message in str(e.value), (text, str(e.value))
        return array

    attempt(jnp.ones((2, 2), "float32"))
    jax.jit(attempt)(jnp.ones((2, 2), "float32"))


def test_fake_quantize():
    """Numbers go to PyTorch's levels, by the reciprocal of the scale in float32; gradients pass in the range."""
    x = torch.tensor([-3.0, -1.05, 0.25, 0.35, 1.15, float("nan"), float("inf")], requires_grad=True)
    y = torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -8, 7)
    expected = [-1.1, -1.0, 0.2, 0.4, 0.4, -1.1, 0.4]
    np.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-6)
    (grad,) = torch.autograd.grad((y * y).sum(), x)
    np.testing.assert_allclose(grad.numpy(), [0, -2.0, 0.4, 0.8, 0, 0, 0], rtol=1e-6)
    w = torch.ones(4, 3, 2, dtype=torch.bfloat16).transpose(0, 2)
    scale, zero = torch.tensor([0.1, 0.3, 0.7]), torch.tensor([0, 1, -1], dtype=torch.int32)
    each = torch.fake_quantize_per_channel_affine(w, scale, zero, 1, -8, 7)
    assert (each.dtype, each.stride()) == (torch.bfloat16, w.stride())
    np.testing.assert_allclose(each.float()[0, :, 0].numpy(), [0.7, 0.9, 0.7], rtol=4e-3)
    with pytest.raises(RuntimeError, match="`zero_point` must be between `quant_min` and `quant_max`"):
        torch.fake_quantize_per_tensor_affine(x, 0.1, 9, -8, 7)


def test_unique_consecutive():
    """Of each run of equal elements, or rows, the first is kept, with the run of each element, and the lengths."""
    x = torch.tensor([[1, 1, 2], [2, 2, 1]])
    found = torch.unique_consecutive(x, return_inverse=True, return_counts=True)
    assert [t.tolist() for t in found] == [[1, 2, 1], [[0, 0, 1], [1, 1, 2]], [2, 3, 1]]
    rows, counts = x[[0, 0, 1]].unique_consecutive(dim=0, return_counts=True)
    assert (rows.tolist(), counts.tolist()) == (x.tolist(), [2, 1])
    assert [len(torch.unique_consecutive(torch.tensor(v))) for v in ([], [float("nan")] * 2, 3)] == [0, 2, 1]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_arrays_of_jax_are_tensors(wrap):
    """Operations take JAX's arrays as tensors, whatever checks and views the operation has."""
    x, i = jnp.arange(6.0).reshape(2, 3), jnp.array([2, 0])
    calls = [
        F.cross_entropy,
        lambda x, i: F.nll_loss(input=x, target=i),
        lambda x, i: torch.matmul(x, x.T),
        lambda x, i: F.linear(x, x),
        lambda x, i: torch.stack([x, x]),
        lambda x, i: torch.einsum("ij->ji", x),
        lambda x, i: torch.ones_like(x),
        lambda x, i: torch.where(x > 2, x, 0.0),
    ]
    for call in calls:
        found = wrap(lambda x, i, call=call: torch.jax_view(call(x, i)))(x, i)
        np.testing.assert_allclose(found, call(torch.tensor(x), torch.tensor(i)).numpy(), rtol=1e-6)


def test_gradients_of_jax_are_not_clipped_in_place():
    """clip_grad_norm_ of a dict of arrays names optax's."""
    with pytest.raises(torch.NotSupported, match=r"optax\.clip_by_global_norm"):
        torch.nn.utils.clip_grad_norm_({"w": jnp.ones(3)}, 1.0)


def test_functions_that_divide_in_backward_have_forward_mode(tmp_path):
    """A quotient, a mean and a normalisation in backward are linear in grad_output: jvp and hessian transpose them."""
    (tmp_path / "divides.py").write_text(
        "import torch\n"
        "class Centred(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x, n):\n"
        "        ctx.save_for_backward(x, n)\n"
        "        return (x - x.mean(-1, keepdim=True)) ** 3 / n / 7\n"
        "    @staticmethod\n"
        "    def backward(ctx, g):\n"
        "        x, n = ctx.saved_tensors\n"
        "        g = 3 * (x - x.mean(-1, keepdim=True)) ** 2 * (g / n) / 7\n"
        "        return g - g.mean(-1, keepdim=True), None\n"
    )
    function = torch.load(tmp_path / "divides.py").Centred.apply
    x, n = jnp.asarray([[1.0, 2.0, 4.0], [0.5, -1.0, 3.0]]), jnp.full((2, 1), 3.0)

    def plain(x):
        return ((x - x.mean(-1, keepdims=True)) ** 3 / n / 7).sum()

    for wrap in (lambda f: f, jax.jit):
        loss = wrap(lambda x: function(x, n).sum())
        np.testing.assert_allclose(jax.hessian(loss)(x), jax.hessian(plain)(x), rtol=1e-5, atol=1e-6)
        found, wanted = (jax.jvp(f, (x,), (x,)) for f in (loss, plain))
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
