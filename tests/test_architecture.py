"""The layers of the package: imports point downwards, and public names are loaded when they are asked for."""

import ast
import functools
import graphlib
import importlib
import pathlib
import pickle
import re
import subprocess
import sys

import pytest

import fnjax

PACKAGE = pathlib.Path(fnjax.__file__).parent
ROOT = pathlib.Path(__file__).parents[1]
# From the ground up: a file imports files of its own layer and of those before it, and no cycle of files is allowed.
# A name is a package or a file; where several fit (`torch.errors`, `torch`), the longest counts.
LAYERS = [
    "_lazy _contexts _machine _progress errors",
    "_primitives",
    "_function collectives",
    "_op _split",
    "triton.absent triton.values",
    "triton.interpreter",
    "triton.debug triton.language triton.tools",
    "triton",
    "_check graph",
    "_cli",
    "_torch_ops.syntax",
    "_torch_ops",
    "torch.errors",
    "torch.recording",
    "torch.memory",
    "torch.deferred",
    "torch.host",
    "torch.views",
    "torch.dispatch",
    "torch.names",
    "torch._autograd",
    "torch.control.lowering torch.control.state",
    "torch.control",
    "torch.functions",
    "torch.interop",
    "torch._nn",
    "torch.loading",
    "torch._all_names",
    "torch",
    "port.result port.tree port.torch port.known",
    "port.source",
    "port.analysis",
    "port.rewrite",
    "port.engine port.compare port.verify",
    "port __main__",
]
# The extras, and the packages that may import them.
EXTRAS = {
    "graphviz": "graph",
    "jax_triton": "triton",
    "libcst": "port",
    "matplotlib": "triton.debug",
    "pytest": "_cli.pytest_plugin",
    "torch": "port.compare port.verify",
    "triton": "triton port.compare",
}


FILES = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def nodes(path):
    """Return all nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text())))


def imports(path):
    """Yield the absolute names that a file imports: `fnjax.port.result.Finding`, `jax`."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(name):
    """Return the file of fnjax that an imported name is, or that defines it."""
    parts = name.split(".")[1:]
    for n in range(len(parts), -1, -1):
        for found in (".".join(parts[:n]), ".".join([*parts[:n], "__init__"])):
            if found in FILES:
                return found
    raise AssertionError(name)


def read_graph():
    """Return the files that each file imports, without `fnjax/__init__.py`, which imports nothing until it is asked."""
    graph = {
        name: {module_of(full) for full in imports(path) if full.split(".")[0] == "fnjax"}
        for name, path in FILES.items()
    }
    return {name: found - {"__init__"} for name, found in graph.items() if name != "__init__"}


def layer_of(file, layers=LAYERS):
    """Return the number of the layer that a file belongs to; raise KeyError for a file of no layer."""
    numbers = {name: number for number, layer in enumerate(layers) for name in layer.split()}
    name = file
    while name not in numbers and "." in name:
        name = name.rpartition(".")[0]
    return numbers[name]


def upward_imports(graph, layers=LAYERS):
    """Return the imports of a file in a higher layer, as pairs (importing file, imported file)."""
    level = {file: layer_of(file, layers) for file in {*graph, *(f for found in graph.values() for f in found)}}
    return sorted((file, other) for file, found in graph.items() for other in found if level[other] > level[file])


def import_cycle(graph):
    """Return the files of one cycle of imports, the first again at the end, or an empty list."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_imports_point_downwards():
    """Each file belongs to a layer, imports only files of it and of lower ones, and no imports form a cycle."""
    graph = read_graph()
    assert upward_imports(graph) == []
    assert import_cycle(graph) == []


def test_layers_name_packages_and_files():
    """Each name of the layers is a package or file with code in it, and occurs once."""
    names = " ".join(LAYERS).split()
    assert len(names) == len(set(names))
    assert [name for name in names if name not in {*FILES, *(f.rpartition(".")[0] for f in FILES)}] == []
    assert {layer_of(file) for file in read_graph()} == set(range(len(LAYERS)))


def test_an_upward_import_is_found():
    """An import of a higher layer is reported; one of a lower or of the same layer is not."""
    layers = ["_low", "a a.special", "b"]
    good = {"_low": set(), "a.x": {"_low", "a.y"}, "a.y": {"a.special.z"}, "a.special.z": set(), "b": {"a.x", "_low"}}
    assert upward_imports(good, layers) == []
    assert upward_imports(good | {"_low": {"a.y"}, "a.y": {"b"}}, layers) == [("_low", "a.y"), ("a.y", "b")]
    with pytest.raises(KeyError, match="c"):
        upward_imports(good | {"c": set()}, layers)


def test_an_import_cycle_is_found():
    """A cycle of files is reported, also within one package, where layers do not see it."""
    assert import_cycle({"a.x": {"a.y"}, "a.y": {"a.z", "b"}, "b": set()}) == []
    assert set(import_cycle({"a.x": {"a.y"}, "a.y": {"a.z"}, "a.z": {"a.x"}})) == {"a.x", "a.y", "a.z"}


def test_only_declared_packages_are_imported():
    """A file imports fnjax, the standard library, public names of jax and numpy, and an extra only in its package."""
    importers = {}
    for name, path in FILES.items():
        for full in imports(path):
            assert not full.startswith("jax._"), (name, full)
            root = full.split(".")[0]
            if root not in {"fnjax", "jax", "numpy", *sys.stdlib_module_names}:
                importers.setdefault(root, set()).add(name)
    assert set(importers) == set(EXTRAS)
    for extra, names in importers.items():
        assert [name for name in names if not name.startswith(tuple(EXTRAS[extra].split()))] == []
        assert extra in {"libcst", "torch", "triton"} or len(names) == 1, names


def test_the_porter_shares_the_table_and_loads():
    """Nothing but the porter imports fnjax.torch, of which it has what loads and compares, or its table."""
    importers = {}
    for name, path in FILES.items():
        found = {full.removeprefix("fnjax.") for full in imports(path) if full.startswith("fnjax.torch")}
        if found and not name.startswith("torch.") and name != "__init__":
            importers[name] = found
    for name, path in FILES.items():
        if any(full.startswith("fnjax._torch_ops") for full in imports(path)):
            assert name.split(".")[0] in {"_torch_ops", "torch", "port"}, name
    assert importers.pop("port.compare.in_fnjax_torch") == {
        *("torch", "torch.functions.creation.uninitialised", "torch.loading.load.list_files"),
    }
    assert {full.rpartition(".")[0] for full in importers.pop("port.load_command")} == {"torch.loading.report"}
    assert set().union(*importers.values()) == {"torch"}, importers


def test_only_the_primitives_speak_of_interpreters():
    """JAX's interpreters are met where rules become equations, and nowhere else."""
    speakers = {name for name, p in FILES.items() if any(n.startswith("jax.interpreters") for n in imports(p))}
    others = {name for name in speakers if not name.startswith("_primitives.")}
    assert others == {
        *("_split.control_flow", "_split.partition", "collectives.device_copies"),
        *("triton.interpreter.host_report", "triton.platform_switch", "triton.values.rounding"),
    }


def test_programs_are_opened_in_one_place():
    """There is one open_jaxpr, and equations that are calls are named in one file, JAX's and ours."""
    found = [(name, node) for name, path in FILES.items() for node in nodes(path)]
    names = {"closed_call", "custom_jvp_call", "custom_vjp_call", "custom_vmap_call", "fnjax_call", "fnjax_linear"}
    openers = [f for f, n in found if isinstance(n, ast.FunctionDef) and n.name == "open_jaxpr"]
    assert openers == ["_primitives.jax_internals"]
    assert {f for f, n in found if isinstance(n, ast.Constant) and n.value in names} == {"_primitives.jaxprs"}


# jax.tree sorts keys, and fails where they do not sort.
USES_JAX_TREE = {
    "_primitives.tree": "the one place",
    "_primitives.trace": "lists of arrays of rules",
    "_primitives.sharding": "lists of cotangents",
    "_primitives.jaxprs": "parameters of equations",
    "_split.vjp": "a transformation, whose pytrees are sorted like those of jax.vjp, under jax.jit and without it",
    "_check.compiled": "the arguments and results of its own programs",
    "_check.opcheck": "lists of results",
    "collectives.varying": "results of the branches that a port passes to cond",
}


def test_users_containers_are_flattened_in_one_place():
    """The core uses jax.tree on containers of its own only; those of users are flattened by `_primitives.tree`."""
    users = set()
    for name, path in FILES.items():
        used = [ast.unparse(n) for n in nodes(path) if isinstance(n, ast.Attribute)]
        if any(re.match(r"jax\.(tree\.|tree_util\.tree_)", found) for found in (*used, *imports(path))):
            users.add(name)
    assert {name for name in users if not name.startswith(("_torch_ops.", "port.", "torch.", "triton."))} == set(
        USES_JAX_TREE
    )


def test_the_table_of_tests_is_complete():
    """CONTRIBUTING.md's table names tests for each file of the package; all that it names exists, no test is absent."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("| Changed | Tests |")[2].partition("\n## ")[0]
    rows = [[re.findall("`([^`]+)`", cell) for cell in line.split("|")[1:3]] for line in text.splitlines()[2:] if line]
    files, tests = ([name for row in rows for name in row[at]] for at in (0, 1))
    assert len(files) == len(set(files))
    assert [name for name in files if not (ROOT / name).exists()] == []
    assert [name for name in tests if not (ROOT / "tests" / name).exists()] == []
    of_package = [path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py")]
    assert [path for path in of_package if not path.startswith(tuple(files))] == []
    of_tests = [path.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    assert [path for path in of_tests if not path.startswith(tuple(tests))] == []


def test_insides_of_jax_are_read_in_one_place():
    """Insides of traces and tracers are read in one file, parameters of equations in another."""
    inside = re.compile(
        r"\b_trace\b|parent_trace|tangent_trace|axis_data|is_high|to_lojax|call_jaxpr"
        r"|params\[.(jaxpr|branches|body_jaxpr|\w+_nconsts|mesh|\w+_specs|newly_manual_axes)"
    )
    files = {name: path.read_text() for name, path in FILES.items() if not name.startswith(("port.", "torch."))}
    assert {name for name, text in files.items() if inside.search(text)} == {
        "_primitives.jax_internals",
        "_primitives.jax_equations",
    }


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
    """Lazy names and those of type checkers are the same; dir lists no others, and the first access keeps them."""
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
    modules = {"collectives", "errors", "graph", "port", "torch", "triton"} if module is fnjax else set()
    assert {name for name in dir(module) if not name.startswith("__")} == {*checked, *modules}
    assert "__name__" in dir(module)
    for name, home in checked.items():
        assert getattr(module, name) is getattr(importlib.import_module(home), name)
        assert name in vars(module)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018 - the access is the test


@pytest.mark.parametrize("name", ["collectives", "errors", "graph", "port", "torch", "triton"])
def test_public_modules_are_imported_when_they_are_asked_for(name):
    """`import fnjax` suffices for `fnjax.torch` and the other public modules, in a fresh interpreter too."""
    code = f"import sys, fnjax\nassert 'fnjax.{name}' not in sys.modules\nprint(fnjax.{name}.__name__)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == f"fnjax.{name}\n"
    assert name in dir(fnjax)


def test_exceptions_are_unpickled_where_fnjax_is_not_imported():
    """An exception of another process comes back as it was, wherever it is read first."""
    sent = pickle.dumps(fnjax.errors.GradientError("two"))
    assert b"fnjax.errors" in sent
    code = f"import pickle; print(repr(pickle.loads({sent!r})))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "GradientError('two')\n"


def test_public_classes_show_their_public_module():
    """Tracebacks show `fnjax.errors.GradientError`, not a private file; so do the classes of the top namespace."""
    errors = [getattr(fnjax.errors, name) for name in fnjax.errors.__all__]
    assert {e.__module__ for e in errors} == {"fnjax.errors"}
    assert set(errors) == {v for v in vars(fnjax.errors).values() if isinstance(v, type) and issubclass(v, Exception)}
    classes = [value for name in fnjax.__all__ if isinstance(value := getattr(fnjax, name), type)]
    assert fnjax.Function in classes
    assert {c.__module__ for c in classes} == {"fnjax", "fnjax.graph", "numpy"}
