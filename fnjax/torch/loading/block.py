"""Blocks of PyTorch source in a module of JAX source, as `fnjax port` writes them."""

from __future__ import annotations

import ast
import importlib
import linecache
import re
import sys
import types
from pathlib import Path
from typing import Any

from fnjax.torch._between import torch_view
from fnjax.torch.loading.load import Loaded, Root, list_names

_BLOCKS: dict[str, Loaded] = {}  # by the name of the module that holds the block
_TORCH = re.compile(r"^(import|from) torch\b", re.MULTILINE)


class _Package(Root):
    """Folder of a module with a block. Python imports other ports in it, and the block sees them as PyTorch."""

    def load(self, name: str) -> types.ModuleType:
        """Return a module; of JAX source one whose functions take tensors."""
        file = self.find_file(name)
        if file is None or file.is_dir() or _TORCH.search(file.read_text(encoding="utf-8")):
            return super().load(name)
        return _View(importlib.import_module(name))  # a new one each time: the module may not be executed yet


class _View(types.ModuleType):
    """A module of JAX source as the PyTorch source of a block sees it."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__(module.__name__)
        block = _BLOCKS.get(module.__name__)
        own = {n: v for n, v in vars(block).items() if not n.startswith("__")} if block else {}
        vars(self).update({n: torch_view(v) for n, v in vars(module).items() if not n.startswith("__")} | own)


def execute_block(space: dict[str, Any]) -> bool:
    """Execute the body of the calling `if` as `load` executes a file, and return False, so that Python skips it.

    `torch` in the block is fnjax.torch. The block has names of its own; those that the module does not define itself
    become the module's. A fnjax.Function of the module that the block reads takes tensors there.

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
    block = _BLOCKS[name] = Loaded(_Package(folder), name, Path(file))
    sys.modules[block.__name__] = block
    future = [s for s in tree.body if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
    body = ast.Module([*future, *found[0].body], [])
    bound = {n for s in body.body for n in list_names(s)}
    read = {n.id for n in ast.walk(body) if isinstance(n, ast.Name)}
    vars(block).update({n: torch_view(space[n]) for n in read - bound if n in space})
    block.run(body)
    space.update({n: vars(block)[n] for n in bound if n not in space and n in vars(block)})
    return False
