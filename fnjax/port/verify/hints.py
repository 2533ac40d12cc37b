"""What the parameters of a forward are, as a tester would tell it from the source.

Signature, annotations, defaults, names, what forward, backward and the functions that they call do with each parameter,
and what the file's calls of `apply` give for it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef
_DIMS = re.compile(
    "sum|mean|(log_)?softmax|cumsum|cumprod|(un)?squeeze|size|transpose|arg(max|min|sort)|[an]?max|[an]?min|norm|select|"
    "split|chunk|narrow|index_(select|add_?)|logsumexp|flip|roll|gather|scatter(_add)?_?|prod|std|var|sort|topk|flatten|"
    "permute|movedim|swapaxes|stack|cat|glu|unbind"
)
_INDEXED = re.compile("gather|scatter(_add|_reduce)?_?|index_(select|(add|copy|put|fill)_?)|take(_along_dim)?")
_COUNTED = re.compile("one_hot|embedding|bincount")
_MASKED = re.compile("masked_(fill_?|select|scatter)|logical_(and|or|not)")
_SIZES = re.compile("view|reshape|expand|(new_)?(zeros|ones|empty|full)|repeat|arange|eye")
_NUMBERS = re.compile(r"int|float|round|pow|abs|math\..*")  # of Python


@dataclass
class Hints:
    """Knowledge of one parameter.

    Attributes:
        name: as forward calls it.
        annotation: its text.
        default: its default, where that is a literal.
        optional: whether it has a default.
        facts: `tensor`, `index`, `mask`, `dim`, `size`, `truth`, `called`, `none`, `number`, `computed`, `dtype`,
            `device`, `sequence`, `graded`, `ungraded`, `complex`; `input2` and `weight2` of a convolution.
        values: literals that it is compared with, or that calls of apply give.
        keys: strings that it is indexed with.
        attributes: attributes that are asked of it.
        length: into how many it is unpacked.
        star: whether it is `*args`.
    """

    name: str
    annotation: str = ""
    default: Any = None
    optional: bool = False
    facts: set[str] = field(default_factory=set)
    values: list[Any] = field(default_factory=list)
    keys: dict[str, None] = field(default_factory=dict)
    attributes: dict[str, None] = field(default_factory=dict)
    length: int = 0
    star: bool = False


def read_hints(tree: ast.Module, qualname: str) -> list[Hints]:
    """For each parameter of the class's forward, ctx aside."""
    return _HintReader(tree, qualname).read_parameters()


def list_sizes(tree: ast.Module) -> list[int]:
    """Return the integers in subscripts and comparisons of a file: such are the sizes of axes."""
    places = [n for n in ast.walk(tree) if isinstance(n, (ast.Subscript, ast.Compare))]
    found = {c.value for p in places for c in ast.walk(p) if isinstance(c, ast.Constant) and type(c.value) is int}
    return sorted(n for n in found if 1 < n < 33)


class _HintReader:
    """Follows the parameters through a class and the functions of its file."""

    def __init__(self, tree: ast.Module, qualname: str) -> None:
        self.tree, self.name = tree, qualname.rsplit(".", maxsplit=1)[-1]
        self.functions = {s.name: s for s in ast.walk(tree) if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef))}
        self.classes = {s.name: s for s in ast.walk(tree) if isinstance(s, ast.ClassDef)}
        self.found: dict[str, Hints] = {}
        self.kept: dict[str, str] = {}  # ctx's attributes that are parameters
        self.saved: list[str] = []
        self.context = ""

    def read_parameters(self) -> list[Hints]:
        forward, setup, backward = (self._find_method(self.name, n) for n in ("forward", "setup_context", "backward"))
        if forward is None:
            return []
        params = [*forward.args.posonlyargs, *forward.args.args]
        first = 0 if setup else 1
        if params and params[0].arg == "cls":
            first += 1
        defaults = [None] * (len(params) - len(forward.args.defaults)) + list(forward.args.defaults)
        for param, default in list(zip(params, defaults, strict=True))[first:]:
            self._add_parameter(param, default)
        if forward.args.vararg:
            self._add_parameter(forward.args.vararg, None)
            self.found[forward.args.vararg.arg].star = True
        own = {n: n for n in self.found}
        if not setup and params[first - 1 : first]:
            self.context = params[first - 1].arg
        self._visit_function(forward, own, 0)
        if setup:
            self._follow_setup(setup)
        if backward is not None or (backward := self._find_method(self.name, "vjp")) is not None:
            self.context = backward.args.args[0].arg if backward.args.args else ""
            self._visit_function(backward, {}, 0)
            self._note_gradients(backward)
        self._visit_apply_calls()
        if re.search(r"\dj\b|complex|\.conj|fft|view_as_real", ast.unparse(self.classes[self.name])):
            for hint in self.found.values():
                hint.facts.add("complex")
        return list(self.found.values())

    def _find_method(self, cls: str, name: str, depth: int = 0) -> Function | None:
        node = self.classes.get(cls)
        if node is None or depth > 8:
            return None
        own = (s for s in node.body if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)) and s.name == name)
        inherited = (self._find_method(ast.unparse(b).split(".")[-1], name, depth + 1) for b in node.bases)
        return next(own, None) or next((m for m in inherited if m), None)

    def _add_parameter(self, param: ast.arg, default: ast.expr | None) -> None:
        made = Hints(param.arg, ast.unparse(param.annotation) if param.annotation else "", optional=default is not None)
        if default is not None:
            found, made.default = _read_literal(default)
            made.optional = found
        self.found[param.arg] = made

    def _follow_setup(self, setup: Function) -> None:
        """Follow `setup_context(ctx, inputs, output)`: inputs are the parameters."""
        names = [a.arg for a in setup.args.args]
        self.context = names[0]
        own: dict[str, str] = {}
        for node in ast.walk(setup):
            if not isinstance(node, ast.Assign) or len(names) < 2:
                continue
            target = node.targets[0]
            if isinstance(node.value, ast.Name) and node.value.id == names[1] and isinstance(target, ast.Tuple):
                own |= {
                    t.id: n
                    for t, n in zip(target.elts, self.found, strict=False)
                    if isinstance(t, ast.Name) and not isinstance(t, ast.Starred)
                }
            elif isinstance(node.value, ast.Subscript) and ast.unparse(node.value.value) == names[1]:
                found, place = _read_literal(node.value.slice)
                if found and isinstance(place, int) and isinstance(target, ast.Name):
                    own |= dict.fromkeys([target.id], list(self.found)[place : place + 1 or None][0])
        self._visit_function(setup, own, 0)

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

    def _find_parameter(self, node: ast.AST | None, names: dict[str, str]) -> Hints | None:
        """Return the parameter that an expression is."""
        if isinstance(node, ast.Name):
            return self.found.get(names.get(node.id, ""))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == self.context:
            return self.found.get(self.kept.get(node.attr, ""))
        return None

    def _visit_function(self, function: Function, names: dict[str, str], depth: int) -> None:
        names = dict(names)
        for node in _iter_in_order(function):
            if isinstance(node, ast.Assign):
                self._visit_assign(node, names)
            elif isinstance(node, ast.Call):
                self._visit_call(node, names, depth)
            elif isinstance(node, ast.Attribute) and (hint := self._find_parameter(node.value, names)):
                hint.attributes[node.attr] = None
            elif isinstance(node, ast.Subscript):
                self._visit_subscript(node, names)
            elif isinstance(node, ast.Compare) and (hint := self._find_parameter(node.left, names)):
                self._visit_compare(node, hint)
            elif isinstance(node, (ast.If, ast.IfExp, ast.While)) and (hint := self._find_parameter(node.test, names)):
                hint.facts.add("truth")
            elif isinstance(node, (ast.BoolOp, ast.UnaryOp)):
                for part in node.values if isinstance(node, ast.BoolOp) else [node.operand]:
                    if hint := self._find_parameter(part, names):
                        inverted = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert)
                        negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd))
                        hint.facts.add("mask" if inverted else "computed" if negated else "truth")
            elif isinstance(node, ast.BinOp):
                for part in (node.left, node.right):
                    if hint := self._find_parameter(part, names):
                        hint.facts.add("tensor" if isinstance(node.op, ast.MatMult) else "computed")
            elif isinstance(node, (ast.For, ast.comprehension)) and (hint := self._find_parameter(node.iter, names)):
                hint.facts.add("sequence")

    def _visit_assign(self, node: ast.Assign, names: dict[str, str]) -> None:
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=False))
        else:
            pairs = [(target, value)]
        for t, v in pairs:
            hint = self._find_parameter(v, names)
            if isinstance(t, ast.Tuple) and hint:
                hint.length = len(t.elts)
                hint.facts.add("sequence")
            saved = isinstance(v, ast.Attribute) and v.attr in {"saved_tensors", "saved_variables"}
            if saved and isinstance(t, (ast.Tuple, ast.List)):
                names |= {e.id: n for e, n in zip(t.elts, self.saved, strict=False) if isinstance(e, ast.Name) and n}
            elif isinstance(t, ast.Name) and hint:
                names[t.id] = hint.name
            elif isinstance(t, ast.Attribute) and hint and ast.unparse(t.value) == self.context:
                self.kept[t.attr] = hint.name

    def _visit_call(self, node: ast.Call, names: dict[str, str], depth: int) -> None:
        name = ast.unparse(node.func)
        tail = name.rpartition(".")[2]
        if hint := self._find_parameter(node.func, names):
            hint.facts.add("called")
        if tail == "save_for_backward":
            hinted = [self._find_parameter(a, names) for a in node.args]
            self.saved = [h.name if h else "" for h in hinted]
            for h in hinted:
                if h:
                    h.facts |= {"tensor"}
            return
        library = name.startswith(("torch.", "F.", "nn.", "th."))
        method = isinstance(node.func, ast.Attribute) and not library
        for i, arg in enumerate(node.args):
            if hint := self._find_parameter(arg.value if isinstance(arg, ast.Starred) else arg, names):
                hint.facts |= _list_facts(name, tail, i + method, library)
        spatial = re.search(r"(conv|pool)(_transpose)?([123])d$", tail)
        for part, arg in zip(("input", "weight", "bias"), node.args if spatial else (), strict=False):
            if spatial and (hint := self._find_parameter(arg, names)):
                hint.facts.add(f"{part}{spatial[3] if part != 'bias' else ''}")
        for keyword in node.keywords:
            if (hint := self._find_parameter(keyword.value, names)) and keyword.arg in {
                "dim",
                "axis",
                "dtype",
                "device",
                "index",
            }:
                hint.facts.add("dim" if keyword.arg == "axis" else keyword.arg)
        own = self.functions.get(tail)
        if own is not None and depth < 4 and not library:
            params = [a.arg for a in own.args.args]
            if params[:1] in (["self"], ["cls"], ["ctx"]) and len(node.args) < len(params):
                params = params[1:] if params[0] != "ctx" else params
            given = [*zip(params, node.args, strict=False), *((k.arg, k.value) for k in node.keywords if k.arg)]
            inner = {p: h.name for p, a in given if (h := self._find_parameter(a, names))}
            if inner:
                context, self.context = self.context, ""
                self._visit_function(own, inner, depth + 1)
                self.context = context

    def _visit_subscript(self, node: ast.Subscript, names: dict[str, str]) -> None:
        if hint := self._find_parameter(node.value, names):
            found, key = _read_literal(node.slice)
            if found and isinstance(key, str):
                hint.keys[key] = None
            else:
                hint.facts.add("tensor" if isinstance(node.slice, (ast.Tuple, ast.Slice)) else "entries")
        inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in inside:
            if isinstance(part, ast.Slice):
                for end in (part.lower, part.upper, part.step):
                    if hint := self._find_parameter(end, names):
                        hint.facts.add("size")
            elif hint := self._find_parameter(part, names):
                is_shape = isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
                hint.facts.add("dim" if is_shape else "index")

    @staticmethod
    def _visit_compare(node: ast.Compare, hint: Hints) -> None:
        for operator, other in zip(node.ops, node.comparators, strict=True):
            found, value = _read_literal(other)
            if not found:
                hint.facts.add("computed")
            elif value is None:
                hint.facts.add("none")
            elif isinstance(operator, (ast.In, ast.NotIn)) and isinstance(value, (tuple, list, set)):
                hint.values += list(value)
            else:
                number = isinstance(value, (int, float)) and not isinstance(value, bool)
                hint.values += [value, value + 1, value - 1] if number else [value]
                if number:
                    hint.facts.add("computed")

    def _visit_apply_calls(self) -> None:
        """Read what the file's own calls of apply pass."""
        aliases = {
            ast.unparse(s.targets[0])
            for s in ast.walk(self.tree)
            if isinstance(s, ast.Assign) and ast.unparse(s.value) == f"{self.name}.apply"
        } | {f"{self.name}.apply"}
        for function in [self.tree, *self.functions.values()]:
            defaults = _find_defaults(function) if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) else {}
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in aliases:
                    for hint, arg in zip(self.found.values(), node.args, strict=False):
                        found, value = _read_literal(defaults.get(ast.unparse(arg), arg))
                        if found and value not in hint.values:
                            hint.values.insert(0, value)


def _list_facts(name: str, tail: str, place: int, library: bool) -> set[str]:
    """Return what the argument of a call is, by its place; the object of a method has place 0."""
    if _COUNTED.fullmatch(tail) and place == 0:
        return {"index"}
    if _INDEXED.fullmatch(tail) and place >= 1:
        return {"index"} if place > 1 else {"dim"}
    if _MASKED.fullmatch(tail) or (tail == "where" and place == 0):
        return {"mask"} if place <= 1 else set()
    if _DIMS.fullmatch(tail) and place == 1:
        return {"dim"}
    if _SIZES.fullmatch(tail) and (place or name.startswith("torch.")):
        return {"size"}
    if name in {"range", "math.ceil", "math.floor"}:
        return {"size"}
    if _NUMBERS.fullmatch(name):
        return {"number"}
    if name == "len":
        return {"sequence"}
    return {"tensor"} if library and place == 0 else set()


def _iter_in_order(function: Function) -> Iterator[ast.AST]:
    """Yield all nodes, statement by statement in the order of the text."""
    for statement in function.body:
        yield from _iter_deep(statement)


def _iter_deep(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _iter_deep(child)


def _find_defaults(function: Function) -> dict[str, ast.expr]:
    params = function.args.args
    given = function.args.defaults
    found = {p.arg: d for p, d in zip(params[len(params) - len(given) :], given, strict=True)}
    return found | {f"self.{n}": d for n, d in found.items()}


def _read_literal(node: ast.expr) -> tuple[bool, Any]:
    """Return whether an expression is a literal, and its value."""
    try:
        return True, ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False, None
