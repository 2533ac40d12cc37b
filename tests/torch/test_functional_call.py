"""functional_call and stateful_call: a module as a pure function of its parameters and buffers."""

import collections
import functools
import itertools
import sys
import threading
import types
import weakref
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from fnjax import torch

nn, F = torch.nn, torch.nn.functional
SOURCE = """
import torch
from torch import nn

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return 2 * g * w, (g * x).sum(0)

class Normed(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.scale = nn.Parameter(torch.full((n,), 2.0), requires_grad=False)
        self.register_buffer("mean", torch.zeros(n))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x):
        m = x.mean(0)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * m)
        self.count += 1
        self.weight.data.clamp_(-0.5, 0.5)
        return Twice.apply(x - m, self.weight) * self.scale
"""


@jax.custom_vjp
def twice(x, w):
    return x * w


twice.defvjp(lambda x, w: (x * w, (x, w)), lambda saved, g: (2 * g * saved[1], (g * saved[0]).sum(0)))


def twin(state, x):
    """Return what Normed computes, in plain JAX: output, mean, count, weight."""
    m = x.mean(0)
    mean = jax.lax.stop_gradient(0.9 * state["mean"] + 0.1 * m)
    w = state["weight"]
    w = w + jax.lax.stop_gradient(jnp.clip(w, -0.5, 0.5) - w)
    scale = jax.lax.stop_gradient(state["scale"])
    return twice(x - m, w) * scale, {"mean": mean, "count": state["count"] + 1, "weight": w}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("modules") / "normed.py"
    path.write_text(SOURCE)
    return torch.load(path).Normed(3)


X = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32)
STATE = {
    "weight": jnp.asarray([0.25, 1.0, -3.0], jnp.float32),
    "scale": jnp.asarray([1.0, 2.0, 3.0], jnp.float32),
    "mean": jnp.asarray([1.0, 2.0, 3.0], jnp.float32),
    "count": jnp.asarray(3, jnp.int32),
}


def scanned(call):
    def run(state, x):
        def step(state, x):
            y, new = call(state, x)
            return {**state, **new, "count": new["count"].astype(jnp.int32)}, y

        state, y = jax.lax.scan(step, state, jnp.stack([x, x + 1, x * 2]))
        return y, state

    return run


def sharded(call):
    mesh = jax.make_mesh((1,), ("i",))
    return jax.shard_map(call, mesh=mesh, in_specs=(P(), P()), out_specs=P())


TRANSFORMS = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "vmap": lambda f: jax.vmap(f, (0, None)),
    "scan": scanned,
    "remat": jax.checkpoint,
    "shard_map": sharded,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_stateful_call_equals_plain_jax(model, transform):
    """Outputs, new state and gradients are those of the same layer in plain JAX, under each transform."""
    state = STATE
    if transform == "vmap":
        state = jax.tree.map(lambda a: jnp.stack([a, a * 2]), STATE)

    def loss(call, state, x):
        parts = {k: v for k, v in state.items() if k in {"weight", "scale"}}
        rest = {k: v for k, v in state.items() if k not in parts}

        def inner(parts, x):
            y, new = TRANSFORMS[transform](call)({**parts, **rest}, x)
            return (y**2).sum(), (y, new)

        return jax.value_and_grad(inner, (0, 1), has_aux=True)(parts, x)

    def call(state, x):
        return torch.func.stateful_call(model, state, (x,))

    found, wanted = (jax.jit(functools.partial(loss, f))(state, X) for f in (call, twin))
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
    np.testing.assert_array_equal(model.mean.numpy(), 0)
    np.testing.assert_array_equal(model.weight.detach().numpy(), 1)


def test_functional_call_as_the_guide_has_it(model):
    """`dict(model.named_parameters())` is a pytree for jax.grad; the module keeps its values."""
    params = dict(model.named_parameters())
    gradient = jax.jit(jax.grad(lambda p, x: torch.func.functional_call(model, p, (x,)).mean()))(params, X)
    np.testing.assert_allclose(gradient["weight"], (X - X.mean(0)).sum(0) * 2 / 12, atol=1e-6)
    np.testing.assert_array_equal(gradient["scale"], 0)
    assert model.count.item() == 0


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.ones(3))
        self.second = self.first
        self.view = self.first.view(3, 1)

    def forward(self, x):
        return (x * self.first).sum() * self.second.sum() + self.view.sum()


def test_shared_parameters_go_by_their_first_name():
    """A shared parameter is one name, a view of it that was made before follows it; two values for it raise."""
    model = Tied()
    assert list(dict(model.named_parameters())) == ["first"]
    call = functools.partial(torch.func.functional_call, model)
    w, x = jnp.asarray([1.0, 2.0, 4.0], jnp.float32), jnp.asarray([3.0, 5.0, 7.0], jnp.float32)
    value, gradient = jax.value_and_grad(lambda w: call({"first": w}, (x,)))(w)
    assert value == (x * w).sum() * w.sum() + w.sum()
    np.testing.assert_allclose(gradient, x * w.sum() + (x * w).sum() + 1)
    with pytest.raises(ValueError, match="got values for both"):
        call({"first": w, "second": w + 1}, (x,))
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\): 'third'"):
        call({"third": w}, (x,))


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None
        self.calls = 0
        self.seen = []

    def forward(self, x):
        self.calls += 1
        self.last = x if self.last is None else self.last + x
        self.seen.append(x)
        return self.last * self.calls


def test_attributes_are_left_as_they_were_and_named():
    """Assignments of forward to Python attributes are undone with a warning; those to a buffer last."""
    model = Remembers()
    with pytest.warns(UserWarning, match=r"'last' and 'calls' and 'seen', which functional_call leaves as it was"):
        assert jax.jit(lambda x: torch.func.functional_call(model, {}, (x,)))(3.0 * jnp.ones(())) == 3
    assert (model.last, model.calls, model.seen) == (None, 0, [])
    del model.last, model.calls
    model.seen = collections.deque(maxlen=0)
    model.register_buffer("last", torch.zeros(()))
    model.register_buffer("calls", torch.tensor(0))
    step = jax.jit(lambda state, x: torch.func.stateful_call(model, state, (x,)))
    state = {}
    for wanted in (3.0, 12.0, 27.0):
        y, state = step(state, 3.0 * jnp.ones(()))
        assert y == wanted


class Assigned(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.scale = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x):
        kept = self.weight.data
        self.weight.data = self.weight.data.clamp(-0.5, 0.5)
        self.scale.data = x * 2
        y = (x * self.weight**2).sum() + (self.scale * x).sum()
        self.weight.data = kept
        return y + self.weight.sum()


@pytest.mark.parametrize("how", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_data_that_is_replaced_in_forward(how):
    """Assigning `.data` leaves the gradient at the value that is read, and what is assigned is a constant."""
    model = Assigned()
    w, x = jnp.asarray([0.25, 1.0, -3.0], jnp.float32), jnp.asarray([3.0, 5.0, 7.0], jnp.float32)
    call = how(jax.value_and_grad(lambda w, x: torch.func.functional_call(model, {"weight": w}, (x,)), (0, 1)))
    value, (for_w, for_x) = call(w, x)
    clipped = np.clip(w, -0.5, 0.5)
    np.testing.assert_allclose(value, (x * clipped**2).sum() + (2 * x * x).sum() + w.sum())
    np.testing.assert_allclose(for_w, 2 * x * clipped + 1)
    np.testing.assert_allclose(for_x, clipped**2 + 2 * x)
    np.testing.assert_array_equal(model.weight.detach().numpy(), 1)
    np.testing.assert_array_equal(model.scale.numpy(), 1)


def test_a_plain_call_under_jit_does_not_lose_state(model):
    """A write to a buffer while JAX traces a plain call is an error that names it, and leaves the module whole."""
    with pytest.raises(torch.NotSupported, match=r"Normed.forward writes to 'weight' while JAX traces it"):
        jax.jit(model)(X)
    np.testing.assert_array_equal(model.mean.numpy(), 0)


def test_tensors_in_tensors_out_with_their_history(model):
    """Given tensors, the result has their history: gradients reach the tensors that were passed."""
    fast = {"weight": torch.ones(3, requires_grad=True)}
    out = torch.func.functional_call(model, {"weight": fast["weight"] * 0.25}, (torch.tensor(np.asarray(X)),))
    (found,) = torch.autograd.grad(out.sum(), [fast["weight"]])
    np.testing.assert_allclose(found.numpy(), np.asarray((X - X.mean(0)).sum(0) * 2 * 0.25), atol=1e-6)


def lead_to(layer):
    """Return functions that read a layer's weight, each over another path to it."""
    w = layer.weight

    def recursive(n):
        return recursive(n - 1) if n else w

    def named(*, by=w):
        return by

    named.kept = w
    kept = collections.OrderedDict([("a", w), ("b", layer)])
    kept.move_to_end("a")
    pair = collections.namedtuple("pair", "tensor module")(w, (layer, 1))  # noqa: PYI024 - a class of no own file

    class Holder:
        __slots__ = ("__hidden", "module")

        def __init__(self):
            self.__hidden, self.module = w, layer

        def read(self, method):
            return self.__hidden * self.module.weight if method else w

    holder = Holder()

    class Own(list):
        def __iter__(self):
            raise AssertionError

    own = Own([w])
    own.layer = layer

    class Static:
        @staticmethod
        def read():
            return layer.weight

    return {
        "closure": lambda: layer.weight,
        "closure of a closure": functools.partial(recursive, 2),
        "default": lambda by=w: by,
        "keyword default": named,
        "attribute of a function": lambda: named.kept,
        "method": layer.read,
        "partial": functools.partial(layer.read, layer),
        "ordered dict": lambda: kept["b"].weight if list(kept) == ["b", "a"] else kept,
        "namedtuple": lambda: pair.tensor * pair.module[0].weight / w,
        "object with slots": lambda: holder.read(method=True) / w,
        "method of an object": functools.partial(holder.read, False),
        "subclass of list": lambda: list.__getitem__(own, 0) * own.layer.weight / w,
        "class": Static.read,
        "weak reference": weakref.ref(layer),
        "weak proxy": functools.partial(getattr, weakref.proxy(layer), "weight"),
        "key": {layer: 1},
        "set": {w},
        "deque": collections.deque([w], maxlen=2),
        "view": w.view(1, 3),
        "detached": w.detach(),
        "parent": [[layer]],
    }


def resolve(path):
    """Return the weight that a path leads to."""
    if isinstance(path, torch.Tensor):
        return path
    if isinstance(path, nn.Module):
        return path.weight
    return resolve(path() if callable(path) else next(iter(path)))


class Led(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.below = nn.Identity()
        self.paths = lead_to(self)
        self.below.above = [self]
        self.below.register_forward_hook(lambda m, args, out: out * m.above[0].weight * self.weight)

    def read(self, other=None):
        return self.weight if other is None else other.weight

    def forward(self, x):
        found = {"hook": self.below(x) / x / self.weight}
        found |= {name: resolve(path).reshape(3) for name, path in self.paths.items()}
        return found


@pytest.mark.parametrize("how", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("form", ["functional_call", "pytree"])
def test_whatever_leads_to_the_module_leads_to_its_copy(form, how):
    """Closures, methods, objects, containers and views that a module keeps read the values of the call."""
    model, x = Led(), jnp.ones(3)

    def call(w):
        if form == "pytree":
            return jax.tree.unflatten(jax.tree.structure(model), [w])(x)
        return torch.func.functional_call(model, {"weight": w}, (x,))

    w = jnp.asarray([1.0, 2.0, 4.0])
    found, gradient = how(lambda w: (call(w), jax.grad(lambda w: sum(y.sum() for y in call(w).values()))(w)))(w)
    for name, value in found.items():
        np.testing.assert_allclose(value, w, rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(gradient, len(found) - 1, rtol=1e-6)  # all but the detached one
    np.testing.assert_array_equal(model.weight.detach().numpy(), 1)


UNSEEN = {
    "global": lambda layer: UNSEEN["layer"].weight,
    "parameters": lambda layer: next(UNSEEN["layer"].parameters()).sum(),
    "iterator": lambda layer: next(layer.steps).weight,
    "cache": lambda layer: layer.cached(),
    "written": lambda layer: UNSEEN["layer"].state.add_(1),
    "view": lambda layer: UNSEEN["layer"].view.sum(),
    "result": lambda layer: UNSEEN["layer"].weight,
}


class Unseen(nn.Module):
    def __init__(self, path):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.view = self.weight[1:]
        self.register_buffer("state", torch.zeros(3))
        self.steps = itertools.cycle([self])
        self.cached = functools.lru_cache(lambda: self.weight * 1)
        self.path = path

    def forward(self, x):
        found = UNSEEN[self.path](self)
        return found if self.path == "result" else found * x


@pytest.mark.parametrize("path", [*UNSEEN])
def test_a_read_of_the_module_itself_is_refused(path):
    """Reads of the module in place of its copy, over a path that is not followed, raise; a plain call is right."""
    UNSEEN["layer"] = model = Unseen(path)
    values = {"weight": jnp.full(3, 2.0)}
    for call in (
        lambda v: torch.func.functional_call(model, v, (jnp.ones(3),)),
        lambda v: torch.func.functional_call(model, jax.tree.map(torch.tensor, v), (torch.ones(3),)),
        lambda v: jax.tree.unflatten(jax.tree.structure(model), [v["weight"], jnp.zeros(3)])(jnp.ones(3)),
    ):
        for how in (lambda f: f, jax.jit):
            with pytest.raises(
                torch.NotSupported, match=r"Unseen.forward reads a tensor of shape \(3,\) of the module"
            ):
                how(call)(values)
    np.testing.assert_array_equal(model(jnp.ones(3)), {"parameters": 3, "view": 2}.get(path, 1))
    given = torch.func.functional_call(Tied(), {"first": torch.full((3,), 2.0)}, (model.weight,))
    assert given.item() == 42  # a tensor of the module that is an argument may be read


CHOSEN = """
import torch
from torch import nn

class Chosen(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.parts = nn.Parameter(torch.ones(3)), [torch.ones(3), torch.zeros(3)]

    def forward(self, x, own=None):
        y = x
        if x.sum() > 0:
            y = self.weight if own is None else own.weight
        return y * 2 + [x, x + 1][(x.sum() > 0).long()]
"""


def test_a_tensor_that_a_traced_test_chooses_is_read_in_a_call(tmp_path):
    """Its memory is that of several tensors; one of the module itself among them is refused."""
    (tmp_path / "chosen.py").write_text(CHOSEN)
    model = torch.load(tmp_path / "chosen.py").Chosen()
    call = jax.jit(lambda w, x: torch.func.functional_call(model, {"weight": w}, (x,)))
    for sign, wanted in ((1.0, [8, 8, 8]), (-1.0, [-3, -3, -3])):
        np.testing.assert_array_equal(call(jnp.full(3, 3.0), jnp.full(3, sign)), wanted)
    own = types.SimpleNamespace(get=lambda: model)
    hidden = functools.lru_cache(own.get)
    kept = type("Own", (), {"weight": property(lambda _: hidden().weight)})()
    with pytest.raises(torch.NotSupported, match="of the module itself"):
        jax.jit(lambda w, x: torch.func.functional_call(model, {"weight": w}, (x, kept)))(jnp.ones(3), jnp.ones(3))


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x):
        self.calls += 1
        return (x * self.weight + self.calls).sum()


def test_threads_call_one_module():
    """Eight threads call one module with parameters of their own, eager and jitted: each gets its result."""
    torch.ones(1) / 2  # imports what operations need: pytest parses modules that it imports, without our lock
    model, barrier = Counts(), threading.Barrier(8)
    plain = functools.partial(torch.func.stateful_call, model)

    def run(k):
        barrier.wait()
        for call in [plain, jax.jit(plain)] * 5:
            y, state = call({"weight": jnp.full(2, float(k))}, (jnp.ones(2),))
            yield float(y), state["calls"].tolist()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda k: [*run(k)], range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert found == [[(2.0 * k + 2, [1, 1])] * 10 for k in range(8)]
    np.testing.assert_array_equal(model.weight.detach().numpy(), 1)
    np.testing.assert_array_equal(model.calls.numpy(), 0)


class Hooked(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.by = nn.Parameter(torch.ones(2))
        self.layer = torch.nn.utils.skip_init(nn.Linear, 2, 2, bias=False)
        if kind == "closure":
            self.layer.register_full_backward_hook(lambda m, gi, go: (gi[0] * self.by,))
        elif kind == "module":
            self.layer.register_full_backward_hook(lambda m, gi, go: (gi[0] * m.weight.sum(),))
        else:
            self.layer.register_full_backward_pre_hook(lambda m, go: (go[0] * m.weight.sum() * self.by,))

    def forward(self, x):
        return (self.layer(x * 1) ** 2).sum()


@pytest.mark.parametrize("kind", ["closure", "module", "first"])
def test_backward_hooks_read_the_values_of_the_call(kind):
    """A backward hook that reads parameters reads those of the call, as one of a module that has them does."""
    with torch.seed(0):
        model, twin = Hooked(kind), Hooked(kind)
    values = {"by": jnp.asarray([3.0, 4.0]), "layer.weight": jnp.asarray([[1.0, 1.0], [0.0, 1.0]])}
    twin.load_state_dict(values)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    twin(x).backward()
    gradient = jax.grad(lambda v, x: torch.func.functional_call(model, v, (x,)), (0, 1))
    for how in (gradient, jax.jit(gradient)):
        for_values, for_x = how(values, jnp.asarray([1.0, 2.0]))
        np.testing.assert_allclose(for_x, x.grad.numpy(), rtol=1e-6)
        np.testing.assert_allclose(for_values["layer.weight"], twin.layer.weight.grad.numpy(), rtol=1e-6)


class Double(nn.Module):
    def forward(self, w):
        return w * 2


def test_cached_parametrizations_are_those_of_the_call():
    """Two calls within parametrize.cached() have parameters of their own, and each computes the tensor from its."""
    model = Tied()
    nn.utils.parametrize.register_parametrization(model, "second", Double())
    name, x = "parametrizations.second.original", jnp.ones(3)
    with nn.utils.parametrize.cached():
        found = [torch.func.functional_call(model, {name: jnp.full(3, k)}, (x,)) for k in (1.0, 2.0)]
    assert [float(y) for y in found] == [3 * 6 + 3, 6 * 12 + 6]


class Slopes(torch.nn.Module):
    """Module whose one buffer is a view, and another set in forward."""

    def __init__(self):
        super().__init__()
        self.register_buffer("slopes", torch.arange(2.0).reshape(2, 1))
        self.register_buffer("bias", None, persistent=False)

    def forward(self, x):
        if self.bias is None:
            self.bias = self.slopes * 10
        return x + self.bias


def test_buffers_that_forward_sets_are_state():
    """A call takes the state that the one before returned; a name that no module registers stays an error."""
    model, x = Slopes(), jnp.ones((2, 1))
    y, new = torch.func.stateful_call(model, {}, (x,))
    again, _ = torch.func.stateful_call(model, {**new, "bias": new["bias"] + 1}, (x,))
    assert model.bias is None
    assert y.ravel().tolist() == [1, 11]
    assert again.ravel().tolist() == [2, 12]
    with pytest.raises(RuntimeError, match="Unexpected key"):
        torch.func.stateful_call(model, {"other": x}, (x,))


def test_objects_that_no_module_owns_keep_what_a_call_changes():
    """Lists, variables and objects that a hook closes over besides the module change, as PyTorch's do."""
    model, outputs, count = Tied(), [], 0
    outputs += [model.first]  # leads to the module
    holder = types.SimpleNamespace(model=model, calls=0)

    def hook(module, args, out):
        nonlocal count
        count += int(holder.model is module)
        holder.calls += 1
        outputs.append(out + 0 * outputs[0].sum())

    model.register_forward_hook(hook)
    for k in (1.0, 2.0):
        torch.func.functional_call(model, {"first": jnp.full(3, k)}, (jnp.ones(3),))
    assert (count, holder.calls, holder.model is model, outputs[0] is model.first) == (2, 2, True, True)
    assert [y.item() for y in outputs[1:]] == [12, 42]


class Collects(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.first, self.second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
        self.register_buffer("rows", torch.from_numpy(np.ones(2, np.float32)))
        self.shown = self.rows.numpy() if kind == "shows" else None

    def forward(self, x):
        (x * self.first * self.second).sum().backward()
        return self.first.grad + self.second.grad


@pytest.mark.parametrize("kind", ["collects", "shows"])
def test_what_a_copy_cannot_follow_is_refused(kind):
    """Gradients that forward collects in the module's own parameters, and NumPy arrays that show their memory."""
    model, given = Collects(kind), torch.full((2,), 3.0, requires_grad=True)
    with pytest.raises(
        torch.NotSupported, match=r"of the module itself" if kind == "collects" else "NumPy array shows"
    ):
        torch.func.functional_call(model, {"first": given}, (torch.ones(2),))
    assert model.second.grad is None
    if kind == "collects":  # arrays have no graph that goes on outside: the copy's parameters collect
        found = torch.func.functional_call(model, {"first": jnp.full(2, 3.0)}, (jnp.ones(2),))
        np.testing.assert_array_equal(found, 4)
        assert model.second.grad is None


def test_stacked_modules_are_the_modules():
    """Slices of what stack_module_state stacks are the modules, under vmap and scan; what differs raises as PyTorch."""
    with torch.seed(0):
        blocks = [torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).eval() for _ in range(3)]
    x = jnp.linspace(-1.0, 1.0, 6, dtype="float32").reshape(2, 3)
    params, buffers = torch.func.stack_module_state(blocks)
    assert params["0.weight"].requires_grad
    assert params["0.weight"].is_leaf
    assert not buffers["1.running_mean"].requires_grad
    states = torch.jax_view((params, buffers))

    def call(state, x):
        return torch.func.functional_call(blocks[0], state, (x,))

    each = jax.vmap(call, (0, None))(states, x)
    assert np.allclose(each, np.stack([block(x) for block in blocks]), rtol=1e-6)
    scanned, _ = jax.lax.scan(lambda x, state: (call(state, x), None), x, states)
    assert np.allclose(scanned, blocks[2](blocks[1](blocks[0](x))), rtol=1e-6)
    for models, message in [
        ([], "Expected at least one model"),
        ([blocks[0], torch.nn.Identity().eval()], "same class"),
        ([blocks[0], torch.nn.Sequential().train()], "same training/eval mode"),
        ([blocks[0], torch.nn.Sequential(*blocks[1]).requires_grad_(False).eval()], "same .requires_grad"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            torch.func.stack_module_state(models)


class Residual(torch.nn.Module):
    """A block with a buffer that forward writes to, and random numbers."""

    def __init__(self, n, p=0.0):
        super().__init__()
        self.linear, self.drop = torch.nn.Linear(n, n), torch.nn.Dropout(p)
        self.register_buffer("mean", torch.zeros(n))

    def forward(self, x, scale):
        if self.training:
            self.mean.mul_(0.5).add_(0.5 * x.mean(0))
        return x + self.drop(torch.tanh(self.linear(x - self.mean))) * scale


class Residuals(torch.nn.Module):
    """Such blocks, called by a function."""

    def __init__(self, blocks, call):
        super().__init__()
        self.blocks, self.call = blocks, call

    def forward(self, x, scale):
        return self.call(self.blocks, x, scale)


def make_residuals(n=3, **options):
    with torch.seed(0):
        return torch.nn.ModuleList([Residual(4, **options) for _ in range(n)])


def call_blocks(blocks, x, scale):
    for block in blocks:
        x = block(x, scale)
    return x


CARRIED = jnp.linspace(-1.0, 2.0, 20, dtype="float32").reshape(5, 4) ** 2
SCALE = jnp.linspace(0.5, 1.0, 4, dtype="float32")


def stack_states(states):
    """Return the stacked arrays of the states of blocks by the names of one block."""
    arrays = {name: jnp.asarray(getattr(value, "array", value)) for name, value in states.items()}
    if any(name.startswith("blocks.0.block") for name in arrays):
        return {name.removeprefix("blocks.0.block."): value for name, value in arrays.items()}
    names = [name.removeprefix("blocks.0.") for name in arrays if name.startswith("blocks.0.")]
    return {name: jnp.stack([arrays[f"blocks.{i}.{name}"] for i in range(3)]) for name in names}


@pytest.mark.slow
def test_scanned_blocks_are_a_loop_over_them():
    """Results, new buffers and gradients of scan_modules and StackedModules, by JAX and by torch.autograd."""
    loop = Residuals(make_residuals(), call_blocks)
    scan = Residuals(make_residuals(), lambda *args: torch.func.scan_modules(*args, checkpoint=True))
    stacked = Residuals(torch.nn.ModuleList([torch.nn.StackedModules(make_residuals())]), call_blocks)
    found = []
    for model in (loop, scan, stacked):
        params, buffers = torch.jax_view((dict(model.named_parameters()), dict(model.named_buffers())))

        def loss(params, buffers, x, scale, model=model):
            y, new = torch.func.stateful_call(model, {**params, **buffers}, (x, scale))
            return (y * jnp.cos(y)).sum(), new

        by_jax = jax.jit(jax.value_and_grad(loss, (0, 2, 3), has_aux=True))
        (value, new), (grads, *others) = by_jax(params, buffers, CARRIED, SCALE)
        found.append((value, stack_states(new), stack_states(grads), others))
        x = torch.torch_view(CARRIED).requires_grad_()
        y = model(x, torch.torch_view(SCALE))
        model.eval()  # what torch.autograd differentiates was called before
        (y * y.cos()).sum().backward()
        own = stack_states({name: p.grad for name, p in model.named_parameters()})
        found.append((value, stack_states(dict(model.named_buffers())), own, [x.grad.array, others[1]]))
    for each in found[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), each, found[0])


def test_scanned_blocks_are_traced_once_and_draw_apart():
    """The program does not grow with the blocks; each draws numbers of its own, the same ones in backward."""
    blocks = [torch.nn.Sequential(torch.nn.Dropout()) for _ in range(3)]
    ones = jnp.ones(2000)

    def draw(x, key, n=3, checkpoint=True):
        with torch.seed(key):
            return torch.func.scan_modules(blocks[:n], x, checkpoint=checkpoint)

    for checkpoint in (False, True):
        y, pullback = jax.vjp(lambda x, c=checkpoint: draw(x, jax.random.key(0), checkpoint=c), ones)
        assert 0.08 < float((y == 8).mean()) < 0.17  # an eighth, if they are independent
        np.testing.assert_array_equal(pullback(ones)[0], y)
    assert bool((draw(ones, jax.random.key(1)) != y).any())
    texts = []
    for n in (2, 5):
        model = torch.nn.StackedModules(make_residuals(n, p=0.5))
        params = torch.jax_view(dict(model.named_parameters()))

        def loss(params, key, model=model):
            with torch.seed(key):
                return torch.func.functional_call(model, params, (CARRIED, SCALE)).sum()

        texts.append(jax.jit(jax.grad(loss)).trace(params, jax.random.key(0)).lower().as_text())
    assert texts[0].count("\n") == texts[1].count("\n")


def test_blocks_that_cannot_be_scanned_are_refused():
    """Blocks that differ, by the first difference; other shapes; what a program of one block would lose."""
    scan = torch.func.scan_modules
    outside = torch.ones(4, requires_grad=True)
    shared, (first, longer), (kept, eval_mode) = make_residuals(1), make_residuals(2), make_residuals(2)
    longer.drop.p = 0.5
    eval_mode.drop.eval()
    with torch.seed(0):
        wide = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 5)]

    class Reads(torch.nn.Module):
        def forward(self, x):
            return x * outside

    for error, call, message in [
        (ValueError, lambda: scan([], CARRIED), "at least one module"),
        (ValueError, lambda: scan([first, longer], CARRIED, SCALE), r"0 and 1 differ: drop.p is 0.0 and 0.5"),
        (ValueError, lambda: scan([kept, eval_mode], CARRIED, SCALE), r"drop.training is True and False"),
        (ValueError, lambda: torch.nn.StackedModules([first, Reads()]), "__class__ is Residual and Reads"),
        (ValueError, lambda: scan(wide, CARRIED), r"out_features is 4 and 5"),
        (TypeError, lambda: scan(wide[1:], CARRIED), r"(?s)Linear.*expected: float32\[5, 4\].*got: float32\[5, 5\]"),
        (torch.NotSupported, lambda: scan([*shared] * 2, CARRIED, SCALE), "in blocks that share it"),
        (torch.NotSupported, lambda: scan([Reads(), Reads()], CARRIED), r"(?s)Reads.forward reads.*as an argument"),
        (torch.NotSupported, lambda: jax.jit(lambda x: scan([kept], x, SCALE))(CARRIED), "writes to '0.mean'"),
    ]:
        with pytest.raises(error, match=message):
            call()
    np.testing.assert_array_equal(scan(wide[:1] * 2, CARRIED), wide[0](wide[0](CARRIED)))


def test_a_buffer_with_a_history_is_given_as_any_other():
    """After a call that left a gradient's history in a buffer, the same state gives the same numbers."""
    block, given = make_residuals(1)[0], {"mean": torch.zeros(4)}
    x = torch.torch_view(CARRIED).requires_grad_()
    found = [block(x, 1.0) if i == 1 else torch.func.functional_call(block, given, (x, 1.0)) for i in range(3)]
    assert block.mean.requires_grad
    for y in found[1:]:
        np.testing.assert_array_equal(y.detach(), found[0].detach())


def test_a_module_that_is_called_in_the_place_of_its_parameters():
    """`model(x)` in a loss of `dict(model.named_parameters())` warns, also in a step under jit; nothing else does."""
    with torch.seed(0):
        model, teacher = nn.Linear(3, 2), nn.Linear(3, 2)
    params, x = dict(model.named_parameters()), jnp.ones(3, "float32")
    wrong = jax.grad(lambda p: model(x).sum())
    for call in (wrong, jax.jit(wrong)):
        with pytest.warns(
            UserWarning, match=r"Linear is called with its own parameters.*\('weight', 'bias'\).*zero here"
        ):
            assert not np.any(torch.jax_view(call(params))["weight"])
    right = jax.grad(lambda p: (torch.func.functional_call(model, p, (x,)) * teacher(x)).sum())
    for call in (right, jax.jit(right)):
        assert np.any(torch.jax_view(call(params))["weight"])
    assert jax.jit(model)(x).shape == (2,)
    assert jax.tree.structure(params) == jax.tree.structure(dict(teacher.named_parameters()))


@pytest.mark.usefixtures("young_heap")
@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint], ids=["jit", "checkpoint"])
def test_a_call_of_a_function_leaks_no_tracer(model, wrap):
    """JAX keeps the rule of a Function: it holds neither the copy's parameters nor the key of draws around it."""

    def loss(state, x, key):
        with torch.seed(key):
            y = torch.func.functional_call(model, state, (torch.torch_view(x),))
            return torch.jax_view(F.dropout(y, 0.5)).sum()

    state, x, key = torch.jax_view(model.state_dict()), jnp.ones((4, 3)), jax.random.key(0)
    state = {name: value for name, value in state.items() if name != "count"}
    with jax.checking_leaks():
        assert jax.grad(wrap(loss))(state, x, key)["weight"].shape == (3,)
