"""Containers: Sequential, and lists and dicts of modules and of parameters."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from fnjax._torch_ops.registry import KNOWN, known
from fnjax.torch._nn.module.module import Module
from fnjax.torch._nn.module.parameter import Parameter
from fnjax.torch.memory.tensor import Tensor


class _Numbered(Module):
    """A module whose members have numbers for names."""

    def _name(self, index: Any) -> str:
        index, n = operator.index(index), len(self)
        if not -n <= index < n:
            raise IndexError(f"index {index} is out of range")
        return list(self._modules)[index % n]

    def _renumber(self, modules: Iterable[Any]) -> None:
        vars(self)["_modules"] = {str(i): m for i, m in enumerate(modules)}

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._make([*self._modules.items()][index])
        return self._modules[self._name(index)]

    def _make(self, items: list[tuple[str, Any]]) -> Any:
        raise NotImplementedError

    def __setitem__(self, index: int, module: Any) -> None:
        setattr(self, self._name(index), module)

    def __delitem__(self, index: Any) -> None:
        names = list(self._modules)[index] if isinstance(index, slice) else [self._name(index)]
        self._renumber(m for k, m in self._modules.items() if k not in names)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter([*self._modules.values()])

    def append(self, module: Any) -> Self:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Any]) -> Self:
        """Add modules at the end."""
        if not isinstance(modules, Iterable):
            raise TypeError(
                f"{type(self).__name__}.extend should be called with an iterable, but got {type(modules).__name__}"
            )
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Any) -> Any:
        """Add a module before another."""
        members = [*self]
        members.insert(index, module)
        self._renumber(members)

    def pop(self, key: Any) -> Any:
        """Remove a module, and return it."""
        found = self[key]
        del self[key]
        return found

    def __iadd__(self, modules: Iterable[Any]) -> Self:
        return self.extend(modules)


class Sequential(_Numbered):
    """Modules that are called one after the other."""

    def __init__(self, *args: Any) -> None:
        super().__init__()
        items = args[0].items() if len(args) == 1 and isinstance(args[0], dict) else enumerate(args)
        for name, module in items:
            self.add_module(str(name), module)

    def _make(self, items: list[tuple[str, Any]]) -> Any:
        return type(self)(dict(items))

    def insert(self, index: int, module: Any) -> Any:
        """Add a module before another."""
        super().insert(index, module)
        return self

    def __delitem__(self, index: Any) -> None:
        names = list(self._modules)[index] if isinstance(index, slice) else [self._name(index)]
        for name in names:
            delattr(self, name)
        self._renumber([*self._modules.values()])

    def __add__(self, other: Any) -> Sequential:
        if not isinstance(other, Sequential):
            raise ValueError(
                "add operator supports only objects of Sequential class, but " + str(type(other)) + " is given."
            )
        return Sequential(*self, *other)

    def __mul__(self, other: int) -> Sequential:
        return Sequential(*[m for _ in range(other) for m in self])

    __rmul__ = __mul__

    def forward(self, input: Any) -> Any:
        """Call the modules one after the other, each on the output of the one before; return the last output."""
        for module in self:
            input = module(input)
        return input


class ModuleList(_Numbered):
    """Modules in a list; calling them is the caller's task."""

    def __init__(self, modules: Iterable[Any] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self += modules

    def _make(self, items: list[tuple[str, Any]]) -> Any:
        return type(self)([m for _, m in items])

    def __add__(self, other: Iterable[Any]) -> ModuleList:
        return ModuleList([*self, *other])

    def __repr__(self) -> str:
        texts = [repr(m) for m in self]
        if not texts:
            return f"{self._get_name()}()"
        lines, start = [], 0
        for i, text in enumerate(texts):
            if i + 1 < len(texts) and texts[i + 1] == text:
                continue
            head = f"({start}): " if i == start else f"({start}-{i}): {i - start + 1} x "
            lines.append("  " + (head + text).replace("\n", "\n  "))
            start = i + 1
        return "\n".join([f"{self._get_name()}(", *lines, ")"])


class _Mapping(Module):
    """A module whose members are a dict's."""

    def _space(self) -> dict[str, Any]:
        raise NotImplementedError

    def __getitem__(self, key: str) -> Any:
        return self._space()[key]

    def __len__(self) -> int:
        return len(self._space())

    def __iter__(self) -> Iterator[str]:
        return iter([*self._space()])

    def __contains__(self, key: Any) -> bool:
        return key in self._space()

    def keys(self) -> Any:
        """Return the keys."""
        return self._space().keys()

    def items(self) -> Any:
        """Return keys and members."""
        return self._space().items()

    def values(self) -> Any:
        """Return the members."""
        return self._space().values()

    def clear(self) -> None:
        """Remove all members."""
        for key in [*self]:
            del self[key]

    def __setitem__(self, key: str, value: Any) -> None:
        raise NotImplementedError

    def __delitem__(self, key: str) -> None:
        raise NotImplementedError

    def pop(self, key: str) -> Any:
        """Remove a member, and return it."""
        found = self[key]
        del self[key]
        return found

    def update(self, members: Any) -> None:
        """Add members from a mapping or from pairs."""
        pairs = members.items() if isinstance(members, (Mapping, _Mapping)) else members
        for key, value in pairs:
            self[key] = value


class ModuleDict(_Mapping):
    """Modules in a dict."""

    def __init__(self, modules: Any = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def _space(self) -> dict[str, Any]:
        return self._modules

    def __setitem__(self, key: str, module: Any) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]


def _as_parameter(value: Any) -> Any:
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


def _describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"Object of type: {type(value).__name__}"
    sizes = "x".join(map(str, value.shape))
    kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
    return f"{kind} containing: [{value.dtype} of size {sizes}]"


class ParameterList(Module):
    """Parameters in a list; tensors become parameters, other values stay as they are."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        if values is not None:
            self += values

    def _name(self, index: Any) -> str:
        index = operator.index(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range")
        return str(index % len(self))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(self[i] for i in range(*index.indices(len(self))))
        return getattr(self, self._name(index))

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, self._name(index), _as_parameter(value))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def append(self, value: Any) -> Self:
        """Add a value at the end."""
        self._size += 1
        self[-1] = value
        return self

    def extend(self, values: Any) -> Self:
        """Add values at the end."""
        if not isinstance(values, Iterable) or isinstance(values, Tensor):
            raise TypeError("ParameterList.extend should be called with an iterable, but got " + type(values).__name__)
        for value in values:
            self.append(value)
        return self

    def __iadd__(self, values: Iterable[Any]) -> Self:
        return self.extend(values)

    def extra_repr(self) -> str:
        """Return a line for each value."""
        return "\n".join(f"  ({i}): {_describe(p)}" for i, p in enumerate(self))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("ParameterList should not be called.")


class ParameterDict(_Mapping):
    """Parameters in a dict; tensors become parameters, other values stay as they are."""

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        if parameters is not None:
            self.update(parameters)

    def _space(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in self._keys}

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise TypeError(
                "Index given to ParameterDict cannot be used as a key as it is not a string "
                f"(type is '{type(key).__name__}'). Open an issue on github if you need non-string keys."
            )
        self._keys[key] = None
        setattr(self, key, _as_parameter(value))

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        delattr(self, key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a member, or a default."""
        return self._space().get(key, default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return a member; add it with this default if it is missing."""
        if key not in self:
            self[key] = default
        return self[key]

    def copy(self) -> ParameterDict:
        """Return another dict of the same parameters."""
        return ParameterDict(dict(self.items()))

    def __or__(self, other: Any) -> ParameterDict:
        made = self.copy()
        made.update(other)
        return made

    def __ior__(self, other: Any) -> Self:
        self.update(other)
        return self

    def extra_repr(self) -> str:
        """Return a line for each value."""
        return "\n".join(f"  ({k}): {_describe(p)}" for k, p in self.items())

    def __call__(self, input: Any) -> Any:
        raise RuntimeError("ParameterDict should not be called.")


for _cls in (Sequential, ModuleList, ModuleDict, ParameterList, ParameterDict):
    _cls.__module__ = "torch.nn.modules.container"
    for _space in ("torch.nn", "torch.nn.modules", "torch.nn.modules.container"):
        KNOWN[f"{_space}.{_cls.__name__}"] = _cls


@known("torch.nn.DataParallel", "torch.nn.parallel.DataParallel")
class DataParallel(Module):
    """A module under the name `module`: JAX spreads the batch over devices, by its sharding under jax.jit."""

    def __init__(self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
        super().__init__()
        self.module, self.dim = module, dim

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.module(*inputs, **kwargs)
