"""Random streams, each named by its purpose; no other module creates any.

Two streams of one seed are one stream: cotangents drawn from it equal the inputs, bit for bit, and hide a wrong
gradient. So the purpose is part of each seed, and no stream is `np.random.default_rng(seed)`, which users draw from.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def make_stream(purpose: str, *seed: int) -> np.random.Generator:
    """Return the stream of random numbers for a purpose.

    Args:
        purpose: the name of what is drawn, such as `cotangents`; two purposes with one seed have different streams.
        seed: the user's seed, then the index of the draw, if the purpose has several.
    """
    import numpy as np  # the command line shows its help without NumPy

    return np.random.default_rng([zlib.crc32(purpose.encode()), *seed])
