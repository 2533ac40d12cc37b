"""PyTorch's own operator tests, for the table of operations: each sample in both, with 64 bits.

`python -m tests.parity.op_db 'cumsum|softmax.*'` lists what differs in the entries that a pattern matches.
"""

import collections
import functools
import itertools
import re
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax.port.torch import Operation, find_operation
from tests.port.operations_translate import Translated, Untranslated

torch = pytest.importorskip("torch")

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


class NotSpelled(Exception):
    """A sample has an argument that no text says."""


@functools.cache
def list_operations():
    """The entries of PyTorch's list that the table has as functions, by their names and variants."""
    from torch.testing._internal.common_methods_invocations import op_db

    found = {}
    for op in op_db:
        name = op.name.replace("nn.functional.", "torch.nn.functional.")
        name = name if name.startswith("torch.nn.") else f"torch.{name}"
        known = find_operation(name)
        if isinstance(known, Operation) and known.called and not known.first.random:
            found[f"{op.name}{'.' if op.variant_test_name else ''}{op.variant_test_name}"] = name, op
    return found


def spell(value, tensors):
    """The text of an argument; tensors get names."""
    if isinstance(value, torch.Tensor):
        tensors[f"t{len(tensors)}"] = value
        return f"t{len(tensors) - 1}"
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple, torch.Size):
        inside = ", ".join(spell(v, tensors) for v in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    if isinstance(value, torch.dtype) or value is None or type(value) in (bool, int, str):
        return repr(value) if not isinstance(value, torch.dtype) else str(value)
    if isinstance(value, slice) or not isinstance(value, (float, complex)):
        raise NotSpelled(type(value))
    return repr(value) if np.isfinite(value) else f"float('{value}')"


def find_class(dtype):
    """The kind of a dtype, as the table asks for it."""
    if dtype == torch.bool:
        return "bool"
    return "complex" if dtype.is_complex else "float" if dtype.is_floating_point else "int"


def to_jax(tensor):
    """The array of a tensor, of its dtype."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        return jnp.asarray(plain.float().numpy(), dtype=jnp.bfloat16)
    return jnp.asarray(plain.numpy())


def list_samples(op, dtype, most):
    """The samples of an entry for a dtype, as texts over named tensors."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), most)


def compare(name, op, sample):
    """Return the difference between PyTorch and the table in one sample; an empty string if they are equal."""
    tensors = {}
    try:
        given = (sample.input, *sample.args)
        args = [spell(v, tensors) for v in (given if name != "torch.where" else (given[1], given[0], *given[2:]))]
        args += [f"{k}={spell(v, tensors)}" for k, v in sample.kwargs.items()]
    except NotSpelled as e:
        return f"refused: {e}"
    text = f"{name}({', '.join(args)})".replace("torch.nn.functional", "F")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arrays = {n: to_jax(t) for n, t in tensors.items()}
        expected = op(sample.input, *sample.args, **sample.kwargs)
        try:
            translated = Translated(text, {n: (find_class(t.dtype), t.ndim) for n, t in tensors.items()})
        except Untranslated as e:
            return f"refused: {e}"
        try:
            found = translated.run(arrays)
        except Exception as e:  # noqa: BLE001 - it is what is asked for
            return f"raises: {text} {translated.text}: {type(e).__name__}: {str(e)[:200]}"
    expected = expected if isinstance(expected, (tuple, list)) else (expected,)
    found = found if isinstance(found, (tuple, list)) else (found,)
    if len(expected) != len(found):
        return f"differs: {text}: {len(found)} results for {len(expected)}"
    for one, other in zip(expected, found, strict=True):
        if not isinstance(one, torch.Tensor):
            if one != other:
                return f"differs: {text}: {other} for {one}"
            continue
        given = jnp.asarray(other)
        wanted = str(one.dtype).removeprefix("torch.")
        if wanted != given.dtype.name:
            return f"dtype: {text} → {translated.text}: {given.dtype} for {wanted}"
        if tuple(one.shape) != given.shape:
            return f"shape: {text} → {translated.text}: {given.shape} for {tuple(one.shape)}"
        loose = {"bfloat16": 2e-2, "float32": 2e-5, "complex64": 2e-5}.get(wanted, 1e-7)
        a, b = np.asarray(to_jax(one), dtype=None), np.asarray(given)
        if wanted == "bfloat16":
            a, b = a.astype(np.float32), b.astype(np.float32)
        if not np.allclose(a, b, rtol=loose, atol=loose, equal_nan=True):
            return f"value: {text} → {translated.text}: {b.ravel()[:4]} for {a.ravel()[:4]}"
    return ""


# What is known to differ, by a pattern over what `compare` says, with the reason.
DEPARTURES = {
    r"^dtype: .*: float64 for float32 torch.(int64|bool)$": "JAX makes floats of 64 bits of such integers",
    r"^value: torch\.cum(sum|prod)\(.*bfloat16": "JAX rounds running sums of 16 bits at each step",
    r"^dtype: .*(top_k|jnp\.searchsorted).*: int32 for int64": "JAX counts in 32 bits here",
    r"^value: torch\.(kthvalue|topk|sort|argsort)\(": "which of equal entries is named is not defined",
}


def compare_entry(key, most, dtypes=DTYPES):
    """Yield what `compare` says of the first samples of an entry for each dtype."""
    name, op = list_operations()[key]
    for dtype in dtypes:
        for sample in list_samples(op, dtype, most) if op.supports_dtype(dtype, "cpu") else ():
            yield f"{compare(name, op, sample)} {dtype}".strip()


def is_departure(found):
    """Return whether a difference is a known one."""
    return any(re.search(pattern, found) for pattern in DEPARTURES)


def main(pattern=".*", most="10"):
    """Print what differs, and how many samples are equal, refused, or known to differ."""
    counts = collections.Counter()
    with jax.enable_x64(True):
        for key in (k for k in list_operations() if re.fullmatch(pattern, k)):
            for found in compare_entry(key, int(most)):
                known = is_departure(found)
                counts["known" if known else found.partition(":")[0] if ":" in found else "equal"] += 1
                if ":" in found and not known:
                    print(key, found.replace("\n", " "), flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
