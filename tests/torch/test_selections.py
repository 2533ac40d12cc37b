"""Selections by a traced mask: under jit each use is as without, NaN where PyTorch raises, or refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch
from fnjax._torch_ops import TABLE, Operation
from fnjax._torch_ops.registry import KNOWN
from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.selection import Selection
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.names.registry import find

# A line each: the selection s of three elements of x, the rows r of two rows of m.
ANSWERED = """
s.sum(), s.mean(), s.prod(), s.sum(0, keepdim=True), s.mean(-1, True), s.sum(()), s.sum(dtype=torch.float16)
s.max(), s.min(), s.amax(), s.amin(0), s.max(0).values, s.min(0)[0]
s.var(), s.var(unbiased=False), s.var(correction=0), s.var(0, False), s.var(False), s.std(False), s.std(0, correction=2)
s.norm(), s.norm(1), s.norm(3), s.norm(float("inf")), torch.linalg.norm(s, 1), torch.linalg.vector_norm(s, 3)
s.logsumexp(0), s.softmax(0).max(), s.cumsum(0).sum(), s.cumprod(0).sum(), s.nansum(), s.nanmean(), s.count_nonzero()
s.sum() / s.numel(), s.sum() / s.shape[0], s.sum() / s.size(0), torch.numel(s), s.ndim + s.dim(), sizes(s)
s @ s, torch.dot(s, 2 * s)
s.to(torch.float16).float().sum(), s.double().sum(), s.long().sum(), (x > 0)[x > 1.5].type_as(x).sum()
torch.where(s > 3, 1.0, 0.0).sum(), torch.where(s > 3, s, 0.0).sum(), s.masked_fill(s > 3, 0.0).sum(), (s > 3).any()
s[s < 5].mean(), s.masked_select(s < 5).sum(), m[m > 0][m[m > 0] < 1.2].sum(), s[:].sum(), s[...].sum()
torch.maximum(s, 2 * s).sum(), torch.max(s, 2 * s).sum(), (2 / s).sum(), (s**2 - s / 3).mean(), s.float_power(2).sum()
s.clone().mul_(2).sum(), s.detach().sum(), s.flatten().sum(), s.view(-1).sum(), torch.abs_(s).sum(), s.square().sum()
(s * torch.tensor([1.0, 2.0, 3.0])).sum(), (torch.tensor(2.0) * s + torch.tensor([1.0])).sum()
torch.nonzero(x > 0).sum(), (x > 0).nonzero()[:, 0].sum(), (x > 0).nonzero().squeeze(1).sum(), (x > 0).nonzero().size(1)
x[torch.where(x > 0)].sum(), torch.where(x > 0)[0].float().mean(), m[torch.where(m > 0.6)].sum()
r.sum(0), r.sum(1).sum(), r.mean(), r.var(0), r.var(1, unbiased=False).sum(), r.max(0).values, r.max(1).indices.sum()
r.softmax(-1).sum(0), r.sort(1)[0][:, 0].sum(), r[:, 1].sum(), r[..., 1:].sum(), r[:, None].sum((0, 1))
r.flatten().std(), r.norm(dim=1).sum(), r.norm(p=1, dim=0), torch.linalg.norm(r), r.argmax(1).sum(), r.numel()
r.shape[1], (r @ m[:3].T).sum(), F.linear(r, m).sum(0), F.layer_norm(r, (3,)).std()
F.embedding((x > 0).nonzero()[:, 0], torch.ones(5, 2)).sum(0)
m[:, m[0] > 0].sum(1), m[..., m[0] > 0].mean(-1), (m[:, m[0] > 0] * m[:, :1]).sum()
F.mse_loss(s, 2 * s), F.huber_loss(s, 2 * s, delta=0.5, reduction="sum"), F.smooth_l1_loss(s, 2 * s, beta=0.5)
x.masked_scatter(x < 0, x[x < 0] * 10), x.masked_scatter(x < 0, s * 10), x[0][x[0] > 0].sum()
written(x, lambda y: y.index_put_((y > 0,), torch.tensor(3.0))), written(x, lambda y: y[y > 0].zero_())
written(s, lambda y: y.mul_(3)).sum(), written(s, lambda y: set_item(y, y < 3, 0)).sum()
written(r, first_column).sum(0)
torch.zeros(5).index_put((torch.where(x > 0)[0],), s), written(x, lambda y: y.masked_scatter_(y > 0, 2 * s))
written(m, lambda y: set_item(y, (slice(None), y[0] > 0), y[:, y[0] > 0] + y[:, :1]))
written(m, rows), written(x, changed)
count_answers(s), hasattr(s, "sum") + 0
torch.vmap(lambda y: y[y > 0].mean())(m + 3), [v.sum() for v in (s, x[x < 0])], dict(a=s)["a"].sum()
"""
REFUSED = """
s[0]; s[-1]; s[:2].sum(); s[torch.tensor([0, 1])]; s[x < 5].sum(); s[x[x > 1.5] < 5].sum(); s[m[:, 0] > 0]
list(s); bool(s); float(s); s.item(); s.tolist(); s.numpy(); f"{s}"; 4.0 in s; {s: 1} and max(s); sum(s)
s; [s]; {"a": s}; 2 * s, x; s + x[x < 0]; x + s; x[:3] + s; torch.tensor(s); x.new_tensor(s)
torch.cat([s, s]); torch.stack([s, s]); torch.einsum("i,i->", s, s); s @ r; torch.outer(s, x); torch.dot(s, x)
s.sort(); s.median(); s.argmax(); s.max(0).indices; s.topk(1); s.unique(); s.flip(0); s.diff(); s.long().max()
s.T; s.unsqueeze(0); s.view(3, 1); s.reshape(-1, 1); s.squeeze(); s.expand(2, 3); s.repeat(2); s.split(1); s.unbind()
s.norm(-1); torch.linalg.vector_norm(s, -2); torch.linalg.norm(r, 1); torch.rand_like(s); F.dropout(s)
torch.zeros(s.numel()); torch.zeros(s.shape); x.expand_as(s); x.view_as(s); s.new_zeros(s.shape); x.reshape(s.shape)
s.retain_grad(); s.register_hook(print); s.backward(); s.grad; s.is_leaf; s.data_ptr(); s.storage(); s.stride()
(s * torch.tensor([1.0, 2.0]) > 0).sum(); (s * torch.tensor([1.0, 2.0])).numel(); torch.equal(s, s)
torch.allclose(s, s); F.kl_div(s, s, reduction="batchmean")
set_item(x.clone(), 0, s); set_item(x.clone(), slice(3), s); x.clone().copy_(s); x.clone().add_(s); setattr(s, "a", 1)
set_item(x.long(), x > 0, torch.tensor([1, 2])); s.add_(torch.tensor([1.0, 2.0, 3.0])); set_item(s, 0, 1)
"""
X = np.array([4.0, -1.0, 9.0, 2.0, -3.0], np.float32)
M = np.array([[1.5, -2.0, 0.5], [-0.5, 3.0, -1.0], [0.25, 0.75, 2.0]], np.float32)
lines = ANSWERED.strip().splitlines()
refused = [use.strip() for line in REFUSED.strip().splitlines() for use in line.split(";")]


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Return the loaded functions of a text."""

    def load(text):
        path = tmp_path_factory.mktemp("selections") / "source.py"
        path.write_text("import torch\nimport torch.nn.functional as F\n\n" + text)
        return torch.load(path)

    return load


HELPERS = """
def set_item(y, index, value): y[index] = value
def first_column(y): y[:, 0] += 2 * y[:, 1]
def changed(y):
    mask = y > 0
    y[mask] *= 10
    y[mask] += y[mask] * 2
    y[y < 0] /= 4
def sizes(s): return s.sum() / len(s) if len(s) > 1 else s.max()
def count_answers(s):
    return torch.is_tensor(s) + isinstance(s, torch.Tensor) + (type(s) is torch.Tensor) + (s is not None)
def rows(y): y[y[:, 0] > 0] = y[y[:, 0] > 0].sum(1, keepdim=True)
def written(y, change):
    y = y.clone()
    change(y)
    return y
def of(function):
    return lambda x, m: function(x, m, x[x > 0], m[m[:, 0] > 0])
"""


def expressions(load, texts):
    functions = "".join(f"    of(lambda x, m, s, r: ({text})),\n" for text in texts)
    return [torch.jax_view(f) for f in load(f"{HELPERS}\nFUNCTIONS = [\n{functions}]\n").FUNCTIONS]


def check(text, found, expected):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected), text
    for a, b in zip(found, expected, strict=True):
        assert np.shape(a) == np.shape(b), text
        assert np.asarray(a).dtype.kind == np.asarray(b).dtype.kind, text
        np.testing.assert_allclose(a, b, rtol=1e-5, err_msg=text)


@pytest.mark.slow
def test_uses_that_are_answered(load):
    """Each expression has under jit the value that it has without, where the selection is a tensor."""
    functions = expressions(load, lines)
    compiled = jax.jit(lambda x, m: [f(x, m) for f in functions])
    for x, m in [(X, M), (X[::-1].copy(), M[::-1].copy())]:
        for text, f, found in zip(lines, functions, compiled(x, m), strict=True):
            check(text, found, f(x, m))


def test_uses_that_are_refused(load):
    """Uses that need the number of elements say so, with the line; none takes all elements for those selected."""
    for text, f in zip(refused, expressions(load, refused), strict=True):
        with pytest.raises(torch.NotSupported, match=r"fix: [\s\S]*at: "):
            pytest.fail(f"{text} is {jax.eval_shape(f, X, M)}")


def test_what_pytorch_raises_for_is_nan(load):
    """No element has no maximum, and operands of other sizes do not fit; without a maximum, PyTorch's own values."""
    answered = [
        "s.sum(), s.prod(), s.norm(), s.logsumexp(0), s.count_nonzero(), s.numel(), r.sum(0), r.sum(1).sum()",
        "(s > 3).all(), s.mean(), s.var(), s.std(), s.var(correction=0), r.mean(0), F.mse_loss(s, s)",
        "x.masked_scatter(x > 0, s)",
    ]
    raising = [
        "s.max(), s.amin(), s.max(0).values, s.norm(float('inf'))",
        "(s * torch.tensor([1.0, 2.0])).sum(), written(x, lambda y: set_item(y, y > 0, torch.tensor([1.0, 2.0])))",
        "written(x, lambda y: set_item(y, y > 0, y[y < 0])), x.masked_scatter(x < -4, s)",
    ]
    functions, raise_ = expressions(load, answered), expressions(load, raising)
    compiled = jax.jit(lambda x, m: ([f(x, m) for f in functions], [f(x, m) for f in raise_]))
    found, nans = compiled(-np.abs(X) - 1, -np.abs(M))
    for text, f, value in zip(answered, functions, found, strict=True):
        check(text, value, f(-np.abs(X) - 1, -np.abs(M)))
    for text, values in zip(raising, nans, strict=True):
        assert all(np.isnan(value).all() for value in values), text


GRADIENTS = """
def sqrt(x): return x[x > 0].sqrt().sum()
def reciprocal(x): return (1 / x[x != 0]).sum()
def shifted(x):
    s = x.max() / 4
    return (x[x > s] - s).sqrt().sum()
def in_place(x):
    y = x * 1
    y[y > 0] = y[y > 0].sqrt()
    return y.sum()
def reduced(x): v = x[x > 0]; return v.max() + v.norm() + v.std() + v.logsumexp(0) + v.prod() + (v.softmax(0) * v).sum()
def scanned(x): return x[x > 0].cumsum(0).square().sum() + (x[torch.where(x > 0)] ** 2).sum()
def masked_twice(x):
    v = x[x > 0]
    v[v < 3] *= 2
    return (v[v > 3] ** 2).sum() + v.sum()
def with_sizes(x): return (x[x > 0] * torch.tensor([1.0, 2.0, 3.0])).square().sum()
def branched(x):
    v = x[x > 0] if x[0] > 0 else x[x < 0]
    w = x
    if x[0] < 0:
        w = x[x < 0]
    if x[x > 0].numel() > 2:
        v = v * 2
    while x[x > 0].sum() > 100:
        x = x / 2
    return v.square().mean() + w.sum()
class Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        v = x[x > 0]
        ctx.save_for_backward(v, x)
        ctx.listed = [v * 2]
        return (v ** 3).sum()
    @staticmethod
    def backward(ctx, g):
        v, x = ctx.saved_tensors
        r = torch.zeros_like(x)
        r[x > 0] = 3 * v * ctx.listed[0] / 2
        return g * r
def losses(x):
    mask = x > -1
    first, second = x[mask], (x * 3).detach()[mask]
    return F.mse_loss(first, second) + F.l1_loss(first, second, reduction="sum")
def saved(x): return Saved.apply(x)
def grad_within(x):
    w = x.detach().clone().requires_grad_()
    (w[w > 0] ** 2).sum().backward()
    return (w.grad * x).sum()
"""
RESULTS = """
class Result(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x[x > 0]
    @staticmethod
    def backward(ctx, g):
        r = torch.zeros_like(ctx.saved_tensors[0])
        r[ctx.saved_tensors[0] > 0] = g
        return r
class Second(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: (x * 2, x[x > 0]))
    backward = staticmethod(lambda ctx, g, h: g * 2)
class Returned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, g): return g[ctx.saved_tensors[0] > 0]
def result(x): return Result.apply(x).sum()
def second(x): return Second.apply(x)[0].sum()
def argument(x): return Second.apply(x[x > 0])[0].sum()
def gradient(x): return Returned.apply(x).sum()
def carried(x):
    v = x[x > 0]
    while v.sum() > 1:
        v = v / 2
    return v.sum()
"""


@pytest.mark.slow
def test_gradients(load):
    """Selected elements have their gradient; the rest get zero, also where the function has no derivative."""
    loaded = load(GRADIENTS)
    names = [name for name in vars(loaded) if name.islower() and not name.startswith("_") and name != "torch"]
    functions = [jax.value_and_grad(torch.jax_view(getattr(loaded, name))) for name in names]
    compiled = jax.jit(lambda x: [f(x) for f in functions])
    for x in (X, X[::-1].copy()):
        for name, f, found in zip(names, functions, compiled(x), strict=True):
            check(name, found, f(x))


@pytest.mark.parametrize("name", ["result", "second", "argument", "gradient", "carried"])
def test_selections_that_would_need_an_array_are_refused(load, name):
    """As result, argument or gradient of a Function, and as what a loop carries."""
    function = torch.jax_view(getattr(load(RESULTS), name))
    with pytest.raises(torch.NotSupported, match="what a traced mask selects"):
        jax.eval_shape(jax.grad(function), X)


# Names that take no tensors, that change settings or draw random numbers, or that are stand-ins.
OTHERS = (
    "seed",
    "save",
    "load",
    "set_",
    "distri",
    "cuda",
    "rng",
    "vmap",
    "utils",
    "jit",
    "func.",
    "autograd",
    "modules",
)
OTHERS += (
    "version",
    "backends",
    "fx.",
    "device",
    "mode",
    "compile",
    "optim",
    "library",
    "fork",
    "Size",
    "random",
    "onnx",
)
OTHERS += ("grad", "ops.", "_dynamo", "sparse", "hub", "overrides", "data_ptr", "storage")


def list_calls(x, m, select):
    """Return arguments, with what a mask selects in place of tensors; select takes a tensor and which mask it is."""
    x, m = torch.torch_view((x, m))
    s, b, i, r = (select(t, k) for t, k in ((x, 0), (x > 3, 0), (torch.arange(5), 0), (m, 1)))
    t, z = torch.tensor([2.0, 0.5, 1.5]), torch.tensor(2.0)
    several = [(s,), (s, s), (s, 2.0), (s, 0), (s, t), (t, s), (s, z), (s, 1.0, 2.0), (s, b), (s, b, 0.0), (s, b, s)]
    rows = [(r,), (r, 0), (r, 1), (r, 1, True), (r, (0, 1)), (r, r), (r, t), (r, (3,)), (r, 1, 0)]
    return [*several, (b, s, s), *rows, ([s, s],), (s, -1), (i,), (i, 2), (b,), (m, s), (s, "x"), (s, torch.float64)]


def list_functions():
    """Return the functions and methods by name, each operation of the table once."""
    found = {}
    for name in {**TABLE, **KNOWN}:
        operation = TABLE.get(name, KNOWN.get(name))
        is_line = isinstance(operation, Operation) and name not in KNOWN
        if any(other in name for other in OTHERS) or (is_line and (not operation.called or operation.inplace)):
            continue
        method = name.removeprefix("torch.Tensor.")
        function = find(name) if method == name else lambda x, *args, m=method: getattr(x, m)(*args)
        if callable(function) and not isinstance(function, (type, Deferred)):
            found.setdefault(id(operation.overloads) if is_line else name, (name, function))
    return list(found.values())


def attempt(function, args):
    """Return a result and the first argument, or the exception."""
    try:
        return function(*args), args[0]
    except Exception as e:  # noqa: BLE001 - it is compared
        return e


def take_apart(value):
    """Return a result without tensors: of a selection the arrays and the axis."""
    if type(value) is Selection:
        return {"fits": np.bool_(True) if value.fits is None else value.fits.array, "at": np.int32(value.at)} | {
            "whole": value.whole.array,
            "mask": value.mask.array,
        }
    if isinstance(value, Deferred):  # the index of a maximum
        return "refused"
    if isinstance(value, (list, tuple)):
        return [take_apart(v) for v in value]
    return value.array if isinstance(value, Tensor) else value


def compress(value):
    """Return the elements of a selection, NaN where numbers of elements do not fit; other results as they are."""
    if not isinstance(value, dict):
        return value
    return np.compress(value["mask"], value["whole"], value["at"]) if value["fits"] else np.full(1, np.nan)


def agrees(found, expected):
    """Return whether a result is as expected, or NaN where PyTorch raises."""
    found, expected = map(compress, (found, expected))
    if isinstance(expected, Exception):
        return all(np.isnan(x).all() for x in (found if isinstance(found, list) else [found]))
    if isinstance(found, list):
        return len(found) == len(expected) and all(map(agrees, found, expected))
    if isinstance(found, np.ndarray):  # a size is a traced number
        same = found.shape == np.shape(expected) and np.asarray(expected).dtype.kind == found.dtype.kind
        return same and np.allclose(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    return found in (expected, "refused") or type(found) is type(expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_each_operation_knows_selections_or_refuses_them():
    """No function of torch, and no method of tensors, takes the whole tensor for what a mask selects."""
    kept = [np.flatnonzero(X > 0).tolist(), np.flatnonzero(M[:, 0] > 0).tolist()]
    names, others = [], []

    def run(x, m):
        results, unknown, masks = [], None, torch.torch_view((x > 0, m[:, 0] > 0))
        for name, function in list_functions():
            if unknown is None or name.endswith("_"):  # it may write to them
                unknown = list_calls(x, m, lambda t, k: t[masks[k]])
                known = list_calls(x, m, lambda t, k: t[kept[k]])
            answers = 0
            for j, (selected, plain) in enumerate(zip(unknown, known, strict=True)):
                found = attempt(function, selected) if answers < 3 else None
                if found is None or isinstance(found, (torch.NotSupported, TypeError)):
                    continue
                expected = attempt(function, plain)
                if isinstance(found, Exception) or isinstance(expected, torch.NotSupported):
                    assert isinstance(expected, Exception), (name, j, found)  # of a size that only here is known
                    continue
                answers += not isinstance(expected, Exception)
                both = [take_apart(found[0]), take_apart(found[1])], take_apart(expected)
                leaves, tree = jax.tree.flatten(both)
                is_array = [isinstance(x, (jax.Array, np.generic)) for x in leaves]
                names.append((name, j))
                others.append((tree, [None if a else x for x, a in zip(leaves, is_array, strict=True)]))
                results.append([x for x, a in zip(leaves, is_array, strict=True) if a])
        return results

    results = jax.jit(run)(jnp.asarray(X), jnp.asarray(M))
    assert len(names) > 250
    wrong = []
    for name, arrays, (tree, rest) in zip(names, results, others, strict=True):
        given = map(np.asarray, arrays)
        found, expected = jax.tree.unflatten(tree, [next(given) if x is None else x for x in rest])
        if not agrees(found, expected):
            wrong.append((name, found, expected))
    assert not wrong, "\n".join(map(str, wrong))


def test_reductions_of_selected_rows():
    """A reduction of the rows that a traced mask selects takes its axis: the rows' own, or that of the entries."""

    def reduced(x):
        rows = x[x[:, 0] > 0]
        return rows.sum(0), rows.mean(dim=0, keepdim=True), rows.sum(1).sum(), rows.std(-2)

    x = np.array([[1.0, 2.0], [-3.0, 4.0], [5.0, -6.0], [2.0, 1.0]], np.float32)
    rows = x[x[:, 0] > 0]
    expected = rows.sum(0), rows.mean(0, keepdims=True), rows.sum(), rows.std(0, ddof=1)
    for found, wanted in zip(jax.jit(torch.jax_view(reduced))(x), expected, strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_selections_by_traced_masks():
    """The selection by a traced mask can be computed with, summed and written back; its size is refused."""

    def scale(x):
        y = x.clone()
        y[x > 0] = x[x > 0] * 10
        return y, x[x > 0].sum()

    x = jnp.array([1.0, -2.0, 3.0])
    y, total = jax.jit(torch.jax_view(scale))(x)
    np.testing.assert_array_equal(y, [10.0, -2.0, 30.0])
    assert total == 4.0
    with pytest.raises(torch.NotSupported, match=r"torch\.reshape of what a traced mask selects"):
        jax.jit(torch.jax_view(lambda x: x[x > 0].view(2, 1)))(x)


def _write_selected(x, w, where):
    y = x * 1
    y[:, x[0] > 0] *= 2  # next to a slice
    y[x[:, 1] > 0, 0] = 7  # and to an integer
    at = where(x > 1)
    y[at] = y[at] * 3 + x[at]
    y[where(x.sum(1) > 0)[0]] -= 1
    y[(x + 1) * 2 > 1] += x[(x + 1) * 2 > 1]  # one mask, computed twice
    y[x < 0] = y[x < 0] * w  # a value for each entry
    part = x[x[:, 0] > 0]
    y[x[:, 0] > 0] = part.cumsum(1) + (part.max(1, keepdim=True)[0] if where is torch.where else part.max(1)[:, None])
    return y, y[:, x[1] > 0].sum()


def test_indices_and_masks_next_to_others():
    """Traced masks next to slices, indices that nonzero finds, masks that are equal: as NumPy has them."""
    x = np.array([[1.5, -2.0, 0.5], [0.25, 3.0, -1.0], [-0.5, 0.75, 2.0]], np.float32)
    w = np.array([2.0, 3.0, 4.0], np.float32)
    found = jax.jit(torch.jax_view(lambda x, w: _write_selected(x, w, torch.where)))(x, w)
    for a, b in zip(found, _write_selected(x, w, np.where), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    # Another number of values than of entries: PyTorch raises, and no number hides that.
    assert np.isnan(jax.jit(torch.jax_view(lambda x, w: (x[x > 0] * w).sum()))(x, w[:2]))
    with pytest.raises(torch.NotSupported, match="two different traced masks"):
        jax.eval_shape(torch.jax_view(lambda x: (x[x > 0] * x[x > 1]).sum()), x)
    assert jax.jit(torch.jax_view(lambda x: x[x > 0].ndim + x[x > 0].numel()))(x) == 7
