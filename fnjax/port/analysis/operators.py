"""Custom operators of a file: what torch.library defines and registers there, each as a class of functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

import libcst as cst

from fnjax.port.analysis.program import Program
from fnjax.port.source.records import Class, Routine
from fnjax.port.torch import MISSING, code, literal
from fnjax.port.tree.located import nodes

# The platforms of torch's that JAX has no word for, or whose kernels do what the body does.
FOREIGN = frozenset(
    {"cuda", "CUDA", "xpu", "XPU", "hip", "HIP", "mps", "MPS", "npu", "hpu", "HPU", "PrivateUse1", "MTIA"}
)
DEFINING = frozenset({"torch.library.custom_op", "torch.library.triton_op"})


def collect(program: Program) -> None:
    """Enter the operators of a file among its classes, under their qualified names, with the functions of each.

    The body of an operator is its forward, and what is registered as its derivative its backward and setup_context, so
    that what is known of a Function class is known of an operator as well.
    """
    known: dict[str, Class] = {}  # by the names of the file
    libraries = program.libraries
    functions = {s.name.value: s for s in program.source.tree.body if isinstance(s, cst.FunctionDef)}
    for statement in program.source.tree.body:
        for name, call in _assigned(statement):
            if program.resolve(call.func) == "torch.library.Library" and call.args:
                libraries[name] = str(_word(program, call.args[0].value))
        for name, call, body in _definitions(program, statement, functions):
            qualname = _word(program, call.args[0].value) if call.args else None
            if isinstance(qualname, str) and body is not None:
                known[name] = _enter(program, qualname, statement, body, _mutated(call))
        for call, function in _calls(statement):
            found = _owner(program, call, known, libraries)
            if found is not None:
                _register(program, found[0], found[1], statement, call, function, functions)


def _lines(statement: cst.CSTNode) -> Iterator[cst.BaseSmallStatement]:
    """The lines of a statement of the top level, those in the blocks of an `if` or a `try` among them."""
    if isinstance(statement, cst.SimpleStatementLine):
        yield from statement.body
    elif not isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        for block in (n for n in nodes(statement) if isinstance(n, cst.IndentedBlock)):
            for inner in block.body:
                yield from inner.body if isinstance(inner, cst.SimpleStatementLine) else ()


def _assigned(statement: cst.CSTNode) -> Iterator[tuple[str, cst.Call]]:
    for small in _lines(statement):
        if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
            yield "", small.value  # `custom_op("mylib::f", f, mutates_args=())`, which is looked up by name
        if not isinstance(small, cst.Assign) or not isinstance(small.value, cst.Call) or len(small.targets) != 1:
            continue
        if isinstance(small.targets[0].target, cst.Name):
            yield small.targets[0].target.value, small.value


def _definitions(
    program: Program, statement: cst.CSTNode, functions: dict[str, cst.FunctionDef]
) -> Iterator[tuple[str, cst.Call, cst.FunctionDef | None]]:
    """What a statement makes an operator: the name of the file, the call of custom_op, the body."""
    if isinstance(statement, cst.FunctionDef):
        for decorator in statement.decorators:
            node = decorator.decorator
            if isinstance(node, cst.Call) and program.resolve(node.func) in DEFINING:
                yield statement.name.value, node, statement
    for name, call in _assigned(statement):
        if program.resolve(call.func) in DEFINING:
            yield name, call, functions.get(code(call.args[1].value)) if len(call.args) > 1 else None
        elif isinstance(call.func, cst.Call) and program.resolve(call.func.func) in DEFINING and call.args:
            yield name, call.func, functions.get(code(call.args[0].value))


def _calls(statement: cst.CSTNode) -> Iterator[tuple[cst.Call, cst.FunctionDef | None]]:
    """What registers something: a decorator with its function, or a line that calls."""
    if isinstance(statement, cst.FunctionDef):
        for decorator in statement.decorators:
            node = decorator.decorator
            yield node if isinstance(node, cst.Call) else cst.Call(node), statement
    for small in _lines(statement):
        if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
            yield small.value, None


def _owner(
    program: Program, call: cst.Call, known: dict[str, Class], libraries: dict[str, str]
) -> tuple[Class | str, str] | None:
    """The operator that a call is about (its qualified name, where the file does not define it), and what it does."""
    name = program.resolve(call.func)
    if name.startswith("torch.library.") and call.args:
        qualname = named_operator(program, call.args)
        return (program.classes.get(qualname) or qualname, name.rpartition(".")[2]) if qualname else None
    if isinstance(call.func, cst.Attribute) and isinstance(call.func.value, cst.Name):
        owner, method = call.func.value.value, call.func.attr.value
        if owner in known:
            return known[owner], method
        first_literal = _word(program, call.args[0].value) if call.args else None
        if owner in libraries and isinstance(first_literal, str):
            qualname = f"{libraries[owner]}::{first_literal.partition('(')[0]}"
            return program.classes.get(qualname) or qualname, method
    return None


def _mutated(call: cst.Call) -> set[str]:
    """The arguments that an operator mutates, as custom_op is told."""
    given = next((a.value for a in call.args if a.keyword and a.keyword.value == "mutates_args"), None)
    try:
        found = ast.literal_eval(code(given)) if given is not None else ()
    except (ValueError, SyntaxError):
        found = ()
    return {found} if isinstance(found, str) else set(found)


def _enter(program: Program, qualname: str, statement: cst.CSTNode, body: cst.FunctionDef, mutated: set[str]) -> Class:
    made = Class(qualname, body, ("torch.library.custom_op",), {"forward": body}, statement, is_function=True)  # type: ignore[arg-type] # a function stands in for the class
    made.beside.append(body)
    if mutated:
        program.mutating[body] = tuple(p.name.value for p in body.params.params if p.name.value in mutated)
    program.classes[qualname] = program.by_node[body] = made
    program.routines[body] = Routine(body, body.name.value, "helper")
    return made


def _register(
    program: Program,
    owner: Class | str,
    method: str,
    statement: cst.CSTNode,
    call: cst.Call,
    function: cst.FunctionDef | None,
    functions: dict[str, cst.FunctionDef],
) -> None:
    keys: list[Any] = [literal(a.value) for a in call.args]
    if isinstance(owner, str):  # the first body of what was defined by its schema alone, or that schema
        if method not in {"impl", "register_kernel", "define"}:
            return
        body = function or next((f for a in call.args if (f := functions.get(code(a.value)))), None)
        if method == "define" or body is None:
            program.defined.setdefault(owner, []).append(statement)
            return
        schemas = (k for d in program.defined.get(owner, ()) for k in _texts(d))
        mutated = {name for text in schemas for name in re.findall(r"!\)\S*\s+(\w+)", text)}
        owner = _enter(program, owner, statement, body, mutated)
        owner.beside += program.defined.pop(owner.name, [])
    foreign = next((k for k in keys if k in FOREIGN), None)
    if method in {"impl", "register_kernel"} and foreign and owner.methods["forward"] is not function:
        message = f"the kernel for {foreign} is dropped: the body of {owner.name} runs there too"
        owner.left_out.append((statement, message))
        return
    owner.beside.append(statement)
    owner.shaped |= method in {"register_fake", "impl_abstract"}
    if method == "register_autograd":
        _register_derivative(program, owner, call, functions)
    elif function is not None:
        program.routines.setdefault(function, Routine(function, function.name.value, "helper"))
        names = program.mutating.get(owner.methods["forward"])
        if names and method in {"register_fake", "impl_abstract", "register_kernel", "impl"}:
            program.mutating[function] = names
        differentiated = next((k for k in keys if str(k).startswith(("CompositeImplicit", "Autograd"))), None)
        if differentiated is not None:
            namespace, _, own = owner.name.partition("::")
            text = f"fnjax.Library({namespace!r}, 'FRAGMENT').impl({own!r}, {function.name.value}, {differentiated!r})"
            program.following[function] = text


def _texts(statement: cst.CSTNode) -> list[str]:
    return [str(literal(n)) for n in nodes(statement) if isinstance(n, (cst.SimpleString, cst.ConcatenatedString))]


def _register_derivative(program: Program, owner: Class, call: cst.Call, functions: dict[str, cst.FunctionDef]) -> None:
    plain = [a.value for a in call.args if a.keyword is None]
    by_name = {a.keyword.value: a.value for a in call.args if a.keyword is not None}
    backward = by_name.get("backward") or (plain[-1] if plain else None)
    for role, value in (("backward", backward), ("setup_context", by_name.get("setup_context"))):
        node = functions.get(code(value)) if value is not None else None
        if node is not None:
            owner.methods[role] = node
            owner.beside.append(node)
            program.routines[node] = Routine(node, f"{owner.name}.{role}", role, owner)


def named_operator(program: Program, args: Sequence[cst.Arg]) -> str:
    """The qualified name of the operator that the first arguments of a function of torch.library's name, or none."""
    first = args[0].value if args else cst.Name("None")
    qualname: Any = literal(first) if code(first) in program.libraries else _word(program, first)
    if code(first) in program.libraries and len(args) > 1:
        qualname = f"{program.libraries[code(first)]}::{_word(program, args[1].value)}"
    return qualname.partition("(")[0] if isinstance(qualname, str) and "::" in qualname else ""


def _word(program: Program, node: cst.BaseExpression) -> object:
    """The string that an expression surely is: a literal, or made of the file's own, `f"{NAMESPACE}::scale"`."""
    if isinstance(node, cst.FormattedString) or _is_sum(node):
        split = node.parts if isinstance(node, cst.FormattedString) else (node.left, node.right)  # type: ignore[attr-defined] # a sum
        parts = [_part(program, p) for p in split]
        return "".join(p for p in parts if isinstance(p, str)) if all(isinstance(p, str) for p in parts) else MISSING
    found = literal(node)
    return program.evaluate(node).literal if found is MISSING else found


def _is_sum(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add)


def _part(program: Program, part: cst.CSTNode) -> object:
    if isinstance(part, cst.FormattedStringText):
        return part.value
    if isinstance(part, cst.FormattedStringExpression):
        plain = part.conversion is None and part.format_spec is None
        return _word(program, part.expression) if plain else MISSING
    return _word(program, part) if isinstance(part, cst.BaseExpression) else MISSING
