"""PyTorch's own operator tests, for fnjax.torch: each sample in both, with 64 bits.

`python -m tests.parity.torch_operators 'cumsum|softmax.*' 10` prints what differs in the entries that a pattern
matches, and counts; further arguments are the part, forms, dtypes, and 32 for a run without 64-bit numbers.
"""

import collections
import functools
import itertools
import re
import sys
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.torch
from fnjax._torch_ops import Operation, find_operation
from fnjax.torch.memory.dtypes import dtype as Dtype
from fnjax.torch.memory.tensor import Derived, Tensor, make
from fnjax.torch.names.registry import find

torch = pytest.importorskip("torch")
seed = fnjax.torch.seed  # enters all names of torch

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
# Relative errors that are rounding; what differs by more is compared with PyTorch's result in twice the precision.
LOOSE = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 2e-5, "complex64": 2e-5}
# PyTorch does not say which of equal entries these find: their indices are not compared.
TIES = re.compile(r"(arg)?sort|msort|topk|kthvalue|mode|(nan)?median")
# What differs and stays so, by patterns over entry, form and outcome, with the reason.
DEPARTURES = {
    r"^linalg.det \| grad \| raised: IndexError": "JAX does not differentiate the determinant of an empty matrix",
    r"^nn.functional.multi_head_attention_forward \|  \| value": "each step is rounded to bfloat16, in another order",
    r"dropout.* \| grad \| gradient": "other random numbers",
    r"^addbmm \| inplace \| raised": "PyTorch gives the tensor that is written another shape",
    r"^uniform \| (strided|inplace)? *\| raised": "no complex numbers are drawn",
    r"^linalg.eig \| grad \| raised: NotImplementedError": "JAX does not differentiate eigenvectors",
    r"^masked.(std|var) \| (strided)? *\| value: .*float32": "each step is rounded to bfloat16, in another order",
    r"^tensordot \| (strided)? *\| raised: .*dot_general": "PyTorch repeats a summed axis of size 1",
    r"^linalg.pinv.hermitian \| grad": "the samples are not Hermitian, and PyTorch's gradient mixes both triangles",
    r"^as_strided_scatter \| grad": "PyTorch gives what is replaced the gradient of what replaces it",
    r"^as_strided.partial_views \| grad": "the memory around an argument is not carried over",
    r"^(linalg\.)?cholesky(_ex)? \| grad .*j": "PyTorch differentiates by the imaginary parts of a diagonal",
    r"^matrix_exp \| (strided)? *\| value: .* for \[np.float32\(nan\)": "PyTorch's result in bfloat16 is NaN",
}
UNINITIALISED = re.compile(r"(new_)?empty.*|resize_.*")


@functools.cache
def list_entries():
    """PyTorch's list of operators, by name and variant."""
    from torch.testing._internal import common_methods_invocations as module

    torch.testing._internal.common_utils.extract_test_fn = lambda: None  # half of the time
    module.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)  # `compare` sets seeds
    op_db = module.op_db
    return {f"{op.name}{'.' if op.variant_test_name else ''}{op.variant_test_name}": op for op in op_db}


def find_counterpart(op):
    """The function of fnjax.torch for an entry; None if it has none."""
    own = op.op
    if isinstance(own, types.FunctionType) and own.__name__ == "<lambda>":
        names = {**own.__globals__, "torch": fnjax.torch}
        return types.FunctionType(own.__code__, names, "entry", own.__defaults__, own.__closure__)
    if isinstance(own, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return functools.reduce(getattr, str(own).split("."), fnjax.torch.ops)
    found = find(f"torch.{op.name.removeprefix('torch.')}")
    names = (op.name, getattr(own, "__name__", "")) if found is None or isinstance(found, Dtype) else ()
    return next((vars(Tensor)[n] for n in names if n in vars(Tensor)), found)


def to_array(tensor):
    """The array of a tensor of PyTorch, of its dtype."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        return jnp.asarray(plain.float().numpy(force=True), dtype=jnp.bfloat16)
    return jnp.asarray(plain.numpy(force=True))


def convert(value, memo):
    """An argument for fnjax.torch; a tensor once, so that two parameters may be one tensor."""
    if isinstance(value, torch.Tensor):
        if id(value) not in memo:
            own = Dtype(str(value.dtype).removeprefix("torch."))
            memo[id(value)] = make(to_array(value), own, strides=value.stride())
        return memo[id(value)]
    if isinstance(value, torch.dtype):
        return Dtype(str(value).removeprefix("torch."))
    if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
        return str(value).removeprefix("torch.")
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, (list, tuple)):
        return type(value)(convert(v, memo) for v in value)
    if isinstance(value, dict):
        return {k: convert(v, memo) for k, v in value.items()}
    return value


def change(value, function):
    """An argument with each tensor in it replaced."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(change(v, function) for v in value)
    return {k: change(v, function) for k, v in value.items()} if isinstance(value, dict) else value


def flatten(value):
    """The results in nested tuples and lists."""
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return [x for v in value for x in flatten(v)]
    return [value]


def widen(tensor):
    """A tensor of twice the precision."""
    wide = {torch.float32: torch.float64, torch.bfloat16: torch.float64, torch.complex64: torch.complex128}
    return tensor.to(wide.get(tensor.dtype, tensor.dtype))


def differ(expected, found, make_reference, values=True, ties=False):
    """Return the difference between results of PyTorch and of fnjax.torch; an empty string if they are equal."""
    if isinstance(expected, torch.Size):
        return "" if tuple(expected) == tuple(found) else f"value: {found} for {expected}"
    expected, found = flatten(expected), flatten(found)
    if len(expected) != len(found):
        return f"count: {len(found)} results for {len(expected)}"
    for i, (one, other) in enumerate(zip(expected, found, strict=True)):
        if not isinstance(one, torch.Tensor):
            if isinstance(other, Tensor):
                return f"value: a tensor for {one!r}"
            same = np.allclose(one, other, equal_nan=True) if isinstance(one, (int, float, complex)) else True
            if not same:
                return f"value: {other!r} for {one!r}"
            continue
        if not isinstance(other, Tensor):
            return f"value: {other!r} for a tensor"
        name = str(one.dtype).removeprefix("torch.")
        if tuple(one.shape) != tuple(other.shape):
            return f"shape: {tuple(other.shape)} for {tuple(one.shape)}"
        if other.dtype.name != name or other.array.dtype != Dtype(name).array:
            return f"dtype: {other.dtype.name}/{other.array.dtype.name} for {name}"
        if one.numel() and one.stride() != other.stride():
            return f"strides: {other.stride()} for {one.stride()} of {tuple(one.shape)}"
        reference = (lambda i=i: flatten(make_reference())[i]) if name in LOOSE else None
        if (
            values
            and not (ties and name == "int64" and (i or len(expected) == 1))
            and not is_near(to_numpy(to_array(one)), to_numpy(other.array), LOOSE.get(name, 1e-7), reference)
        ):
            a, b = to_numpy(to_array(one)), to_numpy(other.array)
            at = np.argwhere(~np.isclose(a, b, LOOSE.get(name, 1e-7), LOOSE.get(name, 1e-7), equal_nan=True))[:3]
            return f"value: {[b[tuple(p)] for p in at]} for {[a[tuple(p)] for p in at]}"
    return ""


def to_numpy(array):
    """A NumPy array, with 16-bit numbers as float32."""
    array = np.asarray(array)
    return array.astype(np.float32) if array.dtype.itemsize == 2 and array.dtype.kind not in "iu" else array


def is_near(expected, found, loose, make_reference):
    """Return whether two arrays are equal up to rounding, or else the second is as near to the exact one."""
    if np.allclose(expected, found, loose, loose, equal_nan=True):
        return True
    if make_reference is None:
        return False
    try:
        truth = to_numpy(to_array(make_reference()))
    except Exception:  # noqa: BLE001 - no such operation in that precision
        return False
    if truth.shape != expected.shape:
        return False
    finite = np.isfinite(expected) & np.isfinite(truth)
    if not np.array_equal(finite, np.isfinite(found) & np.isfinite(truth)) or not finite.any():
        return False
    own = np.abs(found - truth)[finite].max()
    largest = np.abs(truth[finite]).max()
    return bool(own <= max(4 * np.abs(expected - truth)[finite].max(), loose * largest / 4))


def list_samples(op, dtype, most, grad=False):
    """The samples of an entry for a dtype."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield from itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), most)
        except (RuntimeError, NotImplementedError, ModuleNotFoundError, ImportError, TypeError):  # PyTorch has none
            return


def is_random(name):
    """Return whether an operation draws random numbers."""
    found = find_operation(f"torch.{name}") or find_operation(f"torch.Tensor.{name}_")
    return isinstance(found, Operation) and found.first.random


def is_view(x, given):
    """Return whether a tensor of fnjax.torch shows the memory of another."""
    memory = x.memory
    while isinstance(memory, Derived):
        memory = memory._parent.memory
    return memory is given.memory


def share(x, result):
    """Return whether a PyTorch tensor is a view of another."""
    return result.numel() > 0 and x.untyped_storage().data_ptr() == result.untyped_storage().data_ptr()


def compare(op, sample, form=""):
    """Return the result of fnjax.torch on one sample: `equal`, or the difference; None where PyTorch itself refuses.

    Args:
        op: the entry.
        sample: its sample.
        form: nothing, "strided", "inplace", "out" or "grad".
    """
    args, kwargs = (sample.input, *sample.args), sample.kwargs
    if any(isinstance(v, torch.nn.Module) for v in kwargs.values()):
        return None
    if any(t.layout != torch.strided for t in flatten_tensors((args, kwargs))):
        return "refused: a sparse tensor"
    if form == "grad":
        return compare_gradients(op, args, kwargs, sample.output_process_fn_grad)
    own, other = op.op, find_counterpart(op)
    memo = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if form == "strided":
            args, kwargs = change(args, reorder), change(kwargs, reorder)
        copied = copied_again(args)
        given = (convert(args, memo), convert(kwargs, memo))
        try:
            if form == "inplace":
                own = op.inplace_variant
                other = getattr(Tensor, own.__name__, None)
            process = sample.output_process_fn_grad if form in {"", "strided"} else lambda x: x
            torch.manual_seed(1)
            expected = process(own(*copied, **kwargs))
            if form == "out":
                outs = [torch.empty_like(t) for t in flatten(expected)]
                out = outs[0] if isinstance(expected, torch.Tensor) else tuple(outs)
                expected = own(*copied, **kwargs, out=out)
                given[1]["out"] = convert(out, memo)
            torch.manual_seed(2)
            again = process(own(*copied_again(args), **kwargs))
            values = (
                not UNINITIALISED.fullmatch(op.name)
                and not is_random(op.name)
                and all(
                    torch.equal(a, b) or bool((a.isnan() == b.isnan()).all() and a.isnan().any())
                    for a, b in zip(flatten(expected), flatten(again), strict=True)
                    if isinstance(a, torch.Tensor)
                )
            )
        except Exception:  # noqa: BLE001 - whatever it is, there is nothing to compare with
            return None
        if other is None:
            return "unknown"
        try:
            with seed(0):
                found = process(other(*given[0], **given[1]))
        except Exception as e:  # noqa: BLE001 - it is what is asked for
            kind = "refused" if isinstance(e, fnjax.torch.NotSupported) else "raised"
            kind = "unknown" if re.search(r"is not (a name|an operation) that fnjax.torch has", str(e)) else kind
            return f"{kind}: {type(e).__name__}: {str(e)[:200]}" if kind != "unknown" else kind
        reference = lambda: process(own(*change(copied_again(args), widen), **change(kwargs, widen)))
        wrong = differ(expected, found, reference, values, TIES.fullmatch(op.name) is not None)
        if not wrong and form in {"", "strided"} and isinstance(copied[0], torch.Tensor):
            for a, b in zip(flatten(expected), flatten(found), strict=True):
                shared = isinstance(a, torch.Tensor) and share(copied[0], a)
                if isinstance(a, torch.Tensor) and a.numel() and shared != is_view(b, given[0][0]):
                    wrong = "view: a copy for a view" if shared else "view: a view for a copy"
        if not wrong and form == "inplace" and found is not given[0][0]:
            wrong = "view: not the tensor itself"
    return wrong or "equal"


def reorder(tensor):
    """A copy whose axes are in another order in memory: channels last, or the reverse."""
    rank = tensor.ndim
    order = (0, *range(2, rank), 1) if rank > 3 else [*reversed(range(rank))]
    return (
        tensor.detach().permute(*order).contiguous().permute(*np.argsort(order).tolist()) if rank else tensor.detach()
    )


def copied_again(args):
    """Copies of tensors, with their strides."""

    def copy(tensor):
        memory = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage()).clone()
        return memory.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    return change(args, copy)


def compare_gradients(op, args, kwargs, process):
    """As `compare`, of gradients: torch.autograd.grad's next to jax.vjp's through jax_view."""
    leaves = [t for t in flatten_tensors((args, kwargs)) if t.requires_grad]
    other = find_counterpart(op)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            whole = flatten(process(op.op(*args, **kwargs)))
            at = [i for i, t in enumerate(whole) if isinstance(t, torch.Tensor) and t.requires_grad]
            results = [whole[i] for i in at]
            torch.manual_seed(3)
            cotangents = [torch.randn_like(t) for t in results]
            expected = torch.autograd.grad(results, leaves, cotangents, allow_unused=True)
        except Exception:  # noqa: BLE001 - there is nothing to compare with
            return None
        if not results or other is None:
            return None

        def function(arrays):
            memo = {}
            for leaf, array in zip(leaves, arrays, strict=True):
                memo[id(leaf)] = array
            found = flatten(process(other(*convert(args, memo), **convert(kwargs, memo))))
            return [found[i] for i in at]

        try:
            with seed(0):
                _, vjp = jax.vjp(fnjax.torch.jax_view(function), [to_array(x) for x in leaves])
            (found,) = vjp([to_array(c.conj()) for c in cotangents])
        except Exception as e:  # noqa: BLE001 - it is what is asked for
            kind = "refused" if isinstance(e, fnjax.torch.NotSupported) else "raised"
            return f"{kind}: {type(e).__name__}: {str(e)[:200]}"
    for number, (one, own) in enumerate(zip(expected, found, strict=True)):
        a = np.zeros(own.shape, own.dtype) if one is None else to_numpy(to_array(one))
        b = to_numpy(own.conj())
        scale = max(1.0, float(np.abs(a[np.isfinite(a)]).max(initial=0)))
        if a.shape != b.shape or not np.allclose(a, b, 1e-3, 1e-4 * scale, equal_nan=True):
            if a.shape == b.shape and is_near_wide(op, args, kwargs, cotangents, at, process, leaves, number, one, own):
                continue
            return f"gradient: {b.ravel()[:3]} for {a.ravel()[:3]}"
    return "equal"


def is_near_wide(op, args, kwargs, cotangents, at, process, leaves, number, one, own):
    """Return whether a gradient is as near as PyTorch's to that of twice the precision."""
    memo = {}

    def widen_once(t):
        if id(t) not in memo:
            memo[id(t)] = widen(t.detach()).requires_grad_(t.requires_grad)
        return memo[id(t)]

    try:
        whole = flatten(process(op.op(*change(args, widen_once), **change(kwargs, widen_once))))
        wide = torch.autograd.grad(
            [whole[i] for i in at], [memo[id(x)] for x in leaves], [widen(c) for c in cotangents], allow_unused=True
        )
    except Exception:  # noqa: BLE001 - no such operation in that precision
        return False
    truth = to_numpy(to_array(wide[number]))
    errors = [np.abs(to_numpy(g) - truth).max() for g in (to_array(one), own.conj())]
    return bool(errors[1] <= max(8 * errors[0], 1e-4 * np.abs(truth).max()))


def flatten_tensors(value):
    """The tensors among arguments, each once."""
    found = {}
    change(value, lambda t: found.setdefault(id(t), t))
    return list(found.values())


def describe(sample, dtype):
    """A sample in a line."""
    short = change((sample.input, *sample.args), lambda t: f"{str(t.dtype)[6:]}{list(t.shape)}")
    return f"{str(dtype)[6:]} {short} {change(sample.kwargs, lambda t: f'{str(t.dtype)[6:]}{list(t.shape)}')}"


def find_reason(key, form, outcome):
    """The reason why an outcome is not `equal`; empty where none is known."""
    if outcome.startswith("refused"):
        return re.sub(r"^refused: (NotSupported: )?", "", outcome).partition("  ")[0].strip()
    text = f"{key} | {form} | {outcome}"
    return next((reason for pattern, reason in DEPARTURES.items() if re.search(pattern, text)), "")


def list_forms(op):
    """The forms in which an entry may be called."""
    known = {"": True, "strided": True, "inplace": isinstance(op.inplace_variant, types.MethodDescriptorType)}
    return [f for f, has in {**known, "out": op.supports_out, "grad": op.supports_autograd}.items() if has]


def check_entry(key, most, forms=("",), dtypes=DTYPES):
    """Yield (form, outcome, sample in words) for the first samples of an entry for each dtype."""
    op = list_entries()[key]
    for form in (f for f in list_forms(op) if f in forms):
        for dtype in dtypes:
            known = op.supported_backward_dtypes("cpu") if form == "grad" else op.supported_dtypes("cpu")
            if dtype not in known or (form == "grad" and dtype == torch.bfloat16):
                continue
            for sample in list_samples(op, dtype, most if not form else min(most, 2), grad=form == "grad"):
                outcome = compare(op, sample, form)
                if outcome is not None:
                    yield form, outcome, describe(sample, dtype)


def main(pattern=".*", most="10", part="0/1", forms=",strided,inplace,out,grad", dtypes="", bits="64"):
    """Print what differs, and how many samples are equal, wrong, refused, raise, or are of unknown operations."""
    kinds = [getattr(torch, name) for name in dtypes.split(",") if name] or DTYPES
    torch.set_num_threads(1)
    counts = collections.Counter()
    entries = [k for k in list_entries() if re.fullmatch(pattern, k)]
    first, step = map(int, part.split("/"))
    with jax.enable_x64(bits == "64"):
        for number, key in enumerate(entries[first::step]):
            found = check_entry(key, int(most), forms.split(","), kinds)
            for form, outcome, sample in found:
                kind = outcome.partition(":")[0]
                kind = kind if kind in {"equal", "refused", "raised", "unknown"} else "wrong"
                counts[f"{form} {kind}".strip()] += 1
                if outcome != "equal":
                    print(f"{key} | {form} | {outcome} | {sample}".replace("\n", " "), flush=True)
            if number % 20 == 19:
                jax.clear_caches()
    print(dict(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
