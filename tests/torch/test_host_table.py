"""Table of NumPy's and SciPy's functions: arrays of ones have the shapes and dtypes of results of all other values."""

import importlib
import operator
import warnings

import jax
import numpy as np
import pytest

from fnjax import torch
from fnjax.torch.host import table
from fnjax.torch.host.calls import record
from fnjax.torch.host.modules import HostFunction, HostModule
from fnjax.torch.host.values import HostValue, Recording, dtype_of
from fnjax.torch.memory.trees import list_leaves, share_memory

# Calls of each function F of the table, with a, b (3, 3), r (5, 5), t (2, 3, 4), x, y (4,), long (64,), e, a number, of
# several dtypes each, i (2,) and j, k, integers, p a permutation, m (3, 3) and n (4,), masks.
CALLS = """
[builtins]
getattr: F(a, "T"); F(t, "real"); F(a, "imag"); F(e, "real"); F(e.item(), "imag")

[operator]
getitem: F(a, 0); F(t, (slice(None), 1)); F(t, (Ellipsis, j)); F(a, i)
getitem: F(a, (i, None, k)); F(a, [0, j]); F(t, (i, slice(1), j))
setitem: F(a, j, x[0]); F(a, (i, slice(1, None)), 2); F(a, m, 3); F(a, 0, b[j])
add sub mul: F(a, b); F(a, x[:3]); F(2, a); F(a, 2.5); F(e, e); F(e.item(), 2); F(a, True); F(e.item(), e.item())
truediv floordiv mod: F(a, b); F(a, x[:3]); F(2, a); F(a, 2.5); F(e, e); F(e.item(), 2)
pow: F(a, b); F(a, 2); F(a, 0.5); F(2, a); F(e, e)
matmul: F(a, b); F(a, x[:3]); F(t, t[0].T); F(x, y)
and_ or_ xor: F(a, b); F(m, True); F(a, 1)
lshift rshift: F(a, i[0]); F(a, 1)
eq ne lt le gt ge: F(a, b); F(a, 0); F(e, 1); F(e.item(), 1)
iadd isub imul itruediv: F(a, b); F(a, x[:3]); F(a, 2); F(e, 1); F(e.item(), e.item())
ifloordiv imod ipow: F(a, b); F(a, 2); F(e, 2)
imatmul: F(a, b)
iand ior ixor: F(a, b); F(m, True)
ilshift irshift: F(a, 1)
neg pos abs invert: F(a); F(e); F(e.item())

[numpy]
zeros ones empty identity eye tri arange indices:
full: F((2, 3), e); F(2, e.item()); F(2, e, dtype=int)
zeros_like ones_like empty_like: F(a); F(t, dtype=int); F(a, shape=(2,))
full_like: F(a, e); F(a, 2)
copy asfortranarray ascontiguousarray asanyarray asarray_chkfinite require asarray: F(a); F(t.T); F(a, dtype=float)
array: F(a); F([a, b]); F([e, 2]); F([[e.item(), 1], [2, j]]); F(a, dtype=float, copy=True); F([x[0], 1.5])
linspace logspace: F(e, 3); F(0, e, 5); F(x, y, num=3); F(0, x[0], 4, endpoint=False)
meshgrid: F(x, y); F(x, y, indexing="ij", copy=False)
vander: F(x); F(x, N=2, increasing=True)
diag diagflat: F(a); F(x); F(a, 1)
tril triu: F(a); F(t, 1)
tril_indices_from triu_indices_from: F(a); F(a, k=1)
diag_indices_from: F(a)
reshape: F(a, 9); F(t, (-1, 4)); F(t.T, -1)
ravel squeeze transpose permute_dims diagonal: F(a); F(t)
moveaxis rollaxis swapaxes: F(t, 0, 2)
expand_dims: F(a, 0)
resize: F(a, (4, 2))
matrix_transpose: F(a); F(t)
unwrap: F(x); F(a, axis=0)
i0 sinc isreal iscomplex: F(a)
flip rot90: F(a); F(t)
fliplr flipud: F(a)
atleast_1d atleast_2d atleast_3d: F(e); F(x, a)
broadcast_arrays: F(a, x[:3]); F(a, 1)
broadcast_to: F(x, (2, 4)); F(e, 3)
concatenate concat: F([a, b]); F((a, t[0]), axis=1); F([x, y], out=np.empty_like(long[:8]))
stack: F([a, b]); F([x, 2 * y], axis=1); F([e, e])
vstack hstack dstack column_stack: F([a, b]); F((x, y))
block: F([[a, b], [b, a]])
unstack: F(a)
astype: F(a, np.float32); F(a, bool)
split array_split: F(x, 2); F(t, [1], axis=1)
hsplit dsplit vsplit: F(t, [1])
tile: F(a, 2); F(x, (2, 1))
repeat: F(a, 2); F(x, [1, 0, 2, 1])
delete: F(x, 1); F(a, [0, 2], axis=0)
insert: F(x, 1, e); F(a, 1, x[:3], axis=0)
append: F(x, y); F(a, b, axis=1)
roll: F(x, 1); F(a, j, axis=0); F(t, (1, j), axis=(0, 1))
pad: F(a, 1); F(x, (1, 2), mode="edge"); F(x, 1, constant_values=e); F(x, 2, mode="linear_ramp", end_values=e)
where: F(m, a, b); F(a > 0, a, 0); F(m, 1.5, b); F(n, x, e)
choose: F(i, [x[:2], y[:2]]); F(j, (a, b)); F(m.astype(int), [a, 0])
select: F([m, a > 1], [a, b]); F([n], [x], default=e)
take: F(a, i); F(a, j); F(t, i, axis=1); F(x, [[0, 1]]); F(x, i + 100, mode="wrap")
take_along_axis: F(a, np.argsort(a, 0), 0); F(x, p, None)
put_along_axis: F(a, np.argsort(b, 0), 2, 0)
put: F(x, i, 5); F(a, [0, 1], y[:2])
place putmask: F(a, m, [7, 8]); F(x, n, y)
copyto: F(a, b, where=m); F(a, 2); F(a, x[:3], casting="unsafe")
fill_diagonal: F(a, e); F(a, 2)
sum prod nansum nanprod: F(a); F(a, 0); F(t, axis=(0, 2), keepdims=True)
sum prod nansum nanprod: F(a, initial=2, where=m); F(a, dtype=float); F(a, axis=1, out=np.empty_like(x[:3]))
max min amax amin nanmax nanmin: F(a); F(a, 0); F(t, axis=(0, 2), keepdims=True); F(a, initial=0, where=m); F(e)
all any: F(a); F(a, 0); F(a, axis=1, where=m); F(e)
mean nanmean: F(a); F(a, 0); F(a, where=m); F(t, axis=(1, 2)); F(a, dtype=np.float64)
std var nanstd nanvar: F(a); F(a, 0, ddof=1); F(t, keepdims=True, axis=1); F(a, mean=a.mean())
ptp argmax argmin nanargmax nanargmin: F(a); F(a, axis=0); F(x)
count_nonzero: F(a); F(a, axis=0); F(a, axis=1, keepdims=True)
median nanmedian: F(a); F(t, axis=1); F(x, keepdims=True)
percentile nanpercentile quantile nanquantile: F(a, 0.5); F(t, [0.25, 0.5], axis=1)
percentile nanpercentile quantile nanquantile: F(x, abs(y[:2]) % 1, method="lower")
average: F(a); F(x, weights=y); F(a, axis=0, weights=abs(x[:3]) + 1, returned=True)
cumsum cumprod nancumsum nancumprod: F(a); F(a, axis=0); F(x, dtype=float)
cumulative_sum cumulative_prod: F(x); F(a, axis=0, include_initial=True)
sort sort_complex argsort: F(a); F(x)
partition argpartition: F(a, 1); F(x, 2); F(a, 1, axis=0)
lexsort: F((x, y)); F(a)
searchsorted: F(x, y); F(x, e); F(x, a, side="right", sorter=p)
digitize: F(a, np.array([0.0, 1.0])); F(x, np.sort(y))
dot inner: F(a, b); F(x, y); F(a, 2); F(a, x[:3])
vdot: F(x, y); F(a, b)
outer kron: F(x, y); F(x, [1, 2])
cross: F(a, b); F(x[:3], b)
tensordot: F(t, a, [[1], [0]]); F(a, b, axes=1)
trace: F(a); F(t, offset=1); F(t, axis1=1, axis2=2)
einsum: F("ij,jk->ik", a, b); F("i,i", x, y); F("tij->j", t, optimize=True); F("ii->i", a)
clip: F(a, 0, 1); F(a, x[:3], None); F(a, e, e); F(a, a_min=0, a_max=2.5)
convolve correlate: F(x, y); F(long, x, mode="valid"); F(x, [1, 2], "same")
interp: F(x, np.sort(y), y); F(e, [0.0, 1.0], [2, 3]); F(a, x, y, left=e, right=0)
diff: F(x); F(a, 2, axis=0); F(x, prepend=e, append=y)
ediff1d: F(x); F(a, to_begin=x)
gradient: F(x); F(a); F(x, 2.0); F(x, np.arange(4.0) ** 2, edge_order=2); F(t, axis=(1, 2)); F(x, e)
trapezoid: F(x); F(a, dx=2, axis=0); F(x, y)
angle: F(a); F(a, deg=True); F(e)
real imag: F(a); F(e)
nan_to_num: F(a); F(e, nan=1.0)
isclose allclose: F(a, b); F(a, 1.0, rtol=e, atol=0.1)
array_equal array_equiv: F(a, b); F(a, t)
isin: F(a, x); F(x, [1, 2], invert=True)
fix isneginf isposinf: F(a); F(e)
round around: F(a); F(x, 2)
polyval: F(x, a); F([1, 2], e)
polyadd polysub: F(x, y); F(x, [1, 2])
polyder: F(x); F(x, m=2)
polyfit: F(x, y, 1); F(np.arange(4.0), y, 2, w=abs(y) + 1); F(np.arange(3.0), a, 1)
cov corrcoef: F(a); F(x, y); F(x)
histogram histogram_bin_edges: F(x, 5); F(a, bins=[0, 1, 2]); F(x, 3, (0, 2)); F(x, weights=y)
histogram2d: F(x, y, 3); F(x, y, bins=[[0, 1], [0, 1, 2]])
histogramdd: F(a, 3); F((x, y), bins=(2, 3))
packbits unpackbits: F(a > 0); F(a.astype(np.uint8), axis=0)
ravel_multi_index: F((i, i), (3, 3)); F(i[None] % 3, (3,))
unravel_index: F(i, (3, 3)); F(j, (3, 4))
shape ndim size isfortran iscomplexobj isrealobj: F(a); F(t.T)
isscalar iterable: F(a); F(e); F(e.item())
can_cast: F(a.dtype, int)
result_type common_type: F(a, x); F(a)

[numpy.linalg]
norm: F(a); F(x); F(x, 1); F(a, "nuc"); F(t, axis=1, keepdims=True)
vector_norm: F(a); F(t, axis=1); F(x, ord=3)
matrix_norm: F(a); F(a, ord=2, keepdims=True)
matrix_rank: F(a); F(x); F(t)
inv det slogdet cholesky svdvals eigvalsh: F(a); F(a @ a.T + 10); F([a, b])
eigh: F(a); F(a @ a.T + 10, "U"); F([a, b])
eig: F(a + 1j); F([a, 1j * b]); F(a)[0].real; F(a)[1].imag
eigvals: F(a + 1j); F([a, 1j * b]); F(a).real; F(a).imag
svd: F(a); F(t, full_matrices=False); F(t[0], compute_uv=False)
qr: F(a); F(t[0], mode="complete"); F(t[0], "r")
cond: F(a); F(a, 1)
matrix_power: F(a, 3); F(a, -1)
tensorinv: F(a, ind=1)
pinv: F(a); F(t, rcond=0.1)
solve: F(a, b); F(a, x[:3])
tensorsolve: F(a, x[:3])
multi_dot: F([a, b, x[:3]])
trace diagonal matrix_transpose: F(a); F(t)
cross: F(a, b)
outer vecdot: F(x, y)
matmul: F(a, b)
tensordot: F(a, b, axes=1)

[numpy.fft]
fft ifft rfft irfft hfft ihfft: F(x); F(a, axis=0); F(a, 4); F(x, norm="ortho")
fft2 ifft2 fftn ifftn rfft2 irfft2 rfftn irfftn: F(a); F(t); F(t, (2, 4))
fftshift ifftshift: F(a); F(x, axes=0)
fftfreq rfftfreq: F(4, e)

[numpy.lib.stride_tricks]
as_strided: F(x, (2, 2), (8, 8))
sliding_window_view: F(x, 2); F(a, (2, 2))

[numpy.polynomial.polynomial]
polyval: F(x, y); F(e, [1, 2.5])

[numpy.polynomial.chebyshev]
chebval: F(x, y)

[numpy.polynomial.legendre]
legval: F(x, y)

[numpy.polynomial.hermite]
hermval: F(x, y)

[scipy.fft]
fft ifft rfft irfft hfft ihfft: F(x); F(a, axis=0); F(a, 4); F(x, norm="ortho")
fft2 ifft2 fftn ifftn rfft2 irfft2 rfftn irfftn: F(a); F(t)
dct idct dst idst: F(x); F(a, 3, axis=0); F(x, norm="ortho", orthogonalize=True)
dctn idctn dstn idstn: F(a); F(t, axes=(0, 1))
fftshift ifftshift: F(a)
fftfreq rfftfreq: F(4, e)

[scipy.linalg]
inv det expm: F(a); F(a @ a.T + 10); F(np.triu(a)); F([a, b])
cholesky cho_factor: F(a); F(a @ a.T + 10, True)
solve: F(a, b); F(a, x[:3]); F(a @ a.T + 10, b, assume_a="pos")
solve_triangular: F(a, b, lower=True); F(a, x[:3])
lu lu_factor: F(a); F(t[0])
lu_solve: F((a, np.arange(3)), x[:3])
cho_solve: F((a, True), x[:3])
eigh: F(a @ a.T); F(a @ a.T, eigvals_only=True); F(a @ a.T, b @ b.T + 100)
sqrtm logm signm: F(a).real; F(a).imag; F(a @ a.T + 1j)
solve_sylvester: F(a @ a.T, b @ b.T + 1, a)
solve_continuous_lyapunov: F(a @ a.T, b)
solve_discrete_lyapunov: F(a / 4, b); F(a @ a.T / 50, b, method="bilinear")
eigvalsh: F(a @ a.T)
svd: F(a); F(t[0], full_matrices=False)
svdvals pinv: F(a); F(t[0])
pinvh: F(a @ a.T)
qr rq: F(a); F(t[0]); F(t[0], mode="economic")
schur: F(a); F(a, output="complex")
hessenberg polar: F(a)
ldl: F(a @ a.T)
norm: F(a); F(x); F(t, axis=1)
toeplitz: F(x); F(x, r=[1, 2, 3])
circulant: F(x)
hankel: F(x, y)
block_diag: F(a, x, [[1]])
khatri_rao: F(a, b)
solve_toeplitz: F(x + 10, y)
matmul_toeplitz: F(x, y)

[scipy.special]
logsumexp: F(a); F(a, axis=0); F(a, 1, b, keepdims=True); F(x, b=y, return_sign=True)
softmax log_softmax: F(a); F(a, axis=0)
sinc: F(a)
multigammaln: F(abs(a) + 5, 2)
polygamma: F(1, abs(x) + 1); F(i, 2.5)
zeta: F(x, 1); F(abs(x) + 2, abs(y) + 1)
diric: F(a, 3)
comb perm: F(x, 2); F(5, i)
factorial: F(x); F(i)
softplus: F(a)

[scipy.signal]
lfilter: F([1, 2], [1.0, 0.5], x); F(x, [1], long)
lfilter: F([0.5], y, long); F([1, 2], [1, 0.5], a, axis=0, zi=np.ones((1, 3)))
filtfilt: F([1, 2], [1.0, 0.5], long); F([1, 2], [4, 1], r, padlen=1)
sosfilt sosfiltfilt: F(np.array([[1, 2, 1, 1, 0.5, 0.1]]), long)
convolve fftconvolve oaconvolve correlate: F(long, x); F(a, b, mode="same")
convolve2d correlate2d: F(r, a); F(r, a, mode="valid"); F(r, a, "same", "fill", e)
upfirdn: F([1, 2], x, 2); F(x, long, 1, 2)
hilbert: F(x); F(long, N=32)
resample: F(long, 32); F(long, 70)
decimate: F(long, 2); F(long, 2, ftype="fir")
resample_poly: F(long, 3, 2)
savgol_filter: F(long, 5, 2)
detrend: F(x); F(long, type="constant")
medfilt: F(x, 3); F(r)
medfilt2d: F(r, 3)
wiener: F(r, 3); F(long, noise=0.5)
periodogram welch: F(long); F(long, fs=2.0, nperseg=16) if "welch" in NAME else F(long, window="hann")
csd coherence: F(long, long[::-1], nperseg=16)
stft spectrogram: F(long, nperseg=16)
istft: F(np.ones((9, 5)) * e, nperseg=16)
freqz: F(x); F(x, y, worN=16)
chirp: F(x, 1.0, 1.0, 2.0)
sawtooth square gausspulse: F(x)
order_filter: F(r, np.ones((3, 3)), 1)

[scipy.ndimage]
gaussian_filter gaussian_laplace gaussian_gradient_magnitude: F(r, 1.0); F(t, 0.5, mode="wrap")
gaussian_filter gaussian_laplace gaussian_gradient_magnitude: F(r, 1.0, output=np.empty_like(r))
gaussian_filter1d: F(r, 1.0); F(x, 0.5, order=1)
uniform_filter maximum_filter minimum_filter median_filter: F(r, 3); F(x, size=2)
uniform_filter1d maximum_filter1d minimum_filter1d: F(r, 3); F(r, 3, axis=0)
rank_filter percentile_filter: F(r, 1, 3)
sobel prewitt: F(r); F(r, axis=0)
laplace: F(r)
convolve correlate: F(r, a); F(x, [1, 2, 1], mode="constant", cval=e)
convolve1d correlate1d: F(r, x[:3]); F(r, [1, 2], axis=0)
zoom: F(r, 2); F(x, 0.5, order=1)
rotate: F(r, 30.0); F(r, 30.0, reshape=False)
shift: F(r, 0.5); F(r, y[:2])
affine_transform: F(r, a[:2, :2], offset=y[:2])
map_coordinates: F(r, a[:2]); F(r, a[:2], order=1, mode="nearest")
spline_filter spline_filter1d: F(r)
binary_erosion binary_dilation: F(r > 0); F(r, iterations=2); F(r, mask=r > 1)
binary_opening binary_closing binary_fill_holes binary_propagation: F(r > 0)
grey_erosion grey_dilation grey_opening grey_closing: F(r, size=3)
white_tophat black_tophat morphological_gradient morphological_laplace: F(r, size=3)
distance_transform_edt: F(r > 0); F(r, return_indices=True)
label: F(r > 0); F(r)
sum_labels mean variance standard_deviation minimum maximum median center_of_mass: F(r); F(r, r > 0); F(x, p, [0, 1])

[scipy.spatial.distance]
cdist: F(a, b); F(a, b, "cityblock")
pdist: F(a)
squareform: F(x[:3])
euclidean sqeuclidean cityblock cosine chebyshev: F(x, y)

[scipy.integrate]
trapezoid simpson: F(x); F(a, dx=2, axis=0); F(x, np.arange(4.0))
cumulative_trapezoid: F(x); F(x, initial=0)

[scipy.stats]
norm.pdf norm.logpdf norm.cdf norm.logcdf norm.sf norm.logsf norm.ppf norm.isf: F(x); F(a, e, scale=2); F(e)
zscore: F(x); F(a, axis=1)

[methods]
all any max min sum prod mean std var cumsum cumprod: a.F(); t.F(); e.F() if hasattr(e, NAME) else 0
argmax argmin round copy flatten ravel: a.F(); t.F(); e.F() if hasattr(e, NAME) else 0
tolist conj conjugate squeeze transpose: a.F(); t.F(); e.F() if hasattr(e, NAME) else 0
clip: a.F(0, 1); a.F(max=2)
dot: a.F(b)
trace diagonal: a.F(); t.F(1)
repeat: a.F(2)
take: a.F(i); a.F(j, axis=1)
choose: i.F([x[:2], y[:2]])
searchsorted: x.F(y)
argsort: a.F(); a.F(axis=0)
argpartition: a.F(1)
swapaxes: t.F(0, 2)
reshape: a.F(9); t.F(3, -1); t.T.F((4, 6))
put: a.F(i, 2)
astype: a.F(float); a.F("int32"); a.F(np.complex64)
view: a.F(np.uint8); a.F()
is_integer: e.F() if hasattr(e, NAME) else 0; e.item().F() if hasattr(e.item(), NAME) else 0
item: e.F(); a.F(0, 1); a.F(j, j); x.F(j)
fill: a.F(3); a.F(e)
sort: a.F(); x.F(axis=0)
partition: a.F(1)
"""
DTYPES = (np.float32, np.int64, np.complex64, np.bool_)


def draw(kind, own, seed):
    """Return arrays by their names, with values of one kind."""
    random = np.random.default_rng(seed)

    def entries(*shape):
        values = random.normal(size=shape) * 2
        if kind == "zeros":
            values = np.zeros(shape)
        elif kind == "others":  # large ones with ties, and what is not finite
            values = np.round(values) * 1e4
            if np.dtype(own).kind in "fc":
                values = np.where(random.random(shape) < 0.3, random.choice([np.nan, np.inf, -np.inf], shape), values)
        if np.dtype(own).kind == "c":
            values = values + 1j * random.normal(size=shape)
        return np.array(values, own)

    made = {"a": entries(3, 3), "b": entries(3, 3), "r": entries(5, 5), "t": entries(2, 3, 4), "long": entries(64)}
    made |= {"x": entries(4), "y": entries(4), "e": entries(1)[0]}
    made |= {"i": random.integers(0, 3, 2), "j": random.integers(0, 3), "k": random.integers(0, 3)}
    made |= {"p": random.permutation(4), "m": random.random((3, 3)) < 0.5, "n": random.random(4) < 0.5}
    return made


def trace(arrays):
    """Return host values for arrays, as if JAX traced them."""

    def enter(array):
        recording = Recording()
        own = array.dtype.type(1) if np.ndim(array) == 0 else np.ones_like(array)
        value = HostValue(recording, own)
        recording.leaves[id(value)] = value, object()
        return value

    return {name: enter(array) for name, array in arrays.items()}


def describe(result):
    """Return what must be known of a result: its structure, shapes and dtypes."""
    leaves = [x.sample if isinstance(x, HostValue) else x for x in list_leaves(result)]
    return [x if isinstance(x, (type, np.dtype)) else (np.shape(x), dtype_of(x)) for x in leaves]


SECTIONS = {part.partition("]")[0]: part.partition("]")[2] for part in CALLS.split("\n[")[1:]}


def list_calls(module):
    """Return names and their calls."""
    lines = [line.partition(":") for line in SECTIONS[module].strip().splitlines() if line]
    return [(n, c.strip()) for names, _, calls in lines for n in names.split() for c in calls.split(";") if c.strip()]


ROWS = {**table._MODULES, "methods": table._BY_METHOD}


def evaluate(code, arrays, numpy, function, name):
    """Return the result of a call, or the exception that it raises."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return eval(code, {"F": function, "np": numpy, "NAME": name, **arrays})
    except Exception as e:  # noqa: BLE001 - of the function
        return e


@pytest.mark.slow
@pytest.mark.parametrize("module", SECTIONS)
def test_results_of_ones_and_of_other_values(module):
    """Shapes, dtypes and sharing of memory are those of the sample's result; only what the table says is written to."""
    calls = list_calls(module)
    assert {name for name, _ in calls} == {
        n for n, row in ROWS[module].items() if row.parameters != [("shape", "known")]
    }
    done, faults = set(), []
    for name, call in calls:
        home = np.ndarray if module == "methods" else importlib.import_module(module)
        try:
            function = operator.attrgetter(name)(home)
        except AttributeError:  # of a newer version
            done.add(name)
            continue
        code = compile(call.replace(".F(", f".{name}("), call, "eval")
        for own in DTYPES:
            drawn = [draw(kind, own, seed) for seed, kind in enumerate(("normal", "zeros", "others"))]
            traced = trace(drawn[0])
            sample = evaluate(code, traced, HostModule(np), lambda *a, f=function, **k: record(f, a, k), name)
            writes = any(step.writes for v in traced.values() for step in v.recording.steps)
            shared = list_shared(sample, {n: v.sample for n, v in traced.items()})
            for arrays in drawn:
                before = {n: np.array(v) for n, v in arrays.items()}
                found = evaluate(code, arrays, np, function, name)
                if isinstance(found, Exception):
                    continue
                where = f"{module} {name}: {call} of {np.dtype(own)}"
                done.add(name)
                if isinstance(sample, Exception):
                    faults.append(f"{where}: {sample}")
                elif describe(sample) != describe(found):
                    faults.append(f"{where}: {describe(sample)}, {describe(found)}")
                elif list_shared(found, arrays) != shared:
                    faults.append(f"{where}: shares memory with {list_shared(found, arrays)}, not {shared}")
                elif not writes and any(before[n].tobytes() != arrays[n].tobytes() for n in arrays):
                    faults.append(f"{where}: writes")
    assert not faults, "\n".join(faults)
    assert done == {name for name, _ in calls}


def list_shared(result, arrays):
    """Return the names of the arrays with which a result shares memory."""
    leaves = [x.sample if isinstance(x, HostValue) else x for x in list_leaves(result)]
    return {n for n, array in arrays.items() if any(share_memory(x, array) for x in leaves)}


CHAINED = ("operator", "numpy", "numpy.linalg", "numpy.fft", "scipy.special", "scipy.ndimage", "methods")


def run_chain(x, chain, numpy):
    """Return what three to six calls of the table make of parts of a tensor, and the tensor after their writes."""
    x = x.clone()
    entries = x.numpy()
    arrays = {"a": entries[:9].reshape(3, 3), "b": entries[9:18].reshape(3, 3).T, "r": entries[20:45].reshape(5, 5)}
    arrays |= {"t": entries[30:54].reshape(2, 3, 4), "long": entries[:64], "x": entries[4:8], "y": entries[30:38:2]}
    arrays |= {"e": entries[2], "m": entries[9:18].reshape(3, 3) > 0, "n": entries[:4] > 0}
    arrays |= {"p": numpy.argsort(entries[:4]), "i": numpy.argsort(entries[:3])[:2]}
    arrays |= {"j": numpy.argmax(entries[:3]), "k": numpy.argmin(entries[:3])}
    results = []
    for name, code, function, into in chain:
        with np.errstate(all="ignore"):
            found = eval(code, {"F": HostFunction(function, name), "np": numpy, "NAME": name, **arrays})
        kinds = (np.ndarray, np.generic, HostValue, bool, int, float, complex)
        leaves = [leaf for leaf in list_leaves(found) if isinstance(leaf, kinds)]
        results += map(torch.tensor, leaves)
        if into in arrays and leaves:  # the next call gets it
            real = numpy.nan_to_num(numpy.real(leaves[0])).astype(np.float32)
            arrays[into] = numpy.resize(real, (3, 3) if into in "ab" else (4,))
    return [*results, x]


@pytest.mark.filterwarnings("ignore")
def test_chains_of_calls():
    """Random chains of calls, with views and writes in place, give under jit what they give outside of it."""
    random, chains = np.random.default_rng(7), []
    pool = []
    for module in CHAINED:
        home = np.ndarray if module == "methods" else importlib.import_module(module)
        for name, call in list_calls(module):
            if module == "methods" or hasattr(home, name):
                function = None if module == "methods" else getattr(home, name)
                pool.append((name, compile(call.replace(".F(", f".{name}("), call, "eval"), function))
    x = random.normal(size=64).astype(np.float32)
    expected = []
    while len(chains) < 25:
        chosen = [pool[i] for i in random.integers(len(pool), size=random.integers(3, 7))]
        chain = [(*call, random.choice(["a", "b", "x", "y", "other"])) for call in chosen]
        try:
            expected.append(torch.jax_view(lambda x, chain=chain: run_chain(x, chain, np))(x))
        except Exception:  # noqa: BLE001 - of arguments that some functions do not take
            continue
        chains.append(chain)
    found = jax.jit(torch.jax_view(lambda x: [run_chain(x, chain, HostModule(np)) for chain in chains]))(x)
    for chain, a, b in zip(chains, expected, found, strict=True):
        calls = [code.co_filename for _, code, *_ in chain]
        assert len(a) == len(b), calls
        for left, right in zip(a, b, strict=True):
            assert (left.shape, left.dtype) == (right.shape, right.dtype), calls
            np.testing.assert_array_equal(left, right, err_msg=str(calls))
