"""Write docs/guides/porting.md: examples before and after, the catalogue of rewrites, and the figures of a run.

    python tools/port_page.py [CORPUS OTHERS SEARCH]

CORPUS is what `port_corpus.py --numbers` printed, OTHERS the same with `--others`, SEARCH what port_search.py did;
without them the page keeps the figures that it has.
"""

from __future__ import annotations

import ast
import pathlib
import re
import sys

from fnjax.port import port_source

ROOT = pathlib.Path(__file__).parent.parent
PAGE = ROOT / "docs" / "guides" / "porting.md"
ROOMS = ["functions", "control", "statements", "values", "memory", "calls", "libraries", "devices"]  # as one reads them
SOURCE = ["backward_calls", "kept_numbers", "launchers", "registering", "decorating"]  # before the rules


def catalogued() -> list[pathlib.Path]:
    """Return the files whose docstrings describe a rewrite."""
    port = ROOT / "fnjax" / "port"
    found = [p for room in ROOMS for p in sorted((port / "rewrite" / room).glob("*.py")) if "\nWhat: " in p.read_text()]
    return [*(port / "source" / f"{name}.py" for name in SOURCE), *found]


INTRODUCTION = """\
# Porting files

`fnjax port` reads a file with `torch.autograd.Function` classes and writes JAX source with `fnjax.Function` classes. The
file is read, and run with `--verify` only. It needs libcst: `pip install '.[port]'`.

```sh
fnjax port swish.py -o swish_jax.py
```

The exit status is 0 if all is JAX source, 1 if something [stays as it is](#as-it-is), 2 if the input cannot be used. Each
reason is on standard error as `file:line:col CODE message`, and a summary line names what stays: `layers.py: 6 classes in JAX;
2 as they are: Sparse, Net`. `--diff` shows what changes, `--class NAME` limits the port to one class, `--report FILE` writes
the findings as JSON; a source may be a [folder](#folders), or `-` for standard input. Of a folder, a file that cannot be read
or parsed is named on standard error and makes the status 1; the others are ported. Declared encodings, line ends and a BOM
stay. From Python the same is `fnjax.port.port_source(text)`.

The JAX source holds the Function classes with what they need of the file, and what only calls their apply (`f = C.apply`,
`def f(x): return C.apply(x, 2)`). It imports fnjax, jax, jax.numpy, numpy and the standard library (and scipy, which JAX itself
needs, where the source's calls of it run on the host; and what the NumPy body of a custom operator uses): where JAX has no
single call for an operation, a small function is added. The operations that are known are on a
[page of their own](../torch-operations.md).

## What stays as it is {#as-it-is}

A class that cannot be translated whole stays PyTorch source, in a block at the end of the port that
[`fnjax.torch`](run-pytorch.md) executes:

``` { .python .no-run }
import fnjax
import fnjax.torch as torch
import jax.numpy as jnp


class Swish(fnjax.Function): ...  # JAX source


if torch.execute_block(globals()):  # PyTorch source as it is; Python itself skips the block
    import torch
    from some_package import unknown

    class Sparse(torch.autograd.Function): ...

    class Net(torch.nn.Module): ...
```

`Sparse.apply` takes JAX arrays and returns JAX arrays, like every class of `fnjax.torch`. Modules, launchers of Triton
kernels, and functions and classes that use the file's Functions, kernels or operators come along in the same block, also of
a file that has kernels and no Function. They take tensors: `torch.jax_view(function)` takes arrays. `Swish` in the block is the
class that is JAX source, seen by `torch.torch_view`. The block has names of its own: a helper that both halves need is there
twice, in JAX and in PyTorch. Other functions of the file, and what runs under `if __name__ == "__main__":`, are left out, and the
summary line names them.

A statement of the block that fails, such as the import of a package that is not installed, does not keep the port from being
imported: what it would define raises when it is used.

With `--strict` nothing stays as it is: a `raise NotImplementedError` is in the place of what cannot be translated, and the
class is `partial`. What is right outside jit (`untraced`), and what drops a write that only the caller would see (`in-place`),
is translated there.

## Folders {#folders}

```sh
fnjax port src/mypackage -o src/mypackage_jax
```

Files of a folder that import from each other are ported together. What a helper in another file does is known (that it writes
to its argument, say, or draws random numbers), and the import points at its port: `from mypackage.utils import smooth` becomes
`from .utils import smooth`, through `__init__` files and stars too, and each file keeps its names. Of a file without Function
classes the port has what other files' classes need. Many files are ported in several processes, with the count on a terminal.
A single file is ported by itself: what it imports of its package is a finding there.

## Collectives

`torch.distributed` becomes `fnjax.collectives`, and a process group the name of a mesh axis: see
[Several devices](devices.md#collectives), with what the caller sets where the source asks a getter for its group, and how
`fnjax compare --devices 4` runs both sides.

## Triton kernels

A kernel keeps its text, with its imports from [`fnjax.triton`](triton.md); a launch gives back what the kernel stores to, and
the variables that held it take it: `out, rstd = kernel[grid](x, out, rstd, ...)`, `out = out.at[a:b].set(kernel[grid](...))` for a
view. What the wrapper asks of the device has the answers of one GPU of capability 8.0, guards and contiguous copies fall
away, and numbers that only a kernel reads stay arrays. Of a folder, kernels and helpers in other files are followed. A view
with gaps whose strides the launch does not ask for, and a size that a tensor holds, are findings. Descriptors that are
made on the host (`TensorDescriptor`) stand in the launch that is given them; one that a function returns is a finding.

With `--verify`, where triton is installed, the original runs in Triton's interpreter; second derivatives are left out, as
PyTorch's graph ends at a launch. `python benchmarks/port_triton.py` ports the Functions of liger-kernel 0.8.5: 30 of 38 are
equal to the interpreter's to 1e-5 of the largest value, outputs and gradients, under jit; none is wrong. Of the others four
choose their implementation in a registry while they run, and one each writes to what a flag has made a view, needs a size that a tensor holds,
gradients of a module's parameters, and a process group, without which its original did not run. Of the Functions of six
packages that nobody had looked at none was ported whole at first: they make descriptors on the host, launch inside custom operators of
other files, write through closures, or take longer to port than seven minutes.

After mending, on the same packages, and so no figure of unseen code any more: of 18 Functions ten are equal to the interpreter's, outputs
and gradients under jit, seven of them ported whole (to 5e-7; one computes in float16, to 1e-4) and three but for a size that an argument
gives under jit, or for methods that open PyTorch's dual numbers. The other eight, all of one package, write through closures of a
benchmark and to what may be a view. None is wrong.

## Verifying

```sh
fnjax port swish.py -o swish_jax.py --verify      # executes the classes
```

With `--verify` PyTorch is the reference, also for classes that stay as they are. Where it is not installed, [`fnjax.torch`](run-pytorch.md) runs the original, and
each line and the report say so: "PyTorch is not installed: compared with fnjax.torch". It finds out aliases, writes, conditions and
dtypes while the class runs, so it judges the translation; the table of operations is one for both, so an operation that is wrong there
is not seen. `--against fnjax.torch` chooses it where PyTorch is installed, too, `--against pytorch` takes nothing else.

For each class arguments are looked for, as a tester would: from the signature,
annotations, defaults and names, from what forward and backward do with each parameter, from calls of `apply` in the file, and
from how far each try gets. On what the original's forward and backward run on, both sides are compared: outputs, gradients,
second derivatives, dtypes and shapes, eager and under jit, for other values, sizes, ranks, static arguments and patterns of
differentiated arguments. Standard error says what became of each class, and `--report` has it as JSON:

- `verified`: on how many calls both sides agree, and which lines of the class ran in none of them;
- `differs`: the smallest call that was found, to be pasted, and the exit status is 3;
- `not tried`, and why: no arguments found, the process ended. `--args "randn(3, 8), 2"` or `--cases FILE`, with lines
  such as `Swish.apply(randn(3, 8), 2)`, help there.

A class has 20 seconds (`--seconds`) and a process of its own with limited memory: one that hangs or aborts ends nothing else. Only
the class is executed and what it needs of its file and package, not the file as a whole.

`fnjax compare swish.py swish_jax.py` does the same with a port that lies there, and with `--args` prints every array of one
call. A port that draws random numbers is given a key, and of what depends on them (told by several seeds) only shapes and
dtypes are compared; `--no-second` leaves second derivatives out, `--argnums 0,2` differentiates by these arguments only,
`--devices N` needs PyTorch. What
PyTorch does not differentiate (an output that is marked, an array that backward detaches) gets a cotangent in JAX all the same,
so that a `mark_non_differentiable` or a `stop_gradient` that the port lacks shows. PyTorch leaves some orders open, as that of
`topk(sorted=False)`: there stable sorting is compared with. Agreement on some calls is no proof for all: the lines that never ran say
where to look.
"""  # noqa: E501 - Markdown

EXAMPLES = {
    "An activation": """\
import torch
from torch.autograd import Function


@torch.jit.script
def swish_backward(x, grad, beta: float):
    s = torch.sigmoid(beta * x)
    return grad * s * (1 + beta * x * (1 - s))


class Swish(Function):
    @staticmethod
    def forward(ctx, x, beta=1.0):
        ctx.save_for_backward(x)
        ctx.beta = beta
        return x.mul(torch.sigmoid(x.mul(beta)))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return swish_backward(x, grad_output, ctx.beta), None
""",
    "Masks and views": '''\
import torch


class SoftClip(torch.autograd.Function):
    """Entries above the limit grow by their logarithm only; the first row is left out."""

    @staticmethod
    def forward(ctx, x, limit):
        y = x.clone()
        large = x > limit
        excess = x[large] - limit  # of the large ones
        y[large] = limit + torch.log1p(excess)
        first = y[0]
        first.zero_()
        ctx.save_for_backward(x, large)
        ctx.limit = limit
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, large = ctx.saved_tensors
        grad = grad_output.clone()
        grad[large] /= 1 + x[large] - ctx.limit
        grad[0] = 0
        return grad, None
''',
    "A forward that backward computes again": """\
import torch
import torch.nn.functional as F


class Checkpointed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        with torch.no_grad():
            return F.gelu(F.linear(x, weight))

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            weight = weight.detach().requires_grad_()
            y = F.gelu(F.linear(x, weight))
        return torch.autograd.grad(y, (x, weight), grad_output)
""",
}

CODES = '''\
## Findings

A finding is an error (the class stays as it is; with `--strict` something is missing in it, or it runs outside jit only) or a note
(ported all the same).

| code | what it says |
| --- | --- |
| `callback` | note: the body of an operator asks for numbers; under jit it is a `jax.pure_callback`, with the shapes of `register_fake` |
| `untraced` | the value of a tensor decides a shape, a branch or a Python number: it runs un-jitted only |
| `alias` | a write to memory that several variables may share, where it cannot be told which of them see it; a note where a flat view is one of contiguous inputs only |
| `in-place` | forward writes to an input: a note if it returns it or its gradient is taken, else an error |
| `absent` | torch has the operation and JAX code cannot stand for it: kernels, groups of some processes, devices |
| `operation` | a call that does not fit torch's signature, or an option without counterpart |
| `unknown` | a name that the porter does not know |
| `supply` | a name of another module: put a JAX function in its place |
| `numpy` | NumPy or SciPy inside: a function that JAX has not and whose result has no known shape, or a write in place |
| `autograd` | PyTorch's automatic differentiation inside, in a form that could not be followed |
| `derivative` | a note: at some inputs the gradient of a recomputed forward is not PyTorch's (see below) |
| `random` | random draws where no key can be passed, or of Python's own generator |
| `random-key` | a note: apply takes a key as its new last argument |
| `output` | an output that holds arrays in a list or a dictionary |
| `effect` | a note: a call has an effect on an object, which under jit happens once, while tracing |
| `renamed` | a note: a parameter has a new name, as the port needs the old one |
| `float64` | a note: double precision is asked for, which JAX has with `jax_enable_x64` only |
| `int64` | whole numbers of more than 32 bits, which JAX has with `jax_enable_x64` only |
| `mask` | entries that a mask selects are written in a form that could not be followed |
| `check` | a note: a check of a value runs outside jit only |
| `base` | a note: a base `Function` that another module hands on is taken for `torch.autograd.Function` |
| `requires-grad`, `dropped`, `onnx` | notes: something that has no meaning in JAX was left out |
| `internal` | the porter failed; please report the file |

## Derivatives at ties, bounds and zeros

At a few inputs JAX's derivatives are not PyTorch's: `jnp.clip` passes half of the gradient at its bounds, `jnp.abs` has slope 1
at 0, the norm of a zero vector has NaN. This matters where the port differentiates, that is in a forward that backward computes
again (`torch.autograd.grad` becomes `jax.vjp`). There clamp, clip, hardtanh, abs, leaky_relu, fmax, fmin, copysign, std, the
norms and what is made of them become short functions with PyTorch's derivative:

``` { .python .no-run }
def _clip(x, min=None, max=None):
    """Clipped; the derivative is 1 at the bounds too."""
    low = x if min is None else jnp.where(x < min, min, x)
    return low if max is None else jnp.where(low > max, max, low)
```

The gradient is JAX's, and a note says so, for topk, kthvalue, mode, median and quantile where entries are equal, and for hypot
where both arguments are zero. Second derivatives of a hand-written backward are JAX's throughout: PyTorch takes what forward
computed and saved for constant there, and outputs that are marked non-differentiable. Where only that makes them differ, which
finite differences of PyTorch's gradient tell (in float32 where the class takes no float64), `fnjax compare` prints a note and no
FAIL. At such points themselves (abs at 0, clip at a bound) there is no difference to tell
it by, and it prints FAIL for second derivatives; `--verify` compares only first derivatives there. Give it whole numbers to see
them: `--args "randint(-2, 3, (3, 8)) * 1.0"`.

## Dtypes

The dtypes of a port are PyTorch's where all arrays that meet have one dtype, and where the source names dtypes. Not so:

- Without `jax_enable_x64` JAX has no 64-bit numbers: `.double()` gives float32, and whole numbers overflow at 32 bits.
- `y += b` keeps y's dtype where the dtypes are known to differ. Of two inputs of which nothing is known the port takes one dtype: a
  float16 `y` and a float32 `b` give float32.
- A tensor without dimensions widens no other's dtype in PyTorch; a JAX array without dimensions does, unless it was made of a
  Python number. The port casts back where it knows that there are none.
- `torch.tensor(0.0)` that gets dimensions afterwards is float32 in PyTorch; in JAX it stays open to the other's dtype.
- With `jax_enable_x64` what names no dtype (`torch.zeros(3)`, `torch.tensor([0.0, 1.0])`) has 64 bits, as if
  `torch.set_default_dtype(torch.float64)` had been called.
- What `.item()`, `float(t)` and Python's `max` make of a tensor stays in its dtype: of float16 it has 16 bits, where PyTorch goes on
  with a Python number of 64. A Python number that meets a float16 array is rounded to 16 bits first.
- `jnp.sign` of NaN is NaN, where PyTorch gives 0; a product of a mask with infinity or NaN is 0 in JAX where the mask is False, and
  NaN in PyTorch: of booleans always, of `(x > 0).float()` under jit.
- XLA divides an array by one number as `x * (1 / 0.9)`, so the last digit may be another, and `floor`, `round` or `trunc` of it
  another whole number. So may that of `127 / x`, which PyTorch takes for `127 * (1 / x)` and JAX divides. Under jit XLA takes
  `exp(x) ** a` for `exp(a * x)`, also where `exp(x)` alone would be 0 or infinite.
- Under jit XLA may join a product and a difference into one step, so that `a * a - b * b` is not 0 where a and b are the same. Of
  products of one array (`s ** 2 - (s ** 2).T`), and where the function compares or rounds the result, the port writes
  `_difference`, which is 0 there; elsewhere (`d -= s`, through a helper, `m * s - n`) the last digit stays. It may also leave
  out the rounding of a bfloat16 or float16 array between two steps.
- `.byte()`, `.char()`, `.short()` and `.int()` of floats beyond their range wrap round in PyTorch, and stop at the bound in JAX.
- What SciPy computes on the host is rounded to the dtype of its input; PyTorch gives float32 or float64 for float16.
- What a mask makes with a Python float (`(x > 0) * 0.5`) and what is made of numbers alone (`torch.full(shape, 0.5)`,
  `torch.where(c, 1.0, -1.0)`) is float32 in PyTorch; in JAX it takes the other's dtype beside float16 or whole numbers.
- `cumsum` and `cumprod` of an input of 8 or 16 bits count in its own dtype; PyTorch counts in 64.
- Whether an argument is a number or an array the port takes from how the source uses it: what goes through `float(a)`, `int(a)` or
  `math.sqrt(a)` and nothing else is taken for Python's; an array in its place runs un-jitted only.
- A Python float that a mask writes into an array of whole numbers (`n[n > 3] = 1.5`) makes it one of floats.
- Entries that are equal keep their order in jnp's sorts; PyTorch's leave it open unless `stable=True` is given, and so do topk and
  what is made of them.
- What Python's `max` and `min` take of arguments that may be arrays is an array: numbers of 64 bits become float32 there.
- An argument that is `()` and gives the axes of a sum or a mean stands for all of them in PyTorch, and for none in JAX; `None` is
  all in both. A tensor without dimensions has an axis 0 and -1 in PyTorch, and none in JAX.
- PyTorch's solvers raise for singular matrices only; a `try` around one takes its `except` in JAX where the result is not finite,
  so also where the right side was not.
- XLA takes numbers below the smallest normal one (1.2e-38 for float32) for zero.
- Singular and eigenvectors may have the other sign, as both libraries leave it open.
- For a matrix that is not positive definite `torch.linalg.cholesky_ex` leaves what it has computed so far; JAX's factor is NaN.
- Sums of squares of float16 overflow in JAX's norms, as PyTorch adds them up in float32; what lies beyond the range of
  `float8_e4m3fn` is NaN in JAX, and the largest number in PyTorch.
'''  # noqa: E501 - a table

UNSEEN = """\
### Classes that nobody had looked at

The same with `--others`: packages whose classes nobody who works on the porter had seen."""
MISTAKES = """\
### Mistakes that are found

`python tools/port_search.py` puts mistakes into ports that agree, and verifies these: a sign, a factor, another
axis, a mask or a mark left out, a stop_gradient too many or too few, two gradients swapped. Those that agree with
PyTorch on 10,000 calls count as equivalent. The run below was made when arguments and cotangents still
came from one random stream."""


def examples() -> str:
    """Each file before and after."""
    parts = ["## Before and after"]
    for title, text in EXAMPLES.items():
        ported = port_source(text)
        assert not ported.findings, ported.findings
        for heading, code in (("PyTorch", text), ("JAX", ported.code)):
            parts.append(f"{'### ' + title + chr(10) * 2 if heading == 'PyTorch' else ''}{heading}:\n")
            parts.append(f"``` {{ .python .no-run }}\n{code.strip()}\n```")
    return "\n\n".join(p.rstrip("\n") for p in parts)


def catalogue() -> str:
    """Return the catalogue of rules, from their docstrings."""
    parts = ["## The rewrites"]
    for path in catalogued():
        docstring = ast.get_docstring(ast.parse(path.read_text()), clean=True) or ""
        title, _, rest = docstring.partition("\n")
        lines = re.sub(r"\n(What|Before|After|Safety|Limits): ", r"\n\n**\1.** ", "\n" + rest.strip())
        parts.append(f"### {title.rstrip('.')}\n{lines}")
    return "\n\n".join(parts)


def page(figures: str) -> str:
    """Return the whole page."""
    head = (
        "## Figures\n\nClasses of public packages that use tensor operations only, ported and verified without help, "
        "as `--verify` does it. `python tools/port_corpus.py --numbers` fetches the packages and prints these "
        "tables. *Proved*, *differs* and *not tried* are the verdicts above; only what is ported whole is verified."
    )
    return (
        "\n\n".join([INTRODUCTION.rstrip(), examples(), f"{head}\n\n{figures.strip()}", CODES.rstrip(), catalogue()])
        + "\n"
    )


def main() -> None:
    if len(sys.argv) > 1:
        corpus, others, search = (pathlib.Path(name).read_text().strip() for name in sys.argv[1:])
        figures = "\n\n".join(
            [corpus[corpus.index("| package |") :], UNSEEN, others[others.index("| package |") :], MISTAKES, search]
        )
    else:
        text = PAGE.read_text()
        figures = text[text.index("| package |") : text.index("## Findings")]
    PAGE.write_text(page(figures))


if __name__ == "__main__":
    main()
