"""Operations that read and write elements at indices."""

from fnjax._torch_ops.record import Call, Refuse, Template
from fnjax._torch_ops.registry import add_lines, add_operation

add_lines("""
+gather | input, dim, index, *, sparse_grad=False | _gather(input, index, axis=dim) | same
+index_select | input, dim, index | jnp.take(input, index, axis=dim) | same
+take | input, index | jnp.take(input, index) | same
~scatter_add | input, dim, index, src | _scatter(input, index, src, axis=dim, how="add") | same
~index_copy | input, dim, index, source | _index_write(input, index, source, axis=dim) | same
~index_fill | input, dim, index, value | _index_write(input, index, value, axis=dim) | same
~masked_scatter | input, mask, source | _masked_scatter(input, mask, source) | same
+masked_select | input, mask | _masked_select(input, mask) | same untraced selects
~put | input, index, source, accumulate=False | _put(input, index, source, accumulate=accumulate) | same
+argwhere | input | jnp.argwhere(input) | int untraced
+nonzero_static | input, *, size, fill_value=-1 | jnp.argwhere(input, size=size, fill_value=(fill_value)) | int
+select_scatter | input, src, dim, index | _select_scatter(input, src, axis=dim, index=index) | same
+slice_scatter | input, src, dim=0, start=None, end=None, step=1 | _slice_scatter(input, src, axis=dim, start=start, end=end, step=step) | same
+diagonal_scatter | input, src, offset=0, dim1=0, dim2=1 | _diagonal_scatter(input, src, offset=offset, axis1=dim1, axis2=dim2) | same
.fill_diagonal_ | input, fill_value, wrap=False | jnp.fill_diagonal(input, fill_value, inplace=False) | same
torch.vmap torch.func.vmap | func, in_dims=0, out_dims=0 | jax.vmap(func, in_axes=in_dims, out_axes=out_dims) | static
torch.unravel_index | indices, shape | jnp.unravel_index(indices, shape) | list
""")  # fmt: skip


def _make_embedding(indices: str) -> Template:
    """Render the selection of rows; if it is differentiated, that of padding_idx gets no gradient."""

    def build(call: Call) -> str:
        if call.is_given("max_norm"):
            raise Refuse("max_norm= writes to the weight; divide its rows by hand")
        if not call.differentiated:
            return f"weight[{indices}]"
        if call.is_given("scale_grad_by_freq"):
            raise Refuse("scale_grad_by_freq= has no counterpart in JAX")
        return (
            f"_padded_embedding({indices}, weight, padding_idx)"
            if call.is_given("padding_idx")
            else f"weight[{indices}]"
        )

    return build


_OPTIONS = "scale_grad_by_freq=False, sparse=False"
_LIMITED = f"padding_idx=None, max_norm=None, norm_type=2.0, {_OPTIONS}"


def _build_embedding_bag(call: Call) -> str:
    for name in ("max_norm", "scale_grad_by_freq"):
        if call.is_given(name):
            raise Refuse(f"{name}= has no counterpart in JAX")
    return "_embedding_bag(input, weight, offsets, per_sample_weights, mode, include_last_offset, padding_idx)"


add_operation(
    "F.embedding_bag",
    "input, weight, offsets=None, max_norm=None, norm_type=2, scale_grad_by_freq=False, mode='mean', sparse=False, "
    "per_sample_weights=None, include_last_offset=False, padding_idx=None",
    _build_embedding_bag,
    "same",
)
add_operation("F.embedding", f"input, weight, {_LIMITED}", _make_embedding("input"))
add_operation("torch.embedding", f"weight, indices, padding_idx=-1, {_OPTIONS}", _make_embedding("indices"))  # -1: none


def _build_index_add(call: Call) -> str:
    source = "(alpha) * source" if call.is_given("alpha") else "source"
    return f'_index_write(input, index, {source}, axis=dim, how="add")'


add_operation("~index_add", "input, dim, index, source, *, alpha=1", _build_index_add)
_REDUCTIONS = {
    "add": "add",
    "sum": "add",
    "multiply": "multiply",
    "prod": "multiply",
    "amax": "max",
    "amin": "min",
    "mean": "mean",
}


def _make_scatter(value: str) -> Template:
    def build(call: Call) -> str:
        reduce = call.read_literal("reduce")
        if reduce is None:
            return f"_scatter(input, index, {value}, axis=dim)"
        if reduce not in {"add", "multiply"}:
            raise Refuse("reduce must be a literal, 'add' or 'multiply'")
        return f'_scatter(input, index, {value}, axis=dim, how="{reduce}")'

    return build


add_operation("~scatter", "input, dim, index, src, *, reduce=None", _make_scatter("src"))
add_operation("~scatter", "input, dim, index, value, *, reduce=None", _make_scatter("value"))


def _make_reduced(write: str, reduction: str, joined: str, source: str) -> Template:
    """Return the rule of scatter_reduce or index_reduce."""

    def build(call: Call) -> str:
        reduce = call.read_literal("reduce")
        if reduce not in _REDUCTIONS:
            raise Refuse("reduce must be a literal: 'sum', 'prod', 'mean', 'amax' or 'amin'")
        how = _REDUCTIONS[reduce]
        if call.differentiated and how in {"multiply", "max", "min"}:  # which JAX does not differentiate
            return f'{joined}(input, index, {source}, axis=dim, how="{how}", include_self=include_self)'
        if how != "mean" and call.read_literal("include_self") is True:
            return f'{write}(input, index, {source}, axis=dim, how="{how}")'
        return f'{reduction}(input, index, {source}, axis=dim, how="{how}", include_self=include_self)'

    return build


add_operation(
    "~scatter_reduce",
    "input, dim, index, src, reduce, *, include_self=True",
    _make_reduced("_scatter", "_scatter_reduce", "_scatter_joined", "src"),
)
add_operation(
    "~index_reduce",
    "input, dim, index, source, reduce, *, include_self=True",
    _make_reduced("_index_write", "_index_reduce", "_index_joined", "source"),
)


def _build_index_put(call: Call) -> str:
    accumulate = call.read_literal("accumulate")
    if not isinstance(accumulate, bool):
        raise Refuse("accumulate must be True or False as a literal")
    return f"input.at[tuple(indices)].{'add' if accumulate else 'set'}(values)"


add_operation("~index_put torch.index_put_", "input, indices, values, accumulate=False", _build_index_put)


def _build_nonzero(call: Call) -> str:
    if call.find_rank("input") == 0 and call.read_literal("as_tuple"):
        return "jnp.nonzero(input.reshape(1))"
    return {True: "jnp.nonzero(input)", False: "jnp.argwhere(input)"}[bool(call.read_literal("as_tuple"))]


add_operation("+nonzero", "input, *, as_tuple=False", _build_nonzero, "int", traced=False)


def _build_one_hot(call: Call) -> str:
    if not call.is_given("num_classes"):
        raise Refuse("the number of classes depends on the values; give num_classes")
    return "jax.nn.one_hot(input, num_classes, dtype=int)"


add_operation("F.one_hot", "input, num_classes=-1", _build_one_hot, "int")
add_operation("F.one_hot", "tensor, num_classes", "jax.nn.one_hot(tensor, num_classes, dtype=int)", "int")


def _build_associative_scan(call: Call) -> str:
    dim = call.read_literal("dim")
    function = "jax.lax.associative_scan" if isinstance(dim, int) and dim >= 0 else "_associative_scan"
    return f"{function}(combine_fn, xs, reverse=reverse, axis=dim)"


_SCAN = "torch._higher_order_ops.associative_scan"
add_operation(
    f"{_SCAN} {_SCAN}.associative_scan",
    'combine_fn, xs, dim, reverse=False, combine_mode="pointwise"',
    _build_associative_scan,
    "unknown",
)
