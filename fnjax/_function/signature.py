"""Parameters of a user's method, and the binding of `apply`'s arguments to those of forward."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from fnjax._primitives.tree import has_leaf, is_tensor
from fnjax.errors import ArgumentError, error


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Parameters of a method, without ctx.

    Attributes:
        names: the positional parameters.
        defaults: the defaults of the last of them.
        variadic: the name of `*args`, if there is one.
        keyword_only: the keyword-only parameters, and whether each must be given.
        keywords: whether there is a `**kwargs`.
        takes_ctx: whether the method gets ctx as its first argument.
        first: the name of its first parameter, ctx or not.
    """

    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    variadic: str | None
    keyword_only: Mapping[str, bool]
    keywords: bool
    takes_ctx: bool
    first: str = "ctx"

    def accepts(self, count: int) -> bool:
        """Return whether the method can be called with `count` positional arguments (besides ctx)."""
        fits = len(self.names) - len(self.defaults) <= count
        return fits and (count <= len(self.names) or self.variadic is not None)

    @functools.cached_property
    def direct(self) -> range:
        """The range of the counts of positional arguments with which forward can be called directly, without `bind`."""
        if any(self.keyword_only.values()):
            return range(0)
        first_default = len(self.names) - len(self.defaults)
        stop = len(self.names) + 1 if self.variadic is None else sys.maxsize
        return range(first_default if self.takes_ctx else len(self.names), stop)

    def name(self, index: int) -> str:
        """Return the name of the argument at `index`, for messages."""
        names = self.names
        return names[index] if index < len(names) else f"{self.variadic or 'captured'}[{index - len(names)}]"

    def bind(self, owner: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Put the arguments in their positions, as PyTorch does: in the ctx style, defaults are not filled in.

        Raises:
            TypeError: for missing, unknown or extra arguments, in the wording of Python and PyTorch.
        """
        positional = list(args)
        if len(positional) > len(self.names) and self.variadic is None:
            n, m = len(self.names) + self.takes_ctx, len(positional) + self.takes_ctx
            raise self._error(
                f"{owner}.forward() takes {n} positional argument{'s' * (n != 1)} but {m} were given",
                owner,
                "too many positional arguments",
            )
        named = {k: kwargs[k] for k in kwargs if k in self.keyword_only or k not in self.names}
        for k, value in named.items():
            if k not in self.keyword_only and not self.keywords:
                raise self._error(f"{owner}.forward() got an unexpected keyword argument '{k}'", owner)
            refuse_torch(value, f"argument '{k}' of {owner}.apply")
            if has_leaf(value, is_tensor):
                raise error(
                    ArgumentError,
                    f"{owner}.forward() got an array for its keyword-only argument '{k}'",
                    "keyword-only",
                    expected="a static value: keyword-only arguments are not differentiated",
                    fix=f"make '{k}' a positional parameter of forward",
                )
        for k in self.names[: len(positional)]:
            if k in kwargs:
                raise self._error(f"{owner}.forward() got multiple values for argument '{k}'", owner)
        last = max((i for i, k in enumerate(self.names) if k in kwargs), default=-1)
        first_default = len(self.names) - len(self.defaults)
        stop = max(last + 1, first_default) if self.takes_ctx else len(self.names)
        missing = []
        for i in range(len(positional), stop):
            if self.names[i] in kwargs:
                positional.append(kwargs[self.names[i]])
            elif i >= first_default:
                positional.append(self.defaults[i - first_default])
            else:
                missing.append(self.names[i])
        missing += [k for k, required in self.keyword_only.items() if required and k not in named]
        if missing:
            kind = "keyword-only" if missing[0] in self.keyword_only else "positional"
            kind += " argument" + "s" * (len(missing) != 1)
            raise self._error(
                f"{owner}.forward() missing {len(missing)} required {kind}: {', '.join(map(repr, missing))}",
                owner,
                "" if self.takes_ctx else f"missing a required argument: '{missing[0]}'",
            )
        return positional, named

    def _error(self, head: str, owner: str, note: str = "") -> ArgumentError:
        """Build the error for missing, unknown or extra arguments of apply, in Python's wording."""
        first_default, first = len(self.names) - len(self.defaults), self.first
        spelled = [n if i < first_default else f"{n}=..." for i, n in enumerate(self.names)]
        spelled += [*([f"*{self.variadic}"] if self.variadic else []), *map("{}=...".format, self.keyword_only)]
        if "self" in (first, *self.names[:1]):
            spelled = [n for n in spelled if n not in {"self", "ctx"}]
            style = (
                "forward is a static method: remove self, as in forward("
                f"{'ctx, ' * self.takes_ctx}...), and decorate it with @staticmethod if it is not"
            )
        elif not self.takes_ctx:
            style = "setup_context is defined, so forward takes no ctx"
        elif first == "ctx":
            style = "forward(ctx, ...) gets ctx from fnjax"
        else:
            style = (
                f"without a setup_context the first parameter of forward, here '{first}', is ctx: write "
                f"forward(ctx, {first}, ...), or add setup_context(ctx, inputs, output)"
            )
        return error(
            ArgumentError,
            head + (f" ({note})" if note else ""),
            "arguments",
            expected=f"{owner}.apply({', '.join(spelled)})",
            fix=f"call {owner}.apply with the parameters of forward; {style}",
        )


def parameters_of(method: Callable[..., Any], *, takes_ctx: bool) -> Parameters:
    """Return the parameters of a class's method (as looked up on the class)."""
    if type(method) is types.FunctionType and not hasattr(method, "__wrapped__"):
        return _read_code(method, takes_ctx)
    try:
        parameters = list(inspect.signature(method).parameters.values())
    except ValueError:  # a builtin without a signature
        return Parameters((), (), "args", {}, True, takes_ctx)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return Parameters(
        names=tuple(p.name for p in positional)[takes_ctx:],
        defaults=tuple(p.default for p in positional[takes_ctx:] if p.default is not p.empty),
        variadic=next((p.name for p in parameters if p.kind == p.VAR_POSITIONAL), None),
        keyword_only={p.name: p.default is p.empty for p in parameters if p.kind == p.KEYWORD_ONLY},
        keywords=any(p.kind == p.VAR_KEYWORD for p in parameters),
        takes_ctx=takes_ctx,
        first=positional[0].name if takes_ctx and positional else "ctx",
    )


def _read_code(function: types.FunctionType, takes_ctx: bool) -> Parameters:
    """Return the parameters of a plain function, read from its code object.

    This takes a fifth of the time that `inspect.signature` takes, so a first call is traced sooner.
    """
    code = function.__code__
    n, m = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[:n]
    first_default = n - len(function.__defaults__ or ())
    return Parameters(
        names=names[takes_ctx:],
        defaults=(function.__defaults__ or ())[max(takes_ctx - first_default, 0) :],
        variadic=code.co_varnames[m] if code.co_flags & inspect.CO_VARARGS else None,
        keyword_only={k: k not in (function.__kwdefaults__ or {}) for k in code.co_varnames[n:m]},
        keywords=bool(code.co_flags & inspect.CO_VARKEYWORDS),
        takes_ctx=takes_ctx,
        first=names[0] if takes_ctx and names else "ctx",
    )


def refuse_torch(value: object, where: str) -> None:
    """Raise for a torch.Tensor, also inside a container: to JAX it would be an opaque object."""
    if has_leaf(value, is_torch_tensor):
        raise error(
            ArgumentError,
            f"{where} is a torch.Tensor" if is_torch_tensor(value) else f"{where} holds a torch.Tensor",
            "torch-tensor",
            expected="a JAX or NumPy array",
            fix="convert it with t.detach().cpu().numpy()",
        )


def is_torch_tensor(value: object) -> bool:
    """Return whether a value is a torch.Tensor of PyTorch itself."""
    return any(t.__name__ == "Tensor" and t.__module__.partition(".")[0] == "torch" for t in type(value).__mro__)
