"""The table of operations next to samples of PyTorch's own operator tests, with 64 bits."""

import jax
import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")
pytest.importorskip("libcst")
from tests.parity.op_db import compare_entry, is_departure

pytestmark = pytest.mark.parity
ENTRIES = (
    *("aminmax", "complex", "cumprod", "cumsum", "gradient", "kthvalue", "logaddexp", "logcumsumexp", "masked_scatter"),
    *("nanquantile", "quantile", "softmax", "std_mean", "std", "var", "var_mean", "where", "float_power", "heaviside"),
    *("searchsorted", "bucketize", "topk"),
)


@pytest.mark.parametrize("key", ENTRIES)
def test_samples(key):
    """Values, dtypes and shapes of an entry's samples are PyTorch's; what is refused says so."""
    with jax.enable_x64(True):
        found = [*compare_entry(key, 3)]
    wrong = [f for f in found if ":" in f and not f.startswith("refused:") and not is_departure(f)]
    assert found
    assert not wrong
