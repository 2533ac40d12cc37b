"""Control flow where it runs: Python's where a test is known, both ways or a JAX loop where it is traced."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnjax.torch._dtypes import DEFAULT, DTYPES, result_type, type_of_number
from fnjax.torch._errors import NotSupported
from fnjax.torch._journal import TAKEN_BACK, Journal, is_in_branch, note_context, note_storage
from fnjax.torch._missing import Missing
from fnjax.torch._tensor import Tensor, is_known, make, number
from fnjax.torch._values import Mode, Node, Value, compute, get_mode, set_mode, watch

State = tuple[Any, ...]
_NUMBERS = (bool, int, float, complex)


class _Undefined:
    """The value of a variable that has none yet."""

    def __repr__(self) -> str:
        return "<a variable without a value>"


UNDEFINED = _Undefined()


def get(read: Callable[[], Any]) -> Any:
    """Return the value of a variable, UNDEFINED where it has none."""
    try:
        return read()
    except NameError:
        return UNDEFINED


def returned(value: Any) -> Any:
    """Return what a function returns: None where it met no return."""
    return None if value is UNDEFINED else value


def truth(value: Any) -> bool | Tensor:
    """Return whether a value is true; a boolean tensor where it is traced."""
    if not isinstance(value, Tensor) or is_known(value.array) or value.layout.size != 1:
        return bool(value)
    value = value if value.ndim == 0 else value.reshape(())
    return value if value.dtype.kind == "bool" else value != 0


def guard(changed: Any) -> None:
    """Raise where a branch that may not be taken changes an object that no one can take back.

    Tensors and ctx are taken back (_journal).
    """
    if is_in_branch() and not isinstance(changed, (Tensor, *TAKEN_BACK)):
        raise NotSupported(
            f"a {type(changed).__name__} is changed in a branch or loop that depends on a traced value",
            "assign a new value to a variable instead, or decide outside of jax.jit",
        )


# ---------------------------------------------------------------------------------- branches


def _speculate(run: Callable[[], Any]) -> tuple[Any, Any, Exception | None]:
    """Run a branch and take it back; return its result, what it wrote, and what it raised."""
    error = None
    result = None
    with Journal() as journal:
        try:
            result = run()
        except Exception as e:  # noqa: BLE001 - a branch that raises is not taken
            error = e
    return result, journal.take_back(), error


def if_(test: Any, yes: Callable[..., State], no: Callable[..., State], values: State, names: Sequence[str]) -> State:
    """Run one of two blocks; both, where the test is traced, and choose between what they did.

    Args:
        test: what decides.
        yes: the block if it is true: the variables' values → their values after it.
        no: the block if it is not.
        values: of the variables that the blocks write.
        names: of these variables.
    """
    decided = truth(test)
    if isinstance(decided, bool):
        return yes(*values) if decided else no(*values)
    first, wrote_first, failed = _speculate(lambda: yes(*values))
    second, wrote_second, failed_too = _speculate(lambda: no(*values))
    if failed is not None and failed_too is not None:
        raise failed
    if failed is not None or failed_too is not None:  # an `if ...: raise`, an assertion: the way that does not raise
        error = failed or failed_too
        if isinstance(error, NotSupported):
            raise error
        _redo(wrote_first if failed is None else wrote_second)
        return first if failed is None else second
    _merge_writes(decided, wrote_first, wrote_second)
    return tuple(_merge(decided, a, b, name) for a, b, name in zip(first, second, names, strict=True))


def either(test: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """Return one of two values: `yes() if test else no()`."""
    return if_(test, lambda _: (yes(),), lambda _: (no(),), (None,), ("a conditional expression",))[0]


def _redo(written: Any) -> None:
    storages, contexts = written
    for storage, value in storages.values():
        note_storage(storage)
        storage.value = value
        storage.version += 1
    for ctx, after in contexts.values():
        note_context(ctx)
        vars(ctx).clear()
        vars(ctx).update(after)


def _merge_writes(test: Tensor, first: Any, second: Any) -> None:
    for key in first[0].keys() | second[0].keys():
        storage = (first[0].get(key) or second[0][key])[0]
        a, b = (side[0][key][1] if key in side[0] else storage.value for side in (first, second))
        note_storage(storage)
        storage.value = _choose(test, a, b)
        storage.version += 1
    for key in first[1].keys() | second[1].keys():
        ctx = (first[1].get(key) or second[1][key])[0]
        a, b = (side[1][key][1] if key in side[1] else dict(vars(ctx)) for side in (first, second))
        note_context(ctx)
        merged = {
            k: _merge(test, a.get(k, UNDEFINED), b.get(k, UNDEFINED), f"ctx.{k}") for k in {**a, **b} if k != "_own"
        }
        merged["_own"] = ctx.merge(a["_own"], b["_own"], lambda x, y: _merge(test, x, y, "a saved tensor"))
        vars(ctx).clear()
        vars(ctx).update(merged)


def _choose(test: Tensor, a: Value, b: Value) -> Value:
    if a is b:
        return a
    return compute(lambda t, x, y: (jnp.where(t, x, y),), [test.value, a, b], "WhereBackward")[0]


def _merge(test: Tensor, a: Any, b: Any, name: str) -> Any:
    """Return the value of a variable after two branches."""
    if a is b or b is UNDEFINED:
        return a
    if a is UNDEFINED:
        return b
    kinds = (Tensor, *_NUMBERS)
    if isinstance(a, kinds) and isinstance(b, kinds):
        if not isinstance(a, Tensor) and not isinstance(b, Tensor) and type(a) is type(b) and a == b:
            return a
        return _merge_tensors(test, a, b, name)
    if type(a) is type(b) and isinstance(a, (tuple, list)) and len(a) == len(b):
        made = [_merge(test, x, y, f"{name}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True))]
        return type(a)(*made) if hasattr(a, "_fields") else type(a)(made)
    if type(a) is type(b) and isinstance(a, dict) and a.keys() == b.keys():
        return {k: _merge(test, a[k], b[k], f"{name}[{k!r}]") for k in a}
    if type(a) is type(b) and not isinstance(a, kinds) and _equal(a, b):
        return a
    zero = None
    if (a is None and isinstance(b, Tensor)) or (b is None and isinstance(a, Tensor)):  # as a gradient, None is zero
        given: Any = a if isinstance(a, Tensor) else b
        none = make(jnp.zeros(given.shape, given.array.dtype), given.dtype)
        zero = _merge_tensors(test, none if a is None else a, none if b is None else b, name)
    return Missing(
        name,
        NotSupported(f"{name} is {_describe(a)} in one branch and {_describe(b)} in the other, and JAX decides which"),
        zero,
    )


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception:  # noqa: BLE001 - objects that cannot be compared are different
        return False


def _describe(value: Any) -> str:
    return (
        f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{type(value).__name__} {value!r}"
    )


def _merge_tensors(test: Tensor, a: Any, b: Any, name: str) -> Any:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.memory is b.memory and a.part == b.part and a.layout.shape == b.layout.shape:
            same = a.layout.strides == b.layout.strides and a.layout.ctypes.data == b.layout.ctypes.data
            if same:
                return a
        if a.shape != b.shape:
            return Missing(
                name,
                NotSupported(f"{name} has the shape {tuple(a.shape)} in one branch and {tuple(b.shape)} in the other"),
            )
    both = [a, b]
    tensors = [x for x in both if isinstance(x, Tensor)]
    plain = [x for x in tensors if not x.number]
    kinds = [type_of_number(x) for x in both if not isinstance(x, Tensor)]
    kinds += [{"bool": bool, "int": int, "float": float, "complex": complex}[x.dtype.kind] for x in tensors if x.number]
    own = result_type([(t.dtype, t.ndim) for t in plain], kinds)
    if not plain and own.kind == "float":
        own = DTYPES["float64"]
    shape = tensors[0].shape if tensors else ()
    values = [x.value if isinstance(x, Tensor) else Value(jnp.full(shape, x, own.array)) for x in both]
    chosen = compute(
        lambda t, x, y: (jnp.where(t, x.astype(own.array), y.astype(own.array)),),
        [test.value, *values],
        "WhereBackward",
    )[0]
    made = make(chosen.array, own, value=chosen)
    made.number = not plain
    return made


# ---------------------------------------------------------------------------------- loops


def while_(test: Callable[..., Any], body: Callable[..., State], values: State, names: Sequence[str]) -> State:
    """Run a loop; from the iteration on whose test is traced, as one of JAX's."""
    while True:
        decided = truth(test(*values))
        if not isinstance(decided, bool):
            return _traced_while(test, body, values, names)
        if not decided:
            return values
        values = body(*values)


class TracedRange:
    """A range with a traced bound."""

    def __init__(self, *bounds: Any) -> None:
        self.start, self.stop, self.step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]


def for_(iterable: Any, body: Callable[..., State], values: State, names: Sequence[str], broken: int | None) -> State:
    """Run a loop over things; one that ends on a traced flag goes on as one of JAX's.

    Args:
        iterable: what is iterated.
        body: the item and the variables' values → their values after it.
        values: of the variables that the body writes.
        names: of these variables.
        broken: which of them says that the loop is over.
    """
    if isinstance(iterable, TracedRange):
        return _count(iterable.start, iterable.stop, iterable.step, body, values, names, broken)
    items = iterable if isinstance(iterable, range) else iter(iterable)
    if isinstance(items, range):
        for at, item in enumerate(items):
            values = body(item, *values)
            over = False if broken is None else truth(values[broken])
            if not isinstance(over, bool):
                rest = items[at + 1 :]
                if len(rest) <= 4:
                    return _unroll(rest, body, values, names, broken)
                return _count(rest.start, rest.stop, rest.step, body, values, names, broken)
            if over:
                break
        return values
    for item in items:
        values = body(item, *values)
        over = False if broken is None else truth(values[broken])
        if not isinstance(over, bool):
            return _unroll(items, body, values, names, broken)
        if over:
            break
    return values


def _unroll(items: Any, body: Callable[..., State], values: State, names: Sequence[str], broken: int | None) -> State:
    assert broken is not None
    for item in items:
        values = if_(values[broken], lambda *v: v, lambda *v, item=item: body(item, *v), values, names)
    return values


def _count(
    start: Any,
    stop: Any,
    step: Any,
    body: Callable[..., State],
    values: State,
    names: Sequence[str],
    broken: int | None,
) -> State:
    """Run a loop over numbers as a loop with a test."""

    def test(at: Any, *state: Any) -> Any:
        go_on = at < stop if isinstance(step, Tensor) or step > 0 else at > stop
        return go_on if broken is None else and_(lambda: not_(state[broken]), lambda: go_on)

    def step_once(at: Any, *state: Any) -> State:
        return (at + step, *body(at, *state))

    first = start if isinstance(start, Tensor) else number(jnp.asarray(start, DTYPES["int64"].array))
    return _traced_while(test, step_once, (first, *values), ("the loop's number", *names))[1:]


class _Carry:
    """The variables and storages of a loop, as arrays.

    Attributes:
        storages: that the body writes to.
    """

    def __init__(self, values: State, names: Sequence[str]) -> None:
        self.names, self.values, self.storages = names, values, list[Any]()
        flat = [jax.tree.flatten(v, is_leaf=_is_leaf) for v in values]
        self.trees: list[Any] = [tree for _, tree in flat]
        self.leaves = [leaves for leaves, _ in flat]
        # Of each leaf its dtype and whether it is a Python number; None where it is carried as the object that it is.
        self.kinds = [[_kind_of(leaf) for leaf in leaves] for leaves in self.leaves]

    def enter(self, arrays: Sequence[Any]) -> list[Any]:
        """Put arrays into the variables and storages."""
        given = iter(arrays)
        full = []
        for tree, leaves, kinds in zip(self.trees, self.leaves, self.kinds, strict=True):
            made = [
                leaf if kind is None else _make_of(kind, next(given)) for leaf, kind in zip(leaves, kinds, strict=True)
            ]
            full.append(tree.unflatten(made))
        self.write(given)
        return full

    def write(self, arrays: Any) -> None:
        """Put arrays into the storages."""
        for storage, array in zip(self.storages, arrays, strict=False):
            note_storage(storage)
            storage.value = Value(array)
            storage.version += 1

    def leave(self, state: Sequence[Any]) -> list[Any]:
        """Return the arrays of the variables and storages."""
        arrays = []
        for value, kinds in zip(state, self.kinds, strict=True):
            leaves = jax.tree.leaves(value, is_leaf=_is_leaf)
            if len(leaves) != len(kinds):
                leaves = [UNDEFINED] * len(kinds)
            for leaf, kind in zip(leaves, kinds, strict=True):
                if kind is not None:
                    array = leaf.array if isinstance(leaf, Tensor) else jnp.asarray(leaf)
                    arrays.append(array.astype(kind[0].array))
        return [*arrays, *(s.value.array for s in self.storages)]

    def settle(self, state: Sequence[Any], written: Sequence[Any]) -> bool:
        """Take in what a run of the body showed; return whether something was new."""
        changed = False
        for at, (value, name) in enumerate(zip(state, self.names, strict=True)):
            leaves: list[Any]
            tree: Any
            leaves, tree = jax.tree.flatten(value, is_leaf=_is_leaf)
            if self.values[at] is UNDEFINED and self.leaves[at] == [UNDEFINED] and value is not UNDEFINED:
                # Nobody reads it before it is set, so that zeros may stand there.
                self.trees[at], self.kinds[at] = tree, [_kind_of(leaf) for leaf in leaves]
                self.leaves[at] = [_zeros_of(leaf) for leaf in leaves]
                changed = True
                continue
            if tree != self.trees[at]:
                raise NotSupported(f"{name} becomes {_describe(value)} in a loop that ends on a traced value")
            for i, (before, after) in enumerate(zip(self.leaves[at], leaves, strict=True)):
                changed |= self._settle_leaf(at, i, before, after, name)
        for storage in written:
            if all(storage is not s for s in self.storages):
                self.storages.append(storage)
                changed = True
                for leaves, kinds in zip(self.leaves, self.kinds, strict=True):
                    for i, leaf in enumerate(leaves):
                        if isinstance(leaf, Tensor) and leaf.memory is storage:
                            kinds[i] = None  # the same object in each iteration: its storage is carried
        return changed

    def _settle_leaf(self, at: int, i: int, before: Any, after: Any, name: str) -> bool:
        kind, new = self.kinds[at][i], _kind_of(after)
        if kind is None:
            if after is not before and not _equal(after, before):
                raise NotSupported(f"{name} becomes {_describe(after)} in a loop that ends on a traced value")
            return False
        if new is None:
            raise NotSupported(f"{name} becomes {_describe(after)} in a loop that ends on a traced value")
        if isinstance(before, Tensor) and isinstance(after, Tensor) and after.shape != before.shape:
            raise NotSupported(
                f"{name} has the shape {tuple(before.shape)} before a loop that ends on a traced value, and "
                f"{tuple(after.shape)} after an iteration"
            )
        own = kind[0] if new[0] is kind[0] else result_type([(new[0], 1), (kind[0], 1)])
        joined = (own, kind[1] and new[1])
        self.kinds[at][i] = joined
        return joined != kind


def _is_leaf(value: Any) -> bool:
    return isinstance(value, Tensor) or value is UNDEFINED or value is None


def _kind_of(leaf: Any) -> tuple[Any, bool] | None:
    if isinstance(leaf, Tensor):
        return leaf.dtype, leaf.number
    return (_dtype_of_number(leaf), True) if isinstance(leaf, _NUMBERS) else None


def _make_of(kind: tuple[Any, bool], array: Any) -> Tensor:
    made = make(array, kind[0])
    made.number = kind[1]
    return made


def _zeros_of(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return _make_of((leaf.dtype, leaf.number), jnp.zeros(leaf.shape, leaf.dtype.array))
    return type(leaf)() if isinstance(leaf, _NUMBERS) else leaf


def _traced_while(test: Callable[..., Any], body: Callable[..., State], values: State, names: Sequence[str]) -> State:
    """Run a loop as jax.lax.while_loop: variables and storages that it writes are carried."""
    carry = _Carry(values, names)

    def run(arrays: Sequence[Any], found: dict[str, Any]) -> list[Any]:
        with Journal() as journal:
            state = body(*carry.enter(arrays))
            found["state"], found["written"] = state, [s for s, _ in journal.storages.values()]
            result = carry.leave(state)
        journal.take_back()
        return result

    def ask(arrays: Sequence[Any]) -> Any:
        with Journal() as journal:
            decided = truth(test(*carry.enter(arrays)))
        journal.take_back()
        return jnp.asarray(decided.array if isinstance(decided, Tensor) else decided)

    mode = get_mode()
    leaves = [leaf.value for leaves in carry.leaves for leaf in leaves if isinstance(leaf, Tensor)]
    with watch() as read, set_mode(Mode(enabled=False, constant=mode.constant)):
        for _ in range(8):  # until dtypes and what is written are known
            found: dict[str, Any] = {}
            first = [tree.unflatten(leaves) for tree, leaves in zip(carry.trees, carry.leaves, strict=True)]
            start = carry.leave(first)
            jax.eval_shape(lambda *a, found=found: _explore(run, a, found), *start)
            if not carry.settle(found["state"], found["written"]):
                break
        end = jax.lax.while_loop(ask, lambda a: run(a, {}), start)
    result = tuple(carry.enter(end))
    if mode.enabled:  # JAX differentiates the loop as it can; PyTorch's autograd in the source cannot
        parents = [v for v in (*leaves, *read) if v.requires_grad]
        for leaf in jax.tree.leaves(result, is_leaf=_is_leaf) if parents else ():
            if isinstance(leaf, Tensor) and leaf.dtype.kind in {"float", "complex"}:
                _refuse_gradients(leaf, leaves)
    return result


def _refuse_gradients(tensor: Tensor, parents: Sequence[Value]) -> None:
    """Make torch.autograd.grad raise where it comes to a loop that ended on a traced value."""

    def refuse(*_: Any) -> tuple[Any, ...]:
        raise NotSupported(
            "torch.autograd through a loop that ends on a traced value", "write it with a fixed number of iterations"
        )

    value = tensor.value
    tensor.memory.value = Value(value.array, Node(refuse, parents, "WhileBackward"), requires_grad=True)
    tensor.memory.version += 1


def _explore(run: Callable[..., Any], arrays: Sequence[Any], found: dict[str, Any]) -> Any:
    """Run a body for what it writes; its variables may not have settled yet."""
    try:
        return run(arrays, found)
    except (TypeError, ValueError, AttributeError):
        if "state" not in found:
            raise
        return []


def _dtype_of_number(value: Any) -> Any:
    return {bool: DTYPES["bool"], int: DTYPES["int64"], float: DTYPES["float64"]}.get(type_of_number(value), DEFAULT)


# ---------------------------------------------------------------------------------- expressions


def and_(*parts: Callable[[], Any]) -> Any:
    """Return `a and b`, a traced truth where one is met."""
    for i, part in enumerate(parts):
        value = part()
        if i == len(parts) - 1:
            return value
        decided = truth(value)
        if not isinstance(decided, bool):
            return _logical(jnp.logical_and, decided, and_(*parts[i + 1 :]))
        if not decided:
            return value
    return True


def or_(*parts: Callable[[], Any]) -> Any:
    """Return `a or b`, a traced truth where one is met."""
    for i, part in enumerate(parts):
        value = part()
        if i == len(parts) - 1:
            return value
        decided = truth(value)
        if not isinstance(decided, bool):
            return _logical(jnp.logical_or, decided, or_(*parts[i + 1 :]))
        if decided:
            return value
    return False


def _logical(function: Any, a: Tensor, b: Any) -> Tensor:
    other = truth(b)
    return number(function(a.array, other.array if isinstance(other, Tensor) else other))


def not_(value: Any) -> Any:
    """Return `not value`, a traced truth where it is one."""
    decided = truth(value)
    return not decided if isinstance(decided, bool) else number(jnp.logical_not(decided.array))


def assert_(test: Any, message: Callable[[], Any]) -> None:
    """Assert what is known; what is traced is taken for true."""
    decided = truth(test)
    if decided is False:
        raise AssertionError(*([message()] if message() is not None else []))


def _is_traced(value: Any) -> bool:
    return isinstance(value, Tensor) and not is_known(value.array)


def _to_number(kind: type, value: Any) -> Any:
    if not _is_traced(value):
        return kind(value)
    if value.layout.size != 1:
        raise RuntimeError("only one element tensors can be converted to Python scalars")
    array = value.array.reshape(())
    own = {int: DTYPES["int64"], float: DTYPES["float64"], bool: DTYPES["bool"]}[kind]
    return number(
        array != 0
        if kind is bool
        else jnp.trunc(array).astype(own.array)
        if kind is int and value.dtype.kind == "float"
        else array.astype(own.array)
    )


def _isinstance(value: Any, kinds: Any) -> bool:
    if isinstance(value, Tensor) and value.number:
        kind = {"bool": bool, "int": int, "float": float, "complex": complex}[value.dtype.kind]
        return issubclass(kind, kinds)
    return isinstance(value, kinds)


def _extreme(function: Any, name: str) -> Callable[..., Any]:
    def choose(*args: Any, **kwargs: Any) -> Any:
        values: list[Any] = list(args[0]) if len(args) == 1 else list(args)
        if kwargs or not any(map(_is_traced, values)):
            return function(values, **kwargs)
        return functools.reduce(lambda a, b: either(b > a if name == "max" else b < a, lambda: b, lambda: a), values)

    return choose


def builtin(function: Any, name: str) -> Any:
    """Return what stands for a builtin: itself for known values, a function of tensors for traced ones."""
    if function is not getattr(builtins, name):
        return function
    return _BUILTINS.get(name, function)


_BUILTINS: dict[str, Any] = {
    "int": lambda *args, **kwargs: _to_number(int, *args) if len(args) == 1 and not kwargs else int(*args, **kwargs),
    "float": lambda *args: _to_number(float, *args) if args else 0.0,
    "bool": lambda *args: _to_number(bool, *args) if args else False,
    "range": lambda *bounds: TracedRange(*bounds) if any(map(_is_traced, bounds)) else range(*bounds),
    "isinstance": _isinstance,
    "max": _extreme(max, "max"),
    "min": _extreme(min, "min"),
    "any": lambda values: or_(*[lambda v=v: v for v in values]) if values is not None else False,
    "all": lambda values: and_(*[lambda v=v: v for v in values]),
    "round": lambda x, *digits: x.round() if _is_traced(x) and not digits else round(x, *digits),
}
