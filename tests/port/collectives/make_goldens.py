"""Run the Functions in four gloo processes and keep what they gave: `python -m tests.port.collectives.make_goldens`."""

import pickle
import zlib

import numpy as np

from fnjax.port.compare.devices import run_gloo
from tests.port.collectives.cases import HERE, cases

GOLDENS = HERE / "goldens.npz"


def main() -> None:
    """Write the goldens."""
    wanted = cases("")
    found = dict(zip(wanted, run_gloo(list(wanted.values())), strict=True))
    errors = {n: r["error"] for n, ranks in found.items() for r in ranks if "error" in r}
    if errors:
        raise SystemExit(f"PyTorch failed: {errors}")
    packed = np.frombuffer(zlib.compress(pickle.dumps(found), 9), np.uint8)
    np.savez(GOLDENS, goldens=packed)


def read() -> dict[str, list[dict]]:
    """Read the results of the processes for each case."""
    with np.load(GOLDENS) as file:
        return pickle.loads(zlib.decompress(file["goldens"].tobytes()))


if __name__ == "__main__":
    main()
