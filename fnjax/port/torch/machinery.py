"""PyTorch's machinery, which computes nothing: gradient modes, compilers, devices and profilers.

A line says what its names are: gradient modes that are off (`no_grad`) or on or chosen (`enabling`), other contexts that
change no number (`plain`), questions about the machinery whose answer is False in ported code (`false`), statements
that speak to a device or to a profiler and compute nothing (`silent`), and beginnings of the names of compilers,
gradient modes and profilers, which as decorators change no number (`compilers`).
"""

from __future__ import annotations

from collections import defaultdict

_TABLE = """
no_grad | torch.no_grad torch.inference_mode torch.autograd.no_grad torch.autograd.inference_mode
enabling | torch.enable_grad torch.autograd.enable_grad torch.set_grad_enabled torch.autograd.set_grad_enabled
plain | torch.autocast torch.amp.autocast torch.cuda.amp.autocast torch.cuda.device torch.cuda.device_of torch.device
plain | torch.cuda.stream torch.profiler.record_function torch.autograd.profiler.record_function torch.cuda.nvtx.range
plain | torch.random.fork_rng contextlib.nullcontext
false | torch.compiler.is_compiling torch.compiler.is_dynamo_compiling torch.compiler.is_exporting
false | torch.jit.is_scripting torch.jit.is_tracing torch._dynamo.is_compiling torch.onnx.is_in_onnx_export
false | torch._dynamo.external_utils.is_compiling torch._get_tracing_state torch.is_inference_mode_enabled
false | torch.is_autocast_enabled torch.is_autocast_cpu_enabled torch.is_deterministic_algorithms_enabled
false | torch.are_deterministic_algorithms_enabled torch.is_anomaly_enabled torch.cuda.is_available
false | torch._are_functorch_transforms_active torch._functorch.is_batchedtensor
false | torch._functorch.is_functorch_wrapped_tensor torch._functorch.is_gradtrackingtensor
false | torch._functorch.is_legacy_batchedtensor torch.overrides.has_torch_function
false | torch.overrides.has_torch_function_unary torch.overrides.has_torch_function_variadic
silent | torch.cuda.synchronize torch.cuda.empty_cache torch.cuda.ipc_collect torch.cuda.reset_peak_memory_stats
silent | torch.cuda.set_device torch.cuda.nvtx.mark torch.cuda.nvtx.range_push torch.cuda.nvtx.range_pop
silent | torch.xpu.synchronize torch.mps.synchronize torch._dynamo.graph_break torch._dynamo.mark_dynamic
silent | torch._dynamo.maybe_mark_dynamic torch._dynamo.mark_static
silent | fnjax.triton.set_allocator
compilers | torch.jit. torch.compile torch.compiler. torch._dynamo. torch._disable_dynamo torch.no_grad
compilers | torch.inference_mode torch.enable_grad torch.set_grad_enabled torch.autograd.no_grad torch.cuda.nvtx.
compilers | torch.profiler. torch.autograd.profiler. nvtx. torch.fx. torch.fx.wrap torch.utils._contextlib
compilers | numba.jit numba.njit
"""
_found: dict[str, list[str]] = defaultdict(list)
for _kind, _names in (line.split(" | ") for line in _TABLE.strip().splitlines()):
    _found[_kind] += _names.split()
NO_GRAD, ENABLING, FALSE, SILENT = (frozenset(_found[kind]) for kind in ("no_grad", "enabling", "false", "silent"))
PLAIN = ENABLING | frozenset(_found["plain"])
COMPILERS = tuple(_found["compilers"])
