"""Blocks of PyTorch source in a module of JAX source, as `fnjax port` writes them."""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import linecache
import re
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from fnjax._torch_ops.syntax.trees import list_written
from fnjax.torch.interop.arrays import torch_view
from fnjax.torch.loading.load import find_root
from fnjax.torch.loading.roots import Root
from fnjax.torch.loading.statements import run

_BLOCKS: dict[str, types.ModuleType] = {}  # by the name of the module that holds the block
_TORCH = re.compile(r"^(import|from) torch\b", re.MULTILINE)


class _BlockRoot(Root):
    """Folder of modules with blocks. Python imports other ports in it, and a block sees them as PyTorch."""

    kind = "block"

    def find_spec(self, name: str, path: Sequence[str]) -> ModuleSpec | None:
        """Return the specification of a module; functions of a module of JAX source take tensors there."""
        found = super().find_spec(name, path)
        if found is not None and found.origin and not _TORCH.search(Path(found.origin).read_text(encoding="utf-8")):
            found.loader = _ViewLoader(self)
        return found


class _ViewLoader(importlib.abc.Loader):
    def __init__(self, root: Root) -> None:
        self.root = root

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _View(importlib.import_module(self.root.public_name(spec.name)))

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: Python has executed it, or is about to."""


class _View(types.ModuleType):
    """A module of JAX source as the PyTorch source of a block sees it."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__(module.__name__)
        vars(self)["_fnjax_module"] = module

    def __getattr__(self, name: str) -> Any:
        module = vars(self)["_fnjax_module"]
        block = _BLOCKS.get(module.__name__)
        own = {n: v for n, v in vars(block).items() if not n.startswith("__")} if block else {}
        if name == "__all__":
            return getattr(module, name, [n for n in {*vars(module), *own} if not n.startswith("_")])
        if name.startswith("__"):
            raise AttributeError(name)
        return own[name] if name in own else torch_view(getattr(module, name))


def execute_block(space: dict[str, Any]) -> bool:
    """Execute the body of the calling `if` as `load` executes a file, and return False, so that Python skips it.

    `torch` in the block is fnjax.torch. The block has its own global names; those that the module does not define are
    added to the module. A fnjax.Function of the module takes tensors in the block.

    Args:
        space: the module's `globals()`.

    Raises:
        RuntimeError: the module's source is not available.

    Examples:
        The last lines of a port::

            if torch.execute_block(globals()):
                import torch

                class Net(torch.nn.Module): ...
    """
    frame = sys._getframe(1)
    file = frame.f_code.co_filename
    tree = ast.parse("".join(linecache.getlines(file, space)) or "pass", file)
    found = [s for s in tree.body if isinstance(s, ast.If) and s.test.lineno <= frame.f_lineno <= s.body[0].lineno]
    if not found:
        raise RuntimeError(
            f"fnjax.torch.execute_block needs the source of {space.get('__name__')}, and {file!r} has none"
        )
    name = str(space.get("__name__"))
    depth = name.count(".") + (Path(file).stem == "__init__")
    folder = Path(file).resolve().parents[depth]
    root = find_root(folder, _BlockRoot)
    root.asked.add(name.partition(".")[0])
    block = _BLOCKS[name] = types.ModuleType(f"{root.name}.{name}")
    package = block.__name__ if Path(file).stem == "__init__" else block.__name__.rpartition(".")[0]

    def find_name(key: str) -> Any:  # of JAX source in the module, for blocks that import it from there
        if key.startswith("__") or key not in space:
            raise AttributeError(f"module {name!r} has no attribute {key!r}")
        return torch_view(space[key])

    vars(block).update(__file__=file, __package__=package, __getattr__=find_name)
    sys.modules[block.__name__] = block
    future = [s for s in tree.body if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
    body = ast.Module([*future, *found[0].body], [])
    bound = list_written(body.body)
    read = {n.id for n in ast.walk(body) if isinstance(n, ast.Name)}
    vars(block).update({n: torch_view(space[n]) for n in read - bound if n in space})
    run(body, vars(block), root)
    space.update({n: vars(block)[n] for n in bound if n not in space and n in vars(block)})
    return False
