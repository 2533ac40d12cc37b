"""The table of torch's operations: names, signatures and JAX expressions; the porter and fnjax.torch read it."""

import fnjax.torch._table.absent
import fnjax.torch._table.attributes
import fnjax.torch._table.creation
import fnjax.torch._table.distributions
import fnjax.torch._table.elementwise
import fnjax.torch._table.fft
import fnjax.torch._table.indexing
import fnjax.torch._table.kinds
import fnjax.torch._table.linear_algebra
import fnjax.torch._table.memory
import fnjax.torch._table.neural
import fnjax.torch._table.random
import fnjax.torch._table.recurrent
import fnjax.torch._table.reductions
import fnjax.torch._table.shapes
import fnjax.torch._table.special  # noqa: F401 - each enters its lines
from fnjax.torch._table.attributes import ARRAYS, PARAMETERS, TENSOR_TYPES
from fnjax.torch._table.record import Absent, Call, Operation, Overload, Refuse
from fnjax.torch._table.registry import TABLE, find_operation, list_dtype_names, qualify_name
from fnjax.torch._table.signature import MISSING

__all__ = [
    "ARRAYS",
    "MISSING",
    "PARAMETERS",
    "TABLE",
    "TENSOR_TYPES",
    "Absent",
    "Call",
    "Operation",
    "Overload",
    "Refuse",
    "find_operation",
    "list_dtype_names",
    "qualify_name",
]
