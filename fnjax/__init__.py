"""PyTorch's custom autograd Functions for JAX."""

import typing as _typing

from fnjax._lazy import import_after as _import_after
from fnjax._lazy import lazy as _lazy

__version__ = "0.2.0"
_import_after("jax", "fnjax._contexts")

_HOMES = {
    "custom_bwd": "fnjax._function.decorators",
    "custom_fwd": "fnjax._function.decorators",
    "gradcheck": "fnjax._check.gradcheck",
    "gradgradcheck": "fnjax._check.gradgradcheck",
    "OpcheckError": "fnjax._check.results",
    "OpcheckResults": "fnjax._check.results",
    "opcheck": "fnjax._check.opcheck",
    "GradcheckError": "fnjax._check.report",
    "FunctionCtx": "fnjax._function.ctx",
    "Function": "fnjax._function.function",
    "once_differentiable": "fnjax._function.decorators",
    "Library": "fnjax._op.definition",
    "custom_op": "fnjax._op.definition",
    "triton_op": "fnjax._op.definition",
    "wrap_triton": "fnjax._op.definition",
    "CustomOpDef": "fnjax._op.operator",
    "ops": "fnjax._op.registry",
    "dtype": "fnjax._op.schema",
    "infer_schema": "fnjax._op.schema",
    "save_on_cpu": "fnjax._function.hooks",
    "saved_tensors_hooks": "fnjax._function.hooks",
    "split_vjp": "fnjax._split.vjp",
    "SavedReport": "fnjax.graph",
    "make_dot": "fnjax.graph",
    "saved_report": "fnjax.graph",
}

_ABSENT = {
    "Tensor": "jax.Array; in PyTorch source that fnjax.torch.load runs it is torch.Tensor",
    "autograd": "fnjax.Function for torch.autograd.Function, jax.grad for torch.autograd.grad",
    "compile": "jax.jit",
    "enable_grad": "nothing: jax.grad differentiates the function that it gets",
    "func": "jax.grad, jax.vjp, jax.jvp, jax.vmap",
    "grad": "jax.grad",
    "jit": "jax.jit",
    "load": "fnjax.torch.load",
    "nn": "fnjax.torch.nn, or a library of layers in JAX",
    "no_grad": "jax.lax.stop_gradient",
    "tensor": "jnp.asarray",
    "vmap": "jax.vmap",
}

if _typing.TYPE_CHECKING:  # the same once more, for type checkers and editors
    from fnjax import collectives as collectives
    from fnjax import errors as errors
    from fnjax import graph as graph
    from fnjax import port as port
    from fnjax import torch as torch
    from fnjax import triton as triton
    from fnjax._check.gradcheck import gradcheck as gradcheck
    from fnjax._check.gradgradcheck import gradgradcheck as gradgradcheck
    from fnjax._check.opcheck import opcheck as opcheck
    from fnjax._check.report import GradcheckError as GradcheckError
    from fnjax._check.results import OpcheckError as OpcheckError
    from fnjax._check.results import OpcheckResults as OpcheckResults
    from fnjax._function.ctx import FunctionCtx as FunctionCtx
    from fnjax._function.decorators import custom_bwd as custom_bwd
    from fnjax._function.decorators import custom_fwd as custom_fwd
    from fnjax._function.decorators import once_differentiable as once_differentiable
    from fnjax._function.function import Function as Function
    from fnjax._function.hooks import save_on_cpu as save_on_cpu
    from fnjax._function.hooks import saved_tensors_hooks as saved_tensors_hooks
    from fnjax._op.definition import Library as Library
    from fnjax._op.definition import custom_op as custom_op
    from fnjax._op.definition import triton_op as triton_op
    from fnjax._op.definition import wrap_triton as wrap_triton
    from fnjax._op.operator import CustomOpDef as CustomOpDef
    from fnjax._op.registry import ops as ops
    from fnjax._op.schema import dtype as dtype
    from fnjax._op.schema import infer_schema as infer_schema
    from fnjax._split.vjp import split_vjp as split_vjp
    from fnjax.graph import SavedReport as SavedReport
    from fnjax.graph import make_dot as make_dot
    from fnjax.graph import saved_report as saved_report
else:
    __all__ = list(_HOMES)
    __getattr__, __dir__ = _lazy(
        __name__, _HOMES, ("collectives", "errors", "graph", "port", "torch", "triton"), _ABSENT
    )
