"""Methods and options of a Function, as read from its class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from fnjax._function.ctx import FunctionCtx, NeedsInputGrad
from fnjax._function.signature import Parameters

Method = Callable[..., Any]


class Options:
    """Options that a class may set besides its methods. A new option is a line here and a line where it is used."""

    pytree: ClassVar[bool] = False
    clear_saved_tensors_on_access: ClassVar[bool] = False
    boxed_grads_call: ClassVar[bool] = False
    generate_vmap_rule: ClassVar[bool] = False
    derive_jvp: ClassVar[bool] = False  # deprecated: forward mode needs no option
    checkpoint_name: ClassVar[str | None] = None
    device_copies: ClassVar[bool] = False


class Definition(NamedTuple):
    """Snapshot of a class; methods that it does not define are None.

    Attributes:
        name: the name of the class.
        options: the class itself.
        ctx: the class of its ctx.
        forward: the method, as looked up on the class.
        parameters: those of forward.
        setup_context: the method; without it forward takes ctx.
        backward: the method, `backward` or `vjp`.
        jvp: the method.
        vmap: the method.
    """

    name: str
    options: type[Options]
    ctx: type[FunctionCtx]
    forward: Method
    parameters: Parameters
    setup_context: Method | None
    backward: Method | None
    jvp: Method | None
    vmap: Method | None

    def make_ctx(self, needs: NeedsInputGrad, inputs: Sequence[Any] = ()) -> FunctionCtx:
        """Return a new ctx, for a run of forward on `inputs` or for one of backward."""
        return self.ctx(needs, inputs, single_access=self.options.clear_saved_tensors_on_access)
