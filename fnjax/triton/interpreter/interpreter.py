"""Interpreter of a kernel's syntax tree: an `if` on values becomes a mask, and an early return ends lanes."""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fnjax.errors import FnjaxError
from fnjax.triton.interpreter.globals import read_attribute, read_name
from fnjax.triton.interpreter.messages import argument_error, name_kind, operand_error
from fnjax.triton.interpreter.source import Source, is_constexpr
from fnjax.triton.values import types
from fnjax.triton.values.arithmetic import as_mask, as_tensor, cast, logical_and, logical_not, logical_or, where
from fnjax.triton.values.exceptions import EndsProgram, KernelError, NeedsGridSplit, NeedsSequence, NotVectorizable
from fnjax.triton.values.pointers import AnyPointer, select
from fnjax.triton.values.state import State, current
from fnjax.triton.values.tensor import Tensor

BINARY = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.MatMult: operator.matmul,
}  # fmt: skip
COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
UNARY: dict[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert}
RETURN = "what is returned"
LOOPS: dict[type, Callable[[Frame, Any], None]] = {}  # by statement, the function that interprets it; `loops` fills it
BUILTINS: dict[object, Callable[..., Any]] = {}  # by Python function, what kernels call instead; `language` fills it


class Undefined:
    """Placeholder for a name that only one branch of an if sets; reading it is an error."""

    def __init__(self, name: str) -> None:
        self.name = name


class Frame:
    """One call of a kernel or helper.

    Attributes:
        source: the function.
        names: the values of its variables.
        state: that of the launch.
        line: the line that is being interpreted.
        result: the value returned by lanes that have returned; `Undefined` before the first return.
        returned: the mask of these lanes; None if there are none.
    """

    def __init__(self, source: Source, names: dict[str, Any], state: State) -> None:
        self.source, self.names, self.state, self.line = source, names, state, source.node.lineno
        self.result: Any = Undefined
        self.returned: Tensor | None = None

    def get(self, name: str) -> Any:
        """Return the value of a name, local or outside; NameError where it is set in one branch only, or unknown."""
        if name in self.names:
            found = self.names[name]
            if isinstance(found, Undefined):
                raise NameError(f"{name} is set in one branch only and read after it")
            return found
        return plain(read_name(self.source, name))


def plain(value: object) -> Any:
    """Return the value that a constexpr wraps; other values as they are."""
    return value.value if isinstance(value, types.constexpr) else value


def to_tensors(value: object) -> Any:
    """Return an assigned or returned value with numbers, also in tuples, as tensors (as code_generator.py 3.5)."""
    value = plain(value)
    if types.is_number(value):
        return as_tensor(value)
    if isinstance(value, tuple | list):
        items = map(to_tensors, value)
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def to_number(value: object) -> Any:
    """Return the Python number of a known scalar, as the annotation tl.constexpr demands; other values as they are."""
    value = plain(value)
    if isinstance(value, Tensor) and (found := value.uniform()) is not None:
        return found
    return value


def call(source: Source, names: dict[str, Any]) -> Any:
    """Interpret a function and return its result.

    Args:
        source: the function.
        names: the values of its parameters.

    Raises:
        KernelError: any error in the body, with the kernel's name and line.
    """
    state = current()
    frame = Frame(source, dict(names), state)
    state.frames.append(frame)
    try:
        with state.masked(state.active):
            interpret(frame, source.node.body)
    except (NeedsSequence, NeedsGridSplit, NotVectorizable, EndsProgram, KernelError):
        raise
    except Exception as error:
        if isinstance(error, FnjaxError):
            raise
        where_ = f"{source.name}, line {frame.line} of {source.file}"
        raise KernelError(f"kernel {where_}: {type(error).__name__}: {error}{_given(frame, error)}") from error
    finally:
        state.frames.pop()
    return None if frame.result is Undefined else frame.result


def _given(frame: Frame, error: Exception) -> str:
    """Return text for a message: the parameters in the line that failed, where their values may be the cause."""
    nodes = ast.walk(frame.source.node)
    named = {n.id for n in nodes if isinstance(n, ast.Name) and n.lineno == frame.line}
    found = []
    for parameter in frame.source.parameters:
        value = frame.names.get(parameter)
        if parameter not in named:
            continue
        if not isinstance(value, Tensor | AnyPointer):
            found.append(f"{parameter} is {repr(value)[:60]}")
        elif isinstance(error, TypeError):
            what = f"a number ({value.dtype})" if isinstance(value, Tensor) else f"an array of {value.element}"
            found.append(f"{parameter} is {what}")
    return f" ({', '.join(found)})" if found else ""


def interpret(frame: Frame, statements: Sequence[ast.stmt]) -> bool:
    """Interpret statements; return True if no lane continues after them."""
    for statement in statements:
        frame.line = statement.lineno
        if _statement(frame, statement):
            return True
    return False


def _statement(frame: Frame, node: ast.stmt) -> bool:
    """Interpret one statement; return True if no lane continues after it."""
    kind = type(node)
    if isinstance(node, ast.Expr):
        if not isinstance(node.value, ast.Constant):
            evaluate(frame, node.value)
    elif isinstance(node, ast.Assign):
        value = to_tensors(evaluate(frame, node.value))
        for target in node.targets:
            bind(frame, target, value)
    elif isinstance(node, ast.AnnAssign):
        if node.value is not None:
            value = evaluate(frame, node.value)
            bind(frame, node.target, to_number(value) if is_constexpr(node.annotation) else to_tensors(value))
    elif isinstance(node, ast.AugAssign):
        old = evaluate(frame, node.target)
        bind(frame, node.target, to_tensors(binary(node.op, old, evaluate(frame, node.value))))
    elif isinstance(node, ast.If):
        return _if(frame, node)
    elif kind in LOOPS:
        execution = frame.state.execution
        (LOOPS[kind] if execution is None else execution.loop)(frame, node)
    elif isinstance(node, ast.Return):
        _return(frame, None if node.value is None else to_tensors(evaluate(frame, node.value)))
        return True
    elif isinstance(node, ast.Assert):
        test = evaluate(frame, node.test)
        if not isinstance(test, Tensor) and not test:
            raise AssertionError(ast.unparse(node.test))
    elif kind not in (ast.Pass, ast.Import, ast.ImportFrom, ast.Global):
        raise SyntaxError(f"{kind.__name__.lower()} is not for kernels")
    return False


def _return(frame: Frame, value: Any) -> None:
    """End all active lanes with a result."""
    active: Tensor | None = frame.state.active
    alive = as_tensor(True) if active is None else active
    if frame.result is Undefined:
        frame.result = value
    elif value is not None or frame.result is not None:
        frame.result = _select(alive, RETURN, value, frame.result)
    frame.returned = alive if frame.returned is None else logical_or(frame.returned, alive)


def bind(frame: Frame, target: ast.expr, value: Any) -> None:
    """Assign a value to a name, or the items of a sequence to a tuple of names; an error where they do not fit."""
    if isinstance(target, ast.Name):
        frame.names[target.id] = plain(value)
    elif isinstance(target, ast.Tuple | ast.List):
        values = tuple(value)
        if len(values) != len(target.elts):
            raise ValueError(f"{len(values)} values for {len(target.elts)} names")
        for one, given in zip(target.elts, values, strict=True):
            bind(frame, one, given)
    else:
        raise SyntaxError("kernels assign to names only")


def known_condition(test: object) -> bool | None:
    """Return a condition as True or False if it is known and the same for all programs; else None."""
    if not isinstance(test, Tensor):
        return bool(test)
    found = test.uniform()
    return None if found is None else bool(found)


def _if(frame: Frame, node: ast.If) -> bool:
    """Interpret both branches of an if under their masks, or one if the condition is known; as `_statement`."""
    test = evaluate(frame, node.test)
    found = known_condition(test)
    if found is not None:
        return interpret(frame, node.body if found else node.orelse)
    state, test = frame.state, as_mask(test)
    if test.shape != () and not state.elementwise:
        raise TypeError("an if decides for a whole program: its condition must be a single bool, not a block")
    alive, returned = state.active, frame.returned
    before = dict(frame.names)
    sides = []
    for mask, statements in ((test, node.body), (logical_not(test), node.orelse)):
        frame.names = dict(before)
        with state.masked(mask if alive is None else logical_and(alive, mask)):
            ended = interpret(frame, statements)
        sides.append((frame.names, ended))
    (yes, yes_ended), (no, no_ended) = sides
    if frame.returned is not None and frame.returned is not returned:
        going = logical_not(frame.returned)  # the following statements run for lanes that have not returned
        state.active = going if alive is None else logical_and(alive, going)
    if yes_ended or no_ended:
        frame.names = no if yes_ended else yes
        return yes_ended and no_ended
    frame.names = merge(test, yes, no)
    return False


def merge(test: Tensor, yes: dict[str, Any], no: dict[str, Any]) -> dict[str, Any]:
    """Return the names after an if, each selected from its values at the end of both branches."""
    out = {}
    for name in {**yes, **no}:
        a, b = yes.get(name, Undefined(name)), no.get(name, Undefined(name))
        out[name] = a if a is b else _select(test, name, a, b)
    return out


def _select(test: Tensor, name: str, a: Any, b: Any) -> Any:
    """Return `a` where the mask `test` holds, else `b`, for any kind of value; TypeError where their kinds differ."""
    if isinstance(a, Undefined) or isinstance(b, Undefined):
        return Undefined(name)
    if a is b or (type(a) is type(b) and isinstance(a, bool | int | float | str | types.dtype) and a == b):
        return a
    if _same_number(a, b):
        return a
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return tuple(_select(test, name, x, y) for x, y in zip(a, b, strict=True))
    if hasattr(a, "select") and type(a) is type(b):
        return a.select(b, functools.partial(_select, test, name))
    if isinstance(a, AnyPointer) and isinstance(b, AnyPointer):
        return select(test, a, b)
    if not all(isinstance(x, Tensor | bool | int | float | np.number) for x in (a, b)):
        raise TypeError(f"{name} is a {name_kind(a)} in one branch, a {name_kind(b)} in the other")
    a, b = as_tensor(a), as_tensor(b)
    kind = a.dtype if a.dtype == b.dtype else types.promote(a.dtype, b.dtype)
    return where(test, cast(a, kind), cast(b, kind))


def _same_number(a: object, b: object) -> bool:
    """Return True for two known scalars of one type and value."""
    if type(a) is not Tensor or type(b) is not Tensor or a.dtype != b.dtype:
        return False
    found = a.uniform()
    return found is not None and found == b.uniform()


def evaluate(frame: Frame, node: ast.expr) -> Any:
    """Return the value of an expression; SyntaxError for those that kernels do not have."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return frame.get(node.id)
    if isinstance(node, ast.Attribute):
        return attribute(frame, node)
    if isinstance(node, ast.BinOp):
        return binary(node.op, evaluate(frame, node.left), evaluate(frame, node.right))
    if isinstance(node, ast.UnaryOp):
        value = evaluate(frame, node.operand)
        if isinstance(node.op, ast.Not):
            return logical_not(value) if isinstance(value, Tensor) else not value
        try:
            return UNARY[type(node.op)](value)
        except TypeError as error:
            raise operand_error(node.op, value, value, error) from error
    if isinstance(node, ast.Compare):
        return _comparison(frame, node)
    if isinstance(node, ast.BoolOp):
        return _logic(frame, node)
    if isinstance(node, ast.IfExp):
        return _ternary(frame, node)
    if isinstance(node, ast.Call):
        return _call(frame, node)
    if isinstance(node, ast.Subscript):
        return plain(evaluate(frame, node.value)[evaluate(frame, node.slice)])
    if isinstance(node, ast.Slice):
        return slice(*(None if part is None else evaluate(frame, part) for part in (node.lower, node.upper, node.step)))
    if isinstance(node, ast.Tuple | ast.List):
        items: list[Any] = []
        for item in node.elts:
            if isinstance(item, ast.Starred):
                items += evaluate(frame, item.value)
            else:
                items.append(evaluate(frame, item))
        return tuple(items) if isinstance(node, ast.Tuple) else items
    if isinstance(node, ast.Dict) and len(keys := [key for key in node.keys if key is not None]) == len(node.keys):
        return {evaluate(frame, k): evaluate(frame, v) for k, v in zip(keys, node.values, strict=True)}
    if isinstance(node, ast.JoinedStr):
        return ast.unparse(node)
    if isinstance(node, ast.ListComp | ast.GeneratorExp) and len(node.generators) == 1:
        return _comprehension(frame, node)
    raise SyntaxError(f"{type(node).__name__} is not for kernels: {ast.unparse(node)}")


def _comprehension(frame: Frame, node: ast.ListComp | ast.GeneratorExp) -> list[Any]:
    """Return the list that a list comprehension or generator over constexprs makes."""
    before, out = dict(frame.names), []
    for item in evaluate(frame, node.generators[0].iter):
        bind(frame, node.generators[0].target, item)
        if all(evaluate(frame, test) for test in node.generators[0].ifs):
            out.append(evaluate(frame, node.elt))
    frame.names = before
    return out


def binary(op: ast.operator, a: Any, b: Any) -> Any:
    """Return the result of a binary operator; a TypeError says which operand does not fit, and why."""
    try:
        return BINARY[type(op)](a, b)
    except TypeError as error:
        raise operand_error(op, a, b, error) from error


def attribute(frame: Frame, node: ast.Attribute) -> Any:
    """Return an attribute (AttributeError: there is none); `.value` of a plain value, once a constexpr, is itself."""
    owner = evaluate(frame, node.value)
    if node.attr == "value" and not hasattr(owner, "value"):
        return owner
    if not hasattr(owner, node.attr):
        what = getattr(owner, "__name__", None) or name_kind(owner)
        similar = difflib.get_close_matches(node.attr, dir(owner), 1)
        hint = f": did you mean {ast.unparse(node.value)}.{similar[0]}?" if similar else ""
        raise AttributeError(f"{what} has no {node.attr} in fnjax.triton ({ast.unparse(node)}){hint}")
    return plain(read_attribute(owner, node.attr))


def _comparison(frame: Frame, node: ast.Compare) -> Any:
    """Return the value of a chain of comparisons."""
    found: Any = None
    left = evaluate(frame, node.left)
    for op, operand in zip(node.ops, node.comparators, strict=True):
        right = evaluate(frame, operand)
        try:
            result = COMPARE[type(op)](left, right)
        except TypeError as error:
            raise operand_error(op, left, right, error) from error
        found = result if found is None else _and(found, result)
        left = right
    return found


def _and(a: Any, b: Any) -> Any:
    return logical_and(a, b) if isinstance(a, Tensor) or isinstance(b, Tensor) else a and b


def _logic(frame: Frame, node: ast.BoolOp) -> Any:
    """Return the value of `and` or `or`: constexprs short-circuit as in Python, tensors are combined to one mask."""
    is_and, values, value = isinstance(node.op, ast.And), [], None
    for part in node.values:
        value = evaluate(frame, part)
        if isinstance(value, Tensor):
            values.append(value)
        elif bool(value) != is_and:
            return value
    return functools.reduce(logical_and if is_and else logical_or, values) if values else value


def _ternary(frame: Frame, node: ast.IfExp) -> Any:
    """Return the value of `a if test else b`, with both sides evaluated under their masks if needed."""
    test = evaluate(frame, node.test)
    found = known_condition(test)
    if found is not None:
        return evaluate(frame, node.body if found else node.orelse)
    state, test = frame.state, as_mask(test)
    values = []
    for mask, side in ((test, node.body), (logical_not(test), node.orelse)):
        with state.masked(mask if state.active is None else logical_and(state.active, mask)):
            values.append(evaluate(frame, side))
    return _select(test, "the value of a ternary", *values)


def _call(frame: Frame, node: ast.Call) -> Any:
    """Return the result of a call; Python builtins are replaced by those of `BUILTINS`."""
    function = evaluate(frame, node.func)
    args: list[Any] = []
    for argument in node.args:
        if isinstance(argument, ast.Starred):
            args += evaluate(frame, argument.value)
        else:
            args.append(evaluate(frame, argument))
    named: dict[Any, Any] = {}
    for keyword in node.keywords:
        value = evaluate(frame, keyword.value)
        named |= value if keyword.arg is None else {keyword.arg: value}
    with contextlib.suppress(TypeError):  # an unhashable object is not a builtin
        function = BUILTINS.get(function, function)
    if not callable(function):
        raise TypeError(f"{ast.unparse(node.func)} cannot be called in a kernel")
    frame.line = node.lineno
    execution = frame.state.execution
    try:
        result = plain(function(*args, **named))
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        raise argument_error(node, function, [*args, *named.values()], error) from error
    return result if execution is None else execution.to_numpy(result)
