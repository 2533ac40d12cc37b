"""Expressions of triton.language whose types Triton's interpreter tells, for each type of x (and y)."""

import importlib.util

TYPES = (
    "int1", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip
OF_X = (
    "tl.abs(x)", "-x", "~x", "tl.sum(x, 0)", "tl.sum(x)", "tl.max(x, 0)", "tl.min(x, 0)", "tl.argmax(x, 0)",
    "tl.argmin(x, 0)", "tl.cumsum(x, 0)", "tl.cumsum(x, 0, reverse=True)", "tl.cumsum(x, 0, dtype=tl.float32)",
    "tl.sum(x, 0, dtype=tl.float32)", "tl.max(x, 0, return_indices=True)[0]", "tl.max(x, 0, return_indices=True)[1]",
    "tl.xor_sum(x, 0)", "tl.reduce_or(x, 0)", "tl.sort(x)", "tl.topk(x, 2)", "tl.topk(x, 4)", "tl.flip(x, 0)",
    "tl.exp(x)", "tl.sqrt(x)", "tl.floor(x)", "tl.sigmoid(x)", "tl.softmax(x)", "tl.zeros_like(x)",
    "tl.histogram(x, 16)", "x + 1", "1 - x", "x * 2.5", "x / 2", "x // 3", "3 // x", "x % 3", "x & 3", "x << 1",
    "x >> 1", "x - 300", "x + 3000000000", "x * -1", "x > 1", "x == 1.5", "x < -1", "tl.where(x > 1, x, 0)",
    "tl.where(x > 1, x, 0.5)", "tl.where(x > 1, 1, 0)", "tl.where(x > 1, 1.0, 0)", "tl.maximum(x, 1)",
    "tl.maximum(x, 0.5)", "tl.clamp(x, 0, 1)", "tl.fma(x, x, x)", "tl.join(x, x)", "tl.split(tl.join(x, x))[0]",
    "tl.interleave(x, x)", "tl.cdiv(x, 3)", "tl.cat(x, x, can_reorder=True)", "tl.sum(x > 1)", "tl.cumsum(x > 1, 0)",
    "tl.fdiv(x, x)", "tl.rand(1, x)", "tl.randint(1, x)", "tl.gather(x, tl.arange(0, 4), 0)",
    "x[:, None] * x[None, :]", "tl.sum(x[:, None] * x[None, :], axis=1, keep_dims=True)",
    "tl.dot(tl.zeros((4, 4), x.dtype), tl.zeros((4, 4), x.dtype))", "x.to(tl.int16)", "tl.cast(x, tl.float32)",
    "x.view(2, 2)", "tl.permute(x[:, None], (1, 0))", "tl.broadcast_to(x, (2, 4))", "tl.expand_dims(x, 0)",
    "tl.full((4,), 3, x.dtype)", "tl.reduce(x, 0, add)", "tl.associative_scan(x, 0, add)",
)  # fmt: skip
OF_BOTH = ("x + y", "x / y", "x // y", "x < y", "x & y", "tl.where(x > 1, x, y)", "tl.maximum(x, y)")
SOURCE = """
import {triton} as triton
import {triton}.language as tl


@triton.jit
def add(a, b):
    return a + b
"""
KERNEL = """

@triton.jit
def kernel_{i}(x_ptr, X: tl.constexpr, Y: tl.constexpr):
    lanes = tl.arange(0, 4)
    x = tl.load(x_ptr + lanes).to(X)
    y = tl.load(x_ptr + lanes).to(Y)
    RECORD({expression})
"""


def all_of():
    """Expressions with the types to try: (number of the kernel, expression, type of x, type of y)."""
    for i, expression in enumerate((*OF_X, *OF_BOTH)):
        for x in TYPES:
            for y in TYPES if expression in OF_BOTH else (x,):
                yield i, expression, x, y


def kernels(folder, triton, record):
    """The kernels, one for each expression; each hands what it has to `record`."""
    path = folder / "expressions_as_kernels.py"
    parts = [KERNEL.format(i=i, expression=text) for i, text in enumerate((*OF_X, *OF_BOTH))]
    path.write_text(SOURCE.format(triton=triton) + "".join(parts))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    module.RECORD = record
    spec.loader.exec_module(module)
    return module
