"""The classes and functions of a file, and what is known of each."""

from __future__ import annotations

import builtins
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.known.facts import STATIC, UNKNOWN, MemRef, Value, join_values
from fnjax.port.source.annotations import AnnotationPorter
from fnjax.port.source.canonical_names import find_canonical_name
from fnjax.port.source.naming import Definition, Source, iter_imported, iter_targets, list_changed_names
from fnjax.port.source.parameter_inference import Inference, iter_gradients
from fnjax.port.source.records import METHODS, Class, Dependency, Routine, list_decorators
from fnjax.port.torch import MISSING, Operation, find_operation, unparse
from fnjax.port.tree.located import list_nodes

GROUP = "instance:torch.distributed.ProcessGroup"
_GROUP_NAME = re.compile(r"(^|_)(group|pg|process_?group)(__\w+)?$", re.IGNORECASE)
_COLLECTIVE = re.compile(r"\bdistributed\b|ProcessGroup|parallel_state|\bmpu\b|\bdist\b|parallel_group|\bcomm\b")
# Kinds of files (see `registry.NodeRule.only`), next to those with collectives and with kernels, by their words.
_KINDS = {
    "dirty": re.compile("mark_dirty"),
    "numpy": re.compile("numpy|scipy|math|__array__"),
    "operators": re.compile(r"\bops\b|\blibrary\b|\bimpl\b|custom_op|triton_op"),
    "triton": re.compile("triton"),
    "versions": re.compile("version"),
}
FUNCTION_BASES = frozenset(f"torch.autograd.{name}" for name in ("Function", "InplaceFunction", "NestedIOFunction"))
BLOCKS = (cst.If, cst.Else, cst.Try, cst.ExceptHandler, cst.Finally, cst.With, cst.For, cst.While, cst.IndentedBlock)


class Program:
    """Facts about a file."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.classes: dict[str, Class] = {}
        self.by_node: dict[cst.CSTNode, Class] = {}
        self.kin: dict[str, list[Class]] = {}
        self.routines: dict[cst.CSTNode, Routine] = {}
        self.inner: dict[str, Routine] = {}  # functions inside functions
        self.libraries: dict[str, str] = {}  # the namespaces of its torch.library.Library objects
        self.operators: dict[str, str] = {}  # the qualified names of its custom operators, by the names of the file
        self.following: dict[cst.CSTNode, list[cst.BaseExpression]] = {}  # calls after a function, which register it
        self.lifted: set[cst.CSTNode] = set()  # registrations that the translation drops
        self.elsewhere: set[str] = set()  # operators of other files for which it has registrations
        self.by_function = False  # whether calls of functions that cannot be translated may stay PyTorch
        self.as_pytorch: frozenset[str] = frozenset()  # the functions of the file that stay PyTorch
        self.used: set[str] = set()  # other libraries that bodies on NumPy arrays use
        self.for_all: set[cst.CSTNode] = set()  # registrations for a platform whose body is for all platforms
        self.kernels: dict[str, Any] = {}  # Triton kernels, by the names that they are launched by
        self.kernel_nodes: set[cst.CSTNode] = set()  # the statements that define them, which stay as they are
        self.kernel_uses: set[cst.CSTNode] = set()  # where an expression may be a kernel: launches, and variables
        self.mutating: dict[cst.CSTNode, tuple[str, ...]] = {}  # the parameters that bodies of operators mutate
        self.defined: dict[str, list[cst.CSTNode]] = {}  # schemas of operators whose bodies come later
        self.evaluating: list[cst.CSTNode] = []  # top-level items whose evaluation has begun, the present one last
        self.evaluate_first: Callable[[cst.CSTNode], object] = id  # evaluates a function before its result is read
        self.members: dict[cst.CSTNode, Callable[[], None]] = {}  # evaluates a part of a class, if it was not yet
        self.dependencies: list[Dependency] = []  # on summaries of functions and classes
        self.values: dict[str, tuple[Value, list[Dependency]]] = {}  # of the top level, with the dependencies of each
        self.evaluate: Callable[[cst.BaseExpression], Value] = lambda node: UNKNOWN
        self.ported: dict[str, cst.ClassDef] = {}
        self.key_name = "key"
        self.renamed: frozenset[str] = frozenset()  # names that the port needs for its own; they have got an underscore
        self.inference = Inference(self.resolve_name)
        self._resolving: set[str] = set()
        declared = list_nodes(source.tree, cst.Global)
        self.rebound = {item.name.value for n in declared for item in n.names}  # globals that functions assign
        for statement in source.tree.body:
            self._collect_classes(statement, statement, "", [])
        for cls in self.by_node.values():  # in linked files a base may come later
            cls.is_function = any(self._is_function(b) for b in cls.bases)

    # -------------------------------------------------------------------------------------------- classes

    def _collect_classes(
        self, node: cst.CSTNode, top: cst.CSTNode, prefix: str, scopes: list[dict[str, list[Definition]]]
    ) -> None:
        """Find the classes in a statement."""
        if isinstance(node, cst.ClassDef):
            name = prefix + node.name.value
            methods = {s.name.value: s for s in node.body.body if isinstance(s, cst.FunctionDef)}
            bases = tuple(self._name_base(a.value, scopes, methods) for a in node.bases if a.keyword is None)
            cls = Class(name, node, bases, methods, top)
            self.classes[name] = self.by_node[node] = cls
            for scope in scopes[-1:]:
                scope.setdefault(node.name.value, []).append(Definition(cls=node))
            inside: dict[str, list[Definition]] = {}
            for statement in node.body.body:
                self._collect_classes(statement, top, name + ".", [*scopes, inside])
        elif isinstance(node, cst.FunctionDef):
            local: dict[str, list[Definition]] = {}
            for inner in list_nodes(node.body, cst.Import, cst.ImportFrom):
                for bound, full in iter_imported(inner):
                    local.setdefault(bound, []).append(Definition(imported=full))
            for statement in getattr(node.body, "body", ()):
                self._collect_classes(statement, top, f"{prefix}{node.name.value}.", [*scopes, local])
        elif isinstance(node, BLOCKS):
            for child in node.children:
                self._collect_classes(child, top, prefix, scopes)

    def _name_base(
        self, node: cst.BaseExpression, scopes: list[dict[str, list[Definition]]], methods: dict[str, cst.FunctionDef]
    ) -> str:
        """Return the qualified name of a base; a `Function` of another module is torch's where forward takes ctx."""
        full = self.resolve_name(node, scopes)
        known = full.startswith("file:") or self._is_function(full)
        if known or "forward" not in methods or unparse(node).split(".")[-1] != "Function":
            return full
        forward = methods["forward"]
        static = any(unparse(d.decorator) == "staticmethod" for d in forward.decorators)
        named = [p.name.value for p in forward.params.params[:1]]
        return "torch.autograd.Function" if static and named == ["ctx"] else full

    def _is_function(self, base: str, seen: tuple[str, ...] = ()) -> bool:
        if base in FUNCTION_BASES or base == "fnjax.Function":
            return True
        cls = self.classes.get(base.removeprefix("file:"))
        return cls is not None and base not in seen and any(self._is_function(b, (*seen, base)) for b in cls.bases)

    def resolve_name(self, node: cst.BaseExpression, scopes: Sequence[dict[str, list[Definition]]] = ()) -> str:
        """Return the qualified name of a dotted expression, by the definitions alone."""
        if isinstance(node, cst.Name):
            for scope in reversed(scopes):
                if node.value in scope:
                    definition = scope[node.value][-1]
                    own = f"file:{self.by_node[definition.cls].name}" if definition.cls else ""
                    return definition.imported or own
            found = self.source.find_definition(node.value)
            if found is None:
                return node.value if hasattr(builtins, node.value) else ""
            if found.cls or found.function:
                return f"file:{node.value}"
            if found.imported:
                return found.imported
            key = f"resolve {node.value}"
            if found.value is None or key in self._resolving:
                return ""
            self._resolving.add(key)
            try:
                return self.resolve_name(found.value)
            finally:
                self._resolving.discard(key)
        if isinstance(node, cst.Attribute):
            base = self.resolve_name(node.value, scopes)
            return self.name_attribute(base, node.attr.value) if base else ""
        return ""

    def list_meanings(self, name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        """Return all that a name of the top level may be, whichever branch of the file has run."""
        found: set[str] = set()
        for definition in self.source.definitions.get(name, ()):
            if definition.imported:
                found.add(definition.imported)
            elif definition.function or definition.cls:
                found.add(f"file:{name}")
            elif isinstance(definition.value, cst.Name) and definition.value.value not in seen:
                found |= self.list_meanings(definition.value.value, seen | {name})
            elif definition.value is not None:
                found.add(self.resolve_name(definition.value) or "?")
        return found

    def iter_ancestors(self, cls: Class) -> Iterator[Class]:
        """Yield the class and its bases in the file, in the order of lookup."""
        seen = []
        waiting = [cls]
        while waiting:
            first = waiting.pop(0)
            if first in seen:
                continue
            seen.append(first)
            yield first
            waiting += [c for b in first.bases if (c := self.classes.get(b.removeprefix("file:")))]

    def list_derived(self, cls: Class) -> list[Class]:
        """Return the class and those of the file that derive from it."""
        return self.subclasses.get(cls, [cls])  # one whose name another has, as in `if` and `else`, has none

    @functools.cached_property
    def subclasses(self) -> dict[Class, list[Class]]:
        """Each class with those that derive from it, itself among them."""
        found: dict[Class, list[Class]] = {}
        for name, family in self.families.items():
            for cls in family:
                found.setdefault(cls, []).append(self.classes[name])
        return found

    @functools.cached_property
    def changed_in_functions(self) -> set[str]:
        """The names of the top level that functions give new values, or whose objects they change."""
        functions = list_nodes(self.source.tree, cst.FunctionDef)
        return {n for f in functions for n in list_changed_names(f, self.source.definitions)}

    @functools.cached_property
    def families(self) -> dict[str, list[Class]]:
        """Each class with its bases in the file."""
        return {name: list(self.iter_ancestors(cls)) for name, cls in self.classes.items()}

    def list_related(self, owner: Class) -> list[Class]:
        """Return the class, those of the file that derive from it, and its bases."""
        if owner.name not in self.kin:
            found = {*self.list_derived(owner), *self.families[owner.name]}
            self.kin[owner.name] = [c for c in self.classes.values() if c in found] if len(found) > 1 else [owner]
        return self.kin[owner.name]

    def find_method(self, cls: Class, name: str) -> Routine | None:
        """Return a method of a class or of its bases in the file."""
        for c in self.iter_ancestors(cls):
            if name in c.methods:
                return self.make_routine(c.methods[name], f"{c.name}.{name}", c)
        return None

    def find_methods_below(self, base: str, name: str) -> list[Routine]:
        """Return the methods of this name that classes derived from one of the file define."""
        owner = self.classes.get(base.removeprefix("file:"))
        derived = self.list_derived(owner) if owner is not None else []
        return [self.make_routine(c.methods[name], f"{c.name}.{name}", c) for c in derived if name in c.methods]

    def find_differentiated_inputs(self, routine: Routine, always: bool = False) -> set[int]:
        """Return the inputs of a forward for which backward returns a gradient; with `always`, in each branch."""
        if routine.role != "forward" or routine.owner is None:
            return set()
        backward = self.find_method(routine.owner, "backward")
        return set(iter_gradients(backward.node, always)) if backward else set()

    # -------------------------------------------------------------------------------------------- names

    def look_up(self, name: str) -> Value:
        """Return the value of a name of the top level, or of a builtin."""
        if name in self.values:
            value, dependencies = self.values[name]
            self.dependencies += dependencies
            return value
        begun = len(self.dependencies)
        found = self.source.find_definition(name)
        if found is None:
            return Value("static", name=f"builtins.{name}") if hasattr(builtins, name) else Value(name=f"?{name}")
        if found.function or found.cls:
            value = Value("object", name=f"file:{name}")
        elif found.imported:
            value = Value("object", name=found.imported)
        elif found.value is not None and name not in self._resolving:
            self._resolving.add(name)
            value = self.evaluate(found.value)
            value = replace(value, memref=MemRef(frozenset({f"global {name}"}))) if value.memref else value
            if not value.name and value.literal is MISSING and (resolved := self.resolve_name(found.value)):
                value = replace(value, name=resolved)
            if len(self.source.definitions[name]) > 1 or name in self.rebound:
                value = replace(value, literal=MISSING, number="")
                if len(self.list_meanings(name)) > 1 and isinstance(find_operation(value.name), Operation):
                    value = replace(value, name="")  # one of several functions
            if name in self.source.changed and value.kind == "static":
                element = UNKNOWN if value.parts else None
                value = replace(value, literal=MISSING, parts=None, entries=(), element=element)
            self._resolving.discard(name)
        else:
            return UNKNOWN
        if name in self.kernels:
            value = replace(value, kind="kernel")
        self.values[name] = value, self.dependencies[begun:]
        return value

    def is_kernel(self, name: str) -> bool:
        """Return whether a qualified name is a Triton kernel of the file."""
        return name.removeprefix("file:") in self.kernels and name.startswith("file:")

    @property
    def importable(self) -> frozenset[str]:
        """The libraries next to Python's own of which a port may import what the source does."""
        return frozenset({"numpy", "packaging", "scipy", "einops", "opt_einsum", *self.used})

    @property
    def top_item(self) -> cst.CSTNode:
        """The statement of the top level that is being evaluated."""
        return self.evaluating[-1] if self.evaluating else self.source.tree

    def name_attribute(self, base: str, attr: str) -> str:
        """Return the qualified name of an attribute of something with a qualified name; empty for an unknown one."""
        if base.startswith("file:"):
            cls = self.classes.get(base.removeprefix("file:"))
            if cls is None:
                return ""
            for c in self.iter_ancestors(cls):
                if attr in c.methods or f"{c.name}.{attr}" in self.classes:
                    return f"file:{c.name}.{attr}"
            return f"function:{attr}" if cls.is_function and attr == "apply" else ""
        if base.startswith(("builtins.", "?", "instance:")):
            return ""
        return find_canonical_name(f"{base}.{attr}")

    def list_bound(self, node: cst.CSTNode) -> set[str]:
        """Return the variables that a statement binds."""
        return self.list_rebound(node, cst.AugAssign, cst.CompFor)

    def list_rebound(self, node: cst.CSTNode, *also: type[cst.CSTNode]) -> set[str]:
        """Return the variables that a statement binds to other objects, `x += y` left out."""
        kinds: tuple[Any, ...] = (cst.AssignTarget, cst.AnnAssign, cst.For, cst.NamedExpr, *also)
        return {name for n in list_nodes(node, *kinds) for name in iter_targets(n.target)}

    @functools.cached_property
    def text(self) -> str:
        """The text of the file."""
        return self.source.text or self.source.tree.code

    @functools.cached_property
    def rounding(self) -> bool:
        """True if the file rounds numbers down or up."""
        words = r"\b(floor|ceil|trunc|fix|u?int\d*|long|short|IntTensor|LongTensor)\b|//"
        return re.search(words, self.text) is not None

    @functools.cached_property
    def collective(self) -> bool:
        """True if the file uses torch.distributed; licences are "distributed" in comments only."""
        return any(_COLLECTIVE.search(n.value) for n in list_nodes(self.source.tree, cst.Name))

    @functools.cached_property
    def mentions(self) -> frozenset[str]:
        """The kinds of code in the file (numpy, kernels, ...), which enable the rules with that `only`."""
        found = {kind for kind, words in _KINDS.items() if words.search(self.text)}
        return frozenset(found | {kind for kind in ("collective", "kernels") if getattr(self, kind)})

    @functools.cached_property
    def groups(self) -> frozenset[str]:
        """The variables and attributes that are process groups, by name or by the parameter they are passed for."""
        if not self.collective:
            return frozenset()
        found = {n.value for n in list_nodes(self.source.tree, cst.Name) if _GROUP_NAME.search(n.value)}
        for n in list_nodes(self.source.tree):
            if isinstance(n, cst.Arg) and n.keyword is not None and n.keyword.value in {"group", "process_group"}:
                last = n.value.attr if isinstance(n.value, cst.Attribute) else n.value
                found |= {last.value} if isinstance(last, cst.Name) and last.value != "None" else set()
            elif isinstance(n, cst.Param) and n.annotation and "ProcessGroup" in unparse(n.annotation.annotation):
                found.add(n.name.value)
        given = {n: self.source.find_definition(n) for n in found}
        return frozenset(n for n, d in given.items() if d is None or not (d.function or d.cls or d.imported))

    # ------------------------------------------------------------------------------------------- routines

    def make_routine(self, node: cst.FunctionDef, name: str, owner: Class | None = None) -> Routine:
        """Return what is known of a function of the file."""
        if node not in self.routines:
            last = name.rpartition(".")[2]
            role = last if owner is not None and last in METHODS else "helper"
            self.routines[node] = Routine(node, name, role, owner, dependencies=self.dependencies)
        return self.routines[node]

    def find_routine(self, name: str) -> Routine | None:
        """Return the function of the file with this qualified name."""
        short = name.removeprefix("file:")
        if short in self.inner:
            return self.inner[short]
        owner, _, last = short.rpartition(".")
        if owner:
            cls = self.classes.get(owner)
            return self.find_method(cls, last) if cls and last in cls.methods else None
        found = self.source.find_definition(short)
        return self.make_routine(found.function, short) if found and found.function else None

    def draws_random_numbers(self, routine: Routine) -> bool:
        """Return whether the class of a method draws random numbers, so that forward takes a key."""
        if routine.owner is None:
            return False
        family = self.list_derived(routine.owner)
        found = [self.find_method(c, name) for c in family for name in ("forward", "backward", "vjp", "setup_context")]
        return any(r is not None and r.draws for r in found)

    def find_saved_input(self, owner: Class | None, memref: MemRef | None) -> int | None:
        """Return the number of the input of forward that a saved tensor is; None for others."""
        if owner is None or memref is None or memref.steps or len(memref.storage) != 1:
            return None
        forward = self.find_method(owner, "forward")
        if forward is None:
            return None
        names = [p.name.value for p in forward.parameters[forward.first :]]
        key = next(iter(memref.storage)).removeprefix("kept:")
        base, _, index = key.rpartition(".")
        facts = self.collect_context_facts(owner)
        value = facts.get(key)
        if base in facts and index.isdigit() and facts[base].parts:
            value = facts[base].parts[int(index)]  # type: ignore[index] # not None here
        origin = next(iter(value.memref.storage), "") if value and value.memref and not value.memref.steps else ""
        name = origin.removeprefix("arg:").removeprefix("input:")
        return names.index(name) if name in names else None

    def port_annotation(self, node: cst.BaseExpression, ev: Any) -> cst.BaseExpression | None:
        """Return an annotation without torch's types; None where nothing is left of it."""
        try:
            made = node.visit(AnnotationPorter(self, ev))
        except LookupError:
            return None
        return made if isinstance(made, cst.BaseExpression) else None

    def collect_context_facts(self, owner: Class) -> dict[str, Value]:
        """Return what forward and setup_context leave on ctx, also those of derived and base classes."""
        found: dict[str, Value] = {}
        for cls in self.list_related(owner):
            facts = cls.find_current("")
            self.dependencies.append((cls, "", facts))
            for key, value in facts.items():
                found[key] = join_values(found[key], value) if key in found else value
        return found


__all__ = ["STATIC", "Class", "Program", "Routine", "list_decorators", "list_nodes"]
