"""Control flow on traced values: what a file gives outside of jit, it gives under jit."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch

SOURCE = """
import math
import torch


def early(x):
    if x.sum() > 3:
        return x * 2
    if x.sum() > 1:
        return x + 1
    return -x


def branch_in_place(x):
    y = x.clone()
    row = y[0:2]
    if x.sum() > 3:
        row.mul_(10)
    else:
        row.add_(1)
    return y


def count(x):
    n = 0
    while x.sum() < 100:
        x = x * 2 + 1
        n += 1
    return x, n


def bisect(x, steps=30):
    low, high = torch.zeros_like(x), x + 1
    for _ in range(steps):
        middle = (low + high) / 2
        above = middle * middle > x
        low = torch.where(above, low, middle)
        high = torch.where(above, middle, high)
        if (high - low).max() < 1e-4:
            break
    return middle


def nested(x):
    for i in range(4):
        for j in range(3):
            if x.sum() > 20:
                return x + 100
            x = x + j
        if x[0] > 6:
            continue
        x = x * 1.5
    else:
        x = x + 0.25
    return x


def loop_else(x):
    for i in range(3):
        if x[0] > i:
            break
    else:
        x = x - 50
    return x + i


def defaults(x):
    count = (x > 100).sum().item() or 2.0
    extra = (x > 1).sum().item() and 3.0
    return x / count + extra


def logic(x):
    big, small = x.max() > 2, x.min() < 0
    y = x * 2 if big and not small else x / 2
    return y if 0 < x.mean() < 5 or small else -y


def numbers(x):
    n = int(x.max().item()) + 1
    scale = 2 ** -n
    top = max(x[0].item(), x[1].item(), 0.5)
    return x * scale + top + math.floor(x.sum().item()) + n // 2 + float(isinstance(n, int))


def checked(x):
    assert x.min() > -100, "small"
    if not torch.isfinite(x).all():
        raise ValueError("not finite")
    return x + 1


def in_place_loop(x):
    total = torch.zeros(3)
    while total.sum() < 10:
        total += x.abs() + 1
        total[0] = total[1] + 1
    return total


def deleted(x):
    for i in range(3):
        part = x * i
        x = x + part
        del part
    if x.sum() > 3:
        y = x * 2
        x = y - 1
        del y
    return x


def writes_in_logic(x):
    log = torch.zeros(3)

    def note(v):
        return log.add_(v).sum() > 0

    both = x.sum() > 1 and note(x)
    either = x[0] > 0 or note(2 * x)
    number = x.sum() and note(4 * x)
    return log, both, either, number * x[2]


def selected(x):
    small = x < 1.5
    if x.sum() > 1:
        found = -x.masked_select(small).div_(2.0)
        total = 0
        for c in (1.0, 2.0):
            total = found.mul(c + total)
        return x.clone().masked_scatter_(small, total.sub_(3))
    return x.masked_scatter(~small, x.masked_select(~small))


class Base:
    def scale(self, x):
        return x * 2


class Derived(Base):
    near = math.isclose

    def scale(self, x):
        if x.sum() > 0:
            return super().scale(x) + self.__extra(x)
        return x

    def __extra(self, x):
        __sum = 0
        for __i in range(2):
            if x[__i] > 0.4:
                __sum = __sum + x[__i]
        return __sum


def methods(x):
    return Derived().scale(x), float(Derived().near(x.sum().item(), 3.5, rel_tol=1e-3))


def test_binds(x):
    n = 0
    while (s := x.sum()) < 20:
        x = x + 1
        n = n + s
    return x, n, s


def loop_counts_tests(x):
    asked = torch.zeros(())

    def test():
        asked.add_(1)
        return x.sum() < 10

    while test():
        x = x + 1
    return x, asked


def any_and_all(x):
    seen = torch.zeros(3)

    def test(i):
        seen[i] += 1
        return x[i] > 1

    return x * any(test(i) for i in range(3)), seen, x * all(v > 0 for v in x), any([x[0] > 3, 1])


def keyed(x):
    return max([x[0], x[1], x[2]], key=lambda v: -v), min(x[0].item(), x[1].item(), key=lambda v: v * v)


def try_else(x):
    try:
        if x.sum() > 0:
            return x * 2
    except ValueError:
        pass
    else:
        x = x * 10
    return x


def within_with(x):
    with torch.no_grad():
        for i in range(3):
            if x.max() > 4:
                return x
            x = x + 1
            with torch.no_grad():
                if x.min() > 0:
                    continue
                x = x * 2
        else:
            x = -x
    return x + 1


def traced_bound(x):
    i = 0
    for i in range(int(x.max().item())):
        if i == 2:
            continue
        x = x + i
        if x.sum() > 30:
            break
    else:
        x = x - 100
    return x, i


def matched(x):
    for k in range(3):
        match k:
            case 0:
                x = x + 1
            case 1:
                if x.sum() > 5:
                    return x * 2
            case _:
                x = x - 3
    return x


factor = 1.0


def global_and_nonlocal(x):
    global factor
    factor, n = 1.0, x.new_zeros(())

    def count(v):
        nonlocal n
        if v > 0:
            n = n + v
        else:
            n = n - 1

    for i in range(3):
        count(x[i])
    if x.sum() > 0:
        factor = 2.0
    result, factor = x * factor, 1.0
    return result, n


def names(x, name=1.0, *args):
    test = item = items = decided = closure = 1.0
    if x.sum() > 0:
        test = 2.0
        name = name + 1
    for i in range(int(x[0].abs().item()) + 2):
        item = item + 1
        items = items * 2
        closure = closure - 1
    while x.sum() < 30:
        x = x + 1
        decided = decided + 1
        value = result = x
    return x * test, name, item, items, decided, closure, value, result, len(args)


def all_names(x):
    return names(x, 3.0, 4, 5)


def in_generator(x):
    def items():
        for i in range(3):
            if x[i] > 1:
                z = x[i]
            else:
                z = -x[i]
            yield z

    return [*items()]
"""
INPUTS = [[1.0, 0.5, 2.0], [0.1, 0.2, 0.3], [-1.0, -2.0, 0.5], [5.0, 0.0, 7.0]]
NAMES = [
    "early",
    "branch_in_place",
    "count",
    "bisect",
    "nested",
    "loop_else",
    "logic",
    "defaults",
    "numbers",
    "checked",
    "in_place_loop",
    "deleted",
    "writes_in_logic",
    "selected",
    "methods",
    "test_binds",
    "loop_counts_tests",
    "any_and_all",
    "keyed",
    "try_else",
    "within_with",
    "traced_bound",
    "matched",
    "global_and_nonlocal",
    "all_names",
    "in_generator",
]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "flow.py"
    path.write_text(SOURCE)
    return torch.load(path)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
def test_jit_gives_what_python_gives(loaded, name):
    """Python's own control flow on known values is the reference for each function under jit."""
    function = torch.jax_view(getattr(loaded, name))
    compiled = jax.jit(function)
    for values in INPUTS:
        if name == "bisect" and min(values) < 0:
            continue
        x = jnp.array(values)
        expected, got = jax.tree.leaves(function(x)), jax.tree.leaves(compiled(x))
        assert len(expected) == len(got)
        for a, b in zip(expected, got, strict=True):
            np.testing.assert_allclose(b, a, rtol=2e-6)


def test_python_control_flow_is_python_s():
    """The functions mean what Python makes of them: the same source with NumPy in torch's place gives the same."""
    x = np.array([1.0, 0.5, 2.0], np.float32)
    assert _early(x).tolist() == [2.0, 1.0, 4.0]


def _share(n):
    parts, group = [], None

    def add(value):
        if group is None:
            parts.append(value)
        else:
            group.append(value)

    def both(value):
        add(value)

    for i in range(n):
        if i == 1:
            group = []
        both(i)
        if i == 2:
            parts.append(group)
            group = None
    return parts


def test_inner_functions_share_variables_with_blocks(tmp_path):
    """A function called in a loop sees what the loop has written to the variables of both."""
    path = tmp_path / "share.py"
    path.write_text(inspect.getsource(_share))
    assert torch.load(path)._share(4) == _share(4) == [0, [1, 2], 3]


def _early(x):
    return x * 2 if x.sum() > 3 else x + 1 if x.sum() > 1 else -x


def test_gradients_go_through_branches(loaded):
    """The derivative of a function with branches is that of the branch that is taken."""
    gradient = jax.jit(jax.grad(lambda x: torch.jax_view(loaded.early)(x).sum()))
    np.testing.assert_array_equal(gradient(jnp.array([1.0, 0.5, 2.0])), [2.0, 2.0, 2.0])
    np.testing.assert_array_equal(gradient(jnp.array([0.1, 0.2, 0.3])), [-1.0, -1.0, -1.0])


def test_exceptions_in_loops(tmp_path):
    """The variable of `except ... as e` is unset after it, in a loop and a branch too."""
    path = tmp_path / "tried.py"
    path.write_text(
        "def tried(n):\n    out = []\n    for i in range(n):\n        try:\n            if i == 1:\n"
        "                raise ValueError('one')\n            out.append(i)\n        except ValueError as e:\n"
        "            out.append(str(e))\n    return out\n"
    )
    assert torch.load(path).tried(3) == [0, "one", 2]


SHARED = """
import torch

def branch(x):
    a = x * 1
    v = a[1:]
    if x.sum() > 0:
        y = a
    else:
        y = a * 2
    y.add_(1)
    if x[0] < 0:
        z = v
    else:
        z = y[1:]
    z.mul_(3)
    a[0] = 7
    return a, y, z, v

def both(x):
    c = x + 2
    if x.sum() > 0:
        c = a = x * 3
    else:
        a = x * 1
    c.add_(1)
    a[1] = 5
    return a, c

def loop(x):
    best = x = x * 1
    while x.sum() < 10:
        best = x
        x = x + 1
    return best, x

def written(x):
    best = x = x * 1
    while x.sum() < 10:
        best = x
        x = x + 1
    best.add_(1)
    return best
"""


@pytest.mark.parametrize("first", [1.0, -1.0])
def test_branches_and_loops_that_share_memory(tmp_path, first):
    """After `y = x` in a traced branch or loop, a write reaches both."""
    path = tmp_path / "shared.py"
    path.write_text(SHARED)
    loaded = torch.load(path)
    for second in (3.0, -3.0):
        x = jnp.array([first, second])
        for function in map(torch.jax_view, (loaded.branch, loaded.both, loaded.loop, loaded.written)):
            for ours, expected in zip(jax.tree.leaves(jax.jit(function)(x)), jax.tree.leaves(function(x)), strict=True):
                np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_branches_of_different_shapes_raise_when_used(tmp_path):
    """A variable of another shape in each branch is refused where it is used, by name."""
    path = tmp_path / "shapes.py"
    path.write_text(
        "def f(x):\n    if x.sum() > 0:\n        y = x[:1]\n    else:\n        y = x[:2]\n    return y + 1\n\n"
        "def g(x, low):\n    if (low == 0).all():\n        low = x.min()\n    step = (low.abs() + 1) / low.numel()\n"
        "    return sorted([x[0], x[1]], reverse=True)[0] + (x - low) / step, step.sum() * 2**40\n"
    )
    loaded = torch.load(path)
    with pytest.raises(torch.NotSupported, match=r"(y|expression) has the shape"):
        jax.jit(torch.jax_view(loaded.f))(jnp.ones(3))
    x, g = np.array([2.0, 3.0, -1.0], np.float32), torch.jax_view(loaded.g)
    under_jit = jax.jit(g)
    for low, step in (
        (np.zeros(1), np.full((), 2.0)),
        (np.zeros(3), np.full((), 2.0)),
        (np.ones(3), np.full(3, 2 / 3)),
    ):
        expected = 3 + (x - (low if low.any() else x.min())) / step, step.sum() * 2.0**40
        for f in (g, under_jit):
            for a, b in zip(f(x, low.astype(np.float32)), expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6)


def test_functions_that_return_in_one_branch_alone(tmp_path):
    """The result of such a function is None in the other branch, so its use as a tensor is refused."""
    path = tmp_path / "one.py"
    path.write_text("def g(x):\n    if x.sum() > 0:\n        return x\n\n\ndef f(x):\n    return g(x) + 1\n")
    function = torch.jax_view(torch.load(path).f)
    assert function(jnp.ones(2)).tolist() == [2.0, 2.0]
    with pytest.raises(torch.NotSupported, match="what a function returns is"):
        jax.jit(function)(jnp.ones(2))


def test_a_saved_tensor_that_is_an_output_in_one_branch(tmp_path):
    """A second derivative goes by the class's rule where the saved tensor is the output, else through forward."""
    path = tmp_path / "saved.py"
    path.write_text(
        "import torch\n\nclass F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        if x.sum() > 0:\n            z = x * 3\n            ctx.save_for_backward(z)\n            return z\n"
        "        else:\n            z = x * 1\n            ctx.save_for_backward(z)\n            return x * 5\n\n"
        "    @staticmethod\n    def backward(ctx, g):\n        (z,) = ctx.saved_tensors\n        return 2 * g * z\n"
    )
    apply = torch.load(path).F.apply
    second = jax.jit(jax.grad(lambda x: jax.grad(lambda x: apply(x).sum())(x).sum()))
    x = jnp.array([1.0, 2.0])
    np.testing.assert_allclose(second(x), 2 * (2 * 3 * x))  # z is the output, whose rule is 2 z
    np.testing.assert_allclose(second(-x), [2.0, 2.0])


def test_branches_that_save_different_numbers_of_tensors(tmp_path):
    """Outside jit each branch saves its own; under jit the message says what to save."""
    path = tmp_path / "numbers.py"
    path.write_text(
        "import torch\n\nclass F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        if x.sum() > 0:\n            ctx.save_for_backward(x)\n        else:\n"
        "            ctx.save_for_backward(x, x * 2)\n        return x * 3\n\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g * ctx.saved_tensors[-1]\n"
    )
    slope = jax.grad(lambda x: torch.load(path).F.apply(x).sum())
    assert slope(jnp.array([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert slope(jnp.array([-1.0, -2.0])).tolist() == [-2.0, -4.0]
    with pytest.raises(torch.NotSupported, match="save as many in both"):
        jax.jit(slope)(jnp.array([1.0, 2.0]))


@pytest.mark.parametrize("mark", ["mark_non_differentiable(z)", "set_materialize_grads(False)", "mark_dirty(x)"])
def test_marks_of_one_branch(tmp_path, mark):
    """Outside jit the branch that is taken marks; under jit the message says where to call it."""
    path = tmp_path / "marks.py"
    path.write_text(
        "import torch\n\nclass F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        f"        z = x * 3\n        if x.sum() > 0:\n            ctx.{mark}\n        return x * 2, z\n\n"
        "    @staticmethod\n    def backward(ctx, g, h):\n        return g * 2 + (5 if h is None else h * 3)\n\n"
        "def f(x):\n    y, z = F.apply(x)\n    return (y + z.detach()).sum()\n"
    )
    slope = jax.grad(torch.jax_view(torch.load(path).f))
    assert slope(jnp.array([-1.0, -2.0])).tolist() == [2.0, 2.0]
    with pytest.raises(torch.NotSupported, match=f"{mark.split('(')[0]} is called in one branch alone"):
        jax.jit(slope)(jnp.array([-1.0, -2.0]))


@pytest.mark.parametrize("test", ["ctx.flag", "len(ctx.saved_tensors)", "ctx.saved_tensors", "ctx.saved_tensors != ()"])
def test_tensors_saved_in_one_branch(tmp_path, test):
    """Under jit backward may go by an attribute, but not by the number of saved tensors."""
    path = tmp_path / "saved.py"
    path.write_text(
        "import torch\n\nclass F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        ctx.flag = False\n        if x.sum() > 0:\n            ctx.save_for_backward(x)\n"
        "            ctx.flag = True\n        return x * 2\n\n    @staticmethod\n    def backward(ctx, g):\n"
        f"        if {test}:\n            (x,) = ctx.saved_tensors\n            return g * x\n        return g * 7\n"
    )
    slope = jax.grad(lambda x: torch.load(path).F.apply(x).sum())
    assert [slope(x).tolist() for x in (jnp.ones(1), -jnp.ones(1))] == [[1.0], [7.0]]
    if test == "ctx.flag":
        assert [jax.jit(slope)(x).tolist() for x in (jnp.ones(1), -jnp.ones(1))] == [[1.0], [7.0]]
    else:
        with pytest.raises(torch.NotSupported, match="backward asks how many there are"):
            jax.jit(slope)(jnp.ones(1))


def test_a_branch_is_the_first_to_call_an_apply(tmp_path):
    """The cache of apply is not state of the program, also where a variable holds apply."""
    path = tmp_path / "first.py"
    path.write_text(
        "import torch\n\nclass F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        return x * 2\n\n    @staticmethod\n    def backward(ctx, g):\n        return g * 5\n\n"
        "apply = F.apply\n\ndef f(x):\n    if x.sum() > 0:\n        y = apply(x)\n    else:\n        y = apply(x * 3)\n"
        "    return apply(y).sum()\n"
    )
    slope = jax.jit(jax.grad(torch.jax_view(torch.load(path).f)))
    assert [slope(jnp.array([x]))[0].item() for x in (1.0, -1.0)] == [25.0, 75.0]


ELSEWHERE = """
import torch


class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sqrt()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / (2 * x.sqrt())


def scaled(x):
    n = x.norm()
    if n > 0:
        x = x / n
    return (x * torch.arange(3.0)).sum()


def nested(x):
    s = x.sum()
    if s > 1:
        y = torch.log(s - 2) * x[0] if s > 2 else torch.sqrt(s - 1) * x[1]
    else:
        y = x.prod()
    return y


def of_view(x):
    v = x[:2]
    y = Root.apply(v).sum() if x.sum() > 0 else (v * v).sum()
    return y + v.sum()


def in_place(x):
    x = x * 1
    if x.sum() > 0:
        x[0] = x[1].clone().log()
    return (x * x).sum()


def by_autograd(x):
    w = x.detach().clone().requires_grad_()
    loss = w.sqrt().sum() if x.sum() > 0 else (w * w).sum()
    loss.backward()
    return (w.grad * x).sum()


def pairs(x):  # what the branches choose between must not double with each of them
    t = 0
    for i in range(4):
        for j in range(4):
            if x[i % 3] < x[j % 3]:
                continue
            if x[i % 3] + x[j % 3] > 2:
                break
            t = t + x[i % 3] * (j + 1)
    return t + x.sum() * 0


def saved(x):
    if x.sum() > 0:
        return (x > 0).sum() * x[0] + x[x > 0].log().sum()
    return x[0]
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """The functions of ELSEWHERE."""
    path = tmp_path_factory.mktemp("elsewhere") / "elsewhere.py"
    path.write_text(ELSEWHERE)
    return torch.load(path)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("x", [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [-1.0, -2.0, -3.0], [0.5, 0.5, 0.5], [0.2, 0.3, -1]])
@pytest.mark.parametrize("name", ["scaled", "nested", "of_view", "in_place", "by_autograd", "saved", "pairs"])
def test_no_gradient_leaves_a_branch_that_is_not_taken(elsewhere, name, x):
    """Its derivatives may be infinite or NaN, which zero times is NaN; a Function may be applied there first."""
    function = torch.jax_view(getattr(elsewhere, name))
    found = jax.jit(jax.grad(function))(jnp.array(x))
    leaf = torch.tensor(x, requires_grad=True)
    (want,) = torch.autograd.grad(getattr(elsewhere, name)(leaf), leaf)
    np.testing.assert_allclose(found, want.numpy(), rtol=1e-5)


FEW = """
def moved(x):
    a, b, n = x * 1, x * 2, 0
    view = b[1:]
    while n < 3 and a.sum() < 8:
        view += a[1:]
        a, b, n = b, a + b, n + 1
    else:
        a.mul_(2)
    return (a * b).sum() + view.sum() * n


def flagged(x):
    n, kind = 0, None
    while True:
        n += 1
        if n > 3 or x.sum() > 9:
            break
        x = x * x if kind is None else x + 1
        kind = "b"
    return (x * n).sum()


def many(x):
    while x.sum() < 100:
        x = x * 2
    return x.sum()


def many_items(x):
    for i in range(20):
        if x.sum() > 100:
            break
        x = x * 2
    return x.sum()


def counted(x):
    n = 0
    while n < 40 and x.sum() < 100:
        x = x * 2
        n += 1
    return x.sum() * n


def long(x):
    n = 0
    while n < 9 and x.sum() < 100:
        for i in range(30):
            x = x * 1.01 + 0.01 * i
        n += 1
    return x.sum() * n


def solved(x, w):
    y = x
    for i in range(40):
        y = (y * w).tanh() + x * 0.1
        if (y * y).sum() < 0.3:
            break
    else:
        y = y * 2
    return (y**3).sum() * i
"""


def test_loops_of_few_iterations(tmp_path):
    """They may move memory, and have gradients, as those over a range have; others are refused one, with the line."""
    path = tmp_path / "few.py"
    path.write_text(FEW)
    file = torch.load(path)
    assert "while" in str(jax.make_jaxpr(torch.jax_view(file.long))(jnp.ones(3)))  # nine bodies are a large program
    for name in ("moved", "flagged", "many_items", "counted", "long"):
        function = torch.jax_view(getattr(file, name))
        compiled = jax.jit(jax.value_and_grad(function))
        for x in ([0.5, 1.0, 2.0], [-1.0, -2.0, 0.5], [3.0, 4.0, 5.0], [0.1, 0.1, 0.2]):
            for want, found in zip(jax.value_and_grad(function)(jnp.array(x)), compiled(jnp.array(x)), strict=True):
                np.testing.assert_allclose(found, want, rtol=1e-5)
    for name in ("many", "many_items"):
        function = torch.jax_view(getattr(file, name))
        assert jax.jit(lambda x, f=function: jax.jvp(f, (x,), (x,)))(jnp.ones(3)) == (192, 192)
    with pytest.raises(torch.NotSupported, match=r"a gradient of a loop (.|\n)*few.py:26"):
        jax.grad(jax.jit(torch.jax_view(file.many)))(jnp.ones(3))
    function = torch.jax_view(file.solved)
    args = jnp.array([0.5, 1.0, -2.0]), jnp.array([1.1, 0.7, -0.9])
    want = jax.jacobian(jax.grad(function, (0, 1)), (0, 1))(*args)
    found = jax.jit(jax.hessian(jax.jit(function), (0, 1)))(*args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), found, want)


MOVED = """
import torch


def none_run(x):
    a = x * 1
    acc, n = a, 0
    while n < 99 and acc.sum() < 5:
        acc, n = acc * 2, n + 1
    acc += 1
    a *= 2
    return a, acc


def moved(x):
    a, b = x * 1, x * 2
    c, n = a + b, 0
    while n < 99 and c.max() > x.sum():
        n += 1
        b = c
        c = a
    b += 1
    return a, b, c


def moved_then_the_first(x):
    a, b, n = x * 1, x * 2, 0
    old = b[:]
    while n < 99 and a.sum() < 5:
        a, b, n = b, a + b, n + 1
    old += 1
    return a, b
"""


def test_memory_that_iterations_move(tmp_path):
    """After no iteration a variable shares what it shared before, after others what they moved."""
    path = tmp_path / "moved.py"
    path.write_text(MOVED)
    file = torch.load(path)
    for function in (file.none_run, file.moved, file.moved_then_the_first):
        under_jit = jax.jit(torch.jax_view(function))
        for x in ([1.0, 2.0, 3.0], [-1.0, -2.0, -3.0], [0.5, 0.5, 0.5]):
            want, found = (
                jax.tree.leaves(torch.jax_view(function)(jnp.array(x))),
                jax.tree.leaves(under_jit(jnp.array(x))),
            )
            np.testing.assert_allclose(jnp.stack(found), jnp.stack(want), rtol=1e-6)
