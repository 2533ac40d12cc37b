"""The page on porting and what writes it."""

import re
from pathlib import Path

import fnjax.port
from tools import port_operations
from tools.port_page import PAGE, page


def test_the_page_is_what_its_script_writes():
    """docs/guides/porting.md shows the porter's present output and the rules' present docstrings."""
    text = PAGE.read_text()
    assert text == page(text), "run tools/port_page.py"


def test_the_page_tells_of_every_finding():
    """Each code that the porter reports stands in the table of findings."""
    sources = [p.read_text() for p in Path(fnjax.port.__file__).parent.rglob("*.py")]
    reported = re.compile(r'(?:note|report|Stop)\(\s*[\w.\[\]]+,\s*"([a-z0-9-]+)"|Finding\([^"]*"([a-z0-9-]+)"')
    codes = {a or b for text in sources for a, b in reported.findall(text)}
    assert len(codes) > 15
    assert [c for c in sorted(codes) if f"`{c}`" not in PAGE.read_text()] == []


def test_the_page_of_operations_is_current():
    """docs/torch-operations.md shows the porter's present table."""
    assert port_operations.PAGE.read_text() == port_operations.page(), "run tools/port_operations.py"
    assert "| `sum` | `jnp.sum(input, axis=dim, keepdims=keepdim, dtype=dtype)` |" in port_operations.page()
