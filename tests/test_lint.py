"""`fnjax lint` finds PyTorch's names that mean something else for JAX arrays, by line, and nothing else."""

import pytest

from fnjax.__main__ import main

SOURCE = """
import fnjax, jax, jax.numpy as jnp

def helper(x):
    return x.transpose(0, 1) + x.repeat(2, 1)  # x.swapaxes(0, 1) | jnp.tile

def unused(x):
    return x.std(0)

class First(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        values, indices = x.max(1)  # x.max(0), x.argmax(0)
        return helper(x) + x.sort()[0] + jnp.tile(x, 2).std(0)  # jnp.argsort | ddof=1

class Second(First):
    @staticmethod
    def backward(ctx, g):
        return jax.nn.gelu(g)  # approximate=False

class Right(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        first, second = x.swapaxes(0, 1).max(axis=1)
        return x.transpose(1, 0) + x.transpose(0, 2, 1) + jnp.repeat(x, 2) + x.repeat(2, axis=0) + x.var(0, ddof=0)

    @staticmethod
    def backward(ctx, g):
        return jax.nn.gelu(g, approximate=True) + g.max(axis=1)[0] + jnp.std(g) + g.argsort()[0] + g.max()
"""


def test_lines_with_another_meaning(tmp_path, capsys):
    """Each line is named with what to write; those of functions that no Function uses, or that say it, are not."""
    path = tmp_path / "layers.py"
    path.write_text(SOURCE)
    assert main(["lint", str(path)]) == 1
    found = capsys.readouterr().out.splitlines()
    lines = enumerate(SOURCE.splitlines(), 1)
    due = [(number, write) for number, line in lines if "  # " in line for write in line.split("  # ")[1].split(" | ")]
    for text, (number, write) in zip(found, due, strict=True):
        assert text.startswith(f"{path}:{number}:")
        assert write in text


def test_a_folder_is_its_files(tmp_path, capsys):
    """All Python files below a folder are read, but not those below a hidden one."""
    for folder in ("a/b", ".venv", "a/.git"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "layers.py").write_text(SOURCE)
    assert main(["lint", str(tmp_path)]) == 1
    read = {line.split(":")[0] for line in capsys.readouterr().out.splitlines()}
    assert read == {str(tmp_path / "a/b/layers.py")}


@pytest.mark.parametrize("text", ["import torch\nfrom torch.autograd import Function\n", "import jax\n"])
def test_other_files_are_not_read(text, tmp_path, capsys):
    """PyTorch source means what PyTorch means, and a file without fnjax has no Functions."""
    path = tmp_path / "layers.py"
    path.write_text(text + "class A(Function):\n    def forward(ctx, x):\n        return x.std()\n")
    assert main(["lint", str(path)]) == 0
    out, err = capsys.readouterr()
    assert not out
    assert ("is a PyTorch file" in err) == ("torch" in text)
    assert "read in no file: nothing to report" in err


def test_what_was_read_is_said(tmp_path, capsys):
    """A clean file prints nothing on standard output and a note on standard error; what is no Python is refused."""
    path = tmp_path / "layers.py"
    path.write_text("import fnjax\nclass A(fnjax.Function):\n    def forward(ctx, x):\n        return x.sum()\n")
    assert main(["lint", str(path)]) == 0
    assert capsys.readouterr() == ("", f"note: Functions of fnjax read in {path}: nothing to report\n")
    path.with_suffix(".json").write_text("{}")
    assert main(["lint", str(path.with_suffix(".json"))]) == 2
    path.unlink()
    assert main(["lint", str(tmp_path)]) == 0
    assert f"({tmp_path}: no Python file)" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_hides_no_other(tmp_path, capsys):
    """The findings of the other files are printed, then what is wrong with a file, by its own name and line."""
    path, broken, absent = (tmp_path / name for name in ("layers.py", "broken.py", "absent.py"))
    path.write_text(SOURCE)
    broken.write_text("def f(:\n")
    assert main(["lint", str(path)]) == 1
    alone = capsys.readouterr().out
    assert main(["lint", str(broken), str(absent), str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == alone
    assert "(broken.py, line 1)" in err
    assert f"cannot read {str(absent)!r}: No such file" in err
    assert main(["lint", str(absent)]) == 2
    assert "nothing to report" not in capsys.readouterr().err
