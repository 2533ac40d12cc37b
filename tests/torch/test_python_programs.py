"""Random programs of plain Python mean in loaded files what they mean in Python, outside and inside a trace."""

import contextlib
import io
import warnings

import jax
import pytest

from fnjax import torch
from tests.torch.python_programs import Generator

INPUTS = [(2, -1), (-1, 3)]


def run(space):
    """Return for each input what `main` returns or raises, and what it prints."""
    found = []
    for inputs in INPUTS:
        space["BUDGET"] = 150
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            try:
                result = space["main"](*inputs)
            except BaseException as error:  # noqa: BLE001 - of a program that raises, the error is the result
                result = type(error).__name__
        found.append((result, printed.getvalue()))
    return found


def run_traced(space):
    """Return the same of a run inside a traced function."""
    found = []
    jax.make_jaxpr(lambda: found.extend(run(space)))()
    return found


# A generator that yields while it is closed makes Python print "generator ignored GeneratorExit".
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "seeds",
    [range(40), *(pytest.param(range(i, i + 110), marks=pytest.mark.slow) for i in range(40, 700, 110))],
    ids=str,
)
def test_random_programs(seeds, tmp_path):
    """A program returns, raises and prints what it does in Python: twice outside of a trace, twice inside."""
    for seed in seeds:
        program = Generator(seed).make()
        file = tmp_path / f"program_{seed}.py"
        file.write_text(program)
        plain = {"__name__": "plain"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            exec(compile(program, str(file), "exec", dont_inherit=True), plain)
            loaded = vars(torch.load(file))
        for where, run_loaded in [("outside", run), ("inside", run_traced)]:
            expected, found = run(plain), run_loaded(loaded)
            assert found == expected, f"seed {seed}, {where} of a trace:\n{program}"
