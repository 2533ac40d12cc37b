"""What pytest collects beside the tests: the docstrings of files that import PyTorch, where there is one."""

import importlib.util

collect_ignore_glob = (
    []
    if importlib.util.find_spec("torch")
    else ["fnjax/port/compare/*", "fnjax/port/verify/*", "tests/port/collectives/functions.py"]
)
