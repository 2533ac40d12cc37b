"""Fourier transforms: jnp's and torch's agree but for the names of their arguments."""

from fnjax._torch_ops.record import Call, Refuse, Template
from fnjax._torch_ops.registry import add_lines, add_operation

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
    + """
fft.fftfreq | n, d=1.0, *, dtype=None, device=None, layout=None, requires_grad=False | jnp.fft.fftfreq(n, d=d, dtype=dtype) | float
fft.rfftfreq | n, d=1.0, *, dtype=None, device=None, layout=None, requires_grad=False | jnp.fft.rfftfreq(n, d=d, dtype=dtype) | float
fft.fftshift | input, dim=None | jnp.fft.fftshift(input, axes=dim) | same
fft.ifftshift | input, dim=None | jnp.fft.ifftshift(input, axes=dim) | same
"""
)


def _make_several(name: str, suffix: str) -> Template:
    """Return the template of a transform over several axes, or over one that is given as a number."""

    def build(call: Call) -> str:
        if isinstance(call.read_literal("dim"), int):
            return f"jnp.fft.{name}n(input, s=s, axes=(dim,), norm=norm)"
        return f"jnp.fft.{name}{suffix}(input, s=s, axes=dim, norm=norm)"

    return build


def _make_hermitian(template: str) -> Template:
    """Return the template of a transform of Hermitian signals, by the inverse one with the inverse norm."""

    def build(call: Call) -> str:
        try:
            norm = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}[
                call.read_literal("norm")
            ]
        except (KeyError, TypeError):
            raise Refuse("norm must be a literal") from None
        axes = "(dim,)" if isinstance(call.read_literal("dim"), int) else "(dim)"
        return template.format(f's=s, axes={axes}, norm="{norm}"')

    return build


for _suffix, _dim in {"2": "(-2, -1)", "n": "None"}.items():
    _signature = f"input, s=None, dim={_dim}, norm=None"
    for _name in ("fft", "ifft", "rfft", "irfft"):
        _result = "float" if _name == "irfft" else "complex"
        add_operation(f"fft.{_name}{_suffix}", _signature, _make_several(_name, _suffix), _result)
    _forward = _make_hermitian("jnp.fft.irfftn(jnp.conj(input), {})")
    add_operation(f"fft.hfft{_suffix}", _signature, _forward, "float")
    add_operation(f"fft.ihfft{_suffix}", _signature, _make_hermitian("jnp.conj(jnp.fft.rfftn(input, {}))"), "complex")


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
