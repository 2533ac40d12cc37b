"""Columns of single operations that rules of the porter read."""

import fnjax._torch_ops.table.attributes
import fnjax._torch_ops.table.creation
import fnjax._torch_ops.table.elementwise
import fnjax._torch_ops.table.indexing
import fnjax._torch_ops.table.reductions
import fnjax._torch_ops.table.shapes  # noqa: F401 - each registers its lines
from fnjax._torch_ops.registry import mark_column

mark_column("steps", ".floor .ceil .trunc .frac .long .int .short .char .byte")
mark_column("blank", "torch.empty torch.empty_like .new_empty torch.zeros torch.zeros_like .new_zeros")
