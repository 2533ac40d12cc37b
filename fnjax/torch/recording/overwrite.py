"""Values of tensors whose arrays are replaced without autograd's knowledge."""

from __future__ import annotations

from typing import Any

import jax

from fnjax._primitives.nondifferentiable import nondifferentiable
from fnjax._primitives.replace_primal import replace_primal
from fnjax.torch.errors import NotSupported
from fnjax.torch.recording.gradient_mode import Mode, set_mode
from fnjax.torch.recording.graph import Value, compute


def overwrite(old: Value, array: Any) -> Value:
    """Return the value of a tensor after its array was replaced as by `.data`: its history is that of the old value.

    The derivative of an array of another shape raises.
    """
    is_hooked = old.hooks is not None and old.node is None
    base, constant = old.hooks.base if is_hooked else old, jax.lax.stop_gradient(array)
    if base.array.shape == array.shape:

        def replace(x: Any) -> Any:
            return replace_primal(x.astype(array.dtype), constant)

    else:
        what = f"the derivative of a tensor of shape {base.array.shape} whose .data was given shape {array.shape}"
        error = NotSupported(what, "assign the new tensor to a name of its own")

        def replace(x: Any) -> Any:
            return nondifferentiable([constant], [x], lambda: error)[0]

    if old.node is None:
        made = Value(replace(base.array), requires_grad=old.requires_grad, leaf=old.leaf)
        moved: Value = old.hooks.move(made) if is_hooked else made
        return moved
    with set_mode(Mode(enabled=True)):  # the history of the old value is kept in any gradient mode
        return compute(lambda x: (replace(x),), [old], "CopyBackwards")[0]
