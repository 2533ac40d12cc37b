"""The pages on porting and the script that writes them."""

import re
from pathlib import Path

import pytest

import fnjax.port
from tools import port_operations
from tools.port_page import PAGE, REWRITES, catalogue, examples, fill


@pytest.mark.parametrize(
    ("page", "parts"),
    [(PAGE, lambda: {"examples": examples()}), (REWRITES, lambda: {"rewrites": catalogue()})],
    ids=["guide", "rewrites"],
)
def test_the_pages_are_what_their_script_writes(page, parts):
    """The guide shows the porter's present output, and the page of rewrites the rules' present docstrings."""
    text = page.read_text()
    assert text == fill(text, parts()), "run tools/port_page.py"


def test_the_page_tells_of_every_finding():
    """Each code that the porter reports is in the guide's table of findings."""
    sources = [p.read_text() for p in Path(fnjax.port.__file__).parent.rglob("*.py")]
    reported = re.compile(r'(?:note|report|Stop)\(\s*[\w.\[\]]+,\s*"([a-z0-9-]+)"|Finding\([^"]*"([a-z0-9-]+)"')
    codes = {a or b for text in sources for a, b in reported.findall(text)}
    assert len(codes) > 15
    assert [c for c in sorted(codes) if f"`{c}`" not in PAGE.read_text()] == []


def test_the_page_of_operations_is_current():
    """docs/torch-operations.md and the pages below are the porter's present table."""
    pages = port_operations.pages()
    assert {path: path.read_text() for path in pages} == pages, "run tools/port_operations.py"
    assert "| `sum` | `jnp.sum(input, axis=dim, keepdims=keepdim, dtype=dtype)` |" in "".join(pages.values())
