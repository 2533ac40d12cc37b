"""The arrays that the cases of the table of operations speak of, by name."""

import numpy as np

_rng = np.random.default_rng(7)


def _normal(*shape):
    return _rng.normal(size=shape).astype(np.float32)


def _spread(*shape):
    """Floats no two of which are equal, so that sorting them has one answer."""
    count = int(np.prod(shape))
    return ((_rng.permutation(count) - count / 2.3) / 3).reshape(shape).astype(np.float32)


_square = _normal(3, 3) + 3 * np.eye(3, dtype=np.float32)
INPUTS = {
    "x": _spread(3, 4),
    "y": _normal(3, 4),
    "v": _normal(4),
    "w": _normal(4),
    "r": _normal(3),
    "q": _normal(3),
    "s": np.float32(0.7).reshape(()),
    "p": np.abs(_normal(3, 4)) + 0.3,
    "u": _rng.uniform(0.05, 0.95, (3, 4)).astype(np.float32),
    "A": _square,
    "M": _normal(4, 2),
    "S": (_square @ _square.T).astype(np.float32),
    "B": _normal(2, 3, 3) + 3 * np.eye(3, dtype=np.float32),
    "C": _normal(2, 3, 4),
    "D": _normal(2, 4, 5),
    "Q": _spread(2, 3, 5),
    "i": _rng.integers(-3, 6, (3, 4)),
    "j": _rng.integers(1, 6, (3, 4)),
    "k": np.array([2, 0, 1, 1]),
    "g": _rng.integers(0, 3, (2, 4)),
    "l": np.array([1, 3, 0]),
    "b": _rng.uniform(size=(3, 4)) < 0.5,
    "c": _rng.uniform(size=(3, 4)) < 0.5,
    "t": _rng.integers(0, 3, (3, 4)).astype(np.float32),
    "n": np.array([[np.nan, 1, -np.inf, 2], [np.inf, 0, -0.0, -1.5], [3, np.nan, np.nan, 4]], np.float32),
    "e": np.zeros((0, 4), np.float32),
    "z": (_normal(3, 4) + 1j * _normal(3, 4)).astype(np.complex64),
    "Z": (_normal(3, 3) + 1j * _normal(3, 3)).astype(np.complex64),
    "h": _normal(3, 4).astype(np.float16),
    "N": _normal(2, 4, 7, 6),
    "O": _normal(2, 4, 9),
    "P": _normal(1, 2, 5, 5, 6),
    "sorted_": np.sort(_spread(7)),
    "sortedrows": np.sort(_spread(3, 5), axis=-1),
    "W1": _normal(6, 4, 3),
    "W2": _normal(6, 4, 3, 2),
    "W3": _normal(4, 2, 2, 3, 2),
    "G2": _normal(6, 2, 3, 2),
    "T1": _normal(4, 3, 3),
    "T2": _normal(4, 3, 3, 2),
    "T3": _normal(2, 3, 2, 2, 3),
    "o": _normal(6),
    "grid": _rng.uniform(-1.2, 1.2, (2, 3, 5, 2)).astype(np.float32),
    "cube": _rng.uniform(-1.7, 1.7, (1, 2, 3, 4, 3)).astype(np.float32),
    "theta": _normal(2, 2, 3),
    "sign": np.sign(_normal(3, 4)).astype(np.float32),
    "signs": np.sign(_normal(3)).astype(np.float32),
    "classes": np.array([[0, 3, 1, 2, 1], [2, 2, 0, -100, 3]]),
    "multi": (_rng.uniform(size=(3, 4)) < 0.5).astype(np.float32),
}
# What takes x's place in every case, where PyTorch takes it.
EDGES = {"0-d": "s", "NaN": "n", "ties": "t", "empty": "e", "int": "i", "bool": "b", "complex": "z", "half": "h"}
