"""The documentation is true: its code runs, its links resolve, its tables are verified."""

import ast
import contextlib
import doctest
import importlib.util
import io
import itertools
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

import fnjax
import fnjax.__main__
import fnjax.graph
import fnjax.port
from tools.notebook import NOTEBOOK, PAGE, make_notebook

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LONG = {
    "devices.md",
    "calling.md",
    "class.md",
    "derivatives.md",
    "gradcheck.md",
    "training.md",
    "triton-gradients.md",
}  # half of the time of all pages
ERRORS = [page.read_text() for page in PAGES if page.relative_to(ROOT).as_posix().startswith("docs/errors")]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    """A fenced block of a page.

    Attributes:
        words: what its info string says, `{ .python .no-run }` being `["python", "no-run"]`.
        code: its lines, without the indentation of the fence.
        line: the line of the page after the opening fence, counted from 0.
    """

    words: list[str]
    code: str
    line: int


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    fence = re.compile(
        r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^`\n]*)\n(?P<code>.*?)^(?P=indent)(?P=ticks) *$",
        re.MULTILINE | re.DOTALL,
    )
    for match in fence.finditer(text):
        words = [word.lstrip(".") for word in match["info"].strip(" {}").split()]
        yield Block(words, textwrap.dedent(match["code"]), text[: match.start("code")].count("\n"))


def prose(text: str) -> str:
    """A page without its code, in which brackets mean nothing."""
    for block in re.findall(r"^ *```.*?^ *```", text, re.MULTILINE | re.DOTALL):
        text = text.replace(block, "")
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(text: str) -> set[str]:
    """The anchors of the headings that name one: `## Heading {#anchor}`."""
    return set(re.findall(r"^#+ .*\{#([\w-]+)\}\s*$", text, re.MULTILINE))


def slugs(text: str) -> set[str]:
    """The anchors of all headings of a page."""
    headings = re.findall(
        r"^#+ +(.*?)\s*$", re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    plain = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return anchors(text) | {re.sub(r"[-\s]+", "-", heading) for heading in plain}


def run_python(block: Block, name: str, namespace: dict[str, object]) -> None:
    """Run a block; what it prints must be what the comments behind its prints say."""
    # The empty lines give every line the number that it has in the page.
    code = compile("\n" * block.line + block.code, name, "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    expected = re.findall(r"^ *print\(.*\)  # (.*)$", block.code, re.MULTILINE)
    if expected:
        want = "\n".join(expected) + "\n"
        assert doctest.OutputChecker().check_output(want, printed.getvalue(), FLAGS), (
            f"{name}, line {block.line}: expected\n{want}printed\n{printed.getvalue()}"
        )


def run_session(block: Block, name: str, namespace: dict[str, object]) -> None:
    """Run a `>>>` session as doctest does, in the namespace of its page."""
    test = doctest.DocTestParser().get_doctest(block.code, {}, name, name, block.line)
    test.globs = namespace  # the test has made a copy
    failures = io.StringIO()
    result = doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(test, out=failures.write, clear_globs=False)
    assert result.failed == 0, failures.getvalue()
    assert result.attempted > 0, f"{name}, line {block.line}: a session without >>>"


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if page.name in LONG else []) for page in PAGES],
    ids=lambda page: page.name,
)
def test_code_of_the_page_runs(page):
    """All code of a page runs in order and gives what the page shows, with JAX's defaults of promotion."""
    name = str(page.relative_to(ROOT))
    namespace: dict[str, object] = {"__name__": "__main__"}
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        for block in blocks(page.read_text()):
            # What an included file holds is run by the tests of that file.
            if "no-run" in block.words or "--8<--" in block.code:
                continue
            if block.words[:1] == ["python"]:
                run_python(block, name, namespace)
            elif block.words[:1] == ["pycon"]:
                run_session(block, name, namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_of_the_page_says_what_it_is(page):
    """No block of a page goes unrun for want of a language: each says one, and Python is shown as Python."""
    for block in blocks(page.read_text()):
        assert block.words, f"{page.name}, line {block.line}: a block without a language"
        if block.words[0] in {"text", "sh"}:
            assert ">>> " not in block.code, f"{page.name}, line {block.line}: a session that is not run"


def errors_of_the_library() -> set[str]:
    """The anchors that messages point to: in `error(kind, head, anchor)`, `self._error(head, anchor)`, and in hints."""
    found = set()
    for file in (ROOT / "fnjax").rglob("*.py"):
        text = file.read_text()
        found |= set(re.findall(r"fnjax explain ([\w-]+)", text))
        for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
            called = ast.unparse(call.func)
            place = {"error": 2, "_Text": 2}.get(called)
            if place is not None and len(call.args) > place:
                anchor = call.args[place]
                if isinstance(anchor, ast.Constant):  # else a helper that passes its own argument on
                    found.add(anchor.value)
    return found


def test_each_error_has_its_heading():
    """Every anchor that a message of fnjax points to is a heading of the pages of errors, and the other way round."""
    assert anchors("".join(ERRORS)) == errors_of_the_library()


def test_each_error_is_shown():
    """The example under each heading of the pages of errors raises something that the page shows."""
    sections = re.split(r"^(?=#+ )", "".join(ERRORS), flags=re.MULTILINE)
    for section in sections:
        if anchors(section):
            assert "Traceback (most recent call last):" in section, section.partition("\n")[0]


def test_the_version_is_one():
    """CITATION.cff and the newest release of the changelog have the version of the package, and the same date."""
    cited = dict(
        re.findall(r'^(version|date-released): "?([^"\n]+)', (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    )
    release = re.search(r"^## (\d\S*) - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert release
    assert release.groups() == (cited["version"], cited["date-released"])
    assert cited["version"] == fnjax.__version__


def test_the_notebook_is_what_its_script_writes():
    """The guide on training loops, whose code runs above, is a notebook, too."""
    assert NOTEBOOK.read_text("utf-8") == make_notebook(PAGE.read_text("utf-8")), "run tools/notebook.py"


def test_every_page_is_listed():
    """README, the first page and the navigation have a link to each page; or a page with it that they link to."""
    for name in ("README.md", "docs/index.md", "mkdocs.yml"):
        listing = (ROOT / "docs" / "torch-operations.md").read_text() + (ROOT / "docs" / "errors.md").read_text()
        text = (ROOT / name).read_text() + listing
        for page in PAGES[1:]:
            path = page.relative_to(ROOT / "docs").as_posix()
            assert path in {"index.md", "changelog.md"} or path in text, f"{name} does not name {path}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_the_page_lead_somewhere(page):
    """Each relative link names a file that is there, and a heading that is in it."""
    text = page.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor and file.suffix == ".md":
            assert anchor in slugs(file.read_text()), f"{page.name} links to {target}"
    for included in re.findall(r'--8<-- "([^"]+)"', text):
        assert (ROOT / included).exists(), f"{page.name} includes {included}"


def test_the_ports_of_the_pages_are_what_the_porter_writes():
    """The file of PyTorch on the page is ported whole, to the block that follows it; so is the README's first file."""
    pytest.importorskip("libcst")
    codes = [b.code for b in blocks((ROOT / "docs/guides/porting.md").read_text()) if "no-run" in b.words]
    pairs = [(code, port) for code, port in itertools.pairwise(codes) if "import torch" in code and "fnjax" not in code]
    assert len(pairs) == 1
    first, *_ = (
        b.code.split("'''")[1].lstrip() for b in blocks((ROOT / "README.md").read_text()) if "write_text" in b.code
    )
    (written,) = (b.code for b in blocks((ROOT / "README.md").read_text()) if "no-run" in b.words)
    pairs.append((first, written))
    for code, port in pairs:
        ported = fnjax.port.port_source(code)
        assert ported.code == port
        assert [c.status for c in ported.classes] == ["ported"]


def test_the_command_prints_what_the_page_shows(capsys, monkeypatch):
    """Each command of the page on backward kernels is followed by what it prints, and the faulty one fails."""
    monkeypatch.chdir(ROOT)
    found = list(blocks((ROOT / "docs/guides/triton-gradients.md").read_text()))
    shown = [(a.code, b.code) for a, b in itertools.pairwise(found) if (a.words, b.words) == (["sh"], ["text"])]
    statuses = []
    for command, text in shown:
        program, *arguments = shlex.split(command)
        assert program == "fnjax"
        statuses.append(fnjax.__main__.main(arguments))
        said = capsys.readouterr().out
        assert _rounded(said) == _rounded(text)
    assert statuses == [1, 0]


def _rounded(text):
    """Words and verdicts as they are, numbers to three digits; rows that agree differ by what is left of rounding."""
    rows = [row.partition("  ")[0] if row.endswith(" ok") else row for row in text.splitlines()]
    return [re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda m: f"{float(m[0]):.3g}", re.sub(r" +", " ", row)) for row in rows]


@pytest.mark.slow
def test_the_comparison_of_the_design_page_is_what_the_script_prints(capsys):
    """The table of derivatives of custom_vjp and hijax is that of the script, and fnjax is right in all of it."""
    runpy.run_path(str(ROOT / "benchmarks" / "custom_rules.py"), run_name="__main__")
    _, *printed = capsys.readouterr().out.splitlines()
    (shown,) = [b.code for b in blocks((ROOT / "docs/design.md").read_text()) if "custom_rules.py" in b.code]
    _, _, *shown = shown.splitlines()
    if jax.config.values.get("jax_custom_vjp3", False):  # which gets the interleaved pullbacks right
        shown[-1] = shown[-1].replace("WRONG", "right")
    assert [line.split() for line in printed] == [line.split() for line in shown]
    assert all(line.endswith("right") for line in printed[1:])


@pytest.mark.parametrize("module", [fnjax, fnjax.errors, fnjax.graph, fnjax.port], ids=lambda module: module.__name__)
def test_every_public_name_is_in_the_api(module):
    """docs/api.md has each public name of fnjax, fnjax.errors, fnjax.graph and fnjax.port."""
    entries = set(re.findall(r"^::: (\S+)", (ROOT / "docs/api.md").read_text(), re.MULTILINE))
    shown = {entry.rpartition(".")[2] for entry in entries if entry.startswith("fnjax.")}
    names = getattr(module, "__all__", None) or {
        name for name in dir(module) if not name.startswith("_") and not isinstance(getattr(module, name), ModuleType)
    }
    assert len(names) > 3
    assert set(names) - shown == set()


@pytest.mark.parametrize("name", [name for name in fnjax.__all__ if isinstance(getattr(fnjax, name), type)])
def test_examples_of_public_classes_run(name):
    """Examples in the docstring of a class run, where its `__module__` keeps pytest from finding them."""
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=FLAGS)
    for example in finder.find(getattr(fnjax, name), name, module=False, globs={}):
        assert runner.run(example).failed == 0


# ---------------------------------------------------------------------------------------------------------------------
# The table of transforms on the first page


class Cube(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 3 * x**2


class Product(fnjax.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        return grad_output * w, grad_output * x


cube = Cube.apply
TWO = jnp.asarray(2.0)


def shard_mapped():
    """The gradient for an argument that all devices share, next to one that is spread over them."""
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    P = jax.sharding.PartitionSpec
    f = jax.shard_map(Product.apply, mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i"))
    return jax.grad(lambda w: f(jnp.ones(1), w).sum())(TWO)


# Each form that the table names: how it is tried with w ↦ w³ at 2, and what comes out.
TRANSFORMS = {
    "f(x)": (lambda: cube(TWO), 8),
    "jax.jit": (lambda: jax.jit(cube)(TWO), 8),
    "jax.grad": (lambda: jax.grad(cube)(TWO), 12),
    "jax.value_and_grad": (lambda: jax.value_and_grad(cube)(TWO)[1], 12),
    "jax.vjp": (lambda: jax.vjp(cube, TWO)[1](TWO)[0], 24),
    "jax.jacrev": (lambda: jax.jacrev(cube)(TWO), 12),
    "jax.grad(jax.grad(f))": (lambda: jax.grad(jax.grad(cube))(TWO), 12),
    "jax.jacrev(jax.grad(f))": (lambda: jax.jacrev(jax.grad(cube))(TWO), 12),
    "jax.vmap": (lambda: jax.vmap(jax.grad(cube))(TWO[None])[0], 12),
    "jax.lax.scan": (
        lambda: jax.grad(lambda x: jax.lax.scan(lambda c, _: (cube(c), None), x, None, length=2)[0])(TWO),
        9 * 2**8,
    ),
    "jax.lax.cond": (lambda: jax.grad(lambda x: jax.lax.cond(x > 0, cube, lambda x: x, x))(TWO), 12),
    "jax.lax.fori_loop": (
        lambda: jax.grad(lambda x: jax.lax.fori_loop(0, 2, lambda _, x: cube(x), x))(TWO),
        9 * 2**8,
    ),
    "jax.lax.while_loop": (lambda: jax.lax.while_loop(lambda x: x < 100, cube, TWO), 2**9),
    "jax.checkpoint": (lambda: jax.grad(jax.checkpoint(cube))(TWO), 12),
    "jax.jvp(jax.grad(f))": (lambda: jax.jvp(jax.grad(cube), (TWO,), (TWO,))[1], 24),
    "jax.jvp": (lambda: jax.jvp(cube, (TWO,), (TWO,))[1], 24),
    "jax.jacfwd": (lambda: jax.jacfwd(cube)(TWO), 12),
    "jax.hessian": (lambda: jax.hessian(cube)(TWO), 12),
    "jax.shard_map": (shard_mapped, 1),
}


@pytest.mark.parametrize("form", TRANSFORMS)
def test_transform_does_what_the_table_says(form):
    """Each transform in the first page's table returns the right number."""
    run, expected = TRANSFORMS[form]
    assert run() == expected


def test_the_table_of_transforms_is_the_one_that_is_tried():
    """The first page's table names just these transforms, and says of each that it works."""
    table = (ROOT / "docs/index.md").read_text().partition("| transform |")[2].partition("\n\n")[0]
    rows = {row for cell in re.findall(r"^\| (.*?) \|", table, re.MULTILINE) for row in re.findall(r"`([^`]+)`", cell)}
    assert rows == set(TRANSFORMS)
    assert {line.split("|")[2].strip() for line in table.splitlines()[2:]} == {"yes"}


@pytest.mark.parametrize(
    ("text", "endings"),
    [
        ("x.masked_fill_(m, 0)", ["fill_", "masked_fill_"]),
        ("GradientError", ["Error"]),
        ("a call of jax.lax.scan.", ["lax.scan", "scan"]),
        ("MyReLU", ["LU", "ReLU"]),
        ("JAX 0.10.2, e.g.", ["g"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_search_finds_names_by_their_parts(text, endings):
    """The search finds what an entry begins with, and so the hook gives it all that a name ends on."""
    assert load_hook().endings(text) == endings


def load_hook():
    """The hook of MkDocs for the search, as a module."""
    spec = importlib.util.spec_from_file_location("search_names", ROOT / "docs" / "search_names.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    return hook


def test_tags_of_the_search_are_of_places_that_are_there(tmp_path):
    """Each tag is of a heading; the hook writes it, and leaves the galleries' code out."""
    hook = load_hook()
    for place in hook.TAGS:
        page, _, anchor = place.partition("#")
        assert not anchor or anchor in slugs((ROOT / "docs" / page).with_suffix(".md").read_text()), place
    path = tmp_path / "search" / "search_index.json"
    path.parent.mkdir()
    texts = {"errors/calling.html#save-for-backward": "<pre>x</pre>", "gallery.html#one": "<pre>y</pre> z"}
    entries = [{"location": place, "title": "", "text": text} for place, text in texts.items()]
    path.write_text(json.dumps({"config": {"fields": {}}, "docs": entries}))
    hook.on_post_build({"site_dir": tmp_path})
    first, second = json.loads(path.read_text())["docs"]
    assert (first["text"], first["tags"]) == ("<pre>x</pre>", ["save", "number", "ctx"])
    assert (second["text"], second["tags"]) == (" z", [])


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("node") and importlib.util.find_spec("material")), reason="needs node and MkDocs")
def test_search_finds_the_page_that_answers(tmp_path):
    """The built index, asked by the theme's own search, has the answers among the first two pages."""
    build = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True)
    answers = {
        "float() in jit": "errors/calling.html#traced-value",
        "save a number": "errors/calling.html#save-for-backward",
        "optimizer": "guides/training.html",
        "transpose": "coming-from-pytorch.html#same-name-other-meaning",
        "requires_grad": "coming-from-pytorch.html#training-code",
        "load_state_dict": "guides/modules.html#load-build-fill",
        **dict.fromkeys(
            ["frozen layer", "freeze", "DataLoader", "cuda", "weight decay"], "guides/training-loop.html#line-by-line"
        ),
        "in place": "coming-from-pytorch.html#in-place",
        "batch norm": "guides/modules.html#a-function-of-its-parameters",
    }
    asked = subprocess.run(
        ["node", str(ROOT / "tests" / "search.js"), str(tmp_path), *answers], capture_output=True, text=True, check=True
    )
    found = json.loads(asked.stdout)
    assert {query: answer for query, answer in answers.items() if answer not in found[query][:2]} == {}
