"""Questions whose answer is known: of the versions of PyTorch and Triton, of the GPU, of a tensor's device.

What: the question becomes the constant that answers it, and so do its attributes, items and comparisons. Versions are
those whose names the porter knows; kernels run in fnjax.triton, which is a CUDA device of one kind. Of a branch on the
device one side goes. Counts of processors are the machine's, and are computed when the port runs.
Before: `if x.is_cuda and torch.cuda.get_device_capability()[0] >= 9: launch_tma(x)` and `x.data_ptr() % 16`
After: nothing and `0`
Safety: of the GPU only in files with Triton kernels; a port needs no other PyTorch than the one that it is ported from.
Limits: `x.is_cuda` of what is known not to be a tensor stays; parts of a version but those of three numbers are
findings.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import libcst as cst

from fnjax._machine import CAPABILITY, CUDA, NAME, TORCH, TRITON, WARP_SIZE
from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop, make_answer, parse
from fnjax.port.analysis.registry import call_of, expression
from fnjax.port.known.facts import STATIC, Value
from fnjax.port.source.naming import is_provided
from fnjax.port.torch import MISSING, read_literal
from fnjax.port.tree.located import list_nodes

_ANSWER, _DEVICE = "instance:answer", "instance:device"
_VERSIONS = {"torch.__version__": TORCH, "torch.version.__version__": TORCH, "fnjax.triton.__version__": TRITON}
_PARSERS = (
    *("packaging.version.parse", "packaging.version.Version", "pkg_resources.parse_version"),
    *("distutils.version.LooseVersion", "distutils.version.StrictVersion"),
    *("semantic_version.Version", "torch.torch_version.TorchVersion"),
)
_NUMBERS = ("major", "minor", "micro")
_OTHERS = ("torch.xpu", "torch.npu", "torch.mps", "torch.mlu", "torch.musa", "torch.hpu", "torch.mtia", "torch.maia")
_ASKED: dict[str, object] = {
    "is_available is_initialized is_bf16_supported": True,
    "get_device_capability": CAPABILITY,
    "device_count": 1,
    "current_device": 0,
}
_CALLS: dict[str, object] = {
    **{f"torch.cuda.{name}": answer for names, answer in _ASKED.items() for name in names.split()},
    "fnjax.triton.runtime.driver.active.get_current_device": 0,
    **{f"{other}.is_available": False for other in _OTHERS},
}
_SETTINGS: dict[str, object] = {
    "torch.version.cuda": CUDA,
    "torch.version.hip": None,
    "torch.version.xpu": None,
    "torch.backends.cuda.matmul.allow_tf32": False,  # as PyTorch has it
}
_ACTIVE = "fnjax.triton.runtime.driver.active."
_PROPERTIES = (
    *(_ACTIVE + name for name in ("utils.get_device_properties", "get_current_target", "get_device_properties")),
    "torch.cuda.get_device_properties",
)
_PARTS: dict[str, dict[str, object]] = {
    _DEVICE: dict(zip(("major", "minor"), CAPABILITY, strict=True))
    | {"warp_size": WARP_SIZE, "gcnArchName": NAME, "backend": "cuda", "arch": 80},
    "tensor": {"is_cuda": True, "is_cpu": False, "device": "cuda"},
}
_COUNTS = frozenset({"multi_processor_count", "multiprocessor_count", "num_sms"})
_COMPARED: dict[type[cst.CSTNode], Callable[[Any, Any], bool]] = {
    cst.LessThan: operator.lt,
    cst.LessThanEqual: operator.le,
    cst.GreaterThan: operator.gt,
    cst.GreaterThanEqual: operator.ge,
    cst.Equal: operator.eq,
    cst.NotEqual: operator.ne,
    cst.Is: operator.is_,
    cst.IsNot: operator.is_not,
}


def _write_answer(answer: object) -> Expr:
    """Return the constant that answers a question, as an expression of known value."""
    return Expr(parse(repr(answer).replace("'", '"')), _describe_answer(answer), answered=True)


def _describe_answer(answer: object) -> Value:
    parts = tuple(map(_describe_answer, answer)) if isinstance(answer, tuple) else None
    kind = {bool: "bool", int: "int", tuple: "int"}.get(type(answer), "unknown")
    return Value("static", kind, name=_ANSWER, literal=answer, parts=parts)


@call_of(*_CALLS, *_PROPERTIES, "builtins.hasattr", "builtins.getattr", only="kernels")
def port_device_question(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `torch.cuda.get_device_capability()`, `hasattr(torch, "xpu")`, `getattr(torch.version, "hip", 0)`."""
    if name in _PROPERTIES:
        return Expr(parse("None"), Value("static", name=_DEVICE, literal=_DEVICE))
    if not name.startswith("builtins."):
        return _write_answer(_CALLS[name])
    owner = ev.find_name(node.args[0].value) if len(node.args) > 1 else ""
    asked = f"{owner}.{read_literal(node.args[1].value)}" if owner else ""
    if name == "builtins.getattr":
        return _write_answer(_SETTINGS[asked]) if asked in _SETTINGS else None
    if owner == "fnjax.triton":
        return make_answer(is_provided(asked))
    known = asked in {"torch.cuda", "torch._C", "torch._C._functorch"}
    return make_answer(known) if known or asked in _OTHERS else None


@expression(cst.Attribute, only="versions")
@expression(cst.Attribute, only="kernels")
def port_known_attribute(ev: Evaluator, node: cst.Attribute) -> Expr | None:
    """Translate `torch.__version__`, `torch.version.hip`, `x.is_cuda`, `properties.major`, `version.release`."""
    name, attr = ev.find_name(node), node.attr.value
    if name in _VERSIONS:
        return _write_answer(_VERSIONS[name])
    if name:
        return _write_answer(_SETTINGS[name]) if name in _SETTINGS and ev.program.kernels else None
    asked = attr in _COUNTS or attr in _PARTS[_DEVICE] or attr in _PARTS["tensor"]
    if not (asked or isinstance(node.value, (cst.Name, cst.Call))):
        return None
    if ev.find_name(node.value).startswith(("file:", "function:")):
        return None
    value = ev.port(node.value).value
    if value.name == _ANSWER and isinstance(value.literal, tuple):
        release = value.literal
        parts = {
            "release": release,
            "base_version": ".".join(map(str, release)),
            **dict(zip(_NUMBERS, release, strict=False)),
        }
        if attr not in parts:
            raise Stop(node, "unknown", f"{attr!r} of a version: ask for {', '.join(parts)}")
        return _write_answer(parts[attr])
    if not ev.program.kernels:
        return None
    if attr in _COUNTS:
        return _count_processors(ev)
    of = value.name if value.name == _DEVICE else "tensor" if value.kind not in {"static", "object"} else ""
    if attr not in _PARTS.get(of, ()):
        return None
    made = _write_answer(_PARTS[of][attr])
    device = Value("static", name="instance:torch.device", literal="cuda")
    return Expr(made.node, device, answered=True) if attr == "device" else made


@expression(cst.Subscript, only="kernels")
def port_processor_count(ev: Evaluator, node: cst.Subscript) -> Expr | None:
    """Translate `get_device_properties(0)["multiprocessor_count"]`."""
    index = node.slice[0].slice
    part = read_literal(index.value) if isinstance(index, cst.Index) else MISSING
    if part not in _COUNTS or ev.port(node.value).value.name != _DEVICE:
        return None
    return _count_processors(ev)


def _count_processors(ev: Evaluator) -> Expr:
    ev.diagnostics.imports.add("triton")
    return Expr(parse("triton.processor_count()"), Value("static", "int"))


@call_of(*_PARSERS, "torch.__version__.", like=r"(?!\*)(.*[.:])?is_torch_available")
def port_version_parse(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `version.parse("1.13")`, `torch.__version__.split(".")`."""
    if isinstance(node.func, cst.Attribute) and name.startswith("torch.__version__."):
        text = ev.port(node.func.value).node
        return Expr(ev.port_parts(node.with_changes(func=cst.Attribute(text, node.func.attr))), STATIC)
    if name not in _PARSERS:  # a package's own question
        return None if node.args else make_answer(True)
    numbers = _read_numbers(ev.port(node.args[0].value).value.literal) if len(node.args) == 1 else None
    return _write_answer(numbers) if numbers is not None else None


def _read_numbers(version: object) -> tuple[int, ...] | None:
    """Return the three numbers of a version."""
    if isinstance(version, tuple):
        return version
    if not isinstance(version, str) or not re.match(r"\d+(\.\d+)*", version):
        return None
    found = [int(n) for n in re.findall(r"\d+", version.partition("+")[0])]
    return (*found, 0, 0, 0)[:3]


@expression(cst.Comparison, only="versions")
@expression(cst.Comparison, only="kernels")
def port_known_comparison(ev: Evaluator, node: cst.Comparison) -> Expr | None:
    """Translate `torch.cuda.get_device_capability()[0] >= 9`, `parse(torch.__version__) >= parse("1.13")`."""
    target = node.comparisons[0]
    compare = _COMPARED.get(type(target.operator))
    if compare is None or len(node.comparisons) > 1:
        return None
    values = [ev.port(n).value for n in (node.left, target.comparator)]
    known: list[Any] = [v.literal for v in values]
    if MISSING in known or not any(v.name in {_ANSWER, _DEVICE} for v in values):
        return None
    if None not in known and not all(isinstance(k, int) for k in known):
        read = [_read_numbers(k) for k in known]
        known = read if None not in read else known if compare in {operator.eq, operator.ne} else [MISSING]
    return make_answer(compare(*known)) if MISSING not in known else None


@call_of("file:", only="kernels")
def port_own_question(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `supports_tma()` of the file, which has one answer: launchers for several GPUs ask so."""
    routine = ev.program.find_routine(name)
    if node.args or routine is None or routine.owner is not None:
        return None
    ev.called.add(name)
    answer = routine.only_result
    if answer is None or routine.writes or any(isinstance(n, cst.Global) for n in list_nodes(routine.node)):
        return None
    return make_answer(answer)


@expression(cst.BinaryOperation, only="kernels")
def port_alignment(ev: Evaluator, node: cst.BinaryOperation) -> Expr | None:
    """Translate `x.data_ptr() % 16`: launchers ask it of arrays that a kernel may read in large pieces."""
    call = node.left if isinstance(node.operator, cst.Modulo) else None
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute) or ev.find_name(call.func):
        return None
    asked = call.func.attr.value in {"data_ptr", "storage_offset"} and not call.args
    return Expr(parse("0"), Value("static", "int", literal=0)) if asked else None
