"""torch.nn.utils.parametrizations: weight_norm, spectral_norm and orthogonal."""

from __future__ import annotations

from typing import Any

import numpy as np

from fnjax._torch_ops.registry import known
from fnjax.torch._nn.module.module import Module
from fnjax.torch._nn.utils.init import skip_draws
from fnjax.torch._nn.utils.parametrize import register_parametrization
from fnjax.torch._nn.utils.weight_hooks import is_transposed, iterate, norm_except_dim, reshape_to_matrix, weigh
from fnjax.torch.memory.tensor import Tensor, make
from fnjax.torch.names.registry import module
from fnjax.torch.recording.gradient_mode import set_mode, switch

torch, F = module("torch"), module("torch.nn.functional")


class _WeightNorm(Module):
    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return weigh(weight_v, weight_g, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return norm_except_dim(weight, 2, self.dim), weight


@known("torch.nn.utils.parametrizations.weight_norm")
def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Compute a weight from its norms along an axis and its direction; state dicts of the older form load as well."""

    def rename(state: dict[str, Any], prefix: str, *_: Any) -> None:
        for i, part in enumerate("gv"):
            if f"{prefix}{name}_g" in state or f"{prefix}{name}_v" in state:
                key = f"{prefix}{name}_{part}"
                if key in state:
                    state[f"{prefix}parametrizations.{name}.original{i}"] = state.pop(key)

    register_parametrization(module, name, _WeightNorm(dim), unsafe=True)
    module._register_load_state_dict_pre_hook(rename)
    return module


class _SpectralNorm(Module):
    def __init__(self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12) -> None:
        super().__init__()
        if not -weight.ndim <= dim < weight.ndim:
            raise IndexError(
                f"Dimension out of range (expected to be in range of [-{weight.ndim}, {weight.ndim - 1}] but got {dim})"
            )
        if n_power_iterations <= 0:
            raise ValueError(
                f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}"
            )
        self.dim, self.eps, self.n_power_iterations = dim % weight.ndim, eps, n_power_iterations
        if weight.ndim > 1:
            matrix = reshape_to_matrix(weight.detach(), self.dim)
            for name, size in zip(("_u", "_v"), matrix.shape, strict=True):
                self.register_buffer(name, F.normalize(matrix.new_empty(size).normal_(0, 1), dim=0, eps=eps))
            iterate(matrix, self._u, self._v, 15, eps)

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        matrix = reshape_to_matrix(weight, self.dim)
        if self.training:
            iterate(matrix, self._u, self._v, self.n_power_iterations, self.eps)
        return weight / torch.vdot(self._u.clone(), torch.mv(matrix, self._v.clone()))

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


@known("torch.nn.utils.parametrizations.spectral_norm")
def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """Divide a weight by its largest singular value, which buffers approximate."""
    weight = getattr(module, name)
    dim = int(is_transposed(module)) if dim is None else dim
    return register_parametrization(module, name, _SpectralNorm(weight, n_power_iterations, dim, eps))


def _factorize(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the Householder vectors, above them R, and their factors (geqrf)."""
    found, tau = np.linalg.qr(np.asarray(matrix.array), mode="raw")
    return make(np.ascontiguousarray(found.mT), matrix.dtype), make(tau, matrix.dtype)


def _make_orthogonal(matrix: Tensor) -> Tensor:
    found, tau = _factorize(matrix)
    signs = found.diagonal(dim1=-2, dim2=-1).sgn()
    return torch.linalg.householder_product(found, tau) * signs.unsqueeze(-2)


class _Orthogonal(Module):
    base: Tensor

    def __init__(self, weight: Tensor, kind: str, *, use_trivialization: bool = True) -> None:
        super().__init__()
        if weight.is_complex() and kind == "householder":
            raise ValueError("The householder parametrization does not support complex tensors.")
        self.shape, self.kind = weight.shape, kind
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.size(-2) < x.size(-1)
        x = x.mT if wide else x
        n, k = x.size(-2), x.size(-1)
        if self.kind == "householder":
            vectors = x.tril(diagonal=-1)
            q = torch.linalg.householder_product(vectors, 2.0 / (1.0 + (vectors * vectors).sum(dim=-2)))
            q = q * x.diagonal(dim1=-2, dim2=-1).int().unsqueeze(-2)
        else:
            lower = x.tril()
            if n != k:
                lower = torch.cat([lower, lower.new_zeros(n, n - k).expand(*lower.shape[:-2], -1, -1)], dim=-1)
            skew = lower - lower.mH
            if self.kind == "matrix_exp":
                q = torch.linalg.matrix_exp(skew)
            else:
                one = torch.eye(n, dtype=skew.dtype)
                q = torch.linalg.solve(one - skew * 0.5, one + skew * 0.5)
            q = q[..., :k]
        if hasattr(self, "base"):
            q = self.base @ q
        return q.mT if wide else q

    def right_inverse(self, q: Tensor) -> Tensor:
        if q.shape != self.shape:
            raise ValueError(
                f"Expected a matrix or batch of matrices of shape {self.shape}. Got a tensor of shape {q.shape}."
            )
        with set_mode(switch(False)):
            wide = q.size(-2) < q.size(-1)
            tall = q.mT if wide else q
            n, k = tall.size(-2), tall.size(-1)
            if not hasattr(self, "base"):
                if self.kind != "householder":
                    raise NotImplementedError(
                        "It is not possible to assign to the matrix exponential or the Cayley parametrizations when "
                        "use_trivialization=False."
                    )
                found, tau = _factorize(tall)
                diagonal = found.diagonal(dim1=-2, dim2=-1)
                diagonal.sign_()
                diagonal.mul_(1 - 2 * torch.eq(tau, 0).to(tau.dtype))
                return found.mT if wide else found
            if n != k:
                tall = torch.cat([tall, torch.randn(*tall.shape[:-2], n, n - k, dtype=tall.dtype)], dim=-1)
            product = tall.mH @ tall
            close = torch.allclose(product, torch.eye(n, dtype=q.dtype), atol=10 * n * torch.finfo(q.dtype).eps)
            self.base = tall.clone() if n == k and close else _make_orthogonal(tall)
            minus = torch.zeros(q.shape, dtype=q.dtype)
            minus.diagonal(dim1=-2, dim2=-1).fill_(-1.0)
            return minus


@known("torch.nn.utils.parametrizations.orthogonal")
def orthogonal(
    module: Module, name: str = "weight", orthogonal_map: str | None = None, *, use_trivialization: bool = True
) -> Module:
    """Make a weight a matrix with orthonormal columns, or rows where it has more columns.

    Raises:
        ValueError: the weight is not a matrix, or `orthogonal_map` is not one of PyTorch's names.
    """
    weight = getattr(module, name)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    if weight.ndim < 2:
        raise ValueError(f"Expected a matrix or batch of matrices. Got a tensor of {weight.ndim} dimensions.")
    square = weight.shape[-2] == weight.shape[-1] or weight.is_complex()
    kind = orthogonal_map or ("matrix_exp" if square else "householder")
    if kind not in {"matrix_exp", "cayley", "householder"}:
        raise ValueError(
            f'orthogonal_map has to be one of "matrix_exp", "cayley", "householder". Got: {orthogonal_map}'
        )
    made = _Orthogonal(weight, kind, use_trivialization=use_trivialization)
    return register_parametrization(module, name, made, unsafe=True)


@known("torch.nn.utils.skip_init", "torch.nn.utils.init.skip_init")
def skip_init(module_cls: type[Module], *args: Any, **kwargs: Any) -> Module:
    """Return a module without drawing its initial values, which needs no `fnjax.torch.seed`."""
    with skip_draws():
        return module_cls(*args, **{k: v for k, v in kwargs.items() if k != "device"})
