"""Kernels with faults, and what `kernel.check` says of them. With a folder as its argument, it draws two launches."""

import sys

import jax
import jax.numpy as jnp

import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def scale_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets <= n  # one too many
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, 2 * x, mask=mask)


@triton.jit
def total_kernel(x_ptr, total_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    total = tl.load(total_ptr)
    tl.store(total_ptr, total + tl.sum(x))  # another program may have been faster


@triton.jit
def lock_kernel(x_ptr, total_ptr, lock_ptr, RELEASED: tl.constexpr):
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(total_ptr, tl.load(total_ptr) + tl.load(x_ptr + tl.program_id(0)))
    if RELEASED:
        tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, N, K, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, K, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :])
        total += tl.dot(a, tl.load(b_ptr + inner[:, None] * N + columns[None, :]))
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], total)


def empty(*shape):
    """Return an uninitialised buffer, like torch.empty."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def main(folder=None):
    x, zero, lock = jnp.arange(100.0), jnp.zeros(1), jnp.zeros(1, jnp.int32)
    print(scale_kernel.check[(4,)](x, empty(100), 100, BLOCK=32), "\n")
    print(total_kernel.check[(2,)](x, empty(1), BLOCK=32), "\n")
    print(lock_kernel.check[(4,)](x, zero, lock, RELEASED=False), "\n")
    print(lock_kernel.check[(4,)](x, zero, lock, RELEASED=True))
    if folder is not None:
        scale_kernel.draw(f"{folder}/scale.png")[(4,)](x[:25], empty(25), 25, BLOCK=8)
        matmul_kernel.draw(f"{folder}/matmul.png")[(2, 3)](
            jnp.ones((32, 48)), jnp.ones((48, 48)), empty(32, 48), 48, 48, BLOCK=16
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
