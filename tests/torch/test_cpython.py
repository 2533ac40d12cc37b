"""CPython's own tests, loaded by fnjax.torch: what passes in plain Python passes there, outside and inside a trace."""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.torch.cpython_modules import LIBRARY, MODULES
from tests.torch.cpython_runner import PASSED

RUNNER = Path(__file__).with_name("cpython_runner.py")
NAMES = [name for name in MODULES if name not in LIBRARY or sys.version_info >= (3, 12)]
QUICK = {"test_augassign", "test_scope", "test_with"}  # the others are for the slow run


@pytest.fixture(scope="module")
def runners():
    """Yield the processes that run modules in copies of themselves, as they are and loaded."""
    environment = os.environ | {"PYTHONPATH": str(RUNNER.parents[2]), "JAX_PLATFORMS": "cpu"}
    with contextlib.ExitStack() as stack:
        found = {}
        for how in ("plain", "loaded"):
            command = [sys.executable, "-P", str(RUNNER), how]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            found[how] = stack.enter_context(subprocess.Popen(command, env=environment, text=True, bufsize=1, **pipes))
        yield found


def run(how: str, process: subprocess.Popen[str], name: str, folder: Path) -> list[dict[str, str]]:
    """Return the outcomes of the two runs of a module's tests, in a process of its own."""
    process.stdin.write(f"{name} {folder}\n")
    code = process.stdout.readline().strip()
    log = folder / f"{how}.txt"
    assert code == "0", f"{name} {how} ended with {code}:\n{log.read_text(errors='replace')[-3000:]}"
    return json.loads((folder / f"{how}.json").read_text())


def has_tests(name: str) -> bool:
    """Return whether the interpreter's `test` package is installed and has a module."""
    try:
        return importlib.util.find_spec(f"test.{name}") is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each module runs in a copy of a process")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in NAMES])
def test_tests_of_cpython(name, tmp_path, runners):
    """Each test that passes in plain Python passes in a loaded module, but for those that are listed; these fail."""
    if not has_tests(name):
        pytest.skip(f"this Python has no test.{name}")
    plain, loaded = (run(how, process, name, tmp_path) for how, process in runners.items())
    passed = [{test for test, outcome in each.items() if outcome == PASSED} for each in plain]
    assert passed[0], "no test passed in plain Python"
    failed = {
        test: f"{where}: {found.get(test, 'it did not run')}"
        for where, tests, found in zip(["outside", "inside"], passed, loaded, strict=True)
        for test in sorted(tests)
        if found.get(test) != PASSED
    }
    listed = {test for test in passed[0] | passed[1] if any(fnmatchcase(test, entry) for entry in MODULES[name])}
    unlisted = {test: error for test, error in failed.items() if test not in listed}
    assert not unlisted, json.dumps(unlisted, indent=2)
    assert not listed - failed.keys(), "they are listed, and pass"
