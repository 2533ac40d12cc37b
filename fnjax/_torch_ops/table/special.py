"""Polynomials, Bessel and Airy functions, windows, and the inverse of the short-time Fourier transform."""

from fnjax._torch_ops.record import Call, Refuse
from fnjax._torch_ops.registry import add_lines, add_operation

add_lines(
    "\n".join(
        f'special.chebyshev_polynomial_{kind} | input, n | _chebyshev(input, n, "{kind}") | float\n'
        f'special.shifted_chebyshev_polynomial_{kind} | input, n | _chebyshev(2 * input - 1, n, "{kind}") | float'
        for kind in "tuvw"
    )
    + """
special.hermite_polynomial_h | input, n | _hermite(input, n, 2) | float
special.hermite_polynomial_he | input, n | _hermite(input, n, 1) | float
special.laguerre_polynomial_l | input, n | _laguerre(input, n) | float
special.legendre_polynomial_p | input, n | _legendre(input, n) | float
special.airy_ai | x | _airy(x) | float precise
special.bessel_j0 | input | _bessel(input, "j") | float precise
special.bessel_j1 | input | _bessel(input, "j", 1) | float precise
special.bessel_y0 | input | _bessel(input, "y") | float precise
special.bessel_y1 | input | _bessel(input, "y", 1) | float precise
special.modified_bessel_k0 | input | jnp.exp(-input) * _scaled_bessel_k(input) | float precise
special.modified_bessel_k1 | input | jnp.exp(-input) * _scaled_bessel_k(input, 1) | float precise
special.scaled_modified_bessel_k0 | x | _scaled_bessel_k(x) | float precise
special.scaled_modified_bessel_k1 | x | _scaled_bessel_k(x, 1) | float precise
"""
)

_WINDOWS = {
    "general_cosine": ("*, a, sym=True", "_cosine_sum(M, a, sym)"),
    "general_hamming": ("*, alpha=0.54, sym=True", "_cosine_sum(M, (alpha, 1 - alpha), sym)"),
    "hamming": ("*, sym=True", "_cosine_sum(M, (0.54, 0.46), sym)"),
    "hann": ("*, sym=True", "_cosine_sum(M, (0.5, 0.5), sym)"),
    "blackman": ("*, sym=True", "_cosine_sum(M, (0.42, 0.5, 0.08), sym)"),
    "nuttall": ("*, sym=True", "_cosine_sum(M, (0.3635819, 0.4891775, 0.1365995, 0.0106411), sym)"),
    "bartlett": ("*, sym=True", "_window(M, sym, lambda place: 1 - jnp.abs(2 * place - 1))"),
    "cosine": ("*, sym=True", "_sine_window(M, sym)"),
    "exponential": ("*, center=None, tau=1.0, sym=True", "jnp.exp(-jnp.abs(_places(M, sym, center)) / tau)"),
    "gaussian": ("*, std=1.0, sym=True", "jnp.exp(-jnp.square(_places(M, sym) / (std * 2 ** 0.5)))"),
    "kaiser": (
        "*, beta=12.0, sym=True",
        "_window(M, sym, lambda place: jnp.i0(beta * jnp.sqrt(jnp.clip(1 - jnp.square(2 * place - 1), 0))) / jnp.i0(jnp.asarray(beta)))",
    ),
}
for _name, (_options, _template) in _WINDOWS.items():
    _signature = f"M, {_options}, dtype=None, layout=None, device=None, requires_grad=False"
    add_operation(f"torch.signal.windows.{_name}", _signature, _template, "float", made=True)


def _build_istft(call: Call) -> str:
    complex_too = call.read_literal("return_complex")
    if not isinstance(complex_too, bool):
        raise Refuse("return_complex must be True or False as a literal")
    return (
        "_istft(input, n_fft, hop=hop_length, width=win_length, window=window, center=center, normalized=normalized, "
        f"length=length{', cplx=True' * complex_too})"
    )


add_operation(
    "+istft",
    "input, n_fft, hop_length=None, win_length=None, window=None, center=True, normalized=False, onesided=None, "
    "length=None, return_complex=False",
    _build_istft,
    "unknown",
)
add_operation(
    "F.ctc_loss",
    'log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False',
    "_ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=blank, reduction=reduction, zero_infinity=zero_infinity)",
    "float",
)
