"""A GPT with custom Functions trains on four devices, in parts and from a checkpoint, as on one device in one piece."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import fnjax.torch
from fnjax import torch

optax = pytest.importorskip("optax")
SOURCE = Path(__file__).parents[2] / "benchmarks" / "trained_models.py"
STEPS = 3
ADAM = optax.adamw(1e-2)
TOKENS = np.random.default_rng(0).integers(0, 16, (STEPS, 8, 9)).astype(np.int32)
BATCHES = TOKENS[:, :, :-1], TOKENS[:, :, 1:]
needs_devices = pytest.mark.skipif(len(jax.devices()) < 4, reason="needs four devices")


def make_model():
    return fnjax.torch.load(SOURCE).GPT(1, width=16, heads=2, tokens=16, length=8)


@pytest.fixture(scope="module")
def model():
    with torch.seed(0):
        return make_model()


@pytest.fixture(scope="module")
def start(model):
    params = torch.jax_view(dict(model.named_parameters()))
    return params, ADAM.init(params)


def make_gradient(model):
    def gradient(params, tokens, targets):
        return jax.value_and_grad(lambda p: torch.func.functional_call(model, p, (tokens, targets)))(params)

    return gradient


def update(params, state, grads):
    updates, state = ADAM.update(grads, state, params)
    return optax.apply_updates(params, updates), state


def make_step(gradient):
    def step(params, state, tokens, targets):
        value, grads = gradient(params, tokens, targets)
        return *update(params, state, grads), value

    return step


def run(step, params, state, batches=BATCHES):
    losses = []
    for tokens, targets in zip(*batches, strict=True):
        params, state, value = step(params, state, tokens, targets)
        losses.append(value)
    return params, state, np.stack(losses)


@pytest.fixture(scope="module")
def step(model):
    return jax.jit(make_step(make_gradient(model)))


@pytest.fixture(scope="module")
def expected(step, start):
    return run(step, *start)


def check(found, expected):
    assert found[2][-1] < found[2][0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), found, expected)


def make_mesh(kind=AxisType.Auto):
    return jax.make_mesh((4,), ("data",), axis_types=(kind,))


def spread(tree, mesh):
    """Return copies of arrays, on the devices by their first axis if it can be divided."""

    def put(x):
        rows = P("data") if x.ndim and x.shape[0] % 4 == 0 else P()
        return jax.device_put(np.asarray(x), NamedSharding(mesh, rows))  # an array of JAX may share its memory

    return jax.tree.map(put, tree)


@needs_devices
@pytest.mark.slow
def test_jit_with_sharded_parameters(model, start, expected):
    """The batch, most parameters and AdamW's state are spread over devices, donated, and stay where they are."""
    mesh = make_mesh()
    params, state = spread(start, mesh)
    assert not params["embedding.weight"].sharding.is_fully_replicated
    where = jax.tree.map(lambda x: x.sharding, (params, state))
    step = jax.jit(make_step(make_gradient(model)), out_shardings=(*where, None), donate_argnums=(0, 1))
    batches = [[jax.device_put(x, NamedSharding(mesh, P("data"))) for x in each] for each in BATCHES]
    found = run(step, params, state, batches)
    check(found, expected)
    assert jax.tree.all(jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), found[:2], where))
    assert all(x.is_deleted() for x in params.values())


@pytest.mark.slow
@needs_devices
def test_shard_map(model, start, expected):
    """Each device has a part of the batch; the loss is averaged over devices, and so are the gradients."""

    def step(params, state, tokens, targets):
        def loss(params):
            return jax.lax.pmean(torch.func.functional_call(model, params, (tokens, targets)), "data")

        value, grads = jax.value_and_grad(loss)(params)
        return *update(params, state, grads), value

    mapped = jax.shard_map(step, mesh=make_mesh(), in_specs=(P(), P(), P("data"), P("data")), out_specs=P())
    check(run(jax.jit(mapped), *start), expected)


def test_steps_and_parts_of_a_batch_in_loops(model, start, expected):
    """jax.lax.scan over steps, whose gradients are accumulated over parts of a batch in Refs."""
    gradient = make_gradient(model)

    def accumulate(params, tokens, targets):
        total = jax.tree.map(lambda p: jax.new_ref(jnp.zeros_like(p)), params)

        def add(value, part):
            own, grads = gradient(params, *part)
            jax.tree.map(lambda ref, g: ref.__setitem__(..., ref[...] + g / 4), total, grads)
            return value + own / 4, None

        parts = [x.reshape(4, 2, *x.shape[1:]) for x in (tokens, targets)]
        value, _ = jax.lax.scan(add, jnp.zeros(()), parts)
        return value, jax.tree.map(lambda ref: ref[...], total)

    step = make_step(accumulate)

    @jax.jit
    def train(params, state):
        def body(carry, batch):
            *carry, value = step(*carry, *batch)
            return tuple(carry), value

        (params, state), losses = jax.lax.scan(body, (params, state), BATCHES)
        return params, state, losses

    check(train(*start), expected)


@pytest.mark.slow
def test_a_checkpoint_in_the_middle(step, start, expected, tmp_path):
    """Parameters by PyTorch's names in safetensors, AdamW's state by orbax: training goes on as if never stopped."""
    safetensors = pytest.importorskip("safetensors.numpy")
    orbax = pytest.importorskip("orbax.checkpoint")
    params, state, losses = run(step, *start, [x[:1] for x in BATCHES])
    safetensors.save_file({name: np.asarray(x) for name, x in params.items()}, tmp_path / "gpt.safetensors")
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        state = checkpointer.restore(tmp_path / "state", jax.tree.map(jnp.zeros_like, state))
    with torch.seed(1):
        other = make_model()
    assert repr(other.load_state_dict(safetensors.load_file(tmp_path / "gpt.safetensors"))).startswith("<All keys")
    params = torch.jax_view(dict(other.named_parameters()))
    *rest, more = run(step, params, state, [x[1:] for x in BATCHES])
    check((*rest, np.concatenate([losses, more])), expected)


@pytest.mark.slow
def test_an_exported_step(model, start, expected):
    """A step that jax.export has written and read again is the step."""
    pytest.importorskip("flatbuffers")
    example = (*start, *(x[0] for x in BATCHES))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), example)
    flat, tree = jax.tree.flatten(shapes)
    step = make_step(make_gradient(model))
    exported = jax.export.export(jax.jit(lambda *flat: jax.tree.leaves(step(*tree.unflatten(flat)))))(*flat)
    again = jax.export.deserialize(exported.serialize())
    structure = jax.tree.structure((*start, 0.0))
    check(run(lambda *args: structure.unflatten(again.call(*jax.tree.leaves(args))), *start), expected)


@needs_devices
@pytest.mark.slow
def test_mixed_precision_with_a_scaled_loss(model, start):
    """Parameters in float32, a forward in float16 of a scaled loss: gradients do not vanish; four devices as one."""
    rows = NamedSharding(make_mesh(), P("data"))

    @jax.jit
    def gradient(params, scale, tokens, targets):
        def loss(params):
            half = jax.tree.map(lambda p: p.astype(jnp.float16), params)
            return torch.func.functional_call(model, half, (tokens, targets)).astype(jnp.float32) * scale

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda x: x.astype(jnp.float32) / scale, (value, grads))

    batch = [x[0] for x in BATCHES]
    exact = jax.jit(make_gradient(model))(start[0], *batch)[1]
    errors = {}
    for scale in (2.0**-10, 2.0**10):
        found = gradient(start[0], scale, *batch)
        on_four = gradient(start[0], scale, *(jax.device_put(x, rows) for x in batch))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0.02, atol=2e-3), found, on_four)
        distances = jax.tree.map(lambda a, b: float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b)), found[1], exact)
        errors[scale] = max(distances.values())
    assert errors[2.0**10] < 0.02 < errors[2.0**-10]


@needs_devices
@pytest.mark.slow
def test_blocks_spread_over_devices(model, start):
    """StackedModules whose parameters are spread by blocks: a quarter of the blocks on each device."""
    with torch.seed(0):
        blocks = [type(model.blocks[0])(16, 2) for _ in range(4)]
    stacked = torch.nn.StackedModules(blocks, checkpoint=True)
    params = torch.jax_view(dict(stacked.named_parameters()))
    x = jnp.sin(jnp.arange(2 * 8 * 16, dtype="float32")).reshape(2, 8, 16)
    gradient = jax.jit(jax.grad(lambda p, x: (torch.func.functional_call(stacked, p, (x,)) ** 2).sum()))
    by_blocks = spread(params, make_mesh())
    assert {x.addressable_shards[0].data.shape[0] for x in by_blocks.values()} == {1}
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-4), gradient(by_blocks, x), gradient(params, x)
    )
