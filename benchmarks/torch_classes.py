"""The classes of tests/port as fnjax.torch runs them, beside PyTorch.

    python -m benchmarks.torch_classes [--second] [NAME ...]

Values and gradients (with --second also second derivatives), outside of jit and under it, in float32. A class is right,
refused (fnjax.torch.NotSupported, by name), wrong, or raises something else; all but the right ones are listed.
"""

import argparse
import collections
import tempfile
import warnings
from pathlib import Path

import jax

import fnjax.torch
from tests.port.test_classes import CASES, arguments, module, source


def judge(name, folder, *, second=False):
    """The verdict on a class, and what was seen."""
    from fnjax.port.compare import compare

    path = folder / f"{name}.py"
    path.write_text(source(name))
    original = getattr(module(folder, f"original_{name}", source(name)), name).apply
    try:
        with fnjax.torch.seed(0):
            loaded = getattr(fnjax.torch.load(path), name).apply
            result = compare(original, loaded, arguments(name), dtype="float32", second=second)
    except fnjax.torch.NotSupported as e:
        return "refused", str(e)
    differing = "\n".join(str(e) for e in result.entries if not e.equal)
    if not differing and {e.mode for e in result.entries} == {"eager", "jit"}:
        return "right", ""
    return "refused" if "NotSupported" in differing else "raised" if "Error" in differing else "wrong", differing


def main():
    """Print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="classes; all of them by default")
    parser.add_argument("--second", action="store_true", help="second derivatives as well")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    verdicts = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for i, name in enumerate(given.names or sorted(CASES)):
            verdict, seen = judge(name, Path(folder), second=given.second)
            verdicts[verdict] += 1
            if verdict != "right":
                print(f"{name}: {verdict}: {' '.join(seen.split())[:200]}", flush=True)
            if i % 20 == 19:
                jax.clear_caches()
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()))


if __name__ == "__main__":
    main()
