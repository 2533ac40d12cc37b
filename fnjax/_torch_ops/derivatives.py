"""Derivatives that differ between JAX and PyTorch, and the functions that have PyTorch's.

At ties, bounds and zeros JAX's derivatives differ from PyTorch's. Where a short function has PyTorch's, it takes the
place of JAX's in a file that is run, which has PyTorch's values for NaN, too; ported code has JAX's, in fewer words.
"""

from collections.abc import Callable, Mapping

# By the function that a template calls.
FUNCTIONS = {
    "jnp.abs": "_abs",
    "jnp.angle": "_angle",
    "jnp.arctan2": "_arctan2",
    "jnp.clip": "_clip",
    "jnp.fmax": "_fmax",
    "jnp.fmin": "_fmin",
    "jnp.linalg.vector_norm": "_norm",
    "jnp.std": "_std",
    "jax.nn.leaky_relu": "_leaky_relu",
}
NORM = {"jnp.linalg.norm": "_norm"}  # of vectors; Frobenius' norm is one
# By the operation, where that says more than the template.
TEMPLATES = {
    "torch.clamp_min": "_clip(input, min)",
    "torch.clamp_max": "_clip(input, max=(max))",
    "torch.cholesky": "jnp.linalg.cholesky(_hermitian(A, upper), upper=upper)",  # its gradient is symmetric
    "torch.linalg.cholesky": "jnp.linalg.cholesky(_hermitian(A, upper), upper=upper)",
    "torch.linalg.cholesky_ex": "_with_info(jnp.linalg.cholesky(_hermitian(A, upper), upper=upper))",
    "torch.linalg.eigh": 'jnp.linalg.eigh(_hermitian(A, UPLO == "U"))',  # so is that
    "torch.linalg.eigvalsh": 'jnp.linalg.eigvalsh(_hermitian(A, UPLO == "U"))',
    "torch.linalg.householder_product": "_householder(A, tau)",  # which JAX does not differentiate
    "torch.orgqr": "_householder(input, tau)",
    "torch.hypot": "_hypot(input, other)",
    "torch.nextafter": "_nextafter(input, other)",
    "torch.copysign": "_abs(input) * jnp.where(jnp.signbit(other), -1, 1)",
    "torch.nn.functional.hardtanh": "_hardtanh(input, min_val, max_val)",
    "torch.special.xlog1py": "jax.scipy.special.xlog1py(_with_slope_zero(input, other <= -1), other)",
    "torch.xlogy": "jax.scipy.special.xlogy(_with_slope_zero(input, other <= 0), other)",
    "torch.bincount": "_bincount(input, minlength, weights=weights)",
    "torch.nanquantile": "_quantile(input, q, axis=dim, keepdims=keepdim, method=interpolation, skip_nan=True)",
    "torch.quantile": "_quantile(input, q, axis=dim, keepdims=keepdim, method=interpolation)",
    "torch.sign": "_sign(input)",
    "torch.sgn": "_sign(input)",
    "torch.heaviside": "jnp.where(input == 0, values, (input > 0).astype(input.dtype))",
    # The gradient passes where the input is NaN.
    "torch.relu": "jnp.where(input <= 0, 0, input)",
    "torch.nn.functional.relu6": "jnp.where(input <= 0, 0, jnp.where(input >= 6, 6, input))",
    "torch.nn.functional.elu": "_elu(input, alpha)",
    "torch.celu": "_elu(input, alpha, alpha)",
    "torch.selu": "1.0507009873554805 * _elu(input, 1.6732632423543772)",
    "torch.unique": (
        "jnp.unique(input, return_inverse=return_inverse, return_counts=return_counts, axis=dim, equal_nan=False)"
    ),
}


def use_derivative(
    name: str, text: str, literal: Callable[[str], object]
) -> tuple[str, Mapping[str, str], frozenset[str]]:
    """Return the template of a call in a loaded file, and what is changed in it for PyTorch's derivative.

    Args:
        name: the operation.
        text: its template elsewhere.
        literal: the literal values of the call's parameters.

    Returns:
        The template; by the functions that it calls those that take their place; and the keywords that these lack.
    """
    text = TEMPLATES.get(name.replace("torch.Tensor.", "torch.").rstrip("_"), text)
    order = literal("p" if name.endswith(".norm") and "linalg" not in name else "ord")
    plain = order in (None, "fro")
    if not plain and not isinstance(literal("dim"), int):
        return text, FUNCTIONS, frozenset()
    return text, FUNCTIONS | NORM, frozenset({"ord"} if plain else ())
