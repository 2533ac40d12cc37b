"""The rooms of the house: what imports what."""

import ast
import importlib
import pathlib
import pickle
import re
import subprocess
import sys

import pytest

import fnjax

PACKAGE = pathlib.Path(fnjax.__file__).parent
# Downwards only: each file may import what stands before it.
STRATA = [
    "_lazy",
    "_errors",
    "_jax.jax_internals",
    "_jax.programs",
    "_jax.trees",
    "_jax.identity",
    "_jax.rule",
    "_jax.trace",
    "_jax.cut",
    "_jax.fission",
    "_jax.moved",
    "_jax.packed",
    "_jax.batched",
    "_jax.explicit_axes",
    "_jax.closed",
    "_jax.wall",
    "_jax.checked",
    "_jax.one_way",
    "_jax.linearity",
    "_jax.mesh",
    "_jax.copies",
    "_jax.derivative",
    "_jax.call",
    "_jax.either",
    "_jax.report",
    "_messages.arguments",
    "_messages.outputs",
    "_messages.definitions",
    "_messages.operators",
    "_messages.refs",
    "_messages.troubles",
    "_messages.notes",
    "_messages.split",
    "_call.ctx",
    "_call.signature",
    "_call.definition",
    "_call.arguments",
    "_call.explained",
    "_call.outputs",
    "_call.hooks",
    "_call.captured",
    "_call.residuals",
    "_call.forward",
    "_call.backward",
    "_call.jvp",
    "_call.vmap",
    "_call.apply",
    "_class.definition",
    "_class.amp",
    "_class.once",
    "_class.function",
    "collectives",
    "_op.grammar",
    "_op.types",
    "_op.schema",
    "_op.binding",
    "_op.running",
    "_op.derivative",
    "_op.registry",
    "_op.operator",
    "_op.definition",
    "_split.vjp",
    "triton._types",
    "triton._forms",
    "triton._state",
    "triton._tensor",
    "triton._values",
    "triton._source",
    "triton._outside",
    "triton._original",
    "triton._eager",
    "triton._choice",
    "triton._views",
    "triton._bounds",
    "triton._memory",
    "triton._shapes",
    "triton._products",
    "triton._reduce",
    "triton._random",
    "triton._atomics",
    "triton._blocks",
    "triton._run",
    "triton._waits",
    "triton._carried",
    "triton._liveness",
    "triton._independence",
    "triton._axes",
    "triton._turns",
    "triton._loops",
    "triton.language.__init__",
    "triton._libdevice",
    "triton.language.math",
    "triton.language.extra.libdevice",
    "triton.language.extra.cuda.libdevice",
    "triton.language.extra.cuda.__init__",
    "triton.language.extra.__init__",
    "triton._programs",
    "triton._races",
    "triton.tools.__init__",
    "triton.tools.tensor_descriptor",
    "triton._checker",
    "triton._drawing",
    "triton.launch",
    "triton._tuning",
    "triton.__init__",
    "_check.streams",
    "_check.precision",
    "_check.running",
    "_check.jacobian",
    "_check.problem",
    "_check.report",
    "_check.fast",
    "_check.derivative_properties",
    "_check.inputs",
    "_check.gradcheck",
    "_check.gradgradcheck",
    "_check.operators",
    "_check.against_forward",
    "_check.results",
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
    "torch._table.signature",
    "torch._table.record",
    "torch._table.registry",
    "torch._table.derivatives",
    "torch._table.attributes",
    "torch._table.elementwise",
    "torch._table.reductions",
    "torch._table.shapes",
    "torch._table.indexing",
    "torch._table.creation",
    "torch._table.linear_algebra",
    "torch._table.neural",
    "torch._table.random",
    "torch._table.distributions",
    "torch._table.fft",
    "torch._table.absent",
    "torch._table.kinds",
    "torch._table.__init__",
    "torch._support.derivatives",
    "torch._support.general",
    "torch._support.memory",
    "torch._support.indexing",
    "torch._support.layers",
    "torch._support.images",
    "torch._support.linear",
    "torch._support.losses",
    "torch._support.random",
    "torch._support.host",
    "torch._support.trees",
    "torch._dtypes",
    "torch._errors",
    "torch._journal",
    "torch._layout",
    "torch._syntax",
    "torch._jumps",
    "torch._missing",
    "torch._random",
    "torch._values",
    "torch._lowering",
    "torch._tensor",
    "torch._autograd",
    "torch._binding",
    "torch._branches",
    "torch._bridges",
    "torch._launch",
    "torch._python_math",
    "torch._selection",
    "torch._views",
    "torch._expressions",
    "torch._indexing",
    "torch._promotion",
    "torch._call",
    "torch._loops",
    "torch._control",
    "torch._namespace",
    "torch._creation",
    "torch._distributions",
    "torch._function",
    "torch._gradient_mode",
    "torch._triton",
    "torch._load",
    "torch._machine",
    "torch._methods",
    "torch._operations",
    "torch._operators",
    "torch._library",
    "torch._start",
    "torch.__init__",
    "port.tree.located",
    "port.torch.expressions",
    "port.torch.derivatives",
    "port.torch.new_arrays",
    "port.torch.context",
    "port.torch.binding",
    "port.torch.distributions",
    "port.torch.support_text",
    "port.torch.numpy_functions",
    "port.torch.python_functions",
    "port.torch.layers",
    "port.torch.machinery",
    "port.torch.__init__",
    "port.result",
    "port.tree.depth",
    "port.known.facts",
    "port.source.backward_calls",
    "port.source.kept_numbers",
    "port.source.launchers",
    "port.source.described",
    "port.source.registering",
    "port.source.decorating",
    "port.source.inlined",
    "port.source.naming",
    "port.source.evidence",
    "port.source.records",
    "port.source.annotations",
    "port.analysis.program",
    "port.analysis.starts",
    "port.analysis.kernels",
    "port.analysis.operators",
    "port.analysis.registry",
    "port.analysis.terms",
    "port.analysis.guards",
    "port.analysis.effects",
    "port.analysis.traces",
    "port.analysis.variables",
    "port.analysis.evaluation",
    "port.analysis.walk",
    "port.rewrite.calls.versions",
    "port.rewrite.calls.gpu",
    "port.rewrite.devices.groups",
    "port.rewrite.memory.sharing",
    "port.rewrite.memory.slices",
    "port.rewrite.memory.writing",
    "port.rewrite.calls.randomness",
    "port.rewrite.values.context",
    "port.rewrite.values.binding",
    "port.rewrite.devices.filled",
    "port.rewrite.devices.collectives",
    "port.rewrite.devices.exchanges",
    "port.rewrite.devices.parts",
    "port.rewrite.memory.indices",
    "port.rewrite.memory.indexing",
    "port.rewrite.memory.poles",
    "port.rewrite.memory.masks",
    "port.rewrite.calls.passed_functions",
    "port.rewrite.calls.python_calls",
    "port.rewrite.libraries.numpy_calls",
    "port.rewrite.memory.constants",
    "port.rewrite.calls.trees",
    "port.rewrite.calls.own_functions",
    "port.rewrite.calls.custom_operators",
    "port.rewrite.values.numbers",
    "port.rewrite.calls.foreign_names",
    "port.rewrite.values.conditions",
    "port.rewrite.control.carried_loops",
    "port.rewrite.values.differences",
    "port.rewrite.values.arithmetic",
    "port.rewrite.calls.containers",
    "port.rewrite.calls.torch_results",
    "port.rewrite.calls.arguments",
    "port.rewrite.calls.triton_launches",
    "port.rewrite.calls.torch_calls",
    "port.rewrite.libraries.einops_calls",
    "port.rewrite.calls.torch_names",
    "port.rewrite.libraries.layers",
    "port.rewrite.libraries.distributions",
    "port.rewrite.statements.entries",
    "port.rewrite.statements.assignments",
    "port.rewrite.control.choices",
    "port.rewrite.statements.views",
    "port.rewrite.statements.augmented",
    "port.rewrite.functions.returns",
    "port.rewrite.control.loops",
    "port.rewrite.control.filling",
    "port.rewrite.control.branch_values",
    "port.rewrite.control.traced_branches",
    "port.rewrite.control.kept_choices",
    "port.rewrite.control.branches",
    "port.rewrite.control.attempts",
    "port.rewrite.control.matches",
    "port.rewrite.control.checks",
    "port.rewrite.control.messages",
    "port.rewrite.statements.written_choices",
    "port.rewrite.memory.places",
    "port.rewrite.control.returning_loops",
    "port.rewrite.functions.grad_mode",
    "port.rewrite.functions.recomputed_steps",
    "port.rewrite.functions.recomputed",
    "port.rewrite.functions.decorators",
    "port.rewrite.functions.host_bodies",
    "port.rewrite.functions.buffers",
    "port.rewrite.functions.keys",
    "port.rewrite.functions.function_definitions",
    "port.rewrite.functions.class_definitions",
    "port.rewrite.calls.unknown_calls",
    "port.engine.assembly",
    "port.source.top_level",
    "port.source.operator_names",
    "port.source.edits",
    "port.source.linking",
    "port.engine.imported",
    "port.engine.units",
    "port.engine.settling",
    "port.engine.porting",
    "port.engine.folder",
    "port.__init__",
    "port.compare.record",
    "port.compare.values",
    "port.compare.interpreter",
    "port.compare.in_pytorch",
    "port.compare.in_jax",
    "port.compare.entries",
    "port.compare.known_discrepancies",
    "port.compare.comparing",
    "port.compare.gloo",
    "port.compare.sharded",
    "port.compare.devices",
    "port.compare.__init__",
    "port.verify.record",
    "port.verify.taking",
    "port.verify.names",
    "port.verify.operators",
    "port.verify.hints",
    "port.verify.calls",
    "port.verify.candidates",
    "port.verify.lines",
    "port.verify.trying",
    "port.verify.searching",
    "port.verify.shrinking",
    "port.verify.proving",
    "port.verify.worker",
    "port.verify.verifying",
    "port.verify.__init__",
    "port.verify_command",
    "port.command",
    "port.compare_command",
    "__init__",
    "__main__",
]
# What is installed only for those who ask for it, and the one file that imports it.
EXTRAS = {
    "graph.picture": {"graphviz"},
    "triton._drawing": {"matplotlib"},
    "triton._original": {"jax_triton", "triton"},
}


def stratum(path):
    """A file as STRATA names it: `_check.fast` for fnjax/_check/fast.py."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


FILES = {stratum(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(path):
    """The absolute names that a file imports: `fnjax.port.result.Finding`, `jax`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(name):
    """The file of fnjax that an imported name is or stands in."""
    parts = name.split(".")[1:]
    for n in range(len(parts), -1, -1):
        for found in (".".join(parts[:n]), ".".join([*parts[:n], "__init__"])):
            if found in FILES:
                return found
    raise AssertionError(name)


@pytest.mark.parametrize("name", FILES)
def test_imports_point_downwards(name):
    """A file imports only files below it, the standard library, public names of jax and numpy, and its extra."""
    imported = list(imports(FILES[name]))
    extra = EXTRAS.get(name, set()) | ({"libcst"} if name.startswith("port.") else set())
    extra |= {"triton"} if name == "port.compare.interpreter" else set()
    extra |= {"torch"} if name.startswith(("port.compare", "port.verify")) else set()
    for full in imported:
        root = full.split(".")[0]
        if root == "fnjax":
            file = module_of(full)
            assert file == "__init__" or STRATA.index(file) < STRATA.index(name), full
        else:
            assert root in {"jax", "numpy"} | extra or root in sys.stdlib_module_names, full
        assert not full.startswith("jax._"), full


def test_strata_are_the_files():
    """Each file stands in the list once, but for packages that say nothing."""
    empty = {name for name, path in FILES.items() if not list(imports(path))}
    assert len(STRATA) == len(set(STRATA))
    assert set(STRATA) <= set(FILES)
    assert set(FILES) - set(STRATA) <= {name for name in empty if name.endswith("__init__")}


def test_only_the_porter_imports_from_torch():
    """Nothing in the core imports fnjax.torch; the porter reads its table of operations, and type checkers its name."""
    importers = {}
    for name, path in FILES.items():
        found = {full.removeprefix("fnjax.") for full in imports(path) if full.startswith("fnjax.torch")}
        if found and not name.startswith("torch.") and name != "__init__":
            importers[name] = {part for full in found for part in full.split(".")[1:2]}
    assert {name.split(".")[0] for name in importers} == {"port"}
    assert set().union(*importers.values()) == {"_table"}


def test_only_the_primitives_speak_of_interpreters():
    """JAX's interpreters are met where rules become equations, and nowhere else."""
    speakers = {name for name, p in FILES.items() if any(n.startswith("jax.interpreters") for n in imports(p))}
    assert {name.split(".")[0] for name in speakers} == {"_jax"}


def test_programs_are_opened_in_one_place():
    """There is one open_jaxpr, and equations that are calls are named in one file, JAX's and ours."""
    nodes = [(name, node) for name, path in FILES.items() for node in ast.walk(ast.parse(path.read_text()))]
    names = {"closed_call", "custom_jvp_call", "custom_vjp_call", "custom_vmap_call", "fnjax_call", "fnjax_linear"}
    assert [f for f, n in nodes if isinstance(n, ast.FunctionDef) and n.name == "open_jaxpr"] == ["_jax.jax_internals"]
    assert {f for f, n in nodes if isinstance(n, ast.Constant) and n.value in names} == {"_jax.programs"}


def test_insides_of_jax_are_read_in_one_place():
    """What traces, tracers and the equations of loops and branches hold, beyond public names, one file knows."""
    inside = re.compile(
        r"\b_trace\b|parent_trace|tangent_trace|axis_data|is_high|to_lojax|call_jaxpr"
        r"|params\[.(jaxpr|branches|body_jaxpr|\w+_nconsts|mesh|\w+_specs|newly_manual_axes)"
    )
    files = {name: path.read_text() for name, path in FILES.items() if not name.startswith(("port.", "torch."))}
    assert {name for name, text in files.items() if inside.search(text)} == {"_jax.jax_internals"}


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import fnjax, fnjax.graph, fnjax.port", "jax numpy libcst graphviz torch"),
        ("from fnjax import *", "libcst graphviz torch optax matplotlib tqdm"),
    ],
)
def test_import_loads_no_extras(statement, absent):
    """`import fnjax` loads not even JAX; its names load neither libcst, graphviz nor torch, nor what examples need."""
    code = f"import sys\n{statement}\nprint([m for m in {absent.split()} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("package", ["fnjax", "fnjax.graph", "fnjax.port"])
def test_public_names_are_imported_when_they_are_asked_for(package):
    """What runs and what type checkers read are the same names; dir has them, and the first access keeps them."""
    module = importlib.import_module(package)
    found = [n for n in ast.walk(ast.parse(pathlib.Path(module.__file__).read_text())) if isinstance(n, ast.ImportFrom)]
    checked = {
        alias.asname: node.module
        for node in found
        for alias in node.names
        if node.module not in {"fnjax", "fnjax._lazy"}
    }
    assert checked == module._HOMES
    assert sorted(checked) == sorted(module.__all__)
    assert {*checked, "__name__"} <= set(dir(module))
    for name, home in checked.items():
        assert getattr(module, name) is getattr(importlib.import_module(home), name)
        assert name in vars(module)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018 - the access is the test


@pytest.mark.parametrize("name", ["collectives", "graph", "port", "torch", "triton"])
def test_public_modules_are_imported_when_they_are_asked_for(name):
    """`import fnjax` suffices for `fnjax.torch` and the other public modules, in a fresh interpreter too."""
    code = f"import sys, fnjax\nassert 'fnjax.{name}' not in sys.modules\nprint(fnjax.{name}.__name__)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == f"fnjax.{name}\n"
    assert name in dir(fnjax)


def test_exceptions_are_unpickled_where_fnjax_is_not_imported():
    """An exception of another process comes back as it was, wherever it is read first."""
    sent = pickle.dumps(fnjax.GradientError("two"))
    code = f"import pickle; print(repr(pickle.loads({sent!r})))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "GradientError('two')\n"


def test_public_names_show_their_public_module():
    """Tracebacks show `fnjax.GradientError`, not the private file."""
    public = [getattr(fnjax, name) for name in fnjax.__all__]
    errors = [v for v in public if isinstance(v, type) and issubclass(v, fnjax.FnjaxError)]
    assert len(errors) >= 9
    assert {e.__module__ for e in errors} == {"fnjax"}
