"""The parts of `make gpu` that need no GPU: its tests exist, its messages, its report, and the lowering for CUDA."""

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

from benchmarks import gpu, harness, plots
from benchmarks.__main__ import failure, run
from benchmarks.models import MODELS, with_fnjax

ROOT = Path(__file__).parent.parent
SEEN = {
    "devices": ["NVIDIA H100", "NVIDIA H100"],
    "runtime": "cuda 12090",
    "driver": "NVIDIA H100, 570.86.10, 81559 MiB",
    "platform": "gpu",
    "versions": "JAX 0.12.0, Python 3.13.1, fnjax 0.1.0, jaxlib 0.12.0",
    "torch": "PyTorch 2.13.0, CUDA 12.9",
    "machine": "some processor",
    "date": "2030-01-02",
}


def start(*command, **environment):
    """A command in the checkout, where JAX sees the CPU alone unless the environment says otherwise."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=550, check=False)


def figures(title, *rows, met=True, note=None):
    """The report of a part, as its process leaves it."""
    columns = ["", *(f"column {i}" for i in range(1, len(rows[0])))]
    goals = [{"text": "the numbers are right", "met": met}]
    return {
        "title": title,
        "tables": [{"title": title, "columns": columns, "rows": [list(row) for row in rows]}],
        "goals": goals,
        "notes": [note] if note else [],
    }


SWISH = figures(gpu.STEPS, ("MLP, swish", "111", "112", "0.991", "1.002", "31", "11.1", "90.5"))
SPIKING = figures(gpu.STEPS, ("spiking", "211", "212", "0.995", "1.003", "33 / 34", "5.3", "91.5"))
TORCH_SWISH = figures(gpu.STEPS_OF_TORCH, ("MLP, swish", "444", "12.500"))
TESTS = figures("Outcomes", ("test_derivatives", "13", "1", "0"), met=False, note="failed: `test_derivatives[exp]`")


# ---------------------------------------------------------------------------------------------------------------------
# Where there is no GPU


@pytest.mark.slow
def test_marked_tests_are_skipped_with_the_reason():
    """Without a GPU the tests marked gpu are collected, and each is skipped with a reason."""
    done = start(sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests/test_gpu.py")
    assert done.returncode == 0, done.stdout
    count = int(re.search(r"(\d+) skipped in", done.stdout)[1])
    assert count >= 50
    reasons = re.findall(r"^SKIPPED \[(\d+)\] .*: (.*)$", done.stdout, re.MULTILINE)
    assert {reason for _, reason in reasons} == {"JAX sees no GPU"}
    assert sum(int(n) for n, _ in reasons) == count


@pytest.mark.parametrize("by", ["make", "python"])
def test_says_in_one_line_that_there_is_no_gpu(by, tmp_path):
    """Without a GPU the command says so with the versions, writes nothing, and the exit status is 0."""
    if by == "make":
        if shutil.which("make") is None or not (ROOT / "Makefile").exists():
            pytest.skip("make is not installed, or this is a source distribution")
        command = ["make", "--no-print-directory", "gpu", f"PYTHON={sys.executable}", f"GPU_ARGS=--output {tmp_path}"]
    else:
        command = [sys.executable, "-m", "benchmarks.gpu", "--output", str(tmp_path)]
    done = start(*command)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(rf"JAX sees no GPU, only cpu \(JAX {jax.__version__}, .*\): nothing was run\n", done.stdout)
    assert list(tmp_path.iterdir()) == []


def test_says_in_one_line_that_there_is_no_jax(monkeypatch, capsys, tmp_path):
    """An interpreter in which JAX cannot be imported is named with the reason, and the status is 1."""
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\necho Traceback >&2\necho \"ModuleNotFoundError: No module named 'jax'\" >&2\nexit 1\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert gpu.main() == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert all(words in line for words in (str(python), "No module named 'jax'", "make gpu PYTHON="))


def test_a_rehearsal_writes_elsewhere(monkeypatch, capsys):
    """A rehearsal on the CPU does not start without a folder of its own: GPU.md holds figures of a GPU only."""
    monkeypatch.setattr(sys, "argv", ["gpu", "--platform", "cpu"])
    with pytest.raises(SystemExit, match="2"):
        gpu.main()
    assert "--output" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------------
# The report


def test_report_has_device_driver_and_versions(tmp_path):
    """The report says on what it was measured, and PyTorch's figures stand in the row of the model."""
    reports = {"swish": SWISH, "spiking": SPIKING, "torch_swish": TORCH_SWISH}
    assert gpu.write(tmp_path, SEEN, reports, 101) == []
    text = (tmp_path / "GPU.md").read_text()
    for words in (
        "2 x NVIDIA H100",
        "cuda 12090",
        "570.86.10",
        "JAX 0.12.0",
        "jaxlib 0.12.0",
        "PyTorch 2.13.0, CUDA 12.9",
    ):
        assert words in text
    assert "Every part ran." in text
    assert "rehearsal" not in text
    assert "| MLP, swish | 111 | 112 | 444 | 0.991 | 1.002 | 31 | 11.1 | 90.5 | 12.500 |" in text
    assert "| spiking | 211 | 212 | - | 0.995 | 1.003 | 33 / 34 | 5.3 | 91.5 | - |" in text
    assert "median of 101 measurements" in text
    assert "](plots/gpu.png)" in text
    assert (tmp_path / "plots" / "gpu.png").stat().st_size > 1000


def test_report_names_what_failed(tmp_path):
    """A part that failed, one that was not run, and a failed test are named at the head and where they belong."""
    reports = {"tests": TESTS, "swish": failure("swish", "the script ended with status -11"), "spiking": SPIKING}
    reports |= {"torch_swish": TORCH_SWISH, "packed": failure("packed", "not run: the 600 s were over")}
    assert gpu.write(tmp_path, SEEN, reports, 101) == ["tests", "swish", "packed"]
    text = (tmp_path / "GPU.md").read_text()
    assert "Failed or not run: tests, swish, packed." in text
    assert "- **missed**: swish: the script ended with status -11" in text
    assert "- **missed**: packed: not run: the 600 s were over" in text
    assert "- failed: `test_derivatives[exp]`" in text
    assert "| test_derivatives | 13 | 1 | 0 |" in text
    assert "| MLP, swish | - | - | 444 | - | - | - | - | - | 12.500 |" in text  # nothing of the others is lost


def test_report_without_matplotlib(monkeypatch, tmp_path):
    """Without matplotlib the report is written, says that there is no plot, and shows none."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert gpu.write(tmp_path, SEEN, {"swish": SWISH}, 101) == []
    text = (tmp_path / "GPU.md").read_text()
    assert "matplotlib is not installed" in text
    assert "plots/" not in text


def test_head_of_a_rehearsal():
    """The report of a rehearsal says before all else that it has no figures of a GPU."""
    assert "no figures of a GPU" in gpu.about(SEEN | {"platform": "cpu"})[0]


# ---------------------------------------------------------------------------------------------------------------------
# Parts that fail, and the time


def usable():
    return {"torch": "PyTorch 2.13.0", "usable": True}


def blind():
    return {"torch": "PyTorch 2.13.0, which sees no GPU", "usable": False}


def missing():
    raise RuntimeError("ModuleNotFoundError: No module named 'torch'")


@pytest.fixture
def rehearse(monkeypatch, tmp_path):
    """Run main as a rehearsal with these arguments, and with what is given in the place of the parts' processes."""

    def rehearse(process, *arguments, torch=usable):
        seen = {key: SEEN[key] for key in ("devices", "versions", "runtime")} | {"backend": "cpu"}
        answers = {"describe": lambda: dict(seen), "describe_torch": torch}
        monkeypatch.setattr(gpu, "ask", lambda function, *rest: answers[function]())
        monkeypatch.setattr(gpu, "run", process)
        monkeypatch.setattr(plots, "draw", lambda *args: None)
        monkeypatch.setattr(sys, "argv", ["gpu", "--platform", "cpu", "--output", str(tmp_path), *arguments])
        return gpu.main(), (tmp_path / "GPU.md").read_text()

    return rehearse


def test_the_rest_runs_after_a_failure(rehearse):
    """A part that fails makes the status 1, and every other part is still run."""
    ran = []

    def process(name, *args, **options):
        ran.append(name)
        return failure(name, "the script ended with status 1") if name == "tests" else SWISH

    status, text = rehearse(process)
    assert status == 1
    assert ran == list(gpu.PARTS)
    assert "Failed or not run: tests." in text
    assert rehearse(lambda *args, **options: SWISH)[0] == 0


def test_no_part_starts_after_the_time(rehearse):
    """When the time is up the other parts are named as not run; before that, each has at most half of it."""
    status, text = rehearse(None, "--limit", "0")
    assert status == 1
    assert text.count("not run: the 0 s were over") == len(gpu.PARTS)
    given = []
    rehearse(lambda *args, timeout, **options: given.append(timeout) or SWISH, "--limit", "100", "--only", "swish")
    assert given == [50]


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        (blind, "PyTorch 2.13.0, which sees no GPU."),
        (missing, "no PyTorch (ModuleNotFoundError: No module named 'torch')."),
    ],
)
def test_pytorch_is_left_out_where_it_is_of_no_use(rehearse, torch, words):
    """Without PyTorch, or with one that sees no GPU, its parts are left out: no failure, and the head says why."""
    ran = []
    status, text = rehearse(lambda name, *args, **options: ran.append(name) or SWISH, torch=torch)
    assert status == 0
    assert ran == [part for part in gpu.PARTS if not part.startswith("torch_")]
    assert words in text


@pytest.mark.parametrize(
    ("platform", "before", "after"),
    [("gpu", "cuda", "cuda,cpu"), ("gpu", "cuda,cpu", "cuda,cpu"), ("gpu", "", ""), ("cpu", "cuda", "cpu")],
)
def test_the_cpu_stays_in_sight(monkeypatch, platform, before, after):
    """The CPU to compare with is there also where JAX_PLATFORMS names a GPU alone; a rehearsal sees only the CPU."""
    monkeypatch.setenv("JAX_PLATFORMS", before)
    found = gpu.surroundings(platform)
    assert (found["JAX_PLATFORMS"], found["FNJAX_GPU_PLATFORM"]) == (after, platform)


def test_processes_that_end_badly(tmp_path):
    """A process that breaks off or takes too long leaves a report of that."""
    (goal,) = run("crash", [], tmp_path, script="no_such_script")["goals"]
    assert goal == {"text": "the script ended with status 1", "met": False}
    (goal,) = run("hang", [], tmp_path, script="gpu", timeout=0.01)["goals"]
    assert goal == {"text": "stopped after 0 s", "met": False}


def test_an_error_in_a_part_is_in_its_figures(monkeypatch, tmp_path):
    """The exception of a part is written next to the figures that it had by then."""

    def train(report, options, name):
        report.note("the first figure")
        raise AssertionError(f"numbers of `{name}`\ndiffer")

    monkeypatch.setattr(gpu, "train", train)
    out = tmp_path / "swish.json"
    with pytest.raises(AssertionError):
        gpu.run_part(argparse.Namespace(part="swish", json=out))
    kept = json.loads(out.read_text())
    assert kept["notes"] == ["the first figure"]
    assert kept["goals"] == [{"text": "AssertionError: numbers of swish differ", "met": False}]


@pytest.mark.slow
def test_a_failing_test_fails_the_part(tmp_path):
    """The part that tests runs what is marked gpu, and no other file, and fails with the test's message."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_other.py").write_text("import not_installed\n")
    (tmp_path / "tests" / "test_marked.py").write_text(
        "import pytest\n\n@pytest.mark.gpu\ndef test_right():\n    pass\n\n"
        "@pytest.mark.gpu\n@pytest.mark.parametrize('n', [1, 2])\ndef test_wrong(n):\n    assert n == 1, 'n is off'\n\n"
        "@pytest.mark.gpu\n@pytest.mark.skip(reason='no compiler')\ndef test_left_out():\n    pass\n\n"
        "def test_unmarked():\n    raise AssertionError\n"
    )
    out = tmp_path / "tests.json"
    code = (
        "import argparse, pathlib\nfrom benchmarks import gpu\n"
        f"gpu.HERE = pathlib.Path({str(tmp_path / 'benchmarks')!r})\n"
        f"raise SystemExit(gpu.run_part(argparse.Namespace(part='tests', json=pathlib.Path({str(out)!r}))))"
    )
    done = start(sys.executable, "-c", code)
    assert done.returncode == 1, done.stderr
    kept = json.loads(out.read_text())
    assert kept["tables"][0]["rows"] == [
        ["test_right", "1", "0", "0"],
        ["test_wrong", "1", "1", "0"],
        ["test_left_out", "0", "0", "1"],
    ]
    assert [goal["met"] for goal in kept["goals"]] == [False, True]
    failed, skipped = kept["notes"]
    assert failed.startswith("failed: `test_wrong[2]`: AssertionError: n is off")
    assert skipped == "skipped: no compiler"


# ---------------------------------------------------------------------------------------------------------------------
# Kernels, and what is lowered for CUDA

PROGRAM = """\
HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

%fused_multiply (param_0: f32[4]) -> f32[4] {
  %param_0 = f32[4]{0} parameter(0)
  %twice.1 = f32[4]{0} add(%param_0, %param_0)
  ROOT %multiply.1 = f32[4]{0} multiply(%twice.1, %param_0)
}

%command_buffer (p: f32[4], q: f32[4,4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %q = f32[4,4]{1,0} parameter(1)
  %gemm = (f32[4]{0}, s8[4194304]{0}, /*index=2*/s32[]) custom-call(%p, %q), custom_call_target="__cublas$gemm"
  %get-tuple-element.1 = f32[4]{0} get-tuple-element(%gemm), index=0
  ROOT %loop_multiply_fusion = f32[4]{0} fusion(%get-tuple-element.1), kind=kLoop, calls=%fused_multiply
}

%condition.1 (s: (s32[], f32[4])) -> pred[] {
  %s = (s32[], f32[4]{0}) parameter(0)
  ROOT %wrapped_compare = pred[] fusion(%s), kind=kLoop, calls=%fused_multiply
}

%body.1 (s.1: (s32[], f32[4])) -> (s32[], f32[4]) {
  %s.1 = (s32[], f32[4]{0}) parameter(0)
  %wrapped_add = s32[] fusion(%s.1), kind=kLoop, calls=%fused_multiply
  %wrapped_sine = f32[4]{0} fusion(%s.1), kind=kLoop, calls=%fused_multiply
  ROOT %tuple.2 = (s32[], f32[4]{0}) tuple(%wrapped_add, %wrapped_sine)
}

%branch (b: f32[4]) -> f32[4] {
  %b = f32[4]{0} parameter(0)
  ROOT %copy.1 = f32[4]{0} copy(%b)
}

ENTRY %main.9 (x: f32[4], w: f32[4,4]) -> (f32[4]) {
  %x = f32[4]{0} parameter(0), metadata={op_name="x"}
  %w = f32[4,4]{1,0} parameter(1)
  %constant.1 = s32[] constant(0)
  %call = f32[4]{0} call(%x, %w), to_apply=%command_buffer
  %tuple.1 = (s32[], f32[4]{0}) tuple(%constant.1, %call)
  %while.1 = (s32[], f32[4]{0}) while(%tuple.1), condition=%condition.1, body=%body.1
  %cond = f32[4]{0} conditional(%constant.1, %x, %x), branch_computations={%branch, %branch}
  %all-reduce-start = f32[4]{0} all-reduce-start(%cond), to_apply=%fused_multiply
  %all-reduce-done = f32[4]{0} all-reduce-done(%all-reduce-start)
  %bitcast.1 = f32[4]{0} bitcast(%all-reduce-done)
  ROOT %tuple.3 = (f32[4]{0}) tuple(%bitcast.1)
}
"""


def test_kernels_are_counted_from_the_text():
    """A fusion is one kernel; loops, branches and command buffers count with what they hold; arguments do not."""
    assert harness.kernels(PROGRAM) == 2 + 3 + 2 + 1


@pytest.mark.parametrize("calls", [1, 3])
def test_kernels_of_what_xla_prints(calls):
    """The text of this XLA can be read: each matrix product of a chain counts, in a loop once however long it is."""
    ones = jnp.ones((64, 64))

    def chain(x, w):
        for _ in range(calls):
            x = x @ w
        return x

    def loop(length):
        return lambda x, w: jax.lax.scan(lambda x, _: (jnp.sin(chain(x, w)), None), x, length=length)[0]

    count = lambda f: harness.kernels(jax.jit(f).lower(ones, ones).compile().as_text())
    assert count(chain) == calls
    assert count(loop(20)) == count(loop(30)) > calls


def for_cuda(f, *args):
    """The program that a GPU's compiler would be given."""
    return jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("name", gpu.MODELS)
def test_steps_lower_for_cuda(name):
    """The training step of each model can be lowered for CUDA, the barriers around what is saved in it."""
    parameters, data = MODELS[name].numbers()
    assert "optimization_barrier" in for_cuda(MODELS[name].step(with_fnjax()), parameters, *data)


def test_parts_are_all_models():
    """Each model of the benchmarks has its part."""
    assert list(MODELS) == list(gpu.MODELS)


def test_pallas_softmax_lowers_for_cuda():
    """Lowered for a GPU, the softmax of the examples and its gradient become Triton kernels."""
    path = ROOT / "examples" / "kernels" / "softmax_pallas.py"
    spec = importlib.util.spec_from_file_location("softmax_pallas", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", platform="gpu", num_cores=None)
    mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
    with mock.patch("jax.default_backend", return_value="gpu"), jax.sharding.use_abstract_mesh(mesh):
        for f in (example.Softmax.apply, jax.grad(lambda x: (example.Softmax.apply(x) ** 2).sum())):
            assert "triton" in for_cuda(f, jnp.ones((13, 32), jnp.float32))


# ---------------------------------------------------------------------------------------------------------------------
# The rehearsal


@pytest.mark.slow
def test_rehearsal_on_the_cpu(tmp_path):
    """With the CPU as the other device tests marked gpu pass, and there are figures of models, memory and loaded files.

    Of the 71 tests those run that no other test has on the CPU, and some of each table of cases.
    """
    parts = ["tests", "swish", "layers", "packed", "as_is"]
    command = ["--platform", "cpu", "--output", str(tmp_path), "--rounds", "1", "--limit", "540", "--only", *parts]
    chosen = "-k '(not derivatives and not gallery and not eager) or jit-float32-saved or jit-swiglu'"
    done = start(sys.executable, "-m", "benchmarks.gpu", *command, PYTEST_ADDOPTS=chosen)
    text = (tmp_path / "GPU.md").read_text()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every part ran." in text
    assert f"JAX {jax.__version__}" in text
    rows = {row[1]: row[2:-1] for line in text.splitlines() if (row := [x.strip() for x in line.split("|")])[1:]}
    outcomes = {name: [int(x) for x in counts] for name, counts in rows.items() if name.startswith("test_")}
    assert sum(passed for passed, _, _ in outcomes.values()) >= 12
    assert all(failed == 0 for _, failed, _ in outcomes.values())
    ours, by_hand, torch, *_, kernels, _, _, _ = rows[MODELS["swish"].title]
    assert min(int(ours), int(by_hand), int(kernels)) > 0
    assert torch == "-"
    assert float(rows["fnjax"][0]) <= 1.05 * float(rows["fnjax"][2])
    assert set(rows) >= {"none", "bfloat16", "int8 and a scale", "Function", "module"}


@pytest.mark.parity
def test_rehearsal_of_pytorch(tmp_path):
    """PyTorch's step is next to fnjax's, with its numbers."""
    command = [
        "--platform",
        "cpu",
        "--output",
        str(tmp_path),
        "--rounds",
        "1",
        "--only",
        "layernorm",
        "torch_layernorm",
    ]
    pytest.importorskip("torch", reason="PyTorch is not installed: make parity")
    done = start(sys.executable, "-m", "benchmarks.gpu", *command)
    text = (tmp_path / "GPU.md").read_text()
    assert done.returncode == 0, text
    assert "met: torch_layernorm: loss and new parameters are those of fnjax" in text
    (row,) = re.findall(rf"^\| {MODELS['layernorm'].title} \|(.*)\|$", text, re.MULTILINE)
    assert int(row.split("|")[2]) > 0
