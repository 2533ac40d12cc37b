"""The classes of tests/port as fnjax.torch runs them, next to PyTorch.

    python -m benchmarks.torch_classes [--second] [--part 0/2] [NAME ...]

Values and gradients (with --second also second derivatives), outside of jit and under it, in float32. A class is right,
first-order (its second derivatives are refused by name), refused (fnjax.torch.NotSupported), other (it cannot be
compared, see OTHER), wrong, or raises something else; all but the right ones are listed. Second derivatives in which
PyTorch drops a saved intermediate count as right where finite differences of PyTorch's gradient say so.
"""

import argparse
import collections
import functools
import tempfile
import warnings
from pathlib import Path

import jax

import fnjax.torch
from tests.port.test_classes import LOADED, arguments, module, source

OTHER = {
    "DrawsWithin": "random numbers",
    "DevicesAsked": "fnjax.torch says that there is a GPU",
    "WhereItLies": "fnjax.torch says that there is a GPU",
    "OneOfTwo": "fnjax.torch says that there is a GPU",
    "SolverThatIsRefused": "PyTorch raises for a matrix that is not positive definite, JAX gives NaN",
    "CholeskyOrNot": "PyTorch raises for a matrix that is not positive definite, JAX gives NaN",
}
# Finite differences of PyTorch's gradient are fnjax.torch's second derivatives of these; PyTorch's own leave them out.
_DROPPED = "PyTorch drops what an object on ctx holds, which a second call cannot be given"
SECOND = {
    "ContextByAnotherName": "its backward changes what it keeps: a second call, to measure which is right, differs",
    **dict.fromkeys(("NamedTupleOut", "Tables", "Likelihood"), _DROPPED),
}


def judge(name, folder, *, second=False):
    """Return the verdict on a class, and its reason."""
    from fnjax.port.compare import compare

    path = folder / f"{name}.py"
    path.write_text(source(name))
    original = getattr(module(folder, f"original_{name}", source(name)), name).apply
    try:
        with fnjax.torch.seed(0):
            loaded = getattr(fnjax.torch.load(path), name).apply

        @functools.wraps(loaded)
        def seeded(*args, **kwargs):
            with fnjax.torch.seed(0):
                return loaded(*args, **kwargs)

        result = compare(original, seeded, arguments(name), dtype="float32", second=second)
    except fnjax.torch.NotSupported as e:
        return "refused", str(e)
    except Exception as e:  # noqa: BLE001 - a verdict as well
        return "raised", f"{type(e).__name__}: {e}"
    differing = [e for e in result.entries if not (e.equal or e.known)]
    if name in SECOND:
        differing = [e for e in differing if not e.what.startswith("second")]
    text = "\n".join(map(str, differing))
    if name in OTHER:
        return "other", OTHER[name]
    if not differing and {e.mode for e in result.entries} == {"eager", "jit"}:
        return "right", ""
    if "NotSupported" in text:
        return ("first-order" if all(e.what.startswith("second") for e in differing) else "refused"), text
    return "raised" if "Error" in text else "wrong", text


def main():
    """Print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="classes; all of them by default")
    parser.add_argument("--second", action="store_true", help="second derivatives as well")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every N-th class from the I-th on")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    first, step = map(int, given.part.split("/"))
    verdicts = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for i, name in enumerate((given.names or sorted(LOADED))[first::step]):
            verdict, seen = judge(name, Path(folder), second=given.second)
            verdicts[verdict] += 1
            if verdict != "right":
                print(f"{name}: {verdict}: {' '.join(seen.split())[:200]}", flush=True)
            if i % 20 == 19:
                jax.clear_caches()
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()))


if __name__ == "__main__":
    main()
