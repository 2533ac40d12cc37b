"""Ask Triton 3.5.1 for its names, parameters and types: tests/triton/signatures.txt and types.txt.

python -m tests.triton.make_signatures [--to FOLDER]

In the environment of make_goldens.py. A line of signatures.txt is a function of triton.language and its parameters; one
of types.txt is an expression, and for each type of x (and y) the type and shape that come out, or `-` for an error.
"""

import argparse
import inspect
import os
import tempfile
from pathlib import Path

from tests.triton.expressions import all_of, kernels

HERE = Path(__file__).parent
NAMES = {"fp16": "float16", "fp32": "float32", "fp64": "float64"}


def signatures():
    """Functions and methods, with the parameters that users give."""
    import triton.language as tl

    for prefix, owner in (("", tl), ("tensor.", tl.tensor)):
        for name in sorted(dir(owner)):
            found = getattr(owner, name)
            function = inspect.unwrap(getattr(found, "fn", found))
            if name.startswith("_") or not inspect.isfunction(function):
                continue
            parameters = [p for p in inspect.signature(function).parameters.values() if not p.name.startswith("_")]
            stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
            yield " ".join([prefix + name, *(stars.get(p.kind, "") + p.name for p in parameters if p.name != "self")])


def types():
    """Return the type of each expression."""
    import torch
    import triton.language as tl

    found = []

    def record(value):
        shape = "x".join(str(int(getattr(n, "value", n))) for n in value.shape)
        kind = str(value.dtype.scalar)
        found.append(f"{NAMES.get(kind, kind)}[{shape}]")

    lines = {}
    with tempfile.TemporaryDirectory() as folder:
        module = kernels(Path(folder), "triton", record)
        for i, expression, x, y in all_of():
            found.clear()
            try:
                getattr(module, f"kernel_{i}")[(1,)](torch.tensor([1, 2, 3, 1]), getattr(tl, x), getattr(tl, y))
            except Exception:  # noqa: BLE001 - what the interpreter refuses
                found.append("-")
            lines.setdefault(expression, []).append(found[0])
    return ["\t".join([expression, *cells]) for expression, cells in lines.items()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=HERE, help="folder of the files")
    folder = parser.parse_args().to
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
    (folder / "signatures.txt").write_text("\n".join(signatures()) + "\n")
    (folder / "types.txt").write_text("\n".join(types()) + "\n")
