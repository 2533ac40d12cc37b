"""Fourier transforms: jnp's and torch's agree but for the names of their arguments."""

from fnjax.torch._table.record import Call, Refuse
from fnjax.torch._table.registry import add_lines, add_operation

add_lines(
    "\n".join(
        f"fft.{name} | input, n=None, dim=-1, norm=None | jnp.fft.{name}(input, n=n, axis=dim, norm=norm) | {result}"
        for name, result in {
            "fft": "complex",
            "ifft": "complex",
            "rfft": "complex",
            "irfft": "float",
            "hfft": "float",
            "ihfft": "complex",
        }.items()
    )
    + "\n"
    + "\n".join(
        f"fft.{name}2 | input, s=None, dim=(-2, -1), norm=None | jnp.fft.{name}2(input, s=s, axes=dim, norm=norm) | {result}\n"
        f"fft.{name}n | input, s=None, dim=None, norm=None | jnp.fft.{name}n(input, s=s, axes=dim, norm=norm) | {result}"
        for name, result in {"fft": "complex", "ifft": "complex", "rfft": "complex", "irfft": "float"}.items()
    )
    + """
fft.fftfreq | n, d=1.0, *, dtype=None, device=None, layout=None, requires_grad=False | jnp.fft.fftfreq(n, d=d, dtype=dtype) | float
fft.rfftfreq | n, d=1.0, *, dtype=None, device=None, layout=None, requires_grad=False | jnp.fft.rfftfreq(n, d=d, dtype=dtype) | float
fft.fftshift | input, dim=None | jnp.fft.fftshift(input, axes=dim) | same
fft.ifftshift | input, dim=None | jnp.fft.ifftshift(input, axes=dim) | same
"""
)


def _build_stft(call: Call) -> str:
    if call.read_literal("return_complex") not in (True, None):
        raise Refuse("return_complex must be True as a literal; PyTorch leaves the other form behind")
    if call.is_given("align_to_window"):
        raise Refuse("align_to_window= has no counterpart in JAX")
    return (
        "_stft(input, n_fft, hop=hop_length, width=win_length, window=window, center=center, pad_mode=pad_mode, "
        "normalized=normalized, onesided=onesided)"
    )


add_operation(
    "+stft",
    'input, n_fft, hop_length=None, win_length=None, window=None, center=True, pad_mode="reflect", normalized=False, '
    "onesided=None, return_complex=None, align_to_window=None",
    _build_stft,
    "complex",
)
