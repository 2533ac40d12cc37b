"""Control flow where it runs: the calls that lowering puts in place of statements and expressions."""

from fnjax.torch.control.branches import UNDEFINED, conditional, get, guard, if_, returned
from fnjax.torch.control.expressions import and_, assert_, builtin, not_, or_
from fnjax.torch.control.list_entries import get_entry, set_entry
from fnjax.torch.control.loops import for_, while_

__all__ = [
    "UNDEFINED",
    "and_",
    "assert_",
    "builtin",
    "conditional",
    "for_",
    "get",
    "get_entry",
    "guard",
    "if_",
    "not_",
    "or_",
    "returned",
    "set_entry",
    "while_",
]
