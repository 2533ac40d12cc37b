"""The goldens once more, from Triton's interpreter itself: `make triton`."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fnjax.triton.interpreter.globals import GLOBAL
from tests.triton.all_cases import CASES
from tests.triton.make_goldens import kernels_for_triton

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of goldens that the installed Triton has just made, in a process of its own."""
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("goldens")
    command = [sys.executable, "-W", "ignore", "-m", "tests.triton.make_goldens", "--to", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("file", sorted({case.file for case in CASES}))
def test_the_stored_goldens_are_what_triton_gives(made, file):
    """The same inputs and launches, and the same numbers, to the rounding of this machine's exp."""
    stored = dict(np.load(ROOT / "tests/triton/goldens" / f"{file}.npz"))
    anew = dict(np.load(made / f"{file}.npz"))
    assert stored.keys() == anew.keys()
    tolerances = {case.name: case.tolerance for case in CASES}
    for name, array in stored.items():
        assert anew[name].dtype == array.dtype, name
        largest = np.nan_to_num(np.abs(array), posinf=0).max() if array.dtype.kind == "f" else 0
        atol = tolerances[name.split("/")[0]] * largest
        np.testing.assert_allclose(anew[name], array, rtol=0, atol=atol, err_msg=name)


def test_the_stored_names_and_types_are_tritons(tmp_path):
    """signatures.txt and types.txt, asked for again."""
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    command = [sys.executable, "-W", "ignore", "-m", "tests.triton.make_signatures", "--to", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    for name in ("signatures.txt", "types.txt"):
        assert (tmp_path / name).read_text() == (ROOT / "tests/triton" / name).read_text()


def test_the_goldens_are_small():
    """Data for a repository: under 2 MB together."""
    assert sum(path.stat().st_size for path in (ROOT / "tests/triton/goldens").glob("*.npz")) < 2_000_000


COMPILED = """
import sys
sys.path.insert(0, {folder!r})
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from kernels_for_triton import assigned
target = GPUTarget("cuda", 80, 32)
backend, context = make_backend(target), ir.context()
ir.load_dialects(context)
backend.load_dialects(context)
options = backend.parse_options({{}})
source = ASTSource(assigned.{kernel}, {{"x_ptr": "*i8", "out_ptr": "*i32"}})
source.make_ir(target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)
"""


def compiled(folder, kernel):
    """Make Triton's intermediate program of a kernel of assigned.py, for which no GPU is needed."""
    pytest.importorskip("triton")
    kernels_for_triton(folder)
    text = COMPILED.format(folder=str(folder), kernel=kernel)
    return subprocess.run([sys.executable, "-W", "ignore", "-c", text], capture_output=True, text=True, check=False)


def test_the_types_of_assigned_numbers_are_those_of_tritons_compiler(tmp_path):
    """The static_asserts of `types_of_values` hold there."""
    done = compiled(tmp_path, "types_of_values")
    assert done.returncode == 0, done.stderr[-3000:]


def test_globals_are_refused_in_tritons_words(tmp_path):
    """The message is that of the compiler, letter by letter."""
    done = compiled(tmp_path, "reads_a_global")
    assert GLOBAL.format("NUMBER") in done.stderr
