"""The porter: what it takes for files of many classes, for deep branches, and how much memory.

python -m benchmarks.port_speed [--rounds 3]

The files repeat the classes that the tests port (tests/port/classes_*.py), under other names, easy and hard ones in
turn, and the time is processor time beyond that of a file of one class. LibCST's own parse of the same text stands
next to it. Goals: at most 3 ms a line whatever the length, 400 MB for 10,000 lines, 0.5 s for an `elif` of 12 arms on
tensors, and 7 s for a loop of 2,394 lines, as generated integrals have.
"""

import ast
import collections
import gc
import itertools
import pathlib
import random
import re
import resource
import statistics
import subprocess
import sys
import time
from unittest import mock

from benchmarks import harness

LINES = (300, 3_000, 10_000)
KINDS = {
    "easy": ("classes_values", "classes_memory", "classes_layers"),
    "hard": ("classes_control", "classes_conditions"),
}
ARMS = """\
class Arms(Function):
    @staticmethod
    def forward(ctx, x):
        s = x.sum()
        if s > 13:
            y = x
{arms}
        else:
            y = -x
        return y

    @staticmethod
    def backward(ctx, g):
        return g
"""


LONG = """\
import torch


class Long(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, n: int):
        ctx.save_for_backward(x, y)
        e = torch.zeros_like(x)
        for i in range(n):
{body}
        return e

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * x, g * y, None
"""


def long_function(lines):
    """Return a Function whose forward is a loop of so many lines, each on what the lines before it have computed."""
    draw = random.Random(0)
    forms = ("{n} = {a} * {b} + {k:.3f} * {c}", "{n} = torch.exp(-{a} * {b}) / (1.0 + {c} ** 2)", "e += {a} * {b}")
    names, body = ["a", "b"], ["a = x[i] - y[i]", "b = torch.sqrt((a * a).sum() + 1e-6)"]
    while len(body) < lines:
        (form,), new = draw.choices(forms, (6, 2, 1)), f"t{len(body)}"
        a, b, c = draw.choices(names[-40:], k=3)
        body.append(form.format(n=new, a=a, b=b, c=c, k=draw.random()))
        names += [new] if form.startswith("{n}") else []
    return LONG.format(body="\n".join(f"            {line}" for line in body))


def classes(kind):
    """Return the classes of some test files that consist of classes and functions only."""
    from importlib import import_module

    for name in KINDS[kind]:
        for _, text in import_module(f"tests.port.{name}").CASES.values():
            tree = ast.parse(text.strip())
            if all(isinstance(s, ast.ClassDef | ast.FunctionDef) for s in tree.body):
                yield [s.name for s in tree.body], text.strip() + "\n\n\n"


def file(kind, lines):
    """Return a source of at least this many lines."""
    from tests.port.test_classes import HEAD

    parts, length = [HEAD], HEAD.count("\n")
    numbered = enumerate(itertools.cycle(list(classes(kind))))
    while length < lines:
        i, (names, text) = next(numbered)
        parts.append(re.sub(rf"\b({'|'.join(names)})\b", rf"\1_{i}", text))
        length += text.count("\n")
    return "".join(parts)


def seconds(text, rounds):
    """Return the least time of porting a text, and of LibCST's parse."""
    import libcst

    from fnjax.port import port_source

    times = {libcst.parse_module: [], port_source: []}
    for _ in range(rounds):
        for call, found in times.items():
            gc.collect()  # the trees of earlier files are no part of it
            start = time.process_time()
            call(text)
            found.append(time.process_time() - start)
    return min(times[port_source]), min(times[libcst.parse_module])


def memory(kind, lines):
    """Return the peak memory, in MB, of a process that ports a file."""
    code = f"from benchmarks.port_speed import *\nport(file({kind!r}, {lines}))"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def port(text):
    from fnjax.port import port_source

    port_source(text)
    status = pathlib.Path("/proc/self/status")  # what getrusage says counts the process that has started this one
    peak = re.search(r"VmHWM:\s+(\d+)", status.read_text() if status.exists() else "")
    print((int(peak[1]) if peak else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) // 1024)


def evaluations(text):
    """Return how often a statement is evaluated, mean and maximum, and the share of the time that goes into edits.

    Edits are what rules write in a source's place; those of all evaluations but the last are thrown away.
    """
    import libcst

    from fnjax.port import port_source
    from fnjax.port.analysis.evaluator import Evaluator

    counts, edits = collections.Counter(), []

    def counted(self, node, evaluate=Evaluator.apply_rules):
        counts[node] += 1
        return evaluate(self, node)

    def timed(parse):
        def call(*args):
            start = time.process_time()
            try:
                return parse(*args)
            finally:
                edits.append(time.process_time() - start)

        return call

    parsers = {name: timed(getattr(libcst, name)) for name in ("parse_expression", "parse_statement")}
    with mock.patch.object(Evaluator, "apply_rules", counted), mock.patch.multiple(libcst, **parsers):
        start = time.process_time()
        port_source(text)
        took = time.process_time() - start
    return statistics.mean(counts.values()), max(counts.values()), sum(edits) / took


def measure(report, options):
    one, _ = seconds(file("easy", 20), options.rounds)
    rows = []
    for kind in KINDS:
        for lines in LINES:
            text = file(kind, lines)
            took, parsed = seconds(text, 1 if lines > LINES[0] else options.rounds)
            length = text.count("\n")
            each = (took - one) / length * 1e3
            rows.append((f"{kind}, {length} lines", took, parsed, each))
            report.goal(f"{kind}, {lines} lines: ms a line", each, 3)
    report.table("Files of many classes", ("", "s", "LibCST's parse, s", "ms a line"), rows)
    found = [(kind, *evaluations(file(kind, LINES[1]))) for kind in KINDS]
    rows = [(kind, mean, most, f"{share:.0%}") for kind, mean, most, share in found]
    report.goal("evaluations of a statement", max(most for _, _, most, _ in rows), 4)
    report.table("Evaluations", ("", "of a statement, mean", "most", "of the time: edits"), rows)
    report.goal(f"MB for {LINES[-1]} hard lines", memory("hard", LINES[-1]), 400)
    arms = "\n".join(f"        elif s > {12 - i}:\n            y = x * {i + 2}" for i in range(11))
    deep, _ = seconds("from torch.autograd import Function\n\n\n" + ARMS.format(arms=arms), options.rounds)
    report.goal("an elif of 12 arms: s beyond one class", deep - one, 0.5)
    report.goal("a loop of 2,394 lines: s", seconds(long_function(2_394), 1)[0], 7)


if __name__ == "__main__":
    harness.use_two_cores()
    sys.exit(harness.run(measure, __doc__, rounds=3))
