"""Result of `kernel.warmup`: a kernel that launchers ask for registers and memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Compiled:
    """Kernel as `kernel.warmup` returns it: it needs few registers, and no memory of a GPU."""

    n_regs, n_spills, n_max_threads = 32, 0, 1024
    metadata = SimpleNamespace(shared=0, num_warps=4, num_stages=3, num_ctas=1)

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.asm = kernel, dict[str, str]()

    def _init_handles(self) -> None:
        """Do nothing: there is no module to load."""

    def __getitem__(self, grid: Any) -> Any:
        return self.kernel[grid]
