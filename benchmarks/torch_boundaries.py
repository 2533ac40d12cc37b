"""Ties, NaN, signed zeros, integers, last bits: PyTorch next to fnjax.torch, and docs/torch-boundaries.md of it.

    python -m benchmarks.torch_boundaries

Each case is an expression of x. It runs in PyTorch, in fnjax.torch, and under jax.jit, and the bits are compared:
of the result, or after `grad` of the gradient of its sum at x.
"""

from pathlib import Path

import jax
import numpy as np
import torch

import fnjax.torch

PAGE = Path(__file__).parent.parent / "docs" / "torch-boundaries.md"
F32 = np.float32
TIES = np.array([2, 1, 2, 1, 2], F32)
NANS = np.array([1, np.nan, -np.inf, np.nan, 3], F32)
ZEROS = np.array([0.0, -0.0, 1, -1], F32)
HALVES = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], F32)
SPREAD = (np.arange(1, 33) * 0.37 - 5).astype(F32)
BYTES = np.array([200, 100, 0], np.uint8)
INTS = np.array([7, -7, 0], np.int64)
ZERO, LAST = "the sign of a zero", "the last bit of a function, which each library has its own series for"
WHY = {
    "grad x.topk(2)[0]": "PyTorch's choice among equal elements depends on its algorithm",
    "x.unique()": "values decide the size",
    "torch.maximum(x, -x)": "of zeros of both signs XLA takes 0.0, PyTorch the first",
    "grad x.abs()": ZERO,
    "grad x[:2].norm()": ZERO,
    "x.var()": "XLA's order of sums",
    "x // x[2]": "only a known zero raises",
    "x % x[2]": "only a known zero raises",
}  # others: LAST
HEAD = """\
# Boundaries

Expressions at ties, NaN, zeros, of integers and of nothing, in PyTorch, in `fnjax.torch` and under `jax.jit`, values
and gradients (`grad`) to the last bit, by `python -m benchmarks.torch_boundaries`.
{}
"""
CASES = {  # expressions, and x
    "Ties": (
        """
        grad x.max() ; grad x.min() ; grad x.amax() ; grad x.median() ; grad x.max(0)[0] ; grad x.sort()[0][:2] ;
        grad torch.maximum(x, x.flip(0)) ; grad x.topk(2)[0] ; grad x.cummax(0)[0] ; grad x.kthvalue(2)[0] ;
        x.argmax() ; x.argmin() ; x.max(0)[1] ; x.mode()[0] ; x.unique() ; x.median(0)[1] ; grad x.clamp(1, 2) ;
        grad F.max_pool1d(x[None], 2) ; grad x.norm(float('inf'))
        """,
        TIES,
    ),
    "NaN and infinity": (
        """
        x.max() ; x.min() ; x.argmax() ; x.sum() ; x.nansum() ; x.sort()[0] ; x.sign() ; x.sgn() ; x.median() ;
        x.nanmedian() ; x.unique() ; F.relu(x) ; x.clamp(0, 2) ; torch.maximum(x, x * 0 + 2) ;
        torch.fmax(x, x * 0 + 2) ; x.nan_to_num() ; x.bool() ; x == x ; x.round() ; x.cummax(0)[0] ;
        torch.isclose(x, x) ; grad F.relu(x) ; grad x.abs() ; x.softmax(0) ; x.logsumexp(0) ;
        (x * 0 - float('inf')).softmax(0) ; x.heaviside(x)
        """,
        NANS,
    ),
    "Zeros and their signs": (
        """
        x.sign() ; 1 / x ; x.sqrt() ; x.abs() ; -x ; x.round() ; torch.atan2(x, x) ; x.pow(0) ; x ** x ; x.log() ;
        torch.copysign(x * 0 + 1, x) ; torch.maximum(x, -x) ; x.signbit() ; x % 1 ; torch.fmod(x, 1) ; x // 1 ;
        grad x.abs() ; grad x.sqrt() ; grad F.relu(x) ; grad x.sign() ; grad x.norm() ; grad x[:2].norm() ;
        grad torch.hypot(x, x) ; grad x.pow(2) ; grad x ** 0.5 ; grad torch.xlogy(x, x) ; grad x.prod() ;
        grad F.leaky_relu(x) ; grad F.hardtanh(x) ; grad F.relu6(x) ; grad F.hardswish(x) ; grad F.elu(x) ;
        grad x.clamp(0)
        """,
        ZEROS,
    ),
    "Rounding": (
        """
        x.round() ; x.floor() ; x.ceil() ; x.trunc() ; x.frac() ; x.int() ; x // 2 ; x % 2 ; torch.fmod(x, 2) ;
        torch.div(x, 2, rounding_mode='trunc') ; x.round(decimals=0)
        """,
        HALVES,
    ),
    "Last bits": (
        """
        x / 3 ; x / x.abs().max() ; x / x.abs().max().reshape(1) ; x.view(4, 8) / x.view(4, 8).sum(1, keepdim=True)
        ; x * (1 / x.abs().max()) ; x.rsqrt() ; x.abs().sqrt() ; 1 / x ; x.mean() ; x.reciprocal() ; x / 31 * 31 ;
        x / 3 / 7 ; x / (x.abs().max() / 31) ; 1 / x.abs().sqrt() ; x.half() + 1.1 ; (x.bfloat16() % 0.3).float() ;
        (x / (x.abs().max() / 31)).round() ; x.view(4, 8).mean(1) ; x.double().float() ; x.half().float() ;
        x.bfloat16().float() ; x.exp() ; x.sigmoid() ; x.tanh() ; x.abs().log() ; x.sin() ; x ** 3 ; x.softmax(0) ;
        x.var() ; x.sum()
        """,
        SPREAD,
    ),
    "Integers": (
        """
        x // 2 ; x % 2 ; x // -2 ; torch.fmod(x, 2) ; x // x[2] ; x % x[2] ; x / x[2] ; x >> 1 ; x ** 2 ;
        x.float().int() ; torch.div(x, 2, rounding_mode='trunc') ; x.clamp(max=1.5) ; x.sum() ; x.prod() ; x.abs() ;
        ~x ; x & 3 ; x.bool() ; x / 2
        """,
        INTS,
    ),
    "Bytes": (
        """
        x + x ; x * 2 ; -x ; x.sum() ; x.any() ; x.all() ; x - 201 ; x >> 1 ; ~x ; x.float() ; x.max()
        """,
        BYTES,
    ),
    "Nothing": (
        """
        x.sum() ; x.mean() ; x.prod() ; x.max() ; x.argmax() ; x.amax() ; x.std() ; x.median() ; x.norm() ; x.all()
        ; x.any() ; x.logsumexp(0) ; x.cumsum(0) ; x.sort()[0] ; x.softmax(0) ; torch.cat([x, x]) ; x.unique() ;
        x.max(0)
        """,
        np.zeros(0, F32),
    ),
}


def evaluate(text, x, names):
    """Return the result of an expression of x, or after `grad` its gradient."""
    of_gradient, text = text.startswith("grad "), text.removeprefix("grad ")
    given = x.detach().requires_grad_() if of_gradient else x
    found = eval(text, {**names, "x": given, "float": float})
    return names["torch"].autograd.grad(found.sum(), given)[0] if of_gradient else found


def attempt(call):
    """Return the result of a call as an array, or an error's type."""
    try:
        found = call()
    except Exception as e:  # noqa: BLE001 - it is what is compared
        return type(e).__name__
    found = getattr(found, "values", found) if isinstance(found, tuple) else found
    return np.asarray(found.detach().numpy() if hasattr(found, "detach") else found)


def are_equal(a, b):
    """Return whether two outcomes are one to the last bit, where NaN is NaN; or both errors."""
    if isinstance(a, str) or isinstance(b, str):
        return isinstance(a, str) and isinstance(b, str)
    same = a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    return same and (a.dtype.kind != "f" or np.array_equal(np.signbit(a)[~np.isnan(a)], np.signbit(b)[~np.isnan(b)]))


def show(a):
    """Return an outcome as a cell has it: an error, or the first elements."""
    return a if isinstance(a, str) else f"{np.array2string(a.ravel()[:6], precision=9)} {a.dtype}".replace("\n", "")


def main():
    """Run all, and write the page."""
    theirs, ours = ({"torch": t, "F": t.nn.functional} for t in (torch, fnjax.torch))
    parts, count, equal = [], 0, 0
    for title, (texts, x) in CASES.items():
        rows, each = [], [text.strip() for text in texts.split(";")]
        for text in each:
            expected = attempt(lambda text=text, x=x: evaluate(text, torch.from_numpy(x.copy()), theirs))
            function = fnjax.torch.jax_view(lambda x, text=text: evaluate(text, x, ours))
            found = [attempt(lambda f=f, x=x: f(jax.numpy.asarray(x))) for f in (function, jax.jit(function))]
            cells = ["=" if are_equal(expected, f) else show(f) for f in found]
            count, equal = count + 2, equal + cells.count("=")
            if cells != ["=", "="]:
                rows.append(f"| `{text}` | {show(expected)} | {' | '.join(cells)} | {WHY.get(text, LAST)} |")
        parts += [f"## {title}", "", f"x = {show(x)}. Compared: {', '.join(f'`{t}`' for t in each)}.", ""]
        if rows:
            parts += [
                "| what differs | PyTorch | fnjax.torch | under jit | why |",
                "| --- | --- | --- | --- | --- |",
                *rows,
                "",
            ]
    versions = f"PyTorch {torch.__version__.partition('+')[0]} and JAX {jax.__version__}, on a CPU with 64-bit numbers"
    head = HEAD.format(f"{versions}: {equal} of {count} are equal to the last bit, or raise where PyTorch raises.")
    PAGE.write_text("\n".join([head, *parts]))


if __name__ == "__main__":
    with jax.enable_x64(True):
        main()
