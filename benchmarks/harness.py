"""Helpers of all benchmarks: interleaved measurements, tables with versions, goals that are met or missed."""

import argparse
import contextlib
import datetime as dt
import json
import os
import platform
import random
import re
import statistics
import sys
import time
from pathlib import Path

CORES = 2  # for JAX and PyTorch alike


def use_two_cores():
    """Bind the process to as many cores as the other side gets threads; call it before JAX is imported."""
    with contextlib.suppress(AttributeError, OSError):  # only Linux has it
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


class Report:
    """Tables and goals, printed as they come, and kept for REPORT.md."""

    def __init__(self, title):
        self.title, self.tables, self.goals, self.notes = title, [], [], []

    def table(self, title, columns, rows):
        """Print a table; `rows` may be a generator that measures as it goes."""
        print(f"\n{title}\n" + "".join(f"{c:>{w}}" for c, w in zip(columns, self._widths(columns), strict=True)))
        kept = []
        for row in rows:
            cells = [f"{x:.3f}" if isinstance(x, float) else str(x) for x in row]
            print("".join(f"{c:>{w}}" for c, w in zip(cells, self._widths(columns), strict=True)), flush=True)
            kept.append(cells)
        self.tables.append({"title": title, "columns": list(columns), "rows": kept})

    @staticmethod
    def _widths(columns):
        return [30] + [max(17, len(c) + 2) for c in columns[1:]]

    def note(self, text):
        print(text, flush=True)
        self.notes.append(text)

    def goal(self, text, value, bound, *, at_least=False):
        """Record a figure and the bound that it must keep."""
        met = value >= bound if at_least else value <= bound
        sign = "at least" if at_least else "at most"
        line = f"{text}: {value:.3f} ({sign} {bound:g})"
        print(f"{'met   ' if met else 'MISSED'} {line}", flush=True)
        self.goals.append({"text": line, "met": bool(met)})


def run(measure, doc, **numbers):
    """Run a script: `measure(report, options)`; its options are integers with these defaults.

    Returns the exit status: 1 if a goal was missed.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--page", type=Path, help="also write tables and goals to this file, as a part of a page")
    options = parser.parse_args()
    report = Report(doc.splitlines()[0])
    report.note(versions())
    load = os.getloadavg()[0]
    measure(report, options)
    if options.page:
        options.page.write_text(page(report, load))
    if options.json:
        options.json.write_text(json.dumps({**vars(report), "versions": versions()}))
    return int(not all(goal["met"] for goal in report.goals))


def page(report, load):
    """Tables, notes and goals as Markdown, with what the machine did besides."""
    busy = "that had little else to do" if load <= 1 else "that others used as well, so that the figures are noisy"
    day = f"{dt.datetime.now(dt.UTC):%Y-%m-%d}"
    lines = [f"{versions()}; {day}, on a machine of {os.cpu_count()} cores {busy} (load {load:.1f}).", ""]
    for table in report.tables:
        rows = [table["columns"], ["---"] + ["---:"] * (len(table["columns"]) - 1), *table["rows"]]
        lines += [f"{table['title']}:", "", *("| " + " | ".join(cells) + " |" for cells in rows), ""]
    lines += [f"- {note}" for note in report.notes[1:]]
    lines += [f"- {'met' if goal['met'] else 'missed'}: {goal['text']}" for goal in report.goals]
    return "\n".join(lines) + "\n"


def versions():
    import jax

    import fnjax

    text = f"JAX {jax.__version__}, Python {platform.python_version()}, fnjax {fnjax.__version__}"
    if "torch" in sys.modules:
        text += f", PyTorch {sys.modules['torch'].__version__}"
    device = jax.devices()[0]
    return f"{text}; {device.device_kind if device.platform != 'cpu' else 'no accelerator: CPU'}"


def interleaved(cases, rounds, *, clock=time.perf_counter, calls=1, setup=None, settle=None):
    """Time each case once in every round, in an order of chance; return the times by case.

    Args:
        cases: functions by name, without arguments or of what `setup` returned.
        rounds: how many times each is measured, after one time that does not count.
        clock: `time.thread_time` for what runs in one thread, so that other processes do not count.
        calls: how often a case is called for one measurement; the times are for one call.
        settle: seconds to wait before each measurement, and then as many calls that do not count: PyTorch's threads
            go on spinning after their work, and would be charged to whoever comes next.
        setup: is called with the name before each measurement, outside of it.
    """
    times, names, chance = {name: [] for name in cases}, list(cases), random.Random(0)
    for i in range(rounds + 1):
        chance.shuffle(names)
        for name in names:
            args = () if setup is None else (setup(name),)
            if settle:
                time.sleep(settle)
                for _ in range(calls):
                    cases[name](*args)
            start = clock()
            for _ in range(calls):
                cases[name](*args)
            if i:
                times[name].append((clock() - start) / calls)
    return times


def ratio(times, name, other):
    """Return the median of the ratios within each round."""
    return statistics.median(a / b for a, b in zip(times[name], times[other], strict=True))


def median_us(times, name):
    return statistics.median(times[name]) * 1e6


def kernels(text):
    """Return how many kernels a compiled program starts, from its text; what stands in a loop counts once."""
    free = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier"}
    free |= {"partition-id", "replica-id"}
    bodies, main, current = {}, None, None
    for line in text.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.-]+) \(.*\{$", line):
            current = bodies.setdefault(head[2], [])
            main = head[2] if head[1] else main
        elif current is not None and (found := re.match(r"\s+(?:ROOT )?%?[\w.-]+ = .*?\s([a-z][a-z0-9-]*)\(", line)):
            current.append((found[1], line))

    def started(name):
        count = 0
        for operation, line in bodies[name]:
            # What these hold is started; a fusion or a reduction is one kernel with what it holds.
            if operation in {"while", "conditional", "call", "async-start"}:
                held = re.findall(r"(?:condition|body|to_apply|calls|\w+_computation)=%?([\w.-]+)", line)
                for group in re.findall(r"branch_computations=\{([^}]*)\}", line):
                    held += re.findall(r"[\w.-]+", group)
                count += sum(map(started, held))
            else:
                count += operation not in free and not operation.endswith(("-done", "-update"))
        return count

    return started(main)
