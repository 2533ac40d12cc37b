"""`autotune` and `heuristics`: the meta-parameters that a launch runs with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnjax.triton.host_code import taken, view
from fnjax.triton.launch import Kernel, grid_of
from fnjax.triton.values import types
from fnjax.triton.values.affine import Array
from fnjax.triton.values.exceptions import KernelError
from fnjax.triton.values.state import Grid


class Config:
    """Configuration of a kernel: meta-parameters and compiler options."""

    def __init__(
        self,
        kwargs: Mapping[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        num_ctas: int = 1,
        maxnreg: int | None = None,
        pre_hook: Callable[..., Any] | None = None,
        ir_override: object = None,
        **rest: object,
    ) -> None:
        self.kwargs, self.pre_hook = dict(kwargs), pre_hook
        self.num_warps, self.num_stages, self.num_ctas, self.maxnreg = num_warps, num_stages, num_ctas, maxnreg

    def all_kwargs(self) -> dict[str, Any]:
        """Return meta-parameters and compiler options together."""
        return self.kwargs | self.options()

    def options(self) -> dict[str, int]:
        """Return the options of Triton's compiler, which matter on a GPU."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, "num_ctas": self.num_ctas}

    def __repr__(self) -> str:
        return ", ".join(f"{k}: {v}" for k, v in self.all_kwargs().items())


class _Held:
    """Array as a hook sees it: it can be zeroed, filled, or copied into."""

    def __init__(self, array: jax.Array) -> None:
        self.array = array

    def __getattr__(self, name: str) -> Any:
        return getattr(self.array, name)

    def zero_(self) -> _Held:
        """Set all elements to zero."""
        return self.fill_(0)

    def fill_(self, value: types.Number) -> _Held:
        """Set all elements to one number."""
        self.array = jnp.full_like(self.array, value)
        return self

    def copy_(self, other: Array | _Held) -> _Held:
        """Set the elements to those of another array."""
        self.array = jnp.broadcast_to(jnp.asarray(getattr(other, "array", other), self.array.dtype), self.array.shape)
        return self

    def clone(self) -> _Held:
        """Return a copy."""
        return _Held(self.array)


class Heuristics(Kernel):
    """Kernel some of whose meta-parameters are computed from its arguments."""

    def __init__(self, fn: Any, values: Mapping[str, Callable[[dict[str, Any]], Any]]) -> None:
        self.fn, self.values = fn, values

    source = property(lambda self: self.fn.source)

    def bind(self, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return all parameters by name, the computed ones included."""
        return self.fn.bind(args, self._with_values(args, named))

    def _launch(self, args: Sequence[Any], grid: Grid, named: Mapping[str, Any]) -> Any:
        return self.fn.run(*args, grid=grid, **self._with_values(args, named))

    def _with_values(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the named arguments with the computed ones added; each function sees the results before its own."""
        found = dict(named)
        for name, function in self.values.items():
            found[name] = function(view({**dict(zip(self.arg_names, args, strict=False)), **found}))
        return found


class Autotuner(Kernel):
    """Kernel with several configurations, of which the first valid one is used; constructed as Triton's class."""

    def __init__(
        self,
        fn: Any,
        arg_names: object,
        configs: Sequence[Config],
        key: Sequence[str] | None = (),
        reset_to_zero: Sequence[str] | None = None,
        restore_value: Sequence[str] | None = None,
        pre_hook: Callable[..., Any] | None = None,
        post_hook: Callable[..., Any] | None = None,
        prune_configs_by: Mapping[str, Any] | None = None,
        **options: object,
    ) -> None:
        self.fn, self.configs, self.pre_hook, self.post_hook = fn, list(configs) or [Config({})], pre_hook, post_hook
        self.keys = list(key or ())
        self.cache: dict[Any, Any] = {}
        self.user_defined_pre_hook, self.user_defined_post_hook = pre_hook is not None, post_hook is not None
        self.reset_to_zero, self.restore_value = list(reset_to_zero or ()), list(restore_value or ())
        self.early_config_prune = dict(prune_configs_by or {}).get("early_config_prune")
        self.best_config = self.configs[0]

    source = property(lambda self: self.fn.source)

    def bind(self, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return all parameters by name."""
        return self.fn.bind(args, named)

    def _launch(self, args: Sequence[Any], grid: Grid, named: Mapping[str, Any]) -> Any:
        """Launch the kernel with the selected configuration and return what it stores.

        Raises:
            KernelError: no configuration is left or valid, or a meta-parameter is given by the launch as well.
        """
        by_name = dict(zip(self.arg_names, args, strict=False))
        config = self._choose(by_name, named, grid)
        self.best_config = config
        clash = sorted(set(config.kwargs) & (set(named) | set(by_name)))
        if clash:
            raise KernelError(
                f"kernel {self.source.name}: {', '.join(clash)} is given by the launch and by its autotuner"
            )
        full = {**by_name, **named, **config.kwargs}
        changed = {}
        for name in self.reset_to_zero:
            if full.get(name) is not None:
                changed[name] = jnp.zeros_like(full[name])
        hooks = [h for h in (self.pre_hook, config.pre_hook) if h is not None]
        if hooks:
            held = {k: _Held(v) if isinstance(v, jax.Array) else v for k, v in view(full | changed).items()}
            for hook in hooks:
                hook(*([held, False] if len(inspect.signature(hook).parameters) > 1 else [held]))
            for k, v in held.items():
                array = v.array if isinstance(v, _Held) else taken(v)
                if isinstance(array, jax.Array) and array is not full[k]:
                    changed[k] = array
        # One array passed for several parameters stays one buffer.
        same = {id(full[k]): v for k, v in changed.items()}
        given = [same.get(id(v), v) for v in args]
        named = {k: same.get(id(v), v) for k, v in {**named, **config.kwargs}.items()}
        return self.fn.run(*given, grid=grid, **{k: v for k, v in config.options().items() if k not in named}, **named)

    def _choose(self, by_name: dict[str, Any], named: Mapping[str, Any], grid: Grid) -> Config:
        """Return the first configuration that pruning keeps and for which the grid is valid."""
        configs = self.configs
        if self.early_config_prune is not None:
            configs = list(self.early_config_prune(configs, view(by_name), **view(named)))
        if not configs:
            raise KernelError(f"kernel {self.source.name}: prune_configs_by leaves none of its configurations")
        first: Exception | None = None
        for config in configs:
            try:
                if not callable(grid):
                    return config
                grid_of(self.source.name, grid, self.fn.bind((), {**by_name, **named, **config.kwargs}))
            except KernelError as error:
                first = first or error
            else:
                return config
        assert first is not None
        raise first


def autotune(
    configs: Sequence[Config],
    key: Sequence[str] | None = (),
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    **options: object,
) -> Callable[[Any], Autotuner]:
    """Return a decorator that sets configurations of a kernel: the first valid one is used, nothing is timed."""
    return lambda fn: Autotuner(
        fn, fn.arg_names, configs, key, reset_to_zero, restore_value, pre_hook, prune_configs_by=prune_configs_by
    )


def heuristics(values: Mapping[str, Callable[[dict[str, Any]], Any]]) -> Callable[[Any], Heuristics]:
    """Return a decorator that computes meta-parameters from the arguments, by functions given by name."""
    return lambda fn: Heuristics(fn, values)
