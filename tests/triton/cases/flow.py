"""Launches of control.py, atomics.py and tuning.py."""

import numpy as np

from tests.triton.case import Out, cases_of, floats, integers, out

case, CONTROL = cases_of("control")
case("static", "static", 2, x_ptr=floats(300, 32), out_ptr=out(32), BLOCK=16, STEPS=5)
case("loop", "loop", 2, x_ptr=floats(301, 6, 25), out_ptr=out(2, 25), m=6, n=25, BLOCK=16, tolerance=5e-7)
case("steps", "steps", 3, x_ptr=floats(302, 100), out_ptr=out(3, 16), n=100, BLOCK=16, tolerance=5e-7)
case("program-bound", "program_bound", 5, x_ptr=floats(303, 5, 8), out_ptr=out(5, 8), n=5, BLOCK=8, tolerance=5e-7)
case("ragged", "ragged", 5, x_ptr=floats(304, 60), bounds_ptr=np.array([0, 3, 20, 21, 44, 60], np.int32),
     out_ptr=out(5), BLOCK=8, tolerance=5e-7)  # fmt: skip
case("while", "while", 9, x_ptr=floats(305, 9, low=0.1, high=60), out_ptr=out(9), steps_ptr=out(9, dtype=np.int32),
     tolerance=5e-7)  # fmt: skip
case("search", "search", 12, sorted_ptr=np.sort(floats(306, 30)), x_ptr=floats(307, 12),
     out_ptr=out(12, dtype=np.int32), n=30)  # fmt: skip
case("branches", "branches", 12, x_ptr=floats(308, 12, 8), out_ptr=out(12, 8), BLOCK=8)
case("program-branch", "program_branch", (3, 2), x_ptr=floats(309, 24), y_ptr=floats(310, 24), out_ptr=out(2, 24),
     BLOCK=8)  # fmt: skip
case("return", "return", (4, 4), x_ptr=floats(311, 4, 40), length_ptr=np.array([40, 0, 17, 32], np.int32),
     out_ptr=out(4, 40), n=40, BLOCK=16)  # fmt: skip
for negate in (False, True):
    case(f"ternary-{negate}", "ternary", 4, x_ptr=floats(312, 30), out_ptr=out(30), n=30, BLOCK=8, NEGATE=negate)
case("helpers", "helpers", 6, x_ptr=floats(313, 2, 20), out_ptr=out(2, 20), columns=3, n=20, BLOCK=8, tolerance=3e-7)
case("nested", "nested", 1, x_ptr=floats(314, 4, 3, 8), out_ptr=out(4, 8), rows=4, columns=3, BLOCK=8, tolerance=3e-7)
case("first-turn", "first_turn", 1, x_ptr=floats(315, 6, 8), out_ptr=out(6, 8), n=6, BLOCK=8)
case("read-back", "read_back", 2, x_ptr=floats(316, 6, 16), out_ptr=out(6, 16), n=6, BLOCK=8, tolerance=3e-7)
case("empty-loop", "empty_loop", 1, x_ptr=floats(317, 8), out_ptr=out(8), n=4, BLOCK=8)
case("typed", "typed", 1, x_ptr=floats(318, 4, 8), out_ptr=out(8), n=4, BLOCK=8, tolerance=3e-7)
case("default", "default", 3, x_ptr=floats(319, 40), out_ptr=out(40), n=40)
case("default-given", "default", 3, x_ptr=floats(319, 40), out_ptr=out(40), n=40, factor=-1.0, OFFSET=0.25)
case("methods", "methods", 3, x_ptr=floats(320, 3, 20), out_ptr=out(3, 20), n=20, BLOCK=32)

case, ATOMICS = cases_of("atomics")
case("add", "add", 6, x_ptr=floats(330, 6, 20), out_ptr=out(20, fill=0), n=20, BLOCK=32, tolerance=1e-6)
case("add-half", "add", 4, x_ptr=floats(330, 4, 20, dtype=np.float16).round(), out_ptr=out(20, dtype=np.float16),
     n=20, BLOCK=32)  # fmt: skip
case("total", "total", 4, x_ptr=floats(331, 100), out_ptr=out(1), n=100, BLOCK=32, tolerance=1e-6)
case("count", "count", 4, index_ptr=integers(332, 100, low=0, high=7), out_ptr=out(8, dtype=np.int32, fill=0), n=100,
     BLOCK=32)  # fmt: skip
case("scatter-add", "scatter_add", 10, index_ptr=integers(333, 10, low=0, high=4), x_ptr=floats(334, 10, 12),
     out_ptr=out(5, 12, fill=0), columns=12, BLOCK=16, tolerance=1e-6)  # fmt: skip
case("extremes", "extremes", 4, x_ptr=integers(335, 50), max_ptr=out(4, dtype=np.int32, fill=-(2**31)),
     min_ptr=out(4, dtype=np.int32, fill=2**31 - 1), n=50, BLOCK=16)  # fmt: skip
case("extremes-float", "extremes", 4, x_ptr=floats(335, 50), max_ptr=out(4), min_ptr=out(4, fill=7), n=50, BLOCK=16)
case("bits", "bits", 4, x_ptr=integers(336, 4, 16), or_ptr=out(16, dtype=np.int32, fill=0),
     and_ptr=out(16, dtype=np.int32, fill=-1), xor_ptr=out(16, dtype=np.int32, fill=0), BLOCK=16)  # fmt: skip
case("ticket", "ticket", 5, x_ptr=floats(337, 5, 8), out_ptr=out(5, 8), counter_ptr=out(1, dtype=np.int32, fill=0),
     BLOCK=8)  # fmt: skip
case("old-values", "old_values", 5, x_ptr=floats(338, 5, 8), old_ptr=out(5, 8), out_ptr=out(8, fill=0), BLOCK=8,
     tolerance=1e-6)  # fmt: skip
case("exchange", "exchange", 5, x_ptr=integers(339, 5), slot_ptr=out(1, dtype=np.int32),
     old_ptr=out(5, dtype=np.int32))  # fmt: skip
case("compare", "compare", 8, x_ptr=np.array([1, 9, 9, 2, 3, 9, 0, 9], np.int32),
     slot_ptr=out(1, dtype=np.int32, fill=0), old_ptr=out(8, dtype=np.int32))  # fmt: skip
case("lock", "lock", 6, x_ptr=floats(340, 6, 20), out_ptr=out(20, fill=0), lock_ptr=out(1, dtype=np.int32, fill=0),
     n=20, BLOCK=32, tolerance=1e-6)  # fmt: skip
case("groups", "groups", 7, x_ptr=floats(341, 7, 20), out_ptr=out(2, 20), lock_ptr=out(2, dtype=np.int32, fill=0),
     count_ptr=out(2, dtype=np.int32, fill=0), n=20, GROUPS=2, BLOCK=32, tolerance=1e-6)  # fmt: skip
case("last-one", "last_one", 4, x_ptr=floats(342, 4, 16), partial_ptr=out(4), out_ptr=out(1),
     counter_ptr=out(1, dtype=np.int32, fill=0), BLOCK=16, PROGRAMS=4, tolerance=1e-6)  # fmt: skip

case, TUNING = cases_of("tuning")


def blocks(meta):
    """As many blocks as cover 100."""
    return (-(-100 // meta["BLOCK"]),)


case("tuned", "tuned", blocks, x_ptr=floats(350, 100), out_ptr=out(100), n=100)
case("heuristic", "heuristic", 3, x_ptr=floats(351, 3, 20), bias_ptr=floats(352, 20), out_ptr=out(3, 20), n=20,
     tolerance=5e-7)  # fmt: skip
case("heuristic-none", "heuristic", 3, x_ptr=floats(351, 3, 32), bias_ptr=None, out_ptr=out(3, 32), n=32,
     tolerance=5e-7)  # fmt: skip
case("heuristics-first", "heuristics_first", 7, x_ptr=floats(353, 100), out_ptr=out(100), n=100, BLOCK=16)
case("configuration-first", "configuration_first", blocks, x_ptr=floats(354, 100), out_ptr=out(100), n=100)
case("heuristics-in-grid", "heuristics_in_grid",
     lambda meta: (-(-100 // (meta["ROWS"] * meta["BLOCK"])), meta["TIMES"] - 2),
     x_ptr=floats(361, 100), out_ptr=out(100), n=100)  # fmt: skip
case("reset", "reset", blocks, x_ptr=floats(355, 100), total_ptr=out(1), n=100, tolerance=1e-6)
case("restore", "restore", blocks, x_ptr=Out(floats(356, 100)), n=100)
case("hook", "hook", blocks, x_ptr=floats(357, 100), total_ptr=out(1), n=100, tolerance=1e-6)
case("pruned", "pruned", 3, x_ptr=floats(358, 3, 30), out_ptr=out(3, 30), n=30, tolerance=5e-7)
case("unspecialised", "unspecialised", 2, x_ptr=floats(359, 50), out_ptr=out(50), n=50, seed=3, BLOCK=32)
for n in (49, 50):
    case(f"called-{n}", "called", 2, x_ptr=floats(360, n), out_ptr=out(n), n=n)

CASES = [*CONTROL, *ATOMICS, *TUNING]
