"""Run every launch in Triton's interpreter, and keep what it gives as tests/triton/goldens/*.npz.

python -m tests.triton.make_goldens [--to FOLDER]

Needs PyTorch 2.13.0, triton 3.5.1 and numpy 2.2.6 (`make triton` has them); needs no JAX. The kernels' files are copied
to a folder of their own with their imports changed, which is all that it takes.
"""

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.triton.all_cases import CASES

HERE = Path(__file__).parent
GOLDENS = HERE / "goldens"
IMPORTS = {
    "import fnjax.triton as triton\n": "import triton\n",
    "import fnjax.triton.language as tl\n": "import triton.language as tl\n",
}
# In the order in which trying the configurations would take them: without a clock, the first is the fastest.
TIMES = [1.0, 1.0, 1.0]


def kernels_for_triton(folder):
    """Copy the kernels with their imports changed; return a function that imports one of the files."""
    package = Path(folder) / "kernels_for_triton"
    package.mkdir()
    for path in (HERE / "kernels").glob("*.py"):
        text = path.read_text()
        for ours, theirs in IMPORTS.items():
            text = text.replace(ours, theirs)
        (package / path.name).write_text(text)
    sys.path.insert(0, str(folder))
    return lambda file: importlib.import_module(f"kernels_for_triton.{file}")


def launch(case, module):
    """Run a case in the interpreter; return what its outputs hold, by parameter."""
    import torch
    import triton.language as tl
    from triton.runtime.autotuner import Autotuner

    kernel = tuned = getattr(module, case.kernel)
    while tuned is not None:
        if isinstance(tuned, Autotuner):
            tuned._do_bench = run_once
        tuned = getattr(tuned, "fn", None)
    tensors = {name: torch.from_numpy(array) for name, array in case.arrays().items()}
    positional, named = case.call(tensors, tl)
    kernel[case.grid](*positional, **named)
    return {name: tensors[name].numpy() for name in case.outs}


def run_once(call, quantiles):
    """Try a configuration, as the tuner does, but without a GPU's clock."""
    call()
    return TIMES


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=GOLDENS, help="folder of the files")
    parser.add_argument("--only", default="", help="cases whose names contain this; writes nothing")
    options = parser.parse_args()
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
    options.to.mkdir(parents=True, exist_ok=True)
    found, failed = {}, []
    with tempfile.TemporaryDirectory() as folder:
        module = kernels_for_triton(folder)
        for case in CASES:
            if case.reference is not None or options.only not in case.name:
                continue
            try:
                values = launch(case, module(case.file))
            except Exception as trouble:  # noqa: BLE001 - the others are tried first
                failed.append(f"{case.name}: {type(trouble).__name__}: {trouble}"[:400])
                continue
            golden = found.setdefault(case.file, {})
            golden[f"{case.name}/inputs"] = case.checksum()
            golden |= {f"{case.name}/{name}": array for name, array in values.items()}
    if not options.only:
        for file, golden in found.items():
            np.savez_compressed(options.to / f"{file}.npz", **golden)
    print("\n".join(failed), f"\n{sum(map(len, found.values()))} arrays, {len(failed)} cases failed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
