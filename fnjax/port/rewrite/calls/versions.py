"""Questions about PyTorch's version.

What: torch.__version__ is that of the PyTorch whose names the porter knows, triton.__version__ that of its Triton;
parsed versions are tuples of numbers, and what is asked of two of them is answered.
Before: `if version.parse(torch.__version__) >= version.parse("1.13"): y = new(x)`
After: `y = new(x)`
Safety: only versions that are written out; a port needs no other PyTorch than the one that it was ported from.
Limits: parts of a version other than its base_version, release, major, minor and micro are findings.
"""

from __future__ import annotations

import operator
import re

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop, make_answer, parse
from fnjax.port.analysis.registry import call_of, expression
from fnjax.port.known.facts import STATIC, Value
from fnjax.port.torch import unparse

TORCH = "2.13.0"
TRITON = "3.5.1"
_VERSION = "instance:version"
_PARSERS = frozenset(
    {
        "packaging.version.parse",
        "packaging.version.Version",
        "pkg_resources.parse_version",
        "distutils.version.LooseVersion",
        "distutils.version.StrictVersion",
        "semantic_version.Version",
        "torch.torch_version.TorchVersion",
    }
)
QUESTIONS = {
    cst.LessThan: operator.lt,
    cst.LessThanEqual: operator.le,
    cst.GreaterThan: operator.gt,
    cst.GreaterThanEqual: operator.ge,
    cst.Equal: operator.eq,
    cst.NotEqual: operator.ne,
}
_NUMBERS = ("major", "minor", "micro")


def _read_numbers(value: Value) -> tuple[int, ...] | None:
    """Return the three numbers of a version."""
    if isinstance(value.literal, tuple):
        return value.literal
    if not isinstance(value.literal, str) or not re.match(r"\d+(\.\d+)*", value.literal):
        return None
    found = [int(n) for n in re.findall(r"\d+", value.literal.partition("+")[0])]
    return (*found, 0, 0, 0)[:3]


@expression(cst.Attribute, only="versions")
def port_version(ev: Evaluator, node: cst.Attribute) -> Expr | None:
    """Translate `torch.__version__`, and parts of a version."""
    if ev.find_name(node) == "fnjax.triton.__version__":
        return Expr(parse(f'"{TRITON}"'), Value("static", name=_VERSION, literal=TRITON))
    if ev.find_name(node) in {"torch.__version__", "torch.version.__version__"}:
        return Expr(parse(f'"{TORCH}"'), Value("static", name=_VERSION, literal=TORCH))
    made = isinstance(node.value, cst.Call) and ev.find_name(node.value.func) in _PARSERS
    if not made and not isinstance(node.value, cst.Name):
        return None
    value = ev.port(node.value).value if made else ev.look_up(unparse(node.value))
    if value.name != _VERSION or not isinstance(value.literal, tuple):
        return None
    parts = {
        "release": value.literal,
        "base_version": ".".join(map(str, value.literal)),
        **dict(zip(_NUMBERS, value.literal, strict=True)),
    }
    if node.attr.value not in parts:
        raise Stop(node, "unknown", f"{node.attr.value!r} of a version: ask for {', '.join(parts)}")
    found = parts[node.attr.value]
    return Expr(parse(repr(found)), Value("static", literal=found))


@call_of(*_PARSERS, "torch.__version__.", like=r"(?!\*)(.*[.:])?is_torch_available")
def port_version_parse(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `version.parse("1.13")`."""
    if isinstance(node.func, cst.Attribute) and name.startswith("torch.__version__."):
        text = ev.port(node.func.value).node
        return Expr(ev.port_parts(node.with_changes(func=cst.Attribute(text, node.func.attr))), STATIC)
    if name not in _PARSERS:  # a package's own question
        return None if node.args else make_answer(True)
    if len(node.args) != 1:
        return None
    numbers = _read_numbers(ev.port(node.args[0].value).value)
    if numbers is None:
        return None
    return Expr(parse(repr(numbers)), Value("static", name=_VERSION, literal=numbers))


@expression(cst.Comparison, only="versions")
def port_version_comparison(ev: Evaluator, node: cst.Comparison) -> Expr | None:
    """Translate `version.parse(torch.__version__) >= version.parse("1.13")`."""
    if len(node.comparisons) != 1 or type(node.comparisons[0].operator) not in QUESTIONS:
        return None
    sides = (node.left, node.comparisons[0].comparator)
    if not any(_is_version(ev, n) for n in sides):
        return None
    left, right = (_read_numbers(ev.port(n).value) for n in sides)
    if left is None or right is None:
        return None
    return make_answer(QUESTIONS[type(node.comparisons[0].operator)](left, right))


def _is_version(ev: Evaluator, node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Call):
        return ev.find_name(node.func) in _PARSERS
    return ev.find_name(node) in {"torch.__version__", "fnjax.triton.__version__", _VERSION}
