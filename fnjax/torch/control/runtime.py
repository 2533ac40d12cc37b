"""The runtime: the functions that lowered statements and expressions call."""
# ruff: noqa: F401 - they are called by name

from fnjax.torch.control.branches import if_, returned, to_bool
from fnjax.torch.control.builtins import builtin
from fnjax.torch.control.expressions import and_, assume, is_, is_not, known, not_, or_
from fnjax.torch.control.folds import collect, filtered, in_, list_yielded, not_in, select_item, sort
from fnjax.torch.control.iterators import is_traced_iterable, iterate
from fnjax.torch.control.list_entries import get_entry, set_entry, update_entry
from fnjax.torch.control.loops import for_, while_
