"""Hints on the parameters of a forward, as a tester would read them in the source.

Signature, annotations, defaults, names, what forward, backward and the functions that they call do with each parameter,
and what the file's calls of `apply` pass for it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef
_SPATIAL = re.compile(r"(conv|pool)(_transpose)?([123])d$")
# Functions whose arguments from the third on, or whose first argument, are indices; and those that take sizes. Other
# calls made no difference to the search for 31 classes of public packages.
_INDEXED = re.compile(r"(gather|scatter(_add|_reduce)?_?|index_(select|(add|copy|put|fill)_?)|take(_along_dim)?)$")
_COUNTED = re.compile(r"(one_hot|embedding|bincount)$")
_MAKING = re.compile(r"(view|reshape|expand|(new_)?(zeros|ones|empty|full)|repeat|arange|eye)$")


@dataclass
class Hints:
    """Knowledge of one parameter.

    Attributes:
        name: as forward calls it.
        annotation: its text.
        default: its default, where that is a literal.
        optional: whether it has a default.
        facts: `tensor`, `index`, `mask`, `dim`, `size`, `condition`, `called`, `none`, `computed`, `dtype`, `device`,
            `sequence`, `mapping`, `graded`, `ungraded`, `complex`; `empty` of a function that is called without
            arguments; `input2` and `weight2` of a convolution.
        values: literals that it is compared with, or that calls of apply pass.
        keys: strings that it is indexed with.
        attributes: hints on the attributes that are read of it, and on the results of its methods, as `size()`.
        length: into how many it is unpacked.
        least: how many members are read of it by index, at least.
        member: hints on its members, where a loop iterates over it.
        star: whether it is `*args`.
        enumeration: the class of which it may be a member, by its annotation, its default or a comparison; or "".
    """

    name: str
    annotation: str = ""
    default: Any = None
    optional: bool = False
    facts: set[str] = field(default_factory=set)
    values: list[Any] = field(default_factory=list)
    keys: dict[str, None] = field(default_factory=dict)
    attributes: dict[str, Hints] = field(default_factory=dict)
    length: int = 0
    least: int = 0
    member: Hints | None = None
    star: bool = False
    enumeration: str = ""

    def list_ranks(self) -> list[int]:
        """Return how many axes it may have as a tensor, by what is unpacked, read or compared of its shape."""
        shapes = [a for name, a in self.attributes.items() if name in {"shape", "size()"}]
        ranks = [a.values[0] for name, a in self.attributes.items() if name in {"ndim", "dim()"} and a.values]
        least = max((a.least for a in shapes), default=0)
        found = [*(a.length for a in shapes if a.length), *(r for r in ranks if type(r) is int)]
        return [*dict.fromkeys([*found, *(range(least, 6) if least > 1 else ())])]


def read_hints(tree: ast.Module, qualname: str, methods: Mapping[str, Function] | None = None) -> list[Hints]:
    """Return hints for each parameter of a class's forward but ctx, or of an operator with these methods."""
    return _HintReader(tree, qualname.rsplit(".", maxsplit=1)[-1], methods or {}).read_parameters()


def list_sizes(tree: ast.Module) -> list[int]:
    """Return the integers in subscripts and comparisons of a file: such are the sizes of axes."""
    places = [n for n in ast.walk(tree) if isinstance(n, (ast.Subscript, ast.Compare))]
    found = {c.value for p in places for c in ast.walk(p) if isinstance(c, ast.Constant) and type(c.value) is int}
    return sorted(n for n in found if 1 < n < 33)


def list_numbers(tree: ast.Module, qualname: str, methods: Mapping[str, Function] | None = None) -> set[float]:
    """Return the numbers in a class, or in an operator's methods, and in what these read of the file.

    Results may change where an argument has such a value.
    """
    name = qualname.rsplit(".", maxsplit=1)[-1]
    bound: dict[str, list[ast.AST]] = {}
    for node in [*tree.body, *ast.walk(tree)]:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            bound.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Assign) and node in tree.body:
            for target in node.targets:
                bound.setdefault(ast.unparse(target), []).append(node)
    waiting = [*(methods or {}).values()] or bound.pop(name, [tree])
    found: set[float] = set()
    while waiting:
        for node in ast.walk(waiting.pop()):
            value = _read_literal(node)[1] if isinstance(node, (ast.Constant, ast.UnaryOp)) else None
            if isinstance(value, (int, float)) and abs(value) < 1000:
                found.add(float(value))
            elif isinstance(node, ast.Name):
                waiting += bound.pop(node.id, [])
    return found


class _HintReader:
    """Reader of how a class and the functions of its file use each parameter."""

    def __init__(self, tree: ast.Module, name: str, methods: Mapping[str, Function]) -> None:
        self.tree, self.name, self.methods = tree, name, methods
        self.functions = {s.name: s for s in ast.walk(tree) if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef))}
        self.classes = {s.name: s for s in ast.walk(tree) if isinstance(s, ast.ClassDef)}
        self.found: dict[str, Hints] = {}
        self.kept: dict[str, Hints] = {}  # attributes of ctx that are parameters
        self.saved: list[Hints | None] = []
        self.context = self.inputs = ""

    def read_parameters(self) -> list[Hints]:
        forward = self._find_method("forward")
        if forward is None:
            return []
        setup, backward = self._find_method("setup_context"), self._find_method("backward", "vjp")
        params = [*forward.args.posonlyargs, *forward.args.args]
        defaults = [None] * (len(params) - len(forward.args.defaults)) + list(forward.args.defaults)
        first = int(not (setup or self.methods)) + any(p.arg == "cls" for p in params[:1])
        for param, default in [*zip(params, defaults, strict=True)][first:]:
            self._add_parameter(param, default)
        if forward.args.vararg:
            self._add_parameter(forward.args.vararg, None)
            self.found[forward.args.vararg.arg].star = True
        self._visit_method(forward, dict(self.found), first - 1)
        if setup:
            self.inputs = setup.args.args[1].arg if len(setup.args.args) > 1 else ""
            self._visit_method(setup, {}, 0)
        if backward:
            self._visit_method(backward, {}, 0)
            self._note_gradients(backward)
        self._visit_apply_calls()
        texts = [*map(ast.unparse, self.methods.values() or [self.classes[self.name]])]
        if re.search(r"\dj\b|complex|\.conj|fft|view_as_real", "\n".join(texts)):
            for hint in self.found.values():
                hint.facts.add("complex")
        return list(self.found.values())

    def _find_method(self, *names: str) -> Function | None:
        """Return the first of these methods that the class has, of its own or by a base in the file."""
        if self.methods:
            return next((self.methods[n] for n in names if n in self.methods), None)
        waiting, seen = [self.name], set[str]()
        while waiting:
            name = waiting.pop(0)
            node = self.classes.get(name) if name not in seen else None
            seen.add(name)
            for s in node.body if node else ():
                if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)) and s.name in names:
                    return s
            waiting += [ast.unparse(b).split(".")[-1] for b in node.bases] if node else []
        return None

    def _add_parameter(self, param: ast.arg, default: ast.expr | None) -> None:
        made = Hints(param.arg, ast.unparse(param.annotation) if param.annotation else "")
        if default is not None:
            made.optional, made.default = _read_literal(default)
        is_class = re.fullmatch(r"(?!Any$|Callable$|Tensor$|Module$)[A-Z]\w*", made.annotation)
        made.enumeration = made.annotation if is_class else _find_enumeration(default)
        self.found[param.arg] = made

    def _note_gradients(self, backward: Function) -> None:
        never = dict.fromkeys(self.found)  # what gets no gradient at all
        for node in ast.walk(backward):
            if isinstance(node, ast.Return) and node.value is not None:
                given = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                for hint, gradient in zip(self.found.values(), given, strict=False):
                    if isinstance(gradient, ast.Starred) or (len(given) == 1 and isinstance(gradient, ast.Call)):
                        never.clear()
                        break
                    if not (isinstance(gradient, ast.Constant) and gradient.value is None):
                        hint.facts.add("graded")
                        never.pop(hint.name, None)
        for name in never:
            self.found[name].facts.add("ungraded")

    def _find_parameter(self, node: ast.AST | None, names: dict[str, Hints]) -> Hints | None:
        """Return the parameter that an expression is, or an attribute of one."""
        match node:
            case ast.Name():
                return names.get(node.id)
            case ast.Call(func=ast.Name(id="len"), args=[ast.Attribute(attr="shape", value=value)]):
                return self._find_attribute(value, "ndim", names)
            case ast.Call(func=ast.Attribute(value=value, attr=method), args=[], keywords=[]):  # such as x.size()
                return self._find_attribute(value, f"{method}()", names)
            case ast.Attribute(value=ast.Name(id=owner)) if owner == self.context:
                return self.kept.get(node.attr)
            case ast.Attribute():
                return self._find_attribute(node.value, node.attr, names)
        return None

    def _find_attribute(self, node: ast.expr, name: str, names: dict[str, Hints]) -> Hints | None:
        owner = self._find_parameter(node, names)
        return None if owner is None else owner.attributes.setdefault(name, Hints(name))

    def _visit_method(self, method: Function, names: dict[str, Hints], context: int) -> None:
        params = [a.arg for a in (*method.args.posonlyargs, *method.args.args)]
        self.context = params[context] if 0 <= context < len(params) else ""
        for node in (n for statement in method.body for n in _iter_in_order(statement)):
            for fact, expression in _list_facts(node):
                if hint := self._find_parameter(expression, names):
                    hint.facts.add(fact)
            if isinstance(node, ast.Assign):
                self._visit_assign(node, names)
            elif isinstance(node, (ast.For, ast.comprehension)) and isinstance(node.target, ast.Name):
                if hint := self._find_parameter(node.iter, names):
                    hint.member = names[node.target.id] = hint.member or Hints(node.target.id)
            elif isinstance(node, ast.Call):
                self._visit_call(node, names)
            elif isinstance(node, ast.Attribute):
                self._find_parameter(node, names)
            elif isinstance(node, ast.Subscript) and (hint := self._find_parameter(node.value, names)):
                found, key = _read_literal(node.slice)
                if found and isinstance(key, str):
                    hint.keys[key] = None
                elif found and type(key) is int:
                    hint.least = max(hint.least, -key, key + 1)
            elif isinstance(node, ast.Compare) and (hint := self._find_parameter(node.left, names)):
                hint.enumeration = hint.enumeration or _find_enumeration(node.comparators[0])
                for found, value in map(_read_literal, node.comparators):
                    number = isinstance(value, (int, float)) and not isinstance(value, bool)
                    hint.facts |= (
                        {"none"} if found and value is None else {"computed"} if number or not found else set()
                    )
                    if found and value is not None:
                        members = value if isinstance(value, (tuple, list, set)) else [value]
                        hint.values += [value, value + 1, value - 1] if number else members

    def _visit_call(self, node: ast.Call, names: dict[str, Hints]) -> None:
        """Note what is saved, and how a function or operator of the file annotates what it is called with."""
        given = [self._find_parameter(a, names) for a in node.args]
        called = ast.unparse(node.func).rpartition(".")[2]
        if called == "save_for_backward":
            self.saved = given
        elif called in self.functions:
            for hint, param in zip(given, self.functions[called].args.args, strict=False):
                if hint and param.annotation and not hint.annotation:
                    hint.annotation = ast.unparse(param.annotation)
        elif called == "einsum" and isinstance(node.args[0], ast.Constant):
            for hint, axes in zip(given[1:], str(node.args[0].value).split("->")[0].split(","), strict=False):
                if hint and "." not in axes:
                    hint.attributes.setdefault("ndim", Hints("ndim")).values.append(len(axes.replace(" ", "")))
        elif called == "size" and node.args and isinstance(node.func, ast.Attribute):
            found, axis = _read_literal(node.args[0])
            hint = self._find_attribute(node.func.value, "shape", names)
            if hint and found and type(axis) is int:
                hint.least = max(hint.least, -axis, axis + 1)

    def _visit_assign(self, node: ast.Assign, names: dict[str, Hints]) -> None:
        target, value = node.targets[0], node.value
        both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        for t, v in zip(target.elts, value.elts, strict=False) if both else [(target, value)]:  # type: ignore[attr-defined] # tuples
            hint = self._find_parameter(v, names)
            if isinstance(t, (ast.Tuple, ast.List)):
                unpacked: Sequence[Hints | None] = []
                if hint:
                    hint.length = len(t.elts)
                    hint.facts.add("sequence")
                elif isinstance(v, ast.Attribute) and v.attr in {"saved_tensors", "saved_variables"}:
                    unpacked = self.saved
                elif isinstance(v, ast.Name) and v.id == self.inputs:
                    unpacked = list(self.found.values())
                names |= {e.id: h for e, h in zip(t.elts, unpacked, strict=False) if h and isinstance(e, ast.Name)}
                continue
            if isinstance(v, ast.Subscript) and ast.unparse(v.value) == self.inputs:
                found, place = _read_literal(v.slice)
                hint = list(self.found.values())[place] if found and place in range(len(self.found)) else None
            if hint and isinstance(t, ast.Name) and not (t.id in names and isinstance(v, (ast.Attribute, ast.Call))):
                names[t.id] = hint  # x = x.detach() is the parameter still
            elif hint and isinstance(t, ast.Attribute) and ast.unparse(t.value) == self.context:
                self.kept[t.attr] = hint

    def _visit_apply_calls(self) -> None:
        """Read what the file's own calls of apply pass."""
        apply = f"{self.name}.apply"
        assigned = [s for s in ast.walk(self.tree) if isinstance(s, ast.Assign) and ast.unparse(s.value) == apply]
        aliases = {apply, *(ast.unparse(s.targets[0]) for s in assigned)}
        for function in [self.tree, *self.functions.values()]:
            known: dict[str, ast.expr] = {}
            if not isinstance(function, ast.Module):
                args = function.args
                known = dict(zip([a.arg for a in args.args[::-1]], args.defaults[::-1], strict=False))
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in aliases:
                    for hint, arg in zip(self.found.values(), node.args, strict=False):
                        found, value = _read_literal(known.get(ast.unparse(arg).removeprefix("self."), arg))
                        if found and value not in hint.values:
                            hint.values.insert(0, value)


def _list_facts(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield facts that a node shows of the expressions in it."""
    match node:
        case ast.If() | ast.IfExp() | ast.While():
            yield "condition", node.test
        case ast.BoolOp():
            yield from (("condition", v) for v in node.values)
        case ast.UnaryOp():
            inverted, negated = isinstance(node.op, ast.Invert), isinstance(node.op, (ast.USub, ast.UAdd))
            yield "mask" if inverted else "computed" if negated else "condition", node.operand
        case ast.BinOp():
            fact = "tensor" if isinstance(node.op, ast.MatMult) else "computed"
            yield from ((fact, v) for v in (node.left, node.right))
        case ast.For() | ast.comprehension():
            yield "sequence", node.iter
        case ast.Subscript():
            found, key = _read_literal(node.slice)
            if not (found and isinstance(key, str)):
                yield "tensor", node.value
            of_shape = isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
            for part in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
                ends = [part.lower, part.upper, part.step] if isinstance(part, ast.Slice) else []
                yield from (("size", end) for end in ends)
                yield "dim" if of_shape else "index", part
        case ast.Call():
            yield from _list_facts_of_call(node)


def _list_facts_of_call(node: ast.Call) -> Iterator[tuple[str, ast.expr | None]]:
    name = ast.unparse(node.func)
    tail = name.rpartition(".")[2]
    yield "called" if node.args or node.keywords else "empty", node.func
    yield from (("mapping", k.value) for k in node.keywords if k.arg is None)
    args = [a.value if isinstance(a, ast.Starred) else a for a in node.args]
    if tail == "save_for_backward":
        yield from (("tensor", a) for a in args)
        return
    method = isinstance(node.func, ast.Attribute) and not name.startswith(("torch.", "F.", "nn.", "th."))
    for i, arg in enumerate(args, int(method)):  # the object of a method has index 0
        if (_INDEXED.match(tail) and i > 1) or (_COUNTED.match(tail) and i == 0):
            yield "index", arg
        elif _MAKING.match(tail) and (i or not method):
            yield "size", arg
    if spatial := _SPATIAL.search(tail):
        yield from zip((f"input{spatial[3]}", f"weight{spatial[3]}", "bias"), args, strict=False)
    for keyword in node.keywords:
        if keyword.arg in {"dim", "axis", "dtype", "device", "index"}:
            yield "dim" if keyword.arg == "axis" else keyword.arg, keyword.value


def _iter_in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes in the order of the text."""
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _iter_in_order(child)


def _find_enumeration(node: ast.expr | None) -> str:
    """Return the class of an expression such as `Rounding.UP`; else ""."""
    match node:
        case ast.Attribute(value=ast.Name(id=name)) if name[0].isupper():
            return name
    return ""


def _read_literal(node: ast.expr) -> tuple[bool, Any]:
    """Return whether an expression is a literal, and its value."""
    try:
        return True, ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False, None
