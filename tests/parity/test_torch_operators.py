"""fnjax.torch next to PyTorch's own operator tests: a part of the entries here, all with FNJAX_OPERATORS=all."""

import os

import jax
import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")
from tests.parity.torch_operators import DTYPES, check_entry, find_reason, list_entries, torch

pytestmark = pytest.mark.parity
WHOLE = os.environ.get("FNJAX_OPERATORS") == "all"
ENTRIES = [*list_entries()][:: 1 if WHOLE else 14]
# A module is a few seconds: dtypes of which most operations have samples.
SOME = (torch.float32, torch.int64)


@pytest.mark.parametrize("key", ENTRIES)
def test_samples(key):
    """Samples and their gradients are equal, also in place and with out=, or refused; what differs is listed."""
    with jax.enable_x64(True):
        found = [*check_entry(key, 4 if WHOLE else 1, ("", "inplace", "out", "grad"), DTYPES if WHOLE else SOME)]
    jax.clear_caches()
    wrong = [f for f in found if f[1] != "equal" and f[1] != "unknown" and not f[1].startswith("refused")]
    assert not [f for f in wrong if not find_reason(key, *f[:2])]
