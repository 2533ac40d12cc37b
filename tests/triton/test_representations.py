"""Functions of the language on every representation of a value: the same result, or a refusal by name."""

import ast
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.triton.language as tl
from fnjax import triton
from fnjax.triton.interpreter.interpreter import Frame, evaluate
from fnjax.triton.values import types
from fnjax.triton.values.exceptions import NeedsGridSplit, NeedsSequence, NotVectorizable
from fnjax.triton.values.pointers import pointer_to
from fnjax.triton.values.state import State, entered
from fnjax.triton.values.tensor import Tensor

lib = tl.extra.cuda.libdevice
random = np.random.default_rng(0)
BUFFERS = {
    "f": jnp.asarray(random.uniform(0.5, 3, 64), jnp.float32),
    "n": jnp.asarray(random.integers(0, 8, 64), jnp.int32),
    "b": jnp.asarray(random.integers(0, 2, 64), bool),
    "o": jnp.zeros(64, jnp.float32),
    "few": jnp.full(5, 1.5, jnp.float32),
    "u": jnp.asarray(random.integers(0, 8, 64), jnp.uint8),
    "h": jnp.asarray(random.uniform(0, 2, 64), jnp.bfloat16),
}
GRIDS = {"several": (2, 1, 1), "one": (1, 1, 1)}  # of one program, atomics return what was there

NUMBERS = """
tl.load(f + i + 8 * pid) | tl.load(f + i) | tl.full((8,), 1.5, tl.float32) | i * 0.25 | tl.load(f + pid)
tl.load(few + i, i < 5, 0.0) | tl.load(few + i, i < 5, -float("inf")) | tl.load(f + i, pid < 1, 0.0)
tl.load(h + i)
i + 8 * pid | (i * i) % 5 | tl.load(n + i) | tl.load(n + i) * 4 + 2 | tl.load(n + i).to(tl.int64) | tl.load(u + i)
pid * 4 + 1 | i < 5 + pid | (i < 5) & (i >= 1) | (i < 5) & (tl.load(n + i) > 2) | tl.load(b + i) | (i * i) % 5 == 1
pid < 1 | 3 | 1.5 | True
"""
OTHERS = """
f | f + i | f + tl.load(n + i) | tl.where(pid < 1, f, o)
tl.where(i < 3, f + i, o + i) | tl.where(i < 3, f + i, f)
tl.where(i < 3, tl.where(i < 1, f + i, o + i), few) | (f + i).to(tl.pointer_type(tl.int32))
f.to(tl.pointer_type(tl.uint8)) + i | tl.atomic_add(o + i, 1.0) | tl.atomic_add(o, 1.0)
tl.make_block_ptr(f, (8, 8), (8, 1), (0, 0), (4, 4), (1, 0))
tl.make_block_ptr(tl.where(pid < 1, f, o), (8,), (1,), (0,), (8,), (0,))
tl.make_tensor_descriptor(f, [8, 8], [8, 1], [4, 4]) | None | "text" | (i, i) | [1, 2]
tl.float32 | tl.exp | lib | numpy
tl.pointer_type(tl.float32)
"""
CALLS = """
tl.exp(x) | tl.exp2(x) | tl.sqrt(x) | tl.abs(x) | tl.floor(x) | tl.sigmoid(x) | tl.softmax(x) | -x | ~x | not x
tl.zeros_like(x) | tl.cumsum(x) | tl.cumprod(x) | tl.sort(x) | tl.topk(x, 4)
tl.flip(x) | tl.ravel(x) | tl.split(x)
tl.sum(x) | tl.max(x) | tl.min(x) | tl.xor_sum(x) | tl.reduce_or(x, 0) | tl.argmax(x, 0) | tl.max(x, 0, True)
tl.sum(x, 1) | tl.sum(i, x) | tl.sum(i, 0, dtype=x) | tl.reduce(x, 0, add) | tl.associative_scan(x, 0, add)
tl.reshape(x, (2, 4)) | tl.permute(x, (0,)) | tl.trans(x) | tl.expand_dims(x, 0)
x[:, None] | tl.broadcast_to(x, (4, 8))
tl.broadcast(x, i) | tl.view(x, (4, 2)) | x.reshape(2, 4) | x.T | x.shape
x.dtype | x.numel | x.sum() | x.store(1.0)
tl.cast(x, tl.float32) | x.to(tl.int64) | x.to(tl.bfloat16) | x.to(tl.int1) | x.to(tl.int32, bitcast=True)
tl.cast(x, tl.pointer_type(tl.int32)) | tl.cast(x, tl.pointer_type(tl.pointer_type(tl.int32))) | tl.cast(i, x)
tl.full((8,), 1, x) | tl.full((8,), x, tl.float32) | tl.full(x, 1, tl.float32) | tl.arange(0, x) | tl.program_id(x)
tl.histogram(x, 8) | tl.gather(x, i, 0) | tl.gather(i, x, 0) | tl.rand(3, x)
tl.rand(x, i) | tl.philox(1, x, x, x, x)
tl.load(x) | tl.load(x, i < 3) | tl.load(x, i < 3, 1) | tl.load(f + i, x)
tl.load(f + i, i < 3, x) | tl.load(f + x)
tl.load(x, boundary_check=(0,)) | tl.load(x, volatile=True) | x.load([0, 0]) | tl.load_tensor_descriptor(x, [0, 0])
tl.store(x, 1) | tl.store(x, i) | tl.store(o + i, x) | tl.store(o + i, 1.0, x) | tl.store(x, 1, i < 3)
tl.store(x, 1.0, boundary_check=(0,)) | tl.store(o + x, 1.0)
tl.store_tensor_descriptor(x, [0, 0], tl.zeros((4, 4), h.dtype))
tl.atomic_add(x, 1) | tl.atomic_max(x, 1) | tl.atomic_min(x, 1) | tl.atomic_and(x, 1) | tl.atomic_or(x, 1)
tl.atomic_xor(x, 1) | tl.atomic_xchg(x, 1) | tl.atomic_cas(x, 0, 1) | x.atomic_add(1.0) | x.atomic_cas(0.0, 1.0)
tl.atomic_add(o + i, x) | tl.atomic_max(o + i, x, i < 3) | tl.atomic_or(n + i, x) | tl.atomic_xchg(n + i, x)
tl.atomic_add(o + i, 1.0, x) | tl.atomic_add(o + x, 1.0) | tl.atomic_add(x, 1, i < 3) | tl.atomic_cas(n, 0, x)
tl.atomic_cas(n, x, 1) | tl.where(x, i, 0) | tl.where(i < 3, x, 0)
tl.where(i < 3, 1.0, x) | tl.where(i < 3, f, x)
tl.where(i < 3, x, x) | tl.maximum(x, 1) | tl.minimum(i, x) | tl.clamp(x, 0.0, 1.0)
tl.fma(x, x, x) | tl.fdiv(x, 2.0)
tl.cdiv(x, 3) | tl.umulhi(x, x) | tl.dot(tl.reshape(x, (2, 4)), tl.reshape(x, (4, 2))) | tl.dot(x, x)
tl.dot_scaled(x, None, "bf16", x, None, "bf16") | tl.join(x, x) | tl.interleave(x, x) | tl.cat(x, x)
tl.make_block_ptr(x, (8,), (1,), (0,), (8,), (0,)) | tl.load(tl.make_block_ptr(f, (8,), (1,), (x,), (8,), (0,)), (0,))

tl.make_block_ptr(f, x, (1,), (0,), (8,), (0,)) | tl.make_tensor_descriptor(x, [8, 8], [8, 1], [4, 4])
tl.advance(x, (1, 0)) | tl.advance(tl.make_block_ptr(f, (8,), (1,), (0,), (8,), (0,)), (x,)) | tl.multiple_of(x, 8)
tl.swizzle2d(x, 2, 32, 4, 2) | tl.map_elementwise(add, x, x) | tl.core.add(x, x) | tl.range(x) | float(x) | int(x)
tl.inline_asm_elementwise("", "", [x], tl.float32, True, 1, add)
tl._experimental_descriptor_load(x, [0, 0], [4, 4], 1)
x + i | x - i | x * i | x / j | x // j | x % j | x & i | x|i
x << i | x >> i | x < i | x == i | i - x | i / j | i << x
f + x | f - x | f == x | lib.exp10(x) | lib.isnan(x) | lib.ilogb(x)
lib.popc(x) | lib.clz(x) | lib.ffs(x) | lib.brev(x)
lib.float_as_int(x) | lib.rint(x) | lib.pow(x, x) | lib.ldexp(x, x)
lib.mulhi(x, x) | lib.copysign(x, x) | lib.max(x, x)
"""


@triton.jit
def add(a, b=0):
    return a + b


@triton.jit
def empty():
    """Kernel whose names expressions are evaluated in."""


def table(text):
    """Return the expressions of a text, one by one; ` | ` is between them."""
    return [part.strip() for line in text.strip().splitlines() if line for part in line.split(" | ")]


class Failed:
    """Error that a call has raised."""

    def __init__(self, error):
        self.error = error


def found(value, call, grid, as_array=False):
    """Return what a call gives, and memory after it, as arrays; `as_array` makes a value an array first.

    None where another way of interpreting the kernel takes the call, and a `Failed` where it raises.
    """
    with entered(State(grid)) as state, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state.buffers = list(BUFFERS.values())
        names = {k: pointer_to(i, types.type_of_array(x.dtype)) for i, (k, x) in enumerate(BUFFERS.items())}
        frame = Frame(empty.source, {**names, "lib": lib, "add": add, "numpy": np.arange(8)}, state)
        state.frames.append(frame)
        frame.names |= {"i": tl.arange(0, 8), "j": tl.arange(1, 9), "pid": tl.program_id(0)}
        frame.names["x"] = x = evaluate(frame, ast.parse(value, mode="eval").body)
        try:
            if as_array and isinstance(x, Tensor) and x.uniform() is None:
                frame.names["x"] = Tensor(x.array(), x.dtype, x.shape)
            results = evaluate(frame, ast.parse(call, mode="eval").body)
            results = results if isinstance(results, tuple) else (results,)
            parts = [r.filled() for r in results if isinstance(r, Tensor)]
        except (NeedsSequence, NeedsGridSplit, NotVectorizable):
            return None
        except Exception as error:  # noqa: BLE001 - of any kind
            return Failed(error)
        return [np.asarray(a, np.float32) for a in (*parts, *state.buffers)]


def is_named(error):
    """Return True for an error that says what is wrong in words of the language."""
    trace = error.__traceback__
    while trace.tb_next:
        trace = trace.tb_next
    inside = trace.tb_frame.f_globals["__name__"].startswith("fnjax")
    words = ("object has no attribute", "unsupported operand", "not iterable")
    return inside and not any(word in str(error) for word in words)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(10))
def test_a_call_is_right_or_refused_by_name(seed):
    """The result does not depend on the representation of a value; what does not fit is refused in words."""
    draw = np.random.default_rng(seed).choice
    for _ in range(80):
        value, call = str(draw(table(NUMBERS) + table(OTHERS))), str(draw(table(CALLS)))
        grid, about = GRIDS[draw(list(GRIDS))], f"{call} of {value}"
        got = found(value, call, grid)
        if isinstance(got, Failed):
            assert is_named(got.error), (about, repr(got.error))
        elif got is not None and value in table(NUMBERS) and (want := found(value, call, grid, True)) is not None:
            assert not isinstance(want, Failed), (about, repr(want.error))
            assert len(got) == len(want), about
            for a, b in zip(got, want, strict=True):
                np.testing.assert_allclose(*np.broadcast_arrays(a, b), rtol=1e-6, atol=1e-6, err_msg=about)
