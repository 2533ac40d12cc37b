"""`fnjax check` prints the results of opcheck, with exit status 0, 1 or 2."""

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import jax
import numpy as np
import pytest

import fnjax
from fnjax.__main__ import main
from fnjax._check import opcheck
from fnjax._cli import check as check_command
from fnjax._cli.call import arguments, load
from fnjax.port import compare, compare_command

MODULE = """
import fnjax
import jax.numpy as jnp

class Square(fnjax.Function):
    @staticmethod
    def forward(ctx, x, k=1.0):
        ctx.save_for_backward(x)
        ctx.k = k
        return k * x**2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * ctx.k * x, None

class Wrong(Square):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2.1 * g * x, None

def power(x, *, k):
    return x**k

number = 3
"""

BROKEN = """
import fnjax

class Backward(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x
    @staticmethod
    def backward(ctx, g):
        return sigma * g

class Forward(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        return sigma * x
"""


@pytest.fixture
def target(tmp_path):
    """A file with some functions."""
    path = tmp_path / "layers.py"
    path.write_text(MODULE)
    yield str(path)
    sys.modules.pop("layers", None)


@pytest.mark.parametrize(
    "arguments",
    [
        ["Square"],
        ["Square", "--args", "randn(3, 8), 2"],
        ["Square.apply", "--args", "full((2,), 0.5), -1.5", "--tests", "test_gradcheck, test_jit"],
        ["power", "--args", "rand(3)", "--kwargs", "k=3", "--tests", "test_gradcheck"],
        ["power", "--args", "rand(3), k=3", "--tests", "test_gradcheck"],
        ["power", "--args", "linspace(1, 2, 3)", "--kwargs", "k=2", "--argnums", "0", "--seed", "3", "--rtol", "1e-3"],
    ],
    ids=" ".join,
)
def test_success(target, capsys, arguments):
    """A passing function prints a table of SUCCESS, and the exit status is 0."""
    name, *rest = arguments
    assert main(["check", f"{target}:{name}", *rest]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.endswith("SUCCESS") or line.startswith("test_forward_ad     SKIPPED") for line in lines)


def test_place_of_an_exception(tmp_path, capsys):
    """Exceptions of the user's forward or backward are shown with file and line."""
    path = tmp_path / "broken.py"
    path.write_text(BROKEN)
    for name, line, status in ("Backward", 10, 1), ("Forward", 15, 2):
        assert main(["check", f"{path}:{name}", "--args", "randn(2)", "--tests", "test_jit"]) == status
        printed = "".join(capsys.readouterr())
        assert (
            f"NameError: name 'sigma' is not defined\n  raised in {path}, line {line}, in {name.lower()}: " in printed
        )
    sys.modules.pop("broken")


def test_broken_pipe(target):
    """A reader that has read enough, as `head` has, ends the command without a traceback."""
    code = "import sys; from fnjax.__main__ import main; sys.exit(main())"
    arguments = ["check", f"{target}:Square", "--args", "randn(2)", "--tests", "test_jit"]
    reading, writing = os.pipe()
    os.close(reading)
    root = str(Path(__file__).parent.parent)
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": root},
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (run.returncode, run.stderr) == (141, "")


def test_failure(target, capsys):
    """A failure is in the table and in full below it, and the exit status is 1."""
    assert main(["check", f"{target}:Wrong", "--args", "randn(2)"]) == 1
    out = capsys.readouterr().out
    assert "test_gradcheck      FAILED   GradcheckError: Jacobian mismatch" in out
    assert "test_gradcheck: GradcheckError: Jacobian mismatch for output 0 with respect to input 0,\nnumerical:" in out
    assert "see: fnjax explain gradcheck" in out
    assert out.count("One row for each element") == 1
    assert "test_forward_ad: GradcheckError: Jacobian computed with forward mode" in out
    assert "\n  the rest as above" in out


TORCH_NET = """
import torch
from torch import nn

class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return ctx.factor * g * x * x, None

class Net(nn.Module):
    def __init__(self, n, factor):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n))
        self.register_buffer("mean", torch.zeros(n))
        self.factor = factor

    def forward(self, x):
        self.mean.mul_(0.5).add_(x.detach())
        return Cube.apply(x * self.weight, self.factor)
"""


@pytest.mark.usefixtures("young_heap")
@pytest.mark.parametrize(("factor", "status"), [(3, 0), (2, 1)])
def test_module_of_a_pytorch_file(tmp_path, capsys, factor, status):
    """A module of a PyTorch file is checked for its parameters and inputs, without PyTorch."""
    path = tmp_path / "net.py"
    path.write_text(TORCH_NET)
    target = [f"{path}:Net", "--init", f"2, factor={factor}", "--args", "randn(2)"]
    assert main(["check", *target, "--tests", "test_gradcheck,test_leaks"]) == status
    out = capsys.readouterr().out
    assert out.startswith("inputs: the parameters weight; then --args\n")
    assert ("test_gradcheck  FAILED" in out) == bool(status)
    assert ("input 0 ('weight')" in out) == ("input 1 ('x')" in out) == bool(status)
    assert "test_leaks      SUCCESS" in out


def test_pytorch_file_whose_module_cannot_be_made(tmp_path, capsys):
    """A constructor that raises is an error in the command line, which names --init."""
    path = tmp_path / "net.py"
    path.write_text(TORCH_NET)
    assert main(["check", f"{path}:Net", "--init", "2"]) == 2
    assert "Net cannot be made with --init '2': TypeError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("Square", ["--args", "randn(3"], "cannot read --args"),
        ("Square", ["--args", "'text'"], "save_for_backward can only save variables"),
        ("Square", ["--args", "randn(2), 1, 3"], "cannot be called with randn(2), 1, 3: ArgumentError"),
        ("power", ["--args", "randint(1, 5, 3)", "--kwargs", "k=2"], "expects at least one input tensor"),
        ("Square", ["--tests", "test_nothing"], "opcheck has no test test_nothing"),
        ("Square", ["--args", "randn(3), 2", "--argnums", "1"], "names input 1"),
        ("Square", ["--argnums", "x"], "--argnums 'x' is not a list of integers"),
        ("Square", ["--args", "torch.ones(3)"], "name 'torch' is not defined (there are abs, arange, array, "),
        ("power", ["--args", "randn(3)", "--kwargs", "2"], "--kwargs '2' holds an argument without a name"),
        ("Square", ["--seed", "-1"], "--seed -1 is negative"),
        ("Square", ["--atol", "-1"], "atol must be greater than or equal to zero"),
        ("Cube", [], "there is no 'Cube'"),
        ("Sqaure", [], ": did you mean 'Square'?"),
        ("number", [], "is neither a Function nor a function"),
    ],
)
def test_unusable_input(target, capsys, name, arguments, message):
    """A usage error is printed on stderr, and the exit status is 2."""
    assert main(["check", f"{target}:{name}", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("place", ["nothing", "no_such_module:Square", "no/such/file.py:Square", ":x"])
def test_unusable_target(capsys, place):
    """So it is for modules that are not there."""
    assert main(["check", place]) == 2
    assert capsys.readouterr().err.startswith("fnjax: ")


def test_module_that_exits(tmp_path, capsys):
    """A module that ends the process when imported cannot be used; its status is not the command's."""
    (tmp_path / "exits.py").write_text("raise SystemExit(5)")
    assert main(["check", f"{tmp_path / 'exits.py'}:f"]) == 2
    assert "SystemExit: 5" in capsys.readouterr().err


def test_version(capsys):
    """--version names fnjax and JAX, which a report of a defect needs."""
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"fnjax {fnjax.__version__}, JAX {jax.__version__}\n"


def test_help(capsys):
    """--help lists the options and gives an example."""
    with pytest.raises(SystemExit) as caught:
        main(["check", "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "--args" in out
    assert 'fnjax check layers.py:Swish --args "randn(3, 8), 2"' in out
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("command", "hint"),
    [("prot", "did you mean 'port'?"), ("frobnicate", "there are check, graph, port, compare, lint, load, explain")],
)
def test_unknown_command(command, hint, capsys):
    """A misspelt command is answered with the nearest one, another with all."""
    with pytest.raises(SystemExit) as caught:
        main([command, "file.py"])
    assert caught.value.code == 2
    assert f"there is no command {command!r}: {hint}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--verison"], "unrecognized arguments: --verison: did you mean --version?"),
        (["check", "layers.py", "--agrs=randn(3)"], "--agrs=randn(3): did you mean --args?"),
        (["lint", "layers.py", "--frobnicate"], "unrecognized arguments: --frobnicate\n"),
        (["load", "layers.py:Net"], "'layers.py:Net' is a name in a file: write layers.py, all of which is read"),
        (["lint", "layers.py:Net"], "write layers.py, all of which is read"),
        (["port", "layers.py:Net"], "write layers.py --class Net"),
        (["compare", "layers.py:Net", "port.py"], "write layers.py --class Net"),
    ],
)
def test_misread_arguments(arguments, message, capsys):
    """A misspelt option is answered with the nearest one, and a name in a file with what the command takes."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_the_command_is_no_place_in_user_code():
    """The script that starts the command is not named as the place where an error was raised."""
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("1 / 0", str(Path(sysconfig.get_path("scripts"), "fnjax")), "exec"))
    assert check_command._locate(caught.value)
    assert not check_command._locate(caught.value.with_traceback(caught.tb.tb_next))


LOADED = """
import torch
from torch.utils.data import DataLoader

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x if x.sum() > 0 else x

class Net(torch.nn.Module):
    def forward(self, x):
        return torch.fft.nothing(x)

def helper(x):
    return torch.nn.functional.relu(x)

BAD = torch.svd_lowrank(torch.ones(3, 3))
"""


def test_load_reports_what_is_there(tmp_path, capsys):
    """`fnjax load` lists what is defined, what branches on traced values, and the lines of names that are absent."""
    path = tmp_path / "layers_torch.py"
    path.write_text(LOADED)
    assert main(["load", str(path)]) == 1
    head, absent = capsys.readouterr().out.split(f"\n{path}", 1)
    assert head.splitlines() == [
        *("Functions: Twice", "modules: Net", "functions: helper"),
        "branches and loops that may depend on traced values in: Twice.forward",
    ]
    assert [re.match(r":(\d+): ([\w.]+)", line).groups() for line in absent.split(f"\n{path}")] == [
        *(("3", "torch.utils.data.DataLoader"), ("12", "torch.fft.nothing"), ("17", "torch.svd_lowrank")),
    ]
    assert "iterate over NumPy arrays" in absent
    path.write_text("import torch\ndef f(x): return torch.exp(x)")
    assert main(["load", str(path.rename(tmp_path / "right.py"))]) == 0
    assert main(["load", str(tmp_path / "absent.py")]) == 2
    path.with_suffix(".json").write_text("{}")
    other, right = path.with_suffix(".json"), tmp_path / "right.py"
    for call in ["load", other], ["check", f"{other}:f"], ["port", other], ["compare", right, other]:
        assert main([*map(str, call)]) == 2
        assert "is not a Python file" in capsys.readouterr().err


def test_jax_source_is_told_from_pytorch_source(tmp_path, capsys):
    """Imports are read from the syntax: several in one statement, and none in a text."""
    path = tmp_path / "layers.py"
    defined = "class A:\n    pass\n\n\nclass B(fnjax.Function):\n    pass\n"
    path.write_text(f'"""\nfrom torch to JAX\n"""\nimport numpy as np, fnjax\n\n\n{defined}')
    assert main(["port", str(path)]) == 2
    assert "is JAX source already: there is nothing to port" in capsys.readouterr().err
    assert main(["load", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out == "Functions: B\nother classes: A\n"
    assert "does not import torch" in err
    path.write_text("import math, torch\n\n\ndef f(x):\n    return torch.exp(x)\n")
    assert main(["check", f"{path}:f", "--tests", "jit"]) == 0
    assert main(["check", str(tmp_path / "none.py:f")]) == 2
    assert f"there is no file '{tmp_path / 'none.py'}'" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["check", str(tmp_path / "empty")]) == 2
    assert "is a folder: give one of its files" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["", "check", "graph", "port", "compare", "lint", "load"])
def test_help_waits_for_nothing(command):
    """Help is shown without loading JAX, NumPy, libcst or PyTorch."""
    heavy = ("jax", "numpy", "libcst", "torch")
    code = (
        f"import sys\nfrom fnjax.__main__ import main\ntry: main({[*command.split(), '--help']})\nfinally:\n"
        f"    print([m for m in {heavy} if m in sys.modules], file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("usage: fnjax")
    assert run.stderr == "[]\n"


def test_help_names_what_there_is():
    """The names that help repeats without importing them are those of the package."""
    assert tuple(opcheck.TESTS) == check_command.TESTS
    assert tuple(compare.TOLERANCES) == compare_command.DTYPES


def test_module_from_the_current_directory(target):
    """`python -m fnjax` finds modules where it is started."""
    run = subprocess.run(
        [sys.executable, "-m", "fnjax", "check", "layers:Square", "--args", "randn(2)", "--tests", "test_gradcheck"],
        cwd=Path(target).parent,
        env={"PYTHONPATH": str(Path(__file__).parent.parent), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "test_gradcheck  SUCCESS\n")


def test_sizes_as_in_pytorch():
    """Ones, zeros, randn and rand take a size as several numbers or as one tuple."""
    for maker in ("ones", "zeros", "randn", "rand"):
        (a, b, c), _ = arguments(f"{maker}(2, 3), {maker}((2, 3)), {maker}(3, dtype=float32)", "", 0)
        assert a.shape == b.shape == (2, 3)
        assert c.dtype == np.float32


def test_explain_prints_the_entry_of_an_error(capsys):
    """Each name that a message gives is an entry of the page of errors; for another the close ones are named."""
    assert main(["explain"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"closure", "gradient-shape", "traced-value"} <= set(names)
    for name in names:
        assert main(["explain", name]) == 0
        title, _, text = capsys.readouterr().out.partition("\n\n")
        assert title
        assert ">>>" in text
        assert "{#" not in text
    assert main(["explain", "closures"]) == 2
    assert "did you mean closure" in capsys.readouterr().err


def test_the_version_does_not_wait_for_jax():
    """`fnjax --version` names both versions without importing JAX, and so does the plugin with which pytest starts."""
    code = "import sys, fnjax._cli.pytest_plugin\nfrom fnjax.__main__ import main\n"
    code += "try: main(['--version'])\nexcept SystemExit: print('jax' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == f"fnjax {fnjax.__version__}, JAX {jax.__version__}\nFalse\n"


TWO = """
import fnjax

class Right(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g

class Wrong(fnjax.Function):
    @staticmethod
    def forward(ctx, x, y=1.0):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 3 * g, None

class Pair(fnjax.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, g):
        return None, None
"""


def test_check_takes_all_functions_of_a_file(tmp_path, capsys):
    """Each Function that takes the arguments is checked; short names choose and skip tests; JSON has all results."""
    path = tmp_path / "two_functions.py"
    path.write_text(TWO)
    options = ["--args", "randn(2)", "--tests", "gradcheck, linearity", "--skip", "linearity"]
    assert main(["check", str(path), *options]) == 1
    out = capsys.readouterr().out
    assert re.search(r"Right:\ntest_gradcheck +SUCCESS\nWrong:\ntest_gradcheck +FAILED", out)
    assert "Pair:\nnot checked:" in out
    assert "test_linearity" not in out
    assert main(["check", f"{path}:Right", "--args", "randn(2)", "--tests", "gradcheck", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {f"{path}:Right": {"test_gradcheck": "SUCCESS"}}
    assert main(["check", str(path), "--args", "", "--tests", "gradcheck"]) == 2
    assert "no Function of" in (err := capsys.readouterr().err)
    assert "--args 'randn(3, 8), 2'" in err
    assert main(["check", f"{path}:Right", "--skip", "nothing"]) == 2
    assert "there is no test 'test_nothing'" in capsys.readouterr().err


def test_check_takes_all_functions_of_a_pytorch_file(tmp_path, capsys):
    """A file of PyTorch source is run by fnjax.torch."""
    path = tmp_path / "layers_torch.py"
    path.write_text(TWO.replace("import fnjax", "import torch").replace("fnjax.Function", "torch.autograd.Function"))
    assert main(["check", str(path), "--args", "randn(2)", "--tests", "gradcheck", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["Right"] == {"test_gradcheck": "SUCCESS"}
    assert found["Wrong"]["test_gradcheck"].startswith("GradcheckError")
    assert found["Pair"].startswith("not checked")
    assert main(["graph", f"{path}:Right", "--args", "randn(2)"]) == 0
    assert "Functions keep 0 B" in capsys.readouterr().out


@pytest.mark.slow
def test_pytest_runs_checks(tmp_path, monkeypatch, capsys):
    """`pytest --fnjax layers.py` has a test for each Function; test files are run as ever."""
    (tmp_path / "two_functions.py").write_text(TWO)
    (tmp_path / "test_other.py").write_text("import fnjax\n\ndef test_other():\n    pass\n")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    run = check_command.check_one
    monkeypatch.setattr(check_command, "check_one", lambda options, target, _: run(options, target, ["test_gradcheck"]))
    files = [str(tmp_path / name) for name in ("two_functions.py", "test_other.py")]
    call = [
        "-p",
        "fnjax._cli.pytest_plugin",
        "-c",
        "/dev/null",
        "--rootdir",
        str(tmp_path),
        "-v",
        "-p",
        "no:cacheprovider",
    ]
    assert pytest.main([*call, "--fnjax", "--fnjax-args", "randn(2)", *files]) == 1
    out = capsys.readouterr().out
    ended = dict(re.findall(r"::(\w+) (PASSED|FAILED|SKIPPED)", out))
    assert ended == {"Right": "PASSED", "Wrong": "FAILED", "Pair": "SKIPPED", "test_other": "PASSED"}
    assert "all entries are 1.5 times" in out


def test_a_file_written_again_is_the_new_one(tmp_path, monkeypatch):
    """A file of equal size, written again in the same second, is not the bytecode of the old one."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "edited.py"
    for value in (1, 2):
        file.write_text(f"x = {value}")
        os.utime(file, (10**9, 10**9))
        assert load(str(file)).x == value
