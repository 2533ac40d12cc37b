"""PyTorch's machinery, which computes nothing: gradient modes, compilers, devices and profilers."""

from __future__ import annotations

NO_GRAD = frozenset(
    {"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad", "torch.autograd.inference_mode"}
)
ENABLING = frozenset(
    {
        "torch.enable_grad",
        "torch.autograd.enable_grad",
        "torch.set_grad_enabled",
        "torch.autograd.set_grad_enabled",
    }
)
PLAIN = ENABLING | frozenset(
    {
        "torch.autocast",
        "torch.amp.autocast",
        "torch.cuda.device",
        "torch.cuda.device_of",
        "torch.cuda.stream",
        "torch.profiler.record_function",
        "torch.cuda.nvtx.range",
        "torch.autograd.profiler.record_function",
        "torch.random.fork_rng",
        "torch.device",
        "torch.cuda.amp.autocast",
        "contextlib.nullcontext",
    }
)


# Questions about PyTorch's machinery, which ported code is not run by.
FALSE = frozenset(
    {
        "torch.compiler.is_compiling",
        "torch.compiler.is_dynamo_compiling",
        "torch.jit.is_scripting",
        "torch.jit.is_tracing",
        "torch._dynamo.is_compiling",
        "torch.onnx.is_in_onnx_export",
        "torch.is_autocast_enabled",
        "torch.is_inference_mode_enabled",
        "torch.is_autocast_cpu_enabled",
        "torch._dynamo.external_utils.is_compiling",
        "torch.cuda.is_available",
        "torch._get_tracing_state",
        "torch.is_deterministic_algorithms_enabled",
        "torch.are_deterministic_algorithms_enabled",
        "torch.is_anomaly_enabled",
        "torch.compiler.is_exporting",
        "torch._are_functorch_transforms_active",
        "torch._functorch.is_batchedtensor",
        "torch._functorch.is_functorch_wrapped_tensor",
        "torch._functorch.is_gradtrackingtensor",
        "torch._functorch.is_legacy_batchedtensor",
        "torch.overrides.has_torch_function",
        "torch.overrides.has_torch_function_unary",
        "torch.overrides.has_torch_function_variadic",
    }
)
# Statements that speak to a device or to a profiler, and compute nothing.
SILENT = frozenset(
    {
        "torch.cuda.synchronize",
        "torch.cuda.empty_cache",
        "torch.cuda.ipc_collect",
        "torch.cuda.reset_peak_memory_stats",
        "torch.cuda.set_device",
        "torch.cuda.nvtx.mark",
        "torch.cuda.nvtx.range_push",
        "torch.cuda.nvtx.range_pop",
        "torch.xpu.synchronize",
        "torch.mps.synchronize",
        "torch._dynamo.graph_break",
        "torch._dynamo.mark_dynamic",
        "fnjax.triton.set_allocator",
    }
)
# Beginnings of the names of compilers, gradient modes and profilers, which as decorators change no number.
COMPILERS = (
    "torch.jit.",
    "torch.compile",
    "torch.compiler.",
    "torch._dynamo.",
    "torch.no_grad",
    "torch.inference_mode",
    "torch.enable_grad",
    "torch.cuda.nvtx.",
    "torch.profiler.",
    "torch.autograd.profiler.",
    "nvtx.",
    "torch.fx.",
    "torch.utils._contextlib",
    "torch.set_grad_enabled",
    "torch.autograd.no_grad",
    "torch._disable_dynamo",
    "torch.fx.wrap",
    "numba.jit",
    "numba.njit",
)
