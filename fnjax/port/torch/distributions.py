"""Binding the parameters and the arguments of torch.distributions in the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst

from fnjax.port.torch.binding import bind_to_signature
from fnjax.torch._table.distributions import HOME, METHODS, PARAMETERS
from fnjax.torch._table.signature import parse_signature

__all__ = ["HOME", "PARAMETERS", "bind_parameters", "name_arguments"]


def bind_parameters(name: str, args: Sequence[cst.Arg]) -> Mapping[str, cst.BaseExpression] | str:
    """The parameters of a distribution by name, or what is wrong with the call that makes it."""
    found = bind_to_signature(parse_signature(f"{PARAMETERS[name]}, validate_args=None"), args, lambda node: "unknown")
    return found if isinstance(found, str) else {n: v for n, v in found.items() if n != "validate_args"}


def name_arguments(method: str, args: Sequence[cst.Arg]) -> list[cst.Arg]:
    """The arguments of a method by name."""
    own = METHODS.get(method, "").partition("=")[0]
    return [a if a.keyword or a.star or i else a.with_changes(keyword=cst.Name(own)) for i, a in enumerate(args)]
