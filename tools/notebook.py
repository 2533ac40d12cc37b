"""Write examples/training_loop.ipynb: the guide "Move a training loop" as a notebook."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "guides" / "training-loop.md"
NOTEBOOK = ROOT / "examples" / "training_loop.ipynb"
INSTALL = "# %pip install .. optax safetensors"
_BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def make_notebook(page: str) -> str:
    """Return the text of a notebook with a page's Python blocks as cells of code, and its text between them."""
    cells = [_make_cell("code", INSTALL)]
    for i, part in enumerate(_BLOCK.split(page)):
        text = part.strip() if i % 2 else _point_to_docs(part.strip())
        if text:
            cells.append(_make_cell("code" if i % 2 else "markdown", text))
    cells.insert(0, cells.pop(1))  # the title comes first
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    for i, cell in enumerate(cells):
        cell["id"] = f"cell-{i}"
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def _make_cell(kind: str, text: str) -> dict[str, object]:
    cell: dict[str, object] = {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def _point_to_docs(text: str) -> str:
    """Return text of the page with links that lead from the notebook, and plain fences."""
    text = re.sub(r"\]\((?!\w+:|#)([^)]+)\)", r"](../docs/guides/\1)", text)
    return text.replace("```{ .python .no-run }", "```python")


if __name__ == "__main__":
    NOTEBOOK.write_text(make_notebook(PAGE.read_text("utf-8")), "utf-8")
