"""A kernel's source: its syntax tree with the file's own lines, the names around it, and what it stores to."""

import ast
import builtins
import functools
import inspect
import textwrap

WRITES = ("store", "atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor", "atomic_xchg")
WRITES += ("atomic_cas",)


class Source:
    """The text of a function, parsed once."""

    def __init__(self, function):
        self.function = function
        self.name = function.__name__
        self.file = inspect.getsourcefile(function)
        try:
            lines, first = inspect.getsourcelines(function)
        except OSError as error:
            raise TypeError(f"the source of kernel {self.name} is not to be found: write it in a file") from error
        tree = ast.parse(textwrap.dedent("".join(lines)))
        ast.increment_lineno(tree, first - 1)
        self.node = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
        self.signature = inspect.signature(function)
        self.parameters = list(self.signature.parameters)
        self.constants = {p for p in self.signature.parameters.values() if _is_constexpr(p.annotation)}
        self.constants = {p.name for p in self.constants}

    def lookup(self, name):
        """What a name means outside of the function: a closure's, the file's, Python's."""
        code = self.function.__code__
        if name in code.co_freevars:
            return self.function.__closure__[code.co_freevars.index(name)].cell_contents
        found = self.function.__globals__
        if name in found:
            return found[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise NameError(f"name {name!r} is not defined")

    @functools.cached_property
    def stored(self):
        """Parameters that a store or an atomic of any branch, or of a helper, may write through."""
        return _stored(self)

    @functools.cached_property
    def pointed(self):
        """Parameters that some load, store or atomic reads or writes through."""
        return _stored(self, (*WRITES, "load", "make_block_ptr", "make_tensor_descriptor"))


def _is_constexpr(annotation):
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return text.split(".")[-1] == "constexpr"


def _roots(node, origins):
    """The parameters that an expression may point into: pointers are added to, chosen, indexed, converted."""
    if isinstance(node, ast.Name):
        return origins.get(node.id, set())
    if isinstance(node, ast.BinOp):
        return _roots(node.left, origins) or _roots(node.right, origins)
    if isinstance(node, ast.IfExp):
        return _roots(node.body, origins) | _roots(node.orelse, origins)
    if isinstance(node, ast.Subscript | ast.Attribute | ast.Starred):
        return _roots(node.value, origins)
    if isinstance(node, ast.Tuple | ast.List):
        return set().union(*(_roots(item, origins) for item in node.elts))
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("load", "arange", "program_id", "cdiv", "zeros", "full", "dot", "atomic_add"):
            return set()
        given = [*node.args, *(k.value for k in node.keywords if k.arg in (None, "base", "input", "a", "b", "x", "y"))]
        found = set().union(*(_roots(argument, origins) for argument in given))
        if isinstance(node.func, ast.Attribute):
            found |= _roots(node.func.value, origins)
        return found
    return set()


def _stored(source, words=WRITES):
    from fnjax.triton.launch import JITFunction

    origins = {name: {name} for name in source.parameters}
    assigns = [n for n in ast.walk(source.node) if isinstance(n, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.For)]
    for _ in range(len(assigns) + 1):
        before = {name: set(found) for name, found in origins.items()}
        for node in assigns:
            if isinstance(node, ast.For) or node.value is None:
                continue
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                _flow(target, node.value, origins)
        if before == origins:
            break
    found = set()
    for node in ast.walk(source.node):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        called = _callee(source, node.func)
        if isinstance(called, JITFunction) and called.source is not source:
            names = dict(zip(called.source.parameters, node.args, strict=False))
            names |= {k.arg: k.value for k in node.keywords}
            for parameter in (called.source.stored if words is WRITES else called.source.pointed):
                if parameter in names:
                    found |= _roots(names[parameter], origins)
        elif name in words:
            if isinstance(node.func, ast.Attribute) and not _is_module(source, node.func.value):
                found |= _roots(node.func.value, origins)
            elif node.args:
                found |= _roots(node.args[0], origins)
            else:
                found |= set().union(*(_roots(k.value, origins) for k in node.keywords if k.arg in ("pointer", "desc", "base")))
    return [name for name in source.parameters if name in found]


def _flow(target, value, origins):
    if isinstance(target, ast.Tuple | ast.List):
        values = value.elts if isinstance(value, ast.Tuple | ast.List) else [value] * len(target.elts)
        for one, given in zip(target.elts, values, strict=False):
            _flow(one, given, origins)
    elif isinstance(target, ast.Name):
        origins[target.id] = origins.get(target.id, set()) | _roots(value, origins)


def _callee(source, node):
    try:
        if isinstance(node, ast.Name):
            return source.lookup(node.id)
        if isinstance(node, ast.Attribute):
            return getattr(_callee(source, node.value), node.attr, None)
    except (NameError, ValueError):
        return None
    return None


def _is_module(source, node):
    return inspect.ismodule(_callee(source, node))
