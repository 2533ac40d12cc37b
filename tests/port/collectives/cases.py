"""Calls of those Functions, on each of four devices, and what their ports are."""

import pathlib

import numpy as np

from fnjax.port.compare.devices import GROUP, Case

HERE = pathlib.Path(__file__).parent
DEVICES = 4
ORIGINAL = f"import sys\nsys.path.insert(0, {str(HERE)!r})\nimport functions"
CALLS = {
    "Copy": ((4, 6), GROUP),
    "Reduce": ((4, 6), GROUP),
    "Scatter": ((3, 8), GROUP, -1),
    "ScatterRows": ((8, 3), GROUP),
    "Gather": ((3, 2), GROUP, 1),
    "GatherSum": ((2, 3), GROUP),
    "ReduceScatter": ((8, 3), GROUP),
    "AllToAll": (GROUP, (8, 3)),
    "AllToAll sizes": (GROUP, (8, 3), [2, 2, 2, 2], [2, 2, 2, 2]),
    "Ulysses": (GROUP, (4, 8, 3), 1, 0),
    "Linear": ((5, 4), (6, 4), GROUP),
    "SyncNorm": ((5, 4), (4,), GROUP),
    "CrossEntropy": ((6, 5), "target", GROUP),
    "Broadcast": ((4, 6),),
    "Contrast": ((4, 6),),
    "Norm": ((3, 4), GROUP),
    "Halo": ((3, 4), GROUP),
    "CompReduce": ((2, 3), GROUP),
    "ReduceView": ((2, 3), GROUP),
    "LoopOver": ((2, 3), (3,), GROUP),
    "AllGatherIntoViews": ((2, 3), GROUP),
    "Grouped": ((2, 3), 2),
    "OwnPart": ((2, 3), "rank", 4),
    "SumExp": ((2, 3), GROUP),
    "RingScores": ((4, 3, 4), (4, 3, 4), 2, 2, 3, GROUP),
    "Neighbours": ((3, 4), GROUP),
    "PassTwo": ((3, 4), (3, 4), GROUP),
    "CopyView": ((3, 4), GROUP, "later"),
}


def cases(ported: str) -> dict[str, Case]:
    """The calls.

    Args:
        ported: the file with the ports.
    """
    rng = np.random.default_rng(27)
    code = f"import runpy\nports = runpy.run_path({ported!r})\nfor f in ports.values():\n    pass\n"
    code += "next(f for f in ports.values() if hasattr(f, 'apply')).backward.__globals__['AXIS_NAME'] = 'devices'"

    def made(what: object, rank: int) -> object:
        if what == "rank":
            return rank
        if what == "target":
            return rng.integers(0, 20, 6)
        return rng.normal(size=what).astype(np.float32) if isinstance(what, tuple) else what

    found = {}
    for name, call in CALLS.items():
        cls = name.partition(" ")[0]
        args = [[made(a, rank) for a in call] for rank in range(DEVICES)]
        found[name] = Case((f"functions.{cls}.apply", ORIGINAL), (f"ports[{cls!r}].apply", code), args)
    return found
