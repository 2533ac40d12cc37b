"""Triton kernels on the CPU: fnjax.triton next to hand-written jnp twins and Triton's interpreter.

python -m benchmarks.triton_speed [--rounds 31] [--page benchmarks/TRITON.md]

Twelve kernels that real packages launch, one that gathers, and six of other kinds (a scan, experts, weights of eight
bits, atomics, a histogram, an optimizer's step), float32, under jit: values, gradients (JAX's own, through the
translated kernel and through the twin), compile time and the memory of the compiled program. Times are the processor's,
of all threads of this process: other processes count little. Triton's interpreter runs in a process of its own, once
for each kernel: that of this Python if it has triton, else that of FNJAX_TRITON_PYTHON.
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness
from benchmarks.triton_launches import LAUNCHES
from tests.triton.twins import BY_BLOCKS, WITHOUT_GRADIENT, forms_of, gradient_of

ROOT = Path(__file__).parent.parent
# Large arrays come from one heap and stay there: else glibc maps them anew for each call, and the page faults (40 ms of
# 55 for an addition of 4096²) hide all else.
HEAP = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**34), "MALLOC_ARENA_MAX": "1"}
COMPILATIONS = 3
COMPILATION = (
    "Compilation: seconds with tracing and lowering, and those in XLA; equations traced; fusions that XLA compiles, "
    "some 20 ms each. The twin's softmax is one call of XLA's library, and so is most of its attention, which holds "
    "all scores; by blocks, as the kernel computes it, a hand-written twin has nearly as many fusions as the kernel. "
    "Where XLA's seconds alone are more than three times the twin's, no translation meets three; equations whose "
    "results nothing uses cost nothing: without them (jax.interpreters.partial_eval.dce_jaxpr) it takes as long"
)


def compile_seconds(forms, inputs):
    """Tracing, lowering and compiling each form from nothing, and of it XLA's compilation: the medians of a few.

    Also the numbers of equations of the program and of fusions that XLA compiles to machine code.
    """
    times = {form: [] for form in forms}
    sizes = {}
    for _ in range(COMPILATIONS):
        for form, f in forms.items():
            jax.clear_caches()
            start = time.process_time()
            traced = jax.jit(lambda *given, f=f: f(*given)).trace(*inputs)
            lowered = traced.lower()
            before = time.process_time()
            compiled = lowered.compile()
            now = time.process_time()
            times[form].append((now - start, now - before))
            sizes[form] = equations(traced.jaxpr), compiled.as_text().count("kind=kLoop")
    return {form: (*map(statistics.median, zip(*found, strict=True)), *sizes[form]) for form, found in times.items()}


def equations(program):
    """Return the number of equations of a program, those of loops and calls among them."""
    jaxpr = getattr(program, "jaxpr", program)
    values = (value for e in jaxpr.eqns for value in e.params.values())
    inner = (p for value in values for p in (value if isinstance(value, tuple) else [value]))
    return len(jaxpr.eqns) + sum(equations(p) for p in inner if hasattr(getattr(p, "jaxpr", p), "eqns"))


def memory(compiled):
    """Bytes that are alive at the peak: arguments, results, temporaries."""
    found = compiled.memory_analysis()
    return found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes


def time_ratio(compiled, inputs, rounds):
    """Of fnjax and its twin; and the median seconds of fnjax."""
    cases = {form: lambda f=f: jax.block_until_ready(f(*inputs)) for form, f in compiled.items()}
    times = harness.interleaved(cases, rounds, clock=time.process_time)
    return harness.ratio(times, "fnjax", "twin"), statistics.median(times["fnjax"])


def check(found, wanted):
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5 * float(jnp.abs(theirs).max()))


def interpreter_seconds():
    """Return the times of Triton's interpreter, by name; an empty dict if it is not installed."""
    python = os.environ.get("FNJAX_TRITON_PYTHON") or (sys.executable if importlib.util.find_spec("triton") else None)
    if python is None:
        return {}
    command = [python, "-W", "ignore", "-m", "benchmarks.triton_interpreter", *LAUNCHES]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def compiling_row(title, compiling):
    """Seconds, those of them in XLA, equations and fusions: of fnjax, and of its twin."""
    ours, theirs = compiling["fnjax"], compiling["twin"]
    return title, ours[0] / theirs[0], *(each for pair in zip(ours, theirs, strict=True) for each in pair)


def measure(report, options):
    seconds = interpreter_seconds()
    found, compilations = {}, []

    def rows():
        for name, make in LAUNCHES.items():
            case = make()
            forms, inputs = forms_of(name, case)
            compiled = {form: jax.jit(f).lower(*inputs).compile() for form, f in forms.items()}
            check(compiled["fnjax"](*inputs), compiled["twin"](*inputs))
            compiling = compile_seconds(forms, inputs)
            compilations.append(compiling_row(case.name, compiling))
            value, ours = time_ratio(compiled, inputs, options.rounds)
            found[name] = {
                "time": value,
                "compile": compiling["fnjax"][0] / compiling["twin"][0],
                "compile seconds": compiling["fnjax"][0],
                "xla seconds": compiling["fnjax"][1],
                "memory": memory(compiled["fnjax"]) / memory(compiled["twin"]),
            }
            if name not in WITHOUT_GRADIENT:
                slopes = {form: gradient_of(f, name, inputs) for form, f in forms.items()}
                gradients = {form: jax.jit(f).lower(*inputs).compile() for form, f in slopes.items()}
                compilations.append(compiling_row(f"{case.name}, gradient", compile_seconds(slopes, inputs)))
                check(gradients["fnjax"](*inputs), gradients["twin"](*inputs))
                found[name] |= {
                    "gradient": time_ratio(gradients, inputs, max(3, options.rounds // 2))[0],
                    "gradient memory": memory(gradients["fnjax"]) / memory(gradients["twin"]),
                }
            if name in seconds:
                found[name]["interpreter"] = seconds[name] / ours
            if name in BY_BLOCKS:
                forms["twin"] = BY_BLOCKS[name]
                slopes = {form: gradient_of(f, name, inputs) for form, f in forms.items()}
                check(jax.jit(forms["twin"])(*inputs), compiled["fnjax"](*inputs))
                for what, each in (("by blocks", forms), ("by blocks, gradient", slopes)):
                    compilations.append(compiling_row(f"{case.name}, twin {what}", compile_seconds(each, inputs)))
            row = found[name]
            keys = ("time", "gradient", "compile", "compile seconds", "xla seconds", "memory", "gradient memory")
            yield case.name, ours * 1e3, *(row.get(k, "") for k in keys), *([row["interpreter"]] if seconds else [])

    columns = ("", "ms", "time", "gradient", "compile", "compile s", "of it XLA", "memory", "gradient memory")
    columns += ("interpreter",) if seconds else ()
    report.table(
        "fnjax.triton, of the hand-written twin; and how many times faster than the interpreter", columns, rows()
    )
    columns = ("", "ratio", "s", "twin", "XLA s", "twin", "equations", "twin", "fusions", "twin")
    report.table(
        COMPILATION,
        columns,
        compilations,
    )
    if not seconds:
        report.note(
            "No interpreter: FNJAX_TRITON_PYTHON=PYTHON python -m benchmarks.triton_speed, of a Python that has Triton."
        )
    set_goals(report, found, with_interpreter=bool(seconds))


def set_goals(report, found, *, with_interpreter):
    def every(key):
        return [row[key] for row in found.values() if key in row]

    report.goal("time of the twin's, geometric mean", statistics.geometric_mean(every("time")), 1.5)
    report.goal("time of the twin's, each", max(every("time")), 3)
    report.goal("time of the twin's, matmul", max(found[name]["time"] for name in found if "matmul" in name), 1.2)
    report.goal("time of the twin's, gradients, each", max(every("gradient")), 2.5)
    report.goal("compile time of the twin's, geometric mean", statistics.geometric_mean(every("compile")), 3)
    report.goal("seconds to compile, each", max(every("compile seconds")), 0.5)
    ours = [a - b for a, b in zip(every("compile seconds"), every("xla seconds"), strict=True)]
    report.goal("seconds to compile without XLA's, each", max(ours), 0.5)
    report.goal("memory of the twin's, each", max(every("memory")), 1.5)
    report.goal("memory of the twin's, gradients, each", max(every("gradient memory")), 1.5)
    if with_interpreter:
        speed = every("interpreter")
        report.goal("times faster than the interpreter, each", min(speed), 100, at_least=True)
        report.goal("times faster, geometric mean", statistics.geometric_mean(speed), 500, at_least=True)


if __name__ == "__main__":
    if HEAP.items() - os.environ.items():  # read when a process starts
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.triton_speed", *sys.argv[1:]], os.environ | HEAP)
    harness.use_two_cores()
    sys.exit(harness.run(measure, __doc__, rounds=31))
