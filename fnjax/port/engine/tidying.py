"""Functions of a port without what translation leaves over: copies, arrays that nobody reads, attributes of ctx.

`y = x.clone()` has become `y = x`. Here `y = f(y)` after it becomes `y = f(x)`, and the copy goes. So does an array
that is only made to be overwritten or for its shape, and an attribute of ctx that no method reads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import libcst as cst

from fnjax.port.source.naming import iter_bound, iter_targets
from fnjax.port.torch import bracket, fill, unparse
from fnjax.port.torch.expressions import drop_own_cast, find_names
from fnjax.port.torch.new_arrays import NewArray
from fnjax.port.tree.located import Rewriter, find_small_statement, list_nodes, replace_parts

_SIMPLE = (cst.Assign, cst.AugAssign, cst.Return, cst.Expr, cst.Assert, cst.Raise)
_PURE = frozenset({"len", "tuple", "list", "int", "float", "bool", "type"})


def tidy(statement: Any, origin: cst.CSTNode, inherited: Collection[str]) -> Any:
    """Return a translated class or function without what nobody needs; assignments of the source itself stay.

    Args:
        statement: a statement of the top level.
        origin: the statement of the source.
        inherited: the classes that others of the source derive from.
    """
    if not isinstance(statement, (cst.ClassDef, cst.FunctionDef)):
        return statement
    return _Tidier({id(n) for n in list_nodes(origin, cst.Assign)}, inherited).rewrite(statement)


class _Tidier(Rewriter):
    """Rewriter of the blocks of functions, from the inside out."""

    def __init__(self, own: set[int], inherited: Collection[str]) -> None:
        self.own, self.inherited = own, inherited
        self.made: dict[int, cst.Assign] = {}  # assignments that the source does not have
        self.shared: list[set[str]] = []  # of each function around, the variables that other code may read or bind

    def rewrite(self, node: cst.CSTNode) -> Any:
        """Return the node, tidied."""
        if not isinstance(node, cst.FunctionDef):
            return super().rewrite(node)
        self.shared.append({n for inner in list_nodes(node.body, *_SHARING) for n in find_names(inner)})
        made = super().rewrite(node)
        made = replace_parts(made, body=self._tidy(made.body, last=True))
        self.shared.pop()
        return made

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:
        """Record an assignment that translation has made."""
        if id(original_node) not in self.own:
            self.made[id(updated_node)] = updated_node
        return updated_node

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> Any:
        """Tidy a block after which its variables may be read."""
        return self._tidy(updated_node, last=False) if self.shared else updated_node

    def leave_Try(self, original_node: cst.Try, updated_node: cst.Try) -> cst.Try:
        """Keep a block that an exception may leave at any statement."""
        return replace_parts(updated_node, body=original_node.body)

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        """Drop the attributes of ctx that no method reads."""
        if [unparse(b.value) for b in updated_node.bases] != ["fnjax.Function"]:
            return updated_node
        unread = set[str]() if updated_node.name.value in self.inherited else _list_unread_attributes(updated_node)
        return _AttributeDropper(unread).rewrite(updated_node) if unread else updated_node

    def _tidy(self, block: Any, *, last: bool) -> Any:
        body, i = [*block.body] if isinstance(block, cst.IndentedBlock) else [], 0
        count = len(body)
        while i < len(body):
            rest = self._leave_out(body[i], body[i + 1 :], last=last)
            if rest is None:
                i += 1
            else:
                body[i:] = _move_comments(body[i], rest)
        return replace_parts(block, body=body) if 0 < len(body) < count else block

    def _leave_out(self, line: Any, rest: Sequence[Any], *, last: bool) -> list[Any] | None:
        """Return the statements after an assignment as they are without it; None if it has to stay."""
        match find_small_statement(line):
            case cst.Assign([cst.AssignTarget(cst.Name(name))], value) as found if id(found) in self.made:
                new = _read_new_array(value)
            case _:
                return None
        if last and isinstance(value, cst.SimpleString) and not any(name in find_names(s) for s in rest):
            return [*rest]  # the name of a device
        reads = find_names(value) - {"None", "True", "False"}
        if (
            not reads
            or (new is None and not isinstance(value, cst.Name))
            or (reads | {name}) & self.shared[-1]
            or name in reads
        ):
            return None
        made: list[Any] = []
        for i, statement in enumerate(rest):
            small = find_small_statement(statement)
            inner = {n for node in list_nodes(statement, *_INNER) for n in iter_bound(node)}
            bound = set(iter_bound(statement))
            if inner & (reads | {name}) or (name in bound and not isinstance(small, _SIMPLE)):
                return None
            if not last and list_nodes(statement, cst.Break, cst.Continue):
                return None
            changed = _replace_reads(statement, name, value, new) if name in find_names(statement) else statement
            if changed is None:
                return None
            if id(small) in self.made:
                again: Any = find_small_statement(changed)
                self.made[id(again)] = again
            made.append(changed)
            if name in bound:
                return [*made, *rest[i + 1 :]]
            if bound & reads:
                return None
        return made if last else None


_SHARING = (cst.FunctionDef, cst.ClassDef, cst.Global, cst.Nonlocal, cst.Del)
_INNER = (cst.Param, cst.CompFor, cst.NamedExpr)


def _read_new_array(value: cst.BaseExpression) -> NewArray | None:
    """Return the new array that an expression makes: `jnp.empty_like(x)`."""
    if not isinstance(value, cst.Call) or not value.args or any(a.keyword or a.star for a in value.args[:-1]):
        return None
    called = {unparse(c.func) for c in list_nodes(value, cst.Call)} - _PURE
    sized = isinstance(value.args[0].value, (cst.Tuple, cst.List))
    pure = all(c.startswith("jnp.") for c in called) and not value.args[0].keyword
    return NewArray.read_new_array(value, value, lambda _: "tuple" if sized else "") if pure else None


def _replace_reads(statement: Any, name: str, value: cst.BaseExpression, new: NewArray | None) -> Any:
    """Return a statement that reads a value in place of a variable; None if that does not do."""
    passed = (a for c in list_nodes(statement, cst.Call) if unparse(c.func).startswith("_") for a in c.args)
    at_once = {id(a.value) for a in passed}  # support functions call them before the statement ends
    if any(name in find_names(n) and id(n) not in at_once for n in list_nodes(statement, cst.Lambda)):
        return None
    small = find_small_statement(statement)
    if isinstance(small, cst.AugAssign) and unparse(small.target) == name:
        operation = fill(f"A {unparse(small.operator).strip().removesuffix('=')} B", A=small.target, B=small.value)
        small = cst.Assign([cst.AssignTarget(small.target)], bracket(operation, 0))
        statement = statement.with_changes(body=[small])
    made = _Replacer(name, value, new).rewrite(statement)
    rest: Any = find_small_statement(made)
    return None if name in find_names(rest.value if name in iter_bound(made) else made) else made


class _Replacer(Rewriter):
    """Rewriter that puts a value in place of a variable, or of the attributes of a new array."""

    def __init__(self, name: str, value: cst.BaseExpression, new: NewArray | None) -> None:
        self.name, self.value, self.new = name, value, new

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        """Replace a copy."""
        return self.value if self.new is None and original_node.value == self.name else updated_node

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        """Replace an attribute that is known; its own name is no variable."""
        of, attr = original_node.value, original_node.attr
        if self.new is not None and isinstance(of, cst.Name) and of.value == self.name:
            return self.new.find_attribute(attr.value) or updated_node
        return replace_parts(updated_node, attr=attr)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Fill a new array at once, `x.at[:].set(v)`; `y.astype(x.dtype)` is y where x was an array like it."""
        match original_node:
            case cst.Call(
                cst.Attribute(cst.Subscript(cst.Attribute(cst.Name(self.name), cst.Name("at")), at), cst.Name("set")),
                [cst.Arg(filling)],
            ) if self.new is not None and all(unparse(e.slice) in {":", "..."} for e in at):
                return self.new.fill_with("full", filling) or updated_node
        return drop_own_cast(updated_node)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        """Keep a keyword."""
        return replace_parts(updated_node, keyword=original_node.keyword)

    def leave_AssignTarget(self, original_node: cst.AssignTarget, updated_node: cst.AssignTarget) -> cst.AssignTarget:
        """Keep what takes a new value."""
        return original_node if self.name in iter_targets(original_node.target) else updated_node


def _move_comments(line: Any, rest: list[Any]) -> list[Any]:
    """Return statements with the comments and empty lines of the one before them, which goes."""
    lines, comment = [*line.leading_lines], line.trailing_whitespace.comment
    lines += [cst.EmptyLine(comment=comment)] if comment else []
    if not lines or not rest:
        return rest
    following = rest[0].leading_lines
    commented = any(e.comment for e in lines) or not following
    return [rest[0].with_changes(leading_lines=[*lines, *following] if commented else following), *rest[1:]]


def _list_unread_attributes(cls: cst.ClassDef) -> set[str]:
    """Return the attributes that methods of a class give ctx, and none reads."""
    written, read = set[str](), set[str]()
    for method in list_nodes(cls, cst.FunctionDef):
        names = [p.name.value for p in method.params.params]
        ctx = next((n for n in names if n not in {"cls", "self"}), "")
        stored = {id(a) for t in list_nodes(method, cst.AssignTarget) for a in _list_parts(t.target)}
        attributes = [a for a in list_nodes(method, cst.Attribute) if unparse(a.value) == ctx]
        for a in attributes:
            (written if id(a) in stored else read).add(a.attr.value)
        if sum(n.value == ctx for n in list_nodes(method.body, cst.Name)) > len(attributes):
            return set()  # ctx is passed on
    return written - read


def _list_parts(target: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the targets of an assignment one by one."""
    return [e.value for e in target.elements] if isinstance(target, (cst.Tuple, cst.List)) else [target]


class _AttributeDropper(Rewriter):
    """Rewriter that drops what attributes of ctx are given, where the value does nothing else."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> Any:
        """Drop assignments, unless nothing else is in the block."""
        body: list[Any] = []
        for line in reversed(updated_node.body):
            small = self._drop(find_small_statement(line))
            if small == ():
                body = _move_comments(line, body)
            else:
                body.insert(0, line if small is None else line.with_changes(body=[small]))
        return replace_parts(updated_node, body=body) if body else updated_node

    def _drop(self, node: Any) -> Any:
        """Return what is left of an assignment: () for nothing, None for all of it."""
        match node:
            case cst.Assign([cst.AssignTarget(target)], value):
                pairs = [*zip(_list_parts(target), _list_parts(value), strict=False)]
            case _:
                return None
        kept: list[Any] = [(t, v) for t, v in pairs if not self._is_dropped(t, v)]
        if len(_list_parts(target)) != len(_list_parts(value)) or len(kept) == len(pairs):
            return None
        if not kept:
            return ()
        targets, values = ([cst.Element(p) for p in side] for side in zip(*kept, strict=True))
        if len(kept) == 1:
            return node.with_changes(targets=[cst.AssignTarget(kept[0][0])], value=kept[0][1])
        return node.with_changes(
            targets=[cst.AssignTarget(cst.Tuple(targets, (), ()))], value=cst.Tuple(values, (), ())
        )

    def _is_dropped(self, target: cst.BaseExpression, value: cst.BaseExpression) -> bool:
        called = {unparse(c.func) for c in list_nodes(value, cst.Call)} - _PURE
        return (
            isinstance(target, cst.Attribute)
            and target.attr.value in self.names
            and all(c.startswith("jnp.") for c in called)
            and not list_nodes(value, cst.NamedExpr, cst.Await, cst.Yield)
        )
