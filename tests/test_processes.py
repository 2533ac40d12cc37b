"""Two processes train one model together, to the result of one process."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

TRAIN = """
import sys
import jax
rank, count, port = map(int, sys.argv[1:])
if count > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", count, rank, initialization_timeout=60)
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from tests.zoo import Linear, SavedInput

assert jax.process_count() == count
mesh = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
rng = np.random.default_rng(0)
data = rng.normal(size=(8, 3)).astype(np.float32)
x = jax.make_array_from_callback(data.shape, NamedSharding(mesh, P("i")), lambda index: data[index])
w = rng.normal(size=(2, 3)).astype(np.float32)
b = rng.normal(size=2).astype(np.float32)

def loss(w, b, x):
    local = lambda w, b, x: jax.lax.psum(jnp.sum(SavedInput.apply(Linear.apply(x, w, b)) ** 2), "i")
    return jax.shard_map(local, mesh=mesh, in_specs=(P(), P(), P("i")), out_specs=P())(w, b, x)

@jax.jit
def step(w, b, x):
    value, (gw, gb) = jax.value_and_grad(loss, (0, 1))(w, b, x)
    return value, w - 0.01 * gw, b - 0.01 * gb

for _ in range(5):
    value, w, b = step(w, b, x)
    print("loss", float(value))
print("weights", *np.asarray(w).ravel(), *np.asarray(b))
"""


def train(count):
    """The numbers that each of `count` processes prints."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = os.environ | {"XLA_FLAGS": "", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parent.parent)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TRAIN, str(rank), str(count), str(port)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        results = [p.communicate(timeout=120) for p in processes]
    finally:
        for p in processes:
            p.kill()
    for p, (_, err) in zip(processes, results, strict=True):
        assert p.returncode == 0, err
    lines = [[line.split() for line in out.splitlines()] for out, _ in results]  # Gloo prints lines of its own
    return [[float(w) for line in of_one if line[:1] in (["loss"], ["weights"]) for w in line[1:]] for of_one in lines]


def test_two_processes_train_as_one():
    """Five steps in two processes give the losses and the weights of one process."""
    (alone,) = train(1)
    assert len(alone) == 5 + 8
    assert alone[4] < alone[0]
    for together in train(2):
        np.testing.assert_allclose(together, alone, rtol=1e-5)
