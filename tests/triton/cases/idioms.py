"""Launches of sequences.py and experts.py."""

import numpy as np

from tests.triton.case import cases_of, floats, integers, out

case, SEQUENCES = cases_of("sequences")
H, K, V, T = 2, 16, 16, 24
CU = np.array([0, 5, 12, 13, 24], np.int32)
for packed in (False, True):
    n = 4 if packed else 2
    t = T if packed else T // 2
    q, k, v = (floats(600 + i, 1 if packed else 2, t, H, K) for i in range(3))
    g = floats(603, *q.shape[:3], low=-1, high=0)
    case(f"recurrence-{packed}", "recurrence", (2, 1, n * H), q=q, k=k, v=v, g=g, o=out(1, *q.shape),
         h0=floats(604, n, H, K, V), ht=out(n, H, K, V), cu_seqlens=CU if packed else None, scale=0.25, T=t,
         B=q.shape[0], H=H, K=K, V=V, BK=16, BV=8, tolerance=2e-6)  # fmt: skip
case("recurrence-stateless", "recurrence", (2, 1, 4), q=q.reshape(2, 12, H, K), k=k, v=v, g=g, o=out(1, *q.shape),
     h0=None, ht=None, cu_seqlens=None, scale=0.25, T=12, B=2, H=H, K=K, V=V, BK=16, BV=8,
     tolerance=2e-6)  # fmt: skip
CHUNKS = np.array([[0, 0], [1, 0], [2, 0], [3, 0], [3, 1]], np.int32)
for reverse in (False, True):
    case(f"chunk-cumsum-{reverse}", "chunk_cumsum", (2, 4), s=floats(605, 2, 12, H), o=out(2, 12, H), T=12, H=H, BT=8,
         REVERSE=reverse, cu_seqlens=None, chunk_indices=None, IS_VARLEN=False, tolerance=5e-7)  # fmt: skip
    case(f"chunk-cumsum-packed-{reverse}", "chunk_cumsum", (5, H), s=floats(606, 1, T, H), o=out(1, T, H), T=T, H=H,
         BT=8, REVERSE=reverse, cu_seqlens=CU, chunk_indices=CHUNKS, IS_VARLEN=True, tolerance=5e-7)  # fmt: skip
for length in (32, 40):
    case(f"chunk-state-{length}", "chunk_state", (1, 2, 2 * H), k=floats(607, 2, length, H, K),
         v=floats(608, 2, length, H, V), g=floats(609, 2, length, H, low=-1, high=0),
         h=out(2, -(-length // 16), H, K, V), T=length, H=H, K=K, V=V, BT=16, BK=16, BV=8, tolerance=2e-6)  # fmt: skip
PACKED = np.array([0, 40, 41, 64], np.int32)
case("packed-attention", "packed_attention", (3, H, 3), q_ptr=floats(610, 64, H, 16), k_ptr=floats(611, 64, H, 16),
     v_ptr=floats(612, 64, H, 16), out_ptr=out(64, H, 16), cu_ptr=PACKED, scale=0.25, HEADS=H, D=16, BLOCK=16,
     WINDOW=20, tolerance=2e-6)  # fmt: skip
TABLE = np.random.default_rng(613).permutation(12).reshape(3, 4).astype(np.int32)
case("pages", "pages", 3, q_ptr=floats(614, 3, 16), cache_ptr=floats(615, 12, 2, 8, 16), table_ptr=TABLE,
     lengths_ptr=np.array([32, 1, 19], np.int32), out_ptr=out(3, 16), PAGE=8, D=16, MAX=4, tolerance=1e-6)  # fmt: skip
case("slots", "slots", 5, key_ptr=floats(616, 5, 20), cache_ptr=out(4, 4, 20),
     slot_ptr=np.array([3, -1, 14, 0, 7], np.int32), stride=20, n=20, BLOCK=32, PAGE=4)  # fmt: skip
case("selective-scan", "selective_scan", (2, 2), x_ptr=floats(617, 2, 10, 24), dt_ptr=floats(618, 2, 10, 24),
     a_ptr=floats(619, 24, 8, low=-1, high=1), b_ptr=floats(620, 2, 10, 8), c_ptr=floats(621, 2, 10, 8),
     d_ptr=floats(622, 24), y_ptr=out(2, 10, 24), L=10, DIM=24, N=8, BLOCK=16, tolerance=2e-6)  # fmt: skip
for silu in (False, True):
    case(f"convolution-{silu}", "convolution", (3, 2, 2), x_ptr=floats(623, 2, 20, 12), w_ptr=floats(624, 12, 4),
         y_ptr=out(2, 20, 12), L=20, D=12, W=4, SILU=silu, BL=8, BD=8, tolerance=5e-7)  # fmt: skip
case("positions", "positions", (6, H), q_ptr=floats(625, 6, H, 16), position_ptr=np.array([4, 0, 2, 2, 9, 1], np.int32),
     table_ptr=floats(626, 10, 16), out_ptr=out(6, H, 16), HEADS=H, D=16, tolerance=5e-7)  # fmt: skip

case, EXPERTS = cases_of("experts")
case("route", "route", 6, logits_ptr=floats(640, 6, 8), weight_ptr=out(6, 2), expert_ptr=out(6, 2, dtype=np.int32),
     E=8, K=2, tolerance=5e-7)  # fmt: skip
case("count", "count", 3, expert_ptr=integers(641, 40, low=0, high=4), count_ptr=out(4, dtype=np.int32, fill=0),
     rank_ptr=out(40, dtype=np.int32), n=40, BLOCK=16)  # fmt: skip
# Ten tokens to two of three experts each, sorted and padded with 20 to blocks of 16; the last block is nobody's.
chosen = np.random.default_rng(642).integers(0, 3, 20)
SLOTS = [np.flatnonzero(chosen == expert) for expert in range(3)]
SLOTS = np.concatenate([np.pad(s, (0, 16 - len(s)), constant_values=20) for s in SLOTS] + [np.full(16, 20)])
for weighted in (False, True):
    case(f"experts-{weighted}", "experts", 8, x_ptr=floats(643, 10, 40), w_ptr=floats(644, 3, 24, 40),
         out_ptr=out(20, 24), token_ptr=SLOTS.astype(np.int32), expert_ptr=np.array([0, 1, 2, -1], np.int32),
         weight_ptr=floats(645, 20), tokens=20, n=24, k=40, K=2, BLOCK_M=16, BLOCK_N=16, BLOCK_K=16,
         WEIGHTED=weighted, tolerance=1e-6)  # fmt: skip
case("groups", "groups", 3, a_ptr=floats(646, 60, 24), b_ptr=floats(647, 3, 24, 20), c_ptr=out(60, 20),
     sizes_ptr=np.array([17, 0, 43], np.int32), GROUPS=3, n=20, k=24, BLOCK=16, PROGRAMS=3, tolerance=1e-6)  # fmt: skip
case("four-bits", "four_bits", 2, x_ptr=floats(648, 16, 64), packed_ptr=integers(649, 8, 32),
     scale_ptr=floats(650, 2, 32) / 16, zero_ptr=integers(651, 2, 4), out_ptr=out(16, 32), n=32, k=64, GROUP=32, M=16,
     N=16, K=16, tolerance=1e-6)  # fmt: skip
case("pool", "pool", (3, 2), x_ptr=floats(652, 2, 3, 9, 7), out_ptr=out(2, 3, 5, 4),
     index_ptr=out(2, 3, 5, 4, dtype=np.int32), c=3, h=9, w=7, oh=5, ow=4, K=3, S=2, P=1, BLOCK=32)  # fmt: skip
case("bilinear", "bilinear", 2, x_ptr=floats(653, 3, 6, 7), grid_ptr=floats(654, 25, 2, low=-1.25, high=1.25),
     out_ptr=out(3, 25), h=6, w=7, n=25, C=3, BLOCK=16, tolerance=1e-6)  # fmt: skip
for residual in (False, True):
    case(f"dropout-norm-{residual}", "dropout_norm", 4, x_ptr=floats(655, 4, 50),
         residual_ptr=floats(656, 4, 50) if residual else None, w_ptr=floats(657, 50),
         seed_ptr=integers(658, 4, low=0, high=2**31 - 1), out_ptr=out(4, 50), residual_out_ptr=out(4, 50), n=50,
         p=0.25, eps=1e-5, BLOCK=64, HAS_RESIDUAL=residual, tolerance=1e-6)  # fmt: skip

CASES = [*SEQUENCES, *EXPERTS]
