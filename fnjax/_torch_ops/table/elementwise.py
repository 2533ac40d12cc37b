"""Elementwise operations."""

from fnjax._torch_ops.record import Call, Refuse, Template
from fnjax._torch_ops.registry import add_lines, add_operation, mark_column

add_lines("""
*exp | input | jnp.exp(input) | float each
*exp2 special.exp2 | input | 2.0 ** input | float each
*expm1 special.expm1 | input | jnp.expm1(input) | float each
*log | input | jnp.log(input) | float each
*log1p special.log1p | input | jnp.log1p(input) | float each
*sqrt | input | jnp.sqrt(input) | float each
*sin | input | jnp.sin(input) | float each
*cos | input | jnp.cos(input) | float each
*tan | input | jnp.tan(input) | float each
*asin *arcsin | input | jnp.arcsin(input) | float each
*acos *arccos | input | jnp.arccos(input) | float each
*atan *arctan | input | jnp.arctan(input) | float each
*sinh | input | jnp.sinh(input) | float each
*cosh | input | jnp.cosh(input) | float each
*tanh F.tanh | input | jnp.tanh(input) | float each
*asinh *arcsinh | input | jnp.arcsinh(input) | float each
*acosh *arccosh | input | jnp.arccosh(input) | float each
*atanh *arctanh | input | jnp.arctanh(input) | float each
*abs +absolute .absolute_ | input | jnp.abs(input) | same each
*neg *negative | input | -input | same each
+positive | input | input | same view each
*square | input | jnp.square(input) | same each
*reciprocal | input | 1 / input | float each
*sigmoid special.expit F.sigmoid | input | jax.nn.sigmoid(input) | float each
*sinc special.sinc | input | jnp.sinc(input) | float each
*deg2rad | input | jnp.deg2rad(input) | float each
*rad2deg | input | jnp.rad2deg(input) | float each
*erf special.erf | input | jax.scipy.special.erf(input) | float each
*erfc special.erfc | input | jax.scipy.special.erfc(input) | float each
~erfinv special.erfinv | input | jax.scipy.special.erfinv(input) | float each
special.erfcx | input | jax.scipy.special.erfcx(input) | float
~lgamma special.gammaln | input | jax.scipy.special.gammaln(input) | float each
~digamma special.digamma special.psi | input | jax.scipy.special.digamma(input) | float each
torch.polygamma special.polygamma | n, input | _polygamma(n, input) | float precise
.polygamma .polygamma_ | input, n | _polygamma(n, input) | float precise
~mvlgamma special.multigammaln | input, p | jax.scipy.special.multigammaln(input, p) | float
~igamma special.gammainc | input, other | jax.scipy.special.gammainc(input, other) | float
~igammac special.gammaincc | input, other | jax.scipy.special.gammaincc(input, other) | float
*i0 special.i0 special.modified_bessel_i0 | input | jax.scipy.special.i0(input) | float
special.i0e | input | jax.scipy.special.i0e(input) | float
special.i1 special.modified_bessel_i1 | input | jax.scipy.special.i1(input) | float
special.i1e | input | jax.scipy.special.i1e(input) | float
special.entr | input | jax.scipy.special.entr(input) | float
special.ndtr | input | jax.scipy.special.ndtr(input) | float
special.ndtri | input | jax.scipy.special.ndtri(input) | float
special.log_ndtr | input | jax.scipy.special.log_ndtr(input) | float
special.zeta | input, other | _zeta(input, other) | float
special.xlog1py | input, other | jax.scipy.special.xlog1py(input, other) | float
*xlogy special.xlogy | input, other | jax.scipy.special.xlogy(input, other) | float each
special.spherical_bessel_j0 | input | jnp.sinc(input / jnp.pi) | float
+angle | input | jnp.angle(input) | float each
torch.polar | abs, angle | jax.lax.complex(abs * jnp.cos(angle), abs * jnp.sin(angle)) | complex
torch.view_as_real torch.view_as_real_copy | input | jnp.stack([input.real, input.imag], axis=-1) | float view recoded
torch.view_as_complex torch.view_as_complex_copy | input | jax.lax.complex(input[..., 0], input[..., 1]) | complex view recoded
+isnan | input | jnp.isnan(input) | bool each
+isinf | input | jnp.isinf(input) | bool each
+isfinite | input | jnp.isfinite(input) | bool each
+isposinf | input | jnp.isposinf(input) | bool
+isneginf | input | jnp.isneginf(input) | bool
+isreal | input | jnp.isreal(input) | bool
+signbit | input | jnp.signbit(input) | bool each
+isclose | input, other, rtol=1e-05, atol=1e-08, equal_nan=False | jnp.isclose(input, other, rtol=rtol, atol=atol, equal_nan=equal_nan) | bool
+allclose | input, other, rtol=1e-05, atol=1e-08, equal_nan=False | jnp.allclose(input, other, rtol=rtol, atol=atol, equal_nan=equal_nan) | bool
+equal | input, other | jnp.array_equal(input, other) | bool
torch.isin | elements, test_elements, *, assume_unique=False, invert=False | jnp.isin(elements, test_elements, assume_unique=assume_unique, invert=invert) | bool
~nan_to_num torch.nan_to_num_ | input, nan=0.0, posinf=None, neginf=None | jnp.nan_to_num(input, nan=nan, posinf=posinf, neginf=neginf) | same each
+frexp | input | jnp.frexp(input) | pair fields=mantissa,exponent
~mul ~multiply | input, other | input * other | promoted each
~true_divide | input, other | input / other | float each quotient
~remainder | input, other | input % other | promoted each
~fmod | input, other | jnp.fmod(input, other) | promoted each
~floor_divide | input, other | _floor_divide(input, other) | promoted each
+maximum | input, other | jnp.maximum(input, other) | promoted each
+minimum | input, other | jnp.minimum(input, other) | promoted each
+fmax | input, other | jnp.fmax(input, other) | promoted each
+fmin | input, other | jnp.fmin(input, other) | promoted each
~atan2 ~arctan2 | input, other | jnp.arctan2(input, other) | float each
~hypot | input, other | jnp.hypot(input, other) | promoted each
~copysign | input, other | jnp.copysign(input, other) | float each
~nextafter | input, other | jnp.nextafter(input, other) | promoted each
~ldexp torch.ldexp_ | input, other | input * 2.0 ** other | float each
+logaddexp2 | input, other | jnp.logaddexp2(input, other) | promoted
~gcd torch.gcd_ | input, other | jnp.gcd(input, other) | promoted
~lcm torch.lcm_ | input, other | jnp.lcm(input, other) | promoted
~bitwise_not | input | ~input | same each
~bitwise_and | input, other | input & other | promoted each
~bitwise_xor | input, other | input ^ other | promoted each
~bitwise_left_shift | input, other | input << other | promoted
~bitwise_right_shift | input, other | input >> other | promoted
~logical_not | input | jnp.logical_not(input) | bool each
~logical_and | input, other | jnp.logical_and(input, other) | bool each
~logical_or | input, other | jnp.logical_or(input, other) | bool each
~logical_xor | input, other | jnp.logical_xor(input, other) | bool each
~eq | input, other | input == other | bool each
~ne ~not_equal | input, other | input != other | bool each
~lt ~less | input, other | input < other | bool each
~le ~less_equal | input, other | input <= other | bool each
~gt ~greater | input, other | input > other | bool each
~ge ~greater_equal | input, other | input >= other | bool each
~lerp | input, end, weight | input + weight * (end - input) | promoted each
torch.where | condition, input, other | jnp.where(condition, input, other) | promoted each
.where | input, condition, other | jnp.where(condition, input, other) | promoted each
torch.where | condition | jnp.nonzero(condition) | list untraced each
~clamp_min torch.clamp_min_ | input, min | jnp.maximum(input, min) | promoted each
~clamp_max torch.clamp_max_ | input, max | jnp.minimum(input, max) | promoted each
.fill_ torch.fill torch.fill_ | input, value | jnp.full_like(input, value) | same each
.zero_ torch.zero_ | input | jnp.zeros_like(input) | same each
""")  # fmt: skip
add_operation("~bitwise_or", "input, other", "input | other", "promoted", each=True)


def _build_copy(call: Call) -> str:
    """Render copy_: the elements of `other` in the variable's shape and dtype; a number fills it."""
    if not call.is_variable("input") or call.find_kind("src") != "tensor" or call.find_rank("src") == 0:
        return "jnp.full_like(input, src)"
    if call.have_same_shape("input", "src"):
        return "src.astype(input.dtype)"
    return "jnp.broadcast_to(src, input.shape).astype(input.dtype)"


add_operation(".copy_", "input, src, non_blocking=False", _build_copy, each=True)


def _build_masked_fill(call: Call) -> str:
    """Render masked_fill as jnp.where; integers and booleans keep their dtype whatever the value."""
    filled = "jnp.where(mask, value, input)"
    return f"{filled}.astype(input.dtype)" if call.find_dtype("input") in {"int", "bool"} else filled


add_operation("~masked_fill", "input, mask, value", _build_masked_fill, each=True)


def make_rounding(template: str) -> Template:
    """Render a rounding operation: integers are unchanged, where jnp's returns floats."""
    return lambda call: "input" if call.find_dtype("input") in {"int", "bool"} else template


for _name in ("floor", "ceil", "trunc"):
    add_operation(f"*{_name}" + " *fix" * (_name == "trunc"), "input", make_rounding(f"jnp.{_name}(input)"), each=True)


def _build_sign(call: Call) -> str:
    """Render sign; for complex numbers by `_sgn`, since JAX's derivative of jnp.sign is zero."""
    kind = call.find_dtype("input")
    return {"bool": "input", "complex": "_sgn(input)"}.get(kind, "jnp.sign(input)")


add_operation("~sign", "input", _build_sign, each=True)
add_operation("~sgn", "input", _build_sign, each=True)
add_operation("*frac", "input", "input - jnp.trunc(input)", each=True)


def _build_round(call: Call) -> str:
    return "jnp.round(input, decimals)" if call.is_given("decimals") else "jnp.round(input)"


add_operation("*round special.round", "input, *, decimals=0", _build_round, each=True)


def _build_rsqrt(call: Call) -> str:
    return "jax.lax.rsqrt(input)" if call.find_dtype("input") in {"float", "complex"} else "1 / jnp.sqrt(input)"


def _build_float_power(call: Call) -> str:
    """Render float_power, in 64 bits if JAX has them."""
    wide = "complex" if "complex" in (call.find_dtype("input"), call.find_dtype("exponent")) else "float"
    return f"jnp.power(jnp.asarray(input, dtype={wide}), exponent)"


def _build_heaviside(call: Call) -> str:
    """Render heaviside in the dtype of its argument; JAX's returns floats."""
    cast = ".astype(input.dtype)" if call.find_dtype("input") in {"int", "bool"} else ""
    return f"jnp.heaviside(input, values){cast}"


add_operation("~float_power", "input, exponent", _build_float_power, "float")
add_operation("~heaviside", "input, values", _build_heaviside, "same", each=True)


def _build_complex(call: Call) -> str:
    """Render torch.complex; JAX's own takes two arrays of one shape."""
    ranks = {call.find_rank("real"), call.find_rank("imag")}
    parts = "*jnp.broadcast_arrays(real, imag)" if len(ranks) == 2 and None not in ranks else "real, imag"
    return f"jax.lax.complex({parts})"


add_operation("torch.complex", "real, imag", _build_complex, "complex")


def _build_logaddexp(call: Call) -> str:
    """Render logaddexp; JAX keeps the imaginary part between -pi and pi, and PyTorch does not."""
    known = call.find_dtype("input"), call.find_dtype("other")
    return "_logaddexp(input, other)" if "complex" in known else "jnp.logaddexp(input, other)"


add_operation("+logaddexp", "input, other", _build_logaddexp, "promoted", each=True)
add_operation("*rsqrt", "input", _build_rsqrt, "float", each=True)


def _build_logit(call: Call) -> str:
    if call.read_literal("eps") is None:
        return "jax.scipy.special.logit(input)"
    return "jax.scipy.special.logit(jnp.clip(input, eps, 1 - eps))"


add_operation("*logit special.logit", "input, eps=None", _build_logit, "float", each=True)


def _make_logarithm(name: str) -> Template:
    """Render a logarithm, exact for powers of its base if the file rounds numbers."""

    def build(call: Call) -> str:
        base = name.removeprefix("log")
        return f"_log(input, {base}.0)" if call.rounding else f"jnp.{name}(input)"

    return build


for _name in ("log2", "log10"):
    add_operation(f"*{_name}", "input", _make_logarithm(_name), "float", each=True)


def _build_add(call: Call) -> str:
    return "input + alpha * other" if call.is_given("alpha") else "input + other"


def _build_sub(call: Call) -> str:
    return "input - alpha * other" if call.is_given("alpha") else "input - other"


def _build_rsub(call: Call) -> str:
    return "other - alpha * input" if call.is_given("alpha") else "other - input"


add_operation("~add", "input, other, *, alpha=1", _build_add, "promoted", each=True)
add_operation("~sub ~subtract", "input, other, *, alpha=1", _build_sub, "promoted", each=True)
add_operation(
    "~add", "input, alpha, other", _build_add, "promoted", each=True
)  # deprecated, as the other scales by position
add_operation("~sub ~subtract", "input, alpha, other", _build_sub, "promoted", each=True)
add_operation("torch.rsub", "input, other, alpha=1", _build_rsub, "promoted")


def _build_div(call: Call) -> str:
    """Render a true division, unless a rounding mode is named."""
    mode = call.read_literal("rounding_mode")
    if mode is None:
        return "input / other"
    if mode == "floor":
        return "_floor_divide(input, other)"
    if mode == "trunc":
        both = {call.find_dtype("input"), call.find_dtype("other")}
        return "jnp.trunc(input / other)" if "float" in both else "_truncated_divide(input, other)"
    raise Refuse("rounding_mode must be a literal: None, 'floor' or 'trunc'")


add_operation(
    "~div ~divide",
    "input, other, *, rounding_mode=None",
    _build_div,
    "promoted",
    each=True,
    quotient=True,
)


def _build_pow(call: Call) -> str:
    """Render a power; those of integers with negative exponents are 0, except for 1 and -1."""
    whole = {call.find_dtype(n) for n in ("input", "exponent")} <= {"int", "bool"}
    negative = call.is_surely_tensor("exponent") and whole
    return "_integer_power(input, exponent)" if negative else "input ** exponent"


add_operation("~pow", "input, exponent", _build_pow, "promoted", each=True)


def _build_clamp(call: Call) -> str:
    """Render jnp.clip, with its bounds by position if both are given."""
    low, high = call.read_literal("min") is not None, call.read_literal("max") is not None
    if low and high:
        return "jnp.clip(input, min, max)"
    if low:
        return "jnp.clip(input, min=(min))"
    if high:
        return "jnp.clip(input, max=(max))"
    raise Refuse("At least one of 'min' or 'max' must not be None")


add_operation("*clamp *clip", "input, min=None, max=None", _build_clamp, "promoted", each=True)


def _make_scaled(operator: str) -> Template:
    def build(call: Call) -> str:
        scale = "value * " if call.is_given("value") else ""
        return f"input + {scale}tensor1 {operator} tensor2"

    return build


add_operation("~addcmul", "input, tensor1, tensor2, *, value=1", _make_scaled("*"), "promoted", each=True)
add_operation("~addcdiv", "input, tensor1, tensor2, *, value=1", _make_scaled("/"), "promoted", each=True)
add_operation("~addcmul", "input, value, tensor1, tensor2", _make_scaled("*"), "promoted", each=True)
add_operation("~addcdiv", "input, value, tensor1, tensor2", _make_scaled("/"), "promoted", each=True)

_PRECISE = (
    "erfinv erfcx ndtr ndtri log_ndtr entr zeta xlog1py i0e i1 i1e gammainc gammaincc spherical_bessel_j0 multigammaln"
)
mark_column("precise", " ".join(f"special.{name}" for name in _PRECISE.split()))
mark_column("precise", "torch.i0 torch.sinc torch.xlogy torch.logit torch.lgamma torch.digamma")
mark_column(
    "precise", "torch.expm1 torch.log2 torch.log10 torch.rsqrt torch.asinh torch.hypot torch.logaddexp torch.lerp"
)
