"""Files with Triton kernels, in PyTorch's words: each class has one idiom of those that launch."""

KERNELS = """
import contextlib
import functools
import os

import torch
from packaging import version

try:
    import triton
    import triton.language as tl
    from triton.language.extra.cuda.libdevice import tanh
    from triton.tools.tensor_descriptor import TensorDescriptor
    HAS_TRITON = True
except ImportError:
    HAS_TRITON = False

if version.parse(triton.__version__) >= version.parse("3.0.0"):
    from triton.language.extra.libdevice import rsqrt
else:
    from triton.language.math import rsqrt

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9
_DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16}


@triton.jit
def scale_kernel(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, factor * tl.load(x_ptr + offsets, mask=mask), mask=mask)


@triton.jit
def double_kernel(x_desc, out_desc, BM: tl.constexpr, BN: tl.constexpr):
    at = [tl.program_id(0) * BM, tl.program_id(1) * BN]
    out_desc.store(at, 2 * x_desc.load(at))


@triton.jit
def multiply_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x * tl.load(y_ptr + offsets, mask=mask), mask=mask)


@triton.jit
def both_kernel(x_ptr, sum_ptr, product_ptr, y_ptr, n, BLOCK: tl.constexpr, dtype: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(dtype)
    y = tl.load(y_ptr + offsets, mask=mask).to(dtype)
    tl.store(sum_ptr + offsets, x + y, mask=mask)
    if product_ptr is not None:
        tl.store(product_ptr + offsets, x * y, mask=mask)


@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def rows_kernel(x_ptr, sum_ptr, bias_ptr, n, stride, BLOCK: tl.constexpr, EVEN: tl.constexpr, HAS_BIAS: tl.constexpr):
    row = tl.program_id(0)
    total = 0.0
    for start in range(0, n, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(x_ptr + row * stride + offsets, mask=offsets < n, other=0.0))
    if HAS_BIAS:
        total += tl.load(bias_ptr + row)
    tl.store(sum_ptr + row, total)


if HAS_TRITON:

    @triton.jit
    def _inner(x):
        return tanh(x)

    @triton.jit
    def tanh_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        tl.store(out_ptr + offsets, _inner(tl.load(x_ptr + offsets, mask=mask)), mask=mask)


def blocks(x, size=64):
    return (triton.cdiv(x.numel(), size),)


def get_configs():
    return [triton.Config({"BLOCK": b}, num_warps=w) for b in (32, 64) for w in (2, 4)]


tuned_kernel = triton.autotune(configs=get_configs(), key=["n"])(scale_kernel)
"""

DESCRIBED = """
class Described(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        m, n = x.shape
        both = torch.empty(m, 2 * n, device=x.device, dtype=x.dtype)
        left = both[:, :n]
        right = both[:, n:]
        block = [4, 16]
        given = TensorDescriptor(x, x.shape, x.stride(), block)
        to_left = TensorDescriptor.from_tensor(left, block_shape=block)
        to_right = TensorDescriptor.from_tensor(tensor=right, block_shape=block)
        grid = (triton.cdiv(m, 4), triton.cdiv(n, 16))
        double_kernel[grid](given, to_left, 4, 16)
        double_kernel[grid](x_desc=to_left, out_desc=to_right, BM=4, BN=16)
        return both

    @staticmethod
    def backward(ctx, g):
        n = g.shape[1] // 2
        return 2 * g[:, :n] + 4 * g[:, n:]
"""

CLASSES = {
    "StarredArguments": """
class StarredArguments(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k: float):
        out = torch.empty_like(x)
        n = x.numel()

        def grid(meta):
            return (triton.cdiv(n, meta["BLOCK"]),)

        args = (x, out, n, k)
        scale_kernel[grid](*args, BLOCK=64)
        ctx.k = k
        return out

    @staticmethod
    def backward(ctx, g):
        out = g.new_empty(g.shape)
        kwargs = {"factor": ctx.k, "BLOCK": 64, "num_warps": 4}
        scale_kernel[blocks(g)](g.contiguous(), out, g.numel(), **kwargs)
        return out, None
""",
    "Helper": """
def multiply_into(x, y, out):
    multiply_kernel[blocks(x)](x, y, out, x.numel(), BLOCK=64)


class Helper(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        out = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=x.device)
        multiply_into(x, y, out)
        ctx.save_for_backward(x, y)
        return out

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        dx = torch.zeros_like(x)
        dy = torch.zeros_like(y)
        multiply_into(g, y, dx)
        multiply_into(g, x, dy)
        return dx, dy
""",
    "Views": """
class Views(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        h = x.shape[0]
        out = torch.empty(2 * h, x.shape[1], device=x.device, dtype=x.dtype)
        with torch.cuda.device(x.device.index):
            scale_kernel[blocks(x)](x, out[:h], x.numel(), 2.0, BLOCK=64)
            scale_kernel[blocks(y)](y, out[h:], y.numel(), 3.0, BLOCK=64)
        return out

    @staticmethod
    def backward(ctx, g):
        h = g.shape[0] // 2
        both = torch.empty(2, h, g.shape[1], device=g.device, dtype=g.dtype)
        for i in range(2):
            part = both[i]
            scale_kernel[blocks(part)](g[i * h : (i + 1) * h], part, part.numel(), 2.0 + i, BLOCK=64)
        return both[0], both[1]
""",
    "OnlyForTheKernel": """
class OnlyForTheKernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, t):
        out = torch.empty_like(x)
        factor = t.exp().item()
        scale_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel(), factor, BLOCK=32)
        ctx.save_for_backward(t)
        return out

    @staticmethod
    def backward(ctx, g):
        (t,) = ctx.saved_tensors
        out = torch.empty_like(g)
        scale_kernel[blocks(g, 32)](g, out, g.numel(), t.exp().item(), BLOCK=32)
        return out, None
""",
    "Chosen": """
class Chosen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k: float):
        assert x.is_cuda and x.data_ptr() % 16 == 0
        out = torch.zeros_like(x)
        kernel = scale_kernel if x.numel() > 1000 or IS_HOPPER else tuned_kernel
        options = {} if kernel is tuned_kernel else {"BLOCK": 64}
        kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel(), k, **options)
        ctx.k = k
        return out

    @staticmethod
    def backward(ctx, g):
        out = torch.empty_like(g)
        torch.library.wrap_triton(scale_kernel)[blocks(g)](x_ptr=g, out_ptr=out, n=g.numel(), factor=ctx.k, BLOCK=64)
        return out, None
""",
    "InPlace": """
class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k: float):
        scale_kernel[blocks(x)](x, x, x.numel(), k, BLOCK=64)
        ctx.mark_dirty(x)
        ctx.k = k
        return x

    @staticmethod
    def backward(ctx, g):
        scale_kernel[blocks(g)](g, g, g.numel(), ctx.k, BLOCK=64)
        return g, None
""",
    "TwoStores": """
class TwoStores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, with_product: bool):
        total = torch.empty_like(x)
        product = torch.empty_like(x) if with_product else None
        both_kernel[blocks(x)](x, total, product, y, x.numel(), BLOCK=64, dtype=_DTYPES[x.dtype])
        ctx.save_for_backward(x, y)
        ctx.set_materialize_grads(False)
        ctx.with_product = with_product
        return (total, product) if with_product else total

    @staticmethod
    def backward(ctx, g_total, g_product=None):
        x, y = ctx.saved_tensors
        if g_product is None:
            return g_total, g_total, None
        dx, dy = torch.empty_like(x), torch.empty_like(y)
        unused = torch.empty_like(x)
        both_kernel[blocks(x)](g_product, unused, dx, y, x.numel(), BLOCK=64, dtype=tl.float32)
        both_kernel[blocks(x)](g_product, unused, dy, x, x.numel(), BLOCK=64, dtype=tl.float32)
        if g_total is not None:
            dx, dy = dx + g_total, dy + g_total
        return dx, dy, None
""",
    "Guarded": """
def contiguous(fn):
    @functools.wraps(fn)
    def wrapper(ctx, *args, **kwargs):
        return fn(
            ctx,
            *(i if not isinstance(i, torch.Tensor) else i.contiguous() for i in args),
            **{k: (v if not isinstance(v, torch.Tensor) else v.contiguous()) for k, v in kwargs.items()},
        )

    return wrapper


def input_guard(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        tensor = None
        for arg in args:
            if isinstance(arg, torch.Tensor):
                tensor = arg
                break
        ctx = torch.cuda.device(tensor.device.index) if tensor is not None else contextlib.nullcontext()
        with ctx:
            return fn(*args, **kwargs)

    return wrapper


@contextlib.contextmanager
def device_context(device):
    backend = getattr(torch, torch.device(device).type, None)
    if backend is not None and hasattr(backend, "device"):
        with backend.device(device):
            yield
    else:
        yield


def decorators():
    if hasattr(torch, "npu"):
        return torch.npu.amp.custom_fwd, torch.npu.amp.custom_bwd
    return (
        functools.partial(torch.amp.custom_fwd, device_type="cuda"),
        functools.partial(torch.amp.custom_bwd, device_type="cuda"),
    )


custom_fwd, custom_bwd = decorators()


class Guarded(torch.autograd.Function):
    @staticmethod
    @contiguous
    @custom_fwd
    def forward(ctx, x):
        y = torch.empty_like(x)
        with device_context(x.device):
            tanh_kernel[blocks(x)](x, y, x.numel(), BLOCK=64)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @input_guard
    @custom_bwd
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        processors = 1
        if g.device.type == "cuda":
            processors = torch.cuda.get_device_properties(g.device).multi_processor_count
        elif g.device.type == "xpu":
            processors = torch.xpu.get_device_properties(g.device).gpu_eu_count
        assert processors > 0
        multiply_kernel[blocks(g)](1 - y * y, g, g, g.numel(), BLOCK=64)
        return g
""",
    "Rows": """
def settings(n):
    block = triton.next_power_of_2(n)
    if block > 65536:
        raise RuntimeError("too wide")
    return block, 4 if block < 2048 or torch.version.hip is not None else 8


class Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias=None):
        if not x.is_contiguous():
            x = x.contiguous()
        assert x.stride(-1) == 1 and x.element_size() == 4
        BLOCK, num_warps = settings(x.shape[-1])
        out = torch.empty((x.shape[0],), device=x.device, dtype=torch.float32)
        rows_kernel[(x.shape[0],)](
            x, out, bias, x.shape[1], x.stride(0), BLOCK=BLOCK, HAS_BIAS=bias is not None, num_warps=num_warps
        )
        ctx.shape, ctx.has_bias = x.shape, bias is not None
        return out

    @staticmethod
    def backward(ctx, g):
        return g.unsqueeze(-1).expand(ctx.shape).contiguous(), g if ctx.has_bias else None
""",
}

REFUSED = {
    "a descriptor of a function": (
        """
def described(x):
    return TensorDescriptor.from_tensor(x, [4, 16])


class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        into = described(out)
        double_kernel[(1, 1)](TensorDescriptor.from_tensor(x, [4, 16]), into, 4, 16)
        return out

    @staticmethod
    def backward(ctx, g):
        return 2 * g
""",
        "a host descriptor describes memory",
    ),
    "a size that a tensor has": (
        """
class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lengths):
        n = int(lengths.max().item())
        out = torch.empty(n, device=x.device)
        scale_kernel[(triton.cdiv(n, 32),)](x, out, n, 1.0, BLOCK=32)
        return out

    @staticmethod
    def backward(ctx, g):
        return g, None
""",
        "size is the value of a tensor",
    ),
    "a view with gaps": (
        """
class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        half = x.shape[1] // 2
        left = x[:, :half]
        out = torch.empty((x.shape[0],), device=x.device)
        rows_kernel[(x.shape[0],)](left, out, None, half, x.stride(0), BLOCK=16, HAS_BIAS=False)
        return out

    @staticmethod
    def backward(ctx, g):
        return g
""",
        "left is a view with gaps",
    ),
    "two views of one memory": (
        """
class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        buffer = torch.zeros(4, 8, device=x.device)
        top = buffer[:2]
        multiply_kernel[(1,)](x, top, buffer, 16, BLOCK=16)
        return buffer

    @staticmethod
    def backward(ctx, g):
        return g[:2]
""",
        "is another view of that memory",
    ),
    "stores that ** may give": (
        """
class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, given: dict):
        scale_kernel[(1,)](x, **given)
        return x

    @staticmethod
    def backward(ctx, g):
        return g, None
""",
        "stores to out_ptr, which * or ** may give",
    ),
    "a kernel of a table": (
        """
TABLE = {}


class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, name: str):
        out = torch.empty_like(x)
        TABLE[name][(1,)](x, out, x.numel(), 2.0, BLOCK=16)
        return out

    @staticmethod
    def backward(ctx, g):
        return g, None
""",
        "launch it by its name",
    ),
}
