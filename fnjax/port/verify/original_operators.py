"""Custom operators of the original, in PyTorch or in fnjax.torch."""

from __future__ import annotations

from pathlib import Path

from fnjax.port.compare.reference import PYTORCH, make_reference
from fnjax.port.verify.operators import Operator, make_operator


def make_original_operator(against: str, path: Path, text: str, name: str) -> Operator:
    """Return an operator in PyTorch or fnjax.torch, defined and registered by its file.

    Raises:
        Exception: the file cannot be executed, or does not define it.
    """
    if against == PYTORCH:
        from fnjax.port.verify.pytorch_operators import make_pytorch_operator

        return make_pytorch_operator(path, text, name)
    reference = make_reference(against)
    reference.load(str(path))
    namespace, _, last = name.partition("::")
    found = getattr(getattr(reference.torch.ops, namespace), last)
    read = found.on_arrays._schema_read
    written = [i for i, p in enumerate(read.parameters) if p.mutated]
    apply = reference.add_written(found, written) if written else found
    differentiable = not written and found.on_arrays.is_differentiable
    parameters = [(p.name, str(p.type)) for p in read.parameters]
    return make_operator(path, text, name, apply, parameters, None if differentiable else ())
