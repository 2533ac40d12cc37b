"""Write docs/torch-operations.md: the operations of PyTorch that the porter knows, from its table.

python tools/port_operations.py
"""

from __future__ import annotations

import pathlib
from collections import defaultdict

from fnjax._torch_ops.record import Absent, Operation
from fnjax._torch_ops.registry import TABLE

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "torch-operations.md"
SPACES = {  # in the order of the page; a name belongs to the first that fits
    "torch.nn.functional.": "torch.nn.functional",
    "torch.linalg.": "torch.linalg",
    "torch.special.": "torch.special",
    "torch.fft.": "torch.fft",
    "torch.distributions.": "torch.distributions",
    "torch.Tensor.": "Methods and attributes of tensors",
    "torch.": "torch",
}
HEAD = """\
# PyTorch's operations

What `fnjax port` translates, written from its table by `python tools/port_operations.py`. Where JAX has one
expression for an operation it is shown, over the names of PyTorch's parameters; a name with an underscore is a small
function that the port brings along, and *written out* stands for what depends on the arguments. In-place forms
(`x.add_(y)`) are known where their operation is, and `out=` too.
"""


def page() -> str:
    """Return the whole page."""
    rows: dict[str, list[str]] = defaultdict(list)
    absent: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, known in sorted(TABLE.items()):
        if isinstance(known, Absent):
            absent[known.reason, known.remedy].append(f"`{name}`{'*' if known.runs else ''}")
        elif not (isinstance(known, Operation) and known.inplace):
            space = next((s for s in SPACES if name.startswith(s)), None)
            if space is not None:
                rows[space].append(f"| `{name.removeprefix(space)}` | {_forms(known)} |")
    parts = [HEAD]
    for space, title in SPACES.items():
        parts.append("\n".join([f"## {title}\n", "| PyTorch | JAX |", "| --- | --- |", *rows[space], ""]))
    parts.append(
        "## What has no translation\n\nEach is a finding with its reason; fnjax.torch has those with a star.\n"
    )
    parts += [f"- {', '.join(names)}: {why}; {fix}." for (why, fix), names in sorted(absent.items())]
    return "\n".join(parts) + "\n"


def _forms(operation: Operation) -> str:
    forms = [o.template if isinstance(o.template, str) else "" for o in operation.overloads]
    shown = [f"`{form}`".replace("|", "\\|") if form else "*written out*" for form in dict.fromkeys(forms)]
    return ", ".join(shown)


if __name__ == "__main__":
    PAGE.write_text(page())
