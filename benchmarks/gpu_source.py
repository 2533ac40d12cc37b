"""Parts of benchmarks.gpu that run source as it is: PyTorch classes, and Triton kernels."""

import importlib.util
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import fnjax
from benchmarks import harness

# Swish in PyTorch's form, and a module of it.
SWISH = Path(__file__).parents[1] / "examples/torch_forms/gallery/wgan_gp.py"
NET = """

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(1024, 1024) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = Swish.apply(layer(x))
        return x
"""


def as_is(report, options):
    """Measure a Function and a module of a PyTorch file next to twins written by hand."""
    from benchmarks.against_torch import agree
    from benchmarks.models import by_hand, swish_backward, swish_forward

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "net_torch.py")
        path.write_text(SWISH.read_text() + NET)
        loaded = fnjax.torch.load(path)
    with fnjax.torch.seed(0):
        model = loaded.Net()
    params = fnjax.torch.jax_view(dict(model.named_parameters()))
    x = jax.random.normal(jax.random.key(0), (256, 1024))

    swish = by_hand(swish_forward, swish_backward, barrier=False)

    def twin_of_net(params, x):
        for i in range(2):
            x = swish(x @ params[f"layers.{i}.weight"].T + params[f"layers.{i}.bias"])
        return x

    cases = {
        "Function": (loaded.Swish.apply, swish, (x,)),
        "module": (lambda p, x: fnjax.torch.func.functional_call(model, p, (x,)), twin_of_net, (params, x)),
    }
    rows = []
    for name, (ours, twin, args) in cases.items():
        compiled = {
            title: jax.jit(jax.value_and_grad(lambda *args, f=f: jnp.square(f(*args)).mean())).lower(*args).compile()
            for title, f in (("loaded", ours), ("by hand", twin), ("control", twin))
        }
        agree(f"{name} next to its twin", compiled["loaded"](*args), compiled["by hand"](*args))
        calls = {title: lambda f=f, args=args: jax.block_until_ready(f(*args)) for title, f in compiled.items()}
        times = harness.interleaved(calls, options.rounds)
        us = [round(harness.median_us(times, title)) for title in ("loaded", "by hand")]
        ratios = [harness.ratio(times, title, "by hand") for title in ("loaded", "control")]
        counts = [harness.kernels(compiled[title].as_text()) for title in ("loaded", "by hand")]
        rows.append((name, *us, *ratios, *counts))
    report.goals.append({"text": "values and gradients are those of the twins", "met": True})
    columns = ("", "loaded µs", "by hand µs", "ratio", "control", "kernels", "kernels by hand")
    report.table("PyTorch source", columns, rows)


def triton(report, options):
    """Measure the launches of benchmarks.triton_speed: the kernels themselves, their translations and their twins."""
    from benchmarks.triton_launches import LAUNCHES
    from fnjax.triton import backend
    from tests.triton.twins import forms_of

    original = importlib.util.find_spec("jax_triton") is not None and jax.default_backend() == "gpu"
    if not original:
        report.note("jax-triton is not installed, or JAX sees no GPU: no original kernels ran")
    rows = []
    for name, make in LAUNCHES.items():
        case = make()
        forms, inputs = forms_of(name, case)
        compiled = {"twin": jax.jit(forms["twin"]).lower(*inputs).compile()}
        for title, which in (("translated", "jax"), ("original", "triton")):
            if which == "jax" or original:
                with backend(which):
                    compiled[title] = jax.jit(forms["fnjax"]).lower(*inputs).compile()
        outputs = {title: jax.tree.leaves(f(*inputs)) for title, f in compiled.items()}
        for title, found in outputs.items():
            for ours, twin in zip(found, outputs["twin"], strict=True):
                # Triton multiplies matrices of 32 bits with 10 bits of mantissa (TF32), as its default is.
                np.testing.assert_allclose(ours, twin, rtol=0, atol=5e-3 * np.abs(twin).max(), err_msg=title)
        cases = {title: lambda f=f: jax.block_until_ready(f(*inputs)) for title, f in compiled.items()}  # noqa: B023
        times = harness.interleaved(cases, options.rounds)
        us = [round(harness.median_us(times, t)) if t in times else "-" for t in ("original", "translated", "twin")]
        rows.append((case.name, *us))
    report.goals.append({"text": "values are those of the twins", "met": True})
    report.table("Launches", ("", "original µs", "translated µs", "twin µs"), rows)
