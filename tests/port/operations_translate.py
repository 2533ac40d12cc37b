"""A small porter of single expressions, by the table alone, and the running of both sides."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import libcst as cst
import numpy as np

from fnjax._torch_ops.signature import bind_arguments, parse_signature
from fnjax._torch_ops.table.distributions import HOME, METHODS, PARAMETERS
from fnjax.port.source.naming import find_canonical_name
from fnjax.port.torch import (
    Absent,
    Context,
    Operation,
    Problem,
    bind_call,
    find_operation,
    make_tuple,
    unparse,
)
from fnjax.port.torch.specialised import specialise
from tests.port.operations_inputs import INPUTS

MODULES = {"F": "torch.nn.functional", "torch": "torch"}


def bind_parameters(name, args):
    """Return the parameters of a distribution by name, or what is wrong with the call that makes it."""
    plain = [a.value for a in args if not a.keyword]
    named = [(a.keyword.value, a.value) for a in args if a.keyword]
    signature = parse_signature(f"{PARAMETERS[name]}, validate_args=None")
    found = bind_arguments(signature, plain, named, lambda name, given: given, lambda node: "unknown", make_tuple)
    return found if isinstance(found, str) else {n: v for n, v in found.items() if n != "validate_args"}


def name_arguments(method, args):
    """Return the arguments of a method of a distribution by name."""
    own = METHODS.get(method, "").partition("=")[0]
    return [a if a.keyword or a.star or i else a.with_changes(keyword=cst.Name(own)) for i, a in enumerate(args)]


class Untranslated(Exception):
    """The table has no translation for a call."""


class Names(Context):
    """Knows which names are tensors, and of what kind of dtype and how many dimensions, if it is told."""

    def __init__(self, tensors):
        self.tensors = tensors

    def know(self, node):
        known = super().know(node)
        if not isinstance(node, cst.Name) or node.value not in self.tensors:
            return known
        dtype, rank = self.tensors[node.value] if isinstance(self.tensors, dict) else (known.dtype, None)
        return replace(known, kind="tensor", dtype=dtype or known.dtype, rank=rank)


def dotted(node):
    """The qualified name of `torch.linalg.norm` or `F.relu`, or None."""
    if isinstance(node, cst.Name):
        return MODULES.get(node.value)
    if isinstance(node, cst.Attribute):
        before = dotted(node.value)
        return before and find_canonical_name(f"{before}.{node.attr.value}")
    return None


class Port(cst.CSTTransformer):
    """Rewrites calls and attributes from the inside out."""

    def __init__(self, tensors):
        super().__init__()
        self.context, self.needs, self.used, self.traced = Names(tensors), set(), [], True
        self.fields = {}
        self.functions = set()  # what is called

    def visit_Call(self, node):
        self.functions.add(node.func)

    def render(self, name, args, called):
        operation = find_operation(name)
        if operation is None or isinstance(operation, Absent):
            raise Untranslated(f"{name}: {operation}")
        assert operation.called == called, name
        bound = bind_call(operation, args, self.context)
        if isinstance(bound, Problem):
            raise Untranslated(bound.message)
        rendered = bound.render()
        if isinstance(rendered, Problem):
            raise Untranslated(rendered.message)
        self.needs |= rendered.needs
        self.used.append(name)
        self.traced &= bound.overload.traced
        return rendered.expression

    def of_distribution(self, original_node, updated_node, args=None):
        """Render an attribute or method of a distribution that the same expression makes, or return None."""
        name = dotted(original_node.value.func) if isinstance(original_node.value, cst.Call) else None
        if not name or not name.startswith(HOME):
            return None
        given = bind_parameters(name.removeprefix(HOME), updated_node.value.args)
        passed = [cst.Arg(v, keyword=cst.Name(n)) for n, v in given.items()]
        method = original_node.attr.value
        return self.render(f"{name}.{method}", [*passed, *name_arguments(method, args or ())], args is not None)

    def leave_Call(self, original_node, updated_node):
        name = dotted(original_node.func)
        if name and name.startswith(HOME):
            return updated_node
        if isinstance(original_node.func, cst.Attribute):
            made = self.of_distribution(original_node.func, updated_node.func, updated_node.args)
            if made is not None:
                return made
        if name:
            if isinstance(found := find_operation(name), Operation):
                self.fields[unparse(original_node.func)] = next((o.fields for o in found.overloads if o.fields), ())
            return self.render(name, updated_node.args, True)
        if isinstance(original_node.func, cst.Attribute):
            name = f"torch.Tensor.{original_node.func.attr.value}"
            if isinstance(find_operation(name), (Operation, Absent)):
                return self.render(name, [cst.Arg(updated_node.func.value), *updated_node.args], True)
        return updated_node

    def leave_Attribute(self, original_node, updated_node):
        if original_node in self.functions:
            return updated_node
        made = self.of_distribution(original_node, updated_node)
        if made is not None:
            return made
        name = dotted(original_node)
        called = unparse(original_node.value.func) if isinstance(original_node.value, cst.Call) else ""
        if original_node.attr.value in (field := self.fields.get(called, ())):
            index = cst.Index(cst.Integer(str(field.index(original_node.attr.value))))
            return cst.Subscript(updated_node.value, [cst.SubscriptElement(index)])
        before = unparse(original_node.value)
        if before.endswith(".dtype") or before.startswith(("torch.finfo", "torch.iinfo")):
            name = f"torch.{'dtype' if before.endswith('.dtype') else before[6:11]}.{original_node.attr.value}"
            return self.render(name, [cst.Arg(updated_node.value)], False)
        if before.endswith(".device"):
            name = f"torch.device.{original_node.attr.value}"
            return self.render(name, [cst.Arg(updated_node.value)], False)
        if name:
            found = find_operation(name)
            return self.render(name, [], False) if isinstance(found, Operation) and not found.called else updated_node
        name = f"torch.Tensor.{original_node.attr.value}"
        found = find_operation(name)
        if isinstance(found, Operation) and not found.called:
            return self.render(name, [cst.Arg(updated_node.value)], False)
        return updated_node


class Translated:
    """The JAX code of an expression in PyTorch."""

    def __init__(self, text, tensors):
        port = Port(tensors)
        code = cst.SimpleStatementLine([cst.Expr(cst.parse_expression(text).visit(port))])
        [code], texts, _ = specialise([code], port.needs)
        self.text = unparse(code).strip()
        self.used, self.traced = port.used, port.traced
        self.names = {"jax": jax, "jnp": jnp, "np": np, "key": jax.random.key(0)}
        sources = {"math": __import__("math"), "itertools": __import__("itertools")}
        self.names |= sources
        exec("\n\n".join(texts.values()), self.names)

    def run(self, arrays):
        return eval(self.text, {**self.names, **arrays})

    def run_jit(self, arrays):
        return jax.jit(lambda given: eval(self.text, {**self.names, **given}))(arrays)


def respelled(text):
    """The same call under the operation's other names, as a method, in place; and with keywords by position."""
    call = cst.parse_expression(text)
    if not isinstance(call, cst.Call) or not call.args or call.args[0].keyword or call.args[0].star:
        return
    name = dotted(call.func)
    found = find_operation(name) if name else None
    if not isinstance(found, Operation):
        return
    first = unparse(call.args[0].value)
    rest = [unparse(a.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for a in call.args[1:]]
    for other in dict.fromkeys((*found.names, *(f"{n}_" for n in found.names))):
        same = find_operation(other)
        if other != name and isinstance(same, Operation) and same.called and same.overloads[0] in found.overloads:
            method = other.startswith("torch.Tensor.")
            head = f"({first}).{other.rpartition('.')[2]}" if method else other.replace("torch.nn.functional", "F")
            yield f"{head}({', '.join(rest if method else [first, *rest])})"
    bound = bind_call(found, call.args, Names({*INPUTS}))
    if not any(p.variadic for p in bound.overload.parameters) and any("=" not in a for a in rest):
        named = [f"{k}={unparse(v)}" for k, v in bound.values.items()][1:]
        yield f"{unparse(call.func)}({', '.join([first, *named])})"
