"""torch.nn.functional: activations, layers, losses."""

from fnjax._torch_ops.record import Call, Refuse, Template
from fnjax._torch_ops.registry import add_lines, add_operation, mark_column
from fnjax._torch_ops.signature import MISSING
from fnjax._torch_ops.table.linear_algebra import read_flag

_LOSS = 'size_average=None, reduce=None, reduction="mean"'
_CONV = "input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1"
_CONV_T = "input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1"
_MAX_POOL = "input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False"
_AVG_POOL = "input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True"

add_lines(f"""
*relu F.relu F.relu_ | input, inplace=False | jax.nn.relu(input) | same each
F.relu6 | input, inplace=False | jax.nn.relu6(input) | same each
F.elu F.elu_ | input, alpha=1.0, inplace=False | jax.nn.elu(input, alpha=alpha) | float each
torch.selu torch.selu_ F.selu F.selu_ | input, inplace=False | jax.nn.selu(input) | float each
torch.celu torch.celu_ F.celu F.celu_ | input, alpha=1.0, inplace=False | jax.nn.celu(input, alpha=alpha) | float
F.leaky_relu F.leaky_relu_ | input, negative_slope=0.01, inplace=False | jax.nn.leaky_relu(input, negative_slope=negative_slope) | float each
+prelu F.prelu | input, weight | _prelu(input, weight) | float
F.silu | input, inplace=False | jax.nn.silu(input) | float each
F.mish | input, inplace=False | jax.nn.mish(input) | float each
F.logsigmoid | input | jax.nn.log_sigmoid(input) | float each
F.hardtanh F.hardtanh_ | input, min_val=-1.0, max_val=1.0, inplace=False | jnp.clip(input, min_val, max_val) | same each
F.hardsigmoid | input, inplace=False | jax.nn.hard_sigmoid(input) | float each
F.hardswish | input, inplace=False | jax.nn.hard_swish(input) | float each
F.softsign | input | jax.nn.soft_sign(input) | float each
F.tanhshrink | input | input - jnp.tanh(input) | float each
F.softshrink | input, lambd=0.5 | jnp.where(input > lambd, input - lambd, jnp.where(input < -lambd, input + lambd, 0 * input)) | float each
+hardshrink F.hardshrink | input, lambd=0.5 | jnp.where(jnp.abs(input) <= lambd, 0, input) | float each
torch.threshold torch.threshold_ F.threshold F.threshold_ | input, threshold, value, inplace=False | jnp.where(input <= threshold, value, input) | same each
F.glu | input, dim=-1 | jax.nn.glu(input, axis=dim) | float
F.linear | input, weight | input @ weight.T | float
F.bilinear torch.bilinear | input1, input2, weight, bias=None | _bilinear(input1, input2, weight, bias) | float
F.normalize | input, p=2.0, dim=1, eps=1e-12, out=None | _normalize(input, p=p, axis=dim, eps=eps) | float
torch.rms_norm F.rms_norm | input, normalized_shape, weight=None, eps=None | _rms_norm(input, normalized_shape, weight=weight, eps=eps) | float
torch.layer_norm F.layer_norm | input, normalized_shape, weight=None, bias=None, eps=1e-05 | _layer_norm(input, normalized_shape, weight, bias, eps=eps) | float
torch._safe_softmax | input, dim, dtype=None | _safe_softmax(input, dim, dtype) | float
torch.native_layer_norm | input, normalized_shape, weight, bias, eps | _native_layer_norm(input, normalized_shape, weight, bias, eps) | pair fields=output,mean,rstd
torch.group_norm F.group_norm | input, num_groups, weight=None, bias=None, eps=1e-05 | _group_norm(input, num_groups, weight, bias, eps=eps) | float
F.local_response_norm | input, size, alpha=0.0001, beta=0.75, k=1.0 | _local_response_norm(input, size, alpha=alpha, beta=beta, k=k) | float
torch.fake_quantize_per_tensor_affine | input, scale, zero_point, quant_min, quant_max | _fake_quantize(input, scale, zero_point, quant_min, quant_max) | same each
torch.fake_quantize_per_channel_affine | input, scale, zero_point, axis, quant_min, quant_max | _fake_quantize(input, scale, zero_point, quant_min, quant_max, axis=axis) | same
F.pad | input, pad, mode="constant", value=None | _pad(input, pad, mode=mode, value=value) | same
F.unfold | input, kernel_size, dilation=1, padding=0, stride=1 | _unfold(input, kernel_size, dilation=dilation, padding=padding, stride=stride) | float
F.fold | input, output_size, kernel_size, dilation=1, padding=0, stride=1 | _fold(input, output_size, kernel_size, dilation=dilation, padding=padding, stride=stride) | float
F.grid_sample | input, grid, mode="bilinear", padding_mode="zeros", align_corners=None | _grid_sample(input, grid, mode=mode, padding_mode=padding_mode, align_corners=align_corners) | float
F.affine_grid | theta, size, align_corners=None | _affine_grid(theta, size, align_corners=align_corners) | float
torch.affine_grid_generator | theta, size, align_corners | _affine_grid(theta, size, align_corners=align_corners) | float
F.upsample_nearest | input, size=None, scale_factor=None | _interpolate(input, size=size, scale_factor=scale_factor) | float
F.upsample_bilinear | input, size=None, scale_factor=None | _interpolate(input, size=size, scale_factor=scale_factor, mode="bilinear", align_corners=True) | float
torch.cosine_similarity F.cosine_similarity | x1, x2, dim=1, eps=1e-08 | _cosine_similarity(x1, x2, axis=dim, eps=eps) | float
torch.pairwise_distance F.pairwise_distance | x1, x2, p=2.0, eps=1e-06, keepdim=False | jnp.linalg.vector_norm(x1 - x2 + (eps), axis=-1, keepdims=keepdim, ord=p) | float
F.nll_loss | input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean" | _nll_loss(input, target, weight=weight, ignore_index=ignore_index, reduction=reduction) | float
F.cross_entropy | input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean", label_smoothing=0.0 | _cross_entropy(input, target, weight=weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing) | float
F.binary_cross_entropy | input, target, weight=None, {_LOSS} | _binary_cross_entropy(input, target, weight=weight, reduction=reduction) | float
F.binary_cross_entropy_with_logits | input, target, weight=None, {_LOSS}, pos_weight=None | _binary_cross_entropy_with_logits(input, target, weight=weight, reduction=reduction, pos_weight=pos_weight) | float
F.kl_div | input, target, {_LOSS}, log_target=False | _kl_div(input, target, reduction=reduction, log_target=log_target) | float
F.poisson_nll_loss | input, target, log_input=True, full=False, size_average=None, eps=1e-08, reduce=None, reduction="mean" | _poisson_nll_loss(input, target, log_input=log_input, full=full, eps=eps, reduction=reduction) | float
F.gaussian_nll_loss | input, target, var, full=False, eps=1e-06, reduction="mean" | _gaussian_nll_loss(input, target, var, full=full, eps=eps, reduction=reduction) | float
""")  # fmt: skip


def _make_softmax_gradient(helper: str) -> Template:
    """Render the last argument as a dtype; up to PyTorch 1.10 it was a tensor of that dtype."""

    def build(call: Call) -> str:
        dtype = "input_dtype.dtype" if call.find_kind("input_dtype") == "tensor" else "input_dtype"
        return f"{helper}(grad_output, output, axis=dim).astype({dtype})"

    return build


for _name in ("_softmax", "_log_softmax"):
    add_operation(
        f"torch.{_name}_backward_data",
        "grad_output, output, dim, input_dtype",
        _make_softmax_gradient(f"{_name}_grad"),
        "float",
    )


def add_each_rank(pattern: str, signature: str, template: str, result: str = "float", *, fields: str = "") -> None:
    """Register an operation for one, two and three spatial axes; `RANK` is replaced by their number."""
    for rank in (1, 2, 3):
        add_operation(
            pattern.replace("RANK", str(rank)), signature, template.replace("RANK", str(rank)), result, fields=fields
        )


add_each_rank(
    "F.convRANKd torch.convRANKd",
    _CONV,
    "_conv(input, weight, bias, rank=RANK, stride=stride, padding=padding, dilation=dilation, groups=groups)",
)
add_each_rank(
    "F.conv_transposeRANKd torch.conv_transposeRANKd",
    _CONV_T,
    "_conv_transpose(input, weight, bias, rank=RANK, stride=stride, padding=padding, output_padding=output_padding, groups=groups, dilation=dilation)",
)
add_each_rank(
    "torch.nn.grad.convRANKd_input",
    "input_size, weight, grad_output, stride=1, padding=0, dilation=1, groups=1",
    "_conv_input_grad(input_size, weight, grad_output, rank=RANK, stride=stride, padding=padding, dilation=dilation, groups=groups)",
)
add_each_rank(
    "torch.nn.grad.convRANKd_weight",
    "input, weight_size, grad_output, stride=1, padding=0, dilation=1, groups=1",
    "_conv_weight_grad(input, weight_size, grad_output, rank=RANK, stride=stride, padding=padding, dilation=dilation, groups=groups)",
)
add_operation(
    "torch.convolution",
    "input, weight, bias, stride, padding, dilation, transposed, output_padding, groups",
    "_convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)",
    "float",
)
_POOLED = (
    "_max_pool(input, kernel_size, rank=RANK, stride=stride, padding=padding, dilation=dilation, ceil_mode=ceil_mode)"
)
_POOLED_AT = _POOLED.replace("_max_pool", "_max_pool_with_indices")


def _make_max_pool(rank: int) -> Template:
    def build(call: Call) -> str:
        return (_POOLED_AT if read_flag(call, "return_indices") else _POOLED).replace("RANK", str(rank))

    return build


for _rank in (1, 2, 3):
    add_operation(
        f"F.max_pool{_rank}d torch.max_pool{_rank}d",
        f"{_MAX_POOL}, return_indices=False",
        _make_max_pool(_rank),
        "float",
    )
add_each_rank("F.max_poolRANKd_with_indices", _MAX_POOL, _POOLED_AT, "pair", fields="values indices")
add_operation(
    "torch.max_pool1d_with_indices", _MAX_POOL, _POOLED_AT.replace("RANK", "1"), "pair", fields="values indices"
)
add_each_rank(
    "F.max_unpoolRANKd",
    "input, indices, kernel_size, stride=None, padding=0, output_size=None",
    "_max_unpool(input, indices, kernel_size, rank=RANK, stride=stride, padding=padding, output_size=output_size)",
)
_AVERAGED = "_avg_pool(input, kernel_size, rank=RANK, stride=stride, padding=padding, ceil_mode=ceil_mode, count_include_pad=count_include_pad"
add_operation("F.avg_pool1d torch.avg_pool1d", _AVG_POOL, _AVERAGED.replace("RANK", "1") + ")", "float")
for _rank in (2, 3):
    add_operation(
        f"F.avg_pool{_rank}d",
        f"{_AVG_POOL}, divisor_override=None",
        _AVERAGED.replace("RANK", str(_rank)) + ", divisor_override=divisor_override)",
        "float",
    )
add_each_rank("F.adaptive_avg_poolRANKd", "input, output_size", "_adaptive_avg_pool(input, output_size, rank=RANK)")
add_operation(
    "torch.adaptive_avg_pool1d", "input, output_size", "_adaptive_avg_pool(input, output_size, rank=1)", "float"
)


def _make_adaptive_max_pool(rank: int) -> Template:
    def build(call: Call) -> str:
        indices = "_with_indices" if read_flag(call, "return_indices") else ""
        return f"_adaptive_max_pool{indices}(input, output_size, rank={rank})"

    return build


for _rank in (1, 2, 3):
    add_operation(
        f"F.adaptive_max_pool{_rank}d",
        "input, output_size, return_indices=False",
        _make_adaptive_max_pool(_rank),
        "float",
    )
add_each_rank(
    "F.lp_poolRANKd",
    "input, norm_type, kernel_size, stride=None, ceil_mode=False",
    "_lp_pool(input, norm_type, kernel_size, rank=RANK, stride=stride, ceil_mode=ceil_mode)",
)


def _make_fractional(rank: int) -> Template:
    def build(call: Call) -> str:
        given = "_random_samples" if call.is_given("_random_samples") else "None, key"
        both = f"_fractional_max_pool(input, kernel_size, output_size, output_ratio, {rank}, {given})"
        return both if read_flag(call, "return_indices") else f"{both}[0]"

    return build


for _rank in (2, 3):
    add_operation(
        f"F.fractional_max_pool{_rank}d",
        "input, kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None",
        _make_fractional(_rank),
        "float",
        random=True,
    )


def _build_gelu(call: Call) -> str:
    """Render gelu; jax.nn.gelu is the approximation by default, torch's is exact."""
    form = call.read_literal("approximate")
    if form not in {"none", "tanh"}:
        raise Refuse("approximate must be 'none' or 'tanh' as a literal")
    return "jax.nn.gelu(input, approximate=False)" if form == "none" else "jax.nn.gelu(input, approximate=True)"


add_operation("F.gelu", 'input, *, approximate="none"', _build_gelu, "float", each=True)


def _build_rrelu(call: Call) -> str:
    """Render rrelu: in training a slope is drawn for each element, otherwise it is the mean of the bounds."""
    mean, drawn = "jax.nn.leaky_relu(input, negative_slope=(lower + upper) / 2)", "_rrelu(key, input, lower, upper)"
    training = call.read_literal("training")
    return f"{drawn} if training else {mean}" if training is MISSING else drawn if training else mean


add_operation(
    "torch.rrelu torch.rrelu_ F.rrelu F.rrelu_",
    "input, lower=0.125, upper=0.3333333333333333, training=False, inplace=False",
    _build_rrelu,
    "float",
    random=True,
)


def _build_softplus(call: Call) -> str:
    if call.is_given("threshold"):
        return "_softplus(input, beta, threshold)"
    return "jax.nn.softplus(beta * input) / beta" if call.is_given("beta") else "jax.nn.softplus(input)"


add_operation("F.softplus", "input, beta=1, threshold=20", _build_softplus, "float", each=True)


def _make_softmax(template: str) -> Template:
    """Return the rule of a softmax along `dim`; None at run time means the axis of PyTorch's rule."""

    def build(call: Call) -> str:
        if call.read_literal("dim") is None:
            raise Refuse("without dim PyTorch guesses the axis; give it")
        if call.operation.names[0].startswith("torch.nn") and call.may_be_none("dim"):
            return template.replace("(dim)", "(0 if input.ndim in (0, 1, 3) else 1) if dim is None else dim")
        if not call.is_given("dtype"):
            return template
        return template.replace("input", "_to(input, dtype)" if call.is_variable("dtype") else "input.astype((dtype))")

    return build


_AXIS = "axis=(dim)"
_LEGACY = "input, dim=None, _stacklevel=3, dtype=None"
for _name, _function in {
    "softmax": "jax.nn.softmax(input, axis=(dim))",
    "log_softmax": "jax.nn.log_softmax(input, axis=(dim))",
}.items():
    for _names, _signature in ((f"F.{_name}", _LEGACY), (f"+{_name} special.{_name}", "input, dim, dtype=None")):
        add_operation(_names, _signature, _make_softmax(_function), "float", rows=True, along=True)
add_operation("F.softmin", _LEGACY, _make_softmax("jax.nn.softmax(-(input), axis=(dim))"), "float")


def _build_linear(call: Call) -> str:
    return "input @ weight.T" if call.read_literal("bias") is None else _build_biased(call)


def _build_biased(call: Call) -> str:
    return "input @ weight.T + bias" if call.is_surely_tensor("bias") else "_linear(input, weight, bias)"


add_operation("F.linear", "input, weight, bias=None", _build_linear, "float")


def _build_batch_norm(call: Call) -> str:
    """Render batch_norm with the batch's or the given statistics, which PyTorch would update in place."""
    training = call.read_literal(
        "training" if "training" in {p.name for p in call.overload.parameters} else "use_input_stats"
    )
    if training is False:
        return "_batch_norm(input, running_mean, running_var, weight, bias, eps=eps)"
    if training is True and call.read_literal("running_mean") is None:
        return "_batch_norm(input, None, None, weight, bias, eps=eps)"
    raise Refuse("it updates its running statistics in place; pass None for them, or training=False")


add_operation(
    "F.batch_norm",
    "input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-05",
    _build_batch_norm,
    "float",
)
add_operation(
    "torch.batch_norm",
    "input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled",
    _build_batch_norm,
    "float",
)


add_operation(
    "torch.grid_sampler torch.grid_sampler_2d torch.grid_sampler_3d",
    "input, grid, interpolation_mode, padding_mode, align_corners",
    '_grid_sample(input, grid, ("bilinear", "nearest", "bicubic")[interpolation_mode], '
    '("zeros", "border", "reflection")[padding_mode], align_corners)',
    "float",
)


def _build_attention(call: Call) -> str:
    dropout = call.read_literal("dropout_p")
    if dropout not in {0, MISSING}:
        raise Refuse(f"dropout_p={dropout!r} draws random numbers; write the dropout out")
    passed = ", dropout_p=dropout_p" if dropout is MISSING else ""
    return f"_attention(query, key, value, attn_mask{passed}, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)"


add_operation(
    "F.scaled_dot_product_attention",
    "query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False",
    _build_attention,
    "float",
)


def _build_instance_norm(call: Call) -> str:
    if call.read_literal("running_mean") is not None or call.read_literal("use_input_stats") is not True:
        raise Refuse("running statistics are updated in place; pass None for them")
    return "_instance_norm(input, weight, bias, eps=eps)"


add_operation(
    "F.instance_norm",
    "input, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, momentum=0.1, eps=1e-05",
    _build_instance_norm,
    "float",
)


def _build_interpolate(call: Call) -> str:
    if call.read_literal("antialias") is not False:
        raise Refuse("antialias=True differs from jax.image.resize's and has no counterpart")
    return "_interpolate(input, size=size, scale_factor=scale_factor, mode=mode, align_corners=align_corners, recompute=recompute_scale_factor)"


_RESIZE = 'input, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None, antialias=False'
add_operation("F.interpolate", _RESIZE, _build_interpolate, "float")
add_operation(
    "F.upsample",
    'input, size=None, scale_factor=None, mode="nearest", align_corners=None',
    "_interpolate(input, size=size, scale_factor=scale_factor, mode=mode, align_corners=align_corners)",
    "float",
)

_VEC = "_interpolate(input, size=output_size, scale_factor=scale_factors, mode=MODE"
for _kernel, _mode in {"nearest1d": "nearest", "nearest2d": "nearest", "nearest3d": "nearest"}.items():
    _template = _VEC.replace("MODE", f'"{_mode}"') + ")"
    add_operation(f"torch.upsample_{_kernel}.vec", "input, output_size, scale_factors", _template, "float")
for _kernel, _mode in {
    "linear1d": "linear",
    "bilinear2d": "bilinear",
    "trilinear3d": "trilinear",
    "bicubic2d": "bicubic",
}.items():
    _template = _VEC.replace("MODE", f'"{_mode}"') + ", align_corners=align_corners)"
    add_operation(
        f"torch.upsample_{_kernel}.vec", "input, output_size, align_corners, scale_factors", _template, "float"
    )


def _make_loss(formula: str) -> Template:
    """Return the template of an elementwise loss, reduced by `reduction`."""

    def build(call: Call) -> str:
        reduction = call.read_literal("reduction")
        if call.read_literal("size_average") is not None or call.read_literal("reduce") is not None:
            raise Refuse("size_average and reduce are deprecated; use reduction")
        if reduction is MISSING:
            return f"_reduced({formula}, reduction)"
        try:
            return {"mean": f"jnp.mean({formula})", "sum": f"jnp.sum({formula})", "none": f"({formula})"}[reduction]
        except KeyError:
            raise Refuse(f"{reduction!r} is not a reduction") from None

    return build


_POINTS = {
    "mse_loss": ("input, target", ", weight=None", "jnp.square(input - target)"),
    "l1_loss": ("input, target", ", weight=None", "jnp.abs(input - target)"),
    "huber_loss": ("input, target", "", "_huber(input - target, delta)"),
    "smooth_l1_loss": ("input, target", "", "_smooth_l1(input - target, beta)"),
    "soft_margin_loss": ("input, target", "", "jnp.log1p(jnp.exp(-target * input))"),
    "hinge_embedding_loss": (
        "input, target, margin=1.0", "", "jnp.where(target == -1, 0, input) + jnp.where(target == 1, 0, jnp.clip(margin - input, 0))"
    ),
    "margin_ranking_loss": ("input1, input2, target, margin=0.0", "", "jnp.clip(-target * (input1 - input2) + margin, 0)"),
    "cosine_embedding_loss": ("input1, input2, target, margin=0.0", "", "_cosine_embedding_loss(input1, input2, target, margin)"),
    "triplet_margin_loss": (
        "anchor, positive, negative, margin=1.0, p=2, eps=1e-06, swap=False", "",
        "_triplet_margin_loss(anchor, positive, negative, margin, p, eps, swap)",
    ),
    "triplet_margin_with_distance_loss": (
        "anchor, positive, negative, *, distance_function=None, margin=1.0, swap=False", "",
        "_triplet_distance_loss(anchor, positive, negative, distance_function, margin, swap)",
    ),
    "multilabel_margin_loss": ("input, target", "", "_multilabel_margin_loss(input, target)"),
    "multilabel_soft_margin_loss": ("input, target, weight=None", "", "_multilabel_soft_margin_loss(input, target, weight)"),
    "multi_margin_loss": ("input, target, p=1, margin=1.0, weight=None", "", "_multi_margin_loss(input, target, p, margin, weight)"),
}  # fmt: skip
_AFTER = {
    "triplet_margin_with_distance_loss": 'reduction="mean"',
    "huber_loss": 'reduction="mean", delta=1.0, weight=None',
    "smooth_l1_loss": f"{_LOSS}, beta=1.0",
}
for _name, (_before, _after, _formula) in _POINTS.items():
    add_operation(f"F.{_name}", f"{_before}, {_AFTER.get(_name, _LOSS + _after)}", _make_loss(_formula), "float")

_EACH_RANK = "F.convRANKd F.conv_transposeRANKd F.avg_poolRANKd F.max_poolRANKd F.max_poolRANKd_with_indices"
mark_column("integers", " ".join(_EACH_RANK.replace("RANK", rank) for rank in "123"))
mark_column("integers", "F.linear F.bilinear F.unfold F.fold F.glu F.fractional_max_pool2d F.fractional_max_pool3d")
mark_column(
    "precise", "F.avg_pool1d F.avg_pool2d F.avg_pool3d F.interpolate F.upsample F.upsample_bilinear F.layer_norm"
)
mark_column("precise", "torch._softmax_backward_data torch._log_softmax_backward_data torch.native_layer_norm")
mark_column("precise", "F.batch_norm torch.batch_norm F.instance_norm F.group_norm F.rms_norm F.local_response_norm")
