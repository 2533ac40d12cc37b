"""Run modules of CPython's own tests twice and write what became of each test to a file, as JSON.

With `plain` a module is imported by Python and runs as it is, twice. With `loaded` it is loaded by fnjax.torch, and
runs outside and then inside `jax.make_jaxpr`. Each runs in a process of its own, a copy of one that has imported JAX.

    echo test_scope folder | python -P cpython_runner.py {plain,loaded}

writes folder/loaded.json and folder/loaded.txt, what the tests print, and prints the exit code.
"""

import contextlib
import gc
import importlib
import json
import os
import sys
import unittest
from pathlib import Path

PASSED = "passed"


class Outcomes(unittest.TestResult):
    """Outcomes by test: `PASSED`, `skipped`, or the last lines of the error."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def note(self, test: unittest.TestCase, outcome: str, *, replace: bool = True) -> None:
        """Note an outcome; of tests that share an id the first that did not pass is kept."""
        if isinstance(test, unittest.TestCase) and type(test).__module__ not in {"doctest", "unittest.case"}:
            name = f"{type(test).__qualname__}.{test._testMethodName}"
        else:
            name = test.id().rpartition(".test_")[2]
        if replace or self.found.get(name, PASSED) == PASSED:
            self.found[name] = outcome

    def addSuccess(self, test):
        self.note(test, PASSED, replace=False)

    def addSkip(self, test, reason):
        self.note(test, "skipped", replace=False)

    def addExpectedFailure(self, test, error):
        self.note(test, PASSED, replace=False)

    def addUnexpectedSuccess(self, test):
        self.note(test, "unexpected success")

    def addError(self, test, error):
        kind, value, trace = error
        lines = []
        while trace is not None:
            lines.append(f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}")
            trace = trace.tb_next
        self.note(test, f"{kind.__name__}: {str(value)[:300]} [{' '.join(lines[-4:])}]")

    addFailure = addError

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.addError(test, error)


def run(module):
    """Return the outcomes of a module's tests."""
    outcomes = Outcomes()
    unittest.TestLoader().loadTestsFromModule(module).run(outcomes)
    return outcomes.found


def start_plain():
    """Return the function that returns the outcomes of two runs of a module as it is."""
    importlib.import_module("test.support").use_resources = ()

    def run_plain(name):
        module = importlib.import_module(f"test.{name}")
        return [run(module), run(module)]

    return run_plain


def start_loaded():
    """Return the function that returns the outcomes of a loaded module, outside and inside a traced function."""
    import jax

    import fnjax.torch

    folder = Path(importlib.import_module("test").__file__).parent
    fnjax.torch.load(folder / "support" / "__init__.py").use_resources = ()
    gc.freeze()  # tests that collect garbage, some a hundred times, would search all that JAX has

    def run_loaded(name):
        file = folder / f"{name}.py"
        module = fnjax.torch.load(file if file.is_file() else folder / name / "__init__.py")
        found = [run(module)]

        def traced(x):
            found.append(run(module))
            return x

        jax.make_jaxpr(traced)(0.0)
        return found

    return run_loaded


SECONDS = 150  # of processor time, for a run that does not end


def work(function, how, name):
    """Run a module's tests in this process, which ends with it."""
    with Path(f"{how}.txt").open("wb") as log, Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    with contextlib.suppress(ImportError):  # on Windows there is no such module
        resource = importlib.import_module("resource")
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
    Path(f"{how}.json").write_text(json.dumps(function(name)))


if __name__ == "__main__":
    how = sys.argv[1]
    sys.argv[1:] = []
    function = {"plain": start_plain, "loaded": start_loaded}[how]()
    for line in sys.stdin:
        name, folder = line.split(maxsplit=1)
        child = os.fork()
        if child == 0:
            os.chdir(folder.rstrip("\n"))
            work(function, how, name)
            break
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
