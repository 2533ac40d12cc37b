"""Measure how much of public code `fnjax port` translates, and verify the ports.

    python tools/port_corpus.py [--kind PURE] [--package NAME] [--others] [--numbers]

The classes of port_corpus.tsv are fetched from the package index, each as a file with the statements of its package
that it needs (see port_fetch.py), and ported; no package is installed. With `--numbers`, which needs PyTorch and runs
both files, each port is verified as `fnjax port --verify` does it, without help. `--others` uses the packages of
port_others.txt instead, whose classes were never looked at: all those that use tensor operations only.

Kinds: PURE uses tensor operations only; OTHER needs something besides (another library, a function as argument, global
state); DIST collectives; KERNEL its own CUDA, Triton or C++ code.
"""

from __future__ import annotations

import argparse
import collections
import csv
import importlib.metadata
import itertools
import json
import os
import pathlib
import re
import sys
from collections.abc import Iterator

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from port_fetch import Package, wheel

import fnjax
from fnjax.port import PortedClass, port_source
from fnjax.port.verify import Job, Verdict, verify

CLASSES = pathlib.Path(__file__).with_suffix(".tsv")
OTHERS = pathlib.Path(__file__).with_name("port_others.txt")
CACHE = pathlib.Path.home() / ".cache" / "fnjax-port-corpus"
VERDICTS = ("verified", "differs", "refused", "not tried")
# What a class of tensor operations only does not have.
FOREIGN = re.compile(
    r"triton|cpp_extension|\b_C\b|cupy|numba|torch\.ops\.|distributed|\bdist\.|_cuda\b|cuda_|pycuda|run_function|ext_module"
    r"|process_group|all_reduce|load_library|keops|warp|tensorrt|bitsandbytes|\bmpu\b"
)


def listed(options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Yield the requested classes: package, version, file, class."""
    if not options.others:
        with CLASSES.open() as file:
            yield from (r for r in csv.DictReader(file, delimiter="\t") if options.kind in {"all", r["kind"]})
        return
    for line in OTHERS.read_text().split():
        package, _, version = line.partition("==")
        for file, name in Package(wheel(package, version, options.cache)).functions():
            yield {"package": package, "version": version, "file": file, "class": name}


def taken(record: dict[str, str], opened: Package, options: argparse.Namespace) -> pathlib.Path | None:
    """Return the file of a class; None if it cannot be extracted, or does not use tensor operations only."""
    name = record["class"].split(".")[-1]
    path: pathlib.Path = options.cache / "classes" / record["file"].removesuffix(".py") / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        text = opened.source(record["file"], record["class"])
    except (ValueError, RecursionError, StopIteration, SyntaxError) as e:
        print(f"{record['package']} {name}: not extracted: {e}", flush=True)
        return None
    if options.others and FOREIGN.search(text):
        return None
    path.write_text(text)
    return path


def ported_class(path: pathlib.Path) -> tuple[str, PortedClass | None]:
    """Return the port of the class that a file is for."""
    ported = port_source(path.read_text(), path.name, [path.stem], strict=True)
    return ported.code, next((c for c in ported.classes if c.name.split(".")[-1] == path.stem), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="PURE", choices=["PURE", "OTHER", "DIST", "KERNEL", "all"])
    parser.add_argument("--others", action="store_true", help="the packages of port_others.txt")
    parser.add_argument("--package", help="one package")
    parser.add_argument("--only", help="one class")
    parser.add_argument("--numbers", action="store_true", help="run both sides")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each class (default: %(default)g)")
    parser.add_argument("--verdicts", type=pathlib.Path, help="write the verdicts here, as lines of JSON")
    parser.add_argument(
        "--cache", type=pathlib.Path, default=CACHE, help=f"where downloads and classes are kept ({CACHE})"
    )
    options = parser.parse_args()
    records = [
        r
        for r in listed(options)
        if options.package in {None, r["package"]} and options.only in {None, r["class"].split(".")[-1]}
    ]
    if not records:
        sys.exit("no such class in port_corpus.tsv")
    table: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    codes: collections.Counter[str] = collections.Counter()
    for (package, version), group in itertools.groupby(records, lambda r: (r["package"], r["version"])):
        opened = Package(wheel(package, version, options.cache))
        row = table[f"{package} {version}"]
        for record in group:
            path = taken(record, opened, options)
            if path is None:
                continue
            code, cls = ported_class(path)
            status = cls.status if cls else "failed"
            row["classes"] += 1
            row[status] += 1
            codes.update({f.code for f in cls.findings} if cls else {"failed"})
            remark = f"{path.stem}: {status}" if status != "ported" else ""
            if options.numbers and cls is not None and status == "ported":
                verdict = verify(Job(str(path), path.read_text(), cls.name, port=code, seconds=options.seconds))
                row[verdict.status] += 1
                remark = verdict.describe(str(path), "PORTED")
                keep(verdict, path, options)
            if remark:
                print(f"{package} {remark}", flush=True)
        print(f"{package} {version}: {row['ported']} of {row['classes']} ported", file=sys.stderr, flush=True)
    show(table, codes, options)


def keep(verdict: Verdict, path: pathlib.Path, options: argparse.Namespace) -> None:
    """Add a verdict to the file of verdicts."""
    if options.verdicts:
        with options.verdicts.open("a") as file:
            file.write(json.dumps({"file": str(path), **verdict.make_json()}) + "\n")


def show(
    table: dict[str, collections.Counter[str]], codes: collections.Counter[str], options: argparse.Namespace
) -> None:
    """Print the tables."""
    columns = ["classes", "ported", "partial", "failed", *(VERDICTS if options.numbers else ())]
    print("\n| package | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1))
    total: collections.Counter[str] = collections.Counter()
    for name, row in sorted(table.items()):
        total.update(row)
        print(f"| {name} | " + " | ".join(str(row[c] or "") for c in columns) + " |")
    print("| all | " + " | ".join(str(total[c] or "") for c in columns) + " |")
    print("\n| code | classes |\n|---|---|")
    for code, count in codes.most_common():
        print(f"| {code} | {count} |")
    print(
        f"\nfnjax {fnjax.__version__}, JAX {jax.__version__}, Python {sys.version.split()[0]}"
        + (f", PyTorch {importlib.metadata.version('torch')}" if options.numbers else "")
    )


if __name__ == "__main__":
    main()
