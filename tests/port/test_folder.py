"""Files of a folder that import from each other."""

import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.torch
from fnjax.__main__ import main
from fnjax.port.engine.as_is import OPENING
from fnjax.port.engine.folder import port_files
from fnjax.port.source.linking import link_files
from fnjax.port.source.module_paths import Modules

FILES = {
    "__init__.py": "from .helpers.common import scale_\n",
    "helpers/__init__.py": "",
    "helpers/common.py": '''\
# Licence
"""Helpers."""
import torch
from torch.nn import functional as F

EPS = 0.25
ONE = 1.0


def scale_(x, k):
    x.mul_(k)
    return x


def smooth(x):
    return F.softplus(x) + EPS


def unused(x):
    return torch.no_such_operation(x)
''',
    "swish.py": """\
import torch
from torch.autograd import Function

from pkg import scale_
from pkg.helpers import common
from .helpers.common import EPS
from .helpers.common import smooth as soft
import pkg.helpers.common
import math as F


def helper(EPS):
    return EPS * F.pi


class Swish(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = x * torch.sigmoid(x)
        scale_(y, 3.0)
        return y + common.smooth(x) + soft(x) * EPS + helper(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * 3 * (s + x * s * (1 - s)) + g * (pkg.helpers.common.ONE + EPS) * s + g * F.pi
""",
    "late.py": """\
import torch
from pkg.helpers.common import EPS as e


def late(x):
    return x * e
""",
    "other.py": """\
import torch
import pkg
import pkg.helpers.common
from .swish import *
from .swish import Swish as Base


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return Base.apply(x) + helper(x) + pkg.late.late(x) * pkg.helpers.common.ONE

    @staticmethod
    def backward(ctx, g):
        return torch.no_such_operation(g)
""",
}
FOUND = ["helpers/common.py", "late.py", "other.py", "swish.py"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The package, and what imports it and its port."""
    for name, text in FILES.items():
        path = tmp_path / "pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [n for n in sys.modules if n.partition(".")[0] in {"pkg", "pkg_jax"}]:
        del sys.modules[name]


def test_helpers_of_other_files_are_followed(package, capsys):
    """A helper's effects are known across files, and the port imports the helper's port under the names of its file."""
    out = package / "pkg_jax"
    assert main(["port", str(package / "pkg"), "-o", str(out)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"{package}/pkg/late.py: 1 function as it is: late",
        f"{package}/pkg/other.py:15:16 unknown the porter does not know torch.no_such_operation",
        f"{package}/pkg/other.py: 0 classes in JAX; 1 class as it is: Swish",
        f"{package}/pkg/swish.py: 1 class in JAX; 1 function as it is: helper",
    ]
    assert sorted(str(p.relative_to(out)) for p in out.rglob("*.py")) == FOUND
    common, swish = (out / "helpers/common.py").read_text(), (out / "swish.py").read_text()
    assert common.partition("\n")[2].startswith('# Licence\n"""Helpers."""\n')
    assert "unused" not in common
    assert "from .helpers.common import EPS, scale_, smooth as soft\n" in swish
    assert "y = scale_(y, 3.0)" in swish  # it writes to its argument, as its own file says
    assert "__" not in swish.partition(OPENING)[0] + common

    ported = importlib.import_module("pkg_jax.swish").Swish
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    sigmoid = 1 / (1 + np.exp(-x))
    expected = 3 * x * sigmoid + 1.25 * np.log1p(np.exp(x)) + 0.25 + 0.0625 + np.pi * x
    np.testing.assert_allclose(ported.apply(x), expected, rtol=1e-5)
    kept = importlib.import_module("pkg_jax.other").Swish  # PyTorch source, on the class that is JAX
    np.testing.assert_allclose(kept.apply(x), expected + (np.pi + 0.25) * x, rtol=1e-5)
    with pytest.raises(fnjax.torch.NotSupported, match="no_such_operation"):
        jax.grad(lambda x: kept.apply(x).sum())(jnp.asarray(x))


@pytest.mark.parity
def test_verify_runs_ports_that_import_each_other(package, capsys):
    """`--verify` runs the ports of a folder where they find each other."""
    pytest.importorskip("torch")
    call = ["port", str(package / "pkg"), "-o", str(package / "pkg_jax"), "--class", "Swish"]
    main([*call, "--verify", "--seconds", "3"])
    assert "Swish: verified" in capsys.readouterr().err


def test_a_line_stays_a_line():
    """The text of linked files has each line at its place, also where an import over several lines goes."""
    files = {
        "a.py": "from b import (\n    f,\n    unknown,\n)\nimport torch as t\n\nclass A(t.Function): x = f(t)\n",
        "b.py": "import numpy as t\n\n\ndef f(x):\n    return t.ones(x)\n",
    }
    (linked,) = link_files(files, dict.fromkeys(files, "."))
    lines = linked.text.split("\n")
    for name, text in files.items():
        assert len(text.split("\n")) == len([n for n in range(1, len(lines)) if linked.find_place(n)[0] == name])
    assert lines[0] == "from b import unknown"
    assert lines[6] == "class A(t__a.Function): x = f(t__a)"
    assert linked.find_place(7) == ("a.py", 7)
    assert linked.restore_names("a.py", "t__a, t__b") == "t, t__b"


@pytest.mark.parametrize(
    ("spelled", "use", "line"),
    [
        ("from .b import f", "f(x)", "from .b import f"),
        ("from pkg.b import f as h", "h(x)", "from .b import f as h"),
        ("from b import f", "f(x)", "from b import f"),
        ("from . import b", "b.f(x)", "from . import b"),
        ("from pkg import b as c", "c.f(x)", "from . import b as c"),
        ("import b", "b.f(x)", "import b"),
        ("from .again import f", "f(x)", "from .b import f"),
        ("from .b import *", "f(x)", "from .b import f"),
    ],
)
def test_imports_point_at_the_port(tmp_path, monkeypatch, spelled, use, line):
    """However a file imports a helper of the folder, its port imports the helper's port."""
    (tmp_path / "pkg").mkdir()
    monkeypatch.chdir(tmp_path)
    cls = f"""\
import torch
{spelled}


class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return {use}

    @staticmethod
    def backward(ctx, g):
        return g
"""
    files = {
        "pkg/a.py": cls,
        "pkg/b.py": "import torch\n\n\ndef f(x):\n    return torch.relu(x)\n",
        "pkg/again.py": "from .b import f\n",
    }
    found = port_files(files, dict.fromkeys(files, "pkg"))
    assert [c.status for c in found["pkg/a.py"].classes] == ["ported"], found["pkg/a.py"].findings
    assert line in found["pkg/a.py"].code.splitlines()
    assert f"return {use}" in found["pkg/a.py"].code
    assert "jax.nn.relu(x)" in found["pkg/b.py"].code


def test_operators_of_a_folder():
    """A custom operator's helper in another file is followed."""
    files = {
        "a.py": """\
import torch
from b import double


@torch.library.custom_op("folder::f", mutates_args=())
def f(x: torch.Tensor) -> torch.Tensor:
    return double(x)
""",
        "b.py": "import torch\n\n\ndef double(x):\n    return torch.mul(x, 2)\n",
    }
    found = port_files(files, dict.fromkeys(files, "."))
    assert [(c.name, c.status) for c in found["a.py"].classes] == [("folder::f", "ported")], found["a.py"].findings
    assert "from b import double" in found["a.py"].code
    assert "return x * 2" in found["b.py"].code


def test_processes_give_what_one_gives(monkeypatch):
    """Many files are ported in several processes, to the same texts in the same order."""
    text = FILES["swish.py"].replace("from pkg", "from elsewhere").replace("from .helpers", "from elsewhere")
    files = {f"f{i}.py": text for i in range(3)}
    one = port_files(files, dict.fromkeys(files, "."))
    monkeypatch.setattr("fnjax.port.engine.folder._WORTH", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert port_files(files, dict.fromkeys(files, ".")) == one
    assert list(one) == list(files)


NEXT_TO_A_MODULE = """\
import torch


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.clamp_(min=0)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x > 0)


class Center(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mean):
        mean.mul_(0.5).add_(x.mean(), alpha=0.5)
        return x - mean

    @staticmethod
    def backward(ctx, g):
        return g, None
"""
MODULE = """

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(()))

    def forward(self, x):
        return Center.apply(x, self.mean)[0]


def clamp(x):
    y = x * 2
    Clamp.apply(y)
    return y


def run(x):
    net = Net()
    return net(clamp(x)), net.mean
"""


@pytest.mark.parametrize("files", [1, 2])
def test_pytorch_source_calls_functions_as_pytorch_does(tmp_path, monkeypatch, files):
    """Tensors that apply returns next to its results in JAX are written to where PyTorch source calls the class."""
    texts = {"one_file.py": NEXT_TO_A_MODULE + MODULE}
    if files == 2:  # what stays as it is, and needs the classes, joins the files
        other = "\n\nclass Other(Clamp, Center):\n    jvp = unknown\n"
        imports = "import torch\nfrom clamp import Center, Clamp\n"
        texts = {"clamp.py": NEXT_TO_A_MODULE, "net.py": imports + other + MODULE}
    for name, text in texts.items():
        (tmp_path / name).write_text(text.replace("unknown", "torch.no_such_operation"))
    out = tmp_path / f"out_{files}"
    main(["port", str(tmp_path), "-o", str(out)])
    assert ("class Clamp(fnjax.Function)" in (out / min(texts)).read_text()) == (files == 1)
    monkeypatch.syspath_prepend(out)
    names = [n.removesuffix(".py") for n in texts]
    for name in names:  # of another test's file
        sys.modules.pop(name, None)
    module = importlib.import_module(max(names))
    for name in names:
        del sys.modules[name]
    x = jnp.array([1.0, -2.0])
    y, mean = fnjax.torch.jax_view(module.run)(x)
    assert (y, mean) == (1.0, 1.0)  # of [2, 0], whose mean is 1
    clamp = fnjax.torch.jax_view(module.clamp)
    assert clamp(x).tolist() == [2.0, 0.0]
    assert jax.grad(lambda x: clamp(x).sum())(x).tolist() == [2.0, 0.0]


def test_a_base_of_a_file_that_comes_later(tmp_path):
    """A class is a Function by its base, whichever file has that and whatever it is called."""
    (tmp_path / "layers.py").write_text(
        "import torch\nfrom util import Base\n\n\nclass Square(Base):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        ctx.save_for_backward(2 * x)\n        return x * x\n"
    )
    (tmp_path / "util.py").write_text(
        "import torch\n\n\nclass Base(torch.autograd.Function):\n    @staticmethod\n    def backward(ctx, g):\n"
        "        return g * ctx.saved_tensors[0]\n"
    )
    assert main(["port", str(tmp_path), "-o", str(tmp_path / "out")]) == 0
    assert "class Square(Base):" in (tmp_path / "out" / "layers.py").read_text()


def test_an_import_of_two_packages():
    """Each module of one statement has a name of its own, in the order of their packages."""
    modules = Modules(dict.fromkeys(["main.py", "one/a.py", "two/b.py"], "."))
    text = modules.normalize_imports("main.py", "import two.b, os, one.a\nx = two.b.f(one.a.g(os))\n")
    assert text == "import os; import one.a as one_a; import two.b as two_b\nx = two_b.f(one_a.g(os))\n"


def test_a_failure_of_files_together_is_told(monkeypatch):
    """Each file is ported alone then, and its class says why what it needs of another file is missing."""
    text = "import torch\nfrom b import double\nclass A(torch.autograd.Function):\n    @staticmethod\n"
    text += "    def forward(ctx, x):\n        return double(x)\n"
    files = {"a.py": text, "b.py": "def double(x):\n    return x * 2\n"}

    def fail(*args):
        raise KeyError("key")

    monkeypatch.setattr("fnjax.port.engine.folder._split_whole", fail)
    (cls,) = port_files(files, dict.fromkeys(files, "."))["a.py"].classes
    (finding,) = cls.findings
    assert (cls.status, finding.code, finding.severity) == ("ported", "internal", "note")
    assert "together (KeyError: 'key'), please report them; each was ported alone" in finding.message
