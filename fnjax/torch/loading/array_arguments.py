"""Functions of loaded files that are called with arrays of JAX: they get tensors, and return arrays.

The methods of JAX's arrays mean something else (`x.std()`, `x.repeat(2)`, `x.transpose(0, 1)`), and an array does not
change in place. So each function and lambda of a file begins with a test of the types of its arguments, for which
Python calls builtins only. If they hold an array, the function is called again, as `jax_view` calls it; generators,
coroutines and `__init__` get tensors in the place of their arrays.
"""

from __future__ import annotations

import ast
import functools
import gc
import inspect
import operator
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from fnjax._torch_ops.syntax.jumps import has
from fnjax._torch_ops.syntax.trees import ARRAYS, delay, list_written, load, walk
from fnjax.torch._nn.module.parameter import Parameter
from fnjax.torch.control.lowering.lowering import is_of_triton
from fnjax.torch.control.state.places import is_loaded
from fnjax.torch.errors import NotSupported
from fnjax.torch.interop.arrays import is_value, jax_view, torch_view
from fnjax.torch.memory.tensor import Tensor
from fnjax.triton.host_code import is_launching

_LIBRARIES = {"jax", "jaxlib", "fnjax"}  # a file that imports one of them has arrays of its own
_ARRAYS = (jax.Array, jax.core.Tracer)
_RETURNING_NONE = {"__init__", "__exit__", "__aexit__"}
_SUSPENDING = (ast.Yield, ast.YieldFrom, ast.Await)  # of generators and coroutines
_HEAP_TYPE = 1 << 9  # the flag of types that a program makes, Py_TPFLAGS_HEAPTYPE
_known = {type(None), Tensor, Parameter}  # types whose values hold no arrays
are_known = _known.issuperset
list_types: Callable[[Sequence[Any]], Iterable[type]] = functools.partial(map, type)


def convert_arguments(tree: ast.Module) -> bool:
    """Let the functions of a lowered file convert arrays that they are called with; return whether they do.

    Not those of a file that imports JAX or fnjax, nor those that Triton reads, whose decorators name it.
    """
    imported = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {a.name.partition(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            imported.add((node.module or "").partition(".")[0])
    if imported & _LIBRARIES:
        return False
    _Functions().visit(tree)
    return True


class _Functions(ast.NodeTransformer):
    """Inserter of the tests.

    Attributes:
        bound: the variables of the functions around a node, which may be free in it.
    """

    def __init__(self) -> None:
        self.bound = {"__class__"}

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        if is_of_triton(node):
            return node
        test, again = self._visit_function(node, node.body)
        if test is None or node.name.startswith("__fnjax_"):  # of lowering
            return node
        then: ast.stmt = ast.Return(again)
        if node.name in _RETURNING_NONE or isinstance(node, ast.AsyncFunctionDef) or has(node.body, _SUSPENDING):
            names = _list_names(node.args)
            targets = ast.Tuple([ast.Name(n, ast.Store()) for n in names], ast.Store())
            then = ast.Assign([targets], _call("torch_view", ast.Tuple([*map(load, names)], ast.Load())))
        at = 0 if ast.get_docstring(node, clean=False) is None else 1
        if at < len(node.body):
            node.body.insert(at, _place(ast.If(test, [then], []), node.body[at]))
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - a name of ast

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        test, again = self._visit_function(node, [node.body])
        if test is not None and not has([node.body], _SUSPENDING):
            node.body = ast.copy_location(ast.IfExp(_place(test, node), _place(again, node), node.body), node)
        return node

    def _visit_function(self, node: Any, body: Sequence[ast.AST]) -> tuple[ast.expr | None, ast.expr]:
        """Visit inner functions; return the test, None without parameters, and the call with tensors."""
        names = _list_names(node.args)
        outer = {n for s in walk(body) if isinstance(s, ast.Nonlocal) for n in s.names}
        own = (list_written(body) - outer).union(names)
        read = {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name)} - {"__class__"}
        outer |= {"__class__"} if _reads_class(body) else set()
        free = sorted((read | outer) & self.bound - own)
        before, self.bound = self.bound, self.bound | {n for n in own if not n.startswith("__fnjax_")}
        self.generic_visit(node)
        self.bound = before
        test = None if names and names[0].startswith("__fnjax_") else _test(node.args)
        return test, _call("call_with_tensors", delay(ast.Tuple([*map(load, free)], ast.Load())))


def _reads_class(body: Iterable[ast.AST]) -> bool:
    """Return whether `super` or `__class__` is read in a function, inner functions included, but not inner classes."""
    return any(
        not isinstance(n, ast.ClassDef)
        and (_reads_class(ast.iter_child_nodes(n)) or (isinstance(n, ast.Name) and n.id in {"super", "__class__"}))
        for n in body
    )


def _list_names(args: ast.arguments) -> list[str]:
    """Return the names of parameters."""
    found = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]
    return [a.arg for a in found if a is not None]


def _test(args: ast.arguments) -> ast.expr | None:
    """Return `not are_known(list_types(arguments)) and hold_arrays(*arguments)`; None without arguments."""
    own = [a for a in (*args.posonlyargs, *args.args, *args.kwonlyargs) if a.arg != "ctx"]
    values: list[ast.expr] = [load(a.arg) for a in own]
    if args.vararg is not None:
        values.append(ast.Starred(load(args.vararg.arg), ast.Load()))
    if args.kwarg is not None:
        given = ast.Call(ast.Attribute(load(args.kwarg.arg), "values", ast.Load()), [], [])
        values.append(ast.Starred(given, ast.Load()))
    if not values:
        return None
    kinds = _call("list_types", ast.Tuple(values, ast.Load()))
    return ast.BoolOp(ast.And(), [ast.UnaryOp(ast.Not(), _call("are_known", kinds)), _call("hold_arrays", *values)])


def _call(function: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(load(ARRAYS), function, ast.Load()), [*args], [])


def _place(tree: Any, at: Any) -> Any:
    """Return a tree with the position of the beginning of another one: a debugger sees no other line."""
    found: Iterable[Any] = ast.walk(tree)
    for node in found:
        node.lineno = node.end_lineno = at.lineno
        node.col_offset = node.end_col_offset = at.col_offset
    return tree


def hold_arrays(*values: Any) -> bool:
    """Return whether arguments of the calling function are arrays of JAX, or pytrees of them.

    Where code of a loaded file calls the function, pytrees are not searched. No code of the file runs: an object may
    define what `isinstance` and `getattr` ask it.

    Raises:
        NotSupported: an object of a loaded file, a dataclass or a list of another class holds an array.
    """
    caller = sys._getframe(1).f_back
    is_inner = caller is not None and ARRAYS in caller.f_builtins
    waiting, seen = [*values], set[int]()
    while waiting:
        x = waiting.pop()
        kind = type(x)
        if issubclass(kind, _ARRAYS):
            return not is_launching()
        if kind in _known or id(x) in seen:
            continue
        seen.add(id(x))
        if is_value(x) or jax.tree_util.all_leaves([x]):
            if not kind.__flags__ & _HEAP_TYPE:  # others may have to be deleted
                _known.add(kind)
            elif not is_inner and _holds_tensors(kind):
                _refuse_arrays(x)
        elif not is_inner:
            is_builtin = issubclass(kind, (dict, list, tuple))
            is_part = functools.partial(operator.is_not, x)
            waiting += gc.get_referents(x) if is_builtin else jax.tree.leaves(x, is_leaf=is_part)
    return False


def _holds_tensors(kind: type) -> bool:
    """Return whether objects of a class hold tensors for loaded files: it is of one, a dataclass or a container."""
    if issubclass(kind, (dict, list, tuple)) or any("__dataclass_fields__" in vars(k) for k in kind.__mro__):
        return True
    module = next((vars(k)["__module__"] for k in kind.__mro__ if "__module__" in vars(k)), None)
    return isinstance(module, str) and is_loaded(vars(sys.modules.get(module, types)))


def _refuse_arrays(x: Any) -> None:
    own = object.__getattribute__(x, "__dict__") if type(x).__dictoffset__ else {}
    if any(issubclass(type(value), _ARRAYS) for value in (*own.values(), *gc.get_referents(x))):
        raise NotSupported(
            f"a {type(x).__name__} with arrays of JAX as an argument of a function that takes tensors",
            "give it fnjax.torch.torch_view(array)",
        )


def call_with_tensors(free: Callable[[], Any]) -> Any:
    """Call the function that calls this one with tensors for arrays, as jax_view does.

    If some arguments are tensors already, so are the results.

    Args:
        free: a function with the free variables of that function.
    """
    frame = sys._getframe(1)
    code, given = frame.f_code, inspect.getargvalues(frame)
    cells = dict(zip(free.__code__.co_freevars, free.__closure__ or (), strict=True))
    own = types.FunctionType(code, frame.f_globals, code.co_name, None, tuple(cells[n] for n in code.co_freevars))
    args = [given.locals[n] for n in given.args[: code.co_argcount]] + [*given.locals.get(given.varargs or "", ())]
    named = {n: given.locals[n] for n in given.args[code.co_argcount :]} | given.locals.get(given.keywords or "", {})
    if any(issubclass(type(x), Tensor) for x in jax.tree.leaves((args, named), is_leaf=is_value)):
        args, named = torch_view((args, named))
        return own(*args, **named)
    return jax_view(own)(*args, **named)
