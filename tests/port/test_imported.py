"""Statements that the port executes when it is imported."""

import pytest

from fnjax.port import port_source
from tests.port.test_classes import module

LEFT = """\
import torch
from other import Thing, registry

reg = registry.make(3)
thing = Thing()


@reg.register
def twice(x):
    return x * 2


FACTOR = thing.compute(4)
SECOND = FACTOR.value + 1
THIRD = [SECOND[0], 2]


class Needing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return twice(x) * THIRD[0]

    @staticmethod
    def backward(ctx, dy):
        return dy * 2


class Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        return dy * 2
"""


IN_A_BRANCH = """\
import sys
import torch
from other import make

if len(sys.argv) >= 0:
    table = make(3)
else:
    table = [1, 2]


class Needing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * table[0]


class Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
"""


def test_what_was_left_in_a_branch_is_none_there(tmp_path):
    """Nothing of the top level raises when the file is imported, wherever it stands."""
    ported = port_source(IN_A_BRANCH, strict=True)
    assert [c.status for c in ported.classes] == ["partial", "ported"]
    made = module(tmp_path, "ported_branch", ported.code)
    assert made.table is None
    assert made.Plain.apply(3.0) == 6


def test_what_was_left_does_not_keep_the_file_from_being_imported(tmp_path):
    """A class that needs none of it runs, the other says what is missing."""
    ported = port_source(LEFT, "left.py", strict=True)
    needing, plain = ported.classes
    assert (needing.status, plain.status) == ("partial", "ported")
    messages = " ".join(f.message for f in needing.findings)
    assert "other.registry.make is of another module" in messages
    assert "other.Thing is of another module" in messages
    made = module(tmp_path, "ported_left", ported.code)
    assert made.Plain.apply(3.0) == 6
    with pytest.raises(TypeError):
        made.Needing.apply(3.0)


GENERIC = """\
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class Base(torch.nn.Module, Generic[T]):
    factor = 3


class Listed(list):
    factor = 3


def tripled(x, kind: Base[int] = None, other: Listed[int] = None) -> Base[int]:
    return x * 3 * Listed.factor


class Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return tripled(x)

    @staticmethod
    def backward(ctx, dy):
        return dy * 9
"""


def test_an_annotation_with_a_base_elsewhere_goes(tmp_path):
    """A class that is not whole is named by no annotation, so that one keeps no class from JAX; others stay."""
    ported = port_source(GENERIC, "generic.py")
    assert [c.status for c in ported.classes] == ["ported"]
    assert "def tripled(x, kind=None, other: Listed[int] = None):" in ported.code
    assert module(tmp_path, "ported_generic", ported.code).Plain.apply(2.0) == 18


COMPILED = """\
import torch


def squared(x):
    return x * x


{way}


class Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return squared(x)

    @staticmethod
    def backward(ctx, dy):
        return dy
"""
WAYS = ["try:\n    squared = torch.compile(squared)\nexcept RuntimeError:\n    pass"]


@pytest.mark.parametrize("way", WAYS)
def test_a_function_that_is_perhaps_compiled_stays(way, tmp_path):
    """Whichever way it goes, it is the same function."""
    ported = port_source(COMPILED.format(way=way), "compiled.py")
    assert ported.classes[0].status == "ported"
    assert module(tmp_path, "ported_compiled", ported.code).Plain.apply(3.0) == 9


VERSIONS = """\
import importlib
import operator

import torch
from packaging.version import Version


def newer(package, ask, target):
    try:
        found = importlib.import_module(package)
    except ImportError:
        return False
    return ask(Version(found.__version__), Version(target))


NEW = newer("numpy", operator.ge, "1.0")


class Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2 if NEW else x

    @staticmethod
    def backward(ctx, dy):
        return dy
"""


def test_a_version_is_asked_for_as_in_the_source(tmp_path):
    """Calls of packaging are Python's business, and keep no class from JAX."""
    ported = port_source(VERSIONS, "versions.py")
    assert [(c.status, c.findings) for c in ported.classes] == [("ported", ())]
    assert module(tmp_path, "ported_versions", ported.code).Plain.apply(3.0) == 6


GROUP = """\
import torch


class Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.count = group.size()
        return x / group.size()

    @staticmethod
    def backward(ctx, dy):
        return dy / ctx.count, None
"""


def test_a_group_has_a_size_of_its_own(tmp_path):
    """Nothing is divided by a tensor's size, which is a tuple: this is no tensor."""

    class Group:
        def size(self):
            return 4

    for number, text in enumerate((GROUP, GROUP.replace("x / group.size()", "x / ctx.count"))):
        ported = port_source(text, "group.py")
        assert module(tmp_path, f"ported_group_{number}", ported.code).Shared.apply(2.0, Group()) == 0.5
