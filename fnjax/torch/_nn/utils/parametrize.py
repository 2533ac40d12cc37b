"""torch.nn.utils.parametrize: parameters that are computed from others whenever they are read."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from fnjax._torch_ops.registry import known
from fnjax.torch._nn.layers.containers import ModuleDict, ModuleList
from fnjax.torch._nn.module.module import Module
from fnjax.torch._nn.module.parameter import Parameter
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.recording.blocks import setting
from fnjax.torch.recording.gradient_mode import set_mode, switch

_cache: ContextVar[dict[tuple[Any, str], Tensor] | None] = ContextVar("_cache", default=None)


@known("torch.nn.utils.parametrize.cached")
def cached() -> AbstractContextManager[Any]:
    """Compute each parametrized tensor once within a block."""
    return setting(_cache, {} if _cache.get() is None else _cache.get())


def _register(layer: Module, name: str, tensor: Tensor) -> None:
    if isinstance(tensor, Parameter):
        layer.register_parameter(name, tensor)
    else:
        layer.register_buffer(name, tensor)


@known("torch.nn.utils.parametrize.ParametrizationList")
class ParametrizationList(ModuleList):
    """Modules that compute a tensor, one after the other, from `original` or several originals."""

    def __init__(self, modules: Sequence[Module], original: Any, unsafe: bool = False) -> None:
        if len(modules) == 0:
            raise ValueError("ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        with set_mode(switch(False)):
            new = self._invert(original, strict=False)
        self.is_tensor = isinstance(new, Tensor)
        if not self.is_tensor and not isinstance(new, Sequence):
            raise ValueError(
                "'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). "
                f"Got {type(new).__name__}"
            )
        self.ntensors = 1 if self.is_tensor else len(new)
        if self.is_tensor:
            if new is not original:
                original.data = new.detach()
            _register(self, "original", original)
        else:
            for i, part in enumerate(new):
                made = part.detach().clone()
                if isinstance(original, Parameter):
                    made = Parameter(made, requires_grad=original.requires_grad)
                _register(self, f"original{i}", made)
        if not unsafe:
            _check(self(), original)

    def _invert(self, value: Any, *, strict: bool) -> Any:
        for each in reversed(list(self)):
            if hasattr(each, "right_inverse"):
                with contextlib.nullcontext() if strict else contextlib.suppress(NotImplementedError):
                    value = each.right_inverse(value)
            elif strict:
                raise RuntimeError(
                    f"parametrization {type(each).__name__} does not implement right_inverse. Expected call to be used "
                    "in inverse."
                )
        return value

    def right_inverse(self, value: Tensor) -> None:
        """Give the originals the values from which `value` is computed."""
        with set_mode(switch(False)):
            value = self._invert(value, strict=True)
            if self.is_tensor:
                self.original.data = value.detach()
            else:
                for i, part in enumerate(value):
                    getattr(self, f"original{i}").data = part.detach()

    def forward(self) -> Tensor:
        """Compute the tensor."""
        names = ["original"] if self.is_tensor else [f"original{i}" for i in range(self.ntensors)]
        first, *rest = self
        value = first(*(getattr(self, name) for name in names))
        for each in rest:
            value = each(value)
        return value


def _check(made: Any, original: Tensor) -> None:
    if not isinstance(made, Tensor):
        raise ValueError(f"A parametrization must return a tensor. Got {type(made).__name__}.")
    for what in ("dtype", "shape"):
        if getattr(made, what) != getattr(original, what):
            raise ValueError(
                f"Registering a parametrization may not change the {what} of the tensor, unless `unsafe` flag is "
                f"enabled.\nunparametrized {what}: {getattr(original, what)}\n"
                f"parametrized {what}: {getattr(made, what)}"
            )


@known("torch.nn.utils.parametrize.is_parametrized")
def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Return whether a module has parametrizations, or one of a name."""
    found = getattr(module, "parametrizations", None)
    if not isinstance(found, ModuleDict):
        return False
    return len(found) > 0 if tensor_name is None else tensor_name in found


@known("torch.nn.utils.parametrize.type_before_parametrizations")
def type_before_parametrizations(module: Module) -> type:
    """Return the class that a module had."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


def _make_property(name: str) -> property:
    def read(self: Any) -> Tensor:
        cache = _cache.get()
        if cache is None:
            return self.parametrizations[name]()
        if (self, name) not in cache:
            cache[self, name] = self.parametrizations[name]()
        return cache[self, name]

    return property(read, lambda self, value: self.parametrizations[name].right_inverse(value))


@known("torch.nn.utils.parametrize.register_parametrization")
def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Compute a parameter or buffer of a module by another module, whenever it is read.

    Raises:
        ValueError: the module has no such tensor, or the result has another shape or dtype.
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        found = module.parametrizations[tensor_name]
        if not unsafe:
            value = getattr(module, tensor_name)
            _check(parametrization(value), value)
        found.append(parametrization)
        found.unsafe |= unsafe
        return module
    if tensor_name not in module._parameters and tensor_name not in module._buffers:
        raise ValueError(
            f"Module '{module}' does not have a parameter, a buffer, or a parametrized element with name "
            f"'{tensor_name}'"
        )
    original = getattr(module, tensor_name)
    made = ParametrizationList([parametrization], original, unsafe=unsafe)
    delattr(module, tensor_name)
    if not is_parametrized(module):
        own = type(module)
        module.__class__ = type(f"Parametrized{own.__name__}", (own,), {"__module__": own.__module__})
        module.parametrizations = ModuleDict()
    setattr(type(module), tensor_name, _make_property(tensor_name))
    module.parametrizations[tensor_name] = made
    return module


@known("torch.nn.utils.parametrize.remove_parametrizations")
def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Make a parametrized tensor a parameter or buffer again.

    Raises:
        ValueError: the tensor is not parametrized, or has several originals and is to be left without parametrization.
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    found = module.parametrizations[tensor_name]
    if not found.is_tensor and not leave_parametrized:
        raise ValueError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is parametrized in terms of a "
            "sequence of tensors."
        )
    value = getattr(module, tensor_name)
    if found.is_tensor:
        original = found.original
        if leave_parametrized:
            original.data = value.detach()
    else:
        original = Parameter(value.detach()) if value.requires_grad else value
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]
    if not is_parametrized(module):
        delattr(module, "parametrizations")
        module.__class__ = type(module).__bases__[0]
    _register(module, tensor_name, original)
    return module
