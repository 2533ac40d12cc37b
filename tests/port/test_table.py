"""Columns of the tables of torch's, Python's and NumPy's functions other than the translations."""

import dataclasses
import math
import pathlib

import jax
import jax.numpy as jnp
import pytest

import fnjax.port
from fnjax.port.torch import TABLE, Operation, Overload, list_dtype_names
from fnjax.port.torch.machinery import ENABLING, FALSE, NO_GRAD, PLAIN, SILENT
from fnjax.port.torch.python_functions import MATH, STATIC_BUILTINS

PORT = pathlib.Path(fnjax.port.__file__).parent
TORCH = PORT.parent / "torch"
FIRST = [o.first for o in TABLE.values() if isinstance(o, Operation)]
COLUMNS = [f for f in dataclasses.fields(Overload) if f.default is not dataclasses.MISSING]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda f: f.name)
def test_columns_are_said_and_read(column):
    """Each column says something of an operation, but not of all, and something asks for it."""
    said = sum(getattr(first, column.name) != column.default for first in FIRST)
    assert 0 < said < len(FIRST)
    readers = [*PORT.rglob("*.py"), *TORCH.rglob("*.py")]
    sources = [p.read_text() for p in readers]
    assert any(f".{column.name}" in text for text in sources)


def test_dtypes_are_told_by_the_table():
    """Torch's names of a dtype, and jnp's name of it, which exists."""
    assert list_dtype_names("int64") == {"torch.int64", "torch.long"}
    assert list_dtype_names("bool_", "float16") == {"torch.bool", "torch.float16", "torch.half"}
    known = {first.dtype for first in FIRST} - {""}
    assert len(known) > 15
    assert [name for name in known if not hasattr(jnp, name)] == []


@pytest.mark.parametrize("name", MATH)
def test_functions_of_math_give_the_same(name):
    """The function of JAX that replaces one of math returns the same value."""
    target = eval(MATH[name], {"jnp": jnp, "jax": jax})
    args = (0.6, 1.7)[: 2 if name == "pow" else 1]
    assert float(target(*map(jnp.float32, args))) == pytest.approx(float(getattr(math, name)(*args)), rel=1e-6)


def test_builtins_are_python_s():
    """The builtins that give no array exist, and none has two tables."""
    assert [n for n in STATIC_BUILTINS if not callable(__builtins__[n])] == []
    modes = [*NO_GRAD, *ENABLING, *FALSE, *SILENT]
    assert len(modes) == len({*modes})
    assert ENABLING < PLAIN
