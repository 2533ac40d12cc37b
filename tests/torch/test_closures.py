"""Closures that run where a test is traced do what Python's own statements do, jumps, exceptions and order included."""

import ast
import operator
import random
import re
import types
import warnings

import pytest

from fnjax._torch_ops.syntax.trees import RUNTIME
from fnjax.torch.control.lowering.lowering import lower
from fnjax.torch.deferred.filtered import Item
from tests.torch.python_programs import KINDS, Generator
from tests.torch.test_python_programs import run

NAMES = ("args", "item", "test", "items", "name", "given")  # of variables, in place of v1 to v6
CLOSABLE = tuple(kind for kind in KINDS if kind != "eval")


class Traced:
    """A value that stands for a traced one: what it is, only the runtime of this file may ask."""

    def __init__(self, value):
        self.value = value

    def __bool__(self):
        raise AssertionError("the bool of a traced value")


def truth(value):
    return bool(value.value if isinstance(value, Traced) else value)


class Items:
    """A range with a traced bound: it has no items."""

    def __init__(self, items):
        self.items = items


def list_flags(*closures):
    """Return the cells of the flags that closures set, and what they hold."""
    found, seen, waiting = [], set(), [*closures]
    while waiting:
        closure = waiting.pop()
        seen.add(closure)
        for name, cell in zip(closure.__code__.co_freevars, closure.__closure__ or (), strict=True):
            value = None if cell == types.CellType() else cell.cell_contents
            if name.startswith("__fnjax_") and isinstance(value, types.FunctionType):
                waiting += {value} - seen
            elif re.match("__fnjax_(returned|broken|skipped)", name):
                found.append((cell, value))
    return found


class Runtime:
    """Runtime that takes some tests for traced ones; of their branches it runs the one that is taken.

    Attributes:
        count: the number of tests that were taken for traced ones.
    """

    def __init__(self, seed, chance):
        self.random, self.chance, self.count = random.Random(seed), chance, 0

    def takes(self):
        found = self.random.random() < self.chance
        self.count += found
        return found

    def to_bool(self, value):
        if isinstance(value, Traced):
            return value
        return Traced(bool(value)) if self.takes() else bool(value)

    def if_(self, test, yes, no):
        test, before = self.to_bool(test), list_flags(yes, no)
        try:
            return yes() if truth(test) else no()
        finally:
            for cell, old in before if isinstance(test, Traced) else ():
                if (
                    cell != types.CellType()
                    and cell.cell_contents is not old
                    and not isinstance(cell.cell_contents, Traced)
                ):
                    cell.cell_contents = Traced(cell.cell_contents)

    is_, is_not = staticmethod(operator.is_), staticmethod(operator.is_not)
    in_, not_in = staticmethod(lambda a, b: a in b), staticmethod(lambda a, b: a not in b)
    known = staticmethod(lambda value: value)

    def while_(self, decided, test, body, state, broken):
        while not (broken and truth(broken())) and truth(self.to_bool(test()) if decided is None else decided):
            body()
            decided = None

    def for_(self, items, body, state, broken):
        items, end = iter(items.items if isinstance(items, Items) else items), object()
        while not (broken and truth(broken())) and (item := next(items, end)) is not end:
            body(item)

    def iterate(self, items):
        return Items(items) if isinstance(items, range) and self.takes() else iter(items)

    def is_traced_iterable(self, items):
        return isinstance(items, Items)

    def returned(self, state, flag):
        return state.__closure__[0].cell_contents if truth(flag) else None

    def and_(self, value, rest):
        return rest() if truth(value) else value

    def or_(self, value, rest):
        return value if truth(value) else rest()

    def not_(self, value):
        return Traced(not value.value) if isinstance(value, Traced) else not value

    def set_entry(self, value, container, index):
        container[index] = value

    def filtered(self, items, function=None):
        kept = (x.value if type(x) is Item else x for x in items if type(x) is not Item or x.test)
        return [*kept] if function is None else kept

    select_item = staticmethod(lambda test, make: Item(test.value, make() if test.value else None))
    list_yielded = staticmethod(lambda test, value: (value,))

    def update_entry(self, container, index, operation, value):
        container[index] = getattr(operator, operation)(container[index], value())

    get_entry = staticmethod(lambda container, index: container[index])
    builtin = staticmethod(lambda value: value)
    assume = staticmethod(bool)


def execute(program, runtime=None):
    """Return what a program returns and prints; with a runtime, of its lowered tree."""
    tree = ast.parse(program)
    space = {"__name__": "program", RUNTIME: runtime}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        exec(compile(tree if runtime is None else lower(tree), "program", "exec", dont_inherit=True), space)
    # A closure has the variable of another function, which is unbound with a NameError.
    return [tuple(str(part).replace("UnboundLocalError", "NameError") for part in each) for each in run(space)]


@pytest.mark.slow
@pytest.mark.parametrize("chance", [0.4, 0.1, 1.0])
@pytest.mark.filterwarnings("ignore:.*generator ignored:pytest.PytestUnraisableExceptionWarning")
def test_random_programs_with_tests_that_count_as_traced(chance):
    """A program does the same whichever of its tests and ranges run as closures."""
    traced = 0
    for seed in range(30):
        program = Generator(seed, CLOSABLE).make()
        program = program.replace(" in range(", " in range(+")  # a bound that is no constant may be traced
        program = re.sub(r"\bv([1-6])\b", lambda found: NAMES[int(found[1]) - 1], program)
        runtime = Runtime(seed, chance)
        assert execute(program, runtime) == execute(program), f"seed {seed}"
        traced += runtime.count
    assert traced > 100
