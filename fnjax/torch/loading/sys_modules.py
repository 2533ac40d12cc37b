"""`sys.modules` of loaded files: it has torch, Triton and the root's own modules by the names that the files use."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterator, MutableMapping
from importlib.machinery import PathFinder

from fnjax.torch.loading.roots import LIBRARIES, Root

NAME = "__fnjax_modules__"  # of `Modules.of` in loaded files


class Modules(MutableMapping[str, types.ModuleType]):
    """The interpreter's modules, and those of a root. A module that a file adds belongs to the root."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._deleted = set[str]()  # the interpreter's names of modules that files deleted, and may enter anew

    def of(self, value: types.ModuleType) -> object:
        """Return `value.modules`."""
        return self if value is sys else value.modules

    def _private_name(self, name: str) -> str:
        private, top = f"{self._root.name}.{name}", name.partition(".")[0]
        for known in (private, name):
            if known in sys.modules or known in self._deleted:
                return known
        if top in sys.stdlib_module_names:
            return name
        return private if self._root.holds(top) or PathFinder.find_spec(top) is None else name

    def __getitem__(self, name: str) -> types.ModuleType:
        if name.partition(".")[0] not in LIBRARIES:
            return sys.modules[self._private_name(name)]
        found = self._root.find_library(name)
        if found is None:
            raise KeyError(name)
        return found

    def __setitem__(self, name: str, value: types.ModuleType) -> None:
        sys.modules[self._private_name(name)] = value

    def __delitem__(self, name: str) -> None:
        found = self._private_name(name)
        del sys.modules[found]
        self._deleted.add(found)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(map(self._root.public_name, list(sys.modules))))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def copy(self) -> dict[str, types.ModuleType]:
        """Return the interpreter's modules, as `clear` and `update` restore them."""
        return sys.modules.copy()

    def clear(self) -> None:
        """Hide the interpreter's modules."""
        self._deleted.update(sys.modules)
        sys.modules.clear()


def rewrite(tree: ast.Module) -> None:
    """Replace `sys.modules` in a tree by a call that returns the root's."""
    imports = [a for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names if a.name == "sys"]
    if imports:
        _Rewriter({a.asname or a.name for a in imports}).visit(tree)


class _Rewriter(ast.NodeTransformer):
    def __init__(self, names: set[str]) -> None:
        self.names = names

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        is_sys = isinstance(node.value, ast.Name) and node.value.id in self.names
        if not is_sys or node.attr != "modules" or not isinstance(node.ctx, ast.Load):
            return node
        call = ast.Call(ast.Name(NAME, ast.Load()), [node.value], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))
