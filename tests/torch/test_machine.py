"""Devices, streams, seeds and flags of torch: what is asked of the machine has an answer that changes no result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch
from fnjax._torch_ops import TABLE, Absent
from fnjax._torch_ops.registry import KNOWN

CLASSES = ("SymInt", "fx.Proxy", "fx.proxy.Proxy", "fx.GraphModule", "jit.ScriptModule", "_subclasses.FakeTensor")


@pytest.mark.parametrize("name", CLASSES)
def test_no_instances(name):
    """Nothing is an instance of the classes of PyTorch's compilers, and none is made."""
    cls = torch
    for part in name.split("."):
        cls = getattr(cls, part)
    assert not isinstance(torch.ones(1), cls)
    assert not isinstance(torch.nn.ReLU(), cls)
    with pytest.raises(torch.NotSupported, match="machinery of PyTorch"):
        cls()


def test_names_have_one_answer():
    """Names that a port lacks are marked if fnjax.torch has them; dtypes and numbers are those that a port writes."""
    lacking = {name: found.runs for name, found in TABLE.items() if isinstance(found, Absent)}
    methods = {f"torch.Tensor.{name}" for name in dir(torch.Tensor)}
    assert {name for name, runs in lacking.items() if runs} == lacking.keys() & {*KNOWN, *methods}
    read = {name: found.first for name, found in TABLE.items() if name in KNOWN and not getattr(found, "called", True)}
    dtypes = {name: eval(line.template, {"jnp": jnp}) for name, line in read.items() if line.result == "dtype"}
    assert {name: KNOWN[name].numpy for name in dtypes} == {name: jnp.dtype(found) for name, found in dtypes.items()}
    assert len(dtypes) > 20
    for name in ("inf", "nan", "pi", "e", "newaxis"):
        np.testing.assert_equal(KNOWN[f"torch.{name}"], eval(read[f"torch.{name}"].template, {"jnp": jnp}))


def test_variables_are_tensors():
    """All tensors are instances of Variable, which makes a leaf of a tensor's data."""
    Variable = torch.autograd.Variable
    assert isinstance(torch.ones(1), Variable)
    assert isinstance(torch.nn.Parameter(torch.ones(1)), torch.autograd.variable.Variable)
    assert not isinstance(3.0, Variable)
    assert Variable(torch.ones(1), requires_grad=True).requires_grad
    assert not Variable(torch.ones(1), volatile=True).requires_grad
    with pytest.raises(torch.NotSupported, match="_execution_engine belongs to PyTorch's engine"):
        Variable._execution_engine.queue_callback(print)


def test_flags_and_streams():
    """Flags have one value whatever is set, streams are in order, and no time is measured."""
    torch.set_float32_matmul_precision("high")
    torch.use_deterministic_algorithms(True)
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_device_module("cuda").is_available()
    stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        event.record(stream)
    torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
    stream.wait_event(event)
    assert event.query()
    with pytest.raises(torch.NotSupported, match="block_until_ready"):
        event.elapsed_time(event)
    assert not torch.is_autocast_enabled("mps")
    with pytest.raises(torch.NotSupported, match="autocast of 'mps'"):
        torch.get_autocast_dtype("mps")
    x = torch.ones(1, 1, 2, 4)
    assert (x.is_cuda, x.is_cpu, x.is_mps, x.is_xla, x.is_nested, x.is_sparse_csr) == (True, *[False] * 5)
    assert (x.get_device(), x.device.index, torch.backends.cudnn.version(), torch.cpu.synchronize()) == (
        0,
        0,
        None,
        None,
    )
    assert not torch.backends.mkldnn.is_available()
    assert not x.is_conj()
    assert x.layout == torch.strided
    assert (x.layout != torch.strided) is False
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    assert (scaler.scale(x) is x, scaler.get_scale()) == (True, 1.0)
    with pytest.raises(torch.NotSupported, match=r"GradScaler that is enabled[\s\S]*GradScaler\(enabled=False\)"):
        torch.cuda.amp.GradScaler()
    properties = torch.cuda.get_device_properties(0)
    assert properties.shared_memory_per_block_optin > properties.shared_memory_per_block
    assert str(torch.ones(1).device) == "cuda:0"
    assert repr(torch.device("cpu")) == "device(type='cpu')"
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
        assert torch.nn.functional.scaled_dot_product_attention(x, x, x).sum() == 8


@pytest.mark.parametrize(
    ("check", "error"),
    [
        (lambda: torch._check(False), RuntimeError),
        (lambda: torch._check_index(False, lambda: "no"), IndexError),
        (lambda: torch._check_is_size(-1), RuntimeError),
        (lambda: torch._check_is_size(3, max=2), RuntimeError),
        (lambda: torch._assert(False, "no"), AssertionError),
    ],
)
def test_checks(check, error):
    """A check that is known to fail raises PyTorch's exception, one of traced numbers is taken to hold."""
    with pytest.raises(error, match=r"^no$|^Expected cond"):
        check()
    assert jax.jit(torch.jax_view(lambda x: (torch._check(x.sum() > 0), x)[1]))(jnp.ones(1)) == 1


def test_storages_of_elements():
    """A storage has all elements in the order of memory, and a tensor can be made a view of it."""
    x = torch.arange(6.0).view(2, 3).t()
    before = x._version
    x.storage()[1] = 7.0
    assert x._version > before
    assert (x[1, 0], x.storage()[2], len(x.storage()), x.storage().tolist()) == (7, 2, 6, [0, 7, 2, 3, 4, 5])
    y = torch.empty(0).set_(x.storage(), 1, (2, 2), (1, 1))
    x.add_(1)
    assert y.tolist() == [[8, 3], [3, 4]]
    with pytest.raises(torch.NotSupported, match="the bytes of a tensor's storage"):
        x.untyped_storage()[0]


def test_freed_storage():
    """Memory is freed and had again in name only, or made longer; a smaller size is refused."""
    x = torch.ones(3)
    x.storage().resize_(0)
    x.untyped_storage().resize_(16)
    assert (x.sum(), x.untyped_storage().nbytes()) == (3, 16)
    with pytest.raises(torch.NotSupported, match="smaller size"):
        x.storage().resize_(2)


def test_seeds_begin_the_stream_anew():
    """torch.manual_seed gives the same numbers again, others for another seed or key, under jit too."""

    def draw(key, number):
        with torch.seed(key):
            first = torch.rand(2)
            torch.manual_seed(number)
            second = torch.rand(2)
            with torch.random.fork_rng():
                torch.cuda.manual_seed(5)
                torch.rand(2)
            third, state = torch.rand(2), torch.get_rng_state()
            torch.manual_seed(number)
            again = torch.rand(2), torch.rand(2)
            torch.set_rng_state(state)
            torch.random.manual_seed(number)
            return torch.jax_view([first, second, third, *again, torch.rand(2)])

    first, second, third, *again, last = draw(0, 3)
    np.testing.assert_array_equal([second, third, second], [*again, last])
    others = [draw(0, 4)[1], draw(1, 3)[1], draw(0, 3 + 2**40)[1], draw(0, -1)[1]]
    assert len({x[0].item() for x in (first, second, third, *others)}) == 7
    np.testing.assert_array_equal(jax.jit(lambda key: draw(key, 3)[1])(jax.random.key(0)), second)
    with pytest.raises(torch.NotSupported, match=r"fnjax\.torch\.seed"):
        torch.manual_seed(0)


LOOP = """
import torch

def loop(x):
    g, i = torch.Generator(), 0
    while x[2] == 0:
        x = torch.where(torch.arange(3) == i, torch.rand((), generator=g), x)
        i = i + 1
    return x, torch.rand(3, generator=g)

def reseeded(x):
    g = torch.Generator()
    if x.sum() > 0:
        g.manual_seed(6)
    return torch.rand(3, generator=g)
"""


class Projected(torch.autograd.Function):
    """Noise that backward draws again from the seed."""

    @staticmethod
    def forward(ctx, x, seed):
        ctx.seed = seed
        return x * torch.randn(3, generator=torch.Generator(x.device).manual_seed(seed))

    @staticmethod
    def backward(ctx, g):
        return g * torch.empty(3).normal_(generator=torch.Generator().manual_seed(ctx.seed)), None


def test_generators_draw_the_numbers_of_their_seed(tmp_path):
    """Each has numbers of its own, the same for one seed and key, also in backward, loops and under jit."""

    def draw(x):
        g, h = torch.Generator(), torch.Generator().manual_seed(3)
        assert (g.manual_seed(-1).initial_seed(), torch.initial_seed()) == (2**64 - 1, 67280421310721)
        first, state = torch.rand(3, generator=g.manual_seed(3)), g.get_state()
        second = torch.rand(3, generator=g)
        g.set_state(state)
        again = torch.rand(3, generator=h), torch.rand(3, generator=g)
        torch.manual_seed(3)
        assert torch.initial_seed() == 3
        (gradient,) = torch.autograd.grad(Projected.apply(x, 4).sum(), x)
        noise = torch.nn.init.normal_(torch.empty(3), generator=h.manual_seed(4))
        return first, second, *again, torch.rand(3), gradient, noise

    def run(function, x=None):
        with torch.seed(0):
            return torch.jax_view(function)(jnp.ones(3) if x is None else x)

    found = run(lambda x: draw(x.detach().requires_grad_()))
    np.testing.assert_array_equal([*found[2:4], *found[4:6]], [*found[:2], found[0], found[6]])
    assert len({x[0].item() for x in found}) == 3
    np.testing.assert_array_equal(jax.jit(lambda: run(lambda x: draw(x.detach().requires_grad_())))(), found)
    (tmp_path / "loops.py").write_text(LOOP)
    file = torch.load(tmp_path / "loops.py")
    steps, after = jax.jit(lambda x: run(file.loop, x))(jnp.zeros(3))
    assert len({*np.asarray(steps).round(6)}) == 3
    assert not {*np.asarray(steps)} & {*np.asarray(after)}
    with pytest.raises(torch.NotSupported, match="a seed of a generator in a branch or loop"):
        jax.jit(lambda x: run(file.reseeded, x))(jnp.ones(3))


@pytest.mark.parametrize(("kind", "wrong"), [("LSTM", "hidden.1. size"), ("GRU", "hidden size")])
def test_parts_of_recurrent_layers(kind, wrong):
    """Subclasses may call the methods of PyTorch's recurrent layers that check and sort."""
    with torch.seed(0):
        layer = getattr(torch.nn, kind)(2, 3)
    x, state = torch.ones(4, 5, 2), torch.arange(15.0).reshape(1, 5, 3)
    both = (state, state) if kind == "LSTM" else state
    layer.check_forward_args(x, both, None)
    assert layer.get_expected_hidden_size(x, None) == (1, 5, 3)
    order = torch.tensor([4, 3, 2, 1, 0])
    moved = layer.permute_hidden(both, order)
    assert (moved[0] if kind == "LSTM" else moved)[0, 0].tolist() == [12, 13, 14]
    with pytest.raises(RuntimeError, match=f"Expected {wrong}"):
        layer.check_forward_args(x, (state, state[:, :4]) if kind == "LSTM" else state[:, :4], None)
