"""Launches of reductions.py, scans.py and shapes.py."""

import numpy as np

from tests.triton.case import cases_of, floats, integers, out

case, REDUCTIONS = cases_of("reductions")
case("rows", "rows", 5, x_ptr=floats(200, 5, 50), sum_ptr=out(5), max_ptr=out(5), min_ptr=out(5), n=50, BLOCK=64,
     tolerance=3e-7)  # fmt: skip
case("block", "block", 1, x_ptr=floats(201, 16, 8), rows_ptr=out(16), columns_ptr=out(8), all_ptr=out(3), M=16, N=8,
     tolerance=3e-7)  # fmt: skip
case("centred", "centred", 1, x_ptr=floats(202, 16, 8), out_ptr=out(16, 8), M=16, N=8, tolerance=3e-7)
TIES = floats(203, 5, 50).round()
case("positions", "positions", 5, x_ptr=TIES, first_ptr=out(5, dtype=np.int32), last_ptr=out(5, dtype=np.int32),
     value_ptr=out(5), index_ptr=out(5, dtype=np.int32), n=50, BLOCK=64)  # fmt: skip
case("positions-of-block", "positions_of_block", 1, x_ptr=floats(204, 16, 8).round(),
     index_ptr=out(16, dtype=np.int32), value_ptr=out(8), M=16, N=8)  # fmt: skip
case("integers-int8", "integers", 1, x_ptr=integers(205, 64, dtype=np.int8), out_ptr=out(5, dtype=np.int32),
     small_ptr=out(1, dtype=np.int8), BLOCK=64)  # fmt: skip
case("integers-int32", "integers", 1, x_ptr=integers(206, 64, low=-(2**24), high=2**24), out_ptr=out(5, dtype=np.int32),
     small_ptr=out(1, dtype=np.int8), BLOCK=64)  # fmt: skip
case("integers-uint8", "integers", 1, x_ptr=integers(206, 64, dtype=np.uint8), out_ptr=out(5, dtype=np.int32),
     small_ptr=out(1, dtype=np.int8), BLOCK=64)  # fmt: skip
case("reduce", "reduce", 1, x_ptr=floats(207, 32), out_ptr=out(2), N=32, tolerance=1e-6)
case("reduce-rows", "reduce_rows", 1, x_ptr=floats(208, 8, 16), out_ptr=out(8), M=8, N=16, tolerance=1e-6)
case("moments", "moments", 4, x_ptr=floats(209, 4, 50), mean_ptr=out(4), variance_ptr=out(4), n=50, BLOCK=64,
     tolerance=1e-6)  # fmt: skip
case("half-sum", "half_sum", 1, x_ptr=floats(210, 64, dtype=np.float16), out_ptr=out(1, dtype=np.float16),
     wide_ptr=out(1), N=64, tolerance=3e-7)  # fmt: skip
case("softmax", "softmax", 5, x_ptr=floats(211, 5, 50), out_ptr=out(5, 50), stride=50, n=50, BLOCK=64, tolerance=5e-7)
case("softmax-even", "softmax", 5, x_ptr=floats(211, 5, 64), out_ptr=out(5, 64), stride=64, n=64, BLOCK=64,
     tolerance=5e-7)  # fmt: skip
case("online-softmax", "online_softmax", 5, x_ptr=floats(212, 5, 100), out_ptr=out(5, 100), n=100, BLOCK=32,
     tolerance=5e-7)  # fmt: skip

case, SCANS = cases_of("scans")
case("cumsum", "cumsum", 1, x_ptr=floats(220, 64, low=-1, high=1), out_ptr=out(64), back_ptr=out(64),
     product_ptr=out(64), N=64, tolerance=1e-6)  # fmt: skip
case("cumsum-block", "cumsum_block", 1, x_ptr=floats(221, 8, 16), out_ptr=out(8, 16), M=8, N=16, tolerance=1e-6)
case("carried-cumsum", "carried_cumsum", 3, x_ptr=floats(222, 3, 50), out_ptr=out(3, 50), n=50, BLOCK=16,
     tolerance=1e-6)  # fmt: skip
for reverse in (False, True):
    case(f"recurrence-{reverse}", "recurrence", 3, a_ptr=floats(223, 3, 32, low=-1, high=1), x_ptr=floats(224, 3, 32),
         out_ptr=out(3, 32), N=32, REVERSE=reverse, tolerance=1e-6)  # fmt: skip
case("cummax", "cummax", 1, x_ptr=floats(225, 4, 16), out_ptr=out(4, 16), M=4, N=16)
case("integers", "integers", 1, x_ptr=integers(226, 64), out_ptr=out(2, 64, dtype=np.int32), N=64)
case("sequential", "sequential", 2, a_ptr=floats(227, 20, 32), x_ptr=floats(228, 20, 32), out_ptr=out(20, 32),
     steps=20, D=16, tolerance=1e-6)  # fmt: skip

case, SHAPES = cases_of("shapes")
case("trans", "trans", 1, x_ptr=floats(240, 16, 8), out_ptr=out(3, 8, 16), M=16, N=8)
case("permute", "permute", 1, x_ptr=floats(241, 4, 8, 2), out_ptr=out(3, 2, 4, 8), A=4, B=8, C=2)
case("reshape", "reshape", 1, x_ptr=floats(242, 8, 8), out_ptr=out(80), M=8, N=8, tolerance=3e-7)
case("broadcast", "broadcast", 1, x_ptr=floats(243, 8), y_ptr=floats(244, 16), out_ptr=out(8, 16), M=8, N=16)
case("join", "join", 1, x_ptr=floats(245, 16), y_ptr=floats(246, 16), out_ptr=out(80), N=16)
case("pairs", "pairs", 3, x_ptr=floats(247, 3, 16), cos_ptr=floats(248, 3, 8), sin_ptr=floats(249, 3, 8),
     out_ptr=out(3, 16), N=16, tolerance=2e-7)  # fmt: skip
case("flip", "flip", 1, x_ptr=floats(250, 4, 16), out_ptr=out(80), M=4, N=16, tolerance=3e-7)
case("sort", "sort", 1, x_ptr=floats(251, 4, 16), out_ptr=out(2, 4, 16), M=4, N=16)
case("sort-integers", "sort", 1, x_ptr=integers(251, 2, 8), out_ptr=out(2, 2, 8, dtype=np.int32), M=2, N=8)
case("gather", "gather", 1, x_ptr=floats(252, 8, 16), index_ptr=integers(253, 8, 32, low=0, high=16),
     out_ptr=out(8 * 32 + 8 * 16), M=8, N=16, K=32)  # fmt: skip
case("histogram", "histogram", 1, x_ptr=integers(254, 64, low=0, high=8), out_ptr=out(8, dtype=np.int32), N=64, BINS=8)
case("cat", "cat", 1, x_ptr=floats(255, 16), y_ptr=floats(256, 16), out_ptr=out(1), N=16, tolerance=1e-6)
case("embedding", "embedding", (3, 2), index_ptr=integers(257, 20, low=0, high=9), table_ptr=floats(258, 9, 20),
     out_ptr=out(20, 20), n=20, columns=20, BLOCK=8, COLUMNS=16)  # fmt: skip
case("scatter", "scatter", 3, index_ptr=np.random.default_rng(259).permutation(20).astype(np.int32),
     x_ptr=floats(260, 20), out_ptr=out(25), n=20, BLOCK=8)  # fmt: skip

CASES = [*REDUCTIONS, *SCANS, *SHAPES]
