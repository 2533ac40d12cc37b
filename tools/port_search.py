"""Measure which mistakes `fnjax port --verify` finds.

    python tools/port_search.py [--count 200] [--seed 0] [--others] [--against fnjax.torch]

The mistakes of port_mutants.py are put into the ports of port_corpus.py, one at a time: `--count` of
them are drawn with a seed from all sites in the ports that agree with PyTorch, and each mutant is verified like a port.
One that agrees is verified again, longer and with another seed: it differs later, or agrees still, and is equivalent if
that many calls agree. Read those that do not differ: the port itself may differ later, what agrees may be equivalent.
"""

from __future__ import annotations

import argparse
import collections
import importlib.metadata
import os
import pathlib
import random
import sys
import tempfile
import types
import warnings

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from port_corpus import CACHE, listed, ported_class, taken
from port_fetch import Package, wheel
from port_mutants import Mutant, mutants

import fnjax
from fnjax.port.compare.reference import REFERENCES, choose_reference, is_installed
from fnjax.port.verify import Verdict


def verified(
    path: pathlib.Path, name: str, port: str, seconds: float, ran: set[int] | None = None, **more: object
) -> Verdict:
    """Return the verdict; `ran` gets the lines of the port that run.

    It is found in this process: the classes are known to end none, and starting one takes its time.
    """
    from fnjax.port.verify import Job
    from fnjax.port.verify.verification import verify_class

    def step(frame: types.FrameType, event: str, _: object) -> object:
        ran.add(frame.f_lineno)
        return step

    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / f"{path.stem}_jax.py"
        file.write_text(port)
        job = Job(str(path), path.read_text(), name, str(file), seconds=seconds, shrinks=False, **more)
        if ran is not None:
            sys.settrace(lambda frame, *_: step if frame.f_code.co_filename == str(file) else None)
        try:
            return verify_class(job, lambda *_, **__: None)
        finally:
            sys.settrace(None)


def describe(mutant: Mutant, verdict: Verdict) -> str:
    """Return the kind, the line as the mistake leaves it, and the verdict, which names the class."""
    line = mutant.text.splitlines()[mutant.line - 1].strip()
    return f"{mutant.kind} in line {mutant.line}, `{line}`: {verdict.describe('', '')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="mutants to draw (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="for the draw (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each mutant (default: %(default)g)")
    parser.add_argument("--longer", type=float, default=600.0, help="for one that agrees (default: %(default)g)")
    parser.add_argument("--calls", type=int, default=10_000, help="that show an equivalent one (default: %(default)s)")
    parser.add_argument("--against", choices=REFERENCES, help="the reference (default: PyTorch, if installed)")
    parser.add_argument("--others", action="store_true", help="the packages of port_others.txt")
    parser.add_argument("--cache", type=pathlib.Path, default=CACHE, help=f"where downloads are kept ({CACHE})")
    parser.set_defaults(kind="PURE")
    options = parser.parse_args()
    options.against = choose_reference(options.against)
    warnings.simplefilter("ignore")
    sites: list[tuple[pathlib.Path, str, str, Mutant]] = []
    for record in listed(options):
        path = taken(record, Package(wheel(record["package"], record["version"], options.cache)), options)
        code, cls = ported_class(path) if path else ("", None)
        if path and cls and cls.status == "ported":
            sites += [(path, cls.name, code, m) for m in mutants(code)]
    random.Random(options.seed).shuffle(sites)
    print(f"{len(sites)} mutants, drawn with seed {options.seed} from those whose line runs", flush=True)
    lines: dict[pathlib.Path, set[int]] = {}  # that run in ports that agree
    table: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    survivors = []
    drawn = 0
    for path, name, code, mutant in sites:
        if path not in lines:
            ran: set[int] = set()
            verdict = verified(path, name, code, options.seconds, ran, against=options.against)
            lines[path] = ran if verdict.status == "verified" else set()
            if not lines[path]:
                print(f"- left out: {verdict.describe('', '')}", flush=True)
        if mutant.line not in lines[path]:
            continue
        drawn += 1
        if drawn % 20 == 0:  # else what was compiled fills the memory
            jax.clear_caches()
        verdict = verified(path, name, mutant.text, options.seconds, against=options.against)
        if verdict.status == "differs":
            table[mutant.kind]["differs"] += 1
        else:
            survivors.append((path, name, mutant))
            print(f"- {describe(mutant, verdict)}", flush=True)
        print(f"\r{drawn} drawn, {len(survivors)} agree", end="", file=sys.stderr, flush=True)
        if drawn == options.count:
            break
    print(f"{drawn} drawn, {len(survivors)} agree", flush=True)
    for path, name, mutant in survivors:
        more = {"enough": options.calls, "modes": ("jit",), "against": options.against, "seed": 1}
        verdict = verified(path, name, mutant.text, options.longer, **more)
        found = "later" if verdict.status == "differs" else "agrees" if verdict.calls < options.calls else "equivalent"
        table[mutant.kind][found] += 1
        print(f"- {found}: {describe(mutant, verdict)}", flush=True)
    columns = ("differs", "later", "agrees", "equivalent")
    print("\n| mistake | drawn | " + " | ".join(columns) + " |\n|" + "---|" * 6)
    total: collections.Counter[str] = collections.Counter()
    for kind, row in sorted(table.items()):
        total.update(row)
        print(f"| {kind} | {row.total()} | " + " | ".join(str(row[c] or "") for c in columns) + " |")
    print(f"| all | {total.total()} | " + " | ".join(str(total[c] or "") for c in columns) + " |")
    share = total["differs"] / (total.total() - total["equivalent"])
    print(f"\n{share:.1%} of those that are not equivalent differ")
    pytorch = f"PyTorch {importlib.metadata.version('torch')}" if is_installed() else "without PyTorch"
    print(f"\nfnjax {fnjax.__version__}, JAX {jax.__version__}, Python {sys.version.split()[0]}, {pytorch}")


if __name__ == "__main__":
    main()
