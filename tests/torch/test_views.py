"""Views share memory: random programs beside NumPy, whose views are PyTorch's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fnjax import torch


def _step(draw, x, a):
    """One more view of a tensor and of an array."""
    kind = draw(st.sampled_from(["transpose", "slice", "select", "unsqueeze", "diagonal", "reshape"]))
    if kind == "transpose" and a.ndim > 1:
        i, j = draw(st.permutations(range(a.ndim)))[:2]
        return x.transpose(i, j), np.swapaxes(a, i, j)
    if kind == "slice" and a.ndim:
        axis = draw(st.integers(0, a.ndim - 1))
        start, step = draw(st.integers(0, a.shape[axis])), draw(st.integers(1, 2))
        index = (slice(None),) * axis + (slice(start, None, step),)
        return x[index], a[index]
    if kind == "select" and a.ndim and a.shape[0]:
        i = draw(st.integers(0, a.shape[0] - 1))
        return x[i], a[i : i + 1].reshape(a.shape[1:]) if a.ndim == 1 else a[i]
    if kind == "unsqueeze":
        axis = draw(st.integers(0, a.ndim))
        return x.unsqueeze(axis), np.expand_dims(a, axis)
    if kind == "diagonal" and a.ndim > 1:
        return x.diagonal(), np.einsum("ii...->...i", a) if a.shape[0] == a.shape[1] else (x.diagonal(), None)[1]
    return x, a


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_writes_reach_all_that_share_memory(data):
    """Writes through a chain of views reach the elements that NumPy's reach, and are read back as NumPy reads them."""
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    base = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    order = data.draw(st.permutations(range(len(shape))))
    tensor = torch.torch_view(jnp.asarray(base)).permute(*order).clone()  # has its axes in another order in memory
    base = base.transpose(order).copy("K")
    x, a = tensor, base
    for _ in range(data.draw(st.integers(1, 4))):
        y, b = _step(data.draw, x, a)
        if b is None or (b.size and not np.shares_memory(b, base)):
            break
        x, a = y, b
    assert x.shape == a.shape
    assert x.is_contiguous() == (a.flags.c_contiguous or not a.size)
    np.testing.assert_array_equal(x.array, a)
    x.mul_(-2).sub_(1)
    a *= -2
    a -= 1
    np.testing.assert_array_equal(tensor.array, base)
    np.testing.assert_array_equal(x.array, a)


def test_strides_and_contiguity():
    """Strides, offsets and contiguity are those of the layout; a reshape copies where no view has the shape."""
    x = torch.zeros(2, 3, 4)
    y = x.transpose(0, 2)
    assert (y.stride(), y.is_contiguous()) == ((1, 4, 12), False)
    assert x[1].storage_offset() == 12
    assert y.reshape(24).data_ptr() != x.data_ptr()
    assert x.reshape(6, 4).data_ptr() == x.data_ptr()
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        y.view(24)
    assert y.contiguous().stride() == (6, 2, 1)


# By the expression PyTorch's strides. `c` has its channels last.
STRIDES = {
    "x.t().clone()": (1, 3),
    "x.t() + 1": (1, 3),
    "x.t() * x.t()": (1, 3),
    "torch.empty_like(x.t())": (1, 3),
    "torch.exp(x.t()) > 0": (1, 3),
    "torch.where(x.t() > 0, x.t(), 0.0)": (1, 3),
    "x.t() + y": (1, 3),
    "y + x.t()": (2, 1),
    "y * x.t()[:1]": (2, 1),
    "x.t()[:, :1] + x.t()": (1, 3),
    "x.t().to(torch.float64)": (1, 3),
    "x.t().contiguous()": (2, 1),
    "x.t()[::2].clone()": (1, 2),
    "x.t()[:, :1].clone()": (1, 3),
    "x[0].expand(3, 3) + 1": (3, 1),
    "(x[0].expand(3, 3)).clone()": (3, 1),
    "(x.t() + 1).unsqueeze(0).sum(1, keepdim=True)": (2, 2, 1),
    "x.t().sort(0)[0]": (1, 3),
    "x.t().flip(0)": (1, 3),
    "i.permute(0, 2, 3, 1) * 2": (192, 8, 1, 48),
    "c + 1": (192, 1, 32, 4),
    "c + i": (192, 1, 32, 4),
    "i + c": (192, 48, 8, 1),
    "c * i[:1, :, :1, :1]": (192, 1, 32, 4),
    "i[:1, :, :1, :1] * c": (192, 1, 32, 4),
    "torch.cat([c, c], 1)": (384, 1, 64, 8),
    "torch.cat([c, i], 1)": (384, 48, 8, 1),
    "c.sum(1, keepdim=True)": (48, 48, 8, 1),
    "F.conv2d(c, w)": (72, 1, 18, 3),
    "F.conv2d(i, w.contiguous(memory_format=torch.channels_last))": (72, 1, 18, 3),
    "F.max_pool2d(c, 2)": (48, 1, 16, 4),
    "F.group_norm(c, 2)": (192, 1, 32, 4),
    "F.interpolate(c, scale_factor=2)": (768, 1, 64, 4),
    "c.contiguous()": (192, 48, 8, 1),
    "i.to(memory_format=torch.channels_last)": (192, 1, 32, 4),
    "c.clone(memory_format=torch.contiguous_format)": (192, 48, 8, 1),
    "c.permute(0, 2, 3, 1) + 1": (192, 32, 4, 1),
    "c.masked_fill(c > 0, 0)": (192, 48, 8, 1),
    "torch.linalg.inv(s)": (1, 3),
    "s @ s.t()": (3, 1),
    "F.linear(s.t(), s)": (3, 1),
    "torch.zeros_like(i.transpose(0, 3))": (1, 48, 8, 192),
    "c.softmax(1)": (192, 48, 8, 1),
    "c.cumsum(1)": (192, 48, 8, 1),
    "c[[0, 1, 1]]": (192, 1, 32, 4),
    "c[:, [0, 1]]": (96, 48, 8, 1),
    "c[:, :, [0, 1], [2, 3]]": (8, 2, 1),
    "c[[0, 1], :, [2, 3]]": (32, 1, 4),
    "c[:, torch.tensor([True, True, False, True])]": (144, 48, 8, 1),
    "x[torch.tensor([[0, 1], [1, 0], [1, 1]]).t()]": (3, 6, 1),
    "torch.stack([c, c], 1)": (384, 4, 1, 64, 8),
    "torch.stack([c, c], -1)": (384, 96, 16, 2, 1),
    "torch.kron(x.t(), y.t())": (1, 6),
    "torch.inner(x.t(), x[0, 0])": (1, 3),
    "torch.linalg.tensorinv(torch.eye(6).reshape(2, 3, 6), ind=2)": (1, 18, 6),
    "torch.linalg.lstsq(torch.ones(2, 4, 3), i[0, :2, :4, :2]).solution": (8, 1, 4),
    "torch.unravel_index(torch.arange(6).reshape(2, 3), (4, 5))[0]": (6, 2),
    "torch.complex(x, x).t().angle()": (2, 1),
    "torch.complex(x, x).t().imag": (2, 6),
    "torch.view_as_real(torch.complex(x, x).t())": (2, 6, 1),
    "torch.view_as_complex(i[..., :2])": (96, 24, 4),
    "x.t().new_empty_strided((2, 3), (7, 8))": (7, 8),
}


def test_results_have_strides_of_pytorch():
    """New tensors have PyTorch's strides: dense, in an order of the axes that the arguments decide."""

    def make_all(x, y, i, w, s):
        names = {**locals(), "torch": torch, "F": torch.nn.functional}
        names["c"] = i.contiguous(memory_format=torch.channels_last)
        assert {text: eval(text, names).stride() for text in STRIDES} == STRIDES
        m = x.t().clone()
        m.flatten()[:2] = 9.0  # a copy, since m is not contiguous
        m.t().view(-1)[1] = 7.0
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            x.t().exp().view(-1)
        return m, names["c"].as_strided((4,), (1,), 48), torch.from_numpy(m.numpy().T)

    shapes = [(2, 3), (3, 2), (2, 4, 6, 8), (3, 4, 3, 3)]
    x, y, i, w = (jnp.arange(np.prod(n), dtype=jnp.float32).reshape(n) for n in shapes)
    m, first, shown = jax.jit(torch.jax_view(make_all))(x, y, i, w, jnp.eye(3))
    np.testing.assert_array_equal(m, [[0, 3], [7, 4], [2, 5]])
    np.testing.assert_array_equal(shown, m.T)
    np.testing.assert_array_equal(first, i[0, :, 1, 4])


def test_a_function_gets_and_returns_strides():
    """`forward` sees its arguments' strides, `backward` those of what was saved; a result keeps its own."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 1 if x.is_contiguous() else x * -1

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * sum(x.stride())

    def run(x):
        y, z = Function.apply(x.t()), Function.apply(x[:, ::2])
        assert (y.stride(), z.stride()) == ((1, 3), (2, 1))
        return y.sum() + z.sum()

    for f in (torch.jax_view(run), jax.jit(torch.jax_view(run))):
        assert f(jnp.ones((2, 3))) == -10
        np.testing.assert_array_equal(jax.grad(f)(jnp.ones((2, 3))), [[9, 4, 9], [9, 4, 9]])


def test_resize_acts_on_the_memory():
    """`resize_`, `set_` and `.data -= 1` keep the memory: views of it see what is written afterwards."""

    def resize(x):
        a, b, c, d = x.clone(), x.clone(), x.clone(), x.clone()
        first, flat, data = a[:1], c.view(-1), d.data
        first.resize_(3)
        b.resize_(2).resize_(4)
        c.resize_(2, 4).view(-1)[4:] = 0.0
        c.add_(1)
        d.data -= 1
        d.data -= 1
        e = torch.zeros(0).set_(a, 1, (2, 2), (2, 1))
        e.mul_(10)
        return a, first, b, c, flat, data, torch.tensor(c.untyped_storage().nbytes())

    for f in (torch.jax_view(resize), jax.jit(torch.jax_view(resize))):
        a, first, b, c, flat, data, size = f(jnp.arange(6.0, dtype=jnp.float32))
        np.testing.assert_array_equal(a, [0, 10, 20, 30, 40, 5])
        np.testing.assert_array_equal(first, [0, 10, 20])
        np.testing.assert_array_equal(b, [0, 1, 2, 3])
        np.testing.assert_array_equal(c, [[1, 2, 3, 4], [1, 1, 1, 1]])
        np.testing.assert_array_equal(flat, [1, 2, 3, 4, 1, 1])
        np.testing.assert_array_equal(data, np.arange(6) - 2)
        assert size == 32


def test_none_in_an_index_has_the_stride_of_unsqueeze():
    """PyTorch's strides of new axes, where other parts of the index come before, after or between them."""
    x, y = torch.arange(12.0).reshape(4, 3), torch.arange(24.0).reshape(2, 3, 4)
    assert [x[None, ::2].stride(), x[:, None].stride(), x[1, None].stride()] == [(12, 6, 1), (3, 3, 1), (3, 1)]
    assert y[:, None, 1:, None, ::2].stride() == (12, 12, 4, 4, 2)
    assert y.permute(2, 0, 1)[None, 1, ..., None].stride() == (4, 12, 4, 1)
    x[None, :, 1] = 0.0
    assert x.array[:, 1].tolist() == [0] * 4


def test_einsum_without_a_sum_is_a_view():
    """`+x`, axes that einsum reorders, its diagonals are views; rotations have the strides of a transpose."""
    x = torch.torch_view(jnp.arange(8.0).reshape(2, 2, 2))
    torch.einsum("bii->bi", +x).mul_(10)
    turned = torch.einsum("bij->jbi", [x])
    x[0, 1, 0] = 7.0
    np.testing.assert_array_equal(x.array, [[[0, 1], [7, 30]], [[40, 5], [6, 70]]])
    np.testing.assert_array_equal(turned.array, x.array.transpose(2, 0, 1))
    np.testing.assert_array_equal(torch.einsum("bii", x).array, [30, 110])
    last = torch.arange(3.0)[None].clone()
    for of in (
        lambda x: ("...ij->...ji", x),
        lambda x: ("i...", x),
        lambda x: (x, [0, 1], [1, 0]),
        lambda x: (x, [..., 0]),
    ):
        torch.einsum(*of(last)).add_(1)
    np.testing.assert_array_equal(last.array, [[4, 5, 6]])
    assert torch.einsum("i...->...i", last).stride() == (1, 3)
    assert torch.einsum(last, [0, 1], last, [2, 1], [0, 2]).tolist() == [[16 + 25 + 36]]
    assert torch.rot90(x).stride() == (2, 4, 1)


BY_NAME = """
torch.numel(input=x) | 6
torch.is_floating_point(input=x) | True
torch.promote_types(type1=torch.int32, type2=torch.float32) | torch.float32
torch.real(input=x) | x
torch.positive(input=x) | x
torch.clone(input=x, memory_format=torch.contiguous_format) | x
torch.detach(input=x) | x
torch.t(input=x) | x.T
torch.permute(input=x, dims=(1, 0)) | x.T
x.permute(dims=(1, 0)) | x.T
torch.swapaxes(input=x, axis0=0, axis1=1) | x.T
x.swapdims(dim0=0, dim1=1) | x.T
torch.movedim(input=x, source=0, destination=1) | x.T
torch.reshape(input=x, shape=(3, 2)) | x.reshape(3, 2)
x.reshape(shape=(3, 2)) | x.reshape(3, 2)
x.view(size=(3, 2)) | x.reshape(3, 2)
x.clone().resize_(size=(3, 2)) | x.reshape(3, 2)
torch.unflatten(input=x, dim=1, sizes=(3, 1)) | x[..., None]
x[0].expand(size=(2, 3)) | x[0].expand(2, 3)
torch.broadcast_to(input=x[0], size=(2, 3)) | x[0].expand(2, 3)
torch.squeeze(input=x[:, :1], dim=1) | x[:, 0]
x.select(dim=1, index=0) | x[:, 0]
torch.hsplit(input=x, sections=3)[0] | x[:, :1]
torch.hsplit(x, indices=(1,))[0] | x[:, :1]
torch.tensor_split(x, sections=3, dim=1)[0] | x[:, :1]
torch.split(tensor=x, split_size_or_sections=1)[0] | x[:1]
x.split(split_size=1)[0] | x[:1]
torch.split_with_sizes(x, split_sizes=(1, 1))[0] | x[:1]
torch.chunk(input=x, chunks=2)[0] | x[:1]
torch.index_put_(input=x.clone(), indices=(torch.tensor(0),), values=x[1])[0] | x[1]
torch.resize_as_(input=torch.zeros(1), the_template=x.zero_()) | x
torch.nn.functional.one_hot(input=x.long()).shape | (2, 3, 1)
"""


def test_views_take_the_names_of_pytorch():
    """Views and other functions that are no lines of the table take PyTorch's names, and raise for others."""
    x = torch.torch_view(jnp.arange(6.0).reshape(2, 3))
    for line in BY_NAME.strip().splitlines():
        found, expected = (eval(part, {"torch": torch, "x": x}) for part in line.split(" | "))
        if isinstance(expected, torch.Tensor):
            found, expected = found.tolist(), expected.tolist()
        assert found == expected, line
    for call in ("flatten(x, foo=1)", "hsplit(x, foo=1)", "split(x, foo=1)", "t(x, 1)", "transpose(x, dim0=0)"):
        with pytest.raises(TypeError):
            eval(f"torch.{call}", {"torch": torch, "x": x})


def test_numpy_arrays_in_other_orders_share_memory():
    """`from_numpy(a.T)` has the array's strides and memory, as `.grad` has its tensor's; negative strides raise."""
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    x, gap = torch.from_numpy(a.T), torch.from_numpy(a[:, ::2])
    a[0, 2] = 9.0
    x[0, 0] = 7.0
    assert (x.stride(), gap.stride(), gap.tolist()) == ((1, 3), (3, 2), [[7, 9], [3, 5]])
    assert np.shares_memory(x.numpy(), a)
    x.requires_grad_().pow(2).sum().backward()
    assert x.grad.stride() == (1, 3)
    with pytest.raises(ValueError, match="negative"):
        torch.from_numpy(a[::-1])


def test_expanded_entries_cannot_be_written():
    """A write to entries that are one in memory raises PyTorch's error; where they overlap it is refused."""
    with pytest.raises(torch.NotSupported, match="overlap in memory"):
        torch.zeros(3).unfold(0, 2, 1).mul_(2)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        torch.zeros(3, 1).expand(3, 4).add_(1)


def test_a_view_at_a_traced_place():
    """`y[k]` with a traced k is a view, under jit as outside."""

    def write(x, k):
        y = x.clone()
        y[k].zero_()
        return y

    f, x = torch.jax_view(write), jnp.ones((3, 2))
    expected = np.ones((3, 2)) * [[1], [0], [1]]
    np.testing.assert_array_equal(f(x, jnp.asarray(1)), expected)
    np.testing.assert_array_equal(jax.jit(f)(x, jnp.asarray(1)), expected)


def test_components_of_complex_numbers_are_views():
    """The real and imaginary parts can be written to, and so can view_as_real's pairs."""
    z = torch.complex(torch.ones(2), torch.zeros(2))
    assert torch.complex(torch.ones(2, 3), torch.ones(2, 3)).H.stride() == (1, 3)
    assert (z.imag.stride(), z.imag.storage_offset(), z.imag.is_contiguous()) == ((2,), 1, False)
    z.real.contiguous().zero_()  # copies
    z.real.ravel().zero_()
    z.imag = z.real * 3
    torch.view_as_real(z)[0, 0] = 5.0
    np.testing.assert_array_equal(z.array, np.array([5 + 3j, 1 + 3j], np.complex64))


def test_masks_without_axes():
    """A mask of no axes writes to a tensor of no axes, or leaves it as it is."""
    x = torch.tensor([1.0, 2.0])
    first, second = x[0], x[1]
    first[first > 0] = 5.0
    second[second < 0] = 7.0
    assert x.tolist() == [5.0, 2.0]


def test_shifts_in_place_under_jit():
    """Chains of slices and writes are right under jit: XLA was wrong about them with a last axis of one entry."""

    def shift(x):
        x = x.clone()
        part = torch.zeros(2, 4, 2, 8)
        part[:, :-1] = x[:, 1:, :2]
        x[:, :, :2] = part
        part.zero_()
        part[:, 1:] = x[:, :-1, 2:4]
        x[:, :, 2:4] = part
        return x

    x = np.random.default_rng(3).normal(size=(2, 4, 4, 8)).astype(np.float32)
    expected, part = x.copy(), np.zeros((2, 4, 2, 8), np.float32)
    part[:, :-1] = x[:, 1:, :2]
    expected[:, :, :2] = part
    part[...] = 0
    part[:, 1:] = x[:, :-1, 2:4]
    expected[:, :, 2:4] = part
    np.testing.assert_array_equal(jax.jit(torch.jax_view(shift))(x), expected)


def _multiply(x, w):
    with torch.no_grad():
        x.mul_(w)
    return (x * x).sum()


def _fill_a_view(x, w):
    y = x * 2
    with torch.no_grad():
        y[0].fill_(5.0)
    return (y * y).sum()


def _clamp_data(x, w):
    with torch.no_grad():
        x.data.clamp_(0, 1.5)
    return (x * x * w).sum()


def _write_an_alias(x, w):
    with torch.no_grad():
        y = x.detach()
        y.mul_(w)
    return (x * y).sum()


def _copy_data(x, w):
    x.data.copy_(w)
    return (x * x).sum()


def _set_data(x, w):
    y = x * 3
    y.data = w
    (g,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
    return (g * x).sum()


def _set_data_and_write_to_both(x, w):
    x.data = t = w.detach().clone()
    t.mul_(2)
    x.add_(x)
    return (t * x).sum()


def _set_data_of_a_view(x, w):
    y = x * 2
    v = y[:1]
    v.data = w[:1]
    return (v * v * y).sum()


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("function", "by_x", "by_w"),
    [
        (_multiply, [6, 16], [0, 0]),
        (_fill_a_view, [20, 16], [0, 0]),
        (_clamp_data, [6, 12], [1, 2.25]),
        (_write_an_alias, [3, 8], [0, 0]),
        (_copy_data, [6, 8], [0, 0]),
        (_set_data, [36, 60], [0, 0]),
        (_set_data_and_write_to_both, [24, 32], [0, 0]),
        (_set_data_of_a_view, [72 + 18, 18], [0, 0]),
    ],
    ids=lambda x: x.__name__ if callable(x) else None,
)
def test_a_write_that_autograd_does_not_see_keeps_what_made_the_tensor(function, by_x, by_w, wrap):
    """Under no_grad, through detach() and .data, a write changes values only; the gradients are PyTorch's."""
    x, w = jnp.array([1.0, 2.0], jnp.float32), jnp.array([3.0, 4.0], jnp.float32)
    gradients = wrap(jax.grad(torch.jax_view(lambda x, w: function(x * 1, w)), argnums=(0, 1)))(x, w)
    np.testing.assert_allclose(gradients, [by_x, by_w])


def test_an_alias_that_would_get_a_gradient_is_refused():
    """A detached tensor into which such a value is written requires grad in PyTorch; a new `.data` is a constant."""

    def read(x, w):
        y = x.detach()
        y[0] = w[0]
        return y.sum()

    def read_anew(x, w):
        x.data[0] = w[0]
        return (x.data * x).sum()

    def read_a_copy(x, w):
        x.data = w[:]
        w[0] = 1
        return x.sum()

    def reshape(x, w):
        x.data = w[:1]
        assert x.requires_grad
        assert x.shape == (1,)
        return x.sum()

    x, w = jnp.array([1.0, 2.0], jnp.float32), jnp.array([3.0, 4.0], jnp.float32)
    for function, message in {
        read: "detach",
        read_a_copy: r"\.data was given, .* after a write to that",
        reshape: r"shape \(2,\) whose .data was given shape \(1,\)",
    }.items():
        with pytest.raises(torch.NotSupported, match=message):
            jax.grad(torch.jax_view(lambda x, w, own=function: own(x * 1, w * 1)), argnums=(0, 1))(x, w)
    np.testing.assert_allclose(jax.grad(torch.jax_view(lambda x, w: read_anew(x * 1, w)))(x, w), [3, 2])


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[torch.tensor([0, 5])],
        lambda x: x[:, torch.tensor([-5])],
        lambda x: torch.gather(x, 1, torch.tensor([[-1], [0], [0]])),
        lambda x: torch.index_select(x, 0, torch.tensor([3])),
        lambda x: torch.nn.functional.embedding(torch.tensor([3]), x),
    ],
    ids=["entries", "from the end", "gather", "index_select", "embedding"],
)
def test_indices_out_of_range_raise(read):
    """As in PyTorch, where the indices are known; JAX would clamp them."""
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        torch.jax_view(read)(jnp.ones((3, 4)))
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        jax.jit(torch.jax_view(read))(jnp.ones((3, 4)))


@pytest.mark.parametrize(
    "index", [((0, 2), (1, 3)), ((0, 2), slice(1, 3)), (1, (0, 1)), ((True, False, True),), ((),), ([],), (..., (0, 2))]
)
def test_tuples_in_an_index_are_lists(index):
    """PyTorch takes each for the places along an axis, as NumPy does for a list."""
    x = jnp.arange(12.0).reshape(3, 4)
    lists = tuple(np.asarray(i, None if i else int) if isinstance(i, (tuple, list)) else i for i in index)
    wanted = np.asarray(x)[lists]
    np.testing.assert_array_equal(torch.jax_view(lambda x: x[index])(x), wanted)

    def write(x):
        x = x.clone()
        x[index] = -1.0
        return x

    found = np.array(x)
    found[lists] = -1
    np.testing.assert_array_equal(torch.jax_view(write)(x), found)
