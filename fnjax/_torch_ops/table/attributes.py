"""Attributes of tensors, dtypes and their casts, constants."""

from collections.abc import Callable

from fnjax._torch_ops.record import WIDE, Call, Refuse, Template
from fnjax._torch_ops.registry import add_lines, add_operation
from fnjax._torch_ops.signature import MISSING

add_lines("""
.shape | input | input.shape | size attribute
.size | input | input.shape | size
.size | input, dim | input.shape[dim] | whole
.ndim | input | input.ndim | rank attribute
.dim .ndimension | input | input.ndim | rank
+numel .nelement | input | input.size | whole
.dtype | input | input.dtype | dtype attribute
.itemsize | input | input.dtype.itemsize | static attribute
.element_size | input | input.dtype.itemsize | static
.nbytes | input | input.nbytes | static attribute
.T | input | input.T | same attribute view gaps
.mT | input | input.mT | same attribute view gaps
.real | input | input.real | same attribute view each recoded
torch.real | input | input.real | same view each recoded
.imag | input | input.imag | same attribute view recoded
torch.imag | input | input.imag | same view recoded
.is_cuda .is_sparse .is_sparse_csr .is_quantized .is_meta .is_mps .is_xpu .is_xla .is_ipu .is_maia .is_mtia | input | False | static attribute
.is_vulkan .is_nested .is_mkldnn | input | False | static attribute
.is_cpu | input | True | static attribute
.device | input | "cpu" | device attribute
.layout | input | None | static attribute
torch.device.index | input | None | static attribute
+is_floating_point | input | jnp.issubdtype(input.dtype, jnp.floating) | static
+is_complex | input | jnp.issubdtype(input.dtype, jnp.complexfloating) | static
+is_signed | input | not jnp.issubdtype(input.dtype, jnp.unsignedinteger) and input.dtype != bool | static
+is_conj +is_neg +is_inference .is_pinned .is_shared +is_distributed | input | False | static
.is_contiguous | input, memory_format=None | True | static
+is_same_size | input, other | input.shape == other.shape | static
+get_device | input | -1 | static
torch.nn.modules.utils._single | n | tuple(n) if isinstance(n, (tuple, list)) else (n,) | static
torch.nn.modules.utils._pair | n | tuple(n) if isinstance(n, (tuple, list)) else (n, n) | static
torch.nn.modules.utils._triple | n | tuple(n) if isinstance(n, (tuple, list)) else (n, n, n) | static
torch.is_tensor | obj | isinstance(obj, jax.Array) | static
.item | input | input.item() | static untraced
.tolist | input | input.tolist() | static untraced
.numpy | input, *, force=False | np.asarray(input) | static untraced
+is_nonzero | input | bool(input) | static untraced
+detach .detach_ torch.detach_ torch.detach_copy | input | jax.lax.stop_gradient(input) | same view each rows
+clone | input, *, memory_format=None | input | same each
torch.alias_copy | input | input | same
.contiguous | input, memory_format=None | input | same maybe each made
.cpu | input, memory_format=None | input | same maybe each
.cuda .xpu .mtia .ipu | input, device=None, non_blocking=False, memory_format=None | input | same maybe each
.pin_memory | input, device=None | input | same maybe
.share_memory_ | input | input | same
.requires_grad_ | input, requires_grad=True | input | same
+resolve_conj +resolve_neg | input | input | same maybe
.to_dense | input, dtype=None, *, masked_grad=None | input | same
.as_subclass | input, cls | input | same view
torch.finfo | type | jnp.finfo(type) | finfo
torch.iinfo | type | jnp.iinfo(type) | iinfo
torch.finfo | | jnp.finfo(jnp.zeros(()).dtype) | finfo
torch.finfo.eps | input | float(input.eps) | static attribute
torch.finfo.max | input | float(input.max) | static attribute
torch.finfo.min | input | float(input.min) | static attribute
torch.finfo.tiny torch.finfo.smallest_normal | input | float(input.tiny) | static attribute
torch.finfo.resolution | input | float(input.resolution) | static attribute
torch.finfo.bits torch.iinfo.bits | input | input.bits | static attribute
torch.iinfo.max | input | input.max | static attribute
torch.iinfo.min | input | input.min | static attribute
torch.inf |  | jnp.inf | static attribute
torch.version.cuda torch.version.hip torch.version.xpu |  | None | static attribute
torch.nan |  | jnp.nan | static attribute
torch.pi |  | jnp.pi | static attribute
torch.e |  | jnp.e | static attribute
torch.newaxis |  | None | static attribute
torch.strided torch.contiguous_format torch.legacy_contiguous_format torch.preserve_format torch.channels_last torch.channels_last_3d |  | None | static attribute
torch.float32 torch.float |  | jnp.float32 | dtype attribute dtype=float32
torch.float64 torch.double |  | jnp.float64 | dtype attribute dtype=float64
torch.float16 torch.half |  | jnp.float16 | dtype attribute dtype=float16
torch.bfloat16 |  | jnp.bfloat16 | dtype attribute dtype=bfloat16
torch.float8_e4m3fn |  | jnp.float8_e4m3fn | dtype attribute dtype=float8_e4m3fn
torch.float8_e4m3fnuz |  | jnp.float8_e4m3fnuz | dtype attribute dtype=float8_e4m3fnuz
torch.float8_e5m2 |  | jnp.float8_e5m2 | dtype attribute dtype=float8_e5m2
torch.float8_e5m2fnuz |  | jnp.float8_e5m2fnuz | dtype attribute dtype=float8_e5m2fnuz
torch.float8_e8m0fnu |  | jnp.float8_e8m0fnu | dtype attribute dtype=float8_e8m0fnu
torch.uint8 |  | jnp.uint8 | dtype attribute dtype=uint8
torch.uint16 |  | jnp.uint16 | dtype attribute dtype=uint16
torch.uint32 |  | jnp.uint32 | dtype attribute dtype=uint32
torch.uint64 |  | jnp.uint64 | dtype attribute dtype=uint64
torch.int8 |  | jnp.int8 | dtype attribute dtype=int8
torch.int16 torch.short |  | jnp.int16 | dtype attribute dtype=int16
torch.int32 torch.int |  | jnp.int32 | dtype attribute dtype=int32
torch.int64 torch.long |  | jnp.int64 | dtype attribute dtype=int64
torch.bool |  | jnp.bool_ | dtype attribute dtype=bool_
torch.complex64 torch.cfloat |  | jnp.complex64 | dtype attribute dtype=complex64
torch.complex128 torch.cdouble |  | jnp.complex128 | dtype attribute dtype=complex128
dtype.is_floating_point | input | jnp.issubdtype(input, jnp.floating) | static attribute
dtype.is_complex | input | jnp.issubdtype(input, jnp.complexfloating) | static attribute
dtype.is_signed | input | not jnp.issubdtype(input, jnp.unsignedinteger) and input != bool | static attribute
dtype.itemsize | input | jnp.dtype(input).itemsize | static attribute
.float | input, *, memory_format=None | input.astype(jnp.float32) | float maybe each casts=float32
.double | input, *, memory_format=None | input.astype(float) | float maybe each casts=float
.half | input, *, memory_format=None | input.astype(jnp.float16) | float maybe each casts=float16
.bfloat16 | input, *, memory_format=None | input.astype(jnp.bfloat16) | float maybe each casts=bfloat16
.int | input, *, memory_format=None | input.astype(jnp.int32) | int maybe each
.long | input, *, memory_format=None | input.astype(int) | int maybe each converts
.short | input, *, memory_format=None | input.astype(jnp.int16) | int maybe casts=int16
.char | input, *, memory_format=None | input.astype(jnp.int8) | int maybe casts=int8
.byte | input, *, memory_format=None | input.astype(jnp.uint8) | int maybe casts=uint8
.bool | input, *, memory_format=None | input.astype(bool) | bool maybe each
.cfloat | input, *, memory_format=None | input.astype(jnp.complex64) | complex maybe
.cdouble | input, *, memory_format=None | input.astype(complex) | complex maybe
.type_as | input, other | input.astype(other.dtype) | same maybe each converts
torch.result_type | tensor1, tensor2 | jnp.result_type(tensor1, tensor2) | dtype
torch.promote_types | type1, type2 | jnp.promote_types(type1, type2) | dtype
torch.can_cast | from_, to | jnp.can_cast(from_, to, casting="same_kind") | static
torch.get_default_dtype | | jnp.result_type(float) | dtype
""")  # fmt: skip


def _build_size(call: Call) -> str:
    """Render a torch.Size as the tuple that a shape is."""
    a_tuple = not call.is_passed("shape") or call.find_role("shape") in {"tuple", "size"}
    return "shape" if a_tuple else "tuple(shape)"


add_operation("torch.Size", "shape=()", _build_size, "size")


def make_conjugated(template: str) -> Callable[[Call], str]:
    """Render a conjugate transpose, without a conjugate for integers; results declared as floats may be complex."""

    def build(call: Call) -> str:
        return template if call.find_dtype("input") in {"int", "bool"} else f"jnp.conj({template})"

    return build


add_operation(
    ".data",
    "input",
    lambda call: "jax.lax.stop_gradient(input)" if call.differentiated else "input",
    called=False,
    alias="view",
    each=True,
)
add_operation(".H", "input", make_conjugated("input.T"), called=False, alias="view", gaps=True, recoded=True)
add_operation(".mH", "input", make_conjugated("input.mT"), called=False, alias="view", gaps=True, recoded=True)
add_operation("+adjoint", "input", make_conjugated("input.mT"), alias="view", gaps=True, recoded=True)
add_operation(
    "+conj +conj_physical torch.conj_physical_ .conj_physical_",
    "input",
    make_conjugated("input"),
    alias="view",
    recoded=True,
    each=True,
)


def _build_device(call: Call) -> str:
    """Render a device as its name, which compares as PyTorch's device does; a number is that of an accelerator."""
    if call.is_given("index"):
        return '":".join((type, str(index)))'
    return f'"cuda:{call.read_literal("type")}"' if isinstance(call.read_literal("type"), int) else "type"


def _find_device_value(call: Call) -> object:
    name = call.read_literal("type")
    return f"cuda:{name}" if isinstance(name, int) else MISSING if call.is_given("index") else name


add_operation("torch.device", "type, index=None", _build_device, "device", value=_find_device_value)


def _build_device_type(call: Call) -> str:
    known = _find_type_value(call)
    return repr(known).replace("'", '"') if isinstance(known, str) else 'input.partition(":")[0]'


def _find_type_value(call: Call) -> object:
    name = call.read_literal("input")
    return name.partition(":")[0] if isinstance(name, str) else MISSING


add_operation("torch.device.type", "input", _build_device_type, "static", called=False, value=_find_type_value)

_OPTIONS = "non_blocking=False, copy=False, *, memory_format=None"


def _build_to(call: Call) -> str:
    """Render `x.to(target)`: a dtype, a device, or another tensor, whose dtype is used."""
    if call.is_given("dtype"):
        return "input.astype((dtype))"
    if call.is_passed("non_blocking") and not isinstance(call.read_literal("non_blocking"), bool):
        return f"input.astype({_write_narrow_dtype(call, 'non_blocking')})"  # x.to(device, dtype)
    if call.is_passed("other"):
        role = call.find_role("other")
        if role == "device":
            return "input"
        if role == "dtype":
            return f"input.astype({_write_narrow_dtype(call, 'other')})"
        return "input.astype(other.dtype)" if call.find_kind("other") == "tensor" else "_to(input, other)"
    return "input"


def _write_narrow_dtype(call: Call, name: str) -> str:
    """Return the dtype of a parameter; `int` and `float` for 64-bit ones, which depend on jax_enable_x64."""
    return WIDE.get(call.find_named_dtype(name), name)


def _build_type(call: Call) -> str:
    """Render `x.type(dtype)`, also with the name of a tensor type."""
    name = call.read_literal("dtype")
    if name is MISSING:
        return f"input.astype({_write_narrow_dtype(call, 'dtype')})"
    if name not in TENSOR_TYPES:
        raise Refuse(f"{name!r} is not a type of tensor")
    return f"input.astype({TENSOR_TYPES[name]})"


TENSORS = {
    "FloatTensor": "jnp.float32", "DoubleTensor": "float", "HalfTensor": "jnp.float16", "BFloat16Tensor": "jnp.bfloat16",
    "ByteTensor": "jnp.uint8", "CharTensor": "jnp.int8", "ShortTensor": "jnp.int16", "IntTensor": "jnp.int32",
    "LongTensor": "int", "BoolTensor": "bool", "Tensor": "float",  # PyTorch's default dtype
}  # fmt: skip
TENSOR_TYPES = {f"torch.{name}": dtype for name, dtype in TENSORS.items()}
ARRAYS = frozenset({"torch.Tensor", "torch.autograd.Variable"})  # classes of which each array is one
PARAMETERS = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})

add_operation(
    ".to", f"input, other=None, {_OPTIONS}, dtype=None, device=None", _build_to, alias="maybe", each=True, converts=True
)
add_operation(
    ".type", "input", "input.dtype", "dtype", each=True
)  # PyTorch's is a string, good for comparisons and x.type(...)
add_operation(".type", "input, dtype, non_blocking=False", _build_type, alias="maybe", each=True, converts=True)


def _make_constructor(dtype: str, empty: str) -> Template:
    """Return the rule of `x.new` and `torch.FloatTensor`: `(2, 3)` is a shape, `([1., 2.])` and `(y)` are data."""

    def build(call: Call) -> str:
        if not call.is_passed("data"):
            return f"{empty}(0, dtype={dtype})"
        value, role = call.read_literal("data"), call.find_role("data")
        if isinstance(value, list) or role == "list":
            return f"jnp.array(data, dtype={dtype})"
        if isinstance(value, int) or role in {"size", "int", "tuple"}:
            return f"{empty}(data, dtype={dtype})"
        if call.find_kind("data") == "tensor":
            return f"data.astype({dtype})"
        raise Refuse("it cannot be told whether this is data or a shape; write torch.tensor or torch.zeros")

    return build


add_operation(".new", "input, *data, device=None", _make_constructor("input.dtype", "jnp.empty"))
for _name, _dtype in TENSORS.items():
    add_operation(f"torch.{_name}", "*data", _make_constructor(_dtype, "jnp.zeros"))
