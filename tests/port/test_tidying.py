"""Remove from ports what translation leaves over: copies, arrays and attributes of ctx that nothing reads."""

import pytest

from fnjax.port import port_source

HEAD = """\
import torch

class C(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, n: int, flag: bool):
"""


def tidied(body):
    """The lines of a forward with this body."""
    text = HEAD + "".join(f"        {line}\n" for line in body.split("\n"))
    lines = port_source(text, strict=True).code.partition("flag: bool):\n")[2].rstrip().split("\n")
    return "\n".join(line.removeprefix("        ") for line in lines)


TIDIED = {
    "a copy that is changed": (
        "z = x.clone()  # ours\nw = y * 2\nz[x > 0] = 0\nreturn z + w",
        "# ours\nw = y * 2\nz = jnp.where(x > 0, 0, x)\nreturn z + w",
    ),
    "a copy that is only read": ("z = x.clone()\nreturn z * z", "return x * x"),
    "a copy that is added to": ("z = x.clone()\nz += y * 2\nreturn z", "z = x + y * 2\nreturn z"),
    "an array that is overwritten": (
        "z = torch.empty_like(x)\nz = torch.exp(x, out=z)\nreturn z",
        "z = jnp.exp(x)\nreturn z",
    ),
    "an array that takes another's entries": ("z = torch.empty_like(x)\nz.copy_(x)\nreturn z * y", "return x * y"),
    "a device that nothing reads": (
        "# where it lives\ndev = x.device\nz = torch.ones(2, device=dev)\nreturn z.to(dev)",
        "# where it lives\nz = jnp.ones(2)\nreturn z",
    ),
    "an array that is filled": (
        "z = torch.empty(n, 4)\nz[:, :] = 2.0\nreturn z + x",
        "z = jnp.full((n, 4), 2.0, dtype=float)\nreturn z + x",
    ),
    "a copy that a loop changes": (
        "z = x.clone()\nfor i in range(n):\n    z = z * y\nreturn z",
        "z = x\nfor i in range(n):\n    z = z * y\nreturn z",
    ),
    "a copy in a branch": (
        "z = y\nif flag:\n    z = x.clone()\nreturn z * x",
        "z = y\nif flag:\n    z = x\nreturn z * x",
    ),
    "a copy in a loop, which may end before the write": (
        "z = y\nfor i in range(n):\n    z = x.clone()\n    if i == 2:\n        break\n    z = z * 2\nreturn z",
        "z = y\nfor i in range(n):\n    z = x\n    if i == 2:\n        break\n    z = z * 2\nreturn z",
    ),
    "a copy of what is bound anew": (
        "z = x.clone()\nx = x + 1\nreturn z * x",
        "z = x\nx = x + 1\nreturn z * x",
    ),
    "a copy that a function inside reads": (
        "z = x.clone()\ndef f(a):\n    return a * z\nz = z + 1\nreturn f(x)",
        "z = x\ndef f(a):\n    return a * z\nz = z + 1\nreturn f(x)",
    ),
    "a copy in a try": (
        "z = y\ntry:\n    z = x.clone()\n    z = z[n] * 2\nexcept IndexError:\n    pass\nreturn z",
        "z = y\ntry:\n    z = x\n    z = z[n] * 2\nexcept IndexError:\n    pass\nreturn z",
    ),
    "another name that the source itself has": ("z = x\nz = z + 1\nreturn z", "z = x\nz = z + 1\nreturn z"),
    "attributes of ctx that nobody reads": (
        "# its sizes\nctx.n, ctx.flag = n, flag\nctx.size = len(x)\nreturn x * 2",
        "# its sizes\nreturn x * 2",
    ),
    "an attribute that something else comes with": ("ctx.n = print(n)\nreturn x * 2", "ctx.n = print(n)\nreturn x * 2"),
    "an attribute that is looked up": (
        "ctx.n = n\nif hasattr(ctx, 'n'):\n    return x\nreturn x * 2",
        "ctx.n = n\nif hasattr(ctx, 'n'):\n    return x\nreturn x * 2",
    ),
}


@pytest.mark.parametrize("case", TIDIED)
def test_tidied(case):
    """Copies, new arrays and attributes of ctx go where nothing needs them."""
    before, after = TIDIED[case]
    assert tidied(before) == after


def test_a_base_class_keeps_its_attributes():
    """A class derived from it may read what its forward keeps on ctx."""
    text = f"{HEAD}        ctx.n = n\n        return x * 2\n"
    derived = "class D(C):\n    @staticmethod\n    def backward(ctx, g):\n        return g * ctx.n, None, None, None\n"
    assert "ctx.n = n\n" in port_source(text + derived, strict=True).code
    assert "ctx.n = n\n" not in port_source(text, strict=True).code
