"""Support functions for the calls of one port: conditions on literal arguments are decided, short ones are inlined.

Where all calls pass the same literal for a parameter, or nothing, conditions, entries of dictionaries and attributes by
name that depend on it are decided, and parameters that nothing reads any more go. All else stays as it is: functions
that are passed on or take `*args`, parameters that are assigned to, comparisons that raise.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import libcst as cst

from fnjax._torch_ops.signature import MISSING
from fnjax.port.torch.expressions import TemplateFiller, find_names, read_literal, unparse
from fnjax.port.torch.support_text import MODULES, support
from fnjax.port.tree.located import collect_names, find_small_statement, list_nodes, replace_parts

_BUILTINS = {"__builtins__": {f.__name__: f for f in (isinstance, bool, int, float, str, tuple, list)}}
_SCOPES = (cst.Lambda, cst.GeneratorExp, cst.ListComp, cst.SetComp, cst.DictComp, cst.NamedExpr)
_CHOICES = (cst.IfExp, cst.BooleanOperation)
_SHORT = 60  # the length of an expression that is no harder to read than a call


def specialise(statements: Sequence[Any], needs: Iterable[str]) -> tuple[list[Any], dict[str, str], frozenset[str]]:
    """Return statements with specialised calls of support functions, these functions, and the modules that both need.

    Args:
        statements: the statements of a port.
        needs: the support functions that they call.
    """
    port = _Port(statements, support(needs)[0])
    while any(port.specialise(name) for name in reversed([*port.functions])):
        pass
    made = {name: unparse(node).strip("\n") for name, node in port.functions.items()}
    counts = [_count_names(node) for node in port.functions.values()]
    read = port.inlined.union(*(counted.keys() - bound.keys() for bound, counted in counts))
    return port.statements, made, frozenset(read & MODULES)


class _Port:
    """The statements of a port, and the support functions by name, those first that others call."""

    def __init__(self, statements: Sequence[Any], texts: Mapping[str, str]) -> None:
        self.statements = [*statements]
        self.functions: dict[str, Any] = {name: cst.parse_statement(text) for name, text in texts.items()}
        self.inlined = set[str]()  # the names in expressions that have replaced calls

    def specialise(self, name: str) -> bool:
        """Fold the arguments of a function, and put it in the place of its calls; return whether anything changed."""
        others = [f for n, f in self.functions.items() if n != name]
        reading = [r for r in (*self.statements, *others) if name in collect_names(r)]
        nodes = [n for r in reading for n in list_nodes(r, cst.Name, cst.Call)]
        calls = [c for c in nodes if isinstance(c, cst.Call) and unparse(c.func) == name]
        used = sum(isinstance(n, cst.Name) and n.value == name for n in nodes)
        if not used:
            del self.functions[name]
            return True
        function = self.functions[name]
        plain = cst.Parameters(params=function.params.params).deep_equals(function.params)
        recursive = _count_names(function)[1][name]
        if not plain or recursive or used != len(calls) or any(a.star for c in calls for a in c.args):
            return False
        return self._fold(name, function, calls) or self._inline(name, function, calls)

    def _fold(self, name: str, function: Any, calls: Sequence[cst.Call]) -> bool:
        """Decide what depends on literals that all calls pass; return whether anything changed."""
        bound, read = _count_names(function)
        given = [_bind_arguments(function, c) for c in calls]
        values = {p: [g[p] for g in given] for p in given[0] if bound[p] == 1}
        known = {p: v[0] for p, v in values.items() if len({*map(_identify, v)}) == 1 and _identify(v[0])}
        passed = {p for c in calls for p, _ in _pair_arguments(function, c)}
        dropped = {p: v[0] for p, v in values.items() if not read[p] and all(map(_is_simple, v))}
        dropped |= {p: v for p, v in known.items() if p not in passed}

        def drop_arguments(call: cst.Call) -> cst.Call:
            return call.with_changes(args=_end_list(a for p, a in _pair_arguments(function, call) if p not in dropped))

        kept = _end_list(p for p in function.params.params if p.name.value not in dropped)
        made = function.with_changes(params=function.params.with_changes(params=kept))
        self.functions[name] = _fold(made, dropped, known)
        if dropped:
            self._replace_calls(name, drop_arguments)
        return bool(dropped) or unparse(self.functions[name]) != unparse(function)

    def _inline(self, name: str, function: Any, calls: Sequence[cst.Call]) -> bool:
        """Put a short expression in the place of its calls, unless an argument is complex and not read once."""
        read = _count_names(function)[1]
        *others, last = function.body.body
        value: Any = getattr(find_small_statement(last), "value", None)
        alone = len(others) == (function.get_docstring() is not None) and value is not None
        if not alone or len(unparse(value)) > _SHORT or list_nodes(value, *_SCOPES, *_CHOICES):
            return False
        for given in (_bind_arguments(function, c) for c in calls):
            movable = {p for p in given if read[p] == 1 and not list_nodes(given[p], *_SCOPES)}
            if not all(p in movable or _is_simple(v) for p, v in given.items()):
                return False
        self._replace_calls(name, lambda c: TemplateFiller(_bind_arguments(function, c), frozenset()).rewrite(value))
        del self.functions[name]
        self.inlined |= find_names(value)
        return True

    def _replace_calls(self, name: str, replace: Callable[[cst.Call], Any]) -> None:
        rewriter = _CallRewriter(name, replace)
        self.statements = [rewriter.rewrite(s) if name in collect_names(s) else s for s in self.statements]
        calling = {n: f for n, f in self.functions.items() if n != name and name in collect_names(f)}
        self.functions |= {n: _fold(rewriter.rewrite(f)) for n, f in calling.items()}


class _CallRewriter(TemplateFiller):
    """Rewriter of the calls of one function; parentheses are set where a new expression needs them."""

    def __init__(self, name: str, replace: Callable[[cst.Call], Any]) -> None:
        super().__init__({}, frozenset())
        self.name, self.replace = name, replace

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Replace a call; others keep their layout."""
        if unparse(updated_node.func) != self.name:
            return updated_node
        made: cst.BaseExpression = self.replace(updated_node)
        return made


class _Folder(TemplateFiller):
    """Rewriter that puts literals in place of variables, and decides what depends on literals alone."""

    def __init__(self, values: Mapping[str, cst.BaseExpression], known: Mapping[str, cst.BaseExpression]) -> None:
        """Make a folder; `known` are variables that stay, and whose values are known."""
        super().__init__(values, frozenset())
        self.literals = {n: v for n, node in {**values, **known}.items() if (v := read_literal(node)) is not MISSING}
        self.options = {n: v for n, v in known.items() if isinstance(v, (cst.Name, cst.SimpleString))}

    def _evaluate(self, node: cst.BaseExpression) -> Any:
        """Return the value of an expression of literals; MISSING if it is not one, or raises."""
        try:
            return eval(f"({unparse(node)})", _BUILTINS, self.literals)  # a text of fnjax's own
        except (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError):
            return MISSING

    def rewrite(self, node: cst.CSTNode) -> Any:
        """Decide conditions, entries of dictionaries, and attributes by their name."""
        new: Any = None
        match node:
            case cst.Comparison() if (found := self._evaluate(node)) is not MISSING:
                new = cst.Name(str(found))
            case cst.IfExp(test, body, orelse) if (found := self._evaluate(test)) is not MISSING:
                new = body if found else orelse
            case cst.BooleanOperation(left, operator, right) if (found := self._evaluate(left)) is not MISSING:
                new = right if bool(found) is isinstance(operator, cst.And) else left
            case cst.Subscript(cst.Dict(entries), [cst.SubscriptElement(cst.Index(key))]):
                new = self._find_entry(entries, key)
            case cst.Call(cst.Attribute(cst.Dict(entries), cst.Name("get")), [cst.Arg(key), cst.Arg(default)]):
                new = self._find_entry(entries, key, default)
            case cst.Call(cst.Name("getattr"), [cst.Arg(of), cst.Arg(cst.Name(name))]) if name in self.literals:
                new = cst.Attribute(of, cst.Name(str(self.literals[name])))
            case cst.IndentedBlock(lines):
                node = replace_parts(node, body=self._list_taken(lines) or [cst.parse_statement("pass")])
        return super().rewrite(node) if new is None else self.rewrite(new)

    def _find_entry(self, entries: Iterable[Any], key: cst.BaseExpression, default: Any = None) -> Any:
        """Return the value of a key that is known."""
        wanted = self._evaluate(key)
        return None if wanted is MISSING else {self._evaluate(e.key): e.value for e in entries}.get(wanted, default)

    def _list_taken(self, lines: Iterable[Any]) -> list[Any]:
        """Return statements up to a return, with the branch that is taken in the place of an `if` that is decided."""
        made: list[Any] = []
        for line in lines:
            test = self._evaluate(line.test) if isinstance(line, cst.If) else MISSING
            if test is MISSING:
                made.append(line)
            elif (taken := line.body if test else line.orelse) is not None:
                taken = taken.body if isinstance(taken, cst.Else) else taken
                made += self._list_taken([taken] if isinstance(taken, cst.If) else taken.body)
            if made and isinstance(find_small_statement(made[-1]), (cst.Return, cst.Raise)):
                break
        return made

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Pass options that are known to other support functions, which they decide, too; numbers keep their names."""
        options = self.options if unparse(updated_node.func).startswith("_") else {}
        args = [replace_parts(a, value=options.get(unparse(a.value), a.value)) for a in updated_node.args]
        return replace_parts(updated_node, args=args)


def _fold(
    function: Any, values: Mapping[str, cst.BaseExpression] = {}, known: Mapping[str, cst.BaseExpression] = {}
) -> Any:
    """Return a function with values for variables; those that are literals, copies, only returned or not read go.

    Args:
        function: the function.
        values: take the place of variables.
        known: the values of further variables, which decide conditions only.
    """
    function = _Folder(values, known).rewrite(function)
    bound, read = _count_names(function)
    body = [*function.body.body]
    for i, line in enumerate(body):
        match find_small_statement(line):
            case cst.Assign([cst.AssignTarget(cst.Name(name))], value) if bound[name] == 1:
                rest, values = [*body[:i], *body[i + 1 :]], dict[str, cst.BaseExpression]()
            case _:
                continue
        if _identify(value) or (isinstance(value, cst.Name) and bound[value.value] == 1):
            values[name] = value
        elif read[name] == 1 and unparse(cst.Module(rest[i : i + 1])).strip() == f"return {name}":
            rest[i] = rest[i].with_changes(body=[cst.Return(value)])
        elif read[name] or not all(unparse(c.func).startswith("jnp.") for c in list_nodes(value, cst.Call)):
            continue
        return _fold(replace_parts(function, body=replace_parts(function.body, body=rest)), values, known)
    return function


def _count_names(function: cst.FunctionDef) -> tuple[Counter[str], Counter[str]]:
    """Return how often a function binds each of its names, parameters among them, and how often it reads each."""
    bound, read = Counter[str](), Counter[str]()
    for node in ast.walk(ast.parse(unparse(function).strip())):
        match node:
            case ast.Name(name, ast.Load()):
                read[name] += 1
            case ast.Name(name) | ast.arg(name) | ast.FunctionDef(name):
                bound[name] += 1
    return bound, read


def _identify(value: cst.BaseExpression) -> str:
    """Return the text of an immutable literal; "" for anything else."""
    found = read_literal(value)
    return "" if found is MISSING or isinstance(found, (list, set, dict)) else repr(found)


def _is_simple(value: cst.BaseExpression) -> bool:
    """Return whether an expression can be read several times, or not at all: a variable, its attribute, a literal."""
    while isinstance(value, cst.Attribute):
        value = value.value
    return isinstance(value, cst.Name) or bool(_identify(value))


def _pair_arguments(function: cst.FunctionDef, call: cst.Call) -> list[tuple[str, cst.Arg]]:
    """Return the arguments of a call, each with its parameter."""
    pairs = zip(function.params.params, call.args, strict=False)  # arguments with keywords come last
    return [(a.keyword.value if a.keyword else p.name.value, a) for p, a in pairs]


def _bind_arguments(function: cst.FunctionDef, call: cst.Call) -> dict[str, cst.BaseExpression]:
    """Return the arguments of a call by parameter, with the defaults of others."""
    defaults = {p.name.value: p.default for p in function.params.params if p.default is not None}
    return defaults | {p: a.value for p, a in _pair_arguments(function, call)}


def _end_list(items: Iterable[Any]) -> list[Any]:
    """Return arguments, or parameters, without a comma after the last."""
    *others, last = [*items] or [None]
    return [*others, *([] if last is None else [last.with_changes(comma=cst.MaybeSentinel.DEFAULT)])]
