"""Check programs against PyTorch: outside of jit, under it, and their gradients.

    python -m tests.torch.traced_check cases [--only PATTERN] [--show]
    python -m tests.torch.traced_check {random,views} [--seed 0] [--seconds 60] [--show]

A program is the text of a module with a function `f` of tensors, called on several inputs in turn. Without PyTorch, or
for a program that begins with `# eager`, the expected results are those of fnjax.torch outside of jit.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import importlib.util
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fnjax.torch
from tests.torch.traced_programs import FEATURES, Generator, Views

CASES = Path(__file__).with_name("traced_cases.txt")
PRELUDE = """import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

"""
# Text after a case that makes `f` what it is within another branch, loop, Function or module.
WRAPPERS = {
    "": "",
    "branch": """
def f(x, inner=f):
    if x[0] > -50:
        return inner(x)
    return inner(x * 1)
""",
    "loop": """
def f(x, inner=f):
    result = inner(x)
    for _ in range(3):
        if x[0] > -50:
            break
        result = inner(x)
    return result
""",
    "function": """
class Inner(torch.autograd.Function):
    inner = staticmethod(f)
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Inner.inner(x)
    @staticmethod
    def backward(ctx, *grads):
        (x,) = ctx.saved_tensors
        return Inner.inner(x) * 2 + x
def f(x):
    return Inner.apply(x)
""",
    "module": """
class Inner(nn.Module):
    inner = staticmethod(f)
    def forward(self, x):
        return self.inner(x)
def f(x):
    return Inner()(x)
""",
}
INPUTS = [[1.0, 2.0, 3.0], [-1.0, -2.0, -4.0], [3.0, -1.0, -0.5]]
MODES = ("eager", "jit", "gradient")
FINE = ("right", "refused", "impossible")


def read_cases() -> dict[str, tuple[str, str]]:
    """Return the text of each program in traced_cases.txt by its name, and the kind of verdict that it should have."""
    parts = re.split(r"^=== (\S+) ?(\w*)\n", CASES.read_text(), flags=re.MULTILINE)
    names, kinds, texts = parts[1::3], parts[2::3], parts[3::3]
    return {name: (PRELUDE + text, kind or "right") for name, kind, text in zip(names, kinds, texts, strict=True)}


@dataclasses.dataclass
class Verdict:
    """Result of a check.

    Attributes:
        kind: `right`, `refused` (NotSupported), `impossible` (PyTorch raises for every input), `wrong`, `error`
            (another exception) or `lenient` (no exception outside of jit, where PyTorch raises).
        mode: one of MODES, or `vmap`, `scan`, `gradient_eager`.
        text: the message of the exception, or the values that differ.
    """

    kind: str
    mode: str = ""
    text: str = ""

    def is_like(self, other: Verdict) -> bool:
        """Return whether two verdicts are of one kind, of exceptions of one class if they are errors."""
        names = [v.text.partition(":")[0] if v.kind == "error" else "" for v in (self, other)]
        return (self.kind, self.mode, names[0]) == (other.kind, other.mode, names[1])

    def __str__(self) -> str:
        return f"{self.kind:8} {self.mode:8} {' '.join(self.text.split())}"


def flatten(result: Any) -> list[tuple[str, Any]]:
    """Return the leaves of a result with the names of their types: a tensor's dtype, `f`, `i` or `b` of a number."""
    leaves = []
    for leaf in jax.tree.leaves(result, is_leaf=lambda x: x is None):
        if hasattr(leaf, "detach"):  # a tensor of PyTorch or of fnjax.torch
            dtype = str(leaf.dtype).removeprefix("torch.")
            leaves.append((dtype, np.asarray(leaf.detach().to("cpu").resolve_conj().numpy())))
        elif isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
            leaves.append((str(leaf.dtype), np.asarray(leaf)))
        elif isinstance(leaf, (bool, int, float)):
            leaves.append((np.asarray(leaf).dtype.kind, np.asarray(leaf)))
        else:
            leaves.append((type(leaf).__name__, leaf))
    return leaves


def name_of(dtype: str) -> str:
    """Return a dtype's name as JAX has it: without JAX_ENABLE_X64 there are 32 bits."""
    return dtype if jax.config.jax_enable_x64 else dtype.replace("64", "32")


def differ(expected: list[tuple[str, Any]], found: list[tuple[str, Any]]) -> str:
    """Return how two flat results differ; the empty string if they do not."""
    if len(expected) != len(found):
        return f"{len(found)} leaves for {len(expected)}"
    for (dtype, want), (other, have) in zip(expected, found, strict=True):
        same_type = name_of(dtype) == (np.dtype(other).kind if len(dtype) == 1 and len(other) > 1 else name_of(other))
        if not isinstance(want, np.ndarray) or not isinstance(have, np.ndarray):
            if want is not have and want != have:
                return f"want {want!r}, got {have!r}"
        elif not same_type:
            return f"want {dtype} {want.tolist()}, got {other} {have.tolist()}"
        elif want.shape != have.shape or not np.allclose(want, have, rtol=1e-4, atol=1e-5, equal_nan=True):
            return f"want {want.tolist()}, got {have.tolist()}"
    return ""


def weigh(result: Any, is_differentiable: Callable[[Any], bool]) -> Any:
    """Return a weighted sum of the leaves that are differentiable; other leaves, such as numbers, count as places."""
    return sum(((k + 1) * leaf).sum() for k, leaf in enumerate(jax.tree.leaves(result)) if is_differentiable(leaf))


def attempt(function: Callable[..., Any], inputs: list[Any]) -> Any:
    """Return the flat result of a call, or the exception."""
    try:
        return flatten(function(*inputs))
    except Exception as error:  # noqa: BLE001 - it is compared, or reported
        return error


class Program:
    """Program with the results that it should have.

    Args:
        text: its source.
        inputs: for each call the arguments of `f`, as lists of numbers.
        file: where to write the source, which fnjax.torch loads.
    """

    def __init__(self, text: str, inputs: list[list[Any]], file: Path) -> None:
        self.text, self.file, self.raised = text, file, 0
        self.inputs = [[np.asarray(x, np.float32) for x in call] for call in inputs]

    def load(self) -> Callable[..., Any]:
        """Return `f` of a new module, as a function of arrays."""
        folder = tempfile.mkdtemp(dir=self.file.parent)  # a second load of one file is the same module
        file = Path(folder, self.file.name)
        file.write_text(self.text)
        with fnjax.torch.seed(jax.random.key(0)):  # parameters are drawn, and set to known values
            function = fnjax.torch.jax_view(vars(fnjax.torch.load(file))["f"])

        def seeded(*arrays: Any) -> Any:
            with fnjax.torch.seed(jax.random.key(0)):
                return function(*arrays)

        return seeded

    def by_pytorch(self, *, gradient: bool) -> list[Any]:
        """Return PyTorch's result of each call, in a new module."""
        import torch

        space: dict[str, Any] = {"__name__": "program"}

        def call(*arrays: Any) -> Any:
            tensors = [torch.tensor(x, requires_grad=gradient) for x in arrays]
            result = space["f"](*tensors)
            if not gradient:
                return result
            loss = weigh(result, lambda x: isinstance(x, torch.Tensor) and x.is_floating_point())
            zeros = [torch.zeros_like(x) for x in tensors]
            if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
                return zeros
            found = torch.autograd.grad(loss, tensors, allow_unused=True)
            return [z if g is None else g for g, z in zip(found, zeros, strict=True)]

        try:
            exec(compile(self.text, str(self.file), "exec", dont_inherit=True), space)
            return [attempt(call, arrays) for arrays in self.inputs]
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_grad_enabled(True)

    def by_fnjax(self, mode: str, *, jit: bool = True) -> list[Any]:
        """Return fnjax.torch's result of each call, in a new module."""
        function = self.load()

        def loss(*arrays: Any) -> Any:
            is_float = lambda x: isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)
            total = weigh(function(*arrays), is_float)
            return total if isinstance(total, jax.Array) else jnp.float32(0)

        if mode in {"vmap", "scan"}:
            stacked = [jnp.stack(arrays) for arrays in zip(*self.inputs, strict=True)]
            over = jax.vmap(function) if mode == "vmap" else lambda *xs: jax.lax.map(lambda x: function(*x), xs)
            try:
                found = jax.jit(over)(*stacked)
            except Exception as error:  # noqa: BLE001 - it is reported
                return [error] * len(self.inputs)
            return [flatten(jax.tree.map(lambda leaf, i=i: leaf[i], found)) for i in range(len(self.inputs))]
        run = jax.grad(loss, tuple(range(len(self.inputs[0])))) if mode.startswith("gradient") else function
        run = jax.jit(run) if mode in {"jit", "gradient"} and jit else run
        return [attempt(run, [jnp.asarray(x) for x in arrays]) for arrays in self.inputs]

    def check(self, modes: tuple[str, ...] = MODES, *, pytorch: bool = True) -> Verdict:
        """Return the worst verdict, of the first mode that has it."""
        pytorch = pytorch and not self.text.startswith("# eager")
        expected: dict[bool, list[Any]] = {}
        for gradient in {mode.startswith("gradient") for mode in modes}:
            expected[gradient] = (
                self.by_pytorch(gradient=gradient)
                if pytorch
                else self.by_fnjax("gradient" if gradient else "eager", jit=False)
            )
        self.raised = sum(isinstance(x, Exception) for results in expected.values() for x in results)
        if all(isinstance(x, Exception) for x in expected.get(False, [None])):
            return Verdict("impossible", "", repr(expected[False][0]))
        verdicts = [Verdict("right")]
        for mode in modes:
            if mode == "eager" and not pytorch:
                continue
            found = self.by_fnjax(mode)
            for want, have in zip(expected[mode.startswith("gradient")], found, strict=True):
                verdicts.append(judge(mode, want, have))
        order = ("wrong", "error", "lenient", "refused", "right")
        return min(verdicts, key=lambda verdict: order.index(verdict.kind))


def judge(mode: str, want: Any, have: Any) -> Verdict:
    """Return the verdict on one call."""
    if isinstance(have, fnjax.torch.NotSupported):
        return Verdict("refused", mode, str(have))
    if isinstance(want, Exception):  # under jit an exception means that the branch is not taken
        raised = isinstance(have, Exception) or mode != "eager"
        return Verdict("right") if raised else Verdict("lenient", mode, f"{want!r} in PyTorch, got {have}")
    if isinstance(have, Exception):
        return Verdict("error", mode, f"{type(have).__name__}: {have}")
    difference = differ(want, have)
    return Verdict("wrong", mode, difference) if difference else Verdict("right")


def has_pytorch() -> bool:
    """Return whether PyTorch is installed."""
    return importlib.util.find_spec("torch") is not None


def check_cases(
    pattern: str, folder: Path, modes: tuple[str, ...] = MODES, wrapper: str = ""
) -> Iterator[tuple[str, Verdict, str]]:
    """Yield the verdict on each case whose name matches, and the kind that it should be of."""
    for name, (text, kind) in read_cases().items():
        if fnmatchcase(name, pattern):
            program = Program(text + WRAPPERS[wrapper], [[x] for x in INPUTS], folder / f"{name.replace('/', '_')}.py")
            yield name, program.check(modes, pytorch=has_pytorch()), kind


def check_seed(
    generator: Generator | Views, seed: int, folder: Path, modes: tuple[str, ...] = MODES, *, pytorch: bool = True
) -> tuple[Program, Verdict]:
    """Return the program of a generator and the verdict on it, for inputs drawn with the seed."""
    numbers = np.random.default_rng(seed)
    inputs = [list(numbers.normal(size=(2, *generator.shape))) for _ in range(3)]
    program = Program(PRELUDE + generator.make(), inputs, folder / f"random_{seed}.py")
    return program, program.check(modes, pytorch=pytorch and has_pytorch())


def shrink(program: Program, verdict: Verdict, tries: int) -> tuple[Program, Verdict]:
    """Return the program without statements that its verdict does not need."""
    modes = (verdict.mode,) if verdict.mode else MODES
    position = 0
    while position < len(program.text.split("\n")) and tries:
        lines = program.text.split("\n")
        indent = len(lines[position]) - len(lines[position].lstrip())
        end = position + 1
        while end < len(lines) and len(lines[end]) - len(lines[end].lstrip()) > indent:
            end += 1
        unindented = [line[4:] for line in lines[position + 1 : end]]
        for middle in ([], unindented) if unindented else ([],):
            smaller = Program("\n".join([*lines[:position], *middle, *lines[end:]]), [], program.file)
            smaller.inputs = program.inputs
            tries -= 1
            with contextlib.suppress(Exception):
                found = smaller.check(modes, pytorch=has_pytorch())
                if found.is_like(verdict) and smaller.raised <= program.raised:
                    program, verdict = smaller, found
                    break
        else:
            position += 1
    return program, verdict


def reason(verdict: Verdict) -> str:
    """Return a refusal's first line without the names and numbers of the program."""
    return re.sub(r"`[^`]*`|'[^']*'|\b\w*\d[\w.]*", "…", verdict.text.partition("\n")[0])


def main() -> int:
    """Print verdicts; return 1 if there is one that is not fine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["cases", "random", "views"])
    parser.add_argument("--only", default="*", help="names of the cases, with wildcards")
    parser.add_argument("--show", action="store_true", help="print what is right or refused, too")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=10**9, help="how many seeds at most")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--features", default="*", help="names of features, with wildcards and commas")
    parser.add_argument("--tries", type=int, default=60, help="how often to try a smaller program")
    parser.add_argument("--within", choices=[*WRAPPERS], default="", help="where the cases run")
    parser.add_argument(
        "--modes", default=",".join(MODES), help="of eager, jit, gradient (under jit), vmap, scan, gradient_eager"
    )
    parser.add_argument("--bits", type=int, choices=[32, 64], default=64, help="64 for JAX_ENABLE_X64")
    options = parser.parse_args()
    modes = tuple(options.modes.split(","))
    allowed = [name for name in FEATURES if any(fnmatchcase(name, p) for p in options.features.split(","))]
    warnings.simplefilter("ignore")
    kinds, reasons = collections.Counter[str](), collections.Counter[str]()
    features: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name, jax.enable_x64(options.bits == 64):
        folder = Path(name)
        if options.what == "cases":
            for case, verdict, _ in check_cases(options.only, folder, modes, options.within):
                kinds[verdict.kind] += 1
                if options.show or verdict.kind not in FINE:
                    print(f"{case:34} {str(verdict)[:300]}", flush=True)
        else:
            seed = options.seed
            while seed < options.seed + options.count and time.monotonic() - start < options.seconds:
                generator = Views(seed) if options.what == "views" else Generator(seed, allowed)
                program, verdict = check_seed(generator, seed, folder, modes)
                kinds[verdict.kind] += 1
                for feature in generator.features:
                    features[feature][verdict.kind] += 1
                if verdict.kind == "refused":
                    reasons[reason(verdict)] += 1
                if verdict.kind not in FINE or (options.show and verdict.kind == "refused"):
                    print(f"---- seed {seed}: {verdict}", flush=True)
                    program, verdict = shrink(program, verdict, options.tries)
                    print(f"{program.text.removeprefix(PRELUDE).strip()}\n# {verdict}\n", flush=True)
                seed += 1
                if seed % 50 == 0:
                    jax.clear_caches()
            print(f"seeds {options.seed} to {seed - 1}")
            for text, count in reasons.most_common(25):
                print(f"{count:5} {text[:180]}")
            for feature, counts in sorted(features.items(), key=lambda item: -item[1]["refused"] / item[1].total()):
                print(f"{feature:14} {dict(counts)}")
    total = sum(kinds.values()) - kinds["impossible"]
    share = f"{kinds['refused'] / total:.0%} refused, " if total else ""
    print(dict(kinds), share, f"{time.monotonic() - start:.0f} s")
    return int(bool(kinds.keys() - set(FINE)))


if __name__ == "__main__":
    sys.exit(main())
