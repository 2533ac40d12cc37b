"""The support matrix: each Function of the zoo in each transform, with each derivative, compared with plain JAX.

`python -m tests.matrix` tries every cell and writes docs/support.md; tests/test_matrix.py tries the same cells.
"""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

from tests import test_refs
from tests.triton.zoo import TRITON
from tests.wrappers import eager, four_devices, on_two_devices, scanned, sharded, vmapped
from tests.zoo import CASES as ZOO
from tests.zoo import Case

PAGE = Path(__file__).parent.parent / "docs" / "support.md"

CASES = [*ZOO, *TRITON]
WRAPPERS = {
    "eager": eager,
    "jit": jax.jit,
    "vmap": vmapped,
    "jit of vmap": lambda f: jax.jit(vmapped(f)),
    "vmap of jit": lambda f: vmapped(jax.jit(f)),
    "scan": scanned,
    "remat": jax.checkpoint,
    "Auto mesh": sharded(jax.lax.with_sharding_constraint),
    "Explicit mesh": sharded(jax.reshard),
    "Manual mesh (shard_map)": on_two_devices,
}
AXES = {"Auto mesh": AxisType.Auto, "Explicit mesh": AxisType.Explicit}


def under(wrapper: str) -> contextlib.AbstractContextManager[object]:
    """The context that a wrapper wants."""
    return jax.set_mesh(four_devices(AXES[wrapper])) if wrapper in AXES else contextlib.nullcontext()


QUANTITIES = {
    "value": lambda f: f,
    "grad": jax.grad,
    "value_and_grad": jax.value_and_grad,
    "second order": lambda f: jax.grad(lambda v: jnp.sum(jnp.sin(jax.grad(f)(v)))),
    "Hessian": lambda f: jax.jit(jax.hessian(f)),
    "jvp of grad": lambda f: lambda v: jax.jvp(jax.grad(f), (v,), (jnp.cos(v),))[1],
}

# (case, wrapper) → the error that its derivatives raise, and why; where forward raises it, the value is refused too.
REFUSED = {
    ("numpy_forward", "Manual mesh (shard_map)"): (
        "GradientError",
        (
            "JAX takes the result of a `pure_callback` for the same on all devices, and would sum its gradient over "
            "them. Write `jax.lax.pcast(y, axis, to='varying')` around the callback, or use `check_vma=False`."
        ),
    ),
    ("marked_output", "Explicit mesh"): (
        "ShardingTypeError",
        "`forward` sorts over the sharded axis, which JAX refuses there, in plain JAX too.",
    ),
    ("triton_function", "Explicit mesh"): (
        "KernelError",
        (
            "`forward` launches a kernel on blocks that do not follow the shards, for which JAX knows no sharding. "
            "Launch kernels inside `jax.shard_map`, as JAX demands of Pallas kernels."
        ),
    ),
}
IN_FORWARD = {"Explicit mesh"}


def of_vector(case: Case, f):
    """The loss of a case as a function of one real vector, and that vector."""
    args = case.inputs(np.random.default_rng(0))
    parts = [part for x in args for part in ([x.real, x.imag] if np.iscomplexobj(x) else [x])]
    ends = np.cumsum([part.size for part in parts])

    def loss(v):
        pieces = iter(jnp.split(v, ends[:-1]))
        again = lambda x: next(pieces).reshape(x.shape)
        return case.loss(f)(*(again(x) + 1j * again(x) if np.iscomplexobj(x) else again(x) for x in args))

    return loss, jnp.concatenate([jnp.asarray(part).ravel() for part in parts])


def twins(case: Case) -> dict[str, object]:
    """Each quantity of plain JAX, from one compiled program."""
    f, v = of_vector(case, case.twin)
    return jax.jit(lambda v: {name: quantity(f)(v) for name, quantity in QUANTITIES.items()})(v)


# Only here does apply meet concrete numbers. In the other wrappers it is traced in any case, and all quantities of one
# are one program: that takes half the time of six.
CONCRETE = {"eager", "vmap"}


def outcomes(case: Case, wrapper: str, want: dict[str, object]) -> dict[str, str]:
    """Return the outcome of a Function in a wrapper, by quantity: yes, wrong, or the name of the error."""
    f, v = of_vector(case, WRAPPERS[wrapper](case.apply))
    run = eager if wrapper in CONCRETE else jax.jit
    if wrapper not in CONCRETE:
        with contextlib.suppress(Exception), under(wrapper):  # of one of them: which it is, is found below
            got = run(lambda v: {name: quantity(f)(v) for name, quantity in QUANTITIES.items()})(v)
            return {name: verdict(got[name], want[name]) for name in QUANTITIES}
    found = {}
    for name, quantity in QUANTITIES.items():
        try:
            with under(wrapper):
                got = run(quantity(f))(v)
            found[name] = verdict(got, want[name])
        except Exception as e:  # noqa: BLE001 - whatever it is belongs into the table
            found[name] = type(e).__name__
    return found


def verdict(got: object, want: object) -> str:
    close = jax.tree.map(lambda g, w: np.allclose(g, w, rtol=1e-9, atol=1e-12), got, want)
    return "yes" if all(jax.tree.leaves(close)) else "wrong"


def expected(case: Case, wrapper: str, quantity: str) -> str:
    if (case.name, wrapper) not in REFUSED or (quantity == "value" and wrapper not in IN_FORWARD):
        return "yes"
    return REFUSED[case.name, wrapper][0]


def render(cells: dict[tuple[str, str, str], str], versions: str) -> str:
    """The page, from the outcome of each (case, wrapper, quantity)."""
    lines = [
        "# Support matrix",
        "",
        "Each cell says for how many of the Functions in `tests/zoo.py` and `tests/triton/zoo.py` the result is that",
        "of the same formula in plain JAX, to nine digits in 64-bit numbers. Rows: the transform around",
        "`apply`. Columns: what is computed. In mesh rows the first axis is split over four devices, in the Manual one",
        "two examples over two devices. `second order` is reverse over reverse; `Hessian` and `jvp of grad` are",
        "forward over reverse.",
        "",
        f"`python -m tests.matrix` tries every cell and writes this page. Last written with {versions}.",
        "",
        f"| | {' | '.join(QUANTITIES)} |",
        "| --- |" + " --- |" * len(QUANTITIES),
    ]
    for wrapper in WRAPPERS:
        counts = [sum(cells[c.name, wrapper, q] == "yes" for c in CASES) for q in QUANTITIES]
        lines.append(f"| {wrapper} | {' | '.join(f'{count} of {len(CASES)}' for count in counts)} |")
    lines += ["", "## The Functions", "", ", ".join(f"`{c.name}`" for c in CASES) + ".", "", "## What is refused", ""]
    lines += [f"- `{case}` in {wrapper}: {reason}" for (case, wrapper), (_, reason) in REFUSED.items()]
    lines += STATED
    lines += TORCH
    lines += MODULES
    lines += REFS
    return "\n".join(lines) + "\n"


# What tests/torch/test_transforms.py verifies.
TORCH = [
    "",
    "## PyTorch source",
    "",
    "A Function that [`fnjax.torch.load`](guides/run-pytorch.md) gives, with writes in place in forward and",
    "backward, next to its twin in plain JAX (`tests/torch/test_transforms.py`).",
    "",
    "| | value | grad | second order | jvp of grad |",
    "| --- | --- | --- | --- | --- |",
    "| jit | yes | yes | yes | yes |",
    "| jit of vmap | yes | yes | yes | yes |",
    "| scan | yes | yes | yes | yes |",
    "| cond | yes | yes | yes | yes |",
    "| remat | yes | yes | yes | yes |",
]
# What tests/torch/test_functional_call.py and test_module_stacks.py verify.
MODULES = [
    "",
    "## Modules",
    "",
    "A [module](guides/modules.md) with a custom Function, a buffer that forward updates and a parameter that it",
    "clamps, next to its twin in plain JAX (`tests/torch/test_functional_call.py`): `stateful_call` gives the same",
    "outputs, new state and gradients under jit, vmap over stacked parameters, scan, remat and shard_map. It trains",
    "as a pytree with Equinox and as a Flax NNX module (`tests/torch/test_module_stacks.py`).",
]
# Facts that tests/test_forward_mode.py and others verify, in addition to the matrix.
STATED = [
    "- Forward mode, over reverse mode too, where `backward` is not linear in `grad_output` (clipping, a constant",
    "  added): it needs the transpose of `backward`, which does not exist. A class with a `jvp` has no need of it.",
    "- Forward mode and second derivatives of a `backward` marked `once_differentiable`: that is what the mark says.",
    "- `jax.hessian` of a [custom operator](guides/custom-operators.md) whose backward calls an operator with a NumPy",
    "  body: JAX cannot transpose the callback. `jax.jacrev(jax.grad(f))` works.",
    "- The second derivative of a saved intermediate that JAX cannot differentiate: save an input or output instead.",
]


# What tests/test_refs.py verifies.
REFS = [
    "",
    "## Refs",
    "",
    "[Refs](guides/refs.md) to which `forward` and `backward` write: do they hold what they hold after",
    "the same rules in a `jax.custom_vjp`, and are the results the same? Rows: the transform around `apply`.",
    "",
    "| | JAX 0.10 | JAX 0.12 |",
    "| --- | --- | --- |",
    *(
        f"| {name} | {'no' if name in test_refs.SINCE_0_12 else 'yes'} | yes |"
        for name in (*test_refs.TRANSFORMS, *test_refs.BATCHED)
    ),
]


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    cells = {}
    for case in CASES:
        want = twins(case)
        for wrapper in WRAPPERS:
            for quantity, outcome in outcomes(case, wrapper, want).items():
                cells[case.name, wrapper, quantity] = outcome
                if outcome != "yes":
                    print(case.name, wrapper, quantity, outcome, flush=True)
    PAGE.write_text(render(cells, f"JAX {jax.__version__}, Python {platform.python_version()}"))


if __name__ == "__main__":
    main()
