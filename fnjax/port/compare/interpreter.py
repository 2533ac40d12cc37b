"""Triton's interpreter as the reference of kernels: stand-ins for what it and a machine without a GPU lack."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import types
from typing import Any

from fnjax._machine import CAPABILITY

_LIBDEVICE = ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice")


def prepare_interpreter() -> None:
    """Let wrappers of kernels run on a CPU under TRITON_INTERPRET=1; for a process of their own.

    Python's numbers are float32 in kernels, as on a GPU; libdevice's functions are NumPy's; of configurations the
    first one runs; questions about the device return what fnjax.port.rewrite.calls.questions writes.
    """
    import torch

    cuda: Any = torch.cuda
    cuda.device = cuda.device_of = cuda.stream = lambda *_: contextlib.nullcontext()
    cuda.get_device_properties = lambda *_: types.SimpleNamespace(multi_processor_count=4, major=8, minor=0)
    cuda.get_device_capability = lambda *_: CAPABILITY
    cuda.current_device = lambda: 0
    tensor: Any = torch.Tensor
    tensor.is_cuda = property(lambda _: True)
    _accept_python_numbers()
    _add_libdevice()
    tuner: Any = importlib.import_module("triton.runtime.autotuner").Autotuner
    tuner._bench = lambda *_, **__: [0.0]


def _accept_python_numbers() -> None:
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    plain: Any = interpreter._implicit_cvt

    def converted(arg: Any) -> Any:
        if isinstance(arg, float):
            handle = interpreter.TensorHandle(np.array([arg], np.float32), tl.float32)
            return tl.tensor(handle, tl.float32)
        return plain(arg)

    interpreter._implicit_cvt = converted


def _add_libdevice() -> None:
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    def entrywise(function: Any, x: Any) -> Any:
        data = np.asarray(function(x.handle.data), x.handle.data.dtype)
        return tl.tensor(interpreter.TensorHandle(data, x.handle.dtype), x.type)

    functions = {name: getattr(np, name) for name in ("tanh", "exp", "log1p", "expm1", "sinh", "cosh", "rint", "trunc")}
    functions |= {"rsqrt": lambda x: 1 / np.sqrt(x), "erf": np.vectorize(math.erf, otypes=[np.float64])}
    for module in map(importlib.import_module, _LIBDEVICE):
        for name, function in functions.items():
            setattr(module, name, functools.partial(entrywise, function))
