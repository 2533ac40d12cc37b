"""The reference that a port is compared with: PyTorch, or fnjax.torch where PyTorch is not installed."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # the command's help needs no NumPy
    from fnjax.port.compare.values import Inputs, Results, Values

PYTORCH, FNJAX_TORCH = "pytorch", "fnjax.torch"
REFERENCES = (PYTORCH, FNJAX_TORCH)


class Reference(Protocol):
    """One way to run the original.

    Attributes:
        name: as messages call it.
        torch: the module that the original has for `torch`.
        patience: the seconds that a call of the original may take.
    """

    name: str
    torch: Any
    patience: float

    def load(self, place: str) -> Any:
        """Import a module by its name, or by the path of its file."""

    def list_files(self) -> list[str]:
        """Return the files that it has loaded."""

    def seed(self, number: int) -> None:
        """Seed the random numbers that the original draws."""

    def run(self, function: Any, inputs: Inputs, fill: int = 0) -> tuple[Results, list[Values]]:
        """Return the original's results, and the cotangents that were drawn; uninitialised memory holds `fill`."""


def is_installed() -> bool:
    """Return whether PyTorch is installed."""
    return importlib.util.find_spec("torch") is not None


def choose_reference(asked: str | None) -> str:
    """Return the requested reference; None is PyTorch where it is installed, else fnjax.torch.

    Raises:
        ImportError: PyTorch is requested, and not installed.
    """
    if asked == PYTORCH and not is_installed():
        raise ImportError("PyTorch is not installed: install it, or compare with fnjax.torch (--against fnjax.torch)")
    return asked or (PYTORCH if is_installed() else FNJAX_TORCH)


def describe_reference(against: str) -> str:
    """Return a note on the reference; empty for PyTorch.

    Examples:
        >>> describe_reference("pytorch")
        ''
    """
    return "" if against == PYTORCH else "compared with fnjax.torch"


def make_reference(asked: str | None) -> Reference:
    """Return a reference by its name, as `choose_reference` does; PyTorch is imported only if it is the reference."""
    home = "in_pytorch" if choose_reference(asked) == PYTORCH else "in_fnjax_torch"
    found: Reference = importlib.import_module(f"fnjax.port.compare.{home}").REFERENCE
    return found
