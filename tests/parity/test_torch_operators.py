"""fnjax.torch on samples of PyTorch's own operator tests: values, dtypes, shapes, views, in place, out=, gradients.

`FNJAX_OPERATORS='.*' make parity PYTEST_ARGS='-k torch_operators'` tries ten samples of every entry that matches.
"""

import os
import re

import jax
import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")
from tests.parity.torch_operators import check_entry, list_entries

pytestmark = pytest.mark.parity
PATTERN = os.environ.get("FNJAX_OPERATORS", "")
SAMPLE = (
    *("__rdiv__", "__rpow__", "addmv", "allclose", "cumsum", "equal", "masked_select", "square"),
    *("nn.functional.adaptive_max_pool1d", "nn.functional.avg_pool2d", "nn.functional.conv1d", "where"),
    *(
        "nn.functional.multi_margin_loss",
        "nn.functional.pad.replicate_negative",
        "polygamma.polygamma_n_1",
        "sum_to_size",
    ),
)
ENTRIES = [key for key in list_entries() if re.fullmatch(PATTERN, key)] if PATTERN else SAMPLE
REFUSED = {
    r"has no counterpart in JAX|is deprecated, internal, or an algorithm": "an algorithm that JAX does not have",
    r"is a kernel or an internal operation": "PyTorch's own code generator calls it",
    r"draws random numbers": "the random numbers are not PyTorch's",
    r"must be .* as a literal": "a form that PyTorch deprecates",
}


def is_allowed(outcome):
    """Whether an outcome is equality, or a known refusal."""
    if outcome in {"equal", "unknown"}:
        return True
    return outcome.startswith("refused: ") and any(re.search(pattern, outcome) for pattern in REFUSED)


@pytest.mark.parametrize("key", ENTRIES)
def test_samples(key):
    """Samples give what PyTorch gives, or are refused for a reason that is listed."""
    with jax.enable_x64(True):
        found = [*check_entry(key, 10 if PATTERN else 2, ("", "inplace", "out", "grad"))]
    assert found
    assert not [f for f in found if not is_allowed(f[1])]
