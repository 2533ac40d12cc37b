"""Custom operators that PyTorch runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from fnjax.port.verify import extraction
from fnjax.port.verify.operators import Found


def find_pytorch_operator(path: Path, text: str, name: str) -> Found:
    """Return an operator in PyTorch, defined and registered by its file.

    Raises:
        Exception: the file cannot be executed, or does not define it.
    """
    namespace, _, last = name.partition("::")
    if not hasattr(getattr(torch.ops, namespace), last):  # a namespace cannot be defined twice
        try:
            extraction.import_whole(path)
        except (Exception, SystemExit):  # noqa: BLE001 - libraries that the file imports need not be installed
            extraction.open_part(path, text).run_all()
    overload = getattr(getattr(torch.ops, namespace), last).default
    arguments = overload._schema.arguments  # there is no public name for it
    written = [i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]

    def call(*args: Any) -> Any:
        found = overload(*args)
        _refuse_what_the_fake_refuses(overload, args)
        return found

    # PyTorch differentiates through a kernel without a derivative with a warning that this may be wrong; fnjax refuses.
    keys = ("Autograd", "CompositeImplicitAutograd")
    derived = any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)
    return Found(call, [(a.name, str(a.type)) for a in arguments], written, derived)


def _refuse_what_the_fake_refuses(overload: Any, args: tuple[Any, ...]) -> None:
    """Refuse what register_fake asserts not to get: a body may run on it, but no call is meant for it.

    Raises:
        ValueError: the fake raises.
    """
    if not torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "Meta"):
        return
    each = torch.utils._pytree.tree_map_only
    plain = each(torch.Tensor, torch.Tensor.detach, args)
    try:
        overload(*each(torch.Tensor, lambda x: x.to("meta"), plain))
        return
    except Exception as e:  # noqa: BLE001 - whatever it raises; tensors of the device take a thousand times as long
        if "no fake impl registered" in str(e):
            return
    try:
        with FakeTensorMode() as mode:
            overload(*each(torch.Tensor, mode.from_tensor, plain))
    except (UnsupportedOperatorException, DataDependentOutputException, DynamicOutputShapeException):
        return
    except Exception as e:
        raise ValueError(f"register_fake does not take this call: {type(e).__name__}: {e}") from e
