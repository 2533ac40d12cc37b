"""Random programs of control flow, views and in-place writes, run by PyTorch and by fnjax.torch.

    python -m tests.parity.random_programs [--first 0] [--count 300] [--kind control|views] [--show]

Each program is a function of two tensors, text made from a seed. fnjax.torch runs it outside of jit and under it, and
differentiates it; it must give what PyTorch gives, or raise NotSupported.
"""

import argparse
import collections
import random
import tempfile
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import fnjax.torch

ROWS = ("a", "b", "c")  # tensors of shape (4,)


class Control:
    """Makes a program of control flow: branches, loops, jumps and short circuits on values."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines, self.count, self.left = [], 0, 14

    def choose(self, *options):
        return self.random.choice(options)

    def number(self):
        return round(self.random.uniform(-1.5, 1.5), 2)

    def tensor(self):
        x, y = self.choose(*ROWS), self.choose(*ROWS)
        return self.choose(
            f"torch.tanh({x} + {y})", f"{x} * {self.number()} - {y}", f"torch.sin({x}) * s", f"({x} - {y}).abs() * 0.5",
            f"torch.where({x} > {self.number()}, {x}, {y} * 0.5)", f"{x}.flip(0) + k", f"{x}.clone()",
            f"torch.cos({x})[idx]",
        )  # fmt: skip

    def test(self, depth=0):
        x = self.choose(*ROWS)
        plain = self.choose(
            f"{x}.sum() > {self.number()}", f"s < {self.number()}",
            f"{x}[{self.random.randrange(4)}] >= {self.number()}",
            f"{x}.max() > s", f"({x} > 0).any()", f"({x} < 1).all()", "k % 2 == 0", f"{self.number()} < s < {x}.max()",
        )  # fmt: skip
        if depth < 2 and self.random.random() < 0.35:
            kind = self.choose("and", "or", "not")
            other = self.test(depth + 1)
            return f"not ({other})" if kind == "not" else f"({plain}) {kind} ({other})"
        return plain

    def simple(self):
        x, y = self.choose(*ROWS), self.choose(*ROWS)
        return self.choose(
            f"{x} = {self.tensor()}", f"{x} = {self.tensor()}", f"s = ({x} * {y}).mean() + {self.number()}",
            f"{x} = {self.tensor()} if {self.test()} else {self.tensor()}", f"{x} = {x} * 0.5 + {y}[idx]",
            f"{x}[{self.random.randrange(4)}] = {self.number()}", f"{x}[1:3].mul_({self.number()})",
            f"{x}.add_({y})", f"{x}[{x} > {self.number()}] = {self.number()}", f"w = {x}[:2]\nw.sub_({self.number()})",
            "k = k + 1", f"{x}.copy_({y} * 0.5)", f"{x} = {y}",
        )  # fmt: skip

    def put(self, text, indent):
        self.lines += ["    " * indent + line for line in text.split("\n")]

    def block(self, indent, loop):
        for _ in range(self.random.randrange(1, 4)):
            self.statement(indent, loop)

    def statement(self, indent, loop=False):
        self.left -= 1
        if self.left < 0 or indent > 4 or self.random.random() < 0.45:
            self.put(self.simple(), indent)
            return
        kind = self.choose("if", "if", "for", "while", "jump", "return")
        if kind == "if":
            self.put(f"if {self.test()}:", indent)
            self.block(indent + 1, loop)
            if self.random.random() < 0.3:
                self.put(f"elif {self.test()}:", indent)
                self.block(indent + 1, loop)
            if self.random.random() < 0.6:
                self.put("else:", indent)
                self.block(indent + 1, loop)
        elif kind in {"for", "while"}:
            self.count += 1
            n = f"n{self.count}"
            if kind == "for":
                self.put(f"for {n} in range({self.random.randrange(1, 4)}):", indent)
            else:
                self.put(f"{n} = 0\nwhile {n} < {self.random.randrange(1, 5)} and ({self.test()}):", indent)
                self.put(f"{n} += 1", indent + 1)
            self.block(indent + 1, True)
            if self.random.random() < 0.3:
                self.put("else:", indent)
                self.block(indent + 1, loop)
        elif kind == "jump" and loop:
            self.put(f"if {self.test()}:\n    {self.choose('break', 'continue')}", indent)
        elif kind == "return":
            self.put(f"if {self.test()}:\n    return {self.choose(*ROWS)} * 2, b, s", indent)
        else:
            self.put(self.simple(), indent)

    def make(self):
        """Return the program's text."""
        self.lines = ["import torch", "", "", "def run(x, y):"]
        self.put("a, b, c = x * 1, y * 1, x + y\ns = a.sum()\nk = 1\nidx = torch.tensor([2, 0, 3, 1])", 1)
        for _ in range(self.random.randrange(3, 6)):
            self.statement(1)
        self.put("return a + k, b, s + c.sum()", 1)
        return "\n".join(self.lines) + "\n"


class Views:
    """Makes a program of views and in-place writes."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.shapes = {"a": (4, 6), "b": (4, 6)}
        self.lines = ["import torch", "", "", "def run(x, y):", "    a, b = x * 1, y * 1"]

    def view(self):
        name = self.random.choice([*self.shapes])
        shape = self.shapes[name]
        rank, options = len(shape), [("{}.detach()", shape), ("{}[...]", shape)]
        for axis, size in enumerate(shape):
            before, after = shape[:axis], shape[axis + 1 :]
            lead, i = ":, " * axis, self.random.randrange(size)
            options.append((f"{{}}.select({axis}, {i})", (*before, *after)))
            options.append((f"{{}}[{lead}{i - size}]", (*before, *after)))
            if size > 1:
                start, step = self.random.randrange(size - 1), self.random.randrange(1, 3)
                options.append((f"{{}}[{lead}{start}::{step}]", (*before, len(range(start, size, step)), *after)))
                options.append((f"{{}}.narrow({axis}, {start}, {size - start})", (*before, size - start, *after)))
            if size % 2 == 0:
                options.append((f"{{}}.chunk(2, {axis})[1]", (*before, size // 2, *after)))
                options.append((f"{{}}.unflatten({axis}, (2, {size // 2}))", (*before, 2, size // 2, *after)))
            options.append((f"{{}}.unbind({axis})[0]", (*before, *after)))
            options.append((f"{{}}.unsqueeze({axis})", (*before, 1, *shape[axis:])))
        if rank > 1:
            swapped = [*range(rank)]
            self.random.shuffle(swapped)
            options.append((f"{{}}.permute({swapped})", tuple(shape[i] for i in swapped)))
            options.append(("{}.transpose(0, -1)", (shape[-1], *shape[1:-1], shape[0])))
            options.append(("{}.reshape(-1)", (int(np.prod(shape)),)))
            options.append(("{}.flatten()", (int(np.prod(shape)),)))
            if shape[0] == shape[1]:
                options.append(("{}.diagonal(0, 0, 1)", (*shape[2:], shape[0])))
        text, new = self.random.choice(options)
        if len(new) > 4 or not int(np.prod(new)):
            return
        made = f"v{len(self.shapes)}"
        self.lines.append(f"    {made} = {text.format(name)}")
        self.shapes[made] = new

    def write(self):
        name = self.random.choice([*self.shapes])
        shape = self.shapes[name]
        number = round(self.random.uniform(-2, 2), 2)
        others = [n for n, s in self.shapes.items() if s == shape and n != name]
        same = self.random.choice(others) if others else None
        options = [f"{name}.add_({number})", f"{name}.mul_({number})", f"{name}[...] = {number}", f"{name}.sin_()"]
        options += [f"{name}[{name} > {number}] = 0.5", f"{name}.masked_fill_({name} < {number}, 1.5)"]
        if same is not None:
            options += [f"{name}.add_({same})", f"{name}.copy_({same}.clone())", f"{name} -= {same} * 0.5"] * 2
        if shape:
            i = self.random.randrange(shape[0])
            options += [f"{name}[{i}] = {number}", f"{name}[{i}] += {number}", f"{name}[[{i}, 0]] = {number}"]
            options += [
                f"{name}[torch.tensor([{i}])] *= {number}",
                f"{name}.index_fill_(0, torch.tensor([{i}]), {number})",
            ]
        self.lines.append(f"    {self.random.choice(options)}")

    def make(self):
        """Return the program's text."""
        for _ in range(self.random.randrange(8, 18)):
            self.random.choice([self.view, self.view, self.write])()
        shown = self.random.sample([*self.shapes], min(3, len(self.shapes)))
        self.lines.append(f"    return a, b, {', '.join(f'{n} * 1' for n in shown)}")
        return "\n".join(self.lines) + "\n"


KINDS = {"control": Control, "views": Views}


def judge(kind, seed, folder):
    """The verdict on a program: right, refused, impossible (PyTorch raises) or what is wrong; and its text."""
    import torch

    text = KINDS[kind](seed).make()
    path = Path(folder, f"{kind}_{seed}.py")
    path.write_text(text)
    original: dict = {}
    exec(compile(text, str(path), "exec"), original)
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=(4,) if kind == "control" else (4, 6)).astype(np.float32) for _ in range(2)]
    given = [torch.tensor(x, requires_grad=bool(seed % 2)) for x in arrays]  # PyTorch refuses some writes of the others
    try:
        expected = original["run"](*given)
        weights = [rng.normal(size=tuple(e.shape)).astype(np.float32) for e in expected]
        loss = sum((e * torch.tensor(w)).sum() for e, w in zip(expected, weights, strict=True))
        gradients = torch.autograd.grad(loss, given, allow_unused=True) if loss.requires_grad else [None, None]
        modes = ("eager", "jit", "gradients") if given[0].requires_grad else ("eager", "jit")
    except RuntimeError as e:
        return "impossible", f"{text}\n{e}"
    run = fnjax.torch.jax_view(fnjax.torch.load(path).run)

    def loss_of(x, y):
        return sum((e * w).sum() for e, w in zip(run(x, y), weights, strict=True))

    refused = ""
    wanted = [np.zeros_like(x) if g is None else g.numpy() for g, x in zip(gradients, arrays, strict=True)]
    outputs = [e.detach().numpy() for e in expected]
    functions = {"eager": run, "jit": jax.jit(run), "gradients": jax.jit(jax.grad(loss_of, (0, 1)))}
    for name in modes:
        function, want = functions[name], wanted if name == "gradients" else outputs
        try:
            found = function(*map(jnp.asarray, arrays))
        except fnjax.torch.NotSupported as e:
            refused = f"{name}: {e}"
            continue
        except ValueError as e:
            if "Reverse-mode differentiation does not work" in str(e):
                refused = f"{name}: {str(e)[:80]}"
                continue
            raise
        for i, (f, w) in enumerate(zip(found, want, strict=True)):
            if f.shape != w.shape or not np.allclose(f, w, rtol=1e-4, atol=1e-5):
                return "wrong", f"{text}\n{name} {i}: PyTorch {w}, JAX {f}"
    return ("refused", f"{text}\n{refused}") if refused else ("right", "")


def main():
    """Print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--kind", choices=[*KINDS], default="control")
    parser.add_argument("--show", action="store_true", help="what is refused, too")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    verdicts: collections.Counter = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.first, options.first + options.count):
            try:
                verdict, seen = judge(options.kind, seed, folder)
            except Exception as e:  # noqa: BLE001 - a verdict as well
                verdict, seen = "raised", f"{KINDS[options.kind](seed).make()}\n{type(e).__name__}: {e}"
            verdicts[verdict] += 1
            if verdict in {"wrong", "raised"} or (options.show and verdict == "refused"):
                print(f"---- {options.kind} {seed}: {verdict}\n{seen}", flush=True)
            if seed % 20 == 19:
                jax.clear_caches()
                print(dict(verdicts), flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()))


if __name__ == "__main__":
    main()
