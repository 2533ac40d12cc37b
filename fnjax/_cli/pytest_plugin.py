"""`pytest --fnjax layers.py`: a test for each Function of the named files, which runs fnjax.opcheck."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("fnjax", "fnjax: derivatives and transforms of Functions")
    group.addoption(
        "--fnjax",
        action="store_true",
        help="check each Function in the Python files that are named on the command line, as `fnjax check` does; "
        "test files are run as ever",
    )
    group.addoption(
        "--fnjax-args",
        default="randn(3, 4)",
        metavar="ARGS",
        help="their arguments, as for `fnjax check --args` (default: %(default)s); a Function that does not take them "
        "is skipped",
    )


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> _Functions | None:
    """Collect the Functions of a file that was named and is not a test file."""
    if not parent.config.getoption("--fnjax") or not parent.session.isinitpath(module_path):
        return None
    if any(fnmatch.fnmatch(module_path.name, pattern) for pattern in parent.config.getini("python_files")):
        return None
    return _Functions.from_parent(parent, path=module_path)


class _Functions(pytest.File):
    """Functions of a file of fnjax or of PyTorch source."""

    def collect(self) -> Iterator[pytest.Item]:
        """Return a test for each."""
        from fnjax._cli.check import list_functions

        for name in list_functions(str(self.path)):
            yield _Check.from_parent(self, name=name)


class _Check(pytest.Item):
    """Check of a Function."""

    def runtest(self) -> None:
        """Run opcheck; skip where the Function does not take the arguments."""
        from fnjax._cli.call import UsageError
        from fnjax._cli.check import add, check_one, show_failures

        parser = argparse.ArgumentParser()
        add(parser.add_subparsers())
        target = f"{self.path}:{self.name}"
        options = parser.parse_args(["check", target, "--args", self.config.getoption("--fnjax-args"), "--json"])
        try:
            results = check_one(options, target, None)
        except UsageError as e:
            pytest.skip(str(e))
        if results.failures:
            pytest.fail(f"{results}\n\n{show_failures(results)}", pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return where the test is, and its name."""
        return self.path, None, f"fnjax check {self.path.name}:{self.name}"
