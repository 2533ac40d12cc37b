"""On a GPU: the tests marked gpu, training steps next to custom_vjp and PyTorch, and memory, into benchmarks/GPU.md.

python -m benchmarks.gpu [--only PART ...] [--rounds 101] [--limit 600]
python -m benchmarks.gpu --platform cpu --output FOLDER     a rehearsal, with the CPU as the other device

`make gpu PYTHON=...` runs it with an interpreter that has a CUDA JAX and pytest, and installs nothing there; PyTorch,
matplotlib and SciPy are used if they are there. Each part is a process of its own: one that fails, or takes half of the
time, is named in the report, and the others still run. Exits with 1 if a part failed or the time was up before it;
where JAX sees no GPU, says so and exits with 0.
"""

import argparse
import datetime as dt
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import harness, plots
from benchmarks.__main__ import HERE, failure, machine, markdown, run

MODELS = ("swish", "batchnorm", "layernorm", "quantized", "spiking", "critic", "equilibrium")
# In the order in which they run, since the time may be up before the last.
SECTIONS = {
    "gpu_tests": ("Tests marked gpu, each beside the CPU", ("tests",)),
    "gpu": ("Training steps", (*MODELS, *(f"torch_{name}" for name in MODELS))),
    "gpu_memory": ("Temporary memory of compiled gradients", ("layers", "packed")),
    "gpu_as_is": ("PyTorch source as it is", ("as_is",)),
    "gpu_triton": ("Triton kernels", ("triton",)),
}
PARTS = ("tests", *MODELS, "layers", "packed", "as_is", "triton", *(f"torch_{name}" for name in MODELS))
STARTING, REPORTING = 60, 5  # seconds: at most, until it is known what is there; kept for the report
MEBIBYTE = 2**20
NOTES = {
    "gpu": """\
A step is one call, waited for, so that what starting it costs is in it; the median of {rounds} measurements. All \
forms of JAX are measured in turns, PyTorch (eager, without torch.compile) in a process of its own. Matrix products \
have their full 32 bits on both sides (no TF32).
Ratio: fnjax to custom_vjp, which is written by hand; control: custom_vjp, compiled once more, to itself.
Kernels: what the compiled text starts, a loop's body once; one number where fnjax and custom_vjp have the same.
Program: arguments, results and temporary memory as compiled. Process: the most that JAX's allocator held for all \
forms, XLA's trials among them. PyTorch: the most that its allocator held.""",
    "gpu_as_is": """\
A Function and a module with two of them, loaded by fnjax.torch, next to jax.numpy with a custom_vjp written by hand: \
value and gradient under jit, waited for; the median of {rounds} measurements.""",
    "gpu_triton": """\
Original: the kernel, by jax-triton. Translated: as JAX operations, which is what runs without jax-triton and what JAX \
differentiates. Twin: jax.numpy, written by hand. Each under jit, waited for; the median of {rounds} measurements.""",
    "gpu_memory": "Saved: what the layers save, as kept; any program needs up to two activations of 4 MiB more.",
}


# ---------------------------------------------------------------------------------------------------------------------
# The parts, each in a process of its own


def tests(report, options):
    """Run what is marked gpu; the other files are left alone, since they may import what is not installed."""
    if importlib.util.find_spec("pytest") is None:
        raise RuntimeError(f"pytest (9 or newer) is not installed for {Path(sys.executable).name}")
    import pytest

    outcomes, notes = {}, []

    class Outcomes:
        def pytest_runtest_logreport(self, report):
            if report.when == "call" or not report.passed:
                counts = outcomes.setdefault(report.nodeid.partition("[")[0].rpartition("::")[2], {})
                counts[report.outcome] = counts.get(report.outcome, 0) + 1
            if report.failed:
                crash = getattr(report.longrepr, "reprcrash", None)
                message = crash.message if crash else str(report.longrepr)
                notes.append(f"failed: `{report.nodeid.rpartition('::')[2]}`: {brief(message)}")
            elif report.skipped:
                notes.append(f"skipped: {report.longrepr[2].removeprefix('Skipped: ')}")

    folder = HERE.parent / "tests"
    files = [str(path) for path in sorted(folder.rglob("test_*.py")) if "pytest.mark.gpu" in path.read_text()]
    status = pytest.main(
        ["-q", "-m", "gpu", "-p", "no:cacheprovider", "-W", "ignore:Module already imported", *files],
        plugins=[Outcomes()],
    )
    columns = "passed", "failed", "skipped"
    report.table("Outcomes", ("", *columns), ((name, *(n.get(c, 0) for c in columns)) for name, n in outcomes.items()))
    for note in dict.fromkeys(notes):
        report.note(note)
    total = {c: sum(n.get(c, 0) for n in outcomes.values()) for c in columns}
    report.goal("tests that fail", total["failed"], 0)
    report.goal("tests that pass", total["passed"], 1, at_least=True)
    if status not in {0, 1}:
        raise RuntimeError(f"pytest ended with status {int(status)}")


def train(report, options, name):
    """Measure the compiled step of a model: with fnjax, and with custom_vjp twice."""
    import jax
    import numpy as np

    from benchmarks.against_torch import agree
    from benchmarks.models import MODELS, with_fnjax
    from benchmarks.running import step_times, steps

    def same(ours, theirs):
        return ours if ours == theirs else f"{ours} / {theirs}"

    model = MODELS[name]
    parameters, _ = model.numbers()
    compiled, args = steps(model)
    ours = compiled["fnjax"](*args)
    agree("fnjax beside custom_vjp", ours, compiled["custom_vjp"](*args))
    on_cpu = jax.device_put(args, jax.devices("cpu")[0])
    agree("the device beside the CPU", ours, jax.jit(model.step(with_fnjax()))(*on_cpu))
    report.goals.append({"text": "loss and new parameters are those of custom_vjp and of the CPU", "met": True})
    value, new = ours
    # In the order that PyTorch's side has; JAX sorts the groups.
    np.savez(options.json.with_suffix(".npz"), value, *(p for group in parameters for p in new[group]))
    times = step_times(compiled, args, options.rounds)
    both = [compiled[form] for form in ("fnjax", "custom_vjp")]
    counts = [harness.kernels(f.as_text()) for f in both]
    sizes = [f"{size(f.memory_analysis()):.1f}" for f in both]
    stats = jax.devices()[0].memory_stats() or {}
    peak = stats["peak_bytes_in_use"] / MEBIBYTE if "peak_bytes_in_use" in stats else "-"
    us = (round(harness.median_us(times, form)) for form in ("fnjax", "custom_vjp"))
    ratios = (harness.ratio(times, form, "custom_vjp") for form in ("fnjax", "control"))
    columns = ("", "fnjax µs", "custom_vjp µs", "ratio", "control", "kernels", "program MiB", "process MiB")
    report.table(STEPS, columns, [(model.title, *us, *ratios, same(*counts), same(*sizes), peak)])


STEPS, STEPS_OF_TORCH = "Training steps", "Training steps of PyTorch"


def size(memory):
    """Return the memory that a compiled program needs, in MiB."""
    sizes = memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes
    return (sum(sizes) - memory.alias_size_in_bytes) / MEBIBYTE


def train_torch(report, options, name):
    """Measure the step of a model in PyTorch, and compare its results with those of the part `name`."""
    import numpy as np
    import torch

    from benchmarks.against_torch import agree, numbers, to_torch, torch_step
    from benchmarks.models import MODELS
    from benchmarks.torch_models import LOSSES

    device = "cpu" if options.platform == "cpu" else "cuda"
    parameters, data = MODELS[name].numbers()
    step = torch_step(LOSSES[name], *to_torch(parameters, data, device))
    left = options.json.with_name(f"{name}.npz")
    if left.exists():
        with np.load(left) as file:
            agree("fnjax beside PyTorch", list(file.values()), numbers(step))
        report.goals.append({"text": "loss and new parameters are those of fnjax", "met": True})
    else:
        report.note(f"{MODELS[name].title}: the numbers of PyTorch are beside none, as those of fnjax are missing")
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def waited():
        step()
        wait()

    waited()
    times = harness.interleaved({"eager": waited}, options.rounds, calls=8)
    peak = torch.cuda.max_memory_allocated() / MEBIBYTE if device == "cuda" else "-"
    us = round(harness.median_us(times, "eager"))
    report.table(STEPS_OF_TORCH, ("", "µs", "MiB"), [(MODELS[name].title, us, peak)])


def layers(report, options):
    """32 swish layers, as `python -m benchmarks.memory` has them for the CPU."""
    from benchmarks.memory import swish_layers

    swish_layers(report)


def packed(report, options):
    """Dense swish layers whose saved inputs go through hooks: whether XLA keeps what was packed, and nothing else."""
    from benchmarks.memory import packed_layers

    packed_layers(report)


def run_part(options):
    """Run one part in this process, and write its figures, with the error if there was one."""
    name = options.part
    report = harness.Report(name)
    try:
        if name in MODELS:
            train(report, options, name)
        elif name.startswith("torch_"):
            train_torch(report, options, name.removeprefix("torch_"))
        else:
            from benchmarks.gpu_source import as_is, triton

            others = {"tests": tests, "layers": layers, "packed": packed, "as_is": as_is, "triton": triton}
            others[name](report, options)
    except Exception as error:
        report.goals.append({"text": f"{type(error).__name__}: {brief(str(error))}", "met": False})
        options.json.write_text(json.dumps(vars(report)))
        raise
    options.json.write_text(json.dumps(vars(report)))
    return int(not all(goal["met"] for goal in report.goals))


def brief(message):
    """Return the first words of a message, on one line and without Markdown's special characters."""
    return " ".join(re.sub(r"[`|<>*]", " ", message).split())[:200]


# ---------------------------------------------------------------------------------------------------------------------
# What is there


def describe(platform):
    """Print what JAX sees, as JSON."""
    import jax
    import jax.extend
    import jaxlib

    try:
        devices = [device.device_kind for device in jax.devices(platform)]
    except RuntimeError:
        devices = []
    seen = {"devices": devices, "backend": jax.default_backend(), "versions": harness.versions()}
    seen["versions"] = f"{seen['versions'].partition(';')[0]}, jaxlib {jaxlib.__version__}"
    if devices:
        seen["runtime"] = jax.extend.backend.get_backend(platform).platform_version
    print(json.dumps(seen))


def describe_torch(platform):
    """Print PyTorch's version and whether it sees the device, as JSON."""
    import torch

    usable = platform == "cpu" or torch.cuda.is_available()
    version = f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}" + (", which sees no GPU" if not usable else "")
    print(json.dumps({"torch": version, "usable": usable}))


def ask(function, platform, environment):
    """Return what a function of this module prints in a fresh process: this one must not occupy the GPU."""
    code = f"from benchmarks import gpu; gpu.{function}({platform!r})"
    command = [sys.executable, "-c", code]
    options = {"cwd": HERE.parent, "env": environment, "capture_output": True, "text": True}
    try:
        done = subprocess.run(command, **options, timeout=STARTING, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no answer in {STARTING} s") from None
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def driver():
    """Return the driver version by nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return "unknown: nvidia-smi does not say"
    return "; ".join(dict.fromkeys(line.strip() for line in lines))


def surroundings(platform):
    """Return the environment variables of the parts."""
    environment = os.environ | {"FNJAX_GPU_PLATFORM": platform}
    # No TF32, so that the two sides and the CPU compute the same; and room for PyTorch next to JAX.
    environment |= {"JAX_DEFAULT_MATMUL_PRECISION": "float32", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if platform == "cpu":
        environment["JAX_PLATFORMS"] = "cpu"
    elif environment.get("JAX_PLATFORMS") and "cpu" not in environment["JAX_PLATFORMS"].split(","):
        environment["JAX_PLATFORMS"] += ",cpu"  # the side to compare with
    return environment


# ---------------------------------------------------------------------------------------------------------------------
# The report


def about(seen):
    """Return the first lines of the report: device, driver and versions."""
    lines = [f"{len(seen['devices'])} x {seen['devices'][0]}; {seen['runtime']}.", f"Driver: {seen['driver']}."]
    if seen["platform"] == "cpu":
        lines.insert(0, "**A rehearsal on the CPU: these are no figures of a GPU.**")
    return [*lines, f"{seen['versions']}; {seen['torch']}.", f"{seen['machine']}.", f"{seen['date']}."]


def with_torch(tables):
    """Join the rows of the models into one table, with PyTorch's next to them."""
    ours, theirs = (
        {row[0]: row[1:] for table in tables if table["title"] == title for row in table["rows"]}
        for title in (STEPS, STEPS_OF_TORCH)
    )
    if not ours and not theirs:
        return []
    columns = ("", "fnjax µs", "custom_vjp µs", "PyTorch µs", "ratio", "control", "kernels", "program MiB")
    columns += ("process MiB", "PyTorch MiB")
    rows = []
    for title in {**ours, **theirs}:
        mine, (us, peak) = ours.get(title, ["-"] * 7), theirs.get(title, ["-"] * 2)
        rows.append([title, *mine[:2], us, *mine[2:], peak])
    return [{"title": STEPS, "columns": list(columns), "rows": rows}]


def section(name, reports, rounds):
    """Join the reports of a section's parts; each goal names its part."""
    title, parts = SECTIONS[name]
    mine = {part: reports[part] for part in parts if part in reports}
    tables = [table for report in mine.values() for table in report["tables"]]
    return {
        "title": title,
        "command": "gpu --only " + " ".join(mine),
        "tables": with_torch(tables) if name == "gpu" else tables,
        "notes": [
            *NOTES.get(name, "").format(rounds=rounds).splitlines(),
            *(note for report in mine.values() for note in report["notes"]),
        ],
        "goals": [{**goal, "text": f"{part}: {goal['text']}"} for part in mine for goal in mine[part]["goals"]],
    }


def write(output, seen, reports, rounds):
    """Write GPU.md and its plot from the reports of the parts; return the names of the parts that failed."""
    failed = [part for part, report in reports.items() if not all(goal["met"] for goal in report["goals"])]
    sections = {
        name: section(name, reports, rounds) for name, (_, parts) in SECTIONS.items() if set(parts) & set(reports)
    }
    lines, pictures = about(seen), plots.PLOTS
    try:
        plots.draw(sections, output / "plots")
    except ImportError:
        pictures = ()
        lines.append("No plot: matplotlib is not installed.")
    lines.append(f"Failed or not run: {', '.join(failed)}." if failed else "Every part ran.")
    output.mkdir(parents=True, exist_ok=True)
    paragraphs = "\n\n".join(lines).splitlines()
    (output / "GPU.md").write_text(markdown(sections, paragraphs, title="On a GPU", pictures=pictures))
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=101, help="measurements of each step (default: 101)")
    parser.add_argument("--limit", type=float, default=600, help="seconds for all (default: 600)")
    parser.add_argument("--platform", choices=("gpu", "cpu"), default="gpu", help="cpu is a rehearsal")
    parser.add_argument("--output", type=Path, help="folder of GPU.md and plots/ (default: benchmarks)")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        return run_part(options)
    if options.platform == "cpu" and options.output is None:
        parser.error("a rehearsal writes no benchmarks/GPU.md: name another folder with --output")
    start, platform = time.monotonic(), options.platform
    environment = surroundings(platform)
    try:
        seen = ask("describe", platform, environment)
    except RuntimeError as error:
        print(f"fnjax and JAX do not run in {sys.executable}: {error}; name another with make gpu PYTHON=...")
        return 1
    if not seen["devices"]:
        print(f"JAX sees no GPU, only {seen['backend']} ({seen['versions']}): nothing was run")
        return 0
    seen |= {"platform": platform, "machine": machine(), "date": f"{dt.datetime.now(dt.UTC):%Y-%m-%d}"}
    seen["driver"] = driver() if platform == "gpu" else "none"
    parts = [part for part in PARTS if part in options.only]
    if any(part.startswith("torch_") for part in parts):
        try:
            torch = ask("describe_torch", platform, environment)
        except RuntimeError as error:
            torch = {"torch": f"no PyTorch ({brief(str(error))})", "usable": False}
        seen["torch"] = torch["torch"]
        parts = [part for part in parts if torch["usable"] or not part.startswith("torch_")]
    else:
        seen["torch"] = "PyTorch was not asked for"
    reports = {}
    with tempfile.TemporaryDirectory() as folder:
        for i, part in enumerate(parts, 1):
            left = options.limit - REPORTING - (time.monotonic() - start)
            print(f"\n=== {i} of {len(parts)}: {part} ({time.monotonic() - start:.0f} s)", flush=True)
            if left <= 0:
                reports[part] = failure(part, f"not run: the {options.limit:.0f} s were over")
                continue
            arguments = ["--part", part, "--platform", platform, "--rounds", str(options.rounds)]
            # In PyTorch's processes JAX has nothing to do on the GPU.
            theirs = environment | ({"JAX_PLATFORMS": "cpu"} if part.startswith("torch_") else {})
            timeout = min(left, options.limit / 2)
            reports[part] = run(part, arguments, Path(folder), script="gpu", timeout=timeout, environment=theirs)
    output = options.output or HERE
    failed = write(output, seen, reports, options.rounds)
    names = f"failed or not run: {', '.join(failed)}" if failed else "every part ran"
    print(f"\n{time.monotonic() - start:.0f} s; {output / 'GPU.md'}; {names}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
