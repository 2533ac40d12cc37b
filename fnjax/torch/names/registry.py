"""Look-up of the names of torch: modules, operations of the table, and the objects in KNOWN."""

from __future__ import annotations

import difflib
import functools
import types
from collections.abc import Callable
from typing import Any

from fnjax._torch_ops import TABLE, Absent, Operation, find_operation
from fnjax._torch_ops.jax_functions.trees import _tree_flatten, _tree_unflatten
from fnjax._torch_ops.registry import KNOWN
from fnjax.torch.deferred.missing import Missing, Reason
from fnjax.torch.dispatch.run import run
from fnjax.torch.errors import NoSuchNameError
from fnjax.torch.memory.dtypes import check_castable


class Namespace(types.ModuleType):
    """A module of torch, whose names are looked up when they are used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = find_known(f"{self.__name__}.{name}")
        if not isinstance(found, Missing):
            setattr(self, name, found)
        return found


_flatten: Callable[[Any], Any] = _tree_flatten
_unflatten: Callable[[Any, Any], Any] = _tree_unflatten


class TreeSpec:
    """The structure of a tree; as in PyTorch, None is a leaf and dictionaries keep their order."""

    def __init__(self, tree: Any) -> None:
        leaves, self._tree = _flatten(tree)
        self.num_leaves = len(leaves)

    def unflatten(self, leaves: Any) -> Any:
        """Return the tree with these leaves."""
        return _unflatten(leaves, self._tree)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeSpec) and other._tree == self._tree

    def __hash__(self) -> int:
        return hash(self.num_leaves)


def _list_leaves(tree: Any, **_: Any) -> list[Any]:
    return _flatten(tree)[0]


def _map_trees(func: Callable[..., Any], tree: Any, *rests: Any, **_: Any) -> Any:
    return TreeSpec(tree).unflatten(map(func, *map(_list_leaves, (tree, *rests))))


def _map_only(kind: Any, func: Callable[[Any], Any], tree: Any, **_: Any) -> Any:
    wanted = (lambda x: isinstance(x, kind)) if isinstance(kind, (type, tuple)) else kind
    return _map_trees(lambda x: func(x) if wanted(x) else x, tree)


for _home in ("torch.utils._pytree", "torch.utils._cxx_pytree"):
    KNOWN |= {
        f"{_home}.tree_map": _map_trees,
        f"{_home}.tree_map_only": _map_only,
        f"{_home}.tree_flatten": lambda tree, **_: (_list_leaves(tree), TreeSpec(tree)),
        f"{_home}.tree_unflatten": lambda leaves, treespec: treespec.unflatten(leaves),
        f"{_home}.tree_leaves": _list_leaves,
        f"{_home}.tree_structure": lambda tree, **_: TreeSpec(tree),
        f"{_home}.tree_any": lambda pred, tree, **_: any(map(pred, _list_leaves(tree))),
        f"{_home}.tree_all": lambda pred, tree, **_: all(map(pred, _list_leaves(tree))),
        f"{_home}.register_pytree_node": lambda *_, **__: None,
        f"{_home}._register_pytree_node": lambda *_, **__: None,
        f"{_home}._namedtuple_flatten": tuple,
        f"{_home}._namedtuple_unflatten": tuple,
    }


@functools.cache
def module(name: str) -> Namespace:
    """Return the module of a qualified name, `torch.nn.functional`."""
    return Namespace(name)


@functools.cache
def _list_modules() -> frozenset[str]:
    names = {name.rpartition(".")[0] for name in (*TABLE, *KNOWN)} - {"torch.Tensor"}
    return frozenset(".".join(n.split(".")[: i + 1]) for n in names for i in range(n.count(".") + 1))


def list_names(name: str) -> list[str]:
    """Return the public names of the module of a qualified name, modules not among them."""
    names = (n.removeprefix(f"{name}.") for n in {*TABLE, *KNOWN} if n.startswith(f"{name}."))
    return sorted(n for n in names if "." not in n and not n.startswith("_"))


@functools.cache
def write_similar(name: str) -> str:
    """Write which name may be meant by a qualified name that is not there: of another module, or much like it.

    Examples:
        >>> write_similar("torch.whree")
        'did you mean torch.where?'
        >>> write_similar("torch.cross_entropy")
        'did you mean torch.nn.functional.cross_entropy?'
    """
    module, _, last = name.rpartition(".")
    same = [f"{m}.{last}" for m in ("torch.nn.functional", "torch", "torch.nn") if last in list_names(m)]
    similar = same or [f"{module}.{n}" for n in difflib.get_close_matches(last, list_names(module), 1)]
    return f"did you mean {similar[0]}?" if similar else ""


def find(name: str) -> Any:
    """Return the object of a qualified name, or None."""
    if name in KNOWN:
        return KNOWN[name]
    operation = TABLE.get(name)
    if operation is None and isinstance(find_operation(name), Absent) and name not in _list_modules():
        operation = find_operation(name)
    if isinstance(operation, Operation) and not operation.called:
        return run(name, (), {})
    if isinstance(operation, Absent):
        remedy = operation.remedy if name in TABLE else write_similar(name) or operation.remedy
        return Missing(name, Reason(operation.reason, remedy))
    if operation is not None:
        return find_function(name)
    return module(name) if name in _list_modules() else None


def write_out(out: Any, found: Any) -> Any:
    """Write results into the tensors of `out=`."""
    for target, value in zip(out, found, strict=True) if isinstance(out, (tuple, list)) else [(out, found)]:
        check_castable(value.dtype, target.dtype)
        if target.shape != value.shape:
            target.resize_(*value.shape)
        target.copy_(value)
    return out


def find_known(name: str) -> Any:
    """Return the object of a qualified name; a stand-in that raises the reason for a name that is listed as absent.

    Raises:
        NoSuchNameError: the name is neither registered nor listed as absent.
    """
    found = find(name)
    if found is None and name not in KNOWN:
        raise NoSuchNameError(f"{name} is not a name that fnjax.torch has", write_similar(name))
    return found


class Builtin:
    """A function that does not become a method where it is an attribute of a class: `act = torch.relu`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._function(*args, **kwargs)

    def __deepcopy__(self, memo: Any) -> Builtin:
        return self

    def __repr__(self) -> str:
        return f"<function {self.__module__}.{self._function.__name__}>"


@functools.cache
def find_function(name: str) -> Callable[..., Any]:
    """Return an operation of the table as a function of tensors."""
    if name in KNOWN:
        return KNOWN[name]
    operation = find_operation(name)

    def call(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        found = run(name, args, kwargs)
        if kwargs.get("requires_grad"):
            found.requires_grad_()
        if isinstance(operation, Operation) and (operation.inplace is not None or kwargs.get("inplace") is True):
            check_castable(found.dtype, args[0].dtype)
            return args[0].copy_(found)
        if out is None:
            return found
        return write_out(out, found)

    call.__name__ = call.__qualname__ = name.rpartition(".")[2]
    call.__module__ = name.rpartition(".")[0]
    return Builtin(call)


KNOWN["torch._C._VariableFunctions"] = module("torch")
