"""The examples run as scripts, agree with closed forms, eager and under jit, and are shown in the gallery."""

import ast
import importlib.util
import re
import runpy
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import fnjax

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
GALLERY = ROOT / "docs" / "gallery.md"
# It trains on data of scikit-learn, and has tests of its own.
ELSEWHERE = {"digits.py"}
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.name not in ELSEWHERE]
MODES = {"eager": lambda f: f, "jit": jax.jit}

example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


def load(path: Path) -> ModuleType:
    """The module in a file, made anew at each call."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wrong(check, wrap) -> list[str]:
    """The names of the comparisons that fail."""
    return [
        name
        for name, (got, expected) in check(wrap).items()
        if np.shape(got) != np.shape(expected) or not np.allclose(got, expected, rtol=1e-5, atol=1e-6)
    ]


@pytest.mark.parametrize("mode", MODES)
@example
def test_example_computes_what_it_should(path, mode):
    """Each comparison of an example's `check` holds, eager and under jit, without tracers left behind."""
    check = load(path).check
    with jax.checking_leaks():
        assert wrong(check, MODES[mode]) == []


@example
def test_example_notices_a_wrong_backward(path):
    """Gradients that are 1 % too large fail the `check` of the example, whichever of its classes gives them."""
    classes = [name for name, value in vars(load(path)).items() if isinstance(value, type)]
    assert classes
    for name in classes:
        module = load(path)
        function = vars(module)[name]
        assert issubclass(function, fnjax.Function)
        right = function.backward

        def backward(*args, right=right):
            grads = right(*args)
            return jax.tree.map(lambda g: 1.01 * g, grads)  # None stays

        function.backward = staticmethod(backward)
        assert wrong(module.check, MODES["eager"]) != [], name


@example
def test_example_prints_what_the_gallery_shows(path, capsys):
    """An example run as a script prints what docs/gallery.md shows beneath it, to four digits."""
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) >= 3
    if not GALLERY.exists():
        pytest.skip("the documentation is not part of a source distribution")
    _, found, after = GALLERY.read_text().partition(f'--8<-- "examples/{path.name}"')
    assert found
    _, _, output = after.partition("```text\n")
    assert words(output.partition("```")[0]) == [
        word if isinstance(word, str) else pytest.approx(word, abs=2e-4) for word in words(printed)
    ]


def words(text: str) -> list[str | float]:
    """The words of a text, numbers as numbers; how far a result is off differs between machines."""
    text = re.sub(r"off by \S+", "off by little", text)
    return [float(w) if re.fullmatch(r"-?\d+(\.\d+)?", w) else w for w in re.findall(r"-?\d+(?:\.\d+)?|[^\s\d]+", text)]


def test_every_example_has_a_form_in_pytorch_and_a_place_in_the_gallery():
    """Each script has its PyTorch form, and docs/gallery.md, where it is there, includes both."""
    forms = {path.name for path in (ROOT / "examples" / "torch_forms").glob("*.py")}
    assert forms == {path.name for path in EXAMPLES}
    if GALLERY.exists():
        included = re.findall(r'--8<-- "examples/((?:torch_forms/)?[^"/]+)"', GALLERY.read_text())
        assert sorted(set(included) - ELSEWHERE) == sorted([*forms, *(f"torch_forms/{form}" for form in forms)])


@example
def test_example_needs_only_jax_and_numpy(path):
    """An example runs with what fnjax itself needs."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    assert {name.partition(".")[0] for name in imported} <= {"fnjax", "jax", "numpy", "warnings"}


# ---------------------------------------------------------------------------------------------------------------------
# Second derivatives against finite differences, in 64 bits


@pytest.mark.parametrize("mode", MODES)
def test_implicit_root_by_finite_differences(mode, x64):
    """The root's first and second derivatives are those of finite differences of the root."""
    root = load(ROOT / "examples" / "implicit_root.py")
    check_grads(MODES[mode](root.anomaly), (jnp.array([0.8, 0.3]),), order=2, modes=["rev"])


@pytest.mark.parametrize("mode", MODES)
def test_cholesky_by_finite_differences(mode, x64):
    """The factor's first and second derivatives are those of finite differences of the factor."""
    cholesky = load(ROOT / "examples" / "cholesky.py")

    def factor(m):  # of a matrix that is symmetric and positive definite for every m
        return cholesky.Cholesky.apply(m @ m.T + jnp.eye(3))

    check_grads(MODES[mode](factor), (jnp.asarray(np.random.default_rng(0).normal(size=(3, 3))),), 2, modes=["rev"])
