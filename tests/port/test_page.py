"""The page on porting and what writes it."""

from benchmarks.port_page import PAGE, page


def test_the_page_is_what_its_script_writes():
    """docs/guides/porting.md shows the porter's present output and the rules' present docstrings."""
    text = PAGE.read_text()
    figures = text[text.index("| package |") : text.index("## Findings")]
    assert text == page(figures), "run benchmarks/port_page.py"
