"""PyTorch's own operator tests, for fnjax.torch: run all of them, and write docs/torch-operators.md.

    python -m benchmarks.torch_operators [--samples 4] [--workers 2]
    python -m benchmarks.torch_operators --read FOLDER      # what an earlier run left there

Each entry of `torch.testing._internal.common_methods_invocations.op_db` runs in PyTorch and in fnjax.torch
(tests/parity/torch_operators.py), in parts of some thirty entries, each a process of its own.
"""

import argparse
import ast
import collections
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import torch

from tests.parity.torch_operators import find_reason

PAGE = Path(__file__).parent.parent / "docs" / "torch-operators.md"
KINDS = ("equal", "refused", "raised", "unknown", "wrong")
FORMS = {"": "function", "strided": "other strides", "inplace": "in place", "out": "`out=`", "grad": "gradient"}
PARTS = 24
# Compiled programs are kept, and not optimised: most of the time goes into compiling thousands of small ones.
SETTINGS = {
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


HOW = """\
PyTorch's wheel has the tests of its operators, with sample inputs for each dtype. This page is written by
`python -m benchmarks.torch_operators`, which runs them in PyTorch and in `fnjax.torch`, in float32, bfloat16, int64,
bool and complex64, with 64-bit numbers on: up to {samples} samples of each entry and dtype, and 2 of its in-place and
`out=` form and of its gradient, and once more with the axes in another order in memory. Values, dtypes, shapes,
strides, and views or copies have to be PyTorch's; random numbers only in dtype and shape."""


def run(folder: Path, samples: int, workers: int) -> None:
    """Run all parts; each leaves its output in the folder."""
    settings = {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache"), **SETTINGS, **os.environ}

    def run_part(number: int) -> None:
        command = [sys.executable, "-m", "tests.parity.torch_operators", ".*", str(samples), f"{number}/{PARTS}"]
        with (folder / f"{number}.txt").open("w") as out:
            subprocess.run(command, stdout=out, env=settings, check=True)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run_part, range(PARTS)))


def read(folder: Path) -> tuple[collections.Counter[tuple[str, str]], list[list[str]]]:
    """Return how many samples there are, by form and kind, and the fields of those that are not equal."""
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    rest = []
    for file in sorted(folder.glob("*.txt")):
        *lines, last = file.read_text().splitlines()
        for name, count in ast.literal_eval(last).items():
            form, _, kind = name.rpartition(" ")
            counts[form, kind] += count
        rest += [[field.strip() for field in line.split(" | ")] for line in lines]
    return counts, rest


def write(counts: collections.Counter[tuple[str, str]], rest: list[list[str]], samples: int, note: str = "") -> str:
    """Return the page."""
    known = sum(n for (_, kind), n in counts.items() if kind != "unknown")
    equal = sum(n for (_, kind), n in counts.items() if kind == "equal")
    rows = [f"| {title} | {' | '.join(str(counts[form, kind]) for kind in KINDS)} |" for form, title in FORMS.items()]
    how = HOW.format(samples=samples)
    versions = f"PyTorch {torch.__version__.partition('+')[0]}, JAX {jax.__version__}"
    share = f"of {known} samples of known operators {equal} are equal ({100 * equal / known:.1f} %)."
    lines = [
        "# Operators next to PyTorch's own tests",
        "",
        how,
        "",
        f"{versions}: {share} {note}".strip(),
        "",
        f"| | {' | '.join(KINDS)} |",
        f"|{' --- |' * (len(KINDS) + 1)}",
        *rows,
        "",
    ]
    for kind, title in (("wrong", "What differs"), ("raised", "What raises"), ("refused", "What is refused")):
        found: dict[str, set[str]] = collections.defaultdict(set)
        for key, form, outcome, *_ in rest:
            own = outcome.partition(":")[0]
            if (own if own in KINDS else "wrong") == kind:
                found[find_reason(key, form, outcome)].add(key)
        lines += [f"## {title}", ""]
        for reason, keys in sorted(found.items()):
            lines.append(f"- {reason or 'open'}: {', '.join(f'`{k}`' for k in sorted(keys))}")
        lines += [""]
    unknown = sorted({key for key, _, outcome, *_ in rest if outcome == "unknown"})
    lines += ["## What is not known", "", ", ".join(f"`{k}`" for k in unknown), ""]
    return re.sub(r"[^\n]*/[\w/.-]+\.py:\d+", "", "\n".join(lines))


def main() -> None:
    """Run, or read, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--read", type=Path, help="a folder with the output of all parts")
    parser.add_argument("--note", default="", help="what is to be said of the figures")
    options = parser.parse_args()
    folder = options.read or Path(tempfile.mkdtemp())
    if options.read is None:
        run(folder, options.samples, options.workers)
    PAGE.write_text(write(*read(folder), options.samples, options.note))


if __name__ == "__main__":
    main()
