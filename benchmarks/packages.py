"""Public packages of PyTorch in fnjax.torch, without PyTorch: run their models, and write docs/packages.md.

    python -m benchmarks.packages [--folder FOLDER] [--only NAME …]

Each model of benchmarks/package_models.py is built in PyTorch and trained for three steps of SGD; then, in a process in
which PyTorch cannot be imported, in fnjax.torch with the same state dict, from a file of safetensors, the step under
jax.jit. What forward returns, the losses, the gradients of parameters and inputs, and all parameters and buffers after
the steps are compared. The packages are installed into the folder by pip, without what they depend on.
"""

import argparse
import ast
import functools
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

MODELS = Path(__file__).with_name("package_models.py")
PAGE = Path(__file__).parent.parent / "docs" / "packages.md"
# What the packages import beside PyTorch.
DEPENDENCIES = (
    "accelerate anyio assoc-scan beartype certifi click colt5-attention contexttimer einx frozendict "
    "gateloop-transformer h11 h5py hf-xet httpcore2 httpx2 huggingface-hub hyper-connections idna jaxtyping kornia-rs "
    "lightning-utilities linear-operator linformer loguru mpmath nir nirtorch opt-einsum opt-einsum-fx regex rich "
    "safetensors shellingham sniffio sympy tokenizers torch-einops-utils torchtyping trampoline truststore typeguard "
    "typer wadler-lindig"
)
STEPS, RATE, TOLERANCE, SECONDS = 3, 0.05, 1e-4, 600
HOW = f"""\
# Packages of PyTorch

`python -m benchmarks.packages` runs these models in PyTorch and, in a process that has no PyTorch, in `fnjax.torch`:
the packages as pip installs them, the same state dict and inputs, {STEPS} steps of SGD (in JAX under `jax.jit`) in
float32. What forward returns, losses, gradients of parameters and inputs, and parameters and buffers after the steps
differ by at most {TOLERANCE:g} of the largest element of each, or the row says how. The models are in
benchmarks/package_models.py; what is refused under `jax.jit` may run without it."""


def read_cases() -> dict[str, tuple[str, str]]:
    """Return for each model the package that it is of, and the names that it imports from that."""
    found = {}
    for node in ast.parse(MODELS.read_text()).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            froms = [n for n in ast.walk(node) if isinstance(n, ast.ImportFrom)]
            plain = [a.name for n in ast.walk(node) if isinstance(n, ast.Import) for a in n.names]
            package = (froms[0].module if froms else plain[0]).partition(".")[0]
            names = [a.name for n in froms for a in n.names] or plain
            found[node.name] = package.replace("_", "-"), ", ".join(f"`{n}`" for n in names)
    return found


class _Name(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(name, (), {})


class _Vision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder of torchvision, whose transforms and operators packages import though these models do not use them."""

    def find_spec(self, name, path=None, target=None):
        own = name.partition(".")[0] == "torchvision"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if own else None

    def exec_module(self, module):
        module.__getattr__ = functools.partial(_Name.__getattr__, None)


class _NoTorch(importlib.abc.MetaPathFinder):
    """Finder that raises as Python does where PyTorch is not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "torchvision"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def run_in_pytorch(name: str) -> dict[str, np.ndarray]:
    """Train a model in PyTorch; return its state before, and what is compared."""
    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.append(_Vision())
    import torch

    from benchmarks import package_models

    torch.manual_seed(0)
    model, inputs = getattr(package_models, name)()
    model = package_models.Measured(model)
    arrays = {f"state {k}": v.numpy().copy() for k, v in model.state_dict().items()}
    for step in range(STEPS):
        inputs = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
        params = {k: p for k, p in model.named_parameters() if p.requires_grad}
        loss, results = model(*inputs)
        model.zero_grad()
        loss.backward()
        arrays[f"loss {step}"] = loss.detach().numpy().copy()
        if step == 0:
            arrays |= {f"result {i}": r.detach().numpy().copy() for i, r in enumerate(results)}
            arrays |= {f"gradient of input {i}": x.grad.numpy() for i, x in enumerate(inputs) if x.grad is not None}
            arrays |= {f"gradient of {k}": p.grad.numpy().copy() for k, p in params.items() if p.grad is not None}
        if params:
            torch.optim.SGD(params.values(), RATE).step()
    named = [*model.named_parameters(), *model.named_buffers()]
    return arrays | {f"after, {k}": v.detach().numpy() for k, v in named}


def run_in_fnjax(name: str, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Train a model in fnjax.torch without PyTorch; return what is compared."""
    sys.meta_path.insert(0, _NoTorch())
    import jax

    from fnjax import torch

    models = torch.load(MODELS)
    with torch.seed(0):
        model, inputs = getattr(models, name)()
        model = models.Measured(model)
    model.load_state_dict({k: torch.tensor(v) for k, v in state.items()})
    params = {k: p.array for k, p in model.named_parameters() if p.requires_grad}
    rest = {k: p.array for k, p in [*model.named_parameters(), *model.named_buffers()] if k not in params}
    inputs = [x.array for x in inputs]
    real = [i for i, x in enumerate(inputs) if np.issubdtype(x.dtype, np.floating)]

    @jax.jit
    def step(params, given, rest, key):
        def loss(params, given):
            full = list(inputs)
            for i, x in zip(real, given, strict=True):
                full[i] = x
            with torch.seed(key):
                (loss, results), new = torch.func.stateful_call(model, params | rest, tuple(full))
            return loss, (results, new)

        (value, (results, new)), grads = jax.value_and_grad(loss, (0, 1), has_aux=True)(params, given)
        return value, results, grads, rest | new

    arrays = {}
    for i in range(STEPS):
        loss, results, (grads, given), new = step(params, [inputs[i] for i in real], rest, jax.random.key(i))
        arrays[f"loss {i}"] = loss
        if i == 0:
            arrays |= {f"result {k}": r for k, r in enumerate(results)}
            arrays |= {f"gradient of input {k}": g for k, g in zip(real, given, strict=True)}
            arrays |= {f"gradient of {k}": g for k, g in grads.items()}
        rest = {k: v for k, v in new.items() if k not in params}
        params = {k: new.get(k, p) - RATE * grads[k] for k, p in params.items()}
    return arrays | {f"after, {k}": v for k, v in (params | rest).items()}


def compare(want: dict[str, np.ndarray], got: dict[str, np.ndarray]) -> str:
    """Return how the first array that differs does; empty if none does."""
    for key in sorted(want.keys() | got.keys(), key=lambda k: (k.startswith("after"), k.startswith("gradient"), k)):
        a, b = want.get(key), got.get(key)
        if b is None or (a is None and np.any(b)):
            return f"{key} is missing"
        if a is not None and (a.shape != b.shape or a.dtype.kind != b.dtype.kind):  # integers have 32 bits here
            return f"{key}: {b.dtype}{b.shape} for {a.dtype}{a.shape}"
        if a is not None and a.size:
            size = float(np.abs(a).max())
            if not np.allclose(a, b, rtol=0, atol=TOLERANCE * size + 1e-6, equal_nan=True):
                return f"{key}: {np.abs(a.astype(float) - b).max() / size:.1e} of the largest element"
    return ""


def run_side(side: str, name: str, file: Path) -> str:
    """Run a model in a process of its own, which leaves its arrays in a file; return its error, empty if none."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.packages",
        "--side",
        side,
        "--only",
        name,
        "--folder",
        str(file.parent),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"longer than {SECONDS} s"
    if done.returncode:
        file.with_suffix(f".{side}.log").write_text(done.stderr)
        lines = [line for line in done.stderr.splitlines() if line and not line.startswith((" ", "\t", "-"))]
        return next(
            (k for k in reversed(lines) if "Error: " in k or "Supported: " in k), lines[-1] if lines else "died"
        )
    return ""


def run_own(side: str, name: str, file: Path) -> str:
    """Run a model in this process, in PyTorch first; return how fnjax.torch differs, empty if it does not."""
    from safetensors.numpy import load_file, save_file  # of the folder's packages

    if side == "pytorch":
        save_file({k: np.asarray(v, order="C") for k, v in run_in_pytorch(name).items()}, file)
        return ""
    kept = load_file(file)
    state = {k.removeprefix("state "): v for k, v in kept.items() if k.startswith("state ")}
    got = {k: np.asarray(v) for k, v in run_in_fnjax(name, state).items()}
    return compare({k: v for k, v in kept.items() if not k.startswith("state ")}, got)


def main() -> None:
    """Install, run, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where packages and arrays are kept")
    parser.add_argument("--only", nargs="*", default=[], help="names of models; the page is not written then")
    parser.add_argument("--side", choices=("pytorch", "fnjax"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    site = str(folder / "site-packages")
    if options.side:
        sys.path.insert(0, site)
        sys.exit(run_own(options.side, options.only[0], folder / f"{options.only[0]}.safetensors") or 0)
    cases = read_cases()
    packages = sorted({package for package, _ in cases.values()} | {*DEPENDENCIES.split()})
    if not Path(site).exists():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, *packages]
        subprocess.run(install, check=True)
    versions = {d.name.replace("_", "-"): d.version for d in importlib.metadata.distributions(path=[site])}
    rows = []
    for name, (package, names) in cases.items():
        if options.only and name not in options.only:
            continue
        file = folder / f"{name}.safetensors"
        problem = run_side("pytorch", name, file)
        outcome = f"PyTorch: {problem}" if problem else run_side("fnjax", name, file) or "right"
        rows.append(f"| {package} {versions.get(package, '')} | {names} | {outcome.replace('|', '/')} |")
        print(rows[-1], flush=True)
    if not options.only:
        jax, torch = (importlib.metadata.version(m) for m in ("jax", "torch"))
        right = sum(row.endswith("| right |") for row in rows)
        head = f"JAX {jax}, PyTorch {torch}: {right} of {len(rows)} models are right."
        PAGE.write_text("\n".join([HOW, "", head, "", "| package | names | |", "| --- | --- | --- |", *rows, ""]))


if __name__ == "__main__":
    main()
