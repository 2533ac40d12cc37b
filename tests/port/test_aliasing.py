"""Random programs of views and of writes through them: each gives PyTorch's numbers, or is refused with a finding."""

import collections
import itertools
import random
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax.port import port_source
from tests.port.test_classes import module

HEAD = """\
import torch
from torch.autograd import Function


def scale_(t, k):
    t.mul_(k)
    return t


def zero_first(t):
    t[0] = 0.25


def part(t):
    return t[0]


"""
VIEWS = """
{a}[{i}] | {a}[{i}:] | {a}[..., {i}] | {a}[:, {i}] | {a}[::2] | {a}[None] | {a}.t() | {a}.transpose(0, -1)
{a}.view(-1) | {a}.reshape(2, -1) | {a}.unsqueeze(-1) | {a}.narrow(0, {i}, 1) | {a}.select(-1, {i}) | {a}.diagonal()
{a}.split(2)[{i}] | {a}.chunk(2, dim=-1)[{i}] | {a}.unbind(0)[{i}] | torch.split({a}, [1, 2], 0)[{i}]
{a}.unfold(0, 2, 1) | {a}.unfold(-1, 2, 2) | {a}.data | {a}.detach() | {a}.contiguous() | {a}.flatten()
torch.ravel({a}) | part({a}) | {a}.expand_as({a}) | {a}
{a}[{i}] if ctx.flag else {a}[1] | {a}[0] if not ctx.flag else {a}[1] | {a}[:1] if ctx.flag else {a}[{i}:]
{b} if ctx.flag else {a} | {a} if ctx.flag else {b} | {a} * 2 | {a} + {b} | {a}.clone() | {a}.sum(0)
[{a}, {b}][{i}]
"""
WRITES = """
{v}.add_(1) | {v}.mul_({b}) | {v}.copy_({b}) | {v}.zero_() | {v}.masked_fill_({v} > 0, 0.7) | {v}.mul_(2).add_(1)
{v}.index_put_((torch.tensor([0]),), torch.tensor(0.6, dtype=torch.float64)) | {a}[{i}] = 0.5 | {a}[{i}] = {b}[{i}]
{a}[{i}] += {b} | {a}[:, {i}] *= 2 | {a}[{a} > 0] = 0.5 | {a}[{b} > 0] *= 2 | {a}[{b} > 0] = {b}[{b} > 0] | {a} += {b}
torch.mul({v}, 2, out={v}) | scale_({v}, 2) | zero_first({v}) | {a}.data += {b} | {a}[{i}][0] = 2 | {a} = {a} * 2
{a}, {b} = {b}, {a} | {a}[:] = {b} | {t}q = [{v}, {b}]; {t}q[{i}].mul_(2) | {t}q = [{a}[0], {a}[1]]; {a}.add_({t}q[0])
"""
BLOCKS = """
for {t} in {a}: | for {t} in range(2): | for {t} in range(3): | if not ctx.flag: | if ctx.flag:
"""


def choices(table):
    """The entries of a table."""
    return [entry.strip() for row in table.strip().split("\n") for entry in row.split(" | ")]


VIEWS, WRITES, BLOCKS = choices(VIEWS), choices(WRITES), choices(BLOCKS)


def apart():
    """Return a mode of PyTorch that refuses writes to memory which the call reads elsewhere, or writes twice."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    def offsets(t):
        return [t.storage_offset() + int(np.dot(i, t.stride())) for i in itertools.product(*map(range, t.shape))]

    class Apart(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            given = {**dict(zip((a.name for a in func._schema.arguments), args, strict=False)), **(kwargs or {})}
            known = {k: v for k, v in given.items() if isinstance(v, torch.Tensor)}
            for written in (known[a.name] for a in func._schema.arguments if a.is_write and a.name in known):
                mine = offsets(written)
                if len(set(mine)) < len(mine):
                    raise ValueError("one entry is written to twice")
                for other in known.values():
                    same = other.untyped_storage().data_ptr() == written.untyped_storage().data_ptr()
                    if same and offsets(other) != mine and set(offsets(other)) & set(mine):
                        raise ValueError("an entry is read elsewhere, perhaps after it was written")
            return func(*args, **(kwargs or {}))

    return Apart()


class Program:
    """A Function that is run while it is written: a statement that PyTorch refuses is left out."""

    def __init__(self, seed):
        import torch

        self.rng, self.count, self.torch = random.Random(seed), 0, torch
        self.flag = self.rng.random() < 0.5

    def known(self, env):
        """The arrays of a method, by name."""
        return [n for n, v in env.items() if isinstance(v, self.torch.Tensor) and n not in {"x", "y"}]

    def filled(self, text, env, more=()):
        """A template with names in its places; those in `more`, of the loops around, more often."""
        names, pick = self.known(env), self.rng.choice
        v = pick(more) if more and self.rng.random() < 0.6 else pick(names)
        if self.rng.random() < 0.5:
            v = pick(VIEWS[:28]).replace("{a}", v).replace("{i}", pick("01"))
        a = pick(more) if more and self.rng.random() < 0.3 else pick(names)
        return text.format(a=a, b=pick(names), v=v, i=pick([0, 1]), t=f"t{self.count}")

    def statement(self, env, more=(), depth=0):
        """One statement, as lines."""
        self.count += 1
        if depth < 2 and self.rng.random() < 0.2:
            head = self.filled(self.rng.choice(BLOCKS), env)
            own = [f"t{self.count}"] if head.startswith("for") and "range" not in head else []
            body = [s for _ in range(self.rng.choice([1, 2])) for s in self.statement(env, [*more, *own], depth + 1)]
            return [head, *(f"    {s}" for s in body)]
        if self.rng.random() < 0.4:
            return [f"n{self.count} = " + self.filled(self.rng.choice(VIEWS), env, more)]
        return [self.filled(self.rng.choice(WRITES), env, more)]

    def block(self, env, length):
        """Some statements."""
        lines = []
        for _ in range(20 * length):
            made, before = self.statement(env), dict(env)
            held = [(v, v.clone()) for n, v in env.items() if n in self.known(env)]
            try:
                with self.torch.no_grad(), apart():
                    exec("\n".join(made), env)
                arrays = [env[n] for n in self.known(env)]
                assert all(
                    v.dim() and 0 < v.numel() < 60 and v.isfinite().all() and v.abs().max() < 1e4 for v in arrays
                )
            except (ArithmeticError, AssertionError, LookupError, NameError, RuntimeError, TypeError, ValueError):
                env.clear()
                env.update(before)
                for v, old in held:
                    v.data.copy_(old) if v.shape == old.shape and v.is_contiguous() else None
                continue
            lines += made
            if (length := length - 1) == 0:
                break
        return lines

    def source(self, x, y):
        """The text of the Function."""
        env = {"torch": self.torch, "x": x, "y": y, "ctx": types.SimpleNamespace(flag=self.flag)}
        exec(HEAD, env)
        forward = [f"ctx.flag = {self.flag}", "a, b = x.clone(), y * 0.5"]
        exec(forward[1], env)
        forward += self.block(env, self.rng.randint(2, 4))
        saved, kept = self.rng.choice(self.known(env)), self.known(env)
        out = f"torch.cat([{', '.join(f'{n}.reshape(-1)' for n in kept)}])"
        forward += [f"ctx.save_for_backward({saved})", *self.block(env, self.rng.choice([1, 1, 2]) - 1 or 1)]
        back = {k: env[k] for k in ("torch", "ctx", "scale_", "zero_first", "part")}
        back |= {"g": eval(out, env), "s": env[saved].clone(), "z": y.clone()}
        backward = ["(s,) = ctx.saved_tensors", "g, s = g.clone(), s.clone()"]
        backward += ["z = torch.zeros(3, 4, dtype=torch.float64) + g.sum()", *self.block(back, self.rng.randint(1, 2))]
        sums = (f"({n} * torch.arange({n}.numel()).reshape({n}.shape)).sum()" for n in self.known(back))
        backward += [
            f"r = {' + '.join(sums)}",
            "return torch.ones(3, 4, dtype=torch.float64) * r, r * torch.ones_like(z)",
        ]
        text = "class Generated(Function):\n"
        for name, parameters, lines in (("forward", "x, y", [*forward, f"return {out}"]), ("backward", "g", backward)):
            text += f"    @staticmethod\n    def {name}(ctx, {parameters}):\n"
            text += "".join(f"        {line}\n" for line in lines) + "\n"
        return HEAD + text.rstrip() + "\n"


def run(folder, seed):
    """Return the outcome of one program: `equal`, `refused`, or why nothing can be said."""
    import torch

    given = [torch.randn(3, 4, generator=torch.Generator().manual_seed(seed + k), dtype=torch.float64) for k in (0, 1)]
    text = Program(seed).source(*(t.clone() for t in given))
    inputs = [t.clone().requires_grad_() for t in given]
    try:
        out = module(folder, f"original_{seed}", text).Generated.apply(*inputs)
        expected = [out, *torch.autograd.grad(out, inputs, torch.ones_like(out), allow_unused=True)]
    except (RuntimeError, IndexError):  # a version of a saved tensor, a shape in backward
        return "torch"
    ported = port_source(text)
    if [c.status for c in ported.classes] != ["ported"]:
        assert any(f.severity == "error" for c in ported.classes for f in c.findings)
        return "refused"
    port = module(folder, f"ported_{seed}", ported.code)
    try:
        out, pull = jax.vjp(port.Generated.apply, *(jnp.asarray(t.numpy()) for t in given))
        made = [out, *pull(jnp.ones_like(out))]
    except (TypeError, ValueError) as e:  # a branch that PyTorch has not taken, with other shapes
        if any(word in str(e) for word in ("shape", "cond", "broadcasting")):
            return "shapes"
        raise
    for theirs, ours in zip(expected, made, strict=True):
        wanted = np.zeros(ours.shape) if theirs is None else theirs.detach().numpy()
        np.testing.assert_allclose(ours, wanted, rtol=1e-9, atol=1e-9, err_msg=f"{text}\n{ported.code}")
    return "equal"


@pytest.mark.parity
@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 100), marks=pytest.mark.slow)], ids=["20", "80"])
def test_writes_through_views(tmp_path, seeds):
    """Variables that share memory in PyTorch see each other's writes in the port as well, or the class is refused."""
    pytest.importorskip("torch")
    with jax.enable_x64(True):
        ways = collections.Counter(run(tmp_path, seed) for seed in seeds)
    assert ways["equal"] > 0.3 * len(seeds), ways
