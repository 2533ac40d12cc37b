"""Against PyTorch: training steps with fnjax and hand-written jax.custom_vjp, PyTorch eager and torch.compile.

python -m benchmarks.against_torch [--rounds 15] [--compile 1]

One process, the same numbers, two threads on each side; losses and new parameters are compared before anything is
timed. "matrix products" is a bare chain of the model's matrix products, forward and backward, on either side: what
of a ratio is only the faster product, and how much of a step of fnjax these products alone would take. Goals: fnjax is
no slower than custom_vjp, and the small models reach 2.1 times PyTorch eager and 1.5 times torch.compile, what
hand-written custom_vjp reached; the more of a step is matrix products, the closer its ratio is to theirs. torch.compile
may run parts of a model eagerly (the gradient inside the WGAN-GP critic's loss). Models run on a CUDA device where both
sides see one.
"""

import importlib.util
import sys

import jax
import numpy as np

from benchmarks import harness
from benchmarks.models import MODELS, RATE, SMALL, with_custom_vjp, with_fnjax

EAGER, COMPILED = 2.1, 1.5
SETTLE, CALLS = 0.05, 8


def torch_step(loss, parameters, data):
    """Return a training step of PyTorch: a pure function that returns the loss and new parameters."""
    import torch

    leaves = [p for group in parameters.values() for p in group]

    def step():
        value = loss(parameters, *data)
        grads = torch.autograd.grad(value, leaves)
        with torch.no_grad():
            return value.detach(), torch._foreach_add(leaves, grads, alpha=-RATE)

    return step


def to_torch(parameters, data, device):
    import torch

    tensors = {
        name: [torch.tensor(x, device=device, requires_grad=True) for x in group] for name, group in parameters.items()
    }
    return tensors, [torch.tensor(x, device=device) for x in data]


def products(model):
    """Return the bare matrix products of a model's sizes, forward and the two of backward: for JAX and for PyTorch."""
    import torch

    rows, times = (model.data[0][-2], model.data[0][0]) if len(model.data[0]) == 3 else (model.data[0][0], 1)
    draw = np.random.default_rng(0).normal
    pairs = [
        (draw(size=(rows, m)).astype(np.float32), draw(size=(m, n)).astype(np.float32) / m)
        for m, n in zip(model.sizes, model.sizes[1:], strict=False)
        for _ in range(times if n > 10 else 1)
    ]

    def chain(pairs):
        results = []
        for x, w in pairs:
            y = x @ w
            results += [y @ w.T, x.T @ y]
        return results

    ours = jax.jit(chain).lower(jax.device_put(pairs)).compile()
    device_pairs = jax.device_put(pairs)
    tensors = [(torch.tensor(x), torch.tensor(w)) for x, w in pairs]
    return {"JAX": lambda: jax.block_until_ready(ours(device_pairs)), "PyTorch": lambda: chain(tensors)}


def agree(name, ours, theirs):
    """Check that losses and new parameters are those of the other side, to the rounding of 32-bit numbers."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-3, atol=2e-5, err_msg=name)


def numbers(step):
    value, new = step()
    return [x.cpu().numpy() for x in (value, *new)]


def compiled(loss):
    import torch

    torch._dynamo.reset()
    return torch.compile(loss)


def measure(report, options):
    if importlib.util.find_spec("torch") is None:
        report.note("PyTorch is not installed: nothing to compare with (make parity installs it)")
        return
    import torch

    from benchmarks.torch_models import LOSSES

    torch.set_num_threads(harness.CORES)
    device = "cuda" if torch.cuda.is_available() and jax.default_backend() == "gpu" else "cpu"
    report.note(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads, device: {device}")
    found = {}
    cases = [(name, model) for models in (SMALL, MODELS) for name, model in models.items()]

    def rows():
        for name, model in cases:
            times = compare(name, model, LOSSES[name])
            bare = harness.interleaved(products(model), options.rounds, calls=CALLS, settle=SETTLE)
            found[model] = [harness.ratio(times, other, "fnjax") if other in times else None for other in OTHERS]
            us = harness.median_us(times, "fnjax")
            ratios = ("-" if r is None else r for r in found[model])
            shares = harness.ratio(bare, "PyTorch", "JAX"), harness.median_us(bare, "JAX") / us
            yield model.title, round(us), *ratios, *shares

    def compare(name, model, loss):
        parameters, data = model.numbers()
        args = jax.device_put((parameters, *data))
        steps = {
            form: jax.jit(model.step(operations)).lower(*args).compile()
            for form, operations in {"fnjax": with_fnjax(), "custom_vjp": with_custom_vjp()}.items()
        }
        cases = {form: lambda f=f: jax.block_until_ready(f(*args)) for form, f in steps.items()}
        tensors, batches = to_torch(parameters, data, device)
        theirs = {"eager": torch_step(loss, tensors, batches)}
        faster = compiled(loss) if options.compile else None
        value, new = cases["fnjax"]()
        ours = [value, *(p for group in parameters for p in new[group])]
        agree(f"{name}, eager", ours, numbers(theirs["eager"]))
        if faster is not None:
            step = torch_step(faster, tensors, batches)
            try:
                agree(f"{name}, compile", ours, numbers(step))
            except AssertionError:
                report.note(
                    f"{model.title}: torch.compile gives other new parameters than PyTorch eager, fnjax and "
                    "custom_vjp, which agree: it is not timed"
                )
            else:
                theirs["compile"] = step
        agree(name, cases["fnjax"](), cases["custom_vjp"]())

        def finished(step):
            def run():
                step()
                if device == "cuda":
                    torch.cuda.synchronize()

            return run

        cases |= {form: finished(step) for form, step in theirs.items()}
        return harness.interleaved(cases, options.rounds, calls=CALLS, settle=SETTLE)

    columns = ("", "fnjax µs", "custom_vjp", "eager", "torch.compile", "matrix products alone", "these, of a step")
    report.table("Times of the other side, in those of fnjax", columns, rows())
    for model, (by_hand, eager, faster) in found.items():
        report.goal(f"{model.title}: speed beside custom_vjp", by_hand, 0.95, at_least=True)
        if model in SMALL.values() and device == "cpu":
            report.goal(f"{model.title}: speed beside eager", eager, EAGER, at_least=True)
            if faster is not None:
                report.goal(f"{model.title}: speed beside torch.compile", faster, COMPILED, at_least=True)


OTHERS = ("custom_vjp", "eager", "compile")

if __name__ == "__main__":
    harness.use_two_cores()
    sys.exit(harness.run(measure, __doc__, rounds=15, compile=1))
