"""Import: what the first use of fnjax adds to `import jax`.

python -m benchmarks.import_time [--rounds 11]

Each measurement is a fresh process that imports jax first, in processor time. `import fnjax` by itself imports next to
nothing, so what is measured is the name that every port asks for first, and all names together. Next to fnjax stands
`jax.extend`, which JAX wants for primitives of one's own and which loads all of Pallas: that part is not fnjax's to
save. Byte code is compiled before, as an installed package has it. Goals: at most 50 ms for all names, 300 ms for
`fnjax.torch` with its table of operations.
"""

import os
import statistics
import subprocess
import sys
import tempfile

from benchmarks import harness

CODE = "import time, jax\nstart = time.process_time()\n{use}\nprint(time.process_time() - start)"
USES = (
    "import jax.extend.core",
    "import fnjax; fnjax.Function",
    "from fnjax import *",
    "import fnjax.torch; fnjax.torch.load",
)


def seconds(use, environment):
    command = [sys.executable, "-c", CODE.format(use=use)]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def measure(report, options):
    times = {use: [] for use in USES}
    with tempfile.TemporaryDirectory() as cache:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = cache
        for i in range(options.rounds + 1):
            for use in USES:
                took = seconds(use, environment)
                if i:  # the first one compiled
                    times[use].append(took * 1e3)
    medians = {use: statistics.median(t) for use, t in times.items()}
    report.table("After `import jax`", ("", "ms"), medians.items())
    report.goal("from fnjax import *, ms", medians["from fnjax import *"], 50)
    report.goal("import fnjax.torch; fnjax.torch.load, ms", medians[USES[-1]], 300)


if __name__ == "__main__":
    harness.use_two_cores()
    sys.exit(harness.run(measure, __doc__, rounds=11))
