"""Functions of NumPy and SciPy for which JAX has the same.

A line says: what is known of the result | where JAX has them | names. The result is `entry` (each entry of the
arguments alone), `float`, `int`, `bool` or `complex` (of that dtype), `same` (the first argument's dtype), `view` (may
share its memory), `list` (of what may share it), or `parts=N`.
"""

from __future__ import annotations

_TABLE = """
entry | numpy jnp | abs absolute add clip conj conjugate copysign divide exp exp2 expm1 fabs floor ceil trunc rint fmax
entry | numpy jnp | fmin fmod floor_divide hypot log log10 log1p log2 logaddexp logaddexp2 maximum minimum mod
entry | numpy jnp | multiply nan_to_num negative positive power float_power reciprocal remainder round sign sqrt cbrt
entry | numpy jnp | square subtract true_divide where zeros_like ones_like full_like sin cos tan arcsin arccos arctan
entry | numpy jnp | arctan2 sinh cosh tanh arcsinh arccosh arctanh sinc deg2rad rad2deg degrees radians heaviside angle
bool | numpy jnp | isnan isinf isfinite isneginf isposinf signbit isclose equal not_equal less less_equal greater
bool | numpy jnp | greater_equal logical_and logical_or logical_not logical_xor any all array_equal allclose isin
int | numpy jnp | argmax argmin nanargmax nanargmin argsort count_nonzero searchsorted digitize
same | numpy jnp | full sum prod max min amax amin nansum nanmax nanmin nanprod cumsum cumprod ptp dot vdot inner outer
same | numpy jnp | matmul tensordot einsum kron trace concatenate stack vstack hstack dstack column_stack block tile
same | numpy jnp | repeat diagflat tril triu roll sort take take_along_axis diff pad convolve correlate cross append
same | numpy jnp | array copy empty_like vander
float | numpy jnp | mean std var median average percentile quantile nanmean nanstd nanvar nanmedian cov corrcoef interp
float | numpy jnp | gradient trapezoid
view | numpy jnp | transpose reshape ravel expand_dims squeeze swapaxes moveaxis rollaxis broadcast_to asarray
view | numpy jnp | atleast_1d atleast_2d atleast_3d diag diagonal flip flipud fliplr rot90 real imag
list | numpy jnp | split array_split hsplit vsplit dsplit
parts=2 | numpy jnp | frexp modf divmod
same | numpy.linalg jnp.linalg | inv det cholesky solve pinv matrix_power eigvalsh svdvals multi_dot
float | numpy.linalg jnp.linalg | norm cond
parts=2 | numpy.linalg jnp.linalg | eigh qr slogdet
parts=3 | numpy.linalg jnp.linalg | svd
complex | numpy.fft jnp.fft | fft ifft fft2 ifft2 fftn ifftn rfft rfft2 rfftn ihfft
same | numpy.fft jnp.fft | fftshift ifftshift
float | numpy.fft jnp.fft | irfft irfft2 irfftn hfft
complex | scipy.fft jnp.fft | fft ifft fft2 ifft2 fftn ifftn rfft rfft2 rfftn
float | scipy.fft jnp.fft | irfft irfft2 irfftn
float | scipy.special jax.scipy.special | betaln digamma entr erf erfc erfinv expit gamma gammainc gammaincc gammaln i0 i0e
float | scipy.special jax.scipy.special | i1 i1e log_ndtr logit ndtr ndtri xlogy xlog1py zeta polygamma
float | scipy.special jax.scipy.special | softmax log_softmax logsumexp
float | scipy.linalg jax.scipy.linalg | expm
float | scipy.linalg jnp.linalg | inv det pinv
float | scipy.signal jax.scipy.signal | convolve convolve2d correlate correlate2d fftconvolve
float | scipy.stats.norm jax.scipy.stats.norm | cdf pdf logcdf logpdf ppf sf
"""
_LISTS = """
concatenate stack vstack hstack dstack column_stack block array asarray einsum multi_dot reshape transpose tile
broadcast_to moveaxis roll pad flip squeeze expand_dims tensordot rot90 full_like
split array_split hsplit vsplit dsplit
"""
LISTS = frozenset(_LISTS.split())  # those that take lists: of arrays, or for a shape or axes
RENAMED = {"a_min": "min", "a_max": "max"}
_KEYWORDS = """
axis keepdims dtype where initial ddof a_min a_max min max norm n s mode full_matrices axes ord offset k decimals nan
posinf neginf x dx weights left right side shift shape repeats axis1 axis2 loc scale UPLO rowvar constant_values
pad_width reps source destination rtol atol equal_nan fill_value order
"""
KEYWORDS = frozenset(_KEYWORDS.split())  # those that both sides have, with one meaning
UFUNCS = frozenset({"where", "dtype"})  # keywords of entrywise functions, of which these have both in NumPy only
CREATED = frozenset({"zeros_like", "ones_like", "full_like"})
SUMS = frozenset({"sum", "prod", "cumsum", "cumprod", "nansum", "nanprod", "trace"})  # of booleans they are integers
JAX: dict[str, tuple[str, str]] = {}
for _line in _TABLE.strip().splitlines():
    _result, _roots, _names = (part.strip() for part in _line.split("|"))
    _root, _target = _roots.split()
    for _name in _names.split():
        JAX[f"{_root}.{_name}"] = _result, f"{_target}.{_name}"
JAX["numpy.ascontiguousarray"] = "view", "jnp.asarray"
JAX["scipy.special.psi"] = "float", "jax.scipy.special.digamma"

# Methods of NumPy's arrays that JAX's have with the same meaning, by what is known of the result.
METHODS = {
    **dict.fromkeys(["all", "any"], "bool"),
    **dict.fromkeys(["argmax", "argmin", "argsort"], "int"),
    **dict.fromkeys(["mean", "std", "var"], "float"),
    **dict.fromkeys(["sum", "prod", "max", "min", "cumsum", "cumprod", "trace", "dot", "repeat", "take"], "same"),
    **dict.fromkeys(["clip", "round", "conj", "conjugate", "copy"], "entry"),
    **dict.fromkeys(["reshape", "ravel", "flatten", "squeeze", "swapaxes", "transpose", "diagonal", "view"], "view"),
}
DTYPES = {
    **dict.fromkeys(["float64", "double", "float_", "longdouble"], "float"),
    **dict.fromkeys(["int64", "int_", "longlong", "intp"], "int"),
    **dict.fromkeys(["complex128", "complex_", "cdouble"], "complex"),
    **dict.fromkeys(["bool", "bool_"], "bool"),
    **{
        name: f"jnp.{name}" for name in ["float32", "float16", "int32", "int16", "int8", "uint8", "uint32", "complex64"]
    },
    "single": "jnp.float32",
    "half": "jnp.float16",
    "float": "float",
    "int": "int",
    "complex": "complex",
}
# Functions that return a scalar of NumPy's own for a Python number.
SCALARS = frozenset(
    {"float64", "float32", "float16", "sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos"}
    | {"tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ceil", "floor", "round", "abs", "power", "maximum"}
    | {"minimum", "square", "sign", "arctan2", "hypot", "deg2rad", "rad2deg", "cbrt", "reciprocal", "mod", "divide"}
)
CONSTANTS = frozenset({"numpy.pi", "numpy.e", "numpy.inf", "numpy.nan", "numpy.euler_gamma"})  # Python's floats
# Those whose last digit may differ in JAX for whole powers are torch's operations.
POWERS = frozenset({"exp2", "log2", "log10"})
CREATING = frozenset({"zeros", "ones", "empty", "full"})
