"""Modules of CPython's own tests that pass where fnjax.torch loads them, but for tests listed with a reason.

Of each module: its tests that pass in plain Python and fail in a loaded module, as `Class.test`, with wildcards.
"""

MODULES: dict[str, dict[str, str]] = {
    "test_abc": {},
    "test_asyncgen": {},
    "test_augassign": {},
    "test_coroutines": {},
    "test_generators": {},
    "test_list": {},
    "test_patma": {},
    "test_scope": {},
    "test_with": {},
}
