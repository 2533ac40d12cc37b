"""NotSupported reaches the user: no handler of a loaded file turns it into a fallback's number."""

import jax
import jax.numpy as jnp
import pytest

from fnjax import torch

SOURCE = """
import asyncio
import contextlib
from contextlib import contextmanager, suppress

import torch


def refused():
    return torch.randn(3)  # needs a key


class Swallowing:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return True


class Plain:
    @property
    def noise(self):
        return refused()

    def __getattr__(self, name):
        raise AttributeError(name)


class Module(torch.nn.Module):
    @property
    def noise(self):
        return torch.ones(2).to_sparse()


@contextmanager
def tolerant():
    try:
        yield
    except Exception:
        pass


def exception():
    try:
        return refused()
    except Exception:
        return 1


def runtime_error():
    try:
        return refused()
    except (ValueError, RuntimeError) as error:
        return 1


def not_implemented():
    try:
        try:
            return refused()
        except NotImplementedError:
            return 1
    except OSError:
        return 2


def everything():
    try:
        return refused()
    except:
        return 1


def base_exception():
    try:
        return refused()
    except KeyError:
        return 1
    except BaseException:
        return 2


def group():
    try:
        refused()
    except* Exception:
        pass
    return 1


def returned_in_finally():
    try:
        return refused()
    finally:
        return 1


def broken_in_finally():
    for _ in range(2):
        try:
            refused()
        finally:
            for _ in range(3):
                break
            break
    return 1


def continued_in_finally():
    for _ in range(2):
        try:
            refused()
        finally:
            continue
    return 1


def returned_in_a_branch_of_finally(flag=True):
    try:
        return refused()
    finally:
        if flag:
            return 1


def star_in_a_loop():
    for _ in range(2):
        try:
            refused()
        except* (ValueError, RuntimeError):
            pass
    return 1


def coroutine():
    async def run():
        try:
            return refused()
        except Exception:
            return 1

    return asyncio.run(run())


def suppressed():
    with suppress(Exception), contextlib.suppress(RuntimeError):
        return refused()
    return 1


def context_manager():
    with Swallowing():
        return refused()
    return 1


def generator():
    with tolerant():
        return refused()
    return 1


def default_of_a_property():
    return getattr(Plain(), "noise", 1)


def property_of_a_module():
    return getattr(Module(), "noise", 1)


def presence_of_a_property():
    return hasattr(Plain(), "noise")


def method_that_pytorch_has():
    return getattr(torch.ones(2), "to_sparse", 1)


def name_that_is_unknown():
    try:
        return torch.no_such_function(torch.ones(2))
    except AttributeError:
        return 1
"""

KEPT = """
import contextlib
import torch


class Swallowing:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        return kind is ZeroDivisionError and "swallowed"


def handled():
    try:
        return 1 / 0
    except Exception as error:
        return type(error).__name__


def in_finally():
    for x in (1, 2):
        try:
            1 / 0
        finally:
            if x == 1:
                continue
            return x


def in_context():
    with Swallowing(), contextlib.suppress(KeyError):
        1 / 0
    return Swallowing().__exit__(ZeroDivisionError, None, None)


def known_in_finally():
    try:
        return 1
    finally:
        return 2


def feature_tests():
    return (
        hasattr(torch, "no_such_name"), getattr(torch, "no_such_name", 3), hasattr(torch.nn.functional, "relu"),
        hasattr(torch.ones(2), "no_such_method"), hasattr(torch.ops.no_such_library, "operator"),
    )


def failed_import():
    try:
        from torch import no_such_name
    except ImportError:
        return "ImportError"
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refusals")
    (folder / "refusing.py").write_text(SOURCE)
    (folder / "kept.py").write_text(KEPT)
    return torch.load(folder / "refusing.py"), torch.load(folder / "kept.py")


NAMES = [line[4:].partition("(")[0] for line in SOURCE.splitlines() if line.startswith("def ")]


@pytest.mark.parametrize("name", [n for n in NAMES if n not in {"refused", "tolerant"}])
def test_refusals_pass(loaded, name):
    """Handlers, finally, context managers, defaults of attributes and properties let NotSupported pass."""
    function = getattr(loaded[0], name)
    for run in (function, lambda: jax.jit(lambda x: torch.jax_view(function)())(jnp.ones(2))):
        with pytest.raises(torch.NotSupported, match=r"need a key|sparse tensors|no_such_function"):
            run()


def test_other_exceptions_are_handled_as_in_python(loaded):
    """Handlers keep all other exceptions, also while a caller handles a NotSupported; feature tests are answered."""
    kept = loaded[1]

    def check():
        assert kept.handled() == "ZeroDivisionError"
        assert kept.in_finally() == kept.known_in_finally() == 2
        assert kept.in_context() == "swallowed"
        assert kept.feature_tests() == (False, 3, True, False, False)
        assert kept.failed_import() == "ImportError"

    check()
    try:
        raise torch.NotSupported("handled by the caller")
    except torch.NotSupported:
        check()


@pytest.mark.parametrize(
    ("name", "meant"),
    [("whree", "where"), ("nn.Liner", "nn.Linear"), ("cross_entropy", "nn.functional.cross_entropy"), ("qqqq", "")],
)
def test_a_similar_name_is_suggested(name, meant, tmp_path):
    """A name that is not there is answered with the name that may be meant, in a loaded file and outside."""
    (tmp_path / "a.py").write_text(f"import torch\n\n\ndef f():\n    return torch.{name}()\n")
    for call in (torch.load(tmp_path / "a.py").f, eval(f"lambda: torch.{name}()", {"torch": torch})):
        with pytest.raises(torch.NotSupported) as found:
            call()
        assert ("did you mean" in str(found.value)) == bool(meant)
        assert not meant or f"did you mean torch.{meant}?" in str(found.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("torch.topk(x, k)", "torch.topk needs the value of the traced number k"),
        ("torch.tril(x, k)", "torch.tril needs the value of the traced number diagonal"),
        ("torch.nn.functional.pad(x, (1, k))", "torch.pad needs the value of the traced number pad"),
        ("x.sum(k)", "a size, or an axis, that is a traced number"),
        ("torch.arange(k)", "torch.arange of a traced number"),
        ("x.reshape(k, -1)", r"int\(\) of a tensor that JAX traces"),
        ("x[:k]", "a slice whose length is not known under jit"),
    ],
)
def test_a_traced_number_is_told_to_be_static(call, message):
    """A traced number that a size, an axis or an option needs is named, with what keeps it static."""
    function = torch.jax_view(eval(f"lambda x, k: {call}", {"torch": torch}))
    x = jnp.eye(3)
    with pytest.raises(torch.NotSupported, match=rf"{message}(.|\n)*static_argnums"):
        jax.jit(function)(x, 1)
    jax.jit(function, static_argnums=1)(x, 1)


@pytest.mark.parametrize("call", ["torch.topk(x, k)", "torch.tril(x, k)", "x.sum(k)", "torch.arange(k)", "x[:k]"])
def test_a_number_that_tensors_decide_is_not_told_to_be_static(call):
    """No argument of jax.jit is that number: the remedy is a size that is known, and a mask."""
    function = torch.jax_view(eval(f"lambda x: (lambda k: {call})(x.sum().long())", {"torch": torch}))
    with pytest.raises(torch.NotSupported, match="choose with a mask") as caught:
        jax.jit(function)(jnp.eye(3))
    assert "static_argnums" not in str(caught.value)


def test_no_number_is_traced_where_a_tensor_is():
    """The refusal of what only a tensor's values decide offers no static argument."""
    with pytest.raises(torch.NotSupported) as caught:
        jax.jit(torch.jax_view(lambda x: float(x.sum())))(jnp.eye(3))
    assert "static_argnums" not in str(caught.value)
