"""The source pass leaves Python as it is: programs without a tensor give what Python gives, and cost what they cost."""

import ast

import pytest

from fnjax import torch
from fnjax.torch.control.lowering.lowering import lower

PROGRAMS = {
    "loop_that_raises": """
def f():
    n = 0
    try:
        for i in range(5):
            n = i
            if i == 3: raise ValueError
    except ValueError: pass
    return n
""",
    "branch_that_raises": """
def f(flag=True):
    try:
        if flag:
            scale = 2.0
            {}["k"]
    except KeyError: scale += 1
    return scale
""",
    "nonlocal_in_branch": """
def f():
    n = 1.0
    def bump(flag):
        nonlocal n
        if flag: n = 5.0
    bump(True); return n
""",
    "late_binding": """
def f():
    fs = []
    for i in range(3): fs.append(lambda v: v * i)
    return [g(1) for g in fs]
""",
    "closure_made_before": """
def f(flag=True, x=1):
    s = 1.0
    t = {"f": lambda v: v * s}
    if flag:
        s = 3.0
        y = t["f"](x)
    return y
""",
    "function_of_branch": """
def f(flag=True):
    if flag:
        s = 2.0
        def g(v): return v * s
    s = 7.0
    return g(1)
""",
    "try_else_and_return": """
def f(flag=True, x=1):
    try:
        if flag: return x * 2
    except ValueError: pass
    else: return x * 10
""",
    "try_else_and_jumps": """
def f():
    out = []
    for jump in (0, 1):
        total = 0
        for i in range(5):
            try:
                if i == 2:
                    if jump: break
                    continue
            except ValueError: pass
            else: total += 1
        out.append(total)
    return out
""",
    "middle_is_evaluated_once": """
def f():
    calls = []
    def g():
        calls.append(1); return 1
    if 0 < g() < 1000: pass
    return calls
""",
    "any_and_all": """
def f():
    seen = []
    def t(i): seen.append(i); return i == 1
    r = any(t(i) for i in range(5))
    return any([2, 0]), all([3, 5]), any([]), all([]), r, seen, all([1,2,5]) is True, any(iter([0, 0]))
""",
    "unbound": """
def f(flag=False):
    if flag: y = 1
    try: return y
    except NameError as e: return type(e).__name__, str(e)
""",
    "global_in_loop": """
G = 0
def g(n):
    global G
    for i in range(n):
        if i % 2: G += i
    return G
def f(): return g(5), g(4), G
""",
    "jumps_in_finally": """
def f():
    out = []
    def a():
        try: raise ValueError
        finally: return 1
    def b():
        for i in range(3):
            try: raise ValueError
            finally:
                if i == 1: break
                else: continue
        return i
    def c(x):
        try:
            if x: return 'try'
            raise KeyError
        except KeyError: return 'except'
        finally: out.append(x)
    def d():
        while True:
            try:
                if out: return 5
            finally: out.append('d')
    return a(), b(), c(0), c(1), d(), out
""",
    "else_of_loops": """
def f():
    out = []
    for n in range(4):
        for i in range(3):
            if i == n: break
            if n == 3: continue
            out.append((n, i))
        else: out.append('else')
        while n < 2:
            n += 1
            if n == 2: break
        else: out.append('w')
    return out
""",
    "keywords_of_builtins": """
import math
def f():
    numbers = [
        max([1, 5, 3], key=lambda v: -v), min([], default=7), max(1, 2, 3), max("abc"), min(v for v in (3, 1, 2)),
        round(2.567, 2), round(2.5), round(number=1.5), int("12", base=8), int("ff", 16), int(), float(), bool(),
    ]
    close = [
        math.isclose(1.0, 1.1, rel_tol=0.2), math.isclose(1, 1 + 1e-10),
        math.isclose(1.0, 1.05, rel_tol=0, abs_tol=0.1),
    ]
    keys = []
    max([1, 5, 3], key=lambda v: keys.append(v) or v)
    return numbers, close, keys, sorted([3, 1], reverse=True), isinstance(1, (int, str)), math.sqrt.__name__
""",
    "walrus": """
def f():
    vals = [1, 2, 3]
    out = [y for x in vals if (y := x * 2) > 2]
    if (n := len(out)) > 1 and (m := n + 1): out.append(m)
    while (n := n - 1) > -2:
        if n == 0: continue
        out.append(n)
    r = (q := 5) if n else (q := 6)
    return out, y, n, m, r, q, [last := v for v in vals], last, any((w := v) > 1 for v in vals), w
""",
    "delete": """
def f(flag=True):
    x = 1
    if flag: del x
    try: x
    except UnboundLocalError as e: return str(e)
""",
    "match": """
def f():
    out = []
    for v in (1, [1, 2], {"a": 3, "b": 4}, "s", None):
        match v:
            case int(): continue
            case [a, *rest]:
                out.append((a, rest))
            case {"a": z, **more} if z > 2:
                out.append((z, more))
            case None: break
            case other: out.append(other)
    return out, a, rest, z, more, other
""",
    "class_in_branch": """
def f(flag=True):
    if flag:
        class C:
            k = 1
            if k: j = k + 1
            def m(self): return self.j
            l = [k for _ in range(2)] if not k else []
    else:
        class C: pass
    return C().m(), C.__qualname__, C.l
""",
    "super_and_mangled_names": """
class A:
    def __init__(self, n=0): self.n = n
    def v(self): return self.n
class B(A):
    def __init__(self, n):
        if n: super().__init__(n)
        else: super().__init__()
    def v(self):
        if self.n and super().v(): return super().v() + 1
        return __class__.__name__
    @classmethod
    def make(cls, n): return cls(n) if n else None
    def __p(self): return 3
    def p(self):
        __t = 0
        for __i in range(4):
            if __i == 2: break
            __t += self.__p()
        return __t
def f(): return B(3).v(), B(0).v(), B.make(0), B.make(1).n, B(1).p()
""",
    "generators": """
def f():
    def g(n):
        for i in range(n):
            if i == 2: continue
            x = yield i
            if x: return x
        else: yield 'else'
    it = g(4)
    a = [next(it), it.send(0), it.send(0)]
    try: it.send(9)
    except StopIteration as e: a.append(e.value)
    def h():
        r = yield from g(2)
        if r is None and a: yield 'end'
    return a, list(h()), list(g(5))
""",
    "coroutines": """
import asyncio
def f():
    async def g(n):
        out = []
        for i in range(n):
            if i == 1: continue
            await asyncio.sleep(0)
            out.append(i)
        async def agen():
            for j in range(3):
                if j: yield j
        async for k in agen():
            if k == 2: break
            out.append(k)
        if n:
            out += [k async for k in agen()]
        out += [k async for k in agen() if k < n] if n > 1 else []
        return out if await asyncio.sleep(0, 1) and n else None
    return asyncio.run(g(4))
""",
    "recursion": """
import sys
def r(n):
    if n == 0: return 0
    if n < 0: return 1
    while n:
        if n > 0: return 1 + r(n - 1)
def r2(n): return n == 0 or n > 0 and (n == -1 or r2(n - 1))
def f():
    return r(sys.getrecursionlimit() - 200), r2(sys.getrecursionlimit() - 200)
""",
    "eval_and_locals": """
def f(flag=True):
    a = 3
    if flag:
        b = eval("a + 1")
        exec("c = 5")
    for i in range(2):
        if i: b += eval("i * a")
    return b, sorted(k for k in locals() if not k.startswith('_'))
""",
    "exceptions_in_loops": """
def f():
    out = []
    for i in range(4):
        try:
            if i == 1: raise ValueError(i)
            if i == 2: raise KeyError(i)
            out.append(i)
        except ValueError as e: out.append(e.args); err = e
        except KeyError: continue
        else: out.append('else')
        finally: out.append('fin')
    try: e
    except UnboundLocalError: out.append('unbound')
    return out
""",
    "with_blocks": """
import contextlib
def f():
    out = []
    @contextlib.contextmanager
    def cm(n):
        out.append(('in', n))
        try: yield n
        finally: out.append(('out', n))
    def g(k):
        with cm(1) as a:
            for i in range(3):
                with cm(i) as b:
                    if b == k: return b
                    if b == 1: break
            out.append('after')
        return None
    with contextlib.suppress(ValueError):
        if out == []: raise ValueError
    return g(0), g(1), g(2), out
""",
    "generator_is_closed_at_the_end_of_its_loop": """
def f():
    out = []
    def g():
        try:
            for i in range(5): yield i
        finally: out.append('closed')
    for v in g():
        if v == 1: break
    out.append('after')
    return out
""",
    "order_of_evaluation": """
def f():
    out = []
    def t(v): out.append(v); return v
    d = {}
    def get(): out.append('d'); return d
    get()[t('k')] = t('v')
    x = t(0) or t(1) and t(2) if t(3) else t(4)
    return out, x, d
""",
    "chained_comparisons": """
def f():
    a = [1 < 2 < 3, 1 < 3 < 2, 1 < 2 > 1 == 1, 0 in [0] in [[0]], 'a' < 'b' < 'c' != 'd']
    def t(v): a.append(v); return v
    t(3) < t(2) < t(5)
    try: a.append(0 < t(1) < t(2) < late)
    except UnboundLocalError: late = None
    return a, (1 < 2) < 3
""",
    "errors_of_builtins": """
def f():
    calls = [lambda: round(1, foo=2), lambda: round(), lambda: getattr(), lambda: getattr(1, 'a', x=2)]
    calls += [lambda: hasattr(1, x='a'), lambda: hasattr(1), lambda: round('a', None)]
    def name(call):
        try: return call()
        except TypeError as e: return str(e)
    return [name(c) for c in calls]
""",
    "functions_of_math_are_pickled_by_name": """
def f():
    import copy, math, pickle
    return pickle.loads(pickle.dumps(math.log)) is math.log, copy.deepcopy([math.log])[0] is math.log
""",
    "assertions": """
def f():
    out = []
    try: assert not [1], out.append('m') or 'text'
    except AssertionError as e: out.append(str(e))
    assert [1], out.append('never')
    return out
""",
    "qualified_names": """
def f():
    fs = []
    for i in range(3):
        if i != 1:
            def g(a=i, *, k=i): return a, k, i
            fs.append(g)
    return [g() for g in fs], [g.__qualname__ for g in fs], [g.__name__ for g in fs]
""",
    "truth_is_asked_once": """
def f():
    class T:
        def __init__(self, v): self.v = v; self.n = 0
        def __bool__(self): self.n += 1; return self.v
    a, b = T(True), T(False)
    if a and not b or b: pass
    x = 1 if a else 2
    while b: pass
    return a.n, b.n, x, (a and b) is b, (b or a) is a, not a
""",
    "class_is_not_asked": """
import math
def f():
    asked = []
    class Strange:
        def __getattribute__(self, name):
            asked.append(name)
            return object.__getattribute__(self, name)
        def __bool__(self): return True
        def __getitem__(self, i): return self
        def __setitem__(self, i, v): pass
        def __index__(self): return 1
        def __iter__(self): return iter([1, 2])
        def __floor__(self): return 0
    s, i = Strange(), 1
    if s and (not s or s[i]): s[i] = 2
    for _ in range(s):
        if s: break
    for _ in s:
        if s: continue
    return asked, any(s), max(s), int(s), math.floor(s), bool(s)
""",
    "lambdas_and_comprehensions": """
def f():
    g = lambda n: n and (n > 1 or n < 0) and 'y' or 'n'
    h = [(lambda k: k if k else v)(0) for v in (1, 2) if v or 0]
    return [g(i) for i in (-1, 0, 1, 2)], h, {k: v for k, v in zip('ab', (1, 2)) if k and v > 1}
""",
}


def result(space):
    """Return what a program's function returns, as text: objects of two runs are not equal."""
    return repr(space["f"]())


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_mean_what_python_means(name, tmp_path):
    """A loaded program without a tensor gives what the program gives."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAMS[name])
    plain = {"__name__": "program"}
    exec(compile(PROGRAMS[name], str(file), "exec"), plain)
    assert result(vars(torch.load(file))) == result(plain)


AS_IT_STANDS = """
class Plain:
    \"\"\"Text.\"\"\"

    def __init__(self, x, *, scale=2.0):
        self.x, self.scale = x, scale

    def forward(self, y: int) -> float:
        \"\"\"Return a sum.\"\"\"
        try:
            with open(y) as file:
                names = [line.strip() for line in file]
        except OSError as error:
            raise ValueError(str(error)) from None
        if not issubclass(y, int):
            return 0.0
        for name in names:
            print(name[0], names[1:], {**self.scale})
        return (lambda a, b=1: a + b)(self.x @ y) * self.scale
"""


def test_functions_that_no_tensor_decides_on_are_compiled_as_they_stand():
    """A function in which nothing may be traced has the code object that Python makes of it."""
    compiled, lowered = (compile(t, "file", "exec") for t in (AS_IT_STANDS, lower(ast.parse(AS_IT_STANDS))))
    assert compiled == lowered
    changed = AS_IT_STANDS.replace("issubclass", "isinstance")
    assert compile(changed, "file", "exec") != compile(lower(ast.parse(changed)), "file", "exec")


def test_a_known_test_adds_no_frame(tmp_path):
    """A loaded function that calls itself within branches, loops and operands has one frame for each call."""
    file = tmp_path / "deep.py"
    file.write_text(
        "import sys\n\ndef depth(n, found):\n    frame = sys._getframe()\n    while frame is not None:\n"
        "        found[0] += 1\n        frame = frame.f_back\n    if n == 0:\n        return found[0]\n"
        "    for i in range(n):\n        while n > 0:\n            try:\n                if i < n and n:\n"
        "                    found[0] = 0\n                    return n and (n > 0 and depth(n - 1, found) or 0)\n"
        "            finally:\n                found[0] += 0\n"
    )
    depth = torch.load(file).depth
    assert depth(20, [0]) - depth(0, [0]) == 20


def test_lines_of_loaded_functions(tmp_path):
    """A traceback and a function's source are those of the file."""
    file = tmp_path / "lines.py"
    file.write_text(
        "def f(x):\n    if x > 1:\n        for i in range(x):\n            if i == 2:\n                x / 0\n"
    )
    function = torch.load(file).f
    with pytest.raises(ZeroDivisionError) as caught:
        function(5)
    assert [(e.path.name, e.lineno + 1) for e in caught.traceback][1:] == [("lines.py", 5)]
    assert function.__code__.co_firstlineno == 1
