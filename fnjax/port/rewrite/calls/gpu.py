"""The GPU that wrappers of Triton kernels ask for.

What: a file with kernels is ported as for one GPU of NVIDIA's, of capability 8.0, which every such wrapper knows; what
is only for other devices falls away. How many processors it has is asked of JAX.
Before: `if x.is_cuda and torch.cuda.get_device_capability()[0] >= 8: return fast(x)`
After: `return fast(x)`
Safety: what runs in JAX does not depend on the answer: kernels are translated, or run as they are on a GPU.
Limits: sizes of memory, and names of devices, are findings.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, make_answer, parse
from fnjax.port.analysis.guards import is_guard_context
from fnjax.port.analysis.program import Program
from fnjax.port.analysis.registry import call_of, expression
from fnjax.port.known.facts import STATIC, Value
from fnjax.port.rewrite.calls.versions import QUESTIONS
from fnjax.port.source.naming import is_provided
from fnjax.port.torch import MISSING, read_literal, unparse
from fnjax.port.tree.located import list_nodes

CAPABILITY = (8, 0)
_ANSWERS: dict[str, object] = {
    "torch.cuda.is_available": True,
    "torch.cuda.is_initialized": True,
    "torch.cuda.is_bf16_supported": True,
    "torch.cuda.get_device_capability": CAPABILITY,
    "torch.cuda.device_count": 1,
    "torch.cuda.current_device": 0,
    "fnjax.triton.runtime.driver.active.get_current_device": 0,
}
_ATTRIBUTES: dict[str, object] = {
    "major": CAPABILITY[0],
    "minor": CAPABILITY[1],
    "warp_size": 32,
    "gcnArchName": "",
    "backend": "cuda",
    "arch": 80,
}
_SETTINGS: dict[str, object] = {
    "torch.version.cuda": "12.8",
    "torch.version.hip": None,
    "torch.version.xpu": None,
    "torch.backends.cuda.matmul.allow_tf32": False,  # as PyTorch has it
}
_OF_TENSORS: dict[str, object] = {"is_cuda": True, "is_cpu": False, "device": "cuda"}
_OTHERS = ("torch.xpu", "torch.npu", "torch.mps", "torch.mlu", "torch.musa", "torch.hpu", "torch.mtia", "torch.maia")
_PROPERTIES = frozenset(
    {
        "torch.cuda.get_device_properties",
        "fnjax.triton.runtime.driver.active.utils.get_device_properties",
        "fnjax.triton.runtime.driver.active.get_current_target",
        "fnjax.triton.runtime.driver.active.get_device_properties",
    }
)
_COUNTS = frozenset({"multi_processor_count", "multiprocessor_count", "num_sms"})


def answer_question(ev: Evaluator, node: cst.BaseExpression) -> object:
    """Return what the port's GPU answers to a question, or MISSING."""
    if not ev.program.kernels:
        return MISSING
    if isinstance(node, cst.Call):
        name = ev.find_name(node.func)
        if name.startswith(_OTHERS) and name.endswith(".is_available"):
            return False
        if name == "builtins.hasattr" and len(node.args) == 2 and ev.find_name(node.args[0].value) == "torch":
            part = read_literal(node.args[1].value)
            return False if f"torch.{part}" in _OTHERS else True if part in {"cuda", "_C"} else MISSING
        if name == "builtins.hasattr" and unparse(node) == 'hasattr(torch._C, "_functorch")':
            return True
        if name == "builtins.hasattr" and len(node.args) == 2 and ev.find_name(node.args[0].value) == "fnjax.triton":
            return is_provided(f"fnjax.triton.{read_literal(node.args[1].value)}")
        if name == "builtins.getattr" and len(node.args) == 3 and ev.find_name(node.args[0].value) == "torch.version":
            return _SETTINGS.get(f"torch.version.{read_literal(node.args[1].value)}", MISSING)
        return _ANSWERS.get(name, MISSING)
    if isinstance(node, cst.Attribute) and (name := ev.find_name(node)) in _SETTINGS:
        return _SETTINGS[name]
    if isinstance(node, cst.Attribute) and node.attr.value in _ATTRIBUTES and is_device_properties(ev, node.value):
        return _ATTRIBUTES[node.attr.value]
    return MISSING


def is_device_properties(ev: Evaluator, node: cst.BaseExpression) -> bool:
    """Return whether an expression is what a device says of itself."""
    if isinstance(node, cst.Call):
        return ev.find_name(node.func) in _PROPERTIES
    given = ev.routine.given.get(unparse(node), []) if isinstance(node, cst.Name) else []
    return len(given) == 1 and isinstance(given[0], cst.Call) and ev.find_name(given[0].func) in _PROPERTIES


_COMPARED: dict[type[cst.CSTNode], Callable[[Any, Any], bool]] = {
    **QUESTIONS,  # type: ignore[dict-item] # of numbers and strings here
    cst.Is: operator.is_,
    cst.IsNot: operator.is_not,
}


@expression(cst.Comparison, only="kernels")
def port_device_comparison(ev: Evaluator, node: cst.Comparison) -> Expr | None:
    """Translate `torch.cuda.get_device_capability()[0] >= 9`."""
    target = node.comparisons[0]
    compare, wanted = _COMPARED.get(type(target.operator)), read_literal(target.comparator)
    if compare is None or wanted is MISSING or len(node.comparisons) > 1:
        return None
    if wanted is None and isinstance(node.left, cst.Call) and ev.find_name(node.left.func) in _PROPERTIES:
        return make_answer(compare(CAPABILITY, None))
    found = _answer_part(ev, node.left)
    if found is MISSING or (type(found) is not type(wanted) and None not in (found, wanted)):
        return None
    return make_answer(compare(found, wanted))


def _answer_part(ev: Evaluator, node: cst.BaseExpression) -> object:
    """Return what the port's GPU answers, or one of the numbers of that."""
    if not isinstance(node, cst.Subscript):
        return answer_question(ev, node)
    whole = answer_question(ev, node.value)
    index = node.slice[0].slice if len(node.slice) == 1 else None
    memref = read_literal(index.value) if isinstance(index, cst.Index) else MISSING
    return whole[memref] if isinstance(whole, tuple) and memref in (0, 1) else MISSING


@call_of("file:", only="kernels")
def port_own_device_question(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """`supports_tma()` of the file, which asks the GPU and has one answer: launchers for several GPUs have them."""
    routine = ev.program.find_routine(name)
    if routine is None or routine.owner is not None or not _asks_for_device(ev, routine.node):
        return None
    ev.called.add(name)
    answer = routine.answer
    if answer is None or routine.writes or any(isinstance(n, cst.Global) for n in list_nodes(routine.node)):
        return None
    return make_answer(answer)


def _asks_for_device(ev: Evaluator, function: cst.FunctionDef) -> bool:
    """Return whether a function of the file asks for a device, itself or through another function of the file."""
    known = ev.program.asking
    if function not in known:
        known[function] = False  # where it calls itself
        names = {unparse(n.func): n.func for n in list_nodes(function.body) if isinstance(n, cst.Call)}
        known[function] = "torch.version" in unparse(function) or any(_is_of_device(ev, n) for n in names.values())
    return known[function]


def _is_of_device(ev: Evaluator, function: cst.BaseExpression) -> bool:
    name = ev.program.resolve_name(function)
    if name.startswith("file:"):
        inner = ev.program.find_routine(name)
        return inner is not None and _asks_for_device(ev, inner.node)
    return name in _ANSWERS or name in _PROPERTIES or (name.startswith(_OTHERS) and name.endswith(".is_available"))


@call_of(*_ANSWERS, *(f"{o}.is_available" for o in _OTHERS), "builtins.hasattr", "builtins.getattr", only="kernels")
@expression(cst.Attribute, only="kernels")
def port_device_question(ev: Evaluator, node: cst.BaseExpression, name: str = "") -> Expr | None:
    """Translate `torch.cuda.get_device_capability()`, `properties.major`."""
    answer = answer_question(ev, node)
    if answer is MISSING:
        return None
    return Expr(parse(repr(answer)), _make_answer_value(answer), answered=True)


def _make_answer_value(answer: object) -> Value:
    if isinstance(answer, tuple):
        return Value("static", "int", literal=answer, parts=tuple(_make_answer_value(a) for a in answer))
    return Value("static", {bool: "bool", int: "int"}.get(type(answer), "unknown"), literal=answer)


@expression(cst.Attribute, only="kernels")
def port_tensor_device(ev: Evaluator, node: cst.Attribute) -> Expr | None:
    """Translate `x.is_cuda`, `x.device`."""
    if node.attr.value not in _OF_TENSORS or ev.find_name(node):
        return None
    if ev.find_name(node.value).startswith(("file:", "function:")):
        return None
    value = ev.port(node.value).value
    if value.kind in {"static", "object"}:
        return None
    answer = _OF_TENSORS[node.attr.value]
    known = _make_answer_value(answer)
    if answer == "cuda":
        known = Value("static", name="instance:torch.device", literal=answer)
    return Expr(parse(repr(answer).replace("'", '"')), known, answered=True)


@call_of("*.get_device", only="kernels")
def port_device_number(ev: Evaluator, node: cst.Call, name: str) -> Expr:
    """`x.get_device()`, as launchers of Triton kernels choose the device: `with torch.cuda.device(x.get_device())`."""
    return Expr(parse("0"), Value("static", "int", literal=0))


@expression(cst.Attribute, cst.Subscript, only="kernels")
def port_processor_count(ev: Evaluator, node: cst.BaseExpression) -> Expr | None:
    """Translate `torch.cuda.get_device_properties(x.device).multi_processor_count`."""
    if isinstance(node, cst.Attribute):
        part: object = node.attr.value if node.attr.value == "multi_processor_count" else ""
    else:
        index = node.slice[0].slice if isinstance(node, cst.Subscript) and len(node.slice) == 1 else None
        part = read_literal(index.value) if isinstance(index, cst.Index) else ""
    if part not in _COUNTS or not isinstance(node, (cst.Attribute, cst.Subscript)):
        return None
    if isinstance(node, cst.Subscript) and not is_device_properties(ev, node.value):
        return None
    ev.diagnostics.imports.add("triton")
    return Expr(parse("triton.processor_count()"), Value("static", "int"))


@call_of(*_PROPERTIES, only="kernels")
def port_device_properties(ev: Evaluator, node: cst.Call, name: str) -> Expr:
    """`props = torch.cuda.get_device_properties(0)`: persistent Triton kernels ask it how many processors there are."""
    return Expr(parse("None"), STATIC)


def only_holds_device(program: Program, name: str) -> bool:
    """Return whether `with` of this holds a device only."""
    return name.startswith("file:") and is_guard_context(program, name.removeprefix("file:"))


@expression(cst.BinaryOperation, only="kernels")
def port_alignment(ev: Evaluator, node: cst.BinaryOperation) -> Expr | None:
    """Translate `x.data_ptr() % 16`: arrays lie where a kernel may read them in large pieces."""
    call = node.left if isinstance(node.operator, cst.Modulo) else None
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return None
    asked = call.func.attr.value in {"data_ptr", "storage_offset"} and not call.args and not ev.find_name(call.func)
    return Expr(parse("0"), Value("static", "int", literal=0)) if asked else None
