"""Traced branches and loops: what they change is as in PyTorch, or refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch

RAISES = """
import contextlib
import torch


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


@pytest.fixture(scope="module")
def raises(tmp_path_factory):
    path = tmp_path_factory.mktemp("raises") / "raising.py"
    path.write_text(RAISES)
    return torch.load(path)


X = jnp.array([1.0, 2.0, 3.0])


@pytest.mark.parametrize("name", ["passes", "helper", "handled_within", "after_a_try", "other_handler", "in_blocks"])
def test_a_branch_that_raises_is_not_taken(raises, name):
    """An exception of the source's own that nothing in it catches says that the branch is not taken."""
    np.testing.assert_array_equal(jax.jit(torch.jax_view(getattr(raises, name)))(X), X * 2)


@pytest.mark.parametrize(
    "name",
    ["caught", "caught_assert", "caught_helper", "suppressed", "retried", "swallowed", "ignored", "attribute", "items",
     "jumps_in_finally"],
)  # fmt: skip
def test_a_raise_that_the_source_catches_is_refused(raises, name):
    """Whether the handler runs is not known while JAX traces."""
    with pytest.raises(torch.NotSupported, match=r"a handler around it catches[\s\S]*raising.py:\d+"):
        jax.jit(torch.jax_view(getattr(raises, name)))(X)


@pytest.mark.parametrize(
    ("name", "error"),
    [("key", (KeyError, torch.NotSupported)), ("index", IndexError), ("kind", TypeError), ("right_operand", KeyError)],
)
def test_an_error_in_a_branch_is_an_error(raises, name, error):
    """What no `raise` of the source says is a mistake, or something that fnjax cannot do."""
    with pytest.raises(error):
        jax.jit(torch.jax_view(getattr(raises, name)))(X)
