"""Asserts in the helpers of this folder explain themselves, as those in tests do."""

import pytest

pytest.register_assert_rewrite("tests.conformance.support")
