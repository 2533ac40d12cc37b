"""Traced branches and loops: what they change is as in PyTorch, or refused."""

import contextlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch
from fnjax.torch.control import paths

RAISES = """
import contextlib
import torch


def told(x):  # texts of traced numbers in an exception
    n = x.sum().item()
    assert n > 0, f"{n} <= 0"
    if n < 0:
        raise ValueError("%s is negative: " % n + str(n) + f"{x.min().item():.1f}")
    return x * 2


def passes(x):
    if x.sum() > 0:
        return x * 2
    raise ValueError


def check(x):
    if x.sum() < 0:
        raise ValueError("negative")


def helper(x):
    check(x)
    return x * 2


def handled_within(x):
    y = x
    if x.sum() > 0:
        try:
            raise ValueError
        except ValueError:
            y = x * 2
    return y


def after_a_try(x):
    try:
        y = x * 2
    except ValueError:
        return x * 3
    assert x.sum() > 0
    return y


def other_handler(x):
    try:
        if x.sum() < 0:
            raise ValueError
        return x * 2
    except (KeyError, TypeError):
        return x * 3


class Closing:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


@contextlib.contextmanager
def block():
    yield


def in_blocks(x):
    with torch.no_grad(), Closing(), block(), contextlib.suppress(KeyError):
        check(x)
    return x * 2


def caught(x):
    try:
        if x.sum() > 0:
            raise ValueError
        return x * 3
    except ValueError:
        return x * 2


def caught_assert(x):
    try:
        assert x.sum() < 0
    except AssertionError:
        return x * 2
    return x * 3


def caught_helper(x):
    try:
        check(x)
    except Exception:
        return x * 2
    return x * 3


def suppressed(x):
    y = x * 2
    with contextlib.suppress(LookupError, ValueError):
        check(x)
        y = x * 3
    return y


def retried(x):
    for k in range(3):
        try:
            if x.sum() > k:
                raise ValueError
            return x * k
        except ValueError:
            continue
    return x


class Swallowing:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        return kind is ValueError


def swallowed(x):
    y = x * 2
    with Swallowing():
        check(x)
        y = x * 3
    return y


@contextlib.contextmanager
def ignoring():
    try:
        yield
    except ValueError:
        pass


def ignored(x):
    y = x * 2
    with ignoring():
        check(x)
        y = x * 3
    return y


class Row:
    def __init__(self, x):
        self.x = x

    def __getattr__(self, name):
        if self.x.sum() > 0:
            raise AttributeError(name)
        return 3

    def __getitem__(self, i):
        if self.x.sum() < i:
            raise IndexError
        return self.x


def attribute(x):
    return x * getattr(Row(x), "scale", 2)


def items(x):
    return sum(Row(x))


def jumps_in_finally(x):
    for i in range(2):
        try:
            check(-x)
            x = x + 1
        finally:
            break
    return x


def key(x):
    if x.sum() > 0:
        y = x * {6: 2.0}[int(x.sum())]
    else:
        y = x
    return y


def index(x):
    y = x
    if x.sum() > 0:
        y = [x][3]
    return y


def kind(x):
    return x * 2 if x.sum() > 0 else x + "a"


def right_operand(x):
    return (x.sum() > 0 and {}["k"]) or x
"""


MERGED = """
import collections
import contextvars
import copy
import functools
import operator
import types

import torch

N = 0
S = 1.0
VAR = contextvars.ContextVar("VAR", default=2.0)


class Box:
    total = 0.0

    def __init__(self, value):
        self.value, self.count = value, 0

    def up(self):
        self.count += 1
        self.value = self.value * 2

    def __iadd__(self, other):
        self.value = self.value + other
        return self


class Slotted:
    __slots__ = ("a", "b")


def backward_in_both(x):
    w = x.detach().clone().requires_grad_()
    loss = (w**2).sum()
    if x.sum() > 0:
        loss.backward()
    else:
        (loss * 10).backward()
    return w.grad


def backward_adds_in_one(x):
    w = x.detach().clone().requires_grad_()
    (w * 3).sum().backward()
    if x.sum() > 0:
        (w**2).sum().backward()
    return w.grad


def data(x):
    y = x * 1
    if x.sum() > 0:
        y.data = x * 3
    return y


def data_of_a_view(x):
    y = x.clone()
    v = y[:2]
    if x.sum() > 0:
        v.data = x[1:] * 3
    v.add_(1)
    return y, v


def set_and_t(x):
    y, z = x.repeat(3, 1), x * 2
    if x.sum() > 0:
        y.t_()
    else:
        y.set_(y * 2)
    return y, z


def in_place_and_view(x):
    a = x.clone()
    v = a[1:]
    if x.sum() > 0:
        v.mul_(2)
    else:
        a.add_(1)
    return a, v


def update_of_a_leaf(x):
    w = x.detach().clone().requires_grad_()
    with torch.no_grad():
        if x.sum() > 0:
            w.mul_(3)
    (w**2).sum().backward()
    return w.grad, w.requires_grad


def attributes(x):
    o = Box(x)
    if x.sum() > 0:
        o.up()
        o.up()
    else:
        o.up()
    return o.value * o.count


def attribute_by_setattr(x):
    o = types.SimpleNamespace(v=x)
    put = functools.partial(setattr, o, "v")
    if x.sum() > 0:
        put(x * 3)
    return o.v


def slots(x):
    o = Slotted()
    o.a = o.b = x
    if x.sum() > 0:
        o.a = x * 2
    return o.a + o.b


class Copied:
    def __init__(self, value):
        self.value = value


def copied(x):  # by which Python notes the slots of the class in the class
    o = Copied(x)
    if x.sum() > 0:
        p = copy.copy(o)
        o.value = p.value * 2
    return o.value


def class_attribute(x):
    Box.total = x * 1
    if x.sum() > 0:
        Box.total = Box.total + 1
    else:
        Box.total -= 1
    total, Box.total = Box.total, 0.0
    return total


def items(x):
    outs, d = [x, x], {"k": x}
    q = collections.deque([x])
    if x.sum() > 0:
        outs[0] = x * 2
        d["k"] = x * 3
        operator.setitem(outs, 1, x * 5)
        q[0] = x - 1
    else:
        d.update(k=x * 7)
    return outs[0] + outs[1] + d["k"] + q[0]


def appended_in_both(x):
    outs = []
    push = outs.append
    if x.sum() > 0:
        push(x * 2)
    else:
        push(x * 3)
    return outs[-1] * len(outs)


def added_in_both(x):
    outs = [x]
    other = outs
    if x.sum() > 0:
        outs += [x * 2]
    else:
        outs += [x * 3]
    return other[-1] * len(other)


def own_iadd(x):
    a = b = Box(x)
    if x.sum() > 0:
        a += 5
    return b.value


def popped_in_both(x):
    outs = [x, x * 2, x * 3]
    y = outs.pop() if x.sum() > 0 else outs.pop() * 2
    return y * len(outs)


def counted(x):
    n = 0

    def count():
        nonlocal n
        n += 1
        return x * n

    y = count() if x.sum() > 0 else x
    if x.sum() > 1:
        count()
        count()
    return y + n


def global_in_helper(x):
    def count():
        global N
        N += 1

    global N
    N = 0
    if x.sum() > 0:
        count()
        count()
    n, N = N, 0
    return x * n


def global_in_both(x):
    global S
    if x.sum() > 0:
        S = 2.0
    else:
        S = 3.0
    s, S = S, 1.0
    return x * s


def operand(x):
    hits = Box(x)

    def hit():
        hits.up()
        return x.sum() < 100

    if x.sum() > 0 or hit():
        return hits.value + hits.count
    return x


def operand_and(x):
    l = [0]

    def put():
        l[0] += 1
        return x.sum() < 100

    y = x.sum() > 0 and put()
    return x * l[0] + y


def expression(x):
    l = [x]
    y = x if x.sum() > 0 else (operator.setitem(l, 0, x * 5) or x * 2)
    return y + l[0]


def context_variable(x):
    token = VAR.set(3.0)
    if x.sum() > 0:
        VAR.set(4.0)
    v = VAR.get()
    VAR.reset(token)
    return x * v


def raises_after_a_change(x):
    o = Box(x)
    if x.sum() < -100:
        o.up()
        raise ValueError
    else:
        o.value = o.value * 3
    return o.value


def nested(x):
    o, l = Box(x), [x]
    if x.sum() > 0:
        if x.sum() > 1:
            o.up()
            l[0] = o.value
        else:
            l[0] = x * 7
    else:
        o.value = l[0] * 2
    return o.value + l[0] * o.count


def new_containers(x):
    if x.sum() > 0:
        c = {"a": [x, 1.0], "b": x}
        d = c["a"]
    else:
        c = {"a": [x * 2, 3.0], "b": -x}
        d = c["a"]
    d.append(x)
    c["b"] = c["b"] + 1
    return c["a"][0] * c["a"][1] + c["b"] * len(c["a"])


def of_a_module(x):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.calls = None, 0
            self.inner = torch.nn.ReLU()

        def forward(self, x):
            self.calls += 1
            self.last = x * 0
            self.inner.scale = 1.0
            if x.sum() > 0:
                self.last = x * 2
                self.inner.scale = 3.0
            else:
                self.calls += 1
                self.inner.scale = 2.0
            return self.last + self.inner.scale * self.calls

    return Net()(x)


def new_iterators(x):
    if x.sum() > 0:
        y = sum(v * 2 for v in [x, x])
    else:
        y = next(iter([x]))
    for i, v in enumerate([x, x]):
        if v.sum() > 0:
            y = y + i
    return y


class Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        put = functools.partial(setattr, ctx)
        if x.sum() > 0:
            put("buf", x * 2)
            ctx.extra = 3.0
            ctx.save_for_backward(x)
        else:
            ctx.buf = x * 5
            ctx.extra = 4.0
            ctx.save_for_backward(x * 2)
        return x * 1

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        l = [g]
        if g.sum() > 0:
            l[0] = l[0] * 2
        return l[0] * ctx.buf * ctx.extra + x


def function(x):
    w = x.detach().clone().requires_grad_()
    y = Saved.apply(w)
    (y * x).sum().backward()
    return y, w.grad


class Buffer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        a, b = x * 2, x * 3
        if x.sum() > 0:
            ctx.buf = a
        else:
            ctx.buf = b
        a.add_(10)
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g * ctx.buf


def aliased_on_ctx(x):
    w = x.detach().clone().requires_grad_()
    Buffer.apply(w).sum().backward()
    return w.grad
"""

LOOPS = """
import collections
import operator
import types

import torch

N = 0


class Box:
    def __init__(self, value):
        self.value, self.count = value, 0

    def up(self):
        self.count += 1
        self.value = self.value * 2


def view_in_a_loop(x):
    a = x.clone()
    v = a[1:3]
    n = 0
    while n < 9 and a.sum() > 0.1:
        v *= 0.5
        n += 1
    return a, v, n


def transposed_in_a_loop(x):
    a = x.repeat(3, 1)
    v, n = a.t(), 0
    while a.sum() < 20 and n < 9:
        v += x
        n += 1
    return a, v


def attributes_in_a_loop(x):
    o = Box(x)
    while o.value.sum() < 50 and o.count < 9:
        o.up()
    return o.value + o.count


def items_in_a_loop(x):
    log, d = [0, x], {"k": x}
    q = collections.deque([x])
    while x.sum() < 50 and log[0] < 9:
        x = x * 2
        log[0] += 1
        log[1] = log[1] + x
        d["k"] = d["k"] - 1
        operator.setitem(q, 0, x)
    return x * log[0] + log[1] + d["k"] + q[0]


def nonlocal_in_a_loop(x):
    n, y = 0, x

    def step():
        nonlocal n, y
        n += 1
        y = y * 2

    while y.sum() < 50 and n < 9:
        step()
    return y + n


def global_in_a_loop(x):
    global N
    N = 0

    def step():
        global N
        N += 1
        return x * 2

    while x.sum() < 50 and N < 9:
        x = step()
    n, N = N, 0
    return x + n


def branch_in_a_loop(x):
    o, n = Box(x), 0
    while o.value.sum() < 50 and n < 9:
        if o.value.sum() > 10:
            o.up()
        else:
            o.value = o.value + 3
        n += 1
    return o.value + o.count


def break_in_a_loop(x):
    o = types.SimpleNamespace(n=0, y=x)
    for i in range(6):
        o.n += 1
        o.y = o.y * 2
        if o.y.sum() > 20:
            break
    return o.y * o.n + i


def items_of_a_list(x):
    o = types.SimpleNamespace(n=0)
    for v in [x, x * 2, x * 3]:
        if v.sum() > 10:
            break
        o.n += 1
        x = x + v
    return x * o.n


def containers_assigned_anew(x):
    state, n = [x, x * 2], 0
    while state[0].sum() < 50 and n < 9:
        state = [s * 2 for s in state]
        n += 1
    return state[0] + state[1]
"""

REFUSED = """
import itertools
import operator
import random

import numpy as np
import torch

outs = []


def asks_for_a_text(x):  # the text of a traced number
    if str(x.sum().item()) == "6.0": raise ValueError
    return x


def push(x):
    outs.append(x)


def grad_in_one(x):  # w.grad
    w = x.detach().clone().requires_grad_()
    if x.sum() > 0:
        (w**2).sum().backward()
    return w.grad * 2


def grad_removed(x):  # w.grad
    w = x.detach().clone().requires_grad_()
    (w * 3).sum().backward()
    if x.sum() > 0:
        w.grad = None
    return w.grad * 2


def mode(x):  # gradient mode
    if x.sum() > 0:
        torch.set_grad_enabled(False)
    return x * 2


def requires(x):  # requires_grad_
    y = x.clone() * 0 + torch.ones(3)
    with torch.no_grad():
        y = y * 2
    if x.sum() > 0:
        y.requires_grad_()
    return y * 2


def hook(x):  # hook
    y = x.detach().requires_grad_() * 2
    if x.sum() > 0:
        y.register_hook(lambda g: g * 2)
    return y


def retain(x):  # retain_grad
    y = x.detach().requires_grad_() * 2
    if x.sum() > 0:
        y.retain_grad()
    return y


def unsqueeze(x):  # y, a Tensor,
    y = x * 1
    if x.sum() > 0:
        y.unsqueeze_(0)
    return y


def resize(x):  # y, a Tensor,
    y = x * 1
    if x.sum() > 0:
        y.resize_(2)
    return y


def append_in_helper(x):  # outs, a list, has
    if x.sum() > 0:
        push(x)
    return x * len(outs)


def bound(x):  # add, a list, has
    l = []
    add = l.append
    if x.sum() > 0:
        add(x)
    return x * len(l)


def expression(x):  # l, a list, has
    l = []
    y = x if x.sum() > 0 else (l.append(1) or x)
    return y * len(l)


def operand(x):  # l, a list, has
    l = [x]
    return (x.sum() > 0 and l.pop()) + len(l)


def deleted(x):  # d, a dict, has ['k']
    d = {"k": x, "m": x}
    if x.sum() > 0:
        del d["k"]
    return x * len(d)


def set_item(x):  # d, a dict, has ['n']
    d = {"k": x}
    if x.sum() > 0:
        operator.setitem(d, "n", x)
    return x * len(d)


def reordered(x):  # keys in another order
    d = {"k": x, "m": x * 2}
    if x.sum() > 0:
        d["k"] = d.pop("k")
    return [*d.values()][0]


def member(x):  # s, a set,
    s = {1, 2}
    if x.sum() > 0:
        s.add(3)
    return x * len(s)


def attribute(x):  # o, a Thing, has flag
    class Thing:
        pass

    o = Thing()
    if x.sum() > 0:
        o.flag = True
    return x * hasattr(o, "flag")


def in_turn(x):  # it, a zip,|it, a list_iterator,
    it = zip([x, x * 2], itertools.count())
    y = next(it)[0] if x.sum() > 0 else x
    return y + next(it)[1]


def generated(x):  # g, a generator,
    def make():
        n = 0
        while True:
            n += 1
            yield x * n

    g = make()
    next(g)
    y = next(g) if x.sum() > 0 else x
    y = y + next(g)
    g.close()
    return y


def counter(x):  # c, a count,
    c = itertools.count()
    y = x * next(c) if x.sum() > 0 else x
    return y * next(c)


def python_random(x):  # the random numbers of random
    y = x * random.random() if x.sum() > 0 else x
    return y * random.random()


def own_random(x):  # r, a Random,
    r = random.Random(0)
    y = x * r.random() if x.sum() > 0 else x
    return y * r.random()


def memory(x):  # an array
    a = np.zeros(3)
    if x.sum() > 0:
        a[0] = 1.0
    return x * a[0]


def generator(x):  # r, a Generator,
    r = np.random.default_rng(0)
    y = x * r.random() if x.sum() > 0 else x
    return y * r.random()


def numpy_random(x):  # the random numbers of numpy
    y = x * np.random.rand() if x.sum() > 0 else x
    return y * np.random.rand()


def text(x):  # b, a bytearray,
    b = bytearray(3)
    if x.sum() > 0:
        b[0] = 1
    return x * b[0]


def aliased(x):  # is the list of another variable
    if x.sum() > 0:
        c = [x]
        d = c
    else:
        c, d = [x * 2], [x]
    c[0] = x * 3
    return d[0]


class Flag(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if x.sum() > 0:
            ctx.flag = True
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2 if hasattr(ctx, "flag") else g


def on_ctx(x):  # ctx.flag
    w = x.detach().clone().requires_grad_()
    Flag.apply(w).sum().backward()
    return w.grad


class Default(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if x.sum() > 0:
            ctx.scale = 2.0
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * getattr(ctx, "scale", 1.0)


def on_ctx_with_default(x):  # ctx.scale
    w = x.detach().clone().requires_grad_()
    Default.apply(w).sum().backward()
    return w.grad


def append_in_a_loop(x):  # outs, a list,
    l = outs
    while x.sum() < 50:
        x = x * 2
        push(x)
    return x * len(l)


def key_in_a_loop(x):  # d, a dict,
    d = {}
    while x.sum() < 50:
        x = x * 2
        d["k"] = x
    return x


def iterator_in_a_loop(x):  # a StopIteration
    it = iter([1.0, 2.0, 3.0, 4.0])
    while x.sum() < 12:
        x = x * next(it)
    return x


def mode_in_a_loop(x):  # gradient mode
    while x.sum() < 12:
        torch.set_grad_enabled(False)
        x = x * 2
    return x


def data_in_a_loop(x):  # a Tensor,
    y = x * 1
    z = y
    while x.sum() < 12:
        x = x * 2
        z.data = x
    return y


def changed_and_assigned(x):  # l, a list, is changed in place and assigned anew
    l = m = [x, x]
    while x.sum() < 12:
        x = x * 2
        l[0] = x
        l = l
    return m[0]


def generator_after_a_break(x):  # an iterator
    it = (x * i for i in range(5))
    for v in it:
        if v.sum() > 3:
            break
    return next(it)


def zip_after_a_break(x):  # an iterator
    it = iter([x, x * 2, x * 3])
    for v, _ in zip(it, range(9)):
        if v.sum() > 3:
            break
    return next(it)
"""

OUTSIDE = """
import torch

G = torch.zeros(3)
N = 0
LAST = None
CONFIG = {"k": 1.0}
HISTORY = []


class Keeper:
    total = 0.0

    def __init__(self):
        self.last = None

    def __call__(self, x):
        self.last = x * 2
        return x


KEEPER = Keeper()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.last = 0, None

    def forward(self, x):
        self.calls += 1
        self.last = x
        return x * 2


NET = Net()


def written(x):  # a write to a tensor
    G.add_(1)
    return x + G


def assigned(x):  # G from outside
    global G
    G = G + x
    return x


def default(x, acc=torch.zeros(3)):  # a write to a tensor
    acc += x
    return acc


def default_list(x, acc=[]):  # acc[0]
    acc.append(x)
    return x * len(acc)


def item(x):  # CONFIG['k']
    CONFIG["k"] = x
    return x


def appended(x):  # HISTORY
    HISTORY.append([x.sum()])
    return x


def attribute(x):  # KEEPER.last
    return KEEPER(x)


def of_a_class(x):  # Keeper.total
    Keeper.total = Keeper.total + x.sum()
    return x


def of_a_module(x):  # NET.last
    return NET(x)


def data(x):  # G.data
    G.data = x * 2
    return x


def plain(x):
    global N
    N += 1
    CONFIG["calls"] = N
    x.last = x
    y = [x]
    y.append(x * 2)
    return y[1]
"""


def _load(factory, source):
    path = factory.mktemp("effects") / "source.py"
    path.write_text(source)
    return torch.load(path)


@pytest.fixture(scope="module")
def raises(tmp_path_factory):
    return _load(tmp_path_factory, RAISES)


@pytest.fixture(scope="module")
def merged(tmp_path_factory):
    return [_load(tmp_path_factory, source) for source in (MERGED, LOOPS)]


@pytest.fixture
def outside(tmp_path_factory):
    return _load(tmp_path_factory, OUTSIDE)


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    return _load(tmp_path_factory, REFUSED)


def _functions(source):
    """Return the names of a source's functions of x, and what their comments say of the error."""
    return re.findall(r"^def (\w+)\(x(?:, [^)]*)?\):(?:  # (.*))?$", source, re.MULTILINE)


X = jnp.array([1.0, 2.0, 3.0])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [n for n, _ in _functions(MERGED + LOOPS)])
def test_what_branches_and_loops_change(merged, name):
    """Under jit the state after a branch is that of the branch which is taken, as outside jit; so for loops."""
    function = torch.jax_view(next(getattr(m, name) for m in merged if hasattr(m, name)))
    compiled = jax.jit(function)
    for x in (X, -X, X / 12):
        for found, expected in zip(jax.tree.leaves(compiled(x)), jax.tree.leaves(function(x)), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(("name", "words"), [f for f in _functions(REFUSED) if f[1]])
def test_what_cannot_be_merged_is_refused(refused, name, words, monkeypatch):
    """Changes that JAX cannot select are refused by name and line, and taken back; small programs run for both."""
    words = re.escape(words).replace(r"\|", "|")
    function = torch.jax_view(getattr(refused, name))
    with monkeypatch.context() as patch:
        patch.setattr(paths, "_MOST", 0)
        with pytest.raises(torch.NotSupported, match=rf"(?s)({words}).*source.py:\d+"):
            jax.jit(function)(X)
    assert refused.outs == []
    with contextlib.suppress(torch.NotSupported):
        compiled = jax.jit(function)
        for x in (X, X / 2 if name.endswith("_loop") else -X):  # whose sum grows
            for found, expected in zip(jax.tree.leaves(compiled(x)), jax.tree.leaves(function(x)), strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(("name", "words"), [f for f in _functions(OUTSIDE) if f[1]])
def test_traced_values_that_are_left_outside_are_refused(outside, name, words):
    """Traced values that a function leaves in a global, a default or an attribute would be lost: they are put back."""
    function = torch.jax_view(getattr(outside, name))
    transforms = [jax.jit(function), jax.vmap(function)]
    transforms += [jax.grad(lambda x: function(x).sum())] if name not in {"written", "data"} else []
    for transform in transforms[: 1 if name == "written" else None]:
        with pytest.raises(torch.NotSupported, match=re.escape(words)):
            transform(X[None] if transform is transforms[1] else X)
        assert outside.HISTORY == []
        assert outside.CONFIG == {"k": 1.0}
        assert outside.KEEPER.last is outside.NET.last is None
        np.testing.assert_array_equal(torch.jax_view(outside.G), [0, 0, 0])


def test_plain_values_may_be_left_outside(outside):
    """Counters count traces, as in any function that JAX traces."""
    function = jax.jit(torch.jax_view(outside.plain))
    np.testing.assert_array_equal(function(function(X)), X * 4)
    assert outside.N == outside.CONFIG["calls"] == 1


@pytest.mark.parametrize(
    "name", ["passes", "helper", "handled_within", "after_a_try", "other_handler", "in_blocks", "told"]
)
def test_a_branch_that_raises_is_not_taken(raises, name):
    """An exception of the source's own that nothing in it catches says that the branch is not taken."""
    np.testing.assert_array_equal(jax.jit(torch.jax_view(getattr(raises, name)))(X), X * 2)


@pytest.mark.parametrize(
    "name",
    ["caught", "caught_assert", "caught_helper", "suppressed", "retried", "swallowed", "ignored", "attribute", "items",
     "jumps_in_finally"],
)  # fmt: skip
def test_a_raise_that_the_source_catches_is_refused(raises, name):
    """Handlers around a traced raise are refused: JAX decides whether they run."""
    with pytest.raises(torch.NotSupported, match=r"a handler around it catches[\s\S]*source.py:\d+"):
        jax.jit(torch.jax_view(getattr(raises, name)))(X)


@pytest.mark.parametrize(
    ("name", "error"),
    [("key", (KeyError, torch.NotSupported)), ("index", IndexError), ("kind", TypeError), ("right_operand", KeyError)],
)
def test_an_error_in_a_branch_is_an_error(raises, name, error):
    """Exceptions that no `raise` of the source makes are mistakes, or something that fnjax cannot do."""
    with pytest.raises(error):
        jax.jit(torch.jax_view(getattr(raises, name)))(X)
