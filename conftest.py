"""What pytest collects outside tests/: the docstrings of files that import PyTorch, where there is one."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["fnjax/port/compare/*", "fnjax/port/verify/*"]
