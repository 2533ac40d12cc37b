"""`fnjax port` from the command line."""

import io
import json
import os
import random
import re
import shutil
import subprocess
import sys

import pytest

import fnjax
from fnjax.__main__ import main
from fnjax.port import port_source
from fnjax.port.engine import folder as folder_module
from tests.port import classes_masks, classes_memory

WHOLE = """\
import torch


class Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.exp()
"""
PARTIAL = WHOLE.replace("Whole", "Partial").replace("x.exp()", "torch.ops.mine.kernel(x)")


@pytest.fixture
def whole(tmp_path):
    path = tmp_path / "whole.py"
    path.write_text(WHOLE)
    return path


def test_prints_the_port(whole, capsys):
    """A class that is ported whole is printed, with status 0 and no word on stderr."""
    assert main(["port", str(whole)]) == 0
    out, err = capsys.readouterr()
    assert "class Whole(fnjax.Function)" in out
    assert "torch" not in out
    assert not err


def test_findings_on_stderr(tmp_path, capsys):
    """Reasons for what stays as it is, or is left to port by hand, are on stderr with their place; status 1."""
    path = tmp_path / "partial.py"
    path.write_text(PARTIAL)
    report = tmp_path / "report.json"
    for options, status in ([], "as_is"), (["--strict"], "partial"):
        assert main(["port", str(path), "--report", str(report), *options]) == 1
        out, err = capsys.readouterr()
        assert f"{path}:7:" in err
        assert (f"{path}: 0 classes in JAX; 1 class as it is: Partial\n" in err) == (status == "as_is")
        assert ("raise NotImplementedError" in out) == (status == "partial")
        (cls,) = json.loads(report.read_text())["classes"]
        assert (cls["name"], cls["status"]) == ("Partial", status)
    assert set(cls["findings"][0]) == {"line", "col", "code", "severity", "message"}


@pytest.mark.parametrize(
    ("text", "word"),
    [("def f(:", "no Python"), ("x = 1", "no torch.autograd.Function"), (None, "cannot read")],
    ids=["no Python", "no Function", "no file"],
)
def test_unusable_input(text, word, tmp_path, capsys):
    """Input that cannot be used gives one line and status 2."""
    path = tmp_path / "input.py"
    if text is not None:
        path.write_text(text)
    assert main(["port", str(path)]) == 2
    err = capsys.readouterr().err
    assert word in err
    assert err.count("\n") == 1


def test_a_port_is_not_ported(tmp_path, capsys):
    """A file of fnjax has nothing to port."""
    path = tmp_path / "layers.py"
    path.write_text(
        "import fnjax\n\n\nclass A(fnjax.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x\n"
    )
    assert main(["port", str(path)]) == 2
    assert "is JAX source already: there is nothing to port" in capsys.readouterr().err


def test_never_over_an_input(whole, capsys):
    """The output cannot be the source itself."""
    assert main(["port", str(whole), "-o", str(whole)]) == 2
    assert "does not write over its input" in capsys.readouterr().err
    assert whole.read_text() == WHOLE


@pytest.mark.parametrize("more", [[], ["--diff"]])
def test_no_report_over_an_input(more, whole, capsys):
    """Nor can the report be the source, with or without an output."""
    assert main(["port", str(whole), "--report", str(whole), *more]) == 2
    assert "is a source" in capsys.readouterr().err
    assert whole.read_text() == WHOLE


def test_links_that_lead_nowhere(whole, tmp_path, capsys):
    """In a folder, a link to itself, one to nothing and one to the folder are no reason to stop."""
    (tmp_path / "itself.py").symlink_to("itself.py")
    (tmp_path / "nothing.py").symlink_to("missing.py")
    (tmp_path / "folder").symlink_to(".")
    assert main(["port", str(tmp_path), "-o", str(tmp_path / "out")]) == 1
    err = capsys.readouterr().err.splitlines()
    assert [line.partition("cannot read ")[2].partition(": ")[0] for line in err] == [
        repr(str(tmp_path / name)) for name in ("itself.py", "nothing.py")
    ]
    assert [p.name for p in (tmp_path / "out").rglob("*")] == ["whole.py"]


def test_progress_leaves_its_line(whole, tmp_path, capsys, monkeypatch):
    """On a terminal files are counted in one line, which is empty again before anything else is said."""
    (tmp_path / "partial.py").write_text(PARTIAL)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert main(["port", str(tmp_path), "-o", str(tmp_path / "out")]) == 1
    shown, _, said = capsys.readouterr().err.rpartition("\r\x1b[K")
    assert "[####################] 2 of 2 files" in shown
    assert said.startswith(f"{tmp_path / 'partial.py'}:7:")


def test_interrupted(whole, tmp_path, capsys, monkeypatch):
    """Ctrl-C ends the command with a word and the shell's status; nothing is written."""

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("fnjax.port.engine.folder.port_files", interrupt)
    assert main(["port", str(whole), "-o", str(tmp_path / "out.py")]) == 130
    assert capsys.readouterr().err == "fnjax: interrupted\n"
    assert not (tmp_path / "out.py").exists()


@pytest.mark.parametrize("options", [["", "-o", "out.py"], ["{}", "-o", ""], ["{}", "--report", "none/such.json"]])
def test_names_that_are_none(options, whole, tmp_path, capsys, monkeypatch):
    """Empty names and folders that are not there are refused, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    assert main(["port", *(o.format(whole) for o in options)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["whole.py"]


def test_what_is_written_to_stays_what_it_is(whole, tmp_path):
    """A link is followed, a file keeps its mode, and what is no file is written to as it is."""
    old, link, pipe = (tmp_path / name for name in ("old.py", "link.py", "pipe"))
    old.touch(mode=0o640)
    link.symlink_to(old)
    os.mkfifo(pipe)
    assert main(["port", str(whole), "-o", str(link)]) == 0
    assert link.is_symlink()
    assert "jnp.exp(x)" in old.read_text()
    assert old.stat().st_mode & 0o777 == 0o640
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
        assert main(["port", str(whole), "-o", str(pipe)]) == 0
        assert "jnp.exp(x)" in reader.communicate()[0]
    assert pipe.is_fifo()


def test_messages_name_what_there_is(whole, tmp_path, capsys):
    """An unknown class is told with those that there are, a syntax error with Python's words."""
    assert main(["port", str(whole), "--class", "Other"]) == 2
    assert "it has Whole" in capsys.readouterr().err
    whole.write_text(whole.read_text() + "\n\nclass Net(torch.nn.Module):\n    pass\n")
    assert main(["port", str(whole), "--class", "Net"]) == 2
    assert "has no Function class 'Net', which is a torch.nn.Module; it has Whole" in capsys.readouterr().err
    (tmp_path / "bad.py").write_text("x = 1\ndef f(:\n")
    assert main(["port", str(tmp_path / "bad.py")]) == 2
    assert "(line 2: invalid syntax)" in capsys.readouterr().err


def test_standard_input(monkeypatch, capsys):
    """`-` reads standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(WHOLE.encode())))
    assert main(["port", "-"]) == 0
    assert "jnp.exp(x)" in capsys.readouterr().out


def test_folders(tmp_path):
    """A folder is ported file by file into a folder; files without a Function are passed over."""
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "a.py").write_text(WHOLE)
    (tmp_path / "in" / "b.py").write_text("x = 1\n")
    assert main(["port", str(tmp_path / "in"), "-o", str(tmp_path / "out")]) == 0
    assert [p.name for p in (tmp_path / "out").rglob("*.py")] == ["a.py"]


def test_several_sources_keep_apart(tmp_path, capsys, monkeypatch):
    """No port is written over another, a folder of output inside a source is none, and no folder is called x.py."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.py").write_text(WHOLE)
    assert main(["port", "a", "b", "-o", "out"]) == 2
    assert "would both be written to 'out/x.py'" in capsys.readouterr().err
    assert main(["port", "a", "b", "-o", "out.py"]) == 2
    assert "'out.py' names a file, and there are several sources; -o needs a folder" in capsys.readouterr().err
    for _ in range(2):
        assert main(["port", "a", "-o", "a/jax"]) == 0
    assert sorted(str(p) for p in (tmp_path / "a").rglob("*.py")) == [
        str(tmp_path / "a" / p) for p in ("jax/x.py", "x.py")
    ]


def test_several_files(whole, tmp_path, capsys):
    """Of several files those without a Function are named and left out; each class is looked for in all."""
    none, partial = tmp_path / "none.py", tmp_path / "partial.py"
    none.write_text("x = 1\n")
    partial.write_text(PARTIAL)
    files = [str(whole), str(none), str(partial)]
    assert main(["port", *files[:2]]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("# Port by fnjax ")
    assert err.count("\n") == 1
    assert "none.py has no torch.autograd.Function class" in err
    assert main(["port", *files, "--class", "Whole", "--class", "Partial", "--report", "-"]) == 1
    out, err = capsys.readouterr()
    assert [(c["file"], c["name"]) for c in json.loads(out)["classes"]] == [(files[0], "Whole"), (files[2], "Partial")]
    assert main(["port", *files, "--class", "Whole", "--class", "Other"]) == 2
    assert "has a Function class 'Other'" in capsys.readouterr().err


def test_an_edited_port_stays(whole, tmp_path, capsys):
    """A port that nobody has edited is replaced; one that was, and any other file, with --force only; --check."""
    out = tmp_path / "out.py"
    call = ["port", str(whole), "-o", str(out)]
    assert main([*call, "--check"]) == 1
    assert f"{out}, the port of {whole}, does not exist: run fnjax port without --check" in capsys.readouterr().err
    assert not out.exists()
    assert main(call) == main(call) == main([*call, "--check"]) == 0
    first, _, rest = out.read_text().partition("\n")
    assert re.fullmatch(r"# Port by fnjax \S+ of whole.py \(source [0-9a-f]{12}, port [0-9a-f]{12}\)", first)
    assert rest == port_source(WHOLE).code
    out.write_bytes(out.read_bytes().replace(b"\n", b"\r\n"))
    assert main(call) == 0
    for text, why in (out.read_text() + "# mine\n", "has been edited"), ("x = 1\n", "is not a port"):
        out.write_text(text)
        for options in [], ["--diff"]:
            assert main([*call, *options]) == 2
            assert why in capsys.readouterr().err
        assert main([*call, "--check"]) == 1
        assert re.search(f"out.py {why}.*: run fnjax port with --force", capsys.readouterr().err)
        assert out.read_text() == text
        assert main([*call, "--force"]) == 0
        assert out.read_text() == f"{first}\n{rest}"
    whole.write_text(WHOLE.replace("exp", "sin"))
    assert main([*call, "--check"]) == 1
    assert f"{out} is not the port of {whole} as that is now" in capsys.readouterr().err


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a Function, the file of its helper, and a file that nothing needs; and its ports."""
    source = WHOLE.replace("import torch\n", "import torch\nfrom helper import twice\n", 1)
    texts = {"whole.py": source.replace("x.exp()", "twice(x.exp())"), "helper.py": "def twice(x):\n    return 2 * x\n"}
    (tmp_path / "in").mkdir()
    for name, text in {**texts, "other.py": "x = 1\n"}.items():
        (tmp_path / "in" / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(["port", "in", "-o", "out"]) == 0
    return tmp_path


def check(monkeypatch, *options):
    """Return the status of --check, and whether it has translated anything."""
    translated = []
    real = folder_module.port_files
    monkeypatch.setattr(folder_module, "port_files", lambda *a, **k: translated.append(1) or real(*a, **k))
    return main(["port", "in", "-o", "out", "--check", *options]), bool(translated)


CHANGES = {
    "nothing": (None, 0, False),
    "the source": (lambda f: append(f / "in" / "whole.py", "y = 1\n"), 0, True),
    "what its port has": (lambda f: replace_text(f / "in" / "whole.py", "exp", "sin"), 1, True),
    "a file that it imports from": (lambda f: replace_text(f / "in" / "helper.py", "2", "3"), 1, True),
    "another file": (lambda f: append(f / "in" / "other.py", "y = 1\n"), 0, True),
    "a new file": (lambda f: append(f / "in" / "more.py", WHOLE), 1, True),
    "a port": (lambda f: append(f / "out" / "whole.py", "y = 1\n"), 1, True),
    "a port is gone": (lambda f: (f / "out" / "helper.py").unlink(), 1, True),
    "another port in its place": (lambda f: shutil.copy(f / "out" / "helper.py", f / "out" / "whole.py"), 1, True),
    "the hash of the sources": (lambda f: replace_text(f / "out" / "whole.py", r"(?<=source )\w+", "0" * 12), 0, True),
}


def append(path, text):
    with path.open("a") as file:
        file.write(text)


def replace_text(path, pattern, new):
    path.write_text(re.sub(pattern, new, path.read_text()))


@pytest.mark.parametrize("change", CHANGES)
def test_check_translates_what_has_changed(change, folder, monkeypatch):
    """A check translates nothing where sources, options, version and ports are as they were; else it makes the port."""
    how, status, translated = CHANGES[change]
    if how is not None:
        how(folder)
    assert check(monkeypatch) == (status, translated)


def test_check_of_other_options_or_versions_translates(folder, monkeypatch):
    """Another option may make another port, and so may another version of fnjax."""
    assert check(monkeypatch, "--strict") == (0, True)
    assert check(monkeypatch, "--class", "Whole") == (0, True)
    monkeypatch.setattr(fnjax, "__version__", "9.9")
    assert check(monkeypatch) == (0, True)


def test_notebooks(tmp_path, capsys):
    """The cells of a notebook are ported into a file; magics are comments, and findings name the cell."""
    cells = [
        {"cell_type": "markdown", "source": ["# Text"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "!pip list\n", "import torch\n", "torch.exp?"]},
        {"cell_type": "code", "source": "%%bash\nls"},
        {"cell_type": "code", "source": "%%time\n" + PARTIAL.partition("\n\n\n")[2]},
        {"cell_type": "code", "source": WHOLE.partition("\n\n\n")[2] + "if True:\n    %time 1\n    x = (7\n    % 2)"},
    ]
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}))
    (tmp_path / "out").mkdir()
    assert main(["port", str(path), "-o", str(tmp_path / "out"), "--class", "Whole"]) == 0
    assert "class Whole(fnjax.Function)" in (tmp_path / "out" / "a.py").read_text()
    assert main(["port", str(path), "--strict"]) == 1
    assert f"{path}:cell 4:5:16 supply" in capsys.readouterr().err
    assert main(["port", str(path), "-o", str(tmp_path / "b.ipynb")]) == 2
    assert "a port is a Python file, not a notebook" in capsys.readouterr().err
    path.write_text("{}")
    assert main(["port", str(path)]) == 2
    assert "it is not a Jupyter notebook" in capsys.readouterr().err


def test_an_unknown_option_shows_the_subcommands_usage(whole, capsys):
    """A wrong option of a subcommand shows what that takes."""
    with pytest.raises(SystemExit) as ended:
        main(["port", str(whole), "--nope"])
    assert ended.value.code == 2
    assert "usage: fnjax port" in capsys.readouterr().err


@pytest.mark.parametrize(
    "bad", [b"def f(:\n", b"# \xe9\n", b"# coding: klingon\n"], ids=["syntax", "bytes", "encoding"]
)
def test_folder_with_an_unusable_file(bad, tmp_path, capsys):
    """A file of a folder that cannot be read or parsed is named, and makes the status 1; the others are written."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.py").write_bytes(bad)
    assert main(["port", str(tmp_path / "in"), "-o", str(tmp_path / "out")]) == 2
    (tmp_path / "in" / "b.py").write_text(WHOLE)
    capsys.readouterr()
    assert main(["port", str(tmp_path / "in"), "-o", str(tmp_path / "out")]) == 1
    err = capsys.readouterr().err
    assert str(tmp_path / "in" / "a.py") in err
    assert err.count("\n") == 1
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["b.py"]


@pytest.mark.parametrize(
    ("encoding", "cookie"), [("latin-1", True), ("gb2312", True), ("ascii", True), ("utf-8-sig", False)]
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_encoding_and_line_ends_stay(encoding, cookie, newline, tmp_path, capfdbinary):
    """A port has its source's encoding, BOM and line ends, in files and printed, and is known as a port with them."""
    word = {"latin-1": "caf\xe9", "gb2312": "\u4f60"}.get(encoding, "x")
    text = f"# coding: {encoding}\n" * cookie + WHOLE.replace("x.exp()", f"torch.pixel_shuffle(x, 2)  # {word}")
    path, out = tmp_path / "in.py", tmp_path / "out.py"
    path.write_bytes(text.replace("\n", newline).encode(encoding))
    assert main(["port", str(path), "-o", str(out)]) == 0
    written = out.read_bytes()
    assert f"_pixel_shuffle(x, 2)  # {word}{newline}".encode(encoding.removesuffix("-sig")) in written
    assert written.startswith(path.read_bytes()[: 8 if cookie else 3])
    assert written.startswith(b"\xef\xbb\xbf") == (encoding == "utf-8-sig")
    assert written.count(b"\r\n") == (written.count(b"\n") if newline == "\r\n" else 0)
    assert main(["port", str(path)]) == 0
    assert capfdbinary.readouterr().out == written
    for options in [], ["--check"]:
        assert main(["port", str(path), "-o", str(out), *options]) == 0


def test_diff_and_class(tmp_path, capsys):
    """`--class` limits the port to one class, `--diff` shows what changes."""
    path = tmp_path / "two.py"
    path.write_text(WHOLE + "\n\n" + PARTIAL.partition("\n\n\n")[2])
    assert main(["port", str(path), "--class", "Whole", "--diff"]) == 0
    out = capsys.readouterr().out
    assert "Partial" not in out
    assert "-class Whole(torch.autograd.Function):" in out
    assert "+class Whole(fnjax.Function):" in out
    assert main(["port", str(path), "--class", "None"]) == 2


def test_porting_loads_libcst_alone(whole):
    """A file is ported without JAX, NumPy and PyTorch, and without libcst's matchers, which take longer than libcst."""
    code = (
        f"import sys\nfrom fnjax.__main__ import main\nassert main(['port', {str(whole)!r}]) == 0\n"
        "print([m for m in ('jax', 'numpy', 'torch', 'libcst.matchers') if m in sys.modules], file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "class Whole(fnjax.Function)" in run.stdout
    assert run.stderr == "[]\n"


SOURCES = [
    "import torch\nimport torch.nn.functional as F\nfrom torch.autograd import Function\n" + text
    for _, text in (*classes_memory.CASES.values(), *classes_masks.CASES.values())
]


@pytest.mark.parametrize("seed", range(40))
def test_mutilated_sources_never_raise(seed):
    """Whatever stands in the file, the porter gives a record; what it claims to be code is Python."""
    draw = random.Random(seed)
    words = draw.choice(SOURCES).split(" ")
    for _ in range(draw.randint(1, 6)):
        i, j = draw.randrange(len(words)), draw.randrange(len(words))
        words[i], words[j] = draw.choice([(words[j], words[i]), (words[i], words[i]), ("", words[j]), ("x", words[j])])
    result = port_source(" ".join(words))
    assert result.problem or result.classes
    compile(result.code, "port", "exec")
    assert not [f for f in result.findings if f.code == "internal"]
