"""Functions of loaded files on arrays of JAX: PyTorch's methods run, not JAX's of the same names."""

import ast
import collections
import contextlib
import dataclasses
import functools
import inspect
import types
import unittest.mock
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch
from fnjax.torch.control.lowering.lowering import lower
from fnjax.torch.loading import array_arguments

FILE = '''
import dataclasses
import typing

import torch

def spread(x):
    """Return the standard deviation."""
    return x.std()

def parts(x, /, *more, times=2, **named):
    return x.repeat(times), [m.transpose(0, 1) for m in more], {n: v.sort()[0] for n, v in named.items()}

def of_all(arrays):
    return [x.std() for x in arrays]

largest = lambda x: x.max(1)[0]

def branch(x):
    if x.sum() > 0:
        return x.std()
    return x.sum()

def first(x):
    return next(each(x))

def each(x):
    for row in x:
        yield row.std()

def add_one(x):
    y = x
    y += 1
    return x

def fill(x):
    x.fill_(1)

def make(scale):
    count = 0
    def step(x, other=None):
        nonlocal count
        count += 1
        return scale * (lambda v: count * v.std())(x)
    return step

class Base:
    def compute(self, x):
        return x.std()

class Scaled(Base):
    def __init__(self, w):
        self.w = w

    def compute(self, x):
        return super().compute(x) * self.w.std()

    @staticmethod
    def of_rows(x):
        return x.std(1)

class Net(torch.nn.Module):
    def encode(self, x):
        return x.std()

    def forward(self, x):
        return x * self.scale.std()

    @classmethod
    def build(cls, x):
        return cls()

@dataclasses.dataclass
class Batch:
    x: torch.Tensor

    def compute(self):
        return self.x.std()

@dataclasses.dataclass(slots=True)
class Slots:
    x: torch.Tensor

class Pair(typing.NamedTuple):
    x: torch.Tensor
    y: torch.Tensor

    def compute(self):
        return self.x.std() + self.y.std()

def note(log, x):
    log.append(x)

def note_and_return(log, x):
    log.append(x)
    return log

def of_result(f, x):
    return f(x).std()

def of_batch(batch):
    return batch.x.std()
'''
X = np.arange(6, dtype=np.float32).reshape(2, 3) ** 2


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "functions.py"
    path.write_text(FILE)
    return torch.load(path)


def std(x, axis=None):
    return np.std(x, axis, ddof=1)


CASES = {
    "a function": (lambda file, x: file.spread(x), std(X)),
    "a lambda": (lambda file, x: file.largest(x), X.max(1)),
    "a branch": (lambda file, x: file.branch(x), std(X)),
    "a list": (lambda file, x: file.of_all([x, x]), [std(X)] * 2),
    "every parameter": (
        lambda file, x: file.parts(x[0], x, times=3, a=x[0][::-1]),
        (np.tile(X[0], 3), [X.T], {"a": X[0]}),
    ),
    "a generator inside": (lambda file, x: file.first(x), std(X[0])),
    "a closure": (lambda file, x: file.make(2.0)(x), 2 * std(X)),
    "super": (lambda file, x: file.Scaled(x).compute(x), std(X) ** 2),
    "a static method": (lambda file, x: file.Scaled.of_rows(x), std(X, 1)),
    "a tuple with names": (lambda file, x: file.Pair(x, x).compute(), 2 * std(X)),
    "a method of a module": (lambda file, x: file.Net().encode(x), std(X)),
}


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.checkpoint], ids=["eager", "jit", "checkpoint"])
@pytest.mark.parametrize("name", CASES)
def test_a_function_takes_and_returns_arrays(file, name, transform):
    """A function of a file on an array computes what PyTorch computes, and returns an array."""
    call, expected = CASES[name]
    found = transform(lambda x: call(file, x))(jnp.asarray(X))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(found))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


def test_gradients(file):
    """JAX differentiates a function of a file as it is."""
    x = jnp.asarray(X)
    expected = (X - X.mean()) / (X.size - 1) / std(X)
    np.testing.assert_allclose(jax.jit(jax.grad(file.spread))(x), expected, rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(file.spread)(x), std(X, 1), rtol=1e-6)


def test_a_write_through_another_name(file):
    """`y = x; y += 1` changes x, as a tensor, and not the caller's array."""
    x = jnp.asarray(X)
    np.testing.assert_array_equal(file.add_one(x), X + 1)
    np.testing.assert_array_equal(x, X)


def test_a_call_changes_the_variables_of_the_function(file):
    """A function that is called on an array has the closure of the one that the file made."""
    step = file.make(1.0)
    np.testing.assert_allclose([step(jnp.asarray(X)), step(jnp.asarray(X))], [std(X), 2 * std(X)], rtol=1e-6)


def test_results_are_tensors_where_an_argument_is_one(file):
    """Arrays beside tensors become tensors, and so do those of a generator that a user runs."""
    found, others, _ = file.parts(torch.torch_view(X[0]), jnp.asarray(X))
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(torch.jax_view(others[0]), X.T)
    np.testing.assert_allclose(torch.jax_view([*file.each(jnp.asarray(X))]), std(X, 1), rtol=1e-6)


def test_numpy_arrays_stay(file):
    """Files compute with NumPy's arrays themselves."""
    np.testing.assert_allclose(file.spread(X), np.std(X), rtol=1e-6)


def test_what_cannot_be_converted_is_refused(file):
    """A write to an argument that is not returned, and an array in an object, raise."""
    with pytest.raises(torch.NotSupported, match="a write of fill to an argument of shape"):
        file.fill(jnp.asarray(X))
    with pytest.raises(torch.NotSupported, match=r"a Batch with arrays of JAX as an argument.*\n.*torch_view"):
        file.of_batch(file.Batch(jnp.asarray(X)))
    with pytest.raises(torch.NotSupported, match="a Slots with arrays"):
        file.of_batch(file.Slots(jnp.asarray(X)))
    with pytest.raises(torch.NotSupported, match="a Batch with arrays"):
        file.Batch(jnp.asarray(X)).compute()
    net = file.Net()
    net.scale = jnp.asarray(X)
    with pytest.raises(torch.NotSupported, match="a Net with arrays"):
        net(jnp.asarray(X))
    np.testing.assert_allclose(file.of_batch(file.Batch(torch.torch_view(X))).item(), std(X), rtol=1e-6)


def test_lists_and_dicts_of_arguments(file):
    """A list without arrays is the caller's own; changes of one with arrays are returned or refused."""
    x = jnp.asarray(X)
    log = []
    file.note(log, x)
    np.testing.assert_array_equal(torch.jax_view(log[0]), X)

    def collect(x):
        made = []
        file.note(made, x)
        return torch.jax_view(made)

    np.testing.assert_array_equal(jax.jit(collect)(x)[0], X)
    given = [x]
    with pytest.raises(torch.NotSupported, match="a change by note of a list of arrays among its arguments"):
        file.note(given, x)
    assert len(file.note_and_return(given, x)) == 2
    assert len(given) == 1


def test_results_that_are_called(file):
    """A function returns an object of the file as it is, also one that can be called."""
    assert isinstance(file.Net.build(jnp.asarray(X)), file.Net)


def test_functions_of_jax_in_files(file):
    """A function of JAX would give a file its arrays: it is refused, and one of tensors is right."""
    x = jnp.asarray(X)
    for function in (jnp.sin, lambda t: 2 * jax.nn.relu(t)):
        with pytest.raises(torch.NotSupported, match=r"a function of JAX on a tensor.*\n.*torch_view\(f\)"):
            file.of_result(function, x)
    np.testing.assert_allclose(file.of_result(torch.torch_view(jnp.sin), x), std(np.sin(X)), rtol=1e-5)


def test_files_that_import_jax_have_arrays(tmp_path):
    """The functions of a file that imports JAX get arrays as they are."""
    path = tmp_path / "both.py"
    path.write_text("import torch\nimport jax.numpy as jnp\ndef f(x):\n    return jnp.sin(x)\n")
    np.testing.assert_allclose(torch.load(path).f(jnp.asarray(X)), np.sin(X), rtol=1e-6)


def test_the_document_and_signature_stay(file):
    """`help` shows a function as the file has it."""
    assert file.spread.__doc__ == "Return the standard deviation."
    assert file.parts.__kwdefaults__ == {"times": 2}


def list_codes(code):
    found = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return [code, *(inner for c in found for inner in list_codes(c))]


@pytest.mark.parametrize("module", [ast, collections, contextlib, dataclasses, functools, inspect, unittest.mock])
def test_functions_find_their_free_variables(module):
    """Of each function in modules of Python, the call with tensors has all variables that it closes over."""
    tree = lower(ast.parse(Path(module.__file__).read_text()))
    array_arguments.convert_arguments(tree)
    found = [c for c in list_codes(compile(tree, module.__file__, "exec")) if "call_with_tensors" in c.co_names]
    assert any(c.co_freevars for c in found)
    for code in found:
        made = [c.co_freevars for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == "<lambda>"]
        assert any(set(code.co_freevars) <= set(names) for names in made), code
