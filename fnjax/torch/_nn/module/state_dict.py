"""State dicts: saving and loading of a module's state, under PyTorch's names."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from fnjax._function.signature import is_torch_tensor
from fnjax.torch._autograd.handles import RemovableHandle, add_hook
from fnjax.torch._nn.module.parameter import Parameter
from fnjax.torch.functions.creation import tensor
from fnjax.torch.memory.dtypes import as_dtype
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.recording.gradient_mode import Mode, get_mode, set_mode

EXTRA = "_extra_state"
Hook = Callable[..., Any]


class _IncompatibleKeys(namedtuple("IncompatibleKeys", ["missing_keys", "unexpected_keys"])):  # noqa: PYI024 - PyTorch's
    """The keys that a state dict lacks, and those that the module does not know."""

    __slots__ = ()

    def __repr__(self) -> str:
        return super().__repr__() if self.missing_keys or self.unexpected_keys else "<All keys matched successfully>"


def without_recording() -> set_mode:
    """Return a block in which operations are not recorded, and in which JAX still differentiates them."""
    return set_mode(Mode(enabled=False, constant=get_mode().constant))


class StateDict:
    """The part of a module that saves and loads its state."""

    _parameters: dict[str, Any]
    _buffers: dict[str, Any]
    _modules: dict[str, Any]
    _non_persistent_buffers_set: set[str]
    _state_dict_hooks: dict[int, Any]
    _state_dict_pre_hooks: dict[int, Any]
    _load_state_dict_pre_hooks: dict[int, Any]
    _load_state_dict_post_hooks: dict[int, Any]
    _version = 1

    # ------------------------------------------------------------------ saving

    def get_extra_state(self) -> Any:
        """Return the state that a module saves besides tensors."""
        raise RuntimeError(
            "Reached a code path in Module.get_extra_state() that should never be called. Please file an issue at "
            "https://github.com/pytorch/pytorch/issues/new?template=bug-report.yml to report this bug."
        )

    def set_extra_state(self, state: Any) -> None:
        """Load the state that `get_extra_state` saved."""
        raise RuntimeError(
            "Reached a code path in Module.set_extra_state() that should never be called. Please file an issue at "
            "https://github.com/pytorch/pytorch/issues/new?template=bug-report.yml to report this bug."
        )

    def _iter_own_state(self) -> dict[str, Any]:
        kept = {k: v for k, v in self._buffers.items() if k not in self._non_persistent_buffers_set}
        return {k: v for k, v in {**self._parameters, **kept}.items() if v is not None}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for name, value in self._iter_own_state().items():
            destination[prefix + name] = value if keep_vars else value.detach()
        if type(self).get_extra_state is not StateDict.get_extra_state:
            destination[f"{prefix}{EXTRA}"] = self.get_extra_state()

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """Return parameters and persistent buffers by their qualified names, as tensors."""
        given: list[Any] = [*args, *(destination, prefix, keep_vars)[len(args) :]]
        destination, prefix, keep_vars = given
        if destination is None:
            destination = OrderedDict()
            destination._metadata = OrderedDict()
        local = {"version": self._version}
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]] = local
        for hook in self._state_dict_pre_hooks.values():
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for hook in self._state_dict_hooks.values():
            found = hook(self, destination, prefix, local)
            if getattr(hook, "_from_public_api", False):
                if found is not None:
                    raise RuntimeError("state_dict post-hook must return None")
            elif found is not None:
                destination = found
        return destination

    def register_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Call a function before the module saves its state."""
        return add_hook(self._state_dict_pre_hooks, hook)

    def register_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """Call a function after the module has saved its state."""
        hook._from_public_api = True  # type: ignore[attr-defined] # read above
        return add_hook(self._state_dict_hooks, hook)

    def _register_state_dict_hook(self, hook: Hook) -> RemovableHandle:
        if getattr(hook, "_from_public_api", False):
            raise RuntimeError(
                "Cannot register the same function as the state dict post hook that was previously registered via "
                "register_state_dict_post_hook"
            )
        return add_hook(self._state_dict_hooks, hook)

    # ------------------------------------------------------------------ loading

    def _register_load_state_dict_pre_hook(self, hook: Hook, with_module: bool = False) -> RemovableHandle:
        given = hook if not with_module else lambda *args: hook(self, *args)
        return add_hook(self._load_state_dict_pre_hooks, given)

    def register_load_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Call a function before the module loads its state."""
        return self._register_load_state_dict_pre_hook(hook, with_module=True)

    def register_load_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """Call a function after the module has loaded its state."""
        return add_hook(self._load_state_dict_post_hooks, hook)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        for hook in self._load_state_dict_pre_hooks.values():
            hook(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        own = self._iter_own_state()
        assign = local_metadata.get("assign_to_params_buffers", False)
        for name, target in own.items():
            key = prefix + name
            if key in state_dict:
                error = self._load_one(name, target, state_dict[key], key, assign)
                error_msgs += [error] if error else []
            elif strict:
                missing_keys.append(key)
        key = f"{prefix}{EXTRA}"
        if type(self).set_extra_state is not StateDict.set_extra_state:
            if key in state_dict:
                self.set_extra_state(state_dict[key])
            elif strict:
                missing_keys.append(key)
        elif strict and key in state_dict:
            unexpected_keys.append(key)
        if not strict:
            return
        for given in state_dict:
            if given.startswith(prefix) and given != key:
                first, *rest = given[len(prefix) :].split(".", 1)
                if first not in (self._modules if rest else own):
                    unexpected_keys.append(given)

    def _load_one(self, name: str, target: Tensor, given: Any, key: str, assign: bool) -> str:
        """Load one tensor; return PyTorch's message where it does not fit."""
        if is_torch_tensor(given):
            kind = as_dtype(str(given.dtype).removeprefix("torch."))
            given = given.detach().cpu()
            given = tensor((given.double() if kind.kind == "float" else given).numpy(), dtype=kind)
        if isinstance(given, (np.ndarray, np.generic, jax.Array)):
            given = tensor(given)
        if not isinstance(given, Tensor):
            return (
                f'While copying the parameter named "{key}", expected torch.Tensor or Tensor-like object from '
                f"checkpoint but received {type(given)}"
            )
        if not target.ndim and given.shape == (1,):
            given = given[0]
        if given.shape != target.shape:
            return (
                f"size mismatch for {key}: copying a param with shape {given.shape} from checkpoint, the shape in "
                f"current model is {target.shape}."
            )
        with without_recording():
            if not assign:
                target.detach().copy_(given)
            elif not isinstance(target, Parameter):
                setattr(self, name, given)
            elif isinstance(given, Parameter):
                setattr(self, name, given.requires_grad_(target.requires_grad))
            else:
                setattr(self, name, Parameter(given, requires_grad=target.requires_grad))
        return ""

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Copy tensors, NumPy or JAX arrays into the parameters and buffers of these names.

        Args:
            state_dict: the values by the qualified names of parameters and buffers.
            strict: raise if the dict lacks a name of the module, or the module a name of the dict.
            assign: replace the parameters and buffers by the dict's tensors, instead of copying into them.

        Returns:
            A named tuple of the missing and the unexpected keys.

        Raises:
            RuntimeError: with PyTorch's messages.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
        missing: list[str] = []
        unexpected: list[str] = []
        errors: list[str] = []
        metadata = getattr(state_dict, "_metadata", None) or {}
        state: Any = OrderedDict(state_dict)
        state._metadata = metadata

        def load(module: Any, state: Any, prefix: str = "") -> None:
            local = dict(metadata.get(prefix[:-1], {})) | ({"assign_to_params_buffers": True} if assign else {})
            module._load_from_state_dict(state, prefix, local, True, missing, unexpected, errors)
            for name, child in module._modules.items():
                if child is not None:
                    below = f"{prefix}{name}."
                    load(child, {k: v for k, v in state.items() if k.startswith(below)}, below)
            for hook in module._load_state_dict_post_hooks.values():
                if hook(module, _IncompatibleKeys(missing, unexpected)) is not None:
                    raise AssertionError(
                        "Hooks registered with ``register_load_state_dict_post_hook`` are not expected to return new "
                        "values, if incompatible_keys need to be modified, it should be done inplace."
                    )

        load(self, state)
        for keys, kind in ((unexpected, "Unexpected"), (missing, "Missing")):
            if strict and keys:
                names = ", ".join(f'"{k}"' for k in keys)
                errors.insert(0, f"{kind} key(s) in state_dict: {names}. ")
        if errors:
            lines = "\n\t".join(errors)
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\t{lines}")
        return _IncompatibleKeys(missing, unexpected)
