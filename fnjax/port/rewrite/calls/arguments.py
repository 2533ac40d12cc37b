"""The arguments of a call of torch, before they are bound to its signature.

What: `*` and `**` of what was written out become the arguments that they are short for; types of tensors that are
given as arguments name a dtype.
Before: `options = dict(dim=1, keepdim=True); y = x.sum(**options).type(torch.FloatTensor)`
After: `y = jnp.sum(x, axis=options["dim"], keepdims=options["keepdim"]).astype(jnp.float32)`
Safety: a dictionary is taken for its items as long as nothing has changed it.
Limits: `**options` of unknown keys is a finding.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop, parse
from fnjax.port.analysis.expressions import Operands
from fnjax.port.known.facts import DTYPE, Value
from fnjax.port.source.canonical_names import find_canonical_name
from fnjax.port.torch import TENSOR_TYPES, Operation, bracket, read_literal, unparse
from fnjax.port.torch.context import find_dtype_class


def open_options(ev: Evaluator, arg: cst.Arg) -> list[cst.Arg]:
    """Translate `**options` as the arguments in a dictionary that is written out."""
    if arg.star != "**":
        return [arg]
    own = ev.routine.node.params.star_kwarg
    if own is not None and unparse(arg.value) == own.name.value and ev.routine.role == "forward":
        return []  # apply takes no keywords
    entries = ev.port(arg.value).value.entries
    if not entries:
        raise Stop(arg, "operation", f"{unparse(arg)}: its keys are not known; write the arguments out")
    if isinstance(arg.value, cst.Dict):
        values = [e.value for e in arg.value.elements]
    else:
        values = [_make_entry(arg.value, cst.SimpleString(f'"{key}"')) for key, _ in entries]
    return [cst.Arg(v, keyword=cst.Name(key)) for v, (key, _) in zip(values, entries, strict=True)]


def open_star(ev: Evaluator, arg: cst.Arg, one: bool = False) -> list[cst.Arg]:
    """Translate `*options` as the arguments in a sequence of known length, or of length 1 (`one`)."""
    if arg.star != "*":
        return [arg]
    if isinstance(arg.value, (cst.Tuple, cst.List)):
        return [cst.Arg(e.value, star="*" if isinstance(e, cst.StarredElement) else "") for e in arg.value.elements]
    parts = ev.port(arg.value).value.parts
    number = len(parts or ()) or one
    if not number or not isinstance(arg.value, (cst.Name, cst.Attribute)):
        return [arg]
    return [cst.Arg(_make_entry(arg.value, cst.Integer(str(i)))) for i in range(number)]


def _make_entry(of: cst.BaseExpression, index: cst.BaseExpression) -> cst.Subscript:
    return cst.Subscript(bracket(of), [cst.SubscriptElement(cst.Index(index))])


def read_tensor_type_as_dtype(ev: Evaluator, arg: cst.Arg, known: Operands) -> cst.Arg:
    """Translate `torch.FloatTensor` and `"torch.cuda.FloatTensor"`, as arguments of `x.type`, as dtypes."""
    said = read_literal(arg.value)
    name = find_canonical_name(said) if isinstance(said, str) else ev.find_name(arg.value)
    return arg.with_changes(value=_make_dtype(TENSOR_TYPES[name], known)) if name in TENSOR_TYPES else arg


def _make_dtype(text: str, known: Operands) -> cst.BaseExpression:
    """Return an expression for a dtype, and add its value to `known`."""
    made, exact = parse(text), text.removeprefix("jnp.")
    value = Value("static", find_dtype_class(exact), name=DTYPE, exact=exact if exact not in {"int", "bool"} else "")
    known[id(made)] = (made, Expr(made, value))
    return made


def widen_sum(ev: Evaluator, operation: Operation, args: list[cst.Arg], known: Operands) -> list[cst.Arg]:
    """Return an argument `dtype=int` for a sum of small integers, which PyTorch returns as int64; else nothing."""
    if not operation.first.large or operation.inplace or not args:
        return []
    given = any(a.keyword and a.keyword.value == "dtype" for a in args)
    if given or ev.port(args[0].value).value.exact not in {"int8", "uint8", "int16", "uint16"}:
        return []
    return [cst.Arg(_make_dtype("int", known), keyword=cst.Name("dtype"))]
