"""Write the generated parts of the porting guide, examples and the figures of a run, and the page of rewrites.

    python tools/port_page.py [CORPUS OTHERS]

CORPUS is what `port_corpus.py --numbers` printed, OTHERS the same with `--others`; without them the page keeps the
figures that it has. The rest of the page is written by hand, in the page itself.
"""

from __future__ import annotations

import ast
import pathlib
import re
import sys

from fnjax.port import port_source

ROOT = pathlib.Path(__file__).parent.parent
PAGE = ROOT / "docs" / "guides" / "porting.md"
REWRITES = PAGE.with_name("porting-rewrites.md")
ROOMS = ["functions", "control", "statements", "values", "memory", "calls", "libraries", "devices"]  # in reading order
SOURCE = ["backward_calls"]  # before the rules
PARTS = ("What", "Before", "After", "Limits")  # of a docstring; Safety is for who reads the rule


def catalogued(room: str) -> list[pathlib.Path]:
    """Return the files of a package whose docstrings describe a rewrite."""
    port = ROOT / "fnjax" / "port"
    if room == "source":
        return [port / "source" / f"{name}.py" for name in SOURCE]
    return [p for p in sorted((port / "rewrite" / room).glob("*.py")) if "\nWhat: " in p.read_text()]


EXAMPLES = {
    "Masks and views": '''\
import torch


class SoftClip(torch.autograd.Function):
    """Entries above the limit grow by their logarithm only; the first row is left out."""

    @staticmethod
    def forward(ctx, x, limit: float):
        y = x.clone()
        large = x > limit
        excess = x[large] - limit  # of the large ones
        y[large] = limit + torch.log1p(excess)
        first = y[0]
        first.zero_()
        ctx.save_for_backward(x, large)
        ctx.limit = limit
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, large = ctx.saved_tensors
        grad = grad_output.clone()
        grad[large] /= 1 + x[large] - ctx.limit
        grad[0] = 0
        return grad, None
''',
}


def examples() -> str:
    """Return each file before and after."""
    parts = []
    for title, text in EXAMPLES.items():
        ported = port_source(text)
        assert not ported.findings, ported.findings
        for heading, code in ((f"{title}, in PyTorch", text), ("in JAX", ported.code)):
            parts.append(f"{heading}:\n\n``` {{ .python .no-run }}\n{code.strip()}\n```")
    return "\n\n".join(parts)


def catalogue() -> str:
    """Return the list of rewrites, from the docstrings of their files."""
    parts = []
    for room in ROOMS:
        parts.append(f"## {room.capitalize()}")
        parts.append("\n".join(describe(path) for path in catalogued(room)))
    return "\n\n".join(parts)


def describe(path: pathlib.Path) -> str:
    """Return one entry of the list."""
    docstring = ast.get_docstring(ast.parse(path.read_text()), clean=True) or ""
    title, _, rest = docstring.partition("\n")
    found = dict(re.findall(r"^(\w+): (.*?)(?=\n\w+: |\Z)", rest.strip(), re.DOTALL | re.MULTILINE))
    said = [f"{name.lower()}: {' '.join(found[name].split())}" for name in PARTS if name in found]
    return "\n".join([f"- **{title.rstrip('.')}**", *(f"    - {line}" for line in said)])


def fill(text: str, parts: dict[str, str]) -> str:
    """Return a page with its generated parts, by the names of their places."""
    for name, made in parts.items():
        opening = f"<!-- {name}: written by tools/port_page.py -->"
        before, _, rest = text.partition(opening)
        assert rest, f"the page has no place for {name}"
        text = f"{before}{opening}\n\n{made}\n\n{rest[rest.index('<!-- end -->') :]}"
    return text


def read_table(path: str) -> str:
    """Return the table of packages that a run has printed."""
    printed = pathlib.Path(path).read_text()
    return printed[printed.index("| package |") :].partition("\n\n")[0].strip()


def main() -> None:
    figures = {}
    if len(sys.argv) > 1:
        corpus, others = sys.argv[1:]
        figures = {"corpus": read_table(corpus), "others": read_table(others)}
    PAGE.write_text(fill(PAGE.read_text(), {"examples": examples(), **figures}))
    REWRITES.write_text(fill(REWRITES.read_text(), {"rewrites": catalogue()}))


if __name__ == "__main__":
    main()
