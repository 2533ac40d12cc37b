"""How much of real code `fnjax port` ports, and whether what it ports is right.

    python benchmarks/port_corpus.py [--kind PURE] [--package NAME] [--numbers]

The classes of port_corpus.tsv are fetched from the package index, each as a file with what it needs of its package (see
port_fetch.py), and ported; no package is installed. With `--numbers`, which needs PyTorch and imports both files, the
original and its port run on the same random inputs: outputs and gradients, eager and under jit. Inputs are searched
for: values that the original's forward and backward accept.

Kinds: PURE uses tensor operations only; OTHER needs something besides (another library, a function as argument, global
state); DIST collectives; KERNEL its own CUDA, Triton or C++ code.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import csv
import importlib.util
import io
import itertools
import os
import pathlib
import random
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import libcst as cst
import numpy as np
from port_fetch import Package, wheel

import fnjax
from fnjax.port import Ported, port_source
from fnjax.port.evidence import parameter, parameters
from fnjax.port.naming import Source
from fnjax.port.program import Program

CLASSES = pathlib.Path(__file__).with_suffix(".tsv")
CACHE = pathlib.Path.home() / ".cache" / "fnjax-port-corpus"
TOLERANCE = 2e-4  # of float32, relative to the largest entry


class TooLong(Exception):
    pass


@contextlib.contextmanager
def limit(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def load(path: pathlib.Path, name: str) -> Any:
    """The module of a file."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        spec.loader.exec_module(module)
    return module


def tensors(torch: Any, rng: np.random.Generator) -> list[Any]:
    """Tensors that a parameter may want, likely ones first."""
    f = lambda *shape: torch.tensor(rng.normal(size=shape).astype(np.float32))  # noqa: E731
    return [
        f(4, 6),
        f(6, 6),
        f(6),
        f(2, 4, 6),
        f(4, 1),
        f(2, 3, 6, 6),
        torch.tensor(rng.integers(0, 4, (4, 6))),
        torch.tensor(rng.random((4, 6)) > 0.5),
        torch.tensor(rng.random((4, 6)).astype(np.float32)),
        torch.tensor(rng.integers(0, 4, (4,))),
        f(12, 6),
        f(6, 4),
        f(4),
        f(2, 4),
        f(1, 6),
        f(4, 6, 3),
        f(2, 2, 4, 6),
        f(2, 4, 4),
        torch.tensor(rng.random((2, 4)) > 0.3),
    ]


STATIC: list[Any] = [1.0, 2, True, 0.5, -1, False, 0, 1, None, 3, 4.0, (6,), "none", "sum", [1, 2, 4]]
CALLABLES: list[Any] = [lambda *a: a[0], lambda *a: a[0] * 0 + 1]


def candidates(
    torch: Any, param: cst.Param, function: cst.FunctionDef, program: Program, rng: np.random.Generator
) -> list[Any]:
    """Values to try for a parameter."""
    kind = parameter(param, function, program.resolve).kind
    name = param.name.value
    annotation = cst.Module([]).code_for_node(param.annotation.annotation) if param.annotation else ""
    if "Callable" in annotation or name.endswith(("_fn", "func", "function", "fun")):
        return CALLABLES
    if name in {"dim", "axis"}:
        return [-1, 1, 0]
    if name == "config":
        return [{"hash_code_len": 8}]
    if "bool" in annotation:
        return [True, False]
    if annotation == "int" or name in {"k", "n_iter", "num_bits", "bits"}:
        return [4, 2, 8, 1]
    if name == "device":
        return ["cpu"]
    if "dtype" in name:
        return [torch.float32]
    found = tensors(torch, rng)
    if kind == "tensor":
        return found
    if kind == "static":
        return STATIC
    return [*found[:3], *STATIC[:6], *found[3:], *STATIC[6:]]


def find_inputs(
    torch: Any, cls: Any, node: cst.FunctionDef, first: int, program: Program, seed: int
) -> tuple[list[Any], Any] | None:
    """Arguments that the original accepts, and what it gives for them."""
    rng = np.random.default_rng(seed)
    choose = random.Random(seed)
    params = [
        p for p in list(parameters(node))[first:] if node.params.star_arg is not p and node.params.star_kwarg is not p
    ]
    options = [candidates(torch, p, node, program, rng) for p in params]
    tries = itertools.chain(
        itertools.islice(itertools.product(*(o[:1] for o in options)), 1),
        ([choose.choice(o[: 3 + t // 20]) for o in options] for t in range(250)),
    )
    for chosen in tries:
        args = list(chosen)
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return args, run_torch(torch, cls, args)
    return None


def run_torch(torch: Any, cls: Any, args: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Outputs, cotangents and gradients of the original."""
    leaves = [a.clone().requires_grad_(a.is_floating_point()) if isinstance(a, torch.Tensor) else a for a in args]
    passed = [a * 1 if isinstance(a, torch.Tensor) and a.requires_grad else a for a in leaves]
    torch.manual_seed(0)
    with limit(5):
        out = cls.apply(*passed)
    outs = list(out) if isinstance(out, (tuple, list)) else [out]
    outs = [o for o in outs if isinstance(o, torch.Tensor)]
    wanted = [o for o in outs if o.requires_grad]
    generator = np.random.default_rng(1)
    cotangents = [torch.tensor(generator.normal(size=tuple(o.shape)).astype(np.float32)) for o in wanted]
    inputs = [a for a in leaves if isinstance(a, torch.Tensor) and a.requires_grad]
    grads: list[Any] = []
    if wanted and inputs and hasattr(cls, "backward"):
        with limit(5):
            grads = list(
                torch.autograd.grad(
                    wanted,
                    inputs,
                    [c.to(o.dtype, copy=True) for c, o in zip(cotangents, wanted, strict=True)],
                    allow_unused=True,
                )
            )
        grads = [torch.zeros_like(a) if g is None else g for g, a in zip(grads, inputs, strict=True)]
    if all(o.numel() == 0 for o in outs):
        raise ValueError("nothing to compare")
    return [o.detach() for o in outs], [o.requires_grad for o in outs], [*cotangents, *[g.detach() for g in grads]]


def determined(torch: Any, cls: Any, args: list[Any], outputs: list[Any]) -> bool:
    """Whether the original's outputs stay when torch.empty is filled."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills it with NaN, or the largest number
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            again, _, _ = run_torch(torch, cls, args)
    finally:
        torch.use_deterministic_algorithms(False)
    return all(torch.allclose(a, b, equal_nan=True) for a, b in zip(outputs, again, strict=True))


def to_jax(torch: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return jnp.asarray(value.detach().numpy())
    return jnp.float32 if value is torch.float32 else value


def compare(torch: Any, cls: Any, args: list[Any], expected: Any, jit: bool) -> str:
    """Empty if the port gives the original's numbers, else what differs."""
    outs, differentiable, rest = expected
    count = sum(differentiable)
    cotangents, grads = rest[:count], rest[count:]
    values = [to_jax(torch, a) for a in args]
    places = [i for i, a in enumerate(values) if isinstance(a, jax.Array)]
    floats = [i for i in places if jnp.issubdtype(values[i].dtype, jnp.floating)]

    def forward(*arrays: Any) -> list[Any]:
        full = list(values)
        for i, a in zip(places, arrays, strict=True):
            full[i] = a
        out = cls.apply(*full)
        found = list(out) if isinstance(out, (tuple, list)) else [out]
        return [o for o in found if isinstance(o, jax.Array)]

    def both(*arrays: Any) -> tuple[list[Any], list[Any]]:
        found = forward(*arrays)
        if not grads:
            return found, []

        def wanted(*inner: Any) -> list[Any]:
            full = list(arrays)
            for i, a in zip(floats, inner, strict=True):
                full[places.index(i)] = a
            return [o for o, d in zip(forward(*full), differentiable, strict=True) if d]

        made, pullback = jax.vjp(wanted, *[arrays[places.index(i)] for i in floats])
        return found, list(
            pullback([jnp.asarray(c.numpy()).astype(o.dtype) for c, o in zip(cotangents, made, strict=True)])
        )

    try:
        with limit(60), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            found, gradients = (jax.jit(both) if jit else both)(*[values[i] for i in places])
    except Exception as e:  # noqa: BLE001 - whatever the port raises is the finding
        return f"{type(e).__name__}: {e}".split("\n")[0][:160]
    for what, ours, theirs in (("output", found, outs), ("gradient", gradients, grads)):
        if len(ours) != len(theirs):
            return f"{len(ours)} {what}s for {len(theirs)}"
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            a_, b_ = np.asarray(a), b.float().numpy() if b.dtype == torch.bfloat16 else b.numpy()
            if a_.shape != b_.shape:
                return f"{what} {i} has shape {a_.shape} for {b_.shape}"
            if np.dtype(a_.dtype).kind != np.dtype(b_.dtype).kind and what == "output" and str(a_.dtype) != "bfloat16":
                return f"{what} {i} has dtype {a_.dtype} for {b_.dtype}"
            scale = max(1.0, float(np.nanmax(np.abs(np.where(np.isfinite(b_), b_, 0)), initial=0))) if b_.size else 1.0
            if not np.allclose(
                a_.astype(np.float64) / scale,
                b_.astype(np.float64) / scale,
                rtol=TOLERANCE,
                atol=TOLERANCE,
                equal_nan=True,
            ):
                return f"{what} {i} differs"
    return ""


def numbers(torch: Any, path: pathlib.Path, ported: Ported, name: str) -> tuple[str, str]:
    """`right`, `wrong`, `unseen` (no inputs found) and a remark."""
    with tempfile.TemporaryDirectory() as folder:
        port = pathlib.Path(folder) / "ported_file.py"
        port.write_text(ported.code)
        try:
            original = load(path, f"original_{path.stem}")
        except Exception as e:  # noqa: BLE001 - the file may need libraries that are not here
            return "unseen", f"the original cannot be imported: {type(e).__name__}"
        try:
            module = load(port, f"ported_{path.stem}")
        except Exception as e:  # noqa: BLE001 - a port must be importable
            return "wrong", f"the port cannot be imported: {type(e).__name__}: {e}"
    theirs, ours = (_attribute(m, name) for m in (original, module))
    if theirs is None or ours is None or not isinstance(theirs, type):
        return "unseen", "not at the top level"
    program = Program(Source.parse(path.read_text(), path.name), lambda *_: None)
    owner = next(c for n, c in program.classes.items() if n.split(".")[-1] == name)
    routine = program.method(owner, "forward")
    if routine is None:
        return "unseen", "no forward"
    draws = any(f.code == "random-key" for c in ported.classes if c.name == owner.name for f in c.findings)
    seen = 0
    for seed in range(2):
        found = find_inputs(torch, theirs, routine.node, routine.first, program, seed)
        if found is None:
            break
        args, expected = found
        if not determined(torch, theirs, args, expected[0]):
            return "unseen", "the original gives uninitialised memory"
        if draws:
            return ("unseen", "draws random numbers") if _runs(torch, ours, args) else ("wrong", "does not run")
        for jit in (False, True):
            remark = compare(torch, ours, args, expected, jit)
            if remark:
                shown = [tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in args]
                return "wrong", f"{'jit' if jit else 'eager'}: {remark} for {shown}"
        seen += 1
    return ("right", "") if seen else ("unseen", "no inputs found")


def _attribute(module: Any, name: str) -> Any:
    return getattr(module, name, None)


def _runs(torch: Any, cls: Any, args: list[Any]) -> bool:
    with contextlib.suppress(Exception):
        jax.jit(lambda k: cls.apply(*[to_jax(torch, a) for a in args], k))(jax.random.key(0))
        return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="PURE", choices=["PURE", "OTHER", "DIST", "KERNEL", "all"])
    parser.add_argument("--package", help="one package")
    parser.add_argument("--only", help="one class")
    parser.add_argument("--numbers", action="store_true", help="run both sides")
    parser.add_argument(
        "--cache", type=pathlib.Path, default=CACHE, help=f"where downloads and classes are kept ({CACHE})"
    )
    options = parser.parse_args()
    torch = importlib.import_module("torch") if options.numbers else None
    with CLASSES.open() as file:
        records = [
            r
            for r in csv.DictReader(file, delimiter="\t")
            if options.kind in {"all", r["kind"]}
            and options.package in {None, r["package"]}
            and options.only in {None, r["class"].split(".")[-1]}
        ]
    if not records:
        sys.exit("no such class in port_corpus.tsv")
    table: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    codes: collections.Counter[str] = collections.Counter()
    for (package, version), group in itertools.groupby(records, lambda r: (r["package"], r["version"])):
        opened = Package(wheel(package, version, options.cache))
        row = table[f"{package} {version}"]
        for record in group:
            name = record["class"].split(".")[-1]
            path = options.cache / "classes" / record["file"].removesuffix(".py") / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                path.write_text(opened.source(record["file"], record["class"]))
            except ValueError as e:
                print(f"{package} {name}: not taken out: {e}", flush=True)
                continue
            ported = port_source(path.read_text(), path.name, [name])
            cls = next((c for c in ported.classes if c.name.split(".")[-1] == name), None)
            status = cls.status if cls else "failed"
            row["classes"] += 1
            row[status] += 1
            codes.update({f.code for f in cls.findings} if cls else {"failed"})
            remark = status if status != "ported" else ""
            if torch is not None and status == "ported":
                verdict, reason = numbers(torch, path, ported, name)
                row[verdict] += 1
                remark = reason and f"{verdict}: {reason}"
            if remark:
                print(f"{package} {name}: {remark}", flush=True)
        print(f"{package} {version}: {row['ported']} of {row['classes']} ported", file=sys.stderr, flush=True)
    columns = ["classes", "ported", "partial", "failed", *(["right", "wrong", "unseen"] if torch else [])]
    print("\n| package | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1))
    total: collections.Counter[str] = collections.Counter()
    for name, row in sorted(table.items()):
        total.update(row)
        print(f"| {name} | " + " | ".join(str(row[c] or "") for c in columns) + " |")
    print("| all | " + " | ".join(str(total[c] or "") for c in columns) + " |")
    print("\n| code | classes |\n|---|---|")
    for code, count in codes.most_common():
        print(f"| {code} | {count} |")
    print(
        f"\nfnjax {fnjax.__version__}, JAX {jax.__version__}, Python {sys.version.split()[0]}"
        + (f", PyTorch {torch.__version__}" if torch else "")
    )


if __name__ == "__main__":
    main()
