"""The table of torch's operations: names, signatures and JAX expressions; the porter and fnjax.torch read it."""

import fnjax._torch_ops.table.absent
import fnjax._torch_ops.table.attributes
import fnjax._torch_ops.table.creation
import fnjax._torch_ops.table.distributions
import fnjax._torch_ops.table.elementwise
import fnjax._torch_ops.table.fft
import fnjax._torch_ops.table.indexing
import fnjax._torch_ops.table.kinds
import fnjax._torch_ops.table.linear_algebra
import fnjax._torch_ops.table.memory
import fnjax._torch_ops.table.neural
import fnjax._torch_ops.table.random
import fnjax._torch_ops.table.recurrent
import fnjax._torch_ops.table.reductions
import fnjax._torch_ops.table.shapes
import fnjax._torch_ops.table.special  # noqa: F401 - each registers its lines
from fnjax._torch_ops.record import Absent, Call, Operation, Overload, Refuse
from fnjax._torch_ops.registry import TABLE, find_operation, list_dtype_names, qualify_name
from fnjax._torch_ops.signature import MISSING
from fnjax._torch_ops.table.attributes import ARRAYS, PARAMETERS, TENSOR_TYPES

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
