"""PyTorch's errors for dtypes that its operations refuse, and that JAX would promote or compute with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fnjax.torch.deferred.number import Operand
from fnjax.torch.dispatch.binding import list_members
from fnjax.torch.memory.dtypes import FLOAT32, dtype, name_scalar_type, type_of_number
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.views.indexing import OTHER_DTYPE

_NOT_COUNTED = {"index", "condition", "mask", "out"}
_ORDER = ("bool", "uint8", "int", "float", "complex")
_INTEGRAL = ("bool", "uint8", "int")
_DTYPE = ("bool", "uint8", "int", "complex")  # all but the real floating-point ones
# PyTorch's names of C++ types, as some of its messages have them.
_IN_C = {
    "Float": "float",
    "Double": "double",
    "Long": "long int",
    "Int": "int",
    "Bool": "bool",
    "Byte": "unsigned char",
}
_IN_C |= {"BFloat16": "c10::BFloat16", "Half": "c10::Half", "ComplexFloat": "c10::complex<float>"}
_IN_C |= {"Short": "short int", "Char": "signed char", "ComplexDouble": "c10::complex<double>"}


class _Spelled(str):
    """PyTorch's name of a dtype."""

    __slots__ = ()

    @property
    def c(self) -> str:
        """The name of the C++ type."""
        return _IN_C.get(self, self)


class _Refused(NamedTuple):
    """Dtypes that an operation refuses.

    Attributes:
        kinds: the kinds of dtypes that are refused; the highest kind of all tensors counts.
        text: the text of PyTorch's exception, with the name of the operation and of the dtype.
        parameters: the parameters whose dtypes are checked; empty for all.
        each: whether any tensor of the kinds is refused.
    """

    kinds: tuple[str, ...]
    text: str
    parameters: tuple[str, ...] = ()
    each: bool = False


_REFUSED: dict[str, list[_Refused]] = {}
_EQUAL: dict[str, tuple[tuple[str, ...], str]] = {}


def _refuse(kinds: tuple[str, ...], text: str, names: str, *parameters: str, each: bool = False) -> None:
    """Add a rule for operations; one that is written as `name=kernel` has the name of PyTorch's kernel in the text."""
    for name, _, kernel in (word.partition("=") for word in names.split()):
        rule = _Refused(kinds, text.replace("{kernel}", kernel or f"{name}_cpu"), parameters, each)
        _REFUSED.setdefault(name, []).append(rule)


def _equal(text: str, names: str, *parameters: str) -> None:
    """Add operations whose tensors have to have one dtype."""
    _EQUAL.update(dict.fromkeys(names.split(), (parameters, text)))


_KERNEL = "\"{kernel}\" not implemented for '{0}'"
_INPUT = "Expected a floating point or complex tensor as input. Got {0}"
_SUBTRACTION = "Subtraction, the `-` operator, with a bool tensor is not supported. "
_SUBTRACTION += "If you are trying to invert a mask, use the `~` or `logical_not()` operator instead."
_MEAN = "mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. Got: {0}"
_ADDCDIV = "Integer division with addcdiv is no longer supported, and in a future  release addcdiv will perform a true "
_HALVES = "Expected both inputs to be Half, Float or Double tensors but got {0}"
_TO_FLOAT = "result type Float can't be cast to the desired output type {0}"

_refuse(_INTEGRAL, _MEAN, "mean l1_loss")
_refuse(_INTEGRAL, "std and var only support floating point and complex dtypes", "std var")
_refuse(_INTEGRAL, "{name} only support floating point and complex dtypes", "std_mean var_mean")
_refuse(_INTEGRAL, "nanmean(): expected input to have floating point or complex dtype but got {0}", "nanmean")
_refuse(_INTEGRAL, f"linalg.vector_norm: {_INPUT}", "norm vector_norm normalize renorm")
_refuse(_INTEGRAL, f"linalg.{{name}}: {_INPUT}", "det slogdet inv qr svd cholesky matrix_exp solve vecdot")
_refuse(_INTEGRAL, f"linalg.inv: {_INPUT}", "inverse")
_refuse(_INTEGRAL, "norm(): input dtype should be either floating point or complex. Got {0} instead.", "dist")
_refuse(_INTEGRAL, "torch.frexp() only supports floating-point dtypes", "frexp")
_refuse(_INTEGRAL, "kl_div: Integral inputs not supported.", "kl_div", each=True)
_refuse(_INTEGRAL, "cdist only supports floating-point dtypes, X1 got: {0}", "cdist", each=True)
_refuse(_INTEGRAL, _ADDCDIV + "division of tensor1 and tensor2.", "addcdiv", "tensor1", "tensor2")
_refuse(_INTEGRAL, _HALVES, "complex polar", each=True)
_refuse(_INTEGRAL, _TO_FLOAT, "binary_cross_entropy_with_logits", "target")
_refuse(
    _INTEGRAL,
    _KERNEL,
    "logcumsumexp=logcumsumexp_out_cpu gelu=GeluKernelImpl silu rms_norm=rms_norm frac eigh=linalg_eigh_cpu logaddexp"
    " hypot nextafter binary_cross_entropy=binary_cross_entropy lerp=lerp_kernel_scalar histc=histogram_cpu",
)
_refuse(
    _DTYPE,
    _KERNEL,
    "fake_quantize_per_tensor_affine=fake_quantize_tensor_cachemask_kernel_type_handling"
    " fake_quantize_per_channel_affine=fake_quantize_channel_cachemask_cpu_type_handling"
    " elu selu=elu_cpu celu=elu_cpu leaky_relu softplus hardswish hardsigmoid mish logsigmoid=log_sigmoid_cpu"
    " hardshrink"
    " softshrink=softshrink_check logaddexp2 mse_loss=mse_cpu smooth_l1_loss=smooth_l1_cpu huber_loss=huber_cpu"
    " softmax=softmax_kernel_impl softmin=softmax_kernel_impl log_softmax=log_softmax_kernel_impl",
)
_refuse(
    _DTYPE,
    _KERNEL,
    "layer_norm=LayerNormKernelImpl group_norm=GroupNormKernelImpl batch_norm=batch_norm instance_norm=batch_norm"
    " cross_entropy=log_softmax_lastdim_kernel_impl nll_loss=nll_loss_out_frame"
    " binary_cross_entropy_with_logits=log_sigmoid_cpu",
    "input",
)
_refuse(_DTYPE, "expected common dtype to be floating point, yet common dtype is {0}", "cosine_similarity")
_refuse(("bool",), _SUBTRACTION, "sub subtract rsub dist l1_loss pairwise_distance", each=True)
_refuse(("bool",), "Boolean inputs not supported for relu", "relu")
_refuse(("bool",), "Bool inputs not supported for hardtanh", "hardtanh relu6")
_refuse(("bool",), "cov(): bool dtype is not supported for input", "cov corrcoef")
_refuse(("bool",), "The input tensor may not be a boolean tensor.", "mvlgamma")
_refuse(("bool",), "The `+` operator, on a bool tensor is not supported.", "positive")
_refuse(("bool",), "{name}(): does not support bool input", "argmax argmin")
_refuse(("bool",), "trapezoid: received a bool input for `x` or `y`, but bool is not supported", "trapezoid trapz")
_refuse(
    ("bool",),
    _KERNEL,
    "mm=addmm_impl_cpu_ matmul=addmm_impl_cpu_ linear=addmm_impl_cpu_ addmm=addmm_impl_cpu_ bmm=bmm baddbmm=baddbmm"
    " mv=addmv_impl_cpu addmv=addmv_impl_cpu dot=dot vdot=dot inner=dot tensordot=dot einsum=bmm conv1d=slow_conv2d_cpu"
    " conv2d=slow_conv2d_cpu conv3d=slow_conv3d_cpu cross=cross trace=trace floor=floor_vml_cpu ceil=ceil_vml_cpu"
    " trunc=trunc_vml_cpu median nanmedian=median_cpu kthvalue threshold floor_divide=div_floor_cpu remainder fmod"
    " pow=pow addcmul=addcmul_cpu_out bitwise_left_shift=lshift_cpu bitwise_right_shift=rshift_cpu"
    " chain_matmul=addmm_impl_cpu_ multi_dot=addmm_impl_cpu_ addbmm=addmm_impl_cpu_",
)
_refuse(("bool",), _KERNEL, "bincount", "input")
_refuse(("bool", "complex"), "Unsupported input type encountered for isin(): {0}", "isin", each=True)
_refuse(
    ("complex",),
    _KERNEL,
    "max=max_all min=min_all amax=max_values_cpu amin=min_values_cpu aminmax mode cummax cummin median"
    " nanmedian=median_cpu kthvalue lt le gt ge xlogy unique=unique round=round_vml_cpu logit threshold"
    " searchsorted=searchsorted_out_cpu bucketize=searchsorted_out_cpu",
)
_refuse(("complex",), "{name} not implemented for complex tensors.", "maximum minimum fmax fmin")
_refuse(("complex",), "clamp is not supported for complex types", "clamp clip clamp_min clamp_max relu hardtanh relu6")
_refuse(("complex",), "Sort does not support complex dtypes on CPU", "sort argsort msort")
_refuse(
    ("complex",),
    "Unlike NumPy, torch.sign is not intended to support complex numbers. Please use torch.sgn instead.",
    "sign",
)
_refuse(
    ("float", "complex"),
    _KERNEL,
    "bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift=lshift_cpu bitwise_right_shift=rshift_cpu"
    " gcd lcm",
)
_MASK = ("uint8", "int", "float", "complex")
_refuse(_MASK, "masked_fill_ only supports boolean masks, but got mask with dtype {0.c}", "masked_fill", "mask")
_refuse(_MASK, "masked_select: expected BoolTensor for mask", "masked_select", "mask")
_refuse(
    _MASK[1:],
    "where expected condition to be a boolean tensor, but got a tensor with dtype {0}",
    "where",
    "condition",
)
_refuse(("bool",), "{name}(): Expected dtype int32/int64 for index", "gather take index_select", "index")
_refuse(
    ("bool",),
    "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got {0}",
    "embedding",
    "input",
)

_equal("expected m1 and m2 to have the same dtype, but got: {0.c} != {1.c}", "mm matmul", "input", "mat2", "other")
_equal("expected m1 and m2 to have the same dtype, but got: {0.c} != {1.c}", "linear", "input", "weight", "bias")
_equal("expected scalar type {0} but found {1}", "bmm cross", "input", "mat2", "other")
_equal("addmv input tensors must have the same dtype, but got {0} and {1}", "mv addmv", "input", "mat", "vec")
_equal("dot : expected both vectors to have same dtype, but found {0} and {1}", "dot vdot", "input", "tensor", "other")
_equal("both inputs should have same dtype", "inner", "input", "other")
_equal("both inputs should have same dtype", "tensordot", "a", "b")
_equal("self and mat2 must have the same dtype, but got {0} and {1}", "addmm", "input", "mat1", "mat2")
_equal("self and mat2 must have the same dtype, but got {0} and {1}", "addbmm", "input", "batch1", "batch2")
_equal("Input dtypes must be the same, got: input {0.c}, batch: {1.c}", "baddbmm", "input", "batch1", "batch2")
_equal("expected scalar type {0} but found {1}", "einsum", "operands")
_equal("expected m1 and m2 to have the same dtype, but got: {0.c} != {1.c}", "chain_matmul", "matrices")
_equal("expected m1 and m2 to have the same dtype, but got: {0.c} != {1.c}", "multi_dot", "tensors")
_equal("meshgrid expects all tensors to have the same dtype", "cartesian_prod", "tensors")
_equal(
    "linalg.solve: Expected A and B to have the same dtype, but found A of type {0} and B of type {1}",
    "solve",
    "A",
    "B",
)
_equal("linalg.lstsq: Expected input and other to have the same dtype, but got {0} and {1}", "lstsq", "A", "B")
_equal("linalg.vecdot: Expected x and y to have the same dtype, but found {0} and {1}", "vecdot", "x", "y")
_equal(
    "expected scalar type {0} but found {1}",
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
    "input",
    "weight",
    "bias",
)
_equal(
    "Expected query, key, and value to have the same dtype, but got {0.c} and {1.c}",
    "scaled_dot_product_attention",
    "query",
    "key",
    "value",
)
_equal("All tensors must have the same dtype, got {0.c} and {1.c}", "bilinear", "input1", "input2", "weight", "bias")
_equal("expected dtype {0.c} for `end` but got dtype {1.c}", "lerp", "input", "end", "weight")
_equal("heaviside is not yet implemented for tensors with different dtypes.", "heaviside", "input", "values")
_equal("{0} did not match {1}", "isclose allclose", "input", "other")
_equal("Expected object of scalar type {0} but got scalar type {1} for second argument", "complex", "real", "imag")
_equal("Expected object of scalar type {0} but got scalar type {1} for second argument", "polar", "abs", "angle")
_equal("expected scalar type {0} but found {1}", "cdist", "x1", "x2")
_equal("scatter(): Expected self.dtype to be equal to src.dtype", "scatter scatter_add scatter_reduce", "input", "src")
_equal("index_add_(): self ({0}) and source ({1}) must have the same scalar type", "index_add", "input", "source")
_equal(
    "{name}_(): self and source expected to have the same dtype, but got (self) {0} and (source) {1}",
    "index_copy index_reduce put",
    "input",
    "source",
)
_equal(OTHER_DTYPE, "index_put", "input", "values")
_equal(
    "masked_scatter: expected self and source to have same dtypes but got {0} and {1}",
    "masked_scatter",
    "input",
    "source",
)
_equal("Found dtype {1} but expected {0}", "binary_cross_entropy", "input", "target")
_equal(
    "mixed dtype (CPU): expect parameter to have scalar type of {0}",
    "layer_norm group_norm batch_norm instance_norm",
    "input",
    "weight",
    "bias",
)


def _list_dtypes(values: Mapping[str, Any], parameters: Iterable[str]) -> list[dtype]:
    """Return the dtypes of the tensors that are passed for parameters, and in their lists."""
    given = list_members(map(values.get, parameters))
    return [x.dtype for x in given if isinstance(x, Tensor) and type(x) is not Operand]


def _is_half(own: dtype) -> bool:
    return own.name in {"float16", "bfloat16"}


def _kind_of(own: dtype) -> str:
    return own.name if own.name == "uint8" else own.kind


def _has_higher(values: Mapping[str, Any], own: dtype) -> bool:
    """Return whether a number promotes a tensor to a higher kind."""
    numbers = [values.get(n) for n in ("other", "exponent", "input")]
    if any(type(v) is Operand for v in numbers):
        return True
    kinds = [type_of_number(v).__name__ for v in numbers if isinstance(v, (bool, int, float, complex))]
    return any(_ORDER.index(k) > _ORDER.index(_kind_of(own)) for k in kinds)


def check_dtypes(name: str, values: Mapping[str, Any]) -> None:
    """Raise PyTorch's error for dtypes that an operation refuses.

    Args:
        name: the operation, without its module.
        values: all parameters, with their defaults.
    """
    equal = _EQUAL.get(name)
    if equal is not None:
        parameters, text = equal
        found = _list_dtypes(values, parameters)
        for other in found[1:]:
            # Without 64 bits a float64 tensor is a float32 array.
            if other is found[0] or other.array == found[0].array:
                continue
            if name.endswith("_norm") and _is_half(found[0]) and other is FLOAT32:
                continue
            spelled = (_Spelled(name_scalar_type(d)) for d in (found[0], other))
            raise RuntimeError(text.format(*spelled, name=name))
    rules = _REFUSED.get(name)
    if rules is None or values.get("dtype") is not None:
        return
    for kinds, text, parameters, each in rules:
        found = _list_dtypes(values, parameters or [n for n in values if n not in _NOT_COUNTED])
        if not found:
            continue
        highest = max(found, key=lambda d: _ORDER.index(_kind_of(d)))
        own = next((d for d in found if _kind_of(d) in kinds), highest) if each else highest
        if _kind_of(own) in kinds and (each or not _has_higher(values, own)):
            error = NotImplementedError if text.startswith(('"', "clamp", "Unlike")) else RuntimeError
            raise error(text.format(_Spelled(name_scalar_type(own)), name=name))
