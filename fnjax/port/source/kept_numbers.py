"""Numbers that are saved as tensors, before anything else is looked at.

What: `torch.tensor(dim)` in save_for_backward, of an argument, a size or a row of them, with what backward unpacks of
it; and an argument that forward only saves, and of which backward passes on `dim.item()` alone.
Before: `ctx.save_for_backward(x, torch.tensor(dim))`, `x, dim = ctx.saved_tensors` and `g.unsqueeze(dim.item())`
After: `ctx.save_for_backward(x)` and `ctx.dim = dim`, `x, = ctx.saved_tensors` and `dim = ctx.dim`, `g.unsqueeze(dim)`
Safety: only where backward uses it as a number: in arithmetic, comparisons and calls, and with `.item()`; a row only
where backward takes it apart or makes a list of it.
Limits: classes that save or unpack in several places, and numbers with methods of tensors, stay as they are.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence

import libcst as cst

from fnjax.port.torch import list_dtype_names, unparse
from fnjax.port.tree.located import EarlyRewrite, Located, Positions, list_nodes

_SAVED = frozenset({"saved_tensors", "saved_variables"})


def _keep_as_attributes(statement: cst.CSTNode, positions: Positions) -> cst.CSTNode:
    """Return a statement of the top level with such numbers as attributes of ctx."""
    classes = list_nodes(statement, cst.ClassDef, but=(cst.SimpleStatementLine,))
    found = {n: kept for n in classes if (kept := _read_class(n, positions)) is not None}
    made = statement.visit(_ClassRewriter(positions, found)) if found else statement
    assert isinstance(made, cst.CSTNode)
    return made


KEPT_NUMBERS = EarlyRewrite(frozenset({cst.Attribute}), lambda node: node.attr.value in _SAVED, _keep_as_attributes)


def _read_class(node: cst.ClassDef, positions: Positions) -> _SavedRewriter | None:
    """Return what makes attributes of the numbers that a class saves."""
    statements, attributes = list_nodes(node, cst.SimpleStatementLine), list_nodes(node, cst.Attribute)
    saves = [s for s in statements if _read_saved(s) is not None]
    reads = [n for n in attributes if n.attr.value in _SAVED]
    unpacked = [s for s in statements if _read_unpacked(s)]
    if len(saves) != 1 or len(reads) != 1 or len(unpacked) != 1:
        return None
    given, names = _read_saved(saves[0]) or (), _read_unpacked(unpacked[0])
    forward, backward = (
        next((f for f in node.body.body if isinstance(f, cst.FunctionDef) and _stands_in(line, f)), None)
        for line in (saves[0], unpacked[0])
    )
    if len(given) != len(names) or forward is None or backward is None:
        return None
    pairs = list(zip(given, names, strict=True))
    kept = {name: text for value, name in pairs if (text := _find_kept(forward, backward, value, name))}
    owners = {unparse(saves[0].body[0].value.func.value), unparse(reads[0].value)}  # type: ignore[attr-defined] # a call
    taken = {n.attr.value for n in attributes if unparse(n.value) in owners}
    if not kept or taken & kept.keys():
        return None
    unread = {unparse(v) for v, name in pairs if name in kept and isinstance(v, cst.Name) and kept[name] != unparse(v)}
    return _SavedRewriter(positions, saves[0], unpacked[0], names, kept, unread)


class _ClassRewriter(Located):
    def __init__(self, positions: Positions, found: Mapping[cst.ClassDef, _SavedRewriter]) -> None:
        super().__init__(positions)
        self.found = found

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> bool:
        """No class stands in a line."""
        return False

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        if original_node not in self.found:
            return updated_node
        made = original_node.visit(self.found[original_node])
        assert isinstance(made, cst.ClassDef)
        return made


class _SavedRewriter(Located):
    def __init__(
        self,
        positions: Positions,
        save: cst.SimpleStatementLine,
        unpack: cst.SimpleStatementLine,
        names: Sequence[str],
        kept: dict[str, str],
        unread: set[str],
    ) -> None:
        super().__init__(positions)
        self.save, self.unpack, self.names, self.kept = save, unpack, names, kept
        self.unread = unread  # the variables of tensors that nothing saves any more

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        body: list[cst.BaseStatement] = []
        for old, new in zip(original_node.body, updated_node.body, strict=True):
            if self._says_nothing(unparse(new).strip()):
                continue
            lines = self._rewrite_line(old) if isinstance(old, cst.SimpleStatementLine) else []
            parsed = [cst.parse_statement(text) for text in lines]
            body += [parsed[0].with_changes(leading_lines=new.leading_lines), *parsed[1:]] if parsed else [new]  # type: ignore[attr-defined] # of a line
        same = len(body) == len(updated_node.body) and all(map(operator.is_, body, updated_node.body))
        return updated_node if same else updated_node.with_changes(body=body)

    def _says_nothing(self, text: str) -> bool:
        target, _, value = text.partition(" = ")
        return target in self.unread or (target == value and target in self.kept)

    def _rewrite_line(self, node: cst.SimpleStatementLine) -> list[str]:
        """Return what takes the place of the statements that save and unpack."""
        rest = [n for n in self.names if n not in self.kept]
        if node is self.save:
            call = node.body[0].value  # type: ignore[attr-defined] # a call of save_for_backward
            saved = ", ".join(unparse(a.value) for a, n in zip(call.args, self.names, strict=True) if n in rest)
            lines = [f"{unparse(call.func)}({saved})"] if rest else []
            return [*lines, *(f"{unparse(call.func.value)}.{name} = {number}" for name, number in self.kept.items())]
        if node is self.unpack:
            value = node.body[0].value  # type: ignore[attr-defined] # ctx.saved_tensors
            lines = [f"{', '.join(rest)}{',' * (len(rest) == 1)} = {unparse(value)}"] if rest else []
            return [*lines, *(f"{name} = {unparse(value.value)}.{name}" for name in self.kept)]
        return []

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        func = updated_node.func
        if not isinstance(func, cst.Attribute) or func.attr.value not in {"item", "tolist"}:
            return updated_node
        owner = unparse(func.value.value if isinstance(func.value, cst.Subscript) else func.value)
        if owner not in self.kept:
            return updated_node
        as_list = func.attr.value == "tolist" and not self.kept[owner].startswith("[")
        return cst.Call(cst.Name("list"), [cst.Arg(func.value)]) if as_list else func.value


def _read_saved(node: cst.SimpleStatementLine) -> tuple[cst.BaseExpression, ...] | None:
    """Return what a statement gives to save_for_backward."""
    small = node.body[0]
    call = small.value if isinstance(small, cst.Expr) and len(node.body) == 1 else None
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return None
    plain = all(a.keyword is None and not a.star for a in call.args)
    return tuple(a.value for a in call.args) if call.func.attr.value == "save_for_backward" and plain else None


def _read_unpacked(node: cst.SimpleStatementLine) -> list[str]:
    """Return the variables to which a statement gives ctx.saved_tensors."""
    small = node.body[0]
    if not isinstance(small, cst.Assign) or len(small.targets) > 1 or len(node.body) > 1:
        return []
    target, value = small.targets[0].target, small.value
    if not isinstance(target, cst.Tuple) or not isinstance(value, cst.Attribute) or value.attr.value not in _SAVED:
        return []
    plain = all(isinstance(e, cst.Element) and isinstance(e.value, cst.Name) for e in target.elements)
    return [unparse(e.value) for e in target.elements] if plain else []


_SIZE = r"\w+(?:\.shape\[-?\d+\]|\.size\(-?\d+\))?|len\(\w+\)"
_SHAPE = r"\w+\.(?:shape|size\(\))(?:\[-?\d*:-?\d*\])?"
_ENTRY = rf"(?:{_SIZE}|\w+\[-?\d+\]|\w+ is(?: not)? None|\w+ [!=]= \d+)"
_ROW = rf"\[{_ENTRY}(?:, {_ENTRY})*\]|\({_ENTRY}(?:, {_ENTRY})+\)"
_WHOLE = list_dtype_names("int64", "int32")


def _find_numbers(forward: cst.FunctionDef, node: cst.BaseExpression) -> str:
    """Return the name, the size, or the row of them, of which `torch.tensor(name)` makes a tensor."""
    if isinstance(node, cst.Name):  # only made to be saved
        made = [n.value for n in list_nodes(forward, cst.Assign) if unparse(n.targets[0].target) == node.value]
        node = made[0] if len(made) == 1 and len(_list_uses(forward, node.value)) == 2 else node
    if not isinstance(node, cst.Call) or not re.fullmatch(r"\w+\.(as_)?tensor", unparse(node.func)):
        return ""
    first, *options = node.args
    text = re.sub(r",\s+", ", ", unparse(first.value))
    given = {o.keyword.value: unparse(o.value) for o in options if o.keyword is not None}
    whole = bool(re.fullmatch(_SHAPE, text)) and given.get("dtype") in _WHOLE
    plain = first.keyword is None and len(given) == len(options) and given.keys() <= {"device", "dtype"}
    known = plain and ("dtype" not in given or whole)
    return text if known and re.fullmatch(f"{_SIZE}|{_SHAPE}|{_ROW}", text) else ""


def _stands_in(node: cst.CSTNode, function: cst.FunctionDef) -> bool:
    return any(n is node for n in list_nodes(function))


def _find_kept(forward: cst.FunctionDef, backward: cst.FunctionDef, value: cst.BaseExpression, name: str) -> str:
    """Return what ctx keeps for a number that forward saves and backward unpacks under a name; empty for a tensor."""
    if _only_passes_on(forward, backward, value, name):
        return unparse(value)
    text = _find_numbers(forward, value)
    row = re.fullmatch(f"{_SHAPE}|{_ROW}", text)
    if text and not row and _is_plain(backward, name):
        return text
    if row and text.count(",") == 0 and text.startswith("[") and _always_calls(backward, name, "item"):
        return text[1:-1]
    return text if text and (_always_calls(backward, name, "tolist") or _only_takes_entries(backward, name)) else ""


def _only_passes_on(forward: cst.FunctionDef, backward: cst.FunctionDef, value: cst.BaseExpression, name: str) -> bool:
    """Return whether forward only saves an argument, and backward only passes `name.item()` on."""
    passed = [n for n in list_nodes(backward, cst.Arg) if unparse(n.value) == f"{name}.item()"]
    given = isinstance(value, cst.Name) and len(_list_uses(forward, value.value)) == 2
    return given and len(passed) == len(_list_uses(backward, name)) - 1 > 0


def _is_plain(function: cst.FunctionDef, name: str) -> bool:
    """Return whether a variable has no methods called but `.item()`, nor entries taken."""
    owners = (n for n in list_nodes(function, cst.Attribute, cst.Subscript) if unparse(n.value) == name)
    return all(isinstance(n, cst.Attribute) and n.attr.value == "item" for n in owners)


def _always_calls(function: cst.FunctionDef, name: str, method: str) -> bool:
    """Return whether `name = name.method()` is the first use of a variable, or `name.method()` all of its uses."""
    lines = [unparse(s).strip() for s in function.body.body if _list_uses(s, name)]
    called = [n for n in list_nodes(function, cst.Call) if unparse(n) == f"{name}.{method}()"]
    return len(called) == len(_list_uses(function, name)) - 1 or f"{name} = {name}.{method}()" in lines[1:2]


def _only_takes_entries(function: cst.FunctionDef, name: str) -> bool:
    """Return whether all that is read of a variable are its entries."""
    disjoint = set()
    for n in list_nodes(function):
        if isinstance(n, cst.Call) and unparse(n.func) in {"list", "tuple", "torch.Size", "len"}:
            disjoint |= {a.value for a in n.args}
        starred = isinstance(n, cst.StarredElement) or (isinstance(n, cst.Arg) and n.star == "*")
        listed = isinstance(n, cst.Attribute) and n.attr.value == "tolist"
        unpacked = isinstance(n, cst.Assign) and isinstance(n.targets[0].target, cst.Tuple)
        if starred or listed or unpacked or isinstance(n, cst.Subscript):
            disjoint.add(n.value)  # type: ignore[attr-defined] # each of them has one
        if isinstance(n, cst.CompFor) and isinstance(n.target, cst.Name):
            disjoint |= {n.iter} if f"int({n.target.value})" in unparse(function) else set()
    return len([n for n in _list_uses(function, name) if n not in disjoint]) == 1  # where it is unpacked


def _list_uses(node: cst.CSTNode, name: str) -> list[cst.CSTNode]:
    """Return where a variable stands: not attributes and keywords of that name."""
    others = {n.attr for n in list_nodes(node, cst.Attribute)} | {n.keyword for n in list_nodes(node, cst.Arg)}
    return [n for n in list_nodes(node, cst.Name) if n.value == name and n not in others]
