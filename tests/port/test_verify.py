"""`fnjax port --verify` and the search of `fnjax compare`."""

import ast
import importlib.util
import json
import os
import shlex
import sys
import textwrap
import threading

import numpy as np
import pytest

import fnjax.torch
from fnjax.__main__ import main
from fnjax._cli.call import load
from fnjax.port import port_source
from fnjax.port.compare.values import Made
from fnjax.port.verify import Job, Verdict, verify
from fnjax.port.verify.calls import Array, draw_call, read_arguments
from fnjax.port.verify.candidates import Options
from fnjax.port.verify.hints import Hints, read_hints
from fnjax.port.verify.searching import Search, _vary_recipe
from fnjax.port.verify.verification import verify_class
from fnjax.port.verify_command import run_verifiers
from tools.port_mutants import mutants

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="runs PyTorch")
parity = pytest.mark.parity
HEAD = """\
import torch
import torch.nn.functional as F
from torch.autograd import Function


"""
SWISH = """\
class Swish(Function):
    @staticmethod
    def forward(ctx, x, beta=1.0):
        ctx.save_for_backward(x)
        ctx.beta = beta
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        s = torch.sigmoid(ctx.beta * x)
        return grad * s * (1 + ctx.beta * x * (1 - s)), None
"""
BRANCH = """\
class Branch(Function):
    @staticmethod
    def forward(ctx, logits, labels, mask=None, reduction="mean", dim=-1):
        p = torch.softmax(logits, dim)
        assert logits.ndim == 2
        loss = -torch.log(p.gather(1, labels.unsqueeze(1)).squeeze(1))
        if mask is not None:
            loss = loss * mask
        ctx.save_for_backward(p, labels, mask)
        ctx.reduction = reduction
        if reduction == "mean":
            return loss.mean()
        elif reduction == "sum":
            return loss.sum()
        raise ValueError(reduction)

    @staticmethod
    def backward(ctx, grad):
        p, labels, mask = ctx.saved_tensors
        g = p - F.one_hot(labels, p.shape[1]).to(p.dtype)
        if mask is not None:
            g = g * mask.unsqueeze(1)
        if ctx.reduction == "mean":
            g = g / p.shape[0]
        return g * grad, None, None, None, None
"""
AFFINE = """\
class Affine(Function):
    @staticmethod
    def forward(ctx, inputs, weight, bias):
        ctx.save_for_backward(inputs, weight)
        return inputs @ weight.t() + bias

    @staticmethod
    def backward(ctx, grad):
        inputs, weight = ctx.saved_tensors
        g_inputs = g_weight = g_bias = None
        if ctx.needs_input_grad[0]:
            g_inputs = grad @ weight
        if ctx.needs_input_grad[1]:
            g_weight = grad.t() @ inputs
        if ctx.needs_input_grad[2]:
            g_bias = grad.sum(0)
        return g_inputs, g_weight, g_bias
"""
PAIR = """\
class Pair(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        large = x > y
        whole = torch.round(2 * x)
        ctx.mark_non_differentiable(large, whole)
        return torch.where(large, x * y, x - 3 * y), large, whole

    @staticmethod
    def backward(ctx, grad, _, other):
        x, y = ctx.saved_tensors
        large = x > y
        gx = torch.where(large, y, torch.ones_like(x)) * grad + other
        gy = torch.where(large, x, torch.full_like(x, -3.0)) * grad
        return gx, gy
"""
HELD = """\
class Held(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x ** 3

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return 3 * grad * x.detach() ** 2
"""
APPLIED = """\
class Applied(Function):
    @staticmethod
    def forward(ctx, x, fn, sizes, config):
        ctx.save_for_backward(x)
        a, b = sizes
        ctx.fn = fn
        return fn(x) * a + b * config["scale"]

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad, None, None, None
"""
CALLED = """\
class Called(Function):
    @staticmethod
    def forward(ctx, x, block, layer, options, scale):
        if ctx.needs_input_grad[4]:
            raise RuntimeError("scale has no gradient")
        n, channels, length = x.shape
        ctx.save_for_backward(x)
        ctx.block, ctx.factor = block, layer.gain().sum() * layer.bits * scale
        assert all(p.requires_grad for p in block.parameters())
        return block(x, **options) * ctx.factor

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.block(x)
        return torch.autograd.grad(y, x, grad * ctx.factor)[0], None, None, None, None
"""
OWN = {"Swish": SWISH, "Branch": BRANCH, "Affine": AFFINE, "Pair": PAIR, "Held": HELD}


def verified(text, name, port=None, **options):
    """The verdict of the library, in this process where nothing is to end it."""
    import torch

    from fnjax.port.verify.verification import verify_class
    from fnjax.port.verify.worker import warm_up

    warm_up("pytorch")
    folder = options.pop("folder")
    original, ported = folder / f"{name}_torch.py", folder / f"{name}_jax.py"
    original.write_text(HEAD + text)
    ported.write_text(port or port_source(HEAD + text).code)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        job = Job(str(original), HEAD + text, name, str(ported), **{"seconds": 60, "enough": 14, **options})
        return verify_class(job, lambda *_, **__: None)
    finally:
        torch.set_num_threads(threads)


@parity
@needs_torch
@pytest.mark.parametrize("name", OWN)
def test_right_ports_are_verified(name, tmp_path):
    """Arguments are found without help, every line of the class runs, and both sides agree."""
    verdict = verified(OWN[name], name, folder=tmp_path)
    assert (verdict.status, verdict.calls) == ("verified", 14), verdict
    unseen = [line for line in verdict.unseen if "raise" not in (HEAD + OWN[name]).splitlines()[line - 1]]
    assert verdict.lines > 3
    assert not unseen, verdict


# Mistakes that no call tells from the port: the gradient of what is marked is zero, what is constant stays so,
# PyTorch takes what forward computed for constant, and Branch takes matrices only.
EQUIVALENT = {"Branch": ["literal", "literal", "stop more", "stop more"], "Pair": ["sign"], "Held": ["stop more"]}


@parity
@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_mistakes_differ(name, tmp_path):
    """Nearly every mistake of the benchmark's list, put into a right port, is found; the others agree on every call."""
    port = port_source(HEAD + OWN[name]).code
    found, kinds = [], set()
    for i, mutant in enumerate(mutants(port)):
        folder = tmp_path / str(i)
        folder.mkdir()
        kinds.add(mutant.kind)
        verdict = verified(OWN[name], name, mutant.text, folder=folder, shrinks=False)
        if verdict.status != "differs":
            found.append((mutant.kind, mutant.text.splitlines()[mutant.line - 1].strip()))
    assert kinds
    assert [kind for kind, _ in found] == EQUIVALENT.get(name, []), found


WEIGHTED = """\
class Weighted(Function):
    @staticmethod
    def forward(ctx, x, weights):
        ctx.save_for_backward(x, weights)
        return x**2 * weights

    @staticmethod
    def backward(ctx, grad):
        x, weights = ctx.saved_tensors
        return grad * 2 * x * weights, (x**2 * grad).sum(-1, keepdim=True)
"""


@parity
@needs_torch
def test_an_argument_with_a_gradient_is_not_drawn_as_integers_only(tmp_path):
    """Backward returns one weight a row, so that real weights need that shape; integers of any shape pass."""
    port = port_source(HEAD + WEIGHTED).code
    assert verified(WEIGHTED, "Weighted", folder=tmp_path).status == "verified"
    saved = "x, weights = ctx.saved_tensors\n"
    assert saved in port
    wrong = port.replace(saved, f"{saved}        weights = jax.lax.stop_gradient(weights)\n")
    verdict = verified(
        WEIGHTED,
        "Weighted",
        f"import jax\n{wrong}".replace("from __future__ import annotations\n", ""),
        folder=tmp_path,
    )
    assert (verdict.status, "second derivative of argument" in verdict.reason) == ("differs", True), verdict


def test_each_argument_is_varied_before_a_third_value_of_one():
    """A flag after a parameter with many likely values has its other value among the first calls."""
    options = [Options(Hints("count", "int"), fnjax.torch), Options(Hints("flag", "bool"), fnjax.torch)]
    assert [*_vary_recipe((2, True), options)][:2] == [(3, True), (2, False)]


def test_shapes_are_varied_with_the_arguments():
    """More axes, and one of size 1 between others, come before the last values of an argument."""
    options = [Options(Hints("x", "Tensor"), fnjax.torch), Options(Hints("count", "int"), fnjax.torch)]
    varied = [*_vary_recipe((Array((3, 4)), 2), options)]
    assert varied[:4] == [(Array((3, 4)), 3), (Array((2, 3, 4)), 2), (Array((3, 4)), 1), (Array((2, 1, 4)), 2)]


SECOND_CALLS = {
    "few steps": (
        (
            "        y = torch.ones_like(x)\n        for _ in range(n):\n            y = (y + x / y) / 2\n"
            "        ctx.save_for_backward(y)\n        return y\n"
        ),
        "        y, = ctx.saved_tensors\n        return g / (2 * y), None\n",
        ("jnp.ones_like(x)", "9 * jnp.ones_like(x)"),
        (Array((3, 4), "positive"), 50),
    ),
    "a mask between zero and one": (
        "        ctx.save_for_backward(x, n)\n        return x * x * n\n",
        "        x, n = ctx.saved_tensors\n        return 2 * x * n * g, None\n",
        ("2 * x", "2 * jax.lax.stop_gradient(x)"),
        (Array((3, 4)), Array((3, 4), "marks")),
    ),
}


@pytest.mark.parametrize(("forward", "backward", "mistake", "recipe"), SECOND_CALLS.values(), ids=SECOND_CALLS)
def test_the_second_call_differs(tmp_path, monkeypatch, forward, backward, mistake, recipe):
    """Fewer iterations, and second derivatives where a mask was drawn as zeros and ones, come right after the start."""
    text = HEAD + (
        f"class Second(Function):\n    @staticmethod\n    def forward(ctx, x, n):\n{forward}"
        f"    @staticmethod\n    def backward(ctx, g):\n{backward}"
    )
    port = "import jax\n" + port_source(text).code
    assert mistake[0] in port
    monkeypatch.setattr(Search, "find_first", lambda self, until: self.calls(draw_call(recipe, 0)))
    for kind, code in {"verified": port, "differs": port.replace(*mistake)}.items():
        original, made = tmp_path / "second.py", tmp_path / f"{kind}.py"
        original.write_text(text)
        made.write_text(code)
        job = Job(str(original), text, "Second", str(made), code, enough=2, shrinks=False, against="fnjax.torch")
        assert verify_class(job, lambda *_, **__: None).status == kind


@parity
@needs_torch
def test_the_call_can_be_pasted(tmp_path, capsys, monkeypatch):
    """A difference exits with 3 and prints a small call; pasted, this shows the difference again and exits with 1."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(HEAD + SWISH)
    right = port_source(HEAD + SWISH).code
    wrong = right.replace("* (1 - s)", "* (1 + s)")
    assert wrong != right
    (tmp_path / "b.py").write_text(wrong)
    assert main(["compare", "a.py", "b.py", "--report", "r.json", "--seconds", "10"]) == 3
    said = capsys.readouterr().err
    assert "Swish: differs: eager gradient of argument 0" in said
    pasted = next(line for line in said.splitlines() if line.strip().startswith("fnjax compare"))
    assert main(shlex.split(pasted)[1:]) == 1
    assert "FAIL eager gradient of argument 0" in capsys.readouterr().out
    (record,) = json.loads((tmp_path / "r.json").read_text())["classes"]
    assert (record["name"], record["status"]) == ("Swish", "differs")
    assert len(record["call"]) < 40
    assert f"Swish.apply({record['call']})" in said


EXECUTED = """\
import pathlib
pathlib.Path("executed").touch()
"""


@parity
@needs_torch
def test_the_command_verifies_and_reports(tmp_path, capsys, monkeypatch):
    """`port --verify` says what it verified on stderr and in the report; the port still goes to standard output."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(HEAD + EXECUTED + SWISH)
    assert main(["port", "a.py", "--verify", "--seconds", "5", "--report", "r.json"]) == 0
    out, err = capsys.readouterr()
    assert "class Swish(fnjax.Function)" in out
    assert "Swish: verified: " in err
    (record,) = json.loads((tmp_path / "r.json").read_text())["classes"]
    assert record["verified"]["status"] == "verified"
    assert not (tmp_path / "executed").exists()  # no class needs it


def test_classes_are_verified_in_parallel(capsys, monkeypatch):
    """Verdicts are printed in the order of the classes, whichever ends first; an error ends the others."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    second = threading.Event()

    def first_verifier(progress, cancelled):
        assert second.wait(60)
        progress("A: 3 candidates")
        return Verdict("A", "verified", calls=2)

    def second_verifier(progress, cancelled):
        second.set()
        return Verdict("B", "not tried", "why")

    verdicts = run_verifiers([("", "", first_verifier), ("", "", second_verifier)])
    assert [v.name for v in verdicts] == ["A", "B"]
    lines = capsys.readouterr().err.replace("\r\x1b[K", "\n").split("\n")
    assert list(filter(None, lines)) == [
        "class 1 of 2: A: 3 candidates",
        "A: verified: 2 calls agree, its lines could not be followed",
        "B: not tried: why",
    ]

    started, ended = threading.Event(), threading.Event()

    def failing_verifier(progress, cancelled):
        assert started.wait(60)
        raise KeyboardInterrupt

    def waiting_verifier(progress, cancelled):
        started.set()
        assert cancelled.wait(60)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        run_verifiers([("", "", failing_verifier), ("", "", waiting_verifier)])
    assert ended.is_set()


def test_without_verify_nothing_runs(tmp_path, monkeypatch):
    """A file that would leave a trace is ported without one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(HEAD + SWISH.replace("class", EXECUTED + "class"))
    assert main(["port", "a.py", "-o", "b.py"]) == 0
    assert not (tmp_path / "executed").exists()


BAD = {
    "hangs": ("while True: pass", "no arguments were found"),
    "waits": ("import time; time.sleep(1000)", "no arguments were found"),
    "aborts": ("import os; os.abort()", "it ended the process: SIGABRT while PyTorch ran"),
    "leaves": ("import os; os._exit(7)", "it ended the process: exit status 7"),
    "eats": ("x = [torch.ones(10**8) for _ in range(10**6)]", "no arguments were found"),
}


@parity
@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("how", BAD)
def test_a_class_ends_its_own_process_only(how, tmp_path):
    """A class that hangs, aborts or eats the memory is not tried, and says why; nothing else ends."""
    statement, reason = BAD[how]
    text = HEAD + SWISH.replace("ctx.beta = beta", statement)
    verdict = verify(Job(str(tmp_path / "a.py"), text, "Swish", port=port_source(HEAD + SWISH).code, seconds=3))
    assert verdict.status == "not tried"
    assert reason in verdict.reason
    assert "--args or --cases" in verdict.reason


@parity
@needs_torch
def test_cases_help_where_the_search_fails(tmp_path, capsys, monkeypatch):
    """Calls of the user's own are run first, from --args or from a file."""
    monkeypatch.chdir(tmp_path)
    picky = SWISH.replace("ctx.beta = beta", "assert 0.733 < beta**2 < 0.734\n        ctx.beta = beta").replace(
        "=1.0", ""
    )
    (tmp_path / "a.py").write_text(HEAD + picky)
    searched = verified(picky, "Swish", folder=tmp_path, seconds=2)
    assert (searched.status, searched.reason[:26]) == ("not tried", "no arguments were found in")
    refused = verified(picky, "Swish", folder=tmp_path, cases=["randn(3), 0.5"])
    assert refused.reason.startswith("PyTorch's class does not take randn(3), 0.5: AssertionError")
    call = ["port", "a.py", "--verify", "--seconds", "2"]
    (tmp_path / "cases.py").write_text("# one\nSwish.apply(\n    randn(2, 3), 0.8565)\n")
    assert main([*call, "--cases", "cases.py"]) == 0
    assert "Swish: verified" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "cases", "message"),
    [
        (["--args", "randn(3"], "", "cannot read --args"),
        (["--cases", "none.py"], "", "cannot read 'none.py'"),
        (["--cases", "c.py"], "Swish", "line 1 of c.py is not a call such as"),
        (["--cases", "c.py"], "\nOther.apply(1)", "line 2 of c.py calls Other; there is Swish"),
        (["--seconds", "0"], "", "--seconds 0 leaves no time"),
    ],
    ids=["args", "no-file", "no-call", "other", "seconds"],
)
def test_what_cannot_be_used(options, cases, message, tmp_path, capsys, monkeypatch):
    """Options that cannot be used end with status 2 and say which, before anything is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(HEAD + SWISH)
    (tmp_path / "c.py").write_text(cases)
    assert main(["port", "a.py", "-o", "b.py", "--verify", *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "b.py").exists()


def test_options_without_verify(tmp_path, capsys):
    """The options of the search say that they need --verify."""
    (tmp_path / "a.py").write_text(HEAD + SWISH)
    for option in ["--args", "1"], ["--seconds", "1"], ["--against", "fnjax.torch"]:
        assert main(["port", str(tmp_path / "a.py"), *option]) == 2
        assert "--args, --cases, --seconds and --against are for --verify" in capsys.readouterr().err


@parity
@needs_torch
def test_a_class_is_taken_out_alone(tmp_path):
    """Neither the package nor what the class does not need is executed; what it needs of other files is."""
    package = tmp_path / "pack"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / "deep" / "__init__.py").write_text("from pack.base import *\n")
    (package / "base.py").write_text("import nowhere\nHALF = 0.5\nTABLE = {}\nTABLE['k'] = 2\nBAD = nowhere.x\n")
    file = package / "deep" / "use.py"
    file.write_text(
        HEAD
        + "from ..base import HALF\nfrom pack import base\nimport nowhere.else_ as n\nraise_ = n.x\n\n"
        + "class Half(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        + "        return x * HALF * base.TABLE['k']\n"
    )
    from fnjax.port.verify.extraction import Missing, open_part

    taken = open_part(file)
    assert taken.Half.forward(None, 3.0) == 3.0
    assert isinstance(taken.n, Missing)
    with pytest.raises(ImportError, match="nowhere"):
        _ = open_part(package / "base.py").BAD.y


KERNEL = """\
import nowhere

@nowhere.jit
def kernel(x, y):
    pass

class Launched(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        kernel[(1,)](x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad
"""


@parity
@needs_torch
def test_a_library_that_is_missing_is_named(tmp_path):
    """A verdict on launches that cannot run names the missing library, and not missing arguments."""
    port = "import fnjax\n\n\nclass Launched(fnjax.Function):\n    pass\n"
    verdict = verified(KERNEL, "Launched", port, folder=tmp_path, seconds=3)
    assert verdict.status == "not tried"
    assert verdict.reason.startswith("what it needs is not installed: ImportError: kernel is not available")
    assert "No module named 'nowhere'" in verdict.reason


@pytest.mark.slow
def test_relative_imports_of_a_port_without_a_place(tmp_path):
    """A port that is only printed imports what is next to its source, however shallow the temporary folder is."""
    layers = tmp_path / "package" / "layers"
    layers.mkdir(parents=True)
    for folder in layers, layers.parent:
        (folder / "__init__.py").touch()
    (tmp_path / "package" / "scales.py").write_text("import torch\n\ndef scale(x):\n    return torch.square(x)\n")
    text = """\
import torch
from ..scales import scale

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return scale(x)

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return 2 * x * grad
"""
    file = layers / "square.py"
    file.write_text(text)
    port = port_source(text)
    assert "from ..scales import scale" in port.code
    verdict = verify(Job(str(file), text, "Square", port=port.code, seconds=20.0, enough=10))
    assert verdict.status == "verified", verdict


def test_imports_from_above_the_top(tmp_path):
    """A file that is not below as many folders as it imports from raises an ImportError that says so."""
    file = tmp_path / "deep.py"
    file.write_text(f"from {'.' * 60}layers import Swish\n")
    with pytest.raises(
        ImportError, match=r"deep\.py imports relatively from 60 folders above, and is not below so many"
    ):
        load(str(file))


def test_a_file_beside_it_is_not_torch(tmp_path):
    """In a package `import torch` is PyTorch, whatever files the folder has, as in Python."""
    pytest.importorskip("torch")
    from fnjax.port.verify.extraction import open_part

    (tmp_path / "__init__.py").touch()
    (tmp_path / "torch.py").write_text("raise SystemExit('taken for PyTorch')\n")
    file = tmp_path / "use.py"
    file.write_text("from torch.autograd import Function\nclass C(Function):\n    pass\n")
    assert open_part(file).C.__mro__[1].__module__ == "torch.autograd.function"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (BRANCH, {"logits": {"graded"}, "labels": {"index"}, "mask": {"none"}}),
        (APPLIED, {"x": {"tensor", "graded"}, "fn": {"called", "ungraded"}, "sizes": {"sequence"}}),
        (CALLED, {"block": {"called"}, "options": {"mapping"}, "scale": {"ungraded"}}),
        (AFFINE, {"weight": {"tensor", "graded"}, "bias": {"computed", "graded"}}),
    ],
    ids=["branch", "applied", "called", "affine"],
)
def test_what_the_source_tells(text, wanted):
    """The kind, values and default of a parameter are inferred from its uses in forward and backward."""
    name = text.split("(")[0].removeprefix("class ")
    found = {h.name: h for h in read_hints(ast.parse(text), name)}
    for parameter, facts in wanted.items():
        assert facts <= found[parameter].facts, found[parameter]
    if name == "Branch":
        assert set(found["reduction"].values) >= {"mean", "sum"}
        assert found["reduction"].default == "mean"
    if name == "Applied":
        assert list(found["config"].keys) == ["scale"]
        assert found["sizes"].length == 2
    if name == "Affine":
        members = text.replace("weight, bias", "weight: Mode, bias, other=Mode.UP")
        weight, bias, other = read_hints(ast.parse(members), name)[1:]
        assert (weight.enumeration, bias.enumeration, other.enumeration) == ("Mode", "", "Mode")
        assert str(Options(other, fnjax.torch).likely[0]) == "[*Mode][0]"
    if name == "Called":
        assert found["x"].list_ranks() == [3]
        assert "empty" in found["layer"].attributes["gain"].facts
        assert "parameters" in found["block"].attributes


@parity
@needs_torch
def test_functions_tables_and_rows_are_found(tmp_path):
    """A function, a tuple and a dictionary are passed where forward uses them so."""
    port = "import fnjax\n\n" + APPLIED.replace("Function", "fnjax.Function")
    verdict = verified(APPLIED, "Applied", port, folder=tmp_path)
    assert verdict.status == "verified", verdict


@parity
@needs_torch
def test_modules_and_objects_are_made_of_either_torch(tmp_path):
    """A module and an object with a method are found, and in cases the file's own names may be used."""
    layer = "\n\nclass Layer:\n    bits = 2\n\n    def gain(self):\n        return torch.ones(3)\n"
    case = "randn(2, 3, 4), torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()), Layer(), {}, 0.5"
    options = {"against": "pytorch", "shrinks": False}
    for number, (cases, factor) in enumerate([((), 2), ((case,), 2), ((case,), 3)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        port = HEAD + CALLED + layer.replace("2", str(factor))
        verdict = verified(CALLED + layer, "Called", port, folder=folder, cases=cases, **options)
        assert verdict.status == ("verified" if factor == 2 else "differs"), verdict
    assert "Layer(), {}, 0.5" in verdict.call


@parity
@needs_torch
def test_calls_of_apply_in_the_file_help(tmp_path):
    """A number that the file itself passes is tried."""
    picky = SWISH.replace("ctx.beta = beta", "assert beta == 0.734\n        ctx.beta = beta").replace("=1.0", "")
    text = f"{picky}\n\ndef swish(x, beta=0.734):\n    return Swish.apply(x, beta)\n"
    assert verified(text, "Swish", folder=tmp_path).status == "verified"


def test_what_either_side_makes():
    """Functions and objects are not shared by the two sides; arrays, and what holds them, are."""
    text = "randn(2), SimpleNamespace(grad=None), SimpleNamespace(x=randn(2)), lambda x: x, torch.float32"
    found, _ = read_arguments(text, "", 0, {"torch": np})
    assert [isinstance(a, Made) for a in found] == [False, True, False, True, False]


def test_a_verdict_reads_well():
    """Each verdict says what was done, and what to do."""
    assert (
        Verdict("A", "verified", calls=2, lines=9, unseen=(4, 5, 6, 8)).describe("", "")
        == "A: verified: 2 calls agree, lines run: 5 of 9, not 4-6, 8"
    )
    found = Verdict("A", "differs", "eager output 0", call="array([1.0]), 'a'", argnums=(0,), seed=3, shown=("FAIL",))
    assert found.describe("a.py", "b.py").splitlines() == [
        "A: differs: eager output 0",
        "  FAIL",
        "  A.apply(array([1.0]), 'a')",
        """  fnjax compare a.py b.py --class A --args 'array([1.0]), '"'"'a'"'"'' --argnums 0 --seed 3""",
    ]
    assert (
        found.describe("a.ipynb", "b.py").splitlines()[-1].startswith("  fnjax port a.ipynb --verify --class A --args ")
    )
    assert Verdict("A", "not tried", "why").describe("", "") == "A: not tried: why"
    partial = Verdict("A", "verified", calls=1, lines=9, partial=True).describe("", "")
    assert partial == "A: agrees on 1 call, fewer than planned (a larger --seconds may be enough), lines run: 9 of 9"


def test_boundaries_of_the_source_come_first(tmp_path):
    """Without PyTorch, and in however short a time, arrays come before numbers, and `x >= 5` is not `x >= 6`."""
    from fnjax.port.verify.verification import verify_class

    text = HEAD + (
        "LIMIT = 6\nclass Relu6(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        ctx.save_for_backward(x)\n        return x.clamp(0, LIMIT)\n"
        "    @staticmethod\n    def backward(ctx, g):\n"
        "        (x,) = ctx.saved_tensors\n        return g * ((x > 0) & (x < LIMIT))\n"
    )
    original, port = tmp_path / "original_torch.py", tmp_path / "port.py"
    original.write_text(text)
    port.write_text(port_source(text).code)
    job = Job(str(original), text, "Relu6", str(port), seconds=0.1, enough=3, shrinks=False, against="fnjax.torch")
    assert verify_class(job, lambda *_, **__: None).calls == 3
    port.write_text(port.read_text().replace("x < LIMIT", "x < LIMIT - 1"))
    assert verify_class(job, lambda *_, **__: None).status == "differs"


def test_every_mistake_is_made():
    """The benchmark's mutants are Python, each unlike the port, and all kinds occur in these classes."""
    kinds = set()
    for text in OWN.values():
        port = port_source(HEAD + textwrap.dedent(text)).code
        for mutant in mutants(port):
            compile(mutant.text, "mutant", "exec")
            assert mutant.text != port
            kinds.add(mutant.kind)
    assert kinds >= {"sign", "factor", "axis", "mask", "stop more", "stop fewer", "swap", "mark"}


UNTRACED = """
class Iterate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, tol: float):
        n = 0
        while n < 5:
            err = (x / (n + 1)).abs().max()
            n += 1
            if err < tol:
                break
        ctx.save_for_backward(x)
        return x * err

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x, None
"""


@pytest.mark.slow
def test_classes_that_run_outside_jit_only(tmp_path, capsys):
    """With --strict they are compared outside jit: second derivatives, which trace, are no difference."""
    path = tmp_path / "iterate.py"
    path.write_text("import torch\n" + UNTRACED)
    assert main(["port", str(path), "--strict", "--verify", "--seconds", "6"]) == 1
    assert "Iterate: verified" in capsys.readouterr().err


@needs_torch
@parity
def test_check_against_pytorch(tmp_path, capsys, monkeypatch):
    """`fnjax check --against pytorch FOLDER` finds what is wrong in one variant only, and tells refusals apart."""
    kinds = {
        "Right": "x * 2",
        "Wrong": "x * (3 if x.dtype == torch.bfloat16 and 'fnjax' in type(torch).__module__ else 2)",
        "Single": "(x.float().sin() + x.float().exp()).to(x.dtype)",
        "Rough": "x * 2 * (1 + (2e-6 if x.dtype == torch.float64 and 'fnjax' in type(torch).__module__ else 0))",
        "Refused": "torch.linalg.ldl_factor(x @ x.T)[0]",
        "NotTried": "x.no_such_method()",
        "Random": "x * (torch.rand_like(x) > 0.3)",
    }
    rest = "\n    @staticmethod\n    def backward(ctx, g):\n        return g * 2\n\n\n"
    classes = [
        f"class {name}(Function):\n    @staticmethod\n    def forward(ctx, x):\n        return {body}\n{rest}"
        for name, body in kinds.items()
    ]
    (tmp_path / "kinds.py").write_text("import jax\n" + HEAD + "".join(classes))
    (tmp_path / "broken.py").write_text("import torch\nclass (")
    monkeypatch.chdir(tmp_path)
    assert main(["check", "--against", "pytorch", ".", "--json", "--seconds", "2"]) == 3
    out, lines = capsys.readouterr()
    assert json.loads(out)["left out"] == ["broken.py"]
    found = {c["name"]: c for c in json.loads(out)["classes"]}
    statuses = ["right", "different", "right", "different", "refused", "not tried", "right"]
    assert [c["status"] for c in found.values()] == statuses
    assert found["Right"]["notes"] == ["also float64, bfloat16, non-contiguous, second call"]
    assert found["Wrong"]["reason"].startswith("bfloat16: eager output 0")
    assert "ldl_factor" in found["Refused"]["reason"]
    assert "kinds.py:Right: right: " in lines


@needs_torch
@parity
def test_programs_are_optimised(tmp_path):
    """Not optimised, tanh(12) is not 1 under jit: 1 / t makes that large, and a mistake where it is 1 is not seen."""
    text = HEAD + (
        "class TempTanh(Function):\n    @staticmethod\n    def forward(ctx, x, t):\n"
        "        y = torch.tanh(x / t)\n        ctx.save_for_backward(x, y, t)\n        return y\n"
        "    @staticmethod\n    def backward(ctx, g):\n        x, y, t = ctx.saved_tensors\n"
        "        dx = g * (1 - y * y) / t\n        return dx, (-(dx * x) / t).sum()\n"
    )
    port = port_source(text).code
    wrong = port.replace("1 - y", "1 + (y == 1) - y")
    path = tmp_path / "temp_tanh.py"
    path.write_text(text)
    cases = {
        port: "array([[0.82716256], [0.4456209]]), array(0.024180833)",
        wrong: "array([[12.0], [12.0]]), array(1.0)",
    }
    calls = {"modes": ("jit",), "second": False, "enough": 1, "shrinks": False}
    found = [verify(Job(str(path), text, "TempTanh", port=p, cases=[c], **calls)) for p, c in cases.items()]
    assert [v.status for v in found] == ["verified", "differs"]


@needs_torch
@parity
def test_rounding_of_the_original(tmp_path):
    """A standardisation of two rows has gradients that are zero but for rounding: its port is not told to differ."""
    text = HEAD + (
        "class Standardize(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        s = x.std(0, keepdim=True)\n        y = (x - x.mean(0, keepdim=True)) / s\n"
        "        ctx.save_for_backward(y, s)\n        return y\n"
        "    @staticmethod\n    def backward(ctx, g):\n        y, s = ctx.saved_tensors\n"
        "        return (g - g.mean(0, keepdim=True) - y * (g * y).sum(0, keepdim=True) / (y.size(0) - 1)) / s\n"
    )
    port = port_source(text).code
    path = tmp_path / "standardize.py"
    path.write_text(text)
    case = f"array({np.random.default_rng(0).random((2, 3, 4, 4)).tolist()})"
    calls = {"modes": ("eager",), "enough": 1, "shrinks": False, "cases": [case]}
    wrong = port.replace("- 1)", "- 1.5)")
    assert wrong != port
    found = [verify(Job(str(path), text, "Standardize", port=p, **calls)) for p in (port, wrong)]
    assert [v.status for v in found] == ["verified", "differs"]
