"""Source of a kernel: its syntax tree with the file's line numbers, the names outside of it, and what it stores to."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

from fnjax.triton.interpreter.installed import translate

Origins = dict[str, set[str]]  # by name in a function, the parameters that it may point into
ATOMICS = ("add", "max", "min", "and", "or", "xor", "xchg", "cas")
WRITES = (
    "store",
    "store_tensor_descriptor",
    "_experimental_descriptor_store",
    "scatter",
    *(f"atomic_{name}" for name in ATOMICS),
)
READS = (
    "load",
    "load_tensor_descriptor",
    "_experimental_descriptor_load",
    "gather",
    "make_block_ptr",
    "make_tensor_descriptor",
)


class Source:
    """Source of a function, parsed once.

    Raises:
        TypeError: the source is not available, or is not a `def`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = function.__name__
        self.file = inspect.getsourcefile(function)
        try:
            lines, first = inspect.getsourcelines(function)
        except OSError as error:
            raise TypeError(f"the source of kernel {self.name} is not to be found: write it in a file") from error
        tree = ast.parse(textwrap.dedent("".join(lines)))
        ast.increment_lineno(tree, first - 1)
        node = next((node for node in tree.body if isinstance(node, ast.FunctionDef)), None)
        if node is None:
            raise TypeError(f"triton.jit takes a function that is written with `def`, not {self.name}")
        self.node: ast.FunctionDef = node
        self.signature = inspect.signature(function)
        self.parameters = list(self.signature.parameters)
        self.constants = {n for n, p in self.signature.parameters.items() if is_constexpr(p.annotation)}

    def lookup(self, name: str) -> Any:
        """Return the value of a name outside of the function: of a closure, the module, or Python's builtins.

        Raises:
            NameError: it does not exist, or is a local that is not set yet.
        """
        code = self.function.__code__
        if name in code.co_varnames:
            raise NameError(f"{name} is read before it is set")
        if name in code.co_freevars:
            return translate((self.function.__closure__ or ())[code.co_freevars.index(name)].cell_contents)
        return translate(self.function.__globals__[name]) if self.is_global(name) else getattr(builtins, name)

    def is_global(self, name: str) -> bool:
        """Return True for a name of the module or of a closure, and False for one of Python's builtins.

        Raises:
            NameError: it does not exist.
        """
        code = self.function.__code__
        if name in code.co_freevars or name in self.function.__globals__:
            return True
        if not hasattr(builtins, name):
            raise NameError(f"name {name!r} is not defined")
        return False

    @functools.cached_property
    def outside(self) -> dict[str, dict[tuple[str, ...], None]]:
        """The names outside of the function that the body reads, each with the chains of attributes that follow it."""
        code, inner = self.function.__code__, set()
        found: dict[str, dict[tuple[str, ...], None]] = {}
        for node in (node for statement in self.node.body for node in ast.walk(statement)):
            attributes: list[str] = []
            root: ast.AST = node
            while isinstance(root, ast.Attribute):
                attributes.insert(0, root.attr)
                root = root.value
                inner.add(root)
            if isinstance(root, ast.Name) and node not in inner and root.id not in code.co_varnames:
                found.setdefault(root.id, {})[*attributes,] = None
        return found

    @functools.cached_property
    def stored(self) -> list[str]:
        """The parameters that a store or an atomic, in any branch or helper, may write through."""
        return _stored(self)

    @functools.cached_property
    def pointed(self) -> list[str]:
        """The parameters that a load, store or atomic, in any branch or helper, may access memory through."""
        return _stored(self, (*WRITES, *READS))

    @functools.cached_property
    def returned(self) -> set[str]:
        """The parameters that the returned value may point into."""
        values = [n.value for n in ast.walk(self.node) if isinstance(n, ast.Return) and n.value is not None]
        origins = _origins(self)
        return set().union(*(_roots(value, origins, self) for value in values))


def is_constexpr(annotation: object) -> bool:
    """Return True for `tl.constexpr`: the class, its name as a string, or an expression in a kernel."""
    if isinstance(annotation, ast.expr):
        annotation = ast.unparse(annotation)
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return text.split(".")[-1] == "constexpr"


# Functions whose result points into the same array as their first argument.
MOVED = {"make_block_ptr", "make_tensor_descriptor", "advance", "multiple_of", "max_contiguous", "max_constancy"}
MOVED |= {"cast", "broadcast", "broadcast_to", "expand_dims", "permute", "reshape", "trans", "view", "to"}


def _roots(node: ast.expr, origins: Origins, source: Source) -> set[str]:
    """Return the parameters that an expression may point into, by arithmetic, selection, indexing or conversion."""
    if isinstance(node, ast.Name):
        return origins.get(node.id, set())
    if isinstance(node, ast.BinOp):
        if not isinstance(node.op, ast.Add | ast.Sub):
            return set()
        return _roots(node.left, origins, source) or _roots(node.right, origins, source)
    if isinstance(node, ast.IfExp):
        return _roots(node.body, origins, source) | _roots(node.orelse, origins, source)
    if isinstance(node, ast.Subscript | ast.Starred | ast.Attribute):
        return _roots(node.value, origins, source)
    if isinstance(node, ast.Tuple | ast.List):
        return set().union(*(_roots(item, origins, source) for item in node.elts))
    if isinstance(node, ast.Call):
        return _roots_of_call(node, origins, source)
    return set()


def _roots_of_call(node: ast.Call, origins: Origins, source: Source) -> set[str]:
    """Return the parameters that the result of a call may point into."""
    helper, name = _helper(source, node.func), _name(node)
    if helper is None and name == "where":
        given = [*node.args[1:], *(k.value for k in node.keywords if k.arg in ("x", "y"))]
    elif helper is None and name not in MOVED:
        return set()
    else:
        given = _pointers(node, source, lambda helper: helper.returned)
    return set().union(*(_roots(argument, origins, source) for argument in given))


def _pointers(node: ast.Call, source: Source, of_helper: Callable[[Source], Iterable[str]]) -> list[ast.expr]:
    """Return the arguments of a call for the parameters `of_helper` of a helper, else its object or first argument."""
    helper = _helper(source, node.func)
    if helper is source:
        return []
    if helper is not None:
        names = dict(zip(helper.parameters, node.args, strict=False)) | {k.arg: k.value for k in node.keywords}
        return [names[p] for p in of_helper(helper) if p in names]
    if isinstance(node.func, ast.Attribute) and not inspect.ismodule(_callee(source, node.func.value)):
        return [node.func.value]
    return [*node.args[:1], *(k.value for k in node.keywords if k.arg in ("pointer", "desc", "base", "input"))]


def _name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _origins(source: Source) -> Origins:
    """Return for each name in a function the parameters that it may point into: a fixpoint of the assignments."""
    origins = {name: {name} for name in source.parameters}
    assigns = [
        (target, node.value)
        for node in ast.walk(source.node)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    for _ in range(len(assigns) + 1):
        before = {name: set(found) for name, found in origins.items()}
        for target, value in assigns:
            _flow(target, value, origins, source)
        if before == origins:
            break
    return origins


def _stored(source: Source, words: tuple[str, ...] = WRITES) -> list[str]:
    """Return the parameters that calls of the named functions, here or in helpers, may access memory through."""
    origins = _origins(source)
    calls = [node for node in ast.walk(source.node) if isinstance(node, ast.Call)]
    found = set().union(
        *(
            _roots(argument, origins, source)
            for call in calls
            if _name(call) in words or _helper(source, call.func) is not None
            for argument in _pointers(call, source, lambda helper: helper.stored if words is WRITES else helper.pointed)
        )
    )
    return [name for name in source.parameters if name in found]


def _flow(target: ast.expr, value: ast.expr, origins: Origins, source: Source) -> None:
    """Add to `origins` the parameters that an assignment's targets may point into."""
    if isinstance(target, ast.Tuple | ast.List):
        values = value.elts if isinstance(value, ast.Tuple | ast.List) else [value] * len(target.elts)
        for one, given in zip(target.elts, values, strict=False):
            _flow(one, given, origins, source)
    elif isinstance(target, ast.Name):
        origins[target.id] = origins.get(target.id, set()) | _roots(value, origins, source)


def _callee(source: Source, node: ast.expr) -> Any:
    """Return the object that a name or an attribute refers to outside of the function; None if it is not known."""
    try:
        if isinstance(node, ast.Name):
            return source.lookup(node.id)
        if isinstance(node, ast.Attribute):
            return getattr(_callee(source, node.value), node.attr, None)
    except (NameError, ValueError):
        return None
    return None


def _helper(source: Source, node: ast.expr) -> Source | None:
    """Return the source of the kernel or helper that an expression refers to; None for any other function."""
    found = getattr(_callee(source, node), "source", None)
    return found if isinstance(found, Source) else None
