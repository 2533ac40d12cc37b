"""Operations along axes: reductions, scans, sorting."""

from fnjax._torch_ops.record import Call, Refuse, Template
from fnjax._torch_ops.registry import add_lines, add_operation, mark_column
from fnjax._torch_ops.signature import MISSING

add_lines("""
+sum | input, dim=None, keepdim=False, *, dtype=None | jnp.sum(input, axis=dim, keepdims=keepdim, dtype=dtype) | same total large axes
+nansum | input, dim=None, keepdim=False, *, dtype=None | jnp.nansum(input, axis=dim, keepdims=keepdim, dtype=dtype) | same large axes
+mean | input, dim=None, keepdim=False, *, dtype=None | jnp.mean(input, axis=dim, keepdims=keepdim, dtype=dtype) | float total axes
+nanmean | input, dim=None, keepdim=False, *, dtype=None | jnp.nanmean(input, axis=dim, keepdims=keepdim, dtype=dtype) | float axes
+prod | input, dim=None, keepdim=False, *, dtype=None | jnp.prod(input, axis=dim, keepdims=keepdim, dtype=dtype) | same total large
+amax | input, dim=None, keepdim=False | jnp.max(input, axis=dim, keepdims=keepdim) | same total axes
+amin | input, dim=None, keepdim=False | jnp.min(input, axis=dim, keepdims=keepdim) | same total axes
+all | input, dim=None, keepdim=False | jnp.all(input, axis=dim, keepdims=keepdim) | bool total
+any | input, dim=None, keepdim=False | jnp.any(input, axis=dim, keepdims=keepdim) | bool total
+argmax | input, dim=None, keepdim=False | jnp.argmax(input, axis=dim, keepdims=keepdim) | int
+argmin | input, dim=None, keepdim=False | jnp.argmin(input, axis=dim, keepdims=keepdim) | int
+aminmax | input, *, dim=None, keepdim=False | (jnp.min(input, axis=dim, keepdims=keepdim), jnp.max(input, axis=dim, keepdims=keepdim)) | pair fields=min,max
+count_nonzero | input, dim=None | jnp.count_nonzero(input, axis=dim) | int axes
+logsumexp special.logsumexp | input, dim, keepdim=False | jax.nn.logsumexp(input, axis=dim, keepdims=keepdim) | float
+max | input | jnp.max(input) | same total
+max | input, other: tensor | jnp.maximum(input, other) | promoted
+min | input | jnp.min(input) | same total
+min | input, other: tensor | jnp.minimum(input, other) | promoted
~cumsum | input, dim, *, dtype=None | jnp.cumsum(input, axis=dim, dtype=dtype) | same large precise along
~cumprod | input, dim, *, dtype=None | jnp.cumprod(input, axis=dim, dtype=dtype) | same large precise along
+logcumsumexp | input, dim | _logcumsumexp(input, axis=dim) | float precise
+cummax | input, dim | _cummax(input, axis=dim) | pair fields=values,indices
+cummin | input, dim | _cummin(input, axis=dim) | pair fields=values,indices
+median | input | _median(input) | same
+median | input, dim, keepdim=False | _median_along(input, axis=dim, keepdims=keepdim) | pair fields=values,indices
+nanmedian | input | _nanmedian(input) | same
+nanmedian | input, dim, keepdim=False | _nanmedian_along(input, axis=dim, keepdims=keepdim) | pair fields=values,indices
+mode | input, dim=-1, keepdim=False | _mode(input, axis=(dim), keepdims=keepdim) | pair fields=values,indices
+kthvalue | input, k, dim=-1, keepdim=False | _kthvalue(input, k, axis=(dim), keepdims=keepdim) | pair fields=values,indices
+quantile | input, q, dim=None, keepdim=False, *, interpolation="linear" | jnp.quantile(input, jnp.asarray(q), axis=dim, keepdims=keepdim, method=interpolation) | float
+nanquantile | input, q, dim=None, keepdim=False, *, interpolation="linear" | jnp.nanquantile(input, jnp.asarray(q), axis=dim, keepdims=keepdim, method=interpolation) | float
+msort | input | jnp.sort(input, axis=0) | same
+argsort | input, dim=-1, descending=False, stable=False | jnp.argsort(input, axis=dim, descending=descending) | int
+argsort | input, *, stable, dim=-1, descending=False | jnp.argsort(input, axis=dim, descending=descending, stable=True) | int
+diff | input, n=1, dim=-1, prepend=None, append=None | jnp.diff(input, n=n, axis=dim, prepend=prepend, append=append) | same
+cov | input, *, correction=1, fweights=None, aweights=None | jnp.cov(input, ddof=correction, fweights=fweights, aweights=aweights) | float
+corrcoef | input | jnp.corrcoef(input) | float
torch.searchsorted | sorted_sequence, input, *, out_int32=False, right=False, side=None, sorter=None | _searchsorted(sorted_sequence, input, side=side, right=right, sorter=sorter) | int
+histogram | input, bins, *, range=None, weight=None, density=False | jnp.histogram(input, bins, range=range, weights=weight, density=density) | pair fields=hist,bin_edges
+histc | input, bins=100, min=0, max=0 | _histc(input, bins=(bins), low=(min), high=(max)) | float
+dist | input, other, p=2 | jnp.linalg.vector_norm(input - other, ord=p) | float
+renorm .renorm_ | input, p, dim, maxnorm | _renorm(input, p, axis=dim, maxnorm=maxnorm) | float
torch.cumulative_trapezoid | y, x=None, *, dx=1, dim=-1 | _cumulative_trapezoid(y, x, dx=dx, axis=dim) | float
torch.trapezoid torch.trapz | y, x=None, *, dx=1.0, dim=-1 | jax.scipy.integrate.trapezoid(y, x=x, dx=dx, axis=dim) | float
torch.frobenius_norm | input, dim=None, keepdim=False | jnp.linalg.vector_norm(input, axis=dim, keepdims=keepdim) | float
linalg.norm | A, ord=None, dim=None, keepdim=False, *, dtype=None | jnp.linalg.norm(A, ord=ord, axis=dim, keepdims=keepdim) | float total axes
linalg.vector_norm | x, ord=2, dim=None, keepdim=False, *, dtype=None | jnp.linalg.vector_norm(x, axis=dim, keepdims=keepdim, ord=ord) | float axes
linalg.matrix_norm | A, ord="fro", dim=(-2, -1), keepdim=False, *, dtype=None | jnp.linalg.norm(A, ord=(ord), axis=(dim), keepdims=keepdim) | float
.sum_to_size | input, *size | _sum_to_size(input, size) | same large
+unique_consecutive | input, return_inverse=False, return_counts=False, dim=None | _unique_consecutive(input, return_inverse, return_counts, axis=dim) | same untraced
+unique | input, sorted=True, return_inverse=False, return_counts=False, dim=None | jnp.unique(input, return_inverse=return_inverse, return_counts=return_counts, axis=dim) | same untraced
""")  # fmt: skip

for _name in ("max", "min"):
    add_operation(
        f"+{_name}",
        "input, dim: static, keepdim=False",
        f"_{_name}(input, axis=dim, keepdims=keepdim)",
        "pair",
        fields="values indices",
        parts={
            "values": f"jnp.{_name}(input, axis=dim, keepdims=keepdim)",
            "indices": f"jnp.arg{_name}(input, axis=dim, keepdims=keepdim)",
        },
    )


def _build_searchsorted_bucketize(call: Call) -> str:
    right = call.read_literal("right")
    side = {True: '"right"', False: '"left"'}.get(right) if isinstance(right, bool) else '"right" if right else "left"'
    return (
        f"jnp.searchsorted(boundaries, input, side={side})"
        if right is not False
        else "jnp.searchsorted(boundaries, input)"
    )


add_operation(
    "torch.bucketize", "input, boundaries, *, out_int32=False, right=False", _build_searchsorted_bucketize, "int"
)


def _make_spread(function: str) -> Template:
    """Render standard deviation and variance: unbiased by default."""

    def build(call: Call) -> str:
        rest = "axis=dim, keepdims=keepdim"
        if call.is_given("correction"):
            value = call.read_literal("correction")
            ddof = "" if value == 0 else ", ddof=1" if value is None else ", ddof=(correction)"
            return f"{function}(input, {rest}{ddof})"
        flag = call.read_literal("unbiased")
        if isinstance(call.read_literal("dim"), bool):
            flag, rest = call.read_literal("dim"), ""
            ddof = ", ddof=1" if flag else ""
            return f"{function}(input{ddof})"
        ddof = ", ddof=int(unbiased)" if flag is MISSING else ", ddof=1" if flag else ""
        return f"{function}(input, {rest}{ddof})"

    return build


_SPREAD = "input, dim=None, unbiased=True, keepdim=False, *, correction=1"
add_operation("+std", _SPREAD, _make_spread("jnp.std"), "float", axes=True)
add_operation("+var", _SPREAD, _make_spread("jnp.var"), "float", axes=True)


def _make_with_mean(function: str) -> Template:
    spread = _make_spread(function)

    def build(call: Call) -> str:
        flag = isinstance(call.read_literal("dim"), bool)
        mean = "jnp.mean(input)" if flag else "jnp.mean(input, axis=dim, keepdims=keepdim)"
        return f"({spread(call)}, {mean})"

    return build


add_operation("torch.std_mean", _SPREAD, _make_with_mean("jnp.std"), "pair", fields="std mean", axes=True)
add_operation("torch.var_mean", _SPREAD, _make_with_mean("jnp.var"), "pair", fields="var mean", axes=True)


def _build_sorted(call: Call) -> str:
    return "_sort(input, axis=(dim), descending=descending)"


_SORTED = {
    "values": "jnp.sort(input, axis=dim, descending=descending)",
    "indices": "jnp.argsort(input, axis=dim, descending=descending)",
}
add_operation(
    "+sort",
    "input, dim=-1, descending=False, stable=False",
    "_sort(input, axis=dim, descending=descending)",
    "pair",
    fields="values indices",
    parts=_SORTED,
)
add_operation(
    "+sort", "input, *, stable, dim=-1, descending=False", _build_sorted, "pair", fields="values indices", parts=_SORTED
)


def _build_topk(call: Call) -> str:
    """Render topk, as lax.top_k for the largest along the last axis."""
    if call.read_literal("dim") in {-1, None} and call.read_literal("largest") is True:
        return "jax.lax.top_k(input, k)"
    return "_topk(input, k, axis=dim, largest=largest)"


add_operation("+topk", "input, k, dim=-1, largest=True, sorted=True", _build_topk, "pair", fields="values indices")


def _build_norm(call: Call) -> str:
    """Render torch.norm: a vector norm for any number of axes, except for the nuclear norm."""
    p = call.read_literal("p")
    if p == "nuc":
        return "jnp.linalg.norm(input, ord='nuc', axis=dim, keepdims=keepdim)"
    if p is MISSING:
        return "jnp.linalg.vector_norm(input, axis=dim, keepdims=keepdim, ord=(p))"
    if p in {"fro", 2, None}:
        plain = not call.is_given("dim") and not call.is_given("keepdim")
        return "jnp.linalg.norm(input)" if plain else "jnp.linalg.vector_norm(input, axis=dim, keepdims=keepdim)"
    return "jnp.linalg.vector_norm(input, axis=dim, keepdims=keepdim, ord=(p))"


add_operation(
    "+bincount",
    "input, weights=None, *, minlength",
    "_bincount(input, (minlength), weights=weights)",
    "int",
    note="under jit the result has minlength elements, and numbers from there on are not counted; outside jit it grows as "
    "in PyTorch",
)
add_operation(
    "+bincount",
    "input, weights=None, minlength=0",
    "jnp.bincount(input, weights=weights, minlength=minlength)",
    "int",
    traced=False,
)


def _build_norm_cast(call: Call) -> str:
    text = _build_norm(call)
    if call.is_given("dtype"):
        return text.replace("(input", "(input.astype((dtype))", 1)
    return text


for _name in ("torch.norm", ".norm"):
    add_operation(
        _name,
        'input, p="fro", dim=None, keepdim=False, dtype=None',
        _build_norm_cast,
        "float",
        total=True,
        axes=True,
    )


def _build_nuclear(call: Call) -> str:
    if call.is_given("dim"):
        raise Refuse("write torch.linalg.matrix_norm with ord='nuc'")
    return "jnp.linalg.norm(input, ord='nuc', keepdims=keepdim)"


add_operation("torch.nuclear_norm", "input, dim=None, keepdim=False", _build_nuclear, "float")


def _build_gradient(call: Call) -> str:
    """Render gradient by central differences; jnp has edge_order 1 only."""
    if call.read_literal("edge_order") not in (1, 2):
        raise Refuse("edge_order must be 1 or 2 as a literal")
    axis = ", axis=dim" if call.is_given("dim") else ""
    spacing = ", spacing" if call.is_given("spacing") else ""
    order = ", edge_order=2" if call.is_given("edge_order") else ""
    return f"_gradient(input{spacing}{axis}{order})"


add_operation("torch.gradient", "input, *, spacing=1, dim=None, edge_order=1", _build_gradient, "list", quotient=True)

mark_column("precise", "torch.std torch.var torch.norm torch.nanmean")
