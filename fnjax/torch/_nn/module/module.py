"""`torch.nn.Module`: parameters, buffers and modules under names, hooks, modes; a call runs forward."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Self

import jax
import numpy as np

from fnjax._function.signature import is_torch_tensor
from fnjax._primitives.jax_internals import is_transformed
from fnjax._torch_ops.registry import known
from fnjax.errors import warn
from fnjax.torch._autograd.function.captured import Stateful, is_node
from fnjax.torch._autograd.handles import RemovableHandle, add_hook
from fnjax.torch._nn.module.backward_hooks import HookedCall
from fnjax.torch._nn.module.copies import call_copy
from fnjax.torch._nn.module.members import Members
from fnjax.torch._nn.module.parameter import Buffer, Parameter, has_traced_copy, name_type
from fnjax.torch._nn.module.pytree import register
from fnjax.torch._nn.module.scopes import Scope
from fnjax.torch._nn.module.state_dict import StateDict, without_recording
from fnjax.torch.errors import NotSupported
from fnjax.torch.functions.to_arguments import read_conversion
from fnjax.torch.interop.arrays import jax_view
from fnjax.torch.memory.strides import FORMATS
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.recording.blocks import setting
from fnjax.torch.recording.journal import is_older

_functional: ContextVar[bool] = ContextVar("_functional", default=False)


def functional() -> AbstractContextManager[bool]:
    """Mark a block in which modules may be written to under a transform, because the caller restores them."""
    return setting(_functional, True)


_DICTS = (
    "_parameters",
    "_buffers",
    "_modules",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


@known("torch.nn.Module", "torch.nn.modules.Module", "torch.nn.modules.module.Module")
class Module(Members, StateDict, Stateful):
    """Base of modules, as PyTorch has it; called with arrays it returns arrays, with tensors tensors.

    Attributes:
        training: whether the module is in training mode.
    """

    __module__ = "torch.nn.modules.module"

    training: bool
    forward: Callable[..., Any]
    call_super_init = False
    _recomputed: frozenset[str] = frozenset()  # attributes that a hook sets before each forward, no state

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not self.call_super_init and (kwargs or args):
            given = f"got an unexpected keyword argument '{next(iter(kwargs))}'" if kwargs else ""
            raise TypeError(
                f"{type(self).__name__}.__init__() "
                + (given or f"takes 1 positional argument but {len(args) + 1} were given")
            )
        for name in _DICTS:
            object.__setattr__(self, name, {})
        object.__setattr__(self, "_non_persistent_buffers_set", set())
        object.__setattr__(self, "training", True)
        if self.call_super_init:
            super().__init__(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[no-redef] # a class attribute above, for mypy
        """Compute the results; a module defines it."""
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    # ------------------------------------------------------------------ names

    def _check_new(self, kind: str, name: Any, own: dict[str, Any]) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{kind} name should be a string. Got {name_type(name)}")
        if "." in name:
            more = f", got: {name}" if kind == "module" else ""
            raise KeyError(f'{kind} name can\'t contain "."{more}')
        if not name:
            raise KeyError(f'{kind} name can\'t be empty string ""')
        if hasattr(self, name) and name not in own:
            raise KeyError(f"attribute '{name}' already exists")

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register a tensor that belongs to the state and is not trained."""
        if "_buffers" not in vars(self):
            raise AttributeError("cannot assign buffer before Module.__init__() call")
        self._check_new("buffer", name, self._buffers)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign '{name_type(tensor)}' object to buffer '{name}' (torch Tensor or None required)"
            )
        self._buffers[name] = tensor
        (self._non_persistent_buffers_set.discard if persistent else self._non_persistent_buffers_set.add)(name)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Register a parameter."""
        if "_parameters" not in vars(self):
            raise AttributeError("cannot assign parameter before Module.__init__() call")
        self._check_new("parameter", name, self._parameters)
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign '{name_type(param)}' object to parameter '{name}' (torch.nn.Parameter or None required)"
            )
        self._parameters[name] = param

    def add_module(self, name: str, module: Module | None) -> None:
        """Register a submodule."""
        if not isinstance(module, Module) and module is not None:
            raise TypeError(f"{name_type(module)} is not a Module subclass")
        self._check_new("module", name, self._modules)
        self._modules[name] = module

    register_module = add_module

    def __getattr__(self, name: str) -> Any:
        for space in ("_parameters", "_buffers", "_modules"):
            found = vars(self).get(space)
            if found is not None and name in found:
                return found[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def _remove(self, name: str, *spaces: str) -> None:
        vars(self).pop(name, None)
        for space in spaces:
            vars(self)[space].pop(name, None)
        self._non_persistent_buffers_set.discard(name)

    def __setattr__(self, name: str, value: Any) -> None:
        space = vars(self)
        for kind, own, word in ((Parameter, "_parameters", "parameters"), (Module, "_modules", "module")):
            if isinstance(value, kind) and own not in space:
                raise AttributeError(f"cannot assign {word} before Module.__init__() call")
        if isinstance(value, Parameter):
            self._remove(name, "_buffers", "_modules")
            self.register_parameter(name, value)
        elif name in space.get("_parameters", ()):
            if value is not None:
                raise TypeError(
                    f"cannot assign '{name_type(value)}' as parameter '{name}' (torch.nn.Parameter or None expected)"
                )
            self.register_parameter(name, None)
        elif isinstance(value, Module):
            self._remove(name, "_parameters", "_buffers")
            self._modules[name] = value
        elif name in space.get("_modules", ()):
            if value is not None:
                raise TypeError(
                    f"cannot assign '{name_type(value)}' as child module '{name}' (torch.nn.Module or None expected)"
                )
            self._modules[name] = None
        elif isinstance(value, Buffer):
            self._remove(name, "_parameters", "_modules", *(() if name in self._buffers else ("_buffers",)))
            self.register_buffer(name, value, value.persistent)
        elif name in space.get("_buffers", ()):
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(
                    f"cannot assign '{name_type(value)}' as buffer '{name}' (torch.nn.Buffer, torch.Tensor or None "
                    "expected)"
                )
            self._buffers[name] = value
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        for space in ("_parameters", "_buffers", "_modules"):
            if name in vars(self)[space]:
                del vars(self)[space][name]
                self._non_persistent_buffers_set.discard(name)
                return
        super().__delattr__(name)

    def __dir__(self) -> list[str]:
        own = [*super().__dir__(), *self._parameters, *self._modules, *self._buffers]
        return sorted(name for name in own if not name[:1].isdigit())

    # ------------------------------------------------------------------ modes and dtypes

    def train(self, mode: bool = True) -> Self:
        """Set training mode, here and below."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self) -> Self:
        """Leave training mode, here and below."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set whether the parameters have a gradient."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of the parameters."""
        for p in self.parameters():
            if set_to_none:
                p.grad = None
            elif p.grad is not None:
                p.grad = p.grad.detach() * 0

    def apply(self, fn: Callable[[Any], Any]) -> Self:
        """Call a function with each module below, and with this one."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for module in self.children() if recurse else ():
            module._apply(fn)
        for p in self._parameters.values():
            if p is not None:
                with without_recording():
                    p.data = fn(p)
                if p.grad is not None:
                    p.grad = fn(p.grad)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    def to(self, *args: Any, **options: Any) -> Self:
        """Convert floating-point parameters and buffers to a dtype, and those of the right rank to a memory format."""
        dtype, _, memory_format = read_conversion(args, options)
        if memory_format is not None:
            rank = FORMATS.get(memory_format)
            self._apply(lambda t: t.to(memory_format=memory_format) if rank in (None, t.ndim) else t)
        if dtype is None:  # a device
            return self
        if not (dtype.is_floating_point or dtype.is_complex):
            raise TypeError(
                f"nn.Module.to only accepts floating point or complex dtypes, but got desired dtype={dtype}"
            )
        return self._apply(lambda t: t.to(dtype) if t.dtype.is_floating_point or t.dtype.is_complex else t)

    def type(self, dst_type: Any) -> Self:
        """Convert all parameters and buffers to a dtype."""
        return self._apply(lambda t: t.type(dst_type))

    def _stay(self, *_: Any, **__: Any) -> Self:
        return self

    cuda = cpu = xpu = ipu = mtia = share_memory = compile = _stay

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """Fill the parameters and buffers with zeros."""
        return self._apply(lambda t: t.detach() * 0, recurse)

    # ------------------------------------------------------------------ calling

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call a function before forward; it may replace the arguments."""
        return add_hook(self._forward_pre_hooks, (hook, with_kwargs), prepend=prepend)

    def register_forward_hook(
        self,
        hook: Callable[..., Any],
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:
        """Call a function after forward; it may replace the result."""
        return add_hook(self._forward_hooks, (hook, with_kwargs), prepend=prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call a function with the gradients of arguments and results; it may replace those of the arguments."""
        return add_hook(self._backward_hooks, hook, prepend=prepend)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call a function with the gradients of the results, which it may replace."""
        return add_hook(self._backward_pre_hooks, hook, prepend=prepend)

    def register_backward_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Raise: PyTorch calls such a hook with the gradients of the last operation, whichever that is."""
        raise NotSupported(f"register_backward_hook of {type(self).__name__}", "use register_full_backward_hook")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves = jax.tree.leaves((args, kwargs), is_leaf=is_node)
        if any(isinstance(x, (jax.Array, np.ndarray)) or is_torch_tensor(x) for x in leaves) and not any(
            isinstance(x, Tensor) for x in leaves
        ):
            return jax_view(self.__call__)(*args, **kwargs)
        form = vars(self).get("_form")
        if form is not None:  # a copy that JAX made, a pytree
            return call_copy(self._call, args, kwargs, type(self).__name__, form.storages)
        if "_form" in vars(self) or _functional.get() or not is_transformed():
            return self._call(*args, **kwargs)
        return self._trace(args, kwargs)

    def _trace(self, args: Any, kwargs: Any) -> Any:
        """Call the module under a transform, where its new state is dropped.

        Raises:
            NotSupported: forward writes to the state.
        """

        def read() -> dict[str, Any]:
            return {n: (t, t.memory, t.memory.value) for n, t in [*self.named_parameters(), *self.named_buffers()]}

        before = read()
        if unused := [n for n, (t, *_) in before.items() if has_traced_copy(t)]:
            warn(
                f"{type(self).__name__} is called with its own parameters, while JAX traces a function of others "
                f"({', '.join(map(repr, unused[:3]))}{', ...' * (len(unused) > 3)}), whose gradients are zero here: "
                "write fnjax.torch.func.functional_call(model, parameters, args)"
            )
        with functional():
            result = self._call(*args, **kwargs)
        after = read()
        lost = [
            n
            for n, found in before.items()
            if not all(map(operator.is_, after.get(n, (None,) * 3), found))
            and not isinstance(found[2].array, jax.core.Tracer)
            and is_older(found[1])
        ]
        if not lost:
            return result
        for _, storage, value in before.values():
            storage.value = value
            storage.version += 1
        raise NotSupported(
            f"{type(self).__name__}.forward writes to {lost[0]!r} while JAX traces it: the new value would be lost",
            "output, state = fnjax.torch.func.stateful_call(model, state, args); or model.eval()",
        )

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        with Scope(self):
            return self._call_hooked(args, kwargs)

    def _call_hooked(self, args: Any, kwargs: Any) -> Any:
        for hook, named in [*self._forward_pre_hooks.values()]:
            changed = hook(self, args, kwargs) if named else hook(self, args)
            if changed is None:
                continue
            if named:
                if not isinstance(changed, tuple) or len(changed) != 2:
                    raise RuntimeError(
                        f"forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got {changed}."
                    )
                args, kwargs = changed
            else:
                args = changed if isinstance(changed, tuple) else (changed,)
        hooked = None
        if self._backward_hooks or self._backward_pre_hooks:
            hooked = HookedCall(self, self._backward_hooks.values(), self._backward_pre_hooks.values())
            args = hooked.enter(args)
        result = self.forward(*args, **kwargs)
        for hook, named in [*self._forward_hooks.values()]:
            changed = hook(self, args, kwargs, result) if named else hook(self, args, result)
            result = result if changed is None else changed
        return result if hooked is None else hooked.leave(result)

    # ------------------------------------------------------------------ text

    def _get_name(self) -> str:
        return type(self).__name__

    def extra_repr(self) -> str:
        """Return the part of the module's text that describes the module itself, without its submodules."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        above = extra.split("\n") if extra else []
        below = [f"({name}): {_indent(repr(module))}" for name, module in self._modules.items()]
        if len(above) == 1 and not below:
            return f"{self._get_name()}({above[0]})"
        text = "\n  ".join(["", *above, *below])
        return f"{self._get_name()}({text}\n)" if text else f"{self._get_name()}()"


# typing.get_type_hints of a subclass reads them in the module that the class names, which is not there.
Module.__annotations__ = inspect.get_annotations(Module, globals=globals(), eval_str=True)


def _indent(text: str) -> str:
    return text.replace("\n", "\n  ")


for _name in ("float", "double", "half", "bfloat16"):

    def _convert(self: Module, name: str = _name) -> Module:
        """Convert the parameters and buffers that are floating-point to this dtype."""
        return self._apply(lambda t: getattr(t, name)() if t.dtype.is_floating_point else t)

    setattr(Module, _name, _convert)
