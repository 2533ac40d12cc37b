"""Launches of products.py, blocks.py, activations.py, norms.py, losses.py and attention.py."""

import numpy as np

from tests.triton.case import Out, cases_of, floats, integers, out

HALF = np.float16
case, PRODUCTS = cases_of("products")
case("dot", "dot", 1, a_ptr=floats(400, 16, 32), b_ptr=floats(401, 32, 16), out_ptr=out(16, 16), M=16, N=16, K=32,
     tolerance=1e-6)  # fmt: skip
case("options", "options", 1, a_ptr=floats(402, 16, 32), b_ptr=floats(403, 16, 32), out_ptr=out(16, 16),
     half_ptr=out(16, 16), M=16, N=16, K=32, tolerance=1e-6)  # fmt: skip
case("half", "half", 1, a_ptr=floats(404, 16, 32, dtype=HALF), b_ptr=floats(405, 32, 16, dtype=HALF),
     out_ptr=out(16, 16), M=16, N=16, K=32, tolerance=1e-6)  # fmt: skip
case("integer", "integer", 1, a_ptr=integers(406, 16, 32, dtype=np.int8), b_ptr=integers(407, 32, 16, dtype=np.int8),
     out_ptr=out(16, 16, dtype=np.int32), M=16, N=16, K=32)  # fmt: skip
case("batched-dot", "batched_dot", 1, a_ptr=floats(408, 2, 16, 16), b_ptr=floats(409, 2, 16, 16),
     out_ptr=out(2, 16, 16), B=2, M=16, N=16, K=16, tolerance=1e-6)  # fmt: skip


def matmul(name, m, n, k, group, dtype=np.float32, transposed=False, tolerance=1e-6):
    strides = (1, k) if transposed else (n, 1)
    case(f"matmul-{name}", "matmul", -(-m // 16) * -(-n // 16), a_ptr=floats(410, m, k, dtype=dtype),
         b_ptr=floats(411, *((n, k) if transposed else (k, n)), dtype=dtype), c_ptr=out(m, n, dtype=dtype), m=m, n=n,
         k=k, stride_am=k, stride_ak=1, stride_bk=strides[0], stride_bn=strides[1], stride_cm=n, stride_cn=1,
         BLOCK_M=16, BLOCK_N=16, BLOCK_K=16, GROUP=group, RELU=group == 2, tolerance=tolerance)  # fmt: skip


matmul("even", 64, 48, 32, 2)
matmul("uneven", 50, 40, 30, 2)
matmul("ungrouped", 48, 48, 48, 1)
matmul("uneven-groups", 80, 32, 40, 3)
matmul("transposed", 48, 32, 40, 8, transposed=True)
matmul("half", 48, 32, 40, 2, dtype=HALF, tolerance=1e-3)
case("batched", "batched", (2, 2, 3), a_ptr=floats(412, 3, 20, 24), b_ptr=floats(413, 3, 24, 18),
     c_ptr=out(3, 20, 18), m=20, n=18, k=24, BLOCK_M=16, BLOCK_N=16, BLOCK_K=16, tolerance=1e-6)  # fmt: skip
case("split-k", "split_k", (4, 2), a_ptr=floats(414, 32, 72), b_ptr=floats(415, 72, 30), c_ptr=out(32, 30, fill=0),
     n=30, k=72, BLOCK_M=16, BLOCK_N=16, BLOCK_K=16, SPLIT=2, tolerance=1e-6)  # fmt: skip
case("persistent", "persistent", 4, a_ptr=floats(416, 50, 40), b_ptr=floats(417, 40, 36), c_ptr=out(50, 36), m=50,
     n=36, k=40, BLOCK=16, PROGRAMS=4, tolerance=1e-6)  # fmt: skip
case("quantised", "quantised", 2, x_ptr=floats(418, 16, 40, dtype=HALF), w_ptr=integers(419, 40, 32, dtype=np.int8),
     scale_ptr=floats(420, 32) / 64, out_ptr=out(16, 32, dtype=HALF), n=32, k=40, M=16, N=16, K=16,
     tolerance=1e-3)  # fmt: skip

case, BLOCKS = cases_of("blocks")
case("copy", "copy", (3, 3), x_ptr=floats(430, 20, 40), out_ptr=out(20, 36), m=20, n=36, stride=40, BLOCK_M=8,
     BLOCK_N=16, tolerance=5e-7)  # fmt: skip
case("advance", "advance", 3, x_ptr=floats(431, 20, 36), out_ptr=out(20), m=20, n=36, BLOCK_M=8, BLOCK_N=16,
     tolerance=5e-7)  # fmt: skip
case("transposed", "transposed", 3, x_ptr=floats(432, 7, 20), out_ptr=out(20, 7), m=7, n=20, M=8, N=8)
case("nan", "nan", 1, x_ptr=floats(433, 20), out_ptr=out(32), n=20, BLOCK=32)
case("half", "half", 1, x_ptr=floats(434, 7, 20, dtype=HALF), out_ptr=out(7, 20, dtype=HALF), m=7, n=20, M=8, N=32)
case("matmul", "matmul", (4, 3), a_ptr=floats(435, 50, 40), b_ptr=floats(436, 40, 36), c_ptr=out(50, 36), m=50, n=36,
     k=40, BLOCK_M=16, BLOCK_N=16, BLOCK_K=16, tolerance=1e-6)  # fmt: skip
case("chunks", "chunks", 2, k_ptr=floats(437, 2, 40, 16), v_ptr=floats(438, 2, 40, 16), h_ptr=out(2, 3, 16, 16),
     out_ptr=out(2, 40, 16), t=40, D=16, BT=16, tolerance=1e-6)  # fmt: skip
case("descriptor", "descriptor", (3, 2), x_ptr=floats(439, 20, 32), out_ptr=out(20, 32), m=20, n=24, stride=32,
     BLOCK_M=8, BLOCK_N=16, tolerance=5e-7)  # fmt: skip

case, ACTIVATIONS = cases_of("activations")
case("swiglu", "swiglu_forward", 5, gate_ptr=floats(450, 5, 50), up_ptr=floats(451, 5, 50), out_ptr=out(5, 50),
     stride=50, n=50, BLOCK=64, tolerance=5e-7)  # fmt: skip
case("swiglu-half", "swiglu_forward", 5, gate_ptr=floats(450, 5, 50, dtype=HALF),
     up_ptr=floats(451, 5, 50, dtype=HALF), out_ptr=out(5, 50, dtype=HALF), stride=50, n=50, BLOCK=64,
     tolerance=1e-3)  # fmt: skip
case("swiglu-backward", "swiglu_backward", 5, grad_ptr=floats(452, 5, 50), gate_ptr=Out(floats(453, 5, 50)),
     up_ptr=Out(floats(454, 5, 50)), stride=50, n=50, BLOCK=64, tolerance=5e-7)  # fmt: skip
case("geglu", "geglu", 4, x_ptr=floats(455, 5, 40), grad_ptr=floats(456, 5, 20), out_ptr=out(5, 20),
     dx_ptr=out(5, 40), n=100, columns=20, BLOCK=32, tolerance=1e-6)  # fmt: skip
for backward in (False, True):
    case(f"rotary-{backward}", "rotary", 10, q_ptr=Out(floats(457, 10, 2, 16)), cos_ptr=floats(458, 5, 8),
         sin_ptr=floats(459, 5, 8), length=5, HEADS=2, D=16, BACKWARD=backward, tolerance=3e-7)  # fmt: skip

case, NORMS = cases_of("norms")
case("rms", "rms_forward", 5, x_ptr=floats(470, 5, 50), w_ptr=floats(471, 50), out_ptr=out(5, 50), rstd_ptr=out(5),
     stride=50, n=50, eps=1e-6, BLOCK=64, tolerance=5e-7)  # fmt: skip
case("rms-backward", "rms_backward", 3, dy_ptr=floats(472, 8, 50), x_ptr=floats(473, 8, 50), w_ptr=floats(474, 50),
     rstd_ptr=floats(475, 8, low=0.5), dx_ptr=out(8, 50), dw_ptr=out(3, 50), rows=8, n=50, rows_per_program=3,
     BLOCK=64, tolerance=1e-6)  # fmt: skip
case("layer", "layer_forward", 5, x_ptr=floats(476, 5, 100), w_ptr=floats(477, 100), b_ptr=floats(478, 100),
     out_ptr=out(5, 100), mean_ptr=out(5), rstd_ptr=out(5), n=100, eps=1e-5, BLOCK=32, tolerance=1e-6)  # fmt: skip
case("layer-backward", "layer_backward", 7, dx_ptr=out(7, 50), dy_ptr=floats(479, 7, 50), dw_ptr=out(3, 50),
     db_ptr=out(3, 50), x_ptr=floats(480, 7, 50), w_ptr=floats(481, 50), mean_ptr=floats(482, 7, low=-0.5, high=0.5),
     rstd_ptr=floats(483, 7, low=0.5), lock_ptr=out(6, dtype=np.int32, fill=0), n=50, GROUPS=3, BLOCK=64,
     tolerance=1e-6)  # fmt: skip
case("sum-groups", "sum_groups", 4, dw_ptr=floats(484, 7, 50), out_ptr=out(50), m=7, n=50, BLOCK_M=4, BLOCK_N=16,
     tolerance=5e-7)  # fmt: skip
case("group", "group", (2, 3), x_ptr=floats(485, 2, 6, 20), w_ptr=floats(486, 6), out_ptr=out(2, 6, 20), groups=3,
     hidden=20, eps=1e-5, CHANNELS=2, BLOCK=16, tolerance=2e-6)  # fmt: skip

case, LOSSES = cases_of("losses")
TARGETS = np.array([3, 99, -100, 0, 50, 77], np.int64)
for smoothing, reduce, length in ((0.0, "mean", 100), (0.1, "sum", 100), (0.0, "none", 128)):
    case(f"cross-entropy-{smoothing}-{reduce}", "cross_entropy", 6, logits_ptr=Out(floats(490, 6, length)),
         stride=length, target_ptr=TARGETS.astype(np.int32), loss_ptr=out(6, fill=0), n=length, count=5, ignore=-100,
         smoothing=smoothing, REDUCE=reduce, BLOCK=32, tolerance=1e-6)  # fmt: skip
for log_target in (False, True):
    case(f"kl-{log_target}", "kl", 4, p_ptr=floats(491, 4, 50, low=-3, high=0),
         q_ptr=floats(492, 4, 50, low=-2 if log_target else 0, high=0 if log_target else 1), loss_ptr=out(4),
         grad_ptr=out(4, 50), n=50, LOG_TARGET=log_target, BLOCK=32, tolerance=1e-6)  # fmt: skip
case("smooth-l1", "smooth_l1", 4, x_ptr=floats(493, 100), y_ptr=floats(494, 100), loss_ptr=out(4), n=100, beta=0.5,
     BLOCK=32, tolerance=1e-6)  # fmt: skip

case, ATTENTION = cases_of("attention")
HEADS, D = 2, 16
for causal in (False, True):
    for length in (48, 40):
        shape = HEADS, length, D
        q, k, v = (floats(500 + i, *shape) for i in range(3))
        case(f"forward-{causal}-{length}", "forward", (3, HEADS), q_ptr=q, k_ptr=k, v_ptr=v, out_ptr=out(*shape),
             lse_ptr=out(HEADS, length), length=length, scale=0.25, CAUSAL=causal, BLOCK_M=16, BLOCK_N=16, D=D,
             tolerance=2e-6)  # fmt: skip
        case(f"backward-{causal}-{length}", "backward", (3, HEADS), q_ptr=q, k_ptr=k, v_ptr=v,
             dout_ptr=floats(503, *shape), lse_ptr=floats(504, HEADS, length, low=4, high=8),
             delta_ptr=floats(505, HEADS, length), dq_ptr=out(*shape), dk_ptr=out(*shape), dv_ptr=out(*shape),
             length=length, scale=0.25, CAUSAL=causal, BLOCK_M=16, BLOCK_N=16, D=D, tolerance=3e-6)  # fmt: skip
case("delta", "delta", 5, out_ptr=floats(506, 70, D), dout_ptr=floats(507, 70, D), delta_ptr=out(70), n=70,
     BLOCK_M=16, D=D, tolerance=5e-7)  # fmt: skip
case("grouped", "grouped", (3, 4), q_ptr=floats(508, 3, 4, D), k_ptr=floats(509, 3, 2, 40, D),
     v_ptr=floats(510, 3, 2, 40, D), out_ptr=out(3, 4, D), seq_ptr=np.array([40, 1, 17], np.int32), GROUP=2, HEADS=4,
     MAX=40, BLOCK_N=16, D=D, tolerance=1e-6)  # fmt: skip

case, TRAINING = cases_of("training")
case("scan", "scan", (2, 2), x_ptr=floats(520, 2, 6, 20), dt_ptr=floats(521, 2, 6, 20), a_ptr=floats(522, 20, 4),
     b_ptr=floats(523, 2, 6, 4), c_ptr=floats(524, 2, 6, 4), out_ptr=out(2, 6, 20), L=6, D=20, N=4, BLOCK=16,
     tolerance=1e-6)  # fmt: skip
case("experts", "experts", (3, 2), x_ptr=floats(525, 48, 32), w_ptr=floats(526, 2, 32, 32),
     expert_ptr=np.array([1, 0, 1], np.int32), out_ptr=out(48, 32), n=32, k=32, BLOCK_M=16, BLOCK_N=16, BLOCK_K=16,
     tolerance=1e-6)  # fmt: skip
case("eight-bits", "eight_bits", (1, 2), x_ptr=floats(527, 16, 32), w_ptr=integers(528, 32, 32, dtype=np.int8),
     scale_ptr=floats(529, 2, 32), out_ptr=out(16, 32), n=32, k=32, BLOCK_M=16, BLOCK_N=16, BLOCK_K=16,
     tolerance=1e-6)  # fmt: skip
case("embedding-backward", "embedding_backward", 5, index_ptr=np.array([3, 0, 3, 1, 3], np.int32),
     grad_ptr=floats(530, 5, 20), out_ptr=out(6, 20), columns=20, BLOCK=16)  # fmt: skip
case("adam", "adam", 3, p_ptr=Out(floats(531, 40)), m_ptr=Out(floats(532, 40)), v_ptr=Out(floats(533, 40, low=0.0)),
     grad_ptr=floats(534, 40), n=40, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, decay=0.01, first=0.19, second=0.0199,
     BLOCK=16, tolerance=1e-6)  # fmt: skip

CASES = [*PRODUCTS, *BLOCKS, *ACTIVATIONS, *NORMS, *LOSSES, *ATTENTION, *TRAINING]
