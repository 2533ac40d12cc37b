"""Custom operators that a file defines and registers with torch.library, each as a class of functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import libcst as cst

from fnjax._op.grammar import NAMED, TYPE, split_at_commas
from fnjax.port.analysis.program import BLOCKS, Program
from fnjax.port.source.records import Class
from fnjax.port.torch import MISSING, fill, make_list, read_literal, unparse
from fnjax.port.torch.expressions import read_text
from fnjax.port.tree.located import list_children, list_nodes

# The platforms of torch's that JAX has no word for, or whose kernels do what the body does.
FOREIGN = frozenset(
    {"cuda", "CUDA", "xpu", "XPU", "hip", "HIP", "mps", "MPS", "npu", "hpu", "HPU", "PrivateUse1", "MTIA"}
)
# Functions that register something for an operator, by one name for each.
_SAYING = {
    "custom_op": "custom_op",
    "triton_op": "custom_op",
    "define": "define",
    "impl": "impl",
    "register_kernel": "impl",
    "register_fake": "register_fake",
    "_register_fake": "register_fake",
    "impl_abstract": "register_fake",
    "register_autograd": "register_autograd",
    "register_vmap": "register_vmap",
}


@dataclass(frozen=True)
class Registration:
    """A call that registers something for an operator.

    Attributes:
        qualname: of the operator; `ns::` where the file does not say its name.
        method: `custom_op`, `define`, `impl`, `register_fake` ...
        key: of a body, its dispatch key or platform; empty without one.
        rest: the arguments after the name.
        library: the Library whose method is called, as the file names it; empty without one.
        given: the function of the file that is registered.
        node: the decorator, or the line's expression, that it is.
        top: the statement of the top level that has it.
        decorates: it is a decorator.
        name: the variable of the file that takes what the call returns.
    """

    qualname: str
    method: str
    key: str
    rest: tuple[cst.Arg, ...]
    library: str = ""
    given: cst.FunctionDef | None = None
    node: cst.CSTNode = field(default_factory=cst.Pass)
    top: cst.CSTNode = field(default_factory=cst.Pass)
    decorates: bool = False
    name: str = ""

    @property
    def is_differentiated(self) -> bool:
        """True if it registers a body that PyTorch differentiates, as one without dispatch key by a Library."""
        implicit = self.key.startswith(("CompositeImplicit", "Autograd")) or (not self.key and bool(self.library))
        return self.method == "impl" and implicit

    def make_library(self) -> cst.BaseExpression:
        """Return the Library, or a new one for the operator's namespace."""
        namespace = make_string(self.qualname.partition("::")[0])
        return cst.Name(self.library) if self.library else fill("fnjax.Library(N, 'FRAGMENT')", N=namespace)

    def make_impl(self, function: cst.BaseExpression) -> cst.BaseExpression:
        """Return the registration of a body as a call of a Library's method."""
        own, key = make_string(self.qualname.partition("::")[2]), make_list([make_string(self.key)] if self.key else [])
        return fill("L.impl(N, F, *KEY)", L=self.make_library(), N=own, F=function, KEY=key)


def make_string(text: str) -> cst.SimpleString:
    """Return the literal of a text."""
    return cst.SimpleString(repr(text))


def collect_operators(program: Program) -> None:
    """Enter the operators of a file among its classes, under their qualified names, with the functions of each.

    The body of an operator is its forward, and what is registered as its derivative its backward and setup_context, so
    that what is known of a Function class is known of an operator as well.
    """
    statements = [(top, s) for top in program.source.tree.body for s in _iter_statements(top)]
    places = {s: top for top, s in statements if isinstance(s, cst.FunctionDef)}
    functions = {f.name.value: f for f in places}
    for _, statement in statements:
        for name, call in _iter_assigned_calls(statement):
            if program.resolve_name(call.func) == "torch.library.Library" and call.args:
                program.libraries[name] = _read_text(program, call.args[0].value)
    registrations = []
    for r in (r for top, s in statements for r in _iter_registrations(program, top, s, functions)):
        registrations.append(r)
        if r.method == "custom_op" and r.given is not None:
            program.operators[r.name] = r.qualname  # registrations in later lines may be by that name
            _add_operator(program, r.qualname, r.top, r.given, places[r.given], _collect_mutated(r.node))
    for r in (r for r in registrations if r.method == "define"):
        program.defined.setdefault(r.qualname, []).append(r.top)
        if r.decorates and r.given is not None:
            _define_by_decorator(program, r, places)
    bodies = [r for r in registrations if r.method == "impl"]
    for r in sorted(bodies, key=lambda r: r.key in FOREIGN):  # what can be ported is the body before what cannot
        _give_body(program, r, places)
    for r in (r for r in registrations if r.method not in {"custom_op", "define", "impl"}):
        _register_function(program, r, places)
    for r in registrations:  # a registration for one operator changes nothing for the others
        providers = program.source.providers.get(r.library, [])
        known = r.qualname in program.classes and isinstance(r.top, cst.SimpleStatementLine)
        if known and r.top in providers:
            providers.remove(r.top)


def _iter_statements(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield a statement of the top level, or those in the blocks of an `if`, a `try` and so on."""
    if isinstance(node, BLOCKS):
        for child in node.children:
            yield from _iter_statements(child)
    elif isinstance(node, (cst.SimpleStatementLine, cst.SimpleStatementSuite, cst.FunctionDef)):
        yield node


def _iter_assigned_calls(statement: cst.CSTNode) -> Iterator[tuple[str, cst.Call]]:
    for small in statement.body if isinstance(statement, (cst.SimpleStatementLine, cst.SimpleStatementSuite)) else ():
        if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
            yield "", small.value  # `custom_op("mylib::f", f, mutates_args=())`, which is looked up by name
        if not isinstance(small, cst.Assign) or not isinstance(small.value, cst.Call) or len(small.targets) != 1:
            continue
        if isinstance(small.targets[0].target, cst.Name):
            yield small.targets[0].target.value, small.value


def _read_text(program: Program, node: cst.BaseExpression) -> str:
    """Return the text that an expression evaluates to, without its unknown parts."""

    def value(part: cst.BaseExpression) -> object:
        found = _find_held_value(program, part) if isinstance(part, cst.Name) else MISSING
        return program.evaluate(part).literal if found is MISSING and not isinstance(part, cst.Call) else found

    return read_text(node, value, hole="") or ""


def _find_held_value(program: Program, node: cst.Name) -> object:
    """Return the literal of a variable of the top level at this line: `name = "f"` may come before each operator."""
    here = program.source.locate(node)
    values = [d.value for d in program.source.definitions.get(node.value, ())]
    before = [v for v in values if v is not None and program.source.locate(v) < here]
    return read_literal(before[-1]) if before and None not in values else MISSING


def _iter_registrations(
    program: Program, top: cst.CSTNode, statement: cst.CSTNode, functions: dict[str, cst.FunctionDef]
) -> Iterator[Registration]:
    """Yield what a statement registers: by its decorators, or as a line that calls."""
    if isinstance(statement, cst.FunctionDef):
        for decorator in statement.decorators:
            node = decorator.decorator
            found = read_registration(program, node if isinstance(node, cst.Call) else cst.Call(node))
            if found is not None:
                yield replace(found, given=statement, node=node, top=top, decorates=True, name=statement.name.value)
    for name, call in _iter_assigned_calls(statement):
        curried = isinstance(call.func, cst.Call)  # `torch.library.impl(lib, "f", "CPU")(f)`
        found = read_registration(program, call.func if isinstance(call.func, cst.Call) else call)
        if found is not None and (not name or found.method in {"custom_op", "define"}):
            given = (functions.get(unparse(a.value)) for a in (call.args if curried else found.rest))
            yield replace(found, given=next((f for f in given if f is not None), None), node=call, top=top, name=name)


def read_registration(program: Program, call: cst.Call, name: str = "") -> Registration | None:
    """Return the registration of a call of torch.library's functions, or of a Library's or an operator's methods.

    Args:
        program: the file.
        call: the call.
        name: what is called, where that is known better.
    """
    args, func, library = list(call.args), call.func, ""
    name = name or program.resolve_name(func)
    if name.startswith("torch.library.") and args:
        method = name.removeprefix("torch.library.")
        if unparse(args[0].value) in program.libraries:
            library = unparse(args.pop(0).value)
        qualname = _read_qualified_name(program, args[0].value, library) if args else ""
        rest = args[1:]
    elif isinstance(func, cst.Attribute) and isinstance(func.value, cst.Name):
        owner, method = func.value.value, func.attr.value
        library = owner if owner in program.libraries else ""
        qualname = (
            _read_qualified_name(program, args[0].value, library)
            if library and args
            else program.operators.get(owner, "")
        )
        rest = args[1:] if library else args
    else:
        return None
    if method not in _SAYING or not qualname:
        return None
    rest = [a for a in rest if not (a.keyword and a.keyword.value == "lib")]
    key = _read_dispatch_key(rest)
    method = "register_fake" if key == "Meta" else _SAYING[method]
    return Registration(qualname, method, key if method == "impl" else "", tuple(rest), library)


def _read_qualified_name(program: Program, node: cst.BaseExpression, library: str) -> str:
    """Return the qualified name of an operator, from its text, its schema, or an expression that it is."""
    text = _read_text(program, node).partition("(")[0].strip()
    if library and "::" not in text:
        return f"{program.libraries[library]}::{text}"
    if not text and isinstance(node, (cst.Name, cst.Attribute)):
        parts = program.resolve_name(node).split(".")
        looked_up = "::".join(parts[2:4]) if parts[:2] == ["torch", "ops"] else ""
        return program.operators.get(unparse(node), looked_up)
    return text if "::" in text else ""


def _read_dispatch_key(rest: list[cst.Arg]) -> str:
    for arg in rest:
        found = read_literal(arg.value)
        names = [found] if isinstance(found, str) else found if isinstance(found, (tuple, list)) else []
        keys = [k for k in names if isinstance(k, str)]
        if keys:
            return next((k for k in keys if k not in FOREIGN), keys[0])
    return ""


def _collect_mutated(call: cst.CSTNode) -> set[str]:
    """Return the arguments that an operator mutates, by `mutates_args=` or its schema."""
    found: set[str] = set()
    for node in list_nodes(call):
        if isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "mutates_args":
            names = read_literal(node.value)
            found |= (
                {names} if isinstance(names, str) else set(names) if isinstance(names, (tuple, list, set)) else set()
            )
    return found | {name for name, kind in _iter_schema_parameters(call) if kind["write"]}


def _iter_schema_parameters(node: cst.CSTNode) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield name and type of the parameters of the schemas in a call, as far as their text is known and can be read."""
    text = read_text(node, hole="_") if isinstance(node, cst.BaseExpression) else None
    if text is None or not text.strip("_"):
        for child in reversed(list_children(node)):
            yield from _iter_schema_parameters(child)
        return
    _, opened, rest = text.partition("(")
    for named in filter(None, map(NAMED.match, split_at_commas(rest) if opened else ())):
        kind = TYPE.match(named["type"].strip())
        if kind is not None:
            yield named["name"], kind


def _add_operator(
    program: Program, qualname: str, top: cst.CSTNode, body: cst.FunctionDef, memref: cst.CSTNode, mutated: set[str]
) -> Class:
    made = Class(qualname, body, ("torch.library.custom_op",), {"forward": body}, top, is_function=True)  # type: ignore[arg-type] # a function in place of the class
    made.next_to.append(memref)
    if mutated:
        program.mutating[body] = tuple(p.name.value for p in body.params.params if p.name.value in mutated)
    program.classes[qualname] = program.by_node[body] = made
    program.make_routine(body, body.name.value)
    return made


def _define_by_decorator(program: Program, r: Registration, places: Mapping[cst.FunctionDef, cst.CSTNode]) -> None:
    """`@torch.library.define(lib, "f(Tensor x) -> Tensor")` over the body: two lines after it."""
    assert r.given is not None
    _add_operator(program, r.qualname, r.top, r.given, places[r.given], _collect_mutated(r.node))
    program.defined.pop(r.qualname)
    schema = fill("L.define(S)", L=r.make_library(), S=next(a.value for a in r.node.args[1:]))  # type: ignore[attr-defined] # a call
    program.following[r.given] = [schema, r.make_impl(r.given.name)]
    program.lifted.add(r.node)


def _give_body(program: Program, r: Registration, places: Mapping[cst.FunctionDef, cst.CSTNode]) -> None:
    """Give an operator a body: the first is its forward; what is not defined in the file has none."""
    owner = program.classes.get(r.qualname)
    first = owner is None
    if owner is None:
        known = bool({r.qualname, f"{r.qualname.partition('::')[0]}::"} & program.defined.keys())
        if not known and r.given is None:
            program.lifted.add(r.node)
            program.elsewhere.add(r.qualname)
            return
        mutated = {n for d in program.defined.get(r.qualname, ()) for n in _collect_mutated(d)}
        lists = [n for d in program.defined.get(r.qualname, ()) for n in _list_axes_arguments(d)]
        body = r.given or _make_stand_in(program, r)
        owner = _add_operator(program, r.qualname, r.top, body, places.get(body, r.top), mutated)
        owner.next_to += program.defined.pop(r.qualname, [])
        annotated = {p.name.value for p in body.params.params if p.annotation is not None}
        for name in (n for n in lists if n not in annotated):
            message = f"an empty {name} is all dimensions in PyTorch, none in JAX: say `{name}: list[int]` in the body"
            owner.left_out.append((r.top, message, "note"))
        if not known:
            _report_missing_definition(program, owner, r)
        elif mutated and r.given is None:
            message = (
                f"{r.qualname} mutates {', '.join(sorted(mutated))}: let a function of the file return its new value"
            )
            owner.left_out.append((r.top, message, "error"))
    if not owner.is_defined:
        program.lifted.add(r.node)
        return
    if r.key in FOREIGN and not first:
        message = f"the kernel for {r.key} is dropped: the body of {owner.name} runs there too"
        owner.left_out.append((r.top, message, "note"))
        program.lifted.add(r.node)
        return
    owner.next_to.append(r.top)
    _add_functional_form(program, owner, r)
    if first and r.key in FOREIGN | {"CPU"}:
        program.for_all.add(r.node)
    if r.decorates and r.is_differentiated and r.given is not None:
        program.following.setdefault(r.given, []).append(r.make_impl(r.given.name))
        program.lifted.add(r.node)


def _list_axes_arguments(definition: cst.CSTNode) -> list[str]:
    """Return the arguments of a schema that are lists of dimensions."""
    kinds = ((n, kind) for n, kind in _iter_schema_parameters(definition) if kind["list"])
    return [n for n, kind in kinds if kind["base"] in {"int", "SymInt"} and n.startswith(("dim", "ax"))]


def _make_stand_in(program: Program, r: Registration) -> cst.FunctionDef:
    """Return a function in place of a body that is not one of the file: a lambda, or one of another file."""
    made = cst.FunctionDef(cst.Name(r.qualname.partition("::")[2]), cst.Parameters(), cst.IndentedBlock([]))
    program.source.positions[made] = program.source.locate(r.node)
    program.ported[r.qualname] = made  # type: ignore[assignment] # the line that registers it is
    return made


def _report_missing_definition(program: Program, owner: Class, r: Registration) -> None:
    owner.is_defined = False
    name = unparse(r.given.name) if r.given is not None else "body"
    message = (
        f"the file does not define {r.qualname}, so that what it registers for it is left out: define it by its body, "
        f'fnjax.custom_op("{r.qualname}", {name}, mutates_args=()), or import what defines it, and register again'
    )
    owner.left_out.append((r.top, message, "error"))


def _register_function(program: Program, r: Registration, places: Mapping[cst.FunctionDef, cst.CSTNode]) -> None:
    """Record a registration for an operator other than its first body: a fake, a derivative, a platform's body."""
    owner = program.classes.get(r.qualname)
    if owner is None or not owner.is_defined:
        program.lifted.add(r.node)
        program.elsewhere.add(r.qualname)
        return
    if r.method == "register_fake" and r.given is not None and _makes_symbolic_size(r.given):
        message = (
            f"the shapes that are registered for {owner.name} have sizes that only its values tell, and are dropped"
        )
        owner.left_out.append((r.top, message, "note"))
        program.lifted.add(r.node)
        return
    owner.next_to.append(r.top)
    if r.method == "register_autograd":
        _register_derivative(program, owner, r, places)
        return
    owner.shaped |= r.method == "register_fake"
    if r.method == "register_fake":
        _add_functional_form(program, owner, r)
    elif r.given is not None:
        program.make_routine(r.given, r.given.name.value)


def _makes_symbolic_size(function: cst.FunctionDef) -> bool:
    """Return whether it makes a new symbolic size."""
    calls = (unparse(n.func) for n in list_nodes(function, cst.Call))
    return any(c.rpartition(".")[2] in {"new_dynamic_size", "create_unbacked_symint"} for c in calls)


def _add_functional_form(program: Program, owner: Class, r: Registration) -> None:
    """Add a function that returns what the body does, with the new values of what is mutated."""
    if r.given is None:
        return
    program.make_routine(r.given, r.given.name.value)
    if names := program.mutating.get(owner.methods["forward"]):
        program.mutating[r.given] = names


def _register_derivative(
    program: Program, owner: Class, r: Registration, places: Mapping[cst.FunctionDef, cst.CSTNode]
) -> None:
    functions = {f.name.value: f for f in places}
    plain = [a.value for a in r.rest if a.keyword is None]
    by_name = {a.keyword.value: a.value for a in r.rest if a.keyword is not None}
    backward = by_name.get("backward") or (plain[0] if plain else None)
    for role, value in (("backward", backward), ("setup_context", by_name.get("setup_context"))):
        node = functions.get(unparse(value)) if value is not None else None
        if node is not None:
            owner.methods[role] = node
            owner.next_to.append(places[node])
            program.make_routine(node, f"{owner.name}.{role}", owner)
