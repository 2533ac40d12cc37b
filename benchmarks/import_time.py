"""Import: what `import fnjax` adds to `import jax`.

python -m benchmarks.import_time [--rounds 11]

Each measurement is a fresh process that imports jax first, in processor time. Beside fnjax stands `jax.extend`, which
JAX wants for primitives of one's own and which loads all of Pallas: that part is not fnjax's to save. Byte code is
compiled before, as an installed package has it. Goal: at most 50 ms.
"""

import os
import statistics
import subprocess
import sys
import tempfile

from benchmarks import harness

CODE = "import time, jax\nstart = time.process_time()\nimport {module}\nprint(time.process_time() - start)"
MODULES = ("jax.extend.core", "fnjax")


def seconds(module, environment):
    command = [sys.executable, "-c", CODE.format(module=module)]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def measure(report, options):
    times = {module: [] for module in MODULES}
    with tempfile.TemporaryDirectory() as cache:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = cache
        for i in range(options.rounds + 1):
            for module in MODULES:
                took = seconds(module, environment)
                if i:  # the first one compiled
                    times[module].append(took * 1e3)
    medians = {module: statistics.median(t) for module, t in times.items()}
    report.table("After `import jax`", ("", "ms"), medians.items())
    report.goal("import fnjax, ms", medians["fnjax"], 50)


if __name__ == "__main__":
    harness.use_two_cores()
    sys.exit(harness.run(measure, __doc__, rounds=11))
