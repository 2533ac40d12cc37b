"""Files whose top level does odd things: their ports import, whatever of them needs manual porting."""

import importlib.util
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("libcst")
from fnjax.port import port_source

FUNCTION = """


class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        {line}
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2
"""
# The top level before such a class, and the line of its forward that reads it.
FILES = {
    "missing twice": (
        """
import torch
from missing import table
a = table(5)
a = torch.tensor(a)
""",
        "x = x + a",
    ),
    "missing once": (
        """
import torch
from missing import table
a = table(5)
""",
        "x = x + a",
    ),
    "missing chain": (
        """
import torch
from missing import table
a = table(5)
b = torch.tensor(a)
""",
        "x = x + b",
    ),
    "missing chain3": (
        """
import torch
from missing import table
a = table(5)
b = [torch.tensor(v) for v in a]
c = b[0] + 1
""",
        "x = x + c",
    ),
    "missing attr": (
        """
import torch
import missing
a = missing.table(5)
a = a.reshape(5)
""",
        "x = x + a",
    ),
    "custom_fwd": (
        """
import torch
try:
    custom_fwd = torch.amp.custom_fwd
    custom_bwd = torch.amp.custom_bwd
except AttributeError:
    def custom_fwd(f=None, **kw):
        return f
    def custom_bwd(f=None, **kw):
        return f
""",
        "pass",
    ),
    "custom_fwd used": (
        """
import torch
try:
    custom_fwd = torch.amp.custom_fwd
except AttributeError:
    def custom_fwd(f=None, **kw):
        return f
@custom_fwd
def h(x):
    return x * 3
""",
        "x = h(x)",
    ),
    "custom_fwd if": (
        """
import torch
if hasattr(torch.amp, 'custom_fwd'):
    custom_fwd = torch.amp.custom_fwd
else:
    def custom_fwd(f=None, **kw):
        return f
@custom_fwd
def h(x):
    return x * 3
""",
        "x = h(x)",
    ),
    "try compile": (
        """
import torch
try:
    maybe = torch.compile
except AttributeError:
    def maybe(f):
        return f
@maybe
def h(x):
    return x * 3
""",
        "x = h(x)",
    ),
    "try missing": (
        """
import torch
try:
    from missing import fast
except ImportError:
    fast = None
""",
        "x = fast(x) if fast is not None else x",
    ),
    "try missing fn": (
        """
import torch
try:
    from missing import fast
except ImportError:
    def fast(x):
        return x * 3
""",
        "x = fast(x)",
    ),
    "try missing flag": (
        """
import torch
try:
    from missing import fast
    HAS = True
except ImportError:
    HAS = False
""",
        "x = fast(x) if HAS else x",
    ),
    "try missing call": (
        """
import torch
try:
    import missing
    lib = missing.load('x')
except Exception:
    lib = None
""",
        "x = lib.f(x) if lib is not None else x",
    ),
    "if twice": (
        """
import torch
from missing import flag, table
if flag:
    a = table(5)
else:
    a = torch.ones(5)
""",
        "x = x + a",
    ),
    "aug": (
        """
import torch
from missing import table
a = table(5)
a += 1
""",
        "x = x + a",
    ),
    "entry": (
        """
import torch
from missing import table
a = table(5)
a[0] = 1
""",
        "x = x + a",
    ),
    "method": (
        """
import torch
from missing import table
a = table(5)
a.append(2)
""",
        "x = x + a[0]",
    ),
    "del": (
        """
import torch
from missing import table
a = table(5)
b = a
del a
""",
        "x = x + b",
    ),
    "for": (
        """
import torch
from missing import table
b = []
for v in table(5):
    b.append(torch.tensor(v))
""",
        "x = x + b[0]",
    ),
    "with": (
        """
import torch
from missing import opened
with opened('x') as f:
    b = f.read()
""",
        "x = x + b",
    ),
    "deco missing": (
        """
import torch
from missing import deco
@deco
def h(x):
    return x * 3
""",
        "x = h(x)",
    ),
    "default missing": (
        """
import torch
from missing import table
a = table(5)
def h(x, k=a[0]):
    return x * k
""",
        "x = h(x)",
    ),
    "default missing2": (
        """
import torch
from missing import table
def h(x, k=table(5)):
    return x * k
""",
        "x = h(x)",
    ),
    "class attr": (
        """
import torch
from missing import table
a = table(5)
class K:
    v = a[0]
    w = table(2) + 1
""",
        "x = x * K.v",
    ),
    "class base": (
        """
import torch
from missing import Base
class K(Base):
    v = 1
""",
        "x = x * K.v",
    ),
    "class base2": (
        """
import torch
import missing
class K(missing.Base):
    v = 1
""",
        "x = x * K.v",
    ),
    "assert": (
        """
import torch
from missing import table
a = table(5)
assert a[0] == 1
""",
        "x = x + a[0]",
    ),
    "unpack": (
        """
import torch
from missing import table
a, b = table(2)
a = a + b
""",
        "x = x + a",
    ),
    "fn uses": (
        """
import torch
from missing import table
def make():
    return table(5)
a = make()
a = torch.tensor(a)
""",
        "x = x + a",
    ),
    "self default": (
        """
import torch
a = torch.load('x.pt')
a = a['w']
""",
        "x = x + a",
    ),
    "torch.load": (
        """
import torch
a = torch.load('x.pt')
b = a['w'].float()
""",
        "x = x + b",
    ),
    "lib": (
        """
import torch
from torch.utils.cpp_extension import load
ext = load(name='a', sources=['a.cu'])
op = ext.forward
""",
        "x = op(x)",
    ),
    "version": (
        """
import torch
from packaging import version
if version.parse(torch.__version__) >= version.parse('1.6'):
    fwd = torch.cuda.amp.custom_fwd
else:
    fwd = lambda f: f
@fwd
def h(x):
    return x * 3
""",
        "x = h(x)",
    ),
    "three": (
        """
import torch
from missing import table
a = table(5)
a = a + 1
a = torch.tensor(a)
b = a * 2
a = 3.0
""",
        "x = x + b + a",
    ),
    "try twice": (
        """
import torch
try:
    a = torch.nothing_like_this(3)
except AttributeError:
    a = torch.ones(3)
""",
        "x = x + a",
    ),
    "try fn fallback": (
        """
import torch
try:
    rsqrt = torch._C._special.rsqrt_fast
except AttributeError:
    def rsqrt(x):
        return 1 / x.sqrt()
""",
        "x = rsqrt(x)",
    ),
    "nested try": (
        """
import torch
try:
    import missing
    f = missing.f
except ImportError:
    try:
        import missing2
        f = missing2.f
    except ImportError:
        f = None
""",
        "x = x if f is None else f(x)",
    ),
    "fn then wrap": (
        """
import torch
from missing import deco
def h(x):
    return x * 3
h = deco(h)
""",
        "x = h(x)",
    ),
    "fn then wrap torch": (
        """
import torch
def h(x):
    return x * 3
h = torch.jit.script(h)
""",
        "x = h(x)",
    ),
    "fn then wrap lru": (
        """
import torch, functools
def h(n):
    return n * 3
h = functools.lru_cache(h)
""",
        "x = x * h(2)",
    ),
    "fn redefined": (
        """
import torch
def h(x):
    return x * 3
def h(x):
    return x * 5
""",
        "x = h(x)",
    ),
    "class redefined": (
        """
import torch
from missing import deco
class K:
    v = 1
K = deco(K)
""",
        "x = x * K.v",
    ),
    "dataclass missing": (
        """
import torch
from missing import config
K = config(1)
K.a = torch.ones(3)
L = K.b[0]
""",
        "x = x * K.a * L",
    ),
    "slices": (
        """
import torch
from missing import table
a = table(5)
a = a[1:]
N = len(a)
""",
        "x = x * N",
    ),
    "fstr": (
        """
import torch
from missing import name
K = f'{name.upper()}'
T = {K: 1}
T2 = T[K]
""",
        "x = x * T2",
    ),
    "lambda": (
        """
import torch
from missing import table
a = lambda x: table(5)[0]
b = a(3)
b = b + 1
""",
        "x = x * b",
    ),
    "env cuda": (
        """
import torch
N = torch.cuda.get_device_properties(0).multi_processor_count
N = N * 2
""",
        "x = x * N",
    ),
    "nvtx": (
        """
import torch
from missing.sub import something as s
import missing.other as o
v = s.x + o.y
v = v.z
""",
        "x = x * v",
    ),
    "walrus": (
        """
import torch
from missing import table
if (a := table(5)):
    b = a[0]
""",
        "x = x * a * b",
    ),
    "starred": (
        """
import torch
from missing import table
a, *b = table(5)
b = b[0] + 1
""",
        "x = x * a * b",
    ),
    "global fn": (
        """
import torch
from missing import table
S = None
def init():
    global S
    S = table(5)
init()
S = S[0]
""",
        "x = x * S",
    ),
    "match": (
        """
import torch
from missing import table
match table(5):
    case [a, b]:
        c = a
    case _:
        c = 3
""",
        "x = x * c",
    ),
    "while": (
        """
import torch
from missing import table
k = table(5)
while k > 3:
    k = k - 1
""",
        "x = x * k",
    ),
    "comp": (
        """
import torch
from missing import table
k = [table(i) for i in range(3)]
k = {i: v for i, v in enumerate(k)}
""",
        "x = x * k[0]",
    ),
    "enum": (
        """
import enum, torch
from missing import A
class E(enum.Enum):
    X = A.x
    Y = 2
""",
        "x = x * E.Y.value",
    ),
    "registered": (
        """
import torch
from missing import REG
R = {}
@REG.register('a')
def h(x):
    return x * 3
R['h'] = h
""",
        "x = R['h'](x)",
    ),
    "cls deco": (
        """
import torch
from missing import deco
@deco
class K:
    v = 2
""",
        "x = x * K.v",
    ),
    "init raises": (
        """
import torch
from missing import Base, deco, table
class R:
    def __init__(self, n):
        self.t = table(n)
r = R(3)
n = r.t[0]
""",
        "x = x + n",
    ),
    "method raises": (
        """
import torch
from missing import Base, deco, table
class R:
    def make(self, n):
        return table(n)
r = R()
n = r.make(3)
n = n[0]
""",
        "x = x + n",
    ),
    "static raises": (
        """
import torch
from missing import Base, deco, table
class R:
    @staticmethod
    def make(n):
        return table(n)
n = R.make(3)
n = n[0]
""",
        "x = x + n",
    ),
    "base init": (
        """
import torch
from missing import Base, deco, table
class P:
    def __init__(self, n):
        self.t = table(n)
class R(P):
    pass
r = R(3)
n = r.t[0]
""",
        "x = x + n",
    ),
    "super init": (
        """
import torch
from missing import Base, deco, table
class P:
    def __init__(self, n):
        self.t = table(n)
class R(P):
    def __init__(self):
        super().__init__(3)
r = R()
n = r.t[0]
""",
        "x = x + n",
    ),
    "property": (
        """
import torch
from missing import Base, deco, table
class R:
    @property
    def t(self):
        return table(3)
n = R().t[0]
""",
        "x = x + n",
    ),
    "getitem": (
        """
import torch
from missing import Base, deco, table
class R:
    def __getitem__(self, i):
        return table(3)
r = R()
n = r[0] + 1
""",
        "x = x + n",
    ),
    "deco raises": (
        """
import torch
from missing import Base, deco, table
def d(f):
    table(3)
    return f
@d
def h(x):
    return x * 3
""",
        "x = h(x)",
    ),
    "deco factory raises": (
        """
import torch
from missing import Base, deco, table
def d(n):
    k = table(n)
    def w(f):
        return f
    return w
@d(3)
def h(x):
    return x * 3
""",
        "x = h(x)",
    ),
    "deco reads missing": (
        """
import torch
from missing import Base, deco, table
k = table(3)
def d(f):
    f.k = k[0]
    return f
@d
def h(x):
    return x * 3
""",
        "x = h(x)",
    ),
    "fn reads missing": (
        """
import torch
from missing import Base, deco, table
k = table(3)
def g(n):
    return k[n]
v = g(2)
""",
        "x = x * v",
    ),
    "fn reads missing deep": (
        """
import torch
from missing import Base, deco, table
k = table(3)
def g(n):
    return k[n]
def g2(n):
    return g(n) + 1
v = g2(2)
w = [g2(i) for i in range(3)]
""",
        "x = x * v * w[0]",
    ),
    "map": (
        """
import torch
from missing import Base, deco, table
k = table(3)
def g(n):
    return k[n]
v = list(map(g, range(2)))
""",
        "x = x * v[0]",
    ),
    "map lambda": (
        """
import torch
from missing import Base, deco, table
k = table(3)
v = list(map(lambda i: k[i], range(2)))
""",
        "x = x * v[0]",
    ),
    "sorted key": (
        """
import torch
from missing import Base, deco, table
k = table(3)
def g(n):
    return k[n]
v = sorted([1, 2], key=g)
""",
        "x = x * v[0]",
    ),
    "partial": (
        """
import torch
from missing import Base, deco, table
import functools
k = table(3)
def g(n):
    return k[n]
p = functools.partial(g, 3)
v = p()
""",
        "x = x * v",
    ),
    "alias fn": (
        """
import torch
from missing import Base, deco, table
k = table(3)
def g(n):
    return k[n]
h = g
v = h(1)
""",
        "x = x * v",
    ),
    "lambda alias": (
        """
import torch
from missing import Base, deco, table
k = table(3)
g = lambda n: k[n]
v = g(1)
""",
        "x = x * v",
    ),
    "lru": (
        """
import torch
from missing import Base, deco, table
import functools
@functools.lru_cache
def g(n):
    return table(n)
v = g(1)
v = v + 1
""",
        "x = x * v",
    ),
    "generator": (
        """
import torch
from missing import Base, deco, table
def g(n):
    yield table(n)
v = list(g(1))
""",
        "x = x * v[0]",
    ),
    "try finally": (
        """
import torch
from missing import Base, deco, table
try:
    v = table(3)
finally:
    w = 3
u = v[0] + w
""",
        "x = x * u",
    ),
    "try else": (
        """
import torch
from missing import Base, deco, table
try:
    v = table(3)
except ValueError:
    v = [1]
else:
    v = v[1:]
u = v[0]
""",
        "x = x * u",
    ),
    "with as": (
        """
import torch
from missing import Base, deco, table
import contextlib
with contextlib.suppress(KeyError):
    v = table(3)
    u = v[0]
""",
        "x = x * u",
    ),
    "if inside": (
        """
import torch
from missing import Base, deco, table
import sys
if sys.version_info > (3,):
    v = table(3)
    u = v[0]
else:
    u = 3
""",
        "x = x * u",
    ),
    "if inside2": (
        """
import torch
from missing import Base, deco, table
import sys
if sys.platform == 'nothing':
    v = table(3)
    u = v[0]
elif table(2):
    u = 3
""",
        "x = x * u",
    ),
    "for else": (
        """
import torch
from missing import Base, deco, table
v = []
for i in range(3):
    v.append(table(i))
else:
    u = v[0] + 1
""",
        "x = x * u",
    ),
    "for reads": (
        """
import torch
from missing import Base, deco, table
k = table(3)
v = []
for i in range(3):
    v.append(k[i])
u = sum(v) / len(v)
""",
        "x = x * u",
    ),
    "dict update": (
        """
import torch
from missing import Base, deco, table
D = {}
D.update(table(3))
u = D['a']
""",
        "x = x * u",
    ),
    "dict comp": (
        """
import torch
from missing import Base, deco, table
D = {i: table(i) for i in range(3)}
u = D[1] * 2
""",
        "x = x * u",
    ),
    "nested class": (
        """
import torch
from missing import Base, deco, table
class A:
    class B:
        v = table(3)
        w = v[0]
    u = B.w + 1
""",
        "x = x * A.u",
    ),
    "class fn default": (
        """
import torch
from missing import Base, deco, table
k = table(3)
class A:
    v = 3
    def f(self, n=k[0], m: k.T = 3) -> k.U:
        return n
""",
        "x = x * A.v",
    ),
    "class deco": (
        """
import torch
from missing import Base, deco, table
k = table(3)
@k.register
class A(k.Base):
    v = 3
""",
        "x = x * A.v",
    ),
    "fn annotation": (
        """
import torch
from missing import Base, deco, table
k = table(3)
def g(x: k.T, y: k.U = k[0], *, z=k[1]) -> k.V:
    return x * 3
""",
        "x = g(x)",
    ),
    "dataclass": (
        """
import torch
from missing import Base, deco, table
import dataclasses
@dataclasses.dataclass
class A:
    v: int = table(3)[0]
    w: int = 3
a = A()
""",
        "x = x * a.w",
    ),
    "dataclass2": (
        """
import torch
from missing import Base, deco, table
import dataclasses
@dataclasses.dataclass
class A:
    v: list = dataclasses.field(default_factory=lambda: table(3))
    w: int = 3
a = A()
""",
        "x = x * a.w",
    ),
    "namedtuple": (
        """
import torch
from missing import Base, deco, table
import collections
P = collections.namedtuple('P', table(3))
p = P(1, 2)
""",
        "x = x * p[0]",
    ),
    "enum again": (
        """
import torch
from missing import Base, deco, table
import enum
class E(enum.IntEnum):
    A = table(3)
    B = 2
u = E.B + 1
""",
        "x = x * u",
    ),
    "chained": (
        """
import torch
from missing import Base, deco, table
a = b = table(3)
a = a[0]
b = b[1]
""",
        "x = x * a * b",
    ),
    "swap": (
        """
import torch
from missing import Base, deco, table
a, b = table(3), 2
a, b = b, a
c = a + 1
""",
        "x = x * c",
    ),
    "star": (
        """
import torch
from missing import Base, deco, table
a = [*table(3), 1]
b = [*a]
print(*a)
""",
        "x = x * b[0]",
    ),
    "fstring": (
        """
import torch
from missing import Base, deco, table
a = table(3)
b = f'{a[0]:d}'
""",
        "x = x * len(b)",
    ),
    "slice": (
        """
import torch
from missing import Base, deco, table
a = table(3)
b = 'abc'[a:]
c = len(b)
""",
        "x = x * c",
    ),
    "cond": (
        """
import torch
from missing import Base, deco, table
a = table(3)
b = 1 if a[0] else 2
b = b + 1
""",
        "x = x * b",
    ),
    "bool": (
        """
import torch
from missing import Base, deco, table
a = table(3)
b = a and a[0]
b = b + 1
""",
        "x = x * b",
    ),
    "del entry": (
        """
import torch
from missing import Base, deco, table
a = {'x': 1, 'y': table(3)}
del a['y']
b = a['x']
""",
        "x = x * b",
    ),
    "setattr": (
        """
import torch
from missing import Base, deco, table
class A:
    pass
A.k = table(3)
b = A.k[0]
""",
        "x = x * b",
    ),
    "setattr2": (
        """
import torch
from missing import Base, deco, table
class A:
    pass
setattr(A, 'k', table(3))
b = A.k[0]
""",
        "x = x * b",
    ),
    "inst attr": (
        """
import torch
from missing import Base, deco, table
class A:
    pass
a = A()
a.k = table(3)
b = a.k[0]
""",
        "x = x * b",
    ),
    "aug list": (
        """
import torch
from missing import Base, deco, table
a = []
a += table(3)
b = a[0]
""",
        "x = x * b",
    ),
    "global two": (
        """
import torch
from missing import Base, deco, table
S = {}
def init(n):
    S['a'] = table(n)
init(3)
b = S['a'][0]
""",
        "x = x * b",
    ),
    "global deco": (
        """
import torch
from missing import Base, deco, table
S = {}
def reg(f):
    S[f.__name__] = f
    return f
@reg
@deco
def g(x):
    return x * 3
h = S['g']
""",
        "x = h(x)",
    ),
    "nn.Parameter": (
        """
import torch
from missing import Base, deco, table
a = torch.nn.Parameter(torch.ones(3))
a = a.cuda()
a.grad.zero_()
""",
        "x = x * a[0]",
    ),
    "hub": (
        """
import torch
from missing import Base, deco, table
m = torch.hub.load('x', 'y')
m = m.eval()
for p in m.parameters():
    p.requires_grad = False
""",
        "x = m(x)",
    ),
    "compile": (
        """
import torch
import triton
try:
    lib = torch.ops.load_library('x.so')
    f = torch.ops.my.f
except Exception:
    f = None
f2 = f and f.default
""",
        "x = x if f is None else f(x)",
    ),
    "backends": (
        """
import torch
old = torch.backends.cudnn.benchmark
torch.backends.cudnn.benchmark = True
new = not old
""",
        "x = x * 2 if new else x",
    ),
    "environ": (
        """
import os
import torch
D = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
P = torch.cuda.get_device_properties(D)
N = P.multi_processor_count * 2
M = min(N, 108)
""",
        "x = x * M",
    ),
    "cudart": (
        """
import torch
from torch.utils.cpp_extension import CUDA_HOME
if CUDA_HOME is not None:
    from missing import ext
    f = ext.f
else:
    f = None
ok = f is not None
""",
        "x = f(x) if ok else x",
    ),
    "try both": (
        """
import torch
try:
    import a_cuda
except ImportError:
    a_cuda = None
try:
    F2 = a_cuda.func
except AttributeError:
    F2 = None
""",
        "x = F2(x) if F2 else x",
    ),
    "kernel configs": (
        """
import torch
import triton
import triton.language as tl
from missing import confs
C = confs()
def keep(c):
    return c in C
@triton.autotune(configs=[c for c in C if keep(c)], key=['n'])
@triton.jit
def k(x, o, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, mask=i < n), mask=i < n)
""",
        "o = torch.empty_like(x); k[(1,)](x, o, 5); x = o",
    ),
    "kernel configs fn": (
        """
import torch
import triton
import triton.language as tl
from missing import confs
def get():
    return confs()
@triton.autotune(configs=get(), key=['n'])
@triton.jit
def k(x, o, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, mask=i < n), mask=i < n)
""",
        "o = torch.empty_like(x); k[(1,)](x, o, 5); x = o",
    ),
    "kernel tuned": (
        """
import torch
import triton
import triton.language as tl
from missing import confs
@triton.jit
def k(x, o, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, mask=i < n), mask=i < n)
tuned = triton.autotune(configs=confs(), key=['n'])(k)
""",
        "o = torch.empty_like(x); tuned[(1,)](x, o, 5); x = o",
    ),
    "kernel deco missing": (
        """
import torch
import triton
import triton.language as tl
from missing import libentry
@libentry()
@triton.jit
def k(x, o, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, mask=i < n), mask=i < n)
""",
        "o = torch.empty_like(x); k[(1,)](x, o, 5, BLOCK=8); x = o",
    ),
    "kernel const": (
        """
import torch
import triton
import triton.language as tl
from missing import N
M = tl.constexpr(N * 2)
@triton.jit
def k(x, o, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, mask=i < n) * M, mask=i < n)
""",
        "o = torch.empty_like(x); k[(1,)](x, o, 5, BLOCK=8); x = o",
    ),
    "apply at import": (
        """
import torch
from missing import Base, deco, table
""",
        "pass",
    ),
}
# How files come by the decorators of mixed precision, whichever PyTorch is there.
DECORATORS = {
    "try def": """
import torch
try:
    custom_fwd = torch.amp.custom_fwd
    custom_bwd = torch.amp.custom_bwd
except AttributeError:
    def custom_fwd(f=None, **kw):
        return f
    def custom_bwd(f=None, **kw):
        return f
""",
    "try def partial": """
import functools
import torch
try:
    custom_fwd = functools.partial(torch.amp.custom_fwd, device_type='cuda')
    custom_bwd = functools.partial(torch.amp.custom_bwd, device_type='cuda')
except AttributeError:
    from torch.cuda.amp import custom_fwd, custom_bwd
""",
    "try def partial2": """
import functools
import torch
try:
    from torch.amp import custom_fwd as fwd, custom_bwd as bwd
    custom_fwd = functools.partial(fwd, device_type='cuda')
    custom_bwd = functools.partial(bwd, device_type='cuda')
except ImportError:
    def custom_fwd(f):
        return f
    def custom_bwd(f):
        return f
""",
    "hasattr": """
import torch
if hasattr(torch, 'amp') and hasattr(torch.amp, 'custom_fwd'):
    custom_fwd = torch.amp.custom_fwd(device_type='cuda')
    custom_bwd = torch.amp.custom_bwd(device_type='cuda')
else:
    from torch.cuda.amp import custom_fwd, custom_bwd
""",
    "try called": """
import torch
try:
    custom_fwd = torch.amp.custom_fwd(device_type='cuda')
    custom_bwd = torch.amp.custom_bwd(device_type='cuda')
except AttributeError:
    custom_fwd = torch.cuda.amp.custom_fwd
    custom_bwd = torch.cuda.amp.custom_bwd
""",
    "try def one": """
import torch
from torch.cuda.amp import custom_bwd
try:
    custom_fwd = torch.amp.custom_fwd
except AttributeError:
    def custom_fwd(fwd=None, *, cast_inputs=None):
        if fwd is None:
            return lambda f: custom_fwd(f, cast_inputs=cast_inputs)
        return fwd
""",
    "def def": """
import torch
def custom_fwd(f):
    return f
def custom_bwd(f):
    return f
try:
    from torch.cuda.amp import custom_fwd, custom_bwd
except ImportError:
    pass
""",
    "none": """
import torch
custom_fwd = custom_bwd = None
try:
    custom_fwd = torch.amp.custom_fwd
    custom_bwd = torch.amp.custom_bwd
except AttributeError:
    pass
""",
    "lambda": """
import torch
try:
    custom_fwd = torch.amp.custom_fwd
    custom_bwd = torch.amp.custom_bwd
except AttributeError:
    custom_fwd = lambda f: f
    custom_bwd = lambda f: f
""",
    "getattr": """
import torch
custom_fwd = getattr(torch.amp, 'custom_fwd', None) or torch.cuda.amp.custom_fwd
custom_bwd = getattr(torch.amp, 'custom_bwd', None) or torch.cuda.amp.custom_bwd
""",
    "missing": """
import torch
try:
    from missing import custom_fwd, custom_bwd
except ImportError:
    def custom_fwd(f):
        return f
    def custom_bwd(f):
        return f
""",
    "missing2": """
import torch
from missing import version_ok
if version_ok():
    custom_fwd = torch.amp.custom_fwd
    custom_bwd = torch.amp.custom_bwd
else:
    def custom_fwd(f):
        return f
    def custom_bwd(f):
        return f
""",
    "missing3": """
import torch
from missing import deco
custom_fwd = deco(1)
custom_bwd = deco(2)
""",
    "missing4": """
import torch
from missing import deco
custom_fwd = deco(1)
custom_fwd = custom_fwd.of(1)
custom_bwd = deco(2)
""",
}


def import_port(ported, tmp_path):
    """Import the text of a port from a file, as kernels are read from theirs."""
    path = tmp_path / "odd.py"
    path.write_text(ported.code)
    spec = importlib.util.spec_from_file_location("odd", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_every_port_imports(name, tmp_path):
    """A port imports without an error, whatever of its file needs manual porting, and has the class."""
    head, line = FILES[name]
    assert issubclass(import_port(port_source(head + FUNCTION.format(line=line)), tmp_path).F, object)


@pytest.mark.parametrize("name", DECORATORS)
def test_decorators_of_mixed_precision(name, tmp_path):
    """Whatever stands for custom_fwd and custom_bwd, the port imports and computes."""
    decorated = FUNCTION.format(line="pass").replace("    def f", "    @custom_fwd\n    def f")
    ported = port_source(DECORATORS[name] + decorated.replace("    def b", "    @custom_bwd\n    def b"))
    np.testing.assert_array_equal(import_port(ported, tmp_path).F.apply(jnp.ones(3)), 2.0)


ANNOTATED = """\
import torch
from .base import Base

class Helper:
    scale = 2.0
    @staticmethod
    def twice(x):
        return x * Helper.scale

class Config(Base):
    factor = 3

class Part(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, config: Config) -> torch.Tensor:
        import torch
        ctx.k = config.factor
        return torch.sinh(Helper.twice(x)) * ctx.k
    @staticmethod
    def backward(ctx, g):
        return g * ctx.k, None
"""


def test_a_class_that_only_annotates():
    """One with a base elsewhere is left out, of which a Function only reads what it is given."""
    result = port_source(ANNOTATED)
    assert [(c.name, c.status) for c in result.classes] == [("Part", "ported")]
    names = {}
    exec(result.code, names)
    assert "Config" not in names
    assert jax.grad(names["Part"].apply)(1.0, types.SimpleNamespace(factor=3)) == 3


def test_two_classes_of_one_name_in_a_function():
    """Each is translated where it is; a function that makes Functions is offered where the file stays as it is."""
    made = "        class R(torch.autograd.Function):\n            @staticmethod\n            def forward(ctx, x):\n"
    text = (
        f"import torch\ndef make(flag):\n    if flag:\n{made}                return x * 2\n"
        f"    else:\n{made}                return x * 3\n    return R.apply\n"
    )
    names = {}
    exec(port_source(text, strict=True).code, names)
    assert (names["make"](True)(1.0), names["make"](False)(1.0)) == (2.0, 3.0)
    assert port_source(text.replace("x * 3", "torch.no_such_operation(x)")).as_is == ("make",)
