"""Random programs of plain Python: integers, lists, closures, and every statement that changes the flow of control.

A program is the text of a module. Its function `main(a, b)` ends for every input: loops are bounded, and functions and
`while` loops spend from a budget.
"""

import dataclasses
import random

PRELUDE = """
G = 1
BUDGET = 0

class Spent(BaseException):
    pass

class Manager:
    def __init__(self, value, *suppressed):
        self.value, self.suppressed = value, suppressed

    def __enter__(self):
        print("enter", self.value)
        return self.value

    def __exit__(self, kind, error, trace):
        print("exit", self.value, kind and kind.__name__)
        return kind is not None and issubclass(kind, self.suppressed)

class AsyncManager(Manager):
    async def __aenter__(self):
        return await Step(self.__enter__())

    async def __aexit__(self, *error):
        await Step(1)
        return self.__exit__(*error)

class Box:
    x = 1

class Step:
    def __init__(self, value):
        self.value = value

    def __await__(self):
        got = yield self.value
        print("await", self.value, got)
        return self.value

async def ticks(count):
    for i in range(count):
        yield await Step(i)

def drive(coroutine):
    total = 0
    try:
        while True:
            total += coroutine.send(None)
    except StopIteration as stop:
        return total if stop.value is None else stop.value

def spend():
    global BUDGET
    BUDGET -= 1
    if BUDGET < 0:
        raise Spent

def note(value):
    print("note", value)
    return value
"""

KINDS = (
    "assign", "augment", "unpack", "delete", "print", "if", "for", "while", "try", "with", "match", "raise", "jump",
    "function", "closure", "generator", "class", "global", "walrus", "comprehension", "chain", "boolean", "builtin",
    "conditional", "assert", "unbound", "object", "eval", "coroutine",
)  # fmt: skip
ERRORS = ("ValueError", "KeyError", "ZeroDivisionError", "IndexError", "LookupError", "NameError", "Exception")
FAILING = ("raise ValueError({})", "raise KeyError({})", "raise IndexError", "{{}}[{}]", "[][{}]", "({}) // 0")


@dataclasses.dataclass
class Scope:
    """A function that is being written.

    Attributes:
        form: `def`, `generator` or `coroutine`.
        own: the variables that it writes.
        given: those that functions within it may read and write: all have a value from the start.
        readable: the variables that it may read, with or without a value.
        sure: those of them that have a value, unless they were deleted; some more than once.
        functions: the functions that it may call.
        closures: whether it has a list `fs` of functions.
    """

    form: str
    own: list[str]
    given: list[str]
    readable: list[str]
    sure: list[str]
    functions: list[str]
    closures: bool


class Generator:
    """Generator of programs.

    Args:
        seed: the seed of its choices.
        kinds: the kinds of statements and expressions that occur, of `KINDS`.
    """

    def __init__(self, seed: int, kinds: tuple[str, ...] = KINDS) -> None:
        self.random, self.kinds, self.count = random.Random(seed), kinds, 0
        self.scopes: list[Scope] = []
        self.nested = 0  # comprehensions and lambdas around: a walrus there would bind in another scope

    def make(self) -> str:
        """Return the text of a program."""
        body = self.function("main", ["a", "b"], depth=3, size=self.random.randint(4, 9))
        return PRELUDE + "\n" + "\n".join(body) + "\n"

    # ------------------------------------------------------------------------------------------------ names

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    def new(self, what: str) -> str:
        self.count += 1
        return f"{what}{self.count}"

    def has(self, kind: str, chance: float = 1.0) -> bool:
        return kind in self.kinds and self.random.random() < chance

    def read(self) -> str:
        """Return a variable that can be read, more often one that has a value."""
        return self.random.choice(self.scope.readable if self.has("unbound", 0.1) else self.scope.sure)

    def write(self) -> str:
        """Return a variable to be written."""
        name = self.random.choice(self.scope.own)
        self.scope.sure.append(name)
        return name

    # ------------------------------------------------------------------------------------------ expressions

    def expression(self, depth: int = 2) -> str:
        """Return an expression that is an integer, or fails."""
        if depth <= 0 or self.random.random() < 0.3:
            return self.read() if self.random.random() < 0.7 else str(self.random.randint(-3, 5))
        inner = lambda: self.expression(depth - 1)
        choices = [
            lambda: f"({inner()} + {inner()})",
            lambda: f"({inner()} - {inner()})",
            lambda: f"({inner()} * {self.random.randint(-2, 3)})",
            lambda: f"note({inner()})",
        ]
        more = {
            "conditional": lambda: f"({inner()} if {self.test(depth - 1)} else {inner()})",
            "boolean": lambda: f"({inner()} {self.random.choice(['and', 'or'])} {inner()})",
            "chain": lambda: f"int({self.test(depth - 1)})",
            "builtin": lambda: self.builtin(depth - 1),
            "walrus": lambda: inner() if self.nested else self.walrus(inner()),
            "comprehension": lambda: f"sum({self.comprehension(depth - 1)})",
            "closure": self.call,
            "function": self.call,
            "object": lambda: self.random.choice(["o.x", "l[0]", "l[-1]", f"l[{inner()} % 2]", "len(l)"]),
            "eval": lambda: self.random.choice(["eval('{0}')", "eval('{0} + 1')", "int('{0}' in locals())"]).format(
                self.read()
            ),
        }
        choices += [make for kind, make in more.items() if self.has(kind)]
        return self.random.choice(choices)()

    def walrus(self, value: str) -> str:
        return f"({self.write()} := {value})"

    def test(self, depth: int = 1) -> str:
        inner = lambda: self.expression(depth - 1)
        operators = ["<", "<=", "==", "!=", ">", ">="]
        if self.has("chain", 0.25):
            return (
                f"{inner()} {self.random.choice(operators)} note({inner()}) {self.random.choice(operators)} {inner()}"
            )
        if self.has("boolean", 0.25):
            return f"{inner()} {self.random.choice(['and', 'or'])} {self.test(depth - 1) if depth > 0 else inner()}"
        if self.has("boolean", 0.1):
            return f"not {inner()}"
        if self.has("builtin", 0.2):
            return f"{self.random.choice(['any', 'all'])}({self.comprehension(depth - 1)})"
        return f"{inner()} {self.random.choice(operators)} {inner()}"

    def comprehension(self, depth: int) -> str:
        """Return a list, a set, a generator, or a comprehension."""
        if not self.has("comprehension", 0.7):
            return f"[{self.expression(depth)}, {self.expression(depth)}]"
        self.nested += 1
        name, scope = self.new("c"), self.scope
        source = self.random.choice([f"range({self.random.randint(0, 4)})", f"[{self.read()}, {self.read()}]"])
        scope.sure.append(name)
        element = self.expression(depth)
        condition = f" if {self.test(depth)}" if self.random.random() < 0.4 else ""
        scope.sure.remove(name)
        self.nested -= 1
        if self.has("walrus", 0.15) and not self.nested:
            element = f"({self.write()} := {name})"
        left, right = self.random.choice(["[]", "()", "[]"])
        return f"{left}{element} for {name} in {source}{condition}{right}"

    def builtin(self, depth: int) -> str:
        form = self.random.choice([
            "min({}, {})", "max({}, {})", "len({c})", "max({c}, default=-1)", "min({c}, key=lambda q: -q, default=7)",
            "int(any({c}))", "int(all({c}))", "abs({})", "round({} / 4)", "sorted([{}, {}], reverse=True)[0]",
            "int(isinstance({}, int))", "int({} in [{}, {}])", "int(note({}) is None)", "[{}, {}][{} % 2]",
            "int(bool({}))",
        ])  # fmt: skip
        found = self.comprehension(depth) if "{c}" in form else ""
        if form.startswith("len") and found.startswith("("):
            found = f"[*{found}]"
        return form.format(*[self.expression(depth) for _ in range(form.count("{}"))], c=found)

    def call(self) -> str:
        """Return a call of a function, or of one of a list of closures."""
        functions = self.scope.functions
        if self.scope.closures and (not functions or self.random.random() < 0.6):
            return f"fs[{self.random.choice([0, -1, -1])}]({self.expression(0)})"
        return f"{self.random.choice(functions)}({self.expression(0)})" if functions else self.expression(0)

    # ------------------------------------------------------------------------------------------- statements

    def function(self, name: str, arguments: list[str], depth: int, size: int, form: str = "def") -> list[str]:
        """Return the lines of a function in the present one."""
        own = [self.new("v") for _ in range(3)]
        given = own[: self.random.choice([2, 3, 3])]
        outer = self.scopes[-1] if self.scopes else Scope("", [], [], [], [], [], closures=False)
        readable, functions = [*own, *arguments, *outer.given], [*outer.functions]
        scope = Scope(form, own, [*arguments, *given, *outer.given], readable, [*arguments, *given], functions, False)
        head = ["spend()", *(f"{name} = {self.random.randint(-2, 3)}" for name in given)]
        if outer.given and self.random.random() < 0.5:
            shared = self.random.choice(outer.given)
            head.insert(0, f"nonlocal {shared}")
            own.append(shared)
        elif self.has("global", 0.4):
            head.insert(0, "global G")
            own.append("G")
            readable.append("G")
        if self.has("closure", 0.6):
            head.append("fs = [lambda q: q]")
            scope.closures = True
        if "object" in self.kinds:
            head.append("o, l = Box(), [1, 2]")
        self.scopes.append(scope)
        nested, self.nested = self.nested, 0
        body = [*head, *self.block(depth, size, loop=False)]
        if form == "generator":
            body.append(f"yield {self.read()}")
        else:
            body.append(f"return G, {self.read()}, {self.read()}" if name == "main" else f"return {self.expression(1)}")
        self.nested = nested
        self.scopes.pop()
        return [f"{'async ' * (form == 'coroutine')}def {name}({', '.join(arguments)}):", *indent(body)]

    def block(self, depth: int, size: int | None = None, *, loop: bool) -> list[str]:
        """Return the lines of a block; what it alone has written may have no value after it."""
        lines = []
        for _ in range(size or self.random.randint(1, 3)):
            lines += self.statement(depth, loop=loop)
        return lines

    def inner(self, depth: int, *, loop: bool) -> list[str]:
        before = list(self.scope.sure)
        lines = self.block(depth - 1, loop=loop)
        if not self.has("unbound", 0.5):
            self.scope.sure = before
        return lines

    def statement(self, depth: int, *, loop: bool) -> list[str]:
        simple = ["assign", "augment", "unpack", "delete", "print", "raise", "jump", "closure", "assert", "object"]
        weights = {"assign": 6, "augment": 3, "delete": 0.4, "raise": 0.7, "jump": 1.5, "assert": 0.3, "if": 4,
                   "for": 3, "try": 3, "closure": 2, "yield": 3, "await": 3}  # fmt: skip
        compound = ["if", "for", "while", "try", "with", "match", "function", "generator", "class",
                    "coroutine"]  # fmt: skip
        kinds = [k for k in (simple if depth <= 0 else simple + compound) if k in self.kinds]
        form = self.scope.form
        kinds += {"generator": ["yield"], "coroutine": ["await"], "def": []}[form]
        (kind,) = self.random.choices(kinds, [weights.get(k, 1) for k in kinds])
        return getattr(self, f"_{kind}")(depth, loop)

    def _assign(self, depth: int, loop: bool) -> list[str]:
        value = self.expression()
        return [f"{self.write()} = {value}"]

    def _augment(self, depth: int, loop: bool) -> list[str]:
        value = self.expression(1)
        return [f"{self.random.choice(self.scope.own)} {self.random.choice(['+=', '-='])} {value}"]

    def _unpack(self, depth: int, loop: bool) -> list[str]:
        values = f"{self.expression(1)}, {self.expression(1)}"
        return [f"{self.write()}, {self.write()} = {values}"]

    def _delete(self, depth: int, loop: bool) -> list[str]:
        return [f"del {self.random.choice(self.scope.own)}"]

    def _print(self, depth: int, loop: bool) -> list[str]:
        return [f"print({self.expression(1)}, {self.test()})"]

    def _raise(self, depth: int, loop: bool) -> list[str]:
        return [self.random.choice(FAILING).format(self.expression(1))]

    def _assert(self, depth: int, loop: bool) -> list[str]:
        return [f"assert {self.test()}, note({self.expression(0)})"]

    def _yield(self, depth: int, loop: bool) -> list[str]:
        value = self.expression(1)
        return [
            self.random.choice([f"yield {value}", f"yield from [{value}, 1]", f"{self.write()} = (yield {value}) or 0"])
        ]

    def _await(self, depth: int, loop: bool) -> list[str]:
        inner = indent(self.inner(depth, loop=True)) if depth > 0 else []
        choices = [[f"{self.write()} = await Step({self.expression(1)})"]]
        if inner:
            choices.append([f"async for {self.write()} in ticks(3):", *inner, *self._else(depth, loop)])
        return self.random.choice(choices)

    def _object(self, depth: int, loop: bool) -> list[str]:
        value, target = self.expression(1), self.random.choice(["o.x", "l[0]", "l[-1]"])
        forms = ["{t} = {e}", "{t} += {e}", "l.append({e})", "del l[-1]", "l = [*l, {e}]", "l += [{e}]", "del o.x",
                 "for {t} in [3, {e}]: note(o.x)", "with Manager({e}) as {t}: note({t})", "o = Box()"]  # fmt: skip
        return [self.random.choice(forms).format(t=target, e=value)]

    def _jump(self, depth: int, loop: bool) -> list[str]:
        jumps = ["break", "continue"] if loop else []
        jumps.append("return" if self.scope.form == "generator" else f"return {self.expression(1)}")
        jump = self.random.choice(jumps)
        return [f"if {self.test()}:", *indent([jump])] if self.random.random() < 0.7 else [jump]

    def _if(self, depth: int, loop: bool) -> list[str]:
        lines = [f"if {self.test()}:", *indent(self.inner(depth, loop=loop))]
        while self.random.random() < 0.2:
            lines += [f"elif {self.test()}:", *indent(self.inner(depth, loop=loop))]
        if self.random.random() < 0.5:
            lines += ["else:", *indent(self.inner(depth, loop=loop))]
        return lines

    def _else(self, depth: int, loop: bool) -> list[str]:
        return ["else:", *indent(self.inner(depth, loop=loop))] if self.random.random() < 0.3 else []

    def _for(self, depth: int, loop: bool) -> list[str]:
        source = self.random.choice([
            f"range({self.random.randint(0, 4)})", f"[{self.expression(1)}, {self.expression(0)}]",
            f"enumerate([{self.expression(0)}, 2])", f"({self.expression(0)} for _ in range(3))",
        ])  # fmt: skip
        target = f"{self.write()}, {self.write()}" if source.startswith("enumerate") else self.write()
        lines = [f"for {target} in {source}:", *indent(self.inner(depth, loop=True))]
        return lines + self._else(depth, loop)

    def _while(self, depth: int, loop: bool) -> list[str]:
        test = self.random.choice(["True", self.test()])
        lines = [f"while {test}:", *indent(["spend()", *self.inner(depth, loop=True)])]
        return lines + self._else(depth, loop)

    def _try(self, depth: int, loop: bool) -> list[str]:
        lines = ["try:", *indent(self.inner(depth, loop=loop))]
        for error in self.random.sample(ERRORS, self.random.randint(0, 2)):
            name = self.random.choice(["", "", " as error", f" as {self.scope.own[0]}"])
            lines += [f"except {error}{name}:", *indent(self.inner(depth, loop=loop))]
        if len(lines) and any(line.startswith("except") for line in lines):
            lines += self._else(depth, loop)
        if not any(line.startswith("except") for line in lines) or self.random.random() < 0.3:
            lines += ["finally:", *indent(self.inner(depth, loop=loop))]
        return lines

    def _with(self, depth: int, loop: bool) -> list[str]:
        suppressed = "".join(f", {e}" for e in self.random.sample(ERRORS, self.random.randint(0, 1)))
        prefix = self.random.choice(["", "Async"]) if self.scope.form == "coroutine" else ""
        head = f"{prefix.lower()}{' ' * bool(prefix)}with {prefix}Manager({self.expression(1)}{suppressed})"
        head += f" as {self.write()}:" if self.random.random() < 0.5 else ":"
        return [head, *indent(self.inner(depth, loop=loop))]

    def _match(self, depth: int, loop: bool) -> list[str]:
        lines = [f"match [{self.expression(1)}, {self.expression(0)}]:"]
        patterns = ["[0, _]", "[1 | 2, _]", f"[{self.scope.own[0]}, 3]", f"[{self.scope.own[1]}, *_]"]
        for pattern in self.random.sample(patterns, 2):
            guard = f" if {self.test()}" if self.random.random() < 0.4 else ""
            lines += indent([f"case {pattern}{guard}:", *indent(self.inner(depth, loop=loop))])
        if self.random.random() < 0.5:
            lines += indent(["case _:", *indent(self.inner(depth, loop=loop))])
        return lines

    def nest(self, what: str, depth: int, form: str = "def") -> tuple[str, list[str]]:
        """Return the name and the lines of a function within the present one."""
        name = self.new(what)
        return name, self.function(name, [self.new("p")], depth - 1, self.random.randint(1, 4), form)

    def _function(self, depth: int, loop: bool) -> list[str]:
        name, lines = self.nest("f", depth)
        self.scope.functions.append(name)
        return lines

    def _generator(self, depth: int, loop: bool) -> list[str]:
        name, lines = self.nest("g", depth, "generator")
        use = self.random.choice(["sum({})", "max({}, default=0)", "next({}, 5)", "len([*{}])", "int(any({}))"])
        call = use.format(f"{name}({self.expression(0)})")
        return [*lines, f"{self.write()} = {call}"]

    def _coroutine(self, depth: int, loop: bool) -> list[str]:
        name, lines = self.nest("c", depth, "coroutine")
        call = f"{name}({self.expression(0)})"
        call = f"await {call}" if self.scope.form == "coroutine" else f"drive({call})"
        return [*lines, f"{self.write()} = {call}"]

    def _class(self, depth: int, loop: bool) -> list[str]:
        name = self.new("C")
        self.nested += 1  # comprehensions of a class body have no walrus
        body = [f"k = {self.expression(1)}", f"if {self.test()}:", *indent([f"k = {self.expression(1)}"])]
        body += ["for k in range(2):", *indent([f"m = k + {self.expression(1)}"])]
        body += ["def get(self):", *indent([f"return self.k + self.m if {self.test()} else {self.expression(1)}"])]
        self.nested -= 1
        return [f"class {name}:", *indent(body), f"{self.write()} = {name}().get()"]

    def _closure(self, depth: int, loop: bool) -> list[str]:
        if not self.scope.closures:
            return self._assign(depth, loop)
        self.nested += 1
        line = f"fs.append(lambda q: q + {self.expression(1)} if spend() is None else 0)"
        self.nested -= 1
        return [line]


def indent(lines: list[str]) -> list[str]:
    """Return lines one level deeper."""
    return [f"    {line}" for line in lines]
