"""Calls of Python's own functions, of NumPy and math, and of the file's functions.

What: builtins stay, `isinstance(x, torch.Tensor)` asks for jax.Array, `float(t)` and `.item()` of a tensor become the
scalar array; functions of NumPy and math become those of jax.numpy where they are given tensors; the file's own
functions
are ported along, and Function.apply stays.
Before: `isinstance(x, torch.Tensor) and math.sqrt(x.sum().item())`
After: `isinstance(x, jax.Array) and jnp.sqrt(jnp.sum(x))`
Safety: what the file's functions return and which arguments they write to is worked out from their bodies.
Limits: functions of other libraries are findings: they have to be supplied.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax.port.facts import STATIC, TENSOR, UNKNOWN, Place, Value, join_values
from fnjax.port.operations import MISSING, code, fit, literal
from fnjax.port.rules.randomness import fresh_key
from fnjax.port.rules.registry import expression
from fnjax.port.rules.writing import write
from fnjax.port.walk import Stop, Term, Uncompressed, Walk, assign, parse

_TENSOR_TYPES = frozenset(
    {
        "torch.Tensor",
        "torch.nn.Parameter",
        "torch.nn.parameter.Parameter",
        "torch.FloatTensor",
        "torch.autograd.Variable",
    }
)
# Libraries' functions of arrays that jax.numpy has under the same name and with the same meaning.
_ARRAYS = frozenset(
    [
        "abs",
        "exp",
        "log",
        "log2",
        "log10",
        "log1p",
        "expm1",
        "sqrt",
        "sin",
        "cos",
        "tan",
        "arcsin",
        "arccos",
        "arctan",
        "sinh",
        "cosh",
        "tanh",
        "floor",
        "ceil",
        "sign",
        "maximum",
        "minimum",
        "where",
        "sum",
        "mean",
        "prod",
        "max",
        "min",
        "clip",
        "dot",
        "matmul",
        "outer",
        "transpose",
        "reshape",
        "concatenate",
        "stack",
        "zeros_like",
        "ones_like",
        "square",
        "power",
        "einsum",
        "cumsum",
        "argmax",
        "argmin",
        "argsort",
        "sort",
        "any",
        "all",
        "isnan",
        "isinf",
        "isfinite",
        "expand_dims",
        "squeeze",
        "swapaxes",
        "moveaxis",
        "tile",
        "repeat",
        "diag",
        "eye",
        "trace",
        "kron",
        "arctan2",
        "hypot",
        "add",
        "subtract",
        "multiply",
        "divide",
        "negative",
        "absolute",
        "var",
        "std",
        "median",
        "asarray",
        "array",
    ]
)
_MATH = {
    "sqrt": "jnp.sqrt",
    "exp": "jnp.exp",
    "log": "jnp.log",
    "log2": "jnp.log2",
    "log10": "jnp.log10",
    "sin": "jnp.sin",
    "cos": "jnp.cos",
    "tan": "jnp.tan",
    "tanh": "jnp.tanh",
    "floor": "jnp.floor",
    "ceil": "jnp.ceil",
    "pow": "jnp.power",
    "fabs": "jnp.abs",
    "erf": "jax.scipy.special.erf",
    "isnan": "jnp.isnan",
    "isinf": "jnp.isinf",
    "log1p": "jnp.log1p",
}
_STATIC_BUILTINS = frozenset(
    [
        "len",
        "range",
        "isinstance",
        "issubclass",
        "hasattr",
        "callable",
        "repr",
        "str",
        "type",
        "id",
        "print",
        "format",
        "hash",
        "ord",
        "chr",
    ]
)


def values_of(walk: Walk, node: cst.Call) -> list[Value]:
    """The values of the arguments."""
    found = [walk.expr(a.value).value for a in node.args]
    if any(v.mask for v in found):
        raise Uncompressed
    return found


@expression(cst.Call)
def super_call(walk: Walk, node: cst.Call) -> Term | None:
    """`super()` and `super().forward(ctx, x)`."""
    if code(node.func) == "super":
        return Term(node, Value("object", name="super"))
    return None


@expression(cst.Call)
def instance(walk: Walk, node: cst.Call) -> Term | None:
    """`isinstance(x, torch.Tensor)`."""
    if walk.name_of(node.func) != "builtins.isinstance" or len(node.args) != 2:
        return None
    subject, kinds = node.args
    term = walk.expr(subject.value)
    options = [e.value for e in kinds.value.elements] if isinstance(kinds.value, cst.Tuple) else [kinds.value]
    names = [walk.name_of(o) for o in options]
    if not any(n in _TENSOR_TYPES for n in names):
        for option, name in zip(options, names, strict=True):
            if name.startswith("torch."):
                raise Stop(option, "unknown", f"nothing in JAX is an instance of {name}")
        return Term(
            walk.rebuilt(node.with_changes(args=[subject])).with_changes(
                args=[subject.with_changes(value=term.node), kinds]
            )
            if term.node is not subject.value
            else node,
            Value("static", "bool"),
        )
    walk.sink.imports.add("jax")
    made = [parse("jax.Array") if n in _TENSOR_TYPES else o for n, o in zip(names, options, strict=True)]
    kinds_ = (
        made[0]
        if not isinstance(kinds.value, cst.Tuple)
        else kinds.value.with_changes(
            elements=[e.with_changes(value=m) for e, m in zip(kinds.value.elements, made, strict=True)]
        )
    )
    return Term(
        node.with_changes(args=[subject.with_changes(value=term.node), kinds.with_changes(value=kinds_)]),
        Value("static", "bool"),
    )


@expression(cst.Call)
def builtin(walk: Walk, node: cst.Call) -> Term | None:
    """`len(x)`, `range(n)`, `float(t)`, `max(a, b)`."""
    name = walk.name_of(node.func)
    if not name.startswith("builtins."):
        return None
    name = name.removeprefix("builtins.")
    values = values_of(walk, node)
    made = walk.rebuilt(node)
    first = values[0] if values else UNKNOWN
    tensors = [v for v in values if v.traced]
    if name in {"float", "complex"} and first.traced:
        return Term(walk.expr(node.args[0].value).node, replace(first, kind="tensor", rank=0))
    if name in {"int", "bool"} and first.traced:
        return _python_number(walk, node, name, first)
    if (name == "range" and tensors) or (name == "slice" and tensors):
        walk.report(node, "untraced", f"{name}() of a tensor's value is unknown under jit; this runs un-jitted only")
    if name == "len":
        known = len(first.parts) if first.parts is not None else MISSING
        return Term(made, Value("static", "int", literal=known))
    if name in {"max", "min"} and tensors and len(values) > 1:
        walk.sink.imports.add("jnp")
        args = [code(fit(walk.expr(a.value).node, 1)) for a in node.args]
        text = args[0]
        for other in args[1:]:
            text = f"jnp.{name}imum({text}, {other})"
        return Term(
            parse(text),
            Value("tensor", tensors[0].dtype, 0 if all(v.rank == 0 or v.kind == "static" for v in values) else None),
        )
    if name in {"abs", "round", "pow"} and tensors:
        return Term(made, replace(first, place=walk.fresh(node), number=""))
    if name in {"sum", "max", "min"}:
        element = first.element or (first.parts[0] if first.parts else None)
        return Term(
            made,
            replace(element, literal=MISSING, number="", place=walk.fresh(node))
            if element
            else replace(first, literal=MISSING, parts=None, number="")
            if first.is_tensor
            else STATIC
            if all(v.kind == "static" for v in values)
            else UNKNOWN,
        )
    if name in {"tuple", "list", "reversed", "sorted", "set"}:
        keeps = name in {"tuple", "list"}
        return Term(
            made,
            Value(
                "static",
                parts=first.parts if keeps else None,
                element=first.element or (TENSOR if first.is_tensor else None),
                literal=first.literal if name == "tuple" and isinstance(first.literal, tuple) else MISSING,
            ),
        )
    if name == "zip":
        elements = tuple(_element(v) for v in values)
        return Term(made, Value("static", element=Value("static", parts=elements)))
    if name == "enumerate":
        return Term(made, Value("static", element=Value("static", parts=(Value("static", "int"), _element(first)))))
    if name == "range":
        return Term(made, Value("static", element=Value("static", "int")))
    if name == "getattr" and len(node.args) >= 2 and isinstance(literal(node.args[1].value), str):
        from fnjax.port.rules.context import is_ctx

        if is_ctx(walk, node.args[0].value):
            return Term(made, walk.state.variables.get(f"ctx.{literal(node.args[1].value)}", UNKNOWN))
        return Term(made, UNKNOWN)
    if name in _STATIC_BUILTINS:
        return Term(made, STATIC)
    if name in {"int", "float", "bool", "complex"}:
        return Term(made, Value("static", name if name != "bool" else "bool"))
    return Term(made, STATIC if values and all(v.kind == "static" for v in values) else UNKNOWN)


def _element(value: Value) -> Value:
    if value.parts:
        joined = value.parts[0]
        for part in value.parts[1:]:
            joined = join_values(joined, part)
        return joined
    if value.is_tensor:
        return Value("tensor", value.dtype, value.rank - 1 if value.rank else None)
    return value.element or UNKNOWN


def _python_number(walk: Walk, node: cst.Call, name: str, first: Value) -> Term:
    term = walk.expr(node.args[0].value)
    if name == "bool":
        walk.report(node, "untraced", "bool() of a tensor's value is unknown under jit; this runs un-jitted only")
        return Term(walk.rebuilt(node), Value("static", "bool"))
    walk.report(node, "untraced", "int() of a tensor's value is unknown under jit; this runs un-jitted only")
    return Term(node.with_changes(args=[node.args[0].with_changes(value=term.node)]), Value("static", "int"))


@expression(cst.Call)
def item(walk: Walk, node: cst.Call) -> Term | None:
    """`x.max().item()` is the scalar array."""
    if not (isinstance(node.func, cst.Attribute) and node.func.attr.value == "item" and not node.args):
        return None
    if walk.name_of(node.func.value):
        return None
    term = walk.expr(node.func.value)
    if term.value.kind in {"static", "object"}:
        return None
    if term.value.mask:
        raise Uncompressed
    return Term(term.node, replace(term.value, kind="tensor", rank=0, place=walk.fresh(node)))


@expression(cst.Call)
def size_numel(walk: Walk, node: cst.Call) -> Term | None:
    """`x.shape[1:].numel()`."""
    if not (isinstance(node.func, cst.Attribute) and node.func.attr.value == "numel" and not node.args):
        return None
    term = walk.expr(node.func.value)
    element = term.value.element or (term.value.parts or (None,))[0]
    if term.value.kind != "static" or element is None or element.dtype != "int":
        return None
    walk.sink.imports.add("math")
    return Term(parse(f"math.prod({code(term.node)})"), Value("static", "int"))


_CONSTANTS = frozenset({"jnp.ones", "jnp.zeros", "jnp.full", "jnp.arange", "jnp.linspace", "jnp.array"})


@expression(cst.Call)
def tolist(walk: Walk, node: cst.Call) -> Term | None:
    """`a, b = x.tolist()` unpacks scalar arrays."""
    if not (isinstance(node.func, cst.Attribute) and node.func.attr.value == "tolist" and not node.args):
        return None
    term = walk.expr(node.func.value)
    if term.value.kind in {"static", "object"} or walk.name_of(node.func.value):
        return None
    if term.value.mask:
        raise Uncompressed
    made = node.func.value
    constant = isinstance(term.node, cst.Call) and code(term.node.func) in _CONSTANTS
    if constant and isinstance(made, cst.Call) and all(walk.expr(a.value).value.kind == "static" for a in made.args):
        walk.sink.imports.add("np")
        return Term(parse(f"{code(term.node).replace('jnp.', 'np.')}.tolist()"), Value("static", element=STATIC))
    if term.value.rank == 0:
        return Term(term.node, replace(term.value, place=walk.fresh(node)))
    element = Value("tensor", term.value.dtype, 0, place=walk.fresh(node), exact=term.value.exact)
    return Term(parse(f"list({code(term.node)})"), Value("static", element=element))


@expression(cst.Call)
def arrays(walk: Walk, node: cst.Call) -> Term | None:
    """`np.sqrt(x)` and `math.sqrt(x)`; `x.numpy()` and `torch.from_numpy(a)` need no translation."""
    name = walk.name_of(node.func)
    if isinstance(node.func, cst.Attribute) and node.func.attr.value in {"numpy", "__array__"} and not name:
        term = walk.expr(node.func.value)
        if term.value.kind in {"tensor", "unknown"}:
            return Term(term.node, replace(term.value, kind="tensor"))
    if name == "torch.from_numpy":
        term = walk.expr(node.args[0].value)
        return Term(term.node, replace(term.value, kind="tensor"))
    root, _, last = name.rpartition(".")
    if root not in {"numpy", "math", "cmath"}:
        return None
    values = values_of(walk, node)
    containers = [p for v in values for p in (*(v.parts or ()), v.element) if p is not None]
    if not any(v.is_tensor for v in [*values, *containers]):
        unknown = any(v.kind == "unknown" for v in values)
        return Term(
            walk.rebuilt(node),
            UNKNOWN if unknown and root == "numpy" else Value("static", "float" if root == "math" else "unknown"),
        )
    walk.sink.imports.add("jnp")
    if root == "numpy" and last in _ARRAYS:
        made = walk.rebuilt(node)
        return Term(
            made.with_changes(func=parse(f"jnp.{last}")),
            Value("tensor", values[0].dtype, like="", place=walk.fresh(node)),
        )
    if root == "math" and last in _MATH:
        walk.sink.imports.add("jax")
        made = walk.rebuilt(node)
        return Term(made.with_changes(func=parse(_MATH[last])), Value("tensor", "float", 0, place=walk.fresh(node)))
    raise Stop(
        node,
        "numpy",
        f"{name} works on NumPy arrays, which are not to be had under jit: wrap it in jax.pure_callback with the "
        "shape of its result",
    )


@expression(cst.Call)
def of_the_file(walk: Walk, node: cst.Call) -> Term | None:
    """A function or class of the file, Function.apply among them."""
    name = walk.name_of(node.func)
    if name.startswith("function:") or (
        code(node.func).endswith(".apply")
        and isinstance(node.func, cst.Attribute)
        and _is_function(walk, node.func.value)
    ):
        values_of(walk, node)
        return Term(walk.rebuilt(node).with_changes(func=node.func), _applied(walk, node))
    if not name.startswith("file:"):
        return None
    values_of(walk, node)
    made = walk.rebuilt(node).with_changes(func=node.func)
    routine = walk.program.called(name)
    walk.called.add(name)
    if routine is None:
        return Term(made, Value("object") if name.removeprefix("file:") in walk.program.classes else UNKNOWN)
    params = routine.parameters
    bound_first = routine.owner is not None and "classmethod" in [code(d.decorator) for d in routine.node.decorators]
    params = params[1:] if bound_first else params
    taken: dict[str, cst.Arg] = {}
    star = routine.node.params.star_arg
    for i, arg in enumerate(node.args):
        if arg.keyword:
            taken[arg.keyword.value] = arg
        elif arg.star or i >= len(params) or params[i] is star:
            break
        else:
            taken[params[i].name.value] = arg
    for key, arg in taken.items():
        value = walk.expr(arg.value).value
        known = routine.arguments.get(key)
        fact = replace(
            value, place=None, number="", like="", mask="", literal=MISSING if value.literal is not None else None
        )
        routine.arguments[key] = fact if known is None else join_values(known, fact)
    walk.program.reached.add(routine.node)
    if routine.draws:
        walk.sink.imports.add("jax")
        key_node = fresh_key(walk, node)
        made = made.with_changes(
            args=[
                *(a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in made.args),
                cst.Arg(key_node, keyword=cst.Name("key")),
            ]
        )
    result = routine.result or UNKNOWN
    return _returned(walk, node, made, routine, result, taken)


def _returned(
    walk: Walk, node: cst.Call, made: cst.Call, routine: object, result: Value, taken: dict[str, cst.Arg]
) -> Term:
    """The value of a call of the file's function; what it writes to its arguments, and which it returns."""
    writes = routine.writes  # type: ignore[attr-defined]
    value = _relocated(walk, node, result, taken)
    gives = [n for n in routine.gives if n in taken]  # type: ignore[attr-defined]
    if gives and set(gives) == set(writes) & set(taken):
        return _given_back(walk, node, made, routine.gives, taken)  # type: ignore[attr-defined]
    for name in sorted(writes):
        if name not in taken:
            continue
        term = walk.expr(taken[name].value)
        place = term.value.place
        returns_it = (
            result.place is not None and result.place.storage == frozenset({f"arg:{name}"}) and not result.place.steps
        )
        if place is None:
            continue
        from fnjax.port.rules.writing import holding

        seen = [n for n in holding(walk, place) if walk.live(n)]
        if returns_it:
            return write(walk, node, term, made, replace(term.value, number=""))
        if seen or (holding(walk, place) and not isinstance(taken[name].value, cst.Name)):
            raise Stop(
                node,
                "alias",
                f"{code(node.func)} writes to its argument {name!r} without returning it; let it return the new array",
            )
        if result.kind == "static" and result.literal is None:
            walk.note(
                node, "alias", f"{code(node.func)} writes to its argument {name!r}, which nobody reads afterwards"
            )
    return Term(made, value)


def _given_back(walk: Walk, node: cst.Call, made: cst.Call, gives: tuple[str, ...], taken: dict[str, cst.Arg]) -> Term:
    """The call of a function that returns what it wrote to: the caller's variables take it."""
    new: dict[str, cst.BaseExpression] = {gives[0]: made}
    if len(gives) > 1:
        new = {n: cst.Name(f"new_{n}" if n in taken else "_") for n in gives}
        walk.before.append(assign(", ".join(code(n) for n in new.values()), made))
    for name in gives:
        if name in taken:
            term = walk.expr(taken[name].value)
            last = write(walk, node, term, new[name], replace(term.value, number=""))
    return Term(last.node, Value("static", literal=None, place=last.value.place))


def _relocated(walk: Walk, node: cst.Call, value: Value, taken: dict[str, cst.Arg], part: str = "") -> Value:
    """The function's own places as the caller sees them."""
    parts = (
        None
        if value.parts is None
        else tuple(_relocated(walk, node, p, taken, f"{part} {i}") for i, p in enumerate(value.parts))
    )
    place = value.place
    if place is not None:
        storages = {s.removeprefix("arg:") for s in place.storage if s.startswith("arg:")}
        froms = [walk.expr(taken[s].value).value.place for s in sorted(storages) if s in taken]
        known = [p for p in froms if p is not None]
        if len(known) == 1 and len(place.storage) == 1 and place.certain and not place.steps:
            place = known[0]
        elif known:
            place = Place(frozenset().union(*(p.storage for p in known)), (), certain=False)
        else:
            place = walk.fresh(node, part)
    return replace(value, place=place, parts=parts, number="", like="", mask="")


def _is_function(walk: Walk, node: cst.BaseExpression) -> bool:
    name = walk.name_of(node)
    cls = walk.program.classes.get(name.removeprefix("file:"))
    return cls is not None and cls.is_function


def _applied(walk: Walk, node: cst.Call) -> Value:
    assert isinstance(node.func, (cst.Attribute, cst.Name))
    name = walk.name_of(node.func.value) if isinstance(node.func, cst.Attribute) else ""
    cls = walk.program.classes.get(name.removeprefix("file:"))
    forward = walk.program.method(cls, "forward") if cls else None
    result = forward.result if forward and forward.result else TENSOR
    if cls:
        walk.called.add(f"file:{cls.name}")
    return _everywhere_fresh(walk, node, result)


def _everywhere_fresh(walk: Walk, node: cst.Call, value: Value, part: str = "") -> Value:
    parts = (
        None
        if value.parts is None
        else tuple(_everywhere_fresh(walk, node, p, f"{part} {i}") for i, p in enumerate(value.parts))
    )
    return replace(
        value, place=walk.fresh(node, part) if value.place else None, parts=parts, number="", like="", mask=""
    )


@expression(cst.Call)
def lists(walk: Walk, node: cst.Call) -> Term | None:
    """`found.append(x)`."""
    if not (isinstance(node.func, cst.Attribute) and isinstance(node.func.value, cst.Name)):
        return None
    value = walk.state.variables.get(node.func.value.value)
    if value is None or value.kind != "static":
        return None
    attr = node.func.attr.value
    if attr in {"append", "insert", "extend", "add"} and node.args:
        new = values_of(walk, node)[-1]
        new = _element(new) if attr == "extend" else new
        old = value.element or (_element(value) if value.parts else None)
        walk.state.variables[node.func.value.value] = Value(
            "static", element=new if old is None else join_values(old, new)
        )
        return Term(walk.rebuilt(node).with_changes(func=node.func), Value("static", literal=None))
    values_of(walk, node)
    made = walk.rebuilt(node)
    if attr in {"pop", "get", "index"}:
        return Term(made, value.element or UNKNOWN)
    if attr in {"values", "items", "keys"}:
        pair = Value("static", parts=(STATIC, value.element or UNKNOWN))
        return Term(made, Value("static", element={"items": pair, "keys": STATIC}.get(attr, value.element or UNKNOWN)))
    return None
