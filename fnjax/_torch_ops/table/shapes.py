"""Operations that reorder elements, join tensors and split them."""

from fnjax._torch_ops.record import Call
from fnjax._torch_ops.registry import add_lines, add_operation

add_lines("""
torch.reshape | input, shape | input.reshape(shape) | same maybe rows
.reshape | input, *shape | input.reshape(shape) | same maybe rows
.view_as | input, other | input.reshape(other.shape) | same view rows
.reshape_as | input, other | input.reshape(other.shape) | same maybe rows
+ravel | input | input.ravel() | same maybe rows
+t .t_ torch.t_copy | input | input.T | same view gaps
+transpose .transpose_ +swapaxes .swapaxes_ +swapdims .swapdims_ | input, dim0, dim1 | jnp.swapaxes(input, dim0, dim1) | same view gaps
torch.swapaxes .swapaxes .swapaxes_ | input, axis0, axis1 | jnp.swapaxes(input, axis0, axis1) | same view gaps
torch.transpose_copy | input, dim0, dim1 | jnp.swapaxes(input, dim0, dim1) | same
torch.permute | input, dims | jnp.transpose(input, dims) | same view gaps
torch.permute_copy | input, dims | jnp.transpose(input, dims) | same
.permute | input, *dims | jnp.transpose(input, dims) | same view gaps
+movedim +moveaxis | input, source, destination | jnp.moveaxis(input, source, destination) | same view gaps
+unsqueeze .unsqueeze_ | input, dim | jnp.expand_dims(input, dim) | same view rows
torch.unsqueeze_copy | input, dim | jnp.expand_dims(input, dim) | same rows
+squeeze .squeeze_ torch.squeeze_copy | input | jnp.squeeze(input) | same view
torch.squeeze .squeeze_ torch.squeeze_copy | input, dim | _squeeze(input, dim) | same view
.squeeze .squeeze_ | input, *dim | _squeeze(input, dim) | same view
.resize_ | input, *size, memory_format=None | _resize(input, size) | same
torch.resize_as_ .resize_as_ | input, the_template, *, memory_format=None | _resize(input, the_template.shape) | same
+unflatten | input, dim, sizes | _unflatten(input, dim, sizes) | same view rows
.expand_as | input, other | jnp.broadcast_to(input, other.shape) | same repeat
torch.broadcast_tensors | *tensors | jnp.broadcast_arrays(*tensors) | list view
torch.broadcast_shapes | *shapes | jnp.broadcast_shapes(*shapes) | static
.repeat | input, *repeats | jnp.tile(input, repeats) | same
torch.tile | input, dims | jnp.tile(input, dims) | same
.tile | input, *dims | jnp.tile(input, dims) | same
+repeat_interleave | input, repeats, dim=None, *, output_size=None | jnp.repeat(input, repeats, axis=dim, total_repeat_length=output_size) | same
torch.cat torch.concat torch.concatenate | tensors, dim=0 | jnp.concatenate(tensors, axis=dim) | same empty=_cat
torch.stack | tensors, dim=0 | jnp.stack(tensors, axis=dim) | same
torch.hstack | tensors | jnp.hstack(tensors) | same
torch.vstack torch.row_stack | tensors | jnp.vstack(tensors) | same
torch.dstack | tensors | jnp.dstack(tensors) | same
torch.column_stack | tensors | jnp.column_stack(tensors) | same
+tensor_split | input, indices_or_sections, dim=0 | jnp.array_split(input, indices_or_sections, axis=dim) | list view
torch.tensor_split .tensor_split | input, indices, dim=0 | jnp.array_split(input, indices, axis=dim) | list view
torch.tensor_split .tensor_split | input, sections, dim=0 | jnp.array_split(input, sections, axis=dim) | list view
+hsplit | input, indices_or_sections | jnp.hsplit(input, indices_or_sections) | list view
+vsplit | input, indices_or_sections | jnp.vsplit(input, indices_or_sections) | list view
+dsplit | input, indices_or_sections | jnp.dsplit(input, indices_or_sections) | list view
+narrow torch.narrow_copy .narrow_copy | input, dim, start, length | jax.lax.dynamic_slice_in_dim(input, start, length, axis=(dim)) | same view
+select torch.select_copy | input, dim, index | jnp.take(input, index, axis=dim) | same view
+diagonal torch.diagonal_copy | input, offset=0, dim1=0, dim2=1 | jnp.diagonal(input, offset=offset, axis1=dim1, axis2=dim2) | same view
linalg.diagonal | A, *, offset=0, dim1=-2, dim2=-1 | jnp.diagonal(A, offset=offset, axis1=(dim1), axis2=(dim2)) | same view
+diag | input, diagonal=0 | jnp.diag(input, k=diagonal) | same
+diagflat | input, offset=0 | jnp.diagflat(input, k=offset) | same
+diag_embed | input, offset=0, dim1=-2, dim2=-1 | _diag_embed(input, offset=offset, axis1=dim1, axis2=dim2) | same
~tril | input, diagonal=0 | jnp.tril(input, k=diagonal) | same
~triu | input, diagonal=0 | jnp.triu(input, k=diagonal) | same
+trace | input | jnp.trace(input) | same large
torch.flip | input, dims | jnp.flip(input, axis=(dims)) | same
.flip | input, *dims | jnp.flip(input, axis=(dims)) | same
+fliplr | input | jnp.fliplr(input) | same
+flipud | input | jnp.flipud(input) | same
+roll | input, shifts, dims=None | jnp.roll(input, shifts, axis=dims) | same
+rot90 | input, k=1, dims=(0, 1) | jnp.rot90(input, k=k, axes=dims) | same
+take_along_dim | input, indices, dim=None | _take_along(input, indices, axis=(dim)) | same
torch.cartesian_prod | *tensors | _cartesian_prod(*tensors) | same
torch.combinations | input, r=2, with_replacement=False | _combinations(input, r=(r), with_replacement=with_replacement) | same
torch.block_diag | *tensors | jax.scipy.linalg.block_diag(*tensors) | same
torch.atleast_1d | input | jnp.atleast_1d(input) | same view
torch.atleast_1d | *tensors | jnp.atleast_1d(*tensors) | same view
torch.atleast_2d | input | jnp.atleast_2d(input) | same view
torch.atleast_2d | *tensors | jnp.atleast_2d(*tensors) | same view
torch.atleast_3d | input | _atleast_3d(input) | same view
torch.atleast_3d | *tensors | _atleast_3d(*tensors) | same view
.unfold torch.unfold_copy | input, dimension, size, step | _windows(input, dimension, size, step) | same repeat
torch.pixel_shuffle F.pixel_shuffle | input, upscale_factor | _pixel_shuffle(input, upscale_factor) | same
torch.pixel_unshuffle F.pixel_unshuffle | input, downscale_factor | _pixel_unshuffle(input, downscale_factor) | same
torch.channel_shuffle F.channel_shuffle torch.native_channel_shuffle F.native_channel_shuffle | input, groups | _channel_shuffle(input, groups) | same
torch.constant_pad_nd | input, pad, value=0 | _pad(input, pad, value=value) | same
""")  # fmt: skip


def _build_chunk(call: Call) -> str:
    """Render chunk: jnp.array_split for two variables; PyTorch's pieces have one size except for the last."""
    two = call.read_literal("chunks") == call.unpacked == 2
    return "jnp.array_split(input, chunks, axis=dim)" if two else "_chunk(input, chunks, axis=dim)"


def _build_split(call: Call) -> str:
    """Render split: jnp.split takes the starts of the pieces, sums of the written sizes or of one size for each variable."""
    name = next(p.name for p in call.overload.parameters if p.name.startswith("split"))
    begins = call.list_section_starts(name)
    if not begins:
        return f"_split(input, {name}, axis=dim)"
    made = f"jnp.split(input, [{', '.join(begins)}], axis=dim)"
    return made if call.unpacked else f"tuple({made})"


add_operation("+chunk +unsafe_chunk", "input, chunks, dim=0", _build_chunk, "list", alias="view")
add_operation("+split +unsafe_split", "input, split_size_or_sections, dim=0", _build_split, "list", alias="view")
add_operation(
    "torch.split .split torch.unsafe_split .unsafe_split",
    "input, split_size, dim=0",
    _build_split,
    "list",
    alias="view",
)
add_operation(
    "+split_with_sizes +unsafe_split_with_sizes", "input, split_sizes, dim=0", _build_split, "list", alias="view"
)
add_operation("torch.split_copy", "input, split_size, dim=0", _build_split, "list")
add_operation("torch.split_with_sizes_copy", "input, split_sizes, dim=0", _build_split, "list")
add_operation(
    "+unbind torch.unbind_copy",
    "input, dim=0",
    lambda c: "tuple(jnp.moveaxis(input, dim, 0))" if c.is_given("dim") else "tuple(input)",
    "list",
    alias="view",
)


def _build_expand(call: Call) -> str:
    """Render expand as jnp.broadcast_to, unless a size may be -1."""
    return "jnp.broadcast_to(input, size)" if call.is_positive("size") else "_expand(input, size)"


add_operation(".expand .broadcast_to", "input, *size", _build_expand, alias="repeat")
add_operation("torch.broadcast_to torch.expand_copy", "input, size", _build_expand, alias="repeat")


def _build_view(call: Call) -> str:
    """Render a view of another shape, or of the same bits as another dtype."""
    if call.find_role("size") == "dtype":
        return "input.view(size)"
    return "input.reshape(size)"


add_operation(".view torch.view_copy", "input, *size", _build_view, alias="view", rows=True)
add_operation(".view torch.view_copy", "input, dtype", "input.view((dtype))", alias="view", recoded=True)


def _build_flatten(call: Call) -> str:
    if call.read_literal("start_dim") == 0 and call.read_literal("end_dim") == -1:
        return "input.reshape(-1)"
    return "_flatten(input, start_dim, end_dim)" if call.is_given("end_dim") else "_flatten(input, start_dim)"


add_operation("+flatten", "input, start_dim=0, end_dim=-1", _build_flatten, alias="maybe", rows=True)


def _build_meshgrid(call: Call) -> str:
    value = call.read_literal("indexing")
    return 'jnp.meshgrid(*tensors, indexing="ij")' if value is None else "jnp.meshgrid(*tensors, indexing=(indexing))"


add_operation("torch.meshgrid", "*tensors, indexing=None", _build_meshgrid, "list", alias="view")
add_operation(
    "torch.repeat_interleave",
    "repeats, *, output_size=None",
    "jnp.repeat(jnp.arange(repeats.size), repeats, total_repeat_length=output_size)",
    "int",
)
add_operation(
    "torch.tril_indices",
    "row, col, offset=0, *, dtype=None, device=None, layout=None",
    "jnp.stack(jnp.tril_indices(row, offset, col))",
    "int",
)
add_operation(
    "torch.triu_indices",
    "row, col, offset=0, *, dtype=None, device=None, layout=None",
    "jnp.stack(jnp.triu_indices(row, offset, col))",
    "int",
)
