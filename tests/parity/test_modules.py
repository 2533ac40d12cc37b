"""Layers beside PyTorch's, on the inputs of PyTorch's own tests: values, gradients, buffers, state dicts, repr.

Some inputs of each layer run here; FNJAX_ALL_MODULES=1 runs them all, and `python -m tests.parity.modules` counts them.
"""

import inspect
import os
import warnings

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")

from tests.parity.modules import INFOS, judge, list_cases

pytestmark = pytest.mark.parity
EACH = None if os.environ.get("FNJAX_ALL_MODULES") else 1
# Layers that raise NotSupported for some inputs, and why.
REFUSED: dict[str, str] = {}


@pytest.mark.parametrize("name", list(INFOS))
def test_layer(name):
    """A layer with PyTorch's state gives PyTorch's values, gradients and buffers, in training and evaluation."""
    dtypes = ("float32", "bfloat16") if EACH is None else ("float32",)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [(str(case), *judge(case)) for case in list_cases(name, dtypes, EACH)]
    accepted = {"equal", "not in PyTorch"} | ({"refused"} if name in REFUSED else set())
    assert [f for f in found if f[1] not in accepted] == []


def _list_parameters(cls):
    parameters = inspect.signature(cls).parameters.values()
    return [(p.name, p.kind, p.default) for p in parameters if p.name not in {"activation", "args", "kwargs"}]


def test_all_layers_are_there():
    """Each class of torch.nn is one of ours, but for what is refused; its constructor takes the same parameters."""
    import torch

    import fnjax.torch as ours
    from fnjax.torch.deferred.missing import loading

    layers = {n: c for n, c in vars(torch.nn).items() if isinstance(c, type) and issubclass(c, torch.nn.Module)}
    with loading():
        missing = sorted(n for n in layers if not isinstance(getattr(ours.nn, n), type))
    assert missing == ["Container"]
    named = {n: c for n, c in layers.items() if n not in {"Container", "NLLLoss2d"} and not n.startswith("Lazy")}
    assert {n: _list_parameters(getattr(ours.nn, n)) for n in named} == {
        n: _list_parameters(c) for n, c in named.items()
    }
