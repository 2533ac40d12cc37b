"""Layers that read their number of features from the first input."""

from __future__ import annotations

from typing import Any, ClassVar

from fnjax._primitives.jax_internals import is_transformed
from fnjax.torch._nn.layers.lines import enter_layer
from fnjax.torch._nn.module.module import Module
from fnjax.torch.errors import NotSupported
from fnjax.torch.names.registry import find


class _Waiting(dict[str, Any]):
    """Parameters of a lazy layer before its first call: reading them raises."""

    def items(self) -> Any:
        """Raise NotSupported: the parameters do not exist yet.

        Raises:
            NotSupported: always.
        """
        raise NotSupported("the parameters of a lazy layer that has not seen an input", "call it once with an example")


class _Lazy(Module):
    """Lazy layer, which becomes an instance of its base class at the first call.

    Attributes:
        _base: the name of the base class.
        _defaults: the options that follow the features, where they are not the base's.
        _axis: the axis of the features; None where `_rank` axes follow it.
    """

    _base = ""
    _defaults: ClassVar[dict[str, Any]] = {}
    _axis: int | None = None
    _rank = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Module.__init__(self)
        object.__setattr__(self, "_parameters", _Waiting())
        names = list(self._defaults)[len(args) :]
        self._given = args, {name: self._defaults[name] for name in names} | kwargs

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


def _add(file: str, name: str, **options: Any) -> None:
    space = {"_base": f"torch.nn.{name}", "__doc__": f"torch.nn.Lazy{name}."}
    enter_layer(file)(type(f"Lazy{name}", (_Lazy,), space | {f"_{key}": value for key, value in options.items()}))


_TRACKED = {"eps": 1e-5, "momentum": 0.1, "affine": True, "track_running_stats": True}
_add("linear", "Linear", axis=-1)
for _n in (1, 2, 3):
    _add("conv", f"Conv{_n}d", rank=_n)
    _add("conv", f"ConvTranspose{_n}d", rank=_n)
    _add("instancenorm", f"InstanceNorm{_n}d", rank=_n, defaults=_TRACKED)
    _add("batchnorm", f"BatchNorm{_n}d", axis=1)
