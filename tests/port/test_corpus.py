"""Extraction of classes from packages by the corpus benchmark."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools.port_fetch import Package

FILES = {
    "pack/__init__.py": "",
    "pack/ops.py": "import math\n\nUNUSED = 1\nHALF = 0.5\n\n\ndef scale(x):\n    return x * math.sqrt(HALF)\n",
    "pack/base.py": "import torch\n\n\nclass Base(torch.autograd.Function):\n    pass\n",
    "pack/use.py": """\
from . import ops
from .base import Base as Parent

OTHER = 2


class Outer:
    # a comment
    class Scaled(Parent):
        @staticmethod
        def forward(ctx, x):
            return ops.scale(x)
""",
}
WANTED = """\
from __future__ import annotations
import math
import torch


HALF = 0.5


def scale(x):
    return x * math.sqrt(HALF)


class Base(torch.autograd.Function):
    pass


Parent = Base


class Scaled(Parent):
    @staticmethod
    def forward(ctx, x):
        return scale(x)
"""


def test_a_class_comes_with_what_it_needs(tmp_path):
    """Names of other files are followed, and nothing else is taken."""
    with zipfile.ZipFile(tmp_path / "pack.whl", "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
    assert Package(tmp_path / "pack.whl").source("pack/use.py", "Outer.Scaled") == WANTED


@pytest.mark.slow
def test_without_the_package_index_it_says_so(tmp_path):
    """One clear message, and no traceback."""
    script = Path(__file__).parent.parent.parent / "tools" / "port_corpus.py"
    command = [sys.executable, str(script), "--cache", str(tmp_path), "--package", "zuko", "--kind", "all"]
    environment = {
        "PATH": "",
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": "/dev/null",
        "PYTHONPATH": str(script.parents[1]),
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert "cannot download zuko 1.6.0 (offline?)" in done.stderr
    assert "Traceback" not in done.stderr
