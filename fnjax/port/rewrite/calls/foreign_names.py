"""Names of other libraries, and calls of which nothing is known.

What: what the porter does not know stays as it is, if the output can have it: the user's own objects, functions that
are arguments, the standard library.
Before: `y = activation(x)`
After: `y = activation(x)`
Safety: nothing is assumed of the result.
Limits: what another library provides is a finding, as the output cannot import it.
"""

from __future__ import annotations

import sys

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Stop
from fnjax.port.known.facts import STATIC, Value


def describe_foreign(ev: Evaluator, node: cst.BaseExpression, name: str) -> Value:
    """Return what is known of a name that is not torch's, and is not called."""
    report_unknown_library(node, name)
    if name.removeprefix("file:") in ev.program.as_pytorch:
        raise Stop(node, "unknown", f"{name[5:]} stays PyTorch, and is not called here")
    if name.startswith("file:"):
        ev.called.add(name)
    return Value("object", name=name) if name.startswith(("file:", "function:")) else STATIC


# Python's own modules, and those of others that know nothing of tensors: a port imports them as the source does.
OF_PYTHON = sys.stdlib_module_names | {"packaging"}
OF_ANY_ARRAYS = frozenset({"einops", "opt_einsum"})  # theirs take JAX's arrays as well


def is_foreign(name: str) -> bool:
    """Return whether a qualified name is one of another library, which the output cannot import."""
    return bool(name) and not (
        name.startswith(("?", "file:", "function:", "builtins.", "instance:", "ctx", "super", "cls"))
        or name.split(".", maxsplit=1)[0] in {"numpy", "fnjax", "jax", "torch"} | OF_PYTHON | OF_ANY_ARRAYS
    )


def report_unknown_library(node: cst.CSTNode, name: str) -> None:
    """Report a name of another library: the output cannot import it."""
    if name.startswith("?"):
        owner, _, own = name[1:].rpartition(" ")
        if owner:
            message = f"{own!r} is of {owner}, which the port leaves out: make it an argument of forward"
            raise Stop(node, "unknown", message)
        raise Stop(node, "unknown", f"the file does not say what {own!r} is")
    if not is_foreign(name):
        return
    raise Stop(node, "supply", f"{name} is of another module; put a JAX function of that name in its place")
