"""The launches that benchmarks.triton_speed times, in terms that Triton's interpreter and fnjax.triton both take.

The kernels are those of the tests. Nothing here imports JAX or Triton.
"""

import numpy as np

from tests.triton.case import Case, Out


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def empty(*shape):
    return Out(np.zeros(shape, np.float32))


def launch(title, file, kernel, grid, **arguments):
    return Case(title, file, f"{kernel}_kernel", grid, arguments, tolerance=2e-5)


def blocks(n, size):
    return -(-n // size)


def add(n=4096):
    return launch(
        f"add {n}²", "pointwise", "add", (n * n // 1024,),
        x_ptr=numbers(0, n, n), y_ptr=numbers(1, n, n), out_ptr=empty(n, n), n=n * n, BLOCK=1024,
    )  # fmt: skip


def swiglu(columns, rows=4096, block=2048):
    return launch(
        f"SwiGLU {rows}×{columns}", "activations", "swiglu_forward", (rows,),
        gate_ptr=numbers(0, rows, columns), up_ptr=numbers(1, rows, columns), out_ptr=empty(rows, columns),
        stride=columns, n=columns, BLOCK=block,
    )  # fmt: skip


def rms_forward(rows=4096, n=2048):
    return launch(
        f"RMSNorm {rows}×{n}", "norms", "rms_forward", (rows,),
        x_ptr=numbers(0, rows, n), w_ptr=numbers(1, n), out_ptr=empty(rows, n), rstd_ptr=empty(rows), stride=n, n=n,
        eps=1e-6, BLOCK=n,
    )  # fmt: skip


def rms_backward(rows=4096, n=2048, programs=16):
    x = numbers(1, rows, n)
    rstd = 1 / np.sqrt((x * x).mean(1) + 1e-6)
    return launch(
        f"RMSNorm backward {rows}×{n}", "norms", "rms_backward", (programs,),
        dy_ptr=numbers(0, rows, n), x_ptr=x, w_ptr=numbers(2, n), rstd_ptr=rstd, dx_ptr=empty(rows, n),
        dw_ptr=empty(programs, n), rows=rows, n=n, rows_per_program=blocks(rows, programs), BLOCK=n,
    )  # fmt: skip


def softmax(rows=4096, n=2048):
    return launch(
        f"softmax {rows}×{n}", "reductions", "softmax", (rows,),
        x_ptr=numbers(0, rows, n), out_ptr=empty(rows, n), stride=n, n=n, BLOCK=n,
    )  # fmt: skip


def cross_entropy(n, rows=1024, block=2048):
    target = np.random.default_rng(1).integers(0, n, rows, dtype=np.int32)
    return launch(
        f"cross entropy {rows}×{n} by {block}", "losses", "cross_entropy", (rows,),
        logits_ptr=Out(numbers(0, rows, n)), stride=n, target_ptr=target, loss_ptr=empty(rows), n=n, count=rows,
        ignore=-100, smoothing=0.0, REDUCE="mean", BLOCK=block,
    )  # fmt: skip


def matmul(n=1024, block=32):
    return launch(
        f"matmul {n}³, swizzled", "products", "matmul", (blocks(n, block) ** 2,),
        a_ptr=numbers(0, n, n), b_ptr=numbers(1, n, n), c_ptr=empty(n, n), m=n, n=n, k=n, stride_am=n, stride_ak=1,
        stride_bk=n, stride_bn=1, stride_cm=n, stride_cn=1, BLOCK_M=block, BLOCK_N=block, BLOCK_K=block, GROUP=8,
        RELU=False,
    )  # fmt: skip


def matmul_block_pointers(n=1024, block=32):
    return launch(
        f"matmul {n}³, block pointers", "blocks", "matmul", (blocks(n, block), blocks(n, block)),
        a_ptr=numbers(0, n, n), b_ptr=numbers(1, n, n), c_ptr=empty(n, n), m=n, n=n, k=n, BLOCK_M=block,
        BLOCK_N=block, BLOCK_K=block,
    )  # fmt: skip


def attention(causal, heads=4, length=1024, d=64, block=64):
    q, k, v = (numbers(i, heads, length, d) for i in range(3))
    return launch(
        f"attention {heads}×{length}×{d}, {'causal' if causal else 'full'}", "attention", "forward",
        (blocks(length, block), heads),
        q_ptr=q, k_ptr=k, v_ptr=v, out_ptr=empty(heads, length, d), lse_ptr=empty(heads, length), length=length,
        scale=d**-0.5, CAUSAL=causal, BLOCK_M=block, BLOCK_N=block, D=d,
    )  # fmt: skip


def embedding(rows=4096, columns=1024, table=8192):
    index = np.random.default_rng(1).integers(0, table, rows, dtype=np.int32)
    return launch(
        f"embedding {rows}×{columns}", "shapes", "embedding", (blocks(rows, 16), blocks(columns, 128)),
        index_ptr=index, table_ptr=numbers(0, table, columns), out_ptr=empty(rows, columns), n=rows, columns=columns,
        BLOCK=16, COLUMNS=128,
    )  # fmt: skip


def scan(batch=2, length=256, channels=512, states=16, block=64):
    x, dt = numbers(0, batch, length, channels), numbers(1, batch, length, channels)
    b, c = numbers(2, batch, length, states), numbers(3, batch, length, states)
    return launch(
        f"selective scan {batch}×{length}×{channels}×{states}", "training", "scan", (blocks(channels, block), batch),
        x_ptr=x, dt_ptr=dt, a_ptr=numbers(4, channels, states), b_ptr=b, c_ptr=c,
        out_ptr=empty(batch, length, channels), L=length, D=channels, N=states, BLOCK=block,
    )  # fmt: skip


def experts(rows=2048, n=512, k=512, count=8, block=64):
    expert = np.random.default_rng(2).integers(0, count, rows // block, dtype=np.int32)
    return launch(
        f"experts {rows}×{n}×{k} of {count}", "training", "experts", (rows // block, n // block),
        x_ptr=numbers(0, rows, k), w_ptr=numbers(1, count, k, n), expert_ptr=expert, out_ptr=empty(rows, n), n=n, k=k,
        BLOCK_M=block, BLOCK_N=block, BLOCK_K=32,
    )  # fmt: skip


def eight_bits(rows=1024, n=1024, k=1024, block=64):
    w = np.random.default_rng(1).integers(-128, 128, (k, n), dtype=np.int8)
    return launch(
        f"weights of 8 bits {rows}×{n}×{k}", "training", "eight_bits", (rows // block, n // block),
        x_ptr=numbers(0, rows, k), w_ptr=w, scale_ptr=numbers(2, k // block, n), out_ptr=empty(rows, n), n=n, k=k,
        BLOCK_M=block, BLOCK_N=block, BLOCK_K=block,
    )  # fmt: skip


def embedding_backward(tokens=4096, columns=1000, table=8192):
    index = np.random.default_rng(1).integers(0, table, tokens, dtype=np.int32)
    return launch(
        f"embedding backward {tokens}×{columns}", "training", "embedding_backward", (tokens,),
        index_ptr=index, grad_ptr=numbers(0, tokens, columns), out_ptr=empty(table, columns), columns=columns,
        BLOCK=1024,
    )  # fmt: skip


def histogram(n=1_000_000, bins=256, block=1024):
    index = np.random.default_rng(1).integers(0, bins, n, dtype=np.int32)
    return launch(
        f"histogram {n} into {bins}", "atomics", "count", (blocks(n, block),),
        index_ptr=index, out_ptr=Out(np.zeros(bins, np.int32)), n=n, BLOCK=block,
    )  # fmt: skip


def adam(n=4_000_000, block=1024):
    second = Out(numbers(2, n) ** 2)
    return launch(
        f"AdamW {n}", "training", "adam", (blocks(n, block),),
        p_ptr=Out(numbers(0, n)), m_ptr=Out(numbers(1, n)), v_ptr=second, grad_ptr=numbers(3, n), n=n, lr=1e-3,
        beta1=0.9, beta2=0.999, eps=1e-8, decay=0.01, first=1 - 0.9**10, second=1 - 0.999**10, BLOCK=block,
    )  # fmt: skip


# By name, each made when it is due: together they are large.
LAUNCHES = {
    "add": add,
    "swiglu": lambda: swiglu(2048),
    "swiglu-uneven": lambda: swiglu(1800),
    "rms-forward": rms_forward,
    "rms-backward": rms_backward,
    "softmax": softmax,
    "cross-entropy": lambda: cross_entropy(8192),
    "cross-entropy-uneven": lambda: cross_entropy(8000),
    "matmul": matmul,
    "matmul-block-pointers": matmul_block_pointers,
    "attention-causal": lambda: attention(True),
    "attention-full": lambda: attention(False),
    "embedding": embedding,
    "scan": scan,
    "experts": experts,
    "eight-bits": eight_bits,
    "embedding-backward": embedding_backward,
    "histogram": histogram,
    "adam": adam,
}
