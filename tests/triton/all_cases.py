"""All launches, one list."""

from tests.triton.cases import blockwise, elementwise, flow, idioms, layers, whole_numbers

CASES = [
    *elementwise.CASES,
    *whole_numbers.CASES,
    *blockwise.CASES,
    *flow.CASES,
    *layers.CASES,
    *idioms.CASES,
]
assert len({case.name for case in CASES}) == len(CASES), "two cases of one name"
