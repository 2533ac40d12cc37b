"""Until fnjax.triton is there, only the interpreter can run these kernels."""

import importlib.util

if importlib.util.find_spec("fnjax.triton") is None:
    collect_ignore_glob = ["test_goldens.py", "test_gradients.py", "test_narrow.py", "twins.py", "kernels/*"]
