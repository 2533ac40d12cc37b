"""The rooms of the house: what imports what."""

import ast
import pathlib
import subprocess
import sys

import pytest

import fnjax

PACKAGE = pathlib.Path(fnjax.__file__).parent
# Downwards only: each file may import what stands before it.
STRATA = [
    "_call.__init__",
    "_class.__init__",
    "_cli.__init__",
    "_jax.__init__",
    "_errors",
    "_jaxpr",
    "_jax.trees",
    "_call.ctx",
    "_uses",
    "_facts",
    "_call.signature",
    "_jax.rule",
    "_methods",
    "_call.outputs",
    "_call.hooks",
    "_saved",
    "_call.vmap",
    "_frozen",
    "_batched",
    "_jax.linearity",
    "_primitive",
    "_gradients",
    "_plain",
    "_programs",
    "_lowering",
    "_definition",
    "_class.amp",
    "_class.function",
    "_check.__init__",
    "_check.sparsity",
    "_check.jacobian",
    "_check.problem",
    "_check.report",
    "_check.fast",
    "_check.derivative_properties",
    "_check.inputs",
    "_check.gradcheck",
    "_check.gradgradcheck",
    "_check.opcheck",
    "graph.calls",
    "graph.program",
    "graph.second_order",
    "graph.drawing",
    "graph.dot",
    "graph.picture",
    "graph.report",
    "graph.__init__",
    "_cli.call",
    "_cli.check",
    "_cli.graph",
    "port.operations.expressions",
    "port.operations.signature",
    "port.operations.derivatives",
    "port.operations.record",
    "port.operations.registry",
    "port.operations.source",
    "port.operations.support_derivatives",
    "port.operations.support",
    "port.operations.support_memory",
    "port.operations.support_indexing",
    "port.operations.support_layers",
    "port.operations.support_images",
    "port.operations.support_linear",
    "port.operations.support_losses",
    "port.operations.support_random",
    "port.operations.support_host",
    "port.operations.support_trees",
    "port.operations.attributes",
    "port.operations.elementwise",
    "port.operations.reductions",
    "port.operations.shapes",
    "port.operations.indexing",
    "port.operations.creation",
    "port.operations.linear_algebra",
    "port.operations.neural",
    "port.operations.random",
    "port.operations.distributions",
    "port.operations.fft",
    "port.operations.absent",
    "port.operations.numpy_functions",
    "port.operations.__init__",
    "port.result",
    "port.facts",
    "port.located",
    "port.backward_calls",
    "port.kept_numbers",
    "port.naming",
    "port.evidence",
    "port.records",
    "port.annotations",
    "port.program",
    "port.rules.__init__",
    "port.rules.registry",
    "port.terms",
    "port.walk",
    "port.rules.sharing",
    "port.rules.writing",
    "port.rules.randomness",
    "port.rules.context",
    "port.rules.indexing",
    "port.rules.masks",
    "port.rules.passed_functions",
    "port.rules.python_calls",
    "port.rules.numpy_calls",
    "port.rules.einops_calls",
    "port.rules.versions",
    "port.rules.constants",
    "port.rules.trees",
    "port.rules.own_functions",
    "port.rules.numbers",
    "port.rules.foreign",
    "port.rules.conditions",
    "port.rules.carried_loops",
    "port.rules.differences",
    "port.rules.operators",
    "port.rules.containers",
    "port.rules.results",
    "port.rules.arguments",
    "port.rules.operations",
    "port.rules.called",
    "port.rules.layers",
    "port.rules.distributions",
    "port.rules.entries",
    "port.rules.statements",
    "port.rules.choices",
    "port.rules.views",
    "port.rules.augmented",
    "port.rules.returns",
    "port.rules.loops",
    "port.rules.filling",
    "port.rules.branch_values",
    "port.rules.traced_branches",
    "port.rules.kept_choices",
    "port.rules.control",
    "port.rules.attempts",
    "port.rules.matches",
    "port.rules.messages",
    "port.rules.written_choices",
    "port.rules.places",
    "port.rules.returning_loops",
    "port.rules.grad_mode",
    "port.rules.recomputed",
    "port.rules.decorators",
    "port.rules.definitions",
    "port.rules.class_definitions",
    "port.rules.others",
    "port.assembly",
    "port.engine",
    "port.__init__",
    "port.command",
    "port.compare",
    "port.compare_command",
    "__init__",
    "__main__",
]
# What is installed only for those who ask for it, and the one file that imports it.
EXTRAS = {"graph.picture": {"graphviz"}}


def imports(path):
    """The absolute names that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def stratum(path):
    """A file as STRATA names it: `_check.fast` for fnjax/_check/fast.py."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=stratum)
def test_imports_point_downwards(path):
    """A file imports only files below it, the standard library, public names of jax and numpy, and its extra."""
    below = {f"fnjax.{name.removesuffix('.__init__')}" for name in STRATA[: STRATA.index(stratum(path))]}
    for name in imports(path):
        root = name.split(".")[0]
        if root == "fnjax":
            assert name == "fnjax" or any(name == b or name.startswith(b + ".") for b in below), name
        else:
            extra = EXTRAS.get(stratum(path), set()) | ({"libcst"} if stratum(path).startswith("port.") else set())
            extra |= {"torch"} if stratum(path).startswith("port.compare") else set()
            assert root in {"jax", "numpy"} | extra or root in sys.stdlib_module_names, name
        assert not name.startswith("jax._"), name


def test_only_the_primitives_speak_of_interpreters():
    """JAX's interpreters are met where rules become equations, and nowhere else."""
    speakers = {stratum(p) for p in FILES if any(n.startswith("jax.interpreters") for n in imports(p))}
    assert speakers == {"_primitive", "_frozen"}


def test_import_loads_no_extras():
    """`import fnjax` loads neither libcst nor graphviz nor torch, nor anything that only examples need."""
    code = (
        "import sys, fnjax\n"
        "print([m for m in ('libcst', 'graphviz', 'torch', 'optax', 'matplotlib', 'tqdm') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_public_names_show_their_public_module():
    """Tracebacks show `fnjax.GradientError`, not the private file."""
    errors = [v for v in vars(fnjax).values() if isinstance(v, type) and issubclass(v, fnjax.FnjaxError)]
    assert len(errors) >= 9
    assert {e.__module__ for e in errors} == {"fnjax"}
