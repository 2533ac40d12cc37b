"""torch.nn.utils.weight_norm and spectral_norm in their older form: a hook computes the weight before each forward."""

from __future__ import annotations

from typing import Any

from fnjax._torch_ops.registry import known
from fnjax.torch._nn.module.module import Module
from fnjax.torch._nn.module.parameter import Parameter
from fnjax.torch._nn.utils.clip_grad import enter_utility
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.names.registry import module
from fnjax.torch.recording.gradient_mode import set_mode, switch

torch, F = module("torch"), module("torch.nn.functional")


@known("torch.norm_except_dim")
def norm_except_dim(v: Tensor, pow: int = 2, dim: int = 0) -> Tensor:
    """Return the norms over all axes but one, which keeps its place; over all axes for dim=-1."""
    if dim == -1:
        return torch.linalg.vector_norm(v, pow)
    axes = [i for i in range(v.ndim) if i != dim]
    return torch.linalg.vector_norm(v, pow, axes, keepdim=True) if axes else v.abs()


@known("torch._weight_norm")
def weigh(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Return v with the norms g along an axis."""
    return v * (g / norm_except_dim(v, 2, dim))


def reshape_to_matrix(weight: Tensor, dim: int) -> Tensor:
    """Return a weight as a matrix whose rows run along one axis."""
    if dim != 0:
        weight = weight.permute(dim, *(d for d in range(weight.dim()) if d != dim))
    return weight.reshape(weight.size(0), -1)


class _WeightHook:
    """Function that is called before forward and sets a weight.

    Attributes:
        name: the attribute that it sets. It is not a parameter any more, so `stateful_call` does not return it.
    """

    name: str

    def register(self, layer: Module) -> None:
        """Replace the weight's parameter in a layer by a tensor that is computed before each forward."""
        for hook, _ in layer._forward_pre_hooks.values():
            if isinstance(hook, type(self)) and hook.name == self.name:
                kind = "weight_norm" if isinstance(self, WeightNorm) else "spectral_norm"
                raise RuntimeError(f"Cannot register two {kind} hooks on the same parameter {self.name}")
        weight = getattr(layer, self.name)
        del layer._parameters[self.name]
        layer._recomputed = layer._recomputed | {self.name}
        self.begin(layer, weight)
        layer.register_forward_pre_hook(self)

    def begin(self, layer: Module, weight: Parameter) -> None:
        """Register the parameters and buffers that the weight is computed from."""
        raise NotImplementedError

    def compute(self, layer: Module) -> Tensor:
        """Return the weight."""
        raise NotImplementedError

    def __call__(self, layer: Module, inputs: Any) -> None:
        setattr(layer, self.name, self.compute(layer))

    @classmethod
    def remove(cls, layer: Module, name: str, parts: tuple[str, ...]) -> Module:
        """Make the weight a parameter again."""
        for key, (hook, _) in layer._forward_pre_hooks.items():
            if isinstance(hook, cls) and hook.name == name:
                with set_mode(switch(False)):
                    weight = hook.compute(layer)
                delattr(layer, name)
                for part in parts:
                    delattr(layer, name + part)
                layer._recomputed = layer._recomputed - {name}
                setattr(layer, name, Parameter(weight.detach()))
                del layer._forward_pre_hooks[key]
                return layer
        kind = "weight_norm" if cls is WeightNorm else "spectral_norm"
        raise ValueError(f"{kind} of '{name}' not found in {layer}")


@enter_utility("weight_norm")
class WeightNorm(_WeightHook):
    """Hook that computes a weight from its direction and its norms."""

    def __init__(self, name: str, dim: int | None) -> None:
        self.name, self.dim = name, -1 if dim is None else dim

    def begin(self, layer: Module, weight: Parameter) -> None:
        layer.register_parameter(f"{self.name}_g", Parameter(norm_except_dim(weight, 2, self.dim).detach()))
        layer.register_parameter(f"{self.name}_v", Parameter(weight.detach()))
        setattr(layer, self.name, self.compute(layer))

    def compute(self, layer: Module) -> Tensor:
        return weigh(getattr(layer, f"{self.name}_v"), getattr(layer, f"{self.name}_g"), self.dim)


def iterate(matrix: Tensor, first: Tensor, second: Tensor, steps: int, eps: float) -> None:
    """Refine approximations of the first left and right singular vectors of a matrix in place, by power iteration."""
    with set_mode(switch(False)):
        for _ in range(steps):
            first.copy_(F.normalize(torch.mv(matrix, second), dim=0, eps=eps))
            second.copy_(F.normalize(torch.mv(matrix.t().conj(), first), dim=0, eps=eps))


@enter_utility("spectral_norm")
class SpectralNorm(_WeightHook):
    """Hook that divides a weight by its largest singular value, which buffers approximate."""

    def __init__(self, name: str = "weight", n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12) -> None:
        if n_power_iterations <= 0:
            raise ValueError(
                f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}"
            )
        self.name, self.dim, self.n_power_iterations, self.eps = name, dim, n_power_iterations, eps

    def begin(self, layer: Module, weight: Parameter) -> None:
        matrix = reshape_to_matrix(weight.detach(), self.dim)
        draw = (F.normalize(weight.detach().new_empty(n).normal_(0, 1), dim=0, eps=self.eps) for n in matrix.shape)
        layer.register_parameter(f"{self.name}_orig", weight)
        setattr(layer, self.name, weight.detach())
        for part, vector in zip("uv", draw, strict=True):
            layer.register_buffer(f"{self.name}_{part}", vector)

    def compute(self, layer: Module) -> Tensor:
        weight, u, v = (getattr(layer, f"{self.name}_{part}") for part in ("orig", "u", "v"))
        matrix = reshape_to_matrix(weight, self.dim)
        if layer.training:
            iterate(matrix.t(), v, u, self.n_power_iterations, self.eps)  # v first
            u, v = u.clone(), v.clone()
        return weight / torch.dot(u, torch.mv(matrix, v))


@enter_utility("weight_norm")
def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Replace a weight by its norms along an axis (`weight_g`) and its direction (`weight_v`)."""
    WeightNorm(name, dim).register(module)
    return module


@enter_utility("weight_norm")
def remove_weight_norm(module: Module, name: str = "weight") -> Module:
    """Make the weight a parameter again."""
    return WeightNorm.remove(module, name, ("_g", "_v"))


def is_transposed(layer: Module) -> bool:
    """Return whether the second axis of a layer's weight is that of its outputs."""
    return type(layer).__name__.startswith("ConvTranspose")


@enter_utility("spectral_norm")
def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """Divide a weight by its largest singular value, before each forward."""
    SpectralNorm(name, n_power_iterations, int(is_transposed(module)) if dim is None else dim, eps).register(module)
    return module


@enter_utility("spectral_norm")
def remove_spectral_norm(module: Module, name: str = "weight") -> Module:
    """Make the weight a parameter again."""
    return SpectralNorm.remove(module, name, ("_u", "_v", "_orig"))
