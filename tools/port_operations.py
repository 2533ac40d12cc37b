"""Write docs/torch-operations.md, and a page for each module: PyTorch's operations that the porter's table has.

python tools/port_operations.py
"""

from __future__ import annotations

import pathlib
from collections import defaultdict

from fnjax._torch_ops.record import Absent, Operation
from fnjax._torch_ops.registry import TABLE

DOCS = pathlib.Path(__file__).parent.parent / "docs"
SPACES = {  # a name belongs to the first that fits; its page, and the title of that
    "torch.nn.functional.": ("functional", "torch.nn.functional"),
    "torch.linalg.": ("linalg", "torch.linalg"),
    "torch.special.": ("special", "torch.special"),
    "torch.fft.": ("fft", "torch.fft"),
    "torch.distributions.": ("distributions", "torch.distributions"),
    "torch.Tensor.": ("tensor", "Methods and attributes of tensors"),
    "torch.": ("torch", "torch"),
}
HEAD = """\
# PyTorch's operations

What `fnjax port` translates, written from its table by `python tools/port_operations.py`, on a page for each module.
The right column is the JAX expression, with PyTorch's parameter names; a name with an underscore is a small function
that the port brings along, and *written out* stands for what depends on the arguments. In-place forms (`x.add_(y)`) are
known where their operation is, and `out=` too.
"""


def pages() -> dict[pathlib.Path, str]:
    """Return the texts of the pages."""
    rows: dict[str, list[str]] = defaultdict(list)
    absent: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, known in sorted(TABLE.items()):
        if isinstance(known, Absent):
            absent[known.reason, known.remedy].append(f"`{name}`{'*' if known.runs else ''}")
        elif not (isinstance(known, Operation) and known.inplace):
            space = next((s for s in SPACES if name.startswith(s)), None)
            if space is not None:
                rows[space].append(f"| `{name.removeprefix(space)}` | {_forms(known)} |")
    found, links = {}, []
    for space, (file, title) in SPACES.items():
        table = ["| PyTorch | JAX |", "| --- | --- |", *rows[space]]
        head = f"# {title}\n\nOf [PyTorch's operations](../torch-operations.md), which says how to read the table.\n"
        found[DOCS / "torch-operations" / f"{file}.md"] = "\n".join([head, *table, ""])
        links.append(f"- [{title}](torch-operations/{file}.md): {len(rows[space])}")
    rest = "## What has no translation\n\nEach is a finding with its reason; fnjax.torch has those with a star.\n"
    reasons = [f"- {', '.join(names)}: {why}; {fix}." for (why, fix), names in sorted(absent.items())]
    found[DOCS / "torch-operations.md"] = "\n".join([HEAD, *links, "", rest, *reasons, ""])
    return found


def _forms(operation: Operation) -> str:
    forms = [o.template if isinstance(o.template, str) else "" for o in operation.overloads]
    shown = [f"`{form}`".replace("|", "\\|") if form else "*written out*" for form in dict.fromkeys(forms)]
    return ", ".join(shown)


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
