"""Support functions for the calls of one port: conditions on literal arguments are decided, short ones are inlined.

Where all calls pass the same literal for a parameter, or nothing, conditions, entries of dictionaries and attributes by
name that depend on it are decided, and parameters that nothing reads any more go. All else stays as it is: functions
that are passed on or take `*args`, parameters that are assigned to, comparisons that raise.
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import libcst as cst

from fnjax._torch_ops.signature import MISSING
from fnjax.port.torch.expressions import TemplateFiller, bracket, drop_parentheses, find_names, read_literal, unparse
from fnjax.port.torch.support_text import MODULES, support
from fnjax.port.tree.located import find_small_statement, list_nodes, replace_parts

_COMPARISONS: dict[type[cst.CSTNode], Callable[[Any, Any], object]] = {
    cst.Equal: operator.eq,
    cst.NotEqual: operator.ne,
    cst.LessThan: operator.lt,
    cst.GreaterThan: operator.gt,
    cst.Is: operator.is_,
    cst.IsNot: operator.is_not,
    cst.In: lambda a, b: a in b,
}
_TYPES: dict[str, type] = {t.__name__: t for t in (bool, int, float, str, tuple, list)}
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
        nodes = [n for r in (*self.statements, *others) for n in list_nodes(r, cst.Name, cst.Call)]
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
        params = [p.name.value for p in function.params.params]
        given = [_bind_arguments(function, c) for c in calls]
        values = {p: [g[p] for g in given] for p in params if bound[p] == 1}
        known = {p: v[0] for p, v in values.items() if len({*map(_identify, v)}) == 1 and _identify(v[0])}
        placed = [zip(c.args, params, strict=False) for c in calls]  # arguments with keywords come last
        passed = {a.keyword.value if a.keyword else p for pairs in placed for a, p in pairs}
        dropped = {p: v[0] for p, v in values.items() if not read[p] and all(map(_is_simple, v))}
        dropped |= {p: v for p, v in known.items() if p not in passed}

        def drop_arguments(call: cst.Call) -> cst.Call:
            pairs = zip(call.args, params, strict=False)
            kept = [a for a, p in pairs if (a.keyword.value if a.keyword else p) not in dropped]
            return call.with_changes(args=_end_list(kept))

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
        self.statements = [rewriter.rewrite(s) for s in self.statements]
        self.functions = {n: f if n == name else _fold(rewriter.rewrite(f)) for n, f in self.functions.items()}


class _CallRewriter(TemplateFiller):
    """Rewriter of the calls of one function; parentheses are set where a new expression needs them."""

    def __init__(self, name: str, replace: Callable[[cst.Call], Any]) -> None:
        super().__init__({}, frozenset())
        self.name, self.replace = name, replace

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Replace a call; others keep their layout."""
        if unparse(updated_node.func) != self.name:
            return replace_parts(updated_node, func=bracket(updated_node.func))
        return bracket(self.replace(updated_node), 3)

    def leave_Arg(self, original_node: Any, updated_node: Any) -> Any:
        """Drop the parentheses of what has replaced a call: here, as in assignments and results, it needs none."""
        old, new = original_node.value, updated_node.value
        new = drop_parentheses(new) if isinstance(old, cst.Call) and unparse(old.func) == self.name else new
        return replace_parts(updated_node, value=new)

    leave_Assign = leave_Return = leave_Arg  # noqa: N815 # libcst's names


class _Folder(TemplateFiller):
    """Rewriter that puts literals in place of variables, and decides what depends on literals alone."""

    def __init__(self, values: Mapping[str, cst.BaseExpression], known: Mapping[str, cst.BaseExpression]) -> None:
        """Make a folder; `known` are variables that stay, and whose values are known."""
        super().__init__(values, frozenset())
        self.literals = known

    def _compute(self, function: Callable[..., object], *operands: cst.BaseExpression) -> Any:
        """Return a condition of literals as a literal; None for other operands, and for what raises."""
        values = [self._read(o) for o in operands]
        try:
            return None if any(v is MISSING for v in values) else cst.Name(str(bool(function(*values))))
        except TypeError:
            return None

    def _read(self, node: cst.BaseExpression) -> Any:
        return read_literal(self.literals.get(node.value, node) if isinstance(node, cst.Name) else node)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Decide `isinstance`, an entry of a dictionary, and an attribute by its name."""
        match updated_node.func, [a.value for a in updated_node.args]:
            case cst.Name("isinstance"), [of, kinds]:
                names = [unparse(k) for k in list_nodes(kinds, cst.Name)]
                if all(n in _TYPES for n in names):
                    return self._compute(lambda v: isinstance(v, tuple(_TYPES[n] for n in names)), of) or updated_node
            case cst.Name("getattr"), [of, name] if isinstance(self._read(name), str):
                return cst.Attribute(bracket(of), cst.Name(self._read(name)))
            case cst.Attribute(cst.Dict() as entries, cst.Name("get")), [key, default]:
                return self._find_entry(entries, key, default) or updated_node
            case cst.Name(name), values if name.startswith("_"):  # its options decide, too; numbers keep their names
                found = [(v, self.literals.get(v.value, v) if isinstance(v, cst.Name) else v) for v in values]
                passed = [v if type(read_literal(new)) in (int, float, tuple) else new for v, new in found]
                args = [replace_parts(a, value=v) for a, v in zip(updated_node.args, passed, strict=True)]
                return replace_parts(updated_node, args=args)
        return replace_parts(updated_node, func=bracket(updated_node.func))

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.BaseExpression:
        """Find an entry of a dictionary."""
        match updated_node:
            case cst.Subscript(cst.Dict() as entries, [cst.SubscriptElement(cst.Index(key))]):
                return self._find_entry(entries, key) or updated_node
        return super().leave_Subscript(original_node, updated_node)

    def _find_entry(self, entries: cst.Dict, key: cst.BaseExpression, default: Any = None) -> Any:
        """Return the value of a key, if all keys are known and no value is computed."""
        wanted = self._read(key)
        found = {read_literal(e.key): e.value for e in entries.elements if isinstance(e, cst.DictElement)}
        known = wanted is not MISSING and MISSING not in found and len(found) == len(entries.elements)
        return found.get(wanted, default) if known and not list_nodes(entries, cst.Call) else None

    def leave_Comparison(self, original_node: cst.Comparison, updated_node: cst.Comparison) -> cst.BaseExpression:
        """Compare two literals."""
        first, *others = updated_node.comparisons
        compare = None if others else _COMPARISONS.get(type(first.operator))
        found = self._compute(compare, updated_node.left, first.comparator) if compare else None
        return found or super().leave_Comparison(original_node, updated_node)

    def leave_UnaryOperation(self, original_node: Any, updated_node: Any) -> cst.BaseExpression:
        """Negate a condition."""
        negated = isinstance(updated_node.operator, cst.Not)
        found = self._compute(operator.not_, updated_node.expression) if negated else None
        return found or super().leave_UnaryOperation(original_node, updated_node)

    def leave_BooleanOperation(self, original_node: Any, updated_node: Any) -> Any:
        """Decide by the left operand."""
        left = self._read(updated_node.left)
        if left is MISSING:
            return super().leave_BooleanOperation(original_node, updated_node)
        return updated_node.right if bool(left) is isinstance(updated_node.operator, cst.And) else updated_node.left

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> Any:
        """Decide by the condition."""
        test = self._read(updated_node.test)
        if test is MISSING:
            return super().leave_IfExp(original_node, updated_node)
        return updated_node.body if test else updated_node.orelse

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> Any:
        """Keep the branches that are taken, and nothing after a return."""
        made: list[Any] = []
        for line in self._list_taken(updated_node.body):
            made.append(line)
            if isinstance(find_small_statement(line), (cst.Return, cst.Raise)):
                break
        return replace_parts(updated_node, body=made or [cst.parse_statement("pass")])

    def _list_taken(self, lines: Iterable[Any]) -> Iterator[Any]:
        """Yield statements with the branches that are taken in the place of an `if` whose condition is known."""
        for line in lines:
            test = self._read(line.test) if isinstance(line, cst.If) else MISSING
            if test is MISSING:
                yield line
            elif (taken := line.body if test else line.orelse) is not None:
                taken = taken.body if isinstance(taken, cst.Else) else taken
                yield from self._list_taken([taken] if isinstance(taken, cst.If) else taken.body)


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


def _identify(value: cst.BaseExpression | None) -> str:
    """Return the text of an immutable literal; "" for anything else."""
    found = MISSING if value is None else read_literal(value)
    return "" if found is MISSING or isinstance(found, (list, set, dict)) else repr(found)


def _is_simple(value: cst.BaseExpression) -> bool:
    """Return whether an expression can be read several times, or not at all: a variable, its attribute, a literal."""
    while isinstance(value, cst.Attribute):
        value = value.value
    return isinstance(value, cst.Name) or bool(_identify(value))


def _bind_arguments(function: cst.FunctionDef, call: cst.Call) -> dict[str, cst.BaseExpression]:
    """Return the arguments of a call by parameter, with the defaults of others."""
    params = function.params.params
    places = zip(params, call.args, strict=False)
    given = {p.name.value: a.value for p, a in places if a.keyword is None}
    named = {a.keyword.value: a.value for a in call.args if a.keyword is not None}
    return {p.name.value: p.default for p in params if p.default is not None} | given | named


def _end_list(items: Iterable[Any]) -> list[Any]:
    """Return arguments, or parameters, without a comma after the last."""
    *others, last = [*items] or [None]
    return [*others, *([] if last is None else [last.with_changes(comma=cst.MaybeSentinel.DEFAULT)])]
