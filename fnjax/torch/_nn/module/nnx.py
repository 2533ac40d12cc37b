"""A module as a module of Flax NNX."""

from __future__ import annotations

import importlib
from typing import Any

from fnjax.torch._nn.module.functional_call import call_with
from fnjax.torch._nn.module.module import Module
from fnjax.torch.interop.arrays import jax_view


class _Static:
    """Module wrapped so that NNX treats it as a constant."""

    def __init__(self, model: Module) -> None:
        self.model = model


def nnx(model: Module) -> Any:
    """Return a Flax NNX module that computes what a module computes, with variables of its own.

    Args:
        model: the module. Parameters become `nnx.Param`, those that do not require grad `nnx.Variable`, and buffers
            `nnx.BatchStat`; they start with the module's values, and are in `variables` under PyTorch's names.

    Returns:
        The NNX module. A call writes what forward writes to buffers into its variables; `train()` and `eval()` set
        the modes.

    Raises:
        ImportError: Flax is not installed.
    """
    flax_nnx: Any = importlib.import_module("flax.nnx")

    class TorchModule(flax_nnx.Module):  # type: ignore[misc] # its type is not known where Flax is not installed
        def __init__(self) -> None:
            self.static = _Static(model)
            self.modes = tuple(m.training for m in model.modules())
            kinds = {n: flax_nnx.Param if p.requires_grad else flax_nnx.Variable for n, p in model.named_parameters()}
            kinds |= {n: flax_nnx.BatchStat for n, _ in model.named_buffers()}
            values = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            self.variables = flax_nnx.Dict({n: kind(jax_view(values[n])) for n, kind in kinds.items()})

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            state = {n: v[...] for n, v in self.variables.items()}
            output, new = call_with(self.static.model, state, args, kwargs, "stateful_call", modes=self.modes)
            for name, value in new.items():
                self.variables[name][...] = value
            return output

        def train(self, **attributes: Any) -> None:
            super().train(**attributes)
            self.modes = (True,) * len(self.modes)

        def eval(self, **attributes: Any) -> None:
            super().eval(**attributes)
            self.modes = (False,) * len(self.modes)

    TorchModule.__name__ = TorchModule.__qualname__ = type(model).__name__
    return TorchModule()
