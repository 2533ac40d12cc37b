"""Table of the functions of NumPy and SciPy whose results have shapes and dtypes that do not depend on values."""

from __future__ import annotations

import dataclasses
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fnjax.torch.host.values import list_values

# Functions, and their parameters in order. A traced value may be given for `x`; for `_x` none may; `x=` is written to;
# `@x` holds positions (the function is tried with zeros), `%x` a matrix that must be regular (tried with the unit
# matrix); `&x` may share memory with the result wherever positions say; `*x` stands for all further arguments.
# Parameters that are not named take no traced value. A function that is not here is refused with traced values.
_TABLE = """
[builtins]
getattr: a _name

[operator]
getitem: &a @index
setitem: a= @index value
add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift eq ne lt le gt ge: a b
iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor ilshift irshift: a= b
neg pos abs invert: a

[numpy]
zeros ones empty identity eye tri arange indices: _shape
full: _shape fill_value
zeros_like ones_like copy asfortranarray ascontiguousarray asanyarray asarray_chkfinite require: a
array: object
empty_like: prototype
full_like: a fill_value
linspace logspace: start stop _num
meshgrid: *x
vander: x
diag diagflat: v _k
tril triu: m _k
tril_indices_from triu_indices_from diag_indices_from: arr _k
asarray reshape ravel moveaxis rollaxis swapaxes transpose permute_dims expand_dims squeeze diagonal resize: a
matrix_transpose unwrap i0 sinc isreal iscomplex: x
flip rot90 fliplr flipud: m
atleast_1d atleast_2d atleast_3d broadcast_arrays: *arys
broadcast_to: array _shape
concatenate concat: arrays _axis out=
stack: arrays _axis out=
vstack hstack dstack column_stack: tup
block: arrays
unstack astype: x
split array_split hsplit vsplit dsplit: ary
tile: A _reps
repeat: a _repeats
delete: arr _obj
insert: arr _obj values
append: arr values
roll: a shift
pad: array _pad_width _mode constant_values end_values
where: condition x y
choose: @a choices out=
select: condlist choicelist default
take: a @indices _axis out=
take_along_axis: arr @indices
put_along_axis: arr= @indices values
put: a= @ind v
place: arr= mask vals
putmask: a= mask values
copyto: dst= src _casting where
fill_diagonal: a= val
sum prod nansum nanprod: a _axis _dtype out= _keepdims initial where
max min amax amin nanmax nanmin: a _axis out= _keepdims initial where
all any: a _axis out= _keepdims where
mean nanmean: a _axis _dtype out= _keepdims where
std var nanstd nanvar: a _axis _dtype out= _ddof _keepdims where mean
ptp argmax argmin nanargmax nanargmin: a _axis out=
count_nonzero: a
median nanmedian: a _axis out= _overwrite_input
percentile nanpercentile quantile nanquantile: a q _axis out= _overwrite_input weights
average: a _axis weights
cumsum cumprod nancumsum nancumprod: a _axis _dtype out=
cumulative_sum cumulative_prod: x _axis _dtype out=
sort argsort partition argpartition sort_complex: a
lexsort: keys
searchsorted: a v _side @sorter
digitize: x bins
dot: a b out=
vdot inner kron cross: a b
outer: a b out=
tensordot: a b _axes
trace: a _offset _axis1 _axis2 _dtype out=
einsum: _subscripts *operands out=
clip: a a_min a_max out= min max
convolve: a v
correlate: a v
interp: x xp fp left right
diff: a _n _axis prepend append
ediff1d: ary to_end to_begin
gradient: f *varargs
trapezoid: y x dx
angle: z
real imag: val
nan_to_num: x _copy nan posinf neginf
isclose allclose: a b rtol atol
array_equal array_equiv: a1 a2
isin: element test_elements
fix isneginf isposinf: x out=
round around: a _decimals out=
polyval: p x
polyadd polysub: a1 a2
polyder: p
polyfit: x y _deg rcond _full w
cov: m y _rowvar _bias _ddof fweights aweights
corrcoef: x y
histogram: a _bins _range _density weights
histogram_bin_edges: a _bins _range weights
histogram2d: x y _bins _range _density weights
histogramdd: sample _bins _range _density weights
packbits unpackbits: a
ravel_multi_index: @multi_index
unravel_index: @indices
shape ndim size isfortran: a
iscomplexobj isrealobj: x
isscalar: element
iterable: y
can_cast: from_
result_type common_type: *arrays

[numpy.linalg]
norm vector_norm matrix_norm matrix_rank: x
inv det slogdet svdvals cholesky eigh eigvalsh svd qr cond matrix_power tensorinv eig eigvals: %a
pinv: %a rcond
solve: %a b
tensorsolve: %a b
multi_dot: arrays
trace diagonal matrix_transpose: x
cross outer vecdot matmul: x1 x2
tensordot: a b _axes

[numpy.fft]
fft ifft rfft irfft hfft ihfft fft2 ifft2 fftn ifftn rfft2 irfft2 rfftn irfftn: a _n _axis _norm out=
fftshift ifftshift: x
fftfreq rfftfreq: _n d

[numpy.lib.stride_tricks]
as_strided sliding_window_view: x

[numpy.polynomial.polynomial]
polyval: x c

[numpy.polynomial.chebyshev]
chebval: x c

[numpy.polynomial.legendre]
legval: x c

[numpy.polynomial.hermite]
hermval: x c

[scipy.fft]
fft ifft rfft irfft hfft ihfft fft2 ifft2 fftn ifftn rfft2 irfft2 rfftn irfftn: x _n _axis _norm _overwrite_x
dct idct dst idst dctn idctn dstn idstn: x _type _n _axis _norm _overwrite_x
fftshift ifftshift: x
fftfreq rfftfreq: _n d

[scipy.linalg]
inv cholesky: %a _b _overwrite_a
det: %a _overwrite_a
solve: %a b
solve_triangular: %a b
lu lu_factor: %a _b _overwrite_a
cho_factor: %a
cho_solve: c_and_lower b
lu_solve: lu_and_piv b
eigh: %a %b
eigvalsh: %a %b
svd svdvals qr rq schur hessenberg polar pinv pinvh expm sqrtm logm signm: %a
ldl: %A
solve_sylvester: %a %b q
solve_continuous_lyapunov: %a q
solve_discrete_lyapunov: @a q
norm toeplitz circulant: %a
hankel: c r
block_diag: *arrs
khatri_rao: a b
solve_toeplitz: %c_or_cr b
matmul_toeplitz: c_or_cr x

[scipy.special]
logsumexp: a _axis b
softmax log_softmax sinc: x
multigammaln: a _d
polygamma: n x
zeta: x q
diric: x _n
comb perm: N k _exact
factorial: n _exact
softplus: x

[scipy.signal]
lfilter: b a x _axis zi
filtfilt: b a x
sosfilt: sos x _axis zi
sosfiltfilt: sos x
convolve fftconvolve oaconvolve correlate: in1 in2
convolve2d correlate2d: in1 in2 _mode _boundary fillvalue
upfirdn: h x
hilbert: x
resample decimate resample_poly savgol_filter: x
detrend: data
medfilt: volume
medfilt2d: input
wiener: im _mysize noise
periodogram welch: x
csd coherence: x y
stft spectrogram: x
istft: Zxx
freqz: b a
chirp: t f0 t1 f1
sawtooth square: t
gausspulse: t
order_filter: a

[scipy.ndimage]
gaussian_filter: input sigma _order output= _mode cval
gaussian_filter1d: input sigma _axis _order output= _mode cval
gaussian_laplace gaussian_gradient_magnitude: input sigma output= _mode cval
uniform_filter: input _size output= _mode cval
uniform_filter1d maximum_filter1d minimum_filter1d: input _size _axis output= _mode cval
median_filter maximum_filter minimum_filter: input _size _footprint output= _mode cval
rank_filter percentile_filter: input _rank _size _footprint output= _mode cval
sobel prewitt: input _axis output= _mode cval
laplace: input output= _mode cval
convolve correlate: input weights output= _mode cval
convolve1d correlate1d: input weights _axis output= _mode cval
zoom rotate: input
shift: input shift output= _order _mode cval
affine_transform: input matrix offset _output_shape output= _order _mode cval
map_coordinates: input coordinates output= _order _mode cval
spline_filter: input _order output=
spline_filter1d: input _order _axis output=
binary_erosion binary_dilation: input structure _iterations mask output=
binary_opening binary_closing: input structure _iterations output=
binary_fill_holes: input structure output=
binary_propagation: input structure mask output=
grey_erosion grey_dilation grey_opening grey_closing: input _size _footprint structure output=
white_tophat black_tophat morphological_gradient morphological_laplace: input _size _footprint structure output=
distance_transform_edt: input
label: input structure output=
sum_labels mean variance standard_deviation minimum maximum median center_of_mass: input labels _index

[scipy.spatial.distance]
cdist: XA XB
pdist squareform: X
euclidean sqeuclidean cityblock cosine chebyshev: u v

[scipy.integrate]
trapezoid: y x dx
simpson: y x dx
cumulative_trapezoid: y x dx _axis initial

[scipy.stats]
norm.pdf norm.logpdf norm.cdf norm.logcdf norm.sf norm.logsf norm.ppf norm.isf: x loc scale
zscore: a
"""
# Methods of arrays, and of NumPy's and Python's numbers, with the array as the first parameter.
_METHODS = """
all any max min sum prod mean std var cumsum cumprod argmax argmin round clip dot trace diagonal repeat take choose
searchsorted argsort argpartition swapaxes squeeze ravel copy reshape transpose put
"""
_OTHER_METHODS = """
astype flatten view tolist conj conjugate is_integer: a
item: a *@args
fill: a= value
sort partition: a=
"""
_UFUNC_METHODS = """
reduce: array _axis _dtype out= _keepdims initial where
accumulate: array _axis _dtype out=
reduceat: array @indices _axis _dtype out=
outer: *x out=
at: a= @indices *b
"""


def has_known_size(index: Any) -> bool:
    """Return whether the shape of the selected elements depends on shapes alone, not on the values of the index."""
    for part in index if isinstance(index, tuple) else (index,):
        traced = list_values(part)
        if traced and (isinstance(part, slice) or any(np.asarray(v.sample).dtype == bool for v in traced)):
            return False
    return True


# Further conditions for a result of known shape and dtype, on the arguments by their names.
_CONDITIONS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "builtins.getattr": lambda given: given["name"] in {"T", "mT", "real", "imag"},
    "operator.getitem": lambda given: has_known_size(given["index"]),
    "numpy.where": lambda given: len(given) == 3,
    "numpy.histogram": lambda given: not isinstance(given.get("bins"), str),
    "numpy.histogram_bin_edges": lambda given: not isinstance(given.get("bins"), str),
    "numpy.nan_to_num": lambda given: bool(given.get("copy", True)),
    "numpy.polyfit": lambda given: not given.get("full"),
}
# Functions whose results are real or complex as the values of a real matrix decide.
_REAL_OR_COMPLEX = frozenset({
    "numpy.linalg.eig", "numpy.linalg.eigvals", "scipy.linalg.sqrtm", "scipy.linalg.logm", "scipy.linalg.signm",
})  # fmt: skip
# Functions that tell of shapes and dtypes alone.
_FACTS = frozenset({
    "shape", "ndim", "size", "isfortran", "iscomplexobj", "isrealobj", "isscalar", "iterable", "can_cast",
    "result_type", "common_type",
})  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """Row of the table.

    Attributes:
        parameters: names and roles ("", "known", "written", "index", "unit", "shared") in the order of the parameters.
        rest: the name and role of the arguments after those.
        options: the roles of keyword-only arguments.
        condition: arguments by name → whether the shape and dtype of the result are known.
        is_fact: whether the result depends on shapes and dtypes alone.
        is_real_or_complex: whether it depends on the values of real arguments if the result is complex.
    """

    parameters: Sequence[tuple[str, str]]
    rest: tuple[str, str] = ("argument", "known")
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    condition: Callable[[Mapping[str, Any]], bool] | None = None
    is_fact: bool = False
    is_real_or_complex: bool = False

    def find_roles(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return names and roles of arguments in their order."""
        given = [*self.parameters[: len(args)], *[self.rest] * (len(args) - len(self.parameters))]
        roles = {**dict(self.parameters), **self.options}
        return given + [(name, roles.get(name, "known")) for name in kwargs]


_MARKS = {"_": "known", "@": "index", "%": "unit", "&": "shared"}


def _parse(text: str, name: str = "") -> Row:
    """Return a row from the text of its parameters."""
    positions, options, rest = list[tuple[str, str]](), dict[str, str](), None
    for word in text.split():
        plain = word.lstrip("*")
        own = plain.lstrip("_@%&").rstrip("="), "written" if plain.endswith("=") else _MARKS.get(plain[0], "")
        if plain != word:
            rest = own
        elif rest is None:
            positions.append(own)
        else:
            options[own[0]] = own[1]
    is_fact = name.startswith("numpy.") and name[6:] in _FACTS
    return Row(
        positions, rest or ("argument", "known"), options, _CONDITIONS.get(name), is_fact, name in _REAL_OR_COMPLEX
    )


def _parse_lines(text: str, module: str = "") -> dict[str, Row]:
    lines = [line.partition(":") for line in text.strip().splitlines() if line]
    return {name: _parse(rest, f"{module}.{name}") for names, _, rest in lines for name in names.split()}


_SECTIONS = [part.partition("]") for part in _TABLE.split("[")[1:]]
_MODULES = {module: _parse_lines(lines, module) for module, _, lines in _SECTIONS}
_BY_METHOD = {name: _MODULES["numpy"][name] for name in _METHODS.split()} | _parse_lines(_OTHER_METHODS)
_BY_UFUNC_METHOD = _parse_lines(_UFUNC_METHODS)
_by_function = dict[Any, Row]()
_unread = set(_MODULES)


def find_row(function: Any) -> Row | None:
    """Return the row of a function; None where there is none."""
    if getattr(function, "__name__", "") == "__call__":  # ufunc.__call__
        function = function.__self__
    if isinstance(function, np.ufunc):
        if all(t.endswith("O") for t in function.types):  # np.frompyfunc
            return None
        return Row([("x", "")] * function.nin, ("out", "written"), {"out": "written", "where": ""})
    if isinstance(getattr(function, "__self__", None), np.ufunc):
        return _BY_UFUNC_METHOD.get(function.__name__)
    if issubclass(getattr(function, "__objclass__", object), (np.ndarray, np.generic, int, float, complex)):
        return _BY_METHOD.get(function.__name__)
    for module in [m for m in _unread if m in sys.modules]:
        _unread.discard(module)
        for name, row in _MODULES[module].items():
            found = _find(sys.modules[module], name)
            if found is not None:
                _by_function[found] = row
    return _by_function.get(function)


def _find(module: Any, name: str) -> Any:
    try:
        return operator.attrgetter(name)(module)
    except AttributeError:  # of another version
        return None
