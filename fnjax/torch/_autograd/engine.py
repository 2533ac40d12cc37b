"""`torch.autograd`: gradients, by replaying recorded operations under jax.vjp."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnjax._primitives.jax_internals import is_transformed
from fnjax._primitives.nondifferentiable import nondifferentiable
from fnjax.torch.deferred.either import Either
from fnjax.torch.errors import NotSupported, find_line
from fnjax.torch.memory.strides import preserve
from fnjax.torch.memory.tensor import Tensor, make
from fnjax.torch.recording.blocks import setting
from fnjax.torch.recording.gradient_mode import Mode, get_mode, set_mode
from fnjax.torch.recording.graph import RECORDS_GRADIENTS, Value, compute, list_nodes, resume_contexts
from fnjax.torch.recording.journal import is_in_loop, note_reached, note_tensor

KEPT = "KeptBackward"  # the name of a node that replaces a graph which forward saved on ctx


def _run_kept(leaves: Sequence[Any], kept: Any, linear: Callable[..., Any]) -> Any:
    """Return the results of an operation that ran before on these leaves, and was linearized there."""

    @jax.custom_jvp
    def function(*_: Any) -> Any:
        return kept

    function.defjvp(lambda _, tangents: (kept, linear(*tangents)))
    return function(*leaves)


def replay(
    roots: Sequence[Value], inputs: Sequence[Value], *, whole: bool = False
) -> tuple[Callable[..., list[Any]], list[Value]]:
    """Return a function that recomputes the roots from the inputs and the other leaves, and these leaves.

    Args:
        roots: the values to recompute.
        inputs: the values from which they are recomputed.
        whole: whether to recompute also the values that nodes only read, for second derivatives (`Node.reads`).
    """
    stop = {id(v) for v in inputs}
    nodes = list_nodes(roots, stop, whole=whole)
    read = [p for node in nodes for p in (*node.parents, *node.reads)] + list(roots)
    again = {id(node) for node in nodes}
    leaves = [p for p in read if p.requires_grad and id(p) not in stop and id(p.node) not in again]
    leaves = list({id(p): p for p in leaves}.values())
    runs_again = whole or is_transformed()  # a second derivative needs the function, and a hook replaces arrays

    def function(*arrays: Any) -> list[Any]:
        known: dict[Any, Any] = {id(v): a for v, a in zip([*inputs, *leaves], arrays, strict=True)}

        def find(value: Value) -> Any:
            if id(value) in known:
                return known[id(value)]
            return value.array if value.node is None else known.get((id(value.node), value.index), value.array)

        with set_mode(Mode(enabled=False)), setting(RECORDS_GRADIENTS, True):
            for node in nodes:
                if node.kept is not None and not runs_again:
                    kept, at, linear = node.kept
                    results = _run_kept([find(node.parents[i]) for i in at], kept, linear)
                    known |= {(id(node), i): array for i, array in enumerate(results)}
                    continue
                draws = contextlib.nullcontext() if node.draws is None else node.draws.resume()
                with draws, resume_contexts(node.contexts):
                    results = node.function(*map(find, (*node.parents, *node.reads)))
                known |= {(id(node), i): array for i, array in enumerate(results)}
        return [find(v) for v in roots]

    return function, leaves


def differentiate(
    roots: Sequence[Value], inputs: Sequence[Value], cotangents: Sequence[Value], *, record: bool
) -> list[Value]:
    """Return the gradients of roots with respect to inputs, in PyTorch's convention for complex numbers.

    Args:
        roots: the values to differentiate.
        inputs: the values with respect to which they are differentiated.
        cotangents: one for each root.
        record: whether the gradients can be differentiated again.
    """
    if record and any(n.label == KEPT for n in list_nodes(roots, {id(v) for v in inputs})):
        raise NotSupported(
            "create_graph=True for a graph that forward recorded and kept on ctx",
            "compute it again in backward, under torch.enable_grad()",
        )
    n, ids = len(inputs), {id(v) for v in inputs}
    reached = [1 if v.node is None else len(_reach([v]).keys() & ids) for v in inputs]
    # inputs that others lead to, later ones first: to these others gradients come through them, too
    passed = sorted((i for i in range(n) if reached[i] > 1), key=lambda i: -reached[i])
    parts = [replay(roots, inputs, whole=record)]
    parts += [replay([inputs[i]], [*inputs[:i], *inputs[i + 1 :]], whole=record) for i in passed]
    leaves = [*{id(v): v for _, read in parts for v in read}.values()]
    m = len(leaves)

    def gradients(*arrays: Any) -> tuple[Any, ...]:
        own, cts = list(arrays[:n]), arrays[n + m :]
        others = dict(zip(map(id, leaves), arrays[n : n + m], strict=True))

        def pull(part: Any, given: Sequence[Any], cotangents: list[Any]) -> Any:
            function, read = part
            rest = [others[id(v)] for v in read]
            return jax.vjp(lambda *xs: function(*xs, *rest), *given)[1](cotangents)

        total = list(pull(parts[0], own, [jnp.conj(c) for c in cts]))
        for i, part in zip(passed, parts[1:], strict=True):
            more = pull(part, [*own[:i], *own[i + 1 :]], [total[i]])
            for j, g in zip([*range(i), *range(i + 1, n)], more, strict=True):
                total[j] = total[j] + g
        return tuple(map(jnp.conj, total))

    parents = [*inputs, *leaves, *cotangents]
    with setting(RECORDS_GRADIENTS, record):
        if record:
            with set_mode(Mode(enabled=True)):
                return compute(gradients, parents, "GradBackward")
        if get_mode().constant:  # torch.no_grad around it: constants by intent
            found = gradients(*(v.array for v in (*inputs, *leaves, *cotangents)))
            return [Value(jax.lax.stop_gradient(x)) for x in found]
        fixed = _make_nondifferentiable([*inputs, *leaves])
        return [Value(x) for x in gradients(*fixed, *(c.array for c in cotangents))]


def _make_nondifferentiable(values: Sequence[Value]) -> list[Any]:
    """Return arrays whose derivative raises: gradients without create_graph are constants to PyTorch.

    JAX would differentiate them with respect to the cotangent.
    """
    inexact = [v for v in values if jnp.issubdtype(v.array.dtype, jnp.inexact)]
    arrays = iter(
        nondifferentiable(
            [v.array for v in inexact],
            [v.source for v in inexact if v.source is not None],
            functools.partial(_once, find_line()),
        )
    )
    return [next(arrays) if jnp.issubdtype(v.array.dtype, jnp.inexact) else v.array for v in values]


def _once(where: str) -> NotSupported:
    return NotSupported(
        "a second derivative of what torch.autograd gave without create_graph",
        "pass create_graph=True to torch.autograd, or call it under torch.no_grad() if it is to be a constant",
        where,
    )


def _start(root: Tensor, given: Tensor | None) -> Value:
    if given is not None:
        if given.shape != root.shape:
            raise RuntimeError(
                f"Mismatch in shape: grad_output has a shape of {given.shape} and output has a shape of {root.shape}."
            )
        return given.value
    if root.layout.size != 1:
        raise RuntimeError("grad can be implicitly created only for scalar outputs")
    return Value(jnp.ones(root.shape, root.array.dtype))


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    """Return the gradients of outputs with respect to inputs (torch.autograd.grad).

    Raises:
        RuntimeError: with PyTorch's messages.
    """
    roots = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    wanted = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    given = list(grad_outputs) if isinstance(grad_outputs, (list, tuple)) else [grad_outputs] * len(roots)
    pairs = [(r, g) for r, g in zip(roots, given, strict=True) if r.requires_grad]
    if not pairs:
        raise _make_error()
    values = [w.value for w in wanted]
    if any(not v.requires_grad for v in values):
        raise RuntimeError("One of the differentiated Tensors does not require grad")
    starts = [_start(r, g) for r, g in pairs]
    reached = _reach([r.value for r, _ in pairs])
    used = [v for v in values if id(v) in reached]
    unused = len(used) < len(values)
    if unused and not allow_unused and not materialize_grads:
        raise RuntimeError(
            "One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True if "
            "this is the desired behavior."
            + (
                " Of a graph that forward recorded backward has only what is on ctx: keep the tensors there, "
                "or compute it again in backward, under torch.enable_grad()."
                if all(r.value.node is None for r, _ in pairs)
                else ""
            )
        )
    unique = {id(v): v for v in used}
    retained = {k: v for k, v in reached.items() if v.leaf is not None and v.node is not None and k not in unique}
    retained = {k: v for k, v in retained.items() if unique.keys() & _reach([v]).keys()}
    both = [*unique.values(), *retained.values()]
    found = differentiate([r.value for r, _ in pairs], both, starts, record=create_graph) if unique else []
    by_value = {id(v): g for v, g in zip(unique.values(), found, strict=False)}
    for leaf, of_leaf in zip(retained.values(), found[len(unique) :], strict=True):
        _accumulate(leaf, of_leaf, create_graph)
    _show_writes(pairs)
    results = []
    for tensor, value in zip(wanted, values, strict=True):
        made = by_value.get(id(value))
        if made is None:
            results.append(make(jnp.zeros_like(tensor.array), tensor.dtype) if materialize_grads else None)
        else:
            gradient = make(made, tensor.dtype)
            # PyTorch takes the gradient before the hooks where it goes on to another input
            if value.node is None or len(_reach([value]).keys() & by_value.keys()) == 1:
                gradient = _run_hooks(value, gradient, create_graph)
            results.append(gradient)
    return tuple(results)


def _run_hooks(value: Value, gradient: Tensor, record: bool) -> Tensor:
    """Return the gradient that the hooks of a value's tensor return."""
    if value.hooks is None:
        return gradient
    with set_mode(Mode(enabled=record)):
        changed: Tensor = value.hooks(gradient)
    if record:
        return changed
    return make(_make_nondifferentiable([changed.value])[0], changed.dtype)


def _reach(roots: Sequence[Value]) -> dict[int, Value]:
    """Return the values that roots depend on."""
    found = {id(v): v for v in roots}
    for node in list_nodes(roots, set()):
        found |= {id(p): p for p in node.parents}
    return found


def list_leaves(roots: Sequence[Value]) -> list[Value]:
    """Return the values that require grad, were not computed, and that roots depend on."""
    return [v for v in _reach(roots).values() if v.node is None and v.requires_grad]


def _make_error() -> Exception:
    if is_in_loop():
        return NotSupported(
            "torch.autograd in a loop that ends on a traced value", "write it with a fixed number of iterations"
        )
    return RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add the gradients of tensors to the `.grad` of leaves (torch.autograd.backward)."""
    roots = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
    given = list(grad_tensors) if isinstance(grad_tensors, (list, tuple)) else [grad_tensors] * len(roots)
    pairs = [*zip(roots, given, strict=True)]
    starts = [_start(r, g) for r, g in pairs]
    values = [r.value for r in roots]
    if not any(v.requires_grad for v in values):
        raise _make_error()
    wanted = (
        None if inputs is None else {id(t.value) for t in (inputs if isinstance(inputs, (list, tuple)) else [inputs])}
    )
    leaves = [v for v in _reach(values).values() if v.leaf is not None and (wanted is None or id(v) in wanted)]
    for leaf, found in zip(leaves, differentiate(values, leaves, starts, record=create_graph), strict=True):
        _accumulate(leaf, found, create_graph)
    _show_writes(pairs)


def _accumulate(leaf: Value, found: Value, create_graph: bool) -> None:
    """Add a gradient to the `.grad` of a value's tensor."""
    tensor: Tensor = leaf.leaf
    strides = preserve(tensor.layout)
    made = _run_hooks(leaf, make(found, tensor.dtype, strides=strides), create_graph)
    note_tensor(tensor)

    def add(grad: Tensor | None) -> Tensor:
        if grad is None:
            return made
        with set_mode(Mode(enabled=create_graph)):
            total = compute(lambda a, b: (a + b,), [grad.value, made.value], "AddBackward")[0]
        if create_graph:
            return make(total, tensor.dtype, strides=strides)
        grad.assign(total)  # all tensors that share its memory see the sum
        return grad

    held: Any = tensor.grad
    tensor.grad = held.map(add) if type(held) is Either else add(held)
    with set_mode(Mode(enabled=False)):
        for hook in [] if leaf.hooks is None else [*leaf.hooks.after.values()]:
            note_reached(hook)
            if hook(tensor) is not None:
                raise RuntimeError("Tensor post accumulate grad hooks should return None.")


def _show_writes(pairs: Sequence[tuple[Tensor, Tensor | None]]) -> None:
    """Copy what a Function's backward wrote into its grad_output into the gradient that the caller passed."""
    for root, given in pairs:
        call = root.value.call
        written = None if call is None else call.written_gradients.pop(root.value.index, None)
        if written is not None and given is not None and len(pairs) == 1:
            with set_mode(get_mode()._replace(enabled=False)):
                given.assign(written)


def is_recording() -> bool:
    """Return whether operations are recorded (torch.is_grad_enabled)."""
    return get_mode().enabled
