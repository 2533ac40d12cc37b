"""Launches of pointwise.py, casts.py and mathematics.py."""

import numpy as np

from tests.triton.case import Out, Same, Type, cases_of, floats, integers, out

case, POINTWISE = cases_of("pointwise")
N = 1000


def fused(x, y, z):
    """Return x * y + z of float16, rounded once: float64 holds the product and the sum."""
    x, y, z = (np.asarray(a, np.float16).astype(np.float64) for a in (x, y, z))
    return (x * y + z).astype(np.float16)


case("scale", "scale", 8, x_ptr=floats(1, N), out_ptr=out(N), n=N, factor=2.0, BLOCK=128)
case("scale-small-block", "scale", 3, x_ptr=floats(2, 7), out_ptr=out(7), n=7, factor=-0.5, BLOCK=4)
case("scale-block-larger", "scale", 1, x_ptr=floats(2, 5), out_ptr=out(5), n=5, factor=3, BLOCK=64)
case("scale-half-written", "scale", 2, x_ptr=floats(3, N), out_ptr=out(N), n=200, factor=1.5, BLOCK=128)
case("scale-too-many-programs", "scale", 9, x_ptr=floats(3, 40), out_ptr=out(40), n=40, factor=1.5, BLOCK=16)
case("scale-integers", "scale", 2, x_ptr=integers(4, 50), out_ptr=out(50, dtype=np.int32), n=50, factor=3, BLOCK=32)
case("add", "add", lambda meta: (-(-N // meta["BLOCK"]),), x_ptr=floats(5, N), y_ptr=floats(6, N), out_ptr=out(N), n=N,
     BLOCK=64)  # fmt: skip
case("add-to-itself", "add", 16, x_ptr=floats(5, N), y_ptr=Same("x_ptr"), out_ptr=out(N), n=N, BLOCK=64)
case("add-matrix", "add", 2, x_ptr=floats(7, 5, 20), y_ptr=floats(8, 5, 20), out_ptr=out(5, 20), n=100, BLOCK=64)
case("add-half", "add", 2, x_ptr=floats(7, 100, dtype=np.float16), y_ptr=floats(8, 100), out_ptr=out(100), n=100,
     BLOCK=64)  # fmt: skip
case("exact", "exact", 4, x_ptr=floats(9, 256), out_ptr=out(256), BLOCK=64)
case("other", "other", 3, x_ptr=floats(10, 70), out_ptr=out(96), n=70, BLOCK=32)
case("other-tensor", "other_tensor", 3, x_ptr=floats(10, 70), out_ptr=out(96), n=70, BLOCK=32)
case("holes", "holes", 4, x_ptr=floats(11, 100), out_ptr=out(100), n=100, BLOCK=32)
case("values-mask", "values_mask", 4, tolerance=2e-7, x_ptr=floats(12, 100), out_ptr=out(128), n=100, BLOCK=32)
case("shift", "shift", 4, x_ptr=floats(13, 100), out_ptr=out(100), n=100, by=7, BLOCK=32)
case("shift-down", "shift", 4, x_ptr=floats(13, 100), out_ptr=out(100), n=100, by=-37, BLOCK=32)
case("reverse", "reverse", 4, x_ptr=floats(14, 100), out_ptr=out(100), n=100, BLOCK=32)
case("interleaved", "interleaved", 4, x_ptr=floats(15, 101), out_ptr=out(101), n=101, BLOCK=16)
case("transpose", "transpose", (3, 5), x_ptr=floats(16, 20, 37), out_ptr=out(37, 20), m=20, n=37, sx_m=37, sx_n=1,
     so_m=1, so_n=20, BLOCK_M=8, BLOCK_N=8)  # fmt: skip
case("transpose-of-padded", "transpose", (3, 4), x_ptr=floats(16, 20, 40), out_ptr=out(20, 64), m=20, n=30, sx_m=40,
     sx_n=1, so_m=64, so_n=2, BLOCK_M=8, BLOCK_N=8)  # fmt: skip
case("outer", "outer", (2, 3, 2), x_ptr=floats(17, 13), y_ptr=floats(18, 21), out_ptr=out(2, 13, 21), m=13, n=21,
     BLOCK_M=8, BLOCK_N=8)  # fmt: skip
case("swizzled", "swizzled", 12, x_ptr=floats(19, 3, 60), out_ptr=out(3, 60), n=180, columns=60, BLOCK=16)
case("in-place", "in_place", 4, x_ptr=Out(floats(20, 100)), n=100, BLOCK=32)
case("in-place-partly", "in_place", 1, x_ptr=Out(floats(20, 100)), n=30, BLOCK=32)
case("two-arrays", "twice", 4, x_ptr=Out(floats(21, 100)), y_ptr=Out(floats(22, 100)), n=100, BLOCK=32)
case("one-array-twice", "twice", 4, x_ptr=Out(floats(21, 100)), y_ptr=Same("x_ptr"), n=100, BLOCK=32)
case("optional", "optional", 4, x_ptr=floats(23, 100), bias_ptr=floats(24, 100), out_ptr=out(100), n=100,
     HAS_SCALE=True, scale=1.5, BLOCK=32)  # fmt: skip
case("optional-none", "optional", 4, x_ptr=floats(23, 100), bias_ptr=None, out_ptr=out(100), n=100, HAS_SCALE=False,
     scale=None, BLOCK=32)  # fmt: skip
case("element-half", "element", 4, x_ptr=floats(25, 100), out_ptr=out(100, dtype=np.float16), n=100, BLOCK=32)
case("element-integer", "element", 4, x_ptr=integers(25, 100, low=-99, high=99), out_ptr=out(100, dtype=np.int32),
     n=100, BLOCK=32)  # fmt: skip
X = floats(26, 100, dtype=np.float16)
FUSED = fused(X, 1.001, 0.1)
case("promotion", "promotion", 4, tolerance=2e-7, x_ptr=X, out_ptr=out(100), half_ptr=out(100, dtype=np.float16), n=100,
     BLOCK=32, fused={"out_ptr": FUSED.astype(np.float32) * np.float32(1.001), "half_ptr": FUSED})  # fmt: skip
case("scalars", "scalars", 9, x_ptr=floats(27, 30), index_ptr=integers(28, 9, low=0, high=30), out_ptr=out(9), n=9)
case("scalars-int64", "scalars", 9, x_ptr=floats(27, 30), index_ptr=integers(28, 9, low=0, high=30, dtype=np.int64),
     out_ptr=out(9), n=9)  # fmt: skip
case("programs", "programs", (3, 4), out_ptr=out(4, 3, 4, dtype=np.int32), BLOCK=4)
case("last", "last", 5, x_ptr=floats(29, 5, 16), out_ptr=out(16), BLOCK=16)
case("cursor", "cursor", 3, x_ptr=floats(30, 3, 50), out_ptr=out(3, 50), n=50, BLOCK=16)
case("cursor-even", "cursor", 3, x_ptr=floats(30, 3, 64), out_ptr=out(3, 64), n=64, BLOCK=16)

case, CASTS = cases_of("casts")
WIDE = np.concatenate([floats(40, 60, low=-120, high=120), [0.0, -0.0, 65504, 65519, 65520, 1e-7, 6e-8, 3e-8, 2e-5]])
WIDE = np.concatenate([WIDE, floats(41, 31) / 3]).astype(np.float32)
SMALL = np.clip(WIDE, -100, 100)
for name in ("int8", "int16", "int32", "int64"):
    case(f"float-to-{name}", "cast", 4, x_ptr=SMALL, out_ptr=out(100, dtype=np.dtype(name)), n=100, BLOCK=32)
for name in ("uint8", "uint16", "uint32"):
    case(f"float-to-{name}", "cast", 4, x_ptr=abs(SMALL), out_ptr=out(100, dtype=np.dtype(name), fill=7), n=100,
         BLOCK=32)  # fmt: skip
case("float-to-half", "cast", 4, x_ptr=WIDE, out_ptr=out(100, dtype=np.float16), n=100, BLOCK=32)
case("half-to-float", "cast", 4, x_ptr=WIDE.clip(-60000, 60000).astype(np.float16), out_ptr=out(100), n=100, BLOCK=32)
case("int32-to-half", "cast", 4, x_ptr=integers(42, 100, low=-3000, high=3000), out_ptr=out(100, dtype=np.float16),
     n=100, BLOCK=32)  # fmt: skip
case("int32-to-float", "cast", 4, x_ptr=integers(42, 100), out_ptr=out(100), n=100, BLOCK=32)
case("uint32-to-float", "cast", 4, x_ptr=integers(42, 100, dtype=np.uint32), out_ptr=out(100), n=100, BLOCK=32)
case("int32-to-int8", "cast", 4, x_ptr=integers(43, 100), out_ptr=out(100, dtype=np.int8), n=100, BLOCK=32)
case("int64-to-int32", "cast", 4, x_ptr=integers(44, 100, dtype=np.int64, low=-99, high=99),
     out_ptr=out(100, dtype=np.int32), n=100, BLOCK=32)  # fmt: skip
case("implicit-half", "implicit", 4, x_ptr=WIDE, out_ptr=out(100, dtype=np.float16), n=100, BLOCK=32)
case("implicit-int8", "implicit", 4, x_ptr=SMALL, out_ptr=out(100, dtype=np.int8), n=100, BLOCK=32)
case("implicit-float", "implicit", 4, x_ptr=integers(45, 100), out_ptr=out(100), n=100, BLOCK=32)
case("implicit-uint8", "implicit", 4, x_ptr=integers(45, 100), out_ptr=out(100, dtype=np.uint8, fill=7), n=100,
     BLOCK=32)  # fmt: skip
for name in ("float16", "int8", "int16", "int32"):
    case(f"given-{name}", "given", 4, x_ptr=SMALL, out_ptr=out(100), n=100, DTYPE=Type(name), BLOCK=32)
case("bitcast", "bitcast", 1, x_ptr=floats(46, 60), out_ptr=out(60, dtype=np.int32), back_ptr=out(60), n=60, BLOCK=64)
case("quantise", "quantise", 5, x_ptr=floats(47, 5, 30), out_ptr=out(5, 30, dtype=np.int8), scale_ptr=out(5), n=30,
     BLOCK=32, tolerance=2e-7)  # fmt: skip
X, Y = floats(48, 60, dtype=np.float16), floats(49, 60, dtype=np.float16)
case("half", "half", 1, x_ptr=X, y_ptr=Y, out_ptr=out(2, 60, dtype=np.float16), n=60, BLOCK=64,
     fused={"out_ptr": np.stack([fused(Y, -0.3, fused(X, Y, X)), np.maximum(X, Y) * X])})  # fmt: skip
case("booleans", "pointers", 2, x_ptr=integers(50, 60, low=0, high=2).astype(bool),
     out_ptr=Out(np.zeros(60, bool)), n=60, BLOCK=32)  # fmt: skip
case("toward-zero", "toward_zero", 1, x_ptr=SMALL, out_ptr=out(100, dtype=np.float16), n=100, BLOCK=128)

case, MATHEMATICS = cases_of("mathematics")
SPECIAL = np.array([0, -0.0, 1, -1, np.nan, np.inf, -np.inf, 2], np.float32)
X, Y = floats(60, 64), floats(61, 64)
Y[Y == 0] = 1
case("positive", "positive", 1, x_ptr=abs(X) + 1 / 64, out_ptr=out(7, 64), N=64, tolerance=3e-7)
case("functions", "functions", 1, x_ptr=X, out_ptr=out(11, 64), N=64, tolerance=3e-7)
case("two", "two", 1, x_ptr=X, y_ptr=Y, out_ptr=out(8, 64), N=64, tolerance=3e-7)
LEFT, RIGHT = np.repeat(SPECIAL, 8), np.tile(SPECIAL, 8)
with np.errstate(invalid="ignore"):
    # The interpreter passes every NaN on; Triton does so only if told to.
    NANS = [np.fmax(LEFT, RIGHT), np.fmin(LEFT, RIGHT), np.maximum(LEFT, RIGHT)]
    NANS += [np.where(LEFT < RIGHT, 1, 0) + np.where(np.isnan(LEFT), 2, 0), np.where(np.inf == LEFT, 1, LEFT)]
case("nan", "nan", 1, x_ptr=LEFT, y_ptr=RIGHT, out_ptr=out(5, 64), N=64,
     reference={"out_ptr": np.stack(NANS).astype(np.float32)})  # fmt: skip
case("logic", "logic", 24, x_ptr=X[:24], y_ptr=Y[:24], out_ptr=out(24, 8), n=6, BLOCK=8)
case("double", "double", 1, x_ptr=X, out_ptr=out(64), N=64, tolerance=2e-7)

CASES = [*POINTWISE, *CASTS, *MATHEMATICS]
