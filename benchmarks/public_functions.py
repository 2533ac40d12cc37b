"""Functions of public packages in fnjax.torch beside PyTorch: compare them, and write docs/public-functions.md.

    python -m benchmarks.public_functions FOLDER [--results FILE] [--seconds 6] [--limit 200]
    python -m benchmarks.public_functions --read FILE      # what an earlier run left there

benchmarks/public_functions.tsv names the packages with their versions, files and classes, and the arguments of a call
where the search finds none. FOLDER has each package unpacked in a folder of its name:
`pip download --no-deps gpytorch==1.15.2`, and the content of the archive in FOLDER/gpytorch. What
`fnjax check --against pytorch` does with a class is done here in a copy of one process that has imported PyTorch and
JAX. Results that FILE has are kept. The files are executed.
"""

from __future__ import annotations

import argparse
import collections
import csv
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import torch

from fnjax.port.check_command import WORDS, _make_job
from fnjax.port.sources import Text
from fnjax.port.verify import sandboxed_calls
from fnjax.port.verify.verification import verify_class
from fnjax.port.verify.worker import warm_up

LIST = Path(__file__).with_suffix(".tsv")
PAGE = Path(__file__).parent.parent / "docs" / "public-functions.md"
# A machine that other processes use, too: seconds that may pass for one of processor time.
WAITING = 12.0

HOW = """\
`python -m benchmarks.public_functions` runs the classes of a list of public files (benchmarks/public_functions.tsv:
package, version, file, class) as they are in `fnjax.torch` and in PyTorch, as `fnjax check --against pytorch` does:
outputs, gradients and second derivatives in float32, eager and under jit, for each pattern of arguments that require
grad, then float64, bfloat16, tensors that are not contiguous, and a second call. None of the files is in fnjax's
tests."""

# What was looked into, by class.
EXPLAINED = {
    "DeepSpeedTiledMLPMoE": "PyTorch's is 0 with `create_graph`, which the comparison uses; without it, both agree",
    "MMSEFunction": "PyTorch takes intermediates that forward saved for constants; finite differences agree with JAX's",
    "_ChunkedLossWrapperWithParamGrads": "backward queues a call in PyTorch's engine, which fnjax.torch does not have",
    "degen_symeig": "an eigenvector of the other sign, which LAPACK leaves open",
}


def read_list() -> list[dict[str, str]]:
    """Return the rows of the list."""
    with LIST.open() as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def verify(folder: Path, row: dict[str, str], seconds: float, connection: Any) -> None:
    """Send the verdict on a class; runs in a process of its own."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    sandboxed_calls._BEGIN, sandboxed_calls.WAITING = time.monotonic(), WAITING
    warm_up("pytorch")
    path = folder / row["package"] / row["file"]
    options = argparse.Namespace(seconds=seconds, seed=0, against="pytorch")
    source = Text(str(path), explicit=True, root=str(path.parent), text=path.read_text())
    job = _make_job(source, row["class"], options, [row["arguments"]] if row["arguments"] else [])
    if job.port:
        place = Path(tempfile.mkdtemp()) / f"{path.stem}_jax.py"
        place.write_text(job.port)
        job = replace(job, place=str(place))
    verdict = verify_class(job, lambda event, **more: None)
    connection.send({"status": WORDS[verdict.status], "reason": verdict.reason, "calls": verdict.calls})
    os._exit(0)


def run(folder: Path, rows: list[dict[str, str]], results: Path, seconds: float, limit: float) -> None:
    """Compare the classes of which the results have nothing yet."""
    known = {(r["package"], r["file"], r["class"]) for r in read_results(results)}
    sys.path += sorted(str(p) for p in folder.iterdir() if p.is_dir())
    context = multiprocessing.get_context("fork")
    for row in rows:
        key = {name: row[name] for name in ("package", "file", "class")}
        if (*key.values(),) in known:
            continue
        mine, theirs = context.Pipe()
        process = context.Process(target=verify, args=(folder, row, seconds, theirs))
        process.start()
        theirs.close()
        try:
            found = mine.recv() if mine.poll(limit) else {"status": "not tried", "reason": f"no end in {limit:g} s"}
        except EOFError:
            found = {"status": "not tried", "reason": "its process ended"}
        process.kill()
        process.join()
        with results.open("a") as file:
            file.write(json.dumps({**key, **found}) + "\n")
        print(*key.values(), found["status"], found["reason"][:100].replace("\n", " "), flush=True)


def read_results(results: Path) -> list[dict[str, Any]]:
    """Return what was compared by now."""
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def write(found: list[dict[str, Any]], versions: dict[str, str], note: str = "") -> str:
    """Return the page."""
    counts = collections.Counter(r["status"] for r in found)
    compared = {(r["package"], r["file"]) for r in found if r["status"] != "not tried"}
    figures = ", ".join(f"{counts[word]} {word}" for word in WORDS.values())
    made_with = f"PyTorch {torch.__version__.partition('+')[0]}, JAX {jax.__version__}"
    summary = (
        f"{made_with}: of {len(found)} classes {figures}. {len(compared)} files have a class that was compared. {note}"
    )
    lines = ["# Functions of public files beside PyTorch", "", HOW, "", summary.strip(), ""]
    for word in ("different", "refused", "not tried"):
        lines += [f"## {word.capitalize()}", "", "| File | Class | Reason |", "| --- | --- | --- |"]
        for r in sorted((r for r in found if r["status"] == word), key=lambda r: (r["package"], r["file"])):
            reason = r["reason"].partition("\n")[0].partition(" (the furthest")[0].replace("|", "\\|")
            reason = re.sub(r" \(?/\S+.*", "", reason)[:200]
            reason += f": {EXPLAINED[r['class']]}" if word == "different" and r["class"] in EXPLAINED else ""
            lines.append(f"| {r['package']} {r['file']} | `{r['class']}` | {reason} |")
        lines.append("")
    right: dict[str, list[str]] = collections.defaultdict(list)
    for r in found:
        if r["status"] == "right":
            right[f"{r['package']} {versions[r['package']]}"].append(
                f"{r['file']}: `{r['class']}` ({r['calls']} calls)"
            )
    lines += [
        "## Right",
        "",
        *(f"- {package}: {', '.join(sorted(each))}" for package, each in sorted(right.items())),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Compare the classes, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--results", type=Path, default=Path("public_functions.jsonl"))
    parser.add_argument("--seconds", type=float, default=6.0, help="processor time for each search")
    parser.add_argument("--limit", type=float, default=200.0, help="seconds after which a class is not tried")
    parser.add_argument("--read", type=Path, help="results of which to write the page")
    parser.add_argument("--note", default="", help="what is to be said of the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows, results = read_list(), options.read or options.results
    if options.read is None:
        run(options.folder.absolute(), rows, results, options.seconds, options.limit)
    versions = {r["package"]: r["version"] for r in rows}
    PAGE.write_text(write(read_results(results), versions, options.note))


if __name__ == "__main__":
    main()
