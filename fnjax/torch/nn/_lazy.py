"""Layers that read their number of features from the first input."""

from __future__ import annotations

from typing import Any

from fnjax._primitives.jax_internals import is_transformed
from fnjax.torch._errors import NotSupported
from fnjax.torch._namespace import find
from fnjax.torch.nn._layers import enter_layer
from fnjax.torch.nn._module import Module


class _Waiting(dict[str, Any]):
    """The parameters of a layer that has not seen an input."""

    def items(self) -> Any:
        """Raise: there are none yet.

        Raises:
            NotSupported: always.
        """
        raise NotSupported("the parameters of a lazy layer that has not seen an input", "call it once with an example")


class _Lazy(Module):
    """A layer that becomes one of its base when it is called.

    Attributes:
        _base: the base's name.
        _axis: the axis of the features; None where `_rank` axes follow it.
    """

    _base = ""
    _axis: int | None = None
    _rank = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Module.__init__(self)
        object.__setattr__(self, "_parameters", _Waiting())
        self._given = args, kwargs

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if is_transformed():
            raise NotSupported(
                f"the first call of {type(self).__name__} inside of a transformation",
                "call it once with an example outside of jax.jit",
            )
        base, training, (given, named), shape = find(self._base), self.training, self._given, args[0].shape
        at = self._axis if self._axis is not None else len(shape) - self._rank - 1
        self.__class__ = base
        del self._given
        base.__init__(self, shape[at], *given, **named)  # as its constructor does
        return self.train(training)._call(*args, **kwargs)


def _add(file: str, name: str, **where: int) -> None:
    space = {"_base": f"torch.nn.{name}", "__doc__": f"torch.nn.Lazy{name}."}
    enter_layer(file)(type(f"Lazy{name}", (_Lazy,), space | {f"_{key}": at for key, at in where.items()}))


_add("linear", "Linear", axis=-1)
for _n in (1, 2, 3):
    _add("conv", f"Conv{_n}d", rank=_n)
    _add("conv", f"ConvTranspose{_n}d", rank=_n)
    _add("instancenorm", f"InstanceNorm{_n}d", rank=_n)
    _add("batchnorm", f"BatchNorm{_n}d", axis=1)
