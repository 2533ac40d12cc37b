"""make_dot, saved_report and `fnjax graph` show what JAX runs and saves."""

import importlib.util
import shutil
import sys
from pathlib import Path

import graphviz
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from fnjax.__main__ import main
from fnjax.graph.dot import format_size
from tests.zoo import Dictionary, NumPyExp, Outer, SavedInput, SavedOutput

ROOT = Path(__file__).parent.parent
F32 = jnp.float32
X = jax.ShapeDtypeStruct((1000,), F32)
X_TIMES_5 = jax.ShapeDtypeStruct((5, 1000), F32)
needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="the program dot of graphviz is not installed")


class Sinh(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        up, down = jnp.exp(x), jnp.exp(-x)
        ctx.save_for_backward(up, down)
        return (up - down) / 2

    @staticmethod
    def backward(ctx, g):
        up, down = ctx.saved_tensors
        return g * (up + down) / 2


class Once(SavedInput):
    @staticmethod
    @fnjax.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x


class OnceWithoutSaved(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    @fnjax.once_differentiable
    def backward(ctx, g):
        return 3 * g


class Callback(fnjax.Function):
    """Saves an intermediate that comes from NumPy."""

    @staticmethod
    def forward(ctx, x):
        y = jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")
        ctx.save_for_backward(y)
        return 2 * y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * 2 * jnp.sqrt(1 - y**2)


def edges(picture, kind):
    """(source, target, label, bytes) of the edges of a kind."""
    found = [e for e in picture.graph.edges if e.kind == kind]
    return {(e.source.text, e.target.text, e.label, e.value.bytes) for e in found}


# ---------------------------------------------------------------------------------------------------------------------
# Order 1


def test_saved_input():
    """A Function that saves its input is two boxes, the saved array leading from the input to backward."""
    picture = fnjax.make_dot(SavedInput.apply, X)
    assert {(n.kind, n.text) for n in picture.graph.nodes} == {
        ("input", "x  float32[1000]"),
        ("forward", "SavedInput"),
        ("output", "output  float32[1000]"),
        ("grad output", "grad output"),
        ("backward", "SavedInput.backward"),
        ("gradient", "grad x"),
    }
    assert edges(picture, "saved") == {("x  float32[1000]", "SavedInput.backward", "input x", 4000)}
    assert edges(picture, "value") == {
        ("x  float32[1000]", "SavedInput", "", 4000),
        ("SavedInput", "output  float32[1000]", "", 4000),
    }
    assert edges(picture, "gradient") == {
        ("grad output", "SavedInput.backward", "", 4000),
        ("SavedInput.backward", "grad x", "", 4000),
    }


def test_saved_output_and_intermediates():
    """A saved output and saved intermediates lead from the box of forward to that of backward."""
    assert edges(fnjax.make_dot(SavedOutput.apply, X), "saved") == {
        ("SavedOutput", "SavedOutput.backward", "output", 4000)
    }
    assert edges(fnjax.make_dot(Sinh.apply, X), "saved") == {
        ("Sinh", "Sinh.backward", "intermediate 0 (exp)", 4000),
        ("Sinh", "Sinh.backward", "intermediate 1 (exp)", 4000),
    }


def test_operations_between():
    """JAX's own operations stand between the boxes; a chain of them is one node, and what they save is drawn too."""
    picture = fnjax.make_dot(lambda x: jnp.sum(SavedOutput.apply(jnp.sin(SavedInput.apply(x))) * 2), X)
    assert edges(picture, "saved") == {
        ("x  float32[1000]", "SavedInput.backward", "input x", 4000),
        ("cos", "mulᵀ", "", 4000),
        ("SavedOutput", "SavedOutput.backward", "output", 4000),
    }
    assert ("SavedOutput", "mul reduce_sum", "", 4000) in edges(picture, "value")
    assert ("reduce_sumᵀ mulᵀ", "SavedOutput.backward") not in edges(picture, "gradient")
    assert ("mulᵀ", "SavedInput.backward", "", 4000) in edges(picture, "gradient")


def test_opened():
    """An opened Function shows the operations of its methods, each in a box of its own; the others stay closed."""
    picture = fnjax.make_dot(lambda x: Sinh.apply(SavedInput.apply(x)), X, opened="Sinh")
    boxes = {n.scope.label for n in picture.graph.nodes if n.scope}
    assert boxes == {"Sinh.forward", "Sinh.backward"}
    assert {n.text for n in picture.graph.nodes if n.scope and n.scope.label == "Sinh.backward"} == {
        "saved intermediate 0 (exp)",
        "saved intermediate 1 (exp)",
        "grad_output",
        "add mul div",
    }
    assert {n.text for n in picture.graph.nodes if n.kind == "backward"} == {"SavedInput.backward"}
    everything = fnjax.make_dot(lambda x: Sinh.apply(SavedInput.apply(x)), X, opened=True)
    assert not [n for n in everything.graph.nodes if n.kind in {"forward", "backward"}]


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint, jax.vmap], ids=["jit", "remat", "vmap"])
def test_calls_in_nested_programs(wrap):
    """A call inside jit, remat or vmap is drawn as by itself, also when its traces are shared."""
    for _ in range(3):  # from the second call on, calls share their traces
        picture = fnjax.make_dot(wrap(lambda x: SavedOutput.apply(SavedOutput.apply(x))), X)
        found = [e for e in picture.graph.edges if e.kind == "saved" and e.label]
        assert [(e.source.text, e.target.text, e.value.bytes) for e in found] == [
            ("SavedOutput", "SavedOutput.backward", 4000)
        ] * 2
        forward, backward = (e.source for e in found), (e.target for e in found)
        assert len(set(forward)) == len(set(backward)) == 2


def test_scan():
    """A call inside a scan lies in its box, and what it saves counts as often as the scan runs."""
    picture = fnjax.make_dot(
        lambda x, w: jax.lax.scan(lambda c, w: (SavedOutput.apply(c * w), None), x, w)[0], X, X_TIMES_5
    )
    (edge,) = [e for e in picture.graph.edges if e.label == "output"]
    assert edge.source.scope.label == "scan, 5 times"
    assert edge.value.bytes == 5 * 4000


def test_cond_and_while():
    """Calls in the branches of a cond and in the body of a loop are found."""
    picture = fnjax.make_dot(lambda x: jax.lax.cond(x[0] > 0, SavedOutput.apply, SavedInput.apply, x), X)
    assert {n.scope.label for n in picture.graph.nodes if n.kind == "backward"} == {
        "cond, branch 0",
        "cond, branch 1",
    }
    picture = fnjax.make_dot(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: SavedOutput.apply(x), x), X)
    assert [n.text for n in picture.graph.nodes if n.kind == "backward"] == ["SavedOutput.backward"]


def test_names():
    """Inputs go by the names of the signature, leaves of pytrees by their paths, and by params where it says so."""
    weight = jnp.ones(3, F32)

    def loss(params, *xs):
        return Outer.apply(params["layers"][0].astype(F32), xs[1]).sum() + xs[0].sum()

    args = {"layers": [np.ones(3, np.float32)]}, weight, np.ones(3)
    inputs = [n.lines[0].split()[0] for n in fnjax.make_dot(loss, *args).graph.nodes if n.kind == "input"]
    assert inputs == ["params.layers[0]", "xs[0]", "xs[1]"]
    renamed = fnjax.make_dot(loss, *args, params={"w": weight})
    assert "w  float32[3]" in [n.text for n in renamed.graph.nodes if n.kind == "input"]


def test_argnums():
    """Only the chosen arguments are differentiated: the others have no gradient."""
    picture = fnjax.make_dot(Outer.apply, X, X, argnums=1)
    assert [n.text for n in picture.graph.nodes if n.kind == "gradient"] == ["grad y"]
    assert [n.text for n in fnjax.make_dot(Outer.apply, X, X).graph.nodes if n.kind == "gradient"] == [
        "grad x",
        "grad y",
    ]


def test_many_inputs_share_nodes():
    """With many inputs, those that lead to one place are one node, and so are their gradients."""

    def f(params):
        return sum(Outer.apply(p["x"], p["w"]) for p in params)

    picture = fnjax.make_dot(f, [{"x": X, "w": X} for _ in range(6)])
    assert [len(n.lines) for n in picture.graph.nodes if n.kind == "gradient"] == [2] * 6
    assert sum(len(n.lines) for n in picture.graph.nodes if n.kind == "input") == 12


# ---------------------------------------------------------------------------------------------------------------------
# Order 2


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (SavedInput, ["to the argument x"]),
        (SavedOutput, ["through the rule of SavedOutput again"]),
        (Sinh, ["through the operations of forward"] * 2),
        (NumPyExp, ["through the rule of NumPyExp again"]),
        (Once, ["once_differentiable"]),
        (OnceWithoutSaved, []),
        (Callback, ["JAX cannot differentiate what made it: Pure callbacks do not support JVP. Please use"]),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_second_order(function, expected):
    """The picture says of each saved array where its second derivative goes; it stops where JAX raises."""
    picture = fnjax.make_dot(function.apply, X, order=2)
    routes = [e.route for e in picture.graph.edges if e.kind == "saved"]
    assert len(routes) == len(expected)
    assert all(r.text.startswith(e) for r, e in zip(routes, expected, strict=True))
    report = fnjax.saved_report(function.apply, X)
    assert [r.second_order for r in report.rows] == [r.text for r in routes]
    (stop,) = [why for _, why in report.calls]
    try:
        jax.grad(jax.grad(lambda x: function.apply(x) ** 2))(jnp.float32(0.5))
    except fnjax.errors.FnjaxError:
        assert stop
        assert "Double backward stops at" in str(report)
    else:
        assert not stop
        assert all(r.goes for r in routes)


def test_second_order_opens_what_matters():
    """Order 2 opens each backward, and a forward that saved an intermediate; once_differentiable is a wall."""
    graph = fnjax.make_dot(SavedOutput.apply, X, order=2).graph
    assert {n.scope.label for n in graph.nodes if n.scope} == {"SavedOutput.backward"}
    graph = fnjax.make_dot(Sinh.apply, X, order=2).graph
    assert {n.scope.label for n in graph.nodes if n.scope} == {"Sinh.forward", "Sinh.backward"}
    graph = fnjax.make_dot(Once.apply, X, order=2).graph
    assert [n.text for n in graph.nodes if n.stops] == ["once_differentiable"]


def test_what_backward_is_constant_in():
    """A saved array whose derivative in backward is zero, or an integer one, leads nowhere at second order."""

    class Sign(fnjax.Function):
        @staticmethod
        def forward(ctx, x, n):
            ctx.save_for_backward(x, n)
            return jnp.abs(x)

        @staticmethod
        def backward(ctx, g):
            x, n = ctx.saved_tensors
            return jnp.where(x > 0, g, -g) * n, None

    report = fnjax.saved_report(Sign.apply, X, jax.ShapeDtypeStruct((), jnp.int32))
    assert [r.second_order for r in report.rows] == ["Sign.backward does not vary with it", "int32 has no derivative"]


# ---------------------------------------------------------------------------------------------------------------------
# The report


def network(w, x):
    for _ in range(3):
        x = SavedOutput.apply(jnp.tanh(Sinh.apply(x @ w)))
    return jnp.sum(SavedInput.apply(x))


@pytest.mark.parametrize(
    ("f", "args"),
    [
        (SavedInput.apply, (np.ones(7, np.float32),)),
        (Sinh.apply, (np.ones((2, 3), np.float32),)),
        (lambda x: SavedInput.apply(x) + Once.apply(x), (np.ones(7, np.float32),)),
        (network, (np.eye(4, dtype=np.float32) / 9, np.ones((2, 4), np.float32))),
    ],
    ids=["SavedInput", "Sinh", "shared", "network"],
)
def test_bytes_are_those_of_the_pullback(f, args):
    """The totals are the bytes of the arrays that jax.vjp holds on to, each counted once."""
    _, pullback = jax.vjp(f, *map(jnp.asarray, args))
    held = {leaf.unsafe_buffer_pointer(): leaf.nbytes for leaf in jax.tree.leaves(pullback)}
    report = fnjax.saved_report(f, *args)
    assert report.nbytes + report.other_nbytes == sum(held.values())


def test_report_names_outputs_without_gradient():
    """A saved output that is marked non-differentiable is named as the output that it is."""

    class LogSumExp(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            lse = jnp.log(jnp.exp(x).sum()) + 0
            ctx.save_for_backward(x, lse)
            ctx.mark_non_differentiable(lse)
            return x - lse, lse

        @staticmethod
        def backward(ctx, g, _):
            x, lse = ctx.saved_tensors
            return g - jnp.exp(x - lse) * g.sum()

    rows = fnjax.saved_report(LogSumExp.apply, X).rows
    assert [r.name for r in rows] == ["input x", "output 1 (no gradient)"]
    assert rows[1].second_order == "through the operations of forward"


def test_report_rows():
    """The rows say who keeps what; an array that two Functions keep has a row for each, and counts once."""
    report = fnjax.saved_report(lambda x: SavedInput.apply(x) + Outer.apply(x, x[:1]), X)
    assert [(r.function, r.kind, r.name, r.shape, r.dtype, r.nbytes, r.used_by) for r in report.rows] == [
        ("SavedInput", "input", "input x", (1000,), "float32", 4000, ("SavedInput.backward", "Outer.backward")),
        ("Outer", "input", "input x", (1000,), "float32", 4000, ("SavedInput.backward", "Outer.backward")),
        ("Outer", "input", "input y", (1,), "float32", 4, ("Outer.backward",)),
    ]
    assert (report.nbytes, report.argument_nbytes, report.other_nbytes) == (4004, 4000, 0)


def test_report_prints_a_table():
    """The text has a line for each row, the totals, and the verdict on double backward."""
    lines = str(fnjax.saved_report(lambda x: SavedOutput.apply(SavedInput.apply(x)), X)).splitlines()
    assert lines[0].split() == ["Function", "keeps", "array", "bytes", "used", "by", "second", "order"]
    assert lines[2].startswith("SavedInput   input x  float32[1000]  3.9 KiB")
    assert lines[-3:] == [
        "Functions keep 7.8 KiB, of which 3.9 KiB are arguments.",
        "JAX's own operations keep 0 B more.",
        "Double backward goes through every Function.",
    ]


def test_report_without_functions():
    """The report says if no Function is differentiated; a Function that saves nothing has a row of its own."""
    sine = str(fnjax.saved_report(jnp.sin, X))
    assert sine == "No Function is differentiated here. JAX's own operations keep 3.9 KiB."
    lines = str(fnjax.saved_report(OnceWithoutSaved.apply, X)).splitlines()
    assert lines[2].split() == ["OnceWithoutSaved", "nothing"]


def test_arrays_in_a_pytree_have_their_paths():
    """Arrays that a Function with pytree = True keeps of a container are named by their path in it."""
    report = fnjax.saved_report(Dictionary.apply, {"w": X, "b": X}, X)
    assert [r.name for r in report.rows] == ["input parameters.w", "input parameters.b", "input x"]


def test_a_class_stands_for_its_apply():
    """A Function class is drawn and reported as its apply is."""
    assert str(fnjax.saved_report(SavedInput, X)) == str(fnjax.saved_report(SavedInput.apply, X))
    assert fnjax.make_dot(SavedInput, X).source == fnjax.make_dot(SavedInput.apply, X).source


def test_report_of_a_checkpoint():
    """Arrays kept by a call inside jax.checkpoint are marked as recomputed."""
    report = fnjax.saved_report(jax.checkpoint(SavedOutput.apply), X)
    assert [r.recomputed for r in report.rows] == [True]
    assert "(recomputed)" in str(report)
    assert [r.recomputed for r in fnjax.saved_report(SavedOutput.apply, X).rows] == [False]


def test_captured_array_and_jvp_only():
    """A Function with an array from outside, and one that has only a jvp, have their rows too."""

    class Double(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_forward(x)
            return x * x

        @staticmethod
        def jvp(ctx, t):
            (x,) = ctx.saved_tensors
            return 2 * x * t

    assert [r.name for r in fnjax.saved_report(Double.apply, X).rows] == ["input x"]
    assert fnjax.make_dot(Double.apply, X, order=2).graph.named("Double.backward")

    def with_outer(x, w):
        class Captured(SavedInput):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x**2 * jax.lax.stop_gradient(w)

            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                return 2 * g * x * jax.lax.stop_gradient(w)

        return Captured.apply(x)

    assert fnjax.saved_report(jax.jit(with_outer), X, X, argnums=0).nbytes > 0


def test_shard_map():
    """Inside shard_map the rows are there; a backward that names a mesh axis cannot be judged by itself, and stays."""

    class Shared(Outer):
        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * jnp.sin(y), jax.lax.psum(g * x * jnp.cos(y), "i")

    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spread, whole = jax.sharding.PartitionSpec("i"), jax.sharding.PartitionSpec()
    for function, known in ((Outer, True), (Shared, False)):
        f = jax.shard_map(function.apply, mesh=mesh, in_specs=(spread, whole), out_specs=spread)
        report = fnjax.saved_report(f, X, jax.ShapeDtypeStruct((), F32))
        assert [r.name for r in report.rows] == ["input x", "input y"]
        assert not any(r.stops for r in report.rows)
        assert all(r.second_order.startswith("to the argument") == known for r in report.rows)
        assert ("Double backward goes through every Function." in str(report)) == known
        picture = fnjax.make_dot(f, X, jax.ShapeDtypeStruct((), F32), order=2)
        assert bool(picture.graph.named(f"{function.__name__}.backward")) != known


def test_random_keys():
    """A key among the arguments is an input without a gradient."""
    picture = fnjax.make_dot(lambda key, x: SavedInput.apply(x * jax.random.normal(key, x.shape)), jax.random.key(0), X)
    assert [n.text for n in picture.graph.nodes if n.kind == "gradient"] == ["grad x"]


@pytest.mark.parametrize(("n", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 20, "3.0 MiB")])
def test_sizes(n, text):
    """Bytes are written as one reads them."""
    assert format_size(n) == text


# ---------------------------------------------------------------------------------------------------------------------
# What cannot be drawn, and drawing


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fnjax.make_dot(SavedInput.apply, X, order=3), "order must be 1 or 2, got 3"),
        (lambda: fnjax.make_dot(SavedInput.apply, 3.0), "nothing to differentiate"),
        (lambda: fnjax.saved_report(SavedInput.apply, jnp.arange(3)), "nothing to differentiate"),
        (lambda: fnjax.make_dot(SavedInput.apply, X, params={"w": jnp.ones(1)}), "params names 'w', which is no array"),
        (
            lambda: fnjax.make_dot(SavedInput.apply, X, opened=["SavedOutput"]),
            "opened names SavedOutput; the Functions .* called: SavedInput",
        ),
        (lambda: fnjax.make_dot(SavedInput.apply, X, argnums=1), "argnums 1 names an argument beyond"),
        (lambda: fnjax.make_dot(SavedInput.apply, X).render("x.nothing"), "does not end in a format"),
    ],
)
def test_unusable_input(make, message):
    """A function that cannot be drawn is an error with one sentence."""
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("func", "arg", "message"),
    [
        ("SavedInput", X, "expected a function of JAX arrays, like F.apply of a Function F, got 'SavedInput'"),
        (dict, X, "expected a function of JAX arrays, .* got <class 'dict'>"),
        (SavedInput, type("Tensor", (), {"__module__": "torch"})(), "argument 0 is a torch.Tensor"),
    ],
)
def test_what_is_no_function_or_no_array(func, arg, message):
    """Objects other than functions of JAX arrays, and PyTorch's tensors, are refused by name."""
    for make in (fnjax.make_dot, fnjax.saved_report):
        with pytest.raises(TypeError, match=message):
            make(func, arg)


def test_missing_package(monkeypatch, tmp_path):
    """Without the package graphviz the error says what to install; the DOT text needs nothing."""
    picture = fnjax.make_dot(SavedInput.apply, X)
    monkeypatch.setitem(sys.modules, "graphviz", None)
    with pytest.raises(ImportError, match=r"pip install graphviz"):
        picture.render(tmp_path / "x.svg")
    assert "pip install graphviz" in picture._repr_mimebundle_()["text/plain"]
    picture.render(tmp_path / "x.dot")
    assert (tmp_path / "x.dot").read_text() == picture.source == str(picture)


def test_missing_program(monkeypatch, tmp_path):
    """Without the program dot the error says how to install it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"the program dot of graphviz is not installed.*apt install graphviz"):
        fnjax.make_dot(SavedInput.apply, X).render(tmp_path / "x.svg")


@needs_dot
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("function", [SavedInput, Sinh, Once, Callback], ids=lambda f: f.__name__)
def test_rendering(function, order, tmp_path):
    """Graphviz draws every picture, as a file and for notebooks."""
    picture = fnjax.make_dot(function.apply, X, order=order)
    assert "</svg>" in picture._repr_mimebundle_()["image/svg+xml"]
    path = tmp_path / "picture.png"
    assert picture.render(path) == str(path)
    assert path.read_bytes().startswith(b"\x89PNG")


def positions(picture):
    """For each kind of node the boxes (left, right, bottom) in inches; and (width, height) of the picture."""
    plain = graphviz.Source(picture.source).pipe(format="plain").decode().splitlines()
    kinds = {f"n{i}": node.kind for i, node in enumerate(picture.graph.nodes)}
    boxes = {kind: [] for kind in kinds.values()}
    for line in plain:
        if line.startswith("node "):
            name, x, y, width = line.split()[1:5]
            if name in kinds:
                boxes[kinds[name]].append((float(x) - float(width) / 2, float(x) + float(width) / 2, float(y)))
    return boxes, tuple(map(float, plain[0].split()[2:4]))


@needs_dot
@pytest.mark.parametrize("opened", [False, True], ids=["closed", "opened"])
@pytest.mark.parametrize("function", [SavedInput, Outer, Sinh, Once], ids=lambda f: f.__name__)
def test_forward_is_left_of_backward(function, opened):
    """Outputs stand left of their gradients, whatever is opened."""
    boxes, _ = positions(fnjax.make_dot(function, *[X] * (2 if function is Outer else 1), opened=opened))
    assert max(right for _, right, _ in boxes["output"]) < min(left for left, _, _ in boxes["grad output"])
    for left, right in zip(boxes.get("forward", []), boxes.get("backward", []), strict=True):
        assert left[1] < right[0]


@needs_dot
def test_six_layers_fit_on_a_screen(monkeypatch):
    """A network of six layers, Functions folded, is no larger than 1920 by 1080 pixels, letters in their full size."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # which the script adds to
    spec = importlib.util.spec_from_file_location("draw", ROOT / "docs" / "pictures" / "draw.py")
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    picture = draw.PICTURES["network"]()
    assert sum(node.kind == "backward" for node in picture.graph.nodes) == 12
    _, (width, height) = positions(picture)
    assert width * 96 < 1920
    assert height * 96 < 1080


def test_public_names():
    """make_dot and saved_report are names of fnjax that import nothing until they are asked for."""
    assert {"make_dot", "saved_report", "SavedReport"} <= set(dir(fnjax))
    with pytest.raises(AttributeError, match="no attribute 'make_dots'"):
        fnjax.make_dots  # noqa: B018 - the access is the test


# ---------------------------------------------------------------------------------------------------------------------
# The command


@pytest.fixture
def target(tmp_path):
    """A file with a Function."""
    path = tmp_path / "pictured.py"
    path.write_text(
        "import fnjax\n"
        "class Power(fnjax.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x, k=2):\n"
        "        ctx.save_for_backward(x)\n"
        "        ctx.k = k\n"
        "        return x ** k\n"
        "    @staticmethod\n"
        "    def backward(ctx, g):\n"
        "        x, = ctx.saved_tensors\n"
        "        return g * ctx.k * x ** (ctx.k - 1), None\n"
    )
    yield str(path)
    sys.modules.pop("pictured", None)


def test_command_prints_the_report(target, capsys):
    """Without -o the command prints the table."""
    assert main(["graph", f"{target}:Power", "--args", "randn(4), 3"]) == 0
    assert "Power     input x  float" in capsys.readouterr().out


def test_command_draws(target, capsys, tmp_path):
    """With -o it writes the picture and says where."""
    path = str(tmp_path / "power.dot")
    arguments = ["graph", f"{target}:Power", "--args", "randn(4)", "--kwargs", "k=3", "--order", "2", "--open", "all"]
    assert main([*arguments, "-o", path]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert "saved input x" in (tmp_path / "power.dot").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--args", "3.0"], "nothing to differentiate"),
        (["-o", "x.nothing"], "does not end in a format"),
        (["-o", "no/such/folder.dot"], "No such file"),
        (["-o", "x.dot", "--open", "Cube"], "opened names Cube"),
        (["--args", "randn(1), 2, 3"], "positional arguments"),
    ],
)
def test_command_with_unusable_input(target, capsys, arguments, message):
    """A function that cannot be drawn is reported on stderr, and the exit status is 2."""
    assert main(["graph", f"{target}:Power", *arguments]) == 2
    assert message in capsys.readouterr().err
