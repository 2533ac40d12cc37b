"""The variables with which an evaluation through a routine begins."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.program import GROUP, Program
from fnjax.port.known.facts import TENSOR, UNKNOWN, MemRef, Value, list_memrefs
from fnjax.port.known.state import State
from fnjax.port.source.parameter_inference import describe_parameter, may_be_left_out
from fnjax.port.source.records import Routine


def make_start_state(program: Program, routine: Routine) -> State:
    """Return the variables with which an evaluation through a routine begins."""
    state = routine.closure.copy() if routine.closure else State()
    resolve = program.resolve_name
    params = routine.parameters
    star = routine.node.params.star_arg
    graded, always = (
        program.find_differentiated_inputs(routine),
        program.find_differentiated_inputs(routine, always=True),
    )
    for i, param in enumerate(params):
        name = param.name.value
        if i == 0 and name == "self" and routine.role == "helper" and routine.owner is not None:
            value = Value("object")
        elif i < routine.first:
            value = Value("object", name="ctx" if i == routine.first - 1 and routine.role != "helper" else "cls")
            if value.name == "cls" and routine.owner:
                value = Value("object", name=f"file:{routine.owner.name}")
        elif routine.role in {"backward", "vjp"}:
            value = _describe_gradient(program, routine, i - routine.first)
            if param is star:
                memref = MemRef(frozenset({f"arg:{name}"}), certain=False)
                value = Value("static", element=replace(TENSOR, memref=memref))
        else:
            has_one = i - routine.first in graded and param.default is None
            value = describe_parameter(param, routine.node, program.inference, has_one)
            if param.annotation and resolve(param.annotation.annotation).removeprefix("file:") in program.classes:
                value = Value("object")
            # Call sites are those of this file, and others may follow: they are believed where the function's own use
            # of the parameter shows nothing, or where they pass an array that it uses as a number.
            passed = routine.find_argument(name)
            if passed is not None and (
                value.kind == "unknown"
                or (
                    passed.kind == "static"
                    and (value.kind != "tensor" or passed.name.startswith("instance:") or passed.origin.numpy)
                )
                or (passed.traced and value.kind == "static")  # whatever the function takes it for
            ):
                value = replace(passed, memref=None, number="", like="", mask="")
            elif passed is not None and passed.kind == value.kind:
                value = replace(
                    value,
                    dtype=passed.dtype,
                    rank=passed.rank,
                    element=passed.element or value.element,
                    parts=passed.parts,
                    rows=passed.rows,
                )
            if passed is None or routine.role == "forward":
                has_gradient = i - routine.first in always
                left_out = may_be_left_out(param, routine.node, program.inference, has_gradient)
            else:
                left_out = passed.null.left_out
            value = value.with_null(left_out=left_out)
            if param is star or param is routine.node.params.star_kwarg:
                one = replace(UNKNOWN, memref=MemRef(frozenset({f"arg:{name}"}), certain=False))
                value = Value("static", element=one) if not value.element else value
            if passed is not None and passed.kind == "kernel":
                value = replace(value, kind="kernel")
        if name in program.groups and i >= routine.first and routine.role not in {"backward", "vjp"}:
            value = Value("static", name=GROUP)
        if routine.role == "setup_context" and i >= routine.first:
            value = _describe_setup_parameter(program, routine, i - routine.first)
        if value.kind == "static" and param is not star:
            value = replace(_move_to(value, f"arg:{name}"), like="")
        if value.kind in {"tensor", "unknown"}:
            value = replace(value, memref=MemRef(frozenset({f"arg:{name}"})), like=value.like or f"arg:{name}")
            value = replace(value, rows=value.rows if routine.role == "helper" else 1)
        state.variables[name] = value
    if routine.role == "forward" and not isinstance(star, cst.Param):
        given = [p.name.value for p in params[routine.first :]]
        open_ = [n for n in given if state.variables[n].kind == "unknown"]
        if len(open_) == 1 and not any(state.variables[n].is_tensor for n in given):  # it has a tensor to work on
            state.variables[open_[0]] = replace(state.variables[open_[0]], kind="tensor")
    if routine.owner is not None and routine.role in {"backward", "vjp", "jvp"}:
        facts = program.collect_context_facts(routine.owner)
        held = Counter(s for value in facts.values() for memref in list_memrefs(value) for s in memref.storage)
        shared = frozenset(s for s, times in held.items() if times > 1)
        for key, value in facts.items():
            state.variables[key] = _move_to(value, f"kept:{key}", shared)
    return state


def _describe_gradient(program: Program, routine: Routine, index: int) -> Value:
    """Return the gradient for an output of forward, which has its shape."""
    forward = program.find_method(routine.owner, "forward") if routine.owner else None
    result = forward.result if forward else None
    if result is None:
        return TENSOR
    value = result.parts[index] if result.parts is not None and index < len(result.parts) else result
    if not value.is_tensor:
        return TENSOR
    return Value(
        "tensor",
        "float" if value.dtype == "float" else "unknown",
        value.rank,
        like=f"kept {value.like}" if value.like else "",
        exact=value.exact if not value.exact.startswith("?") else "?",
    )


def _describe_setup_parameter(program: Program, routine: Routine, index: int) -> Value:
    assert routine.owner is not None
    forward = program.find_method(routine.owner, "forward")
    if forward is None:
        return UNKNOWN
    if routine.parameters[routine.first + index].name.value == "keyword_only_inputs":
        known, only = make_start_state(program, forward).variables, forward.node.params.kwonly_params
        return Value("static", entries=tuple((p.name.value, known[p.name.value]) for p in only))
    if index == 0:
        start = make_start_state(program, forward)
        inputs = [start.variables[p.name.value] for p in forward.parameters[forward.first :]]
        return (
            Value("static", parts=tuple(inputs))
            if not isinstance(forward.node.params.star_arg, cst.Param)
            else Value("static", element=UNKNOWN)
        )
    return _move_to(forward.result or UNKNOWN, "output")


def _move_to(value: Value, where: str, shared: frozenset[str] = frozenset()) -> Value:
    """Return a value that another method made, in memory named `where`.

    Args:
        value: what is known of it there.
        where: a name for the memory.
        shared: the storages that several such values may be in, so that their memory is not certain.
    """
    parts = value.parts and tuple(_move_to(p, f"{where}.{i}", shared) for i, p in enumerate(value.parts))
    element = value.element and _move_to(value.element, f"{where}.", shared)
    if element and element.memref:
        element = replace(element, memref=element.memref.doubtful)
    also = value.memref.storage & shared if value.memref else frozenset()
    memref = MemRef(frozenset({where, *also}), certain=not also) if value.kind in {"tensor", "unknown"} else None
    like = f"kept {value.like}" if value.like else where if memref else ""
    exact = f"?{where}" if value.exact.startswith("?") else value.exact
    return replace(value, memref=memref, parts=parts, element=element, number="", mask="", like=like, exact=exact)
