"""FunctionCtx, the recorder of one forward call."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import jax

from fnjax._primitives.tree import concrete_type, is_tensor, iter_leaves, map_leaves, to_tensor
from fnjax.errors import ArgumentError, ContextError, error, type_name


class NeedsInputGrad(tuple[Any, ...]):
    """Tuple of bools that can also be called, as in C++.

    Examples:
        >>> needs = NeedsInputGrad((True, False, False))
        >>> needs[0], needs(0), needs((1, 3)), needs([(0, 1), (2, 3)])
        (True, True, False, True)
    """

    __slots__ = ()

    def __call__(self, which: int | tuple[int, int] | Sequence[tuple[int, int]]) -> bool:
        """Return whether any argument in `which` needs a gradient: an index, a range (begin, end), a list of ranges."""
        if isinstance(which, int):
            return any(iter_leaves(self[which]))
        if isinstance(which, tuple):
            return any(iter_leaves(tuple(self[slice(*which)])))
        return any(self(pair) for pair in which)


class Record(NamedTuple):
    """Everything that a ctx has recorded but attributes; each method of ctx replaces it.

    Attributes:
        needs: `needs_input_grad`.
        inputs: the arrays among the arguments of forward.
        single_access: whether `saved_tensors` may be read once.
        to_save: the arguments of `save_for_backward`.
        to_save_forward: the arguments of `save_for_forward`.
        saved: `saved_tensors`; None once they have been read and may not be read again.
        dirty: the arguments of `mark_dirty`.
        non_differentiable: the arguments of `mark_non_differentiable`.
        materialize: the argument of `set_materialize_grads`.
        materialize_non_diff: `_materialize_non_diff_grads`: whether outputs without a derivative get zeros, too.
        facts: everything but arrays that a codec needs to rebuild what it saved.
    """

    needs: NeedsInputGrad
    inputs: Sequence[Any] = ()
    single_access: bool = False
    to_save: tuple[Any, ...] = ()
    to_save_forward: tuple[Any, ...] = ()
    saved: tuple[Any, ...] | None = ()
    dirty: tuple[Any, ...] = ()
    non_differentiable: tuple[Any, ...] = ()
    materialize: bool = True
    materialize_non_diff: bool = True
    facts: Any = None


class FunctionCtx:
    """Context that `forward` fills for `backward`: saved tensors, attributes and marks.

    fnjax makes one for each run of `forward` and passes it as `ctx`; what it recorded comes back in the `ctx` of
    `backward`. Any attribute can be set; arrays in it (in containers too) become residuals, everything else is kept
    unchanged. Unlike PyTorch, an attribute set in `backward` is lost after that call, and there is no graph to
    inspect.

    Attributes:
        saved_data: a dict for anything, as in PyTorch's C++ API.
    """

    # In slots, so that vars(ctx) holds the user's attributes only: all other names are the user's.
    __slots__ = ("__dict__", "__weakref__", "_fnjax_record", "saved_data")

    def __init__(
        self, needs_input_grad: NeedsInputGrad, inputs: Sequence[Any] = (), single_access: bool = False
    ) -> None:
        self._fnjax_record = Record(needs_input_grad, inputs, single_access)
        self.saved_data: dict[str, Any] = {}

    @property
    def needs_input_grad(self) -> NeedsInputGrad:
        """For each argument a bool, whether it is being differentiated; pytrees of bools if `pytree = True`."""
        return self._fnjax_record.needs

    @needs_input_grad.setter
    def needs_input_grad(self, needs: Sequence[Any]) -> None:
        self._fnjax_record = self._fnjax_record._replace(needs=NeedsInputGrad(needs))

    def save_for_backward(self, *tensors: Any) -> None:
        """Save arrays (or None, which keeps its place) for `ctx.saved_tensors`; a second call replaces the first.

        Raises:
            TypeError: for anything that is neither an array nor None; set it as an attribute of ctx.
        """
        array = concrete_type()
        if not all(type(x) is array or isinstance(x, jax.Array) for x in tensors):
            for i, tensor in enumerate(tensors):
                if tensor is not None and not is_tensor(tensor):
                    raise refuse_saved(self, i, tensor)
            tensors = tuple(None if t is None else to_tensor(t) for t in tensors)
        self._fnjax_record = self._fnjax_record._replace(to_save=tensors)

    def save_for_forward(self, *tensors: Any) -> None:
        """Save arrays for `jvp`; they are separate from those for `backward`.

        Raises:
            AssertionError: for anything that is not an array.
        """
        for tensor in tensors:
            if tensor is not None and not is_tensor(tensor):
                raise AssertionError(
                    "save_for_forward expects all arguments to be tensors; you should save non-tensors as "
                    f"attributes on ctx. ({type(self).__name__} got {tensor!r:.80})"
                )
        self._fnjax_record = self._fnjax_record._replace(to_save_forward=tensors)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The saved arrays in `backward`; the empty tuple in `forward`, as in PyTorch."""
        saved = self._fnjax_record.saved
        if saved is None:
            raise error(
                ContextError,
                "saved_tensors can only be accessed once when clear_saved_tensors_on_access=True is set on the "
                f"autograd.Function ({type(self).__name__})",
                "saved-tensors-once",
                fix="Either access saved_tensors only once, or set clear_saved_tensors_on_access=False",
            )
        if self._fnjax_record.single_access and saved:
            self._fnjax_record = self._fnjax_record._replace(saved=None)
        return saved

    @saved_tensors.setter
    def saved_tensors(self, _: Any) -> NoReturn:
        self._not_writable("saved_tensors")

    @property
    def saved_variables(self) -> tuple[Any, ...]:
        """`saved_tensors` under its older name; warns, as PyTorch does."""
        warnings.warn("'saved_variables' is deprecated; use 'saved_tensors'", DeprecationWarning, stacklevel=2)
        return self.saved_tensors

    @saved_variables.setter
    def saved_variables(self, _: Any) -> NoReturn:
        self._not_writable("saved_variables")

    def get_saved_variables(self) -> tuple[Any, ...]:
        """Return `saved_tensors`; this is its C++ name."""
        return self.saved_tensors

    @property
    def to_save(self) -> tuple[Any, ...]:
        """The arguments of `save_for_backward`, readable in `forward`."""
        return self._fnjax_record.to_save

    @to_save.setter
    def to_save(self, tensors: Any) -> None:
        self.save_for_backward(*self._tuple(tensors, "to_save"))

    @property
    def non_differentiable(self) -> tuple[Any, ...]:
        """The arguments of `mark_non_differentiable`."""
        return self._fnjax_record.non_differentiable

    @non_differentiable.setter
    def non_differentiable(self, tensors: Any) -> None:
        self.mark_non_differentiable(*self._tuple(tensors, "non_differentiable"))

    @property
    def dirty_tensors(self) -> tuple[Any, ...]:
        """The arguments of `mark_dirty`."""
        return self._fnjax_record.dirty

    @dirty_tensors.setter
    def dirty_tensors(self, tensors: Any) -> None:
        self.mark_dirty(*self._tuple(tensors, "dirty_tensors"))

    def _tuple(self, value: Any, attribute: str) -> tuple[Any, ...]:
        if value is None:
            return ()
        if not isinstance(value, tuple):
            raise error(
                ContextError,
                f"autograd internal error: {attribute} attribute is expected to be a tuple but is {type_name(value)} "
                f"({type(self).__name__})",
                "ctx-attributes",
                fix=f"assign a tuple to ctx.{attribute}, or call the method of ctx that sets it",
            )
        return value

    def mark_dirty(self, *tensors: Any) -> None:
        """Declare that inputs were changed in place; in JAX they never are, so this only checks its arguments.

        Unlike PyTorch, nothing else happens: arrays cannot change, so return the new array as an output.

        Raises:
            RuntimeError: for anything that is not an array.
        """
        for i, tensor in enumerate(tensors):
            if not is_tensor(tensor):
                raise error(
                    ContextError,
                    f"mark_dirty can only accept variables, but argument {i} is of type {type_name(tensor)} "
                    f"({type(self).__name__})",
                    "mark-dirty",
                    fix="pass the input arrays that the PyTorch code changed in place",
                )
            if not any(tensor is x for x in self._fnjax_record.inputs):
                warnings.warn(
                    "ctx.mark_dirty() received a tensor that was not an input. Only input Tensors that have been "
                    f"mutated should be passed to ctx.mark_dirty(). ({type(self).__name__}, argument {i})",
                    UserWarning,
                    stacklevel=2,
                )
        self._fnjax_record = self._fnjax_record._replace(dirty=tensors)

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Mark outputs that carry no gradient; `backward` sees zeros for them. A later call replaces this one.

        Raises:
            RuntimeError: for anything that is not an array.
        """
        for i, tensor in enumerate(tensors):
            if not is_tensor(tensor):
                raise error(
                    ContextError,
                    f"mark_non_differentiable only accepts variable arguments, but got {type_name(tensor)} "
                    f"({type(self).__name__}, argument {i})",
                    "mark-non-differentiable",
                    fix="pass the output arrays themselves, before they are returned",
                )
        self._fnjax_record = self._fnjax_record._replace(non_differentiable=tensors)

    def mark_shared_storage(self, *pairs: Any) -> None:
        """Do nothing; PyTorch has deprecated it, and JAX arrays do not share storage."""
        warnings.warn(
            "`mark_shared_storage` is deprecated. Tensors with shared storages are automatically tracked.",
            FutureWarning,
            stacklevel=2,
        )

    def set_materialize_grads(self, value: bool) -> None:
        """Choose whether `backward` gets zeros (the default) or None for an output that has no gradient.

        Raises:
            TypeError: for anything but a bool.
        """
        if not isinstance(value, bool):
            raise error(
                ArgumentError,
                "set_materialize_grads received an invalid combination of arguments - got "
                f"({type_name(value)}), but expected (bool) ({type(self).__name__})",
                "set-materialize-grads",
                fix="pass True or False",
            )
        self._fnjax_record = self._fnjax_record._replace(materialize=value)

    @property
    def materialize_grads(self) -> bool:
        """The argument of `set_materialize_grads`; True by default."""
        return self._fnjax_record.materialize

    @materialize_grads.setter
    def materialize_grads(self, value: bool) -> None:
        self.set_materialize_grads(value)

    @property
    def _materialize_non_diff_grads(self) -> bool:
        return self._fnjax_record.materialize_non_diff

    @_materialize_non_diff_grads.setter
    def _materialize_non_diff_grads(self, value: bool) -> None:
        self._fnjax_record = self._fnjax_record._replace(materialize_non_diff=value)

    @classmethod
    def name(cls) -> str:
        """Return the name of the node, `SquareBackward` for a class `Square`."""
        return cls.__name__

    def _not_writable(self, attribute: str) -> NoReturn:
        raise AttributeError(
            f"attribute '{attribute}' of '{type(self).__name__}' objects is not writable; "
            "save arrays with ctx.save_for_backward(...), or choose another name for the attribute"
        )


# Functions, not methods: all attribute names of a ctx are free for the user.


def refuse_saved(ctx: FunctionCtx, index: int, value: object) -> ArgumentError:
    """Build the error for an argument of `save_for_backward` that is no array."""
    return error(
        ArgumentError,
        f"save_for_backward can only save variables, but argument {index} is of type {type_name(value)} "
        f"({type(ctx).__name__})",
        "save-for-backward",
        expected="arrays and None, each as an argument of its own",
        got=f"argument {index} = {value!r:.80}",
        fix="set it as an attribute (ctx.name = value), which may hold anything; pass a list as *list; "
        "a number that should have a gradient goes into apply as jnp.asarray(number)",
    )


def arrays_of(ctx: FunctionCtx) -> list[Any]:
    """Return all JAX arrays that a ctx holds."""
    return [leaf for leaf in iter_leaves(_content(ctx)) if isinstance(leaf, jax.Array)]


def map_arrays(fun: Callable[[Any], Any], ctx: FunctionCtx) -> FunctionCtx:
    """Return a copy of a ctx with `fun` applied to its arrays."""
    other = copy.copy(ctx)
    mapped = map_leaves(fun, _content(ctx), lambda leaf: isinstance(leaf, jax.Array))
    other._fnjax_record = ctx._fnjax_record._replace(saved=mapped["saved"])
    other.saved_data = mapped["data"]
    vars(other).update(mapped["attributes"])
    return other


def _content(ctx: FunctionCtx) -> dict[str, Any]:
    return {"saved": ctx._fnjax_record.saved, "attributes": dict(vars(ctx)), "data": ctx.saved_data}


def _graph_attribute(attribute: str) -> property:
    def get(self: FunctionCtx) -> NoReturn:
        raise AttributeError(
            f"'{type(self).__name__}' object has no attribute '{attribute}': there is no graph in JAX; "
            "jax.make_jaxpr(jax.grad(f)) shows what will run"
        )

    return property(get, lambda self, _: self._not_writable(attribute))


for _attribute in ("next_functions", "metadata", "register_hook", "register_prehook", "_raw_saved_tensors"):
    setattr(FunctionCtx, _attribute, _graph_attribute(_attribute))

FunctionCtx.__module__ = "fnjax"
