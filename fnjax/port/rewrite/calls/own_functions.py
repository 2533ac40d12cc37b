"""Calls of the functions and classes of the file.

What: the file's own functions are ported along; Function.apply stays. One that writes to an argument returns it.
Before: `bump(y)` of `def bump(t): t.add_(1)`
After: `y = bump(y)` of `def bump(t): ...; return t`
Safety: what the file's functions return and which arguments they write to is worked out from their bodies.
Limits: a function that writes to an argument and returns something else is a finding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop, find_names, make_assignment
from fnjax.port.analysis.expr import EQUAL
from fnjax.port.analysis.program import Class, Routine
from fnjax.port.analysis.registry import call_of
from fnjax.port.known.facts import HOLE, TENSOR, UNKNOWN, MemRef, Step, Value, join_values, list_memrefs
from fnjax.port.rewrite.calls.python_calls import list_values
from fnjax.port.rewrite.calls.pytorch_calls import port_pytorch_call
from fnjax.port.rewrite.calls.randomness import make_key
from fnjax.port.rewrite.memory.sharing import find_holders, list_containers, list_seeing
from fnjax.port.rewrite.memory.writing import note_write, write_memory
from fnjax.port.rewrite.values.binding import find_held_memref
from fnjax.port.source.naming import PUTTING, list_changed_names
from fnjax.port.torch import MISSING, read_literal, unparse
from fnjax.port.tree.located import list_nodes


@call_of("file:", "function:", "*.apply")
def port_own_call(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate a call of a function or class of the file, of Function.apply among them."""
    cls = _find_function_class(ev, node.func.value) if isinstance(node.func, cst.Attribute) else None
    if name.startswith("function:") or (name == "*.apply" and cls):
        return _port_apply(ev, node, cls or _find_class_of_alias(ev, node.func))
    if not name.startswith("file:"):
        return None
    routine = ev.program.find_routine(name)
    if (own := name.removeprefix("file:")) in ev.program.as_pytorch:
        if (kept := port_pytorch_call(ev, node)) is not None:
            return kept
        raise Stop(node, "unknown", f"{own} stays PyTorch, and cannot be called so here")
    list_values(ev, node)
    made = ev.port_parts(node).with_changes(func=node.func)
    ev.called.add(name)
    if routine is not None:
        return call_routine(ev, node, made, routine)
    if name.removeprefix("file:") not in ev.program.classes:
        return Expr(made, UNKNOWN)
    return Expr(made, Value("object", element=find_held_memref(ev, [a.value for a in node.args])))


def _find_function_class(ev: Evaluator, node: cst.BaseExpression) -> Class | None:
    """Return the Function class that an expression is, or makes: `Cube`, `Cube()`."""
    made = node.func if isinstance(node, cst.Call) and not node.args else node
    cls = ev.program.classes.get(ev.find_name(made).removeprefix("file:"))
    return cls if cls is not None and cls.is_function else None


def _find_class_of_alias(ev: Evaluator, node: cst.BaseExpression) -> Class | None:
    """Return the class that a name for `Cube.apply` runs."""
    name = node.value if isinstance(node, cst.Name) else ""
    local, found = ev.routine.given.get(name, []), ev.program.source.find_definition(name)
    value = local[0] if len(local) == 1 else found.value if found is not None else None
    return _find_function_class(ev, value.value) if isinstance(value, cst.Attribute) else None


def _port_apply(ev: Evaluator, node: cst.Call, cls: Class | None) -> Expr:
    """Translate a call of Function.apply: each result has memory of its own."""
    list_values(ev, node)
    made = ev.port_parts(node).with_changes(func=node.func)
    forward = ev.program.find_method(cls, "forward") if cls else None
    if forward is not None:
        _report_written_inputs(ev, node, forward)
        if ev.program.draws_random_numbers(forward):
            made = _pass_key(ev, node, made)
    if cls and isinstance(node.func, cst.Attribute):
        ev.called.add(f"file:{cls.name}")
    result = forward.result if forward and forward.result else TENSOR
    return Expr(made, _map_memory(ev, node, result, lambda _, part: ev.make_memref(node, part)))


def _map_memory(
    ev: Evaluator, node: cst.Call, value: Value, place: Callable[[MemRef, str], MemRef], part: str = ""
) -> Value:
    """Return a function's result with the memory in which the caller sees it and its parts."""
    parts = None
    if value.parts is not None:
        parts = tuple(_map_memory(ev, node, p, place, f"{part} {i}") for i, p in enumerate(value.parts))
    element = value.element and _map_memory(ev, node, value.element, place, f"{part}.")
    memref = value.memref and place(value.memref, part)
    like = ev.mark_shape(node, part) if value.is_tensor else ""
    return replace(value, memref=memref, parts=parts, element=element, number="", like=like, mask="")


def call_routine(ev: Evaluator, node: cst.Call, made: cst.Call, routine: Routine) -> Expr:
    """Translate a call of a function of the file: its result, and its writes to arguments."""
    taken = _note_arguments(ev, node, routine)
    ev.program.evaluate_first(routine.node)
    _note_filled(ev, node, routine, taken)
    if routine.draws:
        made = _pass_key(ev, node, made)
    return _port_result(ev, node, made, routine, routine.result or UNKNOWN, taken)


def _note_filled(ev: Evaluator, node: cst.Call, routine: Routine, taken: dict[str, cst.Arg]) -> None:
    """Note what a function puts into ctx, or into a list or dictionary that it is given or finds around it."""
    if routine.closure is not None:
        note_filled_around(ev, routine, list_values(ev, node))
    held = find_held_memref(ev, [a.value for a in node.args])
    for name, arg in taken.items() if held else ():
        value, key = ev.port(arg.value).value, ev.name_variable(arg.value)
        if value.name == "ctx" and _fills_parameter(routine, name):
            ev.state.variables[f"ctx.{routine.name}()"] = Value("static", element=held)
        elif key and value.kind == "static" and value.memref is None and _fills_parameter(routine, name):
            element = held if value.element is None else join_values(value.element, held)  # type: ignore[arg-type] # above
            ev.state.variables[key] = replace(value, parts=None, entries=(), element=element)


def note_filled_around(ev: Evaluator, routine: Routine, given: list[Value]) -> None:
    """Note that a function may put what it reads, or is given, into lists and dictionaries of the one around it."""
    variables = ev.state.variables
    read = [variables[n] for n in sorted(find_names(routine.node.body)) if n in variables]
    memrefs = [m for v in (*read, *given) for m in list_memrefs(v)]
    held = replace(UNKNOWN, memref=MemRef.join_all(*memrefs) if memrefs else None)
    for name in list_changed_names(routine.node, variables):
        if name in variables and variables[name].kind == "static":
            variables[name] = replace(variables[name], parts=None, entries=(), literal=MISSING, element=held)


def _fills_parameter(routine: Routine, name: str) -> bool:
    """Return whether a function puts something into this parameter."""
    for n in list_nodes(routine.node):
        of = n.func if isinstance(n, cst.Call) else None
        of = n.target if isinstance(n, (cst.AssignTarget, cst.AugAssign)) else of
        if not isinstance(of, (cst.Attribute, cst.Subscript)) or unparse(of.value) != name:
            continue
        if not isinstance(n, cst.Call) or (
            isinstance(of, cst.Attribute) and of.attr.value in PUTTING | {"save_for_backward"}
        ):
            return True
    return False


@call_of("*.")
def port_derived_method(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `cls.project(x)`, where derived classes alone say what that is."""
    routines = ev.program.find_methods_below(ev.find_name(node.func.value), name[2:])  # type: ignore[attr-defined] # a method
    if not routines or any(r.writes or r.draws for r in routines):
        return None
    list_values(ev, node)
    made = ev.port_parts(node).with_changes(func=node.func)
    values = [_relocate(ev, node, r.result or UNKNOWN, _note_arguments(ev, node, r)) for r in routines]
    return Expr(made, reduce(join_values, values))


def _note_arguments(ev: Evaluator, node: cst.Call, routine: Routine) -> dict[str, cst.Arg]:
    """Return the arguments of a call by parameter, and add what is known of them to the function's entry state."""
    params = routine.parameters
    bound_first = routine.owner is not None and "classmethod" in [unparse(d.decorator) for d in routine.node.decorators]
    params = params[1:] if bound_first else params
    taken: dict[str, cst.Arg] = {}
    star = routine.node.params.star_arg
    known = True
    for i, arg in enumerate(node.args):
        known = known and not arg.star and i < len(params) and params[i] is not star
        if arg.keyword:
            taken[arg.keyword.value] = arg
        elif known:
            taken[params[i].name.value] = arg
    for key, arg in taken.items():
        value = ev.port(arg.value).value
        fact = replace(
            value, memref=None, number="", like="", mask="", literal=MISSING if value.literal is not None else None
        )
        if fact.name.startswith("torch."):  # other calls, or the default, may pass another function
            fact = replace(fact, name="")
        routine.add_argument(ev.program.top_item, key, fact)
    for p in params:  # what a call leaves out may be a row of functions
        if isinstance(p.default, (cst.Tuple, cst.List)) and p.name.value not in taken and known:
            routine.add_argument(ev.program.top_item, p.name.value, ev.program.evaluate(p.default))
    routine.add_call(ev.derived)
    return taken


def _pass_key(ev: Evaluator, node: cst.Call, made: cst.Call) -> cst.Call:
    """Return a call with a key, for a function that draws random numbers."""
    ev.diagnostics.imports.add("jax")
    key = cst.Arg(make_key(ev, node), keyword=cst.Name(ev.program.key_name), equal=EQUAL)
    return made.with_changes(args=[*(a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in made.args), key])


def _port_result(
    ev: Evaluator, node: cst.Call, made: cst.Call, routine: Routine, result: Value, taken: dict[str, cst.Arg]
) -> Expr:
    """Return the value of a call of the file's function; what it writes to its arguments, and which it returns."""
    writes = {name for name in routine.writes if routine.gives or not _is_switched_off(ev, routine, name, taken)}
    value = _relocate(ev, node, result, taken)
    owner = ev.port(taken[routine.views].value).value.memref if routine.views in taken and not writes else None
    if owner is not None:
        hole = [
            a.with_changes(value=cst.Name(HOLE)) if a is taken[routine.views] else b
            for a, b in zip(node.args, made.args, strict=True)
        ]
        step = Step.make_step(
            made.with_changes(args=hole), ev.list_reads(node) - ev.list_reads(taken[routine.views].value)
        )
        value = replace(value, memref=replace(owner, steps=(*owner.steps, step)))
    if writes - taken.keys() and any(a.star for a in node.args):
        message = f"{routine.name} writes to an argument that * or ** may give it; call it with the arguments by name"
        raise Stop(node, "alias", message)
    # All that it writes to comes back, or nothing: variables that miss one of the arrays would keep the old entries.
    gives = [n for n in routine.gives if n in taken]
    if gives and set(gives) == set(writes) & set(taken):
        return give_back(ev, node, made, routine.gives, taken, value if routine.hands else None)
    star = routine.node.params.star_arg
    if isinstance(star, cst.Param) and star.name.value in writes:
        others = [p for a in node.args if a not in taken.values() for p in list_memrefs(ev.port(a.value).value)]
        if any(ev.is_live(n, node) for p in others for n in find_holders(ev, p)):
            message = f"{routine.name} writes to what *{star.name.value} is given: let it return the new arrays"
            raise Stop(node, "alias", message)
    for name in sorted(writes & taken.keys()):
        expr, seen = ev.port(taken[name].value), _list_seen(ev, taken[name])
        if not seen:
            continue
        memref = expr.value.memref or MemRef.join_all(*seen)
        _report_given_twice(ev, node, routine, name, memref, taken)
        own = result.memref is not None and result.memref.storage == {f"arg:{name}"} and not result.memref.steps
        if own and expr.value.memref is not None:
            return write_memory(ev, node, expr, made, replace(expr.value, number=""))
        if list_seeing(ev, node, memref) or list_containers(ev, node, memref):
            routine.hands = routine.hands or routine.gives_value  # the next iteration
            message = f"{unparse(node.func)} writes to its argument {name!r} without returning it"
            raise Stop(node, "alias", f"{message}; let it return the new array")
        note_write(ev, memref)
    return Expr(made, value)


def _report_given_twice(
    ev: Evaluator, node: cst.Call, routine: Routine, name: str, memref: MemRef, taken: dict[str, cst.Arg]
) -> None:
    """Report a call whose function writes to an argument that shares memory with another one."""
    for other, arg in taken.items():
        value = ev.port(arg.value).value
        if other != name and any(
            p.storage & memref.storage and not p.is_disjoint_from(memref) for p in list_memrefs(value)
        ):
            message = f"{routine.name} writes to {name!r}, and {other!r} may lie in the same memory: write it out here"
            raise Stop(node, "alias", message)


def _is_switched_off(ev: Evaluator, routine: Routine, name: str, taken: dict[str, cst.Arg]) -> bool:
    """Return whether a call says `inplace=False`, or leaves it so, where `if inplace:` is around the writes."""
    flag = next((p for p in routine.parameters if p.name.value == routine.flags.get(name)), None)
    if flag is None:
        return False
    if flag.name.value in taken:
        return ev.port(taken[flag.name.value].value).value.literal is False
    return flag.default is not None and read_literal(flag.default) is False


def give_back(
    ev: Evaluator,
    node: cst.Call,
    made: cst.Call,
    gives: tuple[str, ...],
    taken: dict[str, cst.Arg],
    own: Value | None = None,
) -> Expr:
    """Return the call of a function that returns what it wrote to: the caller's variables take it.

    With `own` the function returns that first, and that is the value of the call.
    """
    new: dict[str, cst.BaseExpression] = {gives[0]: made}
    unread = isinstance(ev.current, cst.SimpleStatementLine) and any(
        isinstance(s, cst.Expr) and s.value is node for s in ev.current.body
    )
    named = own is not None and not unread
    found = cst.Name(ev.make_unused_name("found") if named else "_")
    if len(gives) > 1 or own is not None:
        new = {n: cst.Name(f"new_{n}" if n in taken else "_") for n in gives}
        ev.before.append(
            make_assignment(", ".join(unparse(n) for n in (*([found] if own else []), *new.values())), made)
        )
    for name in gives:
        if name in taken:
            expr = ev.port(taken[name].value)
            last = write_memory(ev, node, expr, new[name], replace(expr.value, number=""))
    if own is not None and not unread:
        return Expr(found, own)
    return Expr(last.node, Value("static", literal=None, memref=last.value.memref))


def _relocate(ev: Evaluator, node: cst.Call, value: Value, taken: dict[str, cst.Arg]) -> Value:
    """Return a function's result with its memory as the caller sees it: that of arguments, or taken in the call."""

    def place(memref: MemRef, _: str) -> MemRef:
        given = {s.removeprefix("arg:").split(".")[0] for s in memref.storage if s.startswith("arg:")}
        known = [m for s in sorted(given & taken.keys()) for m in _list_seen(ev, taken[s])]
        if not given <= taken.keys():
            known += [m for a in node.args if a.star or a not in taken.values() for m in _list_seen(ev, a)]
        known += [replace(memref, storage=frozenset({s[6:]})) for s in sorted(memref.storage) if s.startswith("outer ")]
        if len(known) == 1 and len(memref.storage) == 1 and memref.certain and not memref.steps:
            return known[0]
        if known:
            return MemRef.join_all(*known)
        # Parts that share memory in the function share it here.
        here = next(iter(ev.make_memref(node, " ").storage))
        again = {s for s in memref.storage if here in s}  # of a function that calls itself: one name for all depths
        storage = frozenset(s if s in again else here + s for s in sorted(memref.storage))
        steps = memref.steps if not any(s.reads for s in memref.steps) else ()
        return MemRef(storage, steps, memref.certain and steps == memref.steps and not again)

    return _map_memory(ev, node, value, place)


def _list_seen(ev: Evaluator, arg: cst.Arg) -> list[MemRef]:
    """Return the memory of an argument, or of what it holds."""
    value = ev.port(arg.value).value
    return [value.memref] if value.memref else list_memrefs(value)


def _report_written_inputs(ev: Evaluator, node: cst.Call, forward: Routine) -> None:
    """Report reads of an input after a Function writes to it: here its result has the new elements."""
    for parameter, arg in zip(forward.parameters[forward.first :], node.args, strict=False):
        memref = ev.port(arg.value).value.memref if parameter.name.value in forward.writes else None
        if memref is None:
            continue
        if read := list_seeing(ev, node, memref):
            message = (
                f"{unparse(node.func)} writes to {unparse(arg.value)!r}: read what it returns instead of {read[0]!r}"
            )
            raise Stop(node, "alias", message)
