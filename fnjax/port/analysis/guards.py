"""Code that files of Triton kernels have for PyTorch's sake alone: device guards, copies, imports by version."""

from __future__ import annotations

import re

import libcst as cst

from fnjax.port.analysis.expr import list_statements
from fnjax.port.analysis.program import Program
from fnjax.port.source.naming import iter_imported
from fnjax.port.torch import unparse
from fnjax.port.tree.located import list_nodes

# What such functions may call: nothing that computes.
_CALLED = re.compile(
    r"(functools\.)?(wraps|partial)(\(\w+\))?|isinstance|hasattr|getattr|tuple|list|dict|zip|enumerate|any|all|next|len"
    r"|(contextlib\.)?(nullcontext|contextmanager)|torch\.(\w+\.)?(device|device_of|set_device|current_device|is_tensor)"
    r"|[\w.]+\.(contiguous|items|values|keys|append|device|is_available|set_device)|torch\.cuda\.is_available"
)


def is_guard_decorator(program: Program, name: str) -> bool:
    """Return whether a function of the file wraps another, and only copies arguments or holds a device around it."""
    function = _find_function(program, name)
    if function is None or not function.params.params:
        return False
    inner = [s for s in list_statements(function.body) if isinstance(s, cst.FunctionDef)]
    last = list_statements(function.body)[-1]
    small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else None
    if len(inner) != 1 or not isinstance(small, cst.Return) or small.value is None:
        return False
    if unparse(small.value) != inner[0].name.value:
        return False
    wrapped = function.params.params[0].name.value
    calls = _collect_callees(function.body)
    own = {n.name.value for n in list_nodes(function.body, cst.FunctionDef)}
    guards = [c for c in calls if "contiguous" in c or "device" in c or is_guard_context(program, c)]
    rest = (c for c in calls if c != wrapped and c not in own and not is_guard_context(program, c))
    return wrapped in calls and bool(guards) and all(map(_CALLED.fullmatch, rest))


def is_guard_context(program: Program, name: str) -> bool:
    """Return whether a function of the file returns a context that only holds a device."""
    function = _find_function(program, name)
    if function is None:
        return False
    calls = _collect_callees(function.body)
    found = list_nodes(function.body, cst.Yield, cst.Return)
    made = any(unparse(d.decorator).endswith("contextmanager") for d in function.decorators)
    plain = all(isinstance(n, cst.Yield) and n.value is None for n in found)
    given = all(isinstance(n, cst.Return) and isinstance(n.value, cst.Call) for n in found) and not made
    about = any("device" in c for c in calls)
    return bool(found) and about and ((made and plain) or given) and all(map(_CALLED.fullmatch, calls))


def find_amp_decorator(program: Program, name: str) -> str:
    """Return the decorator of torch.amp that a function has given a name: `fwd, bwd = decorators_of(version)`."""
    for statement in program.source.providers.get(name, ()):
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if not isinstance(small, cst.Assign) or not isinstance(small.value, cst.Call):
            continue
        function, target = _find_function(program, unparse(small.value.func)), small.targets[0].target
        if function is None:
            continue
        index = -1
        if isinstance(target, cst.Tuple):
            index = [unparse(e.value) for e in target.elements].index(name)
        given = [n.value for n in list_nodes(function.body, cst.Return) if n.value is not None]
        parts = [v.elements[index].value if index >= 0 and isinstance(v, cst.Tuple) else v for v in given]
        ends = {m for p in parts for m in re.findall(r"\bcustom_(?:fwd|bwd)\b", unparse(p))}
        if len(ends) == 1 and all(re.search(r"\bcustom_(fwd|bwd)\b", unparse(p)) for p in parts):
            return f"torch.amp.{ends.pop()}"
    return ""


def only_imports_triton(statement: cst.CSTNode) -> bool:
    """Return whether an `if` or a `try` does nothing but import names of Triton, from one module of it or another."""
    if not isinstance(statement, (cst.If, cst.Try)):
        return False
    small = [n for n in list_nodes(statement, cst.BaseSmallStatement) if not isinstance(n, cst.Pass)]
    imports = [n for n in small if isinstance(n, (cst.Import, cst.ImportFrom))]
    full = [f for n in imports for _, f in iter_imported(n)]
    return bool(full) and len(small) == len(imports) and all(f.startswith("fnjax.triton") for f in full)


def _find_function(program: Program, name: str) -> cst.FunctionDef | None:
    found = program.source.find_definition(name)
    return found.function if found is not None else None


def _collect_callees(body: cst.CSTNode) -> set[str]:
    return {unparse(n.func) for n in list_nodes(body, cst.Call)}
