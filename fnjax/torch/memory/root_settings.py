"""Settings of torch that loaded files make for the files of their root: the default dtype, attributes of Tensor."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

NAME = "__fnjax_settings__"  # of a root's RootSettings in its files


class RootSettings:
    """Settings of a root. They are made when its files are executed, so a function always runs under the same ones.

    Attributes:
        default_dtype: the dtype of torch.set_default_dtype, or None.
        tensor_attributes: the attributes that were set in torch.Tensor, by name.
    """

    any_is_set = False  # of any root

    def __init__(self) -> None:
        self.default_dtype: Any = None
        self.tensor_attributes = dict[str, Any]()


def find_tensor_attribute(name: str) -> Any:
    """Return the attribute that the root of the running file has set in torch.Tensor.

    Raises:
        KeyError: the root has not set the attribute.
    """
    found = find_settings() if RootSettings.any_is_set else None
    return (found.tensor_attributes if found is not None else {})[name]


def find_settings() -> RootSettings | None:
    """Return the settings of the root whose file has the innermost running function, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found: RootSettings | None = frame.f_globals.get(NAME)
        if found is not None:
            return found
        frame = frame.f_back
    return None
