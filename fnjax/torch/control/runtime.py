"""The runtime: the functions that lowered statements and expressions call."""

from fnjax.torch.control.branches import if_, returned, to_bool
from fnjax.torch.control.builtins import builtin
from fnjax.torch.control.expressions import and_, assume, is_, is_not, known, not_, or_
from fnjax.torch.control.folds import filtered, in_, list_yielded, not_in, select_item, sort
from fnjax.torch.control.iterators import is_traced_iterable, iterate
from fnjax.torch.control.list_entries import get_entry, set_entry, update_entry
from fnjax.torch.control.loops import for_, while_

__all__ = [
    "and_",
    "assume",
    "builtin",
    "filtered",
    "for_",
    "get_entry",
    "if_",
    "in_",
    "is_",
    "is_not",
    "is_traced_iterable",
    "iterate",
    "known",
    "list_yielded",
    "not_",
    "not_in",
    "or_",
    "returned",
    "select_item",
    "set_entry",
    "sort",
    "to_bool",
    "update_entry",
    "while_",
]
