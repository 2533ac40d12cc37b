"""Run all benchmarks, each in a process of its own, and write benchmarks/REPORT.md with its plots.

python -m benchmarks [--only NAME ...] [--quick]

Exits with 1 if a goal is missed. The machine should have nothing else to do: PyTorch's threads suffer more than
JAX's from a neighbour.
"""

import argparse
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import plots

HERE = Path(__file__).parent
SCRIPTS = ("tracing", "running", "eager", "memory", "loops", "against_torch", "devices", "import_time", "port_speed")
QUICK = ["--rounds", "3"]


def machine():
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0] if names else cpu
    return f"{cpu}, {os.cpu_count()} cores, {platform.system()}; load at the start {os.getloadavg()[0]:.1f}"


def run(name, arguments, folder, *, script=None, timeout=None, environment=os.environ):
    """Run a script, `benchmarks.name` or another; return its figures, or a report of its failure."""
    out = folder / f"{name}.json"
    command = [sys.executable, "-m", f"benchmarks.{script or name}", "--json", str(out), *arguments]
    path = os.pathsep.join([str(HERE.parent), environment.get("PYTHONPATH", "")])
    try:
        done = subprocess.run(
            command, cwd=HERE.parent, env={**environment, "PYTHONPATH": path}, timeout=timeout, check=False
        )
        why = f"the script ended with status {done.returncode}"
    except subprocess.TimeoutExpired:
        why = f"stopped after {timeout:.0f} s"
    return json.loads(out.read_text()) if out.exists() else failure(name, why)


def failure(name, why):
    """Return the report of a script that has no figures."""
    return {"title": name, "tables": [], "goals": [{"text": why, "met": False}], "notes": []}


def markdown(reports, about, *, title="Benchmarks", pictures=plots.PLOTS):
    lines = [f"# {title}", "", *about, ""]
    missed = sum(not g["met"] for r in reports.values() for g in r["goals"])
    lines += [f"{sum(len(r['goals']) for r in reports.values())} goals, {missed} missed.", ""]
    for name, report in reports.items():
        lines += [f"## {report['title']}", "", f"`python -m benchmarks.{report.get('command', name)}`", ""]
        for table in report["tables"]:
            lines += [
                f"**{table['title']}**",
                "",
                row(table["columns"]),
                row(["---"] + ["---:"] * (len(table["columns"]) - 1)),
            ]
            lines += [*map(row, table["rows"]), ""]
        if name in pictures and report["tables"]:
            lines += [f"![{report['title']}](plots/{name}.png)", ""]
        lines += [f"- {note}" for note in report["notes"]]
        lines += [f"- {'met' if g['met'] else '**missed**'}: {g['text']}" for g in report["goals"]] + [""]
    return "\n".join(lines)


def row(cells):
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SCRIPTS, default=SCRIPTS, help="the others are left out")
    parser.add_argument("--quick", action="store_true", help="few rounds: to see that everything runs")
    parser.add_argument("--output", type=Path, default=HERE, help="folder of REPORT.md and plots/")
    options = parser.parse_args()
    start, about = time.monotonic(), [machine() + ".", f"{dt.datetime.now(dt.UTC):%Y-%m-%d}."]
    if options.quick:
        about.append("Short form (`--quick`): few rounds, so the times say little.")
    reports = {}
    with tempfile.TemporaryDirectory() as folder:
        for i, name in enumerate(options.only, 1):
            print(f"\n=== {i} of {len(options.only)}: {name} ({time.monotonic() - start:.0f} s)", flush=True)
            reports[name] = run(name, QUICK if options.quick else [], Path(folder))
    plots.draw(reports, options.output / "plots")
    (options.output / "REPORT.md").write_text(markdown(reports, about))
    missed = [goal["text"] for report in reports.values() for goal in report["goals"] if not goal["met"]]
    print(f"\n{time.monotonic() - start:.0f} s; " + ("missed:" if missed else "all goals met"), *missed, sep="\n  ")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
