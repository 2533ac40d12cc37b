"""Seconds that Triton's interpreter takes for the launches of benchmarks.triton_speed, as JSON by name.

python -m benchmarks.triton_interpreter [NAME ...]

Needs PyTorch, triton and the older NumPy, and no JAX: `make triton` makes such an environment.
"""

import json
import os
import sys
import tempfile
import time

from benchmarks.triton_launches import LAUNCHES
from tests.triton.make_goldens import kernels_for_triton, launch


def main(names):
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        module = kernels_for_triton(folder)
        for name in names or LAUNCHES:
            case = LAUNCHES[name]()
            kernels = module(case.file)
            start = time.process_time()
            launch(case, kernels)
            seconds[name] = time.process_time() - start
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(sys.argv[1:])
