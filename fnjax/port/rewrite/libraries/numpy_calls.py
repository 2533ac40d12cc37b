"""NumPy and SciPy inside.

What: arrays that `x.numpy()` gives are JAX arrays with NumPy's methods: they stay as they are. Functions that
jax.numpy or jax.scipy has with the same meaning take their place; functions of SciPy that JAX has not run on the host,
in jax.pure_callback, where the shape of their result is known. Draws of np.random take a key (see below).
Before: `y = torch.from_numpy(np.log1p(a) * special.kv(1, a))` with `a = x.detach().cpu().numpy()`
After: `y = jnp.log1p(a) * _on_host_entrywise(lambda a: special.kv(1, a), a)`
Safety: which functions have the same meaning is a table; calls without tensors stay NumPy's, as constants.
Limits: all other functions of arrays are findings, as are methods that write in place (`a.sort()`) and `out=`. What
runs on the host cannot be differentiated by JAX, so that such a backward has no second derivative.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.registry import call_of, expression
from fnjax.port.analysis.walk import Stop, Term, Walk, parse
from fnjax.port.known.facts import DTYPE, LIST, NUMBER, UNKNOWN, Value
from fnjax.port.rewrite.calls.python_calls import list_contained, list_values
from fnjax.port.rewrite.calls.randomness import make_key
from fnjax.port.source.naming import iter_targets
from fnjax.port.torch import bracket, fill, read_literal, unparse
from fnjax.port.torch.context import find_dtype_class
from fnjax.port.torch.expressions import TemplateFiller
from fnjax.port.torch.numpy_functions import (
    CONSTANTS,
    CREATED,
    CREATING,
    DRAWS,
    DTYPES,
    ENTRYWISE,
    FLOATS,
    HOST_MATRICES,
    JAX,
    KEYWORDS,
    LIKE,
    LISTS,
    METHODS,
    POWERS,
    RENAMED,
    SCALARS,
    SUMS,
    UFUNCS,
)
from fnjax.port.tree.located import list_nodes


@call_of("*.numpy", "*.__array__", "torch.from_numpy")
def port_numpy_conversion(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """Translate `x.numpy()` and `torch.from_numpy(a)` need no translation."""
    if name != "torch.from_numpy":
        term = walk.port(node.func.value)  # type: ignore[attr-defined] # of a method
        if term.value.kind in {"tensor", "unknown"}:
            return Term(term.node, replace(term.value, kind="tensor", numpy=True))
    elif node.args:
        term = walk.port(node.args[0].value)
        if term.value.is_tensor:
            return Term(term.node, replace(term.value, numpy=False))
    return None


@call_of("numpy.", "scipy.", "random.")
def port_numpy_call(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """Translate `np.sqrt(a)`, `np.zeros(n)`, `special.erf(a)`, `special.kv(1, a)`, `np.random.rand(3)`."""
    root = name.partition(".")[0]
    if root == "random":
        raise Stop(node, "random", f"{name} draws from Python's generator, once for all calls under jit: use torch's")
    if name.startswith("numpy.random."):
        return _port_draw(walk, node, name.removeprefix("numpy.random."))
    node = _drop_dtype(node)
    values = list_values(walk, node)
    tensors = [v for v in (*values, *list_contained(values)) if v.is_tensor]
    short = name.removeprefix("numpy.")
    if not tensors and short in CREATING and _is_written_to(walk):
        return _port_to_same(walk, node, f"jnp.{short}", Value("tensor", "float", numpy=True))
    # Of constants NumPy computes while JAX traces, in its own float64, as in PyTorch: nothing to translate.
    if not tensors and (root == "numpy" or all(v.kind == "static" for v in values)):
        unknown = any(v.kind == "unknown" for v in values)
        node = node.with_changes(args=[a.with_changes(value=walk.port(a.value).node) for a in node.args])
        if short in SCALARS and all(v.is_number for v in values) and not any(a.keyword or a.star for a in node.args):
            return Term(node, Value("static", "float", name=NUMBER, numpy=True))
        return Term(node, UNKNOWN if unknown else Value("static", numpy=root == "numpy"))
    if short in DTYPES and len(node.args) == 1:  # np.float32(a)
        walk.sink.imports.add("jnp")
        dtype, known = _port_dtype(walk, node.func)
        made = parse(f"jnp.asarray({unparse(walk.port(node.args[0].value).node)}, dtype={unparse(dtype)})")
        return Term(made, replace(_cast_value(tensors[0], known), place=walk.make_place(node)))
    if short == "where" and len(node.args) == 1:
        raise Stop(node, "untraced", "np.where of a condition alone has a shape that depends on values")
    if short in {"repeat", "tile", "full"} and values[short != "full"].traced:
        raise Stop(node, "untraced", f"{name}: a shape that depends on a tensor's values")
    keywords = {_name_keyword(a) for a in node.args} - {""}
    if name.startswith("scipy.signal.") and (len(node.args) > 3 or keywords - {"mode"}):
        raise Stop(node, "numpy", f"{name}: jax.scipy.signal has the argument mode only")
    if short in POWERS and len(node.args) == 1 and (short == "exp2" or walk.program.rounding):
        walk.sink.needs |= {"_log"} if short != "exp2" else set()
        made = parse(POWERS[short].format(unparse(bracket(walk.port(node.args[0].value).node, 13))))
        return Term(made, _describe_result(walk, node, "entry", values, tensors))
    if name in JAX and not (name.startswith("scipy.special.") and keywords - {"axis", "keepdims"}):
        result, target = JAX[name]
        return _port_to_same(walk, node, target, _describe_result(walk, node, result, values, tensors), short)
    if name in ENTRYWISE or (name in JAX and name.startswith("scipy.special.")):
        walk.sink.needs.add("_on_host_entrywise")
        term = _port_to_host(walk, node, node, "_on_host_entrywise", "")
        of_tensors = all(v.numpy is False for v in tensors)  # of tensors these give tensors
        return replace(term, value=replace(term.value, numpy=False)) if of_tensors else term
    if name in LIKE and len(node.args) > LIKE[name] and not any(a.keyword for a in node.args[: LIKE[name] + 1]):
        like = unparse(bracket(walk.port(node.args[LIKE[name]].value).node))
        refused = [a for a in node.args if a.keyword and a.keyword.value in {"output", "return_indices", "indices"}]
        if not refused:
            walk.sink.needs.add("_on_host")
            return _port_to_host(walk, node, node, "_on_host", like if name not in FLOATS else f"{like}.astype(float)")
    raise Stop(
        node,
        "numpy",
        f"{name} works on NumPy arrays, which are not to be had under jit: wrap it in jax.pure_callback with the "
        "shape of its result",
    )


@expression(cst.Attribute, only="numpy")
def port_numpy_constant(walk: Walk, node: cst.Attribute) -> Term | None:
    """Translate `np.pi`, and `math.pi`."""
    if walk.find_name(node).replace("math.", "numpy.") not in CONSTANTS:
        return None
    return Term(node, Value("static", "float"))


@expression(cst.Attribute, only="numpy")
def port_real_part(walk: Walk, node: cst.Attribute) -> Term | None:
    """Translate `scipy.linalg.sqrtm(m).real`, in the Functions for a matrix's square root: it has the shape of m."""
    call = node.value
    if node.attr.value != "real" or not isinstance(call, cst.Call) or walk.find_name(call.func) not in HOST_MATRICES:
        return None
    if len(call.args) != 1 or not walk.port(call.args[0].value).value.is_tensor:
        return None
    walk.sink.needs.add("_on_host")
    return _port_to_host(walk, node, call, "_on_host", unparse(bracket(walk.port(call.args[0].value).node, 1)))


@call_of("*.", only="numpy")
def port_numpy_method(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """Translate `a.mean(axis=1)` of an array of NumPy."""
    if not isinstance(node.func, cst.Attribute) or walk.find_name(node.func.value):
        return None
    term, attr = walk.port(node.func.value), node.func.attr.value
    value = term.value
    if value.numpy is None and value.is_tensor:
        raise Stop(node, "numpy", f"it cannot be told whether {unparse(node.func.value)} is a tensor or a NumPy array")
    if not value.numpy or not value.is_tensor or attr in {"item", "tolist", "numpy"}:
        return None
    values = [value, *list_values(walk, node)]
    func = node.func.with_changes(value=bracket(term.node))
    if attr == "astype" and node.args:
        dtype, known = _port_dtype(walk, node.args[0].value)
        made = node.with_changes(func=func, args=[cst.Arg(dtype)])
        return Term(made, replace(_cast_value(value, known), place=walk.make_place(node)))
    if attr not in METHODS or (attr == "view" and node.args):
        raise Stop(
            node,
            "numpy",
            f"{attr} of a NumPy array has no counterpart: use a function of jax.numpy that gives a new array",
        )
    made = node.with_changes(
        func=node.func.with_changes(value=bracket(term.node)), args=_port_arguments(walk, node, attr)
    )
    return Term(made, _describe_result(walk, node, METHODS[attr], values, [value]))


@expression(cst.Subscript, only="numpy")
def port_numpy_lookup(walk: Walk, node: cst.Subscript) -> Term | None:
    """Translate `table[indices]` of a constant array of NumPy."""
    base = walk.port(node.value)
    if base.value.kind != "static" or not base.value.numpy:
        return None
    made = walk.port_parts(node)
    indices = [walk.port(e.slice.value).value for e in node.slice if isinstance(e.slice, cst.Index)]
    if not any(v.traced for v in indices):
        return Term(made, Value("static", numpy=True))
    walk.sink.imports.add("jnp")
    place = walk.make_place(node)
    return Term(made.with_changes(value=fill("jnp.asarray(A)", A=base.node)), Value("tensor", place=place, numpy=True))


@expression(cst.Attribute, only="numpy")
def port_numpy_attribute(walk: Walk, node: cst.Attribute) -> Term | None:
    """Translate `a.size` is a number, `a.T` reverses all axes."""
    if node.attr.value not in {"size", "T", "itemsize", "nbytes"} or walk.find_name(node):
        return None
    term = walk.port(node.value)
    if not term.value.numpy or not term.value.is_tensor:
        return None
    made = node.with_changes(value=bracket(term.node))
    if node.attr.value != "T":
        return Term(made, Value("static", "int"))
    place = term.value.place and term.value.place.doubtful
    return Term(made, replace(term.value, place=place, number="", like="", rows=0))


def _drop_dtype(node: cst.Call) -> cst.Call:
    """Translate `f(v, a, dtype=a.dtype)` is f(v, a)."""
    if len(node.args) < 2 or node.args[-1].keyword is None or node.args[-1].keyword.value != "dtype":
        return node
    if unparse(node.args[-1].value) != f"{unparse(node.args[-2].value)}.dtype":
        return node
    return node.with_changes(args=[*node.args[:-2], node.args[-2].with_changes(comma=cst.MaybeSentinel.DEFAULT)])


def _name_keyword(arg: cst.Arg) -> str:
    return arg.keyword.value if arg.keyword else ""


def _is_tensor(value: Value) -> bool:
    return value.is_tensor


def _port_to_same(walk: Walk, node: cst.Call, target: str, value: Value, short: str = "") -> Term:
    """Return the function of JAX, with the same arguments."""
    walk.sink.imports |= {"jnp", "jax"} & {target.split(".", maxsplit=1)[0]}
    return Term(node.with_changes(func=parse(target), args=_port_arguments(walk, node, short)), value)


def _port_arguments(walk: Walk, node: cst.Call, short: str = "") -> list[cst.Arg]:
    """Return the arguments, translated; dtypes are JAX's, and lists one array where the function does not join them."""
    made = []
    for arg in node.args:
        keyword = _name_keyword(arg)
        if keyword == "kind" and short in {"sort", "argsort"}:
            continue  # JAX's sorts are stable
        entrywise = JAX.get(f"numpy.{short}", ("",))[0] == "entry" and short not in CREATED
        if (keyword and keyword not in KEYWORDS) or arg.star == "**" or (entrywise and keyword in UFUNCS):
            raise Stop(node, "numpy", f"the argument {unparse(arg)} has no counterpart in jax.numpy; leave it out")
        term = walk.port(arg.value)
        new = _port_dtype(walk, arg.value)[0] if keyword == "dtype" else term.node
        listed = (
            term.value.name == LIST
            or isinstance(arg.value, cst.List)
            or any(map(_is_tensor, list_contained([term.value])))
        )
        if listed and not (keyword or arg.star or short.rpartition(".")[2] in LISTS):
            walk.sink.imports.add("jnp")
            new = fill("jnp.asarray(A)", A=new)
        name = cst.Name(RENAMED[keyword]) if keyword in RENAMED else arg.keyword
        made.append(arg.with_changes(value=new, keyword=name))
    return made


def _describe_result(walk: Walk, node: cst.Call, result: str, values: list[Value], tensors: list[Value]) -> Value:
    """Return what is known of a function's result."""
    first = tensors[0] if tensors else Value("tensor", numpy=True)
    place = walk.make_place(node)
    if result == "list":
        one = replace(Value("tensor", first.dtype, numpy=True), place=first.place and first.place.doubtful)
        return Value("static", element=one, place=place)
    if result.startswith("parts="):
        if any(a.keyword and a.keyword.value in {"mode", "compute_uv"} for a in node.args):
            raise Stop(node, "numpy", "the number of results depends on an argument; use jax.numpy's function")
        part = Value("tensor", numpy=True)
        return Value(
            "static", parts=tuple(replace(part, place=walk.make_place(node, f" {i}")) for i in range(int(result[6:])))
        )
    dtype = next((_port_dtype(walk, a.value)[1] for a in node.args if _name_keyword(a) == "dtype"), None)
    short = (walk.find_name(node.func) or unparse(node.func)).rpartition(".")[2]
    if result == "view":
        shared = first.place if short == "asarray" and dtype is None else first.place and first.place.doubtful
        value = replace(first, place=shared, number="", numpy=True)
        value = value if short == "asarray" else replace(value, rank=None, like="", rows=0)
    elif result == "entry":
        likes, ranks, kinds = ({getattr(v, name) for v in tensors} for name in ("like", "rank", "dtype"))
        keeps = kinds == {"float"} or short in {"copy", "clip", "conj", "conjugate", "zeros_like", "ones_like"}
        kind = first.dtype if keeps else "unknown"
        rank = ranks.pop() if len(ranks) == 1 else None
        like = likes.pop() if len(likes) == 1 else ""
        value = Value("tensor", kind, rank, like=like, place=place, numpy=True)
    else:
        kind = first.dtype if result == "same" else result
        kind = "int" if kind == "bool" and short in SUMS else kind
        value = Value("tensor", kind, place=place, numpy=True)
    return value if dtype is None else _cast_value(value, dtype)


def _port_to_host(walk: Walk, whole: cst.BaseExpression, node: cst.Call, helper: str, like: str) -> Term:
    """Return a call that runs on the host; what may be a tensor is passed in."""
    params: dict[str, str] = {}
    args = []
    for arg in node.args:
        term = walk.port(arg.value)
        if arg.star or (arg.keyword and term.value.traced):
            raise Stop(node, "numpy", f"{unparse(arg)} cannot be passed to what runs on the host: give it by position")
        if arg.keyword or term.value.kind == "static" or (like and not term.value.traced):
            args.append(arg.with_changes(value=term.node))
            continue
        text = unparse(term.node)
        own = text if isinstance(term.node, cst.Name) else f"a{len(params)}"
        params.setdefault(text, own)
        args.append(arg.with_changes(value=cst.Name(params[text])))
    inner = node.with_changes(args=args)
    body = inner if whole is node else whole.with_changes(value=inner)
    given = ", ".join([*([like] if like else []), *params])
    made = parse(f"{helper}(lambda {', '.join(params.values())}: {unparse(body)}, {given})")
    return Term(made, Value("tensor", "unknown" if like else "float", place=walk.make_place(whole), numpy=True))


def _port_draw(walk: Walk, node: cst.Call, short: str) -> Term:
    """Translate `np.random.normal(0, 1, x.shape)` takes a key."""
    spec, template = DRAWS.get(short, ("", ""))
    names = [part.partition("=")[0] for part in spec.split()]
    given = {name: parse(default) for part in spec.split() for name, _, default in [part.partition("=")] if default}
    shaped, wanted = False, {n.lstrip("*") for n in names}
    if names == ["*size"] and node.args and not any(a.keyword for a in node.args):
        alone = node.args[0].value if node.args[0].star and len(node.args) == 1 else None
        shaped = alone is None or _is_shape(walk, alone)
        inside = ", ".join(f"{a.star}{unparse(walk.port(a.value).node)}" for a in node.args)
        given["size"] = parse(f"({inside},)") if alone is None else walk.port(alone).node
    else:
        for i, arg in enumerate(node.args):
            key = arg.keyword.value if arg.keyword else names[i] if i < len(names) and not arg.star else "?"
            given[key] = walk.port(arg.value).node
            if key == "size":
                count = isinstance(read_literal(arg.value), int)
                shaped = count or _is_shape(walk, arg.value)
                given[key] = parse(f"({unparse(given[key])},)") if count else given[key]
    if not shaped or given.keys() != wanted:
        raise Stop(
            node,
            "random",
            f"numpy.random.{short} draws from NumPy's generator, once for all calls under jit: use torch's functions, "
            "or jax.random with a key",
        )
    walk.sink.imports.add("jax")
    made = TemplateFiller({**given, "key": make_key(walk, node)}, frozenset()).rewrite(parse(template))
    assert isinstance(made, cst.BaseExpression)
    dtype = "int" if short in {"binomial", "randint"} else "float"
    return Term(made, Value("tensor", dtype, numpy=True, place=walk.make_place(node)))


def _is_shape(walk: Walk, node: cst.BaseExpression) -> bool:
    """Return whether this surely is a tuple of sizes."""
    value = walk.port(node).value
    of_array = isinstance(node, cst.Attribute) and node.attr.value == "shape"
    return of_array or value.parts is not None or (value.element is not None and not value.is_tensor)


def _is_written_to(walk: Walk) -> bool:
    """Return whether the array that this statement makes is written to by entries."""
    bound = {t for n in list_nodes(walk.current) if isinstance(n, cst.AssignTarget) for t in iter_targets(n.target)}
    written = [n.target for n in list_nodes(walk.routine.node) if isinstance(n, (cst.AugAssign, cst.AssignTarget))]
    return any(isinstance(t, cst.Subscript) and unparse(t.value) in bound for t in written)


def _port_dtype(walk: Walk, node: cst.BaseExpression) -> tuple[cst.BaseExpression, Value]:
    """JAX's name of a dtype of NumPy, and what is known of it."""
    name = walk.find_name(node).removeprefix("numpy.").removeprefix("builtins.")
    text = read_literal(node)
    found = DTYPES.get(text if isinstance(text, str) else name)
    if found is None:
        term = walk.port(node)
        return term.node, term.value if term.value.name == DTYPE else Value("static", name=DTYPE, exact="?")
    walk.sink.imports |= {"jnp"} & {found.split(".")[0]}
    exact = found.removeprefix("jnp.")
    known = "" if found in {"int", "bool", "complex"} else exact
    return parse(found), Value("static", find_dtype_class(exact), name=DTYPE, exact=known)


def _cast_value(value: Value, dtype: Value) -> Value:
    """Return what is known of the value as this dtype."""
    exact = "?" if dtype.dtype == "unknown" else dtype.exact
    return replace(value, dtype=dtype.dtype, exact=exact, number="", numpy=True)
