"""Random programs whose branches and loops depend on the values of tensors.

A program is the text of a module whose function `f(x, y)` takes two tensors of shape (3,). Each has a few features of
traced_features.txt next to branches, loops and in-place writes, so that what is refused can be told by feature.
"""

import dataclasses
import math
import random
import re
from collections.abc import Sequence
from pathlib import Path


@dataclasses.dataclass
class Feature:
    """Part of the language that a program may use.

    Attributes:
        define: source at the top of the module.
        setup: lines at the start of `f`.
        statements, tensors, integers, floats, tests: templates of statements and expressions.
        results: expressions that `f` returns, too.
    """

    define: str = ""
    setup: Sequence[str] = ()
    statements: Sequence[str] = ()
    tensors: Sequence[str] = ()
    integers: Sequence[str] = ()
    floats: Sequence[str] = ()
    tests: Sequence[str] = ()
    results: Sequence[str] = ()


def read_features() -> dict[str, Feature]:
    """Return the features of traced_features.txt by name."""
    features = {}
    parts = re.split(r"^=== (.*)\n", Path(__file__).with_name("traced_features.txt").read_text(), flags=re.MULTILINE)
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        define, *sections = re.split(r"^--- (.*)\n", text.rstrip() + "\n", flags=re.MULTILINE)
        fields = dict(zip(sections[::2], sections[1::2], strict=True))
        setup = fields.pop("setup", "")
        # A line that begins a statement begins a template.
        templates = {field: re.split(r"\n(?! |else|elif|except|finally)", body[:-1]) for field, body in fields.items()}
        features[name] = Feature(define.strip("\n"), setup.splitlines(), **templates)
    return features


FEATURES = read_features()
BASE = FEATURES.pop("base")
TENSORS = ("a", "b", "c")
NESTED = re.compile(r"\{(T|N|V|test|block)\}")


class Generator:
    """Generator of programs.

    Args:
        seed: the seed of its choices.
        allowed: the features from which one to three are drawn.
    """

    shape = (3,)

    def __init__(self, seed: int, allowed: Sequence[str] = tuple(FEATURES)) -> None:
        self.random = random.Random(seed)
        features = self.random.sample(allowed, min(self.random.choice([1, 2, 2, 3]), len(allowed)))
        self.features, self.count, self.left = features, 0, 16
        self.used = [BASE, *(FEATURES[name] for name in features)]

    def choose(self, *options: str) -> str:
        return self.random.choice(options)

    def draw(self, field: str, depth: int) -> str:
        """Return a filled-in template; half of them are of features, if there are some."""
        own, common = (
            [t for feature in features for t in getattr(feature, field) if depth > 0 or not NESTED.search(t)]
            for features in (self.used[1:], self.used[:1])
        )
        return self.fill(self.choose(*own) if own and self.random.random() < 0.5 else self.choose(*common), depth)

    def fill(self, template: str, depth: int) -> str:
        """Return a template with its fields filled in."""

        def expression(field: re.Match[str]) -> str:
            name = field[1]
            deeper = depth - 1
            if name == "t":
                return self.choose(*TENSORS)
            if name == "c":
                return str(round(self.random.uniform(-1.2, 1.5), 2))
            if name == "i":
                return str(self.random.randrange(3))
            if name == "T":
                return self.draw("tensors", deeper)
            if name == "S":
                return self.choose(
                    "{}.sum()", "{}.max()", "{}.mean() * 0.5", "{}[0]", "{}[-1]", "torch.tanh({}).sum()"
                ).format(self.choose(*TENSORS))
            if name == "N":
                return self.draw("integers", deeper) if deeper > 0 else self.choose("k", "2", "3")
            if name == "V":
                return self.draw("floats", deeper) if deeper > 0 else self.choose("0.5", "1.5")
            return self.draw("tests", deeper)

        return re.sub(r"\{(t|c|i|T|S|N|V|test)\}", expression, template)

    # ------------------------------------------------------------------------------------------- statements

    def block(self, depth: int, *, loop: bool) -> list[str]:
        return [line for _ in range(self.random.randint(1, 3)) for line in self.statement(depth, loop=loop)]

    def statement(self, depth: int, *, loop: bool = False) -> list[str]:
        """Return the lines of a statement."""
        self.left -= 1
        kind = self.choose("simple", "simple", "simple", "if", "if", "for", "while", "jump", "return")
        if self.left < 0 or depth <= 0:
            kind = "simple"
        inner = lambda loop=loop: indent(self.block(depth - 1, loop=loop))
        test = lambda: self.draw("tests", 2)
        if kind == "if":
            lines = [f"if {test()}:", *inner()]
            if self.random.random() < 0.3:
                lines += [f"elif {test()}:", *inner()]
            return lines + (["else:", *inner()] if self.random.random() < 0.6 else [])
        if kind in {"for", "while"}:
            self.count += 1
            name = f"n{self.count}"
            if kind == "for":
                lines = [f"for {name} in range({self.random.randint(1, 3)}):", *inner(loop=True)]
            else:
                bound = (1, 2, 9)[self.random.randrange(3)]  # 9 are too many to be run as branches
                head = [f"{name} = 0", f"while {name} < {bound} and ({test()}):"]
                lines = [*head, f"    {name} += 1", *inner(loop=True)]
            return lines + (["else:", *inner()] if self.random.random() < 0.25 else [])
        if kind == "jump" and loop:
            return [f"if {test()}:", f"    {self.choose('break', 'continue')}"]
        if kind == "return" and self.random.random() < 0.4:
            return [f"if {test()}:", f"    return {self.result()}"]
        return self.simple(depth, loop=loop)

    def simple(self, depth: int, *, loop: bool) -> list[str]:
        own = [
            t
            for feature in self.used[1:]
            for t in feature.statements
            if min(depth, self.left) > 0 or "{block}" not in t
        ]
        template = self.choose(*own) if own and self.random.random() < 0.65 else self.choose(*BASE.statements)
        lines = []
        for line in template.split("\n"):
            if line.strip() == "{block}":
                inner = self.block(depth - 1, loop=loop)
                lines += [line.replace("{block}", text) for text in inner]
            else:
                lines.append(self.fill(line, 2))
        return lines

    def result(self) -> str:
        extra = [text for feature in self.used[1:] for text in feature.results]
        return ", ".join(["a + k", "b", "s + c.sum()", *extra])

    def make(self) -> str:
        """Return the program's text."""
        definitions = [feature.define for feature in self.used if feature.define]
        setup = [line for feature in self.used for line in feature.setup]
        body = [line for _ in range(self.random.randint(3, 6)) for line in self.statement(3)]
        lines = ["def f(x, y):", *indent(["a, b = x * 1, y * 1", *setup, *body, f"return {self.result()}"])]
        return "\n\n".join([*definitions, "\n".join(lines)]) + "\n"


class Views:
    """Generator of programs of views and in-place writes.

    Args:
        seed: the seed of its choices.
    """

    shape, features = (4, 6), ("views",)

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.shapes = {"a": self.shape, "b": self.shape}
        self.lines = ["def f(x, y):", "    a, b = x * 1, y * 1"]

    def view(self) -> None:
        """Add a view of a random tensor."""
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
            options.append(("{}.reshape(-1)", (math.prod(shape),)))
            options.append(("{}.flatten()", (math.prod(shape),)))
            if shape[0] == shape[1]:
                options.append(("{}.diagonal(0, 0, 1)", (*shape[2:], shape[0])))
        text, new = self.random.choice(options)
        if len(new) > 4 or not math.prod(new):
            return
        made = f"v{len(self.shapes)}"
        self.lines.append(f"    {made} = {text.format(name)}")
        self.shapes[made] = new

    def write(self) -> None:
        """Add a write to a random tensor."""
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

    def make(self) -> str:
        """Return the program's text."""
        for _ in range(self.random.randrange(8, 18)):
            self.random.choice([self.view, self.view, self.write])()
        shown = self.random.sample([*self.shapes], min(3, len(self.shapes)))
        self.lines.append(f"    return a, b, {', '.join(f'{n} * 1' for n in shown)}")
        return "\n".join(self.lines) + "\n"


class Jumps:
    """Generator of programs of a function `f(x)` that jumps out of nested statements, by tests of a tensor's items.

    Args:
        seed: the seed of its choices.
    """

    def __init__(self, seed: int) -> None:
        self.random, self.left = random.Random(seed), 14

    def test(self) -> str:
        return f"x[{self.random.randrange(4)}] > {self.random.choice([-0.5, 0, 0.5])}"

    def simple(self) -> list[str]:
        return [f"a = (a * 3 + {self.random.randrange(9)}) % 1009"]

    def block(self, depth: int, *, loop: bool) -> list[str]:
        """Return statements; a third of the blocks end in a jump, after which a line may follow that is not reached."""
        lines = [line for _ in range(self.random.randint(1, 2)) for line in self.statement(depth, loop=loop)]
        if self.random.random() < 0.35:
            value = self.random.randrange(9)
            lines.append(self.random.choice([f"return a * 10 + {value}", *(["break", "continue"] if loop else [])]))
            lines += self.simple() if self.random.random() < 0.1 else []
        return lines

    def statement(self, depth: int, *, loop: bool) -> list[str]:
        """Return the lines of a statement."""
        self.left -= 1
        kind = self.random.choice(["simple", "if", "if", "if", "for", "while", "with", "try"])
        if depth == 0 or self.left < 0 or kind == "simple":
            return self.simple()
        inner = lambda loop=loop: indent(self.block(depth - 1, loop=loop))
        if kind == "if":
            lines = [f"if {self.test()}:", *inner()]
            while self.random.random() < 0.4:
                lines += [f"elif {self.test()}:", *inner()]
            return lines + (["else:", *inner()] if self.random.random() < 0.5 else [])
        if kind == "with":
            return ["with torch.no_grad():", *inner()]
        if kind == "try":
            return ["try:", *inner(), "finally:", *indent(self.simple())]
        lines = [f"for i{depth} in range(2):", *inner(loop=True)]
        if kind == "while":
            head = [f"i{depth} = 0", f"while i{depth} < 2 and {self.test()}:", f"    i{depth} += 1"]
            lines = [*head, *inner(loop=True)]
        return lines + (["else:", *inner()] if self.random.random() < 0.3 else [])

    def make(self) -> str:
        """Return the program's text."""
        body = [line for _ in range(3) for line in self.statement(3, loop=False)]
        return "\n".join(["import torch", "def f(x):", *indent(["a = x.sum() * 0", *body, "return a * 10 + 9"])]) + "\n"


def indent(lines: list[str]) -> list[str]:
    """Return lines one level deeper."""
    return [f"    {line}" for line in lines]
