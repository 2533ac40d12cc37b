"""Translation of calls of torch's operations, which are in the table of `_torch_ops`, into JAX expressions.

How the porter's engine uses it:

    >>> import libcst as cst
    >>> call = cst.parse_expression("x.sum(1, keepdim=True)")
    >>> operation = find_operation("torch.Tensor.sum")  # or Absent (JAX cannot), or None (not torch's)
    >>> bound = bind_call(operation, [cst.Arg(call.func.value), *call.args])  # Bound, or Problem(message)
    >>> bound.overload.result, bound.overload.alias, bound.overload.random, bound.overload.traced
    ('same', 'new', False, True)
    >>> rendered = bound.render()                      # Rendered, or Problem(message)
    >>> unparse(rendered.expression), sorted(rendered.needs), sorted(rendered.imports)
    ('jnp.sum(x, axis=1, keepdims=True)', [], ['jnp'])

- The arguments are the original nodes, the tensor itself first for methods and attributes. `bind_call`
  takes a Context (context.py): a subclass of it says what the analysis knows of a node (`know`), what JAX expression takes its place (`rewrite`), and a fresh random key (`make_key`).
  `context.rewrite` is called in `render`, once for each argument that stands in the result.
- Attributes and constants are operations with `called` False: `torch.Tensor.shape` binds the tensor, `torch.float32`
  nothing. Attributes of dtypes are `torch.dtype.is_floating_point` and so on, those of torch.finfo stay as they are.
- In-place methods: `operation.inplace` is the operation after `add_`, and binding either renders the new value;
  `bound.overwrites` says that the first argument takes it (also for `F.relu(x, inplace=True)`), `bound.out` is the
  node of `out=`, or None. `operation.alias` is `new`, `view`, `repeat`, `maybe` or `self`.
- Tuples (`result == "pair"`) render as an expression whose value is a plain tuple in the order of `overload.fields`, so
  `.indices` is `[1]`; where `overload.parts` has the field, `render(part="indices")` is the code for that part alone.
- `render(least)`: parentheses as the place demands; the default suits every place, `render(0)` that of a whole
  statement's value or an argument. `bracket(node, least)` serves the rules' own rewrites.
- `rendered.needs` are support functions: `support(needs)` is the source of those and of what they call;
  `rendered.imports` holds those of jax, jnp, np and math that the expression names.
- A Problem is a finding. An overload with `traced` False is right outside jit only.
"""

from fnjax._torch_ops import (
    ARRAYS,
    MISSING,
    PARAMETERS,
    TABLE,
    TENSOR_TYPES,
    Absent,
    Operation,
    Overload,
    find_operation,
    list_dtype_names,
)
from fnjax.port.torch.binding import Bound, Problem, Rendered, bind_call
from fnjax.port.torch.context import Context
from fnjax.port.torch.expressions import bracket, fill, make_list, make_tuple, read_literal, unparse
from fnjax.port.torch.support_text import support

__all__ = [
    "ARRAYS",
    "MISSING",
    "PARAMETERS",
    "TABLE",
    "TENSOR_TYPES",
    "Absent",
    "Bound",
    "Context",
    "Operation",
    "Overload",
    "Problem",
    "Rendered",
    "bind_call",
    "bracket",
    "fill",
    "find_operation",
    "list_dtype_names",
    "make_list",
    "make_tuple",
    "read_literal",
    "support",
    "unparse",
]
